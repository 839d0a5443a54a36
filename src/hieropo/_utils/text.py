"""The one writer of text, paragraphs and tables for a terminal, and the one writer of JSON."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from math import floor, isfinite, log10
from typing import Any
from unicodedata import combining, east_asian_width

WIDTH = 100
_NUMBER = re.compile(r"[+-]?[\d,]*\.?\d+(e[+-]?\d+)?")


def paragraph(text: str) -> str:
    """Return text wrapped to the width of a terminal."""
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def whole(number: float) -> int | float:
    """Return a number of rows as an int where it is one, to rounding; weights can make it a fraction."""
    near = round(number)
    return near if abs(number - near) <= 1e-9 * max(abs(number), 1.0) else float(number)


def thousands(number: float) -> str:
    """Return a number of rows as text with commas, ``2,825``; with one decimal where weights make it a fraction."""
    rounded = whole(number)
    return f"{rounded:,}" if isinstance(rounded, int) else f"{rounded:,.1f}"


def counted(number: float, noun: str) -> str:
    """Return a number with its noun, such as ``1 task`` or ``2,825 rows``."""
    return f"{thousands(number)} {noun}{'' if number == 1 else 's'}"


def agreeing(number: float, one: str, many: str) -> str:
    """Return the singular or the plural form for a number, such as ``is`` or ``are``."""
    return one if number == 1 else many


def percent(share: float) -> str:
    """Return a share in percent as text, with two digits where it is small."""
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def resolved(value: float, width: float) -> str:
    """Return a number as text with four digits, or with as many as a far smaller width needs."""
    width = abs(width)
    if not 1e-9 * abs(value) < width < 1e-2 * abs(value):
        return f"{value:.4g}"
    return f"{value:,.{max(2 - floor(log10(width)), 0)}f}"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as aligned lines; columns of numbers are aligned to the right."""
    width = max(len(row) for row in rows)
    filled = [[*map(_shown, row), *[""] * (width - len(row))] for row in rows]
    lines = []
    widths = [max(_places(cell) for cell in column) for column in zip(*filled, strict=True)]
    right = [_numeric(column[1:]) for column in zip(*filled, strict=True)]
    for row in filled:
        blanks = [" " * (size - _places(cell)) for cell, size in zip(row, widths, strict=True)]
        cells = (
            blank + cell if flush else cell + blank
            for cell, blank, flush in zip(row, blanks, right, strict=True)
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _shown(cell: str) -> str:
    """Return a cell in one line, with line ends and tabs escaped."""
    return cell if cell.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in cell)


def _places(cell: str) -> int:
    """Return the width of a cell in a terminal: two columns for wide letters, none for combining marks."""
    return sum((1 + (east_asian_width(c) in "WF")) * (not combining(c)) for c in cell)


def _numeric(cells: Sequence[str]) -> bool:
    found = [cell for cell in cells if cell]
    return bool(found) and all(_NUMBER.fullmatch(cell) for cell in found)


def as_json(value: Any) -> Any:
    """Return JSON's types: dataclasses and named tuples by field, arrays as lists, what is not finite as null."""
    if is_dataclass(value):
        value = {each.name: getattr(value, each.name) for each in fields(value)}
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    elif hasattr(value, "tolist") and value.dtype.kind not in "mM":
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: as_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(entry) for entry in value]
    return None if isinstance(value, float) and not isfinite(value) else value


class Report:
    """Base of dataclasses of results, whose fields are all written to JSON."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return JSON's types; numbers that are not finite are None."""
        found: dict[str, Any] = as_json(self)
        return found
