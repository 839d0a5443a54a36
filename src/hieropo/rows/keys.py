"""Indices of ids: ids as given, and the row of each; a frozen index and a growing one."""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from hieropo._kernels import backend
from hieropo._utils.arrays import Codes, normalised
from hieropo._utils.brief import brief
from hieropo._utils.text import agreeing, counted
from hieropo.errors import InputError, UnknownTaskError
from hieropo.rows.ids import (
    KnownIds,
    id_array,
    instant,
    is_null,
    matching_known_id,
    object_array,
    plain,
    refuse_rounded,
)
from hieropo.rows.texts import Text, Texts

Unseen = Literal["prior", "error"]  # treatment of an unknown task: the prior of the population, or an error

_TABLE_FLOOR, _TABLE_PER_ID = 2**20, 8  # with n ids, numbers below 2**20 + 8 n use a table
_SEARCH_BELOW = 1_000  # for fewer ids a binary search is as quick as a table


def _as_list(values: NDArray[Any]) -> list[Any]:
    """Return ids as a list; times stay times: numpy's ``tolist`` makes numbers of nanoseconds."""
    return list(values) if values.dtype.kind == "M" else values.tolist()


def _as_ids(ids: object) -> NDArray[Any]:
    return id_array(ids, "task")


def unknown_task_message(key: object, row: int | None, known: KnownIds) -> str:
    """Return the message on an unknown id: a known id that it may mean, or known examples, and what to do."""
    with suppress(InputError):
        key = plain(key)
    place = "" if row is None else f" (row {row})"
    text = f"Task {key!r}{place} is unknown; {counted(len(known), 'task')} {agreeing(len(known), 'is', 'are')} known"
    match = matching_known_id(key, known)
    if match is None:
        examples = ", ".join(repr(known.id_of(number)) for number in range(min(len(known), 3)))
        more = ", ..." if len(known) > 3 else ""
        return f"{text} ({examples}{more}). Check the id; for a new task set unseen='prior'."
    if type(match) is type(key):
        return f"{text}, among them {match!r}. If they are one task, write the id as in the log."
    return (
        f"{text}, among them {match!r} of type {type(match).__name__}, but this is of type {type(key).__name__}. "
        "Convert ids to the type that they have in the log."
    )


class TaskKeys(KnownIds, Protocol):
    """The index from ids to rows, in memory or on disk."""

    @property
    def values(self) -> NDArray[Any]:
        """The ids (m,) in the order of their rows."""

    def locate(self, ids: Any, /) -> Codes:
        """Return the row of each id (n,), -1 where unknown."""

    def require(self, ids: object) -> Codes:
        """Return the row of each id (n,).

        Raises
        ------
        UnknownTaskError
            An id is unknown; the message names it, its row, and a known id that it may mean.
        """
        rows = self.locate(ids)
        if (rows < 0).any():
            row = int((rows < 0).argmax())
            raise UnknownTaskError(self.unknown_message(_as_ids(ids)[row], row))
        return rows

    def row(self, key: object, unseen: Unseen) -> int:
        """Return the row of one id; -1 for an unknown one, if ``unseen`` is ``"prior"``.

        Raises
        ------
        UnknownTaskError
            The id is unknown and ``unseen`` is ``"error"``.
        InputError
            ``unseen`` is something else; the id is missing; errors of :meth:`Keys.find`.
        """
        if unseen not in get_args(Unseen):
            raise InputError(f"unseen={unseen!r} is not known; 'prior' or 'error' is needed.")
        row = self.find(key)
        if row < 0 and is_null(key):
            raise InputError(f"The task is {key!r}, and a missing id is no new task. Name the task.")
        if row < 0 and unseen == "error":
            raise UnknownTaskError(self.unknown_message(key))
        return row

    def unknown_message(self, key: object, row: int | None = None) -> str:
        """Return the error message for an unknown id."""
        return unknown_task_message(key, row, self)


@dataclass(frozen=True, slots=True, eq=False)
class Keys(TaskKeys):
    """An ordered set of distinct ids.

    Parameters
    ----------
    values : (m,) array
        int64, uint64, datetime64, or object for everything else that can be hashed.
    """

    values: NDArray[Any]
    _index: dict[Any, int] | None = field(default=None, repr=False)
    _order: Codes | None = field(default=None, repr=False)
    _row_of_number: Codes | None = field(default=None, repr=False)

    __repr__ = brief

    def __post_init__(self) -> None:
        values = _as_ids(self.values)
        if values is self.values:
            values = values.view()
        values.flags.writeable = False
        object.__setattr__(self, "values", values)

    @classmethod
    def factorize(cls, ids: object) -> tuple["Keys", Codes]:
        """Return the distinct ids, and for each row (n,) the position of its id among them.

        Numbers and dates are sorted, all other ids in order of appearance.

        Raises
        ------
        LogError
            As :func:`ids.id_array`; the message names the row.
        """
        return cls._split(_as_ids(ids))

    @classmethod
    def _split(cls, array: NDArray[Any]) -> tuple["Keys", Codes]:
        """Do the same for ids that were checked."""
        if array.dtype != object:
            values, codes = np.unique(array, return_inverse=True)
            return cls(values), codes.astype(np.int64, copy=False).reshape(-1)
        index: dict[Any, int] = {}
        codes = np.empty(array.size, dtype=np.int64)
        for row, value in enumerate(array.tolist()):
            codes[row] = index.setdefault(value, len(index))
        return cls(object_array(list(index))), codes

    def __len__(self) -> int:
        return int(self.values.size)

    def _table(self) -> dict[Any, int]:
        if self._index is None:
            ids = self.values if self.values.dtype.kind == "M" else self.values.tolist()
            object.__setattr__(self, "_index", dict(zip(ids, range(self.values.size), strict=True)))
        assert self._index is not None
        return self._index

    def find(self, key: object) -> int:
        """Return the row of one id, or -1.

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
        """Return the row of one id, or -1; an instant is one id in any type and unit."""
        row_of = self._table()
        row = row_of.get(key, -1)
        moment = instant(key) if row < 0 else None
        if moment is None:
            return row
        if self.values.dtype.kind == "M":
            return row_of.get(moment, -1)
        with suppress(InputError):  # finer than the standard library knows
            row = row_of.get(plain(moment), -1)
        return row

    def locate(self, ids: object) -> Codes:
        """Return the row of each id (n,), -1 where unknown."""
        array = _as_ids(ids)
        values = self.values
        if array.dtype != object and array.dtype == values.dtype and values.size:
            return self._search(array)
        if "M" in (array.dtype.kind, values.dtype.kind):
            return np.fromiter(map(self._row, array), dtype=np.int64, count=array.size)
        table = self._table()
        return np.fromiter((table.get(item, -1) for item in array.tolist()), dtype=np.int64, count=array.size)

    def _search(self, array: NDArray[Any]) -> Codes:
        row_of_number = self._number_table()
        if row_of_number.size:
            inside = (array >= 0) & (array < row_of_number.size)
            return np.where(inside, row_of_number[np.where(inside, array, 0)], -1)
        values, order = self.values, self._sort_order()
        first, last = values[[0, -1]]
        if not order.size and values.dtype.kind in "iu" and int(last) - int(first) == values.size - 1:
            inside = (array >= first) & (array <= last)  # consecutive numbers: no search
            return np.where(inside, array - first, -1).astype(np.int64)
        position = np.minimum(
            np.searchsorted(values, array, sorter=order if order.size else None), values.size - 1
        )
        rows = order[position] if order.size else position
        return np.where(values[rows] == array, rows, -1)

    def _number_table(self) -> Codes:
        """Return the row of each whole number from 0 on, -1 where there is none; empty where the ids are too sparse."""
        if self._row_of_number is None:
            values, row_of_number = self.values, np.zeros(0, dtype=np.int64)
            if values.dtype == np.int64 and values.size >= _SEARCH_BELOW:
                low, high = int(values.min()), int(values.max())
                if low >= 0 and high < _TABLE_FLOOR + _TABLE_PER_ID * values.size:
                    row_of_number = np.full(high + 1, -1, dtype=np.int64)
                    row_of_number[values] = np.arange(values.size)
            object.__setattr__(self, "_row_of_number", row_of_number)
        assert self._row_of_number is not None
        return self._row_of_number

    def _sort_order(self) -> Codes:
        """Return the order that sorts the ids; empty where they are sorted."""
        if self._order is None:
            order = np.argsort(self.values, kind="stable").astype(np.int64)
            object.__setattr__(self, "_order", order[:0] if (order[1:] > order[:-1]).all() else order)
        assert self._order is not None
        return self._order

    def id_of(self, row: int) -> Any:
        """Return the id of one row."""
        return _as_list(self.values[row : row + 1])[0]

    def union(self, other: "Keys") -> tuple["Keys", Codes]:
        """Return these keys followed by the new ones of ``other``, and the rows of ``other``'s keys in the union."""
        rows = self.locate(other.values)
        new = rows < 0
        rows[new] = len(self) + np.arange(int(new.sum()))
        if not new.any():
            return self, rows
        added = other.values[new]
        if added.dtype == self.values.dtype:
            return Keys(np.concatenate([self.values, added])), rows
        if not len(self):
            return Keys(added), rows
        return Keys(object_array([*_as_list(self.values), *_as_list(added)])), rows


class GrowingKeys:
    """An index that grows as ids appear: a new id gets the next row, in the order of :meth:`Keys.factorize`.

    Dense whole numbers are looked up in a table, texts that come as bytes by their bytes, other ids in a dictionary.
    """

    def __init__(self) -> None:
        self._table = np.zeros(0, dtype=np.int32)  # row of each number, -1 where it has none yet
        self._numbers: list[Codes] = []  # numbers in the order of their rows
        self._count = 0
        self._index: dict[Any, int] | None = None
        self._dtypes: set[np.dtype[Any]] = set()
        self._texts: Texts | None = None
        self._has_non_texts = False  # True once an id is no text

    @classmethod
    def after(cls, keys: Keys) -> "GrowingKeys":
        """Return an index that starts with these keys, each at its row."""
        growing, values = cls(), keys.values
        if not values.size:
            return growing
        growing._dtypes.add(values.dtype)
        if values.dtype == np.int64 and growing._fit_table(values):
            growing._table[values] = np.arange(values.size)
            growing._numbers, growing._count = [values], values.size
        else:
            growing._index = dict(keys._table())
        return growing

    def __len__(self) -> int:
        if self._texts is not None:
            return len(self._texts)
        return self._count if self._index is None else len(self._index)

    def rows_of_texts(self, texts: Text, which: Codes | None = None) -> Codes:
        """Return the row of each text (n,), or of those at the positions ``which`` (k,); new texts get new rows."""
        self._dtypes.add(np.dtype(object))
        if self._texts is None and not self._has_non_texts:
            self._to_texts()
        if self._texts is not None:
            return self._texts.rows(texts, which)
        return self._rows_of_items(
            self._as_dictionary(), texts.strings() if which is None else texts.take(which)
        )

    def _to_texts(self) -> None:
        """Look texts up by their bytes from now on, if all ids so far are texts."""
        ids = list(self._as_dictionary())
        try:
            if all(type(item) is str for item in ids):
                self._texts = Texts()
                self._texts.rows(Text.of(ids))
                self._index = None
        except UnicodeEncodeError:
            self._texts = None
        self._has_non_texts = self._texts is None

    def rows(self, ids: object) -> Codes:
        """Return the row of each id (n,); new ids get new rows.

        Raises
        ------
        LogError
            As :func:`ids.id_array`; the message names the row.
        """
        return self.rows_of_ids(_as_ids(ids))

    def rows_of_ids(self, array: NDArray[Any]) -> Codes:
        """Do the same for ids that :func:`ids.id_array` made."""
        if self._texts is not None and array.dtype == object:
            return self._of_objects(array)
        self._dtypes.add(array.dtype)
        if self._index is None and self._texts is None and array.dtype == np.int64 and self._fit_table(array):
            return self._rows_of_numbers(array)
        index = self._as_dictionary()
        if array.dtype == object:
            return self._rows_of_items(index, array.tolist())
        keys, codes = Keys._split(array)
        rows: Codes = self._rows_of_items(
            index, keys.values if array.dtype.kind == "M" else keys.values.tolist()
        )[codes]
        return rows

    def _of_objects(self, array: NDArray[Any]) -> Codes:
        """Return the row of each id (n,) where all ids so far were texts that came as bytes."""
        keys, codes = Keys._split(array)
        items = keys.values.tolist()
        try:
            if all(type(item) is str for item in items):
                return self.rows_of_texts(Text.of(items))[codes]
        except UnicodeEncodeError:
            pass
        self._has_non_texts = True
        return self._rows_of_items(self._as_dictionary(), items)[codes]

    def rows_of_keys(self, others: "GrowingKeys") -> Codes:
        """Return the row of each id of another index, in its order; new ids get new rows."""
        if others._texts is not None:
            return self.rows_of_texts(others._texts.all_texts())
        return self.rows_of_ids(others.keys().values) if len(others) else np.zeros(0, dtype=np.int64)

    @staticmethod
    def _rows_of_items(index: dict[Any, int], items: Any) -> Codes:
        return np.fromiter((index.setdefault(item, len(index)) for item in items), np.int64, len(items))

    def _fit_table(self, array: Codes) -> bool:
        """Return whether the numbers fit in the table, which is made longer for them."""
        if not array.size:
            return True
        low, high = int(array.min()), int(array.max())
        if low < 0 or high >= _TABLE_FLOOR + _TABLE_PER_ID * (self._count + array.size):
            return False
        if high >= self._table.size:
            extension = np.full(max(high + 1, 2 * self._table.size) - self._table.size, -1, dtype=np.int32)
            self._table = np.concatenate([self._table, extension])
        return True

    def _rows_of_numbers(self, array: Codes) -> Codes:
        numbers, rows, unseen = normalised(array), np.empty_like(array), np.empty_like(array)
        loops = backend.ids(numbers.size)
        count = loops.find_numbers(numbers, self._table, rows, unseen)
        if count:
            new = np.sort(unseen[:count])
            self._table[new] = self._count + np.arange(count)
            self._numbers.append(new)
            self._count += count
            loops.enter_numbers(numbers, self._table, rows)
        return rows

    def _as_dictionary(self) -> dict[Any, int]:
        if self._index is None:
            ids = np.concatenate(self._numbers).tolist() if self._numbers else []
            if self._texts is not None:
                ids, self._texts = self._texts.all_texts().strings(), None
            self._index = {item: row for row, item in enumerate(ids)}
            self._table, self._numbers = np.zeros(0, dtype=np.int32), []
        return self._index

    def keys(self) -> Keys:
        """Return the ids in the order of their rows."""
        return Keys(self.ids_at(None))

    def ids_at(self, rows: Codes | None) -> NDArray[Any]:
        """Return the ids (k,) in these rows (k,), or in all."""
        if self._index is None and self._numbers:
            if len(self._numbers) > 1:
                self._numbers = [np.concatenate(self._numbers)]
            return self._numbers[0] if rows is None else self._numbers[0][rows]
        if self._texts is not None:
            texts = self._texts.all_texts()
            ids = texts.strings() if rows is None else texts.take(rows)
        else:
            ids = list(self._as_dictionary())
            ids = ids if rows is None else [ids[row] for row in rows.tolist()]
        dtype = next(iter(self._dtypes)) if len(self._dtypes) == 1 else np.dtype(object)
        return object_array(ids) if dtype.kind == "O" else np.array(ids, dtype=dtype)
