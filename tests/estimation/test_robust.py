"""Student-t errors: the equations by differences, posteriors against a Gibbs sampler, and the test of symmetry."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from reference.task_noise import NoisyTasks, gibbs
from scipy.integrate import quad

from hieropo.estimation.learning import Learning
from hieropo.estimation.robust import Asymmetry, LeftOut, Student, StudentRule, Tails, _robust
from hieropo.estimation.sites import LogRows, Sites
from hieropo.features import indicator
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.crossed.posterior import condition_crossed
from hieropo.moments.units import UnitAccumulator

Array = NDArray[np.float64]
LAWS = [Tails(3.0), Tails(200.0), Tails(5.0, 0.02), Tails(200.0, 1 / 300)]


@pytest.mark.parametrize("tails", LAWS)
def test_psi_and_its_slope_are_derivatives_of_the_log_density(tails: Tails) -> None:
    e, step = np.linspace(-12, 12, 97), 1e-5

    def log_density(x: Array) -> Array:
        return tails.log_density(np.square(x))[0]

    np.testing.assert_allclose(
        tails.psi(e), (log_density(e - step) - log_density(e + step)) / (2 * step), rtol=1e-6, atol=1e-7
    )
    np.testing.assert_allclose(
        tails.slope(e), (tails.psi(e + step) - tails.psi(e - step)) / (2 * step), rtol=1e-5, atol=1e-7
    )


@pytest.mark.parametrize("tails", LAWS)
def test_the_law_is_a_density_whose_information_is_the_mean_slope(tails: Tails) -> None:
    def mean(function: Any) -> float:
        def integrand(x: float) -> float:
            e = np.array([x])
            return float((np.exp(tails.log_density(np.square(e))[0]) * function(e))[0])

        return sum(quad(integrand, *ends, limit=500)[0] for ends in ((-np.inf, -5), (-5, 5), (5, np.inf)))

    assert mean(np.ones_like) == pytest.approx(1.0, rel=1e-6)
    assert mean(tails.slope) == pytest.approx(mean(lambda e: tails.psi(e) ** 2), rel=1e-5)
    if not tails.gross:
        assert mean(tails.slope) == pytest.approx((tails.degrees + 1) / (tails.degrees + 3), rel=1e-5)


def a_problem(seed: int, size: int, *, tasks: int = 12, actions: int = 3) -> tuple[LogRows, NoisyTasks, Any]:
    """Return rows with t3 errors, the whole model, and a function that conditions on its hyper-parameters."""
    rng = np.random.default_rng([1605, seed])
    sds, degrees, scale = (0.2, 0.5, 0.3), 3.0, np.sqrt(1 / 3)
    theta = sds[0] * rng.standard_normal(actions) + sds[1] * rng.standard_normal((tasks, 1))
    theta = theta + sds[2] * rng.standard_normal((tasks, actions))
    task, action = np.repeat(np.arange(tasks), size), rng.integers(0, actions, tasks * size)
    reward = theta[task, action] + scale * rng.standard_t(degrees, task.size)
    total = UnitAccumulator(indicator(range(actions)))
    total.add(task, action, None, reward)
    rows = LogRows(total.moments(), task * actions + action, np.ones((task.size, 1)), reward)
    A, L, M = (np.array([[sd**2]]) for sd in sds)
    problem = NoisyTasks(
        task, action, reward, sds[0] ** 2, sds[1] ** 2, sds[2] ** 2, 1 / 3, degrees, np.arange(task.size)
    )

    def learn(moments: Any, similar: Any) -> Learning:  # noqa: ARG001 - as of learners
        hierarchy = CrossedHierarchy(A, L, M, np.full(actions, (degrees + 3) / (degrees + 1) / 3))
        return Learning(hierarchy, condition_crossed(moments, hierarchy))

    return rows, problem, learn


@pytest.mark.parametrize(("size", "away"), [(6, 0.3), (25, 0.08)])
def test_posteriors_are_near_those_of_draws_of_the_whole_model(size: int, away: float) -> None:
    """Means within a part of their sd (rms); sds right on average. Those of Gaussian errors are .6 to .9 away."""
    rows, problem, learn = a_problem(0, size)
    means, sds = gibbs(problem, 2000, 1)
    table = _robust(rows, learn).fit.learned.posterior.table()
    distance = (np.asarray(table.means)[:, :, 0] - means) / sds
    ratio = np.sqrt(np.asarray(table.covs)[:, :, 0]) / sds
    gaussian = learn(rows.moments, None).posterior.table()
    usual = (np.asarray(gaussian.means)[:, :, 0] - means) / sds
    assert np.sqrt((distance**2).mean()) < away < 0.5 * np.sqrt((usual**2).mean())
    assert 0.65 < ratio.min() <= ratio.max() < 1.25
    assert 0.95 < ratio.mean() < 1.05


def left_out(e: Array, action: NDArray[np.int64], mean: Array | None = None) -> LeftOut:
    means = np.random.default_rng(1).standard_normal(e.size) if mean is None else mean
    return LeftOut(e, np.zeros_like(e), np.ones_like(e), action, np.ones_like(e), means)


@pytest.mark.parametrize(("degrees", "n"), [(3.0, 4000), (200.0, 4000)])
def test_degrees_and_scales_are_learned(degrees: float, n: int) -> None:
    rng = np.random.default_rng(0)
    action = rng.integers(0, 2, n)
    left = left_out(np.array([1.0, 3.0])[action] * rng.standard_t(degrees, n), action)
    student = Student.of(left, 2)
    assert 0.7 * degrees <= student.tails.degrees <= 1.4 * degrees
    np.testing.assert_allclose(np.sqrt(student.scale), [1.0, 3.0], rtol=0.06)
    assert student.tails.gross == 0.0


def test_symmetric_errors_are_symmetric_and_skewness_is_measured() -> None:
    """The errors of the test are silent in 60 logs but for chance, and skewness is told by where it is."""
    rng, alarms = np.random.default_rng(0), 0
    for _ in range(60):
        action = rng.integers(0, 3, 1500)
        left = left_out(rng.standard_t(3.0, 1500), action)
        alarms += Asymmetry.of(left, Student.of(left, 3)) != (0.0, 0.0)
    assert alarms <= 2
    skewed = rng.exponential(1.0, 1500) - 1.0
    alike, apart = left_out(skewed, action), left_out(skewed * np.where(action == 0, -1, 1), action)
    assert Asymmetry.of(alike, Student.of(alike, 3)).between == 0.0
    assert Asymmetry.of(alike, Student.of(alike, 3)).overall > 0.03
    assert Asymmetry.of(apart, Student.of(apart, 3)).between > 0.1


def test_a_few_gross_errors_of_one_side_are_asymmetric_and_one_is_not() -> None:
    rng = np.random.default_rng(0)
    for rows, asymmetric in ((1, False), (20, True)):
        e = rng.standard_normal(1500)
        e[:rows] += 30.0
        left = left_out(e, np.zeros(1500, dtype=np.int64))
        student = Student.of(left, 1)
        assert student.tails.gross > 0.0
        assert (Asymmetry.of(left, student).overall > 0.0) == asymmetric


def test_sites_of_rows_at_their_means_are_the_rewards_of_a_gaussian() -> None:
    rule = StudentRule(Tails(1e9), np.array([2.0]), 1.0)
    reward, zero = np.array([-3.0, 0.1, 5.0]), np.zeros(3, dtype=np.int64)
    np.testing.assert_allclose(
        rule.sites(reward, np.array([0.0, 1.0, 4.0]), np.full(3, 0.5), zero).reward, reward
    )


def test_sums_of_sites_are_those_of_rewards_where_sites_are_these() -> None:
    rows, _, _ = a_problem(1, 9)
    assert rows.sums(Sites(rows.reward)).allclose(rows.moments, rtol=1e-10)
    weighted = rows.sums(Sites(rows.reward, np.full(len(rows), 2.0)))
    np.testing.assert_allclose(weighted.sums, 2.0 * rows.moments.sums, rtol=1e-12)
    np.testing.assert_allclose(weighted.log_precision, rows.moments.rows * np.log(2.0))


@pytest.mark.parametrize("decimals", [1, 12])
def test_the_sample_that_tells_the_tails_does_not_depend_on_the_order_of_rows(decimals: int) -> None:
    rows, _, _ = a_problem(0, 1_000)
    rows = replace(rows, reward=rows.reward.round(decimals))
    order = np.random.default_rng(1).permutation(len(rows))
    shuffled = replace(rows, unit=rows.unit[order], phi=rows.phi[order], reward=rows.reward[order])
    some, others = rows.sample(2_000), order[shuffled.sample(2_000)]
    assert some.size == np.unique(some).size == 2_000
    assert (np.diff(some) > 0).all()
    values = [sorted(zip(rows.unit[which], rows.reward[which], strict=True)) for which in (some, others)]
    assert values[0] == values[1]
    share = np.bincount(rows.unit[some]) / np.bincount(rows.unit)  # about 1 / 6 of every unit
    assert share.min() > 0.09
    assert share.max() < 0.26
