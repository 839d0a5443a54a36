"""Vowpal Wabbit's text lines for contextual bandits: ``--cb``, and ``--cb_adf`` with shared lines."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from urllib.parse import unquote

from hieropo.adapters.vw_example import (
    Candidate,
    Collected,
    Example,
    ExampleError,
    Names,
    Place,
    Skipped,
    attempted,
    number,
    reward_of,
)
from hieropo.errors import LogError

NO_LABEL, LABEL = "without a label", "label"
Lines = Iterable[tuple[int, str]]


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
