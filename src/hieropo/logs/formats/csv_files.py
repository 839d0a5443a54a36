"""CSV and its relatives, compressed or not.

Each file is read twice: once for the types, which are those of all values in all files, and then the columns asked for.
"""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv

from hieropo.errors import LogError, SchemaError, warn
from hieropo.logs.arrow.schema import MIXED
from hieropo.logs.formats.files import FileRows, opened_bytes, unreadable
from hieropo.logs.formats.text_types import StatedType, TextType, Types, converted
from hieropo.rows.ids import abbreviate

_BLOCK = 4 * 2**20
_WIDTH = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")
_ENCODING = re.compile(r"Row #(\d+): .*UTF8")


class _Tape(io.RawIOBase):
    """The bytes of a file as they are read, and what tells whether they are whole."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._stream = opened_bytes(path)
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
    """One file: its header, and what the first pass over it found."""

    path: Path
    delimiter: str
    names: tuple[str, ...]
    n_rows: int = 0
    first_row: int = 0
    _plain: bool = field(default=False, repr=False)  # known to have one line a row

    @classmethod
    def headed(cls, path: Path) -> "CsvFile":
        """Read the header: the names of the columns, and what stands between values."""
        head = _head(path)
        try:
            lines = io.StringIO(head.decode("utf-8-sig"), newline="")
        except UnicodeDecodeError as error:
            raise _not_utf8(path, 1 + head.count(b"\n", 0, error.start)) from error
        first = next((line for line in lines if line.strip("\r\n")), None)
        if first is None:
            raise LogError(
                f"{str(path)!r} is empty ({path.stat().st_size} bytes). Was it still being written? Write it anew or "
                "remove it."
            )
        delimiter = _delimiter(path, first)
        names = next(csv.reader(chain([first], lines), delimiter=delimiter))
        return cls(path, delimiter, tuple(names))

    def scan(self, kinds: dict[str, TextType | StatedType], first_row: int) -> None:
        """Read all values for their types, and find out whether the file is whole."""
        self.first_row = first_row
        tape = _Tape(self.path)
        for name in self.names:
            kinds.setdefault(name, TextType())
        for texts in self.texts(self.names, tape):
            for name, column in zip(self.names, texts.columns, strict=True):
                kinds[name].add(column, first_row + self.n_rows)
            self.n_rows += texts.num_rows
        self._plain = tape.line_ends - self.n_rows in (0, 1)
        if tape.quotes % 2:
            self._refuse_open_quote()
        if self.n_rows and tape.last not in (b"\n", b"\r"):
            warn(
                f"{str(self.path)!r} does not end with a line end. If it was cut off while it was written or copied, "
                "its last value is not whole: compare it with where it came from."
            )

    def texts(self, columns: Sequence[str], tape: _Tape | None = None) -> Iterator[pa.RecordBatch]:
        """Yield all rows of these columns as texts; nothing between delimiters is null."""
        tape = _Tape(self.path) if tape is None else tape
        row = 0
        try:
            with tape, self._opened(tape, columns) as reader:
                for batch in reader:
                    yield batch
                    row += batch.num_rows
        except (OSError, pa.ArrowException) as error:
            if "Empty CSV" not in str(error):
                raise self._unreadable(error, row) from error

    def place(self, row: int) -> str:
        """Say where a row stands; rows count from 0, lines from 1."""
        return f"line {row + 2 if self._plain else self._line(row)} of {str(self.path)!r}"

    def _opened(self, tape: _Tape, columns: Sequence[str]) -> pacsv.CSVStreamingReader:
        return pacsv.open_csv(
            tape,
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
            io.BufferedReader(_Tape(self.path)), "utf-8-sig", "replace", newline=""
        ) as lines:
            reader, row, end = csv.reader(lines, delimiter=self.delimiter, strict=True), -1, 0
            for values in reader:
                if values:
                    yield row, end + 1
                    row += 1
                end = reader.line_num

    def _line(self, row: int) -> int:
        try:
            return next(line for number, line in self._rows() if number == row)
        except (csv.Error, StopIteration):
            return row + 2

    def _refuse_open_quote(self) -> None:
        line = 0
        try:
            for _, line in self._rows():  # noqa: B007 - what matters is where it stops
                pass
        except csv.Error as error:
            if "unexpected end" not in str(error):
                return
            raise LogError(
                f"{str(self.path)!r}: a quote that is opened after line {line} is never closed. Was the file cut off "
                "while it was written or copied, or is a quote in a value not doubled?"
            ) from error

    def _unreadable(self, error: Exception, row: int) -> LogError:
        text = str(error)
        if found := _WIDTH.search(text):
            number, expected, got = map(int, found.groups())
            return LogError(
                f"{_capital(self.place(number - 2))} has {got} values, where the header names {expected} columns. Was "
                f"the file cut off while it was written or copied, or does a value hold {self.delimiter!r} without "
                "quotes around it?"
            )
        if found := _ENCODING.search(text):
            return _not_utf8(self.path, int(found.group(1)))
        return unreadable(self.path, "CSV", error, row)


@dataclass(frozen=True)
class _Reading:
    """The second pass over a file."""

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
    files = [CsvFile.headed(path) for path in paths]
    row = 0
    for file in files:
        _refuse_doubled(file)
        file.scan(kinds, row)
        row += file.n_rows

    def where(row: int) -> str:
        file = next(file for file in reversed(files) if file.first_row <= row)
        return _capital(file.place(row - file.first_row))

    named = dict.fromkeys(name for file in files for name in file.names)
    schema = pa.schema([kinds[name].field(name, where) for name in named])
    return [FileRows(file.path, file.names, file.n_rows, _Reading(file, schema)) for file in files], schema


def _refuse_doubled(file: CsvFile) -> None:
    doubled = sorted({name for name in file.names if file.names.count(name) > 1})
    if doubled:
        raise SchemaError(
            f"The header of {str(file.path)!r} names {abbreviate(doubled, 5)} more than once; which is meant? Rename "
            "or drop one. If its first line holds values, put a line with the names of the columns before it."
        )


def _head(path: Path) -> bytes:
    try:
        with opened_bytes(path) as stream:
            head: bytes = stream.read(_BLOCK)
    except (OSError, pa.ArrowException) as error:
        raise unreadable(path, "CSV", error) from error
    end = head.rfind(b"\n")
    return head if end < 0 else head[: end + 1]  # not the half of a letter


def _delimiter(path: Path, header: str) -> str:
    """What stands between values: a tab in .tsv, else the first of these that the header has."""
    if ".tsv" in path.suffixes or ".tab" in path.suffixes:
        return "\t"
    return next((each for each in ",;\t|" if each in header), ",")


def _not_utf8(path: Path, line: int) -> LogError:
    return LogError(
        f"{str(path)!r}, about line {line}: these bytes are not UTF-8. Save it as UTF-8, or hand over "
        "pandas.read_csv(path, encoding='latin-1') with the encoding that it has."
    )


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
