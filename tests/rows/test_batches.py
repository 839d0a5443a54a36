import dataclasses
import json
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from hieropo.errors import InputError, LogError, SchemaError
from hieropo.rows.batches import Batch, Roles

ROLES = Roles("store", "offer", "margin", "p", "w", context=("price", "age"))
GOOD = {
    "task": ["s1", "s2", "s1"],
    "action": [1, 2, 1],
    "reward": [0.5, 1.0, -2.0],
    "context": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
    "pscore": [0.5, 1.0, 0.25],
    "weight": [1.0, 0.0, 2.0],
}


def test_a_batch_holds_normalised_read_only_arrays():
    batch = Batch(**GOOD, first_row=5, roles=ROLES)
    assert len(batch) == 3
    assert batch.task.dtype == object
    assert batch.action.dtype == np.int64
    assert batch.reward.dtype == batch.context.dtype == batch.pscore.dtype == batch.weight.dtype == np.float64
    for array in (batch.task, batch.action, batch.reward, batch.context, batch.pscore, batch.weight):
        assert not array.flags.writeable
    with pytest.raises(dataclasses.FrozenInstanceError):
        batch.reward = None


def test_arrays_of_the_caller_stay_writable():
    reward = np.array([1.0])
    Batch(["a"], None, reward, None)
    reward[0] = 2.0


def test_what_is_optional_may_be_left_out():
    batch = Batch(["a", "b"], None, [1, 0], None)
    assert batch.context.shape == (2, 0)
    assert batch.action is batch.pscore is batch.weight is None
    assert len(Batch([], [], [], np.empty((0, 2)))) == 0
    assert Batch(["a"], [1], [1.0], [[1.0, 2.0]]).roles.context == ("context[0]", "context[1]")


@pytest.mark.parametrize(
    "reward", [[True, False], [Decimal("1.5"), 2], np.float32([1, 2]), pd.Series([1, 2])]
)
def test_numbers_of_every_type_are_taken(reward):
    np.testing.assert_array_equal(Batch(["a", "b"], None, reward, None).reward, [float(r) for r in reward])


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"reward": [0.5, NAN, 1.0]}, "'margin', row 101: nan is not a reward, and is not read as 0"),
        ({"reward": [NAN, 1.0, INF]}, r"row 100: nan \(and 1 more in this batch of 3 rows\) is not a reward"),
        ({"reward": [0.5, 1.0, -INF]}, "row 102: -inf is not a reward"),
        ({"reward": [0.5, None, 1.0]}, "'margin', row 101: None of type NoneType is not a number"),
        ({"reward": ["1", "2", "3"]}, "'margin', row 100: '1' of type str is not a number"),
        ({"reward": np.array(["1", "2", "3"])}, "'margin', row 100: '1' of type str is not a number"),
        ({"reward": [1.0, "2", 3.0]}, r"'margin', row 10\d: '.*' of type str is not a number"),
        ({"reward": [1.0, pd.NA, 3.0]}, "'margin', row 101: <NA>"),
        ({"reward": [[1.0], [2.0], [3.0]]}, r"'margin' has shape \(3, 1\)"),
        ({"reward": [1.0, 2.0]}, "reward has 2 rows but task has 3"),
        ({"context": [[1.0, 2.0], [3.0, NAN], [5.0, 6.0]]}, "'age', row 101: nan is not a context"),
        ({"context": [[INF, 2.0], [3.0, NAN], [5.0, 6.0]]}, "'price', row 100: inf is not a context"),
        ({"context": [[1.0, 2.0], [3.0, None], [5.0, 6.0]]}, "'age', row 101: None"),
        ({"context": [["a", 2.0], ["b", 3.0], ["c", 4.0]]}, "'price', row 100: 'a' of type str"),
        ({"context": [[1.0], [3.0], [5.0]]}, r"shape \(3, 1\); shape \(n, 2\) is needed.*'price', 'age'"),
        ({"context": [1.0, 3.0, 5.0]}, r"shape \(3,\).*reshape"),
        ({"context": [[1.0, 2.0]]}, "context has 1 row but task has 3"),
        ({"pscore": [0.5, 0.0, 1.0]}, "'p', row 101: 0.0 is the propensity of an action that was taken"),
        ({"pscore": [0.5, -0.1, 1.0]}, "'p', row 101: -0.1 is the propensity"),
        ({"pscore": [0.5, 50.0, 1.0]}, "'p', row 101: 50.0 is a propensity above 1. Is it a percentage"),
        ({"pscore": [0.5, NAN, 1.0]}, "'p', row 101: nan is not a propensity"),
        ({"weight": [1.0, -1.0, 1.0]}, "'w', row 101: -1.0 is a negative weight"),
        ({"weight": [1.0, NAN, 1.0]}, "'w', row 101: nan is not a weight"),
        ({"weight": [1.0, INF, 1.0]}, "'w', row 101: inf is not a weight"),
        ({"weight": [1.0, 1e300, 1.0]}, "'w', row 101: 1e.300 is so large that its powers"),
        (
            {"precision": [1.0, 0.0, 1.0]},
            "'precision', row 101: 0.0 is not above 0, as a precision is: the variance",
        ),
        (
            {"precision": [1.0, NAN, 1.0]},
            "'precision', row 101: nan is not a precision: that is 1 / the relative var",
        ),
        ({"precision": [1.0, 1e300, 1.0]}, "'precision', row 101: 1e.300 is so large that its powers"),
        (
            {"sampling_weight": [1.0, -1.0, 1.0]},
            "row 101: -1.0 is not above 0, as a sampling weight is: 1 / P",
        ),
        ({"sampling_weight": [1.0, INF, 1.0]}, "row 101: inf is not a sampling weight: that is 1 / P"),
        (
            {"sampling_weight": [1.0, 1e300, 1.0]},
            "'sampling_weight', row 101: 1e.300 is so large that its powers",
        ),
        ({"task": ["a", None, "b"]}, "'store', row 101: the id is None"),
        ({"task": ["a", NAN, "b"]}, "'store', row 101: the id is nan"),
        ({"task": np.array([1.0, NAN, 2.0])}, "'store', row 101: the id is nan"),
        ({"action": ["a", "b", None]}, "'offer', row 102: the id is None"),
        ({"action": [["a"], ["b"], ["c"]]}, "'offer', row 100: the id .* cannot be hashed"),
        ({"action": [1, 2]}, "action has 2 rows but task has 3"),
    ],
)
def test_rows_that_cannot_be_used_say_where_and_why(changed, message):
    with pytest.raises(LogError, match=message):
        Batch(**{**GOOD, **changed}, first_row=100, roles=ROLES)


def test_ids_of_the_wrong_shape_are_refused():
    with pytest.raises(InputError, match=r"'store' has shape \(3, 1\)"):
        Batch(**{**GOOD, "task": np.array([[1], [2], [3]])}, roles=ROLES)


def test_roles_list_their_columns_once():
    roles = Roles("s", "a", "r", context=["x", "a"])
    assert roles.columns == ("s", "a", "r", "x")
    assert roles.context == ("x", "a")
    assert dict(Roles("s", None, "r").items()) == {"task": "s", "reward": "r"}
    assert hash(roles) == hash(Roles("s", "a", "r", context=("x", "a")))


def test_roles_come_back_from_json():
    roles = Roles("s", "a", "r", "p", "w", "v", "q", ("x",), ("region",), ("size",), "can", "day")
    assert Roles(**json.loads(json.dumps(roles.to_dict()))) == roles
    assert tuple(roles.to_dict()) == Roles.names()
    assert set(roles.columns) == {"s", "a", "r", "p", "w", "v", "q", "x", "region", "size", "can", "day"}


def test_levels_may_end_in_the_task():
    assert Roles("s", "a", "r", levels=("region", "s")) == Roles("s", "a", "r", levels=("region",))


def test_the_time_may_be_a_task_a_level_or_a_context_too():
    roles = Roles("day", "a", "r", context=("hour",), time="day")
    assert roles.columns == ("day", "a", "r", "hour")
    Roles("s", "a", "r", context=("hour",), time="hour")
    Roles("s", "a", "r", levels=("week",), time="week")
    for clash in ("a", "r", "p"):
        with pytest.raises(SchemaError, match="two roles"):
            Roles("s", "a", "r", "p", time=clash)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "a", "action": "a", "reward": "r"}, "'a' is given two roles, task and action"),
        (
            {"task": "t", "action": "a", "reward": "r", "weight": "r"},
            "reward and weight.*: name a column of counts",
        ),
        (
            {"task": "s", "action": "a", "reward": "r", "context": ("r",)},
            "reward and context.*before the action",
        ),
        ({"task": "s", "action": "a", "reward": "r", "pscore": "p", "weight": "p"}, "1 / pscore"),
        ({"task": "s", "action": "a", "reward": "r", "context": "age"}, r"write context=\['age'\]"),
        ({"task": "s", "action": "a", "reward": "r", "context": ("x", "x")}, "'x' is named twice"),
        ({"task": "t", "action": "a", "reward": None}, "reward needs a column"),
        ({"task": None, "action": "a", "reward": "r", "levels": ("l",)}, "no column of tasks is named"),
        ({"task": "s", "action": "a", "reward": 3}, "reward is given as 3"),
    ],
)
def test_roles_that_exclude_each_other(arguments, message):
    with pytest.raises(SchemaError, match=message):
        Roles(**arguments)
