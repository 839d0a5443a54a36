"""Unknown ids that read as known ones, of other types or written in other ways."""

import datetime as dt
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Protocol
from uuid import UUID

import numpy as np

from hieropo.errors import InputError
from hieropo.rows.ids import may_be_rounded, plain

_UUID_SIGNS = 32  # at least, of a UUID as text
_TRUTHS = {"true": True, "True": True, "false": False, "False": False}


def alike(key: object) -> Iterator[Any]:
    """Yield ids that read as this one, of other types or written in other ways, the likeliest first."""
    with suppress(InputError):
        key = plain(key)
    if isinstance(key, str):
        yield from readings(key)
        word = key.strip()
        spellings = (word, word.lstrip("0"), word.lower(), word.upper(), word.capitalize(), word.title())
        yield from dict.fromkeys(each for each in spellings if each not in ("", key))
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


def readings(text: str) -> Iterator[Any]:
    """Yield the ids of other types that a text may stand for, blanks around it left out."""
    word = text.strip()
    if word[:1].isdigit() or word[:1] in ("+", "-", "."):
        for read in (int, _float, dt.date.fromisoformat, dt.datetime.fromisoformat, np.datetime64):
            with suppress(ValueError, OverflowError):
                yield read(word)
    if len(word) >= _UUID_SIGNS:
        with suppress(ValueError):
            yield UUID(word)
    if word in _TRUTHS:
        yield _TRUTHS[word]


def _float(text: str) -> int | float:
    value = float(text)
    if not np.isfinite(value) or may_be_rounded(np.asarray(value)):
        raise ValueError(text)  # no float that can be an id
    return int(value) if value.is_integer() else value


class KnownIds(Protocol):
    """Ids of tasks, in memory or on disk."""

    def __len__(self) -> int:
        """Count them."""

    def find(self, key: Any, /) -> int:
        """Row of one id, or -1."""

    def id_of(self, row: int, /) -> Any:
        """Return the id of one row."""


def known_alike(key: object, known: KnownIds) -> Any:
    """Return the known id that reads as an unknown one, or None."""
    row = next((row for row in map(known.find, alike(key)) if row >= 0), -1)
    if row < 0:
        return None
    twin = known.id_of(row)
    with suppress(InputError):
        twin = plain(twin)
    return twin


def other_type(known: Any, task: Any, row: str) -> str | None:
    """Return the text of a warning where tasks, none of them known, are of another type than the log's; else None.

    Parameters
    ----------
    known, task : id
        A task of the log, and one of those that are unknown.
    row : str
        What a row is, such as "request".
    """
    if type(known) is type(task):
        return None
    mine, theirs = plain(known), plain(task)
    if type(mine) is type(theirs):
        return None
    return (
        f"No {row} is of a task that the log had: their ids are of type {type(theirs).__name__}, such as {theirs!r}, "
        f"those of the log of type {type(mine).__name__}, such as {mine!r}. Is it the right column? Bring its ids to "
        "the type that they had in the log."
    )
