"""The nearest values of each context column at which a choice changes, all other columns as they are."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hieropo._utils.arrays import Array, Mask
from hieropo.explanation.contexts import context_spread, shown_id
from hieropo.explanation.explanation import Turn
from hieropo.features.terms.learned import LearnedColumn, LearnedTerm, LearnedTerms
from hieropo.features.terms.terms import Log, Number
from hieropo.logs.encoding import encoded_rows
from hieropo.policies.lower_bound import LCBPolicy

_STEPS, _HALVINGS, _SDS = 120, 40, 3.0
_MOST_LEVELS = 8  # levels of one column at which the choice changes

Chosen = Callable[[Sequence[Any]], list[Any]]  # the actions at some values of one column


def turns(
    policy: LCBPolicy, task: Any, x: Array, context: Any, moments: Any, mask: Mask | None, choice: Any
) -> tuple[Turn, ...]:
    """Return the values of each context column at which the choice changes.

    Columns of numbers are searched within three standard deviations of the mean in the log; those that a spline or a
    logarithm reads, within the knots or the same range of the logarithm. Of a category every level of the log is tried,
    and a missing value where the log had some. Columns that terms code need the ``context`` by the names of the log.

    Parameters
    ----------
    policy : LCBPolicy
    task : id
    x : (c,) array
        The context as the feature map reads it.
    context : mapping, array or None
        The context as the user gave it.
    moments : Moments
    mask : (1, K) bool or None
        Eligible actions.
    choice : id
        The action that is chosen at ``x``.
    """
    features = policy.features
    if features is None or features.actions is None or x.ndim > 1:
        return ()
    actions = [shown_id(action) for action in features.actions]

    def chosen(contexts: Array) -> list[Any]:
        masks = None if mask is None else np.repeat(mask, len(contexts), axis=0)
        best = policy.choose_many([task] * len(contexts), contexts, eligible=masks).index[:, 0]
        return [actions[k] for k in best.tolist()]

    spread, terms = context_spread(moments, features), getattr(features, "terms", None)
    if terms is None:
        found = () if spread is None else _of_numbers(features.columns, x, spread, chosen, choice)
    elif isinstance(context, Mapping) and set(context) == set(terms.sources):
        found = _of_sources(features, terms, context, spread, chosen, choice)
    else:
        found = ()
    return tuple(found)


def _of_numbers(
    columns: Sequence[str],
    x: Array,
    spread: tuple[Array, Array],
    chosen: Callable[[Array], list[Any]],
    choice: Any,
) -> Iterator[Turn]:
    """Yield the turns of columns that the feature map reads as they are."""
    for column, (mean, sd) in enumerate(zip(*spread, strict=True)):

        def at(values: Sequence[Any], column: int = column) -> list[Any]:
            contexts = np.repeat(x[None], len(values), axis=0)
            contexts[:, column] = values
            return chosen(contexts)

        yield from _both_ways(
            columns[column], float(x[column]), (mean - _SDS * sd, mean + _SDS * sd), at, choice
        )


def _of_sources(
    features: Any,
    terms: LearnedTerms,
    context: Mapping[str, Any],
    spread: tuple[Array, Array] | None,
    chosen: Callable[[Array], list[Any]],
    choice: Any,
) -> Iterator[Turn]:
    """Yield the turns of columns that terms code, by the names of the log."""
    leaves = [leaf for term in terms.terms for leaf in _leaves(term)]
    for column in terms.columns:
        own = [leaf for leaf in leaves if leaf.term.columns == (column.name,)]

        def at(values: Sequence[Any], name: str = column.name) -> list[Any]:
            return chosen(encoded_rows(features, [{**context, name: value} for value in values]))

        value = context[column.name]
        levels = _levels(column, own, value)
        if levels:
            others = [
                (level, action) for level, action in zip(levels, at(levels), strict=True) if action != choice
            ]
            yield from (Turn(column.name, level, None, action) for level, action in others[:_MOST_LEVELS])
        ends = None if value is None else _range(features.columns, column, own, spread)
        if ends is not None:
            yield from _both_ways(column.name, float(value), ends, at, choice)


def _leaves(term: LearnedTerm) -> Iterator[LearnedTerm]:
    if not term.factors:
        yield term
    for factor in term.factors:
        yield from _leaves(factor)


def _levels(column: LearnedColumn, terms: Sequence[LearnedTerm], value: Any) -> list[Any]:
    """Return the other levels of a column: those of its categories, yes and no, and a missing value."""
    levels: list[Any] = [True, False] if column.kind == "boolean" else []
    if column.kind in ("text", "number"):
        levels += [level for term in terms for level in term.levels]
    if column.missing:
        levels.append(None)
    return [level for level in dict.fromkeys(levels) if level != value]


def _range(
    columns: Sequence[str],
    column: LearnedColumn,
    terms: Sequence[LearnedTerm],
    spread: tuple[Array, Array] | None,
) -> tuple[float, float] | None:
    """Return the range of a column of numbers in the log; None where it is not known."""
    knots = [knot for term in terms for knot in term.knots]
    if column.kind != "number" or any(term.levels for term in terms):
        return None
    if knots:
        return min(knots), max(knots)
    for leaf in terms:
        name = next((name for name in leaf.names if name in columns), None)
        if name is None or spread is None or not isinstance(leaf.term, Number | Log):
            continue
        mean, sd = (float(values[list(columns).index(name)]) for values in spread)
        low, high = mean - _SDS * sd, mean + _SDS * sd
        if isinstance(leaf.term, Number):
            return low, high
        return float(np.exp(low)) - leaf.term.plus, float(np.exp(high)) - leaf.term.plus
    return None


def _both_ways(
    column: str, start: float, ends: tuple[float, float], chosen: Chosen, choice: Any
) -> Iterator[Turn]:
    """Yield the nearest turns below and above the value of a column."""
    middle = (ends[0] + ends[1]) / 2
    for end in ends:
        if (end - start) * (end - middle) > 0:
            turn = _turn(chosen, start, float(end), choice)
            if turn is not None:
                yield Turn(column, turn[0], end > start, turn[1])


def _turn(chosen: Chosen, start: float, end: float, choice: Any) -> tuple[float, Any] | None:
    """Return the first value between two at which another action is chosen, and that action."""
    grid = np.linspace(start, end, _STEPS + 1)
    other = [k for k, action in enumerate(chosen(grid.tolist())) if action != choice]
    if not other or other[0] == 0:
        return None
    near, far = float(grid[other[0] - 1]), float(grid[other[0]])
    for _ in range(_HALVINGS):
        middle = (near + far) / 2
        near, far = (middle, far) if chosen([middle])[0] == choice else (near, middle)
    return far, chosen([far])[0]
