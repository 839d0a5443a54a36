"""The posterior of a hierarchy given a log, as a value with views."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hieropo._utils.arrays import Array, Codes, pieces
from hieropo._utils.packed import Index, packed_size, padded, unpack
from hieropo._utils.text import counted
from hieropo._utils.ties import ordered
from hieropo.errors import InputError, MismatchError, NumericalError, UnknownTaskError
from hieropo.model.gaussian import Gaussian, minus, plus
from hieropo.model.hierarchy import Grouped, Hierarchy
from hieropo.model.metadata import Design
from hieropo.model.protocol import ParentMessages
from hieropo.model.steps import Parents, down, square_roots, up, upper_factor
from hieropo.moments.statistics import Moments
from hieropo.rows.ids import is_null, plain
from hieropo.rows.keys import Keys

Unseen = Literal["prior", "error"]

_PIECE = 65_536  # tasks with metadata worked on at once
_UNSEEN = 6e4  # units of the last place that are rounding of the steps up; each feature adds 1e3


@dataclass(frozen=True, slots=True, eq=False)
class PosteriorTable:
    """Posteriors of all tasks side by side, as a policy reads them.

    Attributes
    ----------
    keys : Keys
        The m tasks.
    means : (m, d) array
    covs : (m, d (d + 1) / 2) array
        Upper triangles packed by columns.
    rows : (m,) array
        Rows that each task has in the log, by their weights.
    prior : Gaussian
        Posterior of a task that the log does not have.
    """

    keys: Keys
    means: Array
    covs: Array
    rows: Array
    prior: Gaussian

    @property
    def dim(self) -> int:
        """Features d."""
        return int(self.means.shape[1])


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """The nodes of one level: what they know, how they vary, where they hang."""

    keys: Keys
    rows: Array
    scale: float
    factor: Array
    regular: bool
    parent: Codes
    design: Design | None = None

    def _hung(self, means: Array, roots: Array, part: slice) -> tuple[Parents, Index]:
        """Gaussians of the parents of some nodes, and which of them each hangs on."""
        if self.design is not None:  # each node sees its parent in its own way
            at = self.parent[part]
            means, roots = self.design.roots(means[at], roots[at], part)
            return Parents.of(means, roots, self.factor, regular=self.regular), np.arange(len(at))
        if part.stop - part.start == 1:
            at = self.parent[part]
            return self._parents(means[at], roots[at]), np.zeros(1, dtype=np.int64)
        return self._parents(means, roots), self.parent[part]

    def _parents(self, means: Array, roots: Array) -> Parents:
        return Parents.of(means, roots, self.factor, regular=self.regular)

    def posteriors(self, means: Array, roots: Array, part: slice) -> tuple[Array, Array]:
        """Means and packed covariances of some nodes."""
        parents, at = self._hung(means, roots, part)
        found, covs, _ = down(self.rows[part], self.scale, self.factor, at, parents)
        return found, covs

    def alone(self, part: slice) -> tuple[Array, Array]:
        """Packed covariances Sigma~ of some nodes given their parents, and M Z (n, d, D), M = (I + Sigma_0 G)^-1."""
        d, rows = self.factor.shape[0], self.rows[part]
        zero, known = np.zeros(len(rows), dtype=np.int64), (np.zeros((1, d)), np.zeros((1, d, d)))
        fixed = Parents(*known, np.zeros((0, d, d)), lower=True)
        covs = down(rows, self.scale, self.factor, zero, fixed)[1]
        parents = self._parents(known[0], np.eye(d)[None])
        # C = F inner with inner triangular is a rotation of I, so undo it: M C C' = M
        whole = self.factor @ parents.inner[0] + (parents.outer[0] if parents.outer.size else 0.0)
        gains = down(rows, self.scale, self.factor, zero, parents, gains=True)[2] @ whole.T
        return covs, gains if self.design is None else gains @ self.design.matrix(part)


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
    stages : list of Stage
        The levels of the tree, tasks first.
    """

    def __init__(
        self, moments: Moments, hierarchy: Hierarchy, stages: list[Stage], root: Gaussian, log_evidence: float
    ) -> None:
        self.moments = moments
        self.hierarchy = hierarchy
        self.root = root
        self.hyper = root.plus(moments.offset)
        self.log_evidence = log_evidence
        self.stages = stages

    @property
    def dim(self) -> int:
        """Features d."""
        return self.hierarchy.dim

    @property
    def weights(self) -> Array:
        """Weight 1 of the one hierarchy, as a mixture of hierarchies has them."""
        return np.ones(1)

    @property
    def noise_variances(self) -> Array:
        """Noise variance of all rows, (1,)."""
        return np.atleast_1d(self.hierarchy.noise_var)

    @property
    def central_hierarchy(self) -> Hierarchy:
        """The hierarchy, as a mixture has one that stands for all."""
        return self.hierarchy

    def parts(self) -> Iterator["Posterior"]:
        """Give the posterior under each hierarchy: this one."""
        yield self

    def central(self) -> "Posterior":
        """Return the posterior under the central hierarchy: this one."""
        return self

    def task_slices(self, width: int) -> Iterator[slice]:
        """Cut the tasks into slices that are worked on at once, where each task takes ``width`` numbers."""
        return pieces(len(self.moments.keys), width)

    @cached_property
    def _above(self) -> list[tuple[Array, Array]]:
        """For each stage, tasks first, means and square roots of the covariances of all its parents."""
        found: list[tuple[Array, Array]] = []
        means, covs = self.root.mean[None], self.root.cov[None]
        for stage in reversed(self.stages):
            found.append((means, square_roots(covs)))
            if stage is not self.stages[0]:
                means, packed = stage.posteriors(*found[-1], slice(0, len(stage.keys)))
                covs = unpack(packed, stage.factor.shape[0])
        return found[::-1]

    def _gaussian(self, stage: int, row: int) -> Gaussian:
        """Posterior of a node, less the offset."""
        mean, cov = self.stages[stage].posteriors(*self._above[stage], slice(row, row + 1))
        return Gaussian.trusted(mean[0], unpack(cov[0], mean.shape[1]))

    def task(self, task: object, *, unseen: Unseen = "prior") -> Gaussian:
        """Return the posterior of theta of one task, equation (4) of arXiv 2212.04720.

        A task that the log does not have gets :meth:`new_task`'s answer, or an error, as ``unseen`` says.

        Raises
        ------
        UnknownTaskError
            The task is not in the log and ``unseen`` is ``"error"``.
        """
        if unseen not in ("prior", "error"):
            raise InputError(f"unseen={unseen!r}; 'prior' or 'error' is needed.")
        row = self.moments.keys.find(task)
        if row < 0 and is_null(task):
            raise InputError(f"The task is {task!r}; a missing id is no new task. Name the task.")
        if row >= 0:
            return self._gaussian(0, row).plus(self.moments.offset)
        if unseen == "error":
            raise UnknownTaskError(self.moments.keys.unknown_message(task))
        return self.new_task()

    def new_task(
        self, parent: object = None, *, level: int = 0, metadata: ArrayLike | None = None
    ) -> Gaussian:
        """Return the posterior of a task that has no rows, N(mu-bar, Sigma_0 + ... + Sigma-bar).

        Parameters
        ----------
        parent : node, optional
            The group that the task belongs to, where the hierarchy has groups; without it the task may hang anywhere.
        level : int
            Of the group: 0 is the level just above the tasks. Of a higher one, the groups between are new too.
        metadata : (c,) array, optional
            What is known of the task, where the hierarchy has metadata; without them they are drawn from those of the
            tasks of the log.
        """
        above, cov = self.root, self.hierarchy.task_cov
        if parent is not None:
            above = self._node(level, parent)
        for new in self.hierarchy.levels[: None if parent is None else level]:
            cov = cov + new.cov
        known, design = self.hierarchy.metadata, self.stages[0].design
        if known is None or design is None:
            if metadata is not None:
                raise InputError("This hierarchy has no metadata, so that those of a task cannot be used.")
            mean, between = above.mean.copy(), above.cov
        elif metadata is None:
            mean, between = design.average(above.mean, above.cov)
        else:
            Z = known.one(self.dim, metadata)
            mean, between = Z @ above.mean, Z @ above.cov @ Z.T
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
                f"There is no level {level}: this hierarchy has {len(self.hierarchy.levels)} above tasks."
            )
        whole, d = self._node(level, node), self.dim
        return Gaussian.trusted(whole.mean[:d].copy(), whole.cov[:d, :d].copy()).plus(self.moments.offset)

    def _node(self, level: int, node: object) -> Gaussian:
        """Posterior of a group's coefficients, less the offset, and of those of the metadata."""
        return self._gaussian(level + 1, int(self.stages[level + 1].keys.require([node])[0]))

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
        gains = [np.eye(self.dim), np.eye(self.dim)]
        for k, stage in enumerate(self.stages):
            each = [stage.alone(slice(row, row + 1))[1][0] for row in rows]
            gains = [gain @ step for gain, step in zip(gains, each, strict=True)]
            rows = [int(stage.parent[row]) for row in rows]
            if rows[0] == rows[1]:
                shared = self._gaussian(k + 1, rows[0]).cov if k + 1 < len(self.stages) else self.hyper.cov
                return gains[0] @ shared @ gains[1].T
        raise AssertionError("two tasks without a common root")  # pragma: no cover

    def tasks(self, part: slice) -> tuple[Array, Array]:
        """Return means (n, d) and packed covariances of some tasks, from the table where that was made before."""
        if "_table" in self.__dict__:
            return self._table.means[part], self._table.covs[part]
        means, covs = self.stages[0].posteriors(*self._above[0], part)
        return plus(means, self.moments.offset), covs

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
        node adds v' Sigma~ v to the variance and hands Z' M' v to its parent, where the vectors of the children are
        added up; at the root k' Sigma-bar k is left.
        """
        J, m, d = vectors.shape
        mean, cov = np.zeros(J), np.zeros((J, J))
        for part in pieces(m, d * (d + J)):
            means, _ = self.tasks(part)
            mean += np.einsum("jsi,si->j", vectors[:, part], means)
        below = vectors
        for k, stage in enumerate(self.stages):
            top = k + 1 == len(self.stages)
            above = np.zeros((1 if top else len(self.stages[k + 1].keys), J, self.hyper.dim))
            for part in pieces(len(stage.keys), self.hyper.dim * (d + J)):
                covs, gains = stage.alone(part)
                v = below[:, part].swapaxes(0, 1)  # (n, J, d)
                cov += np.tensordot(v @ unpack(covs, v.shape[2]), v, axes=([0, 2], [0, 2]))
                np.add.at(above, stage.parent[part], v @ gains)
            below = above.swapaxes(0, 1)
        root = below[:, 0]
        return mean, cov + root @ self.hyper.cov @ root.T

    def parent_messages(self, step: int) -> Iterator[tuple[slice, ParentMessages]]:
        """Yield the messages of all tasks to their parents, ``step`` tasks at a time."""
        tasks = self.stages[0]
        means, roots = self._above[0]
        for start in range(0, len(tasks.keys), step):
            part = slice(start, min(start + step, len(tasks.keys)))
            n = part.stop - part.start
            rows, _ = up(tasks.rows[part], tasks.scale, tasks.factor, np.arange(n), n)
            parents = means[tasks.parent[part]], roots[tasks.parent[part]]
            if tasks.design is not None:
                parents = tasks.design.roots(*parents, part)
            yield part, ParentMessages(rows, *parents)

    def table(self) -> PosteriorTable:
        """Return the posteriors of all tasks at once."""
        return self._table

    @cached_property
    def _table(self) -> PosteriorTable:
        m = len(self.moments)
        if self.stages[0].design is None or m <= _PIECE:
            means, covs = self.tasks(slice(0, m))
        else:
            found = [self.tasks(slice(start, min(start + _PIECE, m))) for start in range(0, m, _PIECE)]
            means, covs = (np.concatenate(each) for each in zip(*found, strict=True))
        return PosteriorTable(self.moments.keys, means, covs, self.moments.rows, self.new_task())

    def __repr__(self) -> str:
        size = f"{counted(len(self.moments), 'task')}, {counted(self.dim, 'feature')}"
        return f"Posterior({size}, log evidence {self.log_evidence:.6g})"


def projected(means: Array, covs: Array, vectors: Array) -> tuple[Array, Array]:
    """Return means and variances (n, J) of v' theta, from means (n, d), packed covariances and vectors (n, J, d)."""
    variances = ((vectors @ unpack(covs, vectors.shape[2])) * vectors).sum(axis=2)
    return np.einsum("nji,ni->nj", vectors, means), variances


def condition(moments: Moments, hierarchy: Hierarchy) -> Posterior:
    """Condition the hierarchy on the log: one pass over the tasks upwards; the way down is taken when asked for.

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
        A task of the log hangs nowhere in the tree.
    NumericalError
        Sums that no rows can have; a flat hyper-prior and a direction that no task's rows show.
    """
    if moments.dim != hierarchy.dim:
        raise MismatchError(
            f"The moments have {moments.dim} features, the hierarchy {hierarchy.dim}. Both must come from one "
            "feature map."
        )
    if hierarchy.levels:
        moments = moments.covering(Keys(_objects(list(hierarchy.levels[0].parent))))
    design = None
    if hierarchy.metadata is not None:
        moments = moments.covering(hierarchy.metadata.tasks)
        design = hierarchy.metadata.design(hierarchy.dim, moments.keys)
    _refuse_negative(moments)
    stages: list[Stage] = []
    keys, rows, scale = moments.keys, moments.sums, 1.0 / hierarchy.noise_var
    log_det = 0.0
    covs = [hierarchy.task_cov, *(level.cov for level in hierarchy.levels)]
    for k, cov in enumerate(covs):
        factor, regular = upper_factor(cov if k == 0 else padded(cov, hierarchy.root_dim))
        above, parent = parents_of(keys, hierarchy.levels, k)
        stages.append(Stage(keys, rows, scale, factor, regular, parent, design if k == 0 else None))
        if k == 0 and design is not None:
            said, part = up(rows, scale, factor, np.arange(len(keys)), len(keys))
            rows = design.lifted(said, parent, len(above))
        else:
            rows, part = up(rows, scale, factor, parent, len(above))
        keys, scale, log_det = above, 1.0, log_det + part
    root, rest = _root(rows[0], hierarchy, moments.offset)
    noise = moments.n_rows * np.log(2 * np.pi * hierarchy.noise_var) - float(moments.log_precision.sum())
    return Posterior(moments, hierarchy, stages, root, -0.5 * float(noise + log_det + rest))


def parents_of(keys: Keys, levels: Sequence[Grouped], level: int) -> tuple[Keys, Codes]:
    """Nodes above those of ``keys``, and which of them each hangs on."""
    if level == len(levels):
        return Keys(_objects(["root"])), np.zeros(len(keys), dtype=np.int64)
    here = levels[level]
    try:
        ids = [here.parent[key] for key in keys.values.tolist()]
    except KeyError as error:
        raise InputError(
            f"{error.args[0]!r} has no node at level {here.name or level!r}: every task of the log needs a place in "
            "the tree. Add it to Level(parent=...), or leave its rows out."
        ) from None
    return Keys.factorize(_objects(ids))


def _objects(ids: list[Any]) -> NDArray[Any]:
    array = np.empty(len(ids), dtype=object)
    array[:] = ids
    return array


def _root(packed: Array, hierarchy: Hierarchy, offset: Array | None) -> tuple[Gaussian, float]:
    """Hyper-posterior of mu less the offset, and minus twice what it adds to the log evidence."""
    d = hierarchy.root_dim
    joint = unpack(packed, d + 1)
    P, b, c = joint[:d, :d], joint[:d, d], float(joint[d, d])
    if hierarchy.hyper is None:
        root, log_det = flat_root(P, b)
        return root, c - float(b @ root.mean) + log_det - d * np.log(2 * np.pi)
    prior = hierarchy.hyper.plus(minus(offset))
    factor, regular = upper_factor(prior.cov)
    zero = np.zeros(1, dtype=np.int64)
    parents = Parents.of(prior.mean[None].copy(), np.zeros((1, d, d)), factor, regular=regular)
    mean, cov, _ = down(packed[None].copy(), 1.0, factor, zero, parents)
    root = Gaussian.trusted(mean[0], unpack(cov[0], d))
    shifted = packed[None].copy()
    e = b - P @ prior.mean
    shifted[0, packed_size(d) : packed_size(d) + d] = e
    shifted[0, -1] = c - float((b + e) @ prior.mean)
    left, log_det = up(shifted, 1.0, factor, zero, 1)
    return root, float(left[0, -1]) + log_det


def flat_root(P: Array, b: Array) -> tuple[Gaussian, float]:
    """N(P^-1 b, P^-1), and log|P|, with columns of any scale.

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


def _refuse_negative(moments: Moments) -> None:
    d = moments.dim
    diagonal = moments.sums[:, [packed_size(j + 1) - 1 for j in range(d + 2)]]
    bad = (moments.rows < 0) | (diagonal < 0).any(axis=1)
    if bad.any():
        task = plain(moments.tasks[bad][0])
        raise NumericalError(
            f"The moments of task {task!r} are no sums of rows: {moments.rows[bad][0]:g} rows, smallest sum of squares "
            f"{diagonal[bad][0].min():.3g}. More was subtracted than was ever added; subtract only rows that are in."
        )
