"""The service's tests need its libraries, and one policy for all of them."""

from importlib.util import find_spec
from pathlib import Path

import pytest

_LIBRARIES = ("httpx", "msgspec", "prometheus_client", "starlette", "uvicorn")
collect_ignore_glob = [] if all(map(find_spec, _LIBRARIES)) else ["test_*.py"]


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from served_worlds import saved

    return saved(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def text_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from served_worlds import saved

    return saved(tmp_path_factory.mktemp("served"), text_ids=True)
