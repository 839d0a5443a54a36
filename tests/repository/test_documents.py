"""The examples of the documents run as they stand.

In each document the ``python`` blocks share one namespace and, with the ``console`` and ``sh`` blocks, one
empty directory. Output printed in a ``console`` block must come out; ``...`` there stands for anything. The commands of
one document, and all that need a shell, run in processes of their own; the others are called.
"""

import doctest
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from command_line import called

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(python|console|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ELSEWHERE = ("make", "pip ", "git ", "cd ")  # they set the stage; the suite itself runs on it
SHELL = re.compile(r"[|&;<>$`*]")  # unless they are quoted, these are for the shell
REAL = "start.md"
LOOSE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def documents() -> list[Path]:
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(path for path in found if BLOCK.search(path.read_text(encoding="utf-8")))


def commands(kind: str, text: str) -> list[tuple[str, str]]:
    """Split a block into (command, output expected of it)."""
    text = text.replace("\\\n", " ")
    if kind == "sh":
        return [(line, "") for line in text.splitlines() if line and not line.startswith("#")]
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    return [(command, output) for command, _, output in (part.partition("\n") for part in parts)]


def run_command(command: str, expected: str, *, in_process: bool) -> None:
    words = shlex.split(command, comments=True)
    if in_process and words[0] == "hieropo" and not SHELL.search(command):
        result = called(*words[1:])
        status, out, err = result.exit_code, result.stdout, result.stderr
    else:
        search = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            capture_output=True, text=True, check=False, env={**os.environ, "PATH": search},
        )  # fmt: skip
        status, out, err = done.returncode, done.stdout, done.stderr
    assert status == 0, f"{command}\n{out}{err}"
    if expected.strip():
        assert doctest.OutputChecker().check_output(expected, out, LOOSE), f"{command}\n{out}"


def test_architecture_shows_the_layers_that_are_checked() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = [each for each in settings["tool"]["importlinter"]["contracts"] if each["type"] == "layers"]
    assert contracts
    for contract in contracts:
        present = [re.sub(r"\(\w+\)( \| )?|( \| )\(\w+\)", "", layer) for layer in contract["layers"]]
        shown = "\n".join(f"    {layer}" for layer in present if layer)
        assert f"\n\n{shown}\n\n" in text


@pytest.mark.slow
@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_examples_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "example"}
    for kind, text in BLOCK.findall(path.read_text(encoding="utf-8")):
        if kind == "python":
            exec(compile(text, path.name, "exec"), namespace)
            continue
        for command, expected in commands(kind, text):
            if not command.startswith(ELSEWHERE):
                run_command(command, expected, in_process=path.name != REAL)
