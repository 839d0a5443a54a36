"""The crossed prior: one way up, and all laws of units, beside today's default model, in one run.

    python benchmarks/crossed.py [--tasks 10000] [--actions 5] [--width 8] [--rows 100]

Both models start from the moments of the same rows and a hierarchy that is given. "today" is one law of d = K p
coefficients a task (`condition` and its table). Seconds are CPU of the whole process, the least of three. Of the way up
of the crossed prior the stages are shown, since a grid of variances shares them: units by M, tasks by (L, M), root by
all three. The last line is what a grid of 7 x 8 x 8 takes by these. Compiled loops are loaded before.
"""

import argparse
import os
import time

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np

import hieropo
from hieropo.core.crossed_hierarchy import CrossedHierarchy
from hieropo.core.crossed_posterior import condition_crossed
from hieropo.core.crossed_steps import ObservedUnits, TaskMessages, UnitMessages, solve_root
from hieropo.core.units import UnitAccumulator


def unit_moments(m, K, p, n, seed=0):
    rng = np.random.default_rng(seed)
    total = UnitAccumulator(hieropo.per_action(range(K), [f"x{j}" for j in range(p - 1)]))
    task, action = np.repeat(np.arange(m), n), rng.integers(0, K, m * n)
    for start in range(0, m * n, 100_000):
        part = slice(start, start + 100_000)
        size = len(task[part])
        total.add(task[part], action[part], rng.standard_normal((size, p - 1)), rng.standard_normal(size))
    return total.moments()


def least(work):
    best, result = np.inf, None
    for _ in range(3):
        start = time.process_time()
        result = work()
        best = min(best, time.process_time() - start)
    return result, best


def crossed(moments, hierarchy):
    units, a = least(lambda: ObservedUnits.of(moments, hierarchy.noise_var))
    messages, b = least(lambda: UnitMessages.of(units, hierarchy.interaction_cov))
    tasks, c = least(lambda: TaskMessages.of(units, messages, hierarchy.level_cov))
    _, d = least(lambda: solve_root(tasks.root, hierarchy.action_cov))
    posterior, up = least(lambda: condition_crossed(moments, hierarchy))
    _, table = least(lambda: condition_crossed(moments, hierarchy).table())
    return posterior, (a, b, c, d), up, table - up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--actions", type=int, default=5)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--rows", type=int, default=100)
    options = parser.parse_args()
    m, K, p = options.tasks, options.actions, options.width
    A, L, M = (k * np.eye(p) for k in (0.3, 1.0, 0.2))
    hierarchy = CrossedHierarchy(A, L, M, np.ones(K))
    today = hieropo.Hierarchy(None, np.kron(np.ones((K, K)), L) + np.kron(np.eye(K), M), 1.0)
    small = unit_moments(50, K, p, options.rows, seed=1)
    condition_crossed(small, hierarchy).table()
    hieropo.condition(small.dense(), today).table()
    moments = unit_moments(m, K, p, options.rows)
    dense = moments.dense()
    _, stages, up, down = crossed(moments, hierarchy)
    _, other_up = least(lambda: hieropo.condition(dense, today))
    _, other = least(lambda: hieropo.condition(dense, today).table())
    print(f"{m:,} tasks, {K} actions of {p} columns, {m * options.rows:,} rows; CPU seconds")
    names = ("sums divided", "units", "tasks", "root")
    print("  crossed, way up: " + "   ".join(f"{n} {s:.4f}" for n, s in zip(names, stages, strict=True)))
    print(
        f"  crossed: way up {up:.3f}, all units {down:.3f}     "
        f"today: way up {other_up:.3f}, all tasks {other - other_up:.3f}"
    )
    print(f"  crossed / today: way up {up / other_up:.2f}, both {(up + down) / other:.2f}")
    grid = stages[0] + 8 * (stages[1] + 7 * (stages[2] + 8 * stages[3]))
    print(f"  one grid of 448 hierarchies: {grid:.2f} s")


if __name__ == "__main__":
    main()
