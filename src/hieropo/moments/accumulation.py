"""Accumulation of moments from batches of rows."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from hieropo._kernels import backend
from hieropo._kernels.circulant import BLOCK, CirculantLayout
from hieropo._utils.arrays import Array, Codes, normalised
from hieropo._utils.packed import packed_size
from hieropo._utils.text import counted
from hieropo.errors import InputError
from hieropo.moments.regions import Region, Slots, packed_slots
from hieropo.moments.statistics import Moments, refuse_overflow
from hieropo.rows.columns import RowWeights, check_rows
from hieropo.rows.ids import id_array
from hieropo.rows.keys import GrowingKeys, Keys


class Sums(NamedTuple):
    """Running sums for compiled loops: the address of the sums of code 0, and their layout."""

    base: int
    length: int
    diagonals: int
    width: int
    last: int
    entries: int
    again: int
    row: int


class Work(NamedTuple):
    """Work space for the rows of a block: z one and a half times, w z, and their codes."""

    right: Array
    left: Array
    codes: Codes
    addresses: Codes

    @classmethod
    def of(cls, layout: CirculantLayout) -> Self:
        """Return work space for rows of z."""
        right, left = np.zeros(BLOCK * layout.row), np.zeros(BLOCK * layout.row)
        codes, addresses = np.zeros(BLOCK, dtype=np.int64), np.zeros(4, dtype=np.int64)
        return cls(right, left, codes, addresses)


class RunningSums:
    """Running sums of ``w z z'``, z = (phi, r, 1), in a number of ``blocks`` for every task.

    Block a of the task in slot s has code ``s blocks + a``. As long as no row has a precision, the number of rows,
    sum c q, is the sum of w; from the first precision on, it and the sum of c q log v are accumulated separately. From
    the first sampling weight on, sums of ``c (q v)^2 z z'`` are accumulated.

    Parameters
    ----------
    dim : int
        Features of a row.
    blocks : int
        Blocks of sums of a task: one, or one for each action.
    offset : (dim + 1,) array, optional
        Coefficients of (phi, 1) that are subtracted from the rewards.
    expected : int
        Rows to come at least, where that is known: it decides about the backend as a batch of so many rows would.
    """

    dim: int
    blocks: int
    offset: Array | None
    keys: GrowingKeys
    layout: CirculantLayout

    def __init__(
        self,
        dim: int,
        blocks: int = 1,
        keys: GrowingKeys | None = None,
        offset: Array | None = None,
        expected: int = 0,
    ) -> None:
        self.dim, self.blocks, self.offset, self._expected = dim, blocks, offset, expected
        self.keys = GrowingKeys() if keys is None else keys
        self.layout = CirculantLayout(dim + 2)
        self.squares: RunningSums | None = None
        self._sums = Region(self.layout.length, expected)
        self._counted: Array | None = None
        self._work: Work | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, slot: Codes, phi: Array, reward: Array, weights: RowWeights, in_block: Any = 0) -> None:
        """Add checked rows (n,) to the tasks in the slots ``slot`` (n,), in their blocks ``in_block`` (n,)."""
        code = normalised(slot * self.blocks + in_block)
        if weights.precision is not None or self._counted is not None:
            self._count(code, weights)
        if self.offset is not None:
            reward = reward - (phi @ self.offset[:-1] + self.offset[-1])
        self._add(code, phi, reward, weights.factors())
        if weights.sampling_weight is not None:
            if self.squares is None:
                self.squares = RunningSums(self.dim, self.blocks, self.keys, expected=self._expected)
            self.squares._add(code, phi, reward, weights.squared())

    def _add(self, code: Codes, phi: Array, reward: Array, factors: Array) -> None:
        self._work = Work.of(self.layout) if self._work is None else self._work
        loops = backend.rows(max(code.size, self._expected) * self.layout.length)
        loops.add_matrix(
            code, normalised(phi), normalised(reward), normalised(factors), self.running(), self._work
        )

    def _count(self, code: Codes, weights: RowWeights) -> None:
        """Add to the number of rows and the sum of c q log v of each code."""
        counted = self._counts()
        counts = weights.counts(code.size)
        counted[:, 0] += np.bincount(code, counts, len(counted))
        if weights.precision is not None:
            counted[:, 1] += np.bincount(code, counts * np.log(weights.precision), len(counted))
        self._counted = counted

    def _counts(self) -> Array:
        """Return the number of rows and the sum of c q log v of all codes, (len * blocks, 2)."""
        codes = len(self) * self.blocks
        if self._counted is None:
            pairs = np.zeros((len(self), 2 * self.blocks))
            self.add_counts(pairs, np.arange(len(self)))
            return pairs.reshape(codes, 2)
        return np.concatenate([self._counted, np.zeros((codes - len(self._counted), 2))])

    def arrange(self, position: Codes, blocks: int) -> None:
        """Allocate ``blocks`` blocks to each task: block a becomes ``position[a]``; those beyond it are empty."""
        if blocks == self.blocks == position.size and (position == np.arange(blocks)).all():
            return
        tasks, before = len(self), self.blocks
        counted = None if self._counted is None else self._counts().reshape(tasks, before, 2)
        self._sums.arrange(tasks, before, position, blocks)
        if self.squares is not None:
            self.squares.arrange(position, blocks)
        self.blocks = blocks
        if counted is not None:
            arranged = np.zeros((tasks, blocks, 2))
            arranged[:, position] = counted[:, : position.size]
            self._counted = arranged.reshape(tasks * blocks, 2)

    def running(self) -> Sums:
        """Return the sums of all slots, to which a compiled loop adds rows."""
        self._sums.reach(len(self) * self.blocks, fill=self.blocks == 1)
        layout = self.layout
        return Sums(
            self._sums.address,
            layout.length, layout.whole, layout.width, layout.last, layout.count, layout.again, layout.row,
        )  # fmt: skip

    @property
    def size(self) -> int:
        """Bytes of the sums of all slots."""
        return 8 * self.layout.length * len(self) * self.blocks

    def in_large_pages(self) -> None:
        """Ask the system for large pages, which make random access faster."""
        self._sums.in_large_pages()

    def add_sums(
        self, table: Array, rows: Codes, slots: Slots, *, threads: int = 1, drop: bool = False
    ) -> bool:
        """Add the sums of the task in slot s to ``table[rows[s]]``; return True if all results are finite.

        ``drop`` frees the memory of the sums meanwhile.
        """
        self._sums.reach(len(self) * self.blocks)
        return self._sums.add_to(table, rows, slots, threads=threads, drop=drop)

    @property
    def triangle_slots(self) -> Slots:
        """Slots of the sums of one block in packed triangles."""
        return packed_slots(self.layout.count)

    def packed_sums(self, tasks: int, n_rows: int) -> tuple[Array, bool]:
        """Pack the sums of ``tasks`` tasks, one block each, into triangles (n_rows, q) in slot, and free them.

        Returns the triangles, and True if all are finite.
        """
        return self._sums.packed(self.triangle_slots.source[0], tasks, n_rows)

    def add_counts(self, table: Array, rows: Codes) -> None:
        """Add rows and sum of c q log v of block a to columns 2 a and 2 a + 1 of ``table[rows[s]]``."""
        if self._counted is not None:
            table[rows] += self._counts().reshape(len(self), 2 * self.blocks)
            return
        ones = np.full((self.blocks, 1), self.layout.count - 1)
        self.add_sums(table, rows, Slots(ones, 2 * np.arange(self.blocks)[:, None]))

    def start(self, keys: Keys, table: Array, squares: Array | None, slots: Slots, pairs: Array) -> None:
        """Continue from sums and counts in the form of :meth:`add_sums` and :meth:`add_counts`."""
        rows = np.arange(len(keys))
        self.keys = GrowingKeys.after(keys)
        self._sums.take(table, rows, slots)
        if squares is not None:
            self.squares = RunningSums(self.dim, self.blocks, self.keys, expected=self._expected)
            self.squares._sums.take(squares, rows, slots)
        counts = np.zeros_like(pairs)
        self.add_counts(counts, rows)
        if (counts != pairs).any():
            self._counted = pairs.reshape(len(keys) * self.blocks, 2).copy()


def _merged(
    workers: Sequence[RunningSums], slots: Slots | None, width: int, *, drop: bool
) -> tuple[Keys, Array, Array, Array | None]:
    """Add the running sums of all workers, in their order.

    Returns the m tasks, sums (m, width), rows and sums of c q log v (m, blocks, 2), squares (m, width) or None.

    Parameters
    ----------
    workers : sequence of RunningSums
    slots : Slots, optional
        Of the table, for the sums; by default each task has one block, which becomes a packed triangle.
    width : int
        Columns of the table.
    drop : bool
        Free the sums of the workers meanwhile, so that little more memory than theirs is used.

    Raises
    ------
    LogError
        A sum of squares overflowed: values are too large for a float64.
    """
    first = workers[0].keys if drop else GrowingKeys.after(workers[0].keys.keys())
    rows = [np.arange(len(workers[0])), *(first.rows_of_keys(worker.keys) for worker in workers[1:])]
    keys, blocks = first.keys(), workers[0].blocks
    pairs = np.zeros((len(keys), 2 * blocks))
    for worker, task_rows in zip(workers, rows, strict=True):
        worker.add_counts(pairs, task_rows)
    squares = None
    if any(worker.squares is not None for worker in workers):
        squares = np.zeros((len(keys), width))
        for worker, task_rows in zip(workers, rows, strict=True):
            sampled = worker if worker.squares is None else worker.squares
            sampled.add_sums(squares, task_rows, slots or worker.triangle_slots)
    remaining, finite = list(zip(workers, rows, strict=True)), True
    if drop and slots is None:
        table, finite = workers[0].packed_sums(rows[0].size, len(keys))
        remaining = remaining[1:]
    else:
        table = np.zeros((len(keys), width))
    for worker, task_rows in remaining:
        finite &= worker.add_sums(
            table, task_rows, slots or worker.triangle_slots, threads=len(workers), drop=drop
        )
    if not finite:
        refuse_overflow(keys, table)
    return keys, table, pairs.reshape(len(keys), blocks, 2), squares


class BatchSums:
    """Base of accumulators: the running sums of batches, and the moments that they make.

    Parameters
    ----------
    running : RunningSums
    dim : int
        Features of the moments.
    features : str or None
        Fingerprint of the feature map.
    offset : (dim,) array or None
        Of the moments.
    """

    running: RunningSums
    _per_action: ClassVar[bool] = False

    def __init__(self, running: RunningSums, dim: int, features: str | None, offset: Array | None) -> None:
        self.running, self._dim, self._features, self._offset = running, dim, features, offset

    def __len__(self) -> int:
        return len(self.running)

    def moments(self) -> Moments:
        """Return the moments of all batches so far."""
        return self.together([self], drop=False)

    @classmethod
    def together(cls, workers: "Sequence[BatchSums]", *, drop: bool) -> Moments:
        """Return the moments of the batches of all workers; ``drop`` frees their sums and saves memory.

        Raises
        ------
        LogError
            A sum of squares overflowed: values are too large for a float64.
        """
        first = workers[0]
        slots = first._slots()
        return cls._joined(workers, first._dim, first._offset, slots, per_action=cls._per_action, drop=drop)

    def _slots(self) -> Slots | None:
        """Return the slots of the sums in the table of the moments; None for one packed triangle a task."""
        return None

    @staticmethod
    def _joined(
        workers: "Sequence[BatchSums]",
        dim: int,
        offset: Array | None,
        slots: Slots | None,
        *,
        per_action: bool,
        drop: bool,
    ) -> Moments:
        """Return moments of ``dim`` features, over all actions or per action."""
        blocks = (workers[0].running.blocks,) if per_action else ()
        shape = (*blocks, packed_size(dim + 2))
        running, features = [worker.running for worker in workers], workers[0]._features
        keys, sums, pairs, squares = _merged(running, slots, math.prod(shape), drop=drop)
        pairs, shape = pairs if per_action else pairs.sum(axis=1), (len(keys), *shape)
        rows, log_precision = (np.ascontiguousarray(pairs[..., k]) for k in (0, 1))
        squares = None if squares is None else squares.reshape(shape)
        return Moments(keys, dim, sums.reshape(shape), rows, log_precision, features, squares, offset)

    def _continue(self, moments: Moments, slots: Slots) -> Self:
        """Continue from moments whose sums lie in these slots, as if their rows had been added."""
        m = len(moments)
        sums = moments.sums.reshape(m, slots.target.size).copy()
        squares = None if moments.squares is None else moments.squares.reshape(sums.shape).copy()
        pairs = np.stack([moments.rows, moments.log_precision], axis=-1).reshape(m, 2 * self.running.blocks)
        self.running.start(moments.keys, sums, squares, slots, pairs)
        return self


class Accumulator(BatchSums):
    """Sums batches of rows to moments; the mutable edge of a pass over a log.

    Parameters
    ----------
    dim : int
        Features d.
    features : str, optional
        Fingerprint of the feature map.
    offset : (d,) array, optional
        Of the moments: coefficients of a known part of the rewards.
    expected : int
        Rows to come at least, where that is known.
    """

    def __init__(
        self, dim: int, *, features: str | None = None, offset: Array | None = None, expected: int = 0
    ) -> None:
        of_rows = None if offset is None else np.append(offset, 0.0)
        super().__init__(RunningSums(dim, offset=of_rows, expected=expected), dim, features, offset)

    def __repr__(self) -> str:
        return f"Accumulator({counted(self._dim, 'feature')}, {counted(len(self.running), 'task')} so far)"

    def add(
        self,
        task: object,
        phi: ArrayLike,
        reward: ArrayLike,
        weight: ArrayLike | None = None,
        precision: ArrayLike | None = None,
        sampling_weight: ArrayLike | None = None,
    ) -> Codes:
        """Add a batch and return the number of each row's task.

        Arguments and errors are as in :meth:`Moments.from_arrays`.
        """
        table, values, weights = check_rows(phi, reward, weight, precision, sampling_weight)
        tasks = id_array(task, "task")
        if table.shape[1] != self._dim or tasks.size != values.size:
            raise InputError(
                f"A batch of phi {table.shape}, {tasks.size} task ids and {values.size} rewards does not fit an "
                f"accumulator of {self._dim} features: phi ({values.size}, {self._dim}) and one task id a row are "
                "needed."
            )
        slot = self.running.keys.rows_of_ids(tasks)
        self.running.add(slot, table, values, weights)
        return slot

    @classmethod
    def after(cls, moments: Moments) -> Self:
        """Return an accumulator that continues from these moments, as if their rows had been added to it."""
        accumulator = cls(moments.dim, features=moments.features, offset=moments.offset)
        return accumulator._continue(moments, packed_slots(moments.dim + 2))
