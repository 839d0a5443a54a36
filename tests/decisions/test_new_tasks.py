"""A task that the log did not have is answered by its group and its metadata, where the log had levels and metadata."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import answers, refuses

from hieropo import HierOPO, HieropoWarning, LogError, SchemaError, UnknownTaskError, load_learner
from hieropo.decisions import decide
from hieropo.decisions.choosing import CONTRADICTION, Answers, answer
from hieropo.decisions.deciding import request_columns
from hieropo.decisions.new_tasks import NewTasks
from hieropo.decisions.requests import RequestReader
from hieropo.logs.engines.tables import TableSource

ROLES = {"task": "store", "action": "offer", "reward": "profit"}


def logged(seed: int = 0, stores: int = 24, rows: int = 30) -> pa.Table:
    """Stores of towns of two regions, which differ a lot; rewards also move with the size of a store."""
    rng = np.random.default_rng(seed)
    store = np.repeat(np.arange(stores), rows)
    town, offer = store % 6, rng.integers(3, size=store.size)
    region = town % 2
    size = np.random.default_rng(1).normal(size=stores)
    worth = np.array([[2.0, 0.0, 1.0], [0.0, 2.0, 1.0]])[region, offer] + 0.3 * np.sin(town + 2 * offer)
    profit = worth + size[store] * (offer - 1.0) + 0.3 * rng.normal(size=store.size)
    return pa.table(
        {
            "store": store, "offer": offer, "profit": profit, "size": size[store],
            "town": np.char.add("town ", town.astype(str)), "region": np.where(region == 0, "north", "south"),
        }
    )  # fmt: skip


def requests(**columns: Any) -> pa.Table:
    return pa.table({"store": [100, 3, 101, 102], **columns})


TOWNS = {"town": ["town 1", "town 3", "town 0", "elsewhere"], "region": ["south", "south", "north", "north"]}


def best(learner: HierOPO, law: Any) -> int:
    d = law.mean.size
    bound = law.mean - learner.policy_.pessimism * np.sqrt(np.diagonal(law.cov))
    assert d == 3
    return int(bound.argmax())


@pytest.fixture(scope="module")
def learner() -> HierOPO:
    settings = {"task_cov": "diag", "uncertainty": "plug-in"}
    return HierOPO(**settings).fit(logged(), **ROLES, levels=["region", "town"])


def test_a_new_task_gets_the_answer_of_its_group(learner: HierOPO) -> None:
    found = learner.predict(requests(**TOWNS)).tolist()
    posterior = learner.posterior_
    assert found[0] == best(learner, posterior.new_task("town 1"))
    assert found[2] == best(learner, posterior.new_task("town 0"))
    assert found[:3] == [1, 1, 0]  # as their regions differ; 3 is a store of the log
    assert found[3] == best(learner, posterior.new_task("north", level=1)) == 0
    fresh = requests(town=["a", "town 3", "b", "c"], region=["west", "south", "west", "east"])
    population = best(learner, posterior.new_task())
    assert learner.predict(fresh).tolist() == [population, 1, population, population]


def test_the_law_of_a_new_group_is_that_of_the_one_above_it_with_what_groups_differ_by(
    learner: HierOPO,
) -> None:
    north, hierarchy = learner.posterior_.node(1, "north"), learner.hierarchy_
    law = learner.posterior_.new_task("north", level=1)
    np.testing.assert_array_equal(law.mean, north.mean)
    np.testing.assert_allclose(law.cov, north.cov + hierarchy.levels[0].cov + hierarchy.task_cov)


def test_requests_of_new_tasks_have_to_say_where_they_belong(learner: HierOPO) -> None:
    with pytest.raises(SchemaError, match=r"Row 0 is of task 100, .* column 'region' \(role level\)"):
        learner.predict(requests(town=TOWNS["town"]))
    known = learner.predict(pa.table({"store": [3, 4]}))  # the log says where they belong
    assert known.tolist() == [best(learner, learner.posterior_.task(store)) for store in (3, 4)]
    recentred = requests(town=TOWNS["town"], region=["north", "south", "north", "north"])
    with pytest.raises(
        LogError, match=r"Column 'region', row 0: 'town 1' of column 'town' is in 'north' here and in"
    ):
        learner.predict(recentred)
    twice = pa.table(
        {"store": [100, 3, 100], "town": ["town 1", "town 3", "town 2"], "region": ["south"] * 2 + ["north"]}
    )
    with pytest.raises(LogError, match="row 2: 100 of column 'store' is in 'town 2' here"):
        learner.predict(twice)


def test_a_group_of_a_new_task_that_reads_as_a_known_one_is_warned_about(learner: HierOPO) -> None:
    """Without the warning `North` is a new region, and its stores get the answer for a new one in silence."""
    wrong = requests(town=["town 1", "town 3", "TOWN 0", "c"], region=["south", "south", "north", "north"])
    with pytest.warns(
        HieropoWarning, match="Group 'TOWN 0' of column 'town' is unknown, but 'town 0' is known; its new"
    ):
        learner.predict(wrong)
    wrong = requests(town=["town 1", "town 3", "b", "c"], region=["south", "south", "North", "North"])
    with pytest.warns(
        HieropoWarning, match="Group 'North' of column 'region' is unknown, but 'north' is known; its new"
    ):
        learner.predict(wrong)


def test_unknown_tasks_are_an_error_where_that_was_asked_for() -> None:
    learner = HierOPO(task_cov="diag", uncertainty="plug-in", unseen="error")
    learner.fit(logged(), **ROLES, levels=["region", "town"])
    with pytest.raises(UnknownTaskError, match="100"):
        learner.predict(requests(**TOWNS))


def test_a_new_task_gets_the_answer_at_its_metadata() -> None:
    learner = HierOPO(task_cov="diag", uncertainty="plug-in").fit(logged(), **ROLES, metadata=["size"])
    sizes = [2.5, 0.0, -2.5, 0.1]
    found = learner.predict(requests(size=sizes)).tolist()
    laws = [learner.posterior_.new_task(metadata=[size]) for size in sizes]
    assert [found[k] for k in (0, 2, 3)] == [best(learner, laws[k]) for k in (0, 2, 3)]
    assert (found[0], found[2]) == (2, 0)
    with pytest.raises(SchemaError, match=r"'size' \(role metadata\)"):
        learner.predict(requests())
    with pytest.raises(LogError, match="Column 'size', row 0: nan"):
        learner.predict(requests(size=[np.nan, 0.0, 1.0, 1.0]))


def test_decisions_on_the_command_line_are_the_same(learner: HierOPO, tmp_path: Path) -> None:
    learner.save(tmp_path / "policy")
    assert (
        load_learner(tmp_path / "policy").predict(requests(**TOWNS)).tolist()
        == learner.predict(requests(**TOWNS)).tolist()
    )
    pq.write_table(requests(**TOWNS), tmp_path / "requests.parquet")
    pq.write_table(requests(), tmp_path / "bare.parquet")
    out = tmp_path / "out.parquet"
    answers("decide", tmp_path / "policy", tmp_path / "requests.parquet", "-o", out, "--top", "2")
    table = pq.read_table(out)
    first = table.filter(pa.compute.equal(table["rank"], 1))
    assert first["action"].to_pylist() == learner.predict(requests(**TOWNS)).tolist()
    law = learner.posterior_.new_task("town 1")
    assert first["mean"][0].as_py() == pytest.approx(law.mean[1], rel=1e-9)
    assert first["sd"][0].as_py() == pytest.approx(np.sqrt(law.cov[1, 1]), rel=1e-9)
    bare = ("decide", tmp_path / "policy", tmp_path / "bare.parquet", "-o", out, "--strict")
    assert "(role level)" in refuses(1, *bare)


@pytest.mark.slow
def test_a_mixture_of_hierarchies_answers_for_new_tasks_too() -> None:
    learner = HierOPO(task_cov="isotropic", uncertainty="integrated")
    learner.fit(logged(stores=12, rows=10), **ROLES, levels=["region"])
    asked = requests(region=["south", "south", "north", "north"])
    assert learner.predict(asked).tolist() == [1, 1, 0, 0]


def test_candidates_of_a_new_task_are_judged_by_its_group() -> None:
    log = logged()
    hot = np.eye(3)[log["offer"].to_numpy()]
    table = log
    for k in range(3):
        table = table.append_column(f"is {k}", pa.array(hot[:, k]))
    columns = [f"is {k}" for k in range(3)]
    learner = HierOPO(task_cov="diag", uncertainty="plug-in")
    with pytest.warns(HieropoWarning, match="nearly collinear"):
        learner.fit(table, task="store", reward="profit", context=columns, levels=["region"])
    rows = [(s, region, k) for s, region in ((100, "south"), (3, "south"), (101, "north")) for k in range(3)]
    asked = pa.table(
        {
            "visit": [str(s) for s, _, _ in rows], "store": [s for s, _, _ in rows],
            "region": [region for _, region, _ in rows],
            **{f"is {k}": [float(k == a) for _, _, a in rows] for k in range(3)},
        }
    )  # fmt: skip
    new_tasks = NewTasks.of(learner.roles_, lambda: learner._task_levels, lambda: learner.posterior_)
    parts = decide(learner.policy_, asked, task="store", request="visit", new_tasks=new_tasks)
    found = [row for part in parts for row in part.table["row"].to_pylist()]
    assert [rows[row][2] for row in found] == [1, 1, 0]


def service_like(learner: HierOPO) -> NewTasks:
    new_tasks = NewTasks.of(
        learner.roles_, lambda: learner._task_levels, lambda: learner.posterior_, remember=False
    )
    assert new_tasks is not None
    return new_tasks


def decided(learner: HierOPO, asked: pa.Table, new_tasks: NewTasks) -> Answers:
    (batch,) = RequestReader(
        TableSource(asked, "request"),
        request_columns(learner.policy_.features, new_tasks, task="store", carried=()),
        strict=False,
    ).batches()
    return answer(learner.policy_, batch, new_tasks, top=1, strict=False)


def test_new_tasks_without_end_take_bounded_memory(learner: HierOPO) -> None:
    new_tasks = service_like(learner)

    def asked(start: int) -> pa.Table:
        store = np.arange(start, start + 1_000)
        town = np.char.add("town ", (store % 9).astype(str))
        return pa.table({"store": store, "town": town, "region": np.where(store % 9 % 2, "south", "north")})

    decided(learner, asked(10_000), new_tasks)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for batch in range(1, 6):
        decided(learner, asked(10_000 + 1_000 * batch), new_tasks)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 30_000  # a dict of 5,000 tasks has 290,000 bytes


def test_priors_at_metadata_are_kept_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = HierOPO(task_cov="diag", uncertainty="plug-in").fit(logged(), **ROLES, metadata=["size"])
    asked = pa.table({"store": np.arange(100, 160), "size": np.linspace(-2, 2, 60)})
    expected = decided(learner, asked, service_like(learner))
    monkeypatch.setattr("hieropo.decisions.new_tasks._CACHE", 5 * learner.policy_.table.dim**2)
    new_tasks = service_like(learner)
    for _ in range(2):
        for values, right in zip(decided(learner, asked, new_tasks).choices, expected.choices, strict=True):
            np.testing.assert_array_equal(values, right)
    assert new_tasks._prior_of.cache_info().currsize == 5


def test_an_answer_that_remembers_no_request_depends_on_its_request_and_the_log(learner: HierOPO) -> None:
    """The same task in two groups gets the answer of each; a group of the log in another region has none."""
    asked = pa.table(
        {
            "store": [99, 99, 99, 98], "town": ["town 1", "town 0", "fresh", "town 1"],
            "region": ["south", "north", "north", "north"],
        }
    )  # fmt: skip
    new_tasks = service_like(learner)
    together = decided(learner, asked, new_tasks)
    alone = [decided(learner, asked.slice(k, 1), service_like(learner)) for k in range(4)]
    assert together.choices.index[:, 0].tolist() == [1, 0, 0, -1]
    for values, parts in zip(
        together.choices, zip(*(one.choices for one in alone), strict=True), strict=True
    ):
        np.testing.assert_array_equal(values, np.vstack(parts))
    (fault,) = together.faults
    assert fault.reason == CONTRADICTION
    assert fault.bad.tolist() == [False, False, False, True]
