"""Reading a log: batches of rows, and the distinct values of a column."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hieropo.errors import LogError
from hieropo.logs.arrow.arrays import ids, lists, numbers, times, without_views
from hieropo.logs.arrow.log_source import BATCH_ROWS, LogSource, Part, empty, parts_of
from hieropo.logs.arrow.schema import check_columns, holds_text
from hieropo.logs.bad_rows.rejects import Rejects, any_of, find_bad_values
from hieropo.logs.formats.text_types import text_columns, text_numbers, with_numbers
from hieropo.logs.opening import open_log
from hieropo.rows.batches import Batch, Eligible, Roles
from hieropo.rows.columns import HUGE
from hieropo.rows.ids import Ids, abbreviate, plain
from hieropo.rows.keys import Keys


def read(
    source: Any, roles: Roles, *, batch_rows: int = BATCH_ROWS, rejects: Rejects | None = None
) -> Iterator[Batch]:
    """Read a log as validated batches, in order, with row numbers counted over the whole log.

    The roles are checked at once, the rows while they are read. Every batch has ``batch_rows`` rows, the last
    one fewer, whatever the source.

    Parameters
    ----------
    source : LogSource or anything that ``open_log`` takes
    roles : Roles
    rejects : Rejects, optional
        Takes the rows that cannot be used; without it the first of them is an error. Batches are then cut anew at
        every part of the source, and have the rows that are left.

    Raises
    ------
    SchemaError
        A column is missing, there twice, or of a type that cannot play its role.
    LogError
        A row cannot be used, or there is none; names column, row number and value.
    """
    log = open_log(source, lenient=rejects is not None)
    check_log(log, roles, lenient=rejects is not None)
    return _batches(log, roles, batch_rows) if rejects is None else _sifted(log, roles, batch_rows, rejects)


def check_log(log: LogSource, roles: Roles, *, lenient: bool) -> None:
    """Check that each column of a log is there once and can play its role; leniently, text may be named as numbers.

    Raises
    ------
    SchemaError
        As :func:`check_columns`; of text where numbers are needed it says the first value that is none.
    """
    check_columns(
        log.schema, roles.items(), log.name, texts=lenient, sample_of=lambda column: _first_text(log, column)
    )


def _first_text(log: LogSource, column: str) -> str:
    """Say which value of a column of text is no number; nothing where that is known already, or reading has a price."""
    field = log.schema.field(column)
    if field.metadata is not None or not log.rereadable:
        return ""
    for part in parts_of(log, [column]):
        row = part.first_row
        for found in part.batches():
            wrong = text_numbers(found.column(column)).wrong
            if wrong.any():
                at = int(wrong.argmax())
                place = "" if part.path is None else f" of {part.path!r}"
                return f"Row {row + at}{place} holds {str(found.column(column)[at])[:40]!r}."
            row += found.num_rows
    return "All of its values are numbers."


def _batches(log: LogSource, roles: Roles, batch_rows: int) -> Iterator[Batch]:
    row = 0
    for found in log.batches(roles.columns, batch_rows):
        yield _batch(found, roles, row)
        row += found.num_rows
    if not row:
        raise empty(log.name)


def _sifted(log: LogSource, roles: Roles, batch_rows: int, rejects: Rejects) -> Iterator[Batch]:
    kept, before = 0, rejects.rows
    for part in parts_of(log, roles.columns):
        for batch in batches_of(part, roles, batch_rows=batch_rows, rejects=rejects):
            kept += len(batch)
            yield batch
    if not kept and rejects.rows == before:
        raise empty(log.name)


def batches_of(
    part: Part, roles: Roles, *, batch_rows: int = BATCH_ROWS, rejects: Rejects | None = None
) -> Iterator[Batch]:
    """Read a part of a log as validated batches of at most ``batch_rows`` rows, none of them empty.

    Raises
    ------
    LogError
        A row cannot be used, and there are no ``rejects`` to take it; names column, row number and value.
    """
    row = part.first_row
    for found in part.batches():
        for start in range(0, found.num_rows, batch_rows):
            piece = found.slice(start, batch_rows)
            batch = checked(piece, roles, row, rejects, part.path or part.name)
            if len(batch):
                yield batch
            row += piece.num_rows


def checked(
    found: pa.RecordBatch, roles: Roles, first_row: int, rejects: Rejects | None = None, place: str = ""
) -> Batch:
    """Make a batch of the rows that can be used; it may be empty.

    Parameters
    ----------
    found : pa.RecordBatch
        With the columns of the roles, whose types were checked.
    roles : Roles
    first_row : int
        Number of its first row in the whole log.
    rejects : Rejects, optional
        Takes the other rows; without it the first of them is an error.
    place : str
        The file that the rows lie in, for those who look for rejected ones.

    Raises
    ------
    LogError
        A row cannot be used; names column, row number and value.
    """
    if rejects is None:
        return _batch(found, roles, first_row)
    found = without_views(found)
    faults, texts = find_bad_values(found, roles, rejects.features), text_columns(found, roles)
    rejects.note_texts(texts)
    if not faults:
        return _batch(with_numbers(found, texts), roles, first_row)
    rejects.add(found, roles, first_row, faults, place)
    good = ~any_of(faults, found.num_rows)
    kept = with_numbers(found.filter(pa.array(good)), texts)
    return _batch(kept, roles, first_row, first_row + np.flatnonzero(good))


def _batch(found: pa.RecordBatch, roles: Roles, row: int, numbered: NDArray[np.int64] | None = None) -> Batch:
    def values(column: str | None) -> NDArray[np.float64] | None:
        return None if column is None else numbers(found.column(column), column, row)

    batch = Batch(
        task=ids(found.column(roles.task), roles.task, row),
        action=None if roles.action is None else ids(found.column(roles.action), roles.action, row),
        reward=numbers(found.column(roles.reward), roles.reward, row),
        context=context_matrix(found, roles.context, row),
        pscore=values(roles.pscore),
        weight=values(roles.weight),
        precision=values(roles.precision),
        sampling_weight=values(roles.sampling_weight),
        first_row=row,
        roles=roles,
        levels=tuple(ids(found.column(column), column, row) for column in roles.levels),
        metadata=context_matrix(found, roles.metadata, row) if roles.metadata else None,
        eligible=None if roles.eligible is None else _eligible(found, roles.eligible, row),
        time=None if roles.time is None else times(found.column(roles.time), roles.time, row),
        rows=numbered,
    )
    _refuse_unlisted(batch)
    return batch


def _eligible(found: pa.RecordBatch, column: str, row: int) -> Eligible:
    return Eligible(*lists(found.column(column), column, row), row)


def _refuse_unlisted(batch: Batch) -> None:
    if batch.eligible is None or batch.action is None:
        return
    lacking = np.flatnonzero(batch.eligible.lacking(batch.action))
    if lacking.size:
        row = int(lacking[0])
        assert batch.roles is not None
        listed = abbreviate(batch.eligible.lists[row], 10)
        raise LogError(
            f"Column {batch.roles.eligible!r}, row {batch.number(row)}: the action taken, "
            f"{plain(batch.action[row])!r}, is not in its list of actions, {listed}. Lists "
            "name all that could be taken when the action was chosen, by ids of the same type; add it, or leave "
            "such rows out."
        )


def context_matrix(found: pa.RecordBatch, columns: Sequence[str], row: int) -> NDArray[np.float64]:
    """Context columns of a record batch side by side, (n, c)."""
    matrix = np.empty((found.num_rows, len(columns)))
    for j, column in enumerate(columns):
        matrix[:, j] = numbers(found.column(column), column, row)
    return matrix


def first_contexts(source: Any, columns: Sequence[str]) -> NDArray[np.float64] | None:
    """Contexts (n, c) of the first rows of a log, without rows that cannot be used; None where they tell nothing.

    What is wrong with a row is said when it is read in its turn.
    """
    for found in open_log(source).batches(columns):
        try:
            texts = [column for column in columns if holds_text(found.schema.field(column).type)]
            matrix = context_matrix(with_numbers(found, texts).drop_null(), columns, 0)
        except (LogError, pa.ArrowException, TypeError, ValueError):
            return None
        matrix = matrix[(np.abs(matrix) <= HUGE).all(axis=1)]
        return matrix if len(matrix) else None
    return None


def distinct_values(source: Any, column: str, *, role: str = "action") -> tuple[Any, ...]:
    """Distinct ids of a column, sorted where they can be compared, else in order of appearance.

    They come as the standard library's types: str, int, bool, float, date, datetime, UUID, bytes, Decimal.

    Raises
    ------
    SchemaError
        The column is missing, there twice, or cannot hold ids.
    LogError
        A null, or no rows.
    """
    log = open_log(source)
    check_columns(log.schema, [(role, column)], log.name)
    return _distinct(_ids_in(log, column))


def _ids_in(log: LogSource, column: str) -> Iterator[Ids]:
    row = 0
    for found in log.batches([column]):
        yield ids(found.column(column), column, row)
        row += found.num_rows
    if not row:
        raise empty(log.name)


def usable_actions(source: Any, roles: Roles, rejects: Rejects) -> tuple[Any, ...]:
    """Distinct actions of the rows that are not set aside, as :func:`distinct_values` returns them.

    Raises
    ------
    SchemaError
        As :func:`read`.
    LogError
        No row can be used; they are listed where ``rejects`` says.
    """
    batches = read(source, roles, rejects=rejects.silent())
    found = _distinct(batch.action for batch in batches if batch.action is not None)
    if not found:
        for _ in read(source, roles, rejects=rejects):
            pass
        rejected = rejects.found(0, Keys(np.zeros(0)))
        raise LogError(
            f"{rejected.counted()} cannot be used, which is all. Is it the right column, and was a join complete?"
        )
    return found


def _distinct(found: Iterable[Ids]) -> tuple[Any, ...]:
    seen: dict[Any, None] = {}
    for values in found:
        fresh = dict.fromkeys(values.tolist()) if values.dtype.kind == "O" else np.unique(values)
        seen.update((plain(value), None) for value in fresh)
    try:
        return tuple(sorted(seen))
    except TypeError:
        return tuple(seen)
