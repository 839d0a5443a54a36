"""Units and tasks of the crossed prior given what is above them; formulas in :mod:`posterior`."""

from typing import NamedTuple

import numpy as np

from hieropo._kernels import backend
from hieropo._utils.arrays import Array, Codes, normalised
from hieropo._utils.packed import packed_size
from hieropo._utils.threads import in_threads, processors
from hieropo.model.crossed.steps import SMALL_UNITS, UNITS, ObservedUnits, Root, UnitMessages
from hieropo.model.steps import Split, TreeLevel


class BlockMarginals(NamedTuple):
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
    def of(cls, units: ObservedUnits, interaction_cov: Array) -> "BlockMarginals":
        """Take the step down to units from parents that are known."""
        u, p = len(units.rows), units.dim
        if not interaction_cov.any():
            return cls(np.zeros((u, p)), np.zeros((u, packed_size(p))), np.broadcast_to(np.eye(p), (u, p, p)))
        nodes, every = TreeLevel.of(units.rows, 1.0, interaction_cov), slice(0, u)
        return cls(*nodes.given(np.zeros((u, p)), every), nodes.shrinkage(every))


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


def fill_table(messages: UnitMessages, level_cov: Array, root: Root, means: Array, covs: Array) -> Codes:
    """Write posteriors of all units of observed tasks to their rows of ``means`` (m, K, p) and ``covs`` (m, K, .).

    Returns the rows of tasks that are left to the steps by reflections: their information outweighs the prior.
    """
    units = messages.units
    if units.dim > 1:
        return _fill(messages, level_cov, root, means, covs)
    loops = backend.crossed(units.rows.size)
    beta = np.append(root.mean, root.cov_root[0])
    effects = np.concatenate([root.effects, root.effect_roots[:, 0]], axis=1)
    interaction, level_var = float(messages.interaction_cov[0, 0]), float(level_cov[0, 0])

    def work(chunk: tuple[int, int]) -> None:
        part = units.piece(*chunk)
        loops.give_units_of_one(
            normalised(part.rows), part.starts, part.action, part.table(), interaction, level_var, beta, effects,
            part.tasks, means, covs, np.empty(beta.size),
        )  # fmt: skip

    in_threads(work, units.pieces(SMALL_UNITS), processors())
    return np.zeros(0, dtype=np.int64)


def _fill(messages: UnitMessages, level_cov: Array, root: Root, means: Array, covs: Array) -> Codes:
    """As :func:`fill_table`, for several coefficients an action."""
    units = messages.units
    loops = backend.crossed(units.rows.size)
    K, p, D = root.effect_roots.shape
    level_split = Split.of(level_cov)
    apart = Split.of(messages.interaction_cov)
    if not messages.interaction_cov.any():
        apart = Split(np.zeros(0), np.zeros(0), np.zeros(0))
    beta = np.column_stack([root.mean, root.cov_root])[None]
    above = np.concatenate([beta, np.concatenate([root.effects[:, :, None], root.effect_roots], axis=2)])
    above = above.reshape((K + 1) * p, D + 1)

    def work(chunk: tuple[int, int]) -> tuple[Codes, Codes]:
        first, last = chunk
        n, (spots, room) = last - first, loops.rooms(p)
        late = np.empty((2, n // 8 + 1), dtype=np.int64)
        shift, roots, given = np.zeros((n, p)), np.zeros((n, p, p)), np.zeros((n, p, K + 1, p))
        part = messages.piece(first, last)
        some = loops.give_levels(
            normalised(part.packed), part.units.starts, part.units.action, p, *level_split, spots,
            shift, roots, given, late[0], room,
        )  # fmt: skip
        levels = (given.reshape(n * p, (K + 1) * p) @ above).reshape(n, p, D + 1)
        more = loops.give_units(
            normalised(part.units.rows), part.units.table(), p, *apart, spots, levels[:, :, 0] + shift, roots,
            levels, root.effects, root.effect_roots, part.units.tasks, means, covs,
            late[1], loops.tiles(D, p), room,
        )  # fmt: skip
        return first + late[0, :some], first + late[1, :more]

    parts = in_threads(work, units.pieces(UNITS, p * max(D, (K + 1) * p)), processors())
    late = np.concatenate([np.zeros(0, dtype=np.int64), *(part for pair in parts for part in pair)])
    places = np.minimum(late[:, None] + np.arange(8), len(units.tasks) - 1)
    rest: Codes = units.tasks[np.unique(places)]
    return rest
