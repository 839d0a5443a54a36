"""Where does it pay to compile? Time of one call in plain numpy and in compiled loops, for growing work.

    python benchmarks/backends.py

"worth" is the number of calls after which compiled loops have made up for the import of what compiles and loads them
(measured here, with their machine code on disk); compiling them first takes some seconds more, once for each machine.
An estimation calls steps some hundred times; rows, ids and cells are one call for each batch of a log. A limit of
`_kernels/backend.py` is where "worth" falls below that.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import record

from hieropo._kernels import backend
from hieropo._utils.packed import pack, packed_size
from hieropo.model.steps import pivot_tolerance

rng = np.random.default_rng(0)
LOAD = """
import time; start = time.perf_counter()
from hieropo._kernels import compiled_steps, ids, rows
print(time.perf_counter() - start)
"""


def least(work: Callable[[], object]) -> float:
    """Seconds of the fastest of some calls."""
    work()
    best, begun = np.inf, time.perf_counter()
    while time.perf_counter() - begun < 0.3:
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def steps(m: int, d: int) -> tuple[int, Callable[[Any], object]]:
    z = rng.standard_normal((m, 2 * d, d + 1))
    rows, parent, out = (
        pack(np.swapaxes(z, 1, 2) @ z),
        np.zeros(m, dtype=np.int64),
        np.zeros((1, packed_size(d + 1))),
    )
    known = np.zeros((1, d)), np.eye(d)[None], np.zeros((0, d, d)), True
    places = np.empty((m, d)), np.empty((m, packed_size(d))), np.zeros((0, d, d))

    def work(loops: Any) -> None:
        loops.step_up(rows, 0, m, 1.0, np.eye(d), pivot_tolerance(d), parent, out)
        loops.step_down(rows, 0, m, 1.0, np.eye(d), pivot_tolerance(d), parent, known, places)

    return rows.size, work


def accumulate(n: int, d: int) -> tuple[int, Callable[[Any], object]]:
    code, phi, reward = rng.integers(0, 1000, n), rng.standard_normal((n, d)), rng.standard_normal(n)
    sums = np.zeros((1000, packed_size(d + 2)))
    return n * sums.shape[1], lambda loops: loops.accumulate(code, phi, reward, np.zeros(0), sums)


def numbers(n: int, _: int) -> tuple[int, Callable[[Any], object]]:
    which, table = rng.integers(0, 1000, n), np.arange(1000, dtype=np.int32)
    out, fresh = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    return n, lambda loops: loops.find_numbers(which, table, out, fresh)


def cells(n: int, _: int) -> tuple[int, Callable[[Any], object]]:
    place, code, reward, p = (
        rng.integers(0, 500, n),
        rng.integers(0, 4, n),
        rng.standard_normal(n),
        np.full(n, 0.25),
    )
    table, tasks = np.zeros((2000, 16)), np.zeros((500, 3))
    more = np.zeros(4, dtype=np.int64), np.zeros((500, 1), dtype=np.uint8)
    return n, lambda loops: loops.add_cells(place, code, reward, p, p, 4, table, tasks, *more)


def choose(n: int, d: int) -> tuple[int, Callable[[Any], object]]:
    m, K = max(n // d**2, 1), 5
    roots = rng.standard_normal((m, d, d))
    means, covs, phi = (
        rng.standard_normal((m, d)),
        pack(roots @ roots.swapaxes(1, 2)),
        rng.standard_normal((2000, K, d)),
    )
    rows, prior = rng.integers(0, m, 2000), (np.zeros((1, d)), np.zeros((1, packed_size(d))))

    def work(loops: Any) -> None:
        index, out = np.full((2000, 1), -1), np.full((3, 2000, 1), np.nan)
        loops.choose(means, covs, *prior, rows, phi, np.zeros((0, 0), dtype=bool), 0.1, index, *out)

    return covs.size * d, work


STEPS = ((100, 2), (1000, 2), (5000, 2), (100, 5), (1500, 5), (100, 10), (500, 10), (2000, 10))
STATISTICS = ((1000, 4), (100_000, 4), (10_000, 10), (65_536, 10), (1_000_000, 4))
AREAS: dict[str, tuple[Callable[[int], Any], Callable[[int, int], Any], tuple[tuple[int, int], ...]]] = {
    "steps": (backend.steps, steps, STEPS),
    "statistics": (backend.statistics, accumulate, STATISTICS),
    "ids": (backend.ids, numbers, ((1000, 0), (65_536, 0), (1_000_000, 0))),
    "cells": (backend.cells, cells, ((1000, 0), (20_000, 0), (65_536, 0), (500_000, 0))),
    "choice": (backend.choice, choose, ((1000, 2), (30_000, 2), (1000, 5), (5_000, 10), (30_000, 10))),
}


def main() -> None:
    done = subprocess.run([sys.executable, "-c", LOAD], capture_output=True, text=True, check=True)
    load = float(done.stdout)
    lines = []
    for area, (choice, make, sizes) in AREAS.items():
        for n, d in sizes:
            size, work = make(n, d)
            times = {}
            for name in (backend.REFERENCE, backend.COMPILED):
                with backend.forced(name):
                    loops = choice(size)
                times[name] = least(lambda loops=loops, work=work: work(loops))
            gain = times[backend.REFERENCE] - times[backend.COMPILED]
            lines.append(
                {
                    "area": area, "m": n, "d": d, "size": size, "numpy_ms": 1e3 * times[backend.REFERENCE],
                    "compiled_ms": 1e3 * times[backend.COMPILED], "worth": load / gain if gain > 0 else None,
                    "taken": backend.REFERENCE if ".reference." in choice(size).__name__ else backend.COMPILED,
                }
            )  # fmt: skip
    record.finish("backends", {"load": load, "lines": lines})


if __name__ == "__main__":
    main()
