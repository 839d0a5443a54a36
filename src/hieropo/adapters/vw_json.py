"""Vowpal Wabbit's ``dsjson``: one decision a line, as its decision service logs them."""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any

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
from hieropo.adapters.vw_text import NO_LABEL, Lines

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
