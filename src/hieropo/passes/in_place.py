"""Rows of a record batch that compiled loops read in place, without a copy."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds
from numpy.typing import NDArray

from hieropo.logs.arrow.arrays import ids, is_utf8, plain_texts, task_entries
from hieropo.logs.arrow.schema import is_text
from hieropo.moments.column_pass import Column
from hieropo.rows.batches import Roles, TaskColumns
from hieropo.rows.ids import Ids
from hieropo.rows.texts import Text

_KINDS = {pa.float32(): "f4", pa.float64(): "f8", pa.int32(): "i4", pa.int64(): "i8"}
_EXACT = {  # rare types of numbers, and the types that hold all of their values
    pa.float16(): pa.float32(), pa.int8(): pa.float32(), pa.int16(): pa.float32(), pa.uint8(): pa.float32(),
    pa.uint16(): pa.float32(), pa.uint32(): pa.float64(), pa.uint64(): pa.int64(),
}  # fmt: skip


class Encoded(NamedTuple):
    """Ids of n rows: the entries of a dictionary, and the entry of each row; or one id a row, and ``which`` is None."""

    ids: Text | Ids
    which: NDArray[np.int32] | None


@dataclass(frozen=True, slots=True, eq=False)
class InPlace:
    """Rows in memory whose types are known to be good; only their values are not checked yet.

    Parameters
    ----------
    n : int
        Rows.
    task : Encoded
    action : Encoded or None
    columns : tuple of Column
        The reward, the contexts, the weight where there is one, and columns that are only checked.
    weighted : bool
    owners : tuple of pa.Array
        The arrays that own the memory.
    """

    n: int
    task: Encoded
    action: Encoded | None
    columns: tuple[Column, ...]
    weighted: bool
    owners: tuple[pa.Array, ...]


def in_place(batch: pa.RecordBatch, roles: Roles) -> InPlace | None:
    """Return the rows in place; None where they have to be copied to a batch.

    They are copied where a column has nulls or a rare type, and where groups, metadata, lists of actions, precisions or
    sampling weights are read; and where ids of clusters are floats, of which some may be none.
    """
    if roles.levels or roles.metadata or not batch.num_rows:
        return None
    if any(column is not None for column in (roles.eligible, roles.precision, roles.sampling_weight)):
        return None
    floats = roles.cluster is not None and kinds.is_floating(batch.column(roles.cluster).type)
    if floats or any(batch.column(column).null_count for column in roles.columns):
        return None
    task = _task(batch, roles.task)
    action = None if roles.action is None else _encoded(batch.column(roles.action), roles.action)
    if task is None or (action is None and roles.action is not None):
        return None
    numbers = [(role, _numbers(batch.column(column))) for role, column in _checked(batch, roles)]
    columns = tuple(
        _column(array, role) for role, array in numbers if array is not None and _is_aligned(array)
    )
    if len(columns) < len(numbers):
        return None
    owners = tuple(array for _, array in numbers)
    return InPlace(batch.num_rows, task, action, columns, roles.weight is not None, owners)


def _task(batch: pa.RecordBatch, task: TaskColumns) -> Encoded | None:
    if isinstance(task, str):
        return _encoded(batch.column(task), task)
    return Encoded(*task_entries(batch, task, 0))


def _checked(batch: pa.RecordBatch, roles: Roles) -> Iterator[tuple[str, str]]:
    """Yield role and column of all numbers, in the order of `InPlace.columns`."""
    yield "reward", roles.reward
    yield from (("context", column) for column in roles.context)
    for role, column in (("weight", roles.weight), ("pscore", roles.pscore), ("time", roles.time)):
        if column is not None and not kinds.is_temporal(batch.column(column).type):
            yield role, column


def _numbers(column: pa.Array) -> pa.Array | None:
    if column.type in _KINDS:
        return column
    if kinds.is_boolean(column.type):
        column = column.cast(pa.uint8())
    if column.type not in _EXACT:
        return None
    try:
        return column.cast(_EXACT[column.type])
    except pa.ArrowInvalid:  # a number that int64 does not hold
        return None


def _address(array: pa.Array) -> int:
    address: int = array.buffers()[1].address + array.offset * (array.type.bit_width // 8)
    return address


def _is_aligned(array: pa.Array) -> bool:
    return bool(_address(array) % (array.type.bit_width // 8) == 0)


def _column(array: pa.Array, role: str) -> Column:
    return Column.of(_address(array), _KINDS[array.type], role)


def _encoded(column: pa.Array, name: str) -> Encoded | None:
    kind = column.type
    if is_text(kind):
        column = column.dictionary_encode()
    if kinds.is_dictionary(column.type):
        return _from_dictionary(column, name)
    if kinds.is_integer(kind) or kinds.is_date(kind) or (kinds.is_timestamp(kind) and kind.tz is None):
        return Encoded(ids(column, name, 0), None)
    return None


def encoded_texts(column: pa.Array) -> tuple[Text, NDArray[np.int32]] | None:
    """Return the distinct texts of a column, and the text of each row (n,); None where it holds other ids or nulls."""
    if column.null_count or not (is_text(column.type) or kinds.is_dictionary(column.type)):
        return None
    encoded = _encoded(plain_texts(column), "")
    if encoded is None or encoded.which is None or not isinstance(encoded.ids, Text):
        return None
    return encoded.ids, encoded.which


def _from_dictionary(column: pa.DictionaryArray, name: str) -> Encoded | None:
    entries = plain_texts(column.dictionary)
    if entries.null_count or not (is_text(entries.type) or kinds.is_integer(entries.type)):
        return None
    which = column.indices.cast(pa.int32()).to_numpy()
    if not is_text(entries.type):
        return Encoded(ids(entries, name, 0), which)
    text = _text(entries)
    return Encoded(text, which) if text.is_ascii_in_order or is_utf8(entries) else None


def _text(entries: pa.Array) -> Text:
    if not kinds.is_large_string(entries.type):
        entries = entries.cast(pa.large_string())
    _, ends, data = entries.buffers()
    offsets = np.frombuffer(ends, dtype=np.int64)[entries.offset : entries.offset + len(entries) + 1]
    return Text(np.zeros(0, dtype=np.uint8) if data is None else np.frombuffer(data, dtype=np.uint8), offsets)
