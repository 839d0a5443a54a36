"""Environments of the peers: one for each file in ``requirements``, made by pip, and how large they are."""

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
MEASURE = """
import re, sys, json
from importlib.metadata import distribution, PackageNotFoundError
seen, waiting = {}, [sys.argv[1]]
while waiting:
    name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
    if name in seen:
        continue
    try:
        found = distribution(name)
    except PackageNotFoundError:
        continue
    paths = [found.locate_file(file) for file in found.files or ()]
    seen[name] = (found.version, sum(path.stat().st_size for path in paths if path.is_file()))
    waiting += [re.match(r"[A-Za-z0-9_.-]+", line)[0] for line in found.requires or () if "extra ==" not in line]
print(json.dumps({"version": seen[re.sub(r"[-_.]+", "-", sys.argv[1]).lower()][0], "packages": len(seen),
    "closure_mb": sum(size for _, size in seen.values()) / 1e6}))
"""
IMPORT = "import time, numpy; s = time.process_time(); import {module}; print(time.process_time() - s)"


@dataclass(frozen=True)
class Environment:
    """The interpreter of a peer, or the error of its installation."""

    python: Path
    error: str | None = None


def environment(name: str, folder: Path) -> Environment:
    """Return the environment for ``requirements/NAME.txt``, made where it is not there or out of date."""
    requirements = HERE / "requirements" / f"{name}.txt"
    place, mark = folder / name, hashlib.sha256(requirements.read_bytes()).hexdigest()
    done, python = place / "installed.txt", place / "bin" / "python"
    if done.exists() and done.read_text(encoding="utf-8") == mark:
        return Environment(python)
    shutil.rmtree(place, ignore_errors=True)
    commands = (
        [sys.executable, "-m", "venv", str(place)],
        [str(python), "-m", "pip", "--disable-pip-version-check", "-q", "install", "-r", str(requirements)],
    )
    for command in commands:
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            return Environment(python, (made.stderr.strip().splitlines() or ["no message"])[-1][:300])
    done.write_text(mark, encoding="utf-8")
    return Environment(python)


def r_with_lme4() -> str | None:
    """Return an error where R or lme4 is not installed."""
    if not shutil.which("Rscript"):
        return "Rscript is not installed (on Debian: the package r-cran-lme4)"
    command = ["Rscript", "-e", 'cat(as.character(packageVersion("lme4")))']
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    return made.stderr.strip().splitlines()[-1] if made.returncode else None


def installed(python: Path, distribution: str, module: str) -> dict:
    """Return version, number and size of the packages that a distribution needs, and CPU seconds of its import."""
    found: dict = {"version": None, "closure_mb": None, "import_seconds": None}
    made = subprocess.run(
        [str(python), "-c", MEASURE, distribution], capture_output=True, text=True, check=False
    )
    if not made.returncode:
        found |= json.loads(made.stdout)
    command = [str(python), "-c", IMPORT.format(module=module)]
    runs = [subprocess.run(command, capture_output=True, text=True, check=False) for _ in range(3)]
    seconds = [float(run.stdout) for run in runs if not run.returncode]
    return found | ({"import_seconds": min(seconds)} if seconds else {})
