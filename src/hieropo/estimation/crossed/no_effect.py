"""Hierarchies with a probability of no effect that another view of the log tells.

Hierarchies with effects, and those without, keep their shares among themselves, so that the order of the actions in a
task is mostly that of before. Where the log has left no hierarchy without effects, one is put in: l and s^2 are the
posterior means given a = m = 0.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array
from hieropo.estimation.crossed.grid import level_without_effects
from hieropo.estimation.crossed.mixture import CrossedHierarchies
from hieropo.moments.statistics import Moments

_LEAST = 1e-5  # probability of no effect that is left out
_MOST = 1.0 - 1e-6  # of what is left for hierarchies with effects
_PLACED = 1e-9  # weight of a hierarchy that is put in, before its share is set


def with_no_effect(moments: Moments, hierarchies: CrossedHierarchies, least: float) -> CrossedHierarchies:
    """Return the hierarchies with a probability of no effect of at least ``least``.

    Parameters
    ----------
    moments : Moments
        That they were learned from.
    hierarchies : CrossedHierarchies
        Without groups and metadata. Those of kinds of tasks stay as they are.
    least : float
    """
    least = min(least, _MOST)
    if least < _LEAST or least <= hierarchies.no_effect or hierarchies.kinds is not None:
        return hierarchies
    none = hierarchies.without_effects
    if not hierarchies.conditioned[none].any():
        hierarchies = _with_one(moments, hierarchies, ~none)
        none = hierarchies.without_effects
    return replace(
        hierarchies,
        weights=_shared(hierarchies.weights, none, least),
        conditioned=_shared(hierarchies.conditioned, none, least),
    )


def _shared(weights: Array, none: NDArray[np.bool_], least: float) -> Array:
    share = float(weights[none].sum())
    return np.asarray(np.where(none, weights * (least / share), weights * ((1 - least) / (1 - share))))


def _with_one(
    moments: Moments, hierarchies: CrossedHierarchies, kept: NDArray[np.bool_]
) -> CrossedHierarchies:
    """Put one hierarchy without effects behind those that are ``kept``."""
    level, noise = level_without_effects(moments, hierarchies.shapes)
    weights = hierarchies.weights[kept]
    conditioned = weights if hierarchies.determined else hierarchies.conditioned[kept]
    n = hierarchies.spread_weights.shape[1]
    single = np.zeros((1, n))
    single[:, 1:2] = 1.0

    def both(values: Array, last: float) -> Array:
        return np.append(values[kept], last)

    return replace(
        hierarchies,
        weights=np.append((1 - _PLACED) * weights / weights.sum(), _PLACED),
        conditioned=np.append((1 - _PLACED) * conditioned / conditioned.sum(), _PLACED),
        action_sd=both(hierarchies.action_sd, 0.0),
        level_sd=both(hierarchies.level_sd, level),
        interaction_sd=both(hierarchies.interaction_sd, 0.0),
        noise_var=both(hierarchies.noise_var, noise),
        group_level_sd=np.zeros((weights.size + 1, 0)),
        group_interaction_sd=np.zeros((weights.size + 1, 0)),
        spread_scales=np.concatenate([hierarchies.spread_scales[kept], single]),
        spread_weights=np.concatenate([hierarchies.spread_weights[kept], single]),
    )
