"""The posterior of the crossed prior where tasks differ in the spread of their interactions.

By :mod:`propagation` task s has scale k with probability r_sk; given k, (beta, alpha) is a Gaussian of its own and all
coefficients of s follow as in :mod:`posterior`, with c_k^2 M. The posterior of a task is the mixture over k: mean and
covariance are exact for it, and :meth:`SpreadPosterior.mixtures` gives the mixture itself, as a probability of harm
needs it. With C a root of the covariance of z given all tasks, that of z given scale k in s is C (I + C'E_sk C)^(-1/2),
E_sk the change of the information on z, so that roots of different tasks have common columns, as covariances between
tasks need them; they neglect that the log ties the scales of different tasks to each other.
"""

from collections.abc import Iterator
from copy import copy
from functools import cached_property
from typing import Self

import numpy as np

from hieropo._utils.arrays import Array, Codes, pieces
from hieropo._utils.packed import pack, triangle
from hieropo.errors import InputError
from hieropo.model.crossed.hierarchy import CrossedHierarchy, Spreads
from hieropo.model.crossed.marginals import AboveTasks, TaskLaws
from hieropo.model.crossed.posterior import OneHierarchy, check_crossed
from hieropo.model.crossed.propagation import Propagated, TaskTerms, effects_basis, propagate
from hieropo.model.crossed.steps import ObservedUnits, UnitMessages
from hieropo.model.gaussian import Gaussian
from hieropo.model.steps import upper_factor
from hieropo.model.table import PosteriorTable
from hieropo.moments.statistics import Moments
from hieropo.rows.keys import Unseen


class SpreadPosterior(OneHierarchy):
    """Posterior of every task under one hierarchy with a mixture of spreads; made by :func:`condition_spreads`.

    Attributes
    ----------
    moments : Moments
    hierarchy : CrossedHierarchy
    hyper : Gaussian
        Of beta, in R^p.
    log_evidence : float
        log p(rewards | features, hierarchy), by expectation propagation.
    responsibilities : (m + 1, n) array
        Posterior probability of each scale in each task; last the prior one, of a task without rows.
    """

    moments: Moments
    hierarchy: CrossedHierarchy
    hyper: Gaussian
    log_evidence: float
    responsibilities: Array
    _given_scales = False  # True leaves out that the scales are unknown

    def __init__(
        self, moments: Moments, hierarchy: CrossedHierarchy, units: ObservedUnits, propagated: Propagated
    ) -> None:
        assert hierarchy.spreads is not None
        self.moments = moments
        self.hierarchy = hierarchy
        self._units = units
        self._propagated = propagated
        constant = (moments.n_rows - moments.unit_dim) * np.log(2 * np.pi)
        constant += float(moments.rows.sum(axis=0) @ np.log(hierarchy.noise_var))
        self.log_evidence = propagated.log_evidence - 0.5 * float(constant - moments.log_precision.sum())
        m = len(moments)
        self.responsibilities = np.tile(hierarchy.spreads.weights, (m + 1, 1))
        self.responsibilities[units.tasks] = propagated.responsibilities
        self._group = np.full(m + 1, len(units.tasks), dtype=np.int64)
        self._group[units.tasks] = np.arange(len(units.tasks))
        root: Array = np.asarray(np.linalg.cholesky(propagated.cov), dtype=np.float64)
        self._mean, self._root = propagated.mean, root
        beta = self._above(self._mean[None], root[None])
        self.hyper = _gaussian(beta.mean[0], beta.cov_root[0]).plus(moments.unit_offset)

    @property
    def spreads(self) -> Spreads:
        """The mixture of spreads of the hierarchy."""
        assert self.hierarchy.spreads is not None
        return self.hierarchy.spreads

    def _above(self, means: Array, roots: Array) -> AboveTasks:
        """(beta, alpha) of Gaussians of z, means (G, D) and roots (G, D, D)."""
        K = self.moments.n_actions
        factor = upper_factor(self.hierarchy.action_cov)[0]
        factor = factor[:, factor.any(axis=0)]
        (G, D), r = means.shape, factor.shape[1]
        effects = means[:, : K * r].reshape(G, K, r) @ factor.T
        effect_roots = factor @ roots[:, : K * r].reshape(G, K, r, D)
        return AboveTasks(means[:, K * r :], roots[:, K * r :], effects, effect_roots)

    @cached_property
    def _laws(self) -> list[TaskLaws]:
        """The laws of all tasks under each scale."""
        laws, C = [], self._root
        for k, scale in enumerate(self.spreads.scales.tolist()):
            cov = scale**2 * self.hierarchy.interaction_cov
            inner = np.eye(len(C)) + C.T @ self._propagated.change[k] @ C
            values, vectors = np.linalg.eigh((inner + inner.swapaxes(1, 2)) / 2)
            roots = np.asarray(C @ ((vectors / np.sqrt(values)[:, None, :]) @ vectors.swapaxes(1, 2)))
            above = self._above(
                np.concatenate([self._propagated.means[k], self._mean[None]]),
                np.concatenate([roots, C[None]]),
            )
            scaled = CrossedHierarchy(
                self.hierarchy.action_cov, self.hierarchy.level_cov, cov, self.hierarchy.noise_var
            )
            laws.append(TaskLaws(self.moments, scaled, UnitMessages(self._units, cov), above, self._group))
        return laws

    @property
    def differing(self) -> Array:
        """Probability (m,) that effects of actions in a task are twice as large as in three quarters of the tasks."""
        return np.asarray(self.responsibilities[:-1] @ self.spreads.outlying)

    def central(self) -> Self:
        """Return this posterior given the probabilities of the scales, as if a task had shares of all.

        Means are the same. Covariances leave out that the scale of a task is unknown, so that they are no larger than
        the information of its rows allows, and the means are nearly linear in the rewards: explanations need both.
        """
        given = copy(self)
        given._given_scales = True
        return given

    def prior_mean(self, row: int) -> Array:
        """Return what the rewards, at the probabilities of the scales that they have, leave of the mean (d,)."""
        vectors, rest = np.eye(self.dim), self.joint(np.array([row]))[0][0]
        for some in pieces(len(self.moments), self.dim**2):
            scores = self.moments.scores(some, np.zeros(self.dim), self.noise_variances)
            rest = rest - self.across(row, vectors, scores[:, None], some)[:, :, 0].sum(axis=1)
        return np.asarray(rest)

    def action(self, action: int) -> Gaussian:
        """Return the law of beta + alpha_a, in R^p; errors as :meth:`CrossedPosterior.action`."""
        K = self.moments.n_actions
        if not 0 <= action < K:
            raise InputError(
                f"There is no action {action!r}: the code of an action is its place in the feature map, 0 .. {K - 1}, "
                "as action_codes(ids) gives it."
            )
        above = self._above(self._mean[None], self._root[None])
        mean, root = (
            above.mean[0] + above.effects[0, action],
            above.cov_root[0] + above.effect_roots[0, action],
        )
        return _gaussian(mean, root).plus(self.moments.unit_offset)

    def unit(self, task: object, action: int, *, unseen: Unseen = "error") -> Gaussian:
        """Return mean and covariance of theta_sa, in R^p; errors as :meth:`CrossedPosterior.unit`."""
        self.action(action)  # checks the code
        law, p = self.task(task, unseen=unseen), self.moments.unit_dim
        block = slice(action * p, action * p + p)
        return Gaussian.trusted(law.mean[block].copy(), law.cov[block, block].copy())

    def task(self, task: object, *, unseen: Unseen = "error") -> Gaussian:
        """Return mean and covariance of all d coefficients of a task; errors as :meth:`CrossedPosterior.unit`."""
        return self.task_at(self.moments.keys.row(task, unseen))

    def new_task(self) -> Gaussian:
        """Return mean and covariance of all d coefficients of a task that has no rows."""
        means, covs = self.joint(np.array([-1]))
        return Gaussian.trusted(means[0].copy(), covs[0])

    def joint(self, rows: Codes) -> tuple[Array, Array]:
        """Return means (n, d) and covariances (n, d, d) of the tasks at some rows of the moments; -1 is a new task."""
        weights = self.responsibilities[rows]
        means, covs = (np.array(part) for part in zip(*(law.joint(rows) for law in self._laws), strict=True))
        mean = np.einsum("nk,kni->ni", weights, means)
        away = means - mean
        cov = np.einsum("nk,knij->nij", weights, covs)
        return mean, cov if self._given_scales else cov + np.einsum("nk,kni,knj->nij", weights, away, away)

    def table(self) -> PosteriorTable:
        """Return means and covariances of all units, each on its own."""
        return self._table

    @cached_property
    def _table(self) -> PosteriorTable:
        K, p, m = self.moments.n_actions, self.moments.unit_dim, len(self.moments)
        rows = np.append(np.arange(m), -1)
        i, j = triangle(p)
        means, covs = np.zeros((m + 1, K, p)), np.zeros((m + 1, K, len(i)))
        squares, first = np.zeros_like(covs), np.zeros_like(means)
        for k, law in enumerate(self._laws):
            for some in law.pieces(rows):
                block, weight = law.block(some), self.responsibilities[some, k][:, None, None]
                if k == 0:
                    first[some] = block.means()
                away = block.means() - first[some]
                means[some] += weight * away
                squares[some] += weight * away[..., i] * away[..., j]
                covs[some] += weight * np.stack([pack(block.cov_of(a)) for a in range(K)], axis=1)
        covs += squares - means[..., i] * means[..., j]
        means += first
        if self.moments.unit_offset is not None:
            means += self.moments.unit_offset
        return PosteriorTable(
            self.moments.keys, means[:m], covs[:m], self.moments.rows.sum(axis=1), means[m], covs[m]
        )

    def along(self, vectors: Array, part: slice) -> tuple[Array, Array, Array]:
        """As :meth:`CrossedPosterior.along`."""
        weights = self.responsibilities[part]
        means, within, shared = (
            np.array(parts) for parts in zip(*(law.along(vectors, part) for law in self._laws), strict=True)
        )
        mean = np.einsum("nk,knj->nj", weights, means)
        common = np.einsum("nk,knjd->njd", weights, shared)
        away, other = means - mean, shared - common
        inside = np.einsum("nk,knij->nij", weights, within + other @ other.swapaxes(2, 3))
        if not self._given_scales:
            inside += np.einsum("nk,kni,knj->nij", weights, away, away)
        return mean, inside, common

    def mixtures(self, vectors: Array, part: slice) -> Iterator[tuple[Array, Array, Array]]:
        """Yield, for each scale, its probabilities (n,) and the means and variances (n, J) of v' theta_s.

        The posterior of each v' theta_s is the mixture of these Gaussians; ``vectors`` are (n, J, d).
        """
        for k, law in enumerate(self._laws):
            mean, within, shared = law.along(vectors, part)
            variance = np.einsum("njj->nj", within) + np.square(shared).sum(axis=2)
            yield self.responsibilities[part, k], mean, variance

    def total(self, vectors: Array) -> tuple[Array, Array]:
        """Mean (J,) and covariance (J, J) of sum_s v_js' theta_s over all tasks; as :meth:`CrossedPosterior.total`."""
        J, m, d = vectors.shape
        law = self._laws[0]
        if (m, d) != (len(self.moments), self.dim):
            law.along_all(vectors).__next__()  # raises
        mean, cov, common = np.zeros(J), np.zeros((J, J)), np.zeros((J, len(self._root)))
        step = max(1, 2**21 // max(J * (d + len(self._root)) * len(self._laws), 1))
        for start in range(0, m, step):
            part = slice(start, min(start + step, m))
            means, within, shared = self.along(np.ascontiguousarray(vectors[:, part].swapaxes(0, 1)), part)
            mean += means.sum(axis=0)
            cov += within.sum(axis=0)
            common += shared.sum(axis=0)
        return mean, cov + common @ common.T

    def means(self, part: slice) -> Array:
        """Return the means (n, d) of the tasks in ``part``."""
        return self.table().means[part].reshape(-1, self.dim)

    def __repr__(self) -> str:
        return f"SpreadPosterior({self.moments!r}, log evidence {self.log_evidence:.6g})"


def _gaussian(mean: Array, root: Array) -> Gaussian:
    return Gaussian.trusted(mean.copy(), root @ root.T)


def condition_spreads(
    moments: Moments, hierarchy: CrossedHierarchy, units: ObservedUnits | None = None
) -> SpreadPosterior:
    """Condition the crossed prior with a mixture of spreads on the log.

    O(t n D^3) for t tasks with rows, n scales and D = (K + 1) p, in each round of expectation propagation.

    Parameters
    ----------
    moments : Moments
    hierarchy : CrossedHierarchy
        With ``spreads``.
    units : ObservedUnits, optional
        Those of the moments, divided by the noise of the hierarchy, where they are there already.

    Raises
    ------
    MismatchError, NumericalError
        As :func:`condition_crossed`.
    """
    assert hierarchy.spreads is not None
    if units is None:
        check_crossed(moments, hierarchy)
        units = ObservedUnits.of(moments, hierarchy.noise_var)
    basis = effects_basis(hierarchy.action_cov, hierarchy.n_actions)
    terms = TaskTerms.of(
        units, hierarchy.interaction_cov, hierarchy.level_cov, basis, hierarchy.spreads.scales
    )
    flat = np.arange(basis.shape[1]) >= basis.shape[1] - hierarchy.unit_dim
    propagated, _ = propagate(terms, hierarchy.spreads.weights, np.where(flat, 0.0, 1.0))
    return SpreadPosterior(moments, hierarchy, units, propagated)
