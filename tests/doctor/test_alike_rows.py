"""Rows that share a cause are found by a column or by their order, and not where they do not."""

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pyarrow as pa
import pytest

from hieropo import examine
from hieropo.doctor.examination import Finding
from hieropo.doctor.statistics.alike_rows import RowSample

ROWS, VISITS = 1_200, 240
Columns = dict[str, np.ndarray]


def visits(seed: int = 0, shared: float = 1.0) -> Columns:
    """A log of visits of five rows, whose rewards share a mood; the action is drawn for each visit."""
    rng = np.random.default_rng(seed)
    visit = np.repeat(np.arange(VISITS), 5)
    mood, offer = shared * rng.normal(size=VISITS)[visit], rng.integers(2, size=VISITS)[visit]
    store = visit // 12
    profit = store / 10 + 0.2 * offer + mood + rng.normal(size=ROWS)
    return {
        "store": store,
        "offer": offer,
        "profit": profit,
        "visit": visit,
        "size": rng.integers(4, size=ROWS),
    }


def alike(columns: Columns | pa.Table, **roles: object) -> list[Finding]:
    table = pa.table(columns)
    found = examine(table, guess=False, **{"task": "store", "action": "offer", "reward": "profit", **roles})
    return [
        finding
        for finding in found.findings
        if finding.kind in ("rows share a cause", "consecutive rows are correlated")
    ]


def with_visits(change: Callable[[np.ndarray], object]) -> pa.Table:
    columns = visits()
    return pa.table({**columns, "visit": change(columns["visit"])})


def as_dates(visit: np.ndarray) -> pa.Array:
    days = np.random.default_rng(1).permutation(VISITS)[
        visit
    ]  # in the order of time a trend would explain them
    return pa.array(days.astype(np.int32), pa.date32())


@pytest.mark.parametrize(
    "change",
    [
        lambda visit: visit,
        lambda visit: [f"v{number}" for number in visit],
        lambda visit: pa.array([f"v{number}" for number in visit]).dictionary_encode(),
        lambda visit: np.where(visit % 3, visit, np.nan).astype(float),
        lambda visit: [None if number % 3 == 0 else int(number) for number in visit],
        as_dates,
    ],
    ids=["numbers", "texts", "dictionary", "floats", "holes", "dates"],
)
def test_the_column_of_the_cause_is_named(change: Callable[[np.ndarray], object]) -> None:
    (finding,) = alike(with_visits(change).take(np.random.default_rng(1).permutation(ROWS)))
    assert (finding.severity, finding.place) == ("limits", "column 'visit'")
    assert "cluster='visit'" in finding.next
    assert "'size'" not in finding.text


def test_the_correlation_is_that_of_the_rows() -> None:
    (finding,) = alike(visits())
    correlation = float(finding.text.split("correlation ")[1].split()[0])
    assert correlation == pytest.approx(0.45, abs=0.1)  # of .5, less what the means of six visits take
    assert f"{ROWS:,} rows in {VISITS} groups" in finding.text


def test_without_the_column_the_order_of_rows_tells() -> None:
    columns = {name: values for name, values in visits().items() if name != "visit"}
    (finding,) = alike(columns)
    assert (finding.kind, finding.place) == ("consecutive rows are correlated", "all rows")
    assert not alike(pa.table(columns).take(np.random.default_rng(2).permutation(ROWS)))


def test_a_named_cluster_is_not_looked_for() -> None:
    assert not alike(visits(), cluster="visit")


SILENT: dict[str, Callable[[], tuple[Columns, dict[str, object]]]] = {
    "nothing shared": lambda: (visits(shared=0.0), {}),
    "permuted within tasks": lambda: (permuted(visits()), {}),
    "a context of the visit": lambda: (explained(), {"context": ["x"]}),
    "a measure": lambda: (measured(), {}),
    "a number that the reward follows": lambda: ({**measured(), "amount": np.floor(10 * measured()["amount"])}, {}),
    "a form of the reward": lambda: (form_of_reward(), {}),
    "few values": lambda: (few_values(), {}),
    "a column of the task": lambda: ({**visits(shared=0.0), "visit": visits()["store"]}, {}),
    "holes of larger rewards": lambda: (with_holes(), {}),
    "a drift": lambda: (drifting(), {}),
    "copies": lambda: ({name: np.repeat(values, 2) for name, values in visits(shared=0.0).items()}, {}),
}  # fmt: skip


def few_values() -> Columns:
    columns, mood = visits(shared=0.0), np.random.default_rng(3).integers(3, size=ROWS)
    return {**columns, "visit": mood, "profit": columns["profit"] + mood}


def permuted(columns: Columns) -> Columns:
    order = np.lexsort((np.random.default_rng(4).random(ROWS), columns["store"]))
    return {**columns, "profit": columns["profit"][order]}


def explained() -> Columns:
    x = np.random.default_rng(5).normal(size=VISITS)[visits()["visit"]]
    return {**visits(shared=0.0), "x": x, "profit": visits(shared=0.0)["profit"] + 2 * x}


def measured() -> Columns:
    columns = visits(shared=0.0)
    amount = np.random.default_rng(6).uniform(0, 30, ROWS)
    return {**columns, "visit": np.arange(ROWS), "amount": amount, "profit": columns["profit"] + amount / 5}


def form_of_reward() -> Columns:
    columns = visits(shared=0.0)
    return {**columns, "visit": np.array([f"{value:.0f}" for value in 20 * columns["profit"]]),
            "profit": np.round(20 * columns["profit"])}  # fmt: skip


def with_holes() -> Columns:
    columns, missing = visits(shared=0.0), np.random.default_rng(7).random(ROWS) < 0.5
    visit = np.where(missing, np.nan, np.arange(ROWS))
    return {**columns, "visit": visit, "profit": columns["profit"] + 2.0 * missing}


def drifting() -> Columns:
    columns = visits(shared=0.0)
    return {
        **columns,
        "visit": np.arange(ROWS),
        "profit": columns["profit"] + np.tile(np.linspace(0, 2, 60), 20),
    }


@pytest.mark.parametrize("name", SILENT)
def test_silent_where_no_cause_is_shared(name: str) -> None:
    columns, roles = SILENT[name]()
    assert not alike(columns, **roles)


@pytest.mark.parametrize("kind", ["normal", "heavy", "rare", "unequal"])
def test_independent_rows_are_not_alike(kind: str) -> None:
    scores = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        task, action = rng.integers(20, size=600), rng.integers(2, size=600)
        reward = {
            "normal": lambda rng=rng: rng.normal(size=600), "heavy": lambda rng=rng: rng.standard_t(1.5, 600),
            "rare": lambda rng=rng: 1.0 * (rng.random(600) < 0.05),
            "unequal": lambda rng=rng, task=task: np.exp(rng.normal(size=20))[task] * rng.normal(size=600),
        }[kind]()  # fmt: skip
        hashes = {str(size): rng.integers(1, size, 600).astype(np.uint64) for size in (25, 60, 200)}
        sample = RowSample(tuple(hashes))
        sample.add(task, action, reward, np.zeros((600, 0)), hashes, {})
        scores += [test.z for test in sample.alike()]
    assert len(scores) > 20
    assert abs(np.mean(scores)) < 4 / np.sqrt(len(scores))
    assert max(scores) < 5


def test_correlation_is_that_of_pairs_of_rows() -> None:
    rng = np.random.default_rng(0)
    task, code = (
        np.repeat(np.arange(10), 20),
        np.tile(np.repeat(np.arange(10), 2), 10) + np.repeat(np.arange(10) * 10, 20),
    )
    reward = rng.normal(size=200) + 3 * rng.normal(size=100)[code]
    sample = RowSample(("visit",))
    for rows in np.array_split(np.arange(200), 7):  # batch by batch
        sample.add(task[rows], np.zeros(rows.size, int), reward[rows], np.zeros((rows.size, 0)),
                   {"visit": code[rows].astype(np.uint64) + np.uint64(1)}, {})  # fmt: skip
    by_column, _ = sample.alike()
    residual = reward - (np.bincount(task, reward) / 20)[task]
    pairs = [residual[i] * residual[j] for i, j in combinations(range(200), 2) if code[i] == code[j]]
    by_chance = -np.mean(residual**2) / 19  # mean product of two residuals of a task
    assert by_column.correlation == pytest.approx(
        (np.mean(pairs) - by_chance) / np.mean(residual**2), abs=0.05
    )
    assert (by_column.groups, by_column.rows) == (100, 200)


def test_rows_that_cannot_be_used_are_left_out_and_the_first_are_kept() -> None:
    sample = RowSample(("c",), most=3)
    nan, one = np.nan, np.uint64(1)
    sample.add(np.array([0, -1, 0, 0, 0]), np.array([0, 0, -1, 0, 0]), np.array([1.0, 1, 1, nan, 2]),
               np.zeros((5, 0)), {"c": np.full(5, one)}, {})  # fmt: skip
    assert sample.wants
    sample.add(
        np.zeros(4, int), np.zeros(4, int), np.arange(4.0), np.zeros((4, 0)), {"c": np.full(4, one)}, {}
    )
    assert not sample.wants
    assert sample.alike() == ()
