"""Posteriors with wider covariances: for the error of an estimated hierarchy, and for rows with sampling weights.

With S = Sigma_0 / sigma^2, A_s and a_s as in :mod:`likelihood`, u_s = a_s - A_s mu, M_s = I - S A_s and Q = cov(mu) /
sigma^2, let the estimate of S be off by Delta ~ N(0, V), V = 2 (expected curvature of the deviance)^-1. To first order

    theta_s    moves by  M_s (Delta u_s + nu),   nu = -Q sum_z A_z Delta u_z the move of mu
    Sigma~_s   moves by  M_s Delta M_s' - M_s Delta A_s Delta M_s',   Sigma~_s = S M_s'

The first is an error that the plug-in covariance does not have; the second says that sigma^2 Sigma~_s, concave in S, is
estimated too low by sigma^2 M_s E[Delta A_s Delta] M_s' where the estimate of S is unbiased. The covariance becomes

    cov_s + M_s (sigma^2 E[Delta A_s Delta] + E[(Delta u_s + nu)(Delta u_s + nu)']) M_s'

Since E[u_s u_s'] is about sigma^2 A_s, the two are about equal: twice the third term of Prasad and Rao (Journal of the
American Statistical Association 85, 1990; Kackar and Harville, in the same journal 79, 1984), here with the task's own
u_s. A task without rows gets E[nu nu'] alone. V is taken together with a weak prior: no entry of Delta is allowed more
spread than s_i s_j / sigma^2, in the units of the priors of :mod:`draws`. Where few tasks leave V large this is
no small correction any more, and may go beyond what a task without rows gets: it is for many tasks.

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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.packed import pack, packed_size, triangle, unpack
from hieropo.errors import InputError, MismatchError
from hieropo.estimation.hyper.mixed import WidenedPosterior, prior_scales
from hieropo.estimation.reml import Estimate
from hieropo.model.gaussian import frozen, minus, plus
from hieropo.model.hierarchy import Hierarchy
from hieropo.model.in_shards import PosteriorInShards
from hieropo.model.posterior import Posterior, condition, condition_in_shards
from hieropo.model.steps import up, upper_factor
from hieropo.moments.in_shards import AnyMoments, totals
from hieropo.moments.statistics import Moments

_PIECE = 2**20  # entries worked on at once


@dataclass(frozen=True, slots=True, eq=False)
class HyperError:
    """Covariance of the error of an estimated S = Sigma_0 / sigma^2.

    Parameters
    ----------
    dim : int
        Features d.
    cov : (q, q) or (d, d) array
        V: of the packed entries of S, q = d (d + 1) / 2, or of its diagonal, where only that was estimated.
    degrees : float
        Residual degrees of freedom N: log sigma^2 given S has the variance 2 / N.

    Raises
    ------
    InputError
        ``cov`` has another shape.
    """

    dim: int
    cov: Array
    degrees: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "cov", frozen(self.cov))
        if self.cov.shape not in ((self.dim,) * 2, (packed_size(self.dim),) * 2):
            q = packed_size(self.dim)
            raise InputError(
                f"cov has shape {self.cov.shape}; for {self.dim} features ({q}, {q}) or ({self.dim}, {self.dim}) is "
                "needed."
            )

    @property
    def diagonal(self) -> bool:
        """True where only the diagonal of S was estimated."""
        return len(self.cov) == self.dim

    def to_dict(self) -> dict[str, Any]:
        """Return JSON's types, from which :meth:`from_dict` makes the same value to the last bit."""
        return {
            "kind": "hyper-error",
            "dim": self.dim,
            "cov": pack(self.cov).tolist(),
            "diagonal": self.diagonal,
            "degrees": self.degrees,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the value that :meth:`to_dict` wrote."""
        d = int(values["dim"])
        packed = np.asarray(values["cov"], dtype=np.float64)
        return cls(d, unpack(packed, d if values["diagonal"] else packed_size(d)), float(values["degrees"]))

    @property
    def of_entries(self) -> Array:
        """V of the packed entries (q, q)."""
        if not self.diagonal:
            return self.cov
        full = np.zeros((packed_size(self.dim),) * 2)
        diagonal = _diagonal_positions(self.dim)
        full[diagonal[:, None], diagonal] = self.cov
        return full


def hyper_error(moments: AnyMoments, estimate: Estimate, scaled: Array | None = None) -> HyperError:
    """Return the covariance of the error of an estimate, from its curvature.

    Parameters
    ----------
    moments : Moments
        From which ``estimate`` was made.
    estimate : Estimate
        Of two levels.
    scaled : (d, d) array, optional
        The matrix of which Sigma_0 is a multiple, where it is.

    Raises
    ------
    InputError
        The estimate has no curvature: it is of a tree, or of one task.
    """
    curvature, d = estimate.expected_curvature, moments.dim
    if curvature is None or estimate.degrees is None:
        raise InputError(
            "The first-order error of the hierarchy cannot be computed, because tasks have groups or the log has one "
            "task. Use uncertainty='integrated'."
        )
    basis = _basis(estimate.chosen.shape, d, len(curvature), scaled)
    _, scale = prior_scales(totals(moments))
    root = scale / np.sqrt(estimate.hierarchy.noise_var)
    rows, columns = triangle(d)
    # the prior sd of each free entry is 1 / max_factor
    max_factor = np.abs(basis / (root[rows] * root[columns])).max(axis=1)
    scaled_form = curvature / (2 * np.outer(max_factor, max_factor)) + np.eye(len(max_factor))
    cov = np.linalg.solve(scaled_form, np.eye(len(max_factor))) / np.outer(max_factor, max_factor)
    entries = basis.T @ ((cov + cov.T) / 2) @ basis
    diagonal = _diagonal_positions(d)
    is_diagonal = not basis[:, rows != columns].any()
    return HyperError(d, entries[diagonal[:, None], diagonal] if is_diagonal else entries, estimate.degrees)


def _diagonal_positions(d: int) -> Codes:
    return np.arange(1, d + 1) * np.arange(2, d + 2) // 2 - 1


def _basis(shape: str, d: int, parameters: int, scaled: Array | None) -> Array:
    """Return the packed S (k, q) of a unit change of each free entry."""
    q = packed_size(d)
    if shape == "full":
        return np.eye(q)
    if shape == "diag":
        return pack(np.array([np.diag(unit) for unit in np.eye(d)]))
    if shape == "isotropic":
        return pack(np.eye(d)[None])
    if shape == "scaled" and scaled is not None:
        return pack(np.asarray(scaled, dtype=np.float64)[None])
    if shape != "block":
        raise InputError(f"The error of a task_cov of shape {shape!r} is not known to first order.")
    size = 2 * parameters // d - 1
    entries = []
    for block in range(d // size):
        for unit in np.eye(packed_size(size)):
            S = np.zeros((d, d))
            part = slice(block * size, (block + 1) * size)
            S[part, part] = unpack(unit, size)
            entries.append(pack(S))
    return np.array(entries)


class CorrectedPosterior(WidenedPosterior):
    """Posterior with the error of the estimated hierarchy to first order; made by :func:`correct`.

    It has the views of a :class:`Posterior`.

    Attributes
    ----------
    hierarchy : Hierarchy
        The estimate.
    error : HyperError
    plain : Posterior
        Without the correction.
    moments : Moments
    """

    def __init__(self, plain: Posterior, error: HyperError, pull: Array | None = None) -> None:
        super().__init__(plain)
        self.error = error
        if pull is not None:
            self._pull = pull
        hierarchy = plain.hierarchy
        self._ratio = hierarchy.task_cov / hierarchy.noise_var
        self._factor = upper_factor(self._ratio)[0]

    def _tasks(self, sums: Array) -> Iterator[tuple[Array, Array]]:
        """Yield pieces of the tasks: packed A (k, q), and u (k, d)."""
        d, mean = self.dim, self.plain.root.mean
        q, step = packed_size(d), max(1, _PIECE // (d * d))
        for start in range(0, len(sums), step):
            piece = sums[start : start + step]
            rows, _ = up(piece, 1.0, self._factor, np.arange(len(piece)), len(piece))
            yield rows[:, :q], rows[:, q : q + d] - unpack(rows, d) @ mean

    @cached_property
    def _kernel(self) -> Array:
        """Matrix K (q, q) with pack(X) K = pack(E[Delta X Delta])."""
        d = self.dim
        rows, columns = triangle(d)
        four = unpack(np.moveaxis(unpack(self.error.of_entries, d), 0, -1), d).transpose(2, 3, 0, 1)
        across = four.transpose(1, 2, 0, 3)  # cov(Delta_ij, Delta_kl) by j, k (summed with X_jk), then i, l
        both = across + across.transpose(1, 0, 2, 3)
        kernel = both[rows, columns] / np.where(rows == columns, 2.0, 1.0)[:, None, None]
        return np.ascontiguousarray(((kernel + kernel.transpose(0, 2, 1)) / 2)[:, rows, columns])

    @cached_property
    def _pull(self) -> Array:
        """Move nu of mu (d, q) by unit changes of the packed entries of S."""
        return self.pull_of(self.products)

    @property
    def products(self) -> Array:
        """Sum over tasks of A_ij u_k, (d, d, d)."""
        d = self.dim
        products = np.zeros((d, d, d))
        for A, u in self._tasks(self.moments.sums):
            products += unpack((A.T @ u).T, d).transpose(1, 2, 0)
        return products

    def pull_of(self, products: Array) -> Array:
        """Return the move nu of mu from the :attr:`products` of all tasks."""
        rows, columns = triangle(self.dim)
        moves = products[:, rows, columns] + np.where(rows == columns, 0.0, products[:, columns, rows])
        return np.asarray(-(self.plain.hyper.cov / self.hierarchy.noise_var) @ moves)

    @cached_property
    def _drift(self) -> tuple[Array, Array]:
        """Drift (d, d, d), with E[Delta u nu'] = sum_k u_k drift[k], and E[nu nu'] (d, d)."""
        d = self.dim
        joint = unpack((self.error.of_entries @ self._pull.T).T, d)  # E[nu_j Delta_ik], by j
        drift = np.ascontiguousarray(joint.transpose(2, 1, 0))
        return drift, self._pull @ self.error.of_entries @ self._pull.T

    def _extra(self, A: Array, u: Array) -> Array:
        """Return the addition to the covariances of tasks (k, d, d)."""
        d = self.dim
        rows, columns = triangle(d)
        X = self.hierarchy.noise_var * A + u[:, rows] * u[:, columns]
        drift, cov_of_nu = self._drift
        cross = (u @ drift.reshape(d, d * d)).reshape(-1, d, d)
        inside = self._delta_x_delta(X) + cross + np.swapaxes(cross, 1, 2) + cov_of_nu
        M = np.eye(d) - self._ratio @ unpack(A, d)
        return np.asarray(M @ inside @ np.swapaxes(M, 1, 2))

    def _delta_x_delta(self, X: Array) -> Array:
        """Return E[Delta X Delta] (k, d, d) for packed X (k, q)."""
        rows, columns = triangle(self.dim)
        expected = X * self.error.cov[rows, columns] if self.error.diagonal else X @ self._kernel
        return unpack(expected, self.dim)

    @property
    def _extra_of_mean(self) -> Array:
        return self._drift[1]

    def added(self, vectors: Array) -> Array:
        """Return the addition to the covariance (J, J) of sum_s v_js' theta_s by the estimate's error, v (J, m, d).

        That is E of the squared move, linear in Delta, and sigma^2 sum_s v_js' M_s E[Delta A_s Delta] M_s' v_ls.
        """
        d, J = self.dim, len(vectors)
        rows, columns = triangle(d)
        cov, total, moves, start = np.zeros((J, J)), np.zeros((J, d)), np.zeros((J, rows.size)), 0
        for A, u in self._tasks(self.moments.sums):
            of_tasks = vectors[:, start : start + len(u)].swapaxes(0, 1)
            start += len(u)
            projected = of_tasks @ (np.eye(d) - self._ratio @ unpack(A, d))
            weighted = projected @ self._delta_x_delta(self.hierarchy.noise_var * A)
            cov += np.tensordot(weighted, projected, axes=([0, 2], [0, 2]))
            products = np.einsum("njk,nl->jkl", projected, u)
            moves += products[:, rows, columns] + np.where(rows == columns, 0.0, products[:, columns, rows])
            total += projected.sum(axis=0)
        moves += total @ self._pull
        return np.asarray(cov + moves @ self.error.of_entries @ moves.T)

    def cov_between(self, first: object, second: object) -> Array:
        """Return cov(theta_first, theta_second | log), shape (d, d)."""
        pair = self.moments.keys.require([first, second])
        if pair[0] == pair[1]:
            return self.task(first, unseen="error").cov.copy()
        d, moves = self.dim, []
        units = unpack(np.eye(packed_size(d)), d)
        for row in pair.tolist():
            ((A, u),) = self._tasks(self.moments.sums[row : row + 1])
            M = np.eye(d) - self._ratio @ unpack(A[0], d)
            moves.append(M @ ((units @ u[0]).T + self._pull))
        cov: Array = self.plain.cov_between(first, second) + moves[0] @ self.error.of_entries @ moves[1].T
        return cov


def correct(
    moments: AnyMoments, hierarchy: Hierarchy, error: HyperError
) -> CorrectedPosterior | PosteriorInShards:
    """Return the posterior given the log, corrected to first order for the error of the estimated hierarchy.

    Raises
    ------
    MismatchError
        Dimensions differ.
    InputError
        The hierarchy has levels or metadata, for which the correction is not derived.
    """
    if error.dim != hierarchy.dim:
        raise MismatchError(f"The error is of {error.dim} features, the hierarchy has {hierarchy.dim}.")
    if hierarchy.levels or hierarchy.metadata is not None:
        raise InputError(
            "The first-order correction is for two levels without metadata; use uncertainty='integrated'."
        )
    if isinstance(moments, Moments):
        return CorrectedPosterior(condition(moments, hierarchy), error)
    plain = condition_in_shards(moments, hierarchy)
    products = np.zeros((moments.dim,) * 3)
    for part in plain.moments.map(lambda shard: CorrectedPosterior(plain.of_tasks(shard), error).products):
        products += part
    pull = CorrectedPosterior(plain.population, error).pull_of(products)
    return PosteriorInShards(
        plain.moments, hierarchy, lambda part: CorrectedPosterior(plain.of_tasks(part), error, pull)
    )


def design_effect(moments: Moments, plain: Posterior) -> float:
    """Return D, the ratio of the variance of sums over the kept rows to that of sums over all rows that they represent.

    Parameters
    ----------
    moments : Moments
        With ``squares``.
    plain : Posterior
        Of these moments, whose means are theta^_s.
    """
    assert moments.squares is not None
    means, d = plus(plain.table().means, minus(moments.offset)), moments.dim
    numerator = denominator = 0.0
    for start in range(0, len(moments), max(1, _PIECE // (d + 2) ** 2)):
        part = slice(start, start + max(1, _PIECE // (d + 2) ** 2))
        form = np.concatenate(
            [-means[part], np.ones((len(means[part]), 1)), np.zeros((len(means[part]), 1))], axis=1
        )
        denominator += float(np.einsum("si,sij,sj->", form, unpack(moments.sums[part], d + 2), form))
        numerator += float(np.einsum("si,sij,sj->", form, unpack(moments.squares[part], d + 2), form))
    weight = float(moments.sums[:, -1].sum())
    if not (numerator > 0 and denominator > 0 and weight > 0):  # rewards without noise
        return 1.0
    return numerator / denominator * moments.n_rows / weight


class SampledPosterior(WidenedPosterior):
    """Posterior with standard errors of the robust form, for rows with sampling weights; see the module.

    It has the views of a :class:`Posterior`.

    Attributes
    ----------
    moments : Moments
    hierarchy : Hierarchy
        Of two levels, taken as known.
    plain : Posterior
        With sampling weights taken as numbers of rows.
    design : float
        D.

    Raises
    ------
    InputError
        The hierarchy has levels or metadata, for which the robust form is not derived.
    """

    design: float

    def __init__(self, moments: Moments, hierarchy: Hierarchy) -> None:
        if hierarchy.levels or hierarchy.metadata is not None:
            raise InputError(
                "Rows with sampling weights are learned from by two levels without metadata: robust standard errors "
                "are not derived for a tree. Leave levels, metadata and logging='frozen' out, or the sampling "
                "weights where rows were kept whatever came of them."
            )
        super().__init__(condition(moments, hierarchy))
        self.design = design_effect(self.moments, self.plain)
        self._factor = upper_factor(hierarchy.task_cov)[0]

    def _tasks(self, sums: Array) -> Iterator[tuple[Array, Array]]:
        """Yield P and R (k, d, d) of pieces of the tasks."""
        d, cov = self.dim, self.hierarchy.task_cov
        step, scale = max(1, _PIECE // (d * d)), 1.0 / self.hierarchy.noise_var
        for start in range(0, len(sums), step):
            piece = sums[start : start + step]
            P = unpack(up(piece, scale, self._factor, np.arange(len(piece)), len(piece))[0], d)
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
        extra = cov @ R @ cov + cross + np.swapaxes(cross, 1, 2) + M @ self._spread @ np.swapaxes(M, 1, 2)
        return np.asarray((self.design - 1.0) * extra)

    @property
    def _extra_of_mean(self) -> Array:
        return (self.design - 1.0) * self._spread

    def added(self, vectors: Array) -> Array:
        """Return what is added to the covariance (J, J) of sum_s v_js' theta_s, vectors (J, m, d)."""
        cov, root = self.hierarchy.task_cov, self.plain.hyper.cov
        J, start, shared = len(vectors), 0, np.zeros((len(vectors), self.dim))
        for P, _ in self._tasks(self.moments.sums):
            of_tasks = vectors[:, start : start + len(P)].swapaxes(0, 1)
            start += len(P)
            shared += (of_tasks @ (np.eye(self.dim) - cov @ P)).sum(axis=0)  # sum_s M_s' v_s
        start, cov_of_sums = 0, np.zeros((J, J))
        for _, R in self._tasks(self.moments.sums):
            h = vectors[:, start : start + len(R)].swapaxes(0, 1) @ cov + shared @ root
            start += len(R)
            cov_of_sums += np.tensordot(h @ R, h, axes=([0, 2], [0, 2]))
        return (self.design - 1.0) * cov_of_sums

    def cov_between(self, first: object, second: object) -> Array:
        """Return cov(theta_first, theta_second | log), shape (d, d)."""
        pair = self.moments.keys.require([first, second])
        d = self.dim
        vectors = np.zeros((2 * d, len(self.moments.keys), d))
        for k in (0, 1):
            vectors[k * d + np.arange(d), pair[k]] = np.eye(d)
        return np.asarray(self.plain.cov_between(first, second) + self.added(vectors)[:d, d:])

    def __repr__(self) -> str:
        return f"SampledPosterior({len(self.moments)} tasks, {self.dim} features, design effect {self.design:.3g})"
