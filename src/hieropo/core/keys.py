"""Ids of tasks, kept as given and found again."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo.core.ids import id_array
from hieropo.errors import InputError, UnknownTaskError

Codes = NDArray[np.int64]


def _as_ids(ids: object) -> NDArray[Any]:
    return id_array(ids, "task")


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
            An id is null or cannot be hashed; the message names the row.
        """
        array = _as_ids(ids)
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
            The id cannot be hashed, as a list of ids cannot.
        """
        try:
            return self._table().get(key, -1)
        except TypeError as error:
            raise InputError(
                f"The task id {key!r} is of type {type(key).__name__}, which cannot be hashed. Hand in one id."
            ) from error

    def locate(self, ids: object) -> Codes:
        """Row of each id (n,), -1 where unknown."""
        array = _as_ids(ids)
        values = self.values
        if array.dtype != object and array.dtype == values.dtype and values.size:
            return self._search(array)
        table = self._table()
        items = array if array.dtype.kind == "M" else array.tolist()
        return np.fromiter((table.get(item, -1) for item in items), dtype=np.int64, count=array.size)

    def _search(self, array: NDArray[Any]) -> Codes:
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

    def unknown_message(self, key: object, row: int | None = None) -> str:
        """Say what is wrong with an id that is not here."""
        key = key.item() if isinstance(key, np.integer) else key
        place = "" if row is None else f" (row {row})"
        text = f"Task {key!r}{place} is unknown; {len(self)} tasks are known"
        twin = next((known for known in self.values.tolist()[:100_000] if str(known) == str(key)), None)
        if twin is not None:
            return (
                f"{text}, among them {twin!r} of type {type(twin).__name__}, but this is of type "
                f"{type(key).__name__}. Hand ids in as the type that the log had."
            )
        sample = ", ".join(repr(value) for value in self.values[:3].tolist())
        return f"{text} ({sample}{', ...' if len(self) > 3 else ''}). Check the id, or ask for a new task's answer."

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
        values[: len(self)] = self.values.tolist()
        values[len(self) :] = extra.tolist()
        return Keys(values), rows
