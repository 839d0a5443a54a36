"""Noise by task: against integrals and a Gibbs sampler, silent where it should be, and found where it is."""

from collections.abc import Callable

import numpy as np
import pytest
from reference.dense import Array
from reference.task_noise import NoisyTasks, gibbs, task_integrals
from scipy.special import gammaln

from hieropo.estimation.crossed.integration import integrate_crossed
from hieropo.estimation.crossed.mixture import condition_hierarchies
from hieropo.estimation.crossed.task_noise import (
    NoiseLaw,
    Residuals,
    _log_density,
    _Shrinkage,
    learn_task_noise,
)
from hieropo.features.maps import indicator, per_action
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.crossed.posterior import condition_crossed
from hieropo.model.crossed.task_noise import TaskNoise, row_precision
from hieropo.moments.statistics import Moments
from hieropo.moments.units import UnitAccumulator

SHARES = np.array([0.4, 0.3, 0.2, 0.1])
pytestmark = pytest.mark.filterwarnings("ignore::hieropo.HieropoWarning")  # logs of few rows


def moments_of(task: Array, action: Array, reward: Array, precision: Array | None = None) -> Moments:
    total = UnitAccumulator(indicator(range(4)), offset=np.full(4, float(np.mean(reward))))
    total.add(task, action, None, reward, precision=precision)
    return total.moments()


def rows(
    seed: int, tasks: int, size: int, interaction: float = 0.3
) -> tuple[np.random.Generator, Array, Array, Array]:
    """A generator, and task, action and expected reward of each row."""
    rng = np.random.default_rng([16, seed])
    theta = 0.2 * rng.standard_normal(4) + 0.5 * rng.standard_normal((tasks, 1))
    theta = theta + interaction * rng.standard_normal((tasks, 4))
    task, action = np.repeat(np.arange(tasks), size), rng.choice(4, tasks * size, p=SHARES)
    return rng, task, action, theta[task, action]


def unequal(seed: int, tasks: int = 60, size: int = 25) -> tuple[Array, Array, Array, Array]:
    """Task, action and reward of each row, and the noise variances of the tasks, which differ 100-fold."""
    rng, task, action, mean = rows(seed, tasks, size)
    variance = 10.0 ** rng.uniform(-1, 1, tasks)
    return task, action, mean + np.sqrt(variance)[task] * rng.standard_normal(task.size), variance


def law(degrees: float, variance: float = 1.0, ratio: Array | None = None) -> NoiseLaw:
    """Return a law with one d_0."""
    ones = np.ones(4) if ratio is None else ratio
    return NoiseLaw(10.0, np.ones(1), np.array([degrees]), np.array([variance]), ones)


@pytest.mark.parametrize("columns", [0, 2])
def test_evidence_and_precisions_are_integrals_over_the_variance_of_a_task(columns: int) -> None:
    rng = np.random.default_rng(columns)
    noise_var, degrees, n = [0.7, 1.9], 3.4, (7, 5)
    features = per_action(["a", "b"], [f"x{j}" for j in range(columns)]) if columns else indicator(["a", "b"])
    action = np.repeat([0, 1], n)
    x, reward = rng.standard_normal((12, columns)), 3.0 + 2.0 * rng.standard_normal(12)
    design = np.concatenate([np.ones((12, 1)), x], axis=1)
    total = UnitAccumulator(features)
    total.add(np.zeros(12, dtype=int), action, x if columns else None, reward)
    residuals = Residuals.of(total.moments())
    F, Q = residuals.degrees.sum(), (residuals.squares / np.array(noise_var)[residuals.action]).sum()
    value, precision = task_integrals(
        [(design[action == a], reward[action == a]) for a in (0, 1)], noise_var, degrees
    )
    mine = _log_density(np.array([F]), np.array([Q]), np.array([degrees]), np.ones(1))[0]
    mine -= 0.5 * residuals.degrees @ np.log(np.array(noise_var)[residuals.action])
    mine -= 0.5 * F * np.log(2 * np.pi)
    assert 12 - 2 * (1 + columns) == F
    np.testing.assert_allclose(mine, value, rtol=1e-9)
    np.testing.assert_allclose((degrees + F) / (degrees + Q), precision, rtol=1e-8)


def test_many_degrees_are_equal_noise() -> None:
    F, Q = np.array([4.0, 9.0]), np.array([5.0, 3.0])
    value = _log_density(F, Q, np.array([1e7]), np.array([1.3]))[0]
    np.testing.assert_allclose(value, -0.5 * Q.sum() / 1.3 - 0.5 * F.sum() * np.log(1.3), rtol=1e-5)
    assert np.isfinite(gammaln(1e7))


@pytest.mark.parametrize(("size", "away", "narrow"), [(10, 0.15, 0.8), (25, 0.1, 0.87)])
@pytest.mark.parametrize("seed", range(3))
def test_posteriors_are_near_those_of_draws_of_the_whole_model(
    seed: int, size: int, away: float, narrow: float
) -> None:
    """Means within a part of their sd (rms); sds at most so much smaller. With equal noise they are .14 to .6 away."""
    rng = np.random.default_rng(seed)
    m, K, degrees, sds = 8, 2, 3.0, (0.2, 0.5, 0.4)
    t = 1 / (rng.gamma(degrees / 2, size=m) * 2 / degrees)
    theta = sds[0] * rng.standard_normal(K) + sds[1] * rng.standard_normal((m, 1))
    theta = theta + sds[2] * rng.standard_normal((m, K))
    task, action = np.repeat(np.arange(m), size), rng.integers(0, K, m * size)
    reward = theta[task, action] + np.sqrt(t[task]) * rng.standard_normal(m * size)
    A, L, M = (sd**2 for sd in sds)
    means, sd = gibbs(NoisyTasks(task, action, reward, A, L, M, 1.0, degrees), 1500, 1)
    total = UnitAccumulator(indicator(range(K)))
    total.add(task, action, None, reward)
    hierarchy = CrossedHierarchy([[A]], [[L]], [[M]], np.ones(K))  # type: ignore[arg-type]  # nested lists
    noise = law(degrees, ratio=np.ones(K)).on(total.moments()).precisions(hierarchy)
    table = condition_crossed(noise.weighted(total.moments()), hierarchy).table()
    distance = (np.asarray(table.means)[:, :, 0] - means) / sd
    ratio = np.sqrt(np.asarray(table.covs)[:, :, 0]) / sd
    assert np.sqrt((distance**2).mean()) < away
    assert narrow < ratio.min() <= ratio.max() < 1.06


def test_precisions_shrink_as_all_variances_of_a_task_do_on_average() -> None:
    task, action, reward, _ = unequal(3, tasks=6, size=9)
    moments, degrees = moments_of(task, action, reward), 2.5
    cov = np.array([[0.3]])
    hierarchy = CrossedHierarchy(cov, cov, cov, np.full(4, 0.8))
    noise = law(degrees, 1.7).on(moments).precisions(hierarchy)
    residuals = Residuals.of(moments)
    shape = (degrees + np.bincount(residuals.task, residuals.degrees, 6)) / 2
    rate = (degrees + np.bincount(residuals.task, residuals.squares, 6) / 1.7) / 2
    draws = np.random.default_rng(0).gamma(shape, size=(20_000, 6)) / rate
    n = moments.rows
    gamma = 0.3 * n / 0.8

    def share(precision: Array) -> Array:
        return np.asarray((precision[..., None] * gamma / (1 + precision[..., None] * gamma)).sum(axis=-1))

    np.testing.assert_allclose(share(noise.precision), share(draws).mean(axis=0), rtol=0.01)
    assert (noise.precision < shape / rate).all()  # shrinkage is concave: less than at the mean precision


def test_without_interactions_precisions_are_posterior_means() -> None:
    task, action, reward, _ = unequal(4, tasks=6, size=9)
    moments, zero = moments_of(task, action, reward), np.zeros((1, 1))
    noise = law(2.0).on(moments).precisions(CrossedHierarchy(zero, np.eye(1), zero, np.ones(4)))
    residuals = Residuals.of(moments)
    F, Q = (np.bincount(residuals.task, values, 6) for values in (residuals.degrees, residuals.squares))
    np.testing.assert_allclose(noise.precision, (2 + F) / (2 + Q), rtol=1e-10)
    assert not _Shrinkage.of(moments, CrossedHierarchy(zero, zero, zero, np.ones(4))).sizes.any()


def normal(rng: np.random.Generator, mean: Array) -> Array:
    return np.asarray(mean + rng.standard_normal(mean.size))


def t3(rng: np.random.Generator, mean: Array) -> Array:
    return np.asarray(mean + rng.standard_t(3, mean.size) / np.sqrt(3))


def skewed(rng: np.random.Generator, mean: Array) -> Array:
    return np.asarray(mean + rng.exponential(1.0, mean.size) - 1.0)


def counts(rng: np.random.Generator, mean: Array) -> Array:
    return rng.poisson(np.exp(0.7 * mean)).astype(np.float64)


def binary(rng: np.random.Generator, mean: Array) -> Array:
    return (rng.random(mean.size) < 1 / (1 + np.exp(1.4 - 1.5 * mean))).astype(np.float64)


def revenue(rng: np.random.Generator, mean: Array) -> Array:
    return np.where(rng.random(mean.size) < 0.05, np.exp(mean + rng.standard_normal(mean.size)), 0.0)


@pytest.mark.parametrize(
    ("draw", "tasks", "size", "because"),
    [
        (normal, 10, 5, {""}), (normal, 10, 25, {""}), (normal, 10, 100, {""}), (normal, 60, 25, {""}),
        (normal, 1000, 5, {""}), (normal, 1000, 25, {""}), (t3, 60, 25, {"rows"}),
        (skewed, 60, 25, {"mean", "rows"}), (counts, 60, 25, {"", "mean"}), (counts, 60, 200, {"mean"}),
        (binary, 60, 25, {"constant"}), (binary, 60, 200, {"", "constant", "mean"}),
        (revenue, 60, 25, {"constant"}), (revenue, 60, 400, {"constant", "mean"}),
    ],
)  # fmt: skip
def test_noise_is_equal_unless_tasks_differ_in_nothing_else(
    draw: Callable[[np.random.Generator, Array], Array], tasks: int, size: int, because: set[str]
) -> None:
    for seed in range(2 if tasks == 1000 else 4):
        rng, task, action, mean = rows(seed, tasks, size)
        findings = learn_task_noise(moments_of(task, action, draw(rng, mean)))
        assert findings.law is None
        assert findings.because in because


def test_interactions_and_odd_tasks_are_no_noise() -> None:
    rng, task, action, mean = rows(0, 60, 25, interaction=3.0)
    assert learn_task_noise(moments_of(task, action, normal(rng, mean))).law is None
    mean[task == 3] *= 10
    assert learn_task_noise(moments_of(task, action, normal(rng, mean))).law is None


@pytest.mark.parametrize("constant", [1, 30])
def test_tasks_of_constant_rewards_do_no_harm(constant: int) -> None:
    rng, task, action, mean = rows(1, 60, 25)
    reward = normal(rng, mean)
    reward[task < constant] = 1.0
    moments = moments_of(task, action, reward)
    findings = learn_task_noise(moments)
    assert findings.law is None
    assert findings.because == ("constant" if constant == 30 else "")


@pytest.mark.parametrize("size", [1, 2])
def test_logs_that_repeat_no_action_in_a_task_say_nothing_of_noise(size: int) -> None:
    rng, task, _, mean = rows(2, 50, size)
    action = np.tile(np.arange(size), 50)
    findings = learn_task_noise(moments_of(task, action, normal(rng, mean)))
    assert (findings.law, findings.because, findings.log_odds) == (None, "", 0.0)


def test_answers_of_equal_noise_are_those_without_this_module() -> None:
    rng, task, action, mean = rows(5, 40, 20)
    moments = moments_of(task, action, normal(rng, mean))
    one, other = (integrate_crossed(moments, equal_noise=equal) for equal in (False, True))
    assert one.task_noise is None
    assert one.to_dict() == other.to_dict()


def test_unequal_noise_is_found_in_any_unit_and_order() -> None:
    task, action, reward, variance = unequal(0)
    moments = moments_of(task, action, reward)
    hierarchies = integrate_crossed(moments)
    noise = hierarchies.task_noise
    assert noise is not None
    assert np.corrcoef(np.log(noise.precision), np.log(variance))[0, 1] < -0.95
    scale = hierarchies.central().noise_var.mean() / noise.precision / variance
    assert 0.9 < np.exp(np.log(scale).mean()) < 1.15
    rng = np.random.default_rng(0)
    order = rng.permutation(task.size)
    again = integrate_crossed(moments_of(task[order], action[order], 100.0 * reward[order] - 7.0))
    assert again.task_noise is not None
    np.testing.assert_allclose(again.task_noise.of(noise.tasks), noise.precision, rtol=1e-5)


def test_means_that_are_far_from_others_by_noise_are_no_law_of_the_variance() -> None:
    rng = np.random.default_rng(7)
    task, action = np.repeat(np.arange(400), 25), rng.choice(4, 10_000, p=SHARES)
    reward = 10.0 ** rng.uniform(-0.5, 0.5, 400)[task] * rng.standard_normal(task.size)
    assert learn_task_noise(moments_of(task, action, reward)).law is not None


def test_large_logs_learn_the_law_from_a_part_of_their_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hieropo.estimation.crossed.task_noise._UNITS", 1000)
    task, action, reward, variance = unequal(1, tasks=2000, size=8)
    moments = moments_of(task, action, reward)
    findings = learn_task_noise(moments)
    assert findings.law is not None
    cov = np.array([[0.1]])
    noise = findings.law.on(moments).precisions(CrossedHierarchy(cov, cov, cov, np.ones(4)))
    assert np.corrcoef(np.log(noise.precision), np.log(variance))[0, 1] < -0.7


def test_posteriors_are_those_of_rows_of_the_precisions() -> None:
    task, action, reward, _ = unequal(2)
    moments = moments_of(task, action, reward)
    hierarchies = integrate_crossed(moments)
    assert hierarchies.task_noise is not None
    posterior = condition_hierarchies(moments, hierarchies)
    precise = moments_of(task, action, reward, hierarchies.task_noise.precision[task])
    plain = type(hierarchies).from_dict(hierarchies.to_dict())
    assert plain.task_noise is None
    other = condition_hierarchies(precise, plain)
    np.testing.assert_allclose(posterior.table().means, other.table().means, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(posterior.table().covs, other.table().covs, rtol=1e-9)
    np.testing.assert_allclose(posterior.log_evidence, other.log_evidence, rtol=1e-10)
    np.testing.assert_array_equal(
        row_precision(posterior, task[:5], None), hierarchies.task_noise.precision[task[:5]]
    )
    np.testing.assert_array_equal(row_precision(other, task[:5], np.ones(5)), np.ones(5))


def test_tasks_that_are_not_in_the_log_have_the_common_noise() -> None:
    task, action, reward, _ = unequal(2, tasks=8)
    moments = moments_of(task, action, reward)
    noise = TaskNoise.of_log(moments, np.full(8, 2.0), 3.0)
    new = moments_of(task[:25] + 100, action[:25], reward[:25])
    np.testing.assert_array_equal(noise.of(new.keys), 1.0)
    np.testing.assert_allclose(noise.weighted(moments).sums, 2 * moments.sums)
    np.testing.assert_allclose(noise.weighted(moments).rows, moments.rows)
    np.testing.assert_allclose(noise.mean_variance, 0.5)
