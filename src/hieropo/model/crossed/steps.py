"""The way up of the crossed prior: rows to units, units to tasks, tasks to one system in (beta, alpha).

With G_sa, B_sa of the rows of task s under action a, divided by sigma_a^2, and only for units (s, a) that have rows:

    gamma out  P_sa = (I + G_sa M)^-1 G_sa         b_sa = (I + G_sa M)^-1 B_sa
    u out      Q_s = sum_a P_sa,  b_s = sum_a b_sa,  W_s = L (I + Q_s L)^-1,  K_s = (I + L Q_s)^-1
    to mu      Pi = sum_s diag_a(P_sa) - P_s W_s P_s'         h = sum_s b_sa - P_sa W_s b_s

mu_a = beta + alpha_a, P_s the stacked (K p, p) of a task. Pi is never taken as that difference, whose digits are lost
where L is far larger than what the rows leave open: with J = 1 (x) I,

    J' Pi J = sum_s K_s' Q_s       (J' Pi)_a = sum_s K_s' P_sa       Pi_ab = -sum_s P_sa W_s P_sb,  a != b
    Pi_aa = (J' Pi)_a - sum_(b != a) Pi_ba

For p = 1 no term of these sums has another sign than its result. The root takes beta + alpha_r of the action r with
most rows, and the differences from it, so that an unknown level takes no digits from differences between actions:
R'R is the information in these coordinates (pivoted, any rank), alpha_a = F z_a with F F' = A, and reflections of
[R T; 0 I], T from (z, beta) to the coordinates, give the posterior without forming a second system.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hieropo._kernels import backend
from hieropo._utils.arrays import Array, Codes, normalised
from hieropo._utils.packed import packed_size, unpack
from hieropo._utils.threads import in_threads, processors
from hieropo._utils.ties import first_largest
from hieropo.errors import NumericalError
from hieropo.model.steps import Split, TreeLevel, pivot_tolerance, up, upper_factor
from hieropo.moments.units import UnitMoments

_DENSE = 0.1  # share of units with rows from which a dense product is faster than a sparse one
_ROOM = 2**21  # doubles of one array while tasks are worked on
UNITS = 8_192  # a piece of work: results do not depend on the number of threads
SMALL_UNITS = 65_536  # the same, of units of one coefficient


@dataclass(frozen=True, slots=True, eq=False)
class ObservedUnits:
    """The units that have rows, in the order of their tasks.

    Attributes
    ----------
    rows : (u, (p + 1)(p + 2) / 2) array
        Packed [G B; B' c], each divided by the noise variance of its action.
    action : (u,) int array
    task : (u,) int array
        Place among the observed tasks.
    tasks : (t,) int array
        Rows of the moments of the t observed tasks.
    starts : (t + 1,) int array
        Units of observed task i stand at ``starts[i]`` to ``starts[i + 1]``.
    n_actions, dim : int
        K, p.
    """

    rows: Array
    action: Codes
    task: Codes
    tasks: Codes
    starts: Codes
    n_actions: int
    dim: int

    def over(self, factor: float) -> "ObservedUnits":
        """Return these units with all noise variances multiplied by ``factor``."""
        return replace(self, rows=self.rows / factor)

    @classmethod
    def of(cls, moments: UnitMoments, noise_var: Array) -> "ObservedUnits":
        """Divide the sums of each unit that has rows by its noise variance (K,)."""
        K, p = moments.n_actions, moments.unit_dim
        at = np.flatnonzero(moments.units.rows)
        task = at // K
        action = at - task * K
        sums = moments.units.sums if at.size == len(moments.units) else moments.units.sums[at]
        rows = sums[:, : packed_size(p + 1)] / noise_var[action, None]
        starts = np.flatnonzero(np.append(True, task[1:] != task[:-1])[: at.size])
        place = np.repeat(np.arange(starts.size), np.diff(np.append(starts, at.size)))
        return cls(rows, action, place, task[starts], np.append(starts, at.size), K, p)

    def by_task(self, values: Array) -> Array:
        """Sums over the units of each observed task, of values (u, ...)."""
        if not len(self.tasks):
            return np.zeros((0, *values.shape[1:]))
        return np.asarray(np.add.reduceat(values, self.starts[:-1], axis=0))

    def by_action(self, values: Array) -> Array:
        """Sums over the units of each action, of values (u, ...): (K, ...)."""
        from scipy.sparse import csr_array

        u = len(self.action)
        pick = csr_array((np.ones(u), (self.action, np.arange(u))), shape=(self.n_actions, u))
        width = int(np.prod(values.shape[1:]))
        return np.asarray(pick @ values.reshape(u, width)).reshape(self.n_actions, *values.shape[1:])

    def of_tasks(self, tasks: Codes) -> "ObservedUnits":
        """Return the units of some of the observed tasks."""
        counts = np.diff(self.starts)[tasks]
        starts = np.append(0, np.cumsum(counts))
        at = np.repeat(self.starts[tasks] - starts[:-1], counts) + np.arange(starts[-1])
        place = np.repeat(np.arange(len(tasks)), counts)
        return ObservedUnits(
            self.rows[at], self.action[at], place, self.tasks[tasks], starts, self.n_actions, self.dim
        )

    def table(self) -> Codes:
        """Row of the unit of each observed task and action, (t, K); -1 where it has no rows."""
        table = np.full((len(self.tasks), self.n_actions), -1, dtype=np.int64)
        table[self.task, self.action] = np.arange(len(self.action))
        return table

    def piece(self, first: int, last: int) -> "ObservedUnits":
        """Return the units of the observed tasks ``first`` to ``last``, without a copy of their rows."""
        part = slice(self.starts[first], self.starts[last])
        starts = self.starts[first : last + 1] - self.starts[first]
        return ObservedUnits(
            self.rows[part], self.action[part], self.task[part] - first, self.tasks[first:last], starts,
            self.n_actions, self.dim,
        )  # fmt: skip

    def pieces(self, most: int, doubles: int = 0) -> list[tuple[int, int]]:
        """First and last tasks of pieces of about ``most`` units, that hold ``doubles`` numbers for each task."""
        t = len(self.tasks)
        step = 8 * max(int(min(most * t / max(len(self.action), 1), _ROOM / max(doubles, 1)) / 8), 1)
        return [(first, min(first + step, t)) for first in range(0, t, step)]

    def pairs(self, left: Array, right: Array) -> Array:
        """Sums (K p, K p) over tasks of left_sa' right_sb, of values (u, p, p)."""
        t = len(self.tasks)
        product = self.blocks(left, 0, t).T @ self.blocks(right, 0, t)
        return np.asarray(product.toarray())

    def blocks(self, values: Array, first: int, last: int) -> Any:
        """Sparse (n p, K p) matrix with a block (p, p) of ``values`` (u, p, p) for each unit of some observed tasks."""
        from scipy.sparse import bsr_array

        part, p = slice(self.starts[first], self.starts[last]), self.dim
        pointers = self.starts[first : last + 1] - self.starts[first]
        shape = (last - first) * p, self.n_actions * p
        return bsr_array((values[part], self.action[part], pointers), shape=shape)


class UnitMessages:
    """Messages of units to their tasks, gamma ~ N(0, M) integrated out; computed when asked for.

    Attributes
    ----------
    units : ObservedUnits
    interaction_cov : (p, p) array
        M.
    """

    def __init__(self, units: ObservedUnits, interaction_cov: Array) -> None:
        self.units = units
        self.interaction_cov = interaction_cov

    @property
    def packed(self) -> Array:
        """Packed [P b; b' c'] of each unit, (u, (p + 1)(p + 2) / 2)."""
        return self._up[0]

    @property
    def log_det(self) -> float:
        """Sum log|I + G_sa M|."""
        return self._up[1]

    @cached_property
    def information(self) -> Array:
        """P_sa, (u, p, p)."""
        return unpack(self.packed, self.units.dim)

    @property
    def score(self) -> Array:
        """b_sa, (u, p)."""
        p = self.units.dim
        return self.packed[:, packed_size(p) : packed_size(p) + p]

    def piece(self, first: int, last: int) -> "UnitMessages":
        """Return the messages of the observed tasks ``first`` to ``last``; of all tasks they are kept."""
        if (first, last) == (0, len(self.units.tasks)):
            return self
        return UnitMessages(self.units.piece(first, last), self.interaction_cov)

    def of_tasks(self, tasks: Codes) -> "UnitMessages":
        """Return the messages of some of the observed tasks."""
        return UnitMessages(self.units.of_tasks(tasks), self.interaction_cov)

    @cached_property
    def _up(self) -> tuple[Array, float]:
        rows = self.units.rows
        if not self.interaction_cov.any():
            return rows, 0.0
        return up(rows, 1.0, upper_factor(self.interaction_cov)[0], np.arange(len(rows)), len(rows))


class RootSums(NamedTuple):
    """The information of all tasks about beta and mu_a = beta + alpha_a.

    Attributes
    ----------
    level : (p + 1, p + 1) array
        [J' Pi J, J' h; h' J, c'']
    rows : (p, K, p) array
        J' Pi.
    information : (K, p, K, p) array
        Pi.
    score : (K, p) array
        h.
    log_det : float
        sum log|I + G_sa M| + sum log|I + Q_s L|.
    """

    level: Array
    rows: Array
    information: Array
    score: Array
    log_det: float

    @classmethod
    def of(cls, messages: UnitMessages, level_cov: Array) -> "RootSums":
        """Take the step up from units, by loops over eight tasks at a time where there are many."""
        units = messages.units
        if not level_cov.any() or not len(units.tasks):
            return TaskMessages.of(messages, level_cov).root(messages)
        if units.dim == 1:
            return _sums_of_one(units, float(messages.interaction_cov[0, 0]), float(level_cov[0, 0]))
        return _sums(messages, level_cov)

    @classmethod
    def of_parts(cls, level: Array, seen: Array, score: Array, between: Array, log_det: float) -> "RootSums":
        """Put together from [J' Pi J, J' h; h' J, c''], J' Pi as (K, p, p), h, and Pi besides its blocks of one action.

        ``between`` (K p, K p) is Pi where its halves are averaged. Pi_aa = (J' Pi)_a - sum_(b != a) Pi_ba.
        """
        K, p = score.shape
        whole = ((between + between.T) / 2).reshape(K, p, K, p)
        each = np.arange(K)
        whole[each, :, each] = 0.0
        own = seen - whole.sum(axis=0).transpose(1, 0, 2)
        whole[each, :, each] = (own + own.swapaxes(1, 2)) / 2
        return cls(level, seen.swapaxes(0, 1), whole, score, log_det)

    def plus(self, other: "RootSums") -> "RootSums":
        """Return the sums over the tasks of both."""
        return RootSums(
            self.level + other.level, self.rows + other.rows, self.information + other.information,
            self.score + other.score, self.log_det + other.log_det,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class TaskMessages:
    """Observed tasks given all mu_a, by the steps up and down.

    Attributes
    ----------
    rows : (t, (p + 1)(p + 2) / 2) array
        Packed [Q b; b' c'].
    level_cov : (p, p) array
        L.
    shift : (t, p) array
        W_s b_s.
    cov : (t, p, p) array
        W_s, the covariance of u_s given all mu_a.
    gains : (t, p, p) array
        K_s = (I + L Q_s)^-1.
    slopes : (u, p, p) array
        W_s P_sa of each unit: by how much u_s falls as mu_a rises.
    """

    rows: Array
    level_cov: Array
    shift: Array
    cov: Array
    gains: Array
    slopes: Array

    @classmethod
    def of(cls, messages: UnitMessages, level_cov: Array) -> "TaskMessages":
        """Take the steps up and down of units."""
        units = messages.units
        p, t = units.dim, len(units.tasks)
        rows, every = units.by_task(messages.packed), slice(0, t)
        if level_cov.any():
            nodes = TreeLevel.of(rows, 1.0, level_cov)
            shift, packed = nodes.given(np.zeros((t, p)), every)
            cov, gains = unpack(packed, p), nodes.shrinkage(every)
        else:
            shift, cov = np.zeros((t, p)), np.zeros((t, p, p))
            gains = np.broadcast_to(np.eye(p), (t, p, p))
        return cls(rows, level_cov, shift, cov, gains, cov[units.task] @ messages.information)

    def root(self, messages: UnitMessages) -> RootSums:
        """Return the messages of the tasks to the root."""
        units = messages.units
        if self.level_cov.any():
            zero = np.zeros(len(self.rows), dtype=np.int64)
            packed, log_det = up(self.rows, 1.0, upper_factor(self.level_cov)[0], zero, 1)
        else:
            packed, log_det = self.rows.sum(axis=0)[None], 0.0
        left = np.einsum("uij,uj->ui", messages.information, self.shift[units.task])
        seen = units.by_action(self.gains[units.task].swapaxes(1, 2) @ messages.information)
        between = units.pairs(messages.information, self.slopes)
        score = units.by_action(messages.score - left)
        level = unpack(packed[0], units.dim + 1)
        return RootSums.of_parts(level, seen, score, -between, messages.log_det + log_det)


def _added(parts: list[Any]) -> list[Any]:
    """Sum over the pieces of each of their results, in the order of pieces."""
    return [sum(part[1:], start=part[0]) for part in zip(*parts, strict=True)]


def _sums(messages: UnitMessages, level_cov: Array) -> RootSums:
    """Root sums by the loops, and by reflections for tasks whose information outweighs the level."""
    units = messages.units
    loops = backend.crossed(units.rows.size)
    K, p, t = units.n_actions, units.dim, len(units.tasks)
    dense = len(units.action) > _DENSE * K * t
    split = Split.of(level_cov)
    slopes = np.zeros(0 if dense else len(units.action) * p * p)
    omitted: list[Codes] = []

    def work(chunk: tuple[int, int]) -> tuple[Array, Array, Array, Array, float]:
        first, last = chunk
        some = messages.piece(first, last)
        level, seen, score = np.zeros(packed_size(p + 1)), np.zeros((K, p, p)), np.zeros((K, p))
        own = slice(units.starts[first] * p * p, units.starts[last] * p * p)
        X = np.zeros((last - first) * p * K * p) if dense else slopes[own]
        late = np.empty((last - first) // 8 + 1, dtype=np.int64)
        spots, room = loops.rooms(p)
        log_det, count = loops.sum_tasks(
            normalised(some.packed), some.units.starts, some.units.action, p, K, dense, *split, spots,
            level, seen, score, X, late, room,
        )  # fmt: skip
        omitted.append(first + late[:count])
        wide = X.reshape(-1, K * p) if dense else np.zeros((0, 0))
        return level, seen, score, wide.T @ wide, some.log_det + log_det

    chunks = units.pieces(UNITS, K * p * p if dense else 0)
    level, seen, score, between, log_det = _added(in_threads(work, chunks, processors()))
    if not dense:
        blocks = units.blocks(slopes.reshape(-1, p, p), 0, t)
        between = (blocks.T @ blocks).toarray()
    sums = RootSums.of_parts(unpack(level, p + 1), seen, score, -between, log_det)
    late = np.concatenate(omitted)
    if not late.size:
        return sums
    some = messages.of_tasks(np.unique(np.minimum(late[:, None] + np.arange(8), t - 1)))
    rest = TaskMessages.of(some, level_cov).root(some)
    return sums.plus(rest._replace(log_det=rest.log_det - some.log_det))


def _sums_of_one(units: ObservedUnits, interaction: float, level_var: float) -> RootSums:
    """Root sums of one coefficient an action, from sums of rows."""
    K, rows = units.n_actions, normalised(units.rows)
    loops = backend.crossed(rows.size)

    def work(chunk: tuple[int, int]) -> tuple[Array, Array, Array, Array, float]:
        level, seen, score, between = np.zeros(3), np.zeros(K), np.zeros(K), np.zeros((K, K))
        log_det = loops.sum_tasks_of_one(
            rows, units.starts, units.action, *chunk, interaction, level_var, level, seen, score, between,
            np.empty(K), np.empty(K),
        )  # fmt: skip
        return level, seen, score, between, log_det

    parts = in_threads(work, units.pieces(SMALL_UNITS), processors())
    level, seen, score, between, log_det = _added(parts)
    halves = between + between.T
    return RootSums.of_parts(unpack(level, 2), seen[:, None, None], score[:, None], halves, log_det)


@dataclass(frozen=True, slots=True, eq=False)
class Root:
    """The posterior of (beta, alpha): means and a root of the joint covariance, of D columns.

    Attributes
    ----------
    mean : (p,) array
        Of beta.
    cov_root : (p, D) array
    effects : (K, p) array
        Means of alpha_a.
    effect_roots : (K, p, D) array
    log_det : float
        log|N|, N the information of (z, beta).
    square : float
        The sum of squares of rewards over their noise that beta does not explain: r'V^-1 r less that of beta.
    """

    mean: Array
    cov_root: Array
    effects: Array
    effect_roots: Array
    log_det: float
    square: float


def solve_root(sums: RootSums, action_cov: Array) -> Root:
    """Posterior of (beta, alpha), alpha_a ~ N(0, A), beta flat.

    Raises
    ------
    NumericalError
        The rows leave a direction of beta open.
    """
    from scipy.linalg import solve_triangular

    K, p = sums.score.shape
    factor = upper_factor(action_cov)[0]
    factor = factor[:, factor.any(axis=0)]
    r = factor.shape[1]
    reference = _reference(sums.information)
    root, y, rest, square = pivoted_root(*_graded(sums, reference))

    def in_unknowns(rows: Array) -> Array:
        """Rows (k, K p) on mu of the reference and differences, as rows (k, K r + p) on (z, beta)."""
        blocks = rows.reshape(len(rows), K, p)
        beta = blocks[:, reference].copy()
        blocks[:, reference] = 2 * beta - blocks.sum(
            axis=1
        )  # on alpha: its own, less the differences from it
        return np.concatenate([(blocks @ factor).reshape(len(rows), K * r), beta], axis=1)

    n = K * r + p
    stacked = np.zeros((len(root) + K * r, n + 1))
    stacked[: len(root), :n], stacked[: len(root), n] = in_unknowns(root), y
    stacked[len(root) :, : K * r] = np.eye(K * r)
    order = np.argsort(-np.abs(stacked[:, :n]).max(axis=1, initial=0.0), kind="stable")
    triangular: Array = np.asarray(np.linalg.qr(stacked[order], mode="r"))
    _refuse_open(triangular[K * r : n, K * r : n], p)
    R, w = triangular[:n, :n], triangular[:n, n]
    more = solve_triangular(R, in_unknowns(rest[None])[0], trans="T")
    solution = solve_triangular(R, np.column_stack([w + more, np.eye(n)]))
    effects = (factor @ solution[: K * r].reshape(K, r, n + 1)) if r else np.zeros((K, p, n + 1))
    if len(triangular) > n:
        square += float(triangular[n, n]) ** 2
    square -= float(more @ (2 * w + more))
    log_det = 2.0 * float(np.log(np.abs(np.diagonal(R))).sum())
    beta = solution[K * r :]
    return Root(beta[:, 0], beta[:, 1:], effects[:, :, 0], effects[:, :, 1:], log_det, square)


class ActionProfile(NamedTuple):
    """The evidence along A = a^2 F F', for every a at once.

    Differences of mu_a from the mean of a reference action have the prior a^2 (I + 1 1') (x) F F' and, the level
    integrated out, the information P and score b; with T T' = (I + 1 1') (x) F F' and T'P T = Q diag(lambda) Q',

        log|N| = log|J' Pi J| + sum log(1 + a^2 lambda)        square = q - sum a^2 y^2 / (1 + a^2 lambda),  y = Q'T'b

    Attributes
    ----------
    values : (r,) array
        lambda.
    squares : (r,) array
        y^2.
    log_det, square : float
        At a = 0.
    """

    values: Array
    squares: Array
    log_det: float
    square: float

    @classmethod
    def of(cls, sums: RootSums, action_cov: Array) -> "ActionProfile":
        """Diagonalise the information about differences between actions in units of their prior."""
        from scipy.linalg import cho_factor, cho_solve, eigh

        seen = np.einsum("aiai->a", sums.information) > 0  # others say nothing of a
        sums = sums._replace(
            rows=sums.rows[:, seen], information=sums.information[seen][:, :, seen], score=sums.score[seen]
        )
        K, p = sums.score.shape
        reference = _reference(sums.information)
        whole, score, square = _graded(sums, reference)
        at = np.arange(reference * p, reference * p + p)
        rest = np.delete(np.arange(K * p), at)
        scale = np.sqrt(np.diagonal(whole)[at])
        level = cho_factor(whole[np.ix_(at, at)] / np.outer(scale, scale), lower=True)
        half = np.column_stack([whole[np.ix_(at, rest)], score[at]]) / scale[:, None]
        solved = cho_solve(level, half)
        log_det = 2.0 * float(np.log(np.diagonal(level[0])).sum() + np.log(scale).sum())
        square -= float(half[:, -1] @ solved[:, -1])
        information = whole[np.ix_(rest, rest)] - half[:, :-1].T @ solved[:, :-1]
        b = score[rest] - half[:, :-1].T @ solved[:, -1]
        factor = upper_factor(action_cov)[0]
        factor = factor[:, factor.any(axis=0)]
        root = np.kron(np.linalg.cholesky(np.eye(K - 1) + 1.0), factor)
        inner = root.T @ information @ root
        values, vectors = eigh((inner + inner.T) / 2)
        return cls(np.maximum(values, 0.0), (vectors.T @ (root.T @ b)) ** 2, log_det, square)

    def plus(self, log_det: float) -> "ActionProfile":
        """Return the profile with more to its log determinant."""
        return self._replace(log_det=self.log_det + log_det)

    def at(self, sds: Array) -> tuple[Array, Array]:
        """log|N| and the square of the rewards for each a (n,)."""
        variance = np.square(sds)[:, None]
        return (
            self.log_det + np.log1p(variance * self.values).sum(axis=1),
            self.square - (variance * self.squares / (1.0 + variance * self.values)).sum(axis=1),
        )


def _reference(information: Array) -> int:
    """Action with most information, in units of the most that any has about each coefficient."""
    own = np.einsum("aiai->ai", information)
    most = own.max(axis=0)
    return int(first_largest((own / np.where(most > 0, most, 1.0)).sum(axis=1)))


def _graded(sums: RootSums, reference: int) -> tuple[Array, Array, float]:
    """Information, score and square in mu of the reference action and the differences of all others from it."""
    K, p = sums.score.shape
    whole, score = sums.information.copy(), sums.score.copy()
    whole[reference], whole[:, :, reference] = sums.rows, sums.rows.transpose(1, 2, 0)
    whole[reference, :, reference] = sums.level[:p, :p]
    score[reference] = sums.level[:p, p]
    return whole.reshape(K * p, K * p), score.reshape(-1), float(sums.level[p, p])


def pivoted_root(information: Array, score: Array, square: float) -> tuple[Array, Array, Array, float]:
    """R (rank, n) with R'R = information, y, what R'y leaves of the score, and square - y'y; columns of any scale.

    Information of a share below rounding is left out, but the score of such a direction may be more than rounding.
    """
    from scipy.linalg import solve_triangular
    from scipy.linalg.lapack import dpstrf

    n = len(score)
    scale = np.sqrt(np.maximum(np.diagonal(information), 0.0))
    if not scale.any():
        return np.zeros((0, n)), np.zeros(0), score, square
    safe = np.where(scale > 0, scale, 1.0)
    factor, pivots, rank, _ = dpstrf(information / np.outer(safe, safe), tol=pivot_tolerance(n))
    place: NDArray[np.int64] = pivots.astype(np.int64) - 1
    upper = np.triu(factor)[:rank]
    root = np.empty((rank, n))
    root[:, place] = upper
    y = solve_triangular(upper[:, :rank], (score / safe)[place[:rank]], trans="T")
    root *= scale
    rest = score - y @ root
    rest[place[:rank]] = 0.0
    return root, y, rest, square - float(y @ y)


def _refuse_open(root: Array, p: int) -> None:
    """Raise where the information root'root of beta is singular."""
    if len(root) == p:
        sizes = np.linalg.norm(root, axis=0)
        if (sizes > 0).all():
            _, values, vectors = np.linalg.svd(root / sizes)
            if values[-1] ** 2 > pivot_tolerance(p):
                return
            unseen = vectors[-1]
        else:
            unseen = (sizes == 0).astype(np.float64)
    else:
        unseen = np.ones(p)
    at = int(first_largest(np.abs(unseen)))
    raise NumericalError(
        f"The rows do not determine beta, the coefficients that all tasks and actions share: of {p}, a combination "
        f"with coefficient {at} never varies. beta has a flat prior, so that it has no posterior either. A column is "
        "constant zero or a copy of others, or the log has no rows. Leave the column out."
    )
