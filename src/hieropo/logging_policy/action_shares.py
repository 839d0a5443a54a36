"""Shares of actions in each task, shrunk to those of all tasks.

With n_sa rows of action a among the n_s rows of task s, shares vary by a Dirichlet law with mean pi (what all tasks do)
and concentration c, and

    p_sa = (n_sa + c pi_a) / (n_s + c)

A row is predicted without itself: with n_sa - 1 and n_s - 1 where a is its action. Under that law the expectation of
1{action = a} / p, given the other rows, is exactly 1. The concentration maximises the log score of all rows so
predicted.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array, Codes, Mask, sealed
from hieropo._utils.text import counted
from hieropo._utils.ties import first_largest
from hieropo.errors import InputError

Counts = NDArray[np.integer] | Array

LOWEST, HIGHEST = float(np.log(1e-3)), float(np.log(1e6))  # of the log concentration
_GRID = 12
_ALONE = 0.99  # share of rows, in tasks with one action, from which on a log counts as deterministic
_CHANCE = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """Shrunken shares of actions; made by :func:`learn_shares`.

    Attributes
    ----------
    counts : (m + 1, K) array
        n_sa; the last row is a task without rows, so that the row -1 is an unknown task.
    rows : (m + 1,) array
        n_s.
    population : (K,) array
        pi, adds to 1; 0 for actions that were never taken.
    concentration : float
        c: from this number of rows on a task's own rows weigh more than the population's share.
    """

    counts: Array
    rows: Array
    population: Array
    concentration: float

    def __post_init__(self) -> None:
        for array in (self.counts, self.rows, self.population):
            sealed(array)

    @property
    def n_actions(self) -> int:
        """K."""
        return self.population.size

    def strengths(self, task: Codes, mask: Mask | None = None, taken: Codes | None = None) -> Array:
        """Return shares p (n, K) for rows of these tasks, 0 for actions that are not eligible.

        With the actions ``taken`` (n,), for rows that were learned from, each is said without its own row.
        """
        above = self.counts[task] + self.concentration * self.population
        below = self.rows[task] + self.concentration
        if taken is not None:
            above[np.arange(task.size), taken] -= 1.0
            below = below - 1.0
        found = above / below[:, None]
        return found if mask is None else np.where(mask, found, 0.0)

    def taken(self, task: Codes, action: Codes) -> Array:
        """Probability (n,) of the action taken where all were eligible, without the row itself."""
        above = self.counts[task, action] - 1.0 + self.concentration * self.population[action]
        return np.asarray(above / (self.rows[task] - 1.0 + self.concentration))


def learn_shares(counts: Counts) -> Shares:
    """Learn shares, and how much tasks differ.

    For a concentration c, pi is the mean of the tasks' shares with the weights n_s / (1 + (n_s - 1) / (1 + c)), the
    inverse of their variances; c maximises the log score of rows that are predicted without themselves.

    Parameters
    ----------
    counts : (m, K) int
        Rows of each action in each task.

    Raises
    ------
    InputError
        There are no rows, or a count is negative.
    """
    table = np.asarray(counts, dtype=np.float64)
    if table.ndim != 2 or not (table >= 0).all() or not table.sum():
        raise InputError(
            f"Counts of shape {table.shape} with the sum {table.sum():g} are no counts of actions (m, K): they must "
            "not be negative, and at least one row is needed."
        )
    rows = table.sum(axis=1)
    task, action = np.nonzero(table)
    times = table[task, action]

    def score(log_c: float) -> float:
        c = float(np.exp(log_c))
        above = times - 1.0 + c * _population(table, rows, c)[action]
        return float(times @ np.log(above / (rows[task] - 1.0 + c)))

    c = float(np.exp(largest(score)))
    return Shares(
        np.concatenate([table, np.zeros((1, table.shape[1]))]),
        np.append(rows, 0.0),
        _population(table, rows, c),
        c,
    )


def _population(counts: Array, rows: Array, c: float) -> Array:
    total = (1.0 / (1.0 + np.maximum(rows - 1.0, 0.0) / (1.0 + c))) @ counts
    return np.asarray(total / total.sum())


def largest(score: Callable[[float], float], grid: int = _GRID) -> float:
    """Return the log concentration with the largest score: the best of a grid, refined."""
    from scipy.optimize import minimize_scalar

    points = np.linspace(LOWEST, HIGHEST, grid)
    scores = [score(each) for each in points]
    best = int(first_largest(scores))
    around = points[max(best - 1, 0)], points[min(best + 1, grid - 1)]
    found = minimize_scalar(
        lambda each: -score(each), bounds=around, method="bounded", options={"xatol": 0.02}
    )
    return float(found.x if -found.fun > scores[best] else points[best])


def always_one_action(counts: Counts) -> str | None:
    """Say why the actions of a log look as if each task always got the same one; None where they do not.

    At least 99 % of the rows, of tasks with several, lie in tasks with one action, though with the shares of all rows
    so few mixed tasks have a probability below 0.001: exact where there are none, else about that of a Poisson law.

    Parameters
    ----------
    counts : (m, K) int
        Rows of each action in each task.
    """
    from scipy.special import pdtr

    table = np.asarray(counts, dtype=np.float64)
    table = table[table.sum(axis=1) > 0]
    total, rows = table.sum(axis=0), table.sum(axis=1)
    if np.count_nonzero(total) < 2:
        return "the log has one action only"
    several = rows >= 2
    alone = several & (table.max(axis=1) == rows)
    mixed = int(np.count_nonzero(several) - np.count_nonzero(alone))
    shares = total / total.sum()
    lengths, times = np.unique(rows[several], return_counts=True)
    top = shares.max()
    logs = lengths * np.log(top) + np.log(
        ((shares / top) ** lengths[:, None]).sum(axis=1)
    )  # of one action alone
    if not several.any() or rows[alone].sum() < _ALONE * rows[several].sum():
        return None
    if (pdtr(mixed, times @ -np.expm1(logs)) if mixed else np.exp(times @ logs)) >= _CHANCE:
        return None
    which = f"all but {counted(mixed, 'task')}" if mixed else "every task"
    same = counted(int(np.count_nonzero(alone)), "task")
    return f"{which} with several rows got one and the same action in all of them ({same})"
