"""Run all benchmark programs, one after the other, and render their tables: at most 30 minutes on two quiet processors.

    python benchmarks/all.py [--only als serve ...] [--peers FOLDER] [--data FOLDER] [--limit SECONDS]

A run that fails, takes longer than the limit or lacks a peer is named at the end, and its old record stays. FOLDER of
the peers holds their environments as `make peers` makes them. cmfrec and formulaic have to be in this environment,
lme4 in R. Runs and their arguments are in ``renderers.PROGRAMS``.
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import readme
from renderers import PROGRAMS, Run

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE.parent / "build" / "peers" / "environments"
SECONDS = 900.0


def places(peers: Path, data: Path) -> dict[str, str]:
    """Return what stands for the names in the arguments of runs: interpreters of peers, and the folder of logs."""
    pythons = {python.parents[1].name: str(python.absolute()) for python in peers.glob("*/bin/python")}
    return pythons | ({"data": str(data.resolve())} if data.is_dir() else {})


def lacking(run: Run, known: dict[str, str]) -> list[str]:
    """Return the names of all that a run needs and that is not installed."""
    wanted = [word.split("}")[0] for word in run.arguments.split("{")[1:]]
    modules = [name for name in run.needs if name != "lme4" and find_spec(name) is None]
    return [name for name in wanted if name not in known] + modules + lacking_r(run)


def lacking_r(run: Run) -> list[str]:
    if "lme4" not in run.needs:
        return []
    command = ["Rscript", "-e", "library(lme4)"]
    there = (
        shutil.which("Rscript") and not subprocess.run(command, capture_output=True, check=False).returncode
    )
    return [] if there else ["lme4"]


def error_of(command: list[str], environment: dict[str, str], limit: float) -> str | None:
    """Run a program with its children; return why it has no result, or None."""
    process = subprocess.Popen(
        command, env={**os.environ, **environment}, start_new_session=True, cwd=HERE.parent
    )
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        return f"took more than {limit:g} s"
    finally:
        ended(process)
    if code < 0:
        return f"was killed by signal {-code}"
    return f"exit code {code}" if code else None


def ended(process: subprocess.Popen[bytes]) -> None:
    """End a program and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def failures(names: list[str], known: dict[str, str], limit: float) -> Iterator[str]:
    """Run programs; return a sentence for each run without a result."""
    for name in names:
        for run in PROGRAMS[name].runs:
            shown, start = readme.command(name, run), time.monotonic()
            absent = lacking(run, known)
            print(f"\n--- {shown}", flush=True)
            arguments = [] if absent else run.arguments.format(**known).split()
            program = [sys.executable, str(HERE / f"{name}.py"), *arguments]
            error = (
                f"lacks {', '.join(absent)}" if absent else error_of(program, dict(run.environment), limit)
            )
            print(f"--- {time.monotonic() - start:.0f} s", flush=True)
            if error:
                yield f"{shown}: {error}"


def main() -> int:
    """Run, render, and name the runs without a result; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--peers", type=Path, default=ENVIRONMENTS)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("HIEROPO_DATA", "../shared/data")))
    parser.add_argument("--limit", type=float, default=SECONDS, help="seconds that one run may take")
    given = parser.parse_args()
    failed = list(failures(given.only, places(given.peers, given.data), given.limit))
    readme.main()
    if failed:
        print("Runs without a result, whose old records stay:", *failed, sep="\n  ")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
