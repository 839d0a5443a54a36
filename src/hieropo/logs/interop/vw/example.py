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

_MOST_DIGITS = 20  # characters of a whole number of 64 bits, sign included

Features = dict[str, Any]  # a number or a text, by the name of the column

RESERVED = ("action", "reward", "pscore", "eligible", "id", "time", "sampling_weight")


class Location(NamedTuple):
    """A line of a file, from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


class ExampleError(LogError):
    """An example that cannot be read; a lenient reading sets it aside and counts it.

    Parameters
    ----------
    location : Location
    text : str
        The message, without the location.
    column : str
        Column that cannot be used; empty where it is the whole line.
    reason : str
        Phrase under which such examples are counted.
    value : object
        Value that cannot be used; None where there was none.
    """

    line: int
    column: str
    reason: str
    value: str | None

    def __init__(self, location: Location, text: str, column: str, reason: str, value: object = None) -> None:
        super().__init__(f"{location}: {text}")
        self.line, self.column, self.reason = location.line, column, reason
        self.value = None if value is None else str(value)


class NamelessError(ExampleError, SchemaError):
    """An action of an example has no id: the column that names actions is missing, at least in this line."""


@dataclass(slots=True)
class Candidate:
    """An eligible action: its tag and its features."""

    tag: str | None
    features: Features


@dataclass(slots=True)
class Example:
    """One decision of a file.

    Attributes
    ----------
    line : int
        First line, from 1.
    shared : Features
        Features that do not depend on the action.
    candidates : list of Candidate
        None in the form ``cb``, whose actions have numbers only.
    taken : int or str
        Number of the action from 1; in the form ``cb`` its label, a number or a text.
    cb_eligible : list, optional
        The eligible actions, in the form ``cb``.
    id, time, sampling_weight
        As the columns of these names.
    action : id
        Id of the logged action, from the column that names actions.
    eligible : list, optional
        Ids of the eligible actions.
    """

    line: int
    shared: Features
    candidates: list[Candidate]
    taken: Any
    reward: float
    pscore: float
    cb_eligible: list[Any] | None = None
    id: str | None = None
    time: datetime | None = None
    sampling_weight: float = 1.0
    action: Any = None
    eligible: list[Any] | None = None


@dataclass(slots=True)
class Skipped:
    """An example that is no row of the log, and the reason."""

    line: int
    reason: str


def read_or_error(read: Callable[[], Example | Skipped]) -> Example | Skipped | ExampleError:
    """Return an example, or the error of one that cannot be read."""
    try:
        return read()
    except ExampleError as error:
        return error


class ColumnNames:
    """Names of columns: one for each feature of a file."""

    def __init__(self) -> None:
        self._columns: dict[tuple[str, str], str] = {}
        self._owners: dict[str, tuple[str, str]] = {}

    def column(self, namespace: str, name: str, location: Location) -> str:
        """Return the column of a feature: ``namespace.name``, or the name alone where there is no namespace."""
        key = namespace, name
        column = self._columns.get(key)
        if column is None:
            column = f"{namespace}{'' if name.startswith('[') else '.'}{name}" if namespace else name
            column = f".{column}" if column in RESERVED else column
            if self._owners.setdefault(column, key) != key:
                raise LogError(
                    f"{location}: two features would both become the column {column!r}. Rename one of them."
                )
            self._columns[key] = column
        return column


@dataclass(slots=True)
class FeatureCollector:
    """Features of one line, combined as by Vowpal Wabbit: repeated values of a feature are summed."""

    names: ColumnNames
    location: Location
    features: Features = field(default_factory=dict)
    _anonymous: dict[str, int] = field(default_factory=dict)

    def add_number(self, namespace: str, name: str, value: float) -> None:
        """Add a feature with a number; one of value 1 with a name ``category=text`` is a text."""
        if not name:
            position = self._anonymous.get(namespace, 0)
            self._anonymous[namespace] = position + 1
            name = f"[{position}]"
        sign = name.find("=", 1)
        if sign > 0 and value == 1:
            self.add_text(namespace, name[:sign], name[sign + 1 :])
            return
        column = self.names.column(namespace, name, self.location)
        total = self.features.get(column, 0)
        if isinstance(total, str):
            raise self._type_conflict(column)
        self.features[column] = total + value

    def add_text(self, namespace: str, name: str, text: str) -> None:
        """Add a feature with a text."""
        column = self.names.column(namespace, name, self.location)
        value = self.features.setdefault(column, text)
        if not isinstance(value, str):
            raise self._type_conflict(column)
        if value != text:
            raise ExampleError(
                self.location,
                f"{column!r} is {value!r} and {text!r}. A column has one value in a row; give the features names of "
                "their own, or numbers.",
                column,
                "two texts",
                text,
            )

    def _type_conflict(self, column: str) -> ExampleError:
        return ExampleError(
            self.location,
            f"{column!r} is a number and a text in one example. Rename one of them.",
            column,
            "a number and a text",
        )


def number(text: str, location: Location, subject: str, column: str) -> float:
    """Return a text as a finite number: an int where it is a whole number of 64 bits.

    Raises
    ------
    ExampleError
        The text is no finite number; ``subject`` names the quantity in the message.
    """
    try:
        integer = int(text) if text.lstrip("+-").isdecimal() and len(text) <= _MOST_DIGITS else None
        value = float(text) if integer is None or not -(2**63) <= integer < 2**63 else integer
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ExampleError(
            location,
            f"{subject} {text!r} is not a finite number. Is the line torn, or of another form?",
            column,
            NO_NUMBER,
            text,
        )
    return value


def reward_of(cost: float) -> float:
    """Return -cost; a cost of 0 gives 0, not -0."""
    return 0.0 - float(cost)


SKIPPED = "marked _skipLearn"
DANGLING = "rewards without their decision"


def read_dsjson(lines: Lines, name: str, names: ColumnNames) -> Iterator[Example | Skipped | ExampleError]:
    """Yield the decisions of a dsjson file; the action taken is the one at ``_labelIndex``, as in Vowpal Wabbit."""
    for line, text in lines:
        if text.strip():
            yield read_or_error(partial(_decision, text, Location(name, line), names))


def _parse(text: str, location: Location) -> Mapping[str, Any]:
    try:
        event = json.loads(text)
    except ValueError as error:
        message = f"not JSON ({error}). Is the line torn, or the file of another form?"
        raise ExampleError(location, message, "", "no JSON", text) from error
    if not isinstance(event, dict):
        message = f"a JSON {type(event).__name__}; dsjson has one object in each line."
        raise ExampleError(location, message, "", "no JSON object", text)
    for prefix, subject in (("_outcomes", "decisions of several slots"), ("_label_ca", "continuous actions")):
        if any(key.startswith(prefix) for key in event):
            message = f"{prefix} belongs to {subject}, which a row of a log cannot hold."
            raise ExampleError(location, message, prefix, subject)
    return event


def _decision(text: str, location: Location, names: ColumnNames) -> Example | Skipped:
    event = _parse(text, location)
    if "c" not in event:
        if "_multi" in event or "_label_cost" in event:
            message = "no context 'c'. Is it Vowpal Wabbit's json rather than its dsjson?"
            raise ExampleError(location, message, "c", "missing")
        return Skipped(location.line, DANGLING)
    if event.get("_skipLearn"):
        return Skipped(location.line, SKIPPED)
    if event.get("_label_cost") is None:
        return Skipped(location.line, NO_LABEL)
    context = event["c"]
    if not isinstance(context, dict):
        raise ExampleError(location, "the context 'c' is no object.", "c", "no JSON object", context)
    candidates = [
        Candidate(_tag(candidate), _features_of(candidate, names, location))
        for candidate in _candidates(context, location)
    ]
    event_id = event.get("EventId")
    return Example(
        location.line, _features_of(context, names, location), candidates, _action(event, len(candidates), location),
        reward_of(_number(event, "_label_cost", location)), float(_number(event, "_label_probability", location)),
        id=None if event_id is None else str(event_id), time=_time(event, location),
        sampling_weight=1.0 / (1.0 - _drop_probability(event, location)),
    )  # fmt: skip


def _candidates(context: Mapping[str, Any], location: Location) -> list[dict[str, Any]]:
    actions = context.get("_multi", [])
    if not isinstance(actions, list):
        raise ExampleError(location, "_multi is no list of actions.", "_multi", "no list", actions)
    return [candidate for candidate in actions if isinstance(candidate, dict)]


def _drop_probability(event: Mapping[str, Any], location: Location) -> float:
    """Return the probability with which the example would have been dropped from the file."""
    drop = _number(event, "pdrop", location) if event.get("pdrop") else 0.0
    if not 0.0 <= drop < 1.0:
        message = (
            f"pdrop {drop} is no probability below 1, so the row cannot be weighted by 1 / (1 - pdrop). Correct it, or "
            "set such examples aside: lenient=True, on the command line --lenient."
        )
        raise ExampleError(location, message, "pdrop", "no probability below 1", drop)
    return drop


def _time(event: Mapping[str, Any], location: Location) -> datetime | None:
    text = event.get("Timestamp")
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except (ValueError, TypeError):
        time = None
    if time is None or time.tzinfo is None:
        message = f"a Timestamp that is no time with a zone: {text!r}. Write it as 2026-01-31T12:00:00Z."
        raise ExampleError(location, message, "Timestamp", "no time with a zone", text)
    return time


def _number(event: Mapping[str, Any], key: str, location: Location) -> float:
    if event.get(key) is None:
        raise ExampleError(
            location, f"{key} is missing. Is the line torn, or of another form?", key, "missing"
        )
    return number(str(event[key]), location, key, key)


def _action(event: Mapping[str, Any], count: int, location: Location) -> int:
    """Return the number of the action taken, from 1."""
    numbers = {
        key: event[key] + (key == "_labelIndex") if type(event[key]) is int else event[key]
        for key in ("_labelIndex", "_label_Action")
        if event.get(key) is not None
    }
    taken = next(iter(numbers.values()), None)
    if len(set(map(str, numbers.values()))) > 1:
        index, action = event["_labelIndex"], event["_label_Action"]
        message = (
            f"_labelIndex {index} counts from 0 and _label_Action {action} from 1; they name different actions. "
            "Correct one, or set such examples aside: lenient=True, on the command line --lenient."
        )
        raise ExampleError(location, message, "_label_Action", "another action than _labelIndex", action)
    if type(taken) is not int or taken < 1 or (count and taken > count):
        message = f"the action {taken} is not between 1 and {count}, the number of actions in _multi."
        raise ExampleError(
            location, message, next(iter(numbers), "_labelIndex"), "an action that is not there", taken
        )
    return taken


def _tag(candidate: Mapping[str, Any]) -> str | None:
    tag = candidate.get("_tag")
    return None if tag is None else str(tag)


def _features_of(context: Mapping[str, Any], names: ColumnNames, location: Location) -> dict[str, Any]:
    collector = FeatureCollector(names, location)
    _add_object(context, "", collector)
    return collector.features


def _add_object(context: Mapping[str, Any], namespace: str, collector: FeatureCollector) -> None:
    for key, value in context.items():
        if key == "_text":
            message = "free text in _text is not read. Leave it out, or give it as features."
            raise ExampleError(collector.location, message, "_text", "free text", value)
        if key.startswith("_") or value is None:
            continue  # no feature for Vowpal Wabbit either
        path = f"{namespace}.{key}" if namespace else key
        if isinstance(value, dict):
            _add_object(value, path, collector)
        elif isinstance(value, list):
            _add_list(value, path, collector)
        elif isinstance(value, str):
            collector.add_text(namespace, key, value)
        else:
            collector.add_number(namespace, key, _amount(value, key, collector.location))


def _add_list(values: list[Any], namespace: str, collector: FeatureCollector) -> None:
    for value in values:
        if isinstance(value, dict):
            _add_object(value, namespace, collector)
        elif isinstance(value, str | list):
            message = (
                f"the list {namespace!r} contains {value!r}; only numbers and objects can be read in lists."
            )
            raise ExampleError(
                collector.location, message, namespace, "a list of other than numbers or objects", value
            )
        elif value is not None:
            collector.add_number(namespace, "", _amount(value, namespace, collector.location))


def _amount(value: float, key: str, location: Location) -> float:
    return int(value) if isinstance(value, bool) else number(repr(value), location, key, key)


NO_LABEL, LABEL = "without a label", "label"


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the lines of one file."""

    name: str
    decode: Callable[[str], str]
    names: ColumnNames

    def split(self, line: int, text: str) -> tuple[list[str], str | None, dict[str, float | str], Location]:
        """Return the words of the label, the tag, the features and the location of a line."""
        location = Location(self.name, line)
        words, tag, features = _split(text, location)
        return words, self.decode(tag) if tag else None, self.features(features, location), location

    def features(self, text: str, location: Location) -> dict[str, float | str]:
        collector = FeatureCollector(self.names, location)
        for part in text.split("|"):
            words = part.split()
            namespace, scale = "", 1.0
            if words and not part[0].isspace():
                namespace, has_value, factor = words.pop(0).partition(":")
                subject = f"the weight of the namespace {namespace!r},"
                scale = number(factor, location, subject, namespace) if has_value else 1.0
            for word in words:
                feature, has_value, value = word.partition(":")
                amount = number(value, location, f"the value of {feature!r},", feature) if has_value else 1
                collector.add_number(
                    self.decode(namespace), self.decode(feature), amount if scale == 1 else amount * scale
                )
        return collector.features


def read_cb(
    lines: Lines, name: str, names: ColumnNames, *, quoted: bool = False
) -> Iterator[Example | Skipped | ExampleError]:
    """Yield examples ``action:cost:probability | features``, one a line; more actions in a label are the eligible ones.

    Raises
    ------
    LogError
        The file is of another form; names the file and the line.
    """
    reader = _Reader(name, unquote if quoted else str, names)
    for line, text in lines:
        if text.strip():
            yield read_or_error(partial(_cb, line, text, reader))


def _cb(line: int, text: str, reader: _Reader) -> Example | Skipped:
    words, tag, features, location = reader.split(line, text)
    if "shared" in words:
        raise LogError(
            f"{location}: 'shared' belongs to files of the form cb_adf, so this one cannot be read as cb. Read it by "
            "form='cb_adf'."
        )
    costs = [_cost(word, location) for word in words]
    taken = _observed(costs, location)
    if taken is None:
        return Skipped(line, NO_LABEL)
    cb_eligible = [action for action, *_ in costs] if len(costs) > 1 else None
    return Example(line, features, [], taken[0], reward_of(taken[1]), float(taken[2]), cb_eligible, tag)


def read_adf(
    lines: Lines, name: str, names: ColumnNames, *, quoted: bool = False
) -> Iterator[Example | Skipped | ExampleError]:
    """Yield examples of several lines, ended by an empty one: an optional shared line, then a line for each action."""
    reader = _Reader(name, unquote if quoted else str, names)
    block: list[tuple[int, str]] = []
    for line, text in lines:
        if text.strip():
            block.append((line, text))
        elif block:
            yield read_or_error(partial(_adf, block, reader))
            block = []
    if block:
        yield read_or_error(partial(_adf, block, reader))


def _adf(lines: list[tuple[int, str]], reader: _Reader) -> Example | Skipped:
    shared: dict[str, float | str] = {}
    tag: str | None = None
    candidates: list[Candidate] = []
    label: tuple[int, float, float] | None = None
    for position, (line, text) in enumerate(lines):
        words, line_tag, features, location = reader.split(line, text)
        if words[:1] == ["shared"]:
            if position:
                raise ExampleError(
                    location,
                    "a shared line inside an example. Is the empty line before it missing?",
                    "",
                    "a shared line inside",
                )
            shared, tag = features, line_tag
            continue
        observed = _observed([_cost(word, location) for word in words], location)
        candidates.append(Candidate(line_tag, features))
        if observed is not None and label is not None:
            raise ExampleError(
                location,
                "a second action of one example has a cost. Is the empty line before it missing?",
                LABEL,
                "a second cost",
                words[0],
            )
        if observed is not None:
            label = len(candidates), observed[1], observed[2]
    if label is None:
        return Skipped(lines[0][0], NO_LABEL)
    action, cost, pscore = label
    return Example(lines[0][0], shared, candidates, action, reward_of(cost), float(pscore), None, tag)


def _split(text: str, location: Location) -> tuple[list[str], str, str]:
    """Return the words of the label, the tag, and the features after the first bar, split as by Vowpal Wabbit."""
    label, has_bar, features = text.partition("|")
    words, tag = label.split(), ""
    if has_bar and words and (not label[-1].isspace() or words[-1].startswith("'")):
        tag = words.pop().removeprefix("'")
        if tag.count(":") == 2 and not words:
            raise ExampleError(
                location,
                f"{tag!r} touches the bar, so that Vowpal Wabbit takes it for a tag and the example has no label. Put "
                "a space before the bar.",
                LABEL,
                "no space before the bar",
                tag,
            )
    return words, tag, features


def _cost(word: str, location: Location) -> tuple[int | str, float | None, float]:
    """Return action, cost and probability from one word of a label."""
    action, *rest = word.split(":")
    if len(rest) > 2 or not action:
        raise ExampleError(
            location,
            f"the label {word!r} is not action:cost:probability. Is the line of another form?",
            LABEL,
            "no action:cost:probability",
            word,
        )
    cost = number(rest[0], location, "the cost", "cost") if rest else None
    pscore = number(rest[1], location, "the probability", "probability") if len(rest) > 1 else 0.0
    return int(action) if action.isdecimal() else action, cost, pscore


def _observed(
    costs: list[tuple[int | str, float | None, float]], location: Location
) -> tuple[int | str, float, float] | None:
    """Return the logged action, its cost and probability: the only action that has both; None where there is none."""
    observed = [(action, cost, p) for action, cost, p in costs if cost is not None and p > 0]
    if len(observed) > 1:
        raise ExampleError(
            location,
            f"{len(observed)} actions have a cost and a probability, but only one was taken.",
            LABEL,
            "a second cost",
        )
    if not observed and any(cost is not None for _, cost, _ in costs):
        raise ExampleError(
            location,
            "a cost without a probability above 0, which Vowpal Wabbit would not learn from. Write "
            "action:cost:probability for the action that was taken.",
            LABEL,
            "a cost without a probability above 0",
        )
    return observed[0] if observed else None
