"""Sums by DuckDB's SQL beside the pass over the same Parquet files; with --spark those of Spark beside its scan.

    python benchmarks/warehouse.py --rows 2000000 --tasks 50000
    python benchmarks/warehouse.py --rows 4000000 --tasks 25000 --spark sums
    python benchmarks/warehouse.py --rows 4000000 --tasks 25000 --spark answers

Spark needs the extra spark and a Java runtime. The files are made up in a temporary folder, and removed.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import record

from hieropo import HierOPO, LogMoments, load_learner

FILES = 8
SHARDS = 16  # of the fit


def write(folder: Path, rows: int, tasks: int, dim: int) -> list[str]:
    """Write Parquet files of ``dim`` columns, the first of them 1; return the names of these columns."""
    columns = [f"x{j}" for j in range(dim)]
    for k in range(FILES):
        rng, n = np.random.default_rng(k), rows // FILES
        values = {name: rng.standard_normal(n) if name != "x0" else np.ones(n) for name in columns}
        table = pa.table({"task": rng.integers(tasks, size=n), "reward": rng.standard_normal(n), **values})
        pq.write_table(table, folder / f"{k}.parquet")
    return columns


def timed(work: Callable[[], Any]) -> dict[str, float]:
    """Return seconds of the clock and of the processors of this process, the best of two runs."""
    runs = []
    for _ in range(2):
        clock, cpu = time.perf_counter(), time.process_time()
        work()
        runs.append({"clock": time.perf_counter() - clock, "cpu": time.process_time() - cpu})
    return min(runs, key=lambda run: run["cpu"])


def in_duckdb(rows: int, tasks: int, dims: list[int]) -> list[dict[str, Any]]:
    """Time the pass and the text of sums for each number of columns."""
    found = []
    for dim in dims:
        with tempfile.TemporaryDirectory() as folder:
            given = {"task": "task", "reward": "reward", "context": write(Path(folder), rows, tasks, dim)}
            query = f"select * from '{folder}/*.parquet'"
            found.append({
                "dim": dim,
                "pass": timed(lambda given=given, folder=folder: LogMoments.of(folder, **given)),
                "duckdb": timed(lambda given=given, query=query: LogMoments.in_database(query, ":memory:", **given)),
            })  # fmt: skip
    return found


def session() -> Any:
    """Return a session on all processors, whose workers have this Python."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.log.level", "ERROR").config("spark.ui.showConsoleProgress", "false")
    return builder.config("spark.driver.memory", "3g").getOrCreate()


def in_turn(ways: dict[str, Callable[[], Any]], rounds: int) -> list[dict[str, Any]]:
    """Run all ways after each other, some times, after a round that does not count; return seconds of each round."""
    clocks: dict[str, list[float]] = {way: [] for way in ways}
    for k in range(rounds + 1):
        for way, work in ways.items():
            start = time.perf_counter()
            work()
            if k:
                clocks[way].append(time.perf_counter() - start)
    return [{"way": way, "clocks": clock} for way, clock in clocks.items()]


def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the number of rows of a partition."""
    yield pa.RecordBatch.from_arrays([pa.array([sum(batch.num_rows for batch in batches)])], names=["rows"])


def on_spark(spark: Any, rows: int, tasks: int, dim: int, rounds: int) -> list[dict[str, Any]]:
    """Time Spark's scan of all columns, its sending of rows to workers, and the ways of summing there, in turn.

    Seconds of the clock. Rows that workers count and do not sum show the share of Spark in the ways that begin with a
    frame.
    """
    import hieropo.spark

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "log").mkdir()
        columns = write(Path(folder) / "log", rows, tasks, dim)
        frame = spark.read.parquet(f"{folder}/log")
        given = {"task": "task", "reward": "reward", "context": columns}

        def summed(source: Any, how: Any) -> None:
            with tempfile.TemporaryDirectory(dir=folder) as out:
                hieropo.spark.moments(source, out=f"{out}/shards", spark=spark, how=how, **given)

        ways = {
            "scan": lambda: frame.selectExpr(*(f"sum({name})" for name in frame.columns)).collect(),
            "sent to workers": lambda: (
                frame.mapInArrow(counted, "rows bigint").agg({"rows": "sum"}).collect()
            ),
            "files": lambda: summed(f"{folder}/log", "files"),
            "frame": lambda: summed(frame, "auto"),
            "frame, rows shuffled": lambda: summed(frame, "rows"),
        }
        return in_turn(ways, rounds)


def decisions(spark: Any, rows: int, tasks: int, rounds: int) -> list[dict[str, Any]]:
    """Time decisions for rows of files: one process with all threads, and Spark's workers, in turn."""
    import hieropo.spark

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "log").mkdir()
        rng = np.random.default_rng(0)
        for k in range(FILES):
            n = rows // FILES
            table = {"task": rng.integers(tasks, size=n), "x": rng.standard_normal(n)}
            offer = np.array(["a", "b", "c", "d"])[rng.integers(4, size=n)]
            pq.write_table(
                pa.table({**table, "offer": offer, "reward": rng.standard_normal(n)}),
                f"{folder}/log/{k}.parquet",
            )
        given = {"task": "task", "action": "offer", "reward": "reward", "context": ["x"]}
        HierOPO(task_cov="full", uncertainty="plug-in").fit(f"{folder}/log", **given).save(f"{folder}/policy")
        policy, frame = (
            load_learner(f"{folder}/policy"),
            spark.read.parquet(f"{folder}/log").select("task", "x"),
        )
        ways = {
            "one process": lambda: policy.decide(f"{folder}/log"),
            "spark": lambda: (
                hieropo.spark.decide(frame, f"{folder}/policy").write.format("noop").mode("overwrite").save()
            ),
        }
        return in_turn(ways, rounds)


def fits(spark: Any, tasks: int, dim: int, rounds: int) -> dict[str, Any]:
    """Time a fit to made-up moments in shards: in one process with all threads, and with Spark's workers, in turn."""
    import distributed

    import hieropo.spark

    with tempfile.TemporaryDirectory() as folder:
        distributed.write(Path(folder) / "shards", tasks, dim, SHARDS, 0)

        def learner() -> HierOPO:
            return HierOPO(task_cov="full", uncertainty="first-order")

        ways = {
            "one process": lambda: learner().fit(f"{folder}/shards"),
            "spark": lambda: hieropo.spark.fit(f"{folder}/shards", spark, learner()),
        }
        return {"tasks": tasks, "shards": SHARDS, "runs": in_turn(ways, rounds)}


def main() -> None:
    """Print the table, and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--tasks", type=int, default=50_000)
    parser.add_argument("--dims", type=int, nargs="*", default=[10, 20])
    parser.add_argument("--spark", choices=["sums", "answers"])
    parser.add_argument(
        "--many", type=int, default=250_000, help="tasks of a second log on Spark, and of a fit"
    )
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    sizes = {"rows": args.rows, "tasks": args.tasks}
    if args.spark:
        spark, dim = session(), args.dims[0]
        if args.spark == "sums":
            logs = [
                {"tasks": tasks, "runs": on_spark(spark, args.rows, tasks, dim, args.rounds)}
                for tasks in (args.tasks, args.many)
            ]
            record.finish("warehouse", {"rows": args.rows, "dim": dim, "logs": logs}, part="spark sums")
        else:
            runs = decisions(spark, args.rows, args.tasks, args.rounds)
            fitted = fits(spark, args.many, dim, 1)
            results = {"rows": args.rows, "decisions": runs, "fits": fitted}
            record.finish("warehouse", results, part="spark answers")
        spark.stop()
    else:
        record.finish(
            "warehouse", {**sizes, "runs": in_duckdb(args.rows, args.tasks, args.dims)}, part="duckdb"
        )


if __name__ == "__main__":
    main()
