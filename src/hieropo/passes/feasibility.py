"""Refusals and warnings about a log before it is learned from: memory, precision, ids, gates."""

import os
from typing import Any

import numpy as np

from hieropo._utils.packed import packed_size, unpack
from hieropo.errors import InputError, LogError, warn
from hieropo.features.maps import FeatureMap
from hieropo.moments.recentring import far_columns
from hieropo.moments.spread import mean_reward
from hieropo.moments.statistics import Moments
from hieropo.policies.gating import GatedPolicy
from hieropo.rows.columns import HUGE
from hieropo.rows.ids import id_type_warning

_FAR_REWARD = 1e5  # standard deviations between the mean of the rewards and 0
_COPIES = 3  # the running sums, the moments, the posterior


def refuse_too_large(tasks: int, features: int) -> None:
    """Raise InputError for moments that the memory of this machine cannot hold.

    Raises
    ------
    InputError
        The message has the memory that is needed and the memory of the machine.
    """
    need = float(tasks) * packed_size(features + 2) * 8 * _COPIES
    have = _memory()
    if need > have:
        raise InputError(
            f"{features:,} features for {tasks:,} tasks need at least {need / 2**30:,.1f} GiB of memory, and this "
            f"machine has {have / 2**30:,.1f}. Memory grows with tasks times the square of the features. Name fewer "
            "context columns, or describe many actions by a few numbers each: embedding(actions, table)."
        )


def _memory() -> float:
    try:
        return float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not every system reports it
        return np.inf


def refuse_tiny(moments: Moments, reward: str) -> None:
    """Raise LogError for rewards that are not 0 and so small that their powers do not fit a float64.

    Raises
    ------
    LogError
        The message has their size and a factor to rescale them by.
    """
    d = moments.unit_dim
    corner = unpack(moments.unit_sums.sum(axis=0), d + 2)[d:, d:]
    size = float(np.hypot(mean_reward(moments), np.sqrt(corner[0, 0] / corner[1, 1])))
    if 0.0 < size < 1.0 / HUGE:
        raise LogError(
            f"Column {reward!r}: rewards have a size of {size:.3g}, so small that their powers do not fit a float64. "
            f"Is the unit too large? Rescale the column, such as by a factor of 1e{-int(np.floor(np.log10(size)))}."
        )


def warn_of_far(moments: Moments, features: FeatureMap, reward: str) -> None:
    """Warn of rewards or columns that lie far from the origin of the sums, which lose precision."""
    for name in far_columns(moments, features):
        warn(
            f"Column {name!r} lies so far from the origin of the feature map, compared with its spread, that "
            "precision is lost and estimates can be wrong. Fit again to all rows with a map without an origin, so "
            "that the fit chooses one."
        )
    d = moments.unit_dim
    corner = unpack(moments.unit_sums.sum(axis=0), d + 2)[d:, d:]
    mean, square = corner[0, 1] / corner[1, 1], corner[0, 0] / corner[1, 1]
    sd = np.sqrt(max(square - mean * mean, 0.0))
    if sd > 0 and abs(mean) > _FAR_REWARD * sd:
        warn(
            f"Column {reward!r} lies around {mean_reward(moments):.6g} with a standard deviation of {sd:.3g}, and no "
            "combination of the features is constant, so that sums are taken around 0, where precision is lost and "
            "estimates can be wrong. Add a column that is 1 in every row, or subtract a number near the mean."
        )


def warn_of_ids(known: Any, task: Any, row: str) -> None:
    """Warn where ids have another type than the known ones, as :func:`id_type_warning` finds."""
    text = id_type_warning(known, task, row)
    if text is not None:
        warn(text)


def warn_of_gate(policy: object) -> None:
    """Warn that a policy learned from more rows does not keep the gate of the previous policy."""
    if isinstance(policy, GatedPolicy):
        warn(
            "The policy of this learner had a gate, which was set before these rows were known. The policy that is "
            "learned now has none and acts in all tasks: evaluate it on later rows, and gate it again."
        )
