"""Seconds of a whole evaluation, by rows: `learner.evaluate(log)` on one processor.

    taskset -c 0 python benchmarks/evaluate.py [ROWS ...]     # default 1,000,000 3,000,000 10,000,000
    python benchmarks/evaluate.py --crossed                   # of the crossed prior, with a profile

Ten actions, 100,000 tasks with integer ids, logged propensities, an Arrow table in memory. Counted is processor time of
both passes: sums, checks of propensities, choices in every row, all estimators with their intervals, predictive checks,
value and harm of every task. Certificates of 2,000 tasks are made when they are asked for, and timed with --crossed.

With --crossed: 10,000 tasks, 1,000,000 rows from Parquet, 5 actions of 8 columns. Seconds by the clock stand beside
those of the processors, and the share of each part of one more evaluation, by cProfile in the thread that calls.
"""

import cProfile
import os
import pstats
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import record

from hieropo import HierOPO
from hieropo._kernels import backend

TASKS, ACTIONS = 100_000, 10
DEFAULT = (1_000_000, 3_000_000, 10_000_000)


def log(rows: int, seed: int) -> pa.Table:
    """Draw a log in which actions are chosen by chance."""
    theta = np.random.default_rng(0).normal(0.0, 0.3, (TASKS, ACTIONS))
    rng = np.random.default_rng(seed)
    task, action = rng.integers(TASKS, size=rows), rng.integers(ACTIONS, size=rows)
    reward = theta[task, action] + rng.normal(size=rows)
    return pa.table({"task": task, "action": action, "reward": reward, "p": np.full(rows, 1 / ACTIONS)})


PARTS = (
    "first_pass", "fold_moments", "cross_fit", "judge", "value_distributions", "_summaries", "checks",
    "randomisation_tests", "finding",
)  # fmt: skip


def crossed_log(tasks: int, rows: int, actions: int, columns: int) -> pa.Table:
    """Draw a log whose tasks differ in levels and in what actions do."""
    rng = np.random.default_rng(0)
    theta = 0.2 * rng.standard_normal((1, actions, columns)) + 0.5 * rng.standard_normal((tasks, 1, columns))
    theta = theta + 0.3 * rng.standard_normal((tasks, actions, columns))
    task, action = rng.integers(tasks, size=rows), rng.integers(actions, size=rows)
    x = rng.standard_normal((rows, columns - 1))
    phi = np.concatenate([np.ones((rows, 1)), x], axis=1)
    reward = np.einsum("np,np->n", phi, theta[task, action]) + rng.standard_normal(rows)
    contexts = {f"x{j}": x[:, j] for j in range(columns - 1)}
    return pa.table(
        {"task": task, "action": action, "reward": reward, "p": np.full(rows, 1 / actions), **contexts}
    )


def timed(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Return the result of a call, and its seconds of the processors and by the clock."""
    start, clock = time.process_time(), time.perf_counter()
    result = work()
    return result, {"cpu": time.process_time() - start, "clock": time.perf_counter() - clock}


def crossed() -> None:
    """Measure an evaluation under the crossed prior, and the parts of the evaluation."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.parquet"
        pq.write_table(crossed_log(10_000, 1_000_000, 5, 8), path, compression="zstd")
        columns = {"task": "task", "action": "action", "reward": "reward", "pscore": "p"}
        learner = HierOPO(logging="random").fit(path, **columns, context=[f"x{j}" for j in range(7)])
        learner.evaluate(path)  # loads the loops
        evaluation, evaluate = timed(lambda: learner.evaluate(path))
        _, certificates = timed(evaluation.per_task)
        profile = cProfile.Profile()
        profile.runcall(learner.evaluate, path)
    stats = pstats.Stats(profile)
    total = stats.total_tt
    seconds = dict.fromkeys(PARTS, 0.0)
    for (file, _, name), (*_, spent, _) in stats.stats.items():
        if name in seconds and "hieropo" in file:
            seconds[name] = max(seconds[name], spent)
    shares = {name: spent / total for name, spent in seconds.items()}
    results = {"tasks": 10_000, "rows": 1_000_000, "evaluate": evaluate, "certificates": certificates}
    record.finish("evaluate", {**results, "shares": shares}, part="crossed")


def main() -> None:
    """Measure evaluations of logs without contexts, or one of the crossed prior."""
    if "--crossed" in sys.argv:
        crossed()
        return
    columns = {"task": "task", "action": "action", "reward": "reward", "pscore": "p"}
    learner = HierOPO(task_cov="diag", logging="random").fit(log(2_000_000, 1), **columns)
    with backend.forced(backend.COMPILED):
        learner.evaluate(log(1_000, 2))
    lines = []
    for rows in [int(float(word)) for word in sys.argv[1:]] or DEFAULT:
        table = log(rows, 3)
        lines.append({"rows": rows, **timed(lambda table=table: learner.evaluate(table))[1]})
    record.finish("evaluate", {"tasks": TASKS, "actions": ACTIONS, "lines": lines})


if __name__ == "__main__":
    main()
