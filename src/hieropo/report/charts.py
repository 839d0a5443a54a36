"""Charts of a report as SVG: intervals, histograms, shares, curves."""

from collections.abc import Callable
from typing import Any

from hieropo._utils.text import counted, thousands
from hieropo.report.document import Bars, Curves, Histogram, Interval, Intervals
from hieropo.report.svg import (
    WIDTH,
    Scale,
    axis_below,
    axis_left,
    element,
    label,
    picture,
    scale_of,
    short,
    shown,
)

_LABELS, _NUMBERS, _EDGE = 190.0, 195.0, 12.0
_COLOURS = 8  # classes c0 to c7 of the style sheet
_DASHES = ("", "7 4", "2 3", "10 3 2 3")


def intervals(chart: Intervals, name: str) -> str:
    """Draw intervals, one in each line."""
    step = 13.0 if chart.dense else 26.0
    right = WIDTH - (_EDGE if chart.dense else _NUMBERS)
    ends = [end for one in chart.intervals for end in (one.value, one.low, one.high) if end is not None]
    left = _LABELS if chart.dense else _label_width(chart)
    scale = scale_of(ends, left, right, zero=chart.zero)
    bottom = 8 + step * len(chart.intervals)
    parts = axis_below(scale, bottom, chart.axis, 4)
    for k, one in enumerate(chart.intervals):
        parts.extend(_interval(one, scale, left, 8 + step * (k + 0.5), dense=chart.dense))
    height = bottom + 40
    if chart.marked:
        parts.extend(_key(chart.marked, bottom + 52))
        height += 20
    below = sum(one.marked for one in chart.intervals)
    described = f"{counted(len(chart.intervals), 'interval')}; the axis is {chart.axis}."
    if chart.marked:
        described += f" {below} marked: {chart.marked}."
    return picture(name, chart.title, described, height, parts)


def _label_width(chart: Intervals) -> float:
    """Return the room for the longest label, about, within limits."""
    return min(max(7.0 * max((len(one.label) for one in chart.intervals), default=0) + 12.0, 90.0), 270.0)


def _interval(one: Interval, scale: Scale, left: float, y: float, *, dense: bool) -> list[str]:
    kind = "marked" if one.marked else "plain"
    parts = [
        label(
            left - 8,
            y + 4,
            short(one.label, 30 if dense else 37),
            anchor="end",
            kind="small" if dense else "label",
        )
    ]
    hint = f"<title>{shown(f'{one.label}: {_numbers(one)}')}</title>"
    if one.low is not None and one.high is not None:
        parts.append(element("line", x1=scale(one.low), x2=scale(one.high), y1=y, y2=y, class_=f"bar {kind}"))
    x, size = scale(one.value), 3.0 if dense else 4.5
    if one.marked:  # a diamond: told from a disc without colour
        parts.append(element("polygon", hint, points=_diamond(x, y, size + 1), class_=f"dot {kind}"))
    else:
        parts.append(element("circle", hint, cx=x, cy=y, r=size, class_=f"dot {kind}"))
    if not dense:
        parts.append(label(WIDTH - _NUMBERS + 10, y + 4, _numbers(one), kind="label number"))
    return parts


def _numbers(one: Interval) -> str:
    if one.low is None or one.high is None:
        return thousands(one.value) if one.value == int(one.value) else f"{one.value:.3g}"
    return f"{one.value:.3g} ({one.low:.3g} to {one.high:.3g})"


def _key(meaning: str, y: float) -> list[str]:
    x = _LABELS + 5.0
    return [
        element("polygon", points=_diamond(x, y - 4, 5.0), class_="dot marked"),
        label(x + 12, y, meaning),
    ]


def _diamond(x: float, y: float, size: float) -> str:
    return f"{x:.1f},{y - size:.1f} {x + size:.1f},{y:.1f} {x:.1f},{y + size:.1f} {x - size:.1f},{y:.1f}"


def histogram(chart: Histogram, name: str) -> str:
    """Draw counts in bins, with a marked part of each."""
    top, bottom, left = 10.0, 190.0, 60.0
    across = Scale(chart.edges[0], chart.edges[-1], left, WIDTH - _EDGE)
    up = Scale(0.0, max(*chart.counts, 1.0) * 1.05, bottom, top)
    parts = [*axis_left(up, left, WIDTH - _EDGE), *axis_below(across, bottom, chart.axis, top)]
    for low, high, count, marked in zip(
        chart.edges, chart.edges[1:], chart.counts, chart.marked, strict=False
    ):
        for number, base, kind in ((marked, 0.0, "marked"), (count - marked, marked, "plain")):
            if number > 0:
                parts.append(_bar(across, up, (low, high), (base, base + number), kind))
    if any(chart.marked):
        parts.extend(_key(chart.meaning, bottom + 52))
    described = f"{sum(chart.counts):,.0f} in {len(chart.counts)} bins."
    if any(chart.marked):
        described += f" {sum(chart.marked):,.0f} are marked: {chart.meaning}."
    return picture(name, chart.title, described, bottom + (60 if any(chart.marked) else 40), parts)


def _bar(across: Scale, up: Scale, sides: tuple[float, float], ends: tuple[float, float], kind: str) -> str:
    (low, high), (base, end) = sides, ends
    return element(
        "rect", x=across(low) + 0.5, width=max(across(high) - across(low) - 1, 0.5), y=up(end),
        height=max(up(base) - up(end), 0.5), class_=f"fill {kind}",
    )  # fmt: skip


def bars(chart: Bars, name: str) -> str:
    """Draw shares in equal bins of [0, 1], with the expected share as a line."""
    top, bottom, left, right = 10.0, 150.0, 60.0, WIDTH - _EDGE
    across = Scale(0.0, 1.0, left, right)
    up = Scale(0.0, max(*chart.shares, chart.expected) * 1.15, bottom, top)
    parts = [*axis_left(up, left, right), *axis_below(across, bottom, chart.axis, top)]
    n = len(chart.shares)
    parts += [
        _bar(across, up, (k / n, (k + 1) / n), (0.0, share), "plain") for k, share in enumerate(chart.shares)
    ]
    y = up(chart.expected)
    parts.append(element("line", x1=left, x2=right, y1=y, y2=y, class_="expected"))
    described = (
        f"Shares from {min(chart.shares):.3g} to {max(chart.shares):.3g}; {chart.expected:.3g} is expected."
    )
    return picture(name, chart.title, described, bottom + 40, parts)


def curves(chart: Curves, name: str) -> str:
    """Draw lines with bands, one for each label, with a key."""
    top, bottom, left, right = 10.0, 230.0, 60.0, WIDTH - 180.0
    across = Scale(chart.x[0], chart.x[-1], left, right)
    ends = [end for one in chart.curves for end in (*one.low, *one.high)]
    up = scale_of(ends, bottom, top, zero=False)
    parts = [*axis_left(up, left, right), *axis_below(across, bottom, chart.axis, top)]
    for k, one in enumerate(chart.curves):
        there = [f"{across(x):.1f},{up(y):.1f}" for x, y in zip(chart.x, one.high, strict=True)]
        back = [f"{across(x):.1f},{up(y):.1f}" for x, y in zip(chart.x, one.low, strict=True)]
        parts.append(
            element("polygon", points=" ".join([*there, *back[::-1]]), class_=f"band c{k % _COLOURS}")
        )
    for k, one in enumerate(chart.curves):
        points = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in zip(chart.x, one.mean, strict=True))
        dash, kind, y = _DASHES[k % len(_DASHES)], f"curve c{k % _COLOURS}", top + 12 + 20 * k
        parts.append(element("polyline", points=points, class_=kind, stroke_dasharray=dash or "none"))
        parts.append(
            element(
                "line", x1=right + 14, x2=right + 40, y1=y, y2=y, class_=kind, stroke_dasharray=dash or "none"
            )
        )
        parts.append(label(right + 46, y + 4, short(one.label, 20)))
    described = f"{', '.join(one.label for one in chart.curves)} by {chart.axis}, in {chart.unit}."
    return picture(name, chart.title, described, max(bottom + 40, top + 20 * len(chart.curves) + 10), parts)


DRAWN: dict[type, Callable[[Any, str], str]] = {
    Intervals: intervals, Histogram: histogram, Bars: bars, Curves: curves,
}  # fmt: skip
