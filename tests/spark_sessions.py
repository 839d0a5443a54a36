"""Sessions of Spark for tests: one process with real workers, and a standalone master with two of them; and a log."""

import datetime as dt
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hieropo import LogMoments, Moments

MARKS = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

# Java starts in half the time where it compiles quickly and collects on one thread; its processes are short.
JAVA = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}

COLUMNS: dict[str, Any] = {"task": "store", "action": "offer", "reward": "profit"}
CONTEXT = {**COLUMNS, "context": ["visits", "stamp"]}


def log(n: int = 600) -> pa.Table:
    rng = np.random.default_rng(5)
    store, offer = rng.integers(40, size=n), rng.integers(3, size=n)
    visits = rng.gamma(2.0, 1.0, size=n)
    return pa.table(
        {
            "store": store * 2**33 - 5,
            "offer": np.array(["none", "coupon", "gift"])[offer],
            "visits": visits,
            "stamp": 1.7e9 + rng.normal(size=n) * 1e3,  # far from 0
            "profit": 40.0 + 0.5 * offer + 0.3 * visits * offer + rng.normal(size=n),
            "weight": rng.integers(3, size=n),
            "precision": rng.uniform(0.5, 2.0, size=n),
            "region": [f"region {k % 3}" for k in store],
            "size": store / 4.0,
            "device": np.array(["phone", "it's a `tv`", "tablet"])[rng.integers(3, size=n)],
            "name": [f"store {k} é" for k in store],
            "opened": [dt.date(2026, 1, 1 + int(k) % 28) for k in store],
        }
    )


TABLE = log()


def skip_without_spark() -> None:
    """Skip a module of tests where PySpark or Java is not installed."""
    pytest.importorskip("pyspark", reason="of the extra spark, which `make test` installs")
    if shutil.which("java") is None:
        pytest.skip("no Java runtime is installed; `make test` installs it", allow_module_level=True)


@contextmanager
def session(master: str, **more: str) -> Iterator[Any]:
    """Give a session of a master; it is stopped at the end."""
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2", "spark.sql.adaptive.enabled": "false", "spark.log.level": "OFF",
        "spark.ui.showConsoleProgress": "false", "spark.driver.memory": "512m", **more,
    }  # fmt: skip
    os.environ["PYSPARK_PYTHON"] = sys.executable  # of the workers: python3 of the path may lack hieropo
    os.environ.update(JAVA)
    builder = SparkSession.builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    started = builder.getOrCreate()
    try:
        yield started
    finally:
        started.stop()


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """Start a standalone master with two workers of one core each; give its address, and stop all three at the end."""
    import pyspark

    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"spark://127.0.0.1:{port}"
    roles = [("127.0.0.1", ["master.Master", "--port", str(port)])]
    for k in (1, 2):  # hosts of two names: Spark runs no copy of a task on the host of the task
        size = ["--cores", "1", "--memory", "512m", "--work-dir", str(folder / f"worker-{k}")]
        roles.append((f"127.0.0.{k}", ["worker.Worker", *size, address]))
    with ExitStack() as stack:
        for k, (host, (name, *words)) in enumerate(roles):
            log = stack.enter_context((folder / f"{k}.log").open("wb"))
            process = subprocess.Popen(
                [program, f"org.apache.spark.deploy.{name}", "--host", host, "--webui-port", "0", *words],
                env={**os.environ, **JAVA, "SPARK_DAEMON_MEMORY": "128m", "SPARK_LOCAL_IP": host},
                stdout=log, stderr=log,
            )  # fmt: skip
            stack.callback(process.wait, 20)
            stack.callback(process.terminate)
        yield address


def check_equal(mine: LogMoments, expected: LogMoments) -> None:
    """Check that two moments have the same map, tasks, rows and sums, to rounding."""
    assert mine.features == expected.features
    assert mine.roles == expected.roles
    assert len(mine) == len(expected)
    ordered: Moments = mine.moments.select(expected.tasks)
    assert expected.moments.allclose(ordered)
    assert mine.summed.task_levels.levels() == expected.summed.task_levels.levels()
