"""Results of an experiment in its folder: means and differences of runs, as Parquet and Markdown."""

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import hieropo
from hieropo._utils.arrays import Array
from hieropo.errors import ArtifactError
from hieropo.logs.arrow.writing import write_tables
from hieropo.reproduce.experiment import Results

FIRST = 3  # runs whose results are listed singly, to check a reproduction


@dataclass(frozen=True, slots=True)
class Summary:
    """One algorithm at one point of a figure.

    Parameters
    ----------
    setting : dict
        Values of the varied quantities at that point, by column.
    algorithm : str
    runs : int
    mean, se : float
        Mean over runs, and its standard error; of one run, not a number.
    difference, difference_se : float
        To the algorithm that all are compared with, in the same runs.
    first : tuple of float
        The first runs.
    """

    setting: Mapping[str, Any]
    algorithm: str
    runs: int
    mean: float
    se: float
    difference: float
    difference_se: float
    first: tuple[float, ...]

    def columns(self) -> dict[str, Any]:
        """Return the row of a table of results."""
        numbers = {name: getattr(self, name) for name in self.__slots__ if name != "setting"}
        return {**self.setting, **numbers, "first": list(self.first)}


def standard_error(values: Array) -> float:
    """Return the standard error of the mean of independent values (R,)."""
    return float(values.std(ddof=1) / np.sqrt(values.size)) if values.size > 1 else float("nan")


def summarised(
    setting: Mapping[str, Any], runs: Sequence[Mapping[str, float]], names: Sequence[str], compared_with: str
) -> list[Summary]:
    """Return one :class:`Summary` for each name, from paired runs in their order."""
    values = {name: np.array([run[name] for run in runs]) for name in names}
    other = values.get(compared_with)
    summaries = []
    for name, figures in values.items():
        differences = figures - other if other is not None else np.full(figures.size, np.nan)
        summaries.append(
            Summary(
                setting, name, figures.size, float(figures.mean()), standard_error(figures),
                float(differences.mean()), standard_error(differences), tuple(figures[:FIRST].tolist()),
            )
        )  # fmt: skip
    return summaries


def figure(value: float, error: float, digits: int = 3) -> str:
    """Return value and standard error as text, ``0.912 ± 0.004``; empty where the value is not a number."""
    if not np.isfinite(value):
        return ""
    return f"{value:.{digits}f} ± {error:.{digits}f}" if np.isfinite(error) else f"{value:.{digits}f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; all columns but the first are aligned to the right."""
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def cross_table(
    summaries: Sequence[Summary], down: str, across: str, corner: str, cell: Callable[[Summary], str]
) -> str:
    """Return a Markdown table with a row for each value of ``down``, and a column for each of ``across``.

    Each of them is "algorithm" or a column of the setting.
    """
    cells = {(_value(summary, down), _value(summary, across)): cell(summary) for summary in summaries}
    rows, heads = dict.fromkeys(row for row, _ in cells), dict.fromkeys(head for _, head in cells)
    return table(
        [corner, *map(str, heads)], ([str(r), *(cells.get((r, h), "") for h in heads)] for r in rows)
    )


def _value(summary: Summary, name: str) -> Any:
    return summary.algorithm if name == "algorithm" else summary.setting[name]


def mean(summary: Summary) -> str:
    """Return mean and standard error as text."""
    return figure(summary.mean, summary.se, 4)


def difference(summary: Summary) -> str:
    """Return difference and standard error as text, with a sign; empty for the compared algorithm itself."""
    if not np.isfinite(summary.difference) or summary.difference == summary.difference_se == 0:
        return ""
    error = f" ± {summary.difference_se:.4f}" if np.isfinite(summary.difference_se) else ""
    return f"{summary.difference:+.4f}{error}"


PACKAGES = ("numpy", "scipy", "numba")


@dataclass(frozen=True)
class Origin:
    """The provenance of results.

    Parameters
    ----------
    command : str
        Makes them again.
    seed : int
    settings : str
        Text of the file of settings.
    commits : tuple of str
        Of the sources that made the runs.
    """

    command: str
    seed: int
    settings: str
    commits: tuple[str, ...]

    @property
    def metadata(self) -> dict[str, str]:
        """Return the provenance for the metadata of files."""
        return {"hieropo": hieropo.__version__, "commit": ", ".join(self.commits), "seed": str(self.seed)}

    def paragraph(self) -> str:
        """Return the provenance as text for a person."""
        return (
            f"Made by `{self.command}` with {versions()}, at commit {', '.join(self.commits)}, with seed {self.seed}. "
            "Not edited by hand.\n"
        )


def versions() -> str:
    """Return the releases of this process as text."""
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return f"hieropo {hieropo.__version__}, {packages} and Python {platform.python_version()}"


def write_summaries(path: Path, summaries: Sequence[Summary], origin: Origin) -> None:
    """Write one row for each point and algorithm."""
    _write(path, [summary.columns() for summary in summaries], origin)


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
    write_tables(path, [columns], metadata={**origin.metadata, "settings": origin.settings})


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


def pictures_part(paths: Sequence[Path]) -> list[str]:
    """Return the Markdown of figures of a folder."""
    return [f"![{path.stem}]({path.name})" for path in paths if path.suffix == ".svg"]


def settings_part(origin: Origin) -> list[str]:
    """Return the settings as a chapter."""
    return ["## Settings", f"```toml\n{origin.settings}```"]
