"""Moment estimates: near the truth on many tasks, sensible on odd logs."""

import numpy as np
import pytest

from hieropo import HieropoWarning, InputError, LogError, Moments, condition, moment_estimates
from hieropo.core.estimation import empirical_flat, pooled_noise


def draw(seed: int, m: int, n: int, cov: np.ndarray, noise_var: float) -> Moments:
    rng = np.random.default_rng(seed)
    d = len(cov)
    theta = np.arange(1.0, d + 1) + rng.multivariate_normal(np.zeros(d), cov, size=m)
    task, phi = np.repeat(np.arange(m), n), rng.standard_normal((m * n, d))
    reward = (phi * theta[task]).sum(axis=1) + np.sqrt(noise_var) * rng.standard_normal(m * n)
    return Moments.from_arrays(task, phi, reward)


COV = np.array([[1.0, 0.5, 0.0], [0.5, 2.0, -0.3], [0.0, -0.3, 0.25]])


@pytest.mark.parametrize("n", [2, 5, 40])
def test_estimates_are_near_the_truth(n: int) -> None:
    # with 2 rows a task (fewer than features) noise and differences cannot be told apart by this estimator
    moments = draw(0, 3000, n, COV, 0.49)
    if n == 2:
        with pytest.warns(HieropoWarning, match="more rows than features"):
            found = moment_estimates(moments, "full")
        assert found.noise_var > 0.49
        return
    found = moment_estimates(moments, "full")
    assert found.noise_var == pytest.approx(0.49, rel=0.05)
    np.testing.assert_allclose(found.task_cov, COV, atol=0.12)
    np.testing.assert_allclose(condition(moments, found).hyper.mean, [1, 2, 3], atol=0.1)


def test_estimates_follow_the_scale_of_a_column() -> None:
    moments = draw(1, 400, 12, COV, 1.0)
    scale = np.array([1e4, 1.0, 1e-4])
    rng = np.random.default_rng(5)
    task, phi = np.repeat(np.arange(400), 12), rng.standard_normal((4800, 3))
    reward = phi @ [1.0, 2.0, 3.0] + phi[:, 0] * rng.standard_normal(400)[task] + rng.standard_normal(4800)
    plain = moment_estimates(Moments.from_arrays(task, phi, reward))
    scaled = moment_estimates(Moments.from_arrays(task, phi * scale, reward))
    np.testing.assert_allclose(scaled.task_cov * np.outer(scale, scale), plain.task_cov, rtol=1e-5, atol=1e-7)
    assert moments.dim == 3


def test_tasks_that_are_alike_are_found_alike() -> None:
    found = moment_estimates(draw(2, 500, 10, np.zeros((3, 3)), 1.0))
    assert np.linalg.eigvalsh(found.task_cov)[-1] < 0.02


def test_diagonal_is_diagonal() -> None:
    found = moment_estimates(draw(3, 300, 8, COV, 1.0), "diag").task_cov
    np.testing.assert_array_equal(found, np.diag(np.diagonal(found)))
    np.testing.assert_allclose(np.diagonal(found), np.diagonal(COV), rtol=0.4)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_reward_without_noise_is_warned_about(scale: float) -> None:
    rng = np.random.default_rng(0)
    task, phi = np.repeat(np.arange(20), 6), rng.standard_normal((120, 2))
    reward = scale * (phi * rng.standard_normal((20, 2))[task]).sum(axis=1)
    with pytest.warns(HieropoWarning, match="without noise"):
        found = moment_estimates(Moments.from_arrays(task, phi, reward))
    posterior = condition(Moments.from_arrays(task, phi, reward), found)
    assert np.isfinite(posterior.table().means).all()
    assert np.isfinite(posterior.log_evidence)


def test_a_constant_reward_is_sensible() -> None:
    with pytest.warns(HieropoWarning, match="without noise"):
        found = moment_estimates(Moments.from_arrays(["a", "b"] * 10, np.ones((20, 1)), np.zeros(20)))
    assert found.noise_var > 0
    assert found.task_cov == pytest.approx(0.0, abs=1e-9)


def test_nothing_and_nonsense_are_refused() -> None:
    with pytest.raises(LogError, match="no rows"):
        moment_estimates(Moments.zero(2))
    with pytest.raises(InputError, match="round"):
        moment_estimates(draw(0, 5, 5, COV, 1.0), "round")  # type: ignore[arg-type]


def test_pooled_noise_is_the_residual_variance_of_least_squares() -> None:
    rng = np.random.default_rng(0)
    phi, reward = rng.standard_normal((50, 3)), rng.standard_normal(50)
    rest = np.linalg.lstsq(phi, reward)[1][0]
    moments = Moments.from_arrays(rng.integers(0, 5, 50), phi, reward)
    assert pooled_noise(moments) == pytest.approx(rest / 47, rel=1e-10)


def test_the_flat_prior_has_the_usual_size() -> None:
    moments = draw(4, 200, 20, COV, 1.0)
    flat = empirical_flat(moment_estimates(moments), moments)
    np.testing.assert_allclose(np.diagonal(flat.task_cov), np.diagonal(COV) + np.array([1, 4, 9]), rtol=0.3)
    assert flat.known_mean
