"""``hieropo fit``: from a log to a policy directory."""

import json
from pathlib import Path
from typing import Any

import click

from hieropo.cli.console import example, names, pessimism_options, print_json, shared_options, usage_error
from hieropo.cli.progress import Line, Watched
from hieropo.text import counted

MAPS = ("per-action", "indicator", "columns")
LEARNERS = {"hier": "HierOPO", "flat": "FlatOPO", "pooled": "PooledOPO"}


def _features(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is None or value in MAPS or value.endswith(".json"):
        return value
    raise click.BadParameter(
        f"{value!r} is none of {', '.join(MAPS)}, nor a .json file that holds a feature map."
    )


@click.command(
    "fit",
    short_help="Learn a policy from a log.",
    epilog=example(
        "hieropo fit log.parquet -o policy",
        "hieropo fit log.parquet -o policy --task store --action offer --reward profit --context visits",
    ),
)
@click.argument("log", type=str)
@click.option(
    "-o", "--output", required=True, metavar="DIR", help="Where the policy goes; replaced if one is there."
)
@click.option("--task", metavar="COL", help="Column that names the task: the unit with its own policy.")
@click.option("--reward", metavar="COL", help="Column of rewards; larger is better.")
@click.option(
    "--action", metavar="COL", help="Column of actions. Without one the context describes the action taken."
)
@click.option("--context", metavar="A,B,C", callback=names, help="Columns known before the action, numbers.")
@click.option("--pscore", metavar="COL", help="Column of logged propensities; checked, not used for the fit.")
@click.option("--weight", metavar="COL", help="Column of weights; k counts as k equal rows.")
@click.option(
    "--levels", metavar="A,B", callback=names,
    help="Columns of groups that tasks belong to, the widest first, such as region,store. hier only.",
)  # fmt: skip
@click.option(
    "--metadata", metavar="A,B", callback=names,
    help="Columns of numbers known of a task, the same in all its rows. hier only.",
)  # fmt: skip
@click.option("--time", metavar="COL", help="Column that says when the action was chosen; checked.")
@click.option(
    "--guess/--no-guess", default=True, show_default=True,
    help="Take the only column with a well-known name, such as user_id or propensity, for a task, action, reward, "
    "pscore or weight that is not named. Each guess is printed.",
)  # fmt: skip
@click.option(
    "--features", metavar="MAP", callback=_features,
    help="per-action: a linear model of the context for each action (default with actions and context). "
    "indicator: one coefficient an action (default with actions alone). columns: the context as it is "
    "without an intercept (default without actions). Or a .json file with a feature map.",
)  # fmt: skip
@click.option(
    "--algorithm", type=click.Choice(list(LEARNERS)), default="hier", show_default=True,
    help="hier shares strength between tasks, flat takes each alone, pooled takes all as one.",
)  # fmt: skip
@pessimism_options("0.1", cv=True)
@click.option(
    "--task-cov", type=click.Choice(["auto", "full", "block", "diag", "isotropic"]), default="auto",
    show_default=True,
    help="Shape of the estimated covariance between tasks; auto lets the evidence choose, block has one full block for "
    "each action.",
)  # fmt: skip
@click.option(
    "--hyper", type=click.Choice(["flat", "shared"]), default="flat", show_default=True,
    help="flat: each action's mean stands alone. shared: the means of actions share a prior that is learned, so that "
    "rare actions borrow from the others. hier only.",
)  # fmt: skip
@click.option(
    "--uncertainty", type=click.Choice(["auto", "integrated", "first-order", "plug-in"]), default="auto",
    show_default=True,
    help="How the uncertainty of what is learned about tasks in general enters the bounds. hier only.",
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
@shared_options
def fit_command(log: str, output: str, as_json: bool, **given: Any) -> None:  # noqa: FBT001 - click calls so
    """Learn a policy from LOG: a file of Parquet, CSV, JSON lines or Arrow, a folder of them, or a glob in quotes."""
    import hieropo
    from hieropo.artifacts.layout import check_replaceable
    from hieropo.sources import open_log

    check_replaceable(Path(output))
    make = getattr(hieropo, LEARNERS[given["algorithm"]])
    features = _feature_map(given["features"])
    learner = make(
        features, pessimism=given["pessimism"], level=given["level"],
        task_cov=given["task_cov"], unseen=given["unseen"], **_hierarchical(given),
    )  # fmt: skip
    source = open_log(log)
    roles, told = _roles(source.schema, features, given)
    with Line() as line:
        learner.fit(Watched(source, line), **roles.to_dict())
        summary = learner.summary() if given["algorithm"] == "hier" else None
        about = {} if summary is None else {"summary": summary.to_dict()}
        path = learner.save(output, provenance={"log": str(log), **about})
    _report(learner, log, path, output, summary, told, as_json=as_json)


def _roles(schema: Any, features: Any, given: dict[str, Any]) -> tuple[Any, list[str]]:
    """Columns of each role, named or guessed; guesses are told on standard error."""
    from hieropo.core.logs import Roles
    from hieropo.sources import guess_roles

    named = {role: given[role] for role in Roles.names() if role in given}
    named["context"] = given["context"] or getattr(features, "columns", ())
    acting = features != "columns" and getattr(features, "actions", ()) is not None
    guessed = ("task", "reward", "pscore", "weight", *(["action"] if acting else []))
    roles, told = guess_roles(schema, named, guessed if given["guess"] else ())
    for sentence in told:
        click.echo(f"Note: {sentence}", err=True)
    if roles.action is None and not roles.context and features in (None, "columns"):
        usage_error("Give --action, the column of the actions, or --context, columns that describe them.")
    return roles, told


def _hierarchical(given: dict[str, Any]) -> dict[str, Any]:
    """Settings that only the hierarchical learner has."""
    settings = {name: given[name] for name in ("hyper", "uncertainty", "logging")}
    if given["algorithm"] == "hier":
        return settings
    if settings != {"hyper": "flat", "uncertainty": "auto", "logging": "unknown"}:
        usage_error("--hyper, --uncertainty and --logging are for --algorithm hier.")
    return {}


def _feature_map(choice: str | None) -> Any:
    if choice is None or choice in MAPS:
        return choice
    from hieropo.core.features import feature_map_from_dict
    from hieropo.errors import InputError

    try:
        return feature_map_from_dict(_mapping(choice))
    except FileNotFoundError as error:
        raise InputError(
            f"There is no file {choice}, from which to read the feature map. Check the path."
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{choice} does not hold a feature map ({error}). Write one with json.dumps(features.to_dict())."
        ) from error


def _mapping(path: str) -> dict[str, Any]:
    stored = json.loads(Path(path).read_text(encoding="utf-8"))
    if not isinstance(stored, dict):
        raise TypeError(f"it holds a {type(stored).__name__}")
    return stored


def _report(
    learner: Any, log: str, path: Path, output: str, summary: Any, told: list[str], *, as_json: bool
) -> None:
    moments, features = learner.moments_, learner.features_
    actions = None if features.actions is None else len(features.actions)
    found = {
        "policy": str(path), "learner": type(learner).__name__, "rows": moments.n_rows, "tasks": len(moments),
        "features": features.dim, "actions": actions, "pessimism": learner.policy_.pessimism,
        "noise_sd": float(learner.hierarchy_.noise_var**0.5), "log_evidence": learner.posterior_.log_evidence,
        "columns": learner.roles_.to_dict(), "guesses": told,
    }  # fmt: skip
    choice = getattr(learner, "pessimism_", None)
    if choice is not None:
        found["pessimism_choice"] = choice.to_dict()
    if as_json:
        print_json(found | {"summary": None if summary is None else summary.to_dict()})
        return
    listed = "candidates are described by columns" if actions is None else counted(actions, "action")
    click.echo(
        f"{found['learner']} learned from {counted(moments.n_rows, 'row')} of {counted(len(moments), 'task')} "
        f"in {log}.\n"
        f"The policy is in {output}: {listed}, {counted(features.dim, 'feature')}, "
        f"acting on mean - {learner.policy_.pessimism:.3g} sd.\n\n"
        + ("" if choice is None else f"{choice}\n\n")
        + ("" if summary is None else f"{summary}\n\n")
        + f"Next: hieropo inspect {output}\n"
        f"      hieropo evaluate {output} {log}\n"
        f"      hieropo decide {output} REQUESTS.parquet -o decisions.parquet"
    )
