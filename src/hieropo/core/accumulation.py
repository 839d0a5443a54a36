"""Moments in the making, batch by batch."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from hieropo.core.arrays import normalised
from hieropo.core.chunks import Chunks, Spots, packed_spots
from hieropo.core.ids import id_array
from hieropo.core.keys import Codes, Keys, Places
from hieropo.core.packed import packed_size
from hieropo.core.statistics import Array, Moments, check_rows, refuse_overflow
from hieropo.core.turns import Turns
from hieropo.errors import InputError

_PAIR = np.arange(2)


class Sums(NamedTuple):
    """Running sums as compiled loops take them: code s is number ``s % 2^shift`` of chunk ``s >> shift``.

    ``chunks`` and ``counted`` are addresses; ``counted`` is empty where no row had a weight.
    """

    chunks: Codes
    counted: Codes
    shift: int
    counted_shift: int
    length: int
    turns: int
    width: int
    last: int
    entries: int
    again: int


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
        self._turns = Turns(dim + 2)
        self._sums = Chunks(self._turns.length)
        self._counted: Chunks | None = None
        self._scratch: tuple[Array, Array] | None = None

    def __len__(self) -> int:
        return len(self.places)

    @property
    def weighted(self) -> bool:
        """Whether a row had a weight."""
        return self._counted is not None

    def add(self, place: Codes, phi: Array, reward: Array, weight: Array, which: Any = 0) -> None:
        """Add checked rows (n,) of the tasks in these places to the sums number ``which`` (n,) of each."""
        from hieropo.core.kernels_rows import BLOCK, add_matrix

        if self._scratch is None:
            self._scratch = np.zeros((BLOCK, self._turns.row)), np.zeros((BLOCK, self._turns.row))
        add_matrix(
            normalised(place * self.each + which), normalised(phi), normalised(reward), normalised(weight),
            self.running(weighted=weight.size > 0), *self._scratch,
        )  # fmt: skip

    def running(self, *, weighted: bool) -> Sums:
        """Return the sums of all places for a compiled loop to add rows to, with weights or without."""
        codes = len(self) * self.each
        if weighted and self._counted is None:
            self._counted = self._counts()
        self._sums.reach(codes)
        counted = np.zeros(0, dtype=np.int64)
        if self._counted is not None:
            self._counted.reach(codes)
            counted = self._counted.addresses
        turns = self._turns
        return Sums(
            self._sums.addresses, counted, self._sums.shift, 0 if self._counted is None else self._counted.shift,
            turns.length, turns.whole, turns.width, turns.last, turns.count, turns.again,
        )  # fmt: skip

    def _counts(self) -> Chunks:
        """Numbers of rows, and sums of log w, 0 each, of rows without weights."""
        pairs = np.zeros((len(self), 2 * self.each))
        self.add_counts(pairs, np.arange(len(self)))
        counted = Chunks(2)
        counted.take(pairs, np.arange(len(self)), self._pairs)
        return counted

    @property
    def _pairs(self) -> Spots:
        return Spots(np.tile(_PAIR, (self.each, 1)), np.arange(2 * self.each).reshape(self.each, 2))

    def add_sums(self, table: Array, rows: Codes, spots: Spots, *, drop: bool = False) -> None:
        """Add the sums of the task in place s to ``table[rows[s]]``; ``drop`` gives their memory back on the way."""
        self._sums.reach(len(self) * self.each)
        self._sums.add_to(table, rows, spots, drop=drop)

    def add_counts(self, table: Array, rows: Codes) -> None:
        """Add number of rows and sum of log w of sum number a to columns 2 a and 2 a + 1 of ``table[rows[s]]``."""
        if self._counted is not None:
            self._counted.reach(len(self) * self.each)
            self._counted.add_to(table, rows, self._pairs)
            return
        ones = np.full((self.each, 1), self._turns.count - 1)
        self.add_sums(table, rows, Spots(ones, 2 * np.arange(self.each)[:, None]))

    def start(self, keys: Keys, table: Array, spots: Spots, pairs: Array) -> None:
        """Go on after sums and counts as :meth:`add_sums` and :meth:`add_counts` give them."""
        rows = np.arange(len(keys))
        self.places = Places.after(keys)
        self._sums.take(table, rows, spots)
        unweighted = np.zeros_like(pairs)
        self.add_counts(unweighted, rows)
        if (unweighted != pairs).any():
            self._counted = Chunks(2)
            self._counted.take(pairs, rows, self._pairs)


def merged(
    lanes: Sequence[RunningSums], spots: Spots, width: int, *, drop: bool
) -> tuple[Keys, Array, Array]:
    """Put running sums together, one lane after the other.

    Returns the m tasks, their sums (m, width) and their numbers of rows and sums of log w (m, each, 2). With ``drop``
    the lanes are used up, so that no more than all lanes and one result are in memory at once.
    """
    first = lanes[0].places if drop else Places.after(lanes[0].places.keys())
    rows = [np.arange(len(lanes[0]))]
    rows += [first.of_checked(lane.places.keys().values) if len(lane) else rows[0][:0] for lane in lanes[1:]]
    keys = first.keys()
    table, pairs = np.zeros((len(keys), width)), np.zeros((len(keys), 2 * lanes[0].each))
    for lane, place in zip(lanes, rows, strict=True):
        lane.add_counts(pairs, place)
        lane.add_sums(table, place, spots, drop=drop)
    return keys, table, pairs.reshape(len(keys), lanes[0].each, 2)


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
        keys, sums, pairs = merged(running, packed_spots(dim + 2), packed_size(dim + 2), drop=drop)
        refuse_overflow(keys, sums)
        rows, log_weight = np.ascontiguousarray(pairs[:, 0].T)
        return Moments(keys, dim, sums, rows.astype(np.int64), log_weight, lanes[0]._features)
