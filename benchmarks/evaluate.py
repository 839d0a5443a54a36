"""Seconds of a whole evaluation, by rows: `learner.evaluate(log)` on one processor.

    taskset -c 0 python benchmarks/evaluate.py [ROWS ...]     # default 1,000,000 3,000,000 10,000,000

Ten actions, 100,000 tasks with integer ids, logged propensities, an Arrow table in memory. Counted is processor time of
both passes: sums, checks of propensities, choices in every row, all estimators with their intervals, predictive checks,
value and harm of every task, certificates of 2,000.
"""

import os
import sys
import time

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import pyarrow as pa

from hieropo import HierOPO

TASKS, ACTIONS = 100_000, 10
DEFAULT = (1_000_000, 3_000_000, 10_000_000)


def log(rows: int, seed: int) -> pa.Table:
    """Draw a log in which actions are chosen by chance."""
    theta = np.random.default_rng(0).normal(0.0, 0.3, (TASKS, ACTIONS))
    rng = np.random.default_rng(seed)
    task, action = rng.integers(TASKS, size=rows), rng.integers(ACTIONS, size=rows)
    reward = theta[task, action] + rng.normal(size=rows)
    return pa.table({"task": task, "action": action, "reward": reward, "p": np.full(rows, 1 / ACTIONS)})


def main() -> None:
    """Print a table."""
    columns = {"task": "task", "action": "action", "reward": "reward", "pscore": "p"}
    learner = HierOPO(task_cov="diag", logging="random").fit(log(2_000_000, 1), **columns)
    learner.evaluate(log(1_000, 2))  # compiles
    print(f"{'rows':>12}  {'CPU s':>7}  {'us a row':>8}")
    for rows in [int(float(word)) for word in sys.argv[1:]] or DEFAULT:
        table, start = log(rows, 3), time.process_time()
        learner.evaluate(table)
        spent = time.process_time() - start
        print(f"{rows:12,}  {spent:7.1f}  {1e6 * spent / rows:8.2f}", flush=True)


if __name__ == "__main__":
    main()
