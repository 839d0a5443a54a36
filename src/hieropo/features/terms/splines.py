"""The cardinal basis of natural cubic splines."""

from collections.abc import Sequence

import numpy as np

from hieropo._utils.arrays import Array


def natural_spline(x: Array, knots: Sequence[float]) -> Array:
    """Return the cardinal natural cubic splines at x (n,), of shape (n, k), for k >= 2 growing knots.

    Column j is the natural cubic spline that is 1 at knot j and 0 at the others; it is linear beyond the first and the
    last knot. Between the knots t_j and t_{j+1}, with h = t_{j+1} - t_j and the second derivatives g at the knots,

        f(x) = ((t_{j+1} - x) f_j + (x - t_j) f_{j+1}) / h
             - (x - t_j)(t_{j+1} - x) / 6 ((1 + (x - t_j) / h) g_{j+1} + (1 + (t_{j+1} - x) / h) g_j)

    (Green and Silverman 1994, section 2.2).
    """
    scale = float(knots[-1]) - float(knots[0])
    t = (np.asarray(knots, dtype=np.float64) - float(knots[0])) / scale  # so that a basis has no units
    u = (x - float(knots[0])) / scale
    g = _second_derivatives(t)
    h = np.diff(t)
    j = np.clip(np.searchsorted(t, u, side="right") - 1, 0, t.size - 2)
    inside = np.clip(u, t[0], t[-1])
    left, right = inside - t[j], t[j + 1] - inside
    identity = np.eye(t.size)
    basis: Array = (right[:, None] * identity[j] + left[:, None] * identity[j + 1]) / h[j, None]
    bend = (1.0 + left / h[j])[:, None] * g[j + 1] + (1.0 + right / h[j])[:, None] * g[j]
    basis -= (left * right / 6.0)[:, None] * bend
    beyond = u - inside
    low = (identity[1] - identity[0]) / h[0] - h[0] / 6.0 * (g[1] + 2.0 * g[0])
    high = (identity[-1] - identity[-2]) / h[-1] + h[-1] / 6.0 * (g[-2] + 2.0 * g[-1])
    tails = np.minimum(beyond, 0.0)[:, None] * low + np.maximum(beyond, 0.0)[:, None] * high
    return np.asarray(basis + tails)


def _second_derivatives(t: Array) -> Array:
    """Return the second derivatives at the knots (k,) of each cardinal spline, (k, k); 0 at both ends."""
    k = t.size
    g = np.zeros((k, k))
    if k == 2:
        return g
    h = np.diff(t)
    inner = np.arange(k - 2)
    band, differences = np.zeros((k - 2, k - 2)), np.zeros((k - 2, k))
    band[inner, inner] = (h[:-1] + h[1:]) / 3.0
    band[inner[:-1], inner[1:]] = band[inner[1:], inner[:-1]] = h[1:-1] / 6.0
    differences[inner, inner] = 1.0 / h[:-1]
    differences[inner, inner + 1] = -1.0 / h[:-1] - 1.0 / h[1:]
    differences[inner, inner + 2] = 1.0 / h[1:]
    g[1:-1] = np.linalg.solve(band, differences)
    return g
