"""Refusals and warnings about a log, in the words of its own columns, actions and ids."""

import os
from typing import Any

import numpy as np

from hieropo._utils.packed import packed_size, unpack
from hieropo.errors import InputError, warn
from hieropo.features.maps import FeatureMap
from hieropo.moments.recentring import remote
from hieropo.moments.spread import mean_reward
from hieropo.moments.statistics import Moments
from hieropo.moments.units import UnitMoments
from hieropo.policies.gating import GatedPolicy
from hieropo.rows.ids import other_type

_FAR_REWARD = 1e5  # standard deviations between the mean of the rewards and 0
_COPIES = 3  # the running sums, the moments, the posterior
_FEW = 10  # rows that say nothing of how often an action comes


def refuse_too_large(tasks: int, features: int) -> None:
    """Refuse moments that the memory of this machine cannot hold.

    Raises
    ------
    InputError
        Says what is needed and what there is.
    """
    need = float(tasks) * packed_size(features + 2) * 8 * _COPIES
    have = _memory()
    if need > have:
        raise InputError(
            f"{features:,} features for {tasks:,} tasks take at least {need / 2**30:,.1f} GiB of memory, and this "
            f"machine has {have / 2**30:,.1f}. It grows with tasks times the square of the features. Name fewer "
            "context columns, or describe many actions by a few numbers each: embedding(actions, table)."
        )


def _memory() -> float:
    try:
        return float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not every system says
        return np.inf


def warn_of_far(moments: Moments | UnitMoments, features: FeatureMap, reward: str) -> None:
    """Warn of rewards, or a column, that lie far from where sums are taken: sums of squares lose their digits."""
    for name in remote(moments, features):
        warn(
            f"Column {name!r} lies so far from where the feature map measures it, compared with its spread, that "
            "digits are lost, and estimates can be wrong. Fit again to all rows with a map without an origin, so that "
            "the fit chooses one."
        )
    units = moments.units if isinstance(moments, UnitMoments) else moments
    total = unpack(units.sums.sum(axis=0), units.dim + 2)[units.dim :, units.dim :]
    mean, square = total[0, 1] / total[1, 1], total[0, 0] / total[1, 1]
    sd = np.sqrt(max(square - mean * mean, 0.0))
    if sd > 0 and abs(mean) > _FAR_REWARD * sd:
        warn(
            f"Column {reward!r} lies around {mean_reward(units):.6g} with a standard deviation of {sd:.3g}, and no "
            "combination of the features is constant, so that sums are taken around 0, where digits are lost and "
            "estimates can be wrong. Add a column that is 1 in every row, or subtract a number near the mean."
        )


def warn_of_ids(known: Any, task: Any, row: str) -> None:
    """Warn of what :func:`other_type` finds."""
    text = other_type(known, task, row)
    if text is not None:
        warn(text)


def warn_of_gate(policy: object) -> None:
    """Warn that a policy learned from more rows does not take over the gate of the policy before it."""
    if isinstance(policy, GatedPolicy):
        warn(
            "This learner's policy had a gate, which was set by what was known before these rows. The policy that is "
            "learned now has none and acts in all tasks: evaluate it on later rows, and gate it again."
        )
