"""Tests of the logging policy by its choices: variation between tasks, reaction to rewards, and drift of rewards.

Where the incumbent did not learn from the rows, and rewards do not move with time, the rewards of one cell, a task with
an action, are exchangeable given all choices. A sum of e_t h_t over rows, e_t being a reward less the mean of its cell
and h_t any function of the choices, then has the mean 0 and the variance

    sum over cells of  sum e_t^2 / (n - 1)  *  sum (h_t - mean h)^2

exactly, for any knowledge of the incumbent and any distribution of rewards. The rows must be in the order of time,
which :meth:`times.Timeline.disorder` checks. Two h are used: the share of the action among the later rows of its task
less its share in all of them (a reaction), and the position of the row in its task (a trend).
"""

from typing import NamedTuple

import numpy as np

from hieropo._utils.arrays import Array
from hieropo.logging_policy import cells as field
from hieropo.logging_policy.cells import Cells

_RARE = 20  # rows below which actions are pooled


class Sign(NamedTuple):
    """The result of a test.

    Attributes
    ----------
    z : float
        Approximately standard normal under the null.
    effect : float
        Size of the effect, in the unit of the test.
    rows : int
        Number of rows that inform it.
    """

    z: float
    effect: float
    rows: int


def difference(counts: Array) -> Sign | None:
    """Return a test of equal shares of actions in all tasks; None with fewer than two tasks or actions.

    The statistic is the sum of Pearson's X^2 over tasks with two rows or more, standardised by its mean and variance
    under one multinomial (Haldane 1937); rare actions are pooled. The effect is 1 / (1 + c) for a Dirichlet with the
    concentration c: 0 where all tasks have the same shares, 1 where each task has a single action.
    """
    table = counts[counts.sum(axis=1) >= 2]
    total = table.sum(axis=0)
    rare = total < _RARE
    if rare.sum() > 1 or (rare.any() and total[rare].sum() < _RARE):
        table = np.column_stack([table[:, ~rare], table[:, rare].sum(axis=1)])
        total = table.sum(axis=0)
    table, total = table[:, total > 0], total[total > 0]
    m, k = table.shape
    if m < 2 or k < 2:
        return None
    rows, share = table.sum(axis=1), total / total.sum()
    square = ((table - rows[:, None] * share) ** 2 / (rows[:, None] * share)).sum(axis=1)
    expected = (k - 1.0) * (m - 1.0) / m
    variance = 2.0 * (k - 1.0) + ((1.0 / share).sum() - k**2 - 2.0 * k + 2.0) / rows
    excess = float(square.sum() - expected * m)
    largest = (k - 1.0) * float((rows - 1.0).sum())
    return Sign(excess / float(np.sqrt(variance.sum())), max(excess, 0.0) / largest, int(rows.sum()))


def reaction(cells: Cells) -> Sign | None:
    """Return a test of reactions to rewards: positive where an action is more frequent after high rewards of it."""
    n, total, e_i, e_j, within = _sums(cells)
    share = (n - 1.0) / np.maximum(total - 1.0, 1.0)
    ii = n * (n**2 - 1.0) / 12.0
    jj, ij = _around(cells)
    h_squares = ii + share**2 * jj - 2.0 * share * ij
    return _sign(-e_i + share * e_j, h_squares, n, total, within)


def trend(cells: Cells) -> Sign | None:
    """Return a test of drifting rewards; the effect is the drift from a task's first row to its last, in reward sds."""
    n, total, _, e_j, within = _sums(cells)
    return _sign(e_j, _around(cells)[0], n, total, within)


def _sums(cells: Cells) -> tuple[Array, Array, Array, Array, Array]:
    """Return, of cells with two rows or more: rows, rows of the task, sums of e i, of e j, and of e^2 / (n - 1)."""
    c = _cells(cells)
    n, mean = c[:, field.ROWS], c[:, field.SUM] / c[:, field.ROWS]
    total = np.broadcast_to(cells.rows[: len(cells.cells), None], cells.counts.shape)[cells.counts >= 2]
    within = np.maximum(c[:, field.SQUARES] - n * mean**2, 0.0)
    within[within <= 1e-12 * c[:, field.SQUARES]] = 0.0  # rounding
    e_i = c[:, field.SUM_I] - mean * n * (n - 1.0) / 2.0
    return n, total, e_i, c[:, field.SUM_J] - mean * c[:, field.J], within / (n - 1.0)


def _cells(cells: Cells) -> Array:
    return np.asarray(cells.cells[cells.counts >= 2])


def _around(cells: Cells) -> tuple[Array, Array]:
    """Return the sums of squares of j, and of products with i, around their means in each cell."""
    c = _cells(cells)
    n, j = c[:, field.ROWS], c[:, field.J]
    return np.maximum(c[:, field.JJ] - j**2 / n, 0.0), c[:, field.IJ] - j * (n - 1.0) / 2.0


def _sign(score: Array, h_squares: Array, n: Array, total: Array, within: Array) -> Sign | None:
    variance = within * np.maximum(h_squares, 0.0) / total**2
    informative = variance > 0
    if not informative.any():
        return None
    score = np.where(informative, score, 0.0) / total
    size = float((np.maximum(h_squares, 0.0) / total**2)[informative].sum())
    sd = float(np.sqrt((within * (n - 1.0))[informative].sum() / (n - 1.0)[informative].sum()))
    z = float(score.sum() / np.sqrt(variance[informative].sum()))
    return Sign(z, float(score.sum()) / size / sd, int(n[informative].sum()))


def effective(weights: Array, squares: Array) -> float:
    """Return Kish's effective sample size from sums of weights and of their squares."""
    total = float(squares.sum())
    return float(weights.sum()) ** 2 / total if total > 0 else 0.0
