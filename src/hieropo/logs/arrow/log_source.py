"""What every source of rows offers."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, runtime_checkable

import pyarrow as pa

from hieropo.errors import LogError
from hieropo.logs.arrow.arrays import decoded

BATCH_ROWS = 65_536


@runtime_checkable
class LogSource(Protocol):
    """Rows that can be read as Arrow record batches, in one order.

    Every source cuts its rows at the same places: each batch has ``batch_rows`` rows, the last one fewer. So
    the same rows give the same sums to the last bit, wherever they come from. A source that can be read in pieces
    also has ``parts``, as :func:`parts_of` says.
    """

    @property
    def name(self) -> str:
        """What it is, for messages."""

    @property
    def schema(self) -> pa.Schema:
        """Names and Arrow types of the columns."""

    @property
    def n_rows(self) -> int | None:
        """Number of rows; None where it is not known before reading."""

    @property
    def rereadable(self) -> bool:
        """Whether ``batches`` may be called more than once."""

    def batches(self, columns: Sequence[str], batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield all rows with these columns only, in the order asked for."""


@dataclass(frozen=True)
class Part:
    """Consecutive rows of a source that can be read apart from the others, in any thread and again.

    Parameters
    ----------
    name : str
        For messages, such as a file and its row groups.
    file : int
        Number of the file that it lies in, from 0; 0 where there are no files.
    path : str or None
        The file that it lies in; None where there is none.
    first_row : int
        Number of its first row in the whole log, from 0.
    n_rows : int
        How many rows it has, or at most has; 0 where that is not known.
    read : callable
        Gives its rows, each time anew, in batches of any size; text may come dictionary-encoded.
    """

    name: str
    file: int
    path: str | None
    first_row: int
    n_rows: int
    read: Callable[[], Iterator[pa.RecordBatch]]

    @classmethod
    def of(cls, part: "Part", read: Callable[[], Iterator[pa.RecordBatch]]) -> "Part":
        """Return the same part, read in another way."""
        return cls(part.name, part.file, part.path, part.first_row, part.n_rows, read)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield its rows."""
        return self.read()


class Parted:
    """A source in files, which is read part by part."""

    rereadable = True
    name: str
    schema: pa.Schema
    n_rows: int
    files: Sequence[Path]

    def parts(self, columns: Sequence[str]) -> Sequence[Part]:
        """Return the parts, with these columns only.

        Raises
        ------
        SchemaError
            A file lacks a column that others have, or its folders do not name it.
        """
        raise NotImplementedError

    def batches(self, columns: Sequence[str], batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield all rows with these columns only.

        Raises
        ------
        SchemaError
            As :meth:`parts`.
        LogError
            While reading: a file is torn, or a value is not of the type that was stated; names it.
        """
        return regroup((batch for part in self.parts(columns) for batch in part.batches()), batch_rows)


class Wrapped:
    """A source that is as another one, but for what a subclass does with its parts.

    Parameters
    ----------
    source : LogSource
    """

    def __init__(self, source: LogSource) -> None:
        self._source = source
        self.name, self.schema = source.name, source.schema
        self.n_rows, self.rereadable = source.n_rows, source.rereadable
        self.files, self.where = files_of(source), getattr(source, "where", None)

    def batches(self, columns: Sequence[str], batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Read the source as it is."""
        return self._source.batches(columns, batch_rows)


def parts_of(source: LogSource, columns: Sequence[str]) -> Sequence[Part]:
    """Pieces of a source, in the order of their rows, with these columns only.

    They are what ``source.parts(columns)`` says, a ``Sequence[Part]`` whose parts of one file stand together; a source
    without that method is one part.
    """
    divide: Callable[[Sequence[str]], Sequence[Part]] | None = getattr(source, "parts", None)
    if divide is not None:
        return divide(columns)
    return [Part(source.name, 0, None, 0, source.n_rows or 0, partial(source.batches, tuple(columns)))]


def files_of(source: LogSource) -> Sequence[Path] | None:
    """Return the files of a source, by their numbers in its parts; None where it does not lie in files."""
    files: Sequence[Path] | None = getattr(source, "files", None)
    return files


def regroup(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Cut and join batches so that each has ``rows`` rows and only the last has fewer; none is empty."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            part = batch.slice(start, rows - count)
            held.append(part)
            start += part.num_rows
            count += part.num_rows
            if count == rows:
                yield _joined(held)
                held, count = [], 0
    if held:
        yield _joined(held)


def _joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    try:
        return pa.concat_batches(parts)
    except pa.ArrowException:  # dictionaries that do not fit the type of their indices together
        return pa.concat_batches([_decoded(part) for part in parts])


def _decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([decoded(column) for column in batch.columns], names=batch.schema.names)


def empty(name: str) -> LogError:
    """Say that a source has no rows."""
    return LogError(
        f"The {name} has no rows. Is it the right one, and did an earlier filter or join leave anything?"
    )
