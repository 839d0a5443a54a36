"""Rules about tasks and actions: are there several, do they come often enough, do they overlap."""

from collections.abc import Iterator, Sequence
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array
from hieropo._utils.text import agreeing, counted, percent
from hieropo._utils.ties import first_largest
from hieropo.doctor.collecting import Collected
from hieropo.doctor.examination import Finding
from hieropo.logging_policy import cells as at
from hieropo.logging_policy.action_logit import always_one_action
from hieropo.rows.ids import plain

Rows = NDArray[np.float64] | NDArray[np.int64]

_SINGLE = (
    0.9  # share of tasks with one row from which on noise and differences between tasks are hardly told apart
)
_FEW_TASKS = 5  # below which a variance between tasks is told by fewer than four differences
_HALF = 0.5
_FEW_ROWS = 10  # rows that say nothing of how often an action comes
_EXPECTED = 20.0  # rows of an action in a task that chance would give: none of them is then no chance (e^-20)
_SHOWN = 3
_FOLDS, _LOST = (
    5,
    0.01,
)  # parts that an evaluation leaves out in turn, and a chance of losing an action that matters
_RARE = 10.0  # times that the mean action comes more often than one that is rare


def tasks(rows: Rows, ids: NDArray[Any], column: str) -> Iterator[Finding]:
    """Find odd spreads of rows (m,) over tasks with these ids (m,), some of which may have none."""
    ids, rows = ids[rows > 0], rows[rows > 0]
    if not rows.size:
        return
    place = f"column {column!r}"
    if rows.size == 1:
        yield Finding(
            "limits", "one task", place, f"Column {column!r} names one task only: nothing can be shared between tasks.",
            "Name a column that tells several units apart, or learn with `PooledOPO`.",
        )  # fmt: skip
    elif rows.size < _FEW_TASKS:
        yield Finding(
            "note", "few tasks", place, f"There are {rows.size} tasks: how much they differ is hardly told by so few.",
            "Take what is learned about new tasks with care.",
        )  # fmt: skip
    single = float(np.mean(rows == 1))
    if rows.size > _FEW_ROWS and single >= _SINGLE:
        yield Finding(
            "limits", "tasks of one row", place,
            f"{percent(single)} of the {rows.size:,} tasks have one row, so that noise and differences between tasks "
            f"are hardly told apart. Is {column!r} the number of a row rather than of a unit?",
            "Name a column of units that come back.",
        )  # fmt: skip
    if rows.size > 2 and rows.max() > _HALF * rows.sum():
        task = plain(ids[int(first_largest(rows))])
        yield Finding(
            "note", "one task holds most rows", f"task {task!r}",
            f"Task {task!r} has {percent(rows.max() / rows.sum())} of all rows.",
            "Is it a catch-all, such as an unknown id? Then leave it out.",
        )  # fmt: skip


def few_or_many_actions(column: str, actions: Sequence[Any] | NDArray[Any], rows: float) -> Iterator[Finding]:
    """Actions that leave nothing to choose, or hardly ever come twice."""
    place = f"column {column!r}"
    if len(actions) == 1:
        yield Finding(
            "limits", "one action", place,
            f"Column {column!r} holds one action, {plain(actions[0])!r}, in all rows: the policy can choose no other.",
            "Add rows in which other actions were taken.",
        )  # fmt: skip
    elif rows > _FEW_ROWS and 2 * len(actions) > rows:
        yield Finding(
            "limits", "actions that hardly come twice", place,
            f"Column {column!r} holds {len(actions):,} different actions in {counted(rows, 'row')}, so hardly any "
            "comes twice and little can be learned of each. Is it a quantity rather than the name of an action?",
            "Cut it into a few classes, or make it a context column and name no action.",
        )  # fmt: skip


def chosen(seen: Collected) -> Iterator[Finding]:
    """Find tasks that took one action, and actions that few tasks took, where actions come often enough."""
    if seen.roles.action is None or seen.usable <= _FEW_ROWS or not 1 < len(seen.actions) <= seen.usable / 2:
        return
    yield from _alone(seen)
    yield from _rare(seen)
    yield from _absent(seen, seen.cells.whole().counts)


def _alone(seen: Collected) -> Iterator[Finding]:
    every, rows = seen.cells.tasks, seen.cells.rows
    several = rows >= 2
    alone = several & (every[:, at.SEVERAL] == 0)
    why = always_one_action(seen.cells.whole().counts)
    if why is not None:
        yield Finding(
            "limits", "no chance in actions", f"column {seen.roles.action!r}", f"{why[0].upper()}{why[1:]}.",
            "What other actions would have brought there is known only from other tasks, by the model; no weighting of "
            "rows can say it. Let chance choose in a part of the decisions to come.",
        )  # fmt: skip
        return
    share = float(rows[alone].sum() / max(rows[several].sum(), 1.0))
    if alone.any():
        first = [plain(task) for task in seen.tasks.values[np.flatnonzero(alone)[:_SHOWN]].tolist()]
        yield Finding(
            "limits" if share > _HALF else "note", "tasks with one action", f"tasks such as {listed(first)}",
            f"{counted(int(alone.sum()), 'task')} of two rows or more ({percent(share)} of such rows) had one action.",
            "What others would bring there is known only from other tasks.",
        )  # fmt: skip


def _rare(seen: Collected) -> Iterator[Finding]:
    """Find actions that were taken in one task, so that nothing shows how they differ between tasks."""
    taken = seen.cells.tasks_of_actions()
    if len(seen.tasks) < 2 or taken is None:
        return
    lonely = np.flatnonzero(taken == 1)
    if lonely.size:
        names = [plain(each) for each in seen.actions.values[lonely[:_SHOWN]].tolist()]
        yield Finding(
            "note" if lonely.size <= _HALF * len(seen.actions) else "limits", "actions of one task",
            f"actions such as {listed(names)}",
            f"{counted(int(lonely.size), 'action')} of {len(seen.actions):,} "
            f"{agreeing(lonely.size, 'was', 'were')} taken in one task only, so that the log does not show how "
            f"{agreeing(lonely.size, 'its rewards differ', 'their rewards differ')} between tasks.",
            f"Leave {agreeing(lonely.size, 'it', 'them')} out, put rare actions together, or let actions borrow "
            "from each other: task_cov='crossed'.",
        )  # fmt: skip


def rare_actions(
    column: str | None, actions: Sequence[Any] | NDArray[Any], rows: NDArray[np.int64], coefficients: int
) -> Iterator[Finding]:
    """Actions with so few of the ``rows`` (K,) that without a fifth of all rows their coefficients may be left open.

    That is said of ``coefficients`` that nothing but an action's own rows tells.
    """
    if column is None or len(actions) < 2:
        return
    few = np.flatnonzero((rows > 0) & (_RARE * rows * len(actions) <= rows.sum()))
    lost = [k for k in few.tolist() if _chance_lost(int(rows[k]), coefficients) > _LOST]
    if lost:
        names = [f"{plain(actions[k])!r} ({counted(int(rows[k]), 'row')})" for k in lost[:_SHOWN]]
        more = f", ... ({len(lost) - _SHOWN:,} more)" if len(lost) > _SHOWN else ""
        s, be, them = ("s", "are", "them") if len(lost) > 1 else ("", "is", "it")
        yield Finding(
            "limits", "rare actions", f"column {column!r}, action {plain(actions[lost[0]])!r}",
            f"The action{s} {', '.join(names)}{more} of {counted(int(rows.sum()), 'row')} {be} so rare that chance "
            f"decides whether the policy takes {them}.",
            "Leave rare actions out, put them together, or raise the pessimism.",
        )  # fmt: skip


def _chance_lost(rows: int, coefficients: int) -> float:
    """Bound the probability that a fold takes so many of an action's rows that fewer than its coefficients are left."""
    if rows > 3 * coefficients + _FEW_ROWS:
        return 0.0
    share = 1.0 / _FOLDS
    taken = range(max(rows - coefficients + 1, 0), rows + 1)
    return _FOLDS * sum(comb(rows, k) * share**k * (1.0 - share) ** (rows - k) for k in taken)


def structural_zeros(counts: Array) -> NDArray[np.bool_]:
    """Return which actions a task never took though chance would have taken them 20 times, (m, K)."""
    total = counts.sum()
    expected = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / max(total, 1.0)
    return np.asarray((counts == 0) & (expected >= _EXPECTED))


def _absent(seen: Collected, counts: Array) -> Iterator[Finding]:
    if seen.roles.eligible is not None:
        return
    zeros = structural_zeros(counts)
    some = np.flatnonzero(zeros.any(axis=1))
    if not some.size:
        return
    s = int(some[0])
    task = plain(seen.tasks.values[s])
    a = int(np.flatnonzero(zeros[s])[0])
    action = plain(seen.actions.values[a])
    yield Finding(
        "limits", "actions that some tasks never take", f"task {task!r}, action {action!r}",
        f"{counted(int(some.size), 'task')} never took actions that others often take: task {task!r} has "
        f"{counts[s].sum():,.0f} rows and none of {action!r}. Perhaps it cannot be taken there.",
        "Then name the column that lists what can be taken, eligible=, and hand such lists in with requests; else the "
        "policy may choose it.",
    )  # fmt: skip


def listed(names: Sequence[Any]) -> str:
    """Write a few names."""
    return ", ".join(map(repr, names))
