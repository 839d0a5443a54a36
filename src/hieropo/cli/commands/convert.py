"""``hieropo convert``: from another tool's file to a log, and back."""

from pathlib import Path
from typing import Any

import click

from hieropo._utils.text import counted
from hieropo.cli.commands.decide import FOREIGN
from hieropo.cli.console import Line, example, names, print_json, shared_options, takes_rejects, usage_error

FORMS = ("cb", "cb_adf", "dsjson")
_ROLES = ("task", "reward", "pscore", "context", "eligible")


@click.command(
    "convert",
    short_help="Make a log of a Vowpal Wabbit file, or such a file of a log.",
    epilog=example(
        "hieropo convert decisions.dsjson -o log.parquet --from dsjson --action tag",
        "hieropo convert log.parquet -o log.vw --to cb_adf --task store --action offer --reward profit --pscore p",
    ),
)
@click.argument("source", type=str)
@click.option("-o", "--output", required=True, metavar="FILE", help="The file to write; replaced if there.")
@click.option("--from", "origin", type=click.Choice(FORMS), help="Form of SOURCE, a file of Vowpal Wabbit.")
@click.option("--to", "target", type=click.Choice(FORMS), help="Form of FILE; SOURCE is then a log.")
@click.option(
    "--action", metavar="COL",
    help="With --from: the feature that names an action, or tag; default its number. With --to: the column of actions.",
)  # fmt: skip
@click.option(
    "--columns",
    metavar="A,B",
    callback=names,
    help="With --from: the features that are wanted. Default: all.",
)
@click.option(
    "--one-hot",
    metavar="A,B",
    callback=names,
    help="With --from: features of text to be spread over columns of 0 and 1.",
)
@click.option("--quoted", is_flag=True, help="With --from: names were written by --to.")
@click.option(
    "--lenient/--strict", default=False, show_default=True,
    help="With --from: set examples aside that cannot be read (no number, no JSON, no such action, ...), count them "
    "and go on, unless they are more than half. Strict: stop at the first.",
)  # fmt: skip
@click.option(
    "--rejects", metavar="FILE",
    help="With --from: list all such examples in this .parquet or .csv file: file, line (from 1), column, value, "
    "reason.",
)  # fmt: skip
@click.option("--task", metavar="COL", help="With --to: the column of tasks.")
@click.option("--reward", metavar="COL", help="With --to: the column of rewards.")
@click.option("--pscore", metavar="COL", help="With --to: the column of propensities.")
@click.option("--context", metavar="A,B", callback=names, help="With --to: columns known before the action.")
@click.option("--eligible", metavar="COL", help="With --to: the column with lists of eligible actions.")
@shared_options
def convert_command(source: str, output: str, as_json: bool, **given: Any) -> None:  # noqa: FBT001 - click calls so
    """Make a log, FILE, of SOURCE, a contextual-bandit file of Vowpal Wabbit (--from), or the other way (--to).

    In a log the reward is -cost, and actions are numbered from 1 unless --action names them. Features are columns
    namespace.feature; examples without a label are left out and counted. Where examples of a dsjson file were dropped
    by chance (pdrop), the column sampling_weight is 1 / P(the example was kept); `hieropo fit` takes it by this name.
    """
    if (given["origin"] is None) == (given["target"] is None):
        usage_error(
            "Give --from, the form of the file that is read, or --to, that of the file that is written."
        )
    found, aside = _read(source, output, given) if given["origin"] else _written(source, output, given)
    if as_json:
        print_json(found)
        return
    if aside is not None:
        click.echo(f"Set aside: {aside.counted()}.")
    click.echo(f"{output} holds {counted(found['rows'], 'decision')}.")
    if "columns" in found:
        click.echo("Columns: " + ", ".join(found["columns"]) + ".")
    else:
        click.echo("Actions from 1: " + ", ".join(map(str, found["actions"])) + ".")


def _read(source: str, output: str, given: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Make a log of a file of Vowpal Wabbit; what to print of it, and what was set aside."""
    from hieropo.cli.progress_source import ProgressSource
    from hieropo.logs.arrow.writing import write_tables
    from hieropo.logs.interop.vw.log import from_vw

    if any(given[role] for role in _ROLES):
        usage_error(
            "--task, --reward, --pscore, --context and --eligible are for --to; columns get their roles in fit."
        )
    if output.lower().endswith(FOREIGN):
        usage_error(
            f"{output} is no name of a Parquet file, and a log is written as Parquet. Give another -o."
        )
    if given["rejects"] is not None and Path(given["rejects"]).resolve() == Path(output).resolve():
        usage_error(
            f"The log and the list of what was set aside would both be {output}. Give another --rejects."
        )
    options = {name: given[name] for name in ("action", "one_hot", "quoted", "lenient", "rejects")}
    log = from_vw(source, given["origin"], columns=given["columns"] or None, **options)
    with Line() as line:
        rows = write_tables(output, ProgressSource(log, line).batches(log.schema.names))
    rejected = None if log.rejected is None else log.rejected.to_dict()
    found = {"log": output, "rows": rows, "columns": log.schema.names, "left_out": log.left_out}
    return found | {"rejected": rejected}, log.rejected


def _written(source: str, output: str, given: dict[str, Any]) -> tuple[dict[str, Any], None]:
    from hieropo.cli.progress_source import ProgressSource
    from hieropo.logs.interop.vw.writing import to_vw
    from hieropo.logs.opening import open_log

    if given["columns"] or given["one_hot"] or given["quoted"] or takes_rejects(given):
        usage_error("--columns, --one-hot, --quoted, --lenient and --rejects are for --from.")
    missing = [f"--{role}" for role in ("task", "action", "reward", "pscore") if given[role] is None]
    if missing:
        usage_error(f"{', '.join(missing)} must be named to write for Vowpal Wabbit.")
    roles = {role: given[role] for role in (*_ROLES, "action")}
    with Line() as line:
        done = to_vw(ProgressSource(open_log(source), line), output, given["target"], **roles)
    return {"file": output, "rows": done.rows, "actions": list(done.actions)}, None
