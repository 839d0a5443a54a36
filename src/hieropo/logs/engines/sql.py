"""Logs from databases that return Arrow: DuckDB, PostgreSQL through ADBC, any connection with an ADBC cursor."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit
from weakref import finalize

import pyarrow as pa
import pyarrow.compute as pc

from hieropo._utils.text import counted
from hieropo.errors import HieropoError, InputError, LogError
from hieropo.logs.arrow.arrays import EXACT
from hieropo.logs.arrow.filters import Filter, sql_name
from hieropo.logs.arrow.log_source import BATCH_ROWS, LogSource, regroup, source_repr
from hieropo.logs.engines.tables import RelationSource
from hieropo.logs.formats.paths import shortened

_LONG = r"^-?[0-9]{16,}(\.0*)?$"


@dataclass(frozen=True)
class SqlColumn:
    """A column of a query: its SQL expression and its field in the log.

    Parameters
    ----------
    field : pa.Field
        Name and type in the log.
    selected : str
        Its expression in the select list.
    is_text_of_numeric : bool
        True where the database returns exact numbers as text.
    """

    field: pa.Field
    selected: str
    is_text_of_numeric: bool = False

    def read(self, values: pa.Array, first_row: int) -> pa.Array:
        """Return values of the query as values of the log.

        Raises
        ------
        LogError
            A whole number has more digits than a float keeps; names column and row.
        """
        if isinstance(values, pa.ExtensionArray) and values.type != self.field.type:
            values = values.storage
        if not self.is_text_of_numeric:
            return values
        try:
            numbers = values.cast(self.field.type)
        except pa.ArrowInvalid as error:
            raise LogError(
                f"Column {self.field.name!r}, in the rows from {first_row} on: {str(error).strip()}. A numeric 'NaN' "
                "is no number that can be learned from. Leave such rows out of the query."
            ) from error
        if pa.types.is_floating(numbers.type):
            self._refuse_rounded(values, numbers, first_row)
        return numbers

    def _refuse_rounded(self, texts: pa.Array, numbers: pa.Array, first_row: int) -> None:
        too_large = pc.greater_equal(pc.abs(numbers), float(EXACT))
        if pc.any(too_large).as_py():
            too_large = pc.and_(too_large, pc.match_substring_regex(texts, _LONG))
        if pc.any(too_large).as_py():
            row = pc.index(too_large, value=True).as_py()
            raise LogError(
                f"Column {self.field.name!r}, row {first_row + row}: {texts[row].as_py()}, of type numeric, is beyond "
                f"2**53 and may be rounded. If it is an id, select {self.field.name}::text or ::bigint; if it is a "
                "quantity, select ::double precision."
            )


def postgres_column(field: pa.Field) -> SqlColumn:
    """Return the column of a query for the field that its driver reports.

    numeric(p, s) becomes a decimal, numeric without limits a float, and types without an Arrow type (enumerations,
    addresses) text. Fields of other databases stay as they are.
    """
    name, metadata = sql_name(field.name), field.metadata or {}
    kind = metadata.get(b"ADBC:postgresql:typname", b"").decode()
    if kind == "numeric":
        number = _decimal(int(metadata.get(b"POSTGRESQL:typmod", b"-1")))
        return SqlColumn(pa.field(field.name, number), name, is_text_of_numeric=True)
    if kind:
        return SqlColumn(pa.field(field.name, pa.string()), f"{name}::text as {name}")
    if getattr(field.type, "extension_name", "") == "arrow.json":
        return SqlColumn(pa.field(field.name, field.type.storage_type), name)
    return SqlColumn(pa.field(field.name, field.type), name)


def _decimal(modifier: int) -> pa.DataType:
    """Return the Arrow type of numeric(p, s), whose modifier is 4 + 65536 p + s."""
    precision, scale = (modifier - 4) >> 16, (modifier - 4) & 0x7FF
    if modifier < 4 or precision > 38 or scale > precision:
        return pa.float64()
    return pa.decimal128(precision, scale)


IN_MEMORY = ":memory:"  # DuckDB's name of a database without a file
POSTGRES = ("postgresql://", "postgres://")
_SETTINGS = (  # all passes over a log see one snapshot of the tables, and their rows in one order
    "set transaction isolation level repeatable read, read only",
    "set local synchronize_seqscans = off",
    "set local max_parallel_workers_per_gather = 0",
)


@dataclass(frozen=True)
class Query:
    """A query and its connection; ``open_log`` opens it as a log.

    Parameters
    ----------
    text : str
    connection : str, Path or connection
    """

    text: str
    connection: Any = field(repr=False)  # it may hold a password


def sql(query: str, connection: Any) -> Query:
    """Return the rows of a query as a log: ``HierOPO().fit(sql("select * from log", url), ...)``.

    Only the columns that are needed are selected, and a filter becomes part of the query. The query runs once for each
    pass over the log. With a URL of PostgreSQL all passes see one snapshot of the tables. Where the order of its rows
    is not fixed, as in joins, add ``order by``: an evaluation identifies rows by their numbers.

    Parameters
    ----------
    query : str
        One that returns rows.
    connection : str, Path or connection
        A URL ``postgresql://user@host/database`` (needs the package adbc-driver-postgresql; libpq's PGPASSWORD and
        .pgpass are used), the path of a DuckDB file, ``":memory:"`` for a query of DuckDB that reads files
        (``select * from 'log.parquet'``), a DuckDB connection, or a connection of ADBC, whose cursors have
        ``fetch_record_batch``.

    Raises
    ------
    InputError
        Raised by ``open_log``: there is no such database, the query fails, or the connection returns no Arrow.
    """
    return Query(query, connection)


def open_query(query: Query) -> LogSource:
    """Open a query as a log.

    Raises
    ------
    InputError
        As for :func:`sql`.
    """
    text = query.text.strip().rstrip(";").strip()
    if not text:
        raise InputError("The query is empty. Write one such as select * from log.")
    connection = query.connection
    if isinstance(connection, str | os.PathLike):
        location = os.fspath(connection)
        if location.lower().startswith(POSTGRES):
            return _postgres(text, location)
        return _duckdb_file(text, location)
    if type(connection).__module__.split(".")[0].lstrip("_") == "duckdb":
        return _relation(text, connection, "DuckDB")
    if not hasattr(connection, "cursor"):
        raise InputError(
            f"A {type(connection).__name__} is no connection, so the query cannot run. Give a connection, or the URL "
            "or path of a database."
        )
    return SqlSource(text, connection, f"query {shortened(text)}")


def without_password(location: str) -> str:
    """Return the URL of a database without its password, to be shown and stored."""
    if "://" not in location:
        return location
    parts = urlsplit(location)
    user, at_sign, host = parts.netloc.rpartition("@")
    parameters = urlencode(
        [(key, value) for key, value in parse_qsl(parts.query) if key != "password"], safe="/"
    )
    return urlunsplit(parts._replace(netloc=user.partition(":")[0] + at_sign + host, query=parameters))


def _postgres(text: str, url: str) -> LogSource:
    try:
        from adbc_driver_postgresql import dbapi
    except ImportError as error:
        raise InputError(
            "The ADBC driver of PostgreSQL is not installed, so the query cannot run: pip install "
            "'hieropo[postgresql]'."
        ) from error
    location = without_password(url)
    connection = _attempt(lambda: dbapi.connect(url), f"The database {location} cannot be reached")
    try:
        with closing(connection.cursor()) as cursor:
            for setting in _SETTINGS:
                _attempt(
                    lambda setting=setting: cursor.execute(setting), f"The database {location} cannot be read"
                )
        return SqlSource(text, _Session(connection), f"query {shortened(text)} on {location}")
    except BaseException:
        connection.close()
        raise


class _Session:
    """A connection that is closed when no source uses it any more."""

    def __init__(self, connection: Any) -> None:
        self.cursor = connection.cursor
        finalize(self, connection.close)


def _duckdb_file(text: str, location: str) -> LogSource:
    path = Path(location)
    if location != IN_MEMORY and ("://" in location or not path.is_file()):
        raise InputError(
            f"There is no database {without_password(location)!r}. Give a URL such as postgresql://user@host/database, "
            f"the path of a DuckDB file, an open connection, or {IN_MEMORY!r} for a query that reads files, such as "
            "select * from 'log.parquet'."
        )
    try:
        import duckdb
    except ImportError as error:
        raise InputError(
            "DuckDB is not installed, so the query cannot run: pip install 'hieropo[duckdb]'."
        ) from error
    if location == IN_MEMORY:
        return _relation(text, duckdb.connect(), "files")
    connection = _attempt(
        lambda: duckdb.connect(location, read_only=True),
        f"{location!r} cannot be read as DuckDB",
        f" To query a file of another kind, give {IN_MEMORY!r} as the database, and write from {location!r} in the "
        "query.",
    )
    return _relation(text, connection, location)


def _relation(text: str, connection: Any, location: str) -> LogSource:
    name = f"query {shortened(text)} on {location}"
    relation = _attempt(lambda: connection.sql(f"select * from (\n{text}\n) as log"), f"The {name} fails")
    return RelationSource(relation, name)


def _attempt(step: Any, failure: str, advice: str = "") -> Any:
    """Run a step in a database; an exception of its package becomes an InputError from ``failure`` to ``advice``."""
    try:
        return step()
    except HieropoError:
        raise
    except Exception as error:
        raise InputError(f"{failure}: {_reason(error)}{advice}") from error


def _reason(error: Exception) -> str:
    return re.sub(r"\s+", " ", str(error)).strip()


class SqlSource:
    """The rows of a query on an ADBC connection; it runs once for each pass and selects only the columns needed."""

    schema: Any

    n_rows = None
    rereadable = True

    __repr__ = source_repr

    def __init__(self, query: str, connection: Any, name: str, condition: str = "") -> None:
        self.name = name
        self._query, self._connection, self._condition = query, connection, condition
        with closing(self._cursor()) as cursor, self._run(cursor, ["*"], " limit 0") as reader:
            self._columns = {column.name: postgres_column(column) for column in reader.schema}
            self.schema = pa.schema([column.field for column in self._columns.values()])

    def batches(self, columns: Sequence[str], batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield all rows with these columns only.

        Raises
        ------
        InputError
            The query fails.
        LogError
            It breaks off, or a number has more digits than a float keeps.
        """
        return regroup(self._read([self._columns[column] for column in columns]), batch_rows)

    def filtered(self, row_filter: Filter) -> "SqlSource | None":
        """Return the query with the filter added; None where the filter has no SQL."""
        if row_filter.sql is None:
            return None
        return SqlSource(
            self._query, self._connection, f"{self.name} where {row_filter.text}", f" where {row_filter.sql}"
        )

    def _read(self, columns: Sequence[SqlColumn]) -> Iterator[pa.RecordBatch]:
        row = 0
        with (
            closing(self._cursor()) as cursor,
            self._run(cursor, [column.selected for column in columns]) as reader,
        ):
            while (batch := self._next(reader, row)) is not None:
                arrays = [
                    column.read(values, row) for column, values in zip(columns, batch.columns, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(arrays, names=[column.field.name for column in columns])
                row += batch.num_rows

    def _run(self, cursor: Any, selected: Sequence[str], limit: str = "") -> Any:
        text = f"select {', '.join(selected)} from (\n{self._query}\n) as log{self._condition}{limit}"
        failure = f"The {self.name} fails"
        _attempt(lambda: cursor.execute(text), failure)
        return _attempt(cursor.fetch_record_batch, failure)

    def _next(self, reader: Any, row: int) -> pa.RecordBatch | None:
        try:
            return reader.read_next_batch()
        except StopIteration:
            return None
        except Exception as error:  # its class is that of a driver
            raise LogError(
                f"The {self.name} breaks off after {counted(row, 'row')}: {_reason(error)}"
            ) from error

    def _cursor(self) -> Any:
        cursor = _attempt(self._connection.cursor, f"The {self.name} cannot run")
        if not hasattr(cursor, "fetch_record_batch"):
            cursor.close()
            raise InputError(
                f"The connection of the {self.name} returns no Arrow: its cursors are of type "
                f"{type(cursor).__module__}.{type(cursor).__name__}, without fetch_record_batch. Connect by a URL "
                "postgresql://... or by the ADBC driver of the database, or hand over a frame of its rows."
            )
        return cursor
