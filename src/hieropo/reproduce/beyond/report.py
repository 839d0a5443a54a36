"""What bandit feedback alone gives, as tables and a picture."""

from collections.abc import Sequence
from pathlib import Path

from hieropo.reproduce.beyond.experiment import FIGURES, LEARNED, LOSS, NAMES, VALUE, WORSE_THAN_MOST
from hieropo.reproduce.experiment import Results
from hieropo.reproduce.figures import STYLES, Panel, draw
from hieropo.reproduce.settings import Settings
from hieropo.reproduce.writing import (
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
{tasks} users of all kinds, of whom nothing is known but n logged rewards of all of them; the factors of the movies are
given. {runs} runs at each n, after ± one standard error over runs. "{learned}" is HierOPO as it comes: it learns how
alike users are, and how much noise there is, from the log. Above it stand priors that know more:

- own cluster known: the mean and covariance of each user's cluster in the rating matrix, and the noise;
- the paper's prior: the hyper-prior of the cluster centres, the covariance of the largest cluster, and the noise;
- clusters known as groups: which cluster each user belongs to; all else is learned.

Below it stand each user alone and all users as one, both learned from the log, and rankings that are the same for all:
by mean reward in the log, by mean rating and by number of ratings in the rating matrix. A user is worse off than by a
ranking where the true value of the policy, over {contexts} contexts, is below that of the ranking.
"""


def summaries(results: Results) -> list[Summary]:
    """Every figure of every policy at every n, compared with what is learned from the log."""
    found = []
    for cell, runs in results.runs.items():
        for figure in FIGURES:
            values = [{name: run[f"{name}: {figure}"] for name in NAMES} for run in runs]
            found += summarised({**cell.columns, "figure": figure}, values, NAMES, LEARNED)
    return found


def report(
    settings: Settings, results: Results, origin: Origin, out: Path, *, pictures: bool
) -> list[Summary]:
    """Write tables and a picture to a folder; returns what is in them."""
    found = summaries(results)
    write_summaries(out / "beyond.parquet", found, origin)
    write_runs(out / "beyond_runs.parquet", results, origin)
    made = _picture(found, origin, out) if pictures else []
    what = settings.movielens
    text = _INTRODUCTION.format(
        tasks=what.tasks, runs=settings.beyond.runs, learned=LEARNED, contexts=what.open.evaluation_contexts
    )
    parts = ["# MovieLens 1M from bandit feedback alone", text, origin.paragraph(), *pictures_part(made)]
    for figure in FIGURES:
        points = of_figure(found, figure)
        parts += [f"## {figure.capitalize()}", crossed(points, "algorithm", "rows", "mean, by n", mean)]
        if figure == LOSS:
            parts.append(crossed(points, "algorithm", "rows", "difference, by n", difference))
    write_text(out / "beyond.md", [*parts, *settings_part(origin)])
    return found


def of_figure(found: Sequence[Summary], figure: str) -> list[Summary]:
    """The summaries of one figure."""
    return [each for each in found if each.place["figure"] == figure]


def _picture(found: Sequence[Summary], origin: Origin, out: Path) -> list[Path]:
    label = "rows n of all users"
    panels = [
        Panel("value of a user", "rows", label, of_figure(found, VALUE), "stars", from_zero=False),
        Panel(WORSE_THAN_MOST, "rows", label, of_figure(found, WORSE_THAN_MOST), "share of users"),
    ]
    return draw(out / "figure_beyond", panels, dict(zip(NAMES, STYLES, strict=False)), origin.inside)
