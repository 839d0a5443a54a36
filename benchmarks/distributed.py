"""Time and memory of a fit to moments in shards, beside a fit in memory.

    python benchmarks/distributed.py --tasks 10000000 --in-memory 1000000 --dim 10 --shards 64
    python benchmarks/distributed.py --actions 4 --dim 2        # the crossed prior, of so many coefficients an action

Made-up sums of tasks are written as shards. Each fit, with the policy that it writes, runs in a process of its own,
whose largest resident memory is that of the kernel's account; files that are mapped count as far as their pages are
resident. Needs 1.3 KB of disk a task of dimension 10 (13 GB for ten million). Everything it writes is removed.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import record

from hieropo import HierOPO, LogMoments
from hieropo._utils.packed import pack
from hieropo.features.maps import Columns, per_action
from hieropo.model.task_levels import TaskLevels
from hieropo.moments.row_sketch import RowSketch
from hieropo.moments.statistics import Moments
from hieropo.passes.sharded import ShardedMoments, ShardWriter
from hieropo.passes.worker import PassResult
from hieropo.rows.batches import Roles
from hieropo.rows.keys import Keys
from hieropo.rows.task_hash import shards_of

ROWS = 12  # of a task
CHUNK = 50_000


def made_up(ids: np.ndarray, dim: int, features: Any, roles: Roles, rng: np.random.Generator) -> LogMoments:
    """Sums of tasks whose coefficients vary about a population's."""
    parts = []
    for start in range(0, len(ids), CHUNK):
        n = len(ids[start : start + CHUNK])
        z = rng.standard_normal((n, ROWS, dim + 2))
        z[:, :, 0] = z[:, :, -1] = 1.0
        theta = 0.3 + rng.standard_normal((n, dim)) * np.linspace(0.1, 0.6, dim)
        z[:, :, dim] += np.einsum("nij,nj->ni", z[:, :, :dim], theta)
        parts.append(pack(z.swapaxes(1, 2) @ z))
    sums, count = np.concatenate(parts), np.full(len(ids), float(ROWS))
    moments = Moments(Keys(ids), dim, sums, count, np.zeros(len(ids)), features.fingerprint)
    return LogMoments(
        features, roles, PassResult(moments, TaskLevels(roles), RowSketch.unknown(ROWS * len(ids)))
    )


def of_actions(
    ids: np.ndarray, dim: int, features: Any, roles: Roles, rng: np.random.Generator
) -> LogMoments:
    """Sums of tasks whose actions have coefficients of their own, of the crossed prior."""
    actions = len(features.actions)
    effects = np.linspace(0.0, 0.4, actions)
    sums, rows = [], ROWS // actions
    for start in range(0, len(ids), CHUNK):
        n = len(ids[start : start + CHUNK])
        z = rng.standard_normal((n, actions, rows, dim + 2))
        z[..., 0] = z[..., -1] = 1.0
        theta = (
            rng.standard_normal((n, 1, dim)) + 0.3 * rng.standard_normal((n, actions, dim)) + effects[:, None]
        )
        z[..., dim] += np.einsum("naij,naj->nai", z[..., :dim], theta)
        sums.append(pack(z.swapaxes(2, 3) @ z))
    count = np.full((len(ids), actions), float(rows))
    moments = Moments(
        Keys(ids), dim, np.concatenate(sums), count, np.zeros(count.shape), features.fingerprint
    )
    sketch = RowSketch.unknown(ROWS * len(ids))
    return LogMoments(features, roles, PassResult(moments, TaskLevels(roles), sketch))


def write(path: Path, tasks: int, dim: int, shards: int, actions: int) -> None:
    """Write made-up moments of so many tasks as shards."""
    columns = tuple(f"x{j}" for j in range(dim - 1 if actions else dim))
    features: Any = per_action([f"a{k}" for k in range(actions)], columns) if actions else Columns(columns)
    roles = Roles("task", "action" if actions else None, "reward", context=columns)
    make = of_actions if actions else made_up
    writer = ShardWriter.begin(path, features, roles, shards=shards)
    ids = np.arange(tasks)
    shard_of_task = shards_of(ids, shards)
    for k in range(shards):
        some = ids[shard_of_task == k]
        writer.write_shard(k, make(some, dim, features, roles, np.random.default_rng(k)))
    writer.finish()


def one(path: str, policy: str, *, joined: bool) -> dict[str, Any]:
    """Fit and save in this process; return seconds and the largest resident memory in GB."""
    start, cpu = time.perf_counter(), time.process_time()
    source: ShardedMoments | LogMoments = ShardedMoments.open(path)
    if joined:
        source = ShardedMoments.open(path).joined()
        start, cpu = time.perf_counter(), time.process_time()  # moments in memory are there already
    learner = HierOPO(task_cov="crossed" if source.features.actions else "full").fit(source)
    fitted, fitted_cpu = time.perf_counter(), time.process_time()
    learner.save(policy)
    end, end_cpu = time.perf_counter(), time.process_time()
    return {
        "tasks": len(learner.moments_), "fit_seconds": fitted - start, "fit_cpu": fitted_cpu - cpu,
        "save_seconds": end - fitted, "save_cpu": end_cpu - fitted_cpu,
        "log_evidence": learner.posterior_.log_evidence, "resident_gb": largest_resident(),
        "policy_gb": sum(file.stat().st_size for file in Path(policy).iterdir()) / 1e9,
    }  # fmt: skip


def largest_resident() -> float:
    """Return the largest resident memory of this process in GB; that of rusage begins with its parent's."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024 / 1e9


def in_process(path: Path, policy: Path, *, joined: bool) -> dict[str, Any]:
    """Run :func:`one` in a process of its own."""
    words = [sys.executable, __file__, "--one", str(path), str(policy), *(["--joined"] if joined else [])]
    output = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    shutil.rmtree(policy)
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--in-memory", type=int, default=200_000)
    parser.add_argument("--dim", type=int, default=10)
    parser.add_argument("--shards", type=int, default=64)
    parser.add_argument("--actions", type=int, default=0)
    parser.add_argument("--dir", default=None)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--joined", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Print the table, and write the record."""
    args = arguments()
    if args.one:
        print(json.dumps(one(*args.one, joined=args.joined)))
        return
    runs: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        place = Path(folder)
        for name, tasks, joined in (
            ("in memory", args.in_memory, True),
            ("in shards, as many", args.in_memory, False),
            ("in shards", args.tasks, False),
        ):
            path = place / f"shards-{tasks}"
            if not path.exists():
                start = time.perf_counter()
                write(path, tasks, args.dim, args.shards, args.actions)
                print(f"{tasks:,} tasks written in {time.perf_counter() - start:.0f} s", flush=True)
            runs[name] = run = in_process(path, place / "policy", joined=joined)
            seconds = run["fit_seconds"] + run["save_seconds"]
            print(
                f"{name:<20}{tasks:>12,} tasks  fit {run['fit_seconds']:7.1f} s  policy {run['save_seconds']:7.1f} s  "
                f"{1e6 * seconds / tasks:6.2f} us a task  {run['resident_gb']:5.2f} GB resident",
                flush=True,
            )
    results = {
        "dim": args.dim, "actions": args.actions, "shards": args.shards, "rows_of_a_task": ROWS, "runs": runs,
    }  # fmt: skip
    record.finish("distributed", results, part="crossed" if args.actions else "two levels")


if __name__ == "__main__":
    main()
