"""``hieropo fit``: from a log to a policy directory."""

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
from hieropo.cli.source import Rows, chosen_features, log_options, roles_of, source_options

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
    "-o", "--output", required=True, metavar="DIR", help="Where the policy goes; replaced if one is there."
)
@log_options
@click.option(
    "--algorithm", type=click.Choice(list(LEARNERS)), default="hier", show_default=True,
    help="hier shares strength between tasks, flat takes each alone, pooled takes all as one.",
)  # fmt: skip
@pessimism_options("0.1", cv=True)
@click.option(
    "--task-cov", type=click.Choice(["auto", "crossed", "full", "block", "diag", "isotropic"]), default="auto",
    show_default=True,
    help="Prior of the differences between tasks. crossed: level of a task, effect of an action, and their "
    "interaction, zero included; auto takes it where each action has coefficients of its own, else the evidence "
    "chooses. block has one full block for each action.",
)  # fmt: skip
@click.option(
    "--uncertainty", type=click.Choice(["auto", "integrated", "first-order", "plug-in"]), default="auto",
    show_default=True,
    help="How the uncertainty of the learned hierarchy enters the bounds. hier only.",
)  # fmt: skip
@click.option(
    "--logging", type=click.Choice(["unknown", "random", "frozen", "adaptive"]), default="unknown", show_default=True,
    help="How the log's actions were chosen: by chance alone; frozen: by something that knew the tasks but did not "
    "learn from these rows, so that how often it took an action is used; adaptive: by something that learned from "
    "them. hier only.",
)  # fmt: skip
@click.option(
    "--unseen", type=click.Choice(["prior", "error"]), default="prior", show_default=True,
    help="What a task that the log does not have gets later: the population's answer, or an error.",
)  # fmt: skip
@source_options
@rejects_options
@checkpoint_option
@shared_options
def fit_command(log: str, output: str, as_json: bool, **given: Any) -> None:  # noqa: FBT001 - click calls so
    """Learn a policy from LOG: a file of Parquet, CSV, JSON lines or Arrow, a folder of them, or a glob in quotes.

    LOG may also be moments that `hieropo moments` wrote; columns and features are then known.
    """
    import hieropo
    from hieropo.storage.layout import check_replaceable

    check_replaceable(Path(output))
    refuse_inside(log, given["checkpoint"])
    make = getattr(hieropo, LEARNERS[given["algorithm"]])
    features = chosen_features(given["features"])
    learner = make(
        features, pessimism=given["pessimism"], level=given["level"],
        task_cov=given["task_cov"], unseen=given["unseen"], **_hierarchical(given),
    )  # fmt: skip
    rows = Rows.of(log, given)
    with Line() as line:
        source, columns, told = _opened(rows, features, given, line)
        taking = {name: given[name] for name in ("lenient", "rejects", "checkpoint")}
        learner.fit(source, **columns, **taking)
        summary = learner.summary() if given["algorithm"] == "hier" else None
        about = {} if summary is None else {"summary": summary.to_dict()}
        path = learner.save(output, provenance={**rows.to_dict(), **about})
        done_with(given["checkpoint"])
    _report(learner, rows, path, output, summary, told, as_json=as_json)


def _opened(
    rows: Rows, features: Any, given: dict[str, Any], line: Line
) -> tuple[Any, dict[str, Any], list[str]]:
    """Open a log or moments: what is learned from, the columns by their roles, and what was guessed of them."""
    from hieropo.cli.progress_source import ProgressSource
    from hieropo.logs.bad_rows.rejects import check_listing
    from hieropo.passes.log_moments import as_moments
    from hieropo.rows.batches import Roles

    moments = as_moments(rows.place)
    if moments is not None:
        rows.refuse_options("moments, which have none")
        return moments, {role: given[role] for role in Roles.names() if role in given}, []
    check_listing(given["rejects"], rows.place)
    source = rows.open(lenient=takes_rejects(given))
    roles, told = roles_of(source.schema, features, given)
    return ProgressSource(source, line), roles.to_dict(), told


def _hierarchical(given: dict[str, Any]) -> dict[str, Any]:
    """Settings that only the hierarchical learner has."""
    settings = {name: given[name] for name in ("uncertainty", "logging")}
    if given["algorithm"] == "hier":
        return settings
    if settings != {"uncertainty": "auto", "logging": "unknown"}:
        usage_error("--uncertainty and --logging are for --algorithm hier.")
    return {}


def _report(
    learner: Any, rows: Rows, path: Path, output: str, summary: Any, told: list[str], *, as_json: bool
) -> None:
    from hieropo.passes.feature_choice import measured_from, origin_note

    moments, features = learner.moments_, learner.features_
    actions = None if features.actions is None else len(features.actions)
    found = {
        "policy": str(path), "learner": type(learner).__name__, "rows": whole(moments.n_rows), "tasks": len(moments),
        "features": features.dim, "actions": actions, "pessimism": learner.policy_.pessimism,
        "noise_sd": learner.noise_sd, "log_evidence": learner.posterior_.log_evidence,
        "columns": learner.roles_.to_dict(), "guesses": told,
        "rejected": None if learner.rejected_ is None else learner.rejected_.to_dict(),
        "measured_from": measured_from(features),
    }  # fmt: skip
    choice = getattr(learner, "pessimism_", None)
    if choice is not None:
        found["pessimism_choice"] = choice.to_dict()
    if as_json:
        print_json(found | {"summary": None if summary is None else summary.to_dict()})
        return
    note = origin_note(features)  # which a summary says, too
    listed = "candidates are described by columns" if actions is None else counted(actions, "action")
    click.echo(
        f"{found['learner']} learned from {_size(learner)} of {counted(len(moments), 'task')} in {rows}.\n"
        + ("" if learner.rejected_ is None else f"Set aside: {learner.rejected_.counted()}.\n")
        + f"The policy is in {output}: {listed}, {counted(features.dim, 'feature')}, "
        f"acting on mean - {learner.policy_.pessimism:.3g} sd.\n\n"
        + (f"{paragraph(note)}\n\n" if summary is None and note else "")
        + ("" if choice is None else f"{choice}\n\n")
        + ("" if summary is None else f"{summary}\n\n")
        + _next(learner, rows, output)
    )


def _size(learner: Any) -> str:
    """Say how many rows a learner saw, and how many these stand for where chance kept them of more."""
    moments = learner.moments_
    if not moments.sampled:
        return counted(moments.n_rows, "row")
    effective = moments.sums[:, -1].sum() ** 2 / moments.squares[:, -1].sum()
    return (
        f"rows that chance kept, which stand for {counted(round(moments.n_rows), 'row')} (effective rows: "
        f"{effective:,.0f}, design effect: {learner.posterior_.design:.3g}),"
    )


def _next(learner: Any, rows: Rows, output: str) -> str:
    """Commands that use the policy, as they can be given."""
    from hieropo.storage.moments import holds_moments

    policy, rejected = shlex.quote(output), learner.rejected_
    log = "LOG.parquet" if holds_moments(rows.place) else rows.words()
    aside = " --lenient" if rejected is not None and (rejected.rows or rejected.texts) else ""
    listed = learner.features_.actions is not None
    found = [f"inspect {policy}"]
    found += (
        [f"evaluate {policy} {log}{aside}"] if listed else []
    )  # else the log does not say what else could be done
    found += [f"decide {policy} REQUESTS.parquet -o decisions.parquet{'' if listed else ' --request COL'}"]
    return "\n".join(f"{'Next:' if not k else '     '} hieropo {each}" for k, each in enumerate(found))
