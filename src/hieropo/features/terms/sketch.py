"""Statistics of one column that add in any order: counts of levels, and a sketch of quantiles."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array

UNIT = 1 << 16  # a row of weight 1 in fixed point, so that counts add exactly
MOST_WEIGHT = float(1 << 30)
CELLS = 4_096  # cells of a sketch

_SIGN = np.uint64(1 << 63)


def fixed_point(weight: Array | None, rows: int) -> NDArray[np.int64]:
    """Return the weights (n,) of rows as whole multiples of 1 / UNIT; 0 only for a weight that is not above 0."""
    if weight is None:
        return np.full(rows, UNIT, dtype=np.int64)
    usable = np.isfinite(weight) & (weight > 0)
    scaled = np.where(usable, np.clip(weight, 1 / UNIT, MOST_WEIGHT), 0.0) * UNIT
    return np.asarray(np.rint(scaled), dtype=np.int64)


def totals(codes: NDArray[np.int64], weight: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return the exact sum of the weights of each code in 0 .. size - 1."""
    if weight.size and weight.min() == weight.max():
        return np.asarray(np.bincount(codes, minlength=size) * weight[0])
    sums = np.zeros(size, dtype=np.int64)
    np.add.at(sums, codes, weight)
    return sums


@dataclass
class Quantiles:
    """A sketch of the quantiles of numbers; sketches add, and do not depend on the order of rows.

    A cell holds all numbers whose bits, in the order of numbers, agree but for the last ``shift``. Every number has a
    cell of its own while there are at most ``CELLS`` different ones; beyond, ``shift`` is the smallest with which there
    are at most that many cells. So it is a function of the set of numbers alone, and so are the counts.
    """

    shift: int = 0
    cells: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    counts: list[int] = field(default_factory=list)

    def add(self, numbers: Array, weight: NDArray[np.int64]) -> None:
        """Add finite numbers (n,) with weights in fixed point."""
        kept = weight > 0
        ordered = _ordered(numbers[kept])
        self._coarsen(_least_shift(np.sort(ordered >> np.uint64(self.shift))) + self.shift)
        cells, codes = np.unique(ordered >> np.uint64(self.shift), return_inverse=True)
        self._join(cells, totals(codes, weight[kept], cells.size).tolist())

    def merge(self, other: "Quantiles") -> None:
        """Add the numbers of another sketch."""
        shift = max(self.shift, other.shift)
        self._coarsen(shift)
        self._join(*_coarser(other.cells, other.counts, shift - other.shift))

    def _join(self, cells: NDArray[np.uint64], counts: list[int]) -> None:
        self.cells, self.counts = _coarser(np.concatenate([self.cells, cells]), [*self.counts, *counts], 0)
        self._coarsen(self.shift + _least_shift(self.cells))

    def _coarsen(self, shift: int) -> None:
        if shift > self.shift:
            self.cells, self.counts = _coarser(self.cells, self.counts, shift - self.shift)
            self.shift = shift

    def at(self, shares: list[float]) -> list[float]:
        """Return quantiles, interpolated between order statistics as ``numpy.quantile`` does.

        A row of weight k counts as k rows; a number stands for its cell by the middle of the cell.
        """
        if not self.counts:
            return []
        values, ends = self._middles(), np.cumsum(np.array(self.counts, dtype=object))
        total = int(ends[-1])
        quantiles = []
        for share in shares:
            rank = share * (total / UNIT - 1.0)  # from 0; a total below one row has a rank below 0
            low = np.floor(max(rank, 0.0))
            below, above = (values[_first_beyond(ends, int(k * UNIT), total)] for k in (low, low + 1.0))
            quantiles.append(float(below + (above - below) * (max(rank, 0.0) - low)))
        return quantiles

    def values(self) -> tuple[Array, Array]:
        """Return the middles of the cells (m,) and the rows in each (m,)."""
        return self._middles(), np.array(self.counts, dtype=np.float64) / UNIT

    def _middles(self) -> Array:
        low = self.cells << np.uint64(self.shift)
        if not self.shift:
            return _unordered(low)
        return _unordered(low | np.uint64(1 << (self.shift - 1)))


def _least_shift(cells: NDArray[np.uint64]) -> int:
    """Return the smallest shift with which sorted cells (m,) are at most ``CELLS`` different ones."""
    changes, low, high = cells[1:] ^ cells[:-1], 0, 64
    while low < high:
        middle = (low + high) // 2
        few = np.count_nonzero(changes >> np.uint64(middle)) < CELLS
        low, high = (low, middle) if few else (middle + 1, high)
    return low


def _first_beyond(ends: NDArray[np.object_], rank: int, total: int) -> int:
    """Return the first cell whose rows end beyond a rank; the last cell for a rank beyond all."""
    return int(np.searchsorted(ends, min(rank, total - 1), side="right"))


def _coarser(
    cells: NDArray[np.uint64], counts: list[int], shift: int
) -> tuple[NDArray[np.uint64], list[int]]:
    """Return cells with ``shift`` fewer bits, each once and sorted, and the sums of their counts."""
    joined, codes = np.unique(cells >> np.uint64(shift), return_inverse=True)
    sums = [0] * joined.size
    for code, count in zip(codes.tolist(), counts, strict=True):
        sums[code] += count
    return joined, sums


def _ordered(numbers: Array) -> NDArray[np.uint64]:
    """Return the bits of numbers (n,) as whole numbers in the same order; -0.0 is 0.0."""
    bits = (numbers + 0.0).view(np.uint64)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def _unordered(ordered: NDArray[np.uint64]) -> Array:
    bits = np.where(ordered & _SIGN, ordered ^ _SIGN, ~ordered)
    return bits.view(np.float64)
