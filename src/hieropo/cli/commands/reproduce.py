"""``hieropo reproduce``: the experiments of the paper."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from hieropo._utils.text import counted, paragraph, table
from hieropo.cli.console import Line, example, print_json, shared_options, usage_error

BAR = 30


@click.group("reproduce", short_help="Make the figures of the HierOPO paper, and what it leaves out.")
def reproduce_group() -> None:
    """Make the figures of the HierOPO paper (arXiv 2212.04720), and what it leaves out.

    Settings, runs, tables and pictures end in one folder. A command that was ended goes on where it stopped.
    """


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what all experiments are told."""
    for option in reversed((
        click.option("-o", "--output", required=True, metavar="DIR", help="Folder for results; made if missing."),
        click.option("--settings", metavar="FILE", help="TOML instead of the settings that ship."),
        click.option("--runs", type=click.IntRange(min=1), metavar="N", help="Runs instead of those in the settings."),
        click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Seed instead of that in the settings."),
        click.option(
            "--processes", type=click.IntRange(min=1), metavar="N",
            help="At work at once; default all processors. The figures do not depend on it.",
        ),
        click.option("--figures/--no-figures", default=True, help="Pictures need matplotlib."),
    )):  # fmt: skip
        command = option(command)
    return shared_options(command)


@reproduce_group.command(
    "synthetic",
    short_help="The synthetic problems.",
    epilog=example("hieropo reproduce synthetic -o synthetic"),
)
@run_options
def synthetic_command(*, as_json: bool, output: str, figures: bool, **options: Any) -> None:
    """Draw the paper's synthetic problems and compare HierOPO, FlatOPO, OracleOPO and others on them."""
    from hieropo.reproduce.run import Asked, reproduce_synthetic

    asked = Asked(Path(output), pictures=figures, **options)
    with Line() as line:
        found = reproduce_synthetic(asked, Progress(line))
    _tell(found, asked.out, as_json=as_json)


@reproduce_group.command(
    "movielens",
    short_help="MovieLens 1M, and what bandit feedback alone gives.",
    epilog=example(
        "hieropo reproduce movielens --data ml-1m.zip -o movielens",
        "hieropo reproduce movielens --download -o movielens",
    ),
)
@click.option(
    "--data", metavar="PATH", help="ratings.dat, ml-1m.zip, or a table with user_id, movie_id and rating."
)
@click.option(
    "--download", is_flag=True, help="Get ml-1m.zip from GroupLens, whose terms are shown; kept in a cache."
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
    from hieropo.reproduce.run import Asked, reproduce_movielens

    ratings = Path(data) if data is not None else _archive(download=download)
    asked = Asked(Path(output), pictures=figures, **options)
    with Line() as line:
        line.say("Reading the ratings ...")
        papers, beyond = reproduce_movielens(asked, ratings, Progress(line))
    _tell(papers, asked.out, as_json=as_json, beyond=beyond)


def _archive(*, download: bool) -> Path:
    """The archive in the cache; else from GroupLens, if that was asked for or is agreed to."""
    from hieropo.reproduce.movielens import download as grouplens

    target = grouplens.cached()
    if target.exists():
        return target
    if not download and not sys.stdin.isatty():
        usage_error("Name the ratings with --data, or say --download to get them from GroupLens.")
    click.echo(grouplens.TERMS, err=True)
    if not download and not click.confirm("Download it?", err=True):
        usage_error("Name the ratings with --data.")
    return grouplens.download(target)


class Progress:
    """A bar, with how long it may still take."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._begun = (0.0, 0)
        self._total = -1

    def __call__(self, done: int, total: int) -> None:
        """Show how many runs are done, of how many."""
        now = time.monotonic()
        if total != self._total:  # another experiment begins
            self._begun, self._total = (now, done), total
        self._line.say(bar(done, total, now - self._begun[0], done - self._begun[1]), now=True)


def bar(done: int, total: int, seconds: float, made: int) -> str:
    """Line of text: a bar, the runs that are done, and the time left if the others take as long as ``made`` did."""
    full = BAR * done // max(total, 1)
    text = f"[{'#' * full}{'.' * (BAR - full)}] {done:,} of {total:,} runs"
    if made < 1 or done == total:
        return text
    left = seconds / made * (total - done)
    return f"{text}, about {f'{left / 60:.0f} min' if left > 90 else f'{left:.0f} s'} left"


def _tell(papers: list[Any], out: Path, *, as_json: bool, beyond: list[Any] | None = None) -> None:
    files = sorted(path for path in out.iterdir() if path.is_file())
    if as_json:
        more = {} if beyond is None else {"beyond": [each.columns() for each in beyond]}
        print_json(
            {"results": [each.columns() for each in papers], **more, "files": [str(path) for path in files]}
        )
        return
    most = max(each.runs for each in papers)
    click.echo(_table([each for each in papers if each.runs == most and each.place["reading"] == "as set"]))
    click.echo(
        paragraph(
            f"Mean suboptimality; {counted(most, 'run')} at each point. {out / 'results.md'} has errors."
        )
    )
    if beyond is not None:
        _tell_beyond(beyond, out)
    click.echo(table([["left behind", str(files[0])], *(["", str(path)] for path in files[1:])]))


def _tell_beyond(found: list[Any], out: Path) -> None:
    from hieropo.reproduce.beyond.experiment import LOSS, WORSE_THAN_MOST
    from hieropo.reproduce.run import of_figure

    click.echo("\nFrom bandit feedback alone, with users of all kinds")
    for figure in (LOSS, WORSE_THAN_MOST):
        points = of_figure(found, figure)
        names = dict.fromkeys(each.algorithm for each in points)
        grid = dict.fromkeys(each.place["rows"] for each in points)
        cells = {(each.algorithm, each.place["rows"]): f"{each.mean:.4f}" for each in points}
        click.echo(
            table(
                [[f"{figure}, by rows", *map(str, grid)], *([n, *(cells[n, k] for k in grid)] for n in names)]
            )
        )
    click.echo(paragraph(f"Means of {counted(found[0].runs, 'run')}. {out / 'beyond.md'} has errors."))


def _table(found: list[Any]) -> str:
    """One row for each point, one column for each algorithm."""
    places = list(dict.fromkeys(tuple(each.place.items()) for each in found))
    algorithms = list(dict.fromkeys(each.algorithm for each in found))
    cells = {(tuple(each.place.items()), each.algorithm): f"{each.mean:.4f}" for each in found}
    head = [name for name, _ in places[0] if name != "reading"]
    rows = [
        [*(str(dict(place)[name]) for name in head), *(cells[place, n] for n in algorithms)]
        for place in places
    ]
    return table([[*head, *algorithms], *rows])
