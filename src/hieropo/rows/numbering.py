"""Codes of ids that come as a dictionary and numbers of its entries, as columns of text do."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hieropo._kernels import backend
from hieropo._utils.arrays import Codes, normalised
from hieropo.rows.ids import Ids
from hieropo.rows.texts import Text


class Numbering:
    """Looks each entry that a row has up once, as long as dictionaries go on from each other.

    Parameters
    ----------
    of_text : callable
        Codes (k,) of the texts with these places (k,) among all.
    of_ids : callable
        Codes (k,) of ids (k,).
    """

    def __init__(self, of_text: Callable[[Text, Codes], Codes], of_ids: Callable[[Ids], Codes]) -> None:
        self._of_text, self._of_ids = of_text, of_ids
        self._last: Text | Ids = np.zeros(0, dtype=np.int64)
        self._table = np.zeros(0, dtype=np.int32)  # code of each entry, -1 where no row had it yet

    def codes(self, entries: Text | Ids, which: NDArray[np.int32] | None) -> Codes:
        """Code of each row (n,), whose id is entry ``which[t]``, or entry t without ``which``.

        What ``of_text`` and ``of_ids`` raise for an entry that a row has, this raises too.
        """
        if which is None:
            assert not isinstance(entries, Text)
            return self._of_ids(entries)
        self._turn_to(entries)
        which, out, fresh = (
            normalised(which),
            np.empty(which.size, dtype=np.int64),
            np.empty(len(entries), dtype=np.int64),
        )
        loops = backend.ids(which.size)
        count = loops.find_numbers(which, self._table, out, fresh)
        if count:
            new = fresh[:count]
            self._table[new] = -1  # should the next line fail
            self._table[new] = self._found(entries, new)
            loops.enter_numbers(which, self._table, out)
        return out

    def _found(self, entries: Text | Ids, new: Codes) -> Codes:
        return self._of_text(entries, new) if isinstance(entries, Text) else self._of_ids(entries[new])

    def _turn_to(self, entries: Text | Ids) -> None:
        """Keep what is known where the last dictionary is the beginning of this one."""
        known = len(self._last)
        if not _begins(entries, self._last):
            self._table, known = self._table[:0], 0
        more = len(entries) - known
        if more:
            self._table = np.concatenate([self._table, np.full(more, -1, dtype=np.int32)])
        self._last = entries


def _begins(entries: Text | Ids, first: Text | Ids) -> bool:
    """Whether a dictionary begins with another one."""
    k = len(first)
    if isinstance(entries, Text):
        return isinstance(first, Text) and entries.begins_with(first)
    return not isinstance(first, Text) and entries.dtype == first.dtype and np.array_equal(entries[:k], first)
