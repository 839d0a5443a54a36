"""Finished runs, written down as they come: one JSON line each, so that a command goes on where it was ended.

The first lines say what runs depend on. A line that was torn by a crash is dropped; runs depend on nothing but
their seed, so that it does not matter who made which of them when.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hieropo.errors import ArtifactError

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Run:
    """What came of one run: numbers by name."""

    cell: str
    run: int
    found: dict[str, float]

    @property
    def key(self) -> Key:
        """What tells it from others."""
        return (self.cell, self.run)


class Journal:
    """The file of finished runs of one experiment.

    Parameters
    ----------
    path : Path
        Made where it is not there.
    depends : dict
        JSON values that the runs depend on; a file of runs that depend on others is refused.
    commit : str
        Which sources make the runs from now on; kept beside them.

    Raises
    ------
    ArtifactError
        The file belongs to other settings, is damaged, or cannot be written.
    """

    def __init__(self, path: Path, depends: dict[str, Any], commit: str) -> None:
        self._path = path
        self._depends = json.loads(json.dumps(depends))
        self.runs: dict[Key, Run] = {}
        self.commits: list[str] = []
        try:
            if path.exists():
                self._read()
            if commit not in self.commits:
                self.commits.append(commit)
                self._append([{"depends": self._depends, "commit": commit}])
        except OSError as error:
            raise _unusable(path, error) from error

    def add(self, runs: Iterable[Run]) -> None:
        """Write runs down; they are on the disk when this returns."""
        found = list(runs)
        try:
            self._append({"cell": each.cell, "run": each.run, **each.found} for each in found)
        except OSError as error:
            raise _unusable(self._path, error) from error
        self.runs |= {each.key: each for each in found}

    def _append(self, lines: Iterable[dict[str, Any]]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())

    def _read(self) -> None:
        whole, end = _whole_lines(self._path)
        for number, line in enumerate(whole, start=1):
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ArtifactError(
                    f"Line {number} of {self._path} is not a run. Was the file edited? Delete it, and the runs are "
                    "made again."
                ) from error
        os.truncate(self._path, end)

    def _take(self, line: dict[str, Any]) -> None:
        if "depends" in line:
            _refuse_other(self._path, line["depends"], self._depends)
            self.commits.append(str(line["commit"]))
            return
        run = Run(str(line.pop("cell")), int(line.pop("run")), {k: float(v) for k, v in line.items()})
        self.runs[run.key] = run


def _whole_lines(path: Path) -> tuple[list[bytes], int]:
    """Lines that end, and the byte at which the last of them does."""
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    return content[:end].splitlines(), end


def _refuse_other(path: Path, theirs: Any, ours: dict[str, Any]) -> None:
    if theirs == ours:
        return
    unlike = [name for name in ours if not isinstance(theirs, dict) or theirs.get(name) != ours[name]]
    raise ArtifactError(
        f"{path} holds runs that were made with other settings ({', '.join(unlike) or 'more of them'} differ). Name "
        "another folder with -o, or delete that file."
    )


def _unusable(path: Path, error: OSError) -> ArtifactError:
    return ArtifactError(
        f"{path} cannot be written or read: {error.strerror or error}. Name another folder with -o."
    )
