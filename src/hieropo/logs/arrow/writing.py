"""Tables and text written to one file, whole or not at all."""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hieropo.errors import ArtifactError

TABLE_SUFFIXES = (".parquet", ".pq", ".csv")


def id_column(ids: Sequence[Any] | NDArray[Any]) -> pa.Array:
    """Ids as an Arrow column: of their own type where they share one, else as text.

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


def write_tables(
    path: str | Path, tables: Iterable[Any], *, metadata: Mapping[str, str] | None = None
) -> int:
    """Write tables to one Parquet file, or CSV where its name ends so, whole or not at all; returns how many rows.

    The rows go to a hidden file beside ``path``, which takes that name in one step when all are there.

    Parameters
    ----------
    path : str or Path
        Its folder must exist; a file that stands there is replaced.
    tables : iterable of pa.Table, pa.RecordBatch or mapping of a name to a column
        At least one; the first sets names and types.
    metadata : mapping of text, optional
        What the file says of itself.

    Raises
    ------
    ArtifactError
        The folder is missing, ``path`` is a folder, or the disk does not take the file.
    """
    target = Path(path)
    csv = target.suffix.lower() == ".csv"
    return _replaced(target, lambda partial: _written(partial, tables, metadata, csv=csv))


def write_lines(path: str | Path, lines: Iterable[str]) -> int:
    """Write lines of text in UTF-8 to one file, whole or not at all, as :func:`write_tables`; returns how many."""

    def write(partial: Path) -> int:
        count = 0
        with partial.open("w", encoding="utf-8", newline="\n") as file:
            for count, line in enumerate(lines, 1):  # noqa: B007  # the last count is the answer
                file.write(f"{line}\n")
        return count

    return _replaced(Path(path), write)


def _replaced(target: Path, write: Callable[[Path], int]) -> int:
    check_target(target)
    partial = target.with_name(f".{target.name}.saving-{secrets.token_hex(6)}")
    try:
        rows = write(partial)
        partial.replace(target)
    except OSError as error:
        raise ArtifactError(
            f"{target} was not written: {error.strerror or error}. Is the disk full, or the folder closed to "
            "this user?"
        ) from error
    finally:
        partial.unlink(missing_ok=True)
    return rows


def check_target(target: Path) -> None:
    """Refuse a path that no file can be written to.

    Raises
    ------
    ArtifactError
        It is a folder, or lies in none.
    """
    if target.is_dir():
        raise ArtifactError(f"{target} is a folder; one file is written. Name a file in it, such as "
                            f"{target / 'rows.parquet'}.")  # fmt: skip
    if not target.parent.is_dir():
        raise ArtifactError(f"{target} cannot be written: there is no folder {target.parent}. Make it first.")


def _written(path: Path, tables: Iterable[Any], metadata: Mapping[str, str] | None, *, csv: bool) -> int:
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
