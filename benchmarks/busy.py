"""Processor time of a fit beside busy processes, with and without the limit of linear algebra to one thread.

    python benchmarks/busy.py [--tasks 10000] [--rows 200000] [--busy 4] [--repeat 1] [--limited]

One log in memory: 5 actions of 8 columns (7 contexts and an intercept), tasks that differ. Each line is a fresh
process, which loads all compiled loops by a small fit and then fits `--repeat` times; the least processor time is
shown, with its time by the clock. Busy processes count and do nothing else. `--limited` leaves out the fits without
the limit, which take minutes on a busy machine. The goal: busy at most 1.3 x quiet.
"""

import argparse
import subprocess
import sys
import time
from contextlib import contextmanager

import record

ACTIONS, WIDTH = 5, 8
COUNT = "while True: pass"


def log_of(tasks, rows, seed=0):
    import numpy as np
    import pyarrow as pa

    rng = np.random.default_rng(seed)
    task, action = rng.integers(0, tasks, rows), rng.integers(0, ACTIONS, rows)
    contexts = rng.standard_normal((rows, WIDTH - 1))
    theta = (
        0.5 * rng.standard_normal((tasks, WIDTH))[task] + 0.2 * rng.standard_normal((ACTIONS, WIDTH))[action]
    )
    reward = theta[:, 0] + (theta[:, 1:] * contexts).sum(axis=1) + rng.standard_normal(rows)
    columns = {f"x{j}": contexts[:, j] for j in range(WIDTH - 1)}
    return pa.table({"task": task, "action": action, "reward": reward, **columns}), list(columns)


def fit_here(options):
    """Print processor and wall seconds of the fit with the least processor time."""
    import hieropo
    from hieropo._kernels import backend
    from hieropo._utils import blas_threads

    if options.unlimited:
        limit = type(blas_threads.one_blas_thread)
        limit.__enter__ = limit.__exit__ = lambda *_: None

    def fit(log, context):
        wall, start = time.perf_counter(), time.process_time()
        hieropo.HierOPO().fit(log, task="task", action="action", reward="reward", context=context)
        return time.process_time() - start, time.perf_counter() - wall

    with backend.forced(backend.COMPILED):
        fit(*log_of(50, 2_000))
    log = log_of(options.tasks, options.rows)
    print(*min(fit(*log) for _ in range(options.repeat)))


@contextmanager
def busy_processes(count):
    running = [subprocess.Popen([sys.executable, "-c", COUNT]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--busy", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--limited", action="store_true", help="only with the limit")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--unlimited", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        fit_here(options)
        return
    algebra = {}
    for flags in ([],) if options.limited else ([], ["--unlimited"]):
        points = algebra["all threads" if flags else "one thread"] = {}
        for name, busy in (("quiet", 0), ("busy", options.busy)):
            same = [f"--{option}={getattr(options, option)}" for option in ("tasks", "rows", "repeat")]
            command = [sys.executable, __file__, "--here", *same, *flags]
            with busy_processes(busy):
                done = subprocess.run(command, capture_output=True, text=True, check=True)
            points[name] = dict(zip(("cpu", "clock"), map(float, done.stdout.split()), strict=True))
    sizes = {name: getattr(options, name) for name in ("tasks", "rows", "busy", "repeat")}
    record.finish("busy", {**sizes, "algebra": algebra})


if __name__ == "__main__":
    main()
