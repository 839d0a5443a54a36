"""Moments of units, one for each action of a task: they are the moments of the whole map, in fewer numbers."""

from typing import Any

import numpy as np
import pytest
from unit_logs import log

from hieropo.errors import InputError, LogError, MismatchError
from hieropo.features.maps import embedding, indicator, per_action
from hieropo.moments.units import UnitAccumulator, UnitMoments


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

    def moments() -> UnitMoments:
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
    with pytest.raises(InputError, match="units do not fit"):
        UnitMoments(one.keys, 5, one.units)
