"""Rows that were set aside of a log, as a value."""

from dataclasses import dataclass
from typing import Any, Literal

from hieropo.errors import LogError
from hieropo.text import counted

_IN_WORDS = {"missing": "a missing value", "infinite": "an infinite value"}
NOTHING = ("missing", "NaN")  # reasons of values that are not there
NO_NUMBER = "not a number"  # the reason of text where a number is needed
ROUNDED = "an id that may be rounded"  # the reason of floats so large that different whole numbers become one
LIST_ROUNDED = "a list with an id that may be rounded"

_MOST = 0.5  # share of rows that may be set aside


@dataclass(frozen=True, slots=True)
class Reason:
    """A count of rows that were set aside because of one column, with the first of them.

    Parameters
    ----------
    column, reason : str
        The column is empty where it is a whole line of a file.
    rows : int
    first_row : int
        Number in the whole log, from 0; where the unit is a line, that of the line in its file, from 1.
    value : str or None
        What stood there; None where nothing did.
    unit : "row" or "line"
    """

    column: str
    reason: str
    rows: int
    first_row: int
    value: str | None
    unit: Literal["row", "line"] = "row"

    def __str__(self) -> str:
        reason = _IN_WORDS.get(self.reason, self.reason)
        fault = reason if reason == NO_NUMBER else f"with {reason}"
        place = f" in {self.column!r}" if self.column else ""
        value = "" if self.value is None or self.reason in NOTHING else f": {_short(self.value)}"
        return f"{self.rows:,} {fault}{place} (first in {self.unit} {self.first_row:,}{value})"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON's types."""
        return {
            "column": self.column, "reason": self.reason, "rows": self.rows,
            f"first_{self.unit}": self.first_row, "value": self.value,
        }  # fmt: skip


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
    """Rows that were set aside of a log.

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
        return f"{self.rows:,} of {counted(self.read, 'row')} ({self.share:.2%})" + (
            f": {why}" if why else ""
        )

    @property
    def listed(self) -> str:
        """A sentence, after a space, that says where the rows are listed; empty where they are not."""
        return "" if self.file is None else f" Each is listed in {self.file}."

    def check(
        self, *, lenient: bool, cause: str = "Is it the right column, and was a join complete?"
    ) -> None:
        """Refuse what is left of a log where it cannot stand for the whole.

        Parameters
        ----------
        lenient : bool
            Whether rows may be set aside.
        cause : str
            What to look for where they are too many.

        Raises
        ------
        LogError
            Rows had to be set aside and may not be; more than half were.
        """
        if self.rows and not lenient:
            raise LogError(
                f"{self.counted()} cannot be used.{self.listed} Mend or drop them, or have such rows set aside: "
                "lenient=True, on the command line --lenient."
            )
        if self.share > _MOST:
            raise LogError(
                f"{self.counted()} would have to be set aside, and what is left does not stand for the log."
                f"{self.listed} {cause} If the other rows are a log of their own, hand over those."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON's types; ids that it lacks become text."""
        return {
            "read": self.read,
            "rows": self.rows,
            "reasons": [each.to_dict() for each in self.reasons],
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
