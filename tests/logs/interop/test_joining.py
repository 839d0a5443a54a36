"""Decisions and later rewards: a slow, obvious join is the truth; every decision and reward is counted once."""

import datetime as dt
import gc
import tempfile
from uuid import UUID

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hieropo import HierOPO
from hieropo.errors import HieropoWarning, InputError, LogError, SchemaError
from hieropo.logs.arrow.log_source import LogSource
from hieropo.logs.interop.joining import join_rewards
from hieropo.logs.opening import open_log

NOON = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)


def truth(decisions, rewards, window, until, default, several):
    """Outcome of each decision (None where it is left out) and all counts; lists of (id, time[, reward])."""
    until = max(time for _, time, _ in rewards) if until is None else until
    main = {}
    for row, (key, _) in sorted(enumerate(decisions), key=lambda each: (each[1][1], each[0])):
        main.setdefault(key, row)
    start = {key: decisions[row][1] for key, row in main.items()}
    distinct = list(dict.fromkeys(rewards))
    inside, count = {}, dict.fromkeys(COUNTS, 0)
    count["repeated"] = len(rewards) - len(distinct)
    for key, time, reward in distinct:
        place = placed(start.get(key), time, window)
        if place == "inside":
            inside.setdefault(key, []).append((time, rewards.index((key, time, reward)), reward))
        else:
            count[place] += 1
    count["repeated_decisions"] = len(decisions) - len(main)
    outcome = [None] * len(decisions)
    for key, row in main.items():
        found = [reward for *_, reward in sorted(inside.get(key, []))]
        closed = start[key] + window <= until
        outcome[row], more = decided(found, closed, default, several)
        for name, number in more.items():
            count[name] += number
    return outcome, count


COUNTS = ("used", "further", "waiting", "late", "early", "orphaned", "with_reward", "defaulted", "without_reward",
          "open", "open_with_reward")  # fmt: skip


def placed(start, time, window):
    if start is None:
        return "orphaned"
    if time < start:
        return "early"
    return "late" if time > start + window else "inside"


def decided(found, closed, default, several):
    """Outcome of one decision, and what it adds to the counts."""
    if not closed:
        return None, {"open": 1, "open_with_reward": bool(found), "waiting": len(found)}
    if not found:
        return default, {"without_reward" if default is None else "defaulted": 1}
    pick = {"first": found[0], "last": found[-1], "sum": sum(found), "max": max(found)}
    used = len(found) if several == "sum" else 1
    return pick[several], {"with_reward": 1, "used": used, "further": len(found) - used}


def tables(decisions, rewards):
    key, time = zip(*decisions, strict=True)
    shown = pa.table({"id": key, "t": pa.array(time, pa.float64()), "row": np.arange(len(key))})
    key, time, reward = zip(*rewards, strict=True)
    return shown, pa.table({"id": key, "t": pa.array(time, pa.int64()), "r": pa.array(reward, pa.float64())})


ids = st.sampled_from("abcdefgh")
ticks = st.integers(0, 20)


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@pytest.mark.filterwarnings("ignore:.*came after the window")
@given(
    st.lists(st.tuples(ids, ticks), min_size=1, max_size=12),
    st.lists(st.tuples(ids, ticks, st.integers(-3, 3)), min_size=1, max_size=25),
    st.integers(1, 10),
    st.none() | st.integers(0, 40),
    st.none() | st.just(0.5),
    st.sampled_from(["first", "last", "sum", "max"]),
)
def test_every_decision_and_reward_is_where_the_slow_join_puts_it(
    decisions, rewards, window, until, default, several
):
    outcome, count = truth(decisions, rewards, window, until, default, several)
    shown, came = tables(decisions, rewards)
    options = {"window": window, "until": until, "default": default, "several": several, "repeated": "first"}
    known = {key for key, _ in decisions}
    if not any(key in known for key, *_ in rewards) or all(each is None for each in outcome):
        with pytest.raises(LogError, match=r"None of the|No decision is left"):
            join_rewards(shown, came, id="id", time="t", reward="r", **options)
        return
    log = join_rewards(shown, came, id="id", time="t", reward="r", **options)
    found = pa.Table.from_batches(
        log.batches(["row", "r"]), log.schema.empty_table().select(["row", "r"]).schema
    )
    assert found.to_pydict() == {
        "row": [row for row, each in enumerate(outcome) if each is not None],
        "r": [each for each in outcome if each is not None],
    }
    report = log.report.to_dict()
    assert {name: report[name] for name in count} == count
    assert report["rows"] == log.n_rows == found.num_rows
    assert len(rewards) == sum(
        report[name] for name in ("used", "further", "repeated", "waiting", "late", "early", "orphaned")
    )
    assert len(decisions) == sum(
        report[name] for name in ("rows", "without_reward", "open", "repeated_decisions")
    )


def shown_and_came():
    """Decisions in three batches of the source, and rewards for half of them."""
    rng = np.random.default_rng(0)
    n = 150_000
    hours = np.sort(rng.uniform(0, 1000, n))
    at = pa.array((hours * 3_600_000).astype(np.int64), pa.timestamp("ms", "UTC"))
    key = np.array([f"d{k:06d}" for k in rng.permutation(n)])
    shown = pa.table({"id": key, "at": at, "store": rng.integers(0, 50, n), "offer": rng.integers(0, 3, n)})
    some = rng.permutation(n)[: n // 2]
    later = hours[some] + rng.exponential(3, some.size)
    when = pa.array((later * 3_600_000).astype(np.int64), pa.timestamp("ms", "UTC"))
    return shown, pa.table({"key": key[some], "seen": when, "reward": rng.standard_normal(some.size)})


@pytest.mark.slow
def test_a_joined_log_is_a_source_like_any_other(tmp_path):
    shown, came = shown_and_came()
    pq.write_table(shown, tmp_path / "decisions.parquet", row_group_size=40_000)
    pq.write_table(came, tmp_path / "rewards.parquet")
    log = join_rewards(
        tmp_path / "decisions.parquet", tmp_path / "rewards.parquet", id=("id", "key"), time=("at", "seen"),
        window="24h", default=0.0,
    )  # fmt: skip
    assert isinstance(log, LogSource)
    assert open_log(log) is log
    learner = HierOPO().fit(log, task="store", action="offer", reward="reward")
    reward = dict(zip(came["key"].to_pylist(), came["reward"].to_pylist(), strict=True))
    delay = came["seen"].to_numpy() - dict_times(shown, came)
    late = set(came["key"].to_numpy()[delay > np.timedelta64(24, "h")])
    closed = shown["at"].to_numpy() + np.timedelta64(24, "h") <= came["seen"].to_numpy().max()
    rows = [
        (store, offer, 0.0 if key in late else reward.get(key, 0.0))
        for key, store, offer, ok in zip(
            shown["id"].to_pylist(),
            shown["store"].to_pylist(),
            shown["offer"].to_pylist(),
            closed,
            strict=True,
        )
        if ok
    ]
    plain = pa.table(dict(zip(("store", "offer", "reward"), map(list, zip(*rows, strict=True)), strict=True)))
    again = HierOPO().fit(plain, task="store", action="offer", reward="reward")
    np.testing.assert_array_equal(learner.posterior_.task(7).mean, again.posterior_.task(7).mean)
    assert log.report.late == len(late) > 0
    widths = [batch.num_rows for batch in log.batches(["reward", "offer"])]
    assert widths == [65_536, 65_536, len(rows) - 131_072]
    assert next(log.batches(["reward"], 10)).schema.names == ["reward"]


def dict_times(shown, came):
    at = dict(zip(shown["id"].to_pylist(), shown["at"].to_numpy(), strict=True))
    return np.array([at[key] for key in came["key"].to_pylist()])


def test_columns_of_the_decisions_keep_their_types_and_order():
    shown = pa.table(
        {
            "when": [NOON, NOON + HOUR],
            "id": pa.array([UUID(int=2).bytes, UUID(int=1).bytes], pa.uuid()),
            "store": pa.array(["x", "y"]).dictionary_encode(),
            "eligible": [["a"], ["a", "b"]],
        }
    )
    came = pa.table(
        {"when": [NOON + 9 * HOUR], "id": pa.array([UUID(int=1).bytes], pa.uuid()), "reward": [3]}
    )
    log = join_rewards(shown, came, id="id", time="when", window="8h", default=-1.0)
    found = pa.Table.from_batches(log.batches(log.schema.names), log.schema)
    assert found.schema == shown.schema.append(pa.field("reward", pa.float64()))
    assert found.drop(["reward"]).equals(shown)
    assert found["reward"].to_pylist() == [-1.0, 3.0]


def pair(time_of_decision, time_of_reward, kinds=(None, None)):
    shown = pa.table({"id": ["a"], "t": pa.array([time_of_decision], kinds[0])})
    return shown, pa.table({"id": ["a"], "t": pa.array([time_of_reward], kinds[1]), "reward": [1.0]})


AMSTERDAM = dt.datetime(2026, 1, 31, 13)  # noon in UTC


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "came", "zone"),
    [
        (NOON, NOON + HOUR, None),
        (NOON, (NOON + HOUR).astimezone(dt.timezone(dt.timedelta(hours=-8))), None),
        (AMSTERDAM, NOON + HOUR, "Europe/Amsterdam"),
        ("2026-01-31T13:00:00+01:00", NOON + HOUR, None),
        ("2026-01-31T12:00:00Z", "2026-01-31T08:00:00-05:00", None),
        ("2026-01-31 13:00:00", NOON + HOUR, "Europe/Amsterdam"),
        (AMSTERDAM, AMSTERDAM + HOUR, None),
        (AMSTERDAM, AMSTERDAM + HOUR, "Europe/Amsterdam"),
    ],
)
def test_one_instant_is_one_instant_in_every_zone_and_form(made, came, zone):
    shown, rewards = pair(made, came)
    for window, count in (("60min", 1), ("1h", 1), (dt.timedelta(minutes=59, seconds=59), 0)):
        options = {"id": "id", "time": "t", "window": window, "zone": zone, "default": 0.0}
        if count == 0:
            with pytest.warns(HieropoWarning, match="1 of 1 rewards came after the window"):
                log = join_rewards(shown, rewards, **options)
        else:
            log = join_rewards(shown, rewards, **options)
        assert log.report.used == count
        assert log.report.late == 1 - count


def test_nanoseconds_of_one_stream_are_kept():
    at = pa.array([10**18]).cast(pa.timestamp("ns", "UTC"))
    shown = pa.table({"id": ["a", "b"], "t": pa.concat_arrays([at, at])})
    later = pa.array([10**18 + 1000, 10**18 + 1001]).cast(pa.timestamp("ns", "UTC"))
    came = pa.table({"id": ["a", "b"], "t": later, "reward": [1.0, 1.0]})
    with pytest.warns(HieropoWarning, match="1 of 2 rewards"):
        log = join_rewards(shown, came, id="id", time="t", window=dt.timedelta(microseconds=1), default=0.0)
    assert (log.report.used, log.report.late) == (1, 1)


@pytest.mark.parametrize("until", [NOON + 5 * HOUR, "2026-01-31T17:00:00Z", "2026-01-31T18:00:00+01:00"])
def test_until_says_which_windows_are_closed(until):
    shown = pa.table({"id": list("abc"), "t": [NOON, NOON + 4 * HOUR, NOON + 5 * HOUR]})
    came = pa.table({"id": ["a", "c"], "t": [NOON, NOON + 5 * HOUR], "reward": [1.0, 1.0]})
    log = join_rewards(shown, came, id="id", time="t", window="1h", default=0.0, until=until)
    report = log.report
    assert (report.with_reward, report.defaulted, report.open, report.open_with_reward) == (1, 1, 1, 1)
    assert report.waiting == 1
    assert report.until == "2026-01-31 17:00:00 UTC"
    assert "rewards are complete until 2026-01-31 17:00:00 UTC, as given" in str(report)
    assert "1 decision with an open window has a reward already" in str(report)


def test_without_a_word_rewards_are_in_until_the_latest():
    shown = pa.table({"id": list("ab"), "t": [NOON, NOON + HOUR]})
    came = pa.table({"id": ["a"], "t": [NOON + HOUR], "reward": [1.0]})
    report = join_rewards(shown, came, id="id", time="t", window="1h", default=None).report
    assert (report.rows, report.open) == (1, 1)
    assert "the time of the latest reward; set until=" in str(report)
    assert report.delays["1.0"] == "1 h"
    assert "100% within 1 h" in str(report)


def bad(message, kind=LogError, shown=None, came=None, **options):
    base = {"id": "id", "time": "t", "window": "1h", "default": 0.0}
    return pytest.param(message, kind, shown or {}, came or {}, base | options, id=message[:40])


@pytest.mark.parametrize(
    ("message", "kind", "shown", "came", "options"),
    [
        bad("'a' comes twice among the decisions, in row 0 and row 1 .*repeated='first'", shown={"id": ["a", "a"]}),
        bad("'a', row 0, has 2 rewards in its window, from 1 to 2", came={"id": ["a", "a"]}),
        bad("Column 'id' of the Arrow table, row 1: the value is null.*Drop such rows", shown={"id": ["a", None]}),
        bad("Column 't' of the Arrow table, row 0: the value is null.*Drop such rows", came={"t": [None, NOON]}),
        bad("'reward', row 1: null", came={"reward": [1.0, None]}),
        bad("'reward', row 1: nan is not a reward", came={"reward": [1.0, float("nan")]}),
        bad("None of the 2 rewards is of a decision.*first decision has the id 'a', the first reward 'x'",
            came={"id": ["x", "y"]}),
        bad("No decision is left. The window of 7 d is still open for 2 decisions", window="7d"),
        bad("Ids cannot be compared.*whole number.*text", SchemaError, shown={"id": [1, 2]}),
        bad("'t' of the decisions has no time zone and .* has a time zone.*zone='UTC'", SchemaError,
            shown={"t": [AMSTERDAM] * 2}),
        bad("has a time zone and .* is a number", SchemaError, came={"t": [1, 2]}),
        bad("'idd' .* is not in .* Did you mean 'id'", SchemaError, id="idd"),
        bad("'when' .*is not in", SchemaError, time=("t", "when")),
        bad("already have a column 't'", SchemaError, into="t"),
        bad("'1 fortnight' is not a time such as '30min'", InputError, window="1 fortnight"),
        bad("window 3600 is not a time", InputError, window=3600),
        bad("window '0h' is not", InputError, window="0h"),
        bad("default=nan is no reward", InputError, default=float("nan")),
        bad("default='zero' is no reward", InputError, default="zero"),
        bad("default=True is no reward", InputError, default=True),
        bad("id=\\['id'\\] is neither the name of a column nor a pair", InputError, id=["id"]),
        bad("time=None is neither", InputError, time=None),
        bad("5 is no time zone", InputError, zone=5),
        bad("'t', row 1: inf is no time", shown={"t": [1.0, float("inf")]}, came={"t": [1, 2]}, window=1),
        bad("several='both' is none of", InputError, several="both"),
        bad("repeated='drop' is none of", InputError, repeated="drop"),
        bad("'Mars/Olympus' is no time zone", InputError, zone="Mars/Olympus"),
        bad("until: 'soon' is no time in the form", until="soon"),
        bad("until: 2026-01-31T13:00:00 has no time zone", until=AMSTERDAM),
        bad("row 1: '31/1/2026' is no time in the form", shown={"t": ["2026-01-31T12:00:00Z", "31/1/2026"]}),
        bad("row 1: 2026-01-31T12:00:00 has no time zone",
            shown={"t": ["2026-01-31T12:00:00Z", "2026-01-31T12:00:00"]}),
        bad("memory='lots' is not a size.*such as '2GB'", InputError, memory="lots"),
    ],
)  # fmt: skip
def test_what_cannot_be_joined_is_refused_by_place_and_cause(message, kind, shown, came, options):
    decisions = pa.table({"id": ["a", "b"], "t": [NOON, NOON]} | shown)
    rewards = pa.table({"id": ["a", "b"], "t": [NOON, NOON + HOUR], "reward": [1.0, 2.0]} | came)
    with pytest.raises(kind, match=message):
        join_rewards(decisions, rewards, **options)


def test_an_hour_that_comes_twice_is_refused():
    twice = dt.datetime(2026, 10, 25, 2, 30)
    shown, came = pair(twice, twice + HOUR)
    with pytest.raises(
        LogError, match=r"'t', rows 0 to 0: a time has no place in its zone .*hour comes twice"
    ):
        join_rewards(shown, came, id="id", time="t", window="1h", default=0.0, zone="Europe/Amsterdam")


def test_no_rewards_at_all_need_a_word_on_how_long_they_are_in():
    shown, came = pair(NOON, NOON)
    with pytest.raises(LogError, match=r"There are no rewards.*until="):
        join_rewards(shown, came.slice(0, 0).to_reader(), id="id", time="t", window="1h", default=0.0)
    log = join_rewards(
        shown, came.slice(0, 0).to_reader(), id="id", time="t", window="1h", default=0.0, until=NOON + HOUR
    )
    assert log.report.defaulted == 1


@pytest.mark.slow
def test_temporary_files_go_with_the_log(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    shown, came = pair(NOON, NOON + HOUR)
    log = join_rewards(shown, came, id="id", time="t", window="1h", default=0.0)
    assert [path.name[:13] for path in tmp_path.iterdir()] == ["hieropo-join-"]
    del log
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_frames_and_streams_are_joined_alike():
    shown = pl.DataFrame({"id": [1, 2], "t": [NOON, NOON]}).with_columns(pl.col("id").cast(pl.Int16))
    came = pa.table({"id": [2], "t": [NOON], "reward": [4.0]})
    for decisions, rewards in ((shown, came.to_reader()), (shown.to_arrow().to_reader(), came)):
        log = join_rewards(decisions, rewards, id="id", time="t", window="1h", default=0.0, until=NOON + HOUR)
        for _ in range(2):
            (batch,) = log.batches(["id", "reward"])
            assert batch.to_pydict() == {"id": [1, 2], "reward": [0.0, 4.0]}


@pytest.mark.slow
def test_streams_larger_than_the_memory_of_the_join(tmp_path):
    n, part = 1_000_000, 125_000
    schema = pa.schema([("id", pa.string()), ("t", pa.int64()), ("reward", pa.float64())])

    def keys(start):
        return pa.array([f"decision-{(7_919 * k) % n:012d}" for k in range(start, start + part)])

    with (
        pq.ParquetWriter(tmp_path / "d.parquet", schema.remove(2)) as d,
        pq.ParquetWriter(tmp_path / "r.parquet", schema) as r,
    ):
        for start in range(0, n, part):
            at = pa.array(np.arange(start, start + part))
            d.write_batch(pa.record_batch([keys(start), at], schema=schema.remove(2)))
            late = pa.array(np.arange(start, start + part) + 5)
            r.write_batch(pa.record_batch([keys(start), late, at.cast(pa.float64())], schema=schema))
    log = join_rewards(
        tmp_path / "d.parquet",
        tmp_path / "r.parquet",
        id="id",
        time="t",
        window=10,
        default=None,
        memory="80MB",
    )  # the columns of the join have 85 MB, and the join needs as much again
    assert log.n_rows == n - 5
    total = sum(float(np.sum(batch["reward"].to_numpy())) for batch in log.batches(["reward"]))
    assert total == sum(range(n - 5))
