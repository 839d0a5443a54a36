"""Results of benchmark programs as JSON in ``benchmarks/results``: figures with versions, processor and load.

A document is one run. Parts of a program that are run separately have a name, and lie below "parts", each a run of its
own. A part that is written anew leaves the others as they are.
"""

import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import renderers

FOLDER = Path(__file__).resolve().parent / "results"
PACKAGES = ("numpy", "scipy", "numba", "pyarrow")
LOAD = os.getloadavg()  # of 1, 5 and 15 minutes, as the program starts


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

    releases = {"python": platform.python_version(), "hieropo": hieropo.__version__}
    for name in PACKAGES:
        try:
            releases[name] = version(name)
        except PackageNotFoundError:
            continue
    return releases


def shortened(argument: str) -> str:
    """Return an argument; of a path of this machine, its last two parts."""
    return "/".join(Path(argument).parts[-2:]) if Path(argument).is_absolute() else argument


def run_of(results: Any, load: tuple[float, ...] = LOAD) -> dict[str, Any]:
    """Return figures with what they depend on; ``load`` is that at the start of the run, of 1, 5 and 15 minutes."""
    return {
        "command": " ".join(["python", Path(sys.argv[0]).name, *map(shortened, sys.argv[1:])]),
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "versions": versions(),
        "processor": processor(),
        "load": {"start": list(load), "end": list(os.getloadavg())},
        "results": results,
    }


def write(
    program: str, results: Any, *, part: str = "", load: tuple[float, ...] = LOAD, folder: Path = FOLDER
) -> Path:
    """Write one run, or one part beside the other parts of the program; return the path of the document."""
    folder.mkdir(parents=True, exist_ok=True)
    path, draft = folder / f"{program}.json", folder / f"{program}.json.draft"
    document = read(program, folder=folder) if path.exists() else {"program": program}
    run = run_of(results, load)
    document |= {"parts": {**document.get("parts", {}), part: run}} if part else run
    draft.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    draft.replace(path)  # a program that is killed leaves the old document
    return path


def finish(program: str, results: Any, *, part: str = "") -> None:
    """Write one run or part, and print its table."""
    write(program, results, part=part)
    print(f"\n{renderers.PROGRAMS[program].render({part: results})}", flush=True)


def read(program: str, *, folder: Path = FOLDER) -> dict[str, Any]:
    """Return the document of the last run of a program."""
    document: dict[str, Any] = json.loads((folder / f"{program}.json").read_text(encoding="utf-8"))
    return document


def runs(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the runs of a document by the names of their parts; a run without a part has the name ""."""
    return ({"": document} if "results" in document else {}) | document.get("parts", {})


def origin(document: dict[str, Any]) -> str:
    """Return sentences on the runs: when, on which processor, under which load, with which versions."""
    processes: dict[tuple[str, ...], list[tuple[str, dict[str, Any]]]] = {}
    for part, run in runs(document).items():
        machine = f"on {run['processor']['count']} processors ({run['processor']['model']})"
        names = ", ".join(f"{name} {number}" for name, number in run["versions"].items())
        key = (
            machine,
            names,
            run["command"],
            str(run["load"]["start"]),
        )  # parts of one process have one sentence
        processes.setdefault(key, []).append((part, run))
    sentences: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for (machine, names, *_), parts in processes.items():
        (first, _), (last, run) = parts[0], parts[-1]
        label = first if len(parts) == 1 else f"{first} to {last}"
        load = " to ".join(f"{numbers[0]:.1f}" for numbers in run["load"].values() if numbers)
        sentences.setdefault((machine, names), []).append((f"{label} {run['made']}".strip(), load))
    return " ".join(
        f"Made {times[0][0]} {machine}, load {times[0][1]}, with {names}."
        if len(times) == 1
        else f"Made {machine} with {names}: {'; '.join(f'{made}, load {load}' for made, load in times)}."
        for (machine, names), times in sentences.items()
    )
