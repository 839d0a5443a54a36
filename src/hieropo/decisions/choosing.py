"""The choices for one batch of requests, and the requests that the policy cannot answer."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Codes, Mask
from hieropo.decisions.requests import NewTaskPolicies, RequestBatch, Requests
from hieropo.errors import HieropoError, NumericalError
from hieropo.logs.bad_rows.rejects import BadValues, any_of
from hieropo.policies.gating import GatedPolicy
from hieropo.policies.lower_bound import Choices, LCBPolicy

AnyPolicy = LCBPolicy | GatedPolicy
Refused = dict[int, HieropoError] | None  # errors by the row of a request; None where the first one is raised

UNKNOWN_TASK = "a task that is not in the log"
UNKNOWN_ACTION = "a list with an unknown action"
CONTRADICTION = "a group or metadata that contradict other rows of the task"
OVERFLOW = "a lower bound that overflows"
NO_CHOICE = "no eligible action with finite features"
NO_INCUMBENT = "a list without the incumbent's action, which the gate keeps"


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """The choices for the n rows of a batch of requests.

    Parameters
    ----------
    choices : Choices
        (n, top); -1 and NaN where a request cannot be used.
    usable, task_known, kept : (n,) bool
        ``kept`` requests are left to the incumbent by a gate.
    groups : tuple of pairs of (n,) bool
        For each level, the widest first: which groups are in the log, and of which that is known.
    faults : tuple of BadValues
        The reasons of requests that cannot be used.
    """

    choices: Choices
    usable: Mask
    task_known: Mask
    kept: Mask
    groups: tuple[tuple[Mask, Mask], ...]
    faults: tuple[BadValues, ...]


def answer(
    policy: AnyPolicy, batch: RequestBatch, new_tasks: NewTaskPolicies | None, *, top: int, strict: bool
) -> Answers:
    """Choose for the rows of a batch; in a strict answer, the first request that cannot be used is an error.

    Raises
    ------
    SchemaError, LogError, UnknownTaskError, UnknownActionError, NumericalError
        As :func:`choices_of`, of a strict answer.
    """
    n, requests, faults = batch.rows.num_rows, batch.requests, list(batch.faults)
    located = locate(policy, requests)
    if not strict:
        bad = list(faults_of_policy(policy, requests, located, new_tasks))
        if bad:
            faults += [spread(fault, batch.usable, n) for fault in bad]
            good = np.flatnonzero(~any_of(bad, len(requests)))
            requests, located = requests.subset(good), located[good]
    refused: Refused = None if strict else {}
    choices = choices_of(policy, requests, located, new_tasks, top=top, refused=refused)
    position = np.arange(n) if requests.numbers is None else requests.numbers - batch.first_row
    faults += refusals(refused or {}, position, n)
    usable = ~any_of(faults, n)
    kept, unknown = _kept(policy, located), located < 0

    def at_all(values: NDArray[Any], missing: Any) -> NDArray[Any]:
        if len(values) == n:
            return values
        spread = np.full((n, *values.shape[1:]), missing, values.dtype)
        spread[position] = values
        return spread

    return Answers(
        Choices(*(at_all(values, -1 if values.dtype.kind == "i" else np.nan) for values in choices)),
        usable,
        at_all(~unknown, missing=False),
        at_all(kept, missing=False) & usable,
        tuple(
            (at_all(known, missing=False), at_all(valid, missing=False) & usable)
            for known, valid in known_groups(requests, unknown, new_tasks)
        ),
        tuple(faults),
    )


def locate(policy: AnyPolicy, requests: Requests) -> Codes:
    """Return the row of each request's task in the table of the policy, (n,); -1 where it is not in the log."""
    return np.asarray(policy.table.keys.locate(requests.task), dtype=np.int64)


def choices_of(
    policy: AnyPolicy,
    requests: Requests,
    located: Codes,
    new_tasks: NewTaskPolicies | None = None,
    *,
    top: int = 1,
    refused: Refused = None,
) -> Choices:
    """Return the choices for requests among the actions of the policy's feature map, new tasks included.

    Parameters
    ----------
    located : (n,) int
        Rows of the tasks in the table of the policy, -1 for those that are not in the log.
    refused : dict, optional
        Takes the errors of requests that cannot be answered, by their positions.

    Raises
    ------
    SchemaError, LogError, UnknownTaskError, UnknownActionError
        As :meth:`LCBPolicy.choose_many`; the requests lack the group of a new task, or name two.
    """
    assert policy.features is not None
    mask = requests.eligible_mask(policy.features)
    choices = policy.choose_many(
        requests.task,
        requests.context,
        eligible=mask,
        top=top,
        first_row=requests.row_numbers,
        located=located,
        refused=refused,
    )
    rows = _rows_with_prior(policy, located, new_tasks)
    if rows.size and new_tasks is not None and isinstance(policy, LCBPolicy):
        new = requests.subset(rows)
        of_new: Refused = None if refused is None else {}
        policy_of_new, located_new = new_tasks.policy(new, policy)
        replacements = policy_of_new.choose_many(
            new.task, new.context, eligible=None if mask is None else mask[rows], top=top,
            first_row=new.row_numbers, located=located_new, refused=of_new,
        )  # fmt: skip
        replace_rows(choices, rows, replacements, refused, of_new)
    return choices


def _rows_with_prior(policy: AnyPolicy, located: Codes, new_tasks: NewTaskPolicies | None) -> Codes:
    """Return the rows of tasks that are not in the log and get a prior of their own; none with a gate."""
    if new_tasks is None or isinstance(policy, GatedPolicy):
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(located < 0)


def replace_rows(
    choices: Choices, rows: Codes, replacements: Choices, refused: Refused, of_rows: Refused
) -> None:
    """Write other choices, and the errors ``of_rows`` in making them, over those of some rows."""
    for array, part in zip(choices, replacements, strict=True):
        array[rows, : part.shape[1]] = part
    if refused is not None and of_rows is not None:
        for row in rows.tolist():
            refused.pop(row, None)
        refused.update((int(rows[row]), error) for row, error in of_rows.items())


def known_groups(
    requests: Requests, unknown: Mask, new_tasks: NewTaskPolicies | None
) -> Iterator[tuple[Mask, Mask]]:
    """Yield for each level which groups (n,) are in the log, and of which (n,) requests that is known.

    The groups of a task that is in the log are those of the log.
    """
    if new_tasks is None:
        return
    rows = np.flatnonzero(unknown)
    new = requests.subset(rows) if rows.size else None
    readable = np.zeros(rows.size, dtype=np.bool_)
    groups: tuple[Mask, ...] = ()
    if new is not None and not new.absent:
        readable = ~any_of(new.bad_groups(), rows.size)
        groups = new_tasks.known_groups(new.subset(np.flatnonzero(readable)))
    for level in range(len(new_tasks.levels)):
        known, valid = ~unknown, ~unknown
        valid[rows] = readable
        if groups:
            known[rows[readable]] = groups[level]
        yield known, valid


def faults_of_policy(
    policy: AnyPolicy, requests: Requests, located: Codes, new_tasks: NewTaskPolicies | None
) -> Iterator[BadValues]:
    """Yield the requests that the policy cannot answer, as far as their values show it."""
    columns = requests.columns
    if policy.unseen == "error" and (located < 0).any():
        yield BadValues(columns.task_name, UNKNOWN_TASK, located < 0)
    elif (rows := _rows_with_prior(policy, located, new_tasks)).size and new_tasks is not None:
        for fault in _faults_of_new_tasks(requests.subset(rows), new_tasks):
            yield spread(fault, rows, len(requests))
    assert policy.features is not None
    if columns.eligible is not None:
        bad = requests.unknown_actions(policy.features)
        if bad.any():
            yield BadValues(columns.eligible, UNKNOWN_ACTION, bad)
        if isinstance(policy, GatedPolicy) and policy.incumbent is not None:
            bad = _kept(policy, located) & requests.lists_without(policy.incumbent)
            if bad.any():
                yield BadValues(columns.eligible, NO_INCUMBENT, bad)


def _faults_of_new_tasks(new: Requests, new_tasks: NewTaskPolicies) -> Iterator[BadValues]:
    reason = new_tasks.absent_reason(new)
    if reason is not None:
        yield BadValues(new.columns.task_name, reason, np.ones(len(new), dtype=np.bool_))
        return
    unusable = new.bad_groups()
    yield from unusable
    others = np.flatnonzero(~any_of(unusable, len(new)))
    contradictory = np.zeros(len(new), dtype=np.bool_)
    contradictory[others] = new_tasks.contradictions(new.subset(others))
    if contradictory.any():
        yield BadValues(new.columns.task_name, CONTRADICTION, contradictory)


def spread(fault: BadValues, rows: Codes, n: int) -> BadValues:
    """Return a fault of some rows of n as one of all."""
    bad = np.zeros(n, dtype=np.bool_)
    bad[rows[fault.bad]] = True
    return BadValues(fault.column, fault.reason, bad)


def refusals(refused: dict[int, HieropoError], position: Codes, n: int) -> list[BadValues]:
    """Return the requests for which no candidate could be chosen, by reason."""
    by_reason: dict[str, Mask] = {}
    for row, error in refused.items():
        reason = OVERFLOW if isinstance(error, NumericalError) else NO_CHOICE
        by_reason.setdefault(reason, np.zeros(n, dtype=np.bool_))[position[row]] = True
    return [BadValues("", reason, bad) for reason, bad in by_reason.items()]


def _kept(policy: AnyPolicy, located: Codes) -> Mask:
    if isinstance(policy, GatedPolicy):
        return np.logical_not(policy.passes_rows(located))
    return np.zeros(located.size, dtype=np.bool_)
