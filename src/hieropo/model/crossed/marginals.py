"""Units and tasks of the crossed prior given what is above them; formulas in :mod:`posterior`."""

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hieropo._kernels import backend
from hieropo._utils.arrays import Array, Codes, normalised
from hieropo._utils.packed import pack, packed_size, unpack
from hieropo._utils.threads import in_threads, processors
from hieropo.errors import InputError
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.crossed.steps import SMALL_UNITS, UNITS, ObservedUnits, Root, TaskMessages, UnitMessages
from hieropo.model.gaussian import plus
from hieropo.model.steps import Split, TreeLevel
from hieropo.moments.statistics import Moments

_ROOM = 2**21  # doubles of one array while tasks are worked on
_PIECE = 512  # tasks whose vectors are multiplied at once


class BlockMarginals(NamedTuple):
    """Observed units given lambda_s + alpha_a.

    Attributes
    ----------
    shift : (u, p) array
        M~_sa B_sa.
    cov : (u, p (p + 1) / 2) array
        M~_sa, packed.
    shrinkage : (u, p, p) array
        K_sa.
    """

    shift: Array
    cov: Array
    shrinkage: Array

    @classmethod
    def of(cls, units: ObservedUnits, interaction_cov: Array) -> "BlockMarginals":
        """Take the step down to units from parents that are known."""
        u, p = len(units.action), units.dim
        if not interaction_cov.any():
            return cls(np.zeros((u, p)), np.zeros((u, packed_size(p))), np.broadcast_to(np.eye(p), (u, p, p)))
        nodes, all_units = TreeLevel.of(units.rows, 1.0, interaction_cov), slice(0, u)
        return cls(*nodes.given(np.zeros((u, p)), all_units), nodes.shrinkage(all_units))


class AboveTasks(NamedTuple):
    """The laws of (beta, alpha) that tasks have in common, or of (lambda, e) of each of G groups; D columns of roots.

    Attributes
    ----------
    mean, cov_root, effects, effect_roots : (G, p), (G, p, D), (G, K, p), (G, K, p, D) array
        As of :class:`hieropo.model.crossed.steps.Root`.
    """

    mean: Array
    cov_root: Array
    effects: Array
    effect_roots: Array

    @classmethod
    def of(cls, root: Root) -> "AboveTasks":
        """Put the root above all tasks."""
        return cls(root.mean[None], root.cov_root[None], root.effects[None], root.effect_roots[None])

    def group(self, g: int) -> Root:
        """Return one group in place of the root."""
        return Root(self.mean[g], self.cov_root[g], self.effects[g], self.effect_roots[g], 0.0, 0.0)

    def stacked(self) -> Array:
        """Means, and roots behind them, of (beta, alpha) side by side: (G, (K + 1) p, 1 + D)."""
        G, K, p, D = self.effect_roots.shape
        stacked = np.empty((G, (K + 1) * p, 1 + D))
        stacked[:, :p, 0], stacked[:, :p, 1:] = self.mean, self.cov_root
        stacked[:, p:, 0] = self.effects.reshape(G, K * p)
        stacked[:, p:, 1:] = self.effect_roots.reshape(G, K * p, D)
        return stacked

    def of_rows(self, groups: Codes) -> "AboveTasks":
        """Return those of tasks that are in some groups (n,); of one group without a copy for each task."""
        return self if len(self.mean) == 1 else AboveTasks(*(values[groups] for values in self))


class _Observed(NamedTuple):
    """The observed tasks among n rows of moments: their places there and among all observed ones, and their units.

    ``which`` is the place in ``seen`` of the task of each unit, ``u`` the unit, ``action`` its action.
    """

    seen: Codes
    observed: Codes
    which: Codes
    u: Codes
    action: Codes


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
    shift, cov, shrinkage : (n, K, p), (n, K, p, p), (n, K, p, p) array
        M~_sa B_sa, M~_sa and K_sa.
    above : AboveTasks
        Of each task, or one for all.
    """

    level: Array
    level_cov: Array
    level_root: Array
    shift: Array
    cov: Array
    shrinkage: Array
    above: AboveTasks

    def means(self) -> Array:
        """Means (n, K, p) of theta_sa."""
        parents = self.level[:, None] + self.above.effects
        return np.asarray(self.shift + np.einsum("naij,naj->nai", self.shrinkage, parents))

    def roots(self, action: int) -> Array:
        """K_sa (Lambda_s + C_a), (n, p, D), of one action."""
        parents = self.level_root + self.above.effect_roots[:, action]
        return np.asarray(self.shrinkage[:, action] @ parents)

    def cov_of(self, action: int) -> Array:
        """Covariances (n, p, p) of theta_sa of one action."""
        shrinkage, roots = self.shrinkage[:, action], self.roots(action)
        given_above = self.cov[:, action] + shrinkage @ self.level_cov @ shrinkage.swapaxes(1, 2)
        return np.asarray(given_above + roots @ roots.swapaxes(1, 2))

    def task_roots(self) -> Array:
        """Roots (n, d, D) of what all tasks of a group share."""
        n, K, p = self.shift.shape
        roots = self.shrinkage @ (self.level_root[:, None] + self.above.effect_roots)
        return np.asarray(roots.reshape(n, K * p, -1))


class TaskLaws:
    """The laws of all tasks of some moments, given the log, from the messages of their units and what is above them.

    Parameters
    ----------
    moments : Moments
        m tasks.
    hierarchy : CrossedHierarchy
    messages : UnitMessages
        Of the observed units; tasks of a group stand side by side.
    above : AboveTasks
    group : (m + 1,) int array
        Of each task, and of a task without rows.
    """

    moments: Moments
    hierarchy: CrossedHierarchy
    messages: UnitMessages
    above: AboveTasks

    def __init__(
        self,
        moments: Moments,
        hierarchy: CrossedHierarchy,
        messages: UnitMessages,
        above: AboveTasks,
        group: Codes,
    ) -> None:
        self.moments, self.hierarchy, self.messages = moments, hierarchy, messages
        self.above, self._group = above, group
        self._place = np.full(len(moments) + 1, -1, dtype=np.int64)  # the last is of a new task, -1
        self._place[messages.units.tasks] = np.arange(len(messages.units.tasks))

    @cached_property
    def _units(self) -> BlockMarginals:
        return BlockMarginals.of(self.messages.units, self.hierarchy.interaction_cov)

    @cached_property
    def _tasks(self) -> TaskMessages:
        return TaskMessages.of(self.messages.unkept(), self.hierarchy.level_cov)

    @property
    def step(self) -> int:
        """Tasks that are worked on at once."""
        _, K, p, D = self.above.effect_roots.shape
        return max(1, _ROOM // int(K * p * p + p * D * (1 if len(self.above.mean) == 1 else K + 1)))

    def pieces(self, rows: Codes) -> Iterator[Codes]:
        """Cut rows into pieces that are worked on at once."""
        for first in range(0, len(rows), self.step):
            yield rows[first : first + self.step]

    def _observed(self, rows: Codes) -> "_Observed":
        """Find the observed tasks among some rows of the moments, and their units."""
        place, starts = self._place[rows], self.messages.units.starts
        seen = np.flatnonzero(place >= 0)
        observed = place[seen]
        counts = np.diff(starts)[observed]
        which = np.repeat(np.arange(seen.size), counts)
        u = np.repeat(starts[observed] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        return _Observed(seen, observed, which, u, self.messages.units.action[u])

    def block(self, rows: Codes) -> TaskBlock:
        """Laws of the tasks at some rows of the moments; -1 is a task that the log does not have."""
        n, above = len(rows), self.above.of_rows(self._group[rows])
        _, K, p, D = above.effect_roots.shape
        level, level_root = np.empty((n, p)), np.empty((n, p, D))
        level[:], level_root[:] = above.mean, above.cov_root
        level_cov = np.tile(self.hierarchy.level_cov, (n, 1, 1))
        shift, shrinkage = np.zeros((n, K, p)), np.tile(np.eye(p), (n, K, 1, 1))
        cov = np.tile(self.hierarchy.interaction_cov, (n, K, 1, 1))
        seen, observed, which, u, action = self._observed(rows)
        if seen.size:
            tasks, laws = self._tasks, self._units
            slopes = np.zeros((seen.size, p, K, p))
            slopes[which, :, action] = tasks.slopes[u]
            parents = above if len(above.mean) == 1 else above.of_rows(seen)
            G = len(parents.mean)
            effects = np.concatenate([parents.effects[..., None], parents.effect_roots], axis=3)
            beta = np.concatenate([parents.mean[:, :, None], parents.cov_root], axis=2)
            explained = (
                slopes.reshape(seen.size, p, K * p) @ effects.reshape(G, K * p, 1 + D)[0 if G == 1 else ...]
            )
            given = tasks.shrinkage[observed] @ beta - explained
            level[seen], level_root[seen] = tasks.shift[observed] + given[:, :, 0], given[:, :, 1:]
            level_cov[seen] = tasks.cov[observed]
            shift[seen[which], action] = laws.shift[u]
            shrinkage[seen[which], action] = laws.shrinkage[u]
            cov[seen[which], action] = unpack(laws.cov[u], p)
        return TaskBlock(level, level_cov, level_root, shift, cov, shrinkage, above)

    def along(self, vectors: Array, part: slice) -> tuple[Array, Array, Array]:
        """As :meth:`CrossedPosterior.along`."""
        n, J, _ = vectors.shape
        K, p, D = self.moments.n_actions, self.moments.unit_dim, self.above.cov_root.shape[2]
        offset = self.moments.unit_offset
        mean, within, shared = np.empty((n, J)), np.empty((n, J, J)), np.empty((n, J, D))
        _ = self._units, self._tasks  # computed once, before threads ask for them

        def work(start: int) -> None:
            some = slice(start, min(start + _PIECE, n))
            rows = np.arange(part.start + some.start, part.start + some.stop)
            weights = vectors[some].reshape(len(rows), J, K, p)
            mean[some], within[some], shared[some] = self._along(rows, weights)
            if offset is not None:
                mean[some] += weight_sums(weights) @ offset

        in_threads(work, range(0, n, _PIECE), processors())
        return mean, within, shared

    def _along(self, rows: Codes, weights: Array) -> tuple[Array, Array, Array]:
        """Means (n, J), within (n, J, J) and shared (n, J, D) parts of v_js' theta_s, for weights v (n, J, K, p).

        With t_sa = K_sa' v_sa and l_s = sum_a t_sa, what theta_s has from (beta, alpha) has the weights K_s' l_s of
        beta, and t_sa - (W_s P_sa)' l_s of alpha_a, so that roots are multiplied once, by all tasks.
        """
        (n, J, K, p), above, units = weights.shape, self.above, self._observed(rows)
        turned, shift, within = self._along_units(units, weights)
        level = (turned - weights).sum(axis=2) + weight_sums(weights)
        tasks, at, seen = self._tasks, units.observed, units.seen
        of_beta, of_effects = level.copy(), turned
        of_beta[seen] = level[seen] @ tasks.shrinkage[at]
        slopes = level[seen[units.which]] @ tasks.slopes[units.u]
        of_effects[seen[units.which], :, units.action] -= slopes
        shift[seen] += np.einsum("njk,nk->nj", level[seen], tasks.shift[at])
        level_cov = np.tile(self.hierarchy.level_cov, (n, 1, 1))
        level_cov[seen] = tasks.cov[at]
        within += (level @ level_cov) @ level.swapaxes(1, 2)
        all_weights = np.concatenate([of_beta, of_effects.reshape(n, J, K * p)], axis=2)
        if len(above.mean) == 1:
            along = all_weights.reshape(n * J, (K + 1) * p) @ above.stacked()[0]
            along = along.reshape(n, J, along.shape[1])
        else:
            along = all_weights @ above.of_rows(self._group[rows]).stacked()
        return shift + along[:, :, 0], within, along[:, :, 1:]

    def _along_units(self, units: "_Observed", weights: Array) -> tuple[Array, Array, Array]:
        """K_sa' v_sa (n, J, K, p), and sums over units of v_sa' M~_sa B_sa (n, J) and v_sa' M~_sa v_sa (n, J, J)."""
        (n, J, K, p), laws = weights.shape, self._units
        turned, shift, within = weights.copy(), np.zeros((n, J)), np.zeros((n, J, J))
        task = units.seen[units.which]
        some = weights[task, :, units.action]
        turned[task, :, units.action] = some @ laws.shrinkage[units.u]
        if units.u.size:
            starts = np.flatnonzero(np.diff(units.which, prepend=-1))
            spread = (some @ unpack(laws.cov[units.u], p)) @ some.swapaxes(1, 2)
            of_rows = (some @ laws.shift[units.u][:, :, None])[:, :, 0]
            within[units.seen] = np.add.reduceat(spread, starts, axis=0)
            shift[units.seen] = np.add.reduceat(of_rows, starts, axis=0)
        if units.u.size < n * K:
            unobserved = np.ones((n, K), dtype=np.bool_)
            unobserved[task, units.action] = False
            tasks, actions = np.nonzero(unobserved)
            rest = weights[tasks, :, actions]
            np.add.at(within, tasks, (rest @ self.hierarchy.interaction_cov) @ rest.swapaxes(1, 2))
        return turned, shift, within

    def along_all(self, vectors: Array) -> Iterator[tuple[slice, Array, Array, Array]]:
        """Rows of some tasks, and what :meth:`along` gives of them, until all are through; vectors (J, m, d).

        Raises
        ------
        InputError
            ``vectors`` is of other tasks or coefficients.
        """
        J, m, d = vectors.shape
        if (m, d) != (len(self.moments), self.moments.dim):
            raise InputError(
                f"vectors have shape {vectors.shape}. A sum over tasks needs one vector of all coefficients a task: "
                f"shape (J, {len(self.moments)}, {self.moments.dim}), in the order of the moments' tasks."
            )
        step = max(1, _ROOM // max(J * (d + self.above.cov_root.shape[2]), 1))
        for start in range(0, m, step):
            part = slice(start, min(start + step, m))
            yield part, *self.along(np.ascontiguousarray(vectors[:, part].swapaxes(0, 1)), part)

    def joint(self, rows: Codes) -> tuple[Array, Array]:
        """Return means (n, d) and covariances (n, d, d) of the tasks at some rows of the moments."""
        n, K, p = len(rows), self.moments.n_actions, self.moments.unit_dim
        block = self.block(rows)
        roots, shrinkage = block.task_roots(), block.shrinkage.reshape(n, K * p, p)
        covs = shrinkage @ block.level_cov @ shrinkage.swapaxes(1, 2) + roots @ roots.swapaxes(1, 2)
        np.einsum("naiaj->naij", covs.reshape(n, K, p, K, p))[...] += block.cov
        covs = (covs + covs.swapaxes(1, 2)) / 2
        return plus(block.means().reshape(n, -1), self.moments.offset), covs

    def roots(self, rows: Codes) -> Array:
        """Return what :meth:`along` has of (beta, alpha) of each coefficient of some tasks, (n, d, D)."""
        return self.block(rows).task_roots()

    def arrays(self, prior_means: Array, prior_covs: Array, part: slice | None = None) -> tuple[Array, Array]:
        """Means (n, K, p) and packed covariances of the units of ``part``, default all tasks.

        Those of a task without rows are given. Tasks without rows of a group that has some, and groups of few tasks,
        take the steps in batched numpy. With groups ``part`` is all tasks.
        """
        part = slice(0, len(self.moments)) if part is None else part
        K, p, m = self.moments.n_actions, self.moments.unit_dim, part.stop - part.start
        means, covs = np.empty((m, K, p)), np.empty((m, K, packed_size(p)))
        if len(self.above.mean) == 1:
            unseen = self._place[part] < 0
            means[unseen], covs[unseen] = prior_means, prior_covs
            messages = self.messages.piece(
                *np.searchsorted(self.messages.units.tasks, (part.start, part.stop))
            )
            root = self.above.group(0)
            rest = fill_table(messages, self.hierarchy.level_cov, root, means, covs, part.start)
        else:
            rest = np.arange(m)
        for rows in self.pieces(rest):
            block = self.block(part.start + rows)
            means[rows] = block.means()
            for a in range(K):
                covs[rows, a] = pack(block.cov_of(a))
        return plus(means, self.moments.unit_offset), covs


def weight_sums(weights: Array) -> Array:
    """Sums over actions of weights (..., K, p), exactly 0 where they are 0 up to rounding."""
    total = weights.sum(axis=-2)
    rounding = 8 * weights.shape[-2] * np.finfo(np.float64).eps * np.abs(weights).sum(axis=-2)
    return np.where(np.abs(total) <= rounding, 0.0, total)


def fill_table(
    messages: UnitMessages, level_cov: Array, root: Root, means: Array, covs: Array, first_row: int = 0
) -> Codes:
    """Write posteriors of all units of observed tasks to their rows of ``means`` (m, K, p) and ``covs`` (m, K, .).

    ``first_row`` is the row of the moments that is the first of the table. Returns the rows of tasks that are left to
    the steps by reflections: their information outweighs the prior.
    """
    units = messages.units
    table_rows = units.tasks - first_row
    if units.dim > 1:
        return _fill(messages, level_cov, root, means, covs, table_rows)
    loops = backend.crossed(units.doubles)
    beta = np.append(root.mean, root.cov_root[0])
    effects = np.concatenate([root.effects, root.effect_roots[:, 0]], axis=1)
    interaction, level_var = float(messages.interaction_cov[0, 0]), float(level_cov[0, 0])

    def work(chunk: tuple[int, int]) -> None:
        part = units.piece(*chunk)
        loops.give_units_of_one(
            normalised(part.rows), part.starts, part.action, part.table(), interaction, level_var, beta, effects,
            table_rows[chunk[0] : chunk[1]], means, covs, np.empty(beta.size),
        )  # fmt: skip

    in_threads(work, units.pieces(SMALL_UNITS), processors())
    return np.zeros(0, dtype=np.int64)


def _fill(
    messages: UnitMessages, level_cov: Array, root: Root, means: Array, covs: Array, table_rows: Codes
) -> Codes:
    """As :func:`fill_table`, for several coefficients an action."""
    units = messages.units
    loops = backend.crossed(units.doubles)
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
            levels, root.effects, root.effect_roots, table_rows[first:last], means, covs,
            late[1], loops.tiles(D, p), room,
        )  # fmt: skip
        return first + late[0, :some], first + late[1, :more]

    parts = in_threads(work, units.pieces(UNITS, p * max(D, (K + 1) * p)), processors())
    late = np.concatenate([np.zeros(0, dtype=np.int64), *(part for pair in parts for part in pair)])
    places = np.minimum(late[:, None] + np.arange(8), len(units.tasks) - 1)
    rest: Codes = table_rows[np.unique(places)]
    return rest
