"""Moments in the making, batch by batch."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from hieropo.core.arrays import normalised
from hieropo.core.ids import id_array
from hieropo.core.keys import Codes, Keys, Places
from hieropo.core.packed import packed_size
from hieropo.core.regions import Region, Spots, packed_spots
from hieropo.core.statistics import Array, Moments, check_rows, refuse_overflow
from hieropo.core.turns import Turns
from hieropo.errors import InputError

_PAIR = np.arange(2)


class Sums(NamedTuple):
    """Running sums as compiled loops take them: addresses of those of code 0, and how they lie.

    ``counted`` is 0 where no row had a weight.
    """

    base: int
    counted: int
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
    ones: Array
    weight: Array
    codes: Codes
    places: Codes

    @classmethod
    def of(cls, turns: Turns) -> Self:
        """Return memory for rows of z."""
        from hieropo.core.kernels_rows import BLOCK

        right, left = np.zeros(BLOCK * turns.row), np.zeros(BLOCK * turns.row)
        codes, places = np.zeros(BLOCK, dtype=np.int64), np.zeros(4, dtype=np.int64)
        return cls(right, left, np.ones(BLOCK), np.zeros(BLOCK), codes, places)


class RunningSums:
    """Sums of ``w z z'`` in the making, z = (phi, r, 1), ``each`` of them side by side for every task.

    Sum number a of the task in place s has code ``s each + a``. As long as no row has a weight, the sum of w is the
    number of rows; from the first weight on that and the sum of log w are kept beside it.

    Parameters
    ----------
    dim : int
        Features of a row.
    each : int
        Sums of a task.
    """

    def __init__(self, dim: int, each: int = 1) -> None:
        self.dim, self.each = dim, each
        self.places = Places()
        self.turns = Turns(dim + 2)
        self._sums = Region(self.turns.length)
        self._counted: Region | None = None
        self._work: Work | None = None

    def __len__(self) -> int:
        return len(self.places)

    @property
    def weighted(self) -> bool:
        """Whether a row had a weight."""
        return self._counted is not None

    def add(self, place: Codes, phi: Array, reward: Array, weight: Array, which: Any = 0) -> None:
        """Add checked rows (n,) of the tasks in these places to the sums number ``which`` (n,) of each."""
        from hieropo.core.kernels_rows import add_matrix

        self._work = Work.of(self.turns) if self._work is None else self._work
        add_matrix(
            normalised(place * self.each + which), normalised(phi), normalised(reward), normalised(weight),
            self.running(weighted=weight.size > 0), self._work,
        )  # fmt: skip

    def running(self, *, weighted: bool) -> Sums:
        """Return the sums of all places for a compiled loop to add rows to, with weights or without."""
        codes = len(self) * self.each
        if weighted and self._counted is None:
            self._counted = self._counts()
        self._sums.reach(codes, fill=self.each == 1)
        counted = 0
        if self._counted is not None:
            self._counted.reach(codes)
            counted = self._counted.address
        turns = self.turns
        return Sums(
            self._sums.address, counted,
            turns.length, turns.whole, turns.width, turns.last, turns.count, turns.again, turns.row,
        )  # fmt: skip

    @property
    def size(self) -> int:
        """Bytes of the sums of all places."""
        return 8 * self.turns.length * len(self) * self.each

    def in_large_pages(self) -> None:
        """Ask for large pages, which random access needs."""
        self._sums.in_large_pages()

    def _counts(self) -> Region:
        """Numbers of rows, and sums of log w, 0 each, of rows without weights."""
        pairs = np.zeros((len(self), 2 * self.each))
        self.add_counts(pairs, np.arange(len(self)))
        counted = Region(2)
        counted.take(pairs, np.arange(len(self)), self._pairs)
        return counted

    @property
    def _pairs(self) -> Spots:
        return Spots(np.tile(_PAIR, (self.each, 1)), np.arange(2 * self.each).reshape(self.each, 2))

    def add_sums(
        self, table: Array, rows: Codes, spots: Spots, *, threads: int = 1, drop: bool = False
    ) -> bool:
        """Add the sums of the task in place s to ``table[rows[s]]``; return whether the results are finite.

        ``drop`` gives their memory back on the way.
        """
        self._sums.reach(len(self) * self.each)
        return self._sums.add_to(table, rows, spots, threads=threads, drop=drop)

    @property
    def own_spots(self) -> Spots:
        """Where sums, one a task, go in packed triangles."""
        return packed_spots(self.turns.count)

    def packed_sums(self, tasks: int, wanted: int) -> tuple[Array, bool]:
        """Turn the sums of so many tasks, one each, into packed triangles (wanted, q) where they lie; uses them up.

        Also returns whether all of them are finite.
        """
        return self._sums.packed(self.own_spots.source[0], tasks, wanted)

    def add_counts(self, table: Array, rows: Codes) -> None:
        """Add number of rows and sum of log w of sum number a to columns 2 a and 2 a + 1 of ``table[rows[s]]``."""
        if self._counted is not None:
            self._counted.reach(len(self) * self.each)
            self._counted.add_to(table, rows, self._pairs)
            return
        ones = np.full((self.each, 1), self.turns.count - 1)
        self.add_sums(table, rows, Spots(ones, 2 * np.arange(self.each)[:, None]))

    def start(self, keys: Keys, table: Array, spots: Spots, pairs: Array) -> None:
        """Go on after sums and counts as :meth:`add_sums` and :meth:`add_counts` give them."""
        rows = np.arange(len(keys))
        self.places = Places.after(keys)
        self._sums.take(table, rows, spots)
        unweighted = np.zeros_like(pairs)
        self.add_counts(unweighted, rows)
        if (unweighted != pairs).any():
            self._counted = Region(2)
            self._counted.take(pairs, rows, self._pairs)


class Merged(NamedTuple):
    """The m tasks, their sums (m, width), whether these are finite, numbers of rows and sums of log w (m, each, 2)."""

    keys: Keys
    sums: Array
    finite: bool
    pairs: Array

    def refuse_overflow(self) -> None:
        """Raise where squares of very large values went beyond float64."""
        if not self.finite:
            refuse_overflow(self.keys, self.sums)


def merged(lanes: Sequence[RunningSums], spots: Spots | None, width: int, *, drop: bool) -> Merged:
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
    others, finite = list(zip(lanes, rows, strict=True)), True
    if drop and spots is None:
        table, finite = lanes[0].packed_sums(rows[0].size, len(keys))
        others = others[1:]
    else:
        table = np.zeros((len(keys), width))
    for lane, place in others:
        finite &= lane.add_sums(table, place, spots or lane.own_spots, threads=len(lanes), drop=drop)
    return Merged(keys, table, finite, pairs.reshape(len(keys), each, 2))


class Accumulator:
    """Moments in the making, batch by batch; the mutable edge of a pass over a log.

    Parameters
    ----------
    dim : int
        Features d.
    features : str, optional
        Fingerprint of the feature map.
    """

    def __init__(self, dim: int, *, features: str | None = None) -> None:
        self._dim = dim
        self._features = features
        self.running = RunningSums(dim)

    def add(self, task: object, phi: ArrayLike, reward: ArrayLike, weight: ArrayLike | None = None) -> None:
        """Add a batch; arguments and errors as in :meth:`Moments.from_arrays`."""
        table, values, weights = check_rows(phi, reward, weight)
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
        found = cls(moments.dim, features=moments.features)
        pairs = np.stack([moments.rows, moments.log_weight], axis=1)
        found.running.start(moments.keys, np.array(moments.sums), packed_spots(moments.dim + 2), pairs)
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
        rows, log_weight = np.ascontiguousarray(found.pairs[:, 0].T)
        return Moments(found.keys, dim, found.sums, rows.astype(np.int64), log_weight, lanes[0]._features)
