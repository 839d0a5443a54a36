"""``hieropo inspect``: what a policy directory holds."""

import math
import shlex
from collections.abc import Callable
from typing import Any

import click

from hieropo._utils.text import agreeing, counted, paragraph, table, thousands
from hieropo.cli.console import example, print_json, shared_options, usage_error

SHOWN = 40  # features that the text lists
_UNCERTAINTY = {
    "integrated": "bounds average over {} hierarchies that the log leaves possible",
    "first-order": "bounds are corrected, to first order, for the error of the estimated hierarchy",
    "plug-in": "the hierarchy is taken as known, and bounds carry no doubt about it",
}
_EQUAL = {
    "between_tasks_sd": "0 between tasks: all tasks are taken as equal in this coefficient",
    "action_sd": "0 for an action in all tasks: the means of all actions are taken as equal in this coefficient",
}
_OF_PARTS = {  # as a summary names the parts of the crossed prior
    "level_sd": "level, sd",
    "action_sd": "action in all tasks, sd",
    "interaction_sd": "action in one task, sd",
}
_UNTOLD = (
    "The log does not tell the noise of rewards from differences between tasks: sds and lower bounds rest on what is "
    "assumed of the noise, and no interval of them holds as often as it says."
)
_DOUBT = {
    "first-order": "; the bounds of tasks in the log carry the error of that.",
    "plug-in": ", with no doubt left about it.",
}


def _at(_: click.Context, __: click.Parameter, value: str | None) -> dict[str, float] | None:
    if value is None:
        return None
    found = {}
    for part in value.split(","):
        name, equals, number = part.partition("=")
        try:
            found[name.strip()] = float(number)
        except ValueError:
            equals = ""
        if not equals or not math.isfinite(found[name.strip()]):
            raise click.BadParameter(f"{part!r} is not NAME=NUMBER; write a=1,b=2.")
    return found


@click.command(
    "inspect",
    short_help="Show what a policy knows.",
    epilog=example("hieropo inspect policy", "hieropo inspect policy --task 17 --at visits=3,basket=40"),
)
@click.argument("directory", metavar="DIR")
@click.option(
    "--task", metavar="ID", help="Show this task: its coefficients and the lower bound of each action."
)
@click.option(
    "--at", metavar="A=1,B=2", callback=_at,
    help="Context for the lower bounds of --task. Default: the mean context of the task's rows.",
)  # fmt: skip
@shared_options
def inspect_command(directory: str, task: str | None, at: dict[str, float] | None, as_json: bool) -> None:  # noqa: FBT001
    """Show what the policy in DIR knows: tasks, actions, features, how much tasks differ."""
    from hieropo.cli.summaries import summary, task_summary
    from hieropo.storage.load import load_policy

    if at is not None and task is None:
        usage_error("--at needs --task: lower bounds are those of one task.")
    stored = load_policy(directory)
    if task is None:
        found = summary(stored)
        show: Callable[..., str] = _summary_text
    else:
        found = task_summary(stored, task, at)
        show = _task_text
    if as_json:
        print_json(found)
    else:
        click.echo(show(found, directory))


def _aside(rejected: dict[str, Any] | None) -> str:
    if not rejected or not rejected["rows"]:
        return ""
    number = rejected["rows"]
    return f"; {counted(number, 'other row')} of the last log {agreeing(number, 'was', 'were')} set aside"


def _origin(about: dict[str, Any]) -> str:
    named = " from ".join(about[key] for key in ("learner", "log") if key in about)
    return named + (f" where {about['filter']}" if "filter" in about else "")


def _summary_text(found: dict[str, Any], directory: str) -> str:
    about = found["provenance"]
    spread = found["rows_of_a_task"]
    actions = ["not said"] if found["context"] is None else found["actions"]
    facts = [
        ["policy", directory],
        ["made by", _origin(about) or "not said"],
        ["tasks", f"{found['tasks']:,}, such as {', '.join(str(t) for t in found['first_tasks'])}"],
        ["rows", f"{thousands(found['rows'])}{_aside(about.get('rejected'))}"],
        ["rows of a task", f"{spread['least']:,} to {spread['most']:,}, median {spread['median']:,}"],
        ["actions", "described by columns" if actions is None else _few([str(a) for a in actions])],
        ["context", "not said" if found["context"] is None else _few(found["context"]) or "none"],
        ["acts on", f"mean - {found['pessimism']:.3g} sd"],
        ["unseen task", "gets the population's answer" if found["unseen"] == "prior" else "is an error"],
    ]
    if found["measured_from"]:
        facts.append(["measured from", ", ".join(found["measured_from"].values())])
    gate = found["gate"]
    if gate is not None:
        gets = agreeing(gate["kept"], "gets", "get")
        rest = "left to the incumbent" if gate["incumbent"] is None else f"{gets} {gate['incumbent']}"
        passed = f"{counted(gate['passed'], 'task')} {agreeing(gate['passed'], 'passes', 'pass')}"
        facts.append(["gate", f"{passed} at a harm of {gate['max_harm']:g}; {gate['kept']:,} {rest}"])
    if found["noise_sd"] is not None:
        facts.append(["noise sd", f"{found['noise_sd']:.4g} of a reward, within a task"])
        facts.append(["uncertainty", _UNCERTAINTY[found["uncertainty"]].format(found["hierarchies"])])
    columns = about.get("columns", {})
    if columns:
        roles = [f"{r} {c}" for r, c in columns.items() if isinstance(c, str)]
        roles += [f"{r} {' '.join(columns[r])}" for r in ("levels", "metadata") if columns.get(r)]
        facts.insert(2, ["columns", ", ".join(roles)])
    untold = "" if found["noise_told"] else paragraph(_UNTOLD)
    parts = [table(facts), untold, _features(found), *_effects(found["crossed"]), _next(found, directory)]
    return "\n\n".join(part for part in parts if part)


def _features(found: dict[str, Any]) -> str:
    spreads = {key: _heading(key) for key in found["features"][0] if key.endswith("_sd") and key != "mean_sd"}
    lines, zeros = [["feature", "population mean", "its sd", *spreads.values()]], set()
    for each in found["features"][:SHOWN]:
        shown = {key: _spread(each[key], each["mean_sd"]) for key in spreads}
        zeros |= {key for key, sd in shown.items() if sd == 0}
        lines.append([each["name"], *map(_number, (each["mean"], each["mean_sd"], *shown.values()))])
    text = table(lines)
    hidden = len(found["features"]) - SHOWN
    if hidden > 0:
        text += f"\n... and {hidden} more; --json lists all."
    for key in sorted(zeros & _EQUAL.keys()):
        text += "\n\n" + paragraph(_EQUAL[key] + _DOUBT.get(found["uncertainty"], "."))
    return text


def _effects(crossed: dict[str, Any] | None) -> list[str]:
    """Return the parts of the crossed prior and their verdict, as a learner's summary has them."""
    from hieropo.learners.population import parts_in_words

    if crossed is None:
        return []
    return [*([parts_in_words(crossed["parts"])] if crossed["parts"] else []), paragraph(crossed["verdict"])]


def _heading(key: str) -> str:
    """Of a column of standard deviations, such as those of tasks or of a level."""
    if key in _OF_PARTS:
        return _OF_PARTS[key]
    name = key.removeprefix("between_").removesuffix("_sd")
    if name == "tasks":
        return "between tasks, sd"
    return f"{name}, sd"


def _spread(sd: float | None, scale: float | None) -> float | None:
    """An sd; 0 where it is nothing but rounding."""
    return sd if sd is None or sd > 1e-6 * (scale or 0.0) else 0.0


def _next(found: dict[str, Any], directory: str) -> str:
    if not found["first_tasks"]:
        return ""
    return (
        f"Next: hieropo inspect {shlex.quote(directory)} --task {shlex.quote(str(found['first_tasks'][0]))}"
    )


def _task_text(found: dict[str, Any], directory: str) -> str:
    head = [["feature", "mean", "sd"]]
    lines = [[f["name"], _number(f["mean"]), _number(f["sd"])] for f in found["features"][:SHOWN]]
    parts = [f"Task {found['task']} of {directory}: {counted(found['rows'], 'row')}.", table(head + lines)]
    parts += [] if found["noise_told"] else [paragraph(_UNTOLD)]
    if found["at"] is not None:
        at = ", ".join(f"{name} = {value:.4g}" for name, value in found["at"].items())
        place = f" at {at}" if at else ""
        parts.append(f"Expected reward{place}; lower bound = mean - {found['pessimism']:.3g} sd:")
        parts.append(_rewards(found))
    elif found["context"]:
        columns = ",".join(f"{column}=..." for column in found["context"])
        parts.append(f"For expected rewards and lower bounds, give --at {columns}")
    else:
        parts.append(
            paragraph(
                "The policy was saved without a feature map, so that expected rewards need phi, in Python."
            )
        )
    return "\n\n".join(parts)


def _rewards(found: dict[str, Any]) -> str:
    from hieropo._utils.ties import ordered

    heads = ("lower_bound", "mean", "sd")
    if found["actions"] is None:
        return table([["lower bound", "mean", "sd"], [_number(found["candidate"][key]) for key in heads]])
    ranked = [found["actions"][k] for k in ordered([-each["lower_bound"] for each in found["actions"]])]
    rows = [[str(a["action"]), *(_number(a[key]) for key in heads)] for a in ranked]
    hidden = len(rows) - SHOWN
    more = f"\n... and {hidden} more; --json lists all." if hidden > 0 else ""
    return table([["action", "lower bound", "mean", "sd"], *rows[:SHOWN]]) + more


def _few(words: list[str]) -> str:
    return ", ".join(words[:10]) + (f", ... ({len(words)} in all)" if len(words) > 10 else "")


def _number(value: float | None) -> str:
    return (
        "" if value is None else f"{value:.4f}" if 1e-3 <= abs(value) < 1e5 or value == 0 else f"{value:.3g}"
    )
