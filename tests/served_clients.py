"""A service at work in a thread of the tests, with a client of it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from hieropo.serve import Service, Settings
from hieropo.serve.keys import Keyring
from hieropo.serve.running import prepared


@contextmanager
def client_of(policy: Path, folder: Path, **settings: Any) -> Iterator[httpx.Client]:
    state = folder / "state"
    service = Service(state, Settings(**settings), policy=policy, seed=0)
    server, listener = prepared(service, host="127.0.0.1", port=0, keys=Keyring.load(state))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=30) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()
