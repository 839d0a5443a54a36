"""Vowpal Wabbit's ``dsjson``: one decision a line, as its decision service logs them."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from hieropo.adapters.vw_example import Candidate, Collected, Example, Names, Skipped, number, reward_of
from hieropo.adapters.vw_text import NO_LABEL, Lines
from hieropo.errors import LogError

SKIPPED = "marked _skipLearn"
DANGLING = "rewards without their decision"


def read_dsjson(lines: Lines, name: str, names: Names) -> Iterator[Example | Skipped]:
    """Read decisions; the action is the one at ``_labelIndex``, as Vowpal Wabbit takes it.

    Raises
    ------
    LogError
        A line that is no such decision; names the file and the line.
    """
    for line, text in lines:
        if text.strip():
            where = f"{name}, line {line}"
            yield _decision(_parsed(text, where), line, names, where)


def _parsed(text: str, where: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise LogError(
            f"{where}: not JSON ({error}). Is the line torn, or the file of another form?"
        ) from error
    if not isinstance(found, dict):
        raise LogError(f"{where}: a JSON {type(found).__name__}; dsjson has an object a line.")
    for sign, what in (("_outcomes", "decisions of several slots"), ("_label_ca", "continuous actions")):
        if any(key.startswith(sign) for key in found):
            raise LogError(f"{where}: {sign} belongs to {what}, which a row of a log cannot hold.")
    return found


def _decision(found: Mapping[str, Any], line: int, names: Names, where: str) -> Example | Skipped:
    if "c" not in found:
        if "_multi" in found or "_label_cost" in found:
            raise LogError(f"{where}: no context 'c'. Is it Vowpal Wabbit's json rather than its dsjson?")
        return Skipped(line, DANGLING)
    if found.get("_skipLearn"):
        return Skipped(line, SKIPPED)
    if found.get("_label_cost") is None:
        return Skipped(line, NO_LABEL)
    context = found["c"]
    if not isinstance(context, dict):
        raise LogError(f"{where}: the context 'c' is no object.")
    listed = [each for each in context.get("_multi", []) if isinstance(each, dict)]
    candidates = [Candidate(_tag(each), _flat(each, names, where)) for each in listed]
    drop = _number(found, "pdrop", where) if found.get("pdrop") else 0.0
    if not 0.0 <= drop < 1.0:
        raise LogError(f"{where}: pdrop {drop} is no probability below 1, so the row cannot be weighted.")
    return Example(
        line, _flat(context, names, where), candidates, _action(found, len(candidates), where),
        reward_of(_number(found, "_label_cost", where)), float(_number(found, "_label_probability", where)),
        id=found.get("EventId"), time=found.get("Timestamp"), weight=1.0 / (1.0 - drop),
    )  # fmt: skip


def _number(found: Mapping[str, Any], key: str, where: str) -> float:
    return number(str(found.get(key)), where, key)


def _action(found: Mapping[str, Any], count: int, where: str) -> int:
    """Number of the action from 1."""
    place, action = found.get("_labelIndex"), found.get("_label_Action")
    if place is not None and action is not None and place + 1 != action:
        raise LogError(
            f"{where}: _labelIndex {place} counts from 0 and _label_Action {action} from 1; they differ."
        )
    taken = action if place is None else place + 1
    if not isinstance(taken, int) or taken < 1 or (count and taken > count):
        raise LogError(f"{where}: the action {taken} is none of 1 to {count}, those of _multi.")
    return taken


def _tag(candidate: Mapping[str, Any]) -> str | None:
    tag = candidate.get("_tag")
    return None if tag is None else str(tag)


def _flat(context: Mapping[str, Any], names: Names, where: str) -> dict[str, Any]:
    collected = Collected(names, where)
    _gather(context, "", collected)
    return collected.found


def _gather(context: Mapping[str, Any], namespace: str, collected: Collected) -> None:
    for key, value in context.items():
        if key == "_text":
            raise LogError(
                f"{collected.where}: free text in _text is not read. Leave it out, or give it as features."
            )
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
            raise LogError(
                f"{collected.where}: the list {namespace!r} has {each!r} in it; numbers or objects are read."
            )
        elif each is not None:
            collected.add(namespace, "", _amount(each, namespace, collected.where))


def _amount(value: float, key: str, where: str) -> float:
    return int(value) if isinstance(value, bool) else number(repr(value), where, key)
