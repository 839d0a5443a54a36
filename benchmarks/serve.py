"""Durable decisions a second of the service, beside a bare echo of the same framework, in the same run.

    python benchmarks/serve.py [--seconds 5] [--clients 32] [--tasks 1000] [--actions 10] [--contexts 9]
    python benchmarks/serve.py --only swaps            # 100 changes of the version under load
    python benchmarks/serve.py --only replay           # 100,000 events sent twice, and a start on them
    python benchmarks/serve.py --only memory --tasks 1000000 --actions 3 --contexts 2 --seconds 600

The server is one process, the clients are another, on loopback. Each client keeps one connection and waits for its
answer. The clients are a bare asyncio program, so that they take as little of the processors as they can. CPU is that
of the server's process, from its own clock.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import socket
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import record
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hieropo import HierOPO
from hieropo.serve import Service, Settings
from hieropo.serve.keys import Keyring
from hieropo.serve.running import prepared


def policy(folder: Path, tasks: int, actions: int, contexts: int) -> Path:
    rng = np.random.default_rng(0)
    rows = max(20 * min(tasks, 50_000), 2 * tasks, 20_000)
    columns = {f"x{c}": rng.normal(size=rows) for c in range(contexts)}
    action = rng.integers(actions, size=rows)
    reward = 0.1 * action + rng.normal(size=rows)
    log = pa.table({"task": rng.integers(tasks, size=rows), "action": action, "reward": reward, **columns})
    learner = HierOPO(logging="random").fit(
        log, task="task", action="action", reward="reward", context=list(columns)
    )
    return learner.save(folder / "policy")


def served(kind: str, folder: Path, settings: Settings, listener: socket.socket, ready: Any) -> None:
    warnings.simplefilter("ignore")
    if kind == "echo":

        async def echo(request: Request) -> Response:
            return Response(await request.body(), media_type="application/json")

        async def cpu(_: Request) -> Response:
            return Response(str(time.process_time()))

        routes = [
            Route("/v1/decide", echo, methods=["POST"]),
            Route("/v1/decide:batch", echo, methods=["POST"]),
        ]
        app = Starlette(routes=[*routes, Route("/cpu", cpu)])
        server = uvicorn.Server(uvicorn.Config(app, access_log=False, log_level="warning"))
    else:
        service = Service(folder / "state", settings, policy=folder / "policy")
        server, own = prepared(service, host="127.0.0.1", port=0, keys=Keyring())
        own.close()

        async def cpu(_: Request) -> Response:
            return Response(f"{time.process_time()} {anonymous_kb()}")

        server.config.app.router.routes.append(Route("/cpu", cpu))
    ready.set()
    server.run(sockets=[listener])


def anonymous_kb() -> int:
    """Return the memory of this process beside mapped files (Linux)."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0])


def message(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, raw: bytes) -> tuple[int, bytes]:
    writer.write(raw)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return int(head[9:12]), await reader.readexactly(length)


async def cpu_of(port: int) -> float:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    _, body = await asked(reader, writer, b"GET /cpu HTTP/1.1\r\nhost: localhost\r\n\r\n")
    writer.close()
    return float(body.split()[0])


async def load(port: int, raws: list[bytes], path: str, clients: int, seconds: float) -> dict[str, float]:
    times: list[float] = []
    failed = 0
    stop = time.perf_counter() + seconds

    async def client(offset: int) -> None:
        nonlocal failed
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        number = offset
        while True:  # once at least, however short the time
            start = time.perf_counter()
            status, _ = await asked(reader, writer, message(path, raws[number % len(raws)]))
            times.append(time.perf_counter() - start)
            failed += status != 200
            number += clients
            if time.perf_counter() >= stop:
                break
        writer.close()

    before, start = await cpu_of(port), time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(clients)))
    took, after = time.perf_counter() - start, await cpu_of(port)
    return {
        "a second": len(times) / took, "p50 ms": 1e3 * float(np.quantile(times, 0.5)),
        "p99 ms": 1e3 * float(np.quantile(times, 0.99)), "server CPU us": 1e6 * (after - before) / len(times),
        "failed": failed,
    }  # fmt: skip


def bodies(count: int, tasks: int, contexts: int, batch: int) -> list[bytes]:
    rng = np.random.default_rng(1)

    def one() -> dict[str, Any]:
        context = {f"x{c}": round(float(rng.normal()), 4) for c in range(contexts)}
        return {"task": int(rng.integers(tasks)), "context": context}

    return [json.dumps([one() for _ in range(batch)] if batch > 1 else one()).encode() for _ in range(count)]


@contextmanager
def running(kind: str, folder: Path, settings: Settings) -> Iterator[int]:
    """Serve in another process, and give the port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    ready = multiprocessing.Event()
    process = multiprocessing.Process(target=served, args=(kind, folder, settings, listener, ready))
    process.start()
    ready.wait()
    try:
        yield listener.getsockname()[1]
    finally:
        process.terminate()
        process.join()


def measured(
    kind: str, folder: Path, settings: Settings, given: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Rates of single decisions and of batches."""
    rates = {}
    singles = bodies(2_000, given.tasks, given.contexts, 1)
    batches = bodies(10, given.tasks, given.contexts, given.batch)
    with running(kind, folder, settings) as port:
        asyncio.run(load(port, singles, "/v1/decide", given.clients, 1.0))
        for name, raws, path, clients in (
            ("decide", singles, "/v1/decide", given.clients),
            ("batch", batches, "/v1/decide:batch", 2),
        ):
            numbers = asyncio.run(load(port, raws, path, clients, given.seconds))
            if name == "batch":
                numbers["decisions a second"] = numbers["a second"] * given.batch
                numbers["server CPU us a decision"] = numbers["server CPU us"] / given.batch
            rates[name] = numbers
    return rates


def swaps(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Change the version 100 times under load."""
    singles = bodies(2_000, given.tasks, given.contexts, 1)

    async def post(port: int, path: str, body: bytes = b"{}") -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        status, _ = await asked(reader, writer, message(path, body))
        writer.close()
        return status

    async def both(port: int) -> dict[str, Any]:
        await post(port, "/v1/policies", json.dumps({"path": str(folder / "policy")}).encode())
        work = asyncio.create_task(load(port, singles, "/v1/decide", given.clients, given.seconds))
        done = 0
        while not work.done():
            done += await post(port, f"/v1/policies/{1 + (done + 1) % 2}:activate") == 200
            await asyncio.sleep(given.seconds / 150)
        return {"swaps": done, "load": await work}

    with running("service", folder, Settings()) as port:
        return asyncio.run(both(port))


def replay(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Send decisions twice, their rewards twice, and start again on them."""
    decisions = [json.loads(raw) for raw in bodies(given.events // 1_000, given.tasks, given.contexts, 1_000)]
    for number, batch in enumerate(decisions):
        for row, one in enumerate(batch):
            one["decision_id"] = f"event-{number}-{row}"
    rewards = [
        [{"reward_id": f"r{d['decision_id']}", "decision_id": d["decision_id"], "value": 1.0} for d in batch]
        for batch in decisions
    ]
    raws = [json.dumps(batch).encode() for batch in decisions]
    rewarding = [json.dumps(batch).encode() for batch in rewards]

    async def send(port: int, path: str, parts: list[bytes]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
        for part in parts:
            status, body = await asked(reader, writer, message(path, part))
            assert status == 200, body
        writer.close()

    steps = {}
    with running("service", folder, Settings()) as port:
        for name, path, parts in (
            ("decided", "/v1/decide:batch", raws), ("decided again, from the record", "/v1/decide:batch", raws),
            ("rewarded", "/v1/rewards", rewarding), ("rewarded again", "/v1/rewards", rewarding),
        ):  # fmt: skip
            before, start = asyncio.run(cpu_of(port)), time.perf_counter()
            asyncio.run(send(port, path, parts))
            took = time.perf_counter() - start
            steps[name] = {"clock": took, "cpu": asyncio.run(cpu_of(port)) - before}
    start, cpu = time.perf_counter(), time.process_time()
    Service(folder / "state", Settings()).close()
    steps["at a start"] = {"clock": time.perf_counter() - start, "cpu": time.process_time() - cpu}
    return {"events": given.events, "steps": steps}


def memory(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Return the memory of the server in twenty parts of a load of all tasks."""
    singles = bodies(50_000, given.tasks, given.contexts, 1)

    async def kb(port: int) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        _, body = await asked(reader, writer, b"GET /cpu HTTP/1.1\r\nhost: localhost\r\n\r\n")
        writer.close()
        return int(body.split()[1])

    with running("service", folder, Settings()) as port:
        total, samples = 0.0, []
        for part in range(20):
            numbers = asyncio.run(load(port, singles, "/v1/decide", given.clients, given.seconds / 20))
            total += numbers["a second"] * given.seconds / 20
            mib = asyncio.run(kb(port)) / 1024
            seconds = (part + 1) * given.seconds / 20
            samples.append({"seconds": seconds, "decisions": total, "mib": mib, "failed": numbers["failed"]})
    return {"samples": samples}


def fsync_ms(folder: Path) -> float:
    times = []
    with (folder / "probe").open("wb") as file:
        for _ in range(200):
            start = time.perf_counter()
            file.write(b"x" * 4096)
            file.flush()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - start)
    return 1e3 * float(np.median(times))


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, value in (("clients", 32), ("tasks", 1000), ("actions", 10), ("contexts", 9), ("batch", 1000)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument(
        "--folder", help="of the record; one in memory shows the processor time beyond the disk"
    )
    parser.add_argument("--events", type=int, default=100_000, help="of --only replay")
    parser.add_argument("--only", choices=["swaps", "replay", "memory"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        policy(folder, given.tasks, given.actions, given.contexts)
        names = ("tasks", "actions", "contexts", "clients", "batch", "seconds")
        results = {name: getattr(given, name) for name in names} | {"fsync_ms": fsync_ms(folder)}
        if given.only is not None:
            trial = {"swaps": swaps, "replay": replay, "memory": memory}[given.only]
            record.finish("serve", results | trial(folder, given), part=given.only)
            return
        kinds = {"echo": measured("echo", folder, Settings(), given)}
        for exploration in ("floor", "sampling"):
            kinds[exploration] = measured(exploration, folder, Settings(exploration=exploration), given)
        record.finish("serve", results | {"kinds": kinds})


if __name__ == "__main__":
    main()
