"""Randomisation tests of two nulls: actions have no effect; the effect of actions is the same in all tasks.

Where actions have no effect, the rewards would have been the same whichever actions had been drawn. So a statistic of
rewards and actions is compared with the same statistic for actions drawn anew: its rank among B draws gives the p-value
(1 + #{draws that reach it}) / (1 + B), exact for any statistic and any rewards (Fisher, The Design of Experiments,
1935; Phipson and Smyth, Statistical Applications in Genetics and Molecular Biology 9, 2010).

Draws. Within a stratum, whose rows have the same propensities, the actions are exchangeable given how often each was
taken. Rows are put into a random order within their stratum once. A draw rotates each stratum by a random number of
rows: these rotations are a group under which the null is invariant, which suffices for exactness, and they need no
sorting. Where propensities differ from row to row, every row draws its action from them.

Statistics. With e a reward less its mean in the stratum and its regression on contexts, S_sa the sum of e over the
n_sa rows of action a in task s, v_a the variance of e within the cells of action a, u_s the mean of e in task s with
the weights 1 / v_a, and U_sa = S_sa - n_sa u_s,

    cells    sum_sa U_sa^2 / (n_sa v_a)
    actions  sum_a (sum_s U_sa / v_a)^2 / N_a,   N_a = sum_s n_sa / v_a (1 - share of the weight of task s)

and both again for e x_j, x_j a context. As in Welch's analysis of variance, noise that differs between actions has
little influence. The test of no effect takes the largest of all, each standardised over the draws and the log together.
The test that all tasks are alike takes cells less actions, of rewards from which a regression on actions and their
products with contexts is taken out; since that is estimated, it is exact up to terms that vanish with many rows for
each action (Freedman and Lane, Journal of Business and Economic Statistics 1, 1983).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.ties import ROUNDING

_ROOM = 2_000_000  # numbers worked on at once
_STEPS = 50
_CLOSE = 1e-6  # largest step of the regression on actions, in sds of the residuals, at which it has converged
_PRIOR = 4.0  # rows that the variance over all actions counts for, beside the rows of one action
_NO_RESIDUAL = (
    10 * _CLOSE
)  # sd of the residuals, relative to those without actions, below which they are rounding
_FLAT = 1e-12  # sd relative to the largest value, below which it is taken as 0


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a log whose actions were drawn at random.

    Parameters
    ----------
    task, action : (n,) int
    stratum : (n,) int
        Rows with the same propensities; a stratum lies in one task.
    reward : (n,) array
    context : (n, c) array
    weight : (n,) array
        Counts of the rows.
    chance : (n, K) array or None
        Propensities of all actions; None where actions are exchangeable within strata.
    """

    task: Codes
    action: Codes
    stratum: Codes
    reward: Array
    context: Array
    weight: Array
    chance: Array | None = None


def no_effect(rows: Rows, draws: int, rng: np.random.Generator) -> float | None:
    """Return the p-value of the null that actions have no effect on any reward; None where it cannot be tested.

    It cannot where all rows have one action, or rewards do not vary within strata.
    """
    x = _standard(rows)
    residual = _without_contexts(rows, x)
    if residual is None or not _varied(rows.action):
        return None
    return _p_value(_statistics(rows, residual, x, draws, rng))


def tasks_alike(rows: Rows, draws: int, rng: np.random.Generator) -> float | None:
    """Return the p-value of the null that effects of actions are the same in all tasks; None where it cannot be tested.

    It cannot where there is one task or one action, where no task has two rows of an action (differences between tasks
    and noise are then confounded), or where actions and contexts determine the rewards.
    """
    x = _standard(rows)
    residual = _without_contexts(rows, x)
    if residual is None or not (_varied(rows.action) and _varied(rows.task) and _replicated(rows)):
        return None
    residual_of_actions = _without_actions(rows, residual)
    if residual_of_actions is None:
        return None
    statistics, K = _statistics(rows, residual_of_actions, x, draws, rng), np.unique(rows.action).size
    return _p_value(
        statistics[:, 1::2] - statistics[:, ::2] * ((K - 1) / K)
    )  # K squares have K - 1 degrees of freedom


def _varied(codes: Codes) -> bool:
    return bool((codes != codes[0]).any())


def _replicated(rows: Rows) -> bool:
    """Return True where some task has two rows of one action."""
    cells = rows.task.astype(np.int64) * (int(rows.action.max()) + 1) + rows.action
    return np.unique(cells).size < cells.size


def _centred(rows: Rows, values: Array, weight: Array | None = None) -> Array:
    """Return values (n, j) less their means in each stratum, weighted by ``weight`` (n,)."""
    if weight is None:
        weight = np.ones(rows.stratum.size)
    count = np.bincount(rows.stratum, weight)
    means = (
        _sums_by(rows.stratum, values * weight[:, None], count.size)
        / np.where(count > 0, count, 1.0)[:, None]
    )
    return np.asarray(values - means[rows.stratum])


def _standard(rows: Rows) -> Array:
    """Return contexts (n, c) less their means in each stratum, in units of their sd, without those that do not vary."""
    if not rows.context.shape[1]:
        return rows.context
    x = _centred(rows, rows.context)
    sd, size = x.std(axis=0), np.abs(rows.context).max(axis=0)
    return np.asarray(x[:, sd > _FLAT * size] / sd[sd > _FLAT * size])


def _without_contexts(rows: Rows, x: Array) -> Array | None:
    """Return rewards less their means in each stratum and their regression on contexts, in units of their sd."""
    e = _centred(rows, rows.reward[:, None])[:, 0]
    if x.shape[1]:
        e = e - x @ np.linalg.lstsq(x.T @ x, x.T @ e, rcond=None)[0]
    return _scaled(e, float(np.abs(rows.reward).max()))


def _scaled(e: Array, size: float) -> Array | None:
    sd = float(e.std())
    return None if sd <= _FLAT * size else np.asarray(e / sd)


def _without_actions(rows: Rows, e: Array) -> Array | None:
    """Return residuals less their regression on actions and products of actions and contexts, within strata.

    The regression of each action and the means of strata are subtracted alternately until convergence. Rows are
    weighted by the inverse variance of their action.
    """
    K = int(rows.action.max()) + 1
    x = rows.context - rows.context.mean(axis=0)
    sd = x.std(axis=0)
    varies = sd > _FLAT * np.abs(rows.context).max(axis=0)
    z = np.column_stack([np.ones(e.size), x[:, varies] / sd[varies]])
    p = z.shape[1]
    grams = np.stack([_sums_by(rows.action, z * z[:, j : j + 1], K) for j in range(p)], axis=1)
    count = np.bincount(rows.action, minlength=K)
    # The ridge makes the step 0 along directions that no row informs.
    grams += (_FLAT * count + (count == 0))[:, None, None] * np.eye(p)
    for _ in range(_STEPS):
        step = np.linalg.solve(grams, _sums_by(rows.action, z * e[:, None], K)[:, :, None])[:, :, 0]
        e = e - np.einsum("ni,ni->n", z, step[rows.action])
        if np.abs(step).max() <= _CLOSE:
            break
        variance = (np.bincount(rows.action, e * e, K) + _PRIOR) / (count + _PRIOR)
        e = _centred(rows, e[:, None], 1.0 / variance[rows.action])[:, 0]
    residual = _centred(rows, e[:, None])[:, 0]
    return None if residual.std() <= _NO_RESIDUAL else _scaled(residual, 1.0)


def _sums_by(codes: Codes, values: Array, size: int) -> Array:
    """Return sums (size, j) of values (n, j) by codes (n,)."""
    sums = np.empty((size, values.shape[1]))
    for j, column in enumerate(values.T):
        sums[:, j] = np.bincount(codes, column, size)
    return sums


def _statistics(rows: Rows, e: Array, x: Array, draws: int, rng: np.random.Generator) -> Array:
    """Return the statistics (1 + draws, 2 or 4) of the log, then of each draw; columns alternate actions and cells."""
    e = e * rows.weight
    columns = np.column_stack([e, e[:, None] * x, e * e])
    if rows.chance is None:
        columns[:, 1:-1] = _centred(rows, columns[:, 1:-1])
        return np.concatenate(list(_rotated(rows, columns, draws, rng)))
    return np.concatenate(list(_drawn(rows, columns, rows.chance, draws, rng)))


def _rotated(rows: Rows, columns: Array, draws: int, rng: np.random.Generator) -> Iterator[Array]:
    """Yield the statistics of the log and of draws in which the actions of each stratum are rotated."""
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
    cell_starts = np.flatnonzero(first)
    cells = _Cells(task[cell_starts], action[cell_starts])
    rows_in_cell = np.diff(np.append(cell_starts, n)).astype(np.float64)[None]
    row_stratum = stratum[slots]
    begin, size = start[row_stratum], count[row_stratum]
    offset_in_stratum, done, step = slots - begin, 0, max(1, _ROOM // (n * q))
    while done <= draws:
        some = min(step, draws + 1 - done)
        rotations = (rng.random((some, count.size)) * count).astype(np.int64)
        if not done:
            rotations[0] = 0  # the log itself
        row = offset_in_stratum + rotations[:, row_stratum]
        row -= np.where(row >= size, size, 0)
        yield cells.statistics(_sums_of_runs(values, begin + row, cell_starts), rows_in_cell)
        done += some


def _sums_of_runs(values: Array, rows: Codes, starts: Codes) -> Array:
    """Return sums (b, r, q) of the values (n, q) at rows (b, n) over r runs of the columns of ``rows``."""
    from scipy.sparse import csr_array

    b, n = rows.shape
    pointers = np.append((n * np.arange(b)[:, None] + starts).ravel(), b * n)
    picked = csr_array((np.ones(b * n), rows.ravel(), pointers), shape=(b * starts.size, n))
    return np.asarray(picked @ values).reshape(b, starts.size, values.shape[1])


def _drawn(
    rows: Rows, columns: Array, chance: Array, draws: int, rng: np.random.Generator
) -> Iterator[Array]:
    """Yield the statistics of the log and of draws in which each row draws its action."""
    tasks, K = int(rows.task.max()) + 1, chance.shape[1]
    bounds = np.cumsum(chance, axis=1)[:, :-1]
    columns = np.column_stack([columns, np.ones(len(columns))])
    mean = np.concatenate([_sums_by(rows.task, columns * chance[:, a : a + 1], tasks) for a in range(K)])
    number = np.flatnonzero(mean[:, -1] > 0)
    cells = _Cells(number % tasks, number // tasks)
    expected = mean[number, :-2] / mean[number, -1:]
    for b in range(draws + 1):
        action = (rng.random(rows.task.size)[:, None] >= bounds).sum(axis=1) if b else rows.action
        sums = _sums_by(action * tasks + rows.task, columns, K * tasks)[number]
        sums[:, :-2] -= expected * sums[:, -1:]
        yield cells.statistics(sums[None, :, :-1], sums[None, :, -1])


class _Cells:
    """Cells of tasks and actions; turns sums over cells into statistics.

    Parameters
    ----------
    task, action : (r,) int
        Task and action of each cell, actions in ascending order.
    """

    def __init__(self, task: Codes, action: Codes) -> None:
        self._task = np.unique(task, return_inverse=True)[1]
        self._action = np.unique(action, return_inverse=True)[1]
        self._starts = np.flatnonzero(np.concatenate([[True], action[1:] != action[:-1]]))

    def statistics(self, sums: Array, rows: Array) -> Array:
        """Return the statistics (b, 2 or 4) of sums (b, r, q), the last of e^2, and numbers of rows (b or 1, r)."""
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
        """Return the variance of e within the cells of each action (b, K), shrunk towards that of all actions."""
        within = sums[:, :, -1] - sums[:, :, 0] ** 2 / np.maximum(rows, 1.0)
        squares = self._of_actions(np.maximum(within, 0.0))
        free = np.broadcast_to(self._of_actions(np.maximum(rows - 1.0, 0.0)), squares.shape)
        overall = squares.sum(axis=1, keepdims=True) / np.maximum(free.sum(axis=1, keepdims=True), 1.0)
        return np.asarray((squares + _PRIOR * np.maximum(overall, ROUNDING)) / (free + _PRIOR))

    def _of_actions(self, values: Array) -> Array:
        return np.asarray(np.add.reduceat(values, self._starts, axis=1))

    def _of_tasks(self, values: Array) -> Array:
        """Return for each cell the sum over the cells of its task."""
        b, m = len(values), int(self._task.max()) + 1
        number = self._task + m * np.arange(b)[:, None]
        return np.asarray(np.bincount(number.reshape(-1), values.reshape(-1), b * m)[number])


def _p_value(statistics: Array) -> float:
    """Return the p-value of the first row (the log) of (1 + B, j), by the largest standardised column."""
    sd = statistics.std(axis=0)
    varies = sd > ROUNDING * np.abs(statistics).max(axis=0)
    standard = (statistics - statistics.mean(axis=0)) / np.where(varies, sd, np.inf)
    largest = standard.max(axis=1)
    reached = largest[1:] >= largest[0] - ROUNDING * max(abs(float(largest[0])), 1.0)
    return float((1 + np.count_nonzero(reached)) / largest.size)
