"""The crossed prior of a log of actions: what actions do everywhere, the level of a task, and their interaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np

from hieropo._utils.arrays import Array, Mask
from hieropo._utils.brief import brief
from hieropo.errors import InputError, MismatchError
from hieropo.model.gaussian import check_covariance, frozen
from hieropo.model.hierarchy import Grouping, Node, check_parents, checked_parents
from hieropo.model.metadata import Metadata


@dataclass(frozen=True, slots=True, eq=False)
class CrossedLevel:
    """One level of groups above the tasks: each has a level and interactions with actions of its own.

    Parameters
    ----------
    level_cov : (p, p) array
        Of u_g ~ N(0, L_g): the level of group g, which all its tasks and actions share.
    interaction_cov : (p, p) array
        Of gamma_ga ~ N(0, M_g): what action a does in group g alone.
    parent : mapping
        Child id to the id of its group. Children of the first level are tasks, of a higher level the groups below.
    name : str
        For messages, such as ``"store"``.
    """

    level_cov: Array
    interaction_cov: Array
    parent: Mapping[Node, Node]
    name: str = ""

    __repr__ = brief

    def __post_init__(self) -> None:
        for name in ("level_cov", "interaction_cov"):
            cov = check_covariance(getattr(self, name), f"{name} of level {self.name!r}")
            object.__setattr__(self, name, cov)
        object.__setattr__(self, "parent", checked_parents(self.parent, self.name))


_QUARTILE, _OUTLYING = (
    0.75,
    2.0 - 1e-9,
)  # a task stands out by twice the spread of three quarters of the tasks


@dataclass(frozen=True, slots=True, eq=False)
class Spreads:
    """A mixture of spreads: a task has gamma_sa ~ N(0, c_k^2 M), for all its actions, with probability w_k.

    Parameters
    ----------
    scales : (n,) array
        c_k, at least 0: 0 is a task in which actions do what they do everywhere.
    weights : (n,) array
        w_k, at least 0; add to 1.

    Raises
    ------
    InputError
        Shapes do not fit, a scale is negative or not finite, or the weights are no weights.
    """

    scales: Array
    weights: Array

    __repr__ = brief

    def __post_init__(self) -> None:
        for name in ("scales", "weights"):
            object.__setattr__(self, name, frozen(getattr(self, name)))
        shapes = self.scales.shape, self.weights.shape
        if shapes[0] != shapes[1] or len(shapes[0]) != 1 or not self.scales.size:
            raise InputError(
                f"scales and weights of spreads have shapes {shapes}. Each scale has one weight: hand in two arrays of "
                "one shape (n,)."
            )
        if not (np.isfinite(self.scales) & (self.scales >= 0)).all():
            raise InputError(
                f"The scales of spreads are {self.scales.tolist()}. They multiply standard deviations: hand in finite "
                "numbers of at least 0."
            )
        check_probabilities(self.weights, "spreads", "scale")

    @property
    def mean_square(self) -> float:
        """Variance of interactions over all tasks in units of M, sum w_k c_k^2."""
        return float(self.weights @ np.square(self.scales))

    @property
    def outlying(self) -> Mask:
        """Scales (n,) that are at least twice as large as those of three quarters of the tasks, and above 0."""
        order = np.argsort(self.scales, kind="stable")
        at = int(np.searchsorted(np.cumsum(self.weights[order]), _QUARTILE - 1e-12))
        usual = float(self.scales[order[min(at, order.size - 1)]])
        return np.asarray((self.scales > 0) & (self.scales >= _OUTLYING * usual))


@dataclass(frozen=True, slots=True, eq=False)
class Kinds:
    """Tasks of several kinds: a task is of kind k with probability w_k, and its kind adds eta_ka ~ N(0, C) to theta_sa.

    Tasks of one kind share eta_k; which tasks are of it is not known. Given the rows, posteriors of the effects of the
    kinds have one mode for each partition of the tasks that the log leaves possible, and for each order of the kinds:
    ``centres`` say which.

    Parameters
    ----------
    weights : (n,) array
        w_k, at least 0; add to 1.
    effect_cov : (p, p) array
        C, of the effects of actions in one kind around those in all tasks.
    centres : (n, K, p) array
        Coefficients of the actions of each kind, from which the search for its mode starts. They are no parameters of
        the prior: any others with the same nearest mode give the same posterior.

    Raises
    ------
    InputError, MismatchError
        Shapes do not fit, a number is not finite, or the weights are no weights.
    """

    weights: Array
    effect_cov: Array
    centres: Array

    __repr__ = brief

    def __post_init__(self) -> None:
        object.__setattr__(self, "effect_cov", check_covariance(self.effect_cov, "effect_cov"))
        for name in ("weights", "centres"):
            object.__setattr__(self, name, frozen(getattr(self, name)))
        shape, p = self.centres.shape, len(self.effect_cov)
        if len(shape) != 3 or self.weights.shape != shape[:1] or shape[2] != p or not self.weights.size:
            raise InputError(
                f"weights of kinds have shape {self.weights.shape}, centres {shape}, and effect_cov is of {p} "
                "coefficients. Each kind has one weight and p coefficients of each action: hand in arrays of shapes "
                "(n,), (n, K, p) and (p, p)."
            )
        if not np.isfinite(self.centres).all():
            raise InputError(
                "centres of kinds have a number that is not finite. Hand in coefficients of actions."
            )
        check_probabilities(self.weights, "kinds", "kind")

    @property
    def share_between(self) -> float:
        """Share of C that makes tasks differ, 1 - sum w_k^2: two tasks are of one kind with probability sum w_k^2."""
        return float(1 - np.square(self.weights).sum())


def check_probabilities(weights: Array, of: str, value: str) -> None:
    """Raise InputError where weights are no probabilities."""
    if not (weights >= 0).all() or abs(float(weights.sum()) - 1.0) > 1e-6:
        raise InputError(
            f"The weights of {of} are {weights.tolist()}. They are probabilities of a task's {value}: hand "
            "in numbers of at least 0 that add to 1."
        )


class CrossedPrior(Protocol):
    """A crossed hierarchy, or several with weights: dimensions that follow from those of an action."""

    __slots__ = ()

    @property
    def metadata(self) -> Metadata | None:
        """Known of the tasks."""

    @property
    def unit_dim(self) -> int:
        """Coefficients of one action: p, or P with those of metadata."""

    @property
    def n_actions(self) -> int:
        """K."""

    @property
    def feature_dim(self) -> int:
        """Features p of one action."""
        return feature_dim(self.metadata, self.unit_dim, self.n_actions)

    @property
    def root_dim(self) -> int:
        """The number of coefficients of the root, which are those of one action."""
        return self.unit_dim

    @property
    def per_action(self) -> bool:
        """Return True: the moments of this prior are per action."""
        return True


@dataclass(frozen=True, slots=True, eq=False)
class CrossedHierarchy(CrossedPrior):
    """theta_sa = beta + alpha_a + u_s + gamma_sa, with beta flat and a noise variance for each action.

    With levels u_g + gamma_ga of all groups that the task is in are added. With metadata X_sa theta_sa has X_sa kappa_a
    besides, and beta, alpha, A, L and M are of the p coefficients of an action and of kappa_a behind them, L and M zero
    in the latter: P = p (1 + c) for c numbers of each task.

    Parameters
    ----------
    action_cov : (P, P) array
        A, of alpha_a ~ N(0, A): what action a does in every task, in squared units of theta.
    level_cov : (P, P) array
        L, of u_s ~ N(0, L): the level of task s, which all its actions share.
    interaction_cov : (P, P) array
        M, of gamma_sa ~ N(0, M): what action a does in task s alone.
    noise_var : (K,) array
        sigma_a^2, variance of a reward of weight 1 under action a, in squared reward units.
    levels : tuple of CrossedLevel
        From the tasks upwards; empty where tasks are in no groups.
    metadata : Metadata, optional
        Known of the tasks; X_s of shape (d, c) have one kappa for all actions.
    spreads : Spreads, optional
        Of the interactions of a task; default M in all tasks. Not with levels or metadata.
    kinds : Kinds, optional
        Of the tasks; M is then of the interactions within a kind. Not with levels, metadata or spreads.

    All three covariances may be singular or zero. A = M = 0 says that actions have no effect.

    Raises
    ------
    InputError, MismatchError, NumericalError
        Not a covariance, dimensions differ, a noise variance that is not positive.
    """

    action_cov: Array
    level_cov: Array
    interaction_cov: Array
    noise_var: Array
    levels: tuple[CrossedLevel, ...] = ()
    metadata: Metadata | None = None
    spreads: Spreads | None = None
    kinds: Kinds | None = None

    __repr__ = brief

    def __post_init__(self) -> None:
        for name in _COVS:
            object.__setattr__(self, name, check_covariance(getattr(self, name), name))
        shapes = [self.action_cov.shape, self.level_cov.shape, self.interaction_cov.shape]
        if len(set(shapes)) > 1 or not self.action_cov.size:
            raise MismatchError(
                f"action_cov, level_cov and interaction_cov have shapes {shapes}. They are covariances of the p "
                "coefficients of one action: hand in three matrices of one shape (p, p), p at least 1."
            )
        noise = frozen(self.noise_var)
        if noise.ndim != 1 or not noise.size:
            raise InputError(
                f"noise_var has shape {noise.shape}. Each action has a noise variance of its own: hand in one "
                "number an action, shape (K,); np.full(K, v) says that all are alike."
            )
        bad = ~(np.isfinite(noise) & (noise > 0))
        if bad.any():
            action = int(bad.argmax())
            raise InputError(
                f"noise_var of action {action} is {noise[action]!r}; a positive finite variance is needed, since sums "
                "of rows are divided by it. Where rewards are without noise, use a variance far below their own."
            )
        object.__setattr__(self, "noise_var", noise)
        object.__setattr__(self, "levels", tuple(self.levels))
        self._check_levels()
        self._check_metadata()
        if self.spreads is not None and (self.levels or self.metadata is not None):
            raise InputError(
                "This hierarchy has spreads of interactions besides levels or metadata. The mixture of spreads is "
                "derived for tasks without groups and metadata alone: leave spreads out, or the groups and metadata."
            )
        if self.kinds is not None:
            self._check_kinds(self.kinds)

    def _check_kinds(self, kinds: Kinds) -> None:
        if self.levels or self.metadata is not None or self.spreads is not None:
            raise InputError(
                "This hierarchy has kinds of tasks besides levels, metadata or spreads. Kinds are derived only for "
                "tasks without groups, metadata and a mixture of spreads. Leave out the kinds, or the others."
            )
        if kinds.centres.shape[1:] != (self.n_actions, self.unit_dim):
            raise MismatchError(
                f"centres of kinds have shape {kinds.centres.shape}, and the hierarchy has {self.n_actions} actions of "
                f"{self.unit_dim} coefficients. Both are of the same actions: hand in centres of shape (n, K, p)."
            )

    def _check_levels(self) -> None:
        for below, level in zip((None, *self.levels), self.levels, strict=False):
            shapes = level.level_cov.shape, level.interaction_cov.shape
            if set(shapes) != {self.action_cov.shape}:
                raise MismatchError(
                    f"Level {level.name!r} has covariances of shapes {list(shapes)}, and action_cov has "
                    f"{self.action_cov.shape}. All are of the same coefficients: hand in matrices of one shape."
                )
            if below is not None:
                check_parents(below, level)

    def _check_metadata(self) -> None:
        if self.metadata is None:
            return
        p = feature_dim(self.metadata, self.unit_dim, self.n_actions)
        covs = self.level_cov, self.interaction_cov
        more = [cov for level in self.levels for cov in (level.level_cov, level.interaction_cov)]
        if any(cov[p:].any() for cov in (*covs, *more)):
            raise InputError(
                f"Coefficients of metadata (from number {p} on) have a variance in level_cov or interaction_cov. A "
                "task has one value of each, so that nothing tells it: set these rows and columns to 0."
            )

    def central(self) -> Self:
        """Return this hierarchy, as hierarchies with weights return the one in their middle."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return JSON's types, from which :meth:`from_dict` makes the same value; without groups and metadata."""
        return {
            "kind": "crossed given",
            **{name: getattr(self, name).tolist() for name in (*_COVS, "noise_var")},
            "groups": [{name: getattr(level, name).tolist() for name in _COVS[1:]} for level in self.levels],
            **_mixture_to_dict("spreads", self.spreads, ("scales", "weights")),
            **_mixture_to_dict("kinds", self.kinds, _KINDS),
        }

    @classmethod
    def from_dict(
        cls, values: Mapping[str, Any], levels: Sequence[Grouping] = (), metadata: Metadata | None = None
    ) -> Self:
        """Read what :meth:`to_dict` wrote; with the groups and the metadata of the tasks."""
        covs = {name: np.asarray(values[name], dtype=np.float64) for name in (*_COVS, "noise_var")}
        groups = tuple(
            CrossedLevel(
                np.asarray(own["level_cov"], dtype=np.float64), np.asarray(own["interaction_cov"], dtype=np.float64),
                level.parent, level.name,
            )
            for own, level in zip(values["groups"], levels, strict=True)
        )  # fmt: skip
        spreads = Spreads(**values["spreads"]) if "spreads" in values else None
        kinds = None
        if "kinds" in values:
            kinds = Kinds(**{name: np.asarray(values["kinds"][name], dtype=np.float64) for name in _KINDS})
        return cls(**covs, levels=groups, metadata=metadata, spreads=spreads, kinds=kinds)

    @property
    def unit_dim(self) -> int:
        """Coefficients of one action: p, or P with those of metadata."""
        return int(self.action_cov.shape[0])

    @property
    def n_actions(self) -> int:
        """K."""
        return int(self.noise_var.size)


UNTOLD = 16.0  # noise variance of an action whose rows do not tell it, in units of the common one
_COVS = ("action_cov", "level_cov", "interaction_cov")
_KINDS = ("weights", "effect_cov", "centres")


def _mixture_to_dict(
    key: str, mixture: Spreads | Kinds | None, names: tuple[str, ...]
) -> dict[str, dict[str, Any]]:
    return {} if mixture is None else {key: {name: getattr(mixture, name).tolist() for name in names}}


def typical_noise(noise_var: Array) -> float:
    """Return the mean noise variance of actions (K,), without those that are many times the least.

    Such are those of an action of one row, whose noise the log does not tell.
    """
    known = noise_var < 0.999 * UNTOLD * noise_var.min()
    return float(noise_var[known].mean())


def feature_dim(metadata: Metadata | None, unit_dim: int, n_actions: int) -> int:
    """Return the features p of an action that has ``unit_dim`` coefficients with those of metadata.

    Raises
    ------
    MismatchError
        No number of features gives as many coefficients.
    """
    if metadata is None:
        return unit_dim
    c = int(metadata.values.shape[-1])
    p, rest = divmod(unit_dim, 1 + c) if metadata.values.ndim == 2 else (unit_dim - c, 0)
    if rest or p < 1 or (metadata.values.ndim == 3 and metadata.values.shape[1] != p * n_actions):
        raise MismatchError(
            f"{unit_dim} coefficients of an action do not fit metadata of shape {metadata.values.shape}: p features "
            "and c numbers of each task give p (1 + c), and X_s of shape (K p, c) give p + c. Hand in covariances of "
            "these."
        )
    return p
