"""Log likelihoods of tasks under a spread of their interactions and a noise variance, the means of actions known.

With mu at its posterior mean under one spread tasks are independent, and the log likelihood of the rows of each is a
function of its spread v in closed form: with F F' = M at m = 1, L' L' of the level alike, F'G_a F = V diag(d_a) V',
c_a = V'F'(B_a - G_a mu_a) and C_a = V'F'G_a

    Q(v) = sum_a G_a - C_a' diag(v^2 / (1 + v^2 d_a)) C_a         T(v) = sum_a B_a - G_a mu_a - C_a' diag(..) c_a
    2 log p(v) = sum_a [sum v^2 c_a^2 / (1 + v^2 d_a) - log(1 + v^2 d_a)] + T'L (I + Q L)^-1 T - log|I + Q L| + constant
"""

from typing import NamedTuple, Self

import numpy as np

from hieropo._kernels.reference.gaussians import phi
from hieropo._utils.arrays import Array
from hieropo._utils.packed import unpack
from hieropo.model.crossed.steps import ObservedUnits
from hieropo.model.steps import upper_factor


def means_of_actions(units: ObservedUnits, covs: tuple[Array, Array, Array], m: float) -> Array:
    """Return the posterior mean (K, p) of mu under one spread.

    Parameters
    ----------
    units : ObservedUnits
        Divided by the noise.
    covs : three (p, p) arrays
        A, L, and M at m = 1.
    m : float
        The spread of all tasks.
    """
    action_cov, level_cov, interaction_cov = covs
    sums = _Sums.of(units, interaction_cov)
    P, b = sums.without_interactions(m)
    return _means_of_actions(P, b, action_cov, upper_factor(level_cov)[0])


def spread_likelihoods(
    units: ObservedUnits,
    covs: tuple[Array, Array, Array],
    mu: Array,
    scales: Array,
    noises: Array,
    rows: Array,
) -> Array:
    """Return log likelihoods (q, n, t) of the rows of each task for each noise and spread, but for a constant a task.

    Parameters
    ----------
    units : ObservedUnits
        Divided by the noise.
    covs : three (p, p) arrays
        A, L, and M at m = 1.
    mu : (K, p) array
        Means of the actions, taken as known.
    scales : (n,) array
        v.
    noises : (q,) array
        Noise variances of all rows of a task, in units of the given.
    rows : (t,) array
        Rows of the tasks.
    """
    _, level_cov, interaction_cov = covs
    sums = _Sums.of(units, interaction_cov).about(mu)
    t, p = len(units.tasks), units.dim
    level = upper_factor(level_cov)[0]
    result = np.empty((noises.size, scales.size, t))
    for q, noise in enumerate(noises.tolist()):
        task_rows, score = sums.G.sum(axis=1) / noise, sums.B.sum(axis=1) / noise
        flat, flat_c, of_noise = (
            sums.C.reshape(t, -1, p) / noise,
            sums.c.reshape(t, -1) / noise,
            sums.d / noise,
        )
        rest = -0.5 * (sums.square.sum(axis=1) / noise + rows * np.log(noise))
        for k, v in enumerate(scales.tolist()):
            gain = _shrunken(of_noise, v).reshape(t, -1)
            seen = flat.swapaxes(1, 2) * gain[:, None, :]
            Q, T = task_rows - seen @ flat, score - (seen @ flat_c[..., None])[..., 0]
            along = np.square(flat_c) * gain - np.log1p(v**2 * of_noise).reshape(t, -1)
            of_level = phi(np.eye(p) + level.T @ Q @ level, T @ level)
            result[q, k] = rest + 0.5 * along.sum(axis=1) + of_level
    return result


def unit_likelihoods(units: ObservedUnits, cov: Array, mu: Array, noises: Array, rows: Array) -> Array:
    """Return log likelihoods (q, u) of the rows of each unit by itself for each noise, but for a constant a unit.

    Parameters
    ----------
    units : ObservedUnits
        Divided by the noise.
    cov : (p, p) array
        Covariance of the coefficients of a unit around ``mu``.
    mu : (K, p) array
    noises : (q,) array
    rows : (u,) array
        Rows of the units.
    """
    sums = _Sums.of(units, cov).about(mu)
    at = units.task, units.action
    d, c, square = sums.d[at], sums.c[at], sums.square[at]
    result = np.empty((noises.size, rows.size))
    for q, noise in enumerate(noises.tolist()):
        along = np.square(c / noise) / (1 + d / noise) - np.log1p(d / noise)
        result[q] = 0.5 * (along.sum(axis=1) - square / noise - rows * np.log(noise))
    return result


class _Sums(NamedTuple):
    """Sums of all units of t tasks: zero where a unit has no rows.

    Attributes
    ----------
    G : (t, K, p, p) array
    B : (t, K, p) array
    C, c, d : (t, K, p, p), (t, K, p), (t, K, p) array
        Along the directions of the interactions.
    square : (t, K) array
        Of the rewards.
    """

    G: Array
    B: Array
    C: Array
    c: Array
    d: Array
    square: Array

    @classmethod
    def of(cls, units: ObservedUnits, interaction_cov: Array) -> Self:
        p, K, t = units.dim, units.n_actions, len(units.tasks)
        sums = np.zeros((t, K, p + 1, p + 1))
        sums[units.task, units.action] = unpack(units.rows, p + 1)
        G, B = np.ascontiguousarray(sums[..., :p, :p]), sums[..., :p, p]
        F = upper_factor(interaction_cov)[0]
        values, V = np.linalg.eigh(F.T @ G @ F)
        C = V.swapaxes(2, 3) @ (F.T @ G)
        c = (V.swapaxes(2, 3) @ (F.T @ B[..., None]))[..., 0]
        return cls(G, B, C, c, np.maximum(values, 0.0), sums[..., p, p])

    def about(self, mu: Array) -> Self:
        """Return the sums of rewards less their means under mu (K, p)."""
        square = self.square - 2 * np.einsum("tap,ap->ta", self.B, mu)
        square += np.einsum("ap,tapq,aq->ta", mu, self.G, mu)
        B = self.B - (self.G @ mu[:, :, None])[..., 0]
        return self._replace(B=B, c=self.c - np.einsum("takp,ap->tak", self.C, mu), square=square)

    def without_interactions(self, m: float) -> tuple[Array, Array]:
        """P_sa and b_sa: information and score of the rows about mu and the level."""
        seen = self.C.swapaxes(2, 3) * _shrunken(self.d, m)[:, :, None, :]
        return self.G - seen @ self.C, self.B - (seen @ self.c[..., None])[..., 0]


def _shrunken(d: Array, v: float) -> Array:
    return np.asarray(v**2 / (1 + v**2 * d))


def _means_of_actions(P: Array, b: Array, action_cov: Array, level: Array) -> Array:
    """Posterior mean (K, p) of mu under one spread."""
    t, K, p = b.shape
    inner = np.eye(p) + level.T @ P.sum(axis=1) @ level
    W = level @ np.linalg.solve(inner, np.broadcast_to(level.T, (t, p, p)))
    shift = (W @ b.sum(axis=1)[..., None])[..., 0]
    score = (b - np.einsum("taij,tj->tai", P, shift)).sum(axis=0).reshape(-1)
    stacked = P.reshape(t, K * p, p)
    information = -np.tensordot(stacked @ W, stacked, ((0, 2), (0, 2))).reshape(K, p, K, p)
    information[np.arange(K), :, np.arange(K)] += P.sum(axis=0)
    F = upper_factor(action_cov)[0]
    F = F[:, F.any(axis=0)]
    basis = np.concatenate([np.tile(np.eye(p), (K, 1)), np.kron(np.eye(K), F)], axis=1)
    whole = basis.T @ information.reshape(K * p, K * p) @ basis
    whole[np.arange(p, len(whole)), np.arange(p, len(whole))] += 1.0
    return np.asarray(basis @ np.linalg.solve(whole, basis.T @ score)).reshape(K, p)
