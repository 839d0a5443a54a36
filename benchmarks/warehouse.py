"""Sums by DuckDB's SQL beside the pass over the same Parquet files; with --spark those of Spark beside its scan.

    python benchmarks/warehouse.py --rows 2000000 --tasks 50000
    python benchmarks/warehouse.py --rows 2000000 --tasks 50000 --spark

Spark needs the extra spark and a Java runtime. The files are made up in a temporary folder, and removed.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import record

from hieropo import LogMoments

FILES = 8


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


def on_spark(rows: int, tasks: int, dim: int) -> list[dict[str, Any]]:
    """Time Spark's scan of all columns, and the ways of summing on its workers; seconds of the clock."""
    from pyspark.sql import SparkSession

    import hieropo.spark

    builder = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.memory", "4g").getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "log").mkdir()
        columns = write(Path(folder) / "log", rows, tasks, dim)
        frame = spark.read.parquet(f"{folder}/log")
        given = {"task": "task", "reward": "reward", "context": columns}
        numbers = iter(range(100))

        def summed(source: Any) -> None:
            hieropo.spark.moments(source, out=f"{folder}/out-{next(numbers)}", spark=spark, **given)

        ways = {
            "scan": lambda: frame.selectExpr(*(f"sum({name})" for name in frame.columns)).collect(),
            "files": lambda: summed(f"{folder}/log"),
            "rows": lambda: summed(frame),
        }
        found = [{"way": way, "clock": timed(work)["clock"]} for way, work in ways.items()]
    spark.stop()
    return found


def main() -> None:
    """Print the table, and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--tasks", type=int, default=50_000)
    parser.add_argument("--dims", type=int, nargs="*", default=[10, 20])
    parser.add_argument("--spark", action="store_true")
    args = parser.parse_args()
    sizes = {"rows": args.rows, "tasks": args.tasks}
    if args.spark:
        runs = on_spark(args.rows, args.tasks, args.dims[0])
        record.finish("warehouse", {**sizes, "dim": args.dims[0], "runs": runs}, part="spark")
    else:
        record.finish(
            "warehouse", {**sizes, "runs": in_duckdb(args.rows, args.tasks, args.dims)}, part="duckdb"
        )


if __name__ == "__main__":
    main()
