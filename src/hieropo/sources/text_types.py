"""Types of columns that come as text: found from all of their values, or stated.

A column is of whole numbers, numbers, true/false, dates or times only where every value of it is; else it is text, and
the first value that did not fit is kept for whoever needs numbers there. What an id may lose is not read as a number:
leading zeros, and whole numbers that a float would round.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from hieropo.errors import InputError, LogError
from hieropo.sources.arrays import EXACT
from hieropo.sources.schema import MIXED, NOTE, is_number
from hieropo.sources.text_numbers import LONG, cleaned

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
