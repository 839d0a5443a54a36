"""CSV and its relatives, compressed or not.

Each file is read twice: once for the types, which are those of all values in all files, and then the columns asked for.
"""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv

from hieropo.errors import LogError, SchemaError, warn
from hieropo.logs.arrow.schema import MIXED
from hieropo.logs.formats.files import FileRows, open_bytes, unreadable
from hieropo.logs.formats.text_types import StatedType, TextType, Types, converted
from hieropo.rows.ids import abbreviate

_BLOCK = 4 * 2**20
_WIDTH = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")
_ENCODING = re.compile(r"Row #(\d+): .*UTF8")


class _CountingStream(io.RawIOBase):
    """A stream that counts line ends and quotes as it is read, to tell whether the file is complete."""

    line_ends: int
    quotes: int
    last: bytes

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._stream = open_bytes(path)
        self.line_ends = self.quotes = 0
        self.last = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._stream.read(size)
        self.line_ends += data.count(b"\n")
        self.quotes += data.count(b'"')
        self.last = data[-1:] or self.last
        return data

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


@dataclass
class CsvFile:
    """One file: its header, and the number of its rows once the first pass has read it."""

    path: Path
    delimiter: str
    names: tuple[str, ...]
    n_rows: int = 0
    first_row: int = 0
    _one_line_per_row: bool = field(default=False, repr=False)  # known to have one line a row

    @classmethod
    def from_header(cls, path: Path) -> "CsvFile":
        """Read the header: the names of the columns and the delimiter."""
        start = _first_block(path)
        try:
            lines = io.StringIO(start.decode("utf-8-sig"), newline="")
        except UnicodeDecodeError as error:
            raise _not_utf8(path, 1 + start.count(b"\n", 0, error.start)) from error
        header = next((line for line in lines if line.strip("\r\n")), None)
        if header is None:
            raise LogError(
                f"{str(path)!r} is empty ({path.stat().st_size} bytes), so it has not even a header. Was it still "
                "being written? Write it again or remove it."
            )
        delimiter = _delimiter(path, header)
        names = next(csv.reader(chain([header], lines), delimiter=delimiter))
        return cls(path, delimiter, tuple(names))

    def read_types(self, kinds: dict[str, TextType | StatedType], first_row: int) -> None:
        """Read all values for their types, count the rows, and check that the file is complete."""
        self.first_row = first_row
        stream = _CountingStream(self.path)
        for name in self.names:
            kinds.setdefault(name, TextType())
        for texts in self.texts(self.names, stream):
            for name, column in zip(self.names, texts.columns, strict=True):
                kinds[name].add(column, first_row + self.n_rows)
            self.n_rows += texts.num_rows
        self._one_line_per_row = stream.line_ends - self.n_rows in (0, 1)
        if stream.quotes % 2:
            self._refuse_open_quote()
        if self.n_rows and stream.last not in (b"\n", b"\r"):
            warn(
                f"{str(self.path)!r} does not end with a line end. If it was cut off while it was written or copied, "
                "its last value is incomplete. Compare it with the original."
            )

    def texts(
        self, columns: Sequence[str], stream: _CountingStream | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield all rows of these columns as texts; an empty value without quotes is null."""
        stream = _CountingStream(self.path) if stream is None else stream
        row = 0
        try:
            with stream, self._opened(stream, columns) as reader:
                for batch in reader:
                    yield batch
                    row += batch.num_rows
        except (OSError, pa.ArrowException) as error:
            if "Empty CSV" not in str(error):
                raise self._unreadable(error, row) from error

    def lines(self, rows: Sequence[int]) -> list[int]:
        """Return the lines of rows in ascending order; rows count from 0, lines from 1, and the header is a line."""
        guesses = [row + 2 for row in rows]
        if self._one_line_per_row or not rows:
            return guesses
        wanted, found = set(rows), dict(zip(rows, guesses, strict=True))
        with suppress(csv.Error):
            for row, line in self._rows():
                if row in wanted:
                    found[row] = line
                if row == rows[-1]:
                    break
        return [found[row] for row in rows]

    def place(self, row: int) -> str:
        """Return the line and file of a row for a message."""
        return f"line {self.lines([row])[0]} of {str(self.path)!r}"

    def _opened(self, stream: _CountingStream, columns: Sequence[str]) -> pacsv.CSVStreamingReader:
        return pacsv.open_csv(
            stream,
            pacsv.ReadOptions(use_threads=False, block_size=_BLOCK),  # threads would lose the numbers of rows
            pacsv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
            pacsv.ConvertOptions(
                column_types=dict.fromkeys(self.names, pa.string()), include_columns=list(dict.fromkeys(columns)),
                null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False,
            ),
        )  # fmt: skip

    def _rows(self) -> Iterator[tuple[int, int]]:
        """Yield the number of each row, the header being -1, and of the line in which it ends."""
        with io.TextIOWrapper(
            io.BufferedReader(_CountingStream(self.path)), "utf-8-sig", "replace", newline=""
        ) as lines:
            reader, row, end = csv.reader(lines, delimiter=self.delimiter, strict=True), -1, 0
            for values in reader:
                if values:
                    yield row, end + 1
                    row += 1
                end = reader.line_num

    def _refuse_open_quote(self) -> None:
        line = 0
        try:
            for _, line in self._rows():  # noqa: B007 - the last line before the error is needed
                pass
        except csv.Error as error:
            if "unexpected end" not in str(error):
                return
            raise LogError(
                f"{str(self.path)!r}: a quote that is opened after line {line} is never closed, so the rest of the "
                "file is one value. Was the file cut off while it was written or copied? Else double the quotes in "
                "values."
            ) from error

    def _unreadable(self, error: Exception, row: int) -> LogError:
        text = str(error)
        if match := _WIDTH.search(text):
            number, expected, count = map(int, match.groups())
            return LogError(
                f"{_capitalised(self.place(number - 2))} has {count} values, where the header names {expected} "
                "columns. Was the file cut off while it was written or copied, or does a value hold "
                f"{self.delimiter!r} without quotes around it?"
            )
        if match := _ENCODING.search(text):
            return _not_utf8(self.path, int(match.group(1)))
        return unreadable(self.path, "CSV", error, row)


@dataclass(frozen=True)
class _SecondPass:
    """Reads a file again, its values converted to the types of the first pass."""

    file: CsvFile
    schema: pa.Schema

    def __call__(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        row = 0
        for texts in self.file.texts(columns):
            arrays = [self._converted(texts.column(column), column, row) for column in columns]
            yield pa.RecordBatch.from_arrays(arrays, names=list(columns))
            row += texts.num_rows

    def _converted(self, texts: pa.Array, column: str, row: int) -> pa.Array:
        kind = self.schema.field(column).type
        return (
            texts
            if kind == MIXED
            else converted(texts, kind, row, lambda row: f"Column {column!r}, {self.file.place(row)}")
        )


def open_csv(
    paths: Sequence[Path], stated: Types, *, lenient: bool = False
) -> tuple[list[FileRows], pa.Schema]:
    """Open CSV files of one log; ``lenient`` lets values that are not of a stated type come as text.

    Raises
    ------
    LogError
        A file is empty, torn, not UTF-8, or a line has more or fewer values than the header.
    SchemaError
        A name stands twice in a header.
    """
    kinds: dict[str, TextType | StatedType] = {
        name: StatedType(kind, lenient=lenient) for name, kind in stated.items()
    }
    files = [CsvFile.from_header(path) for path in paths]
    row = 0
    for file in files:
        _refuse_repeated_names(file)
        file.read_types(kinds, row)
        row += file.n_rows

    def place_of(row: int) -> str:
        file = next(file for file in reversed(files) if file.first_row <= row)
        return _capitalised(file.place(row - file.first_row))

    columns = dict.fromkeys(name for file in files for name in file.names)
    schema = pa.schema([kinds[name].field(name, place_of) for name in columns])
    return [
        FileRows(file.path, file.names, file.n_rows, _SecondPass(file, schema), file.lines) for file in files
    ], schema


def _refuse_repeated_names(file: CsvFile) -> None:
    repeated = sorted({name for name in file.names if file.names.count(name) > 1})
    if repeated:
        raise SchemaError(
            f"The header of {str(file.path)!r} names {abbreviate(repeated, 5)} more than once, so the name does not "
            "say which column is meant. Rename or drop one. If its first line holds values, put a line with the names "
            "of the columns before it."
        )


def _first_block(path: Path) -> bytes:
    try:
        with open_bytes(path) as stream:
            start: bytes = stream.read(_BLOCK)
    except (OSError, pa.ArrowException) as error:
        raise unreadable(path, "CSV", error) from error
    last_line_end = start.rfind(b"\n")
    return start if last_line_end < 0 else start[: last_line_end + 1]  # never a part of a character


def _delimiter(path: Path, header: str) -> str:
    """Return the delimiter: a tab in .tsv, else the first of ``, ; tab |`` in the header."""
    if ".tsv" in path.suffixes or ".tab" in path.suffixes:
        return "\t"
    return next((sign for sign in ",;\t|" if sign in header), ",")


def _not_utf8(path: Path, line: int) -> LogError:
    return LogError(
        f"{str(path)!r}, about line {line}: these bytes are not UTF-8, so the text cannot be read. Save the file as "
        "UTF-8, or hand over pandas.read_csv(path, encoding='latin-1') with its encoding."
    )


def _capitalised(text: str) -> str:
    return text[0].upper() + text[1:]
