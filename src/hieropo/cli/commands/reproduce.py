"""``hieropo reproduce``: run the experiments of the HierOPO paper."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from hieropo._utils.text import counted, paragraph, table
from hieropo.cli.console import Line, example, print_json, shared_options, usage_error

BAR = 30


@click.group("reproduce", short_help="Run the experiments of the HierOPO paper, and further ones.")
def reproduce_group() -> None:
    """Run the experiments of the HierOPO paper (arXiv 2212.04720), and comparisons that it leaves out.

    Settings, runs, tables and figures are written to one folder. After an interruption the same command goes on where
    it stopped.
    """


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of all experiments."""
    for option in reversed((
        click.option("-o", "--output", required=True, metavar="DIR", help="Folder for results; made if missing."),
        click.option("--settings", metavar="FILE", help="Settings file (TOML). Default: the paper's settings."),
        click.option("--runs", type=click.IntRange(min=1), metavar="N", help="Runs. Default: as in settings."),
        click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Seed. Default: as in settings."),
        click.option(
            "--processes", type=click.IntRange(min=1), metavar="N",
            help="Number of parallel processes. Default: all processors. Results do not depend on it.",
        ),
        click.option("--figures/--no-figures", default=True, help="Draw the figures, which needs matplotlib."),
    )):  # fmt: skip
        command = option(command)
    return shared_options(command)


@reproduce_group.command(
    "synthetic",
    short_help="Run the experiments on synthetic problems.",
    epilog=example("hieropo reproduce synthetic -o synthetic"),
)
@run_options
def synthetic_command(*, as_json: bool, output: str, figures: bool, **options: Any) -> None:
    """Draw the paper's synthetic problems and compare HierOPO, FlatOPO, OracleOPO and others on them."""
    from hieropo.reproduce.run import Options, reproduce_synthetic

    chosen = Options(Path(output), pictures=figures, **options)
    with Line() as line:
        results = reproduce_synthetic(chosen, Progress(line))
    _show(results, chosen.out, as_json=as_json)


@reproduce_group.command(
    "movielens",
    short_help="Run the experiments on MovieLens 1M, and further ones on bandit feedback alone.",
    epilog=example(
        "hieropo reproduce movielens --data ml-1m.zip -o movielens",
        "hieropo reproduce movielens --download -o movielens",
    ),
)
@click.option(
    "--data", metavar="PATH", help="ratings.dat, ml-1m.zip, or a table with user_id, movie_id and rating."
)
@click.option(
    "--download",
    is_flag=True,
    help="Download ml-1m.zip from GroupLens to a cache, after its terms are shown.",
)
@run_options
def movielens_command(
    *,
    as_json: bool,
    output: str,
    figures: bool,
    data: str | None,
    download: bool,
    **options: Any,
) -> None:
    """Draw logs from the ratings of MovieLens 1M and compare HierOPO, FlatOPO, OracleOPO and others on them."""
    from hieropo.reproduce.run import Options, reproduce_movielens

    ratings = Path(data) if data is not None else _archive(download=download)
    chosen = Options(Path(output), pictures=figures, **options)
    with Line() as line:
        line.say("Reading the ratings ...")
        paper, beyond = reproduce_movielens(chosen, ratings, Progress(line))
    _show(paper, chosen.out, as_json=as_json, beyond=beyond)


def _archive(*, download: bool) -> Path:
    """Return the archive in the cache; download it from GroupLens first, with consent, where it is not there."""
    from hieropo.reproduce.movielens import download as grouplens

    target = grouplens.cached()
    if target.exists():
        return target
    if not download and not sys.stdin.isatty():
        usage_error(
            "This experiment needs the ratings of MovieLens 1M. Name them with --data, or give --download to get them "
            "from GroupLens."
        )
    click.echo(grouplens.TERMS, err=True)
    if not download and not click.confirm("Download it?", err=True):
        usage_error("The ratings of MovieLens 1M were not downloaded. Name them with --data.")
    return grouplens.download(target)


class Progress:
    """A progress bar with the estimated time left."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._begun = (0.0, 0)
        self._total = -1

    def __call__(self, done: int, total: int) -> None:
        """Show the number of finished runs, of all runs."""
        now = time.monotonic()
        if total != self._total:  # another experiment begins
            self._begun, self._total = (now, done), total
        self._line.say(bar(done, total, now - self._begun[0], done - self._begun[1]), now=True)


def bar(done: int, total: int, seconds: float, made: int) -> str:
    """Return a line of text: a bar, the number of finished runs, and the time left at the pace of ``made`` runs."""
    full = BAR * done // max(total, 1)
    text = f"[{'#' * full}{'.' * (BAR - full)}] {done:,} of {total:,} runs"
    if made < 1 or done == total:
        return text
    left = seconds / made * (total - done)
    return f"{text}, about {f'{left / 60:.0f} min' if left > 90 else f'{left:.0f} s'} left"


def _show(paper: list[Any], out: Path, *, as_json: bool, beyond: list[Any] | None = None) -> None:
    files = sorted(path for path in out.iterdir() if path.is_file())
    if as_json:
        more = {} if beyond is None else {"beyond": [summary.columns() for summary in beyond]}
        print_json(
            {
                "results": [summary.columns() for summary in paper],
                **more,
                "files": [str(path) for path in files],
            }
        )
        return
    runs = max(summary.runs for summary in paper)
    click.echo(
        _table(
            [summary for summary in paper if summary.runs == runs and summary.setting["reading"] == "as set"]
        )
    )
    click.echo(
        paragraph(
            f"Mean suboptimality over {counted(runs, 'run')} at each point. Standard errors: {out / 'results.md'}."
        )
    )
    if beyond is not None:
        _show_beyond(beyond, out)
    click.echo(table([["Files:", str(files[0])], *(["", str(path)] for path in files[1:])]))


def _show_beyond(results: list[Any], out: Path) -> None:
    from hieropo.reproduce.beyond.experiment import LOSS, WORSE_THAN_MOST
    from hieropo.reproduce.run import of_figure

    click.echo("\nFrom bandit feedback alone, for users of all kinds")
    for figure in (LOSS, WORSE_THAN_MOST):
        points = of_figure(results, figure)
        names = dict.fromkeys(summary.algorithm for summary in points)
        grid = dict.fromkeys(summary.setting["rows"] for summary in points)
        cells = {(summary.algorithm, summary.setting["rows"]): f"{summary.mean:.4f}" for summary in points}
        click.echo(
            table(
                [[f"{figure}, by rows", *map(str, grid)], *([n, *(cells[n, k] for k in grid)] for n in names)]
            )
        )
    click.echo(
        paragraph(f"Means over {counted(results[0].runs, 'run')}. Standard errors: {out / 'beyond.md'}.")
    )


def _table(points: list[Any]) -> str:
    """Return a table with a row for each setting and a column for each algorithm."""
    settings = list(dict.fromkeys(tuple(summary.setting.items()) for summary in points))
    algorithms = list(dict.fromkeys(summary.algorithm for summary in points))
    cells = {(tuple(summary.setting.items()), summary.algorithm): f"{summary.mean:.4f}" for summary in points}
    head = [name for name, _ in settings[0] if name != "reading"]
    rows = [
        [*(str(dict(setting)[name]) for name in head), *(cells[setting, n] for n in algorithms)]
        for setting in settings
    ]
    return table([[*head, *algorithms], *rows])
