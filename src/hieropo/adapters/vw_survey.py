"""A first reading of a Vowpal Wabbit file, in memory that grows with its columns and not with its rows."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from hieropo.adapters.vw_example import Example, Features, Skipped
from hieropo.core.ids import abbreviate
from hieropo.errors import SchemaError
from hieropo.sources.arrays import EXACT

TYPES = {"text": pa.string(), "whole": pa.int64(), "real": pa.float64()}

_SAID = {"text": "text", "whole": "number", "real": "number"}
_EXTRAS = ("id", "time")


@dataclass(slots=True)
class Columns:
    """Columns of features: whether each holds text, whole numbers or others, its texts, and how many rows have one."""

    kinds: dict[str, str] = field(default_factory=dict)
    texts: dict[str, set[str]] = field(default_factory=dict)
    rows: Counter[str] = field(default_factory=Counter)
    _lines: dict[str, int] = field(default_factory=dict)

    def note(self, features: Features, line: int, path: object) -> None:
        """Take down the features of one example."""
        for name, value in features.items():
            exact = isinstance(value, int) and -EXACT <= value <= EXACT
            kind = "text" if isinstance(value, str) else "whole" if exact else "real"
            known = self.kinds.setdefault(name, kind)
            first = self._lines.setdefault(name, line)
            if "text" in (kind, known) and kind != known:
                raise SchemaError(
                    f"{path}: {name!r} is a {_SAID[known]} in line {first} and a {_SAID[kind]} in line {line}. Rename "
                    "one of them, or write it alike."
                )
            if kind == "text":
                self.texts.setdefault(name, set()).add(value)
                self.rows[name] += 1
            elif kind == "real":
                self.kinds[name] = kind


@dataclass(slots=True)
class Survey:
    """The result of one reading of a file.

    Attributes
    ----------
    rows : int
    skipped : Counter
        Examples that are no rows, by reason.
    shared, own : Columns
        Features that do not depend on the action, and those of the actions taken.
    ids : dict
        Distinct ids of actions, in order of appearance.
    listed : bool
        Whether any example says which actions could be taken.
    extras : set of str
        Columns beside action, reward and pscore that some example has.
    """

    rows: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    shared: Columns = field(default_factory=Columns)
    own: Columns = field(default_factory=Columns)
    ids: dict[Any, None] = field(default_factory=dict)
    listed: bool = False
    extras: set[str] = field(default_factory=set)

    def own_name(self, name: str) -> str:
        """Column of a feature of the action taken."""
        return f"action.{name}" if name in self.shared.kinds else name

    def kinds(self) -> dict[str, str]:
        """Kind of every column of features."""
        return self.shared.kinds | {self.own_name(name): kind for name, kind in self.own.kinds.items()}

    def texts(self) -> dict[str, set[str]]:
        """Texts of every column that holds text."""
        return self.shared.texts | {self.own_name(name): found for name, found in self.own.texts.items()}

    def lacking(self, name: str) -> bool:
        """Return whether some row has no text in a column of text."""
        return self.rows > (
            self.shared.rows | {self.own_name(column): rows for column, rows in self.own.rows.items()}
        ).get(name, 0)

    def id_type(self, path: object) -> pa.DataType:
        """Arrow type of the ids of actions.

        Raises
        ------
        SchemaError
            Some are text and some are numbers.
        """
        try:
            return pa.array(list(self.ids)).type
        except (pa.ArrowException, OverflowError):
            raise SchemaError(
                f"{path}: actions are of unlike types, such as {abbreviate(list(self.ids), 10)}. Write them alike."
            ) from None


def survey(examples: Iterable[Example | Skipped], path: object) -> Survey:
    """Read a file once."""
    found = Survey()
    for each in examples:
        if isinstance(each, Skipped):
            found.skipped[each.why] += 1
            continue
        found.rows += 1
        found.shared.note(each.shared, each.line, path)
        if each.candidates:
            found.own.note(each.candidates[each.taken - 1].features, each.line, path)
        found.ids.setdefault(each.action)
        if each.eligible is not None:
            found.listed = True
            found.ids.update(dict.fromkeys(each.eligible))
        found.extras.update(name for name in _EXTRAS if getattr(each, name) is not None)
        if each.sampling_weight != 1.0:
            found.extras.add("sampling_weight")
    return found
