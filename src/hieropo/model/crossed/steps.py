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

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hieropo._kernels import backend
from hieropo._utils.arrays import Array, Codes, normalised
from hieropo._utils.packed import pack, packed_size, unpack
from hieropo._utils.threads import in_threads, processors
from hieropo._utils.ties import first_largest
from hieropo.errors import NumericalError
from hieropo.model.steps import Split, TreeLevel, pivot_tolerance, up, upper_factor
from hieropo.moments.statistics import Moments

_DENSE = 0.1  # share of units with rows from which a dense product is faster than a sparse one
_ROOM = 2**21  # doubles of one array while tasks are worked on
UNITS = 2_048  # a piece of work: results do not depend on the number of threads
SMALL_UNITS = 65_536  # the same, of units of one coefficient


@dataclass(frozen=True, slots=True, eq=False)
class ObservedUnits:
    """The units that have rows, in the order of their tasks.

    Attributes
    ----------
    sums : (u, q) array
        Packed sums of the rows, the first (p + 1)(p + 2) / 2 columns of which are [G B; B' c].
    noise_var : (K,) array or None
        Noise variances by which ``rows`` are divided when they are asked for; None: the sums are divided by them.
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

    sums: Array
    noise_var: Array | None
    action: Codes
    task: Codes
    tasks: Codes
    starts: Codes
    n_actions: int
    dim: int

    @property
    def rows(self) -> Array:
        """Packed [G B; B' c] of each unit, divided by the noise variance of its action, (u, (p + 1)(p + 2) / 2)."""
        if self.noise_var is None:
            return self.sums
        return np.asarray(self.sums[:, : packed_size(self.dim + 1)] / self.noise_var[self.action, None])

    @property
    def doubles(self) -> int:
        """The number of entries of ``rows``."""
        return len(self.action) * packed_size(self.dim + 1)

    def over(self, factor: float) -> "ObservedUnits":
        """Return these units with all noise variances ``factor`` times as large; rows are divided when asked for."""
        before = np.ones(self.n_actions) if self.noise_var is None else self.noise_var
        return self if factor == 1.0 else replace(self, noise_var=factor * before)

    def with_rows(self, rows: Array) -> "ObservedUnits":
        """Return units with other rows."""
        return replace(self, sums=rows, noise_var=None)

    @classmethod
    def of(cls, moments: Moments, noise_var: Array) -> "ObservedUnits":
        """Divide the sums of each unit that has rows by its noise variance (K,)."""
        units = cls.undivided(moments, noise_var)
        return units.with_rows(units.rows)

    @classmethod
    def undivided(cls, moments: Moments, noise_var: Array) -> "ObservedUnits":
        """As :meth:`of`; rows are divided when they are asked for, so that hardly any memory is taken before."""
        K, p = moments.n_actions, moments.unit_dim
        observed = np.flatnonzero(moments.unit_rows)
        task = observed // K
        action = observed - task * K
        sums = moments.unit_sums[:, : packed_size(p + 1)]
        sums = sums if observed.size == len(sums) else sums[observed]
        starts = np.flatnonzero(np.append(True, task[1:] != task[:-1])[: observed.size])
        place = np.repeat(np.arange(starts.size), np.diff(np.append(starts, observed.size)))
        return cls(
            sums, np.asarray(noise_var), action, place, task[starts], np.append(starts, observed.size), K, p
        )

    def by_task(self, values: Array) -> Array:
        """Sums over the units of each observed task, of values (u, ...)."""
        if not len(self.tasks):
            return np.zeros((0, *values.shape[1:]))
        return np.asarray(np.add.reduceat(values, self.starts[:-1], axis=0))

    def of_tasks(self, tasks: Codes) -> "ObservedUnits":
        """Return the units of some of the observed tasks."""
        counts = np.diff(self.starts)[tasks]
        starts = np.append(0, np.cumsum(counts))
        rows = np.repeat(self.starts[tasks] - starts[:-1], counts) + np.arange(starts[-1])
        place = np.repeat(np.arange(len(tasks)), counts)
        return ObservedUnits(
            self.sums[rows], self.noise_var, self.action[rows], place, self.tasks[tasks], starts, self.n_actions,
            self.dim,
        )  # fmt: skip

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
            self.sums[part], self.noise_var, self.action[part], self.task[part] - first, self.tasks[first:last],
            starts, self.n_actions, self.dim,
        )  # fmt: skip

    def pieces(self, most: int, doubles: int = 0, tasks: int = 0) -> list[tuple[int, int]]:
        """First and last tasks of pieces of about ``most`` units, or so many tasks where these are more.

        Pieces that hold ``doubles`` numbers for each task have fewer where these take too much room.
        """
        t = len(self.tasks)
        count = max(most * t / max(len(self.action), 1), tasks)
        step = 8 * max(int(min(count, _ROOM / max(doubles, 1)) / 8), 1)
        return [(first, min(first + step, t)) for first in range(0, t, step)]

    def pairs(self, left: Array, right: Array, groups: "TaskGroups") -> Array:
        """Sums (G, K p, K p) over the tasks of each group of left_sa' right_sb, of values (u, p, p)."""
        sums = np.zeros((groups.n_groups, self.n_actions * self.dim, self.n_actions * self.dim))
        for g, first, last in groups.runs(0, len(self.tasks)):
            sums[g] = (self.blocks(left, first, last).T @ self.blocks(right, first, last)).toarray()
        return sums

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

    def unkept(self) -> "UnitMessages":
        """Return these messages for one use: of many units they are computed anew, and nothing of them is kept."""
        few = len(self.units.action) <= UNITS
        return self if few else UnitMessages(self.units, self.interaction_cov)

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
        return GroupSums.of(messages, level_cov, TaskGroups.one(len(messages.units.tasks))).only()

    @classmethod
    def of_packed(cls, row: Array, n_actions: int, p: int, log_det: float) -> "RootSums":
        """Read a message about (lambda, e) as :meth:`GroupSums.packed` lays it out."""
        K, d = n_actions, (n_actions + 1) * p
        joint = unpack(row[None], d + 1)[0]
        ends = np.append(np.arange(p), d)
        return cls(
            joint[np.ix_(ends, ends)].copy(), joint[:p, p:d].reshape(p, K, p).copy(),
            joint[p:d, p:d].reshape(K, p, K, p).copy(), joint[p:d, d].reshape(K, p).copy(), log_det,
        )  # fmt: skip


class TaskGroups(NamedTuple):
    """Groups of the observed tasks, whose tasks stand side by side.

    Attributes
    ----------
    group : (t,) int array
        Of each task, ascending.
    n_groups : int
        Groups, of which some may have no observed tasks.
    """

    group: Codes
    n_groups: int

    @classmethod
    def one(cls, tasks: int) -> "TaskGroups":
        """Put so many tasks into one group."""
        return cls(np.zeros(tasks, dtype=np.int64), 1)

    def of_tasks(self, tasks: Codes) -> "TaskGroups":
        """Return the groups of some of the observed tasks, ascending."""
        return TaskGroups(self.group[tasks], self.n_groups)

    def runs(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """Group, first and last task of each run of tasks of one group, among the tasks ``first`` to ``last``."""
        part = self.group[first:last]
        starts = np.flatnonzero(np.diff(part, prepend=-1))
        ends = np.append(starts, part.size)[1:]
        return list(
            zip(part[starts].tolist(), (first + starts).tolist(), (first + ends).tolist(), strict=True)
        )


class GroupSums(NamedTuple):
    """As :class:`RootSums`, of the tasks of each of G groups: arrays with a first axis of groups, one ``log_det``."""

    level: Array
    rows: Array
    information: Array
    score: Array
    log_det: float

    @classmethod
    def of(cls, messages: UnitMessages, level_cov: Array, groups: TaskGroups) -> "GroupSums":
        """Take the step up from units to all groups at once."""
        units = messages.units
        if not level_cov.any() or not len(units.tasks):
            return TaskMessages.of(messages, level_cov).sums(messages, groups)
        if units.dim == 1:
            return _sums_of_one(units, float(messages.interaction_cov[0, 0]), float(level_cov[0, 0]), groups)
        return _sums(messages, level_cov, groups)

    @classmethod
    def of_parts(
        cls, level: Array, by_action: Array, score: Array, between: Array, log_det: float
    ) -> "GroupSums":
        """Put together [J' Pi J, J' h; h' J, c''], J' Pi as (G, K, p, p), h, and Pi besides its blocks of one action.

        ``between`` (G, K p, K p) is Pi where its halves are averaged. Pi_aa = (J' Pi)_a - sum_(b != a) Pi_ba.
        """
        G, K, p = score.shape
        information = ((between + between.swapaxes(1, 2)) / 2).reshape(G, K, p, K, p)
        actions = np.arange(K)
        information[:, actions, :, actions] = 0.0
        diagonal = by_action - information.sum(axis=1).transpose(0, 2, 1, 3)
        diagonal = (diagonal + diagonal.swapaxes(2, 3)) / 2
        information[:, actions, :, actions] = diagonal.swapaxes(0, 1)
        return cls(level, by_action.swapaxes(1, 2), information, score, log_det)

    def plus(self, other: "GroupSums") -> "GroupSums":
        """Return the sums over the tasks of both."""
        return GroupSums(
            self.level + other.level, self.rows + other.rows, self.information + other.information,
            self.score + other.score, self.log_det + other.log_det,
        )  # fmt: skip

    def only(self) -> RootSums:
        """Return the sums of the one group that there is."""
        return RootSums(self.level[0], self.rows[0], self.information[0], self.score[0], self.log_det)

    def packed(self) -> Array:
        """Messages about (lambda, e) of each group, packed rows of (K + 1) p columns and the rewards."""
        G, K, p = self.score.shape
        d = (K + 1) * p
        joint = np.zeros((G, d + 1, d + 1))
        joint[:, :p, :p], joint[:, :p, d] = self.level[:, :p, :p], self.level[:, :p, p]
        joint[:, d, d] = self.level[:, p, p]
        joint[:, :p, p:d] = self.rows.reshape(G, p, K * p)
        joint[:, p:d, p:d] = self.information.reshape(G, K * p, K * p)
        joint[:, p:d, d] = self.score.reshape(G, K * p)
        return pack(joint)


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
    shrinkage : (t, p, p) array
        K_s = (I + L Q_s)^-1.
    slopes : (u, p, p) array
        W_s P_sa of each unit: by how much u_s falls as mu_a rises.
    """

    rows: Array
    level_cov: Array
    shift: Array
    cov: Array
    shrinkage: Array
    slopes: Array

    @classmethod
    def of(cls, messages: UnitMessages, level_cov: Array) -> "TaskMessages":
        """Take the steps up and down of units."""
        units = messages.units
        p, t = units.dim, len(units.tasks)
        rows, all_tasks = units.by_task(messages.packed), slice(0, t)
        if level_cov.any():
            nodes = TreeLevel.of(rows, 1.0, level_cov)
            shift, packed = nodes.given(np.zeros((t, p)), all_tasks)
            cov, shrinkage = unpack(packed, p), nodes.shrinkage(all_tasks)
        else:
            shift, cov = np.zeros((t, p)), np.zeros((t, p, p))
            shrinkage = np.broadcast_to(np.eye(p), (t, p, p))
        return cls(rows, level_cov, shift, cov, shrinkage, cov[units.task] @ messages.information)

    def root(self, messages: UnitMessages) -> RootSums:
        """Return the messages of the tasks to the root."""
        return self.sums(messages, TaskGroups.one(len(self.rows))).only()

    def sums(self, messages: UnitMessages, groups: TaskGroups) -> GroupSums:
        """Return the messages of the tasks to their groups."""
        units, G = messages.units, groups.n_groups
        if self.level_cov.any():
            packed, log_det = up(self.rows, 1.0, upper_factor(self.level_cov)[0], groups.group, G)
        else:
            packed, log_det = np.zeros((G, self.rows.shape[1])), 0.0
            np.add.at(packed, groups.group, self.rows)
        explained = np.einsum("uij,uj->ui", messages.information, self.shift[units.task])
        cell = groups.group[units.task] * units.n_actions + units.action
        by_action, score = (
            _by_cell(values, cell, G * units.n_actions).reshape(G, units.n_actions, *values.shape[1:])
            for values in (
                self.shrinkage[units.task].swapaxes(1, 2) @ messages.information,
                messages.score - explained,
            )
        )
        between = units.pairs(messages.information, self.slopes, groups)
        level = unpack(packed, units.dim + 1)
        return GroupSums.of_parts(level, by_action, score, -between, messages.log_det + log_det)


def _by_cell(values: Array, cell: Codes, cells: int) -> Array:
    """Sums of values (u, ...) over the units of each cell: (cells, ...)."""
    from scipy.sparse import csr_array

    u = len(cell)
    pick = csr_array((np.ones(u), (cell, np.arange(u))), shape=(cells, u))
    width = int(np.prod(values.shape[1:]))
    return np.asarray(pick @ values.reshape(u, width)).reshape(cells, *values.shape[1:])


def _added(parts: list[tuple[int, int, list[Array], float]], shapes: list[tuple[int, ...]]) -> list[Any]:
    """Sum the results of pieces, each of groups ``first`` to ``last``, in the order of pieces."""
    totals = [np.zeros(shape) for shape in shapes]
    for first, last, sums, _ in parts:
        for total, part in zip(totals, sums, strict=True):
            total[first:last] += part
    return [*totals, sum(part[3] for part in parts)]


def _sums(messages: UnitMessages, level_cov: Array, groups: TaskGroups) -> GroupSums:
    """Sums of all groups by the loops, and by reflections for tasks whose information outweighs the level."""
    units, G = messages.units, groups.n_groups
    loops = backend.crossed(units.doubles)
    K, p, t = units.n_actions, units.dim, len(units.tasks)
    dense = len(units.action) > _DENSE * K * t or G > 1
    split = Split.of(level_cov)
    slopes = np.zeros(0 if dense else len(units.action) * p * p)
    omitted: list[Codes] = []

    def work(chunk: tuple[int, int]) -> tuple[int, int, list[Array], float]:
        first, last = chunk
        some, group = messages.piece(first, last), groups.group[first:last]
        n, low = int(group[-1] - group[0]) + 1, int(group[0])
        level, by_action, score = (
            np.zeros((n, packed_size(p + 1))),
            np.zeros((n, K, p, p)),
            np.zeros((n, K, p)),
        )
        entries = slice(units.starts[first] * p * p, units.starts[last] * p * p)
        X = np.zeros((last - first) * p * K * p) if dense else slopes[entries]
        late = np.empty((last - first) // 8 + 1, dtype=np.int64)
        spots, room = loops.rooms(p)
        log_det, count = loops.sum_tasks(
            normalised(some.packed), some.units.starts, some.units.action, group - low, p, K, dense, *split, spots,
            level, by_action, score, X, late, room,
        )  # fmt: skip
        omitted.append(first + late[:count])
        between = np.zeros((n, K * p, K * p))
        if dense:
            wide = X.reshape(-1, K * p)
            for g, begin, end in groups.runs(first, last):
                rows = wide[(begin - first) * p : (end - first) * p]
                between[g - low] = rows.T @ rows
        return low, low + n, [level, by_action, score, between], some.log_det + log_det

    chunks = units.pieces(
        UNITS, K * p * p if dense else 0, K
    )  # sums of a piece are (K p)^2, products of n p rows
    shapes: list[tuple[int, ...]] = [(G, packed_size(p + 1)), (G, K, p, p), (G, K, p), (G, K * p, K * p)]
    level, by_action, score, between, log_det = _added(in_threads(work, chunks, processors()), shapes)
    if not dense:
        blocks = units.blocks(slopes.reshape(-1, p, p), 0, t)
        between = (blocks.T @ blocks).toarray()[None]
    sums = GroupSums.of_parts(unpack(level, p + 1), by_action, score, -between, log_det)
    late = np.concatenate(omitted)
    if not late.size:
        return sums
    tasks = np.unique(np.minimum(late[:, None] + np.arange(8), t - 1))
    some = messages.of_tasks(tasks)
    rest = TaskMessages.of(some, level_cov).sums(some, groups.of_tasks(tasks))
    return sums.plus(rest._replace(log_det=rest.log_det - some.log_det))


def _sums_of_one(units: ObservedUnits, interaction: float, level_var: float, groups: TaskGroups) -> GroupSums:
    """Sums of all groups of one coefficient an action, from sums of rows."""
    G, K, rows = groups.n_groups, units.n_actions, normalised(units.rows)
    loops = backend.crossed(rows.size)

    def work(chunk: tuple[int, int]) -> tuple[int, int, list[Array], float]:
        group = groups.group[chunk[0] : chunk[1]]
        n, low = int(group[-1] - group[0]) + 1, int(group[0])
        sums = [np.zeros((n, 3)), np.zeros((n, K)), np.zeros((n, K)), np.zeros((n, K, K))]
        log_det = loops.sum_tasks_of_one(
            rows, units.starts, units.action, group - low, *chunk, interaction, level_var, *sums,
            np.empty(K), np.empty(K),
        )  # fmt: skip
        return low, low + n, sums, log_det

    parts = in_threads(work, units.pieces(SMALL_UNITS), processors())
    shapes: list[tuple[int, ...]] = [(G, 3), (G, K), (G, K), (G, K, K)]
    level, by_action, score, between, log_det = _added(parts, shapes)
    halves = between + between.swapaxes(1, 2)
    return GroupSums.of_parts(unpack(level, 2), by_action[..., None, None], score[..., None], halves, log_det)


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
    information, score, squares = _graded(
        sums.level[None], sums.rows[None], sums.information[None], sums.score[None], reference
    )
    root, y, rest, square = pivoted_root(information[0], score[0], float(squares[0]))

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
    """The evidence along A = a^2 F F', for every a at once; of several ways up, along the last axes.

    Differences of mu_a from the mean of a reference action have the prior a^2 (I + 1 1') (x) F F' and, the level
    integrated out, the information P and score b; with T T' = (I + 1 1') (x) F F' and T'P T = Q diag(lambda) Q',

        log|N| = log|J' Pi J| + sum log(1 + a^2 lambda)        square = q - sum a^2 y^2 / (1 + a^2 lambda),  y = Q'T'b

    Attributes
    ----------
    values : (n, r) array
        lambda.
    squares : (n, r) array
        y^2.
    log_det, square : (n,) array
        At a = 0; ``log_det`` with that of the ways up.
    """

    values: Array
    squares: Array
    log_det: Array
    square: Array

    @classmethod
    def of(cls, sums: Sequence[RootSums], factor: Array) -> "ActionProfile":
        """Diagonalise the information about differences between actions in units of their prior, F (p, p).

        All sums are of the same log, so that the same actions have rows.
        """
        observed = np.einsum("aiai->a", sums[0].information) > 0  # others say nothing of a
        K, p = int(observed.sum()), len(factor)
        information = np.array([one.information[observed][:, :, observed] for one in sums])
        rows = np.array([one.rows[:, observed] for one in sums])
        score = np.array([one.score[observed] for one in sums])
        level = np.array([one.level for one in sums])
        reference = _reference(information[0])
        whole, score, square = _graded(level, rows, information, score, reference)
        first = np.arange(reference * p, reference * p + p)
        rest = np.delete(np.arange(K * p), first)
        scale = np.sqrt(np.einsum("nii->ni", whole)[:, first])
        root = np.linalg.cholesky(whole[:, first[:, None], first] / (scale[:, :, None] * scale[:, None, :]))
        columns = np.concatenate([whole[:, first[:, None], rest], score[:, first, None]], axis=2)
        half = np.linalg.solve(root, columns / scale[:, :, None])
        log_det = 2.0 * (np.log(np.einsum("nii->ni", root)).sum(axis=1) + np.log(scale).sum(axis=1))
        explained = half.swapaxes(1, 2) @ half
        b = score[:, rest] - explained[:, :-1, -1]
        effect_root = np.kron(np.linalg.cholesky(np.eye(K - 1) + 1.0), factor[:, factor.any(axis=0)])
        inner = effect_root.T @ (whole[:, rest[:, None], rest] - explained[:, :-1, :-1]) @ effect_root
        values, vectors = np.linalg.eigh((inner + inner.swapaxes(1, 2)) / 2)
        y = np.einsum("nij,ni->nj", vectors, b @ effect_root)
        log_det += np.array([one.log_det for one in sums])
        return cls(np.maximum(values, 0.0), np.square(y), log_det, square - explained[:, -1, -1])

    def at(self, sds: Array) -> tuple[Array, Array]:
        """log|N| and the square of the rewards (k, n), for each a (k,) and each way up."""
        variance = np.square(sds)[:, None, None]
        return (
            self.log_det + np.log1p(variance * self.values).sum(axis=2),
            self.square - (variance * self.squares / (1.0 + variance * self.values)).sum(axis=2),
        )


def _reference(information: Array) -> int:
    """Action with most information, in units of the most that any has about each coefficient."""
    diagonal = np.einsum("aiai->ai", information)
    most = diagonal.max(axis=0)
    return int(first_largest((diagonal / np.where(most > 0, most, 1.0)).sum(axis=1)))


def _graded(
    level: Array, rows: Array, information: Array, score: Array, reference: int
) -> tuple[Array, Array, Array]:
    """Information, score and square in mu of the reference action and the differences of all others from it.

    The arguments are those of n :class:`RootSums`, and so are the results: (n, K p, K p), (n, K p), (n,).
    """
    n, K, p = score.shape
    whole, score = information.copy(), score.copy()
    whole[:, reference], whole[:, :, :, reference] = rows, rows.transpose(0, 2, 3, 1)
    whole[:, reference, :, reference] = level[:, :p, :p]
    score[:, reference] = level[:, :p, p]
    return whole.reshape(n, K * p, K * p), score.reshape(n, K * p), level[:, p, p]


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
