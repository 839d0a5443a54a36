"""The profile likelihood of one standard deviation, and likelihood-ratio intervals from it.

Covariances, in units of the estimate's noise_var, are sums over groups of directions,

    S_k = sum_g x_g sum_(i in g) w_i t_i t_i'

with x_g >= 0; what leaves the cone is projected on it. The profile of one x is the minimum over the others and sigma^2,
by scoring steps with the slopes of :func:`tree_estimation.tree_likelihood`.

With D the restricted deviance and v one variance of one level, the interval holds all v >= 0 with

    min D given v  -  min D  <=  b chi2_1(level),   b = k (log(k / 2) - psi(k / 2)) + 1 / f - 1 / (k + f)

for k + 1 nodes and a noise variance that f degrees of freedom identify. The first part of b is Bartlett's factor: it
gives the left side the mean of chi2_1 where k squares estimate one variance; the rest corrects for small f. The minimum
given v is over sigma^2 and the other variances (:class:`Surface`): of a diagonal shape over all of them, of multiples
of one matrix over those of the other levels. Of a full covariance, v moves along its least favourable direction, the
change of Sigma_k that fits best with a change of v; the rest of Sigma_k is held, and other levels have multiples.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.packed import packed_size, triangle
from hieropo.estimation.hyper.mixed import prior_scales
from hieropo.estimation.psd import to_matrix
from hieropo.estimation.reml import Estimate, Fit, with_rows
from hieropo.estimation.shapes import named, packed_positions
from hieropo.estimation.tree_estimation import Tree, dual, level_form, tree_likelihood, tree_of
from hieropo.model.hierarchy import Hierarchy
from hieropo.model.steps import square_roots
from hieropo.moments.in_shards import AnyMoments, MomentsInShards
from hieropo.moments.statistics import Moments

_END_STEPS = 20  # values of a variance that are tried for one end
_OTHER_STEPS = 10  # steps of the other parameters for one value
_ROOT_TOLERANCE = 0.02  # error of the root of the ratio at which the search ends, with a step of Newton
_DECREASE_TOLERANCE = 0.02  # predicted decrease of the deviance by the other parameters that is neglected
_ZERO = 1e-9  # variance, in units of its standard error
_MIN_CURVATURE = 1e-6  # in units of the diagonal; a smaller one is an error of the approximation
_MIN_NOISE_CURVATURE = 0.01  # in log sigma^2, in units of N: the approximation may be negative
_MAX_NOISE_CHANGE = 5.0  # of log sigma^2 from its estimate
_MAX_LOG_STEP = 3.0  # of a step of Newton
_INFINITE = 1e8  # standard errors at which an end is infinite


class Ends(NamedTuple):
    """Ends of an interval of a standard deviation; ``upper`` may be infinite."""

    lower: float
    upper: float


@dataclass(frozen=True, slots=True, eq=False)
class Covariance:
    """One covariance, in units of the estimate's noise_var.

    Attributes
    ----------
    directions : (r, d) array
        Rows t_i.
    weights : (r,) array
        w_i.
    group : (r,) int array
    sizes : (g,) array
        x of the estimate.
    free : (g,) bool array
        True where x may vary.
    scale : (d,) array
        Units of the features for the projection on the cone.
    """

    directions: Array
    weights: Array
    group: Codes
    sizes: Array
    free: NDArray[np.bool_]
    scale: Array

    def matrix(self, sizes: Array) -> Array:
        """Return S (d, d) for these x."""
        S: Array = (self.directions.T * (sizes[self.group] * self.weights)) @ self.directions
        if (self.weights >= 0).all():
            return S
        values, vectors = np.linalg.eigh(S / np.outer(self.scale, self.scale))
        root = vectors * np.sqrt(np.maximum(values, 0.0)) * self.scale[:, None]
        return np.asarray(root @ root.T)

    @property
    def _members(self) -> Array:
        """Weights of the directions in each group (g, r)."""
        return np.equal.outer(np.arange(self.sizes.size), self.group) * self.weights

    def slope(self, matrix: Array) -> Array:
        """Return the derivative in x (g,), from that in S (d, d)."""
        t = self.directions
        return np.asarray(self._members @ np.einsum("ri,ij,rj->r", t, matrix, t))

    def curvature(self, squares: Array) -> Array:
        """Return the curvature in x (g, g), from that in the weights of the directions (r, r)."""
        return np.asarray(self._members @ squares @ self._members.T)


def diagonal(ratio: Array) -> Covariance:
    """Return diagonal S, each variance a group of its own."""
    one, group = np.ones(len(ratio)), np.arange(len(ratio))
    return Covariance(np.diag(one), one, group, np.diagonal(ratio).copy(), one > 0, one)


def multiple_of(ratio: Array, unit: Array) -> Covariance:
    """Return the multiples of S, or of ``unit`` where S is zero."""
    positive, one = bool(ratio.any()), np.ones(len(ratio))
    (root,) = square_roots((ratio if positive else unit)[None])
    group, size = np.zeros(len(ratio), dtype=np.int64), np.array([float(positive)])
    return Covariance(np.ascontiguousarray(root.T), one, group, size, np.ones(1, dtype=bool), one)


def line(ratio: Array, j: int, direction: Array, scale: Array) -> Covariance:
    """Return S that varies in one direction (d, d), scaled by its entry (j, j), and is fixed otherwise."""
    size, parts, weights = float(ratio[j, j]), [], []
    for matrix in (direction, ratio - size * direction):
        values, vectors = np.linalg.eigh(matrix / np.outer(scale, scale))
        parts.append((vectors * np.sqrt(np.abs(values)) * scale[:, None]).T)
        weights.append(np.sign(values))
    group, sizes, free = np.repeat([0, 1], len(ratio)), np.array([size, 1.0]), np.array([True, False])
    return Covariance(np.concatenate(parts), np.concatenate(weights), group, sizes, free, scale)


class Point(NamedTuple):
    """Deviance with its slope and expected curvature in z: x of all levels, and log sigma^2."""

    z: Array
    deviance: float
    slope: Array
    form: Array


@dataclass(frozen=True, eq=False)
class Surface:
    """The deviance over variances and sigma^2, both in units of the estimate's noise_var.

    Attributes
    ----------
    tree : Tree
    estimate : Estimate
    levels : tuple of Covariance
    held : bool
        True where sigma^2 is fixed at the estimate.
    """

    tree: Tree
    estimate: Estimate
    levels: tuple[Covariance, ...]
    held: bool

    @cached_property
    def free(self) -> NDArray[np.bool_]:
        """Return a mask (p + 1,) of the parameters z that may vary."""
        return np.concatenate([*(level.free for level in self.levels), [not self.held]])

    @cached_property
    def best(self) -> Point:
        """The point of the estimate."""
        return self.at(np.concatenate([*(level.sizes for level in self.levels), np.zeros(1)]))

    @cached_property
    def _errors(self) -> Array:
        """Variance of the error of each of z (p + 1,); infinite where the log does not identify it."""
        free_indices = np.flatnonzero(self.free)
        form = self.best.form[np.ix_(free_indices, free_indices)]
        variances = np.zeros(self.free.size)
        variances[free_indices] = np.where(np.diagonal(form) > 0, 2 * np.diagonal(inverse(form)), np.inf)
        return variances

    def error(self, index: int) -> float:
        """Return the standard error of one of z."""
        return float(np.sqrt(self._errors[index]))

    @property
    def noise_degrees(self) -> float:
        """Degrees of freedom that identify sigma^2."""
        return np.inf if self.held else 2 / float(self._errors[-1])

    def at(self, z: Array) -> Point:
        """Evaluate at z (p + 1,)."""
        p, scale = z.size - 1, float(np.exp(-z[-1]))
        noise_var = self.estimate.hierarchy.noise_var / scale
        starts = np.cumsum([0, *(level.sizes.size for level in self.levels)])
        sizes = [scale * z[first:last] for first, last in pairwise(starts)]
        likelihood = tree_likelihood(
            self.tree, [level.matrix(x) for level, x in zip(self.levels, sizes, strict=True)],
            self.estimate.criterion, 0.0,
            noise_var=noise_var, directions=[level.directions for level in self.levels],
        )  # fmt: skip
        slope, form = np.zeros(p + 1), np.zeros((p + 1, p + 1))
        slope[p], form[p, p] = likelihood.degrees - likelihood.rest / noise_var, likelihood.degrees
        for k, level in enumerate(self.levels):
            part, x = slice(starts[k], starts[k + 1]), sizes[k]
            level_slope, expected = level.slope(likelihood.slopes[k]), level.slope(likelihood.expected[k])
            curvature = level.curvature(likelihood.squares[k])
            slope[part], form[part, part] = scale * level_slope, scale**2 * curvature
            form[p, part] = form[part, p] = scale * (expected - curvature @ x)
            slope[p] -= level_slope @ x
            form[p, p] += x @ curvature @ x - 2 * expected @ x
        form[p, p] = max(form[p, p], _MIN_NOISE_CURVATURE * likelihood.degrees)
        return Point(z, likelihood.deviance, slope, form)


def _positive_definite(form: Array) -> tuple[Array, Array]:
    """Return scales (k,) of the coordinates and the scaled form, with eigenvalues raised to a positive minimum."""
    size = np.sqrt(np.diagonal(form))
    size = np.where(size > 0, size, 1.0)
    scaled = form / np.outer(size, size)
    try:
        np.linalg.cholesky(scaled - _MIN_CURVATURE * np.eye(len(scaled)))
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(scaled)
        return size, np.asarray((vectors * np.maximum(values, _MIN_CURVATURE)) @ vectors.T)
    return size, scaled


def inverse(form: Array) -> Array:
    """Return the pseudo-inverse of a positive semi-definite form, whatever the scales of its coordinates."""
    size = np.sqrt(np.diagonal(form))
    size = np.where(size > 0, size, 1.0)
    values, vectors = np.linalg.eigh(form / np.outer(size, size))
    seen = values > 1e-11 * max(values[-1], np.finfo(np.float64).tiny)
    half = vectors[:, seen] / np.sqrt(values[seen]) / size[:, None]
    return np.asarray(half @ half.T)


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """A search for the values of one variance v at which sqrt(min D given v - min D) has a given value.

    Attributes
    ----------
    surface : Surface
    position : int
        Of the variance in z.
    root : float
        The value of the root.
    """

    surface: Surface
    position: int
    root: float

    @property
    def error(self) -> float:
        """Standard error of the variance."""
        return self.surface.error(self.position)

    def ends(self) -> Ends:
        """Return the ends of the interval of the variance."""
        value, lower = float(self.surface.best.z[self.position]), 0.0
        if (
            value > _ZERO * self.error
            and self._optimised(self._with_value(self.surface.best, 0.0))[1] > self.root
        ):
            lower = self._end(value * float(np.exp(-self.root * self.error / value)), 0.0, value)
        return Ends(lower, self._end(value + self.root * self.error, value, np.inf))

    def _end(self, start: float, low: float, high: float) -> float:
        """Return the end between ``low`` and ``high``, by a search from ``start``; infinite where there is none."""
        point, is_upper = self._with_value(self.surface.best, start), high == np.inf
        for _ in range(_END_STEPS):
            point, root, slope = self._optimised(point)
            value = float(point.z[self.position])
            low, high = (value, high) if (root < self.root) == is_upper else (low, value)
            goal = self._goal(value, slope, self.root - root, low, high)
            if abs(root - self.root) < _ROOT_TOLERANCE or goal > _INFINITE * self.error:
                break
            point = self._with_value(point, goal)
        return goal if goal <= _INFINITE * self.error else np.inf

    def _goal(self, value: float, slope: float, missing: float, low: float, high: float) -> float:
        """Return Newton's step in log(v + standard error), or the middle of the bracket where the step leaves it."""
        log_step = missing / (slope * (value + self.error)) if slope else np.inf
        if abs(log_step) < _MAX_LOG_STEP:
            goal = (value + self.error) * float(np.exp(log_step)) - self.error
            if low < goal < high:
                return goal
        return 4 * value + self.error if high == np.inf else (low + high) / 2

    def _with_value(self, point: Point, value: float) -> Point:
        """Return the point at another value of the variance, after one step of the other parameters."""
        z, _, _ = self._quadratic_step(point, value - float(point.z[self.position]))
        z[self.position] = value
        return self.surface.at(z)

    def _optimised(self, point: Point) -> tuple[Point, float, float]:
        """Minimise over the other parameters; return the point, the root of its ratio and the slope of the root."""
        for _ in range(_OTHER_STEPS):
            goal, predicted_decrease, slope = self._quadratic_step(point, 0.0)
            if predicted_decrease <= _DECREASE_TOLERANCE:
                break
            trial = self.surface.at(goal)
            if trial.deviance > point.deviance:
                trial = self.surface.at((goal + point.z) / 2)
            if trial.deviance >= point.deviance:
                break
            point = trial
        ratio = (
            point.deviance
            - min(max(predicted_decrease, 0.0), _DECREASE_TOLERANCE)
            - self.surface.best.deviance
        )
        root = float(np.sqrt(max(ratio, 1e-12)))
        return point, root, slope / (2 * root)

    def _quadratic_step(self, point: Point, change: float) -> tuple[Array, float, float]:
        """Change the variance, and minimise the quadratic approximation over the other parameters, all variances >= 0.

        Returns
        -------
        z : (p + 1,) array
        predicted_decrease : float
            Decrease of the quadratic at ``change`` = 0.
        slope : float
            Derivative of the minimised deviance in the variance.
        """
        size, form = _positive_definite(point.form)
        slope = point.slope / size
        lowest = np.append(-point.z[:-1], -_MAX_NOISE_CHANGE - point.z[-1]) * size
        free = self.surface.free & np.append((point.z[:-1] > 0) | (point.slope[:-1] < 0), True)
        free[self.position] = False
        move = np.zeros(size.size)
        move[self.position] = change * size[self.position]
        while True:
            rows = np.flatnonzero(free)
            move[rows] = -np.linalg.solve(
                form[np.ix_(rows, rows)], slope[rows] + form[rows][:, ~free] @ move[~free]
            )
            below = free & (move < lowest)
            if not below.any():
                break
            move[below], free[below] = lowest[below], False
        move[-1] = min(move[-1], (_MAX_NOISE_CHANGE - point.z[-1]) * size[-1])
        slope_change = form @ move
        predicted_decrease = -float(slope @ move + move @ slope_change / 2)
        minimised_slope = float(
            point.slope[self.position] + size[self.position] * slope_change[self.position]
        )
        return point.z + move / size, predicted_decrease, minimised_slope


_AT_FLOOR = (
    0.999  # share of an estimated noise_var; an optimum below it shows that the estimate is at its floor
)
_EVALUATIONS = 10  # for one interval, about
_MAX_NODES = 20_000  # with more, errors of an estimate are normal or nothing is uncertain
_MAX_TASKS = 20_000  # from which the degrees of freedom of the noise are computed
_MAX_WORK = 1e9  # multiplications, about: some seconds


class _Target(NamedTuple):
    """A variance x, at ``position`` of z, with the variances factor_j x of features j of one level."""

    level: int
    surface: Surface
    position: int
    factors: dict[int, float]


def profile_intervals(
    moments: AnyMoments, estimate: Estimate, level: float, multiple: Array | None = None
) -> dict[tuple[int, int], Ends] | None:
    """Return intervals of standard deviations, by level (0: tasks) and feature; None where they would cost too much.

    Levels that no log identifies, with one node or a node for each child, are left out.

    Parameters
    ----------
    moments : Moments
        From which ``estimate`` was made.
    estimate : Estimate
    level : float
        In (0, 1).
    multiple : (d, d) array, optional
        The matrix of which Sigma_0 is a multiple, where it is.
    """
    from scipy.special import chdtri, digamma

    active = with_rows(moments)
    if isinstance(active, MomentsInShards):
        return None
    tree, d = tree_of(active, estimate.hierarchy), moments.dim
    nodes = [parent.size for parent in tree.parents]
    ends_by_sd: dict[tuple[int, int], Ends] = {}
    if sum(nodes) > _MAX_NODES or _EVALUATIONS * sum(nodes) * d**4 * len(nodes) > _MAX_WORK:
        return None
    for target in _targets(active, tree, estimate, multiple):
        squares, below = nodes[target.level] - tree.root_dim / d, [0, *nodes][target.level]
        if (
            squares < 1
            or nodes[target.level] == below
            or not np.isfinite(target.surface.error(target.position))
        ):
            continue
        degrees = target.surface.noise_degrees
        bartlett = (
            squares * (np.log(squares / 2) - digamma(squares / 2)) + 1 / degrees - 1 / (squares + degrees)
        )
        root = float(np.sqrt(bartlett * chdtri(1, 1 - level)))
        ends = Search(target.surface, target.position, root).ends()
        for j, factor in target.factors.items():
            scale = float(np.sqrt(factor * estimate.hierarchy.noise_var))
            ends_by_sd[target.level, j] = Ends(*(scale * float(np.sqrt(end)) for end in ends))
    return ends_by_sd


def _targets(active: Moments, tree: Tree, estimate: Estimate, multiple: Array | None) -> Iterator[_Target]:
    """Yield the variances of all levels for which there are intervals."""
    noise_var, d, ratios = estimate.hierarchy.noise_var, tree.dim, _ratios(estimate.hierarchy)
    held = tree_likelihood(tree, ratios, estimate.criterion, _AT_FLOOR * noise_var).degrees <= 0
    levels = tuple(_free(ratio, estimate, multiple) for ratio in ratios)
    surface = Surface(tree, estimate, levels, held)
    if estimate.chosen.shape == "diag":
        for k, j in np.ndindex(len(ratios), d):
            yield _Target(k, surface, k * d + j, {j: 1.0})
        return
    if estimate.chosen.shape in ("isotropic", "scaled"):
        for k, cov in enumerate(levels):
            yield _Target(k, surface, k, dict(enumerate(np.diagonal(cov.matrix(np.ones(1))).tolist())))
        return
    scale = prior_scales(active)[1] / np.sqrt(noise_var)
    others = [multiple_of(ratio, np.diag(scale**2)) for ratio in ratios]
    for k, j, direction in _directions(tree, ratios, estimate):
        levels = (*others[:k], line(ratios[k], j, direction, scale), *others[k + 1 :])
        yield _Target(k, Surface(tree, estimate, levels, held), k, {j: 1.0})


def _ratios(hierarchy: Hierarchy) -> list[Array]:
    """Return S = Sigma / sigma^2 of each level, the tasks first."""
    covs = [hierarchy.task_cov, *(level.cov for level in hierarchy.levels)]
    return [cov / hierarchy.noise_var for cov in covs]


def _free(ratio: Array, estimate: Estimate, multiple: Array | None) -> Covariance:
    """Return S with its free multiple, or with its variances free."""
    if estimate.chosen.shape in ("isotropic", "scaled"):
        return multiple_of(ratio, np.eye(len(ratio)) if multiple is None else multiple)
    return diagonal(ratio)


def _directions(tree: Tree, ratios: list[Array], estimate: Estimate) -> Iterator[tuple[int, int, Array]]:
    """Yield the least favourable direction (d, d) of each variance of full blocks, V e_jj / V_jj, V = curvature^-1."""
    d, noise_var = tree.dim, estimate.hierarchy.noise_var
    current = tree_likelihood(tree, ratios, estimate.criterion, 0.0, noise_var=noise_var)
    for k, (square, expected) in enumerate(zip(current.squares, current.expected, strict=True)):
        for block in _blocks(estimate.chosen, d):
            size, entries = len(block), _entries(block, d)
            shape = named("full", size)
            trend = dual(expected[np.ix_(block, block)], shape)
            form = level_form(square[np.ix_(entries, entries)], shape)
            V = inverse(form - np.outer(trend, trend) / max(current.degrees, 1))
            for i, j in enumerate(block.tolist()):
                diagonal, direction = packed_size(i + 1) - 1, np.zeros((d, d))
                if V[diagonal, diagonal] > 0:
                    direction[np.ix_(block, block)] = to_matrix(V[diagonal] / V[diagonal, diagonal], size)
                else:
                    direction[j, j] = 1.0
                yield k, j, direction


def _blocks(fit: Fit, d: int) -> list[Codes]:
    """Return the features of each block (k, size) of a shape with full blocks."""
    size = 2 * fit.parameters // d - 1 if fit.shape == "block" else d
    return list(np.arange(d).reshape(-1, size))


def _entries(block: Codes, d: int) -> Codes:
    """Return the positions of the packed entries of a block among those of the full matrix."""
    i, j = triangle(len(block))
    positions: Codes = packed_positions(d)[block[i], block[j]]
    return positions


def noise_degrees(moments: AnyMoments, estimate: Estimate, multiple: Array | None = None) -> float:
    """Return the degrees of freedom that identify the noise apart from differences between tasks, as replicate rows do.

    log sigma^2 has the variance 2 / (N - b' F^-1 b), with F the expected curvature of the deviance in the free entries
    of S = Sigma_0 / sigma^2, and b that in them and log sigma^2. The result, N - b' F^-1 b, is about 0 where less noise
    and a larger Sigma_0 are as likely.

    Parameters
    ----------
    moments, estimate, multiple
        As :func:`profile_intervals`.
    """
    hierarchy = estimate.hierarchy
    active, step = _subset(moments, hierarchy)
    tree, ratios = tree_of(active, hierarchy), _ratios(hierarchy)
    full = estimate.chosen.shape == "full"
    levels = [_free(ratio, estimate, multiple) for ratio in ratios]
    likelihood = tree_likelihood(
        tree, ratios, estimate.criterion, 0.0, noise_var=hierarchy.noise_var,
        directions=None if full else [level.directions for level in levels],
    )  # fmt: skip
    if full:
        shape = named("full", tree.dim)
        form, trend = level_form(likelihood.squares[0], shape), dual(likelihood.expected[0], shape)
    else:
        form, trend = levels[0].curvature(likelihood.squares[0]), levels[0].slope(likelihood.expected[0])
    confounded = float(trend @ inverse(form) @ trend)
    return float(step * (likelihood.degrees - confounded * (len(active) - 1) / len(active)))


def _subset(moments: AnyMoments, hierarchy: Hierarchy) -> tuple[Moments, float]:
    """Return the tasks with rows and 1, or every k-th of very many tasks without a tree and k."""
    active = with_rows(moments)
    if isinstance(active, MomentsInShards):
        part = active.thinned(-(-len(active) // _MAX_TASKS))
        some = part.in_memory() if isinstance(part, MomentsInShards) else part
        return some, len(active) / max(len(some), 1)
    step = -(-len(active) // _MAX_TASKS) if not hierarchy.levels and hierarchy.metadata is None else 1
    return (active if step == 1 else active.at(slice(None, None, step))), step


def noise_trend(moments: AnyMoments, hierarchy: Hierarchy) -> Array:
    """Return the matrix T (d, d): an error Delta of S = Sigma_0 / sigma^2 makes the error -<T, Delta> of log sigma^2.

    T = sum_s R_s / N, of two levels, with R_s as in :func:`tree_estimation.tree_likelihood`.
    """
    active, _ = _subset(moments, hierarchy)
    likelihood = tree_likelihood(
        tree_of(active, hierarchy), _ratios(hierarchy), "reml", 0.0, noise_var=hierarchy.noise_var
    )
    trend: Array = likelihood.expected[0] / max(likelihood.degrees, 1)
    return trend
