"""Decisions among candidates that are rows: the rows of one request compete."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hieropo._utils.arrays import Codes
from hieropo.decisions.choosing import (
    Answers,
    Refused,
    faults_of_policy,
    known_groups,
    locate,
    refusals,
    replace_rows,
    spread,
)
from hieropo.decisions.decisions import Counts, Decisions
from hieropo.decisions.requests import NewTaskPolicies, RequestReader, Requests, UnknownTasks, one_batch
from hieropo.decisions.tables import ColumnNames, table_of
from hieropo.errors import InputError, LogError
from hieropo.logs.arrow.arrays import ids
from hieropo.logs.arrow.log_source import LogSource
from hieropo.logs.bad_rows.rejects import BadValues, Reason, any_of
from hieropo.policies.gating import GatedPolicy
from hieropo.policies.lower_bound import Choices, LCBPolicy
from hieropo.rows.ids import plain
from hieropo.rows.keys import Keys

BLOCK = 2**20  # features of candidates in one block

TWO_TASKS = "candidates of two tasks in one request"


def decide_candidates(
    policy: LCBPolicy | GatedPolicy,
    reader: RequestReader,
    new_tasks: NewTaskPolicies | None,
    *,
    top: int,
    strict: bool,
) -> Iterator[Decisions]:
    """Yield decisions among candidates, the rows of a reader; those of one request share a value of ``request``.

    Requests come in the order of their first candidates, those with a candidate that cannot be used last. All rows are
    read before the first decision.

    Raises
    ------
    LogError, UnknownTaskError
        ``strict``, and a row cannot be used, or a request has two tasks.
    InputError
        The policy has a gate.

    Warns
    -----
    HieropoWarning
        No request is of a task in the log.
    """
    if isinstance(policy, GatedPolicy):
        raise InputError(
            "A gate needs a policy with a list of actions, and the candidates of this one are rows. Decide with "
            "GatedPolicy.policy for the tasks of which GatedPolicy.passes(tasks) is true."
        )
    names = ColumnNames(reader.own, () if new_tasks is None else new_tasks.levels, reader.leveled)
    rows = _AllRows.read(policy, reader, new_tasks, strict=strict)
    unknown_tasks_ = UnknownTasks(policy.table.keys)
    requests, features = rows.requests, policy.features
    assert features is not None
    phi = features.phi(requests.context) if len(requests) else np.zeros((0, features.dim))
    for candidates in rows.blocks(features.dim):
        first = requests.subset(candidates[:, 0])
        answers = _answer(policy, first, phi, candidates, new_tasks, top=top, strict=strict)
        numbers = rows.numbers[candidates]
        table = table_of(
            answers, rows.own, names, number=numbers[:, 0], unknown=rows.unknown, candidates=numbers
        )
        unseen = int(np.count_nonzero(answers.usable & ~answers.task_known))
        unknown_tasks_.add(first.task, unseen)
        reasons = tuple(rows.reason(fault, numbers[:, 0]).placed(reader.log) for fault in answers.faults)
        yield Decisions(table, Counts(len(first), unseen, 0, int(np.count_nonzero(~answers.usable)), reasons))
    if rows.unusable.size:
        yield _undecided(rows, names, 0 if new_tasks is None else len(new_tasks.levels), top, reader.log)
    unknown_tasks_.finish()


def _answer(
    policy: LCBPolicy, first: Requests, phi: NDArray[np.float64], candidates: Codes,
    new_tasks: NewTaskPolicies | None, *, top: int, strict: bool,
) -> Answers:  # fmt: skip
    """Choose among the rows ``candidates`` (n, K) of ``phi``, padded with -1, for n requests with these first rows."""
    n = len(first)
    unknown = locate(policy, first) < 0
    refused: Refused = None if strict else {}
    choices = _choose(policy, None, phi, candidates, first, top + 1, refused)
    new = np.flatnonzero(unknown) if new_tasks is not None else np.zeros(0, dtype=np.int64)
    if new.size and new_tasks is not None:
        of_new = first.subset(new)
        policy_of_new, located = new_tasks.policy(of_new, policy)
        of_new_refused: Refused = None if refused is None else {}
        replacements = _choose(policy_of_new, located, phi, candidates[new], of_new, top + 1, of_new_refused)
        replace_rows(choices, new, replacements, refused, of_new_refused)
    faults = refusals(refused or {}, np.arange(n), n)
    return Answers(
        choices, ~any_of(faults, n), ~unknown, np.zeros(n, dtype=np.bool_),
        tuple(known_groups(first, unknown, new_tasks)), tuple(faults),
    )  # fmt: skip


def _choose(
    policy: LCBPolicy, located: Codes | None, phi: NDArray[np.float64], candidates: Codes, first: Requests, top: int,
    refused: Refused,
) -> Choices:  # fmt: skip
    return policy.choose_many(
        first.task,
        phi=phi[candidates],
        eligible=candidates >= 0,
        top=top,
        first_row=first.row_numbers,
        located=located,
        refused=refused,
    )


def _undecided(rows: "_AllRows", names: ColumnNames, n_levels: int, top: int, log: LogSource) -> Decisions:
    """Return the rows of requests that cannot be used, each with the number of its first candidate."""
    n = rows.unusable.size
    nothing = np.zeros(n, dtype=np.bool_)
    scores = np.full((3, n, top + 1), np.nan)
    answers = Answers(
        Choices(np.full((n, top + 1), -1), *scores), nothing, nothing, nothing, ((nothing, nothing),) * n_levels,
        rows.faults,
    )  # fmt: skip
    table = table_of(
        answers,
        rows.own,
        names,
        number=rows.unusable,
        unknown=rows.unknown,
        candidates=rows.unusable[:, None],
    )
    reasons = tuple(rows.reason(fault, rows.unusable).placed(log) for fault in rows.faults)
    return Decisions(table, Counts(n, undecided=n, reasons=reasons))


@dataclass(frozen=True, slots=True, eq=False)
class _AllRows:
    """All rows of candidates, by their requests.

    Parameters
    ----------
    requests : Requests
        The rows of requests without an unusable row.
    numbers : (m,) int
        Their numbers among all rows.
    own, unknown : dict of arrays
        Columns that decisions carry along, and which rows have an unknown level by context column; of all rows.
    rows : pa.RecordBatch
        All rows.
    unusable : (u,) int
        The first row of each request that cannot be used.
    faults : tuple of BadValues
        Of these requests; masks are (u,).
    """

    requests: Requests
    numbers: Codes
    own: dict[str, Any]
    unknown: dict[str, NDArray[np.bool_]]
    rows: pa.RecordBatch
    unusable: Codes
    faults: tuple[BadValues, ...]
    _order: Codes
    _sizes: Codes

    @classmethod
    def read(
        cls, policy: LCBPolicy, reader: RequestReader, new_tasks: NewTaskPolicies | None, *, strict: bool
    ) -> "_AllRows":
        """Read all rows, and group those of each request."""
        batches = list(reader.batches())
        rows = one_batch([batch.rows for batch in batches])
        requests = Requests.concatenated([batch.requests for batch in batches])
        assert requests.numbers is not None
        n = rows.num_rows
        faults = [
            spread(fault, batch.first_row + np.arange(batch.rows.num_rows), n)
            for batch in batches
            for fault in batch.faults
        ]
        group = _groups(rows, requests, faults, reader.columns.request)
        if not strict:
            located = locate(policy, requests)
            faults += [
                spread(fault, requests.numbers, n)
                for fault in faults_of_policy(policy, requests, located, new_tasks)
            ]
            requests = requests.subset(np.flatnonzero(~any_of(faults, n)[requests.numbers]))
        faults += _conflicts(requests, group, n, strict=strict)
        first = np.unique(group, return_index=True)[1]
        is_bad = np.zeros(first.size, dtype=np.bool_)
        is_bad[group[any_of(faults, n)]] = True
        assert requests.numbers is not None
        good = requests.subset(np.flatnonzero(~is_bad[group[requests.numbers]]))
        unusable, faults = _of_groups(faults, group, first, is_bad)
        own = {name: pa.chunked_array([batch.own[name] for batch in batches]) for name in reader.own}
        unknown = {
            name: np.concatenate([batch.unknown[name] for batch in batches]) for name in reader.leveled
        }
        assert good.numbers is not None
        starts, codes = np.unique(group[good.numbers], return_index=True, return_inverse=True)[1:]
        order = np.lexsort((np.arange(codes.size), starts[codes]))
        sizes = np.bincount(codes)[np.argsort(starts, kind="stable")]
        return cls(good, good.numbers, own, unknown, rows, unusable, tuple(faults), order, sizes)

    def blocks(self, dim: int) -> Iterator[Codes]:
        """Yield the positions of the candidates of some requests, (n, K), padded with -1; by first appearance."""
        starts, begin = np.concatenate([[0], np.cumsum(self._sizes)[:-1]]), 0
        while begin < self._sizes.size:
            widest = np.maximum.accumulate(self._sizes[begin : begin + BLOCK])
            padded = widest * np.arange(1, widest.size + 1) * dim
            count = max(1, int(np.searchsorted(padded, BLOCK, side="right")))
            part = slice(begin, begin + count)
            slot = np.arange(int(widest[count - 1]))
            is_candidate = slot < self._sizes[part, None]
            position = starts[part, None] + np.where(is_candidate, slot, 0)
            yield np.where(is_candidate, self._order[position], -1)
            begin += count

    def reason(self, fault: BadValues, first_rows: Codes) -> Reason:
        """Return the count of requests (n,), with these first rows, that have a fault."""
        bad = np.flatnonzero(fault.bad)
        row = int(first_rows[bad[0]])
        value = (
            self.rows.column(fault.column)[row].as_py() if fault.column in self.rows.schema.names else None
        )
        return Reason(fault.column, fault.reason, bad.size, row, None if value is None else str(value))


def _groups(rows: pa.RecordBatch, requests: Requests, faults: list[BadValues], column: str | None) -> Codes:
    """Return the number of the request of each row (n,); a row without a readable id is a request by itself."""
    assert requests.numbers is not None
    assert requests.request is not None
    assert column is not None
    group = np.full(rows.num_rows, -1, dtype=np.int64)
    readable = ~any_of((fault for fault in faults if fault.column in (column, "")), rows.num_rows)
    readable[requests.numbers] = False
    others = ids(rows.column(column).filter(pa.array(readable)), column, 0)
    group[np.concatenate([requests.numbers, np.flatnonzero(readable)])] = Keys.factorize(
        np.concatenate([requests.request, others]) if others.size else requests.request
    )[1]
    alone = np.flatnonzero(group < 0)
    group[alone] = group.max(initial=-1) + 1 + np.arange(alone.size)
    return group


def _conflicts(requests: Requests, group: Codes, n: int, *, strict: bool) -> list[BadValues]:
    """Return the rows with another task than the first row of their request; refuse them where ``strict``."""
    assert requests.numbers is not None
    _, first, codes = np.unique(group[requests.numbers], return_index=True, return_inverse=True)
    _, tasks = Keys.factorize(requests.task)
    conflicts = np.flatnonzero(tasks != tasks[first[codes]])
    if not conflicts.size:
        return []
    columns = requests.columns
    if strict:
        row = int(conflicts[0])
        start = int(first[codes[row]])
        assert requests.request is not None
        name, first_task, task_id = (
            plain(value) for value in (requests.request[row], requests.task[start], requests.task[row])
        )
        raise LogError(
            f"Request {name!r} (column {columns.request!r}) has two tasks (column {columns.task_name!r}): "
            f"{first_task!r} in row {requests.numbers[start]}, {task_id!r} in row {requests.numbers[row]}. The "
            "candidates of a request belong to one task. Give each request its own id."
        )
    bad = np.zeros(n, dtype=np.bool_)
    bad[requests.numbers[conflicts]] = True
    return [BadValues(columns.task_name, TWO_TASKS, bad)]


def _of_groups(
    faults: list[BadValues], group: Codes, first: Codes, is_bad: NDArray[np.bool_]
) -> tuple[Codes, list[BadValues]]:
    """Return the first row of each request with a fault, in order, and the faults of rows as those of requests."""
    bad_groups = np.flatnonzero(is_bad)
    bad_groups = bad_groups[np.argsort(first[bad_groups], kind="stable")]
    position = np.full(first.size, -1, dtype=np.int64)
    position[bad_groups] = np.arange(bad_groups.size)
    by_request: dict[tuple[str, str], NDArray[np.bool_]] = {}
    for fault in faults:
        bad = by_request.setdefault((fault.column, fault.reason), np.zeros(bad_groups.size, dtype=np.bool_))
        bad[position[group[fault.bad]]] = True
    return first[bad_groups], [BadValues(*key, bad) for key, bad in by_request.items()]
