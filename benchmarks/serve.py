"""Durable decisions a second of the service, beside a bare echo of the same framework, in the same run.

    python benchmarks/serve.py [--seconds 5] [--clients 32] [--tasks 1000] [--actions 10] [--contexts 9]

The server is one process, the clients are another, on loopback. Each client keeps one connection and waits for its
answer. The clients are a bare asyncio program, so that they take as little of the processors as they can. CPU is that
of the server's process, from its own clock.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import socket
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
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
    rows = max(20 * tasks, 20_000)
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
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            return Response(f"{time.process_time()} {memory}")

        server.config.app.router.routes.append(Route("/cpu", cpu))
    ready.set()
    server.run(sockets=[listener])


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
        while (start := time.perf_counter()) < stop:
            status, _ = await asked(reader, writer, message(path, raws[number % len(raws)]))
            times.append(time.perf_counter() - start)
            failed += status != 200
            number += clients
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


def measured(kind: str, folder: Path, settings: Settings, given: argparse.Namespace) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    ready = multiprocessing.Event()
    process = multiprocessing.Process(target=served, args=(kind, folder, settings, listener, ready))
    process.start()
    ready.wait()
    port = listener.getsockname()[1]
    singles = bodies(2_000, given.tasks, given.contexts, 1)
    batches = bodies(10, given.tasks, given.contexts, given.batch)
    asyncio.run(load(port, singles, "/v1/decide", given.clients, 1.0))
    for name, raws, path, clients in (
        ("decide", singles, "/v1/decide", given.clients), (f"batch of {given.batch}", batches, "/v1/decide:batch", 2),
    ):  # fmt: skip
        numbers = asyncio.run(load(port, raws, path, clients, given.seconds))
        if path.endswith("batch"):
            numbers["decisions a second"] = numbers["a second"] * given.batch
        shown = "  ".join(f"{key} {value:,.1f}" for key, value in numbers.items())
        print(f"{kind:22} {name:14} {clients:3} clients: {shown}", flush=True)
    process.terminate()
    process.join()


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
    parser.add_argument(
        "--folder", help="of the record; one in memory shows the processor time beyond the disk"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        policy(folder, given.tasks, given.actions, given.contexts)
        print(
            f"{given.tasks:,} tasks, {given.actions} actions, {given.contexts + 1} coefficients each; ",
            end="",
        )
        print(f"{os.cpu_count()} processors; a write and fdatasync of 4 kB takes {fsync_ms(folder):.2f} ms")
        measured("echo", folder, Settings(), given)
        for exploration in ("floor", "sampling"):
            measured(f"service, {exploration}", folder, Settings(exploration=exploration), given)


if __name__ == "__main__":
    main()
