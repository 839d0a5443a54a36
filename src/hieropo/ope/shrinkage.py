"""Empirical Bayes shrinkage of the estimates of many tasks towards their common mean.

    y_s ~ N(theta_s, se_s^2),   theta_s ~ N(mu, tau^2)

The priors of mu and of tau^2 are flat. theta_s is averaged over both, tau on a grid, and its posterior is taken as
normal with that mean and variance. So intervals include the uncertainty of mu and tau, which plugging in an estimate
leaves out. A prior that is flat in tau^2, not in tau, gives them their nominal coverage on average for any true tau
(Morris and Tang, Statistical Science 26, 2011), and makes them wide where few tasks inform tau.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from hieropo._utils.arrays import Array
from hieropo.errors import InputError

_GRID = 40
_CLOSER = 2
_NOTHING = 1e-6
_PIECE = 50_000


@dataclass(frozen=True, slots=True, eq=False)
class Shrunken:
    """Shrunken estimates of m tasks.

    Attributes
    ----------
    value, sd, low, high : (m,) array
    mean : float
        Posterior mean of mu.
    between_sd : float
        Posterior mean of tau.
    """

    value: Array
    sd: Array
    low: Array
    high: Array
    mean: float
    between_sd: float


def shrink(estimate: ArrayLike, se: ArrayLike, *, level: float = 0.95) -> Shrunken:
    """Return the posterior mean, sd and interval of each theta_s, given all estimates.

    Parameters
    ----------
    estimate, se : (m,) array
        An estimate with an infinite standard error is ignored. One with a standard error of zero is kept as it is,
        and does not inform the others.
    level : float
        Of the intervals.

    Raises
    ------
    InputError
        Shapes differ; an estimate is not finite; a standard error is negative.
    """
    from scipy.special import ndtri

    y, s = np.asarray(estimate, dtype=np.float64), np.asarray(se, dtype=np.float64)
    if y.ndim != 1 or y.shape != s.shape or not y.size:
        raise InputError(
            f"Estimates of shape {y.shape} do not fit standard errors of shape {s.shape}. Hand in one of each for "
            "every task, of shape (m,)."
        )
    bad = ~(np.isfinite(y) & (s >= 0))
    if bad.any():
        row = int(bad.argmax())
        raise InputError(
            f"Estimate {row} is {y[row]} with the standard error {s[row]}. Estimates must be finite and standard "
            "errors "
            "at least 0; an infinite one marks a task without information."
        )
    if not 0.0 < level < 1.0:
        raise InputError(f"level={level!r} is not a probability in (0, 1).")
    uncertain = np.isfinite(s) & (s > 0)
    if not uncertain.any():
        return _without_errors(y, s)
    scale = float(np.sqrt(np.var(y[uncertain]) + np.median(s[uncertain]) ** 2))
    t, w, mu, var_mu = _tau_grid(y[uncertain], s[uncertain] ** 2, scale)
    mean_and_sd = np.empty((2, y.size))
    for start in range(0, y.size, _PIECE):
        part = slice(start, start + _PIECE)
        se_squared = np.where(uncertain[part], s[part], 1.0)[:, None] ** 2
        keep = np.where(
            uncertain[part, None], t**2 / (t**2 + se_squared), 0.0
        )  # weight of the task's own estimate
        means = keep * y[part, None] + (1 - keep) * mu
        sds = np.sqrt(np.where(uncertain[part, None], keep * se_squared, t**2) + (1 - keep) ** 2 * var_mu)
        value = means @ w
        mean_and_sd[0, part] = value
        mean_and_sd[1, part] = np.sqrt((sds**2 + (means - value[:, None]) ** 2) @ w)
    value, sd = np.where(s == 0, [y, np.zeros(y.size)], mean_and_sd)
    half = float(ndtri((1 + level) / 2)) * sd
    return Shrunken(value, sd, value - half, value + half, float(mu @ w), float(t @ w))


def _without_errors(y: Array, s: Array) -> Shrunken:
    """Return the estimates where no standard error is positive and finite, so that tau cannot be learned."""
    exact = s == 0
    mean = float(y[exact].mean()) if exact.any() else 0.0
    value, sd = np.where(exact, y, mean), np.where(exact, 0.0, np.inf)
    return Shrunken(
        value, sd, value - sd, value + sd, mean, float(np.std(y[exact])) if exact.any() else np.inf
    )


def _tau_grid(y: Array, s2: Array, scale: float) -> tuple[Array, Array, Array, Array]:
    """Return a grid of tau with posterior weights, and mean and variance of mu at each; the grid is refined twice."""
    taus = scale * np.concatenate([[0.0], np.geomspace(1e-3, 4.0, _GRID - 1)])
    for _ in range(_CLOSER + 1):
        precision = 1.0 / (s2[:, None] + taus**2)
        total = precision.sum(axis=0)
        mus = y @ precision / total
        squared_distance = (precision * (y[:, None] - mus) ** 2).sum(axis=0)
        log_density = 0.5 * (np.log(precision).sum(axis=0) - np.log(total) - squared_distance)
        steps = np.gradient(taus)
        steps[[0, -1]] /= 2
        weight = np.exp(log_density - log_density.max()) * steps * taus  # flat in tau^2
        weight /= weight.sum()
        kept_nodes = np.flatnonzero(weight > _NOTHING)
        low, high = taus[max(kept_nodes[0] - 1, 0)], taus[min(kept_nodes[-1] + 1, _GRID - 1)]
        grid = (
            taus[kept_nodes],
            weight[kept_nodes] / weight[kept_nodes].sum(),
            mus[kept_nodes],
            1.0 / total[kept_nodes],
        )
        taus = np.linspace(low, high, _GRID)
    return grid
