"""The posterior in the raw columns of a log, exactly, to hold against one in the coordinates of a feature map.

Rows are taken as they are in the log: features are products of columns, of any offset, and nothing is centred. All
arithmetic has 100 decimal digits (:mod:`reference.dense`), so that the square of an offset costs nothing. Coefficients
of a map with an origin are those with which its features give the same rewards,

    theta~' phi~(x, a) = theta' phi(x, a) for all x and a,   so   theta~_s = theta_s + sum_j k_j theta_j

for the intercept, k = origin, or the reference column, k = origin / origin_p, of each block, and all others
unchanged.
"""

from collections.abc import Hashable
from decimal import localcontext
from typing import Any

import numpy as np

from reference.dense import DIGITS, Array, Dense, Exact, Problem, exact, rounded


def raw_features(features: Any, context: Array, codes: Any) -> Exact:
    """phi (n, d) of the map without its origin, in decimals."""
    x = exact(context)
    if getattr(features, "intercept", False):
        x = np.concatenate([exact(np.ones((len(x), 1))), x], axis=1)
    if features.actions is None:
        return x
    table = exact(np.eye(len(features.actions)) if features.table is None else features.table)
    return np.array([np.outer(table[a], row).ravel() for a, row in zip(codes, x, strict=True)], dtype=object)


def coordinates(features: Any) -> Exact:
    """B (d, d) with theta~ = B theta, theta of the map without its origin."""
    d = features.dim
    first = int(getattr(features, "intercept", False))
    p = len(features.columns) + first
    block = exact(np.eye(p))
    if features.origin is not None:
        spot = 0 if features.reference_column is None else features.columns.index(features.reference_column)
        point = exact(features.origin)
        k = point if features.reference_column is None else point / point[spot]
        for j, each in enumerate(k):
            if first + j != spot:
                block[spot, first + j] = each
    whole = exact(np.zeros((d, d)))
    for start in range(0, d, p):
        whole[start : start + p, start : start + p] = block
    return whole


def uncoordinated(features: Any) -> Exact:
    """B^-1: the origin's sign turned, since B is the identity but for one row of a block that has a 1 of its own."""
    return 2 * exact(np.eye(features.dim)) - coordinates(features)


class Raw:
    """Posterior of the rows of a log under a hierarchy of raw coefficients.

    Parameters
    ----------
    features : feature map
        Its origin is not used.
    task, context, codes, reward
        Of n rows.
    task_cov, noise_var, hyper
        Sigma_0 (d, d), sigma^2, and (mean, cov) or None, of raw coefficients: floats or decimals.
    """

    def __init__(
        self,
        features: Any,
        rows: tuple[list[Hashable], Array, Any, Array],
        task_cov: Any,
        noise_var: float,
        hyper: tuple[Any, Any] | None,
    ) -> None:
        task, context, codes, reward = rows
        mean, cov = (np.zeros(features.dim), None) if hyper is None else hyper
        with localcontext() as decimals:
            decimals.prec = DIGITS
            phi = raw_features(features, context, codes)
            weight = np.ones(len(task))
            self._dense = Dense(Problem(task, phi, reward, weight, task_cov, noise_var, mean, cov))

    def law(self, task: Hashable, seen_by: Any) -> tuple[Array, Array]:
        """Mean and covariance of a task's coefficients in the coordinates of a map; of a new task where it is None."""
        unknown = ("new", None) if task is None else ("task", task)
        at = self._dense._at(unknown)
        with localcontext() as decimals:
            decimals.prec = DIGITS
            B = coordinates(seen_by)
            return rounded(B @ self._dense.mean[at]), rounded(B @ self._dense.cov[at, at] @ B.T)

    def reward(self, task: Hashable, features: Any, x: Array, code: int) -> tuple[float, float]:
        """Mean and standard deviation of phi(x, a)' theta of a task."""
        at = self._dense._at(("task", task))
        with localcontext() as decimals:
            decimals.prec = DIGITS
            (phi,) = raw_features(features, x[None], [code])
            return float(phi @ self._dense.mean[at]), float((phi @ self._dense.cov[at, at] @ phi).sqrt())
