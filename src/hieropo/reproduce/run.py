"""``hieropo reproduce`` without its command line: from settings to tables and figures in a folder."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hieropo.reproduce.beyond import experiment as beyond
from hieropo.reproduce.beyond.experiment import FIGURES, LEARNED, LOSS, NAMES, VALUE, WORSE_THAN_MOST
from hieropo.reproduce.experiment import Progress, Results, make_folder, run_missing
from hieropo.reproduce.figures import STYLES, Panel, draw, draw_figures, need_matplotlib
from hieropo.reproduce.movielens import experiment as movielens
from hieropo.reproduce.movielens import learned_prior
from hieropo.reproduce.movielens.ratings import read_ratings
from hieropo.reproduce.settings import Settings, settings_of, settings_text
from hieropo.reproduce.synthetic import experiment as synthetic
from hieropo.reproduce.synthetic.experiment import AS_SET
from hieropo.reproduce.writing import (
    FIRST,
    Origin,
    Summary,
    cross_table,
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
_SYNTHETIC = """\
Mean suboptimality V(best policy) - V(policy) over tasks, in reward units, and after ± its standard error over {runs}
runs. A run draws tasks and one log that all algorithms see, and judges them in the same contexts. "Difference" is to
{other} in the same runs. `results.parquet` holds all figures, the first {first} runs one by one among them.
"""
_MOVIELENS = """\
Mean suboptimality V(best policy) - V(policy) over users, in stars, and after ± its standard error over runs. A run
draws users of the largest cluster and one log that all algorithms see, and judges them in the same contexts. "learned"
has no prior from the rating matrix, but the one that HierOPO learns from the logged rows ([prior.md](prior.md)).
"Difference" is to {other} in the same runs. `results.parquet` holds all figures, the first {first} runs one by one
among them.

The factors explain the ratings up to residuals with a standard deviation of {residual:.4f} stars. Ratings are not part
of this folder: MovieLens may not be passed on. SHA-256 of the ratings read: {checksum}.
"""
_BEYOND = """\
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
_PRIOR = """\
The prior that "learned" of [results.md](results.md) takes, learned from the logged rows alone: mean and covariance of
the users, and the noise, by REML. Beside it stands the prior of the paper, which has the means of all clusters and the
covariance of the largest from the rating matrix. {runs} runs at each n, those of results.md; after ± one standard
error over runs.

Errors of the mean are distances of its posterior mean from the mean of the largest cluster, of which all users are, in
units of the root of the trace of the cluster's covariance. The sd between users is the root of the trace of the learned
covariance, over that of the cluster; the users are rows of the factors, not draws of a normal law.
"""
_REFUSED = """\
In {refused} runs the log did not determine the covariance that "learned" asks for; a simpler one was learned there, as
the message of the refusal advises.
"""
_OPEN_SYNTHETIC = """\
Each row reads one decision otherwise than the settings do; sigma_q = {sd:g}, m = {m}. All readings start from the same
random numbers and soon use them for other things, so that rows are nearly independent.
"""
_OPEN_MOVIELENS = """\
Each row reads one decision otherwise than the settings do, over {runs} runs. Clusters are those of the same
runs of "as set", unless they are what differs.
"""


@dataclass(frozen=True)
class Options:
    """The options of a command.

    Parameters
    ----------
    out : Path
        Folder for results, and for the runs to go on from.
    settings : str, optional
        File of settings; default the one that ships.
    runs, seed : int, optional
        In place of those in the settings.
    processes : int, optional
        Default: one for each processor.
    pictures : bool
        True where figures are drawn.
    """

    out: Path
    settings: str | None = None
    runs: int | None = None
    seed: int | None = None
    processes: int | None = None
    pictures: bool = True

    def command(self, name: str) -> str:
        """Return the command that makes the same results."""
        name_of = None if self.settings is None else Path(self.settings).name
        values = {"--settings": name_of, "--runs": self.runs, "--seed": self.seed}
        words = [f"{option} {value}" for option, value in values.items() if value is not None]
        return " ".join(["hieropo reproduce", name, "-o DIR", *words])


def read_settings(options: Options) -> tuple[Settings, str]:
    """Return the settings with the options of a command, and their text.

    Raises
    ------
    InputError
        The file cannot be used; figures are asked for and matplotlib is not there.
    """
    if options.pictures:
        need_matplotlib()
    text, name = settings_text(options.settings)
    settings = settings_of(text, name)
    return settings if options.seed is None else replace(settings, seed=options.seed), text


def reproduce_movielens(
    options: Options, ratings: str | Path, progress: Progress
) -> tuple[list[Summary], list[Summary]]:
    """Make the runs on MovieLens that are missing; write tables and pictures, of the paper's experiment and beyond.

    Raises
    ------
    InputError, LogError
        The ratings cannot be used.
    """
    settings, text = read_settings(options)
    config = settings.movielens
    if options.runs is not None:
        fewer = replace(settings.beyond, runs=min(options.runs, settings.beyond.runs))
        settings = replace(settings, movielens=replace(config, runs=options.runs), beyond=fewer)
    read = read_ratings(ratings, config.counts)
    out = make_folder(options.out)
    problem = movielens.make_problem(settings, read)
    results = run_missing(movielens.experiment(settings, problem), out, options.processes, progress)
    origin = Origin(options.command("movielens --data PATH"), settings.seed, text, results.commits)
    papers = movielens_report(settings, problem, results, origin, out, pictures=options.pictures)
    results = run_missing(learned_prior.experiment(settings, problem), out, options.processes, progress)
    prior_report(results, replace(origin, commits=results.commits), out)
    results = run_missing(beyond.experiment(settings, problem), out, options.processes, progress)
    origin = replace(origin, commits=results.commits)
    return papers, beyond_report(settings, results, origin, out, pictures=options.pictures)


def reproduce_synthetic(options: Options, progress: Progress) -> list[Summary]:
    """Make the runs of the synthetic problems that are missing; write tables and pictures."""
    settings, text = read_settings(options)
    if options.runs is not None:
        settings = replace(settings, synthetic=replace(settings.synthetic, runs=options.runs))
    out = make_folder(options.out)
    results = run_missing(synthetic.experiment(settings), out, options.processes, progress)
    origin = Origin(options.command("synthetic"), settings.seed, text, results.commits)
    return synthetic_report(settings, results, origin, out, pictures=options.pictures)


def synthetic_report(
    settings: Settings, results: Results, origin: Origin, out: Path, *, pictures: bool
) -> list[Summary]:
    """Write tables and figures of the synthetic problems to a folder; return their summaries."""
    config, other = settings.synthetic, settings.synthetic.alternatives
    algorithms = synthetic.cells(settings)
    summaries = [
        point
        for cell, runs in results.runs.items()
        for point in summarised(cell.columns, runs, [a.name for a in algorithms[cell]], COMPARED_WITH)
    ]
    panels = []
    for sd in config.hyper_sd:
        cells = [synthetic.Cell(sd, config.tasks, n) for n in config.rows_grid]
        title = f"sigma_q = {sd:g}, m = {config.tasks}"
        panels.append(Panel(title, "rows", "rows n of all tasks", _at(summaries, cells)))
        cells = [synthetic.Cell(sd, m, config.rows) for m in config.tasks_grid]
        title = f"sigma_q = {sd:g}, n = {config.rows}"
        panels.append(Panel(title, "tasks", "tasks m", _at(summaries, cells)))
    readings = [
        (f"n = {n}", [point for point in _at(summaries, cells) if point.algorithm in other.algorithms])
        for n in other.rows
        for cells in [[synthetic.Cell(other.hyper_sd, config.tasks, n, name) for name in (AS_SET, *other.of)]]
    ]
    text = _SYNTHETIC.format(runs=config.runs, other=COMPARED_WITH, first=FIRST)
    text_open = _OPEN_SYNTHETIC.format(sd=other.hyper_sd, m=config.tasks)
    paths = draw_figures(out, panels, settings.algorithms, origin.metadata) if pictures else []
    head = ["# The paper's synthetic problems", text, origin.paragraph(), *_refused(results)]
    parts = [*head, *pictures_part(paths), *_tables(panels), *_decisions(readings, text_open)]
    _write(out, "results", parts, summaries, results, origin)
    return summaries


def movielens_report(
    settings: Settings,
    problem: movielens.Problem,
    results: Results,
    origin: Origin,
    out: Path,
    *,
    pictures: bool,
) -> list[Summary]:
    """Write tables and figures of the experiment on MovieLens to a folder; return their summaries.

    Where all decisions are as set, there are summaries of the first few runs, too.
    """
    config, other = settings.movielens, settings.movielens.alternatives
    algorithms, summaries = movielens.cells(settings), list[Summary]()
    for cell, runs in results.runs.items():
        names = [algorithm.name for algorithm in algorithms[cell]]
        partial_runs = {config.few_runs, other.runs} if cell.reading == AS_SET else set()
        for number in sorted({len(runs), *(n for n in partial_runs if n < len(runs))}):
            summaries += summarised(cell.columns, runs[:number], names, COMPARED_WITH)
    panels = []
    for number in dict.fromkeys((min(config.few_runs, config.runs), config.runs)):
        points = _at(summaries, [movielens.Cell(n) for n in config.rows_grid], number)
        panels.append(Panel(f"{number} runs", "rows", "rows n of all users", points))
    few = min(other.runs, config.runs)
    readings = [
        (f"n = {n}", [point for point in _at(summaries, cells, few) if point.algorithm in other.algorithms])
        for n in other.rows
        for cells in [[movielens.Cell(n, name) for name in (AS_SET, *other.of)]]
    ]
    text = _MOVIELENS.format(
        other=COMPARED_WITH, first=FIRST, residual=problem.residual_sd, checksum=problem.checksum
    )
    paths = draw_figures(out, panels, settings.algorithms, origin.metadata) if pictures else []
    head = ["# The paper's experiment on MovieLens 1M", text, origin.paragraph(), *_refused(results)]
    parts = [*head, *pictures_part(paths), *_tables(panels)]
    parts += _decisions(readings, _OPEN_MOVIELENS.format(runs=few))
    _write(out, "results", parts, summaries, results, origin)
    return summaries


def prior_report(results: Results, origin: Origin, out: Path) -> list[Summary]:
    """Write the table of the learned prior beside the given one to a folder; return its summaries."""
    summaries = [
        point
        for cell, runs in results.runs.items()
        for point in summarised(cell.columns, runs, learned_prior.FIGURES, learned_prior.GIVEN_MEAN)
    ]
    text = _PRIOR.format(runs=max(point.runs for point in summaries))
    parts = ["# The prior of MovieLens, learned and given", text, origin.paragraph()]
    parts.append(cross_table(summaries, "algorithm", "rows", "mean, by n", mean))
    _write(out, "prior", parts, summaries, results, origin)
    return summaries


def beyond_report(
    settings: Settings, results: Results, origin: Origin, out: Path, *, pictures: bool
) -> list[Summary]:
    """Write tables and a figure of learning from bandit feedback alone to a folder; return their summaries."""
    summaries, config = list[Summary](), settings.movielens
    for cell, runs in results.runs.items():
        for figure in FIGURES:
            values = [{name: run[f"{name}: {figure}"] for name in NAMES} for run in runs]
            summaries += summarised({**cell.columns, "figure": figure}, values, NAMES, LEARNED)
    label, paths = "rows n of all users", list[Path]()
    if pictures:
        panels = [
            Panel("value of a user", "rows", label, of_figure(summaries, VALUE), "stars", from_zero=False),
            Panel(WORSE_THAN_MOST, "rows", label, of_figure(summaries, WORSE_THAN_MOST), "share of users"),
        ]
        paths = draw(out / "figure_beyond", panels, dict(zip(NAMES, STYLES, strict=False)), origin.metadata)
    text = _BEYOND.format(
        tasks=config.tasks,
        runs=settings.beyond.runs,
        learned=LEARNED,
        contexts=config.open.evaluation_contexts,
    )
    parts = ["# MovieLens 1M from bandit feedback alone", text, origin.paragraph(), *pictures_part(paths)]
    for figure in FIGURES:
        points = of_figure(summaries, figure)
        parts += [f"## {figure.capitalize()}", cross_table(points, "algorithm", "rows", "mean, by n", mean)]
        if figure == LOSS:
            parts.append(cross_table(points, "algorithm", "rows", "difference, by n", difference))
    _write(out, "beyond", parts, summaries, results, origin)
    return summaries


def of_figure(summaries: Sequence[Summary], figure: str) -> list[Summary]:
    """Return the summaries of one figure."""
    return [point for point in summaries if point.setting["figure"] == figure]


def _at(summaries: Sequence[Summary], cells: Iterable[Any], runs: int | None = None) -> list[Summary]:
    """Return the summaries at some cells, in the order of the cells; of ``runs`` runs, or of any number."""
    settings: list[Mapping[str, Any]] = [cell.columns for cell in cells]
    return [
        point
        for setting in settings
        for point in summaries
        if point.setting == setting and runs in (None, point.runs)
    ]


def _tables(panels: Iterable[Panel]) -> list[str]:
    """Return two tables of each figure, means and differences."""
    parts = []
    for panel in panels:
        across, letter = panel.across, "n" if panel.across == "rows" else "m"
        parts.append(f"## {panel.title}")
        parts.append(cross_table(panel.summaries, "algorithm", across, f"mean, by {letter}", mean))
        parts.append(
            cross_table(panel.summaries, "algorithm", across, f"difference, by {letter}", difference)
        )
    return parts


def _decisions(readings: Sequence[tuple[str, Sequence[Summary]]], text: str) -> list[str]:
    """Return the chapter on choices that the paper leaves open; empty where none were compared."""
    if not readings:
        return []
    parts = ["## Decisions that the paper leaves open", text]
    for title, points in readings:
        parts += [f"### {title}", cross_table(points, "reading", "algorithm", "reading", mean)]
    return parts


def _refused(results: Results) -> list[str]:
    """Return a paragraph on covariances that could not be learned, where there were any."""
    return [_REFUSED.format(refused=results.refused)] if results.refused else []


def _write(
    out: Path, stem: str, parts: Iterable[str], summaries: Sequence[Summary], results: Results, origin: Origin
) -> None:
    runs = "runs" if stem == "results" else f"{stem}_runs"
    write_summaries(out / f"{stem}.parquet", summaries, origin)
    write_runs(out / f"{runs}.parquet", results, origin)
    write_text(out / f"{stem}.md", [*parts, *settings_part(origin)])
