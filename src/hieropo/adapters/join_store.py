"""A place on disk for what two streams need to be matched."""

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from hieropo.errors import InputError, LogError


class Store:
    """Tables of DuckDB, in memory and, beyond its limit, in a temporary folder that goes when nobody needs it."""

    def __init__(self, memory: str | None) -> None:
        try:
            import duckdb
        except ImportError as error:
            raise InputError(
                "To join decisions and rewards DuckDB is needed, which is not installed: pip install 'hieropo[duckdb]'."
            ) from error
        self._errors: type[Exception] = duckdb.Error
        folder = tempfile.mkdtemp(prefix="hieropo-join-")
        self._connection = duckdb.connect()
        self._end = weakref.finalize(self, _remove, self._connection, folder)
        self.run(f"set temp_directory = '{folder}'")
        if memory is not None:
            try:
                self._connection.execute("set memory_limit = ?", [memory])
            except duckdb.Error as error:
                raise InputError(f"The memory {memory!r} is not understood; it may be '2GB'.") from error

    def take(self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Store batches as a table; what goes wrong in making them is raised as it is."""
        failed: list[Exception] = []

        def watched() -> Iterator[pa.RecordBatch]:
            try:
                yield from batches
            except Exception as error:
                failed.append(error)  # DuckDB makes a text of it
                raise

        self._connection.register("stream", pa.RecordBatchReader.from_batches(schema, watched()))
        try:
            self._connection.execute(f"create table {name} as select * from stream")
        except self._errors as error:
            raise (failed[0] if failed else _no_room(error)) from None
        finally:
            self._connection.unregister("stream")

    def run(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement; its rows.

        Raises
        ------
        LogError
            DuckDB has no room left in memory or on disk.
        """
        try:
            found: list[tuple[Any, ...]] = self._connection.execute(query, values or None).fetchall()
        except self._errors as error:
            raise _no_room(error) from error
        return found

    def outcomes(self) -> pa.RecordBatchReader:
        """Rewards of all decisions in their order, null for those that are left out."""
        relation = self._connection.cursor().sql("select reward from outcomes order by row")
        return pa.RecordBatchReader.from_stream(relation)


def _no_room(error: Exception) -> LogError:
    return LogError(
        f"DuckDB could not join the streams: {str(error).strip().splitlines()[0]}. Is the disk of temporary files full "
        "(TMPDIR names another), or the memory too small?"
    )


def _remove(connection: Any, folder: str) -> None:
    connection.close()
    shutil.rmtree(folder, ignore_errors=True)
