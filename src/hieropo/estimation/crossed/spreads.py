"""A mixture of spreads of the interactions, chosen by its evidence: none in some tasks, large in others.

    gamma_s = (gamma_s1, ..., gamma_sK) ~ N(0, v_s^2 s^2 M)        v_s = 0, m or g m  with probability  w_0, w_1, w_2

in the words of :mod:`mixture`, where v_s = m in all tasks. A priori one of three patterns holds, each as likely as the
others: no task without effects (w_0 = 0), none with large ones (w_2 = 0), or both kinds. m is half-Cauchy, log g
uniform from log 2 to log 30, w_0 uniform, and w_2 / (1 - w_0) uniform from 0 to 1/2.

The rows of task s have the log evidence log Z_s(v), given those of all other tasks. By :mod:`propagation` it comes for
v on a grid that is fine enough for splines, at weights pi-bar of the grid; for any other mixture pi

    log Z(pi) = log Z(pi-bar) + sum_s log (sum_v pi_v Z_s(v) / sum_v pi-bar_v Z_s(v))

up to second order in pi - pi-bar, where pi-bar is the posterior mean of pi. With that (m, g, w) are integrated on a
grid for each a, a = 0 among them; l and s^2 are taken at their mode. The evidence of one spread, integrated over
(a, m), is exact, l and s^2 at their posterior means. Where that of the mixture is ten times as large, hierarchies of
both are averaged by their evidence; else nothing changes.

Before that, the likelihood of the best mixture of the grid, given the other tasks under one spread, says if there can
be any such evidence.

Stephens (2017), False discovery rates: a new deal; Urbut et al. (2019), Flexible statistical methods for estimating and
testing effects in genomic studies with multiple conditions.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np

from hieropo._utils.arrays import Array
from hieropo.errors import NumericalError
from hieropo.estimation.crossed.grid import few_nodes
from hieropo.estimation.crossed.shapes import Shapes, part_of_tasks
from hieropo.estimation.crossed.spread_patterns import (
    ROUNDS,
    SIZES,
    WHOLE,
    Curves,
    PatternNodes,
    axis_nodes,
    closer_window,
    integrate_pattern,
    mean_mixture,
)
from hieropo.model.crossed.propagation import (
    Factors,
    TaskTerms,
    effects_basis,
    inverted,
    one_round,
    propagate,
)
from hieropo.model.crossed.steps import ObservedUnits
from hieropo.moments.statistics import Moments

SCALES = 3  # none, usual, large
ODDS = float(np.log(10.0))  # log Bayes factor from which the mixture is used
_POSSIBLE = 1.5  # gain of log likelihood below which no mixture has that evidence
_WIDEST = 64  # coefficients (K + 1) p up to which tasks are approximated
_ROOM = 2**21  # doubles of the information of all tasks under all scales
_UNITS = 2_000  # units of a part of the tasks that tells the mixture
_FEWEST, _MOST = (
    8,
    1_000,
)  # tasks from which on it may be told, and up to which all are approximated in seconds
_STEP = 0.4  # of log v between nodes of a spline
_ACTION_NODES = 7
_MOVED = 0.25  # step of log l and log s in the search for their mode
_STEPS = 300  # towards the best mixture
_KEPT = 1e-4  # weight of a node that is kept, in units of the largest
_RARE = 0.01  # weight of a pattern of zeros below which it is left out
_SHOWN = 200  # nodes that stand for all where standard deviations are summarised


class MixedSpreads(NamedTuple):
    """Nodes of the hyper-parameters of a mixture of spreads, with weights.

    Attributes
    ----------
    log_odds : float
        Log Bayes factor of the mixture against one spread.
    weights : (H,) array
        Add to 1.
    few : (H,) array
        Weights of those that stand for all: most are 0.
    action_sd, interaction_sd : (H,) array
        a, and sqrt(w_1 m^2 + w_2 (g m)^2): the root mean square over tasks.
    scales, spread_weights : (H, 3) array
        0, m and g m in units of ``interaction_sd``, and w.
    level_sd, noise_var : float
        l and s^2.
    """

    log_odds: float
    weights: Array
    few: Array
    action_sd: Array
    interaction_sd: Array
    scales: Array
    spread_weights: Array
    level_sd: float
    noise_var: float


class _Sums(NamedTuple):
    """Units of the tasks that tell the mixture, and what does not change in the search."""

    units: ObservedUnits
    shapes: Shapes
    scales: Array  # v of the grid, 0 first
    n_rows: float

    @classmethod
    def of(cls, moments: Moments, shapes: Shapes, m: float) -> Self:
        """Put the grid around the spread m of one hierarchy."""
        most = float(moments.rows.max())
        low = min(0.1 / np.sqrt(most), m / 30)
        high = 40 * max(m, 10 * low)
        n = int(np.ceil(np.log(high / low) / _STEP)) + 1
        scales = np.append(0.0, np.geomspace(low, high, n))
        return cls(ObservedUnits.of(moments, shapes.noise_ratio), shapes, scales, float(moments.n_rows))

    @property
    def n_actions(self) -> int:
        return self.units.n_actions

    def about_actions(self, level: float, noise: float) -> TaskTerms:
        """Terms about mu, with l and s^2."""
        basis = np.eye(self.n_actions * self.units.dim)
        return TaskTerms.of(
            self.units.over(noise), noise * self.shapes.interaction, noise * level**2 * self.shapes.level, basis,
            self.scales,
        )  # fmt: skip

    def about_effects(self, terms: TaskTerms, a: float, noise: float) -> "_Terms":
        """Terms about z, with a."""
        basis = effects_basis(noise * a**2 * self.shapes.action, self.n_actions)
        flat = np.arange(basis.shape[1]) >= basis.shape[1] - self.units.dim
        return _Terms(terms.along(basis), np.where(flat, 0.0, 1.0), self.scales)

    def constant(self, noise: float) -> float:
        """Return the part of the log evidence that depends on s^2 beside the terms."""
        return -0.5 * self.n_rows * float(np.log(noise))


class _Terms(NamedTuple):
    """Terms about z of all tasks over the grid, and the prior precisions of z."""

    terms: TaskTerms
    prior: Array
    scales: Array

    def of_one_spread(self) -> Array:
        """Exact log evidence of each spread of the grid, were it that of all tasks."""
        precision = np.diag(self.prior) + self.terms.information.sum(axis=1)
        _, _, phi = inverted(precision, self.terms.score.sum(axis=1))
        return np.asarray(self.terms.constant.sum(axis=1) + phi)

    def one_spread(self) -> float:
        """Log evidence of one spread: m = 0 with probability 1/2, else half-Cauchy."""
        from scipy.interpolate import CubicSpline

        values = self.of_one_spread()
        ends = np.log(self.scales[[1, -1]])
        u = (np.arange(2_000) + 0.5) / 2_000
        along = CubicSpline(np.log(self.scales[1:]), values[1:])(
            np.clip(np.log(np.tan(np.pi / 2 * u)), *ends)
        )
        return float(np.logaddexp(values[0], _log_mean(along)) - np.log(2.0))

    def ratios(self, at: int) -> Array:
        """Log Z_s(v) of each task (n, t), given the others under one spread of the grid."""
        factors = Factors(self.terms.information[at], self.terms.score[at])
        return one_round(self.terms, np.zeros(len(self.scales)), self.prior, factors).log_ratios


def _log_mean(values: Array) -> float:
    most = values.max()
    return float(most + np.log(np.exp(values - most).mean()))


def gain_of_best(log_ratios: Array, at: int) -> float:
    """Return the log likelihood of the best mixture over that of the best single spread near node ``at``.

    ``log_ratios`` (n, t) are those of the tasks. The best mixture comes by expectation maximisation, which stops as
    soon as its gain is large enough.
    """
    most = log_ratios.max(axis=0)
    likelihood = np.exp(log_ratios - most)
    best = float(log_ratios.sum(axis=1).max())
    weights = np.full(len(likelihood), 0.5 / len(likelihood))
    weights[at] += 0.5
    gain = -np.inf
    for step in range(_STEPS):
        mixed = weights @ likelihood
        gain = float(np.log(mixed).sum() + most.sum()) - best
        if gain > _POSSIBLE and step > 0:
            break
        weights = weights * (likelihood / mixed).mean(axis=1)
    return gain


class _GivenAction(NamedTuple):
    """All hyper-parameters integrated but a: nodes of each pattern, the two log evidences, and the mean mixture."""

    patterns: list[PatternNodes]
    mixture: float
    one: float
    mean: Array


def _given_action(terms: _Terms, near: _GivenAction) -> _GivenAction:
    """Integrate (m, g, w) given a, l and s^2, around the mean mixture of similar ones."""
    law, _ = propagate(terms.terms, near.mean, terms.prior)
    curves = Curves(terms.scales, law.log_ratios)
    patterns = [
        integrate_pattern(curves, pattern, nodes.windows)
        for pattern, nodes in zip(SIZES, near.patterns, strict=True)
    ]
    evidence = np.array([nodes.log_evidence for nodes in patterns])
    whole = float(np.logaddexp.reduce(evidence))
    expanded = law.log_ratios + np.log(near.mean)[:, None]
    most = expanded.max(axis=0)
    at_mean = float((most + np.log(np.exp(expanded - most).sum(axis=0))).sum())
    log_evidence = law.log_evidence - at_mean + whole - float(np.log(len(patterns)))
    mean = mean_mixture(terms.scales, patterns, np.exp(evidence - whole))
    return _GivenAction(patterns, log_evidence, terms.one_spread(), mean)


def _first(terms: _Terms, start: int) -> _GivenAction:
    """Integrate the same, first around the spread of the grid that one spread is nearest to."""
    n = len(terms.scales)
    mean = np.full(n, 0.3 / n)
    mean[start] += 0.7
    none = np.zeros(0)
    nowhere = [PatternNodes(none, none, none, none, 0.0, (WHOLE,) * 4)] * len(SIZES)
    return _given_action(terms, _given_action(terms, _GivenAction(nowhere, 0.0, 0.0, mean)))


def mixed_spreads(
    moments: Moments, shapes: Shapes, sds: tuple[float, float, float], noise: float
) -> MixedSpreads | None:
    """Return the mixture of spreads that a log shows; None where it does not.

    Parameters
    ----------
    moments : Moments
    shapes : Shapes
    sds : (float, float, float)
        a, l and m of the one spread that the log has otherwise, in units of the noise.
    noise : float
        Its s^2.
    """
    D, n_tasks = (moments.n_actions + 1) * moments.unit_dim, int(np.count_nonzero(moments.rows.any(axis=1)))
    if not _FEWEST <= n_tasks <= _MOST or D > _WIDEST or 3 * n_tasks * D * D > _ROOM:
        return None
    a, level, m = sds
    part: Any = part_of_tasks(moments, min(_UNITS, int(4 * _ROOM / (24 * D * D)) * moments.n_actions))
    sums = _Sums.of(part, shapes, max(m, 0.02))
    try:
        about = sums.about_actions(level, noise)
        terms = sums.about_effects(about, a, noise)
        best = int(terms.of_one_spread().argmax())
        if gain_of_best(terms.ratios(best), best) < _POSSIBLE:
            return None
        return _integrated(sums, sds, noise, about, best)
    except (NumericalError, np.linalg.LinAlgError):  # a log that says too little of a task without the others
        return None


def _integrated(
    sums: _Sums, sds: tuple[float, float, float], noise: float, about: TaskTerms, start: int
) -> MixedSpreads | None:
    """Integrate both, and compare them."""
    a, level, _ = sds
    near = _first(sums.about_effects(about, a, noise), start)
    grid = _actions(sums, about, noise, near)
    one_spread = float(np.logaddexp.reduce([mass + given.one for _, mass, given in grid])) + sums.constant(
        noise
    )
    best, _, near = max(grid, key=lambda entry: entry[1] + entry[2].mixture)

    def log_evidence(level: float, noise: float) -> float:
        terms = sums.about_effects(sums.about_actions(level, noise), best, noise)
        return _given_action(terms, near).mixture + sums.constant(noise)

    level, noise = _mode(log_evidence, level, noise)
    grid = _actions(sums, sums.about_actions(level, noise), noise, near)
    evidence = np.array([mass + given.mixture for _, mass, given in grid])
    whole = float(np.logaddexp.reduce(evidence))
    log_odds = whole + sums.constant(noise) - one_spread
    if not log_odds > ODDS:
        return None
    return _flat([(a, given) for a, _, given in grid], np.exp(evidence - whole), log_odds, level, noise)


def _mode(log_evidence: Callable[[float, float], float], level: float, noise: float) -> tuple[float, float]:
    """Take one step of Newton's method along log l, then along log s."""
    middle = log_evidence(level, noise)
    moved = _step(
        log_evidence(level * np.exp(-_MOVED), noise), middle, log_evidence(level * np.exp(_MOVED), noise)
    )
    level *= float(np.exp(moved * _MOVED))
    small = _MOVED / 5
    middle = log_evidence(level, noise)
    moved = _step(
        log_evidence(level, noise * np.exp(-2 * small)),
        middle,
        log_evidence(level, noise * np.exp(2 * small)),
    )
    return level, noise * float(np.exp(2 * moved * small))


def _step(low: float, middle: float, high: float) -> float:
    """Maximum of the parabola through three points at -1, 0 and 1, at most 2 away; the best end of a valley."""
    slope, curvature = (high - low) / 2, low - 2 * middle + high
    if curvature >= 0:
        return float(np.sign(slope))
    return float(np.clip(-slope / curvature, -2.0, 2.0))


def _actions(
    sums: _Sums, about: TaskTerms, noise: float, near: _GivenAction
) -> list[tuple[float, float, _GivenAction]]:
    """Values of a with their log prior masses, 0 among them, on a window that follows the weight."""
    zero = 0.0, float(-np.log(2.0)), _given_action(sums.about_effects(about, 0.0, noise), near)
    window, entries = WHOLE, [zero]
    for _ in range(ROUNDS):
        nodes, mass = axis_nodes(window, _ACTION_NODES)
        sds, log_mass = np.tan(np.pi / 2 * nodes).tolist(), (np.log(mass) - np.log(2.0)).tolist()
        entries = [
            (a, log_prior, _given_action(sums.about_effects(about, a, noise), near))
            for a, log_prior in zip(sds, log_mass, strict=True)
        ]
        weight = np.array([log_prior + given.mixture for _, log_prior, given in entries])
        closer = closer_window(nodes, window, np.exp(weight - max(weight.max(), zero[1] + zero[2].mixture)))
        if closer == window:
            break
        window = closer
    return [zero, *entries]


def _flat(
    grid: list[tuple[float, _GivenAction]], shares: Array, log_odds: float, level: float, noise: float
) -> MixedSpreads:
    """Put the nodes of all a and all patterns side by side, and choose the few that stand for all."""
    weights, action, m, large, w = [], [], [], [], []
    for (a, given), share in zip(grid, shares, strict=True):
        evidence = np.array([nodes.log_evidence for nodes in given.patterns])
        patterns = np.exp(evidence - np.logaddexp.reduce(evidence))
        for nodes, pattern in zip(given.patterns, patterns, strict=True):
            weights.append(share * pattern * nodes.weights)
            action.append(np.full(nodes.m.size, a))
            m.append(nodes.m)
            large.append(nodes.large)
            w.append(nodes.w)
    share, a_sd, usual, most, spread_weights = (
        np.concatenate(part) for part in (weights, action, m, large, w)
    )
    kept = share > _KEPT * share.max()
    share, a_sd, usual, most, spread_weights = (
        part[kept] for part in (share / share[kept].sum(), a_sd, usual, most, spread_weights)
    )
    mean_square = spread_weights[:, 1] * usual**2 + spread_weights[:, 2] * most**2
    size = np.sqrt(mean_square)
    few = _few(
        share, [a_sd, usual, np.where(spread_weights[:, 2] > 0, most, 0.0), *spread_weights[:, [0, 2]].T]
    )
    order = np.argsort(size, kind="stable")
    points = np.searchsorted(np.cumsum(share[order]), (np.arange(_SHOWN) + 0.5) / _SHOWN)
    shown = np.bincount(order[np.minimum(points, order.size - 1)], minlength=order.size) / _SHOWN
    taken = (few > 0) | (shown > 0)
    scales = np.stack([np.zeros_like(usual), usual, most], axis=1) / size[:, None]
    return MixedSpreads(
        log_odds, shown[taken], few[taken], a_sd[taken], size[taken], scales[taken], spread_weights[taken], level,
        noise,
    )  # fmt: skip


def _few(weights: Array, values: list[Array]) -> Array:
    """Weights of few nodes, with the moments up to degree 2 of all, within each pattern of zeros."""
    few, pattern = np.zeros(weights.size), np.zeros(weights.size, dtype=np.int64)
    for value in values:
        pattern = 2 * pattern + (value > 0)
    for code in np.unique(pattern):
        members = np.flatnonzero(pattern == code)
        if weights[members].sum() < _RARE:
            continue
        moving = [value[members] for value in values if np.ptp(value[members]) > 0]
        few[members] = few_nodes(weights[members], moving, 2)
    return np.asarray(few / few.sum(), dtype=np.float64)
