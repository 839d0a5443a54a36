"""What an experiment leaves in its folder: Parquet and Markdown, with commit, seed and settings inside."""

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import hieropo
from hieropo.errors import ArtifactError
from hieropo.reproduce.experiment import Results
from hieropo.reproduce.summaries import Summary
from hieropo.sources.writing import write_tables

PACKAGES = ("numpy", "scipy", "numba")


@dataclass(frozen=True)
class Origin:
    """Where results come from.

    Parameters
    ----------
    command : str
        That makes them again.
    seed : int
    settings : str
        Text of the file of settings.
    commits : tuple of str
        Sources that made the runs.
    """

    command: str
    seed: int
    settings: str
    commits: tuple[str, ...]

    @property
    def inside(self) -> dict[str, str]:
        """For the inside of files."""
        return {"hieropo": hieropo.__version__, "commit": ", ".join(self.commits), "seed": str(self.seed)}

    def paragraph(self) -> str:
        """For a person."""
        return (
            f"Made by `{self.command}` with {versions()}, at commit {', '.join(self.commits)}, with seed {self.seed}. "
            "Not edited by hand.\n"
        )


def versions() -> str:
    """Releases that this process runs with, in words."""
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return f"hieropo {hieropo.__version__}, {packages} and Python {platform.python_version()}"


def write_summaries(path: Path, found: Sequence[Summary], origin: Origin) -> None:
    """Write one row for each point and algorithm."""
    _write(path, [each.columns() for each in found], origin)


def write_runs(path: Path, results: Results, origin: Origin) -> None:
    """Write one row for each run and algorithm."""
    rows = [
        {**cell.columns, "run": number, "figure": name, "value": float(value)}
        for cell, runs in results.runs.items()
        for number, run in enumerate(runs)
        for name, value in run.items()
    ]
    _write(path, rows, origin)


def _write(path: Path, rows: Sequence[Mapping[str, Any]], origin: Origin) -> None:
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    write_tables(path, [columns], metadata={**origin.inside, "settings": origin.settings})


def write_text(path: Path, parts: Iterable[str]) -> None:
    """Write paragraphs and tables, with an empty line between them.

    Raises
    ------
    ArtifactError
        The disk does not take the file.
    """
    text = "\n".join(part if part.endswith("\n") else part + "\n" for part in parts)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ArtifactError(
            f"{path} was not written: {error.strerror or error}. Name another folder with -o."
        ) from error


def pictures_part(made: Sequence[Path]) -> list[str]:
    """Pictures of a folder, shown in a text in it."""
    return [f"![{path.stem}]({path.name})" for path in made if path.suffix == ".svg"]


def settings_part(origin: Origin) -> list[str]:
    """The settings as a chapter."""
    return ["## Settings", f"```toml\n{origin.settings}```"]
