"""Modules of the service hold no tests where its libraries are absent; MLflow alone runs the code of its model."""

from importlib.util import find_spec

_LIBRARIES = ("msgspec", "prometheus_client", "starlette", "uvicorn")
collect_ignore_glob = ["src/hieropo/cli/_mlflow_model.py"]
if not all(map(find_spec, _LIBRARIES)):
    collect_ignore_glob.append("src/hieropo/serve/*.py")
