"""Arrow IPC: files (Feather is such a file) and streams, read in place."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from hieropo.errors import LogError
from hieropo.logs.formats.files import UNREADABLE, FileRows, cast_batch, merged_schema, unreadable

_STREAM_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # the last bytes of a stream


@dataclass(frozen=True)
class _Ipc:
    path: Path
    schema: pa.Schema
    n_rows: int
    is_file: bool

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the record batches with these columns only, checked."""
        try:
            with pa.memory_map(str(self.path)) as mapped:
                for batch in _batches(mapped, _options(self.schema, columns), is_file=self.is_file):
                    batch.validate(full=True)  # offsets of a damaged file may point outside of it
                    yield batch
        except UNREADABLE as error:
            raise unreadable(self.path, "Arrow IPC", error) from error


@dataclass(frozen=True)
class _FittedBatches:
    file: _Ipc
    schema: pa.Schema

    def __call__(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        target = pa.schema([self.schema.field(column) for column in columns])
        return (cast_batch(batch, target, self.file.path) for batch in self.file.batches(columns))


def open_ipc(paths: Sequence[Path]) -> tuple[list[FileRows], pa.Schema]:
    """Open Arrow IPC files or streams of one log.

    Raises
    ------
    LogError
        A file is empty, torn or not of this format.
    SchemaError
        The types of the files do not fit together.
    """
    files = [_opened(path) for path in paths]
    schema = merged_schema([(file.path, file.schema) for file in files])
    return [
        FileRows(file.path, file.schema.names, file.n_rows, _FittedBatches(file, schema)) for file in files
    ], schema


def _opened(path: Path) -> _Ipc:
    try:
        with path.open("rb") as stream:
            head = stream.read(6)
            stream.seek(0, 2)
            stream.seek(-min(8, stream.tell()), 2)
            tail = stream.read()
        if head[:4] == b"FEA1":
            raise LogError(
                f"{str(path)!r} is a file of Feather version 1, which cannot be read. Write it again as Feather "
                "version 2 (pyarrow.feather.write_feather) or as Parquet, where it was made."
            )
        is_file = head == b"ARROW1"
        if not is_file and tail != _STREAM_END:
            raise unreadable(path, "Arrow IPC", ValueError("the end-of-stream marker is missing"))
        with pa.memory_map(str(path)) as mapped:
            schema = (pa.ipc.open_file(mapped) if is_file else pa.ipc.open_stream(mapped)).schema
            options = _options(schema, schema.names[:1])
            rows = sum(batch.num_rows for batch in _batches(mapped, options, is_file=is_file))
    except PermissionError:
        raise
    except UNREADABLE as error:
        raise unreadable(path, "Arrow IPC", error) from error
    return _Ipc(path, schema, rows, is_file)


def _options(schema: pa.Schema, columns: Sequence[str] | None) -> Any:
    fields = None if columns is None else [schema.get_field_index(column) for column in columns]
    return pa.ipc.IpcReadOptions(included_fields=fields)


def _batches(mapped: Any, options: Any, *, is_file: bool) -> Iterator[pa.RecordBatch]:
    mapped.seek(0)
    if not is_file:
        yield from pa.ipc.open_stream(mapped, options=options)
        return
    reader = pa.ipc.open_file(mapped, options=options)
    for number in range(reader.num_record_batches):
        yield reader.get_batch(number)
