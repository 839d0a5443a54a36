"""Types of columns that come as text or as JSON: inferred from all of their values, or stated.

A column holds whole numbers, numbers, true/false, dates or times only where all of its values do. Else it is text, and
its first value that does not fit is kept for messages. Texts that lose something as numbers stay texts, since they may
be ids: those with leading zeros, and whole numbers that a float would round.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from hieropo._utils.arrays import Mask
from hieropo.errors import InputError, LogError
from hieropo.logs.arrow.arrays import EXACT, as_numpy, decoded
from hieropo.logs.arrow.schema import MIXED, NOTE, NUMBER_ROLES, holds_text, is_number
from hieropo.rows.batches import Roles

LONG = "^[+-]?[0-9]{16,}$"
_NUMBER = (
    r"^[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf|infinity|nan)$"  # texts that Arrow casts
)
_MISSING = ["", "NA", "N/A", "n/a", "NULL", "null", "None", "#N/A"]


class TextNumbers(NamedTuple):
    """Texts (n,) as numbers.

    Attributes
    ----------
    values : float64 array
        Null where there is no number.
    missing, wrong, rounded : (n,) bool
        The value is missing; it is not a number; it is a whole number that a float64 would round.
    """

    values: pa.Array
    missing: Mask
    wrong: Mask
    rounded: Mask


def cleaned(texts: pa.Array) -> pa.Array:
    """Return texts without surrounding blanks, and null where a word such as NA stands for a missing value."""
    trimmed = pc.utf8_trim_whitespace(texts)
    words = pc.is_in(trimmed, pa.array(_MISSING, trimmed.type))
    return pc.if_else(words, pa.scalar(None, trimmed.type), trimmed)


def text_numbers(texts: pa.Array) -> TextNumbers:
    """Read texts as numbers: a decimal point, and no separator of thousands."""
    texts = cleaned(decoded(texts).cast(pa.large_string()))
    is_number_text = pc.match_substring_regex(texts, _NUMBER, ignore_case=True)
    values = pc.if_else(is_number_text, texts, pa.scalar(None, texts.type)).cast(pa.float64())
    exact = pc.match_substring_regex(texts, f"^[+-]?0*{EXACT}$")
    is_rounded = pc.and_(
        pc.match_substring_regex(texts, LONG), pc.greater_equal(pc.abs(values), float(EXACT))
    )
    is_rounded = pc.and_not(is_rounded, exact)
    return TextNumbers(values, _mask(texts.is_null()), _mask(pc.invert(is_number_text)), _mask(is_rounded))


def are_no_numbers(texts: Sequence[str]) -> Mask:
    """Return which texts (n,) are no numbers, and do not stand for a missing value."""
    return text_numbers(pa.array(texts, pa.large_string())).wrong


def text_columns(batch: pa.RecordBatch, roles: Roles) -> list[str]:
    """Return the columns of text whose role needs numbers."""
    return [
        column
        for role, column in roles.items()
        if role in NUMBER_ROLES and holds_text(batch.schema.field(column).type)
    ]


def with_numbers(batch: pa.RecordBatch, columns: Iterable[str]) -> pa.RecordBatch:
    """Replace columns of text by their numbers, null where there is none."""
    for column in columns:
        values = text_numbers(batch.column(column)).values
        batch = batch.set_column(batch.schema.get_field_index(column), column, values)
    return batch


def _mask(array: pa.Array) -> Mask:
    mask: Mask = as_numpy(array.fill_null(False))  # noqa: FBT003 - Arrow's own argument
    return mask


Types = Mapping[str, pa.DataType]  # stated types of columns
PlaceOf = Callable[[int], str]  # where a row stands, for messages

TEXT = pa.string()
_BOOL, _INT, _UINT, _FLOAT, _DATE = pa.bool_(), pa.int64(), pa.uint64(), pa.float64(), pa.date32()
_TIME, _ZONED = pa.timestamp("us"), pa.timestamp("us", tz="UTC")
_NUMBERS = (_INT, _UINT, _FLOAT)
_TYPE_ORDER = (_INT, _UINT, _FLOAT, _BOOL, _DATE, _TIME, _ZONED)
_NOUNS = {_BOOL: "true or false", _INT: "a whole number", _UINT: "a whole number", _FLOAT: "a number",
          _DATE: "a date", _TIME: "a time", _ZONED: "a time with a zone"}  # fmt: skip
_TYPE_NAMES = {
    "text": TEXT,
    "integer": _INT,
    "number": _FLOAT,
    "boolean": _BOOL,
    "date": _DATE,
    "time": _TIME,
}
_LEADING_ZERO = "^[+-]?0[^.]"
_COMMAS = (  # forms of numbers with commas, and the arguments of pandas.read_csv that read them
    (re.compile(r"[+-]?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]*)?"), "thousands=','"),
    (re.compile(r"[+-]?[0-9]{1,3}(\.[0-9]{3})+,[0-9]+"), "sep=..., decimal=',', thousands='.'"),
    (re.compile(r"[+-]?[0-9]+(,[0-9]+)+"), "sep=..., decimal=','"),
)
_PROBE = 64


def stated_types(types: Mapping[str, str | pa.DataType] | None) -> dict[str, pa.DataType]:
    """Return the stated types of columns as Arrow types; a type is a word (text, integer, ...) or an Arrow type.

    Raises
    ------
    InputError
        A word that names no type.
    """
    types_by_column = {}
    for column, kind in (types or {}).items():
        try:
            arrow_type = kind if isinstance(kind, pa.DataType) else _TYPE_NAMES.get(kind)
            types_by_column[column] = pa.type_for_alias(kind) if arrow_type is None else arrow_type
        except (ValueError, TypeError) as error:
            raise InputError(
                f"The type {kind!r} of column {column!r} is none of {', '.join(_TYPE_NAMES)}, nor a name of an Arrow "
                "type such as int32."
            ) from error
    return types_by_column


@dataclass
class TextType:
    """The type of one column of texts, from the rows read so far."""

    kind: pa.DataType = field(default_factory=pa.null)
    _low: int = 0
    _high: int = 0
    _first_bad: tuple[int, str] | None = None

    def add(self, texts: pa.Array, first_row: int) -> None:
        """Look at the values of more rows."""
        if self.kind == TEXT or texts.null_count == len(texts):
            return
        kind, values = _kind_of(texts, (self.kind, *_TYPE_ORDER))
        if kind == TEXT:
            self._become_text(texts, first_row)
        elif kind != pa.null():
            self._widen(kind, values, texts, first_row)

    def field(self, name: str, place_of: PlaceOf) -> pa.Field:
        """Return a field of a schema; its metadata has the first value that made the column text."""
        if self._first_bad is None:
            return pa.field(name, self.kind)
        row, reason = self._first_bad
        return pa.field(
            name, self.kind, metadata={NOTE: f"{place_of(row)}: {reason}, so it is read as text."}
        )

    def _widen(self, kind: pa.DataType, values: pa.Array, texts: pa.Array, first_row: int) -> None:
        """Widen the type to hold these values too."""
        if kind in (_INT, _UINT):
            range_ = pc.min_max(values).as_py()
            self._low, self._high = min(self._low, range_["min"]), max(self._high, range_["max"])
        common = _common_type(self.kind, kind)
        if common == _UINT and self._low < 0:
            self._become_text(
                texts, first_row, "the column has whole numbers below 0 and others beyond 2**63"
            )
        elif common == _FLOAT and max(-self._low, self._high) > EXACT:
            self._become_text(texts, first_row, "the column has decimals and whole numbers beyond 2**53")
        elif common == TEXT:
            self._become_text(texts, first_row)
        else:
            self.kind = common

    def _become_text(self, texts: pa.Array, first_row: int, reason: str | None = None) -> None:
        """Make the column text, and keep the first value that fits no other type."""
        self.kind, base, first = TEXT, self.kind, 0
        if reason is None:
            values = cleaned(texts)
            if base == pa.null():
                base = _kind_of(values.drop_null().slice(0, 1), _TYPE_ORDER)[0]
            if base == TEXT:
                first = pc.index(values.is_valid(), value=True).as_py()
            else:
                first = _first_misfit(texts, _FLOAT if base in _NUMBERS else base)
            reason = _misfit_reason(texts[first].as_py(), base)
        self._first_bad = first_row + first, reason


@dataclass
class StatedType:
    """The stated type of a column of texts; with ``lenient``, a column with other values stays text."""

    kind: pa.DataType
    lenient: bool = False
    _first_bad: tuple[int, str] | None = None

    def add(self, texts: pa.Array, first_row: int) -> None:
        """Look at the values of more rows."""
        if (
            self.lenient
            and self._first_bad is None
            and is_number(self.kind)
            and _read(texts, self.kind) is None
        ):
            row, reason = _misfit(texts, self.kind)
            self._first_bad = first_row + row, reason

    def field(self, name: str, place_of: PlaceOf) -> pa.Field:
        """Return a field of a schema; its metadata has the first value that is not of the stated type."""
        if self._first_bad is None:
            return pa.field(name, self.kind)
        row, reason = self._first_bad
        return pa.field(name, MIXED, metadata={NOTE: f"{place_of(row)}: {reason}"})


def converted(texts: pa.Array, kind: pa.DataType, first_row: int, place_of: PlaceOf) -> pa.Array:
    """Return the values of a column of texts as this type; words for a missing value become null unless it is text.

    Raises
    ------
    LogError
        A value is not of this type.
    """
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return texts.cast(kind)
    if pa.types.is_null(kind):
        return pa.nulls(len(texts))
    values = _read(texts, kind)
    if values is None:
        row, reason = _misfit(texts, kind)
        raise LogError(f"{place_of(first_row + row)}: {reason}")
    return values


def _read(texts: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Return the values as this type; None where one does not fit."""
    values = _cast(texts, kind)
    return _cast(cleaned(texts), kind) if values is None else values


def _misfit(texts: pa.Array, kind: pa.DataType) -> tuple[int, str]:
    """Return the position of the first value that is not of the stated type, and the reason."""
    first, noun = _first_misfit(texts, kind), _NOUNS.get(kind, f"of type {kind}")
    return first, (
        f"{_shortened(texts[first].as_py())} is not {noun}, the stated type of the column. Correct the value, or "
        "state another type."
    )


def _kind_of(texts: pa.Array, candidates: tuple[pa.DataType, ...]) -> tuple[pa.DataType, pa.Array]:
    """Return the first candidate type that all values have, and the values; null where all values are missing."""
    for attempt in (texts, cleaned(texts)):
        if attempt.null_count == len(attempt):
            return pa.null(), attempt
        for kind in candidates:
            values = None if kind == pa.null() else _cast(attempt, kind)
            if values is not None and _lossless(attempt, values):
                return kind, values
    return TEXT, texts


def _cast(texts: pa.Array, kind: pa.DataType) -> pa.Array | None:
    try:
        texts.slice(0, _PROBE).cast(
            kind
        )  # a failing cast costs time for each value, so a few are tried first
        return texts.cast(kind)
    except pa.ArrowInvalid:
        return None


def _lossless(texts: pa.Array, values: pa.Array) -> bool:
    """Return whether these values keep all that tells the texts apart as ids."""
    if values.type == _BOOL:
        return bool(pc.all(pc.is_in(pc.utf8_lower(texts.drop_null()), pa.array(["true", "false"]))).as_py())
    if values.type not in _NUMBERS:
        return True
    if any(_any(_leading_zeros(texts, sign)) for sign in ("0", "-0")):
        return False
    may_round = values.type == _FLOAT and _any(pc.greater_equal(pc.abs(values), float(EXACT)))
    return not (may_round and _any(pc.match_substring_regex(texts, LONG)))


def _leading_zeros(texts: pa.Array, start: str) -> pa.Array:
    """Return which texts begin with a zero that no decimal point follows, as codes do."""
    longer = pc.greater(pc.binary_length(texts), len(start))
    return pc.and_(
        pc.and_(pc.starts_with(texts, start), longer), pc.invert(pc.starts_with(texts, start + "."))
    )


def _any(mask: pa.Array) -> bool:
    return bool(pc.any(mask).as_py())


def _common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the type that holds the values of both."""
    if one in (pa.null(), other):
        return other
    if one in _NUMBERS and other in _NUMBERS:
        return _FLOAT if _FLOAT in (one, other) else _UINT
    return _TIME if {one, other} == {_DATE, _TIME} else TEXT


def _first_misfit(texts: pa.Array, kind: pa.DataType) -> int:
    """Return the position of the first value that is not of this type."""
    low, high = 0, len(texts)  # all of texts[:low] fit, not all of texts[:high]
    while high - low > 1:
        middle = (low + high) // 2
        fits = _kind_of(texts.slice(low, middle - low), (kind,))[0] in (kind, pa.null())
        low, high = (middle, high) if fits else (low, middle)
    return low


def commas_advice(text: str) -> str:
    """Return how to read numbers that are written with commas, as this text is; empty for another text.

    Examples
    --------
    >>> commas_advice("1,209.79")
    "pandas.read_csv(path, thousands=',') reads such numbers into a frame"
    >>> commas_advice("1.209,79")
    "pandas.read_csv(path, sep=..., decimal=',', thousands='.') reads such numbers into a frame"
    >>> commas_advice("12 EUR")
    ''
    """
    arguments = (arguments for form, arguments in _COMMAS if form.fullmatch(text.strip()))
    first = next(arguments, None)
    return "" if first is None else f"pandas.read_csv(path, {first}) reads such numbers into a frame"


def _misfit_reason(text: str, base: pa.DataType) -> str:
    value = pa.array([text])
    if base in (TEXT, *_NUMBERS) and (advice := commas_advice(text)):
        return f"{_shortened(text)} is not a number (decimals need a point, and thousands no separator; {advice})"
    if base == TEXT:
        return f"{_shortened(text)} is neither a number nor a date"
    if base in _NUMBERS and _any(pc.match_substring_regex(value, _LEADING_ZERO)):
        return f"{_shortened(text)} has leading zeros, which a number would lose"
    if base in _NUMBERS and _any(pc.match_substring_regex(value, LONG)):
        return f"{_shortened(text)} is a whole number that a decimal number would round"
    return f"{_shortened(text)} is not {_NOUNS[_FLOAT if base in _NUMBERS else base]}"


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


_HUGE = pa.decimal128(38, 0)  # whole numbers beyond 64 bits, which fit no column


@dataclass(frozen=True)
class JsonType:
    """The type of one column, from the lines read so far, with its smallest and largest whole number."""

    kind: pa.DataType = field(default_factory=pa.null)
    low: float = 0
    high: float = 0
    note: str | None = None  # why the type is mixed
    first: str | None = None  # the first value that was read on its own, and its place

    def including(self, kind: pa.DataType, low: float, high: float) -> "JsonType | None":
        """Return the type that also holds values of this type within this range; None where there is none."""
        if self.kind == MIXED:
            return self
        low, high = min(self.low, low), max(self.high, high)
        common = _common_json_type(self.kind, kind)
        integers = {self.kind, kind} & {_INT, _UINT}
        rounded = common == _FLOAT and bool(integers) and max(-low, high) > EXACT
        if common is None or rounded or (common == _UINT and low < 0):
            return None
        return replace(self, kind=common, low=low, high=high)

    def including_value(self, kind: pa.DataType, value: Any, place: str) -> "JsonType":
        """Return the type that also holds this value; of mixed values where there is none."""
        number = value if isinstance(value, int) and not isinstance(value, bool) else 0
        joined = self.including(kind, min(number, 0), max(number, 0))
        if joined is not None:
            is_first = joined.first is None and kind != pa.null()
            return (
                replace(joined, first=f"{_shortened_json(value)} in {place[0].lower()}{place[1:]}")
                if is_first
                else joined
            )
        if kind == _HUGE:
            note = f"{place}: {value} is beyond 64 bits; write it as text if it is an id."
        elif kind in _NUMBERS and self.kind in _NUMBERS:
            note = (
                f"{place}: the column has whole numbers beyond 2**53 beside decimals or negative numbers, and no type "
                "holds both."
            )
        else:
            before = "" if self.first is None else f", {self.first}"
            note = (
                f"{place}: {_shortened_json(value)} is {_type_in_words(kind)}, but the column had "
                f"{_type_in_words(self.kind)} before{before}. Give it one type in all lines."
            )
        return replace(self, kind=MIXED, note=note)

    def field(self, name: str) -> pa.Field:
        """Return a field of a schema; its metadata names the line where the type of the values changes."""
        return pa.field(name, self.kind, metadata=None if self.note is None else {NOTE: self.note})


def kind_of(value: Any) -> pa.DataType:
    """Return the type of one parsed value."""
    if isinstance(value, bool):
        return _BOOL
    if isinstance(value, int):
        return _INT if -(2**63) <= value < 2**63 else _UINT if 0 < value < 2**64 else _HUGE
    if isinstance(value, list):
        return pa.list_(_common_of_all([kind_of(item) for item in value]))
    if isinstance(value, dict):
        return pa.struct([(name, kind_of(item)) for name, item in value.items()])
    return {str: TEXT, float: _FLOAT}.get(type(value), pa.null())


def unguessed(kind: pa.DataType) -> pa.DataType:
    """Return a type that Arrow inferred, with text in place of times: JSON has none."""
    if pa.types.is_timestamp(kind):
        return TEXT
    if pa.types.is_list(kind):
        return pa.list_(unguessed(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, unguessed(field.type)) for field in kind])
    return kind


def as_text(value: Any) -> str | None:
    """Return a parsed value as text: as in the file, a text without its quotes."""
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _shortened_json(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "..."


def _common_of_all(kinds: list[pa.DataType]) -> pa.DataType:
    joined = pa.null()
    for kind in kinds:
        common = _common_json_type(joined, kind)
        if common is None:
            return MIXED
        joined = common
    return joined


def _common_json_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type that holds the values of both; None where there is none."""
    if _HUGE in (one, other):
        return None
    if pa.null() in (one, other) or one == other:
        return other if one == pa.null() else one
    if one in _NUMBERS and other in _NUMBERS:
        return _FLOAT if _FLOAT in (one, other) else _UINT
    if pa.types.is_list(one) and pa.types.is_list(other):
        inner = _common_json_type(one.value_type, other.value_type)
        return None if inner is None else pa.list_(inner)
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return _common_struct(one, other)
    return None


def _common_struct(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    fields = {member.name: member.type for member in one}
    for member in other:
        joined = _common_json_type(fields.get(member.name, pa.null()), member.type)
        if joined is None:
            return None
        fields[member.name] = joined
    return pa.struct(list(fields.items()))


def _type_in_words(kind: pa.DataType) -> str:
    return {**_NOUNS, TEXT: "text", _BOOL: "a boolean"}.get(kind, f"a value of type {kind}")
