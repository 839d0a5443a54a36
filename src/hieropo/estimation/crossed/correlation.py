"""The correlation of rewards within clusters, integrated as the standard deviations of the crossed prior are.

With c the standard deviation between clusters in units of that within them, rho = c^2 / (1 + c^2). A priori c is 0 with
probability 1/2, else half-Cauchy, so that u = (2 / pi) arctan c is uniform and rho = sin^2(pi u / 2). Actions have one
c, or c_a = c o_a with o_a from their correlations at the mode where twice the log evidence of these is above that of
one c by (K - 1) log C, for C clusters (Schwarz). Each node of c is a grid of its own (:mod:`grid`) on the moments of
rows of that correlation, with the relative sizes of the mode.

Nodes of all c stand side by side on the moments of one rho, that of the mean of c. Where the clusters of an action are
of one size n, and features do not vary within clusters, moments of two correlations differ by the constant factor

    kappa = (1 - rho + n rho) / (1 - rho' + n rho')      from rho to rho'

so that a hierarchy at rho' has the same posterior at rho with the noise s^2 / kappa, and a^2 kappa, l^2 kappa and
m^2 kappa in its units. Where sizes differ, kappa is the ratio of the information of all clusters, and the answer is
approximate. The noise of nodes then spreads by as much as the information of the rows is unknown.

Source: Gelman, Bayesian Analysis 1, 2006 (half-Cauchy standard deviations). The factor kappa is our own.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hieropo._utils.arrays import Array
from hieropo._utils.packed import triangle
from hieropo._utils.progress import say
from hieropo.estimation.clusters import search_correlations
from hieropo.estimation.crossed.grid import Axes, Groups, Window, compressed, grid, log_marginal
from hieropo.estimation.crossed.mixture import CrossedHierarchies
from hieropo.estimation.crossed.shapes import Shapes, to_digits
from hieropo.moments.clusters import ClusterSums, correlated
from hieropo.moments.statistics import Moments

MOST_CLUSTERS = 3_000  # of more, rho is known to .01, and the grids of a fit take longer than a million rows
_NODES = 7  # of c above 0
_PLACES = 2  # decimals of the middle of the first window, so that rounding elsewhere does not move nodes
_FAR = 0.95  # u up to which c is searched for; rho is .994 there
_HALF = 0.12  # half of the first window of u; five standard errors of u for 300 clusters
_ROUNDS = 6
_ENOUGH = 3.0  # effective nodes from which the window is narrow enough
_HEAVY = 0.02  # density at an end of the window, in units of its mean, above which it is too narrow
_SMALLEST = 1e-4  # weight of a node that is kept, in units of the largest
_VARIES = 1e-9  # share of the squares of features within clusters, above which they vary


@dataclass(frozen=True, eq=False)
class IntegratedCorrelation:
    """Correlations that a log leaves possible, and the hierarchies at each.

    Attributes
    ----------
    mean : (K,) array
        The correlations that moments are to have: those of the mean of c, or 0 where P(c = 0 | log) is above 1/2.
    zero : float
        P(c = 0 | log).
    hierarchies : CrossedHierarchies
        For moments of the correlations ``mean``. Their weights are of all correlations; a log evidence on these moments
        is not.
    """

    mean: Array
    zero: float
    hierarchies: CrossedHierarchies


@dataclass(frozen=True, eq=False)
class CorrelationNode:
    """The grid at some correlations.

    Attributes
    ----------
    rho : (K,) array
    axes, weights, squares
        As of :func:`grid`.
    log_evidence : float
        Up to a constant of the log.
    u : float
        (2 / pi) arctan c.
    """

    rho: Array
    axes: Axes
    weights: Array
    squares: Array
    log_evidence: float
    u: float = 0.0


@dataclass(frozen=True, eq=False)
class CorrelationNodes:
    """Makes nodes from u, along c_a = c o_a.

    Attributes
    ----------
    moments : Moments
        Of the rows, taken as independent, for each action.
    clusters : ClusterSums
    shapes : Shapes
    relative : (K,) array
        o_a.
    """

    moments: Moments
    clusters: ClusterSums
    shapes: Shapes
    relative: Array

    def rho(self, u: float) -> Array:
        """Return the correlations (K,) at u."""
        odds = np.square(np.tan(np.pi / 2 * u) * self.relative)
        return np.asarray(odds / (1.0 + odds))

    def at(self, u: float) -> CorrelationNode:
        """Return the node at u."""
        return replace(self.of(self.rho(u)), u=u)

    def of(self, rho: Array) -> CorrelationNode:
        """Return the node at some correlations."""
        moments, groups = correlated(self.moments, self.clusters, rho), Groups((), np.zeros(0), np.zeros(0))
        axes, weights, squares = grid(moments, self.shapes, groups)
        return CorrelationNode(
            rho, axes, weights, squares, log_marginal(moments, self.shapes, groups, axes, weights)
        )


def integrable(moments: Any, clusters: ClusterSums) -> bool:
    """Return True where correlations can be integrated: features are equal in all rows of a cluster."""
    if not isinstance(moments, Moments) or not moments.per_action or len(clusters.size) > MOST_CLUSTERS:
        return False
    if (clusters.size <= 1.0).all() or not clusters.drawn_once:
        return False
    p = moments.unit_dim
    i, j = triangle(p)
    total = moments.unit_sums[:, : i.size][:, i == j].sum(axis=0)
    between = (clusters.sums[:, :p] ** 2 / clusters.size[:, None]).sum(axis=0)
    return bool((total - between <= _VARIES * total).all())


def integrate_correlation(
    moments: Moments, clusters: ClusterSums, learn: Callable[[Moments], Any]
) -> IntegratedCorrelation:
    """Return the correlations that a log leaves possible, and the hierarchies at each.

    Parameters
    ----------
    moments : Moments
        Of the rows, taken as independent, for each action.
    clusters : ClusterSums
        Of the same rows; :func:`integrable`.
    learn : callable
        Returns the posterior that is learned from other moments.
    """
    found = search_correlations(moments, clusters, learn)
    say("Integrating over the correlation of rewards within clusters ...")
    rows = np.bincount(clusters.action, clusters.size, moments.n_actions)
    near = float(np.round(_u_of(float(rows @ found.rho / rows.sum())), _PLACES))
    K = moments.n_actions
    nodes = CorrelationNodes(moments, clusters, found.posterior.hierarchy.shapes, np.ones(K))
    u, mass, at = _integrated(nodes, near)
    if near > 0.0:
        gain = nodes.of(found.rho).log_evidence - max(node.log_evidence for node in at)
        if 2.0 * gain > (np.count_nonzero(rows) - 1) * np.log(clusters.size.size):
            relative = np.sqrt(_odds(found.rho)) / np.tan(np.pi / 2 * near)
            nodes = replace(nodes, relative=relative)
            u, mass, at = _integrated(nodes, near)
    at = [nodes.of(np.zeros(K)), *at]
    logs = np.log(np.append(0.5, 0.5 * mass)) + np.array([node.log_evidence for node in at])
    share = np.exp(logs - logs.max())
    share /= share.sum()
    mean = np.zeros(K) if share[0] > 0.5 else nodes.rho(float(share[1:] @ u / share[1:].sum()))
    return IntegratedCorrelation(mean, float(share[0]), side_by_side(nodes, at, share, mean))


def _odds(rho: Array) -> Array:
    return np.asarray(rho / (1.0 - rho))


def _u_of(rho: float) -> float:
    return float(2.0 / np.pi * np.arcsin(np.sqrt(rho)))


def _integrated(nodes: CorrelationNodes, near: float) -> tuple[Array, Array, list[CorrelationNode]]:
    """Return u and the prior mass of some nodes above 0, and the nodes, in a window that has nearly all weight."""
    window = Window(max(near - _HALF, 0.0), min(near + _HALF, _FAR), _NODES)
    for _ in range(_ROUNDS):
        u, mass = window.spots()
        at = [nodes.at(value) for value in u.tolist()]
        logs = np.array([node.log_evidence for node in at]) + np.log(mass)
        weight = np.exp(logs - logs.max())
        density, width = weight / mass * mass.sum() / weight.sum(), window.high - window.low
        below = width if window.low > 0.0 and density[0] > _HEAVY else 0.0
        above = width if window.high < _FAR and density[-1] > _HEAVY else 0.0
        if below or above:
            window = Window(max(window.low - below, 0.0), min(window.high + above, _FAR), _NODES)
            continue
        closer = window.closer(weight)
        if weight.sum() ** 2 >= _ENOUGH * (weight**2).sum() or closer == window:
            break
        window = closer
    return u, mass, at


def side_by_side(
    nodes: CorrelationNodes, at: list[CorrelationNode], share: Array, mean: Array
) -> CrossedHierarchies:
    """Return the hierarchies of all nodes, with the noise by which their rows tell as much on moments of ``mean``."""
    dof = nodes.moments.n_rows - nodes.moments.unit_dim
    least = _SMALLEST * max(
        weight * float(node.weights.max()) for weight, node in zip(share.tolist(), at, strict=True)
    )
    columns = []
    for weight, node in zip(share.tolist(), at, strict=True):
        kept = weight * node.weights > least
        if not kept.any():
            continue
        a, level, m, _ = (
            sds[kept] for sds in np.meshgrid(*(axis.nodes for axis in node.axes), indexing="ij")
        )
        kappa = _information(nodes, node.rho) / _information(nodes, mean)
        scale = np.full(a.size, kappa**0.5)
        s2 = node.squares[kept] / max(dof - 2, 1.0) / kappa
        c = np.full(a.size, np.tan(np.pi / 2 * node.u))
        columns.append(np.stack([weight * node.weights[kept], a, level, m, c, scale, s2]))
    shares, a, level, m, c, scale, s2 = np.concatenate(columns, axis=1)
    shares /= shares.sum()
    few = compressed(
        shares, (a, to_digits(level), m, c)
    )  # not of a * scale, whose rounding would choose nodes
    level_sd = level * scale * np.sqrt(1.0 + m**2)
    return CrossedHierarchies(shares, a * scale, level_sd, m * scale, s2, few, nodes.shapes)


def _information(nodes: CorrelationNodes, rho: Array) -> float:
    """Return the sum of n_c / (1 - rho + n_c rho) over clusters, in units of the noise of their actions."""
    of_cluster, n = rho[nodes.clusters.action], nodes.clusters.size
    noise = nodes.shapes.noise_ratio[nodes.clusters.action]
    return float((n / (1.0 - of_cluster + n * of_cluster) / noise).sum())
