"""Ids of tasks, kept as given and found again."""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo._kernels import backend
from hieropo._utils.arrays import Codes, normalised
from hieropo._utils.text import agreeing, counted
from hieropo.errors import InputError, UnknownTaskError
from hieropo.rows.ids import KnownIds, id_array, instant, known_alike, plain, refuse_rounded
from hieropo.rows.texts import Text, Texts

_LEAST, _DENSE = 2**20, 8  # numbers up to the first and so many times the ids are looked up in an array
_FEW = 1_000  # ids below which a search is as quick


def _apart(values: NDArray[Any]) -> list[Any]:
    """Ids one by one; nanoseconds stay times, which numpy's ``tolist`` would make numbers."""
    return list(values) if values.dtype.kind == "M" else values.tolist()


def _as_ids(ids: object) -> NDArray[Any]:
    return id_array(ids, "task")


def unknown_text(key: object, row: int | None, known: KnownIds) -> str:
    """Say what is wrong with an id that is not among the known ones, and what to do."""
    with suppress(InputError):
        key = plain(key)
    place = "" if row is None else f" (row {row})"
    text = f"Task {key!r}{place} is unknown; {counted(len(known), 'task')} {agreeing(len(known), 'is', 'are')} known"
    twin = known_alike(key, known)
    if twin is None:
        first = ", ".join(repr(known.id_of(number)) for number in range(min(len(known), 3)))
        return f"{text} ({first}{', ...' if len(known) > 3 else ''}). Check the id, or ask for a new task's answer."
    if type(twin) is type(key):
        return f"{text}, among them {twin!r}. Are they one task? Hand ids in as they were written in the log."
    return (
        f"{text}, among them {twin!r} of type {type(twin).__name__}, but this is of type {type(key).__name__}. Hand "
        "ids in as the type that the log had."
    )


@dataclass(frozen=True, slots=True, eq=False)
class Keys:
    """An ordered set of distinct ids.

    Parameters
    ----------
    values : (m,) array
        int64, uint64, datetime64, or object for everything else that can be hashed.
    """

    values: NDArray[Any]
    _index: dict[Any, int] | None = field(default=None, repr=False)
    _order: Codes | None = field(default=None, repr=False)
    _near: Codes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        values = _as_ids(self.values)
        if values is self.values:
            values = values.view()
        values.flags.writeable = False
        object.__setattr__(self, "values", values)

    @classmethod
    def factorize(cls, ids: object) -> tuple["Keys", Codes]:
        """Split ids (n,) into the distinct ones and, for each row, which of them it is.

        Numbers and dates come back sorted, everything else in order of appearance.

        Raises
        ------
        LogError
            As :func:`ids.id_array`; the message names the row.
        """
        return cls._split(_as_ids(ids))

    @classmethod
    def _split(cls, array: NDArray[Any]) -> tuple["Keys", Codes]:
        """As :meth:`factorize`, of ids that were checked."""
        if array.dtype != object:
            values, codes = np.unique(array, return_inverse=True)
            return cls(values), codes.astype(np.int64, copy=False).reshape(-1)
        index: dict[Any, int] = {}
        codes = np.empty(array.size, dtype=np.int64)
        for row, value in enumerate(array.tolist()):
            codes[row] = index.setdefault(value, len(index))
        values = np.empty(len(index), dtype=object)
        values[:] = list(index)
        return cls(values), codes

    def __len__(self) -> int:
        return int(self.values.size)

    def _table(self) -> dict[Any, int]:
        if self._index is None:
            ids = self.values if self.values.dtype.kind == "M" else self.values.tolist()
            object.__setattr__(self, "_index", dict(zip(ids, range(self.values.size), strict=True)))
        assert self._index is not None
        return self._index

    def find(self, key: object) -> int:
        """Row of one id, or -1.

        Raises
        ------
        InputError
            The id cannot be hashed, as a list of ids cannot, or is a float that may be a rounded whole number.
        """
        refuse_rounded(key)
        try:
            return self._row(key)
        except TypeError as error:
            raise InputError(
                f"The task id {key!r} is of type {type(key).__name__}, which cannot be hashed. Hand in one id."
            ) from error

    def _row(self, key: object) -> int:
        """Row of one id, or -1; one instant is one id, in whichever type and unit it comes."""
        table = self._table()
        row = table.get(key, -1)
        moment = instant(key) if row < 0 else None
        if moment is None:
            return row
        if self.values.dtype.kind == "M":
            return table.get(moment, -1)
        with suppress(InputError):  # finer than the standard library knows
            row = table.get(plain(moment), -1)
        return row

    def locate(self, ids: object) -> Codes:
        """Row of each id (n,), -1 where unknown."""
        array = _as_ids(ids)
        values = self.values
        if array.dtype != object and array.dtype == values.dtype and values.size:
            return self._search(array)
        if "M" in (array.dtype.kind, values.dtype.kind):
            return np.fromiter(map(self._row, array), dtype=np.int64, count=array.size)
        table = self._table()
        return np.fromiter((table.get(item, -1) for item in array.tolist()), dtype=np.int64, count=array.size)

    def _search(self, array: NDArray[Any]) -> Codes:
        near = self._close()
        if near.size:
            inside = (array >= 0) & (array < near.size)
            return np.where(inside, near[np.where(inside, array, 0)], -1)
        values, order = self.values, self._sorting()
        first, last = values[[0, -1]]
        if not order.size and values.dtype.kind in "iu" and int(last) - int(first) == values.size - 1:
            inside = (array >= first) & (array <= last)  # consecutive numbers: no search
            return np.where(inside, array - first, -1).astype(np.int64)
        spot = np.minimum(
            np.searchsorted(values, array, sorter=order if order.size else None), values.size - 1
        )
        rows = order[spot] if order.size else spot
        return np.where(values[rows] == array, rows, -1)

    def _close(self) -> Codes:
        """Row of each whole number, -1 where there is none, of ids that lie close together; else empty."""
        if self._near is None:
            values, near = self.values, np.zeros(0, dtype=np.int64)
            if values.dtype == np.int64 and values.size >= _FEW:
                low, high = int(values.min()), int(values.max())
                if low >= 0 and high < _LEAST + _DENSE * values.size:
                    near = np.full(high + 1, -1, dtype=np.int64)
                    near[values] = np.arange(values.size)
            object.__setattr__(self, "_near", near)
        assert self._near is not None
        return self._near

    def _sorting(self) -> Codes:
        """Return the order that sorts the ids; empty where they are sorted."""
        if self._order is None:
            order = np.argsort(self.values, kind="stable").astype(np.int64)
            object.__setattr__(self, "_order", order[:0] if (order[1:] > order[:-1]).all() else order)
        assert self._order is not None
        return self._order

    def require(self, ids: object) -> Codes:
        """Row of each id (n,).

        Raises
        ------
        UnknownTaskError
            An id is not among the keys; names it, its row, and a known id of another type that looks the same.
        """
        rows = self.locate(ids)
        if (rows < 0).any():
            row = int((rows < 0).argmax())
            raise UnknownTaskError(self.unknown_message(_as_ids(ids)[row], row))
        return rows

    def id_of(self, row: int) -> Any:
        """Return the id of one row."""
        return _apart(self.values[row : row + 1])[0]

    def unknown_message(self, key: object, row: int | None = None) -> str:
        """Say what is wrong with an id that is not here."""
        return unknown_text(key, row, self)

    def union(self, other: "Keys") -> tuple["Keys", Codes]:
        """These keys, then the new ones of ``other``; and the row of each of ``other``'s in the union."""
        rows = self.locate(other.values)
        fresh = rows < 0
        rows[fresh] = len(self) + np.arange(int(fresh.sum()))
        if not fresh.any():
            return self, rows
        extra = other.values[fresh]
        if extra.dtype == self.values.dtype:
            return Keys(np.concatenate([self.values, extra])), rows
        if not len(self):
            return Keys(extra), rows
        values = np.empty(len(self) + extra.size, dtype=object)
        values[: len(self)] = _apart(self.values)
        values[len(self) :] = _apart(extra)
        return Keys(values), rows


class Places:
    """Rows of a table that grows as tasks appear, in the order of :meth:`Keys.factorize` batch by batch.

    Whole numbers that lie close together are looked up in an array, texts that come as bytes by their bytes, everything
    else in a dictionary.
    """

    def __init__(self) -> None:
        self._table = np.zeros(0, dtype=np.int32)  # place of each number, -1 where it has none yet
        self._found: list[Codes] = []  # numbers in the order of their places
        self._count = 0
        self._index: dict[Any, int] | None = None
        self._dtypes: set[np.dtype[Any]] = set()
        self._texts: Texts | None = None
        self._other = False  # whether there are ids that are no texts

    @classmethod
    def after(cls, keys: Keys) -> "Places":
        """Go on after these ids, each of which has its row as its place."""
        found, values = cls(), keys.values
        if not values.size:
            return found
        found._dtypes.add(values.dtype)
        if values.dtype == np.int64 and found._reach(values):
            found._table[values] = np.arange(values.size)
            found._found, found._count = [values], values.size
        else:
            found._index = dict(keys._table())
        return found

    def __len__(self) -> int:
        if self._texts is not None:
            return len(self._texts)
        return self._count if self._index is None else len(self._index)

    def of_text(self, texts: Text, which: Codes | None = None) -> Codes:
        """Place of each text (n,), or of those numbers ``which`` (k,), with new places for new ones."""
        self._dtypes.add(np.dtype(object))
        if self._texts is None and not self._other:
            self._to_texts()
        if self._texts is not None:
            return self._texts.numbers(texts, which)
        return self._placed(self._as_dictionary(), texts.strings() if which is None else texts.take(which))

    def _to_texts(self) -> None:
        """Find texts by their bytes from now on, if all ids so far are texts."""
        known = list(self._as_dictionary())
        try:
            if all(type(item) is str for item in known):
                self._texts = Texts()
                self._texts.numbers(Text.of(known))
                self._index = None
        except UnicodeEncodeError:
            self._texts = None
        self._other = self._texts is None

    def of(self, ids: object) -> Codes:
        """Place of each id (n,), with new places for new ids.

        Raises
        ------
        LogError
            As :func:`ids.id_array`; the message names the row.
        """
        return self.of_checked(_as_ids(ids))

    def of_checked(self, array: NDArray[Any]) -> Codes:
        """As :meth:`of`, of ids that :func:`ids.id_array` made."""
        if self._texts is not None and array.dtype == object:
            return self._of_objects(array)
        self._dtypes.add(array.dtype)
        if self._index is None and self._texts is None and array.dtype == np.int64 and self._reach(array):
            return self._looked_up(array)
        index = self._as_dictionary()
        if array.dtype == object:
            return self._placed(index, array.tolist())
        keys, codes = Keys._split(array)
        found: Codes = self._placed(index, keys.values if array.dtype.kind == "M" else keys.values.tolist())[
            codes
        ]
        return found

    def _of_objects(self, array: NDArray[Any]) -> Codes:
        """Place of each id (n,) where all so far were texts that came as bytes."""
        keys, codes = Keys._split(array)
        items = keys.values.tolist()
        try:
            if all(type(item) is str for item in items):
                return self.of_text(Text.of(items))[codes]
        except UnicodeEncodeError:
            pass
        self._other = True
        return self._placed(self._as_dictionary(), items)[codes]

    def of_places(self, others: "Places") -> Codes:
        """Place of each of the others' ids (n,), in their order, with new places for new ones."""
        if others._texts is not None:
            return self.of_text(others._texts.known())
        return self.of_checked(others.keys().values) if len(others) else np.zeros(0, dtype=np.int64)

    @staticmethod
    def _placed(index: dict[Any, int], items: Any) -> Codes:
        return np.fromiter((index.setdefault(item, len(index)) for item in items), np.int64, len(items))

    def _reach(self, array: Codes) -> bool:
        """Return whether the numbers fit the array of places, which is made longer for them."""
        if not array.size:
            return True
        low, high = int(array.min()), int(array.max())
        if low < 0 or high >= _LEAST + _DENSE * (self._count + array.size):
            return False
        if high >= self._table.size:
            more = np.full(max(high + 1, 2 * self._table.size) - self._table.size, -1, dtype=np.int32)
            self._table = np.concatenate([self._table, more])
        return True

    def _looked_up(self, array: Codes) -> Codes:
        numbers, place, fresh = normalised(array), np.empty_like(array), np.empty_like(array)
        loops = backend.ids(numbers.size)
        count = loops.find_numbers(numbers, self._table, place, fresh)
        if count:
            new = np.sort(fresh[:count])
            self._table[new] = self._count + np.arange(count)
            self._found.append(new)
            self._count += count
            loops.enter_numbers(numbers, self._table, place)
        return place

    def _as_dictionary(self) -> dict[Any, int]:
        if self._index is None:
            known = np.concatenate(self._found).tolist() if self._found else []
            if self._texts is not None:
                known, self._texts = self._texts.known().strings(), None
            self._index = {item: row for row, item in enumerate(known)}
            self._table, self._found = np.zeros(0, dtype=np.int32), []
        return self._index

    def keys(self) -> Keys:
        """Return the ids in the order of their places."""
        if self._index is None and self._found:
            return Keys(np.concatenate(self._found))
        known = list(self._as_dictionary() if self._texts is None else self._texts.known().strings())
        values = np.empty(len(known), dtype=next(iter(self._dtypes)) if len(self._dtypes) == 1 else object)
        values[:] = known
        return Keys(values)
