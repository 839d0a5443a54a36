from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from served_worlds import expected, rewards_of, run, wait_for_windows

from hieropo import HierOPO, LogMoments, load_learner
from hieropo.serve import Service, Settings
from hieropo.serve.learning import RunningTotal, base_moments, current, learned, with_rows
from hieropo.serve.messages import DecideRequest, Reward
from hieropo.serve.segments import read_rows


def feed(service: Service, numbers: range, **given: Any) -> None:
    decisions = run(
        service.decide(
            [
                DecideRequest(
                    task=(7 * n) % 12, context={"age": float(np.sin(n))}, decision_id=f"d{n}", **given
                )
                for n in numbers
            ]
        )
    )
    rewards = rewards_of(decisions, numbers.start)
    run(
        service.reward(
            [Reward(f"r{d.decision_id}", d.decision_id, r) for d, r in zip(decisions, rewards, strict=True)]
        )
    )


def sealed_in(service: Service, cuts: list[int]) -> None:
    """Make decisions and seal them in segments that end at the cuts."""
    start = 0
    for cut in cuts:
        feed(service, range(start, cut))
        wait_for_windows(service)
        service.state.seal()
        start = cut


def bits(moments: LogMoments) -> tuple[bytes, ...]:
    units = moments.moments
    return (
        units.sums.tobytes(),
        units.rows.tobytes(),
        np.asarray(moments.tasks).tobytes(),
        repr(moments.features).encode(),
    )


@pytest.mark.parametrize("half_life", [None, 15.0])
@pytest.mark.slow
def test_sums_are_those_of_one_pass_to_the_bit_whatever_the_segments(
    policy: Path, tmp_path: Path, half_life: float | None
) -> None:
    settings = Settings(window=10.0, half_life=half_life)
    service = Service(tmp_path / "state", settings, policy=policy, seed=1)
    sealed_in(service, [40, 41, 150, 300])
    state = service.state
    rows = read_rows(state.path, state.manifest.segments, "log", state.columns)
    created = state.manifest.created
    once = with_rows(RunningTotal(state.base()), rows, state.columns, settings, created)
    for cuts in ([0, 300], [0, 1, 2, 7, 299, 300], [0, 40, 41, 150, 300]):
        total = RunningTotal(state.base())
        for start, stop in pairwise(cuts):
            total = with_rows(total, rows.slice(start, stop - start), state.columns, settings, created)
        assert bits(total.moments) == bits(once.moments)
        assert (total.exponent, total.last) == (once.exponent, once.last)
    kept = state.summed()
    assert bits(kept.moments) == bits(once.moments)
    assert bits(LogMoments.load(state.path / state.manifest.sums)) == bits(once.moments)
    one, other = (learned(current(total, settings, created), state.learner())[0] for total in (once, kept))
    assert one.policy_.table.means.tobytes() == other.policy_.table.means.tobytes()
    service.close()


def test_decay_is_a_weight_by_age_with_the_newest_row_at_one(policy: Path, tmp_path: Path) -> None:
    settings = Settings(window=10.0, half_life=30.0, base=False)
    service = Service(tmp_path / "state", settings, policy=policy, seed=1)
    sealed_in(service, [20, 60])
    state = service.state
    rows = read_rows(state.path, state.manifest.segments, "log", state.columns)
    ages = (pc.max(rows["decided_at"]).value - rows["decided_at"].cast(pa.int64()).to_numpy()) / 1e6
    weighted = rows.append_column("w", pa.array(0.5 ** (ages / 30.0)))
    features = state.base().features
    direct = LogMoments.of(
        weighted, features=features, task="store", action="offer", reward="profit", weight="w"
    )
    total = current(state.summed(), settings, state.manifest.created)
    order = np.argsort(direct.tasks)
    np.testing.assert_allclose(
        total.moments.rows.reshape(len(total), -1)[np.argsort(total.tasks)],
        direct.moments.rows.reshape(len(direct), -1)[order],
    )
    assert total.n_rows == pytest.approx((0.5 ** (ages / 30.0)).sum())
    service.close()


def test_a_new_action_of_the_incumbent_is_learned(policy: Path, tmp_path: Path) -> None:
    settings = Settings(window=10.0, swap="always", control=0.5)
    service = Service(tmp_path / "state", settings, policy=policy, seed=1)
    feed(service, range(200), incumbent="voucher")
    wait_for_windows(service)
    started = service.start("refresh")
    service.wait()
    ended = service.job(started.job_id)
    assert ended is not None
    assert "Version 2 is active" in str(ended.result)
    assert set(service.engine.actions) == {"none", "coupon", "gift", "voucher"}
    decision = run(service.decide([DecideRequest(task=1, context={"age": 0.0})]))[0]
    assert "voucher" in {entry.action for entry in decision.probabilities}
    service.close()


@pytest.mark.slow
def test_a_refresh_swaps_by_the_rule_and_says_why(policy: Path, tmp_path: Path) -> None:
    results = {}
    for rule in ("never", "not-worse"):
        service = Service(tmp_path / rule, Settings(window=10.0, swap=rule, floor=0.5), policy=policy, seed=1)
        feed(service, range(300))
        wait_for_windows(service)
        for _ in range(1):
            started = service.start("refresh")
            service.wait()
            ended = service.job(started.job_id)
            assert ended is not None
            assert ended.state == "done"
            results.setdefault(rule, []).append(str(ended.result))
        service.close()
    assert "waits to be activated" in results["never"][0]
    assert "Version 2 is offered" in results["never"][0]
    assert "lead over the active policy" in results["not-worse"][0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noisy", "checks", "misfit", "swapped"),
    [(False, True, False, True), (True, True, True, False), (True, False, False, True)],
)
def test_predictive_checks_are_quiet_in_the_world_of_the_policy_and_stop_a_swap_in_another(
    policy: Path, tmp_path: Path, *, noisy: bool, checks: bool, misfit: bool, swapped: bool
) -> None:
    """Rewards of a sixth of the rows are far noisier in the other world, which the policy cannot say.

    The served policy is nearly the best there is, so with few such rows the lead alone may already stop a swap.
    """
    settings = Settings(window=10.0, swap="not-worse", floor=0.5, checks=checks)
    service = Service(tmp_path / "state", settings, policy=policy, seed=1)
    rng = np.random.default_rng(4)
    stores, ages = rng.integers(12, size=1_200).tolist(), rng.normal(size=1_200).tolist()
    requests = [
        DecideRequest(task=store, context={"age": age}, decision_id=f"d{n}")
        for n, (store, age) in enumerate(zip(stores, ages, strict=True))
    ]
    rewards = []
    for n, decision in enumerate(run(service.decide(requests))):
        sd = 3.0 if noisy and ages[n] > 1.0 else 0.5
        rewards.append(
            Reward(f"r{n}", f"d{n}", expected(stores[n], decision.action, ages[n]) + sd * float(rng.normal()))
        )
    run(service.reward(rewards))
    wait_for_windows(service)
    started = service.start("refresh")
    service.wait()
    result = str(service.job(started.job_id).result)  # type: ignore[union-attr]
    assert ("Predictive checks found" in result) == misfit, result
    assert ("is active" in result) == swapped, result
    service.close()


def test_moments_of_a_fit_are_the_start(policy: Path) -> None:
    learner = load_learner(policy)
    again, _ = learned(base_moments(learner), learner)
    np.testing.assert_allclose(again.policy_.table.means, learner.policy_.table.means, rtol=1e-9)


def test_a_refreshed_policy_keeps_the_drift_of_its_first_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    store, offer, time = np.repeat(np.arange(20), 30), rng.integers(0, 3, 600), rng.random(600)
    path = 2.0 * np.cumsum(rng.normal(size=(50, 3)), axis=0) / 50**0.5 + rng.normal(size=3)
    profit = path[(50 * time).astype(int), offer] + rng.normal(size=600)
    log = pa.table({"store": store, "offer": offer, "when": time, "profit": profit})
    first = HierOPO(logging="random").fit(log, task="store", action="offer", reward="profit", time="when")
    assert first.drift_ is not None
    assert first.drift_.zeta > 0.0
    loaded = load_learner(first.save(tmp_path / "policy"))
    again, _ = learned(base_moments(loaded), loaded)
    assert again.drift_ == first.drift_
    np.testing.assert_allclose(again.policy_.table.covs, first.policy_.table.covs, rtol=1e-6)
    assert "drift in time" in again.summary().note
    twice, _ = learned(base_moments(again), load_learner(again.save(tmp_path / "again")))
    np.testing.assert_allclose(twice.policy_.table.covs, first.policy_.table.covs, rtol=1e-6)


@pytest.mark.slow
def test_rows_of_the_record_join_a_policy_whose_rows_formed_clusters(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    visit = np.repeat(np.arange(120), 4)
    log = pa.table(
        {
            "store": visit // 10, "offer": rng.choice(["a", "b"], 120)[visit], "age": rng.normal(size=480),
            "profit": rng.normal(size=120)[visit] + rng.normal(size=480), "visit": visit,
        }
    )  # fmt: skip
    roles = {"task": "store", "action": "offer", "reward": "profit", "context": ["age"], "cluster": "visit"}
    learner = HierOPO(logging="random").fit(log, **roles)
    assert learner.cluster_correlation_ is not None
    assert learner.cluster_correlation_.any()
    again, _ = learned(base_moments(learner), learner)
    np.testing.assert_allclose(again.policy_.table.means, learner.policy_.table.means, rtol=1e-9)
    service = Service(
        tmp_path / "state", Settings(window=10.0), policy=learner.save(tmp_path / "policy"), seed=1
    )
    sealed_in(service, [40])
    total = service.state.summed().moments
    assert total.n_rows == 520
    assert total.roles.cluster is None
    service.close()
