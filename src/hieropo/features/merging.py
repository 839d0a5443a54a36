"""One feature map for moments that were made with two."""

from dataclasses import replace
from typing import Any

import numpy as np

from hieropo._utils.arrays import Codes
from hieropo.errors import MismatchError
from hieropo.features.fingerprints import Fingerprinted
from hieropo.features.maps import FeatureMap
from hieropo.features.per_action import Crossed


def merged_map(one: FeatureMap, other: FeatureMap) -> FeatureMap:
    """Return the map with the actions of both, where each action has coefficients of its own; else the one map of both.

    Maps that list the same actions in the same order keep it; otherwise actions are sorted, so that it does not matter
    which moments are put together first. Columns are measured from where the first map does.

    Raises
    ------
    MismatchError
        They differ in more than their actions; names what differs.
    """
    if one.fingerprint == at_origin(other, one).fingerprint:
        return one
    told = _differences(one, other)
    if told:
        raise MismatchError(
            f"These moments do not combine, since they were made with different features: {'; '.join(told)}. Make both "
            "again with the same columns and one feature map."
        )
    assert isinstance(one, Crossed)
    assert isinstance(other, Crossed)
    return replace(one, actions=_sorted_union(one.actions, other.actions))


def at_origin(features: FeatureMap, other: FeatureMap) -> FeatureMap:
    """Return a map that measures its columns from where another does, where both have the same columns."""
    mine, theirs = features, other
    if (
        not (isinstance(mine, Fingerprinted) and isinstance(theirs, Fingerprinted))
        or mine.columns != theirs.columns
    ):
        return features
    if getattr(mine, "intercept", False) != getattr(theirs, "intercept", False):
        return features
    found: FeatureMap = mine.recentred(theirs.origin, theirs.pivot)
    return found


def _differences(one: FeatureMap, other: FeatureMap) -> list[str]:
    if type(one) is not type(other):
        return [f"one map is {_named(one)}, the other {_named(other)}"]
    told = []
    if one.columns != other.columns:
        order = ", the same in another order" if sorted(one.columns) == sorted(other.columns) else ""
        told.append(f"context columns {list(one.columns)} and {list(other.columns)}{order}")
    if isinstance(one, Crossed) and isinstance(other, Crossed):
        told += _crossed_differences(one, other)
    return told


def _crossed_differences(one: Crossed, other: Crossed) -> list[str]:
    told = []
    if one.intercept != other.intercept:
        told.append(f"an intercept in the {'first' if one.intercept else 'second'} only")
    if (one.table is None) != (other.table is None):
        told.append("actions with coefficients of their own, and actions described by a table")
    elif one.table is not None and one.actions != other.actions:
        told.append(f"actions that a table describes, {list(one.actions)} and {list(other.actions)}")
    elif one.table is not None and not np.array_equal(one.table, np.asarray(other.table)):
        told.append("the tables that describe the actions")
    elif one.table_names != other.table_names:
        told.append(f"names of the tables' columns, {one.table_names} and {other.table_names}")
    return told


def _named(features: FeatureMap) -> str:
    return f"of columns {list(features.columns)}" if features.actions is None else "of actions"


def _sorted_union(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
    if one == other:
        return one
    try:
        return tuple(sorted({*one, *other}))
    except TypeError as error:
        kinds = [sorted({type(action).__name__ for action in each}) for each in (one, other)]
        raise MismatchError(
            f"These moments do not combine: their actions are of the types {kinds[0]} and {kinds[1]}, such as "
            f"{one[0]!r} and {other[0]!r}. Give the column one type, or make both with one feature map."
        ) from error


def places_in(whole: FeatureMap, part: FeatureMap) -> Codes:
    """Position in one map of each action of another, whose actions are all among its own."""
    known = {action: position for position, action in enumerate(whole.actions or ())}
    return np.array([known[action] for action in part.actions or ()], dtype=np.int64)
