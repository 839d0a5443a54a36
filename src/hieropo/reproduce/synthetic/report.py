"""The synthetic problems as tables and pictures."""

from collections.abc import Sequence
from pathlib import Path

from hieropo.reproduce.experiment import Results
from hieropo.reproduce.figures import Panel, papers_and_all
from hieropo.reproduce.settings import Settings
from hieropo.reproduce.synthetic.experiment import AS_SET, Cell, cells
from hieropo.reproduce.writing import (
    FIRST,
    Origin,
    Summary,
    crossed,
    difference,
    mean,
    pictures_part,
    settings_part,
    summarised,
    write_runs,
    write_summaries,
    write_text,
)

COMPARED_WITH = "HierOPO"
_LABELS = {"rows": "rows n of all tasks", "tasks": "tasks m"}

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
    tables = main_tables(settings, found)
    panels = [Panel(title, across, _LABELS[across], points) for title, points, across in tables]
    made = papers_and_all(out, panels, settings.algorithms, origin.inside) if pictures else []
    what = settings.synthetic
    parts = [
        "# The paper's synthetic problems",
        _INTRODUCTION.format(runs=what.runs, other=COMPARED_WITH, first=FIRST),
        origin.paragraph(),
        *refused(results),
        *pictures_part(made),
    ]
    for title, points, across in tables:
        letter = "n" if across == "rows" else "m"
        parts += [f"## {title}", crossed(points, "algorithm", across, f"mean, by {letter}", mean)]
        parts += [crossed(points, "algorithm", across, f"difference, by {letter}", difference)]
    groups = [(f"n = {n}", _readings(settings, found, n)) for n in what.alternatives.rows]
    text = _OPEN.format(sd=what.alternatives.hyper_sd, m=what.tasks)
    write_text(out / "results.md", [*parts, *decisions(groups, text), *settings_part(origin)])
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


def _readings(settings: Settings, found: Sequence[Summary], rows: int) -> list[Summary]:
    other = settings.synthetic.alternatives
    wanted = [
        Cell(other.hyper_sd, settings.synthetic.tasks, rows, name).columns for name in (AS_SET, *other.of)
    ]
    return [each for each in found if each.place in wanted and each.algorithm in other.algorithms]


def decisions(groups: Sequence[tuple[str, Sequence[Summary]]], text: str) -> list[str]:
    """Chapter on what the paper leaves open, with a table for each title; nothing where nothing was compared."""
    tables = [
        [f"### {title}", crossed(points, "reading", "algorithm", "reading", mean)] for title, points in groups
    ]
    return (
        ["## Decisions that the paper leaves open", text, *(part for each in tables for part in each)]
        if groups
        else []
    )


def refused(results: Results) -> list[str]:
    """What is to be said of covariances that could not be learned."""
    return [_REFUSED.format(refused=results.refused)] if results.refused else []
