"""Types of columns of JSON: those that hold all values."""

import json
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from hieropo.sources.arrays import EXACT
from hieropo.sources.schema import MIXED, NOTE

_INT, _UINT, _FLOAT, _TEXT, _NULL = pa.int64(), pa.uint64(), pa.float64(), pa.string(), pa.null()
_NUMBERS = (_INT, _UINT, _FLOAT)
_NOUNS = {
    _INT: "a whole number",
    _UINT: "a whole number",
    _FLOAT: "a number",
    _TEXT: "text",
    pa.bool_(): "a boolean",
}
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
        joined = _joined(self.kind, kind)
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
            new = found.first is None and kind != _NULL
            return replace(found, first=f"{_short(value)} in {place[0].lower()}{place[1:]}") if new else found
        if kind == _HUGE:
            note = f"{place}: {value} is beyond 64 bits; write it as text if it is an id."
        elif kind in _NUMBERS and self.kind in _NUMBERS:
            note = f"{place}: here decimals or negative numbers and whole numbers beyond 2**53 have met."
        else:
            before = "" if self.first is None else f", {self.first}"
            note = (
                f"{place}: {_short(value)} is {_noun(kind)}, and there was {_noun(self.kind)} before{before}. Give it "
                "one type in all lines."
            )
        return replace(self, kind=MIXED, note=note)

    def field(self, name: str) -> pa.Field:
        """As a field of a schema, whose metadata says where its values differ in type."""
        return pa.field(name, self.kind, metadata=None if self.note is None else {NOTE: self.note})


def kind_of(value: Any) -> pa.DataType:
    """The type of one parsed value."""
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return _INT if -(2**63) <= value < 2**63 else _UINT if 0 < value < 2**64 else _HUGE
    if isinstance(value, list):
        return pa.list_(_all_of([kind_of(each) for each in value]))
    if isinstance(value, dict):
        return pa.struct([(name, kind_of(each)) for name, each in value.items()])
    return {str: _TEXT, float: _FLOAT}.get(type(value), _NULL)


def plain(kind: pa.DataType) -> pa.DataType:
    """A type as it is without a guess: what looks like a time is text."""
    if pa.types.is_timestamp(kind):
        return _TEXT
    if pa.types.is_list(kind):
        return pa.list_(plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(each.name, plain(each.type)) for each in kind])
    return kind


def as_text(value: Any) -> str | None:
    """A parsed value as text: what stands in the file, without the quotes of text."""
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "..."


def _all_of(kinds: list[pa.DataType]) -> pa.DataType:
    joined = _NULL
    for kind in kinds:
        found = _joined(joined, kind)
        if found is None:
            return MIXED
        joined = found
    return joined


def _joined(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that holds the values of both; None where there is none."""
    if _HUGE in (one, other):
        return None
    if _NULL in (one, other) or one == other:
        return other if one == _NULL else one
    if one in _NUMBERS and other in _NUMBERS:
        return _FLOAT if _FLOAT in (one, other) else _UINT
    if pa.types.is_list(one) and pa.types.is_list(other):
        inner = _joined(one.value_type, other.value_type)
        return None if inner is None else pa.list_(inner)
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return _structs(one, other)
    return None


def _structs(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    found = {each.name: each.type for each in one}
    for each in other:
        joined = _joined(found.get(each.name, _NULL), each.type)
        if joined is None:
            return None
        found[each.name] = joined
    return pa.struct(list(found.items()))


def _noun(kind: pa.DataType) -> str:
    return _NOUNS.get(kind, f"a value of type {kind}")
