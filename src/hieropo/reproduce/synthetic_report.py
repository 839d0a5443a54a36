"""The synthetic problems as tables and pictures."""

from collections.abc import Sequence
from pathlib import Path

from hieropo.reproduce.experiment import Results
from hieropo.reproduce.figures import STYLES, Panel, draw
from hieropo.reproduce.settings import Settings
from hieropo.reproduce.summaries import FIRST, Summary, summarised
from hieropo.reproduce.synthetic import AS_SET, Cell, cells
from hieropo.reproduce.tables import crossed, difference, mean
from hieropo.reproduce.writing import Origin, settings_part, write_runs, write_summaries, write_text

PAPERS = ("OracleOPO", "HierOPO", "FlatOPO")  # the algorithms in the figures of the paper
COMPARED_WITH = "HierOPO"

_INTRODUCTION = """\
Mean suboptimality V(best policy) - V(policy) over tasks, in reward units, and after ± its standard error over {runs}
runs. A run draws tasks and one log that all algorithms see, and judges them in the same contexts. "Difference" is to
{other} in the same runs. `results.parquet` holds all figures, the first {first} runs one by one among them.
"""
_REFUSED = """\
In {refused} runs the log did not determine the covariance that "learned" asks for; a simpler one was learned there, as
the message of the refusal advises.
"""
_OPEN = """\
Each row reads one decision otherwise than the settings do; sigma_q = {sd:g}, m = {m}. All readings start from the same
random numbers and soon use them for other things, so that rows are nearly independent.
"""


def summaries(settings: Settings, results: Results) -> list[Summary]:
    """Every algorithm at every point."""
    algorithms = cells(settings)
    return [
        each
        for cell, runs in results.runs.items()
        for each in summarised(cell.columns, runs, [one.name for one in algorithms[cell]], COMPARED_WITH)
    ]


def report(
    settings: Settings, results: Results, origin: Origin, out: Path, *, pictures: bool
) -> list[Summary]:
    """Write tables and pictures to a folder; returns what is in them."""
    found = summaries(settings, results)
    write_summaries(out / "results.parquet", found, origin)
    write_runs(out / "runs.parquet", results, origin)
    made = _pictures(settings, found, origin, out) if pictures else []
    write_text(out / "results.md", _parts(settings, found, results, origin, made))
    return found


def main_tables(settings: Settings, found: Sequence[Summary]) -> list[tuple[str, list[Summary], str]]:
    """Title, points and varied column of each figure."""
    what = settings.synthetic
    tables = []
    for sd in what.hyper_sd:
        for across, fixed in (("rows", "tasks"), ("tasks", "rows")):
            grid = what.rows_grid if across == "rows" else what.tasks_grid
            wanted = [
                Cell(sd, *((what.tasks, k) if across == "rows" else (k, what.rows))).columns for k in grid
            ]
            points = [each for place in wanted for each in found if each.place == place]
            letter, value = ("m", what.tasks) if fixed == "tasks" else ("n", what.rows)
            tables.append((f"sigma_q = {sd:g}, {letter} = {value}", points, across))
    return tables


def _pictures(settings: Settings, found: Sequence[Summary], origin: Origin, out: Path) -> list[Path]:
    labels = {"rows": "rows n of all tasks", "tasks": "tasks m"}
    panels = [
        Panel(title, across, labels[across], points) for title, points, across in main_tables(settings, found)
    ]
    styles = dict(zip((each.name for each in settings.algorithms), STYLES, strict=False))
    papers = {name: styles[name] for name in PAPERS if name in styles}
    made = draw(out / "figure", panels, papers, origin.inside) if papers else []
    return made + draw(out / "figure_all", panels, styles, origin.inside)


def _parts(
    settings: Settings, found: Sequence[Summary], results: Results, origin: Origin, made: Sequence[Path]
) -> list[str]:
    what = settings.synthetic
    parts = [
        "# The paper's synthetic problems",
        _INTRODUCTION.format(runs=what.runs, other=COMPARED_WITH, first=FIRST),
        origin.paragraph(),
        *([_REFUSED.format(refused=results.refused)] if results.refused else []),
        *(f"![{path.stem}]({path.name})" for path in made if path.suffix == ".svg"),
    ]
    for title, points, across in main_tables(settings, found):
        letter = "n" if across == "rows" else "m"
        parts += [f"## {title}", crossed(points, "algorithm", across, f"mean, by {letter}", mean)]
        parts += [crossed(points, "algorithm", across, f"difference, by {letter}", difference)]
    return [*parts, *_decisions(settings, found), *settings_part(origin)]


def _decisions(settings: Settings, found: Sequence[Summary]) -> list[str]:
    what, other = settings.synthetic, settings.synthetic.alternatives
    parts = []
    for n in other.rows if other.of else ():
        cells_ = [Cell(other.hyper_sd, what.tasks, n, name).columns for name in (AS_SET, *other.of)]
        points = [each for each in found if each.place in cells_ and each.algorithm in other.algorithms]
        parts += [f"### n = {n}", crossed(points, "reading", "algorithm", "reading", mean)]
    if not parts:
        return []
    head = ["## Decisions that the paper leaves open", _OPEN.format(sd=other.hyper_sd, m=what.tasks)]
    return head + parts
