"""The doctor's statistics as a reducer of a pass: a fit examines the rows that it sums."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Lock

import numpy as np

from hieropo._utils.arrays import Codes
from hieropo.doctor.collecting import Collector, LogStatistics
from hieropo.logs.arrow.log_source import LogSource, Part
from hieropo.logs.arrow.schema import note_of
from hieropo.logs.bad_rows.row_hashes import is_hashable
from hieropo.passes.checked_rows import CheckedRows
from hieropo.rows.batches import Roles
from hieropo.rows.ids import Ids

# examined rows: shares and drifts are then known to about .1 %, at a cost of a second or less
MOST_ROWS = 2**20
MOST_CELLS = 2**17  # cells that each part keeps, 16 MiB
# rows kept to find repeats: if one row in a thousand is repeated, 30 repeats are still seen
MOST_DISTINCT = 2**15


class PassStatistics:
    """The statistics of the rows that a pass can use.

    Each part has a share of ``most``: so many of its first rows are examined, and only the rewards of the others. The
    statistics of the parts are combined in the order of the log, whichever thread was faster.

    Parameters
    ----------
    source : LogSource
        For its name and its schema.
    roles : Roles
    most : int
        Number of rows that are examined.
    """

    rows: int

    def __init__(self, source: LogSource, roles: Roles, *, most: int = MOST_ROWS) -> None:
        self._source, self._roles, self._most = source, roles, most
        self._quotas: list[int] = []
        self._waiting: dict[int, tuple[Collector, Ids, Ids]] = {}
        self._next, self._lock = 0, Lock()
        self.rows = 0  # rows read so far

    def begin(self, parts: Sequence[Part]) -> None:
        """Share the rows to examine among the parts."""
        kinds = {column: self._source.schema.field(column).type for column in self._roles.columns}
        self._hashed = tuple(column for column, kind in kinds.items() if is_hashable(kind))
        self._time_kind = None if self._roles.time is None else kinds[self._roles.time]
        task = self._roles.task
        self._task_note = note_of(self._source.schema.field(task)) if isinstance(task, str) else None
        self._total = self.collector()
        total = sum(part.n_rows for part in parts)
        self._quotas = [self._most if not total else -(-self._most * part.n_rows // total) for part in parts]

    def part(self, number: int) -> "_PartStatistics":
        """Return the statistics of a part in the making."""
        return _PartStatistics(self, number, self._quotas[number])

    def collector(self) -> Collector:
        """Return an empty collector for a part."""
        return Collector(
            self._source.name, self._roles, self._hashed, time_kind=self._time_kind, choices_only=True,
            most=MOST_CELLS, distinct=MOST_DISTINCT, task_note=self._task_note,
        )  # fmt: skip

    def done(self, number: int, rows: int, part: tuple[Collector, Ids, Ids]) -> None:
        """Add the statistics of a part with ``rows`` rows, with the ids of its tasks and actions."""
        with self._lock:
            self.rows += rows
            self._waiting[number] = part
            while self._next in self._waiting:
                self._total.append(*self._waiting.pop(self._next))
                self._next += 1

    def collected(self) -> LogStatistics | None:
        """Return the statistics of the log; None where not all parts were read."""
        if self._waiting or not self.rows:
            return None
        return replace(self._total.collected(), all_rows=self.rows, source=self._source)


class _PartStatistics:
    """The statistics of the first ``quota`` rows of a part."""

    def __init__(self, whole: PassStatistics, number: int, quota: int) -> None:
        self._whole, self._number, self._quota = whole, number, quota
        self._collector, self._rows = whole.collector(), 0

    def add(self, rows: CheckedRows) -> None:
        """Examine rows up to the quota, and the rewards of the others."""
        examined = min(max(self._quota - self._rows, 0), len(rows))
        if examined:
            self._collector.add_rows(rows.first(examined), rows.records.slice(0, examined))
        if examined < len(rows):
            self._collector.add_extremes(*rows.rewards(examined))
        self._rows += len(rows)

    def finish(self, task_ids: Callable[[Codes], Ids], action_ids: Callable[[Codes], Ids]) -> None:
        """Hand the statistics of the part over, with the ids of its tasks and actions."""
        collector = self._collector
        tasks, actions = (
            index.ids_at(None).astype(np.int64) for index in (collector.tasks, collector.actions)
        )
        self._whole.done(self._number, self._rows, (collector, task_ids(tasks), action_ids(actions)))
