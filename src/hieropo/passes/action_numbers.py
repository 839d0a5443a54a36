"""Numbers of the actions of rows: their positions in a feature map, or the order in which they appear."""

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Codes
from hieropo.features.maps import FeatureMap
from hieropo.rows.ids import Ids, id_array
from hieropo.rows.keys import GrowingKeys
from hieropo.rows.numbering import DictionaryCodes
from hieropo.rows.texts import Text


class ActionNumbers:
    """The numbers of actions: those of a feature map; in order of appearance for a map without actions.

    Parameters
    ----------
    features : FeatureMap
    """

    def __init__(self, features: FeatureMap) -> None:
        self._features = features
        self._growing = GrowingKeys() if features.actions is None else None
        self._dictionary = DictionaryCodes(self._of_texts, self.of_ids)

    def _of_texts(self, texts: Text, which: Codes) -> Codes:
        if self._growing is not None:
            return self._growing.rows_of_texts(texts, which)
        return self._features.action_codes(texts.take(which))

    def of_ids(self, ids: Ids, first_row: int = 0) -> Codes:
        """Return the number of each id (n,); an unknown one is an error of a map with actions."""
        if self._growing is not None:
            return self._growing.rows_of_ids(ids)
        return self._features.action_codes(ids, first_row=first_row)

    def of_dictionary(self, entries: Text | Ids, which: NDArray[np.int32] | None) -> Codes:
        """Return the number of each row, as :meth:`DictionaryCodes.codes` takes rows."""
        return self._dictionary.codes(entries, which)

    def ids(self, numbers: Codes) -> Ids:
        """Return the ids of numbers (k,)."""
        if self._growing is not None:
            return self._growing.ids_at(numbers)
        return id_array(self._features.actions or (), "action")[numbers]
