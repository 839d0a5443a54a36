import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import numpy as np
import pandas as pd
import pytest
from served_worlds import COLUMNS, OFFERS, rewards_of, run, wait_for_windows

from hieropo import HierOPO, InputError, examine
from hieropo.errors import ArtifactError, SchemaError
from hieropo.learners.loading import roles_of
from hieropo.serve import Service, Settings
from hieropo.serve.columns import RecordColumns
from hieropo.serve.journal import EVENT, ConflictError, FullError
from hieropo.serve.messages import DecideRequest, Decision, Event, Reward
from hieropo.serve.plain import PlainDecider
from hieropo.storage.load import load_policy

QUICK: dict[str, Any] = {"window": 10.0, "swap": "always"}


def request(number: int = 0, **given: Any) -> DecideRequest:
    return DecideRequest(
        **{"task": number % 12, "context": {"age": 0.1 * number}, "decision_id": f"d{number}", **given}
    )


def decided(service: Service, numbers: range, **given: Any) -> list[Decision]:
    return run(service.decide([request(number, **given) for number in numbers]))


def rewarded(service: Service, decisions: list[Decision], prefix: str = "r") -> list[str]:
    values = rewards_of(decisions)
    statuses = run(
        service.reward(
            [
                Reward(f"{prefix}-{d.decision_id}", d.decision_id, value)
                for d, value in zip(decisions, values, strict=True)
            ]
        )
    )
    return [status.status for status in statuses]


def log_of(service: Service) -> pd.DataFrame:
    return pd.read_parquet(service.state.path / "log")


def job(service: Service, kind: str, argument: str | None = None) -> str:
    started = service.start(kind, argument)
    service.wait()
    ended = service.job(started.job_id)
    assert ended is not None
    assert ended.state == "done", ended
    return str(ended.result)


@pytest.fixture
def service(policy: Path, tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path / "state", Settings(**QUICK), policy=policy, seed=0)
    yield service
    service.close()


def test_the_same_id_and_body_replay_the_answer_and_another_body_is_refused(service: Service) -> None:
    first = decided(service, range(3))
    assert decided(service, range(3)) == first
    with pytest.raises(ConflictError, match="another body"):
        run(service.decide([request(1, task=5)]))
    with pytest.raises(ConflictError, match="same decision_id"):
        run(service.decide([request(7), request(7)]))
    assert rewarded(service, first) == ["recorded"] * 3
    assert rewarded(service, first) == ["duplicate"] * 3
    with pytest.raises(ConflictError, match="reward_id"):
        run(service.reward([Reward("new", "d0", 1.0), Reward("r-d1", "d1", 99.0)]))
    assert run(service.reward([Reward("new", "d0", 1.0)]))[0].status == "recorded"
    assert run(service.reward([Reward("x", "never", 1.0)]))[0].status == "unknown"


def test_a_restart_keeps_all_and_answers_the_same(policy: Path, tmp_path: Path) -> None:
    service = Service(tmp_path / "state", Settings(**QUICK), policy=policy)
    first = decided(service, range(5))
    rewarded(service, first)
    service.close()
    again = Service(tmp_path / "state", Settings(**QUICK))
    assert decided(again, range(5)) == first
    wait_for_windows(again)
    job(again, "seal")
    assert decided(again, range(5)) == first  # answers of sealed decisions are kept for a time
    assert rewarded(again, first, "late") == ["late"] * 5
    again.close()


@pytest.mark.parametrize(("several", "value"), [("sum", 6.0), ("first", 1.0), ("last", 2.0), ("max", 3.0)])
def test_sealed_rows_are_decisions_with_their_rewards_by_the_rule(
    policy: Path, tmp_path: Path, several: Any, value: float
) -> None:
    service = Service(tmp_path / "state", Settings(window=10.0, several=several, default=-1.0), policy=policy)
    decided(service, range(3))
    for name, reward in (("a", 1.0), ("b", 3.0), ("c", 2.0)):
        run(service.reward([Reward(name, "d1", reward)]))
    wait_for_windows(service)
    assert run(service.reward([Reward("z", "d1", 50.0)]))[0].status == "late"
    job(service, "seal")
    rows = log_of(service)
    assert rows["profit"].tolist() == [-1.0, value, -1.0]
    assert rows["n_rewards"].tolist() == [0, 3, 0]
    rewards = pd.read_parquet(service.state.path / "rewards")
    assert rewards["late"].tolist() == [False, False, False, True]
    service.close()


def test_decisions_without_a_reward_or_not_activated_are_no_rows_and_are_kept(
    policy: Path, tmp_path: Path
) -> None:
    service = Service(tmp_path / "state", Settings(window=10.0, default=None), policy=policy)
    decided(service, range(2))
    (deferred,) = decided(service, range(2, 3), defer=True)
    (activated,) = decided(service, range(3, 4), defer=True)
    assert run(service.activate_decision("d3")) == activated
    assert run(service.activate_decision("d3")) == activated
    for decision in ("d0", "d2", "d3"):
        run(service.reward([Reward(f"r{decision}", decision, 1.0)]))
    wait_for_windows(service)
    job(service, "seal")
    assert log_of(service)["decision_id"].tolist() == ["d0", "d3"]
    others = pd.read_parquet(service.state.path / "others")
    assert dict(zip(others["decision_id"], others["left_out"], strict=True)) == {
        "d1": "no reward", deferred.decision_id: "not activated",
    }  # fmt: skip
    service.close()


@pytest.mark.slow
def test_the_log_is_read_by_pandas_duckdb_fit_evaluate_and_doctor_as_it_lies(
    policy: Path, tmp_path: Path
) -> None:
    service = Service(tmp_path / "state", Settings(**QUICK, floor=0.6), policy=policy, seed=0)
    rewarded(service, decided(service, range(250)))
    wait_for_windows(service)
    job(service, "seal")
    folder = service.state.path / "log"
    assert len(log_of(service)) == 250
    assert duckdb.sql(f"SELECT count(*) FROM '{folder}/*.parquet'").fetchall() == [(250,)]
    columns = {**COLUMNS, "pscore": "propensity", "eligible": "eligible", "time": "decided_at"}
    learner = HierOPO(logging="random").fit(folder, **columns)
    assert learner.evaluate(folder).estimate("DR").value == pytest.approx(0.3, abs=0.4)
    assert not [finding for finding in examine(folder, **columns).findings if finding.severity == "stops"]
    service.close()


def test_ids_whose_answer_is_dropped_are_still_known(policy: Path, tmp_path: Path) -> None:
    service = Service(tmp_path / "state", Settings(window=1.0, keep_answers=0), policy=policy)
    first = decided(service, range(2))
    rewarded(service, first)
    wait_for_windows(service)
    job(service, "seal")
    with pytest.raises(ConflictError, match="no longer kept"):
        decided(service, range(1))
    assert rewarded(service, first) == ["duplicate"] * 2
    assert rewarded(service, first, "more") == ["late"] * 2
    service.close()


def test_propensities_are_those_of_the_actions_that_were_done(policy: Path, tmp_path: Path) -> None:
    settings = Settings(window=10.0, exploration="sampling", floor=0.1, control=0.3)
    service = Service(tmp_path / "state", settings, policy=policy, seed=3)
    requests = [
        DecideRequest(task=2, context={"age": 0.5}, eligible=["coupon", "gift", "new"], incumbent="gift")
        for _ in range(4000)
    ]
    decisions = run(service.decide(requests))
    stated = {entry.action: entry.probability for entry in decisions[0].probabilities}
    assert sum(stated.values()) == pytest.approx(1.0)
    assert stated["new"] == pytest.approx(
        0.7 * 0.1 / 3
    )  # unknown to the policy: its share of the floor alone
    assert stated["gift"] > 0.3
    for action, probability in stated.items():
        share = np.mean([decision.action == action for decision in decisions])
        assert share == pytest.approx(probability, abs=4 * np.sqrt(probability * (1 - probability) / 4000))
    assert all(decision.propensity == stated[decision.action] for decision in decisions)
    assert {decision.mode for decision in decisions} == {"explore"}
    assert decisions[0].unseen == ["action"]
    service.close()


def test_modes_say_how_the_action_came_about(policy: Path, tmp_path: Path) -> None:
    plain = Service(tmp_path / "plain", Settings(exploration="none"), policy=policy)
    (decision,) = decided(plain, range(1))
    assert (decision.mode, decision.propensity) == ("policy", 1.0)
    assert not plain.ready().judgeable
    assert "propensity 1" in " ".join(plain.ready().notes)
    (fallback,) = decided(plain, range(1, 2), eligible=["new"], incumbent="new")
    assert (fallback.mode, fallback.action) == ("fallback", "new")
    with pytest.raises(InputError, match="no action"):
        decided(plain, range(2, 3), eligible=["new"])
    plain.close()
    shadow = Service(tmp_path / "shadow", Settings(shadow=True, window=1.0), policy=policy)
    (decision,) = decided(shadow, range(1), incumbent="none")
    assert (decision.mode, decision.action, decision.propensity) == ("shadow", "none", 1.0)
    with pytest.raises(InputError, match="incumbent"):
        decided(shadow, range(1, 2))
    wait_for_windows(shadow)
    job(shadow, "seal")
    assert log_of(shadow)["would_action"].isin(OFFERS).all()
    shadow.close()


def test_a_gate_leaves_tasks_to_the_incumbent(policy: Path, tmp_path: Path) -> None:
    from hieropo import GatedPolicy, load_learner

    learner = load_learner(policy)
    harm = np.where(np.arange(12) < 6, 0.0, 1.0)
    learner.save(tmp_path / "gated", policy=GatedPolicy(learner.policy_, harm, 0.1, "none"))
    service = Service(tmp_path / "state", Settings(**QUICK), policy=tmp_path / "gated")
    tasks = np.asarray(learner.policy_.table.keys.locate(np.arange(12)))
    modes = [decision.mode for decision in decided(service, range(12))]
    assert [mode == "gate" for mode in modes] == (harm[tasks] == 1.0).tolist()
    gated = next(d for d in decided(service, range(12)) if d.mode == "gate")
    assert (gated.action, gated.propensity) == ("none", 1.0)
    service.close()


def test_versions_go_forward_and_back_and_a_second_process_is_refused(service: Service, policy: Path) -> None:
    number = service.offer(str(policy))
    assert number == 2
    service.activate(2)
    assert decided(service, range(1))[0].policy_version == 2
    service.activate(1)
    assert decided(service, range(1, 2))[0].policy_version == 1
    assert [version.state for version in service.versions().versions] == ["active", "offered"]
    with pytest.raises(LookupError):
        service.activate(9)
    with pytest.raises(ArtifactError, match="Another process"):
        Service(service.state.path)


def test_a_full_queue_is_refused_or_falls_back_and_is_counted(policy: Path, tmp_path: Path) -> None:
    service = Service(tmp_path / "state", Settings(queue=3), policy=policy)
    with pytest.raises(FullError):
        decided(service, range(5))
    decisions = decided(service, range(5), incumbent="gift")
    assert {(d.mode, d.action, d.reward_deadline) for d in decisions} == {("fallback", "gift", None)}
    text = service.metrics.text(waiting=0, version=1).decode()
    assert "hieropo_unrecorded_fallbacks_total 5.0" in text
    assert 'refused_requests_total{reason="full"} 5.0' in text
    service.close()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"task": "three"}, "'store' is not a whole number"),
        ({"task": [1, 2]}, "2 part"),
        ({"context": {}}, "no 'age'"),
        ({"context": {"age": "old"}}, "not a number"),
        ({"context": {"age": 1.0, "zebra": 2.0}}, "2 entries"),
        ({"eligible": [3]}, "'offer' is not a text"),
    ],
)
def test_a_request_of_other_types_is_refused_without_its_values(
    service: Service, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words) as caught:
        run(service.decide([request(0, **given)]))
    assert not any(str(value) in str(caught.value) for value in ("three", "zebra"))


def test_a_new_state_needs_a_policy(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--policy"):
        Service(tmp_path / "state")


@pytest.mark.parametrize(
    "settings",
    [
        {"floor": 0.3},
        {"exploration": "none"},
        {"exploration": "sampling", "floor": 0.1},
        {"exploration": "sampling", "floor": 0.0},
    ],
)
def test_requests_that_restrict_nothing_are_decided_as_all_others(
    policy: Path, tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(tmp_path / "state", Settings(window=10.0, **settings), policy=policy)
    requests = [request(number, task=number % 15, client_at="2026") for number in range(200)]

    def made() -> tuple[list[dict[str, Any]], list[Event]]:
        service._rng = np.random.default_rng(7)
        ready = service._prepared(requests)
        assert len({one.new.deadline for one in ready}) == 1
        answers = [msgspec.json.decode(one.answer) for one in ready]
        return [{**one, "reward_deadline": ""} for one in answers], [
            EVENT.decode(one.new.event) for one in ready
        ]

    answers, events = made()
    monkeypatch.setattr("hieropo.serve.plain._MIDDLES", 600)  # of a few prepared answers
    service._plain = None
    assert made()[0] == answers
    assert sum(map(len, service._plain._middles.values())) <= 600
    monkeypatch.setattr(PlainDecider, "rows", lambda *_: [])
    others, other_events = made()
    assert answers == others
    assert {tuple(answer["unseen"]) for answer in answers} == {(), ("task",)}
    for event, other in zip(events, other_events, strict=True):
        assert (event.mean, event.sd) == (other.mean, other.sd)
        assert event.eligible == other.eligible == sorted(OFFERS)
        assert (event.task, event.context, event.client_at) == (other.task, other.context, "2026")
    service.close()


def test_one_conflict_among_requests_that_wait_together_leaves_the_others_alone(service: Service) -> None:
    (first,) = decided(service, range(1))

    async def together() -> list[Any]:
        asked = [
            request(0),
            request(0, task=9),
            request(1),
            request(2, eligible=["new"]),
            request(3),
            request(3),
        ]
        return await asyncio.gather(*(service.answer(one) for one in asked), return_exceptions=True)

    answers = run(together())
    assert msgspec.json.decode(answers[0], type=Decision) == first
    assert isinstance(answers[1], ConflictError)
    assert isinstance(answers[3], InputError)
    assert answers[4] == answers[5]
    assert len(set(answers[2:3] + answers[4:5])) == 2


def test_a_policy_without_a_task_column_is_refused_at_the_start(policy: Path) -> None:
    stored = load_policy(policy)
    roles = dataclasses.replace(roles_of(stored), task=None)
    with pytest.raises(InputError, match=r"without a task column.*Add a column"):
        RecordColumns.of(roles, stored.features, [])


def test_answers_are_the_same_bytes_however_they_are_put_together(policy: Path, tmp_path: Path) -> None:
    service = Service(tmp_path / "state", Settings(exploration="sampling"), policy=policy, seed=0)
    decider = PlainDecider(service.engine, service.settings)
    probabilities = np.array([[0.2, 0.3, 0.5], [1e-9, 1 - 2e-9, 1e-9], [1 / 3, 1 / 3, 1 / 3]])
    given = [1, 2, 0], ["a", "b.c", "d:0"], "2026-01-01T00:00:00.000+00:00", [True, False, True]
    answers = decider._sampled(probabilities, *given)
    assert answers == decider._encoded(probabilities.tolist(), *given)
    probabilities[1] = [0.0, 1.0, 0.0]
    modes = [mode for _, mode in decider._sampled(probabilities, *given)]
    assert modes == ["explore", "policy", "explore"]
    service.close()


@pytest.mark.parametrize(
    "bad",
    [
        {"context": {"age": 1e200}},
        {"context": {"age": True}},
        {"context": {"age": "1"}},
        {"context": {"age": None}},
        {"context": {"other": 1.0}},
        {"context": {}},
        {"context": {"age": 1.0, "other": 2.0}},
        {"task": "3"},
        {"task": [3]},
        {"eligible": [5]},
        {"exclude": [5]},
        {"incumbent": 5},
    ],
)
def test_requests_that_are_checked_together_are_refused_as_each_alone(
    service: Service, bad: dict[str, Any]
) -> None:
    requests = [request(1), request(2, **bad), request(3)]
    if bad == {"task": [3]}:
        assert len(run(service.decide(requests))) == 3
        return
    with pytest.raises(SchemaError) as alone:
        run(service.decide(requests[1:2]))
    with pytest.raises(SchemaError) as together:
        run(service.decide(requests))
    assert str(together.value) == f"Request 1: {alone.value}"
