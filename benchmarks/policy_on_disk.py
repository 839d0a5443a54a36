"""Speed of saving, opening and reading a policy of many tasks, one task at a time, beside SQLite and Parquet.

    python benchmarks/policy_on_disk.py --tasks 10000000 --dim 10 --dir /tmp

Needs twice the size of the policy as free disk (10 million tasks of 10 features: 2 x 5.6 GB) and little
memory. Everything it writes is removed.
"""

import argparse
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import record

from hieropo import Gaussian, LCBPolicy, load_policy, save_policy
from hieropo._utils.packed import packed_size, triangle, unpack
from hieropo.model.table import PosteriorTable
from hieropo.rows.keys import Keys
from hieropo.storage.load import verify_policy

CHUNK = 100_000
CHOICE = "one choice among 10 candidates"


def table(tasks: int, dim: int, folder: Path, *, text: bool) -> PosteriorTable:
    """Posteriors of made-up tasks, in files so that they need no memory."""
    rng = np.random.default_rng(1)
    size = packed_size(dim)
    means = np.memmap(folder / "means", np.float64, "w+", shape=(tasks, dim))
    covs = np.memmap(folder / "covs", np.float64, "w+", shape=(tasks, size))
    i, j = triangle(dim)
    for start in range(0, tasks, CHUNK):
        part = slice(start, min(start + CHUNK, tasks))
        count = part.stop - start
        means[part] = rng.standard_normal((count, dim))
        covs[part] = (i == j) + rng.uniform(-0.5, 0.5, (count, size)) / dim
    ids: Any = rng.permutation(3 * tasks)[:tasks]
    if text:
        ids = np.array([f"task-{number:09d}" for number in ids.tolist()], dtype=object)
    prior = Gaussian(np.zeros(dim), np.eye(dim))
    return PosteriorTable.joint(Keys(ids), means, covs, np.full(tasks, 7), prior)


Spent = dict[str, dict[str, float]]  # seconds: median and 99 % quantile of calls, or of one call


@contextmanager
def timed(spent: Spent, name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    spent[name] = {"p50": time.perf_counter() - start}


def quantiles(spent: Spent, name: str, action: Callable[[Any], object], queries: list[Any]) -> None:
    """Add median and 99 % quantile of the seconds of one call."""
    clock = time.perf_counter_ns
    taken = []
    for query in queries:
        start = clock()
        action(query)
        taken.append(clock() - start)
    spent[name] = dict(zip(("p50", "p99"), (np.quantile(taken, [0.5, 0.99]) / 1e9).tolist(), strict=True))


def reader(stored: PosteriorTable) -> Callable[[Any], Gaussian]:
    """Return the function that reads one task as a Gaussian."""
    return lambda task: stored.marginal(stored.keys.find(task))


def evict(folder: Path) -> None:
    """Ask the system to forget the files; pages that are mapped or dirty stay."""
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def large(tasks: int, dim: int, folder: Path, *, text: bool) -> dict[str, Any]:
    """Steps of one large policy, in seconds."""
    spent: Spent = {}
    source = folder / "source"
    source.mkdir()
    posterior = table(tasks, dim, source, text=text)
    place = folder / "policy"
    with timed(spent, "save, with syncing"):
        save_policy(LCBPolicy(posterior), place)
    known = posterior.keys.values
    rng = np.random.default_rng(2)
    queries = known[rng.integers(tasks, size=20_000)].tolist()
    cold = known[rng.integers(tasks, size=300)].tolist()
    del posterior, known
    shutil.rmtree(source)
    size = sum(path.stat().st_size for path in place.iterdir())
    evict(place)
    with timed(spent, "open, nothing in memory"):
        stored = load_policy(place).policy.table
    quantiles(spent, "one task as a Gaussian, nothing in memory", reader(stored), cold)
    del stored
    with timed(spent, "verify every byte"):
        verify_policy(place)
    quantiles(spent, "open", load_policy, [place] * 5)
    policy = load_policy(place).policy
    stored = policy.table
    read = reader(stored)
    quantiles(spent, "one task as a Gaussian, first time: checksum and page fault", read, queries)
    quantiles(spent, "one task as a Gaussian, read before", read, queries)
    phi = rng.standard_normal((10, dim))
    quantiles(spent, CHOICE, lambda task: policy.choose(task, phi=phi), queries)
    unknown_tasks = [f"no {task}" if text else -1 - task for task in queries]
    quantiles(spent, "a task that is unknown", stored.keys.find, unknown_tasks)
    with timed(spent, f"choose for {len(queries):,} requests at once"):
        policy.choose_many(queries, phi=np.broadcast_to(phi, (len(queries), *phi.shape)))
    return {"tasks": tasks, "dim": dim, "text": text, "gigabytes": size / 1e9, "seconds": spent}


def peers(tasks: int, dim: int, folder: Path) -> Spent:
    """Seconds to read one task as a Gaussian, by each way."""
    spent: Spent = {}
    source = folder / "source"
    source.mkdir()
    posterior = table(tasks, dim, source, text=False)
    place = folder / "policy"
    save_policy(LCBPolicy(posterior), place)
    rng = np.random.default_rng(2)
    queries = posterior.keys.values[rng.integers(tasks, size=5000)].tolist()
    stored = load_policy(place).policy.table
    quantiles(spent, "hieropo", reader(stored), queries)

    ids = posterior.keys.values.tolist()
    data = sqlite3.connect(folder / "tasks.sqlite")
    data.execute("create table task (id integer primary key, mean blob, cov blob)")
    rows = zip(ids, map(bytes, posterior.means), map(bytes, posterior.covs), strict=True)
    with data:
        data.executemany("insert into task values (?, ?, ?)", rows)

    def from_sqlite(task: int) -> Gaussian:
        mean, cov = data.execute("select mean, cov from task where id = ?", (task,)).fetchone()
        return Gaussian.trusted(np.frombuffer(mean).copy(), unpack(np.frombuffer(cov), dim))

    quantiles(spent, "SQLite, primary key", from_sqlite, queries)

    def lists(values: Any) -> Any:
        flat = pa.array(np.ascontiguousarray(values).reshape(-1))
        return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])

    columns = {"id": ids, "mean": lists(posterior.means), "cov": lists(posterior.covs)}
    pq.write_table(pa.table(columns).sort_by("id"), folder / "tasks.parquet", row_group_size=10_000)

    def from_parquet(task: int) -> Gaussian:
        found = pq.read_table(folder / "tasks.parquet", filters=[("id", "==", task)])
        mean, cov = (found[name].combine_chunks().values.to_numpy() for name in ("mean", "cov"))
        return Gaussian.trusted(mean.copy(), unpack(cov, dim))

    quantiles(spent, "Parquet, sorted, filter on the id", from_parquet, queries[:100])
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=10)
    parser.add_argument("--dir", help="where the temporary directory is made")
    parser.add_argument("--text", action="store_true", help="text instead of whole numbers as ids")
    parser.add_argument(
        "--peers-tasks", type=int, default=200_000, help="size at which others are compared; 0: none"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as folder:
        results = large(given.tasks, given.dim, Path(folder), text=given.text)
    results |= {"peers_tasks": given.peers_tasks, "peers": {}}
    if given.peers_tasks:
        with tempfile.TemporaryDirectory(dir=given.dir) as folder:
            results["peers"] = peers(given.peers_tasks, given.dim, Path(folder))
    record.finish("policy_on_disk", results)


if __name__ == "__main__":
    main()
