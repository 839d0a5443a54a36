"""A cheap test, before any mixture of spreads is sought, whether tasks may differ in the spread of their interactions.

In the words of :mod:`spreads`: the means of the actions, mu, are taken at their posterior mean under one spread. Given
mu tasks are independent, and the log likelihood of the rows of each is a function of its spread v in closed form: with
F F' = M at m = 1, L' L' of the level alike, F'G_a F = V diag(d_a) V', c_a = V'F'(B_a - G_a mu_a) and C_a = V'F'G_a

    Q(v) = sum_a G_a - C_a' diag(v^2 / (1 + v^2 d_a)) C_a         T(v) = sum_a B_a - G_a mu_a - C_a' diag(..) c_a
    2 log p(v) = sum_a [sum v^2 c_a^2 / (1 + v^2 d_a) - log(1 + v^2 d_a)] + T'L (I + Q L)^-1 T - log|I + Q L| + constant

Three log likelihoods are compared, each the largest of its kind: of one v in all tasks; of any mixture of v (Kiefer and
Wolfowitz 1956; Lindsay 1983); and of any mixture of noise variances of tasks with one v. A mixture of spreads is sought
where it gains at least `POSSIBLE` over one v, since its Bayes factor, which pays for its weights and sizes, is hardly
larger than this ratio; where the noise of tasks gains less than that; and where a joint mixture of both gains
`POSSIBLE` over that of the noise. Rewards with heavy tails, of skewed laws, of two values or mostly zero are taken for
unequal noise, and so are not mistaken for tasks of unlike effects.
"""

import numpy as np

from hieropo._utils.arrays import Array
from hieropo._utils.packed import unpack
from hieropo.model.crossed.propagation import phi
from hieropo.model.crossed.steps import ObservedUnits
from hieropo.model.steps import upper_factor

POSSIBLE = 2.0  # gain of log likelihood below which a Bayes factor of 10 is out of reach
_FINE = 0.1  # of log v between spreads that are mixed
_NOISES = np.exp(np.append(0.0, np.append(np.arange(-2.0, 0.0, 0.5), np.arange(0.5, 5.1, 0.5))))  # 1 first
_AROUND = 2  # spreads beside the best one that mixtures of noises have
_STEPS = 300  # of expectation maximisation towards the best mixture
_NEAR = 0.1  # of its log likelihood


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


def spreads_may_differ(
    units: ObservedUnits, covs: tuple[Array, Array, Array], m: float, scales: Array, rows: Array
) -> bool:
    """Return False where the log shows that no mixture of spreads is worth a search; as :func:`spread_likelihoods`."""
    (alone,) = spread_likelihoods(units, covs, m, scales, _NOISES[:1], rows)
    alone = _finer(scales, alone)
    one = float(alone.sum(axis=1).max())
    if not _exceeds(alone, one + POSSIBLE):
        return False
    joint = spread_likelihoods(units, covs, m, scales, _NOISES, rows)
    best = int(joint[0].sum(axis=1).argmax())
    some = slice(max(best - _AROUND, 0), best + _AROUND + 1)
    of_noise = max(_best_mixture(joint[:, k]) for k in range(*some.indices(scales.size)))
    if not _exceeds(alone, of_noise):
        return False
    return _exceeds(np.concatenate([_finer(scales, part) for part in joint]), max(of_noise, one) + POSSIBLE)


def _finer(scales: Array, values: Array) -> Array:
    """Interpolate log likelihoods (n, t) along log v; that of v = 0 stays."""
    from scipy.interpolate import CubicSpline

    logs = np.log(scales[1:])
    fine = np.linspace(logs[0], logs[-1], int(np.ceil((logs[-1] - logs[0]) / _FINE)) + 1)
    return np.concatenate([values[:1], CubicSpline(logs, values[1:], axis=0)(fine)])


def _exceeds(log_likelihoods: Array, least: float) -> bool:
    return _best_mixture(log_likelihoods, least) > least


def _best_mixture(log_likelihoods: Array, enough: float = np.inf) -> float:
    """Return the log likelihood of the best mixture of n laws, from those of t tasks (n, t).

    It comes by expectation maximisation, which stops as soon as it has ``enough`` or can no longer have so much, or is
    right to `_NEAR`: with mixture densities f_s no mixture has more than t log max_v mean_s (p_s(v) / f_s) above it.
    """
    most = log_likelihoods.max(axis=0)
    likelihood = np.exp(log_likelihoods - most)
    n, t = likelihood.shape
    weights = np.full(n, 0.5 / n)
    weights[log_likelihoods.sum(axis=1).argmax()] += 0.5
    value = -np.inf
    for _ in range(_STEPS):
        mixed = weights @ likelihood
        value = float(np.log(mixed).sum() + most.sum())
        slope = (likelihood @ (1 / mixed)) / t
        rest = t * float(np.log(slope.max()))
        if value > enough or value + rest < enough < np.inf or rest < _NEAR:
            break
        weights = weights * slope
    return value
