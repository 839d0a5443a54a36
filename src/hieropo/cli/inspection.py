"""Facts about a policy, and its content as a document with pictures, for ``hieropo inspect``."""

from typing import Any

from hieropo._utils.text import agreeing, counted, thousands
from hieropo.report import Block, Document, Facts, Grid, Histogram, Interval, Intervals, Section, Text

SHOWN = 40  # features that the text lists
_UNCERTAINTY = {
    "integrated": "integrated: bounds average over {} values of the hyper-parameters",
    "first-order": "first-order: bounds are corrected for the error of the estimated hyper-parameters",
    "plug-in": "plug-in: the hyper-parameters are taken as known",
}
_PART_HEADINGS = {  # of the components of the crossed prior
    "level_sd": "level of a task, sd",
    "action_sd": "action in all tasks, sd",
    "interaction_sd": "action in one task, sd",
}
NOISE_NOT_IDENTIFIED = (
    "The log does not identify the noise variance: it cannot be told from variation between tasks. Sds and lower "
    "bounds then depend on the prior of the noise, and their intervals do not have the stated coverage."
)
_BINS, _DRAWN = 30, 20
_HALF = 1.959964  # standard deviations on either side of a 95 % interval


def differs_in_words(probability: float) -> str:
    """Return a sentence on the probability that the effects of actions in a task are unusually large."""
    return (
        "The effects of actions in this task are at least twice as large as in three quarters of the tasks with "
        f"probability {'above 0.99' if probability > 0.99 else f'{probability:.2g}'}."
    )


def kind_in_words(probabilities: list[float]) -> str:
    """Return a sentence on the most probable kind of a task."""
    most = max(probabilities)
    return (
        f"This task is of kind {probabilities.index(most) + 1} of {len(probabilities)} with probability "
        f"{'above 0.99' if most > 0.99 else f'{most:.2g}'}."
    )


def _set_aside(rejected: dict[str, Any] | None) -> str:
    if not rejected or not rejected["rows"]:
        return ""
    rows = rejected["rows"]
    return f"; {counted(rows, 'unusable row')} of the last log {agreeing(rows, 'was', 'were')} set aside"


def _origin(provenance: dict[str, Any]) -> str:
    origin = " from ".join(provenance[key] for key in ("learner", "log") if key in provenance)
    return origin + (f" where {provenance['filter']}" if "filter" in provenance else "")


def facts_of(about: dict[str, Any], directory: str) -> list[list[str]]:
    """Return names and values of the facts about a policy."""
    provenance, rows = about["provenance"], about["rows_of_a_task"]
    actions = ["not stored"] if about["context"] is None else about["actions"]
    facts = [
        ["policy", directory],
        ["made by", _origin(provenance) or "not stored"],
        ["tasks", f"{about['tasks']:,}, such as {', '.join(str(t) for t in about['first_tasks'])}"],
        ["rows", f"{thousands(about['rows'])}{_set_aside(provenance.get('rejected'))}"],
        ["rows per task", f"{rows['least']:,} to {rows['most']:,}, median {rows['median']:,}"],
        ["actions", "described by columns" if actions is None else _few([str(a) for a in actions])],
        ["context", "not stored" if about["context"] is None else _few(about["context"]) or "none"],
        ["chooses by", f"the lower bound mean - {about['pessimism']:.3g} sd"],
        ["unseen tasks", "use the prior of the population" if about["unseen"] == "prior" else "are an error"],
    ]
    if about["measured_from"]:
        facts.append(["measured from", ", ".join(about["measured_from"].values())])
    gate = about["gate"]
    if gate is not None:
        gets = agreeing(gate["kept"], "gets", "get")
        rest = "are left to the incumbent" if gate["incumbent"] is None else f"{gets} {gate['incumbent']}"
        passed = f"{counted(gate['passed'], 'task')} {agreeing(gate['passed'], 'passes', 'pass')}"
        facts.append(["gate", f"{passed} with P(harm) <= {gate['max_harm']:g}; {gate['kept']:,} {rest}"])
    if about["noise_sd"] is not None:
        facts.append(["noise sd", f"{about['noise_sd']:.4g} of a reward, within a task"])
        if "sites" in provenance:
            facts.append(
                ["likelihood", f"{provenance['sites']['name']}: sums and noise are of pseudo-rewards"]
            )
        if about["two_part"]:
            facts.append(["likelihood", about["two_part"]])
        if about["noise_of_tasks"]:
            facts.append(["noise of tasks", about["noise_of_tasks"]])
        facts.append(["uncertainty", _UNCERTAINTY[about["uncertainty"]].format(about["hierarchies"])])
    columns = provenance.get("columns", {})
    if columns:
        roles = [f"{r} {c}" for r, c in columns.items() if isinstance(c, str)]
        roles += [f"{r} {' '.join(columns[r])}" for r in ("levels", "metadata") if columns.get(r)]
        facts.insert(2, ["columns", ", ".join(roles)])
    return facts


def notes_of(about: dict[str, Any]) -> list[str]:
    """Return sentences on noise, likelihood, drift and settings not applied of a policy, as far as there are any."""
    noise = "" if about["noise_identified"] else NOISE_NOT_IDENTIFIED
    return [
        note for note in (noise, about["likelihood_note"], about["drift"], about["settings_note"]) if note
    ]


def heading(key: str) -> str:
    """Return the heading of a column of sds, such as those between tasks or between the nodes of a level."""
    if key in _PART_HEADINGS:
        return _PART_HEADINGS[key]
    name = key.removeprefix("between_").removesuffix("_sd")
    if name == "tasks":
        return "between tasks, sd"
    return f"{name}, sd"


def _few(words: list[str]) -> str:
    return ", ".join(words[:10]) + (f", ... ({len(words)} in all)" if len(words) > 10 else "")


def number_text(value: float | None) -> str:
    """Return a number as text with four digits; nothing for None."""
    return (
        "" if value is None else f"{value:.4f}" if 1e-3 <= abs(value) < 1e5 or value == 0 else f"{value:.3g}"
    )


def inspection(about: dict[str, Any], directory: str, rows: Any) -> Document:
    """Return a policy, or one of its tasks, as a document, from its summary and the rows of each task."""
    if "task" in about:
        return _of_task(about, directory)
    notes = [Text(note) for note in notes_of(about)]
    sections = [
        Section(
            "policy",
            "Policy",
            (Facts(tuple((name, value) for name, value in facts_of(about, directory))), *notes),
        ),
        Section("rows", "Rows of the tasks", (_histogram(rows),)),
        Section("coefficients", "Coefficients in the population", tuple(_population(about))),
    ]
    crossed = about["crossed"]
    if crossed is not None:
        sections.append(Section("alike", "Variation between tasks and actions", tuple(_variation(crossed))))
    size = f"{counted(about['rows'], 'row')} of {counted(about['tasks'], 'task')}."
    return Document(f"Policy {directory}", size, tuple(sections))


def _histogram(rows: Any) -> Histogram:
    import numpy as np

    counts, edges = np.histogram(rows, bins=min(_BINS, max(len(np.unique(rows)), 1)))
    none = (0.0,) * len(counts)
    return Histogram(
        "Tasks by their rows", "rows of a task", tuple(edges.tolist()), tuple(map(float, counts)), none, ""
    )


def _population(about: dict[str, Any]) -> list[Block]:
    features = about["features"][:SHOWN]
    blocks: list[Block] = []
    if any(one["mean"] is not None for one in features):
        lines = tuple(_line(one["name"], one["mean"], one["mean_sd"]) for one in features[:_DRAWN])
        blocks.append(Intervals("Population means, with 95 % intervals", "coefficient", lines))
    keys = [key for key in features[0] if key not in ("name", "mean", "mean_sd")]
    head = ("coefficient", "population mean", "its sd", *map(heading, keys))
    cells = tuple(
        (one["name"], *(number_text(one[key]) for key in ("mean", "mean_sd", *keys))) for one in features
    )
    return [*blocks, Grid(head, cells, "Coefficients"), *_hidden(len(about["features"]))]


def _hidden(number: int) -> list[Block]:
    return [Text(f"{number - SHOWN} more are not shown; --json lists all.")] if number > SHOWN else []


def _variation(crossed: dict[str, Any]) -> list[Block]:
    from hieropo.learners.kinds import kinds_blocks
    from hieropo.learners.population import parts_blocks

    kinds = kinds_blocks(crossed["kinds"], crossed["kinds_verdict"])
    return [Text(crossed["verdict"]), *parts_blocks(crossed["parts"]), *kinds]


def _of_task(about: dict[str, Any], directory: str) -> Document:
    blocks: list[Block] = []
    if about["actions"] is not None:
        at = ", ".join(f"{name} = {value:.4g}" for name, value in (about["at"] or {}).items())
        ranked = sorted(about["actions"], key=lambda one: -one["lower_bound"])
        lines = tuple(_line(str(one["action"]), one["mean"], one["sd"]) for one in ranked[:_DRAWN])
        title = f"Expected reward{f' at {at}' if at else ''}, with 95 % intervals"
        bounds = tuple(
            (str(one["action"]), *(number_text(one[key]) for key in ("lower_bound", "mean", "sd")))
            for one in ranked[:SHOWN]
        )
        chosen = "the incumbent's action" if about.get("kept_for_the_incumbent") else about["choice"]
        blocks += [
            Text(f"The choice here is {chosen}. The lower bound is mean - {about['pessimism']:.3g} sd."),
            Intervals(title, "reward", lines, zero=False),
            Grid(("action", "lower bound", "mean", "sd"), bounds, "Actions by their lower bound"),
        ]
    cells = tuple(
        (one["name"], number_text(one["mean"]), number_text(one["sd"])) for one in about["features"][:SHOWN]
    )
    blocks += [Grid(("coefficient", "mean", "sd"), cells, "Coefficients"), *_hidden(len(about["features"]))]
    sections = (Section("task", "Coefficients and actions", tuple(blocks)),)
    return Document(f"Task {about['task']} of {directory}", f"{counted(about['rows'], 'row')}.", sections)


def _line(label: str, mean: float, sd: float | None) -> Interval:
    if sd is None:
        return Interval(label, mean, None, None)
    return Interval(label, mean, mean - _HALF * sd, mean + _HALF * sd)
