"""The test that says if a mixture of spreads is worth a search, beside dense Gaussians; logs that it passes or not."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from scipy.stats import multivariate_normal

from hieropo import HierOPO
from hieropo.estimation.crossed.spread_screening import best_mixture, spreads_may_differ
from hieropo.estimation.crossed.task_likelihoods import means_of_actions, spread_likelihoods
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.crossed.posterior import condition_crossed
from hieropo.model.crossed.steps import ObservedUnits
from hieropo.moments.statistics import Moments

Array = NDArray[np.float64]
ACTION, LEVEL, INTERACTION = (
    np.array([[v, c], [c, w]]) for v, c, w in ((0.1, 0.02, 0.2), (0.3, 0.1, 0.2), (1, 0.3, 0.8))
)


class Rows(NamedTuple):
    """Rows of some tasks, two actions and two columns."""

    task: NDArray[np.int64]
    action: NDArray[np.int64]
    x: Array
    reward: Array

    def moments(self) -> Moments:
        columns = {"task": self.task, "action": self.action, "x": self.x[:, 1], "reward": self.reward}
        learner = HierOPO(logging="random").fit(
            pa.table(columns), task="task", action="action", reward="reward", context=["x"]
        )
        moments: Moments = learner.posterior_.log_moments
        return moments


@pytest.fixture(scope="module")
def rows() -> Rows:
    rng = np.random.default_rng(5)
    task, action = np.repeat(np.arange(5), 7), np.tile(np.arange(2), 18)[:35]
    x = np.stack([np.ones(35), rng.standard_normal(35)], axis=1)
    return Rows(task, action, x, 0.5 * rng.standard_normal(35) + x @ np.array([0.4, -0.2]))


def test_likelihoods_of_tasks_are_those_of_dense_gaussians(rows: Rows) -> None:
    moments, noise, m = rows.moments(), 0.7, 0.4
    units = ObservedUnits.of(moments, np.full(2, noise))
    hierarchy = CrossedHierarchy(ACTION, LEVEL, m**2 * INTERACTION, np.full(2, noise))
    posterior = condition_crossed(moments, hierarchy)
    mu = np.array([posterior.action(a).mean for a in range(2)])
    np.testing.assert_allclose(means_of_actions(units, (ACTION, LEVEL, INTERACTION), m), mu, atol=1e-9)
    scales, noises = np.array([0.0, 0.4, 2.0]), np.array([1.0, 3.0])
    values = spread_likelihoods(units, (ACTION, LEVEL, INTERACTION), mu, scales, noises, np.full(5, 7.0))
    for s in range(5):
        part = moments.keys.row(s, "error")
        own = rows.task == s
        action = rows.action[own]
        same = action[:, None] == action
        dense = np.array(
            [
                [
                    multivariate_normal(
                        np.einsum("ip,ip->i", rows.x[own], mu[action]),
                        rows.x[own] @ LEVEL @ rows.x[own].T
                        + v**2 * same * (rows.x[own] @ INTERACTION @ rows.x[own].T)
                        + tau * noise * np.eye(own.sum()),
                    ).logpdf(rows.reward[own])
                    for v in scales
                ]
                for tau in noises
            ]
        )
        np.testing.assert_allclose(values[:, :, part] - values[0, 0, part], dense - dense[0, 0], atol=1e-7)


def test_thebest_mixture_is_that_of_a_fine_grid_of_weights() -> None:
    laws = np.array([[0.0, -1.0, 2.0], [1.0, 0.5, -1.0]])
    w = np.linspace(1e-6, 1 - 1e-6, 100_001)
    best = np.log(w[:, None] * np.exp(laws[0]) + (1 - w)[:, None] * np.exp(laws[1])).sum(axis=1).max()
    assert best - 0.1 < best_mixture(laws) <= best + 1e-9


def _log(noise: str, odd: int, seed: int) -> Moments:
    rng = np.random.default_rng(seed)
    task, action = np.repeat(np.arange(50), 24), rng.integers(0, 4, 1200)
    size = np.where(np.arange(50) < odd, 3.0, 0.2)
    theta = rng.standard_normal((50, 1)) + size[:, None] * rng.standard_normal((50, 4))
    errors = {"normal": rng.standard_normal, "t3": lambda n: rng.standard_t(3, n) / np.sqrt(3)}[noise](1200)
    log = pa.table({"task": task, "action": action, "reward": theta[task, action] + errors})
    learner = HierOPO(logging="random").fit(log, task="task", action="action", reward="reward")
    moments: Moments = learner.posterior_.moments
    return moments


@pytest.mark.parametrize(
    ("noise", "odd", "passes"), [("normal", 3, True), ("normal", 0, False), ("t3", 0, False)]
)
def test_logs_of_odd_tasks_pass_and_others_do_not(noise: str, odd: int, passes: bool) -> None:  # noqa: FBT001
    scales = np.append(0.0, np.geomspace(0.03, 12, 16))
    one = np.eye(1)
    for seed in range(4):
        moments = _log(noise, odd, seed)
        units = ObservedUnits.of(moments, np.ones(4))
        m = 0.8 if odd else 0.2
        covs = 0.01 * one, one, one
        assert spreads_may_differ(units, covs, m, scales, moments.rows.sum(axis=1)) is passes
