"""What was found in a log: how bad it is, where it stands, and what to do."""

from dataclasses import dataclass
from typing import Any, Literal

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
