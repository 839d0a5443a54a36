"""``hieropo decide``: from requests to a file of decisions."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from hieropo._utils.text import counted
from hieropo.cli.console import Line, example, pessimism_options, print_json, shared_options, usage_error
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
    "-o", "--output", required=True, metavar="OUT.parquet", help="The file of decisions; replaced if there."
)
@click.option("--task", metavar="COL", help="Column that names the task. Default: as in the log.")
@eligible_options
@click.option(
    "--request", metavar="COL",
    help="Column with your own name of each request, kept in the output. Needed where the policy lists no "
    "actions: each row is then a candidate, and it says which rows belong together.",
)  # fmt: skip
@click.option(
    "--top", type=click.IntRange(min=1), default=1, show_default=True, metavar="K", help="Keep the best K."
)
@pessimism_options("as fitted")
@source_options
@shared_options
def decide_command(directory: str, requests: str, output: str, as_json: bool, **given: Any) -> None:  # noqa: FBT001
    """Choose an action for each row of REQUESTS, a file, folder or glob as of a log, with the policy in DIR.

    OUT.parquet has a row for each of the best actions of a request: row (of the request, from 0), the task,
    action, rank, lower_bound, mean and sd of its expected reward. Where the policy has a gate, kept_incumbent says
    which requests are left to the incumbent; action is then the incumbent's, or null where it is whatever acted before.
    """
    from hieropo.cli.progress_source import ProgressSource
    from hieropo.logs.arrow.writing import write_tables
    from hieropo.storage.load import load_policy

    if Path(requests).resolve() == Path(output).resolve():
        usage_error(f"The decisions would replace the requests, {requests}. Give another -o.")
    if Path(output).suffix.lower() in FOREIGN:
        usage_error(
            f"{output} is no name of a Parquet file, and decisions are written as Parquet. Give another -o."
        )
    named = eligible_of(given)
    stored = load_policy(directory)
    policy = _adjusted(stored.policy, given["pessimism"], given["level"])
    task = given["task"] or _columns(stored).get("task")
    if task is None:
        usage_error(f"The policy in {directory} does not say which column names the task. Give --task.")
    given["eligible"], given["new_tasks"] = _listed(stored, named), _new_tasks(stored)
    counts: dict[str, Any] = {"requests": 0, "unseen": 0, "kept": 0}
    with Line() as line:
        found = _decided(policy, ProgressSource(Rows.of(requests, given).open(), line), task, given)
        rows = write_tables(output, _counted(found, counts))
    if as_json:
        print_json(
            {"decisions": output, "rows": rows, "requests": counts["requests"],
             "requests_of_unseen_tasks": counts["unseen"], "kept_for_the_incumbent": counts["kept"]}
        )  # fmt: skip
        return
    click.echo(f"{output} holds {counted(rows, 'decision')} for {counted(counts['requests'], 'request')}.")
    if counts["kept"]:
        click.echo(f"Requests that the gate leaves to the incumbent: {counts['kept']:,}.")
    if counts["unseen"] and not hasattr(policy, "passes"):
        answer = (
            "the population's answer" if given["new_tasks"] is None else "that of their groups and metadata"
        )
        click.echo(f"Requests of tasks that the log did not have, which got {answer}: {counts['unseen']:,}.")


def _columns(stored: Any) -> dict[str, Any]:
    """Columns of the log by their roles; none where a policy was saved without them."""
    found: dict[str, Any] = stored.provenance.get("columns", {})
    return found


def _listed(stored: Any, named: Any) -> str | None:
    """Return the column of eligible actions of the requests: as it is named, else as the log had it."""
    from hieropo.rows.batches import column_of

    if stored.features is None or stored.features.actions is None:  # candidates are rows: those there are
        return named or None
    return column_of(named, getattr(stored.policy, "eligible", None) or _columns(stored).get("eligible"))


def _new_tasks(stored: Any) -> Any:
    """Return what is known of tasks that the log did not have; the posterior is made where one comes."""
    from hieropo.decisions.new_tasks import NewTasks
    from hieropo.learners.loading import load_learner
    from hieropo.rows.batches import Roles

    def known() -> tuple[Any, Any]:
        learner = load_learner(stored.path)
        return learner.posterior_, learner._task_levels

    columns = _columns(stored)
    return NewTasks.of(Roles(**columns), known) if columns else None


def _adjusted(policy: Any, pessimism: float | None, level: float | None) -> Any:
    if pessimism is None and level is None:
        return policy
    from hieropo.policies.gating import GatedPolicy
    from hieropo.policies.lower_bound import LCBPolicy

    if isinstance(policy, GatedPolicy):
        usage_error(
            f"This policy has a gate, judged at pessimism {policy.pessimism:.3g}. Leave --pessimism and --level out, "
            "or decide with the policy before its gate."
        )

    return LCBPolicy(policy.table, policy.features, pessimism=pessimism, level=level, unseen=policy.unseen)


def _decided(policy: Any, source: Any, task: str, given: dict[str, Any]) -> Iterator[Any]:
    from hieropo.decisions.deciding import decide, decide_candidates
    from hieropo.errors import InputError

    request, eligible, top, new_tasks = (given[name] for name in ("request", "eligible", "top", "new_tasks"))
    if policy.features is None:
        raise InputError(
            "This policy was saved without a feature map, so requests cannot be turned into features here. In "
            "Python: load_policy(...).policy.choose(task, phi=...); or save it with its features."
        )
    if policy.features.actions is not None:
        return decide(
            policy, source, task=task, eligible=eligible, request=request, top=top, new_tasks=new_tasks
        )
    if request is None:
        usage_error(
            "This policy lists no actions, so each row of the requests is a candidate. Give --request, the "
            "column that says which rows belong together."
        )
    if eligible is not None:
        usage_error("This policy lists no actions for --eligible; leave out the rows that cannot be chosen.")
    return decide_candidates(policy, source, task=task, request=request, top=top, new_tasks=new_tasks)


def _counted(decided: Iterator[Any], counts: dict[str, Any]) -> Iterator[Any]:
    for part in decided:
        counts["requests"] += part.requests
        counts["unseen"] += part.unseen
        counts["kept"] += part.kept
        yield part.table
