"""Feature maps, and one map for moments that were made with two."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.brief import brief
from hieropo.errors import InputError, MismatchError, SchemaError
from hieropo.features.fingerprints import Fingerprinted, checked_origin, checked_terms, stored_terms
from hieropo.features.per_action import Crossed, matrix
from hieropo.features.terms.learned import LearnedTerms, terms_differences
from hieropo.rows.actions import Actions
from hieropo.rows.columns import context_names, contexts

__all__ = [
    "Columns",
    "Crossed",
    "FeatureMap",
    "embedding",
    "feature_map_from_dict",
    "indicator",
    "per_action",
]


@runtime_checkable
class FeatureMap(Protocol):
    """A value that turns contexts (n, c) and actions (n,) into features (n, d).

    Equal maps have equal fingerprints. Moments of different maps do not add.
    """

    @property
    def dim(self) -> int:
        """The dimension d."""

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each of the d features."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The context columns that are read, in this order."""

    @property
    def actions(self) -> tuple[Any, ...] | None:
        """The ids of the K actions; None where phi does not depend on an action id."""

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the canonical JSON of ``to_dict()``, in hexadecimal."""

    def phi(self, context: ArrayLike | None, action: ArrayLike | None = None) -> Array:
        """Return the features (n, d) of contexts (n, c) and action codes (n,)."""

    def candidates(self, context: ArrayLike) -> Array:
        """Return the features (n, K, d) of every action in contexts (n, c)."""

    def action_codes(self, ids: object, *, first_row: int = 0) -> Codes:
        """Return the position in ``actions`` of each id (n,)."""

    def to_dict(self) -> dict[str, Any]:
        """Return the map as JSON can hold it; :func:`feature_map_from_dict` reads it back exactly."""


@dataclass(frozen=True, slots=True, eq=False)
class Columns(Fingerprinted):
    """The context columns as they are: phi = x, of the action taken.

    For logs whose columns already describe the action. There is no list of actions, so that requests bring the
    features of each candidate.

    Parameters
    ----------
    columns : tuple of str
    origin : tuple of float, optional
        One number for each column: phi_j = x_j - (origin_j / origin_p) x_p. A large offset then loses no precision.
    reference_column : str, optional
        The column p relative to which the others are taken; it stays as it is. Only with an origin.
    terms : LearnedTerms, optional
        The terms that make ``columns`` of the columns of the log.

    Raises
    ------
    SchemaError
        No columns, one named twice, or a reference column that is not among them.
    InputError
        The origin does not fit the columns.

    Examples
    --------
    >>> Columns(("price", "discount")).phi([[2.0, 0.5]])
    array([[2. , 0.5]])
    """

    columns: tuple[str, ...]
    origin: tuple[float, ...] | None = None
    reference_column: str | None = None
    terms: LearnedTerms | None = None
    _fingerprint: str = field(default="", init=False, repr=False)

    __repr__ = brief

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", context_names(self.columns))
        if not self.columns:
            raise SchemaError("Columns() needs at least one context column; there is no feature without one.")
        origin = checked_origin(self.origin, self.reference_column, self.columns, intercept=False)
        object.__setattr__(self, "origin", origin[0])
        object.__setattr__(self, "reference_column", origin[1])
        checked_terms(self.terms, self.columns)

    @property
    def dim(self) -> int:
        """The dimension d, the number of columns."""
        return len(self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each of the d features, that of its column."""
        return self.columns

    @property
    def actions(self) -> None:
        """None: phi does not depend on an action id."""
        return

    def phi(self, context: ArrayLike | None, action: ArrayLike | None = None) -> Array:
        """Return the features (n, d): a copy of the contexts (n, d), relative to the origin; ``action`` must be None.

        Raises
        ------
        LogError
            ``context`` is of another shape or not finite.
        InputError
            ``action`` is not None.
        """
        if action is not None:
            self._no_actions()
        x = contexts(context, self.columns)
        return x.copy() if self.origin is None else self.measured(x)

    def candidates(self, context: ArrayLike) -> NoReturn:  # noqa: ARG002  # the protocol's signature
        """Raise InputError: there is no list of actions."""
        self._no_actions()

    def action_codes(self, ids: object, *, first_row: int = 0) -> NoReturn:  # noqa: ARG002  # the protocol's
        """Raise InputError: there is no list of actions."""
        self._no_actions()

    def _no_actions(self) -> NoReturn:
        raise InputError(
            f"The feature map Columns({list(self.columns)}) has no action ids: its columns describe the action "
            "themselves. Leave the action out and hand in the features of the candidates, or use "
            "per_action(...) or embedding(...)."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the map as JSON can hold it."""
        return {
            "map": "columns", "columns": list(self.columns), **self._origin_to_dict(), **self._terms_to_dict()
        }  # fmt: skip

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Columns":
        """Return the map that :meth:`to_dict` wrote."""
        return cls(tuple(stored["columns"]), stored.get("origin"), stored.get("pivot"), stored_terms(stored))


def indicator(actions: Sequence[Any]) -> Crossed:
    """Return the map with one coefficient for each action: phi = e_a, of dimension K.

    Examples
    --------
    >>> indicator(["left", "right"]).phi(None, [1])
    array([[0., 1.]])
    """
    return Crossed(tuple(Actions(actions).ids), None)


def per_action(actions: Sequence[Any], columns: Sequence[str], *, intercept: bool = True) -> Crossed:
    """Return the map with a linear model of the context for each action: phi = e_a (x) (1, x), of dimension K (c + 1).

    Examples
    --------
    >>> per_action(["left", "right"], ["age"]).names
    ('left', 'left:age', 'right', 'right:age')
    """
    return Crossed(tuple(Actions(actions).ids), None, context_names(columns), intercept)


def embedding(
    actions: Sequence[Any],
    table: ArrayLike,
    columns: Sequence[str] = (),
    *,
    intercept: bool = True,
    table_names: Sequence[str] | None = None,
) -> Crossed:
    """Return the map of actions described by a table (K, e): phi = table[a] (x) (1, x), of dimension e (c + 1).

    Examples
    --------
    >>> embedding(["small", "large"], [[1.0, 3.0], [1.0, 9.0]], table_names=["base", "size"]).phi(None, [1])
    array([[1., 9.]])
    """
    names = None if table_names is None else context_names(table_names)
    return Crossed(tuple(Actions(actions).ids), matrix(table), context_names(columns), intercept, names)


_MAPS: dict[str, Any] = {"columns": Columns, "crossed": Crossed}


def feature_map_from_dict(stored: Mapping[str, Any]) -> FeatureMap:
    """Return the map that ``to_dict`` wrote; it equals the map that was written.

    Raises
    ------
    InputError
        ``stored`` is no map: an entry is missing, or a newer version wrote it.
    """
    kind = stored.get("map")
    if kind not in _MAPS:
        raise InputError(
            f"The stored feature map is of the kind {kind!r}; this version reads {sorted(_MAPS)}. Was it written by "
            "a newer version?"
        )
    try:
        features: FeatureMap = _MAPS[kind].from_dict(stored)
    except KeyError as error:
        raise InputError(
            f"The stored feature map of the kind {kind!r} lacks the entry {error}. Was the file edited? Save the "
            "policy or the moments again."
        ) from error
    return features


def merged_map(one: FeatureMap, other: FeatureMap) -> FeatureMap:
    """Return the map with the actions of both, where each action has its own coefficients; else the map they share.

    Maps that list the same actions in the same order keep it; otherwise actions are sorted, so that it does not matter
    which moments come first. Columns have the origin of the first map.

    Raises
    ------
    MismatchError
        They differ in more than their actions; the message names the differences.
    """
    if one.fingerprint == with_origin_of(other, one).fingerprint:
        return one
    differences = _differences(one, other)
    if differences:
        raise MismatchError(
            f"These moments do not combine, since they were made with different features: {'; '.join(differences)}. "
            "Make both again with the same columns and one feature map: give the second that of the first, "
            "features=first.features, or its terms where new actions may join, features=first.features.terms."
        )
    assert isinstance(one, Crossed)
    assert isinstance(other, Crossed)
    return replace(one, actions=_sorted_union(one.actions, other.actions))


def with_origin_of(features: FeatureMap, other: FeatureMap) -> FeatureMap:
    """Return ``features`` with the origin of another map; ``features`` itself where their columns differ."""
    if (
        not (isinstance(features, Fingerprinted) and isinstance(other, Fingerprinted))
        or features.columns != other.columns
    ):
        return features
    if getattr(features, "intercept", False) != getattr(other, "intercept", False):
        return features
    recentred: FeatureMap = features.recentred(other.origin, other.reference_column)
    return recentred


def _differences(one: FeatureMap, other: FeatureMap) -> list[str]:
    if type(one) is not type(other):
        return [f"one map is {_kind_of_map(one)}, the other {_kind_of_map(other)}"]
    differences = terms_differences(getattr(one, "terms", None), getattr(other, "terms", None))
    if not differences and one.columns != other.columns:
        order = ", the same in another order" if sorted(one.columns) == sorted(other.columns) else ""
        differences.append(f"context columns {list(one.columns)} and {list(other.columns)}{order}")
    if isinstance(one, Crossed) and isinstance(other, Crossed):
        differences += _crossed_differences(one, other)
    return differences


def _crossed_differences(one: Crossed, other: Crossed) -> list[str]:
    differences = []
    if one.intercept != other.intercept:
        differences.append(f"an intercept in the {'first' if one.intercept else 'second'} only")
    if (one.table is None) != (other.table is None):
        differences.append("actions with coefficients of their own, and actions described by a table")
    elif one.table is not None and one.actions != other.actions:
        differences.append(f"actions that a table describes, {list(one.actions)} and {list(other.actions)}")
    elif one.table is not None and not np.array_equal(one.table, np.asarray(other.table)):
        differences.append("the tables that describe the actions")
    elif one.table_names != other.table_names:
        differences.append(f"names of the tables' columns, {one.table_names} and {other.table_names}")
    return differences


def _kind_of_map(features: FeatureMap) -> str:
    return f"of columns {list(features.columns)}" if features.actions is None else "of actions"


def _sorted_union(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
    if one == other:
        return one
    try:
        return tuple(sorted({*one, *other}))
    except TypeError as error:
        types = [sorted({type(action).__name__ for action in actions}) for actions in (one, other)]
        raise MismatchError(
            f"These moments do not combine: their actions are of the types {types[0]} and {types[1]}, such as "
            f"{one[0]!r} and {other[0]!r}. Give the column one type, or make both with one feature map."
        ) from error


def action_positions(features: FeatureMap, part: FeatureMap) -> Codes:
    """Return the position, in ``features``, of each action of ``part``; all of them are among its actions."""
    positions = {action: position for position, action in enumerate(features.actions or ())}
    return np.array([positions[action] for action in part.actions or ()], dtype=np.int64)
