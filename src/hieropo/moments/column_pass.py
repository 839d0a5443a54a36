"""Rows that lie in columns of memory, added to running sums without becoming arrays of float64 first."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hieropo._kernels import backend
from hieropo._kernels.circulant import BLOCK, KINDS, LANES
from hieropo._utils.arrays import Array, Codes, Hashes, normalised
from hieropo.features.maps import Columns
from hieropo.features.per_action import Crossed
from hieropo.moments.accumulation import RunningSums, Work
from hieropo.moments.row_sketch import RowSketcher
from hieropo.rows.columns import HUGE

_CACHE = 2**24  # bytes of sums up to which they are added to at once
_HEAP = 2**20  # bytes of a heap, about: the cache that a processor has for itself
_MOST_CODES = 14  # power of 2 of the codes of a heap
_LEAST_MORE, _MOST_MORE = 1.25, 4.0  # times the codes that there are: those that heaps are made for
_WAITING = 5  # rows of a code on heaps, as a mean,
_SHARE = 0.2  # or more of them: their bytes, as a share of those of the code's sums
_LEAST_HEAPED, _MOST_HEAPED = 2**23, 2**28  # bytes of all heaps
_KEPT, _SEEN = 8192, 4096  # hashes that wait for the sketch; those that are known to wait or to be in it
_EXACT = 2.0**53 - 1.0  # whole numbers up to here are exact in float64, and none beyond becomes one of them
_LARGEST = float(np.finfo(np.float64).max)
LIMITS = {
    "reward": (-HUGE, HUGE),
    "context": (-HUGE, HUGE),
    "weight": (0.0, HUGE),
    "pscore": (float(np.nextafter(0.0, 1.0)), 1.0),
    "time": (-_LARGEST, _LARGEST),
}


class Column(NamedTuple):
    """Numbers that lie side by side: where, of which of `turns.KINDS`, and what they may be."""

    address: int
    kind: str
    low: float
    high: float

    @classmethod
    def of(cls, address: int, kind: str, role: str) -> "Column":
        """Return a column whose values keep the rules of a role, and are exact in float64."""
        low, high = LIMITS[role]
        if kind == "i8":
            low, high = max(low, -_EXACT), min(high, _EXACT)
        return cls(address, kind, low, high)


class Phi(NamedTuple):
    """A feature map as compiled loops take it: table[a] (x) (1, x - origin); an empty table stands for 1.

    ``known`` has the coefficients of (phi, 1) that are taken off the rewards, or nothing.
    """

    columns: int
    intercept: int
    origin: Array
    pivot: int
    table: Array
    known: Array
    weight: int


class Hashing(NamedTuple):
    """Buffers of hashes of rows: those up to a limit are kept until the sketch takes them."""

    marks: Codes
    limit: np.uint64
    seen: Hashes
    kept: Hashes
    state: Codes


class PartitionBuffers(NamedTuple):
    """Rows that wait: heap k has those of codes from ``k << shift`` on, ``fill[k]`` of at most ``room``.

    Row i of heap k lies at ``rows + (k room + i) stride``: z as float32 where that holds all numbers, with the code, a
    whole number, in place of its 1, which is ``last`` bytes from there. ``ends``, ``code`` and ``order`` are the memory
    of their sorting.
    """

    rows: int
    stride: int
    last: int
    narrow: int
    weights: Array
    weighted: int
    fill: Codes
    room: int
    shift: int
    ends: NDArray[np.int32]
    code: NDArray[np.int32]
    order: NDArray[np.int32]

    @classmethod
    def none(cls) -> "PartitionBuffers":
        """Return no heaps."""
        empty = np.zeros(0, dtype=np.int32)
        return cls(0, 0, 0, 0, np.zeros(0), 0, np.zeros(0, dtype=np.int64), 0, 0, empty, empty, empty)


class Block(NamedTuple):
    """Memory of a block of rows as columns: what was read, hashes, phi, w z."""

    C: Array
    hashes: Hashes
    P: Array
    W: Array


class ColumnPass:
    """The way of columns into running sums.

    Where the sums do not fit the cache, rows are put on heaps, one for each stretch of codes, and a heap that is full
    is added at once, code by code: the sums of a code are brought in once for several rows. The rows of a task keep
    their order, so that its sums are the same to the last bit.

    Parameters
    ----------
    features : Columns or Crossed
    running : RunningSums
        Of phi; or, for a map that gives each action coefficients of its own, of the contexts, for each action apart.
    sketcher : RowSketcher
    """

    def __init__(self, features: Columns | Crossed, running: RunningSums, sketcher: RowSketcher) -> None:
        table = features.table if isinstance(features, Crossed) else None
        c = len(features.columns)
        self._running, self._sketcher = running, sketcher
        self._phi = Phi(
            c,
            int(table is not None and features.intercept) if isinstance(features, Crossed) else 0,
            np.zeros(0) if features.origin is None else np.array(features.origin),
            -1 if features.pivot is None else features.columns.index(features.pivot),
            np.zeros((0, 0)) if table is None else np.array(table),
            np.zeros(0) if running.offset is None else np.array(running.offset),
            -1,
        )
        self._block: Block | None = None
        self._work: Work | None = None
        self._heaps = PartitionBuffers.none()
        self._rows = np.zeros(0, dtype=np.uint8)  # the memory of the heaps
        self._seen = np.arange(_SEEN, dtype=np.uint64) ^ np.uint64(1)  # no hash: those have their own place
        self._kept, self._state = np.zeros(_KEPT, dtype=np.uint64), np.zeros(1, dtype=np.int64)

    def add(self, columns: Sequence[Column], code: Codes, action: Codes | None, *, weighted: bool) -> int:
        """Add rows (n,) up to the first block that has a value out of its limits; return how many were added.

        Parameters
        ----------
        columns : sequence of Column
            The reward, the contexts, the weight where there is one, and what is only looked at.
        code : (n,) int
            Sums that each row goes to.
        action : (n,) int, optional
            Code of each row's action.
        weighted : bool
        """
        if self._block is None:
            self._block = self._make_block(len(columns), BLOCK)
        self._make_heaps(columns, weighted=weighted)
        assert self._work is not None
        phi = self._phi._replace(weight=self._phi.columns + 2) if weighted else self._phi
        where, limits = self._described(columns)
        sums = self._running.running()
        codes, own = normalised(code), np.zeros(0, dtype=np.int64) if action is None else normalised(action)
        loops, done, going = backend.columns(), 0, True
        while going:
            hashing = Hashing(self._sketcher.marks, self._sketcher.limit, self._seen, self._kept, self._state)
            now = loops.add_columns(
                done, where, limits, codes, own, phi, hashing, sums, self._heaps, self._block, self._work
            )
            kept = int(self._state[0])
            self._sketcher.take(self._kept[:kept], now - done)
            self._state[0], done = 0, now
            going = now < code.size and kept + BLOCK > _KEPT
        return done

    def finish(self) -> None:
        """Add what lies on heaps to the sums."""
        if self._heaps.room:
            assert self._work is not None
            sums = self._running.running()
            backend.heaps().empty_heaps(0, self._heaps.fill.size, self._heaps, sums, self._work)

    def close(self) -> None:
        """Finish, and give the memory of the heaps back."""
        self.finish()
        self._heaps, self._rows = PartitionBuffers.none(), self._rows[:0].copy()

    def _make_heaps(self, columns: Sequence[Column], *, weighted: bool) -> None:
        """Make heaps where they help, and anew where codes came that they do not reach."""
        codes = len(self._running) * self._running.each
        if self._work is None:
            self._work = Work.of(self._running.turns)
        if self._running.size <= _CACHE or codes <= self._heaps.fill.size << self._heaps.shift:
            return
        self.finish()
        recentred = self._phi.origin.size or self._phi.known.size  # differences need all digits
        narrow = not recentred and all(column.kind == "f4" for column in columns[: self._phi.columns + 1])
        stride = (4 if narrow else 8) * LANES * self._running.turns.width
        heaps, shift, room = self._plan(codes, stride + 8 * weighted)
        if room < 1 << shift or self._phi.table.size:
            self._heaps = PartitionBuffers.none()
            self._running.in_large_pages()
            return
        size = 4 if narrow else 8
        self._rows = np.empty((heaps * room + 1) * stride, dtype=np.uint8)  # one more for what is not kept
        self._heaps = PartitionBuffers(
            self._rows.ctypes.data, stride, size * (self._running.turns.count - 1), int(narrow),
            np.empty(heaps * room if weighted else 0), int(weighted), np.zeros(heaps, dtype=np.int64), room, shift,
            *(np.zeros(n, dtype=np.int32) for n in (1 << shift, room, room)),
        )  # fmt: skip

    def _plan(self, codes: int, row: int) -> tuple[int, int, int]:
        """Return how many heaps, codes of each as a power of 2, and rows of so many bytes that each has room for.

        There are heaps for more codes than there are yet: their memory is taken when rows come.
        """
        each = max(_WAITING * row, int(_SHARE * 8 * self._running.turns.length))

        def memory(reach: int) -> int:
            return min(max(_LEAST_HEAPED, each * reach), _MOST_HEAPED)

        reach = int(codes * min(max(_MOST_HEAPED / memory(codes), _LEAST_MORE), _MOST_MORE))
        shift = min(max(0, int(np.log2(_HEAP * reach / memory(reach)))), _MOST_CODES)
        heaps = (reach >> shift) + 1
        return heaps, shift, memory(reach) // row // heaps

    def _described(self, columns: Sequence[Column]) -> tuple[Codes, Array]:
        c = self._phi.columns
        spots = [c, *range(c), *range(c + 2, len(columns) + 1)]  # a 1 stands at c + 1
        rows = [
            (each.address, KINDS.index(each.kind), spot) for each, spot in zip(columns, spots, strict=True)
        ]
        return np.array(rows, dtype=np.int64), np.array([(each.low, each.high) for each in columns])

    def _make_block(self, columns: int, size: int) -> Block:
        turns = self._running.turns
        C, P = np.zeros((columns + 5, size)), np.zeros((turns.count + 4, size))
        C[self._phi.columns + 1] = P[turns.count - 1] = 1.0
        hashes = np.zeros(size, dtype=np.uint64)
        return Block(C, hashes, P, np.zeros_like(P))


def clean_rows(columns: Sequence[Column], n: int) -> int:
    """Return how many rows come before the first block that has a value out of its limits."""
    where = np.array([(each.address, KINDS.index(each.kind)) for each in columns], dtype=np.int64)
    return int(
        backend.columns().clean_blocks(where, np.array([(each.low, each.high) for each in columns]), n)
    )
