"""One example of a Vowpal Wabbit file: ``dsjson``, ``--cb``, or ``--cb_adf`` with shared lines."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote

from hieropo.errors import LogError, SchemaError
from hieropo.logs.bad_rows.rejects import NO_NUMBER

Lines = Iterable[tuple[int, str]]

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


SKIPPED = "marked _skipLearn"
DANGLING = "rewards without their decision"


def read_dsjson(lines: Lines, name: str, names: Names) -> Iterator[Example | Skipped | ExampleError]:
    """Read decisions; the action is the one at ``_labelIndex``, as Vowpal Wabbit takes it."""
    for line, text in lines:
        if text.strip():
            yield attempted(partial(_decision, text, Place(name, line), names))


def _parsed(text: str, where: Place) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        why = f"not JSON ({error}). Is the line torn, or the file of another form?"
        raise ExampleError(where, why, "", "no JSON", text) from error
    if not isinstance(found, dict):
        why = f"a JSON {type(found).__name__}; dsjson has an object a line."
        raise ExampleError(where, why, "", "no JSON object", text)
    for sign, what in (("_outcomes", "decisions of several slots"), ("_label_ca", "continuous actions")):
        if any(key.startswith(sign) for key in found):
            why = f"{sign} belongs to {what}, which a row of a log cannot hold."
            raise ExampleError(where, why, sign, what)
    return found


def _decision(text: str, where: Place, names: Names) -> Example | Skipped:
    found = _parsed(text, where)
    if "c" not in found:
        if "_multi" in found or "_label_cost" in found:
            why = "no context 'c'. Is it Vowpal Wabbit's json rather than its dsjson?"
            raise ExampleError(where, why, "c", "missing")
        return Skipped(where.line, DANGLING)
    if found.get("_skipLearn"):
        return Skipped(where.line, SKIPPED)
    if found.get("_label_cost") is None:
        return Skipped(where.line, NO_LABEL)
    context = found["c"]
    if not isinstance(context, dict):
        raise ExampleError(where, "the context 'c' is no object.", "c", "no JSON object", context)
    candidates = [Candidate(_tag(each), _flat(each, names, where)) for each in _candidates(context, where)]
    event = found.get("EventId")
    return Example(
        where.line, _flat(context, names, where), candidates, _action(found, len(candidates), where),
        reward_of(_number(found, "_label_cost", where)), float(_number(found, "_label_probability", where)),
        id=None if event is None else str(event), time=_time(found, where),
        sampling_weight=1.0 / (1.0 - _drop(found, where)),
    )  # fmt: skip


def _candidates(context: Mapping[str, Any], where: Place) -> list[dict[str, Any]]:
    listed = context.get("_multi", [])
    if not isinstance(listed, list):
        raise ExampleError(where, "_multi is no list of actions.", "_multi", "no list", listed)
    return [each for each in listed if isinstance(each, dict)]


def _drop(found: Mapping[str, Any], where: Place) -> float:
    """Probability with which the example was to be left out of the file."""
    drop = _number(found, "pdrop", where) if found.get("pdrop") else 0.0
    if not 0.0 <= drop < 1.0:
        why = (
            f"pdrop {drop} is no probability below 1, so the row cannot be weighted by 1 / (1 - pdrop). Correct it, or "
            "have such examples set aside: lenient=True, on the command line --lenient."
        )
        raise ExampleError(where, why, "pdrop", "no probability below 1", drop)
    return drop


def _time(found: Mapping[str, Any], where: Place) -> datetime | None:
    text = found.get("Timestamp")
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except (ValueError, TypeError):
        time = None
    if time is None or time.tzinfo is None:
        why = f"a Timestamp that is no time with a zone: {text!r}. Write it as 2026-01-31T12:00:00Z."
        raise ExampleError(where, why, "Timestamp", "no time with a zone", text)
    return time


def _number(found: Mapping[str, Any], key: str, where: Place) -> float:
    if found.get(key) is None:
        raise ExampleError(where, f"{key} is missing. Is the line torn, or of another form?", key, "missing")
    return number(str(found[key]), where, key, key)


def _action(found: Mapping[str, Any], count: int, where: Place) -> int:
    """Number of the action from 1."""
    numbers = {
        key: found[key] + (key == "_labelIndex") if type(found[key]) is int else found[key]
        for key in ("_labelIndex", "_label_Action")
        if found.get(key) is not None
    }
    taken = next(iter(numbers.values()), None)
    if len(set(map(str, numbers.values()))) > 1:
        index, action = found["_labelIndex"], found["_label_Action"]
        why = (
            f"_labelIndex {index} counts from 0 and _label_Action {action} from 1; they differ. Correct one, or "
            "have such examples set aside: lenient=True, on the command line --lenient."
        )
        raise ExampleError(where, why, "_label_Action", "another action than _labelIndex", action)
    if type(taken) is not int or taken < 1 or (count and taken > count):
        why = f"the action {taken} is none of 1 to {count}, those of _multi."
        raise ExampleError(
            where, why, next(iter(numbers), "_labelIndex"), "an action that is not there", taken
        )
    return taken


def _tag(candidate: Mapping[str, Any]) -> str | None:
    tag = candidate.get("_tag")
    return None if tag is None else str(tag)


def _flat(context: Mapping[str, Any], names: Names, where: Place) -> dict[str, Any]:
    collected = Collected(names, where)
    _gather(context, "", collected)
    return collected.found


def _gather(context: Mapping[str, Any], namespace: str, collected: Collected) -> None:
    for key, value in context.items():
        if key == "_text":
            why = "free text in _text is not read. Leave it out, or give it as features."
            raise ExampleError(collected.where, why, "_text", "free text", value)
        if key.startswith("_") or value is None:
            continue  # no feature for Vowpal Wabbit either
        inner = f"{namespace}.{key}" if namespace else key
        if isinstance(value, dict):
            _gather(value, inner, collected)
        elif isinstance(value, list):
            _gather_list(value, inner, collected)
        elif isinstance(value, str):
            collected.put(namespace, key, value)
        else:
            collected.add(namespace, key, _amount(value, key, collected.where))


def _gather_list(values: list[Any], namespace: str, collected: Collected) -> None:
    for each in values:
        if isinstance(each, dict):
            _gather(each, namespace, collected)
        elif isinstance(each, str | list):
            why = f"the list {namespace!r} has {each!r} in it; numbers or objects are read."
            raise ExampleError(
                collected.where, why, namespace, "a list of other than numbers or objects", each
            )
        elif each is not None:
            collected.add(namespace, "", _amount(each, namespace, collected.where))


def _amount(value: float, key: str, where: Place) -> float:
    return int(value) if isinstance(value, bool) else number(repr(value), where, key, key)


NO_LABEL, LABEL = "without a label", "label"


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the lines of one file."""

    name: str
    spell: Callable[[str], str]
    names: Names

    def split(self, line: int, text: str) -> tuple[list[str], str | None, dict[str, float | str], Place]:
        """Words of the label, tag, features, and where they stand."""
        where = Place(self.name, line)
        words, tag, features = _split(text, where)
        return words, self.spell(tag) if tag else None, self.features(features, where), where

    def features(self, text: str, where: Place) -> dict[str, float | str]:
        collected = Collected(self.names, where)
        for part in text.split("|"):
            words = part.split()
            namespace, scale = "", 1.0
            if words and not part[0].isspace():
                namespace, colon, factor = words.pop(0).partition(":")
                what = f"the weight of the namespace {namespace!r},"
                scale = number(factor, where, what, namespace) if colon else 1.0
            for word in words:
                feature, colon, value = word.partition(":")
                amount = number(value, where, f"the value of {feature!r},", feature) if colon else 1
                collected.add(
                    self.spell(namespace), self.spell(feature), amount if scale == 1 else amount * scale
                )
        return collected.found


def read_cb(
    lines: Lines, name: str, names: Names, *, quoted: bool = False
) -> Iterator[Example | Skipped | ExampleError]:
    """Read ``action:cost:probability | features``, one example a line; further actions are those that could be taken.

    Raises
    ------
    LogError
        The file is of another form; names the file and the line.
    """
    reader = _Reader(name, unquote if quoted else str, names)
    for line, text in lines:
        if text.strip():
            yield attempted(partial(_cb, line, text, reader))


def _cb(line: int, text: str, reader: _Reader) -> Example | Skipped:
    words, tag, features, where = reader.split(line, text)
    if "shared" in words:
        raise LogError(
            f"{where}: 'shared' stands in files of the form cb_adf. Read it as one, form='cb_adf'."
        )
    costs = [_cost(word, where) for word in words]
    taken = _observed(costs, where)
    if taken is None:
        return Skipped(line, NO_LABEL)
    listed = [each for each, *_ in costs] if len(costs) > 1 else None
    return Example(line, features, [], taken[0], reward_of(taken[1]), float(taken[2]), listed, tag)


def read_adf(
    lines: Lines, name: str, names: Names, *, quoted: bool = False
) -> Iterator[Example | Skipped | ExampleError]:
    """Read examples of several lines, ended by an empty one: perhaps a shared line, then one for each action."""
    reader = _Reader(name, unquote if quoted else str, names)
    held: list[tuple[int, str]] = []
    for line, text in lines:
        if text.strip():
            held.append((line, text))
        elif held:
            yield attempted(partial(_adf, held, reader))
            held = []
    if held:
        yield attempted(partial(_adf, held, reader))


def _adf(held: list[tuple[int, str]], reader: _Reader) -> Example | Skipped:
    shared: dict[str, float | str] = {}
    tag: str | None = None
    candidates: list[Candidate] = []
    label: tuple[int, float, float] | None = None
    for place, (line, text) in enumerate(held):
        words, mark, features, where = reader.split(line, text)
        if words[:1] == ["shared"]:
            if place:
                raise ExampleError(
                    where,
                    "a shared line inside an example. Is the empty line before it missing?",
                    "",
                    "a shared line inside",
                )
            shared, tag = features, mark
            continue
        found = _observed([_cost(word, where) for word in words], where)
        candidates.append(Candidate(mark, features))
        if found is not None and label is not None:
            raise ExampleError(
                where,
                "a second action of one example has a cost. Is the empty line before it missing?",
                LABEL,
                "a second cost",
                words[0],
            )
        if found is not None:
            label = len(candidates), found[1], found[2]
    if label is None:
        return Skipped(held[0][0], NO_LABEL)
    action, cost, pscore = label
    return Example(held[0][0], shared, candidates, action, reward_of(cost), float(pscore), None, tag)


def _split(text: str, where: Place) -> tuple[list[str], str, str]:
    """Words of the label, tag, and the features from the first bar on, as Vowpal Wabbit tells them apart."""
    label, bar, features = text.partition("|")
    words, tag = label.split(), ""
    if bar and words and (not label[-1].isspace() or words[-1].startswith("'")):
        tag = words.pop().removeprefix("'")
        if tag.count(":") == 2 and not words:
            raise ExampleError(
                where,
                f"{tag!r} touches the bar, so that Vowpal Wabbit takes it for a tag and the example has no label. Put "
                "a space before the bar.",
                LABEL,
                "no space before the bar",
                tag,
            )
    return words, tag, features


def _cost(word: str, where: Place) -> tuple[int | str, float | None, float]:
    """Action, cost and probability of one word of a label."""
    action, *rest = word.split(":")
    if len(rest) > 2 or not action:
        raise ExampleError(
            where,
            f"the label {word!r} is not action:cost:probability. Is the line of another form?",
            LABEL,
            "no action:cost:probability",
            word,
        )
    cost = number(rest[0], where, "the cost", "cost") if rest else None
    pscore = number(rest[1], where, "the probability", "probability") if len(rest) > 1 else 0.0
    return int(action) if action.isdecimal() else action, cost, pscore


def _observed(
    costs: list[tuple[int | str, float | None, float]], where: Place
) -> tuple[int | str, float, float] | None:
    """Find the action that was taken: the one with a cost and a probability."""
    found = [(action, cost, p) for action, cost, p in costs if cost is not None and p > 0]
    if len(found) > 1:
        raise ExampleError(
            where,
            f"{len(found)} actions have a cost and a probability; one can be taken.",
            LABEL,
            "a second cost",
        )
    if not found and any(cost is not None for _, cost, _ in costs):
        raise ExampleError(
            where,
            "a cost without a probability above 0, which Vowpal Wabbit would not learn from. Write "
            "action:cost:probability for the action that was taken.",
            LABEL,
            "a cost without a probability above 0",
        )
    return found[0] if found else None
