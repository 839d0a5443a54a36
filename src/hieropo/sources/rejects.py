"""Rows that cannot be used: set aside, counted by reason, and listed in a file, so that none is lost in silence."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hieropo.core.features import FeatureMap
from hieropo.core.ids import plain
from hieropo.core.keys import Keys
from hieropo.core.logs import Roles
from hieropo.sources.arrays import ids
from hieropo.sources.listing import Listing, check_listing
from hieropo.sources.rejected import NOTHING, ROUNDED, Reason, Rejected, Uneven
from hieropo.sources.sifting import Fault, any_of

_MANY = 10_000  # actions up to which it is counted how often each is set aside


class Rejects:
    """Takes rows that cannot be used, from one thread or several.

    Parameters
    ----------
    lenient : bool
        Whether a log with such rows may be used without them. If not, it is read to its end all the same, so that all
        of them are found.
    file : path, optional
        A .parquet or .csv file in which they are listed: file, number of the row in the whole log from 0, column,
        value, reason. A row with two reasons is there twice. It is written when the log was read.
    features : FeatureMap, optional
        Its actions are the known ones.

    Raises
    ------
    InputError
        ``file`` is of another format.
    ArtifactError
        It cannot be written.
    """

    def __init__(
        self,
        *,
        lenient: bool = True,
        file: str | os.PathLike[str] | None = None,
        features: FeatureMap | None = None,
    ) -> None:
        self.lenient, self.features = lenient, features
        self.file = None if file is None else Path(file)
        self.rows = 0
        self.rejected: Rejected | None = None  # once all was read
        self._reasons: dict[tuple[str, str], Reason] = {}
        self._texts: set[str] = set()
        self._tasks: dict[Any, None] = {}
        self._actions = _Actions()
        self._lock = Lock()
        self._listed = None if self.file is None else Listing(self.file)

    def silent(self) -> "Rejects":
        """Return one that sets the same rows aside in another pass, and lists them nowhere."""
        return Rejects(lenient=self.lenient, features=self.features)

    def note_texts(self, columns: Iterable[str]) -> None:
        """Keep which columns of text were read as numbers."""
        with self._lock:
            self._texts.update(columns)

    def add(
        self, found: pa.RecordBatch, roles: Roles, first_row: int, faults: Sequence[Fault], place: str
    ) -> None:
        """Take the rows of a record batch that have a fault."""
        bad = any_of(list(faults), found.num_rows)
        tasks = _ids_of(found, roles.task, faults, bad)
        taken, aside = None, bad
        if roles.action is not None:
            named = ~_nameless(roles.action, faults, bad.size)
            taken, aside = _ids_of(found, roles.action, faults, named), bad[named]
        with self._lock:
            self.rows += int(np.count_nonzero(bad))
            self._tasks.update(dict.fromkeys(tasks.values))
            if taken is not None:
                self._actions.add(taken, aside)
            for fault in faults:
                self._count(found, fault, first_row)
            if self._listed is not None:
                self._listed.add(found, faults, first_row, place)

    def _count(self, found: pa.RecordBatch, fault: Fault, first_row: int) -> None:
        row, rows = first_row + int(fault.bad.argmax()), int(np.count_nonzero(fault.bad))
        key = (fault.column, fault.reason)
        before = self._reasons.get(key)
        if before is None or row < before.first_row:
            value = found.column(fault.column)[row - first_row].as_py()
            first = Reason(fault.column, fault.reason, 0, row, None if value is None else str(value))
        else:
            first = before
        total = rows + (0 if before is None else before.rows)
        self._reasons[key] = Reason(first.column, first.reason, total, first.first_row, first.value)

    def found(self, kept: int, tasks: Keys) -> Rejected:
        """Return and keep what was set aside beside ``kept`` rows of ``tasks``; the file is written."""
        if self._listed is not None:
            self._listed.write()
        lost = [task for task in self._tasks if tasks.find(task) < 0]
        reasons = sorted(self._reasons.values(), key=lambda each: (each.first_row, each.column))
        self.rejected = Rejected(
            kept + self.rows,
            self.rows,
            tuple(reasons),
            tuple(self._actions.uneven()),
            tuple(plain(task) for task in lost[:3]),
            len(lost),
            None if self.file is None else str(self.file),
            tuple(sorted(self._texts)),
        )
        return self.rejected


def _nameless(column: str, faults: Sequence[Fault], rows: int) -> NDArray[np.bool_]:
    """Return the rows (n,) that have no id in a column, or one that may be another's."""
    none = (*NOTHING, ROUNDED)
    return any_of([each for each in faults if each.column == column and each.reason in none], rows)


def _ids_of(found: pa.RecordBatch, column: str, faults: Sequence[Fault], rows: NDArray[np.bool_]) -> "_Coded":
    """Ids of some rows, those left out that have none."""
    chosen = pa.array(rows & ~_nameless(column, faults, rows.size))
    keys, codes = Keys.factorize(ids(found.column(column).filter(chosen), column, 0))
    return _Coded(list(keys.values) if keys.values.dtype.kind == "M" else keys.values.tolist(), codes)


@dataclass(frozen=True, slots=True, eq=False)
class _Coded:
    """Distinct ids, and which of them each of n rows has."""

    values: list[Any]
    codes: NDArray[np.int64]


class _Actions:
    """Tests if rows of some actions are set aside more than others, within each batch (sums of Mantel and Haenszel)."""

    def __init__(self) -> None:
        self._rows: Counter[Any] = Counter()
        self._expected: Counter[Any] = Counter()
        self._variance: Counter[Any] = Counter()

    def add(self, actions: _Coded, bad: NDArray[np.bool_]) -> None:
        """Add a batch: the action of each row (n,), and whether it is set aside."""
        n, m = bad.size, int(np.count_nonzero(bad))
        if n < 2 or not m or len(self._rows) > _MANY:
            return
        width = len(actions.values)
        share = np.bincount(actions.codes, minlength=width) / n
        found = np.bincount(actions.codes[bad], minlength=width)
        spread = m * (n - m) / (n - 1) * share * (1.0 - share)
        for k, action in enumerate(actions.values):
            self._rows[action] += int(found[k])
            self._expected[action] += m * float(share[k])  # type: ignore[assignment]
            self._variance[action] += float(spread[k])  # type: ignore[assignment]

    def uneven(self) -> Iterator[Uneven]:
        """Actions that are off by more than 5 standard deviations and by half, the furthest first."""
        far = []
        for action, rows in self._rows.items():
            expected, sd = self._expected[action], self._variance[action] ** 0.5
            z = (rows - expected) / sd if sd > 0 else 0.0
            if abs(z) > 5.0 and not (expected / 1.5 < rows < expected * 1.5):
                far.append((-abs(z), Uneven(plain(action), rows, float(expected))))
        return (each for _, each in sorted(far, key=lambda pair: pair[0]))


def asked(
    log: Any, *, lenient: bool, file: str | os.PathLike[str] | None, features: FeatureMap | None = None
) -> Rejects | None:
    """Return what takes the rejected rows of a log; None where the first of them stops the reading.

    Raises
    ------
    InputError
        The file would be part of the log, or is of another format.
    ArtifactError
        It cannot be written.
    """
    if not lenient and file is None:
        return None
    check_listing(file, log)
    return Rejects(lenient=lenient, file=file, features=features)
