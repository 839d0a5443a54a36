"""The crossed prior with its variances integrated out: a grid of standard deviations, zero among them.

With A = a^2 s^2 I, L = l^2 s^2 I, M = m^2 s^2 I and noise s^2 rho_a, a priori and independently

    a, m:  0 with probability 1/2, else half-Cauchy (scale 1, so in units of the noise)      l: half-Cauchy
    s^2:   1 / s^2, integrated in closed form: with q the square of the rewards at s = 1 and n - p degrees of freedom,
           evidence  Gamma((n - p) / 2) (q / 2)^(-(n - p) / 2)  and  E[s^2 | log] = q / (n - p - 2)

In u = (2 / pi) arctan a, which is uniform a priori, the evidence is smooth: nodes and masses are those of Gauss and
Legendre on a window of u. The grid is made again over the nodes that have weight, until these are several. A node is
one way up, of which units are shared by all nodes of one m, and tasks by all of one (l, m). Given a node everything is
Gaussian, with E[s^2 | log] for s^2 (exactly it is a t of n - p degrees of freedom, of this variance), so that the
posterior is a finite mixture. The nodes a = m = 0 say that actions have no effect: there every difference between
policies is exactly 0.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import lgamma, log
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hieropo.core.crossed_hierarchy import CrossedHierarchy
from hieropo.core.crossed_posterior import CrossedPosterior, check_crossed, condition_crossed
from hieropo.core.crossed_steps import ObservedUnits, TaskMessages, UnitMessages, solve_root
from hieropo.core.gaussian import Array, Gaussian, frozen
from hieropo.core.mixed import Components, normal_mixture_below, normal_mixture_quantile
from hieropo.core.packed import packed_size, triangle
from hieropo.core.shared_actions import UnitTable
from hieropo.core.units import UnitMoments
from hieropo.errors import InputError, NumericalError

_NODES = 7  # of one standard deviation above 0
_ENOUGH = 4.0  # effective nodes of a standard deviation that the log determines
_ROUNDS = 8
_NEGLIGIBLE = 1e-4  # weight of a node, in units of the largest, from which the next grid spans it
_SMALLEST = 1e-5  # weight of a node that is kept


class Axis(NamedTuple):
    """Nodes of one standard deviation, and the log prior mass of each; a node at 0 is a point mass."""

    nodes: Array
    log_mass: Array


@dataclass(frozen=True, slots=True)
class Window:
    """The span of u = (2 / pi) arctan of a standard deviation that a grid covers."""

    low: float = 0.0
    high: float = 1.0

    def spots(self) -> tuple[Array, Array]:
        """Nodes in u, and their masses."""
        x, mass = np.polynomial.legendre.leggauss(_NODES)
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
        return Window(float(ends[heavy[0]]), float(ends[heavy[-1] + 2]))


@dataclass(frozen=True, slots=True, eq=False)
class CrossedGrid:
    """Hierarchies that the log leaves possible, with weights.

    Parameters
    ----------
    weights : (H,) array
        Positive; add to 1.
    action_sd, level_sd, interaction_sd : (H,) array
        a, l, m in units of the noise.
    noise_var : (H,) array
        E[s^2 | log] of each node.
    noise_ratio : (K,) array
        rho_a: noise variances of actions in units of s^2.
    """

    weights: Array
    action_sd: Array
    level_sd: Array
    interaction_sd: Array
    noise_var: Array
    noise_ratio: Array

    def __post_init__(self) -> None:
        for name in ("weights", "action_sd", "level_sd", "interaction_sd", "noise_var", "noise_ratio"):
            object.__setattr__(self, name, frozen(getattr(self, name)))

    def __len__(self) -> int:
        return int(self.weights.size)

    def hierarchy(self, node: int, p: int) -> CrossedHierarchy:
        """Return the hierarchy of a node, of p coefficients an action."""
        each, s2 = np.eye(p), self.noise_var[node]
        a, level, m = (
            float(sd[node] ** 2 * s2) for sd in (self.action_sd, self.level_sd, self.interaction_sd)
        )
        return CrossedHierarchy(a * each, level * each, m * each, s2 * self.noise_ratio)


class MixedTotal(NamedTuple):
    """A sum over tasks under each node: a mixture of Gaussians, and of points where a node knows it.

    Attributes
    ----------
    weights, means, sds : (H,) array
    """

    weights: Array
    means: Array
    sds: Array

    @property
    def mean(self) -> float:
        """Mean of the mixture."""
        return float(self.weights @ self.means)

    @property
    def sd(self) -> float:
        """Standard deviation of the mixture."""
        return float(np.sqrt(self.weights @ (self.sds**2 + (self.means - self.mean) ** 2)))

    def quantile(self, level: float) -> float:
        """Quantile of the mixture; exactly 0 where the point mass at 0 has it."""
        below, above = self.below(), 1.0 - float(normal_mixture_below(self.weights, -self.means, self.sds))
        if below < level <= above:  # P(x < 0) < level <= P(x <= 0)
            return 0.0
        return float(normal_mixture_quantile(self.weights, self.means, self.sds, level))

    def below(self, at: float = 0.0) -> float:
        """P(sum < at)."""
        return float(normal_mixture_below(self.weights, self.means, self.sds, at))


class CrossedMixture:
    """Posterior of every task and action, the variances of the crossed prior integrated; by :func:`integrate_crossed`.

    Attributes
    ----------
    moments : UnitMoments
    grid : CrossedGrid
    """

    def __init__(self, moments: UnitMoments, grid: CrossedGrid) -> None:
        self.moments = moments
        self.grid = grid

    def _share(self, chosen: Array) -> float:
        return float(self.grid.weights[chosen].sum())

    @property
    def no_effect(self) -> float:
        """P(A = M = 0 | log): actions have no effect in any task."""
        return self._share((self.grid.action_sd == 0) & (self.grid.interaction_sd == 0))

    @property
    def no_action_effect(self) -> float:
        """P(A = 0 | log): no action does anything that it does in all tasks."""
        return self._share(self.grid.action_sd == 0)

    @property
    def no_interaction(self) -> float:
        """P(M = 0 | log): actions do the same in all tasks."""
        return self._share(self.grid.interaction_sd == 0)

    def parts(self) -> Iterator[CrossedPosterior]:
        """Give the posterior under each node of the grid, one after the other."""
        for node in range(len(self.grid)):
            yield condition_crossed(self.moments, self.grid.hierarchy(node, self.moments.unit_dim))

    def components(self, task: object, action: int) -> Components:
        """Return the Gaussians whose mixture is the posterior of theta_sa; errors as :meth:`CrossedPosterior.unit`."""
        return _components(self.grid.weights, [part.unit(task, action) for part in self.parts()])

    def unit(self, task: object, action: int) -> Gaussian:
        """Return mean and covariance of theta_sa; errors as :meth:`CrossedPosterior.unit`."""
        return self.components(task, action).gaussian()

    def task(self, task: object) -> Gaussian:
        """Return mean and covariance of all d coefficients of a task; errors as :meth:`CrossedPosterior.unit`."""
        return _components(self.grid.weights, [part.task(task) for part in self.parts()]).gaussian()

    def total(self, vectors: Array) -> MixedTotal:
        """Return the law of sum_s v_s' theta_s over all tasks of the log, vectors (m, d) in the order of its tasks.

        The gain of a policy over another is the sum for v_s = weight of the task x (psi_s - psi'_s), psi_s (d,) the
        mean features under a policy.
        """
        found = np.array([part.total(vectors) for part in self.parts()])
        return MixedTotal(self.grid.weights, found[:, 0], np.sqrt(found[:, 1]))

    def table(self) -> UnitTable:
        """Return means and covariances of all units, each on its own."""
        return self._table

    @cached_property
    def _table(self) -> UnitTable:
        tables = ((w, part.table()) for w, part in zip(self.grid.weights, self.parts(), strict=True))
        weight, first = next(tables)
        K, p = first.prior_means.shape
        i, j = triangle(p)
        whole = np.concatenate(
            [first.means, first.prior_means[None]]
        )  # squares of differences from it keep digits
        mean, covs, square = np.zeros_like(whole), *np.zeros((2, len(whole), K, packed_size(p)))
        covs += weight * np.concatenate([first.covs, first.prior_covs[None]])
        for w, table in tables:
            away = np.concatenate([table.means, table.prior_means[None]]) - whole
            mean += w * away
            covs += w * np.concatenate([table.covs, table.prior_covs[None]])
            square += w * away[..., i] * away[..., j]
        covs += square - mean[..., i] * mean[..., j]
        mean += whole
        return UnitTable(self.moments.keys, mean[:-1], covs[:-1], first.rows, mean[-1], covs[-1])

    def __repr__(self) -> str:
        return f"CrossedMixture({self.moments!r}, {len(self.grid)} hierarchies, P(no effect) {self.no_effect:.3g})"


def _components(weights: Array, laws: list[Gaussian]) -> Components:
    return Components(weights, np.array([law.mean for law in laws]), np.array([law.cov for law in laws]))


def integrate_crossed(moments: UnitMoments, noise_ratio: ArrayLike | None = None) -> CrossedMixture:
    """Integrate the crossed prior over its variances.

    Parameters
    ----------
    moments : UnitMoments
    noise_ratio : (K,) array, optional
        Noise variances of actions in units of a common one; default all 1.

    Raises
    ------
    InputError, MismatchError, NumericalError
        As :class:`CrossedHierarchy` and :func:`condition_crossed`; fewer rows than the noise needs (p + 3); rewards
        that are all explained.
    """
    p = moments.unit_dim
    ratio = np.ones(moments.n_actions) if noise_ratio is None else np.asarray(noise_ratio, dtype=np.float64)
    zero = np.zeros((p, p))
    check_crossed(moments, CrossedHierarchy(zero, zero, zero, ratio))
    dof = moments.n_rows - p
    if dof <= 2:
        raise InputError(
            f"The log has {moments.n_rows:g} rows. The noise of rewards is learned from the rows that {p} coefficients "
            f"leave over: at least {p + 3} rows are needed. Condition a CrossedHierarchy of known noise_var instead."
        )
    units = ObservedUnits.of(moments, ratio)
    windows = (Window(),) * 3
    for _ in range(_ROUNDS):
        axes = windows[0].axis(zero=True), windows[1].axis(zero=False), windows[2].axis(zero=True)
        weights, squares = _weights(units, axes, dof)
        above = _marginals(weights)
        if all(_resolved(axis_weight) for axis_weight in above):
            break
        first, second, third = (
            window if _resolved(weight) else window.closer(weight)
            for window, weight in zip(windows, above, strict=True)
        )
        windows = first, second, third
    kept = weights > _SMALLEST * weights.max()
    a, level, m = np.meshgrid(*(axis.nodes for axis in axes), indexing="ij")
    found = weights[kept] / weights[kept].sum()
    s2 = squares[kept] / (dof - 2)
    return CrossedMixture(moments, CrossedGrid(found, a[kept], level[kept], m[kept], s2, ratio))


def _weights(units: ObservedUnits, axes: tuple[Axis, Axis, Axis], dof: float) -> tuple[Array, Array]:
    """Posterior weights of the nodes (a, l, m), which add to 1, and the square of the rewards at each."""
    each, shape = np.eye(units.dim), tuple(axis.nodes.size for axis in axes)
    log_weight, squares = np.empty(shape), np.empty(shape)
    for k, m in enumerate(axes[2].nodes):
        messages = UnitMessages.of(units, m**2 * each)
        for j, level in enumerate(axes[1].nodes):
            sums = TaskMessages.of(units, messages, level**2 * each).root
            for i, a in enumerate(axes[0].nodes):
                root = solve_root(sums, a**2 * each)
                squares[i, j, k] = root.square
                log_weight[i, j, k] = -0.5 * (sums.log_det + root.log_det)
    if not (squares > 0).all():
        raise NumericalError(
            "Rewards are explained without any rest, so that their noise is not determined. Are all rewards of the log "
            "equal? Condition a CrossedHierarchy with a known noise_var instead."
        )
    log_weight += lgamma(dof / 2) - dof / 2 * np.log(squares / 2)
    for k, axis in enumerate(axes):
        log_weight += np.expand_dims(axis.log_mass, tuple(i for i in range(3) if i != k))
    weights = np.exp(log_weight - log_weight.max())
    return weights / weights.sum(), squares


def _marginals(weights: Array) -> list[Array]:
    """Weights of the nodes above 0 of a, l and m."""
    return [weights.sum(axis=(1, 2))[1:], weights.sum(axis=(0, 2)), weights.sum(axis=(0, 1))[1:]]


def _resolved(weight: Array) -> bool:
    """Whether a standard deviation has weight at several nodes, or at none but 0."""
    total = float(weight.sum())
    return total == 0.0 or total**2 >= _ENOUGH * float((weight**2).sum())
