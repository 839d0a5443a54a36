"""Rows that come one batch after the other: Arrow readers, iterators of batches or frames, lazy frames."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from hieropo.errors import HieropoError, InputError, LogError, SchemaError
from hieropo.sources.files import UNREADABLE
from hieropo.sources.filters import Filter
from hieropo.sources.log_source import BATCH_ROWS, empty, regroup
from hieropo.text import counted


class StreamSource:
    """Batches that can be read once, all of one schema."""

    n_rows = None
    rereadable = False

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
                )  # a name may stand twice
                rows += batch.num_rows
        except UNREADABLE as error:
            raise LogError(
                f"The {self.name} breaks off after {counted(rows, 'row')}: {str(error).strip()} Is its source whole?"
            ) from error


def iterator_source(items: Iterable[Any], name: str) -> StreamSource:
    """Open an iterator of record batches, tables or data frames; the first one says names and types.

    Raises
    ------
    LogError
        There is not one.
    InputError
        An item is not of these kinds.
    """
    iterator = iter(items)
    first = next(iterator, None)
    if first is None:
        raise empty(name)
    table = _table(first, 0, name)
    return StreamSource(_fitted(table, iterator, name), table.schema, name)


def _table(item: Any, number: int, name: str) -> pa.Table:
    if isinstance(item, pa.Table):
        return item
    if isinstance(item, pa.RecordBatch):
        return pa.Table.from_batches([item])
    if not hasattr(item, "__arrow_c_stream__"):
        raise InputError(
            f"Item {number} of the {name} is of type {type(item).__name__}; record batches, tables or data frames are "
            "needed. Rows as dicts become one by pyarrow.Table.from_pylist(rows)."
        )
    try:
        return pa.table(item)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SchemaError(
            f"Item {number} of the {name} cannot be turned into an Arrow table: {str(error).strip()}. Give each "
            "column one type."
        ) from error


def _fitted(first: pa.Table, others: Iterator[Any], name: str) -> Iterator[pa.RecordBatch]:
    yield from first.to_batches()
    for number, item in enumerate(others, start=1):
        table = _table(item, number, name)
        if not table.schema.equals(first.schema):
            table = _like(table, first.schema, number, name)
        yield from table.to_batches()


def _like(table: pa.Table, schema: pa.Schema, number: int, name: str) -> pa.Table:
    missing = [column for column in schema.names if column not in table.column_names]
    if missing:
        raise SchemaError(
            f"Item {number} of the {name} lacks column {missing[0]!r}, which the first one has."
        )
    columns = []
    for field in schema:
        column = table[field.name]
        try:
            columns.append(column.cast(field.type))
        except pa.ArrowException as error:
            raise SchemaError(
                f"Column {field.name!r} is {column.type} in item {number} of the {name}, but {field.type} in the first "
                f"one, and a value does not fit: {error}. Give it one type in all."
            ) from error
    return pa.Table.from_arrays(columns, schema=schema)


class LazySource:
    """A polars LazyFrame: run once for each pass, only the columns asked for, in batches where polars can do that."""

    n_rows = None
    rereadable = True

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

    def filtered(self, by: Filter) -> "LazySource | None":
        """Let the frame filter, where the filter was given as text."""
        if by.sql is None:
            return None
        return LazySource(
            self._frame.sql(f"select * from self where {by.sql}"), f"{self.name} where {by.text}"
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
