"""The few smallest and largest of many numbers with the rows that hold them, and what all others are like.

Rewards that are no rewards, such as -999 for a missing one, are then named by their rows. Sums over the others never
hold the kept ones, so that a number of any size costs them no digits. Where most numbers are 0, as where nothing was
bought, those that are not are compared with one another.
"""

from typing import NamedTuple

import numpy as np

from hieropo._utils.arrays import Array, Codes, Mask

KEPT = 8  # numbers on each side
_FEW = 10  # rows that do not tell what is far off; and of so many rows, one may be
_FAR = 10.0  # standard deviations of all others
_GAP = 4.0  # times as far as the farthest of the others
_SMALL = 40.0  # over the number of the others: by that share both have to be larger, for few others lie close together
_HALF, _TOLD = (
    0.5,
    5,
)  # share of zeros beyond which the others are what is not 0; so many of them tell something
_SAME = 1e-12  # share of the mean, up to which an sd is rounding


class Outlying(NamedTuple):
    """Numbers that lie far from all others.

    Parameters
    ----------
    rows : tuple of int
        The rows that hold them.
    values : tuple of float
    mean, sd : float
        Of all others; the sd is that of those that are not 0 where it is larger.
    distance, farthest : float
        The least distance to that mean, in standard deviations of the others, and the largest of one of the others.
    share : float
        Of the sum of squares around the mean of the others, that they make.
    """

    rows: tuple[int, ...]
    values: tuple[float, ...]
    mean: float
    sd: float
    distance: float
    farthest: float
    share: float


class Extremes:
    """The ends of a column of numbers in the making; two of them add in any order."""

    def __init__(self) -> None:
        self._values, self._rows = np.zeros(0), np.zeros(0, dtype=np.int64)  # ascending
        self._counted = np.zeros(0, dtype=np.bool_)
        self._n, self._mean, self._away = 0, 0.0, 0.0  # of all others but zeros
        self._zeros = 0

    def add(self, values: Array, first_row: int, *, counted: bool = True) -> None:
        """Add values (n,) of rows that follow each other from ``first_row`` on; NaN are left out.

        Of values that are not ``counted`` only those at the ends are kept: they say nothing of what others are like.
        """
        if not values.size:
            return
        low, high = float(values.min()), float(values.max())
        if self._values.size == 2 * KEPT and low >= self._values[KEPT - 1] and high <= self._values[KEPT]:
            if counted:
                self._count(values)
            return
        rows = np.arange(first_row, first_row + values.size)
        if np.isnan(low):
            kept = ~np.isnan(values)
            values, rows = values[kept], rows[kept]
        ends = self._ends(values)
        if counted:
            self._count(np.delete(values, ends))
        self._merge(values[ends], rows[ends], np.full(ends.size, counted))

    def update(self, other: "Extremes") -> None:
        """Add what another one has collected."""
        self._combine(other._n, other._mean, other._away)
        self._zeros += other._zeros
        self._merge(other._values, other._rows, other._counted)

    def _ends(self, values: Array) -> Codes:
        """Return which values may belong to the ends: at most `KEPT` on each side, of equal ones the first."""
        if self._values.size == 2 * KEPT:
            some = np.flatnonzero((values < self._values[KEPT - 1]) | (values > self._values[KEPT]))
        else:
            some = np.arange(values.size)
        if some.size <= 2 * KEPT:
            return some
        low = _least(values[some])
        high = _least(-values[some])
        return some[np.union1d(low, high)]

    def _merge(self, values: Array, rows: Codes, counted: Mask) -> None:
        values, rows = np.append(self._values, values), np.append(self._rows, rows)
        counted = np.append(self._counted, counted)
        order = np.lexsort((rows, values))
        values, rows, counted = values[order], rows[order], counted[order]
        if values.size > 2 * KEPT:
            middle = slice(KEPT, values.size - KEPT)
            self._count(values[middle][counted[middle]])
            ends = np.r_[0:KEPT, values.size - KEPT : values.size]
            values, rows, counted = values[ends], rows[ends], counted[ends]
        self._values, self._rows, self._counted = values, rows, counted

    def _count(self, values: Array) -> None:
        if zeros := int(values.size - np.count_nonzero(values)):
            self._zeros += zeros
            values = values[values != 0.0]
        if values.size:
            mean = float(values.mean())
            away = values - mean
            self._combine(values.size, mean, float(np.square(away, out=away).sum()))

    def _combine(self, n: int, mean: float, away: float) -> None:
        self._n, self._mean, self._away = _combined((self._n, self._mean, self._away), (n, mean, away))

    def ends(self) -> tuple[tuple[int, float], tuple[int, float]]:
        """Return row and value of the smallest and of the largest number."""
        low, high = ((int(self._rows[k]), float(self._values[k])) for k in (0, -1))
        return low, high

    def outlying(self, rows: int) -> Outlying | None:
        """Return numbers that lie far from all others, as many as there are, of so many rows; None where none does.

        They are more than 10 standard deviations of all others from their mean, and four times as far as the farthest
        of those; farther where the others are few.
        """
        n, mean, _ = _combined((self._n, self._mean, self._away), (self._zeros, 0.0, 0.0))
        if n + self._values.size < _FEW:
            return None
        centre = mean if n else float(np.median(self._values))
        order = np.lexsort((self._rows, -np.abs(self._values - centre)))
        found = None
        for k in range(1, self._most(order, rows) + 1):
            one = self._apart(order[:k], order[k:], rows)
            found = found if one is None else one
        return found

    def _most(self, order: Codes, rows: int) -> int:
        """Return how many may be far off: at most a tenth of all, and no more than leave a next one on either side."""
        most = min(max(rows // _FEW, 1), order.size - 1)
        if not self._n + self._zeros:
            return most
        high = order >= KEPT
        used = np.maximum(np.cumsum(high), np.cumsum(~high))
        return min(most, int(np.searchsorted(used, KEPT)))

    def _apart(self, far: Codes, near: Codes, rows: int) -> Outlying | None:
        some, zeros = (self._n, self._mean, self._away), self._zeros
        for value in self._values[near].tolist():
            some = _combined(some, (1, value, 0.0)) if value else some
            zeros += not value
        n, mean, away = _combined(some, (zeros, 0.0, 0.0))
        sd = (max(away / n, some[2] / max(some[0], 1))) ** 0.5
        distance = np.abs(self._values[far] - mean)
        farthest = float(np.abs(self._values[near] - mean).max())
        told = some[0] if zeros > _HALF * n else n
        if told < _TOLD or not sd > _SAME * abs(mean):
            return None
        if not distance.min() > (1.0 + _SMALL / told) * max(_FAR * sd, _GAP * farthest):
            return None
        square = float(distance @ distance)
        share = square / (square + sd * sd * max(rows - far.size, 1))
        at = far[np.argsort(self._rows[far])]
        return Outlying(
            tuple(self._rows[at].tolist()), tuple(self._values[at].tolist()), mean, sd, float(distance.min()) / sd,
            farthest / sd, share,
        )  # fmt: skip


def _least(values: Array) -> Codes:
    """Return where the `KEPT` least of more values stand, of equal ones the first."""
    limit = np.partition(values, KEPT - 1)[KEPT - 1]
    below = np.flatnonzero(values < limit)
    return np.append(below, np.flatnonzero(values == limit)[: KEPT - below.size])


def _combined(one: tuple[int, float, float], two: tuple[int, float, float]) -> tuple[int, float, float]:
    """Number, mean and sum of squares around it, of two sets of numbers together."""
    n = one[0] + two[0]
    if not n:
        return one
    step = two[1] - one[1]
    return n, one[1] + step * two[0] / n, one[2] + two[2] + step * step * one[0] * two[0] / n
