"""Intervals for the numbers of a hierarchy: noise, standard deviations between tasks and nodes, correlations, means."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hieropo._utils.arrays import Array
from hieropo._utils.packed import pack, packed_size, triangle
from hieropo.estimation.hyper.corrected import HyperError
from hieropo.estimation.hyper.mixed import Components, HyperDraws, normal_mixture_quantile
from hieropo.estimation.hyper.profile_intervals import Ends
from hieropo.model.hierarchy import Hierarchy

_HELD = 1e-9  # range of a correlation that was not drawn


class HyperInterval(NamedTuple):
    """An interval for one number of the hierarchy.

    Parameters
    ----------
    name : str
        "noise sd", "mean[j]", "sd[j]", "correlation[i, j]", or the same of a level, as in "store sd[j]".
    estimate, lower, upper : float
        The estimate, and the ends. Of the population means it is the posterior mean; of all else, for "integrated", the
        median of the draws.
    """

    name: str
    estimate: float
    lower: float
    upper: float


def mean_intervals(parts: Components, dim: int, level: float) -> list[HyperInterval]:
    """Return intervals of the population means and of the coefficients of metadata, by quantiles of the mixture."""
    sds = np.sqrt(np.maximum(np.diagonal(parts.covs, axis1=1, axis2=2), 0.0)).T
    lower, upper = (
        normal_mixture_quantile(parts.weights, parts.means.T, sds, probability)
        for probability in ((1 - level) / 2, (1 + level) / 2)
    )
    mean = parts.gaussian().mean
    names = [f"mean[{j}]" if j < dim else f"kappa[{j - dim}]" for j in range(len(mean))]
    return [
        HyperInterval(*row) for row in zip(names, mean.tolist(), lower.tolist(), upper.tolist(), strict=True)
    ]


def estimates(hyper_uncertainty: HyperDraws | HyperError | None, hierarchy: Hierarchy) -> dict[str, float]:
    """Return the estimates of the noise sd and of the sds of all levels, by the names of their intervals."""
    covs = {
        "": hierarchy.task_cov,
        **{f"{level_name(hierarchy, k)} ": grouping.cov for k, grouping in enumerate(hierarchy.levels)},
    }
    by_name = {"noise sd": float(np.sqrt(hierarchy.noise_var))}
    for prefix, cov in covs.items():
        sds = np.sqrt(np.maximum(np.diagonal(cov), 0.0))
        by_name |= {f"{prefix}sd[{j}]": float(sd) for j, sd in enumerate(sds)}
    if isinstance(hyper_uncertainty, HyperDraws):
        by_name |= {
            interval.name: interval.estimate
            for interval in draw_intervals(hyper_uncertainty, hierarchy, 0.5)
            if interval.name in by_name
        }
    return by_name


def level_name(hierarchy: Hierarchy, k: int) -> str:
    """Return the name of a level above the tasks, or "level k"."""
    return hierarchy.levels[k].name or f"level {k}"


def draw_intervals(draws: HyperDraws, hierarchy: Hierarchy, level: float) -> list[HyperInterval]:
    """Return intervals by quantiles of the draws."""
    ends = (0.5, (1 - level) / 2, (1 + level) / 2)
    intervals = [HyperInterval("noise sd", *_quantiles(np.sqrt(draws.noise_vars), draws.weights, ends))]
    covs = [("", draws.task_covs)]
    covs += [(f"{level_name(hierarchy, k)} ", draws.level_covs[:, k]) for k in range(len(hierarchy.levels))]
    for prefix, level_covs in covs:
        sds = np.sqrt(np.maximum(np.diagonal(level_covs, axis1=1, axis2=2), 0.0))
        for j, values in enumerate(sds.T):
            intervals.append(HyperInterval(f"{prefix}sd[{j}]", *_quantiles(values, draws.weights, ends)))
        for i, j in _pairs(hierarchy.dim):
            size = sds[:, i] * sds[:, j]
            values = np.where(size > 0, level_covs[:, i, j] / np.where(size > 0, size, 1.0), 0.0)
            if np.ptp(values) > _HELD:
                name = f"{prefix}correlation[{i}, {j}]"
                intervals.append(HyperInterval(name, *_quantiles(values, draws.weights, ends)))
    return intervals


def _pairs(d: int) -> list[tuple[int, int]]:
    return [(i, j) for i, j in zip(*(indices.tolist() for indices in triangle(d)), strict=True) if i < j]


def _quantiles(values: Array, weights: Array, levels: tuple[float, ...]) -> list[float]:
    """Return quantiles of weighted values, linear between the midpoints of their steps."""
    order = np.argsort(values, kind="stable")
    middles = np.cumsum(weights[order]) - weights[order] / 2
    quantiles: list[float] = np.interp(levels, middles, values[order]).tolist()
    return quantiles


def error_intervals(
    error: HyperError, hierarchy: Hierarchy, level: float, trend: Array
) -> list[HyperInterval]:
    """Return normal intervals; where S is off by Delta, log sigma^2 is off by N(-<trend, Delta>, 2 / N)."""
    from scipy.special import ndtri

    z, d = float(ndtri((1 + level) / 2)), hierarchy.dim
    S = hierarchy.task_cov / hierarchy.noise_var
    V = error.of_entries
    rows, columns = triangle(d)
    pull = V @ (np.where(rows == columns, 1.0, 2.0) * pack(trend))
    log_noise_var = 2 / max(error.degrees, 1) + float(
        np.where(rows == columns, 1.0, 2.0) * pack(trend) @ pull
    )
    intervals = [_log_normal("noise sd", hierarchy.noise_var, log_noise_var, z)]
    for k in range(d):
        diagonal, size = packed_size(k + 1) - 1, float(S[k, k])
        spread = float(np.sqrt(V[diagonal, diagonal] + size * (log_noise_var * size - 2 * pull[diagonal])))
        if size > 2 * spread:
            intervals.append(_log_normal(f"sd[{k}]", size * hierarchy.noise_var, (spread / size) ** 2, z))
        else:
            high = float(np.sqrt((size + z * spread) * hierarchy.noise_var))
            low = float(np.sqrt(max(size - z * spread, 0.0) * hierarchy.noise_var))
            intervals.append(HyperInterval(f"sd[{k}]", float(np.sqrt(size * hierarchy.noise_var)), low, high))
    if not error.diagonal:
        intervals += [_correlation(i, j, S, V, z) for i, j in _pairs(d)]
    return intervals


def with_ends(
    intervals: Sequence[HyperInterval], ends: Mapping[tuple[int, int], Ends], hierarchy: Hierarchy
) -> list[HyperInterval]:
    """Return intervals with the ends of :func:`profile_intervals`, without standard deviations that have none.

    Where the prior moves an estimate beyond an end, the interval ends at the estimate.
    """
    keys = {
        f"{prefix}sd[{j}]": (k, j)
        for k, prefix in enumerate(
            ["", *(f"{level_name(hierarchy, k)} " for k in range(len(hierarchy.levels)))]
        )
        for j in range(hierarchy.dim)
    }
    result = []
    for interval in intervals:
        end = ends.get(keys[interval.name]) if interval.name in keys else None
        if interval.name not in keys:
            result.append(interval)
        elif end is not None and np.isfinite(end.upper):
            lower, upper = min(end.lower, interval.estimate), max(end.upper, interval.estimate)
            result.append(HyperInterval(interval.name, interval.estimate, lower, upper))
    return result


def _log_normal(name: str, var: float, log_var: float, z: float) -> HyperInterval:
    """Return the interval of an sd with the variance ``var``, whose log has the variance ``log_var``."""
    sd, factor = float(np.sqrt(var)), float(np.exp(z * np.sqrt(log_var) / 2))
    return HyperInterval(name, sd, sd / factor, sd * factor)


def _correlation(i: int, j: int, S: Array, V: Array, z: float) -> HyperInterval:
    name, size = f"correlation[{i}, {j}]", float(np.sqrt(S[i, i] * S[j, j]))
    if size <= 0 or abs(S[i, j]) >= (1 - 1e-9) * size:
        return HyperInterval(name, float(np.sign(S[i, j])), -1.0, 1.0)
    r = float(S[i, j]) / size
    slope = np.zeros(len(V))
    slope[packed_size(j) + i] = 1 / size
    for k in (i, j):
        slope[packed_size(k + 1) - 1] = -r / (2 * S[k, k])
    half_width = z * float(np.sqrt(slope @ V @ slope)) / (1 - r * r)
    return HyperInterval(
        name, r, float(np.tanh(np.arctanh(r) - half_width)), float(np.tanh(np.arctanh(r) + half_width))
    )
