"""Arrow files of one record batch whose columns are written piece by piece, with no whole column in memory.

The layout of the file is that of a batch of buffers that are only reserved, never touched: where such a buffer would be
written, its place in the file is noted and left open. The pieces are then written into these places.
"""

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hieropo.errors import ArtifactError
from hieropo.storage.arrow import id_type
from hieropo.storage.mapped import digest_of

_ALIGNMENT = 64


class ColumnLayout(NamedTuple):
    """The type of a column and the bytes of its buffers.

    Parameters
    ----------
    type : pyarrow.DataType
    sizes : tuple of int
        Bytes of the buffers: of numbers, or of offsets and text.
    note : dict
        Entries of the document besides the positions of the buffers.
    """

    type: Any
    sizes: tuple[int, ...]
    note: dict[str, Any]


def numbers_layout(rows: int, dtype: str, width: int | None = None) -> ColumnLayout:
    """Return the layout of a column of numbers, or of ``width`` numbers for each row."""
    kind = pa.from_numpy_dtype(np.dtype(dtype))
    size = rows * (1 if width is None else width) * np.dtype(dtype).itemsize
    return ColumnLayout(kind if width is None else pa.list_(kind, width), (size,), {})


def ids_layout(kind: str, sizes: tuple[int, ...]) -> ColumnLayout:
    """Return the layout of a column of ids of a kind, whose buffers have ``sizes`` bytes."""
    return ColumnLayout(id_type(kind), sizes, {"kind": kind})


class _Skeleton:
    """A file for pyarrow in which reserved buffers are skipped, and their places noted."""

    def __init__(self, file: BinaryIO, reserved: Any) -> None:
        self._file, self._start, self._end = file, reserved.address, reserved.address + reserved.size
        self.places: dict[int, int] = {}
        self.closed = False

    def write(self, data: Any) -> int:
        """Write bytes, or skip a reserved buffer."""
        if isinstance(data, pa.Buffer) and data.size and self._start <= data.address < self._end:
            self.places[data.address - self._start] = self._file.tell()
            self._file.seek(data.size, 1)
            return int(data.size)
        return self._file.write(data)

    def tell(self) -> int:
        """Return the position in the file."""
        return self._file.tell()

    def flush(self) -> None:
        """Flush the file."""
        self._file.flush()

    def close(self) -> None:
        """Stop; the file stays open."""
        self.closed = True


@dataclass(frozen=True)
class StreamedTable:
    """A table on disk whose buffers are filled piece by piece.

    Parameters
    ----------
    path : Path
    rows : int
    layouts : mapping of name to ColumnLayout
    places : mapping of name to list of int
        Position of each buffer in the file.
    """

    path: Path
    rows: int
    layouts: Mapping[str, ColumnLayout]
    places: Mapping[str, list[int]]

    @classmethod
    def create(cls, path: Path, rows: int, layouts: Mapping[str, ColumnLayout]) -> "StreamedTable":
        """Write everything of the file but the buffers.

        Raises
        ------
        ArtifactError
            This release of pyarrow does not leave the buffers out.
        """
        starts: dict[str, list[int]] = {}
        end = 0
        for name, layout in layouts.items():
            starts[name] = []
            for size in layout.sizes:
                starts[name].append(end)
                end += -(-max(size, 1) // _ALIGNMENT) * _ALIGNMENT
        flags = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)}
        region = mmap.mmap(-1, end, **(flags if hasattr(mmap, "MAP_ANONYMOUS") else {}))
        for name, layout in layouts.items():
            if len(layout.sizes) == 2:  # pyarrow reads the last offset of texts
                last = starts[name][0] + 8 * rows
                region[last : last + 8] = layout.sizes[1].to_bytes(8, "little")
        reserved = pa.py_buffer(region)
        arrays = []
        for name, layout in layouts.items():
            spans = zip(starts[name], layout.sizes, strict=True)
            arrays.append(_reserved(layout, rows, [reserved.slice(*span) for span in spans]))
        batch = pa.record_batch(arrays, names=list(layouts))
        with path.open("wb") as file:
            skeleton = _Skeleton(file, reserved)
            with pa.ipc.new_file(pa.PythonFile(skeleton, mode="w"), batch.schema) as writer:
                writer.write_batch(batch)
        places = {name: [skeleton.places.get(start, 0) for start in starts[name]] for name in layouts}
        for name, layout in layouts.items():
            if any(size and not place for size, place in zip(layout.sizes, places[name], strict=True)):
                raise ArtifactError(
                    f"pyarrow {pa.__version__} wrote the column {name!r} of {path} in another way than this release of "
                    "hieropo knows, so that it cannot be filled piece by piece. Use the pyarrow of constraints.txt."
                )
        return cls(path, rows, layouts, places)

    def put(self, file: BinaryIO, column: str, start: int, values: NDArray[Any], buffer: int = 0) -> None:
        """Write values into a buffer of a column, from a byte on; ``file`` is open for reading and writing."""
        file.seek(self.places[column][buffer] + start)
        file.write(np.ascontiguousarray(values).data.cast("B") if values.size else b"")

    def entry(self) -> dict[str, Any]:
        """Return the entry of the file for the document, as :func:`hieropo.storage.arrow.write_table` does."""
        columns = {
            name: {
                **layout.note,
                "buffers": [list(pair) for pair in zip(self.places[name], layout.sizes, strict=True)],
            }
            for name, layout in self.layouts.items()
        }
        with self.path.open("rb") as file:
            checksum = digest_of(file)
        return {"bytes": self.path.stat().st_size, "rows": self.rows, "sha256": checksum, "columns": columns}


def _reserved(layout: ColumnLayout, rows: int, buffers: list[Any]) -> Any:
    """Return an array of reserved buffers."""
    if pa.types.is_fixed_size_list(layout.type):
        width = layout.type.list_size
        child = pa.Array.from_buffers(layout.type.value_type, rows * width, [None, *buffers])
        return pa.Array.from_buffers(layout.type, rows, [None], children=[child])
    return pa.Array.from_buffers(layout.type, rows, [None, *buffers])
