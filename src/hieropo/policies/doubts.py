"""Choices in contexts with values that are not known: their covariance enters the lower bounds."""

from typing import Any, NamedTuple

import numpy as np

from hieropo._kernels.reference.choice import rank
from hieropo._utils.arrays import Array, Mask
from hieropo._utils.packed import unpack

_BLOCK = 1 << 22  # entries of covariances in one block of requests


class Scores(NamedTuple):
    """Lower bounds, means and sds (n, K) of the expected rewards of candidates."""

    bound: Array
    mean: Array
    sd: Array


def block_rows(candidates: int, dim: int) -> int:
    """Return the number of requests of K candidates of dimension d that are scored at once."""
    return max(1, _BLOCK // max(candidates * dim * dim, 1))


def scores(mean: Array, cov: Array, phi: Array, roots: Array, pessimism: float) -> Scores:
    """Return the scores of candidates whose features are known but for a covariance.

    With features phi of mean f and covariance D'D, and theta ~ N(m, S), the expected reward phi'theta has the mean f'm
    and the variance f'S f + |D m|^2 + tr(D S D').

    Parameters
    ----------
    mean : (n, K or 1, p)
    cov : (n, K or 1, q)
        Packed covariances.
    phi : (n, K or 1, p)
    roots : (n, r, K or 1, p)
        D of each candidate.
    """
    full = unpack(cov, mean.shape[-1])
    expected = (phi * mean).sum(axis=-1)
    variance = _quadratic(phi, full)
    for k in range(roots.shape[1]):
        along = roots[:, k]
        variance = variance + (along * mean).sum(axis=-1) ** 2 + _quadratic(along, full)
    sd = np.sqrt(np.maximum(variance, 0.0))
    return Scores(expected - pessimism * sd, expected, sd)


def _quadratic(phi: Array, cov: Array) -> Array:
    """Return phi' cov phi, (n, K)."""
    product: Array = ((cov @ phi[..., None])[..., 0] * phi).sum(axis=-1)
    return product


def ranked(candidates: Scores, mask: Mask, top: int) -> tuple[Any, Scores]:
    """Return the indices (n, top) of the eligible candidates with the largest bounds, best first, and their scores.

    Of bounds that are equal within rounding the first comes first. Indices are -1, and scores NaN, beyond the number of
    eligible candidates.
    """
    n = len(candidates.bound)
    allowed = np.isfinite(candidates.bound)
    if len(mask):
        allowed &= mask
    index, listed = np.full((n, top), -1, dtype=np.int64), np.full((3, n, top), np.nan)
    rank(np.stack(candidates), allowed, index, (listed[0], listed[1], listed[2]))
    return index, Scores(*listed)
