"""Run the command line, in a process of its own or within this one, and a small log for it."""

import contextlib
import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from click.testing import CliRunner, Result

from hieropo.cli import main

COMMAND = [sys.executable, "-c", "from hieropo.cli import main; main(prog_name='hieropo')"]
FIT = ["--task", "store", "--action", "offer", "--reward", "profit"]


def hieropo_(*words: object, folder: Path | None = None) -> "subprocess.CompletedProcess[str]":
    command = [*COMMAND, *(str(word) for word in words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False, timeout=120)


def succeeds(*words: object, folder: Path | None = None) -> str:
    done = hieropo_(*words, folder=folder)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def fails(code: int, *words: object, folder: Path | None = None) -> str:
    done = hieropo_(*words, folder=folder)
    assert (done.returncode, done.stdout) == (code, ""), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "Error: " in done.stderr
    return done.stderr


def called(*words: object, folder: Path | None = None) -> Result:
    """As ``hieropo_``, without the cost of a process."""
    with warnings.catch_warnings(), contextlib.chdir(folder or Path()):
        warnings.simplefilter(
            "default"
        )  # the program shows them; those that a test allows are not in its words
        return CliRunner().invoke(main, [str(word) for word in words], prog_name="hieropo")


def answers(*words: object, folder: Path | None = None) -> str:
    """As ``succeeds``, without the cost of a process."""
    done = called(*words, folder=folder)
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    return done.stdout


def ends(code: int, *words: object) -> str:
    """Run with an exit code, whatever is warned of; return the standard output, or where it fails the errors."""
    done = CliRunner().invoke(main, [str(word) for word in words], prog_name="hieropo")
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    return done.stdout if code == 0 else done.stderr


def in_json(*words: object) -> dict[str, Any]:
    """Return the answer of a command as JSON."""
    output: dict[str, Any] = json.loads(ends(0, *words, "--json"))
    return output


def refuses(code: int, *words: object) -> str:
    """As ``fails``, without the cost of a process."""
    done = called(*words)
    assert (done.exit_code, done.stdout) == (code, ""), done.output
    assert "Traceback" not in done.stderr
    assert "Error: " in done.stderr
    return done.stderr


def make_log(rows: int = 400) -> pa.Table:
    rng = np.random.default_rng(0)
    store, offer = rng.integers(0, 8, rows), rng.integers(0, 3, rows)
    visits = rng.normal(3.0, 1.0, rows)
    worth = np.array([0.0, 1.0, 2.0])[offer] + 0.5 * store * (offer == 1) + 0.1 * visits
    return pa.table(
        {
            "store": store,
            "offer": np.array(["none", "coupon", "gift"])[offer].tolist(),
            "visits": visits,
            "profit": worth + rng.normal(0.0, 0.5, rows),
            "chance": np.full(rows, 1 / 3),
        }
    )
