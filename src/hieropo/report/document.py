"""The content of a report as values: a document holds sections, and a section holds blocks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hieropo._utils.text import as_json

FORMAT, VERSION = "hieropo report", 1

Tone = Literal["good", "open", "bad"]


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence that stands out, with the sentences that it rests on.

    Attributes
    ----------
    head : str
        Two or three words.
    text : str
    tone : {"good", "open", "bad"}
    """

    head: str
    text: str
    tone: Tone


@dataclass(frozen=True, slots=True)
class Items:
    """A list of findings, each with its remedy."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Copy:
    """A paragraph of plain text to paste elsewhere."""

    text: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values, such as settings."""

    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of cells that are text already.

    Attributes
    ----------
    head : tuple of str
    rows : tuple of tuples of str
    caption : str
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str


@dataclass(frozen=True, slots=True)
class Interval:
    """A number with its interval, under a label; ``low`` and ``high`` are None where it has none."""

    label: str
    value: float
    low: float | None
    high: float | None
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Intervals:
    """A chart of intervals, one in each line.

    Attributes
    ----------
    title, axis : str
    intervals : tuple of Interval
    marked : str
        Meaning of the intervals that are marked; empty where none is.
    dense : bool
        Whether lines are drawn close together, without their numbers.
    zero : bool
        Whether the axis holds 0.
    """

    title: str
    axis: str
    intervals: tuple[Interval, ...]
    marked: str = ""
    dense: bool = False
    zero: bool = True


@dataclass(frozen=True, slots=True)
class Histogram:
    """A chart of counts in bins; of each bin a part is marked.

    Attributes
    ----------
    title, axis : str
    edges : tuple of n + 1 floats
    counts, marked : tuple of n floats
    meaning : str
        Of the marked part.
    """

    title: str
    axis: str
    edges: tuple[float, ...]
    counts: tuple[float, ...]
    marked: tuple[float, ...]
    meaning: str


@dataclass(frozen=True, slots=True)
class Bars:
    """A chart of shares in equal bins of [0, 1], with the share that is expected."""

    title: str
    axis: str
    shares: tuple[float, ...]
    expected: float


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a chart, with its band."""

    label: str
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Curves:
    """A chart of lines with bands over one number."""

    title: str
    axis: str
    unit: str
    x: tuple[float, ...]
    curves: tuple[Curve, ...]


@dataclass(frozen=True, slots=True)
class Gate:
    """The consequences of one gate.

    Attributes
    ----------
    limit : float
        Probability of harm up to which the policy acts.
    acts : float
        Share of tasks in which the policy acts and differs from the incumbent.
    gain, low, high : float
        Per row of the log, by the model.
    harmed : float
        Share of tasks that are expected to be harmed.
    """

    limit: float
    acts: float
    gain: float
    low: float
    high: float
    harmed: float

    @property
    def sentence(self) -> str:
        """The consequences in words."""
        return (
            f"A gate at P(harm) {self.limit:g}: the policy acts in {self.acts:.1%} of the tasks, gains "
            f"{self.gain:.4g} a "
            f"row ({self.low:.4g} to {self.high:.4g}) and is expected to harm {self.harmed:.2%} of the tasks."
        )


@dataclass(frozen=True, slots=True)
class Gates:
    """Gates to choose from, ascending, and the one that is shown first."""

    gates: tuple[Gate, ...]
    chosen: int


@dataclass(frozen=True, slots=True)
class TaskTable:
    """All tasks, a column of values each: text, numbers (None where there is none), or short words.

    Attributes
    ----------
    columns : mapping of str to tuple
        The first column names the tasks.
    harmed, improved : tuple of int
        Rows of the tasks that are most likely harmed and most likely improved, the first first.
    groups : str
        Column of words by which tasks can be filtered.
    order : str
        Column by which tasks are sorted at first, the largest first.
    """

    columns: Mapping[str, tuple[Any, ...]]
    harmed: tuple[int, ...]
    improved: tuple[int, ...]
    groups: str
    order: str


Block = (
    Text | Notice | Items | Copy | Facts | Grid | Intervals | Histogram | Bars | Curves | Gates | TaskTable
)


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and its blocks; ``name`` identifies the section in links and in JSON."""

    name: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A report.

    Attributes
    ----------
    title, subtitle : str
    sections : tuple of Section
    """

    title: str
    subtitle: str
    sections: tuple[Section, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON's types; numbers that are not finite are null."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "title": self.title,
            "subtitle": self.subtitle,
            "sections": [
                {
                    "name": section.name,
                    "title": section.title,
                    "blocks": [
                        {"block": type(block).__name__.lower(), **as_json(block)} for block in section.blocks
                    ],
                }
                for section in self.sections
            ],
        }
