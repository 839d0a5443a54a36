"""Reading a log: batches of rows, and the distinct values of a column."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hieropo.errors import InputError, LogError
from hieropo.logs.arrow.arrays import ids, lists, numbers, task_ids, times, without_views
from hieropo.logs.arrow.log_source import (
    BATCH_ROWS,
    LogSource,
    Part,
    counted_from,
    empty,
    located,
    over_parts,
    parts_of,
    place_of,
)
from hieropo.logs.arrow.schema import check_columns, holds_text
from hieropo.logs.bad_rows.rejects import Rejects, any_of, find_bad_values
from hieropo.logs.formats.text_types import text_columns, text_numbers, with_numbers
from hieropo.logs.opening import open_log
from hieropo.rows.batches import Batch, Eligible, Roles
from hieropo.rows.columns import HUGE
from hieropo.rows.ids import Ids, abbreviate, object_array, plain
from hieropo.rows.keys import Keys

_HOLES = " Or name the columns by a formula, features='age + price', which gives missing values a column of their own."


def read(
    source: Any,
    roles: Roles,
    *,
    batch_rows: int = BATCH_ROWS,
    rejects: Rejects | None = None,
    may_set_aside: bool = False,
) -> Iterator[Batch]:
    """Read a log as validated batches, in order, with row numbers counted over the whole log.

    The roles are checked at once, the rows while they are read. Every batch has ``batch_rows`` rows, the last
    one fewer, whatever the source.

    Parameters
    ----------
    source : LogSource or anything that ``open_log`` takes
    roles : Roles
    rejects : Rejects, optional
        Collects the rows that cannot be used; without it the first of them is an error. With it, batches begin anew at
        every part of the source, and have only the usable rows.
    may_set_aside : bool
        True where the caller can hand over ``rejects``; errors about rows then name that way out.

    Raises
    ------
    SchemaError
        A column is missing, there twice, or of a type that cannot play its role.
    LogError
        A row cannot be used, or there is none; the message has column, row number and value.
    """
    log = open_log(source, lenient=rejects is not None)
    check_log(log, roles, lenient=rejects is not None)
    return (
        _strict_batches(log, roles, batch_rows, may_set_aside=may_set_aside)
        if rejects is None
        else _lenient_batches(log, roles, batch_rows, rejects)
    )


def read_again(log: Any, roles: Roles, rejects: Rejects | None) -> Iterator[Batch]:
    """Yield the rows of a log that an earlier read kept; those that it set aside are not listed again."""
    again = None if rejects is None else rejects.without_listing()
    return read(log, roles, rejects=again, may_set_aside=True)


def records_again(
    log: Any, roles: Roles, rejects: Rejects | None
) -> Iterator[tuple[pa.RecordBatch, int, NDArray[np.int64] | None]]:
    """Yield the rows of a log that an earlier read kept as they came, as :func:`checked_batch` takes them.

    They are record batches, the numbers of their first rows, and the numbers of all rows where some were set aside.
    """
    source = open_log(log, lenient=rejects is not None)
    if rejects is None:
        row = 0
        for records in source.batches(roles.columns, BATCH_ROWS):
            yield records, row, None
            row += records.num_rows
        return
    unlisted = rejects.without_listing()
    for part in parts_of(source, roles.columns):
        row = part.first_row
        for records in part.batches():
            for start in range(0, records.num_rows, BATCH_ROWS):
                piece = records.slice(start, BATCH_ROWS)
                kept, numbers_of_rows = usable_records(piece, roles, row, unlisted, part.path or part.name)
                if kept.num_rows:
                    yield kept, row, numbers_of_rows
                row += piece.num_rows


def check_log(log: LogSource, roles: Roles, *, lenient: bool) -> None:
    """Check that each column of a log is there once and can play its role; with ``lenient``, text may hold numbers.

    Raises
    ------
    SchemaError
        As :func:`check_columns`; for text where numbers are needed the message has the first value that is none.
    """
    check_columns(
        log.schema, roles.items(), log.name, texts=lenient, sample_of=lambda column: _first_text(log, column)
    )


def _first_text(log: LogSource, column: str) -> str:
    """Return a sentence on the first text that is no number; empty where the schema has one or the log is a stream."""
    field = log.schema.field(column)
    if field.metadata is not None or not log.rereadable:
        return ""
    for part in parts_of(log, [column]):
        row = part.first_row
        for batch in part.batches():
            bad = text_numbers(batch.column(column)).wrong
            if bad.any():
                position = int(bad.argmax())
                place = place_of(log, row + position)
                text = f"{place} holds {str(batch.column(column)[position])[:40]!r}."
                return f"{text[0].upper()}{text[1:]}{counted_from(place)}"
            row += batch.num_rows
    return "All of its values are numbers."


def _strict_batches(log: LogSource, roles: Roles, batch_rows: int, *, may_set_aside: bool) -> Iterator[Batch]:
    row = 0
    with located(log, may_set_aside=may_set_aside):
        for batch in log.batches(roles.columns, batch_rows):
            yield checked_batch(batch, roles, row)
            row += batch.num_rows
    if not row:
        raise empty(log.name)


def _lenient_batches(log: LogSource, roles: Roles, batch_rows: int, rejects: Rejects) -> Iterator[Batch]:
    kept, rejected_before, rejects.source = 0, rejects.rows, log
    for part in parts_of(log, roles.columns):
        for batch in batches_of(part, roles, batch_rows=batch_rows, rejects=rejects):
            kept += len(batch)
            yield batch
    if not kept and rejects.rows == rejected_before:
        raise empty(log.name)


def batches_of(
    part: Part, roles: Roles, *, batch_rows: int = BATCH_ROWS, rejects: Rejects | None = None
) -> Iterator[Batch]:
    """Read a part of a log as validated batches of at most ``batch_rows`` rows, none of them empty.

    Raises
    ------
    LogError
        A row cannot be used, and there is no ``rejects``; the message has column, row number and value.
    """
    row = part.first_row
    for record_batch in part.batches():
        for start in range(0, record_batch.num_rows, batch_rows):
            piece = record_batch.slice(start, batch_rows)
            batch = usable_batch(piece, roles, row, rejects, part.path or part.name)
            if len(batch):
                yield batch
            row += piece.num_rows


def usable_batch(
    batch: pa.RecordBatch, roles: Roles, first_row: int, rejects: Rejects | None = None, place: str = ""
) -> Batch:
    """Make a batch of the rows that can be used; it may be empty.

    Parameters
    ----------
    batch : pa.RecordBatch
        With the columns of the roles, whose types were checked.
    roles : Roles
    first_row : int
        Number of its first row in the whole log.
    rejects : Rejects, optional
        Collects the other rows; without it the first of them is an error.
    place : str
        File of the rows, for the list of rejected ones.

    Raises
    ------
    LogError
        A row cannot be used; names column, row number and value.
    """
    if rejects is None:
        return checked_batch(batch, roles, first_row)
    kept, row_numbers = usable_records(batch, roles, first_row, rejects, place)
    return checked_batch(kept, roles, first_row, row_numbers)


def usable_records(
    batch: pa.RecordBatch, roles: Roles, first_row: int, rejects: Rejects, place: str = ""
) -> tuple[pa.RecordBatch, NDArray[np.int64] | None]:
    """Return the rows that can be used, texts read as numbers, and their numbers where rows were set aside.

    Parameters are those of :func:`usable_batch`.
    """
    batch = without_views(batch)
    faults, texts = find_bad_values(batch, roles, rejects.features), text_columns(batch, roles)
    rejects.note_texts(texts)
    if not faults:
        return with_numbers(batch, texts), None
    rejects.add(batch, roles, first_row, faults, place)
    good = ~any_of(faults, batch.num_rows)
    kept = with_numbers(batch.filter(pa.array(good)), texts)
    return kept, first_row + np.flatnonzero(good)


def checked_batch(
    record_batch: pa.RecordBatch, roles: Roles, row: int, row_numbers: NDArray[np.int64] | None = None
) -> Batch:
    """Make a batch of rows from ``row`` on, or with these numbers (n,); raise LogError where a row cannot be used."""

    def values(column: str | None) -> NDArray[np.float64] | None:
        return None if column is None else numbers(record_batch.column(column), column, row)

    batch = Batch(
        task=task_ids(record_batch, roles.task, row),
        action=None if roles.action is None else ids(record_batch.column(roles.action), roles.action, row),
        reward=numbers(record_batch.column(roles.reward), roles.reward, row),
        context=context_matrix(record_batch, roles.context, row, _HOLES),
        pscore=values(roles.pscore),
        weight=values(roles.weight),
        precision=values(roles.precision),
        sampling_weight=values(roles.sampling_weight),
        first_row=row,
        roles=roles,
        levels=tuple(ids(record_batch.column(column), column, row) for column in roles.levels),
        metadata=context_matrix(record_batch, roles.metadata, row) if roles.metadata else None,
        eligible=None if roles.eligible is None else _eligible(record_batch, roles.eligible, row),
        time=None if roles.time is None else times(record_batch.column(roles.time), roles.time, row),
        cluster=None
        if roles.cluster is None
        else ids(record_batch.column(roles.cluster), roles.cluster, row),
        rows=row_numbers,
    )
    _refuse_unlisted(batch)
    return batch


def _eligible(found: pa.RecordBatch, column: str, row: int) -> Eligible:
    return Eligible(*lists(found.column(column), column, row), row)


def _refuse_unlisted(batch: Batch) -> None:
    if batch.eligible is None or batch.action is None:
        return
    lacking = np.flatnonzero(batch.eligible.without(batch.action))
    if lacking.size:
        row = int(lacking[0])
        assert batch.roles is not None
        listed = abbreviate(batch.eligible.lists[row], 10)
        raise LogError.in_row(
            batch.number(row),
            f"Column {batch.roles.eligible!r}, row {batch.number(row)}: the action taken, "
            f"{plain(batch.action[row])!r}, is not in its list of actions, {listed}. Lists "
            "name all that could be taken when the action was chosen, by ids of the same type; add it, or leave "
            "such rows out.",
        )


def context_matrix(
    batch: pa.RecordBatch, columns: Sequence[str], row: int, advice: str = ""
) -> NDArray[np.float64]:
    """Return the context columns of a record batch as a matrix (n, c); ``advice`` is for the message about a null."""
    matrix = np.empty((batch.num_rows, len(columns)))
    for j, column in enumerate(columns):
        matrix[:, j] = numbers(batch.column(column), column, row, advice)
    return matrix


@dataclass(frozen=True, slots=True, eq=False)
class FirstRows:
    """The first batch of a log, from which origins of columns and rewards are chosen; None where it has no rows."""

    batch: pa.RecordBatch | None

    def numbers(self, columns: Sequence[str]) -> NDArray[np.float64] | None:
        """Return the values (n, c) of some columns, without rows that cannot be used; None where no row can be used.

        Errors about bad values are raised later, when the rows are read in their turn.
        """
        if self.batch is None:
            return None
        batch = self.batch.select(list(columns))
        try:
            texts = [column for column in columns if holds_text(batch.schema.field(column).type)]
            matrix = context_matrix(with_numbers(batch, texts).drop_null(), columns, 0)
        except (LogError, pa.ArrowException, TypeError, ValueError):
            return None
        matrix = matrix[(np.abs(matrix) <= HUGE).all(axis=1)]
        return matrix if len(matrix) else None

    def ids(self, column: str) -> tuple[Any, ...]:
        """Return the distinct ids of a column, without values that cannot be used; none where no row can be used."""
        if self.batch is None:
            return ()
        values = without_views(self.batch.select([column])).column(0).drop_null()
        try:
            return distinct_ids([ids(values, column, 0)]) if len(values) else ()
        except (LogError, InputError):
            return ()


def first_rows(source: LogSource, columns: Sequence[str]) -> FirstRows:
    """Return the first rows of a log, by one read of these columns."""
    return FirstRows(next(iter(source.batches(list(dict.fromkeys(columns)))), None))


def distinct_values(source: Any, column: str, *, role: str = "action") -> tuple[Any, ...]:
    """Return the distinct ids of a column, sorted where they can be compared, else in order of appearance.

    Their types are those of the standard library: str, int, bool, float, date, datetime, UUID, bytes, Decimal.

    Raises
    ------
    SchemaError
        The column is missing, there twice, or cannot hold ids.
    LogError
        A null, or no rows.
    """
    log = open_log(source)
    check_columns(log.schema, [(role, column)], log.name)
    elsewhere = over_parts(log, [column], partial(distinct_values, column=column, role=role))
    if elsewhere is not None:
        return distinct_ids(object_array(list(part)) for part in elsewhere)
    return distinct_ids(_ids_in(log, column))


def _ids_in(log: LogSource, column: str) -> Iterator[Ids]:
    row = 0
    with located(log):
        for batch in log.batches([column]):
            yield ids(batch.column(column), column, row)
            row += batch.num_rows
    if not row:
        raise empty(log.name)


def usable_actions(source: Any, roles: Roles, rejects: Rejects) -> tuple[Any, ...]:
    """Return the distinct actions of the rows that are not set aside, as :func:`distinct_values` does.

    Raises
    ------
    SchemaError
        As :func:`read`.
    LogError
        No row can be used; they are listed in the file of ``rejects``.
    """
    batches = read_again(source, roles, rejects)
    actions = distinct_ids(batch.action for batch in batches if batch.action is not None)
    if not actions:
        for _ in read(source, roles, rejects=rejects):
            pass
        rejected = rejects.finish(0, Keys(np.zeros(0)))
        raise LogError(
            f"{rejected.counted()} cannot be used, so no row is left. Is it the right column, and was a join complete?"
        )
    return actions


def distinct_ids(columns: Iterable[Ids]) -> tuple[Any, ...]:
    """Return the distinct ids of some columns, sorted where they can be compared, else in order of appearance."""
    seen: dict[Any, None] = {}
    for values in columns:
        new = dict.fromkeys(values.tolist()) if values.dtype.kind == "O" else np.unique(values)
        seen.update((plain(value), None) for value in new)
    try:
        return tuple(sorted(seen))
    except TypeError:
        return tuple(seen)
