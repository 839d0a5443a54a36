"""The crossed prior with groups above the tasks: the way up and down through levels.

With xi_g = (lambda_g, e_g1, ..., e_gK) of (K + 1) p coefficients, a group adds to those of its parent

    lambda_g = lambda_parent + u_g,  u_g ~ N(0, L_g)          e_ga = e_parent,a + gamma_ga,  gamma_ga ~ N(0, M_g)

and at the root xi = (beta, alpha). The tasks of a group tell lambda_g + e_ga, and their message is the end of the way
up of :mod:`steps`, [J'Pi J, J'Pi; Pi J, Pi] of (K + 1) p columns: dense for each group, never for a task.
Groups then take the steps of :mod:`steps` with the covariance of L_g and K times M_g, zero allowed, and the message of
all of them has the same form, so that the root is solved as without levels. On the way down a group is the root of its
tasks: (lambda_g, e_g) in place of (beta, alpha). Where A and all M are zero, e_ga = 0 exactly, and so is every
difference.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from hieropo._kernels.reference.small_matrices import FORMED
from hieropo._utils.arrays import Array, Codes
from hieropo._utils.packed import pack, unpack
from hieropo.errors import InputError
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.crossed.marginals import AboveTasks, TaskLaws
from hieropo.model.crossed.posterior import (
    CrossedPosterior,
    OneHierarchy,
    check_crossed,
    log_evidence,
    parent_messages,
)
from hieropo.model.crossed.steps import (
    GroupSums,
    ObservedUnits,
    Root,
    RootSums,
    TaskGroups,
    UnitMessages,
    solve_root,
)
from hieropo.model.gaussian import Gaussian
from hieropo.model.hierarchy import Grouped
from hieropo.model.posterior import parents_of
from hieropo.model.protocol import ParentMessages
from hieropo.model.steps import TreeLevel, square_roots, up, upper_factor
from hieropo.model.table import PosteriorTable
from hieropo.moments.statistics import Moments
from hieropo.rows.keys import Keys, Unseen


class Tree(NamedTuple):
    """Groups of the tasks of some moments, and the units of all tasks in the order of their groups.

    Attributes
    ----------
    keys : tuple of Keys
        Groups of each level, from the tasks upwards.
    parents : tuple of int arrays
        Place of the group of each task, of the parent of each group, ...; 0 at the top.
    units : ObservedUnits
        Tasks of a group stand side by side.
    groups : TaskGroups
        Of the observed tasks.
    """

    keys: tuple[Keys, ...]
    parents: tuple[Codes, ...]
    units: ObservedUnits
    groups: TaskGroups

    @classmethod
    def of(cls, moments: Moments, levels: Sequence[Grouped], noise_var: Array) -> "Tree":
        """Find the groups of all tasks.

        Raises
        ------
        InputError
            A task or a group is in no group of the level above.
        """
        keys, parents = [moments.keys], []
        for level in range(len(levels) + 1):
            above, parent = parents_of(keys[-1], levels, level)
            keys.append(above)
            parents.append(parent)
        units = ObservedUnits.of(moments, noise_var)
        order = np.argsort(parents[0][units.tasks], kind="stable")
        units = units.of_tasks(order)
        groups = TaskGroups(parents[0][units.tasks], len(keys[1]))
        return cls(tuple(keys[1:-1]), tuple(parents), units, groups)

    def over(self, factor: float) -> "Tree":
        """Return the tree where all noise variances are ``factor`` times as large."""
        return self._replace(units=self.units.over(factor))


def group_cov(level_cov: Array, interaction_cov: Array, n_actions: int) -> Array:
    """Covariance of (u_g, gamma_g1, ..., gamma_gK)."""
    p = len(level_cov)
    cov = np.zeros(((n_actions + 1) * p,) * 2)
    cov[:p, :p] = level_cov
    cov[p:, p:] = np.kron(np.eye(n_actions), interaction_cov)
    return cov


def _group_level(rows: Array, level_cov: Array, interaction_cov: Array, n_actions: int) -> TreeLevel:
    """Groups of one level, with the root of :func:`group_cov` from those of its blocks."""
    p, K = len(level_cov), n_actions
    (first, regular), (other, also) = upper_factor(level_cov), upper_factor(interaction_cov)
    factor = np.zeros(((K + 1) * p,) * 2)
    factor[:p, :p] = first
    for a in range(1, K + 1):
        factor[a * p : a * p + p, a * p : a * p + p] = other
    return TreeLevel(rows, 1.0, factor, regular and also)


def climb(
    messages: GroupSums, tree: Tree, covs: Sequence[tuple[Array, Array]], n_actions: int
) -> tuple[RootSums, list[TreeLevel]]:
    """Integrate all groups out: the message to the root, and the groups of each level.

    ``covs`` are (L_g, M_g) of each level.
    """
    p = len(covs[0][0])
    row, log_det, nodes = _climb(messages.packed(), tree.parents[1:], covs, n_actions)
    return RootSums.of_packed(row, n_actions, p, messages.log_det + log_det), nodes


def _climb(
    rows: Array, parents: Sequence[Codes], covs: Sequence[tuple[Array, Array]], n_actions: int
) -> tuple[Array, float, list[TreeLevel]]:
    """Packed message to the root of groups with the messages ``rows``, log determinants, and groups of each level."""
    log_det, nodes = 0.0, []
    for parent, (level_cov, interaction_cov) in zip(parents, covs, strict=True):
        count = int(parent.max(initial=0)) + 1
        groups = _group_level(rows, level_cov, interaction_cov, n_actions)
        nodes.append(groups)
        rows, group_log_det = up(rows, 1.0, groups.factor, parent, count)
        log_det += group_log_det
    return rows[0], log_det, nodes


class GroupProfile(NamedTuple):
    """The messages of the groups of one level to their parents along M = m^2 F F'.

    With T the message of a group about (lambda, e), its level u_g integrated out, and y = (I (x) F)'[rows e of T] its
    rows in units of the effects' prior, S y's columns e in these units, S = Q diag(values) Q', L L' = I + m^2 S,

        message = T - m^2 (L^-1 y)'(L^-1 y) = T - (Q'y)' diag(m^2 / (1 + m^2 values)) (Q'y)

    Attributes
    ----------
    rows : (G, d + 1, d + 1) array
        T, d = (K + 1) p.
    effects : (G, K p, d + 1) array
        y.
    information : (G, K p, K p) array
        S.
    parent : (G,) int array
    log_det : float
        At m = 0.
    """

    rows: Array
    effects: Array
    information: Array
    parent: Codes
    log_det: float

    @classmethod
    def of(
        cls, messages: GroupSums, parent: Codes, level_cov: Array, interaction_factor: Array
    ) -> "GroupProfile | None":
        """Integrate the levels of groups out; None where their information is too large to be formed."""
        G, K, p = messages.score.shape
        d = (K + 1) * p
        rows, log_det = unpack(messages.packed(), d + 1), messages.log_det
        factor = upper_factor(level_cov)[0]
        level = factor.T @ rows[:, :p]
        information = np.eye(p) + level[:, :, :p] @ factor
        if not _diagonals(information).max(initial=1.0) <= FORMED:  # NaN is not
            return None
        root: Array = np.asarray(np.linalg.cholesky(information), dtype=np.float64)
        W = np.linalg.solve(root, level)
        rows -= W.swapaxes(1, 2) @ W
        log_det += 2.0 * float(np.log(_diagonals(root)).sum())
        effects = (interaction_factor.T @ rows[:, p:d].reshape(G, K, p, d + 1)).reshape(G, K * p, d + 1)
        inner = (effects[:, :, p:d].reshape(G, K * p, K, p) @ interaction_factor).reshape(G, K * p, K * p)
        return cls(rows, effects, (inner + inner.swapaxes(1, 2)) / 2, parent, log_det)

    def holds(self, sds: Array) -> bool:
        """Return True if the information is not too large to be formed beside the prior of each m."""
        return bool(np.square(sds).max() * _diagonals(self.information).max(initial=0.0) < FORMED)

    def at(self, sds: Array) -> list[tuple[Array, float]]:
        """Packed messages of the parents (n, q), and log determinants, for each m."""
        if sds.size > 1:
            values, vectors = np.linalg.eigh(self.information)
            values, roots = np.maximum(values, 0.0), vectors.swapaxes(1, 2) @ self.effects
            return [self._along(sd**2, values, roots) for sd in sds.tolist()]
        variance = float(sds[0]) ** 2
        inner = np.eye(self.information.shape[1]) + variance * self.information
        root: Array = np.asarray(np.linalg.cholesky(inner), dtype=np.float64)
        Y: Array = np.asarray(np.linalg.solve(root, self.effects), dtype=np.float64)
        log_det = self.log_det + 2.0 * float(np.log(_diagonals(root)).sum())
        return [(self._less(variance * Y, Y), log_det)]

    def _along(self, variance: float, values: Array, roots: Array) -> tuple[Array, float]:
        weight = variance / (1.0 + variance * values)
        log_det = self.log_det + float(np.log1p(variance * values).sum())
        return self._less(weight[:, :, None] * roots, roots), log_det

    def _less(self, left: Array, right: Array) -> Array:
        """Sums by parent of T - left'right, packed."""
        n, d = int(self.parent.max(initial=0)) + 1, self.rows.shape[1]
        if n == 1:
            return pack((self.rows.sum(axis=0) - left.reshape(-1, d).T @ right.reshape(-1, d))[None])
        sums = np.zeros((n, d, d))
        np.add.at(sums, self.parent, self.rows - left.swapaxes(1, 2) @ right)
        return pack(sums)


def _diagonals(matrices: Array) -> Array:
    return np.asarray(np.einsum("gii->gi", matrices))


class _GroupLaws(NamedTuple):
    """Means (n, d) and roots (n, d, D) of the groups of one level, d = (K + 1) p."""

    means: Array
    roots: Array

    def above(self, p: int) -> AboveTasks:
        """Return the groups in place of (beta, alpha)."""
        n, _, D = self.roots.shape
        return AboveTasks(
            self.means[:, :p], self.roots[:, :p], self.means[:, p:].reshape(n, -1, p),
            self.roots[:, p:].reshape(n, -1, p, D),
        )  # fmt: skip


def _descended(nodes: TreeLevel, cov: Array, parent: Codes, above: _GroupLaws) -> _GroupLaws:
    """Laws of groups from those of their parents; own columns stand behind those of the parent."""
    n, d = len(parent), len(cov)
    groups = slice(0, n)
    shift, packed = nodes.given(np.zeros((n, d)), groups)
    shrinkage = nodes.shrinkage(groups)
    constant = np.flatnonzero(np.diagonal(cov) == 0)
    shrinkage[:, constant] = np.eye(d)[constant]  # exactly as the parent
    means = shift + np.einsum("nij,nj->ni", shrinkage, above.means[parent])
    return _GroupLaws(
        means, np.concatenate([shrinkage @ above.roots[parent], square_roots(unpack(packed, d))], axis=2)
    )


@dataclass(frozen=True, slots=True, eq=False)
class Ladder:
    """The way up of some tasks, with groups or without, in steps that hierarchies of a grid share.

    Attributes
    ----------
    units : ObservedUnits
        Of all tasks; used without groups.
    tree : Tree or None
    """

    units: ObservedUnits
    tree: Tree | None

    @classmethod
    def of(
        cls, moments: Moments, levels: Sequence[Grouped], noise_var: Array, *, divided: bool = True
    ) -> Self:
        """Divide sums by the noise, at once or, for few ways up, where it is needed; errors as :meth:`Tree.of`."""
        tree = Tree.of(moments, levels, noise_var) if levels else None
        units = ObservedUnits.of if divided and tree is None else ObservedUnits.undivided
        return cls(units(moments, noise_var), tree)

    def from_units(self, interaction_cov: Array) -> UnitMessages:
        """Integrate interactions of actions and tasks out."""
        return UnitMessages(self.units if self.tree is None else self.tree.units, interaction_cov)

    def from_tasks(self, messages: UnitMessages, level_cov: Array) -> RootSums | GroupSums:
        """Integrate levels of tasks out."""
        if self.tree is None:
            return RootSums.of(messages, level_cov)
        return GroupSums.of(messages, level_cov, self.tree.groups)

    def to_root(
        self, messages: RootSums | GroupSums, covs: Sequence[tuple[Array, Array]], first_sds: Array
    ) -> list[RootSums]:
        """Integrate groups out, for each standard deviation m_1 of the first level.

        ``covs`` are (L_g, M_g) of each level, that of the first level M_1 / m_1^2.
        """
        if isinstance(messages, RootSums):
            return [messages] * len(first_sds)
        assert self.tree is not None
        (level_cov, shape), K, p = covs[0], self.units.n_actions, self.units.dim
        parents = self.tree.parents[1:]
        profile = GroupProfile.of(messages, parents[0], level_cov, upper_factor(shape)[0])
        if profile is None or not profile.holds(first_sds):
            of_sds = ([(level_cov, sd**2 * shape), *covs[1:]] for sd in first_sds.tolist())
            return [climb(messages, self.tree, level_covs, K)[0] for level_covs in of_sds]
        sums = []
        for rows, first_log_det in profile.at(first_sds):
            row, log_det, _ = _climb(rows, parents[1:], covs[1:], K)
            sums.append(RootSums.of_packed(row, K, p, first_log_det + log_det))
        return sums


class TreePosterior(OneHierarchy):
    """Posterior of every task under the crossed prior with levels; made by :func:`condition_tree`.

    Attributes
    ----------
    moments : Moments
    hierarchy : CrossedHierarchy
    log_evidence, square : float
        As of :class:`CrossedPosterior`.
    """

    moments: Moments
    hierarchy: CrossedHierarchy
    log_evidence: float
    square: float
    hyper: Gaussian

    def __init__(
        self, moments: Moments, hierarchy: CrossedHierarchy, tree: Tree, messages: UnitMessages,
        groups: GroupSums,
    ) -> None:  # fmt: skip
        self.moments, self.hierarchy = moments, hierarchy
        level_covs = [(level.level_cov, level.interaction_cov) for level in hierarchy.levels]
        sums, nodes = climb(groups, tree, level_covs, hierarchy.n_actions)
        root = solve_root(sums, hierarchy.action_cov)
        self.log_evidence = log_evidence(moments, hierarchy.noise_var, sums.log_det, root)
        self.square = root.square
        p = moments.unit_dim
        mean = np.concatenate([root.mean, root.effects.reshape(-1)])
        roots = np.concatenate([root.cov_root, root.effect_roots.reshape(-1, root.cov_root.shape[1])])
        laws = [_GroupLaws(mean[None], roots[None])]
        covs = [group_cov(*pair, moments.n_actions) for pair in level_covs]
        for k in reversed(range(len(nodes))):
            laws.append(_descended(nodes[k], covs[k], tree.parents[k + 1], laws[-1]))
        self._tree, self._laws = tree, laws[::-1]  # of the first level, ..., of the root
        self._tasks = TaskLaws(
            moments, hierarchy, messages, self._laws[0].above(p), np.append(tree.parents[0], 0)
        )
        self._top = self._alone(self._laws[-1])
        self.hyper = self._top.hyper

    def _alone(self, law: _GroupLaws) -> CrossedPosterior:
        """Posterior without tasks below some (lambda, e)."""
        none = self.moments.at(np.zeros(0, dtype=np.int64))
        messages = UnitMessages(
            ObservedUnits.of(none, self.hierarchy.noise_var), self.hierarchy.interaction_cov
        )
        above = law.above(self.moments.unit_dim)
        root = Root(above.mean[0], above.cov_root[0], above.effects[0], above.effect_roots[0], 0.0, 0.0)
        return CrossedPosterior(none, self.hierarchy, messages, 0.0, root)

    def action(self, action: int) -> Gaussian:
        """Return the law of beta + alpha_a; errors as :meth:`CrossedPosterior.action`."""
        return self._top.action(action)

    def new_action(self) -> Gaussian:
        """Return the law of beta + alpha_a of an action that the feature map does not have."""
        return self._top.new_action()

    def task(self, task: object, *, unseen: Unseen = "error") -> Gaussian:
        """Return the joint law of all d coefficients of a task; errors as :meth:`CrossedPosterior.unit`."""
        return self.task_at(self.moments.keys.row(task, unseen))

    def unit(self, task: object, action: int, *, unseen: Unseen = "error") -> Gaussian:
        """Return the law of theta_sa, in R^p; errors as :meth:`CrossedPosterior.unit`."""
        law, p = self.task(task, unseen=unseen), self.moments.unit_dim
        block = slice(self._top._code(action) * p, self._top._code(action) * p + p)
        return Gaussian.trusted(law.mean[block].copy(), law.cov[block, block].copy())

    def new_task(self, parent: object = None, *, level: int = 0) -> Gaussian:
        """Return the joint law of all d coefficients of a task that has no rows.

        Parameters
        ----------
        parent : node, optional
            Its group; without it the task is of a new group in each level.
        level : int
            Of the group: 0 is the level just above the tasks. Of a higher one, groups between are new too.
        """
        return self._new(parent, level).new_task()

    def _new(self, parent: object, level: int) -> CrossedPosterior:
        """Posterior of new tasks in a group, or in new groups."""
        if parent is None:
            level, row, law = len(self.hierarchy.levels), 0, self._laws[-1]
        else:
            row, law = self._place(level, parent), self._laws[level]
        mean, roots = law.means[row], law.roots[row]
        for new in self.hierarchy.levels[:level]:
            cov = group_cov(new.level_cov, new.interaction_cov, self.moments.n_actions)
            roots = np.concatenate([roots, square_roots(cov[None])[0]], axis=1)
        return self._alone(_GroupLaws(mean[None], roots[None]))

    def _place(self, level: int, node: object) -> int:
        if not 0 <= level < len(self.hierarchy.levels):
            raise InputError(
                f"There is no level {level}: this hierarchy has {len(self.hierarchy.levels)} above tasks."
            )
        return int(self._tree.keys[level].require([node])[0])

    def node(self, level: int, node: object) -> Gaussian:
        """Return the joint law of all d coefficients of a group: ``level`` 0 is the one just above the tasks.

        Raises
        ------
        InputError
            No such level.
        UnknownTaskError
            No such node.
        """
        law, row = self._laws[level], self._place(level, node)
        root = self._of_actions @ law.roots[row]
        return Gaussian.trusted(self._of_actions @ law.means[row], root @ root.T).plus(self.moments.offset)

    def parents(self, rows: Codes) -> tuple[Array, Array]:
        """Means (n, d), less the offset, and roots (n, d, D) of the groups of some tasks, given the log."""
        law, group = self._laws[0], self._tree.parents[0][rows]
        return law.means[group] @ self._of_actions.T, self._of_actions @ law.roots[group]

    @property
    def _of_actions(self) -> Array:
        """Matrix from (lambda, e) to lambda + e_a of all actions."""
        p, K = self.moments.unit_dim, self.moments.n_actions
        return np.concatenate([np.tile(np.eye(p), (K, 1)), np.eye(K * p)], axis=1)

    def table(self) -> PosteriorTable:
        """Return the laws of all units, each on its own."""
        new = self._new(None, 0).table()
        means, covs = self._tasks.arrays(new.prior_means, new.prior_covs)
        counts = self.moments.rows.sum(axis=1)
        return replace(new, keys=self.moments.keys, means=means, covs=covs, rows=counts)

    def along(self, vectors: Array, part: slice) -> tuple[Array, Array, Array]:
        """As :meth:`CrossedPosterior.along`; ``shared`` has columns of the task's own groups behind the common ones."""
        return self._tasks.along(vectors, part)

    def common_columns(self, row: int, part: slice) -> Array:
        """Return 1 for columns of ``shared`` that tasks of ``part`` have in common with one at a row, (n, D)."""
        places, d = np.arange(part.start, part.stop), (self.moments.n_actions + 1) * self.moments.unit_dim
        common = np.ones((len(places), self._laws[0].roots.shape[2]))
        last = common.shape[1]
        for parent in self._tree.parents[:-1]:
            places, row = parent[places], int(parent[row])
            common[:, last - d : last] = (places == row)[:, None]
            last -= d
        return common

    def total(self, vectors: Array) -> tuple[Array, Array]:
        """Mean (J,) and covariance (J, J) of sum_s v_js' theta_s over all tasks; as :meth:`CrossedPosterior.total`."""
        J = len(vectors)
        mean, cov = np.zeros(J), np.zeros((J, J))
        sums = np.zeros((len(self._laws[0].means), J, self._laws[0].roots.shape[2]))
        for part, means, within, shared in self._tasks.along_all(vectors):
            mean += means.sum(axis=0)
            cov += within.sum(axis=0)
            np.add.at(sums, self._tree.parents[0][part], shared)
        for parent in self._tree.parents[1:]:
            d = (self.moments.n_actions + 1) * self.moments.unit_dim
            group_columns = sums[:, :, -d:]
            cov += np.tensordot(group_columns, group_columns, axes=([0, 2], [0, 2]))
            above = np.zeros((int(parent.max(initial=0)) + 1, J, sums.shape[2] - d))
            np.add.at(above, parent, sums[:, :, :-d])
            sums = above
        return mean, cov + sums[0] @ sums[0].T

    def joint(self, rows: Codes) -> tuple[Array, Array]:
        """Return means (n, d) and covariances (n, d, d) of the tasks at some rows of the moments."""
        return self._tasks.joint(rows)

    def parent_messages(self, step: int) -> Iterator[tuple[slice, ParentMessages]]:
        """Yield the messages of all tasks to their groups, ``step`` tasks at a time."""
        return parent_messages(self.moments, self.hierarchy, step, self.parents)

    def __repr__(self) -> str:
        return f"TreePosterior({self.moments!r}, log evidence {self.log_evidence:.6g})"


def condition_tree(moments: Moments, hierarchy: CrossedHierarchy, tree: Tree | None = None) -> TreePosterior:
    """Condition a crossed prior with levels on the log.

    Beside what :func:`condition_crossed` takes, O((K p)^3) a group. ``tree`` is that of the moments, divided by the
    noise of the hierarchy, where it is there already.

    Raises
    ------
    MismatchError, NumericalError
        As :func:`condition_crossed`.
    InputError
        A task or a group is in no group of the level above.
    """
    if tree is None:
        check_crossed(moments, hierarchy)
        tree = Tree.of(moments, hierarchy.levels, hierarchy.noise_var)
    messages = UnitMessages(tree.units, hierarchy.interaction_cov)
    groups = GroupSums.of(messages, hierarchy.level_cov, tree.groups)
    return TreePosterior(moments, hierarchy, tree, messages, groups)
