"""Intervals from sums over tasks: slopes and variances by definition, the bootstrap by hand, coverage."""

import numpy as np
import pytest

from hieropo.errors import InputError
from hieropo.ope.value_estimates import Ratios, Sample, empirical_bernstein

RNG = np.random.default_rng
MEAN = Ratios(np.eye(3)[:1], np.eye(3)[2:])
RATIO = Ratios(np.eye(3)[:1], np.eye(3)[1:2])


def sample_of(z: np.ndarray, task: np.ndarray, groups: int = 101, seed: int = 0) -> Sample:
    tasks = np.zeros((task.max() + 1, z.shape[1]))
    np.add.at(tasks, task, z)
    dealt = np.zeros((groups, z.shape[1]))
    np.add.at(dealt, np.arange(len(z)) % groups, z)
    return Sample(tasks, z.T @ z, dealt, RNG(seed))


def rows(x: np.ndarray) -> np.ndarray:
    return np.stack([x, np.exp(x / 5), np.ones(x.size)], axis=1)


def test_the_slope_is_the_derivative_of_the_value() -> None:
    z = rows(RNG(0).normal(size=50))
    total = z.sum(axis=0)
    each = RATIO.minus(MEAN).times(3.0)
    step = 1e-6 * RNG(1).normal(size=3)
    recentred = each.value(total + step) - each.value(total - step)
    assert float(recentred) == pytest.approx(2 * float(each.slope(total) @ step), rel=1e-6)
    assert float(each.slope(total) @ total) == pytest.approx(0.0, abs=1e-12)
    assert np.allclose(each.slope(z), [each.slope(row) for row in z])


def test_variances_are_those_of_rows_or_of_tasks() -> None:
    rng = RNG(2)
    for tasks, by in ((10, "rows"), (40, "tasks")):
        task = np.repeat(np.arange(tasks), 20)
        x = rng.normal(size=task.size) + rng.normal(size=tasks)[task]
        found = sample_of(rows(x), task).interval(MEAN, 0.95)
        units = x if by == "rows" else x.reshape(tasks, 20).mean(axis=1)
        assert found.by == by
        assert found.value == pytest.approx(x.mean())
        assert found.se == pytest.approx(units.std(ddof=1) / np.sqrt(units.size), rel=1e-10)


def test_one_task_among_many_that_has_most_rows_makes_no_clusters_of_them() -> None:
    task = np.concatenate([np.zeros(2000, dtype=int), np.arange(1, 60)])
    sample = sample_of(rows(RNG(0).normal(size=task.size)), task)
    assert sample.effective_tasks == pytest.approx(2059**2 / (2000**2 + 59))
    assert sample.by == "rows"


def test_the_bootstrap_is_that_of_its_definition() -> None:
    rng = RNG(0)
    z = np.concatenate([rng.exponential(size=(40, 2)), np.ones((40, 1))], axis=1)
    t = sample_of(z, np.arange(40), seed=1).studentised(RATIO.minus(MEAN))
    again, expected = RNG(1), []
    value = z[:, 0].sum() / z[:, 1].sum() - z[:, 0].mean()
    for times in again.multinomial(40, np.full(40, 1 / 40), size=1000):
        x, y, n = times @ z
        moves = (z[:, 0] - x / y * z[:, 1]) / y - (z[:, 0] - x / n) / n
        expected.append((x / y - x / n - value) / np.sqrt((times * moves**2).sum() * 40 / 39))
    assert np.allclose(t, expected)


def test_an_end_is_the_farther_of_t_and_the_bootstrap() -> None:
    z = rows(RNG(3).exponential(size=60) ** 2)
    sample = sample_of(z, np.arange(60))
    t = np.quantile(sample.studentised(MEAN), [0.05, 0.95])
    found = sample.interval(MEAN, 0.9)
    assert -t[0] > 1.671  # the mean of skewed values lies above its interval by t more often
    assert found.high == pytest.approx(found.value - t[0] * found.se)
    assert found.low == pytest.approx(found.value - max(t[1], 1.671) * found.se, rel=1e-3)


@pytest.mark.parametrize("tasks", [12, 40, 900])
def test_many_or_few_tasks_have_the_same_ends_where_tasks_do_not_matter(tasks: int) -> None:
    x = RNG(0).normal(size=3600)
    found = sample_of(rows(x), np.arange(3600) % tasks).interval(MEAN, 0.95)
    assert found.high - found.low == pytest.approx(2 * 1.96 * x.std() / 60, rel=0.25)


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [12, 40])
@pytest.mark.parametrize("rare", [True, False])
def test_intervals_cover_skewed_means_and_the_effects_of_tasks(tasks: int, rare: bool) -> None:  # noqa: FBT001
    rng, worlds, hits = RNG(5), 300, 0
    for _ in range(worlds):
        effect = (0.3 if tasks >= 30 else 0.0) * rng.normal(size=(tasks, 1))
        x = rng.exponential(size=(tasks, 30)) + effect
        truth = 1.0
        if rare:
            chance = 0.03 * np.exp(effect - effect.mean())
            truth, x = float(chance.mean()), (rng.random((tasks, 30)) < chance) * 1.0
        found = sample_of(rows(x.ravel()), np.repeat(np.arange(tasks), 30)).interval(MEAN, 0.9)
        hits += found.low <= truth <= found.high
    assert hits / worlds > 0.9 - 3 * np.sqrt(0.09 / worlds)


def test_no_spread_is_a_point_and_no_weight_says_nothing() -> None:
    z = np.tile([2.0, 0.0, 1.0], (50, 1))
    sample = sample_of(z, np.arange(50))
    point = sample.interval(MEAN, 0.95)
    assert (point.low, point.se) == (point.high, 0.0)
    assert point.value == pytest.approx(2.0)
    nothing = sample.interval(RATIO, 0.95)
    assert (nothing.low, nothing.high, nothing.se) == (-np.inf, np.inf, np.inf)


def test_few_groups_leave_t_alone() -> None:
    x = RNG(1).exponential(size=12)
    sample = sample_of(rows(x), np.zeros(12, dtype=int))
    assert not sample.studentised(MEAN).size
    found = sample.interval(MEAN, 0.95)
    assert found.high - found.value == pytest.approx(2.201 * x.std(ddof=1) / np.sqrt(12), rel=1e-3)


def test_empirical_bernstein_holds_for_rare_events() -> None:
    rng, missed = RNG(0), 0
    for _ in range(300):
        x = (rng.random(200) < 0.02) * 10.0
        low, high = empirical_bernstein(x.mean(), x.var(), 10.0, 200, 0.9)
        missed += not low <= 0.2 <= high
    assert missed <= 30
    assert empirical_bernstein(1.0, 2.0, 4.0, 1e4, 0.95)[1] == pytest.approx(
        1 + np.sqrt(2 * 2 * np.log(60) / 1e4) + 3 * 4 * np.log(60) / 1e4
    )


@pytest.mark.parametrize("level", [0.0, 1.0, np.nan])
def test_a_level_that_is_no_probability_is_refused(level: float) -> None:
    with pytest.raises(InputError, match="not a probability"):
        sample_of(rows(np.arange(40.0)), np.arange(40)).interval(MEAN, level)
