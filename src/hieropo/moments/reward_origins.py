"""The offset that the moments of a log take off its rewards, where these lie far from 0.

Sums of squares of r around 0 lose (mean / sd)^2 units of the last place of what residuals say. Where features of every
row have a v with v' phi = 1, such as the sum of the intercepts, rewards r - r_0 move the population mean by r_0 v and
nothing else. So moments take r - o' phi with o = r_0 v, which is exact for any o, and give o back with every mean.
"""

from collections.abc import Callable

import numpy as np

from hieropo._utils.arrays import Array
from hieropo.features.maps import Columns, FeatureMap
from hieropo.features.per_action import Crossed
from hieropo.moments.recentring import rounded

FAR = 1.0  # |mean| / sd from which on there is an offset: sums of squares around 0 are at most twice as large else
_FIRST = 8192  # rows that are looked at
_ROUNDING = 1e-12


def offset_near(features: FeatureMap, reward: Array, contexts: Callable[[], Array | None]) -> Array | None:
    """Return the offset (d,) that the rewards (n,) of the first rows ask for; None for none.

    Parameters
    ----------
    features : FeatureMap
    reward : (n,) array
    contexts : callable
        Gives contexts (k, c) of first rows, in the columns that the map reads, where these are needed.
    """
    r = reward[:_FIRST]
    if not r.size or not r[0]:
        return None
    away = r - r[0]
    mean, sd = float(r[0] + away.mean()), float(away.std())
    if abs(mean) <= FAR * sd:
        return None
    v = _constant(features, contexts)
    return None if v is None else rounded(mean, sd) * v


def _constant(features: FeatureMap, contexts: Callable[[], Array | None]) -> Array | None:
    """Return v (d,) with v' phi = 1 in these rows; None where there is none, or the map is of another kind."""
    if not isinstance(features, Columns | Crossed):
        return None
    block, each = None, np.ones(1)
    if isinstance(features, Crossed):
        table = features.table
        found = np.ones(len(features.actions)) if table is None else _solved(table)
        if found is None:
            return None
        each = found
        if features.intercept:
            block = np.eye(1 + len(features.columns))[0]
    if block is None:
        x = contexts()
        block = None if x is None else _solved(features.measured(x[:_FIRST]))
    return None if block is None else np.asarray(np.kron(each, block), dtype=np.float64)


def _solved(table: Array) -> Array | None:
    """Return v with table v = 1, table (n, k); one entry of v alone where a column is 1 in every row."""
    if not len(table):
        return None
    ones = np.flatnonzero((table == 1.0).all(axis=0))
    if ones.size:
        return np.asarray(np.eye(table.shape[1])[ones[0]])
    size = np.abs(table).max(axis=0)
    size = np.where(size > 0, size, 1.0)
    scaled = table / size
    v = np.linalg.lstsq(scaled, np.ones(len(table)), rcond=_ROUNDING)[0]
    v[np.abs(v) < _ROUNDING] = 0.0
    return np.asarray(v / size, dtype=np.float64) if np.abs(scaled @ v - 1.0).max() <= _ROUNDING else None
