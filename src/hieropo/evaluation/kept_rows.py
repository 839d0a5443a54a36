"""Rows of a log that are kept in memory: all of a small log, of a large one some that a hash of their number picks."""

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hieropo.core.arrays import Array, Codes, Mask
from hieropo.core.logs import Batch
from hieropo.evaluation.folds import FOLDS, fold_of, hashed

NUMBERS = 50_000_000  # that a hundred draws over all kept rows may touch
_DRAWS = 100
_ALL, _FEWER = 2.0**64, 0.8


@dataclass(frozen=True, eq=False)
class Kept:
    """Rows of a log.

    Parameters
    ----------
    key : (n,) uint64
        A hash of each row's number.
    place, action, fold : (n,) int
        Its task as a row of the tables, its action, and its part of the log.
    reward, weight : (n,) array
    context : (n, c) array
    pscore : (n,) array
        NaN where the log has none.
    mask : (n, K) or (n, 0) bool
        Eligible actions.
    """

    key: NDArray[np.uint64]
    place: Codes
    action: Codes
    fold: Codes
    reward: Array
    weight: Array
    context: Array
    pscore: Array
    mask: Mask

    def at(self, rows: NDArray[np.intp]) -> "Kept":
        """Return some of the rows."""
        return Kept(*(getattr(self, each.name)[rows] for each in fields(self)))

    @property
    def eligible(self) -> Mask | None:
        """Eligible actions (n, K); None where all are."""
        return self.mask if self.mask.shape[1] else None

    @cached_property
    def stratum(self) -> Codes:
        """Rows of one task with the same eligible actions share a number."""
        if self.eligible is None:
            return np.asarray(np.unique(self.place, return_inverse=True)[1])
        packed = np.packbits(self.mask, axis=1)
        table = np.column_stack([self.place.astype(np.int64).view(np.uint8).reshape(-1, 8), packed])
        rows = np.ascontiguousarray(table).view(np.dtype((np.void, table.shape[1])))
        return np.asarray(np.unique(rows[:, 0], return_inverse=True)[1])


class KeptRows:
    """Keeps rows, batch by batch; the mutable edge of a pass over a log.

    Parameters
    ----------
    n_actions, columns : int
        K, and context columns c.
    seed : int
        Of folds and of the rows that are kept.
    most : int, optional
        Rows that may be kept.
    """

    def __init__(self, n_actions: int, columns: int, seed: int, most: int | None = None) -> None:
        self._seed = seed
        self._most = most or max(1, NUMBERS // (_DRAWS * (columns + 2 + n_actions // 8)))
        self._bound, self._size = _ALL, 0
        self._parts: list[Kept] = []

    def add(self, batch: Batch, place: Codes, codes: Codes, mask: Mask | None) -> None:
        """Keep those rows whose hash is below the bound, which falls whenever there are too many."""
        n = len(batch)
        key = hashed(batch.first_row, n, self._seed + 1)  # not the hash of the folds
        rows = np.flatnonzero(key < self._bound) if self._bound < _ALL else np.arange(n)
        self._parts.append(
            Kept(
                key[rows],
                place[rows],
                codes[rows],
                fold_of(batch.first_row, n, FOLDS, self._seed)[rows],
                batch.reward[rows],
                batch.weights.counts(n)[rows],
                batch.context[rows],
                np.full(rows.size, np.nan) if batch.pscore is None else batch.pscore[rows],
                np.zeros((rows.size, 0), dtype=np.bool_) if mask is None else mask[rows],
            )
        )
        self._size += rows.size
        while self._size > self._most:
            self._bound *= _FEWER
            self._parts = [part.at(np.flatnonzero(part.key < self._bound)) for part in self._parts]
            self._size = sum(part.key.size for part in self._parts)

    def kept(self) -> Kept:
        """Return all rows that are kept."""
        return Kept(*(np.concatenate([getattr(p, each.name) for p in self._parts]) for each in fields(Kept)))
