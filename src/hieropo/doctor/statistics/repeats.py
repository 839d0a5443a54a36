"""How often rows are equal, from their hashes: exact up to a number of distinct rows, then from a sample of them.

All copies of a row have one hash, so that the rows whose hash lies below a bound are a sample of the distinct rows,
each with all its copies (distinct sampling: Gibbons, VLDB 2001). The bound starts above all hashes and is halved
whenever more distinct ones lie below it than are kept.
"""

from dataclasses import dataclass

import numpy as np

from hieropo._utils.arrays import Codes, Hashes

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
