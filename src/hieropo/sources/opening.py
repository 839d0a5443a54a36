"""From whatever the caller has to a source of rows."""

import os
import re
from pathlib import Path
from typing import Any

import pyarrow as pa

from hieropo.errors import InputError, SchemaError
from hieropo.sources.log_source import LogSource, empty
from hieropo.sources.parquet import open_parquet
from hieropo.sources.tables import DatasetSource, RelationSource, StreamSource, TableSource

_SQL = re.compile(r"\s*(select|with|from|values|table|describe)\s+\S+", re.IGNORECASE)
_URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_TAKEN = (
    "a path to a Parquet file or folder, an Arrow table, batch, reader or dataset, a pandas or polars "
    "DataFrame, a DuckDB relation, or any object with __arrow_c_stream__"
)


def open_log(source: Any, *, rereadable: bool = False) -> LogSource:
    """Open anything with rows; nothing but names, types and footers is read here.

    Parameters
    ----------
    source : path, Arrow object, DataFrame, relation or LogSource
        A str or Path to a Parquet file or to a folder of them (sorted, with its subfolders); a pyarrow Table,
        RecordBatch, RecordBatchReader or Dataset; a pandas or polars DataFrame; a DuckDB relation; any object
        with ``__arrow_c_stream__``. An open LogSource is returned as it is.
    rereadable : bool
        Keep the rows of a RecordBatchReader in memory, so that more than one pass over them is possible.
        Every other source allows that anyway.

    Raises
    ------
    InputError
        Not a source of rows, or no such path.
    SchemaError
        It cannot be turned into Arrow.
    LogError
        No rows, no Parquet file in the folder, a torn file.
    """
    log = _opened(source)
    if rereadable and not log.rereadable:
        table = pa.Table.from_batches(log.batches(log.schema.names), log.schema)
        log = TableSource(table, log.name)
    if log.n_rows == 0:
        raise empty(log.name)
    return log


def _opened(source: Any) -> LogSource:
    if hasattr(type(source), "batches") and isinstance(source, LogSource):  # a look at a LazyFrame may run it
        return source
    if isinstance(source, str | os.PathLike):
        return open_parquet(_path(source))
    if isinstance(source, pa.Table):
        return TableSource(source, "Arrow table")
    if isinstance(source, pa.RecordBatch):
        return TableSource(pa.Table.from_batches([source]), "Arrow record batch")
    if isinstance(source, pa.RecordBatchReader):
        return StreamSource(source, "Arrow stream")
    return _foreign(source)


def _foreign(source: Any) -> LogSource:
    kind = type(source)
    home = kind.__module__.split(".")[0].lstrip("_")
    if "Dataset" in kind.__name__ and home == "pyarrow":
        return DatasetSource(source, "Arrow dataset")
    if not hasattr(source, "__arrow_c_stream__"):
        raise InputError(_wrong(source, kind, home))
    if home == "duckdb":
        return RelationSource(source, "DuckDB relation")
    name = f"{home} {kind.__name__}"
    try:
        return TableSource(pa.table(source), name)
    except (pa.ArrowException, TypeError, ValueError) as error:
        reason = str(error).strip().rstrip(".")
        raise SchemaError(
            f"The {name} cannot be turned into an Arrow table: {reason}. Hand over a frame with only the "
            "columns that are needed, each of one type."
        ) from error


def _path(source: str | os.PathLike[str]) -> Path:
    text = os.fspath(source)
    if _SQL.match(text) and not Path(text).exists():
        raise InputError(
            f"{_short(text)} looks like SQL, but a str is taken as a path. Hand over its rows: "
            "duckdb.sql(query), or connection.sql(query)."
        )
    if _URL.match(text):
        raise InputError(
            f"{_short(text)} is a URL; only local paths are opened. Hand over "
            "pyarrow.dataset.dataset(url, format='parquet') or duckdb.read_parquet(url)."
        )
    if not text:
        raise InputError("The path of the log is empty. Name a Parquet file or a folder.")
    return Path(text)


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _wrong(source: Any, kind: type, home: str) -> str:
    place = "" if home == "builtins" else f"{home}."
    text = f"This {place}{kind.__name__} is not a source of rows"
    if kind.__name__ == "LazyFrame":
        return f"{text} before it has run. Hand over frame.collect()."
    if kind.__name__ == "DuckDBPyConnection":
        return f"{text}. Hand over connection.sql(query) or connection.table(name)."
    if isinstance(source, dict):
        return f"{text}. Hand over pyarrow.table(columns), if it maps names to columns."
    if isinstance(source, list | tuple):
        return f"{text}. Hand over pyarrow.Table.from_pylist(rows), if it holds one dict for each row."
    if home == "pandas":
        return f"{text}. Hand over a DataFrame of pandas 2.2 or newer."
    return f"{text}. It may be {_TAKEN}."
