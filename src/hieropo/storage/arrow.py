"""Arrow files of one record batch, with the position of each buffer in the file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hieropo.storage.columns import Buffers, encode_ids
from hieropo.storage.mapped import sha256

_ID_TYPES = {
    "str": pa.large_string(),
    "bytes": pa.large_binary(),
    "json": pa.large_string(),
    "uuid": pa.binary(16),
    "date": pa.date32(),
    "int64": pa.int64(),
    "uint64": pa.uint64(),
}


@dataclass(frozen=True)
class Column:
    """One column: its Arrow array, and its entries in the document besides the positions of its buffers."""

    array: Any
    note: dict[str, Any]


def ids(values: NDArray[Any]) -> Column:
    """Return a column of ids (m,)."""
    kind, buffers = encode_ids(values)
    return Column(_assemble(id_type(kind), len(values), buffers), {"kind": kind})


def id_type(kind: str) -> Any:
    """Return the Arrow type of ids of a kind."""
    unit = kind.removeprefix("datetime64[").removesuffix("]")
    if unit in ("s", "ms", "us", "ns"):
        return pa.timestamp(unit)
    return _ID_TYPES.get(kind, pa.int64())  # units that Arrow does not have stay 64-bit counts


def numbers(values: NDArray[Any]) -> Column:
    """Return a column of numbers (m,), or of one row of numbers for each task (m, k)."""
    flat = np.ascontiguousarray(values)
    if flat.ndim == 1:
        return Column(_assemble(pa.from_numpy_dtype(flat.dtype), flat.size, (flat,)), {})
    rows, width = flat.shape
    child = _assemble(pa.from_numpy_dtype(flat.dtype), flat.size, (flat.reshape(-1),))
    return Column(pa.Array.from_buffers(pa.list_(child.type, width), rows, [None], children=[child]), {})


def _assemble(kind: Any, length: int, buffers: Buffers) -> Any:
    return pa.Array.from_buffers(kind, length, [None, *(pa.py_buffer(buffer) for buffer in buffers)])


def write_table(path: Path, columns: Mapping[str, Column]) -> dict[str, Any]:
    """Write one uncompressed record batch; return the file's entry for the document.

    The entry names the length, the SHA-256, the number of rows and, for each column, offset and length of its
    buffers, so that a reader needs neither pyarrow nor a parse.
    """
    batch = pa.record_batch([column.array for column in columns.values()], names=list(columns))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pa.memory_map(str(path)) as source:
        file = source.read_buffer()
        stored = pa.ipc.open_file(pa.BufferReader(file)).get_batch(0)
        entries = {
            name: {**column.note, "buffers": _buffer_offsets(stored.column(name), file.address)}
            for name, column in columns.items()
        }
        return {"bytes": file.size, "rows": batch.num_rows, "sha256": sha256(file), "columns": entries}


def _buffer_offsets(array: Any, start: int) -> list[list[int]]:
    """Return offset and length of each buffer; validity bitmaps are absent, because no value is null."""
    buffers = [buffer for buffer in array.buffers() if buffer is not None]
    return [[buffer.address - start if buffer.size else 0, buffer.size] for buffer in buffers]
