"""``hieropo moments``: what a log says to a learner, without its rows; put together and taken apart."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from hieropo._utils.text import counted, whole
from hieropo.cli.console import (
    Line,
    checkpoint_option,
    done_with,
    example,
    print_json,
    refuse_inside,
    rejects_options,
    shared_options,
    takes_rejects,
)
from hieropo.cli.source import Rows, chosen_features, log_options, roles_of, source_options

MAKE = "of"
OUTPUT = click.option(
    "-o", "--output", required=True, metavar="DIR",
    help="Where the moments go; replaced if moments are there.",
)  # fmt: skip


class _Moments(click.Group):
    """A group in which what names no command is a log."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the first word that is no option for a command, where it is one."""
        helped = any(each in ctx.help_option_names for each in args[:1])
        if args and args[0] not in self.commands and not helped:
            args = [MAKE, *args]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show both ways."""
        formatter.write_usage(ctx.command_path, "LOG -o DIR [OPTIONS]")
        formatter.write_usage(ctx.command_path, "COMMAND ... ")


@click.group(
    "moments",
    cls=_Moments,
    short_help="Sum a log up; put such sums together.",
    epilog=example(
        "hieropo moments monday.parquet -o monday --task store --action offer --reward profit",
        "hieropo moments merge monday tuesday -o both",
        "hieropo fit both -o policy",
    ),
)
def moments_command() -> None:
    """Make, merge and subtract moments: sums of a log for every task, learned from in place of its rows.

    Sums made on different days, machines or sites are merged, and a policy is learned from them with `hieropo fit`.
    A log that is called as one of the commands below is written ./merge.
    """


@moments_command.command(
    MAKE,
    short_help="Sum a log up; `of` may be left out.",
    epilog=example("hieropo moments log.parquet -o moments --task store --action offer --reward profit"),
)
@click.argument("log", type=str)
@OUTPUT
@log_options
@source_options
@rejects_options
@checkpoint_option
@shared_options
def of_command(log: str, output: str, as_json: bool, **given: Any) -> None:  # noqa: FBT001 - click calls so
    """Sum LOG up: a file of Parquet, CSV, JSON lines or Arrow, a folder of them, or a glob in quotes."""
    from hieropo.cli.progress_source import ProgressSource
    from hieropo.logs.bad_rows.rejects import check_listing
    from hieropo.passes.log_moments import LogMoments

    for target in (output, given["checkpoint"]):
        refuse_inside(log, target)
    _check_target(output)
    check_listing(given["rejects"], log)
    features = chosen_features(given["features"])
    rows = Rows.of(log, given)
    source = rows.open(lenient=takes_rejects(given))
    roles, told = roles_of(source.schema, features, given)
    with Line() as line:
        taking = {name: given[name] for name in ("lenient", "rejects", "checkpoint")}
        found = LogMoments.of(ProgressSource(source, line), features=features, **taking, **roles.to_dict())
        rejected = {} if found.rejected is None else {"rejected": found.rejected.to_dict()}
        found.save(output, provenance={**rows.to_dict(), **rejected})
        done_with(given["checkpoint"])
    _report(found, output, {"guesses": told, **rejected}, as_json=as_json)


@moments_command.command(
    "merge",
    short_help="Add moments of different rows.",
    epilog=example("hieropo moments merge monday tuesday wednesday -o week"),
)
@click.argument("paths", metavar="M1 M2 ...", nargs=-1, required=True)
@OUTPUT
@shared_options
def merge_command(paths: tuple[str, ...], output: str, as_json: bool) -> None:  # noqa: FBT001
    """Add moments of different rows: of several days, machines or sites.

    All must be made of the same columns. Where each action has coefficients of its own, the actions may differ.
    """
    _combine(paths, output, lambda total, more: total + more, "merged", as_json=as_json)


@moments_command.command(
    "subtract",
    short_help="Take rows out again, by their moments.",
    epilog=example("hieropo moments subtract year january -o rest"),
)
@click.argument("first", metavar="M1")
@click.argument("paths", metavar="M2 ...", nargs=-1, required=True)
@OUTPUT
@shared_options
def subtract_command(first: str, paths: tuple[str, ...], output: str, as_json: bool) -> None:  # noqa: FBT001
    """Take the rows of M2 ... out of M1, which must hold them."""
    _combine((first, *paths), output, lambda total, less: total - less, "subtracted", as_json=as_json)


@moments_command.command(
    "show", short_help="Say what moments hold.", epilog=example("hieropo moments show both")
)
@click.argument("path", metavar="M")
@shared_options
def show_command(path: str, as_json: bool) -> None:  # noqa: FBT001
    """Say what moments hold: rows, tasks, columns, features, and what they were made of."""
    from hieropo.passes.log_moments import LogMoments
    from hieropo.storage.moments import read_moments_file

    found, provenance = LogMoments.load(path), dict(read_moments_file(path).provenance)
    _report(found, path, {"provenance": provenance}, as_json=as_json)


def _check_target(output: str) -> None:
    """Refuse what cannot be written before a long pass over a log."""
    from hieropo.storage import layout

    layout.check_replaceable(Path(output), layout.SUMS)


def _combine(
    paths: Sequence[str], output: str, step: Callable[[Any, Any], Any], word: str, *, as_json: bool
) -> None:
    """Go through moments one after the other, so that two of them are in memory at most."""
    from hieropo.errors import HieropoError
    from hieropo.passes.log_moments import LogMoments

    _check_target(output)
    with Line() as line:
        total = LogMoments.load(paths[0])
        for path in line.counted(paths[1:], "Moments", len(paths) - 1):
            more = LogMoments.load(path)
            try:
                total = step(total, more)
            except HieropoError as error:
                error.add_note(
                    f"The second are {path}, the first {' and '.join(paths[: paths.index(path)])}."
                )
                raise
        total.save(output, provenance={word: list(paths)})
    _report(total, output, {word: list(paths)}, as_json=as_json)


def _report(found: Any, output: str, more: dict[str, Any], *, as_json: bool) -> None:
    from hieropo.rows.ids import abbreviate

    features = found.features
    actions = None if features.actions is None else list(features.actions)
    size = sum(path.stat().st_size for path in Path(output).iterdir())
    about = {
        "moments": output, "rows": whole(found.n_rows), "tasks": len(found), "actions": actions,
        "features": features.dim, "columns": found.roles.to_dict(), "bytes": size, **more,
    }  # fmt: skip
    if as_json:
        print_json(about)
        return
    listed = "actions described by columns" if actions is None else f"the actions {abbreviate(actions, 10)}"
    columns = ", ".join(f"{role} {column}" for role, column in found.roles.items())
    click.echo(
        f"{output} holds the moments of {counted(found.n_rows, 'row')} of {counted(len(found), 'task')}: "
        f"{counted(features.dim, 'feature')}, {listed}; {size / 1e3:,.0f} kB.\n"
        f"Columns: {columns}.\n"
        + "".join(f"{name}: {value}\n" for name, value in more.get("provenance", {}).items())
        + f"Next: hieropo fit {shlex.quote(output)} -o policy"
    )
