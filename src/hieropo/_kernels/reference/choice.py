"""Score candidates and choose among them in plain numpy: the reference for ``_kernels.choice``.

Scores are summed feature after feature, candidates side by side: equal candidates get equal bits, alone or in a batch,
so that ties are ties, and features that are 0 change no bit.
"""

from math import isfinite

import numpy as np

from hieropo._utils.arrays import Array, Codes, Mask
from hieropo._utils.ties import ROUNDING

_PIECE = 2**15  # products computed at once


def score(
    means: Array,
    covs: Array,
    row: int,
    phi: Array,
    pessimism: float,
    bound: Array,
    mean: Array,
    sd: Array,
) -> None:
    """Write bound, mean and sd of the candidates of one task with features ``phi`` (J, d)."""
    bound[:], mean[:], sd[:] = _scores(means[row : row + 1], covs[row : row + 1], phi[None], pessimism)[:, 0]


def choose(
    means: Array,
    covs: Array,
    prior_mean: Array,
    prior_cov: Array,
    rows: Codes,
    phi: Array,
    eligible: Mask,
    pessimism: float,
    index: Codes,
    bound: Array,
    mean: Array,
    sd: Array,
) -> int:
    """Rank the eligible candidates of each request; return the first request without a finite one, or -1.

    ``rows`` (n,) are rows of ``means`` and ``covs``, -1 for the prior; ``phi`` is (n, J, d); ``eligible`` is (n, K),
    or (0, 0) for all. ``index`` comes filled with -1, the other outputs with NaN, all (n, top).
    """
    n, J, d = phi.shape
    K = J if means.ndim == 2 else means.shape[1]
    step = max(1, _PIECE // max(K * d * (d + 1) // 2, 1))
    for start in range(0, n, step):
        part = slice(start, min(start + step, n))
        mean_, cov = _rows_of(means, rows[part], prior_mean), _rows_of(covs, rows[part], prior_cov)
        scores = _scores(mean_, cov, phi[part], pessimism)
        allowed = eligible[part] if len(eligible) else np.ones(scores.shape[1:], dtype=np.bool_)
        bad = ~allowed.any(axis=1) | (allowed & ~np.isfinite(scores[0])).any(axis=1)
        if bad.any():
            return start + int(bad.argmax())
        rank(scores, allowed, index[part], (bound[part], mean[part], sd[part]))
    return -1


def choose_one(
    means: Array, covs: Array, row: int, phi: Array, eligible: Mask, pessimism: float
) -> tuple[int, float, float, float]:
    """Return index, bound, mean and sd of the best eligible candidate; index -1 where :func:`choose` would stop.

    ``phi`` is (J, d), ``eligible`` (K,), or (0,) for all.
    """
    bounds, means, sds = _scores(means[row : row + 1], covs[row : row + 1], phi[None], pessimism)[
        :, 0
    ].tolist()
    allowed = eligible.tolist() if eligible.size else [True] * len(bounds)
    best = -1
    for k, (value, is_allowed) in enumerate(zip(bounds, allowed, strict=True)):
        if is_allowed and not isfinite(value):
            return -1, value, means[k], sds[k]
        if is_allowed and (best < 0 or not value <= bounds[best] + ROUNDING * (abs(value) + abs(means[k]))):
            best = k
    return (best, bounds[best], means[best], sds[best]) if best >= 0 else (-1, -np.inf, np.nan, np.nan)


def count_wins(thetas: Array, phi: Array, eligible: Mask, wins: Codes) -> bool:
    """Add to ``wins`` the number of thetas (S, d) for which each eligible row of ``phi`` (K, d) is best.

    Ties go to the first. Returns True if every theta had a winner and every product was finite.
    """
    candidates = np.flatnonzero(eligible)
    with np.errstate(all="ignore"):
        values = np.zeros((len(thetas), candidates.size))
        for theta, x in zip(thetas.T, phi[candidates].T, strict=True):
            values += theta[:, None] * x
    if not values.size:
        return not len(thetas)
    if not np.isfinite(values).all():
        return False
    wins += np.bincount(candidates[values.argmax(axis=1)], minlength=wins.size)
    return True


def _rows_of(table: Array, rows: Codes, prior: Array) -> Array:
    if not len(table):
        return np.repeat(prior, rows.size, axis=0)
    result = table[rows]
    result[rows < 0] = prior
    return result


@np.errstate(all="ignore")
def _scores(means: Array, covs: Array, phi: Array, pessimism: float) -> Array:
    """Return bounds, means and sds (3, n, K); the bound is NaN where a score is not finite.

    means (n, d) or (n, K, d), covs (n, q) or (n, K, q), phi (n, J, d).
    """
    d = phi.shape[2]
    columns = np.arange(d) * np.arange(1, d + 1) // 2  # where each column of a packed triangle begins
    if means.ndim == 2:
        means, covs = means[:, None], covs[:, None]
    x, slope, cov = (np.ascontiguousarray(np.moveaxis(table, 2, 0)) for table in (phi, means, covs))
    n, K = np.broadcast_shapes(x.shape[1:], slope.shape[1:])
    mean, variance, above = np.zeros((n, K)), np.zeros((n, K)), np.zeros((d, n, K))
    for i in range(d):
        mean += slope[i] * x[i]
        above[i + 1 :] += cov[columns[i + 1 :] + i] * x[i]
    for j in range(d):
        variance += x[j] * (2.0 * above[j] + cov[columns[j] + j] * x[j])
    sd = np.sqrt(np.where(variance > 0.0, variance, 0.0))
    bound = mean - pessimism * sd
    return np.stack([np.where(np.isfinite(bound + variance), bound, np.nan), mean, sd])


def rank(scores: Array, allowed: Mask, index: Codes, out: tuple[Array, Array, Array]) -> None:
    """Insert candidate after candidate, each before those that it exceeds by more than rounding.

    ``scores`` (3, n, K) are bounds, means and sds, finite where ``allowed``; ``index`` (n, top) comes filled with -1.
    """
    n, K = allowed.shape
    top = min(index.shape[1], K)
    requests = np.arange(n)
    value = np.full((n, top + 1), np.nan)
    ranked = np.full((n, top + 1), -1)
    room = ROUNDING * (np.abs(scores[0]) + np.abs(scores[1]))
    for k in range(K):
        better = ~(scores[0, :, k, None] <= value[:, :top] + room[:, k, None])  # empty ranks are NaN
        # the first rank from which on all are exceeded
        place = top - np.logical_and.accumulate(better[:, ::-1], axis=1).sum(axis=1)
        inserted = allowed[:, k] & (place < top)
        position = np.arange(top)
        for table, new in ((value, scores[0, :, k]), (ranked, np.full(n, k))):
            shifted = np.where(position < place[:, None], table[:, :top], np.roll(table, 1, axis=1)[:, :top])
            shifted[requests, np.minimum(place, top - 1)] = new
            table[:, :top] = np.where(inserted[:, None], shifted, table[:, :top])
    ranked = ranked[:, :top]
    index[:, :top] = ranked
    for table, result in zip(scores, out, strict=True):
        result[:, :top] = np.where(
            ranked >= 0, np.take_along_axis(table, np.maximum(ranked, 0), axis=1), np.nan
        )
