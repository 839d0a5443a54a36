"""From requests to decisions."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hieropo.decisions.requests import NewTaskPolicies, Requests, UnknownTasks, read_requests
from hieropo.errors import HieropoError, InputError, LogError, SchemaError
from hieropo.logs.arrow.writing import id_column
from hieropo.policies.gating import GatedPolicy
from hieropo.policies.lower_bound import Choices, LCBPolicy
from hieropo.rows.ids import plain
from hieropo.rows.keys import Keys

Rows = NDArray[np.int64]

OWN_COLUMNS = ("row", "action", "rank", "lower_bound", "mean", "sd", "kept_incumbent")
BLOCK = 2**20  # features that one piece of candidates holds


@dataclass(frozen=True)
class Decisions:
    """Decisions for consecutive requests.

    Parameters
    ----------
    table : pa.Table
        A row for each of the best actions of a request, best first: ``row`` (number of the request's row, or
        of the chosen candidate's, from 0), the columns that name request and task, ``action`` (where the
        policy lists actions), ``rank`` (from 1), ``lower_bound``, ``mean`` and ``sd`` of the expected reward. Of a
        gated policy also ``kept_incumbent``: the request is left to the incumbent, and ``action`` is its action, or
        null where that is whatever acted before.
    requests : int
        Number of requests.
    unseen : int
        How many of them are of tasks that the policy has never seen.
    kept : int
        How many of them the gate of the policy leaves to the incumbent.
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
    """Choose for requests among the actions of the policy's feature map, by what is known of new tasks, too.

    Raises
    ------
    SchemaError, LogError, UnknownTaskError, UnknownActionError
        As :meth:`LCBPolicy.choose_many`; a new task has no place, or two.
    """
    assert policy.features is not None
    mask = requests.eligible_mask(policy.features)
    found = policy.choose_many(
        requests.task, requests.context, eligible=mask, top=top, first_row=requests.first_row
    )
    new = _new(policy, requests.task, new_tasks)
    if new.size and new_tasks is not None and isinstance(policy, LCBPolicy):
        some = requests.placed(new)
        allowed = None if mask is None else mask[new]
        here = new_tasks.policy(some, policy).choose_many(some.task, some.context, eligible=allowed, top=top)
        _put(found, new, here)
    return found


def _new(policy: LCBPolicy | GatedPolicy, tasks: NDArray[Any], new_tasks: NewTaskPolicies | None) -> Rows:
    """Find the rows of tasks that a policy does not know and of which requests may say more; no gate lets such pass."""
    if new_tasks is None or isinstance(policy, GatedPolicy):
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(np.asarray(policy.table.keys.locate(tasks)) < 0)


def _put(found: Choices, rows: Rows, here: Choices) -> None:
    for array, part in zip(found, here, strict=True):
        array[rows, : part.shape[1]] = part


def decide(
    policy: LCBPolicy | GatedPolicy,
    source: Any,
    *,
    task: str,
    eligible: str | None = None,
    request: str | None = None,
    top: int = 1,
    new_tasks: NewTaskPolicies | None = None,
) -> Iterator[Decisions]:
    """Decide for each row of ``source``; the feature map makes the candidates, one for each action.

    Parameters
    ----------
    policy : LCBPolicy or GatedPolicy
        Its feature map names the context columns that are read.
    source : anything that ``open_log`` takes
    task : str
        Column of task ids.
    eligible : str, optional
        Column with a list of the action ids that can be taken; default all.
    request : str, optional
        Column with the caller's own names of the requests.
    top : int
    new_tasks : NewTaskPolicies, optional
        What is known of tasks that the log did not have.

    Raises
    ------
    SchemaError, LogError, UnknownTaskError, UnknownActionError, InputError
        A column or a row that cannot be used; the policy lists no actions.

    Warns
    -----
    HieropoWarning
        At the end: no request is of a task that the policy knows.
    """
    features = policy.features
    if features is None or features.actions is None:
        raise InputError(
            "The feature map of this policy lists no actions: each row of the requests must be a candidate. "
            "Name the column that says which rows belong to one request."
        )
    _refuse_own_names(task, request)
    actions = id_column(features.actions)
    unknown_tasks = UnknownTasks(policy.table.keys)
    for requests in read_requests(source, task, features.columns, eligible, request, new_tasks=new_tasks):
        choices = choices_of(policy, requests, new_tasks, top=top)
        shown, kept = choices.index >= 0, _kept(policy, requests.task)
        shown[kept, 0] = True
        place, ranked = np.nonzero(shown)
        columns = {"row": requests.first_row + place, **_identity(requests, place, task, request)}
        code = choices.index[place, ranked]
        columns["action"] = actions.take(pa.array(code, mask=code < 0))
        table = _table(columns, choices, place, ranked)
        if isinstance(policy, GatedPolicy):
            table = table.append_column("kept_incumbent", pa.array(kept[place]))
        yield Decisions(table, len(requests), unknown_tasks.add(requests.task), int(np.count_nonzero(kept)))
    unknown_tasks.finish()


def decide_candidates(
    policy: LCBPolicy | GatedPolicy,
    source: Any,
    *,
    task: str,
    request: str,
    top: int = 1,
    new_tasks: NewTaskPolicies | None = None,
) -> Iterator[Decisions]:
    """Decide among rows of ``source`` that are candidates; those of one request share a value of ``request``.

    Requests come in the order of their first candidates; all rows are read before the first decision.

    Raises
    ------
    SchemaError, LogError, UnknownTaskError, InputError
        A column or a row that cannot be used, a request that names two tasks; the policy lists actions.

    Warns
    -----
    HieropoWarning
        As :func:`decide`.
    """
    features = policy.features
    if features is None or features.actions is not None:
        raise InputError(
            f"The policy makes the candidates of a request itself, so column {request!r} cannot group rows "
            "into requests. Hand in one row a request."
        )
    if isinstance(policy, GatedPolicy):
        raise InputError(
            "A gate is for policies that list their actions; this one's candidates are rows. Decide with its policy, "
            "GatedPolicy.policy, where GatedPolicy.passes(tasks) says so."
        )
    _refuse_own_names(task, request)
    parts = list(read_requests(source, task, features.columns, None, request, new_tasks=new_tasks))
    everything = _together(parts)
    groups = _Groups(everything, task, request)
    phi, unknown_tasks = features.phi(everything.context), UnknownTasks(policy.table.keys)
    for rows in groups.pieces(phi.shape[1]):
        tasks = everything.task[rows[:, 0]]
        most = min(top, rows.shape[1])
        choices = _choose(policy, tasks, phi, rows, most)
        new = _new(policy, tasks, new_tasks)
        if new.size and new_tasks is not None:
            some = everything.placed(rows[new, 0])
            _put(choices, new, _choose(new_tasks.policy(some, policy), some.task, phi, rows[new], most))
        place, ranked = np.nonzero(choices.index >= 0)
        chosen = rows[place, choices.index[place, ranked]]
        columns = {"row": chosen, **_identity(everything, chosen, task, request)}
        yield Decisions(_table(columns, choices, place, ranked), len(rows), unknown_tasks.add(tasks))
    unknown_tasks.finish()


def _together(parts: list[Requests]) -> Requests:
    known = [part.metadata for part in parts if part.metadata is not None]
    return Requests(
        np.concatenate([part.task for part in parts]),
        np.concatenate([part.context for part in parts]),
        np.concatenate([part.request for part in parts if part.request is not None]),
        levels=tuple(np.concatenate(groups) for groups in zip(*(part.levels for part in parts), strict=True)),
        metadata=np.concatenate(known) if known else None,
        absent=parts[0].absent,
    )


def _choose(
    policy: LCBPolicy, tasks: NDArray[Any], phi: NDArray[np.float64], rows: Rows, top: int
) -> Choices:
    try:
        return policy.choose_many(tasks, phi=phi[rows], eligible=rows >= 0, top=top)
    except HieropoError:
        for r, row in enumerate(rows):  # again, now with the number of the request's first row
            mine = row[row >= 0]
            policy.choose_many(tasks[r : r + 1], phi=phi[mine][None], first_row=int(mine[0]))
        raise


def _kept(policy: LCBPolicy | GatedPolicy, tasks: NDArray[Any]) -> NDArray[np.bool_]:
    if isinstance(policy, GatedPolicy):
        return np.logical_not(policy.passes(tasks))
    return np.zeros(len(tasks), dtype=np.bool_)


def _refuse_own_names(task: str, request: str | None) -> None:
    for column in (task, request):
        if column in OWN_COLUMNS:
            raise SchemaError(
                f"Column {column!r} cannot name the task or the request: decisions have a column of that "
                f"name of their own ({', '.join(OWN_COLUMNS)}). Rename it in the requests."
            )


def _identity(requests: Requests, rows: Rows, task: str, request: str | None) -> dict[str, Any]:
    columns = {task: id_column(requests.task[rows])}
    if request is None or requests.request is None:
        return columns
    return {request: id_column(requests.request[rows]), **columns}


def _table(columns: dict[str, Any], choices: Choices, place: Rows, ranked: Rows) -> pa.Table:
    for name in ("lower_bound", "mean", "sd"):
        columns[name] = pa.array(getattr(choices, name)[place, ranked], from_pandas=True)  # NaN is null
    rank = {"rank": ranked + 1}
    before = {name: columns[name] for name in columns if name not in ("lower_bound", "mean", "sd")}
    return pa.table(before | rank | columns)


class _Groups:
    """Rows of each request."""

    def __init__(self, requests: Requests, task: str, request: str) -> None:
        _, found = Keys.factorize(requests.request)
        _, first, codes = np.unique(found, return_index=True, return_inverse=True)
        _, tasks = Keys.factorize(requests.task)
        strays = np.flatnonzero(tasks != tasks[first[codes]])
        if strays.size:
            row = int(strays[0])
            start = int(first[codes[row]])
            assert requests.request is not None
            name, before, now = (
                plain(value) for value in (requests.request[row], requests.task[start], requests.task[row])
            )
            raise LogError(
                f"Request {name!r} (column {request!r}) has two tasks (column {task!r}): {before!r} in row {start}, "
                f"{now!r} in row {row}. Are ids of requests used again in another task? Make them unique."
            )
        self._order = np.lexsort((np.arange(codes.size), first[codes]))
        self._sizes = np.bincount(codes)[np.argsort(first, kind="stable")]
        self._starts = np.concatenate([[0], np.cumsum(self._sizes)[:-1]])

    def pieces(self, dim: int) -> Iterator[Rows]:
        """Rows of the candidates of some requests, (n, K), padded with -1; in order of first appearance."""
        begin = 0
        while begin < self._sizes.size:
            widest = np.maximum.accumulate(self._sizes[begin : begin + BLOCK])
            padded = widest * np.arange(1, widest.size + 1) * dim
            count = max(1, int(np.searchsorted(padded, BLOCK, side="right")))
            part = slice(begin, begin + count)
            slot = np.arange(int(widest[count - 1]))
            inside = slot < self._sizes[part, None]
            place = self._starts[part, None] + np.where(inside, slot, 0)
            yield np.where(inside, self._order[place], -1)
            begin += count
