"""`HierOPO(likelihood="two-part")` where rewards are mostly 0 and otherwise amounts, beside the Gaussian likelihood.

    python experiments/two_part.py                # writes docs/results/two_part.md; some minutes of CPU time
    python experiments/two_part.py --share 0.05 --out /tmp/two_part.md

Logs have 60 tasks and four actions with shares .4, .3, .2, .1, as in `experiments/claims.py`. A reward is above 0 with
probability .05 exp(c), else 0; one above 0 is exp(a) times a lognormal variable with a log sd of 1 ("gamma": a gamma
variable of shape 1/2, whose logarithm is skewed). c and a are each 0, or the sum of an effect of the action (sd .2), a
level of the task (.5) and their interaction (.3); "in both" draws them independently. "another spread": log sds of the
actions are .5, 1, 1.2 and .8, with equal logarithmic means, so that the logarithms mislead.

Both likelihoods learn from the same logs. Value is the true gain in % of the oracle's gain over the incumbent, over all
logs together. "known" is the value of the exact Bayes policy that knows how often rewards are above 0, the lognormal
distribution and all standard deviations: no method without this knowledge is better on average. "claimed / true" is the
model's gain over the true gain; "holds" is the share of logs in which its 95 % interval covers the truth; "claims,
permuted" is the share of logs in which, with rewards permuted within tasks, this interval excludes 0. "harmed" is, of
the changed tasks that the 5 % gate lets through, the share in which the policy is truly worse, with their number.
"auto" is the share of the logs in which `likelihood="auto"` takes two parts. A seed gives the same figures with any
number of processes.
"""

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
from claims import SHARES, Array, Log, judged, permuted_within, share
from repeating import one_table
from tables import figure

from hieropo import HierOPO

SEED = 20261203
OUT = Path(__file__).resolve().parents[1] / "docs" / "results" / "two_part.md"
TASKS, ACTIONS = 60, 4
PAID, ACTION, LEVEL, INTERACTION = 0.05, 0.2, 0.5, 0.3
SPREADS = np.array([0.5, 1.0, 1.2, 0.8])
ROLES: dict[str, Any] = {"task": "task", "action": "action", "reward": "reward"}
INTRODUCTION = """\
`HierOPO(likelihood="two-part")` beside the default, on the same logs of 60 tasks in which 95 % of the rewards are 0.
The columns are explained at the head of `experiments/two_part.py`. The seed is {seed}. After ± stands one Monte Carlo
standard error.
"""


@dataclass(frozen=True)
class World:
    """The process that makes logs: rows a task, parts that have effects, and the law of amounts; and how many logs."""

    words: str
    rows: int = 25
    conversion: bool = False
    amounts: bool = True
    law: str = "lognormal"
    runs: int = 40


WORLDS = {
    "amounts": World("effects in amounts, 25 rows a task"),
    "amounts, 100": World("effects in amounts, 100 rows a task", 100),
    "conversion": World("effects in conversion, 25 rows a task", conversion=True, amounts=False),
    "conversion, 100": World("effects in conversion, 100 rows a task", 100, conversion=True, amounts=False),
    "both, 100": World("effects in both, 100 rows a task", 100, conversion=True),
    "gamma, 100": World("effects in gamma amounts, 100 rows a task", 100, law="gamma", runs=20),
    "nothing": World("no effects, 25 rows a task", amounts=False),
    "spread, 100": World(
        "amounts of another spread, 100 rows a task", 100, amounts=False, law="spread", runs=20
    ),
}


class Fit(NamedTuple):
    """Gain of a policy and the claim of it, by one likelihood."""

    gain: float
    claimed: float
    held: bool
    harmed: int
    passed: int
    silent: bool


class Run(NamedTuple):
    """Both likelihoods on one log; gains of exact Bayes and the oracle; True where "auto" takes two parts."""

    gaussian: Fit
    two_part: Fit
    known: float
    best: float
    auto: bool


def coefficients(rng: np.random.Generator) -> Array:
    """Draw the sum of an effect, a level and an interaction for each task and action, (m, K)."""
    effect, level = rng.standard_normal((1, ACTIONS)), rng.standard_normal((TASKS, 1))
    return np.asarray(ACTION * effect + LEVEL * level + INTERACTION * rng.standard_normal((TASKS, ACTIONS)))


def drawn(world: World, rng: np.random.Generator) -> tuple[Log, Array]:
    """Draw a log, and the true mean rewards (m, K)."""
    c, a = coefficients(rng) * world.conversion, coefficients(rng) * world.amounts
    n = TASKS * world.rows
    task = np.repeat(np.arange(TASKS), 2 + rng.multinomial(n - 2 * TASKS, rng.dirichlet(np.full(TASKS, 2.0))))
    action = rng.choice(ACTIONS, n, p=SHARES)
    paid = PAID * np.exp(c)
    if world.law == "gamma":
        unit, mean = rng.gamma(0.5, 2.0, n), np.ones(ACTIONS)
    else:
        sd = SPREADS if world.law == "spread" else np.ones(ACTIONS)
        unit, mean = np.exp(sd[action] * rng.standard_normal(n)), np.exp(sd**2 / 2)
    amount = np.exp(a[task, action]) * unit
    reward = np.where(rng.random(n) < paid[task, action], amount, 0.0)
    weight = np.bincount(task, minlength=TASKS) / n
    log = Log(
        np.zeros((TASKS, ACTIONS, 1)), SHARES, weight, task, action, np.zeros((n, 0)), reward, "", np.ones(1)
    )
    return log, paid * np.exp(a) * mean


def known_choices(log: Log) -> Array:
    """Choose by the exact posterior of the logarithms of amounts under their true prior, (m,)."""
    paid = log.reward > 0
    unit = (log.task * ACTIONS + log.action)[paid]
    task, action = np.divmod(np.arange(TASKS * ACTIONS), ACTIONS)
    prior = (
        ACTION**2 * (action[:, None] == action)
        + LEVEL**2 * (task[:, None] == task)
        + INTERACTION**2 * np.eye(task.size)
    )
    weights = np.linalg.solve(prior[np.ix_(unit, unit)] + np.eye(unit.size), prior[unit]).T
    mean = weights @ np.log(log.reward[paid])
    variance = np.diagonal(prior) - np.einsum("uj,ju->u", weights, prior[unit])
    return np.asarray((mean + variance / 2).reshape(TASKS, ACTIONS).argmax(axis=1))


def one_fit(log: Log, truth: Array, permuted: Array, likelihood: Any) -> Fit:
    """Learn from one log, and judge by the truth; and learn from the same log with permuted rewards."""
    learner = HierOPO(logging="random", likelihood=likelihood).fit(log.table(), **ROLES)
    judgement = judged(learner, log, truth, compare=False, randomise=False)
    silent = HierOPO(logging="random", likelihood=likelihood).fit(log.table(permuted), **ROLES)
    nothing = silent.evaluate(log.table(permuted), propensities="none", compare=False, randomise=False)
    nothing = nothing.model.difference
    return Fit(*judgement[:5], nothing.low <= 0 <= nothing.high)


def one_run(name: str, seed: int) -> Run:
    """Draw one log, and learn from it with both likelihoods."""
    rng = np.random.default_rng([SEED, list(WORLDS).index(name), seed])
    log, truth = drawn(WORLDS[name], rng)
    permuted = permuted_within(log, rng)
    incumbent = truth @ log.shares
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gaussian, two_part = (one_fit(log, truth, permuted, name) for name in ("gaussian", "two-part"))
        auto = HierOPO(logging="random", likelihood="auto").fit(log.table(), **ROLES).likelihood_
    known = log.weight @ (truth[np.arange(TASKS), known_choices(log)] - incumbent)
    best = float(log.weight @ (truth.max(axis=1) - incumbent))
    return Run(gaussian, two_part, float(known), best, auto == "two-part")


def row(name: str, runs: list[Run]) -> dict[str, str]:
    """Figures of a world by the names of their columns."""
    world, best = WORLDS[name], np.array([run.best for run in runs])
    effect = best.sum() > 1e-9
    lead = np.array([run.two_part.gain - run.gaussian.gain for run in runs])
    known = np.array([run.known for run in runs])
    exact = effect and world.amounts and not world.conversion and world.law == "lognormal"
    figures = {"world": world.words, "logs": str(len(runs))}
    for words, fits in (
        ("Gaussian", [run.gaussian for run in runs]), ("two-part", [run.two_part for run in runs])
    ):  # fmt: skip
        gains, claimed = np.array([fit.gain for fit in fits]), np.array([fit.claimed for fit in fits])
        harmed, passed = sum(fit.harmed for fit in fits), sum(fit.passed for fit in fits)
        ratio = claimed.sum() / gains.sum()
        error = (claimed - ratio * gains).std(ddof=1) * np.sqrt(len(runs)) / abs(gains.sum())
        figures |= {
            f"value, %, {words}": f"{100 * gains.sum() / best.sum():.1f}" if effect else "",
            f"claimed / true, {words}": figure(ratio, error, 2)
            if effect
            else f"{claimed.mean():.4f} claimed",
            f"holds, %, {words}": share([fit.held for fit in fits]),
            f"claims, permuted, %, {words}": share([not fit.silent for fit in fits]),
            f"harmed, %, {words}": f"{100 * harmed / passed:.1f} of {passed}" if passed else "",
        }
    lead = 100 * lead / best.mean() if effect else lead
    return figures | {
        "two-part less Gaussian": figure(lead.mean(), lead.std(ddof=1) / np.sqrt(len(runs)), 1) if effect else "",
        "value, %, known": f"{100 * known.sum() / best.sum():.1f}" if exact else "",
        "auto, %": f"{100 * np.mean([run.auto for run in runs]):.0f}",
    }  # fmt: skip


def main() -> None:
    """Make all runs and write the table."""
    head = ["# Rewards that are mostly zero", INTRODUCTION.format(seed=SEED)]
    one_table(__doc__, OUT, one_run, {name: world.runs for name, world in WORLDS.items()}, row, head)


if __name__ == "__main__":
    main()
