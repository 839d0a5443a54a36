"""``hieropo explain``: say why a policy chooses an action in a task."""

from dataclasses import replace
from typing import Any

import click

from hieropo.cli.commands.inspect import context_values, numbers_at
from hieropo.cli.console import example, print_json, shared_options, usage_error
from hieropo.cli.source import Rows, source_options


@click.command(
    "explain",
    short_help="Explain the choice of a policy in a task.",
    epilog=example(
        "hieropo explain policy --task 17",
        "hieropo explain policy --task 17 --at visits=3,basket=40",
        "hieropo explain policy --task 17 --log log.parquet",
        "hieropo explain policy --task 17 --html why.html",
    ),
)
@click.argument("directory", metavar="DIR")
@click.option(
    "--task", metavar="ID", required=True, multiple=True,
    help="A task; one that is not in the log is explained as a task without rows. Where several columns name a task, "
    "give one ID for each.",
)  # fmt: skip
@click.option(
    "--at", metavar="A=1,B=2", callback=context_values, multiple=True,
    help="The context: all columns that the policy reads, in one --at or several. Default: the mean context of the "
    "task's rows. Where the policy has no list of actions, each --at is a candidate.",
)  # fmt: skip
@click.option(
    "--moments", metavar="PATH",
    help="Moments (`hieropo moments`) or the log that the policy was learned from. Needed where DIR does not hold "
    "them.",
)  # fmt: skip
@click.option(
    "--log", metavar="LOG",
    help="The log that the policy was learned from, all of it. Names the rows that change the answer most, each with "
    "the answer without it.",
)  # fmt: skip
@click.option(
    "--lenient", is_flag=True, help="Set unusable rows of LOG aside, as in `hieropo fit --lenient`."
)
@source_options
@click.option("--html", metavar="FILE.html", help="Write the explanation to this file, too.")
@shared_options
def explain_command(
    directory: str,
    task: tuple[str, ...],
    at: tuple[dict[str, str], ...],
    moments: str | None,
    html: str | None,
    as_json: bool,  # noqa: FBT001
    **of_log: Any,
) -> None:
    """Explain the choice of the policy in DIR in one task: the rival, the lead, and what would turn the choice.

    The expected reward is split into the shares of the prior, of the task's own rows and of the rows of other tasks,
    which add to it exactly. For the most influential tasks, and with --log for the most influential rows, the answer
    without them is shown.
    """
    from hieropo.cli.summaries import task_or_new
    from hieropo.estimation.conditioning import with_task
    from hieropo.explanation import explain
    from hieropo.learners.loading import load_posterior
    from hieropo.report.page import write_page

    stored, posterior = load_posterior(directory, moments)
    task_id = task_or_new(stored.policy.table.keys, task)
    assert stored.hierarchy is not None  # load_posterior refuses a policy without
    posterior = with_task(posterior, stored.hierarchy, stored.hyper_uncertainty, task_id)
    features: Any = stored.features
    candidates = _candidates(features, at)
    log = _log_of_fit(stored, of_log)
    explanation = explain(posterior, stored.policy, task_id, _context(features, candidates), log=log)
    if candidates and features.actions is not None:
        explanation = replace(explanation, context=candidates[0])
    if html is not None:
        write_page(explanation.document(), html)
    if as_json:
        print_json({"policy": directory, **explanation.to_dict(), "written": html})
        return
    click.echo(str(explanation))
    if html is not None:
        click.echo(f"\n{html} holds the explanation. Open it in a browser.")


def _log_of_fit(stored: Any, given: dict[str, Any]) -> Any:
    """Return the log of the fit with its roles; None without one."""
    import numpy as np

    from hieropo.explanation import LogOfFit
    from hieropo.logs.bad_rows.rejects import rejects_for
    from hieropo.rows.batches import Roles

    place, lenient = given.pop("log"), given.pop("lenient")
    if place is None:
        if lenient or any(given.values()):
            usage_error(
                "--lenient, --filter, --sql and --type are for the rows of --log. Give --log, or leave them out."
            )
        return None
    columns = stored.provenance.get("columns")
    if columns is None:
        usage_error(
            f"{stored.path} does not name the columns of its log, so that the rows of --log cannot be read. Fit again "
            "with `hieropo fit`, or leave --log out."
        )
    rejects = rejects_for(place, lenient=lenient, file=None, features=stored.features)
    source = Rows.of(place, given).open_for(stored.features, lenient=lenient)
    correlation = stored.provenance.get("cluster_correlation")
    return LogOfFit(source, Roles(**columns), rejects, None if correlation is None else np.array(correlation))


def _candidates(features: Any, given: tuple[dict[str, str], ...]) -> tuple[dict[str, str], ...]:
    """Return one context where the policy has a list of actions, given by one --at or several; else all of them."""
    if features.actions is None or not given:
        return given
    context: dict[str, str] = {}
    for values in given:
        for name, value in values.items():
            if context.setdefault(name, value) != value:
                usage_error(
                    f"--at gives {name} the values {context[name]!r} and {value!r}. This policy has a list of actions, "
                    f"so that a choice has one context. Give {name} once."
                )
    return (context,)


def text_values(columns: Any, texts: dict[str, str]) -> dict[str, Any]:
    """Return the values of context columns that are written as text; an empty text is a missing value."""
    values: dict[str, Any] = dict(texts)
    for column in columns:
        text = texts[column.name].strip()
        if not text:
            values[column.name] = None
        elif column.kind == "number":
            values[column.name] = float(text)
        elif column.kind == "boolean":
            values[column.name] = text.lower() in ("true", "1")
    return values


def _context(features: Any, candidates: tuple[dict[str, str], ...]) -> Any:
    """Return the context, or one row for each candidate; None where --at is not given."""
    if not candidates:
        return None
    numbers = tuple(numbers_at(features, one) for one in candidates)
    if features.actions is not None:
        terms = getattr(features, "terms", None)
        if terms is not None and set(candidates[0]) == set(terms.sources):
            return text_values(terms.columns, candidates[0])
        return numbers[0]
    columns = list(features.columns)
    for candidate in numbers:
        if set(candidate) != set(columns):
            usage_error(
                f"--at names {sorted(candidate)}, and a candidate has the columns {columns}. Give each of these."
            )
    return [[candidate[column] for column in columns] for candidate in numbers]
