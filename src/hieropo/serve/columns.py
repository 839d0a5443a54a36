"""The columns of the record: checks of requests against a policy's columns, and events as rows of a log."""

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from typing import Any, Self

import numpy as np
import pyarrow as pa

from hieropo._utils.arrays import Array
from hieropo.errors import InputError, SchemaError
from hieropo.features.maps import FeatureMap
from hieropo.features.terms.learned import LearnedTerms
from hieropo.rows.batches import Roles, column_tuple
from hieropo.rows.columns import HUGE
from hieropo.serve.messages import PLAIN_TEXT, DecideRequest, Event

_TYPES = {
    "int": pa.int64(), "text": pa.string(), "number": pa.float64(), "boolean": pa.bool_(),
    "time": pa.timestamp("us", tz="UTC"),
}  # fmt: skip
_IN_WORDS = {
    "int": "a whole number", "text": "a text", "number": f"a number of at most {HUGE:g} in size",
    "boolean": "true or false", "time": "a time in ISO form",
}  # fmt: skip
_TEXT = {"type": "string", "maxLength": 256, "pattern": PLAIN_TEXT}
_ID_SCHEMAS: dict[str, dict[str, Any]] = {
    "text": _TEXT, "int": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
}  # fmt: skip
_VALUE_SCHEMAS: dict[str, dict[str, Any]] = {
    "text": {**_TEXT, "maxLength": 1024},
    "int": {"type": "integer", "minimum": 1 - 2**53, "maximum": 2**53 - 1},
    "number": {"type": "number", "minimum": -HUGE, "maximum": HUGE},
    "boolean": {"type": "boolean"},
    "time": {"type": "string", "format": "date-time", "maxLength": 1024},
}
TIME, ELIGIBLE, PROPENSITY, MODE, VERSION = "decided_at", "eligible", "propensity", "mode", "policy_version"
LEFT_OUT, UNSEEN = "left_out", "unseen"


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """Columns of the record with their kinds, "int", "text", "number", "boolean" or "time".

    Parameters
    ----------
    task : tuple of pairs (column, kind)
    action, reward : str
    action_kind : {"int", "text"}
    context : tuple of pairs
        In the order of the features.
    levels, metadata : tuple of pairs
        Further columns of a request.
    """

    task: tuple[tuple[str, str], ...]
    action: str
    action_kind: str
    reward: str
    context: tuple[tuple[str, str], ...]
    levels: tuple[tuple[str, str], ...] = ()
    metadata: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, roles: Roles, features: FeatureMap, tasks: Any, level_ids: Sequence[Any] = ()) -> Self:
        """Return the columns that a policy reads, with the kinds of its log.

        Raises
        ------
        InputError, SchemaError
            The policy cannot be served: candidates are rows, no column names tasks, ids are of several types, a name is
            taken.
        """
        if features.actions is None or roles.action is None:
            raise InputError(
                "The policy was fitted without an action column, so that it has no actions to return. Fit with an "
                "action column and serve that policy."
            )
        names = column_tuple(roles.task)
        if not names:
            raise InputError(
                "The policy was fitted without a task column, so that a request has no task to name. Add a column with "
                "one value to the log, fit with task=, and serve that policy."
            )
        first = [task if isinstance(task, tuple) else (task,) for task in list(tasks)[:1000]]
        kinds = [_id_kind([task[i] for task in first], name) for i, name in enumerate(names)] if first else []
        terms = getattr(features, "terms", None)
        context = (
            tuple((column.name, column.kind) for column in terms.columns)
            if isinstance(terms, LearnedTerms)
            else tuple((name, "number") for name in features.columns)
        )
        columns = cls(
            tuple(zip(names, kinds or ["text"] * len(names), strict=True)),
            roles.action, _id_kind(features.actions, roles.action), roles.reward, context,
            tuple((name, _id_kind(ids, name)) for name, ids in zip(roles.levels, level_ids, strict=True)),
            tuple((name, "number") for name in roles.metadata),
        )  # fmt: skip
        columns._refuse_taken()
        return columns

    def _refuse_taken(self) -> None:
        names = [name for name, _ in (*self.task, *self.values)] + [self.action, self.reward]
        taken = next((name for name in names if name in SERVICE_COLUMNS or names.count(name) > 1), None)
        if taken is not None:
            raise SchemaError(
                f"The policy reads a column {taken!r}, and the record has a column of that name for another purpose. "
                "Rename it in the log and fit again."
            )

    @property
    def values(self) -> tuple[tuple[str, str], ...]:
        """Return the columns of a request's ``context``: contexts, levels, metadata."""
        return (*self.context, *self.levels, *self.metadata)

    def to_dict(self) -> dict[str, Any]:
        """Return the columns as JSON can hold them."""
        return {
            "task": [list(pair) for pair in self.task], "action": self.action, "action_kind": self.action_kind,
            "reward": self.reward, "context": [list(pair) for pair in self.context],
            "levels": [list(pair) for pair in self.levels], "metadata": [list(pair) for pair in self.metadata],
        }  # fmt: skip

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """Return the columns that :meth:`to_dict` wrote."""
        pairs = {
            name: tuple((pair[0], pair[1]) for pair in stored[name])
            for name in ("task", "context", "levels", "metadata")
        }
        return cls(
            action=stored["action"], action_kind=stored["action_kind"], reward=stored["reward"], **pairs
        )

    def roles(self, like: Roles) -> Roles:
        """Return the roles of the record's columns for a fit of a policy like that with these roles."""
        return replace(
            like, pscore=PROPENSITY, weight=None, precision=None, sampling_weight=None, eligible=ELIGIBLE,
            time=TIME,
        )  # fmt: skip

    def tasks_of(self, requests: Sequence[DecideRequest]) -> list[Any] | None:
        """Return the tasks of requests where one column names them and all are of its type; else None."""
        if len(self.task) != 1:
            return None
        tasks = [request.task for request in requests]
        kind = {"text": str, "int": int}[self.task[0][1]]
        return tasks if set(map(type, tasks)) == {kind} else None

    def numbers_of(self, requests: Sequence[DecideRequest]) -> Array | None:
        """Return the contexts (n, c) of requests that name no action, and whose contexts are complete and numbers.

        None where a request is not so, or where a column holds no numbers: then :meth:`check` decides.
        """
        names = [name for name, kind in self.values if kind == "number"]
        if len(names) < max(len(self.values), 2) or not all(_names_no_action(one) for one in requests):
            return None
        contexts = [request.context for request in requests]
        if set(map(len, contexts)) != {len(names)}:
            return None
        try:
            rows = list(map(itemgetter(*names), contexts))
        except KeyError:
            return None
        if set(map(type, chain.from_iterable(rows))) != {float}:
            return None
        numbers = np.array(rows, dtype=np.float64)
        return numbers if bool((np.abs(numbers) <= HUGE).all()) else None

    def task_of(self, task: Any) -> Any:
        """Return a task of a request as an id; a tuple where several columns name it.

        Raises
        ------
        SchemaError
            It is not of the type of the policy's tasks.
        """
        parts = task if isinstance(task, list) else [task]
        if len(parts) != len(self.task):
            raise SchemaError(
                f"The task has {len(parts)} part(s), and tasks of this policy are named by {len(self.task)}, "
                f"{[name for name, _ in self.task]}. Give one value for each."
            )
        for part, (name, kind) in zip(parts, self.task, strict=True):
            _check_id(part, kind, name)
        return parts[0] if len(parts) == 1 else tuple(parts)

    def check(self, request: DecideRequest, nullable: Collection[str] = ()) -> None:
        """Refuse a request whose context or actions are not of the policy's columns and types.

        Parameters
        ----------
        nullable : collection of str
            Columns of numbers whose value may be unknown, null, for the active policy.

        Raises
        ------
        SchemaError
            The message names the column, and no value of the request.
        """
        context = request.context
        for name, kind in self.values:
            if kind == "number" and type(value := context.get(name)) is float and -HUGE <= value <= HUGE:
                continue
            if name not in context:
                raise SchemaError(
                    f"The context has no {name!r}, which the policy reads, so that no action can be chosen. Add it."
                )
            if context[name] is None and self._may_be_null(name, kind, nullable):
                continue
            _check_value(context[name], name, kind)
        if len(context) > len(self.values):
            raise SchemaError(
                f"The context has {len(context)} entries, and the policy reads {len(self.values)}: "
                f"{[name for name, _ in self.values]}. Leave the others out: they would not be recorded."
            )
        for action in (*(request.eligible or ()), *(request.exclude or ())):
            _check_id(action, self.action_kind, self.action)
        if request.incumbent is not None:
            _check_id(request.incumbent, self.action_kind, self.action)

    def _may_be_null(self, name: str, kind: str, nullable: Collection[str]) -> bool:
        """Return True for a column in which a request can be null."""
        return name in nullable if kind == "number" else (name, kind) not in self.levels

    def request_schema(self, nullable: Collection[str] = ()) -> dict[str, Any]:
        """Return the JSON schema of the fields of a request that depend on the policy.

        ``nullable`` are columns of numbers that may be null.
        """
        tasks = [_ID_SCHEMAS[kind] for _, kind in self.task]
        several = {"type": "array", "prefixItems": tasks, "minItems": len(tasks), "maxItems": len(tasks)}
        values = {
            name: {"anyOf": [_VALUE_SCHEMAS[kind], {"type": "null"}]}
            if self._may_be_null(name, kind, nullable)
            else _VALUE_SCHEMAS[kind]
            for name, kind in self.values
        }
        return {
            "task": tasks[0] if len(tasks) == 1 else several,
            "context": {
                "type": "object", "properties": values, "required": list(values), "additionalProperties": False,
            },
            "action": _ID_SCHEMAS[self.action_kind],
        }  # fmt: skip

    def schema(self) -> pa.Schema:
        """Return the Arrow schema of rows of the record."""
        action = _TYPES[self.action_kind]
        return pa.schema(
            [
                ("decision_id", pa.string()),
                (TIME, _TYPES["time"]),
                *((name, _TYPES[kind]) for name, kind in self.task),
                ("subject", pa.string()),
                *((name, _TYPES[kind]) for name, kind in self.values),
                (self.action, action),
                (self.reward, pa.float64()),
                (PROPENSITY, pa.float64()),
                (ELIGIBLE, pa.list_(action)),
                (MODE, pa.string()),
                (VERSION, pa.int32()),
                ("predicted_mean", pa.float64()),
                ("predicted_sd", pa.float64()),
                ("would_action", action),
                ("control", pa.bool_()),
                (UNSEEN, pa.list_(pa.string())),
                ("n_rewards", pa.int32()),
                ("client_at", pa.string()),
            ]
        )

    def table(
        self, events: Sequence[Event], rewards: Sequence[float | None], counts: Sequence[int]
    ) -> pa.Table:
        """Return events with their rewards as a table of the record's schema."""
        columns: dict[str, list[Any]] = {
            "decision_id": [event.decision.decision_id for event in events],
            TIME: [event.at for event in events],
            "subject": [event.subject for event in events],
            self.action: [event.decision.action for event in events],
            self.reward: list(rewards),
            PROPENSITY: [event.decision.propensity for event in events],
            ELIGIBLE: [event.eligible for event in events],
            MODE: [event.decision.mode for event in events],
            VERSION: [event.decision.policy_version for event in events],
            "predicted_mean": [event.mean for event in events],
            "predicted_sd": [event.sd for event in events],
            "would_action": [event.would for event in events],
            "control": [event.control for event in events],
            UNSEEN: [event.decision.unseen for event in events],
            "n_rewards": list(counts),
            "client_at": [event.client_at for event in events],
        }
        for i, (name, _) in enumerate(self.task):
            columns[name] = [
                event.task[i] if isinstance(event.task, list) else event.task for event in events
            ]
        for name, kind in self.values:
            columns[name] = [as_kind(event.context[name], kind) for event in events]
        schema = self.schema()
        return pa.table([pa.array(columns[field.name], field.type) for field in schema], schema=schema)

    def matrix(self, requests: Sequence[DecideRequest]) -> Any:
        """Return the contexts (n, c) of checked requests whose context columns are numbers."""
        names = [name for name, _ in self.context]
        if len(requests) == 1:
            context = requests[0].context
            return np.array([[context[name] for name in names]], dtype=np.float64)
        return np.array(
            [[request.context[name] for name in names] for request in requests], dtype=np.float64
        ).reshape(len(requests), len(names))


SERVICE_COLUMNS = (
    "decision_id", TIME, "subject", PROPENSITY, ELIGIBLE, MODE, VERSION, "predicted_mean", "predicted_sd",
    "would_action", "control", UNSEEN, "n_rewards", "client_at", LEFT_OUT, "record_weight",
)  # fmt: skip


def _names_no_action(request: DecideRequest) -> bool:
    return request.eligible is None and request.exclude is None and request.incumbent is None


def _id_kind(ids: Sequence[Any], column: str) -> str:
    values = [value.item() if isinstance(value, np.generic) else value for value in ids]
    if all(isinstance(value, str) for value in values):
        return "text"
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return "int"
    raise InputError(
        f"The ids in column {column!r} are neither all texts nor all whole numbers, and JSON would not give them back "
        "as they were. Make them texts in the log, and fit again."
    )


def _check_id(value: Any, kind: str, column: str) -> None:
    if isinstance(value, str) != (kind == "text"):
        raise SchemaError(
            f"An id of {column!r} is not {_IN_WORDS[kind]}, as in the log of the policy, so that it would name "
            "nothing that is known. Give ids in the type of the log."
        )


def _check_value(value: Any, name: str, kind: str) -> None:
    if value is None and kind == "number":
        raise SchemaError(
            f"The value of {name!r} in the context is null, and the policy has no prior for an unknown value of it. "
            "Fill it in; or, if it is no metadata, fit the policy with missing='prior' in its formula."
        )
    if not _is_of(value, kind):
        raise SchemaError(
            f"The value of {name!r} in the context is not {_IN_WORDS[kind]}, which the policy reads. Correct its type."
        )


def _is_of(value: Any, kind: str) -> bool:
    if kind == "int":
        return isinstance(value, float) and value.is_integer() and abs(value) < 2.0**53
    if kind == "time":
        return isinstance(value, str) and _time(value) is not None
    if kind == "number":
        return isinstance(value, float) and -HUGE <= value <= HUGE
    return isinstance(value, {"boolean": bool, "text": str}[kind])


def as_kind(value: Any, kind: str) -> Any:
    """Return a checked value of a request as its column holds it."""
    if value is None:
        return None
    if kind == "int":
        return int(value)
    return _time(value) if kind == "time" else value


def _time(text: str) -> dt.datetime | None:
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=dt.UTC)
