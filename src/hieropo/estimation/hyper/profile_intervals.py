"""The profile likelihood of one standard deviation, and likelihood-ratio intervals from it.

Covariances, in units of the estimate's noise_var, are sums over groups of directions,

    S_k = sum_g x_g sum_(i in g) w_i t_i t_i'

with x_g >= 0; what leaves the cone is projected on it. The profile of one x is the minimum over the others and sigma^2,
by scoring steps with the slopes of :func:`tree_estimation.tree_likelihood`.

With D the restricted deviance and v one variance of one level, the interval holds all v >= 0 with

    min D given v  -  min D  <=  b chi2_1(level),   b = k (log(k / 2) - psi(k / 2)) + 1 / f - 1 / (k + f)

for k + 1 nodes and noise that is told by f degrees of freedom. The first part of b is Bartlett's factor: it gives the
left side the mean of chi2_1 where k squares of one variance are seen; the rest is for small f. The minimum given v is
over sigma^2 and the other variances (:class:`Surface`): of a diagonal shape over all of them, of multiples of
one matrix over those of the other levels. Of a full covariance, v moves along its least favourable direction, the
change of Sigma_k that fits best with a change of v; the rest of Sigma_k is held, and other levels have multiples.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array
from hieropo._utils.packed import Index, packed_size, triangle
from hieropo.estimation.hyper.mixed import prior_scales
from hieropo.estimation.psd import to_matrix
from hieropo.estimation.reml import Estimate, Fit, with_rows
from hieropo.estimation.shapes import named, packed_positions
from hieropo.estimation.tree_estimation import Tree, dual, level_form, tree_likelihood, tree_of
from hieropo.model.hierarchy import Hierarchy
from hieropo.model.steps import square_roots
from hieropo.moments.statistics import Moments

_TRIES = 20  # values of a variance for one end
_FOLLOWING = 10  # steps of the others for one value
_NEAR = 0.02  # of the root of the ratio; the last step is Newton's
_SETTLED = 0.02  # of deviance that the other variances may still promise
_ZERO = 1e-9  # variance, in units of its standard error
_FLAT = 1e-6  # curvature, in units of the diagonal, below which the approximation of it is not believed
_LEAST = 0.01  # of N, curvature in log sigma^2: the approximation of it may be negative
_NOISE = 5.0  # how far log sigma^2 may be from its estimate
_FAR = 3.0  # step of a logarithm that is believed
_BEYOND = 1e8  # standard errors at which an end is infinite


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
        Which x may vary.
    scale : (d,) array
        Units of the features, in which is projected.
    """

    directions: Array
    weights: Array
    group: Index
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

    def along(self, squares: Array) -> Array:
        """Return the curvature in x (g, g), from that along the directions (r, r)."""
        return np.asarray(self._members @ squares @ self._members.T)


def diagonal(ratio: Array) -> Covariance:
    """Return diagonal S, each variance a group of its own."""
    one, at = np.ones(len(ratio)), np.arange(len(ratio))
    return Covariance(np.diag(one), one, at, np.diagonal(ratio).copy(), one > 0, one)


def multiple_of(ratio: Array, unit: Array) -> Covariance:
    """Return the multiples of S, or of ``unit`` where S is zero."""
    some, one = bool(ratio.any()), np.ones(len(ratio))
    (root,) = square_roots((ratio if some else unit)[None])
    group, size = np.zeros(len(ratio), dtype=np.int64), np.array([float(some)])
    return Covariance(np.ascontiguousarray(root.T), one, group, size, np.ones(1, dtype=bool), one)


def line(ratio: Array, j: int, direction: Array, scale: Array) -> Covariance:
    """Return S that moves in one direction (d, d) with its entry (j, j); the rest is held."""
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
        Whether sigma^2 is fixed at the estimate.
    """

    tree: Tree
    estimate: Estimate
    levels: tuple[Covariance, ...]
    held: bool

    @cached_property
    def free(self) -> NDArray[np.bool_]:
        """Return which of z may vary."""
        return np.concatenate([*(level.free for level in self.levels), [not self.held]])

    @cached_property
    def best(self) -> Point:
        """The estimate."""
        return self.at(np.concatenate([*(level.sizes for level in self.levels), np.zeros(1)]))

    @cached_property
    def _errors(self) -> Array:
        """Variance of the error of each of z; infinite where the log says nothing."""
        free_indices = np.flatnonzero(self.free)
        form = self.best.form[np.ix_(free_indices, free_indices)]
        variances = np.zeros(self.free.size)
        variances[free_indices] = np.where(np.diagonal(form) > 0, 2 * np.diagonal(inverse(form)), np.inf)
        return variances

    def error(self, place: int) -> float:
        """Return the standard error of one of z."""
        return float(np.sqrt(self._errors[place]))

    @property
    def noise_degrees(self) -> float:
        """The number of squares that tell sigma^2."""
        return np.inf if self.held else 2 / float(self._errors[-1])

    def at(self, z: Array) -> Point:
        """Evaluate at z (p + 1,)."""
        p, scale = z.size - 1, float(np.exp(-z[-1]))
        noise_var = self.estimate.hierarchy.noise_var / scale
        starts = np.cumsum([0, *(level.sizes.size for level in self.levels)])
        sizes = [scale * z[first:last] for first, last in pairwise(starts)]
        here = tree_likelihood(
            self.tree, [level.matrix(x) for level, x in zip(self.levels, sizes, strict=True)],
            self.estimate.criterion, 0.0,
            noise_var=noise_var, directions=[level.directions for level in self.levels],
        )  # fmt: skip
        slope, form = np.zeros(p + 1), np.zeros((p + 1, p + 1))
        slope[p], form[p, p] = here.degrees - here.rest / noise_var, here.degrees
        for k, level in enumerate(self.levels):
            part, x = slice(starts[k], starts[k + 1]), sizes[k]
            pull, expected = level.slope(here.slopes[k]), level.slope(here.expected[k])
            bend = level.along(here.squares[k])
            slope[part], form[part, part] = scale * pull, scale**2 * bend
            form[p, part] = form[part, p] = scale * (expected - bend @ x)
            slope[p] -= pull @ x
            form[p, p] += x @ bend @ x - 2 * expected @ x
        form[p, p] = max(form[p, p], _LEAST * here.degrees)
        return Point(z, here.deviance, slope, form)


def _rounded(form: Array) -> tuple[Array, Array]:
    """Return scales (k,) of the coordinates, and the form in these, made positive definite."""
    size = np.sqrt(np.diagonal(form))
    size = np.where(size > 0, size, 1.0)
    scaled = form / np.outer(size, size)
    try:
        np.linalg.cholesky(scaled - _FLAT * np.eye(len(scaled)))
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(scaled)
        return size, np.asarray((vectors * np.maximum(values, _FLAT)) @ vectors.T)
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
    """Where, as one variance moves and the others follow, the root of the ratio is the one that is looked for.

    Attributes
    ----------
    surface : Surface
    moving : int
        Place of the variance in z.
    root : float
        Of min D given v - min D.
    """

    surface: Surface
    moving: int
    root: float

    @property
    def error(self) -> float:
        """Standard error of the variance."""
        return self.surface.error(self.moving)

    def ends(self) -> Ends:
        """Return the ends of the interval of the variance."""
        value, lower = float(self.surface.best.z[self.moving]), 0.0
        if value > _ZERO * self.error and self._settled(self._moved(self.surface.best, 0.0))[1] > self.root:
            lower = self._end(value * float(np.exp(-self.root * self.error / value)), 0.0, value)
        return Ends(lower, self._end(value + self.root * self.error, value, np.inf))

    def _end(self, start: float, low: float, high: float) -> float:
        """Return the end between ``low`` and ``high``, by a search from ``start``; infinite where there is none."""
        here, up = self._moved(self.surface.best, start), high == np.inf
        for _ in range(_TRIES):
            here, root, slope = self._settled(here)
            value = float(here.z[self.moving])
            low, high = (value, high) if (root < self.root) == up else (low, value)
            goal = self._goal(value, slope, self.root - root, low, high)
            if abs(root - self.root) < _NEAR or goal > _BEYOND * self.error:
                break
            here = self._moved(here, goal)
        return goal if goal <= _BEYOND * self.error else np.inf

    def _goal(self, value: float, slope: float, missing: float, low: float, high: float) -> float:
        """Return Newton's step in log(v + standard error), or the middle of the bracket where the step leaves it."""
        by = missing / (slope * (value + self.error)) if slope else np.inf
        if abs(by) < _FAR:
            goal = (value + self.error) * float(np.exp(by)) - self.error
            if low < goal < high:
                return goal
        return 4 * value + self.error if high == np.inf else (low + high) / 2

    def _moved(self, here: Point, value: float) -> Point:
        """Return the point with another value of the variance, at which the other parameters follow."""
        z, _, _ = self._followed(here, value - float(here.z[self.moving]))
        z[self.moving] = value
        return self.surface.at(z)

    def _settled(self, here: Point) -> tuple[Point, float, float]:
        """Let the others follow until that promises nothing; the point, the root of its ratio and the slope of that."""
        for _ in range(_FOLLOWING):
            goal, predicted_decrease, slope = self._followed(here, 0.0)
            if predicted_decrease <= _SETTLED:
                break
            there = self.surface.at(goal)
            if there.deviance > here.deviance:
                there = self.surface.at((goal + here.z) / 2)
            if there.deviance >= here.deviance:
                break
            here = there
        ratio = here.deviance - min(max(predicted_decrease, 0.0), _SETTLED) - self.surface.best.deviance
        root = float(np.sqrt(max(ratio, 1e-12)))
        return here, root, slope / (2 * root)

    def _followed(self, here: Point, by: float) -> tuple[Array, float, float]:
        """Move the variance, and the others to the minimum of the quadratic over those that are >= 0.

        Returns
        -------
        z : (p + 1,) array
        predicted_decrease : float
            Decrease of the quadratic, where the variance itself does not move.
        slope : float
            Of the deviance in the variance when the others follow.
        """
        size, form = _rounded(here.form)
        pull = here.slope / size
        least = np.append(-here.z[:-1], -_NOISE - here.z[-1]) * size
        free = self.surface.free & np.append((here.z[:-1] > 0) | (here.slope[:-1] < 0), True)
        free[self.moving] = False
        move = np.zeros(size.size)
        move[self.moving] = by * size[self.moving]
        while True:
            at = np.flatnonzero(free)
            move[at] = -np.linalg.solve(form[np.ix_(at, at)], pull[at] + form[at][:, ~free] @ move[~free])
            below = free & (move < least)
            if not below.any():
                break
            move[below], free[below] = least[below], False
        move[-1] = min(move[-1], (_NOISE - here.z[-1]) * size[-1])
        ahead = form @ move
        predicted_decrease = -float(pull @ move + move @ ahead / 2)
        return (
            here.z + move / size,
            predicted_decrease,
            float(here.slope[self.moving] + size[self.moving] * ahead[self.moving]),
        )


_HELD = 0.999  # of the noise_var of an estimate, below which the best one shows that it is at a floor
_EACH = 10  # evaluations for one interval, about
_MOST_NODES = 20_000  # with more, errors of an estimate are normal or nothing is uncertain
_MOST_TASKS = 20_000  # that tell how far the noise is told
_WORK = 1e9  # multiplications, about, that intervals are worth: some seconds


class _Target(NamedTuple):
    """One variance that tells the standard deviations of some features: v_j = x times their factor."""

    level: int
    surface: Surface
    moving: int
    factors: dict[int, float]

    @property
    def error(self) -> float:
        """Standard error of the variance."""
        return self.surface.error(self.moving)


def profile_intervals(
    moments: Moments, estimate: Estimate, level: float, multiple: Array | None = None
) -> dict[tuple[int, int], Ends] | None:
    """Return intervals of standard deviations, by level (0: tasks) and feature; None where they would cost too much.

    Those of a level that no log can tell, with one node or a node for each child, are left out.

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
    tree, d = tree_of(active, estimate.hierarchy), moments.dim
    nodes = [parent.size for parent in tree.parents]
    ends_by_sd: dict[tuple[int, int], Ends] = {}
    if sum(nodes) > _MOST_NODES or _EACH * sum(nodes) * d**4 * len(nodes) > _WORK:
        return None
    for target in _targets(active, tree, estimate, multiple):
        squares, below = nodes[target.level] - tree.root_dim / d, [0, *nodes][target.level]
        if squares < 1 or nodes[target.level] == below or not np.isfinite(target.error):
            continue
        identified = target.surface.noise_degrees
        bartlett = (
            squares * (np.log(squares / 2) - digamma(squares / 2))
            + 1 / identified
            - 1 / (squares + identified)
        )
        interval = Search(
            target.surface, target.moving, float(np.sqrt(bartlett * chdtri(1, 1 - level)))
        ).ends()
        for j, factor in target.factors.items():
            by = float(np.sqrt(factor * estimate.hierarchy.noise_var))
            ends_by_sd[target.level, j] = Ends(*(by * float(np.sqrt(end)) for end in interval))
    return ends_by_sd


def _targets(active: Moments, tree: Tree, estimate: Estimate, multiple: Array | None) -> Iterator[_Target]:
    noise_var, d, ratios = estimate.hierarchy.noise_var, tree.dim, _ratios(estimate.hierarchy)
    best = tree_likelihood(tree, ratios, estimate.criterion, 0.0)
    held = best.degrees <= 0 or best.noise_var < _HELD * noise_var
    levels = tuple(_free(ratio, estimate, multiple) for ratio in ratios)
    surface = Surface(tree, estimate, levels, held)
    if estimate.chosen.shape == "diag":
        for k, j in np.ndindex(len(ratios), d):
            yield _Target(k, surface, k * d + j, {j: 1.0})
        return
    if estimate.chosen.shape in ("isotropic", "scaled"):
        for k, each in enumerate(levels):
            yield _Target(k, surface, k, dict(enumerate(np.diagonal(each.matrix(np.ones(1))).tolist())))
        return
    scale = prior_scales(active)[1] / np.sqrt(noise_var)
    others = [multiple_of(ratio, np.diag(scale**2)) for ratio in ratios]
    for k, j, direction in _directions(tree, ratios, estimate):
        levels = (*others[:k], line(ratios[k], j, direction, scale), *others[k + 1 :])
        yield _Target(k, Surface(tree, estimate, levels, held), k, {j: 1.0})


def _ratios(hierarchy: Hierarchy) -> list[Array]:
    """Return S of each level."""
    covs = [hierarchy.task_cov, *(at.cov for at in hierarchy.levels)]
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
            level = dual(expected[np.ix_(block, block)], shape)
            form = level_form(square[np.ix_(entries, entries)], shape)
            V = inverse(form - np.outer(level, level) / max(current.degrees, 1))
            for i, j in enumerate(block.tolist()):
                diagonal, direction = packed_size(i + 1) - 1, np.zeros((d, d))
                if V[diagonal, diagonal] > 0:
                    direction[np.ix_(block, block)] = to_matrix(V[diagonal] / V[diagonal, diagonal], size)
                else:
                    direction[j, j] = 1.0
                yield k, j, direction


def _blocks(fit: Fit, d: int) -> list[Index]:
    """Return the features of each full block of a shape."""
    size = 2 * fit.parameters // d - 1 if fit.shape == "block" else d
    return list(np.arange(d).reshape(-1, size))


def _entries(block: Index, d: int) -> Index:
    """Return where the packed entries of a block stand among those of the whole matrix."""
    i, j = triangle(len(block))
    positions: Index = packed_positions(d)[block[i], block[j]]
    return positions


def noise_degrees(moments: Moments, estimate: Estimate, multiple: Array | None = None) -> float:
    """Return how many squares, as replicate rows give, tell the noise apart from differences between tasks.

    log sigma^2 has the variance 2 / (N - b' F^-1 b), with F the expected curvature of the deviance in the free entries
    of S = Sigma_0 / sigma^2, and b that in them and log sigma^2. The result, N - b' F^-1 b, is about 0 where less noise
    and a larger Sigma_0 are as likely.

    Parameters
    ----------
    moments, estimate, multiple
        As :func:`profile_intervals`.
    """
    hierarchy = estimate.hierarchy
    active, every = _some(moments, hierarchy)
    tree, ratios = tree_of(active, hierarchy), _ratios(hierarchy)
    full = estimate.chosen.shape == "full"
    levels = [_free(ratio, estimate, multiple) for ratio in ratios]
    here = tree_likelihood(
        tree, ratios, estimate.criterion, 0.0, noise_var=hierarchy.noise_var,
        directions=None if full else [level.directions for level in levels],
    )  # fmt: skip
    if full:
        shape = named("full", tree.dim)
        form, trend = level_form(here.squares[0], shape), dual(here.expected[0], shape)
    else:
        form, trend = levels[0].along(here.squares[0]), levels[0].slope(here.expected[0])
    shown = float(trend @ inverse(form) @ trend)
    return every * (here.degrees - shown * (len(active) - 1) / len(active))


def _some(moments: Moments, hierarchy: Hierarchy) -> tuple[Moments, int]:
    """Return the tasks with rows, or every so many-th of very many tasks without a tree, and that number."""
    active = with_rows(moments)
    every = -(-len(active) // _MOST_TASKS) if not hierarchy.levels and hierarchy.metadata is None else 1
    return (active if every == 1 else active.at(slice(None, None, every))), every


def noise_trend(moments: Moments, hierarchy: Hierarchy) -> Array:
    """Return the matrix T (d, d): where S = Sigma_0 / sigma^2 is off by Delta, log sigma^2 is off by -<T, Delta>.

    That is sum_s R_s / N, of two levels, as :func:`tree_estimation.tree_likelihood` has them.
    """
    active, _ = _some(moments, hierarchy)
    here = tree_likelihood(
        tree_of(active, hierarchy), _ratios(hierarchy), "reml", 0.0, noise_var=hierarchy.noise_var
    )
    trend: Array = here.expected[0] / max(here.degrees, 1)
    return trend
