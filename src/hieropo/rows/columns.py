"""Numbers of named columns, checked; a message names the column, the row, the value, the cause, the cure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hieropo._utils.arrays import Array, Mask
from hieropo._utils.text import counted
from hieropo.errors import InputError, LogError, SchemaError
from hieropo.rows.rules import RULES, Rule


class RowWeights(NamedTuple):
    """Weights of n rows in their three roles; each is an array (n,), or None where every row has 1.

    Parameters
    ----------
    weight : (n,) array or None
        Count or discount c >= 0: a row of weight c equals c rows in every number. A row of weight 0 is absent.
    precision : (n,) array or None
        Known relative precision v > 0: the variance of the reward is ``noise_var / v``. The row counts once.
    sampling_weight : (n,) array or None
        q = 1 / P(row was kept) > 0: the row stands for q rows in point estimates; standard errors take the robust form.
    """

    weight: Array | None = None
    precision: Array | None = None
    sampling_weight: Array | None = None

    def some(self, rows: Any) -> "RowWeights":
        """Return the weights of some rows."""
        return RowWeights(*(None if values is None else values[rows] for values in self))

    def counts(self, n: int) -> Array:
        """Return c q of n rows: how many rows of the whole log each stands for."""
        return _product(n, self.weight, self.sampling_weight)

    def factors(self) -> Array:
        """Return w = c q v, by which z z' is summed; an empty array where all are 1."""
        given = [values for values in self if values is not None]
        return _product(given[0].size, *given) if given else np.zeros(0)

    def squared(self) -> Array:
        """Return c (q v)^2, by which z z' is summed for the variance of a sum over rows kept by chance."""
        assert self.sampling_weight is not None
        once = self.sampling_weight * (1.0 if self.precision is None else self.precision)
        return _product(once.size, self.weight, once**2)


def _product(n: int, *factors: Array | None) -> Array:
    product = np.ones(n)
    for values in factors:
        if values is not None:
            product = product * values
    return product


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


def check_rows(
    phi: ArrayLike,
    reward: ArrayLike,
    weight: ArrayLike | None = None,
    precision: ArrayLike | None = None,
    sampling_weight: ArrayLike | None = None,
) -> tuple[Array, Array, RowWeights]:
    """Return phi (n, d), reward (n,) and the weights of rows as float64; raise where a value cannot be used."""
    table, values = _numbers(phi, "phi"), _numbers(reward, "reward")
    if table.ndim != 2 or values.ndim != 1 or table.shape[0] != values.size:
        raise InputError(
            f"phi has shape {table.shape} and reward {values.shape}; (n, d) and (n,) with one n are needed."
        )
    bad = ~np.isfinite(table)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise LogError(
            f"phi[{row}, {column}] is {table[row, column]}. A feature must be finite: fill or drop such rows before."
        )
    bad = ~np.isfinite(values)
    if bad.any():
        row = int(bad.argmax())
        raise LogError(
            f"reward[{row}] is {values[row]}. A reward must be finite: a missing reward is not a zero."
        )
    given = zip(RowWeights._fields, (weight, precision, sampling_weight), strict=True)
    return table, values, RowWeights(*(_checked_weights(each, role, values.shape) for role, each in given))


def _checked_weights(given: ArrayLike | None, role: str, shape: tuple[int, ...]) -> Array | None:
    if given is None:
        return None
    weights = _numbers(given, role)
    if weights.shape != shape:
        raise InputError(f"{role} has shape {weights.shape}; reward has {shape}.")
    zero = role == "weight"
    bad = ~(np.isfinite(weights) & ((weights >= 0) if zero else (weights > 0)))
    if bad.any():
        row = int(bad.argmax())
        needed = "not negative" if zero else "above 0"
        raise LogError(
            f"{role}[{row}] is {weights[row]}. A {role.replace('_', ' ')} must be finite and {needed}."
        )
    return weights


def _numbers(values: ArrayLike, name: str) -> Array:
    array = np.asarray(values)
    if array.dtype.kind not in "biufO":
        raise InputError(
            f"{name} is of type {array.dtype}; numbers are needed. Text is never read as a number."
        )
    try:
        return np.ascontiguousarray(array, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} holds something that is not a number: {error}.") from error
