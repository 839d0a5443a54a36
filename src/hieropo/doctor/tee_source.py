"""A source that examines its rows while a reader consumes them: a fit examines its log in the pass that sums it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any

from hieropo.doctor.collecting import Collector, LogStatistics
from hieropo.logs.arrow.log_source import Part, WrappedSource, parts_of
from hieropo.logs.bad_rows.rejects import Rejects
from hieropo.logs.bad_rows.row_hashes import is_hashable
from hieropo.rows.batches import Roles

# examined rows: shares and drifts are then known to about .1 %, at a cost of a second or less
MOST_ROWS = 2**20
MOST_CELLS = 2**17  # cells that each part keeps, 16 MiB
# rows kept to find repeats: if one row in a thousand is repeated, 30 repeats are still seen
MOST_DISTINCT = 2**15


class TeeSource(WrappedSource):
    """A source that passes its batches on and examines them.

    Each part has a share of ``most``: so many of its first rows are examined, and only the rewards of the others. The
    statistics of the parts are combined in the order of the log, whichever thread was faster.

    Parameters
    ----------
    source : LogSource
    roles : Roles
    rejects : Rejects, optional
        Takes the rows whose action is unknown, which are then not examined.
    most : int
        Number of rows that are examined.
    """

    rows: int

    def __init__(
        self, source: Any, roles: Roles, rejects: Rejects | None = None, *, most: int = MOST_ROWS
    ) -> None:
        super().__init__(source)
        self._roles, self._rejects, self._most = roles, rejects, most
        schema = source.schema  # reading refuses a column that the source lacks
        self._hashed = tuple(
            column
            for column in roles.columns
            if column in schema.names and is_hashable(schema.field(column).type)
        )
        self._total = self.collector(0)
        self._waiting: dict[int, Collector] = {}
        self._next, self._lock = 0, Lock()
        self.rows = 0  # rows read so far

    def parts(self, columns: Sequence[str]) -> Sequence[Any]:
        """Return the parts of the source, which are examined while they are read."""
        parts = parts_of(self._source, columns)
        total = sum(part.n_rows for part in parts)
        quotas = [self._most if not total else -(-self._most * part.n_rows // total) for part in parts]
        return [
            Part.of(part, partial(self._examined, p, part, quota))
            for p, (part, quota) in enumerate(zip(parts, quotas, strict=True))
        ]

    def _examined(self, index: int, part: Part, quota: int) -> Iterator[Any]:
        """Yield the batches of a part, and examine its first ``quota`` rows."""
        collector, rows = self.collector(part.first_row), 0
        for batch in part.batches():
            if rows < quota:
                collector.add(batch.slice(0, quota - rows))
            if (examined := max(quota - rows, 0)) < batch.num_rows:
                collector.add_extremes(batch.slice(examined), part.first_row + rows + examined)
            rows += batch.num_rows
            yield batch
        self.done(index, collector, rows)

    def collector(self, first_row: int) -> Collector:
        """Return an empty collector for a part that begins at row ``first_row``."""
        features = None if self._rejects is None else self._rejects.features
        return Collector(
            self.name, self._roles, self._hashed, first_row=first_row, choices_only=True, features=features,
            most=MOST_CELLS, distinct=MOST_DISTINCT,
        )  # fmt: skip

    def done(self, index: int, collector: Collector, rows: int) -> None:
        """Add the statistics of a part with ``rows`` rows."""
        with self._lock:
            self.rows += rows
            self._waiting[index] = collector
            while self._next in self._waiting:
                self._total.append(self._waiting.pop(self._next))
                self._next += 1

    def collected(self) -> LogStatistics | None:
        """Return the statistics of the log; None where not all parts were read."""
        if self._waiting or not self.rows:
            return None
        return replace(self._total.collected(), all_rows=self.rows)
