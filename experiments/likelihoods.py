"""Values and claims of other likelihoods beside the Gaussian one, on the same logs.

    python experiments/likelihoods.py                # writes docs/results/likelihoods.md; about ten minutes of CPU time
    python experiments/likelihoods.py --share 0.05 --out /tmp/likelihoods.md

Logs, policies, values and claims are those of `experiments/claims.py`: 60 tasks with 25 rows, four actions, noise of
variance 1; in "gross rewards" one reward in 300 is 1,000 larger or smaller. "used" is the share of the logs in which
the fit takes another likelihood than the Gaussian. "less Gaussian" is the value less that of the Gaussian fit. "claims,
permuted" is the share of logs in which, with rewards permuted within tasks, the 95 % interval of the gain excludes 0.
"claimed / true" is the model's gain over the true gain; "holds" is the share of logs in which its 95 % interval covers
the truth; "harmed" is, of the changed tasks that the 5 % gate lets through, the share in which the policy is truly
worse. A seed gives the same figures with any number of processes.
"""

import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import pyarrow as pa
from claims import WORLDS as CLAIM_WORLDS
from claims import Judged, Log, World, drawn, judged, permuted_within, share
from repeating import one_table
from tables import figure

from hieropo import HierOPO

SEED = 20261201
OUT = Path(__file__).resolve().parents[1] / "docs" / "results" / "likelihoods.md"
RUNS = {"t3": 40, "gross": 40, "model": 40, "t3, none": 20}
FEWER = 12  # in other worlds
GROSS = 1 / 300  # share of the rewards in "gross rewards"
INTRODUCTION = """\
`HierOPO(likelihood=...)` beside the default, `likelihood="gaussian"`, on the same logs; the columns are explained at
the head of `experiments/likelihoods.py`. The seed is {seed}. Value is the true gain in % of the oracle's gain over the
incumbent; after ± stands one Monte Carlo standard error. Rewards that are mostly 0 have [another page](two_part.md).
"""
WORLDS = {
    "t3": CLAIM_WORLDS["t3"],
    "t3, none": World("t3 noise, no effect of actions", action=0.0, interaction=0.0, reward="t3"),
    "gross": World("gross rewards"),
    "model": World("Gaussian noise"),
    "unequal noise": CLAIM_WORLDS["unequal noise"],
    "odd": CLAIM_WORLDS["odd"],
    "skewed": CLAIM_WORLDS["skewed"],
    "count": CLAIM_WORLDS["count"],
}
SETTINGS = {
    **{f"{name} auto": (name, "auto") for name in WORLDS if name != "model"},
    "model robust": ("model", "robust"),
    "skewed robust": ("skewed", "robust"),
    "model auto": ("model", "auto"),
}


class Run(NamedTuple):
    """Both likelihoods on one log, whether the other was used and claims of permuted rewards, and the oracle's gain."""

    gaussian: Judged
    other: Judged
    used: bool
    claims_permuted: bool
    best: float


def learned(likelihood: Any, table: pa.Table) -> HierOPO:
    """Learn from one log."""
    return HierOPO(logging="random", likelihood=likelihood).fit(
        table, task="task", action="action", reward="reward"
    )


def a_log(world: str, rng: np.random.Generator) -> Log:
    """Draw a log of a world."""
    log = drawn(WORLDS[world], rng)
    if world != "gross":
        return log
    far = np.where(
        rng.random(log.reward.size) < GROSS, 1000.0 * rng.choice([-1.0, 1.0], log.reward.size), 0.0
    )
    return replace(log, reward=log.reward + far)


def one_run(name: str, seed: int) -> Run:
    """Draw one log, and learn from it with both likelihoods."""
    world, likelihood = SETTINGS[name]
    rng = np.random.default_rng([SEED, list(WORLDS).index(world), seed])
    log = a_log(world, rng)
    truth = log.means(np.zeros((len(log.theta), 0)), np.arange(len(log.theta)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gaussian = judged(learned("gaussian", log.table()), log, truth)
        learner = learned(likelihood, log.table())
        used = learner.likelihood_ != "gaussian"
        other = judged(learner, log, truth) if used else gaussian
        permuted = log.table(permuted_within(log, rng))
        nothing = learned(likelihood, permuted).evaluate(permuted, propensities="none").model.difference
    best = float(log.weight @ (truth.max(axis=1) - truth @ log.shares))
    return Run(gaussian, other, used, nothing.low > 0 or nothing.high < 0, best)


def row(name: str, runs: list[Run]) -> dict[str, str]:
    """Figures of a world by the names of their columns."""
    world, likelihood = SETTINGS[name]
    best = np.array([run.best for run in runs])
    effect = best.sum() > 1e-9
    lead = 100 * np.array([run.other.gain - run.gaussian.gain for run in runs]) / max(best.mean(), 1e-300)
    figures = {
        "world, likelihood": f"{WORLDS[world].words}, {likelihood}",
        "logs": str(len(runs)),
        "used, %": share([run.used for run in runs]),
        "less Gaussian": figure(lead.mean(), lead.std(ddof=1) / np.sqrt(len(runs)), 1) if effect else "",
        "claims, permuted, %": share([run.claims_permuted for run in runs]),
    }
    for words, fits in (("", [run.other for run in runs]), (", Gaussian", [run.gaussian for run in runs])):
        gains, claimed = np.array([fit.gain for fit in fits]), np.array([fit.claimed for fit in fits])
        harmed, passed = sum(fit.harmed for fit in fits), sum(fit.passed for fit in fits)
        ratio = f"{claimed.sum() / gains.sum():.2f}" if effect else f"{claimed.mean():.4f} claimed"
        figures |= {
            f"value{words}": f"{100 * gains.sum() / best.sum():.1f}" if effect else "",
            f"claimed / true{words}": ratio,
            f"holds, %{words}": share([fit.held for fit in fits]),
            f"harmed, %{words}": f"{100 * harmed / passed:.1f}" if passed else "",
        }
    return figures


def main() -> None:
    """Make all runs and write the table."""
    head = ["# Likelihoods of rewards", INTRODUCTION.format(seed=SEED)]
    runs = {
        name: FEWER if name == "model auto" else RUNS.get(world, FEWER)
        for name, (world, _) in SETTINGS.items()
    }
    one_table(__doc__, OUT, one_run, runs, row, head)


if __name__ == "__main__":
    main()
