"""A posterior under one hierarchy, with an error of actions that all tasks have in common.

theta_sa = theta'_sa + omega_a for all tasks s, with theta' as the posterior under the hierarchy has it, and
omega ~ N(0, R R'), R (K p, D), independent of it: the mean is that of theta', and all covariances within and between
tasks gain R R'.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.packed import pack
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.crossed.posterior import OneHierarchy
from hieropo.model.gaussian import Gaussian
from hieropo.model.table import PosteriorTable
from hieropo.moments.statistics import Moments
from hieropo.rows.keys import Unseen


class WithCommonError(OneHierarchy):
    """Posterior of theta' + omega.

    Attributes
    ----------
    inner : CrossedPosterior, SpreadPosterior or KindPosterior
        That of theta'. Whatever is not of coefficients, such as the evidence, is its own.
    root : (K p, D) array
        R.
    """

    inner: Any
    root: Array
    moments: Moments
    hierarchy: CrossedHierarchy

    def __init__(self, inner: Any, root: Array) -> None:
        self.inner = inner
        self.root = root
        self.moments = inner.moments
        self.hierarchy = inner.hierarchy

    def __getattr__(self, name: str) -> Any:
        if name in ("inner", "root"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def error(self) -> Array:
        """Covariance (K p, K p) of omega."""
        return np.asarray(self.root @ self.root.T)

    def central(self) -> "WithCommonError":
        """Return the posterior under the central hierarchy."""
        return WithCommonError(self.inner.central(), self.root)

    def means(self, part: slice) -> Array:
        """Return the means (n, d) of the tasks in ``part``."""
        return np.asarray(self.inner.means(part))

    def prior_mean(self, row: int) -> Array:
        """Return the mean (d,) of a task, were all rewards 0."""
        return np.asarray(self.inner.prior_mean(row))

    def _of_action(self, action: int) -> Array:
        p = self.moments.unit_dim
        root = self.root[action * p : action * p + p]
        return np.asarray(root @ root.T)

    def action(self, action: int) -> Gaussian:
        """Return the law of beta + alpha_a; errors as :meth:`CrossedPosterior.action`."""
        return _plus(self.inner.action(action), self._of_action(action))

    def unit(self, task: object, action: int, *, unseen: Unseen = "error") -> Gaussian:
        """Return the law of theta_sa; errors as :meth:`CrossedPosterior.unit`."""
        return _plus(self.inner.unit(task, action, unseen=unseen), self._of_action(action))

    def task(self, task: object, *, unseen: Unseen = "error") -> Gaussian:
        """Return the joint law of all coefficients of a task; errors as :meth:`CrossedPosterior.unit`."""
        return _plus(self.inner.task(task, unseen=unseen), self.error)

    def new_task(self) -> Gaussian:
        """Return the joint law of all d coefficients of a task that has no rows."""
        return _plus(self.inner.new_task(), self.error)

    def table(self) -> PosteriorTable:
        """Return the laws of all units, each on its own."""
        return with_error_of_actions(self.inner.table(), self.error)

    def joint(self, rows: Codes) -> tuple[Array, Array]:
        """Return means (n, d) and covariances (n, d, d) of the tasks at some rows of the moments."""
        means, covs = self.inner.joint(rows)
        return means, covs + self.error

    def total(self, vectors: Array) -> tuple[Array, Array]:
        """Mean (J,) and covariance (J, J) of sum_s v_js' theta_s over all tasks of the log, vectors (J, m, d)."""
        mean, cov = self.inner.total(vectors)
        common = vectors.sum(axis=1) @ self.root
        return mean, cov + common @ common.T

    def along(self, vectors: Array, part: slice) -> tuple[Array, Array, Array]:
        """Means (n, J), and covariances in two parts; as :meth:`CrossedPosterior.along`."""
        mean, within, shared = self.inner.along(vectors, part)
        return mean, within, np.concatenate([shared, vectors @ self.root], axis=-1)

    def across(self, row: int, vectors: Array, others: Array, part: slice) -> Array:
        """As :meth:`CrossedPosterior.across`."""
        common = np.einsum("jk,nlk->jnl", vectors @ self.root, others @ self.root)
        return np.asarray(self.inner.across(row, vectors, others, part) + common)

    def mixtures(self, vectors: Array, part: slice) -> Iterator[tuple[Array, Array, Array]]:
        """Yield weights (n,), means and variances (n, J) of the Gaussians whose mixture v' theta_s is."""
        more = np.square(vectors @ self.root).sum(axis=2)
        for weight, mean, variance in self.inner.mixtures(vectors, part):
            yield weight, mean, variance + more


def _plus(law: Gaussian, error: Array) -> Gaussian:
    return Gaussian.trusted(law.mean.copy(), law.cov + error)


def with_error_of_actions(table: PosteriorTable, error: Array) -> PosteriorTable:
    """Return a table of units (m, K, p) with the covariances of omega (K p, K p) added."""
    K, p = table.prior_means.shape
    blocks = pack(error.reshape(K, p, K, p)[np.arange(K), :, np.arange(K)])
    return PosteriorTable(
        table.keys, table.means, np.asarray(table.covs) + blocks, table.rows, table.prior_means,
        table.prior_covs + blocks,
    )  # fmt: skip
