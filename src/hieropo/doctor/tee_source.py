"""A source that is looked at while something else reads it: how a fit examines its log in the same pass."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any

from hieropo.doctor.collecting import Collected, Collector
from hieropo.logs.arrow.log_source import Part, Wrapped, parts_of
from hieropo.logs.bad_rows.rejects import Rejects
from hieropo.logs.bad_rows.row_hashes import is_hashable
from hieropo.rows.batches import Roles

# rows that are looked at: shares and drifts are then told to about .1 %, at a cost of a second or less
MOST_ROWS = 2**20
MOST_CELLS = 2**17  # that each part keeps, 16 MiB
# rows that are kept to find equal ones: copies of one row in a thousand are still seen 30 times
MOST_DISTINCT = 2**15


class TeeSource(Wrapped):
    """A source of rows that are looked at while they are read; otherwise as the source itself.

    Of each part the first rows are looked at, by its share of ``most``, of all others the rewards alone; and the parts
    are put together in the order of the log, whichever thread was faster.

    Parameters
    ----------
    source : LogSource
    roles : Roles
    rejects : Rejects, optional
        Takes the rows whose action is unknown, which are then not looked at.
    most : int
        Rows that are looked at.
    """

    def __init__(
        self, source: Any, roles: Roles, rejects: Rejects | None = None, *, most: int = MOST_ROWS
    ) -> None:
        super().__init__(source)
        self._roles, self._rejects, self._most = roles, rejects, most
        schema = source.schema  # a column that it lacks is refused where rows are read
        self._hashed = tuple(
            column
            for column in roles.columns
            if column in schema.names and is_hashable(schema.field(column).type)
        )
        self._total = self.collector(0)
        self._waiting: dict[int, Collector] = {}
        self._next, self._lock = 0, Lock()
        self.rows = 0  # that were read

    def parts(self, columns: Sequence[str]) -> Sequence[Any]:
        """Return the parts of the source, to be looked at once while they are read."""
        parts = parts_of(self._source, columns)
        total = sum(part.n_rows for part in parts)
        each = [self._most if not total else -(-self._most * part.n_rows // total) for part in parts]
        return [
            Part.of(part, partial(self._looked_at, p, part, quota))
            for p, (part, quota) in enumerate(zip(parts, each, strict=True))
        ]

    def _looked_at(self, p: int, part: Part, quota: int) -> Iterator[Any]:
        """Pass the batches of a part on, and look at the first rows."""
        found, rows = self.collector(part.first_row), 0
        for batch in part.batches():
            if rows < quota:
                found.add(batch.slice(0, quota - rows))
            if (seen := max(quota - rows, 0)) < batch.num_rows:
                found.glance(batch.slice(seen), part.first_row + rows + seen)
            rows += batch.num_rows
            yield batch
        self.done(p, found, rows)

    def collector(self, first_row: int) -> Collector:
        """Return an empty collector for a part that begins with this row."""
        features = None if self._rejects is None else self._rejects.features
        return Collector(
            self.name, self._roles, self._hashed, first_row=first_row, choices_only=True, features=features,
            most=MOST_CELLS, distinct=MOST_DISTINCT,
        )  # fmt: skip

    def done(self, p: int, found: Collector, rows: int) -> None:
        """Take what was seen of a part with so many rows."""
        with self._lock:
            self.rows += rows
            self._waiting[p] = found
            while self._next in self._waiting:
                self._total.append(self._waiting.pop(self._next))
                self._next += 1

    def collected(self) -> Collected | None:
        """Return what was seen; None where not all parts were read."""
        if self._waiting or not self.rows:
            return None
        return replace(self._total.collected(), all_rows=self.rows)
