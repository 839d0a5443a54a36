"""Rows of a pass that were checked and numbered, and the reducers that take them beside the sums."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from hieropo._utils.arrays import Array, Codes
from hieropo.logs.arrow.arrays import numbers, times
from hieropo.logs.arrow.log_source import Part
from hieropo.logs.arrow.schema import NUMBER_ROLES
from hieropo.rows.batches import Batch, Roles
from hieropo.rows.coded import CodedRows
from hieropo.rows.ids import Ids


@dataclass(frozen=True, slots=True, eq=False)
class CheckedRows:
    """Rows of a part that can be used, with the numbers that their worker gave to tasks and actions.

    Parameters
    ----------
    records : pa.RecordBatch
        The rows as they came, without those that were set aside.
    roles : Roles
    first_row : int or (n,) int
        As of :class:`CodedRows`.
    task : (n,) int
    action : (n,) int or None
    batch : Batch or None
        The rows as a batch; None where the sums read the columns of ``records`` in place.
    """

    records: pa.RecordBatch
    roles: Roles
    first_row: int | Codes
    task: Codes
    action: Codes | None
    batch: Batch | None = None

    def __len__(self) -> int:
        return int(self.task.size)

    def rewards(self, start: int) -> tuple[Array, int | Codes]:
        """Return the rewards from row ``start`` on, and the numbers of these rows."""
        if self.batch is not None:
            return self.batch.reward[start:], self._numbers_from(start)
        name = self.roles.reward
        return numbers(self.records.column(name)[start:], name, 0), self._numbers_from(start)

    def _numbers_from(self, start: int) -> int | Codes:
        return self.first_row + start if isinstance(self.first_row, int) else self.first_row[start:]

    def first(self, stop: int) -> CodedRows:
        """Return the first ``stop`` rows with their numbers as float64."""
        roles, batch = self.roles, self.batch
        if batch is None:
            records = self.records.slice(0, stop)
            columns = {column for role, column in roles.items() if role in NUMBER_ROLES}
            values = {column: numbers(records.column(column), column, 0) for column in columns}
            time = None if roles.time is None else times(records.column(roles.time), roles.time, 0)
        else:
            values, time = {column: array[:stop] for column, array in batch.numbers.items()}, batch.time
        eligible = None if batch is None or batch.eligible is None else np.diff(batch.eligible.starts)
        return CodedRows(
            first_row=self.first_row if isinstance(self.first_row, int) else self.first_row[:stop],
            rows=stop,
            task=self.task[:stop],
            action=None if self.action is None else self.action[:stop],
            numbers=values,
            time=None if time is None else as_floats(time[:stop]),
            eligible=None if eligible is None else eligible[:stop].astype(np.float64),
        )


def as_floats(time: Any) -> Array:
    """Return times (n,) as float64, instants in the unit of their column."""
    floats: Array = (time.view(np.int64) if time.dtype.kind == "M" else time).astype(np.float64)
    return floats


class PartReducer(Protocol):
    """Statistics that a reducer collects of one part of a log."""

    def add(self, rows: CheckedRows) -> None:
        """Add the next rows of the part."""

    def finish(self, task_ids: Callable[[Codes], Ids], action_ids: Callable[[Codes], Ids]) -> None:
        """End the part; the arguments return the ids of numbers of tasks and of actions."""


class Reducer(Protocol):
    """A summary of the rows of a pass, made beside the sums; its parts may be read in several threads."""

    def begin(self, parts: Sequence[Part]) -> None:
        """Prepare for a log of these parts."""

    def part(self, number: int) -> PartReducer:
        """Return the reducer of a part."""
