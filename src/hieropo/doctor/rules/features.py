"""Rules about context columns: constant columns, copies of each other, different scales."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hieropo._utils.arrays import Array
from hieropo._utils.packed import unpack
from hieropo._utils.ties import first_largest, first_smallest
from hieropo.doctor.collecting import LogStatistics
from hieropo.doctor.examination import Finding
from hieropo.features.maps import Columns, FeatureMap, indicator, per_action
from hieropo.moments.recentring import FAR
from hieropo.passes.identifiability import undetermined
from hieropo.rows.ids import plain

_SCALES = 1e3  # ratio of the largest standard deviation to the smallest
_NEAR = 1e-6  # least eigenvalue of the correlations; below it standard errors are 1,000 times as large


def default_map(stats: LogStatistics) -> FeatureMap | None:
    """Return the default feature map of `fit` for these roles; None where there are no features."""
    roles = stats.roles
    if roles.action is None:
        return Columns(roles.context) if roles.context else None
    actions = [plain(action) for action in stats.actions.values.tolist()]
    return per_action(actions, roles.context) if roles.context else indicator(actions)


def features(stats: LogStatistics) -> Iterator[Finding]:
    """Yield findings about coefficients that the log does not identify, or identifies badly."""
    feature_map = default_map(stats)
    if feature_map is None or stats.contexts is None:
        return
    width, apart = len(stats.roles.context), stats.contexts_per_action
    totals = unpack(_by_action(stats), width + 3)
    blocks = totals[:, : width + 1, : width + 1]
    if feature_map.actions is None:
        blocks = _without_intercept(blocks.sum(axis=0), stats.origin)[None]
    elif not apart or _borrowing(stats):
        blocks = blocks.sum(axis=0)[None]  # actions share information, or there are too many columns
        feature_map = per_action(["any action"], stats.roles.context)
    open_coefficients = undetermined(blocks, stats.contexts.n_rows, feature_map)
    if open_coefficients is not None:
        yield Finding(
            "stops",
            "undetermined coefficients",
            "context columns",
            open_coefficients.problem,
            open_coefficients.remedy,
        )
        return
    yield from alike(stats.roles.context, totals.sum(axis=0)[: width + 1, : width + 1])


def _borrowing(stats: LogStatistics) -> bool:
    """Return True where a fit with default settings shares information between actions (crossed prior)."""
    roles = stats.roles
    return len(stats.actions) > 1 and not (roles.levels or roles.metadata or roles.sampling_weight)


def _by_action(stats: LogStatistics) -> Array:
    """Return packed sums of z z' per action, in the order of codes; of all rows where sums are not per action."""
    assert stats.contexts is not None
    if not stats.contexts_per_action or stats.roles.action is None:
        return np.asarray(stats.contexts.sums)
    index = stats.contexts.keys.locate(np.arange(len(stats.actions)))
    return np.where((index >= 0)[:, None], stats.contexts.sums[index], 0.0)


def _without_intercept(gram: Array, origin: Array) -> Array:
    """Return the sum of x x' from that of (1, x - origin)(1, x - origin)', columns far from 0 relative to a reference.

    A fit does the same (:mod:`recentring`): seen from 0, all columns far from it are nearly multiples of one another.
    """
    mean = gram[0, 1:] / gram[0, 0]
    sd = np.sqrt(np.maximum(np.diagonal(gram)[1:] / gram[0, 0] - mean**2, 0.0))
    steady = np.abs(origin) > FAR * sd
    move = np.column_stack([origin, np.eye(origin.size)])
    if np.count_nonzero(steady) > 1:
        with np.errstate(divide="ignore", invalid="ignore"):
            reference_column = int(first_largest(np.where(steady, np.abs(origin) / sd, 0.0)))
        others = np.flatnonzero(steady & (np.arange(origin.size) != reference_column))
        share = origin[others] / origin[reference_column]
        move[others, 0] = 0.0
        move[others, 1 + reference_column] -= share
    return np.asarray(move @ gram @ move.T)


def alike(columns: Sequence[str], gram: Array) -> Iterator[Finding]:
    """Yield findings about nearly collinear columns and different scales, from the sum of (1, x)(1, x)'."""
    mean = gram[0, 1:] / gram[0, 0]
    cov = gram[1:, 1:] / gram[0, 0] - np.outer(mean, mean)
    sd = np.sqrt(np.maximum(np.diagonal(cov), 0.0))
    vary = np.flatnonzero(sd > 0)
    if vary.size < 2:
        return
    scaled: Any = cov[np.ix_(vary, vary)] / np.outer(sd[vary], sd[vary])
    values, vectors = np.linalg.eigh(scaled)
    if values[0] < _NEAR:
        copies = [columns[vary[j]] for j in np.flatnonzero(np.abs(vectors[:, 0]) > 0.1)]
        names = ", ".join(map(repr, copies))
        yield Finding(
            "limits", "columns are almost copies", f"columns {names}",
            f"The columns {names} are nearly collinear, so that the log hardly tells their coefficients apart.",
            "Leave one out.",
        )  # fmt: skip
    low, high = (int(vary[int(choose(sd[vary]))]) for choose in (first_smallest, first_largest))
    if sd[high] > _SCALES * sd[low]:
        yield Finding(
            "note", "scales differ", f"columns {columns[low]!r}, {columns[high]!r}",
            f"Standard deviations of context columns reach from {sd[low]:.3g} ({columns[low]!r}) to {sd[high]:.3g} "
            f"({columns[high]!r}).",
            "Rescale them to similar standard deviations: variation between tasks is then learned more reliably.",
        )  # fmt: skip
