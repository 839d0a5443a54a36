"""The posteriors of all tasks on disk: one is looked up, checked and read without the others."""

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Codes
from hieropo._utils.packed import unpack
from hieropo.errors import ArtifactError, UnknownTaskError
from hieropo.model.gaussian import Gaussian
from hieropo.rows.ids import id_array, refuse_rounded
from hieropo.rows.keys import unknown_task_message
from hieropo.storage.columns import IdColumn, WholeIds
from hieropo.storage.layout import LOOKUP, TASKS, damaged
from hieropo.storage.mapped import MappedFile
from hieropo.storage.row_checksums import RowBytes


@dataclass(frozen=True, eq=False)
class StoredKeys:
    """Ids on disk, found by binary search among their codes; otherwise as :class:`hieropo.rows.keys.Keys`.

    Unless the whole file was verified when it was opened, a row is checked before it is first handed out, and
    an id is called unknown only after the rows that led to this answer have been checked.

    Parameters
    ----------
    ids : WholeIds or HashedIds
        In the order of the table.
    codes, places : memoryview
        Codes in ascending order, and the row of each, unsigned.
    rows : RowBytes
        What is checked.
    file : MappedFile
        Where the ids lie.
    verified : bool
        Whether the whole file is known to be as it was written.
    """

    ids: IdColumn
    codes: memoryview
    places: memoryview
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
        """Return whether ids are their codes, which the checksum of a row covers, and need not be compared."""
        return isinstance(self.ids, WholeIds)

    @cached_property
    def values(self) -> NDArray[Any]:
        """All ids (m,), as they were given; the first use reads them and verifies the file."""
        self.file.verify()
        values = self.ids.values()
        values.flags.writeable = False
        return values

    def find(self, key: object) -> int:
        """Row of one id, or -1.

        Raises
        ------
        ArtifactError
            A row that was met on the way is not as it was written.
        InputError
            The id is a float that may be a rounded whole number.
        """
        refuse_rounded(key)
        code = self.ids.code(key)
        if code is None:
            return -1
        spot = bisect_left(self.codes, code)
        while spot < len(self.codes) and self.codes[spot] == code:
            row = self._row(spot)
            if self._exact or self._holds(row, key, code):
                return row
            spot += 1
        if not self.verified:
            for visited in self._path(code):
                self._row(visited)
        return -1

    def id_of(self, row: int) -> Any:
        """Id of one row.

        Raises
        ------
        ArtifactError
            It is not as it was written.
        """
        with suppress(ValueError, OverflowError):
            key = self.ids.at(row)
            if self.find(key) == row:
                return key
        raise self._other_id(row)

    def _other_id(self, row: int) -> ArtifactError:
        return damaged(self.file.folder, TASKS, f"has in row {row} another id than it was written with")

    def _row(self, spot: int) -> int:
        """Row at a position of the look-up, checked."""
        row: int = self.places[spot]
        if self.verified or (row < len(self) and self._checked[row]):
            return row
        if row >= len(self) or not self.rows.intact(row, self.codes[spot]):
            raise damaged(self.file.folder, TASKS, f"has a row {row} unlike its checksum or {LOOKUP}")
        self._checked[row] = 1
        return row

    def _holds(self, row: int, key: object, code: int) -> bool:
        try:
            stored = self.ids.at(row)
            if stored == key:
                return True
            fits = self.ids.code(stored) == code
        except (ValueError, OverflowError):
            fits = False
        if not fits:
            raise self._other_id(row)
        return False

    def _path(self, code: int) -> Iterator[int]:
        """Positions that a binary search for a code visits."""
        low, high = 0, len(self.codes)
        while low < high:
            middle = (low + high) // 2
            yield middle
            if self.codes[middle] < code:
                low = middle + 1
            else:
                high = middle

    def locate(self, ids: object) -> Codes:
        """Row of each id (n,), -1 where unknown."""
        array = id_array(ids, "task")
        if isinstance(self.ids, WholeIds) and array.dtype == np.dtype(self.ids.kind) and len(self):
            return self._locate_whole(array)
        return np.fromiter((self.find(key) for key in _items(array)), dtype=np.int64, count=array.size)

    def _locate_whole(self, array: NDArray[Any]) -> Codes:
        known = np.frombuffer(self.codes, dtype="<u8" if self.codes.format == "Q" else "<i8")
        wanted = array.view(known.dtype)
        spots = np.minimum(np.searchsorted(known, wanted), known.size - 1)
        found = known[spots] == wanted
        rows = np.frombuffer(self.places, dtype=np.int64)[spots]
        if not self.verified:
            for key in np.unique(array[~found]):
                self.find(key)
            for spot in np.unique(spots[found]).tolist():
                self._row(spot)
        return np.where(found, rows, -1)

    def require(self, ids: object) -> Codes:
        """Row of each id (n,).

        Raises
        ------
        UnknownTaskError
            An id is not among the keys; names it, its row, and a known id of another type that reads alike.
        """
        rows = self.locate(ids)
        if (rows < 0).any():
            row = int((rows < 0).argmax())
            raise UnknownTaskError(self.unknown_message(id_array(ids, "task")[row], row))
        return rows

    def unknown_message(self, key: object, row: int | None = None) -> str:
        """Say what is wrong with an id that is not here."""
        return unknown_task_message(key, row, self)


def _items(array: NDArray[Any]) -> Any:
    return array if array.dtype.kind == "M" else array.tolist()


@dataclass(frozen=True, eq=False)
class StoredTable:
    """The posterior of every task: what a policy asks of a table, on memory maps.

    Parameters
    ----------
    keys : StoredKeys
        Ids of the m tasks.
    means : (m, d) array
        Posterior means.
    covs : (m, d (d + 1) / 2) array
        Posterior covariances, upper triangles packed by columns.
    rows : (m,) array
        Rows of the log for each task, by their weights.
    prior : Gaussian
        For tasks that are not among the keys.
    """

    keys: StoredKeys
    means: NDArray[np.float64]
    covs: NDArray[np.float64]
    rows: NDArray[np.float64]
    prior: Gaussian

    @property
    def dim(self) -> int:
        """Dimension d."""
        return self.prior.dim

    def task(self, key: object) -> Gaussian:
        """Posterior of one task, read from disk; the prior for a task that is not here."""
        row = self.keys.find(key)
        if row < 0:
            return self.prior
        return Gaussian.trusted(self.means[row].copy(), unpack(self.covs[row], self.dim))


@dataclass(frozen=True, eq=False)
class StoredUnits:
    """The posterior of every action of every task, each on its own, on memory maps.

    Parameters
    ----------
    keys : StoredKeys
        Ids of the m tasks.
    means : (m, K, p) array
        Posterior means.
    covs : (m, K, p (p + 1) / 2) array
        Posterior covariances, upper triangles packed by columns.
    rows : (m,) array
        Rows of the log for each task, by their weights.
    prior_means, prior_covs : (K, p), (K, p (p + 1) / 2) array
        For tasks that are not among the keys.
    """

    keys: StoredKeys
    means: NDArray[np.float64]
    covs: NDArray[np.float64]
    rows: NDArray[np.float64]
    prior_means: NDArray[np.float64]
    prior_covs: NDArray[np.float64]

    @property
    def dim(self) -> int:
        """Dimension d = K p."""
        return self.prior_means.size

    def unit(self, key: object, action: int) -> Gaussian:
        """Posterior of one action of a task, read from disk; the prior for a task that is not here."""
        row = self.keys.find(key)
        mean, cov = (self.prior_means, self.prior_covs) if row < 0 else (self.means[row], self.covs[row])
        return Gaussian.trusted(mean[action].copy(), unpack(cov[action], mean.shape[1]))
