"""Write tables or lines to one file atomically: after an error the old file is still there, and no partial one."""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hieropo.errors import ArtifactError
from hieropo.rows.batches import TaskColumns

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
    """Write tables to one Parquet file, or to CSV where the name ends in .csv, and return the number of rows.

    The rows go to a hidden file beside ``path``, which replaces ``path`` in one step when it is complete.

    Parameters
    ----------
    path : str or Path
        Its folder must exist; an existing file is replaced.
    tables : iterable of pa.Table, pa.RecordBatch or mapping of a name to a column
        At least one; the first sets names and types.
    metadata : mapping of text, optional
        Metadata of the file.

    Raises
    ------
    ArtifactError
        The folder is missing, ``path`` is a folder, or the file cannot be written.
    """
    target = Path(path)
    csv = target.suffix.lower() == ".csv"
    return _write_atomically(target, lambda partial: _write_all(partial, tables, metadata, csv=csv))


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


def _write_all(path: Path, tables: Iterable[Any], metadata: Mapping[str, str] | None, *, csv: bool) -> int:
    rows = 0
    writer: Any = None
    try:
        for part in tables:
            table = pa.Table.from_batches([part]) if isinstance(part, pa.RecordBatch) else pa.table(part)
            if writer is None:
                if metadata:
                    table = table.replace_schema_metadata(dict(metadata))
                schema, writer = table.schema, _writer(path, table.schema, csv=csv)
            writer.write_table(table.cast(schema))
            rows += table.num_rows
    finally:
        if writer is not None:
            writer.close()
    return rows


def _writer(path: Path, schema: pa.Schema, *, csv: bool) -> Any:
    if not csv:
        return pq.ParquetWriter(path, schema, compression="zstd")
    from pyarrow.csv import CSVWriter

    return CSVWriter(path, schema)
