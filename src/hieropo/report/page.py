"""A document as one HTML file: no network, no clock, every word of the user escaped."""

import json
import os
import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from hieropo.errors import ArtifactError
from hieropo.report.charts import DRAWN
from hieropo.report.document import (
    Block,
    Copy,
    Document,
    Facts,
    Gates,
    Grid,
    Items,
    Notice,
    Section,
    TaskTable,
    Text,
)
from hieropo.report.svg import shown

ENDS = 50  # tasks at either end that are in the page without script
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def page(document: Document) -> str:
    """Return the document as one HTML page."""
    links = "".join(
        f'<li><a href="#{section.name}">{shown(section.title)}</a></li>' for section in document.sections
    )
    sections = "".join(_section(section) for section in document.sections)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{shown(_POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{shown(document.title)}</title>\n<style>{_asset('page.css')}</style>\n</head>\n<body>\n"
        f"<header><h1>{shown(document.title)}</h1><p>{shown(document.subtitle)}</p></header>\n"
        f'<nav aria-label="Sections"><ol>{links}</ol></nav>\n<main>{sections}</main>\n'
        f"<script>{_asset('page.js')}</script>\n</body>\n</html>\n"
    )


def fragment(document: Document) -> str:
    """Return the document for a notebook: no script, no links, and styles that reach nothing else."""
    sections = "".join(_section(section, level=4) for section in document.sections)
    style = re.sub(r":root|\bbody\b", ":scope", _asset("page.css"))
    return (
        f'<div class="hieropo"><style>@scope {{{style}}}</style><h3>{shown(document.title)}</h3>'
        f"<p>{shown(document.subtitle)}</p>{sections}</div>"
    )


def write_page(document: Document, path: str | os.PathLike[str]) -> Path:
    """Write the page to a file, which is replaced at once or not at all, and return its path.

    Raises
    ------
    ArtifactError
        The file cannot be written.
    """
    target = Path(path)
    if target.is_dir():
        raise ArtifactError(
            f"{target} is a folder, and a report is one file. Name a file in it, such as {target / 'report.html'}."
        )
    part = target.with_name(f"{target.name}.part")
    try:
        part.write_text(page(document), encoding="utf-8", newline="\n")
        part.replace(target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ArtifactError(
            f"{target}: the report cannot be written: {error.strerror}. Make room on the disk, or give a path in a "
            "folder that exists and can be written."
        ) from error
    return target


@cache
def _asset(name: str) -> str:
    return (files("hieropo.report") / "assets" / name).read_text(encoding="utf-8").strip()


def _section(section: Section, level: int = 2) -> str:
    blocks = "".join(_block(block, f"{section.name}-{k}") for k, block in enumerate(section.blocks))
    return f'<section id="{section.name}"><h{level}>{shown(section.title)}</h{level}>{blocks}</section>\n'


def _block(block: Block, name: str) -> str:
    drawn = DRAWN.get(type(block))
    if drawn is not None:
        chart: Any = block
        kind, title = type(block).__name__.lower(), shown(chart.title)
        return f'<figure class="{kind}"><figcaption>{title}</figcaption>{drawn(block, name)}</figure>'
    return _WRITTEN[type(block)](block, name)


def _text(block: Text, _: str) -> str:
    return f"<p>{shown(block.text)}</p>"


def _notice(block: Notice, _: str) -> str:
    return f'<div class="notice {block.tone}"><p class="head">{shown(block.head)}</p><p>{shown(block.text)}</p></div>'


def _items(block: Items, _: str) -> str:
    return f"<ul>{''.join(f'<li>{shown(item)}</li>' for item in block.items)}</ul>"


def _copy(block: Copy, _: str) -> str:
    return f'<p class="copy">{shown(block.text)}</p>'


def _facts(block: Facts, _: str) -> str:
    return (
        f"<dl>{''.join(f'<dt>{shown(name)}</dt><dd>{shown(value)}</dd>' for name, value in block.facts)}</dl>"
    )


def _grid(block: Grid, _: str) -> str:
    return _table(block.head, block.rows, block.caption)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    titles = "".join(f'<th scope="col">{shown(cell)}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{shown(row[0])}</th>{"".join(f"<td>{shown(cell)}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{shown(caption)}"><table><caption>{shown(caption)}'
        f"</caption><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _gates(block: Gates, name: str) -> str:
    head = ("P(harm) at most", "acts in", "gain a row", "from", "to", "expected to harm")
    rows = [
        (
            f"{gate.limit:g}", f"{gate.acts:.1%}", *(f"{end:.4g}" for end in (gate.gain, gate.low, gate.high)),
            f"{gate.harmed:.2%}",
        )
        for gate in block.gates
    ]  # fmt: skip
    chosen = block.gates[block.chosen]
    sentences = _data([gate.sentence for gate in block.gates])
    return (
        f'<div class="gates" data-gates><p class="slider"><label for="{name}-s">Gate: P(harm) at most</label> '
        f'<input type="range" id="{name}-s" min="0" max="{len(rows) - 1}" value="{block.chosen}" '
        f'aria-valuetext="{chosen.limit:g}" autocomplete="off"></p><p class="chosen" aria-live="polite">'
        f'{shown(chosen.sentence)}</p><script type="application/json">{sentences}</script>'
        f"{_table(head, rows, 'Consequences of each gate')}</div>"
    )


def _tasks(block: TaskTable, name: str) -> str:
    columns = list(block.columns)
    data = _data(
        {
            "columns": columns,
            "values": [block.columns[column] for column in columns],
            "groups": block.groups,
            "order": block.order,
        }
    )
    groups = "".join(
        f'<option value="{shown(group)}">{shown(group)}</option>'
        for group in sorted(set(block.columns[block.groups]))
    )
    ends = "".join(
        _table(columns, [_cells(block, row) for row in order[:ENDS]], caption)
        for order, caption in ((block.harmed, "Most likely harmed"), (block.improved, "Most improved"))
        if order
    )
    heads = "".join(
        f'<th scope="col" aria-sort="none"><button type="button">{shown(column)}</button></th>'
        for column in columns
    )
    return (
        f'<div class="tasks" data-tasks hidden><p><label for="{name}-q">Search</label> <input type="search" '
        f'id="{name}-q" autocomplete="off"> <label for="{name}-g">Show</label> <select id="{name}-g" '
        f'autocomplete="off"><option value="">all</option>{groups}</select> <span aria-live="polite"></span></p>'
        '<div class="rows" role="region" tabindex="0" aria-label="All tasks"><table><caption>All tasks</caption>'
        f'<thead><tr>{heads}</tr></thead><tbody></tbody></table></div></div><div class="ends">{ends}</div>'
        f'<script type="application/json" id="{name}-data">{data}</script>'
    )


def _cells(block: TaskTable, row: int) -> list[str]:
    return ["" if (value := column[row]) is None else str(value) for column in block.columns.values()]


def _data(value: Any) -> str:
    """Return JSON that cannot end the element that it stands in."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


_WRITTEN: dict[type, Callable[[Any, str], str]] = {
    Text: _text, Notice: _notice, Items: _items, Copy: _copy, Facts: _facts, Grid: _grid, Gates: _gates,
    TaskTable: _tasks,
}  # fmt: skip
