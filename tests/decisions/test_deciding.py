"""Decisions in batch: pieces do not change the answer, files are whole or not there."""

import datetime as dt
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hieropo
from hieropo.decisions import candidates as candidates_module
from hieropo.decisions import decide
from hieropo.decisions.decisions import Decisions
from hieropo.errors import ArtifactError, InputError, NumericalError, UnknownTaskError
from hieropo.logs.arrow.writing import id_column, write_tables


@pytest.fixture(scope="module")
def policy() -> hieropo.LCBPolicy:
    """A policy over two columns, of three tasks."""
    rng = np.random.default_rng(0)
    task, phi = rng.integers(0, 3, 90), rng.normal(size=(90, 2))
    moments = hieropo.Moments.from_arrays(task, phi, phi @ [1.0, -1.0] + rng.normal(size=90))
    hierarchy = hieropo.Hierarchy(hyper=None, task_cov=np.eye(2), noise_var=1.0)
    return hieropo.LCBPolicy(hieropo.condition(moments, hierarchy), hieropo.Columns(("a", "b")))


@pytest.fixture(scope="module")
def candidates() -> pa.Table:
    """Forty requests of one to nine candidates, whose rows are mixed."""
    rng = np.random.default_rng(1)
    request = rng.permutation(np.repeat(np.arange(40), rng.integers(1, 10, 40)))
    task = (request * 7) % 4  # task 3 is new
    return pa.table({"request": request, "task": task, "a": rng.normal(size=request.size),
                     "b": rng.normal(size=request.size)})  # fmt: skip


def gathered(parts: Iterator[Decisions]) -> tuple[dict[str, list[Any]], int, int]:
    found = list(parts)
    table = pa.concat_tables([part.table for part in found])
    return table.to_pydict(), sum(part.requests for part in found), sum(part.unseen for part in found)


def test_candidates_are_chosen_as_one_by_one(policy: hieropo.LCBPolicy, candidates: pa.Table) -> None:
    found, requests, unseen = gathered(decide(policy, candidates, task="task", request="request"))
    columns = {name: candidates.column(name).to_numpy() for name in candidates.column_names}
    order = list(dict.fromkeys(columns["request"].tolist()))
    assert found["request"] == order
    assert (requests, unseen) == (40, 10)
    for k, request in enumerate(order):
        rows = np.flatnonzero(columns["request"] == request)
        phi = np.column_stack([columns["a"][rows], columns["b"][rows]])
        choice = policy.choose(int(columns["task"][rows[0]]), phi=phi)
        assert (found["row"][k], found["lower_bound"][k]) == (rows[choice.index], choice.lower_bound)


@pytest.mark.parametrize("block", [1, 7, 40])
@pytest.mark.parametrize("top", [1, 4])
def test_pieces_do_not_change_the_answer(
    policy: hieropo.LCBPolicy, candidates: pa.Table, monkeypatch: pytest.MonkeyPatch, block: int, top: int
) -> None:
    words = {"task": "task", "request": "request", "top": top}
    whole = gathered(decide(policy, candidates, **words))
    monkeypatch.setattr(candidates_module, "BLOCK", block)
    assert gathered(decide(policy, candidates, **words)) == whole


def test_batches_do_not_change_the_answer() -> None:
    rng = np.random.default_rng(2)
    n = 70_000  # more than one batch of rows
    log = pa.table({"t": rng.integers(0, 5, 300), "a": rng.integers(0, 2, 300), "r": rng.normal(size=300)})
    learner = hieropo.HierOPO().fit(log, task="t", action="a", reward="r")
    requests = pa.table({"t": rng.integers(0, 6, n)})
    found, count, unseen = gathered(decide(learner.policy_, requests, task="t"))
    assert found["row"] == list(range(n))
    assert found["action"] == learner.predict(requests).tolist()
    assert (count, unseen) == (n, int((requests["t"].to_numpy() == 5).sum()))


def test_a_row_beyond_the_first_batch_is_named_by_its_number_in_the_file() -> None:
    rng = np.random.default_rng(2)
    log = pa.table({"t": rng.integers(0, 5, 300), "a": rng.integers(0, 2, 300), "r": rng.normal(size=300)})
    learner = hieropo.HierOPO(unseen="error").fit(log, task="t", action="a", reward="r")
    tasks = np.zeros(70_000, dtype=np.int64)
    tasks[66_000] = 9
    requests = pa.table({"t": tasks})
    with pytest.raises(UnknownTaskError, match=r"Task 9 \(row 66000\)"):
        list(decide(learner.policy_, requests, task="t", strict=True))
    with pytest.raises(UnknownTaskError, match=r"Task 9 \(row 66000\)"):
        learner.predict(requests)


def test_a_candidate_is_refused_by_the_first_row_of_its_request(policy: hieropo.LCBPolicy) -> None:
    words = {"task": "task", "request": "request"}
    rows = {"request": [1, 1, 2, 2, 1, 3], "task": [0, 0, 0, 0, 0, 7], "a": [0.0, 0, 0, 1e308, 0, 0]}
    table = pa.table({**rows, "b": rows["a"]})
    with pytest.raises(NumericalError, match="Row 2: the lower bound of a candidate overflows"):
        list(decide(policy, table, strict=True, **words))
    strict = hieropo.LCBPolicy(policy.table, policy.features, unseen="error")
    with pytest.raises(UnknownTaskError, match=r"Task 7 \(row 3\)"):
        list(decide(strict, table.filter(pa.compute.field("request") != 2), strict=True, **words))


def test_the_wrong_kind_of_policy_is_refused(policy: hieropo.LCBPolicy, candidates: pa.Table) -> None:
    with pytest.raises(InputError, match="has no list of actions"):
        next(decide(policy, candidates, task="task"))
    listed = hieropo.LCBPolicy(policy.table, hieropo.indicator(["x", "y"]))
    with pytest.raises(InputError, match="cannot group rows"):
        next(decide(listed, candidates, task="task", request="request"))


@pytest.mark.parametrize(
    "ids",
    [["x", "y"], [1, 2], [True, False], [dt.date(2024, 1, 1), dt.date(2024, 1, 2)], [0.5, 1.5],
     [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)], [b"x"]],
    ids=lambda ids: type(ids[0]).__name__,
)  # fmt: skip
def test_ids_are_written_as_they_are(ids: list[Any]) -> None:
    assert id_column(ids).to_pylist() == ids


def test_ids_of_several_types_are_written_as_text() -> None:
    assert id_column([1, "x"]).to_pylist() == ["1", "x"]
    assert [str(one) for one in id_column([uuid.UUID(int=5)]).to_pylist()] == [str(uuid.UUID(int=5))]


def test_a_file_is_replaced_only_by_a_whole_one(tmp_path: Path) -> None:
    target = tmp_path / "out.parquet"
    assert write_tables(target, [{"x": [1, 2]}, pa.table({"x": [3]}), pa.record_batch({"x": [4]})]) == 4
    assert pq.read_table(target).to_pydict() == {"x": [1, 2, 3, 4]}

    def broken() -> Iterator[Any]:
        yield {"x": [9]}
        raise InputError("row 1 is bad")

    with pytest.raises(InputError, match="row 1 is bad"):
        write_tables(target, broken())
    assert pq.read_table(target).num_rows == 4
    assert [path.name for path in tmp_path.iterdir()] == ["out.parquet"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="there is no folder"):
        write_tables(tmp_path / "no" / "out.parquet", [{"x": [1]}])
    with pytest.raises(ArtifactError, match="is a folder"):
        write_tables(tmp_path, [{"x": [1]}])
