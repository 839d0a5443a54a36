"""A log that leaves a coefficient open is refused, and the column or action at fault is named."""

import numpy as np
import pytest

import hieropo
from hieropo import Columns, Moments, embedding, indicator, per_action
from hieropo.features.maps import FeatureMap
from hieropo.passes.identifiability import refuse_undetermined

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
    refuse_undetermined(moments(features, columns(X)), features)


@pytest.mark.parametrize(
    ("names", "context", "said"),
    [
        (
            ["x", "z"],
            columns(X, 0 * X),
            r"'a:z', 'b:z', 'c:z': its rows identify none of them. They are 0 in every row",
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
        refuse_undetermined(moments(features, context), features)


def test_a_rare_action_is_named() -> None:
    features = per_action([*ACTIONS, "new"], ["x"])
    codes = np.where(np.arange(60) == 7, 3, CODES)
    with pytest.raises(
        hieropo.NumericalError, match=r"'new', 'new:x': .* only 1 combination .* the action 'new'"
    ):
        refuse_undetermined(moments(features, columns(X), codes), features)


def test_other_maps_have_causes_of_their_own() -> None:
    plain = Columns(("x", "y"))
    with pytest.raises(hieropo.NumericalError, match="'x', 'y' are copies"):
        refuse_undetermined(moments(plain, columns(X, X), None), plain)
    table = embedding(ACTIONS, np.ones((3, 2)))
    with pytest.raises(hieropo.NumericalError, match="table of actions"):
        refuse_undetermined(moments(table, np.empty((60, 0))), table)
    with pytest.raises(hieropo.NumericalError, match=r"fewer rows \(2\) than there are features \(3\)"):
        refuse_undetermined(moments(indicator(ACTIONS), np.empty((2, 0)), CODES[:2]), indicator(ACTIONS))
