import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from click.testing import CliRunner
from served_worlds import grouped, run, wait_for_windows

from hieropo import HierOPO
from hieropo.cli import main
from hieropo.errors import HieropoWarning, InputError, LogError
from hieropo.serve import Service, Settings
from hieropo.serve.messages import DecideRequest, Reward
from hieropo.serve.usable import refused_rows


@pytest.fixture(scope="module")
def regional(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return grouped(tmp_path_factory.mktemp("regional"))


def request(number: int, **given: Any) -> DecideRequest:
    store = given.pop("task", number % 12)
    region = given.pop("region", ("north", "south", "west")[store % 3])
    context = {"age": float(np.sin(number)), "device": "phone", "region": region, **given}
    return DecideRequest(task=store, context=context, decision_id=f"d{number}")


def result_of(service: Service, kind: Any) -> str:
    started = service.start(kind)
    service.wait()
    ended = service.job(started.job_id)
    assert ended is not None
    assert ended.state == "done", ended
    return str(ended.result)


@pytest.mark.slow
def test_a_row_that_contradicts_its_group_is_told_and_stops_no_refresh(
    regional: Path, tmp_path: Path
) -> None:
    service = Service(tmp_path / "state", Settings(window=10.0, swap="always"), policy=regional, seed=0)
    usual = [request(number) for number in range(24)]
    moved = [request(100, task=3, region="south"), request(101, task=50, region="east")]
    run(service.decide([*usual, *moved]))
    run(service.reward([Reward(f"r{number}", f"d{number}", 0.1 * (number % 7)) for number in range(24)]))
    wait_for_windows(service)
    run(service.decide([request(102, task=4)]))
    assert "Not learned from: 1 (another group than before)." in result_of(service, "refresh")
    run(service.decide([request(103, task=3, region="west"), request(104, task=51, region="east")]))
    wait_for_windows(service)
    assert "Not learned from: 1 (another group than before)." in result_of(service, "refresh")
    state = service.state.path
    others = pd.read_parquet(state / "others")
    assert others["decision_id"].tolist() == ["d100", "d103"]
    assert len(pd.read_parquet(state / "log")) == 27
    columns = {"task": "store", "action": "offer", "reward": "profit", "context": ["age", "device"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HieropoWarning)  # few rows
        HierOPO(logging="random").fit(state / "log", **columns, levels=["region"])  # a log that fits read
    assert (
        'left_out_rows{reason="another group than before"} 2.0'
        in service.metrics.text(waiting=0, version=1).decode()
    )
    service.close()
    again = Service(state)
    run(again.decide([request(105, task=50, region="north")]))  # the region of the log, after a start too
    wait_for_windows(again, 1e6)
    assert "Not learned from: 1 (another" in result_of(again, "refresh")
    again.close()


@pytest.mark.slow
def test_unknown_tasks_and_levels_are_counted_and_shown(regional: Path, tmp_path: Path) -> None:
    service = Service(tmp_path / "state", Settings(window=10.0), policy=regional, seed=0)
    new = [request(30, task=70, region="east"), request(31, device="watch"), request(32, task=71)]
    decisions = run(service.decide([request(number) for number in range(10)] + new))
    assert [decision.unseen for decision in decisions[-3:]] == [
        ["task", "level:region"],
        ["level:device"],
        ["task"],
    ]
    assert decisions[0].unseen == []
    wait_for_windows(service)
    result_of(service, "seal")
    metrics = service.metrics.text(waiting=0, version=1).decode()
    assert "hieropo_unknown_levels_total 2.0" in metrics
    assert "hieropo_unknown_tasks_total 2.0" in metrics
    assert f'hieropo_unseen_share{{kind="task"}} {2 / 13}' in metrics
    assert f'hieropo_unseen_share{{kind="level:device"}} {1 / 13}' in metrics
    assert 'hieropo_mode_share{mode="gate"} 0.0' in metrics
    assert 'hieropo_context_shift{column="age"}' in metrics
    service.close()
    page = tmp_path / "status.html"
    shown = CliRunner().invoke(main, ["status", str(service.state.path), "--html", str(page)])
    assert shown.exit_code == 0, shown.output
    for text in ("Rows with an unknown task: 2 (15.4%)", "an unknown level of device: 1", "Mode explore"):
        assert text in shown.output
        assert text in page.read_text()
    assert "watch</td>" not in page.read_text()
    inside = str(service.state.path / "log" / "status.html")
    assert CliRunner().invoke(main, ["status", str(service.state.path), "--html", inside]).exit_code != 0


@pytest.mark.slow
def test_a_sum_of_rewards_that_no_log_can_hold_is_left_out(policy: Path, tmp_path: Path) -> None:
    service = Service(tmp_path / "state", Settings(window=10.0, swap="always"), policy=policy, seed=0)
    decide = [DecideRequest(task=1, context={"age": 0.0}, decision_id=f"d{n}") for n in range(30)]
    run(service.decide(decide))
    run(service.reward([Reward(f"r{n}", "d7", 9e69) for n in range(2)]))
    wait_for_windows(service)
    assert "Not learned from: 1 (refused by the learner)." in result_of(service, "refresh")
    assert pd.read_parquet(service.state.path / "others")["decision_id"].tolist() == ["d7"]
    service.close()


@pytest.mark.slow
def test_a_group_cannot_be_missing(regional: Path, tmp_path: Path) -> None:
    service = Service(tmp_path / "state", policy=regional, seed=0)
    with pytest.raises(InputError, match="'region' in the context is not a text"):
        run(service.decide([request(1, region=None)]))
    service.close()


@pytest.mark.parametrize("bad", [set(), {0}, {99}, {3, 4, 50}, set(range(100))])
def test_refused_rows_are_found_by_halving(bad: set[int]) -> None:
    def learn(rows: pa.Table) -> None:
        if bad & set(rows["row"].to_pylist()):
            raise LogError("bad")

    assert refused_rows(pa.table({"row": range(100)}), learn) == bad
