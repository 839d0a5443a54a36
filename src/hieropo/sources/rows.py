"""Reading a log: batches of rows, and the distinct values of a column."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hieropo.core.eligible import Eligible
from hieropo.core.ids import plain
from hieropo.core.logs import Batch, Roles
from hieropo.sources.arrays import ids, lists, numbers, times
from hieropo.sources.log_source import BATCH_ROWS, LogSource, Part, empty
from hieropo.sources.opening import open_log
from hieropo.sources.schema import check_columns


def read(source: Any, roles: Roles, *, batch_rows: int = BATCH_ROWS) -> Iterator[Batch]:
    """Read a log as validated batches, in order, with row numbers counted over the whole log.

    The roles are checked at once, the rows while they are read. Every batch has ``batch_rows`` rows, the last
    one fewer, whatever the source.

    Parameters
    ----------
    source : LogSource or anything that ``open_log`` takes
    roles : Roles

    Raises
    ------
    SchemaError
        A column is missing, there twice, or of a type that cannot play its role.
    LogError
        A row cannot be used, or there is none; names column, row number and value.
    """
    log = open_log(source)
    check_columns(log.schema, roles.items(), log.name)
    return _batches(log, roles, batch_rows)


def _batches(log: LogSource, roles: Roles, batch_rows: int) -> Iterator[Batch]:
    row = 0
    for found in log.batches(roles.columns, batch_rows):
        yield _batch(found, roles, row)
        row += found.num_rows
    if not row:
        raise empty(log.name)


def batches_of(part: Part, roles: Roles, *, batch_rows: int = BATCH_ROWS) -> Iterator[Batch]:
    """Read a part of a log as validated batches of at most ``batch_rows`` rows, none of them empty.

    Raises
    ------
    LogError
        A row cannot be used; names column, row number and value.
    """
    row = part.first_row
    for found in part.batches():
        for start in range(0, found.num_rows, batch_rows):
            piece = found.slice(start, batch_rows)
            yield _batch(piece, roles, row)
            row += piece.num_rows


def _batch(found: pa.RecordBatch, roles: Roles, row: int) -> Batch:
    def values(column: str | None) -> NDArray[np.float64] | None:
        return None if column is None else numbers(found.column(column), column, row)

    return Batch(
        task=ids(found.column(roles.task), roles.task, row),
        action=None if roles.action is None else ids(found.column(roles.action), roles.action, row),
        reward=numbers(found.column(roles.reward), roles.reward, row),
        context=context_matrix(found, roles.context, row),
        pscore=values(roles.pscore),
        weight=values(roles.weight),
        first_row=row,
        roles=roles,
        levels=tuple(ids(found.column(column), column, row) for column in roles.levels),
        metadata=context_matrix(found, roles.metadata, row) if roles.metadata else None,
        eligible=None if roles.eligible is None else _eligible(found, roles.eligible, row),
        time=None if roles.time is None else times(found.column(roles.time), roles.time, row),
    )


def _eligible(found: pa.RecordBatch, column: str, row: int) -> Eligible:
    return Eligible(*lists(found.column(column), column, row), row)


def context_matrix(found: pa.RecordBatch, columns: Sequence[str], row: int) -> NDArray[np.float64]:
    """Context columns of a record batch side by side, (n, c)."""
    matrix = np.empty((found.num_rows, len(columns)))
    for j, column in enumerate(columns):
        matrix[:, j] = numbers(found.column(column), column, row)
    return matrix


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
    seen: dict[Any, None] = {}
    row = 0
    for found in log.batches([column]):
        values = ids(found.column(column), column, row)
        row += found.num_rows
        fresh = dict.fromkeys(values.tolist()) if values.dtype.kind == "O" else np.unique(values)
        seen.update((plain(value), None) for value in fresh)
    if not row:
        raise empty(log.name)
    try:
        return tuple(sorted(seen))
    except TypeError:
        return tuple(seen)
