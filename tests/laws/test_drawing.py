"""What is drawn follows the hierarchy it was drawn from, and true values are means over contexts."""

from typing import Any

import numpy as np
import pytest
from reference.dense import Dense, Problem

from hieropo.errors import HieropoError, InputError, MismatchError, UnknownTaskError
from hieropo.model.gaussian import Gaussian
from hieropo.model.hierarchy import Hierarchy, Level
from hieropo.reproduce.synthetic.simulation import (
    draw_log,
    draw_tasks,
    policy_value,
    suboptimality,
    synthetic_features,
    synthetic_hierarchy,
    synthetic_run,
)

MIX = np.array([[1.0, 0.3], [0.3, 0.4]])
SIDE, LAND = {"a": "N", "b": "N", "c": "S"}, {"N": 0, "S": 0}


def hierarchy(**changes: Any) -> Hierarchy:
    settings = {
        "hyper": Gaussian(np.array([1.0, -2.0]), 0.5 * MIX),
        "task_cov": MIX,
        "noise_var": 0.25,
        "levels": (Level(2 * MIX, SIDE), Level(np.diag([0.0, 1.0]), LAND)),
    }
    return Hierarchy(**{**settings, **changes})


@pytest.mark.slow
def test_tasks_have_the_joint_prior_of_the_dense_truth() -> None:
    prior, n = hierarchy(), 4000
    rng = np.random.default_rng(0)
    drawn = np.array([draw_tasks(prior, ["a", "b", "c"], rng).theta.ravel() for _ in range(n)])
    assert prior.hyper is not None
    empty = Problem(
        task=[],
        phi=np.zeros((0, 2)),
        reward=np.zeros(0),
        precision=np.zeros(0),
        task_cov=prior.task_cov,
        noise_var=1.0,
        hyper_mean=prior.hyper.mean,
        hyper_cov=prior.hyper.cov,
        levels=tuple((level.cov, level.parent) for level in prior.levels),
    )
    dense = Dense(empty)
    cov = np.block([[dense.cov_between(s, z) for z in "abc"] for s in "abc"])
    sd = np.sqrt(np.diagonal(cov))
    assert np.abs(drawn.mean(axis=0) - np.tile(prior.hyper.mean, 3)).max() < 5 * sd.max() / np.sqrt(n)
    assert np.abs(np.cov(drawn.T) - cov).max() < 5 * np.sqrt(2 / n) * sd.max() ** 2


def test_zero_covariances_draw_the_parent() -> None:
    zero = np.zeros((2, 2))
    truth = draw_tasks(
        hierarchy(task_cov=zero, levels=(Level(zero, SIDE), Level(MIX, LAND))),
        ["c", "a"],
        np.random.default_rng(1),
    )
    np.testing.assert_array_equal(truth["a"], truth.nodes[0]["N"])
    np.testing.assert_array_equal(truth["c"], truth.nodes[1][0])
    assert (truth.root != truth.nodes[1][0]).all()
    assert truth.tasks.tolist() == ["c", "a"]


def test_one_seed_gives_one_world() -> None:
    def world(seed: int) -> tuple[Any, ...]:
        truth, log = synthetic_run(synthetic_hierarchy(1.0), 3, 50, np.random.default_rng(seed))
        return truth.root.tolist(), truth.theta.tolist(), log.task.tolist(), log.reward.tolist()

    assert world(3) == world(3)
    assert world(3) != world(4)


def test_a_log_follows_its_propensities_and_its_noise() -> None:
    rng, n = np.random.default_rng(2), 40_000
    truth = draw_tasks(hierarchy(), ["a", "c"], rng)
    task = np.array(["a", "c"], dtype=object)[rng.integers(0, 2, n)]
    chance = np.tile([0.0, 0.7, 0.1, 0.2], (n, 1))
    log = draw_log(truth, task, synthetic_features((n, 4, 2), rng), rng, propensities=chance)
    share = np.bincount(log.action, minlength=4) / n
    assert share[0] == 0.0
    assert np.abs(share - chance[0]).max() < 5 * np.sqrt(0.25 / n)
    np.testing.assert_array_equal(log.pscore, chance[0][log.action])
    np.testing.assert_array_equal(log.phi[7], log.candidates[7, log.action[7]])
    theta = np.array([truth[s] for s in log.task])
    noise = log.reward - (log.phi * theta).sum(axis=1)
    assert abs(noise.mean()) < 5 * 0.5 / np.sqrt(n)
    assert abs(noise.var() - 0.25) < 5 * 0.25 * np.sqrt(2 / n)
    uniform = draw_log(truth, task, log.candidates, rng)
    assert (uniform.pscore == 0.25).all()
    assert np.abs(np.bincount(uniform.action) / n - 0.25).max() < 5 * np.sqrt(0.19 / n)


def test_true_values_by_hand() -> None:
    theta = np.array([[1.0, 0.0], [0.0, 2.0]])
    candidates = np.array(
        [
            [[[1.0, 0.0], [3.0, 0.0]], [[2.0, 9.0], [1.0, 9.0]]],
            [[[5.0, 1.0], [5.0, 2.0]], [[0.0, 0.0], [0.0, -1.0]]],
        ]
    )
    index = np.array([[0, 0], [1, 1]])
    chosen = np.take_along_axis(candidates, index[:, :, None, None], axis=2)[:, :, 0]
    np.testing.assert_array_equal(policy_value(theta, chosen), [1.5, 1.0])
    np.testing.assert_array_equal(suboptimality(theta, candidates, index), [1.0, 1.0])


def test_what_cannot_be_drawn_is_refused() -> None:
    rng = np.random.default_rng(0)
    truth = draw_tasks(hierarchy(), ["a", "b"], rng)
    phi = np.zeros((2, 3, 2))
    with pytest.raises(InputError, match="flat"):
        draw_tasks(hierarchy(hyper=None), ["a"], rng)
    with pytest.raises(InputError, match="'a' is named twice"):
        draw_tasks(hierarchy(), ["b", "a", "a"], rng)
    with pytest.raises(UnknownTaskError, match="'z'"):
        draw_tasks(hierarchy(), ["a", "z"], rng)
    with pytest.raises(UnknownTaskError, match="'c'"):
        draw_log(truth, ["a", "c"], phi, rng)
    with pytest.raises(UnknownTaskError, match="'c'"):
        truth["c"]
    with pytest.raises(MismatchError, match="candidates"):
        draw_log(truth, ["a"], phi, rng)
    with pytest.raises(MismatchError, match="propensities"):
        draw_log(truth, ["a", "b"], phi, rng, propensities=np.ones((2, 2)) / 2)
    for bad in ([1.5, -0.5, 0.0], [0.5, 0.5, 0.5], [np.nan, 0.5, 0.5]):
        with pytest.raises(HieropoError, match="row 1"):
            draw_log(truth, ["a", "b"], phi, rng, propensities=[[1.0, 0.0, 0.0], bad])
