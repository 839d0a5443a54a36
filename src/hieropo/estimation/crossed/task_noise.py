"""Noise variances of tasks, shrunken to a common one: learned from rows that repeat an action in a task.

With q_sa the squares of the rows of task s and action a about their own least squares fit, of f_sa degrees of freedom,
and noise variance sigma_a^2 t_s,

    q_sa | t_s ~ sigma_a^2 t_s chi^2(f_sa)          1 / t_s ~ Gamma(d_0 / 2, d_0 / 2)

so that with F_s = sum_a f_sa, Q_s = sum_a q_sa / sigma_a^2

    1 / t_s | log ~ Gamma((d_0 + F_s) / 2, (d_0 + Q_s) / 2)        lambda_s = (d_0 + F_s) / (d_0 + Q_s)
    log p(q) = sum_s  d_0 / 2 log(d_0 / 2) - log Gamma(d_0 / 2) + log Gamma((d_0 + F_s) / 2)
               - (d_0 + F_s) / 2 log((d_0 + Q_s) / 2) - sum_a f_sa / 2 log sigma_a^2  +  const

exactly, whatever the coefficients are: q is independent of the fits, so that the precision of a task says nothing of
the errors of its means, and a prior that does not fit a task does not make its rows look noisy. v = sqrt(2 / d_0), the
standard deviation of the precisions, is half-Cauchy(1) and integrated; the sigma_a^2 are at their mode for each v, or,
relative to each other, for all.

Noise is equal unless the log of the ratio of this evidence to that of equal noise is above log 10, and

- is above the same where each unit (s, a) has a t of its own. Rewards with heavy tails make variances of units differ,
  without those of one task being alike: a row that happened to be far off says nothing of the rows to come;
- variances do not depend on means. Where they do, as for amounts, counts and shares, the rows that make a mean large by
  chance make the variance large, too, so that precisions depend on the errors of means (95 % zeros and lognormal
  amounts: 25 points of value were lost);
- few rows are in units whose rewards are all equal: a unit of zeros is not one without noise.

With contexts, and few rows that repeat an action in a task, the last two rules are also those of the means and
variances of all rewards of tasks, and of tasks whose rewards are all equal. :mod:`noise_given_effects` says how noise
is learned there.

Sources: Smyth, Statistical Applications in Genetics and Molecular Biology 3, 2004.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv, gammaln, logsumexp

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.packed import packed_size, unpack
from hieropo.estimation.crossed.grid import Window
from hieropo.estimation.crossed.shapes import WIDTH, part_of_tasks
from hieropo.model.crossed.hierarchy import UNTOLD, CrossedHierarchy
from hieropo.model.crossed.task_noise import TaskNoise
from hieropo.model.steps import upper_factor
from hieropo.moments.statistics import Moments

EqualBecause = Literal["", "constant", "mean", "rows"]

ODDS = float(np.log(10.0))
_UNITS = 10_000  # units that d_0 is learned from
_FEWEST_TASKS = 5  # with residuals, from which on their variances are compared
_DEPENDENT = (
    0.09  # share of the variance of ranks of log variances that means explain, above which they depend
)
_CHANCE = (
    11.8  # of the same times the number of tasks or units: chi^2 of 2 degrees of freedom passes it in .3 %
)
CONSTANT = 0.05  # share of rows in units without spread
_REPEATED = (
    1 / 3
)  # share of the rows that are residual degrees of freedom, above which residuals tell the noise
_NONE = 1e-12  # residual squares that are none, as a share of the squares
_LEAST = 1e-6  # variance of a unit, as a share of that of all, below which none is taken
_PIECE = 4096  # units that are solved at once
_ROUNDS = 4  # of windows of v
_SWEEPS = 3  # over d_0 and relative variances of actions
_QUANTILES = 8  # of the precision of a task
_LEFT = (
    0.1  # share of the degrees of freedom that are left of them at least, where the mean of t_s may not exist
)
_SMALLEST = 0.01  # weight of a node of d_0 that precisions are averaged over
_FLAT = 1e-12  # slope of a shrinkage that tells no precision
_STEPS = 30  # of Newton's method
_CANDIDATES = np.linspace(0.0, 1.0, 129)


class Residuals(NamedTuple):
    """Units with residual degrees of freedom.

    Attributes
    ----------
    task, action : (u,) int array
        Row of the moments, and action.
    squares, degrees : (u,) array
        q, at least a millionth of what the variance of all makes likely, and f.
    mean : (u,) array
        Mean reward, less the offset.
    rows : (u,) array
    constant : float
        Share of the rows of these units that are in units without spread.
    """

    task: Codes
    action: Codes
    squares: Array
    degrees: Array
    mean: Array
    rows: Array
    constant: float

    @classmethod
    def of(cls, moments: Moments) -> "Residuals":
        """Fit each unit of at least two rows by itself."""
        K, p, rows = moments.n_actions, moments.unit_dim, moments.unit_rows
        some = np.flatnonzero(rows > 1.0)
        sums = moments.unit_sums[some]
        square, weight = sums[:, packed_size(p + 1) - 1], sums[:, -1]
        if p == 1:
            rank = (sums[:, 0] > 0).astype(np.float64)
            squares = square - sums[:, 1] ** 2 / np.where(rank > 0, sums[:, 0], 1.0)
        else:
            squares, rank = _fits(sums, p)
        degrees, count = rows[some] - rank, rows[some]
        squares = np.where(squares > _NONE * square, squares, 0.0)
        left = np.flatnonzero(degrees > 0.5)
        constant = float(count[left][squares[left] == 0.0].sum() / max(count[left].sum(), 1.0))
        total = sums[left, packed_size(p + 2) - 2]
        units, f = some[left], degrees[left]
        squares = np.maximum(squares[left], _LEAST * f * squares[left].sum() / max(float(f.sum()), 1.0))
        return cls(units // K, units % K, squares, f, total / weight[left], count[left], constant)


def _fits(sums: Array, p: int) -> tuple[Array, Array]:
    """Squares about least squares fits (u,), and ranks (u,), from packed sums of z = (phi, r, 1).

    In units of the root mean square of each column, pivots up to 1e-7 are columns that others determine.
    """
    squares, rank = np.empty(len(sums)), np.empty(len(sums))
    jitter = np.append(np.full(p, 1e-12), 1e-13)
    for start in range(0, len(sums), _PIECE):
        part = slice(start, start + _PIECE)
        joint = unpack(sums[part], p + 2)[:, : p + 1, : p + 1]
        size = np.sqrt(np.maximum(np.diagonal(joint, axis1=1, axis2=2), 0.0))
        size = np.where(size > 0, size, 1.0)
        joint = joint / (size[:, :, None] * size[:, None, :]) + np.diag(jitter)
        try:
            pivots = np.diagonal(np.linalg.cholesky(joint), axis1=1, axis2=2) ** 2
        except np.linalg.LinAlgError:  # of rounding errors left where rows were taken away
            squares[part], rank[part] = 0.0, np.inf
            continue
        squares[part] = pivots[:, p] * size[:, p] ** 2
        rank[part] = (pivots[:, :p] > 1e-7).sum(axis=1)
    return squares, rank


class Findings(NamedTuple):
    """The noise of tasks that a log shows.

    Attributes
    ----------
    law : NoiseLaw or None
        None where noise is taken as equal.
    because : {"", "constant", "mean", "rows"}
        The rule that keeps it equal where the evidence is for unequal noise: many units have one value only; variances
        depend on means; or they differ as much within tasks, as with heavy tails.
    log_odds : float
        Log of the ratio of the evidence for unequal noise to that for equal noise.
    """

    law: "NoiseLaw | None"
    because: EqualBecause
    log_odds: float


def learn_task_noise(moments: Moments) -> Findings:
    """Return precisions of the rows of tasks where the log asks for them.

    Parameters
    ----------
    moments : Moments
        Kept per action.
    """
    equal = Findings(None, "", 0.0)
    part = part_of_tasks(moments, _UNITS // moments.unit_dim)
    assert isinstance(part, Moments)  # as all moments in memory
    residuals = Residuals.of(part)
    tasks, group = np.unique(residuals.task, return_inverse=True)
    if tasks.size < _FEWEST_TASKS or not residuals.squares.any():
        return equal
    K = moments.n_actions
    by_task = NoiseLaw.of(residuals, group, tasks.size, K)
    if by_task.log_odds < ODDS:
        return equal._replace(log_odds=by_task.log_odds)
    few = moments.unit_dim > 1 and not residuals_tell_noise(moments)
    if residuals.constant > CONSTANT or (few and constant_share(part) > CONSTANT):
        return Findings(None, "constant", by_task.log_odds)
    if _depends_on_mean(residuals, group, by_task.ratio) or (few and _spread_depends_on_mean(part)):
        return Findings(None, "mean", by_task.log_odds)
    units = np.arange(residuals.task.size)
    if NoiseLaw.of(residuals, units, units.size, K).log_odds >= by_task.log_odds:
        return Findings(None, "rows", by_task.log_odds)
    return Findings(by_task, "", by_task.log_odds)


class NoiseLaw(NamedTuple):
    """Evidence for unequal noise of groups of units, and the nodes of d_0 that it is averaged over.

    Attributes
    ----------
    log_odds : float
    weights, degrees, variance : (J,) array
        Posterior weights of the nodes, d_0, and the noise variance sigma^2 of each.
    ratio : (K,) array
        sigma_a^2 / sigma^2.
    """

    log_odds: float
    weights: Array
    degrees: Array
    variance: Array
    ratio: Array

    @classmethod
    def of(cls, residuals: Residuals, group: Codes, groups: int, actions: int) -> "NoiseLaw":
        """Integrate over d_0."""
        q, f, action = residuals.squares, residuals.degrees, residuals.action
        F, of_action = _sums(group, f, groups), _sums(action, f, actions)
        start = _relative(_by_action(q, f, action, actions), of_action)
        equal, _ = _equal(residuals, of_action, start)
        window, log_ratio, variance = Window(), start, q.sum() / f.sum()
        for _ in range(_ROUNDS):
            for sweep in range(_SWEEPS):
                u, mass = window.spots()
                d0 = 2.0 / np.tan(np.pi / 2 * u) ** 2
                Q = _sums(group, q * np.exp(-log_ratio[action]), groups)
                s2 = _variances(F, Q, d0, variance)
                log_weight = _log_density(F, Q, d0, s2) + np.log(mass)
                log_weight -= 0.5 * float(of_action @ log_ratio) + _penalty(log_ratio)
                weights = np.exp(log_weight - logsumexp(log_weight))
                variance = float(np.exp(weights @ np.log(s2)))
                if sweep < _SWEEPS - 1:
                    scale = _precisions(F, Q, weights, d0, s2)
                    per_action = _sums(action, scale[group] * q, actions) / np.maximum(of_action, 1.0)
                    log_ratio = _relative(np.where(of_action > 0, per_action, 1.0), of_action)
            closer = window.closer(weights)
            if closer == window or 1.0 / float((weights**2).sum()) > 3.0:
                break
            window = closer
        equal_again, _ = _equal(residuals, of_action, log_ratio)
        return cls(float(logsumexp(log_weight)) - max(equal, equal_again), weights, d0, s2, np.exp(log_ratio))

    @property
    def common(self) -> float:
        """The noise variance sigma^2 of a row of precision 1."""
        return 1.0 / float(self.weights @ (1.0 / self.variance))

    def on(self, moments: Moments) -> "NoiseOfLog":
        """Return the noise of all tasks of some moments."""
        residuals, m = Residuals.of(moments), len(moments)
        squares = residuals.squares / self.ratio[residuals.action]
        degrees = _sums(residuals.task, residuals.degrees, m)
        return NoiseOfLog(self, moments, residuals, degrees, _sums(residuals.task, squares, m))

    def nodes(self) -> Iterator[tuple[float, float, float]]:
        """Yield weight, d_0 and sigma^2 of the nodes that have weight."""
        some = np.flatnonzero(self.weights > _SMALLEST)
        weights = self.weights[some] / self.weights[some].sum()
        yield from zip(
            weights.tolist(), self.degrees[some].tolist(), self.variance[some].tolist(), strict=True
        )


class NoiseOfLog(NamedTuple):
    """The noise of the tasks of a log under a law.

    Attributes
    ----------
    law : NoiseLaw
    moments : Moments
        m tasks.
    residuals : Residuals
        Of all units.
    degrees, squares : (m,) array
        F_s and Q_s.
    at_least_usual : bool
        True where no task counts as less noisy than the median one: precisions are at most their median over the rows
        of tasks whose rewards vary.
    """

    law: NoiseLaw
    moments: Moments
    residuals: Residuals
    degrees: Array
    squares: Array
    at_least_usual: bool = False

    def for_learning(self) -> Moments:
        """Return the moments that a hierarchy is learned from: rows of precision 1 / E[t_s | log].

        Their residual squares are those that rows of the variance sigma^2 have on average.
        """
        moments, common = self.moments, self.law.common
        expected = np.zeros(len(moments))
        for weight, degrees, variance in self.law.nodes():
            all_degrees = degrees + self.degrees
            left = np.maximum(all_degrees - 2.0, _LEFT * all_degrees)
            expected += weight * (degrees * variance + self.squares) / left
        precision = self._limited(common / expected)
        weighted = TaskNoise.of_log(moments, precision, 0.0).weighted(moments)
        task, action, column = (
            self.residuals.task,
            self.residuals.action,
            packed_size(moments.unit_dim + 1) - 1,
        )
        usual = self.residuals.degrees * common * self.law.ratio[action]
        sums = weighted.sums.copy()
        sums[task, action, column] += usual - precision[task] * self.residuals.squares
        return replace(weighted, sums=sums)

    def precisions(self, hierarchy: CrossedHierarchy) -> TaskNoise:
        """Return the precisions of the tasks: those that shrink coefficients as much as all t_s do on average.

        Parameters
        ----------
        hierarchy : CrossedHierarchy
            Central one of those that were learned from :meth:`for_learning`.
        """
        shrinkage, law = _Shrinkage.of(self.moments, hierarchy), self.law
        mean, target = np.zeros((2, len(self.moments)))
        place, mass = np.polynomial.legendre.leggauss(_QUANTILES)
        distinct, at = np.unique(self.degrees, return_inverse=True)
        for weight, degrees, variance in law.nodes():
            shape, scale = (degrees + distinct) / 2, 2.0 * law.common / (degrees * variance + self.squares)
            mean += weight * shape[at] * scale
            quantiles = gammaincinv(shape[:, None], (place + 1) / 2)
            for k in range(_QUANTILES):
                target += weight * mass[k] / 2 * shrinkage.at(quantiles[at, k] * scale)[0]
        precision = self._limited(shrinkage.solved(target, mean))
        degrees = float(1.0 / (law.weights @ (1.0 / law.degrees)))
        return TaskNoise.of_log(self.moments, precision, degrees)

    def _limited(self, precision: Array) -> Array:
        """Return precisions (m,), at most the usual one where ``at_least_usual``."""
        if not self.at_least_usual:
            return precision
        rows, varies = self.moments.rows.sum(axis=1), ~constant_tasks(self.moments)
        rows = np.where(varies, rows, 0.0) if varies.any() else rows
        order = np.argsort(precision, kind="stable")
        below = np.cumsum(rows[order])
        usual = float(precision[order[np.searchsorted(below, below[-1] / 2)]])
        return np.asarray(np.minimum(precision, usual))


class _Shrinkage(NamedTuple):
    """The share of coefficients gamma_sa that the rows of a task tell at precision lambda, as a sum over its units.

    With the eigenvalues g of M^1/2 G_sa M^1/2 / sigma_a^2 it is  sum lambda g / (1 + lambda g).

    Attributes
    ----------
    sizes : (m, K p) array
        g.
    """

    sizes: Array

    @classmethod
    def of(cls, moments: Moments, hierarchy: CrossedHierarchy) -> "_Shrinkage":
        p, units = moments.unit_dim, np.flatnonzero(moments.unit_rows > 0)
        sizes = np.zeros((moments.unit_rows.size, p))
        factor = upper_factor(hierarchy.interaction_cov[:p, :p])[0]
        for first in range(0, units.size, _PIECE):
            some = units[first : first + _PIECE]
            noise_var = hierarchy.noise_var[some % moments.n_actions]
            information = unpack(moments.unit_sums[some], p + 2)[:, :p, :p] / noise_var[:, None, None]
            along = factor.T @ information @ factor
            sizes[some] = along[:, :, 0] if p == 1 else np.linalg.eigvalsh(along)
        return cls(np.maximum(sizes, 0.0).reshape(len(moments), -1))

    def at(self, precision: Array) -> tuple[Array, Array]:
        """Return the shares at precisions (m,), and their slopes along the logs of these."""
        along = precision[:, None] * self.sizes
        share = along / (1.0 + along)
        return share.sum(axis=1), (share * (1.0 - share)).sum(axis=1)

    def solved(self, target: Array, start: Array) -> Array:
        """Return the precisions with the shares ``target``, by Newton's method; ``start`` where nothing is shrunken."""
        precision = start.copy()
        for _ in range(_STEPS):
            share, slope = self.at(precision)
            step = np.clip((target - share) / np.maximum(slope, np.finfo(np.float64).tiny), -1.0, 1.0)
            step[(target <= 0.0) | (slope < _FLAT)] = 0.0
            precision = precision * np.exp(step)
            if np.abs(step).max(initial=0.0) < 1e-12:
                break
        return precision


def residuals_tell_noise(moments: Moments) -> bool:
    """Return True if enough rows are residual degrees of freedom of units of full rank."""
    rows = moments.unit_rows
    return float(np.maximum(rows - moments.unit_dim, 0.0).sum()) > _REPEATED * max(float(rows.sum()), 1.0)


def constant_share(moments: Moments) -> float:
    """Return the share of the rows that are in tasks of several rows whose rewards are all equal."""
    rows = moments.rows.sum(axis=1)
    return float(rows[constant_tasks(moments) & (rows > 1.0)].sum() / rows.sum())


def constant_tasks(moments: Moments) -> NDArray[np.bool_]:
    """Return True (m,) for tasks whose rewards are all equal, or that have no rows."""
    weight, total, square = totals_of_tasks(moments)
    spread = square - total**2 / np.where(weight > 0, weight, 1.0)
    return np.asarray(spread <= _NONE * square)


def totals_of_tasks(moments: Moments) -> tuple[Array, Array, Array]:
    """Return sums (m,) of weights, rewards and squares of rewards."""
    p = moments.unit_dim
    sums = moments.unit_sums.reshape(len(moments), moments.n_actions, -1).sum(axis=1)
    return sums[:, -1], sums[:, packed_size(p + 2) - 2], sums[:, packed_size(p + 1) - 1]


def _sums(codes: Codes, values: Array, n: int) -> Array:
    """Sums (n,) of values by code."""
    return np.bincount(codes, values, n).astype(np.float64)


def _by_action(q: Array, f: Array, action: Codes, actions: int) -> Array:
    """Residual variances (K,) of actions; the common one where an action has no residuals."""
    of_action = _sums(action, f, actions)
    variance = _sums(action, q, actions) / np.maximum(of_action, 1.0)
    return np.where((of_action > 0) & (variance > 0), variance, q.sum() / f.sum())


def _relative(variance: Array, degrees: Array) -> Array:
    """Modes of log variances relative to their median, drawn to 0 as noise variances of actions are.

    A log variance is normal with variance 2 / f, and a priori Cauchy(0, WIDTH) around the others.
    """
    seen = degrees > 0
    if not seen.any():
        return np.zeros_like(variance)
    logs = np.log(np.maximum(variance, np.finfo(np.float64).tiny))
    away = np.where(seen, logs - np.median(logs[seen]), 0.0)
    away = np.clip(away, -np.log(UNTOLD), np.log(UNTOLD))
    w = away[:, None] * _CANDIDATES
    value = -degrees[:, None] / 4 * (w - away[:, None]) ** 2 - np.log1p((w / WIDTH) ** 2)
    return np.asarray(w[np.arange(len(w)), value.argmax(axis=1)])


def _penalty(log_ratio: Array) -> float:
    return float(np.log1p((log_ratio / WIDTH) ** 2).sum())


def _equal(residuals: Residuals, of_action: Array, log_ratio: Array) -> tuple[float, float]:
    """Log density where noise is equal in all tasks, at some relative variances of actions; and the variance."""
    F = float(of_action.sum())
    variance = float((residuals.squares * np.exp(-log_ratio[residuals.action])).sum()) / F
    value = -0.5 * F * (np.log(variance) + 1.0) - 0.5 * float(of_action @ log_ratio)
    return float(value - _penalty(log_ratio)), variance


def _variances(F: Array, Q: Array, d0: Array, start: float) -> Array:
    """Return sigma^2 (J,) of the largest density for each d_0, by Newton's method on its log, with halved steps.

    The slope  sum (d_0 + F) / 2 x - F / 2,  x = Q / (Q + d_0 sigma^2), falls from above 0 to below.
    """
    total = float(F.sum())
    log_s2 = np.full(d0.size, np.log(start))
    low, high = log_s2 - 60.0, log_s2 + 60.0
    for _ in range(_STEPS):
        share = Q / (Q + d0[:, None] * np.exp(log_s2)[:, None])
        half = (d0[:, None] + F) / 2 * share
        slope, fall = half.sum(axis=1) - total / 2, (half * (1.0 - share)).sum(axis=1)
        low, high = np.where(slope > 0, log_s2, low), np.where(slope > 0, high, log_s2)
        step = log_s2 + slope / np.maximum(fall, 1e-300)
        new = np.where((step >= low) & (step <= high), step, (low + high) / 2)
        done = np.abs(new - log_s2).max() < 1e-10
        log_s2 = new
        if done:
            break
    return np.asarray(np.exp(log_s2))


def _log_density(F: Array, Q: Array, d0: Array, s2: Array) -> Array:
    """Log densities (J,) of the squares of groups, without the terms that equal noise has, too.

    Written with log1p, so that many degrees d_0 lose no digits.
    """
    half = d0[:, None] / 2
    value = gammaln(half + F / 2) - gammaln(half) - F / 2 * np.log(half)
    value -= (half + F / 2) * np.log1p(Q / (s2[:, None] * d0[:, None]))
    return np.asarray(value.sum(axis=1) - 0.5 * F.sum() * np.log(s2))


def _precisions(F: Array, Q: Array, weights: Array, d0: Array, s2: Array) -> Array:
    """Posterior means (m,) of 1 / (sigma^2 t_s), averaged over d_0."""
    total = np.zeros(F.size)
    for weight, degrees, variance in zip(weights.tolist(), d0.tolist(), s2.tolist(), strict=True):
        total += weight * (degrees + F) / (degrees * variance + Q)
    return total


def _depends_on_mean(residuals: Residuals, group: Codes, ratio: Array) -> bool:
    """Return True if variances rise, fall or bend with means: between tasks, or between the units of a task."""
    count = int(group.max()) + 1
    rows = _sums(group, residuals.rows, count)
    of_task = _sums(group, residuals.rows * residuals.mean, count) / rows
    squares = residuals.squares / ratio[residuals.action]
    degrees = _sums(group, residuals.degrees, count)
    variance = _sums(group, squares, count) / degrees
    some = degrees >= 2.0
    units = residuals.degrees >= 2.0
    within = residuals.mean - of_task[group]
    of_units = squares / residuals.degrees / np.maximum(variance[group], np.finfo(np.float64).tiny)
    return related(of_task[some], variance[some]) or related(within[units], of_units[units])


def _spread_depends_on_mean(moments: Moments) -> bool:
    """Return True if the variances of the rewards of tasks about their means depend on these means."""
    weight, total, square = totals_of_tasks(moments)
    some = ~constant_tasks(moments)
    mean = total[some] / weight[some]
    return related(mean, square[some] / weight[some] - mean**2)


def related(mean: Array, variance: Array) -> bool:
    """Return True if ranks of means explain ranks of variances: by a slope, or, as for shares, by a peak in the middle.

    A trough in the middle is no such law: the means of loud tasks lie far from it by noise alone.
    """
    n = mean.size
    if n < _FEWEST_TASKS:
        return False
    place, size = (
        np.argsort(np.argsort(values, kind="stable")) / (n - 1) - 0.5 for values in (mean, variance)
    )
    design = np.stack([np.ones(n), place, np.abs(place)], axis=1)
    coefficients = np.linalg.lstsq(design, size, rcond=None)[0]
    if coefficients[2] > 0.0:
        design = design[:, :2]
        coefficients = np.linalg.lstsq(design, size, rcond=None)[0]
    explained = float(np.square(design @ coefficients).sum() / np.square(size).sum())
    return explained > _DEPENDENT and n * explained > _CHANCE
