"""Summaries of a column in one pass: its kind and range, extreme values, and repeated rows.

Repeated rows: all copies of a row have one hash, so that the rows whose hash lies below a bound are a sample of the
distinct rows, each with all its copies (distinct sampling: Gibbons, VLDB 2001). The bound starts above all hashes and
is halved whenever more distinct hashes lie below it than are kept.

Extreme values: the smallest and largest numbers are kept with their rows, so that a placeholder such as -999 for a
missing reward can be named by its row. Sums over the other numbers never contain the kept ones, so that an extreme
value does not reduce their precision. Where most numbers are 0, the others are compared with one another.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from hieropo._utils.arrays import Array, Codes, Hashes, Mask

Kind = Literal["constant", "binary", "count", "few values", "continuous"]

FEW = 20  # distinct values that are counted


class Numbers:
    """Accumulate range, mean, sd and distinct values of a column; two accumulators combine in any order."""

    rows: int
    low: float
    high: float
    mean: float
    whole: bool

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
        with np.errstate(over="ignore", invalid="ignore"):  # values that overflow have no mean and no sd
            mean = float(values.mean())
            away = values - mean
            self._combine(values.size, mean, float(away @ away))
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.whole = self.whole and bool((values == np.rint(values)).all())
        if self.values is not None:
            self._add_distinct(values)

    def _combine(self, rows: int, mean: float, away: float) -> None:
        total = self.rows + rows
        step = mean - self.mean
        self._away += away + step * step * self.rows * rows / total
        self.mean += step * rows / total
        self.rows = total

    def _add_distinct(self, values: Array) -> None:
        assert self.values is not None
        if np.unique(values[:256]).size > FEW:
            self.values = None
            return
        distinct, counts = np.unique(values, return_counts=True)
        self._count(dict(zip(distinct[: FEW + 1].tolist(), counts.tolist(), strict=False)))

    def _count(self, counts: dict[float, int]) -> None:
        assert self.values is not None
        for value, count in counts.items():
            self.values[value] = self.values.get(value, 0) + count
        if len(self.values) > FEW:
            self.values = None

    def update(self, other: "Numbers") -> None:
        """Add the values of another accumulator."""
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
        """Standard deviation; 0 without rows, not finite where squares overflow."""
        return float(np.sqrt(self._away / self.rows)) if self.rows else 0.0

    @property
    def kind(self) -> Kind:
        """Kind of the numbers: constant, binary, count, few values or continuous."""
        if self.rows and self.low == self.high:
            return "constant"
        if self.values is not None and len(self.values) == 2:
            return "binary"
        if self.whole and self.low >= 0:
            return "count"
        return "continuous" if self.values is None else "few values"


MOST = 2**20  # distinct rows that are kept, 16 bytes each

_TELLING = 10.0  # expected rows with three copies from which on a lack of them is evidence
_LACK = 1.0 / 3.0  # share of the expected number below which they are lacking
_ENOUGH = 20  # distinct rows that a common number of copies needs


@dataclass(frozen=True, slots=True)
class RepeatCounts:
    """Numbers of distinct rows by their number of copies.

    Attributes
    ----------
    rows : int
    times : dict
        Distinct rows by the number of their copies; those of a sample where not exact.
    share : float
        Share of the distinct rows in the sample; 1 is exact.
    """

    rows: int
    times: dict[int, int]
    share: float

    @property
    def exact(self) -> bool:
        """True where all rows were counted."""
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
        """Greatest common divisor of all numbers of copies; 1 where there are few rows."""
        if sum(self.times.values()) < _ENOUGH:
            return 1
        return int(np.gcd.reduce(np.array(list(self.times), dtype=np.int64)))

    @property
    def beyond_chance(self) -> bool:
        """True where more rows have two copies than independent rows can give, judged by the number with three.

        Let N_k be the number of distinct rows with k copies. For independent rows, each distinct row with a rate of its
        own, the inequality of Cauchy and Schwarz over the rates gives expectations with 2 N_2^2 <= 3 N_1 N_3. Sending
        rows twice raises N_2 without N_3.
        """
        one, two, three = (self.times.get(k, 0) for k in (1, 2, 3))
        if not one:
            return False
        expected = 2.0 * two**2 / (3.0 * one)
        return expected >= _TELLING and three < _LACK * expected


class Repeats:
    """Accumulate hashes of rows batch by batch; two accumulators combine in any order."""

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
        """Add the values of another accumulator."""
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
        hashes, counts = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
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
        """Return the counts of all rows so far."""
        self._settle()
        times, distinct = np.unique(self._counts, return_counts=True)
        rows_by_copies = dict(zip(times.tolist(), distinct.tolist(), strict=True))
        return RepeatCounts(self._rows, rows_by_copies, 0.5**self._halved)


KEPT = 8  # numbers kept at each end
_FEW = 10  # rows below which nothing counts as extreme; at most one row in so many may be extreme
_FAR = 10.0  # standard deviations of all other numbers
_GAP = 4.0  # ratio to the distance of the farthest other number
_SMALL = 40.0  # over the number of others: both limits are larger by that share, since few others lie close together
_HALF, _TOLD = (
    0.5,
    5,
)  # share of zeros beyond which the others are what is not 0; so many of them tell something
_SAME = 1e-12  # share of the mean up to which an sd is rounding error


class Outlying(NamedTuple):
    """Numbers that are far from all others.

    Parameters
    ----------
    rows : tuple of int
        The rows that hold them.
    values : tuple of float
    mean, sd : float
        Mean and sd of all others; the sd of those that are not 0 where that is larger.
    distance, farthest : float
        The least distance to that mean, in standard deviations of the others, and the largest of one of the others.
    share : float
        Share of these numbers in the sum of squares around the mean of the others.
    """

    rows: tuple[int, ...]
    values: tuple[float, ...]
    mean: float
    sd: float
    distance: float
    farthest: float
    share: float


class Extremes:
    """Accumulate the smallest and largest numbers of a column; two accumulators combine in any order."""

    def __init__(self) -> None:
        self._values, self._rows = np.zeros(0), np.zeros(0, dtype=np.int64)  # ascending
        self._counted = np.zeros(0, dtype=np.bool_)
        self._n, self._mean, self._away = 0, 0.0, 0.0  # of all other nonzero numbers
        self._zeros = 0

    def add(self, values: Array, first_row: int | Codes, *, counted: bool = True) -> None:
        """Add values (n,) of rows that follow each other from ``first_row`` on, or have these numbers (n,).

        NaN are left out. Values that are not ``counted`` are kept if they are extreme, and do not enter the mean and sd
        of the others.
        """
        if not values.size:
            return
        low, high = float(values.min()), float(values.max())
        if self._values.size == 2 * KEPT and low >= self._values[KEPT - 1] and high <= self._values[KEPT]:
            if counted:
                self._count(values)
            return
        rows = np.arange(first_row, first_row + values.size) if isinstance(first_row, int) else first_row
        if np.isnan(low):
            kept = ~np.isnan(values)
            values, rows = values[kept], rows[kept]
        ends = self._ends(values)
        if counted:
            self._count(np.delete(values, ends))
        self._merge(values[ends], rows[ends], np.full(ends.size, counted))

    def update(self, other: "Extremes") -> None:
        """Add the values of another accumulator."""
        self._combine(other._n, other._mean, other._away)
        self._zeros += other._zeros
        self._merge(other._values, other._rows, other._counted)

    def _ends(self, values: Array) -> Codes:
        """Return the indices of possible extremes: at most `KEPT` on each side, the first of equal values."""
        if self._values.size == 2 * KEPT:
            candidates = np.flatnonzero((values < self._values[KEPT - 1]) | (values > self._values[KEPT]))
        else:
            candidates = np.arange(values.size)
        if candidates.size <= 2 * KEPT:
            return candidates
        low = _least(values[candidates])
        high = _least(-values[candidates])
        return candidates[np.union1d(low, high)]

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
        """Return all numbers that are far from the others, in a column of ``rows`` rows; None where there are none.

        They are more than 10 standard deviations of all others from their mean, and four times as far as the farthest
        of those; farther where the others are few.
        """
        n, mean, _ = _combined((self._n, self._mean, self._away), (self._zeros, 0.0, 0.0))
        if n + self._values.size < _FEW:
            return None
        centre = mean if n else float(np.median(self._values))
        order = np.lexsort((self._rows, -np.abs(self._values - centre)))
        outlying = None
        for k in range(1, self._most(order, rows) + 1):
            candidate = self._apart(order[:k], order[k:], rows)
            outlying = outlying if candidate is None else candidate
        return outlying

    def _most(self, order: Codes, rows: int) -> int:
        """Return the largest number of extremes: a tenth of all, and so few that a neighbour is kept on either side."""
        most = min(max(rows // _FEW, 1), order.size - 1)
        if not self._n + self._zeros:
            return most
        high = order >= KEPT
        used = np.maximum(np.cumsum(high), np.cumsum(~high))
        return min(most, int(np.searchsorted(used, KEPT)))

    def _apart(self, far: Codes, near: Codes, rows: int) -> Outlying | None:
        nonzero, zeros = (self._n, self._mean, self._away), self._zeros
        for value in self._values[near].tolist():
            nonzero = _combined(nonzero, (1, value, 0.0)) if value else nonzero
            zeros += not value
        n, mean, away = _combined(nonzero, (zeros, 0.0, 0.0))
        sd = (max(away / n, nonzero[2] / max(nonzero[0], 1))) ** 0.5
        distance = np.abs(self._values[far] - mean)
        farthest = float(np.abs(self._values[near] - mean).max())
        informative = nonzero[0] if zeros > _HALF * n else n
        if informative < _TOLD or not sd > _SAME * abs(mean):
            return None
        if not distance.min() > (1.0 + _SMALL / informative) * max(_FAR * sd, _GAP * farthest):
            return None
        square = float(distance @ distance)
        share = square / (square + sd * sd * max(rows - far.size, 1))
        ascending = far[np.argsort(self._rows[far])]
        return Outlying(
            tuple(self._rows[ascending].tolist()), tuple(self._values[ascending].tolist()), mean, sd,
            float(distance.min()) / sd, farthest / sd, share,
        )  # fmt: skip


def _least(values: Array) -> Codes:
    """Return the indices of the `KEPT` smallest values, the first of equal values."""
    limit = np.partition(values, KEPT - 1)[KEPT - 1]
    below = np.flatnonzero(values < limit)
    return np.append(below, np.flatnonzero(values == limit)[: KEPT - below.size])


def _combined(first: tuple[int, float, float], second: tuple[int, float, float]) -> tuple[int, float, float]:
    """Return number, mean and sum of squares around the mean of the union of two sets of numbers."""
    n = first[0] + second[0]
    if not n:
        return first
    step = second[1] - first[1]
    return n, first[1] + step * second[0] / n, first[2] + second[2] + step * step * first[0] * second[0] / n
