"""The posterior of the crossed prior: laws of tasks, actions and all that is linear in them.

With lambda_s = beta + u_s the level of a task, and the root's (beta, alpha) = mean + (C_beta, C_a) x, x ~ N(0, I),

    lambda_s: mean  W_s b_s + K_s beta - sum_a W_s P_sa alpha_a        root  Lambda_s = K_s C_beta - sum_a W_s P_sa C_a
    theta_sa | lambda_s, alpha_a ~ N(K_sa (lambda_s + alpha_a) + M~_sa B_sa, M~_sa)       K_sa = (I + M G_sa)^-1

so that the covariance of theta_sa given the log has three parts: M~_sa of the unit alone, K_sa W_s K_sb' between
actions of one task, and the product of the roots K_sa (Lambda_s + C_a) between all. A unit without rows has K_sa = I,
M~_sa = M, a task without rows W_s = L, Lambda_s = C_beta. No covariance is a difference. With A = M = 0 all theta_sa of
a task are equal bit by bit, so that every difference is exactly 0.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple, Protocol, Self

import numpy as np

from hieropo._utils.arrays import Array, Codes, pieces
from hieropo._utils.packed import pack, packed_size, unpack
from hieropo.errors import InputError, MismatchError
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.crossed.marginals import AboveTasks, TaskBlock, TaskLaws
from hieropo.model.crossed.steps import ObservedUnits, Root, RootSums, UnitMessages, solve_root
from hieropo.model.gaussian import Gaussian, plus
from hieropo.model.protocol import ParentMessages
from hieropo.model.steps import up, upper_factor
from hieropo.model.table import PosteriorTable
from hieropo.moments.statistics import Moments
from hieropo.rows.keys import Unseen

_ROOM = 2**21  # doubles of one array while tasks are worked on


class SecondMoments(NamedTuple):
    """Sums of E[v v' | log] over actions, observed tasks and observed units: of alpha, u and gamma; and of residuals.

    Attributes
    ----------
    action, level, interaction : (p, p) array
    noise : (K,) array
        E of the sum of squared residuals of each action, over its noise variance.
    noise_of_tasks : (t,) array
        The same of each observed task.
    tasks, units : int
        How many have rows.
    """

    action: Array
    level: Array
    interaction: Array
    noise: Array
    noise_of_tasks: Array
    tasks: int
    units: int


class OneHierarchy(Protocol):
    """Views of a posterior under one hierarchy that is taken as known."""

    moments: Moments
    hierarchy: CrossedHierarchy

    @property
    def dim(self) -> int:
        """Features d = K p of the feature map."""
        return self.moments.dim

    @property
    def weights(self) -> Array:
        """Weight 1 of the one hierarchy, as a mixture of hierarchies has them."""
        return np.ones(1)

    @property
    def noise_variances(self) -> Array:
        """Noise variances (K,) of the actions."""
        return self.hierarchy.noise_var

    @property
    def central_hierarchy(self) -> CrossedHierarchy:
        """The hierarchy, as a mixture has one that stands for all."""
        return self.hierarchy

    def parts(self) -> Iterator[Self]:
        """Yield the posterior under each hierarchy, in the order of ``weights``: this one."""
        yield self

    def central(self) -> Self:
        """Return the posterior under the central hierarchy: this one."""
        return self

    def task_slices(self, width: int) -> Iterator[slice]:  # noqa: ARG002 - of the interface of all posteriors
        """Yield one slice of all tasks: a mixture of such posteriors may condition all tasks anew for each slice."""
        yield slice(0, len(self.moments))

    def along(self, vectors: Array, part: slice) -> tuple[Array, Array, Array]:
        """Means (n, J), and covariances in two parts; as :meth:`CrossedPosterior.along`."""
        ...

    def table(self) -> "PosteriorTable":
        """Return the laws of all units, each on its own."""
        ...

    def joint(self, rows: Codes) -> tuple[Array, Array]:
        """Return means (n, d) and covariances (n, d, d) of the tasks at some rows of the moments."""
        ...

    def new_task(self) -> Gaussian:
        """Return the joint law of all d coefficients of a task that has no rows."""
        ...

    def task_at(self, row: int) -> Gaussian:
        """Return the joint law of the task at one row of the moments; -1 is a task without rows."""
        if row < 0:
            return self.new_task()
        means, covs = self.joint(np.array([row]))
        return Gaussian.trusted(means[0].copy(), covs[0])

    def dense_arrays(self) -> tuple[Array, Array]:
        """Return means (m, d) and packed covariances of all d coefficients of every task: m d (d + 1) / 2 numbers."""
        m, d = len(self.moments), self.dim
        means, covs = np.empty((m, d)), np.empty((m, packed_size(d)))
        step = max(1, _ROOM // (d * d))
        for start in range(0, m, step):
            rows = np.arange(start, min(start + step, m))
            means[rows], joint = self.joint(rows)
            covs[rows] = pack(joint)
        return means, covs

    def means(self, part: slice) -> Array:
        """Return the means (n, d) of the tasks in ``part``."""
        return self.table().means[part].reshape(-1, self.dim)

    def prior_mean(self, row: int) -> Array:  # noqa: ARG002 - of the interface of all posteriors
        """Return the mean (d,) of a task, were all rewards 0: 0, since beta is flat and all else has the mean 0."""
        return np.zeros(self.dim)

    def across(self, row: int, vectors: Array, others: Array, part: slice) -> Array:
        """Return cov(v_j' theta_row, w_zl' theta_z | log) (J, n, L), v (J, d), w (n, L, d), tasks z of ``part``."""
        J, alone = len(vectors), slice(row, row + 1)
        shared = self.along(np.ascontiguousarray(vectors[None]), alone)[2][0]
        covariance = np.einsum(
            "jk,nlk->jnl", shared, self.along(others, part)[2] * self.common_columns(row, part)[:, None]
        )
        if part.start <= row < part.stop:
            both = np.concatenate([vectors, others[row - part.start]])
            covariance[:, row - part.start] += self.along(both[None], alone)[1][0][:J, J:]
        return np.asarray(covariance)

    def common_columns(self, row: int, part: slice) -> Array:  # noqa: ARG002 - of the interface of all posteriors
        """Return 1 for columns of ``shared`` common to tasks of ``part`` and the task at a row, (n, D) or (1, 1)."""
        return np.ones((1, 1))

    def mixtures(self, vectors: Array, part: slice) -> Iterator[tuple[Array, Array, Array]]:
        """Yield weights (n,), means and variances (n, J) of v' theta_s of the tasks in ``part``: one Gaussian."""
        yield np.ones(len(vectors)), *self.project(vectors, part)

    def project(self, vectors: Array, part: slice) -> tuple[Array, Array]:
        """Return means and variances (n, J) of v' theta_s of the tasks in ``part``, for vectors (n, J, d)."""
        n, J, d = vectors.shape
        mean, variance = np.empty((n, J)), np.empty((n, J))
        for some in pieces(n, J * (2 * d + J)):
            rows = slice(part.start + some.start, part.start + some.stop)
            mean[some], within, shared = self.along(vectors[some], rows)
            variance[some] = np.einsum("njj->nj", within) + np.square(shared).sum(axis=2)
        return mean, variance


class CrossedPosterior(OneHierarchy):
    """Posterior of every task, action and beta, given the log; made by :func:`condition_crossed`.

    Attributes
    ----------
    moments : Moments
    hierarchy : CrossedHierarchy
    hyper : Gaussian
        Of beta, in R^p.
    log_evidence : float
        log p(rewards | features, hierarchy), of the contrasts that a flat beta leaves (REML).
    square : float
        (r - X beta)'V^-1 (r - X beta) at the estimate of beta, V the covariance of the rewards given beta: with
        n - p degrees of freedom, what a common factor of all variances is estimated from.
    """

    square: float
    hyper: Gaussian
    log_evidence: float

    def __init__(
        self, moments: Moments, hierarchy: CrossedHierarchy, messages: UnitMessages, log_det: float, root: Root
    ) -> None:  # fmt: skip
        self.moments = moments
        self.hierarchy = hierarchy
        self.square = root.square
        self.hyper = _gaussian(root.mean, root.cov_root @ root.cov_root.T).plus(moments.unit_offset)
        self.log_evidence = log_evidence(moments, hierarchy.noise_var, log_det, root)
        one_group = np.zeros(len(moments) + 1, dtype=np.int64)
        self._units, self._root = messages.units, root
        self._tasks = TaskLaws(moments, hierarchy, messages, AboveTasks.of(root), one_group)

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
        return _gaussian(mean, root @ root.T).plus(self.moments.unit_offset)

    def parents(self, rows: Codes) -> tuple[Array, Array]:
        """Means (n, d), less the offset, and roots (n, d, D) of beta + alpha_a of all actions, for each of n tasks."""
        root = (self._root.cov_root + self._root.effect_roots).reshape(self.dim, -1)
        mean = (self._root.mean + self._root.effects).reshape(-1)
        return np.tile(mean, (len(rows), 1)), np.broadcast_to(root, (len(rows), *root.shape))

    def new_action(self) -> Gaussian:
        """Return the law of beta + alpha_a of an action that the feature map does not have."""
        return _gaussian(self.hyper.mean, self.hyper.cov + self.hierarchy.action_cov)

    def effects(self) -> Gaussian:
        """Return the joint law of alpha_1, ..., alpha_K, in R^d."""
        root = self._root.effect_roots.reshape(self.dim, -1)
        return _gaussian(self._root.effects.reshape(-1), root @ root.T)

    def unit(self, task: object, action: int, *, unseen: Unseen = "error") -> Gaussian:
        """Return the law of theta_sa, in R^p.

        Raises
        ------
        UnknownTaskError
            The task is not in the log and ``unseen`` is ``"error"``; "prior" gives the law of a task without rows.
        InputError
            ``action`` is not in 0 .. K - 1; ``unseen`` is something else; the id is missing.
        """
        code, block = self._code(action), self._tasks.block(self._rows(task, unseen=unseen))
        mean, cov = block.means()[0, code], block.cov_of(code)[0]
        return _gaussian(mean, cov).plus(self.moments.unit_offset)

    def unit_new_action(self, task: object) -> Gaussian:
        """Return the law of theta_sa of a task and an action that the map does not have; errors as :meth:`unit`."""
        block = self._tasks.block(self._rows(task))
        prior_cov = self.hierarchy.action_cov + self.hierarchy.interaction_cov
        root = block.level_root[0]
        cov = prior_cov + block.level_cov[0] + root @ root.T
        return _gaussian(block.level[0], cov).plus(self.moments.unit_offset)

    def task(self, task: object, *, unseen: Unseen = "error") -> Gaussian:
        """Return the joint law of all d = K p coefficients of a task; action a at a p, ..., a p + p - 1.

        Errors as :meth:`unit`.
        """
        return self.task_at(self.moments.keys.row(task, unseen))

    def difference(self, task: object, first: int, second: int) -> Gaussian:
        """Return the law of theta_s,first - theta_s,second, in R^p, without taking it from the joint law.

        Exactly 0 where A = M = 0. Errors as :meth:`unit`.
        """
        rows, effects, roots = self._rows(task), self._root.effects, self._root.effect_roots
        pair, block = [self._code(first), self._code(second)], self._tasks.block(rows)
        change = self._change_of_gains(int(rows[0]), pair, block)
        gains = block.shrinkage[0, pair]
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
        gains, losses = block.shrinkage[0, pair], block.cov[0, pair] @ sums
        if np.abs(losses).max() < np.abs(gains).max():
            return np.asarray(losses[1] - losses[0])
        return np.asarray(gains[0] - gains[1])

    def new_task(self) -> Gaussian:
        """Return the joint law of all d coefficients of a task that has no rows."""
        means, covs = self.joint(np.array([-1]))
        return Gaussian.trusted(means[0].copy(), covs[0])

    def cov_between(self, first: object, second: object) -> Array:
        """Return cov(theta_first, theta_second | log), shape (d, d); errors as :meth:`unit`."""
        rows = self._rows(first, second)
        if rows[0] == rows[1]:
            return self.task(first).cov
        roots = self._tasks.block(rows).task_roots()
        return np.asarray(roots[0] @ roots[1].T)

    def table(self) -> PosteriorTable:
        """Return the laws of all units, each on its own."""
        return self._table

    def along(self, vectors: Array, part: slice) -> tuple[Array, Array, Array]:
        """Means (n, J) and covariances (n, J, J) = within + shared shared' of v_js' theta_s, of some rows of the table.

        ``vectors`` is (n, J, d); ``within`` is (n, J, J), and ``shared`` (n, J, D) is common to tasks: for s != z, the
        covariance of v_js' theta_s and v_lz' theta_z is shared_sj' shared_zl. All are exactly 0 for differences between
        policies (vectors that add to 0 over the actions of a task) where A = M = 0.
        """
        return self._tasks.along(vectors, part)

    def total(self, vectors: Array) -> tuple[Array, Array]:
        """Mean (J,) and covariance (J, J) of sum_s v_js' theta_s over all tasks of the log, vectors (J, m, d).

        The covariance between tasks counts: taking tasks as independent would leave out their common part.
        """
        J = len(vectors)
        mean, cov, common = np.zeros(J), np.zeros((J, J)), np.zeros((J, self._root.cov_root.shape[1]))
        for _, means, within, shared in self._tasks.along_all(vectors):
            mean += means.sum(axis=0)
            cov += within.sum(axis=0)
            common += shared.sum(axis=0)
        return mean, cov + common @ common.T

    def joint(self, rows: Codes) -> tuple[Array, Array]:
        """Return means (n, d) and covariances (n, d, d) of the tasks at some rows of the moments."""
        return self._tasks.joint(rows)

    def parent_messages(self, step: int) -> Iterator[tuple[slice, ParentMessages]]:
        """Yield the messages of all tasks to their parents, ``step`` tasks at a time.

        A task's d = K p coefficients have the prior N(mean of a new task, level_cov in all blocks + interaction_cov),
        given the effects of the actions.
        """
        return parent_messages(self.moments, self.hierarchy, step, self.parents)

    def second_moments(self, scale: float = 1.0) -> SecondMoments:
        """Return second moments of all parts given the log, squares of means and of residuals times ``scale``."""
        root, units = self._root, self._units
        K, p = root.effects.shape
        action = np.einsum("aid,ajd->ij", root.effect_roots, root.effect_roots)
        action += scale * root.effects.T @ root.effects
        level, interaction, noise = np.zeros((p, p)), np.zeros((p, p)), np.zeros(K)
        of_tasks = np.zeros(len(units.tasks))
        for start in range(0, len(units.tasks), self._tasks.step):
            seen = np.arange(start, min(start + self._tasks.step, len(units.tasks)))
            block = self._tasks.block(units.tasks[seen])
            away, roots = block.level - root.mean, block.level_root - root.cov_root
            level += block.level_cov.sum(axis=0) + scale * away.T @ away
            level += np.tensordot(roots, roots, axes=([0, 2], [0, 2]))
            part = slice(units.starts[start], units.starts[seen[-1] + 1])
            task, code = units.task[part] - start, units.action[part]
            gains, cov, shift = block.shrinkage[task, code], block.cov[task, code], block.shift[task, code]
            parent = block.level[task] + root.effects[code]
            parent_root = block.level_root[task] + root.effect_roots[code]
            parent_cov = block.level_cov[task] + parent_root @ parent_root.swapaxes(1, 2)
            change = gains - np.eye(p)
            mean = shift + np.einsum("uij,uj->ui", change, parent)
            interaction += (cov + change @ parent_cov @ change.swapaxes(1, 2)).sum(
                axis=0
            ) + scale * mean.T @ mean
            theta, theta_cov = mean + parent, cov + gains @ parent_cov @ gains.swapaxes(1, 2)
            sums = unpack(units.piece(start, int(seen[-1]) + 1).rows, p + 1)
            G, B, c = sums[:, :p, :p], sums[:, :p, p], sums[:, p, p]
            square = c + np.einsum("ui,ui->u", theta, np.einsum("uij,uj->ui", G, theta) - 2 * B)
            residual = scale * np.maximum(square, 0.0) + np.einsum("uij,uij->u", G, theta_cov)
            noise += np.bincount(code, residual, K)
            of_tasks[seen] = np.bincount(task, residual, len(seen))
        return SecondMoments(action, level, interaction, noise, of_tasks, len(units.tasks), len(units.action))

    @cached_property
    def _table(self) -> PosteriorTable:
        prior_means, prior_covs = self.prior_arrays
        means, covs = self.arrays(slice(0, len(self.moments)))
        rows, offset = self.moments.rows.sum(axis=1), self.moments.unit_offset
        return PosteriorTable(self.moments.keys, means, covs, rows, plus(prior_means, offset), prior_covs)

    @cached_property
    def prior_arrays(self) -> tuple[Array, Array]:
        """Means (K, p), less the offset, and packed covariances of a task without rows."""
        new = self._tasks.block(np.array([-1]))
        covs = np.array([pack(new.cov_of(a)[0]) for a in range(self.moments.n_actions)])
        return new.means()[0], covs

    def arrays(self, part: slice) -> tuple[Array, Array]:
        """Return means (n, K, p) and packed covariances of all units of some tasks."""
        return self._tasks.arrays(*self.prior_arrays, part)

    def _code(self, action: int) -> int:
        K = self.moments.n_actions
        if not 0 <= action < K:
            raise InputError(
                f"There is no action {action!r}: the code of an action is its place in the feature map, 0 .. {K - 1}, "
                "as action_codes(ids) gives it."
            )
        return int(action)

    def _rows(self, *tasks: object, unseen: Unseen = "error") -> Codes:
        return np.array([self.moments.keys.row(task, unseen) for task in tasks], dtype=np.int64)

    def __repr__(self) -> str:
        return f"CrossedPosterior({self.moments!r}, log evidence {self.log_evidence:.6g})"


def parent_messages(
    moments: Moments,
    hierarchy: CrossedHierarchy,
    step: int,
    parents: Callable[[Codes], tuple[Array, Array]],
) -> Iterator[tuple[slice, ParentMessages]]:
    """Yield the messages of all tasks to their parents, ``step`` tasks at a time.

    ``parents`` gives means and roots of the parents of the tasks at some rows.
    """
    K, p = moments.n_actions, moments.unit_dim
    level_cov, interaction_cov = hierarchy.level_cov[:p, :p], hierarchy.interaction_cov[:p, :p]
    factor, _ = upper_factor(np.tile(level_cov, (K, K)) + np.kron(np.eye(K), interaction_cov))
    for start in range(0, len(moments.keys), step):
        part = slice(start, min(start + step, len(moments.keys)))
        n = part.stop - part.start
        moments_of_part = moments.at(part)
        scaled = moments_of_part.sums / hierarchy.noise_var[:, None]
        sums = replace(moments_of_part, sums=scaled).dense().sums
        rows, _ = up(sums, 1.0, factor, np.arange(n), n)
        yield part, ParentMessages(rows, *parents(np.arange(part.start, part.stop)))


def log_evidence(moments: Moments, noise_var: Array, log_det: float, root: Root) -> float:
    """Return log p(rewards | features, hierarchy) from the end of the way up."""
    constant = (moments.n_rows - moments.unit_dim) * np.log(2 * np.pi)
    constant += float(moments.rows.sum(axis=0) @ np.log(noise_var)) - float(moments.log_precision.sum())
    return -0.5 * float(constant + log_det + root.log_det + root.square)


def _gaussian(mean: Array, cov: Array) -> Gaussian:
    return Gaussian.trusted(mean.copy(), (cov + cov.T) / 2)


def check_crossed(moments: Moments, hierarchy: CrossedHierarchy) -> None:
    """Raise where a crossed hierarchy does not fit the moments, or the moments are no sums of rows."""
    shape = hierarchy.n_actions, hierarchy.unit_dim
    if not moments.per_action or (moments.n_actions, moments.unit_dim) != shape:
        raise MismatchError(
            f"The moments have {moments.n_actions} actions of {moments.unit_dim} features, the hierarchy {shape[0]} of "
            f"{shape[1]}. Both must come from one feature map."
        )
    moments.refuse_negative()


def condition_crossed(
    moments: Moments, hierarchy: CrossedHierarchy, units: ObservedUnits | None = None
) -> CrossedPosterior:
    """Condition the crossed prior on the log.

    The way up takes O(K p^3) a task over the actions that it has, one product of (K p, p) matrices that all tasks
    share, and O((K p)^3) once. The way down is taken when asked for.

    Parameters
    ----------
    moments : Moments
        m tasks of K actions of p features; any rank, including units and tasks without rows.
    hierarchy : CrossedHierarchy
        Of the same K and p.
    units : ObservedUnits, optional
        Those of the moments, divided by the noise of the hierarchy, where they are there already.

    Raises
    ------
    MismatchError
        Dimensions differ.
    NumericalError
        Sums that no rows can have; a direction of beta that no rows show.
    """
    if units is None:
        check_crossed(moments, hierarchy)
        units = ObservedUnits.of(moments, hierarchy.noise_var)
    messages = UnitMessages(units, hierarchy.interaction_cov)
    sums = RootSums.of(messages, hierarchy.level_cov)
    return CrossedPosterior(
        moments, hierarchy, messages, sums.log_det, solve_root(sums, hierarchy.action_cov)
    )
