"""The integrated correlation within clusters, beside dense algebra over all rows."""

from math import lgamma
from typing import Any

import numpy as np
import pytest
from cluster_tables import sums_of

from hieropo import indicator, per_action
from hieropo.estimation.crossed.correlation import (
    CorrelationNode,
    CorrelationNodes,
    integrable,
    integrate_correlation,
    side_by_side,
)
from hieropo.estimation.crossed.grid import Axis
from hieropo.estimation.crossed.integration import integrate_crossed
from hieropo.estimation.crossed.mixture import condition_hierarchies
from hieropo.estimation.crossed.shapes import Shapes
from hieropo.model.crossed.posterior import condition_crossed
from hieropo.moments.clusters import correlated
from hieropo.rows.batches import Batch, Roles

TASKS, ACTIONS = 6, ["a", "b", "c"]


class Log:
    """A log of clusters of one action each, with its moments and the sums of its clusters."""

    def __init__(self, rho: float, sizes: Any, *, effect: float = 1.0, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        count = len(sizes)
        of_cluster = np.arange(count) % TASKS, rng.integers(len(ACTIONS), size=count)
        self.cluster = np.repeat(np.arange(count), sizes)
        self.task, self.action = (values[self.cluster] for values in of_cluster)
        theta = rng.standard_normal((TASKS, 1)) + effect * rng.standard_normal((TASKS, len(ACTIONS)))
        noise = np.sqrt(rho) * rng.standard_normal(count)[self.cluster]
        self.reward = theta[self.task, self.action] + noise
        self.reward += np.sqrt(1 - rho) * rng.standard_normal(self.task.size)

    def sums(self, features: Any, context: Any = None) -> Any:
        n = self.task.size
        batch = Batch(
            task=self.task, action=np.array(ACTIONS)[self.action].astype(object), reward=self.reward,
            context=np.zeros((n, 0)) if context is None else context, cluster=self.cluster,
            roles=Roles("task", "action", "reward", context=() if context is None else ("x",), cluster="cluster"),
        )  # fmt: skip
        return sums_of(batch, features)

    def covariance(self, rho: float) -> Any:
        """Correlation matrix of the errors of all rows."""
        return rho * (self.cluster[:, None] == self.cluster) + (1 - rho) * np.eye(self.task.size)

    @property
    def unit(self) -> Any:
        return self.task * len(ACTIONS) + self.action

    def posterior(self, rho: float, a: float, level: float, m: float, noise: float) -> Any:
        """Mean and covariance of theta, and of the evidence at noise 1 the log determinant and square; beta flat."""
        count = TASKS * len(ACTIONS)
        prior = a**2 * np.kron(np.ones((TASKS, TASKS)), np.eye(len(ACTIONS)))
        prior += level**2 * np.kron(np.eye(TASKS), np.ones((len(ACTIONS), len(ACTIONS))))
        prior += m**2 * np.eye(count)
        X, one = np.eye(count)[self.unit], np.ones(self.task.size)
        V = X @ prior @ X.T + self.covariance(rho)
        P = np.linalg.solve(V, np.eye(len(V)))
        root = one @ P @ one
        beta = one @ P @ self.reward / root
        rest = self.reward - beta
        mean = beta + prior @ X.T @ P @ rest
        lever = np.ones(count) - prior @ X.T @ P @ one
        cov = prior - prior @ X.T @ P @ X @ prior + np.outer(lever, lever) / root
        return mean, noise * cov, np.linalg.slogdet(V)[1] + np.log(root), rest @ P @ rest


@pytest.fixture(scope="module")
def log() -> Log:
    return Log(0.5, np.full(30, 3))


def learned(some: Any) -> Any:
    return condition_hierarchies(some, integrate_crossed(some, Shapes.equal(some), equal_noise=True))


def one_node(log: Log, rho: float, mean: float) -> tuple[Any, Any]:
    """Return moments and the hierarchy a = .4, l = .8, m = .6 at rho, for moments of another correlation."""
    moments, clusters = log.sums(indicator(ACTIONS))
    axes = tuple(Axis(np.array([sd]), np.zeros(1)) for sd in (0.4, 0.8 / np.sqrt(1.36), 0.6, 0.0))
    nodes = CorrelationNodes(moments, clusters, Shapes.equal(moments), np.ones(len(ACTIONS)))
    square = np.full((1, 1, 1, 1), moments.n_rows - 3.0)  # noise 1
    node = CorrelationNode(np.full(3, rho), axes, np.ones((1, 1, 1, 1)), square, 0.0)  # type: ignore[arg-type]
    hierarchies = side_by_side(nodes, [node], np.ones(1), np.full(3, mean))
    return correlated(moments, clusters, np.full(3, mean)), hierarchies.hierarchy(0)


@pytest.mark.parametrize(("rho", "mean"), [(0.3, 0.5), (0.7, 0.5), (0.0, 0.4), (0.4, 0.0)])
def test_a_hierarchy_at_another_correlation_is_exact_for_clusters_of_one_size(log, rho, mean) -> None:
    moments, hierarchy = one_node(log, rho, mean)
    posterior = condition_crossed(moments, hierarchy)
    expected, cov, *_ = log.posterior(rho, 0.4, 0.8, 0.6, 1.0)
    for row, task in enumerate(range(TASKS)):
        units = slice(3 * row, 3 * row + 3)
        law = posterior.task(task)
        np.testing.assert_allclose(law.mean, expected[units], rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(law.cov, cov[units, units], rtol=1e-9, atol=1e-10)


def test_a_hierarchy_at_another_correlation_is_near_for_clusters_of_unequal_sizes() -> None:
    log = Log(0.5, np.random.default_rng(3).integers(1, 10, size=40))
    for rho in (0.42, 0.58):
        moments, hierarchy = one_node(log, rho, 0.5)
        posterior = condition_crossed(moments, hierarchy)
        expected, cov, *_ = log.posterior(rho, 0.4, 0.8, 0.6, 1.0)
        means = np.concatenate([posterior.task(task).mean for task in range(TASKS)])
        sds = np.concatenate([posterior.task(task).sd for task in range(TASKS)])
        truth = np.sqrt(np.diag(cov))
        assert np.abs((means - expected) / truth).max() < 0.06
        assert np.abs(sds / truth - 1).max() < 0.04


@pytest.mark.slow
def test_weights_and_means_are_those_of_a_dense_integral(log) -> None:
    """The evidence of dense algebra over a grid of (c, a, l, m) gives the same answers; both grids are coarse in l."""
    moments, clusters = log.sums(indicator(ACTIONS))
    integrated = integrate_correlation(moments, clusters, learned)
    dof = log.task.size - 1
    u, mass = np.polynomial.legendre.leggauss(9)
    sds, mass = np.tan(np.pi / 4 * (u + 1)), mass / 4
    nodes = [(0.0, 0.5), *zip(sds.tolist(), mass.tolist(), strict=True)]
    total: list[Any] = []
    for c, c_mass in nodes:
        rho = c**2 / (1 + c**2)
        for a, a_mass in nodes:
            for m, m_mass in nodes:
                for level, l_mass in nodes[1:]:
                    level_sd = level * np.sqrt(1 + m**2)
                    mean, _, log_det, square = log.posterior(rho, a, level_sd, m, 1.0)
                    evidence = lgamma(dof / 2) - 0.5 * log_det - dof / 2 * np.log(square / 2)
                    evidence += np.log(c_mass * a_mass * m_mass * l_mass)
                    total.append((evidence, rho, float(c == 0), float(a == 0 == m), float(m == 0), *mean))
    table = np.array(total)
    weight = np.exp(table[:, 0] - table[:, 0].max())
    _, zero, no_effect, no_interaction, *means = weight @ table[:, 1:] / weight.sum()
    hierarchies = integrated.hierarchies
    assert integrated.zero == pytest.approx(zero, abs=0.01)
    assert hierarchies.no_effect == pytest.approx(no_effect, abs=0.02)
    assert hierarchies.no_interaction == pytest.approx(no_interaction, abs=0.02)
    posterior = condition_hierarchies(correlated(moments, clusters, integrated.mean), hierarchies)
    got = np.concatenate([posterior.task(task).mean for task in range(TASKS)])
    sds = np.concatenate([posterior.task(task).sd for task in range(TASKS)])
    assert np.abs((got - means) / sds).max() < 0.1


def test_noise_that_clusters_do_not_share_leaves_the_moments_as_they_are() -> None:
    log = Log(0.0, np.full(120, 4), seed=1)
    moments, clusters = log.sums(indicator(ACTIONS))
    integrated = integrate_correlation(moments, clusters, learned)
    assert integrated.zero > 0.5
    assert not integrated.mean.any()


def test_actions_have_correlations_of_their_own_where_the_log_shows_them() -> None:
    log = Log(0.0, np.full(600, 5), effect=0.3, seed=2)
    shared = log.action == 0
    log.reward[shared] += 3.0 * np.random.default_rng(4).standard_normal(600)[log.cluster[shared]]
    moments, clusters = log.sums(indicator(ACTIONS))

    def learn(some: Any) -> Any:
        return condition_hierarchies(some, integrate_crossed(some, equal_noise=True))

    mean = integrate_correlation(moments, clusters, learn).mean
    assert mean[0] > 0.8
    assert mean[1:].max() < 0.3


def test_features_that_vary_within_clusters_keep_one_correlation(log) -> None:
    rng = np.random.default_rng(0)
    assert integrable(*log.sums(indicator(ACTIONS)))
    features = per_action(ACTIONS, ["x"])
    of_cluster = rng.standard_normal((30, 1))[log.cluster]
    assert integrable(*log.sums(features, of_cluster))
    assert not integrable(*log.sums(features, rng.standard_normal((log.task.size, 1))))
