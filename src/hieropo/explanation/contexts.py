"""Mean and spread of the contexts of a task, from moments; ids as they are shown."""

from typing import Any

import numpy as np

from hieropo._utils.arrays import Array
from hieropo._utils.packed import unpack
from hieropo.errors import InputError
from hieropo.features.maps import FeatureMap
from hieropo.rows.ids import plain


def mean_context(moments: Any, features: FeatureMap, row: int) -> Array | None:
    """Return the mean context (c,) of the rows of a task, or of all rows where it has none.

    None where the moments do not hold it: without a list of actions, or with a table of actions.
    """
    if not features.columns:
        return np.zeros(0)
    if not _has_contexts(moments, features):
        return None
    one = slice(row, row + 1)
    return _mean_and_sd(moments, features, one if np.any(moments.rows[one]) else slice(None))[0]


def context_spread(moments: Any, features: FeatureMap) -> tuple[Array, Array] | None:
    """Return mean and sd (c,) of the contexts of all rows; None where the moments do not hold them."""
    if not features.columns or not _has_contexts(moments, features) or features.reference_column is not None:  # type: ignore[attr-defined]  # every map with actions has it
        return None
    return _mean_and_sd(moments, features, slice(None))


def _has_contexts(moments: Any, features: FeatureMap) -> bool:
    return moments is not None and features.actions is not None and getattr(features, "table", None) is None


def _mean_and_sd(moments: Any, features: Any, tasks: slice) -> tuple[Array, Array]:
    d, blocks = moments.unit_dim, len(features.actions) // moments.n_actions
    joint = unpack(moments.at(tasks).unit_sums.sum(axis=0), d + 2)  # of (phi, reward, 1)
    first, second = (
        values[:d].reshape(blocks, -1).sum(axis=0)[int(features.intercept) :] / joint[-1, -1]
        for values in (joint[:, -1], np.diagonal(joint))
    )
    mean = np.asarray(features.unmeasured(first[None])[0])
    return mean, np.sqrt(np.maximum(second - first**2, 0.0))


def shown_id(value: Any) -> Any:
    """Return an id as a type of the standard library where it has one."""
    try:
        return plain(value)
    except InputError:
        return value
