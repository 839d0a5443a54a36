"""Decisions and the rewards that came later, joined by the id of the decision."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hieropo.errors import InputError, LogError, SchemaError
from hieropo.logs.arrow.arrays import decoded, is_uuid, numbers
from hieropo.logs.arrow.log_source import BATCH_ROWS, LogSource, regroup
from hieropo.logs.arrow.schema import check_columns, is_text
from hieropo.logs.interop.matching import Clock, JoinReport, Repeated, Settings, Several, Store, clock, match
from hieropo.logs.opening import open_log
from hieropo.rows import batches as logs
from hieropo.rows.ids import refuse_rounded_in


def join_rewards(  # noqa: PLR0913  # all of this must be said somewhere
    decisions: Any,
    rewards: Any,
    *,
    id: str | tuple[str, str],  # noqa: A002  # what a caller calls it
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
        What counts where a decision has more than one reward in its window.
    repeated : "error" or "first"
        What is done where a decision id comes in several rows of the decisions: the earliest may stay.
    zone : str, optional
        In which times without a zone are to be understood, such as ``"Europe/Amsterdam"``.
    into : str, optional
        Name of the reward's column in the log. Default ``reward``.
    memory : str, optional
        Limit for DuckDB, such as ``"2GB"``.

    Returns
    -------
    JoinedLog
        A source of rows, for ``fit`` and ``open_log``: the decisions in their order, with a column of rewards. Its
        ``report`` counts what became of every decision and reward.

    Raises
    ------
    SchemaError
        A column is missing, its type cannot play its role, or those of the two streams do not compare.
    LogError
        A null, a reward that is not finite, a decision id that comes twice, two rewards of one decision (unless the
        caller says what to do), ids that have nothing in common, no decision left.
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
    made = open_log(decisions, rereadable=True)
    came = open_log(rewards)
    mine, theirs = _columns(id, time, 0), _columns(id, time, 1)
    check_columns(made.schema, [("id", mine.id)], made.name)
    check_columns(came.schema, [("id", theirs.id), ("reward", reward)], came.name)
    for source, names in ((made, mine), (came, theirs)):
        place = source.schema.get_field_index(names.time)
        if place < 0 or not is_text(source.schema.field(place).type):  # text in ISO form will do here
            check_columns(source.schema, [("time", names.time)], source.name)
    _check_comparable(made, mine.id, came, theirs.id)
    target = reward if into is None else into
    if target in made.schema.names:
        raise SchemaError(
            f"The decisions have a column {target!r} already, into which the rewards would go. Name another one, "
            "into='...' (or --into), or take that one out."
        )
    named = [
        (f"Column {names.time!r} of the {stream}", source.schema.field(names.time).type)
        for stream, source, names in (("decisions", made, mine), ("rewards", came, theirs))
    ]
    watch = clock(named, zone)
    end = None if until is None else watch.tick(until, "until")
    settings = Settings(watch, watch.span(window), end, default, several, repeated)
    store = Store(memory)
    store.take("decisions", *_stream(made, mine, watch, None))
    store.take("rewards", *_stream(came, theirs, watch, reward))
    return JoinedLog(made, mine.id, target, store, match(store, settings))


@dataclass(frozen=True, slots=True)
class _Columns:
    id: str
    time: str


def _columns(key: str | tuple[str, str], time: str | tuple[str, str], stream: int) -> _Columns:
    return _Columns(_name("id", key, stream), _name("time", time, stream))


def _name(role: str, given: Any, stream: int) -> str:
    names = (given, given) if isinstance(given, str) else given
    if (
        not isinstance(names, tuple | list)
        or len(names) != 2
        or not all(isinstance(name, str) for name in names)
    ):
        raise InputError(
            f"{role}={given!r} is neither the name of a column nor a pair of names, decisions' and rewards'."
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


def _check_comparable(made: LogSource, mine: str, came: LogSource, theirs: str) -> None:
    first, second = (
        _family(source.schema.field(name).type) for source, name in ((made, mine), (came, theirs))
    )
    if first != second:
        raise SchemaError(
            f"Ids do not compare: column {mine!r} of the decisions is {first}, column {theirs!r} of the rewards "
            f"is {second}. Cast one of them, so that an id is written alike in both."
        )


def _family(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if is_text(kind):
        return "text"
    return "a whole number" if pa.types.is_integer(kind) else f"of Arrow type {kind}"


def _stream(
    source: LogSource, names: _Columns, watch: Clock, reward: str | None
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Row number, id, ticks and reward of each row, as they are stored for the join."""
    kind = source.schema.field(names.id).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    fields = [
        ("row", pa.int64()),
        ("id", pa.binary(16) if is_uuid(kind) else pa.large_string() if is_text(kind) else kind),
        ("time", pa.float64() if watch.kind == "number" else pa.int64()),
        *([] if reward is None else [("reward", pa.float64())]),
    ]
    schema = pa.schema(fields)
    return schema, _parts(source, names, watch, reward, schema)


def _parts(
    source: LogSource, names: _Columns, watch: Clock, reward: str | None, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    row = 0
    for batch in source.batches([names.id, names.time, *([] if reward is None else [reward])]):
        key, time = (_filled(batch.column(name), name, row, source.name) for name in (names.id, names.time))
        if pa.types.is_floating(key.type):
            refuse_rounded_in(
                key.to_numpy(zero_copy_only=False), f"Column {names.id!r} of the {source.name}", row
            )
        columns = [
            pa.array(np.arange(row, row + batch.num_rows)),
            (key.storage if is_uuid(key.type) else decoded(key)).cast(schema.field("id").type),
            watch.ticks(time, names.time, row),
        ]
        if reward is not None:
            columns.append(pa.array(logs.rewards(numbers(batch.column(reward), reward, row), reward, row)))
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
        row += batch.num_rows


def _filled(column: pa.Array, name: str, row: int, source: str) -> pa.Array:
    column = decoded(column)
    missing = column.is_null(nan_is_null=True)
    place = pc.index(missing, value=True).as_py()
    if place >= 0:
        raise LogError(
            f"Column {name!r} of the {source}, row {row + place}: null. A row without it cannot be joined: drop such "
            "rows, or find out what they are."
        )
    return column


class JoinedLog:
    """Decisions with the rewards that came later, as a source of rows; ``report`` says what became of all of them."""

    rereadable = True

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
            reward = outcomes.next(batch.num_rows)
            whole = batch.append_column(self._target, reward)
            yield whole.filter(reward.is_valid()).select(columns)


class _Outcomes:
    """The reward of each decision in turn, null where the decision is left out."""

    def __init__(self, store: Store) -> None:
        self._batches = iter(store.outcomes())
        self._held = pa.array([], pa.float64())

    def next(self, count: int) -> pa.Array:
        """Take the outcomes of the next decisions."""
        parts = [self._held]
        while sum(map(len, parts)) < count:
            parts.append(next(self._batches).column(0))
        joined = pa.concat_arrays(parts)
        self._held = joined.slice(count)
        return joined.slice(0, count)
