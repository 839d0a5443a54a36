"""Write tables or lines to one file atomically: after an error the old file is still there, and no partial one."""

import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hieropo._utils.text import as_json
from hieropo.errors import ArtifactError
from hieropo.logs.arrow.arrays import decoded, plain_texts
from hieropo.rows.batches import TaskColumns

ENDINGS = {
    ".parquet": "parquet", ".pq": "parquet", ".parq": "parquet", ".csv": "csv", ".tsv": "tsv",
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".arrow": "arrow", ".ipc": "arrow", ".feather": "arrow",
}  # fmt: skip
TABLE_SUFFIXES = (".parquet", ".pq", ".csv")


def id_column(ids: Sequence[Any] | NDArray[Any]) -> pa.Array:
    """Return ids as an Arrow column: of their own type where they share one, else as text.

    Whole numbers beyond 64 bits become decimals without a fraction, which are read back as whole numbers.
    """
    values = ids if isinstance(ids, np.ndarray) and ids.dtype != object else list(ids)
    for kind in (None, pa.uint64(), pa.decimal128(38), pa.decimal256(76)):
        try:
            return pa.array(values, kind)
        except (pa.ArrowException, OverflowError):
            if not all(type(value) is int for value in values):
                break
    return pa.array([str(value) for value in ids])


def task_id_columns(task: TaskColumns, ids: Sequence[Any] | NDArray[Any]) -> dict[str, pa.Array]:
    """Return the columns of task ids by name: several where a task has several, none where the log is one task."""
    if isinstance(task, str):
        return {task: id_column(ids)}
    return {column: id_column([each[k] for each in ids]) for k, column in enumerate(task or ())}


def write_tables(
    path: str | Path, tables: Iterable[Any], *, metadata: Mapping[str, str] | None = None
) -> int:
    """Write tables to one file in the format of its ending, and return the number of rows.

    Endings are those of :data:`ENDINGS`: Parquet, CSV, JSON lines and Arrow; a name without one of them is Parquet. The
    rows go to a hidden file beside ``path``, which replaces ``path`` in one step when it is complete.

    Parameters
    ----------
    path : str or Path
        Its folder must exist; an existing file is replaced.
    tables : iterable of pa.Table, pa.RecordBatch or mapping of a name to a column
        At least one; the first sets names and types.
    metadata : mapping of text, optional
        Metadata of the file, where its format has such.

    Raises
    ------
    ArtifactError
        The folder is missing, ``path`` is a folder, or the file cannot be written.
    """
    target = Path(path)
    kind = ENDINGS.get(target.suffix.lower(), "parquet")

    def write(partial: Path) -> int:
        with partial.open("wb") as file:
            return _write_all(file, tables, metadata, kind, in_file=True)

    return _write_atomically(target, write)


def write_stream(stream: IO[bytes], tables: Iterable[Any], kind: str) -> int:
    """Write tables to a stream, such as standard output, in one of the formats of :data:`ENDINGS`; as write_tables."""
    return _write_all(stream, tables, None, kind, in_file=False)


def write_lines(path: str | Path, lines: Iterable[str]) -> int:
    """Write lines of text in UTF-8 to one file, as :func:`write_tables` does, and return their number."""

    def write(partial: Path) -> int:
        count = 0
        with partial.open("w", encoding="utf-8", newline="\n") as file:
            for count, line in enumerate(lines, 1):  # noqa: B007  # the last count is returned
                file.write(f"{line}\n")
        return count

    return _write_atomically(Path(path), write)


def _write_atomically(target: Path, write: Callable[[Path], int]) -> int:
    check_target(target)
    partial = target.with_name(f".{target.name}.saving-{secrets.token_hex(6)}")
    try:
        rows = write(partial)
        partial.replace(target)
    except OSError as error:
        raise ArtifactError(
            f"{target} was not written: {error.strerror or error}. Make room on the disk, or give this user the right "
            "to write in the folder."
        ) from error
    finally:
        partial.unlink(missing_ok=True)
    return rows


def check_target(target: Path, example: str = "rows.parquet") -> None:
    """Refuse a path to which no file can be written.

    Raises
    ------
    ArtifactError
        It is a folder, or lies in none.
    """
    if target.is_dir():
        raise ArtifactError(f"{target} is a folder; one file is written. Name a file in it, such as "
                            f"{target / example}.")  # fmt: skip
    if not target.parent.is_dir():
        raise ArtifactError(
            f"{target} cannot be written: there is no folder {target.parent}. Create it first."
        )


def _write_all(
    stream: IO[bytes], tables: Iterable[Any], metadata: Mapping[str, str] | None, kind: str, *, in_file: bool
) -> int:
    rows = 0
    writer: Any = None
    try:
        for part in tables:
            table = pa.Table.from_batches([part]) if isinstance(part, pa.RecordBatch) else pa.table(part)
            if kind != "arrow":
                table = _in_plain_types(table, texts=kind in ("csv", "tsv"))
            if writer is None:
                if metadata:
                    table = table.replace_schema_metadata(dict(metadata))
                schema, writer = table.schema, _writer(stream, table.schema, kind, in_file=in_file)
            writer.write_table(table.cast(schema))
            rows += table.num_rows
    finally:
        if writer is not None:
            writer.close()
    return rows


def _writer(stream: IO[bytes], schema: pa.Schema, kind: str, *, in_file: bool) -> Any:
    if kind == "parquet":
        return pq.ParquetWriter(stream, schema, compression="zstd")
    if kind == "arrow":
        return pa.ipc.new_file(stream, schema) if in_file else pa.ipc.new_stream(stream, schema)
    if kind == "jsonl":
        return _JsonLines(stream)
    from pyarrow.csv import CSVWriter, WriteOptions

    return CSVWriter(stream, schema, write_options=WriteOptions(delimiter="\t" if kind == "tsv" else ","))


class _JsonLines:
    """Writes tables as lines of JSON: numbers as numbers, times as text, lists as lists, NaN and infinity as null."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def write_table(self, table: pa.Table) -> None:
        """Write a line for each row."""
        if not table.num_rows:
            return
        parts: list[Any] = []
        for k, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
            parts += [f"{', ' if k else '{'}{json.dumps(name, ensure_ascii=False)}: ", _json_texts(column)]
        lines = pc.binary_join_element_wise(*parts, "}", "", null_handling="replace", null_replacement="null")
        self._stream.write("\n".join(lines.to_pylist()).encode())
        self._stream.write(b"\n")

    def close(self) -> None:
        """Nothing is kept back."""


def _json_texts(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """Return the JSON of the values of a column as text; null for null."""
    column = _decoded_chunks(column)
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return column.cast(pa.string())
    if pa.types.is_floating(kind):
        finite = pc.if_else(pc.is_finite(column), column, pa.scalar(None, kind))
        return finite.cast(pa.string())
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.string())
    texts = column if _is_nested(kind) else column.cast(_text_type(kind))
    if _is_nested(kind) or pa.types.is_binary(texts.type):
        return pa.array([None if value is None else _json(value) for value in texts.to_pylist()], pa.string())
    encoded = texts.combine_chunks().dictionary_encode()
    quoted = pa.array(
        [json.dumps(text, ensure_ascii=False) for text in encoded.dictionary.to_pylist()], pa.string()
    )
    return quoted.take(encoded.indices)


def _text_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of text that values of a type become; bytes stay bytes."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    is_bytes = (
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    )
    return pa.binary() if is_bytes or pa.types.is_binary_view(kind) else pa.string()


def _json(value: Any) -> str:
    return json.dumps(as_json(value), ensure_ascii=False, allow_nan=False, default=str)


def _is_nested(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind)) or isinstance(kind, pa.BaseExtensionType)


def _in_plain_types(table: pa.Table, *, texts: bool) -> pa.Table:
    """Return a table without views of strings; as ``texts`` also without dictionaries, and with lists as JSON."""
    for k, field in enumerate(table.schema):
        column, kind = table.column(k), field.type
        is_encoded = pa.types.is_dictionary(kind)
        if texts and (_is_nested(kind) or _text_type(kind) == pa.binary()):
            values = [
                None if value is None else _plain_text(value) for value in _decoded_chunks(column).to_pylist()
            ]
            column = pa.chunked_array([pa.array(values, pa.string())])
        elif is_encoded and (texts or _is_view(kind.value_type)):
            column = _decoded_chunks(column)
        elif _is_view(kind):
            column = pa.chunked_array([plain_texts(chunk) for chunk in column.chunks], pa.large_string())
        table = table.set_column(k, field.name, column)
    return table


def _decoded_chunks(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column without dictionaries."""
    if not pa.types.is_dictionary(column.type):
        return column
    return pa.chunked_array(
        [decoded(chunk) for chunk in column.chunks] or [decoded(pa.nulls(0, column.type))]
    )


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind))


def _plain_text(value: Any) -> str:
    return _json(value) if isinstance(value, list | dict | tuple) else str(value)
