"""Summaries of a column in one pass: its kind and range, values far from all others, and rows that repeat.

All copies of a row have one hash, so that the rows whose hash lies below a bound are a sample of the distinct rows,
each with all its copies (distinct sampling: Gibbons, VLDB 2001). The bound starts above all hashes and is halved
whenever more distinct ones lie below it than are kept.

Rewards that are no rewards, such as -999 for a missing one, are then named by their rows. Sums over the others never
hold the kept ones, so that a number of any size costs them no digits. Where most numbers are 0, as where nothing was
bought, those that are not are compared with one another.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from hieropo._utils.arrays import Array, Codes, Hashes, Mask

Kind = Literal["constant", "binary", "count", "few values", "continuous"]

FEW = 20  # distinct values that are told apart


class Numbers:
    """A column of numbers in the making; two of them add in any order."""

    def __init__(self) -> None:
        self.rows = 0
        self.low, self.high, self.mean, self._away = np.inf, -np.inf, 0.0, 0.0
        self.whole = True
        self.values: dict[float, int] | None = {}

    def add(self, values: Array) -> None:
        """Add values (n,); NaN are left out."""
        if values.size and np.isnan(values.min()):
            values = values[~np.isnan(values)]
        if not values.size:
            return
        low, high = float(values.min()), float(values.max())
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # beyond the reach of a float there is no mean, no spread
            mean = float(values.mean())
            away = values - mean
            self._combine(values.size, mean, float(away @ away))
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.whole = self.whole and bool((values == np.rint(values)).all())
        if self.values is not None:
            self._tell_apart(values)

    def _combine(self, rows: int, mean: float, away: float) -> None:
        total = self.rows + rows
        step = mean - self.mean
        self._away += away + step * step * self.rows * rows / total
        self.mean += step * rows / total
        self.rows = total

    def _tell_apart(self, values: Array) -> None:
        assert self.values is not None
        if np.unique(values[:256]).size > FEW:
            self.values = None
            return
        found, counts = np.unique(values, return_counts=True)
        self._count(dict(zip(found[: FEW + 1].tolist(), counts.tolist(), strict=False)))

    def _count(self, found: dict[float, int]) -> None:
        assert self.values is not None
        for value, count in found.items():
            self.values[value] = self.values.get(value, 0) + count
        if len(self.values) > FEW:
            self.values = None

    def update(self, other: "Numbers") -> None:
        """Add what another one has collected."""
        if not other.rows:
            return
        self._combine(other.rows, other.mean, other._away)
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.whole = self.whole and other.whole
        if self.values is not None and other.values is not None:
            self._count(other.values)
        else:
            self.values = None

    @property
    def sd(self) -> float:
        """Standard deviation, 0 of no rows; not finite where squares are beyond the reach of a float."""
        return float(np.sqrt(self._away / self.rows)) if self.rows else 0.0

    @property
    def kind(self) -> Kind:
        """What kind of numbers they are."""
        if self.rows and self.low == self.high:
            return "constant"
        if self.values is not None and len(self.values) == 2:
            return "binary"
        if self.whole and self.low >= 0:
            return "count"
        return "continuous" if self.values is None else "few values"


MOST = 2**20  # distinct rows that are kept, 16 bytes each

_TELLING = 10.0  # triples that chance would make, from which on their lack tells
_LACK = 1.0 / 3.0  # of those
_ENOUGH = 20  # distinct rows that a common number of copies is told by


@dataclass(frozen=True, slots=True)
class RepeatCounts:
    """How many distinct rows come how often.

    Attributes
    ----------
    rows : int
    times : dict
        Distinct rows by the number of their copies; those of a sample where not exact.
    share : float
        Of the distinct rows, that the sample was drawn with; 1 is exact.
    """

    rows: int
    times: dict[int, int]
    share: float

    @property
    def exact(self) -> bool:
        """Whether all rows were counted."""
        return self.share == 1.0

    @property
    def distinct(self) -> float:
        """Distinct rows; an estimate where not exact."""
        return sum(self.times.values()) / self.share

    @property
    def repeated(self) -> float:
        """Rows that repeat an earlier one; an estimate where not exact."""
        return sum((copies - 1) * kinds for copies, kinds in self.times.items()) / self.share

    @property
    def copies(self) -> int:
        """How often every row is there: the greatest common divisor of all numbers of copies; 1 of few rows."""
        if sum(self.times.values()) < _ENOUGH:
            return 1
        return int(np.gcd.reduce(np.array(list(self.times), dtype=np.int64)))

    @property
    def beyond_chance(self) -> bool:
        """Whether more rows come twice than chance can make, given how few come three times.

        Of rows that are drawn, each kind with a rate of its own, N_1, N_2, N_3 kinds come once, twice, three times; by
        the inequality of Cauchy and Schwarz over the rates the expectations have 2 N_2^2 <= 3 N_1 N_3. Copies made by
        sending rows again make N_2 without N_3.
        """
        one, two, three = (self.times.get(k, 0) for k in (1, 2, 3))
        if not one:
            return False
        expected = 2.0 * two**2 / (3.0 * one)
        return expected >= _TELLING and three < _LACK * expected


class Repeats:
    """Hashes in the making, batch by batch; two of them add in any order."""

    def __init__(self, most: int = MOST) -> None:
        self._most, self._halved, self._rows = most, 0, 0
        self._hashes, self._counts = np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64)
        self._waiting: list[tuple[Hashes, Codes]] = []
        self._waits = 0

    def add(self, hashes: Hashes) -> None:
        """Add the hashes of rows (n,)."""
        self._rows += hashes.size
        kept = hashes if not self._halved else hashes[hashes >> np.uint64(64 - self._halved) == 0]
        self._wait(kept, np.ones(kept.size, dtype=np.int64))

    def update(self, other: "Repeats") -> None:
        """Add what another one has collected."""
        other._settle()
        self._rows += other._rows
        self._halved = max(self._halved, other._halved)
        self._wait(other._hashes, other._counts)
        self._settle()

    def _wait(self, hashes: Hashes, counts: Codes) -> None:
        self._waiting.append((hashes, counts))
        self._waits += hashes.size
        if self._waits > self._most:
            self._settle()

    def _settle(self) -> None:
        parts = [(self._hashes, self._counts), *self._waiting]
        hashes, counts = (np.concatenate(each) for each in zip(*parts, strict=True))
        self._waiting, self._waits = [], 0
        order = np.argsort(hashes)
        hashes, counts = hashes[order], counts[order]
        first = (
            np.flatnonzero(np.append(True, hashes[1:] != hashes[:-1]))
            if hashes.size
            else np.zeros(0, np.int64)
        )
        self._hashes = hashes[first]
        self._counts = np.add.reduceat(counts, first) if first.size else counts
        while True:
            below = self._below()
            if below <= self._most:
                break
            self._halved += 1
        self._hashes, self._counts = self._hashes[:below], self._counts[:below]

    def _below(self) -> int:
        if not self._halved:
            return self._hashes.size
        return int(np.searchsorted(self._hashes, np.uint64(1) << np.uint64(64 - self._halved)))

    def counts(self) -> RepeatCounts:
        """Return what there is."""
        self._settle()
        times, kinds = np.unique(self._counts, return_counts=True)
        found = dict(zip(times.tolist(), kinds.tolist(), strict=True))
        return RepeatCounts(self._rows, found, 0.5**self._halved)


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
