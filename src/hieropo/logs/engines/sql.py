"""Logs that a database hands out as Arrow: DuckDB, PostgreSQL through ADBC, any connection with a cursor of ADBC."""

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
from hieropo.logs.arrow.log_source import BATCH_ROWS, LogSource, regroup
from hieropo.logs.engines.tables import RelationSource
from hieropo.logs.formats.paths import short

_LONG = r"^-?[0-9]{16,}(\.0*)?$"


@dataclass(frozen=True)
class SqlColumn:
    """A column of a query: as it is asked for, and as it is read.

    Parameters
    ----------
    field : pa.Field
        As the log has it.
    selected : str
        In the query.
    numeric : bool
        Whether it comes as the text of exact numbers.
    """

    field: pa.Field
    selected: str
    numeric: bool = False

    def read(self, values: pa.Array, first_row: int) -> pa.Array:
        """Values as the log has them.

        Raises
        ------
        LogError
            A whole number has more digits than a float keeps; names column and row.
        """
        if isinstance(values, pa.ExtensionArray) and values.type != self.field.type:
            values = values.storage
        if not self.numeric:
            return values
        try:
            numbers = values.cast(self.field.type)
        except pa.ArrowInvalid as error:
            raise LogError(
                f"Column {self.field.name!r}, in the rows from {first_row} on: {str(error).strip()}. Nothing can be "
                "learned from numeric 'NaN': leave such rows out."
            ) from error
        if pa.types.is_floating(numbers.type):
            self._refuse_rounded(values, numbers, first_row)
        return numbers

    def _refuse_rounded(self, texts: pa.Array, numbers: pa.Array, first_row: int) -> None:
        large = pc.greater_equal(pc.abs(numbers), float(EXACT))
        if pc.any(large).as_py():
            large = pc.and_(large, pc.match_substring_regex(texts, _LONG))
        if pc.any(large).as_py():
            row = pc.index(large, value=True).as_py()
            raise LogError(
                f"Column {self.field.name!r}, row {first_row + row}: {texts[row].as_py()}, of type numeric, is beyond "
                f"2**53 and may be rounded. If it is an id, select {self.field.name}::text or ::bigint; if it is a "
                "number, ::double precision."
            )


def postgres_column(found: pa.Field) -> SqlColumn:
    """Say how a column is read, by the field that its driver gives it.

    numeric(p, s) becomes a decimal, numeric without limits a float, and types without an Arrow type (enumerations,
    addresses) text. Fields of other databases stay as they are.
    """
    name, metadata = sql_name(found.name), found.metadata or {}
    kind = metadata.get(b"ADBC:postgresql:typname", b"").decode()
    if kind == "numeric":
        number = _decimal(int(metadata.get(b"POSTGRESQL:typmod", b"-1")))
        return SqlColumn(pa.field(found.name, number), name, numeric=True)
    if kind:
        return SqlColumn(pa.field(found.name, pa.string()), f"{name}::text as {name}")
    if getattr(found.type, "extension_name", "") == "arrow.json":
        return SqlColumn(pa.field(found.name, found.type.storage_type), name)
    return SqlColumn(pa.field(found.name, found.type), name)


def _decimal(modifier: int) -> pa.DataType:
    """Type of numeric(p, s), whose modifier is 4 + 65536 p + s."""
    precision, scale = (modifier - 4) >> 16, (modifier - 4) & 0x7FF
    if modifier < 4 or precision > 38 or scale > precision:
        return pa.float64()
    return pa.decimal128(precision, scale)


POSTGRES = ("postgresql://", "postgres://")
_SETTINGS = (  # one state of the tables, and their rows in one order, for all passes over a log
    "set transaction isolation level repeatable read, read only",
    "set local synchronize_seqscans = off",
    "set local max_parallel_workers_per_gather = 0",
)


@dataclass(frozen=True)
class Query:
    """A query and where it runs; ``open_log`` takes it for a log.

    Parameters
    ----------
    text : str
    connection : str, Path or connection
    """

    text: str
    connection: Any = field(repr=False)  # it may hold a password


def sql(query: str, connection: Any) -> Query:
    """Take the rows of a query for a log: ``HierOPO().fit(sql("select * from log", url), ...)``.

    Only the columns that are needed are asked for, and a filter becomes part of the query. It is run once for each
    pass over the log. With a URL of PostgreSQL all passes see one state of the tables. Where the order of its rows is
    not fixed, as in joins, add ``order by``: an evaluation tells rows by their numbers.

    Parameters
    ----------
    query : str
        One that returns rows.
    connection : str, Path or connection
        A URL ``postgresql://user@host/database`` (needs the package adbc-driver-postgresql; libpq's PGPASSWORD and
        .pgpass count), the path of a DuckDB file, a DuckDB connection, or a connection of ADBC, whose cursors have
        ``fetch_record_batch``.

    Raises
    ------
    InputError
        Raised when it is opened: there is no such database, the query fails, the connection hands out no Arrow.
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
    where = query.connection
    if isinstance(where, str | os.PathLike):
        place = os.fspath(where)
        if place.lower().startswith(POSTGRES):
            return _postgres(text, place)
        return _duckdb_file(text, place)
    if type(where).__module__.split(".")[0].lstrip("_") == "duckdb":
        return _relation(text, where, "DuckDB")
    if not hasattr(where, "cursor"):
        raise InputError(
            f"A query runs on a connection, or on the URL or path of a database, not on a {type(where).__name__}."
        )
    return SqlSource(text, where, f"query {short(text)}")


def without_password(place: str) -> str:
    """A URL of a database as it can be shown and stored."""
    if "://" not in place:
        return place
    parts = urlsplit(place)
    user, at, host = parts.netloc.rpartition("@")
    kept = urlencode([(key, value) for key, value in parse_qsl(parts.query) if key != "password"], safe="/")
    return urlunsplit(parts._replace(netloc=user.partition(":")[0] + at + host, query=kept))


def _postgres(text: str, url: str) -> LogSource:
    try:
        from adbc_driver_postgresql import dbapi
    except ImportError as error:
        raise InputError(
            "PostgreSQL is read through its ADBC driver, which is not installed: pip install 'hieropo[postgresql]'."
        ) from error
    place = without_password(url)
    connection = _tried(lambda: dbapi.connect(url), f"The database {place} cannot be reached")
    try:
        with closing(connection.cursor()) as cursor:
            for setting in _SETTINGS:
                _tried(
                    lambda setting=setting: cursor.execute(setting), f"The database {place} cannot be read"
                )
        return SqlSource(text, _Session(connection), f"query {short(text)} on {place}")
    except BaseException:
        connection.close()
        raise


class _Session:
    """A connection that is closed when no source uses it any more."""

    def __init__(self, connection: Any) -> None:
        self.cursor = connection.cursor
        finalize(self, connection.close)


def _duckdb_file(text: str, place: str) -> LogSource:
    path = Path(place)
    if "://" in place or not path.is_file():
        raise InputError(
            f"There is no database {without_password(place)!r}. A query runs on a URL such as "
            "postgresql://user@host/database, on the path of a DuckDB file, or on an open connection."
        )
    try:
        import duckdb
    except ImportError as error:
        raise InputError("DuckDB files are read by DuckDB: pip install 'hieropo[duckdb]'.") from error
    return _relation(
        text,
        _tried(lambda: duckdb.connect(str(path), read_only=True), f"{str(path)!r} cannot be read as DuckDB"),
        str(path),
    )


def _relation(text: str, connection: Any, place: str) -> LogSource:
    name = f"query {short(text)} on {place}"
    relation = _tried(lambda: connection.sql(f"select * from (\n{text}\n) as log"), f"The {name} fails")
    return RelationSource(relation, name)


def _tried(step: Any, what: str) -> Any:
    """Take a step in a database, whose exceptions are of its own package."""
    try:
        return step()
    except HieropoError:
        raise
    except Exception as error:
        raise InputError(f"{what}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return re.sub(r"\s+", " ", str(error)).strip()


class SqlSource:
    """The rows of a query on a connection of ADBC: run once for each pass, only the columns asked for."""

    n_rows = None
    rereadable = True

    def __init__(self, query: str, connection: Any, name: str, where: str = "") -> None:
        self.name = name
        self._query, self._connection, self._where = query, connection, where
        with closing(self._cursor()) as cursor, self._run(cursor, ["*"], " limit 0") as reader:
            self._columns = {each.name: postgres_column(each) for each in reader.schema}
            self.schema = pa.schema([each.field for each in self._columns.values()])

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

    def filtered(self, by: Filter) -> "SqlSource | None":
        """Let the query filter, where the filter was given as text."""
        if by.sql is None:
            return None
        return SqlSource(self._query, self._connection, f"{self.name} where {by.text}", f" where {by.sql}")

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
        text = f"select {', '.join(selected)} from (\n{self._query}\n) as log{self._where}{limit}"
        what = f"The {self.name} fails"
        _tried(lambda: cursor.execute(text), what)
        return _tried(cursor.fetch_record_batch, what)

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
        cursor = _tried(self._connection.cursor, f"The {self.name} cannot run")
        if not hasattr(cursor, "fetch_record_batch"):
            cursor.close()
            raise InputError(
                f"The connection of the {self.name} hands out rows, not Arrow: its cursors are of type "
                f"{type(cursor).__module__}.{type(cursor).__name__}. Connect by a URL postgresql://..., by the ADBC "
                "driver of the database, or hand over a frame of its rows."
            )
        return cursor
