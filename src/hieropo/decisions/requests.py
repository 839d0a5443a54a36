"""Requests, the rows that need a decision: read in checked batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hieropo.errors import warn
from hieropo.features.maps import FeatureMap
from hieropo.logs.arrow.arrays import ids, lists, task_ids
from hieropo.logs.arrow.log_source import BATCH_ROWS, LogSource, empty
from hieropo.logs.arrow.schema import check_columns, check_listed
from hieropo.logs.opening import open_log
from hieropo.logs.reading import context_matrix
from hieropo.policies.lower_bound import LCBPolicy
from hieropo.policies.marginals import MAX_COMPARED
from hieropo.rows.batches import Eligible, TaskColumns, column_tuple, task_columns
from hieropo.rows.columns import context_names, contexts
from hieropo.rows.ids import Ids, id_type_warning, matching_known_id, plain
from hieropo.rows.keys import TaskKeys


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """Consecutive rows of requests, which are checked.

    Parameters
    ----------
    task : (n,) ids
    context : (n, c) float
    request : (n,) ids or None
        The caller's ids of the requests.
    first_row : int
        Number of the first row, counted from 0.
    levels : tuple of (n,) ids
        The groups of each row's task, the widest first.
    metadata : (n, c) float, optional
        The metadata of each row's task.
    absent : tuple of str
        Columns of levels and metadata that the source lacks; if any is absent, none of them is read.
    numbers : (n,) int, optional
        Numbers of the rows, where they do not follow ``first_row``.
    """

    task: Ids
    context: NDArray[np.float64]
    request: Ids | None = None
    first_row: int = 0
    _eligible: Eligible | None = field(default=None, repr=False)
    levels: tuple[Ids, ...] = ()
    metadata: NDArray[np.float64] | None = None
    absent: tuple[str, ...] = ()
    numbers: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return int(self.task.size)

    def subset(self, rows: NDArray[np.int64]) -> "Requests":
        """Return some rows (n,), with levels and metadata of their tasks and without eligible actions."""
        numbers = self.first_row + rows if self.numbers is None else self.numbers[rows]
        return replace(
            self, task=self.task[rows], context=self.context[rows], request=None, _eligible=None,
            levels=tuple(groups[rows] for groups in self.levels),
            metadata=None if self.metadata is None else self.metadata[rows],
            first_row=int(numbers[0]), numbers=numbers,
        )  # fmt: skip

    @property
    def eligible(self) -> list[list[Any]] | None:
        """Return the eligible action ids of each row; None where all actions are eligible."""
        return None if self._eligible is None else self._eligible.lists

    def eligible_mask(self, features: FeatureMap) -> NDArray[np.bool_] | None:
        """Return the mask (n, K) of eligible actions of a feature map; None where all actions are eligible.

        Raises
        ------
        UnknownActionError, InputError
            As :meth:`Eligible.mask`.
        """
        return None if self._eligible is None else self._eligible.mask(features)


class UnknownTasks:
    """Counts the requests of tasks that are not in the log of a policy.

    Parameters
    ----------
    keys : TaskKeys
        Ids of the tasks in the log.
    """

    def __init__(self, keys: TaskKeys) -> None:
        self._keys = keys
        self._requests = self._unknown = 0
        self._first: list[Any] = []

    def add(self, tasks: Ids) -> int:
        """Count the tasks of further requests; return the number of unknown ones."""
        unknown = int(np.count_nonzero(np.asarray(self._keys.locate(tasks)) < 0))
        if not self._requests:
            self._first = list(tasks[:MAX_COMPARED])
        self._requests += len(tasks)
        self._unknown += unknown
        return unknown

    def finish(self) -> None:
        """Warn where no task of all requests is known, unless the policy has warned of a similar known id.

        Warns
        -----
        HieropoWarning
            Shows an id of the requests beside one of the log.
        """
        if not self._requests or self._unknown < self._requests or not len(self._keys):
            return
        if any(matching_known_id(task, self._keys) is not None for task in self._first):
            return
        known, task = self._keys.id_of(0), self._first[0]
        text = id_type_warning(known, task, "request")
        warn(
            "No request is of a task that the log had, so no decision uses rows of its own task. Task ids of the "
            f"requests are such as {plain(task)!r}, those of the log such as {plain(known)!r}. Check the column of "
            "task ids and how they are written. If all tasks are new, this is as it should be."
            if text is None
            else text
        )


class NewTaskPolicies(Protocol):
    """Makes policies for tasks that are not in the log, from columns of the requests."""

    levels: tuple[str, ...]
    metadata: tuple[str, ...]

    def policy(self, requests: Requests, like: LCBPolicy) -> LCBPolicy:
        """Return a policy with the settings of ``like`` for the tasks of requests, none of which is in the log."""


def read_requests(
    source: Any,
    task: TaskColumns,
    context: Sequence[str] = (),
    eligible: str | None = None,
    request: str | None = None,
    *,
    new_tasks: NewTaskPolicies | None = None,
    batch_rows: int = BATCH_ROWS,
) -> Iterator[Requests]:
    """Yield requests as checked batches, in order; the counterpart of ``read`` for decisions.

    Parameters
    ----------
    source : LogSource or anything that ``open_log`` takes
    task : str, sequence of str or None
        Column or columns of task ids; None where all requests are of the one task of a log without such a column.
    context : sequence of str
        Context columns, in the order in which the feature map reads them.
    eligible : str, optional
        Column with a list of the action ids that can be taken in each row.
    request : str, optional
        Column with the caller's ids of the requests.
    new_tasks : NewTaskPolicies, optional
        Names the columns of levels and metadata, which are read where all of them exist.

    Raises
    ------
    SchemaError
        A column is missing, exists twice, or has a type that does not fit its role.
    LogError
        A row cannot be used (a null, a NaN, an empty list), or there is none; the message names column and row number.
    """
    tasks = task_columns(task)
    columns = {"eligible": eligible, "request": request}
    roles = [("task", column) for column in column_tuple(tasks)]
    roles += [(role, column) for role, column in columns.items() if column is not None]
    names = context_names(context)
    roles += [("context", column) for column in names]
    log = open_log(source)
    levels, metadata = ((), ()) if new_tasks is None else (new_tasks.levels, new_tasks.metadata)
    absent = tuple(column for column in (*levels, *metadata) if column not in log.schema.names)
    if absent:
        levels = metadata = ()
    roles += [*(("level", column) for column in levels), *(("metadata", column) for column in metadata)]
    check_listed(log.schema, eligible, log.name)
    check_columns(log.schema, roles, log.name)
    return _batches(log, _RequestColumns(tasks, names, columns, levels, metadata, absent), batch_rows)


@dataclass(frozen=True, slots=True)
class _RequestColumns:
    """The columns to read, by role; and the absent columns of levels and metadata."""

    task: TaskColumns
    context: tuple[str, ...]
    single: dict[str, str | None]
    levels: tuple[str, ...]
    metadata: tuple[str, ...]
    absent: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Return each column once."""
        named = [*column_tuple(self.task), *(column for column in self.single.values() if column is not None)]
        return tuple(dict.fromkeys([*named, *self.context, *self.levels, *self.metadata]))


def _batches(log: LogSource, columns: _RequestColumns, batch_rows: int) -> Iterator[Requests]:
    row = 0
    names = (
        columns.columns or log.schema.names[:1]
    )  # of a policy without contexts and tasks, rows alone are needed
    for batch in log.batches(names, batch_rows):
        yield _requests(batch, columns, row)
        row += batch.num_rows
    if not row:
        raise empty(log.name)


def _requests(batch: pa.RecordBatch, columns: _RequestColumns, row: int) -> Requests:
    def ids_of(column: str | None) -> Ids | None:
        return None if column is None else ids(batch.column(column), column, row)

    column, eligible = columns.single["eligible"], None
    if column is not None:
        eligible = Eligible(*lists(batch.column(column), column, row), row)
    task, context = task_ids(batch, columns.task, row), columns.context
    return Requests(
        task, contexts(context_matrix(batch, context, row), context, row), ids_of(columns.single["request"]), row,
        _eligible=eligible,
        levels=tuple(ids(batch.column(column), column, row) for column in columns.levels),
        metadata=context_matrix(batch, columns.metadata, row) if columns.metadata else None,
        absent=columns.absent,
    )  # fmt: skip
