"""Hierarchies with a given probability of no effect: shares are kept, and one is put in where there is none."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from hieropo.estimation.crossed.grid import level_without_effects
from hieropo.estimation.crossed.integration import integrate_crossed
from hieropo.estimation.crossed.no_effect import with_no_effect
from hieropo.features.maps import per_action
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.crossed.posterior import condition_crossed
from hieropo.moments.statistics import Moments
from hieropo.moments.units import UnitAccumulator

Array = NDArray[np.float64]


def log(effect: float) -> Moments:
    """Return the moments of 20 tasks of 12 rows, three actions and two context columns."""
    rng = np.random.default_rng(5)
    task, action = np.repeat(np.arange(20), 12), rng.integers(0, 3, 240)
    x = rng.standard_normal((240, 2))
    phi = np.concatenate([np.ones((240, 1)), x], axis=1)
    theta = 0.6 * rng.standard_normal((20, 1, 3)) + effect * rng.standard_normal((20, 3, 3))
    reward = np.einsum("np,np->n", phi, theta[task, action]) + rng.standard_normal(240)
    total = UnitAccumulator(per_action(range(3), ["x0", "x1"]), offset=np.zeros(3))
    total.add(task, action, x, reward)
    return total.moments()


def test_level_and_noise_without_effects_are_those_of_a_fine_grid() -> None:
    moments = log(0.0)
    shapes = integrate_crossed(moments).shapes
    dof = moments.n_rows - 3
    u = (np.arange(400) + 0.5) / 400
    levels, values, squares = np.tan(np.pi / 2 * u), [], []
    for level in levels:
        zero = np.zeros((3, 3))
        posterior = condition_crossed(
            moments, CrossedHierarchy(zero, level**2 * shapes.level, zero, shapes.noise_ratio)
        )
        squares.append(posterior.square)
        values.append(posterior.log_evidence + posterior.square / 2 - dof / 2 * np.log(posterior.square))
    weights = np.exp(np.array(values) - np.max(values))
    weights /= weights.sum()
    level, noise = level_without_effects(moments, shapes)
    assert level == pytest.approx(weights @ levels, rel=0.02)
    assert noise == pytest.approx(weights @ np.array(squares) / (dof - 2), rel=0.002)


@pytest.mark.parametrize("effect", [0.0, 1.0])
def test_all_else_keeps_its_shares(effect: float) -> None:
    moments = log(effect)
    before = integrate_crossed(moments)
    least = (1.0 + before.no_effect) / 2
    after = with_no_effect(moments, before, least)
    assert after.no_effect == pytest.approx(least, abs=1e-9)
    assert after.weights.sum() == pytest.approx(1.0)
    assert after.conditioned.sum() == pytest.approx(1.0)
    none = (after.action_sd == 0) & (after.interaction_sd == 0)
    assert after.conditioned[none].sum() == pytest.approx(least, abs=1e-9)
    had = (before.action_sd == 0) & (before.interaction_sd == 0)
    for name in ("weights", "conditioned"):
        now, then = getattr(after, name)[~none], getattr(before, name)[~had]
        np.testing.assert_allclose(now / now.sum(), then / then.sum(), rtol=1e-9, atol=1e-12)


def test_a_smaller_probability_changes_nothing() -> None:
    moments = log(0.0)
    before = integrate_crossed(moments)
    assert with_no_effect(moments, before, before.no_effect / 2) is before


def test_a_hierarchy_that_stands_for_all_stays_beside_that_without_effects() -> None:
    moments = log(1.0)
    before = integrate_crossed(moments)
    before = replace(before, conditioned=np.zeros(len(before)))
    after = with_no_effect(moments, before, 0.4)
    assert not after.determined
    assert after.no_effect == pytest.approx(0.4)
    assert after.conditioned[-1] == pytest.approx(0.4)
