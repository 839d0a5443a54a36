"""Intervals of a ratio of standard deviations times its unit, whose posterior is a grid of nodes."""

import numpy as np

from hieropo._utils.arrays import Array

_POINTS = 200  # quantiles of a ratio, and of its unit, in intervals of their product


def interval_of_product(
    ratios: Array, units: Array, weights: Array, variance: float, level: float, *, slab: bool = False
) -> tuple[float, float, float]:
    """Return mean and ends of the equal-tailed interval of ratio times unit.

    The nodes of ``ratios`` (H,) above 0 stand for cells that meet half-way between them. The log of a unit has
    ``variance`` besides that of its nodes (H,). A ``slab`` has no mass at 0: where its density near 0 is no lower than
    at the upper end, the log allows 0, and the interval is that from 0.
    """
    from scipy.special import ndtri

    zero, above = float(weights[ratios == 0].sum()), ratios > 0
    value = float(weights @ (ratios * units))
    if not above.any():
        return value, 0.0, 0.0
    share, logs = weights[above] / weights[above].sum(), np.log(units[above])
    middle = float(share @ logs)
    sd = np.sqrt(variance + float(share @ (logs - middle) ** 2))
    q = (np.arange(_POINTS) + 0.5) / _POINTS
    draws = np.sort((_cells(ratios[above], share, q)[:, None] * np.exp(middle + sd * ndtri(q))).ravel())
    below = zero + (1 - zero) * (np.arange(draws.size) + 0.5) / draws.size
    low, high = (
        0.0 if p <= zero else float(np.interp(p, below, draws)) for p in ((1 - level) / 2, (1 + level) / 2)
    )
    if slab and _allows_zero(draws, low, high):
        return value, 0.0, float(np.interp(level, below, draws))
    return value, low, high


def _allows_zero(draws: Array, low: float, high: float) -> bool:
    """Return True if sorted draws are as dense well below ``low`` as at ``high``."""
    near, left, right = np.searchsorted(draws, [low / 4, 0.95 * high, 1.05 * high])
    return bool(near / (low / 4) >= (right - left) / (0.1 * high))


def _cells(values: Array, share: Array, q: Array) -> Array:
    """Quantiles of cells around the distinct values, which meet half-way between these."""
    nodes, place = np.unique(values, return_inverse=True)
    if nodes.size == 1:
        return np.full(q.size, nodes[0])
    middle = (nodes[1:] + nodes[:-1]) / 2
    edges = np.concatenate([[max(2 * nodes[0] - middle[0], 0.0)], middle, [2 * nodes[-1] - middle[-1]]])
    return np.asarray(np.interp(q, np.append(0.0, np.cumsum(np.bincount(place, share))), edges))
