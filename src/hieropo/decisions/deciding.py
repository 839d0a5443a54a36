"""Decide requests: the best actions of each with their lower bounds, or the reason why it cannot be used."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from hieropo.decisions.candidates import decide_candidates
from hieropo.decisions.choosing import AnyPolicy, answer
from hieropo.decisions.decisions import Counts, Decisions
from hieropo.decisions.requests import NewTaskPolicies, RequestColumns, RequestReader, UnknownTasks
from hieropo.decisions.tables import ColumnNames, counted_reason, table_of
from hieropo.errors import InputError, SchemaError, warn
from hieropo.features.maps import FeatureMap
from hieropo.features.terms.learned import LearnedTerms
from hieropo.logs.arrow.log_source import located
from hieropo.logs.arrow.writing import id_column
from hieropo.logs.engines.tables import TableSource
from hieropo.policies.gating import GatedPolicy
from hieropo.policies.lower_bound import Choice
from hieropo.rows.batches import TaskColumns, column_of


def eligible_column(policy: AnyPolicy, of_log: str | None, given: str | Literal[False] | None) -> str | None:
    """Return the column of requests that lists eligible actions; None where all actions can be taken.

    Parameters
    ----------
    policy : LCBPolicy or GatedPolicy
        The column of its gate counts before that of the log. Where the rows of a request are its candidates, only a
        given column counts.
    of_log : str or None
        The column of the log of the fit.
    given : str, False or None
        The column that the caller names; False: all actions can be taken.
    """
    if policy.features is None or policy.features.actions is None:
        return column_of(given, None)
    of_gate = policy.eligible if isinstance(policy, GatedPolicy) else None
    return column_of(given, of_gate or of_log)


def decide(  # noqa: PLR0913 - one parameter for each role
    policy: AnyPolicy,
    source: Any,
    *,
    task: TaskColumns,
    context: Sequence[str] | None = None,
    eligible: str | None = None,
    levels: Sequence[str] | None = None,
    metadata: Sequence[str] | None = None,
    id: str | Sequence[str] | None = None,  # noqa: A002 - the word of users
    request: str | None = None,
    top: int = 1,
    strict: bool = False,
    new_tasks: NewTaskPolicies | None = None,
) -> Iterator[Decisions]:
    """Yield decisions for the rows of ``source``, batch by batch.

    With a feature map that lists actions each row is a request. Otherwise each row is a candidate, and rows with the
    same value of ``request`` are the candidates of one request; all are read before the first decision, and requests
    come in the order of their first candidates, those that cannot be used last.

    Parameters
    ----------
    policy : LCBPolicy or GatedPolicy
    source : anything that ``open_log`` takes
    task : str, sequence of str or None
        Column or columns of task ids; None for a policy of one task.
    context : sequence of str, optional
        Context columns, in the order of those of the feature map. Default: the same names.
    eligible : str, optional
        Column with a list of the action ids that can be taken; default all.
    levels, metadata : sequence of str, optional
        Columns of groups and numbers of tasks, in the order of those of ``new_tasks``. Default: the same names. They
        are read for tasks that are not in the log.
    id : str or sequence of str, optional
        Columns that the decisions carry along; default all.
    request : str, optional
        Column with the ids of requests, where candidates are rows.
    top : int
        Number of best actions of each request.
    strict : bool
        The first request that cannot be used is an error. Otherwise it gets no action and a reason.
    new_tasks : NewTaskPolicies, optional
        Makes policies for tasks that are not in the log from their groups and metadata.

    Raises
    ------
    SchemaError
        A column is missing, exists twice, or has a type that does not fit its role.
    InputError
        ``request`` is missing or has no use; ``top`` is below 1.
    LogError, UnknownTaskError, UnknownActionError, NumericalError
        There is no request; or ``strict``, and a request cannot be used.

    Warns
    -----
    HieropoWarning
        At the end: requests cannot be used; no request is of a task in the log.
    """
    if policy.features is None:
        raise InputError(
            "This policy has no feature map, so features of requests cannot be computed. Make it with its features, or "
            "use policy.choose(task, phi=...)."
        )
    if top < 1:
        raise InputError(f"top={top} asks for no action. Set it to 1 or more.")
    features = policy.features
    _refuse_wrong_request(features, request)
    columns = request_columns(
        features, new_tasks, task=task, context=context, eligible=eligible, request=request, levels=levels,
        metadata=metadata, carried=id,
    )  # fmt: skip
    reader = RequestReader(source, columns, strict=strict)
    if features.actions is None:
        return _with_warning(decide_candidates(policy, reader, new_tasks, top=top, strict=strict))
    return _with_warning(
        _decide_rows(policy, reader, new_tasks, id_column(features.actions), top, strict=strict)
    )


def request_columns(
    features: FeatureMap, new_tasks: NewTaskPolicies | None, *, context: Any = None, levels: Any = None,
    metadata: Any = None, carried: str | Sequence[str] | None = None, **others: Any,
) -> RequestColumns:  # fmt: skip
    """Return the columns of requests by role: those named, or else those of the log."""
    terms = getattr(features, "terms", None)
    terms = terms if isinstance(terms, LearnedTerms) else None
    return RequestColumns(
        context=_named(context, features.columns if terms is None else terms.sources, "context"),
        terms=terms,
        levels=_named(levels, () if new_tasks is None else new_tasks.levels, "levels"),
        metadata=_named(metadata, () if new_tasks is None else new_tasks.metadata, "metadata"),
        named=levels is not None or metadata is not None,
        id=(carried,) if isinstance(carried, str) else carried,  # type: ignore[arg-type]  # it checks
        **others,
    )


def _refuse_wrong_request(features: FeatureMap, request: str | None) -> None:
    if features.actions is None and request is None:
        raise InputError(
            "The feature map of this policy has no list of actions, so each row of the requests is a candidate. Name "
            "the column with the id of the request: request=..., --request on the command line."
        )
    if features.actions is not None and request is not None:
        raise InputError(
            f"The policy makes the candidates of a request from its list of actions, so column {request!r} cannot "
            "group rows into requests. Give one row per request, and leave request=... (--request) out; id=... (--id) "
            "names columns to carry along."
        )


def _named(columns: Any, usual: tuple[str, ...], role: str) -> Any:
    """Return the columns of a role in the requests: those named, or the usual ones of the log."""
    if columns is None:
        return usual
    if not isinstance(columns, str) and len(columns) != len(usual):
        raise SchemaError(
            f"{role}={list(columns)!r} names {len(columns)} columns, and those of the log are {list(usual)!r}. Name "
            "one for each, in this order."
        )
    return columns


def _decide_rows(
    policy: AnyPolicy, reader: RequestReader, new_tasks: NewTaskPolicies | None, actions: pa.Array, top: int,
    *, strict: bool,
) -> Iterator[Decisions]:  # fmt: skip
    names = ColumnNames(reader.own, () if new_tasks is None else new_tasks.levels, reader.leveled)
    unknown_tasks = UnknownTasks(policy.table.keys)
    for batch in reader.batches():
        with located(reader.log):
            answers = answer(policy, batch, new_tasks, top=top + 1, strict=strict)
        n = batch.rows.num_rows
        table = table_of(answers, batch.own, names, number=batch.first_row + np.arange(n), unknown=batch.unknown,
                         actions=actions)  # fmt: skip
        unseen = int(np.count_nonzero(answers.usable & ~answers.task_known))
        unknown_tasks.add(batch.requests.task, unseen)
        reasons = tuple(
            counted_reason(fault, batch.rows, batch.first_row).placed(reader.log) for fault in answers.faults
        )
        kept, undecided = np.count_nonzero(answers.kept), np.count_nonzero(~answers.usable)
        yield Decisions(table, Counts(n, unseen, int(kept), int(undecided), reasons, batch.other_levels))
    unknown_tasks.finish()


def _with_warning(parts: Iterator[Decisions]) -> Iterator[Decisions]:
    """Yield the parts, and warn at the end where requests cannot be used."""
    counts = Counts()
    for part in parts:
        counts += part.counts
        yield part
    if counts.undecided:
        warn(
            f"{counts.undecided_in_words()} Their rows have a reason. Correct them, or stop at the first: strict=True, "
            "--strict on the command line."
        )


def choose(
    policy: AnyPolicy, request: Mapping[str, Any], new_tasks: NewTaskPolicies | None, **columns: Any
) -> Choice:
    """Choose an action for one request, a mapping of columns to values; ``columns`` as the roles of :func:`decide`.

    Raises
    ------
    InputError, SchemaError, LogError, UnknownTaskError, UnknownActionError, NumericalError
        As :func:`decide` with ``strict``; the policy has no list of actions.
    """
    features = policy.features
    if features is None or features.actions is None:
        raise InputError(
            "This policy has no list of actions, so one request is several rows, its candidates. Use decide(rows, "
            "request=...), or policy_.choose(task, phi=...)."
        )
    if not isinstance(request, Mapping):
        raise InputError(
            f"The request is a {type(request).__name__}, and a dict of columns and values is needed, such as "
            f"{{{columns['task']!r}: ...}}. For a table of requests use decide(requests)."
        )
    roles = request_columns(features, new_tasks, **columns)
    reader = RequestReader(TableSource(_one_row(request, roles), "request"), roles, strict=True)
    (batch,) = reader.batches()
    answers = answer(policy, batch, new_tasks, top=1, strict=True)
    index, bound, mean, sd = (array[0, 0].item() for array in answers.choices)
    return Choice(features.actions[index] if index >= 0 else None, index, bound, mean, sd)


def _one_row(request: Mapping[str, Any], columns: RequestColumns) -> pa.Table:
    """Return the values that a policy reads of one request as a table."""
    arrays: dict[str, pa.Array] = {}
    for role, column in (*columns.items(), *columns.task_items()):
        if column in request:
            value = request[column]
            try:
                is_list = role == "eligible" and not isinstance(value, str | bytes) and value is not None
                arrays[column] = pa.array([list(value)] if is_list else [value])
            except (pa.ArrowException, TypeError, OverflowError) as error:
                if role not in ("task", "level"):
                    raise SchemaError(
                        f"{column!r} of the request is {value!r}, which cannot be a column of a table ({error}). Give "
                        "one value of a plain type."
                    ) from error
                arrays[column] = id_column([value])
    missing = next((column for _, column in columns.items() if column not in request), None)
    if missing is not None:
        raise SchemaError(
            f"The request has no {missing!r}, which the policy reads. Its keys are {list(request)!r}. Add it."
        )
    return pa.table(arrays)
