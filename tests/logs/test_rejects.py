"""Rows that cannot be used are set aside, counted and listed; what is left is the log without them."""

import csv
import datetime as dt
import json
from collections import Counter
from decimal import Decimal
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from command_line import called
from hypothesis import given, settings
from hypothesis import strategies as st

from hieropo import HierOPO, HieropoWarning, InputError, LogError, load_learner
from hieropo.errors import ArtifactError
from hieropo.features.maps import indicator, per_action
from hieropo.logs.bad_rows.rejects import ROUNDED, Rejects, find_bad_values
from hieropo.logs.reading import read, usable_batch
from hieropo.passes.log_moments import LogMoments
from hieropo.passes.summing import sums
from hieropo.rows.batches import Roles

NAN, INF, BIG = float("nan"), float("inf"), 2**53 + 1
ROLES = Roles(
    "task",
    "action",
    "reward",
    "pscore",
    "weight",
    context=("x", "k"),
    levels=("region",),
    metadata=("size",),
    eligible="can",
    time="when",
)

# Of each role: Arrow type, good values, and bad ones with their reasons.
KINDS = {
    "ids": [
        (pa.string(), ["a", "b", ""], {None: "missing"}),
        (pa.dictionary(pa.int32(), pa.string()), ["a", "b"], {None: "missing"}),
        (pa.int32(), [1, -2], {None: "missing"}),
        (pa.uint64(), [2**64 - 1, 0], {None: "missing"}),
        (pa.float64(), [0.5, 1.0], {None: "missing", NAN: "NaN", 2.0**53: ROUNDED, -(2.0**60): ROUNDED}),
        (pa.float32(), [0.5, 2.0**24 - 1], {None: "missing", NAN: "NaN", 2.0**24: ROUNDED}),
        (pa.date32(), [dt.date(2024, 1, 1), dt.date(1969, 1, 1)], {None: "missing"}),
        (pa.timestamp("us", tz="UTC"), [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)], {None: "missing"}),
        (pa.uuid(), [UUID(int=1).bytes, UUID(int=2).bytes], {None: "missing"}),
        (pa.null(), [], {None: "missing"}),
    ],
    "reward": [
        (pa.float64(), [0.0, -1.5], {None: "missing", NAN: "NaN", INF: "infinite", -INF: "infinite", 1e80: "huge"}),
        (pa.float32(), [0.0, 2.5], {None: "missing", NAN: "NaN", -INF: "infinite"}),
        (pa.int64(), [0, -(2**53)], {None: "missing", BIG: "above 2**53", -BIG: "above 2**53"}),
        (pa.uint64(), [0, 2**53], {None: "missing", BIG: "above 2**53"}),
        (pa.bool_(), [True, False], {None: "missing"}),
        (pa.decimal128(9, 2), [Decimal("1.25")], {None: "missing"}),
        (pa.dictionary(pa.int8(), pa.float64()), [1.0], {None: "missing", NAN: "NaN"}),
        (pa.null(), [], {None: "missing"}),
    ],
    "pscore": [
        (pa.float64(), [1.0, 1e-300], {None: "missing", NAN: "NaN", 0.0: "0 or below", -INF: "0 or below",
                                       1.0000001: "above 1", INF: "above 1"}),
        (pa.int8(), [1], {None: "missing", 0: "0 or below", 100: "above 1"}),
    ],
    "weight": [(pa.float64(), [0.0, 2.0], {None: "missing", NAN: "NaN", INF: "infinite", -1.0: "negative"})],
    "metadata": [(pa.float32(), [0.5], {None: "missing", NAN: "NaN", INF: "infinite"})],
    "eligible": [
        (pa.list_(pa.string()), [["a"], ["a", "b"]], {None: "missing", (): "an empty list",
                                                      ("a", None): "a list with a null"}),
    ],
    "time": [
        (pa.date32(), [dt.date(2024, 1, 1)], {None: "missing"}),
        (pa.float64(), [0.0], {None: "missing", NAN: "NaN", INF: "infinite"}),
        (pa.int64(), [5], {None: "missing"}),
    ],
}  # fmt: skip
OF_ROLE = {"task": "ids", "action": "ids", "level": "ids", "context": "reward"}


@st.composite
def logs(draw):
    """A table with some bad cells, and what is wrong in each: (row, column) to reason."""
    n = draw(st.integers(1, 12))
    columns, wrong = {}, {}
    for role, column in ROLES.items():
        kind, good, bad = draw(st.sampled_from(KINDS[OF_ROLE.get(role, role)]))
        if column in ("action", "can"):
            kind, good, bad = (pa.string(), ["a", "b"], {None: "missing"}) if column == "action" else (
                pa.list_(pa.string()), [["b", "a"]], KINDS["eligible"][0][2])  # fmt: skip
        pick = st.sampled_from(list(bad)) if not good else st.one_of(
            st.sampled_from([*good, *good]), st.sampled_from(good), st.sampled_from([*good, *bad]))  # fmt: skip
        values = draw(st.lists(pick, min_size=n, max_size=n))
        for row, value in enumerate(values):
            if any(value is each or (value == each and type(value) is type(each)) for each in bad):
                wrong[row, column] = next(bad[each] for each in bad if value is each or value == each)
        columns[column] = _array(values, kind)
    return pa.table(columns), wrong


def _array(values, kind):
    values = [list(value) if isinstance(value, tuple) else value for value in values]
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode()
    return pa.array(values, kind)


@pytest.mark.slow
@settings(max_examples=80)
@given(logs(), st.integers(1, 5))
def test_what_is_set_aside_is_what_is_wrong_and_the_rest_is_the_log_without_it(made, size):
    table, wrong = made
    rejects, rows, tasks, rewards = Rejects(), [], [], []
    for batch in read(table, ROLES, batch_rows=size, rejects=rejects):
        rows += [batch.number(k) for k in range(len(batch))]
        tasks += batch.task.tolist()
        rewards += batch.reward.tolist()
    bad = {row for row, _ in wrong}
    assert rows == [row for row in range(table.num_rows) if row not in bad]
    if rows:
        (clean,) = read(table.take(rows), ROLES)  # strict, and nothing to complain about
        assert (tasks, rewards) == (clean.task.tolist(), clean.reward.tolist())
    found = rejects.finish(len(rows), _keys(tasks))
    assert (found.read, found.rows) == (table.num_rows, len(bad))
    counts = Counter((column, reason) for (_, column), reason in wrong.items())
    assert {(each.column, each.reason): each.rows for each in found.reasons} == counts
    for each in found.reasons:
        first = min(
            row for (row, column), reason in wrong.items() if (column, reason) == (each.column, each.reason)
        )
        assert each.first_row == first


def _keys(tasks):
    from hieropo.rows.keys import Keys

    return Keys.factorize(tasks)[0] if tasks else Keys(np.zeros(0))


@pytest.mark.slow
@settings(max_examples=80)
@given(logs())
def test_strict_stops_exactly_where_lenient_sets_aside(made):
    table, wrong = made
    found = table.to_batches()[0]
    assert {
        (int(row), fault.column)
        for fault in find_bad_values(found, ROLES)
        for row in np.flatnonzero(fault.bad)
    } == set(wrong)
    if wrong and any(
        column != "size" for _, column in wrong
    ):  # metadata are looked at where tasks are placed
        with pytest.raises(LogError):
            usable_batch(found, ROLES, 0)
    elif not wrong:
        usable_batch(found, ROLES, 0)


def broken_log(rows=4000, seed=0):
    """A log with 6 % bad rows, in columns chosen at random, and the numbers of those."""
    rng = np.random.default_rng(seed)
    action = rng.integers(0, 2, rows)
    store = rng.integers(0, 20, rows)
    reward = 0.1 * store + action + rng.normal(0, 0.5, rows)
    pscore = np.full(rows, 0.5)
    bad = rng.choice(rows, rows * 6 // 100, replace=False)
    reward[bad[:100]] = np.nan
    pscore[bad[100:200]] = 0.0
    task = pa.array(
        [None if row in set(bad[200:].tolist()) else f"store {store[row]}" for row in range(rows)]
    )
    table = {"store": task, "offer": np.array(["none", "gift"])[action], "profit": reward, "p": pscore}
    return pa.table(table), np.sort(bad)


COLUMNS = {"task": "store", "action": "offer", "reward": "profit", "pscore": "p"}


@pytest.fixture(scope="module")
def broken():
    return broken_log()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_lanes_set_the_same_rows_aside_and_list_them_in_order(broken, tmp_path, threads):
    table, bad = broken
    log, file = tmp_path / "log", tmp_path / "bad.parquet"
    log.mkdir()
    for part in range(7):
        pq.write_table(table.slice(600 * part, 600), log / f"{part}.parquet", row_group_size=100)
    features, roles = indicator(["none", "gift"]), Roles(**COLUMNS)
    rejects = Rejects(file=file)
    with pytest.warns(HieropoWarning, match="were set aside"):
        found = sums(log, features, roles, threads=threads, rejects=rejects)
    clean = sums(table.take(np.setdiff1d(np.arange(len(table)), bad)), features, roles, threads=1)
    assert rejects.rejected.rows == bad.size
    listed = pq.read_table(file)
    assert listed.column_names == ["file", "row", "column", "value", "reason"]
    assert listed["row"].to_pylist() == bad.tolist()
    assert listed["file"].to_pylist() == [str(log / f"{row // 600}.parquet") for row in bad]
    order = found.moments.keys.require(clean.moments.keys.values)
    np.testing.assert_allclose(found.moments.sums[order], clean.moments.sums, rtol=1e-12)
    np.testing.assert_array_equal(found.moments.rows[order], clean.moments.rows)
    assert found.sketch.share_in(clean.sketch) == 1.0


@pytest.mark.slow
def test_a_lenient_fit_is_the_fit_to_the_other_rows(broken, tmp_path):
    table, bad = broken
    with pytest.warns(
        HieropoWarning, match=r"240 of 4,000 rows \(6.00%\): 100 with NaN in 'profit'"
    ) as caught:
        learner = HierOPO(logging="random").fit(table, **COLUMNS, lenient=True, rejects=tmp_path / "bad.csv")
    assert caught[0].filename == __file__
    other = HierOPO(logging="random").fit(table.take(np.setdiff1d(np.arange(len(table)), bad)), **COLUMNS)
    assert other.rejected_ is None
    assert learner.rejected_.share == 0.06
    np.testing.assert_allclose(learner.policy_.table.means, other.policy_.table.means, rtol=1e-9)
    listed = pa.csv.read_csv(tmp_path / "bad.csv")
    assert listed["row"].to_pylist() == bad.tolist()
    assert Counter(listed["reason"].to_pylist()) == {"NaN": 100, "0 or below": 100, "missing": 40}
    learner.save(tmp_path / "policy")
    assert load_learner(tmp_path / "policy").rejected_ is None
    with pytest.warns(HieropoWarning, match="were set aside"):
        found = learner.evaluate(table, lenient=True)
    assert (found.rows, found.learned_from, found.rejected.rows) == (3760, "yes", 240)
    assert "240 of 4,000 rows (6.00%)" in str(found)
    assert found.to_dict()["rejected"]["reasons"][0]["rows"] == 100


def test_strict_is_the_default_and_stops_at_the_first(broken):
    table, _ = broken
    with pytest.raises(LogError, match="row "):
        HierOPO().fit(table, **COLUMNS)


def test_strict_with_a_file_lists_all_before_it_stops(broken, tmp_path):
    table, bad = broken
    with pytest.raises(
        LogError, match=r"240 of 4,000 rows .* cannot be used\. Each is listed in .*bad.csv.*lenient"
    ):
        HierOPO().fit(table, **COLUMNS, rejects=tmp_path / "bad.csv")
    assert pa.csv.read_csv(tmp_path / "bad.csv")["row"].to_pylist() == bad.tolist()


def test_a_log_without_bad_rows_gives_an_empty_list_and_no_warning(tmp_path):
    table, bad = broken_log(500)
    good = table.take(np.setdiff1d(np.arange(500), bad))
    learner = HierOPO(logging="random").fit(good, **COLUMNS, lenient=True, rejects=tmp_path / "bad.parquet")
    assert (learner.rejected_.rows, learner.rejected_.share, learner.rejected_.reasons) == (0, 0.0, ())
    assert pq.read_table(tmp_path / "bad.parquet").num_rows == 0


def shop(**changes):
    n = 300
    rng = np.random.default_rng(1)
    action = np.array(["a", "b", "c"])[rng.integers(0, 3, n)]
    columns = {"store": rng.integers(0, 5, n).astype(float), "offer": action.astype(object),
               "profit": rng.integers(0, 2, n).astype(float), "p": np.full(n, 1 / 3)}  # fmt: skip
    for name, change in changes.items():
        columns[name] = change(columns[name].copy(), action)
    return pa.table({name: pa.array(values.tolist()) for name, values in columns.items()})


def holes(where):
    def change(values, action):
        values[where(action, np.arange(values.size))] = np.nan
        return values

    return change


def test_more_than_half_is_no_log_any_more(tmp_path):
    log = shop(profit=holes(lambda _, k: k % 5 > 1))
    with pytest.raises(
        LogError, match=r"180 of 300 rows \(60.00%\).* the other rows do not stand for the log"
    ):
        HierOPO().fit(log, **COLUMNS, lenient=True, rejects=tmp_path / "bad.parquet")
    assert pq.read_table(tmp_path / "bad.parquet").num_rows == 180


@pytest.mark.parametrize("features", [None, indicator(["a", "b", "c"])])
def test_nothing_left_says_so_and_lists_all(tmp_path, features):
    log = shop(p=lambda values, _: values * 0)
    with pytest.raises(
        LogError,
        match=r"300 of 300 rows \(100.00%\): 300 with 0 or below in 'p' \(first in row 0, counted from 0: 0.0\)",
    ):
        HierOPO(features).fit(log, **COLUMNS, lenient=True, rejects=tmp_path / "bad.csv")
    assert pa.csv.read_csv(tmp_path / "bad.csv").num_rows == 300


def test_rewards_that_are_written_only_where_something_came_are_refused():
    clicks = shop(
        profit=lambda values, _: np.where((values > 0) | (np.arange(values.size) < 60), 1.0, np.nan)
    )
    with pytest.raises(
        LogError, match=r"all others have the reward 1.* missing reward mean another value, such as 0"
    ):
        HierOPO().fit(clicks, **COLUMNS, lenient=True)


def test_missing_rewards_and_uneven_actions_are_doubted():
    log = shop(profit=holes(lambda action, k: (action == "b") & (k % 5 > 0)))
    with pytest.warns(HieropoWarning) as caught:
        HierOPO(logging="random").fit(log, **COLUMNS, lenient=True)
    told = str(caught[0].message)
    assert "If a row without a reward is a decision without an outcome, its reward is 0" in told
    assert "Of action 'b' " in told
    assert "Of action 'a' 0 rows were set aside, where" in told


@pytest.mark.slow
def test_even_faults_raise_no_doubt_of_actions():
    rng = np.random.default_rng(3)
    for _ in range(20):
        drawn = rng.random(300) < 0.2
        log = shop(p=lambda values, _, drawn=drawn: np.where(drawn, 0.0, values))
        with pytest.warns(HieropoWarning) as caught:
            found = HierOPO(logging="random", uncertainty="plug-in").fit(log, **COLUMNS, lenient=True)
        assert "Of action" not in str(caught[0].message)
        assert not found.rejected_.uneven


def test_actions_and_tasks_of_bad_rows_alone_are_not_learned_and_lost_tasks_are_named():
    log = shop(
        offer=lambda values, _: np.where(np.arange(values.size) == 7, "odd", values).astype(object),
        store=lambda values, _: np.where(np.arange(values.size) == 7, 99.0, values),
        p=lambda values, _: np.where(np.arange(values.size) == 7, 2.0, values),
    )
    with pytest.warns(HieropoWarning, match=r"No row is left of 1 task \(99.0\)"):
        learner = HierOPO(logging="random").fit(log, **COLUMNS, lenient=True)
    assert learner.features_.actions == ("a", "b", "c")
    assert learner.rejected_.lost_tasks == (99.0,)


@pytest.mark.slow
def test_unknown_actions_are_set_aside_only_where_that_was_asked_for():
    learner = HierOPO(logging="random").fit(shop(), **COLUMNS)
    later = shop(
        offer=lambda values, _: np.where(np.arange(values.size) % 50 == 3, "new", values).astype(object)
    )
    with pytest.raises(InputError, match="'new'"):
        learner.evaluate(later)
    with pytest.warns(
        HieropoWarning, match=r"6 with an unknown action in 'offer' \(first in row 3, counted from 0: \w+\)"
    ):
        found = learner.evaluate(later, lenient=True)
    assert found.rows == 294
    with pytest.warns(HieropoWarning, match="add to more than 1"):  # of four actions, a third each
        assert learner.partial_fit(later, lenient=True).moments_.n_rows == 600  # a new action joins
    assert "new" in learner.features_.actions
    given = HierOPO(logging="random", features=indicator(["a", "b", "c"])).fit(shop(), **COLUMNS)
    with pytest.warns(HieropoWarning, match="6 with an unknown action"):
        assert given.partial_fit(later, lenient=True).moments_.n_rows == 594
    assert given.rejected_.rows == 6


@pytest.mark.slow
def test_lists_that_do_not_fit_the_action_are_set_aside():
    lists = [["a", "b", "c"]] * 300
    lists[10], lists[20] = [], ["zzz"]
    log = shop().append_column("can", pa.array(lists))
    taken = log["offer"].to_pylist()
    lists[30] = [each for each in "abc" if each != taken[30]]
    log = shop().append_column("can", pa.array(lists))
    learner = HierOPO(logging="random").fit(shop(), **COLUMNS)
    with pytest.warns(HieropoWarning, match="3 of 300 rows"):
        found = learner.evaluate(log, eligible="can", lenient=True)
    assert {(each.reason, each.first_row) for each in found.rejected.reasons} == {
        ("an empty list", 10), ("a list with an unknown action", 20), ("a list without the action taken", 20),
        ("a list without the action taken", 20),
    }  # fmt: skip
    assert next(each for each in found.rejected.reasons if "without" in each.reason).rows == 2


def test_everything_wrong_with_a_row_is_listed(tmp_path):
    log = shop(
        profit=holes(lambda _, k: k == 4),
        p=lambda values, _: np.where(np.arange(values.size) == 4, 3.0, values),
    )
    with pytest.warns(HieropoWarning, match="1 of 300 rows"):
        HierOPO(logging="random").fit(log, **COLUMNS, lenient=True, rejects=tmp_path / "bad.csv")
    with (tmp_path / "bad.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["file", "row", "column", "value", "reason"],
            ["Arrow table", "4", "profit", "nan", "NaN"],
            ["Arrow table", "4", "p", "3", "above 1"],
        ]


def test_errors_in_what_is_left_count_rows_of_the_whole_log(tmp_path):
    region = ["north"] * 9 + ["south"]
    log = pa.table(
        {"store": ["a"] * 10, "region": region, "profit": [None, 1.0, None, *range(7)], "one": [1.0] * 10}
    )
    learner = HierOPO("columns")
    roles = {"task": "store", "reward": "profit", "context": ["one"], "levels": ["region"]}
    with pytest.raises(LogError, match="'region', row 9: 'a' of column 'store' is in 'south' here"):
        learner.fit(log, **roles, lenient=True, rejects=tmp_path / "bad.csv")
    assert not list(tmp_path.iterdir())  # it was not read to its end


def test_a_list_must_have_a_known_format_and_not_lie_in_the_log(tmp_path):
    log = tmp_path / "log.parquet"
    pq.write_table(shop(), log)
    for file, error, said in [
        (tmp_path / "bad.txt", InputError, "must end in .parquet or .pq or .csv"),
        (log, InputError, "would become a part of the log"),
        (tmp_path / "none" / "bad.csv", ArtifactError, "there is no folder"),
        (tmp_path, InputError, "must end in"),
    ]:
        with pytest.raises(error, match=said):
            HierOPO().fit(log, **COLUMNS, rejects=file)
    for many in (tmp_path, tmp_path / "*.parquet"):
        with pytest.raises(InputError, match="would become a part of the log"):
            HierOPO().fit(many, **COLUMNS, rejects=tmp_path / "bad.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["log.parquet"]


def test_features_of_contexts_meet_no_bad_row():
    log = shop().append_column("age", pa.array([None if k % 9 == 0 else float(k % 7) for k in range(300)]))
    with pytest.warns(HieropoWarning, match="34 with a missing value in 'age'"):
        learner = HierOPO(per_action(["a", "b", "c"], ["age"]), logging="random").fit(
            log, **COLUMNS, lenient=True
        )
    assert learner.moments_.n_rows == 266


def test_moments_are_made_of_what_is_left_and_hold_no_rows_themselves(broken, tmp_path):
    table, _ = broken
    with pytest.warns(HieropoWarning, match="were set aside"):
        moments = LogMoments.of(table, **COLUMNS, lenient=True, rejects=tmp_path / "bad.csv")
    assert (moments.n_rows, moments.rejected.rows) == (3760, 240)
    assert HierOPO(logging="random").fit(moments).rejected_ is None
    for taking in ({"lenient": True}, {"rejects": tmp_path / "other.csv"}):
        with pytest.raises(InputError, match="with moments, which hold no rows"):
            HierOPO().fit(moments, **taking)


@pytest.mark.slow
def test_the_command_line_counts_lists_and_says_so(broken, tmp_path):
    table, bad = broken
    pq.write_table(table, tmp_path / "log.parquet")
    words = ["fit", str(tmp_path / "log.parquet"), "-o", str(tmp_path / "p"), "--task", "store", "--action", "offer",
             "--reward", "profit", "--pscore", "p", "--logging", "random"]  # fmt: skip
    bad_csv, bad_pq = str(tmp_path / "bad.csv"), str(tmp_path / "bad.pq")
    code, out, err = command(*words, "--rejects", bad_csv)
    assert (code, out) == (1, "")
    assert "240 of 4,000 rows (6.00%): " in err
    assert "--lenient" in err
    assert pa.csv.read_csv(bad_csv)["row"].to_pylist() == bad.tolist()
    assert not (tmp_path / "p").exists()
    code, out, err = command(*words, "--lenient")
    assert code == 0, err
    assert "Set aside: 240 of 4,000 rows (6.00%): 100 with NaN in 'profit'" in out
    assert err.startswith("Warning: 240 of 4,000 rows")
    found = json.loads(command(*words, "--lenient", "--rejects", bad_pq, "--json")[1])
    assert (found["rejected"]["rows"], found["rejected"]["file"], found["rows"]) == (240, bad_pq, 3760)
    saved = json.loads((tmp_path / "p" / "policy.json").read_text())
    assert saved["provenance"]["rejected"] == found["rejected"]
    assert (
        "3,760; 240 unusable rows of the last log were set aside"
        in command("inspect", str(tmp_path / "p"))[1]
    )
    _, out, _ = command("evaluate", str(tmp_path / "p"), str(tmp_path / "log.parquet"), "--lenient", "--json")
    assert json.loads(out)["rejected"]["rows"] == 240
    summed = command("moments", *words[1:3], str(tmp_path / "m"), *words[4:-2], "--lenient", "--json")[1]
    assert json.loads(summed)["rejected"]["rows"] == 240
    code, _, err = command(*words, "--rejects", str(tmp_path / "log.parquet"))
    assert (code, "would become a part of the log" in err) == (1, True)


def command(*words):
    done = called(*words)
    return done.exit_code, done.stdout, done.stderr


def test_text_and_lists_of_views_as_polars_makes_them_are_set_aside_and_looked_at():
    import polars as pl

    from hieropo import examine

    columns = {
        "store": [f"s{k % 8}" for k in range(80)],
        "offer": ["x", "y"] * 40,
        "can": [["x", "y"]] * 79 + [[]],
        "profit": [None if k == 5 else float(k % 7) for k in range(80)],
    }
    named = {"task": "store", "action": "offer", "reward": "profit", "eligible": "can"}
    with (
        pytest.warns(HieropoWarning, match="Every task with several rows got one and the same action"),
        pytest.warns(HieropoWarning, match="1 with a missing value in 'profit'"),
    ):
        learner = HierOPO(uncertainty="plug-in").fit(pl.DataFrame(columns), **named, lenient=True)
    assert (learner.moments_.n_rows, learner.rejected_.rows) == (78, 2)
    kinds = {finding.kind for finding in examine(pl.DataFrame(columns), **named).findings}
    assert "unusable value" in kinds
