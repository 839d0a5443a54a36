"""Null for a number of the context is decided as by `decide` where the policy has a prior for it, and else refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from served_clients import client_of
from served_worlds import COLUMNS, log, rewards_of, run, wait_for_windows

from hieropo import HierOPO, load_learner
from hieropo.errors import SchemaError
from hieropo.rows.columns import HUGE
from hieropo.serve import Service, Settings
from hieropo.serve.columns import RecordColumns
from hieropo.serve.journal import EVENT
from hieropo.serve.messages import DecideRequest, Reward

NULL: dict[str, Any] = {"task": 3, "context": {"age": None}}


@pytest.fixture(scope="module")
def careful(tmp_path_factory: pytest.TempPathFactory) -> Path:
    roles = {name: COLUMNS[name] for name in ("task", "action", "reward")}
    learner = HierOPO("age; missing='prior'", logging="random").fit(log(), **roles)
    return learner.save(tmp_path_factory.mktemp("careful") / "policy")


def test_a_null_is_decided_with_the_doubt_of_decide_and_learned_from(careful: Path, tmp_path: Path) -> None:
    service = Service(tmp_path / "state", Settings(window=10.0, swap="always"), policy=careful, seed=0)
    given = [None, 0.5, None, 1.0] * 10
    requests = [DecideRequest(task=number % 12, context={"age": age}) for number, age in enumerate(given)]
    made = service._prepared(requests)
    asked = {"store": [int(request.task) for request in requests], "age": pa.array(given, pa.float64())}
    rows = load_learner(careful).decide(pa.table(asked), top=3).table.to_pylist()
    by_action = {(row["row"], row["action"]): (row["mean"], row["sd"]) for row in rows}
    for number, one in enumerate(made):
        event = EVENT.decode(one.new.event)
        mean, sd = by_action[number, event.decision.action]
        assert event.context == {"age": given[number]}
        assert event.mean == mean
        assert event.sd == float(np.hypot(sd, service.engine.noise_sd))
    decisions = run(service.decide(requests))
    rewards = zip(decisions, rewards_of(decisions), strict=True)
    run(service.reward([Reward(f"r{d.decision_id}", d.decision_id, value) for d, value in rewards]))
    wait_for_windows(service)
    job = service.start("refresh")
    service.wait()
    assert service.job(job.job_id).state == "done"
    assert service.engine.number == 2
    assert service.state.left_out() == {}
    service.close()
    assert pq.read_table(tmp_path / "state" / "log")["age"].null_count == 20


def test_the_description_says_which_numbers_may_be_null(careful: Path, policy: Path, tmp_path: Path) -> None:
    number = {"type": "number", "minimum": -HUGE, "maximum": HUGE}
    for source, status, schema in (
        (careful, 200, {"anyOf": [number, {"type": "null"}]}), (policy, 422, number),
    ):  # fmt: skip
        with client_of(source, tmp_path / str(status)) as client:
            answers = [
                client.post("/v1/decide", json=NULL),
                client.post("/v1/decide:batch", json=[NULL, NULL]),
            ]
            assert [answer.status_code for answer in answers] == [status, status], answers[0].text
            document = client.get("/openapi.json").json()
        context = document["components"]["schemas"]["DecideRequest"]["properties"]["context"]
        assert context["properties"]["age"] == schema
    assert "'age' in the context is null" in answers[0].json()["detail"]
    assert "missing='prior'" in answers[1].json()["detail"]


def test_metadata_are_never_null() -> None:
    number = (("age", "number"),)
    columns = RecordColumns(
        (("store", "int"),), "offer", "text", "profit", number, metadata=(("size", "number"),)
    )
    columns.check(DecideRequest(task=1, context={"age": None, "size": 2.0}), {"age"})
    with pytest.raises(SchemaError, match="'size' in the context is null"):
        columns.check(DecideRequest(task=1, context={"age": 1.0, "size": None}), {"age"})
