"""Sample a density of some ten or twenty variables with few evaluations and no random numbers.

A few Newton steps on finite differences lead from a start to about the mode. Points of a quasi-random sequence are
drawn from a t distribution around it; further rounds adapt its mean and covariance to the weighted points of all rounds
before. A point x has the weight pi(x) / sum_r (N_r / N) q_r(x), with the proposals q_r of all rounds (adaptive multiple
importance sampling: Cornuet, Marin, Mira and Robert, Scandinavian Journal of Statistics 39, 2012).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import lgamma, log, pi

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.ties import ROUNDING

Density = Callable[[Array], Array]

_DOF = 5.0  # of the proposals
_STEP = 0.02  # of finite differences, where variables vary by about 1
_ROUNDS = 6
_ENOUGH = 100  # effective points to be trusted; no further round is drawn from twice as many on
_EXCEEDANCES = 5  # to which a distribution can be fitted
_NEGLIGIBLE = 0.01  # share of a density among several, below which its tail does not count
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97)
MOST_VARIABLES = len(_PRIMES) - 1


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A diagnosis of weighted points.

    Attributes
    ----------
    points : int
        Evaluations with weights.
    effective : float
        Effective sample size, 1 / sum of squared weights.
    tail : float
        k of a generalised Pareto distribution fitted to the largest weights: above 0.7 their variance is not finite in
        practice (Vehtari, Simpson, Gelman, Yao and Gabry, Journal of Machine Learning Research 25, 2024).
    log_integral : float
        Log of the density's integral.
    """

    points: int
    effective: float
    tail: float
    log_integral: float

    @property
    def good(self) -> bool:
        """At least 100 effective points, and ``tail`` below 0.7."""
        return self.effective >= _ENOUGH and self.tail < 0.7


def sample(density: Density, start: Array) -> tuple[Array, Array, Diagnosis]:
    """Sample from a density.

    Parameters
    ----------
    density : function
        Log density (H,), up to a constant, of points (H, p); p at most 24. Smooth, falling in all directions.
    start : (p,) array
        Not far from the mode, in coordinates that vary by about 1.

    Returns
    -------
    points : (N, p) array
    weights : (N,) array
        Add to 1.
    Diagnosis
    """
    points, log_weights = _rounds(density, *_mode(density, start))
    weights, log_mean = _normalised(log_weights)
    return (
        points,
        weights,
        Diagnosis(len(points), float(1 / (weights @ weights)), pareto_tail(log_weights), log_mean),
    )


def _mode(density: Density, x: Array) -> tuple[Array, Array]:
    """Return a point near the mode, and the inverse of minus the second derivative there."""
    p, moves = x.size, _STEP * np.eye(x.size)
    i, j = np.tril_indices(p, -1)
    pattern = np.concatenate([np.zeros((1, p)), moves, -moves, moves[i] + moves[j]])
    for _ in range(10):
        values = density(x + pattern)
        centre, plus, minus = values[0], values[1 : p + 1], values[p + 1 : 2 * p + 1]
        curvature = np.diag((plus + minus - 2 * centre) / _STEP**2)
        curvature[i, j] = curvature[j, i] = (values[2 * p + 1 :] - plus[i] - plus[j] + centre) / _STEP**2
        sizes, vectors = np.linalg.eigh(-curvature)
        sizes = np.maximum(np.abs(sizes), 0.1)
        step = vectors @ (vectors.T @ ((plus - minus) / (2 * _STEP)) / sizes)
        lengths = np.array([1.0, 0.5, 0.2, 0.05]) * min(1.0, 1.5 / max(float(np.abs(step).max()), 1e-9))
        trials = density(x + lengths[:, None] * step)
        best = int(trials.argmax())
        if trials[best] > centre:
            x = x + lengths[best] * step
        if trials[best] < centre + 0.02:
            break
    return x, (vectors / sizes) @ vectors.T


def _rounds(density: Density, mean: Array, cov: Array) -> tuple[Array, Array]:
    """Return points (N, p) and their log weights, from rounds of adapted t distributions."""
    p, size = mean.size, int(np.clip(20 * mean.size, 100, 400))
    root: Array = np.asarray(np.linalg.cholesky(cov), dtype=np.float64)
    points, values, proposals = np.zeros((0, p)), np.zeros(0), [(mean, root)]
    counts: list[int] = []
    for round_ in range(_ROUNDS):
        counts.append(size if round_ < 2 else 2 * size)
        mean, lower = proposals[-1]
        fresh = mean + _t_points(len(points), counts[-1], p) @ lower.T
        points, values = np.concatenate([points, fresh]), np.concatenate([values, density(fresh)])
        shares = np.log(np.array(counts) / len(points))
        logs = [share + _log_t(points, *q) for share, q in zip(shares, proposals, strict=True)]
        log_weights = values - np.logaddexp.reduce(logs, axis=0)
        weights = _normalised(log_weights)[0]
        if round_ >= 2 and 1 / float(weights @ weights) > 2 * _ENOUGH:
            break
        proposals.append(_adapted(points, log_weights))
    return points, log_weights


def _adapted(points: Array, log_weights: Array) -> tuple[Array, Array]:
    """Return weighted mean and root of the weighted covariance; weights are tempered until enough points count."""
    p, power = points.shape[1], 1.0
    weights = _normalised(log_weights)[0]
    while 1 / float(weights @ weights) < 4 * p and power > 0.02:
        power *= 0.8
        weights = _normalised(power * log_weights)[0]
    mean = weights @ points
    deviations = (points - mean) * np.sqrt(weights)[:, None]
    return mean, np.asarray(
        np.linalg.cholesky(deviations.T @ deviations + 1e-6 * np.eye(p)), dtype=np.float64
    )


def _t_points(first: int, n: int, p: int) -> Array:
    """Return points first .. first + n of a quasi-random t sequence, from multiples of roots of primes."""
    from scipy.special import gammaincinv, ndtri

    cube = np.mod((np.arange(first, first + n)[:, None] + 0.5) * np.sqrt(_PRIMES[: p + 1]), 1.0)
    cube = np.clip(cube, 1e-12, 1 - 1e-12)
    points: Array = ndtri(cube[:, :p]) / np.sqrt(2 * gammaincinv(_DOF / 2, cube[:, p:]) / _DOF)
    return points


def _log_t(points: Array, mean: Array, lower: Array) -> Array:
    p = mean.size
    standardised = np.linalg.solve(lower, (points - mean).T)
    constant = lgamma((_DOF + p) / 2) - lgamma(_DOF / 2) - p / 2 * log(_DOF * pi)
    density: Array = (
        constant
        - np.log(np.diagonal(lower)).sum()
        - (_DOF + p) / 2 * np.log1p((standardised * standardised).sum(axis=0) / _DOF)
    )
    return density


def _normalised(log_weights: Array) -> tuple[Array, float]:
    """Return weights that add to 1, and the log of their mean before."""
    top = float(log_weights.max())
    weights = np.exp(log_weights - top)
    return weights / weights.sum(), top + float(np.log(weights.mean()))


def averaged(diagnoses: Sequence[Diagnosis]) -> tuple[Diagnosis, Array]:
    """Return the diagnosis of samples of several densities together, and their shares by their integrals, (M,).

    The densities are as likely as each other before. Squared weights add, so 1 / effective is the sum of
    shares^2 / effective; the tail is the largest of those with a share of 1 % or more.
    """
    integrals = np.array([diagnosis.log_integral for diagnosis in diagnoses])
    shares, log_mean = _normalised(integrals)
    effective = np.array([diagnosis.effective for diagnosis in diagnoses])
    tails = [d.tail for d, share in zip(diagnoses, shares, strict=True) if share >= _NEGLIGIBLE]
    tail = float(np.max(tails))
    points = sum(diagnosis.points for diagnosis in diagnoses)
    return Diagnosis(points, float(1 / (shares**2 / effective).sum()), tail, log_mean), shares


def resampled(weights: Array, order: Codes, count: int) -> tuple[Codes, Array]:
    """Return rows and weights of at most ``count`` points, by systematic resampling in the given order."""
    steps = np.cumsum(weights[order])
    picked = np.searchsorted(steps / steps[-1], (np.arange(count) + 0.5) / count)
    rows, times = np.unique(order[picked], return_counts=True)
    return rows, times / count


def pareto_tail(log_weights: Array) -> float:
    """Return the shape k of a generalised Pareto distribution fitted to the largest weights.

    Weights that are equal but for rounding are ties. Where all of the largest are tied, the distribution ends there and
    k is -inf. Where fewer than five exceed the others nothing can be fitted, and it is NaN.

    Source: Zhang and Stephens, Technometrics 51, 2009: the posterior mean over a grid, without iteration.
    """
    n = log_weights.size
    count = int(min(n / 5, 3 * np.sqrt(n)))
    if count < _EXCEEDANCES:
        return np.nan
    sorted_weights = np.sort(np.exp(log_weights - log_weights.max()))
    excess = sorted_weights[-count:] - sorted_weights[-count - 1]
    excess = excess[excess > ROUNDING]
    if not excess.size or (excess.size >= _EXCEEDANCES and excess[-1] - excess[0] <= ROUNDING):
        return -np.inf
    if excess.size < _EXCEEDANCES:
        return np.nan
    grid = 30 + int(np.sqrt(excess.size))
    quartile = excess[int(excess.size / 4 + 0.5) - 1]
    b = 1 / excess[-1] + (1 - np.sqrt(grid / (np.arange(1, grid + 1) - 0.5))) / (3 * quartile)
    k = np.log1p(-b[:, None] * excess).mean(axis=1)
    fit = excess.size * (np.log(-b / k) - k - 1)
    share = np.exp(fit - np.logaddexp.reduce(fit))
    return float(np.log1p(-(share @ b) * excess).mean())
