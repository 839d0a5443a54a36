"""Estimates of many tasks are drawn together as far as their errors say."""

from typing import Any

import numpy as np
import pytest

from hieropo.errors import InputError
from hieropo.ope.shrinkage import shrink


@pytest.mark.parametrize("between", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("tasks", [15, 400])
def test_intervals_cover_on_average_and_the_error_falls(tasks: int, between: float) -> None:
    rng = np.random.default_rng(7)
    hits, worlds, errors = 0, 60 if tasks > 100 else 300, np.zeros(2)
    for _ in range(worlds):
        se = rng.uniform(0.2, 1.0, size=tasks)
        truth = 0.5 + between * rng.normal(size=tasks)
        y = truth + se * rng.normal(size=tasks)
        found = shrink(y, se, level=0.9)
        hits += int(np.sum((found.low <= truth) & (truth <= found.high)))
        errors += ((found.value - truth) ** 2).sum(), ((y - truth) ** 2).sum()
    share = hits / (worlds * tasks)
    assert share > 0.9 - 4 * np.sqrt(0.09 / (worlds * np.sqrt(tasks)))
    assert share < 0.99 or between < 1  # without differences, or with few that tell them, intervals are wide
    assert errors[0] < errors[1]


@pytest.mark.slow
def test_the_posterior_is_that_of_brute_force_over_mu_and_tau() -> None:
    rng = np.random.default_rng(1)
    se = rng.uniform(0.3, 0.8, size=6)
    y = rng.normal(size=6)
    found = shrink(y, se)
    scale = np.sqrt(np.var(y) + np.median(se) ** 2)
    tau = np.linspace(0, 4 * scale, 4000)[:, None, None]
    mu = np.linspace(-6, 6, 1201)[None, :, None]
    density = np.exp(-0.5 * ((y - mu) ** 2 / (se**2 + tau**2) + np.log(se**2 + tau**2)).sum(axis=2))
    keep = tau[:, 0] ** 2 / (tau[:, 0] ** 2 + se**2)
    each = keep[:, None, :] * y + (1 - keep[:, None, :]) * mu
    density *= tau[..., 0]  # flat in tau^2
    mean = (density[..., None] * each).sum(axis=(0, 1)) / density.sum()
    within = (density.sum(axis=1)[:, None] * keep * se**2).sum(axis=0) / density.sum()
    var = within + (density[..., None] * (each - mean) ** 2).sum(axis=(0, 1)) / density.sum()
    assert np.allclose(found.value, mean, atol=0.01)
    assert np.allclose(found.sd, np.sqrt(var), rtol=0.01)
    assert np.allclose(found.high - found.value, 1.959964 * found.sd)
    assert found.mean == pytest.approx(float((density * mu[..., 0]).sum() / density.sum()), abs=0.01)


def test_a_task_of_which_nothing_is_known_gets_what_the_others_say() -> None:
    rng = np.random.default_rng(2)
    y, se = rng.normal(1.0, 0.5, size=50), np.full(50, 0.2)
    se[3], y[3] = np.inf, 1e6
    found = shrink(y[np.arange(50) != 3], se[np.arange(50) != 3])
    whole = shrink(np.where(np.arange(50) == 3, 0.0, y), se)
    assert whole.value[3] == pytest.approx(found.mean, abs=0.02)
    assert whole.sd[3] == pytest.approx(np.hypot(found.between_sd, 0.07), rel=0.2)


def test_equal_estimates_without_error_stay() -> None:
    found = shrink([2.0, 2.0, 2.0], [0.0, 0.0, 0.0])
    assert np.allclose(found.value, 2.0)
    assert np.allclose([found.low, found.high], 2.0, atol=1e-6)


def test_a_task_that_is_known_stays_and_does_not_draw_others() -> None:
    rng = np.random.default_rng(3)
    y = np.concatenate([np.zeros(500), rng.normal(2.0, 1.0, size=40)])
    se = np.concatenate([np.zeros(500), np.full(40, 0.3)])
    found, alone = shrink(y, se), shrink(y[500:], se[500:])
    assert np.array_equal(found.value[:500], np.zeros(500))
    assert np.array_equal(found.high[:500], np.zeros(500))
    assert np.allclose(found.value[500:], alone.value)
    assert np.allclose(found.sd[500:], alone.sd)


def test_where_no_error_is_known_nothing_is_learned() -> None:
    found = shrink([1.0, 3.0, 9.0], [0.0, 0.0, np.inf])
    assert found.value.tolist() == [1.0, 3.0, 2.0]
    assert found.low.tolist() == [1.0, 3.0, -np.inf]
    nothing = shrink([1.0, 3.0], [np.inf, np.inf])
    assert nothing.high.tolist() == [np.inf, np.inf]
    assert np.isfinite(nothing.value).all()


def test_one_estimate_is_about_itself() -> None:
    found = shrink([2.0], [0.5])
    assert found.value[0] == pytest.approx(2.0)
    assert found.low[0] < 2.0 - 1.9 * 0.5


def test_a_hundred_thousand_tasks_fit() -> None:
    rng = np.random.default_rng(0)
    found = shrink(rng.normal(size=100_000), np.full(100_000, 0.7))
    assert found.between_sd == pytest.approx(np.sqrt(1 - 0.49), abs=0.02)


@pytest.mark.parametrize(
    ("y", "se", "level", "match"),
    [
        ([1.0, np.nan], [1.0, 1.0], 0.9, "Estimate 1 is nan"),
        ([1.0, 2.0], [1.0, -1.0], 0.9, "Estimate 1 .* -1"),
        ([1.0, 2.0], [1.0, np.nan], 0.9, "Estimate 1 .* nan"),
        ([1.0], [1.0, 2.0], 0.9, "do not fit"),
        ([], [], 0.9, "do not fit"),
        ([1.0], [1.0], 1.0, "not a probability"),
    ],
)
def test_what_is_no_estimate_is_refused(y: Any, se: Any, level: float, match: str) -> None:
    with pytest.raises(InputError, match=match):
        shrink(y, se, level=level)
