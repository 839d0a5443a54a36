"""Each finding is there in a log that has it, and not in one that has not; what stops is what `fit` refuses."""

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import hieropo
from hieropo import Examination, HierOPO, examine
from hieropo.cli import main
from hieropo.doctor.collecting import LogStatistics
from hieropo.doctor.in_pass import PassStatistics
from hieropo.doctor.rules import incumbent as rules_incumbent
from hieropo.logs.opening import open_log
from hieropo.passes import feature_map, sums
from hieropo.rows.batches import Roles

TASKS, EACH, ACTIONS = 40, 50, ("a", "b", "c")
ROLES = {
    "task": "store", "action": "offer", "reward": "profit", "pscore": "p", "context": ["x", "y"], "time": "day",
}  # fmt: skip
Columns = dict[str, np.ndarray]


def sound(seed: int = 0, tasks: int = TASKS, each: int = EACH) -> Columns:
    """A log of a random policy that nothing is wrong with."""
    rng = np.random.default_rng(seed)
    n = tasks * each
    store, code = rng.permutation(np.repeat(np.arange(tasks), each)), rng.choice(3, n, p=[0.5, 0.3, 0.2])
    theta, x = rng.normal(1, 0.5, (tasks, 3)), rng.normal(size=(n, 2))
    return {
        "store": store,
        "offer": np.array(ACTIONS)[code],
        "profit": theta[store, code] + x @ [0.3, -0.2] + rng.normal(size=n),
        "p": np.array([0.5, 0.3, 0.2])[code],
        "x": x[:, 0],
        "y": x[:, 1],
        "day": np.sort(rng.uniform(0, 100, n)),
    }


def examined(columns: Columns, **roles: object) -> Examination:
    table = pa.table({name: pa.array(values, from_pandas=False) for name, values in columns.items()})
    return examine(table, guess=False, **{**ROLES, **roles})


def kinds(found: Examination) -> dict[str, str]:
    return {each.kind: each.severity for each in found.findings}


def test_nothing_is_found_in_a_sound_log() -> None:
    found = examined(sound())
    assert found.findings == ()
    assert not found.stops
    assert found.facts["rows"] == found.facts["usable_rows"] == TASKS * EACH
    assert found.facts["tasks"]["rows"] == dict.fromkeys(
        ("least", "quarter", "median", "three_quarters", "most"), EACH
    )
    assert found.facts["incumbent"]["seems"] == "random"


def nulls(column: str) -> Callable[[Columns], Columns]:
    def change(log: Columns) -> Columns:
        values = log[column].astype(object)
        values[7] = None
        return {**log, column: values}

    return change


def at_row(column: str, value: float) -> Callable[[Columns], Columns]:
    def change(log: Columns) -> Columns:
        values = log[column].copy()
        values[11] = value
        return {**log, column: values}

    return change


def where(**changes: Callable[[Columns], np.ndarray]) -> Callable[[Columns], Columns]:
    return lambda log: {**log, **{name: change(log) for name, change in changes.items()}}


def only(rows: Callable[[Columns], np.ndarray]) -> Callable[[Columns], Columns]:
    return lambda log: {name: values[rows(log)] for name, values in log.items()}


RNG = np.random.default_rng

STOPS = [
    ("unusable value", "column 'profit' from row 7", nulls("profit")),
    ("unusable value", "column 'store' from row 7", nulls("store")),
    ("unusable value", "column 'offer' from row 7", nulls("offer")),
    ("unusable value", "column 'p' from row 7", nulls("p")),
    ("unusable value", "column 'profit' from row 11", at_row("profit", np.nan)),
    ("unusable value", "column 'y' from row 11", at_row("y", np.inf)),
    ("unusable value", "column 'y' from row 11", at_row("y", 1e80)),
    ("unusable value", "column 'p' from row 11", at_row("p", 0.0)),
    ("unusable value", "column 'p' from row 11", at_row("p", 1.5)),
    ("unusable value", "column 'p' from row 11", at_row("p", -0.1)),
    ("undetermined coefficients", "context columns", where(y=lambda log: np.full(log["x"].size, 3.0))),
    ("undetermined coefficients", "context columns", where(y=lambda log: 2 * log["x"])),
]


@pytest.mark.parametrize(("kind", "place", "change"), STOPS)
def test_what_stops_learning_is_found_and_refused_by_fit(
    kind: str, place: str, change: Callable[[Columns], Columns]
) -> None:
    log = change(sound())
    found = examined(log)
    assert found.findings[0].kind == kind
    assert found.findings[0].place == place
    assert kinds(found)[kind] == "stops"
    assert found.stops
    with pytest.raises(hieropo.HieropoError):
        HierOPO().fit(pa.table({name: pa.array(values) for name, values in log.items()}), **ROLES)


@pytest.mark.filterwarnings("ignore::hieropo.HieropoWarning")
def test_an_action_of_one_row_is_named_refused_where_it_stands_alone_and_borrows_by_default() -> None:
    rare = where(offer=lambda log: np.where(np.arange(log["x"].size) == 5, "rare", log["offer"]))(sound())
    found = examined(rare)
    (rare_one,) = (each for each in found.findings if each.kind == "rare actions")
    assert (rare_one.severity, rare_one.place) == ("limits", "column 'offer', action 'rare'")
    assert not found.stops
    table = pa.table({name: pa.array(values) for name, values in rare.items()})
    for settings in ({"task_cov": "block"}, {"uncertainty": "plug-in"}):
        with pytest.raises(hieropo.NumericalError, match="come with the action 'rare'"):
            HierOPO(**settings).fit(table, **ROLES)
    assert "rare" in HierOPO().fit(table, **ROLES).features_.actions


def test_a_sound_log_is_fitted() -> None:
    HierOPO().fit(pa.table(sound()), **ROLES)


def knowing(log: Columns) -> Columns:
    """Choices of an incumbent that knew which action is best in each task."""
    rng = np.random.default_rng(2)
    theta = rng.normal(0, 1, (TASKS, 3))
    chance = np.exp(1.5 * theta)
    chance /= chance.sum(axis=1, keepdims=True)
    code = np.array([rng.choice(3, p=chance[s]) for s in log["store"]])
    return {
        **log,
        "offer": np.array(ACTIONS)[code],
        "profit": theta[log["store"], code] + 0.5 * rng.normal(size=code.size),
        "p": chance[log["store"], code],
    }


def learning(log: Columns, sign: float = 1.0) -> Columns:
    """Choices of an incumbent that learned from these rows what pays, or what does not."""
    rng = np.random.default_rng(3)
    theta, n, total = rng.normal(0, 1, (TASKS, 3)), np.zeros((TASKS, 3)), np.zeros((TASKS, 3))
    code, reward = np.zeros(log["x"].size, dtype=int), np.zeros(log["x"].size)
    for t, s in enumerate(log["store"]):
        code[t] = a = int((sign * total[s] / (n[s] + 1) + rng.normal(size=3) / np.sqrt(n[s] + 1)).argmax())
        reward[t] = theta[s, a] + rng.normal()
        n[s, a] += 1
        total[s, a] += reward[t]
    return {**log, "offer": np.array(ACTIONS)[code], "profit": reward, "p": np.full(code.size, 0.5)}


def without_chance(log: Columns) -> Columns:
    return {**log, "offer": np.array(ACTIONS)[log["store"] % 3], "p": np.ones(log["x"].size)}


WITHOUT_P = {"pscore": None}
FINDINGS: list[tuple[str, str, Callable[[Columns], Columns], dict[str, object]]] = [
    ("constant reward", "stops", where(profit=lambda log: np.full(log["x"].size, 2.0)), {}),
    ("looks like a cost", "limits", where(net_cost=lambda log: log["profit"]), {"reward": "net_cost"}),
    ("no reward above 0", "note", where(profit=lambda log: log["profit"] - 20), {}),
    (
        "few events", "limits",
        where(profit=lambda log: (np.arange(log["x"].size) % 300 == 3).astype(float)), {},
    ),
    (
        "few events an action", "limits",
        lambda log: {**log, "profit": (RNG(11).random(log["x"].size) < 0.02).astype(float),
                     "offer": RNG(12).integers(30, size=log["x"].size)}, WITHOUT_P | {"context": []},
    ),
    ("a reward outweighs", "limits", at_row("profit", 500.0), {}),
    (
        "far from 0", "limits", where(profit=lambda log: log["profit"] + 1e7),
        WITHOUT_P | {"action": None},
    ),
    ("one task", "limits", where(store=lambda log: np.zeros(log["x"].size)), {}),
    ("few tasks", "note", where(store=lambda log: log["store"] % 3), {}),
    ("tasks of one row", "limits", where(store=lambda log: np.arange(log["x"].size)), {}),
    (
        "one task holds most rows", "note",
        where(store=lambda log: np.where(RNG(13).random(log["x"].size) < 0.7, 0, log["store"])), {},
    ),
    ("one action", "limits", only(lambda log: log["offer"] == "a"), WITHOUT_P),
    (
        "actions that hardly come twice", "limits",
        where(offer=lambda log: RNG(14).permutation(log["x"].size) // 1.5 // 1), WITHOUT_P | {"context": []},
    ),
    ("no chance in actions", "limits", without_chance, WITHOUT_P),
    ("propensities of 1", "limits", without_chance, {}),
    (
        "tasks with one action", "note", only(lambda log: (log["store"] > 3) | (log["offer"] == "a")), {"pscore": None},
    ),
    (
        "actions of one task", "note",
        where(offer=lambda log: np.where(log["store"] == 3, "z" + log["offer"].astype(object), log["offer"])),
        WITHOUT_P,
    ),
    (
        "actions that some tasks never take", "limits",
        only(lambda log: (log["store"] > 3) | (log["offer"] != "a") | (np.arange(log["x"].size) < 0)),
        WITHOUT_P | {"context": []},
    ),
    ("every row is repeated", "limits", only(lambda log: np.repeat(np.arange(log["x"].size), 2)), {}),
    (
        "repeated rows", "limits",
        only(lambda log: np.sort(np.append(np.arange(log["x"].size), np.arange(300)))), {},
    ),
    ("propensities add to more than 1", "limits", where(p=lambda log: np.minimum(log["p"] + 0.1, 1)), {}),
    ("propensities near 0", "limits", at_row("p", 1e-15), {}),
    ("propensities add to less than 1", "limits", where(p=lambda log: log["p"] * 0.9), {}),
    (
        "propensities do not match", "limits",
        where(p=lambda log: RNG(15).permutation(log["p"])), {},
    ),
    ("the incumbent knew something", "note", knowing, {}),
    ("the incumbent knew something", "limits", knowing, {"time": None}),
    ("adaptive logging", "note", learning, WITHOUT_P),
    ("actions less often after high rewards", "limits", lambda log: learning(log, -1.0), WITHOUT_P),
    (
        "actions where they do not pay", "limits",
        lambda log: {**knowing(log), "profit": -knowing(log)["profit"]}, {},
    ),
    (
        "drift", "limits", where(profit=lambda log: log["profit"] + np.linspace(0, 1.5, log["x"].size)),
        {"context": []},
    ),
    ("drift", "note", where(profit=lambda log: log["profit"] + np.linspace(0, 1.5, log["x"].size)), {}),
    (
        "rewards differ over time", "note",
        lambda log: {**log, "store": np.arange(log["x"].size),
                     "profit": log["profit"] + (np.abs(log["day"] - 50) < 20)}, {},
    ),
    ("not in order of time", "note", where(day=lambda log: RNG(16).permutation(log["day"])), {}),
    ("gap in time", "note", where(day=lambda log: log["day"] + 30 * (log["day"] > 50)), {}),
    ("one time", "note", where(day=lambda log: np.full(log["x"].size, 5.0)), {}),
    (
        "columns are almost copies", "limits",
        where(y=lambda log: log["x"] + 1e-5 * log["y"]), {},
    ),
    ("scales differ", "note", where(y=lambda log: 1e4 * log["y"]), {}),
    (
        "little overlap with a uniform policy", "limits",
        lambda log: {**log, "p": np.where(np.arange(log["x"].size) == 4, 1e-5, log["p"])}, {},
    ),
    (
        "little overlap with a greedy policy", "limits",
        lambda log: {**log, "offer": np.where(np.arange(log["x"].size) % 240 == 3, "best", "a"),
                     "profit": log["profit"] + 5 * (np.arange(log["x"].size) % 240 == 3)}, WITHOUT_P | {"context": []},
    ),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "severity", "change", "roles"), FINDINGS, ids=[each[0] for each in FINDINGS]
)
def test_a_finding_is_there_where_the_log_has_it(
    kind: str, severity: str, change: Callable[[Columns], Columns], roles: dict[str, object]
) -> None:
    found = examined(change(sound(each=120)), **roles)
    assert kinds(found).get(kind) == severity, str(found)
    each = next(each for each in found.findings if each.kind == kind)
    assert each.place
    assert each.text.endswith((".", "?"))
    assert each.next.endswith((".", "?"))


# Kinds of findings that take order for time.
ORDERED = {"adaptive logging", "actions less often after high rewards", "drift"}


def moving(log: Columns) -> Columns:
    return {**log, "profit": log["profit"] + np.linspace(0, 1.5, log["x"].size)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (learning, "adaptive logging"),
        (lambda log: learning(log, -1.0), "actions less often after high rewards"),
        (moving, "drift"),
    ],
)  # fmt: skip
def test_the_order_of_rows_is_taken_for_time_only_where_a_column_of_times_says_so(
    change: Callable[[Columns], Columns], kind: str
) -> None:
    log = change(sound(each=120))
    roles = WITHOUT_P | {"context": []}
    assert kind in kinds(examined(log, **roles))
    few = {**log, "day": log["day"] // 25}  # of each task many rows have one time: their order says nothing
    ties = {**log, "day": np.full(log["x"].size, 3.0)}
    mixed = {**log, "day": log["day"][::-1]}
    for columns, time, why in (
        (log, None, "no time column is named"), (few, "day", "many rows have the time of the row before them"),
        (ties, "day", "all rows have one time"), (mixed, "day", "rows are not in the order of time"),
    ):  # fmt: skip
        found = examined(columns, **roles, time=time)
        assert not ORDERED & set(kinds(found)), found
        facts = found.facts["incumbent"]
        assert facts["reacts_to_rewards"] is None
        assert why in facts["order_tells_nothing"]
        assert facts["seems"] in ("frozen or adaptive", "random")
        assert f"a reaction to earlier rewards cannot be tested: {why}" in str(found)
        learner, heard = fitted(columns, **roles, time=time)
        assert not ORDERED & {each.kind for each in learner.findings_}
        assert not [each for each in heard if "after high rewards" in each or "later rows" in each], heard


@pytest.mark.slow
def test_an_incumbent_that_knew_or_learned_is_named_as_both_where_order_does_not_tell() -> None:
    found = examined(knowing(sound(each=120)), time=None)
    (text,) = [str(each) for each in found.findings if each.kind == "the incumbent knew something"]
    assert "or learned from these rows (the log does not tell which: no time column is named)" in text
    assert "Name the time column if there is one (time=, --time)" in text
    _, heard = fitted(knowing(sound(each=120)), time=None)
    assert any("no time column is named" in each for each in heard)


FEW_TASKS = {"task": "t", "action": "a", "reward": "r"}


def few_tasks(n: int, seed: int = 0, **at: float) -> Columns:
    """Six tasks and two actions, of which the second is better, with noise N(0, 1) and some rewards replaced."""
    rng = np.random.default_rng(seed)
    action = rng.integers(2, size=n)
    reward = 0.5 * action + rng.normal(size=n)
    for row, value in at.items():
        reward[int(row[1:])] = value
    return {"t": rng.integers(6, size=n), "a": action, "r": reward}


@pytest.mark.slow
@pytest.mark.parametrize("n", [40, 300, 3000])
@pytest.mark.parametrize("rows", [["r17"], ["r3", "r17", "r39"]])
def test_a_reward_far_from_all_others_is_named_by_its_row(n: int, rows: list[str]) -> None:
    log = few_tasks(n, **dict.fromkeys(rows, -999.0))
    named = "row 17" if len(rows) == 1 else "rows 3, 17, 39"
    found = examine(pa.table(log), guess=False, **FEW_TASKS)
    (each,) = [each for each in found.findings if each.kind == "a reward outweighs"]
    assert (each.severity, each.place) == ("limits", f"column 'r', {named}")
    assert f"in {named}, -999, lie" in each.text
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        learner = HierOPO(pessimism=0.0).fit(pa.table(log), **FEW_TASKS)
    assert str(each) in [str(warning.message) for warning in heard]
    assert each in learner.findings_
    clean = {name: np.delete(values, [int(row[1:]) for row in rows]) for name, values in log.items()}
    if n >= 300:
        learner, texts = fitted_to(clean)
        assert texts == []
        assert learner.predict(pa.table({"t": np.arange(6)})).tolist() == [1] * 6


def of_a_pass(place: Path, roles: Roles, threads: int = 1) -> LogStatistics | None:
    """The doctor's statistics of a pass over a log that examines a thousand rows."""
    source = open_log(place)
    statistics, features = PassStatistics(source, roles, most=1000), feature_map(None, source, roles)
    sums(source, features, roles, threads=threads, reducers=[statistics])
    return statistics.collected()


def fitted_to(log: Columns) -> tuple[HierOPO, list[str]]:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        learner = HierOPO(pessimism=0.0).fit(pa.table(log), **FEW_TASKS)
    return learner, [str(each.message) for each in heard]


def test_a_reward_beside_which_all_others_lose_their_digits_is_refused() -> None:
    log = few_tasks(300, r17=3.4e38)
    (each,) = examine(pa.table(log), guess=False, **FEW_TASKS).of("stops")
    assert each.place == "column 'r', row 17"
    assert "lose all their digits" in each.text
    with pytest.raises(
        hieropo.LogError, match=r"The reward in row 17, 3.4e\+38, lies .* Correct it, or leave that row"
    ):
        HierOPO().fit(pa.table(log), **FEW_TASKS)


def test_it_is_named_in_rows_too_that_a_fit_of_a_long_log_does_not_look_at(tmp_path: Path) -> None:
    table = pa.table({**few_tasks(2000, r1900=-999.0), "r32": few_tasks(2000)["r"].astype(np.float32)})
    for start in range(0, 2000, 500):
        pq.write_table(table.slice(start, 500), tmp_path / f"{start:04}.parquet")
    for reward, rows in (("r", (1900,)), ("r32", None)):
        seen = of_a_pass(tmp_path, Roles("t", "a", reward))
        assert seen is not None
        found = seen.extremes.outlying(seen.all_rows)
        assert (None if found is None else found.rows) == rows


def test_an_evaluation_names_it_too_and_calls_nothing_else_noise() -> None:
    learner, _ = fitted_to(few_tasks(300, r17=-999.0))
    found = learner.evaluate(pa.table(few_tasks(300, r17=-999.0)), propensities="none")
    assert found.checks is not None
    (text,) = found.checks.findings
    assert text.startswith("The reward of row 17 (counted from 0), task ")
    assert "Correct it or leave that row out" in text
    log = few_tasks(310, seed=1, r27=-999.0)
    log["r"][:10] = np.nan  # which are set aside, and counted
    with pytest.warns(hieropo.HieropoWarning, match="10 of 310 rows"):
        found = learner.evaluate(pa.table(log), propensities="none", lenient=True)
    assert found.checks is not None
    assert found.checks.outliers[0].row == 27


def test_findings_come_by_severity() -> None:
    log = at_row("profit", 500.0)(at_row("p", 0.0)({**sound(), "y": 1e4 * sound()["y"]}))
    order = [each.severity for each in examined(log).findings]
    assert order == sorted(order, key=("stops", "limits", "note").index)
    assert len(set(order)) == 3


@pytest.mark.parametrize("column", ["levels", "metadata"])
def test_a_task_in_two_groups_stops(column: str) -> None:
    log = {**sound(), "region": sound()["store"] % 5}
    assert "misplaced task" not in kinds(examined(log, **{column: ["region"]}))
    log["region"][100] = 77
    found = examined(log, **{column: ["region"]})
    assert kinds(found)["misplaced task"] == "stops"
    with pytest.raises(hieropo.LogError):
        HierOPO().fit(pa.table(log), **ROLES, **{column: ["region"]})


def menus_by_turns() -> pa.Table:
    """Two menus of two actions by turns, of which chance takes one: each has the propensity 1/2."""
    log, n = sound(), TASKS * EACH
    code = RNG(17).integers(2, size=n) + 2 * (np.arange(n) % 2)
    menus = [["a", "b"] if k % 2 == 0 else ["c", "d"] for k in range(n)]
    return pa.table({**log, "offer": np.array(list("abcd"))[code], "p": np.full(n, 0.5), "menu": menus})


@pytest.mark.slow
def test_propensities_of_menus_that_change_are_right() -> None:
    table = menus_by_turns()
    assert examine(table, **ROLES, eligible="menu", guess=False).findings == ()
    learner = HierOPO(drift=None).fit(table, **ROLES, eligible="menu")  # where a warning is an error
    assert learner.evaluate(table).limits == ()
    four = pa.array([list("abcd")] * table.num_rows)
    wrong = table.set_column(table.schema.get_field_index("menu"), "menu", four)
    found = examine(wrong, **ROLES, eligible="menu", guess=False)
    assert kinds(found) == {"propensities do not match": "limits"}


def test_without_lists_both_causes_of_too_large_sums_are_named() -> None:
    found = examine(menus_by_turns(), **ROLES, guess=False)
    assert kinds(found) == {
        "propensities add to more than 1": "limits",
        "propensities do not match": "limits",
    }
    for each in found.findings:
        assert each.next.startswith(
            "Are some actions not eligible in every row? Then the propensities may be right"
        )
        assert "(eligible=)." in each.next
    small = sound()
    small["p"] = np.where(
        small["offer"] == "c", 0.1, small["p"] + 0.1
    )  # c came more often than 1 in 10 times
    for each in examined(small, time=None).findings:
        assert "every row" not in each.next


def test_lists_of_eligible_actions_are_used_for_propensities() -> None:
    rng = np.random.default_rng(4)
    log = sound()
    n = log["x"].size
    lists = [list(ACTIONS) if k else ["a", "b"] for k in rng.integers(2, size=n)]
    offer = np.array([rng.choice(each) for each in lists])
    p = np.array([1 / len(each) for each in lists])
    table = pa.table({**log, "offer": offer, "p": p, "can": lists})
    assert "propensities do not match" not in kinds(examine(table, **ROLES, eligible="can"))
    wrong = table.set_column(table.schema.get_field_index("p"), "p", pa.array(p**2))
    assert kinds(examine(wrong, **ROLES, eligible="can"))["propensities do not match"] == "limits"
    lists[3], lists[4] = [], None
    broken = table.set_column(table.schema.get_field_index("can"), "can", pa.array(lists))
    assert [each.place for each in examine(broken, **ROLES, eligible="can").of("stops")] == [
        "column 'can' from row 4", "column 'can' from row 3",
    ]  # fmt: skip


def test_the_result_does_not_depend_on_how_the_log_is_cut(tmp_path: Path) -> None:
    table = pa.table(sound())
    pq.write_table(table, tmp_path / "log.parquet", row_group_size=137)
    whole, cut = examine(table, **ROLES), examine(tmp_path / "log.parquet", **ROLES)
    mine, other = whole.to_dict(), cut.to_dict()
    mine.pop("log")
    other.pop("log")
    assert json.loads(json.dumps(mine), parse_float=lambda x: round(float(x), 9)) == json.loads(
        json.dumps(other), parse_float=lambda x: round(float(x), 9)
    )


def test_ids_of_any_type_and_nulls_are_counted() -> None:
    log = pa.table(
        {
            "t": pa.array(["a", None, "b", "a"] * 10).dictionary_encode(),
            "a": pa.array([1.0, 2.0, float("nan"), None] * 10),
            "r": pa.array([True, False, None, True] * 10),
        }
    )
    found = examine(log, task="t", action="a", reward="r")
    assert found.facts["usable_rows"] == 10
    assert {each["column"]: each["unusable"] for each in found.facts["columns"]} == {
        "t": {"missing": 10}, "a": {"missing": 10, "NaN": 10}, "r": {"missing": 10},
    }  # fmt: skip
    assert kinds(examine(log.slice(1, 1), task="t", action="a", reward="r"))["no usable row"] == "stops"


def test_roles_are_guessed_as_by_fit_and_the_guess_is_told() -> None:
    log = pa.table(sound()).rename_columns(
        ["store_id", "action", "reward", "propensity", "x", "y", "timestamp"]
    )
    found = examine(log)
    assert found.roles.to_dict() | {"context": []} == {
        "task": "store_id", "action": "action", "reward": "reward", "pscore": "propensity", "time": "timestamp",
        "weight": None, "precision": None, "sampling_weight": None, "context": [], "levels": [],
        "metadata": [], "eligible": None, "cluster": None,
    }  # fmt: skip
    assert len(found.guesses) == 5
    assert "Column 'store_id' is taken as the task, by its name." in str(found)
    assert examine(log, guess=False, reward="reward").roles.task is None
    with pytest.raises(hieropo.SchemaError, match=r"reward needs a column, .*'reward' has a well-known name"):
        examine(log, guess=False, task="store_id")


def test_no_rows_and_no_columns_are_errors_of_this_package() -> None:
    with pytest.raises(hieropo.LogError, match="has no rows"):
        examine(pa.table({name: values[:0] for name, values in sound().items()}), **ROLES)
    with pytest.raises(hieropo.SchemaError, match="'profits'"):
        examine(pa.table(sound()), **{**ROLES, "reward": "profits"})


def doctor(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["doctor", *map(str, words)], prog_name="hieropo")
    assert done.stderr == ""
    return done.exit_code, done.stdout


def test_the_command_says_it_in_text_and_in_json_and_ends_with_1_where_learning_stops(tmp_path: Path) -> None:
    words = ["--task", "store", "--action", "offer", "--reward", "profit", "--context", "x,y"]
    pq.write_table(pa.table(sound()), tmp_path / "log.parquet")
    code, text = doctor(tmp_path / "log.parquet", *words)
    assert code == 0
    assert text.rstrip().endswith("Nothing stops learning from this log.")
    pq.write_table(pa.table(at_row("profit", np.nan)(sound())), tmp_path / "bad.parquet")
    code, text = doctor(tmp_path / "bad.parquet", *words)
    assert code == 1
    assert "Stops learning (1)\n- NaN: column 'profit' (reward) in 1 row (0.05 %), first in row 11." in text
    code, text = doctor(tmp_path / "bad.parquet", *words, "--json")
    assert code == 1
    found = json.loads(text)
    assert (found["stops"], found["findings"][0]["severity"], found["rows"]) == (True, "stops", 2000)
    assert max(map(len, str(examined(at_row("profit", np.nan)(sound()))).splitlines())) < 130


def test_columns_far_from_zero_are_no_copies_of_each_other() -> None:
    """Without an intercept they are multiples of one another but for a little, which a fit can tell."""
    rng = np.random.default_rng(0)
    x = 1e6 + rng.standard_normal((200, 2))
    log = pa.table(
        {
            "task": np.arange(200) % 4,
            "reward": x @ [1.0, -1.0] + rng.standard_normal(200),
            "x": x[:, 0],
            "y": x[:, 1],
        }
    )
    found = hieropo.examine(log, task="task", reward="reward", context=["x", "y"])
    assert "undetermined coefficients" not in {each.kind for each in found.findings}
    assert (
        hieropo.HierOPO()
        .fit(log, task="task", reward="reward", context=["x", "y"])
        .features_.reference_column
        == "x"
    )
    copied = log.set_column(3, "y", pa.array(2 * x[:, 0]))
    found = hieropo.examine(copied, task="task", reward="reward", context=["x", "y"])
    assert "undetermined coefficients" in {each.kind for each in found.findings}


SAID_BY_LEARNING = {"one task", "far from 0"}  # in the words of the core
OTHERWISE = SAID_BY_LEARNING | {  # with other figures: by a hierarchy with contexts, by the columns that are read
    "the incumbent knew something", "actions where they do not pay", "repeated rows", "every row is repeated",
    "rows share a cause", "consecutive rows are correlated",
}  # fmt: skip
REFUSED = {"constant reward", "actions that hardly come twice", "actions of one task", "few events an action"}
LEARNED = [each for each in FINDINGS if each[0] not in REFUSED]


def fitted(columns: Columns, **roles: object) -> tuple[HierOPO, list[str]]:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        learner = HierOPO().fit(pa.table(columns), **{**ROLES, **roles})
    return learner, [str(each.message) for each in heard]


@pytest.mark.slow
@pytest.mark.parametrize(
    "change_roles", [each[2:] for each in LEARNED], ids=[f"{each[0]}-{k}" for k, each in enumerate(LEARNED)]
)
def test_a_fit_warns_of_what_the_doctor_says(
    change_roles: tuple[Callable[[Columns], Columns], dict[str, object]],
) -> None:
    change, roles = change_roles
    log = change(sound(each=120))
    if np.unique(log["store"]).size == log["store"].size:  # thousands of tasks would add time alone
        log = {name: values[:1600] for name, values in log.items()}
    learner, heard = fitted(log, **roles)
    limits = {each.kind: str(each) for each in examined(log, **roles).of("limits") if not each.judging}
    said = {each.kind for each in learner.findings_ if each.severity == "limits" and not each.judging}
    if "a reward outweighs" in limits:  # one reward of a task may turn the hierarchy, and with it this sign
        said -= {"actions where they do not pay"}
    assert said == set(limits) - SAID_BY_LEARNING
    for kind, text in limits.items():
        assert kind in OTHERWISE or text in heard, heard


def test_a_fit_says_nothing_of_a_sound_log() -> None:
    learner, heard = fitted(sound())
    assert heard == []
    assert learner.findings_ == ()


@pytest.mark.slow
def test_a_lenient_fit_examines_the_rows_that_it_learns_from() -> None:
    log = {**learning(sound(), -1.0), "y": sound()["y"]}
    log["profit"][:30] = np.nan
    kept = {name: values[30:] for name, values in log.items()}
    learner, heard = fitted(log, **WITHOUT_P, lenient=True)
    assert any("30 of 2,000 rows" in text for text in heard)
    strict, _ = fitted(kept, **WITHOUT_P)
    assert [each.to_dict() for each in learner.findings_] == [each.to_dict() for each in strict.findings_]
    assert learner.findings_


@pytest.mark.slow
@pytest.mark.parametrize("threads", ["1", "3"])
def test_a_fit_of_a_file_in_parts_finds_what_the_whole_shows(
    tmp_path: Path, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    log = {**learning(sound(), -1.0), "y": sound()["y"]}
    pq.write_table(pa.table(log), tmp_path / "log.parquet", row_group_size=90)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        learner = HierOPO().fit(tmp_path / "log.parquet", **(ROLES | WITHOUT_P))
    whole, _ = fitted(log, **WITHOUT_P)
    assert [each.to_dict() for each in learner.findings_] == [each.to_dict() for each in whole.findings_]
    assert any("Actions are taken less often after high rewards" in str(each.message) for each in heard)


def test_of_a_long_log_a_fit_looks_at_the_first_rows_of_each_part(tmp_path: Path) -> None:
    table = pa.table(sound())
    for start in range(0, 2000, 500):
        pq.write_table(table.slice(start, 500), tmp_path / f"{start:04}.parquet")
    seen = of_a_pass(tmp_path, Roles("store", "offer", "profit", "p", time="day"), threads=3)
    assert seen is not None
    assert (seen.all_rows, seen.rows) == (2000, 1000)
    some = np.concatenate([np.arange(start, start + 250) for start in range(0, 2000, 500)])
    named = {"task": "store", "action": "offer", "reward": "profit", "pscore": "p", "time": "day"}
    direct = examine(table.take(pa.array(some)), **named)
    mine = rules_incumbent.reaction_of(seen)
    assert mine is not None
    assert mine.z == pytest.approx(direct.facts["incumbent"]["reacts_to_rewards"]["z"])


def test_roles_are_the_columns_of_the_log_where_context_columns_are_encoded() -> None:
    device = np.resize(["phone", "desk", "tablet"], TASKS * EACH)
    found = examined({**sound(), "device": device}, context=["device", "x"])
    assert found.roles.context == ("device", "x")
    assert "context device, x" in str(found)
    assert "by all 8 columns" in str(found)  # levels of the device are no columns of the log
    short = pa.table({**sound(), "device": device}).drop_columns("y")
    for role in ("weight", "reward"):  # before and after the features are learned
        with pytest.raises(hieropo.SchemaError, match=rf"'y' \(role {role}\).* Its columns: .*'device'\.$"):
            HierOPO().fit(short, **{**ROLES, "context": ["device"], role: "y"})
    with pytest.raises(hieropo.SchemaError, match=r"'y' \(role context\)"):
        HierOPO().fit(short, **{**ROLES, "context": ["device", "y"]})


def test_a_log_without_named_tasks_or_actions_is_told_to_name_them() -> None:
    shop, rng = np.repeat(np.arange(60), 10), np.random.default_rng(3)
    profit = rng.normal(size=60)[shop] + rng.normal(size=600)
    log = pa.table({"shop": shop, "reward": profit, "pscore": np.full(600, 0.5), "age": rng.normal(size=600)})
    found = examine(log)
    assert kinds(found) == {"no action": "stops", "no task": "note", "rows share a cause": "limits"}
    (cause,) = (finding for finding in found.findings if finding.kind == "rows share a cause")
    assert "it is the task: task='shop' (--task shop). If its values are occasions" in cause.next
    with pytest.raises(hieropo.SchemaError, match="Name action="):
        HierOPO().fit(log, reward="reward")
    described = examine(log, task="shop", context=["age"])
    assert kinds(described) == {"no action": "note"}


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (["total"], "1 of 40 task ids is not a number"),
        (["x", "y"], "2 of 40 task ids are not a number"),
        ([], None),
    ],
)
def test_a_few_ids_that_are_no_numbers_are_told_with_their_line(
    tmp_path: Path, ids: list[str], words: str | None
) -> None:
    columns = sound()
    store = columns["store"].astype(str).astype(object)
    for number, other in enumerate(ids):
        store[columns["store"] == number] = other
    path = tmp_path / "log.csv"
    pc.write_csv(pa.table({**columns, "store": store.tolist()}), path)
    found = [each for each in examine(path, guess=False, **ROLES).findings if each.kind == "ids of two kinds"]
    if words is None:
        assert not found
        return
    assert words in found[0].text
    first = int(np.isin(store, ids).argmax())
    assert re.search(rf"{ids[0] if len(ids) == 1 else '[xy]'}.*Line {first + 2} of ", found[0].text)
    with pytest.warns(hieropo.HieropoWarning, match="not a number, so all ids are text"):
        HierOPO(task_cov="diag").fit(path, **{**ROLES, "time": None})


def test_ids_that_are_texts_or_codes_are_of_one_kind() -> None:
    for ids in (lambda s: f"store {s}", lambda s: f"{s:03}", lambda s: str(s) if s % 2 else f"x{s}"):
        store = np.array([ids(each) for each in sound()["store"]])
        assert "ids of two kinds" not in kinds(examined({**sound(), "store": store}))
