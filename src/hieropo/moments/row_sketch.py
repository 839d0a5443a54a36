"""A bottom-k sketch of the rows of a log, which estimates the share of rows that two logs have in common.

The smallest 64-bit hashes of the rows are kept (Beyer, Haas, Reinwald, Sismanis and Gemulla, SIGMOD 2007). Below the
smaller of two sketches' limits both are complete, so that the share of common hashes there estimates the share of
common rows. The hash of a row is that of its reward, its contexts and the id of its action: the other actions of the
feature map and the position of the row do not matter.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from hieropo._kernels import backend
from hieropo._utils.arrays import Array, Codes, Hashes, normalised
from hieropo.errors import InputError
from hieropo.rows.ids import hashed

SIZE = 1024
WHOLE = 2**64 - 1  # the limit of a sketch that has all hashes
_INFORMATIVE = 0.5  # share of distinct rows below which equal rows are no sign of a common origin
_FEW = 8  # hashes that are compared, at the least


@dataclass(frozen=True, slots=True, eq=False)
class RowSketch:
    """The smallest hashes of the rows of a log.

    Parameters
    ----------
    hashes : (k,) uint64 array
        Distinct, ascending; of more than 1024 the first are kept.
    rows : int
        Rows of the log.
    limit : int
        Every hash of the rows up to this limit is in ``hashes``; 0 where the hashes are unknown.
    """

    hashes: Hashes
    rows: int
    limit: int = WHOLE

    def __post_init__(self) -> None:
        if self.hashes.size >= SIZE:
            object.__setattr__(self, "limit", min(self.limit, int(self.hashes[SIZE - 1])))
        count = int(np.searchsorted(self.hashes, np.uint64(self.limit), side="right"))
        object.__setattr__(self, "hashes", self.hashes[: min(count, SIZE)])

    @classmethod
    def none(cls) -> Self:
        """Return the sketch of no rows."""
        return cls(np.zeros(0, dtype=np.uint64), 0)

    @classmethod
    def unknown(cls, rows: int) -> Self:
        """Return a sketch of rows with unknown hashes; its sum with any other sketch is unknown too."""
        return cls(np.zeros(0, dtype=np.uint64), rows, 0)

    def __add__(self, other: "RowSketch") -> "RowSketch":
        limit = min(self.limit, other.limit)
        return RowSketch(np.union1d(self.hashes, other.hashes), self.rows + other.rows, limit)

    def __sub__(self, other: "RowSketch") -> "RowSketch":
        """Return the sketch without the rows of the other; of equal rows in this log all are removed."""
        remaining = np.setdiff1d(self.hashes, other.hashes, assume_unique=True)
        return RowSketch(remaining, max(self.rows - other.rows, 0), min(self.limit, other.limit))

    @property
    def distinct(self) -> float:
        """The estimated number of distinct rows."""
        if self.limit == WHOLE:
            return float(self.hashes.size)
        if not self.limit:
            return 0.0
        full = self.hashes.size == SIZE  # its limit is the last of the hashes itself
        return (self.hashes.size - full) / (float(self.limit) / 2.0**64)

    def share_in(self, other: "RowSketch") -> float | None:
        """Return the estimated share of these rows that is among the ``other`` ones; None where it is not identified.

        It is not where rows are often equal by chance, as clicks without contexts are, or where too few are compared.
        """
        for sketch in (self, other):
            if not sketch.rows or sketch.distinct < _INFORMATIVE * sketch.rows:
                return None
        comparable = self.hashes[self.hashes <= np.uint64(min(self.limit, other.limit))]
        if comparable.size < _FEW:
            return None
        return float(np.isin(comparable, other.hashes).mean())

    def to_dict(self) -> dict[str, Any]:
        """Return JSON's types."""
        hashes = "".join(f"{value:016x}" for value in self.hashes.tolist())
        return {"rows": self.rows, "limit": f"{self.limit:016x}", "hashes": hashes}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the sketch that :meth:`to_dict` wrote."""
        text = str(values["hashes"])
        hashes = [int(text[start : start + 16], 16) for start in range(0, len(text), 16)]
        return cls(np.array(hashes, dtype=np.uint64), int(values["rows"]), int(values["limit"], 16))


def action_marks(actions: Iterable[Any] | None) -> Codes | None:
    """Return the hash of each action id (K,), the part of an action in the hash of a row; None without actions.

    It depends on the id alone, so that maps that list other actions, or in another order, give the same hashes.
    """
    if actions is None:
        return None
    return np.array([hashed(action) for action in actions], dtype=np.uint64).view(np.int64)


class RowSketcher:
    """Makes a sketch from batches of rows.

    Parameters
    ----------
    actions : sequence of K ids, optional
        The actions of the feature map, to which action codes refer.
    start : RowSketch, optional
    """

    def __init__(self, actions: Iterable[Any] | None = None, start: RowSketch | None = None) -> None:
        self._sketch = RowSketch.none() if start is None else start
        self._marks = action_marks(actions)

    def add(self, reward: Array, context: Array, codes: Codes | None) -> None:
        """Add rows: rewards (n,), contexts (n, c), codes of the actions (n,), None without actions.

        Raises
        ------
        InputError
            Lengths differ.
        """
        n = reward.size
        if len(context) != n or (codes is not None and codes.size != n):
            raise InputError(
                f"{len(context)} contexts do not fit {n} rewards: each row needs one context and one reward."
            )
        marks = None if codes is None or self._marks is None else self._marks[codes]
        hashes = row_hashes(reward, context, marks)
        sketch = self._sketch
        if sketch.hashes.size == SIZE:
            hashes = hashes[hashes < sketch.hashes[-1]]
        elif hashes.size > 4 * SIZE:
            hashes = np.partition(hashes, 4 * SIZE - 1)[: 4 * SIZE]
            if np.unique(hashes).size < SIZE:  # many equal rows
                hashes = row_hashes(reward, context, marks)
        self._sketch = RowSketch(np.union1d(sketch.hashes, hashes), sketch.rows + n, sketch.limit)

    def add_actions(self, actions: Iterable[Any]) -> None:
        """Add actions, whose codes follow those so far."""
        more = action_marks(actions)
        assert more is not None
        self._marks = more if self._marks is None else np.append(self._marks, more)

    @property
    def marks(self) -> Codes:
        """The hash of each action id (K,); empty without actions."""
        return np.zeros(0, dtype=np.int64) if self._marks is None else self._marks

    @property
    def limit(self) -> np.uint64:
        """The largest hash that can enter the sketch; other rows are only counted."""
        return np.uint64(self._sketch.limit)

    def take(self, hashes: Hashes, rows: int) -> None:
        """Add a number of rows, by their hashes that are not above the limit."""
        sketch = self._sketch
        union = np.union1d(sketch.hashes, hashes) if hashes.size else sketch.hashes
        self._sketch = RowSketch(union, sketch.rows + rows, sketch.limit)

    def sketch(self) -> RowSketch:
        """Return the sketch of all batches so far."""
        return self._sketch


def row_hashes(reward: Array, context: Array, marks: Codes | None) -> Hashes:
    """Return a hash of each row: multiples of the bits of its numbers and mark, added modulo 2^64 and mixed."""
    out = np.empty(reward.size, dtype=np.int64)
    marked = np.zeros(0, dtype=np.int64) if marks is None else normalised(marks)
    backend.statistics(reward.size + context.size).hash_rows(_bits(reward), _bits(context), marked, out)
    return out.view(np.uint64)


def _bits(values: Array) -> Codes:
    return normalised(np.ascontiguousarray(values, dtype=np.float64).view(np.int64))
