"""Numbers of the actions of rows: their positions in a feature map, or the order in which they appear."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Codes
from hieropo.features.maps import Crossed, FeatureMap, merged_map
from hieropo.rows.ids import Ids, id_array, plain
from hieropo.rows.keys import GrowingKeys
from hieropo.rows.numbering import DictionaryCodes
from hieropo.rows.texts import Text

# The actions of a pass: those of the map, where another one is an error; those and any others; or those of the rows
# alone, of which the map has some. The last two are for maps that give each action coefficients of its own.
Joining = Literal["none", "new", "all"]


class ActionNumbers:
    """The numbers that a worker gives to actions.

    They are the positions in a feature map. Where actions join, new ones follow in order of appearance; where all join,
    and for a map without actions, which only reducers number, the order is that of appearance alone.

    Parameters
    ----------
    features : FeatureMap
    joining : {"none", "new", "all"}
    """

    def __init__(self, features: FeatureMap, joining: Joining = "none") -> None:
        self._features = features
        self._fixed = joining == "none" and features.actions is not None
        first = (features.actions or ()) if joining == "new" else ()
        self._numbers: dict[Any, int] = {action: number for number, action in enumerate(first)}
        self._index, self._known = (
            GrowingKeys(),
            np.zeros(0, dtype=np.int64),
        )  # number of each id in the index
        self._dictionary = DictionaryCodes(self._of_texts, self.of_ids)

    def __len__(self) -> int:
        return len(self._features.actions or ()) if self._fixed else len(self._numbers)

    def of_ids(self, ids: Ids, first_row: int = 0) -> Codes:
        """Return the number of each id (n,).

        Raises
        ------
        UnknownActionError
            The map does not have an action, and none joins.
        InputError
            A new action is of a type that cannot be written down.
        """
        if self._fixed:
            return self._features.action_codes(ids, first_row=first_row)
        return self._numbered(self._index.rows_of_ids(ids))

    def _of_texts(self, texts: Text, which: Codes) -> Codes:
        if self._fixed:
            return self._features.action_codes(texts.take(which))
        return self._numbered(self._index.rows_of_texts(texts, which))

    def _numbered(self, rows: Codes) -> Codes:
        """Return the numbers of the ids in these rows of the index; new ids become actions."""
        if self._features.actions is None:
            return rows
        count = self._known.size
        if len(self._index) > count:
            actions = [plain(value) for value in self._index.ids_at(np.arange(count, len(self._index)))]
            new = [self._numbers.setdefault(action, len(self._numbers)) for action in actions]
            self._known = np.append(self._known, np.array(new, dtype=np.int64))
        return self._known[rows]

    def of_dictionary(self, entries: Text | Ids, which: NDArray[np.int32] | None) -> Codes:
        """Return the number of each row, as :meth:`DictionaryCodes.codes` takes rows."""
        return self._dictionary.codes(entries, which)

    @property
    def actions(self) -> tuple[Any, ...]:
        """The actions in the order of their numbers."""
        return (self._features.actions or ()) if self._fixed else tuple(self._numbers)

    def ids(self, numbers: Codes) -> Ids:
        """Return the ids of numbers (k,)."""
        if self._features.actions is None:
            return self._index.ids_at(numbers)
        return id_array(self.actions, "action")[numbers]


def joined(features: FeatureMap, joining: Joining, actions: Sequence[tuple[Any, ...]]) -> FeatureMap:
    """Return the map of a pass from the actions of each worker; it does not depend on the order of rows.

    Where all join, its actions are sorted, if they can be compared. Where new ones join, it is the map as it was, if
    there are none, and else :func:`merged_map` with them.

    Raises
    ------
    MismatchError
        New actions cannot be compared with those of the map.
    """
    seen = dict.fromkeys(action for worker in actions for action in worker)
    if joining == "new":
        known = set(features.actions or ())
        seen = dict.fromkeys(action for action in seen if action not in known)
    if not isinstance(features, Crossed) or joining == "none" or not seen:
        return features
    more = replace(features, actions=_sorted(seen))
    return more if joining == "all" else merged_map(features, more)


def _sorted(actions: Any) -> tuple[Any, ...]:
    try:
        return tuple(sorted(actions))
    except TypeError:
        return tuple(actions)
