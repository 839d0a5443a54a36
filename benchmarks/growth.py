"""CPU seconds and memory of pass, fit, evaluation and decisions as one factor of the log grows, with fitted slopes.

    python benchmarks/growth.py [--full] [--factors rows tasks ...] [--sizes N ...] [--limit SECONDS]

It writes results/growth.json.

Factors are rows, tasks, features (contexts and the intercept), actions and threads; one at a time, around 100,000 rows,
1,000 tasks, 4 features, 4 actions and one thread; threads at 5,000,000 rows. Every point is a process of its own on a
Parquet file, after a small log, and the pass of at most 100,000 rows, which compile and load the loops. Counted are CPU
seconds of

- pass: ``LogMoments.of``, the checked sums of the rows,
- fit: ``HierOPO().fit`` of these moments,
- evaluate: ``learner.evaluate`` of the same rows,
- decide: ``learner.predict`` of 20,000 requests,

and seconds by the clock for threads. The slope is that of log seconds in log sizes, by least squares over the larger
half of the sizes. It is held against the growth that the arithmetic has: pass, evaluation and decisions linear in rows
(requests), the fit linear in tasks and in actions and cubic in features. ``--full`` goes to 1e8 rows, 1e7 tasks, 256
features and 1,000 actions, and takes hours. A point that takes longer than the limit is named with it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import record

if TYPE_CHECKING:
    from hieropo import LogMoments

BASE = {"rows": 100_000, "tasks": 1_000, "features": 4, "actions": 4, "threads": 1}
SMALL = {
    "rows": (100_000, 400_000, 1_600_000, 6_400_000), "tasks": (250, 1_000, 4_000, 16_000), "features": (2, 4, 8, 16),
    "actions": (2, 4, 8, 16), "threads": (1, 2),
}  # fmt: skip
FULL = {
    "rows": (10**5, 10**6, 10**7, 10**8), "tasks": (10**2, 10**3, 10**4, 10**5, 10**6, 10**7),
    "features": (4, 16, 64, 256), "actions": (2, 10, 50, 250, 1_000), "threads": (1, 2),
}  # fmt: skip
STAGES = ("pass", "fit", "evaluate", "decide")
# The steepest slope that the arithmetic has; seconds that do not grow with a factor have slope 0.
EXPECTED = {
    "rows": {"pass": 1, "fit": 0, "evaluate": 1, "decide": 0},
    "tasks": {"pass": 1, "fit": 1, "evaluate": 1, "decide": 0},
    "features": {"pass": 2, "fit": 3, "evaluate": 3, "decide": 2},
    "actions": {"pass": 1, "fit": 1, "evaluate": 1, "decide": 1},
}
BATCH, REQUESTS, THREADED = 1_000_000, 20_000, 5_000_000
WARM_ACTIONS = 10
CHILD = "import growth, sys; growth.child(sys.argv[1])"


def batch(rng: np.random.Generator, rows: int, point: dict[str, int]) -> pa.Table:
    """Draw rows; tasks differ in the level and in the effect of the first context."""
    theta = np.random.default_rng(0).normal(0.0, 0.5, (point["tasks"], 2))
    task, action = rng.integers(point["tasks"], size=rows), rng.integers(point["actions"], size=rows)
    x = rng.standard_normal((rows, point["features"] - 1)).astype(np.float32)
    effect = np.cos(action) * (0.3 + theta[task, 1])
    reward = theta[task, 0] + effect * (x[:, 0] if x.shape[1] else 1.0) + rng.standard_normal(rows)
    contexts = {f"x{j}": x[:, j] for j in range(x.shape[1])}
    return pa.table(
        {
            "task": task,
            "action": action,
            "reward": reward,
            "p": np.full(rows, 1 / point["actions"]),
            **contexts,
        }
    )


def write_log(path: Path, point: dict[str, int]) -> None:
    rng, left = np.random.default_rng(1), point["rows"]
    with pq.ParquetWriter(path, batch(rng, 1, point).schema) as writer:
        while left:
            rows = min(left, BATCH)
            writer.write_table(batch(rng, rows, point))
            left -= rows


def timed(work: Callable[[], object]) -> tuple[object, float, float]:
    """Return the result of a call, its CPU seconds and its seconds by the clock."""
    clock, start = time.perf_counter(), time.process_time()
    result = work()
    return result, time.process_time() - start, time.perf_counter() - clock


def peak_mb() -> float | None:
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    line = next(line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def summed(path: Path, point: dict[str, int]) -> "LogMoments":
    """Return the sums of a log."""
    from hieropo import LogMoments

    context = [f"x{j}" for j in range(point["features"] - 1)]
    return LogMoments.of(path, task="task", action="action", reward="reward", pscore="p", context=context)


def stages(path: Path, point: dict[str, int]) -> dict[str, dict[str, float | None]]:
    """Run every stage on one log; CPU seconds, seconds by the clock and the peak of memory so far."""
    from hieropo import HierOPO

    requests = batch(np.random.default_rng(2), REQUESTS, point)
    results = {}

    def measure(stage: str, work: Callable[[], object]) -> object:
        value, cpu, clock = timed(work)
        results[stage] = {"cpu": cpu, "clock": clock, "peak_mb": peak_mb()}
        return value

    moments = measure("pass", lambda: summed(path, point))
    learner = measure("fit", lambda: HierOPO(logging="random").fit(moments))
    measure("evaluate", lambda: learner.evaluate(path))
    measure("decide", lambda: learner.predict(requests))
    return results


def child(text: str) -> None:
    """Measure one point in this process, and print its results."""
    import warnings

    from hieropo._kernels import backend

    warnings.simplefilter("ignore")
    point = json.loads(text)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: point["threads"]])
    with tempfile.TemporaryDirectory() as folder:
        small, path = Path(folder) / "small.parquet", Path(folder) / "log.parquet"
        actions = min(point["actions"], WARM_ACTIONS)  # loops are compiled for any number
        few = {**point, "rows": 2_000 * actions, "tasks": 20, "actions": actions}
        with backend.forced(backend.COMPILED):
            write_log(small, few)
            stages(small, few)
            write_log(path, {**point, "rows": min(point["rows"], BASE["rows"])})
            summed(path, point)
            write_log(path, point)
        print(json.dumps(stages(path, point)))


def measured(point: dict[str, int], limit: float) -> dict:
    """Return the results of one point, or the last line of its error."""
    command = [sys.executable, "-c", CHILD, json.dumps(point)]
    folder = Path(__file__).parent
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {limit:g} s"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:200]}
    return json.loads(done.stdout.splitlines()[-1])


def slope(sizes: list[int], seconds: list[float]) -> float | None:
    """Return the slope of log seconds in log sizes over the larger half of the sizes."""
    first = len(sizes) // 2 - 1 if len(sizes) > 2 else 0
    if len(sizes) < 2:
        return None
    return float(np.polyfit(np.log(sizes[first:]), np.log(np.maximum(seconds[first:], 1e-4)), 1)[0])


def slopes(sizes: list[int], points: list[dict]) -> dict[str, float | None]:
    """Slopes of the CPU seconds of each stage, over the sizes without an error."""
    done = [(size, point) for size, point in zip(sizes, points, strict=True) if "error" not in point]
    return {
        stage: slope([size for size, _ in done], [point[stage]["cpu"] for _, point in done])
        for stage in STAGES
    }


def main() -> None:
    """Measure all points and write them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="the large ranges: hours, and tens of gigabytes")
    parser.add_argument("--factors", nargs="+", choices=list(BASE), default=list(BASE))
    parser.add_argument("--sizes", nargs="+", type=int, help="of the factors, in place of the usual ones")
    parser.add_argument("--limit", type=float, default=3_600.0, help="seconds for a point")
    given = parser.parse_args()
    for factor in given.factors:
        base = {**BASE, "rows": THREADED} if factor == "threads" else BASE
        sizes, points = given.sizes or list((FULL if given.full else SMALL)[factor]), []
        for size in sizes:
            points.append(measured({**base, factor: size}, given.limit))
            cells = points[-1].get("error") or "  ".join(f"{s} {points[-1][s]['cpu']:.2f}" for s in STAGES)
            print(f"{factor} {size:,}: {cells}", flush=True)
        results = {"base": base, "sizes": sizes, "points": points, "slopes": slopes(sizes, points)}
        record.finish("growth", {**results, "expected": EXPECTED.get(factor)}, part=factor)


if __name__ == "__main__":
    main()
