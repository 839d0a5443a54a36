"""Sources in memory, sources that another engine reads, and streams of batches."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from hieropo._utils.text import counted
from hieropo.errors import HieropoError, InputError, LogError, SchemaError
from hieropo.logs.arrow.filters import Filter, sql_name
from hieropo.logs.arrow.log_source import BATCH_ROWS, empty, regroup, source_repr
from hieropo.logs.formats.files import UNREADABLE


class TableSource:
    """An Arrow table, or anything converted to one."""

    rereadable = True

    __repr__ = source_repr

    def __init__(self, table: pa.Table, name: str) -> None:
        self.name = name
        self._table = table

    @property
    def schema(self) -> pa.Schema:
        """Names and Arrow types of the columns."""
        return self._table.schema

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self._table.num_rows)

    def batches(self, columns: Sequence[str], batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield all rows with these columns only."""
        chosen = self._table.select(list(columns))
        return regroup(chosen.to_batches(max_chunksize=batch_rows), batch_rows)


class RelationSource:
    """A DuckDB relation: it runs once for each pass, streams its rows, and selects only the columns needed.

    Its connection is busy during a pass. A second pass runs the query again: a query without a fixed answer (a sample,
    random numbers) then gives other rows.
    """

    schema: Any

    n_rows = None
    rereadable = True

    __repr__ = source_repr

    def __init__(self, relation: Any, name: str) -> None:
        self.name = name
        self._relation = relation
        with pa.RecordBatchReader.from_stream(relation.limit(0)) as reader:
            self.schema = reader.schema

    def batches(self, columns: Sequence[str], batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield all rows with these columns only."""
        return regroup(self._stream(columns), batch_rows)

    def filtered(self, row_filter: Filter) -> "RelationSource | None":
        """Let the query filter, where the filter was given as text."""
        if row_filter.sql is None:
            return None
        return RelationSource(self._relation.filter(row_filter.sql), f"{self.name} where {row_filter.text}")

    def _stream(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        rows = 0
        try:
            chosen = self._relation.project(", ".join(map(sql_name, columns)))
            with pa.RecordBatchReader.from_stream(chosen) as reader:
                for batch in reader:
                    yield batch
                    rows += batch.num_rows
        except Exception as error:  # its classes are those of DuckDB
            raise LogError(
                f"The {self.name} breaks off after {counted(rows, 'row')}: {str(error).strip()}"
            ) from error


class DatasetSource:
    """An Arrow dataset; its scanner selects the columns and filters the rows."""

    n_rows = None
    rereadable = True

    __repr__ = source_repr

    def __init__(self, dataset: Any, name: str) -> None:
        self.name = name
        self._dataset = dataset
        self.schema: pa.Schema = dataset.schema

    def batches(self, columns: Sequence[str], batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield all rows with these columns only."""
        return regroup(self._scan(list(columns), batch_rows), batch_rows)

    def filtered(self, row_filter: Filter) -> "DatasetSource":
        """Return the dataset with the filter added."""
        return DatasetSource(
            self._dataset.filter(row_filter.expression), f"{self.name} where {row_filter.text}"
        )

    def _scan(self, columns: list[str], batch_rows: int) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._dataset.to_batches(columns=columns, batch_size=batch_rows)
        except UNREADABLE as error:
            raise LogError(
                f"The {self.name} cannot be read: {str(error).strip()} Is a file cut off, or of another format?"
            ) from error


class StreamSource:
    """Batches of one schema that can be read only once."""

    n_rows = None
    rereadable = False

    __repr__ = source_repr

    def __init__(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema, name: str) -> None:
        self.name = name
        self.schema = schema
        self._batches = batches
        self._started = False

    def batches(self, columns: Sequence[str], batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield all rows with these columns only, once.

        Raises
        ------
        InputError
            The stream was read before.
        LogError
            It breaks off.
        """
        if self._started:
            raise InputError(
                f"The {self.name} was read before, and a stream can be read only once. Open it with "
                "open_log(stream, rereadable=True), which keeps its rows in memory, or hand over a table "
                "or a path."
            )
        self._started = True
        return regroup(self._read(list(columns)), batch_rows)

    def _read(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        rows = 0
        try:
            for batch in self._batches:
                yield (
                    batch if columns == self.schema.names else batch.select(columns)
                )  # selecting by name fails where a name comes twice
                rows += batch.num_rows
        except UNREADABLE as error:
            raise LogError(
                f"The {self.name} breaks off after {counted(rows, 'row')}: {str(error).strip()} Is its source complete?"
            ) from error


def iterator_source(items: Iterable[Any], name: str) -> StreamSource:
    """Open an iterator of record batches, tables or data frames; the first one sets names and types.

    Raises
    ------
    LogError
        The iterator is empty.
    InputError
        An item is not of these kinds.
    """
    iterator = iter(items)
    first = next(iterator, None)
    if first is None:
        raise empty(name)
    table = _table(first, 0, name)
    return StreamSource(_all_batches(table, iterator, name), table.schema, name)


def _table(item: Any, number: int, name: str) -> pa.Table:
    if isinstance(item, pa.Table):
        return item
    if isinstance(item, pa.RecordBatch):
        return pa.Table.from_batches([item])
    if not hasattr(item, "__arrow_c_stream__"):
        raise InputError(
            f"Item {number} of the {name} is of type {type(item).__name__}; record batches, tables or data frames are "
            "needed. Rows as dicts become a table by pyarrow.Table.from_pylist(rows)."
        )
    try:
        return pa.table(item)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SchemaError(
            f"Item {number} of the {name} cannot be turned into an Arrow table: {str(error).strip()}. Give each "
            "column one type."
        ) from error


def _all_batches(first: pa.Table, others: Iterator[Any], name: str) -> Iterator[pa.RecordBatch]:
    yield from first.to_batches()
    for number, item in enumerate(others, start=1):
        table = _table(item, number, name)
        if not table.schema.equals(first.schema):
            table = _cast_to(table, first.schema, number, name)
        yield from table.to_batches()


def _cast_to(table: pa.Table, schema: pa.Schema, number: int, name: str) -> pa.Table:
    missing = [column for column in schema.names if column not in table.column_names]
    if missing:
        raise SchemaError(
            f"Item {number} of the {name} lacks column {missing[0]!r}, which the first item has. Give all items the "
            "same columns."
        )
    columns = []
    for field in schema:
        column = table[field.name]
        try:
            columns.append(column.cast(field.type))
        except pa.ArrowException as error:
            raise SchemaError(
                f"Column {field.name!r} is {column.type} in item {number} of the {name}, but {field.type} in the first "
                f"one, and a value does not fit: {error}. Give the column one type in all items."
            ) from error
    return pa.Table.from_arrays(columns, schema=schema)


class LazySource:
    """A polars LazyFrame: it runs once for each pass, selects only the columns needed, and streams where polars can."""

    n_rows = None
    rereadable = True

    __repr__ = source_repr

    def __init__(self, frame: Any, name: str) -> None:
        self.name = name
        self._frame = frame
        self.schema: pa.Schema = self._run(lambda: pa.table(frame.limit(0).collect()).schema)

    def batches(self, columns: Sequence[str], batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield all rows with these columns only.

        Raises
        ------
        LogError
            The query of the frame fails.
        """
        return regroup(self._read(list(columns), batch_rows), batch_rows)

    def filtered(self, row_filter: Filter) -> "LazySource | None":
        """Return the frame with the filter added; None where the filter has no SQL."""
        if row_filter.sql is None:
            return None
        return LazySource(
            self._frame.sql(f"select * from self where {row_filter.sql}"),
            f"{self.name} where {row_filter.text}",
        )

    def _read(self, columns: list[str], batch_rows: int) -> Iterator[pa.RecordBatch]:
        frame = self._frame.select(columns)
        if not hasattr(frame, "collect_batches"):  # polars before 1.34
            yield from pa.table(self._run(frame.collect)).to_batches()
            return
        parts = self._run(lambda: iter(frame.collect_batches(chunk_size=batch_rows)))
        while (part := self._run(lambda: next(parts, None))) is not None:
            yield from pa.table(part).to_batches()

    def _run(self, step: Any) -> Any:
        try:
            return step()
        except HieropoError:
            raise
        except Exception as error:  # its classes are those of polars, which is not imported here
            raise LogError(f"The {self.name} cannot be run: {str(error).strip()}") from error
