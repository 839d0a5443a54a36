"""Memory for running sums that grows without a copy, and the transfer of sums to a table and back."""

import mmap
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from hieropo._kernels import backend
from hieropo._kernels.circulant import CirculantLayout
from hieropo._utils.arrays import Array, Codes, normalised
from hieropo._utils.threads import in_threads

_LEAST = 2**20  # bytes of a region at first
_PIECE = 2**22  # bytes that are moved before their memory is given back
_POPULATE_WRITE = 23  # Linux's MADV_POPULATE_WRITE
_MOVES = sys.platform == "linux"  # the system can move pages to a larger region, so that nothing is copied


class Slots(NamedTuple):
    """The columns of the sums of a task in a table with a row for each task.

    Entry ``source[a, e]`` of its block a is column ``target[a, e]``.
    """

    source: Codes
    target: Codes


def packed_slots(count: int) -> Slots:
    """Return the slots of the packed triangle of z z', z with ``count`` entries, one block a task."""
    source = CirculantLayout(count).offsets()
    return Slots(source[None], np.arange(source.size)[None])


class _Memory:
    """Page-aligned bytes, zero at first; the system provides a page when it is first written to."""

    def __init__(self) -> None:
        self._map: mmap.mmap | None = None
        self.size = 0
        self._filled = 0

    def grow(self, size: int) -> None:
        """Grow to ``size`` bytes; the contents stay.

        Raises
        ------
        MemoryError
            The system has none.
        """
        try:
            if self._map is not None and _MOVES:
                self._map.resize(size)
            else:
                self._renew(size)
        except OSError as error:
            raise MemoryError(f"{size / 2**30:,.1f} GiB for sums: {error}") from error
        self.size = size

    def _renew(self, size: int) -> None:
        fresh = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) if _MOVES else mmap.mmap(-1, size)
        if self._map is not None:
            np.frombuffer(fresh, dtype=np.uint8)[: self.size] = np.frombuffer(self._map, dtype=np.uint8)
        self._map = fresh

    def fill(self, size: int) -> None:
        """Request all pages of the first ``size`` bytes at once, which costs less than one after the other."""
        start = self._filled // mmap.PAGESIZE * mmap.PAGESIZE
        if self._map is None or size <= self._filled or not _MOVES:
            return
        with suppress(OSError):  # before Linux 5.14
            self._map.madvise(_POPULATE_WRITE, start, min(size, self.size) - start)
        self._filled = size

    def doubles(self) -> Array:
        """Return all of it as float64; while this array is kept, the memory cannot grow."""
        return np.zeros(0) if self._map is None else np.frombuffer(self._map, dtype=np.float64)

    def release(self, start: int, stop: int) -> None:
        """Release the whole pages between two bytes."""
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        last = stop // mmap.PAGESIZE * mmap.PAGESIZE
        if self._map is not None and last > first and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

    def in_large_pages(self) -> None:
        """Ask the system for large pages, which make random access faster."""
        if self._map is not None and hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)


class Region:
    """A number of doubles for each code, zero at first; it grows to more codes without a copy.

    Parameters
    ----------
    length : int
        Doubles of a code.
    expected : int
        Codes of which as many sums, or rows, are to come at least; it decides about the backend.
    """

    length: int

    def __init__(self, length: int, expected: int = 0) -> None:
        self.length, self._expected = length, expected
        self._memory = _Memory()

    @property
    def address(self) -> int:
        """The address of code 0; it changes when the region grows."""
        return int(self._memory.doubles().ctypes.data)

    def reach(self, codes: int, *, fill: bool = False) -> None:
        """Make room for ``codes`` codes; ``fill`` requests their memory at once, for codes that will all be written."""
        need = max(8 * self.length * codes, 1)
        if need > self._memory.size:
            self._memory.grow(-(-max(need, 2 * self._memory.size, _LEAST) // _LEAST) * _LEAST)
        if fill:
            self._memory.fill(need)

    def arrange(self, tasks: int, before: int, position: Codes, after: int) -> None:
        """Allocate ``after`` codes to each task in place of ``before``: code a of a task becomes ``position[a]``.

        Codes beyond ``position`` have no sums.
        """
        self.reach(tasks * before)
        arranged = Region(self.length, self._expected)
        arranged.reach(tasks * after)
        old, new, step = (
            before * self.length,
            after * self.length,
            max(1, _PIECE // (8 * after * self.length)),
        )
        for first in range(0, tasks, step):
            count = min(step, tasks - first)
            source = self._memory.doubles()[old * first : old * (first + count)]
            target = arranged._memory.doubles()[new * first : new * (first + count)]
            blocks = source.reshape(count, before, self.length)[:, : position.size]
            target.reshape(count, after, self.length)[:, position] = blocks
            del source, blocks, target
            self._memory.release(8 * old * first, 8 * old * (first + count))
        self._memory = arranged._memory

    def add_to(
        self, table: Array, rows: Codes, slots: Slots, *, threads: int = 1, drop: bool = False
    ) -> bool:
        """Add the sums of the task in slot s to ``table[rows[s]]``; return True if all results are finite.

        ``drop`` releases their memory meanwhile.
        """
        pieces = self._pieces(rows.size * len(slots.source))

        def move(piece: tuple[int, int]) -> bool:
            finite = self._move(piece, table, rows, slots, back=False)
            if drop:
                size = 8 * self.length
                self._memory.release(size * piece[0], size * (piece[0] + piece[1]))
            return finite

        return all(in_threads(move, pieces, threads if len(slots.source) == 1 else 1))

    def take(self, table: Array, rows: Codes, slots: Slots) -> None:
        """Set the sums from a table, the inverse of :meth:`add_to`."""
        self.reach(rows.size * len(slots.source))
        for piece in self._pieces(rows.size * len(slots.source)):
            self._move(piece, table, rows, slots, back=True)

    def _pieces(self, codes: int) -> Sequence[tuple[int, int]]:
        step = max(1, _PIECE // (8 * self.length))
        return [(first, min(step, codes - first)) for first in range(0, codes, step)]

    def _move(self, piece: tuple[int, int], table: Array, rows: Codes, slots: Slots, *, back: bool) -> bool:
        first, count = piece
        loops = backend.rows(max(count, self._expected) * self.length)
        table_rows, source, target = normalised(rows), normalised(slots.source), normalised(slots.target)
        address = self.address + 8 * self.length * first
        return bool(
            loops.move_sums(address, self.length, first, count, table_rows, source, target, table, back)
        )

    def packed(self, source: Codes, codes: int, n_rows: int) -> tuple[Array, bool]:
        """Turn the region into a table (n_rows, q), with entries ``source`` (q,) of each code in its first rows.

        The table takes over the memory of the sums, and the region is empty afterwards. Also returns True if all are
        finite.
        """
        q = source.size
        self.reach(codes)
        finite = backend.rows(codes * self.length).pack_sums(
            self.address, self.length, codes, normalised(source)
        )
        self._memory.release(8 * q * codes, self._memory.size)
        if 8 * q * n_rows > self._memory.size:
            self._memory.grow(8 * q * n_rows)
        doubles = self._memory.doubles()
        doubles[q * codes : min(q * n_rows, self.length * codes)] = 0.0
        self._memory = _Memory()
        return doubles[: q * n_rows].reshape(n_rows, q), bool(finite)

    def in_large_pages(self) -> None:
        """Ask the system for large pages, which make random access faster."""
        self._memory.in_large_pages()
