"""The prior of the tasks: hyper-prior, levels, task covariance and noise, as one value."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hieropo._utils.arrays import Array
from hieropo._utils.brief import brief
from hieropo.errors import InputError, MismatchError
from hieropo.model.gaussian import Gaussian, check_covariance
from hieropo.model.metadata import Metadata
from hieropo.rows.ids import is_null

Node = Hashable


class Grouped(Protocol):
    """Nodes of one level, by their children."""

    @property
    def parent(self) -> Mapping[Node, Node]:
        """Child id to the id of its node."""

    @property
    def name(self) -> str:
        """For messages."""


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """One level of groups above the tasks.

    Parameters
    ----------
    cov : (d, d) array
        Covariance of this level's nodes around their parents.
    parent : mapping
        Child id to the id of its node at this level. Children of the first level are tasks, of a higher level the
        nodes of the level below.
    name : str
        Name for messages, such as ``"store"``.
    """

    cov: Array
    parent: Mapping[Node, Node]
    name: str = ""

    __repr__ = brief

    def __post_init__(self) -> None:
        object.__setattr__(self, "cov", check_covariance(self.cov, f"The covariance of level {self.name!r}"))
        object.__setattr__(self, "parent", checked_parents(self.parent, self.name))


@dataclass(frozen=True, slots=True, eq=False)
class Hierarchy:
    """theta_s ~ N(theta_parent(s), Sigma_0), ..., top nodes ~ N(mu, .), mu ~ N(mu_q, Sigma_q); reward noise sigma^2.

    The paper's two levels (arXiv 2212.04720, section 3) are the case without ``levels``.

    Parameters
    ----------
    hyper : Gaussian or None
        The hyper-prior N(mu_q, Sigma_q) of mu; None is the flat one.
    task_cov : (d, d) array
        Sigma_0, in squared units of theta; singular and zero are allowed.
    noise_var : float
        sigma^2, variance of a reward of weight 1 given phi and theta, in squared reward units.
    levels : tuple of Level
        From the tasks upwards; empty for two levels.
    metadata : Metadata, optional
        theta_s ~ N(theta_parent(s) + X_s kappa, Sigma_0); ``hyper`` is then of (mu, kappa), of dimension ``root_dim``.

    Raises
    ------
    InputError, MismatchError, NumericalError
        Not a covariance, dimensions differ, noise not positive, a node without a parent.
    """

    hyper: Gaussian | None
    task_cov: Array
    noise_var: float
    levels: tuple[Level, ...] = field(default=())
    metadata: Metadata | None = None

    __repr__ = brief

    def __post_init__(self) -> None:
        cov = check_covariance(self.task_cov, "task_cov")
        object.__setattr__(self, "task_cov", cov)
        object.__setattr__(self, "levels", tuple(self.levels))
        object.__setattr__(self, "noise_var", _positive(self.noise_var))
        if self.hyper is not None and self.hyper.dim != self.root_dim:
            more = "" if self.metadata is None else f", and with kappa of the metadata {self.root_dim}"
            raise MismatchError(f"hyper has the dimension {self.hyper.dim}; task_cov has {self.dim}{more}.")
        for below, level in zip((None, *self.levels), self.levels, strict=False):
            if level.cov.shape != cov.shape:
                raise MismatchError(
                    f"Level {level.name!r} has dimension {len(level.cov)}; task_cov has {self.dim}."
                )
            if below is not None:
                check_parents(below, level)

    @property
    def dim(self) -> int:
        """The number of features d."""
        return int(self.task_cov.shape[0])

    @property
    def feature_dim(self) -> int:
        """The number d of features of the moments: as the features of a unit of :class:`Moments`."""
        return self.dim

    @property
    def per_action(self) -> bool:
        """Return False: the moments of this prior are over all actions; those of a crossed prior per action."""
        return False

    @property
    def root_dim(self) -> int:
        """The number of coefficients of the root: d, and those of the metadata."""
        return self.dim if self.metadata is None else self.metadata.root_dim(self.dim)

    def flat(self) -> "Hierarchy":
        """Return the prior of FlatOPO, no sharing: theta_s ~ N(mu_q, Sigma_0 + ... + Sigma_q) independently.

        Raises
        ------
        InputError
            The hyper-prior is flat, so that a single task has no proper prior.
        """
        if self.hyper is None:
            raise InputError(
                "FlatOPO gives every task the prior N(mu_q, Sigma_0 + Sigma_q); this hierarchy has a flat "
                "hyper-prior (hyper=None), which is no proper prior for one task. Hand in hyper=Gaussian(mean, "
                "cov)."
            )
        if self.metadata is not None:
            raise InputError(
                "FlatOPO shares nothing between tasks and does not use metadata. Leave the metadata out."
            )
        total: NDArray[np.float64] = self.task_cov + self.hyper.cov
        for level in self.levels:
            total = total + level.cov
        known = Gaussian(self.hyper.mean, np.zeros_like(self.task_cov))
        return Hierarchy(hyper=known, task_cov=total, noise_var=self.noise_var)

    def oracle(self, mu: ArrayLike) -> "Hierarchy":
        """Return the prior of OracleOPO: mu (with metadata, mu and kappa) is known."""
        return replace(self, hyper=Gaussian(np.asarray(mu, dtype=np.float64), np.zeros((self.root_dim,) * 2)))

    def pooled(self) -> "Hierarchy":
        """Return the prior of complete pooling: theta_s = mu, or mu + X_s kappa with metadata."""
        return replace(self, task_cov=np.zeros_like(self.task_cov), levels=())


def _positive(noise_var: float) -> float:
    value = float(noise_var)
    if not (np.isfinite(value) and value > 0):
        raise InputError(
            f"noise_var is {noise_var!r}; a positive finite variance is needed. For rewards without noise, use "
            "a variance far below that of the rewards, such as 1e-6 of it."
        )
    return value


@dataclass(frozen=True, slots=True, eq=False)
class Grouping:
    """Groups of one level, by their children; see :class:`Level`."""

    parent: Mapping[Node, Node]
    name: str = ""

    __repr__ = brief

    def __post_init__(self) -> None:
        object.__setattr__(self, "parent", checked_parents(self.parent, self.name))


def checked_parents(parent: Mapping[Node, Node], name: str) -> Mapping[Node, Node]:
    """Return the parents of a level, read-only; raise InputError where an id is missing."""
    parents = dict(parent)
    if any(is_null(node) or is_null(child) for child, node in parents.items()):
        raise InputError(f"Level {name!r} has a missing id among its children or nodes; name every one.")
    return MappingProxyType(parents)


def check_parents(below: Grouped, level: Grouped) -> None:
    """Raise InputError where a node of the level ``below`` has no parent at ``level``."""
    orphans = set(below.parent.values()) - set(level.parent)
    if orphans:
        orphan = min(orphans, key=repr)
        raise InputError(
            f"Node {orphan!r} of level {below.name!r} has no parent at level {level.name!r} ({len(orphans)} such "
            "nodes). Every node below the top needs one: add it to Level(parent=...)."
        )
