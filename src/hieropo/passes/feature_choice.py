"""The choice of the feature map of a log: a given map, or one made from the log's columns and actions."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hieropo._utils.arrays import Array
from hieropo.errors import InputError, SchemaError
from hieropo.features.maps import Columns, Crossed, FeatureMap, indicator, merged_map, per_action
from hieropo.features.terms.learned import LearnedTerms
from hieropo.features.terms.parsing import terms_of
from hieropo.features.terms.terms import Term, Terms
from hieropo.logs.bad_rows.rejects import Rejects
from hieropo.logs.reading import FirstRows, distinct_values, usable_actions
from hieropo.moments.recentring import has_movable_origin, near_first_rows, offset_near
from hieropo.passes.action_numbers import Joining
from hieropo.passes.designs import NAMED, is_formula
from hieropo.rows.batches import Roles

FeatureChoice = FeatureMap | LearnedTerms | Terms | Term | Sequence[str | Term] | str | None


def check_choice(choice: object) -> None:
    """Raise InputError for a value that is no feature map, no name of one, and no formula.

    Raises
    ------
    InputError
        The message has the value, and the position of the error in a formula.
    """
    if choice is None or choice in NAMED or isinstance(choice, FeatureMap | LearnedTerms):
        return
    if not is_formula(choice):
        raise InputError(
            f"features={choice!r} is not known; a formula such as 'device + price', a list of terms, a feature map, "
            "'per-action', 'indicator' or 'columns' is needed."
        )
    terms_of(choice)  # type: ignore[arg-type]  # a formula


def feature_map(
    choice: FeatureChoice | LearnedTerms, source: Any, roles: Roles, rejects: Rejects | None = None
) -> FeatureMap:
    """Return a given map, or the named map of the log's columns and its distinct actions.

    None means "columns" without an action column; "per-action" where context columns are named; else "indicator".
    Learned terms make a map of the kind that fits the columns, with the terms. With
    ``rejects`` its actions are those of the rows that are not set aside.

    Raises
    ------
    SchemaError
        The named columns do not fit the map.
    LogError
        The column of actions holds a null, or there is no row.
    """
    return _map_of(choice, roles, lambda column: _all_actions(source, column, roles, rejects))


def map_with(choice: FeatureChoice | LearnedTerms, roles: Roles, actions: Sequence[Any]) -> FeatureMap:
    """Return a given map, or the named map of the log's columns with these actions; errors as :func:`feature_map`."""
    return _map_of(choice, roles, lambda _: tuple(actions))


def first_map(
    choice: FeatureChoice | LearnedTerms,
    source: Any,
    roles: Roles,
    rejects: Rejects | None,
    first: Callable[[], FirstRows],
) -> tuple[FeatureMap, Joining]:
    """Return the feature map with which a pass begins, and which actions join it in the pass.

    Whatever a map learns from the rows is settled here, before the pass, but for the actions of a named map: those of
    the first rows tell how many to expect, and the pass, which numbers ids in any case, finds them all.

    Actions still have a read of their own where rows may be set aside and lists of eligible actions are checked against
    the map, as a list with an action that nobody takes is unusable; and where the first rows have no usable action.

    Raises
    ------
    SchemaError, LogError
        As of :func:`feature_map`.
    """
    joining: Joining = "none"

    def actions(column: str) -> tuple[Any, ...]:
        nonlocal joining
        first_actions = () if checks_lists(roles, rejects) else first().ids(column)
        joining = "all" if first_actions else "none"
        return first_actions or _all_actions(source, column, roles, rejects)

    return _map_of(choice, roles, actions), joining


def checks_lists(roles: Roles, rejects: Rejects | None) -> bool:
    """Return True where a row may be set aside for an action in its list, so that all actions are needed at once."""
    return rejects is not None and roles.eligible is not None


def _all_actions(source: Any, column: str, roles: Roles, rejects: Rejects | None) -> tuple[Any, ...]:
    return distinct_values(source, column) if rejects is None else usable_actions(source, roles, rejects)


def _map_of(
    choice: FeatureChoice | LearnedTerms, roles: Roles, actions_of: Callable[[str], tuple[Any, ...]]
) -> FeatureMap:
    """Return a given map, or a named one with the actions that ``actions_of`` returns for their column."""
    if isinstance(choice, LearnedTerms):
        kind = "columns" if choice.intercept else "per-action"
        return replace(_map_of(kind, roles, actions_of), terms=choice)  # type: ignore[type-var]  # a dataclass
    if choice is None:
        choice = "columns" if roles.action is None else "per-action" if roles.context else "indicator"
    if not isinstance(choice, str):
        return _checked_map(choice, roles)  # type: ignore[arg-type]  # other choices are learned before
    if choice == "columns":
        if not roles.context:
            raise SchemaError(
                "No column is named that features can be made of. "
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
    actions = actions_of(roles.action)
    return per_action(actions, roles.context) if choice == "per-action" else indicator(actions)


def joined_actions(
    features: FeatureMap, source: Any, roles: Roles, rejects: Rejects | None = None
) -> FeatureMap:
    """Return the map with the actions of a log besides its own; errors as :func:`feature_map`."""
    terms = getattr(features, "terms", None)
    more = feature_map(choice_name(features) if terms is None else terms, source, roles, rejects)
    if set(more.actions or ()) <= set(features.actions or ()):
        return features
    return merged_map(features, more)


def with_first_origin(features: FeatureMap, first: FirstRows) -> FeatureMap:
    """Return the map for the sums of a log: with an origin near its first rows, where these lie far from 0."""
    if not has_movable_origin(features):
        return features
    contexts = first.numbers(features.columns)
    return features if contexts is None else near_first_rows(features, contexts)


def reward_offset(features: FeatureMap, first: FirstRows, reward: str) -> Array | None:
    """Return the offset for the sums of a log, where its first rewards lie far from 0; else None."""
    rewards = first.numbers((reward,))
    if rewards is None:
        return None
    return offset_near(features, rewards[:, 0], lambda: first.numbers(features.columns))


def has_origin(features: object) -> bool:
    """Return True for a map that has an origin, so that the log does not choose one."""
    return getattr(features, "origin", None) is not None


def measured_from(features: Any) -> dict[str, str]:
    """Return the expression for each context column whose origin is not 0, such as "stamp - 1.7e+09"."""
    origin, reference = getattr(features, "origin", None), getattr(features, "reference_column", None)
    if origin is None:
        return {}
    points = dict(zip(features.columns, origin, strict=True))
    expressions = {}
    for column, value in points.items():
        if value and column != reference:
            share, of = (value, "") if reference is None else (value / points[reference], f" {reference}")
            expressions[column] = f"{column} {'-' if share > 0 else '+'} {abs(share):.12g}{of}"
    return expressions


def origin_note(features: Any) -> str:
    """Return a sentence about the origin of the columns; "" where the origin is 0."""
    expressions = measured_from(features)
    if not expressions:
        return ""
    intercept = (
        "" if features.reference_column else " The intercept of an action is its mean reward at that origin."
    )
    return f"Columns far from 0 would lose precision, so the features are {', '.join(expressions.values())}.{intercept}"


def features_note(features: Any) -> str:
    """Return sentences about the terms of a feature map and the origin of its columns; "" where it has neither."""
    terms = getattr(features, "terms", None)
    return " ".join(filter(None, ["" if terms is None else terms.described(), origin_note(features)]))


def _checked_map(features: FeatureMap, roles: Roles) -> FeatureMap:
    if tuple(features.columns) != roles.context:
        raise SchemaError(
            f"context={list(roles.context)} differs from the columns of the feature map, {list(features.columns)}."
        )
    if features.actions is not None and roles.action is None:
        raise SchemaError(
            "The feature map has action ids, and no column of actions is named. Name it: action='...'."
        )
    return features


def choice_name(features: FeatureMap) -> str:
    """Return the name of the choice that makes such a map."""
    if isinstance(features, Columns):
        return "columns"
    if isinstance(features, Crossed) and features.table is None:
        return "per-action" if features.columns else "indicator"
    return "a map of its own"
