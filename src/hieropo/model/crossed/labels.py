"""Posteriors of tasks that each have one of several unknown labels: a scale of their interactions, or a kind.

Given label k of task s, (beta, effects of the actions) of s is a Gaussian of its own by :mod:`propagation`, and all
coefficients of s follow as in :mod:`posterior`. The posterior of a task is the mixture over its labels: mean and
covariance are exact for it, and :meth:`LabelPosterior.mixtures` gives the mixture itself, as a probability of harm
needs it. With C a root of the covariance of z given all tasks, that of z given label k in s is C (I + C'E_sk C)^(-1/2),
E_sk the change of the information on z, so that roots of different tasks have common columns, as covariances between
tasks need them; they neglect that the log ties the labels of different tasks to each other.
"""

from abc import abstractmethod
from collections.abc import Iterator
from copy import copy
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.packed import pack, triangle
from hieropo.errors import InputError
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.crossed.marginals import AboveTasks, TaskLaws
from hieropo.model.crossed.posterior import OneHierarchy
from hieropo.model.crossed.propagation import Propagated
from hieropo.model.crossed.steps import ObservedUnits, UnitMessages
from hieropo.model.gaussian import Gaussian
from hieropo.model.table import PosteriorTable
from hieropo.moments.statistics import Moments
from hieropo.rows.keys import Unseen


class LabelBasis(NamedTuple):
    """Coefficients of the population as functions of z, of D numbers.

    Attributes
    ----------
    beta : (p, D) array
    effects : (n, K p, D) array
        Of the actions under each of n labels.
    """

    beta: Array
    effects: Array

    def below(self, label: int) -> Array:
        """Return the matrix (K p, D) from z to beta + effects under one label."""
        effects = self.effects[label]
        return np.asarray(effects + np.tile(self.beta, (len(effects) // len(self.beta), 1)))


class LabelPosterior(OneHierarchy):
    """Posterior of every task under one hierarchy in which tasks have labels; subclasses give the labels a meaning.

    Attributes
    ----------
    moments : Moments
    hierarchy : CrossedHierarchy
    hyper : Gaussian
        Of beta, in R^p.
    log_evidence : float
        log p(rewards | features, hierarchy), by expectation propagation.
    responsibilities : (m + 1, n) array
        Posterior probability of each label in each task; last the prior one, of a task without rows.
    """

    moments: Moments
    hierarchy: CrossedHierarchy
    hyper: Gaussian
    log_evidence: float
    responsibilities: Array
    _given_labels = False  # True leaves out that the labels are unknown

    def __init__(
        self, moments: Moments, hierarchy: CrossedHierarchy, units: ObservedUnits, propagated: Propagated,
        basis: LabelBasis, label_weights: Array,
    ) -> None:  # fmt: skip
        self.moments = moments
        self.hierarchy = hierarchy
        self._units, self._propagated = units, propagated
        self._basis = basis
        self.label_weights: Array = label_weights
        constant = (moments.n_rows - moments.unit_dim) * np.log(2 * np.pi)
        constant += float(moments.rows.sum(axis=0) @ np.log(hierarchy.noise_var))
        self.log_evidence = propagated.log_evidence - 0.5 * float(constant - moments.log_precision.sum())
        m = len(moments)
        self.responsibilities = np.tile(label_weights, (m + 1, 1))
        self.responsibilities[units.tasks] = propagated.responsibilities
        self._group = np.full(m + 1, len(units.tasks), dtype=np.int64)
        self._group[units.tasks] = np.arange(len(units.tasks))
        root: Array = np.asarray(np.linalg.cholesky(propagated.cov), dtype=np.float64)
        self._mean, self._root = propagated.mean, root
        beta = basis.beta
        self.hyper = _gaussian(beta @ self._mean, beta @ root).plus(moments.unit_offset)

    @abstractmethod
    def _messages(self, label: int) -> tuple[CrossedHierarchy, UnitMessages]:
        """Return the hierarchy of the tasks of one label, and the messages of all units under it."""

    def _above(self, label: int, means: Array, roots: Array) -> AboveTasks:
        """(beta, effects under one label) of Gaussians of z, means (G, D) and roots (G, D, D)."""
        beta, effects = self._basis.beta, self._basis.effects[label]
        (G, D), p = means.shape, len(beta)
        of_actions, of_roots = means @ effects.T, effects @ roots
        return AboveTasks(
            means @ beta.T, beta @ roots, of_actions.reshape(G, -1, p), of_roots.reshape(G, -1, p, D)
        )

    @cached_property
    def _laws(self) -> list[TaskLaws]:
        """The laws of all tasks under each label."""
        laws = []
        for k in range(len(self.label_weights)):
            means = np.concatenate([self._propagated.means[k], self._mean[None]])
            above = self._above(k, means, self._root @ self._inner_roots[k])
            hierarchy, messages = self._messages(k)
            laws.append(TaskLaws(self.moments, hierarchy, messages, above, self._group))
        return laws

    def central(self) -> Self:
        """Return the law of the same means with covariances as if all labels were known, averaged over them.

        By the law of total expectation theta-hat_s = E[theta-hat_s | labels] = sum_z E[C_sz] B_z with B_z the scores of
        the rewards of z and C_sz = cov(theta_s, theta_z | log, labels), so that the means are linear in the rewards at
        the probabilities that labels have. Explanations need that. E[C_sz] is that of :class:`_Expected`.
        """
        given = copy(self)
        given._given_labels = True
        return given

    @cached_property
    def _expected(self) -> "_Expected":
        """Covariances of z given all labels, averaged over them; of each task with rows, last of a task without."""
        return _Expected.of(
            self._inner_roots, np.vstack([self._propagated.responsibilities, self.label_weights])
        )

    @cached_property
    def _inner_roots(self) -> Array:
        """Symmetric roots (n, t + 1, D, D) of (I + C'E_sk C)^-1; last those of a task without rows, I."""
        C, n = self._root, len(self.label_weights)
        inner = np.eye(len(C)) + C.T @ self._propagated.change @ C
        values, vectors = np.linalg.eigh((inner + inner.swapaxes(2, 3)) / 2)
        roots = (vectors / np.sqrt(values)[..., None, :]) @ vectors.swapaxes(2, 3)
        return np.concatenate([roots, np.tile(np.eye(len(C)), (n, 1, 1, 1))], axis=1)

    def action(self, action: int) -> Gaussian:
        """Return the law of beta + alpha_a, averaged over labels, in R^p; errors as :meth:`CrossedPosterior.action`."""
        K = self.moments.n_actions
        if not 0 <= action < K:
            raise InputError(
                f"There is no action {action!r}: the code of an action is its place in the feature map, 0 .. {K - 1}, "
                "as action_codes(ids) gives it."
            )
        p, middle = self.moments.unit_dim, np.tensordot(self.label_weights, self._basis.effects, 1)
        along = self._basis.beta + middle[action * p : action * p + p]
        return _gaussian(along @ self._mean, along @ self._root).plus(self.moments.unit_offset)

    @abstractmethod
    def _new_effect_covs(self) -> tuple[Array, Array]:
        """Covariances of the effect of a new action: averaged over labels, and under one label."""

    def new_action(self) -> Gaussian:
        """Return the law of beta + alpha_a, averaged over labels, of an action that the feature map does not have."""
        return Gaussian.trusted(self.hyper.mean.copy(), self.hyper.cov + self._new_effect_covs()[0])

    def unit_new_action(self, task: object, *, unseen: Unseen = "error") -> Gaussian:
        """Return mean and covariance of theta_sa of an action that the map does not have; errors as :meth:`unit`."""
        row = self.moments.keys.row(task, unseen)
        weights, prior = self.responsibilities[row], self._new_effect_covs()[1]
        means, covs = [], []
        for k, law in enumerate(self._laws):
            block = law.block(np.array([row]))
            root = block.level_root[0]
            means.append(block.level[0])
            interaction = self._messages(k)[0].interaction_cov
            covs.append(block.level_cov[0] + root @ root.T + prior + interaction)
        mean = weights @ np.array(means)
        away = np.array(means) - mean
        cov = np.tensordot(weights, covs, 1) + (weights * away.T) @ away
        return Gaussian.trusted(mean, (cov + cov.T) / 2).plus(self.moments.unit_offset)

    def difference(self, task: object, first: int, second: int) -> Gaussian:
        """Return mean and covariance of theta_s,first - theta_s,second, in R^p; errors as :meth:`unit`."""
        for action in (first, second):
            self.action(action)  # checks the code
        row, p = self.moments.keys.row(task, "error"), self.moments.unit_dim
        contrast = np.zeros((p, self.dim))
        contrast[:, first * p : first * p + p] += np.eye(p)
        contrast[:, second * p : second * p + p] -= np.eye(p)
        mean, within, shared = (part[0] for part in self.along(contrast[None], slice(row, row + 1)))
        return Gaussian.trusted(mean, within + shared @ shared.T)

    def cov_between(self, first: object, second: object) -> Array:
        """Return cov(theta_first, theta_second | log), shape (d, d); errors as :meth:`unit`."""
        rows = [self.moments.keys.row(task, "error") for task in (first, second)]
        if rows[0] == rows[1]:
            return self.task(first).cov
        one, other = (self.along(np.eye(self.dim)[None], slice(row, row + 1))[2][0] for row in rows)
        return np.asarray(one @ other.T)

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
        if not self._given_labels:
            cov = np.einsum("nk,knij->nij", weights, covs)
            return mean, cov + np.einsum("nk,kni,knj->nij", weights, away, away)
        roots = np.array([law.roots(rows) for law in self._laws])
        below = self._expected.below(weights, roots, self._group[rows])
        less = self._expected.mean[self._group[rows]] - self._expected.cov
        cov = np.einsum("nk,knij->nij", weights, covs) - below @ less @ below.swapaxes(1, 2)
        return mean, (cov + cov.swapaxes(1, 2)) / 2

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
        if self._given_labels:
            group = self._group[part]
            below = self._expected.below(weights, shared, group)
            other, common = shared - below @ self._inner_roots[:, group], below @ self._expected.root
            return mean, np.einsum("nk,knij->nij", weights, within + other @ other.swapaxes(2, 3)), common
        common = np.einsum("nk,knjd->njd", weights, shared)
        away, other = means - mean, shared - common
        inside = np.einsum("nk,knij->nij", weights, within + other @ other.swapaxes(2, 3))
        return mean, inside + np.einsum("nk,kni,knj->nij", weights, away, away), common

    def mixtures(self, vectors: Array, part: slice) -> Iterator[tuple[Array, Array, Array]]:
        """Yield, for each label, its probabilities (n,) and the means and variances (n, J) of v' theta_s.

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
        return f"{type(self).__name__}({self.moments!r}, log evidence {self.log_evidence:.6g})"


class _Expected(NamedTuple):
    """Covariances of z given all labels, averaged over the labels, for t tasks with rows and one without.

    With S_sk = cov(z | log, label k in s), Gamma^-1 = cov(z | log), S_s = sum_k r_sk S_sk, H_sk the coefficients of
    theta_s about z and h_s = sum_k r_sk H_sk S_sk, a factor of expectation propagation has, at its fixed point, the
    shift (I - S_z^-1 Gamma^-1) nu + S_z^-1 h_z'B_z, linear in the scores B_z of the rewards of its task. So the mean of
    z and of each theta_s is linear in all scores, with the coefficients

        N = Gamma + sum_z (S_z^-1 - Gamma)
        E[C_sz] = h_s S_s^-1 N^-1 S_z^-1 h_z'  and  E[C_ss] = sum_k r_sk C_ssk - h_s (S_s^-1 - S_s^-1 N^-1 S_s^-1) h_s'

    where C_ssk is the covariance of theta_s given its own label. Here z is C times numbers with covariance I.

    Attributes
    ----------
    inner_roots : (n, t + 1, D, D) array
        R_sk, S_sk = C R_sk^2 C'.
    mean, inverse : (t + 1, D, D) array
        Of R_sk^2 over labels, and its inverse.
    cov, root : (D, D) array
        Of N^-1 in place of S, and a root of it.
    """

    inner_roots: Array
    mean: Array
    inverse: Array
    cov: Array
    root: Array

    @classmethod
    def of(cls, inner_roots: Array, responsibilities: Array) -> Self:
        """Average over the labels of each task (t + 1, n)."""
        eye = np.eye(inner_roots.shape[-1])
        mean = np.einsum("sk,ksij->sij", responsibilities, inner_roots @ inner_roots)
        values, vectors = np.linalg.eigh(mean)
        inverse = (vectors / values[:, None, :]) @ vectors.swapaxes(1, 2)
        values, vectors = np.linalg.eigh(eye + (inverse[:-1] - eye).sum(axis=0))
        root = vectors / np.sqrt(values)
        return cls(inner_roots, mean, inverse, root @ root.T, root)

    def below(self, weights: Array, roots: Array, group: Codes) -> Array:
        """Return h_s S_s^-1 C (n, J, D) from roots H_sk C R_sk (n labels, n, J, D) of tasks of some groups (n,)."""
        averaged = np.einsum("nk,knjd->njd", weights, roots @ self.inner_roots[:, group])
        return np.asarray(averaged @ self.inverse[group])


def _gaussian(mean: Array, root: Array) -> Gaussian:
    return Gaussian.trusted(mean.copy(), root @ root.T)
