"""Parquet files and folders of them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hieropo.errors import InputError, LogError, SchemaError
from hieropo.sources.log_source import BATCH_ROWS, regroup
from hieropo.sources.schema import is_text

_PART_ROWS = 2**18  # row groups are joined up to so many rows: a part costs a look at the footer
_PART_BATCH = 2**20  # rows of a batch of a part; each batch carries the dictionaries of its row group
SUFFIXES = (".parquet", ".parq", ".pq")
_OTHERS = {
    ".csv": "pyarrow.csv.read_csv(path)",
    ".tsv": "pyarrow.csv.read_csv(path, parse_options=pyarrow.csv.ParseOptions(delimiter='\\t'))",
    ".json": "pyarrow.json.read_json(path)",
    ".jsonl": "pyarrow.json.read_json(path)",
    ".ndjson": "pyarrow.json.read_json(path)",
    ".feather": "pyarrow.feather.read_table(path)",
    ".arrow": "pyarrow.ipc.open_file(path).read_all()",
    ".orc": "pyarrow.orc.read_table(path)",
}


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    schema: pa.Schema
    groups: tuple[int, ...]
    repeated: frozenset[str]

    @property
    def n_rows(self) -> int:
        return sum(self.groups)


@dataclass(frozen=True, slots=True)
class ParquetPart:
    """Consecutive row groups of one file, as :class:`log_source.Part` says."""

    file: int
    first_row: int
    n_rows: int
    _file: _File
    _groups: tuple[int, ...]
    _target: pa.Schema

    @property
    def name(self) -> str:
        """The file and its row groups, for messages."""
        first, last = self._groups[0], self._groups[-1]
        groups = f"row group {first}" if first == last else f"row groups {first} to {last}"
        return f"{groups} of Parquet file {str(self._file.path)!r}"

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield its rows; text columns that repeat themselves come dictionary-encoded."""
        encoded = [column for column in self._target.names if column in self._file.repeated]
        rows = _rows(self._file, self._target.names, encoded, _PART_BATCH, self._groups)
        return (_fitted(batch, self._target, encoded, self._file) for batch in rows)


class ParquetSource:
    """One Parquet file, or several read one after the other."""

    rereadable = True

    def __init__(self, files: Iterable[Path], name: str) -> None:
        self.name = name
        self._files = [_footer(path) for path in files]
        self.schema = _merged(self._files)
        self.n_rows = sum(file.n_rows for file in self._files)

    def batches(self, columns: Sequence[str], batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield all rows with these columns only; the other columns are not read from disk.

        Raises
        ------
        SchemaError
            A file lacks a column that others have.
        LogError
            While reading: a file is torn; names it.
        """
        target = self._target(columns)
        encoded = [column for column in columns if all(column in file.repeated for file in self._files)]
        parts = (
            _fitted(batch, target, encoded, file)
            for file in self._files
            for batch in _rows(file, target.names, encoded, batch_rows)
        )
        return regroup(parts, batch_rows)

    def parts(self, columns: Sequence[str]) -> list[ParquetPart]:
        """One part for each row group, with these columns only; small row groups of a file are joined.

        Raises
        ------
        SchemaError
            A file lacks a column that others have.
        """
        target, found, row = self._target(columns), [], 0
        for number, file in enumerate(self._files):
            for groups in _joined(file.groups):
                rows = sum(file.groups[group] for group in groups)
                found.append(ParquetPart(number, row, rows, file, groups, target))
                row += rows
        return found

    def _target(self, columns: Sequence[str]) -> pa.Schema:
        """Schema of the columns asked for; every file has them."""
        for file in self._files:
            for column in columns:
                if column not in file.schema.names:
                    raise SchemaError(
                        f"Column {column!r} is missing from {str(file.path)!r}, though other files of "
                        f"the {self.name} have it. Was it added or renamed later? Write that file anew with "
                        "the column, or read the folders apart."
                    )
        return pa.schema([self.schema.field(column) for column in columns])


def _joined(groups: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Numbers of row groups that make a part: one, or several small ones."""
    held: list[int] = []
    rows = 0
    for group, size in enumerate(groups):
        if held and rows + size > _PART_ROWS:
            yield tuple(held)
            held, rows = [], 0
        held.append(group)
        rows += size
    if held:
        yield tuple(held)


def open_parquet(path: Path) -> ParquetSource:
    """Open a file, or all Parquet files in a folder and below, ordered by path.

    Files and folders whose names begin with a dot or an underscore are left out, as the writers of such
    folders mean it.

    Raises
    ------
    InputError
        Nothing is there, or this user may not read it.
    LogError
        No Parquet file in the folder, a torn or empty one, a table format whose folder also holds dead rows.
    """
    try:
        if not path.exists():
            raise InputError(_not_found(path))
        if path.is_dir():
            return ParquetSource(_inside(path), f"Parquet folder {str(path)!r}{_partitions(path)}")
        return ParquetSource([path], f"Parquet file {str(path)!r}")
    except PermissionError as error:
        raise InputError(
            f"{str(error.filename or path)!r} cannot be read: permission denied. Is it open to this user, and every "
            "folder above it?"
        ) from error


def _inside(folder: Path) -> list[Path]:
    _refuse_table_formats(folder)
    below = [path.relative_to(folder) for path in folder.rglob("*")]
    shown = [path for path in below if not any(part.startswith((".", "_")) for part in path.parts)]
    files = [folder / path for path in sorted(shown) if path.suffix.lower() in SUFFIXES]
    files = [path for path in files if path.is_file()]
    if not files:
        others = sorted({path.suffix for path in shown if path.suffix})
        has = f"it holds files ending in {', '.join(others)}" if others else "it is empty"
        raise LogError(
            f"There is no Parquet file in the folder {str(folder)!r} or below ({has}). Files must end in "
            f"{' or '.join(SUFFIXES)}."
        )
    return files


def _refuse_table_formats(folder: Path) -> None:
    delta = (folder / "_delta_log").is_dir()
    if delta or any((folder / "metadata").glob("*.metadata.json")):
        kind, call = ("a Delta", "delta_scan") if delta else ("an Iceberg", "iceberg_scan")
        raise LogError(
            f"{str(folder)!r} is {kind} table: its Parquet files also hold deleted and replaced rows. "
            f"Read it through its own format, for example duckdb.sql(\"from {call}('{folder}')\"), and "
            "hand that over."
        )


def _partitions(folder: Path) -> str:
    keys = sorted({part.name.split("=")[0] for part in folder.rglob("*=*") if part.is_dir()})
    if not keys:
        return ""
    return (
        f" (the folder names {', '.join(key + '=...' for key in keys)} are not read as columns; "
        "pyarrow.dataset.dataset(path, partitioning='hive') does so)"
    )


def _not_found(path: Path) -> str:
    text = f"There is no file or folder {str(path)!r}"
    if not path.is_absolute():
        text += f"; relative paths start at {str(Path.cwd())!r}"
    if path.parts and path.parts[0].startswith("~"):
        text += "; write Path(...).expanduser() for a path that begins with ~"
    near = (
        get_close_matches(path.name, [p.name for p in path.parent.glob("*")], n=1, cutoff=0.75)
        if path.name
        else []
    )
    return text + (f". Did you mean {str(path.parent / near[0])!r}?" if near else ". Check the spelling.")


def _footer(path: Path) -> _File:
    try:
        with pq.ParquetFile(path) as file:
            meta = file.metadata
            sizes = tuple(meta.row_group(group).num_rows for group in range(meta.num_row_groups))
            return _File(path, file.schema_arrow, sizes, _repeated(file))
    except PermissionError:
        raise
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from error


def _repeated(file: pq.ParquetFile) -> frozenset[str]:
    """Text columns with few distinct values: those that take less than 4 bytes a row on disk."""
    if not file.metadata.num_row_groups:
        return frozenset()
    group = file.metadata.row_group(0)
    sizes = {}
    for j in range(group.num_columns):
        chunk = group.column(j)
        sizes[chunk.path_in_schema] = chunk.total_uncompressed_size / max(1, chunk.num_values)
    texts = [field.name for field in file.schema_arrow if is_text(field.type)]
    return frozenset(name for name in texts if sizes.get(name, 4.0) < 4.0)


def _unreadable(path: Path, error: Exception) -> LogError:
    text = f"{str(path)!r} cannot be read as Parquet"
    if path.stat().st_size == 0:
        return LogError(
            f"{text}: it is empty (0 bytes). Was it still being written? Write it anew or remove it."
        )
    if path.suffix.lower() in _OTHERS:
        table = _OTHERS[path.suffix.lower()]
        return LogError(
            f"{text}. For {path.suffix}, hand over {table}; for the command line, make it a Parquet file with "
            f"pyarrow.parquet.write_table({table}, {str(path.with_suffix('.parquet'))!r})."
        )
    reason = str(error).strip().rstrip(".")
    return LogError(
        f"{text}: {reason}. Was it cut off while it was written or copied, or is it another format? "
        "Write or copy it anew."
    )


def _merged(files: Sequence[_File]) -> pa.Schema:
    """Schema of all files: the widest type of each column."""
    merged = files[0].schema
    for file in files[1:]:
        if not merged.equals(file.schema):
            try:
                merged = pa.unify_schemas(
                    [_undictionary(merged), _undictionary(file.schema)], promote_options="permissive"
                )
            except (pa.ArrowException, TypeError) as error:
                raise SchemaError(
                    f"{str(file.path)!r} does not fit the files before it (the first is "
                    f"{str(files[0].path)!r}): {str(error).strip()}. Give the column one type in all files."
                ) from error
    return merged


def _undictionary(schema: pa.Schema) -> pa.Schema:
    plain = [
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
        for field in schema
    ]
    return pa.schema(plain)


def _rows(
    file: _File,
    columns: Sequence[str],
    encoded: Sequence[str],
    batch_rows: int,
    groups: Sequence[int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, or those of some of its row groups, which are decoded in this thread alone."""
    done = 0
    try:
        # these texts stay encoded as they lie in the file, and ids are made once for each distinct one
        with pq.ParquetFile(file.path, read_dictionary=encoded) as opened:
            alone = groups is not None
            for batch in opened.iter_batches(batch_rows, groups, list(columns), use_threads=not alone):
                yield batch
                done += batch.num_rows
    except (OSError, pa.ArrowException) as error:
        size = file.n_rows if groups is None else sum(file.groups[group] for group in groups)
        where = "it" if groups is None else f"from row group {groups[0]} on it"
        raise LogError(
            f"{str(file.path)!r} is torn: {where} should hold {size} rows and fails after {done} "
            f"({str(error).strip()}). Copy or write it anew."
        ) from error


def _fitted(batch: pa.RecordBatch, target: pa.Schema, encoded: Sequence[str], file: _File) -> pa.RecordBatch:
    """Bring the columns to the order asked for, and to the type that they have in all files together."""
    columns = []
    for field in target:
        column = batch.column(field.name)
        if field.name not in encoded and column.type != field.type:
            try:
                column = column.cast(field.type)
            except pa.ArrowException as error:
                raise SchemaError(
                    f"Column {field.name!r} of {str(file.path)!r} is {column.type}, but {field.type} over "
                    f"all files, and a value does not fit: {error}. Give the column one type in all files."
                ) from error
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=target.names)
