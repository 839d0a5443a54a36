"""A system clock that is set moves no window while a service runs, and time never goes back after a start."""

import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from served_worlds import run, wait_for_windows

from hieropo.serve import Service, Settings
from hieropo.serve.messages import DecideRequest, Reward

DAY = 86_400 * 10**9


@pytest.mark.parametrize("shift", [-DAY, DAY])
def test_a_clock_that_is_set_moves_no_window(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shift: int
) -> None:
    real = time.time_ns

    def decided(service: Service, name: str) -> Any:
        return run(service.decide([DecideRequest(task=1, context={"age": 0.0}, decision_id=name)]))[0]

    def rewarded(service: Service, name: str) -> str:
        return str(run(service.reward([Reward(f"r-{name}", name, 1.0)]))[0].status)

    service = Service(tmp_path / "state", Settings(window=60.0), policy=policy)
    first = decided(service, "a")
    monkeypatch.setattr(time, "time_ns", lambda: real() + shift)
    second = decided(service, "b")
    assert (
        abs(pd.Timestamp(second.reward_deadline) - pd.Timestamp(first.reward_deadline)).total_seconds() < 30
    )
    assert rewarded(service, "a") == "recorded"
    service.close()
    again = Service(tmp_path / "state", Settings(window=60.0))  # starts while the clock is wrong
    third = decided(again, "c")
    assert pd.Timestamp(third.reward_deadline) > pd.Timestamp(second.reward_deadline)
    assert rewarded(again, "c") == "recorded"
    monkeypatch.setattr(time, "time_ns", real)
    again.close()
    last = Service(tmp_path / "state", Settings(window=60.0))  # and after it was set right
    assert pd.Timestamp(decided(last, "d").reward_deadline) > pd.Timestamp(third.reward_deadline)
    wait_for_windows(last, 120.0)
    last.start("seal")
    last.wait()
    log = pd.read_parquet(tmp_path / "state" / "log")
    assert log["decision_id"].tolist() == ["a", "b", "c", "d"]
    assert log["decided_at"].is_monotonic_increasing
    last.close()
