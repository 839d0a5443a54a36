"""Log likelihoods of tasks under a spread of their interactions and a noise variance, the means of actions known.

With mu at its posterior mean under one spread tasks are independent, and the log likelihood of the rows of each is a
function of its spread v in closed form: with F F' = M at m = 1, L' L' of the level alike, F'G_a F = V diag(d_a) V',
c_a = V'F'(B_a - G_a mu_a) and C_a = V'F'G_a

    Q(v) = sum_a G_a - C_a' diag(v^2 / (1 + v^2 d_a)) C_a         T(v) = sum_a B_a - G_a mu_a - C_a' diag(..) c_a
    2 log p(v) = sum_a [sum v^2 c_a^2 / (1 + v^2 d_a) - log(1 + v^2 d_a)] + T'L (I + Q L)^-1 T - log|I + Q L| + constant
"""

import numpy as np

from hieropo._utils.arrays import Array
from hieropo._utils.packed import unpack
from hieropo.model.crossed.propagation import phi
from hieropo.model.crossed.steps import ObservedUnits
from hieropo.model.steps import upper_factor


def spread_likelihoods(
    units: ObservedUnits,
    covs: tuple[Array, Array, Array],
    m: float,
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
    m : float
        The one spread under which mu is taken.
    scales : (n,) array
        v.
    noises : (q,) array
        Noise variances of all rows of a task, in units of the given.
    rows : (t,) array
        Rows of the tasks.
    """
    action_cov, level_cov, interaction_cov = covs
    p, K, t = units.dim, units.n_actions, len(units.tasks)
    sums = np.zeros((t, K, p + 1, p + 1))
    sums[units.task, units.action] = unpack(units.rows, p + 1)
    G, B = np.ascontiguousarray(sums[..., :p, :p]), sums[..., :p, p]
    F, level = upper_factor(interaction_cov)[0], upper_factor(level_cov)[0]
    values, V = np.linalg.eigh(F.T @ G @ F)
    d = np.maximum(values, 0.0)
    C = V.swapaxes(2, 3) @ (F.T @ G)
    c = (V.swapaxes(2, 3) @ (F.T @ B[..., None]))[..., 0]
    P, b = _without_interactions(G, B, C, c, _shrunken(d, m))
    mu = _means_of_actions(P, b, action_cov, level)
    square = sums[..., p, p] - 2 * np.einsum("tap,ap->ta", B, mu) + np.einsum("ap,tapq,aq->ta", mu, G, mu)
    B = B - (G @ mu[:, :, None])[..., 0]
    c = c - np.einsum("takp,ap->tak", C, mu)
    result = np.empty((noises.size, scales.size, t))
    for q, noise in enumerate(noises.tolist()):
        task_rows, score = G.sum(axis=1) / noise, B.sum(axis=1) / noise
        flat, flat_c, of_noise = C.reshape(t, -1, p) / noise, c.reshape(t, -1) / noise, d / noise
        rest = -0.5 * (square.sum(axis=1) / noise + rows * np.log(noise))
        for k, v in enumerate(scales.tolist()):
            gain = _shrunken(of_noise, v).reshape(t, -1)
            seen = flat.swapaxes(1, 2) * gain[:, None, :]
            Q, T = task_rows - seen @ flat, score - (seen @ flat_c[..., None])[..., 0]
            along = np.square(flat_c) * gain - np.log1p(v**2 * of_noise).reshape(t, -1)
            of_level = phi(np.eye(p) + level.T @ Q @ level, T @ level)
            result[q, k] = rest + 0.5 * along.sum(axis=1) + of_level
    return result


def _shrunken(d: Array, v: float) -> Array:
    return np.asarray(v**2 / (1 + v**2 * d))


def _without_interactions(G: Array, B: Array, C: Array, c: Array, gain: Array) -> tuple[Array, Array]:
    """P_sa and b_sa."""
    seen = C.swapaxes(2, 3) * gain[:, :, None, :]
    return G - seen @ C, B - (seen @ c[..., None])[..., 0]


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
