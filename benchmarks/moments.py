"""The pass over a log: what its sums cost beside decoding the same columns, and beside the same sums in SQL.

    python benchmarks/moments.py                       20 million rows, all cases (about 5 GB on disk, deleted after)
    python benchmarks/moments.py --quick               2 million rows
    python benchmarks/moments.py --case long           100 million rows of a million tasks
    python benchmarks/moments.py --folder /data --keep keeps the logs for the next run

Cases: ``text``, 100,000 text tasks with a Zipf skew; ``number``, a million whole numbers; both with 10 float32 columns;
``wide``, as text with 32 columns; ``long``, as number with 100 million rows. Parquet as pyarrow writes it, with zstd.

Decoding and the pass take turns in one process, on one thread and on two; the smallest of each counts, in CPU seconds
and by the clock. Peaks of memory, DuckDB and polars are of processes of their own.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import record

GROUP = 2**20
TEXTS, NUMBERS = 100_000, 1_000_000
CASES = {
    "text": (20_000_000, 10),
    "number": (20_000_000, 10),
    "wide": (20_000_000, 32),
    "long": (100_000_000, 10),
}


def columns_of(d: int) -> list[str]:
    """Names of the feature columns."""
    return [f"x{j}" for j in range(d)]


def write_log(path: Path, case: str, rows: int, seed: int = 0) -> None:
    """Write a log, row group by row group."""
    rng = np.random.default_rng(seed)
    d, texts = CASES[case][1], case in ("text", "wide")
    task = pa.string() if texts else pa.int64()
    names = columns_of(d)
    schema = pa.schema([("task", task), ("reward", pa.float32()), *((name, pa.float32()) for name in names)])
    share = np.cumsum(1.0 / np.arange(1, TEXTS + 1))
    ids = np.array([f"task-{k:06d}" for k in rng.permutation(TEXTS)], dtype=object)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for start in range(0, rows, GROUP):
            n = min(GROUP, rows - start)
            which = (
                np.searchsorted(share, share[-1] * rng.random(n)) if texts else rng.integers(0, NUMBERS, n)
            )
            numbers = [rng.standard_normal(n, dtype=np.float32) for _ in range(d + 1)]
            tasks = pa.array(ids[which], task) if texts else pa.array(which, task)
            writer.write_batch(pa.record_batch([tasks, *map(pa.array, numbers)], schema=schema), GROUP)


class Log:
    """A log to read."""

    def __init__(self, path: str, d: int, threads: int) -> None:
        from hieropo.features.maps import Columns
        from hieropo.logs.opening import open_log
        from hieropo.rows.batches import Roles

        self.threads = threads
        self.features = Columns(tuple(columns_of(d)))
        self.roles = Roles("task", None, "reward", context=self.features.columns)
        self.source = open_log(path)

    def decode(self) -> int:
        """Read all columns and do nothing with them; bytes of the rows in memory."""
        from hieropo.logs.arrow.log_source import parts_of

        parts = parts_of(self.source, self.roles.columns)

        def read(lane: int) -> int:
            return sum(batch.num_rows for part in parts[lane :: self.threads] for batch in part.batches())

        if self.threads == 1:
            return read(0)
        with ThreadPoolExecutor(self.threads) as pool:
            return sum(pool.map(read, range(self.threads)))

    def sum_up(self) -> int:
        """Make the Moments; bytes of the result."""
        from hieropo.passes.summing import sums

        moments = sums(self.source, self.features, self.roles, threads=self.threads).moments
        return int(moments.sums.nbytes + moments.rows.nbytes + moments.log_precision.nbytes)


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """CPU and clock seconds."""
    cpu, clock = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - clock


def pairs(path: str, d: int, threads: int, rounds: int, warm: str) -> dict[str, Any]:
    """Decode and sum in turn."""
    Log(warm, d, threads).sum_up()
    log = Log(path, d, threads)
    log.decode()
    decoding, summing = [], []
    for _ in range(rounds):
        decoding.append(timed(log.decode))
        summing.append(timed(log.sum_up))
    return {"decode": np.min(decoding, axis=0).tolist(), "pass": np.min(summing, axis=0).tolist()}


def peak(path: str, d: int, threads: int) -> dict[str, Any]:
    """Peak of resident memory of a process that makes one pass, and the size of its result."""
    size = Log(path, d, threads).sum_up()
    return {"result": size, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def products(d: int) -> list[tuple[str, str]]:
    """Pairs of columns whose products are summed; "" stands for 1."""
    z = [*columns_of(d), "reward", ""]
    return [(z[i], z[j]) for j in range(len(z)) for i in range(j + 1)]


def duckdb(path: str, d: int, threads: int, rounds: int) -> dict[str, Any]:
    """Make the same sums in SQL."""
    import duckdb as engine

    def term(pair: tuple[str, str]) -> str:
        return f"sum({' * '.join(f'{name}::DOUBLE' for name in pair if name) or '1'})"

    connection = engine.connect()
    connection.execute(f"SET threads = {threads}")
    query = f"SELECT task, {', '.join(map(term, products(d)))} FROM '{path}' GROUP BY task"
    return {
        "seconds": np.min(
            [timed(lambda: connection.sql(query).to_arrow_table()) for _ in range(rounds)], 0
        ).tolist()
    }


def polars(path: str, d: int, threads: int, rounds: int) -> dict[str, Any]:
    """Make the same sums in polars, streamed; the number of threads comes from the environment."""
    import polars as pl

    def term(k: int, pair: tuple[str, str]) -> Any:
        factors = [pl.col(name).cast(pl.Float64) for name in pair if name]
        total = (
            pl.len() if not factors else (factors[0] if len(factors) == 1 else factors[0] * factors[1]).sum()
        )
        return total.alias(f"s{k}")

    assert pl.thread_pool_size() == threads
    query = pl.scan_parquet(path).group_by("task").agg(term(*each) for each in enumerate(products(d)))
    return {
        "seconds": np.min(
            [timed(lambda: query.collect(engine="streaming")) for _ in range(rounds)], 0
        ).tolist()
    }


def variants(path: str, d: int, groups: int = 4) -> dict[str, Any]:
    """Sums of row groups that are in memory, by every variant: ns a row; and the limits of this machine."""
    from hieropo import Moments
    from hieropo.logs.arrow.log_source import parts_of
    from hieropo.moments import column_pass
    from hieropo.moments.accumulation import Accumulator
    from hieropo.moments.row_sketch import RowSketcher
    from hieropo.passes.in_place import in_place
    from hieropo.rows.numbering import DictionaryCodes

    log = Log(path, d, 1)
    batches = [batch for part in parts_of(log.source, log.roles.columns)[:groups] for batch in part.batches()]
    rows = sum(batch.num_rows for batch in batches)
    total = Accumulator(d)
    numbering = DictionaryCodes(total.running.keys.rows_of_texts, total.running.keys.rows_of_ids)
    found = [in_place(batch, log.roles) for batch in batches]
    codes = [numbering.codes(*each.task) for each in found if each is not None]
    tasks = len(total)

    def run(which: list[Any], cache: int, known: int) -> float:
        column_pass._CACHE = cache
        sums = Accumulator(d)
        sums.running.keys.rows_of_ids(np.arange(known))
        sketcher = RowSketcher(None)
        way = column_pass.ColumnPass(log.features, sums.running, sketcher)
        sums.running.running()  # takes the memory

        def work() -> None:
            for each, code in zip(found, which, strict=True):
                way.add(each.columns, code, None, weighted=False)  # type: ignore[union-attr]
            way.finish()

        work()
        return min(timed(work)[0] for _ in range(3)) * 1e9 / rows

    def plain() -> None:
        for batch, code in zip(batches, codes, strict=True):
            x = np.column_stack([batch.column(name).to_numpy() for name in log.features.columns])
            Moments.from_arrays(code, x, batch.column("reward").to_numpy())

    plain()
    few = [code % 50 for code in codes]
    default = column_pass._CACHE
    times = {
        "a matrix of float64 and plain loops, a table for each batch": timed(plain)[0] * 1e9 / rows,
        "in place, added at once": run(codes, 2**60, tasks),
        "in place, by buffers": run(codes, default, tasks),
        "in place, 50 tasks: sums in the cache": run(few, default, 50),
    }
    z = d + 2
    matrix, large = np.ones((512, 512)), np.ones(2**25)
    copy = np.empty_like(large)
    flops = 2 * 512**3 / min(timed(lambda: matrix @ matrix)[0] for _ in range(20))
    bandwidth = 2 * large.nbytes / min(timed(lambda: np.copyto(copy, large))[0] for _ in range(5))
    stride = 4 * 4 * -(-z // 4)
    length = 8 * total.running.layout.length
    rows_of_code = max(column_pass._ROWS_OF_CODE, column_pass._SHARE * length / stride)
    moved = 4 * (d + 1) + 8 + 3 * stride + 2 * length / rows_of_code
    return {"times": times, "flops": z * (z + 1), "flop_ns": z * (z + 1) / flops * 1e9,
            "bytes": moved, "byte_ns": moved / bandwidth * 1e9}  # fmt: skip


def apart(what: str, *args: Any, threads: int) -> dict[str, Any]:
    """Run one of the functions above in a process of its own."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "POLARS_MAX_THREADS": str(threads)}
    call = [sys.executable, __file__, "--run", json.dumps([what, *args])]
    done = subprocess.run(call, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{what} failed:\n{done.stderr}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measured(case: str, rows: int, path: str, warm: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """Measure one case."""
    d, lines = CASES[case][1], []
    for threads in chosen.threads:
        line = {"threads": threads, **apart("pairs", path, d, threads, chosen.rounds, warm, threads=threads)}
        line |= apart("peak", path, d, threads, threads=threads)
        line["peers"] = {
            peer: apart(peer, path, d, threads, 1, threads=threads)["seconds"] for peer in chosen.peers
        }
        lines.append(line)
        print(case, line, flush=True)
    size = Path(path).stat().st_size
    ways = apart("variants", path, d, threads=1)
    return {"rows": rows, "d": d, "bytes_on_disk": size, "variants": ways, "threads": lines}


def main() -> None:
    """Measure cases."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", nargs="+", choices=list(CASES), default=["text", "number", "wide"])
    parser.add_argument("--rows", type=int, help="rows of every case instead of its own number")
    parser.add_argument("--quick", action="store_true", help="2 million rows")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", nargs="*", default=["duckdb", "polars"])
    parser.add_argument("--folder", type=Path, help="where the logs go; default a temporary folder")
    parser.add_argument("--keep", action="store_true", help="keep the logs, and use those that are there")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.run:
        what, *args = json.loads(chosen.run)
        parts = {part.__name__: part for part in (variants, pairs, peak, duckdb, polars)}
        print(json.dumps(parts[what](*args)))
        return
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) if chosen.folder is None else chosen.folder
        for case in chosen.case:
            rows = 2_000_000 if chosen.quick else chosen.rows or CASES[case][0]
            path, warm = folder / f"{case}-{rows}.parquet", folder / f"{case}-warm.parquet"
            for file, count in ((path, rows), (warm, 300_000)):
                if not (chosen.keep and file.exists()):
                    write_log(file, case, count)
            record.finish("moments", measured(case, rows, str(path), str(warm), chosen), part=case)
            if not chosen.keep:
                path.unlink()
                warm.unlink()


if __name__ == "__main__":
    main()
