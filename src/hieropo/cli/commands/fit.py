"""``hieropo fit``: learn a policy from a log, and save it to a directory."""

import shlex
from pathlib import Path
from typing import Any

import click

from hieropo._utils.text import counted, paragraph, whole
from hieropo.cli.console import (
    Line,
    checkpoint_option,
    done_with,
    example,
    pessimism_options,
    print_json,
    refuse_inside,
    rejects_options,
    shared_options,
    takes_rejects,
    usage_error,
)
from hieropo.cli.source import Rows, chosen_features, log_options, note_of_unused, roles_of, source_options


def _task_kinds(_: click.Context, __: click.Parameter, value: str) -> str | int:
    """Return the setting ``task_kinds``: a word, or a number."""
    from hieropo.errors import InputError
    from hieropo.estimation.crossed.kinds import check_task_kinds

    setting = int(value) if value.isdecimal() else value
    try:
        check_task_kinds(setting)
    except InputError as error:
        raise click.BadParameter(str(error)) from error
    return setting


LEARNERS = {"hier": "HierOPO", "flat": "FlatOPO", "pooled": "PooledOPO"}


@click.command(
    "fit",
    short_help="Learn a policy from a log.",
    epilog=example(
        "hieropo fit log.parquet -o policy",
        "hieropo fit log.parquet -o policy --task store --action offer --reward profit --context visits",
        "hieropo fit moments -o policy",
    ),
)
@click.argument("log", type=str)
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="DIR",
    help="Directory of the policy; a policy in it is replaced.",
)
@log_options
@click.option(
    "--algorithm", type=click.Choice(list(LEARNERS)), default="hier", show_default=True,
    help="hier: a hierarchical model, which shares between tasks. flat: every task by itself. pooled: one model for "
    "all tasks.",
)  # fmt: skip
@pessimism_options("0.1", cv=True)
@click.option(
    "--task-cov", type=click.Choice(["auto", "crossed", "full", "block", "diag", "isotropic"]), default="auto",
    show_default=True,
    help="Structure of the covariance between tasks. crossed: level of a task, effect of an action, and their "
    "interaction, each possibly zero. block: one full block for each action. auto: crossed where each action has "
    "coefficients of its own, else the structure with the largest evidence.",
)  # fmt: skip
@click.option(
    "--uncertainty", type=click.Choice(["auto", "integrated", "first-order", "plug-in"]), default="auto",
    show_default=True,
    help="How the uncertainty of the estimated hyper-parameters enters the lower bounds: by a mixture over their "
    "posterior, by a first-order correction, or not at all. With --algorithm hier only.",
)  # fmt: skip
@click.option(
    "--logging", type=click.Choice(["unknown", "random", "frozen", "adaptive"]), default="unknown", show_default=True,
    help="How the logging policy (the incumbent) chose. random: independently of what it knew of the tasks. frozen: by "
    "knowledge of the tasks from before the log; how often it took an action then carries this knowledge, and is used. "
    "adaptive: it learned from these rows. unknown: frozen where the log's own tests, which need --time, say so. With "
    "--algorithm hier only.",
)  # fmt: skip
@click.option(
    "--spreads", type=click.Choice(["auto", "one"]), default="auto", show_default=True,
    help="Spread between tasks of the effects of actions. auto: none, usual or large in each task, where the Bayes "
    "factor of these spreads against one is above 10, and unequal noise explains the rewards less well. one: the same "
    "for all tasks. With --algorithm hier only.",
)  # fmt: skip
@click.option(
    "--likelihood", type=click.Choice(["gaussian", "robust", "two-part", "auto"]), default="gaussian",
    show_default=True,
    help="Distribution of the rewards given their mean. robust: Student-t errors, for rewards with heavy tails on both "
    "sides. two-part: one model of whether a reward is above 0, and one of the logarithm of rewards above 0, for "
    "rewards such as revenue. auto: two-part where most rewards are 0 and the others are skewed amounts; else robust "
    "where errors are symmetric and the log clearly prefers it; else gaussian. With --algorithm hier only.",
)  # fmt: skip
@click.option(
    "--task-kinds", default="auto", show_default=True, metavar="auto|one|NUMBER", callback=_task_kinds,
    help="Kinds of tasks, each with effects of actions of its own. auto: several kinds where their Bayes factor "
    "against one kind is above 10, and above that of different spreads. one: all tasks vary around one mean. A number "
    "from 2 to 6: that many kinds. With --algorithm hier only.",
)  # fmt: skip
@click.option(
    "--drift", type=click.Choice(["auto", "none"]), default="auto", show_default=True,
    help="Drift of coefficients in time. auto: older rows count less where --time names a column and the Bayes factor "
    "of drift is above 10; from 1 to 10 the fit averages over drift and none. none: coefficients are constant in time. "
    "With --algorithm hier only.",
)  # fmt: skip
@click.option(
    "--unseen", type=click.Choice(["prior", "error"]), default="prior", show_default=True,
    help="Behaviour for tasks that are not in the log: act on the prior of the population, or raise an error.",
)  # fmt: skip
@source_options
@rejects_options
@checkpoint_option
@shared_options
def fit_command(log: str, output: str, as_json: bool, **given: Any) -> None:  # noqa: FBT001 - click calls so
    """Learn a policy from LOG: a file of Parquet, CSV, JSON lines or Arrow, a folder of them, or a glob in quotes.

    LOG may also be a directory of moments that `hieropo moments` wrote, which hold the columns and features.
    """
    import hieropo
    from hieropo.storage.layout import check_replaceable

    check_replaceable(Path(output))
    refuse_inside(log, given["checkpoint"])
    learner_class = getattr(hieropo, LEARNERS[given["algorithm"]])
    features = chosen_features(given["features"])
    learner = learner_class(
        features, pessimism=given["pessimism"], level=given["level"],
        task_cov=given["task_cov"], unseen=given["unseen"], **_hier_settings(given),
    )  # fmt: skip
    rows = Rows.of(log, given)
    with Line() as line:
        source, columns, guesses = _opened(rows, features, given, line)
        options = {name: given[name] for name in ("lenient", "rejects", "checkpoint")}
        learner.fit(source, **columns, **options)
        summary = learner.summary() if given["algorithm"] == "hier" else None
        more = {} if summary is None else {"summary": summary.to_dict()}
        path = learner.save(output, provenance={**rows.to_dict(), **more})
        done_with(given["checkpoint"])
    unused = note_of_unused(source, learner.roles_, features)
    _report(learner, rows, path, output, summary, guesses, unused, as_json=as_json)


def _opened(
    rows: Rows, features: Any, given: dict[str, Any], line: Line
) -> tuple[Any, dict[str, Any], list[str]]:
    """Open a log or moments; return it with its columns by role and the guesses among them."""
    from hieropo.logs.arrow.progress_source import ProgressSource
    from hieropo.logs.bad_rows.rejects import check_listing
    from hieropo.passes.log_moments import as_moments
    from hieropo.passes.sharded import as_shards
    from hieropo.rows.batches import Roles

    moments = as_shards(rows.place) or as_moments(rows.place)
    if moments is not None:
        rows.refuse_options()
        return moments, {role: given[role] for role in Roles.names() if role in given}, []
    check_listing(given["rejects"], rows.place)
    source = rows.open(lenient=takes_rejects(given))
    roles, guesses = roles_of(source.schema, features, given)
    return ProgressSource(source, line), roles.to_dict(), guesses


def _hier_settings(given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that only the hierarchical learner has."""
    settings = {name: given[name] for name in _HIER}
    if given["algorithm"] == "hier":
        return {**settings, "drift": None if given["drift"] == "none" else "auto"}
    if settings != _HIER:
        usage_error(
            "--uncertainty, --logging, --spreads, --likelihood, --task-kinds and --drift are settings of --algorithm "
            f"hier, and {given['algorithm']} has none of them. Leave them out."
        )
    return {}


_HIER = {
    "uncertainty": "auto",
    "logging": "unknown",
    "spreads": "auto",
    "likelihood": "gaussian",
    "task_kinds": "auto",
    "drift": "auto",
}


def _report(
    learner: Any,
    rows: Rows,
    path: Path,
    output: str,
    summary: Any,
    guesses: list[str],
    unused: str,
    *,
    as_json: bool,
) -> None:
    from hieropo.passes.feature_choice import features_note, measured_from

    moments, features = learner.moments_, learner.features_
    actions = None if features.actions is None else len(features.actions)
    report = {
        "policy": str(path), "learner": type(learner).__name__, "rows": whole(moments.n_rows), "tasks": len(moments),
        "features": features.dim, "actions": actions, "pessimism": learner.policy_.pessimism,
        "noise_sd": learner.noise_sd, "log_evidence": learner.posterior_.log_evidence,
        "columns": learner.roles_.to_dict(), "guesses": guesses,
        "rejected": None if learner.rejected_ is None else learner.rejected_.to_dict(),
        "measured_from": measured_from(features),
    }  # fmt: skip
    choice = getattr(learner, "pessimism_", None)
    if choice is not None:
        report["pessimism_choice"] = choice.to_dict()
    if as_json:
        print_json(report | {"summary": None if summary is None else summary.to_dict()})
        return
    note = features_note(features)  # a summary has this note too
    listed = "candidates described by columns" if actions is None else counted(actions, "action")
    click.echo(
        f"{report['learner']} learned from {_size(learner)} of {counted(len(moments), 'task')} in {rows}.\n"
        + ("" if learner.rejected_ is None else f"Set aside: {learner.rejected_.counted()}.\n")
        + f"The policy is in {output}: {listed}, {counted(features.dim, 'feature')}. "
        f"It chooses by the lower bound mean - {learner.policy_.pessimism:.3g} sd.\n\n"
        + (f"{paragraph(note)}\n\n" if summary is None and note else "")
        + ("" if choice is None else f"{choice}\n\n")
        + ("" if summary is None else f"{summary}\n\n")
        + (f"{paragraph(unused)}\n\n" if unused else "")
        + _next(learner, rows, output)
    )


def _size(learner: Any) -> str:
    """Return the number of rows as text; for a sampled log, the number that they represent and the design effect."""
    moments = learner.moments_
    if not moments.sampled:
        return counted(moments.n_rows, "row")
    effective = moments.sums[:, -1].sum() ** 2 / moments.squares[:, -1].sum()
    return (
        f"a random sample that represents {counted(round(moments.n_rows), 'row')} (effective sample size "
        f"{effective:,.0f}, design effect {learner.posterior_.design:.3g})"
    )


def _next(learner: Any, rows: Rows, output: str) -> str:
    """Return the next commands, which use the policy."""
    from hieropo.passes.sharded import holds_shards
    from hieropo.storage.moments import holds_moments

    policy, rejected = shlex.quote(output), learner.rejected_
    log = "LOG.parquet" if holds_moments(rows.place) or holds_shards(rows.place) else rows.words()
    lenient = " --lenient" if rejected is not None and (rejected.rows or rejected.texts) else ""
    has_actions = learner.features_.actions is not None
    commands = [f"inspect {policy}"]
    if has_actions:  # else the log does not list the candidates that were not taken
        commands.append(f"evaluate {policy} {log}{lenient}")
    request = "" if has_actions else " --request COL"
    commands.append(f"decide {policy} REQUESTS.parquet -o decisions.parquet{request}")
    return "\n".join(f"{'     ' if k else 'Next:'} hieropo {command}" for k, command in enumerate(commands))
