"""Columns that folders name: ``day=2026-01-31/country=NL/part.parquet``."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from hieropo.logs.arrow.filters import Filter
from hieropo.logs.arrow.log_source import Part, Parted
from hieropo.logs.formats.files import refuse_lacking
from hieropo.logs.formats.text_types import TextType, Types, converted

_NULL = "__HIVE_DEFAULT_PARTITION__"  # what writers of such folders call a missing value
_ROWS = 2**20


def named_columns(
    files: Sequence[Path], root: Path, stated: Types, known: Sequence[str]
) -> list[dict[str, pa.Scalar]]:
    """Read the columns that the folders of each file name below ``root``, less those that the files have themselves.

    A column is of whole numbers, dates or times where every folder's value is, as in :mod:`text_types`, else text.
    """
    said = [_said(path.relative_to(root).parts[:-1]) for path in files]
    names = [name for name in dict.fromkeys(name for each in said for name in each) if name not in known]
    columns: list[dict[str, pa.Scalar]] = [{} for _ in files]
    for name in names:
        texts = pa.array([each.get(name) for each in said], pa.string())
        kind = stated.get(name)
        if kind is None:
            found = TextType()
            found.add(texts, 0)
            kind = found.kind
        values = converted(texts, kind, 0, partial(_place, name, files))
        for each, column, value in zip(said, columns, values, strict=True):
            if name in each:
                column[name] = value
    return columns


def _place(name: str, files: Sequence[Path], row: int) -> str:
    return f"Column {name!r}, {str(files[row])!r}"


def _said(folders: Sequence[str]) -> dict[str, str | None]:
    pairs = (folder.partition("=") for folder in folders if "=" in folder)
    return {unquote(name): None if value == _NULL else unquote(value) for name, _, value in pairs}


class HiveSource(Parted):
    """Files, with the columns that their folders name."""

    def __init__(self, source: Any, files: Sequence[Path], columns: Sequence[dict[str, pa.Scalar]]) -> None:
        self.name: str = source.name
        self.n_rows: int = source.n_rows
        kinds = {name: value.type for each in columns for name, value in each.items()}
        self.schema = pa.schema([*source.schema, *(pa.field(name, kind) for name, kind in kinds.items())])
        self._source, self.files, self._columns = source, files, columns
        self._names = list(kinds)

    def parts(self, columns: Sequence[str]) -> list[Part]:
        """Return the parts of the files."""
        named = [column for column in columns if column in self._names]
        for path, each in zip(self.files, self._columns, strict=True):
            refuse_lacking(path, list(each), named, self.name)
        read = [column for column in columns if column not in self._names]
        parts = self._source.parts(read or self._source.schema.names[:1])
        return [
            Part.of(part, partial(_rows, part, tuple(columns), self._columns[part.file], read=bool(read)))
            for part in parts
        ]

    def pruned(self, by: Filter) -> "HiveSource | None":
        """Leave out what cannot pass; None where rows of text files would have to be read to count them."""
        source = self._source
        if hasattr(source, "pruned"):
            source = source.pruned(by, self._columns)
        elif set(by.columns) - set(self._names):
            return None
        return HiveSource(source, self.files, self._columns)


def _rows(
    part: Part, columns: Sequence[str], values: dict[str, pa.Scalar], *, read: bool
) -> Iterator[pa.RecordBatch]:
    """Rows of a part, with the columns that its folders name; ``read`` says whether there are others."""
    if read:
        for batch in part.batches():
            yield _with(batch, batch.num_rows, columns, values)
        return
    for start in range(0, part.n_rows, _ROWS):
        yield _with(None, min(_ROWS, part.n_rows - start), columns, values)


def _with(
    batch: pa.RecordBatch | None, rows: int, columns: Sequence[str], values: dict[str, pa.Scalar]
) -> pa.RecordBatch:
    arrays = [
        _constant(values[column], rows) if batch is None or column in values else batch.column(column)
        for column in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _constant(value: pa.Scalar, rows: int) -> pa.Array:
    """One value for all rows; text as a dictionary with one entry."""
    if not value.is_valid or not pa.types.is_string(value.type):
        return pa.repeat(value, rows)
    return pa.DictionaryArray.from_arrays(
        pa.repeat(pa.scalar(0, pa.int32()), rows), pa.array([value.as_py()])
    )
