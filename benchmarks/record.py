"""Results of benchmark programs as JSON in ``benchmarks/results``: figures with versions, processor and load."""

import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "results"
PACKAGES = ("numpy", "scipy", "numba", "pyarrow")


def processor() -> dict[str, Any]:
    """Model and number of the processors that this process may use."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"model": models[0] if models else platform.processor(), "count": count}


def versions() -> dict[str, str]:
    """Releases of Python, hieropo and what it computes with."""
    import hieropo

    found = {"python": platform.python_version(), "hieropo": hieropo.__version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def record(program: str, results: Any, *, load: tuple[float, ...] | None = None) -> dict[str, Any]:
    """Return the document of one run; ``load`` is that at its start, of 1, 5 and 15 minutes."""
    return {
        "program": program,
        "command": " ".join(["python", *(Path(sys.argv[0]).name, *sys.argv[1:])]),
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "versions": versions(),
        "processor": processor(),
        "load": {"start": load and list(load), "end": list(os.getloadavg())},
        "results": results,
    }


def write(
    program: str, results: Any, *, load: tuple[float, ...] | None = None, folder: Path = FOLDER
) -> Path:
    """Write the document of one run, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{program}.json"
    path.write_text(json.dumps(record(program, results, load=load), indent=1) + "\n", encoding="utf-8")
    return path


def read(program: str, *, folder: Path = FOLDER) -> dict[str, Any]:
    """Return the document of the last run of a program."""
    document: dict[str, Any] = json.loads((folder / f"{program}.json").read_text(encoding="utf-8"))
    return document


def origin(document: dict[str, Any]) -> str:
    """Return a sentence on a run: when, on which processor, under which load, with which versions."""
    machine = document["processor"]
    load = " to ".join(f"{numbers[0]:.1f}" for numbers in document["load"].values() if numbers)
    names = ", ".join(f"{name} {number}" for name, number in document["versions"].items())
    return f"Made {document['made']} on {machine['count']} processors ({machine['model']}), load {load}, with {names}."
