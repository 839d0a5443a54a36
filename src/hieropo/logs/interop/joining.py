"""Decisions and the rewards that came later, joined by the id of the decision."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hieropo.errors import InputError, LogError, SchemaError
from hieropo.logs.arrow.arrays import decoded, is_uuid, numbers
from hieropo.logs.arrow.log_source import BATCH_ROWS, LogSource, located, place_of, regroup, source_repr
from hieropo.logs.arrow.schema import check_columns, is_text
from hieropo.logs.interop.matching import (
    JoinReport,
    Repeated,
    Settings,
    Several,
    Store,
    TimeAxis,
    common_axis,
    match_rewards,
)
from hieropo.logs.opening import open_log
from hieropo.rows import batches as logs
from hieropo.rows.ids import refuse_rounded_in


def join_rewards(  # noqa: PLR0913  # each is a choice that only the caller can make
    decisions: Any,
    rewards: Any,
    *,
    id: str | tuple[str, str],  # noqa: A002  # the caller's word
    time: str | tuple[str, str],
    window: Any,
    default: float | None,
    reward: str = "reward",
    until: Any = None,
    several: Several = "error",
    repeated: Repeated = "error",
    zone: str | None = None,
    into: str | None = None,
    memory: str | None = None,
) -> "JoinedLog":
    """Join decisions with the rewards that came later, by the id of the decision.

    A reward counts for its decision where ``0 <= reward time - decision time <= window``. A window is closed where
    ``decision time + window <= until``, so that no reward of it can be missing; decisions with an open one are left
    out, whether a reward has come or not. Rewards equal in id, time and value are one that was delivered twice.

    Needs DuckDB (``pip install 'hieropo[duckdb]'``), which keeps ids, times and rewards in a temporary file, so that
    both streams may be larger than memory. Other columns of the decisions are read from their source on every pass.

    Parameters
    ----------
    decisions, rewards : anything that :func:`hieropo.logs.open_log` takes
        A stream of decisions that can be read only once is kept in memory.
    id, time : str or pair of str
        Column of the decision's id, and of the time; a pair where decisions and rewards name theirs differently. Times
        are time stamps with a zone, or both without one, or texts in ISO form, or numbers of one unit.
    window : timedelta, str or number
        Such as ``"24h"``, ``"30min"``, ``"7d"``; a number where the times are numbers.
    default : float or None
        Reward of a decision without one in its closed window; None leaves it out.
    reward : str
        Column of the rewards.
    until : datetime, str or number, optional
        Up to when, inclusive, all rewards are in. Default the time of the latest reward.
    several : "error", "first", "last", "sum" or "max"
        Reward of a decision with more than one in its window.
    repeated : "error" or "first"
        Where several rows have one decision id: an error, or the earliest row stays.
    zone : str, optional
        Time zone of times that state none, such as ``"Europe/Amsterdam"``.
    into : str, optional
        Name of the reward's column in the log. Default ``reward``.
    memory : str, optional
        Limit for DuckDB, such as ``"2GB"``.

    Returns
    -------
    JoinedLog
        A source of rows, for ``fit`` and ``open_log``: the decisions in their order, with a column of rewards. Its
        ``report`` counts every decision and reward by its outcome.

    Raises
    ------
    SchemaError
        A column is missing, its type cannot play its role, or those of the two streams do not compare.
    LogError
        A null, a reward that is not finite, a decision id that comes twice, two rewards of one decision (unless
        ``repeated`` or ``several`` allow them), no id in common, no decision left.
    InputError
        A setting that cannot be used, or DuckDB is not installed.

    Examples
    --------
    >>> import datetime as dt
    >>> noon = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
    >>> shown = pa.table({"id": ["a", "b"], "at": [noon, noon], "offer": ["none", "coupon"]})
    >>> clicks = pa.table({"id": ["b", "c"], "at": [noon + dt.timedelta(hours=1), noon + dt.timedelta(days=2)],
    ...                    "reward": [1.0, 1.0]})
    >>> log = join_rewards(shown, clicks, id="id", time="at", window="24h", default=0.0)
    >>> [batch.to_pydict()["reward"] for batch in log.batches(["offer", "reward"])], log.report.orphaned
    ([[0.0, 1.0]], 1)
    """
    _check_choices(several, repeated, default)
    decision_log = open_log(decisions, rereadable=True)
    reward_log = open_log(rewards)
    decision_columns, reward_columns = _columns(id, time, 0), _columns(id, time, 1)
    check_columns(decision_log.schema, [("id", decision_columns.id)], decision_log.name)
    check_columns(reward_log.schema, [("id", reward_columns.id), ("reward", reward)], reward_log.name)
    for source, names in ((decision_log, decision_columns), (reward_log, reward_columns)):
        position = source.schema.get_field_index(names.time)
        iso_text = position >= 0 and is_text(source.schema.field(position).type)
        if not iso_text:
            check_columns(source.schema, [("time", names.time)], source.name)
    _check_comparable(decision_log, decision_columns.id, reward_log, reward_columns.id)
    into_column = reward if into is None else into
    if into_column in decision_log.schema.names:
        raise SchemaError(
            f"The decisions already have a column {into_column!r}, so the rewards cannot become a column of that name. "
            "Name another one, into='...' (or --into), or drop that column."
        )
    time_columns = [
        (f"Column {names.time!r} of the {stream}", source.schema.field(names.time).type)
        for stream, source, names in (
            ("decisions", decision_log, decision_columns),
            ("rewards", reward_log, reward_columns),
        )
    ]
    axis = common_axis(time_columns, zone)
    until_tick = None if until is None else axis.tick(until, "until")
    settings = Settings(
        axis, axis.span(window), until_tick, default, several, repeated, partial(place_of, decision_log)
    )
    store = Store(memory)
    store.load("decisions", *_rows_to_store(decision_log, decision_columns, axis, None))
    store.load("rewards", *_rows_to_store(reward_log, reward_columns, axis, reward))
    return JoinedLog(decision_log, decision_columns.id, into_column, store, match_rewards(store, settings))


@dataclass(frozen=True, slots=True)
class _Columns:
    id: str
    time: str


def _columns(key: str | tuple[str, str], time: str | tuple[str, str], stream: int) -> _Columns:
    return _Columns(_column_name("id", key, stream), _column_name("time", time, stream))


def _column_name(role: str, value: Any, stream: int) -> str:
    names = (value, value) if isinstance(value, str) else value
    if (
        not isinstance(names, tuple | list)
        or len(names) != 2
        or not all(isinstance(name, str) for name in names)
    ):
        raise InputError(
            f"{role}={value!r} is neither the name of a column nor a pair of names: one of the decisions, one of the "
            "rewards."
        )
    return str(names[stream])


def _check_choices(several: str, repeated: str, default: float | None) -> None:
    for name, value, words in (
        ("several", several, get_args(Several)),
        ("repeated", repeated, get_args(Repeated)),
    ):
        if value not in words:
            raise InputError(f"{name}={value!r} is none of {', '.join(map(repr, words))}.")
    number = isinstance(default, int | float | np.number) and not isinstance(default, bool)
    if default is not None and not (number and np.isfinite(default)):
        raise InputError(
            f"default={default!r} is no reward. Give a number, or None to leave such decisions out."
        )


def _check_comparable(
    decision_log: LogSource, decision_id: str, reward_log: LogSource, reward_id: str
) -> None:
    decision_type, reward_type = (
        _type_in_words(source.schema.field(name).type)
        for source, name in ((decision_log, decision_id), (reward_log, reward_id))
    )
    if decision_type != reward_type:
        raise SchemaError(
            f"Ids cannot be compared: column {decision_id!r} of the decisions is {decision_type}, column {reward_id!r} "
            f"of the rewards is {reward_type}. Cast one of them, so that both write an id in the same way."
        )


def _type_in_words(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if is_text(kind):
        return "text"
    return "a whole number" if pa.types.is_integer(kind) else f"of Arrow type {kind}"


def _rows_to_store(
    source: LogSource, names: _Columns, axis: TimeAxis, reward: str | None
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the schema and the batches stored for the join: row number, id, ticks and reward."""
    kind = source.schema.field(names.id).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    fields = [
        ("row", pa.int64()),
        ("id", pa.binary(16) if is_uuid(kind) else pa.large_string() if is_text(kind) else kind),
        ("time", pa.float64() if axis.kind == "number" else pa.int64()),
        *([] if reward is None else [("reward", pa.float64())]),
    ]
    schema = pa.schema(fields)
    return schema, _stored_batches(source, names, axis, reward, schema)


def _stored_batches(
    source: LogSource, names: _Columns, axis: TimeAxis, reward: str | None, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    with located(source):
        yield from _unplaced_batches(source, names, axis, reward, schema)


def _unplaced_batches(
    source: LogSource, names: _Columns, axis: TimeAxis, reward: str | None, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    row = 0
    for batch in source.batches([names.id, names.time, *([] if reward is None else [reward])]):
        key, time = (
            _without_nulls(batch.column(name), name, row, source.name) for name in (names.id, names.time)
        )
        if pa.types.is_floating(key.type):
            refuse_rounded_in(
                key.to_numpy(zero_copy_only=False), f"Column {names.id!r} of the {source.name}", row
            )
        columns = [
            pa.array(np.arange(row, row + batch.num_rows)),
            (key.storage if is_uuid(key.type) else decoded(key)).cast(schema.field("id").type),
            axis.ticks(time, names.time, row),
        ]
        if reward is not None:
            columns.append(pa.array(logs.rewards(numbers(batch.column(reward), reward, row), reward, row)))
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
        row += batch.num_rows


def _without_nulls(column: pa.Array, name: str, row: int, source: str) -> pa.Array:
    column = decoded(column)
    missing = column.is_null(nan_is_null=True)
    position = pc.index(missing, value=True).as_py()
    if position >= 0:
        raise LogError.in_row(
            row + position,
            f"Column {name!r} of the {source}, row {row + position}: the value is null. A row without it cannot be "
            "joined. Drop such rows, or find out why the value is missing.",
            lenient=False,
        )
    return column


class JoinedLog:
    """Decisions with the rewards that came later, as a source of rows; ``report`` counts every decision and reward."""

    name: str

    rereadable = True

    __repr__ = source_repr

    def __init__(self, decisions: LogSource, key: str, target: str, store: Store, report: JoinReport) -> None:
        self.report = report
        self.name = f"{decisions.name} joined with its rewards"
        self._decisions, self._key, self._target, self._store = decisions, key, target, store
        self.schema: pa.Schema = decisions.schema.append(pa.field(target, pa.float64()))

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.report.rows

    def batches(self, columns: Sequence[str], batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield all rows with these columns only."""
        return regroup(self._joined(list(columns)), batch_rows)

    def _joined(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        read = [name for name in columns if name != self._target] or [self._key]
        outcomes = _Outcomes(self._store)
        for batch in self._decisions.batches(read):
            reward = outcomes.take(batch.num_rows)
            joined = batch.append_column(self._target, reward)
            yield joined.filter(reward.is_valid()).select(columns)


class _Outcomes:
    """Yields the rewards of consecutive decisions, null where a decision is left out."""

    def __init__(self, store: Store) -> None:
        self._batches = iter(store.outcomes())
        self._pending = pa.array([], pa.float64())

    def take(self, count: int) -> pa.Array:
        """Return the rewards of the next ``count`` decisions."""
        parts = [self._pending]
        while sum(map(len, parts)) < count:
            parts.append(next(self._batches).column(0))
        joined = pa.concat_arrays(parts)
        self._pending = joined.slice(count)
        return joined.slice(0, count)
