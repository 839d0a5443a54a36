"""A filter over periods of the coefficients of units, in plain numpy: the reference for ``_kernels.periods``."""

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.packed import unpack


def filter_units(
    sums: Array,
    ratio: Array,
    order: Codes,
    moves: Array,
    root: Array,
    columns: Codes,
    information: Array,
    scores: Array,
    products: Array,
    log_det: Array,
) -> None:
    """Add the periods of each unit in some order; after each, its coefficients move for a time.

    sums (u, T, q): packed sums of z = (phi, r, 1), of the units of m tasks one after the other. ratio (K, T): noise
    variances of rows. order (T,): periods. moves (T, 3): after each, v, f and g: the coefficients are divided by f,
    gain the covariance v R R', and are divided by g. root (p, p): R. columns (3,): the number of columns of z beside
    the reward, the first of them, and 1 where each period has columns of its own. information (u, p, p),
    scores (u, p, 1 + C), products (u, 1 + C, 1 + C) and log_det (u,) hold those before the first period, and receive
    those after the last.
    """
    units, p = len(sums), len(root)
    width, first_of_z, by_period = columns.tolist()
    of_z = slice(first_of_z, first_of_z + width)
    of_unit = np.tile(ratio, (units // len(ratio), 1))
    for t, (variance, before, after) in zip(order.tolist(), moves.tolist(), strict=True):
        S = unpack(sums[:, t] / of_unit[:, t, None], p + 2)
        information += S[:, :p, :p]
        scores[:, :, 0] += S[:, :p, p]
        first = 1 + (width * t if by_period else 0)
        some = slice(first, first + width)
        scores[:, :, some] += S[:, :p, of_z]
        products[:, 0, 0] += S[:, p, p]
        products[:, some, some] += S[:, of_z, of_z]
        products[:, 0, some] += S[:, p, of_z]
        products[:, some, 0] += S[:, of_z, p]
        _scale(information, scores, before)
        log_det -= 2.0 * p * np.log(before)
        if variance > 0.0 and root.any():
            log_det += _walk(information, scores, products, np.sqrt(variance) * root)
        _scale(information, scores, after)


def _scale(information: Array, scores: Array, factor: float) -> None:
    if factor != 1.0:
        information *= factor**2
        scores *= factor


def _walk(information: Array, scores: Array, products: Array, root: Array) -> Array:
    """Let the coefficients of units walk on by N(0, root root'), in place; log determinants (u,)."""
    p = len(root)
    if p == 1:
        q = float(root[0, 0]) ** 2
        gain = q / (1.0 + q * information[:, 0, 0])
        row = scores[:, 0].copy()
        products -= (gain[:, None] * row)[:, :, None] * row[:, None, :]
        log_det = np.log1p(q * information[:, 0, 0])
        shrink = 1.0 - gain * information[:, 0, 0]
        scores[:, 0] = shrink[:, None] * row
        information[:, 0, 0] *= shrink
        return np.asarray(log_det)
    log_det = np.zeros(len(information))
    rows, gains = (np.empty((len(information), p, scores.shape[2])) for _ in range(2))
    for k, r in enumerate(root.T):  # N(0, r r') one after the other
        along_information = (information.reshape(-1, p) @ r).reshape(-1, p)
        along = np.einsum("i,uic->uc", r, scores)
        spread = 1.0 + along_information @ r
        log_det += np.log(spread)
        gain = along / spread[:, None]
        rows[:, k], gains[:, k] = along, gain
        scores -= along_information[:, :, None] * gain[:, None]
        information -= along_information[:, :, None] * (along_information / spread[:, None])[:, None]
    products -= rows.swapaxes(1, 2) @ gains
    return log_det
