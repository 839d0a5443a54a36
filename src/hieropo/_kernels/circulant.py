"""The memory layout of the running sums of a task while rows are added: cyclic diagonals of z z'.

They fill whole vectors and cache lines.

Of z with n entries, diagonal k holds ``w z_i z_{i + k mod n}`` for i = 0 .. n - 1. Diagonals 0 .. n / 2 hold each pair
once; where n is even, the last of them needs only its first half. With z stored one and a half times, each is a
product of z with the same memory from entry k on, so that a row is added without masks or shuffles, and two rows of one
task write the same vectors.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.packed import triangle

LANES = 4  # doubles of a vector
LINE = 8  # doubles of a cache line
BLOCK = 128  # rows that the pass processes together
KINDS = ("f4", "f8", "i4", "i8")  # types of columns that are read in place, by their number


@dataclass(frozen=True, slots=True)
class CirculantLayout:
    """The layout of the cyclic diagonals of z z'.

    Parameters
    ----------
    count : int
        Entries n of z.
    """

    count: int

    @property
    def width(self) -> int:
        """Vectors of a diagonal."""
        return -(-self.count // LANES)

    @property
    def whole(self) -> int:
        """Diagonals of n products."""
        return (self.count + 1) // 2

    @property
    def last(self) -> int:
        """Vectors of the half diagonal that follows where n is even."""
        return 0 if self.count % 2 else -(-self.count // 2 // LANES)

    @property
    def again(self) -> int:
        """Entries of z that are repeated after it."""
        return (self.count - 1) // 2

    @property
    def length(self) -> int:
        """Doubles of all diagonals, up to a whole cache line."""
        return -(-LANES * (self.whole * self.width + self.last) // LINE) * LINE

    @property
    def row(self) -> int:
        """Doubles of a stored row of z, with padding for whole vectors."""
        return -(-(self.count + self.count // 2 + 2 * LANES) // LINE) * LINE

    def offsets(self) -> NDArray[np.int64]:
        """Return the offsets of the entries of the packed triangle of z z'."""
        i, j = triangle(self.count)
        k = j - i
        short = 2 * k <= self.count
        return np.where(short, k, self.count - k) * LANES * self.width + np.where(short, i, j)
