"""Logs of incumbents that knew something, and of which nobody says so: the default beside the two that are told.

    python experiments/knowing.py                # writes docs/results/knowing.md; half an hour on two processors
    python experiments/knowing.py --share 0.05 --out /tmp/knowing.md

60 tasks of 25 rows and four actions, as in ``experiments/claims.py``: level .5, effect of an action .2, interaction .3,
noise sd 1; with contexts, an intercept and two columns have a coefficient for each. Rows come in the order of a column
of times. The incumbent takes an action with probability proportional to

- "knew b": exp(b x' theta_sa), so that it knows the tasks;
- "habits": shares of each task that have nothing to do with rewards;
- "alike": the same in all tasks;
- "learned": the action of the largest draw around its own means of the task's earlier rows (Thompson sampling).

Values are the share of the way from the incumbent to the oracle, of the policies of ``HierOPO(logging=...)``: "random"
(takes actions as chosen without knowledge), "unknown" (the default) and "frozen" (takes them as evidence). "used" is
how often the default took them as evidence. claimed / true and "holds" are of the default: the model's gain over the
incumbent in the log's own rows, and how often its 95 % interval holds the truth. A seed gives the same figures with any
number of processes.
"""

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import pyarrow as pa
from claims import share
from incumbent_knows import softmax
from numpy.typing import NDArray
from repeating import one_table
from tables import figure

from hieropo import HierOPO

Array = NDArray[np.float64]
SEED = 20261129
OUT = Path(__file__).resolve().parents[1] / "docs" / "results" / "knowing.md"
TASKS, ROWS, ACTIONS, CONTEXTS = 60, 25, 4, 100
RULES = ("random", "unknown", "frozen")
INTRODUCTION = """\
The incumbent's actions depend on the true rewards, and `logging` is not given: it takes an action with probability
proportional to exp(b times its expected reward). "random", "unknown" (the default) and "frozen" are the values of
`HierOPO(logging=...)`, in percent of the way from the incumbent to the oracle; "lead" is that of the default less that
of "random". "used" is how often the default took the shares of actions as evidence; "claimed / true" and "holds" are
its claimed gain and the coverage of its 95 % interval. `experiments/knowing.py` says more. The seed is {seed}. After ±
stands one Monte Carlo standard error.
"""


@dataclass(frozen=True)
class World:
    """The incumbent, and the number of context columns."""

    words: str
    incumbent: str
    strength: float = 0.0
    columns: int = 0
    runs: int = 40


WORLDS = {
    "knew 0.5": World("knew, b = .5", "knew", 0.5),
    "knew 2": World("knew, b = 2", "knew", 2.0),
    "knew 5": World("knew, b = 5", "knew", 5.0),
    "contexts, knew 2": World("two contexts, knew, b = 2", "knew", 2.0, 2),
    "habits": World("habits of each task, without knowledge", "habits", 1.0),
    "alike": World("the same shares in all tasks", "alike"),
    "contexts, alike": World("two contexts, the same shares", "alike", columns=2),
    "learned": World("learned from these rows", "learned"),
}


class Run(NamedTuple):
    """Gains of the three rules over the incumbent, the oracle's, the default's claim, if it holds, and if it used."""

    gains: tuple[float, float, float]
    best: float
    claimed: float
    held: bool
    used: bool


def drawn(world: World, rng: np.random.Generator) -> tuple[pa.Table, Array, Array]:
    """Return a log in the order of time, theta (m, K, p) and the incumbent's chances in its rows (n, K)."""
    p = 1 + world.columns
    theta = 0.2 * rng.standard_normal((1, ACTIONS, p)) + 0.5 * rng.standard_normal((TASKS, 1, p))
    theta = theta + 0.3 * rng.standard_normal((TASKS, ACTIONS, p))
    habits = world.strength * rng.standard_normal((TASKS, ACTIONS))
    sums, rows, parts, tasks = np.zeros((TASKS, ACTIONS)), np.zeros((TASKS, ACTIONS)), [], np.arange(TASKS)
    for _ in range(ROWS):
        x = np.concatenate([np.ones((TASKS, 1)), rng.standard_normal((TASKS, world.columns))], axis=1)
        means = np.einsum("mkp,mp->mk", theta, x)
        scores = {"knew": world.strength * means, "habits": habits}.get(world.incumbent, np.zeros_like(means))
        chance = softmax(scores)
        action = (rng.random((TASKS, 1)) > chance.cumsum(axis=1)).sum(axis=1).clip(0, ACTIONS - 1)
        if world.incumbent == "learned":
            action = (sums / (rows + 1) + rng.standard_normal(rows.shape) / np.sqrt(rows + 1)).argmax(axis=1)
            chance = np.eye(ACTIONS)[action]
        reward = means[tasks, action] + rng.standard_normal(TASKS)
        sums[tasks, action] += reward
        rows[tasks, action] += 1
        parts.append((tasks, action, reward, x[:, 1:], chance))
    task, action, reward, x, chance = (np.concatenate(part) for part in zip(*parts, strict=True))
    contexts = {f"x{j}": x[:, j] for j in range(world.columns)}
    log = pa.table({"task": task, "action": action, "reward": reward, "at": np.arange(task.size), **contexts})
    return log, theta, chance


def one_run(name: str, seed: int) -> Run:
    """Draw one log, learn by the three rules, and judge by the truth in the contexts of the log."""
    world = WORLDS[name]
    log, theta, chance = drawn(world, np.random.default_rng([SEED, list(WORLDS).index(name), seed]))
    context = [f"x{j}" for j in range(world.columns)]
    columns = {"task": "task", "action": "action", "reward": "reward", "time": "at", "context": context}
    x = np.column_stack([np.ones(len(log)), *(log[column].to_numpy() for column in context)])
    means = np.einsum("nkp,np->nk", theta[log["task"].to_numpy()], x)
    incumbent, rows = float((chance * means).sum(axis=1).mean()), np.arange(len(log))
    gains, default = [], None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for rule in RULES:
            learner = HierOPO(logging=rule).fit(log, **columns)  # type: ignore[arg-type]
            chosen = learner.predict(log).astype(np.int64)
            gains.append(float(means[rows, chosen].mean()) - incumbent)
            default = learner if rule == "unknown" else default
        assert default is not None
        claim = default.evaluate(log, propensities="none", randomise=False).model.difference
    taken = means[rows, log["action"].to_numpy()].mean()
    truth = gains[1] + incumbent - float(taken)  # the claim is over what was taken in these rows
    return Run(
        (gains[0], gains[1], gains[2]), float(means.max(axis=1).mean()) - incumbent, claim.mean - truth + gains[1],
        claim.low <= truth <= claim.high, default.logging_ == "frozen",
    )  # fmt: skip


def row(name: str, runs: list[Run]) -> dict[str, str]:
    """Figures of a world by the names of their columns."""
    gains, best = np.array([run.gains for run in runs]), np.array([run.best for run in runs])
    values, claimed = 100 * gains.sum(axis=0) / best.sum(), np.array([run.claimed for run in runs])
    lead = 100 * (gains[:, 1] - gains[:, 0]) / best.mean()
    ratio = claimed.sum() / gains[:, 1].sum()
    error = (claimed - ratio * gains[:, 1]).std(ddof=1) * np.sqrt(len(runs)) / abs(gains[:, 1].sum())
    return {
        "the incumbent": WORLDS[name].words,
        "runs": str(len(runs)),
        **{f"{rule}, %": f"{value:.1f}" for rule, value in zip(RULES, values, strict=True)},
        "lead": figure(lead.mean(), lead.std(ddof=1) / np.sqrt(len(runs)), 1),
        "used, %": share([run.used for run in runs]),
        "claimed / true": figure(ratio, error, 2),
        "holds, %": share([run.held for run in runs]),
    }


def main() -> None:
    """Make all runs and write the table."""
    head = ["# An incumbent that knew, and nobody said so", INTRODUCTION.format(seed=SEED)]
    one_table(__doc__, OUT, one_run, {name: world.runs for name, world in WORLDS.items()}, row, head)


if __name__ == "__main__":
    main()
