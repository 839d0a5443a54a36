"""Ids of tasks and actions: arrays, standard-library values, JSON, and known ids that resemble unknown ones."""

import datetime as dt
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from hashlib import blake2b
from typing import Any, Protocol
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from hieropo.errors import InputError, LogError

Ids = NDArray[Any]

ONE_TASK = "all"  # id of the only task of a log without a task column


def is_null(value: object) -> bool:
    """Return whether a scalar stands for "missing": None, NaN, NaT, pandas' NA; or a tuple that holds one."""
    if value is None:
        return True
    if type(value) is tuple:
        return any(map(is_null, value))
    try:
        return bool(value != value)  # noqa: PLR0124  # what NaN and NaT have in common
    except TypeError:
        return type(value).__name__ == "NAType"  # its comparisons refuse to be true or false
    except ValueError:
        return False


def may_be_rounded(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which floats (n,) are so large that several whole numbers round to one float: from 2**53 in float64."""
    rounded: NDArray[np.bool_] = (np.abs(values) >= 2.0 ** _mantissa_bits(values.dtype)) & np.isfinite(values)
    return rounded


def _mantissa_bits(kind: Any) -> int:
    """Return the number of binary digits that a type of floats holds."""
    return int(np.finfo(kind).nmant) + 1


def rounded_message(value: float | np.floating[Any], subject: str = "The id") -> str:
    """Return the message on a float that :func:`may_be_rounded` and so is no id; ``subject`` names its place."""
    kind = value.dtype if isinstance(value, np.floating) else np.dtype(np.float64)
    return (
        f"{subject} {float(value)!r} is a {kind} of size 2**{_mantissa_bits(kind)} or more, where different whole "
        "numbers become one float, and so different ids one id. Did a merge or a missing value make floats of whole "
        "numbers? Keep them whole from their source on (pandas: astype('Int64') before the merge), or make them text "
        "there: a later cast does not bring lost digits back."
    )


def refuse_rounded(value: object) -> None:
    """Refuse one id that may have been rounded.

    Raises
    ------
    InputError
        It is a float that :func:`may_be_rounded`.
    """
    if _is_rounded(value):
        raise InputError(rounded_message(value))  # type: ignore[arg-type]  # it is a float


def _is_rounded(value: object) -> bool:
    return isinstance(value, float | np.floating) and bool(may_be_rounded(np.asarray(value)))


def refuse_rounded_in(values: NDArray[Any], place: str, rows: NDArray[np.int64] | int = 0) -> None:
    """Refuse floats (n,) as ids where one of them :func:`may_be_rounded`.

    Parameters
    ----------
    values : (n,) float
    place : str
        Their column for the message, such as ``Column 'store'``.
    rows : (n,) int, or int
        Number of the row of each, or of the first where they follow it.

    Raises
    ------
    LogError
        Names the place, the row and the value.
    """
    bad = may_be_rounded(values)
    if bad.any():
        position = int(bad.argmax())
        row = rows + position if isinstance(rows, int) else rows[position]
        text = rounded_message(values[position], f"{place}, row {row}: the id")
        raise LogError.in_row(int(row), text, lenient=False)


def id_array(ids: object, column: str, first_row: int = 0) -> Ids:
    """Return ids (n,) as an array of int64, uint64, datetime64 or object, each id unchanged.

    Raises
    ------
    LogError
        An id is null, cannot be hashed, or is a float that may be a rounded whole number; names ``column``, the row
        (from ``first_row`` on) and the value.
    InputError
        Not one id a row.
    """
    array = _array(ids)
    if array.ndim != 1:
        raise InputError(f"{column!r} has shape {array.shape}; one id a row, shape (n,), is needed.")
    if array.dtype.kind == "i":
        return array.astype(np.int64, copy=False)
    if array.dtype.kind == "u":
        return array.astype(np.uint64, copy=False)
    if array.dtype.kind == "M":
        missing = np.isnat(array)
        if missing.any():
            raise _null(column, first_row, int(missing.argmax()), "NaT")
        return array
    if array.dtype.kind == "f":
        refuse_rounded_in(array, f"Column {column!r}", first_row)
    array = array.astype(object, copy=False)
    _refuse_nulls(array.tolist(), column, first_row)
    return array


def _array(ids: object) -> Ids:
    if isinstance(ids, np.ndarray):
        return ids
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise InputError(f"Ids must be an array or a list with one id a row; got {ids!r}.")
    items = list(ids)
    if items and all(type(item) is int for item in items):
        whole = np.array(items)  # beyond 64 bits it becomes an object array by itself
        if whole.dtype.kind != "f":  # as of numbers below 0 and beyond int64, which it would round
            return whole
    return object_array(items)


def object_array(items: Sequence[Any]) -> Ids:
    """Return ids, some of which may be tuples, as an array (n,) of objects."""
    array: Ids = np.fromiter(items, dtype=object, count=len(items))
    return array


def _refuse_nulls(items: list[Any], column: str, first_row: int) -> None:
    try:
        distinct = set(items)
    except TypeError:
        row = next(row for row, item in enumerate(items) if not _hashable(item))
        raise LogError(
            f"Column {column!r}, row {first_row + row}: the id {items[row]!r} is of type "
            f"{type(items[row]).__name__}, which cannot be hashed. Use a string, a whole number, a date "
            "or a UUID."
        ) from None
    others = [item for item in distinct if type(item) is not str]
    if any(is_null(item) for item in others):
        row = next(row for row, item in enumerate(items) if is_null(item))
        raise _null(column, first_row, row, items[row])
    if any(_is_rounded(item) for item in others):
        row = next(row for row, item in enumerate(items) if _is_rounded(item))
        refuse_rounded_in(np.asarray([items[row]]), f"Column {column!r}", first_row + row)


def _hashable(item: object) -> bool:
    try:
        hash(item)
    except TypeError:
        return False
    return True


def _null(column: str, first_row: int, row: int, value: object) -> LogError:
    return LogError.in_row(
        first_row + row,
        f"Column {column!r}, row {first_row + row}: the id is {value}, and a row without an id cannot be used. Was a "
        "join incomplete? Drop such rows, or give them an id of their own.",
    )


def plain(value: object) -> Any:
    """Return an id as a type of the standard library: ``np.int64(3)`` gives 3, a pandas Timestamp a datetime.

    An id of several columns is a tuple of such values.

    Raises
    ------
    InputError
        The value is null, not finite, a float that :func:`may_be_rounded`, or has no exact value in these types.
    """
    if is_null(value):
        raise InputError(f"{value!r} cannot be an id: it stands for a missing value.")
    if type(value) is tuple:
        return tuple(map(plain, value))
    refuse_rounded(value)
    if isinstance(value, np.datetime64):
        return _from_datetime64(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, dt.datetime):
        return _plain_datetime(value)
    for kind in (bool, str, int, float, bytes, Decimal, dt.date, UUID):
        if isinstance(value, kind):
            return _exactly(value, kind)
    raise InputError(
        f"{value!r} of type {type(value).__name__} cannot be an id. Use a string, a whole number, a boolean, "
        "a float, a date, a datetime or a UUID."
    )


def instant(value: object) -> np.datetime64 | None:
    """Return a date, or a time without a zone, of any library as ``datetime64``; None for any other id."""
    if isinstance(value, np.datetime64):
        return value
    if not isinstance(value, dt.date) or getattr(value, "tzinfo", None) is not None:
        return None
    finer = getattr(value, "to_datetime64", None)  # of pandas, which knows nanoseconds
    moment: np.datetime64 = np.datetime64(value) if finer is None else finer()
    return moment


def _exactly(value: Any, kind: type) -> Any:
    if isinstance(value, float | Decimal) and not np.isfinite(float(value)):
        raise InputError(f"{value!r} cannot be an id: it is not finite.")
    if kind is str:
        return str.__str__(value)  # an enumeration's own __str__ may say something else
    return kind(value) if kind in (int, float, bytes) else value


def _from_datetime64(value: np.datetime64) -> dt.date | dt.datetime:
    unit = np.datetime_data(value.dtype)[0]
    goal = "D" if unit in ("Y", "M", "W", "D") else "us"
    twin = value.astype(f"datetime64[{goal}]")
    plain_value = twin.item()
    if twin != value or not isinstance(plain_value, dt.date):
        raise InputError(
            f"The id {value} has no exact datetime (years 1 to 9999, whole microseconds). Round it, or "
            "use a string."
        )
    return plain_value


def _plain_datetime(value: dt.datetime) -> dt.datetime:
    if getattr(value, "nanosecond", 0):
        raise InputError(f"The id {value} is finer than a microsecond. Round it, or use a string.")
    if type(value) is dt.datetime:
        return value
    return dt.datetime(
        value.year,
        value.month,
        value.day,
        value.hour,
        value.minute,
        value.second,
        value.microsecond,
        tzinfo=value.tzinfo,
        fold=value.fold,
    )


def encode_id(value: object) -> Any:
    """Write an id as JSON: strings, whole numbers and booleans as they are, the rest as ``{type: text}``.

    A datetime with a time zone is written in UTC, so that one instant has one text.
    """
    value = plain(value)
    if isinstance(value, bool | str | int):
        return value
    if isinstance(value, tuple):
        return {"tuple": [encode_id(part) for part in value]}
    if isinstance(value, dt.datetime):
        aware = value.tzinfo is not None
        return {"datetime": (value.astimezone(dt.UTC) if aware else value).isoformat()}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, dt.date):
        return {"date": value.isoformat()}
    return {type(value).__name__.lower(): repr(value) if isinstance(value, float) else str(value)}


_DECODERS: dict[str, Any] = {
    "datetime": dt.datetime.fromisoformat,
    "date": dt.date.fromisoformat,
    "bytes": bytes.fromhex,
    "float": float,
    "decimal": Decimal,
    "uuid": UUID,
}


def decode_id(stored: object) -> Any:
    """Read an id that :func:`encode_id` wrote.

    Raises
    ------
    InputError
        It was not written by ``encode_id``, or by a newer version of it.
    """
    if isinstance(stored, bool | str | int):
        return stored
    if isinstance(stored, dict) and len(stored) == 1:
        kind, text = next(iter(stored.items()))
        if kind == "tuple" and isinstance(text, list):
            return tuple(map(decode_id, text))
        if kind in _DECODERS:
            try:
                return _DECODERS[kind](text)
            except (ValueError, TypeError, ArithmeticError) as error:
                raise InputError(f"The stored id {stored!r} is not a {kind}. Was the file edited?") from error
    raise InputError(
        f"The stored id {stored!r} is of no known type. Was it edited, or written by a newer version?"
    )


def hashed_ids(ids: Ids) -> NDArray[np.uint64]:
    """Return a hash of each id (n,): a whole number as it is, others as :func:`hashed`."""
    if ids.dtype.kind in "iu":
        return ids.astype(np.uint64)
    hash_of = {key: hashed(key) for key in set(ids.tolist())}
    return np.array([hash_of[key] for key in ids.tolist()], dtype=np.uint64)


def hashed(key: object) -> int:
    """Hash an id to 64 bits: BLAKE2b of a letter for its type and its bytes.

    Raises
    ------
    InputError
        It cannot be an id.
    """
    return int.from_bytes(blake2b(_canonical(key), digest_size=8).digest(), "little")


def _canonical(key: object) -> bytes:
    if not isinstance(key, str):
        key = plain(key)
    if isinstance(key, str):
        return b"s" + key.encode("utf-8", "surrogatepass")
    if isinstance(key, bytes):
        return b"b" + key
    if isinstance(key, tuple):
        parts = [_canonical(part) for part in key]
        return b"t" + b"".join(b"%d:%s" % (len(part), part) for part in parts)
    if isinstance(key, int | float | Decimal):
        return b"n%d" % hash(key)  # equal numbers have equal hashes, whatever their types, in every process
    return b"j" + json.dumps(encode_id(key)).encode()


def abbreviate(items: Iterable[object], shown: int = 5) -> str:
    """Write the first few of many values, and how many there are more."""
    texts = [repr(item) for item in items]
    rest = len(texts) - shown
    return ", ".join(texts[:shown]) + (f", ... ({rest} more)" if rest > 0 else "")


_SHORTEST_UUID = 32  # at least, of a UUID as text
_BOOLEANS = {"true": True, "True": True, "false": False, "False": False}


def alternative_ids(key: object) -> Iterator[Any]:
    """Yield ids that may mean the same as this one, of another type or spelling, the likeliest first."""
    with suppress(InputError):
        key = plain(key)
    if isinstance(key, str):
        yield from typed_readings(key)
        stripped = key.strip()
        spellings = (
            stripped,
            stripped.lstrip("0"),
            stripped.lower(),
            stripped.upper(),
            stripped.capitalize(),
            stripped.title(),
        )
        yield from dict.fromkeys(spelling for spelling in spellings if spelling not in ("", key))
        yield key.encode("utf-8", "surrogatepass")
    elif isinstance(key, bytes):
        with suppress(UnicodeDecodeError):
            yield key.decode()
    elif isinstance(key, dt.datetime):
        yield key.replace(tzinfo=dt.UTC if key.tzinfo is None else None)
        yield from (key.isoformat(), str(key))
        if not any(key.timetuple()[3:6]):
            yield key.date().isoformat()
    else:
        yield str(key)
        if isinstance(key, float) and key.is_integer():
            yield str(int(key))


def typed_readings(text: str) -> Iterator[Any]:
    """Yield the ids of other types that a text may stand for, surrounding blanks ignored."""
    stripped = text.strip()
    if stripped[:1].isdigit() or stripped[:1] in ("+", "-", "."):
        for parse in (int, _parse_float, dt.date.fromisoformat, dt.datetime.fromisoformat, np.datetime64):
            with suppress(ValueError, OverflowError):
                yield parse(stripped)
    if len(stripped) >= _SHORTEST_UUID:
        with suppress(ValueError):
            yield UUID(stripped)
    if stripped in _BOOLEANS:
        yield _BOOLEANS[stripped]


def _parse_float(text: str) -> int | float:
    value = float(text)
    if not np.isfinite(value) or may_be_rounded(np.asarray(value)):
        raise ValueError(text)  # no float that can be an id
    return int(value) if value.is_integer() else value


class KnownIds(Protocol):
    """Ids of tasks, in memory or on disk."""

    def __len__(self) -> int:
        """Return the number of ids."""

    def find(self, key: Any, /) -> int:
        """Return the row of one id, or -1."""

    def id_of(self, row: int, /) -> Any:
        """Return the id of one row."""


def matching_known_id(key: object, known: KnownIds) -> Any:
    """Return the known id that an unknown one may mean, or None."""
    row = next((row for row in map(known.find, alternative_ids(key)) if row >= 0), -1)
    if row < 0:
        return None
    match = known.id_of(row)
    with suppress(InputError):
        match = plain(match)
    return match


def id_type_warning(known_id: Any, task: Any, row: str) -> str | None:
    """Return a warning where all tasks are unknown and their ids are of another type than those of the log; else None.

    Parameters
    ----------
    known_id, task : id
        A task of the log, and an unknown one.
    row : str
        Noun for a row, such as "request".
    """
    if type(known_id) is type(task):
        return None
    log_id, unknown_id = plain(known_id), plain(task)
    if type(log_id) is type(unknown_id):
        return None
    return (
        f"No {row} is of a task that the log had: its ids are of type {type(unknown_id).__name__}, such as "
        f"{unknown_id!r}, those of the log of type {type(log_id).__name__}, such as {log_id!r}, so no task can be "
        "recognised. Is it the right column? Convert its ids to the type that they had in the log."
    )
