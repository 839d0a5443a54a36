"""Moments in the making, batch by batch."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from hieropo._kernels import backend
from hieropo._kernels.circulant import BLOCK, CirculantLayout
from hieropo._utils.arrays import Array, Codes, normalised
from hieropo._utils.packed import packed_size
from hieropo.errors import InputError
from hieropo.moments.regions import Region, Slots, packed_slots
from hieropo.moments.statistics import Moments, refuse_overflow
from hieropo.rows.columns import RowWeights, check_rows
from hieropo.rows.ids import id_array
from hieropo.rows.keys import Keys, Places


class Sums(NamedTuple):
    """Running sums as compiled loops take them: the address of those of code 0, and how they lie."""

    base: int
    length: int
    turns: int
    width: int
    last: int
    entries: int
    again: int
    row: int


class Work(NamedTuple):
    """Memory of the rows of a block as they are added: z one and a half times, w z, and what goes with them."""

    right: Array
    left: Array
    codes: Codes
    places: Codes

    @classmethod
    def of(cls, turns: CirculantLayout) -> Self:
        """Return memory for rows of z."""
        right, left = np.zeros(BLOCK * turns.row), np.zeros(BLOCK * turns.row)
        codes, places = np.zeros(BLOCK, dtype=np.int64), np.zeros(4, dtype=np.int64)
        return cls(right, left, codes, places)


class RunningSums:
    """Sums of ``w z z'`` in the making, z = (phi, r, 1), ``each`` of them side by side for every task.

    Sum number a of the task in place s has code ``s each + a``. As long as no row has a precision, the number of rows,
    sum c q, is the sum of w; from the first one on that and the sum of c q log v are kept beside it. Sums of
    ``c (q v)^2 z z'`` are kept from the first sampling weight on.

    Parameters
    ----------
    dim : int
        Features of a row.
    each : int
        Sums of a task.
    offset : (dim + 1,) array, optional
        Coefficients of (phi, 1): what they give is taken off the rewards.
    """

    def __init__(
        self, dim: int, each: int = 1, places: Places | None = None, offset: Array | None = None
    ) -> None:
        self.dim, self.each, self.offset = dim, each, offset
        self.places = Places() if places is None else places
        self.turns = CirculantLayout(dim + 2)
        self.squares: RunningSums | None = None
        self._sums = Region(self.turns.length)
        self._counted: Array | None = None
        self._work: Work | None = None

    def __len__(self) -> int:
        return len(self.places)

    def add(self, place: Codes, phi: Array, reward: Array, weights: RowWeights, which: Any = 0) -> None:
        """Add checked rows (n,) of the tasks in these places to the sums number ``which`` (n,) of each."""
        code = normalised(place * self.each + which)
        if weights.precision is not None or self._counted is not None:
            self._count(code, weights)
        if self.offset is not None:
            reward = reward - (phi @ self.offset[:-1] + self.offset[-1])
        self._add(code, phi, reward, weights.factors())
        if weights.sampling_weight is not None:
            if self.squares is None:
                self.squares = RunningSums(self.dim, self.each, self.places)
            self.squares._add(code, phi, reward, weights.squared())

    def _add(self, code: Codes, phi: Array, reward: Array, factors: Array) -> None:
        self._work = Work.of(self.turns) if self._work is None else self._work
        loops = backend.rows(code.size * self.turns.length)
        loops.add_matrix(
            code, normalised(phi), normalised(reward), normalised(factors), self.running(), self._work
        )

    def _count(self, code: Codes, weights: RowWeights) -> None:
        """Keep the number of rows and the sum of c q log v of each code."""
        counted = self._counts()
        counts = weights.counts(code.size)
        counted[:, 0] += np.bincount(code, counts, len(counted))
        if weights.precision is not None:
            counted[:, 1] += np.bincount(code, counts * np.log(weights.precision), len(counted))
        self._counted = counted

    def _counts(self) -> Array:
        """Return both numbers of all codes, (len * each, 2), before more rows are added."""
        codes = len(self) * self.each
        if self._counted is None:
            pairs = np.zeros((len(self), 2 * self.each))
            self.add_counts(pairs, np.arange(len(self)))
            return pairs.reshape(codes, 2)
        return np.concatenate([self._counted, np.zeros((codes - len(self._counted), 2))])

    def running(self) -> Sums:
        """Return the sums of all places for a compiled loop to add rows to."""
        self._sums.reach(len(self) * self.each, fill=self.each == 1)
        turns = self.turns
        return Sums(
            self._sums.address,
            turns.length, turns.whole, turns.width, turns.last, turns.count, turns.again, turns.row,
        )  # fmt: skip

    @property
    def size(self) -> int:
        """Bytes of the sums of all places."""
        return 8 * self.turns.length * len(self) * self.each

    def in_large_pages(self) -> None:
        """Ask for large pages, which random access needs."""
        self._sums.in_large_pages()

    def add_sums(
        self, table: Array, rows: Codes, spots: Slots, *, threads: int = 1, drop: bool = False
    ) -> bool:
        """Add the sums of the task in place s to ``table[rows[s]]``; return whether the results are finite.

        ``drop`` gives their memory back on the way.
        """
        self._sums.reach(len(self) * self.each)
        return self._sums.add_to(table, rows, spots, threads=threads, drop=drop)

    @property
    def own_spots(self) -> Slots:
        """Return where sums, one a task, go in packed triangles."""
        return packed_slots(self.turns.count)

    def packed_sums(self, tasks: int, wanted: int) -> tuple[Array, bool]:
        """Turn the sums of so many tasks, one each, into packed triangles (wanted, q) where they lie; uses them up.

        Also returns whether all of them are finite.
        """
        return self._sums.packed(self.own_spots.source[0], tasks, wanted)

    def add_counts(self, table: Array, rows: Codes) -> None:
        """Add rows and sum of c q log v of sum number a to columns 2 a and 2 a + 1 of ``table[rows[s]]``."""
        if self._counted is not None:
            table[rows] += self._counts().reshape(len(self), 2 * self.each)
            return
        ones = np.full((self.each, 1), self.turns.count - 1)
        self.add_sums(table, rows, Slots(ones, 2 * np.arange(self.each)[:, None]))

    def start(self, keys: Keys, table: Array, squares: Array | None, spots: Slots, pairs: Array) -> None:
        """Go on after sums and counts as :meth:`add_sums` and :meth:`add_counts` give them."""
        rows = np.arange(len(keys))
        self.places = Places.after(keys)
        self._sums.take(table, rows, spots)
        if squares is not None:
            self.squares = RunningSums(self.dim, self.each, self.places)
            self.squares._sums.take(squares, rows, spots)
        counts = np.zeros_like(pairs)
        self.add_counts(counts, rows)
        if (counts != pairs).any():
            self._counted = pairs.reshape(len(keys) * self.each, 2).copy()


class Merged(NamedTuple):
    """The m tasks, sums (m, width), whether these are finite, rows and sums of c q log v (m, each, 2), squares."""

    keys: Keys
    sums: Array
    finite: bool
    pairs: Array
    squares: Array | None

    def refuse_overflow(self) -> None:
        """Raise where squares of very large values went beyond float64."""
        if not self.finite:
            refuse_overflow(self.keys, self.sums)


def merged(lanes: Sequence[RunningSums], spots: Slots | None, width: int, *, drop: bool) -> Merged:
    """Put running sums together, one lane after the other.

    Parameters
    ----------
    lanes : sequence of RunningSums
    spots : Spots, optional
        Where sums go; by default there is one a task, and it goes to its packed triangle.
    width : int
        Columns of the table.
    drop : bool
        Whether the lanes may be used up, so that hardly more than they themselves is in memory at once.
    """
    first = lanes[0].places if drop else Places.after(lanes[0].places.keys())
    rows = [np.arange(len(lanes[0])), *(first.of_places(lane.places) for lane in lanes[1:])]
    keys, each = first.keys(), lanes[0].each
    pairs = np.zeros((len(keys), 2 * each))
    for lane, place in zip(lanes, rows, strict=True):
        lane.add_counts(pairs, place)
    squares = None
    if any(lane.squares is not None for lane in lanes):
        squares = np.zeros((len(keys), width))
        for lane, place in zip(lanes, rows, strict=True):
            sampled = lane if lane.squares is None else lane.squares
            sampled.add_sums(squares, place, spots or lane.own_spots)
    others, finite = list(zip(lanes, rows, strict=True)), True
    if drop and spots is None:
        table, finite = lanes[0].packed_sums(rows[0].size, len(keys))
        others = others[1:]
    else:
        table = np.zeros((len(keys), width))
    for lane, place in others:
        finite &= lane.add_sums(table, place, spots or lane.own_spots, threads=len(lanes), drop=drop)
    return Merged(keys, table, finite, pairs.reshape(len(keys), each, 2), squares)


class Accumulator:
    """Moments in the making, batch by batch; the mutable edge of a pass over a log.

    Parameters
    ----------
    dim : int
        Features d.
    features : str, optional
        Fingerprint of the feature map.
    offset : (d,) array, optional
        Of the moments: coefficients of a known part of the rewards.
    """

    def __init__(self, dim: int, *, features: str | None = None, offset: Array | None = None) -> None:
        self._dim = dim
        self._features, self._offset = features, offset
        self.running = RunningSums(dim, offset=None if offset is None else np.append(offset, 0.0))

    def add(
        self,
        task: object,
        phi: ArrayLike,
        reward: ArrayLike,
        weight: ArrayLike | None = None,
        precision: ArrayLike | None = None,
        sampling_weight: ArrayLike | None = None,
    ) -> None:
        """Add a batch; arguments and errors as in :meth:`Moments.from_arrays`."""
        table, values, weights = check_rows(phi, reward, weight, precision, sampling_weight)
        tasks = id_array(task, "task")
        if table.shape[1] != self._dim or tasks.size != values.size:
            raise InputError(
                f"A batch of phi {table.shape}, {tasks.size} task ids and {values.size} rewards does not fit "
                f"{self._dim} features."
            )
        self.running.add(self.running.places.of_checked(tasks), table, values, weights)

    @classmethod
    def after(cls, moments: Moments) -> Self:
        """Go on after these moments: the next row is added as if theirs had been added here."""
        found = cls(moments.dim, features=moments.features, offset=moments.offset)
        pairs = np.stack([moments.rows, moments.log_precision], axis=1)
        squares = None if moments.squares is None else np.array(moments.squares)
        found.running.start(
            moments.keys, np.array(moments.sums), squares, packed_slots(moments.dim + 2), pairs
        )
        return found

    def __len__(self) -> int:
        return len(self.running)

    def moments(self) -> Moments:
        """Return the moments of all batches so far."""
        return self.together([self], drop=False)

    @staticmethod
    def together(lanes: "Sequence[Accumulator]", *, drop: bool) -> Moments:
        """Return the moments of the batches of all these; ``drop`` uses them up and saves memory.

        Raises
        ------
        LogError
            Squares of very large values went beyond float64.
        """
        dim = lanes[0]._dim
        running = [lane.running for lane in lanes]
        found = merged(running, None, packed_size(dim + 2), drop=drop)
        found.refuse_overflow()
        rows, log_precision = np.ascontiguousarray(found.pairs[:, 0].T)
        one = lanes[0]
        return Moments(
            found.keys, dim, found.sums, rows, log_precision, one._features, found.squares, one._offset
        )
