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
from typing import Any, NamedTuple, Self

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.packed import pack, unpack
from hieropo.errors import InputError, UnknownTaskError
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.crossed.posterior import (
    CrossedPosterior,
    OneHierarchy,
    check_crossed,
    log_evidence,
    parent_messages,
)
from hieropo.model.crossed.steps import (
    ObservedUnits,
    Root,
    RootSums,
    UnitMessages,
    solve_root,
)
from hieropo.model.gaussian import Gaussian
from hieropo.model.hierarchy import Grouped
from hieropo.model.posterior import Unseen, parents_of
from hieropo.model.protocol import ParentMessages
from hieropo.model.steps import TreeLevel, square_roots, up
from hieropo.moments.units import UnitMoments
from hieropo.rows.keys import Keys


class Tree(NamedTuple):
    """Groups of the tasks of some moments, and the units of the tasks of each.

    Attributes
    ----------
    keys : tuple of Keys
        Groups of each level, from the tasks upwards.
    parents : tuple of int arrays
        Place of the group of each task, of the parent of each group, ...; 0 at the top.
    units : tuple of ObservedUnits
        Of the tasks of each group of the first level.
    rows : tuple of int arrays
        Rows of the moments of the tasks of each group.
    """

    keys: tuple[Keys, ...]
    parents: tuple[Codes, ...]
    units: tuple[ObservedUnits, ...]
    rows: tuple[Codes, ...]

    @classmethod
    def of(cls, moments: UnitMoments, levels: Sequence[Grouped], noise_var: Array) -> "Tree":
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
        order = np.argsort(parents[0], kind="stable")
        rows = tuple(np.split(order, np.cumsum(np.bincount(parents[0], minlength=len(keys[1])))[:-1]))
        units = tuple(ObservedUnits.of(moments.at(some), noise_var) for some in rows)
        return cls(tuple(keys[1:-1]), tuple(parents), units, rows)

    def over(self, factor: float) -> "Tree":
        """Return the tree where all noise variances are ``factor`` times as large."""
        return self._replace(units=tuple(units.over(factor) for units in self.units))


class GroupMessages(NamedTuple):
    """Messages of the tasks of each group about it.

    Attributes
    ----------
    rows : (G, q) array
        Packed, of (K + 1) p columns and the rewards.
    sums : tuple of RootSums
        The same, of each group.
    log_det : float
    """

    rows: Array
    sums: tuple[RootSums, ...]
    log_det: float

    @classmethod
    def of(cls, messages: Sequence[UnitMessages], level_cov: Array) -> "GroupMessages":
        """Take the step up from the units of each group."""
        sums = tuple(RootSums.of(one, level_cov) for one in messages)
        return cls(pack(np.array([_joined(one) for one in sums])), sums, sum(one.log_det for one in sums))


def unit_messages(tree: Tree, interaction_cov: Array) -> list[UnitMessages]:
    """Take the step up from the rows of each group's units."""
    return [UnitMessages(units, interaction_cov) for units in tree.units]


def _joined(sums: RootSums) -> Array:
    """Message about (lambda, e), ((K + 1) p + 1, (K + 1) p + 1)."""
    K, p = sums.score.shape
    d = (K + 1) * p
    whole = np.zeros((d + 1, d + 1))
    whole[:p, :p], whole[:p, d], whole[d, d] = sums.level[:p, :p], sums.level[:p, p], sums.level[p, p]
    whole[:p, p:d], whole[p:d, p:d] = sums.rows.reshape(p, K * p), sums.information.reshape(K * p, K * p)
    whole[p:d, d] = sums.score.reshape(-1)
    upper = np.triu(whole)
    return np.asarray(upper + np.triu(whole, 1).T)


def _parted(row: Array, n_actions: int, p: int, log_det: float) -> RootSums:
    """Message about (lambda, e) as the end of the way up."""
    K, d = n_actions, (n_actions + 1) * p
    whole = unpack(row[None], d + 1)[0]
    ends = np.append(np.arange(p), d)
    return RootSums(
        whole[np.ix_(ends, ends)].copy(), whole[:p, p:d].reshape(p, K, p).copy(),
        whole[p:d, p:d].reshape(K, p, K, p).copy(), whole[p:d, d].reshape(K, p).copy(), log_det,
    )  # fmt: skip


def group_cov(level_cov: Array, interaction_cov: Array, n_actions: int) -> Array:
    """Covariance of (u_g, gamma_g1, ..., gamma_gK)."""
    p = len(level_cov)
    whole = np.zeros(((n_actions + 1) * p,) * 2)
    whole[:p, :p] = level_cov
    whole[p:, p:] = np.kron(np.eye(n_actions), interaction_cov)
    return whole


def climb(
    messages: GroupMessages, tree: Tree, covs: Sequence[tuple[Array, Array]], n_actions: int
) -> tuple[RootSums, list[TreeLevel]]:
    """Integrate all groups out: the message to the root, and the groups of each level.

    ``covs`` are (L_g, M_g) of each level.
    """
    rows, log_det, nodes = messages.rows, messages.log_det, []
    p = len(covs[0][0])
    for parent, (level_cov, interaction_cov) in zip(tree.parents[1:], covs, strict=True):
        count = int(parent.max(initial=0)) + 1
        groups = TreeLevel.of(rows, 1.0, group_cov(level_cov, interaction_cov, n_actions))
        nodes.append(groups)
        rows, more = up(rows, 1.0, groups.factor, parent, count)
        log_det += more
    return _parted(rows[0], n_actions, p, log_det), nodes


class _Laws(NamedTuple):
    """Means (n, d) and roots (n, d, D) of the groups of one level, d = (K + 1) p."""

    means: Array
    roots: Array

    def root(self, group: int, p: int) -> Root:
        """Return one group in place of (beta, alpha)."""
        mean, root = self.means[group], self.roots[group]
        return Root(
            mean[:p], root[:p], mean[p:].reshape(-1, p), root[p:].reshape(-1, p, root.shape[1]), 0.0, 0.0
        )


def _descended(nodes: TreeLevel, cov: Array, parent: Codes, above: _Laws) -> _Laws:
    """Laws of groups from those of their parents; own columns stand behind those of the parent."""
    n, d = len(parent), len(cov)
    every = slice(0, n)
    shift, packed = nodes.given(np.zeros((n, d)), every)
    gains = nodes.shrinkage(every)
    still = np.flatnonzero(np.diagonal(cov) == 0)
    gains[:, still] = np.eye(d)[still]  # exactly as the parent
    means = shift + np.einsum("nij,nj->ni", gains, above.means[parent])
    return _Laws(
        means, np.concatenate([gains @ above.roots[parent], square_roots(unpack(packed, d))], axis=2)
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
    def of(cls, moments: UnitMoments, levels: Sequence[Grouped], noise_var: Array) -> Self:
        """Divide the sums by the noise; errors as :meth:`Tree.of`."""
        tree = Tree.of(moments, levels, noise_var) if levels else None
        return cls(ObservedUnits.of(moments, noise_var), tree)

    def from_units(self, interaction_cov: Array) -> list[UnitMessages]:
        """Integrate interactions of actions and tasks out."""
        if self.tree is None:
            return [UnitMessages(self.units, interaction_cov)]
        return unit_messages(self.tree, interaction_cov)

    def from_tasks(self, messages: list[UnitMessages], level_cov: Array) -> RootSums | GroupMessages:
        """Integrate levels of tasks out."""
        if self.tree is None:
            return RootSums.of(messages[0], level_cov)
        return GroupMessages.of(messages, level_cov)

    def to_root(self, messages: RootSums | GroupMessages, covs: Sequence[tuple[Array, Array]]) -> RootSums:
        """Integrate groups out, of which ``covs`` are (L_g, M_g) of each level."""
        if isinstance(messages, RootSums):
            return messages
        assert self.tree is not None
        return climb(messages, self.tree, covs, self.units.n_actions)[0]


class TreePosterior(OneHierarchy):
    """Posterior of every task under the crossed prior with levels; made by :func:`condition_tree`.

    Attributes
    ----------
    moments : UnitMoments
    hierarchy : CrossedHierarchy
    log_evidence, square : float
        As of :class:`CrossedPosterior`.
    """

    moments: UnitMoments
    hierarchy: CrossedHierarchy
    log_evidence: float
    square: float
    hyper: Gaussian

    def __init__(
        self, moments: UnitMoments, hierarchy: CrossedHierarchy, tree: Tree, messages: Sequence[UnitMessages],
        groups: GroupMessages,
    ) -> None:  # fmt: skip
        self.moments, self.hierarchy = moments, hierarchy
        own = [(level.level_cov, level.interaction_cov) for level in hierarchy.levels]
        sums, nodes = climb(groups, tree, own, hierarchy.n_actions)
        root = solve_root(sums, hierarchy.action_cov)
        self.log_evidence = log_evidence(moments, hierarchy.noise_var, sums.log_det, root)
        self.square = root.square
        p = moments.unit_dim
        mean = np.concatenate([root.mean, root.effects.reshape(-1)])
        roots = np.concatenate([root.cov_root, root.effect_roots.reshape(-1, root.cov_root.shape[1])])
        laws = [_Laws(mean[None], roots[None])]
        covs = [group_cov(*pair, moments.n_actions) for pair in own]
        for k in reversed(range(len(nodes))):
            laws.append(_descended(nodes[k], covs[k], tree.parents[k + 1], laws[-1]))
        self._tree, self._laws = tree, laws[::-1]  # of the first level, ..., of the root
        self._groups = [
            CrossedPosterior(moments.at(rows), hierarchy, units, of_group, self._laws[0].root(g, p))
            for g, (rows, units, of_group) in enumerate(zip(tree.rows, messages, groups.sums, strict=True))
        ]
        self._top = self._alone(self._laws[-1].root(0, p))
        self.hyper = self._top.hyper

    def _alone(self, root: Root) -> CrossedPosterior:
        """Posterior without tasks below some (lambda, e)."""
        none = self.moments.at(np.zeros(0, dtype=np.int64))
        messages = UnitMessages(
            ObservedUnits.of(none, self.hierarchy.noise_var), self.hierarchy.interaction_cov
        )
        sums = RootSums.of(messages, self.hierarchy.level_cov)
        return CrossedPosterior(none, self.hierarchy, messages, sums, root)

    def action(self, action: int) -> Gaussian:
        """Return the law of beta + alpha_a; errors as :meth:`CrossedPosterior.action`."""
        return self._top.action(action)

    def new_action(self) -> Gaussian:
        """Return the law of beta + alpha_a of an action that the feature map does not have."""
        return self._top.new_action()

    def task(self, task: object, *, unseen: Unseen = "error") -> Gaussian:
        """Return the joint law of all d coefficients of a task; errors as :meth:`CrossedPosterior.unit`."""
        row = int(self._top._rows(task, unseen="prior")[0])  # checks the id
        row = self.moments.keys.find(task)
        if row >= 0:
            return self._groups[int(self._tree.parents[0][row])].task(task)
        if unseen == "error":
            raise UnknownTaskError(self.moments.keys.unknown_message(task))
        return self.new_task()

    def unit(self, task: object, action: int, *, unseen: Unseen = "error") -> Gaussian:
        """Return the law of theta_sa, in R^p; errors as :meth:`CrossedPosterior.unit`."""
        whole, p = self.task(task, unseen=unseen), self.moments.unit_dim
        at = slice(self._top._code(action) * p, self._top._code(action) * p + p)
        return Gaussian.trusted(whole.mean[at].copy(), whole.cov[at, at].copy())

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
        p, K = self.moments.unit_dim, self.moments.n_actions
        if parent is None:
            level = len(self.hierarchy.levels)
            law = self._laws[-1]
            at = 0
        else:
            at, law = self._place(level, parent), self._laws[level]
        mean, roots = law.means[at], law.roots[at]
        for new in self.hierarchy.levels[:level]:
            own = square_roots(group_cov(new.level_cov, new.interaction_cov, K)[None])[0]
            roots = np.concatenate([roots, own], axis=1)
        return self._alone(_Laws(mean[None], roots[None]).root(0, p))

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
        law, at = self._laws[level], self._place(level, node)
        root = self._of_actions @ law.roots[at]
        return Gaussian.trusted(self._of_actions @ law.means[at], root @ root.T).plus(self.moments.offset)

    def parents(self, rows: Codes) -> tuple[Array, Array]:
        """Means (n, d), less the offset, and roots (n, d, D) of the groups of some tasks, given the log."""
        law, at = self._laws[0], self._tree.parents[0][rows]
        return law.means[at] @ self._of_actions.T, self._of_actions @ law.roots[at]

    @property
    def _of_actions(self) -> Array:
        """Matrix from (lambda, e) to lambda + e_a of all actions."""
        p, K = self.moments.unit_dim, self.moments.n_actions
        return np.concatenate([np.tile(np.eye(p), (K, 1)), np.eye(K * p)], axis=1)

    def table(self) -> Any:
        """Return the laws of all units, each on its own."""
        new = self._new(None, 0).table()
        m, K, p = len(self.moments), self.moments.n_actions, self.moments.unit_dim
        means, covs = np.empty((m, K, p)), np.empty((m, *new.prior_covs.shape))
        for rows, group in zip(self._tree.rows, self._groups, strict=True):
            some = group.table()
            means[rows], covs[rows] = some.means, some.covs
        counts = self.moments.rows.sum(axis=1)
        return replace(new, keys=self.moments.keys, means=means, covs=covs, rows=counts)

    def along(self, vectors: Array, part: slice) -> tuple[Array, Array, Array]:
        """As :meth:`CrossedPosterior.along`; ``shared`` has columns of the task's own groups behind the common ones."""
        n, J, _ = vectors.shape
        mean, own = np.empty((n, J)), np.empty((n, J, J))
        shared = np.empty((n, J, self._laws[0].roots.shape[2]))
        for _, at, local, group in self._groups_of(part):
            mean[at], own[at], shared[at] = group.along(np.ascontiguousarray(vectors[at]), local)
        return mean, own, shared

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

    def _groups_of(self, part: slice) -> Iterator[tuple[int, Codes, slice, CrossedPosterior]]:
        """Groups with tasks in a part of the rows: which, places in the part, rows of the group, its posterior."""
        for g, (rows, group) in enumerate(zip(self._tree.rows, self._groups, strict=True)):
            first, last = np.searchsorted(rows, [part.start, part.stop])
            if last > first:
                yield g, rows[first:last] - part.start, slice(int(first), int(last)), group

    def total(self, vectors: Array) -> tuple[Array, Array]:
        """Mean (J,) and covariance (J, J) of sum_s v_js' theta_s over all tasks; as :meth:`CrossedPosterior.total`."""
        J, m, _ = vectors.shape
        if (m, vectors.shape[2]) != (len(self.moments), self.dim):
            raise InputError(
                f"vectors have shape {vectors.shape}. A sum over tasks needs one vector of all coefficients a task: "
                f"shape (J, {len(self.moments)}, {self.dim}), in the order of the moments' tasks."
            )
        mean, cov = np.zeros(J), np.zeros((J, J))
        sums = np.zeros((len(self._groups), J, self._laws[0].roots.shape[2]))
        for g, rows, local, group in self._groups_of(slice(0, m)):
            means, own, shared = group.along(np.ascontiguousarray(vectors[:, rows].swapaxes(0, 1)), local)
            mean += means.sum(axis=0)
            cov += own.sum(axis=0)
            sums[g] = shared.sum(axis=0)
        for parent in self._tree.parents[1:]:
            d = (self.moments.n_actions + 1) * self.moments.unit_dim
            own_columns = sums[:, :, -d:]
            cov += np.tensordot(own_columns, own_columns, axes=([0, 2], [0, 2]))
            above = np.zeros((int(parent.max(initial=0)) + 1, J, sums.shape[2] - d))
            np.add.at(above, parent, sums[:, :, :-d])
            sums = above
        return mean, cov + sums[0] @ sums[0].T

    def joint(self, rows: Codes) -> tuple[Array, Array]:
        """Return means (n, d) and covariances (n, d, d) of the tasks at some rows of the moments."""
        means, covs = np.empty((len(rows), self.dim)), np.empty((len(rows), self.dim, self.dim))
        of = self._tree.parents[0][rows]
        for g in np.unique(of):
            at = np.flatnonzero(of == g)
            means[at], covs[at] = self._groups[g].joint(np.searchsorted(self._tree.rows[g], rows[at]))
        return means, covs

    def parent_messages(self, step: int) -> Iterator[tuple[slice, ParentMessages]]:
        """Yield the messages of all tasks to their groups, ``step`` tasks at a time."""
        return parent_messages(self.moments, self.hierarchy, step, self.parents)

    def dense_arrays(self) -> tuple[Array, Array]:
        """Return means (m, d) and packed covariances of all d coefficients of every task."""
        means, covs = self.joint(np.arange(len(self.moments)))
        return means, pack(covs)

    def __repr__(self) -> str:
        return f"TreePosterior({self.moments!r}, log evidence {self.log_evidence:.6g})"


def condition_tree(
    moments: UnitMoments, hierarchy: CrossedHierarchy, tree: Tree | None = None
) -> TreePosterior:
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
    messages = unit_messages(tree, hierarchy.interaction_cov)
    return TreePosterior(moments, hierarchy, tree, messages, GroupMessages.of(messages, hierarchy.level_cov))
