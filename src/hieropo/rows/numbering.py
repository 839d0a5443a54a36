"""Codes of ids in dictionary-encoded columns."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hieropo._kernels import backend
from hieropo._utils.arrays import Codes, normalised
from hieropo.rows.ids import Ids
from hieropo.rows.texts import Text


class DictionaryCodes:
    """Looks up each entry of a dictionary once, also over batches whose dictionaries extend each other.

    Parameters
    ----------
    of_text : callable
        Returns the codes (k,) of the texts at these positions (k,).
    of_ids : callable
        Returns the codes (k,) of ids (k,).
    """

    def __init__(self, of_text: Callable[[Text, Codes], Codes], of_ids: Callable[[Ids], Codes]) -> None:
        self._of_text, self._of_ids = of_text, of_ids
        self._last: Text | Ids = np.zeros(0, dtype=np.int64)
        self._table = np.zeros(0, dtype=np.int32)  # code of each entry, -1 where no row had it yet

    def codes(self, entries: Text | Ids, which: NDArray[np.int32] | None) -> Codes:
        """Return the code of each row (n,), whose id is entry ``which[t]``, or entry t without ``which``.

        Raises what ``of_text`` and ``of_ids`` raise for an entry that a row has.
        """
        if which is None:
            assert not isinstance(entries, Text)
            return self._of_ids(entries)
        self._extend_to(entries)
        which, out, unseen = (
            normalised(which),
            np.empty(which.size, dtype=np.int64),
            np.empty(len(entries), dtype=np.int64),
        )
        loops = backend.ids(which.size)
        count = loops.find_numbers(which, self._table, out, unseen)
        if count:
            new = unseen[:count]
            self._table[new] = -1  # entries stay unseen if the next line raises
            self._table[new] = self._look_up(entries, new)
            loops.enter_numbers(which, self._table, out)
        return out

    def _look_up(self, entries: Text | Ids, new: Codes) -> Codes:
        return self._of_text(entries, new) if isinstance(entries, Text) else self._of_ids(entries[new])

    def _extend_to(self, entries: Text | Ids) -> None:
        """Keep the known codes where this dictionary begins with the last one; else forget them."""
        count = len(self._last)
        if not _begins(entries, self._last):
            self._table, count = self._table[:0], 0
        added = len(entries) - count
        if added:
            self._table = np.concatenate([self._table, np.full(added, -1, dtype=np.int32)])
        self._last = entries


def _begins(entries: Text | Ids, first: Text | Ids) -> bool:
    """Return whether a dictionary begins with another one."""
    k = len(first)
    if isinstance(entries, Text):
        return isinstance(first, Text) and entries.begins_with(first)
    return not isinstance(first, Text) and entries.dtype == first.dtype and np.array_equal(entries[:k], first)
