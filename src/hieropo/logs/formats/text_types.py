"""Types of columns that come as text or as JSON: found from all of their values, or stated.

A column is of whole numbers, numbers, true/false, dates or times only where every value of it is; else it is text, and
the first value that did not fit is kept for whoever needs numbers there. What an id may lose is not read as a number:
leading zeros, and whole numbers that a float would round.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from hieropo._utils.arrays import Mask
from hieropo.errors import InputError, LogError
from hieropo.logs.arrow.arrays import EXACT, decoded
from hieropo.logs.arrow.schema import MIXED, NOTE, NUMBER_ROLES, holds_text, is_number
from hieropo.rows.batches import Roles

LONG = "^[+-]?[0-9]{16,}$"
_NUMBER = r"^[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf|infinity|nan)$"  # what a cast takes
_MISSING = ["", "NA", "N/A", "n/a", "NULL", "null", "None", "#N/A"]


class TextNumbers(NamedTuple):
    """Texts (n,) as numbers.

    Attributes
    ----------
    values : float64 array
        Null where there is no number.
    missing, wrong, rounded : (n,) bool
        Nothing is there; what is there is not a number; a whole number that a float64 would round.
    """

    values: pa.Array
    missing: Mask
    wrong: Mask
    rounded: Mask


def cleaned(texts: pa.Array) -> pa.Array:
    """Without blanks around values, and null where a word says that a value is missing."""
    trimmed = pc.utf8_trim_whitespace(texts)
    words = pc.is_in(trimmed, pa.array(_MISSING, trimmed.type))
    return pc.if_else(words, pa.scalar(None, trimmed.type), trimmed)


def text_numbers(texts: pa.Array) -> TextNumbers:
    """Read texts as numbers, as CSV files are: a point before decimals, and nothing between thousands."""
    texts = cleaned(decoded(texts).cast(pa.large_string()))
    found = pc.match_substring_regex(texts, _NUMBER, ignore_case=True)
    values = pc.if_else(found, texts, pa.scalar(None, texts.type)).cast(pa.float64())
    exact = pc.match_substring_regex(texts, f"^[+-]?0*{EXACT}$")
    large = pc.and_(pc.match_substring_regex(texts, LONG), pc.greater_equal(pc.abs(values), float(EXACT)))
    large = pc.and_not(large, exact)
    return TextNumbers(values, _mask(texts.is_null()), _mask(pc.invert(found)), _mask(large))


def text_columns(found: pa.RecordBatch, roles: Roles) -> list[str]:
    """Columns of text that are named as numbers."""
    return [
        column
        for role, column in roles.items()
        if role in NUMBER_ROLES and holds_text(found.schema.field(column).type)
    ]


def with_numbers(found: pa.RecordBatch, columns: Iterable[str]) -> pa.RecordBatch:
    """Replace columns of text by their numbers, null where there is none."""
    for column in columns:
        values = text_numbers(found.column(column)).values
        found = found.set_column(found.schema.get_field_index(column), column, values)
    return found


def _mask(found: pa.Array) -> Mask:
    mask: Mask = found.fill_null(False).to_numpy(zero_copy_only=False)  # noqa: FBT003 - Arrow's own argument
    return mask


Types = Mapping[str, pa.DataType]  # stated types of columns
Where = Callable[[int], str]  # where a row stands, for messages

TEXT = pa.string()
_BOOL, _INT, _UINT, _FLOAT, _DATE = pa.bool_(), pa.int64(), pa.uint64(), pa.float64(), pa.date32()
_TIME, _ZONED = pa.timestamp("us"), pa.timestamp("us", tz="UTC")
_NUMBERS = (_INT, _UINT, _FLOAT)
_LADDER = (_INT, _UINT, _FLOAT, _BOOL, _DATE, _TIME, _ZONED)
_NOUNS = {_BOOL: "true or false", _INT: "a whole number", _UINT: "a whole number", _FLOAT: "a number",
          _DATE: "a date", _TIME: "a time", _ZONED: "a time with a zone"}  # fmt: skip
_WORDS = {"text": TEXT, "integer": _INT, "number": _FLOAT, "boolean": _BOOL, "date": _DATE, "time": _TIME}
_CODE = "^[+-]?0[^.]"
_COMMAS = "^ *[+-]?[0-9]+(,[0-9]+)+ *$"
_FEW = 64


def stated_types(types: Mapping[str, str | pa.DataType] | None) -> dict[str, pa.DataType]:
    """Types that a caller states by a word (text, integer, number, boolean, date, time) or as Arrow types.

    Raises
    ------
    InputError
        A word that names no type.
    """
    found = {}
    for column, kind in (types or {}).items():
        try:
            known = kind if isinstance(kind, pa.DataType) else _WORDS.get(kind)
            found[column] = pa.type_for_alias(kind) if known is None else known
        except (ValueError, TypeError) as error:
            raise InputError(
                f"The type {kind!r} of column {column!r} is none of {', '.join(_WORDS)}, nor a name of an Arrow type "
                "such as int32."
            ) from error
    return found


@dataclass
class TextType:
    """The type of one column of texts, as far as it has been seen."""

    kind: pa.DataType = field(default_factory=pa.null)
    _low: int = 0
    _high: int = 0
    _stopped: tuple[int, str] | None = None

    def add(self, texts: pa.Array, first_row: int) -> None:
        """Look at the values of more rows."""
        if self.kind == TEXT or texts.null_count == len(texts):
            return
        found, values = _kind_of(texts, (self.kind, *_LADDER))
        if found == TEXT:
            self._stop(texts, first_row)
        elif found != pa.null():
            self._widen(found, values, texts, first_row)

    def field(self, name: str, where: Where) -> pa.Field:
        """As a field of a schema, whose metadata says why a column is text that mostly is not."""
        if self._stopped is None:
            return pa.field(name, self.kind)
        row, why = self._stopped
        return pa.field(name, self.kind, metadata={NOTE: f"{where(row)}: {why}, so it is read as text."})

    def _widen(self, found: pa.DataType, values: pa.Array, texts: pa.Array, first_row: int) -> None:
        """Go on with a type that holds what was seen before and these values."""
        if found in (_INT, _UINT):
            ends = pc.min_max(values).as_py()
            self._low, self._high = min(self._low, ends["min"]), max(self._high, ends["max"])
        joined = _joined(self.kind, found)
        if joined == _UINT and self._low < 0:
            self._stop(texts, first_row, "here whole numbers below 0 and beyond 2**63 have met in one column")
        elif joined == _FLOAT and max(-self._low, self._high) > EXACT:
            self._stop(
                texts, first_row, "here decimals and whole numbers beyond 2**53 have met in one column"
            )
        elif joined == TEXT:
            self._stop(texts, first_row)
        else:
            self.kind = joined

    def _stop(self, texts: pa.Array, first_row: int, why: str | None = None) -> None:
        """From here on the column is text; keep the first value that made it so."""
        self.kind, base, first = TEXT, self.kind, 0
        if why is None:
            said = cleaned(texts)
            if base == pa.null():
                base = _kind_of(said.drop_null().slice(0, 1), _LADDER)[0]
            if base == TEXT:
                first = pc.index(said.is_valid(), value=True).as_py()
            else:
                first = _first_other(texts, _FLOAT if base in _NUMBERS else base)
            why = _failing(texts[first].as_py(), base)
        self._stopped = first_row + first, why


@dataclass
class StatedType:
    """A type that was stated for a column of texts; where it is lenient, values of another kind may come as text."""

    kind: pa.DataType
    lenient: bool = False
    _stopped: tuple[int, str] | None = None

    def add(self, texts: pa.Array, first_row: int) -> None:
        """Look at the values of more rows."""
        if (
            self.lenient
            and self._stopped is None
            and is_number(self.kind)
            and _read(texts, self.kind) is None
        ):
            row, why = _misfit(texts, self.kind)
            self._stopped = first_row + row, why

    def field(self, name: str, where: Where) -> pa.Field:
        """As a field of a schema, whose metadata says which value is not of the type."""
        if self._stopped is None:
            return pa.field(name, self.kind)
        row, why = self._stopped
        return pa.field(name, MIXED, metadata={NOTE: f"{where(row)}: {why}"})


def converted(texts: pa.Array, kind: pa.DataType, first_row: int, where: Where) -> pa.Array:
    """Values of a column of texts as this type; words for a missing value become null unless it is text.

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
        row, why = _misfit(texts, kind)
        raise LogError(f"{where(first_row + row)}: {why}")
    return values


def _read(texts: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Values of this type; None where one is not."""
    values = _cast(texts, kind)
    return _cast(cleaned(texts), kind) if values is None else values


def _misfit(texts: pa.Array, kind: pa.DataType) -> tuple[int, str]:
    """The place of the first value that is not of a stated type, and why it is not."""
    first, noun = _first_other(texts, kind), _NOUNS.get(kind, f"of type {kind}")
    return first, (
        f"{_short(texts[first].as_py())} is not {noun}, as the column is stated to be. Mend the value, or state "
        "another type."
    )


def _kind_of(texts: pa.Array, ladder: tuple[pa.DataType, ...]) -> tuple[pa.DataType, pa.Array]:
    """The first type of a ladder that all values have, and the values; null where every value is missing."""
    for tried in (texts, cleaned(texts)):
        if tried.null_count == len(tried):
            return pa.null(), tried
        for kind in ladder:
            values = None if kind == pa.null() else _cast(tried, kind)
            if values is not None and _keeps(tried, values):
                return kind, values
    return TEXT, texts


def _cast(texts: pa.Array, kind: pa.DataType) -> pa.Array | None:
    try:
        texts.slice(0, _FEW).cast(kind)  # a cast that fails costs as much for each value that it cannot take
        return texts.cast(kind)
    except pa.ArrowInvalid:
        return None


def _keeps(texts: pa.Array, values: pa.Array) -> bool:
    """Whether these values say all that the texts do, as ids."""
    if values.type == _BOOL:
        return bool(
            pc.all(pc.is_in(pc.utf8_lower(texts), pa.array(["true", "false"]), skip_nulls=True)).as_py()
        )
    if values.type not in _NUMBERS:
        return True
    if any(_any(_zeros(texts, sign)) for sign in ("0", "-0")):
        return False
    large = values.type == _FLOAT and _any(pc.greater_equal(pc.abs(values), float(EXACT)))
    return not (large and _any(pc.match_substring_regex(texts, LONG)))


def _zeros(texts: pa.Array, start: str) -> pa.Array:
    """Which texts begin with a zero that no point follows, as codes do."""
    more = pc.greater(pc.binary_length(texts), len(start))
    return pc.and_(pc.and_(pc.starts_with(texts, start), more), pc.invert(pc.starts_with(texts, start + ".")))


def _any(mask: pa.Array) -> bool:
    return bool(pc.any(mask).as_py())


def _joined(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type that holds the values of both."""
    if one in (pa.null(), other):
        return other
    if one in _NUMBERS and other in _NUMBERS:
        return _FLOAT if _FLOAT in (one, other) else _UINT
    return _TIME if {one, other} == {_DATE, _TIME} else TEXT


def _first_other(texts: pa.Array, kind: pa.DataType) -> int:
    """The place of the first value that is not of this type."""
    low, high = 0, len(texts)  # texts[:low] are, texts[:high] are not
    while high - low > 1:
        middle = (low + high) // 2
        fits = _kind_of(texts.slice(low, middle - low), (kind,))[0] in (kind, pa.null())
        low, high = (middle, high) if fits else (low, middle)
    return low


def _failing(text: str, base: pa.DataType) -> str:
    value = pa.array([text])
    if base == TEXT:
        return f"{_short(text)} is neither a number nor a date"
    if base in _NUMBERS and _any(pc.match_substring_regex(value, _COMMAS)):
        return (
            f"{_short(text)} is not a number (a point stands before decimals, and nothing between thousands)"
        )
    if base in _NUMBERS and _any(pc.match_substring_regex(value, _CODE)):
        return f"{_short(text)} has leading zeros, which a number would lose"
    if base in _NUMBERS and _any(pc.match_substring_regex(value, LONG)):
        return f"{_short(text)} is a whole number that a decimal number would round"
    return f"{_short(text)} is not {_NOUNS[_FLOAT if base in _NUMBERS else base]}"


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


_HUGE = pa.decimal128(38, 0)  # whole numbers beyond 64 bits, which no column holds


@dataclass(frozen=True)
class JsonType:
    """The type of one column, as far as it has been seen, with the least and the largest whole number in it."""

    kind: pa.DataType = field(default_factory=pa.null)
    low: float = 0
    high: float = 0
    note: str | None = None  # why the type is mixed
    first: str | None = None  # the first value that was looked at alone, and its place

    def with_(self, kind: pa.DataType, low: float, high: float) -> "JsonType | None":
        """Return the type that also holds values of this type within this range; None where there is none."""
        if self.kind == MIXED:
            return self
        low, high = min(self.low, low), max(self.high, high)
        joined = _joined_json(self.kind, kind)
        whole = {self.kind, kind} & {_INT, _UINT}
        rounded = joined == _FLOAT and bool(whole) and max(-low, high) > EXACT
        if joined is None or rounded or (joined == _UINT and low < 0):
            return None
        return replace(self, kind=joined, low=low, high=high)

    def widened(self, kind: pa.DataType, value: Any, place: str) -> "JsonType":
        """Return the type that also holds this value; of mixed values where there is none."""
        number = value if isinstance(value, int) and not isinstance(value, bool) else 0
        found = self.with_(kind, min(number, 0), max(number, 0))
        if found is not None:
            new = found.first is None and kind != pa.null()
            return (
                replace(found, first=f"{_short_json(value)} in {place[0].lower()}{place[1:]}")
                if new
                else found
            )
        if kind == _HUGE:
            note = f"{place}: {value} is beyond 64 bits; write it as text if it is an id."
        elif kind in _NUMBERS and self.kind in _NUMBERS:
            note = f"{place}: here decimals or negative numbers and whole numbers beyond 2**53 have met."
        else:
            before = "" if self.first is None else f", {self.first}"
            note = (
                f"{place}: {_short_json(value)} is {_noun(kind)}, and there was {_noun(self.kind)} before{before}. "
                "Give it one type in all lines."
            )
        return replace(self, kind=MIXED, note=note)

    def field(self, name: str) -> pa.Field:
        """As a field of a schema, whose metadata says where its values differ in type."""
        return pa.field(name, self.kind, metadata=None if self.note is None else {NOTE: self.note})


def kind_of(value: Any) -> pa.DataType:
    """The type of one parsed value."""
    if isinstance(value, bool):
        return _BOOL
    if isinstance(value, int):
        return _INT if -(2**63) <= value < 2**63 else _UINT if 0 < value < 2**64 else _HUGE
    if isinstance(value, list):
        return pa.list_(_all_of([kind_of(each) for each in value]))
    if isinstance(value, dict):
        return pa.struct([(name, kind_of(each)) for name, each in value.items()])
    return {str: TEXT, float: _FLOAT}.get(type(value), pa.null())


def plain(kind: pa.DataType) -> pa.DataType:
    """A type as it is without a guess: what looks like a time is text."""
    if pa.types.is_timestamp(kind):
        return TEXT
    if pa.types.is_list(kind):
        return pa.list_(plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(each.name, plain(each.type)) for each in kind])
    return kind


def as_text(value: Any) -> str | None:
    """A parsed value as text: what stands in the file, without the quotes of text."""
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _short_json(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "..."


def _all_of(kinds: list[pa.DataType]) -> pa.DataType:
    joined = pa.null()
    for kind in kinds:
        found = _joined_json(joined, kind)
        if found is None:
            return MIXED
        joined = found
    return joined


def _joined_json(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that holds the values of both; None where there is none."""
    if _HUGE in (one, other):
        return None
    if pa.null() in (one, other) or one == other:
        return other if one == pa.null() else one
    if one in _NUMBERS and other in _NUMBERS:
        return _FLOAT if _FLOAT in (one, other) else _UINT
    if pa.types.is_list(one) and pa.types.is_list(other):
        inner = _joined_json(one.value_type, other.value_type)
        return None if inner is None else pa.list_(inner)
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return _structs(one, other)
    return None


def _structs(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    found = {each.name: each.type for each in one}
    for each in other:
        joined = _joined_json(found.get(each.name, pa.null()), each.type)
        if joined is None:
            return None
        found[each.name] = joined
    return pa.struct(list(found.items()))


def _noun(kind: pa.DataType) -> str:
    return {**_NOUNS, TEXT: "text", _BOOL: "a boolean"}.get(kind, f"a value of type {kind}")
