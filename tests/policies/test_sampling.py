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


def certain(mean: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Sum over 20,001 rewards."""
    rewards = np.linspace((mean - 9 * sd).max(), (mean + 9 * sd).max(), 20_001)
    z = (rewards - mean[:, None]) / sd[:, None]
    below = ndtr(z)
    density = np.exp(-0.5 * z * z) / sd[:, None]
    shares = np.array([(density[a] * np.delete(below, a, 0).prod(0)).sum() for a in range(len(mean))])
    return np.asarray(shares / shares.sum())


def test_shares_of_many_requests_are_those_of_each_and_are_certain() -> None:
    rng = np.random.default_rng(1)
    mean = rng.normal(size=(60, 6))
    sd = np.exp(rng.normal(size=(60, 6)) * rng.choice([0.1, 0.5, 1.0], size=(60, 1)))
    shares = best_probabilities(mean, sd)
    for row in range(60):
        np.testing.assert_allclose(shares[row], certain(mean[row], sd[row]), atol=1e-6)
        np.testing.assert_allclose(shares[row], best_probabilities(mean[row], sd[row]), rtol=1e-12)
    missing = np.where(np.arange(6) == 2, -np.inf, mean)
    np.testing.assert_allclose(
        np.delete(best_probabilities(missing, sd), 2, 1),
        best_probabilities(np.delete(mean, 2, 1), np.delete(sd, 2, 1)),
    )
