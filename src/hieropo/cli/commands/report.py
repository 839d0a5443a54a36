"""``hieropo report``: one HTML file with the gain of a policy, the tasks that it would harm, and the limits."""

from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import click

from hieropo.cli.console import (
    Line,
    example,
    print_json,
    probability,
    refuse_inside,
    rejects_options,
    shared_options,
    takes_rejects,
    usage_error,
)
from hieropo.cli.source import Rows, eligible_of, eligible_options, source_options

_SETTINGS = ("pscore", "propensities", "time", "level", "seed", "max_harm", "lenient", "rejects")
_EXAMINED = (
    "task",
    "reward",
    "action",
    "context",
    "pscore",
    "weight",
    "precision",
    "sampling_weight",
    "cluster",
    "time",
)


@click.command(
    "report",
    short_help="Write a report of an evaluation for decision makers: one HTML file.",
    epilog=example(
        "hieropo report policy log.parquet -o report.html",
        "hieropo report policy log.parquet -o report.html --title 'Should stores get the offer that we learned?'",
    ),
)
@click.argument("directory", metavar="DIR")
@click.argument("log", type=str)
@click.option("-o", "--output", metavar="FILE.html", help="The report to write; replaced if it exists.")
@click.option("--title", metavar="TEXT", help="The question that the report answers, in your words.")
@click.option(
    "--pscore", metavar="COL", help="Column of logged propensities. Default: that of the log of the fit."
)
@click.option(
    "--propensities", type=click.Choice(["auto", "logged", "estimated", "none"]), default="auto", show_default=True,
    help="As in `hieropo evaluate`.",
)  # fmt: skip
@eligible_options
@click.option(
    "--time",
    metavar="COL",
    help="Column of the time of the choice. Default: that of the log of the fit.",
)
@click.option(
    "--max-harm", type=float, default=0.05, show_default=True, callback=probability, metavar="P",
    help="Probability of harm up to which a task passes the gate.",
)  # fmt: skip
@click.option(
    "--level", type=float, default=0.95, show_default=True, callback=probability, metavar="P",
    help="Probability of the intervals.",
)  # fmt: skip
@click.option(
    "--epsilon", type=click.FloatRange(min=0, min_open=True), metavar="E",
    help="Estimate how many more rows the least certain tasks need until their policy is within E of the best one.",
)  # fmt: skip
@click.option("--no-compare", is_flag=True, help="Compare with no other policies.")
@click.option(
    "--no-doctor", is_flag=True, help="Leave out the findings of `hieropo doctor`, which take one pass more."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of folds and draws.")
@source_options
@rejects_options
@shared_options
def report_command(directory: str, log: str, as_json: bool, **given: Any) -> None:  # noqa: FBT001
    """Judge the policy in DIR on LOG as `hieropo evaluate` does, and write a report for those who decide.

    The report is one file that needs no network. The same policy, log and options give the same bytes. --json prints
    the same content.
    """
    from hieropo.learners.loading import load_evaluable
    from hieropo.logs.arrow.writing import check_target
    from hieropo.logs.bad_rows.rejects import check_listing
    from hieropo.report.page import write_page

    output = given["output"]
    if output is None and not as_json:
        usage_error("-o FILE.html is missing: the report is written to a file. --json prints its content.")
    refuse_inside(log, output)
    if output is not None:
        check_target(Path(output), "report.html")  # before an evaluation that takes long
    check_listing(given["rejects"], log)
    learner = load_evaluable(directory)
    rows, aside = Rows.of(log, given), takes_rejects(given)
    settings = {name: given[name] for name in _SETTINGS} | {"eligible": eligible_of(given)}
    settings["compare"] = not given["no_compare"]
    evaluation = _evaluated(learner, rows, settings, lenient=aside)
    evaluation = replace(
        evaluation, origin={**_policy(directory), **(evaluation.origin or {}), **rows.to_dict()}
    )
    examination = None if given["no_doctor"] else _examined(learner, rows, given["pscore"])
    document = evaluation.document(title=given["title"], examination=examination, epsilon=given["epsilon"])
    if output is not None:
        write_page(document, output)
    if as_json:
        print_json({**document.to_dict(), "evaluation": evaluation.to_dict(), "written": output})
        return
    click.echo(f"{output} holds the report. Open it in a browser.")


def _evaluated(learner: Any, rows: Rows, settings: dict[str, Any], *, lenient: bool) -> Any:
    from hieropo.logs.arrow.progress_source import ProgressSource

    with Line() as line:
        return learner.evaluate(ProgressSource(rows.open(rereadable=True, lenient=lenient), line), **settings)


def _examined(learner: Any, rows: Rows, pscore: str | None) -> Any:
    """Return the doctor's examination of the log, by the roles of the policy.

    Context columns are those of the log, from which the features are made: the log has no column of a level.
    """
    from hieropo.doctor.examine import examine
    from hieropo.logs.arrow.progress_source import ProgressSource

    roles = learner.roles_.to_dict()
    if getattr(learner.features_, "terms", None) is not None:
        roles["context"] = list(learner.features_.sources)
    named = {role: roles[role] for role in _EXAMINED if roles.get(role)}
    named |= {"pscore": pscore} if pscore else {}
    log = rows.open(lenient=True)
    there = set(log.schema.names)
    named = {
        role: columns
        for role, columns in named.items()
        if role == "context" or there.issuperset([columns] if isinstance(columns, str) else columns)
    }
    with Line() as line:
        return examine(ProgressSource(log, line), guess=False, **named)


def _policy(directory: str) -> dict[str, Any]:
    """Return the path of the policy, and a hash of the file that describes it and holds the checksums of the others."""
    described = Path(directory) / "policy.json"
    return {"policy": directory, "sha256 of policy.json": sha256(described.read_bytes()).hexdigest()}
