"""Units and tasks of the crossed prior given what is above them; formulas in :mod:`crossed_posterior`."""

from typing import NamedTuple

import numpy as np

from hieropo.core.arrays import Array
from hieropo.core.crossed_steps import Nodes, ObservedUnits
from hieropo.core.packed import packed_size


class UnitLaws(NamedTuple):
    """Observed units given lambda_s + alpha_a.

    Attributes
    ----------
    shift : (u, p) array
        M~_sa B_sa.
    cov : (u, p (p + 1) / 2) array
        M~_sa, packed.
    gains : (u, p, p) array
        K_sa.
    """

    shift: Array
    cov: Array
    gains: Array

    @classmethod
    def of(cls, units: ObservedUnits, interaction_cov: Array) -> "UnitLaws":
        """Take the step down to units from parents that are known."""
        u, p = len(units.rows), units.dim
        if not interaction_cov.any():
            return cls(np.zeros((u, p)), np.zeros((u, packed_size(p))), np.broadcast_to(np.eye(p), (u, p, p)))
        nodes, every = Nodes.of(units.rows, 1.0, interaction_cov), slice(0, u)
        return cls(*nodes.given(np.zeros((u, p)), every), nodes.gains(every))


class TaskBlock(NamedTuple):
    """Some tasks given the log; n tasks, K actions, D columns of the root.

    Attributes
    ----------
    level : (n, p) array
        Means of lambda_s.
    level_cov : (n, p, p) array
        W_s.
    level_root : (n, p, D) array
        Lambda_s.
    shift, cov, gains : (n, K, p), (n, K, p, p), (n, K, p, p) array
        M~_sa B_sa, M~_sa and K_sa.
    """

    level: Array
    level_cov: Array
    level_root: Array
    shift: Array
    cov: Array
    gains: Array

    def means(self, effects: Array) -> Array:
        """Means (n, K, p) of theta_sa."""
        found: Array = self.shift + np.einsum("naij,naj->nai", self.gains, self.level[:, None] + effects)
        return found

    def roots(self, action: int, effect_roots: Array) -> Array:
        """K_sa (Lambda_s + C_a), (n, p, D), of one action."""
        found: Array = self.gains[:, action] @ (self.level_root + effect_roots[action])
        return found

    def cov_of(self, action: int, effect_roots: Array) -> Array:
        """Covariances (n, p, p) of theta_sa of one action."""
        gains, roots = self.gains[:, action], self.roots(action, effect_roots)
        found: Array = self.cov[:, action] + gains @ self.level_cov @ gains.swapaxes(1, 2)
        return found + roots @ roots.swapaxes(1, 2)


def turned_weights(gains: Array, weights: Array) -> tuple[Array, Array]:
    """K_sa' v_sa (n, J, K, p) and their sums over actions, for gains (n, K, p, p) and weights v (n, J, K, p).

    Where the weights of a task add to 0 up to rounding, its level has exactly the weight sum_a (K_sa - I)' v_sa.
    """
    turned = np.einsum("nakl,njak->njal", gains, weights)
    return turned, (turned - weights).sum(axis=2) + weight_sums(weights)


def weight_sums(weights: Array) -> Array:
    """Sums over actions of weights (..., K, p), exactly 0 where they are 0 up to rounding."""
    total = weights.sum(axis=-2)
    rounding = 8 * weights.shape[-2] * np.finfo(np.float64).eps * np.abs(weights).sum(axis=-2)
    return np.where(np.abs(total) <= rounding, 0.0, total)
