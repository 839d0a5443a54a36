"""Check the numbers of named columns by the rules of their roles."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hieropo._utils.arrays import Array, Codes, Mask
from hieropo._utils.text import counted
from hieropo.errors import InputError, LogError, MismatchError, SchemaError

HUGE = 1e70  # fourth powers of smaller values, and sums of many of them, fit a float64


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule for the values of a role.

    Parameters
    ----------
    why : str
        Rest of the message after the value: why the value cannot be used, and what to do.
    broken : tuple of (reason, test)
        A test returns which values (n,) break the rule; rows are counted under the reason.
    """

    why: str
    broken: tuple[tuple[str, Callable[[Array], Mask]], ...]

    def breaks(self, values: Array) -> Mask:
        """Return which values (n,) break the rule."""
        broken: Mask = np.zeros(np.shape(values), dtype=np.bool_)
        for _, test in self.broken:
            broken |= test(values)
        return broken


def _huge(values: Array) -> Mask:
    size = np.abs(values)
    return (size > HUGE) & np.isfinite(size)


_NOT_FINITE: tuple[tuple[str, Callable[[Array], Mask]], ...] = (("NaN", np.isnan), ("infinite", np.isinf))
_HUGE = Rule(
    "is so large that its powers do not fit a float64. Does it stand for a missing value, or is the unit too "
    "small? Drop such rows, or rescale the column.",
    (("huge", _huge),),
)

RULES: dict[str, tuple[Rule, ...]] = {
    "reward": (
        Rule(
            "is not a reward, and is not read as 0. Was a join incomplete, or the outcome not in yet? Drop "
            "such rows, or write the reward they had.",
            _NOT_FINITE,
        ),
        _HUGE,
    ),
    "context": (
        Rule(
            "is not a context. Nothing is filled in: drop such rows, or fill the value in and add a "
            "column that says so, as a formula does: features='age + price'.",
            _NOT_FINITE,
        ),
        _HUGE,
    ),
    "pscore": (
        Rule(
            "is not a propensity. Log the probability with which the action was chosen, or name no pscore "
            "column if the log has none.",
            (("NaN", np.isnan),),
        ),
        Rule(
            "is the propensity of an action that was taken, so it must be above 0. Was 0 filled in for a "
            "missing value, or is it the propensity of another action?",
            (("0 or below", lambda values: values <= 0.0),),
        ),
        Rule(
            "is a propensity above 1. Is it a percentage, odds, a density or an inverse propensity? Convert "
            "it to a probability; if it is 1 up to rounding, clip it.",
            (("above 1", lambda values: values > 1.0),),
        ),
    ),
    "weight": (
        Rule(
            "is not a weight. Was a division by zero or a missing value left in? A row of weight 0 counts "
            "for nothing; a weight of 1 is a plain row.",
            _NOT_FINITE,
        ),
        Rule(
            "is a negative weight. To take rows out again, subtract their moments.",
            (("negative", lambda values: values < 0.0),),
        ),
        _HUGE,
    ),
    "precision": (
        Rule(
            "is not a precision: that is 1 / the relative variance of a reward. Drop such rows, or name no column of "
            "precisions.",
            _NOT_FINITE,
        ),
        Rule(
            "is not above 0, as a precision is: the variance of a reward is the noise variance divided by it. Drop "
            "such rows; where 0 says that a row does not count, name the column as weight.",
            (("a precision of 0 or below", lambda values: values <= 0.0),),
        ),
        _HUGE,
    ),
    "sampling_weight": (
        Rule(
            "is not a sampling weight: that is 1 / P(the row was kept). Drop such rows, or name no column of sampling "
            "weights.",
            _NOT_FINITE,
        ),
        Rule(
            "is not above 0, as a sampling weight is: 1 / P(the row was kept). Drop such rows; where 0 says that a row "
            "does not count, name the column as weight.",
            (("a sampling weight of 0 or below", lambda values: values <= 0.0),),
        ),
        _HUGE,
    ),
    "metadata": (
        Rule("is not finite. Metadata are finite: fill such values in, or leave the column out.", _NOT_FINITE),
    ),
    "time": (
        Rule("is not a time. Write when the action was chosen, or name no time column.", _NOT_FINITE),
    ),
}  # fmt: skip


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
        factors = [values for values in self if values is not None]
        return _product(factors[0].size, *factors) if factors else np.zeros(0)

    def squared(self) -> Array:
        """Return c (q v)^2, by which z z' is summed for the variance of a sum over rows kept by chance."""
        assert self.sampling_weight is not None
        per_row = self.sampling_weight * (1.0 if self.precision is None else self.precision)
        return _product(per_row.size, self.weight, per_row**2)


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
    """Return the numbers of a column as float64; text is never read as a number.

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
    return LogError.in_row(
        row,
        f"Column {column!r}, row {row}: {value!r} of type {type(value).__name__} is not a number. A missing value is "
        "not zero, and text is not read as a number. Drop such rows, or cast the column first.",
    )


@dataclass(frozen=True, slots=True)
class NumberColumn:
    """Numbers of one column, (n,), with its name and the number of its first row for messages."""

    array: Array
    column: str
    first_row: int

    def refuse(self, bad: Mask, why: str) -> None:
        """Raise for the first bad value, if there is one; the message has the count of all."""
        count = int(np.count_nonzero(bad))
        if not count:
            return
        row = int(bad.argmax())
        more = f" (and {count - 1} more in this batch of {counted(bad.size, 'row')})" if count > 1 else ""
        value = float(self.array[row])
        number = self.first_row + row
        raise LogError.in_row(number, f"Column {self.column!r}, row {number}: {value!r}{more} {why}")

    def check(self, rules: Sequence[Rule]) -> None:
        """Raise for the first value that breaks the first rule that is broken."""
        for rule in rules:
            self.refuse(rule.breaks(self.array), rule.why)


def _any_size(role: str) -> list[Rule]:
    """Return the rules of a role for arrays, in which large numbers are not mistaken units of a column."""
    return [rule for rule in RULES[role] if rule is not _HUGE]


def number_column(values: ArrayLike, column: str, first_row: int) -> NumberColumn:
    """Return a column (n,) as float64, ready to be checked."""
    array = numbers(values, column, first_row)
    if array.ndim != 1:
        raise LogError(f"{column!r} has shape {array.shape}; one number in each row, shape (n,), is needed.")
    return NumberColumn(array, column, first_row)


def contexts(
    values: ArrayLike | None, columns: tuple[str, ...], first_row: int = 0, *, rows: int = 0
) -> Array:
    """Check contexts (n, c): one finite number for each of the c columns; None gives shape (rows, 0)."""
    table = np.empty((rows, 0)) if values is None else np.asarray(values)
    if table.ndim != 2 or table.shape[1] != len(columns):
        raise LogError(
            f"The context has shape {table.shape}; shape (n, {len(columns)}) is needed, one column for "
            f"each of {list(columns)}. A single column is context.reshape(-1, 1), a single row "
            "context.reshape(1, -1)."
        )
    if table.dtype.kind in "biuf":
        array: Array = table.astype(np.float64, copy=False)
    else:
        array = np.column_stack([numbers(table[:, j], name, first_row) for j, name in enumerate(columns)])
    finite = np.isfinite(array)
    if finite.all():  # many times faster than by column
        return array
    for j in np.flatnonzero(~finite.all(axis=0)).tolist():
        NumberColumn(array[:, j], columns[j], first_row).check(_any_size("context"))
    return array


def check_rows(
    phi: ArrayLike,
    reward: ArrayLike,
    weight: ArrayLike | None = None,
    precision: ArrayLike | None = None,
    sampling_weight: ArrayLike | None = None,
) -> tuple[Array, Array, RowWeights]:
    """Return phi (n, d), reward (n,) and the weights of rows as float64; raise where a value cannot be used."""
    table, values = _as_floats(phi, "phi"), _as_floats(reward, "reward")
    if table.ndim != 2 or values.ndim != 1 or table.shape[0] != values.size:
        raise InputError(
            f"phi has shape {table.shape} and reward {values.shape}; (n, d) and (n,) with one n are needed."
        )
    bad = ~np.isfinite(table)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise LogError(
            f"phi[{row}, {column}] is {table[row, column]}. A feature must be finite: fill such values in, or drop the "
            "rows."
        )
    NumberColumn(values, "reward", 0).check(_any_size("reward"))
    by_role = zip(RowWeights._fields, (weight, precision, sampling_weight), strict=True)
    return (
        table,
        values,
        RowWeights(*(_check_weights(values_of_role, role, values.shape) for role, values_of_role in by_role)),
    )


def check_codes(values: ArrayLike, shape: tuple[int, ...], below: int, name: str) -> Codes:
    """Return integers of this shape in 0 .. ``below`` - 1.

    Raises
    ------
    MismatchError, InputError
        They have another shape or type; one is out of range.
    """
    codes = np.asarray(values)
    if codes.shape != shape or (codes.size and codes.dtype.kind not in "iu"):
        raise MismatchError(
            f"{name} has shape {codes.shape} and type {codes.dtype}; integers of shape {shape} are needed."
        )
    bad = (codes < 0) | (codes >= below)
    if bad.any():
        row = int(bad.argmax())
        raise InputError(f"{name}[{row}] is {codes[row]}; it must be in 0 .. {below - 1}.")
    return codes.astype(np.int64, copy=False)


def _check_weights(values: ArrayLike | None, role: str, shape: tuple[int, ...]) -> Array | None:
    if values is None:
        return None
    weights = _as_floats(values, role)
    if weights.shape != shape:
        raise InputError(f"{role} has shape {weights.shape}; reward has {shape}.")
    NumberColumn(weights, role, 0).check(_any_size(role))
    return weights


def _as_floats(values: ArrayLike, name: str) -> Array:
    array = np.asarray(values)
    if array.dtype.kind not in "biufO":
        raise InputError(
            f"{name} is of type {array.dtype}; numbers are needed. Text is never read as a number."
        )
    try:
        return np.ascontiguousarray(array, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{name} contains a value that is not a number: {error}. Cast or drop it."
        ) from error
