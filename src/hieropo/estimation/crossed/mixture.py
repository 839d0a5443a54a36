"""The crossed prior with its variances integrated out: a grid of standard deviations, zero among them.

With A = a^2 s^2 I, L = l^2 s^2 I, M = m^2 s^2 I and noise s^2 rho_a, a priori and independently

    a, m:  0 with probability 1/2, else half-Cauchy (scale 1, so in units of the noise)
    l:     half-Cauchy of scale sqrt(1 + m^2), since rows of one action a task tell l^2 / (1 + m^2) alone
    s^2:   1 / s^2, integrated in closed form: with q the square of the rewards at s = 1 and n - p degrees of freedom,
           evidence  Gamma((n - p) / 2) (q / 2)^(-(n - p) / 2)  and  E[s^2 | log] = q / (n - p - 2)

In u = (2 / pi) arctan a, which is uniform a priori, the evidence is smooth: nodes and masses are those of Gauss and
Legendre on a window of u. The grid is made again over the nodes that have weight, until these are several. A node is
one way up, of which units are shared by all nodes of one m, and tasks by all of one (l, m). In large logs a part of the
tasks, spread evenly over their numbers of rows, finds the windows and l, which decides nothing and is known well by
then; larger parts narrow the windows, and all tasks tell a and m. The covariances of :mod:`shapes` take the
place of I, and its noise variances that of rho, where columns or actions differ.

A subset of the nodes is conditioned: within each pattern of zeros nonnegative weights with the same polynomial moments
of (u_a, u_l, u_m), up to degree 3, as all nodes have (such weights exist on as few nodes as there are moments:
Tchakaloff's theorem). Given a node everything is Gaussian, with E[s^2 | log] for s^2 (exactly it is a t of n - p
degrees of freedom, of this variance), so that the posterior is a finite mixture. The nodes a = m = 0 say that actions
have no effect: there every difference between policies is exactly 0.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import lgamma, log
from typing import Any, NamedTuple, Self

import numpy as np

from hieropo._utils.arrays import Array
from hieropo._utils.packed import triangle
from hieropo._utils.text import agreeing, counted
from hieropo.errors import InputError, NumericalError, warn
from hieropo.estimation.crossed.shapes import (
    Shapes,
    TasksInOrder,
    learn_shapes,
    least_noise,
    part_of_tasks,
    refuse_explained,
)
from hieropo.estimation.hyper.mixed import Components
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.crossed.posterior import CrossedPosterior, UnitTable, check_crossed, condition_crossed
from hieropo.model.crossed.steps import ActionProfile, ObservedUnits, RootSums, UnitMessages
from hieropo.model.gaussian import Gaussian, frozen
from hieropo.model.posterior import PosteriorTable, Unseen
from hieropo.moments.units import UnitMoments

_NODES = 7  # of one standard deviation above 0
_LEVEL_NODES = 5  # of l, which decides nothing
_ENOUGH = 3.0  # effective nodes of a standard deviation, from which its window is narrow enough
_NARROWER = 0.8  # share of a window that is left of it, up to which it is narrowed once more
_ROUNDS = 8
_NEGLIGIBLE = 1e-4  # weight of a node, in units of the largest, from which the next grid spans it
_SMALLEST = 1e-5  # weight of a node that is kept
_DEGREE = 3  # of the polynomials that conditioned nodes integrate as all nodes do
_DECIMALS = 4  # of log weights, where conditioned nodes are chosen
_NARROW = 0.02  # sd of a log standard deviation below which its mean is enough
_PILOT = 500  # observed units of the first part of the tasks
_ROWS = 4  # rows for each coefficient that a part has at least
_MORE = 6  # times as many units the next part has, until it is all tasks
_LEVEL_UNITS = 2_000  # units of a part that tells l well enough
_REPLICATES = 10.0  # rows beyond the first of a task and action, from which on they tell the noise
_FEW = 3  # rows besides one for each coefficient, below which hardly anything is learned
_SHAPE_UNITS = 4_000  # units that relative sizes are learned from
_CERTAIN = 1e-12  # weight of m = 0 in a part of the tasks, below which more tasks are not asked for it
_SPAN = 1.3  # largest m over smallest, up to which the evidence between nodes is a polynomial of m
_POLYNOMIAL = 6  # coefficients of that polynomial
_CURVE_NODES = 13  # of m, which cost nothing there
_POINTS = 200  # quantiles of a ratio, and of its unit, in intervals of their product
_KEPT = 2**26  # doubles of all conditioned nodes together that are kept between views


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


Windows = tuple[Window, Window, Window]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CrossedHierarchies:
    """The hierarchies that a log leaves possible, with weights.

    Parameters
    ----------
    weights : (H,) array
        Positive; add to 1.
    action_sd, level_sd, interaction_sd : (H,) array
        a, l, m in units of the noise.
    noise_var : (H,) array
        E[s^2 | log] of each.
    conditioned : (H,) array
        Weights of those that posteriors are made of; 0 for most.
    shapes : Shapes
        Covariances at a = l = m = s = 1, and noise variances over s^2.

    Raises
    ------
    InputError
        Shapes do not fit, or the weights are no weights.
    """

    weights: Array
    action_sd: Array
    level_sd: Array
    interaction_sd: Array
    noise_var: Array
    conditioned: Array
    shapes: Shapes

    def __post_init__(self) -> None:
        for name in _ARRAYS:
            object.__setattr__(self, name, frozen(getattr(self, name)))
        sizes = {name: getattr(self, name).shape for name in _ARRAYS}
        if set(sizes.values()) != {(self.weights.size,)} or not self.weights.size:
            raise InputError(
                f"One number for each hierarchy is needed, in arrays of one shape (H,); got {sizes}."
            )
        for name in ("weights", "conditioned"):
            values = getattr(self, name)
            if not (values >= 0).all() or abs(float(values.sum()) - 1.0) > 1e-6:
                raise InputError(
                    f"The least of {name} is {values.min():.3g} and all add to {values.sum():.6g}; weights of at "
                    "least 0 that add to 1 are needed."
                )

    def __len__(self) -> int:
        return int(self.weights.size)

    def __repr__(self) -> str:
        return (
            f"CrossedHierarchies({len(self)} hierarchies of {counted(self.n_actions, 'action')}, P(no effect) "
            f"{self.no_effect:.2g}, P(no action effect) {self.no_action_effect:.2g}, P(no interaction) "
            f"{self.no_interaction:.2g})"
        )

    @property
    def unit_dim(self) -> int:
        """Coefficients p of one action."""
        return len(self.shapes.level)

    @property
    def n_actions(self) -> int:
        """K."""
        return int(self.shapes.noise_ratio.size)

    @property
    def no_effect(self) -> float:
        """P(A = M = 0 | log): actions have no effect in any task."""
        return self._share((self.action_sd == 0) & (self.interaction_sd == 0))

    @property
    def no_action_effect(self) -> float:
        """P(A = 0 | log): no action does anything that it does in all tasks."""
        return self._share(self.action_sd == 0)

    @property
    def no_interaction(self) -> float:
        """P(M = 0 | log): actions do the same in all tasks."""
        return self._share(self.interaction_sd == 0)

    def _share(self, chosen: Array) -> float:
        return float(self.weights[chosen].sum())

    def hierarchy(self, node: int) -> CrossedHierarchy:
        """Return one of the hierarchies."""
        a, level, m = (float(sd[node] ** 2) for sd in (self.action_sd, self.level_sd, self.interaction_sd))
        return self._scaled(a, level, m, float(self.noise_var[node]))

    def central(self) -> CrossedHierarchy:
        """Return the hierarchy of the posterior means of standard deviations and of noise variances.

        Means of variances do not exist where two actions, or tasks, are all that tells one.
        """
        noise = float(self.weights @ self.noise_var)
        parts = (self.action_sd, self.level_sd, self.interaction_sd)
        a, level, m = (float(self.weights @ (np.sqrt(self.noise_var) * sd)) ** 2 / noise for sd in parts)
        return self._scaled(a, level, m, noise)

    def _scaled(self, action: float, level: float, interaction: float, noise: float) -> CrossedHierarchy:
        s = self.shapes
        return CrossedHierarchy(
            action * noise * s.action, level * noise * s.level, interaction * noise * s.interaction,
            noise * s.noise_ratio,
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return JSON's types, from which :meth:`from_dict` makes the same value to the last bit."""
        return {
            "kind": "crossed",
            **{name: getattr(self, name).tolist() for name in _ARRAYS},
            "shapes": {name: part.tolist() for name, part in self.shapes._asdict().items()},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` wrote."""
        arrays = {name: np.asarray(values[name], dtype=np.float64) for name in _ARRAYS}
        shapes = {name: np.asarray(part, dtype=np.float64) for name, part in values["shapes"].items()}
        return cls(**arrays, shapes=Shapes(**shapes))


_ARRAYS = ("weights", "action_sd", "level_sd", "interaction_sd", "noise_var", "conditioned")


class CrossedMixture:
    """Posterior of every task and action, the variances of the crossed prior integrated.

    Made by :func:`condition_hierarchies`.

    Attributes
    ----------
    moments : UnitMoments
    hierarchy : CrossedHierarchies
    weights : (H,) array
        Of the Gaussians whose mixture the posterior is.
    """

    def __init__(self, moments: UnitMoments, hierarchies: CrossedHierarchies) -> None:
        self.moments = moments
        self.hierarchy = hierarchies
        self._nodes = np.flatnonzero(hierarchies.conditioned)
        self.weights = hierarchies.conditioned[self._nodes]

    @property
    def dim(self) -> int:
        """Features d = K p of the feature map."""
        return self.moments.dim

    @cached_property
    def central_hierarchy(self) -> CrossedHierarchy:
        """The hierarchy that stands for the mixture where one must."""
        return self.hierarchy.central()

    @property
    def noise_variances(self) -> Array:
        """Noise variances (K,) of the actions, of the central hierarchy."""
        return self.central_hierarchy.noise_var

    def central(self) -> CrossedPosterior:
        """Return the posterior under the central hierarchy, taken as known."""
        return condition_crossed(self.moments, self.central_hierarchy)

    def task_slices(self, width: int) -> Iterator[slice]:  # noqa: ARG002 - of the interface of all posteriors
        """Give one slice of all tasks, since :meth:`parts` may condition all tasks anew each time it is called."""
        yield slice(0, len(self.moments))

    @cached_property
    def hyper(self) -> Gaussian:
        """Mean and covariance of beta, in R^p."""
        return self._mixed([part.hyper for part in self.parts()])

    @cached_property
    def log_evidence(self) -> float:
        """Log evidence of the hierarchies, averaged by their posterior weights."""
        return float(self.weights @ np.array([part.log_evidence for part in self.parts()]))

    def parts(self) -> Iterator[CrossedPosterior]:
        """Give the posterior under each hierarchy that is conditioned, in the order of ``weights``."""
        if self._doubles * self.weights.size <= _KEPT:
            yield from self._kept
            return
        yield from (self._part(int(node)) for node in self._nodes)

    @property
    def _doubles(self) -> int:
        """Of one conditioned node."""
        p = self.moments.unit_dim
        return int(np.count_nonzero(self.moments.rows)) * 4 * p * p + len(self.moments) * 2 * p * p

    @cached_property
    def _units(self) -> ObservedUnits:
        """Units where s = 1."""
        return ObservedUnits.of(self.moments, self.hierarchy.shapes.noise_ratio)

    @cached_property
    def _kept(self) -> list[CrossedPosterior]:
        return [self._part(int(node)) for node in self._nodes]

    def _part(self, node: int) -> CrossedPosterior:
        hierarchy = self.hierarchy.hierarchy(node)
        return condition_crossed(
            self.moments, hierarchy, self._units.over(float(self.hierarchy.noise_var[node]))
        )

    def _mixed(self, laws: list[Gaussian]) -> Gaussian:
        return self._components(laws).gaussian()

    def _components(self, laws: list[Gaussian]) -> Components:
        return Components(
            self.weights, np.array([law.mean for law in laws]), np.array([law.cov for law in laws])
        )

    def action(self, action: int) -> Gaussian:
        """Return mean and covariance of beta + alpha_a; errors as :meth:`CrossedPosterior.action`."""
        return self._mixed([part.action(action) for part in self.parts()])

    def components(self, task: object, action: int) -> Components:
        """Return the Gaussians whose mixture is the posterior of theta_sa; errors as :meth:`CrossedPosterior.unit`."""
        return self._components([part.unit(task, action) for part in self.parts()])

    def unit(self, task: object, action: int, *, unseen: Unseen = "prior") -> Gaussian:
        """Return mean and covariance of theta_sa; errors as :meth:`CrossedPosterior.unit`."""
        return self._mixed([part.unit(task, action, unseen=unseen) for part in self.parts()])

    def task(self, task: object, *, unseen: Unseen = "prior") -> Gaussian:
        """Return mean and covariance of all d coefficients of a task; errors as :meth:`CrossedPosterior.unit`."""
        return self.task_components(task, unseen=unseen).gaussian()

    def task_components(self, task: object, *, unseen: Unseen = "prior") -> Components:
        """Return the Gaussians whose mixture is the posterior of all d coefficients of a task."""
        return self._components([part.task(task, unseen=unseen) for part in self.parts()])

    def new_task(self) -> Gaussian:
        """Return mean and covariance of all d coefficients of a task that has no rows."""
        return self._mixed([part.new_task() for part in self.parts()])

    def table(self) -> UnitTable:
        """Return means and covariances of all units, each on its own."""
        return self._table

    def dense(self) -> PosteriorTable:
        """Return the joint law of all d coefficients of every task: m d (d + 1) / 2 numbers.

        For what needs the covariances between actions of a task, such as :class:`SamplingPolicy`, where m d^2 is small.
        """
        mean, cov = _mixed_arrays(self.weights, (part.dense_arrays() for part in self.parts()), self.dim)
        rows = self.moments.rows.sum(axis=1)
        return PosteriorTable(self.moments.keys, mean, cov, rows, self.new_task())

    @cached_property
    def _table(self) -> UnitTable:
        def arrays() -> Iterator[tuple[Array, Array]]:
            for part in self.parts():
                table = part.table()
                means = np.concatenate([table.means, table.prior_means[None]])
                yield means, np.concatenate([table.covs, table.prior_covs[None]])

        mean, covs = _mixed_arrays(self.weights, arrays(), self.moments.unit_dim)
        rows = self.moments.rows.sum(axis=1)
        return UnitTable(self.moments.keys, mean[:-1], covs[:-1], rows, mean[-1], covs[-1])

    def __repr__(self) -> str:
        none = self.hierarchy.no_effect
        return f"CrossedMixture({self.moments!r}, {self.weights.size} hierarchies, P(no effect) {none:.3g})"


def _mixed_arrays(weights: Array, laws: Iterator[tuple[Array, Array]], p: int) -> tuple[Array, Array]:
    """Means (..., p) and packed covariances (..., p (p + 1) / 2) of mixtures, from those under each hierarchy."""
    i, j = triangle(p)
    first, cov = next(laws)  # squares of differences from the first keep digits
    mean, covs = np.zeros_like(first), weights[0] * cov
    square = np.zeros_like(cov)
    for weight, (part_mean, part_cov) in zip(weights[1:], laws, strict=True):
        away = part_mean - first
        mean += weight * away
        covs += weight * part_cov
        square += weight * away[..., i] * away[..., j]
    covs += square - mean[..., i] * mean[..., j]
    return first + mean, covs


def condition_hierarchies(moments: UnitMoments, hierarchies: CrossedHierarchies) -> CrossedMixture:
    """Condition the hierarchies that a log leaves possible on the log; a pure function.

    Raises
    ------
    MismatchError, NumericalError
        As :func:`condition_crossed`.
    """
    check_crossed(moments, hierarchies.hierarchy(0))
    return CrossedMixture(moments, hierarchies)


def integrate_crossed(moments: UnitMoments, shapes: Shapes | None = None) -> CrossedHierarchies:
    """Integrate the crossed prior over its standard deviations.

    Parameters
    ----------
    moments : UnitMoments
    shapes : Shapes, optional
        Relative variances of columns and of the noise of actions; default as the log says.

    Raises
    ------
    InputError, MismatchError, NumericalError
        As :class:`CrossedHierarchy` and :func:`condition_crossed`; fewer rows than the noise needs (p + 1); rewards
        that are all explained.
    """
    p = moments.unit_dim
    zero, ratio = np.zeros((p, p)), np.ones(moments.n_actions) if shapes is None else shapes.noise_ratio
    check_crossed(moments, CrossedHierarchy(zero, zero, zero, ratio))
    dof = moments.n_rows - p
    if dof < 1:
        raise NumericalError(
            f"The log has {counted(moments.n_rows, 'row')}. The noise of rewards is learned from the rows that "
            f"{counted(p, 'coefficient')} of an action {agreeing(p, 'leaves', 'leave')} over: at least {p + 1} rows "
            "are needed. Add rows, or condition a CrossedHierarchy of known noise_var."
        )
    if moments.n_rows < p + _FEW:
        warn(
            f"The log has {counted(moments.n_rows, 'row')}, of which hardly anything is learned: answers are those of "
            "the prior."
        )
    if np.count_nonzero(moments.rows.any(axis=1)) == 1:
        warn("The log has one task: how much tasks differ is not shown by it, and is as the prior has it.")
    if not noise_told(moments):
        warn(
            "This log does not tell the noise of rewards from differences between tasks: tasks have too few rows of "
            "one and the same action. Intervals would not hold as often as they say, and summaries give none. Learn "
            "from rows that repeat an action in a task."
        )
    if shapes is None:
        shapes = learn_shapes(part_of_tasks(moments, max(_SHAPE_UNITS // p, 500)))
    axes, weights, squares = _grid(moments, shapes)
    least = least_noise(moments)
    if squares.ravel()[weights.argmax()] < 2 * dof * least:
        warn(
            f"Rewards are without noise given the features; their noise is kept at a variance of {least:.3g}, far "
            "below that of the rewards."
        )
    kept = weights > _SMALLEST * weights.max()
    a, level, m = (sds[kept] for sds in np.meshgrid(*(axis.nodes for axis in axes), indexing="ij"))
    level_sd = level * np.sqrt(1 + m**2)
    share = weights[kept] / weights[kept].sum()
    s2 = squares[kept] / max(dof - 2, 1.0)
    return CrossedHierarchies(share, a, level_sd, m, s2, _compressed(share, (a, level, m)), shapes)


def noise_told(moments: UnitMoments) -> bool:
    """Say that the log tells the noise from interactions: by replicate rows of a task and action, or by contexts."""
    units = moments.rows[moments.rows > 0]
    replicates = float(np.maximum(units - 1.0, 0.0).sum())
    return moments.unit_dim > 1 or replicates >= min(_REPLICATES, 0.1 * units.size)


def _grid(moments: UnitMoments, shapes: Shapes) -> tuple[tuple["Axis", "Axis", "Axis"], Array, Array]:
    """Axes, weights and squares of the last grid, found on parts of the tasks that grow until they are all."""
    tasks = TasksInOrder.of(moments)
    units, some = _PILOT, tasks.part(_PILOT)
    windows: Windows = Window(), Window(nodes=_LEVEL_NODES), Window()
    level, varied = None, False
    while True:
        while some is not moments and some.n_rows < _ROWS * moments.unit_dim:
            units *= _MORE
            some = tasks.part(units)
        search = _Search.of(some, shapes)._replace(varied=varied)
        windows, axes, weights, squares = search.resolved(windows, level)
        if some is moments:
            return axes, weights, squares
        varied = float(weights[:, :, 0].sum()) < _CERTAIN
        if level is None and units >= _LEVEL_UNITS:
            level = float(np.exp(_mean(np.log(axes[1].nodes), weights.sum(axis=(0, 2)))))
        units *= _MORE
        some = tasks.part(units)


def _mean(values: Array, weights: Array) -> float:
    return float(weights @ values / weights.sum())


class _Search(NamedTuple):
    """Grids over (a, l, m) on some moments, each closer to the standard deviations that have weight."""

    units: ObservedUnits
    shapes: Shapes
    dof: float
    floor: float
    varied: bool = False  # m is certainly not 0

    @classmethod
    def of(cls, moments: UnitMoments, shapes: Shapes) -> Self:
        units = ObservedUnits.of(moments, shapes.noise_ratio)
        return cls(units, shapes, moments.n_rows - moments.unit_dim, least_noise(moments))

    def resolved(
        self, windows: Windows, level: float | None
    ) -> tuple[Windows, tuple[Axis, Axis, Axis], Array, Array]:
        """Windows, axes, weights and squares of a grid with several nodes of each sd; ``level`` is l."""
        curve = None
        for _ in range(_ROUNDS):
            first, second, third = windows
            middle = second.axis(zero=False) if level is None else Axis(np.array([level]), np.zeros(1))
            axes = first.axis(zero=True), middle, third.axis(zero=True)
            if curve is None and level is not None and _Curve.holds(axes[2].nodes[1:]):
                curve = _Curve.of(self, level, axes[2].nodes[1:])
            if curve is not None and third.nodes < _CURVE_NODES:
                windows = first, second, replace(third, nodes=_CURVE_NODES)
                continue
            weights, squares = self._weights(axes, curve)
            shares = _marginals(weights)
            if level is not None:
                shares[1] = np.zeros(0)
            first, second, third = (
                window if _resolved(share) else window.closer(share)
                for window, share in zip(windows, shares, strict=True)
            )
            if (first, second, third) == windows:
                break
            windows = first, second, third
        return windows, axes, weights, squares

    def profiles(self, m: float, levels: Array) -> list[ActionProfile]:
        """The evidence along a at some m and each l, by a way up for each."""
        messages = UnitMessages(self.units, m**2 * self.shapes.interaction)
        sums = [RootSums.of(messages, level**2 * (1 + m**2) * self.shapes.level) for level in levels]
        return [ActionProfile.of(each, self.shapes.action).plus(each.log_det) for each in sums]

    def _weights(self, axes: tuple[Axis, Axis, Axis], curve: "_Curve | None" = None) -> tuple[Array, Array]:
        """Posterior weights of the nodes (a, l, m), which add to 1, and the square of the rewards at each."""
        dof, a = self.dof, axes[0].nodes
        size = tuple(axis.nodes.size for axis in axes)
        log_det, squares = np.full(size, np.inf), np.ones(size)
        first = 1 if self.varied else 0
        last = size[2] if curve is None else 1
        for k in range(first, last):
            for j, profile in enumerate(self.profiles(float(axes[2].nodes[k]), axes[1].nodes)):
                log_det[:, j, k], squares[:, j, k] = profile.at(a)
        if curve is not None:
            log_det[:, 0, 1:], squares[:, 0, 1:] = curve.at(a, axes[2].nodes[1:])
        squares = np.maximum(squares, 0.0) + dof * self.floor
        refuse_explained(float(squares.min()))
        log_weight = -0.5 * log_det
        log_weight += lgamma(dof / 2) - dof / 2 * np.log(squares / 2)
        for k, axis in enumerate(axes):
            log_weight += np.expand_dims(axis.log_mass, tuple(i for i in range(3) if i != k))
        weights = np.exp(log_weight - log_weight.max())
        return weights / weights.sum(), squares


class _Curve(NamedTuple):
    """The evidence along m above 0, of one l: log determinants and squares are polynomials between a few nodes."""

    nodes: Array
    profiles: list[ActionProfile]

    @staticmethod
    def holds(nodes: Array) -> bool:
        """Say that the span of some nodes of m is so narrow that polynomials hold."""
        return bool(nodes[-1] <= _SPAN * nodes[0])

    @classmethod
    def of(cls, search: _Search, level: float, nodes: Array) -> "_Curve":
        """Take ways up at Chebyshev's points of the span of ``nodes``."""
        middle, half = (nodes[-1] + nodes[0]) / 2, (nodes[-1] - nodes[0]) / 2
        points = middle - half * np.cos(np.pi * (np.arange(_POLYNOMIAL) + 0.5) / _POLYNOMIAL)
        return cls(points, [search.profiles(m, np.array([level]))[0] for m in points.tolist()])

    def at(self, a: Array, m: Array) -> tuple[Array, Array]:
        """log|N| and squares (n, k) for each a (n,) and m (k,)."""
        log_det, squares = np.moveaxis(np.array([profile.at(a) for profile in self.profiles]), 0, 2)
        others = ~np.eye(len(self.nodes), dtype=np.bool_)
        basis = np.array(
            [
                np.prod((m[:, None] - self.nodes[rest]) / (node - self.nodes[rest]), axis=1)
                for node, rest in zip(self.nodes, others, strict=True)
            ]
        )
        return log_det @ basis, squares @ basis


def _marginals(weights: Array) -> list[Array]:
    """Weights of the nodes above 0 of a, l and m."""
    return [weights.sum(axis=(1, 2))[1:], weights.sum(axis=(0, 2)), weights.sum(axis=(0, 1))[1:]]


def _resolved(weight: Array) -> bool:
    """Say that a standard deviation has weight at several nodes, or at none but 0."""
    total = float(weight.sum())
    return total == 0.0 or total**2 >= _ENOUGH * float((weight**2).sum())


def _compressed(weights: Array, sds: tuple[Array, Array, Array]) -> Array:
    """Weights (H,), most of them 0, with the total and the moments of ``weights`` within each pattern of zeros."""
    found = np.zeros(weights.size)
    pattern = 2 * (sds[0] > 0) + (sds[2] > 0)
    for k in np.unique(pattern):
        at = np.flatnonzero(pattern == k)
        moving = [sd[at] for sd in sds if np.ptp(sd[at]) > 0]
        found[at] = _tchakaloff(weights[at], moving)
    return np.asarray(found / found.sum(), dtype=np.float64)


def _tchakaloff(weights: Array, sds: list[Array]) -> Array:
    """Weights on few nodes with the same moments of (2 / pi) arctan sd; of a narrow one, the same mean.

    The logs of ``weights`` are rounded first, so that rounding elsewhere does not decide which nodes are taken.
    """
    from itertools import combinations_with_replacement

    from scipy.optimize import nnls

    share = np.exp(np.round(np.log(weights / weights.sum()), _DECIMALS))
    share /= share.sum()
    wide, rows = [], [np.ones(weights.size)]
    for sd in sds:
        u, logs = np.arctan(sd), np.log(sd)
        z = (u - share @ u) / np.sqrt(share @ (u - share @ u) ** 2)
        rows.append(z)
        if share @ (logs - share @ logs) ** 2 > _NARROW**2:
            wide.append(z)
    for degree in range(2, _DEGREE + 1):
        rows.extend(np.prod(chosen, axis=0) for chosen in combinations_with_replacement(wide, degree))
    table = np.array(rows)
    few, rest = nnls(table, table @ share)
    chosen: Array = np.asarray(few if rest < 1e-6 else share, dtype=np.float64)
    return np.asarray(chosen * (weights.sum() / chosen.sum()), dtype=np.float64)


def interval_of_product(
    ratios: Array, units: Array, weights: Array, variance: float, level: float, *, slab: bool = False
) -> tuple[float, float, float]:
    """Return mean and ends of the equal-tailed interval of ratio times unit.

    The nodes of ``ratios`` (H,) above 0 stand for cells that meet half-way between them. The log of a unit has
    ``variance`` besides that of its nodes (H,). A ``slab`` has no mass at 0: where its density near 0 is no lower than
    at the upper end, the log allows 0, and the interval is that from 0.
    """
    from scipy.special import ndtri

    zero, above = float(weights[ratios == 0].sum()), ratios > 0
    value = float(weights @ (ratios * units))
    if not above.any():
        return value, 0.0, 0.0
    share, logs = weights[above] / weights[above].sum(), np.log(units[above])
    middle = float(share @ logs)
    sd = np.sqrt(variance + float(share @ (logs - middle) ** 2))
    q = (np.arange(_POINTS) + 0.5) / _POINTS
    draws = np.sort((_cells(ratios[above], share, q)[:, None] * np.exp(middle + sd * ndtri(q))).ravel())
    below = zero + (1 - zero) * (np.arange(draws.size) + 0.5) / draws.size
    low, high = (
        0.0 if p <= zero else float(np.interp(p, below, draws)) for p in ((1 - level) / 2, (1 + level) / 2)
    )
    if slab and _allows_zero(draws, low, high):
        return value, 0.0, float(np.interp(level, below, draws))
    return value, low, high


def _allows_zero(draws: Array, low: float, high: float) -> bool:
    """Say that sorted draws are as dense well below ``low`` as at ``high``."""
    near, left, right = np.searchsorted(draws, [low / 4, 0.95 * high, 1.05 * high])
    return bool(near / (low / 4) >= (right - left) / (0.1 * high))


def _cells(values: Array, share: Array, q: Array) -> Array:
    """Quantiles of cells around the distinct values, which meet half-way between these."""
    nodes, place = np.unique(values, return_inverse=True)
    if nodes.size == 1:
        return np.full(q.size, nodes[0])
    middle = (nodes[1:] + nodes[:-1]) / 2
    edges = np.concatenate([[max(2 * nodes[0] - middle[0], 0.0)], middle, [2 * nodes[-1] - middle[-1]]])
    return np.asarray(np.interp(q, np.append(0.0, np.cumsum(np.bincount(place, share))), edges))
