"""Running sums in memory that grows without being copied, and their way to a table and back."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hieropo.core.arrays import normalised
from hieropo.core.turns import LINE, Turns

Array = NDArray[np.float64]
Codes = NDArray[np.int64]

_CHUNK = 2**23  # bytes that are taken from memory at once


class Spots(NamedTuple):
    """Where the sums of a task go in a table with a row for each task.

    Entry ``source[a, e]`` of its sums number a is column ``target[a, e]``.
    """

    source: Codes
    target: Codes


def packed_spots(count: int) -> Spots:
    """Return the spots of the packed triangle of z z', z with ``count`` entries, one sum a task."""
    source = Turns(count).places()
    return Spots(source[None], np.arange(source.size)[None])


class Chunks:
    """So many doubles for each code, zero at first, in chunks that stay where they are while more codes come.

    Parameters
    ----------
    length : int
        Doubles of a code.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.shift = max(0, int(np.log2(_CHUNK / (8 * length))))
        self.addresses: Codes = np.zeros(0, dtype=np.int64)
        self._arrays: list[Array] = []

    def reach(self, codes: int) -> None:
        """Make room for so many codes; the system gives memory when it is first written to."""
        while len(self._arrays) << self.shift < codes:
            array = np.zeros((self.length << self.shift) + LINE)
            self._arrays.append(array)
            start = -(-array.ctypes.data // (8 * LINE)) * 8 * LINE  # a code begins with a cache line
            self.addresses = np.append(self.addresses, start)

    def add_to(self, table: Array, rows: Codes, spots: Spots, *, drop: bool = False) -> None:
        """Add sums to ``table[rows[s]]``, s being the place of a task; ``drop`` gives their memory back on the way."""
        self._move(table, rows, spots, back=False, drop=drop)

    def take(self, table: Array, rows: Codes, spots: Spots) -> None:
        """Set sums to what :meth:`add_to` would add."""
        self.reach(rows.size * len(spots.source))
        self._move(table, rows, spots, back=True, drop=False)

    def _move(self, table: Array, rows: Codes, spots: Spots, *, back: bool, drop: bool) -> None:
        from hieropo.core.kernels_rows import move_sums

        place, source, target = normalised(rows), normalised(spots.source), normalised(spots.target)
        codes = rows.size * len(source)
        for k, address in enumerate(self.addresses.tolist()):
            first = k << self.shift
            count = min(1 << self.shift, codes - first)
            if count > 0:
                move_sums(address, self.length, first, count, place, source, target, table, back)
            if drop:
                self._arrays[k] = np.zeros(0)
