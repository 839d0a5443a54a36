"""Sources in memory, and those that another engine reads for us."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from hieropo.errors import LogError
from hieropo.sources.files import UNREADABLE
from hieropo.sources.filters import Filter, sql_name
from hieropo.sources.log_source import BATCH_ROWS, regroup
from hieropo.text import counted


class TableSource:
    """An Arrow table, or anything that was turned into one."""

    rereadable = True

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
    """A DuckDB relation: run once for each pass, streamed, only the columns asked for.

    Its connection is busy while a pass is under way. A second pass runs the query again: a query without a
    fixed answer (a sample, random numbers) gives other rows then.
    """

    n_rows = None
    rereadable = True

    def __init__(self, relation: Any, name: str) -> None:
        self.name = name
        self._relation = relation
        with pa.RecordBatchReader.from_stream(relation.limit(0)) as reader:
            self.schema = reader.schema

    def batches(self, columns: Sequence[str], batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield all rows with these columns only."""
        return regroup(self._stream(columns), batch_rows)

    def filtered(self, by: Filter) -> "RelationSource | None":
        """Let the query filter, where the filter was given as text."""
        if by.sql is None:
            return None
        return RelationSource(self._relation.filter(by.sql), f"{self.name} where {by.text}")

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
    """An Arrow dataset: files anywhere, partitions, filters; columns are chosen by its scanner."""

    n_rows = None
    rereadable = True

    def __init__(self, dataset: Any, name: str) -> None:
        self.name = name
        self._dataset = dataset
        self.schema: pa.Schema = dataset.schema

    def batches(self, columns: Sequence[str], batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield all rows with these columns only."""
        return regroup(self._scan(list(columns), batch_rows), batch_rows)

    def filtered(self, by: Filter) -> "DatasetSource":
        """Let the dataset filter."""
        return DatasetSource(self._dataset.filter(by.expression), f"{self.name} where {by.text}")

    def _scan(self, columns: list[str], batch_rows: int) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._dataset.to_batches(columns=columns, batch_size=batch_rows)
        except UNREADABLE as error:
            raise LogError(
                f"The {self.name} cannot be read: {str(error).strip()} Is a file torn, or of another format?"
            ) from error
