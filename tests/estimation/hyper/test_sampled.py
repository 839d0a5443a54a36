"""Posteriors of rows with sampling weights: what a move of B does to every mean, times the covariance of B."""

import numpy as np
import pytest

from hieropo.errors import InputError
from hieropo.estimation.hyper.corrected import SampledPosterior
from hieropo.evaluation.by_posterior.value_distributions import total
from hieropo.model.gaussian import Gaussian
from hieropo.model.hierarchy import Hierarchy, Level
from hieropo.model.posterior import condition
from hieropo.moments.statistics import Moments

M, D, N = 4, 2, 60
COV = np.array([[0.5, 0.2], [0.2, 0.3]])


def log(seed: int = 0) -> Moments:
    rng = np.random.default_rng(seed)
    phi, reward, q = rng.normal(size=(N, D)), rng.normal(size=N), rng.uniform(1, 9, N)
    return Moments.from_arrays(rng.integers(M, size=N), phi, reward, sampling_weight=q)


def with_cross(moments: Moments, s: int, j: int, step: float) -> Moments:
    """Move entry j of sum w phi r of the task in row s."""
    sums = np.array(moments.sums)
    sums[s, D * (D + 1) // 2 + j] += step
    return Moments(moments.keys, D, sums, moments.rows, moments.log_precision)


@pytest.mark.parametrize("hyper", [None, Gaussian([0.5, -0.5], 2 * COV)], ids=["flat", "Gaussian"])
@pytest.mark.parametrize(
    "cov", [COV, np.zeros((D, D)), np.diag([1.0, 0.0])], ids=["full", "pooled", "singular"]
)
def test_covariances_are_those_of_moves_of_the_rewards(hyper: Gaussian | None, cov: np.ndarray) -> None:
    moments, noise = log(), 0.7
    hierarchy = Hierarchy(hyper, cov, noise)
    plain, found = condition(moments, hierarchy), SampledPosterior(moments, hierarchy)
    base = np.append(plain.table().means.ravel(), plain.hyper.mean)
    jacobian = np.empty((base.size, M * D))
    for s in range(M):
        for j in range(D):
            recentred = condition(with_cross(moments, s, j, noise), hierarchy)  # B moves by 1
            jacobian[:, s * D + j] = np.append(recentred.table().means.ravel(), recentred.hyper.mean) - base
    gram = np.zeros((M * D, M * D))
    for s, task in enumerate(moments.tasks.tolist()):
        gram[s * D : (s + 1) * D, s * D : (s + 1) * D] = moments.gram(task) / noise
    extra = (found.design - 1.0) * jacobian @ gram @ jacobian.T
    for s, task in enumerate(moments.tasks.tolist()):
        own = slice(s * D, (s + 1) * D)
        np.testing.assert_allclose(found.task(task).cov, plain.task(task).cov + extra[own, own], rtol=1e-8)
        other = slice((s + 1) % M * D, ((s + 1) % M + 1) * D)
        between = found.cov_between(task, moments.tasks.tolist()[(s + 1) % M])
        expected = plain.cov_between(task, moments.tasks.tolist()[(s + 1) % M]) + extra[own, other]
        np.testing.assert_allclose(between, expected, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(found.hyper.cov, plain.hyper.cov + extra[M * D :, M * D :], rtol=1e-8)
    vectors = np.random.default_rng(1).normal(size=(3, M, D))
    law, flat = total(found, vectors), vectors.reshape(3, M * D)
    expected = total(plain, vectors).covs[0] + flat @ extra[: M * D, : M * D] @ flat.T
    np.testing.assert_allclose(law.covs[0], expected, rtol=1e-8)
    table = found.table()
    np.testing.assert_allclose(table.covs[1], found.task(moments.tasks.tolist()[1]).cov[[0, 0, 1], [0, 1, 1]])
    np.testing.assert_allclose(
        found.task("new").cov, plain.new_task().cov + extra[M * D :, M * D :], rtol=1e-8
    )


def test_equal_sampling_weights_are_rows_that_count_once() -> None:
    """The unit of q is of no account to standard errors: where nothing is shared they are those of the kept rows."""
    rng = np.random.default_rng(3)
    phi, reward, task = np.ones((400, 1)), rng.normal(size=400), np.zeros(400, dtype=int)
    plain = condition(Moments.from_arrays(task, phi, reward), Hierarchy(None, [[0.0]], 1.0))
    for q in (0.25, 1.0, 8.0):
        moments = Moments.from_arrays(task, phi, reward, sampling_weight=np.full(400, q))
        found = SampledPosterior(moments, Hierarchy(None, [[0.0]], 1.0))
        assert found.design == pytest.approx(q)
        np.testing.assert_allclose(found.hyper.cov, plain.hyper.cov)
        np.testing.assert_allclose(found.hyper.mean, plain.hyper.mean)


def test_a_tree_is_refused() -> None:
    level = Level(np.eye(D), dict.fromkeys(range(M), "all"))
    with pytest.raises(InputError, match="two levels without metadata"):
        SampledPosterior(log(), Hierarchy(None, COV, 1.0, (level,)))
