"""``hieropo decide``: write the actions that a policy chooses for a file of requests."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from hieropo._utils.text import counted
from hieropo.cli.console import (
    Line,
    example,
    one_or_more,
    pessimism_options,
    print_json,
    shared_options,
    usage_error,
)
from hieropo.cli.source import Rows, eligible_of, eligible_options, source_options

FOREIGN = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".feather", ".arrow", ".orc", ".xlsx")


@click.command(
    "decide",
    short_help="Choose an action for each request.",
    epilog=example("hieropo decide policy requests.parquet -o decisions.parquet --eligible offers --top 3"),
)
@click.argument("directory", metavar="DIR")
@click.argument("requests", type=str)
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="OUT.parquet",
    help="The file of decisions to write; replaced if it exists.",
)
@click.option(
    "--task", metavar="COL", multiple=True, callback=one_or_more,
    help="Column of task ids; given several times, the columns name a task together. Default: that of the log of the "
    "fit.",
)  # fmt: skip
@eligible_options
@click.option(
    "--request", metavar="COL",
    help="Column with an id of each request, kept in the output. Needed where the policy has no list of actions: each "
    "row is then a candidate, and rows with the same id are the candidates of one request.",
)  # fmt: skip
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="K",
    help="Number of best actions to write for each request.",
)
@pessimism_options("as fitted")
@source_options
@shared_options
def decide_command(directory: str, requests: str, output: str, as_json: bool, **given: Any) -> None:  # noqa: FBT001
    """Choose an action for each row of REQUESTS with the policy in DIR.

    REQUESTS is a file, folder or glob with the task and context columns of the log. OUT.parquet has a row for each of
    the best actions of a request: row (of the request, from 0), the task, action, rank, and lower_bound, mean and sd of
    its expected reward. Where the policy has a gate, kept_incumbent marks requests of tasks that are left to the
    incumbent, the logging policy; their action is the incumbent's, or null where that is not known.
    """
    from hieropo.logs.arrow.progress_source import ProgressSource
    from hieropo.logs.arrow.writing import write_tables
    from hieropo.logs.encoding import encoded, unknown_levels
    from hieropo.storage.load import load_policy

    if Path(requests).resolve() == Path(output).resolve():
        usage_error(
            f"-o {output} is the file of requests, which the decisions would replace. Give another -o."
        )
    if Path(output).suffix.lower() in FOREIGN:
        usage_error(
            f"{output} is not the name of a Parquet file, and decisions are written as Parquet. Give another -o."
        )
    eligible = eligible_of(given)
    stored = load_policy(directory)
    policy = _adjusted(stored.policy, given["pessimism"], given["level"])
    task = given["task"] or _columns(stored).get("task")
    if task is None and not _columns(stored):
        usage_error(f"The policy in {directory} does not name a column of task ids. Give --task.")
    given["eligible"], given["new_tasks"] = _eligible_column(stored, eligible), _new_tasks(stored)
    counts: dict[str, Any] = {"requests": 0, "unseen": 0, "kept": 0}
    with Line() as line:
        opened = ProgressSource(Rows.of(requests, given).open_for(policy.features), line)
        source = encoded(opened, policy.features)
        decisions = _decisions(policy, source, task, given)
        rows = write_tables(output, _counted(decisions, counts))
    if as_json:
        print_json(
            {"decisions": output, "rows": rows, "requests": counts["requests"],
             "requests_of_unseen_tasks": counts["unseen"], "kept_for_the_incumbent": counts["kept"],
             "other_levels": unknown_levels(source)}
        )  # fmt: skip
        return
    click.echo(f"{output} holds {counted(rows, 'decision')} for {counted(counts['requests'], 'request')}.")
    others = ", ".join(f"{column} {number:,}" for column, number in unknown_levels(source).items())
    if others:
        click.echo(f"Requests with levels that have no coefficient of their own, by column: {others}.")
    if counts["kept"]:
        click.echo(f"Requests of tasks that the gate leaves to the incumbent: {counts['kept']:,}.")
    if counts["unseen"] and not hasattr(policy, "passes"):
        prior = "the population" if given["new_tasks"] is None else "their groups and metadata"
        click.echo(
            f"Requests of tasks that are not in the log, decided by the prior of {prior}: {counts['unseen']:,}."
        )


def _columns(stored: Any) -> dict[str, Any]:
    """Return the columns of the log by role; empty where a policy was saved without them."""
    columns: dict[str, Any] = stored.provenance.get("columns", {})
    return columns


def _eligible_column(stored: Any, option: Any) -> str | None:
    """Return the requests' column of eligible actions: that of the option, else that of the log."""
    from hieropo.rows.batches import column_of

    if stored.features is None or stored.features.actions is None:  # the rows of a request are its candidates
        return option or None
    return column_of(option, getattr(stored.policy, "eligible", None) or _columns(stored).get("eligible"))


def _new_tasks(stored: Any) -> Any:
    """Return the predictor for tasks that are not in the log; its posterior is loaded at the first such task."""
    from hieropo.decisions.new_tasks import NewTasks
    from hieropo.rows.batches import Roles

    def load() -> tuple[Any, Any]:
        from hieropo.learners.loading import load_learner

        learner = load_learner(stored.path)
        return learner.posterior_, learner._task_levels

    columns = _columns(stored)
    return NewTasks.of(Roles(**columns), load) if columns else None


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
    from hieropo.decisions.deciding import decide, decide_candidates
    from hieropo.errors import InputError

    request, eligible, top, new_tasks = (given[name] for name in ("request", "eligible", "top", "new_tasks"))
    if policy.features is None:
        raise InputError(
            "This policy was saved without a feature map, so features of requests cannot be computed. Save it with its "
            "features, or use load_policy(...).policy.choose(task, phi=...) in Python."
        )
    if policy.features.actions is not None:
        return decide(
            policy, source, task=task, eligible=eligible, request=request, top=top, new_tasks=new_tasks
        )
    if request is None:
        usage_error(
            "This policy has no list of actions, so each row of the requests is a candidate. Give --request, the "
            "column with the id of the request, which tells the candidates of one request from the next."
        )
    if eligible is not None:
        usage_error(
            f"--eligible {eligible} needs a policy with a list of actions, and this one has none. Leave --eligible "
            "out, and the rows of actions that cannot be taken."
        )
    return decide_candidates(policy, source, task=task, request=request, top=top, new_tasks=new_tasks)


def _counted(decisions: Iterator[Any], counts: dict[str, Any]) -> Iterator[Any]:
    """Yield the tables of decisions, and add to ``counts``."""
    for part in decisions:
        counts["requests"] += part.requests
        counts["unseen"] += part.unseen
        counts["kept"] += part.kept
        yield part.table
