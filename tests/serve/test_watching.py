from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from served_worlds import rewards_of, run, wait_for_windows

from hieropo.report import page
from hieropo.serve import Service, Settings
from hieropo.serve.messages import DecideRequest, Reward
from hieropo.serve.status import status_document, status_of, status_text
from hieropo.serve.watching import evidence


@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_false_alarms_are_no_more_often_than_stated_at_any_time(alpha: float) -> None:
    rng = np.random.default_rng(0)
    alarms = np.mean([(evidence(rng.normal(size=1000)) >= 1 / alpha).any() for _ in range(2000)])
    assert alarms <= alpha + 3 * np.sqrt(alpha * (1 - alpha) / 2000)
    assert alarms > alpha / 20  # and the test is not idle


def test_a_shift_is_found() -> None:
    rng = np.random.default_rng(1)
    crossed = [(evidence(rng.normal(size=300) + 0.5) >= 100).any() for _ in range(100)]
    assert np.mean(crossed) == 1.0


@pytest.mark.slow
def test_the_page_draws_rewards_against_predictions_shifts_and_modes_over_time(
    policy: Path, tmp_path: Path
) -> None:
    settings = Settings(window=10.0, exploration="sampling", floor=0.3)
    service = Service(tmp_path / "state", settings, policy=policy, seed=0)
    for _ in range(3):
        requests = [DecideRequest(task=k % 12, context={"age": 0.1 * k}) for k in range(40)]
        requests += [DecideRequest(task=3, context={"age": 0.0}, eligible=["new"], incumbent="new")] * 4
        decisions = run(service.decide(requests))
        rewards = zip(decisions, rewards_of(decisions), strict=True)
        run(service.reward([Reward(f"r{d.decision_id}", d.decision_id, value) for d, value in rewards]))
        wait_for_windows(service)
    service.start("seal")
    service.wait()
    service.close()
    status = status_of(tmp_path / "state", settings)
    log = pd.read_parquet(tmp_path / "state" / "log").sort_values("decided_at", kind="stable")
    watched = status["watch"]
    assert "A decision joins it when its window of 10 s is over" in status_text(status)
    for one in watched["actions"]:
        rows = log[(log.offer == one["action"]) & log.predicted_mean.notna()]
        parts = one["history"]
        assert len(parts) == min(12, len(rows) // 10) if len(rows) >= 20 else not parts
        assert sum(part["rows"] for part in parts) in (0, len(rows))
        if parts:
            first = rows.iloc[: parts[0]["rows"]]
            assert parts[0]["reward"] == pytest.approx(first.profit.mean())
            assert parts[0]["predicted"] == pytest.approx(first.predicted_mean.mean())
            assert parts[0]["reward_error"] == pytest.approx(first.profit.sem())
    shares = pd.DataFrame([part["shares"] for part in watched["mode_history"]])
    assert shares.sum(axis=1).to_numpy() == pytest.approx(1.0)
    assert shares["fallback"].mean() == pytest.approx(12 / 132, abs=0.01)
    text = page(status_document(status))
    for name in ("Rewards and predictions of action", "Shares of modes", "Shifts between the older"):
        assert name in text
    empty = status_document({**status, "watch": {**watched, "rows": 0, "actions": [], "mode_history": []}})
    assert "Shares of modes" not in page(empty)
