"""``hieropo evaluate``: the value of a policy on a log, its gain over the logging policy, and the harm of tasks."""

import shlex
from math import isinf
from pathlib import Path
from typing import Any

import click

from hieropo._utils.text import table
from hieropo.cli.console import (
    Line,
    example,
    print_json,
    probability,
    rejects_options,
    shared_options,
    takes_rejects,
    usage_error,
)
from hieropo.cli.source import Rows, eligible_of, eligible_options, source_options

FORMATS = (".parquet", ".pq")
_SETTINGS = (
    "pscore",
    "propensities",
    "time",
    "level",
    "seed",
    "max_harm",
    "show_all",
    "lenient",
    "rejects",
)


def _policies_by_name(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Split each ``NAME=POLICY``."""
    policies = {}
    for text in values:
        name, sign, policy = text.partition("=")
        if not (sign and name and policy):
            usage_error(f"--compare {text} is not NAME=POLICY. Write today=actions.csv, for example.")
        policies[name] = policy
    return policies


@click.command(
    "evaluate",
    short_help="Estimate the value of a policy, and the tasks it would harm.",
    epilog=example(
        "hieropo evaluate policy log.parquet",
        "hieropo evaluate policy log.parquet --per-task tasks.parquet --gate gated --max-harm 0.05",
    ),
)
@click.argument("directory", metavar="DIR")
@click.argument("log", type=str)
@click.option(
    "--pscore", metavar="COL", help="Column of logged propensities. Default: that of the log of the fit."
)
@click.option(
    "--propensities", type=click.Choice(["auto", "logged", "estimated", "none"]), default="auto", show_default=True,
    help="Propensities of the logging policy for importance-weighted (IPS, DR) estimates. auto: the logged ones where "
    "there is a column of them, else estimates from the frequencies of actions. none: estimate by the model alone.",
)  # fmt: skip
@eligible_options
@click.option(
    "--time", metavar="COL",
    help="Column of the time of the choice. Default: that of the log of the fit, where this log has it. Without an "
    "order in time it cannot be tested whether the logging policy learned from these rows.",
)  # fmt: skip
@click.option(
    "--per-task",
    metavar="FILE.parquet",
    help="Write a table with a row for each task; replaced if it exists.",
)
@click.option(
    "--gate",
    metavar="DIR",
    help="Save the policy with a gate to this directory. It then acts only for tasks where harm is unlikely.",
)
@click.option(
    "--max-harm", type=float, default=0.05, show_default=True, callback=probability, metavar="P",
    help="Largest probability of harm, P(gain of the task < 0), with which a task passes the gate.",
)  # fmt: skip
@click.option(
    "--incumbent",
    metavar="ACTION",
    help="The action for tasks that do not pass the gate, where the incumbent (the logging policy) always takes one.",
)
@click.option(
    "--level",
    type=float,
    default=0.95,
    show_default=True,
    callback=probability,
    metavar="P",
    help="Probability of intervals.",
)
@click.option(
    "--epsilon", type=click.FloatRange(min=0, min_open=True), metavar="E",
    help="Estimate how many more rows the least certain tasks need until their policy is within E of the best one.",
)  # fmt: skip
@click.option(
    "--compare", multiple=True, metavar="NAME=POLICY", callback=_policies_by_name,
    help="Evaluate this policy on the same rows: the directory of a policy, a file with a row for each task and its "
    "action, or one action. May be given several times. Default: one action for all, one regression for all tasks "
    "(pooled), and one regression for each task (separate).",
)  # fmt: skip
@click.option("--no-compare", is_flag=True, help="Do not compare with other policies.")
@click.option(
    "--show-all", is_flag=True, help="Also show estimates that are withheld because they are unreliable."
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of random folds and draws."
)
@source_options
@rejects_options
@shared_options
def evaluate_command(directory: str, log: str, as_json: bool, **given: Any) -> None:  # noqa: FBT001
    """Evaluate the policy in DIR on LOG, a file, folder or glob with the columns of the log of the fit.

    The first sentence is the verdict: LOG shows a gain over the incumbent (the logging policy), no gain, or a loss, by
    the doubly robust estimate, cross-fitted where the policy was learned from these rows. Then follow randomisation
    tests of an effect of actions; the gain by the model, and its agreement with the first; values by the model and by
    importance-weighted (IPS, DR) estimates;
    comparisons with simpler policies; the tasks that the policy would harm; and the limits of these estimates.
    """
    from hieropo.learners.loading import load_evaluable
    from hieropo.logs.arrow.progress_source import ProgressSource
    from hieropo.logs.bad_rows.rejects import check_listing

    check_listing(given["rejects"], log)
    _check(given)
    learner = load_evaluable(directory)
    incumbent = _action(learner.features_, given["incumbent"])
    if given["no_compare"] and given["compare"]:
        usage_error("--no-compare and --compare contradict each other. Give one of them.")
    settings = {name: given[name] for name in _SETTINGS} | {"eligible": eligible_of(given)}
    settings["compare"] = _compared(given, learner.features_)
    rows, lenient = Rows.of(log, given), takes_rejects(given)
    with Line() as line:
        source = ProgressSource(rows.open_for(learner.features_, rereadable=True, lenient=lenient), line)
        evaluation = learner.evaluate(source, **settings)
    epsilon = given["epsilon"]
    rows_needed = {} if epsilon is None else evaluation.rows_needed(epsilon, seed=given["seed"])
    written: dict[str, str] = {}
    if given["per_task"] is not None:
        written["per_task"] = _write_tasks(evaluation, given["per_task"])
    if given["gate"] is not None:
        gated = evaluation.gate(incumbent=incumbent)
        written["gate"] = str(
            learner.save(given["gate"], policy=gated, provenance={"gated_on": rows.to_dict()})
        )
    if as_json:
        listed = [{"task": task, "rows": None if isinf(n) else n} for task, n in rows_needed.items()]
        more = {"epsilon": epsilon, "rows_needed": listed} if rows_needed else {}
        print_json(
            {"policy": directory, **rows.to_dict(), **evaluation.to_dict(), **more, "written": written}
        )
        return
    click.echo(f"{directory} on {rows}\n\n{evaluation}")
    if rows_needed:
        head = [
            "least certain task",
            f"more rows until its policy is within {epsilon:g} of the best",
        ]
        click.echo("\n" + table([head, *([str(task), _rows(n)] for task, n in rows_needed.items())]))
    if "per_task" in written:
        click.echo(f"\n{given['per_task']} holds a row for each task.")
    if "gate" in written:
        click.echo(
            f"\nThe policy with its gate is in {given['gate']}.\n"
            f"Next: hieropo decide {shlex.quote(given['gate'])} REQUESTS.parquet -o decisions.parquet"
        )


def _check(given: dict[str, Any]) -> None:
    """Refuse outputs that cannot be written before a long pass over the log."""
    from hieropo.storage.layout import check_replaceable

    if given["per_task"] is not None and Path(given["per_task"]).suffix.lower() not in FORMATS:
        usage_error(
            f"--per-task {given['per_task']} is not the name of a Parquet file, and the table is written as Parquet. "
            "Give another name."
        )
    if given["incumbent"] is not None and given["gate"] is None:
        usage_error(
            f"--incumbent {given['incumbent']} is the action for tasks that do not pass a gate, and there is no gate. "
            "Give --gate, or leave --incumbent out."
        )
    if given["gate"] is not None:
        check_replaceable(Path(given["gate"]))


def _compared(given: dict[str, Any], features: Any) -> Any:
    """Return the policies to compare with: actions by their ids, files and policies by their paths."""
    if given["no_compare"] or not given["compare"]:
        return not given["no_compare"]
    actions = {str(action): action for action in features.actions or ()}
    for name, policy in given["compare"].items():
        if policy not in actions and not Path(policy).exists():
            usage_error(
                f"--compare {name}={policy}: {policy} is not a file, a directory or one of the actions "
                f"{', '.join(list(actions)[:10])}. Check its spelling."
            )
    return {name: actions.get(policy, policy) for name, policy in given["compare"].items()}


def _rows(number: float) -> str:
    return "more than any number" if isinf(number) else f"{number:,.0f}"


def _write_tasks(evaluation: Any, path: str) -> str:
    from hieropo.logs.arrow.writing import write_tables

    write_tables(path, [evaluation.per_task().table])
    return path


def _action(features: Any, text: str | None) -> Any:
    """Return the action whose id reads as this text."""
    if text is None:
        return None
    if features is None or features.actions is None:
        usage_error(
            f"--incumbent {text} names an action, and the feature map of this policy has no list of actions. Leave "
            "--incumbent out, and hand in the incumbent's actions from Python: evaluation.gate(incumbent=...)."
        )
    by_text = {str(action): action for action in features.actions}
    if text not in by_text:
        usage_error(
            f"--incumbent {text} is not an action of the policy, which has {', '.join(list(by_text)[:10])}. Give one "
            "of these."
        )
    return by_text[text]
