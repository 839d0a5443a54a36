"""Parquet files and folders of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial, reduce
from math import log2
from operator import and_
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hieropo.errors import LogError
from hieropo.logs.arrow.filters import Filter
from hieropo.logs.arrow.log_source import BATCH_ROWS, Part, regroup, source_repr
from hieropo.logs.arrow.schema import is_text
from hieropo.logs.formats.files import (
    UNREADABLE,
    cast_batch,
    merged_schema,
    place_in_files,
    require_columns,
    unreadable,
)

_PART_ROWS = (
    2**18
)  # small row groups are joined up to this number of rows, since each part reads the footer again
_BUFFER = 2**18  # bytes of each column read at once, instead of a whole row group
_BATCH_NUMBERS = (
    2**22
)  # approximate size of a batch of a part; each batch repeats the dictionaries of its row group


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    schema: pa.Schema
    groups: tuple[int, ...]
    low_cardinality: frozenset[str]
    kept: tuple[int, ...]  # row groups to read

    @property
    def n_rows(self) -> int:
        return sum(self.groups[group] for group in self.kept)


class ParquetSource:
    """One Parquet file, or several read one after the other."""

    schema: Any
    n_rows: int

    rereadable = True

    __repr__ = source_repr

    def __init__(self, files: Iterable[Path], name: str) -> None:
        self.name = name
        self._files = [_footer(path) for path in files]
        self.schema = merged_schema([(file.path, file.schema) for file in self._files])
        self.n_rows = sum(file.n_rows for file in self._files)

    def batches(self, columns: Sequence[str], batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield all rows with these columns only; the other columns are not read from disk.

        Raises
        ------
        SchemaError
            A file lacks a column that others have.
        LogError
            While reading: a file is damaged.
        """
        target = self._target(columns)
        encoded = [
            column for column in columns if all(column in file.low_cardinality for file in self._files)
        ]
        parts = (
            cast_batch(batch, target, file.path, encoded)
            for file in self._files
            for batch in _rows(file, target.names, encoded, batch_rows, _kept_groups(file))
        )
        return regroup(parts, batch_rows)

    @property
    def files(self) -> list[Path]:
        """Paths of the files, by their numbers."""
        return [file.path for file in self._files]

    def place_of(self, row: int) -> str:
        """Return the number of a row in its file; with the file where there are several."""
        return place_in_files(row, [(file.path, file.n_rows, None) for file in self._files])

    def parts(self, columns: Sequence[str]) -> list[Part]:
        """Return one part for each row group, with these columns only; small row groups of a file are joined.

        Raises
        ------
        SchemaError
            A file lacks a column that others have.
        """
        target, parts, row = self._target(columns), [], 0
        for number, file in enumerate(self._files):
            for groups in _groups_of_parts(file):
                rows = sum(file.groups[group] for group in groups)
                read = partial(_part_rows, file, groups, target)
                parts.append(Part(_part_name(file, groups), number, str(file.path), row, rows, read))
                row += rows
        return parts

    def pruned(
        self, row_filter: Filter, constants: Sequence[dict[str, pa.Scalar]] | None = None
    ) -> "ParquetSource":
        """Return the source without row groups in which no row can pass, by the statistics in the files.

        Parameters
        ----------
        by : Filter
        known : sequence of mappings, optional
            For each file, columns from its folders, with one value in the file.
        """
        source = copy(self)
        constants_of_file = constants or [{}] * len(self._files)
        source._files = [
            replace(file, kept=_passing_groups(file, row_filter, self.schema, file_constants))
            for file, file_constants in zip(self._files, constants_of_file, strict=True)
        ]
        source.n_rows = sum(file.n_rows for file in source._files)
        return source

    def _target(self, columns: Sequence[str]) -> pa.Schema:
        """Return the schema of these columns; every file must have them."""
        for file in self._files:
            require_columns(file.path, file.schema.names, columns, self.name)
        return pa.schema([self.schema.field(column) for column in columns])


def _part_name(file: _File, groups: tuple[int, ...]) -> str:
    first, last = groups[0], groups[-1]
    text = f"row group {first}" if first == last else f"row groups {first} to {last}"
    return f"{text} of Parquet file {str(file.path)!r}"


def _part_rows(file: _File, groups: tuple[int, ...], target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of row groups; text is dictionary-encoded, since ids are then numbered once for a row group."""
    encoded = [column for column in target.names if is_text(file.schema.field(column).type)]
    rows = 1 << int(log2(max(_BATCH_NUMBERS / max(len(target), 1), 2**12)))
    for batch in _rows(file, target.names, encoded, rows, groups):
        yield cast_batch(batch, target, file.path, encoded)
        del batch  # one batch at a time is in memory


def _kept_groups(file: _File) -> tuple[int, ...] | None:
    """Return the numbers of the row groups to read; None for all."""
    return None if len(file.kept) == len(file.groups) else file.kept


def _groups_of_parts(file: _File) -> Iterator[tuple[int, ...]]:
    """Yield the row groups of each part: one, or several small ones."""
    pending: list[int] = []
    rows = 0
    for group in file.kept:
        size = file.groups[group]
        if pending and rows + size > _PART_ROWS:
            yield tuple(pending)
            pending, rows = [], 0
        pending.append(group)
        rows += size
    if pending:
        yield tuple(pending)


def _passing_groups(
    file: _File, row_filter: Filter, schema: pa.Schema, constants: Mapping[str, pa.Scalar]
) -> tuple[int, ...]:
    """Return the row groups of a file in which a row may pass."""
    fields = [schema.field(column) for column in row_filter.columns if column in schema.names]
    file_types = {field.name: field.type for field in file.schema}
    if any(file_types.get(field.name) != field.type or pa.types.is_floating(field.type) for field in fields):
        return file.kept  # minimum and maximum do not cover NaN
    import pyarrow.dataset as ds
    from pyarrow.fs import LocalFileSystem

    conditions = [
        pc.field(name) == value if value.is_valid else pc.field(name).is_null()
        for name, value in constants.items()
    ]
    fields += [pa.field(name, value.type) for name, value in constants.items()]
    condition = reduce(and_, conditions) if conditions else None
    piece = ds.ParquetFileFormat().make_fragment(str(file.path), LocalFileSystem(), condition)
    passing = piece.split_by_row_group(row_filter.expression, schema=pa.schema(fields))
    return tuple(sorted(group.id for piece in passing for group in piece.row_groups))


def _footer(path: Path) -> _File:
    try:
        with pq.ParquetFile(path) as file:
            meta = file.metadata
            sizes = tuple(meta.row_group(group).num_rows for group in range(meta.num_row_groups))
            return _File(path, file.schema_arrow, sizes, _low_cardinality(file), tuple(range(len(sizes))))
    except PermissionError:
        raise
    except UNREADABLE as error:
        raise unreadable(path, "Parquet", error) from error


def _low_cardinality(file: pq.ParquetFile) -> frozenset[str]:
    """Return the text columns with few distinct values: those that take less than 4 bytes a row on disk."""
    if not file.metadata.num_row_groups:
        return frozenset()
    group = file.metadata.row_group(0)
    sizes = {}
    for j in range(group.num_columns):
        chunk = group.column(j)
        sizes[chunk.path_in_schema] = chunk.total_uncompressed_size / max(1, chunk.num_values)
    texts = [field.name for field in file.schema_arrow if is_text(field.type)]
    return frozenset(name for name in texts if sizes.get(name, 4.0) < 4.0)


def _rows(
    file: _File,
    columns: Sequence[str],
    encoded: Sequence[str],
    batch_rows: int,
    groups: Sequence[int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, or those of some of its row groups, which are decoded in this thread alone."""
    rows_read = 0
    try:
        # these texts stay dictionary-encoded, so that an id is made once for each distinct text
        with pq.ParquetFile(
            file.path, read_dictionary=encoded, buffer_size=_BUFFER, pre_buffer=False
        ) as opened:
            in_this_thread = groups is not None
            for batch in opened.iter_batches(
                batch_rows, groups, list(columns), use_threads=not in_this_thread
            ):
                rows_read += batch.num_rows
                yield batch
                del batch
    except UNREADABLE as error:
        size = file.n_rows if groups is None else sum(file.groups[group] for group in groups)
        where = "it" if groups is None else f"from row group {groups[0]} on it"
        raise LogError(
            f"{str(file.path)!r} is damaged: {where} should hold {size} rows, but reading fails after {rows_read} "
            f"({str(error).strip()}). Copy or write it again."
        ) from error
