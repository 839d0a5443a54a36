"""A 64-bit hash of whole rows, by which equal rows are found."""

from typing import Any

import numpy as np
import pyarrow as pa

from hieropo._utils.arrays import Hashes
from hieropo.logs.arrow.arrays import as_numpy, decoded, is_uuid
from hieropo.logs.arrow.schema import is_text

_ODD = np.uint64(0x9E3779B97F4A7C15)
_ABSENT = np.uint64(0xD6E8FEB86659FD93)


def is_hashable(kind: pa.DataType) -> bool:
    """Whether values of this type enter a hash: everything but lists and structs."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return is_uuid(kind) or not (pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType))


def row_hashes(found: pa.RecordBatch, columns: list[str]) -> Hashes:
    """Hash the rows of these columns, (n,); equal in one process where all values are equal, and hardly ever else."""
    total = np.zeros(found.num_rows, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for name in columns:
            total = (total + _ODD) * _ODD + _of_column(found.column(name))
            total ^= total >> np.uint64(29)
    return _mixed(total)


def _mixed(x: Hashes) -> Hashes:
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def _of_column(column: pa.Array) -> Hashes:
    if pa.types.is_null(column.type):
        return np.full(len(column), _ABSENT)
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
    absent = as_numpy(column.is_null()) if column.null_count else None
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
    elif pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    if absent is not None:
        column = column.fill_null(0)
    values = as_numpy(column)
    if values.dtype.kind == "f":
        values = (values.astype(np.float64) + 0.0).view(np.int64)  # -0.0 is 0.0
    bits = values.astype(np.uint64 if values.dtype == np.uint64 else np.int64).view(np.uint64)
    return bits if absent is None else np.where(absent, _ABSENT, bits)


def _of_entries(column: pa.Array) -> Hashes:
    if len(column.dictionary) > 4 * len(column):  # a small part of a long dictionary
        column = decoded(column).dictionary_encode()
    distinct = column.dictionary
    if is_text(distinct.type):
        distinct = distinct.cast(pa.large_string()).cast(pa.large_binary())  # its bytes may not be UTF-8
    entries: list[Any] = distinct.to_pylist()
    known = np.fromiter((hash(entry) for entry in entries), np.int64, len(entries)).view(np.uint64)
    known = np.append(_mixed(known), _ABSENT)
    if column.dictionary.null_count:
        known[:-1][as_numpy(column.dictionary.is_null())] = _ABSENT
    index = column.indices.fill_null(len(entries)) if column.indices.null_count else column.indices
    if column.indices.null_count:
        index = column.indices.cast(pa.int64()).fill_null(len(entries))
    at = as_numpy(index).astype(np.int64)
    rows: Hashes = known[at]
    return rows
