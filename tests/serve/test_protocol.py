"""Decisions over sockets: the protocol answers them itself, and hands all unusual requests over."""

import asyncio
import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hieropo.serve import Service, Settings
from hieropo.serve.keys import Keyring, add_key
from hieropo.serve.protocol import DirectCycle, DirectProtocol
from hieropo.serve.running import prepared

BODY = b'{"task": 3, "context": {"age": 0.5}}'


def message(body: bytes = BODY, path: str = "/v1/decide", **headers: str) -> bytes:
    given = {
        "host": "localhost",
        "content-type": "application/json",
        "content-length": str(len(body)),
        **headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items() if value)
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


Answer = tuple[int, dict[str, str], Any]


async def answer(reader: asyncio.StreamReader) -> Answer:
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)).decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in head[1:] if line)
    body = await reader.readexactly(int(headers["content-length"]))
    return int(head[0].split()[1]), headers, json.loads(body)


class Served:
    """A service at a socket of this process, with one client at a time."""

    def __init__(self, service: Service, keys: Keyring, direct: list[DirectCycle]) -> None:
        self.server, self.listener = prepared(service, host="127.0.0.1", port=0, keys=keys)
        self.direct = direct  # requests that the protocol took up itself

    def ask(self, *requests: bytes | list[bytes]) -> list[Answer]:
        """Send each request, in parts where it is a list, after the answer to the one before; return all answers."""
        return asyncio.run(self._ask(requests))

    async def _ask(self, requests: tuple[bytes | list[bytes], ...]) -> list[Answer]:
        task = asyncio.create_task(self.server.serve(sockets=[self.listener]))
        while not self.server.started:
            await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection(*self.listener.getsockname())
        answers = []
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionResetError):
            for request in requests:
                for part in request if isinstance(request, list) else [request]:
                    writer.write(part)
                    await asyncio.sleep(0.02 if isinstance(request, list) else 0)
                answers.append(await answer(reader))
            while True:  # until the connection ends
                answers.append(await answer(reader))
        writer.close()
        self.server.should_exit = True
        await task
        return answers


@pytest.fixture
def served(policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Served]:
    direct: list[DirectCycle] = []
    before = DirectCycle.__init__

    def count(cycle: DirectCycle, protocol: DirectProtocol) -> None:
        direct.append(cycle)
        before(cycle, protocol)

    monkeypatch.setattr(DirectCycle, "__init__", count)

    def make(keys: Keyring | None = None, **settings: Any) -> Served:
        service = Service(tmp_path / "state", Settings(**settings), policy=policy, seed=0)
        return Served(service, Keyring() if keys is None else keys, direct)

    return make


BY_APPLICATION = "/v1/decide?"  # the same route, which the protocol does not take up
LAST = {"connection": "close"}


def test_the_protocol_answers_as_the_application(served: Any) -> None:
    service = served(max_body=1_000)
    known = BODY[:-1] + b', "decision_id": "one"}'
    kinds: list[tuple[bytes, dict[str, str]]] = [
        (known, {}),
        (known.replace(b"0.5", b"0.6"), {}),
        (b"[" * 10, {}),
        (b"", {}),
        (BODY.replace(b"3", b'"three"'), {}),
        (BODY, {"host": "evil.example"}),
        (BODY, {"host": ""}),
        (BODY, {"content-type": "text/plain"}),
    ]
    requests = [
        message(body, path, **headers) for body, headers in kinds for path in ("/v1/decide", BY_APPLICATION)
    ]
    answers = service.ask(*requests, message(b" " * 1_001))
    assert len(service.direct) == len(kinds) + 1
    assert [status for status, _, _ in answers[::2]] == [200, 422, 422, 422, 422, 403, 403, 415, 413]
    for mine, other in zip(answers[:-1:2], answers[1::2], strict=True):
        assert mine[0] == other[0]
        assert mine[2] == other[2]
        assert {**mine[1], "date": ""} == {**other[1], "date": ""}
    assert answers[-1][1]["connection"] == "close"


def test_requests_that_are_sent_ahead_are_answered_in_their_order(served: Any) -> None:
    service = served()
    bodies = [BODY[:-1] + b', "decision_id": "d%d"}' % number for number in range(5)]
    stream = b"".join(map(message, bodies)) + message(bodies[0], **LAST)
    answers = service.ask(stream)
    assert [body["decision_id"] for _, _, body in answers] == ["d0", "d1", "d2", "d3", "d4", "d0"]
    assert answers[0][2] == answers[-1][2]
    assert len(service.direct) >= 1


def test_a_body_in_parts_or_chunks_is_one_body(served: Any) -> None:
    service = served()
    raw = message()
    chunked = b"%x\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (10, BODY[:10], len(BODY) - 10, BODY[10:])
    head = message(b"", **{"content-length": "", "transfer-encoding": "chunked"})
    old = raw.replace(b"HTTP/1.1", b"HTTP/1.0")
    answers = service.ask([raw[:30], raw[30:-10], raw[-10:]], head + chunked, old)
    assert [status for status, _, _ in answers] == [200, 200, 200]
    assert answers[-1][1]["connection"] == "close"
    assert len(service.direct) == 3


def test_a_slow_body_is_refused(served: Any) -> None:
    service = served(timeout=0.3)
    ((status, headers, _),) = service.ask(message()[:-1])
    assert (status, headers["connection"]) == (408, "close")


def test_a_slow_head_ends_the_connection(served: Any) -> None:
    assert served(timeout=0.3).ask(message()[:30]) == []


def test_keys_are_checked_before_the_body(served: Any, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    keys = {role: add_key(tmp_path / "state", role, role) for role in ("reader", "writer")}  # type: ignore[arg-type]
    service = served(Keyring.load(tmp_path / "state"))
    answers = service.ask(
        message(),
        message(authorization="Bearer x"),
        message(authorization=f"Bearer {keys['reader']}"),
        message(authorization=f"Bearer {keys['writer']}", **LAST),
    )
    assert [status for status, _, _ in answers] == [401, 401, 403, 200]
    assert answers[0][2] == answers[1][2]
    assert len(service.direct) == 4
