"""SVG as text: elements, escaped, and the scale of an axis."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, isfinite, log10

WIDTH = 720


def shown(text: object) -> str:
    """Return text for HTML: escaped, with control characters and marks of direction as they are written in quotes."""
    raw = str(text)
    return escape(raw if raw.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in raw))


def short(text: object, most: int) -> str:
    """Return text cut to a number of characters."""
    raw = str(text)
    return raw if len(raw) <= most else raw[: most - 1] + "…"


def element(name: str, content: str = "", **attributes: object) -> str:
    """Return one element; ``class_`` is written as class, and underscores in names as hyphens."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"' for key, value in attributes.items()
    )
    return f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>"


def _attribute(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else shown(value)


def label(x: float, y: float, text: object, *, anchor: str = "start", kind: str = "label") -> str:
    """Return a piece of text at a place."""
    return element("text", shown(text), x=x, y=y, text_anchor=anchor, class_=kind)


def picture(name: str, title: str, description: str, height: float, parts: Sequence[str]) -> str:
    """Return an image with a title and a description for readers that do not see it.

    Parameters
    ----------
    name : str
        Identifies it in the page.
    title, description : str
    height : float
        In units of which the width has 720.
    parts : sequence of elements
    """
    head = f'<title id="{name}-t">{shown(title)}</title><desc id="{name}-d">{shown(description)}</desc>'
    return (
        f'<svg role="img" aria-labelledby="{name}-t" aria-describedby="{name}-d" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'xmlns="http://www.w3.org/2000/svg">{head}{"".join(parts)}</svg>'
    )


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear map from numbers to places, with round ticks."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the place of a number."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, about: int = 6) -> list[float]:
        """Return round numbers within the range."""
        step = _round_step((self.high - self.low) / about)
        first, last = ceil(self.low / step - 1e-9), floor(self.high / step + 1e-9)
        return [k * step for k in range(first, last + 1)]


def scale_of(values: Sequence[float], start: float, end: float, *, zero: bool = True) -> Scale:
    """Return a scale that holds all finite values with a margin, and 0 where asked for."""
    finite = [value for value in values if isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    room = (high - low) * 0.04 or max(abs(high), 1.0) * 0.04
    return Scale(low - room, high + room, start, end)


def _round_step(raw: float) -> float:
    power = 10.0 ** floor(log10(raw))
    return float(next(factor for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9)) * power)


def axis_below(scale: Scale, y: float, title: str, top: float) -> list[str]:
    """Return a horizontal axis at ``y`` with grid lines up to ``top``."""
    parts = []
    for tick in scale.ticks():
        x = scale(tick)
        kind = "zero" if abs(tick) < 1e-12 * (scale.high - scale.low) else "grid"
        parts.append(element("line", x1=x, x2=x, y1=top, y2=y, class_=kind))
        parts.append(label(x, y + 15, _tick(tick, scale), anchor="middle"))
    parts.append(label((scale.start + scale.end) / 2, y + 33, title, anchor="middle", kind="axis"))
    return parts


def axis_left(scale: Scale, left: float, right: float) -> list[str]:
    """Return a vertical axis at ``left`` with grid lines to ``right``."""
    parts = []
    for tick in scale.ticks(5):
        y = scale(tick)
        parts.append(element("line", x1=left, x2=right, y1=y, y2=y, class_="grid"))
        parts.append(label(left - 6, y + 4, _tick(tick, scale), anchor="end"))
    return parts


def _tick(value: float, scale: Scale) -> str:
    return "0" if abs(value) < 1e-12 * (scale.high - scale.low) else f"{value:.6g}"
