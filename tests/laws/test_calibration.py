"""Simulation-based calibration: with the true hierarchy, what is said with 95 % holds in 95 % of the worlds.

Every world draws mu, groups, tasks and a log. The rank of the truth among posterior draws must then be
uniform and intervals must cover, for theta, for phi' theta, for the value V of the policy that was chosen
from the same log, and for the mean of V over tasks, which the tasks' joint law decides.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from reference.dense import Array
from scipy import stats

from hieropo.model.gaussian import Gaussian
from hieropo.model.hierarchy import Hierarchy, Level
from hieropo.model.posterior import Posterior, condition
from hieropo.moments.statistics import Moments
from hieropo.policies.lower_bound import LCBPolicy
from hieropo.reproduce.synthetic.simulation import (
    TrueTasks,
    draw_log,
    draw_tasks,
    policy_value,
    synthetic_features,
)

WORLDS, DRAWS, CONTEXTS, ACTIONS, ROWS = 2000, 19, 20, 4, 24
TASKS = ["a", "b", "c", "d"]
Z = stats.norm.ppf(0.975)


def prior() -> Hierarchy:
    """Two groups of two tasks, in three dimensions that are unlike."""
    mix = np.array([[1.0, 0.4, 0.0], [0.4, 0.5, 0.1], [0.0, 0.1, 0.2]])
    return Hierarchy(
        hyper=Gaussian(np.array([0.3, 0.0, -0.5]), np.diag([1.0, 0.25, 2.0])),
        task_cov=0.5 * mix,
        noise_var=0.3,
        levels=(Level(0.4 * np.eye(3), {"a": "N", "b": "N", "c": "S", "d": "S"}),),
    )


class World(NamedTuple):
    """Ranks of the truth among posterior draws, and whether intervals cover it."""

    rank: dict[str, int]
    covered: dict[str, Array]


def fleet(post: Posterior, psi: Array) -> tuple[float, float, float]:
    """Mean, variance, and variance as if tasks were independent, of the mean value over tasks."""
    keys = post.moments.keys
    vectors = np.zeros((len(keys), post.dim))
    vectors[keys.require(TASKS)] = psi / len(TASKS)
    mean, var = post.total(vectors[None])
    alone = post.project(vectors[:, None], slice(0, len(keys)))[1].sum()
    return float(mean.item()), float(var.item()), float(alone)


def fleet_by_pairs(post: Posterior, psi: Array) -> tuple[float, float, float]:
    """As :func:`fleet`, from the covariance of each pair of tasks."""
    m = len(TASKS)
    mean = sum(psi[i] @ post.task(s).mean for i, s in enumerate(TASKS)) / m
    var = [
        [psi[i] @ post.cov_between(s, z) @ psi[j] / m**2 for j, z in enumerate(TASKS)]
        for i, s in enumerate(TASKS)
    ]
    return float(mean), float(np.sum(var)), float(np.trace(var))


def mean_features(post: Posterior, rng: np.random.Generator) -> Array:
    """Mean phi of the chosen actions of each task, (m, d), over fresh contexts."""
    candidates = synthetic_features((len(TASKS), CONTEXTS, ACTIONS, post.dim), rng)
    policy = LCBPolicy(post, pessimism=0.5)
    requests = np.repeat(np.array(TASKS, dtype=object), CONTEXTS)
    chosen = policy.choose_many(requests, phi=candidates.reshape(-1, ACTIONS, post.dim)).index[:, 0]
    taken = candidates.reshape(-1, ACTIONS, post.dim)[np.arange(chosen.size), chosen]
    return taken.reshape(len(TASKS), CONTEXTS, post.dim)


def world(hierarchy: Hierarchy, rng: np.random.Generator, *, pairs: bool = False) -> World:
    truth: TrueTasks = draw_tasks(hierarchy, TASKS, rng)
    task = np.array(TASKS, dtype=object)[rng.integers(0, len(TASKS), ROWS)]
    log = draw_log(truth, task, synthetic_features((ROWS, ACTIONS, hierarchy.dim), rng), rng)
    post = condition(Moments.from_arrays(log.task, log.phi, log.reward), hierarchy)
    chosen = mean_features(post, rng)
    value, psi = policy_value(truth.theta, chosen), chosen.mean(axis=1)
    phi = rng.standard_normal(hierarchy.dim)
    one = int(rng.integers(len(TASKS)))  # ranks of several tasks of one world would not be independent
    draws = post.task(TASKS[one]).sample(rng, DRAWS)
    mean, var, alone = fleet(post, psi)
    if pairs:
        np.testing.assert_allclose((mean, var, alone), fleet_by_pairs(post, psi), rtol=1e-10)
    rank = {f"theta {i}": int((draws[:, i] < truth.theta[one, i]).sum()) for i in range(hierarchy.dim)}
    rank["phi' theta"] = int((draws @ phi < truth.theta[one] @ phi).sum())
    rank["value"] = int((draws @ psi[one] < value[one]).sum())
    rank["fleet value"] = int((mean + np.sqrt(var) * rng.standard_normal(DRAWS) < value.mean()).sum())
    laws = [post.task(s) for s in TASKS]
    covered = {
        "theta": np.array([np.abs(t - g.mean) <= Z * g.sd for t, g in zip(truth.theta, laws, strict=True)]),
        "phi' theta": np.array([inside(g, phi, t @ phi) for t, g in zip(truth.theta, laws, strict=True)]),
        "value": np.array([inside(g, p, v) for g, p, v in zip(laws, psi, value, strict=True)]),
        "fleet value": np.array(abs(value.mean() - mean) <= Z * np.sqrt(var)),
        "fleet value, tasks apart": np.array(abs(value.mean() - mean) <= Z * np.sqrt(alone)),
    }
    return World(rank, covered)


def inside(gaussian: Gaussian, direction: Array, truth: float) -> bool:
    mean, var = gaussian.project(direction)
    return bool(abs(truth - mean) <= Z * np.sqrt(var))


def means(reward: Array, task: Array, phi: Array) -> Array:
    post = condition(Moments.from_arrays(task, phi, reward), prior())
    return np.concatenate([post.task(s).mean for s in TASKS])


def test_posterior_means_vary_between_logs_by_what_posteriors_leave_of_the_prior() -> None:
    """Calibration without chance, for given features: prior covariance = cov(posterior mean) + posterior covariance."""
    hierarchy, rng, m = prior(), np.random.default_rng(7), len(TASKS)
    code, phi = np.arange(ROWS) % m, rng.standard_normal((ROWS, hierarchy.dim))
    task, group = np.array(TASKS, dtype=object)[code], np.array([0, 0, 1, 1])
    between = np.kron(np.ones((m, m)), hierarchy.hyper.cov)
    between += np.kron(group[:, None] == group[None, :], hierarchy.levels[0].cov)
    between += np.kron(np.eye(m), hierarchy.task_cov)
    design = np.einsum("rt,rd->rtd", np.eye(m)[code], phi).reshape(ROWS, -1)
    rewards_cov = design @ between @ design.T + hierarchy.noise_var * np.eye(ROWS)
    at_zero = means(np.zeros(ROWS), task, phi)
    slopes = np.array([means(row, task, phi) - at_zero for row in np.eye(ROWS)]).T
    post = condition(Moments.from_arrays(task, phi, np.zeros(ROWS)), hierarchy)
    left = np.block([[post.task(s).cov if s == z else post.cov_between(s, z) for z in TASKS] for s in TASKS])
    np.testing.assert_allclose(slopes @ rewards_cov @ slopes.T + left, between, rtol=1e-9, atol=1e-10)
    centre = np.tile(hierarchy.hyper.mean, m)
    np.testing.assert_allclose(at_zero + slopes @ design @ centre, centre, rtol=1e-9, atol=1e-10)


def test_the_value_of_all_tasks_is_that_of_the_pairs_of_tasks() -> None:
    world(prior(), np.random.default_rng(1), pairs=True)


@cache
def worlds() -> tuple[World, ...]:
    hierarchy, rng = prior(), np.random.default_rng(2212)
    return tuple(world(hierarchy, rng, pairs=w % 100 == 0) for w in range(WORLDS))


@pytest.mark.slow
@pytest.mark.parametrize("quantity", ["theta 0", "theta 1", "theta 2", "phi' theta", "value", "fleet value"])
def test_ranks_are_uniform(quantity: str) -> None:
    counts = np.bincount([w.rank[quantity] for w in worlds()], minlength=DRAWS + 1)
    assert stats.chisquare(counts).pvalue > 0.005


@pytest.mark.slow
@pytest.mark.parametrize("quantity", ["theta", "phi' theta", "value", "fleet value"])
def test_95_percent_intervals_cover_95_percent(quantity: str) -> None:
    assert 0.94 <= np.mean([w.covered[quantity] for w in worlds()]) <= 0.96


@pytest.mark.slow
def test_tasks_taken_as_independent_do_not_cover() -> None:
    assert np.mean([w.covered["fleet value, tasks apart"] for w in worlds()]) < 0.93
