"""Posterior from rows that chance kept of a larger log: means as if it were whole, covariances of the robust form.

A row kept with probability 1 / q stands for q rows, so that G_s = sum c q v phi phi' / sigma^2 and B_s take the place
of those of the whole log and give its posterior means. But B_s varies as the kept rows do: given theta_s its covariance
is D G_s, not G_s, with the design effect

    D = (sum c (q v)^2 e^2 / sum c q v e^2) (sum c q / sum c q v),    e = r - phi' theta^_s,

which is 1 where q is 1 (the sandwich estimate of Huber 1967 and White 1980, its middle taken as proportional to G_s; in
survey sampling Binder, International Statistical Review 51, 1983). The move of theta^_s with all B_z is
Sigma~_s dB_s + M_s Sigma-bar sum_z A_z dB_z. So, with R_z = A_z G_z A_z' = P_z - P_z Sigma_0 P_z and Q = sum_z R_z,

    cov of theta_s   gets (D - 1) (Sigma_0 R_s Sigma_0 + Sigma_0 R_s Sigma-bar M_s' + its transpose
                                   + M_s Sigma-bar Q Sigma-bar M_s')
    cov of mu        gets (D - 1) Sigma-bar Q Sigma-bar
    var of sum_s v_s' theta_s  gets (D - 1) sum_z h_z' R_z h_z,   h_z = Sigma_0 v_z + Sigma-bar sum_s M_s' v_s

The hierarchy is taken as known.
"""

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from hieropo._utils.arrays import Array
from hieropo._utils.packed import unpack
from hieropo.errors import InputError
from hieropo.estimation.hyper.mixed import WidenedPosterior
from hieropo.model.gaussian import minus, plus
from hieropo.model.hierarchy import Hierarchy
from hieropo.model.posterior import Posterior
from hieropo.model.steps import up, upper_factor
from hieropo.moments.statistics import Moments

_PIECE = 2**20  # entries worked on at once


def design_effect(moments: Moments, plain: Posterior) -> float:
    """Return D, the variance of sums over the kept rows against that of sums over as many rows as they stand for.

    Parameters
    ----------
    moments : Moments
        With ``squares``.
    plain : Posterior
        Of these moments, whose means are theta^_s.
    """
    assert moments.squares is not None
    means, d = plus(plain.table().means, minus(moments.offset)), moments.dim
    above = below = 0.0
    for start in range(0, len(moments), max(1, _PIECE // (d + 2) ** 2)):
        part = slice(start, start + max(1, _PIECE // (d + 2) ** 2))
        form = np.concatenate(
            [-means[part], np.ones((len(means[part]), 1)), np.zeros((len(means[part]), 1))], axis=1
        )
        below += float(np.einsum("si,sij,sj->", form, unpack(moments.sums[part], d + 2), form))
        above += float(np.einsum("si,sij,sj->", form, unpack(moments.squares[part], d + 2), form))
    weight = float(moments.sums[:, -1].sum())
    if not (above > 0 and below > 0 and weight > 0):  # rewards without noise
        return 1.0
    return above / below * moments.n_rows / weight


class SampledPosterior(WidenedPosterior):
    """Posterior with standard errors of the robust form, for rows with sampling weights; see the module.

    It has the views of a :class:`Posterior`.

    Attributes
    ----------
    moments : Moments
    hierarchy : Hierarchy
        Of two levels, taken as known.
    plain : Posterior
        As if the rows were as many as their sampling weights say.
    design : float
        D.

    Raises
    ------
    InputError
        The hierarchy has levels or metadata, for which the robust form is not derived.
    """

    def __init__(self, moments: Moments, hierarchy: Hierarchy) -> None:
        if hierarchy.levels or hierarchy.metadata is not None:
            raise InputError(
                "Rows with sampling weights are learned from by two levels without metadata: robust standard errors "
                "are not derived for a tree. Leave levels, metadata and logging='frozen' out, or the sampling weights "
                "where rows were kept whatever came of them."
            )
        super().__init__(moments, hierarchy)
        self.design = design_effect(self.moments, self.plain)
        self._factor = upper_factor(hierarchy.task_cov)[0]

    def _tasks(self, sums: Array) -> Iterator[tuple[Array, Array]]:
        """P and R (k, d, d) of pieces of the tasks."""
        d, cov = self.dim, self.hierarchy.task_cov
        step, scale = max(1, _PIECE // (d * d)), 1.0 / self.hierarchy.noise_var
        for start in range(0, len(sums), step):
            some = sums[start : start + step]
            P = unpack(up(some, scale, self._factor, np.arange(len(some)), len(some))[0], d)
            yield P, P - P @ cov @ P

    @cached_property
    def _spread(self) -> Array:
        """Sigma-bar Q Sigma-bar, (d, d)."""
        Q, root = np.zeros((self.dim, self.dim)), self.plain.hyper.cov
        for _, R in self._tasks(self.moments.sums):
            Q += R.sum(axis=0)
        return np.asarray(root @ Q @ root)

    def _extra(self, P: Array, R: Array) -> Array:
        """Return the addition to the covariances of tasks (k, d, d)."""
        cov, root = self.hierarchy.task_cov, self.plain.hyper.cov
        M = np.eye(self.dim) - cov @ P
        cross = cov @ R @ root @ np.swapaxes(M, 1, 2)
        whole = cov @ R @ cov + cross + np.swapaxes(cross, 1, 2) + M @ self._spread @ np.swapaxes(M, 1, 2)
        return np.asarray((self.design - 1.0) * whole)

    @property
    def _extra_of_mean(self) -> Array:
        return (self.design - 1.0) * self._spread

    def added(self, vectors: Array) -> Array:
        """Return what is added to the covariance (J, J) of sum_s v_js' theta_s, vectors (J, m, d)."""
        cov, root = self.hierarchy.task_cov, self.plain.hyper.cov
        J, start, shared = len(vectors), 0, np.zeros((len(vectors), self.dim))
        for P, _ in self._tasks(self.moments.sums):
            here = vectors[:, start : start + len(P)].swapaxes(0, 1)
            start += len(P)
            shared += (here @ (np.eye(self.dim) - cov @ P)).sum(axis=0)  # sum_s M_s' v_s
        start, found = 0, np.zeros((J, J))
        for _, R in self._tasks(self.moments.sums):
            h = vectors[:, start : start + len(R)].swapaxes(0, 1) @ cov + shared @ root
            start += len(R)
            found += np.tensordot(h @ R, h, axes=([0, 2], [0, 2]))
        return (self.design - 1.0) * found

    def cov_between(self, first: object, second: object) -> Array:
        """Return cov(theta_first, theta_second | log), shape (d, d)."""
        at = self.moments.keys.require([first, second])
        d = self.dim
        vectors = np.zeros((2 * d, len(self.moments.keys), d))
        for k in (0, 1):
            vectors[k * d + np.arange(d), at[k]] = np.eye(d)
        return np.asarray(self.plain.cov_between(first, second) + self.added(vectors)[:d, d:])

    def __repr__(self) -> str:
        return f"SampledPosterior({len(self.moments)} tasks, {self.dim} features, design effect {self.design:.3g})"
