"""Noise by task where rows hardly repeat an action: beside dense Gaussians, silent where it should be, and found."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from scipy.stats import gamma, multivariate_normal

from hieropo import HierOPO
from hieropo.estimation.crossed import noise_given_effects
from hieropo.estimation.crossed.integration import _sds, integrate_crossed
from hieropo.estimation.crossed.noise_given_effects import (
    Findings,
    NoiseGivenEffects,
    _evidence,
    _fine,
    _finer,
    learn_noise_at_least_usual,
    learn_noise_given_effects,
)
from hieropo.estimation.crossed.shapes import Shapes
from hieropo.estimation.crossed.task_likelihoods import spread_likelihoods, unit_likelihoods
from hieropo.estimation.crossed.task_noise import NoiseLaw, constant_tasks, residuals_tell_noise
from hieropo.features.maps import per_action
from hieropo.learners.population import noise_of_tasks
from hieropo.model.crossed.steps import ObservedUnits
from hieropo.moments.statistics import Moments
from hieropo.moments.units import UnitAccumulator

Array = NDArray[np.float64]
pytestmark = pytest.mark.filterwarnings("ignore::hieropo.HieropoWarning")  # logs of few rows
COLUMNS, ACTIONS = 5, 4


class Log(NamedTuple):
    """Rows of tasks with five context columns, of four actions."""

    task: NDArray[np.int64]
    action: NDArray[np.int64]
    x: Array
    reward: Array

    def moments(self) -> Moments:
        names = [f"x{j}" for j in range(self.x.shape[1])]
        total = UnitAccumulator(
            per_action(range(ACTIONS), names), offset=np.append(self.reward.mean(), np.zeros(COLUMNS))
        )
        total.add(self.task, self.action, self.x, self.reward)
        return total.moments()

    def table(self) -> pa.Table:
        columns = {f"x{j}": self.x[:, j] for j in range(self.x.shape[1])}
        return pa.table({"task": self.task, "action": self.action, "reward": self.reward, **columns})


def log(
    seed: int,
    noise: str = "normal",
    *,
    effect: float = 0.3,
    odd: float = 0.0,
    tasks: int = 50,
    size: int = 16,
) -> Log:
    """Draw a log whose tasks differ in noise, in the size of effects, in both or in neither.

    ``odd`` is the share of the tasks with effects 10 x as large.
    """
    rng = np.random.default_rng([61, seed])
    task, action = np.repeat(np.arange(tasks), size), rng.integers(0, ACTIONS, tasks * size)
    x = rng.standard_normal((task.size, COLUMNS))
    phi = np.concatenate([np.ones((task.size, 1)), x], axis=1)
    sizes = effect * np.where(rng.random(tasks) < odd, 10.0, 1.0)
    theta = 0.5 * rng.standard_normal((tasks, 1, 1 + COLUMNS)) + sizes[:, None, None] * rng.standard_normal(
        (tasks, ACTIONS, 1 + COLUMNS)
    )
    errors = rng.standard_normal(task.size)
    if noise == "odd":
        errors *= np.where(np.arange(tasks) < 3, 10.0, 1.0)[task]
    elif noise == "unequal":
        errors *= (10.0 ** rng.uniform(-0.5, 0.5, tasks))[task]
    elif noise == "t3":
        errors = rng.standard_t(3, task.size) / np.sqrt(3)
    mean = np.einsum("np,np->n", phi, theta[task, action])
    if noise == "amounts":
        return Log(task, action, x, np.exp(1.5 * mean + errors))
    if noise == "counts":
        return Log(task, action, x, rng.poisson(np.exp(mean)).astype(np.float64))
    if noise == "revenues":
        sold = rng.random(task.size) < 0.05
        return Log(task, action, x, np.where(sold, np.exp(1.5 * mean + errors), 0.0))
    return Log(task, action, x, mean + errors)


def findings(moments: Moments) -> Findings:
    one = integrate_crossed(moments, equal_noise=True)
    return learn_noise_given_effects(moments, one.shapes, *_sds(one))


def small() -> tuple[Log, tuple[Array, Array, Array], Array]:
    """Return three tasks of seven rows, covariances of actions, levels and interactions, and means of actions."""
    rows = log(3, tasks=3, size=7)
    rng = np.random.default_rng(8)
    covs = tuple(part @ part.T / 6 for part in rng.standard_normal((3, 6, 6)))
    return rows, covs, 0.3 * rng.standard_normal((ACTIONS, 6))  # type: ignore[return-value]


def dense(
    rows: Log, own: NDArray[np.bool_], mu: Array, shared: Array, by_action: Array
) -> tuple[Array, Array]:
    """Residuals of some rows from their means, and the covariance that coefficients give them."""
    phi = np.concatenate([np.ones((own.sum(), 1)), rows.x[own]], axis=1)
    action = rows.action[own]
    same = action[:, None] == action
    residual = rows.reward[own] - rows.reward.mean() - np.einsum("ip,ip->i", phi, mu[action])
    return residual, phi @ shared @ phi.T + same * (phi @ by_action @ phi.T)


def test_likelihoods_of_units_are_those_of_dense_gaussians() -> None:
    rows, (_, level, interaction), mu = small()
    moments, noises = rows.moments(), np.array([1.0, 0.2, 5.0])
    units = ObservedUnits.of(moments, np.full(ACTIONS, 0.7))
    cov = level + 0.5 * interaction
    values = unit_likelihoods(units, cov, mu, noises, moments.unit_rows[moments.unit_rows > 0])
    for u in range(values.shape[1]):
        own = (rows.task == units.task[u]) & (rows.action == units.action[u])
        residual, of_effects = dense(rows, own, mu, np.zeros_like(cov), cov)
        expected = [
            multivariate_normal(np.zeros(own.sum()), of_effects + 0.7 * noise * np.eye(own.sum())).logpdf(
                residual
            )
            for noise in noises
        ]
        np.testing.assert_allclose(values[:, u] - values[0, u], np.array(expected) - expected[0], atol=1e-8)


@pytest.mark.parametrize("at", [noise_given_effects._LOGS, noise_given_effects._WIDE], ids=["usual", "wide"])
def test_evidence_and_precisions_are_integrals_of_dense_gaussians(at: Array) -> None:
    rows, covs, mu = small()
    moments, noise, spread, d0, sigma2 = rows.moments(), 0.7, 0.6, 5.0, 0.9
    noise_var = np.full(ACTIONS, noise)
    law = NoiseLaw(5.0, np.ones(1), np.array([d0]), np.array([sigma2]), np.ones(ACTIONS))
    of_log = NoiseGivenEffects(law, covs, mu, spread, noise_var, at).on(moments)
    units = ObservedUnits.of(moments, noise_var)
    curves = spread_likelihoods(units, covs, mu, np.array([spread]), np.exp(at), np.full(3, 7.0))
    values, best = _evidence(_finer(curves, at), np.array([d0]), _fine(at))
    precision = np.linspace(1e-3, 40.0, 8_001)
    prior = gamma(d0 / 2, scale=2 / d0)
    totals = np.zeros(at.size)
    for s in range(3):
        own = rows.task == s
        residual, of_effects = dense(rows, own, mu, covs[1], spread**2 * covs[2])
        known = [
            multivariate_normal(np.zeros(7), of_effects + v * np.eye(7)).logpdf(residual)
            for v in 1 / precision
        ]
        posterior = np.exp(known - np.max(known)) * prior.pdf(precision * sigma2)
        posterior /= posterior.sum()
        mean, square = posterior @ precision, posterior @ precision**2
        F, Q = of_log.degrees[s], of_log.squares[s]
        np.testing.assert_allclose((d0 + F) / (d0 * sigma2 + Q), mean, rtol=2e-3)
        np.testing.assert_allclose(2 * (d0 + F) / (d0 * sigma2 + Q) ** 2, square - mean**2, rtol=2e-2)
        at_one = multivariate_normal(np.zeros(7), of_effects + noise * np.eye(7)).logpdf(residual)
        zero = curves[int(np.flatnonzero(at == 0.0)[0]), 0, s]
        for k, log_variance in enumerate(at):
            density = prior.pdf(precision * noise * np.exp(log_variance)) * noise * np.exp(log_variance)
            integral = np.trapezoid(np.exp(np.array(known) - at_one) * density, precision)
            totals[k] += np.log(integral) + zero
    place = int(np.argmin(np.abs(at - _fine(at)[best[0, 0]])))
    assert values[0, 0] >= totals.max() - 0.02
    assert values[0, 0] == pytest.approx(totals[place], abs=0.1)


@pytest.mark.parametrize("seed", range(2))
def test_noise_is_found_where_it_differs_and_only_there(seed: int) -> None:
    for noise in ("odd", "unequal"):
        found = findings(log(seed, noise).moments())
        assert found.noise is not None
    assert findings(log(seed).moments()).noise is None
    assert findings(log(seed, effect=0.0).moments()).noise is None


def test_precisions_are_those_of_the_noise_that_drew_the_log() -> None:
    moments = log(4, "odd").moments()
    hierarchies = integrate_crossed(moments)
    assert hierarchies.task_noise is not None
    precision = hierarchies.task_noise.precision
    assert precision[:3].max() < 0.1 * np.median(precision[3:])


def test_tasks_of_large_effects_are_not_noisy() -> None:
    assert findings(log(0, odd=0.06).moments()).noise is None


def test_extreme_rewards_and_amounts_are_not_the_noise_of_a_task() -> None:
    tails, amounts = findings(log(1, "t3").moments()), findings(log(1, "amounts").moments())
    assert (tails.noise, amounts.noise) == (None, None)
    assert "rows" in (tails.because, amounts.because) or "mean" in (tails.because, amounts.because)


def test_a_unit_of_rewards_and_the_order_of_tasks_change_nothing() -> None:
    rows = log(2, "unequal")
    one = integrate_crossed(rows.moments())
    order = np.random.default_rng(0).permutation(rows.task.size)
    other = Log(rows.task[order], rows.action[order], rows.x[order], 1_000.0 * rows.reward[order] + 7.0)
    two = integrate_crossed(other.moments())
    assert one.task_noise is not None
    assert two.task_noise is not None
    np.testing.assert_allclose(
        two.task_noise.precision, one.task_noise.precision, rtol=5e-3
    )  # the search for relative sizes stops elsewhere


def test_rows_that_repeat_their_action_tell_the_noise_by_their_residuals() -> None:
    moments = log(0, tasks=10, size=100).moments()
    assert residuals_tell_noise(moments)
    assert findings(moments) == Findings(None, "", 0.0)


def gain(rows: Log) -> tuple[HierOPO, float, float]:
    """Return the default learner of a log, and the interval of its gain."""
    roles = {
        "task": "task",
        "action": "action",
        "reward": "reward",
        "context": [f"x{j}" for j in range(COLUMNS)],
    }
    learner = HierOPO(logging="random").fit(rows.table(), **roles)
    difference = learner.evaluate(rows.table(), propensities="none").model.difference
    return learner, difference.low, difference.high


def test_a_log_without_effects_whose_tasks_differ_in_noise_claims_no_gain() -> None:
    for seed in range(2):
        _, low, high = gain(log(seed, "odd", effect=0.0))
        assert low <= 0.0 <= high


@pytest.mark.parametrize("noise", ["counts", "revenues"])
def test_counts_and_revenues_without_effects_claim_no_gain(noise: str) -> None:
    for seed in range(2):
        learner, low, high = gain(log(seed, noise, effect=0.0))
        assert low <= 0.0 <= high
        assert learner.hierarchy_.no_effect > 0.1


@pytest.mark.parametrize("noise", ["counts", "revenues"])
def test_no_task_counts_as_quieter_than_the_median_one_where_a_rule_doubts_it(noise: str) -> None:
    rows = log(1, noise)
    moments = rows.moments()
    one = integrate_crossed(moments, Shapes.equal(moments), equal_noise=True)
    law = learn_noise_at_least_usual(moments, *_sds(one))
    assert law is not None
    of_log = law.on(moments)
    precision = of_log.precisions(one.central()).precision
    free = of_log._replace(at_least_usual=False).precisions(one.central()).precision
    varying = ~constant_tasks(moments)
    usual = np.median(free[varying])  # all tasks have as many rows
    np.testing.assert_allclose(precision, np.minimum(free, usual), rtol=0.3)
    assert precision.max() == pytest.approx(precision[varying].max())
    assert (precision == precision.max()).sum() >= varying.sum() / 2
    assert precision.min() < 0.1 * precision.max()


def test_counts_keep_their_noise_and_revenues_equal_noise() -> None:
    counts = integrate_crossed(log(1, "counts").moments())
    assert counts.task_noise is not None
    assert counts.equal_noise_because in {"mean", "rows"}
    assert "No task counts as less noisy than the median one" in noise_of_tasks(counts)
    revenues = integrate_crossed(log(1, "revenues").moments())
    assert revenues.task_noise is None
    assert revenues.equal_noise_because == "constant"
    assert noise_of_tasks(revenues).startswith("Noise is taken as equal in all tasks")
