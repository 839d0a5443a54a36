"""Claims, values and off-policy intervals where rows of a cluster share a cause, with and without naming the cluster.

    python experiments/clusters.py                # writes docs/results/clusters.md; about an hour on two processors
    python experiments/clusters.py --share 0.1 --out /tmp/clusters.md

A log has tasks with sessions of equal size. Rewards have the noise variance 1 around mean + effect of the action +
level of the task + their interaction, with standard deviations .2, .5 and .3; each session shares the named part of
the noise variance. Actions have the shares .4, .3, .2 and .1, and are drawn once for each session, or for each row.
Where sessions are days, all tasks have the same days, and a day shifts all of its rows alike.

Columns without a prefix are of fits without ``cluster=``; those with "cluster:" of fits with it. "value" is the share
of the way from the incumbent, the logging policy, to the best action in every task, over all runs together. "claimed
/ true" is the model's gain over the incumbent divided by the true one. "holds" is the share of runs in which the
model's 95 % interval of the gain contains the true gain; "DR holds" that of the cross-fitted doubly robust estimate,
which averages the policies of the folds, against the true gain of the policy of all rows. "claims" is the share of
runs in which the lower end of the model's interval is above 0; in the world without effects it is the rate of false
claims. "harmed": of the tasks in which the policy changes the action and P(gain < 0) is at most 5 %, the share with a
true gain below 0. "lead" is the value with ``cluster=`` less that without, in points, paired over runs. "rho" is the
mean correlation that was learned; 0 is right where each row has its own action. Columns with "known:" are of the
Bayes rule, to which all standard deviations, the noise and the shared part are given, by dense algebra over sessions:
no learner has a higher value on average over logs. A seed gives the same figures with any number of processes.
"""

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import pyarrow as pa
from repeating import one_table
from scipy.stats import norm
from tables import figure

from hieropo import HierOPO

SEED = 20261130
OUT = Path(__file__).resolve().parents[1] / "docs" / "results" / "clusters.md"
SHARES = np.array([0.4, 0.3, 0.2, 0.1])
INTRODUCTION = """\
`HierOPO()` on logs whose rows form clusters, with `cluster=` and without; the columns are explained at the head of
`experiments/clusters.py`: those with "cluster:" are of fits with `cluster=`, those with "known:" of the Bayes rule that
knows all variances, "lead" is the value with `cluster=` less that without, in points, and without effects the claimed
gain stands in place of the ratio, as the true gain is 0. 200 runs a world (100 of classes) are one whole run of the
program; the command below says how large a share of them was made. The seed is {seed}. After ± stands one Monte Carlo
standard error.
"""


@dataclass(frozen=True)
class World:
    """The process that makes logs: ``sessions`` of ``size`` rows a task, which share a part of the noise variance."""

    words: str
    tasks: int = 60
    sessions: int = 5
    size: int = 5
    shared: float = 0.5
    effect: float = 1.0
    by_row: bool = False
    days: bool = False
    runs: int = 200


WORLDS = {
    "sessions": World("sessions of 5 rows, one action each, half of the variance shared"),
    "classes": World("classes of 20 rows, one action each, a fifth shared", sessions=6, size=20, shared=0.2, runs=100),
    "small": World("sessions of 2 rows, one action each, .7 shared", sessions=12, size=2, shared=0.7),
    "none": World("sessions of 5 rows, nothing shared", shared=0.0),
    "no effect": World("no effect of actions, half shared", effect=0.0),
    "rows": World("sessions of 5 rows, an action for each row, half shared", by_row=True),
    "days": World("25 days that all tasks have, an action for each row, .3 shared", sessions=25, size=1, shared=0.3,
                  by_row=True, days=True),
}  # fmt: skip


class Figures(NamedTuple):
    """Figures of one way to learn from one log."""

    gain: float
    claimed: float
    held: bool
    above: bool
    weighted: bool
    weighted_error: float
    harmed: int
    passed: int
    correlation: float


class Known(NamedTuple):
    """Figures of the Bayes rule that knows all variances."""

    gain: float
    claimed: float
    held: bool
    harmed: int
    passed: int


class Run(NamedTuple):
    """The oracle's gain, the figures without and with the cluster named, and those of the Bayes rule."""

    best: float
    rows: Figures
    clusters: Figures
    known: Known


def one_run(name: str, seed: int) -> Run:
    """Draw one log, learn from it in both ways, and judge by the truth."""
    world = WORLDS[name]
    rng = np.random.default_rng([SEED, list(WORLDS).index(name), seed])
    m, each = world.tasks, world.sessions * world.size
    theta = 0.5 * rng.standard_normal((m, 1)) + world.effect * (
        0.2 * rng.standard_normal((1, 4)) + 0.3 * rng.standard_normal((m, 4))
    )
    task = np.repeat(np.arange(m), each)
    session = np.tile(np.repeat(np.arange(world.sessions), world.size), m)
    if not world.days:
        session = session + world.sessions * task
    count = int(session.max()) + 1
    action = rng.choice(4, task.size, p=SHARES) if world.by_row else rng.choice(4, count, p=SHARES)[session]
    noise = np.sqrt(world.shared) * rng.standard_normal(count)[session]
    reward = theta[task, action] + noise + np.sqrt(1.0 - world.shared) * rng.standard_normal(task.size)
    log = pa.table(
        {"task": task, "action": action, "reward": reward, "session": session, "p": SHARES[action]}
    )
    best = float((theta.max(axis=1) - theta @ SHARES).mean())
    ways = figures(log, theta, None), figures(log, theta, "session")
    return Run(best, *ways, known_figures(world, theta, task, action, session, reward))


def known_figures(
    world: World,
    theta: np.ndarray,
    task: np.ndarray,
    action: np.ndarray,
    session: np.ndarray,
    reward: np.ndarray,
) -> Known:
    """Condition theta ~ N(0, P) on the mean rewards of each action of a session, of covariance V, known as P is."""
    m, count = theta.shape
    sds = world.effect * 0.2, 0.5, world.effect * 0.3
    everywhere, one = np.ones((m, m)), np.ones((count, count))
    prior = sds[0] ** 2 * np.kron(everywhere, np.eye(count)) + sds[1] ** 2 * np.kron(np.eye(m), one)
    prior += sds[2] ** 2 * np.eye(m * count)
    unit = task * count + action
    pairs, of_row = np.unique(np.column_stack([unit, session]), axis=0, return_inverse=True)
    rows = np.bincount(of_row.ravel())
    means = np.bincount(of_row.ravel(), reward) / rows
    of_pair = pairs[:, 0]
    noise = world.shared * (pairs[:, 1, None] == pairs[:, 1]) + np.diag((1.0 - world.shared) / rows)
    weights = np.linalg.solve(prior[np.ix_(of_pair, of_pair)] + noise, prior[of_pair])
    mean, cov = means @ weights, prior - prior[:, of_pair] @ weights
    chosen = mean.reshape(m, count).argmax(axis=1)
    logged = np.bincount(unit, minlength=m * count).reshape(m, count) / np.bincount(task)[:, None]
    delta = np.zeros((m, m, count))
    delta[np.arange(m), np.arange(m)] = np.eye(count)[chosen] - logged
    delta = delta.reshape(m, m * count)
    gains, all_tasks = theta[np.arange(m), chosen] - theta @ SHARES, delta.mean(axis=0)
    claimed, sd = float(all_tasks @ mean), float(np.sqrt(max(all_tasks @ cov @ all_tasks, 0.0)))
    sds_of_tasks = np.sqrt(np.maximum(np.einsum("si,ij,sj->s", delta, cov, delta), 1e-300))
    changed = np.abs(delta).max(axis=1) > 0
    passed = changed & (norm.cdf(-(delta @ mean) / sds_of_tasks) <= 0.05)
    gain = float(gains.mean())
    held = abs(gain - claimed) <= norm.ppf(0.975) * sd + 1e-12
    return Known(gain, claimed, bool(held), int((gains[passed] < -1e-12).sum()), int(passed.sum()))


def figures(log: pa.Table, theta: np.ndarray, cluster: str | None) -> Figures:
    """Learn and evaluate."""
    m = len(theta)
    roles = {"task": "task", "action": "action", "reward": "reward", "pscore": "p", "cluster": cluster}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learner = HierOPO(logging="random").fit(log, **roles)
        chosen = learner.predict(pa.table({"task": np.arange(m)})).astype(np.int64)
        evaluation = learner.evaluate(log, compare=False)
    gains = theta[np.arange(m), chosen] - theta @ SHARES
    gain, claim, weighted = float(gains.mean()), evaluation.model.difference, evaluation.estimate("DR")
    passed = (evaluation.passed & evaluation.changed)[np.asarray(evaluation.keys.locate(np.arange(m)))]
    rho = learner.cluster_correlation_
    return Figures(
        gain, float(claim.mean), bool(claim.low - 1e-12 <= gain <= claim.high + 1e-12), bool(claim.low > 0),
        bool(weighted.gain_low <= gain <= weighted.gain_high), float(weighted.gain - gain),
        int((gains[passed] < -1e-12).sum()), int(passed.sum()), 0.0 if rho is None else float(rho.mean()),
    )  # fmt: skip


def row(name: str, runs: list[Run]) -> dict[str, str]:
    """Figures of a world by the names of their columns."""
    cells = {"world": WORLDS[name].words, "runs": str(len(runs))}
    ways = {"": [run.rows for run in runs], "cluster: ": [run.clusters for run in runs]}
    best = sum(run.best for run in runs)
    difference = np.array([100 * (run.clusters.gain - run.rows.gain) * len(runs) / best for run in runs])
    for label, some in ways.items():
        gains, claimed = np.array([each.gain for each in some]), np.array([each.claimed for each in some])
        passed = sum(each.passed for each in some)
        if WORLDS[name].effect:
            ratio = claimed.sum() / gains.sum()
            error = (claimed - ratio * gains).std(ddof=1) * np.sqrt(len(runs)) / gains.sum()
            cells[f"{label}value, %"] = f"{100 * gains.sum() / best:.1f}"
            cells[f"{label}claimed / true"] = figure(ratio, error, 2)
        else:
            cells[f"{label}value, %"] = ""
            cells[f"{label}claimed / true"] = f"{claimed.mean():.3f} claimed"
        cells[f"{label}holds, %"] = share([each.held for each in some])
        cells[f"{label}claims, %"] = share([each.above for each in some])
        cells[f"{label}DR holds, %"] = share([each.weighted for each in some])
        cells[f"{label}harmed, %"] = (
            f"{100 * sum(each.harmed for each in some) / passed:.1f}" if passed else ""
        )
    cells["lead"] = figure(difference.mean(), difference.std(ddof=1) / np.sqrt(len(runs)), 1)
    if not WORLDS[name].effect:
        cells["lead"] = ""
    known = [run.known for run in runs]
    gained = sum(one.gain for one in known)
    for name_of_cell, value in (
        ("value, %", 100 * gained / best),
        ("claimed / true", sum(one.claimed for one in known) / gained if gained else 0.0),
        ("harmed, %", 100 * sum(one.harmed for one in known) / max(sum(one.passed for one in known), 1)),
    ):
        digits = 2 if "claimed" in name_of_cell else 1
        cells[f"known: {name_of_cell}"] = f"{value:.{digits}f}" if WORLDS[name].effect else ""
    cells["known: holds, %"] = share([one.held for one in known])
    cells["rho"] = f"{np.mean([run.clusters.correlation for run in runs]):.2f}"
    return cells


def share(held: list[bool]) -> str:
    """Percentage with its standard error."""
    value = float(np.mean(held))
    return figure(100 * value, 100 * float(np.sqrt(value * (1 - value) / len(held))), 0)


def main() -> None:
    """Make all runs and write the table."""
    head = ["# Rows that form clusters", INTRODUCTION.format(seed=SEED)]
    one_table(__doc__, OUT, one_run, {name: world.runs for name, world in WORLDS.items()}, row, head)


if __name__ == "__main__":
    main()
