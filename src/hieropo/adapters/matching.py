"""Which reward belongs to which decision, and the count of all of them."""

from dataclasses import dataclass
from typing import Any, Literal

from hieropo.adapters.join_report import JoinReport
from hieropo.adapters.join_store import Store
from hieropo.adapters.times import Clock
from hieropo.errors import LogError, warn
from hieropo.text import counted

Several = Literal["error", "first", "last", "sum", "max"]
Repeated = Literal["error", "first"]

_TAKE = {
    "error": "first(reward order by time, row)",
    "first": "first(reward order by time, row)",
    "last": "last(reward order by time, row)",
    "sum": "sum(reward order by time, row)",
    "max": "max(reward)",
}
_SHARES = (0.5, 0.9, 0.99, 1.0)
_LATE = 0.05  # share of late rewards from which on a window looks too short


@dataclass(frozen=True, slots=True)
class Settings:
    """What the caller of a join says; ``window`` and ``until`` in ticks of the clock."""

    clock: Clock
    window: float
    until: float | None
    default: float | None
    several: Several
    repeated: Repeated


def match(store: Store, settings: Settings) -> JoinReport:
    """Make the table ``outcomes`` (row, reward) of the tables ``decisions`` and ``rewards``.

    Raises
    ------
    LogError
        A decision id comes twice, a decision has several rewards, ids have nothing in common, no decision is left.
    """
    decisions, rewards = (
        store.run(f"select count(*) from {name}")[0][0] for name in ("decisions", "rewards")
    )
    extra = _settle_repeated(store, settings)
    until = _until(store, settings)
    _place(store, settings, until)
    _refuse_strangers(store, rewards)
    if settings.several == "error":
        _refuse_several(store)
    _decide(store, settings, until)
    report = _report(store, settings, until, (decisions, rewards, extra))
    _judge(report)
    return report


def _settle_repeated(store: Store, settings: Settings) -> int:
    store.run("create table twice as select id, count(*) as n from decisions group by id having n > 1")
    ids, extra = store.run("select count(*), coalesce(sum(n) - count(*), 0) from twice")[0]
    if not ids:
        store.run("create view own as from decisions")
        return 0
    if settings.repeated == "error":
        found = store.run(
            "select id, row from decisions where id in (from twice select id) order by row limit 1"
        )
        key, first = found[0]
        second = store.run(
            "select row from decisions where id = ? and row > ? order by row limit 1", key, first
        )[0][0]
        raise LogError(
            f"The decision {_short(key)} is in rows {first} and {second} of the decisions ({ids:,} ids come more than "
            "once). Which of them got the reward? If rows were delivered twice, keep the earliest: repeated='first' "
            "(or --repeated first)."
        )
    store.run(
        "create table own as from decisions qualify row_number() over (partition by id order by time, row) = 1"
    )
    return int(extra)


def _until(store: Store, settings: Settings) -> float:
    if settings.until is not None:
        return settings.until
    latest = store.run("select max(time) from rewards")[0][0]
    if latest is None:
        raise LogError(
            "There are no rewards, so nothing says up to when they would be in. Say it, until='2026-01-31T12:00:00Z' "
            "(or --until); or is it the wrong file?"
        )
    return float(latest) if settings.clock.kind == "number" else int(latest)


def _place(store: Store, settings: Settings, until: float) -> None:
    """Put each distinct reward beside its decision."""
    store.run(
        "create table events as select id, time, reward, min(row) as row, count(*) as n from rewards "
        "group by id, time, reward"
    )
    store.run("drop table rewards")
    store.run(
        "create table placed as select d.row as decision, d.id as key, e.time, e.reward, e.row, e.n, "
        "e.time - d.time as delay, d.time + $window <= $until as closed, "
        "case when d.row is null then 'orphaned' when e.time < d.time then 'early' "
        "when e.time - d.time > $window then 'late' else 'inside' end as place "
        "from events e left join own d on e.id = d.id".replace("$window", "?").replace("$until", "?"),
        settings.window, until, settings.window,
    )  # fmt: skip


def _refuse_strangers(store: Store, rewards: int) -> None:
    if not rewards or store.run("select count(*) from placed where place <> 'orphaned'")[0][0]:
        return
    mine = store.run("select id from decisions order by row limit 1")[0][0]
    theirs = store.run("select id from events order by row limit 1")[0][0]
    raise LogError(
        f"None of the {rewards:,} rewards is of a decision in the log: the first id of a decision is {_short(mine)}, "
        f"that of a reward {_short(theirs)}. Do both columns name the decision, written alike, and of the same days?"
    )


def _refuse_several(store: Store) -> None:
    found = store.run(
        "select any_value(key), count(*), min(reward), max(reward), any_value(decision) as d from placed "
        "where place = 'inside' and closed group by decision having count(*) > 1 order by min(row) limit 1"
    )
    if found:
        key, count, least, most, row = found[0]
        raise LogError(
            f"The decision {_short(key)}, row {row} of the decisions, has {count} rewards in its window, from "
            f"{least:g} to {most:g}. Say which counts, several='first', 'last', 'sum' or 'max' (or --several)."
        )


def _decide(store: Store, settings: Settings, until: float) -> None:
    store.run(
        f"create table chosen as select decision, {_TAKE[settings.several]} as reward, count(*) as n from placed "
        "where place = 'inside' and closed group by decision"
    )
    store.run(
        "create table judged as select d.row, d.time + ? <= ? as closed, c.decision is not null as found, c.reward "
        "from own d left join chosen c on d.row = c.decision",
        settings.window, until,
    )  # fmt: skip
    reward = "case when closed is null or not closed then null when found then reward else ?::double end"
    store.run(
        f"create table outcomes as select row, {reward} as reward from decisions left join judged using (row) "
        "order by row",
        settings.default,
    )


def _report(store: Store, settings: Settings, until: float, rows: tuple[int, int, int]) -> JoinReport:
    places = {
        (place, bool(closed)): (int(events), int(repeats))
        for place, closed, events, repeats in store.run(
            "select place, closed, count(*), sum(n - 1) from placed group by place, closed"
        )
    }

    def events(place: str, closed: tuple[bool, ...] = (False, True)) -> int:
        return sum(places.get((place, each), (0, 0))[0] for each in closed)

    found, empty, still = store.run(
        "select count(*) filter (closed and found), count(*) filter (closed and not found), "
        "count(*) filter (not closed) from judged"
    )[0]
    waiting = store.run("select count(distinct decision) from placed where place = 'inside' and not closed")[
        0
    ][0]
    inside = events("inside", (True,))
    used = inside if settings.several == "sum" else found
    kept = empty if settings.default is not None else 0
    decisions, rewards, repeated_decisions = rows
    return JoinReport(
        decisions=decisions, rewards=rewards, rows=found + kept, with_reward=found, defaulted=kept,
        without_reward=empty - kept, open=still, open_with_reward=waiting, repeated_decisions=repeated_decisions,
        used=used, further=inside - used, repeated=sum(repeats for _, repeats in places.values()),
        waiting=events("inside", (False,)), late=events("late"), early=events("early"), orphaned=events("orphaned"),
        window=settings.clock.shown_span(settings.window), until=settings.clock.shown(until),
        until_given=settings.until is not None, delays=_delays(store, settings.clock),
    )  # fmt: skip


def _delays(store: Store, clock: Clock) -> dict[str, str]:
    shares = ", ".join(map(str, _SHARES))
    found = store.run(
        f"select quantile_disc(delay, [{shares}]) from placed where place in ('inside', 'late')"
    )[0][0]
    return {} if not found else {str(s): clock.shown_span(v) for s, v in zip(_SHARES, found, strict=True)}


def _judge(report: JoinReport) -> None:
    if not report.rows:
        raise LogError(
            f"No decision is left. The window of {report.window} is open for {counted(report.open, 'decision')}, since "
            f"rewards are in until {report.until}; without a reward or default: {report.without_reward:,}. Shorten the "
            "window, say until when rewards are in (until=..., --until), or wait."
        )
    known = report.used + report.further + report.waiting + report.late
    if report.late > _LATE * known:
        warn(
            f"{report.late:,} of {known:,} rewards came after the window of {report.window} and do not count. Their "
            "decisions look worse than they were, above all those of actions that pay late. Is the window too short?"
        )


def _short(key: Any) -> str:
    text = repr(key)
    return text if len(text) <= 60 else text[:57] + "..."
