"""Modules of the service are no tests where its libraries are not installed."""

from importlib.util import find_spec

_LIBRARIES = ("msgspec", "prometheus_client", "starlette", "uvicorn")
collect_ignore_glob = [] if all(map(find_spec, _LIBRARIES)) else ["src/hieropo/serve/*.py"]
