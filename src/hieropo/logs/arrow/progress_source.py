"""A source of rows that shows its progress on the progress line."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from hieropo._utils.progress import Line, active_line
from hieropo.logs.arrow.log_source import BATCH_ROWS, LogSource, Part, WrappedSource, parts_of


class ProgressSource(WrappedSource):
    """A source of rows that shows the number of rows read; otherwise the same as the source."""

    def __init__(self, source: LogSource, line: Line) -> None:
        super().__init__(source._source if isinstance(source, ProgressSource) else source)
        self._line = line

    def batches(self, columns: Sequence[str], batch_rows: int = BATCH_ROWS) -> Iterator[Any]:
        """Yield the batches of the source and count their rows."""
        yield from _Count(self._line, self.n_rows).of(super().batches(columns, batch_rows))
        self._line.say("Computing ...", now=True)

    def parts(self, columns: Sequence[str]) -> Sequence[Part]:
        """Return the parts of the source; the rows of their batches are counted in the threads that read them."""
        count = _Count(self._line, self.n_rows)
        return [Part.of(part, partial(count.read, part)) for part in parts_of(self._source, columns)]


def watched(source: LogSource) -> LogSource:
    """Return a source that shows its progress where a person can see it; else the source as it is."""
    line = active_line()
    return source if line is None else ProgressSource(source, line)


class _Count:
    """The number of rows read so far, by all threads."""

    def __init__(self, line: Line, total: int | None) -> None:
        self._line, self._total, self._rows = line, total, 0
        self._lock = threading.Lock()

    def read(self, part: Part) -> Iterator[Any]:
        """Yield the batches of a part and count their rows."""
        return self.of(part.batches())

    def of(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches and show the number of rows so far."""
        for batch in batches:
            yield batch
            with self._lock:
                self._rows += batch.num_rows
                share = self._rows / self._total if self._total else None
                part = "" if share is None else f" of {self._total:,} ({share:.0%})"
                if self._rows == self._total:
                    self._line.say("Computing ...", now=True)
                else:
                    self._line.say(f"Read {self._rows:,} rows{part}", share=share)
