import numpy as np
import pytest
from scipy.special import ndtr

from hieropo.policies.sampling import best_probabilities


def test_two_actions_have_the_closed_form() -> None:
    mean, sd = np.array([0.3, -0.2]), np.array([0.4, 0.5])
    first = ndtr((mean[0] - mean[1]) / np.hypot(*sd))
    np.testing.assert_allclose(best_probabilities(mean, sd), [first, 1 - first], atol=1e-9)


def test_shares_of_draws_agree() -> None:
    rng = np.random.default_rng(0)
    mean, sd = rng.normal(size=8), rng.uniform(0.1, 2.0, size=8)
    shares = np.bincount((rng.normal(size=(200_000, 8)) * sd + mean).argmax(axis=1), minlength=8) / 200_000
    np.testing.assert_allclose(best_probabilities(mean, sd), shares, atol=0.01)


@pytest.mark.parametrize(("sd", "expected"), [([0.0, 0.0], [1.0, 0.0]), ([1e-9, 1e-9], [1.0, 0.0])])
def test_certain_rewards_are_no_division_by_zero(sd: list[float], expected: list[float]) -> None:
    np.testing.assert_allclose(best_probabilities(np.array([1.0, 0.0]), np.array(sd)), expected)
