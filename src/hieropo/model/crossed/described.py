"""The posterior of the crossed prior with metadata, and the way to any posterior of that prior."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.packed import pack, packed_size, unpack
from hieropo.errors import InputError, MismatchError
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.crossed.kinds import KindPosterior, condition_kinds
from hieropo.model.crossed.posterior import (
    CrossedPosterior,
    OneHierarchy,
    check_crossed,
    condition_crossed,
    parent_messages,
)
from hieropo.model.crossed.spreads import SpreadPosterior, condition_spreads
from hieropo.model.crossed.tree import Ladder, TreePosterior, condition_tree
from hieropo.model.crossed.unit_designs import UnitDesigns, sides
from hieropo.model.gaussian import Gaussian, minus, plus
from hieropo.model.protocol import ParentMessages
from hieropo.model.table import PosteriorTable
from hieropo.moments.statistics import Moments
from hieropo.rows.ids import object_array
from hieropo.rows.keys import Keys, Unseen

_ROOM = 2**21  # doubles of one array while tasks are worked on


class DescribedPosterior(OneHierarchy):
    """Posterior of every task under the crossed prior with metadata; made by :func:`condition_units`.

    The laws are those of theta~_sa, given the sums of :mod:`unit_designs`, along Z_sa.

    Attributes
    ----------
    moments : Moments
        Of the p features of an action.
    hierarchy : CrossedHierarchy
    inner : CrossedPosterior or TreePosterior
        Of the P coefficients of an action.
    hyper : Gaussian
        Of beta and the common part of kappa, in R^P.
    """

    moments: Moments
    hierarchy: CrossedHierarchy
    inner: CrossedPosterior | TreePosterior
    hyper: Gaussian
    log_evidence: float
    square: float

    def __init__(
        self, moments: Moments, hierarchy: CrossedHierarchy, designs: UnitDesigns,
        inner: CrossedPosterior | TreePosterior,
    ) -> None:  # fmt: skip
        self.moments, self.hierarchy, self.inner, self._designs = moments, hierarchy, inner, designs
        self.hyper, self.log_evidence, self.square = inner.hyper, inner.log_evidence, inner.square

    def action(self, action: int) -> Gaussian:
        """Return the law of beta + alpha_a at the centre of the metadata; errors as :meth:`CrossedPosterior.action`."""
        law, p = self.inner.action(action), self.moments.unit_dim
        return Gaussian.trusted(law.mean[:p].copy(), law.cov[:p, :p].copy())

    def task(self, task: object, *, unseen: Unseen = "error") -> Gaussian:
        """Return the joint law of all d coefficients of a task; errors as :meth:`CrossedPosterior.unit`."""
        return self.task_at(self.moments.keys.row(task, unseen))

    def unit(self, task: object, action: int, *, unseen: Unseen = "error") -> Gaussian:
        """Return the law of theta_sa, in R^p; errors as :meth:`CrossedPosterior.unit`."""
        self.inner.action(action)  # checks the code
        law, p = self.task(task, unseen=unseen), self.moments.unit_dim
        block = slice(action * p, action * p + p)
        return Gaussian.trusted(law.mean[block].copy(), law.cov[block, block].copy())

    def new_task(
        self, parent: object = None, *, level: int = 0, metadata: ArrayLike | None = None
    ) -> Gaussian:
        """Return the joint law of all d coefficients of a task that has no rows.

        Parameters
        ----------
        parent, level
            As of :meth:`TreePosterior.new_task`; only with levels.
        metadata : (c,) array, optional
            Known of the task; without them they are drawn from those of the tasks of the log.
        """
        groups = {} if parent is None else {"parent": parent, "level": level}
        law = self.inner.new_task(**groups)  # type: ignore[arg-type]  # levels take them
        K = self.moments.n_actions
        mean, offset = plus(law.mean, minus(self._inner_offset)), self.moments.offset
        if metadata is None:
            middle, roots = self._designs.average()
            Z = sides(middle, K)
            along = sides(roots, K)
            spread = along @ mean
            cov = np.einsum("rij,jk,rlk->il", along, law.cov, along)
            cov += spread.T @ spread - np.outer(Z @ mean, Z @ mean)
        else:
            Z = sides(self._designs.one(self._centred(metadata)), K)
            cov = Z @ law.cov @ Z.T
        return Gaussian.trusted(Z @ mean, (cov + cov.T) / 2).plus(offset)

    def _centred(self, metadata: ArrayLike) -> Array:
        known = self.hierarchy.metadata
        assert known is not None
        return known.row(metadata)

    @property
    def _inner_offset(self) -> Array | None:
        return self.inner.moments.offset

    def node(self, level: int, node: object) -> Gaussian:
        """Return the joint law of a group at the centre of the metadata; errors as :meth:`TreePosterior.node`."""
        if not isinstance(self.inner, TreePosterior):
            raise InputError(f"There is no level {level}: this hierarchy has 0 above tasks.")
        law = self.inner.node(level, node)
        p, K = self.moments.unit_dim, self.moments.n_actions
        columns = (np.arange(K)[:, None] * self._designs.unit_dim + np.arange(p)).reshape(-1)
        return Gaussian.trusted(law.mean[columns].copy(), law.cov[np.ix_(columns, columns)].copy())

    @cached_property
    def _table(self) -> PosteriorTable:
        inner = self.inner.table()
        m, K, p, P = len(self.moments), self.moments.n_actions, self.moments.unit_dim, self._designs.unit_dim
        means, covs = np.empty((m, K, p)), np.empty((m, K, packed_size(p)))
        known = plus(inner.means, minus(self.inner.moments.unit_offset))
        step = max(1, _ROOM // (K * P * P))
        for first in range(0, m, step):
            part = slice(first, min(first + step, m))
            Z = self._designs.of_tasks(part)
            means[part] = np.einsum("nkip,nkp->nki", np.broadcast_to(Z, (len(Z), K, p, P)), known[part])
            covs[part] = pack(Z @ unpack(inner.covs[part], P) @ Z.swapaxes(2, 3))
        new = plus(inner.prior_means, minus(self.inner.moments.unit_offset))
        middle, roots = self._designs.average()
        along = np.einsum("rkip,kp->rki", np.broadcast_to(roots, (len(roots), K, p, P)), new)
        prior = np.einsum("kip,kp->ki", np.broadcast_to(middle, (K, p, P)), new)
        spread = (roots @ unpack(inner.prior_covs, P) @ roots.swapaxes(2, 3)).sum(axis=0)
        spread += np.einsum("rki,rkj->kij", along, along) - prior[:, :, None] * prior[:, None, :]
        offset = self.moments.unit_offset
        return PosteriorTable(
            self.moments.keys, plus(means, offset), covs, inner.rows, plus(prior, offset), pack(spread)
        )

    def table(self) -> PosteriorTable:
        """Return the laws of all units, each on its own; of a new task with metadata drawn from those of the log."""
        return self._table

    def along(self, vectors: Array, part: slice) -> tuple[Array, Array, Array]:
        """As :meth:`CrossedPosterior.along`."""
        return self.inner.along(self._designs.lifted(vectors, part), part)

    def across(self, row: int, vectors: Array, others: Array, part: slice) -> Array:
        """As :meth:`CrossedPosterior.across`."""
        lifted = self._designs.lifted(np.ascontiguousarray(vectors[None]), slice(row, row + 1))[0]
        return self.inner.across(row, lifted, self._designs.lifted(others, part), part)

    def total(self, vectors: Array) -> tuple[Array, Array]:
        """Mean (J,) and covariance (J, J) of sum_s v_js' theta_s over all tasks; as :meth:`CrossedPosterior.total`."""
        _, m, d = vectors.shape
        if (m, d) != (len(self.moments), self.dim):
            raise InputError(
                f"vectors have shape {vectors.shape}. A sum over tasks needs one vector of all coefficients a task: "
                f"shape (J, {len(self.moments)}, {self.dim}), in the order of the moments' tasks."
            )
        lifted = self._designs.lifted(np.ascontiguousarray(vectors.swapaxes(0, 1)), slice(0, m))
        return self.inner.total(np.ascontiguousarray(lifted.swapaxes(0, 1)))

    def joint(self, rows: Codes) -> tuple[Array, Array]:
        """Return means (n, d) and covariances (n, d, d) of the tasks at some rows of the moments."""
        means, covs = self.inner.joint(rows)
        Z = sides(self._designs.of_tasks(rows), self.moments.n_actions)
        unit_means = np.einsum("nij,nj->ni", Z, plus(means, minus(self._inner_offset)))
        return plus(unit_means, self.moments.offset), Z @ covs @ Z.swapaxes(1, 2)

    def parent_messages(self, step: int) -> Iterator[tuple[slice, ParentMessages]]:
        """Yield the messages of all tasks to their groups, or the root, ``step`` tasks at a time."""

        def parents(rows: Codes) -> tuple[Array, Array]:
            means, roots = self.inner.parents(rows)
            Z = sides(self._designs.of_tasks(rows), self.moments.n_actions)
            return np.einsum("nij,nj->ni", Z, means), Z @ roots

        return parent_messages(self.moments, self.hierarchy, step, parents)

    def __repr__(self) -> str:
        return f"DescribedPosterior({self.moments!r}, log evidence {self.log_evidence:.6g})"


AnyCrossed = CrossedPosterior | TreePosterior | DescribedPosterior | SpreadPosterior | KindPosterior


def covering(moments: Moments, hierarchy: CrossedHierarchy) -> Moments:
    """Return the moments with every task that the hierarchy places in a group, or has metadata of."""
    if hierarchy.levels:
        moments = moments.covering(Keys(object_array(list(hierarchy.levels[0].parent))))
    return moments if hierarchy.metadata is None else moments.covering(hierarchy.metadata.tasks)


class Prepared(NamedTuple):
    """Sums of a log as hierarchies take them that differ in their variances alone.

    Attributes
    ----------
    moments : Moments
        Of the p features of an action, with every task that is in a group or has metadata.
    designs : UnitDesigns or None
    inner : Moments
        Of all P columns.
    ladder : Ladder
        Their units, and groups, with noise variances.
    """

    moments: Moments
    designs: UnitDesigns | None
    inner: Moments
    ladder: Ladder

    @classmethod
    def of(cls, moments: Moments, hierarchy: CrossedHierarchy, noise_var: Array) -> Self:
        """Check a hierarchy, and prepare for all of its kind; errors as :func:`condition_units`."""
        moments, designs = covering(moments, hierarchy), None
        inner = moments
        if hierarchy.metadata is not None:
            p = hierarchy.feature_dim
            if moments.unit_dim != p:
                raise MismatchError(
                    f"The moments have {moments.unit_dim} features of an action, and the hierarchy is of {p} with the "
                    f"metadata {list(hierarchy.metadata.names)}. Both must come from one feature map."
                )
            designs = UnitDesigns.of(hierarchy.metadata, moments)
            inner = designs.described(moments)
        check_crossed(inner, hierarchy)
        return cls(moments, designs, inner, Ladder.of(inner, hierarchy.levels, noise_var, divided=False))

    def condition(self, hierarchy: CrossedHierarchy, factor: float = 1.0) -> AnyCrossed:
        """Condition a hierarchy whose noise variances are those of the sums times ``factor``."""
        plain = hierarchy if hierarchy.metadata is None else replace(hierarchy, metadata=None)
        inner: CrossedPosterior | TreePosterior
        if hierarchy.kinds is not None:
            return condition_kinds(self.inner, hierarchy, self.ladder.units.over(factor))
        if hierarchy.spreads is not None:
            return condition_spreads(self.inner, hierarchy, self.ladder.units.over(factor))
        if self.ladder.tree is None:
            inner = condition_crossed(self.inner, plain, self.ladder.units.over(factor))
        else:
            inner = condition_tree(self.inner, plain, self.ladder.tree.over(factor))
        return (
            inner
            if self.designs is None
            else DescribedPosterior(self.moments, hierarchy, self.designs, inner)
        )


def condition_units(moments: Moments, hierarchy: CrossedHierarchy) -> AnyCrossed:
    """Condition a crossed prior on the log: with levels, metadata, both or neither.

    Raises
    ------
    MismatchError, InputError, NumericalError
        As :func:`condition_crossed` and :func:`condition_tree`.
    UnknownTaskError
        A task has no metadata.
    """
    return Prepared.of(moments, hierarchy, hierarchy.noise_var).condition(hierarchy)
