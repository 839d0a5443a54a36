"""``hieropo convert``: a contextual-bandit file of Vowpal Wabbit to a log, and back."""

from pathlib import Path
from typing import Any

import click

from hieropo._utils.text import counted
from hieropo.cli.console import (
    FOREIGN,
    Line,
    example,
    names,
    print_json,
    shared_options,
    takes_rejects,
    usage_error,
)

FORMS = ("cb", "cb_adf", "dsjson")
_ROLES = ("task", "reward", "pscore", "context", "eligible")


@click.command(
    "convert",
    short_help="Convert a Vowpal Wabbit file to a log, or a log to such a file.",
    epilog=example(
        "hieropo convert decisions.dsjson -o log.parquet --from dsjson --action tag",
        "hieropo convert log.parquet -o log.vw --to cb_adf --task store --action offer --reward profit --pscore p",
    ),
)
@click.argument("source", type=str)
@click.option(
    "-o", "--output", required=True, metavar="FILE", help="The file to write; replaced if it exists."
)
@click.option("--from", "origin", type=click.Choice(FORMS), help="Format of SOURCE, a file of Vowpal Wabbit.")
@click.option("--to", "target", type=click.Choice(FORMS), help="Format of FILE; SOURCE is then a log.")
@click.option(
    "--action", metavar="COL",
    help="With --from: the feature that holds the action's id, or tag. Default: the action's number. With --to: the "
    "column of actions.",
)  # fmt: skip
@click.option(
    "--columns",
    metavar="A,B",
    callback=names,
    help="With --from: the features to keep. Default: all.",
)
@click.option(
    "--one-hot",
    metavar="A,B",
    callback=names,
    help="With --from: text features to encode as one column of 0 and 1 for each value.",
)
@click.option("--quoted", is_flag=True, help="With --from: SOURCE was written by --to, which quotes names.")
@click.option(
    "--lenient/--strict", default=False, show_default=True,
    help="With --from. Lenient: set aside unusable examples (text for a number, invalid JSON, an unknown action, ...), "
    "count them and go on, unless they are more than half. Strict: stop at the first.",
)  # fmt: skip
@click.option(
    "--rejects", metavar="FILE",
    help="With --from: write a list of the unusable examples to this .parquet or .csv file: file, line (from 1), "
    "column, value, reason.",
)  # fmt: skip
@click.option("--task", metavar="COL", help="With --to: the column of tasks.")
@click.option("--reward", metavar="COL", help="With --to: the column of rewards.")
@click.option("--pscore", metavar="COL", help="With --to: the column of propensities.")
@click.option("--context", metavar="A,B", callback=names, help="With --to: the context columns.")
@click.option("--eligible", metavar="COL", help="With --to: the column with lists of eligible actions.")
@shared_options
def convert_command(source: str, output: str, as_json: bool, **given: Any) -> None:  # noqa: FBT001 - click calls so
    """Convert SOURCE, a contextual-bandit file of Vowpal Wabbit, to a log (--from), or a log to such a file (--to).

    In the log the reward is -cost. Actions are numbered from 1 unless --action names their ids. Features are columns
    namespace.feature. Examples without a label are left out and counted. Where examples of a dsjson file were dropped
    at random (pdrop), the column sampling_weight is 1 / P(the example was kept); `hieropo fit` takes it by this name.
    """
    if (given["origin"] is None) == (given["target"] is None):
        usage_error(
            "Give either --from, the format of the file to read, or --to, the format of the file to write."
        )
    report, rejected = _read(source, output, given) if given["origin"] else _write(source, output, given)
    if as_json:
        print_json(report)
        return
    if rejected is not None:
        click.echo(f"Set aside: {rejected.counted()}.")
    click.echo(f"{output} holds {counted(report['rows'], 'decision')}.")
    if "columns" in report:
        click.echo("Columns: " + ", ".join(report["columns"]) + ".")
    else:
        click.echo("Actions, numbered from 1: " + ", ".join(map(str, report["actions"])) + ".")


def _read(source: str, output: str, given: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Convert a file of Vowpal Wabbit to a log; return the report, and the examples that were set aside."""
    from hieropo.logs.arrow.progress_source import ProgressSource
    from hieropo.logs.arrow.writing import write_tables
    from hieropo.logs.interop.vw.log import from_vw

    if any(given[role] for role in _ROLES):
        usage_error(
            "--task, --reward, --pscore, --context and --eligible are for --to. Leave them out here, and give them to "
            "`hieropo fit`."
        )
    if output.lower().endswith(FOREIGN):
        usage_error(
            f"{output} is not the name of a Parquet file, and a log is written as Parquet. Give another -o."
        )
    if given["rejects"] is not None and Path(given["rejects"]).resolve() == Path(output).resolve():
        usage_error(
            f"The log and the list of unusable examples would both be written to {output}. Give another --rejects."
        )
    options = {name: given[name] for name in ("action", "one_hot", "quoted", "lenient", "rejects")}
    log = from_vw(source, given["origin"], columns=given["columns"] or None, **options)
    with Line() as line:
        rows = write_tables(output, ProgressSource(log, line).batches(log.schema.names))
    rejected = None if log.rejected is None else log.rejected.to_dict()
    report = {"log": output, "rows": rows, "columns": log.schema.names, "left_out": log.left_out}
    return report | {"rejected": rejected}, log.rejected


def _write(source: str, output: str, given: dict[str, Any]) -> tuple[dict[str, Any], None]:
    """Write a log as a file of Vowpal Wabbit; return the report."""
    from hieropo.logs.arrow.progress_source import ProgressSource
    from hieropo.logs.interop.vw.writing import to_vw
    from hieropo.logs.opening import open_log

    if given["columns"] or given["one_hot"] or given["quoted"] or takes_rejects(given):
        usage_error("--columns, --one-hot, --quoted, --lenient and --rejects are for --from. Leave them out.")
    missing = [f"--{role}" for role in ("task", "action", "reward", "pscore") if given[role] is None]
    if missing:
        usage_error(
            f"--to needs {', '.join(missing)}: a file of Vowpal Wabbit has a task, action, cost and probability in "
            "every example. Name these columns of the log."
        )
    roles = {role: given[role] for role in (*_ROLES, "action")}
    with Line() as line:
        written = to_vw(ProgressSource(open_log(source), line), output, given["target"], **roles)
    return {"file": output, "rows": written.rows, "actions": list(written.actions)}, None
