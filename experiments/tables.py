"""Figures with their errors, Markdown tables, and the provenance of a table."""

from collections.abc import Iterable
from pathlib import Path

from hieropo.reproduce.writing import figure, table, versions, write_text

__all__ = ["figure", "provenance", "read_table", "table", "write"]


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
    return f"Made by `{command}` with {versions()}. Not edited by hand.\n"


def write(path: Path, parts: Iterable[str]) -> None:
    """Write paragraphs and tables to a file, with an empty line between them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, parts)
