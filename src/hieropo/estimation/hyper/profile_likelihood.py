"""The restricted deviance as a function of the variances of all levels, and where its profile reaches a value.

Covariances, in units of the estimate's noise_var, are sums over groups of directions,

    S_k = sum_g x_g sum_(i in g) w_i t_i t_i'

with x_g >= 0; what leaves the cone is projected on it. The profile of one x is the minimum over the others and sigma^2,
by scoring steps with the slopes of :mod:`tree_likelihood`.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array
from hieropo._utils.packed import Index
from hieropo.estimation.reml import Estimate
from hieropo.estimation.tree_likelihood import Tree, tree_likelihood
from hieropo.model.steps import square_roots

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
        """S (d, d) with these x."""
        found: Array = (self.directions.T * (sizes[self.group] * self.weights)) @ self.directions
        if (self.weights >= 0).all():
            return found
        values, vectors = np.linalg.eigh(found / np.outer(self.scale, self.scale))
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
        sigma^2 does not vary.
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
        at = np.flatnonzero(self.free)
        form = self.best.form[np.ix_(at, at)]
        found = np.zeros(self.free.size)
        found[at] = np.where(np.diagonal(form) > 0, 2 * np.diagonal(inverse(form)), np.inf)
        return found

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
    """Scales (k,) of the coordinates, and the form in these, with what leaves it no minimum raised."""
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
        """Ends of the variance."""
        value, lower = float(self.surface.best.z[self.moving]), 0.0
        if value > _ZERO * self.error and self._settled(self._moved(self.surface.best, 0.0))[1] > self.root:
            lower = self._end(value * float(np.exp(-self.root * self.error / value)), 0.0, value)
        return Ends(lower, self._end(value + self.root * self.error, value, np.inf))

    def _end(self, start: float, low: float, high: float) -> float:
        """The value between ``low`` and ``high``, from a value to start from; infinite if there is none."""
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
        """Newton's step in log(v + standard error); half of what is left where it leads out of that."""
        by = missing / (slope * (value + self.error)) if slope else np.inf
        if abs(by) < _FAR:
            goal = (value + self.error) * float(np.exp(by)) - self.error
            if low < goal < high:
                return goal
        return 4 * value + self.error if high == np.inf else (low + high) / 2

    def _moved(self, here: Point, value: float) -> Point:
        """The point with another value of the variance, the others following."""
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
        promise : float
            Fall of the quadratic, where the variance itself does not move.
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
