"""Randomisation tests: whether actions have an effect, and whether it is the same in all tasks.

Where actions have no effect, the rewards would have come whichever actions chance had drawn. So a statistic of rewards
and actions is compared with the same statistic of actions drawn anew: its rank among B draws gives the p-value
(1 + #{draws that reach it}) / (1 + B), exact for any statistic and any rewards (Fisher, The Design of Experiments,
1935; Phipson and Smyth, Statistical Applications in Genetics and Molecular Biology 9, 2010).

Draws. Within a stratum, where all rows have the same chances, the actions are exchangeable given how often each was
taken. Rows are put into a random order within their stratum once, and a draw turns each stratum by a random number of
rows: these turns are a group under which the null is invariant, which is all that exactness needs, and they cost no
sorting. Where chances differ from row to row, every row draws its action from them.

Statistics. With e a reward less its mean in the stratum and its regression on contexts, S_sa the sum of e over the
n_sa rows of action a in task s, v_a the variance of e within the cells of action a, u_s the mean of e in task s with
the weights 1 / v_a, and U_sa = S_sa - n_sa u_s,

    cells    sum_sa U_sa^2 / (n_sa v_a)
    actions  sum_a (sum_s U_sa / v_a)^2 / N_a,   N_a = sum_s n_sa / v_a (1 - share of the weight of task s)

and both again for e x_j, x_j a context: as in Welch's analysis of variance, noise that differs between actions moves
them little. The test of no effect takes the largest of all, each standardised over the draws and the log together. The
test that all tasks are alike takes cells less actions, of rewards from which a regression on actions and their products
with contexts is taken out; since that is estimated, it is exact up to terms that vanish with many rows for each action
(Freedman and Lane, Journal of Business and Economic Statistics 1, 1983).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.ties import ROUNDING

_ROOM = 2_000_000  # numbers that are worked on at once
_STEPS = 50
_CLOSE = 1e-6  # of the sd, by which a step of the regression on actions may still move it
_PRIOR = 4.0  # rows that the variance of all counts beside that of an action
_SETTLED = (
    10 * _CLOSE
)  # sd of what actions leave of rewards, in units of what strata leave, that is of the steps alone
_FLAT = 1e-12  # of the largest reward, below which an sd is none


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a log whose actions chance drew.

    Parameters
    ----------
    task, action : (n,) int
    stratum : (n,) int
        Rows with the same chances; a stratum lies in one task.
    reward : (n,) array
    context : (n, c) array
    weight : (n,) array
        What a row counts.
    chance : (n, K) array or None
        With which each action was drawn; None where actions are exchangeable within strata.
    """

    task: Codes
    action: Codes
    stratum: Codes
    reward: Array
    context: Array
    weight: Array
    chance: Array | None = None


def no_effect(rows: Rows, draws: int, rng: np.random.Generator) -> float | None:
    """Return the p-value that actions have no effect on any reward; None where nothing can tell.

    Nothing can where all rows have one action, or rewards do not vary within strata.
    """
    x = _standard(rows)
    residual = _without_contexts(rows, x)
    if residual is None or not _varied(rows.action):
        return None
    return _p_value(_statistics(rows, residual, x, draws, rng))


def tasks_alike(rows: Rows, draws: int, rng: np.random.Generator) -> float | None:
    """Return the p-value that what actions do is the same in all tasks; None where nothing can tell.

    Nothing can where there is one task or one action, where no task has two rows of an action (differences between
    tasks and noise are then one), or where rewards are those that actions and contexts settle.
    """
    x = _standard(rows)
    residual = _without_contexts(rows, x)
    if residual is None or not (_varied(rows.action) and _varied(rows.task) and _replicated(rows)):
        return None
    left = _without_actions(rows, residual)
    if left is None:
        return None
    found, K = _statistics(rows, left, x, draws, rng), np.unique(rows.action).size
    return _p_value(found[:, 1::2] - found[:, ::2] * ((K - 1) / K))  # K squares, of K - 1 degrees of freedom


def _varied(codes: Codes) -> bool:
    return bool((codes != codes[0]).any())


def _replicated(rows: Rows) -> bool:
    """Return whether some task has two rows of an action."""
    cells = rows.task.astype(np.int64) * (int(rows.action.max()) + 1) + rows.action
    return np.unique(cells).size < cells.size


def _centred(rows: Rows, values: Array, weight: Array | None = None) -> Array:
    """Values (n, j) less their means in each stratum, weighted by ``weight`` (n,)."""
    if weight is None:
        weight = np.ones(rows.stratum.size)
    count = np.bincount(rows.stratum, weight)
    means = _by(rows.stratum, values * weight[:, None], count.size) / np.where(count > 0, count, 1.0)[:, None]
    return np.asarray(values - means[rows.stratum])


def _standard(rows: Rows) -> Array:
    """Contexts (n, c) less their means in each stratum, in units of their sd; those that do not vary are left out."""
    if not rows.context.shape[1]:
        return rows.context
    x = _centred(rows, rows.context)
    sd, size = x.std(axis=0), np.abs(rows.context).max(axis=0)
    return np.asarray(x[:, sd > _FLAT * size] / sd[sd > _FLAT * size])


def _without_contexts(rows: Rows, x: Array) -> Array | None:
    """Rewards less their means in each stratum and their regression on contexts, in units of their sd."""
    e = _centred(rows, rows.reward[:, None])[:, 0]
    if x.shape[1]:
        e = e - x @ np.linalg.lstsq(x.T @ x, x.T @ e, rcond=None)[0]
    return _scaled(e, float(np.abs(rows.reward).max()))


def _scaled(e: Array, size: float) -> Array | None:
    sd = float(e.std())
    return None if sd <= _FLAT * size else np.asarray(e / sd)


def _without_actions(rows: Rows, e: Array) -> Array | None:
    """Residuals less their regression on actions and products of actions and contexts, within strata.

    By turns the regression of each action and the means of strata are taken out, until that changes nothing. Rows are
    weighted by the inverse variance of their action.
    """
    K = int(rows.action.max()) + 1
    x = rows.context - rows.context.mean(axis=0)
    sd = x.std(axis=0)
    varies = sd > _FLAT * np.abs(rows.context).max(axis=0)
    z = np.column_stack([np.ones(e.size), x[:, varies] / sd[varies]])
    p = z.shape[1]
    grams = np.stack([_by(rows.action, z * z[:, j : j + 1], K) for j in range(p)], axis=1)
    count = np.bincount(rows.action, minlength=K)
    # Along directions that no row tells, a step is none.
    grams += (_FLAT * count + (count == 0))[:, None, None] * np.eye(p)
    for _ in range(_STEPS):
        step = np.linalg.solve(grams, _by(rows.action, z * e[:, None], K)[:, :, None])[:, :, 0]
        e = e - np.einsum("ni,ni->n", z, step[rows.action])
        if np.abs(step).max() <= _CLOSE:
            break
        variance = (np.bincount(rows.action, e * e, K) + _PRIOR) / (count + _PRIOR)
        e = _centred(rows, e[:, None], 1.0 / variance[rows.action])[:, 0]
    left = _centred(rows, e[:, None])[:, 0]
    return None if left.std() <= _SETTLED else _scaled(left, 1.0)


def _by(codes: Codes, values: Array, size: int) -> Array:
    """Sums of values (n, j) by codes (n,), (size, j)."""
    found = np.empty((size, values.shape[1]))
    for j, column in enumerate(values.T):
        found[:, j] = np.bincount(codes, column, size)
    return found


def _statistics(rows: Rows, e: Array, x: Array, draws: int, rng: np.random.Generator) -> Array:
    """Statistics (1 + draws, 2 or 4): of the log, then of each draw; by turns of actions and of cells."""
    e = e * rows.weight
    columns = np.column_stack([e, e[:, None] * x, e * e])
    if rows.chance is None:
        columns[:, 1:-1] = _centred(rows, columns[:, 1:-1])
        found = list(_turned(rows, columns, draws, rng))
    else:
        found = list(_drawn(rows, columns, rows.chance, draws, rng))
    return np.concatenate(found)


def _turned(rows: Rows, columns: Array, draws: int, rng: np.random.Generator) -> Iterator[Array]:
    """Statistics of the log and of draws in which the rows of each stratum are turned."""
    n, q = columns.shape
    order = rng.random(rows.stratum.shape)
    shuffled = np.lexsort((order, rows.stratum))
    values = columns[shuffled]
    stratum, task, action = rows.stratum[shuffled], rows.task[shuffled], rows.action[shuffled]
    count = np.bincount(stratum)
    start = np.cumsum(count) - count
    slots = np.lexsort([task, action])  # rows of a cell lie side by side
    task, action = task[slots], action[slots]
    first = np.concatenate([[True], (task[1:] != task[:-1]) | (action[1:] != action[:-1])])
    at = np.flatnonzero(first)
    cells = _Cells(task[at], action[at])
    rows_of = np.diff(np.append(at, n)).astype(np.float64)[None]
    own = stratum[slots]
    begin, size = start[own], count[own]
    place, done, step = slots - begin, 0, max(1, _ROOM // (n * q))
    while done <= draws:
        some = min(step, draws + 1 - done)
        turns = (rng.random((some, count.size)) * count).astype(np.int64)
        if not done:
            turns[0] = 0  # the log itself
        row = place + turns[:, own]
        row -= np.where(row >= size, size, 0)
        yield cells.statistics(np.add.reduceat(values[begin + row], at, axis=1), rows_of)
        done += some


def _drawn(
    rows: Rows, columns: Array, chance: Array, draws: int, rng: np.random.Generator
) -> Iterator[Array]:
    """Statistics of the log and of draws in which each row draws its action."""
    tasks, K = int(rows.task.max()) + 1, chance.shape[1]
    bounds = np.cumsum(chance, axis=1)[:, :-1]
    columns = np.column_stack([columns, np.ones(len(columns))])
    mean = np.concatenate([_by(rows.task, columns * chance[:, a : a + 1], tasks) for a in range(K)])
    number = np.flatnonzero(mean[:, -1] > 0)
    cells = _Cells(number % tasks, number // tasks)
    expected = mean[number, :-2] / mean[number, -1:]
    for b in range(draws + 1):
        action = (rng.random(rows.task.size)[:, None] >= bounds).sum(axis=1) if b else rows.action
        sums = _by(action * tasks + rows.task, columns, K * tasks)[number]
        sums[:, :-2] -= expected * sums[:, -1:]
        yield cells.statistics(sums[None, :, :-1], sums[None, :, -1])


class _Cells:
    """Actions in tasks, whose sums make statistics.

    Parameters
    ----------
    task, action : (r,) int
        Of each cell, actions in ascending order.
    """

    def __init__(self, task: Codes, action: Codes) -> None:
        self._task = np.unique(task, return_inverse=True)[1]
        self._action = np.unique(action, return_inverse=True)[1]
        self._starts = np.flatnonzero(np.concatenate([[True], action[1:] != action[:-1]]))

    def statistics(self, sums: Array, rows: Array) -> Array:
        """Return the statistics (b, 2 or 4) of sums (b, r, q), the last of them of e^2, over rows (b or 1, r)."""
        some, weight = np.maximum(rows, 1.0), rows / self._variances(sums, rows)[:, self._action]
        share = weight / self._of_tasks(weight)
        total = self._of_actions(weight * (1.0 - share))
        parts = []
        for j in range(sums.shape[2] - 1):
            mean = sums[:, :, j] / some
            away = mean - self._of_tasks(share * mean)
            cells = (weight * away * away).sum(axis=1)
            of_actions = self._of_actions(weight * away) ** 2
            actions = np.divide(of_actions, total, out=np.zeros_like(of_actions), where=total > ROUNDING)
            parts.append([actions.sum(axis=1), cells])
        first = parts[0]
        if len(parts) > 1:
            first = [*first, *(np.sum([part[k] for part in parts[1:]], axis=0) for k in (0, 1))]
        return np.stack(first, axis=1)

    def _variances(self, sums: Array, rows: Array) -> Array:
        """Variance of e within the cells of each action (b, K), drawn towards that of all where rows are few."""
        within = sums[:, :, -1] - sums[:, :, 0] ** 2 / np.maximum(rows, 1.0)
        squares = self._of_actions(np.maximum(within, 0.0))
        free = np.broadcast_to(self._of_actions(np.maximum(rows - 1.0, 0.0)), squares.shape)
        overall = squares.sum(axis=1, keepdims=True) / np.maximum(free.sum(axis=1, keepdims=True), 1.0)
        return np.asarray((squares + _PRIOR * np.maximum(overall, ROUNDING)) / (free + _PRIOR))

    def _of_actions(self, values: Array) -> Array:
        return np.asarray(np.add.reduceat(values, self._starts, axis=1))

    def _of_tasks(self, values: Array) -> Array:
        """Sums over the cells of a task, for each of its cells."""
        b, m = len(values), int(self._task.max()) + 1
        number = self._task + m * np.arange(b)[:, None]
        return np.asarray(np.bincount(number.reshape(-1), values.reshape(-1), b * m)[number])


def _p_value(statistics: Array) -> float:
    """Of the first row among all rows (1 + B, j), by the largest of their standardised columns."""
    sd = statistics.std(axis=0)
    varies = sd > ROUNDING * np.abs(statistics).max(axis=0)
    standard = (statistics - statistics.mean(axis=0)) / np.where(varies, sd, np.inf)
    largest = standard.max(axis=1)
    reached = largest[1:] >= largest[0] - ROUNDING * max(abs(float(largest[0])), 1.0)
    return float((1 + np.count_nonzero(reached)) / largest.size)
