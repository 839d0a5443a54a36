"""What a policy may choose among: the features of candidates, and which of them are eligible."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hieropo._utils.arrays import Array, Codes, Mask, normalised
from hieropo.errors import HieropoError, InputError, LogError, MismatchError, NumericalError
from hieropo.features.maps import FeatureMap
from hieropo.moments.units import one_action
from hieropo.rows.columns import contexts

ALL = np.zeros(0, dtype=np.bool_)  # stands for "every candidate is eligible"
_ALL_OF_MANY = ALL[:, None]
_BOTH = "Both context and phi were given; give one: phi is what the feature map would make of the context."


def feature_array(phi: ArrayLike) -> Array:
    """Bring features to an array for the compiled loops; text is never read as a number.

    Raises
    ------
    InputError
        Rows of unequal length, or entries that are no numbers.
    """
    try:
        array = np.asarray(phi)
    except ValueError as error:
        raise InputError(f"phi is not an array of numbers: {error}.") from error
    if array.dtype != np.float64:
        if array.dtype.kind not in "biuf":
            raise InputError(
                f"phi holds values of type {array.dtype}; numbers are needed. Cast it, or encode them."
            )
        array = array.astype(np.float64)
    return normalised(array)


class Candidates:
    """Where the features of candidates come from, and which actions they belong to.

    Parameters
    ----------
    features : FeatureMap or None
        None: requests bring phi along.
    dim : int
        Dimension d of the policy's laws.
    fingerprint : str, optional
        That of the feature map with which the log was read.
    apart : int
        K where each of K actions has a law of its own, else 0. The features of a candidate are then those of its action
        alone, of dimension p = d / K: one row (1, p) that all share, or K rows.

    Raises
    ------
    MismatchError
        The map makes features of another dimension, or is another than that of the log; it does not give each of K
        actions coefficients of its own.
    """

    __slots__ = ("_shared", "actions", "apart", "dim", "features")

    actions: tuple[Any, ...] | None
    apart: int
    dim: int
    features: FeatureMap | None

    def __init__(
        self, features: FeatureMap | None, dim: int, fingerprint: str | None = None, apart: int = 0
    ) -> None:
        if features is not None and features.dim != dim:
            raise MismatchError(
                f"The feature map makes {features.dim} features, but the posterior has dimension {dim}. "
                "Were they made from different logs or settings?"
            )
        if features is not None and fingerprint is not None and features.fingerprint != fingerprint:
            raise MismatchError(
                f"The posterior was made with the feature map {fingerprint[:12]}, not with this one, "
                f"{features.fingerprint[:12]}: {features!r}. Hand in the map that read the log."
            )
        self.features = features
        self.dim = dim
        self.apart = apart
        self.actions = None if features is None else features.actions
        self._shared = one_action(features) if apart else None
        if apart and features is not None and (self._shared is None or len(self.actions or ()) != apart):
            raise MismatchError(
                f"The posterior has laws for each of {apart} actions, and {features!r} does not give each of as many "
                "actions coefficients of its own. Hand in the map that read the log, such as per_action(...)."
            )

    def context(self, context: ArrayLike | None, n: int, first_row: int = 0) -> Array:
        """Check contexts (n, c) for which the feature map is to make candidates.

        Raises
        ------
        InputError
            The policy has no feature map, or one that cannot list candidates; lengths differ.
        LogError
            A context of another shape, or not finite.
        """
        if self.features is None or self.actions is None:
            why = "no feature map" if self.features is None else "a feature map without a list of actions"
            raise InputError(
                f"This policy has {why}, so it cannot make candidates from a context. "
                "Hand in their features, phi=..., one row for each candidate."
            )
        found = contexts(context, self.features.columns, first_row, rows=n)
        if len(found) != n:
            raise InputError(f"{len(found)} contexts do not fit {n} tasks; one of each a request is needed.")
        return found

    def make(self, context: Array) -> Array:
        """Features (n, K, d) of all actions in contexts (n, c); (n, 1, p) where each action has its own law."""
        features = self.features if self._shared is None else self._shared
        assert features is not None
        return normalised(features.candidates(context))

    def one(self, context: ArrayLike | None, phi: ArrayLike | None) -> Array:
        """Features (K, d), or (1, p) or (K, p), of one request, from exactly one of context (c,) and phi (K, d)."""
        if phi is not None:
            if context is not None:
                raise InputError(_BOTH)
            return self.given(phi, 2)
        row = None if context is None else np.asarray(context)[None]
        found: Array = self.make(self.context(row, 1))[0]
        return found

    def count(self, rows: Array) -> int:
        """Candidates of a request whose features are ``rows``."""
        return self.apart or len(rows)

    def given(self, phi: ArrayLike, ndim: int) -> Array:
        """Check features that were handed in, (K, d) or (n, K, d); to (K, p) or (n, K, p) where actions have own laws.

        Raises
        ------
        MismatchError
            Another dimension than the posterior's, or not one row for each action of the feature map.
        InputError
            Actions have laws of their own, and a row has features of other actions than that in its place.
        """
        array = feature_array(phi)
        shape, actions = array.shape, None if self.actions is None else len(self.actions)
        if array.ndim != ndim or shape[-1] != self.dim:
            need = ("n, " if ndim == 3 else "") + f"K, {self.dim}"
            raise MismatchError(f"phi has shape {shape}; ({need}) is needed: one row for each candidate.")
        if self.apart:
            actions = self.apart
        if actions is not None and shape[-2] != actions:
            raise MismatchError(
                f"phi has {shape[-2]} candidates, but the policy's feature map lists {actions} "
                "actions. Hand in one row for each, in that order, and leave some out by eligible=..."
            )
        if not self.apart:
            return array
        owner, own = self.owned(array.reshape(-1, self.dim))
        wrong = np.flatnonzero((owner != np.arange(len(owner)) % self.apart) & own.any(axis=1))
        if wrong.size:
            k = int(wrong[0]) % self.apart
            raise InputError(
                f"phi, candidate {k}, has features of action {owner[wrong[0]]}: row k must be of action k, as the "
                "feature map makes it."
            )
        return normalised(own.reshape(*shape[:-1], own.shape[1]))

    def owned(self, rows: Array) -> tuple[Codes, Array]:
        """Whose features each row (R, d) has, where actions have laws of their own, and these, (R, p).

        Raises
        ------
        InputError
            A row has features of two actions.
        """
        split = rows.reshape(len(rows), self.apart, self.dim // self.apart)
        used = (split != 0).any(axis=2)
        broken: Mask = np.logical_not(np.isfinite(split).all(axis=2))
        whole = ~broken.any(axis=1)
        mixed = np.flatnonzero((used.sum(axis=1) > 1) & whole)
        if mixed.size:
            both = np.flatnonzero(used[mixed[0]])[:2].tolist()
            raise InputError(
                f"phi, row {mixed[0]}, has features of the actions in the places {both[0]} and {both[1]}. This policy "
                "holds the law of each action on its own; ask the posterior for the joint one: "
                "posterior.task(task).project(phi), or LCBPolicy(posterior.dense(), ...)."
            )
        owner = np.where(whole, used.argmax(axis=1), broken.argmax(axis=1))
        return owner, split[np.arange(len(rows)), owner]

    def supply(
        self, context: ArrayLike | None, phi: ArrayLike | None, n: int, first_row: int
    ) -> tuple[Callable[[slice], Array], int]:
        """Say how to get the features of a run of n requests, and how many candidates K each has.

        Exactly one of context (n, c) and phi (n, K, d) is given. From a context the features, (rows, K, d),
        are made when they are asked for.
        """
        if phi is None:
            found = self.context(context, n, first_row)
            return lambda part: self.make(found[part]), len(self.actions or ())
        if context is not None:
            raise InputError(_BOTH)
        given = self.given(phi, 3)
        if len(given) != n:
            raise InputError(
                f"phi has {len(given)} requests, but {n} tasks were given; one of each is needed."
            )
        return given.__getitem__, given.shape[1]

    def masks(self, eligible: ArrayLike | None, n: int, K: int) -> Mask:
        """Check the masks (n, K) of n requests; without any, an empty array that slices to empty ones.

        Raises
        ------
        InputError
            Not booleans, or of another shape.
        """
        if eligible is None:
            return _ALL_OF_MANY
        mask = np.asarray(eligible)
        if mask.dtype != np.bool_ or mask.shape != (n, K):
            raise InputError(
                f"eligible has shape {mask.shape} and type {mask.dtype}; booleans of shape ({n}, {K}) are "
                "needed, one for each request and candidate."
            )
        return normalised(mask)

    def mask(self, eligible: Any, K: int) -> Mask:
        """Which of K candidates one request allows, from booleans or action ids.

        Raises
        ------
        InputError
            Neither K booleans nor, where the feature map lists actions, a sequence of their ids.
        UnknownActionError
            An id that the feature map does not know.
        """
        if eligible is None:
            return ALL
        mask = (
            eligible
            if isinstance(eligible, np.ndarray) and eligible.dtype == np.bool_
            else self._named(eligible, K)
        )
        if mask.shape != (K,):
            raise InputError(f"eligible has shape {mask.shape}, but the request has {K} candidates.")
        return normalised(mask)

    def _named(self, eligible: Any, K: int) -> Mask:
        if isinstance(eligible, str | bytes) or not isinstance(eligible, Iterable):
            raise InputError(f"eligible={eligible!r}; a mask or a sequence of action ids is needed.")
        items = list(eligible)
        if items and all(isinstance(item, bool | np.bool_) for item in items):
            return np.array(items, dtype=np.bool_)
        if self.features is None or self.actions is None:
            raise InputError(
                f"eligible={eligible!r} is not a boolean mask, and this policy has no list of actions to "
                f"look ids up in. Hand in {K} booleans."
            )
        mask = np.zeros(K, dtype=np.bool_)
        if items:
            mask[self.features.action_codes(items)] = True
        return mask

    def refusal(self, place: str, phi: Array, mask: Mask) -> HieropoError:
        """Say why no candidate of a request, with features (K, d) or as :meth:`one` gives them, could be chosen."""
        own = phi.shape[-1] != self.dim
        if own:
            phi = np.broadcast_to(phi, (self.apart, phi.shape[1]))
        rows = np.flatnonzero(mask) if mask.size else np.arange(len(phi))
        if not rows.size:
            return LogError(
                f"{place} has no eligible action among {len(phi)} candidates. A policy must choose one: add "
                "a default action, or leave this request out."
            )
        bad = np.argwhere(~np.isfinite(phi[rows]))
        if not bad.size:
            return NumericalError(
                f"{place}: the score of a candidate overflows; features reach {np.abs(phi[rows]).max():.3g}. "
                "Is a feature in the wrong unit?"
            )
        k, j = int(rows[bad[0, 0]]), int(bad[0, 1])
        action = f"candidate {k}"
        if self.actions is not None and len(self.actions) == len(phi):
            action = f"candidate {k} (action {self.actions[k]!r})"
        value, j = phi[k, j], j + k * phi.shape[1] if own else j
        name = f"feature {j}" if self.features is None else f"feature {j} ({self.features.names[j]!r})"
        return LogError(
            f"{place}, {action}: {name} is {value}. Nothing is filled in: fill it in yourself, or make "
            "the candidate ineligible."
        )
