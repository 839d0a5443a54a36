"""``hieropo evaluate``: what a policy is worth on a log, and whom it would hurt."""

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


def _named(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """Split ``NAME=POLICY``."""
    found = {}
    for text in given:
        name, sign, policy = text.partition("=")
        if not (sign and name and policy):
            usage_error(f"--compare {text}: a name and a policy are needed, such as today=actions.csv.")
        found[name] = policy
    return found


@click.command(
    "evaluate",
    short_help="Say what a policy is worth, and whom it would hurt.",
    epilog=example(
        "hieropo evaluate policy log.parquet",
        "hieropo evaluate policy log.parquet --per-task tasks.parquet --gate gated --max-harm 0.05",
    ),
)
@click.argument("directory", metavar="DIR")
@click.argument("log", type=str)
@click.option(
    "--pscore", metavar="COL", help="Column of logged propensities. Default: as in the log of the fit."
)
@click.option(
    "--propensities", type=click.Choice(["auto", "logged", "estimated", "none"]), default="auto", show_default=True,
    help="auto: logged where there is a column of them, else estimated from how often each action was taken. none: "
    "judge by the model alone.",
)  # fmt: skip
@eligible_options
@click.option(
    "--time", metavar="COL",
    help="Column that says when the action was chosen. Default: as in the log of the fit, where this log has it. Only "
    "an order in time tells whether the incumbent learned from these rows.",
)  # fmt: skip
@click.option("--per-task", metavar="FILE.parquet", help="Write a row for each task; replaced if there.")
@click.option(
    "--gate", metavar="DIR", help="Save the policy with a gate here: it acts only where its harm is unlikely."
)
@click.option(
    "--max-harm", type=float, default=0.05, show_default=True, callback=probability, metavar="P",
    help="Probability of harm up to which a task passes the gate.",
)  # fmt: skip
@click.option(
    "--incumbent", metavar="ACTION", help="The action that the incumbent always takes, for the gate."
)
@click.option(
    "--level",
    type=float,
    default=0.95,
    show_default=True,
    callback=probability,
    metavar="P",
    help="Of intervals.",
)
@click.option(
    "--epsilon", type=click.FloatRange(min=0, min_open=True), metavar="E",
    help="Say how many more rows the least certain tasks need until the best policy is better than theirs by less.",
)  # fmt: skip
@click.option(
    "--compare", multiple=True, metavar="NAME=POLICY", callback=_named,
    help="Judge this policy on the same rows, too: the directory of a policy, a file with a row for each task and its "
    "action, or one action. May be given again. Shown without it: one action for all, a pooled regression, one for "
    "each task.",
)  # fmt: skip
@click.option("--no-compare", is_flag=True, help="Compare with nothing.")
@click.option("--show-all", is_flag=True, help="Show estimates that cannot be trusted too.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of folds and draws.")
@source_options
@rejects_options
@shared_options
def evaluate_command(directory: str, log: str, as_json: bool, **given: Any) -> None:  # noqa: FBT001
    """Judge the policy in DIR on LOG, a file, folder or glob with the columns of the log that it was fitted to.

    The first sentence says what the log shows: a gain over the incumbent that made it, none, or a loss, by the
    cross-fitted doubly robust estimate. Then come randomisation tests of whether actions have an effect; the model's
    own figure, and whether it agrees; values by the model and by weighted rewards; what a sceptic would do instead; the
    tasks that the policy would hurt; and what limits trust.
    """
    from hieropo.cli.progress_source import ProgressSource
    from hieropo.learners.loading import load_learner
    from hieropo.logs.bad_rows.rejects import check_listing

    check_listing(given["rejects"], log)
    _check(given)
    learner = load_learner(directory)
    incumbent = _action(learner.features_, given["incumbent"])
    if given["no_compare"] and given["compare"]:
        usage_error("--no-compare leaves out what --compare names. Give one of them.")
    settings = {name: given[name] for name in _SETTINGS} | {"eligible": eligible_of(given)}
    settings["compare"] = _compared(given, learner.features_)
    rows, aside = Rows.of(log, given), takes_rejects(given)
    with Line() as line:
        found = learner.evaluate(ProgressSource(rows.open(rereadable=True, lenient=aside), line), **settings)
    needed = {} if given["epsilon"] is None else found.rows_needed(given["epsilon"], seed=given["seed"])
    written: dict[str, str] = {}
    if given["per_task"] is not None:
        written["per_task"] = _write_tasks(found, given["per_task"])
    if given["gate"] is not None:
        gated = found.gate(incumbent=incumbent)
        written["gate"] = str(
            learner.save(given["gate"], policy=gated, provenance={"gated_on": rows.to_dict()})
        )
    if as_json:
        listed = [{"task": task, "rows": None if isinf(n) else n} for task, n in needed.items()]
        more = {"epsilon": given["epsilon"], "rows_needed": listed} if needed else {}
        print_json({"policy": directory, **rows.to_dict(), **found.to_dict(), **more, "written": written})
        return
    click.echo(f"{directory} on {rows}\n\n{found}")
    if needed:
        head = [
            "least certain",
            "more rows until the best policy is better by less than " + f"{given['epsilon']:g}",
        ]
        click.echo("\n" + table([head, *([str(task), _rows(n)] for task, n in needed.items())]))
    if "per_task" in written:
        click.echo(f"\n{given['per_task']} holds a row for each task.")
    if "gate" in written:
        click.echo(
            f"\nThe policy with its gate is in {given['gate']}.\n"
            f"Next: hieropo decide {shlex.quote(given['gate'])} REQUESTS.parquet -o decisions.parquet"
        )


def _check(given: dict[str, Any]) -> None:
    """Refuse what cannot be written before a long pass over the log."""
    from hieropo.storage.layout import check_replaceable

    if given["per_task"] is not None and Path(given["per_task"]).suffix.lower() not in FORMATS:
        usage_error(
            f"{given['per_task']} is no name of a Parquet file, and that is what is written. Give another name."
        )
    if given["incumbent"] is not None and given["gate"] is None:
        usage_error("--incumbent is for --gate: it is what acts where the gate holds the policy back.")
    if given["gate"] is not None:
        check_replaceable(Path(given["gate"]))


def _compared(given: dict[str, Any], features: Any) -> Any:
    """Return what to compare with: actions by their ids, files and policies by their paths."""
    if given["no_compare"] or not given["compare"]:
        return not given["no_compare"]
    actions = {str(action): action for action in features.actions or ()}
    for name, what in given["compare"].items():
        if what not in actions and not Path(what).exists():
            usage_error(
                f"--compare {name}={what}: {what} is no file, no directory and none of the actions "
                f"{', '.join(list(actions)[:10])}."
            )
    return {name: actions.get(what, what) for name, what in given["compare"].items()}


def _rows(number: float) -> str:
    return "no number" if isinf(number) else f"{number:,.0f}"


def _write_tasks(found: Any, path: str) -> str:
    from hieropo.logs.arrow.writing import id_column, write_tables

    columns = found.per_task()
    write_tables(
        path, [{name: id_column(values) if name == "task" else values for name, values in columns.items()}]
    )
    return path


def _action(features: Any, text: str | None) -> Any:
    """Find the action that is written like this."""
    if text is None:
        return None
    named = {str(action): action for action in features.actions}
    if text not in named:
        usage_error(f"--incumbent {text}: the policy has the actions {', '.join(list(named)[:10])}.")
    return named[text]
