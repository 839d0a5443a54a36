"""Binary rewards and counts: how much their own likelihood could add to the Gaussian one.

    python experiments/known_likelihoods.py                # writes docs/results/known_likelihoods.md; about a minute
    python experiments/known_likelihoods.py --share 0.2 --out /tmp/known_likelihoods.md

Logs are those of `experiments/claims.py`, and two more worlds. Three policies choose for each task the action of the
largest posterior mean.

- "default" is `HierOPO()`.
- "own" uses the Bernoulli or Poisson likelihood, the one of the rewards, on its link scale: the posterior by Laplace's
  approximation, the mean by quadrature. It is given the true standard deviations and the true mean.
- "linear" uses the Gaussian posterior of the mean rewards. It is given their true variances and the true noise.

So "own less linear" is the gain by the likelihood alone, where no hyper-parameter has to be learned, and "linear less
default" is the loss by learning them. Value is the true gain in % of the oracle's gain over the incumbent; "claimed /
true" is the gain by the posterior mean over the true gain.
"""

import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
from claims import WORLDS as CLAIM_WORLDS
from claims import Array, Log, World, drawn, linked
from repeating import one_table
from tables import figure

from hieropo import HierOPO

SEED = 20261204
OUT = Path(__file__).resolve().parents[1] / "docs" / "results" / "known_likelihoods.md"
RUNS = 30
FACTOR = {"binary": 1.5, "count": 0.7}  # of the score, on the link scale
WORLDS = {
    "binary": CLAIM_WORLDS["binary"],
    "few": replace(CLAIM_WORLDS["binary"], words="binary, 120 tasks x 8 rows", tasks=120, rows=8),
    "count": CLAIM_WORLDS["count"],
    "large": replace(
        CLAIM_WORLDS["count"], words="counts, effects twice as large", action=0.4, level=1.0, interaction=0.6
    ),
}
METHODS = ("default", "linear", "own")
INTRODUCTION = """\
The possible gain of a Bernoulli or Poisson likelihood over the Gaussian one; the columns are explained at the head of
`experiments/known_likelihoods.py`. The seed is {seed}. After ± stands one Monte Carlo standard error.
"""


class Run(NamedTuple):
    """Gains and claims of the methods, and the gain of the oracle."""

    gains: tuple[float, ...]
    claimed: tuple[float, ...]
    best: float


class Units(NamedTuple):
    """Rows and sums of rewards of all pairs of task and action, with the prior covariance of standard scores."""

    task: Array
    action: Array
    rows: Array
    sums: Array

    @classmethod
    def of(cls, log: Log) -> "Units":
        """Sum the rows of a log."""
        m, count = log.theta.shape[:2]
        task, action = np.divmod(np.arange(m * count), count)
        unit = log.task * count + log.action
        return cls(
            task, action, np.bincount(unit, minlength=m * count), np.bincount(unit, log.reward, m * count)
        )

    def covariance(self, action: float, level: float, interaction: float) -> Array:
        """Prior covariance (m K, m K) of all pairs, from the variances of the three parts."""
        same_action = self.action[:, None] == self.action
        same_task = self.task[:, None] == self.task
        return np.asarray(action * same_action + level * same_task + interaction * np.eye(self.task.size))


def by_likelihood(world: World, units: Units) -> Array:
    """Posterior means (m K,) of mean rewards by Laplace's approximation on the link scale."""
    factor = FACTOR[world.reward]
    prior = factor**2 * units.covariance(world.action**2, world.level**2, world.interaction**2)
    score, n = np.zeros(units.rows.size), units.rows
    for _ in range(100):
        mean = linked(score / factor, world.reward)
        weight = n * (mean * (1 - mean) if world.reward == "binary" else mean)
        target = weight * score + units.sums - n * mean
        new = np.linalg.solve(np.eye(n.size) + prior * weight, prior @ target)
        change = np.abs(new - score).max()
        score = new
        if change < 1e-9:
            break
    variance = np.diagonal(np.linalg.solve(np.eye(n.size) + prior * weight, prior))
    nodes, masses = np.polynomial.hermite_e.hermegauss(15)
    spread = score[:, None] + np.sqrt(variance)[:, None] * nodes
    return np.asarray(linked(spread / factor, world.reward) @ (masses / masses.sum()))


def by_linear(world: World, units: Units) -> Array:
    """Posterior means (m K,) of mean rewards by the Gaussian model whose variances are those of the mean rewards."""
    rng, n = np.random.default_rng(SEED), 200_000
    effect, level = world.action * rng.standard_normal((2, n)), world.level * rng.standard_normal((2, n))
    interaction = world.interaction * rng.standard_normal((2, n))
    mean = linked(effect[0] + level[0] + interaction[0], world.reward)
    of_action = np.cov(mean, linked(effect[0] + level[1] + interaction[1], world.reward))[0, 1]
    of_level = np.cov(mean, linked(effect[1] + level[0] + interaction[1], world.reward))[0, 1]
    noise = (mean * (1 - mean) if world.reward == "binary" else mean).mean()
    prior = units.covariance(of_action, of_level, mean.var() - of_action - of_level)
    residual = (units.sums - units.rows * mean.mean()) / noise
    return np.asarray(
        mean.mean()
        + prior @ np.linalg.solve(np.eye(residual.size) + (units.rows / noise)[:, None] * prior, residual)
    )


def by_default(log: Log) -> Array:
    """Posterior means (m K,) of mean rewards by the default learner."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learner = HierOPO(logging="random").fit(log.table(), task="task", action="action", reward="reward")
    m, count = log.theta.shape[:2]
    means = np.asarray(learner.posterior_.table().means).reshape(-1, count)
    rows = np.asarray(learner.posterior_.moments.keys.require(np.arange(m)))
    columns = np.argsort([int(action) for action in learner.features_.actions or ()])
    return np.asarray(means[rows][:, columns].reshape(-1))


def one_run(name: str, seed: int) -> Run:
    """Draw one log, choose by each method, and judge by the truth."""
    world, rng = WORLDS[name], np.random.default_rng([SEED, list(WORLDS).index(name), seed])
    log = drawn(world, rng)
    m, count = log.theta.shape[:2]
    truth, units, tasks = linked(log.theta[:, :, 0], log.link), Units.of(log), np.arange(m)
    gains, claimed = [], []
    for means in (by_default(log), by_linear(world, units), by_likelihood(world, units)):
        table = means.reshape(m, count)
        chosen = table.argmax(axis=1)
        gains.append(float(log.weight @ (truth[tasks, chosen] - truth @ log.shares)))
        claimed.append(float(log.weight @ (table[tasks, chosen] - table @ log.shares)))
    best = float(log.weight @ (truth.max(axis=1) - truth @ log.shares))
    return Run(tuple(gains), tuple(claimed), best)


def row(name: str, runs: list[Run]) -> dict[str, str]:
    """Figures of a world by the names of their columns."""
    gains, claimed = np.array([run.gains for run in runs]), np.array([run.claimed for run in runs])
    best, n = np.array([run.best for run in runs]), len(runs)
    figures = {"world": WORLDS[name].words, "logs": str(n)}
    for k, method in enumerate(METHODS):
        figures[f"value, %, {method}"] = f"{100 * gains[:, k].sum() / best.sum():.1f}"
        figures[f"claimed / true, {method}"] = f"{claimed[:, k].sum() / gains[:, k].sum():.2f}"
    for words, first, second in (("own less linear", 2, 1), ("linear less default", 1, 0)):
        lead = 100 * (gains[:, first] - gains[:, second]) / best.mean()
        figures[words] = figure(lead.mean(), lead.std(ddof=1) / np.sqrt(n), 1)
    return figures


def main() -> None:
    """Make all runs and write the table."""
    head = ["# The possible gain of binary and count likelihoods", INTRODUCTION.format(seed=SEED)]
    one_table(__doc__, OUT, one_run, dict.fromkeys(WORLDS, RUNS), row, head)


if __name__ == "__main__":
    main()
