"""The posterior of the crossed prior: laws of tasks, actions and all that is linear in them.

With lambda_s = beta + u_s the level of a task, and the root's (beta, alpha) = mean + (C_beta, C_a) x, x ~ N(0, I),

    lambda_s: mean  W_s b_s + K_s beta - sum_a W_s P_sa alpha_a        root  Lambda_s = K_s C_beta - sum_a W_s P_sa C_a
    theta_sa | lambda_s, alpha_a ~ N(K_sa (lambda_s + alpha_a) + M~_sa B_sa, M~_sa)       K_sa = (I + M G_sa)^-1

so that the covariance of theta_sa given the log has three parts: M~_sa of the unit alone, K_sa W_s K_sb' between
actions of one task, and the product of the roots K_sa (Lambda_s + C_a) between all. A unit without rows has K_sa = I,
M~_sa = M, a task without rows W_s = L, Lambda_s = C_beta. No covariance is a difference. With A = M = 0 all theta_sa of
a task are equal bit by bit, so that every difference is exactly 0.
"""

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from hieropo.core.crossed_hierarchy import CrossedHierarchy
from hieropo.core.crossed_laws import TaskBlock, UnitLaws, turned_weights, weight_sums
from hieropo.core.crossed_steps import ObservedUnits, Root, TaskMessages, UnitMessages, solve_root
from hieropo.core.gaussian import Array, Gaussian, plus
from hieropo.core.keys import Codes
from hieropo.core.packed import pack, packed_size, unpack
from hieropo.core.shared_actions import UnitTable, refuse_negative
from hieropo.core.units import UnitMoments
from hieropo.errors import InputError, MismatchError, UnknownTaskError

_ROOM = 2**21  # doubles of one array while tasks are worked on


class CrossedPosterior:
    """Posterior of every task, action and beta, given the log; made by :func:`condition_crossed`.

    Attributes
    ----------
    moments : UnitMoments
    hierarchy : CrossedHierarchy
    hyper : Gaussian
        Of beta, in R^p.
    log_evidence : float
        log p(rewards | features, hierarchy), of the contrasts that a flat beta leaves (REML).
    square : float
        (r - X beta)'V^-1 (r - X beta) at the estimate of beta, V the covariance of the rewards given beta: with
        n - p degrees of freedom, what a common factor of all variances is estimated from.
    """

    def __init__(
        self, moments: UnitMoments, hierarchy: CrossedHierarchy, units: ObservedUnits, tasks: TaskMessages, root: Root
    ) -> None:  # fmt: skip
        self.moments = moments
        self.hierarchy = hierarchy
        self.square = root.square
        self.hyper = _gaussian(root.mean, root.cov_root @ root.cov_root.T).plus(moments.units.offset)
        noise = float(moments.rows.sum(axis=0) @ np.log(hierarchy.noise_var))
        constant = (moments.n_rows - moments.unit_dim) * np.log(2 * np.pi) + noise
        constant -= float(moments.units.log_precision.sum())
        self.log_evidence = -0.5 * (float(constant) + tasks.root.log_det + root.log_det + root.square)
        self._units, self._tasks, self._root = units, tasks, root
        self._place = np.full(len(moments), -1, dtype=np.int64)
        self._place[units.tasks] = np.arange(len(units.tasks))

    @property
    def dim(self) -> int:
        """Features d = K p of the feature map."""
        return self.moments.dim

    def action(self, action: int) -> Gaussian:
        """Return the law of beta + alpha_a, the population's coefficients of one action, in R^p.

        Raises
        ------
        InputError
            ``action`` is not in 0 .. K - 1.
        """
        code = self._code(action)
        root = self._root.cov_root + self._root.effect_roots[code]
        mean = self._root.mean + self._root.effects[code]
        return _gaussian(mean, root @ root.T).plus(self.moments.units.offset)

    def new_action(self) -> Gaussian:
        """Return the law of beta + alpha_a of an action that the feature map does not have."""
        return _gaussian(self.hyper.mean, self.hyper.cov + self.hierarchy.action_cov)

    def effects(self) -> Gaussian:
        """Return the joint law of alpha_1, ..., alpha_K, in R^d."""
        root = self._root.effect_roots.reshape(self.dim, -1)
        return _gaussian(self._root.effects.reshape(-1), root @ root.T)

    def unit(self, task: object, action: int) -> Gaussian:
        """Return the law of theta_sa, in R^p.

        Raises
        ------
        UnknownTaskError
            The task is not in the log; see :meth:`new_task`.
        InputError
            ``action`` is not in 0 .. K - 1.
        """
        code, block = self._code(action), self._block(self._rows(task))
        mean, cov = block.means(self._root.effects)[0, code], block.cov_of(code, self._root.effect_roots)[0]
        return _gaussian(mean, cov).plus(self.moments.units.offset)

    def unit_new_action(self, task: object) -> Gaussian:
        """Return the law of theta_sa of a task and an action that the map does not have; errors as :meth:`unit`."""
        block = self._block(self._rows(task))
        own = self.hierarchy.action_cov + self.hierarchy.interaction_cov
        root = block.level_root[0]
        cov = own + block.level_cov[0] + root @ root.T
        return _gaussian(block.level[0], cov).plus(self.moments.units.offset)

    def task(self, task: object) -> Gaussian:
        """Return the joint law of all d = K p coefficients of a task; action a at a p, ..., a p + p - 1.

        Errors as :meth:`unit`.
        """
        return self._joint(self._block(self._rows(task)))

    def difference(self, task: object, first: int, second: int) -> Gaussian:
        """Return the law of theta_s,first - theta_s,second, in R^p, without taking it from the joint law.

        Exactly 0 where A = M = 0. Errors as :meth:`unit`.
        """
        rows, effects, roots = self._rows(task), self._root.effects, self._root.effect_roots
        pair, block = [self._code(first), self._code(second)], self._block(rows)
        change = self._change_of_gains(int(rows[0]), pair, block)
        gains = block.gains[0, pair]
        parts = block.shift[0, pair] + np.einsum("aij,aj->ai", gains, effects[pair])
        shared = change @ block.level_root[0] + (gains[0] @ roots[pair[0]] - gains[1] @ roots[pair[1]])
        cov = change @ block.level_cov[0] @ change.T + shared @ shared.T
        if first != second:
            cov = cov + block.cov[0, pair].sum(axis=0)
        return _gaussian(change @ block.level[0] + (parts[0] - parts[1]), cov)

    def _change_of_gains(self, row: int, pair: list[int], block: TaskBlock) -> Array:
        """K_sa - K_sb of two actions, from I - K = M~ G where that is smaller: a large level then takes no digits."""
        p = self.moments.unit_dim
        sums = unpack(self.moments.sums[row, pair], p) / self.hierarchy.noise_var[pair, None, None]
        gains, losses = block.gains[0, pair], block.cov[0, pair] @ sums
        if np.abs(losses).max() < np.abs(gains).max():
            return np.asarray(losses[1] - losses[0])
        return np.asarray(gains[0] - gains[1])

    def new_task(self) -> Gaussian:
        """Return the joint law of all d coefficients of a task that has no rows."""
        return self._joint(self._block(np.array([-1])))

    def cov_between(self, first: object, second: object) -> Array:
        """Return cov(theta_first, theta_second | log), shape (d, d); errors as :meth:`unit`."""
        rows = self._rows(first, second)
        if rows[0] == rows[1]:
            return self.task(first).cov
        roots = self._task_roots(self._block(rows))
        found: Array = roots[0] @ roots[1].T
        return found

    def table(self) -> UnitTable:
        """Return the laws of all units, each on its own."""
        return self._table

    def along(self, vectors: Array, part: slice) -> tuple[Array, Array]:
        """Covariances (n, J, J) = own + shared shared' of v_js' theta_s, vectors (n, J, d), of some rows of the table.

        ``shared`` (n, J, D) is what tasks have in common: for s != z, the covariance of v_js' theta_s and
        v_lz' theta_z is shared_sj' shared_zl.
        """
        n, J, d = vectors.shape
        K, p = self.moments.n_actions, self.moments.unit_dim
        flat = self._root.effect_roots.reshape(d, -1)
        own, shared = np.empty((n, J, J)), np.empty((n, J, flat.shape[1]))
        for some in self._pieces(np.arange(part.start, part.stop)):
            at, block = some - part.start, self._block(some)
            weights = vectors[at].reshape(len(some), J, K, p)
            turned, level = turned_weights(block.gains, weights)
            shared[at] = level @ block.level_root + turned.reshape(len(some), J, d) @ flat
            spread = np.einsum("njak,nakl->njal", weights, block.cov).reshape(len(some), J, d)
            own[at] = spread @ vectors[at].swapaxes(1, 2) + level @ block.level_cov @ level.swapaxes(1, 2)
        return own, shared

    def total(self, vectors: Array) -> tuple[float, float]:
        """Mean and variance of sum_s v_s' theta_s over all tasks of the log, vectors (m, d).

        The covariance between tasks counts: taking tasks as independent would leave out what they share. Exactly 0
        for differences between policies (vectors that add to 0 over the actions of each task) where A = M = 0.
        """
        m = len(self.moments)
        if vectors.shape != (m, self.dim):
            raise InputError(
                f"vectors have shape {vectors.shape}. A sum over tasks needs one vector of all coefficients a task: "
                f"shape ({m}, {self.dim}), in the order of the moments' tasks."
            )
        own, shared = self.along(vectors[:, None], slice(0, m))
        common = shared[:, 0].sum(axis=0)
        mean = 0.0
        for some in self._pieces(np.arange(m)):
            block = self._block(some)
            weights = vectors[some].reshape(len(some), *self._root.effects.shape)
            turned, level = turned_weights(block.gains, weights[:, None])
            if self.moments.units.offset is not None:
                mean += float(np.sum(weight_sums(weights) @ self.moments.units.offset))
            mean += float(np.sum(weights * block.shift) + np.sum(turned[:, 0] * self._root.effects))
            mean += float(np.sum(level[:, 0] * block.level))
        return mean, float(own.sum() + common @ common)

    @cached_property
    def _laws(self) -> UnitLaws:
        return UnitLaws.of(self._units, self.hierarchy.interaction_cov)

    @cached_property
    def _table(self) -> UnitTable:
        K, p, m = self.moments.n_actions, self.moments.unit_dim, len(self.moments)
        means, covs = np.empty((m, K, p)), np.empty((m, K, packed_size(p)))
        effects, roots = self._root.effects, self._root.effect_roots
        for some in self._pieces(np.arange(m)):
            block = self._block(some)
            means[some] = block.means(effects)
            for a in range(K):
                covs[some, a] = pack(block.cov_of(a, roots))
        new = self._block(np.array([-1]))
        prior = np.array([pack(new.cov_of(a, roots)[0]) for a in range(K)])
        rows, offset = self.moments.rows.sum(axis=1), self.moments.units.offset
        means, new_means = plus(means, offset), plus(new.means(effects)[0], offset)
        return UnitTable(self.moments.keys, means, covs, rows, new_means, prior)

    def _pieces(self, rows: Codes) -> Iterator[Codes]:
        K, p, D = self._root.effect_roots.shape
        step = max(1, _ROOM // (K * p * p + p * D))
        for first in range(0, len(rows), step):
            yield rows[first : first + step]

    def _block(self, rows: Codes) -> TaskBlock:
        """Laws of the tasks at some rows of the moments; -1 is a task that the log does not have."""
        root, n = self._root, len(rows)
        K, p, D = root.effect_roots.shape
        place = np.where(rows >= 0, self._place[rows], -1)
        level, level_root = np.tile(root.mean, (n, 1)), np.tile(root.cov_root, (n, 1, 1))
        level_cov = np.tile(self.hierarchy.level_cov, (n, 1, 1))
        shift, gains = np.zeros((n, K, p)), np.tile(np.eye(p), (n, K, 1, 1))
        cov = np.tile(self.hierarchy.interaction_cov, (n, K, 1, 1))
        seen = np.flatnonzero(place >= 0)
        if seen.size:
            tasks, laws, units = self._tasks, self._laws, self._units
            at = place[seen]
            counts = np.diff(units.starts)[at]
            which = np.repeat(np.arange(seen.size), counts)
            first = np.repeat(units.starts[at] - np.cumsum(counts) + counts, counts)
            u = first + np.arange(counts.sum())
            action = units.action[u]
            slopes = np.zeros((seen.size, p, K, p))
            slopes[which, :, action] = tasks.slopes[u]
            known = np.concatenate([root.effects[:, :, None], root.effect_roots], axis=2).reshape(
                K * p, 1 + D
            )
            beta = np.concatenate([root.mean[:, None], root.cov_root], axis=1)
            given = tasks.gains[at] @ beta - slopes.reshape(seen.size, p, K * p) @ known
            level[seen], level_root[seen] = tasks.shift[at] + given[:, :, 0], given[:, :, 1:]
            level_cov[seen] = tasks.cov[at]
            shift[seen[which], action] = laws.shift[u]
            gains[seen[which], action] = laws.gains[u]
            cov[seen[which], action] = unpack(laws.cov[u], p)
        return TaskBlock(level, level_cov, level_root, shift, cov, gains)

    def _task_roots(self, block: TaskBlock) -> Array:
        """Roots (n, d, D) of what all tasks share."""
        found: Array = block.gains @ (block.level_root[:, None] + self._root.effect_roots)
        return found.reshape(len(found), self.dim, -1)

    def _joint(self, block: TaskBlock) -> Gaussian:
        """Joint law of the one task of a block."""
        K, p = self.moments.n_actions, self.moments.unit_dim
        root = self._task_roots(block)[0]
        gains = block.gains[0].reshape(K * p, p)
        cov = gains @ block.level_cov[0] @ gains.T + root @ root.T
        np.einsum("aiaj->aij", cov.reshape(K, p, K, p))[...] += block.cov[0]
        return _gaussian(block.means(self._root.effects).reshape(-1), cov).plus(self.moments.offset)

    def _code(self, action: int) -> int:
        K = self.moments.n_actions
        if not 0 <= action < K:
            raise InputError(
                f"There is no action {action!r}: the code of an action is its place in the feature map, 0 .. {K - 1}, "
                "as action_codes(ids) gives it."
            )
        return int(action)

    def _rows(self, *tasks: object) -> Codes:
        rows = [self.moments.keys.find(task) for task in tasks]
        for row, task in zip(rows, tasks, strict=True):
            if row < 0:
                raise UnknownTaskError(self.moments.keys.unknown_message(task))
        return np.array(rows, dtype=np.int64)

    def __repr__(self) -> str:
        return f"CrossedPosterior({self.moments!r}, log evidence {self.log_evidence:.6g})"


def _gaussian(mean: Array, cov: Array) -> Gaussian:
    return Gaussian.trusted(mean.copy(), (cov + cov.T) / 2)


def check_crossed(moments: UnitMoments, hierarchy: CrossedHierarchy) -> None:
    """Raise where a crossed hierarchy does not fit the moments, or the moments are no sums of rows."""
    shape = hierarchy.n_actions, hierarchy.unit_dim
    if (moments.n_actions, moments.unit_dim) != shape:
        raise MismatchError(
            f"The moments have {moments.n_actions} actions of {moments.unit_dim} features, the hierarchy {shape[0]} of "
            f"{shape[1]}. Both must come from one feature map."
        )
    refuse_negative(moments)


def condition_crossed(moments: UnitMoments, hierarchy: CrossedHierarchy) -> CrossedPosterior:
    """Condition the crossed prior on the log.

    The way up takes O(K p^3) a task over the actions that it has, one product of (K p, p) matrices that all tasks
    share, and O((K p)^3) once. The way down is taken when asked for.

    Parameters
    ----------
    moments : UnitMoments
        m tasks of K actions of p features; any rank, including units and tasks without rows.
    hierarchy : CrossedHierarchy
        Of the same K and p.

    Raises
    ------
    MismatchError
        Dimensions differ.
    NumericalError
        Sums that no rows can have; a direction of beta that no rows show.
    """
    check_crossed(moments, hierarchy)
    units = ObservedUnits.of(moments, hierarchy.noise_var)
    messages = UnitMessages.of(units, hierarchy.interaction_cov)
    tasks = TaskMessages.of(units, messages, hierarchy.level_cov)
    return CrossedPosterior(moments, hierarchy, units, tasks, solve_root(tasks.root, hierarchy.action_cov))
