"""Tables of decisions for requests: the best actions of each, with their lower bounds."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hieropo.decisions.requests import NewTaskPolicies, Requests, UnknownTasks, read_requests
from hieropo.errors import HieropoError, InputError, LogError, SchemaError
from hieropo.logs.arrow.writing import id_column, task_id_columns
from hieropo.logs.encoding import opened_requests
from hieropo.policies.gating import GatedPolicy
from hieropo.policies.lower_bound import Choices, LCBPolicy
from hieropo.rows.batches import TaskColumns, column_tuple
from hieropo.rows.ids import plain
from hieropo.rows.keys import Keys

Rows = NDArray[np.int64]

RESERVED_COLUMNS = ("row", "action", "rank", "lower_bound", "mean", "sd", "kept_incumbent")
BLOCK = 2**20  # features of candidates in one block


@dataclass(frozen=True)
class Decisions:
    """Decisions for consecutive requests.

    Parameters
    ----------
    table : pa.Table
        A row for each of the best actions of a request, best first: ``row`` (number of the request's row, or
        of the chosen candidate's, from 0), the columns with the ids of request and task, ``action`` (where the
        policy has a list of actions), ``rank`` (from 1), ``lower_bound``, ``mean`` and ``sd`` of the expected reward.
        With a gated policy also ``kept_incumbent``: the request is left to the incumbent, and ``action`` is the
        incumbent's, or null where that is not known.
    requests : int
        Number of requests.
    unseen : int
        Number of requests of tasks that are not in the log.
    kept : int
        Number of requests that the gate of the policy leaves to the incumbent.
    """

    table: pa.Table
    requests: int
    unseen: int
    kept: int = 0


def choices_of(
    policy: LCBPolicy | GatedPolicy,
    requests: Requests,
    new_tasks: NewTaskPolicies | None = None,
    *,
    top: int = 1,
) -> Choices:
    """Return the choices for requests among the actions of the policy's feature map, new tasks included.

    Raises
    ------
    SchemaError, LogError, UnknownTaskError, UnknownActionError
        As :meth:`LCBPolicy.choose_many`; the requests lack the group of a new task, or name two.
    """
    assert policy.features is not None
    mask = requests.eligible_mask(policy.features)
    choices = policy.choose_many(
        requests.task, requests.context, eligible=mask, top=top, first_row=requests.first_row
    )
    new_rows = _rows_of_new_tasks(policy, requests.task, new_tasks)
    if new_rows.size and new_tasks is not None and isinstance(policy, LCBPolicy):
        new = requests.subset(new_rows)
        eligible = None if mask is None else mask[new_rows]
        of_new = new_tasks.policy(new, policy).choose_many(new.task, new.context, eligible=eligible, top=top)
        _replace_rows(choices, new_rows, of_new)
    return choices


def _rows_of_new_tasks(
    policy: LCBPolicy | GatedPolicy, tasks: NDArray[Any], new_tasks: NewTaskPolicies | None
) -> Rows:
    """Return the rows of tasks that are not in the log and get a prior of their own; none with a gate."""
    if new_tasks is None or isinstance(policy, GatedPolicy):
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(np.asarray(policy.table.keys.locate(tasks)) < 0)


def _replace_rows(choices: Choices, rows: Rows, replacements: Choices) -> None:
    for array, part in zip(choices, replacements, strict=True):
        array[rows, : part.shape[1]] = part


def decide(
    policy: LCBPolicy | GatedPolicy,
    source: Any,
    *,
    task: TaskColumns,
    eligible: str | None = None,
    request: str | None = None,
    top: int = 1,
    new_tasks: NewTaskPolicies | None = None,
) -> Iterator[Decisions]:
    """Yield decisions for the rows of ``source``; the feature map makes the candidates, one for each action.

    Parameters
    ----------
    policy : LCBPolicy or GatedPolicy
        Its feature map names the context columns.
    source : anything that ``open_log`` takes
    task : str, sequence of str or None
        Column or columns of task ids; None for a policy of one task.
    eligible : str, optional
        Column with a list of the action ids that can be taken; default all.
    request : str, optional
        Column with the caller's ids of the requests.
    top : int
        Number of best actions of each request.
    new_tasks : NewTaskPolicies, optional
        Makes policies for tasks that are not in the log from their groups and metadata.

    Raises
    ------
    SchemaError, LogError, UnknownTaskError, UnknownActionError, InputError
        A column or a row cannot be used; the policy has no list of actions.

    Warns
    -----
    HieropoWarning
        At the end: no request is of a task in the log.
    """
    features = policy.features
    if features is None or features.actions is None:
        raise InputError(
            "The feature map of this policy has no list of actions, so each row of the requests is a candidate. Name "
            "the column with the id of the request (request=...)."
        )
    _refuse_reserved_names(task, request)
    actions = id_column(features.actions)
    unknown_tasks = UnknownTasks(policy.table.keys)
    source = opened_requests(source, features)
    for requests in read_requests(source, task, features.columns, eligible, request, new_tasks=new_tasks):
        choices = choices_of(policy, requests, new_tasks, top=top)
        listed, kept = choices.index >= 0, _kept(policy, requests.task)
        listed[kept, 0] = True
        rows, ranks = np.nonzero(listed)
        columns = {"row": requests.first_row + rows, **_ids(requests, rows, task, request)}
        codes = choices.index[rows, ranks]
        columns["action"] = actions.take(pa.array(codes, mask=codes < 0))
        table = _table(columns, choices, rows, ranks)
        if isinstance(policy, GatedPolicy):
            table = table.append_column("kept_incumbent", pa.array(kept[rows]))
        yield Decisions(table, len(requests), unknown_tasks.add(requests.task), int(np.count_nonzero(kept)))
    unknown_tasks.finish()


def decide_candidates(
    policy: LCBPolicy | GatedPolicy,
    source: Any,
    *,
    task: TaskColumns,
    request: str,
    top: int = 1,
    new_tasks: NewTaskPolicies | None = None,
) -> Iterator[Decisions]:
    """Yield decisions among candidates, the rows of ``source``; those of one request share a value of ``request``.

    Requests come in the order of their first candidates. All rows are read before the first decision.

    Raises
    ------
    SchemaError, LogError, UnknownTaskError, InputError
        A column or a row cannot be used; a request has two tasks; the policy has a list of actions.

    Warns
    -----
    HieropoWarning
        As :func:`decide`.
    """
    features = policy.features
    if features is None or features.actions is not None:
        raise InputError(
            f"The policy makes the candidates of a request from its list of actions, so column {request!r} cannot "
            "group rows into requests. Give one row per request."
        )
    if isinstance(policy, GatedPolicy):
        raise InputError(
            "A gate needs a policy with a list of actions, and the candidates of this one are rows. Decide with "
            "GatedPolicy.policy for the tasks of which GatedPolicy.passes(tasks) is true."
        )
    _refuse_reserved_names(task, request)
    source = opened_requests(source, features)
    batches = list(read_requests(source, task, features.columns, None, request, new_tasks=new_tasks))
    requests = _concatenated(batches)
    groups = _CandidateGroups(requests, task, request)
    phi, unknown_tasks = features.phi(requests.context), UnknownTasks(policy.table.keys)
    for candidates in groups.blocks(phi.shape[1]):
        tasks = requests.task[candidates[:, 0]]
        n_best = min(top, candidates.shape[1])
        choices = _choose(policy, tasks, phi, candidates, n_best)
        new_rows = _rows_of_new_tasks(policy, tasks, new_tasks)
        if new_rows.size and new_tasks is not None:
            new = requests.subset(candidates[new_rows, 0])
            of_new = _choose(new_tasks.policy(new, policy), new.task, phi, candidates[new_rows], n_best)
            _replace_rows(choices, new_rows, of_new)
        rows, ranks = np.nonzero(choices.index >= 0)
        chosen = candidates[rows, choices.index[rows, ranks]]
        columns = {"row": chosen, **_ids(requests, chosen, task, request)}
        yield Decisions(_table(columns, choices, rows, ranks), len(candidates), unknown_tasks.add(tasks))
    unknown_tasks.finish()


def _concatenated(parts: list[Requests]) -> Requests:
    metadata = [part.metadata for part in parts if part.metadata is not None]
    return Requests(
        np.concatenate([part.task for part in parts]),
        np.concatenate([part.context for part in parts]),
        np.concatenate([part.request for part in parts if part.request is not None]),
        levels=tuple(np.concatenate(groups) for groups in zip(*(part.levels for part in parts), strict=True)),
        metadata=np.concatenate(metadata) if metadata else None,
        absent=parts[0].absent,
    )


def _choose(
    policy: LCBPolicy, tasks: NDArray[Any], phi: NDArray[np.float64], candidates: Rows, top: int
) -> Choices:
    """Return the choices among the rows ``candidates`` (n, K) of ``phi``, padded with -1."""
    try:
        return policy.choose_many(tasks, phi=phi[candidates], eligible=candidates >= 0, top=top)
    except HieropoError:
        for r, padded in enumerate(candidates):  # again one by one, for the number of the row in the message
            rows = padded[padded >= 0]
            policy.choose_many(tasks[r : r + 1], phi=phi[rows][None], first_row=int(rows[0]))
        raise


def _kept(policy: LCBPolicy | GatedPolicy, tasks: NDArray[Any]) -> NDArray[np.bool_]:
    if isinstance(policy, GatedPolicy):
        return np.logical_not(policy.passes(tasks))
    return np.zeros(len(tasks), dtype=np.bool_)


def _refuse_reserved_names(task: TaskColumns, request: str | None) -> None:
    for column in (*column_tuple(task), request):
        if column in RESERVED_COLUMNS:
            raise SchemaError(
                f"Column {column!r} cannot hold the ids of tasks or requests, because decisions have a column of that "
                f"name ({', '.join(RESERVED_COLUMNS)}). Rename it in the requests."
            )


def _ids(requests: Requests, rows: Rows, task: TaskColumns, request: str | None) -> dict[str, Any]:
    """Return the columns of task and request ids."""
    columns = task_id_columns(task, requests.task[rows])
    if request is None or requests.request is None:
        return columns
    return {request: id_column(requests.request[rows]), **columns}


def _table(columns: dict[str, Any], choices: Choices, rows: Rows, ranks: Rows) -> pa.Table:
    """Return the table of decisions: columns of ids, then rank, lower bound, mean and sd."""
    rank = {"rank": ranks + 1}
    of_rewards = {
        name: pa.array(getattr(choices, name)[rows, ranks], from_pandas=True)  # NaN is null
        for name in ("lower_bound", "mean", "sd")
    }
    return pa.table(columns | rank | of_rewards)


class _CandidateGroups:
    """The candidates of each request, by rows."""

    def __init__(self, requests: Requests, task: TaskColumns, request: str) -> None:
        _, request_codes = Keys.factorize(requests.request)
        _, first, codes = np.unique(request_codes, return_index=True, return_inverse=True)
        _, tasks = Keys.factorize(requests.task)
        conflicts = np.flatnonzero(tasks != tasks[first[codes]])
        if conflicts.size:
            row = int(conflicts[0])
            start = int(first[codes[row]])
            assert requests.request is not None
            name, first_task, task_id = (
                plain(value) for value in (requests.request[row], requests.task[start], requests.task[row])
            )
            columns = ", ".join(column_tuple(task))
            raise LogError(
                f"Request {name!r} (column {request!r}) has two tasks (column {columns!r}): {first_task!r} in row "
                f"{start}, {task_id!r} in row {row}. The candidates of a request belong to one task. Give each request "
                "its own id."
            )
        self._order = np.lexsort((np.arange(codes.size), first[codes]))
        self._sizes = np.bincount(codes)[np.argsort(first, kind="stable")]
        self._starts = np.concatenate([[0], np.cumsum(self._sizes)[:-1]])

    def blocks(self, dim: int) -> Iterator[Rows]:
        """Yield the rows of the candidates of some requests, (n, K), padded with -1; in order of first appearance."""
        begin = 0
        while begin < self._sizes.size:
            widest = np.maximum.accumulate(self._sizes[begin : begin + BLOCK])
            padded = widest * np.arange(1, widest.size + 1) * dim
            count = max(1, int(np.searchsorted(padded, BLOCK, side="right")))
            part = slice(begin, begin + count)
            slot = np.arange(int(widest[count - 1]))
            is_candidate = slot < self._sizes[part, None]
            position = self._starts[part, None] + np.where(is_candidate, slot, 0)
            yield np.where(is_candidate, self._order[position], -1)
            begin += count
