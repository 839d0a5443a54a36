"""``hieropo fit``: from a log to a policy directory."""

import json
from pathlib import Path
from typing import Any

import click

from hieropo.cli.console import example, names, pessimism_options, print_json, shared_options, usage_error
from hieropo.cli.progress import Line, Watched
from hieropo.cli.text import counted

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
        "hieropo fit log.parquet -o policy --task store --action offer --reward profit",
        "hieropo fit log.parquet -o policy --task store --action offer --reward profit --context visits",
    ),
)
@click.argument("log", type=str)
@click.option(
    "-o", "--output", required=True, metavar="DIR", help="Where the policy goes; replaced if one is there."
)
@click.option(
    "--task", required=True, metavar="COL", help="Column that names the task: the unit with its own policy."
)
@click.option("--reward", required=True, metavar="COL", help="Column of rewards; larger is better.")
@click.option(
    "--action", metavar="COL", help="Column of actions. Without it the context describes the action taken."
)
@click.option("--context", metavar="A,B,C", callback=names, help="Columns known before the action, numbers.")
@click.option("--pscore", metavar="COL", help="Column of logged propensities; checked, not used for the fit.")
@click.option("--weight", metavar="COL", help="Column of weights; k counts as k equal rows.")
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
@pessimism_options("0.1")
@click.option(
    "--task-cov", type=click.Choice(["auto", "full", "diag", "isotropic"]), default="auto", show_default=True,
    help="Shape of the estimated covariance between tasks; auto lets the evidence choose.",
)  # fmt: skip
@click.option(
    "--unseen", type=click.Choice(["prior", "error"]), default="prior", show_default=True,
    help="What a task that the log does not have gets later: the population's answer, or an error.",
)  # fmt: skip
@shared_options
def fit_command(log: str, output: str, as_json: bool, **given: Any) -> None:  # noqa: FBT001 - click calls so
    """Learn a policy from LOG, a Parquet file or a folder of them."""
    from hieropo import learners
    from hieropo.artifacts.layout import check_replaceable
    from hieropo.sources import open_log

    if given["action"] is None and not given["context"] and given["features"] in (None, "columns"):
        usage_error("Give --action, the column of the actions, or --context, columns that describe them.")
    check_replaceable(Path(output))
    make = getattr(learners, LEARNERS[given["algorithm"]])
    features = _feature_map(given["features"])
    context = given["context"] or getattr(features, "columns", ())
    learner = make(
        features, pessimism=given["pessimism"], level=given["level"],
        task_cov=given["task_cov"], unseen=given["unseen"],
    )  # fmt: skip
    roles = {role: given[role] for role in ("task", "action", "reward", "pscore", "weight")}
    with Line() as line:
        learner.fit(Watched(open_log(log), line), context=context, **roles)
        columns = {**roles, "context": list(context)}
        path = learner.save(output, provenance={"log": str(log), "columns": columns})
    _report(learner, log, path, output, as_json=as_json)


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


def _report(learner: Any, log: str, path: Path, output: str, *, as_json: bool) -> None:
    moments, features = learner.moments_, learner.features_
    actions = None if features.actions is None else len(features.actions)
    found = {
        "policy": str(path), "learner": type(learner).__name__, "rows": moments.n_rows, "tasks": len(moments),
        "features": features.dim, "actions": actions, "pessimism": learner.policy_.pessimism,
        "noise_sd": float(learner.hierarchy_.noise_var**0.5), "log_evidence": learner.posterior_.log_evidence,
    }  # fmt: skip
    if as_json:
        print_json(found)
        return
    listed = "candidates are described by columns" if actions is None else counted(actions, "action")
    click.echo(
        f"{found['learner']} learned from {counted(moments.n_rows, 'row')} of {counted(len(moments), 'task')} "
        f"in {log}.\n"
        f"The policy is in {output}: {listed}, {counted(features.dim, 'feature')}, "
        f"acting on mean - {learner.policy_.pessimism:.3g} sd.\n"
        f"Next: hieropo inspect {output}\n"
        f"      hieropo decide {output} REQUESTS.parquet -o decisions.parquet"
    )
