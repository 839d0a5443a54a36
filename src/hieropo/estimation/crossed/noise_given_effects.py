"""Noise variances of tasks where few rows repeat an action in a task: learned from the likelihood of all rows.

The residuals of :mod:`task_noise` need more rows of an action in a task than an action has coefficients. Where most
rows are in units with fewer, the rows of task s tell its noise by

    L_s(x, v) = p(rows of s | noise variance sigma_a^2 exp(x), spread v of the interactions, mu)

of :mod:`task_likelihoods`, levels and interactions integrated out. With the law of :mod:`task_noise`,
exp(-x) ~ Gamma(d_0 / 2, d_0 / 2) in units of sigma^2, the log evidence of unequal noise is

    log sum_{d_0} P(d_0) max_{v, sigma^2} prod_s  integral L_s(x, v) p(x | d_0, sigma^2) dx

by sums over a grid of x; that of equal noise is max_{v, x} prod_s L_s(x, v). v is new in both: noise that differs
between tasks makes interactions look large, since few tasks with loud noise tell them.

Noise is equal unless the log of the ratio is above log 10, and it is above that of any mixture of spreads v with equal
noise: tasks with large effects are not noisy ones.

Three rules doubt how noisy a task is. They are those of :mod:`task_noise`, by what is there to compare: units with a
noise variance of their own each, level and interaction of a unit in one; the means of tasks, of which variances may
depend; and tasks whose rewards are all equal. All three are about a task that looks quiet, or its rows to come, by
chance. But noise that is large and taken as equal looks like effects: few tasks of large rewards then decide how large
interactions are, and in which columns. So there, with contexts, :func:`learn_noise_at_least_usual` learns the noise:
with equal sizes of the columns, over a wider grid of x around the noise that the log has without effects, and no task
counts as less noisy than the median one. Precisions are at most their median over the rows of tasks whose rewards vary.
Where one of the last two rules holds, a mixture of spreads is no rival of unequal noise, since effects grow with means.

The posterior of x in task s, at the best v, is given on as residual squares Q_s of F_s degrees of freedom, those of the
Gamma law of exp(-x) with the same mean and variance.
"""

from typing import NamedTuple, Self

import numpy as np
from scipy.special import gammaln, logsumexp

from hieropo._utils.arrays import Array, Codes
from hieropo.estimation.crossed.grid import level_without_effects
from hieropo.estimation.crossed.shapes import Shapes, part_of_tasks
from hieropo.estimation.crossed.spread_screening import best_mixture, exceeds
from hieropo.estimation.crossed.task_likelihoods import means_of_actions, spread_likelihoods, unit_likelihoods
from hieropo.estimation.crossed.task_noise import (
    CONSTANT,
    ODDS,
    EqualBecause,
    NoiseLaw,
    NoiseOfLog,
    Residuals,
    constant_share,
    related,
    residuals_tell_noise,
    totals_of_tasks,
)
from hieropo.model.crossed.steps import ObservedUnits
from hieropo.moments.statistics import Moments

_FEWEST_TASKS = 8
_UNITS = 2_000  # units of the part of the tasks that the law is learned from
_WIDEST = 64  # coefficients (K + 1) p
_LOGS = np.arange(-4.0, 5.6, 0.5)  # x at which likelihoods are computed
_WIDE = np.arange(-12.0, 8.6, 0.5)  # the same, where noise depends on means or tasks have constant rewards
_FINER = 0.1  # between x of sums
_SPREADS = 12  # v above 0
_DEGREES = (
    2.0 / np.tan(np.pi / 2 * ((np.arange(12) + 0.5) / 12)) ** 2
)  # d_0, alike likely: sqrt(2 / d_0) half-Cauchy
_AROUND = 2  # values of x beside the best one at which spreads are mixed
_PIECE = 2_048  # tasks at once
_ROUNDS = 2  # of the means of the actions, by rows of the precisions of their tasks


class NoiseGivenEffects(NamedTuple):
    """A law of unequal noise, and the effects given which the rows of a task tell its noise.

    Attributes
    ----------
    law : NoiseLaw
    covs : three (p, p) arrays
        A, L, and M at m = 1.
    mu : (K, p) array
    spread : float
        v.
    noise_var : (K,) array
        Noise variances of the actions at x = 0.
    logs : (q,) array
        x at which likelihoods are computed.
    at_least_usual : bool
        As :class:`NoiseOfLog` has it.
    """

    law: NoiseLaw
    covs: tuple[Array, Array, Array]
    mu: Array
    spread: float
    noise_var: Array
    logs: Array = _LOGS
    at_least_usual: bool = False

    def on(self, moments: Moments) -> NoiseOfLog:
        """Return the noise of all tasks of some moments."""
        units, m = ObservedUnits.of(moments, self.noise_var), len(moments)
        rows = moments.rows.sum(axis=1)
        F, Q = np.zeros((2, m))
        noise = float(self.noise_var[0] / self.law.ratio[0])
        for first in range(0, len(units.tasks), _PIECE):
            piece = units.piece(first, min(first + _PIECE, len(units.tasks)))
            likelihoods = spread_likelihoods(
                piece, self.covs, self.mu, np.array([self.spread]), np.exp(self.logs), rows[piece.tasks]
            )
            F[piece.tasks], Q[piece.tasks] = self._degrees(_finer(likelihoods[:, 0], self.logs), noise)
        return NoiseOfLog(self.law, moments, Residuals.of(moments), F, Q, self.at_least_usual)

    def _degrees(self, curves: Array, noise: float) -> tuple[Array, Array]:
        """F and Q (t,) of log likelihoods (X, t) of tasks."""
        mean, variance = precision_moments(curves, self.law, noise, _fine(self.logs))
        d0 = float(1.0 / (self.law.weights @ (1.0 / self.law.degrees)))
        prior = d0 * self.law.common / noise
        shape = mean**2 / np.maximum(variance, np.finfo(np.float64).tiny)
        F = np.maximum(2.0 * shape - d0, 0.0)
        Q = (d0 + F) / mean - prior
        F = np.where(Q < 0, np.maximum(prior * mean - d0, 0.0), F)
        return F, np.maximum(Q, 0.0) * noise


def precision_moments(curves: Array, law: NoiseLaw, noise: float, x: Array) -> tuple[Array, Array]:
    """Return posterior means and variances (t,) of exp(-x), averaged over the nodes of the law; ``curves`` are at x."""
    first, second = np.zeros((2, curves.shape[1]))
    likelihood = np.exp(curves - curves.max(axis=0))
    precision = np.exp(-x)
    for weight, degrees, variance in law.nodes():
        joint = likelihood * _prior(np.array([degrees]), np.log(np.array([variance / noise])), x)[0, :, None]
        joint = joint / joint.sum(axis=0)
        first += weight * (precision @ joint)
        second += weight * (precision**2 @ joint)
    return first, second - first**2


class Findings(NamedTuple):
    """The noise of tasks that the likelihood shows; as those of :mod:`task_noise`.

    Where ``because`` names a rule, :func:`learn_noise_at_least_usual` has the noise.
    """

    noise: NoiseGivenEffects | None
    because: EqualBecause
    log_odds: float


def learn_noise_given_effects(
    moments: Moments, shapes: Shapes, sds: tuple[float, float, float], noise: float
) -> Findings:
    """Return the law of the noise of tasks where the log asks for it and residuals do not tell it.

    Parameters
    ----------
    moments : Moments
        Of the rows as they are in the log.
    shapes : Shapes
    sds : (float, float, float)
        a, l and m of one spread and equal noise, in units of the noise.
    noise : float
        Its s^2.
    """
    equal, D = Findings(None, "", 0.0), (moments.n_actions + 1) * moments.unit_dim
    n_tasks = int(np.count_nonzero(moments.rows.any(axis=1)))
    if n_tasks < _FEWEST_TASKS or D > _WIDEST or residuals_tell_noise(moments):
        return equal
    part = part_of_tasks(moments, _UNITS)
    assert isinstance(part, Moments)  # as all moments in memory
    likelihoods = _Likelihoods.of(part, shapes, sds, noise)
    one = likelihoods.equal_noise()
    if not any(exceeds(likelihoods.values[:, k], one + ODDS) for k in range(likelihoods.scales.size)):
        return equal
    likelihoods, one, law, spread = likelihoods.learned(one)
    if law.log_odds < ODDS:
        return equal._replace(log_odds=law.log_odds)
    because = likelihoods.quiet_because(part, law, spread)
    if not because:
        if law.log_odds + one < likelihoods.mixed_spreads():
            return equal._replace(log_odds=law.log_odds)
        because = "rows" if likelihoods.of_units(part, spread) >= likelihoods.of_tasks(part, spread) else ""
    return Findings(None if because else likelihoods.found(law, spread), because, law.log_odds)


def learn_noise_at_least_usual(
    moments: Moments, sds: tuple[float, float, float], noise: float
) -> NoiseGivenEffects | None:
    """Return the law of the noise of tasks where a rule doubts it: none counts as less noisy than the median one.

    None where the evidence is not for unequal noise.

    Parameters
    ----------
    moments : Moments
        Of the rows as they are in the log.
    sds : (float, float, float)
        a, l and m of one spread, equal noise, and equal sizes of all columns, in units of the noise.
    noise : float
        Its s^2.
    """
    part = part_of_tasks(moments, _UNITS)
    assert isinstance(part, Moments)  # as all moments in memory
    equal = Shapes.equal(moments)
    _, centre = level_without_effects(part, equal)
    a, level, m = (sd * float(np.sqrt(noise / centre)) for sd in sds)
    likelihoods = _Likelihoods.of(part, equal, (a, level, m), centre, _WIDE)
    likelihoods, _, law, spread = likelihoods.learned(likelihoods.equal_noise())
    if law.log_odds < ODDS:
        return None
    return likelihoods.found(law, spread)._replace(at_least_usual=True)


class _Likelihoods(NamedTuple):
    """Log likelihoods of tasks over x and v.

    Attributes
    ----------
    units : ObservedUnits
    rows : (t,) array
    covs, mu, scales
        As in :func:`spread_likelihoods`.
    ratio : (K,) array
        Noise variances of actions in units of ``noise``.
    noise : float
        s^2 at x = 0.
    logs : (q,) array
        x.
    values : (q, n, t) array
    """

    units: ObservedUnits
    rows: Array
    covs: tuple[Array, Array, Array]
    mu: Array
    scales: Array
    ratio: Array
    noise: float
    logs: Array
    values: Array

    @classmethod
    def of(
        cls,
        moments: Moments,
        shapes: Shapes,
        sds: tuple[float, float, float],
        noise: float,
        logs: Array = _LOGS,
    ) -> Self:
        a, level, m = sds
        units = ObservedUnits.of(moments, noise * shapes.noise_ratio)
        covs = noise * a**2 * shapes.action, noise * level**2 * shapes.level, noise * shapes.interaction
        usual = max(m, 0.02)
        scales = np.append(0.0, np.geomspace(usual / 20, 4 * usual, _SPREADS))
        rows = moments.rows.sum(axis=1)[units.tasks]
        mu = means_of_actions(units, covs, m)
        values = spread_likelihoods(units, covs, mu, scales, np.exp(logs), rows)
        return cls(units, rows, covs, mu, scales, shapes.noise_ratio, noise, logs, values)

    def equal_noise(self) -> float:
        """Log likelihood of equal noise, at the best x and v."""
        return float(_finer(self.values.sum(axis=2), self.logs).max())

    def learned(self, one: float) -> tuple[Self, float, NoiseLaw, float]:
        """Return the likelihoods with mu of the precisions found, their value of equal noise, the law and v."""
        likelihoods: Self = self
        law, spread = likelihoods.law(one)
        for _ in range(_ROUNDS):
            likelihoods = likelihoods.with_precisions(law, spread)
            one = max(one, likelihoods.equal_noise())
            law, spread = likelihoods.law(one)
        return likelihoods, one, law, spread

    def found(self, law: NoiseLaw, spread: float) -> NoiseGivenEffects:
        """Return the law with the effects given which rows tell the noise of their task."""
        return NoiseGivenEffects(law, self.covs, self.mu, spread, self.noise * self.ratio, self.logs)

    def law(self, one: float) -> tuple[NoiseLaw, float]:
        """Integrate over d_0; v, and sigma^2 for each d_0, are at their mode. ``one`` is the value of equal noise."""
        x = _fine(self.logs)
        values, at = _evidence(_finer(self.values, self.logs), _DEGREES, x)
        log_weights = values - np.log(_DEGREES.size)
        total = logsumexp(log_weights, axis=0)
        best = int(total.argmax())
        weights = np.exp(log_weights[:, best] - total[best])
        variance = self.noise * np.exp(x[at[:, best]])
        return NoiseLaw(float(total[best]) - one, weights, _DEGREES, variance, self.ratio), float(
            self.scales[best]
        )

    def with_precisions(self, law: NoiseLaw, spread: float) -> Self:
        """Return likelihoods with mu from rows of the precisions that the law gives their tasks."""
        mean, _ = precision_moments(self.curves(spread), law, self.noise, _fine(self.logs))
        units = self.units
        weighted = units.with_rows(units.rows * mean[units.task, None])
        mu = means_of_actions(weighted, self.covs, max(spread, float(self.scales[1])))
        values = spread_likelihoods(units, self.covs, mu, self.scales, np.exp(self.logs), self.rows)
        return self._replace(mu=mu, values=values)

    def mixed_spreads(self) -> float:
        """Log likelihood of the best mixture of spreads with equal noise."""
        best = int(self.values.sum(axis=2).max(axis=1).argmax())
        some = slice(max(best - _AROUND, 0), best + _AROUND + 1)
        return max(best_mixture(values) for values in self.values[some])

    def quiet_because(self, moments: Moments, law: NoiseLaw, spread: float) -> EqualBecause:
        """Return the rule, of those of constant rewards and of means, by which tasks may look quiet by chance."""
        if constant_share(moments) > CONSTANT:
            return "constant"
        precision, _ = precision_moments(self.curves(spread), law, self.noise, _fine(self.logs))
        weight, total, _ = totals_of_tasks(moments)
        mean = (total / np.where(weight > 0, weight, 1.0))[self.units.tasks]
        return "mean" if related(mean, 1.0 / precision) else ""

    def curves(self, spread: float) -> Array:
        """Log likelihoods (X, t) under one of the spreads, at the fine x."""
        return _finer(self.values[:, int(np.abs(self.scales - spread).argmin())], self.logs)

    def of_tasks(self, moments: Moments, spread: float) -> float:
        """Log evidence of the noise of tasks, units independent given it."""
        return self._by_unit(moments, spread, self.units.task, len(self.units.tasks))

    def of_units(self, moments: Moments, spread: float) -> float:
        """Log evidence of a noise variance of each unit, units independent."""
        return self._by_unit(moments, spread, np.arange(len(self.units.task)), len(self.units.task))

    def _by_unit(self, moments: Moments, spread: float, group: Codes, groups: int) -> float:
        _, level_cov, interaction_cov = self.covs
        rows = moments.unit_rows[moments.unit_rows > 0]
        cov = level_cov + spread**2 * interaction_cov
        alone = unit_likelihoods(self.units, cov, self.mu, np.exp(self.logs), rows)
        values = np.array([np.bincount(group, row, groups) for row in alone])
        curves = _finer(values, self.logs)[:, None]
        return float(logsumexp(_evidence(curves, _DEGREES, _fine(self.logs))[0]))


def _evidence(curves: Array, degrees: Array, x: Array) -> tuple[Array, Codes]:
    """Log evidences (J, n) for each d_0 and spread at the best sigma^2, and the places (J, n) of its logarithm in x."""
    most = curves.max(axis=0)
    likelihood = np.exp(curves - most).reshape(x.size, -1)
    values = np.empty((degrees.size, x.size, curves.shape[1]))
    tiny = np.finfo(np.float64).tiny
    for j, d0 in enumerate(degrees.tolist()):
        mixed = _prior(np.full(x.size, d0), x, x) @ likelihood
        logs = np.log(np.maximum(mixed, tiny)).reshape(x.size, *most.shape) + most
        values[j] = logs.sum(axis=2)
    at = values.argmax(axis=1)
    return np.take_along_axis(values, at[:, None], axis=1)[:, 0], at


def _prior(degrees: Array, log_variance: Array, x: Array) -> Array:
    """Masses (J, X) of x under laws of d_0 (J,) and log sigma^2 (J,)."""
    away, half = x - log_variance[:, None], degrees[:, None] / 2
    log_mass = half * np.log(half) - gammaln(half) - half * (away + np.exp(-away))
    mass = np.exp(log_mass - log_mass.max(axis=1, keepdims=True))
    return np.asarray(mass / mass.sum(axis=1, keepdims=True))


def _fine(logs: Array) -> Array:
    """Return the x of sums for those at which likelihoods are computed."""
    return np.arange(logs[0], logs[-1] + _FINER / 10, _FINER)


def _finer(values: Array, logs: Array) -> Array:
    """Interpolate values (q, ...) at ``logs`` to the x of sums."""
    from scipy.interpolate import CubicSpline

    return np.asarray(CubicSpline(logs, values, axis=0)(_fine(logs)))
