"""Rows that cannot be used: found, set aside, counted by reason, and listed in a file; none is lost in silence."""

import os
import tempfile
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from threading import Lock
from typing import IO, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hieropo._utils.arrays import Mask
from hieropo._utils.text import counted
from hieropo.errors import ArtifactError, InputError, LogError, UnknownActionError
from hieropo.features.maps import FeatureMap
from hieropo.logs.arrow.arrays import EXACT, as_numpy, decoded, ids, lists
from hieropo.logs.arrow.schema import holds_text
from hieropo.logs.arrow.writing import TABLE_SUFFIXES, check_target, write_tables
from hieropo.logs.formats.text_types import text_numbers
from hieropo.rows.batches import Eligible, Roles
from hieropo.rows.columns import RULES
from hieropo.rows.ids import Ids, may_be_rounded, plain
from hieropo.rows.keys import Keys

_IN_WORDS = {"missing": "a missing value", "infinite": "an infinite value"}
NOTHING = ("missing", "NaN")  # reasons of values that are not there
NO_NUMBER = "not a number"  # the reason of text where a number is needed
ROUNDED = "an id that may be rounded"  # the reason of floats so large that different whole numbers become one
LIST_ROUNDED = "a list with an id that may be rounded"

_MOST = 0.5  # share of rows that may be set aside


@dataclass(frozen=True, slots=True)
class Reason:
    """A count of rows that were set aside because of one column, with the first of them.

    Parameters
    ----------
    column, reason : str
        The column is empty where it is a whole line of a file.
    rows : int
    first_row : int
        Number in the whole log, from 0; where the unit is a line, that of the line in its file, from 1.
    value : str or None
        What stood there; None where nothing did.
    unit : "row" or "line"
    """

    column: str
    reason: str
    rows: int
    first_row: int
    value: str | None
    unit: Literal["row", "line"] = "row"

    def __add__(self, other: "Reason") -> "Reason":
        """Count both, with the first row of all."""
        first = self if self.first_row <= other.first_row else other
        return replace(first, rows=self.rows + other.rows)

    def __str__(self) -> str:
        reason = _IN_WORDS.get(self.reason, self.reason)
        fault = reason if reason == NO_NUMBER else f"with {reason}"
        place = f" in {self.column!r}" if self.column else ""
        value = "" if self.value is None or self.reason in NOTHING else f": {_short(self.value)}"
        return f"{self.rows:,} {fault}{place} (first in {self.unit} {self.first_row:,}{value})"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON's types."""
        return {
            "column": self.column, "reason": self.reason, "rows": self.rows,
            f"first_{self.unit}": self.first_row, "value": self.value,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Uneven:
    """An action whose rows were set aside more or less often than chance would.

    Parameters
    ----------
    action : id
    rows : int
        How many were set aside.
    expected : float
        How many would be if it had nothing to do with the action.
    """

    action: Any
    rows: int
    expected: float


@dataclass(frozen=True, slots=True)
class Rejected:
    """Rows that were set aside of a log.

    Parameters
    ----------
    read : int
        Rows of the log.
    rows : int
        How many of them were set aside. One can have more than one reason.
    reasons : tuple of Reason
        In the order of the log.
    uneven : tuple of Uneven
        Actions with which it had to do.
    lost_tasks : tuple of ids
        Tasks of which no row is left; the first of them, and how many, ``lost``.
    lost : int
    file : str or None
        Where the rows are listed.
    texts : tuple of str
        Columns of text that were read as numbers.
    """

    read: int
    rows: int
    reasons: tuple[Reason, ...] = ()
    uneven: tuple[Uneven, ...] = ()
    lost_tasks: tuple[Any, ...] = ()
    lost: int = 0
    file: str | None = None
    texts: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """Share of the rows that were set aside."""
        return self.rows / max(self.read, 1)

    def counted(self) -> str:
        """Say how many rows and why."""
        why = ", ".join(str(reason) for reason in self.reasons)
        return f"{self.rows:,} of {counted(self.read, 'row')} ({self.share:.2%})" + (
            f": {why}" if why else ""
        )

    @property
    def listed(self) -> str:
        """A sentence, after a space, that says where the rows are listed; empty where they are not."""
        return "" if self.file is None else f" Each is listed in {self.file}."

    def check(
        self, *, lenient: bool, cause: str = "Is it the right column, and was a join complete?"
    ) -> None:
        """Refuse what is left of a log where it cannot stand for the whole.

        Parameters
        ----------
        lenient : bool
            Whether rows may be set aside.
        cause : str
            What to look for where they are too many.

        Raises
        ------
        LogError
            Rows had to be set aside and may not be; more than half were.
        """
        if self.rows and not lenient:
            raise LogError(
                f"{self.counted()} cannot be used.{self.listed} Mend or drop them, or have such rows set aside: "
                "lenient=True, on the command line --lenient."
            )
        if self.share > _MOST:
            raise LogError(
                f"{self.counted()} would have to be set aside, and what is left does not stand for the log."
                f"{self.listed} {cause} If the other rows are a log of their own, hand over those."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON's types; ids that it lacks become text."""
        return {
            "read": self.read,
            "rows": self.rows,
            "reasons": [each.to_dict() for each in self.reasons],
            "uneven_actions": [
                {"action": _written(each.action), "rows": each.rows, "expected": each.expected}
                for each in self.uneven
            ],
            "lost_tasks": self.lost,
            "file": self.file,
            "texts_read_as_numbers": list(self.texts),
        }


def _short(value: str) -> str:
    return value if len(value) <= 40 else value[:37] + "..."


def _written(key: Any) -> Any:
    return key if isinstance(key, str | int | float) else str(key)


@dataclass(frozen=True, slots=True, eq=False)
class BadValues:
    """Rows whose value in one column cannot be used, for one reason.

    Parameters
    ----------
    column, reason : str
    bad : (n,) bool
    """

    column: str
    reason: str
    bad: Mask

    def counted(self, found: pa.RecordBatch, first_row: int) -> Reason:
        """Return the count of these rows of a record batch that begins with ``first_row``."""
        row = int(self.bad.argmax())
        value = found.column(self.column)[row].as_py()
        return Reason(
            self.column, self.reason, int(np.count_nonzero(self.bad)), first_row + row,
            None if value is None else str(value),
        )  # fmt: skip


def find_bad_values(
    found: pa.RecordBatch, roles: Roles, features: FeatureMap | None = None
) -> list[BadValues]:
    """Find every row that cannot be used; without those, the batch passes all checks of rows.

    Parameters
    ----------
    found : pa.RecordBatch
        With the columns of the roles, each of a type that can play its role.
    roles : Roles
    features : FeatureMap, optional
        Its actions are the known ones; without it all are.
    """
    faults: list[BadValues] = []
    for role, column in roles.items():
        for reason, bad in _FINDERS.get(role, _wrong_numbers)(found.column(column), role):
            if bad.any():
                faults.append(BadValues(column, reason, bad))
    if roles.action is not None:
        faults.extend(_wrong_actions(found, roles, features, any_of(faults, found.num_rows)))
    return faults


def any_of(faults: list[BadValues], rows: int) -> Mask:
    """Rows (n,) that have any of the faults."""
    bad: Mask = np.zeros(rows, dtype=np.bool_)
    for fault in faults:
        bad |= fault.bad
    return bad


def _absent(column: pa.Array) -> tuple[pa.Array, Mask]:
    """Return a column, decoded, and which of its values are null."""
    column = decoded(column)
    if pa.types.is_null(column.type):
        return column, np.ones(len(column), dtype=np.bool_)
    return column, as_numpy(column.is_null())


def _wrong_ids(column: pa.Array, _: str) -> Iterator[tuple[str, Mask]]:
    column, absent = _absent(column)
    yield "missing", absent
    if pa.types.is_floating(column.type):
        values = as_numpy(column)
        yield "NaN", np.isnan(values) & ~absent
        yield ROUNDED, may_be_rounded(values) & ~absent


def _wrong_numbers(column: pa.Array, role: str) -> Iterator[tuple[str, Mask]]:
    found, faults = _as_numbers(column)
    yield from faults
    absent = np.any([bad for _, bad in faults], axis=0)
    if absent.all():
        return
    values = as_numpy(found.cast(pa.float64(), safe=False).fill_null(1.0))
    with np.errstate(invalid="ignore"):
        for rule in RULES[role]:
            for reason, test in rule.broken:
                yield reason, test(values) & ~absent


def _as_numbers(column: pa.Array) -> tuple[pa.Array, list[tuple[str, Mask]]]:
    """Return a column as numbers, and which of its values are none."""
    if holds_text(column.type):
        found, missing, wrong, rounded = text_numbers(column)
        return found, [("missing", missing), (NO_NUMBER, wrong), ("above 2**53", rounded)]
    column, absent = _absent(column)
    rounded = np.zeros(len(column), dtype=np.bool_)
    if column.type in (pa.int64(), pa.uint64()):
        whole = as_numpy(column.fill_null(0))
        rounded = (whole > EXACT) | (whole < -EXACT if column.type == pa.int64() else False)
    return column, [("missing", absent), ("above 2**53", rounded)]


def _wrong_times(column: pa.Array, role: str) -> Iterator[tuple[str, Mask]]:
    plain = decoded(column)
    if pa.types.is_temporal(plain.type):
        yield "missing", _absent(plain)[1]
    else:
        yield from _wrong_numbers(plain, role)


def _wrong_lists(column: pa.Array, _: str) -> Iterator[tuple[str, Mask]]:
    _, absent = _absent(column)
    yield "missing", absent
    lengths = as_numpy(pc.fill_null(pc.list_value_length(column), 1))
    yield "an empty list", (lengths == 0) & ~absent
    entries = column.flatten()
    owner = np.repeat(np.arange(len(column)), np.where(absent, 0, lengths))

    def holding(bad: Mask) -> Mask:
        rows = np.zeros(len(column), dtype=np.bool_)
        rows[owner[bad]] = True
        return rows

    if entries.null_count:
        yield "a list with a null", holding(_absent(entries)[1])
    if pa.types.is_floating(entries.type):
        yield LIST_ROUNDED, holding(may_be_rounded(as_numpy(entries)))


_FINDERS = {
    "task": _wrong_ids, "action": _wrong_ids, "level": _wrong_ids, "eligible": _wrong_lists, "time": _wrong_times,
}  # fmt: skip


def _wrong_actions(
    found: pa.RecordBatch, roles: Roles, features: FeatureMap | None, before: Mask
) -> Iterator[BadValues]:
    """Actions that the features do not know, or that are not in their own lists, in rows without another fault."""
    rows = np.flatnonzero(~before)
    if not rows.size or (features is None and roles.eligible is None):
        return
    good = found.filter(pa.array(~before))
    assert roles.action is not None
    taken, codes = Keys.factorize(ids(good.column(roles.action), roles.action, 0))

    def fault(column: str, reason: str, bad: Mask) -> Iterator[BadValues]:
        if bad.any():
            everywhere = np.zeros(found.num_rows, dtype=np.bool_)
            everywhere[rows[bad]] = True
            yield BadValues(column, reason, everywhere)

    if features is not None:
        yield from fault(roles.action, "an unknown action", _unknown(features, taken.values)[codes])
    if roles.eligible is not None:
        entries, starts = lists(good.column(roles.eligible), roles.eligible, 0)
        listed, which = Keys.factorize(entries)
        owner = np.repeat(np.arange(rows.size), np.diff(starts))
        strange = np.zeros(rows.size, dtype=np.bool_)
        if features is not None:
            strange[owner[_unknown(features, listed.values)[which]]] = True
        yield from fault(roles.eligible, "a list with an unknown action", strange)
        lacking = Eligible(entries, starts).lacking(taken.values[codes])
        yield from fault(roles.eligible, "a list without the action taken", lacking)


def _unknown(features: FeatureMap, actions: Ids) -> Mask:
    found = np.zeros(len(actions), dtype=np.bool_)
    for k in range(len(actions)):
        try:
            features.action_codes(actions[k : k + 1])
        except UnknownActionError:
            found[k] = True
    return found


_BLOCK = 65_536  # rows written at once


class Listing:
    """Rows that wait, in an unnamed file beside the one that they go to, until they can be written in order.

    Parameters
    ----------
    target : Path
    unit : "row" or "line"
        What the numbers count: rows of the whole log from 0, or lines of a file from 1.

    Raises
    ------
    InputError
        The file is of another format than Parquet and CSV.
    ArtifactError
        It cannot be written.
    """

    def __init__(self, target: Path, unit: str = "row") -> None:
        self.schema = pa.schema(
            [
                ("file", pa.string()),
                (unit, pa.int64()),
                ("column", pa.string()),
                ("value", pa.string()),
                ("reason", pa.string()),
            ]
        )
        if target.suffix.lower() not in TABLE_SUFFIXES:
            raise InputError(
                f"{str(target)!r} cannot list rejected rows: its name has to end in {' or '.join(TABLE_SUFFIXES)}."
            )
        check_target(target)
        self._target = target
        try:
            self._waiting: IO[bytes] = tempfile.TemporaryFile(dir=target.parent)  # noqa: SIM115 - it lives as long as this
        except OSError as error:
            raise ArtifactError(
                f"{target} cannot be written: {error.strerror or error}. Is the disk full, or the folder closed to "
                "this user?"
            ) from error
        weakref.finalize(self, self._waiting.close)  # where the log was not read to its end
        self._writer = pa.ipc.new_file(self._waiting, self.schema)
        self._first_rows: list[int] = []

    def add(self, found: pa.RecordBatch, faults: Sequence[BadValues], first_row: int, place: str) -> None:
        """Keep the faults of one batch."""
        parts = [self._listed(found.column(fault.column), fault, first_row, place) for fault in faults]
        self.take(pa.Table.from_batches(parts).combine_chunks().sort_by("row"), first_row)

    def take(self, table: pa.Table, first: int) -> None:
        """Keep rows as they will be listed, at least one and in order; ``first`` is a number before all of theirs."""
        self._writer.write_table(table, max_chunksize=table.num_rows)
        self._first_rows.append(first)

    def write(self) -> None:
        """Write all in the order of the log."""
        self._writer.close()
        self._waiting.seek(0)
        write_tables(self._target, self._in_order(pa.ipc.open_file(self._waiting)))
        self._waiting.close()

    def _in_order(self, reader: Any) -> Iterator[pa.Table]:
        held: list[pa.RecordBatch] = []
        for k in np.argsort(self._first_rows, kind="stable").tolist():
            held.append(reader.get_batch(k))
            if sum(batch.num_rows for batch in held) >= _BLOCK:
                yield pa.Table.from_batches(held)
                held = []
        yield pa.Table.from_batches(held, self.schema)

    def _listed(self, column: pa.Array, fault: BadValues, first_row: int, place: str) -> pa.RecordBatch:
        rows = np.flatnonzero(fault.bad)
        n = rows.size
        values = decoded(column).filter(pa.array(fault.bad))
        try:
            texts = values.cast(pa.string())
        except pa.ArrowException:  # lists, and bytes that are no text
            texts = pa.array(
                [None if value is None else str(value) for value in values.to_pylist()], pa.string()
            )
        return pa.RecordBatch.from_arrays(
            [pa.array([place] * n), pa.array(first_row + rows), pa.array([fault.column] * n), texts,
             pa.array([fault.reason] * n)],
            schema=self.schema,
        )  # fmt: skip


def check_listing(file: str | os.PathLike[str] | None, log: Any) -> None:
    """Refuse a list of rejected rows that would become part of the log.

    Raises
    ------
    InputError
        Names both.
    """
    if file is None or not isinstance(log, str | os.PathLike):
        return
    target, source = Path(file).resolve(), Path(log).resolve()
    if source == target or source in target.parents or fnmatch(str(target), str(source)):  # a glob
        raise InputError(
            f"{str(file)!r} cannot list rejected rows: it would become part of the log, {str(log)!r}. Give another "
            "path."
        )


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
        self, found: pa.RecordBatch, roles: Roles, first_row: int, faults: Sequence[BadValues], place: str
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
                reason, key = fault.counted(found, first_row), (fault.column, fault.reason)
                before = self._reasons.get(key)
                self._reasons[key] = reason if before is None else before + reason
            if self._listed is not None:
                self._listed.add(found, faults, first_row, place)

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


def _nameless(column: str, faults: Sequence[BadValues], rows: int) -> NDArray[np.bool_]:
    """Return the rows (n,) that have no id in a column, or one that may be another's."""
    none = (*NOTHING, ROUNDED)
    return any_of([each for each in faults if each.column == column and each.reason in none], rows)


def _ids_of(
    found: pa.RecordBatch, column: str, faults: Sequence[BadValues], rows: NDArray[np.bool_]
) -> "_Coded":
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
