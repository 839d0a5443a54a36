"""Claims of the default, `task_kinds="auto"`, beside those of one kind, where tasks are of three kinds, and elsewhere.

    python experiments/task_kinds.py                # writes docs/results/task_kinds.md; about five minutes of CPU time
    python experiments/task_kinds.py --share 0.05 --out /tmp/task_kinds.md

Logs, policies, values and claims are those of `experiments/claims.py`: 60 tasks with 25 rows, four actions, noise of
sd 1; both settings learn from the same logs. With kinds, a task is of each of three kinds with probability 1/3, and a
kind has an effect of each action (the standard deviation is named), beside effects that differ between tasks of a
kind, sd .1, and levels of tasks, sd .5. "used" is the share of the logs in which kinds are used, and "used, permuted"
the same with rewards permuted within tasks. Where kinds are not used, both settings give the same result to the last
bit. So in worlds without kinds only the logs in which kinds are used are compared with the truth, and none of those
with contexts; "logs judged" is their number. "right kind" is the share of the tasks whose most probable kind is their
true kind, over logs in which kinds are used.

"claimed / true" is the model's gain over the true gain; "holds" is the share of logs in which its 95 % interval covers
the truth; "harmed" is, of the changed tasks that the 5 % gate lets through, the share in which the policy is truly
worse; "auto less one" is the difference of the values. A seed gives the same figures with any number of processes.
"""

import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import pyarrow as pa
from claims import SHARES, Judged, Log, drawn, judged, linked, permuted_within, share
from claims import WORLDS as CLAIM_WORLDS
from repeating import one_table
from scipy.optimize import linear_sum_assignment
from tables import figure

from hieropo import HierOPO

SEED = 20261201
OUT = Path(__file__).resolve().parents[1] / "docs" / "results" / "task_kinds.md"
RUNS = 40
INTRODUCTION = """\
The default, `task_kinds="auto"`, beside `task_kinds="one"` on the same logs; the columns are explained at the head of
`experiments/task_kinds.py`. The seed is {seed}. Value is the true gain in % of the oracle's gain over the incumbent;
after ± stands one Monte Carlo standard error.
"""
KINDS = {"kinds": 0.5, "clear": 0.6, "distinct": 0.8}  # sd of the effects of actions in a kind
WORDS = {name: f"three kinds of tasks, effects of sd {str(sd).lstrip('0')}" for name, sd in KINDS.items()}
OTHERS = ("model", "no effect", "alike", "sparse", "t3", "skewed", "unequal noise", "revenue")
MORE = ("noisy", "binary", "count", "drift", "rich", "two", "contexts, none", "correlated")
ODD = "odd, varied"
NAMES = (*KINDS, *OTHERS, ODD, *MORE)
SEEDS = ("kinds", "distinct", *OTHERS, ODD, "clear", *MORE)  # the place of a world is part of its seed


def drawn_kinds(sd: float, rng: np.random.Generator) -> tuple[Log, Any]:
    """Draw a log of tasks of three kinds, and the kind (m,) of each task."""
    m, rows, count = 60, 25, len(SHARES)
    kind = rng.integers(0, 3, m)
    theta = sd * rng.standard_normal((3, count, 1))[kind] + 0.5 * rng.standard_normal((m, 1, 1))
    theta = theta + 0.1 * rng.standard_normal((m, count, 1))
    n = m * rows
    task = np.repeat(np.arange(m), 2 + rng.multinomial(n - 2 * m, rng.dirichlet(np.full(m, 2.0))))
    action = rng.choice(count, n, p=SHARES)
    weight = np.bincount(task, minlength=m) / n
    log = Log(theta, SHARES, weight, task, action, np.zeros((n, 0)), np.zeros(n), "normal", np.ones(count))
    mean = log.means(log.x, task)[np.arange(n), action]
    return replace(log, reward=mean + rng.standard_normal(n)), kind


class Run(NamedTuple):
    """Both settings on one log, and the gain of the oracle; no settings where kinds are not used and there are none."""

    one: Judged | None
    auto: Judged | None
    best: float
    used: bool
    used_permuted: bool
    right: float


def learned(table: pa.Table, task_kinds: Any) -> HierOPO:
    """Learn from a log."""
    learner = HierOPO(logging="random", task_kinds=task_kinds)
    context = [name for name in table.column_names if name.startswith("x")]
    return learner.fit(table, task="task", action="action", reward="reward", context=context)


def right_kind(learner: HierOPO, kind: Any) -> float:
    """Share of the tasks of the kind that they are said to be, the kinds matched to the true ones."""
    kinds = learner.posterior_.task_kinds
    table = np.zeros((kinds.probability.shape[1], 3))
    np.add.at(
        table, (kinds.kind[np.asarray(learner.moments_.keys.locate(np.arange(len(kind))))] - 1, kind), 1
    )
    rows, columns = linear_sum_assignment(-table)
    return float(table[rows, columns].sum() / len(kind))


def one_run(name: str, seed: int) -> Run:
    """Draw one log, and learn from it with both settings; where kinds are not used they are the same."""
    rng = np.random.default_rng([SEED, SEEDS.index(name), seed])
    kind = None
    if name in KINDS:
        log, kind = drawn_kinds(KINDS[name], rng)
    else:
        log = drawn(replace(CLAIM_WORLDS["model"], few=0.05) if name == ODD else CLAIM_WORLDS[name], rng)
    permuted = permuted_within(log, rng)
    truth, contexts = linked(log.theta[:, :, 0], log.link), log.x.shape[1] > 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learner = learned(log.table(), "auto")
        used, one, auto, right = learner.posterior_.task_kinds is not None, None, None, np.nan
        if kind is not None or (used and not contexts):
            one = judged(learned(log.table(), "one"), log, truth)
            auto = judged(learner, log, truth) if used else one
        if used and kind is not None:
            right = right_kind(learner, kind)
        used_permuted = learned(log.table(permuted), "auto").posterior_.task_kinds is not None
    best = float(log.weight @ (truth.max(axis=1) - truth @ log.shares))
    return Run(one, auto, best, used, used_permuted, right)


def row(name: str, runs: list[Run]) -> dict[str, str]:
    """Figures of a world by the names of their columns."""
    words = "5 % of tasks with 10 x effects, others varied" if name == ODD else WORDS.get(name)
    right = np.array([run.right for run in runs])
    some = [(run, run.one, run.auto) for run in runs if run.one is not None and run.auto is not None]
    best = sum(run.best for run, _, _ in some)
    figures = {
        "world": words or CLAIM_WORLDS[name].words,
        "logs": str(len(runs)),
        "used, %": share([run.used for run in runs]),
        "used, permuted, %": share([run.used_permuted for run in runs]),
        "right kind, %": "" if np.isnan(right).all() else f"{100 * np.nanmean(right):.0f}",
        "logs judged": str(len(some)) if some else "",
    }
    for setting, fits in (("one", [one for _, one, _ in some]), ("auto", [auto for _, _, auto in some])):
        gain, claimed = sum(fit.gain for fit in fits), sum(fit.claimed for fit in fits)
        harmed, passed = sum(fit.harmed for fit in fits), sum(fit.passed for fit in fits)
        figures |= {
            f"value, {setting}": f"{100 * gain / best:.1f}" if best > 0 else "",
            f"claimed / true, {setting}": f"{claimed / gain:.2f}" if best > 0 else "",
            f"holds, %, {setting}": share([fit.held for fit in fits]) if len(fits) > 1 else "",
            f"harmed, %, {setting}": f"{100 * harmed / passed:.1f}" if passed else "",
        }
    lead = np.array([auto.gain - one.gain for _, one, auto in some])
    figures["auto less one"] = ""
    if len(some) > 1 and best > 0:
        lead = 100 * lead * len(some) / best
        figures["auto less one"] = figure(lead.mean(), lead.std(ddof=1) / np.sqrt(len(some)), 1)
    return figures


def main() -> None:
    """Make all runs and write the table."""
    head = ["# Kinds of tasks", INTRODUCTION.format(seed=SEED)]
    one_table(__doc__, OUT, one_run, dict.fromkeys(NAMES, RUNS), row, head)


if __name__ == "__main__":
    main()
