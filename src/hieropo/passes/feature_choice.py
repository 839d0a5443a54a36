"""Choose the feature map of a log: the one that was handed in, or one made for the log's columns and actions."""

from typing import Any, Literal

from hieropo._utils.arrays import Array
from hieropo.errors import InputError, SchemaError
from hieropo.features.maps import Columns, Crossed, FeatureMap, indicator, merged_map, per_action
from hieropo.logs.bad_rows.rejects import Rejects
from hieropo.logs.reading import distinct_values, first_contexts, usable_actions
from hieropo.moments.recentring import movable, near, offset_near
from hieropo.rows.batches import Roles

FeatureChoice = FeatureMap | Literal["per-action", "indicator", "columns"] | None

_NAMED = ("per-action", "indicator", "columns")


def check_choice(choice: object) -> None:
    """Refuse what is no feature map and no name of one.

    Raises
    ------
    InputError
        Says what it is.
    """
    named = choice in _NAMED if isinstance(choice, str) else isinstance(choice, FeatureMap)
    if choice is not None and not named:
        raise InputError(
            f"features={choice!r}; a feature map, 'per-action', 'indicator' or 'columns' is needed."
        )


def feature_map(
    choice: FeatureChoice, source: Any, roles: Roles, rejects: Rejects | None = None
) -> FeatureMap:
    """Return the map itself, or make one of the log's columns and of the distinct actions in it.

    None means "columns" without an action column; "per-action" where context columns are named; else "indicator". With
    ``rejects`` its actions are those of the rows that are not set aside.

    Raises
    ------
    SchemaError
        The columns that are named do not fit the map.
    LogError
        The column of actions holds a null, or there is no row.
    """
    if choice is None:
        choice = "columns" if roles.action is None else "per-action" if roles.context else "indicator"
    if not isinstance(choice, str):
        return _fitting(choice, roles)
    if choice == "columns":
        if not roles.context:
            raise SchemaError(
                "There is no column to make features of. "
                + (
                    "Name action='...', the column of the actions, or context=[...], columns that describe the "
                    "action taken."
                    if roles.action is None
                    else "The features 'columns' are context columns: name some, or use 'indicator'."
                )
            )
        return Columns(roles.context)
    if roles.action is None:
        raise SchemaError(f"features={choice!r} needs an action column; name it, action='...'.")
    if choice == "indicator" and roles.context:
        raise SchemaError(
            f"features='indicator' is one coefficient for each action and reads no context, but "
            f"context={list(roles.context)} is named. Leave the context out, or use 'per-action'."
        )
    actions = (
        distinct_values(source, roles.action) if rejects is None else usable_actions(source, roles, rejects)
    )
    return per_action(actions, roles.context) if choice == "per-action" else indicator(actions)


def joined_actions(
    features: FeatureMap, source: Any, roles: Roles, rejects: Rejects | None = None
) -> FeatureMap:
    """Return the map with the actions of a log besides its own; errors as :func:`feature_map`."""
    more = feature_map(kind_of_map(features), source, roles, rejects)  # type: ignore[arg-type]  # a name
    if set(more.actions or ()) <= set(features.actions or ()):
        return features
    return merged_map(features, more)


def measured_near(features: FeatureMap, source: Any) -> FeatureMap:
    """Return the map with which the sums of a log are taken: from near its first rows, where these lie far from 0."""
    if not movable(features):
        return features
    rows = first_contexts(source, features.columns)
    return features if rows is None else near(features, rows)


def reward_offset(features: FeatureMap, source: Any, reward: str) -> Array | None:
    """Return the offset with which the sums of a log are taken, where its first rewards lie far from 0."""
    rewards = first_contexts(source, (reward,))
    if rewards is None:
        return None
    return offset_near(features, rewards[:, 0], lambda: first_contexts(source, features.columns))


def has_origin(features: object) -> bool:
    """Return whether a map says itself where it measures its columns from, so that a log does not choose."""
    return getattr(features, "origin", None) is not None


def measured_from(features: Any) -> dict[str, str]:
    """Return what a map takes for each context column that it does not measure from 0, such as "stamp - 1.7e+09"."""
    origin, pivot = getattr(features, "origin", None), getattr(features, "pivot", None)
    if origin is None:
        return {}
    points = dict(zip(features.columns, origin, strict=True))
    found = {}
    for column, value in points.items():
        if value and column != pivot:
            share, of = (value, "") if pivot is None else (value / points[pivot], f" {pivot}")
            found[column] = f"{column} {'-' if share > 0 else '+'} {abs(share):.12g}{of}"
    return found


def origin_note(features: Any) -> str:
    """Say in a sentence where a map measures its columns from; nothing where that is 0."""
    found = measured_from(features)
    if not found:
        return ""
    there = "" if features.pivot else " The coefficient of an action alone is its reward there."
    return f"Columns that lie far from 0 would cost digits, so the features are {', '.join(found.values())}.{there}"


def _fitting(features: FeatureMap, roles: Roles) -> FeatureMap:
    if tuple(features.columns) != roles.context:
        raise SchemaError(
            f"context={list(roles.context)} differs from the columns of the feature map, {list(features.columns)}."
        )
    if features.actions is not None and roles.action is None:
        raise SchemaError(
            "This feature map knows action ids, so the log needs an action column: action='...'."
        )
    return features


def kind_of_map(features: FeatureMap) -> str:
    """Name of the choice that makes such a map."""
    if isinstance(features, Columns):
        return "columns"
    if isinstance(features, Crossed) and features.table is None:
        return "per-action" if features.columns else "indicator"
    return "a map of its own"
