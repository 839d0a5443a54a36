"""The exact posterior of a hierarchy given the moments of a log."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from hieropo._utils.arrays import Array, Codes, pieces
from hieropo._utils.packed import packed_size, padded, unpack
from hieropo._utils.text import counted
from hieropo._utils.ties import ordered
from hieropo.errors import InputError, MismatchError, NumericalError
from hieropo.model.gaussian import Gaussian, minus, plus
from hieropo.model.hierarchy import Grouped, Hierarchy
from hieropo.model.in_shards import PosteriorInShards, refuse_groups
from hieropo.model.metadata import Design
from hieropo.model.protocol import ParentMessages
from hieropo.model.steps import Parents, TreeLevel, down, square_roots, up, upper_factor
from hieropo.model.table import PosteriorTable
from hieropo.moments.in_shards import MomentsInShards
from hieropo.moments.statistics import Moments
from hieropo.rows.ids import object_array
from hieropo.rows.keys import Keys, Unseen

_PIECE = 65_536  # tasks with metadata worked on at once
_UNSEEN = 6e4  # units of the last place that are rounding errors of the steps up; each feature adds 1e3


@dataclass(frozen=True, slots=True, eq=False)
class LinkedLevel(TreeLevel):
    """The nodes of one level of the tree with their ids and parents.

    Attributes
    ----------
    keys : Keys
        Ids of the nodes.
    parent : (n,) int array
        Row of each node's parent at the level above.
    design : Design or None
        Metadata of the nodes.
    """

    keys: Keys
    parent: Codes
    design: Design | None = None

    def _parents_of(self, means: Array, roots: Array, part: slice) -> tuple[Parents, Codes]:
        """Return the Gaussians of the parents of some nodes, and the row of each node's parent among them."""
        if self.design is not None:  # each node has its own projection of its parent
            parent_rows = self.parent[part]
            means, roots = self.design.project_roots(means[parent_rows], roots[parent_rows], part)
            return Parents.of(means, roots, self.factor, regular=self.regular), np.arange(len(parent_rows))
        if part.stop - part.start == 1:
            parent_rows = self.parent[part]
            return self._parents(means[parent_rows], roots[parent_rows]), np.zeros(1, dtype=np.int64)
        return self._parents(means, roots), self.parent[part]

    def _parents(self, means: Array, roots: Array) -> Parents:
        return Parents.of(means, roots, self.factor, regular=self.regular)

    def posteriors(self, means: Array, roots: Array, part: slice) -> tuple[Array, Array]:
        """Return means and packed covariances of some nodes."""
        parents, parent_rows = self._parents_of(means, roots, part)
        node_means, covs, _ = down(self.rows[part], self.scale, self.factor, parent_rows, parents)
        return node_means, covs

    def given_parents(self, part: slice) -> tuple[Array, Array]:
        """Return packed covariances Sigma~ of some nodes given their parents, and M Z (n, d, D), M the shrinkage."""
        d, rows = self.factor.shape[0], self.rows[part]
        zero, known = np.zeros(len(rows), dtype=np.int64), (np.zeros((1, d)), np.zeros((1, d, d)))
        fixed = Parents(*known, np.zeros((0, d, d)), lower=True)
        covs = down(rows, self.scale, self.factor, zero, fixed)[1]
        shrinkage = self.shrinkage(part)
        return covs, shrinkage if self.design is None else shrinkage @ self.design.matrix(part)


class Posterior:
    """Posterior of every task, every group and mu, given the log and a hierarchy; made by :func:`condition`.

    Attributes
    ----------
    hyper : Gaussian
        Hyper-posterior N(mu-bar, Sigma-bar) of mu.
    root : Gaussian
        The same of mu less the offset of the moments, as the steps along the tree take all coefficients.
    log_evidence : float
        log p(rewards | phi, hierarchy); with a flat hyper-prior the REML one (mu integrated over Lebesgue measure).
    tree_levels : list of LinkedLevel
        The levels of the tree, tasks first.
    root_message : (q,) array
        Packed sums (P, b) of the messages to the root.
    """

    hyper: Gaussian

    def __init__(
        self,
        moments: Moments,
        hierarchy: Hierarchy,
        tree_levels: list[LinkedLevel],
        root: Gaussian,
        log_evidence: float,
        root_message: Array,
    ) -> None:
        self.moments = moments
        self.hierarchy = hierarchy
        self.root = root
        self.hyper = root.plus(moments.offset)
        self.log_evidence = log_evidence
        self.tree_levels = tree_levels
        self.root_message = root_message

    @property
    def dim(self) -> int:
        """The number of features d."""
        return self.hierarchy.dim

    @property
    def weights(self) -> Array:
        """The weight 1 of the one hierarchy, (1,)."""
        return np.ones(1)

    @property
    def noise_variances(self) -> Array:
        """The noise variance of all rows, (1,)."""
        return np.atleast_1d(self.hierarchy.noise_var)

    @property
    def central_hierarchy(self) -> Hierarchy:
        """The hierarchy itself."""
        return self.hierarchy

    def parts(self) -> Iterator["Posterior"]:
        """Yield the posterior under each hierarchy: this one."""
        yield self

    def central(self) -> "Posterior":
        """Return the posterior under the central hierarchy: this one."""
        return self

    def task_slices(self, width: int) -> Iterator[slice]:
        """Yield slices of tasks that are worked on at once, where each task takes ``width`` numbers."""
        return pieces(len(self.moments.keys), width)

    @cached_property
    def _above(self) -> list[tuple[Array, Array]]:
        """For each level, tasks first, means and square roots of the covariances of all parents."""
        above: list[tuple[Array, Array]] = []
        means, covs = self.root.mean[None], self.root.cov[None]
        for level in reversed(self.tree_levels):
            above.append((means, square_roots(covs)))
            if level is not self.tree_levels[0]:
                means, packed = level.posteriors(*above[-1], slice(0, len(level.keys)))
                covs = unpack(packed, level.factor.shape[0])
        return above[::-1]

    def _gaussian(self, level: int, row: int) -> Gaussian:
        """Return the posterior of a node, less the offset."""
        mean, cov = self.tree_levels[level].posteriors(*self._above[level], slice(row, row + 1))
        return Gaussian.trusted(mean[0], unpack(cov[0], mean.shape[1]))

    def task(self, task: object, *, unseen: Unseen = "prior") -> Gaussian:
        """Return the posterior of theta of one task, equation (4) of arXiv 2212.04720.

        A task that is not in the log gets the result of :meth:`new_task`, or an error, by ``unseen``.

        Raises
        ------
        UnknownTaskError
            The task is not in the log and ``unseen`` is ``"error"``.
        """
        row = self.moments.keys.row(task, unseen)
        return self.new_task() if row < 0 else self._gaussian(0, row).plus(self.moments.offset)

    def new_task(
        self, parent: object = None, *, level: int = 0, metadata: ArrayLike | None = None
    ) -> Gaussian:
        """Return the posterior of a task that has no rows, N(mu-bar, Sigma_0 + ... + Sigma-bar).

        Parameters
        ----------
        parent : node, optional
            The group of the task, where the hierarchy has groups; without it the group is unknown.
        level : int
            Level of the group: 0 is the level just above the tasks. With a higher one, the groups between are new too.
        metadata : (c,) array, optional
            Metadata of the task, where the hierarchy has metadata; without them they are drawn from those of the tasks
            of the log.
        """
        parent_posterior, cov = self.root, self.hierarchy.task_cov
        if parent is not None:
            parent_posterior = self._node(level, parent)
        for new_level in self.hierarchy.levels[: None if parent is None else level]:
            cov = cov + new_level.cov
        metadata_of_log, design = self.hierarchy.metadata, self.tree_levels[0].design
        if metadata_of_log is None or design is None:
            if metadata is not None:
                raise InputError(
                    "This hierarchy has no metadata, so that metadata of a task cannot be used. Leave them out."
                )
            mean, between = parent_posterior.mean.copy(), parent_posterior.cov
        elif metadata is None:
            mean, between = design.average(parent_posterior.mean, parent_posterior.cov)
        else:
            Z = metadata_of_log.one(self.dim, metadata)
            mean, between = Z @ parent_posterior.mean, Z @ parent_posterior.cov @ Z.T
        return Gaussian.trusted(mean, between + cov).plus(self.moments.offset)

    def node(self, level: int, node: object) -> Gaussian:
        """Return the posterior of a group: ``level`` 0 is the one just above the tasks.

        Raises
        ------
        InputError
            No such level.
        UnknownTaskError
            No such node.
        """
        if not 0 <= level < len(self.hierarchy.levels):
            raise InputError(
                f"There is no level {level}: this hierarchy has {len(self.hierarchy.levels)} levels above the tasks."
            )
        group, d = self._node(level, node), self.dim
        return Gaussian.trusted(group.mean[:d].copy(), group.cov[:d, :d].copy()).plus(self.moments.offset)

    def _node(self, level: int, node: object) -> Gaussian:
        """Return the posterior of a group's coefficients, less the offset, and of those of the metadata."""
        return self._gaussian(level + 1, int(self.tree_levels[level + 1].keys.require([node])[0]))

    def cov_between(self, first: object, second: object) -> Array:
        """Return cov(theta_first, theta_second | log), shape (d, d): M_s cov(ancestor) M_z' through the tree.

        Raises
        ------
        UnknownTaskError
            One of them is not in the log.
        """
        rows = [int(row) for row in self.moments.keys.require([first, second])]
        if rows[0] == rows[1]:
            return self._gaussian(0, rows[0]).cov.copy()
        paths = [np.eye(self.dim), np.eye(self.dim)]  # products of the shrinkages up to the common ancestor
        for k, level in enumerate(self.tree_levels):
            steps = [level.given_parents(slice(row, row + 1))[1][0] for row in rows]
            paths = [path @ step for path, step in zip(paths, steps, strict=True)]
            rows = [int(level.parent[row]) for row in rows]
            if rows[0] == rows[1]:
                last = k + 1 == len(self.tree_levels)
                ancestor = self.hyper.cov if last else self._gaussian(k + 1, rows[0]).cov
                return paths[0] @ ancestor @ paths[1].T
        raise AssertionError("two tasks without a common root")  # pragma: no cover

    def across(self, row: int, vectors: Array, others: Array, part: slice) -> Array:
        """Return cov(v_j' theta_row, w_zl' theta_z | log) (J, n, L), for v (J, d) and w (n, L, d), tasks z of ``part``.

        As in :meth:`cov_between`, through the nearest common ancestor of the two tasks.
        """
        places = np.arange(part.start, part.stop)
        joined = places == row
        found = np.zeros((len(vectors), *others.shape[:2]))
        if joined.any():
            found[:, joined] = (vectors @ self._gaussian(0, row).cov @ others[joined][0].T)[:, None]
        for k, level in enumerate(self.tree_levels):
            vectors = vectors @ level.given_parents(slice(row, row + 1))[1][0]
            gains = (
                level.given_parents(part)[1]
                if k == 0
                else level.given_parents(slice(0, len(level.keys)))[1][places]
            )
            others, places, row = others @ gains, level.parent[places], int(level.parent[row])
            last = k + 1 == len(self.tree_levels)
            ancestor = self.root.cov if last else self._gaussian(k + 1, row).cov
            met = ~joined & (places == row)
            found[:, met] = np.einsum("ji,nli->jnl", vectors @ ancestor, others[met])
            joined |= met
        return found

    def prior_mean(self, row: int) -> Array:
        """Return the mean (d,) of the task at a row of the moments, were all rewards of the log 0."""
        hyper = self.hierarchy.hyper
        if hyper is None:
            return np.zeros(self.dim)
        message = self.root_message[None].copy()
        message[0, packed_size(hyper.dim) :] = 0.0
        mean = _root_given(message, hyper).mean
        path = np.eye(self.dim)
        for level in self.tree_levels:
            path = path @ level.given_parents(slice(row, row + 1))[1][0]
            row = int(level.parent[row])
        return np.asarray(path @ mean)

    def means(self, part: slice) -> Array:
        """Return the means (n, d) of some tasks."""
        return self.tasks(part)[0]

    def tasks(self, part: slice) -> tuple[Array, Array]:
        """Return means (n, d) and packed covariances of some tasks, from the table where it exists already."""
        if "_table" in self.__dict__:
            return self._table.means[part], self._table.covs[part]
        means, covs = self.tree_levels[0].posteriors(*self._above[0], part)
        return plus(means, self.moments.offset), covs

    def mixtures(self, vectors: Array, part: slice) -> Iterator[tuple[Array, Array, Array]]:
        """Yield weights (n,), means and variances (n, J) of v' theta_s of the tasks in ``part``: one Gaussian."""
        yield np.ones(len(vectors)), *self.project(vectors, part)

    def project(self, vectors: Array, part: slice) -> tuple[Array, Array]:
        """Return means and variances (n, J) of v' theta_s of the tasks in ``part``, for vectors (n, J, d)."""
        return projected(*self.tasks(part), vectors)

    def joint(self, rows: Codes) -> tuple[Array, Array]:
        """Return means (n, d) and covariances (n, d, d) of the tasks at some rows of the moments, ascending."""
        d = self.dim
        means, covs = np.empty((len(rows), d)), np.empty((len(rows), packed_size(d)))
        for part in self.task_slices(d * d):
            first, last = np.searchsorted(rows, [part.start, part.stop])
            if first < last:
                span = slice(int(rows[first]), int(rows[last - 1]) + 1)
                span_means, span_covs = self.tasks(span)
                means[first:last] = span_means[rows[first:last] - span.start]
                covs[first:last] = span_covs[rows[first:last] - span.start]
        return means, unpack(covs, d)

    def total(self, vectors: Array) -> tuple[Array, Array]:
        """Return mean (J,) and covariance (J, J) of sum_s v_js' theta_s over all tasks, for vectors (J, m, d).

        Given its parent a task is independent of all others. So one pass up the tree carries the vectors along: every
        node adds v' Sigma~ v to the variance and sends Z' M' v to its parent, where the vectors of the children are
        summed; the root adds k' Sigma-bar k.
        """
        J, m, d = vectors.shape
        mean, cov = np.zeros(J), np.zeros((J, J))
        for part in pieces(m, d * (d + J)):
            means, _ = self.tasks(part)
            mean += np.einsum("jsi,si->j", vectors[:, part], means)
        child_vectors = vectors
        for k, level in enumerate(self.tree_levels):
            top = k + 1 == len(self.tree_levels)
            parent_vectors = np.zeros((1 if top else len(self.tree_levels[k + 1].keys), J, self.hyper.dim))
            for part in pieces(len(level.keys), self.hyper.dim * (d + J)):
                covs, shrinkage = level.given_parents(part)
                v = child_vectors[:, part].swapaxes(0, 1)  # (n, J, d)
                cov += np.tensordot(v @ unpack(covs, v.shape[2]), v, axes=([0, 2], [0, 2]))
                np.add.at(parent_vectors, level.parent[part], v @ shrinkage)
            child_vectors = parent_vectors.swapaxes(0, 1)
        root = child_vectors[:, 0]
        return mean, cov + root @ self.hyper.cov @ root.T

    def parent_messages(self, step: int) -> Iterator[tuple[slice, ParentMessages]]:
        """Yield the messages of all tasks to their parents, ``step`` tasks at a time."""
        tasks = self.tree_levels[0]
        means, roots = self._above[0]
        for start in range(0, len(tasks.keys), step):
            part = slice(start, min(start + step, len(tasks.keys)))
            n = part.stop - part.start
            rows, _ = up(tasks.rows[part], tasks.scale, tasks.factor, np.arange(n), n)
            parents = means[tasks.parent[part]], roots[tasks.parent[part]]
            if tasks.design is not None:
                parents = tasks.design.project_roots(*parents, part)
            yield part, ParentMessages(rows, *parents)

    def table(self) -> PosteriorTable:
        """Return the posteriors of all tasks at once."""
        return self._table

    @cached_property
    def _table(self) -> PosteriorTable:
        m = len(self.moments)
        if self.tree_levels[0].design is None or m <= _PIECE:
            means, covs = self.tasks(slice(0, m))
        else:
            tables = [self.tasks(slice(start, min(start + _PIECE, m))) for start in range(0, m, _PIECE)]
            means, covs = (np.concatenate(column) for column in zip(*tables, strict=True))
        return PosteriorTable.joint(self.moments.keys, means, covs, self.moments.rows, self.new_task())

    def __repr__(self) -> str:
        size = f"{counted(len(self.moments), 'task')}, {counted(self.dim, 'feature')}"
        return f"Posterior({size}, log evidence {self.log_evidence:.6g})"


def projected(means: Array, covs: Array, vectors: Array) -> tuple[Array, Array]:
    """Return means and variances (n, J) of v' theta, from means (n, d), packed covariances and vectors (n, J, d)."""
    variances = ((vectors @ unpack(covs, vectors.shape[2])) * vectors).sum(axis=2)
    return np.einsum("nji,ni->nj", vectors, means), variances


def condition(moments: Moments, hierarchy: Hierarchy) -> Posterior:
    """Return the posterior given the log: one pass up the tree; the pass down is taken when a view needs it.

    Parameters
    ----------
    moments : Moments
        m tasks of d features; any rank, including tasks without rows.
    hierarchy : Hierarchy
        Of the same d.

    Raises
    ------
    MismatchError
        Dimensions differ.
    InputError
        A task of the log has no parent in the tree.
    NumericalError
        Sums that no rows can have; or a flat hyper-prior with a direction in which no features vary.
    """
    moments = moments.dense()
    if moments.dim != hierarchy.dim:
        raise MismatchError(
            f"The moments have {moments.dim} features, the hierarchy {hierarchy.dim}. Both must come from one "
            "feature map."
        )
    if hierarchy.levels:
        moments = moments.covering(Keys(object_array(list(hierarchy.levels[0].parent))))
    design = None
    if hierarchy.metadata is not None:
        moments = moments.covering(hierarchy.metadata.tasks)
        design = hierarchy.metadata.design(hierarchy.dim, moments.keys)
    moments.refuse_negative()
    tree_levels: list[LinkedLevel] = []
    keys, rows, scale = moments.keys, moments.sums, 1.0 / hierarchy.noise_var
    log_det = 0.0
    covs = [hierarchy.task_cov, *(level.cov for level in hierarchy.levels)]
    for k, cov in enumerate(covs):
        factor, regular = upper_factor(cov if k == 0 else padded(cov, hierarchy.root_dim))
        parents_keys, parent = parents_of(keys, hierarchy.levels, k)
        tree_levels.append(
            LinkedLevel(rows, scale, factor, regular, keys, parent, design if k == 0 else None)
        )
        if k == 0 and design is not None:
            messages, part_log_det = up(rows, scale, factor, np.arange(len(keys)), len(keys))
            rows = design.parent_messages(messages, parent, len(parents_keys))
        else:
            rows, part_log_det = up(rows, scale, factor, parent, len(parents_keys))
        keys, scale, log_det = parents_keys, 1.0, log_det + part_log_det
    root, rest = _root(rows[0], hierarchy, moments.offset)
    log_evidence = -0.5 * (_of_noise(moments, hierarchy) + log_det + rest)
    return Posterior(moments, hierarchy, tree_levels, root, log_evidence, rows[0])


def _of_noise(moments: Moments, hierarchy: Hierarchy) -> float:
    """Return the part of -2 log evidence that the rows' own variances have."""
    noise = moments.n_rows * np.log(2 * np.pi * hierarchy.noise_var)
    return float(noise - float(moments.log_precision.sum()))


def condition_in_shards(moments: MomentsInShards, hierarchy: Hierarchy) -> PosteriorInShards:
    """Return the posterior given a log in shards: one pass up over all shards; tasks are computed shard by shard.

    Parameters
    ----------
    moments : MomentsInShards
    hierarchy : Hierarchy
        Of two levels without metadata.

    Raises
    ------
    InputError
        The hierarchy has levels or metadata.
    MismatchError, NumericalError
        As :func:`condition`.
    """
    refuse_groups(hierarchy.levels, hierarchy.metadata)
    moments = moments.dense()
    if moments.dim != hierarchy.dim:
        raise MismatchError(
            f"The moments have {moments.dim} features, the hierarchy {hierarchy.dim}. Both must come from one "
            "feature map."
        )
    scale, (factor, regular) = 1.0 / hierarchy.noise_var, upper_factor(hierarchy.task_cov)
    message, log_det = np.zeros((1, packed_size(moments.dim + 1))), 0.0

    def message_of(shard: Moments) -> tuple[Array, float]:
        shard.refuse_negative()
        return up(shard.sums, scale, factor, np.zeros(len(shard), dtype=np.int64), 1)

    for part, part_log_det in moments.map(message_of):
        message, log_det = message + part, log_det + part_log_det
    root, rest = _root(message[0], hierarchy, moments.offset)
    log_evidence = -0.5 * (_of_noise(moments.total, hierarchy) + log_det + rest)

    def of_tasks(part: Moments) -> Posterior:
        tasks = part.dense()
        parent = np.zeros(len(tasks), dtype=np.int64)
        level = LinkedLevel(tasks.sums, scale, factor, regular, tasks.keys, parent)
        return Posterior(tasks, hierarchy, [level], root, log_evidence, message[0])

    return PosteriorInShards(moments, hierarchy, of_tasks)


def parents_of(keys: Keys, levels: Sequence[Grouped], level: int) -> tuple[Keys, Codes]:
    """Return the parents of the nodes ``keys``, and the row of each node's parent among them."""
    if level == len(levels):
        return Keys(object_array(["root"])), np.zeros(len(keys), dtype=np.int64)
    grouping = levels[level]
    try:
        ids = [grouping.parent[key] for key in keys.values.tolist()]
    except KeyError as error:
        raise InputError(
            f"{error.args[0]!r} has no parent at level {grouping.name or level!r}, and every task of the log needs "
            "one at each level. Add it to Level(parent=...), or leave its rows out."
        ) from None
    return Keys.factorize(object_array(ids))


def _root(packed: Array, hierarchy: Hierarchy, offset: Array | None) -> tuple[Gaussian, float]:
    """Return the hyper-posterior of mu less the offset, and -2 times its part of the log evidence."""
    d = hierarchy.root_dim
    joint = unpack(packed, d + 1)
    P, b, c = joint[:d, :d], joint[:d, d], float(joint[d, d])
    if hierarchy.hyper is None:
        root, log_det = flat_root(P, b)
        return root, c - float(b @ root.mean) + log_det - d * np.log(2 * np.pi)
    prior = hierarchy.hyper.plus(minus(offset))
    root = _root_given(packed[None].copy(), prior)
    factor, _ = upper_factor(prior.cov)
    zero = np.zeros(1, dtype=np.int64)
    shifted = packed[None].copy()
    e = b - P @ prior.mean
    shifted[0, packed_size(d) : packed_size(d) + d] = e
    shifted[0, -1] = c - float((b + e) @ prior.mean)
    remainder, log_det = up(shifted, 1.0, factor, zero, 1)
    return root, float(remainder[0, -1]) + log_det


def _root_given(message: Array, prior: Gaussian) -> Gaussian:
    """Return the posterior of the root, from its prior and the packed sum of its messages (1, q)."""
    d = prior.dim
    factor, regular = upper_factor(prior.cov)
    parents = Parents.of(prior.mean[None].copy(), np.zeros((1, d, d)), factor, regular=regular)
    mean, cov, _ = down(message, 1.0, factor, np.zeros(1, dtype=np.int64), parents)
    return Gaussian.trusted(mean[0], unpack(cov[0], d))


def flat_root(P: Array, b: Array) -> tuple[Gaussian, float]:
    """Return N(P^-1 b, P^-1), and log|P|, accurate for columns of any scale.

    Raises
    ------
    NumericalError
        P is singular.
    """
    d = b.size
    scale = np.sqrt(np.diagonal(P))
    if (scale > 0).all():
        values, vectors = np.linalg.eigh(P / np.outer(scale, scale))
        unseen = vectors[:, 0] if values[0] < max(_UNSEEN, 1e3 * d) * np.finfo(np.float64).eps else None
    else:
        unseen = (scale == 0).astype(np.float64)
    if unseen is not None:
        main = ordered(-np.abs(unseen))[:3]
        unseen = unseen * np.sign(unseen[main[0]])  # an eigenvector has either sign
        named = ", ".join(f"{i} ({unseen[i]:+.2f})" for i in main if abs(unseen[i]) > 1e-6)
        raise NumericalError(
            f"With a flat hyper-prior the population mean is not determined by this log: of {counted(d, 'feature')}, "
            f"the combination of feature {named} never varies. A feature is constant zero, or features are copies of "
            "each other. Leave one out, or hand in a proper hyper-prior: Hierarchy(hyper=Gaussian(mean, cov), ...)."
        )
    correlation = P / np.outer(scale, scale)
    cov = np.linalg.solve(correlation, np.eye(d)) / np.outer(scale, scale)
    log_det = float(np.log(values).sum()) + 2 * float(np.log(scale).sum())
    return Gaussian.trusted(np.linalg.solve(correlation, b / scale) / scale, (cov + cov.T) / 2), log_det
