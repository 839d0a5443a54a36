"""The prior as a value: what it refuses, and what it turns into."""

from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.dense import Dense, Problem
from strategies import Array, covariances, hierarchy_of, problems, seeds

from hieropo.errors import HieropoError, InputError, MismatchError, NumericalError
from hieropo.model.gaussian import Gaussian
from hieropo.model.hierarchy import Hierarchy, Level

SPREAD = np.array([[2.0, 0.5], [0.5, 1.0]])


def hierarchy(**changes: Any) -> Hierarchy:
    settings = {
        "hyper": Gaussian(np.array([1.0, -1.0]), 4 * np.eye(2)),
        "task_cov": SPREAD,
        "noise_var": 0.25,
        "levels": (
            Level(np.eye(2), {"a": "N", "b": "S"}, "side"),
            Level(2 * np.eye(2), {"N": 0, "S": 0}, "land"),
        ),
    }
    return Hierarchy(**{**settings, **changes})


def marginal(problem: Problem) -> tuple[Array, Array]:
    """Prior of one task's parameter, by the dense truth without rows."""
    return Dense(problem).new_task()


# What it turns into


@given(problems())
def test_flat_keeps_the_marginal_prior_of_a_task(problem: Problem) -> None:
    no_rows = Problem(
        [],
        np.zeros((0, problem.dim)),
        np.zeros(0),
        np.zeros(0),
        problem.task_cov,
        problem.noise_var,
        problem.hyper_mean,
        problem.hyper_cov,
        problem.levels,
    )
    mean, cov = marginal(no_rows)
    flat = hierarchy_of(problem).flat()
    assert flat.hyper is not None
    assert not flat.levels
    assert flat.noise_var == problem.noise_var
    np.testing.assert_array_equal(flat.hyper.mean, mean)
    assert not flat.hyper.cov.any()
    np.testing.assert_allclose(flat.task_cov, cov, rtol=1e-14, atol=1e-14 * np.abs(cov).max())


def test_oracle_knows_the_mean_and_keeps_the_rest() -> None:
    start = hierarchy()
    oracle = start.oracle([3.0, 4.0])
    assert oracle.hyper is not None
    np.testing.assert_array_equal(oracle.hyper.mean, [3.0, 4.0])
    np.testing.assert_array_equal(oracle.hyper.cov, np.zeros((2, 2)))
    np.testing.assert_array_equal(oracle.task_cov, start.task_cov)
    assert oracle.noise_var == start.noise_var
    assert [level.name for level in oracle.levels] == ["side", "land"]
    assert hierarchy(hyper=None).oracle(np.zeros(2)).hyper is not None


def test_pooled_has_one_theta_for_all() -> None:
    start = hierarchy()
    pooled = start.pooled()
    assert pooled.hyper is start.hyper
    assert pooled.levels == ()
    assert not pooled.task_cov.any()
    assert pooled.noise_var == start.noise_var
    assert hierarchy(hyper=None).pooled().hyper is None


def test_no_flat_prior_for_a_task_alone() -> None:
    with pytest.raises(InputError, match="hyper"):
        hierarchy(hyper=None).flat()


@pytest.mark.parametrize("mu", [[1.0], [1.0, 2.0, 3.0], [[1.0, 2.0]], [np.nan, 0.0]])
def test_oracle_refuses_a_mean_that_does_not_fit(mu: Any) -> None:
    with pytest.raises(HieropoError):
        hierarchy().oracle(mu)


# What it is


def test_it_is_a_frozen_value() -> None:
    cov = SPREAD.copy()
    parent = {"a": "N"}
    level = Level(np.eye(2), parent)
    start = hierarchy(task_cov=cov, levels=[level])
    cov[0, 0] = 99.0
    parent["b"] = "S"
    assert start.task_cov[0, 0] == 2.0
    assert dict(start.levels[0].parent) == {"a": "N"}
    assert isinstance(start.levels, tuple)
    with pytest.raises(ValueError, match="read-only"):
        start.task_cov[0, 0] = 1.0
    with pytest.raises(TypeError):
        level.parent["b"] = "S"  # type: ignore[index]
    with pytest.raises(FrozenInstanceError):
        start.noise_var = 1.0  # type: ignore[misc]


@given(st.integers(1, 4).flatmap(covariances), seeds)
def test_any_covariance_will_do(cov: Array, seed: int) -> None:
    start = Hierarchy(hyper=None, task_cov=cov, noise_var=1.0)
    np.testing.assert_allclose(start.task_cov, cov, rtol=1e-15)
    skew = np.random.default_rng(seed).standard_normal(cov.shape)
    if cov.any():  # rounding of its makers is forgiven
        Hierarchy(hyper=None, task_cov=cov + 1e-12 * np.abs(cov).max() * (skew - skew.T), noise_var=1.0)


# What it refuses


@pytest.mark.parametrize("noise_var", [0.0, -1.0, np.nan, np.inf])
def test_noise_must_be_positive(noise_var: float) -> None:
    with pytest.raises(InputError, match=r"noise_var is .*(0\.0|-1\.0|nan|inf)"):
        hierarchy(noise_var=noise_var)


@pytest.mark.parametrize(
    ("cov", "error"),
    [
        (np.array([[1.0, 2.0], [2.0, 1.0]]), NumericalError),
        (-np.eye(2), NumericalError),
        (np.array([[1.0, 0.5], [0.0, 1.0]]), InputError),
        (np.array([[1.0, np.nan], [np.nan, 1.0]]), InputError),
        (np.ones(2), InputError),
        (np.ones((2, 3)), InputError),
        (np.array([[np.inf, 0.0], [0.0, 1.0]]), InputError),
    ],
)
def test_what_is_no_covariance_is_named(cov: Array, error: type[HieropoError]) -> None:
    with pytest.raises(error, match="task_cov"):
        hierarchy(task_cov=cov)
    with pytest.raises(error, match="'side'"):
        Level(cov, {"a": "N"}, "side")
    with pytest.raises(error):
        Gaussian(np.zeros(2), cov)


@pytest.mark.parametrize(
    "changes",
    [
        {"hyper": Gaussian(np.zeros(3), np.eye(3))},
        {"task_cov": np.eye(3)},
        {"levels": (Level(np.eye(3), {"a": "N"}),)},
    ],
)
def test_dimensions_must_agree(changes: dict[str, Any]) -> None:
    with pytest.raises(MismatchError, match=r"(?s)(?=.*3)(?=.*2)"):
        hierarchy(**changes)


def test_a_node_without_a_parent_is_named() -> None:
    levels = (Level(np.eye(2), {"a": "N", "b": "S"}, "side"), Level(np.eye(2), {"N": 0}, "land"))
    with pytest.raises(InputError, match=r"(?s)(?=.*'S')(?=.*'land')"):
        hierarchy(levels=levels)


@pytest.mark.parametrize("node", [None, np.nan])
def test_a_null_node_is_refused(node: Any) -> None:
    with pytest.raises(HieropoError):
        hierarchy(levels=(Level(np.eye(2), {"a": node, "b": "S"}),))
