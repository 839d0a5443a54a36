"""Open files, frames, Arrow objects and queries as a source of rows."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from hieropo.errors import InputError, SchemaError
from hieropo.logs.arrow.filters import filtered
from hieropo.logs.arrow.log_source import LogSource, empty
from hieropo.logs.arrow.progress_source import watched
from hieropo.logs.engines.sql import Query, open_query
from hieropo.logs.engines.tables import (
    DatasetSource,
    LazySource,
    RelationSource,
    StreamSource,
    TableSource,
    iterator_source,
)
from hieropo.logs.formats.csv_files import open_csv
from hieropo.logs.formats.files import FilesSource
from hieropo.logs.formats.hive import HiveSource, folder_columns
from hieropo.logs.formats.ipc import open_ipc
from hieropo.logs.formats.json_lines import open_json_lines
from hieropo.logs.formats.parquet import ParquetSource
from hieropo.logs.formats.paths import TEXTS, LogFiles, find_files
from hieropo.logs.formats.text_types import Types, stated_types

_SOURCES = (
    "a path to a file, a folder or a glob (Parquet, CSV, JSON lines, Arrow IPC), an Arrow table, batch, reader or "
    "dataset, a pandas or polars DataFrame, a DuckDB relation, any object with __arrow_c_stream__, or an iterator of "
    "such batches"
)


def open_log(
    source: Any,
    *,
    filter: Any = None,  # noqa: A002 - what it is called everywhere
    rereadable: bool = False,
    types: Mapping[str, str | pa.DataType] | None = None,
    lenient: bool = False,
) -> LogSource:
    """Open anything with rows as a source.

    Of files that state their types only the schema is read here; CSV and JSON lines are read once for the types of all
    their values.

    Parameters
    ----------
    source : path, Arrow object, DataFrame, relation or LogSource
        A str or Path to a file, to a folder (sorted, with its subfolders; folders like ``day=2026-01-31`` name a
        column) or a glob: Parquet, CSV or TSV, JSON lines (these may be compressed, ``.csv.gz``), Arrow IPC, Feather.
        A pyarrow Table, RecordBatch, RecordBatchReader or Dataset; a pandas DataFrame; a polars DataFrame or
        LazyFrame; a DuckDB relation; any object with ``__arrow_c_stream__``; an iterator or a list of such batches; a
        query by :func:`sql`. An open LogSource is returned as it is.
    filter : str or pyarrow Expression, optional
        Rows to keep, such as ``"day >= '2026-01-01' and country in ('NL', 'BE')"``; rows are numbered among those.
        Files, row groups and folders in which no row can pass are not read; relations and datasets filter themselves.
    rereadable : bool
        Keep the rows of a RecordBatchReader or an iterator in memory, so that more than one pass over them is possible.
        Every other source allows that anyway.
    types : mapping of a column to a type, optional
        For text files and names of folders: "text", "integer", "number", "boolean", "date", "time", or an Arrow type.
        A column that is not named gets the type that all of its values have.
    lenient : bool
        True to allow that rows of text files are set aside where a value is not of its column's type. Otherwise such a
        value is an error, here or while reading.

    Raises
    ------
    InputError
        Not a source of rows, or no such path; types for a source that states its own.
    SchemaError
        It cannot be turned into Arrow.
    LogError
        No rows, no file of a known format in the folder, a torn file.
    """
    log = _open(source, stated_types(types), lenient=lenient)
    if filter is not None:
        log = filtered(log, filter)
    if rereadable and not log.rereadable:
        table = pa.Table.from_batches(log.batches(log.schema.names), log.schema)
        log = TableSource(table, log.name)
    if log.n_rows == 0:
        raise empty(log.name)
    return watched(log)


def _open(source: Any, stated: Types, *, lenient: bool) -> LogSource:
    if isinstance(source, str | os.PathLike | LogFiles):
        return _open_files(source, stated, lenient=lenient)
    if stated:
        raise InputError(
            f"types= is for text files; this {type(source).__name__} states its own types. Cast its columns instead."
        )
    if hasattr(type(source), "batches") and isinstance(
        source, LogSource
    ):  # isinstance alone would run a LazyFrame
        return source
    if isinstance(source, Query):
        return open_query(source)
    return _open_arrow(source) or _open_frame(source)


def _open_arrow(source: Any) -> LogSource | None:
    if isinstance(source, pa.Table):
        return TableSource(source, "Arrow table")
    if isinstance(source, pa.RecordBatch):
        return TableSource(pa.Table.from_batches([source]), "Arrow record batch")
    if isinstance(source, pa.RecordBatchReader):
        return StreamSource(source, source.schema, "Arrow stream")
    return None


def _open_files(path: str | os.PathLike[str] | LogFiles, stated: Types, *, lenient: bool) -> LogSource:
    log_files = path if isinstance(path, LogFiles) else find_files(path)
    log: ParquetSource | FilesSource
    if log_files.kind == "Parquet":
        log = ParquetSource(log_files.files, log_files.name)
    elif log_files.kind == "CSV":
        log = FilesSource(*open_csv(log_files.files, stated, lenient=lenient), log_files.name)
    elif log_files.kind == "JSON lines":
        log = FilesSource(*open_json_lines(log_files.files, stated, lenient=lenient), log_files.name)
    else:
        log = FilesSource(*open_ipc(log_files.files), log_files.name)
    columns_by_file = folder_columns(log_files.files, log_files.root, stated, log.schema.names)
    folder_names = {name for file_columns in columns_by_file for name in file_columns}
    unknown = [
        name
        for name in stated
        if name not in folder_names and not (log_files.kind in TEXTS and name in log.schema.names)
    ]
    if unknown:
        raise InputError(
            f"types= names {unknown[0]!r}, which is no column of text of the {log.name}. Types can be stated for "
            "columns of CSV, of JSON lines and of the names of folders."
        )
    return HiveSource(log, log_files.files, columns_by_file) if folder_names else log


def _open_frame(source: Any) -> LogSource:
    kind = type(source)
    package = kind.__module__.split(".")[0].lstrip("_")
    if "Dataset" in kind.__name__ and package == "pyarrow":
        return DatasetSource(source, "Arrow dataset")
    if kind.__name__ == "LazyFrame" and package == "polars":
        return LazySource(source, "polars LazyFrame")
    if package == "pyspark":
        raise InputError(
            f"This pyspark {kind.__name__} would come through the driver, with all of its rows. Sum them on the "
            "workers: hieropo.spark.moments(frame, out=...), and fit its result; decide by hieropo.spark.decide. Rows "
            "that fit here are frame.toArrow()."
        )
    if not hasattr(source, "__arrow_c_stream__"):
        if isinstance(source, Iterator) or _holds_batches(source):
            return iterator_source(source, f"{kind.__name__} of batches")
        raise InputError(_no_source_message(source, kind, package))
    if package == "duckdb":
        return RelationSource(source, "DuckDB relation")
    name = f"{package} {kind.__name__}"
    try:
        return TableSource(pa.table(source), name)
    except (pa.ArrowException, TypeError, ValueError) as error:
        # pandas names the column in a second argument
        parts = [str(error)] if len(error.args) < 2 else map(str, error.args)
        reason = "; ".join(part.strip().rstrip(".") for part in parts)
        raise SchemaError(
            f"The {name} cannot be turned into an Arrow table: {reason}. Hand over a frame with only the columns that "
            "are needed. If a column has values of several types, convert it, such as by "
            "frame['column'].astype('string')."
        ) from error


def _holds_batches(source: Any) -> bool:
    return (
        isinstance(source, list | tuple)
        and bool(source)
        and hasattr(source[0], "__arrow_c_array__") | hasattr(source[0], "__arrow_c_stream__")
    )


def _no_source_message(source: Any, kind: type, package: str) -> str:
    prefix = "" if package == "builtins" else f"{package}."
    text = f"This {prefix}{kind.__name__} is not a source of rows"
    if kind.__name__ == "DuckDBPyConnection":
        return f"{text}. Hand over connection.sql(query) or connection.table(name)."
    if isinstance(source, dict):
        return f"{text}. Hand over pyarrow.table(columns), if it maps names to columns."
    if isinstance(source, list | tuple):
        return f"{text}. Hand over pyarrow.Table.from_pylist(rows), if it holds one dict for each row."
    if package == "pandas":
        return f"{text}. Hand over a DataFrame of pandas 2.2 or newer."
    return f"{text}. It may be {_SOURCES}."
