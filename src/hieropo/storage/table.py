"""The index of a table of posteriors on disk: one task is looked up and checked without the others."""

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Codes
from hieropo.errors import ArtifactError
from hieropo.rows.ids import id_array, refuse_rounded
from hieropo.rows.keys import TaskKeys
from hieropo.storage.columns import IdColumn, WholeIds
from hieropo.storage.layout import LOOKUP, TASKS, damaged
from hieropo.storage.mapped import MappedFile
from hieropo.storage.row_checksums import RowBytes


@dataclass(frozen=True, eq=False)
class StoredKeys(TaskKeys):
    """An index of ids on disk, by binary search among their codes.

    Unless the whole file was verified when it was opened, a row is checked before its first use, and an id is unknown
    only after the rows on the path of the binary search have been checked.

    Parameters
    ----------
    ids : WholeIds or HashedIds
        In the order of the table.
    codes, row_of_code : memoryview
        Codes in ascending order, and the row of each, unsigned.
    rows : RowBytes
        The bytes to check.
    file : MappedFile
        The file of the ids.
    verified : bool
        True where the whole file has been verified.
    """

    ids: IdColumn
    codes: memoryview
    row_of_code: memoryview
    rows: RowBytes
    file: MappedFile
    verified: bool

    def __len__(self) -> int:
        return len(self.codes)

    @cached_property
    def _checked(self) -> memoryview:
        return np.zeros(0 if self.verified else len(self), dtype=np.uint8).data

    @cached_property
    def _exact(self) -> bool:
        """Return True where ids are their own codes, which the checksum of a row covers."""
        return isinstance(self.ids, WholeIds)

    @cached_property
    def values(self) -> NDArray[Any]:
        """Return all ids (m,) as given; the first use reads them and verifies the file."""
        self.file.verify()
        values = self.ids.values()
        values.flags.writeable = False
        return values

    def find(self, key: object) -> int:
        """Return the row of one id, or -1.

        Raises
        ------
        ArtifactError
            A row on the path of the search has changed since it was written.
        InputError
            The id is a float that may be a rounded whole number.
        """
        refuse_rounded(key)
        code = self.ids.code(key)
        if code is None:
            return -1
        index = bisect_left(self.codes, code)
        while index < len(self.codes) and self.codes[index] == code:
            row = self._checked_row(index)
            if self._exact or self._holds(row, key, code):
                return row
            index += 1
        if not self.verified:
            for visited in self._search_path(code):
                self._checked_row(visited)
        return -1

    def id_of(self, row: int) -> Any:
        """Return the id of one row.

        Raises
        ------
        ArtifactError
            It has changed since it was written.
        """
        with suppress(ValueError, OverflowError):
            key = self.ids.at(row)
            if self.find(key) == row:
                return key
        raise self._other_id(row)

    def _other_id(self, row: int) -> ArtifactError:
        return damaged(self.file.folder, TASKS, f"has in row {row} another id than it was written with")

    def _checked_row(self, index: int) -> int:
        """Return the row at a position of the look-up table, after a check of its checksum."""
        row: int = self.row_of_code[index]
        if self.verified or (row < len(self) and self._checked[row]):
            return row
        if row >= len(self) or not self.rows.intact(row, self.codes[index]):
            raise damaged(self.file.folder, TASKS, f"has a row {row} unlike its checksum or {LOOKUP}")
        self._checked[row] = 1
        return row

    def _holds(self, row: int, key: object, code: int) -> bool:
        """Return True where the row has this id; refuse a row whose id does not have this code."""
        try:
            stored = self.ids.at(row)
            if stored == key:
                return True
            same_code = self.ids.code(stored) == code
        except (ValueError, OverflowError):
            same_code = False
        if not same_code:
            raise self._other_id(row)
        return False

    def _search_path(self, code: int) -> Iterator[int]:
        """Yield the positions that a binary search for a code visits."""
        low, high = 0, len(self.codes)
        while low < high:
            middle = (low + high) // 2
            yield middle
            if self.codes[middle] < code:
                low = middle + 1
            else:
                high = middle

    def locate(self, ids: object) -> Codes:
        """Return the row of each id (n,), -1 where unknown."""
        array = id_array(ids, "task")
        if isinstance(self.ids, WholeIds) and array.dtype == np.dtype(self.ids.kind) and len(self):
            return self._locate_by_code(array)
        return np.fromiter((self.find(key) for key in _items(array)), dtype=np.int64, count=array.size)

    def _locate_by_code(self, array: NDArray[Any]) -> Codes:
        """Return the row of each id (n,) where ids are their own codes."""
        codes = np.frombuffer(self.codes, dtype="<u8" if self.codes.format == "Q" else "<i8")
        wanted = array.view(codes.dtype)
        indices = np.minimum(np.searchsorted(codes, wanted), codes.size - 1)
        is_known = codes[indices] == wanted
        rows = np.frombuffer(self.row_of_code, dtype=np.int64)[indices]
        if not self.verified:
            for key in np.unique(array[~is_known]):
                self.find(key)
            for index in np.unique(indices[is_known]).tolist():
                self._checked_row(index)
        return np.where(is_known, rows, -1)


def _items(array: NDArray[Any]) -> Any:
    return array if array.dtype.kind == "M" else array.tolist()
