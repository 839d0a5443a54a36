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

The factors of the propagation are found once, at one a, l and s^2 (:class:`_Approximation`), and the evidence of all
others is that with these factors: it is stationary in them. Before that a cheap test (:mod:`spread_screening`) says if
there can be any such evidence.

Stephens (2017), False discovery rates: a new deal; Urbut et al. (2019), Flexible statistical methods for estimating and
testing effects in genomic studies with multiple conditions.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np

from hieropo._kernels.reference.gaussians import phi
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
    Window,
    axis_nodes,
    closer_window,
    integrate_pattern,
    mean_mixture,
)
from hieropo.estimation.crossed.spread_screening import spreads_may_differ
from hieropo.model.crossed.propagation import Cavities, Factors, TaskTerms, propagate
from hieropo.model.crossed.steps import ObservedUnits
from hieropo.model.steps import upper_factor
from hieropo.moments.statistics import Moments

SCALES = 3  # none, usual, large
ODDS = float(np.log(10.0))  # log Bayes factor from which the mixture is used
_WIDEST = 64  # coefficients (K + 1) p up to which tasks are approximated
_ROOM = 2**21  # doubles of the information of all tasks under all scales
_UNITS = 2_000  # units of a part of the tasks that tells the mixture
_FEWEST, _MOST = (
    8,
    1_000,
)  # tasks from which on it may be told, and up to which all are approximated in seconds
_STEP = 0.4  # of log v between nodes of a spline
_ACTION_NODES = 7
_SCANNED = 30  # values of a by which a window is found
_NEGLIGIBLE = 1e-4  # weight there, in units of the largest, outside a window
_LEAST_ACTION = 0.02  # a, from which on factors are sought
_CLOSE = 1e-5  # at which factors are kept
_LEAST = 1e-8  # responsibility below which a scale has no part in factors
_HOPELESS = 0.0  # log Bayes factor, given a, below which the mixture is given up
_MOVED = 0.25  # step of log l and log s in the search for their mode
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
        low = min(0.1 / np.sqrt(float(moments.rows.max())), m / 30)
        high = 40 * max(m, 10 * low)
        n = int(np.ceil(np.log(high / low) / _STEP)) + 1
        scales = np.append(0.0, np.geomspace(low, high, n))
        return cls(ObservedUnits.of(moments, shapes.noise_ratio), shapes, scales, float(moments.n_rows))

    def given(self, level: float, noise: float) -> "_Terms":
        """Terms with l and s^2."""
        basis, p = contrasts(self.shapes.action, self.units.n_actions), self.units.dim
        basis[:, p:] *= np.sqrt(
            noise
        )  # the same z for every s^2: a root of a covariance may change its signs
        terms = TaskTerms.of(
            self.units.over(noise), noise * self.shapes.interaction, noise * level**2 * self.shapes.level, basis,
            self.scales,
        )  # fmt: skip
        whole = terms.information.sum(axis=1), terms.score.sum(axis=1), terms.constant.sum(axis=1)
        return _Terms(terms, whole, self.scales, p, -0.5 * self.n_rows * float(np.log(noise)))


def contrasts(action_cov: Array, n_actions: int) -> Array:
    """Return the matrix (K p, D) from z to mu, which is orthogonal in the actions.

    Of z the first p numbers, flat, are +-the sum of mu_a over actions, divided by the root of K; the others, N(0, a^2),
    are standardised contrasts, K - 1 for each direction in which ``action_cov``, A at a = 1, is not 0.
    """
    K, p = n_actions, len(action_cov)
    factor = upper_factor(action_cov)[0]
    factor = factor[:, factor.any(axis=0)]
    turned = np.linalg.qr(np.concatenate([np.ones((K, 1)), np.eye(K)[:, 1:]], axis=1))[0]
    return np.concatenate([np.kron(turned[:, :1], np.eye(p)), np.kron(turned[:, 1:], factor)], axis=1)


class _Terms(NamedTuple):
    """Terms about z of all tasks over the grid, and their sums over tasks."""

    terms: TaskTerms
    whole: tuple[Array, Array, Array]
    scales: Array
    flat: int  # numbers of z without a prior
    constant: float  # part of the log evidence that s^2 changes beside the terms

    def prior(self, a: float) -> tuple[Array, float]:
        """Prior precisions of z, of its flat part alone at a = 0, and the logarithm of their normalisation."""
        D = self.terms.score.shape[2]
        if a == 0:
            return np.zeros(self.flat), self.constant
        precision = np.where(np.arange(D) < self.flat, 0.0, 1 / a**2)
        return precision, self.constant - (D - self.flat) * float(np.log(a))

    def about(self, d: int) -> TaskTerms:
        """Return terms about the first d numbers of z, where the others are 0."""
        information, score, constant = self.terms
        return TaskTerms(information[..., :d, :d], score[..., :d], constant)

    def of_one_spread(self, a: float) -> Array:
        """Exact log evidence of each spread of the grid, were it that of all tasks."""
        prior, constant = self.prior(a)
        d = prior.size
        information, score, rest = self.whole
        return np.asarray(rest + phi(np.diag(prior) + information[:, :d, :d], score[:, :d]) + constant)

    def one_spread(self, a: float) -> float:
        """Log evidence of one spread: m = 0 with probability 1/2, else half-Cauchy."""
        from scipy.interpolate import CubicSpline

        values = self.of_one_spread(a)
        ends = np.log(self.scales[[1, -1]])
        u = (np.arange(2_000) + 0.5) / 2_000
        along = CubicSpline(np.log(self.scales[1:]), values[1:])(
            np.clip(np.log(np.tan(np.pi / 2 * u)), *ends)
        )
        return float(np.logaddexp(values[0], _log_mean(along)) - np.log(2.0))

    def ratios(self, a: float, factors: Factors) -> tuple[Cavities, Array]:
        """Log Z_s(v) of each task (n, t), given the factors of the others, and their cavities."""
        prior, _ = self.prior(a)
        d = prior.size
        cavities = Cavities.of(prior, Factors(factors.precision[:, :d, :d], factors.shift[:, :d]))
        return cavities, cavities.log_ratios(self.about(d))

    def under_one_spread(self, at: int) -> Factors:
        """Return the exact factors of the tasks where all have one spread of the grid."""
        return Factors(self.terms.information[at], self.terms.score[at])


def _log_mean(values: Array) -> float:
    most = values.max()
    return float(most + np.log(np.exp(values - most).mean()))


class _GivenAction(NamedTuple):
    """All hyper-parameters integrated but a: nodes of each pattern, the log evidence, and the mean mixture."""

    patterns: list[PatternNodes]
    mixture: float
    mean: Array


class _Approximation(NamedTuple):
    """A fixed point of the propagation at one a, l and s^2 and a mean mixture, near which others are evaluated.

    The log evidence of the approximation is stationary in its factors, so that factors of a similar (a, l, s^2)
    change it to second order only.
    """

    factors: Factors
    patterns: list[PatternNodes]
    mean: Array

    @classmethod
    def first(cls, terms: _Terms, a: float) -> Self:
        """Find it, first around the spread of the grid that one spread is nearest to."""
        n, start = len(terms.scales), int(terms.of_one_spread(a).argmax())
        mean = np.full(n, 0.3 / n)
        mean[start] += 0.7
        none = np.zeros(0)
        nowhere = [PatternNodes(none, none, none, none, 0.0, (WHOLE,) * 4)] * len(SIZES)
        first = cls(terms.under_one_spread(start), nowhere, mean).at(terms, a)
        given = first.given(terms, a)
        return first._replace(patterns=given.patterns, mean=given.mean).at(terms, a)

    def at(self, terms: _Terms, a: float) -> Self:
        """Return the fixed point for another a > 0, l and s^2."""
        _, factors = propagate(
            terms.terms, self.mean, terms.prior(a)[0], self.factors, close=_CLOSE, least=_LEAST
        )
        return self._replace(factors=factors)

    def given(self, terms: _Terms, a: float) -> _GivenAction:
        """Integrate (m, g, w) given a, l and s^2."""
        cavities, log_ratios = terms.ratios(a, self.factors)
        curves = Curves(terms.scales, log_ratios)
        patterns = [
            integrate_pattern(curves, pattern, nodes.windows)
            for pattern, nodes in zip(SIZES, self.patterns, strict=True)
        ]
        evidence = np.array([nodes.log_evidence for nodes in patterns])
        whole = float(np.logaddexp.reduce(evidence))
        log_weights = np.log(self.mean)
        at_mean = float(np.logaddexp.reduce(log_ratios + log_weights[:, None], axis=0).sum())
        log_evidence = cavities.log_evidence(log_ratios, log_weights) + terms.prior(a)[1]
        log_evidence += whole - at_mean - float(np.log(len(patterns)))
        return _GivenAction(
            patterns, log_evidence, mean_mixture(terms.scales, patterns, np.exp(evidence - whole))
        )

    def along_actions(self, terms: _Terms, sds: Array) -> Array:
        """Log evidence of each a > 0, up to a constant, the factors taken as they are: for windows."""
        precision, shift = self.factors.precision.sum(axis=0), self.factors.shift.sum(axis=0)
        priors = [terms.prior(a) for a in sds.tolist()]
        return np.array([constant + phi(np.diag(prior) + precision, shift) for prior, constant in priors])


def spreads_out_of_reach(moments: Moments) -> str:
    """Return why a mixture of spreads is not looked for, as a sentence has it; empty where it is."""
    D, n_tasks = (moments.n_actions + 1) * moments.unit_dim, int(np.count_nonzero(moments.rows.any(axis=1)))
    if not _FEWEST <= n_tasks <= _MOST:
        return f"the search needs {_FEWEST} to {_MOST:,} tasks with rows, and this log has {n_tasks:,}"
    if D > _WIDEST or 3 * n_tasks * D * D > _ROOM:
        return (
            f"the search takes at most {min(_WIDEST, int((_ROOM / (3 * n_tasks)) ** 0.5))} coefficients, (actions + 1) "
            f"x columns, with {n_tasks:,} tasks, and this log has {D:,}"
        )
    return ""


def mixed_spreads(
    moments: Moments, shapes: Shapes, sds: tuple[float, float, float], noise: float, *, screened: bool = True
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
    screened : bool
        False leaves out the test before the search: for a comparison with another mixture.
    """
    if spreads_out_of_reach(moments):
        return None
    D, (a, level, m) = (moments.n_actions + 1) * moments.unit_dim, sds
    part: Any = part_of_tasks(moments, min(_UNITS, int(4 * _ROOM / (24 * D * D)) * moments.n_actions))
    sums = _Sums.of(part, shapes, max(m, 0.02))
    covs = noise * a**2 * shapes.action, noise * level**2 * shapes.level, noise * shapes.interaction
    rows = part.rows.sum(axis=1)[sums.units.tasks]
    try:
        if screened and not spreads_may_differ(sums.units.over(noise), covs, m, sums.scales, rows):
            return None
        return _integrated(sums, (max(a, _LEAST_ACTION), level, noise))
    except (NumericalError, np.linalg.LinAlgError):  # a log that says too little of a task without the others
        return None


def _integrated(sums: _Sums, sds: tuple[float, float, float]) -> MixedSpreads | None:
    """Integrate both, and compare them."""
    a, level, noise = sds
    terms = sums.given(level, noise)
    near = _Approximation.first(terms, a)
    given = near.given(terms, a)
    if given.mixture - terms.one_spread(a) < _HOPELESS:
        return None
    one_spread = _one_spread(terms)

    def log_evidence(level: float, noise: float) -> float:
        return near.given(sums.given(level, noise), a).mixture

    level, noise = _mode(log_evidence, given.mixture, level, noise)
    terms = sums.given(level, noise)
    near = near._replace(patterns=given.patterns, mean=given.mean).at(terms, a)
    grid = _actions(near, terms)
    evidence = np.array([mass + given.mixture for _, mass, given in grid])
    whole = float(np.logaddexp.reduce(evidence))
    log_odds = whole - one_spread
    if not log_odds > ODDS:
        return None
    return _flat([(a, given) for a, _, given in grid], np.exp(evidence - whole), log_odds, level, noise)


def _mode(
    log_evidence: Callable[[float, float], float], middle: float, level: float, noise: float
) -> tuple[float, float]:
    """Take one step of Newton's method along log l, and one along log s; ``middle`` is the value where they start."""

    def moved(step: float, along: Callable[[float], float]) -> float:
        low, high = along(float(np.exp(-step))), along(float(np.exp(step)))
        return float(np.exp(step * _step(low, middle, high)))

    of_level = moved(_MOVED, lambda ratio: log_evidence(level * ratio, noise))
    of_noise = moved(_MOVED / 5, lambda ratio: log_evidence(level, noise * ratio**2))
    return level * of_level, noise * of_noise**2


def _step(low: float, middle: float, high: float) -> float:
    """Maximum of the parabola through three points at -1, 0 and 1, at most 2 away; the best end of a valley."""
    slope, curvature = (high - low) / 2, low - 2 * middle + high
    if curvature >= 0:
        return float(np.sign(slope))
    return float(np.clip(-slope / curvature, -2.0, 2.0))


def _actions_of(window: Window) -> tuple[Array, Array, Array]:
    """Nodes u of a window, their a, and log prior masses."""
    nodes, mass = axis_nodes(window, _ACTION_NODES)
    return nodes, np.tan(np.pi / 2 * nodes), np.log(mass) - np.log(2.0)


def _window_of_actions(log_evidence: Callable[[Array], Array]) -> Window:
    """Return the window that has the weight of a > 0, by a fine scan of a function of a that costs little."""
    u = (np.arange(_SCANNED) + 0.5) / _SCANNED
    values = log_evidence(np.tan(np.pi / 2 * u))
    heavy = np.flatnonzero(values > values.max() + np.log(_NEGLIGIBLE))
    return max(u[heavy[0]] - 1 / _SCANNED, 0.0), min(u[heavy[-1]] + 1 / _SCANNED, 1.0)


def _one_spread(terms: _Terms) -> float:
    """Log evidence of one spread, a and m integrated."""

    def along(sds: Array) -> Array:
        return np.array([terms.one_spread(a) for a in sds.tolist()])

    _, sds, log_mass = _actions_of(_window_of_actions(along))
    return float(np.logaddexp.reduce(np.append(log_mass + along(sds), terms.one_spread(0.0) - np.log(2.0))))


def _actions(near: _Approximation, terms: _Terms) -> list[tuple[float, float, _GivenAction]]:
    """Values of a with their log prior masses, 0 among them, on a window that follows the weight."""
    zero = 0.0, float(-np.log(2.0)), near.given(terms, 0.0)
    window, entries = _window_of_actions(lambda sds: near.along_actions(terms, sds)), [zero]
    for _ in range(ROUNDS):
        nodes, sds, log_mass = _actions_of(window)
        entries = [
            (a, log_prior, near.given(terms, a))
            for a, log_prior in zip(sds.tolist(), log_mass.tolist(), strict=True)
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
