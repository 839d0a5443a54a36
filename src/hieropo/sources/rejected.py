"""What was set aside of a log, as a value."""

from dataclasses import dataclass
from typing import Any

NOTHING = ("missing", "NaN")  # reasons of values that are not there
NO_NUMBER = "not a number"  # the reason of text where a number is needed
ROUNDED = "an id that may be rounded"  # the reason of floats so large that different whole numbers become one
LIST_ROUNDED = "a list with an id that may be rounded"


@dataclass(frozen=True, slots=True)
class Reason:
    """How many rows were set aside because of one column, with the first of them.

    Parameters
    ----------
    column, reason : str
    rows : int
    first_row : int
        Number in the whole log, from 0.
    value : str or None
        What stood there; None where nothing did.
    """

    column: str
    reason: str
    rows: int
    first_row: int
    value: str | None

    def __str__(self) -> str:
        what = self.reason if self.reason == NO_NUMBER else f"with {self.reason}"
        value = "" if self.value is None or self.reason in NOTHING else f": {_short(self.value)}"
        return f"{self.rows:,} {what} in {self.column!r} (first in row {self.first_row:,}{value})"


@dataclass(frozen=True, slots=True)
class Uneven:
    """An action whose rows were set aside more or less often than chance would.

    Parameters
    ----------
    action : id
    rows : int
        How many were set aside.
    expected : float
        How many would be if it had nothing to do with the action.
    """

    action: Any
    rows: int
    expected: float


@dataclass(frozen=True, slots=True)
class Rejected:
    """What was set aside of a log.

    Parameters
    ----------
    read : int
        Rows of the log.
    rows : int
        How many of them were set aside. One can have more than one reason.
    reasons : tuple of Reason
        In the order of the log.
    uneven : tuple of Uneven
        Actions with which it had to do.
    lost_tasks : tuple of ids
        Tasks of which no row is left; the first of them, and how many, ``lost``.
    lost : int
    file : str or None
        Where the rows are listed.
    texts : tuple of str
        Columns of text that were read as numbers.
    """

    read: int
    rows: int
    reasons: tuple[Reason, ...] = ()
    uneven: tuple[Uneven, ...] = ()
    lost_tasks: tuple[Any, ...] = ()
    lost: int = 0
    file: str | None = None
    texts: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """Share of the rows that were set aside."""
        return self.rows / max(self.read, 1)

    def counted(self) -> str:
        """Say how many rows and why."""
        why = ", ".join(str(reason) for reason in self.reasons)
        return f"{self.rows:,} of {self.read:,} rows ({self.share:.2%})" + (f": {why}" if why else "")

    def to_dict(self) -> dict[str, Any]:
        """Return JSON's types; ids that it lacks become text."""
        return {
            "read": self.read,
            "rows": self.rows,
            "reasons": [
                {name: getattr(each, name) for name in ("column", "reason", "rows", "first_row", "value")}
                for each in self.reasons
            ],
            "uneven_actions": [
                {"action": _written(each.action), "rows": each.rows, "expected": each.expected}
                for each in self.uneven
            ],
            "lost_tasks": self.lost,
            "file": self.file,
            "texts_read_as_numbers": list(self.texts),
        }


def _short(value: str) -> str:
    return value if len(value) <= 40 else value[:37] + "..."


def _written(key: Any) -> Any:
    return key if isinstance(key, str | int | float) else str(key)
