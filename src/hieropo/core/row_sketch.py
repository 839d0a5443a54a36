"""A small fingerprint of the rows of a log, by which it is seen whether another log has the same rows.

Of a 64-bit hash of every row the smallest are kept (a bottom-k sketch: Beyer, Haas, Reinwald, Sismanis and Gemulla,
SIGMOD 2007). Below the smaller of two sketches' largest hashes both are complete, so that the share of common hashes
there estimates the share of common rows. Only numbers are hashed: the reward, the contexts, the number of the action.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hieropo.core.arrays import normalised
from hieropo.errors import InputError

Hashes = NDArray[np.uint64]
Array = NDArray[np.float64]
Codes = NDArray[np.int64]

SIZE = 1024
_ODD = np.uint64(0x9E3779B97F4A7C15)
_TELLING = 0.5  # share of distinct rows below which equal rows are no sign of a common origin
_FEW = 8  # hashes that are compared, at the least


@dataclass(frozen=True, slots=True, eq=False)
class RowSketch:
    """The smallest hashes of the rows of a log.

    Parameters
    ----------
    hashes : (k,) uint64 array
        Distinct, ascending; all there are where they are fewer than 1024.
    rows : int
        Rows of the log.
    """

    hashes: Hashes
    rows: int

    @classmethod
    def none(cls) -> Self:
        """Return the sketch of no rows."""
        return cls(np.zeros(0, dtype=np.uint64), 0)

    def __add__(self, other: "RowSketch") -> "RowSketch":
        both = np.union1d(self.hashes, other.hashes)[:SIZE]
        return RowSketch(both, self.rows + other.rows)

    @property
    def distinct(self) -> float:
        """About how many rows are distinct."""
        if self.hashes.size < SIZE:
            return float(self.hashes.size)
        return (SIZE - 1) / (float(self.hashes[-1]) / 2.0**64)

    def share_in(self, other: "RowSketch") -> float | None:
        """About what share of these rows is among the ``other`` ones; None where that cannot be told.

        It cannot where rows are often equal by chance, as clicks without contexts are, or where too few are compared.
        """
        for each in (self, other):
            if not each.rows or each.distinct < _TELLING * each.rows:
                return None
        limits = [each.hashes[-1] for each in (self, other) if each.hashes.size == SIZE]
        mine = self.hashes if not limits else self.hashes[self.hashes <= min(limits)]
        if mine.size < _FEW:
            return None
        return float(np.isin(mine, other.hashes).mean())

    def to_dict(self) -> dict[str, Any]:
        """Return JSON's types."""
        return {"rows": self.rows, "hashes": "".join(f"{each:016x}" for each in self.hashes.tolist())}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` wrote."""
        text = str(values["hashes"])
        found = [int(text[start : start + 16], 16) for start in range(0, len(text), 16)]
        return cls(np.array(found, dtype=np.uint64), int(values["rows"]))


class RowSketcher:
    """A sketch in the making, batch by batch."""

    def __init__(self) -> None:
        self._sketch = RowSketch.none()

    def add(self, reward: Array, context: Array, codes: Codes | None) -> None:
        """Add rows: rewards (n,), contexts (n, c), numbers of actions (n,) or None.

        Raises
        ------
        InputError
            Lengths differ.
        """
        n = reward.size
        if len(context) != n or (codes is not None and codes.size != n):
            raise InputError(f"{len(context)} contexts do not fit {n} rewards; one of each a row is needed.")
        found = row_hashes(reward, context, codes)
        here = self._sketch.hashes
        if here.size == SIZE:
            found = found[found < here[-1]]
        elif found.size > 4 * SIZE:
            found = np.partition(found, 4 * SIZE - 1)[: 4 * SIZE]
            if np.unique(found).size < SIZE:  # many equal rows
                found = row_hashes(reward, context, codes)
        self._sketch = RowSketch(np.union1d(here, found)[:SIZE], self._sketch.rows + n)

    def sketch(self) -> RowSketch:
        """Return the sketch of all batches so far."""
        return self._sketch


def row_hashes(reward: Array, context: Array, codes: Codes | None) -> Hashes:
    """Hash rows: multiples of the bits of all numbers, added modulo 2^64 and mixed."""
    from hieropo.core.kernels_statistics import hash_rows

    out = np.empty(reward.size, dtype=np.int64)
    coded = np.zeros(0, dtype=np.int64) if codes is None else normalised(codes)
    hash_rows(_bits(reward), _bits(context), coded, out)
    return out.view(np.uint64)


def _bits(values: Array) -> Codes:
    return normalised(np.ascontiguousarray(values, dtype=np.float64).view(np.int64))
