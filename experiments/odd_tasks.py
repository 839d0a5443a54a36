"""Claims of `HierOPO(spreads="auto")` beside those of one spread, where few tasks are unlike the others and elsewhere.

    python experiments/odd_tasks.py                # writes docs/results/odd_tasks.md; about half an hour of CPU time
    python experiments/odd_tasks.py --share 0.05 --out /tmp/odd_tasks.md

Logs, policies, values and claims are those of `experiments/claims.py`: 60 tasks with 25 rows, four actions, noise of
sd 1, unless the row says otherwise; both settings learn from the same logs. "used" is the share of the logs in which
the mixture of spreads is used; in all others both settings have the same answer, and it is computed once. "claims,
permuted" is how often the interval leaves 0 out with rewards permuted within tasks, which turns large effects of a task
into noise. "harmed" is, of the changed tasks that the 5 % gate lets through, the share in which the policy is truly
worse. "harmed, by law" is the mean probability of that, given the log, under the distribution that drew the log. It
estimates the same share with a smaller error, and is given where it is exact: for normal rewards without contexts. A
seed gives the same figures with any number of processes.
"""

import os
import warnings
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
from claims import CONTEXTS, Array, Log, World, drawn, judged, permuted_within, share
from claims import WORLDS as CLAIM_WORLDS
from repeating import one_table
from scipy.stats import norm
from tables import figure

from hieropo import HierOPO
from hieropo.model.crossed.hierarchy import CrossedHierarchy, Spreads
from hieropo.model.crossed.spreads import condition_spreads

SEED = 20261130
OUT = Path(__file__).resolve().parents[1] / "docs" / "results" / "odd_tasks.md"
RUNS = 40
MANY_RUNS = 200
INTRODUCTION = """\
`HierOPO()`, whose default is `spreads="auto"`, beside `spreads="one"` on the same logs; the columns are explained at
the head of `experiments/odd_tasks.py`. The seed is {seed}. Value is in % of the way from the incumbent to the oracle;
after ± stands one Monte Carlo standard error.
"""
WORLDS = {
    "odd": World("5 % of tasks with 10 x effects, others varied", few=0.05),
    "sparse": CLAIM_WORLDS["sparse"],
    "odd, alike": CLAIM_WORLDS["odd"],
    "odd, contexts": World("contexts, 5 % with 10 x effects, 1,000 rows", 50, 20, columns=7, actions=5, few=0.05),
    **{
        name: CLAIM_WORLDS[name]
        for name in (
            "model", "no effect", "alike", "two", "rich", "noisy", "unequal noise", "t3", "skewed", "binary", "count",
            "drift", "revenue", "contexts 1,000",
        )
    },
}  # fmt: skip
WITH_CONTEXTS = 40  # logs
OFTEN = ("odd", "sparse", "odd, alike", "model", "no effect")  # worlds with MANY_RUNS logs


class Fit(NamedTuple):
    """Gain of a policy and the claim of it, by one setting."""

    gain: float
    claimed: float
    held: bool
    harmed: int
    passed: int
    by_law: float
    claims_nothing: bool
    used: bool
    used_permuted: bool


class Run(NamedTuple):
    """Both settings on one log, and the gain of the oracle."""

    one: Fit
    auto: Fit
    best: float


def one_fit(log: Log, world: World, permuted: Any, at: Any, spreads: Any) -> Fit:
    """Learn from one log, and judge by the truth; and learn from the same log with permuted rewards."""
    roles = {
        "task": "task",
        "action": "action",
        "reward": "reward",
        "context": [f"x{j}" for j in range(world.columns)],
    }
    learner = HierOPO(logging="random", spreads=spreads).fit(log.table(), **roles)
    judgement = judged(learner, log, log.means(*at), at)
    exact = world.reward == "normal" and not world.columns
    by_law = harm_by_law(learner, world, judgement.change)[judgement.passes].sum() if exact else np.nan
    silent = HierOPO(logging="random", spreads=spreads).fit(log.table(permuted), **roles)
    nothing = silent.evaluate(log.table(permuted), propensities="none").model.difference
    used = learner.hierarchy_.mixed_spreads, silent.hierarchy_.mixed_spreads
    return Fit(*judgement[:5], float(by_law), nothing.low <= 0 <= nothing.high, *used)


def harm_by_law(learner: HierOPO, world: World, change: Array) -> Array:
    """Probability (m,) that changes (m, K) harm a task, given the log, under the law that drew it."""
    some = abs(world.few)
    scales = np.array([0.0 if world.few < 0 else 1.0, 1.0 if world.few < 0 else 10.0])
    weights = np.array([1 - some, some])
    size = float(np.sqrt(weights @ scales**2)) or 1.0
    of_law = (world.action**2, world.level**2, (world.interaction * size) ** 2)
    covs = (np.array([[variance]]) for variance in of_law)
    hierarchy = CrossedHierarchy(*covs, np.ones(world.actions), spreads=Spreads(scales / size, weights))
    moments: Any = learner.posterior_.log_moments
    posterior = condition_spreads(moments, hierarchy)
    rows = np.asarray(moments.keys.locate(np.arange(len(change))))
    vectors = np.zeros((len(moments), 1, world.actions))
    vectors[rows] = change[:, None]
    harm = np.zeros(len(moments))
    for probability, mean, variance in posterior.mixtures(vectors, slice(0, len(moments))):
        harm += probability * norm.cdf(-1e-12, mean[:, 0], np.sqrt(np.maximum(variance[:, 0], 1e-300)))
    return np.asarray(harm[rows])


def one_run(name: str, seed: int) -> Run:
    """Draw one log, and learn from it with both settings."""
    world = WORLDS[name]
    rng = np.random.default_rng([SEED, list(WORLDS).index(name), seed])
    log = drawn(world, rng)
    permuted = permuted_within(log, rng)
    task = np.repeat(np.arange(world.tasks), CONTEXTS if world.columns else 1)
    at = rng.standard_normal((task.size, world.columns)), task
    truth, weight = log.means(*at), log.weight[task] * world.tasks / task.size
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        auto = one_fit(log, world, permuted, at, "auto")
        one = one_fit(log, world, permuted, at, "one") if auto.used or auto.used_permuted else auto
    return Run(one, auto, float(weight @ (truth.max(axis=1) - truth @ log.shares)))


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
        by_law = sum(fit.by_law for fit in fits)
        ratio = claimed.sum() / gains.sum() if effect else np.nan
        error = (claimed - ratio * gains).std(ddof=1) * np.sqrt(len(runs)) / gains.sum() if effect else np.nan
        figures |= {
            f"value, {words}": f"{100 * gains.sum() / best.sum():.1f}" if effect else "",
            f"claimed / true, {words}": figure(ratio, error, 2)
            if effect
            else f"{claimed.mean():.4f} claimed",
            f"holds, %, {words}": share([fit.held for fit in fits]),
            f"claims, permuted, %, {words}": share([not fit.claims_nothing for fit in fits]),
            f"harmed, %, {words}": f"{100 * harmed / passed:.1f}" if passed else "",
            f"harmed, by law, %, {words}": f"{100 * by_law / passed:.1f}" if by_law >= 0 and passed else "",
        }
    figures["auto less one"] = figure(lead.mean(), lead.std(ddof=1) / np.sqrt(len(runs)), 1) if effect else ""
    return figures


def main() -> None:
    """Make all runs and write the table."""
    head = ["# Tasks that are unlike the others", INTRODUCTION.format(seed=SEED)]
    one_table(
        __doc__,
        OUT,
        one_run,
        {
            name: WITH_CONTEXTS if world.columns else MANY_RUNS if name in OFTEN else RUNS
            for name, world in WORLDS.items()
        },
        row,
        head,
    )


if __name__ == "__main__":
    main()
