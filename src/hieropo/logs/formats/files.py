"""Logs in files: what all formats share, and files that are read one after the other."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from hieropo._utils.text import counted
from hieropo.errors import LogError, SchemaError
from hieropo.logs.arrow.log_source import Part, Parted

UNREADABLE = (OSError, pa.ArrowException, UnicodeDecodeError)  # what Arrow raises where a file is not whole
Read = Callable[[Sequence[str]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class FileRows:
    """A file that is a log or a part of one: the columns that it has, its rows, and how to read some columns."""

    path: Path
    names: Sequence[str]
    n_rows: int
    read: Read


class FilesSource(Parted):
    """Files that are read one after the other; each hands out columns of the types of the whole log."""

    def __init__(self, files: Sequence[FileRows], schema: pa.Schema, name: str) -> None:
        self.name = name
        self.schema = schema
        self.n_rows = sum(file.n_rows for file in files)
        self._files = files
        self.files = [file.path for file in files]

    def parts(self, columns: Sequence[str]) -> list[Part]:
        """Return one part for each file."""
        parts, row = [], 0
        for number, file in enumerate(self._files):
            if not file.n_rows:
                continue
            refuse_lacking(file.path, file.names, columns, self.name)
            path = str(file.path)
            parts.append(Part(repr(path), number, path, row, file.n_rows, partial(_rows, file, columns)))
            row += file.n_rows
        return parts


def _rows(file: FileRows, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    rows = 0
    for batch in file.read(columns):
        rows += batch.num_rows
        if rows > file.n_rows:
            break
        yield batch
    if rows != file.n_rows:
        raise LogError(
            f"{str(file.path)!r} changed while it was read: it had {file.n_rows:,} rows, and now it has "
            f"{'more' if rows > file.n_rows else f'{rows:,}'}. Is it still being written? Read it when it is whole."
        )


def refuse_lacking(path: Path, names: Sequence[str], columns: Sequence[str], source: str) -> None:
    """Refuse a file that lacks a column which others of the same log have."""
    for column in columns:
        if column not in names:
            raise SchemaError(
                f"Column {column!r} is missing from {str(path)!r}, though other files of the {source} have it. Was it "
                "added or renamed later? Write that file anew with the column, or read the folders apart."
            )


def merged(files: Sequence[tuple[Path, pa.Schema]]) -> pa.Schema:
    """Schema of files together: the widest type of each column.

    Raises
    ------
    SchemaError
        The types of a column in two files do not fit together.
    """
    (first, together), *others = files
    for path, schema in others:
        if not together.equals(schema):
            try:
                together = pa.unify_schemas(
                    [_undictionary(together), _undictionary(schema)], promote_options="permissive"
                )
            except (pa.ArrowException, TypeError) as error:
                raise SchemaError(
                    f"{str(path)!r} does not fit the files before it (the first is {str(first)!r}): "
                    f"{str(error).strip()}. Give the column one type in all files."
                ) from error
    return together


def _undictionary(schema: pa.Schema) -> pa.Schema:
    plain = [
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
        for field in schema
    ]
    return pa.schema(plain)


def fitted(
    batch: pa.RecordBatch, target: pa.Schema, path: Path, encoded: Sequence[str] = ()
) -> pa.RecordBatch:
    """Bring columns to the order asked for, and to the types of all files together; ``encoded`` stay as they are.

    Raises
    ------
    SchemaError
        The type of all files together cannot hold a value.
    """
    columns = []
    for field in target:
        column = batch.column(field.name)
        if field.name not in encoded and column.type != field.type:
            try:
                column = column.cast(field.type)
            except pa.ArrowException as error:
                raise SchemaError(
                    f"Column {field.name!r} of {str(path)!r} is {column.type}, but {field.type} over "
                    f"all files, and a value does not fit: {error}. Give the column one type in all files."
                ) from error
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=target.names)


def opened_bytes(path: Path) -> Any:
    """Open a file for reading, through the decompressor that its name asks for."""
    return pa.input_stream(str(path), compression="detect")


def unreadable(path: Path, kind: str, error: Exception, rows: int | None = None) -> LogError:
    """Say that a file cannot be read as what it should be."""
    text = f"{str(path)!r} cannot be read as {kind}"
    if isinstance(error, PermissionError):
        return LogError(f"{text}: permission denied. Is it open to this user, and every folder above it?")
    if path.stat().st_size == 0:
        return LogError(
            f"{text}: it is empty (0 bytes). Was it still being written? Write it anew or remove it."
        )
    after = f" after {counted(rows, 'row')}" if rows else ""
    reason = str(error).strip().rstrip(".")
    return LogError(
        f"{text}{after}: {reason}. Was it cut off while it was written or copied, or is it another format? "
        "Write or copy it anew."
    )
