"""Lenient reading for the doctor: the usable values of each row, and counts of the unusable ones."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hieropo._utils.arrays import Array, Codes, Mask
from hieropo.logs.arrow.arrays import decoded, ids, is_uuid, plain_texts, task_entries, without_views
from hieropo.logs.arrow.schema import NUMBER_ROLES, holds_text
from hieropo.logs.bad_rows.rejects import Reason, find_bad_values
from hieropo.logs.formats.text_types import text_numbers
from hieropo.rows.batches import Roles, TaskColumns
from hieropo.rows.coded import CodedRows
from hieropo.rows.keys import GrowingKeys


class LenientReader:
    """Reads record batches one after the other, and numbers the ids in order of appearance.

    Parameters
    ----------
    roles : Roles
    """

    roles: Roles
    tasks: GrowingKeys
    actions: GrowingKeys
    levels: tuple[GrowingKeys, ...]

    def __init__(self, roles: Roles) -> None:
        self.roles = roles
        self.tasks, self.actions = GrowingKeys(), GrowingKeys()
        self.levels = tuple(GrowingKeys() for _ in roles.levels)

    def read(self, batch: pa.RecordBatch, first_row: int) -> tuple[CodedRows, list[Reason]]:
        """Return the rows of a record batch that has all columns of the roles, and its unusable values."""
        roles, n, batch = self.roles, batch.num_rows, without_views(batch)
        faults = {(fault.column, fault.reason): fault for fault in find_bad_values(batch, roles)}
        bad: dict[str, Mask] = {}
        for fault in faults.values():
            bad[fault.column] = bad.get(fault.column, np.zeros(n, dtype=np.bool_)) | fault.bad
        good = {column: ~bad.get(column, np.zeros(n, dtype=np.bool_)) for column in roles.columns}

        def rows_of(column: str, index: GrowingKeys) -> Codes:
            return _rows_of_ids(batch.column(column), good[column], column, index)

        values = {
            column: _numbers(batch.column(column), good[column])
            for role, column in roles.items()
            if role in NUMBER_ROLES
        }
        rows = CodedRows(
            first_row=first_row,
            rows=n,
            task=_rows_of_tasks(batch, good, roles.task, self.tasks),
            action=None if roles.action is None else rows_of(roles.action, self.actions),
            numbers=values,
            levels=tuple(
                rows_of(column, index) for column, index in zip(roles.levels, self.levels, strict=True)
            ),
            time=None if roles.time is None else _times(batch.column(roles.time), good[roles.time]),
            eligible=None if roles.eligible is None else _list_lengths(batch.column(roles.eligible)),
        )
        return rows, [fault.counted(batch, first_row) for fault in faults.values()]


def _rows_of_tasks(
    batch: pa.RecordBatch, good: dict[str, Mask], task: TaskColumns, index: GrowingKeys
) -> Codes:
    if isinstance(task, str):
        return _rows_of_ids(batch.column(task), good[task], task, index)
    usable = np.ones(batch.num_rows, dtype=np.bool_)
    for column in task or ():
        usable &= good[column]
    entries, codes = task_entries(batch.filter(pa.array(usable)), task, 0)
    rows = np.full(usable.size, -1, dtype=np.int64)
    rows[usable] = index.rows(entries)[codes]
    return rows


def _rows_of_ids(column: pa.Array, good: Mask, name: str, index: GrowingKeys) -> Codes:
    if pa.types.is_dictionary(column.type) and column.dictionary.null_count:
        column = decoded(column)
    usable = column if good.all() else column.filter(pa.array(good))
    rows = np.full(good.size, -1, dtype=np.int64)
    if len(usable):
        rows[good] = _rows_of_usable(usable, name, index)
    return rows


def _rows_of_usable(column: pa.Array, name: str, keys: GrowingKeys) -> Codes:
    if not pa.types.is_dictionary(column.type) and not pa.types.is_integer(column.type):
        column = column if is_uuid(column.type) else column.dictionary_encode()
    if not pa.types.is_dictionary(column.type):
        return keys.rows(ids(column, name, 0))
    index = column.indices.to_numpy(zero_copy_only=False)
    entries = np.zeros(len(column.dictionary), dtype=np.int64)
    entries[index] = 1
    used = np.flatnonzero(entries)  # entries that no row uses are not checked
    entries[used] = keys.rows(ids(plain_texts(column.dictionary).take(pa.array(used)), name, 0))
    rows: Codes = entries[index]
    return rows


def _numbers(column: pa.Array, good: Mask) -> Array:
    """Return the values of a column of numbers as float64 (n,), NaN where one is not good."""
    column = text_numbers(column).values if holds_text(column.type) else decoded(column)
    if pa.types.is_null(column.type):
        return np.full(len(column), np.nan)
    if column.null_count:
        column = column.cast(pa.float64(), safe=False).fill_null(np.nan)
    elif not pa.types.is_floating(column.type):
        column = column.cast(pa.float64(), safe=False)
    values = column.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
    return values if good.all() else np.where(good, values, np.nan)


def _times(column: pa.Array, good: Mask) -> Array:
    """Return times (n,) as numbers in the unit of the column, such as days or microseconds; NaN where missing."""
    column = decoded(column)
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
    return _numbers(column, good)


def _list_lengths(column: pa.Array) -> Array:
    """Return the number of entries of each list, (n,); 0 for a missing one."""
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    return np.asarray(lengths.to_numpy(zero_copy_only=False), dtype=np.float64)


def time_text(value: float, kind: pa.DataType) -> str:
    """Write a time of :class:`CodedRows` that came from a column of this type."""
    if not pa.types.is_temporal(kind):
        return f"{value:.12g}"
    unit: Any = ("D" if kind.bit_width == 32 else "ms") if pa.types.is_date(kind) else kind.unit
    instant: Any = np.datetime64(int(np.floor(value)), unit)
    return str(instant.astype("datetime64[D]" if unit == "D" else "datetime64[m]")).replace("T", " ")
