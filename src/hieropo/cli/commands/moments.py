"""``hieropo moments``: make, merge, subtract and show the sufficient statistics of a log."""

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
    usage_error,
)
from hieropo.cli.sharding import Target, merge_shards, part_option, report_shards, shards_option
from hieropo.cli.source import Rows, chosen_features, log_options, roles_of, source_options

MAKE = "of"
_OUTPUT = ("-o", "--output")
_OUTPUT_HELP = "Directory of the moments; moments in it are replaced."
OUTPUT = click.option(*_OUTPUT, required=True, metavar="DIR", help=_OUTPUT_HELP)
_DATABASE = (
    click.option(
        "--in-database", metavar="URL",
        help="In place of LOG: a database that sums the rows of --sql itself, one row for each task and action. A URL "
        "such as postgresql://user@host/database, a DuckDB file, or :memory:. Up to 32 features for each action.",
    ),
    click.option(
        "--sql-text", metavar="DIALECT",
        help="In place of LOG: print the SQL text of these sums for duckdb, postgres, spark, bigquery or snowflake, "
        "and run nothing. Run it there, and read its table by `hieropo moments from-sums`.",
    ),
)  # fmt: skip


def database_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--in-database`` and ``--sql-text``."""
    for option in reversed(_DATABASE):
        command = option(command)
    return command


class _Moments(click.Group):
    """A group in which a first argument that is not the name of a command is a log."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the command ``of`` before a first argument that is not the name of a command."""
        asks_help = any(arg in ctx.help_option_names for arg in args[:1])
        if args and args[0] not in self.commands and not asks_help:
            args = [MAKE, *args]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the usage with a log and the usage with a command."""
        formatter.write_usage(ctx.command_path, "LOG -o DIR [OPTIONS]")
        formatter.write_usage(ctx.command_path, "COMMAND ... ")


@click.group(
    "moments",
    cls=_Moments,
    short_help="Make, merge and subtract the sufficient statistics of logs.",
    epilog=example(
        "hieropo moments monday.parquet -o monday --task store --action offer --reward profit",
        "hieropo moments merge monday tuesday -o both",
        "hieropo fit both -o policy",
    ),
)
def moments_command() -> None:
    """Make, merge and subtract moments: the sufficient statistics of a log for every task, without its rows.

    Moments of different days, machines or sites can be merged, and `hieropo fit` learns a policy from them. Write
    ./merge for a log with the name of one of the commands below.
    """


@moments_command.command(
    MAKE,
    short_help="Make the moments of a log; `of` may be left out.",
    epilog=example("hieropo moments log.parquet -o moments --task store --action offer --reward profit"),
)
@click.argument("log", type=str, required=False)
@click.option(*_OUTPUT, metavar="DIR", help=_OUTPUT_HELP)
@database_options
@click.option(
    "--shards",
    type=int,
    callback=shards_option,
    metavar="S",
    help="Write the moments in S shards, by a hash of the task; S is a power of two. For more tasks than memory holds: "
    "a fit then reads one shard after the other.",
)
@click.option(
    "--part",
    callback=part_option,
    metavar="K or K/N",
    help="With --shards: write to DIR/part-K, as one of several jobs whose parts `hieropo moments merge DIR` adds. K/N "
    "reads part K of the files of LOG, cut into N parts; K alone reads LOG, whose files are those of this job.",
)
@log_options
@source_options
@rejects_options
@checkpoint_option
@shared_options
def of_command(log: str | None, output: str | None, as_json: bool, **given: Any) -> None:  # noqa: FBT001
    """Make the moments of LOG: a file of Parquet, CSV, JSON lines or Arrow, a folder of them, or a glob in quotes."""
    url, dialect = given.pop("in_database"), given.pop("sql_text")
    _check_places({"LOG": log, "--in-database": url, "--sql-text": dialect})
    if dialect is not None:
        for name in ("shards", "part"):
            if given.pop(name) is not None:
                usage_error(
                    f"--{name} is for moments, and --sql-text makes none. Give it where the moments are made."
                )
        _print_text(dialect, output, given)
        return
    if output is None:
        raise click.MissingParameter(param_hint="'-o' / '--output'", param_type="option")
    if url is not None:
        _sum_in_database(url, output, given, as_json=as_json)
    else:
        _sum_rows(str(log), output, given, as_json=as_json)


def _check_places(places: dict[str, str | None]) -> None:
    """Raise a usage error unless the rows are named in one way."""
    named = [name for name, place in places.items() if place is not None]
    if not named:
        raise click.MissingParameter(param_hint="'LOG'", param_type="argument")
    if len(named) > 1:
        usage_error(f"{' and '.join(named)} name the rows in several ways. Give one of them.")


def _query_of(option: str, given: dict[str, Any]) -> str:
    """Return the query of ``--sql``; raise a usage error for options that are for a read of the rows."""
    if given["sql"] is None:
        usage_error(f"{option} sums the rows of a query. Give it: --sql 'select * from log'.")
    for name in ("lenient", "rejects", "checkpoint"):
        if given[name]:
            usage_error(
                f"--{name} is for a read of the rows, and {option} reads none of them. Leave it out; a `where` in the "
                "query leaves out rows that cannot be used."
            )
    query: str = given["sql"]
    return query


def _print_text(dialect: str, output: str | None, given: dict[str, Any]) -> None:
    from hieropo.passes.log_moments import LogMoments
    from hieropo.passes.warehouse.dialects import dialect_of
    from hieropo.rows.batches import Roles

    query = _query_of("--sql-text", given)
    if output is not None or given["filter"] is not None:
        usage_error(
            "--sql-text prints a text and runs nothing, so that --output and --filter have no use. Write the filter "
            "into the query."
        )
    if given["reward"] is None:
        usage_error(
            "--sql-text sees no table, so that no column is guessed. Name --reward, and --task and --action."
        )
    named = {role: given[role] for role in Roles.names() if role in given}
    features = chosen_features(given["features"])
    click.echo(LogMoments.sums_sql(query, dialect, features=features, types=given["types"], **named))
    product = dialect_of(dialect)
    if not product.is_tested:
        click.echo(
            f"Note: sqlglot has parsed this text, and no test has run it on {product.product}. Check its moments on "
            "some rows: those of LogMoments.of must be equal.",
            err=True,
        )


def _sum_in_database(url: str, output: str, given: dict[str, Any], *, as_json: bool) -> None:
    from hieropo.passes.log_moments import LogMoments

    query = _query_of("--in-database", given)
    if given["types"]:
        usage_error(
            "--type is for files of text, and the columns of a database have types. Cast them in the query."
        )
    rows = Rows.of(url, given)
    target = Target.of(output, given.pop("shards"), given.pop("part"), rows)
    if target is None:
        _check_target(output)
    else:
        target.prepare()
    features = chosen_features(given["features"])
    roles, guesses = roles_of(rows.open().schema, features, given)
    moments = LogMoments.in_database(query, url, features=features, filter=rows.filter, **roles.to_dict())
    provenance = {**rows.to_dict(), "summed": "in the database"}
    if target is not None:
        target.report(target.write(moments, provenance), {"guesses": guesses}, as_json=as_json)
        return
    moments.save(output, provenance=provenance)
    _report(moments, output, {"guesses": guesses}, as_json=as_json)


def _sum_rows(log: str, output: str, given: dict[str, Any], *, as_json: bool) -> None:
    from hieropo.logs.arrow.progress_source import ProgressSource
    from hieropo.logs.bad_rows.rejects import check_listing
    from hieropo.passes.log_moments import LogMoments

    for place in (output, given["checkpoint"]):
        refuse_inside(log, place)
    rows = Rows.of(log, given)
    target = Target.of(output, given.pop("shards"), given.pop("part"), rows)
    if target is None:
        _check_target(output)
    elif target.finished is not None:
        target.report(target.finished, {"done_before": True}, as_json=as_json)
        return
    else:
        target.prepare()
    check_listing(given["rejects"], log)
    features = chosen_features(given["features"])
    files = None if target is None else target.files
    source = rows.open(lenient=takes_rejects(given), files=files)
    roles, guesses = roles_of(source.schema, features, given)
    with Line() as line:
        options = {name: given[name] for name in ("lenient", "rejects", "checkpoint")}
        moments = LogMoments.of(ProgressSource(source, line), features=features, **options, **roles.to_dict())
        rejected = {} if moments.rejected is None else {"rejected": moments.rejected.to_dict()}
        provenance, report = {**rows.to_dict(), **rejected}, {"guesses": guesses, **rejected}
        sharded = None if target is None else target.write(moments, provenance)
        if target is None:
            moments.save(output, provenance=provenance)
        done_with(given["checkpoint"])
    if target is not None:
        target.report(sharded, report, as_json=as_json)
    else:
        _report(moments, output, report, as_json=as_json)


@moments_command.command(
    "from-sums",
    short_help="Make moments of the table that a text of --sql-text returns.",
    epilog=example(
        "hieropo moments --sql-text bigquery --sql 'select * from log' --task store --action offer --reward profit",
        "hieropo moments from-sums sums.parquet -o moments",
    ),
)
@click.argument("table", type=str)
@OUTPUT
@source_options
@shared_options
def from_sums_command(table: str, output: str, as_json: bool, **given: Any) -> None:  # noqa: FBT001
    """Make moments of TABLE, the whole result of a text of --sql-text: a file, a folder or a glob, or a query."""
    from hieropo.passes.log_moments import LogMoments

    refuse_inside(table, output)
    _check_target(output)
    rows = Rows.of(table, given)
    moments = LogMoments.from_sums(rows.open())
    moments.save(output, provenance={**rows.to_dict("sums"), "summed": "in a database"})
    _report(moments, output, {}, as_json=as_json)


@moments_command.command(
    "merge",
    short_help="Add moments of different rows.",
    epilog=example("hieropo moments merge monday tuesday wednesday -o week"),
)
@click.argument("paths", metavar="M1 M2 ...", nargs=-1, required=True)
@OUTPUT
@click.option(
    "--shards",
    type=int,
    callback=shards_option,
    metavar="S",
    help="Number of shards of the result, for moments in shards. Default: that of the first.",
)
@shared_options
def merge_command(paths: tuple[str, ...], output: str, shards: int | None, as_json: bool) -> None:  # noqa: FBT001
    """Add the moments of different rows: of several days, machines or sites.

    All must be made of the same columns. With the feature map per-action, the lists of actions may differ. Of moments
    in shards a path is their directory, or a directory with the parts of a log; a merge that was stopped goes on from
    the shards that are done.
    """
    from hieropo.passes.sharded import holds_shards

    in_shards = [holds_shards(path) for path in paths]
    if all(in_shards):
        with Line():
            sharded = merge_shards(paths, output, shards)
        report_shards(sharded, output, {"merged": list(paths)}, as_json=as_json)
        return
    if any(in_shards):
        one, other = paths[in_shards.index(True)], paths[in_shards.index(False)]
        usage_error(
            f"{one} holds moments in shards, and {other} does not. Make moments of both in one way, with --shards or "
            "without."
        )
    if shards is not None:
        usage_error(f"--shards is for moments in shards, and {paths[0]} holds none. Make them with --shards.")
    _combine(paths, output, lambda total, more: total + more, "merged", as_json=as_json)


@moments_command.command(
    "subtract",
    short_help="Subtract the moments of some rows again.",
    epilog=example("hieropo moments subtract year january -o rest"),
)
@click.argument("first", metavar="M1")
@click.argument("paths", metavar="M2 ...", nargs=-1, required=True)
@OUTPUT
@shared_options
def subtract_command(first: str, paths: tuple[str, ...], output: str, as_json: bool) -> None:  # noqa: FBT001
    """Subtract the moments M2 ... from M1, whose rows must include theirs."""
    _combine((first, *paths), output, lambda total, less: total - less, "subtracted", as_json=as_json)


@moments_command.command(
    "show", short_help="Show the contents of moments.", epilog=example("hieropo moments show both")
)
@click.argument("path", metavar="M")
@shared_options
def show_command(path: str, as_json: bool) -> None:  # noqa: FBT001
    """Show the contents of moments: numbers of rows and tasks, columns, features, and their source."""
    from hieropo.passes.log_moments import LogMoments
    from hieropo.passes.sharded import as_shards
    from hieropo.storage.moments import read_moments_file

    sharded = as_shards(path)
    if sharded is not None:
        report_shards(sharded, path, {"provenance": dict(sharded.provenance)}, as_json=as_json)
        return
    moments, provenance = LogMoments.load(path), dict(read_moments_file(path).provenance)
    _report(moments, path, {"provenance": provenance}, as_json=as_json)


def _check_target(output: str) -> None:
    """Refuse a directory that cannot be written before a long pass over a log."""
    from hieropo.storage import layout

    layout.check_replaceable(Path(output), layout.SUMS)


def _combine(
    paths: Sequence[str], output: str, combine: Callable[[Any, Any], Any], word: str, *, as_json: bool
) -> None:
    """Combine moments one after the other, with at most two of them in memory."""
    from hieropo.errors import HieropoError
    from hieropo.passes.log_moments import LogMoments

    _check_target(output)
    with Line() as line:
        total = LogMoments.load(paths[0])
        for path in line.counted(paths[1:], "Moments", len(paths) - 1):
            more = LogMoments.load(path)
            try:
                total = combine(total, more)
            except HieropoError as error:
                error.add_note(
                    f"The second moments are {path}, the first {' and '.join(paths[: paths.index(path)])}."
                )
                raise
        total.save(output, provenance={word: list(paths)})
    _report(total, output, {word: list(paths)}, as_json=as_json)


def _report(moments: Any, output: str, more: dict[str, Any], *, as_json: bool) -> None:
    from hieropo.rows.ids import abbreviate

    features = moments.features
    actions = None if features.actions is None else list(features.actions)
    size = sum(path.stat().st_size for path in Path(output).iterdir())
    report = {
        "moments": output, "rows": whole(moments.n_rows), "tasks": len(moments), "actions": actions,
        "features": features.dim, "columns": moments.roles.to_dict(), "bytes": size, **more,
    }  # fmt: skip
    clusters = moments.summed.clusters
    if clusters is not None:
        report["clusters"] = len(clusters)
    if as_json:
        print_json(report)
        return
    listed = "actions described by columns" if actions is None else f"the actions {abbreviate(actions, 10)}"
    columns = ", ".join(f"{role} {column}" for role, column in moments.roles.items())
    click.echo(
        f"{output} holds the moments of {counted(moments.n_rows, 'row')} of {counted(len(moments), 'task')}: "
        f"{counted(features.dim, 'feature')}, {listed}; {size / 1e3:,.0f} kB.\n"
        + (
            ""
            if clusters is None
            else f"Clusters: {counted(len(clusters), 'id')} of column {moments.roles.cluster}.\n"
        )
        + f"Columns: {columns}.\n"
        + "".join(f"{name}: {value}\n" for name, value in more.get("provenance", {}).items())
        + f"Next: hieropo fit {shlex.quote(output)} -o policy"
    )
