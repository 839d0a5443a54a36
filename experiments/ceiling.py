"""Values of the default learner beside those of the same learner with the true hierarchy and noise given.

    python experiments/ceiling.py                # writes docs/results/ceiling.md; a minute or two on two processors
    python experiments/ceiling.py --share 0.1 --out /tmp/ceiling.md

Worlds and logs are those of `experiments/claims.py`, the first logs of each. With the standard deviations, the noise
variance of each action and the normal laws of the truth given, the choice by the posterior mean is the Bayes rule: no
learner has a higher value on average over logs. "lost" is the value of that rule less that of the default, with the
standard error of the difference over paired runs.
"""

import os
import warnings
from pathlib import Path
from typing import NamedTuple

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import pyarrow as pa
from claims import SEED, WORLDS, drawn
from repeating import one_table
from tables import figure

from hieropo import HierOPO
from hieropo.model.crossed.hierarchy import CrossedHierarchy

OUT = Path(__file__).resolve().parents[1] / "docs" / "results" / "ceiling.md"
RUNS = {"model": 60, "noisy": 100, "alike": 60, "many": 20}
INTRODUCTION = """\
Values of `HierOPO()`, in percent of the way from the incumbent to the oracle, beside those of the Bayes rule: the same
learner with the true hierarchy and noise given. The columns are explained at the head of `experiments/ceiling.py`. The
seed is {seed}. After ± stands one Monte Carlo standard error.
"""


class Run(NamedTuple):
    """Gains over the incumbent of the default, of the Bayes rule and of the oracle."""

    default: float
    bayes: float
    best: float


def one_run(name: str, seed: int) -> Run:
    """Draw one log, learn from it in both ways, and judge by the truth."""
    world = WORLDS[name]
    log = drawn(world, np.random.default_rng([SEED, list(WORLDS).index(name), seed]))
    truth, tasks = log.theta[:, :, 0], np.arange(world.tasks)
    incumbent = float(log.weight @ (truth @ log.shares))
    variances = ([[sd**2]] for sd in (world.action, world.level, world.interaction))
    given = CrossedHierarchy(*(np.array(variance) for variance in variances), log.noise_var)
    gains = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for known in (None, given):
            learner = HierOPO(logging="random", known=known)
            learner.fit(log.table(), task="task", action="action", reward="reward")
            chosen = learner.predict(pa.table({"task": tasks})).astype(np.int64)
            gains.append(float(log.weight @ truth[tasks, chosen]) - incumbent)
    return Run(*gains, float(log.weight @ truth.max(axis=1)) - incumbent)


def row(name: str, runs: list[Run]) -> dict[str, str]:
    """Figures of a world by the names of their columns."""
    default, bayes, best = np.array(runs).T
    lost = 100 * (bayes - default) / best.mean()
    return {
        "world": WORLDS[name].words,
        "runs": str(len(runs)),
        "value, %": f"{100 * default.sum() / best.sum():.1f}",
        "Bayes rule, %": f"{100 * bayes.sum() / best.sum():.1f}",
        "lost": figure(lost.mean(), lost.std(ddof=1) / np.sqrt(len(runs)), 1),
    }


def main() -> None:
    """Make all runs and write the table."""
    head = ["# What the hierarchy costs that is learned", INTRODUCTION.format(seed=SEED)]
    one_table(__doc__, OUT, one_run, RUNS, row, head)


if __name__ == "__main__":
    main()
