"""Claims and values of the default learner in worlds whose truth is known, beside what a sceptic would do instead.

    python experiments/claims.py                # writes docs/results/claims.md; about an hour on two processors
    python experiments/claims.py --share 0.05 --out /tmp/claims.md

A log has tasks (numbers of rows uneven: multinomial with Dirichlet(2, ..., 2) shares, at least two), actions drawn with
shares .4, .3, .2, .1 (or alike, where there are not four), and rewards of noise sd 1 around mean + effect of the action
+ level of the task + their interaction, with the standard deviations named. With contexts, an intercept and seven
columns N(0, 1) have a coefficient for each of these, and tasks and actions come alike often. Binary rewards and
counts have 1.5, or .7, times that on the link scale.

Policies choose an action for each task (and context). Their values are the truth, each task weighed by its rows; a
value is the share of the way from the incumbent (the shares above) to the oracle, over all runs of a world together.
Beside the default stand, learned from the same log: all tasks pooled, each task by itself, one action for all, and
James-Stein estimates by action. "claimed / true" is the model's gain of the default over the incumbent against the
truth, summed over runs; "holds" is how often its 95 % interval holds the truth; "claims, permuted" how often, of the
same log with rewards permuted within tasks, the interval leaves 0 out; "harmed" is the share of the changed tasks that
the 5 % gate lets through and in which the policy is truly worse. A seed gives the same figures with any number of
processes.
"""

import os
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import pyarrow as pa
from james_stein import james_stein
from numpy.typing import NDArray
from repeating import one_table
from tables import figure

from hieropo import FlatOPO, HierOPO, PooledOPO

Array = NDArray[np.float64]
Codes = NDArray[np.int64]

SEED = 20261129
OUT = Path(__file__).resolve().parents[1] / "docs" / "results" / "claims.md"
SHARES = np.array([0.4, 0.3, 0.2, 0.1])
PAID = 0.05  # share of rewards that are not 0, with "revenue"
CONTEXTS = 300  # fresh contexts of a task by which values are averaged
INTRODUCTION = """\
Claims and values of `HierOPO()` in worlds whose truth is known; the columns are explained at the head of
`experiments/claims.py`. The seed is {seed}. After ± stands one Monte Carlo standard error; "lead" is the value less the
best of the four others, with the standard error of that difference over paired runs.
"""


@dataclass(frozen=True)
class World:
    """The process that makes logs.

    Parameters
    ----------
    words : str
    tasks, rows : int
        ``rows`` a task, on average.
    action, level, interaction : float
        Standard deviations.
    columns : int
        Context columns besides the intercept.
    actions : int
    reward : {"normal", "t3", "skewed", "binary", "count", "noisy", "drift", "unequal", "loud", "revenue"}
        "noisy" has ten times the noise variance in one action, "unequal" variances of tasks that differ 100-fold, with
        logs uniform and a mean of 1; "loud" has 100 times the noise variance in 5 % of the tasks; "revenue"
        is 0 with probability .95, else lognormal with a log sd of 1.
    few : float
        Share of the tasks whose interaction is ten times as large, or (negative) whose interaction there is alone.
    unequal : bool
        Columns have standard deviations of coefficients from 1/20 to 1 times those named.
    runs : int
    """

    words: str
    tasks: int = 60
    rows: int = 25
    action: float = 0.2
    level: float = 0.5
    interaction: float = 0.3
    columns: int = 0
    actions: int = 4
    reward: str = "normal"
    few: float = 0.0
    correlation: float = 0.0
    unequal: bool = False
    runs: int = 200


WORLDS = {
    "model": World("drawn from the model"),
    "no effect": World("no effect of actions", action=0.0, interaction=0.0),
    "noisy": World("noise 10 x in one action", reward="noisy"),
    "alike": World("tasks nearly alike", interaction=0.1),
    "odd": World("5 % of tasks with 10 x effects, others nearly alike", interaction=0.1, few=0.05),
    "binary": World("binary, base rate .2", reward="binary"),
    "t3": World("t3 noise", reward="t3"),
    "skewed": World("skewed noise", reward="skewed"),
    "count": World("counts", reward="count"),
    "drift": World("rewards drift within tasks", reward="drift"),
    "many": World("500 tasks x 5 rows", tasks=500, rows=5, runs=100),
    "rich": World("60 tasks x 200 rows", rows=200),
    "two": World("two actions", actions=2),
    "sparse": World("90 % of tasks without any effect", action=0.0, interaction=0.6, few=-0.1),
    "contexts 1,000": World("contexts, 50 tasks, 5 actions, 1,000 rows", 50, 20, columns=7, actions=5, runs=60),
    "contexts 5,000": World("the same, 5,000 rows", 50, 100, columns=7, actions=5, runs=40),
    "unequal": World("contexts of unequal weight, 1,000 rows", 50, 20, columns=7, actions=5, unequal=True, runs=60),
    "contexts, none": World("contexts, no effect, 1,500 rows", 60, 25, 0.0, 0.5, 0.0, columns=3, runs=60),
    "correlated": World("contexts whose coefficients are correlated, .6", 60, 40, columns=4, correlation=0.6, runs=60),
    "unequal noise": World("noise variance 100-fold between tasks", reward="unequal"),
    "revenue": World("revenue: 95 % zeros, lognormal amounts", reward="revenue"),
    "contexts, unequal noise": World(
        "contexts, 1,000 rows, noise variance 100-fold between tasks", 50, 20, columns=7, actions=5, reward="unequal",
        runs=60,
    ),
    "contexts, loud tasks": World(
        "contexts, 1,000 rows, noise 10 x in 5 % of tasks", 50, 20, columns=7, actions=5, reward="loud", runs=60
    ),
    "contexts, loud tasks, none": World(
        "the same, no effect", 50, 20, 0.0, 0.5, 0.0, columns=7, actions=5, reward="loud", runs=60
    ),
    "contexts, counts": World("contexts, 1,000 rows, counts", 50, 20, columns=7, actions=5, reward="count", runs=40),
    "contexts, counts, none": World(
        "contexts, 1,000 rows, counts, no effect", 50, 20, 0.0, 0.5, 0.0, columns=7, actions=5, reward="count", runs=40
    ),
    "contexts, revenue": World(
        "contexts, 1,000 rows, revenue", 50, 20, columns=7, actions=5, reward="revenue", runs=40
    ),
    "contexts, revenue, none": World(
        "contexts, 1,000 rows, revenue, no effect", 50, 20, 0.0, 0.5, 0.0, columns=7, actions=5, reward="revenue",
        runs=40,
    ),
}  # fmt: skip
OTHERS = ("pooled", "separate", "one action", "James-Stein")


class Run(NamedTuple):
    """Gains over the incumbent of the default and of all others, and of the oracle; claims of the default."""

    gains: tuple[float, ...]
    best: float
    claimed: float
    held: bool
    permuted: bool
    no_effect: float
    harmed: int
    passed: int


@dataclass(frozen=True)
class Log:
    """A log with its truth: coefficients (m, K, p), shares of actions (K,), and how much each task counts (m,).

    ``noise_var`` (K,) are the noise variances of the actions where rewards are their means and normal noise.
    """

    theta: Array
    shares: Array
    weight: Array
    task: Codes
    action: Codes
    x: Array
    reward: Array
    link: str
    noise_var: Array

    def table(self, reward: Array | None = None) -> pa.Table:
        """Return the log, or the same with other rewards, as a learner reads it."""
        columns = {f"x{j}": self.x[:, j] for j in range(self.x.shape[1])}
        rewards = self.reward if reward is None else reward
        pscore = self.shares[self.action]
        return pa.table({"task": self.task, "action": self.action, "reward": rewards, "p": pscore, **columns})

    def means(self, x: Array, task: Codes) -> Array:
        """Expected rewards (n, K)."""
        phi = np.concatenate([np.ones((len(x), 1)), x], axis=1)
        return linked(np.einsum("np,nkp->nk", phi, self.theta[task]), self.link)


def linked(score: Array, link: str) -> Array:
    """Expected rewards of scores on the link scale."""
    if link == "binary":
        return np.asarray(1 / (1 + np.exp(1.4 - 1.5 * score)))
    if link == "revenue":
        return np.asarray(PAID * np.exp(score + 0.5))
    return np.asarray(np.exp(0.7 * score) if link == "count" else score)


def drawn(world: World, rng: np.random.Generator) -> Log:
    """Draw tasks and a log of them."""
    m, count, p = world.tasks, world.actions, 1 + world.columns
    shares = SHARES if count == 4 else np.full(count, 1 / count)
    size = np.geomspace(0.05, 1, p)[rng.permutation(p)] if world.unequal else np.ones(p)
    interaction = world.interaction * np.ones((m, 1, 1))
    if world.few > 0:
        interaction[rng.random(m) < world.few] *= 10
    elif world.few < 0:
        interaction[rng.random(m) > -world.few] = 0.0
    theta = world.action * rng.standard_normal((1, count, p)) + world.level * rng.standard_normal((m, 1, p))
    effects = rng.standard_normal((m, count, p))
    if world.correlation:
        effects = effects @ np.linalg.cholesky((1 - world.correlation) * np.eye(p) + world.correlation).T
    theta = (theta + interaction * effects) * size
    n = m * world.rows
    if world.columns:
        task = np.sort(rng.integers(0, m, n))
    else:
        task = np.repeat(np.arange(m), 2 + rng.multinomial(n - 2 * m, rng.dirichlet(np.full(m, 2.0))))
    action, x = rng.choice(count, n, p=shares), rng.standard_normal((n, world.columns))
    weight = np.bincount(task, minlength=m) / n
    log = Log(theta, shares, weight, task, action, x, np.zeros(n), world.reward, np.ones(count))
    mean = log.means(x, task)[np.arange(n), action]
    reward, noise_var = rewards(world, mean, action, task, rng)
    return replace(log, reward=reward, noise_var=noise_var)


def rewards(
    world: World, mean: Array, action: Codes, task: Codes, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Draw rewards around their means (n,); noise variances of the actions (K,)."""
    n, noise_var = mean.size, np.ones(world.actions)
    if world.reward in ("binary", "count", "revenue"):
        return of_mean(world.reward, mean, rng), noise_var
    noise = rng.standard_normal(n)
    if world.reward == "t3":
        noise = rng.standard_t(3, n) / np.sqrt(3)
    elif world.reward == "skewed":
        noise = rng.exponential(1.0, n) - 1.0
    elif world.reward == "noisy":
        noise_var[rng.integers(world.actions)] = 10.0
        noise = noise * np.sqrt(noise_var[action])
    elif world.reward == "unequal":
        variance = 100.0 ** rng.uniform(-0.5, 0.5, world.tasks) * np.log(100.0) / 9.9
        noise = noise * np.sqrt(variance)[task]
    elif world.reward == "loud":
        noise = noise * np.where(rng.random(world.tasks) < 0.05, 10.0, 1.0)[task]
    elif world.reward == "drift":
        first = np.searchsorted(task, task)
        noise = noise + 0.03 * (np.arange(n) - first)
    return np.asarray(mean + noise), noise_var


def of_mean(link: str, mean: Array, rng: np.random.Generator) -> Array:
    """Draw rewards whose law follows from their means (n,)."""
    if link == "binary":
        return (rng.random(mean.size) < mean).astype(np.float64)
    if link == "count":
        return rng.poisson(mean).astype(np.float64)
    amount = mean / PAID * rng.lognormal(-0.5, 1.0, mean.size)
    return np.where(rng.random(mean.size) < PAID, amount, 0.0)


def best_by_james_stein(log: Log) -> Codes:
    """Best action of each task, by James-Stein estimates without contexts."""
    means = james_stein(log.task, log.action, log.reward, log.theta.shape[:2])
    return np.asarray(means.argmax(axis=1))


def one_run(name: str, seed: int) -> Run:
    """Draw one log, learn from it, and judge by the truth."""
    world = WORLDS[name]
    rng = np.random.default_rng([SEED, list(WORLDS).index(name), seed])
    log = drawn(world, rng)
    roles = {"task": "task", "action": "action", "reward": "reward"}
    context = [f"x{j}" for j in range(world.columns)]
    m = world.tasks
    count = CONTEXTS if world.columns else 1
    task, x = np.repeat(np.arange(m), count), rng.standard_normal((m * count, world.columns))
    truth, weight = log.means(x, task), np.repeat(log.weight, count) / count
    incumbent, each = float(weight @ (truth @ log.shares)), np.arange(task.size)
    requests = pa.table({"task": task, **{f"x{j}": x[:, j] for j in range(world.columns)}})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learner = HierOPO(logging="random").fit(log.table(), **roles, context=context)
        chosen = [learner.predict(requests).astype(np.int64)]
        chosen += [
            make().fit(log.table(), **roles, context=context).predict(requests).astype(np.int64)
            for make in (PooledOPO, FlatOPO)
            if np.ptp(truth, axis=1).any()
        ] or chosen * 2  # without effects all gains are 0
        model = learner.evaluate(log.table(), propensities="none")
        permuted = permuted_within(log, rng)
        silent = HierOPO(logging="random").fit(log.table(permuted), **roles, context=context)
        nothing = silent.evaluate(log.table(permuted), propensities="none").model.difference
    totals, counts = (np.bincount(log.action, values, world.actions) for values in (log.reward, None))
    chosen.append(np.full(task.size, int((totals / np.maximum(counts, 1)).argmax())))
    chosen.append(chosen[-1] if world.columns else best_by_james_stein(log)[task])
    gains = tuple(float(weight @ truth[each, codes]) - incumbent for codes in chosen)
    claim = model.model.difference
    tasks = np.bincount(task, weight * (truth[each, chosen[0]] - truth @ log.shares), m)
    passed = model.passed & model.changed
    order = np.asarray(model.keys.locate(np.arange(m)))
    passed = passed[order[order >= 0]]
    return Run(
        gains, float(weight @ truth.max(axis=1)) - incumbent, claim.mean,
        claim.low - 1e-12 <= gains[0] <= claim.high + 1e-12, nothing.low > 0 or nothing.high < 0,
        learner.hierarchy_.no_effect, int((tasks[passed] < -1e-12).sum()), int(passed.sum()),
    )  # fmt: skip


def permuted_within(log: Log, rng: np.random.Generator) -> Array:
    """Rewards permuted among the rows of each task, so that actions have no effect."""
    order = np.lexsort((rng.random(log.task.size), log.task))
    reward = np.empty_like(log.reward)
    reward[np.argsort(log.task, kind="stable")] = log.reward[order]
    return reward


def row(name: str, runs: list[Run]) -> dict[str, str]:
    """Figures of a world by the names of their columns."""
    gains, best = np.array([run.gains for run in runs]), np.array([run.best for run in runs])
    whole = best.sum()
    effect = whole > 1e-9
    rival = 1 + int(gains[:, 1:].sum(axis=0).argmax())
    difference = 100 * (gains[:, 0] - gains[:, rival]) / best.mean() if effect else np.zeros(len(runs))
    claimed = np.array([run.claimed for run in runs])
    ratio = claimed.sum() / gains[:, 0].sum() if effect else np.nan
    away = claimed - ratio * gains[:, 0] if effect else claimed
    error = away.std(ddof=1) * np.sqrt(len(runs)) / (gains[:, 0].sum() if effect else len(runs))
    harmed, passed = sum(run.harmed for run in runs), sum(run.passed for run in runs)
    return {
        "world": WORLDS[name].words,
        "runs": str(len(runs)),
        "value, %": f"{100 * gains[:, 0].sum() / whole:.1f}" if effect else "",
        **{
            other: f"{100 * gains[:, k].sum() / whole:.1f}" if effect else ""
            for k, other in enumerate(OTHERS, 1)
        },
        "lead": figure(difference.mean(), difference.std(ddof=1) / np.sqrt(len(runs)), 1) if effect else "",
        "claimed / true": figure(ratio, error, 2) if effect else f"{claimed.mean():.4f} claimed",
        "holds, %": share([run.held for run in runs]),
        "claims, permuted, %": share([run.permuted for run in runs]),
        "harmed, %": f"{100 * harmed / passed:.1f}" if passed else "",
        "P(no effect)": f"{np.mean([run.no_effect for run in runs]):.2f}",
    }


class Judged(NamedTuple):
    """Gain of a policy, the claim of it, and the tasks that changes harm among those that pass.

    ``change`` (m, K) are the shares of the actions in each task less those of the incumbent, ``passes`` (m,) the
    changed tasks that the gate lets through.
    """

    gain: float
    claimed: float
    held: bool
    harmed: int
    passed: int
    change: Array
    passes: NDArray[np.bool_]


def judged(
    learner: HierOPO, log: Log, truth: Array, at: tuple[Array, Codes] | None = None, **options: Any
) -> Judged:
    """Judge a policy by the true mean rewards (n, K) at some contexts (n, columns) of tasks (n,), as many of each task.

    Default is a policy without contexts, and one entry for each task. ``options`` are those of the evaluation.
    """
    m = len(log.theta)
    x, task = (np.zeros((m, 0)), np.arange(m)) if at is None else at
    requests = pa.table({"task": task, **{f"x{j}": x[:, j] for j in range(x.shape[1])}})
    chosen = learner.predict(requests).astype(np.int64)
    evaluation = learner.evaluate(log.table(), propensities="none", **options)
    weight = log.weight[task] * m / task.size
    gains = np.bincount(task, weight * (truth[np.arange(task.size), chosen] - truth @ log.shares), m)
    claim, passed = evaluation.model.difference, evaluation.passed & evaluation.changed
    passed = passed[np.asarray(evaluation.keys.locate(np.arange(m)))]
    gain = float(gains.sum())
    held = claim.low - 1e-12 <= gain <= claim.high + 1e-12
    change = np.zeros((m, len(log.shares)))
    np.add.at(change, (task, chosen), m / task.size)
    change -= log.shares
    return Judged(
        gain, claim.mean, held, int((gains[passed] < -1e-12).sum()), int(passed.sum()), change, passed
    )


def share(held: list[bool]) -> str:
    """Percentage with its standard error."""
    value = float(np.mean(held))
    return figure(100 * value, 100 * float(np.sqrt(value * (1 - value) / len(held))), 0)


def main() -> None:
    """Make all runs and write the table."""
    head = ["# Claims and gains of the default learner", INTRODUCTION.format(seed=SEED)]
    one_table(__doc__, OUT, one_run, {name: world.runs for name, world in WORLDS.items()}, row, head)


if __name__ == "__main__":
    main()
