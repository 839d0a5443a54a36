"""A posterior under one hierarchy, with an error that all tasks have in common.

theta_s = theta'_s + R_s x, with theta' as the posterior under the hierarchy has it, and one x ~ N(0, I) for all tasks,
independent of theta': the mean is that of theta', and the covariance of tasks s and z gains R_s R_z'. An error of the
effects of actions has the same R_s in all tasks.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.packed import triangle
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.crossed.posterior import OneHierarchy
from hieropo.model.gaussian import Gaussian
from hieropo.model.table import PosteriorTable
from hieropo.moments.statistics import Moments
from hieropo.rows.keys import Unseen


class ErrorRoots(NamedTuple):
    """The root R_s = (C, D_s) of an error that all tasks have in common.

    Attributes
    ----------
    of_actions : (K p, D) array
        C, the same in all tasks, with or without rows.
    of_tasks : (m, K p, D') array
        D_s of the tasks of some moments, 0 in all others.
    """

    of_actions: Array
    of_tasks: Array

    def at(self, rows: Codes) -> Array:
        """Return R_s (n, K p, D + D') of the tasks at some rows of the moments; -1 is a task without rows."""
        own = np.where((rows < 0)[:, None, None], 0.0, self.of_tasks[rows])
        alike = np.broadcast_to(self.of_actions, (len(rows), *self.of_actions.shape))
        return np.concatenate([alike, own], axis=2)

    def along(self, vectors: Array, part: slice) -> Array:
        """Return v' R_s (n, J, D + D') of the tasks in ``part``, for vectors v (n, J, K p)."""
        return np.concatenate([vectors @ self.of_actions, vectors @ self.of_tasks[part]], axis=-1)


class WithCommonError(OneHierarchy):
    """Posterior of theta' + R x.

    Attributes
    ----------
    inner : CrossedPosterior, SpreadPosterior or KindPosterior
        That of theta'. Whatever is not of coefficients, such as the evidence, is its own.
    roots : ErrorRoots
        R of the tasks of its moments.
    """

    inner: Any
    roots: ErrorRoots
    moments: Moments
    hierarchy: CrossedHierarchy

    def __init__(self, inner: Any, roots: ErrorRoots) -> None:
        self.inner = inner
        self.roots = roots
        self.moments = inner.moments
        self.hierarchy = inner.hierarchy

    def __getattr__(self, name: str) -> Any:
        if name in ("inner", "roots"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    def central(self) -> "WithCommonError":
        """Return the posterior under the central hierarchy."""
        return WithCommonError(self.inner.central(), self.roots)

    def means(self, part: slice) -> Array:
        """Return the means (n, d) of the tasks in ``part``."""
        return np.asarray(self.inner.means(part))

    def prior_mean(self, row: int) -> Array:
        """Return the mean (d,) of a task, were all rewards 0."""
        return np.asarray(self.inner.prior_mean(row))

    def _of_action(self, root: Array, action: int) -> Array:
        p = self.moments.unit_dim
        return root[action * p : action * p + p]

    def _of_task(self, task: object) -> Array:
        """Return the root of a task by its id, of a new one where it is unknown."""
        return np.asarray(self.roots.at(np.array([self.moments.keys.find(task)]))[0])

    def action(self, action: int) -> Gaussian:
        """Return the law of beta + alpha_a; errors as :meth:`CrossedPosterior.action`."""
        return _plus(self.inner.action(action), self._of_action(self.roots.of_actions, action))

    def unit(self, task: object, action: int, *, unseen: Unseen = "error") -> Gaussian:
        """Return the law of theta_sa; errors as :meth:`CrossedPosterior.unit`."""
        law = self.inner.unit(task, action, unseen=unseen)
        return _plus(law, self._of_action(self._of_task(task), action))

    def task(self, task: object, *, unseen: Unseen = "error") -> Gaussian:
        """Return the joint law of all coefficients of a task; errors as :meth:`CrossedPosterior.unit`."""
        return _plus(self.inner.task(task, unseen=unseen), self._of_task(task))

    def new_task(self) -> Gaussian:
        """Return the joint law of all d coefficients of a task that has no rows."""
        return _plus(self.inner.new_task(), self.roots.of_actions)

    def table(self) -> PosteriorTable:
        """Return the laws of all units, each on its own."""
        return with_common_error(self.inner.table(), self.roots)

    def joint(self, rows: Codes) -> tuple[Array, Array]:
        """Return means (n, d) and covariances (n, d, d) of the tasks at some rows of the moments; -1 is a new task."""
        means, covs = self.inner.joint(rows)
        roots = self.roots.at(rows)
        return means, covs + roots @ roots.swapaxes(1, 2)

    def total(self, vectors: Array) -> tuple[Array, Array]:
        """Mean (J,) and covariance (J, J) of sum_s v_js' theta_s over all tasks of the log, vectors (J, m, d)."""
        mean, cov = self.inner.total(vectors)
        common = vectors.sum(axis=1) @ self.roots.of_actions
        own = np.tensordot(vectors, self.roots.of_tasks, axes=([1, 2], [0, 1]))
        return mean, cov + common @ common.T + own @ own.T

    def along(self, vectors: Array, part: slice) -> tuple[Array, Array, Array]:
        """Means (n, J), and covariances in two parts; as :meth:`CrossedPosterior.along`."""
        mean, within, shared = self.inner.along(vectors, part)
        return mean, within, np.concatenate([shared, self.roots.along(vectors, part)], axis=-1)

    def across(self, row: int, vectors: Array, others: Array, part: slice) -> Array:
        """As :meth:`CrossedPosterior.across`."""
        common = np.einsum(
            "jk,nlk->jnl", vectors @ self.roots.at(np.array([row]))[0], self.roots.along(others, part)
        )
        return np.asarray(self.inner.across(row, vectors, others, part) + common)

    def mixtures(self, vectors: Array, part: slice) -> Iterator[tuple[Array, Array, Array]]:
        """Yield weights (n,), means and variances (n, J) of the Gaussians whose mixture v' theta_s is."""
        more = np.square(self.roots.along(vectors, part)).sum(axis=2)
        for weight, mean, variance in self.inner.mixtures(vectors, part):
            yield weight, mean, variance + more


def _plus(law: Gaussian, root: Array) -> Gaussian:
    return Gaussian.trusted(law.mean.copy(), law.cov + root @ root.T)


def with_common_error(table: PosteriorTable, roots: ErrorRoots) -> PosteriorTable:
    """Return a table of the units (m, K, p) of the tasks of the roots with the covariances of R x added."""
    K, p = table.prior_means.shape
    i, j = triangle(p)
    of_actions, of_tasks = (root.reshape(*root.shape[:-2], K, p, root.shape[-1]) for root in roots)
    alike, own = ((root[..., i, :] * root[..., j, :]).sum(axis=-1) for root in (of_actions, of_tasks))
    return PosteriorTable(
        table.keys, table.means, np.asarray(table.covs) + alike + own, table.rows, table.prior_means,
        table.prior_covs + alike,
    )  # fmt: skip
