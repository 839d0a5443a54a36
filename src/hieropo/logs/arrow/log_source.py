"""The interface of every source of rows, and its parts."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from hieropo._utils.memory import release_freed
from hieropo._utils.text import counted
from hieropo.errors import InputError, LogError
from hieropo.logs.arrow.arrays import decoded

BATCH_ROWS = 65_536
_SET_ASIDE = " Or set such rows aside, and count them: lenient=True, on the command line --lenient."


@runtime_checkable
class LogSource(Protocol):
    """Rows that can be read as Arrow record batches, in one order.

    Every source cuts its rows at the same places: each batch has ``batch_rows`` rows, the last one fewer. So
    the same rows give the same sums to the last bit, from any source. A source that can be read in parts also has a
    method ``parts``, described at :func:`parts_of`.
    """

    @property
    def name(self) -> str:
        """The kind and path of the source, for messages."""

    @property
    def schema(self) -> pa.Schema:
        """Names and Arrow types of the columns."""

    @property
    def n_rows(self) -> int | None:
        """Number of rows; None where it is not known before reading."""

    @property
    def rereadable(self) -> bool:
        """True where ``batches`` may be called more than once."""

    def batches(self, columns: Sequence[str], batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield all rows with these columns only, in the order asked for."""


def release_unused() -> None:
    """Return memory to the system that Arrow, and the C library, keep for arrays to come; those that exist stay."""
    pa.default_memory_pool().release_unused()
    release_freed()


def source_repr(source: LogSource) -> str:
    """Return the name and the size of a source; the ``__repr__`` of sources."""
    rows = "" if source.n_rows is None else f"{counted(source.n_rows, 'row')}, "
    return f"<{source.name}: {rows}{counted(len(source.schema.names), 'column')}>"


@dataclass(frozen=True)
class Part:
    """Consecutive rows of a source that can be read on their own, in any thread and more than once.

    Parameters
    ----------
    name : str
        Name for messages, such as a file and its row groups.
    file : int
        Number of its file, from 0; 0 where there are no files.
    path : str or None
        Its file; None where there is none.
    first_row : int
        Number of its first row in the whole log, from 0.
    n_rows : int
        Number of its rows, or an upper bound; 0 where that is not known.
    read : callable
        Returns an iterator over its rows, in batches of any size; text may be dictionary-encoded.
    """

    name: str
    file: int
    path: str | None
    first_row: int
    n_rows: int
    read: Callable[[], Iterator[pa.RecordBatch]]

    @classmethod
    def of(cls, part: "Part", read: Callable[[], Iterator[pa.RecordBatch]]) -> "Part":
        """Return the same part with another ``read``."""
        return cls(part.name, part.file, part.path, part.first_row, part.n_rows, read)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield its rows."""
        return self.read()


class PartedSource:
    """A source in files that is read part by part."""

    rereadable = True
    name: str
    schema: pa.Schema
    n_rows: int
    files: Sequence[Path]

    __repr__ = source_repr

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
            While reading: a file is damaged, or a value is not of its stated type.
        """
        return regroup((batch for part in self.parts(columns) for batch in part.batches()), batch_rows)


class WrappedSource:
    """A source that delegates to another one; a subclass changes how its parts are read.

    Parameters
    ----------
    source : LogSource
    """

    name: str
    schema: Any
    n_rows: int | None
    rereadable: bool
    files: Sequence[Path] | None
    where: str | None

    __repr__ = source_repr

    def __init__(self, source: LogSource) -> None:
        self._source = source
        self.name, self.schema = source.name, source.schema
        self.n_rows, self.rereadable = source.n_rows, source.rereadable
        self.files, self.where = files_of(source), getattr(source, "where", None)

    def batches(self, columns: Sequence[str], batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Read the source as it is."""
        return self._source.batches(columns, batch_rows)

    def place_of(self, row: int) -> str:
        """Return the place of a row in the source, as :func:`place_of`."""
        return place_of(self._source, row)

    def lines_of(self, rows: Sequence[int]) -> list[int] | None:
        """Return the lines of rows of the whole log, as :func:`lines_of`."""
        return lines_of(self._source, rows)


def parts_of(source: LogSource, columns: Sequence[str]) -> Sequence[Part]:
    """Return the parts of a source in the order of their rows, with these columns only.

    They are those of ``source.parts(columns)``, a ``Sequence[Part]`` in which the parts of one file are adjacent; a
    source without that method is one part.
    """
    divide: Callable[[Sequence[str]], Sequence[Part]] | None = getattr(source, "parts", None)
    if divide is not None:
        return divide(columns)
    return [Part(source.name, 0, None, 0, source.n_rows or 0, partial(source.batches, tuple(columns)))]


def place_of(source: LogSource, row: int) -> str:
    """Return where the reader of a message finds a row: ``line 3 of 'log.csv'``, ``row 2 of 'b.parquet'`` or ``row 2``.

    It is that of ``source.place_of(row)``; a source without that method has "row N". Rows count from 0, as ``row`` in
    the whole log does; lines of a text file count from 1, as in an editor, and the header is one of them.
    """
    place: Callable[[int], str] | None = getattr(source, "place_of", None)
    return f"row {row}" if place is None else place(row)


def lines_of(source: LogSource, rows: Sequence[int]) -> list[int] | None:
    """Return the lines of rows of the whole log, in ascending order, in their files of text; None for other sources."""
    lines: Callable[[Sequence[int]], list[int] | None] | None = getattr(source, "lines_of", None)
    return None if lines is None else lines(rows)


def counted_from(*places: str) -> str:
    """Return a sentence, after a space, that rows count from 0, where a place of :func:`place_of` names a row."""
    return " Rows count from 0." if any(place.startswith("row") for place in places) else ""


@contextmanager
def located(source: LogSource, *, may_set_aside: bool = False) -> Iterator[None]:
    """Write the place of the row in its file into an error that is raised inside.

    ``may_set_aside`` adds that a lenient reading sets such rows aside, where it does.
    """
    try:
        yield
    except InputError as error:
        if error.row is not None:
            place = place_of(source, error.row)
            advice = _SET_ASIDE if may_set_aside and error.lenient else ""
            error.at(place, f"{advice}{counted_from(place)}")
        raise


def over_parts(
    source: LogSource, columns: Sequence[str], work: Callable[[LogSource], Any]
) -> list[Any] | None:
    """Return the values of a function for the parts of a source that other machines read; None for other sources.

    They are those of ``source.each(columns, work)``, in the order of the parts that have rows. ``work`` is pickled.
    """
    each: Callable[[Sequence[str], Callable[[LogSource], Any]], list[Any]] | None = getattr(
        source, "each", None
    )
    return None if each is None else each(columns, work)


def files_of(source: LogSource) -> Sequence[Path] | None:
    """Return the files of a source, by their numbers in its parts; None where it does not lie in files."""
    files: Sequence[Path] | None = getattr(source, "files", None)
    return files


def regroup(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows in batches of ``rows`` rows; only the last has fewer, and none is empty."""
    pieces: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            part = batch.slice(start, rows - count)
            pieces.append(part)
            start += part.num_rows
            count += part.num_rows
            if count == rows:
                yield _joined(pieces)
                pieces, count = [], 0
    if pieces:
        yield _joined(pieces)


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
    """Return the error for a source without rows."""
    return LogError(
        f"The {name} has no rows. Is it the right one, and did an earlier filter or join drop all rows?"
    )
