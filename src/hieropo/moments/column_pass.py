"""The pass over rows in columns of memory: added to running sums without a copy to float64 arrays."""

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
_BUFFER = 2**20  # bytes of a partition buffer, about: the cache of one core
_MAX_LOG_CODES = 14  # power of 2 of the codes of a buffer
_MIN_REACH, _MAX_REACH = 1.25, 4.0  # codes for which there are buffers, in units of the codes so far
# mean rows of a code in the buffers; or more of them, with this share of the bytes of the code's sums
_ROWS_OF_CODE, _SHARE = 5, 0.2
_MIN_BUFFERED, _MAX_BUFFERED = 2**23, 2**28  # bytes of all buffers
_KEPT, _SEEN = 8192, 4096  # hashes stored for the sketch; recent hashes, which are not stored twice
_EXACT = 2.0**53 - 1.0  # whole numbers up to here are exact in float64, and no larger one is rounded to them
_LARGEST = float(np.finfo(np.float64).max)
LIMITS = {
    "reward": (-HUGE, HUGE),
    "context": (-HUGE, HUGE),
    "weight": (0.0, HUGE),
    "pscore": (float(np.nextafter(0.0, 1.0)), 1.0),
    "time": (-_LARGEST, _LARGEST),
}


class Column(NamedTuple):
    """A contiguous column of numbers: its address, its kind among `circulant.KINDS`, and the range of its values."""

    address: int
    kind: str
    low: float
    high: float

    @classmethod
    def of(cls, address: int, kind: str, role: str) -> "Column":
        """Return a column with the range that a role allows and that is exact in float64."""
        low, high = LIMITS[role]
        if kind == "i8":
            low, high = max(low, -_EXACT), min(high, _EXACT)
        return cls(address, kind, low, high)


class Phi(NamedTuple):
    """A feature map for compiled loops: table[a] (x) (1, x - origin); an empty table stands for 1.

    ``known`` has the coefficients of (phi, 1) that are subtracted from the rewards, or nothing.
    """

    columns: int
    intercept: int
    origin: Array
    reference: int
    table: Array
    known: Array
    weight: int


class Hashing(NamedTuple):
    """Buffers of hashes of rows: hashes up to a limit are stored until the sketch takes them."""

    marks: Codes
    limit: np.uint64
    seen: Hashes
    kept: Hashes
    state: Codes


class PartitionBuffers(NamedTuple):
    """Buffered rows: buffer k has rows of codes from ``k << shift`` on, ``fill[k]`` of at most ``room``.

    Row i of buffer k lies at ``rows + (k room + i) stride``: z, as float32 where that is exact, with the code, a whole
    number, in place of its 1, at ``last`` bytes from there. ``ends``, ``code`` and ``order`` are for sorting.
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
        """Return no buffers."""
        empty = np.zeros(0, dtype=np.int32)
        return cls(0, 0, 0, 0, np.zeros(0), 0, np.zeros(0, dtype=np.int64), 0, 0, empty, empty, empty)


class Block(NamedTuple):
    """Work space for a block of rows as columns: values read, hashes, phi, w z."""

    C: Array
    hashes: Hashes
    P: Array
    W: Array


class ColumnPass:
    """Adds columns of rows to running sums.

    Where the sums do not fit the cache, rows are partitioned into buffers, one for each range of codes. A full buffer
    is added at once, code by code, so that the sums of a code are loaded once for several rows. The rows of a task keep
    their order, so that its sums are the same to the last bit.

    Parameters
    ----------
    features : Columns or Crossed
    running : RunningSums
        Of phi; or, for a map that gives each action its own coefficients, of the contexts, one block an action.
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
            -1 if features.reference_column is None else features.columns.index(features.reference_column),
            np.zeros((0, 0)) if table is None else np.array(table),
            np.zeros(0) if running.offset is None else np.array(running.offset),
            -1,
        )
        self._block: Block | None = None
        self._work: Work | None = None
        self._buffers = PartitionBuffers.none()
        self._rows = np.zeros(0, dtype=np.uint8)  # the memory of the buffers
        self._seen = np.arange(_SEEN, dtype=np.uint64) ^ np.uint64(1)  # no hash of this slot: free
        self._kept, self._state = np.zeros(_KEPT, dtype=np.uint64), np.zeros(1, dtype=np.int64)

    def add(self, columns: Sequence[Column], code: Codes, action: Codes | None, *, weighted: bool) -> int:
        """Add rows (n,) up to the first block that has a value out of its limits; return the number of added rows.

        Parameters
        ----------
        columns : sequence of Column
            The reward, the contexts, the weight where there is one, and columns that are only checked.
        code : (n,) int
            The sums that each row is added to.
        action : (n,) int, optional
            Code of each row's action.
        weighted : bool
        """
        if self._block is None:
            self._block = self._make_block(len(columns), BLOCK)
        self._make_buffers(columns, weighted=weighted)
        assert self._work is not None
        phi = self._phi._replace(weight=self._phi.columns + 2) if weighted else self._phi
        described, limits = self._described(columns)
        sums = self._running.running()
        codes, action_codes = (
            normalised(code),
            np.zeros(0, dtype=np.int64) if action is None else normalised(action),
        )
        loops, done, more = backend.columns(), 0, True
        while more:
            hashing = Hashing(self._sketcher.marks, self._sketcher.limit, self._seen, self._kept, self._state)
            end = loops.add_columns(
                done,
                described,
                limits,
                codes,
                action_codes,
                phi,
                hashing,
                sums,
                self._buffers,
                self._block,
                self._work,
            )
            n_hashes = int(self._state[0])
            self._sketcher.take(self._kept[:n_hashes], end - done)
            self._state[0], done = 0, end
            more = end < code.size and n_hashes + BLOCK > _KEPT
        return done

    def finish(self) -> None:
        """Add the rows in the buffers to the sums."""
        if self._buffers.room:
            assert self._work is not None
            sums = self._running.running()
            backend.partition_buffers().flush_buffers(
                0, self._buffers.fill.size, self._buffers, sums, self._work
            )

    def close(self) -> None:
        """Finish, and release the memory of the buffers."""
        self.finish()
        self._buffers, self._rows = PartitionBuffers.none(), self._rows[:0].copy()

    def _make_buffers(self, columns: Sequence[Column], *, weighted: bool) -> None:
        """Make buffers where they make the pass faster, and new ones for codes beyond their range."""
        codes = len(self._running) * self._running.blocks
        if self._work is None:
            self._work = Work.of(self._running.layout)
        if self._running.size <= _CACHE or codes <= self._buffers.fill.size << self._buffers.shift:
            return
        self.finish()
        recentred = self._phi.origin.size or self._phi.known.size  # differences need all digits
        narrow = not recentred and all(column.kind == "f4" for column in columns[: self._phi.columns + 1])
        stride = (4 if narrow else 8) * LANES * self._running.layout.width
        buffers, shift, room = self._plan(codes, stride + 8 * weighted)
        if room < 1 << shift or self._phi.table.size:
            self._buffers = PartitionBuffers.none()
            self._running.in_large_pages()
            return
        size = 4 if narrow else 8
        self._rows = np.empty((buffers * room + 1) * stride, dtype=np.uint8)  # one more for unused rows
        self._buffers = PartitionBuffers(
            self._rows.ctypes.data, stride, size * (self._running.layout.count - 1), int(narrow),
            np.empty(buffers * room if weighted else 0), int(weighted), np.zeros(buffers, dtype=np.int64), room, shift,
            *(np.zeros(n, dtype=np.int32) for n in (1 << shift, room, room)),
        )  # fmt: skip

    def _plan(self, codes: int, row: int) -> tuple[int, int, int]:
        """Return the number of buffers, the codes of each as a power of 2, and its room in rows of ``row`` bytes.

        There are buffers for more codes than so far; the system provides their memory when rows are written.
        """
        bytes_a_code = max(_ROWS_OF_CODE * row, int(_SHARE * 8 * self._running.layout.length))

        def memory(reach: int) -> int:
            return min(max(_MIN_BUFFERED, bytes_a_code * reach), _MAX_BUFFERED)

        reach = int(codes * min(max(_MAX_BUFFERED / memory(codes), _MIN_REACH), _MAX_REACH))
        shift = min(max(0, int(np.log2(_BUFFER * reach / memory(reach)))), _MAX_LOG_CODES)
        buffers = (reach >> shift) + 1
        return buffers, shift, memory(reach) // row // buffers

    def _described(self, columns: Sequence[Column]) -> tuple[Codes, Array]:
        c = self._phi.columns
        slots = [c, *range(c), *range(c + 2, len(columns) + 1)]  # a 1 stands at c + 1
        rows = [
            (column.address, KINDS.index(column.kind), slot)
            for column, slot in zip(columns, slots, strict=True)
        ]
        return np.array(rows, dtype=np.int64), np.array([(column.low, column.high) for column in columns])

    def _make_block(self, columns: int, size: int) -> Block:
        entries = self._running.layout.count
        C, P = np.zeros((columns + 5, size)), np.zeros((entries + 4, size))
        C[self._phi.columns + 1] = P[entries - 1] = 1.0
        hashes = np.zeros(size, dtype=np.uint64)
        return Block(C, hashes, P, np.zeros_like(P))


def clean_rows(columns: Sequence[Column], n: int) -> int:
    """Return the number of rows before the first block with a value out of its limits."""
    described = np.array([(column.address, KINDS.index(column.kind)) for column in columns], dtype=np.int64)
    limits = np.array([(column.low, column.high) for column in columns])
    return int(backend.columns().clean_blocks(described, limits, n))
