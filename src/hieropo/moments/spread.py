"""Variances of rewards about their mean and about one fit to all rows; both ignore an offset of the rewards."""

from dataclasses import replace

import numpy as np

from hieropo._utils.arrays import Array
from hieropo._utils.packed import packed_size, unpack
from hieropo.moments.statistics import Moments

_ROUNDING = 1e-13  # rounding error of a sum of squares, relative
_NO_REST = 1e10 * np.finfo(np.float64).tiny  # variance about the fit that counts as none
_CONSTANT = 1e-10  # mean square of 1 - v' phi up to which it is rounding error


def about_mean(moments: Moments) -> float:
    """Return the mean of w (r - mean r)^2, in squared reward units; of w r^2 where all rewards are equal."""
    d, n = moments.unit_dim, moments.n_rows
    total = moments.unit_sums[:, packed_size(d) :].sum(axis=0)
    square, first, weight = float(total[d]), float(total[2 * d + 1]), float(total[2 * d + 2])
    if n <= 0 or weight <= 0:
        return 0.0
    sum_of_squares = square - first * first / weight
    return (sum_of_squares if sum_of_squares > _ROUNDING * square else square) / n


def mean_reward(moments: Moments) -> float:
    """Return the mean of r by the weights of the rows."""
    d = moments.unit_dim
    last = moments.unit_sums[:, packed_size(d + 1) :].sum(axis=0)
    known = 0.0 if moments.unit_offset is None else float(last[:d] @ moments.unit_offset)
    return (float(last[d]) + known) / float(last[d + 1])


def about_fit(moments: Moments) -> float:
    """Return the residual variance of one least-squares fit of the features of a unit to all rows, in squared units.

    At least 1e-13 of :func:`about_mean`, the size of rounding errors.
    """
    d, n = moments.unit_dim, moments.n_rows
    joint = unpack(moments.unit_sums.sum(axis=0), d + 2)
    size = sizes(joint[:d, :d])
    b, c = joint[:d, d] / size, float(joint[d, d])
    fit = np.linalg.lstsq(joint[:d, :d] / np.outer(size, size), b, rcond=1e-12)[0]
    least = max(_ROUNDING * about_mean(moments) * n, float(np.finfo(np.float64).tiny))
    return max(c - float(fit @ b), least) / max(n - d, 1)


def in_unit_of_fit(moments: Moments) -> Moments:
    """Return the moments with rewards in a unit, a power of two, in which :func:`about_fit` is from 1 to 4.

    Digits stay as they are. Log evidences hold sums of squares in units of a noise variance near 1, which lose digits
    where rewards are large. Moments without any rest about the fit are returned as they are.
    """
    variance = about_fit(moments)
    exponent = -int(np.floor(np.log2(variance) / 2.0))
    if exponent == 0 or variance < _NO_REST:
        return moments
    d, sums = moments.unit_dim, np.array(moments.sums)
    rewards = np.append(packed_size(d) + np.arange(d), packed_size(d + 1) + d)
    sums[..., rewards] = np.ldexp(sums[..., rewards], exponent)
    square = packed_size(d) + d
    sums[..., square] = np.ldexp(sums[..., square], 2 * exponent)
    offset = None if moments.unit_offset is None else np.ldexp(moments.unit_offset, exponent)
    return replace(moments, sums=sums, unit_offset=offset)


def constant(moments: Moments) -> Array | None:
    """Return v (p,) with v' phi = 1 in all rows, such as the sum of the intercepts; None where none exists.

    Adding a constant to all rewards moves the population mean along v, and nothing else.
    """
    d = moments.unit_dim
    joint = unpack(moments.unit_sums.sum(axis=0), d + 2)
    size = sizes(joint[:d, :d])
    first, weight = joint[:d, d + 1] / size, float(joint[d + 1, d + 1])
    gram = joint[:d, :d] / np.outer(size, size)
    v = np.linalg.lstsq(gram, first, rcond=1e-12)[0]
    residual = weight - 2 * float(first @ v) + float(v @ gram @ v)
    return v / size if weight > 0 and residual <= _CONSTANT * weight else None


def sizes(gram: Array) -> Array:
    """Return the root of the sum of squares of each feature (d,); 1 where it is zero."""
    size = np.sqrt(np.diagonal(gram))
    return np.where(size > 0, size, 1.0)
