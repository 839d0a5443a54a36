"""A line on standard error that says how far a long command is; only on a terminal, only after a second."""

import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click

PATIENCE = 1.0  # seconds before the line appears
PAUSE = 0.2  # seconds between two updates
WIPE = "\r\x1b[K"


class Line:
    """The progress line; says nothing where standard error is no terminal."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._begun = time.monotonic()
        self._last = 0.0
        self._text = ""
        self._written = False
        self._timer = threading.Timer(PATIENCE, self._write)  # shows what was said last, while work goes on
        self._timer.daemon = True

    def say(self, text: str, *, now: bool = False) -> None:
        """Replace the line, unless it is too early; ``now`` does not wait for a pause."""
        self._text = text
        moment = time.monotonic()
        if moment - self._begun > PATIENCE and (now or moment - self._last > PAUSE):
            self._write()

    def _write(self) -> None:
        if self._terminal and self._text:
            self._last, self._written = time.monotonic(), True
            click.echo(f"{WIPE}{self._text}", nl=False, err=True)

    def __enter__(self) -> "Line":
        if self._terminal:
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._written:
            click.echo(WIPE, nl=False, err=True)

    def counted(self, items: Iterable[Any], noun: str, total: int) -> Iterator[Any]:
        """Pass items on and count them."""
        for number, item in enumerate(items, start=1):
            self.say(f"{noun} {number} of {total}", now=True)
            yield item


class Watched:
    """A source of rows that reports on a line how many were read; otherwise as the source itself."""

    def __init__(self, source: Any, line: Line) -> None:
        self._source = source
        self._line = line

    @property
    def name(self) -> str:
        """Name of the source."""
        return str(self._source.name)

    @property
    def schema(self) -> Any:
        """Arrow schema of the source."""
        return self._source.schema

    @property
    def n_rows(self) -> int | None:
        """Number of rows, where it is known."""
        found: int | None = self._source.n_rows
        return found

    @property
    def rereadable(self) -> bool:
        """Whether the source can be read again."""
        return bool(self._source.rereadable)

    def batches(self, columns: Sequence[str], *size: int, **sizes: int) -> Iterator[Any]:
        """Pass the batches of the source on and count their rows."""
        yield from _Count(self._line, self.n_rows).of(self._source.batches(columns, *size, **sizes))
        self._line.say("Computing ...", now=True)

    @property
    def files(self) -> Any:
        """Its files, where it lies in files."""
        from hieropo.sources.log_source import files_of

        return files_of(self._source)

    @property
    def where(self) -> str | None:
        """Its filter, where it has one."""
        return getattr(self._source, "where", None)

    def parts(self, columns: Sequence[str]) -> Sequence[Any]:
        """Pass the parts of the source on and count the rows of their batches, in whichever threads they are read."""
        from hieropo.sources.log_source import parts_of

        count = _Count(self._line, self.n_rows)
        return [_WatchedPart(part, count) for part in parts_of(self._source, columns)]


class _Count:
    """Rows read so far, by all threads."""

    def __init__(self, line: Line, total: int | None) -> None:
        self._line, self._total, self._rows = line, total, 0
        self._lock = threading.Lock()

    def of(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Pass batches on and say how many rows there were."""
        for batch in batches:
            yield batch
            with self._lock:
                self._rows += batch.num_rows
                share = f" of {self._total:,} ({self._rows / self._total:.0%})" if self._total else ""
                text = "Computing ..." if self._rows == self._total else f"Read {self._rows:,} rows{share}"
                self._line.say(text, now=self._rows == self._total)


class _WatchedPart:
    """A part of a source that counts its rows; otherwise as the part itself."""

    def __init__(self, part: Any, count: _Count) -> None:
        self._part, self._count = part, count
        self.name, self.file, self.path = part.name, part.file, part.path
        self.first_row, self.n_rows = part.first_row, part.n_rows

    def batches(self) -> Iterator[Any]:
        """Pass the batches of the part on and count their rows."""
        return self._count.of(self._part.batches())
