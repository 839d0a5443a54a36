"""Figures with their errors, as Markdown."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from hieropo.reproduce.summaries import Summary


def figure(value: float, error: float, digits: int = 3) -> str:
    """Value and standard error, ``0.912 ± 0.004``; an empty cell where the value is not a number."""
    if not np.isfinite(value):
        return ""
    return f"{value:.{digits}f} ± {error:.{digits}f}" if np.isfinite(error) else f"{value:.{digits}f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown table; all columns but the first are aligned to the right."""
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def crossed(
    found: Sequence[Summary], down: str, across: str, corner: str, cell: Callable[[Summary], str]
) -> str:
    """Markdown table with a row for each value of ``down``, and a column for each of ``across``.

    They name the algorithm, or a column of the place.
    """
    spots = {(_value(each, down), _value(each, across)): cell(each) for each in found}
    rows, heads = dict.fromkeys(row for row, _ in spots), dict.fromkeys(head for _, head in spots)
    return table(
        [corner, *map(str, heads)], ([str(r), *(spots.get((r, h), "") for h in heads)] for r in rows)
    )


def _value(each: Summary, name: str) -> Any:
    return each.algorithm if name == "algorithm" else each.place[name]


def mean(each: Summary) -> str:
    """Mean and standard error."""
    return figure(each.mean, each.se, 4)


def difference(each: Summary) -> str:
    """Difference and its standard error, with a sign; nothing where it is compared with itself."""
    if not np.isfinite(each.difference) or each.difference == each.difference_se == 0:
        return ""
    error = f" ± {each.difference_se:.4f}" if np.isfinite(each.difference_se) else ""
    return f"{each.difference:+.4f}{error}"
