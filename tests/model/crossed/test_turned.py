"""Tasks and actions in each other's place: the same evidence and second moments, at another root."""

import numpy as np
import pytest
from reference.dense import Array

from hieropo.estimation.crossed import grid
from hieropo.estimation.crossed.grid import Groups, Window, _Search
from hieropo.estimation.crossed.integration import integrate_crossed
from hieropo.estimation.crossed.mixture import condition_hierarchies
from hieropo.estimation.crossed.shapes import Shapes
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.crossed.posterior import condition_crossed
from hieropo.model.crossed.turned import TurnedEvidence, pays, turned
from hieropo.moments.statistics import Moments
from hieropo.rows.keys import Keys

PARTS = {
    "all": (0.5, 0.7, 0.3),
    "no effects": (0.0, 0.7, 0.3),
    "no levels": (0.5, 0.0, 0.3),
    "no interactions": (0.5, 0.7, 0.0),
    "far larger than the noise": (1e3, 1e4, 1e3),
}


def many_actions(tasks: int, actions: int, columns: int, rows: int, seed: int = 0) -> Moments:
    """Moments of tasks without rows, too, and of actions that none took."""
    rng = np.random.default_rng(seed)
    n = tasks * rows
    task, action = np.repeat(2 * np.arange(tasks), rows), rng.integers(0, actions - 2, n)
    x = np.column_stack([np.ones(n), rng.standard_normal((n, columns - 1))])
    effect = rng.standard_normal((actions, columns)) + rng.standard_normal((2 * tasks, 1, columns))
    effect = 0.5 * effect + 0.4 * rng.standard_normal((2 * tasks, actions, columns))
    reward = np.einsum("ni,ni->n", x, effect[task, action]) + (
        1.0 + 0.5 * (action % 2)
    ) * rng.standard_normal(n)
    some = Moments.from_arrays(task * actions + action, x, reward)
    at = some.tasks.astype(np.int64)
    sums, counts = np.zeros((2 * tasks * actions, some.sums.shape[1])), np.zeros(2 * tasks * actions)
    sums[at], counts[at] = some.sums, some.rows
    shape = 2 * tasks, actions
    return Moments(
        Keys(np.arange(2 * tasks)), columns, sums.reshape(*shape, -1), counts.reshape(shape), np.zeros(shape)
    )


def covariance(columns: int, sd: float, seed: int) -> Array:
    root = np.random.default_rng(seed).standard_normal((columns, columns))
    return sd**2 * root @ root.T / columns


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize(("tasks", "columns"), [(1, 2), (5, 1), (7, 3)])
def test_evidence_and_second_moments_are_those_of_the_usual_order(
    parts: str, tasks: int, columns: int
) -> None:
    moments = many_actions(tasks, 24, columns, 30)
    covs = (covariance(columns, sd, seed) for seed, sd in enumerate(PARTS[parts]))
    hierarchy = CrossedHierarchy(*covs, np.where(np.arange(24) % 2, 2.0, 0.8))
    usual, other = condition_crossed(moments, hierarchy), TurnedEvidence(moments, hierarchy)
    digits = 1e-7 if parts.startswith("far") else 1e-10
    assert other.log_evidence == pytest.approx(usual.log_evidence, rel=digits)
    assert other.square == pytest.approx(usual.square, rel=digits)
    for scale in (0.0, 1.0, 0.7):
        right, got = usual.second_moments(scale), other.second_moments(scale)
        for name in right._fields:
            value = np.asarray(getattr(right, name), dtype=np.float64)
            error = np.abs(np.asarray(getattr(got, name)) - value).max()
            assert error <= digits * max(np.abs(value).max(), 1e-12), name


def test_the_grid_has_the_weights_of_the_usual_order() -> None:
    moments, groups = many_actions(6, 40, 3, 40), Groups((), np.zeros(0), np.zeros(0))
    assert pays(moments)
    shapes = Shapes.equal(moments)._replace(noise_ratio=np.where(np.arange(40) % 2, 2.0, 1.0))
    axes = (
        Window().axis(zero=True), Window(nodes=3).axis(zero=False), Window(nodes=4).axis(zero=True),
        grid.Axis(np.zeros(1), np.zeros(1)),
    )  # fmt: skip
    search = _Search.of(moments, shapes, groups)
    assert search.turned is not None
    got = search.log_weights(axes)
    right = search._replace(turned=None).log_weights(axes)
    for one, other in zip(got, right, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)


@pytest.mark.slow
def test_a_fit_of_few_tasks_of_many_actions_is_that_of_the_usual_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moments = many_actions(12, 40, 3, 60)
    assert pays(moments)
    answers = []
    for other_way in (True, False):
        for module in ("grid", "shapes"):
            monkeypatch.setattr(
                f"hieropo.estimation.crossed.{module}.pays", lambda _, other_way=other_way: other_way
            )
        answers.append(condition_hierarchies(moments, integrate_crossed(moments)).table())
    got, right = answers
    np.testing.assert_allclose(got.means, right.means, atol=1e-4)
    np.testing.assert_allclose(got.covs, right.covs, atol=1e-4)


def test_only_few_tasks_of_many_coefficients_are_turned() -> None:
    assert not pays(many_actions(13, 25, 4, 5))
    assert pays(many_actions(12, 25, 4, 5))
    assert not pays(many_actions(2, 10, 4, 5))
    moments = many_actions(4, 30, 4, 9)
    other = turned(moments, np.full(30, 2.0))
    assert (len(other), other.n_actions) == (30, 4)
    assert other.n_rows == moments.n_rows
    np.testing.assert_array_equal(other.sums[3, 1], moments.sums[2, 3] / 2.0)
