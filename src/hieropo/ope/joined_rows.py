"""Sums of rows, of which those of a task that depend on each other are one unit.

A cross-fitted policy of one fold is learned from the rows of the others. Where the policies of two folds differ in a
row, other rows of its task decide what it adds to an estimate, so that it depends on them.
"""

from typing import NamedTuple

import numpy as np

from hieropo._utils.arrays import Array, Codes, Mask
from hieropo.rows.keys import GrowingKeys

GROUPS = 101  # groups of rows; a prime, so that periodic rows are spread over all groups


class Units(NamedTuple):
    """Units that are taken as independent: single rows, and for each task its dependent rows together.

    Attributes
    ----------
    squares : (k, k) array
        Sum of Z Z' over the units.
    groups : (101 + t, k) array
        Sums of z over groups of single rows, and over the dependent rows of t tasks.
    number : float
        Number of units.
    effective : float
        (sum n)^2 / sum n^2 for units of n rows.
    """

    squares: Array
    groups: Array
    number: float
    effective: float


class JoinedRows:
    """Sums z (k,) of rows, batch by batch; the last entry of z counts rows.

    Parameters
    ----------
    size : int
        k.
    """

    def __init__(self, size: int) -> None:
        self._squares, self._groups, self._seen = np.zeros((size, size)), np.zeros((GROUPS, size)), 0
        self._tasks, self._dependent = GrowingKeys(), np.zeros((0, size))
        self._singles = 0.0

    def add(self, task: Codes, z: Array, counts: Array | None, dependent: Mask) -> None:
        """Add rows z (n, k) of tasks (n,), each ``counts`` (n,) times; ``dependent`` (n,) tells those to join."""
        weighted = z if counts is None else z * counts[:, None]
        single = ~dependent
        self._squares += z[single].T @ weighted[single]
        add_in_turn(self._groups, self._seen, weighted[single])
        self._seen += int(np.count_nonzero(single))
        self._singles += float(weighted[single, -1].sum())
        rows = self._tasks.rows(np.asarray(task)[dependent])
        more = np.zeros((len(self._tasks) - len(self._dependent), z.shape[1]))
        self._dependent = np.concatenate([self._dependent, more])
        np.add.at(self._dependent, rows, weighted[dependent])

    def units(self) -> Units | None:
        """Return the units of all rows so far; None where no row depends on another."""
        joined = self._dependent[self._dependent[:, -1] > 0]
        if not len(joined):
            return None
        sizes = joined[:, -1]
        squares = self._singles + float(sizes @ sizes)
        total = self._singles + float(sizes.sum())
        return Units(
            self._squares + joined.T @ joined, np.concatenate([self._groups, joined]),
            self._singles + len(joined), total**2 / squares if squares > 0 else 0.0,
        )  # fmt: skip


def add_in_turn(groups: Array, start: int, values: Array) -> None:
    """Add values (n, k) to groups (g, k) in turn, the first to group ``start`` modulo g."""
    count, first = len(groups), start % len(groups)
    padded = np.zeros((-(-(first + len(values)) // count) * count, values.shape[1]))
    padded[first : first + len(values)] = values
    groups += padded.reshape(-1, count, values.shape[1]).sum(axis=0)
