"""Claims of `HierOPO(spreads="auto")` where few tasks are unlike the others, beside those of one spread.

    python experiments/odd_tasks.py                # writes docs/results/odd_tasks.md; about three minutes of CPU time
    python experiments/odd_tasks.py --share 0.05 --out /tmp/odd_tasks.md

Logs, policies, values and claims are those of `experiments/claims.py`: 60 tasks with 25 rows, four actions, noise of
sd 1; both settings learn from the same logs. "used" is the share of the logs in which the mixture of spreads is used.
"claims, permuted" is how often the interval leaves 0 out with rewards permuted within tasks, which turns large effects
of a task into noise. "harmed" is the share of the changed tasks that the 5 % gate lets through and in which the policy
is truly worse. A seed gives the same figures with any number of processes.
"""

import os
import warnings
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
from claims import WORLDS as CLAIM_WORLDS
from claims import Log, World, drawn, judged, permuted_within, share
from repeating import one_table
from tables import figure

from hieropo import HierOPO

SEED = 20261130
OUT = Path(__file__).resolve().parents[1] / "docs" / "results" / "odd_tasks.md"
RUNS = 40
INTRODUCTION = """\
`HierOPO(spreads="auto")` beside the default, `spreads="one"`, on the same logs; the columns are explained at the head
of `experiments/odd_tasks.py`. The seed is {seed}. Value is in % of the way from the incumbent to the oracle; after ±
stands one Monte Carlo standard error.
"""
WORLDS = {
    "odd": World("5 % of tasks with 10 x effects, others varied", few=0.05),
    "sparse": CLAIM_WORLDS["sparse"],
}


class Fit(NamedTuple):
    """Gain of a policy and the claim of it, by one setting."""

    gain: float
    claimed: float
    held: bool
    harmed: int
    passed: int
    claims_nothing: bool
    used: bool


class Run(NamedTuple):
    """Both settings on one log, and the gain of the oracle."""

    one: Fit
    auto: Fit
    best: float


def one_fit(log: Log, permuted: Any, spreads: Any) -> Fit:
    """Learn from one log, and judge by the truth; and learn from the same log with permuted rewards."""
    roles = {"task": "task", "action": "action", "reward": "reward"}
    truth = log.means(np.zeros((len(log.theta), 0)), np.arange(len(log.theta)))
    learner = HierOPO(logging="random", spreads=spreads).fit(log.table(), **roles)
    judgement = judged(learner, log, truth)
    silent = HierOPO(logging="random", spreads=spreads).fit(log.table(permuted), **roles)
    nothing = silent.evaluate(log.table(permuted), propensities="none").model.difference
    return Fit(*judgement, nothing.low <= 0 <= nothing.high, learner.hierarchy_.mixed_spreads)


def one_run(name: str, seed: int) -> Run:
    """Draw one log, and learn from it with both settings."""
    rng = np.random.default_rng([SEED, list(WORLDS).index(name), seed])
    log = drawn(WORLDS[name], rng)
    permuted = permuted_within(log, rng)
    truth = log.means(np.zeros((len(log.theta), 0)), np.arange(len(log.theta)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one, auto = (one_fit(log, permuted, spreads) for spreads in ("one", "auto"))
    return Run(one, auto, float(log.weight @ (truth.max(axis=1) - truth @ log.shares)))


def row(name: str, runs: list[Run]) -> dict[str, str]:
    """Figures of a world by the names of their columns."""
    best = np.array([run.best for run in runs])
    effect = best.sum() > 1e-9
    lead = (
        100 * np.array([run.auto.gain - run.one.gain for run in runs]) / best.mean()
        if effect
        else np.zeros(2)
    )
    figures = {
        "world": WORLDS[name].words,
        "logs": str(len(runs)),
        "used, %": share([run.auto.used for run in runs]),
    }
    for words, fits in (("one", [run.one for run in runs]), ("auto", [run.auto for run in runs])):
        gains, claimed = np.array([fit.gain for fit in fits]), np.array([fit.claimed for fit in fits])
        harmed, passed = sum(fit.harmed for fit in fits), sum(fit.passed for fit in fits)
        ratio = f"{claimed.sum() / gains.sum():.2f}" if effect else f"{claimed.mean():.4f} claimed"
        figures |= {
            f"value, {words}": f"{100 * gains.sum() / best.sum():.1f}" if effect else "",
            f"claimed / true, {words}": ratio,
            f"holds, %, {words}": share([fit.held for fit in fits]),
            f"claims, permuted, %, {words}": share([not fit.claims_nothing for fit in fits]),
            f"harmed, %, {words}": f"{100 * harmed / passed:.1f}" if passed else "",
        }
    figures["auto less one"] = figure(lead.mean(), lead.std(ddof=1) / np.sqrt(len(runs)), 1) if effect else ""
    return figures


def main() -> None:
    """Make all runs and write the table."""
    head = ["# Tasks that are unlike the others", INTRODUCTION.format(seed=SEED)]
    one_table(__doc__, OUT, one_run, dict.fromkeys(WORLDS, RUNS), row, head)


if __name__ == "__main__":
    main()
