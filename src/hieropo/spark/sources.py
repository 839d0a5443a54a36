"""Logs whose rows Spark's workers read: the driver sees a schema and first rows, workers each their part."""

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from hieropo.logs.arrow.log_source import LogSource, WrappedSource
from hieropo.logs.engines.tables import StreamSource, TableSource
from hieropo.logs.formats.paths import find_files, part_of_files
from hieropo.logs.opening import open_log
from hieropo.spark.hashing import map_batches, quoted
from hieropo.spark.workers import VALUE_DDL, nonempty, valued, values_of


class FrameSource(TableSource):
    """A Spark frame as a log: ``batches`` has its first rows, ``each`` all rows, by partition.

    Parameters
    ----------
    frame : DataFrame
    first : pa.Table
        Its first rows.
    """

    def __init__(self, frame: Any, first: pa.Table) -> None:
        super().__init__(first, "Spark frame")
        self._frame = frame

    def each(self, columns: Sequence[str], work: Callable[[LogSource], Any]) -> list[Any]:
        """Return the values of a function for the partitions that have rows, with some columns, in their order."""
        chosen = self._frame.select(*map(quoted, dict.fromkeys(columns)))
        return _of_partitions(chosen, lambda source, _: work(source))

    def each_numbered(self, work: Callable[[LogSource, int], Any], part: str | None = None) -> list[Any]:
        """Return the values of a function of the log of each partition that has rows, and of its number from 1.

        Errors are those of :func:`values_of`.
        """
        return _of_partitions(self._frame, work, part)


def _of_partitions(frame: Any, work: Callable[[LogSource, int], Any], part: str | None = None) -> list[Any]:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        source, number = stream_of(batches, "Spark partition"), TaskContext.get().partitionId() + 1
        if source is not None:
            yield valued(number, lambda: work(source, number))

    return values_of(map_batches(frame, task, VALUE_DDL), part)


class GroupedFiles(WrappedSource):
    """Files as a log that workers read in groups of about equal bytes, one after the other; the driver sees them too.

    Parameters
    ----------
    session : SparkSession
    path : path
    groups : int
    lenient : bool
        As of :func:`open_log`.
    """

    def __init__(self, session: Any, path: str | os.PathLike[str], groups: int, *, lenient: bool) -> None:
        super().__init__(open_log(path, lenient=lenient))
        self._session, self._path, self._groups, self._lenient = session, os.fspath(path), groups, lenient

    def each(self, columns: Sequence[str], work: Callable[[LogSource], Any]) -> list[Any]:  # noqa: ARG002 - readers choose
        """Return the values of a function for the groups, in their order."""
        return self.each_numbered(lambda source, _: work(source))

    def each_numbered(self, work: Callable[[LogSource, int], Any], part: str | None = None) -> list[Any]:
        """Return the values of a function of the log of each group, and of its number from 1.

        Errors are those of :func:`values_of`.
        """
        from pyspark.sql import functions as f

        path, groups, lenient = self._path, self._groups, self._lenient

        def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():

                    def of_group(number: int = number) -> Any:
                        files = part_of_files(find_files(path), number, groups)
                        return work(open_log(files, lenient=lenient), number)

                    yield valued(number, of_group)

        numbers = self._session.range(1, groups + 1).withColumn("group", (f.col("id") - 1).cast("int"))
        return values_of(numbers.repartitionById(groups, "group").mapInArrow(task, VALUE_DDL), part)


def arrow_schema(frame: Any) -> pa.Schema:
    """Return the Arrow schema of a frame, as its rows come."""
    return frame.limit(0).toArrow().schema


def stream_of(batches: Iterator[pa.RecordBatch], name: str) -> StreamSource | None:
    """Return the rows of a partition as a log; None where it has none."""
    batches = nonempty(batches)
    first = next(batches, None)
    return None if first is None else StreamSource(chain([first], batches), first.schema, name)
