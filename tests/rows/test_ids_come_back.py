"""Ids of tasks and actions come back as they went in: through a fit, a saved policy, decisions, a learner from disk."""

import datetime as dt
import enum
from decimal import Decimal
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from hieropo import HierOPO, load_learner, load_policy
from hieropo.cli import main
from hieropo.decisions.deciding import decide
from hieropo.logs.arrow.writing import id_column
from hieropo.rows.ids import plain
from hieropo.rows.keys import Keys

ROWS = 120


class Offer(enum.StrEnum):
    NONE = "none"
    GIFT = "gift"
    COUPON = "coupon"


DAYS = [dt.date(2024, 2, 29), dt.date(1969, 12, 31), dt.date(1, 1, 1)]
TIMES = [dt.datetime(2024, 2, 29, 12, 30, 5), dt.datetime(1969, 12, 31), dt.datetime(2262, 1, 1)]
FINE = [dt.datetime(2024, 2, 29, 12, 30, 5, 123456), dt.datetime(1969, 12, 31), dt.datetime(9999, 1, 1)]
AWARE = [each.replace(tzinfo=dt.UTC) for each in FINE]
WHOLE = [each.replace(microsecond=0) for each in AWARE[:2]]
UUIDS = [UUID(int=each) for each in (1, 2**127, 2**64)]
TEXTS = ["a", "", "\u00e9\U0001f600 'quoted', with a comma\n", "A", "1"]


def column(kind, values=None):
    """A maker of Arrow columns of this type."""
    return lambda ids: pa.array(ids if values is None else [values(each) for each in ids], kind)


def encoded(kind, index=None):
    def make(ids):
        values = pa.array(ids, kind).dictionary_encode()
        return pa.DictionaryArray.from_arrays(values.indices.cast(index or pa.int32()), values.dictionary)

    return make


# Ids as plain Python values, and how a source holds them.
KINDS = {
    "string": (TEXTS, column(pa.string())),
    "large string": (TEXTS, column(pa.large_string())),
    "string view": (TEXTS, column(pa.string_view())),
    "dictionary of strings": (TEXTS, encoded(pa.string(), pa.uint8())),
    "dictionary of whole numbers": ([3, -1, 2**40], encoded(pa.int64())),
    "int8": ([-128, 127, 0], column(pa.int8())),
    "int16": ([-(2**15), 2**15 - 1, 0], column(pa.int16())),
    "int32": ([-(2**31), 2**31 - 1, 0], column(pa.int32())),
    "int64": ([-(2**63), 2**63 - 1, 0], column(pa.int64())),
    "uint8": ([0, 255], column(pa.uint8())),
    "uint16": ([0, 2**16 - 1], column(pa.uint16())),
    "uint32": ([0, 2**32 - 1], column(pa.uint32())),
    "uint64": ([0, 2**64 - 1, 2**63], column(pa.uint64())),
    "uint64 beyond int64": ([2**64 - 1, 2**63], column(pa.uint64())),
    "beyond 64 bits": ([10**30, -(10**37), 5], column(pa.decimal128(38), Decimal)),
    "decimal": ([Decimal("1.50"), Decimal("-2.25")], column(pa.decimal128(9, 2))),
    "boolean": ([True, False], column(pa.bool_())),
    "float": ([0.1, -0.5, 1e15], column(pa.float64())),
    "date32": (DAYS, column(pa.date32())),
    "date64": (DAYS, column(pa.date64())),
    "seconds": (TIMES, column(pa.timestamp("s"))),
    "milliseconds": (TIMES, column(pa.timestamp("ms"))),
    "microseconds": (FINE, column(pa.timestamp("us"))),
    "nanoseconds": (TIMES, column(pa.timestamp("ns"))),
    "with a zone": (AWARE, column(pa.timestamp("us", tz="UTC"))),
    "with a zone of a place": (WHOLE, column(pa.timestamp("ms", tz="Europe/Amsterdam"))),
    "uuid": (UUIDS, column(pa.uuid(), lambda each: each.bytes)),
    "bytes": ([b"a", b"\xff\x00", b""], column(pa.binary())),
    "fixed bytes": ([b"ab", b"\xff\x00"], column(pa.binary(2))),
    "pandas text": (TEXTS, lambda ids: pd.Series(ids, dtype=object)),
    "pandas categories": (TEXTS, lambda ids: pd.Series(ids, dtype="category")),
    "pandas categories of numbers": ([10, 20, 5], lambda ids: pd.Series(ids, dtype="category")),
    "pandas Int64": ([1, -5, 2**62], lambda ids: pd.Series(ids, dtype="Int64")),
    "pandas dates": (TIMES, lambda ids: pd.Series(ids, dtype="datetime64[ns]")),
    "pandas enum": (list(Offer), lambda ids: pd.Series(ids, dtype=object)),
    "polars enum": (["none", "gift"], lambda ids: pl.Series(ids, dtype=pl.Enum(["gift", "none", "unused"]))),
    "polars categories": (TEXTS, lambda ids: pl.Series(ids, dtype=pl.Categorical)),
    "polars dates": (DAYS, lambda ids: pl.Series(ids, dtype=pl.Date)),
    "polars UInt8": ([0, 255], lambda ids: pl.Series(ids, dtype=pl.UInt8)),
}  # fmt: skip


def log_of(ids, make, *, task=True):
    """A log whose tasks (or whose actions) have these ids; the other of the two are letters."""
    rng = np.random.default_rng(0)
    mine, letters = np.arange(ROWS) % len(ids), rng.integers(0, 2, ROWS)
    if not task:
        rng.shuffle(mine)
    own, other = make([ids[k] for k in mine]), np.array(["x", "y"])[letters].tolist()
    columns = {"s": own, "a": other} if task else {"s": [f"task {k % 4}" for k in range(ROWS)], "a": own}
    reward = (mine + letters + rng.normal(0, 0.3, ROWS)).tolist()
    library = type(own).__module__.split(".")[0]
    if library == "pandas":
        return pd.DataFrame(columns | {"r": reward})
    return pl.DataFrame(columns | {"r": reward}) if library == "polars" else pa.table(columns | {"r": reward})


def fitted(log):
    learner = HierOPO(logging="random", uncertainty="plug-in", task_cov="isotropic")
    return learner.fit(log, task="s", action="a", reward="r")


def same(found, ids):
    """The same values, of the standard library's types."""
    found, ids = [plain(each) for each in found], [plain(each) for each in ids]
    assert set(found) == set(ids)
    assert len(found) == len(ids)
    assert {type(each) for each in found} == {type(each) for each in ids}


each_kind = pytest.mark.parametrize(("ids", "make"), KINDS.values(), ids=KINDS)


@pytest.mark.slow
@each_kind
def test_tasks_come_back(ids, make, tmp_path):
    log = log_of(ids, make)
    learner = fitted(log)
    again = load_learner(learner.save(tmp_path / "p"))
    for each in (learner, again):
        same(
            each.moments_.tasks.tolist() if each.moments_.tasks.dtype.kind != "M" else each.moments_.tasks,
            ids,
        )
        for task in ids:
            np.testing.assert_array_equal(each.policy_.choose(task).mean, learner.policy_.choose(task).mean)
            assert each.moments_.keys.find(task) >= 0
    (part,) = decide(load_policy(tmp_path / "p").policy, log, task="s")
    assert part.unseen == 0
    decided = part.table["s"].to_pylist()
    asked = [plain(ids[k % len(ids)]) for k in range(ROWS)]
    assert decided == asked
    pq.write_table(
        part.table, tmp_path / "decided.parquet"
    )  # and are tasks of the policy when they come back from there
    assert next(decide(again.policy_, tmp_path / "decided.parquet", task="s")).unseen == 0


@pytest.mark.slow
@each_kind
def test_actions_come_back(ids, make, tmp_path):
    log = log_of(ids, make, task=False)
    learner = fitted(log)
    same(learner.features_.actions, ids)
    again = load_learner(learner.save(tmp_path / "p"))
    assert again.features_ == learner.features_
    assert [type(each) for each in again.features_.actions] == [
        type(plain(each)) for each in learner.features_.actions
    ]
    best = plain(ids[-1])  # the reward grows with the place in the list
    for each in (learner.predict(log), again.predict(log)):
        assert [(type(action), action) for action in each] == [(type(best), best)] * ROWS
    (part,) = decide(load_policy(tmp_path / "p").policy, log, task="s")
    assert part.table["action"].to_pylist() == [best] * ROWS
    assert again.partial_fit(log).moments_.n_rows == 2 * ROWS


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["uuid", "date32", "uint64", "dictionary of strings"])
def test_the_command_line_gives_them_back_too(kind, tmp_path):
    ids, make = KINDS[kind]
    log = log_of(ids, make, task=False)
    pq.write_table(pa.table(log), tmp_path / "log.parquet")
    for command in (
        [
            "fit",
            "log.parquet",
            "-o",
            "p",
            "--task",
            "s",
            "--action",
            "a",
            "--reward",
            "r",
            "--logging",
            "random",
        ],
        ["decide", "p", "log.parquet", "-o", "out.parquet"],
    ):
        words = [
            str(tmp_path / each) if each in ("log.parquet", "out.parquet", "p") else each for each in command
        ]
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, done.output
    assert pq.read_table(tmp_path / "out.parquet")["action"].to_pylist() == [plain(ids[-1])] * ROWS


ANY = st.one_of(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), min_size=2, max_size=5, unique=True),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=2, max_size=5, unique=True),
    st.lists(st.integers(2**63, 2**64 - 1), min_size=2, max_size=5, unique=True),
    st.lists(st.integers(-(10**37), 10**37), min_size=2, max_size=5, unique=True),
    st.lists(st.uuids(), min_size=2, max_size=5, unique=True),
    st.lists(st.dates(), min_size=2, max_size=5, unique=True),
    st.lists(st.datetimes(), min_size=2, max_size=5, unique=True),
    st.lists(st.datetimes(timezones=st.just(dt.UTC)), min_size=2, max_size=5, unique=True),
    st.lists(st.floats(1 - 2**53, 2**53 - 1), min_size=2, max_size=5, unique=True),
    st.lists(st.binary(max_size=5), min_size=2, max_size=5, unique=True),
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=40)
@given(ANY)
def test_whatever_they_are(tmp_path_factory, ids):
    folder = tmp_path_factory.mktemp("ids")
    log = log_of(ids, id_column)
    learner = fitted(log)
    (part,) = decide(load_policy(learner.save(folder / "p")).policy, log, task="s")
    assert part.unseen == 0
    assert part.table["s"].to_pylist() == [ids[k % len(ids)] for k in range(ROWS)]


@pytest.mark.parametrize("kind", ["D", "s", "ms", "us", "ns"])
def test_one_instant_is_one_task_in_whichever_type_it_comes(kind, tmp_path):
    days = np.array(["2024-02-29", "1969-12-31"], dtype=f"datetime64[{kind}]")
    learner = fitted(log_of(days.astype("datetime64[us]").tolist(), column(pa.timestamp("us"))))
    of_dates = HierOPO(known=learner.hierarchy_, uncertainty="plug-in")
    log = log_of(
        days.tolist() if kind != "ns" else days, lambda ids: pa.array(np.array(ids, dtype=days.dtype))
    )
    of_dates.fit(log, task="s", action="a", reward="r")
    saved = load_policy(of_dates.save(tmp_path / "p")).policy
    first = saved.choose(days[0])
    twins = [days[0], days[0].astype("datetime64[ns]"), days[0].astype("datetime64[D]"), dt.datetime(2024, 2, 29),
             dt.date(2024, 2, 29), pd.Timestamp("2024-02-29")]  # fmt: skip
    for policy in (of_dates.policy_, saved):
        for twin in twins:
            assert policy.choose(twin) == first
            assert policy.choose_many([twin]).mean[0, 0] == first.mean
        for other in (dt.date(2024, 3, 1), pd.Timestamp("2024-02-29 00:00:00.000000001"), "2024-02-29",
                      dt.datetime(2024, 2, 29, tzinfo=dt.UTC), dt.datetime(9999, 1, 1)):  # fmt: skip
            assert policy.table.keys.find(other) == -1
    assert len(of_dates.moments_ + learner.moments_) == 2


def test_times_of_two_units_stay_times_when_tasks_are_united():
    fine = Keys(np.array(["2024-02-29T00:00:00.000000001"], dtype="datetime64[ns]"))
    both, rows = fine.union(Keys(np.array(["2024-02-29"], dtype="datetime64[D]")))
    assert both.values.tolist() == [fine.values[0], np.datetime64("2024-02-29")]
    assert rows.tolist() == [1]
    assert "'2024-02-29T00:00:00.000000001'" in fine.unknown_message("a")


def test_an_instant_is_the_same_task_in_every_zone():
    utc = AWARE[:2]
    learner = fitted(log_of(utc, column(pa.timestamp("us", tz="UTC"))))
    there = [each.astimezone(ZoneInfo("Asia/Tokyo")) for each in utc]
    (part,) = decide(
        learner.policy_, pa.table({"s": pa.array(there, pa.timestamp("us", tz="Asia/Tokyo"))}), task="s"
    )
    assert part.unseen == 0
