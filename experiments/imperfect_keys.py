"""Tasks whose key is wrong in some rows: attenuation of their effects, and values and claims of the default learner.

    python experiments/imperfect_keys.py                # writes docs/results/imperfect_keys.md; a minute of CPU time
    python experiments/imperfect_keys.py --share 0.05 --out /tmp/imperfect_keys.md

Logs are those of "drawn from the model" in `experiments/claims.py`: 60 tasks with 25 rows, four actions, noise of sd 1,
with interactions of sd .5. A row has the key of its task with probability rho, else that of any other task, each as
likely. HierOPO takes the key as the task. By derivation, effects of a key are then those of its task times the
"factor", rho - (1 - rho) / (m - 1), around the mean over tasks. "measured" is the same factor in the logs: the slope of
the rewards on the true effects of actions in the task of the key, over that slope with the true key.

Each policy is judged in two ways: on new rows whose key is wrong as often ("rows of a key"), and on new rows whose
task is known ("rows of a task"). Value is the true gain in % of the gain of the oracle, which knows the task, over the
incumbent; each task is weighted by its rows. "claimed / true" is the model's gain over the true gain, and "holds" is
the share of logs in which its 95 % interval covers the truth. A seed gives the same figures with any number of
processes.
"""

import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import pyarrow as pa
from claims import WORLDS, Codes, Log, drawn, share
from repeating import one_table

from hieropo import HierOPO

SEED = 20261202
OUT = Path(__file__).resolve().parents[1] / "docs" / "results" / "imperfect_keys.md"
RUNS = 40
RIGHT = {"1": 1.0, ".9": 0.9, ".7": 0.7, ".5": 0.5}
INTRODUCTION = """\
`HierOPO()` on logs whose key of the task is wrong in some rows; the columns are explained at the head of
`experiments/imperfect_keys.py`. The seed is {seed}. After ± stands one Monte Carlo standard error.
"""


class Run(NamedTuple):
    """Slopes with this key and with the true one; gains for rows of keys and of tasks, and the claim of the model."""

    slope: float
    slope_of_true: float
    of_keys: float
    of_tasks: float
    best: float
    claimed: float
    held_of_keys: bool
    held_of_tasks: bool


def factor(right: float, tasks: int) -> float:
    """Effects of a key over those of its task, around the mean over tasks."""
    return right - (1 - right) / (tasks - 1)


def learned(log: Log, key: Codes) -> HierOPO:
    """Learn from a log with some key in place of the task."""
    table = pa.table({"task": key, "action": log.action, "reward": log.reward})
    return HierOPO(logging="random").fit(table, task="task", action="action", reward="reward")


def slope(log: Log, key: Codes) -> float:
    """Slope of the rewards on the true effects of actions in the task of the key, around those in all tasks."""
    truth = log.theta[:, :, 0]
    away = truth - truth.mean(axis=1, keepdims=True)
    away = away - away.mean(axis=0)
    effect = away[key, log.action]
    return float(effect @ log.reward / (effect @ effect))


def one_run(name: str, seed: int) -> Run:
    """Draw one log, make its key wrong in some rows, and learn from both."""
    rng = np.random.default_rng([SEED, seed])
    log = drawn(replace(WORLDS["model"], interaction=0.5), rng)
    right, m = RIGHT[name], len(log.theta)
    wrong = rng.random(log.task.size) > right
    key = np.where(wrong, (log.task + rng.integers(1, m, log.task.size)) % m, log.task)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learner = learned(log, key)
        claim = learner.evaluate(
            pa.table({"task": key, "action": log.action, "reward": log.reward}), propensities="none"
        ).model.difference
    truth, tasks = log.theta[:, :, 0], np.arange(m)
    chosen = learner.predict(pa.table({"task": tasks})).astype(np.int64)
    given_key = right * truth + (1 - right) * (truth.sum(axis=0) - truth) / (m - 1)
    gains = [
        float(log.weight @ (values[tasks, chosen] - values @ log.shares)) for values in (given_key, truth)
    ]
    best = float(log.weight @ (truth.max(axis=1) - truth @ log.shares))
    held = [claim.low <= gain <= claim.high for gain in gains]
    return Run(slope(log, key), slope(log, log.task), gains[0], gains[1], best, claim.mean, *held)


def row(name: str, runs: list[Run]) -> dict[str, str]:
    """Figures of one rho by the names of their columns."""
    best = sum(run.best for run in runs)
    of_keys, of_tasks = sum(run.of_keys for run in runs), sum(run.of_tasks for run in runs)
    claimed = sum(run.claimed for run in runs)
    measured = sum(run.slope for run in runs) / sum(run.slope_of_true for run in runs)
    return {
        "rho": name,
        "logs": str(len(runs)),
        "factor": f"{factor(RIGHT[name], WORLDS['model'].tasks):.2f}",
        "measured": f"{measured:.2f}",
        "value, rows of a key": f"{100 * of_keys / best:.1f}",
        "claimed / true, rows of a key": f"{claimed / of_keys:.2f}",
        "holds, %, rows of a key": share([run.held_of_keys for run in runs]),
        "value, rows of a task": f"{100 * of_tasks / best:.1f}",
        "claimed / true, rows of a task": f"{claimed / of_tasks:.2f}",
        "holds, %, rows of a task": share([run.held_of_tasks for run in runs]),
    }


def main() -> None:
    """Make all runs and write the table."""
    head = ["# A key of the task that is wrong in some rows", INTRODUCTION.format(seed=SEED)]
    one_table(__doc__, OUT, one_run, dict.fromkeys(RIGHT, RUNS), row, head)


if __name__ == "__main__":
    main()
