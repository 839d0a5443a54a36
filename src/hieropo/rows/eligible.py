"""Lists of the actions that could be taken in each of some rows."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Codes
from hieropo.errors import InputError, UnknownActionError
from hieropo.rows.ids import Ids
from hieropo.rows.keys import Keys


class _Coded(Protocol):
    """The part of a feature map that is used here."""

    @property
    def actions(self) -> tuple[Any, ...] | None: ...

    def action_codes(self, ids: object, *, first_row: int = 0) -> Codes: ...


@dataclass(frozen=True, slots=True, eq=False)
class Eligible:
    """Eligible action ids of n consecutive rows.

    Parameters
    ----------
    entries : (total,) ids
        Those of all rows one after the other.
    starts : (n + 1,) int
        Where the entries of each row begin.
    first_row : int
        Number of the first row, for messages.
    """

    entries: Ids
    starts: Codes
    first_row: int = 0

    @property
    def lists(self) -> list[list[Any]]:
        """The ids of each row."""
        return [part.tolist() for part in np.split(self.entries, self.starts[1:-1])]

    def some(self, rows: Codes) -> "Eligible":
        """Return the lists of some rows, in this order; a row may come several times."""
        sizes = np.diff(self.starts)[rows]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        place = np.arange(starts[-1]) + np.repeat(self.starts[:-1][rows] - starts[:-1], sizes)
        return Eligible(self.entries[place], starts, self.first_row)

    def lacking(self, taken: Ids) -> NDArray[np.bool_]:
        """Return which of the n rows, in which ``taken`` (n,) was done, have a list without it."""
        rows = np.repeat(np.arange(self.starts.size - 1), np.diff(self.starts))
        listed, which = Keys.factorize(self.entries)
        known, codes = Keys.factorize(taken)
        lacks = np.ones(self.starts.size - 1, dtype=np.bool_)
        lacks[rows[listed.locate(known.values)[codes][rows] == which]] = False
        return lacks

    def mask(self, features: _Coded) -> NDArray[np.bool_]:
        """Return which of the K actions of a feature map are eligible, (n, K).

        Raises
        ------
        UnknownActionError
            A list holds an action that the map does not know; names it and its row.
        InputError
            The map knows no action ids.
        """
        if features.actions is None:
            raise InputError(
                "Eligible actions need a feature map that knows action ids; this one knows none."
            )
        n = self.starts.size - 1
        rows = np.repeat(np.arange(n), np.diff(self.starts))
        mask = np.zeros((n, len(features.actions)), dtype=bool)
        try:
            codes = features.action_codes(self.entries)
        except UnknownActionError:
            for entry, row in zip(
                self.entries, rows.tolist(), strict=True
            ):  # again, now with the row's number
                features.action_codes([entry], first_row=self.first_row + row)
            raise
        mask[rows, codes] = True
        return mask
