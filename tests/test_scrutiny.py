"""What a log cannot answer is said in the words of its columns, actions and features."""

from unittest import mock

import numpy as np
import pytest

import hieropo
from hieropo import Columns, Moments, embedding, indicator, per_action, scrutiny
from hieropo.core.features import FeatureMap
from hieropo.core.logs import Batch, Roles

RNG = np.random.default_rng(0)
X = RNG.normal(3.0, 1.0, 60)
ACTIONS = ["a", "b", "c"]
CODES = np.arange(60) % 3


def moments(features: FeatureMap, context: np.ndarray, codes: np.ndarray | None = CODES) -> Moments:
    return Moments.from_arrays(
        np.arange(len(context)) % 4, features.phi(context, codes), RNG.normal(size=len(context))
    )


def columns(*each: np.ndarray) -> np.ndarray:
    return np.column_stack(each)


def test_a_log_that_determines_everything_is_let_through() -> None:
    features = per_action(ACTIONS, ["x"])
    scrutiny.refuse_undetermined(moments(features, columns(X)), features)


@pytest.mark.parametrize(
    ("names", "context", "said"),
    [
        (
            ["x", "z"],
            columns(X, 0 * X),
            r"'a:z', 'b:z', 'c:z': .* none of them can be told. They are 0 in every row",
        ),
        (["x", "one"], columns(X, 0 * X + 1), "Column 'one' is constant"),
        (["x", "far"], columns(X, X + 1e10), "Column 'far' is constant, or so far from 0"),
        (["x", "twice"], columns(X, 2 * X), "The columns 'x', 'twice' are copies or sums of each other"),
        (
            ["x", "A", "B"],
            columns(X, X > 3, X <= 3),
            r"\(9 in all\).*A sum of the columns 'A', 'B' is constant",
        ),
    ],
)
def test_columns_that_cannot_be_told_apart_are_named(
    names: list[str], context: np.ndarray, said: str
) -> None:
    features = per_action(ACTIONS, names)
    with pytest.raises(hieropo.NumericalError, match=said):
        scrutiny.refuse_undetermined(moments(features, context), features)


def test_a_rare_action_is_named() -> None:
    features = per_action([*ACTIONS, "new"], ["x"])
    codes = np.where(np.arange(60) == 7, 3, CODES)
    with pytest.raises(
        hieropo.NumericalError, match=r"'new', 'new:x': .* only 1 combination .* the action 'new'"
    ):
        scrutiny.refuse_undetermined(moments(features, columns(X), codes), features)


def test_other_maps_have_causes_of_their_own() -> None:
    plain = Columns(("x", "y"))
    with pytest.raises(hieropo.NumericalError, match="'x', 'y' are copies"):
        scrutiny.refuse_undetermined(moments(plain, columns(X, X), None), plain)
    table = embedding(ACTIONS, np.ones((3, 2)))
    with pytest.raises(hieropo.NumericalError, match="table of actions"):
        scrutiny.refuse_undetermined(moments(table, np.empty((60, 0))), table)
    with pytest.raises(hieropo.NumericalError, match=r"fewer rows \(2\) than there are features \(3\)"):
        scrutiny.refuse_undetermined(
            moments(indicator(ACTIONS), np.empty((2, 0)), CODES[:2]), indicator(ACTIONS)
        )


def test_what_memory_cannot_hold_is_refused_before_it_is_taken() -> None:
    scrutiny.refuse_too_large(1000, 10)
    with (
        mock.patch.object(scrutiny, "_memory", return_value=2.0**30),
        pytest.raises(hieropo.InputError) as caught,
    ):
        scrutiny.refuse_too_large(900, 1700)
    assert "1,700 features for 900 tasks take at least 29.2 GiB of memory, and this machine has 1.0" in str(
        caught.value
    )


def test_a_value_whose_square_overflows_is_found() -> None:
    roles = Roles("task", "action", "reward", context=("x",))
    batch = Batch(["s"] * 3, ["a"] * 3, [1.0, 2.0, 3.0], [[0.0], [-1e200], [1.0]], first_row=40, roles=roles)
    with pytest.raises(hieropo.LogError, match=r"Column 'x', row 41: -1e\+200"):
        scrutiny.refuse_huge(batch)


@pytest.mark.parametrize(
    ("actions", "rows", "said"),
    [(["a"], 500, "holds one action, 'a'"), (list(range(300)), 500, "300 different actions in 500 rows")],
)
def test_actions_that_leave_little_to_learn_are_warned_about(
    actions: list[object], rows: int, said: str
) -> None:
    with pytest.warns(hieropo.HieropoWarning, match=said) as caught:
        scrutiny.warn_of_actions("offer", actions, rows)
    assert caught[0].filename == __file__


def test_common_actions_are_not() -> None:
    scrutiny.warn_of_actions("offer", ACTIONS, 500)
    scrutiny.warn_of_actions("offer", ACTIONS, 4)


@pytest.mark.parametrize(
    ("known", "task"),
    [
        ("s", "t"),
        (np.int64(1), 2),
        (np.int64(1), np.uint64(2)),
        (np.datetime64("2026-01-01"), np.datetime64("2026-01-02")),
    ],
)
def test_ids_of_one_type_are_no_reason_to_warn(known: object, task: object) -> None:
    assert scrutiny.other_type(known, task, "request") is None
