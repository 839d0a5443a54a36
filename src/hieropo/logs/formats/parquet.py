"""Parquet files and folders of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial, reduce
from math import log2
from operator import and_
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hieropo.errors import LogError
from hieropo.logs.arrow.filters import Filter
from hieropo.logs.arrow.log_source import BATCH_ROWS, Part, regroup
from hieropo.logs.arrow.schema import is_text
from hieropo.logs.formats.files import UNREADABLE, fitted, merged, refuse_lacking, unreadable

_PART_ROWS = 2**18  # row groups are joined up to so many rows: a part costs a look at the footer
_BUFFER = 2**18  # bytes of each column that are read from the file at once, rather than all of a row group
_BATCH_NUMBERS = (
    2**22
)  # of a batch of a part, about; each batch brings the dictionaries of its row group again


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    schema: pa.Schema
    groups: tuple[int, ...]
    repeated: frozenset[str]
    kept: tuple[int, ...]  # numbers of the row groups that are read

    @property
    def n_rows(self) -> int:
        return sum(self.groups[group] for group in self.kept)


class ParquetSource:
    """One Parquet file, or several read one after the other."""

    rereadable = True

    def __init__(self, files: Iterable[Path], name: str) -> None:
        self.name = name
        self._files = [_footer(path) for path in files]
        self.schema = merged([(file.path, file.schema) for file in self._files])
        self.n_rows = sum(file.n_rows for file in self._files)

    def batches(self, columns: Sequence[str], batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield all rows with these columns only; the other columns are not read from disk.

        Raises
        ------
        SchemaError
            A file lacks a column that others have.
        LogError
            While reading: a file is torn; names it.
        """
        target = self._target(columns)
        encoded = [column for column in columns if all(column in file.repeated for file in self._files)]
        parts = (
            fitted(batch, target, file.path, encoded)
            for file in self._files
            for batch in _rows(file, target.names, encoded, batch_rows, _some(file))
        )
        return regroup(parts, batch_rows)

    @property
    def files(self) -> list[Path]:
        """Paths of its files, by their numbers."""
        return [file.path for file in self._files]

    def parts(self, columns: Sequence[str]) -> list[Part]:
        """One part for each row group, with these columns only; small row groups of a file are joined.

        Raises
        ------
        SchemaError
            A file lacks a column that others have.
        """
        target, found, row = self._target(columns), [], 0
        for number, file in enumerate(self._files):
            for groups in _joined(file):
                rows = sum(file.groups[group] for group in groups)
                read = partial(_part, file, groups, target)
                found.append(Part(_named(file, groups), number, str(file.path), row, rows, read))
                row += rows
        return found

    def pruned(self, by: Filter, known: Sequence[dict[str, pa.Scalar]] | None = None) -> "ParquetSource":
        """Leave out the row groups in which no row can pass, by what the files say of their values.

        Parameters
        ----------
        by : Filter
        known : sequence of mappings, optional
            For each file columns that have one value there and are not in the file.
        """
        source = copy(self)
        facts = known or [{}] * len(self._files)
        source._files = [
            replace(file, kept=_passing(file, by, self.schema, fact))
            for file, fact in zip(self._files, facts, strict=True)
        ]
        source.n_rows = sum(file.n_rows for file in source._files)
        return source

    def _target(self, columns: Sequence[str]) -> pa.Schema:
        """Schema of the columns asked for; every file has them."""
        for file in self._files:
            refuse_lacking(file.path, file.schema.names, columns, self.name)
        return pa.schema([self.schema.field(column) for column in columns])


def _named(file: _File, groups: tuple[int, ...]) -> str:
    first, last = groups[0], groups[-1]
    text = f"row group {first}" if first == last else f"row groups {first} to {last}"
    return f"{text} of Parquet file {str(file.path)!r}"


def _part(file: _File, groups: tuple[int, ...], target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows of row groups; texts come dictionary-encoded: as ids they are numbered anyway, here once a row group."""
    encoded = [column for column in target.names if is_text(file.schema.field(column).type)]
    rows = 1 << int(log2(max(_BATCH_NUMBERS / max(len(target), 1), 2**12)))
    for batch in _rows(file, target.names, encoded, rows, groups):
        yield fitted(batch, target, file.path, encoded)
        del batch  # one batch at a time is in memory


def _some(file: _File) -> tuple[int, ...] | None:
    """Numbers of the row groups that are read; None for all."""
    return None if len(file.kept) == len(file.groups) else file.kept


def _joined(file: _File) -> Iterator[tuple[int, ...]]:
    """Numbers of row groups that make a part: one, or several small ones."""
    held: list[int] = []
    rows = 0
    for group in file.kept:
        size = file.groups[group]
        if held and rows + size > _PART_ROWS:
            yield tuple(held)
            held, rows = [], 0
        held.append(group)
        rows += size
    if held:
        yield tuple(held)


def _passing(file: _File, by: Filter, schema: pa.Schema, known: Mapping[str, pa.Scalar]) -> tuple[int, ...]:
    """Row groups of a file in which a row may pass."""
    fields = [schema.field(column) for column in by.columns if column in schema.names]
    read = {field.name: field.type for field in file.schema}
    if any(read.get(field.name) != field.type or pa.types.is_floating(field.type) for field in fields):
        return file.kept  # the least and the largest number say nothing of NaN
    import pyarrow.dataset as ds
    from pyarrow.fs import LocalFileSystem

    facts = [
        pc.field(name) == value if value.is_valid else pc.field(name).is_null()
        for name, value in known.items()
    ]
    fields += [pa.field(name, value.type) for name, value in known.items()]
    fact = reduce(and_, facts) if facts else None
    whole = ds.ParquetFileFormat().make_fragment(str(file.path), LocalFileSystem(), fact)
    passing = whole.split_by_row_group(by.expression, schema=pa.schema(fields))
    return tuple(sorted(group.id for fragment in passing for group in fragment.row_groups))


def _footer(path: Path) -> _File:
    try:
        with pq.ParquetFile(path) as file:
            meta = file.metadata
            sizes = tuple(meta.row_group(group).num_rows for group in range(meta.num_row_groups))
            return _File(path, file.schema_arrow, sizes, _repeated(file), tuple(range(len(sizes))))
    except PermissionError:
        raise
    except UNREADABLE as error:
        raise unreadable(path, "Parquet", error) from error


def _repeated(file: pq.ParquetFile) -> frozenset[str]:
    """Text columns with few distinct values: those that take less than 4 bytes a row on disk."""
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
    done = 0
    try:
        # these texts stay encoded as they lie in the file, and ids are made once for each distinct one
        with pq.ParquetFile(
            file.path, read_dictionary=encoded, buffer_size=_BUFFER, pre_buffer=False
        ) as opened:
            alone = groups is not None
            for batch in opened.iter_batches(batch_rows, groups, list(columns), use_threads=not alone):
                done += batch.num_rows
                yield batch
                del batch
    except UNREADABLE as error:
        size = file.n_rows if groups is None else sum(file.groups[group] for group in groups)
        where = "it" if groups is None else f"from row group {groups[0]} on it"
        raise LogError(
            f"{str(file.path)!r} is torn: {where} should hold {size} rows and fails after {done} "
            f"({str(error).strip()}). Copy or write it anew."
        ) from error
