"""JSON lines, compressed or not: one object a line.

Each file is read twice: once for the types, which are those of all values in all files, and then the columns asked for.
Text stays text, also where it looks like a date. A whole number that a float would round stays a whole number.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pajson

from hieropo.errors import LogError, SchemaError
from hieropo.logs.arrow.arrays import EXACT
from hieropo.logs.arrow.schema import MIXED, NOTE, is_number, is_text
from hieropo.logs.formats.files import FileRows, open_bytes, unreadable
from hieropo.logs.formats.text_types import JsonType, Types, as_text, converted, kind_of, unguessed

_BLOCK = 4 * 2**20
_ROW = re.compile(r" in row (\d+)")


@dataclass(frozen=True)
class _Block:
    """Complete lines of a file."""

    path: Path
    first_line: int
    content: bytes

    def table(self, schema: pa.Schema | None = None) -> pa.Table:
        """Parse the lines; with a schema only its columns, which have to be of its types."""
        extra = "infer" if schema is None else "ignore"
        return pajson.read_json(
            pa.BufferReader(self.content),
            pajson.ReadOptions(use_threads=False, block_size=len(self.content) + 1),
            pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior=extra),
        )

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield the lines that are not blank, with their numbers."""
        for number, line in enumerate(self.content.split(b"\n"), self.first_line):
            if line.strip():
                yield number, line

    def objects(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the objects, parsed one by one, with the numbers of their lines."""
        for number, line in self.lines():
            try:
                value = json.loads(line, object_pairs_hook=_refuse_repeated_keys)
            except (ValueError, RecursionError) as error:
                raise self.broken(number, str(error)) from error
            if not isinstance(value, dict):
                raise self.broken(number, f"it holds {json.dumps(value)[:40]}, not an object")
            yield number, value

    def texts(self, columns: Sequence[str]) -> dict[str, pa.Array]:
        """Return the values of columns as text, whatever their types."""
        if not columns:
            return {}
        objects = [objects for _, objects in self.objects()]
        return {
            column: pa.array([as_text(values.get(column)) for values in objects], pa.string())
            for column in columns
        }

    def line_of(self, row: int) -> int:
        """Return the number of the line of a row of this block."""
        return next((number for k, (number, _) in enumerate(self.lines()) if k == row), self.first_line)

    def broken(self, line: int, reason: str) -> LogError:
        """Return the error for a line that is no object."""
        return LogError(
            f"Line {line} of {str(self.path)!r} cannot be read as JSON: {reason}. Each line has to be one object, such "
            'as {"store": 1, "profit": 2.5}. Was the file cut off while it was written or copied?'
        )


def open_json_lines(
    paths: Sequence[Path], stated: Types, *, lenient: bool = False
) -> tuple[list[FileRows], pa.Schema]:
    """Open files of JSON lines of one log; ``lenient`` lets columns that have no one type come as text.

    Raises
    ------
    LogError
        A file is torn, or a line is not one object.
    """
    kinds: dict[str, JsonType] = {}
    files = [_read_types(path, kinds) for path in paths]
    fields = [_field(name, kind, stated.get(name), lenient) for name, kind in kinds.items()]
    schema, parsed = pa.schema(fields), {name: kind.kind for name, kind in kinds.items()}
    return [
        FileRows(path, names, rows, _SecondPass(path, schema, parsed, lenient), partial(_lines, path))
        for path, names, rows in files
    ], schema


def _field(name: str, inferred: JsonType, stated: pa.DataType | None, lenient: bool) -> pa.Field:  # noqa: FBT001
    if stated is None or inferred.kind == MIXED:
        return inferred.field(name)
    if lenient and is_number(stated) and is_text(inferred.kind):
        return pa.field(name, MIXED, metadata={NOTE: "It is stated to hold numbers, and holds text."})
    return pa.field(name, stated)


def _read_types(path: Path, kinds: dict[str, JsonType]) -> tuple[Path, tuple[str, ...], int]:
    """Return the path, column names and row count of a file; the types of its values are added to ``kinds``."""
    names: dict[str, None] = {}
    rows = 0
    for block in _blocks(path):
        block_types = _types_by_arrow(block, kinds)
        if block_types is None:
            block_types = _types_by_value(block, kinds)
        names.update(dict.fromkeys(block_types[0]))
        rows += block_types[1]
    return path, tuple(names), rows


def _types_by_arrow(block: _Block, kinds: dict[str, JsonType]) -> tuple[Sequence[str], int] | None:
    """Add the types of a block as Arrow infers them, and return its columns and row count; None where it cannot."""
    try:
        table = block.table()
    except pa.ArrowInvalid:
        return None
    if table.num_rows != block.content.rstrip(b"\n").count(b"\n") + 1:
        return None  # blank lines, objects of several lines or none
    ranges = {name: _range(table[name]) for name in table.column_names}
    joined = {
        name: kinds.get(name, JsonType()).including(unguessed(table[name].type), *ranges[name])
        for name in ranges
    }
    rounded = any(
        table[name].type == pa.float64() and max(-low, high) >= EXACT for name, (low, high) in ranges.items()
    )
    if not ranges or rounded or None in joined.values():
        return None
    kinds.update({name: kind for name, kind in joined.items() if kind is not None})
    return table.column_names, table.num_rows


def _range(column: pa.ChunkedArray) -> tuple[float, float]:
    """Return the smallest and largest number of a column; zeros where it has none."""
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return 0, 0
    range_ = pc.min_max(column).as_py()
    return (0, 0) if range_["min"] is None else (range_["min"], range_["max"])


def _types_by_value(block: _Block, kinds: dict[str, JsonType]) -> tuple[Sequence[str], int]:
    """Do the same value by value, so that the line in which a column changes its type is known."""
    names: dict[str, None] = {}
    rows = 0
    for line, values in block.objects():
        rows += 1
        names.update(dict.fromkeys(values))
        for name, value in values.items():
            known = kinds.get(name, JsonType())
            kinds[name] = known.including_value(kind_of(value), value, f"Line {line} of {str(block.path)!r}")
    return tuple(names), rows


@dataclass(frozen=True)
class _SecondPass:
    """Reads a file again, its values converted to the types of the first pass."""

    path: Path
    schema: pa.Schema
    parsed: dict[str, pa.DataType]
    lenient: bool

    def __call__(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        mixed = [column for column in columns if self.parsed[column] == MIXED]
        if mixed and not self.lenient:
            self._refuse_mixed(mixed[0])
        target = pa.schema([(column, self.parsed[column]) for column in columns if column not in mixed])
        for block in _blocks(self.path):
            texts = block.texts(mixed)
            try:
                table = block.table(target)
            except pa.ArrowInvalid as error:
                raise _parse_error(block, error) from error
            (batch,) = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], target)]
            arrays = [
                texts[column] if column in mixed else self._fitted(batch.column(column), column, block)
                for column in columns
            ]
            yield pa.RecordBatch.from_arrays(arrays, names=list(columns))

    def _refuse_mixed(self, column: str) -> None:
        note = (self.schema.field(column).metadata or {}).get(NOTE.encode(), b"").decode()
        raise SchemaError(
            f"Column {column!r} cannot be read. {note} Where it is read as numbers, rows without one can be set aside: "
            "open_log(path, lenient=True)."
        )

    def _fitted(self, values: pa.Array, column: str, block: _Block) -> pa.Array:
        kind = self.schema.field(column).type
        if kind in (values.type, MIXED):
            return values

        def place_of(row: int) -> str:
            return f"Column {column!r}, line {block.line_of(row)} of {str(self.path)!r}"

        if pa.types.is_string(values.type):
            return converted(values, kind, 0, place_of)
        try:
            return values.cast(kind)
        except pa.ArrowException as error:
            raise LogError(
                f"Column {column!r} of {str(self.path)!r} is of type {values.type} and cannot be converted to the "
                f"stated type {kind}: {error}. State another type."
            ) from error


def _lines(path: Path, rows: Sequence[int]) -> list[int]:
    """Return the lines, from 1, of rows of a file, from 0 and in ascending order; blank lines are no rows."""
    numbers = (number for block in _blocks(path) for number, _ in block.lines())
    wanted = set(rows)
    read = enumerate(islice(numbers, rows[-1] + 1 if rows else 0))
    found = {row: number for row, number in read if row in wanted}
    return [found.get(row, row + 1) for row in rows]


def _blocks(path: Path) -> Iterator[_Block]:
    """Yield a file in blocks of complete lines."""
    line, rest = 1, b""
    try:
        with open_bytes(path) as stream:
            while chunk := stream.read(_BLOCK):
                content, line_end, tail = (rest + chunk).rpartition(b"\n")
                rest = tail
                if line_end:
                    yield from _checked_block(path, line, content + line_end)
                    line += content.count(b"\n") + 1
        yield from _checked_block(path, line, rest)
    except (OSError, pa.ArrowException) as error:
        raise unreadable(path, "JSON lines", error) from error


def _checked_block(path: Path, line: int, content: bytes) -> Iterator[_Block]:
    if line == 1:
        content = content.removeprefix(b"\xef\xbb\xbf")
        if content.lstrip()[:1] == b"[":
            raise LogError(
                f"{str(path)!r} begins with '[': it is one JSON array, but only JSON lines can be read, one object in "
                "each line. Hand over pandas.read_json(path), or write it again with orient='records', lines=True."
            )
    if content.strip():
        block = _Block(path, line, content)
        try:
            content.decode()
        except UnicodeDecodeError as error:
            bad_line = line + content.count(b"\n", 0, error.start)
            raise block.broken(bad_line, "its bytes are not UTF-8") from error
        yield block


def _parse_error(block: _Block, error: Exception) -> LogError:
    match = _ROW.search(str(error))
    line = block.line_of(int(match.group(1))) if match else block.first_line
    return block.broken(line, str(error).strip().rstrip("."))


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} stands twice in one object")
    return values
