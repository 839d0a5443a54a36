"""Rules about tasks and actions: how many there are, their rows, and overlap between them."""

from collections.abc import Iterator, Sequence
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array
from hieropo._utils.text import agreeing, counted, percent
from hieropo._utils.ties import first_largest
from hieropo.doctor.collecting import LogStatistics
from hieropo.doctor.examination import Finding
from hieropo.doctor.statistics.alike_rows import FAR
from hieropo.logging_policy import cells as cell_columns
from hieropo.logging_policy.action_logit import always_one_action
from hieropo.logs.formats.text_types import are_no_numbers
from hieropo.rows.batches import Roles
from hieropo.rows.ids import plain

Rows = NDArray[np.float64] | NDArray[np.int64]

_SINGLE = (
    0.9  # share of tasks with one row above which noise and variation between tasks are hardly separable
)
_FEW_TASKS = 5  # below it a variance between tasks has fewer than four degrees of freedom
_HALF = 0.5
_FEW_OTHERS = 0.1  # share of ids that are no numbers, up to which these are taken for mistakes
_ALIKE_Z, _ALIKE = (
    6.0,
    0.05,
)  # errors, and a correlation that makes the variance of a mean of 20 rows twice as large
_FEW_ROWS = 10  # rows that say little about the shares of actions
_EXPECTED = 20.0  # expected rows of an action in a task; a count of 0 is then not random (e^-20)
_SHOWN = 3
_FOLDS, _LOST = (
    5,
    0.01,
)  # folds of cross-fitting, and the smallest relevant probability that a fold removes an action
_RARE = 10.0  # ratio of the mean number of rows of an action to that of a rare one

NO_TASK = (
    "No column of tasks is named: all rows are one task, and one policy is learned for all. Rows without a task show "
    "the mean reward over tasks for each context and action. They do not show how tasks differ."
)
NAME_A_TASK = (
    "Name the column of the task. A column of ids that is wrong in some rows can be the task, if decisions will use "
    "the same ids. Where a row has several candidate ids, take the most probable one."
)


def tasks(rows: Rows, ids: NDArray[Any], roles: Roles, note: str | None = None) -> Iterator[Finding]:
    """Yield findings about the numbers of rows (m,) of tasks with these ids (m,).

    ``note`` is the source's reason why the column of ids is text, with the line of the value.
    """
    ids, rows, column = ids[rows > 0], rows[rows > 0], roles.task_name
    if not rows.size:
        return
    if roles.task is None:
        yield Finding("note", "no task", "the log", NO_TASK, NAME_A_TASK)
        return
    place = f"column {column!r}"
    if rows.size == 1:
        yield Finding(
            "limits", "one task", place, f"Column {column!r} holds one task only: there are no tasks to share between.",
            "Name a column with several tasks, or fit `PooledOPO`.",
        )  # fmt: skip
    elif rows.size < _FEW_TASKS:
        yield Finding(
            "note", "few tasks", place, f"There are {rows.size} tasks: too few to estimate their variation well.",
            "Use predictions for new tasks with care.",
        )  # fmt: skip
    yield from _ids_of_two_kinds(rows, ids, column, note)
    single = float(np.mean(rows == 1))
    if rows.size > _FEW_ROWS and single >= _SINGLE:
        yield Finding(
            "limits", "tasks of one row", place,
            f"{percent(single)} of the {rows.size:,} tasks have one row, so that noise and variation between tasks "
            f"are hardly separable. Does {column!r} number rows rather than tasks?",
            "Name a column whose ids have several rows.",
        )  # fmt: skip
    if rows.size > 2 and rows.max() > _HALF * rows.sum():
        task = plain(ids[int(first_largest(rows))])
        yield Finding(
            "note", "one task holds most rows", f"task {task!r}",
            f"Task {task!r} has {percent(rows.max() / rows.sum())} of all rows.",
            "Is it a catch-all, such as an unknown id? Then leave it out.",
        )  # fmt: skip


def _ids_of_two_kinds(rows: Rows, ids: NDArray[Any], column: str, note: str | None) -> Iterator[Finding]:
    """Yield a finding where nearly all ids are numbers as text, and a few are not."""
    if not all(isinstance(each, str) for each in ids):
        return
    wrong = np.flatnonzero(are_no_numbers(ids.tolist()))
    if not 0 < wrong.size <= _FEW_OTHERS * ids.size:
        return
    first = int(wrong[0])
    yield Finding(
        "limits", "ids of two kinds", f"column {column!r}",
        f"{wrong.size:,} of {ids.size:,} task ids {agreeing(wrong.size, 'is', 'are')} not a number, so all ids are "
        f"text: {ids[first]!r}, with {counted(float(rows[first]), 'row')}."
        f"{'' if note is None else f' {note}'}",
        "Is it a header, a total or a missing value? Leave its rows out, or requests with numbers as ids will not be "
        "of known tasks.",
    )  # fmt: skip


def alike_rows(stats: LogStatistics) -> Iterator[Finding]:
    """Yield a finding where rows of one value of a column, or rows that follow each other, have alike rewards."""
    if stats.repeats.copies > 1 or stats.repeats.beyond_chance:
        return  # copies are alike
    tests = [test for test in stats.alike if test.z >= _ALIKE_Z and test.correlation >= _ALIKE]
    named = sorted((test for test in tests if test.column is not None), key=lambda test: -test.correlation)
    too_narrow = "The model takes rows as independent, so its intervals are too narrow."
    in_a_task = "a task" if stats.roles.action is None else "a task and an action"
    if named:
        first, others = named[0], ", ".join(repr(test.column) for test in named[1 : 1 + _SHOWN])
        beside = f" So do rows with the same value of {others}." if others else ""
        yield Finding(
            "limits", "rows share a cause", f"column {first.column!r}",
            f"Within {in_a_task}, rows with the same value of {first.column!r} have alike rewards: {first.rows:,} "
            f"rows in {first.groups:,} groups, correlation {first.correlation:.2f} (z = {first.z:.0f}).{beside} "
            f"{too_narrow}",
            f"{_or_a_task(stats.roles, first.column)}If its values are occasions, such as visits, sessions, days or "
            "classes, fit with "
            f"cluster={first.column!r} (--cluster {first.column}). If they describe a row, such as a product or a "
            "city, make it a context column. A column that is filled in after the reward is neither.",
        )  # fmt: skip
        return
    for test in tests:
        yield Finding(
            "limits", "consecutive rows are correlated", "all rows",
            f"Within {in_a_task}, rewards of consecutive rows have the correlation {test.correlation:.2f} (z = "
            f"{test.z:.0f}), and those of rows {FAR} apart do not. {too_narrow}",
            "Do several rows come from one visit, session, day or class? Add a column that names it, and fit with "
            "cluster= (--cluster).",
        )  # fmt: skip


def _or_a_task(roles: Roles, column: str | None) -> str:
    """Return a sentence on a column that may be that of the tasks, where none is named."""
    if roles.task is not None:
        return ""
    return (
        "If actions are to be chosen for each of its values, such as a store or a user, it is the task: "
        f"task={column!r} (--task {column}). "
    )


def no_action(roles: Roles) -> Iterator[Finding]:
    """Yield a finding where no column of actions is named."""
    if roles.action is not None:
        return
    name = "Name the column of actions: action='...', on the command line --action."
    if not roles.context:
        yield Finding(
            "stops", "no action", "the log",
            "No column of actions is named, nor a context column that describes the action taken: a policy has nothing "
            "to choose.", name,
        )  # fmt: skip
        return
    yield Finding(
        "note", "no action", "the log",
        "No column of actions is named: the context columns are taken as a description of the action taken, such as "
        "its price.", f"Do they describe the situation in which it was taken? {name}",
    )  # fmt: skip


def few_or_many_actions(column: str, actions: Sequence[Any] | NDArray[Any], rows: float) -> Iterator[Finding]:
    """Yield a finding where there is one action, or hardly any action has two rows."""
    place = f"column {column!r}"
    if len(actions) == 1:
        yield Finding(
            "limits", "one action", place,
            f"Column {column!r} holds one action, {plain(actions[0])!r}, in all rows: a policy has nothing to choose.",
            "Add rows in which other actions were taken.",
        )  # fmt: skip
    elif rows > _FEW_ROWS and 2 * len(actions) > rows:
        yield Finding(
            "limits", "actions that hardly come twice", place,
            f"Column {column!r} holds {len(actions):,} different actions in {counted(rows, 'row')}, so that few "
            "have two rows and little can be learned about each. Is it a quantity rather than an action?",
            "Bin it into a few classes, or make it a context column and name no action.",
        )  # fmt: skip


def chosen(stats: LogStatistics) -> Iterator[Finding]:
    """Yield findings about overlap between tasks and actions, where actions have enough rows."""
    if (
        stats.roles.action is None
        or stats.usable <= _FEW_ROWS
        or not 1 < len(stats.actions) <= stats.usable / 2
    ):
        return
    yield from _alone(stats)
    yield from _rare(stats)
    yield from _absent(stats, stats.cells.complete_tasks().counts)


def _alone(stats: LogStatistics) -> Iterator[Finding]:
    task_columns, rows = stats.cells.tasks, stats.cells.rows
    several = rows >= 2
    alone = several & (task_columns[:, cell_columns.SEVERAL] == 0)
    reason = always_one_action(stats.cells.complete_tasks().counts)
    if reason is not None:
        yield Finding(
            "limits", "no chance in actions", f"column {stats.roles.action!r}", f"{reason[0].upper()}{reason[1:]}.",
            "There is no overlap: importance weighting cannot estimate the rewards of other actions, and the model "
            "knows "
            "them only from other tasks. Randomise actions in a part of the decisions to come.",
        )  # fmt: skip
        return
    share = float(rows[alone].sum() / max(rows[several].sum(), 1.0))
    if alone.any():
        first = [plain(task) for task in stats.tasks.values[np.flatnonzero(alone)[:_SHOWN]].tolist()]
        yield Finding(
            "limits" if share > _HALF else "note", "tasks with one action", f"tasks such as {listed(first)}",
            f"{counted(int(alone.sum()), 'task')} of two rows or more had only one action ({percent(share)} of the "
            "rows of such tasks).",
            "The rewards of other actions there are known only from other tasks. Randomise actions in a part of the "
            "decisions.",
        )  # fmt: skip


def _rare(stats: LogStatistics) -> Iterator[Finding]:
    """Yield a finding about actions that were taken in one task only."""
    taken = stats.cells.tasks_of_actions()
    if len(stats.tasks) < 2 or taken is None:
        return
    of_one_task = np.flatnonzero(taken == 1)
    if of_one_task.size:
        names = [plain(action) for action in stats.actions.values[of_one_task[:_SHOWN]].tolist()]
        yield Finding(
            "note" if of_one_task.size <= _HALF * len(stats.actions) else "limits", "actions of one task",
            f"actions such as {listed(names)}",
            f"{counted(int(of_one_task.size), 'action')} of {len(stats.actions):,} "
            f"{agreeing(of_one_task.size, 'was', 'were')} taken in one task only, so that the log does not show how "
            f"{agreeing(of_one_task.size, 'its rewards differ', 'their rewards differ')} between tasks.",
            f"Leave {agreeing(of_one_task.size, 'it', 'them')} out, merge rare actions, or fit with "
            "task_cov='crossed', the default, which shares information between actions.",
        )  # fmt: skip


def rare_actions(
    column: str | None, actions: Sequence[Any] | NDArray[Any], rows: NDArray[np.int64], coefficients: int
) -> Iterator[Finding]:
    """Yield a finding about actions with so few ``rows`` (K,) that cross-fitting may lose their coefficients.

    ``coefficients`` counts those of an action that only its own rows inform.
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
            f"The action{s} {', '.join(names)}{more} of {counted(int(rows.sum()), 'row')} {be} so rare that noise "
            f"decides whether the policy takes {them}.",
            "Leave rare actions out, merge them, or raise the pessimism.",
        )  # fmt: skip


def _chance_lost(rows: int, coefficients: int) -> float:
    """Bound the probability that the rows outside some fold are fewer than an action's coefficients."""
    if rows > 3 * coefficients + _FEW_ROWS:
        return 0.0
    share = 1.0 / _FOLDS
    taken = range(max(rows - coefficients + 1, 0), rows + 1)
    return _FOLDS * sum(comb(rows, k) * share**k * (1.0 - share) ** (rows - k) for k in taken)


def structural_zeros(counts: Array) -> NDArray[np.bool_]:
    """Return a mask (m, K) of the actions that a task never took where at least 20 rows were expected."""
    total = counts.sum()
    expected = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / max(total, 1.0)
    return np.asarray((counts == 0) & (expected >= _EXPECTED))


def _absent(stats: LogStatistics, counts: Array) -> Iterator[Finding]:
    if stats.roles.eligible is not None:
        return
    zeros = structural_zeros(counts)
    tasks_with_zeros = np.flatnonzero(zeros.any(axis=1))
    if not tasks_with_zeros.size:
        return
    s = int(tasks_with_zeros[0])
    task = plain(stats.tasks.values[s])
    rows_of_action, actions = counts.sum(axis=0), [plain(action) for action in stats.actions.values]
    absent = np.flatnonzero(zeros[s]).tolist()
    action = actions[min(absent, key=lambda a: (-rows_of_action[a], str(actions[a])))]
    yield Finding(
        "limits", "actions that some tasks never take", f"task {task!r}, action {action!r}",
        f"{counted(int(tasks_with_zeros.size), 'task')} never took actions that others often take: task {task!r} has "
        f"{counts[s].sum():,.0f} rows and none of {action!r}. That action may not be eligible there.",
        "If so, name the column that lists the eligible actions (eligible=), and pass such lists with requests; "
        "otherwise the policy may choose it.",
    )  # fmt: skip


def listed(names: Sequence[Any]) -> str:
    """Return names as text, separated by commas."""
    return ", ".join(map(repr, names))
