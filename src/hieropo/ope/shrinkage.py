"""Estimates of many tasks, each with its standard error, drawn towards their common mean.

    y_s ~ N(theta_s, se_s^2),   theta_s ~ N(mu, tau^2)

The priors of mu and of tau^2 are flat; theta_s is averaged over both, tau on a grid, and its law taken as normal with
that mean and variance. So intervals carry what is not known of mu and tau, which plugging in an estimate leaves out. A
prior that is flat in tau^2, not in tau, makes them cover on average for any tau that is true (Morris and Tang,
Statistical Science 26, 2011), and wide where few tasks tell tau.
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
    """Shrunken values of m tasks.

    Attributes
    ----------
    value, sd, low, high : (m,) array
    mean : float
        mu.
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
    """Shrink.

    Parameters
    ----------
    estimate, se : (m,) array
        A standard error of infinity says nothing of its task; one of zero means that the task is known: it stays as
        it is and says nothing of others, which are not known as it is.
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
            f"Estimates of shape {y.shape} do not fit standard errors of shape {s.shape}; (m,) is needed."
        )
    bad = ~(np.isfinite(y) & (s >= 0))
    if bad.any():
        row = int(bad.argmax())
        raise InputError(f"Estimate {row} is {y[row]} with the standard error {s[row]}; numbers are needed.")
    if not 0.0 < level < 1.0:
        raise InputError(f"level={level!r} is not a probability in (0, 1).")
    told = np.isfinite(s) & (s > 0)
    if not told.any():
        return _known(y, s)
    scale = float(np.sqrt(np.var(y[told]) + np.median(s[told]) ** 2))
    t, w, mu, var_mu = _hyper(y[told], s[told] ** 2, scale)
    found = np.empty((2, y.size))
    for start in range(0, y.size, _PIECE):
        part = slice(start, start + _PIECE)
        own = np.where(told[part], s[part], 1.0)[:, None] ** 2
        keep = np.where(told[part, None], t**2 / (t**2 + own), 0.0)  # of the task's own estimate
        means = keep * y[part, None] + (1 - keep) * mu
        sds = np.sqrt(np.where(told[part, None], keep * own, t**2) + (1 - keep) ** 2 * var_mu)
        value = means @ w
        found[0, part] = value
        found[1, part] = np.sqrt((sds**2 + (means - value[:, None]) ** 2) @ w)
    value, sd = np.where(s == 0, [y, np.zeros(y.size)], found)
    half = float(ndtri((1 + level) / 2)) * sd
    return Shrunken(value, sd, value - half, value + half, float(mu @ w), float(t @ w))


def _known(y: Array, s: Array) -> Shrunken:
    """What there is where no estimate has an error to learn from."""
    known = s == 0
    mean = float(y[known].mean()) if known.any() else 0.0
    value, sd = np.where(known, y, mean), np.where(known, 0.0, np.inf)
    return Shrunken(
        value, sd, value - sd, value + sd, mean, float(np.std(y[known])) if known.any() else np.inf
    )


def _hyper(y: Array, s2: Array, scale: float) -> tuple[Array, Array, Array, Array]:
    """Grid of tau with weights, and mean and variance of mu at each; the grid is drawn twice closer."""
    taus = scale * np.concatenate([[0.0], np.geomspace(1e-3, 4.0, _GRID - 1)])
    for _ in range(_CLOSER + 1):
        precision = 1.0 / (s2[:, None] + taus**2)
        total = precision.sum(axis=0)
        mus = y @ precision / total
        away = (precision * (y[:, None] - mus) ** 2).sum(axis=0)
        log = 0.5 * (np.log(precision).sum(axis=0) - np.log(total) - away)
        steps = np.gradient(taus)
        steps[[0, -1]] /= 2
        weight = np.exp(log - log.max()) * steps * taus  # flat in tau^2
        weight /= weight.sum()
        used = np.flatnonzero(weight > _NOTHING)
        low, high = taus[max(used[0] - 1, 0)], taus[min(used[-1] + 1, _GRID - 1)]
        found = taus[used], weight[used] / weight[used].sum(), mus[used], 1.0 / total[used]
        taus = np.linspace(low, high, _GRID)
    return found
