"""Moments of units, one for each action of a task: they are the moments of the whole map, in fewer numbers."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from unit_logs import log

from hieropo.errors import InputError, LogError, MismatchError
from hieropo.estimation.reml import estimate
from hieropo.features.maps import embedding, indicator, per_action
from hieropo.model.posterior import condition
from hieropo.moments.statistics import Moments
from hieropo.moments.units import UnitAccumulator


def test_dense_moments_of_units_are_the_moments_of_the_whole_map_to_the_last_bit() -> None:
    rows = log(whole=True)
    got, want = rows.units().dense(), rows.dense()
    assert got.features == want.features
    place = got.keys.locate(want.tasks)
    for name in ("sums", "rows"):
        np.testing.assert_array_equal(getattr(got, name)[place], getattr(want, name))
    assert log().units().dense().allclose(log().dense(), rtol=1e-14)


@pytest.mark.parametrize("pieces", [2, 5, 80])
def test_units_in_any_pieces_are_the_same(pieces: int) -> None:
    rows = log(whole=True)
    whole, split = rows.units(), rows.units(pieces)
    assert split.dense().allclose(whole.dense(), rtol=0.0)
    assert len(split) == len(whole)


def test_units_form_a_group_as_the_dense_moments_do() -> None:
    rows = log(whole=True, n=120)
    first, second = (
        rows.where(slice(0, 70)),
        rows.where(slice(50, 120)),
    )  # tasks in another order, some in one only
    assert (first.units() + second.units()).dense().allclose(first.dense() + second.dense(), rtol=0.0)
    assert (first.units() - second.units()).dense().allclose(first.dense() - second.dense(), rtol=0.0)
    assert (-first.units()).dense().allclose(-first.dense(), rtol=0.0)
    assert first.units().scale(0.25).dense().allclose(first.dense().scale(0.25))
    assert sum([first.units(), second.units()]).n_rows == 140  # type: ignore[attr-defined]
    back = first.units() + second.units() - second.units()
    assert back.dense().select(first.units().tasks).allclose(first.units().dense(), rtol=0.0)
    tasks = first.units().tasks[[2, 0]]
    assert first.units().select(tasks).dense().allclose(first.dense().select(tasks), rtol=0.0)


def test_ids_of_any_kind_are_kept() -> None:
    features = indicator(["l", "r"])
    total = UnitAccumulator(features)
    total.add(["south", 7], [0, 1], None, [1.0, 2.0])
    total.add(np.array([7, 8]), [1, 1], None, [3.0, 4.0])
    found = total.moments()
    assert found.tasks.tolist() == ["south", 7, 8]
    np.testing.assert_array_equal(found.rows, [[1, 0], [0, 2], [0, 1]])
    np.testing.assert_array_equal(found.sums[1, 1], [2, 5, 13, 2, 5, 2])
    empty = UnitAccumulator(features).moments()
    assert (empty.rows.shape, empty.sums.shape, (empty + found).n_rows) == ((0, 2), (0, 2, 6), 4)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"action": [0, 2]}, InputError, r"Action code 2 \(row 1\) is not in 0 \.\. 1"),
        ({"action": [-1, 0]}, InputError, r"Action code -1 \(row 0\)"),
        ({"action": [0.0, 1.0]}, InputError, "whole numbers"),
        ({"action": [0]}, InputError, "do not fit 2 task ids"),
        ({"reward": [0.0, np.nan]}, LogError, "reward"),
        ({"weight": [1.0, -1.0]}, LogError, "weight"),
        ({"context": [[0.0], [np.inf]]}, LogError, "'x', row 1"),
        ({"reward": [0.0, 1e200]}, LogError, "task 'b' are not finite"),
    ],
)
def test_rows_that_cannot_be_used_are_refused(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    total = UnitAccumulator(per_action(["l", "r"], ["x"]))
    rows = {"task": ["a", "b"], "action": [0, 1], "context": [[0.0], [1.0]], "reward": [0.0, 1.0]} | change

    def moments() -> Moments:
        total.add(**rows)
        return total.moments()

    with pytest.raises(error, match=message):
        moments()


def test_moments_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(InputError, match="each action its own coefficients"):
        UnitAccumulator(embedding(["l", "r"], [[1.0, 0.0], [1.0, 1.0]]))
    one, other = log(K=3).units(), log(K=4).units()
    with pytest.raises(MismatchError, match="3 actions and moments of 4 actions"):
        one + other
    with pytest.raises(MismatchError, match="features"):
        log(c=1).units() + log(c=2).units()
    with pytest.raises(InputError, match="selected twice"):
        one.select([0, 0])
    with pytest.raises(MismatchError, match="4 actions and moments of all actions together"):
        other + other.dense()
    with pytest.raises(
        InputError, match=r"Sums of shape \(6, 3, 15\) do not fit 6 tasks with rows of shape \(6,\)"
    ):
        Moments(one.keys, one.unit_dim, one.sums, one.rows[:, 0], one.log_precision)
    with pytest.raises(InputError, match="a triangle of 28 numbers"):
        Moments(one.keys, 5, one.sums, one.rows, one.log_precision)


def test_a_task_has_the_same_sums_and_scores_whether_they_are_kept_per_action_or_not() -> None:
    units = log().units()
    dense, task, some = units.dense(), units.tasks[2], np.array([0, 2, 3])
    for method in ("gram", "cross", "reward_squares"):
        np.testing.assert_allclose(getattr(units, method)(task), getattr(dense, method)(task), rtol=1e-13)
    theta, noise = np.linspace(-1.0, 1.0, units.dim), np.full(units.n_actions, 0.5)
    np.testing.assert_allclose(
        units.scores(some, theta, noise), dense.scores(some, theta, noise[:1]), rtol=1e-10, atol=1e-12
    )
    np.testing.assert_allclose(
        units.information(some, noise), dense.information(some, noise[:1]), rtol=1e-12, atol=1e-12
    )
    assert dense.dense() is dense
    assert dense.pooled() is dense


def test_pooled_moments_are_those_of_one_action() -> None:
    rows = log()
    features = per_action(["any"], rows.features.columns)
    phi = features.phi(rows.context, np.zeros(len(rows.task), dtype=int))
    want = Moments.from_arrays(rows.task, phi, rows.reward, rows.weight)
    assert rows.units().pooled().allclose(want)


def test_a_hierarchy_of_all_features_takes_moments_per_action_as_those_over_all_actions() -> None:
    units = replace(log(m=12, K=2, n=400), action=np.arange(400) % 2).units()
    hierarchy = estimate(units, "isotropic").hierarchy
    np.testing.assert_array_equal(hierarchy.task_cov, estimate(units.dense(), "isotropic").hierarchy.task_cov)
    one, other = (condition(moments, hierarchy).table() for moments in (units, units.dense()))
    np.testing.assert_array_equal(one.means, other.means)
