"""``hieropo decide``: write the actions that a policy chooses for a file of requests."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from hieropo._utils.text import counted
from hieropo.cli.console import (
    Line,
    example,
    names,
    one_or_more,
    pessimism_options,
    print_json,
    shared_options,
    usage_error,
)
from hieropo.cli.source import STANDARD_INPUT, Rows, eligible_of, eligible_options, source_options

STANDARD_OUTPUT = "-"
FORMATS = ("csv", "tsv", "jsonl", "parquet", "arrow")


@click.command(
    "decide",
    short_help="Choose an action for each request.",
    epilog=example(
        "hieropo decide policy requests.parquet -o decisions.parquet --eligible offers --top 3",
        "cat requests.csv | hieropo decide policy - -o - --id visit",
    ),
)
@click.argument("directory", metavar="DIR")
@click.argument("requests", type=str)
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="OUT",
    help="The file of decisions to write; replaced if it exists. Its ending names the format: .parquet, .csv, .tsv, "
    ".jsonl, .arrow. - is standard output.",
)
@click.option(
    "--format", "format", type=click.Choice(FORMATS), help="Format of standard output. Default: csv."
)
@click.option(
    "--id", "id", metavar="A,B", callback=names,
    help="Columns of the requests that the decisions carry along, such as an id of the request. Default: all.",
)  # fmt: skip
@click.option(
    "--task", metavar="COL", multiple=True, callback=one_or_more,
    help="Column of task ids; given several times, the columns name a task together. Default: that of the log of the "
    "fit.",
)  # fmt: skip
@click.option(
    "--context", metavar="A,B,C", callback=names,
    help="Context columns, in the order of those of the fit. Default: the same names.",
)  # fmt: skip
@eligible_options
@click.option(
    "--levels", metavar="A,B", callback=names,
    help="Columns of groups of tasks, in the order of those of the fit. Default: the same names. Read for tasks that "
    "are not in the log.",
)  # fmt: skip
@click.option(
    "--metadata", metavar="A,B", callback=names,
    help="Columns of numbers known of a task, in the order of those of the fit. Default: the same names. Read for "
    "tasks that are not in the log.",
)  # fmt: skip
@click.option(
    "--request", metavar="COL",
    help="Column with an id of each request, where the policy has no list of actions: each row is then a candidate, "
    "and rows with the same id are the candidates of one request.",
)  # fmt: skip
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="K",
    help="Number of best actions to write for each request.",
)
@click.option(
    "--strict/--lenient", default=False, show_default=True,
    help="Strict: stop at the first request that cannot be used (a missing value, an action that the policy does not "
    "know, ...). Lenient: such a request gets no action and a reason, and is counted.",
)  # fmt: skip
@pessimism_options("as fitted")
@source_options
@shared_options
def decide_command(directory: str, requests: str, output: str, as_json: bool, **given: Any) -> None:  # noqa: FBT001
    """Choose an action for each row of REQUESTS with the policy in DIR.

    REQUESTS is a file, folder or glob with the task and context columns of the log, or - for standard input. OUT has a
    row for each of the best actions of a request: row (of the request, from 0), the columns of the request, action,
    rank, propensity, lower_bound, mean and sd of its expected reward, runner_up (the next best action), task_known,
    a column such as region_known for each level and device_known for each context column with levels, kept_incumbent
    (the gate of the policy leaves the task to the incumbent, the logging policy; the action is then the incumbent's, or
    null where that is not known), and reason (why a request cannot be used). A column of the requests that has one of
    these names gets the prefix request_.
    """
    from hieropo.decisions.deciding import eligible_column
    from hieropo.decisions.decisions import Counts
    from hieropo.logs.arrow.progress_source import ProgressSource
    from hieropo.logs.arrow.writing import write_stream, write_tables
    from hieropo.storage.load import load_policy

    _check_output(output, requests, given["format"], as_json=as_json)
    eligible = eligible_of(given)
    stored = load_policy(directory)
    policy = _adjusted(stored.policy, given["pessimism"], given["level"])
    task = given["task"] or _columns(stored).get("task")
    if task is None and not _columns(stored):
        usage_error(f"The policy in {directory} does not name a column of task ids. Give --task.")
    given["eligible"] = eligible_column(stored.policy, _columns(stored).get("eligible"), eligible)
    given["new_tasks"] = _new_tasks(stored)
    counts = [Counts()]
    with Line() as line:
        parts = _decisions(
            policy,
            ProgressSource(
                Rows.of(requests, given).open_for(policy.features, lenient=not given["strict"]), line
            ),
            task,
            given,
        )
        tables = _counted(parts, counts)
        if output == STANDARD_OUTPUT:
            rows = write_stream(sys.stdout.buffer, tables, given["format"] or "csv")
            sys.stdout.buffer.flush()
        else:
            rows = write_tables(output, tables)
    _report(output, rows, counts[0], policy, given, as_json=as_json)


def _check_output(output: str, requests: str, kind: str | None, *, as_json: bool) -> None:
    """Refuse an output that would replace the requests, or of no known format."""
    from hieropo.logs.arrow.writing import ENDINGS

    if output == STANDARD_OUTPUT:
        if as_json:
            usage_error(
                "--json and -o - would both write to standard output. Give a file to -o, or leave --json out."
            )
        return
    if kind is not None:
        usage_error(
            f"--format {kind} is the format of standard output, and the ending of {output} names that of a file. Leave "
            "--format out."
        )
    if requests != STANDARD_INPUT and Path(requests).resolve() == Path(output).resolve():
        usage_error(
            f"-o {output} is the file of requests, which the decisions would replace. Give another -o."
        )
    suffix = Path(output).suffix.lower()
    if suffix in (".gz", ".bz2", ".zst", ".xlsx", ".xls", ".orc", ".avro", ".txt", ".db", ".duckdb"):
        usage_error(
            f"{output} ends in {suffix}, which is no format of decisions. Give another -o; endings are "
            f"{', '.join(ENDINGS)}."
        )


def _report(
    output: str, rows: int, counts: Any, policy: Any, given: dict[str, Any], *, as_json: bool
) -> None:
    if as_json:
        print_json(
            {"decisions": output, "rows": rows, "requests": counts.requests,
             "requests_of_unseen_tasks": counts.unseen, "kept_for_the_incumbent": counts.kept,
             "requests_without_an_action": counts.undecided,
             "reasons": [reason.to_dict() for reason in counts.reasons],
             "other_levels": dict(counts.other_levels)}
        )  # fmt: skip
        return
    to_stderr = output == STANDARD_OUTPUT
    place = "Standard output" if to_stderr else output
    click.echo(
        f"{place} holds {counted(rows - counts.undecided, 'decision')} for {counted(counts.requests, 'request')}.",
        err=to_stderr,
    )
    others = ", ".join(f"{column} {number:,}" for column, number in counts.other_levels.items())
    if others:
        click.echo(
            f"Requests with levels that have no coefficient of their own, by column: {others}.", err=to_stderr
        )
    if counts.kept:
        click.echo(
            f"Requests of tasks that the gate leaves to the incumbent: {counts.kept:,}.", err=to_stderr
        )
    if counts.unseen and not hasattr(policy, "passes"):
        prior = "the population" if given["new_tasks"] is None else "their groups and metadata"
        click.echo(
            f"Requests of tasks that are not in the log, decided by the prior of {prior}: {counts.unseen:,}.",
            err=to_stderr,
        )
    if counts.undecided:
        click.echo(
            f"Requests without an action: {counts.undecided:,}; the reasons are in their rows.", err=to_stderr
        )


def _columns(stored: Any) -> dict[str, Any]:
    """Return the columns of the log by role; empty where a policy was saved without them."""
    columns: dict[str, Any] = stored.provenance.get("columns", {})
    return columns


def _new_tasks(stored: Any) -> Any:
    """Return the predictor for tasks that are not in the log; None where the log has neither levels nor metadata."""
    columns = _columns(stored)
    if not (columns.get("levels") or columns.get("metadata")):
        return None
    from hieropo.learners.loading import new_tasks_of

    return new_tasks_of(stored)


def _adjusted(policy: Any, pessimism: float | None, level: float | None) -> Any:
    if pessimism is None and level is None:
        return policy
    from hieropo.policies.gating import GatedPolicy
    from hieropo.policies.lower_bound import LCBPolicy

    if isinstance(policy, GatedPolicy):
        usage_error(
            f"The gate of this policy was computed at pessimism {policy.pessimism:.3g}, and does not hold at another. "
            "Leave --pessimism and --level out, or decide with the policy that has no gate."
        )

    return LCBPolicy(policy.table, policy.features, pessimism=pessimism, level=level, unseen=policy.unseen)


def _decisions(policy: Any, source: Any, task: Any, given: dict[str, Any]) -> Iterator[Any]:
    from hieropo.decisions.deciding import decide
    from hieropo.errors import InputError

    if policy.features is None:
        raise InputError(
            "This policy was saved without a feature map, so features of requests cannot be computed. Save it with its "
            "features, or use load_policy(...).policy.choose(task, phi=...) in Python."
        )
    if policy.features.actions is None:
        _check_candidates(given)
    options: dict[str, Any] = {
        name: given[name] for name in ("eligible", "request", "top", "strict", "new_tasks")
    }
    options |= {name: given[name] or None for name in ("context", "levels", "metadata", "id")}
    return decide(policy, source, task=task, **options)


def _check_candidates(given: dict[str, Any]) -> None:
    """Refuse options that rows of candidates cannot have."""
    if given["request"] is None:
        usage_error(
            "This policy has no list of actions, so each row of the requests is a candidate. Give --request, the "
            "column with the id of the request, which tells the candidates of one request from the next."
        )
    if given["eligible"] is not None:
        usage_error(
            f"--eligible {given['eligible']} needs a policy with a list of actions, and this one has none. Leave "
            "--eligible out, and the rows of actions that cannot be taken."
        )


def _counted(parts: Iterator[Any], counts: list[Any]) -> Iterator[Any]:
    """Yield the tables of decisions, and add to the counts."""
    for part in parts:
        counts[0] += part.counts
        yield part.table
