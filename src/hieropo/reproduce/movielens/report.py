"""The experiment on MovieLens as tables and pictures."""

from collections.abc import Sequence
from pathlib import Path

from hieropo.reproduce.experiment import Results
from hieropo.reproduce.figures import Panel, papers_and_all
from hieropo.reproduce.movielens.experiment import Cell, Problem, cells
from hieropo.reproduce.settings import Settings
from hieropo.reproduce.synthetic.experiment import AS_SET
from hieropo.reproduce.synthetic.report import COMPARED_WITH, decisions, refused
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

_INTRODUCTION = """\
Mean suboptimality V(best policy) - V(policy) over users, in stars, and after ± its standard error over runs. A run
draws users of the largest cluster and one log that all algorithms see, and judges them in the same contexts.
"Difference" is to {other} in the same runs. `results.parquet` holds all figures, the first {first} runs one by one
among them.

The factors explain the ratings up to residuals with a standard deviation of {residual:.4f} stars. Ratings are not part
of this folder: MovieLens may not be passed on. SHA-256 of the ratings read: {checksum}.
"""
_OPEN = """\
Each row reads one decision otherwise than the settings do, over {runs} runs. Clusters are those of the same
runs of "as set", unless they are what differs.
"""


def summaries(settings: Settings, results: Results) -> list[Summary]:
    """Every algorithm at every point, over all runs; and over the first few where all decisions are as set."""
    what, algorithms = settings.movielens, cells(settings)
    found = []
    for cell, runs in results.runs.items():
        names = [one.name for one in algorithms[cell]]
        some = {what.few_runs, what.alternatives.runs} if cell.reading == AS_SET else set()
        for number in sorted({len(runs), *(each for each in some if each < len(runs))}):
            found += summarised(cell.columns, runs[:number], names, COMPARED_WITH)
    return found


def report(
    settings: Settings, given: Problem, results: Results, origin: Origin, out: Path, *, pictures: bool
) -> list[Summary]:
    """Write tables and pictures to a folder; returns what is in them."""
    found = summaries(settings, results)
    write_summaries(out / "results.parquet", found, origin)
    write_runs(out / "runs.parquet", results, origin)
    tables = main_tables(settings, found)
    panels = [Panel(title, "rows", "rows n of all users", points) for title, points in tables]
    made = papers_and_all(out, panels, settings.algorithms, origin.inside) if pictures else []
    what = settings.movielens
    text = _INTRODUCTION.format(
        other=COMPARED_WITH, first=FIRST, residual=given.residual_sd, checksum=given.checksum
    )
    parts = [
        "# The paper's experiment on MovieLens 1M",
        text,
        origin.paragraph(),
        *refused(results),
        *pictures_part(made),
    ]
    for title, points in tables:
        parts += [f"## {title}", crossed(points, "algorithm", "rows", "mean, by n", mean)]
        parts += [crossed(points, "algorithm", "rows", "difference, by n", difference)]
    open_text = _OPEN.format(runs=min(what.runs, what.alternatives.runs))
    groups = [(f"n = {n}", _readings(settings, found, n)) for n in what.alternatives.rows]
    write_text(out / "results.md", [*parts, *decisions(groups, open_text), *settings_part(origin)])
    return found


def main_tables(settings: Settings, found: Sequence[Summary]) -> list[tuple[str, list[Summary]]]:
    """Title and points of each figure: the first few runs, and all of them."""
    what = settings.movielens
    grid = [Cell(n).columns for n in what.rows_grid]
    tables = []
    for runs in dict.fromkeys((min(what.few_runs, what.runs), what.runs)):
        points = [each for place in grid for each in found if each.place == place and each.runs == runs]
        tables.append((f"{runs} runs", points))
    return tables


def _readings(settings: Settings, found: Sequence[Summary], rows: int) -> list[Summary]:
    other = settings.movielens.alternatives
    wanted = [Cell(rows, name).columns for name in (AS_SET, *other.of)]
    return [
        each
        for each in found
        if each.place in wanted
        and each.algorithm in other.algorithms
        and each.runs == min(other.runs, settings.movielens.runs)
    ]
