"""Vowpal Wabbit's files are read as Vowpal Wabbit reads them, and it reads what is written for it."""

import csv
import gzip
import io
import json
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from hieropo import HierOPO
from hieropo.errors import HieropoWarning, InputError, LogError, SchemaError
from hieropo.logs.arrow.log_source import LogSource
from hieropo.logs.interop.vw.log import from_vw
from hieropo.logs.interop.vw.writing import to_vw
from hieropo.logs.opening import open_log

pyvw = pytest.importorskip("vowpalwabbit.pyvw", reason="Vowpal Wabbit is not installed here")

DATA = Path(__file__).parents[2] / "data"
CONSTANT = 128  # the namespace that Vowpal Wabbit adds to every example
COLUMNS = {"action", "reward", "pscore", "eligible", "id", "time", "sampling_weight"}


def opened(path, form, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HieropoWarning)  # examples without a label, in most files
        return from_vw(path, form, **options)


def rows(source):
    return [row for batch in source.batches(source.schema.names) for row in batch.to_pylist()]


def examples(path, form):
    """What Vowpal Wabbit makes of each example that has a label: action from 1, cost, probability, sum of features."""
    text = path.read_text()
    workspace = pyvw.Workspace(
        f"--quiet {'--cb 9' if form == 'cb' else '--cb_adf'} {'--dsjson' * (form == 'dsjson')}"
    )
    found = []
    for part in text.split("\n\n") if form == "cb_adf" else text.splitlines():
        if not part.strip():
            continue
        lines = [line for line in part.splitlines() if line.strip()]
        parsed = workspace.parse(lines if form == "cb_adf" else part)
        parsed = parsed if isinstance(parsed, list) else [parsed]
        labels = [pyvw.CBLabel.from_example(each).costs for each in parsed]
        shared = [k for k, costs in enumerate(labels) if costs and costs[0].probability == -1.0]
        taken = [(k, cost) for k, costs in enumerate(labels) for cost in costs if cost.probability > 0]
        if taken:
            ((k, cost),) = taken
            action = cost.action if form == "cb" else k + 1 - len(shared)
            total = sum(sum_of_features(parsed[j]) for j in {*shared, k})
            found.append((action, cost.cost, cost.probability, total))
        workspace.finish_example(parsed if len(parsed) > 1 else parsed[0])
    workspace.finish()
    return found


def sum_of_features(example):
    spaces = [example.get_ns(k) for k in range(example.num_namespaces())]
    return sum(
        example.feature_weight(space, k)
        for space in spaces
        if space.ord_ns != CONSTANT
        for k in range(example.num_features_in(space))
    )


def summed(row):
    """Numbers, and 1 for each text: a text is a feature of value 1."""
    return sum(
        1 if isinstance(value, str) else value
        for name, value in row.items()
        if name not in COLUMNS and value is not None
    )


FILES = [
    ("cb.vw", "cb"), ("cb_explore.vw", "cb"), ("cb_adf.vw", "cb_adf"), ("cb_adf_values.vw", "cb_adf"),
    ("cb_adf_zeros.vw", "cb_adf"), ("cb_adf_news.vw", "cb_adf"), ("coffee.dsjson", "dsjson"),
    ("zeros.dsjson", "dsjson"), ("default_namespace.dsjson", "dsjson"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "form"), FILES)
def test_files_that_it_ships_are_read_as_it_reads_them(name, form):
    source = opened(DATA / name, form)
    mine = [(row["action"], -row["reward"], row["pscore"], summed(row)) for row in rows(source)]
    np.testing.assert_allclose(mine, examples(DATA / name, form), rtol=1e-6)
    assert source.n_rows == len(mine) > 0
    assert isinstance(source, LogSource)
    assert open_log(source) is source


def test_a_policy_is_learned_from_its_news():
    """Users are the tasks, articles the actions; times of the day, spread over columns, the context."""
    log = opened(DATA / "cb_adf_news.vw", "cb_adf", action="Action.article", one_hot=["User.time_of_day"])
    assert log.schema.names == [
        "action", "reward", "pscore", "eligible", "User.user", "Action.article", "User.time_of_day=morning",
    ]  # fmt: skip
    learner = HierOPO(task_cov="crossed").fit(
        log, task="User.user", action="action", reward="reward", pscore="pscore", eligible="eligible"
    )
    assert set(learner.features_.actions) == {
        "politics", "sports", "music", "food", "finance", "health", "camping",
    }  # fmt: skip
    assert learner.policy_.choose("Anna").action in learner.features_.actions


def test_coffee_has_tags_times_ids_and_nested_features():
    log = opened(DATA / "coffee.dsjson", "dsjson", action="tag")
    first = rows(log)[0]
    stored = json.loads((DATA / "coffee.dsjson").read_text().splitlines()[0])
    assert first["action"] == "Latte"
    assert first["eligible"] == ["Cappucino", "Cold brew", "Iced mocha", "Latte"]
    assert first["id"] == stored["EventId"]
    assert first["time"].isoformat() == "2021-02-04T16:31:29.246000+00:00"
    assert (first["FromUrl.name"], first["j.roast"], first["i.constant"]) == ("Cathy", "dark", 1)
    assert {type(row["reward"]) for row in rows(log)} == {float}
    assert "-0.0" not in str(first["reward"])
    only = opened(DATA / "coffee.dsjson", "dsjson", action="tag", columns=["FromUrl.name"])
    assert only.schema.names == ["action", "reward", "pscore", "eligible", "id", "time", "FromUrl.name"]


def test_what_is_left_out_is_counted_and_said():
    with pytest.warns(
        HieropoWarning, match=r"10 examples can be learned from, 5 without a label are left out"
    ):
        log = from_vw(DATA / "cb_adf.vw", "cb_adf")
    assert log.left_out == {"without a label": 5}
    assert len(rows(log)) == log.n_rows == 10


def test_actions_listed_in_a_label_are_those_that_could_be_taken():
    assert {tuple(row["eligible"]) for row in rows(opened(DATA / "cb.vw", "cb"))} == {(1, 2, 3, 4)}
    assert "eligible" not in opened(DATA / "cb_explore.vw", "cb").schema.names


def log_table(n=400, seed=0):
    rng = np.random.default_rng(seed)
    store, offer = rng.integers(0, 4, n), rng.integers(0, 3, n)
    best = store % 3
    return pa.table(
        {
            "store": np.array(["a b", "c|d", "e:f", "g=h'"])[store],
            "offer": np.array(["10% off", "none", "gift: tea"])[offer],
            "age": rng.normal(size=n).round(3) * 1e-3,
            "profit": 2.0 * (offer == best) + rng.normal(0, 0.1, n),
            "p": rng.uniform(0.1, 0.9, n),
            "offers": [sorted({"none", name}) if name != "none" else ["none", "10% off"]
                       for name in np.array(["10% off", "none", "gift: tea"])[offer]],
        }
    )  # fmt: skip


ROLES = {"task": "store", "action": "offer", "reward": "profit", "pscore": "p", "context": ["age"]}


@pytest.mark.parametrize("eligible", [None, "offers"])
@pytest.mark.parametrize("form", ["cb", "cb_adf", "dsjson"])
def test_it_reads_what_is_written_for_it(form, eligible, tmp_path):
    table = log_table(60)
    written = to_vw(table, tmp_path / "log.vw", form, **ROLES, eligible=eligible)
    assert written.rows == 60
    assert written.actions == ("10% off", "gift: tea", "none")
    found = examples(tmp_path / "log.vw", form)
    lists = table["offers"].to_pylist() if eligible else [list(written.actions)] * 60
    for row, listed, (action, cost, p, total) in zip(table.to_pylist(), lists, found, strict=True):
        order = written.actions if form == "cb" else listed
        assert order[action - 1] == row["offer"]
        np.testing.assert_allclose([cost, p], [-row["profit"], row["p"]], rtol=1e-6)
        np.testing.assert_allclose(total, (1 if form == "cb" else 2) + row["age"], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["cb", "cb_adf", "dsjson"])
def test_the_policy_learned_from_what_was_written_is_that_of_the_log(form, tmp_path):
    table = log_table()
    written = to_vw(table, tmp_path / "log.vw", form, **ROLES)
    back = from_vw(
        tmp_path / "log.vw", form, action=None if form == "cb" else "Action.offer", quoted=form != "dsjson"
    )
    learner = HierOPO().fit(table, **ROLES)
    columns = {"task": "Task.store", "action": "action", "reward": "reward", "pscore": "pscore"}
    again = HierOPO().fit(back, **columns, context=["Context.age"])
    named = dict(enumerate(written.actions, 1)) if form == "cb" else {each: each for each in written.actions}
    for store in table["store"].unique().to_pylist():
        np.testing.assert_allclose(
            again.posterior_.task(store).mean, learner.posterior_.task(store).mean, rtol=1e-9, atol=1e-12
        )
        assert named[again.policy_.choose(store, [0.0]).action] == learner.policy_.choose(store, [0.0]).action


@pytest.mark.slow
@pytest.mark.parametrize("form", ["cb_adf", "dsjson"])
def test_it_learns_the_same_choices_from_what_was_written(form, tmp_path):
    table = log_table(2000)
    written = to_vw(table, tmp_path / "log.vw", form, **ROLES)
    learner = HierOPO().fit(table, **ROLES)
    json_too = "--dsjson" * (form == "dsjson")
    workspace = pyvw.Workspace(f"--quiet --cb_adf --cb_type ips -q TA --ignore_linear A {json_too}")
    text = (tmp_path / "log.vw").read_text()
    parts = [part.splitlines() for part in text.split("\n\n")] if form == "cb_adf" else text.splitlines()
    last = {}
    for part, store in zip(parts, table["store"].to_pylist(), strict=False):
        workspace.learn(part)
        last[store] = part
    for store, part in last.items():
        scores = workspace.predict(part)
        assert written.actions[int(np.argmin(scores))] == learner.policy_.choose(store, [0.0]).action
    workspace.finish()


def lines(tmp_path, text, form, **options):
    path = tmp_path / "log.vw"
    path.write_text(text)
    return opened(path, form, **options)


@pytest.mark.parametrize(
    ("text", "features"),
    [
        ("1:0:0.5 | a b:2", {"a": 1, "b": 2}),
        ("1:0:0.5 |n a b:2 |m a:-1e-3", {"n.a": 1, "n.b": 2, "m.a": -1e-3}),
        ("1:0:0.5 |n:2 a b:3", {"n.a": 2.0, "n.b": 6.0}),
        ("1:0:0.5 |n :1 :2", {"n[0]": 1, "n[1]": 2}),
        ("1:0:0.5 | a a", {"a": 2}),
        ("1:0:0.5 | user=Tom hour=3:2", {"user": "Tom", "hour=3": 2}),
        ("1:0:0.5 | reward:7 id", {".reward": 7, ".id": 1}),
        ("1:0:0.5\t'tag\t|n\ta", {"n.a": 1, "id": "tag"}),
        ("1:0:0.5 tag|n a", {"n.a": 1, "id": "tag"}),
        ("1:0:0.5 |", {}),
    ],
)
def test_features_of_a_line(text, features, tmp_path):
    (row,) = rows(lines(tmp_path, text, "cb"))
    assert {
        name: value for name, value in row.items() if name not in ("action", "reward", "pscore")
    } == features


def test_features_of_json(tmp_path):
    context = {
        "n": {"a": 1, "b": True, "c": False, "d": None, "e": {"f": 2.5}}, "v": [1, 2.5], "o": [{"x": 1}, {"y": "z"}],
        "k": 7, "_hidden": 1, "_multi": [{"k": 1}, {"k": 2}],
    }  # fmt: skip
    decision = {"_label_cost": -1, "_label_probability": 0.5, "_labelIndex": 1, "c": context, "pdrop": 0.75}
    (row,) = rows(lines(tmp_path, json.dumps(decision), "dsjson"))
    assert row == {
        "action": 2, "reward": 1.0, "pscore": 0.5, "eligible": [1, 2], "sampling_weight": 4.0, "n.a": 1,
        "n.b": 1, "n.c": 0,
        "n.e.f": 2.5, "v[0]": 1, "v[1]": 2.5, "o.x": 1, "o.y": "z", "k": 7, "action.k": 2,
    }  # fmt: skip


@pytest.mark.parametrize("form", ["cb_adf", "dsjson"])
def test_whole_numbers_of_64_bits_name_actions_as_they_are(form, tmp_path):
    ids = [2**60, 2**60 + 1]  # one float64
    text = "\n".join(f"{'1:0:0.5 ' * (k == 1)}|a id:{each}" for k, each in enumerate(ids))
    if form == "dsjson":
        text = decision(_labelIndex=1, c={"_multi": [{"a": {"id": each}} for each in ids]})
    source = lines(tmp_path, text, form, action="a.id")
    (row,) = rows(source)
    assert (row["action"], row["eligible"]) == (ids[1], ids)
    assert source.schema.field("a.id").type == pa.float64()  # as a quantity it is a number like others


def decision(**more):
    base = {
        "_label_cost": 0,
        "_label_probability": 0.5,
        "_labelIndex": 0,
        "c": {"_multi": [{"a": 1}, {"a": 2}]},
    }
    return json.dumps(base | more)


def test_lines_of_dsjson_that_are_no_decisions_are_counted(tmp_path):
    text = "\n".join(
        [
            decision(),
            decision(_skipLearn=True),
            decision(_label_cost=None),
            '{"EventId": "x", "RewardValue": 1}',
            "",
        ]
    )
    log = lines(tmp_path, text, "dsjson")
    assert log.n_rows == 1
    assert log.left_out == {
        "marked _skipLearn": 1, "without a label": 1, "rewards without their decision": 1,
    }  # fmt: skip


BAD = [
    ("cb", "1:x:0.5 | a", LogError, "line 1: the cost 'x' is not a finite number"),
    ("cb", "| a\n1:0:nan | a", LogError, "line 2: the probability 'nan'"),
    ("cb", "1:0:0.5:9 | a", LogError, "line 1: the label '1:0:0.5:9' is not action:cost:probability"),
    ("cb", "1:0:0.5 | a:b", LogError, "line 1: the value of 'a', 'b' is not a finite number"),
    ("cb", "1:0 | a", LogError, "line 1: a cost without a probability above 0"),
    ("cb", "1:0:0 | a", LogError, "line 1: a cost without a probability above 0"),
    ("cb", "1:0:0.5 2:1:0.5 | a", LogError, "line 1: 2 actions have a cost"),
    ("cb", "1:0:0.5| a", LogError, "touches the bar"),
    ("cb", "shared | a", LogError, "form='cb_adf'"),
    ("cb", "| a\n| b", LogError, "no example with a label, 2 without a label are left out"),
    ("cb", "", LogError, "no example with a label"),
    ("cb", "1:0:0.5 | k=a\n1:0:0.5 | k:2", SchemaError, "'k' is a text in line 1 and a number in line 2"),
    ("cb", "1:0:0.5 | k=a k=b", LogError, "line 1: 'k' is 'a' and 'b'"),
    (
        "cb",
        "1:0:0.5 |a b.c\n1:0:0.5 |a.b c",
        LogError,
        "line 2: two features would both become the column 'a.b.c'",
    ),
    ("cb", "1:0:0.5 | a\nx:0:0.5 | a", SchemaError, "ids of actions are of different types"),
    ("cb", "1:0:0.5 |" + "".join(f" f{k}" for k in range(1001)), InputError, "has 1,001 features"),
    ("cb_adf", "| a\nshared | b\n0:1:0.5 | c", LogError, "line 2: a shared line inside an example"),
    ("cb_adf", "0:1:0.5 | a\n0:1:0.5 | b", LogError, "line 2: a second action of one example has a cost"),
    ("dsjson", decision()[:40], LogError, "line 1: not JSON .*torn"),
    ("dsjson", "[1]", LogError, "line 1: a JSON list"),
    ("dsjson", decision(_labelIndex=2), LogError, "line 1: the action 3 is not between 1 and 2"),
    ("dsjson", decision(_label_Action=2), LogError, "name different actions. Correct one"),
    ("dsjson", decision(c={"_text": "a b"}), LogError, "free text"),
    ("dsjson", decision(c={"a": ["x"]}), LogError, "the list 'a' contains 'x'"),
    ("dsjson", decision(pdrop=1), LogError, "pdrop 1 is no probability"),
    ("dsjson", '{"_label_cost": 1, "_multi": []}', LogError, "json rather than its dsjson"),
    ("dsjson", decision(_label_ca=[]), LogError, "continuous actions"),
    ("dsjson", decision(Timestamp="yesterday"), LogError, "Timestamp that is no time"),
]


@pytest.mark.parametrize(("form", "text", "kind", "message"), BAD, ids=[message[:30] for *_, message in BAD])
def test_what_is_not_of_its_form_is_refused_by_line_and_cause(form, text, kind, message, tmp_path):
    with pytest.raises(kind, match=message):
        rows(lines(tmp_path, text, form))


# Examples that cannot be read, of which the others can: column, reason and value, as they are counted.
UNREADABLE = [
    ("cb", "1:x:0.5 | a", "cost", "not a number", "x"),
    ("cb", "1:0:0.5 | a:b", "a", "not a number", "b"),
    ("cb", "1:0:0.5 |n:w a", "n", "not a number", "w"),
    ("cb", "1:0:0.5:9 | a", "label", "no action:cost:probability", "1:0:0.5:9"),
    ("cb", "1:0:0 | a", "label", "a cost without a probability above 0", None),
    ("cb", "1:0:0.5 2:1:0.5 | a", "label", "a second cost", None),
    ("cb", "1:0:0.5| a", "label", "no space before the bar", "1:0:0.5"),
    ("cb", "1:0:0.5 | k=a k=b", "k", "two texts", "b"),
    ("cb", "1:0:0.5 | k=a k:2", "k", "a number and a text", None),
    ("cb_adf", "| a\nshared | b\n0:1:0.5 | c", None, "a shared line inside", None),
    ("cb_adf", "0:1:0.5 | a\n0:1:0.5 | b", "label", "a second cost", "0:1:0.5"),
    ("dsjson", decision()[:40], None, "no JSON", decision()[:40]),
    ("dsjson", "[1]", None, "no JSON object", "[1]"),
    ("dsjson", decision(_label_probability="oops"), "_label_probability", "not a number", "oops"),
    ("dsjson", decision(_label_probability=None), "_label_probability", "missing", None),
    ("dsjson", decision(_label_probability=float("nan")), "_label_probability", "not a number", "nan"),
    ("dsjson", decision(_label_cost="x"), "_label_cost", "not a number", "x"),
    ("dsjson", decision(_labelIndex=2), "_labelIndex", "an action that is not there", "3"),
    ("dsjson", decision(_labelIndex="0"), "_labelIndex", "an action that is not there", "0"),
    ("dsjson", decision(_labelIndex=None), "_labelIndex", "an action that is not there", None),
    ("dsjson", decision(_label_Action=2), "_label_Action", "another action than _labelIndex", "2"),
    ("dsjson", decision(c=[1]), "c", "no JSON object", "[1]"),
    ("dsjson", decision(c={"_multi": 3}), "_multi", "no list", "3"),
    ("dsjson", decision(c={"_text": "a b"}), "_text", "free text", "a b"),
    ("dsjson", decision(c={"a": ["x"]}), "a", "a list of other than numbers or objects", "x"),
    ("dsjson", decision(pdrop=1), "pdrop", "no probability below 1", "1"),
    ("dsjson", '{"_label_cost": 1, "_multi": []}', "c", "missing", None),
    ("dsjson", decision(_label_ca=[]), "_label_ca", "continuous actions", None),
    ("dsjson", decision(_outcomes=[]), "_outcomes", "decisions of several slots", None),
    ("dsjson", decision(Timestamp="yesterday"), "Timestamp", "no time with a zone", "yesterday"),
    ("dsjson", decision(Timestamp=7), "Timestamp", "no time with a zone", "7"),
]  # fmt: skip


@pytest.mark.parametrize(("form", "bad", "column", "reason", "value"), UNREADABLE)
def test_an_example_that_cannot_be_read_is_set_aside_counted_and_listed(
    form, bad, column, reason, value, tmp_path
):
    good = {"cb": "2:1:0.5 | b", "cb_adf": "0:1:0.5 | b\n| c\n", "dsjson": decision()}[form]
    plain, mixed, listed = (tmp_path / name for name in ("plain.vw", "mixed.vw", "listed.csv"))
    plain.write_text(f"{good}\n" * 4)
    mixed.write_text(f"{good}\n" * 2 + f"{bad}\n\n" + f"{good}\n" * 2)
    with pytest.raises(LogError, match=r"mixed\.vw, line \d: "):
        from_vw(mixed, form)
    with pytest.raises(
        LogError, match=r"1 of 5 rows \(20\.00%\).*cannot be used\. Each is listed in .*lenient=True"
    ):
        from_vw(mixed, form, rejects=listed)
    first = listed.read_text()
    with pytest.warns(
        HieropoWarning, match=r"1 of 5 rows \(20\.00%\): 1 .*\(first in line \d.*were set aside\. Each"
    ):
        source = from_vw(mixed, form, lenient=True, rejects=listed)
    assert rows(source) == rows(from_vw(plain, form))
    assert (source.rejected.rows, source.n_rows) == (1, 4)
    assert listed.read_text() == first
    (row,) = csv.DictReader(io.StringIO(first))
    line = int(row.pop("line"))
    assert 2 * good.count("\n") + 3 <= line <= 2 * good.count("\n") + 3 + bad.count("\n")
    assert row == {"file": str(mixed), "column": column or "", "value": value or "", "reason": reason}
    assert source.rejected.to_dict()["reasons"] == [
        {"column": column or "", "reason": reason, "rows": 1, "first_line": line, "value": value}
    ]


def test_reasons_are_counted_and_more_than_half_are_refused(tmp_path):
    path = tmp_path / "log.dsjson"
    bad = [decision(_label_probability="oops"), decision(_label_probability="0,5"), decision()[:9]]
    path.write_text("\n".join([*bad, *[decision()] * 4]))
    with pytest.warns(HieropoWarning) as told:
        log = from_vw(path, "dsjson", lenient=True)
    text = str(told[0].message)
    assert (
        "2 not a number in '_label_probability' (first in line 1: oops), 1 with no JSON (first in line 3"
        in text
    )
    assert log.rejected.share == 3 / 7
    path.write_text("\n".join([*bad, *[decision()] * 2]))
    with pytest.raises(LogError, match=r"do not stand for the log.*right form"):
        from_vw(path, "dsjson", lenient=True)


def test_actions_without_a_name_of_their_own_are_set_aside_too(tmp_path):
    same = {"_multi": [{"a": {"id": "x"}}, {"a": {"id": "x"}}]}
    none = {"_multi": [{"a": {"id": "x"}}, {"b": 1}]}
    fine = {"_multi": [{"a": {"id": "x"}}, {"a": {"id": "y"}}]}
    path = tmp_path / "log.dsjson"
    path.write_text("\n".join(decision(c=each) for each in (fine, same, none, fine)))
    with pytest.warns(
        HieropoWarning, match="1 with two actions of one name in 'a.id'.*1 with a missing value in 'a.id'"
    ):
        log = from_vw(path, "dsjson", action="a.id", lenient=True)
    assert [row["action"] for row in rows(log)] == ["x", "x"]


def test_where_nothing_is_wrong_a_lenient_reading_says_so(tmp_path):
    log = from_vw(DATA / "coffee.dsjson", "dsjson", lenient=True, rejects=tmp_path / "none.csv")
    assert (log.rejected.rows, rows(log)) == (0, rows(from_vw(DATA / "coffee.dsjson", "dsjson")))
    assert (tmp_path / "none.csv").read_text().splitlines() == ['"file","line","column","value","reason"']
    assert from_vw(DATA / "coffee.dsjson", "dsjson").rejected is None


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"rejects": "bad.txt"}, InputError, "must end in .parquet"),
        ({"rejects": DATA / "coffee.dsjson"}, InputError, "would become a part of the log"),
        ({"form": "json"}, InputError, "form='json' is none of 'cb', 'cb_adf', 'dsjson'"),
        (
            {"action": "j.size"},
            SchemaError,
            "line 1: action 1 has no 'j.size', which names actions; it has 'tag'.*Choose another",
        ),
        ({"action": "j.type"}, LogError, "two actions of the example have the same 'j.type'"),
        ({"columns": ["FromUrl.nam"]}, SchemaError, "has no feature 'FromUrl.nam'"),
        ({"one_hot": ["i.constant"]}, SchemaError, "no column of text 'i.constant'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(options, kind, message):
    with pytest.raises(kind, match=message):
        from_vw(DATA / "coffee.dsjson", **{"form": "dsjson"} | options)


def test_files_are_missing_torn_changed_or_compressed(tmp_path):
    with pytest.raises(InputError, match=r"none.vw cannot be opened: No such file"):
        from_vw(tmp_path / "none.vw", "cb")
    with pytest.raises(InputError, match="is a folder; name one file of it"):
        from_vw(tmp_path, "cb")
    with pytest.raises(InputError, match="The path None is no path"):
        from_vw(None, "cb")
    packed = tmp_path / "log.dsjson.gz"
    packed.write_bytes(gzip.compress((DATA / "coffee.dsjson").read_bytes()))
    assert rows(from_vw(packed, "dsjson")) == rows(from_vw(DATA / "coffee.dsjson", "dsjson"))
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(LogError, match=r"log.dsjson.gz cannot be read: .*cut off"):
        from_vw(packed, "dsjson")
    path = tmp_path / "log.vw"
    path.write_bytes(b"1:0:0.5 | \xff")
    with pytest.raises(LogError, match="UTF-8"):
        from_vw(path, "cb")
    path.write_text("1:0:0.5 | a\n")
    log = from_vw(path, "cb")
    path.write_text("1:0:0.5 | a\n1:0:0.5 | b\n")
    with pytest.raises(LogError, match="changed since it was opened"):
        rows(log)


def test_one_hot_keeps_what_is_absent_apart_from_every_category(tmp_path):
    cities = ["berlin", "oslo", None, "None"] * 20
    true = {"berlin": 1.0, "oslo": 5.0, None: 3.0, "None": 2.0}
    text = "".join(f"1:{-true[each]}:0.5 |u s={k % 2} {f'city={each}' * (each is not None)}\n"
                   for k, each in enumerate(cities))  # fmt: skip
    source = lines(tmp_path, text, "cb", one_hot=["u.city"])
    assert source.schema.names == [
        "action",
        "reward",
        "pscore",
        "u.s",
        "u.city=berlin",
        "u.city=oslo",
        "u.city:absent",
    ]
    found = rows(source)
    shown = [[row[f"u.city{end}"] for end in ("=berlin", "=oslo", ":absent")] for row in found[:4]]
    assert shown == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]]  # the first text in order is where all are 0
    design = np.array([[1, *(row[name] for name in source.schema.names[4:])] for row in found])
    fitted = np.linalg.lstsq(design, [row["reward"] for row in found])[0]
    np.testing.assert_allclose(fitted, [2.0, -1.0, 3.0, 1.0], atol=1e-12)


def test_one_hot_has_no_column_for_what_is_never_absent(tmp_path):
    context = [{"u": {"city": city}, "_multi": [{"kind": kind}]} for city, kind in (("b", "x"), ("a", "y"))]
    text = "\n".join(decision(c=each) for each in context)
    names = lines(tmp_path, text, "dsjson", one_hot=["u.city", "kind"]).schema.names
    assert names == ["action", "reward", "pscore", "eligible", "u.city=b", "kind=y"]
    text = "\n".join(
        decision(c=each) for each in (*context, {"u": {"city": None}, "_multi": [{"kind": "x"}]})
    )
    names = lines(tmp_path, text, "dsjson", one_hot=["u.city", "kind"]).schema.names
    assert names == ["action", "reward", "pscore", "eligible", "u.city=b", "u.city:absent", "kind=y"]


def test_one_hot_refuses_a_column_that_is_there_already(tmp_path):
    text = "1:0:0.5 | city=oslo\n1:0:0.5 | city=rome city=rome:2\n"
    with pytest.raises(SchemaError, match="two columns 'city=rome'"):
        lines(tmp_path, text, "cb", one_hot=["city"])


@pytest.mark.parametrize("form", ["cb", "cb_adf", "dsjson"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_byte_order_mark_is_no_part_of_a_file(form, suffix, tmp_path):
    text = {
        "cb": "blue:0:0.5 | a\nred:1:0.5 | b\n",
        "cb_adf": "shared | s\n1:0:0.5 | a\n | b\n\n",
        "dsjson": f"{decision()}\n",
    }[form]
    plain, marked, joined = (tmp_path / f"{name}.vw{suffix}" for name in ("plain", "marked", "joined"))
    mark = "\ufeff"
    for path, content in ((plain, text), (marked, mark + text), (joined, (mark + text) * 2)):
        path.write_bytes(gzip.compress(content.encode()) if suffix else content.encode())
    expected = rows(opened(plain, form))
    assert rows(opened(marked, form)) == expected
    assert rows(opened(joined, form)) == expected * 2  # as by cat


def test_batches_have_the_rows_asked_for(tmp_path):
    text = "".join(f"1:{k}:0.5 | a:{k}\n" for k in range(10))
    log = lines(tmp_path, text, "cb")
    assert [batch.num_rows for batch in log.batches(["a"], 4)] == [4, 4, 2]
    assert [batch["a"].to_pylist() for batch in log.batches(["a"], 8)] == [list(range(8)), [8, 9]]


def test_what_cannot_be_written_is_refused_and_leaves_nothing(tmp_path):
    table = log_table(20)
    alone = table.set_column(5, "offers", pa.array([[offer] for offer in table["offer"].to_pylist()]))
    with pytest.raises(
        LogError, match="Row 0: only one action was eligible, which the form cb cannot express"
    ):
        to_vw(alone, tmp_path / "x.vw", "cb", **ROLES, eligible="offers")
    other = table.set_column(5, "offers", pa.array([["none"]] * 20))
    with pytest.raises(LogError, match="row 0: the action taken, '10% off', is not in its list"):
        to_vw(other, tmp_path / "x.vw", "cb_adf", **ROLES, eligible="offers")
    with pytest.raises(SchemaError, match="'_store' cannot be written as dsjson"):
        to_vw(table.rename_columns(["_store", *table.column_names[1:]]), tmp_path / "x.vw", "dsjson",
              **ROLES | {"task": "_store"})  # fmt: skip
    with pytest.raises(InputError, match="form='json' is none of"):
        to_vw(table, tmp_path / "x.vw", "json", **ROLES)
    assert not list(tmp_path.iterdir())
