"""Claims of the default where coefficients drift in time, beside `HierOPO(drift=None)`, which takes them as constant.

    python experiments/drift.py                # writes docs/results/drift.md; about eight minutes of CPU time
    python experiments/drift.py --share 0.05 --out /tmp/drift.md

A log has 60 tasks with 100 rows on average (numbers uneven, as in `experiments/claims.py`) at times uniform in [0, 1],
actions drawn with shares .4, .3, .2, .1, and noise of sd 1. Effects of actions, levels and interactions have the sds
.2, .5 and .3 at time 0. The parts that the name of a world lists follow random walks of 50 steps; the number is the sd
of their change over the log. Visits are five rows of a task at one time, of one action or of an action each, that share
half of their noise variance; no column names them. A trend adds to all rewards. Policies act at the end of the log:
their gains over the incumbent are those of the coefficients of the last step, each task weighted by its rows. Both
settings learn from the same logs.

Value is the true gain in % of the oracle's gain over the incumbent, over all logs of a world together. "claimed / true"
is the model's gain over the true gain, both summed over logs. "holds" is the share of logs in which the 95 % interval
of the gain of all tasks together covers the truth; "tasks" is the share of tasks in which the 95 % interval of the gain
of the task covers the truth. "harmed" is, of the changed tasks that the 5 % gate lets through, the share in which the
policy is truly worse. "found" is the share of logs in which drift of interactions, of levels, or of actions in all
tasks alike, is detected: its Bayes factor is above 10. "averaged" is the share of logs in which the model averages
over a walk and none: a Bayes factor between 1 and 10. "alike" is the share in which rows of one period have something
in common beside any walk. A seed gives the same figures with any number of processes.
"""

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import pyarrow as pa
from claims import SHARES, share
from numpy.typing import NDArray
from repeating import one_table
from tables import figure

from hieropo import HierOPO

Array = NDArray[np.float64]
SEED = 20261201
OUT = Path(__file__).resolve().parents[1] / "docs" / "results" / "drift.md"
RUNS = 40
STEPS = 50
INTRODUCTION = """\
The default, `drift="auto"`, beside `drift=None` on the same logs with a column of times; the columns are explained at
the head of `experiments/drift.py`. The seed is {seed}. After ± stands one Monte Carlo standard error.
"""


@dataclass(frozen=True)
class World:
    """The process that makes logs: sds of the changes over the log.

    Parameters
    ----------
    words : str
    interactions, levels, actions : float
        Walks of each task and action, of each task, and of each action in all tasks alike.
    jump : float
        Interactions change once, at a time of the task in (.25, .75), by this sd.
    stationary : bool
        Interactions keep their sd of .3, and their correlation with those of the end halves in .35 of the log.
    noise : tuple of float
        Sds in the first and in the second half.
    turned : bool
        Shares of the incumbent are turned round in the second half; gains are over the mean of both.
    rows, columns : int
        Of a task; context columns N(0, 1) besides the intercept.
    visits : {"", "of one action", "of any action"}
        Rows come in visits of five.
    trend : float
        Change of all rewards over the log.
    """

    words: str
    interactions: float = 0.0
    levels: float = 0.0
    actions: float = 0.0
    jump: float = 0.0
    stationary: bool = False
    noise: tuple[float, float] = (1.0, 1.0)
    turned: bool = False
    rows: int = 100
    columns: int = 0
    visits: str = ""
    trend: float = 0.0


VISIT = 5  # rows
WORLDS = {
    "none": World("nothing moves"),
    "interactions": World("interactions walk, .6", interactions=0.6),
    "slow": World("interactions walk, .3", interactions=0.3),
    "few": World("interactions walk, .6, 25 rows a task", interactions=0.6, rows=25),
    "stationary": World("interactions forget, half in .35 of the log", stationary=True),
    "jump": World("interactions jump once, .6", jump=0.6),
    "levels": World("levels walk, .6", levels=0.6),
    "turned": World("levels walk, .6, and the incumbent turns its shares round", levels=0.6, turned=True),
    "both": World("interactions and levels walk, .6 each", interactions=0.6, levels=0.6),
    "alike": World("actions walk in all tasks alike, .3", actions=0.3),
    "noise": World("nothing moves, noise sd .5, then 1.5", noise=(0.5, 1.5)),
    "contexts": World("two contexts, interactions walk, .4", interactions=0.4, columns=2),
    "visits": World("nothing moves, visits of one action", visits="of one action"),
    "mixed": World("nothing moves, visits of any action", visits="of any action"),
    "both visits": World(
        "interactions walk, .6, visits of one action", interactions=0.6, visits="of one action"
    ),
    "trend": World("nothing but a trend of all rewards, 1", trend=1.0),
}


class Fit(NamedTuple):
    """Gain of a policy and the claim of it, by one setting."""

    gain: float
    claimed: float
    held: bool
    tasks: float
    harmed: int
    passed: int
    found: tuple[bool, bool, bool]
    averaged: bool
    alike: bool


class Run(NamedTuple):
    """Both settings on one log, and the gain of the oracle."""

    none: Fit
    auto: Fit
    best: float


class Log(NamedTuple):
    """A log, and coefficients (m, K, p) at its end."""

    table: pa.Table
    theta: Array
    weight: Array
    shares: Array


def drawn(world: World, rng: np.random.Generator) -> Log:
    """Draw tasks, their paths and a log of them."""
    m, count, p, n = 60, 4, 1 + world.columns, 60 * world.rows
    normal, step = rng.standard_normal, STEPS**-0.5
    base = 0.2 * normal((1, count, p)) + 0.5 * normal((m, 1, p))
    interaction = np.repeat(0.3 * normal((1, m, count, p)), STEPS, axis=0)
    if world.stationary:
        kept = 0.5 ** (1 / (0.35 * STEPS))
        for t in range(1, STEPS):
            new = 0.3 * np.sqrt(1 - kept**2) * normal((m, count, p))
            interaction[t] = kept * interaction[t - 1] + new
    jumped = np.arange(STEPS)[:, None] >= rng.integers(STEPS // 4, 3 * STEPS // 4, m)
    interaction = interaction + jumped[..., None, None] * world.jump * normal((m, count, p))
    walks = (
        (world.interactions, (STEPS, m, count, p)),
        (world.levels, (STEPS, m, 1, p)),
        (world.actions, (STEPS, 1, count, p)),
    )
    path = base + interaction + sum(np.cumsum(sd * step * normal(shape), axis=0) for sd, shape in walks)
    task = np.repeat(np.arange(m), 2 + rng.multinomial(n - 2 * m, rng.dirichlet(np.full(m, 2.0))))
    time = rng.random(n)
    late = (time > 0.5).astype(np.int64)
    drawn_shares = np.stack([SHARES, SHARES[::-1] if world.turned else SHARES])
    action = (rng.random(n)[:, None] > np.cumsum(drawn_shares, axis=1)[late, :-1]).sum(axis=1)
    x, noise = normal((n, world.columns)), normal(n)
    if world.visits:
        _, visit = np.unique(np.stack([task, ranks(task) // VISIT]), axis=1, return_inverse=True)
        visit, first = np.ravel(visit), np.unique(visit, return_index=True)[1]
        time, noise = time[first][visit], (normal(first.size)[visit] + noise) / np.sqrt(2)
        action = action[first][visit] if world.visits == "of one action" else action
    theta = path[np.minimum((time * STEPS).astype(np.int64), STEPS - 1), task, action]
    mean = (np.concatenate([np.ones((n, 1)), x], axis=1) * theta).sum(axis=1)
    reward = mean + world.trend * time + np.array(world.noise)[late] * noise
    columns = {f"x{j}": x[:, j] for j in range(world.columns)}
    table = pa.table({"task": task, "action": action, "reward": reward, "time": time, **columns})
    return Log(table, path[-1], np.bincount(task, minlength=m) / n, drawn_shares.mean(axis=0))


def ranks(task: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number the rows of each of the sorted tasks from 0."""
    return np.arange(task.size) - np.searchsorted(task, task)


def one_fit(world: World, log: Log, x: Array, drift: Any) -> Fit:
    """Learn from one log, and judge by the truth in contexts x (m, c) of its tasks."""
    roles = {"task": "task", "action": "action", "reward": "reward", "time": "time"}
    m, count = log.theta.shape[:2]
    names, tasks = [f"x{j}" for j in range(world.columns)], np.arange(m)
    phi = np.concatenate([np.ones((m, 1)), x], axis=1)
    learner = HierOPO(logging="random", drift=drift).fit(log.table, **roles, context=names)
    columns = {name: x[:, j] for j, name in enumerate(names)}
    chosen = learner.predict(pa.table({"task": tasks, **columns})).astype(np.int64)
    truth = np.einsum("mp,mkp->mk", phi, log.theta)
    gains = truth[tasks, chosen] - truth @ log.shares
    held, mean = np.zeros(m, dtype=bool), np.zeros(m)
    for s in tasks.tolist():
        law = learner.posterior_.task(s)
        one = np.kron(np.eye(count)[chosen[s]] - log.shares, phi[s])
        mean[s], sd = one @ law.mean, np.sqrt(max(one @ law.cov @ one, 0.0))
        held[s] = abs(gains[s] - mean[s]) <= 1.96 * sd + 1e-12
    gain, claimed, fleet, harmed, passed = float(log.weight @ gains), float(log.weight @ mean), False, 0, 0
    if not world.columns:  # else the log's contexts, not these, are evaluated
        evaluation = learner.evaluate(log.table, propensities="none", time=False)
        claim, through = evaluation.model.difference, evaluation.passed & evaluation.changed
        through = through[np.asarray(evaluation.keys.locate(tasks))]
        fleet = claim.low - 1e-12 <= gain <= claim.high + 1e-12
        harmed, passed = int((gains[through] < -1e-12).sum()), int(through.sum())
    drift_found, averaged = found_walks(learner.drift_)
    alike = learner.drift_ is not None and any(learner.drift_.in_common)
    return Fit(
        gain, claimed, fleet, float(held.mean()), harmed, passed, drift_found, averaged=averaged, alike=alike
    )


def found_walks(drift: Any) -> tuple[tuple[bool, bool, bool], bool]:
    """Return which walks are clear: of interactions, levels and actions; and whether another is averaged over."""
    if drift is None:
        return (False, False, False), False
    rates = drift.kappa, drift.eta, drift.zeta
    odds = drift.log_odds, drift.level_log_odds, drift.action_log_odds
    clear = tuple(rate > 0 and one > np.log(10) for rate, one in zip(rates, odds, strict=True))
    return (clear[0], clear[1], clear[2]), any(
        rate > 0 and not one for rate, one in zip(rates, clear, strict=True)
    )


def one_run(name: str, seed: int) -> Run:
    """Draw one log, and learn from it with both settings."""
    world = WORLDS[name]
    rng = np.random.default_rng([SEED, list(WORLDS).index(name), seed])
    log = drawn(world, rng)
    x = rng.standard_normal((len(log.theta), world.columns))
    truth = np.einsum("mp,mkp->mk", np.concatenate([np.ones((len(x), 1)), x], axis=1), log.theta)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        none, auto = (one_fit(world, log, x, drift) for drift in (None, "auto"))
    return Run(none, auto, float(log.weight @ (truth.max(axis=1) - truth @ log.shares)))


def row(name: str, runs: list[Run]) -> dict[str, str]:
    """Figures of a world by the names of their columns."""
    best = np.array([run.best for run in runs])
    lead = 100 * np.array([run.auto.gain - run.none.gain for run in runs]) / best.mean()
    of_interactions, of_levels, of_actions = (share([run.auto.found[k] for run in runs]) for k in (0, 1, 2))
    figures = {
        "world": WORLDS[name].words,
        "logs": str(len(runs)),
        "found: interactions, %": of_interactions,
        "found: levels, %": of_levels,
        "found: actions, %": of_actions,
        "averaged, %": share([run.auto.averaged for run in runs]),
        "alike, %": share([run.auto.alike for run in runs]),
    }
    for words, fits in (("None", [run.none for run in runs]), ("auto", [run.auto for run in runs])):
        gains, claimed = np.array([fit.gain for fit in fits]), np.array([fit.claimed for fit in fits])
        tasks = 100 * np.array([fit.tasks for fit in fits])
        harmed, passed = sum(fit.harmed for fit in fits), sum(fit.passed for fit in fits)
        figures |= {
            f"value, {words}": f"{100 * gains.sum() / best.sum():.1f}",
            f"claimed / true, {words}": f"{claimed.sum() / gains.sum():.2f}",
            f"holds, %, {words}": "" if WORLDS[name].columns else share([fit.held for fit in fits]),
            f"tasks, %, {words}": figure(tasks.mean(), tasks.std(ddof=1) / np.sqrt(len(runs)), 1),
            f"harmed, %, {words}": f"{100 * harmed / passed:.1f}" if passed else "",
        }
    figures["auto less None"] = figure(lead.mean(), lead.std(ddof=1) / np.sqrt(len(runs)), 1)
    return figures


def main() -> None:
    """Make all runs and write the table."""
    head = ["# Coefficients that drift in time", INTRODUCTION.format(seed=SEED)]
    one_table(__doc__, OUT, one_run, dict.fromkeys(WORLDS, RUNS), row, head)


if __name__ == "__main__":
    main()
