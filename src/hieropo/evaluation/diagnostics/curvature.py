"""Exact score tests of missing features: a mean that bends along a context column, or that is off altogether.

Were psi (n,) a further feature, with one coefficient for all tasks, its score at 0 would be psi' W e / sigma^2 with the
posterior's residuals e = r - phi' mean_s and the weights W. Given all else of the model it is normal with mean 0 and

    variance    psi' W psi / sigma^2 -+ Var(sum_s c_s' theta_s | log),    c_s = sum_{rows of s} w psi phi / sigma^2

minus where the rows were learned from (what the fit takes up), plus where they were not (what it does not know yet).
The second term is that of a sum over tasks, :func:`totals.total`. psi is the square of a column, less its regression on
the features, in all rows or in those of one action; on rows that were not learned from also 1. All of this is in the
Moments of (phi, squares) with e for the reward, and does not depend on where a column has its origin. They are kept for
some tasks, evenly spaced, where those of all would be many.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.packed import packed_size, unpack
from hieropo.evaluation.by_posterior.value_distributions import total
from hieropo.model.protocol import TaskPosterior
from hieropo.moments.statistics import add_rows
from hieropo.rows.columns import RowWeights

_ROOM = 2**21  # doubles of sums
_VECTORS = 2**23  # doubles of vectors that are summed over at once
_WORK = 4e9  # operations up to which actions are tested one by one, some seconds
_NEW = 1e-6  # least share of a feature that the others do not have


class Bend(NamedTuple):
    """One feature that is not in the model.

    Parameters
    ----------
    column : int
        The context column whose square it is; -1 for the level.
    action : int
        The action in whose rows it is; -1 for all.
    score : float
        N(0, 1) under the model; its sign is that of the coefficient.
    effect : float
        Root mean square of what it would add to the mean reward, in noise sds of a row of weight 1.
    p : float
        Two-sided.
    """

    column: int
    action: int
    score: float
    effect: float
    p: float


class Curves:
    """Moments of features that the model does not have, batch by batch.

    Parameters
    ----------
    m : int
        Tasks of the posterior.
    width : int
        Features of a row.
    columns : int
        Context columns c.
    actions : int
        K where each action has features of its own, else 1.
    learned : bool
        Whether the rows were learned from.
    """

    def __init__(self, m: int, width: int, columns: int, actions: int, *, learned: bool) -> None:
        self._size = width + columns + 2
        size = packed_size(self._size)
        self._width, self._columns, self._actions, self._learned = width, columns, actions, learned
        self._every = max(1, -(-m * actions * size // _ROOM))
        units = -(-m // self._every) * actions
        self._sums = np.zeros((units, size))
        self._rows = np.zeros(units)

    def add(
        self, task: Codes, action: Codes, phi: Array, standardised: Array, away: Array, weights: RowWeights
    ) -> None:
        """Add rows of tasks (n,): own features (n, width), columns (n, c), residuals (n,) and weights."""
        at = np.flatnonzero(task % self._every == 0) if self._every > 1 else slice(None)
        code = task[at] // self._every * self._actions + (action[at] if self._actions > 1 else 0)
        table = np.concatenate([phi[at], standardised[at] ** 2], axis=1)
        some = weights.some(at)
        add_rows(code, table, away[at], some.factors(), self._sums)
        self._rows += np.bincount(code, some.counts(code.size), self._rows.size)

    def bends(self, posterior: TaskPosterior, noise_var: Array) -> list[Bend]:
        """Test all features that the model does not have already.

        Parameters
        ----------
        posterior : a posterior
            Whose residuals were handed in.
        noise_var : (K,) or (1,) array
            Of the actions, or of all rows.
        """
        m, d, K = len(posterior.moments.keys), posterior.dim, self._actions
        columns = [*([] if self._learned else [-1]), *range(self._columns)]
        apart = list(range(K)) if K > 1 and float(K + 1) * len(columns) * m * d * d <= _WORK else []
        wanted = [(column, action) for column in columns for action in (-1, *apart)]
        whole = unpack(self._sums, self._size).reshape(-1, K, self._size, self._size)
        step, found = max(1, _VECTORS // max(m * d, 1)), list[Bend]()
        for start in range(0, len(wanted), step):
            found.extend(self._tested(wanted[start : start + step], whole, posterior, noise_var))
        return found

    def _missing(self, column: int, joint: Array) -> Array:
        """The feature as a combination (size,) of (phi, squares, e, 1), given sums of their products over its rows.

        It is zero where, as with a column of two values, the square is a combination of features.
        """
        k, size = self._width, self._size
        form = np.zeros(size)
        if column < 0:
            form[-1] = 1.0
            return form
        scale = np.sqrt(np.diagonal(joint))
        scale = np.where(scale > 0, scale, 1.0)
        scaled, have, at = joint / np.outer(scale, scale), [*range(k), size - 1], k + column
        fit = np.linalg.lstsq(scaled[np.ix_(have, have)], scaled[have, at], rcond=1e-12)[0]
        if scaled[at, at] - scaled[have, at] @ fit > _NEW:
            form[have], form[at] = -fit * scale[at] / scale[have], 1.0
        return form

    def _tested(
        self, wanted: list[tuple[int, int]], whole: Array, posterior: TaskPosterior, noise_var: Array
    ) -> Iterator[Bend]:
        k, units = self._width, self._rows.reshape(-1, self._actions)
        vectors = np.zeros((len(wanted), len(posterior.moments.keys), posterior.dim))
        sums = np.zeros((len(wanted), 3))
        for j, (column, action) in enumerate(wanted):
            own = slice(None) if action < 0 else slice(action, action + 1)
            form = self._missing(column, whole[:, own].sum(axis=(0, 1)))
            along = whole[:, own] @ form / (noise_var[own] if noise_var.size > 1 else noise_var)[:, None]
            c = np.zeros((*units.shape, k))
            c[:, own] = along[..., :k]
            vectors[j, :: self._every] = c.reshape(len(units), -1)
            sums[j] = along[..., -2].sum(), (along @ form).sum(), units[:, own].sum()
        known = np.diagonal(total(posterior, vectors).gaussian().cov)
        for each, (score, full, n), part in zip(wanted, sums.tolist(), known.tolist(), strict=True):
            variance = full - part if self._learned else full + part
            if n > 1 and variance > _NEW * full:
                z = score / np.sqrt(variance)
                effect = np.sqrt(max(z * z - 1.0, 0.0) / n)
                yield Bend(*each, float(z), float(effect), float(2.0 * ndtr(-abs(z))))
