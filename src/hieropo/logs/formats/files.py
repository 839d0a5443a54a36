"""Logs in files: helpers that all formats share, and a source of files read one after the other."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from hieropo._utils.text import counted
from hieropo.errors import LogError, SchemaError
from hieropo.logs.arrow.log_source import Part, PartedSource

UNREADABLE = (OSError, pa.ArrowException, UnicodeDecodeError)  # exceptions of Arrow where a file is damaged
Read = Callable[[Sequence[str]], Iterator[pa.RecordBatch]]
Lines = Callable[[Sequence[int]], list[int]]


@dataclass(frozen=True)
class FileRows:
    """One file of a log: its columns, its number of rows, and a function that reads some columns.

    ``lines`` returns the numbers of the lines, from 1, of rows of a file of text, from 0 and in ascending order.
    """

    path: Path
    names: Sequence[str]
    n_rows: int
    read: Read
    lines: Lines | None = None


class FilesSource(PartedSource):
    """Files that are read one after the other, their columns cast to the types of the whole log."""

    n_rows: int
    files: list[Path]

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
            require_columns(file.path, file.names, columns, self.name)
            path = str(file.path)
            parts.append(Part(repr(path), number, path, row, file.n_rows, partial(_rows, file, columns)))
            row += file.n_rows
        return parts

    def place_of(self, row: int) -> str:
        """Return the line of a row in its file of text, else its number in its file."""
        return place_in_files(row, [(file.path, file.n_rows, file.lines) for file in self._files])

    def lines_of(self, rows: Sequence[int]) -> list[int] | None:
        """Return the lines of rows of the whole log, in ascending order; None where files are not of text."""
        lines: list[int] = []
        first, position = 0, 0
        for file in self._files:
            if file.lines is None:
                return None
            end = bisect_left(rows, first + file.n_rows)
            if end > position:
                lines += file.lines([row - first for row in rows[position:end]])
            first, position = first + file.n_rows, end
        return lines


def place_in_files(row: int, files: Sequence[tuple[Path, int, Lines | None]]) -> str:
    """Return the place of a row of the whole log, given the path, the rows and the lines of each file."""
    for path, rows, lines in files:
        if row < rows:
            if lines is not None:
                return f"line {lines([row])[0]} of {str(path)!r}"
            return f"row {row} of {str(path)!r}" if len(files) > 1 else f"row {row}"
        row -= rows
    return f"row {row}"


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
            f"{'more' if rows > file.n_rows else f'{rows:,}'}. Is it still being written? Read it when it is complete."
        )


def require_columns(path: Path, names: Sequence[str], columns: Sequence[str], source: str) -> None:
    """Refuse a file that lacks a column of other files of the log."""
    for column in columns:
        if column not in names:
            raise SchemaError(
                f"Column {column!r} is missing from {str(path)!r}, although other files of the {source} have it. Was "
                "it added or renamed later? Write that file again with the column, or read the files separately."
            )


def merged_schema(files: Sequence[tuple[Path, pa.Schema]]) -> pa.Schema:
    """Return the common schema of files, with the widest type of each column.

    Raises
    ------
    SchemaError
        The types of a column in two files do not fit together.
    """
    (first, common), *others = files
    for path, schema in others:
        if not common.equals(schema):
            try:
                common = pa.unify_schemas(
                    [_without_dictionaries(common), _without_dictionaries(schema)],
                    promote_options="permissive",
                )
            except (pa.ArrowException, TypeError) as error:
                raise SchemaError(
                    f"{str(path)!r} does not fit the files before it (the first is {str(first)!r}): "
                    f"{str(error).strip()}. Give the column one type in all files."
                ) from error
    return common


def _without_dictionaries(schema: pa.Schema) -> pa.Schema:
    fields = [
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
        for field in schema
    ]
    return pa.schema(fields)


def cast_batch(
    batch: pa.RecordBatch, target: pa.Schema, path: Path, encoded: Sequence[str] = ()
) -> pa.RecordBatch:
    """Return a batch with the columns of ``target`` in its order and types; ``encoded`` columns keep their types.

    Raises
    ------
    SchemaError
        The common type of all files cannot hold a value.
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


def open_bytes(path: Path) -> Any:
    """Open a file for reading, decompressed if its name says that it is compressed."""
    return pa.input_stream(str(path), compression="detect")


def unreadable(path: Path, kind: str, error: Exception, rows: int | None = None) -> LogError:
    """Return the error for a file that cannot be read as its format."""
    text = f"{str(path)!r} cannot be read as {kind}"
    if isinstance(error, PermissionError):
        return LogError(
            f"{text}: permission denied. Give this user the right to read it, and every folder above it."
        )
    if path.stat().st_size == 0:
        return LogError(
            f"{text}: it is empty (0 bytes). Was it still being written? Write it again or remove it."
        )
    progress = f" after {counted(rows, 'row')}" if rows else ""
    reason = str(error).strip().rstrip(".")
    return LogError(
        f"{text}{progress}: {reason}. Was it cut off while it was written or copied, or is it another format? "
        "Write or copy it again."
    )
