"""The ordered set of actions of a feature map, and the position of each id."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Codes
from hieropo.errors import InputError, UnknownActionError
from hieropo.rows.ids import abbreviate, id_array, plain
from hieropo.rows.keys import Keys


def suggestion(name: object, known_names: Iterable[object]) -> str:
    """Return a hint at the known name most similar to an unknown one; empty where none is similar."""
    if not isinstance(name, str):
        return ""
    matches = get_close_matches(name, [known for known in known_names if isinstance(known, str)], n=1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


@dataclass(frozen=True, slots=True, eq=False)
class Actions:
    """K distinct action ids in order.

    Parameters
    ----------
    ids : sequence
        Strings, whole numbers, booleans, floats, dates, datetimes, UUIDs, bytes, decimals; numpy's scalars
        become the standard library's. Ids that compare equal are one action.

    Raises
    ------
    InputError
        No ids, one twice, or one of a type that cannot be written down; names it and its position.
    """

    ids: Sequence[Any]
    _keys: Keys = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.ids, str | bytes):
            raise InputError(
                f"The actions must be a list of ids; got {self.ids!r}. One action is [{self.ids!r}]."
            )
        ids: list[Any] = []
        positions: dict[Any, int] = {}
        for position, value in enumerate(self.ids):
            try:
                action = plain(value)
            except InputError as error:
                raise InputError(f"Action {position}: {error}") from error
            if isinstance(action, tuple):
                raise InputError(
                    f"Action {position}: {action!r} is a tuple, and only tasks are named by several columns. Join its "
                    "parts to one text."
                )
            first = positions.setdefault(action, position)
            if first != position:
                raise InputError(
                    f"Action {action!r} is listed twice, at positions {first} ({ids[first]!r}) and "
                    f"{position}. Each action is listed once; pass distinct ids."
                )
            ids.append(action)
        if not ids:
            raise InputError("The list of actions is empty; a feature map needs at least one action.")
        object.__setattr__(self, "ids", tuple(ids))
        object.__setattr__(self, "_keys", Keys(id_array(ids, "action")))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def labels(self) -> tuple[str, ...]:
        """A distinct text for each action: its ``str``, or its ``repr`` where two would look the same."""
        texts = tuple(str(action) for action in self.ids)
        return texts if len(set(texts)) == len(texts) else tuple(repr(action) for action in self.ids)

    def codes(self, ids: object, first_row: int = 0) -> Codes:
        """Return the position of each id (n,).

        Raises
        ------
        UnknownActionError
            An id is not among the actions; the message names it, its row (from ``first_row`` on) and the known ones.
        LogError
            An id is null.
        """
        array = id_array(ids, "action", first_row)
        codes = self._find(array)
        for row in np.flatnonzero(codes < 0).tolist():
            codes[row] = self._find_plain(array[row])
            if codes[row] < 0:
                number = first_row + row
                raise UnknownActionError.in_row(
                    number, self._unknown_message(array[row], number), lenient=False
                )
        return codes

    def _find(self, array: NDArray[Any]) -> Codes:
        if array.dtype.kind != "M":
            return self._keys.locate(array)
        instants, inverse = np.unique(array, return_inverse=True)  # each is looked up once
        return self._keys.locate(instants)[inverse]

    def _find_plain(self, value: object) -> int:
        """Return the position of an id that may be a numpy or pandas scalar, or -1."""
        try:
            return self._keys.find(plain(value))
        except InputError:
            return -1

    def _unknown_message(self, value: Any, row: int) -> str:
        action = value.item() if isinstance(value, np.number) else value
        text = f"Action {action!r} (row {row}) is unknown to the feature map"
        match = next((known for known in self.ids if str(known) == str(action)), None)
        if match is not None:
            return (
                f"{text}: it knows {match!r} of type {type(match).__name__}, but this is of type "
                f"{type(action).__name__}. Convert actions to the type that the map was made with."
            )
        return (
            f"{text}{suggestion(action, self.ids)}, which knows {len(self)}: {abbreviate(self.ids)}. Make the "
            "map from all actions that may occur, or drop these rows."
        )
