"""Checks of the roles of columns in an Arrow schema, before a row is read."""

from collections.abc import Callable, Iterable
from difflib import get_close_matches

import pyarrow as pa
import pyarrow.types as kinds

from hieropo.core.ids import abbreviate
from hieropo.errors import SchemaError
from hieropo.sources.arrays import is_uuid

NOTE = "hieropo.note"  # metadata of a field: why its type is as it is
MIXED = pa.dense_union(
    [pa.field("", pa.null())]
)  # of columns that have no one type; they are handed out as text
NUMBER_ROLES = ("reward", "pscore", "weight", "precision", "sampling_weight", "context", "metadata")

_NUMBERS = (kinds.is_integer, kinds.is_floating, kinds.is_boolean, kinds.is_decimal, kinds.is_null)
_TEXTS = (kinds.is_string, kinds.is_large_string, kinds.is_string_view)
_SCALARS = (
    *_NUMBERS,
    *_TEXTS,
    kinds.is_binary,
    kinds.is_large_binary,
    kinds.is_binary_view,
    kinds.is_fixed_size_binary,
    kinds.is_date,
    kinds.is_timestamp,
    is_uuid,
)
_LISTS = (kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list)


def _is_any(kind: pa.DataType, tests: Iterable[Callable[[pa.DataType], bool]]) -> bool:
    if kinds.is_dictionary(kind):
        kind = kind.value_type
    return any(test(kind) for test in tests)


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds text, not encoded."""
    return any(test(kind) for test in _TEXTS)


def holds_text(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds text, encoded or not."""
    return _is_any(kind, _TEXTS)


def is_number(kind: pa.DataType) -> bool:
    """Return whether a column of this type can be a reward, a propensity, a weight, a precision or a context."""
    return _is_any(kind, _NUMBERS)


def is_id(kind: pa.DataType) -> bool:
    """Return whether a column of this type can name tasks or actions."""
    return _is_any(kind, _SCALARS)


def is_list_of_ids(kind: pa.DataType) -> bool:
    """Return whether a column of this type can list eligible actions."""
    return any(test(kind) for test in _LISTS) and is_id(kind.value_type)


def is_time(kind: pa.DataType) -> bool:
    """Return whether a column of this type can say when an action was chosen."""
    return is_number(kind) or _is_any(kind, (kinds.is_date, kinds.is_timestamp))


_TESTS: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "task": (is_id, "an id (text, a whole number, a date, a UUID)"),
    "action": (is_id, "an id (text, a whole number, a date, a UUID)"),
    "level": (is_id, "an id (text, a whole number, a date, a UUID)"),
    "id": (is_id, "an id (text, a whole number, a date, a UUID)"),
    "request": (is_id, "an id (text, a whole number, a date, a UUID)"),
    "eligible": (is_list_of_ids, "a list of action ids"),
    "time": (is_time, "a date, a time stamp or a number"),
    "filter": (lambda _: True, "anything"),
}
_NUMBER = (is_number, "a number")
_UNLISTED = (
    "A choice never leaves the actions that this column lists. Add it; or name the column that lists them here "
    "(eligible=..., --eligible); or say that every action can be taken (eligible=False, --all-eligible)."
)
_ASIDE = "Mend such values, or have rows with them set aside: lenient=True, on the command line --lenient."


def can_play(kind: pa.DataType, role: str) -> bool:
    """Return whether a column of this type can play a role."""
    return _TESTS.get(role, _NUMBER)[0](kind)


def check_columns(
    schema: pa.Schema,
    roles: Iterable[tuple[str, str]],
    name: str,
    *,
    texts: bool | None = None,
    shown: Callable[[str], str] = lambda _: "",
) -> None:
    """Check that each column (role, column) is there once and of a type that can play its role.

    Parameters
    ----------
    schema : pa.Schema
    roles : iterable of (role, column)
    name : str
        Of the source.
    texts : bool, optional
        Whether a column of text may be named as numbers, so that values which are none are set aside; None where
        rows cannot be set aside at all.
    shown : callable
        Gives a sentence on what a column of text holds.

    Raises
    ------
    SchemaError
        Names the column, its role, its Arrow type, the source ``name`` and a likely cause.
    """
    for role, column in roles:
        count = schema.names.count(column)
        if count == 0:
            raise SchemaError(_missing(schema, role, column, name))
        if count > 1:
            raise SchemaError(
                f"The {name} has {count} columns named {column!r} (role {role}), at positions "
                f"{schema.get_all_field_indices(column)}; which is meant? Did a join leave both? Rename "
                "or drop one."
            )
        field = schema.field(column)
        readable = role in NUMBER_ROLES and (holds_text(field.type) or field.type == MIXED)
        if not can_play(field.type, role) and not (texts and readable):
            more = [shown(column), _ASIDE] if readable and texts is not None else []
            raise SchemaError(" ".join(filter(None, [_unfit(field, role, name), *more])))


def check_listed(schema: pa.Schema, eligible: str | None, name: str) -> None:
    """Check that the rows for which a policy chooses have its column of eligible actions, where there is one.

    Raises
    ------
    SchemaError
        They do not; says how to name the column, or that there is none.
    """
    if eligible is not None and eligible not in schema.names:
        raise SchemaError(f"{_missing(schema, 'eligible', eligible, name)} {_UNLISTED}")


def _missing(schema: pa.Schema, role: str, column: str, name: str) -> str:
    folded = {known.casefold(): known for known in reversed(schema.names)}
    near = [folded[match] for match in get_close_matches(column.casefold(), folded, n=3)]
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    known = abbreviate(schema.names, 40)
    return f"Column {column!r} (role {role}) is not in the {name}.{hint} Its columns: {known}."


def _unfit(field: pa.Field, role: str, name: str) -> str:
    need = _TESTS.get(role, _NUMBER)[1]
    kind = "mixed type" if field.type == MIXED else f"Arrow type {field.type}"
    why = (field.metadata or {}).get(NOTE.encode())
    return (
        f"Column {field.name!r} of the {name} is of {kind}, which cannot be {_article(role)}: {need} is needed. "
        f"{_cure(field.type, role) if why is None else why.decode()}"
    )


def _article(role: str) -> str:
    text = "list of eligible actions" if role == "eligible" else role
    return f"an {text}" if text[0] in "aeiou" else f"a {text}"


def _cure(kind: pa.DataType, role: str) -> str:
    if kinds.is_dictionary(kind):
        kind = kind.value_type
    if role == "eligible":
        return "Gather the actions of each row in one list column."
    if kinds.is_nested(kind):
        return "Spread its entries over columns, one for each."
    if role == "time":
        return "Read text as a date or a time stamp before."
    if role == "context" and not kinds.is_temporal(kind):
        return "Text is not read as numbers: cast it, or spread categories over 0/1 columns."
    if kinds.is_temporal(kind):
        return "Make it a number that says what matters, such as the hour or the days since a date."
    return "Cast the column before; text is not read as numbers."
