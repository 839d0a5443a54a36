"""One page from a document of sections: text, tables and charts as a single HTML file, or as JSON.

The package draws and escapes. It knows no evaluation and computes no statistics; the packages above it hand it numbers
and sentences. May import ``_utils``.
"""

from hieropo.report.document import (
    Bars,
    Block,
    Copy,
    Curve,
    Curves,
    Document,
    Facts,
    Gate,
    Gates,
    Grid,
    Histogram,
    Interval,
    Intervals,
    Items,
    Notice,
    Section,
    TaskTable,
    Text,
    Tone,
)
from hieropo.report.page import fragment, page, write_page

__all__ = [
    "Bars",
    "Block",
    "Copy",
    "Curve",
    "Curves",
    "Document",
    "Facts",
    "Gate",
    "Gates",
    "Grid",
    "Histogram",
    "Interval",
    "Intervals",
    "Items",
    "Notice",
    "Section",
    "TaskTable",
    "Text",
    "Tone",
    "fragment",
    "page",
    "write_page",
]
