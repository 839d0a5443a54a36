import asyncio
import io
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from served_clients import client_of

from hieropo.errors import InputError
from hieropo.serve import Service
from hieropo.serve.app import make_app
from hieropo.serve.keys import Keyring, add_key
from hieropo.serve.openapi import document
from hieropo.serve.running import refuse_open_host

JSON = {"content-type": "application/json"}
BODY = {"task": 3, "context": {"age": 0.5}}


def test_the_whole_way_over_http(policy: Path, tmp_path: Path) -> None:
    with client_of(policy, tmp_path) as client:
        decision = client.post("/v1/decide", json={**BODY, "decision_id": "one"}).json()
        assert decision["task_known"]
        assert 0 < decision["propensity"] <= 1
        assert client.post("/v1/decide", json={**BODY, "decision_id": "one"}).json() == decision
        conflict = client.post("/v1/decide", json={**BODY, "task": 4, "decision_id": "one"})
        assert (conflict.status_code, conflict.headers["content-type"]) == (422, "application/problem+json")
        batch = client.post("/v1/decide:batch", json=[BODY, {**BODY, "task": 99}]).json()["decisions"]
        assert [entry["unseen"] for entry in batch] == [[], ["task"]]
        rewards = [
            {"reward_id": "r", "decision_id": "one", "value": 1},
            {"reward_id": "s", "decision_id": "x", "value": 1},
        ]
        statuses = client.post("/v1/rewards", json=rewards).json()["rewards"]
        assert [entry["status"] for entry in statuses] == ["recorded", "unknown"]
        deferred = client.post("/v1/decide", json={**BODY, "defer": True}).json()
        activated = client.post("/v1/activate", json={"decision_id": deferred["decision_id"]})
        assert activated.json() == deferred
        assert client.post("/v1/activate", json={"decision_id": "never"}).status_code == 404
        offered = client.post("/v1/policies", json={"path": str(policy)})
        assert (offered.status_code, offered.json()["number"]) == (201, 2)
        assert client.post("/v1/policies", json={"path": str(tmp_path)}).status_code == 422
        assert client.post("/v1/policies", json={"path": str(tmp_path / "none")}).status_code == 404
        assert client.post("/v1/policies/2:activate").json()["active"] == 2
        assert client.post("/v1/policies/1:activate").json()["active"] == 1
        assert client.post("/v1/policies/7:activate").status_code == 404
        started = client.post("/v1/refresh")
        assert started.status_code == 202
        assert client.get(f"/v1/jobs/{started.json()['job_id']}").json()["kind"] == "refresh"
        assert client.get("/v1/jobs/none").status_code == 404
        assert client.get("/livez").json() == {"live": True}
        assert client.get("/readyz").json()["ready"]
        metrics = client.get("/metrics").text
        assert 'hieropo_rewards_total{status="recorded"} 1.0' in metrics
        assert "one" not in metrics.split()


@pytest.mark.slow
def test_a_policy_is_taken_as_an_archive_and_checked_before_it_is_offered(
    policy: Path, text_policy: Path, tmp_path: Path
) -> None:
    def sent(folder: Path, kind: str = "application/x-tar", mode: Any = "w:") -> httpx.Response:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode=mode) as tar:
            tar.add(folder, ".")
        return client.post("/v1/policies", content=buffer.getvalue(), headers={"content-type": kind})

    damaged = shutil.copytree(policy, tmp_path / "damaged")
    largest = max(damaged.iterdir(), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1] + b"?")
    size = sum(path.stat().st_size for path in policy.iterdir())
    with client_of(policy, tmp_path, max_policy=size + 20_000) as client:
        assert (sent(policy).status_code, client.get("/v1/policies").json()["active"]) == (201, 1)
        assert sent(policy, "application/gzip", "w:gz").json()["number"] == 3
        assert [sent(folder).status_code for folder in (damaged, text_policy)] == [422] * 2
        headers = {"content-type": "application/x-tar"}
        assert client.post("/v1/policies", content=bytes(size + 20_001), headers=headers).status_code == 413
        assert client.post("/v1/policies", content=b"hello", headers=headers).status_code == 422
        assert client.post("/v1/policies/3:activate").json()["active"] == 3
        assert list((tmp_path / "state" / "incoming").iterdir()) == []


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b'{"task": 3', 422),
        (b"", 422),
        (b"\xff\xfe", 422),
        (b'{"task": "\xa1"}', 422),
        (b'{"\xa1": 3}', 422),
        (b'{"task": 3, "context": {"age\xe9": 0.5}}', 422),
        (b'{"task": NaN}', 422),
        (b'{"task": 3, "context": {"age": 1e999}}', 422),
        (b'{"task": 123456789012345678901234567890}', 422),
        (b'{"task": "\\ud800"}', 422),
        (b'{"task": "a\\u0000b"}', 422),
        (b"[" * 50_000, 422),
        (b'{"task": {"a": 1}}', 422),
        (b'{"task": 3, "context": {"age": 0.5}, "hello": 1}', 422),
        (b'{"task": 3, "context": {"age": null}}', 422),
        (b'{"task": 3, "context": {"age": true}}', 422),
        (b'{"task": 3, "context": {"age": 0.5}, "eligible": []}', 422),
        (b'{"task": 3, "context": {"age": 0.5}, "exclude": ["none", "coupon", "gift"]}', 409),
        (b'{"task": 3, "context": {"age": 0.5}, "decision_id": "' + b"x" * 500 + b'"}', 422),
        (b'{"task": 3, "context": {"age": 1e300}}', 422),
        (b'{"task": 3, "task": 4, "context": {"age": 0.5}}', 422),
        (b'{"task": 3, "context": {"age": 0.5, "age": 0.6}}', 422),
        (b'{"task": 3, "t\\u0061sk": 4, "context": {"age": 0.5}}', 422),
        (b'{"task": 3, "context": {"age": 0.5}, "context": {"age": 0.5}}', 422),
        (b'{"task": 3, "context": {"age": 0.5}, "decision_id": "a", "decision_id": "b"}', 422),
        (b'{"task": 3, "context": {"age": 0.5}, "decision_id": "a\\n"}', 422),
        (b'{"task": 3, "context": {"age": 0.5}, "subject": "a\\n"}', 422),
        (b" " * 60_000, 413),
    ],
)
def test_hostile_bodies_are_problems_without_their_values(
    hostile: httpx.Client, content: bytes, status: int
) -> None:
    answer = hostile.post("/v1/decide", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert set(answer.json()) == {"type", "title", "status", "detail"}
    assert "Traceback" not in answer.text


@pytest.fixture(scope="module")
def hostile(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with client_of(
        policy, tmp_path_factory.mktemp("hostile"), max_body=8_000 + 50_000, max_batch=10
    ) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "content"),
    [
        (
            "/v1/decide:batch",
            b'[{"task": 3, "context": {"age": 0.5}}, {"task": 3, "context": {"age": 1, "age": 1}}]',
        ),
        ("/v1/rewards", b'[{"reward_id": "a", "decision_id": "b", "value": 1, "value": 2}]'),
        ("/v1/activate", b'{"decision_id": "a", "decision_id": "b"}'),
        ("/v1/policies", b'{"path": "a", "path": "b"}'),
    ],
)
def test_a_key_that_comes_twice_is_refused(hostile: httpx.Client, path: str, content: bytes) -> None:
    answer = hostile.post(path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert "one key twice" in answer.json()["detail"]


def test_colons_in_values_and_fields_with_their_defaults_are_no_repeated_keys(hostile: httpx.Client) -> None:
    body = {
        **BODY, "decision_id": "shop:1:2", "client_at": "2026-11-29T08:00:00Z", "subject": 'a":"b', "eligible": None,
        "defer": False,
    }  # fmt: skip
    assert hostile.post("/v1/decide", json=body).status_code == 200
    assert hostile.post("/v1/decide:batch", json=[{**body, "decision_id": "shop:2"}]).status_code == 200


def test_a_whole_number_with_a_fraction_of_zero_is_an_id(hostile: httpx.Client) -> None:
    assert (
        hostile.post("/v1/decide", content=b'{"task": 3.0, "context": {"age": 1}}', headers=JSON).status_code
        == 200
    )
    for task in (b"3.5", b"1e30", b"NaN", b'3.0, "task": 3'):
        body = b'{"task": ' + task + b', "context": {"age": 1}}'
        assert hostile.post("/v1/decide", content=body, headers=JSON).status_code == 422
    assert (
        hostile.post(
            "/v1/decide", content=b'{"task": 3.0, "context": ' + b"[" * 50_000, headers=JSON
        ).status_code
        == 422
    )


def test_other_limits_are_problems_too(hostile: httpx.Client) -> None:
    as_json = {"content-type": "application/json"}
    assert (
        hostile.post("/v1/decide", content=b"{}", headers={"content-type": "text/plain"}).status_code == 415
    )
    assert hostile.post("/v1/decide", content=b" " * 60_000, headers=as_json).status_code == 413
    assert hostile.post("/v1/decide:batch", json=[BODY] * 11).status_code == 413
    assert hostile.post("/v1/decide:batch", json=[]).json() == {"decisions": []}
    one = hostile.post("/v1/rewards", json={"reward_id": "a", "decision_id": "b", "value": 1.0}).json()
    assert (
        one["detail"] == "The body cannot be read. A list is needed. Put brackets around the object: [{...}]."
    )
    text = hostile.post("/v1/rewards", json=[{"reward_id": "a", "decision_id": "b", "value": "1"}]).json()
    assert text["detail"].endswith("at `$[0].value`. GET /openapi.json describes the body of each request.")
    assert hostile.get("/v1/decide").status_code == 405
    assert hostile.put("/v1/policies").headers["allow"] == "GET, HEAD, POST"
    assert hostile.get("/nothing").status_code == 404
    assert hostile.get("/livez", headers={"host": "evil.example"}).status_code == 200
    assert hostile.post("/v1/decide", json=BODY, headers={"host": "evil.example"}).status_code == 403
    for id_ in ("three", "²", "1.0", "0" * 300, str(2**63), str(-(2**63) - 1)):
        assert hostile.request("DELETE", f"/v1/tasks/{id_}").status_code == 422
    for id_ in ("-9223372036854775808", "9223372036854775807", "0007"):
        assert hostile.request("DELETE", f"/v1/tasks/{id_}").status_code == 202
    assert hostile.request("DELETE", "/v1/tasks/3?purge=perhaps").status_code == 422
    for query in ("", "?id=", "?id=three", "?id=3&id=4", "?id=3&purge=perhaps", f"?id={'0' * 300}"):
        assert hostile.request("DELETE", f"/v1/tasks{query}").status_code == 422
    assert hostile.request("DELETE", "/v1/tasks", params={"id": "3"}).status_code == 202
    assert hostile.request("DELETE", "/v1/subjects?id=").status_code == 422


def test_any_id_can_be_forgotten_by_the_query(text_policy: Path, tmp_path: Path) -> None:
    """A path cannot hold an empty id, and clients resolve `..` in it."""
    with client_of(text_policy, tmp_path) as client:
        for kind, id_ in (("tasks", ""), ("tasks", "../?a=b&c#d"), ("subjects", "..")):
            asked = {"task": id_, "subject": "..", "context": {"age": 0.0}}
            assert client.post("/v1/decide", json=asked).status_code == 200
            answer = client.request("DELETE", f"/v1/{kind}", params={"id": id_, "purge": True})
            while (job := client.get(f"/v1/jobs/{answer.json()['job_id']}").json())["state"] != "done":
                assert job["state"] in ("queued", "running"), job
            assert "1 open decisions removed" in job["result"], (id_, job)
        assert client.request("DELETE", "/v1/tasks/").status_code == 422


def test_no_random_body_is_an_internal_error(hostile: httpx.Client) -> None:
    rng = random.Random(0)
    parts: list[Any] = [
        None,
        True,
        3,
        -1,
        2**63,
        1.5,
        "",
        "a",
        "none",
        [],
        {},
        [[]],
        {"age": 1},
        ["none"],
        "\u2028",
        1e308,
    ]
    names = [
        "task",
        "context",
        "decision_id",
        "subject",
        "eligible",
        "exclude",
        "incumbent",
        "defer",
        "client_at",
        "x",
    ]
    for _ in range(300):
        body = {name: rng.choice(parts) for name in rng.sample(names, rng.randrange(len(names)))}
        path = rng.choice(["/v1/decide", "/v1/decide:batch", "/v1/rewards", "/v1/activate", "/v1/policies"])
        sent = body if rng.random() < 0.5 else [body]
        assert hostile.post(path, json=sent).status_code in (200, 201, 404, 422)


def test_keys_have_roles_and_an_unknown_key_learns_nothing(policy: Path, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    keys = {role: add_key(tmp_path / "state", role, role) for role in ("reader", "writer", "admin")}
    assert not any(key in (tmp_path / "state" / "keys.json").read_text() for key in keys.values())
    with client_of(policy, tmp_path) as client:

        def status(method: str, path: str, key: str | None) -> int:
            headers = {} if key is None else {"authorization": f"Bearer {key}"}
            return int(client.request(method, path, headers=headers).status_code)

        assert status("GET", "/livez", None) == 200
        refused = [
            client.get("/v1/policies", headers={"authorization": f"Bearer {k}"})
            for k in ("a", keys["admin"][:-1])
        ]
        assert {(one.status_code, one.text) for one in refused} == {(401, client.get("/v1/policies").text)}
        assert [status("GET", "/v1/policies", keys[role]) for role in keys] == [200, 403, 200]
        assert [status("POST", "/v1/decide", keys[role]) for role in keys] == [403, 415, 415]
        assert [status("POST", "/v1/refresh", keys[role]) for role in keys] == [403, 403, 202]
    with pytest.raises(InputError, match="already"):
        add_key(tmp_path / "state", "reader", "reader")


def test_without_keys_it_listens_on_this_machine_alone() -> None:
    for host in ("127.0.0.1", "::1", "localhost"):
        refuse_open_host(host, Keyring())
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.com"):
        with pytest.raises(InputError, match="--add-key"):
            refuse_open_host(host, Keyring())


def test_the_description_has_every_route_and_type(policy: Path, tmp_path: Path) -> None:
    described = document(keys=True)
    assert json.dumps(described)
    assert len(described["paths"]) == 16
    assert described["components"]["schemas"]["DecideRequest"]["additionalProperties"] is False
    service = Service(tmp_path / "state", policy=policy)
    routes = make_app(service, Keyring()).routes
    paths = {route.path.replace(":int", "").replace(":path", "") for route in routes}  # type: ignore[attr-defined]
    assert set(described["paths"]) == paths
    service.close()


@pytest.mark.slow
def test_a_process_drains_on_sigterm_and_ends_slow_clients(policy: Path, tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    config.write_text("timeout = 0.5\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [
        str(tmp_path / "state"),
        "--policy",
        str(policy),
        "--config",
        str(config),
        "--port",
        str(port),
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "hieropo", "serve", *arguments], stderr=subprocess.DEVNULL
    )
    try:
        asyncio.run(_tried(process, port))
    finally:
        process.kill()
        process.wait()


async def _tried(process: subprocess.Popen[bytes], port: int) -> None:
    address = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=address, timeout=20) as client:
        for _ in range(300):
            try:
                await client.get("/livez")
                break
            except httpx.ConnectError:
                await asyncio.sleep(0.1)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/decide HTTP/1.1\r\nhost: ")  # and never more
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST /v1/decide HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: 99\r\n\r\n{"
        )
        assert b"408" in await asyncio.wait_for(reader.readline(), 10)
        writer.close()
        requests = [asyncio.create_task(client.post("/v1/decide", json=BODY)) for _ in range(50)]
        await requests[0]
        os.kill(process.pid, signal.SIGTERM)
        answers = await asyncio.gather(*requests, return_exceptions=True)
        assert sum(isinstance(one, httpx.Response) and one.status_code == 200 for one in answers) >= 1
    assert await asyncio.to_thread(process.wait, 20) in (
        0,
        -signal.SIGTERM,
    )  # as uvicorn passes the signal on
