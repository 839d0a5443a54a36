"""Draw the picture of a report that README and the site show.

    python scripts/report_picture.py [-o docs/report.svg]

It is made of the parts of a report of the shipped log of 119 villages: the question, the verdict, the gains and the
tasks by their gain. The same log gives the same bytes.
"""

import argparse
import re
import textwrap
from importlib.resources import files
from pathlib import Path
from typing import Any

from hieropo import HierOPO
from hieropo.report.charts import DRAWN
from hieropo.report.document import Document, Histogram, Intervals, Notice, Text
from hieropo.report.svg import WIDTH, element, label, shown

ROOT = Path(__file__).resolve().parents[1]
QUESTION = "Which incentive should each village get?"
MARGIN, LINE = 24.0, 19.0


def main() -> None:
    """Write the picture."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("-o", "--output", type=Path, default=ROOT / "docs" / "report.svg")
    output: Path = options.parse_args().output
    output.write_text(drawn(report()), encoding="utf-8")
    print(f"{output}: {output.stat().st_size:,} bytes")


def report() -> Document:
    """Return the report of the shipped log."""
    log = files("hieropo.data") / "thornton.parquet"
    columns = {"task": "villnum", "action": "incentive", "reward": "reward", "pscore": "pscore"}
    learner = HierOPO(logging="random").fit(log, **columns, context=["distvct"])
    return learner.evaluate(log).document(title=QUESTION)


def drawn(document: Document) -> str:
    """Return the first parts of a report as one SVG, with the styles of a report."""
    y, parts = MARGIN + 20, []
    parts.append(label(MARGIN, y, document.title, kind="title"))
    y += 14
    notice = _first(document, "verdict", Notice)
    lines = textwrap.wrap(notice.text, 104)
    height = 44 + LINE * len(lines)
    parts.append(element("rect", x=MARGIN, y=y, width=WIDTH, height=height, class_="tint"))
    parts.append(element("rect", x=MARGIN, y=y, width=6.0, height=height, class_=f"edge {notice.tone}"))
    parts.append(label(MARGIN + 20, y + 28, notice.head, kind=f"head {notice.tone}"))
    parts += [label(MARGIN + 20, y + 52 + LINE * k, line, kind="body") for k, line in enumerate(lines)]
    rivals = textwrap.wrap(_first(document, "verdict", Text).text, 112)
    parts += [label(MARGIN, y + height + 24 + LINE * k, line, kind="body") for k, line in enumerate(rivals)]
    y += height + 34 + LINE * len(rivals)
    for section, kind in (("gain", Intervals), ("harm", Histogram)):
        chart = _first(document, section, kind)
        parts.append(label(MARGIN, y, chart.title, kind="caption"))
        picture = DRAWN[kind](chart, section)
        tall = float(re.search(r'viewBox="0 0 \d+ (\d+)"', picture).group(1))  # type: ignore[union-attr]
        parts.append(
            picture.replace("<svg ", f'<svg x="{MARGIN}" y="{y + 8}" width="{WIDTH}" height="{tall}" ', 1)
        )
        y += tall + 34
    size = f'viewBox="0 0 {WIDTH + 2 * MARGIN:.0f} {y:.0f}"'
    head = f"<title>{shown(f'A report: {document.title}')}</title><desc>{shown(f'{notice.head}. {notice.text}')}</desc>"
    paper = element("rect", width="100%", height="100%", rx=8.0, class_="paper")
    return (
        f'<svg role="img" {size} xmlns="http://www.w3.org/2000/svg">{head}<style>{_styles()}</style>{paper}'
        f"{''.join(parts)}</svg>\n"
    )


def _first(document: Document, section: str, kind: type) -> Any:
    blocks = next(one.blocks for one in document.sections if one.name == section)
    return next(block for block in blocks if isinstance(block, kind))


def _styles() -> str:
    """Return the colours and the rules for charts of the style sheet of reports, and those of this picture."""
    sheet = (files("hieropo.report") / "assets" / "page.css").read_text(encoding="utf-8")
    colours = sheet[: sheet.index("*{box-sizing")]
    charts = "".join(line for line in sheet.splitlines() if line.startswith("svg ")).replace("svg ", "")
    own = (
        "text.title{font-size:22px;font-weight:650}text.caption{font-weight:600;font-size:14px}text.body{font-size:13px}"
        "text.head{font-size:18px;font-weight:650}.paper{fill:var(--paper);stroke:var(--line)}.tint{fill:var(--tint)}"
        + "".join(f".edge.{tone},text.{tone}{{fill:var(--{tone})}}" for tone in ("good", "open", "bad"))
    )
    return (colours + charts + own).replace("\n", "")


if __name__ == "__main__":
    main()
