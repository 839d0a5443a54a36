"""What a log cannot be asked is said in the words of its columns, actions and ids."""

from unittest import mock

import numpy as np
import pytest

import hieropo
from hieropo import Columns, Moments, indicator, per_action
from hieropo.features.maps import FeatureMap
from hieropo.passes import feasibility as scrutiny

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


def test_a_column_far_from_where_it_is_measured_is_warned_about() -> None:
    features = per_action(ACTIONS, ["x", "y"])
    scrutiny.warn_of_far(moments(features, columns(X, 0 * X + 1.0)), features, "profit")
    far = columns(X, X + 2000)
    with pytest.warns(
        hieropo.HieropoWarning, match="Column 'y' lies so far from the origin of the feature map"
    ):
        scrutiny.warn_of_far(moments(features, far), features, "profit")
    near = features.recentred((0.0, 2000.0))
    scrutiny.warn_of_far(moments(near, far), near, "profit")
    with pytest.warns(hieropo.HieropoWarning, match="Column 'y'"):
        scrutiny.warn_of_far(moments(near, columns(X, X)), near, "profit")


def test_without_an_intercept_a_column_is_far_where_it_is_another_one_but_for_a_little() -> None:
    features, other = Columns(("x", "y")), RNG.normal(3.0, 1.0, 60)
    scrutiny.warn_of_far(moments(features, columns(X, other + 2000), None), features, "profit")
    with pytest.warns(hieropo.HieropoWarning, match="Column 'y'"):
        scrutiny.warn_of_far(moments(features, columns(X + 2000, other + 4000), None), features, "profit")


def test_a_reward_far_from_zero_is_warned_about() -> None:
    features = indicator(ACTIONS)
    far = Moments.from_arrays(["s"] * 60, features.phi(None, CODES), X + 1e7)
    with pytest.warns(hieropo.HieropoWarning, match=r"Column 'profit' lies around 1e\+07"):
        scrutiny.warn_of_far(far, features, "profit")


def test_what_memory_cannot_hold_is_refused_before_it_is_taken() -> None:
    scrutiny.refuse_too_large(1000, 10)
    with (
        mock.patch.object(scrutiny, "_memory", return_value=2.0**30),
        pytest.raises(hieropo.InputError) as caught,
    ):
        scrutiny.refuse_too_large(900, 1700)
    assert "1,700 features for 900 tasks need at least 29.2 GiB of memory, and this machine has 1.0" in str(
        caught.value
    )


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
    assert scrutiny.id_type_warning(known, task, "request") is None
