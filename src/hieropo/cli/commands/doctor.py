"""``hieropo doctor``: check a log before learning from it."""

from pathlib import Path
from typing import Any

import click

from hieropo.cli.console import Line, example, print_json, refuse_inside, shared_options
from hieropo.cli.source import Rows, role_options, source_options


@click.command(
    "doctor",
    short_help="Check a log for problems before learning from it.",
    epilog=example(
        "hieropo doctor log.parquet",
        "hieropo doctor log.parquet --task store --action offer --reward profit --context visits --time day",
    ),
)
@click.argument("log", type=str)
@click.option(
    "--html", metavar="FILE.html", help="Write the examination as one HTML file, with pictures, too."
)
@role_options
@source_options
@shared_options
@click.pass_context
def doctor_command(
    ctx: click.Context, /, log: str, html: str | None, *, guess: bool, as_json: bool, **given: Any
) -> None:
    """Check LOG for problems before learning from it, in one pass.

    Findings are listed by severity: "stops" (learning is refused; exit code 1), "limits" (conclusions are limited) and
    "note". Each names its place in the log and the next step.
    """
    from hieropo.doctor.examine import examine
    from hieropo.logs.arrow.progress_source import ProgressSource
    from hieropo.logs.arrow.writing import check_target

    refuse_inside(log, html)
    if html is not None:
        check_target(Path(html), "examination.html")  # before a pass that may take long
    rows = Rows.of(log, given)
    with Line() as line:
        examination = examine(ProgressSource(rows.open(lenient=True), line), guess=guess, **given)
    if as_json:
        print_json(examination.to_dict() | rows.to_dict())
    else:
        click.echo(str(examination))
    if html is not None:
        examination.report(html)
        click.echo(f"{html} holds the examination.", err=as_json)
    ctx.exit(int(examination.stops))
