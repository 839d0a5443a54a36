"""One example of a Vowpal Wabbit file, in whatever form it was written."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from hieropo.errors import LogError, SchemaError
from hieropo.sources.rejected import NO_NUMBER

_LONGEST = 20  # signs of a whole number of 64 bits

Features = dict[str, Any]  # a number or a text, by the name of the column

OWN = ("action", "reward", "pscore", "eligible", "id", "time", "sampling_weight")


class Place(NamedTuple):
    """A line of a file, from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


class ExampleError(LogError):
    """An example that cannot be read; a lenient reading sets it aside and counts it.

    Parameters
    ----------
    place : Place
    text : str
        The message, without the place.
    column : str
        Of what cannot be used; empty where it is the whole line.
    reason : str
        The word by which such examples are counted.
    value : object
        What stood there; None where nothing did.
    """

    def __init__(self, place: Place, text: str, column: str, reason: str, value: object = None) -> None:
        super().__init__(f"{place}: {text}")
        self.line, self.column, self.reason = place.line, column, reason
        self.value = None if value is None else str(value)


class NamelessError(ExampleError, SchemaError):
    """An example with an action that has no id: a column is missing, in this line at least."""


@dataclass(slots=True)
class Candidate:
    """An action that could be taken: its tag and what describes it."""

    tag: str | None
    features: Features


@dataclass(slots=True)
class Example:
    """One decision of a file.

    Attributes
    ----------
    line : int
        Its first line, from 1.
    shared : Features
        What does not depend on the action.
    candidates : list of Candidate
        None in the form ``cb``, whose actions have numbers only.
    taken : int or str
        Number of the action from 1; in the form ``cb`` whatever names it.
    listed : list, optional
        The actions that could be taken, in the form ``cb``.
    id, time, sampling_weight
        As the columns of these names.
    action : id
        The action taken, by the id that the caller wants.
    eligible : list, optional
        Ids of those that could be taken.
    """

    line: int
    shared: Features
    candidates: list[Candidate]
    taken: Any
    reward: float
    pscore: float
    listed: list[Any] | None = None
    id: str | None = None
    time: datetime | None = None
    sampling_weight: float = 1.0
    action: Any = None
    eligible: list[Any] | None = None


@dataclass(slots=True)
class Skipped:
    """An example that nothing can be learned from, and why."""

    line: int
    why: str


def attempted(read: Callable[[], Example | Skipped]) -> Example | Skipped | ExampleError:
    """Return an example, or the error that says why it cannot be read."""
    try:
        return read()
    except ExampleError as error:
        return error


class Names:
    """Names of columns: one for each feature of a file."""

    def __init__(self) -> None:
        self._columns: dict[tuple[str, str], str] = {}
        self._owners: dict[str, tuple[str, str]] = {}

    def column(self, namespace: str, name: str, where: Place) -> str:
        """``namespace.name``, or the name alone where there is no namespace."""
        key = namespace, name
        found = self._columns.get(key)
        if found is None:
            found = f"{namespace}{'' if name.startswith('[') else '.'}{name}" if namespace else name
            found = f".{found}" if found in OWN else found
            if self._owners.setdefault(found, key) != key:
                raise LogError(f"{where}: two features would be the column {found!r}. Rename one of them.")
            self._columns[key] = found
        return found


@dataclass(slots=True)
class Collected:
    """Features of one line, put together as Vowpal Wabbit does: a number that comes twice is added up."""

    names: Names
    where: Place
    found: Features = field(default_factory=dict)
    _anonymous: dict[str, int] = field(default_factory=dict)

    def add(self, namespace: str, name: str, value: float) -> None:
        """Add a feature with a number; one of value 1 that is called ``category=text`` is a text."""
        if not name:
            place = self._anonymous.get(namespace, 0)
            self._anonymous[namespace] = place + 1
            name = f"[{place}]"
        sign = name.find("=", 1)
        if sign > 0 and value == 1:
            self.put(namespace, name[:sign], name[sign + 1 :])
            return
        column = self.names.column(namespace, name, self.where)
        held = self.found.get(column, 0)
        if isinstance(held, str):
            raise self._both(column)
        self.found[column] = held + value

    def put(self, namespace: str, name: str, text: str) -> None:
        """Add a feature with a text."""
        column = self.names.column(namespace, name, self.where)
        held = self.found.setdefault(column, text)
        if not isinstance(held, str):
            raise self._both(column)
        if held != text:
            raise ExampleError(
                self.where,
                f"{column!r} is {held!r} and {text!r}. A column has one value in a row; give the features names of "
                "their own, or numbers.",
                column,
                "two texts",
                text,
            )

    def _both(self, column: str) -> ExampleError:
        return ExampleError(
            self.where,
            f"{column!r} is a number and a text in one example. Rename one of them.",
            column,
            "a number and a text",
        )


def number(text: str, where: Place, what: str, column: str) -> float:
    """Read a finite number of a column: a whole one of 64 bits where it is written so.

    Raises
    ------
    ExampleError
        It is none; ``what`` says of what it was to be the number.
    """
    try:
        whole = int(text) if text.lstrip("+-").isdecimal() and len(text) <= _LONGEST else None
        value = float(text) if whole is None or not -(2**63) <= whole < 2**63 else whole
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ExampleError(
            where,
            f"{what} {text!r} is not a finite number. Is the line torn, or of another form?",
            column,
            NO_NUMBER,
            text,
        )
    return value


def reward_of(cost: float) -> float:
    """Reward of a cost: 0 stays 0, without a sign."""
    return 0.0 - float(cost)
