"""64-bit hashes of whole rows, and of the values of a column, to find equal ones."""

from typing import Any

import numpy as np
import pyarrow as pa

from hieropo._utils.arrays import Array, Hashes
from hieropo._utils.hashes import GOLDEN, mixed
from hieropo.logs.arrow.arrays import as_numpy, decoded, is_uuid
from hieropo.logs.arrow.schema import is_text

_NULL_HASH = np.uint64(0xD6E8FEB86659FD93)


def is_hashable(kind: pa.DataType) -> bool:
    """Return whether values of this type enter a hash: all types but lists and structs."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return is_uuid(kind) or not (pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType))


def row_hashes(batch: pa.RecordBatch, columns: list[str]) -> Hashes:
    """Return a hash of each row of these columns, (n,); it holds for one process, and equal rows have equal hashes."""
    total = np.zeros(batch.num_rows, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for name in columns:
            total = (total + GOLDEN) * GOLDEN + _of_column(batch.column(name))
            total ^= total >> np.uint64(29)
    return mixed(total)


def hashes_of_ids(column: pa.Array) -> Hashes:
    """Return a hash of each value (n,), and 0 for one that is missing or NaN."""
    hashes = np.maximum(mixed(_of_column(column)), 1)
    if column.null_count or pa.types.is_floating(column.type):
        hashes[as_numpy(column.is_null(nan_is_null=True))] = 0
    return hashes


def ordered_numbers(column: pa.Array) -> Array | None:
    """Return numbers, dates and times as float64 (n,), 0 where one is missing; None for other types."""
    kind = column.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        column = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return None
    numbers: Array = as_numpy(column.fill_null(0)).astype(np.float64)
    return np.nan_to_num(numbers)


def _of_column(column: pa.Array) -> Hashes:
    if pa.types.is_null(column.type):
        return np.full(len(column), _NULL_HASH)
    if is_uuid(column.type):
        column = column.storage
    if not pa.types.is_dictionary(column.type) and not _has_bits(column.type):
        column = column.dictionary_encode()
    if pa.types.is_dictionary(column.type):
        return _of_entries(column)
    return _of_bits(column)


def _has_bits(kind: pa.DataType) -> bool:
    fixed = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return bool(fixed or pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_time(kind))


def _of_bits(column: pa.Array) -> Hashes:
    is_null = as_numpy(column.is_null()) if column.null_count else None
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
    elif pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    if is_null is not None:
        column = column.fill_null(0)
    values = as_numpy(column)
    if values.dtype.kind == "f":
        values = (values.astype(np.float64) + 0.0).view(np.int64)  # -0.0 is 0.0
    bits = values.astype(np.uint64 if values.dtype == np.uint64 else np.int64).view(np.uint64)
    return bits if is_null is None else np.where(is_null, _NULL_HASH, bits)


def _of_entries(column: pa.Array) -> Hashes:
    if len(column.dictionary) > 4 * len(column):  # a small part of a long dictionary
        column = decoded(column).dictionary_encode()
    distinct = column.dictionary
    if is_text(distinct.type):
        distinct = distinct.cast(pa.large_string()).cast(pa.large_binary())  # its bytes may not be UTF-8
    entries: list[Any] = distinct.to_pylist()
    entry_hashes = np.fromiter(map(hash, entries), np.int64, len(entries)).view(np.uint64)
    entry_hashes = np.append(mixed(entry_hashes), _NULL_HASH)
    if column.dictionary.null_count:
        entry_hashes[:-1][as_numpy(column.dictionary.is_null())] = _NULL_HASH
    index = column.indices.fill_null(len(entries)) if column.indices.null_count else column.indices
    if column.indices.null_count:
        index = column.indices.cast(pa.int64()).fill_null(len(entries))
    positions = as_numpy(index).astype(np.int64)
    rows: Hashes = entry_hashes[positions]
    return rows
