"""Columns of ids: the buffers of each kind on disk, and the 64-bit code by which an id is looked up.

Equal ids have equal codes. A whole number or a ``datetime64`` is its own code. Any other id is hashed, and a look-up
compares the ids themselves.
"""

import datetime as dt
import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from hieropo.errors import InputError
from hieropo.rows.ids import decode_id, encode_id, hashed, instant, object_array

Buffers = tuple[NDArray[Any], ...]

EPOCH = dt.date(1970, 1, 1).toordinal()


@dataclass(frozen=True)
class WholeIds:
    """Ids of 64 bits that are their own codes: int64, uint64, ``datetime64[unit]``."""

    kind: str
    words: memoryview

    def __len__(self) -> int:
        return len(self.words)

    def at(self, row: int) -> Any:
        """Return one id."""
        word = self.words[row]
        return np.int64(word).view(self.kind) if self.kind.startswith("datetime") else word

    def values(self) -> NDArray[Any]:
        """Return all ids as given, as a view."""
        return self.codes().view(self.kind)

    def codes(self) -> NDArray[Any]:
        """Return the codes of all ids, as a view."""
        return np.frombuffer(self.words, dtype=_word_type(self.kind))

    def code(self, key: Any) -> int | None:
        """Return the code of an id; None where no column of this kind holds it."""
        if type(key) is int and self.kind in ("int64", "uint64"):
            return key
        if self.kind.startswith("datetime"):
            return _date_code(key, self.kind)
        try:
            integer = int(key)
        except (TypeError, ValueError, OverflowError):
            return None
        return integer if integer == key else None


def _date_code(key: object, kind: str) -> int | None:
    moment = instant(key)
    if moment is None:
        return None
    converted = moment.astype(kind)
    return int(converted.view("i8")) if converted.astype(moment.dtype) == moment else None


@dataclass(frozen=True)
class HashedIds:
    """Ids of any other kind: text, bytes, dates, UUIDs, or the JSON of a mixture."""

    kind: str
    count: int
    at: Callable[[int], Any]

    def __len__(self) -> int:
        return self.count

    def values(self) -> NDArray[Any]:
        """Return all ids as given."""
        return object_array([self.at(row) for row in range(self.count)])

    def code(self, key: object) -> int | None:
        """Return the code of an id; None where no column of this kind holds it."""
        try:
            return hashed(key)
        except InputError:
            return None


IdColumn = WholeIds | HashedIds


def id_codes(values: NDArray[Any]) -> NDArray[Any]:
    """Return the code of every id (m,)."""
    if values.dtype != object:
        return np.ascontiguousarray(values).view(_word_type(values.dtype.name))
    return np.fromiter(map(hashed, values.tolist()), dtype="<u8", count=values.size)


def _word_type(kind: str) -> str:
    return "<u8" if kind == "uint64" else "<i8"


def open_ids(kind: str, buffers: tuple[memoryview, ...]) -> IdColumn:
    """Return the column of ids in these buffers."""
    if kind == "uint64":
        return WholeIds(kind, buffers[0].cast("B").cast("Q"))
    if kind == "int64" or kind.startswith("datetime64["):
        return WholeIds(kind, buffers[0].cast("B").cast("q"))
    if kind == "uuid":
        packed = buffers[0].cast("B")
        return HashedIds(kind, len(packed) // 16, lambda row: UUID(bytes=packed[16 * row :][:16].tobytes()))
    if kind == "date":
        days = buffers[0].cast("B").cast("i")
        return HashedIds(kind, len(days), lambda row: dt.date.fromordinal(days[row] + EPOCH))
    read = _TEXTS[kind]
    ends, text = buffers[0].cast("B").cast("q"), buffers[1].cast("B")
    return HashedIds(kind, max(len(ends) - 1, 0), lambda row: read(text[ends[row] : ends[row + 1]]))


_TEXTS: dict[str, Callable[[memoryview], Any]] = {
    "str": lambda text: str(text, "utf-8"),
    "bytes": bytes,
    "json": lambda text: decode_id(json.loads(bytes(text))),
}


def encode_ids(values: NDArray[Any], kind: str | None = None) -> tuple[str, Buffers]:
    """Return the kind of ids (m,), and the buffers of the Arrow array that holds them.

    ``kind`` "json" takes ids of any type; by default ids have the kind of their own.

    Raises
    ------
    InputError
        An id would not be read back equal; the message names it.
    """
    if kind == "json":
        items = list(values) if values.dtype.kind == "M" else values.tolist()
        return kind, _text_buffers([_json(item) for item in items])
    if values.dtype != object:
        return values.dtype.name, (id_codes(values),)
    return _encode_objects(values.tolist())


def _encode_objects(items: list[Any]) -> tuple[str, Buffers]:
    """Return the kind of ids that are objects, and the buffers of the Arrow array that holds them."""
    types = {type(item) for item in items}
    if types == {UUID}:
        return "uuid", (np.frombuffer(b"".join(item.bytes for item in items), dtype=np.uint8),)
    if types == {dt.date}:
        return "date", (np.array([item.toordinal() - EPOCH for item in items], dtype="<i4"),)
    if types == {bytes}:
        return "bytes", _text_buffers(items)
    if types == {str}:
        return "str", _text_buffers([_utf8(item) for item in items])
    return "json", _text_buffers([_json(item) for item in items])


def _text_buffers(texts: list[bytes]) -> Buffers:
    ends = np.fromiter(accumulate(map(len, texts), initial=0), dtype="<i8", count=len(texts) + 1)
    return ends, np.frombuffer(b"".join(texts), dtype=np.uint8)


def _utf8(item: str) -> bytes:
    try:
        return item.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"The task id {item!r} is not valid Unicode ({error.reason}), so it cannot be stored. Correct it in the "
            "log."
        ) from error


def _json(item: object) -> bytes:
    decoded = decode_id(encode_id(item))
    if decoded != item or hash(decoded) != hash(item):
        raise InputError(
            f"The task id {item!r} of type {type(item).__name__} would be read back as {decoded!r}, which is not "
            "equal to it. Give dates as one array of datetime64, or use text."
        )
    return json.dumps(encode_id(item)).encode()
