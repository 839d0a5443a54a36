"""Numbers of named columns, checked; a message names the column, the row, the value, the cause, the cure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hieropo.core.rules import RULES, Rule
from hieropo.errors import LogError, SchemaError
from hieropo.text import counted

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


def context_names(names: Sequence[str]) -> tuple[str, ...]:
    """Check the names of context columns, as :func:`column_names`."""
    return column_names(names, "context")


def column_names(names: Sequence[str], role: str) -> tuple[str, ...]:
    """Check the names of the columns of one role.

    Raises
    ------
    SchemaError
        A bare string, a name that is no string, or one name twice.
    """
    if isinstance(names, str):
        raise SchemaError(f"{role} is the bare string {names!r}; write {role}=[{names!r}] for one column.")
    columns = tuple(names)
    for position, column in enumerate(columns):
        if not isinstance(column, str):
            raise SchemaError(
                f"{role.capitalize()} column {position} is {column!r}; the name of a column is a string."
            )
        if column in columns[:position]:
            raise SchemaError(
                f"{role.capitalize()} column {column!r} is named twice, at positions {columns.index(column)} and "
                f"{position}; name it once."
            )
    return columns


def numbers(values: object, column: str, first_row: int = 0) -> Array:
    """Bring the numbers of a column to float64; text is never read as a number.

    Raises
    ------
    LogError
        A value is missing or is not a number; names the column, the row and the value.
    """
    array = np.asarray(values)
    if array.dtype.kind in "biuf":
        return array.astype(np.float64, copy=False)
    if array.dtype == object:
        for row, value in enumerate(array.tolist()):
            if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
                raise _not_a_number(column, first_row + row, value)
        return array.astype(np.float64)
    sample = array.ravel()[0].item() if array.size else array.dtype
    raise _not_a_number(column, first_row, sample)


def _not_a_number(column: str, row: int, value: object) -> LogError:
    return LogError(
        f"Column {column!r}, row {row}: {value!r} of type {type(value).__name__} is not a number. A "
        "missing value is not zero and text is not read as a number: drop such rows, or cast the column "
        "before."
    )


@dataclass(frozen=True, slots=True)
class Checked:
    """Numbers of one column, (n,), and where they stand."""

    array: Array
    column: str
    first_row: int

    def refuse(self, bad: Mask, why: str) -> None:
        """Raise for the first bad value, if there is one; say how many there are."""
        count = int(np.count_nonzero(bad))
        if not count:
            return
        row = int(bad.argmax())
        more = f" (and {count - 1} more in this batch of {counted(bad.size, 'row')})" if count > 1 else ""
        value = float(self.array[row])
        raise LogError(f"Column {self.column!r}, row {self.first_row + row}: {value!r}{more} {why}")

    def obey(self, rules: Sequence[Rule]) -> None:
        """Raise for the first value that breaks the first rule that is broken."""
        for rule in rules:
            self.refuse(rule.breaks(self.array), rule.why)


def checked(values: ArrayLike, column: str, first_row: int) -> Checked:
    """Bring a column (n,) to float64, ready to be refused."""
    array = numbers(values, column, first_row)
    if array.ndim != 1:
        raise LogError(f"{column!r} has shape {array.shape}; one number a row, shape (n,), is needed.")
    return Checked(array, column, first_row)


def contexts(
    values: ArrayLike | None, columns: tuple[str, ...], first_row: int = 0, *, rows: int = 0
) -> Array:
    """Check contexts (n, c): one finite number for each of the c columns; None gives shape (rows, 0)."""
    given = np.empty((rows, 0)) if values is None else np.asarray(values)
    if given.ndim != 2 or given.shape[1] != len(columns):
        raise LogError(
            f"The context has shape {given.shape}; shape (n, {len(columns)}) is needed, one column for "
            f"each of {list(columns)}. A single column is context.reshape(-1, 1), a single row "
            "context.reshape(1, -1)."
        )
    if given.dtype.kind in "biuf":
        array: Array = given.astype(np.float64, copy=False)
    else:
        array = np.column_stack([numbers(given[:, j], name, first_row) for j, name in enumerate(columns)])
    for j in np.flatnonzero(~np.isfinite(array).all(axis=0)).tolist():
        Checked(array[:, j], columns[j], first_row).obey(RULES["context"][:1])
    return array
