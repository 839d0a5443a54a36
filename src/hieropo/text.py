"""Plain text for a terminal: paragraphs and tables."""

import re
import textwrap
from collections.abc import Sequence

WIDTH = 100
_NUMBER = re.compile(r"[+-]?[\d,]*\.?\d+(e[+-]?\d+)?")


def paragraph(text: str) -> str:
    """Text wrapped to the width of a terminal."""
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def counted(number: int, noun: str) -> str:
    """A number with its noun, such as ``1 task`` or ``2,825 rows``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def percent(share: float) -> str:
    """Write a share, with two digits where it is small."""
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as lines, each column as wide as its widest cell; numbers stand to the right."""
    width = max(len(row) for row in rows)
    filled = [[*row, *[""] * (width - len(row))] for row in rows]
    lines = []
    widths = [max(len(cell) for cell in column) for column in zip(*filled, strict=True)]
    right = [_numeric(column[1:]) for column in zip(*filled, strict=True)]
    for row in filled:
        cells = (
            cell.rjust(size) if flush else cell.ljust(size)
            for cell, size, flush in zip(row, widths, right, strict=True)
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _numeric(cells: Sequence[str]) -> bool:
    found = [cell for cell in cells if cell]
    return bool(found) and all(_NUMBER.fullmatch(cell) for cell in found)
