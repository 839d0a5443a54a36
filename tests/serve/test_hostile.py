"""A short form of ``tests/serve_hostile_program.py``, real clients, and a disk that is full."""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from served_clients import client_of
from served_worlds import run, wait_for_windows

from hieropo.serve import Service, Settings
from hieropo.serve.journal import FullError
from hieropo.serve.messages import DecideRequest, Reward

JSON = "content-type: application/json"


@pytest.mark.slow
def test_bad_requests_do_not_harm_a_service(tmp_path: Path) -> None:
    import serve_hostile_program

    found = serve_hostile_program.run(
        argparse.Namespace(directory=tmp_path, requests=1500, timings=50, seed=1)
    )
    assert found["faults"] == {}
    assert found["tracebacks"] == 0
    assert found["answers_after"]
    assert found["never_ending"]["answered_meanwhile"]
    ended = set(found["never_ending"]["ended"])
    assert ended == {
        "head that stops: closed", "body that stops: 408", "body declared as huge: 408", "endless head: closed",
        *(ended & {"endless body: 413", "endless body: closed"}),
    }  # fmt: skip
    assert found["wrong_keys"]["answers"] == 1


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_decides_and_rewards(policy: Path, tmp_path: Path) -> None:
    def curl(path: str, body: Any = None, *options: str) -> Any:
        sent = [] if body is None else ["-H", JSON, "--data-binary", json.dumps(body)]
        done = subprocess.run(
            ["curl", "-sS", *sent, *options, f"{client.base_url}/{path}"],
            capture_output=True,
            check=True,
            timeout=30,
        )
        return json.loads(done.stdout)

    with client_of(policy, tmp_path) as client:
        decision = curl("v1/decide", {"task": 3, "context": {"age": 0.5}, "decision_id": "visit-1"})
        assert curl("v1/decide", {"task": 3, "context": {"age": 0.5}, "decision_id": "visit-1"}) == decision
        reward = [{"reward_id": "sale-1", "decision_id": "visit-1", "value": 12.5}]
        assert curl("v1/rewards", reward) == {"rewards": [{"reward_id": "sale-1", "status": "recorded"}]}
        assert curl("v1/tasks/3", None, "-X", "DELETE")["kind"] == "forget-task"
        assert curl("v1/rewards", {"a": 1})["status"] == 422


def test_no_answer_lets_a_page_of_another_origin_read_it(policy: Path, tmp_path: Path) -> None:
    asks = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    with client_of(policy, tmp_path) as client:
        answers = [
            client.options("/v1/decide", headers=asks), client.get("/v1/policies", headers=asks),
            client.post("/v1/decide", json={"task": 3, "context": {"age": 0.5}}, headers=asks),
        ]  # fmt: skip
        assert answers[0].status_code == 405
        assert not any("access-control-allow-origin" in answer.headers for answer in answers)
        simple = client.post(
            "/v1/decide", content=b'{"task": 3}', headers={**asks, "content-type": "text/plain"}
        )
        assert simple.status_code == 415  # what a page may send without asking is refused


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = sys.platform == "linux" and os.geteuid() == 0
    mounted = (
        mounted
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(folder)], capture_output=True, check=False
        ).returncode
    )
    if not mounted:
        pytest.skip("a small file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
def test_a_disk_that_is_full_loses_nothing_that_was_acknowledged(policy: Path, small_disk: Path) -> None:
    state = small_disk / "state"
    service = Service(state, Settings(window=10.0, swap="always"), policy=policy, seed=0)
    filler = small_disk / "filler"
    acknowledged, refused = [], 0
    with filler.open("wb") as file:
        free = os.statvfs(small_disk)
        file.write(bytes(free.f_bavail * free.f_frsize - 300_000))
    for number in range(60):
        requests = [
            DecideRequest(task=number % 12, context={"age": 0.1}, decision_id=f"d{number}-{k}")
            for k in range(40)
        ]
        try:
            acknowledged += [decision.decision_id for decision in run(service.decide(requests))]
        except FullError:
            refused += 1
    assert acknowledged
    assert refused
    assert not service.ready().ready
    with pytest.raises(FullError):
        run(service.reward([Reward(f"r{n}", acknowledged[0], 1.0) for n in range(2000)]))
    filler.unlink()
    assert run(service.decide([DecideRequest(task=1, context={"age": 0.0}, decision_id="after")]))
    assert service.ready().ready
    service.close()
    again = Service(state, Settings(window=10.0, swap="always"))
    wait_for_windows(again)
    filler.write_bytes(
        bytes(max(0, os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize - 20_000))
    )
    failed = again.start("seal") if again.ready().ready else None
    again.wait()
    filler.unlink()
    ended = None if failed is None else again.job(failed.job_id)
    assert ended is None or ended.state in ("done", "failed", "queued", "running")
    assert ended is None or ended.state != "failed" or "disk" in str(ended.result)
    again.close()
    last = Service(state, Settings(window=10.0, swap="always"))
    wait_for_windows(last)
    last.start("seal")
    last.wait()
    assert sorted(pd.read_parquet(state / "log")["decision_id"]) == sorted([*acknowledged, "after"])
    last.close()
