"""Figures like those of the paper: mean and standard error against the varied quantity."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hieropo.errors import InputError
from hieropo.reproduce.settings import Algorithm
from hieropo.reproduce.writing import Summary

FIRST = (
    "OracleOPO",
    "HierOPO",
    "FlatOPO",
    "learned",
)  # those in the figures of the paper, and HierOPO without its prior

STYLES = (  # colours that differ in brightness and for most eyes (Okabe and Ito), and marks
    ("#000000", "s"), ("#d55e00", "o"), ("#0072b2", "^"), ("#009e73", "D"), ("#cc79a7", "v"),
    ("#e69f00", "P"), ("#56b4e9", "X"), ("#999999", "<"), ("#8c564b", ">"),
)  # fmt: skip
_FIXED: Any = {
    "svg.hashsalt": "hieropo",
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
}


@dataclass(frozen=True, eq=False)
class Panel:
    """One plot: its title, the varied quantity and its label, the points, and the label of their values."""

    title: str
    across: str
    label: str
    summaries: Sequence[Summary]
    height: str = "suboptimality"
    from_zero: bool = True


def need_matplotlib() -> None:
    """Raise an error before any run where figures cannot be drawn.

    Raises
    ------
    InputError
        matplotlib is not installed.
    """
    try:
        import matplotlib as mpl  # noqa: F401
    except ImportError as error:
        raise InputError(
            "The figures need matplotlib: pip install 'hieropo[plots]'. Or leave them out with --no-figures."
        ) from error


def draw_figures(
    out: Path, panels: Sequence[Panel], algorithms: Sequence[Algorithm], metadata: Mapping[str, str]
) -> list[Path]:
    """Draw the paper's algorithms with HierOPO's learned prior, and all algorithms with a logarithmic axis."""
    styles = dict(zip((algorithm.name for algorithm in algorithms), STYLES, strict=False))
    paper_styles = {name: styles[name] for name in FIRST if name in styles}
    paths = draw(out / "figure", panels, paper_styles, metadata) if paper_styles else []
    return paths + draw(out / "figure_all", panels, styles, metadata, scale="log")


def draw(
    stem: Path,
    panels: Sequence[Panel],
    styles: Mapping[str, tuple[str, str]],
    metadata: Mapping[str, str],
    *,
    scale: str = "linear",
) -> list[Path]:
    """Draw panels in rows of two to an SVG and a PNG file; ``metadata`` is written into both.

    ``styles`` gives colour and mark of each algorithm; algorithms without a style are left out.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    rows, columns = -(-len(panels) // 2), min(2, len(panels))
    with mpl.rc_context(_FIXED), warnings.catch_warnings():
        picture = Figure(figsize=(4.2 * columns, 3.1 * rows + 0.6), layout="constrained")
        axes = picture.subplots(rows, columns, squeeze=False).ravel()
        for axis, panel in zip(axes, panels, strict=False):
            _plot(axis, panel, styles, scale)
        for axis in axes[len(panels) :]:
            axis.set_axis_off()
        handles, names = axes[0].get_legend_handles_labels()
        picture.legend(handles, names, loc="outside lower center", ncols=min(3, len(names)))
        text = "; ".join(f"{name}: {value}" for name, value in metadata.items())
        paths = [stem.with_suffix(".svg"), stem.with_suffix(".png")]
        picture.savefig(paths[0], metadata={"Date": None, "Description": text})
        picture.savefig(paths[1], metadata={"Software": None, "Description": text}, dpi=150)
    return paths


def _plot(axis: Any, panel: Panel, styles: Mapping[str, tuple[str, str]], scale: str) -> None:
    for name, (colour, mark) in styles.items():
        points = [summary for summary in panel.summaries if summary.algorithm == name]
        axis.errorbar(
            [summary.setting[panel.across] for summary in points],
            [summary.mean for summary in points],
            [summary.se for summary in points],
            color=colour, marker=mark, markersize=4, linewidth=1, capsize=2, label=name,
        )  # fmt: skip
    ticks = sorted({summary.setting[panel.across] for summary in panel.summaries})
    axis.set_xscale("log")
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks], minor=False)
    axis.minorticks_off()
    axis.set_yscale(scale)
    if scale == "linear" and panel.from_zero:
        axis.set_ylim(bottom=0)
    axis.set(title=panel.title, xlabel=panel.label, ylabel=panel.height)
