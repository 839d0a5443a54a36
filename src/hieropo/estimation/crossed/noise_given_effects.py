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
noise: tasks with large effects are not noisy ones. The further rules are those of :mod:`task_noise`, by what
is there to compare: units with a noise variance of their own each, level and interaction of a unit in one; the means of
tasks; and tasks whose rewards are all equal.

The posterior of x in task s, at the best v, is given on as residual squares Q_s of F_s degrees of freedom, those of the
Gamma law of exp(-x) with the same mean and variance.
"""

from typing import NamedTuple, Self

import numpy as np
from scipy.special import gammaln, logsumexp

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.packed import packed_size
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
    related,
)
from hieropo.model.crossed.steps import ObservedUnits
from hieropo.moments.statistics import Moments

_REPEATED = (
    1 / 3
)  # share of the rows that are residual degrees of freedom, above which residuals tell the noise
_FEWEST_TASKS = 8
_UNITS = 2_000  # units of the part of the tasks that the law is learned from
_WIDEST = 64  # coefficients (K + 1) p
_LOGS = np.arange(-4.0, 5.6, 0.5)  # x at which likelihoods are computed
_FINE = np.arange(-4.0, 5.51, 0.1)  # x of sums
_SPREADS = 12  # v above 0
_DEGREES = (
    2.0 / np.tan(np.pi / 2 * ((np.arange(12) + 0.5) / 12)) ** 2
)  # d_0, alike likely: sqrt(2 / d_0) half-Cauchy
_AROUND = 2  # values of x beside the best one at which spreads are mixed
_PIECE = 2_048  # tasks at once
_NONE = 1e-12  # sum of squares about the mean that is none, as a share of the squares
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
    """

    law: NoiseLaw
    covs: tuple[Array, Array, Array]
    mu: Array
    spread: float
    noise_var: Array

    def on(self, moments: Moments) -> NoiseOfLog:
        """Return the noise of all tasks of some moments."""
        units, m = ObservedUnits.of(moments, self.noise_var), len(moments)
        rows = moments.rows.sum(axis=1)
        F, Q = np.zeros((2, m))
        noise = float(self.noise_var[0] / self.law.ratio[0])
        for first in range(0, len(units.tasks), _PIECE):
            piece = units.piece(first, min(first + _PIECE, len(units.tasks)))
            likelihoods = spread_likelihoods(
                piece, self.covs, self.mu, np.array([self.spread]), np.exp(_LOGS), rows[piece.tasks]
            )
            F[piece.tasks], Q[piece.tasks] = self._degrees(_finer(likelihoods[:, 0]), noise)
        return NoiseOfLog(self.law, moments, Residuals.of(moments), F, Q)

    def _degrees(self, curves: Array, noise: float) -> tuple[Array, Array]:
        """F and Q (t,) of log likelihoods (X, t) of tasks."""
        mean, variance = precision_moments(curves, self.law, noise)
        d0 = float(1.0 / (self.law.weights @ (1.0 / self.law.degrees)))
        prior = d0 * self.law.common / noise
        shape = mean**2 / np.maximum(variance, np.finfo(np.float64).tiny)
        F = np.maximum(2.0 * shape - d0, 0.0)
        Q = (d0 + F) / mean - prior
        F = np.where(Q < 0, np.maximum(prior * mean - d0, 0.0), F)
        return F, np.maximum(Q, 0.0) * noise


def precision_moments(curves: Array, law: NoiseLaw, noise: float) -> tuple[Array, Array]:
    """Return posterior means and variances (t,) of exp(-x), averaged over the nodes of the law."""
    first, second = np.zeros((2, curves.shape[1]))
    likelihood = np.exp(curves - curves.max(axis=0))
    precision = np.exp(-_FINE)
    for weight, degrees, variance in law.nodes():
        joint = likelihood * _prior(np.array([degrees]), np.log(np.array([variance / noise])))[0, :, None]
        joint = joint / joint.sum(axis=0)
        first += weight * (precision @ joint)
        second += weight * (precision**2 @ joint)
    return first, second - first**2


class Findings(NamedTuple):
    """The noise of tasks that the likelihood shows; as those of :mod:`task_noise`."""

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
    if n_tasks < _FEWEST_TASKS or D > _WIDEST or _repeated(moments) > _REPEATED:
        return equal
    part = part_of_tasks(moments, _UNITS)
    assert isinstance(part, Moments)  # as all moments in memory
    likelihoods = _Likelihoods.of(part, shapes, sds, noise)
    one = likelihoods.equal_noise()
    if not any(exceeds(likelihoods.values[:, k], one + ODDS) for k in range(likelihoods.scales.size)):
        return equal
    law, spread = likelihoods.law(one)
    for _ in range(_ROUNDS):
        likelihoods = likelihoods.with_precisions(law, spread)
        one = max(one, likelihoods.equal_noise())
        law, spread = likelihoods.law(one)
    if law.log_odds < ODDS or law.log_odds + one < likelihoods.mixed_spreads():
        return equal._replace(log_odds=law.log_odds)
    because = likelihoods.equal_because(part, law, spread)
    noise_var = noise * shapes.noise_ratio
    learned = None if because else NoiseGivenEffects(law, likelihoods.covs, likelihoods.mu, spread, noise_var)
    return Findings(learned, because, law.log_odds)


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
    values : (q, n, t) array
        At the x of `_LOGS`.
    """

    units: ObservedUnits
    rows: Array
    covs: tuple[Array, Array, Array]
    mu: Array
    scales: Array
    ratio: Array
    noise: float
    values: Array

    @classmethod
    def of(cls, moments: Moments, shapes: Shapes, sds: tuple[float, float, float], noise: float) -> Self:
        a, level, m = sds
        units = ObservedUnits.of(moments, noise * shapes.noise_ratio)
        covs = noise * a**2 * shapes.action, noise * level**2 * shapes.level, noise * shapes.interaction
        usual = max(m, 0.02)
        scales = np.append(0.0, np.geomspace(usual / 20, 4 * usual, _SPREADS))
        rows = moments.rows.sum(axis=1)[units.tasks]
        mu = means_of_actions(units, covs, m)
        values = spread_likelihoods(units, covs, mu, scales, np.exp(_LOGS), rows)
        return cls(units, rows, covs, mu, scales, shapes.noise_ratio, noise, values)

    def equal_noise(self) -> float:
        """Log likelihood of equal noise, at the best x and v."""
        return float(_finer(self.values.sum(axis=2)).max())

    def law(self, one: float) -> tuple[NoiseLaw, float]:
        """Integrate over d_0; v, and sigma^2 for each d_0, are at their mode. ``one`` is the value of equal noise."""
        values, at = _evidence(_finer(self.values), _DEGREES)
        log_weights = values - np.log(_DEGREES.size)
        total = logsumexp(log_weights, axis=0)
        best = int(total.argmax())
        weights = np.exp(log_weights[:, best] - total[best])
        variance = self.noise * np.exp(_FINE[at[:, best]])
        return NoiseLaw(float(total[best]) - one, weights, _DEGREES, variance, self.ratio), float(
            self.scales[best]
        )

    def with_precisions(self, law: NoiseLaw, spread: float) -> Self:
        """Return likelihoods with mu from rows of the precisions that the law gives their tasks."""
        mean, _ = precision_moments(self.curves(spread), law, self.noise)
        units = self.units
        weighted = units.with_rows(units.rows * mean[units.task, None])
        mu = means_of_actions(weighted, self.covs, max(spread, float(self.scales[1])))
        values = spread_likelihoods(units, self.covs, mu, self.scales, np.exp(_LOGS), self.rows)
        return self._replace(mu=mu, values=values)

    def mixed_spreads(self) -> float:
        """Log likelihood of the best mixture of spreads with equal noise."""
        best = int(self.values.sum(axis=2).max(axis=1).argmax())
        some = slice(max(best - _AROUND, 0), best + _AROUND + 1)
        return max(best_mixture(values) for values in self.values[some])

    def equal_because(self, moments: Moments, law: NoiseLaw, spread: float) -> EqualBecause:
        """Return the rule by which noise is taken as equal although the likelihood asks for unequal noise."""
        if _constant(moments) > CONSTANT:
            return "constant"
        precision, _ = precision_moments(self.curves(spread), law, self.noise)
        weight, total, _ = _totals(moments)
        if related((total / np.where(weight > 0, weight, 1.0))[self.units.tasks], 1.0 / precision):
            return "mean"
        return "rows" if self.of_units(moments, spread) >= self.of_tasks(moments, spread) else ""

    def curves(self, spread: float) -> Array:
        """Log likelihoods (X, t) under one of the spreads, at the fine x."""
        return _finer(self.values[:, int(np.abs(self.scales - spread).argmin())])

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
        alone = unit_likelihoods(self.units, cov, self.mu, np.exp(_LOGS), rows)
        values = np.array([np.bincount(group, row, groups) for row in alone])
        return float(logsumexp(_evidence(_finer(values)[:, None], _DEGREES)[0]))


def _evidence(curves: Array, degrees: Array) -> tuple[Array, Codes]:
    """Log evidences (J, n) for each d_0 and spread at the best sigma^2, and the places (J, n) of its logarithm in x."""
    most = curves.max(axis=0)
    likelihood = np.exp(curves - most).reshape(_FINE.size, -1)
    values = np.empty((degrees.size, _FINE.size, curves.shape[1]))
    tiny = np.finfo(np.float64).tiny
    for j, d0 in enumerate(degrees.tolist()):
        mixed = _prior(np.full(_FINE.size, d0), _FINE) @ likelihood
        logs = np.log(np.maximum(mixed, tiny)).reshape(_FINE.size, *most.shape) + most
        values[j] = logs.sum(axis=2)
    at = values.argmax(axis=1)
    return np.take_along_axis(values, at[:, None], axis=1)[:, 0], at


def _prior(degrees: Array, log_variance: Array) -> Array:
    """Masses (J, X) of the fine x under laws of d_0 (J,) and log sigma^2 (J,)."""
    away, half = _FINE - log_variance[:, None], degrees[:, None] / 2
    log_mass = half * np.log(half) - gammaln(half) - half * (away + np.exp(-away))
    mass = np.exp(log_mass - log_mass.max(axis=1, keepdims=True))
    return np.asarray(mass / mass.sum(axis=1, keepdims=True))


def _finer(values: Array) -> Array:
    """Interpolate values (q, ...) at `_LOGS` to `_FINE`."""
    from scipy.interpolate import CubicSpline

    return np.asarray(CubicSpline(_LOGS, values, axis=0)(_FINE))


def _repeated(moments: Moments) -> float:
    """Share of the rows that are residual degrees of freedom of units of full rank."""
    rows = moments.unit_rows
    return float(np.maximum(rows - moments.unit_dim, 0.0).sum() / max(rows.sum(), 1.0))


def _constant(moments: Moments) -> float:
    """Share of the rows in tasks of several rows whose rewards are all equal."""
    (weight, total, square), rows = _totals(moments), moments.rows.sum(axis=1)
    some = rows > 1.0
    spread = square[some] - total[some] ** 2 / weight[some]
    return float(rows[some][spread <= _NONE * square[some]].sum() / rows.sum())


def _totals(moments: Moments) -> tuple[Array, Array, Array]:
    """Sums (m,) of weights, rewards and squares of rewards."""
    p = moments.unit_dim
    sums = moments.unit_sums.reshape(len(moments), moments.n_actions, -1).sum(axis=1)
    return sums[:, -1], sums[:, packed_size(p + 2) - 2], sums[:, packed_size(p + 1) - 1]
