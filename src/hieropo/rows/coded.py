"""Rows whose ids are numbers and whose unusable values are marked: the rows that statistics of a log are made of."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hieropo._utils.arrays import Array, Codes


@dataclass(frozen=True, slots=True, eq=False)
class CodedRows:
    """Rows of a log, in its order.

    Attributes
    ----------
    first_row : int or (n,) int
        Number of the first row in the log, where they follow each other; else the number of each.
    rows : int
    task, action : (n,) int
        Numbers of ids; -1 where there is none. ``action`` is None without such a column.
    numbers : dict
        Columns of numbers (n,); NaN where a value cannot be used.
    levels : tuple of (n,) int
        Numbers of the groups.
    time : (n,) array or None
        In the unit of its column; NaN where it is missing.
    eligible : (n,) array or None
        Number of eligible actions; 0 where the list is missing.
    """

    first_row: int | Codes
    rows: int
    task: Codes
    action: Codes | None
    numbers: Mapping[str, Array]
    levels: tuple[Codes, ...] = ()
    time: Array | None = None
    eligible: Array | None = None

    def repeated(self, copies: Codes) -> "CodedRows":
        """Return each row ``copies`` (n,) times; ``first_row`` stays that of the original rows."""

        def repeat(values: Any) -> Any:
            return None if values is None else np.repeat(values, copies)

        return replace(
            self,
            rows=int(copies.sum()),
            task=repeat(self.task),
            action=repeat(self.action),
            numbers={column: repeat(values) for column, values in self.numbers.items()},
            levels=tuple(map(repeat, self.levels)),
            time=repeat(self.time),
            eligible=repeat(self.eligible),
        )
