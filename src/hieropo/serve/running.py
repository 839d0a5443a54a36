"""Run a service until it is told to stop: sockets, signals, and a trial of the whole way."""

import ipaddress
import json
import logging
import os
import socket
import tempfile
import threading
import urllib.error
import urllib.request
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvicorn

from hieropo.errors import HieropoWarning, InputError
from hieropo.serve.app import Edge, make_app
from hieropo.serve.keys import Keyring
from hieropo.serve.protocol import DirectProtocol
from hieropo.serve.service import Service
from hieropo.serve.settings import Settings

_GRACE = 30  # seconds for requests at work after SIGTERM


def refuse_open_host(host: str, keys: Keyring) -> None:
    """Refuse to listen beyond this machine without keys.

    Raises
    ------
    InputError
        The host is no loopback address, and there are no keys.
    """
    if len(keys):
        return
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if not loopback:
        raise InputError(
            f"The service would listen at {host} without keys, so that anyone who reaches it could decide, delete and "
            "read. Make a key first (hieropo serve STATE --add-key NAME --role admin), or listen at 127.0.0.1."
        )


def serve(service: Service, *, host: str, port: int, keys: Keyring, log_level: str = "warning") -> None:
    """Serve until SIGTERM or SIGINT; requests at work are finished, and all that was acknowledged is on disk.

    Raises
    ------
    InputError
        The address cannot be listened at, or it is open to others and there are no keys.
    """
    server, listener = prepared(service, host=host, port=port, keys=keys, log_level=log_level)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HieropoWarning)  # of single requests: they are counted
        server.run(sockets=[listener])


def prepared(
    service: Service, *, host: str, port: int, keys: Keyring, log_level: str = "warning"
) -> tuple[uvicorn.Server, socket.socket]:
    """Return a server for a service, and the socket at which it listens.

    Raises
    ------
    InputError
        As :func:`serve`.
    """
    refuse_open_host(host, keys)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise InputError(
            f"The service cannot listen at {host}:{port} ({os.strerror(error.errno or 0)}). Is another program there? "
            "Give another --port."
        ) from error
    logging.getLogger("hieropo.serve").setLevel(log_level.upper())
    members = {"edge": Edge(service, keys), "head_timeout": service.settings.timeout}
    protocol = type("Protocol", (DirectProtocol,), members)
    config = uvicorn.Config(
        make_app(service, keys), http=protocol, access_log=False, log_level=log_level,
        timeout_keep_alive=30, timeout_graceful_shutdown=_GRACE, server_header=False, lifespan="on",
    )  # fmt: skip
    return uvicorn.Server(config), listener


def check(policy: str | os.PathLike[str], settings: Settings) -> list[str]:
    """Try the whole way with a policy on a state of its own, which is removed, and return the steps that worked.

    Raises
    ------
    InputError
        A step did not work; the message says which.
    """
    steps: list[str] = []
    quick = replace(settings, window=0.2, seal_every=0.2, refresh_every=None)
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder) / "state", quick, policy=policy)
        steps.append("The policy was loaded, and a state was made.")
        server, listener = prepared(service, host="127.0.0.1", port=0, keys=Keyring())
        port = listener.getsockname()[1]
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HieropoWarning)
            thread.start()
            try:
                _tried(service, f"http://127.0.0.1:{port}", steps)
            finally:
                server.should_exit = True
                thread.join()
        steps.append("The service stopped, and all that was acknowledged is on disk.")
    return steps


def _tried(service: Service, address: str, steps: list[str]) -> None:
    columns = service.state.columns
    context: dict[str, Any] = {}
    samples = {"number": 0.0, "int": 0, "boolean": True, "text": "a", "time": "2026-01-01T00:00:00+00:00"}
    for name, kind in columns.values:
        context[name] = samples[kind]
    tasks = service.engine.policy.table.keys.values[:1].tolist()
    task: Any = tasks[0] if tasks else [samples[kind] for _, kind in columns.task]
    body = {"task": list(task) if isinstance(task, tuple) else task, "context": context}
    body["incumbent"] = service.engine.actions[0]
    _asked(address + "/readyz", None)
    steps.append("The service answers that it is ready.")
    decision = _asked(address + "/v1/decide", body)
    steps.append(f"A request was decided: mode {decision['mode']}, propensity {decision['propensity']:.4g}.")
    reward = [{"reward_id": "check", "decision_id": decision["decision_id"], "value": 0.0}]
    status = _asked(address + "/v1/rewards", reward)["rewards"][0]["status"]
    steps.append(f"A reward was sent: {status}.")


def _asked(address: str, body: Any) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        detail = json.loads(error.read() or b"{}").get("detail", error.reason)
        raise InputError(f"The trial failed at {address.rpartition(':')[2]}: {detail}") from error
