"""Find rows that cannot be used, set them aside, count them by reason, and list them in a file."""

import os
import tempfile
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from hieropo.logs.arrow.arrays import EXACT, as_numpy, decoded, ids, lists, task_ids
from hieropo.logs.arrow.log_source import LogSource, lines_of, place_of
from hieropo.logs.arrow.schema import TIME_OF_TEXT, holds_text, source_of
from hieropo.logs.arrow.writing import TABLE_SUFFIXES, check_target, write_tables
from hieropo.logs.formats.text_types import commas_advice, text_numbers
from hieropo.rows.batches import Eligible, Roles, TaskColumns, column_tuple
from hieropo.rows.columns import RULES
from hieropo.rows.ids import Ids, may_be_rounded, plain
from hieropo.rows.keys import Keys

NO_TIME = "missing, or no time of ISO 8601"  # reason of times that were read from text
_IN_WORDS = {
    "missing": "a missing value",
    "infinite": "an infinite value",
    NO_TIME: "a value that is missing or no time of ISO 8601",
}
MISSING_REASONS = ("missing", "NaN")  # reasons of values that are missing
NO_NUMBER = "not a number"  # reason of text where a number is needed
ROUNDED = "an id that may be rounded"  # reason of floats so large that different whole numbers become one
LIST_ROUNDED = "a list with an id that may be rounded"

_MAX_SHARE = 0.5  # largest share of rows that may be set aside


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
        Value that cannot be used; None where there was none.
    unit : "row" or "line"
    place : str or None
        Where the first row is found, such as "line 3 of 'log.csv'"; None where that is not known.
    """

    column: str
    reason: str
    rows: int
    first_row: int
    value: str | None
    unit: Literal["row", "line"] = "row"
    place: str | None = None

    def __add__(self, other: "Reason") -> "Reason":
        """Count both, with the first row of all."""
        first = self if self.first_row <= other.first_row else other
        return replace(first, rows=self.rows + other.rows)

    def __str__(self) -> str:
        reason = _IN_WORDS.get(self.reason, self.reason)
        fault = reason if reason.startswith("not ") else f"with {reason}"
        place = f" in {self.column!r}" if self.column else ""
        value = "" if self.value is None or self.reason in MISSING_REASONS else f": {_shortened(self.value)}"
        return f"{self.rows:,} {fault}{place} (first in {self.first_place}{value})"

    @property
    def first_place(self) -> str:
        """Where the first row is found."""
        if self.place is None:
            return f"{self.unit} {self.first_row:,}"
        return f"{self.place}, counted from 0" if self.place.startswith("row") else self.place

    def placed(self, source: LogSource | None) -> "Reason":
        """Return the reason with the place of its first row in a source; with its number where the source is None."""
        return replace(
            self, place=f"row {self.first_row}" if source is None else place_of(source, self.first_row)
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON's types."""
        return {
            "column": self.column, "reason": self.reason, "rows": self.rows,
            f"first_{self.unit}": self.first_row, "value": self.value,
            **({} if self.place is None else {"place": self.place}),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Uneven:
    """An action whose rows were set aside far more or less often than those of other actions.

    Parameters
    ----------
    action : id
    rows : int
        Rows that were set aside.
    expected : float
        Their expected number if rows were set aside independently of the action.
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
        Number of them that were set aside. A row can have more than one reason.
    reasons : tuple of Reason
        In the order of the log.
    uneven : tuple of Uneven
        Actions whose rows were set aside far more or less often than those of others.
    lost_tasks : tuple of ids
        The first tasks of which no row is left; ``lost`` is the number of all such tasks.
    lost : int
    file : str or None
        File that lists the rows.
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
        """Write the number of rows and the reasons."""
        reasons = ", ".join(str(reason) for reason in self.reasons)
        return f"{self.rows:,} of {counted(self.read, 'row')} ({self.share:.2%})" + (
            f": {reasons}" if reasons else ""
        )

    @property
    def listed(self) -> str:
        """A sentence, after a space, that names the file with the list; empty where there is none."""
        return "" if self.file is None else f" Each is listed in {self.file}."

    @property
    def commas(self) -> str:
        """A sentence, after a space, on how to read numbers with commas; empty where the first values have none."""
        for reason in self.reasons:
            if reason.reason == NO_NUMBER and (advice := commas_advice(reason.value or "")):
                return (
                    f" Numbers with commas are not read, and may be the largest values of {reason.column!r}: {advice}. "
                    "Hand over this frame, or write the file without commas."
                )
        return ""

    def check(
        self, *, lenient: bool, cause: str = "Is it the right column, and was a join complete?"
    ) -> None:
        """Refuse a log of which too many rows were set aside.

        Parameters
        ----------
        lenient : bool
            True where rows may be set aside.
        cause : str
            Question after likely causes, for the message.

        Raises
        ------
        LogError
            Rows were set aside although ``lenient`` is False, or more than half were.
        """
        if self.rows and not lenient:
            raise LogError(
                f"{self.counted()} cannot be used.{self.listed}{self.commas} Correct or drop them, or set such rows "
                "aside: lenient=True, on the command line --lenient."
            )
        if self.share > _MAX_SHARE:
            raise LogError(
                f"{self.counted()} would have to be set aside, and the other rows do not stand for the log."
                f"{self.listed}{self.commas} {cause} If the other rows are a log of their own, hand over only those."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON's types; ids that it lacks become text."""
        return {
            "read": self.read,
            "rows": self.rows,
            "reasons": [item.to_dict() for item in self.reasons],
            "uneven_actions": [
                {"action": _json_id(item.action), "rows": item.rows, "expected": item.expected}
                for item in self.uneven
            ],
            "lost_tasks": self.lost,
            "file": self.file,
            "texts_read_as_numbers": list(self.texts),
        }


def _shortened(value: str) -> str:
    return value if len(value) <= 40 else value[:37] + "..."


def _json_id(key: Any) -> Any:
    return key if isinstance(key, str | int | float) else str(key)


@dataclass(frozen=True, slots=True, eq=False)
class BadValues:
    """Rows whose value in one column cannot be used, for one reason.

    Parameters
    ----------
    column, reason : str
    bad : (n,) bool
    source : str, optional
        The column of the log that ``column`` was made of, where it is another one.
    """

    column: str
    reason: str
    bad: Mask
    source: str | None = None

    @property
    def named(self) -> str:
        """The column as the log has it."""
        return self.column if self.source is None else self.source

    def counted(self, batch: pa.RecordBatch, first_row: int) -> Reason:
        """Return the count of these rows of a record batch that begins with ``first_row``."""
        row = int(self.bad.argmax())
        value = batch.column(self.column)[row].as_py()
        return Reason(
            self.named, self.reason, int(np.count_nonzero(self.bad)), first_row + row,
            None if value is None else str(value),
        )  # fmt: skip


def find_bad_values(
    batch: pa.RecordBatch, roles: Roles, features: FeatureMap | None = None
) -> list[BadValues]:
    """Return the values that cannot be used, by column and reason; all other rows pass every check.

    Parameters
    ----------
    found : pa.RecordBatch
        With the columns of the roles, each of a type that can play its role.
    roles : Roles
    features : FeatureMap, optional
        Actions that it does not know cannot be used; without it all can.
    """
    faults = bad_values_by_role(batch, roles.items())
    if roles.action is not None:
        faults.extend(_bad_actions(batch, roles, features, any_of(faults, batch.num_rows)))
    return faults


def bad_values_by_role(batch: pa.RecordBatch, roles: Iterable[tuple[str, str]]) -> list[BadValues]:
    """Return the values that cannot play the role of their column, given pairs (role, column)."""
    return [
        BadValues(
            column, _reason(reason, batch.schema.field(column)), bad, source_of(batch.schema.field(column))
        )
        for role, column in roles
        for reason, bad in _FINDERS.get(role, _bad_numbers)(batch.column(column), role)
        if bad.any()
    ]


def _reason(reason: str, field: pa.Field) -> str:
    return NO_TIME if reason == "missing" and TIME_OF_TEXT in (field.metadata or {}) else reason


def any_of(faults: Iterable[BadValues], rows: int) -> Mask:
    """Return which rows (n,) have any of the faults."""
    bad: Mask = np.zeros(rows, dtype=np.bool_)
    for fault in faults:
        bad |= fault.bad
    return bad


def _nulls(column: pa.Array) -> tuple[pa.Array, Mask]:
    """Return a column, decoded, and which of its values are null."""
    column = decoded(column)
    if pa.types.is_null(column.type):
        return column, np.ones(len(column), dtype=np.bool_)
    return column, as_numpy(column.is_null())


def _bad_ids(column: pa.Array, _: str) -> Iterator[tuple[str, Mask]]:
    column, is_null = _nulls(column)
    yield "missing", is_null
    if pa.types.is_floating(column.type):
        values = as_numpy(column)
        yield "NaN", np.isnan(values) & ~is_null
        yield ROUNDED, may_be_rounded(values) & ~is_null


def _bad_numbers(column: pa.Array, role: str) -> Iterator[tuple[str, Mask]]:
    numbers, faults = _as_numbers(column)
    yield from faults
    unusable = np.any([bad for _, bad in faults], axis=0)
    if unusable.all():
        return
    values = as_numpy(numbers.cast(pa.float64(), safe=False).fill_null(1.0))
    with np.errstate(invalid="ignore"):
        for rule in RULES[role]:
            for reason, test in rule.broken:
                yield reason, test(values) & ~unusable


def _as_numbers(column: pa.Array) -> tuple[pa.Array, list[tuple[str, Mask]]]:
    """Return a column as numbers, and which of its values cannot be one, by reason."""
    if holds_text(column.type):
        values, missing, wrong, rounded = text_numbers(column)
        return values, [("missing", missing), (NO_NUMBER, wrong), ("above 2**53", rounded)]
    column, is_null = _nulls(column)
    rounded = np.zeros(len(column), dtype=np.bool_)
    if column.type in (pa.int64(), pa.uint64()):
        integers = as_numpy(column.fill_null(0))
        rounded = (integers > EXACT) | (integers < -EXACT if column.type == pa.int64() else False)
    return column, [("missing", is_null), ("above 2**53", rounded)]


def _bad_times(column: pa.Array, role: str) -> Iterator[tuple[str, Mask]]:
    times = decoded(column)
    if pa.types.is_temporal(times.type):
        yield "missing", _nulls(times)[1]
    else:
        yield from _bad_numbers(times, role)


def _bad_lists(column: pa.Array, _: str) -> Iterator[tuple[str, Mask]]:
    _, is_null = _nulls(column)
    yield "missing", is_null
    lengths = as_numpy(pc.fill_null(pc.list_value_length(column), 1))
    yield "an empty list", (lengths == 0) & ~is_null
    entries = column.flatten()
    row_of_entry = np.repeat(np.arange(len(column)), np.where(is_null, 0, lengths))

    def rows_with(bad: Mask) -> Mask:
        rows = np.zeros(len(column), dtype=np.bool_)
        rows[row_of_entry[bad]] = True
        return rows

    if entries.null_count:
        yield "a list with a null", rows_with(_nulls(entries)[1])
    if pa.types.is_floating(entries.type):
        yield LIST_ROUNDED, rows_with(may_be_rounded(as_numpy(entries)))


_FINDERS = {
    "task": _bad_ids, "action": _bad_ids, "level": _bad_ids, "cluster": _bad_ids, "request": _bad_ids,
    "eligible": _bad_lists, "time": _bad_times,
}  # fmt: skip


def _bad_actions(
    batch: pa.RecordBatch, roles: Roles, features: FeatureMap | None, has_fault: Mask
) -> Iterator[BadValues]:
    """Yield unknown actions, and actions missing from the list of their row, in rows without another fault."""
    rows = np.flatnonzero(~has_fault)
    if not rows.size or (features is None and roles.eligible is None):
        return
    others = batch.filter(pa.array(~has_fault))
    assert roles.action is not None
    taken, codes = Keys.factorize(ids(others.column(roles.action), roles.action, 0))

    def fault(column: str, reason: str, bad: Mask) -> Iterator[BadValues]:
        if bad.any():
            in_batch = np.zeros(batch.num_rows, dtype=np.bool_)
            in_batch[rows[bad]] = True
            yield BadValues(column, reason, in_batch)

    if features is not None:
        yield from fault(roles.action, "an unknown action", unknown_actions(features, taken.values)[codes])
    if roles.eligible is not None:
        entries, starts = lists(others.column(roles.eligible), roles.eligible, 0)
        listed_ids, listed_codes = Keys.factorize(entries)
        row_of_entry = np.repeat(np.arange(rows.size), np.diff(starts))
        has_unknown = np.zeros(rows.size, dtype=np.bool_)
        if features is not None:
            has_unknown[row_of_entry[unknown_actions(features, listed_ids.values)[listed_codes]]] = True
        yield from fault(roles.eligible, "a list with an unknown action", has_unknown)
        lacks_taken = Eligible(entries, starts).without(taken.values[codes])
        yield from fault(roles.eligible, "a list without the action taken", lacks_taken)


def unknown_actions(features: FeatureMap, actions: Ids) -> Mask:
    """Return which ids of actions (n,) a feature map does not know."""
    unknown = np.zeros(len(actions), dtype=np.bool_)
    for k in range(len(actions)):
        try:
            features.action_codes(actions[k : k + 1])
        except UnknownActionError:
            unknown[k] = True
    return unknown


_BLOCK = 65_536  # rows written at once


class Listing:
    """A list of rejected rows, kept in an unnamed temporary file until it is written in the order of the log.

    Parameters
    ----------
    target : Path
    unit : "row" or "line"
        Unit of the numbers: rows of the whole log from 0, or lines of a file from 1.

    Raises
    ------
    InputError
        The file is of another format than Parquet and CSV.
    ArtifactError
        It cannot be written.
    """

    schema: Any

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
                f"{str(target)!r} cannot list rejected rows: its name must end in {' or '.join(TABLE_SUFFIXES)}."
            )
        check_target(target)
        self._target = target
        try:
            self._buffer: IO[bytes] = tempfile.TemporaryFile(dir=target.parent)  # noqa: SIM115 - it lives as long as this
        except OSError as error:
            raise ArtifactError(
                f"{target} cannot be written: {error.strerror or error}. Make room on the disk, or give this user the "
                "right to write in the folder."
            ) from error
        weakref.finalize(self, self._buffer.close)  # in case the log is not read to its end
        self._writer = pa.ipc.new_file(self._buffer, self.schema)
        self._first_rows: list[int] = []

    def add(self, batch: pa.RecordBatch, faults: Sequence[BadValues], first_row: int, place: str) -> None:
        """Add the faults of one batch."""
        parts = [self._listing(batch.column(fault.column), fault, first_row, place) for fault in faults]
        self.take(pa.Table.from_batches(parts).combine_chunks().sort_by("row"), first_row)

    def take(self, table: pa.Table, first: int) -> None:
        """Add rows in order, at least one; ``first`` is at most the number of the first of them."""
        self._writer.write_table(table, max_chunksize=table.num_rows)
        self._first_rows.append(first)

    def write(self, source: LogSource | None = None) -> None:
        """Write the list in the order of the log; with the lines of the rows where ``source`` is files of text."""
        self._writer.close()
        self._buffer.seek(0)
        parts = self._in_order(pa.ipc.open_file(self._buffer))
        if source is not None and lines_of(source, []) is not None:
            parts = (_with_lines(part, source) for part in parts)
        write_tables(self._target, parts)
        self._buffer.close()

    def _in_order(self, reader: Any) -> Iterator[pa.Table]:
        batches: list[pa.RecordBatch] = []
        for k in np.argsort(self._first_rows, kind="stable").tolist():
            batches.append(reader.get_batch(k))
            if sum(batch.num_rows for batch in batches) >= _BLOCK:
                yield pa.Table.from_batches(batches)
                batches = []
        yield pa.Table.from_batches(batches, self.schema)

    def _listing(self, column: pa.Array, fault: BadValues, first_row: int, place: str) -> pa.RecordBatch:
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
            [pa.array([place] * n), pa.array(first_row + rows), pa.array([fault.named] * n), texts,
             pa.array([fault.reason] * n)],
            schema=self.schema,
        )  # fmt: skip


def _with_lines(part: pa.Table, source: LogSource) -> pa.Table:
    """Return a part of a list with the line of each row, in its file, after its number in the whole log."""
    rows: list[int] = part.column("row").to_pylist()
    distinct = sorted(set(rows))
    line = dict(zip(distinct, lines_of(source, distinct) or [], strict=True))
    lines = pa.array([line[row] for row in rows], pa.int64())
    return part.add_column(part.schema.get_field_index("row") + 1, "line", lines)


def check_listing(file: str | os.PathLike[str] | None, log: Any) -> None:
    """Refuse a list of rejected rows whose path is a part of the log.

    Raises
    ------
    InputError
        The file would be read as a part of the log.
    """
    if file is None or not isinstance(log, str | os.PathLike):
        return
    target, source = Path(file).resolve(), Path(log).resolve()
    if source == target or source in target.parents or fnmatch(str(target), str(source)):  # a glob
        raise InputError(
            f"{str(file)!r} cannot list rejected rows: it would become a part of the log {str(log)!r}. Give another "
            "path."
        )


_MAX_ACTIONS = 10_000  # with more actions, their rows are not compared


class Rejects:
    """Collects rows that cannot be used, from one thread or several.

    Parameters
    ----------
    lenient : bool
        True where a log with such rows may be used without them. Otherwise the log is still read to its end, so that
        all of them are found.
    file : path, optional
        A .parquet or .csv file in which they are listed: file, number of the row in the whole log from 0, in files of
        text the line from 1, column, value, reason. A row with two reasons is listed twice. It is written after the
        log was read.
    features : FeatureMap, optional
        Rows with actions that it does not know are rejected.

    Raises
    ------
    InputError
        ``file`` is of another format.
    ArtifactError
        It cannot be written.
    """

    lenient: bool
    features: FeatureMap | None
    file: Path | None
    rows: int
    rejected: Rejected | None
    source: LogSource | None

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
        self.rejected = None  # set by finish
        self.source = None  # the log that is read, for the places of rows
        self._reasons: dict[tuple[str, str], Reason] = {}
        self._texts: set[str] = set()
        self._tasks: dict[Any, None] = {}
        self._actions = _ActionTest()
        self._lock = Lock()
        self._listing = None if self.file is None else Listing(self.file)

    def without_listing(self) -> "Rejects":
        """Return a collector of the same rows for another pass, without a list."""
        return Rejects(lenient=self.lenient, features=self.features)

    def __getstate__(self) -> dict[str, Any]:
        """Travel without the list, which is in its file."""
        return {
            name: value
            for name, value in self.__dict__.items()
            if name not in ("_lock", "_listing", "source")
        }

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock, self._listing, self.source = Lock(), None, None

    @property
    def tasks(self) -> list[Any]:
        """The tasks of the rows that were set aside."""
        return list(self._tasks)

    def forget(self, tasks: Keys) -> None:
        """Forget the tasks that have usable rows, so that no row of them is lost."""
        self._tasks = {task: None for task in self._tasks if tasks.find(task) < 0}

    def merge(self, later: "Rejects", rows: int, listed: pa.Table | None = None) -> None:
        """Add the rows of a later part, before which ``rows`` rows were read; ``listed`` are some of its list."""
        if self._listing is not None and listed is not None and listed.num_rows:
            numbers = pc.add(listed.column("row"), rows)
            moved = listed.set_column(listed.schema.get_field_index("row"), "row", numbers)
            self._listing.take(moved.combine_chunks(), rows)
        self.rows += later.rows
        self._tasks.update(later._tasks)
        self._texts.update(later._texts)
        self._actions.merge(later._actions)
        for key, reason in later._reasons.items():
            moved = replace(reason, first_row=reason.first_row + (rows if reason.unit == "row" else 0))
            before = self._reasons.get(key)
            self._reasons[key] = moved if before is None else before + moved

    def note_texts(self, columns: Iterable[str]) -> None:
        """Add columns of text that were read as numbers."""
        with self._lock:
            self._texts.update(columns)

    def add(
        self, batch: pa.RecordBatch, roles: Roles, first_row: int, faults: Sequence[BadValues], place: str
    ) -> None:
        """Add the rows of a record batch that have a fault."""
        bad = any_of(list(faults), batch.num_rows)
        tasks = _ids_of(batch, roles.task, faults, bad)
        actions, is_rejected = None, bad
        if roles.action is not None:
            has_action = ~_without_id(roles.action, faults, bad.size)
            actions, is_rejected = _ids_of(batch, roles.action, faults, has_action), bad[has_action]
        with self._lock:
            self.rows += int(np.count_nonzero(bad))
            self._tasks.update(dict.fromkeys(tasks.values))
            if actions is not None:
                self._actions.add(actions, is_rejected)
            for fault in faults:
                reason, key = fault.counted(batch, first_row), (fault.named, fault.reason)
                before = self._reasons.get(key)
                self._reasons[key] = reason if before is None else before + reason
            if self._listing is not None:
                self._listing.add(batch, faults, first_row, place)

    def finish(self, kept: int, tasks: Keys) -> Rejected:
        """Write the list, and return the rows that were set aside; ``kept`` rows of ``tasks`` can be used."""
        if self._listing is not None:
            self._listing.write(self.source)
        lost_tasks = [task for task in self._tasks if tasks.find(task) < 0]
        reasons = sorted(self._reasons.values(), key=lambda reason: (reason.first_row, reason.column))
        reasons = [reason.placed(self.source) if reason.unit == "row" else reason for reason in reasons]
        self.rejected = Rejected(
            kept + self.rows,
            self.rows,
            tuple(reasons),
            tuple(self._actions.uneven()),
            tuple(plain(task) for task in lost_tasks[:3]),
            len(lost_tasks),
            None if self.file is None else str(self.file),
            tuple(sorted(self._texts)),
        )
        return self.rejected


def _without_id(column: str, faults: Sequence[BadValues], rows: int) -> NDArray[np.bool_]:
    """Return which rows (n,) have no id in a column, or an id that may be rounded."""
    reasons = (*MISSING_REASONS, ROUNDED)
    return any_of([fault for fault in faults if fault.column == column and fault.reason in reasons], rows)


def _ids_of(
    batch: pa.RecordBatch, column: TaskColumns, faults: Sequence[BadValues], rows: NDArray[np.bool_]
) -> "_CodedIds":
    """Return the ids of some rows, without rows that have none."""
    selected = rows
    for part in column_tuple(column):
        selected = selected & ~_without_id(part, faults, rows.size)
    keys, codes = Keys.factorize(task_ids(batch.filter(pa.array(selected)), column, 0))
    return _CodedIds(list(keys.values) if keys.values.dtype.kind == "M" else keys.values.tolist(), codes)


@dataclass(frozen=True, slots=True, eq=False)
class _CodedIds:
    """Distinct ids, and for each of n rows the position of its id."""

    values: list[Any]
    codes: NDArray[np.int64]


class _ActionTest:
    """Mantel-Haenszel test, stratified by batch, of whether rows of an action are set aside as often as others."""

    def __init__(self) -> None:
        self._rows: Counter[Any] = Counter()
        self._expected: Counter[Any] = Counter()
        self._variance: Counter[Any] = Counter()

    def add(self, actions: _CodedIds, bad: NDArray[np.bool_]) -> None:
        """Add a batch: the action of each row (n,), and which rows are set aside."""
        rows, rejected_rows = bad.size, int(np.count_nonzero(bad))
        if rows < 2 or not rejected_rows or len(self._rows) > _MAX_ACTIONS:
            return
        width = len(actions.values)
        share = np.bincount(actions.codes, minlength=width) / rows
        rejected = np.bincount(actions.codes[bad], minlength=width)
        variance = rejected_rows * (rows - rejected_rows) / (rows - 1) * share * (1.0 - share)
        for k, action in enumerate(actions.values):
            self._rows[action] += int(rejected[k])
            self._expected[action] += rejected_rows * float(share[k])  # type: ignore[assignment]
            self._variance[action] += float(variance[k])  # type: ignore[assignment]

    def merge(self, other: "_ActionTest") -> None:
        """Add the strata of other rows."""
        self._rows.update(other._rows)
        self._expected.update(other._expected)
        self._variance.update(other._variance)

    def uneven(self) -> Iterator[Uneven]:
        """Yield actions whose count is off by over 5 standard deviations and a factor of 1.5, farthest first."""
        deviating = []
        for action, rows in self._rows.items():
            expected, sd = self._expected[action], self._variance[action] ** 0.5
            z = (rows - expected) / sd if sd > 0 else 0.0
            if abs(z) > 5.0 and not (expected / 1.5 < rows < expected * 1.5):
                deviating.append((-abs(z), Uneven(plain(action), rows, float(expected))))
        return (action for _, action in sorted(deviating, key=lambda pair: pair[0]))


def rejects_for(
    log: Any, *, lenient: bool, file: str | os.PathLike[str] | None, features: FeatureMap | None = None
) -> Rejects | None:
    """Return the collector of a log's rejected rows; None where the first such row is an error.

    Raises
    ------
    InputError
        The file would be a part of the log, or is of another format.
    ArtifactError
        It cannot be written.
    """
    if not lenient and file is None:
        return None
    check_listing(file, log)
    return Rejects(lenient=lenient, file=file, features=features)
