"""Send bad requests to a service in a process of its own, on loopback, and check that none of them harms it.

Run as ``python serve_hostile_program.py <directory> [--requests 100000] [--timings 4000] [--seed 0]``; writes one JSON
document. Bodies are valid ones with bytes changed, cut, repeated or of other types; paths, methods and headers are
changed too. Then come heads that never end, bodies that never end or are declared as huge, and wrong keys: some share
all but the last character with a key, others none, and their times are compared.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

_TAR = "application/x-tar"
MARK = "s3cr3t"  # in ids and contexts: no answer to a bad request may hold it
Reply = tuple[int, bytes]


class Client:
    """One connection that is opened again where the server closes it."""

    def __init__(self, port: int, key: str) -> None:
        self.port, self.key = port, key
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, raw: bytes) -> Reply | None:
        """Send bytes and return status and text of the answer; None where the server closes without one."""
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.streams
        try:
            writer.write(raw)
            head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)).lower()
            lines = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
            length = 0 if raw.startswith(b"HEAD") else int(lines.get(b"content-length", b"0"))
            body = await reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            self.close()
            return None
        if lines.get(b"connection") == b"close":
            self.close()
        return int(head.split(b" ")[1]), body

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None

    def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
        given = {
            "host": "localhost",
            "authorization": f"Bearer {self.key}",
            "content-type": "application/json",
        }
        given |= {"content-length": str(len(body))} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items()), "", ""]
        return "\r\n".join(lines).encode("latin-1") + body


class Hostile:
    """Makes bad requests; every draw is by the seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.values: list[Any] = [
            None, True, 3, -1, 2**63, 2**70, 1.5, -0.0, 1e308, "", MARK, [], {}, [[]], {MARK: 1}, ["none"], "\u2028",
            "\ud800", "a\nb", "\0", [None] * 50, {"age": MARK}, {"age": {"age": 1}}, "9" * 400,
        ]  # fmt: skip
        self.raw = [
            b"NaN",
            b"Infinity",
            b"-Infinity",
            b"1e999",
            b"01",
            b"'a'",
            b"\xff",
            b"[" * 2000,
            b'{"a":' * 500,
        ]
        self.names = [
            "task", "context", "decision_id", "subject", "eligible", "exclude", "incumbent", "defer", "client_at",
            "reward_id", "value", "path", MARK,
        ]  # fmt: skip
        self.paths = [
            "/v1/decide", "/v1/decide", "/v1/decide:batch", "/v1/rewards", "/v1/activate", "/v1/policies",
            f"/v1/policies/{MARK}:activate", "/v1/policies/99999999999999999999:activate", f"/v1/jobs/{MARK}",
            f"/v1/tasks/{MARK}", "/v1/tasks/%00", "/v1/subjects/%0a", "/../../etc/passwd", "/v1//decide",
            "/" + "a" * 9000,
        ]  # fmt: skip
        self.methods = ["POST"] * 8 + ["GET", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "BREW"]

    def body(self) -> bytes:
        rng = self.rng
        valid: dict[str, Any] = {"task": 3, "context": {"age": 0.5}, "decision_id": f"{MARK}-{rng.random()}"}
        kind = rng.randrange(6)
        if kind == 0:
            valid = {name: rng.choice(self.values) for name in rng.sample(self.names, rng.randrange(1, 8))}
        elif kind == 1:
            valid[rng.choice(self.names)] = rng.choice(self.values)
        text = json.dumps([valid] if rng.random() < 0.3 else valid).encode()
        if kind == 2:
            text = text.replace(b"0.5", rng.choice(self.raw))
        if kind == 3:
            place = rng.randrange(len(text))
            text = text[:place] + rng.randbytes(rng.randrange(1, 4)) + text[place + rng.randrange(3) :]
        if kind == 4:
            text = text[: rng.randrange(len(text))]
        if kind == 5:
            text = text.replace(
                b'"task": 3', rng.choice([b'"task": 3, "task": 4', b'"task": 3, "t\\u0061sk": 3'])
            )
        return text

    def request(self, client: Client) -> bytes:
        rng = self.rng
        method, path = (
            (rng.choice(self.methods), rng.choice(self.paths))
            if rng.random() < 0.5
            else ("POST", "/v1/decide")
        )
        headers: dict[str, str] = {}
        if rng.random() < 0.1:
            headers["content_type"] = rng.choice(
                ["text/plain", "", "application/json; charset=utf-7", "application/x-tar"]
            )
        if rng.random() < 0.05:
            headers["authorization"] = rng.choice(
                ["", "Bearer", "Basic abc", f"Bearer {MARK}", "Bearer \xe9", "b" * 5000]
            )
        return client.request(method, path, self.body(), **headers)


def wrong(reply: Reply | None) -> str | None:
    """Return a fault of an answer to a bad request; None without one."""
    if reply is None:
        return "closed without an answer"
    status, body = reply
    if status >= 500:
        return f"status {status}"
    if status >= 400 and MARK.encode() in body:
        return f"an answer of status {status} holds a value of the request"
    if b"Traceback" in body or b"site-packages" in body:
        return "a stack trace"
    return None


async def bombarded(client: Client, hostile: Hostile, number: int) -> dict[str, Any]:
    """Send bad requests, one after the other, and return counts of statuses and the faults."""
    statuses: Counter[int | None] = Counter()
    faults: Counter[str] = Counter()
    for _ in range(number):
        sent = hostile.request(client)
        reply = await client.send(sent)
        statuses[None if reply is None else reply[0]] += 1
        if (fault := wrong(reply)) is not None:
            faults[fault] += 1
    return {"statuses": {str(status): count for status, count in statuses.items()}, "faults": dict(faults)}


async def never_ending(port: int, client: Client, connections: int = 100) -> dict[str, Any]:
    """Hold connections with heads and bodies that never end, and return what became of them."""
    head = b"POST /v1/decide HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer " + client.key.encode()
    starts = {
        "head that stops": head,
        "body that stops": head + b"\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{",
        "body declared as huge": head
        + b"\r\ncontent-type: application/json\r\ncontent-length: 1000000000000\r\n\r\n{",
    }
    slow = [
        (kind, *(await asyncio.open_connection("127.0.0.1", port)))
        for kind in starts
        for _ in range(connections)
    ]
    for kind, _, writer in slow:
        writer.write(starts[kind])
    begin = time.monotonic()
    answered = (await client.send(client.request("GET", "/livez"))) == (200, b'{"live":true}')
    meanwhile = time.monotonic() - begin
    ended: Counter[str] = Counter()
    for kind, reader, writer in slow:
        answer = await asyncio.wait_for(reader.read(1 << 16), 30)
        ended[f"{kind}: {answer[9:12].decode() or 'closed'}"] += 1
        writer.close()
    endless = {
        "endless head": (head + b"\r\n", b"x-a: " + b"a" * 8000 + b"\r\n"),
        "endless body": (
            head + b"\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n",
            b"2000\r\n" + b" " * 8192 + b"\r\n",
        ),
    }
    for kind, (start, part) in endless.items():
        ended[f"{kind}: {await _endless(port, start, part)}"] += 1
    return {"answered_meanwhile": answered, "seconds_meanwhile": round(meanwhile, 3), "ended": dict(ended)}


async def _endless(port: int, start: bytes, part: bytes) -> str:
    """Send parts until the server ends it, 200 MB at most; return its answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = asyncio.create_task(reader.read(1 << 16))
    writer.write(start)
    try:
        for _ in range(25_000):
            writer.write(part)
            await writer.drain()
            if answer.done():
                break
        else:
            return "accepted 200 MB"
        return (await answer)[9:12].decode() or "closed"
    except ConnectionError:
        return "closed"
    finally:
        answer.cancel()
        writer.close()


async def wrong_keys(client: Client, number: int) -> dict[str, Any]:
    """Compare answers and times of wrong keys that share much or nothing with a key."""
    key = client.key
    near, far = key[:-1] + ("a" if key[-1] != "a" else "b"), "x" * len(key)
    times: dict[str, list[float]] = {near: [], far: []}
    texts = set()
    for _ in range(number):
        for wrong_key in (near, far):
            raw = client.request("GET", "/v1/policies", authorization=f"Bearer {wrong_key}")
            begin = time.perf_counter()
            texts.add(await client.send(raw))
            times[wrong_key].append(time.perf_counter() - begin)
    for other in ("", "a", "x" * 4000):
        texts.add(await client.send(client.request("GET", "/v1/policies", authorization=f"Bearer {other}")))
    test = stats.mannwhitneyu(times[near], times[far])
    return {
        "answers": len(texts), "p_value": float(test.pvalue),
        "median_us": [round(1e6 * float(np.median(part)), 2) for part in times.values()],
    }  # fmt: skip


def rss(pid: int) -> float:
    """Return the memory of a process in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1000


async def attacked(port: int, pid: int, key: str, given: argparse.Namespace) -> dict[str, Any]:
    client = Client(port, key)
    for _ in range(600):
        try:
            await client.send(client.request("GET", "/livez"))
            break
        except ConnectionError:
            await asyncio.sleep(0.1)
    hostile = Hostile(given.seed)
    await bombarded(client, hostile, min(given.requests, 2000))
    before = rss(pid)
    begin = time.monotonic()
    found = await bombarded(client, hostile, given.requests)
    found["seconds"] = round(time.monotonic() - begin, 1)
    found["memory_mb"] = [round(before), round(rss(pid))]
    found["never_ending"] = await never_ending(port, client)
    found["wrong_keys"] = await wrong_keys(client, given.timings)
    found["memory_mb"].append(round(rss(pid)))
    good = client.request("POST", "/v1/decide", b'{"task": 3, "context": {"age": 0.5}}')
    reply = await client.send(good)
    found["answers_after"] = reply is not None and reply[0] == 200
    client.close()
    return found


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Start a service, attack it, stop it, and return what was found."""
    from served_worlds import saved

    from hieropo.serve.keys import add_key

    folder = Path(given.directory)
    state = folder / "state"
    state.mkdir(parents=True, exist_ok=True)
    (state / "serve.toml").write_text("timeout = 2.0\nmax_body = 100000\n")
    key = add_key(state, "admin", "admin")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "hieropo",
        "serve",
        str(state),
        "--policy",
        str(saved(folder)),
        "--port",
        str(port),
    ]
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
    try:
        found = asyncio.run(attacked(port, process.pid, key, given))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    found["tracebacks"] = (folder / "log.txt").read_text().count("Traceback")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    for name, value in (("requests", 100_000), ("timings", 4_000), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    sys.stdout.write(json.dumps(run(parser.parse_args()), indent=1) + "\n")
