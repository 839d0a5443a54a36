"""``hieropo inspect``: show the contents of a policy directory."""

import math
import shlex
from collections.abc import Callable
from typing import Any

import click

from hieropo._utils.text import counted, paragraph, table
from hieropo.cli.console import example, print_json, shared_options, usage_error
from hieropo.cli.inspection import (
    NOISE_NOT_IDENTIFIED,
    SHOWN,
    differs_in_words,
    facts_of,
    heading,
    kind_in_words,
    notes_of,
    number_text,
)

_ZERO_SD = {
    "between_tasks_sd": "An sd of 0 between tasks: the estimate of this coefficient is the same in all tasks",
    "action_sd": "An sd of 0 between actions: the estimated mean of this coefficient is the same for all actions",
}
_ZERO_SD_UNCERTAINTY = {
    "first-order": ". The bounds of tasks in the log account for the error of this estimate.",
    "plug-in": ". The bounds do not account for the error of this estimate.",
}


def context_values(
    _: click.Context, __: click.Parameter, value: str | tuple[str, ...] | None
) -> dict[str, str] | tuple[dict[str, str], ...] | None:
    """Split ``A=1,B=phone`` into values by name; each value of an option that may be given several times."""
    if isinstance(value, tuple):
        return tuple(_values_by_name(one) for one in value)
    return None if value is None else _values_by_name(value)


def _values_by_name(value: str) -> dict[str, str]:
    values = {}
    for part in value.split(","):
        name, equals, text = part.partition("=")
        if not equals:
            raise click.BadParameter(f"{part!r} is not NAME=VALUE. Write a=1,b=phone, for example.")
        values[name.strip()] = text
    return values


def numbers_at(features: Any, at: dict[str, str]) -> dict[str, float]:
    """Return the numbers of a context by name, encoded where the features of a policy have terms."""
    terms = getattr(features, "terms", None)
    if terms is not None and set(at) == set(terms.sources):
        from hieropo.logs.encoding import encoded_texts

        return dict(zip(features.columns, encoded_texts(features, at).tolist(), strict=True))
    columns = [] if features is None else list(features.columns if terms is None else terms.sources)
    if (
        features is not None
        and features.actions is not None
        and set(at) != set(columns)
        and set(at) != set(features.columns)
    ):
        usage_error(
            f"--at names {sorted(at)}, and this policy reads the context columns {columns}. Give a value for each of "
            "these; without --at the mean context of the task's rows is taken."
        )
    return {name: _finite(name, text) for name, text in at.items()}


def _finite(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        usage_error(f"{f'{name}={text}'!r} is not NAME=NUMBER. Write a=1,b=2, for example.")
    return number


@click.command(
    "inspect",
    short_help="Show the tasks, actions and coefficients of a policy.",
    epilog=example("hieropo inspect policy", "hieropo inspect policy --task 17 --at visits=3,basket=40"),
)
@click.argument("directory", metavar="DIR")
@click.option(
    "--task",
    metavar="ID",
    multiple=True,
    help="Show one task: its coefficients and the lower bound of each action. Where several columns name a task, give "
    "one ID for each.",
)
@click.option(
    "--at", metavar="A=1,B=2", callback=context_values,
    help="Context for the lower bounds of --task. Default: the mean context of the task's rows.",
)  # fmt: skip
@click.option("--html", metavar="FILE.html", help="Write the same with pictures to this file, too.")
@shared_options
def inspect_command(
    directory: str,
    task: tuple[str, ...],
    at: dict[str, str] | None,
    html: str | None,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Show the policy in DIR: its tasks, actions and coefficients, and the variation between tasks."""
    from hieropo.cli.summaries import summary, task_summary
    from hieropo.storage.load import load_policy

    if at is not None and not task:
        usage_error("--at is the context of one task. Give --task too, or leave --at out.")
    stored = load_policy(directory)
    if not task:
        about = summary(stored)
        show: Callable[..., str] = _summary_text
    else:
        about = task_summary(stored, task, None if at is None else numbers_at(stored.features, at))
        show = _task_text
    if html is not None:
        from hieropo.cli.inspection import inspection
        from hieropo.report.page import write_page

        table_: Any = stored.policy.table
        write_page(inspection(about, directory, table_.rows), html)
    if as_json:
        print_json({**about, "written": html})
        return
    click.echo(show(about, directory))
    if html is not None:
        click.echo(f"\n{html} shows the same with pictures. Open it in a browser.")


def _summary_text(about: dict[str, Any], directory: str) -> str:
    parts = [
        table(facts_of(about, directory)),
        *map(paragraph, notes_of(about)),
        _features(about),
        *_effects(about["crossed"]),
        _next(about, directory),
    ]
    return "\n\n".join(part for part in parts if part)


def _features(about: dict[str, Any]) -> str:
    headings = {key: heading(key) for key in about["features"][0] if key.endswith("_sd") and key != "mean_sd"}
    lines, zeros = [["feature", "population mean", "its sd", *headings.values()]], set()
    for feature in about["features"][:SHOWN]:
        sds = {key: _without_rounding(feature[key], feature["mean_sd"]) for key in headings}
        zeros |= {key for key, sd in sds.items() if sd == 0}
        lines.append(
            [feature["name"], *map(number_text, (feature["mean"], feature["mean_sd"], *sds.values()))]
        )
    text = table(lines)
    hidden = len(about["features"]) - SHOWN
    if hidden > 0:
        text += f"\n... and {hidden} more; --json lists all."
    for key in sorted(zeros & _ZERO_SD.keys()):
        text += "\n\n" + paragraph(_ZERO_SD[key] + _ZERO_SD_UNCERTAINTY.get(about["uncertainty"], "."))
    return text


def _effects(crossed: dict[str, Any] | None) -> list[str]:
    """Return the components of the crossed prior and their verdict, as a learner's summary shows them."""
    from hieropo.learners.kinds import kinds_in_words
    from hieropo.learners.population import parts_in_words

    if crossed is None:
        return []
    parts = [parts_in_words(crossed["parts"])] if crossed["parts"] else []
    return [
        *parts,
        paragraph(crossed["verdict"]),
        *kinds_in_words(crossed["kinds"], crossed["kinds_verdict"]),
    ]


def _without_rounding(sd: float | None, scale: float | None) -> float | None:
    """Return an sd, or 0 where it is as small as rounding errors."""
    return sd if sd is None or sd > 1e-6 * (scale or 0.0) else 0.0


def _next(about: dict[str, Any], directory: str) -> str:
    if not about["first_tasks"]:
        return ""
    first = about["first_tasks"][0]
    words = " ".join(
        f"--task {shlex.quote(str(part))}" for part in (first if isinstance(first, tuple) else (first,))
    )
    return f"Next: hieropo inspect {shlex.quote(directory)} {words}"


def _task_text(about: dict[str, Any], directory: str) -> str:
    head = [["feature", "mean", "sd"]]
    lines = [[f["name"], number_text(f["mean"]), number_text(f["sd"])] for f in about["features"][:SHOWN]]
    parts = [f"Task {about['task']} of {directory}: {counted(about['rows'], 'row')}.", table(head + lines)]
    parts += [] if about["noise_identified"] else [paragraph(NOISE_NOT_IDENTIFIED)]
    parts += [] if about["differs"] is None else [paragraph(differs_in_words(about["differs"]))]
    parts += [] if about["kinds"] is None else [paragraph(kind_in_words(about["kinds"]))]
    if about["at"] is not None:
        at = ", ".join(f"{name} = {value:.4g}" for name, value in about["at"].items())
        place = f" at {at}" if at else ""
        parts.append(f"Expected reward{place}; lower bound = mean - {about['pessimism']:.3g} sd:")
        parts.append(_rewards(about))
    elif about["context"]:
        columns = ",".join(f"{column}=..." for column in about["context"])
        parts.append(f"Give --at {columns} for expected rewards and lower bounds in that context.")
    else:
        parts.append(
            paragraph(
                "The policy was saved without a feature map, so expected rewards cannot be computed here. Use "
                "load_policy(...).policy.lower_bound(task, phi) in Python."
            )
        )
    return "\n\n".join(parts)


def _rewards(about: dict[str, Any]) -> str:
    from hieropo._utils.ties import ordered

    heads = ("lower_bound", "mean", "sd")
    if about["actions"] is None:
        return table([["lower bound", "mean", "sd"], [number_text(about["candidate"][key]) for key in heads]])
    ranked = [about["actions"][k] for k in ordered([-action["lower_bound"] for action in about["actions"]])]
    rows = [[str(a["action"]), *(number_text(a[key]) for key in heads)] for a in ranked]
    hidden = len(rows) - SHOWN
    more = f"\n... and {hidden} more; --json lists all." if hidden > 0 else ""
    return table([["action", "lower bound", "mean", "sd"], *rows[:SHOWN]]) + more
