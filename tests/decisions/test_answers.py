"""Decisions join back to their requests, and a request that cannot be used does not stop the others."""

import io
import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from command_line import answers, called
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hieropo import (
    GatedPolicy,
    HierOPO,
    HieropoError,
    HieropoWarning,
    InputError,
    LCBPolicy,
    SchemaError,
    load_learner,
)
from hieropo.decisions import Decisions, decide
from hieropo.decisions.decisions import Counts

ROLES = {"task": "store", "action": "offer", "reward": "profit", "context": ["price"]}
KNOWN = ("north", "south")


def logged(n: int = 400) -> pa.Table:
    rng = np.random.default_rng(0)
    store, offer, price = rng.integers(0, 6, n), rng.integers(0, 3, n), rng.normal(size=n)
    profit = (store % 3 == offer) + 0.2 * price * offer + 0.5 * rng.normal(size=n)
    return pa.table(
        {
            "store": store, "region": np.array(KNOWN)[store % 2], "offer": np.array(["a", "b", "c"])[offer],
            "price": price, "profit": profit, "can": [["a", "b", "c"]] * n,
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def learner() -> HierOPO:
    return HierOPO(task_cov="diag", uncertainty="plug-in").fit(
        logged(), **ROLES, levels=["region"], eligible="can"
    )


REQUESTS = pa.table(
    {
        "visit": ["v0", "v1", "v2", "v3"],
        "store": [1, 2, 99, 98],
        "price": [0.5, None, 0.1, 0.2],
        "region": [None, "north", "south", "elsewhere"],
        "can": [["a", "b", "c"], ["a"], ["b"], ["a", "c"]],
        "action": [7, 8, 9, 10],
    }
)


def test_decisions_join_back(learner: HierOPO) -> None:
    with pytest.warns(
        HieropoWarning, match=r"1 of 4 requests \(25.00%\) have no action: 1 with a missing value in 'p"
    ):
        decisions = learner.decide(REQUESTS)
    table = decisions.table
    assert table.column_names == [
        "row", "visit", "store", "price", "region", "can", "request_action", "action", "rank", "propensity",
        "lower_bound", "mean", "sd", "runner_up", "task_known", "region_known", "kept_incumbent", "reason",
    ]  # fmt: skip
    assert table.select(["visit", "store", "price", "region", "can"]).equals(
        REQUESTS.select(["visit", "store", "price", "region", "can"])
    )
    assert table["request_action"].to_pylist() == [7, 8, 9, 10]
    assert table["reason"].to_pylist() == [None, "price: missing", None, None]
    assert table["propensity"].to_pylist() == [1.0, None, 1.0, 1.0]
    assert table["task_known"].to_pylist() == [True, None, False, False]
    assert table["region_known"].to_pylist() == [True, None, True, False]
    assert (table["action"][2].as_py(), table["runner_up"][2].as_py()) == ("b", None)  # its list has one
    assert {table["action"][3].as_py(), table["runner_up"][3].as_py()} == {"a", "c"}
    assert (decisions.requests, decisions.unseen, decisions.undecided, decisions.kept, len(decisions)) == (
        4,
        2,
        1,
        0,
        4,
    )
    (reason,) = decisions.reasons
    assert (reason.column, reason.reason, reason.rows, reason.first_row) == ("price", "missing", 1, 1)


def test_ids_alone_are_carried_along(learner: HierOPO) -> None:
    good = REQUESTS.take([0, 2, 3])
    for id_, names in (("visit", ["visit"]), (["visit", "store"], ["visit", "store"])):
        decisions = learner.decide(good, id=id_, top=2)
        assert decisions.table.column_names[: len(names) + 2] == ["row", *names, "action"]
        assert decisions["visit"].to_pylist() == ["v0", "v0", "v2", "v3", "v3"]
        assert decisions["rank"].to_pylist() == [1, 2, 1, 1, 2]
        assert decisions["propensity"].to_pylist() == [1.0, 0.0, 1.0, 1.0, 0.0]
        assert decisions["runner_up"][0] == decisions["action"][1]
    with pytest.raises(SchemaError, match=r"'visist' \(role id\).*Did you mean 'visit'"):
        learner.decide(good, id="visist")


def test_frames_of_decisions(learner: HierOPO) -> None:
    with pytest.warns(HieropoWarning, match="have no action"):
        decisions = learner.decide(REQUESTS.set_column(1, "store", pa.array([1, 2, 99, None])), id="store")
    pandas, polars = decisions.to_pandas(), decisions.to_polars()
    assert pandas["store"].tolist() == [1, 2, 99, None]  # not 1.0
    assert (
        polars["action"].to_list()
        == decisions["action"].to_pylist()
        == pl.DataFrame(decisions)["action"].to_list()
    )
    assert pandas["action"].isna().tolist() == [False, True, False, True]
    assert isinstance(pandas, pd.DataFrame)
    assert pa.table(decisions).equals(decisions.table)
    assert repr(decisions).startswith(
        "Decisions(<4 rows for 4 requests, 1 of tasks that are not in the log, 2 without"
    )
    html = Decisions(pa.table({"x": ["<script>"]}), Counts(1))._repr_html_()
    assert "&lt;script&gt;" in html
    assert "<script>" not in html


def test_columns_of_requests_may_have_other_names(learner: HierOPO) -> None:
    good = REQUESTS.take([0, 2, 3])
    other = good.rename_columns(["visit", "shop", "cost", "area", "may", "action"])
    named = learner.decide(other, task="shop", context=["cost"], levels=["area"], eligible="may")
    usual = learner.decide(good)
    for column in ("action", "lower_bound", "runner_up", "region_known"):
        assert named[column].equals(usual[column])
    with pytest.raises(SchemaError, match="names 2 columns, and those of the log are"):
        learner.decide(other, task="shop", context=["cost", "visit"])
    with pytest.raises(SchemaError, match=r"'region' \(role level\) is not in"):
        learner.decide(other, task="shop", context=["cost"], levels=["region"], eligible="may")


def test_a_dict_is_one_request(learner: HierOPO) -> None:
    good = REQUESTS.take([0, 2, 3])
    rows = learner.decide(good).table.to_pylist()
    for request, row in zip(good.to_pylist(), rows, strict=True):
        choice = learner.choose(request)
        assert choice._asdict() == {name: row.get(name, choice.index) for name in choice._fields}
    choice = learner.choose({"store": np.int64(1), "price": np.float64(0.5)}, eligible=False)
    assert choice.action == learner.decide(good, eligible=False)["action"][0].as_py()
    for request, error, message in (
        ({"price": 0.5}, SchemaError, "has no 'store'"),
        ({"store": 1, "price": "high", "can": ["a"]}, SchemaError, "cannot be a context"),
        ({"store": 1, "price": None, "can": ["a"]}, InputError, "'price', row 0: null"),
        ({"store": 1, "price": 0.5, "can": []}, InputError, "list is empty|cannot be"),
        ({"store": 99, "price": 0.5, "can": ["a"]}, SchemaError, "lack column 'region'"),
        ([1, 0.5], InputError, "a dict of columns and values is needed"),
    ):
        with pytest.raises(error, match=message):
            learner.choose(request, eligible=None)  # type: ignore[arg-type]


def test_a_gate_is_honoured(learner: HierOPO, tmp_path: Path) -> None:
    policy = learner.policy_
    harm = np.where(np.arange(6) % 2 == 0, 0.01, 0.9)
    requests = pa.table(
        {"store": [0, 1, 99], "price": [0.0] * 3, "region": ["north"] * 3, "can": [["a", "b"]] * 3}
    )
    for incumbent, actions in ((None, [None, None]), ("a", ["a", "a"])):
        gated = GatedPolicy(policy, harm, 0.05, incumbent)
        loaded = load_learner(learner.save(tmp_path / f"{incumbent}", policy=gated))
        decisions = loaded.decide(requests)
        assert decisions["kept_incumbent"].to_pylist() == [False, True, True]
        assert decisions["action"].to_pylist()[1:] == loaded.predict(requests).tolist()[1:] == actions
        assert decisions["region_known"].to_pylist() == [True, True, True]
        assert (decisions.kept, decisions["reason"].null_count) == (2, 3)
        assert loaded.choose(requests.to_pylist()[1]).action == actions[0]
    narrow = requests.set_column(3, "can", pa.array([["b"]] * 3))
    with pytest.warns(HieropoWarning, match="2 with a list without the incumbent's action"):
        decisions = loaded.decide(narrow)
    assert decisions["action"].to_pylist() == ["b", None, None]
    with pytest.raises(InputError, match="incumbent's action 'a' is not eligible"):
        loaded.predict(narrow)


VALUES: dict[str, list[Any]] = {
    "store": [0, 1, 2, 99, 98, None],
    "price": [0.0, 1.5, -2.0, None, float("nan"), float("inf"), 1e308],
    "region": ["north", "south", "west", None],
    "can": [["a", "b", "c"], ["a"], ["c", "b"], ["x"], ["a", "x"], [], [None], None],
}
TYPES = {"store": pa.int64(), "price": pa.float64(), "region": pa.string(), "can": pa.list_(pa.string())}
ROWS = st.lists(st.fixed_dictionaries({name: st.sampled_from(values) for name, values in VALUES.items()}), min_size=1,
                max_size=12)  # fmt: skip


def policy_of(learner: HierOPO, *, gate: bool, known_only: bool) -> Any:
    policy: Any = learner.policy_
    if known_only:
        policy = LCBPolicy(policy.table, policy.features, unseen="error")
    return GatedPolicy(policy, [0.0, 0.9, 0.0, 0.9, 0.0, 0.9], 0.05, "a") if gate else policy


@pytest.mark.slow
@given(ROWS, st.tuples(st.booleans(), st.booleans(), st.booleans()))
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.filterwarnings("ignore::hieropo.HieropoWarning")
def test_a_request_has_an_action_where_it_has_one_alone(
    learner: HierOPO, rows: list[dict[str, Any]], flags: tuple[bool, bool, bool]
) -> None:
    """Each row gets what a strict decision of that row alone gives: the same answer to the bit, or a reason."""
    gate, known_only, with_region = flags
    policy = policy_of(learner, gate=gate, known_only=known_only)
    for row in rows:  # tasks that contradict each other are not about single rows
        if row["store"] in (98, 99) and row["region"] is not None:
            row["region"] = {98: "north", 99: "west"}[row["store"]]
    names = [name for name in TYPES if with_region or name != "region"]
    table = pa.Table.from_pylist(rows, pa.schema([(name, TYPES[name]) for name in names]))
    words = {"task": "store", "eligible": "can"}

    def parts(table: pa.Table, *, strict: bool) -> Decisions:
        new_tasks = learner._new_tasks()
        return Decisions.concatenated(
            list(decide(policy, table, new_tasks=new_tasks, strict=strict, **words))
        )

    decisions = parts(table, strict=False)
    assert decisions["row"].to_pylist() == list(range(len(rows)))
    for k, row in enumerate(decisions.table.to_pylist()):
        try:
            (alone,) = parts(table.slice(k, 1), strict=True).table.to_pylist()
        except HieropoError:
            assert row["action"] is None
            assert row["reason"]
            assert row["lower_bound"] is row["task_known"] is None
        else:
            assert repr(row) == repr({**alone, "row": k})  # NaN equals NaN
    reasons = decisions["reason"].drop_null()
    assert decisions.undecided == len(reasons)
    assert bool(decisions.reasons) == bool(len(reasons))


def test_rows_beyond_a_batch_are_counted_by_their_numbers(learner: HierOPO) -> None:
    n = 70_000
    store, price = np.arange(n) % 6, np.zeros(n)
    price[[3, 65_536, 69_999]] = np.nan
    table = pa.table(
        {"store": store, "price": price, "can": pa.array([["a", "b"]] * n), "region": ["north"] * n}
    )
    with pytest.warns(HieropoWarning, match="3 with NaN in 'price'|3 of 70,000 requests"):
        decisions = learner.decide(table, id=["store"])
    bad = np.flatnonzero(~np.asarray(decisions["reason"].is_null()))
    assert bad.tolist() == [3, 65_536, 69_999]
    assert decisions["store"].to_pylist() == store.tolist()


def test_contradictory_groups_of_a_new_task_stop_only_their_rows(learner: HierOPO) -> None:
    table = pa.table({"store": [99, 1, 99, 97], "price": [0.0] * 4, "can": [["a"]] * 4,
                      "region": ["north", "north", "south", "south"]})  # fmt: skip
    with pytest.warns(HieropoWarning, match="1 with a group or metadata that contradict"):
        decisions = learner.decide(table)
    assert decisions["action"].to_pylist() == ["a", "a", None, "a"]


def test_text_that_is_no_number_and_bytes_that_are_no_text(learner: HierOPO) -> None:
    texts = pa.table(
        {"store": [1, 2, 3], "price": ["0.5", "12 EUR", " 1 "], "can": [["a", "b"]] * 3, "region": ["n"] * 3}
    )
    with pytest.warns(HieropoWarning, match="1 not a number in 'price'"):
        decisions = learner.decide(texts)
    assert decisions["reason"].to_pylist() == [None, "price: not a number", None]
    numbers = texts.set_column(1, "price", pa.array([0.5, 0.0, 1.0]))
    assert decisions["lower_bound"][0] == learner.decide(numbers)["lower_bound"][0]
    torn = pa.Array.from_buffers(
        pa.string(), 3, [None, pa.array(["n", "xx", "s"]).buffers()[1], pa.py_buffer(b"n\xff\xfes")]
    )
    table = numbers.append_column("t", torn)
    with pytest.warns(HieropoWarning) as caught:  # no task is known either
        decisions = learner.decide(table, task="t", levels=["region"], id="store")
    assert any("1 with a value that cannot be read" in str(warning.message) for warning in caught)
    assert [reason is None for reason in decisions["reason"].to_pylist()] == [True, False, True]


def test_candidates_that_cannot_be_used_stop_their_request_alone() -> None:
    rng = np.random.default_rng(0)
    log = pa.table({"city": rng.integers(0, 4, 200), "price": rng.normal(size=200), "stops": rng.normal(size=200),
                    "bought": rng.normal(size=200)})  # fmt: skip
    learner = HierOPO().fit(log, task="city", reward="bought", context=["price", "stops"])
    rows = pa.table(
        {
            "search": ["x", "y", "x", None, "y", "z", "w", "w"], "city": [0, 1, 0, 0, 1, 2, 3, 2],
            "price": [1.0, 2.0, 3.0, 1.0, None, 1.0, 1.0, 1.0], "stops": [0.0, 1.0, 2.0, 0.0, 0.0, 1e308, 0.0, 0.0],
        }
    )  # fmt: skip
    with pytest.warns(HieropoWarning, match="4 of 5 requests"):
        decisions = learner.decide(rows, request="search", id="search")
    found = {row["search"]: row for row in decisions.table.to_pylist()}
    assert {name: row["reason"] for name, row in found.items()} == {
        "x": None, "y": "price: missing", None: "search: missing", "z": "a lower bound that overflows",
        "w": "city: candidates of two tasks in one request",
    }  # fmt: skip
    assert {found["x"]["row"], found["x"]["runner_up"]} == {0, 2}
    assert (found["y"]["row"], found[None]["row"], found["y"]["lower_bound"]) == (1, 3, None)
    good = learner.decide(rows.take([0, 2]), request="search", strict=True).table.to_pylist()[0]
    assert good["lower_bound"] == found["x"]["lower_bound"]
    with pytest.raises(InputError, match="so each row of the requests is a candidate"):
        learner.decide(rows)


@pytest.mark.slow
def test_standard_input_and_output(learner: HierOPO, tmp_path: Path) -> None:
    learner.save(tmp_path / "policy")
    good = REQUESTS.take([0, 2, 3])
    expected = learner.decide(good, id="visit").table
    sink = io.BytesIO()
    pq.write_table(good, sink)
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, good.schema) as writer:
        writer.write_table(good)
    lines = "\n".join(json.dumps(row) for row in good.to_pylist())
    for data in (sink.getvalue(), stream.getvalue(), lines.encode()):
        done = subprocess.run(
            [sys.executable, "-m", "hieropo", "decide", str(tmp_path / "policy"), "-", "-o", "-", "--id", "visit",
             "--format", "arrow"], input=data, capture_output=True, check=True,
        )  # fmt: skip
        table = pa.ipc.open_stream(done.stdout).read_all()
        assert table["lower_bound"].to_pylist() == expected["lower_bound"].to_pylist()
        assert "Standard output holds 3 decisions for 3 requests." in done.stderr.decode()


def test_strict_and_lenient_on_the_command_line(learner: HierOPO, tmp_path: Path) -> None:
    learner.save(tmp_path / "policy")
    rows = "visit,store,price,region\nv0,1,0.5,north\nv1,2,,north\nv2,99,0.1,south\n"
    (tmp_path / "r.csv").write_text(rows)
    words = ("decide", tmp_path / "policy", tmp_path / "r.csv", "-o", tmp_path / "d.csv", "--all-eligible")
    done = called(*words)
    assert done.exit_code == 0, done.output
    assert "holds 2 decisions for 3 requests" in done.stdout
    assert "Requests without an action: 1" in done.stdout
    assert "1 with a missing value in 'price' (first in line 3 of '" in done.stderr
    (tmp_path / "r.csv").write_text(rows.replace("v1,2,,", "v1,2,1.0,"))
    assert "holds 3 decisions" in answers(*words, "--strict", "--levels", "region", "--context", "price")


def test_columns_of_terms_are_carried_along_as_they_are() -> None:
    rng = np.random.default_rng(0)
    n = 300
    device = np.array(["phone", "desk", "tv"])[rng.integers(0, 3, n)]
    log = logged(n).append_column("device", pa.array(device))
    roles = {**ROLES, "context": ["device", "price"]}
    learner = HierOPO(task_cov="diag", uncertainty="plug-in").fit(log, **roles)
    requests = pa.table(
        {"store": [1, 2, 3, 4], "device": ["tv", "watch", None, "desk"], "price": [0.1, 0.2, 0.3, None]}
    )
    with pytest.warns(HieropoWarning, match="2 of 4 requests"):
        decisions = learner.decide(requests)
    assert decisions.table.select(["store", "device", "price"]).equals(requests)
    assert decisions["reason"].to_pylist() == [None, None, "device: missing", "price: missing"]
    choice = learner.choose({"store": 1, "device": "tv", "price": 0.1})
    assert (choice.action, choice.lower_bound) == (
        decisions["action"][0].as_py(),
        decisions["lower_bound"][0].as_py(),
    )
    good = requests.slice(0, 2)
    assert learner.predict(good).tolist() == decisions["action"].to_pylist()[:2]
    renamed = learner.decide(good.rename_columns(["store", "gadget", "cost"]), context=["gadget", "cost"])
    assert renamed["lower_bound"].equals(decisions["lower_bound"].slice(0, 2))


def test_a_value_that_cannot_be_read_has_one_reason() -> None:
    log = {"store": [1, 2] * 40, "offer": ["a", "a", "b", "b"] * 20, "sales": [0.0, 1.0, 2.0, 0.5, 1.5] * 16}
    log["at"] = [f"2026-01-{1 + i % 28:02d}T{i % 24:02d}:00:00" for i in range(80)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        roles = {"task": "store", "action": "offer", "reward": "sales", "context": ["at"]}
        learner = HierOPO(features="cyclic(at, 'day')").fit(pa.table(log), **roles)
        decisions = learner.decide(pa.table({"store": [1, 2], "at": ["2026-01-01T00:00:00", "soon"]}))
    assert decisions.table["reason"].to_pylist() == [None, "at: not a time"]


def test_levels_that_the_log_did_not_have_are_told_for_each_request() -> None:
    log = logged().append_column("device", pa.array(["phone", "web", "tv", "phone"] * 100))
    context = {**ROLES, "context": ["price", "device"]}
    learner = HierOPO(task_cov="diag", uncertainty="plug-in").fit(log, **context, levels=["region"])
    requests = pa.table(
        {
            "store": [1, 2, 3, None], "region": ["north"] * 4, "price": [0.1, 0.2, 0.3, 0.4],
            "device": ["web", "fridge", "phone", "oven"], "device_known": [1, 2, 3, 4],
        }
    )  # fmt: skip
    with pytest.warns(HieropoWarning, match="1 of 4 requests"):
        decisions = learner.decide(requests, top=2)
    table = decisions.table.filter(pc.equal(decisions["rank"], 1))
    assert table["device_known"].to_pylist() == [True, False, True, None]
    assert table["request_device_known"].to_pylist() == [1, 2, 3, 4]
    assert decisions.table["device_known"].to_pylist()[:4] == [True, True, False, False]
    assert decisions.counts.other_levels == {"device": 2}
    renamed = requests.drop_columns(["device_known"]).rename_columns(["store", "region", "price", "gadget"])
    decided = learner.decide(renamed.slice(0, 3), context=["price", "gadget"])
    assert decided["device_known"].to_pylist() == [True, False, True]


def test_levels_of_candidates_are_told_for_the_chosen_one() -> None:
    log = logged().append_column("device", pa.array(["phone", "web", "tv", "phone"] * 100))
    learner = HierOPO("price + device").fit(log, task="store", reward="profit")
    candidates = pa.table(
        {"id": [1, 1, 2, 2], "store": [1] * 4, "price": [9.0, -9.0, -9.0, 9.0], "device": ["tv", "oven"] * 2}
    )
    decided = learner.decide(candidates, request="id")
    known = [candidates["device"][row].as_py() == "tv" for row in decided["row"].to_pylist()]
    assert decided["device_known"].to_pylist() == known
    assert set(known) == {True, False}
