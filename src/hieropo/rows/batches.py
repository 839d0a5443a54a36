"""A validated batch of rows of a log, the roles of its columns, and lists of eligible actions."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.brief import brief
from hieropo._utils.text import counted
from hieropo.errors import InputError, LogError, SchemaError, UnknownActionError
from hieropo.rows.columns import RULES, NumberColumn, RowWeights, column_names, contexts, number_column
from hieropo.rows.ids import Ids, id_array
from hieropo.rows.keys import Keys

TaskColumns = str | tuple[str, ...] | None  # one column of tasks, several, or none where the log is one task


class _ActionCoder(Protocol):
    """A feature map that knows action ids."""

    @property
    def actions(self) -> tuple[Any, ...] | None: ...

    def action_codes(self, ids: object, *, first_row: int = 0) -> Codes: ...


@dataclass(frozen=True, slots=True, eq=False)
class Eligible:
    """Eligible action ids of n consecutive rows.

    Parameters
    ----------
    entries : (total,) ids
        The lists of all rows, concatenated.
    starts : (n + 1,) int
        Offset of each row's list in ``entries``.
    first_row : int
        Number of the first row, for messages.
    """

    entries: Ids
    starts: Codes
    first_row: int = 0

    __repr__ = brief

    @property
    def lists(self) -> list[list[Any]]:
        """The ids of each row."""
        return [part.tolist() for part in np.split(self.entries, self.starts[1:-1])]

    def some(self, rows: Codes) -> "Eligible":
        """Return the lists of some rows, in this order; a row may come several times."""
        sizes = np.diff(self.starts)[rows]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        position = np.arange(starts[-1]) + np.repeat(self.starts[:-1][rows] - starts[:-1], sizes)
        return Eligible(self.entries[position], starts, self.first_row)

    def without(self, taken: Ids) -> NDArray[np.bool_]:
        """Return which of the n rows have a list without the action taken in them, ``taken`` (n,)."""
        rows = np.repeat(np.arange(self.starts.size - 1), np.diff(self.starts))
        listed_ids, listed_codes = Keys.factorize(self.entries)
        taken_ids, taken_codes = Keys.factorize(taken)
        is_without = np.ones(self.starts.size - 1, dtype=np.bool_)
        is_without[rows[listed_ids.locate(taken_ids.values)[taken_codes][rows] == listed_codes]] = False
        return is_without

    def mask(self, features: _ActionCoder) -> NDArray[np.bool_]:
        """Return which of the K actions of a feature map are eligible, (n, K).

        Raises
        ------
        UnknownActionError
            A list holds an action that the map does not know; the message names it and its row.
        InputError
            The map knows no action ids.
        """
        if features.actions is None:
            raise InputError(
                "Eligible actions need a feature map that knows action ids, and this one knows none. Use a map with "
                "actions, such as indicator, per_action or embedding, or leave the eligible actions out."
            )
        n = self.starts.size - 1
        rows = np.repeat(np.arange(n), np.diff(self.starts))
        mask = np.zeros((n, len(features.actions)), dtype=bool)
        try:
            codes = features.action_codes(self.entries)
        except UnknownActionError:
            for entry, row in zip(
                self.entries, rows.tolist(), strict=True
            ):  # again, now with the row's number
                features.action_codes([entry], first_row=self.first_row + row)
            raise
        mask[rows, codes] = True
        return mask


@dataclass(frozen=True, slots=True)
class Roles:
    """Columns of a log, by their roles.

    Parameters
    ----------
    task : str or sequence of str, optional
        Column of task ids; several columns together name a task by a tuple, ``("Utrecht", 3)``. None: the log is one
        task, whose id is "all".
    action, reward : str
        ``action`` is None where the features of the action taken are columns themselves.
    pscore : str, optional
        Logged probability of the action taken.
    weight : str, optional
        Counts or discounts: a row of weight k equals the row k times, in every number.
    precision : str, optional
        Known relative precisions: the variance of a reward is the noise variance divided by it; the row counts once.
    sampling_weight : str, optional
        1 / P(the row was kept), where rows of a larger log were kept by chance.
    context : sequence of str
        In the order in which the feature map reads them.
    levels : sequence of str
        Groups that tasks belong to, the widest first, such as region and store; they may end in the task itself.
    metadata : sequence of str
        Numbers known of a task, equal in all its rows.
    eligible : str, optional
        Lists of the actions that could be taken; without it all of them. A policy learned from such a log chooses among
        those that a request lists.
    time : str, optional
        When the action was chosen: a date, a time stamp, or a number that grows.
    cluster : str, optional
        Ids of clusters: rows of one session, day, class or visit, whose rewards share a cause.

    Raises
    ------
    SchemaError
        A name is not a string, or one column plays roles that exclude each other. Only a context column may
        play another role too, that of the task, the action or metadata; and so may the time and the cluster, that of
        a level or a context, and the time that of the task or the cluster.
    """

    task: TaskColumns
    action: str | None
    reward: str
    pscore: str | None = None
    weight: str | None = None
    precision: str | None = None
    sampling_weight: str | None = None
    context: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    metadata: tuple[str, ...] = ()
    eligible: str | None = None
    time: str | None = None
    cluster: str | None = None

    __repr__ = brief

    def __post_init__(self) -> None:
        for role in _MULTI_COLUMN:
            object.__setattr__(self, role, column_names(getattr(self, role), role))
        object.__setattr__(self, "task", task_columns(self.task))
        if self.levels and self.levels[-1] == self.task:
            object.__setattr__(self, "levels", self.levels[:-1])
        if self.reward is None:
            raise SchemaError("The role reward needs a column; name it, reward='...'.")
        if self.task is None and (self.levels or self.metadata):
            columns = [*self.levels, *self.metadata]
            raise SchemaError(
                f"{columns} are levels or metadata of tasks, and no column of tasks is named, so that all rows are "
                "one task. Name the column of tasks, task='...', or leave levels and metadata out."
            )
        seen: dict[str, str] = {}
        for role, column in self.items():
            if not isinstance(column, str):
                raise SchemaError(
                    f"The role {role} is given as {column!r}; the name of one column is needed."
                )
            first = seen.setdefault(column, role)
            if first != role and (first, role) not in _COMPATIBLE and not self._is_part(first, role):
                raise SchemaError(
                    f"Column {column!r} is given two roles, {first} and {role}, which exclude each other. "
                    f"{_conflict_advice(first, role)}"
                )

    def _is_part(self, first: str, role: str) -> bool:
        """Return True for a level that is one of several task columns, as region is of (region, store)."""
        return isinstance(self.task, tuple) and (first, role) == ("task", "level")

    @property
    def task_name(self) -> str:
        """The task column or columns for messages."""
        return ", ".join(column_tuple(self.task)) or "all rows"

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of all roles, as the parameters above."""
        return tuple(parameter.name for parameter in fields(cls))

    def items(self) -> Iterator[tuple[str, str]]:
        """Yield pairs (role, column); the roles ``"context"``, ``"level"``, ``"metadata"`` once for each column."""
        last = (*_MULTI_COLUMN, "cluster", "time")  # messages name the first role of a column
        for role in (*(name for name in self.names() if name not in last), *last):
            columns = getattr(self, role)
            for column in columns if isinstance(columns, tuple) else [columns]:
                if column is not None:
                    yield _MULTI_COLUMN.get(role, role), column

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that is used, once."""
        return tuple(dict.fromkeys(column for _, column in self.items()))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON's types; ``Roles(**found)`` are the same roles."""
        columns = {role: getattr(self, role) for role in self.names()}
        return {role: list(value) if isinstance(value, tuple) else value for role, value in columns.items()}


def task_columns(task: Any) -> TaskColumns:
    """Return one task column as its name, several as a tuple, none as None.

    Raises
    ------
    SchemaError
        A name is no string, or is given twice.
    """
    if task is None or isinstance(task, str):
        return task
    names = column_names(tuple(task) if isinstance(task, Iterable) else (task,), "task")
    return (names if len(names) > 1 else names[0]) if names else None


def column_tuple(task: TaskColumns) -> tuple[str, ...]:
    """Return the task columns as a tuple, which is empty where the log is one task."""
    return (task,) if isinstance(task, str) else task or ()


def _conflict_advice(first: str, role: str) -> str:
    if (first, role) == ("pscore", "weight"):
        return "Estimates weigh by 1 / pscore on their own: name pscore alone."
    return _ADVICE.get(role, "Each role needs a column of its own.")


def column_of(name: str | Literal[False] | None, previous: str | None) -> str | None:
    """Return the column of an optional role: ``name``, or the ``previous`` one where that is None; False means none.

    Raises
    ------
    SchemaError
        ``name`` is neither a name nor False nor None.
    """
    if not (isinstance(name, str) or name is None or name is False):
        raise SchemaError(
            f"eligible={name!r} names no column. Give the name of the column that lists the actions, or False where "
            "every action can be taken."
        )
    if name is False:
        return None
    return previous if name is None else name


_MOST_COPIES = 1_000.0  # largest mean number of copies of a row of a batch
_COPY_ROWS = 65_536  # rows of a batch of copies
_BY_ROW = (
    "task", "action", "reward", "context", "pscore", "precision", "sampling_weight", "metadata", "time", "cluster"
)  # fmt: skip
_MULTI_COLUMN = {"context": "context", "levels": "level", "metadata": "metadata"}
_COMPATIBLE = {
    ("task", "context"), ("action", "context"), ("context", "metadata"),
    ("task", "time"), ("level", "time"), ("context", "time"), ("cluster", "time"),
    ("level", "cluster"), ("context", "cluster"),
}  # fmt: skip
_ADVICE = {
    "level": "A level groups tasks: name the columns above the task, the widest first.",
    "cluster": "A cluster is a part of a task's rows, or spans tasks: name a column such as the session, day or visit.",
    "context": "A context is what is known before the action; this column is known only after it.",
    "weight": "A weight says how often a row counts: name a column of counts or discounts, or none.",
}


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Consecutive rows of a log, known to be usable.

    Arrays are kept as read-only views where they already have the right type.

    Parameters
    ----------
    task : (n,) ids
    action : (n,) ids or None
    reward : (n,) float
        Larger is better.
    context : (n, c) float or None
        None for logs without contexts.
    pscore : (n,) float, optional
        In (0, 1].
    weight : (n,) float, optional
        At least 0.
    precision, sampling_weight : (n,) float, optional
        Above 0.
    first_row : int
        Number of the first row in the log, from 0; an earlier one where rows before it were set aside.
    roles : Roles, optional
        Names of the columns, for messages.
    levels : tuple of (n,) ids
        The groups of each row's task, the widest first.
    metadata : (n, c) float, optional
        What is known of each row's task.
    eligible : Eligible, optional
        The actions that could be taken in each row; without it all of them.
    time : (n,) float64 or datetime64, optional
        When the action of each row was chosen.
    cluster : (n,) ids, optional
        The cluster of each row.
    rows : (n,) int, optional
        Numbers of the rows in the log, where rows between them were set aside; else consecutive from ``first_row``.

    Raises
    ------
    LogError
        A null, a NaN, an infinity, a propensity outside (0, 1], a negative weight, a precision or
        sampling weight that is not above 0, unequal lengths; the message names the column, the row, the value, the
        likely cause and the cure.
    """

    task: Ids
    action: Ids | None
    reward: Array
    context: Array
    pscore: Array | None = None
    weight: Array | None = None
    precision: Array | None = None
    sampling_weight: Array | None = None
    first_row: int = 0
    roles: Roles | None = None
    levels: tuple[Ids, ...] = ()
    metadata: Array | None = None
    eligible: Eligible | None = None
    time: NDArray[Any] | None = None
    cluster: Ids | None = None
    rows: NDArray[np.int64] | None = None

    __repr__ = brief

    def __post_init__(self) -> None:
        roles = self.roles if self.roles is not None else _plain_roles(self)
        start = self.first_row
        task = id_array(self.task, roles.task_name, start)
        action = None if self.action is None else id_array(self.action, roles.action or "action", start)
        reward = rewards(self.reward, roles.reward, start)
        context = contexts(self.context, roles.context, start, rows=task.size)
        for name, values in zip(roles.context, context.T, strict=True):
            NumberColumn(values, name, start).check(RULES["context"][1:])
        pscore = None if self.pscore is None else pscores(self.pscore, roles.pscore or "pscore", start)
        weights = {
            role: None if values is None else _checked(values, getattr(roles, role) or role, start, role)
            for role, values in zip(RowWeights._fields, self.weights, strict=True)
        }
        if self.time is not None and self.time.dtype.kind == "f":
            NumberColumn(self.time, roles.time or "time", start).check(RULES["time"])
        columns = {
            "task": task,
            "action": action,
            "reward": reward,
            "context": context,
            "pscore": pscore,
            **weights,
        }
        for name, array in columns.items():
            if array is not None and len(array) != task.size:
                raise LogError(
                    f"{name} has {counted(len(array), 'row')} but task has {task.size}. Each row of a log is one "
                    "decision: were columns of different tables put together, or filtered apart?"
                )
            object.__setattr__(self, name, None if array is None else _read_only(array))
        object.__setattr__(self, "roles", roles)

    def __len__(self) -> int:
        return int(self.task.size)

    @property
    def weights(self) -> RowWeights:
        """The weights of the rows in their three roles."""
        return RowWeights(self.weight, self.precision, self.sampling_weight)

    @property
    def numbers(self) -> dict[str, Array]:
        """The columns of numbers (n,), by name: reward, propensity, weights, contexts and metadata."""
        roles = self.roles
        assert roles is not None
        columns = [(roles.reward, self.reward), (roles.pscore, self.pscore)]
        columns += [(getattr(roles, role), getattr(self, role)) for role in RowWeights._fields]
        columns += zip(roles.context, self.context.T, strict=True)
        if self.metadata is not None:
            columns += zip(roles.metadata, self.metadata.T, strict=True)
        return {column: values for column, values in columns if column is not None and values is not None}

    def some(self, rows: NDArray[np.int64], first_row: int, weight: Array) -> "Batch":
        """Return some rows, in this order, with other weights; ``first_row`` is the number of the first of them."""

        def take(values: NDArray[Any] | None) -> NDArray[Any] | None:
            return None if values is None else values[rows]

        numbers = self.first_row + rows if self.rows is None else self.rows[rows]
        columns: dict[str, Any] = {name: take(getattr(self, name)) for name in _BY_ROW}
        return replace(
            self,
            **columns,
            levels=tuple(values[rows] for values in self.levels),
            eligible=None if self.eligible is None else self.eligible.some(rows),
            weight=None if (weight == 1.0).all() else weight,
            first_row=first_row,
            rows=numbers,
        )

    def number(self, row: int) -> int:
        """Return the number in the log of a row of the batch."""
        return self.first_row + row if self.rows is None else int(self.rows[row])


def unit_rows(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield every row once for each unit of its weight, so that statistics over rows become weighted ones.

    A row of weight c becomes ceil(c) rows of weight 1, the last one with the fraction that is left; a row of weight 0
    is dropped. Where the weights of a batch average more than 1,000, a row becomes about 1,000 rows on average, with
    larger weights. ``first_row`` counts the rows yielded; ``rows`` has their numbers in the log.

    Parameters
    ----------
    batches : iterable of Batch
        From the first row of the log on; batches without weights are passed on unchanged.
    """
    position = 0
    for batch in batches:
        if batch.weight is None:
            yield batch
            continue
        unit = max(1.0, float(batch.weight.mean()) / _MOST_COPIES)
        copies = np.ceil(batch.weight / unit).astype(np.int64)
        rows = np.repeat(np.arange(len(batch)), copies)
        weight = np.full(rows.size, unit)
        present = copies > 0
        weight[np.cumsum(copies)[present] - 1] = (batch.weight - unit * (copies - 1))[present]
        for start in range(0, rows.size, _COPY_ROWS):
            piece = slice(start, start + _COPY_ROWS)
            yield batch.some(rows[piece], position + start, weight[piece])
        position += rows.size


def _plain_roles(batch: Batch) -> Roles:
    width = np.shape(batch.context)[1] if np.ndim(batch.context) == 2 else 0
    return Roles(
        "task", "action", "reward", "pscore", "weight", context=tuple(f"context[{j}]" for j in range(width))
    )


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view


def rewards(values: ArrayLike, column: str, first_row: int = 0) -> Array:
    """Check rewards (n,): finite, not huge."""
    return _checked(values, column, first_row, "reward")


def pscores(values: ArrayLike, column: str, first_row: int = 0) -> Array:
    """Check propensities (n,): in (0, 1]."""
    return _checked(values, column, first_row, "pscore")


def _checked(values: ArrayLike, column: str, first_row: int, role: str) -> Array:
    numbers = number_column(values, column, first_row)
    numbers.check(RULES[role])
    return numbers.array
