"""A cheap test, before any mixture of spreads is sought, whether tasks may differ in the spread of their interactions.

In the words of :mod:`spreads`: the log likelihoods of :mod:`task_likelihoods`, the means of the actions at their
posterior mean under one spread, are compared, each the largest of its kind: of one v in all tasks; of any mixture of v
(Kiefer and Wolfowitz 1956; Lindsay 1983); and of any mixture of noise variances of tasks with one v. A mixture of
spreads is sought where it gains at least `POSSIBLE` over one v, since its Bayes factor, which pays for its weights and
sizes, is hardly larger than this ratio; where the noise of tasks gains less than that; and where a joint mixture of
both gains `POSSIBLE` over that of the noise. Rewards with heavy tails, of skewed laws, of two values or mostly zero are
taken for unequal noise, and so are not mistaken for tasks of unlike effects.
"""

import numpy as np

from hieropo._utils.arrays import Array
from hieropo.estimation.crossed.task_likelihoods import means_of_actions, spread_likelihoods
from hieropo.model.crossed.steps import ObservedUnits

POSSIBLE = 2.0  # gain of log likelihood below which a Bayes factor of 10 is out of reach
_FINE = 0.1  # of log v between spreads that are mixed
_NOISES = np.exp(np.append(0.0, np.append(np.arange(-2.0, 0.0, 0.5), np.arange(0.5, 5.1, 0.5))))  # 1 first
_AROUND = 2  # spreads beside the best one that mixtures of noises have
_STEPS = 300  # of expectation maximisation towards the best mixture
_NEAR = 0.1  # of its log likelihood


def spreads_may_differ(
    units: ObservedUnits, covs: tuple[Array, Array, Array], m: float, scales: Array, rows: Array
) -> bool:
    """Return False where the log shows that no mixture of spreads is worth a search; as :func:`spread_likelihoods`.

    The means of the actions are those under the one spread ``m``.
    """
    mu = means_of_actions(units, covs, m)
    (alone,) = spread_likelihoods(units, covs, mu, scales, _NOISES[:1], rows)
    alone = _finer(scales, alone)
    one = float(alone.sum(axis=1).max())
    if not exceeds(alone, one + POSSIBLE):
        return False
    joint = spread_likelihoods(units, covs, mu, scales, _NOISES, rows)
    best = int(joint[0].sum(axis=1).argmax())
    some = slice(max(best - _AROUND, 0), best + _AROUND + 1)
    of_noise = max(best_mixture(joint[:, k]) for k in range(*some.indices(scales.size)))
    if not exceeds(alone, of_noise):
        return False
    return exceeds(np.concatenate([_finer(scales, part) for part in joint]), max(of_noise, one) + POSSIBLE)


def _finer(scales: Array, values: Array) -> Array:
    """Interpolate log likelihoods (n, t) along log v; that of v = 0 stays."""
    from scipy.interpolate import CubicSpline

    logs = np.log(scales[1:])
    fine = np.linspace(logs[0], logs[-1], int(np.ceil((logs[-1] - logs[0]) / _FINE)) + 1)
    return np.concatenate([values[:1], CubicSpline(logs, values[1:], axis=0)(fine)])


def exceeds(log_likelihoods: Array, least: float) -> bool:
    """Return True if the best mixture of n laws has a log likelihood above ``least``; as :func:`best_mixture`."""
    return best_mixture(log_likelihoods, least) > least


def best_mixture(log_likelihoods: Array, enough: float = np.inf) -> float:
    """Return the log likelihood of the best mixture of n laws, from those of t tasks (n, t).

    It comes by expectation maximisation, which stops as soon as it has ``enough`` or can no longer have so much, or is
    right to `_NEAR`: with mixture densities f_s no mixture has more than t log max_v mean_s (p_s(v) / f_s) above it.
    """
    most = log_likelihoods.max(axis=0)
    likelihood = np.exp(log_likelihoods - most)
    n, t = likelihood.shape
    weights = np.full(n, 0.5 / n)
    weights[log_likelihoods.sum(axis=1).argmax()] += 0.5
    value = -np.inf
    for _ in range(_STEPS):
        mixed = weights @ likelihood
        value = float(np.log(mixed).sum() + most.sum())
        slope = (likelihood @ (1 / mixed)) / t
        rest = t * float(np.log(slope.max()))
        if value > enough or value + rest < enough < np.inf or rest < _NEAR:
            break
        weights = weights * slope
    return value
