"""The grid of standard deviations over which the crossed prior is integrated; the prior is in :mod:`mixture`.

In u = (2 / pi) arctan a, which is uniform a priori, the evidence is smooth: nodes and masses are those of Gauss and
Legendre on a window of u. The grid is made again over the nodes that have weight, until these are several. A node is
one way up, of which units are shared by all nodes of one m, tasks by all of one (l, m), and groups by all of one a. In
large logs a part of the tasks, spread evenly over their numbers of rows, finds the windows and l, which decides nothing
and is known well by then; larger parts narrow the windows, and all tasks tell a and m.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import lgamma, log
from typing import NamedTuple, Self

import numpy as np

from hieropo._utils.arrays import Array
from hieropo._utils.progress import steps
from hieropo.estimation.crossed.few_rows import FewRows
from hieropo.estimation.crossed.shapes import (
    START,
    Shapes,
    TasksInOrder,
    least_noise,
    part_of_tasks,
    refuse_explained,
)
from hieropo.model.crossed.in_shards import sums_of_shards
from hieropo.model.crossed.steps import ActionProfile, GroupSums, Root, RootSums, UnitMessages, solve_root
from hieropo.model.crossed.tree import Ladder
from hieropo.model.crossed.turned import pays, turned
from hieropo.model.hierarchy import Grouping
from hieropo.model.steps import upper_factor
from hieropo.moments.in_shards import AnyMoments, MomentsInShards
from hieropo.moments.statistics import Moments

_NODES = 7  # of one standard deviation above 0
LEVEL_NODES = 5  # of l, which decides nothing
_ENOUGH = 3.0  # effective nodes of a standard deviation, from which its window is narrow enough
_NARROWER = 0.8  # share of a window that is left of it, up to which it is narrowed once more
_ROUNDS = 8
_NEGLIGIBLE = 1e-4  # weight of a node, in units of the largest, from which the next grid spans it
_DEGREE = (
    3  # of the polynomials that conditioned nodes integrate as all nodes do; 2 of four standard deviations
)
DECIMALS = 4  # of log weights, where conditioned nodes are chosen
_NARROW = 0.02  # sd of a log standard deviation below which its mean is enough
_DETERMINED = (
    0.01  # change of a posterior, in its standard deviations, up to which a standard deviation is told
)
_ROUGHLY = 0.25  # sd of log a up to which the mean of a is enough for actions that are new
_PILOT = 500  # observed units of the first part of the tasks
_ROWS = 4  # rows for each coefficient that a part has at least
_MORE = 6  # times as many units the next part has, until it is all tasks
_LEVEL_UNITS = 2_000  # units of a part that tells l well enough, of few columns
_LEVEL_COLUMNS = 8  # columns up to which that is so; more columns tell it with fewer units
_SWEEPS = 2  # over the standard deviations of groups, each at its mode given the others
_CERTAIN = 1e-12  # weight of m = 0 in a part of the tasks, below which more tasks are not asked for it
_SPAN = 1.3  # largest m over smallest, up to which the evidence between nodes is a polynomial of m
_POLYNOMIAL = 6  # coefficients of that polynomial
_CURVE_NODES = 13  # of m, which cost nothing there, and of l where it is the only one
_MARGIN = 0.5  # share of its span by which a window of a similar log is wider at each end
_ENDS = 0.02  # density at an end of such a window, which as a uniform one would be 1, up to which it is wide enough
_FALLEN = 0.1  # the same, in units of the largest density above 0: 0 may have nearly all weight


class Axis(NamedTuple):
    """Nodes of one standard deviation, and the log prior mass of each; a node at 0 is a point mass."""

    nodes: Array
    log_mass: Array


@dataclass(frozen=True, slots=True)
class Window:
    """The span of u = (2 / pi) arctan of a standard deviation that a grid covers."""

    low: float = 0.0
    high: float = 1.0
    nodes: int = _NODES

    def spots(self) -> tuple[Array, Array]:
        """Nodes in u, and their masses."""
        x, mass = np.polynomial.legendre.leggauss(self.nodes)
        half = (self.high - self.low) / 2
        return self.low + half * (x + 1), half * mass

    def axis(self, *, zero: bool) -> Axis:
        """Standard deviations with log prior masses; halved, and led by 0 with the other half, where 0 is possible."""
        spots, mass = self.spots()
        nodes, log_mass = np.tan(np.pi / 2 * spots), np.log(mass)
        if not zero:
            return Axis(nodes, log_mass)
        return Axis(np.append(0.0, nodes), np.append(0.0, log_mass) - log(2.0))

    def closer(self, weight: Array) -> "Window":
        """Span the nodes that have weight (of those above 0), up to the next one at each side."""
        heavy = np.flatnonzero(weight > _NEGLIGIBLE * weight.max())
        ends = np.concatenate([[self.low], self.spots()[0], [self.high]])
        low, high = float(ends[heavy[0]]), float(ends[heavy[-1] + 2])
        return Window(low, high, self.nodes) if high - low < _NARROWER * (self.high - self.low) else self

    def holds(self, weight: Array) -> bool:
        """Return True if a standard deviation is hardly beyond the window, from the weights of its nodes above 0."""
        density = weight / self.spots()[1] * (self.high - self.low)
        most = min(_ENDS, _FALLEN * float(density.max()))
        return bool((self.low == 0.0 or density[0] < most) and (self.high == 1.0 or density[-1] < most))


Windows = tuple[Window, ...]


class Groups(NamedTuple):
    """Groups of the tasks, and the standard deviations of levels that are not integrated; those of m_1 are."""

    levels: tuple[Grouping, ...]
    level_sds: Array
    interaction_sds: Array

    def covs(self, shapes: Shapes) -> list[tuple[Array, Array]]:
        """(L_g, M_g) of each level at s = 1, with m_1 = 1."""
        sds = np.append(1.0, self.interaction_sds[1:]) if self.levels else self.interaction_sds
        return [
            (level**2 * shapes.level, interaction**2 * shapes.interaction)
            for level, interaction in zip(self.level_sds, sds, strict=True)
        ]


def group_sds(moments: AnyMoments, shapes: Shapes, levels: tuple[Grouping, ...]) -> Groups:
    """Take the standard deviations of groups at their mode, one after the other; each m_g may be 0."""
    q = len(levels)
    if not q:
        return Groups((), np.zeros(0), np.zeros(0))
    search = _Search.of(
        part_of_tasks(moments, _LEVEL_UNITS), shapes, Groups(levels, np.zeros(q), np.zeros(q))
    )
    a, fixed = Window().axis(zero=True), np.zeros(1)
    sds = np.full(2 + 2 * q, START)  # l, m, and l_g and m_g of each level

    def log_evidence(changed: int, u: float) -> float:
        trial_sds = sds.copy()
        trial_sds[changed] = np.tan(np.pi / 2 * u)
        groups = Groups(levels, trial_sds[2::2], trial_sds[3::2])
        axes = a, Axis(trial_sds[:1], fixed), Axis(trial_sds[1:2], fixed), Axis(trial_sds[3:4], fixed)
        values = search._replace(groups=groups).log_weights(axes)[0].ravel()
        return float(np.logaddexp.reduce(values))

    for _ in range(_SWEEPS):
        for index in range(sds.size):
            sds[index] = _mode(lambda u, index=index: log_evidence(index, u), zero=index % 2 == 1)  # type: ignore[misc]
    return Groups(levels, sds[2::2].copy(), sds[3::2].copy())


def _mode(log_evidence: Callable[[float], float], *, zero: bool) -> float:
    """Standard deviation of the largest evidence; 0 where that is possible and has more than half of the weight."""
    from scipy.optimize import minimize_scalar

    spots, mass = Window().spots()
    values = np.array([log_evidence(u) for u in spots.tolist()])
    if zero and log_evidence(0.0) >= np.log(mass @ np.exp(values - values.max())) + values.max():
        return 0.0
    best = int(values.argmax())
    ends = np.concatenate([[0.0], spots, [0.99]])
    solution = minimize_scalar(
        lambda u: -log_evidence(float(u)), bounds=(ends[best], ends[best + 2]), method="bounded",
        options={"xatol": 5e-3},
    )  # fmt: skip
    return float(np.tan(np.pi / 2 * solution.x))


Axes = tuple[Axis, Axis, Axis, Axis]


def window_around(sds: Array, nodes: int = _NODES) -> Window:
    """Return a window for a log like one whose nodes with weight have these standard deviations (H,).

    It is wider than the nodes above 0, since relative sizes of columns that are learned anew move them. Up to a ratio
    of ``_SPAN`` between its ends, nodes of m cost nothing.
    """
    above = sds[sds > 0]
    if not above.size:
        return Window(nodes=nodes)
    low, high = float(above.min()), float(above.max())
    middle = (low * high) ** 0.5
    u = 2 / np.pi * np.arctan([low, high, middle / _SPAN**0.5, middle * _SPAN**0.5])
    margin = _MARGIN * (u[1] - u[0])
    low, high = float(min(u[0] - margin, u[2])), float(max(u[1] + margin, u[3]))
    return Window(max(low, 0.0), min(high, 1.0), nodes)


def grid(
    moments: AnyMoments, shapes: Shapes, groups: Groups, similar: tuple[Window, Window, Window] | None = None
) -> tuple[Axes, Array, Array]:
    """Axes, weights and squares of the last grid, found on parts of the tasks that grow until they are all.

    ``similar`` are windows of a, l and m of a similar log. Where they hold, all but one of the parts are left out.
    """
    tasks = TasksInOrder.of(moments)
    if similar is not None and not groups.levels:
        units = _PILOT if _tells_level(_PILOT, moments.unit_dim) else _MORE * _PILOT
        resolved = _grid_in(similar, moments, tasks.part(units), shapes, groups)
        if resolved is not None:
            return resolved
    units, part = _PILOT, tasks.part(_PILOT)
    windows: Windows = Window(), Window(nodes=LEVEL_NODES), Window(), Window(nodes=LEVEL_NODES)
    level, varied = None, False
    while True:
        while part is not moments and part.n_rows < _ROWS * moments.unit_dim:
            units *= _MORE
            part = tasks.part(units)
        search = _Search.of(part, shapes, groups)._replace(varied=varied)
        windows, axes, weights, squares = search.resolved(windows, level)
        if part is moments:
            return axes, weights, squares
        varied = float(weights[:, :, 0].sum()) < _CERTAIN
        if level is None and _tells_level(units, moments.unit_dim):
            level = float(np.exp(_mean(np.log(axes[1].nodes), weights.sum(axis=(0, 2, 3)))))
        units *= _MORE
        part = tasks.part(units)


def _tells_level(units: int, columns: int) -> bool:
    """Return True if so many units, whose levels have a size for each column in common, tell l well enough."""
    return units * max(columns / _LEVEL_COLUMNS, 1.0) >= _LEVEL_UNITS


def _grid_in(
    similar: tuple[Window, Window, Window],
    moments: AnyMoments,
    part: AnyMoments,
    shapes: Shapes,
    groups: Groups,
) -> tuple[Axes, Array, Array] | None:
    """Return the grid over some windows, with l from a part of the tasks; None where the windows do not hold."""
    if part is moments or part.n_rows < _ROWS * moments.unit_dim:
        return None
    action, level_window, interaction = similar
    of_groups = Window(nodes=LEVEL_NODES)
    middle = replace(interaction, nodes=1)  # l hardly depends on m
    search = _Search.of(part, shapes, groups)
    narrowed, axes, weights, _ = search.resolved((action, level_window, middle, of_groups), None)
    of_level = weights.sum(axis=(0, 2, 3))
    if not narrowed[1].holds(of_level):
        return None
    level = float(np.exp(_mean(np.log(axes[1].nodes), of_level)))
    varied = float(weights[:, :, 0].sum()) < _CERTAIN
    search = _Search.of(moments, shapes, groups)._replace(varied=varied)
    windows, axes, weights, squares = search.resolved((action, of_groups, interaction, of_groups), level)
    shares = _marginals(weights)
    holds = all(windows[k].holds(shares[k]) for k in (0, 2))
    return (axes, weights, squares) if holds else None


def _mean(values: Array, weights: Array) -> float:
    return float(weights @ values / weights.sum())


def level_without_effects(moments: AnyMoments, shapes: Shapes) -> tuple[float, float]:
    """Return the posterior means of l and s^2 where actions have no effect, a = m = 0."""
    search = _Search.of(moments, shapes, Groups((), np.zeros(0), np.zeros(0)))
    none, window = Axis(np.zeros(1), np.zeros(1)), Window(nodes=_CURVE_NODES)
    for _ in range(_ROUNDS):
        axes = none, window.axis(zero=False), none, none
        weights, squares = (part.ravel() for part in search.weights(axes))
        closer = window.closer(weights)
        if closer == window:
            break
        window = closer
    return float(weights @ axes[1].nodes), float(weights @ squares) / max(search.dof - 2, 1.0)


class _WayUp(NamedTuple):
    """The messages of tasks for each (m, l); the last of units, and of tasks, are kept.

    Attributes
    ----------
    tasks : callable
        From (m, l) to the messages of all tasks, l in units of sqrt(1 + m^2).
    """

    tasks: Callable[[float, float], RootSums | GroupSums]

    @classmethod
    def of(cls, moments: AnyMoments, ladder: Ladder, shapes: Shapes) -> Self:
        """Take the steps on some ladder, in shards, or, without groups, from few rows of many columns."""
        if isinstance(moments, MomentsInShards):
            shards = moments

            @lru_cache(maxsize=1)
            def from_shards(m: float, level: float) -> RootSums:
                level_cov = level**2 * (1 + m**2) * shapes.level
                return sums_of_shards(
                    shards, shapes.noise_ratio, [(m**2 * shapes.interaction, level_cov, 1.0)]
                )[0]

            return cls(from_shards)
        if ladder.tree is None and FewRows.pays(moments):
            rows = FewRows.of(moments, np.eye(moments.unit_dim))
            root_sums = rows.way_up(shapes.level, shapes.interaction, shapes.noise_ratio)
            return cls(lambda m, level: root_sums(level**2 * (1 + m**2), m**2))

        @lru_cache(maxsize=1)
        def from_units(m: float) -> UnitMessages:
            return ladder.from_units(m**2 * shapes.interaction)

        @lru_cache(maxsize=1)
        def from_tasks(m: float, level: float) -> RootSums | GroupSums:
            return ladder.from_tasks(from_units(m), level**2 * (1 + m**2) * shapes.level)

        return cls(from_tasks)


class _Search(NamedTuple):
    """Grids over (a, l, m, m_1) on some moments, each closer to the standard deviations that have weight."""

    ladder: Ladder
    way_up: _WayUp
    shapes: Shapes
    action_factor: Array
    dof: float
    floor: float
    groups: Groups
    turned: Ladder | None = None  # of few tasks of many actions
    varied: bool = False  # m is certainly not 0

    @classmethod
    def of(cls, moments: AnyMoments, shapes: Shapes, groups: Groups) -> Self:
        of_ladder = moments.none() if isinstance(moments, MomentsInShards) else moments
        ladder = Ladder.of(of_ladder, groups.levels, shapes.noise_ratio)
        factor = upper_factor(shapes.action)[0]
        dof = moments.n_rows - moments.unit_dim
        other_way = None
        if isinstance(moments, Moments) and not groups.levels and pays(moments) and not FewRows.pays(moments):
            ones = np.ones(int(np.count_nonzero(moments.rows.any(axis=1))))
            other_way = Ladder.of(turned(moments, shapes.noise_ratio), (), ones)
        return cls(
            ladder,
            _WayUp.of(moments, ladder, shapes),
            shapes,
            factor,
            dof,
            least_noise(moments),
            groups,
            other_way,
        )

    def resolved(self, windows: Windows, level: float | None) -> tuple[Windows, Axes, Array, Array]:
        """Windows, axes, weights and squares of a grid with several nodes of each sd; ``level`` is l."""
        curve = None
        for _ in range(_ROUNDS):
            axes = self._axes(windows, level)
            if (
                curve is None
                and level is not None
                and not self.groups.levels
                and _Curve.holds(axes[2].nodes[1:])
            ):
                curve = _Curve.of(self, level, axes[2].nodes[1:])
            if curve is not None and windows[2].nodes < _CURVE_NODES:
                windows = windows[0], windows[1], replace(windows[2], nodes=_CURVE_NODES), windows[3]
                continue
            weights, squares = self.weights(axes, curve)
            if float(weights[:, :, 0].sum()) < _CERTAIN:
                self = self._replace(varied=True)  # noqa: PLW0642
            shares = _marginals(weights)
            if level is not None:
                shares[1] = np.zeros(0)
            if not self.groups.levels:
                shares[3] = np.zeros(0)
            closer = tuple(
                window if _resolved(share) else window.closer(share)
                for window, share in zip(windows, shares, strict=True)
            )
            if closer == windows:
                break
            windows = closer
        return windows, axes, weights, squares

    def _axes(self, windows: Windows, level: float | None) -> Axes:
        first, second, third, fourth = windows
        middle = second.axis(zero=False) if level is None else Axis(np.array([level]), np.zeros(1))
        of_groups = fourth.axis(zero=True) if self.groups.levels else Axis(np.zeros(1), np.zeros(1))
        return first.axis(zero=True), middle, third.axis(zero=True), of_groups

    def to_root(self, m: float, level: float, first_sds: Array) -> list[RootSums]:
        """Return the messages to the root at some m and l, for each m_1."""
        return self.ladder.to_root(self.way_up.tasks(m, level), self.groups.covs(self.shapes), first_sds)

    def along_actions(
        self, m: Sequence[float], levels: Sequence[float], first_sds: Array
    ) -> Callable[[Array], tuple[Array, Array]]:
        """Return the function from a (k,) to log|N| and squares (k, n), for each of some m, l and m_1.

        The last varies fastest. With few tasks of many actions it is a way up of its own for each a, along l.
        """
        if self.turned is None:
            sums = [one for each in m for level in levels for one in self.to_root(each, level, first_sds)]
            return ActionProfile.of(sums, self.action_factor).at
        turned, level_factor = self.turned, upper_factor(self.shapes.level)[0]

        def at(a: Array) -> tuple[Array, Array]:
            parts = []
            for each in m:
                messages = turned.from_units(each**2 * self.shapes.interaction)
                sums = [turned.from_tasks(messages, sd**2 * self.shapes.action) for sd in a.tolist()]
                profile = ActionProfile.of(sums, level_factor)  # type: ignore[arg-type]  # without groups
                parts.append(profile.at(np.array(levels) * (1 + each**2) ** 0.5))
            log_det, squares = (np.concatenate(some).T for some in zip(*parts, strict=True))
            return log_det, squares

        return at

    def weights(self, axes: Axes, curve: "_Curve | None" = None) -> tuple[Array, Array]:
        """Posterior weights of the nodes (a, l, m, m_1), which add to 1, and the square of the rewards at each."""
        log_weight, squares = self.log_weights(axes, curve)
        weights = np.exp(log_weight - log_weight.max())
        return weights / weights.sum(), squares

    def log_weights(self, axes: Axes, curve: "_Curve | None" = None) -> tuple[Array, Array]:
        """Logs of the weights, up to a constant, and the squares."""
        dof, a = self.dof, axes[0].nodes
        size = tuple(axis.nodes.size for axis in axes)
        log_det, squares = np.full(size, np.inf), np.ones(size)
        first = 1 if self.varied else 0
        last = size[2] if curve is None else 1
        for k in steps(range(first, last), "Learning the variation between tasks, step", last - first):
            along = self.along_actions([float(axes[2].nodes[k])], axes[1].nodes.tolist(), axes[3].nodes)
            values = (part.reshape(size[0], size[1], size[3]) for part in along(a))
            log_det[:, :, k], squares[:, :, k] = values
        if curve is not None:
            log_det[:, 0, 1:, 0], squares[:, 0, 1:, 0] = curve.at(a, axes[2].nodes[1:])
        squares = np.maximum(squares, 0.0) + dof * self.floor
        refuse_explained(float(squares.min()))
        log_weight = -0.5 * log_det
        log_weight += lgamma(dof / 2) - dof / 2 * np.log(squares / 2)
        for k, axis in enumerate(axes):
            log_weight += np.expand_dims(axis.log_mass, tuple(i for i in range(4) if i != k))
        return log_weight, squares


def log_marginal(moments: Moments, shapes: Shapes, groups: Groups, axes: Axes, weights: Array) -> float:
    """Return the log evidence of all nodes of a grid, up to a constant that depends on the shapes and numbers of rows.

    ``axes`` and ``weights`` are those of :func:`grid`; one further way up is taken, at the node of most weight.
    """
    at = np.unravel_index(int(weights.argmax()), weights.shape)
    one = [Axis(axis.nodes[k : k + 1], axis.log_mass[k : k + 1]) for axis, k in zip(axes, at, strict=True)]
    value = _Search.of(moments, shapes, groups).log_weights((one[0], one[1], one[2], one[3]))[0]
    return float(value.sum() - np.log(weights[at]) + moments.log_precision.sum() / 2)


class _Curve(NamedTuple):
    """The evidence along m above 0, of one l: log determinants and squares are polynomials between a few nodes."""

    nodes: Array
    along_actions: Callable[[Array], tuple[Array, Array]]

    @staticmethod
    def holds(nodes: Array) -> bool:
        """Return True if the span of some nodes of m is so narrow that polynomials hold."""
        return bool(nodes[-1] <= _SPAN * nodes[0])

    @classmethod
    def of(cls, search: _Search, level: float, nodes: Array) -> "_Curve":
        """Take ways up at Chebyshev's points of the span of ``nodes``."""
        middle, half = (nodes[-1] + nodes[0]) / 2, (nodes[-1] - nodes[0]) / 2
        points = middle - half * np.cos(np.pi * (np.arange(_POLYNOMIAL) + 0.5) / _POLYNOMIAL)
        return cls(points, search.along_actions(points.tolist(), [level], np.zeros(1)))

    def at(self, a: Array, m: Array) -> tuple[Array, Array]:
        """log|N| and squares (n, k) for each a (n,) and m (k,)."""
        log_det, squares = self.along_actions(a)
        others = ~np.eye(len(self.nodes), dtype=np.bool_)
        basis = np.array(
            [
                np.prod((m[:, None] - self.nodes[rest]) / (node - self.nodes[rest]), axis=1)
                for node, rest in zip(self.nodes, others, strict=True)
            ]
        )
        return log_det @ basis, squares @ basis


def _marginals(weights: Array) -> list[Array]:
    """Weights of the nodes above 0 of a, l, m and m_1."""
    others = [tuple(i for i in range(4) if i != k) for k in range(4)]
    above = 1, 0, 1, 1
    return [weights.sum(axis=axes)[first:] for axes, first in zip(others, above, strict=True)]


def _resolved(weight: Array) -> bool:
    """Return True if a standard deviation has weight at several nodes, or at none but 0."""
    total = float(weight.sum())
    return total == 0.0 or total**2 >= _ENOUGH * float((weight**2).sum())


def determined(moments: AnyMoments, shapes: Shapes, weights: Array, sds: tuple[Array, ...]) -> bool:
    """Return True if posteriors of units at the mean standard deviations are those of all nodes (a, l, m), by weight.

    None is 0, and l and m are known to a hundredth of themselves. a, which differences between few actions tell, may
    be known to a quarter, where what actions do hardly depends on it: means of beta + alpha_a move by less than a
    hundredth of their posterior standard deviations, and these by less than a hundredth, if a is one standard
    deviation off.
    """
    logs = [np.log(sd) for sd in sds[:3] if sd.min() > 0]
    if len(logs) < 3 or sds[3].any():
        return False
    means = [_mean(values, weights) for values in logs]
    a_sd, *others = (
        _mean(np.square(values - mean), weights) ** 0.5 for values, mean in zip(logs, means, strict=True)
    )
    if max(others) > _DETERMINED or a_sd > _ROUGHLY:
        return False
    a, level, m = np.exp(means)
    ladder = Ladder.of(
        moments.none() if isinstance(moments, MomentsInShards) else moments, (), shapes.noise_ratio
    )
    sums = _WayUp.of(moments, ladder, shapes).tasks(m, level)
    assert isinstance(sums, RootSums)  # without groups
    low, high = (
        solve_root(sums, (a * factor) ** 2 * shapes.action) for factor in (np.exp(-a_sd), np.exp(a_sd))
    )
    (low_mean, low_sd), (high_mean, high_sd) = (_of_actions(root) for root in (low, high))
    noise_sd = (low.square / max(moments.n_rows - moments.unit_dim, 1.0)) ** 0.5
    change = np.abs(high_mean - low_mean) / (2 * noise_sd * low_sd)
    return bool(change.max() < _DETERMINED and np.abs(np.log(high_sd / low_sd)).max() < 2 * _DETERMINED)


def _of_actions(root: Root) -> tuple[Array, Array]:
    """Posterior means and standard deviations (K, p) of beta + alpha_a, at s = 1."""
    sd = np.sqrt(np.square(root.cov_root + root.effect_roots).sum(axis=2))
    return root.mean + root.effects, np.maximum(sd, np.finfo(np.float64).tiny)


def compressed(weights: Array, sds: tuple[Array, ...]) -> Array:
    """Weights (H,), most of them 0, with the total and the moments of ``weights`` within each pattern of zeros."""
    few = np.zeros(weights.size)
    pattern = 4 * (sds[0] > 0) + 2 * (sds[2] > 0) + (sds[3] > 0)
    for k in np.unique(pattern):
        members = np.flatnonzero(pattern == k)
        moving = [sd[members] for sd in sds if np.ptp(sd[members]) > 0]
        few[members] = few_nodes(weights[members], moving)
    return np.asarray(few / few.sum(), dtype=np.float64)


def few_nodes(weights: Array, sds: list[Array], degree: int = _DEGREE) -> Array:
    """Weights on few nodes with the same moments of (2 / pi) arctan sd; of a narrow one, the same mean.

    Moments are up to ``degree``, one less from four standard deviations on (Tchakaloff's theorem). The logs of
    ``weights`` are rounded first, so that rounding elsewhere does not decide which nodes are taken. If the search for
    few does not end, all nodes keep their weights.
    """
    from itertools import combinations_with_replacement

    from scipy.optimize import nnls

    share = np.exp(np.round(np.log(weights / weights.sum()), DECIMALS))
    share /= share.sum()
    wide, rows = [], [np.ones(weights.size)]
    for sd in sds:
        u, logs = np.arctan(sd), np.log(sd)
        z = (u - share @ u) / np.sqrt(share @ (u - share @ u) ** 2)
        rows.append(z)
        if share @ (logs - share @ logs) ** 2 > _NARROW**2:
            wide.append(z)
    for order in range(2, degree + (len(wide) < 4)):
        rows.extend(np.prod(chosen, axis=0) for chosen in combinations_with_replacement(wide, order))
    table = np.array(rows)
    try:
        few, rest = nnls(table, table @ share, maxiter=30 * share.size)
    except RuntimeError:
        few, rest = share, 0.0
    chosen: Array = np.asarray(few if rest < 1e-6 else share, dtype=np.float64)
    return np.asarray(chosen * (weights.sum() / chosen.sum()), dtype=np.float64)
