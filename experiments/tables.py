"""What the programs of this folder share: figures with their errors, Markdown tables, where a table comes from."""

import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np

import hieropo

PACKAGES = ("numpy", "scipy", "numba")


def figure(value: float, error: float, digits: int = 3) -> str:
    """Value and standard error, ``0.912 ± 0.004``; an empty cell where the value is not a number."""
    if not np.isfinite(value):
        return ""
    return f"{value:.{digits}f} ± {error:.{digits}f}" if np.isfinite(error) else f"{value:.{digits}f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown table; all columns but the first are aligned to the right."""
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def read_table(text: str, title: str) -> list[dict[str, str]]:
    """Rows of the first table below the heading ``title``, each by the names of the columns.

    Raises
    ------
    ValueError
        There is no such heading.
    """
    lines = text.splitlines()
    body = lines[lines.index(title) :]
    start = next(i for i, line in enumerate(body) if line.startswith("|"))
    cells = []
    for line in body[start:]:
        if not line.startswith("|"):
            break
        cells.append([cell.strip() for cell in line.strip("|").split("|")])
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def provenance(command: str) -> str:
    """One paragraph: the command, and the releases that it ran with."""
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return (
        f"Made by `{command}` with hieropo {hieropo.__version__}, {packages} and Python "
        f"{platform.python_version()}. Not edited by hand.\n"
    )


def write(path: Path, parts: Iterable[str]) -> None:
    """Write paragraphs and tables to a file, with an empty line between them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "\n".join(part if part.endswith("\n") else part + "\n" for part in parts), encoding="utf-8"
    )
