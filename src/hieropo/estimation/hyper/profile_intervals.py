"""Profile likelihood-ratio intervals of the standard deviations of a hierarchy; they reach 0 where the log allows 0.

With D the restricted deviance and v one variance of one level, the interval holds all v >= 0 with

    min D given v  -  min D  <=  b chi2_1(level),   b = k (log(k / 2) - psi(k / 2)) + 1 / f - 1 / (k + f)

for k + 1 nodes and noise that is told by f degrees of freedom. The first part of b is Bartlett's factor: it gives the
left side the mean of chi2_1 where k squares of one variance are seen; the rest is for small f. The minimum given v is
over sigma^2 and the other variances (:mod:`profile_likelihood`): of a diagonal shape over all of them, of multiples of
one matrix over those of the other levels. Of a full covariance, v moves along its least favourable direction, the
change of Sigma_k that fits best with a change of v; the rest of Sigma_k is held, and other levels have multiples.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hieropo._utils.arrays import Array
from hieropo._utils.packed import Index, packed_size, triangle
from hieropo.estimation.hyper.mixed import prior_scales
from hieropo.estimation.hyper.profile_likelihood import (
    Covariance,
    Ends,
    Search,
    Surface,
    diagonal,
    inverse,
    line,
    multiple_of,
)
from hieropo.estimation.psd import to_matrix
from hieropo.estimation.reml import Estimate, Fit, with_rows
from hieropo.estimation.shapes import named, places
from hieropo.estimation.tree_estimation import dual, level_form, tree_of
from hieropo.estimation.tree_likelihood import Tree, tree_likelihood
from hieropo.model.hierarchy import Hierarchy
from hieropo.moments.statistics import Moments

_HELD = 0.999  # of the noise_var of an estimate, below which the best one shows that it is at a floor
_EACH = 10  # evaluations for one interval, about
_MOST_NODES = 20_000  # with more, errors of an estimate are normal or nothing is left open
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
    found: dict[tuple[int, int], Ends] = {}
    if sum(nodes) > _MOST_NODES or _EACH * sum(nodes) * d**4 * len(nodes) > _WORK:
        return None
    for target in _targets(active, tree, estimate, multiple):
        squares, below = nodes[target.level] - tree.root_dim / d, [0, *nodes][target.level]
        if squares < 1 or nodes[target.level] == below or not np.isfinite(target.error):
            continue
        told = target.surface.noise_degrees
        bartlett = squares * (np.log(squares / 2) - digamma(squares / 2)) + 1 / told - 1 / (squares + told)
        ends = Search(target.surface, target.moving, float(np.sqrt(bartlett * chdtri(1, 1 - level)))).ends()
        for j, factor in target.factors.items():
            by = float(np.sqrt(factor * estimate.hierarchy.noise_var))
            found[target.level, j] = Ends(*(by * float(np.sqrt(end)) for end in ends))
    return found


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
    """S of each level."""
    covs = [hierarchy.task_cov, *(at.cov for at in hierarchy.levels)]
    return [cov / hierarchy.noise_var for cov in covs]


def _free(ratio: Array, estimate: Estimate, multiple: Array | None) -> Covariance:
    """S by its free multiples, or by variances alone."""
    if estimate.chosen.shape in ("isotropic", "scaled"):
        return multiple_of(ratio, np.eye(len(ratio)) if multiple is None else multiple)
    return diagonal(ratio)


def _directions(tree: Tree, ratios: list[Array], estimate: Estimate) -> Iterator[tuple[int, int, Array]]:
    """Least favourable direction (d, d) of each variance of full blocks: V e_jj / V_jj, V the inverse curvature."""
    d, noise_var = tree.dim, estimate.hierarchy.noise_var
    here = tree_likelihood(tree, ratios, estimate.criterion, 0.0, noise_var=noise_var)
    for k, (square, expected) in enumerate(zip(here.squares, here.expected, strict=True)):
        for block in _blocks(estimate.chosen, d):
            size, entries = len(block), _entries(block, d)
            shape = named("full", size)
            level = dual(expected[np.ix_(block, block)], shape)
            form = level_form(square[np.ix_(entries, entries)], shape)
            V = inverse(form - np.outer(level, level) / max(here.degrees, 1))
            for i, j in enumerate(block.tolist()):
                at, direction = packed_size(i + 1) - 1, np.zeros((d, d))
                if V[at, at] > 0:
                    direction[np.ix_(block, block)] = to_matrix(V[at] / V[at, at], size)
                else:
                    direction[j, j] = 1.0
                yield k, j, direction


def _blocks(fit: Fit, d: int) -> list[Index]:
    """Features of each full block of a shape."""
    size = 2 * fit.parameters // d - 1 if fit.shape == "block" else d
    return list(np.arange(d).reshape(-1, size))


def _entries(block: Index, d: int) -> Index:
    """Return where the packed entries of a block stand among those of the whole matrix."""
    i, j = triangle(len(block))
    found: Index = places(d)[block[i], block[j]]
    return found


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
    """Tasks with rows, or one in so many where these are very many and no tree hangs on them."""
    active = with_rows(moments)
    every = -(-len(active) // _MOST_TASKS) if not hierarchy.levels and hierarchy.metadata is None else 1
    return (active if every == 1 else active.at(slice(None, None, every))), every


def noise_trend(moments: Moments, hierarchy: Hierarchy) -> Array:
    """Return the matrix T (d, d): where S = Sigma_0 / sigma^2 is off by Delta, log sigma^2 is off by -<T, Delta>.

    That is sum_s R_s / N, of two levels, as :mod:`tree_likelihood` has them.
    """
    active, _ = _some(moments, hierarchy)
    here = tree_likelihood(
        tree_of(active, hierarchy), _ratios(hierarchy), "reml", 0.0, noise_var=hierarchy.noise_var
    )
    trend: Array = here.expected[0] / max(here.degrees, 1)
    return trend
