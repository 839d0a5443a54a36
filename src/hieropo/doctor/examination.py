"""The result of an examination: facts and findings, as text and as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hieropo._utils.text import counted, paragraph, percent, table
from hieropo.rows.batches import Roles

Severity = Literal["stops", "limits", "note"]

SEVERITIES: tuple[Severity, ...] = ("stops", "limits", "note")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that somebody should know before learning from a log.

    Attributes
    ----------
    severity : {"stops", "limits", "note"}
        It stops learning: `fit` refuses the log. It limits what may be concluded: `fit` warns. Or it is good to know.
    kind : str
        Which rule found it; the same words for the same thing in every log.
    place : str
        Where: a column, a row, a task, an action.
    text : str
        What was found.
    next : str
        What to do.
    judging : bool
        Whether it matters for judging a policy by weighted rewards alone, so that `fit` does not warn of it.
    """

    severity: Severity
    kind: str
    place: str
    text: str
    next: str
    judging: bool = False

    def __str__(self) -> str:
        return f"{self.text} {self.next}"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON's types."""
        return {
            "severity": self.severity,
            "kind": self.kind,
            "place": self.place,
            "text": self.text,
            "next": self.next,
        }


def ordered(findings: list[Finding]) -> tuple[Finding, ...]:
    """Sort by severity; within one, as they came."""
    return tuple(sorted(findings, key=lambda each: SEVERITIES.index(each.severity)))


_TITLES = {"stops": "Stops learning", "limits": "Limits what may be concluded", "note": "Notes"}
_SEEMS = {
    "without chance": "each task got one action: nothing was left to chance",
    "adaptive": "it reacts to rewards: it learned from these rows, or both move with time",
    "in turns": "shares of actions are more alike than chance makes them: each action once a task, or in turns",
    "frozen": "shares of actions differ between tasks, and no reaction to rewards is seen",
    "frozen or adaptive": "shares of actions differ between tasks",
    "random": "shares of actions are about the same in all tasks, as with a choice by chance alone",
    "unknown": "too few rows tell",
}


@dataclass(frozen=True, slots=True)
class Examination:
    """Facts and findings of a log that should be known before learning from it.

    Attributes
    ----------
    name : str
        Of the log.
    roles : Roles
    guesses : tuple of str
        What was guessed of them, in words.
    facts : dict
        Counts, ranges and kinds.
    findings : tuple of Finding
        By severity, the worst first.
    """

    name: str
    roles: Roles
    guesses: tuple[str, ...]
    facts: dict[str, Any]
    findings: tuple[Finding, ...]

    @property
    def stops(self) -> bool:
        """Return whether something stops learning."""
        return any(each.severity == "stops" for each in self.findings)

    def of(self, severity: str) -> tuple[Finding, ...]:
        """Return the findings of one severity."""
        return tuple(each for each in self.findings if each.severity == severity)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON's types."""
        return {
            "log": self.name,
            "roles": self.roles.to_dict(),
            "guesses": list(self.guesses),
            "stops": self.stops,
            "findings": [each.to_dict() for each in self.findings],
            **self.facts,
        }

    def __str__(self) -> str:
        parts = [_head(self), _facts(self.facts), *(_section(self, severity) for severity in _TITLES)]
        return "\n\n".join(part for part in [*parts, _verdict(self)] if part)


def _head(found: Examination) -> str:
    facts, actions = found.facts, found.facts["actions"]
    weight = found.roles.weight
    by = "" if weight is None else f" (by the weights in {weight!r})"
    lists = [f"{counted(facts['rows'], 'row')}{by}", counted(facts["tasks"]["number"], "task")]
    if actions is not None:
        lists.append(counted(actions["number"], "action"))
    columns: dict[str, list[str]] = {}
    for role, column in found.roles.items():
        columns.setdefault(role, []).append(column)
    said = "; ".join(f"{role} {', '.join(each)}" for role, each in columns.items())
    return "\n".join([f"{found.name}: {', '.join(lists)}.", paragraph(f"Columns: {said}."), *found.guesses])


def _facts(facts: dict[str, Any]) -> str:
    rows = [["rows of a task", _spread(facts["tasks"]["rows"])]]
    actions = facts["actions"]
    if actions is not None:
        rows.append(["rows of an action", _spread(actions["rows"])])
        if actions["tasks"] is not None:
            rows.append(["tasks of an action", _spread(actions["tasks"])])
    rows.append(["reward", _reward(facts["reward"])])
    if (pscores := facts["propensities"]) is not None:
        text = (
            f"all {pscores['low']:.4g}"
            if pscores["constant"]
            else f"{pscores['low']:.3g} to {pscores['high']:.3g}"
        )
        rows.append(["propensities", text])
    rows += (
        _incumbent(facts["incumbent"], facts["tasks"]["number"])
        + _time(facts["time"])
        + _repeats(facts["repeats"], facts["rows"])
    )
    return table([["", ""], *rows]).strip("\n")


def _spread(found: dict[str, int]) -> str:
    if not found:
        return "none"
    if found["least"] == found["most"]:
        return f"{found['least']:,} each"
    return f"{found['least']:,} to {found['most']:,}, median {found['median']:,}"


def _reward(found: dict[str, Any]) -> str:
    if found["kind"] is None:
        return "none that can be used"
    if found["kind"] == "constant":
        return f"constant, {found['low']:g}"
    if found["kind"] == "binary":
        (low, _), (high, count) = found["values"].items()
        return f"binary, {low} or {high}; {count:,} are {high}; mean {found['mean']:.3g}"
    kind = "whole numbers" if found["kind"] == "count" else found["kind"]
    return (
        f"{kind}, {found['low']:.4g} to {found['high']:.4g}; mean {found['mean']:.4g}, sd {found['sd']:.3g}"
    )


def _incumbent(found: dict[str, Any] | None, tasks: int) -> list[list[str]]:
    if found is None:
        return []
    rows = [["the policy that made it", _SEEMS[found["seems"]]]]
    if found["propensities_vary_within_tasks_and_actions"] and found["seems"] != "without chance":
        rows.append(
            ["", "propensities differ between rows of one task and action, as where contexts or time count"]
        )
    if found["order_tells_nothing"]:
        rows.append(["", f"whether it reacts to rewards cannot be seen: {found['order_tells_nothing']}"])
    if found["effective_rows"]:
        total = max(found["out_of_rows"], 1)
        said = ", ".join(
            f"{rows_:,.0f} ({percent(rows_ / total)}) for a {target} policy"
            for target, rows_ in found["effective_rows"].items()
        )
        rows.append(["effective rows", said])
    if found["of_first_tasks"] < tasks:
        rows.append(["", f"as told by the first {counted(found['of_first_tasks'], 'task')}"])
    return rows


def _time(found: dict[str, Any] | None) -> list[list[str]]:
    if found is None:
        return []
    return [["time", f"{found['first']} to {found['last']}"]]


def _repeats(found: dict[str, Any] | None, rows: int) -> list[list[str]]:
    if found is None:
        return []
    about = "" if found["exact"] else "about "
    every = f"all {len(found['columns'])} columns" if len(found["columns"]) > 1 else "the one column"
    said = "none" if not found["rows"] else f"{about}{found['rows']:,.0f} ({percent(found['rows'] / rows)})"
    return [["rows that repeat another", f"{said}, by {every}"]]


def _section(found: Examination, severity: str) -> str:
    some = found.of(severity)
    if not some:
        return ""
    return "\n".join([f"{_TITLES[severity]} ({len(some)})", *(_item(each) for each in some)])


def _item(found: Finding) -> str:
    return "\n".join(f"{'- ' if not k else '  '}{line}" for k, line in enumerate(_lines(found)))


def _lines(found: Finding) -> Sequence[str]:
    return [*paragraph(found.text).split("\n"), *paragraph(f"Next: {found.next}").split("\n")]


def _verdict(found: Examination) -> str:
    if found.stops:
        return "`hieropo fit` refuses this log as it is."
    return "Nothing stops learning from this log."
