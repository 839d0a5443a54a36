"""Columns from the names of folders: ``day=2026-01-31/country=NL/part.parquet``."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from hieropo.logs.arrow.filters import Filter
from hieropo.logs.arrow.log_source import Part, PartedSource, lines_of, place_of
from hieropo.logs.formats.files import require_columns
from hieropo.logs.formats.text_types import TextType, Types, converted

_NULL = "__HIVE_DEFAULT_PARTITION__"  # stands for a missing value
_ROWS = 2**20


def folder_columns(
    files: Sequence[Path], root: Path, stated: Types, own_columns: Sequence[str]
) -> list[dict[str, pa.Scalar]]:
    """Return the columns in the names of each file's folders below ``root``, without columns of the files themselves.

    A column holds whole numbers, dates or times where the values of all folders do, as in :mod:`text_types`, else text.
    """
    values_by_file = [_folder_values(path.relative_to(root).parts[:-1]) for path in files]
    names = [
        name
        for name in dict.fromkeys(name for folder_values in values_by_file for name in folder_values)
        if name not in own_columns
    ]
    columns: list[dict[str, pa.Scalar]] = [{} for _ in files]
    for name in names:
        texts = pa.array([folder_values.get(name) for folder_values in values_by_file], pa.string())
        kind = stated.get(name)
        if kind is None:
            inferred = TextType()
            inferred.add(texts, 0)
            kind = inferred.kind
        values = converted(texts, kind, 0, partial(_place, name, files))
        for folder_values, column, value in zip(values_by_file, columns, values, strict=True):
            if name in folder_values:
                column[name] = value
    return columns


def _place(name: str, files: Sequence[Path], row: int) -> str:
    return f"Column {name!r}, {str(files[row])!r}"


def _folder_values(folders: Sequence[str]) -> dict[str, str | None]:
    pairs = (folder.partition("=") for folder in folders if "=" in folder)
    return {unquote(name): None if value == _NULL else unquote(value) for name, _, value in pairs}


class HiveSource(PartedSource):
    """Files, with the columns in the names of their folders."""

    schema: Any
    files: Sequence[Path]

    def __init__(self, source: Any, files: Sequence[Path], columns: Sequence[dict[str, pa.Scalar]]) -> None:
        self.name: str = source.name
        self.n_rows: int = source.n_rows
        kinds = {name: value.type for file_columns in columns for name, value in file_columns.items()}
        self.schema = pa.schema([*source.schema, *(pa.field(name, kind) for name, kind in kinds.items())])
        self._source, self.files, self._columns = source, files, columns
        self._names = list(kinds)

    def parts(self, columns: Sequence[str]) -> list[Part]:
        """Return the parts of the files."""
        from_folders = [column for column in columns if column in self._names]
        for path, file_columns in zip(self.files, self._columns, strict=True):
            require_columns(path, list(file_columns), from_folders, self.name)
        from_files = [column for column in columns if column not in self._names]
        parts = self._source.parts(from_files or self._source.schema.names[:1])
        return [
            Part.of(
                part, partial(_rows, part, tuple(columns), self._columns[part.file], read=bool(from_files))
            )
            for part in parts
        ]

    def place_of(self, row: int) -> str:
        """Return the place of a row in its file, as :func:`place_of`."""
        return place_of(self._source, row)

    def lines_of(self, rows: Sequence[int]) -> list[int] | None:
        """Return the lines of rows of the whole log, as :func:`lines_of`."""
        return lines_of(self._source, rows)

    def pruned(self, row_filter: Filter) -> "HiveSource | None":
        """Return the source without parts in which no row can pass; None where text files would have to be read."""
        source = self._source
        if hasattr(source, "pruned"):
            source = source.pruned(row_filter, self._columns)
        elif set(row_filter.columns) - set(self._names):
            return None
        return HiveSource(source, self.files, self._columns)


def _rows(
    part: Part, columns: Sequence[str], values: dict[str, pa.Scalar], *, read: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part with the columns of its folders; ``read`` is False where no other columns are needed."""
    if read:
        for batch in part.batches():
            yield _add_columns(batch, batch.num_rows, columns, values)
        return
    for start in range(0, part.n_rows, _ROWS):
        yield _add_columns(None, min(_ROWS, part.n_rows - start), columns, values)


def _add_columns(
    batch: pa.RecordBatch | None, rows: int, columns: Sequence[str], values: dict[str, pa.Scalar]
) -> pa.RecordBatch:
    arrays = [
        _constant(values[column], rows) if batch is None or column in values else batch.column(column)
        for column in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _constant(value: pa.Scalar, rows: int) -> pa.Array:
    """Return one value for all rows; text as a dictionary with one entry."""
    if not value.is_valid or not pa.types.is_string(value.type):
        return pa.repeat(value, rows)
    return pa.DictionaryArray.from_arrays(
        pa.repeat(pa.scalar(0, pa.int32()), rows), pa.array([value.as_py()])
    )
