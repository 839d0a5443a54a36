"""Match rewards to decisions by id and time, and count every decision and reward."""

import datetime as dt
import math
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from hieropo._utils.text import Report, agreeing, counted, table
from hieropo.errors import InputError, LogError, SchemaError, warn
from hieropo.logs.arrow.arrays import decoded
from hieropo.logs.arrow.schema import is_text


@dataclass(frozen=True, slots=True)
class JoinReport(Report):
    """Counts of a join of decisions with later rewards; each decision and each reward is in one of them.

    Parameters
    ----------
    decisions, rewards : int
        Rows of the two streams.
    rows : int
        Rows of the log: decisions whose window is closed, with their reward or with the default.
    with_reward, defaulted : int
        Of these, how many got a reward, and how many the default.
    without_reward : int
        Decisions without a reward in their closed window that were left out.
    open, open_with_reward : int
        Decisions left out because their window was not closed, and how many of them have a reward already: to keep
        those alone would favour actions that pay at once.
    repeated_decisions : int
        Further rows of a decision id, left out.
    used : int
        Rewards that are in the log.
    further : int
        Rewards of a decision beside the one that counts.
    repeated : int
        Rewards equal to another in id, time and value, which count once.
    waiting : int
        Rewards in a window that is still open.
    late, early, orphaned : int
        Rewards after the window, before the decision, of no decision.
    window, until : str
        The window, and up to when all rewards were taken to be in.
    until_given : bool
        True where the caller set ``until``; False where it is the time of the latest reward.
    delays : dict
        Quantiles of the time from decision to reward, late rewards included, at 0.5, 0.9, 0.99 and 1.
    """

    decisions: int
    rewards: int
    rows: int
    with_reward: int
    defaulted: int
    without_reward: int
    open: int
    open_with_reward: int
    repeated_decisions: int
    used: int
    further: int
    repeated: int
    waiting: int
    late: int
    early: int
    orphaned: int
    window: str
    until: str
    until_given: bool
    delays: dict[str, str]

    def __str__(self) -> str:
        until_source = (
            "as given"
            if self.until_given
            else "the time of the latest reward; set until= (or --until) if they are complete for longer"
        )
        decision_counts = [
            ("Decisions", self.decisions),
            ("  with a reward in their window", self.with_reward),
            ("  without one, which get the default", self.defaulted),
            ("  without one, left out", self.without_reward),
            ("  window still open, left out", self.open),
            ("  another row of the same decision, left out", self.repeated_decisions),
        ]
        reward_counts = [
            ("Rewards", self.rewards),
            ("  used", self.used),
            ("  further ones of a decision", self.further),
            ("  repeated, counted once", self.repeated),
            ("  in windows that are still open", self.waiting),
            ("  late, after the window", self.late),
            ("  early, before the decision", self.early),
            ("  orphaned, of no decision", self.orphaned),
        ]
        lines = [
            f"Window {self.window} after the decision; rewards are complete until {self.until}, {until_source}.",
            table(
                [[name, f"{count:,}"] for name, count in decision_counts if count or not name.startswith(" ")]
            ),
            table(
                [[name, f"{count:,}"] for name, count in reward_counts if count or not name.startswith(" ")]
            ),
        ]
        if self.open_with_reward:
            lines.append(
                f"{counted(self.open_with_reward, 'decision')} with an open window "
                f"{agreeing(self.open_with_reward, 'has', 'have')} a reward already. They are left out too: to keep "
                "only these would favour actions that pay at once."
            )
        if self.delays:
            shares = ", ".join(f"{float(share):.0%} within {delay}" for share, delay in self.delays.items())
            lines.append(f"Rewards came after the decision: {shares}.")
        return "\n\n".join(lines)


class Store:
    """DuckDB tables in memory and, beyond its limit, in a temporary folder that is removed with this object."""

    def __init__(self, memory: str | None) -> None:
        try:
            import duckdb
        except ImportError as error:
            raise InputError(
                "DuckDB is not installed, and decisions and rewards are joined by it: pip install 'hieropo[duckdb]'."
            ) from error
        self._errors: type[Exception] = duckdb.Error
        folder = tempfile.mkdtemp(prefix="hieropo-join-")
        self._connection = duckdb.connect()
        self._end = weakref.finalize(self, _remove, self._connection, folder)
        self.run(f"set temp_directory = '{folder}'")
        if memory is not None:
            try:
                self._connection.execute("set memory_limit = ?", [memory])
            except duckdb.Error as error:
                raise InputError(
                    f"memory={memory!r} is not a size that DuckDB understands. Write a number with a unit, such as "
                    "'2GB'."
                ) from error

    def load(self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Store batches as a table; an error in the batches is raised unchanged."""
        failed: list[Exception] = []

        def recorded() -> Iterator[pa.RecordBatch]:
            try:
                yield from batches
            except Exception as error:
                failed.append(error)  # DuckDB keeps only its text
                raise

        self._connection.register("stream", pa.RecordBatchReader.from_batches(schema, recorded()))
        try:
            self._connection.execute(f"create table {name} as select * from stream")
        except self._errors as error:
            raise (failed[0] if failed else _no_room(error)) from None
        finally:
            self._connection.unregister("stream")

    def run(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows.

        Raises
        ------
        LogError
            DuckDB has no room left in memory or on disk.
        """
        try:
            rows: list[tuple[Any, ...]] = self._connection.execute(query, values or None).fetchall()
        except self._errors as error:
            raise _no_room(error) from error
        return rows

    def outcomes(self) -> pa.RecordBatchReader:
        """Return the rewards of all decisions in their order, null for those that are left out."""
        relation = self._connection.cursor().sql("select reward from outcomes order by row")
        return pa.RecordBatchReader.from_stream(relation)


def _no_room(error: Exception) -> LogError:
    return LogError(
        f"DuckDB could not join decisions and rewards: {str(error).strip().splitlines()[0]}. Is the disk for temporary "
        "files full (TMPDIR names another), or the memory limit too small?"
    )


def _remove(connection: Any, folder: str) -> None:
    connection.close()
    shutil.rmtree(folder, ignore_errors=True)


Kind = Literal["instant", "local", "number"]

_SPAN = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([a-z]+)\s*", re.IGNORECASE)
_SECONDS = {"ms": 1e-3, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_TICKS = {"us": 10**6, "ns": 10**9}


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """One axis for the times of both streams: each time is a number of ticks.

    Attributes
    ----------
    kind : "instant", "local" or "number"
        Times with a zone, times without one, numbers of the caller's own unit.
    unit : "us" or "ns"
        A tick, unless times are numbers.
    zone : str, optional
        Time zone of times that state none.
    """

    kind: Kind
    unit: str
    zone: str | None

    def ticks(self, column: pa.Array, name: str, first_row: int) -> pa.Array:
        """Return the times of a column as int64 ticks since 1970, or as float64 where they are numbers.

        Raises
        ------
        LogError
            A text that is no time, a time that its zone has twice or never, a number that is not finite.
        """
        column = decoded(column)
        if self.kind == "number":
            return self._numbers(column, name, first_row)
        if is_text(column.type):
            return self._from_text(column, name, first_row)
        try:
            if not kinds.is_timestamp(column.type):
                column = column.cast(pa.timestamp("s"))
            if column.type.tz is None and self.zone is not None:
                column = pc.assume_timezone(column, self.zone)
            return column.cast(pa.timestamp(self.unit, column.type.tz)).cast(pa.int64())
        except pa.ArrowException as error:
            raise LogError(
                f"Column {name!r}, rows {first_row} to {first_row + len(column) - 1}: a time has no place in its zone "
                f"({str(error).strip().splitlines()[0]}). When clocks go back, an hour comes twice. Log times in UTC."
            ) from error

    def _numbers(self, column: pa.Array, name: str, first_row: int) -> pa.Array:
        values = column.cast(pa.float64(), safe=False)
        row = pc.index(pc.is_finite(values), value=False).as_py()
        if row >= 0:
            raise LogError.in_row(
                first_row + row,
                f"Column {name!r}, row {first_row + row}: {values[row]} is no time, so the row cannot be matched. Drop "
                "such rows, or correct the time.",
                lenient=False,
            )
        return values

    def _from_text(self, column: pa.Array, name: str, first_row: int) -> pa.Array:
        try:
            return column.cast(pa.timestamp(self.unit, "UTC")).cast(pa.int64())
        except pa.ArrowException:
            pass
        texts = column.to_pylist()
        ticks = []
        for row, text in enumerate(texts, first_row):
            try:
                ticks.append(self._tick(text, f"Column {name!r}, row {row}"))
            except InputError as error:
                raise type(error).in_row(row, str(error), lenient=False) from None
        return pa.array(ticks)

    def _tick(self, text: str, place: str) -> int:
        try:
            time = dt.datetime.fromisoformat(text)
        except ValueError:
            raise LogError(f"{place}: {text!r} is no time in the form 2026-01-31T12:00:00Z.") from None
        return int(self.tick(time, place))

    def tick(self, value: Any, place: str) -> int | float:
        """Return the ticks of one time: a datetime, a date, a text in ISO form, or a number.

        Raises
        ------
        InputError
            It is of another kind than the times of the streams.
        """
        if self.kind == "number":
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise InputError(
                    f"{place}: {value!r} is no finite number, but the times of the streams are numbers."
                )
            return float(value)
        if isinstance(value, str):
            return self._tick(value, place)
        if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
            value = dt.datetime(value.year, value.month, value.day)  # its zone is checked below
        if not isinstance(value, dt.datetime):
            raise InputError(
                f"{place}: {value!r} is no time. Give a datetime, or a text such as 2026-01-31T12:00:00Z."
            )
        column = pa.array([value])
        if (value.tzinfo is None) and self.kind == "instant" and self.zone is None:
            raise LogError(
                f"{place}: {value.isoformat()} has no time zone, but other times have one. Add it, or state the zone "
                "of times that have none, zone='UTC'."
            )
        if value.tzinfo is not None and self.kind == "local":
            raise LogError(
                f"{place}: {value.isoformat()} has a time zone, but the times of the streams have none. State their "
                "zone, zone='UTC'."
            )
        ticks: int = self.ticks(column, place, 0)[0].as_py()
        return ticks

    def span(self, window: Any) -> int | float:
        """Return the ticks of a duration: a timedelta, a text such as ``"24h"``, or a number where times are numbers.

        Raises
        ------
        InputError
            It is no duration, or not above 0.
        """
        number = not isinstance(window, bool) and isinstance(window, int | float)
        if self.kind == "number" and number and math.isfinite(window) and window > 0:
            return float(window)
        seconds = None if number or self.kind == "number" else _seconds(window)
        if seconds is None or seconds <= 0:
            form = (
                "a number above 0, in the unit of the time columns, which are numbers"
                if self.kind == "number"
                else f"a time such as '30min', '24h' or '7d' (units {', '.join(_SECONDS)}), or a timedelta above 0"
            )
            raise InputError(f"The window {window!r} is not {form}.")
        return round(seconds * _TICKS[self.unit])

    def shown(self, tick: float) -> str:
        """Write a time as text."""
        if self.kind == "number":
            return f"{tick:.12g}"
        zone = "UTC" if self.kind == "instant" else None
        stamp = pa.scalar(int(tick), pa.timestamp(self.unit)).cast(pa.timestamp("s"), safe=False)
        text: str = stamp.as_py().isoformat(sep=" ")
        return f"{text} {zone}" if zone else text

    def shown_span(self, ticks: float) -> str:
        """Write a duration as text."""
        if self.kind == "number":
            return f"{ticks:.6g}"
        seconds = ticks / _TICKS[self.unit]
        for unit in ("d", "h", "min", "s"):
            if seconds >= _SECONDS[unit]:
                return f"{seconds / _SECONDS[unit]:.3g} {unit}"
        return f"{seconds * 1e3:.3g} ms"


def _seconds(window: Any) -> float | None:
    if isinstance(window, dt.timedelta):
        return window.total_seconds()
    match_rewards = _SPAN.fullmatch(window) if isinstance(window, str) else None
    scale = None if match_rewards is None else _SECONDS.get(match_rewards[2].lower())
    return None if match_rewards is None or scale is None else float(match_rewards[1]) * scale


def common_axis(columns: list[tuple[str, pa.DataType]], zone: str | None) -> TimeAxis:
    """Return the axis for the time columns (description, type) of two streams: times, dates, text or numbers.

    Raises
    ------
    SchemaError
        One stream has zones and the other has none, or one has times and the other numbers.
    InputError
        ``zone`` is no time zone, or there is nothing for it to do.
    """
    axis_kinds = [_kind(kind, zone) for _, kind in columns]
    if len(set(axis_kinds)) > 1:
        conflict = " and ".join(
            f"{name} {_KIND_WORDS[kind]}" for (name, _), kind in zip(columns, axis_kinds, strict=True)
        )
        raise SchemaError(
            f"{conflict}, so they cannot be compared. State the zone of times that have none, zone='UTC' (or --zone), "
            "or convert both columns to one kind."
        )
    if zone is not None:
        _check_zone(zone, axis_kinds[0])
    nanoseconds = any(kinds.is_timestamp(kind) and kind.unit == "ns" for _, kind in columns)
    return TimeAxis(axis_kinds[0], "ns" if nanoseconds else "us", zone)


_KIND_WORDS = {"instant": "has a time zone", "local": "has no time zone", "number": "is a number"}


def _kind(kind: pa.DataType, zone: str | None) -> Kind:
    if is_text(kind):
        return "instant"
    if kinds.is_timestamp(kind) or kinds.is_date(kind):
        return "local" if getattr(kind, "tz", None) is None and zone is None else "instant"
    return "number"


def _check_zone(zone: str, kind: Kind) -> None:
    if kind == "number":
        raise InputError(f"zone={zone!r} is for time stamps, but the times are numbers. Leave zone out.")
    try:
        pc.assume_timezone(pa.array([0], pa.timestamp("s")), zone)
    except (pa.ArrowException, TypeError):
        raise InputError(
            f"zone={zone!r} is no time zone. Give a name such as 'UTC' or 'Europe/Amsterdam'."
        ) from None


Several = Literal["error", "first", "last", "sum", "max"]
Repeated = Literal["error", "first"]

_REWARD_SQL = {
    "error": "first(reward order by time, row)",
    "first": "first(reward order by time, row)",
    "last": "last(reward order by time, row)",
    "sum": "sum(reward order by time, row)",
    "max": "max(reward)",
}
_SHARES = (0.5, 0.9, 0.99, 1.0)
_LATE = 0.05  # share of late rewards above which a warning says that the window may be too short


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a join; ``window`` and ``until`` in ticks of the axis, ``place_of`` the place of a decision's row."""

    axis: TimeAxis
    window: float
    until: float | None
    default: float | None
    several: Several
    repeated: Repeated
    place_of: Callable[[int], str] = "row {}".format


def match_rewards(store: Store, settings: Settings) -> JoinReport:
    """Make the table ``outcomes`` (row, reward) of the tables ``decisions`` and ``rewards``.

    Raises
    ------
    LogError
        A decision id comes twice, a decision has several rewards, ids have nothing in common, no decision is left.
    """
    decisions, rewards = (
        store.run(f"select count(*) from {name}")[0][0] for name in ("decisions", "rewards")
    )
    extra = _drop_repeated(store, settings)
    until = _end_of_rewards(store, settings)
    _match_events(store, settings, until)
    _refuse_disjoint_ids(store, rewards)
    if settings.several == "error":
        _refuse_several(store, settings)
    _make_outcomes(store, settings, until)
    report = _report(store, settings, until, (decisions, rewards, extra))
    _check_report(report)
    return report


def _drop_repeated(store: Store, settings: Settings) -> int:
    store.run("create table repeated_ids as select id, count(*) as n from decisions group by id having n > 1")
    repeated_ids, extra = store.run("select count(*), coalesce(sum(n) - count(*), 0) from repeated_ids")[0]
    if not repeated_ids:
        store.run("create view unique_decisions as from decisions")
        return 0
    if settings.repeated == "error":
        repeated = store.run(
            "select id, row from decisions where id in (from repeated_ids select id) order by row limit 1"
        )
        key, first = repeated[0]
        second = store.run(
            "select row from decisions where id = ? and row > ? order by row limit 1", key, first
        )[0][0]
        raise LogError(
            f"The decision {_shortened(key)} comes twice among the decisions, in {settings.place_of(first)} and "
            f"{settings.place_of(second)} ({repeated_ids:,} ids come more than once), so its reward could belong to "
            "either. If rows were delivered twice, keep the earliest: repeated='first' (or --repeated first)."
        )
    store.run(
        "create table unique_decisions as from decisions "
        " qualify row_number() over (partition by id order by time, row) = 1"
    )
    return int(extra)


def _end_of_rewards(store: Store, settings: Settings) -> float:
    if settings.until is not None:
        return settings.until
    latest = store.run("select max(time) from rewards")[0][0]
    if latest is None:
        raise LogError(
            "There are no rewards, so the time up to which they are complete is unknown. Give it, "
            "until='2026-01-31T12:00:00Z' (or --until). Is it the right file?"
        )
    return float(latest) if settings.axis.kind == "number" else int(latest)


def _match_events(store: Store, settings: Settings, until: float) -> None:
    """Match each distinct reward with its decision, and class it as inside, late, early or orphaned."""
    store.run(
        "create table events as select id, time, reward, min(row) as row, count(*) as n from rewards "
        "group by id, time, reward"
    )
    store.run("drop table rewards")
    store.run(
        "create table matched as select d.row as decision, d.id as key, e.time, e.reward, e.row, e.n, "
        "e.time - d.time as delay, d.time + $window <= $until as closed, "
        "case when d.row is null then 'orphaned' when e.time < d.time then 'early' "
        "when e.time - d.time > $window then 'late' else 'inside' end as status "
        "from events e left join unique_decisions d on e.id = d.id".replace("$window", "?").replace("$until", "?"),
        settings.window, until, settings.window,
    )  # fmt: skip


def _refuse_disjoint_ids(store: Store, rewards: int) -> None:
    if not rewards or store.run("select count(*) from matched where status <> 'orphaned'")[0][0]:
        return
    decision_id = store.run("select id from decisions order by row limit 1")[0][0]
    reward_id = store.run("select id from events order by row limit 1")[0][0]
    raise LogError(
        f"None of the {rewards:,} rewards is of a decision in the log: the first decision has the id "
        f"{_shortened(decision_id)}, the first reward {_shortened(reward_id)}. Do both columns hold the id of the "
        "decision, written in the same way, and do both streams cover the same days?"
    )


def _refuse_several(store: Store, settings: Settings) -> None:
    several = store.run(
        "select any_value(key), count(*), min(reward), max(reward), any_value(decision) as d from matched "
        "where status = 'inside' and closed group by decision having count(*) > 1 order by min(row) limit 1"
    )
    if several:
        key, count, smallest, largest, row = several[0]
        raise LogError(
            f"The decision {_shortened(key)}, {settings.place_of(row)}, has {count} rewards in its window, from "
            f"{smallest:g} to {largest:g}; a row of a log has one. Choose which counts: several='first', 'last', 'sum' "
            "or 'max' (or --several)."
        )


def _make_outcomes(store: Store, settings: Settings, until: float) -> None:
    store.run(
        f"create table counted as select decision, {_REWARD_SQL[settings.several]} as reward, count(*) as n from "
        "matched where status = 'inside' and closed group by decision"
    )
    store.run(
        "create table states as select d.row, d.time + ? <= ? as closed, c.decision is not null as rewarded, "
        "c.reward "
        "from unique_decisions d left join counted c on d.row = c.decision",
        settings.window, until,
    )  # fmt: skip
    reward = "case when closed is null or not closed then null when rewarded then reward else ?::double end"
    store.run(
        f"create table outcomes as select row, {reward} as reward from decisions left join states using (row) "
        "order by row",
        settings.default,
    )


def _report(store: Store, settings: Settings, until: float, rows: tuple[int, int, int]) -> JoinReport:
    counts = {
        (status, bool(closed)): (int(events), int(repeats))
        for status, closed, events, repeats in store.run(
            "select status, closed, count(*), sum(n - 1) from matched group by status, closed"
        )
    }

    def events(status: str, closed: tuple[bool, ...] = (False, True)) -> int:
        return sum(counts.get((status, is_closed), (0, 0))[0] for is_closed in closed)

    rewarded, unrewarded, still_open = store.run(
        "select count(*) filter (closed and rewarded), count(*) filter (closed and not rewarded), "
        "count(*) filter (not closed) from states"
    )[0]
    waiting = store.run(
        "select count(distinct decision) from matched where status = 'inside' and not closed"
    )[0][0]
    inside = events("inside", (True,))
    used = inside if settings.several == "sum" else rewarded
    defaulted = unrewarded if settings.default is not None else 0
    decisions, rewards, repeated_decisions = rows
    return JoinReport(
        decisions=decisions, rewards=rewards, rows=rewarded + defaulted, with_reward=rewarded, defaulted=defaulted,
        without_reward=unrewarded - defaulted, open=still_open, open_with_reward=waiting,
        repeated_decisions=repeated_decisions, used=used, further=inside - used,
        repeated=sum(repeats for _, repeats in counts.values()),
        waiting=events("inside", (False,)), late=events("late"), early=events("early"), orphaned=events("orphaned"),
        window=settings.axis.shown_span(settings.window), until=settings.axis.shown(until),
        until_given=settings.until is not None, delays=_delays(store, settings.axis),
    )  # fmt: skip


def _delays(store: Store, axis: TimeAxis) -> dict[str, str]:
    shares = ", ".join(map(str, _SHARES))
    quantiles = store.run(
        f"select quantile_disc(delay, [{shares}]) from matched where status in ('inside', 'late')"
    )[0][0]
    return (
        {} if not quantiles else {str(s): axis.shown_span(v) for s, v in zip(_SHARES, quantiles, strict=True)}
    )


def _check_report(report: JoinReport) -> None:
    if not report.rows:
        raise LogError(
            f"No decision is left. The window of {report.window} is still open for {counted(report.open, 'decision')}, "
            f"since rewards are complete until {report.until}; {report.without_reward:,} have no reward and no "
            "default. Shorten the window, give a later time if rewards are complete for longer (until=..., --until), "
            "or wait."
        )
    rewards = report.used + report.further + report.waiting + report.late
    if report.late > _LATE * rewards:
        warn(
            f"{report.late:,} of {rewards:,} rewards came after the window of {report.window} and do not count, so "
            "actions that pay late look worse than they are. Is the window too short?"
        )


def _shortened(key: Any) -> str:
    text = repr(key)
    return text if len(text) <= 60 else text[:57] + "..."
