"""The candidates of requests: their features, and which of them are eligible."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hieropo._utils.arrays import Array, Codes, Mask, normalised
from hieropo.errors import HieropoError, InputError, LogError, MismatchError, NumericalError
from hieropo.features.maps import FeatureMap
from hieropo.features.terms.doubts import directions
from hieropo.moments.units import one_action
from hieropo.rows.columns import contexts

ALL = np.zeros(0, dtype=np.bool_)  # stands for "every candidate is eligible"
_ALL_OF_MANY = ALL[:, None]
_BOTH = "Both context and phi were given, and phi is the features of the context. Give one of them."


def feature_array(phi: ArrayLike) -> Array:
    """Return features as an array for the compiled loops; text is never read as a number.

    Raises
    ------
    InputError
        Rows of unequal length, or entries that are not numbers.
    """
    try:
        array = np.asarray(phi)
    except ValueError as error:
        raise InputError(
            f"phi is not an array of numbers: {error}. Give an array with one row for each candidate."
        ) from error
    if array.dtype != np.float64:
        if array.dtype.kind not in "biuf":
            raise InputError(
                f"phi holds values of type {array.dtype}; numbers are needed. Cast it, or encode them."
            )
        array = array.astype(np.float64)
    return normalised(array)


class Candidates:
    """Makes or checks the features of candidates, and their eligibility.

    Parameters
    ----------
    features : FeatureMap or None
        None: requests bring phi along.
    dim : int
        Dimension d of the policy's posteriors.
    fingerprint : str, optional
        That of the feature map with which the log was read.
    n_separate : int
        K where the policy holds a separate marginal for each of K actions, else 0. The features of a candidate are
        then the p = d / K features of its action alone: one row (1, p) that all actions share, or K rows.

    Raises
    ------
    MismatchError
        The map has another dimension, or is not that of the log; or it does not give each of K actions coefficients of
        its own.
    """

    __slots__ = ("_shared", "actions", "dim", "features", "n_separate")

    actions: tuple[Any, ...] | None
    n_separate: int
    dim: int
    features: FeatureMap | None

    def __init__(
        self, features: FeatureMap | None, dim: int, fingerprint: str | None = None, n_separate: int = 0
    ) -> None:
        if features is not None and features.dim != dim:
            raise MismatchError(
                f"The feature map makes {features.dim} features, but the posterior has dimension {dim}. Give the "
                "feature map with which the log was read."
            )
        if features is not None and fingerprint is not None and features.fingerprint != fingerprint:
            raise MismatchError(
                f"The posterior was made with the feature map {fingerprint[:12]}, not with this one, "
                f"{features.fingerprint[:12]}: {features!r}. Give the feature map with which the log was read."
            )
        self.features = features
        self.dim = dim
        self.n_separate = n_separate
        self.actions = None if features is None else features.actions
        self._shared = one_action(features) if n_separate else None
        if (
            n_separate
            and features is not None
            and (self._shared is None or len(self.actions or ()) != n_separate)
        ):
            raise MismatchError(
                f"The posterior has separate coefficients for each of {n_separate} actions, and {features!r} does not. "
                "Give the feature map with which the log was read, such as per_action(...)."
            )

    def context(self, context: ArrayLike | None, n: int, first_row: int = 0) -> Array:
        """Return checked contexts (n, c), from which the feature map makes candidates.

        Raises
        ------
        InputError
            The policy has no feature map, or one that cannot list candidates; lengths differ.
        LogError
            A context of another shape, or not finite.
        """
        if self.features is None or self.actions is None:
            has = "no feature map" if self.features is None else "a feature map without a list of actions"
            raise InputError(
                f"This policy has {has}, so it cannot make candidates from a context. "
                "Give their features, phi=..., one row for each candidate."
            )
        checked = contexts(context, self.features.columns, first_row, rows=n)
        if len(checked) != n:
            raise InputError(
                f"{len(checked)} contexts were given for {n} tasks. Give one context and one task per request."
            )
        return checked

    def make(self, context: Array) -> Array:
        """Return features (n, K, d) of all actions in contexts (n, c); (n, 1, p) with separate marginals."""
        features = self.features if self._shared is None else self._shared
        assert features is not None
        return normalised(features.candidates(context))

    def doubts(self, context: ArrayLike | None) -> tuple[Codes, Array]:
        """Return the rows of contexts (n, c) with values that are not known, and roots (rows, r, c) of covariances."""
        terms = getattr(self.features, "terms", None)
        if context is None or terms is None or not terms.doubts:
            return np.zeros(0, dtype=np.int64), np.zeros((0, 0, 0))
        return directions(terms.doubts, np.asarray(context, dtype=np.float64))

    def along(self, roots: Array) -> Array:
        """Return the changes of features (n, r, K or 1, p) along changes of contexts (n, r, c)."""
        n, r, c = roots.shape
        changed = self.make(roots.reshape(n * r, c)) - self.make(np.zeros((1, c)))
        return np.asarray(changed.reshape(n, r, *changed.shape[1:]))

    def one(self, context: ArrayLike | None, phi: ArrayLike | None) -> Array:
        """Return features (K, d), or (1, p) or (K, p), of one request, from one of context (c,) and phi (K, d)."""
        if phi is not None:
            if context is not None:
                raise InputError(_BOTH)
            return self.checked(phi, 2)
        row = None if context is None else np.asarray(context)[None]
        features: Array = self.make(self.context(row, 1))[0]
        return features

    def count(self, rows: Array) -> int:
        """Return the number of candidates of a request with the features ``rows``."""
        return self.n_separate or len(rows)

    def checked(self, phi: ArrayLike, ndim: int) -> Array:
        """Return checked features of the caller, (K, d) or (n, K, d); (K, p) or (n, K, p) with separate marginals.

        Raises
        ------
        MismatchError
            Another dimension than the posterior's, or not one row for each action of the feature map.
        InputError
            With separate marginals: row k has features of another action than k.
        """
        array = feature_array(phi)
        shape, actions = array.shape, None if self.actions is None else len(self.actions)
        if array.ndim != ndim or shape[-1] != self.dim:
            needed = ("n, " if ndim == 3 else "") + f"K, {self.dim}"
            raise MismatchError(
                f"phi has shape {shape}, and this policy needs ({needed}): one row for each candidate."
            )
        if self.n_separate:
            actions = self.n_separate
        if actions is not None and shape[-2] != actions:
            raise MismatchError(
                f"phi has {shape[-2]} candidates, but the policy's feature map lists {actions} "
                "actions. Give one row for each, in that order, and exclude some by eligible=..."
            )
        if not self.n_separate:
            return array
        action, blocks = self.action_blocks(array.reshape(-1, self.dim))
        wrong = np.flatnonzero((action != np.arange(len(action)) % self.n_separate) & blocks.any(axis=1))
        if wrong.size:
            k = int(wrong[0]) % self.n_separate
            raise InputError(
                f"phi, candidate {k}, has features of action {action[wrong[0]]}. Row k must have the features of "
                "action k, as the feature map makes them."
            )
        return normalised(blocks.reshape(*shape[:-1], blocks.shape[1]))

    def action_blocks(self, rows: Array) -> tuple[Codes, Array]:
        """Return the action (R,) whose features each row (R, d) has, and its block (R, p) of them.

        Raises
        ------
        InputError
            A row has features of two actions.
        """
        split = rows.reshape(len(rows), self.n_separate, self.dim // self.n_separate)
        used = (split != 0).any(axis=2)
        not_finite: Mask = np.logical_not(np.isfinite(split).all(axis=2))
        finite = ~not_finite.any(axis=1)
        mixed = np.flatnonzero((used.sum(axis=1) > 1) & finite)
        if mixed.size:
            both = np.flatnonzero(used[mixed[0]])[:2].tolist()
            raise InputError(
                f"phi, row {mixed[0]}, has features of two actions, numbers {both[0]} and {both[1]}. This policy holds "
                "the marginal posterior of each action, not their joint one. Use posterior.task(task).project(phi), or "
                "LCBPolicy(posterior.dense(), ...)."
            )
        action = np.where(finite, used.argmax(axis=1), not_finite.argmax(axis=1))
        return action, split[np.arange(len(rows)), action]

    def supply(
        self, context: ArrayLike | None, phi: ArrayLike | None, n: int, first_row: int
    ) -> tuple[Callable[[slice], Array], int]:
        """Return a function from a slice of n requests to their features, and the number K of candidates.

        Exactly one of context (n, c) and phi (n, K, d) is given. Features (rows, K, d) of contexts are made slice by
        slice.
        """
        if phi is None:
            checked = self.context(context, n, first_row)
            return lambda part: self.make(checked[part]), len(self.actions or ())
        if context is not None:
            raise InputError(_BOTH)
        features = self.checked(phi, 3)
        if len(features) != n:
            raise InputError(
                f"phi has {len(features)} requests, but {n} tasks were given. Give one task for each request."
            )
        return features.__getitem__, features.shape[1]

    def masks(self, eligible: ArrayLike | None, n: int, K: int) -> Mask:
        """Return checked masks (n, K) of n requests; without any, an empty array that slices to empty ones.

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
                f"eligible has shape {mask.shape} and type {mask.dtype}. Give booleans of shape ({n}, {K}), one for "
                "each request and candidate."
            )
        return normalised(mask)

    def mask(self, eligible: Any, K: int) -> Mask:
        """Return which of K candidates are eligible in one request, from booleans or action ids.

        Raises
        ------
        InputError
            Neither K booleans nor, where the feature map lists actions, a sequence of their ids.
        UnknownActionError
            An id is not an action of the feature map.
        """
        if eligible is None:
            return ALL
        mask = (
            eligible
            if isinstance(eligible, np.ndarray) and eligible.dtype == np.bool_
            else self._mask_of_ids(eligible, K)
        )
        if mask.shape != (K,):
            raise InputError(
                f"eligible has shape {mask.shape}, but the request has {K} candidates. Give one boolean for each."
            )
        return normalised(mask)

    def _mask_of_ids(self, eligible: Any, K: int) -> Mask:
        if isinstance(eligible, str | bytes) or not isinstance(eligible, Iterable):
            raise InputError(
                f"eligible={eligible!r} is not a mask or a sequence of action ids. Give one of these, such as "
                f"[{eligible!r}]."
            )
        items = list(eligible)
        if items and all(isinstance(item, bool | np.bool_) for item in items):
            return np.array(items, dtype=np.bool_)
        if self.features is None or self.actions is None:
            raise InputError(
                f"eligible={eligible!r} is not a boolean mask, and this policy has no list of actions to look ids up "
                f"in. Give {K} booleans."
            )
        mask = np.zeros(K, dtype=np.bool_)
        if items:
            mask[self.features.action_codes(items)] = True
        return mask

    def refusal(self, place: str, phi: Array, mask: Mask) -> HieropoError:
        """Return the error for a request in which no candidate could be chosen; ``phi`` is as from :meth:`one`."""
        in_blocks = phi.shape[-1] != self.dim
        if in_blocks:
            phi = np.broadcast_to(phi, (self.n_separate, phi.shape[1]))
        rows = np.flatnonzero(mask) if mask.size else np.arange(len(phi))
        if not rows.size:
            return LogError(
                f"{place} has no eligible action among {len(phi)} candidates, so the policy cannot choose one. Add a "
                "default action, or leave this request out."
            )
        bad = np.argwhere(~np.isfinite(phi[rows]))
        if not bad.size:
            return NumericalError(
                f"{place}: the lower bound of a candidate overflows; features reach {np.abs(phi[rows]).max():.3g}. "
                "Check the units of the features."
            )
        k, j = int(rows[bad[0, 0]]), int(bad[0, 1])
        action = f"candidate {k}"
        if self.actions is not None and len(self.actions) == len(phi):
            action = f"candidate {k} (action {self.actions[k]!r})"
        value, j = phi[k, j], j + k * phi.shape[1] if in_blocks else j
        name = f"feature {j}" if self.features is None else f"feature {j} ({self.features.names[j]!r})"
        return LogError(
            f"{place}, {action}: {name} is {value}, and missing values are not filled in. Fill it in, or make the "
            "candidate ineligible."
        )
