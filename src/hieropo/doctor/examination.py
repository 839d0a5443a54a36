"""The result of an examination: facts and findings, as text and as JSON."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hieropo._utils.brief import brief
from hieropo._utils.text import counted, paragraph, percent, table
from hieropo.report import (
    Block,
    Document,
    Facts,
    Grid,
    Histogram,
    Interval,
    Intervals,
    Items,
    Notice,
    Section,
    Tone,
    fragment,
    write_page,
)
from hieropo.rows.batches import Roles

Severity = Literal["stops", "limits", "note"]

SEVERITIES: tuple[Severity, ...] = ("stops", "limits", "note")


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding about a log.

    Attributes
    ----------
    severity : {"stops", "limits", "note"}
        "stops": `fit` refuses the log. "limits": conclusions are limited, and `fit` warns. "note": for information.
    kind : str
        Name of the rule; the same in every log.
    place : str
        The column, row, task or action that is concerned.
    text : str
        The evidence and its consequence.
    next : str
        The remedy.
    judging : bool
        True where it matters for importance-weighted (IPS, DR) evaluation alone, so that `fit` does not warn.
    """

    severity: Severity
    kind: str
    place: str
    text: str
    next: str
    judging: bool = False

    __repr__ = brief

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
    """Return findings sorted by severity; those of one severity keep their order."""
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))


_TITLES = {"stops": "Stops learning", "limits": "Limits what may be concluded", "note": "Notes"}
_SEEMS = {
    "without chance": "each task got one action: there is no overlap with any other policy",
    "adaptive": "its actions react to earlier rewards: it learned from these rows, or both drift with time",
    "in turns": "shares of actions are more alike between tasks than random choice makes them: actions in rotation",
    "frozen": "shares of actions differ between tasks, and do not react to earlier rewards",
    "frozen or adaptive": "shares of actions differ between tasks",
    "random": "shares of actions are about the same in all tasks, as with random choice",
    "unknown": "too few rows to tell",
}


@dataclass(frozen=True, slots=True)
class Examination:
    """Facts and findings about a log, for a reader who will learn from it.

    Attributes
    ----------
    name : str
        Name of the log.
    roles : Roles
    guesses : tuple of str
        Sentences about the roles that were guessed.
    facts : dict
        Counts, ranges and kinds.
    findings : tuple of Finding
        Sorted by severity, the worst first.
    """

    name: str
    roles: Roles
    guesses: tuple[str, ...]
    facts: dict[str, Any]
    findings: tuple[Finding, ...]

    @property
    def stops(self) -> bool:
        """Return True where a finding stops learning."""
        return any(finding.severity == "stops" for finding in self.findings)

    def of(self, severity: str) -> tuple[Finding, ...]:
        """Return the findings of one severity."""
        return tuple(finding for finding in self.findings if finding.severity == severity)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON's types."""
        return {
            "log": self.name,
            "roles": self.roles.to_dict(),
            "guesses": list(self.guesses),
            "stops": self.stops,
            "findings": [finding.to_dict() for finding in self.findings],
            **self.facts,
        }

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write the examination as one HTML file that needs no network, and return its path.

        Raises
        ------
        ArtifactError
            The file cannot be written.
        """
        return write_page(document_of(self), path)

    def __repr__(self) -> str:
        rows = counted(self.facts.get("rows", 0), "row")
        return f"Examination({self.name}, {rows}, {counted(len(self.findings), 'finding')})"

    def _repr_html_(self) -> str:
        return fragment(document_of(self))

    def __str__(self) -> str:
        parts = [_head(self), _facts(self.facts), *(_section(self, severity) for severity in _TITLES)]
        return "\n\n".join(part for part in [*parts, _verdict(self)] if part)


def document_of(examination: Examination) -> Document:
    """Return an examination as a document: findings by severity, facts and pictures."""
    head = " ".join(_head(examination).split("\n"))
    tone: Tone = "bad" if examination.stops else "open" if examination.of("limits") else "good"
    verdict = "Stops learning" if examination.stops else "Can be learned from"
    sections = [Section("verdict", "Verdict", (Notice(verdict, _verdict(examination), tone),))]
    for severity in SEVERITIES:
        findings = examination.of(severity)
        if findings:
            items = tuple(f"{finding.text} Next: {finding.next}" for finding in findings)
            sections.append(Section(severity, f"{_TITLES[severity]} ({len(findings)})", (Items(items),)))
    facts = examination.facts
    named = tuple((name, text) for name, text in _fact_rows(facts))
    sections.append(Section("facts", "Facts", (Facts(named), *_pictures(facts), _columns(facts))))
    return Document(f"Examination of {examination.name}", head, tuple(sections))


def _pictures(facts: dict[str, Any]) -> list[Block]:
    """Return charts of rows by task and by action, and of rewards that take few values."""
    charts: list[Block] = []
    rows, actions = facts["tasks"]["histogram"], facts["actions"]
    if rows is not None:
        none = (0.0,) * len(rows["tasks"])
        edges, tasks = (tuple(map(float, rows[name])) for name in ("edges", "tasks"))
        charts.append(Histogram("Tasks by their rows", "rows of a task", edges, tasks, none, ""))
    if actions is not None and actions["most"]:
        lines = tuple(Interval(str(one["action"]), float(one["rows"]), None, None) for one in actions["most"])
        title = (
            "Rows of each action"
            if len(lines) == actions["number"]
            else f"Rows of the {len(lines)} most frequent actions"
        )
        charts.append(Intervals(title, "rows", lines))
    values = facts["reward"].get("values")
    if values:
        lines = tuple(Interval(value, float(count), None, None) for value, count in values.items())
        charts.append(Intervals("Rows of each reward", "rows", lines))
    return charts


def _columns(facts: dict[str, Any]) -> Grid:
    head = ("column", "role", "from", "to", "mean", "sd", "cannot be used")
    rows = tuple(
        (
            one["column"], one["role"],
            *(f"{one[name]:.4g}" if name in one else "" for name in ("low", "high", "mean", "sd")),
            ", ".join(f"{count:,} {reason}" for reason, count in one["unusable"].items()),
        )
        for one in facts["columns"]
    )  # fmt: skip
    return Grid(head, rows, "Columns and their roles")


def _head(examination: Examination) -> str:
    facts, actions = examination.facts, examination.facts["actions"]
    weight = examination.roles.weight
    weighted = "" if weight is None else f" (by the weights in {weight!r})"
    counts = [f"{counted(facts['rows'], 'row')}{weighted}", counted(facts["tasks"]["number"], "task")]
    if actions is not None:
        counts.append(counted(actions["number"], "action"))
    columns: dict[str, list[str]] = {}
    for role, column in examination.roles.items():
        columns.setdefault(role, []).append(column)
    roles = "; ".join(f"{role} {', '.join(names)}" for role, names in columns.items())
    return "\n".join(
        [f"{examination.name}: {', '.join(counts)}.", paragraph(f"Columns: {roles}."), *examination.guesses]
    )


def _facts(facts: dict[str, Any]) -> str:
    return table([["", ""], *_fact_rows(facts)]).strip("\n")


def _fact_rows(facts: dict[str, Any]) -> list[list[str]]:
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
    return rows


def _spread(quantiles: dict[str, int]) -> str:
    if not quantiles:
        return "none"
    if quantiles["least"] == quantiles["most"]:
        return f"{quantiles['least']:,} each"
    return f"{quantiles['least']:,} to {quantiles['most']:,}, median {quantiles['median']:,}"


def _reward(facts: dict[str, Any]) -> str:
    if facts["kind"] is None:
        return "no usable reward"
    if facts["kind"] == "constant":
        return f"constant, {facts['low']:g}"
    if facts["kind"] == "binary":
        (low, _), (high, count) = facts["values"].items()
        return f"binary, {low} or {high}; {count:,} are {high}; mean {facts['mean']:.3g}"
    kind = "whole numbers" if facts["kind"] == "count" else facts["kind"]
    return (
        f"{kind}, {facts['low']:.4g} to {facts['high']:.4g}; mean {facts['mean']:.4g}, sd {facts['sd']:.3g}"
    )


def _incumbent(facts: dict[str, Any] | None, tasks: int) -> list[list[str]]:
    if facts is None:
        return []
    rows = [["logging policy (incumbent)", _SEEMS[facts["seems"]]]]
    if facts["propensities_vary_within_tasks_and_actions"] and facts["seems"] != "without chance":
        rows.append(
            ["", "propensities differ between rows of one task and action: they depend on contexts or time"]
        )
    if facts["order_tells_nothing"]:
        rows.append(["", f"a reaction to earlier rewards cannot be tested: {facts['order_tells_nothing']}"])
    if facts["effective_rows"]:
        total = max(facts["out_of_rows"], 1)
        sizes = ", ".join(
            f"{size:,.0f} ({percent(size / total)}) for a {target} policy"
            for target, size in facts["effective_rows"].items()
        )
        rows.append(["effective sample size", sizes])
    if facts["of_first_tasks"] < tasks:
        rows.append(["", f"estimated from the first {counted(facts['of_first_tasks'], 'task')}"])
    return rows


def _time(facts: dict[str, Any] | None) -> list[list[str]]:
    if facts is None:
        return []
    return [["time", f"{facts['first']} to {facts['last']}"]]


def _repeats(facts: dict[str, Any] | None, rows: int) -> list[list[str]]:
    if facts is None:
        return []
    about = "" if facts["exact"] else "about "
    columns = f"all {len(facts['columns'])} columns" if len(facts["columns"]) > 1 else "the one column"
    number = "none" if not facts["rows"] else f"{about}{facts['rows']:,.0f} ({percent(facts['rows'] / rows)})"
    return [["rows that repeat another", f"{number}, by {columns}"]]


def _section(examination: Examination, severity: str) -> str:
    findings = examination.of(severity)
    if not findings:
        return ""
    return "\n".join([f"{_TITLES[severity]} ({len(findings)})", *(_item(finding) for finding in findings)])


def _item(finding: Finding) -> str:
    return "\n".join(f"{'- ' if not k else '  '}{line}" for k, line in enumerate(_lines(finding)))


def _lines(finding: Finding) -> Sequence[str]:
    return [*paragraph(finding.text).split("\n"), *paragraph(f"Next: {finding.next}").split("\n")]


def _verdict(examination: Examination) -> str:
    if examination.stops:
        return "`hieropo fit` refuses this log as it is."
    return "Nothing stops learning from this log."
