"""Requests, the rows that need a decision: read in checked batches."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hieropo._utils.arrays import Codes, Mask
from hieropo.errors import LogError, SchemaError, warn
from hieropo.features.maps import FeatureMap
from hieropo.features.terms.learned import LearnedTerms
from hieropo.logs.arrow.arrays import decoded, ids, lists, plain_texts, task_ids, without_views
from hieropo.logs.arrow.log_source import BATCH_ROWS, LogSource, empty, located
from hieropo.logs.arrow.schema import NUMBER_ROLES, check_columns, check_listed, holds_text
from hieropo.logs.bad_rows.rejects import BadValues, any_of, bad_values_by_role, unknown_actions
from hieropo.logs.encoding import Encoder, opened_log
from hieropo.logs.formats.text_types import with_numbers
from hieropo.logs.reading import context_matrix
from hieropo.policies.lower_bound import LCBPolicy
from hieropo.policies.marginals import MAX_COMPARED
from hieropo.rows.batches import Eligible, TaskColumns, column_tuple, task_columns
from hieropo.rows.columns import column_names, context_names, contexts
from hieropo.rows.ids import Ids, id_type_warning, matching_known_id, plain
from hieropo.rows.keys import Keys, TaskKeys

UNREADABLE = "a value that cannot be read"  # reason of rows that only reading itself refuses


@dataclass(frozen=True, slots=True)
class RequestColumns:
    """Columns of requests by their roles.

    Parameters
    ----------
    task : str, sequence of str or None
        Several columns name a task together; None where the log is one task.
    context : sequence of str
        In the order in which the feature map reads them.
    eligible : str, optional
        Lists of the action ids that can be taken.
    request : str, optional
        Ids of the requests, where several rows are the candidates of one.
    levels, metadata : sequence of str
        Groups and known numbers of tasks, in the order of the log's; read for tasks that are not in the log.
    id : sequence of str, optional
        Columns that decisions carry along. Default: all.
    terms : LearnedTerms, optional
        Make the columns of the feature map from the context columns; None where these are its columns.
    named : bool
        The levels and metadata were named for these requests, so that they must be there. Otherwise they may be absent
        until a task is not in the log.
    """

    task: TaskColumns
    context: tuple[str, ...] = ()
    eligible: str | None = None
    request: str | None = None
    levels: tuple[str, ...] = ()
    metadata: tuple[str, ...] = ()
    id: tuple[str, ...] | None = None
    terms: LearnedTerms | None = None
    named: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "task", task_columns(self.task))
        object.__setattr__(self, "context", context_names(self.context))
        for role in ("levels", "metadata"):
            object.__setattr__(self, role, column_names(getattr(self, role), role))
        if self.id is not None:
            object.__setattr__(self, "id", column_names(self.id, "id"))

    def items(self) -> Iterator[tuple[str, str]]:
        """Yield pairs (role, column) of the columns that every request needs."""
        yield from (("task", column) for column in column_tuple(self.task))
        for role, column in (("eligible", self.eligible), ("request", self.request)):
            if column is not None:
                yield role, column
        for column in self.context:
            yield "context" if self.terms is None else "term", column

    @property
    def task_name(self) -> str:
        """Return the task column or columns for messages."""
        return ", ".join(column_tuple(self.task))

    def task_items(self) -> Iterator[tuple[str, str]]:
        """Yield pairs (role, column) of the columns that only tasks need that are not in the log."""
        yield from (("level", column) for column in self.levels)
        yield from (("metadata", column) for column in self.metadata)


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
    absent: tuple[str, ...] = ()
    numbers: Codes | None = None
    columns: RequestColumns = field(default=RequestColumns(""), repr=False)
    _rows: pa.RecordBatch | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return int(self.task.size)

    @property
    def row_numbers(self) -> int | Codes:
        """Return the number of the first row, or the numbers of all where they do not follow it."""
        return self.first_row if self.numbers is None else self.numbers

    @property
    def levels(self) -> tuple[Ids, ...]:
        """Return the groups of each row's task, the widest first.

        Raises
        ------
        LogError
            A group is missing.
        """
        if self._rows is None or self.absent:
            return ()
        return tuple(ids(self._rows.column(name), name, self.first_row) for name in self.columns.levels)

    @property
    def metadata(self) -> NDArray[np.float64] | None:
        """Return the metadata (n, c) of each row's task; None without columns of metadata.

        Raises
        ------
        LogError
            A value is missing.
        """
        if self._rows is None or self.absent or not self.columns.metadata:
            return None
        return context_matrix(self._rows, self.columns.metadata, self.first_row)

    def bad_groups(self) -> list[BadValues]:
        """Return the unusable values in columns of levels and metadata, by column and reason."""
        if self._rows is None or self.absent:
            return []
        return bad_values_by_role(self._rows, self.columns.task_items())

    def subset(self, rows: Codes) -> "Requests":
        """Return some rows (n,)."""
        numbers = self.first_row + rows if self.numbers is None else self.numbers[rows]
        return replace(
            self, task=self.task[rows], context=self.context[rows],
            request=None if self.request is None else self.request[rows],
            _eligible=None if self._eligible is None else self._eligible.some(rows),
            first_row=int(numbers[0]) if numbers.size else self.first_row, numbers=numbers,
            _rows=None if self._rows is None else self._rows.take(pa.array(rows)),
        )  # fmt: skip

    @property
    def eligible(self) -> list[list[Any]] | None:
        """Return the eligible action ids of each row; None where all actions are eligible."""
        return None if self._eligible is None else self._eligible.lists

    def eligible_mask(self, features: FeatureMap) -> Mask | None:
        """Return the mask (n, K) of eligible actions of a feature map; None where all actions are eligible.

        Raises
        ------
        UnknownActionError, InputError
            As :meth:`Eligible.mask`.
        """
        return None if self._eligible is None else self._eligible.mask(features)

    def unknown_actions(self, features: FeatureMap) -> Mask:
        """Return which rows (n,) list an action that the feature map does not know."""
        unknown = np.zeros(len(self), dtype=np.bool_)
        if self._eligible is not None:
            listed, codes = Keys.factorize(self._eligible.entries)
            rows = np.repeat(np.arange(len(self)), np.diff(self._eligible.starts))
            unknown[rows[unknown_actions(features, listed.values)[codes]]] = True
        return unknown

    def lists_without(self, action: Any) -> Mask:
        """Return which rows (n,) list eligible actions, and not this one."""
        if self._eligible is None:
            return np.zeros(len(self), dtype=np.bool_)
        return self._eligible.without(np.array([action] * len(self), dtype=object))

    @classmethod
    def concatenated(cls, parts: "Sequence[Requests]") -> "Requests":
        """Return the rows of all parts, one after the other; their numbers are kept."""
        first, requests = parts[0], [part.request for part in parts if part.request is not None]
        rows = [part._rows for part in parts if part._rows is not None]
        numbers = [
            part.first_row + np.arange(len(part)) if part.numbers is None else part.numbers for part in parts
        ]
        return replace(
            first, task=np.concatenate([part.task for part in parts]),
            context=np.concatenate([part.context for part in parts]),
            request=np.concatenate(requests) if requests else None, numbers=np.concatenate(numbers),
            _rows=one_batch(rows) if rows else None,
        )  # fmt: skip


def one_batch(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of all batches, at least one, as one batch."""
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0] if len(batches) > 1 else batches[0]


@dataclass(frozen=True, slots=True, eq=False)
class RequestBatch:
    """Consecutive rows of a source of requests: those that can be used, and the reasons of the others.

    Parameters
    ----------
    rows : pa.RecordBatch
        All n rows.
    own : dict of (n,) arrays
        The columns that decisions carry along.
    first_row : int
    faults : tuple of BadValues
        Unusable values; their masks are (n,).
    requests : Requests
        The other rows.
    unknown : dict of (n,) bool
        Which rows have a level without a coefficient of its own, by the columns of the log that have levels.
    """

    rows: pa.RecordBatch
    own: dict[str, pa.Array]
    first_row: int
    faults: tuple[BadValues, ...]
    requests: Requests
    unknown: dict[str, Mask] = field(default_factory=dict)

    @property
    def other_levels(self) -> dict[str, int]:
        """Return the number of rows with a level that has no coefficient of its own, by column, where there are any."""
        counts = {name: int(np.count_nonzero(rows)) for name, rows in self.unknown.items()}
        return {name: count for name, count in counts.items() if count}

    @property
    def usable(self) -> Codes:
        """Return the positions (m,) of the usable rows in the batch."""
        numbers = self.requests.numbers
        return np.arange(self.rows.num_rows) if numbers is None else numbers - self.first_row


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

    def add(self, tasks: Ids, unknown: int) -> None:
        """Count the tasks of further requests, of which ``unknown`` are not in the log."""
        if not self._requests:
            self._first = list(tasks[:MAX_COMPARED])
        self._requests += len(tasks)
        self._unknown += unknown

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

    def policy(self, requests: Requests, like: LCBPolicy) -> tuple[LCBPolicy, Codes]:
        """Return a policy like another for requests of tasks not in the log, and the row (n,) of each in its table."""

    def absent_reason(self, requests: Requests) -> str | None:
        """Return the reason why requests of new tasks cannot be used: an absent column; None where none is absent."""

    def contradictions(self, requests: Requests) -> Mask:
        """Return which requests (n,) of new tasks contradict others in their groups or metadata."""

    def known_groups(self, requests: Requests) -> tuple[Mask, ...]:
        """Return for each level, the widest first, which groups (n,) of the requests are in the log."""


def read_requests(
    source: Any,
    task: TaskColumns,
    context: Sequence[str] = (),
    eligible: str | None = None,
    request: str | None = None,
    *,
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

    Raises
    ------
    SchemaError
        A column is missing, exists twice, or has a type that does not fit its role.
    LogError
        A row cannot be used (a null, a NaN, an empty list), or there is none; the message names column and row number.
    """
    columns = RequestColumns(task, context, eligible, request, id=())  # type: ignore[arg-type]  # it checks
    reader = RequestReader(source, columns, strict=True, batch_rows=batch_rows)
    return (batch.requests for batch in reader.batches())


class RequestReader:
    """Reads requests in batches, and finds the rows that cannot be used.

    Parameters
    ----------
    source : LogSource or anything that ``open_log`` takes
    columns : RequestColumns
    strict : bool
        The first row that cannot be used is an error. Otherwise it is marked.
    batch_rows : int

    Raises
    ------
    SchemaError
        A column is missing, exists twice, or has a type that does not fit its role.
    """

    absent: tuple[str, ...]
    own: tuple[str, ...]
    log: LogSource

    def __init__(
        self, source: Any, columns: RequestColumns, *, strict: bool, batch_rows: int = BATCH_ROWS
    ) -> None:
        self._strict, self._batch_rows = strict, batch_rows
        self.log = log = opened_log(source, columns, lenient=not strict)
        self._encoder = None if columns.terms is None else Encoder(columns.terms)
        names = log.schema.names
        self.columns = columns
        absent = tuple(column for _, column in columns.task_items() if column not in names)
        self.absent = () if columns.named else absent
        roles = [*columns.items(), *([] if self.absent else columns.task_items())]
        check_listed(log.schema, columns.eligible, log.name)
        check_columns(log.schema, roles, log.name, texts=None if strict else True)
        if columns.id is not None:
            check_columns(log.schema, (("id", column) for column in columns.id), log.name)
        self.own = tuple(names) if columns.id is None else columns.id
        _refuse_repeated(log, self.own)
        self._texts = [
            column for role, column in roles
            if role in NUMBER_ROLES and holds_text(log.schema.field(column).type)
        ]  # fmt: skip
        read = dict.fromkeys([*(column for _, column in roles), *self.own])
        self._read = tuple(read) or tuple(
            names[:1]
        )  # of a policy without contexts and tasks, rows alone are needed

    @property
    def leveled(self) -> tuple[str, ...]:
        """Return the context columns of the log that have levels."""
        return () if self._encoder is None else self._encoder.learned.leveled

    def batches(self) -> Iterator[RequestBatch]:
        """Yield the rows of the source, in order.

        Raises
        ------
        LogError
            There is no row; or, in a strict reading, a row cannot be used.
        """
        row = 0
        with located(self.log):
            for batch in self.log.batches(self._read, self._batch_rows):
                yield self.batch(batch, row)
                row += batch.num_rows
        if not row:
            raise empty(self.log.name)

    def batch(self, rows: pa.RecordBatch, first_row: int) -> RequestBatch:
        """Check consecutive rows, which have the columns of the reader."""
        own = self._own_columns(rows)
        made, refused, unknown = self._encoded(rows, first_row)
        if self._strict:
            return RequestBatch(rows, own, first_row, (), self._requests(rows, first_row, made), unknown)
        rows = without_views(rows)
        roles = [(role, column) for role, column in self.columns.items() if role != "term"]
        faults = [fault for fault in bad_values_by_role(rows, roles) if fault.reason != "huge"] + refused
        requests = self._usable(rows, first_row, faults, made)
        return RequestBatch(rows, own, first_row, tuple(faults), requests, unknown)

    def _encoded(
        self, rows: pa.RecordBatch, first_row: int
    ) -> tuple[NDArray[np.float64] | None, list[BadValues], dict[str, Mask]]:
        """Return the columns (n, c) that terms make, the values that they refuse, and the rows with unknown levels."""
        if self._encoder is None:
            return None, [], {}
        names, sources = self.columns.context, self._encoder.learned.sources
        contexts_ = pa.RecordBatch.from_arrays([rows.column(name) for name in names], names=list(sources))
        design, refused, unknown = self._encoder.encode(contexts_, first_row)
        if self._strict:
            self._encoder.refuse(refused, contexts_, first_row)
        in_requests = dict(zip(sources, names, strict=True))
        faults = [
            BadValues(in_requests.get(refusal.column, refusal.column), refusal.reason, refusal.rows)
            for refusal in refused
        ]
        none = np.zeros(rows.num_rows, dtype=np.bool_)
        by_column = {name: unknown.get(name, none) for name in self._encoder.learned.leveled}
        return np.column_stack(design), faults, by_column

    def _usable(
        self, rows: pa.RecordBatch, first_row: int, faults: list[BadValues], made: NDArray[np.float64] | None
    ) -> Requests:
        """Return the rows without a fault; add faults that reading alone shows, such as bytes that are not UTF-8."""
        good = ~any_of(faults, rows.num_rows)
        usable = rows if not faults else rows.filter(pa.array(good))
        usable = with_numbers(
            usable, (name for name in self._texts if holds_text(usable.schema.field(name).type))
        )
        try:
            requests = self._requests(usable, first_row, made if made is None else made[good])
        except LogError:
            unreadable = np.zeros(rows.num_rows, dtype=np.bool_)
            unreadable[good] = self._unreadable(usable, made if made is None else made[good])
            faults.append(BadValues("", UNREADABLE, unreadable))
            return self._usable(rows, first_row, faults, made)
        return replace(requests, numbers=first_row + np.flatnonzero(good)) if faults else requests

    def _own_columns(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        """Return the columns that decisions carry along, of the types of the schema."""
        columns = {}
        for name in self.own:
            column, kind = rows.column(name), self.log.schema.field(name).type
            if pa.types.is_dictionary(column.type):
                is_text = not pa.types.is_dictionary(kind)  # a reader may encode texts
                column = decoded(column) if is_text else _without_views_in_dictionary(column)
            columns[name] = column
        return columns

    def _unreadable(self, rows: pa.RecordBatch, made: NDArray[np.float64] | None) -> Mask:
        """Return which rows (n,) cannot be read, by halving those that cannot until single rows are left."""
        unreadable = np.zeros(rows.num_rows, dtype=np.bool_)
        parts = [(0, rows.num_rows)]
        while parts:
            start, stop = parts.pop()
            try:
                self._requests(rows.slice(start, stop - start), 0, made if made is None else made[start:stop])
            except LogError:
                middle = (start + stop) // 2
                if middle == start:
                    unreadable[start] = True
                else:
                    parts += [(start, middle), (middle, stop)]
        return unreadable

    def _requests(self, rows: pa.RecordBatch, first_row: int, made: NDArray[np.float64] | None) -> Requests:
        columns, eligible = self.columns, None

        def ids_of(column: str) -> Ids:
            return ids(rows.column(column), column, first_row)

        if columns.eligible is not None:
            eligible = Eligible(*lists(rows.column(columns.eligible), columns.eligible, first_row), first_row)
        return Requests(
            task_ids(rows, columns.task, first_row),
            made
            if made is not None
            else contexts(context_matrix(rows, columns.context, first_row), columns.context, first_row),
            None if columns.request is None else ids_of(columns.request),
            first_row,
            _eligible=eligible, absent=self.absent, columns=columns, _rows=rows,
        )  # fmt: skip


def _without_views_in_dictionary(column: pa.DictionaryArray) -> pa.DictionaryArray:
    """Return encoded text without views of strings, which polars makes and Parquet files cannot hold."""
    texts, ordered = plain_texts(column.dictionary), column.type.ordered
    return pa.DictionaryArray.from_arrays(column.indices, texts, ordered=ordered)


def _refuse_repeated(log: LogSource, columns: Iterable[str]) -> None:
    names = log.schema.names
    repeated = next((column for column in columns if names.count(column) > 1), None)
    if repeated is not None:
        raise SchemaError(
            f"The {log.name} has {names.count(repeated)} columns named {repeated!r}, and decisions carry the columns "
            "of the requests along. Rename one, or name the columns to carry along: id=[...], --id on the command line."
        )
