"""Spark's own cluster: a standalone master with two workers in processes of their own, started and stopped here."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from spark_sessions import (
    COLUMNS,
    CONTEXT,
    MARKS,
    TABLE,
    check_equal,
    log,
    session,
    skip_without_spark,
    standalone,
)

from hieropo import HierOPO, LogMoments
from hieropo.logs.opening import open_log
from hieropo.passes.sharded import ShardedMoments
from hieropo.rows.batches import Roles
from hieropo.spark.moments import Job, _summed_group

skip_without_spark()
pytestmark = MARKS


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    settings = {
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.speculation": "true",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.0",
    }
    with (
        standalone(tmp_path_factory.mktemp("cluster")) as address,
        session(address, **settings) as started,
    ):
        yield started


def test_two_workers_sum_files_and_decide(cluster: Any, tmp_path: Path) -> None:
    import hieropo.spark

    (tmp_path / "log").mkdir()
    for k in range(4):
        pq.write_table(TABLE.slice(150 * k, 150), tmp_path / "log" / f"{k}.parquet")
    expected = LogMoments.of(TABLE, **CONTEXT)
    files = hieropo.spark.moments(
        tmp_path / "log", out=tmp_path / "files", shards=2, spark=cluster, **CONTEXT
    )
    check_equal(files.joined(), expected)
    frame = cluster.read.parquet(str(tmp_path / "log"))
    HierOPO().fit(files).save(tmp_path / "policy")
    decided = hieropo.spark.decide(frame, tmp_path / "policy", id=["store", "visits"]).toArrow()
    wanted = HierOPO().fit(expected).decide(TABLE, id=["store", "visits"]).table
    order = [("store", "ascending"), ("visits", "ascending")]
    columns = ["store", "visits", "action"]
    assert decided.select(columns).sort_by(order).to_pydict() == (
        wanted.select(columns).cast(decided.select(columns).schema).sort_by(order).to_pydict()
    )


def test_an_attempt_that_goes_on_writes_beside_the_one_that_counts(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    features = LogMoments.of(TABLE, **COLUMNS).features.to_dict()
    job = Job(
        features, Roles(**COLUMNS).to_dict(), None, str(tmp_path / "shards"), 2, lenient=False, listed=False
    )
    parts = [_summed_group(job, open_log(TABLE), 1) for _ in range(2)]
    assert len({part.folder for part in parts}) == 2
    assert [len(ShardedMoments.open(part.shards)) for part in parts] == [40, 40]
    assert not list((tmp_path / "shards").iterdir())


def test_a_task_that_runs_twice_at_the_same_time_counts_once(cluster: Any, tmp_path: Path) -> None:
    import hieropo.spark

    mark = str(tmp_path / "copied")

    def slow_once(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        task = TaskContext.get()
        if task.attemptNumber():
            with open(mark, "w"):  # noqa: PTH123 - shipped to workers by value
                pass
        for _ in range(600 if task.partitionId() and not task.attemptNumber() else 0):
            if os.path.exists(mark):  # noqa: PTH110
                break
            time.sleep(0.05)  # until a copy of this task has begun
        yield from batches

    table = log(20_000)  # first rows are of the first partition, which is not slow
    base = cluster.createDataFrame(table)
    frame = base.repartition(2).mapInArrow(slow_once, base.schema)
    features = LogMoments.of(table, **COLUMNS).features
    sharded = hieropo.spark.moments(frame, out=tmp_path / "shards", shards=2, features=features, **COLUMNS)
    assert Path(mark).exists()
    check_equal(sharded.joined(), LogMoments.of(table, features=features, **COLUMNS))
