"""Learners as scikit-learn estimators: frames and rewards, clones, searches, pipelines, and its own checks."""

import warnings
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pyarrow as pa
import pytest
from command_line import make_log
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError, SkipTestWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import check_estimator

import hieropo
from hieropo import FlatOPO, HierOPO, InputError, PooledOPO, SchemaError

LOG = make_log(1200)
FRAME = LOG.to_pandas()
X, Y = FRAME.drop(columns="profit"), FRAME["profit"]
ROLES = {"task": "store", "action": "offer", "pscore": "chance", "context": ["visits"]}


def learner(**settings: Any) -> HierOPO:
    return HierOPO(roles=ROLES, logging="random", **settings)


@pytest.mark.slow
def test_a_frame_and_rewards_are_the_log() -> None:
    first = HierOPO(logging="random").fit(LOG, reward="profit", **ROLES)
    for rewards in (Y, Y.to_numpy(), Y.tolist(), pa.array(Y)):
        second = learner().fit(X, rewards)
        assert second.policy_.choose(3, [2.0]) == first.policy_.choose(3, [2.0])
    assert learner().fit(X, Y).roles_.reward == "profit"
    assert learner().fit(X, Y.to_numpy()).roles_.reward == "reward"
    assert learner().fit(FRAME, Y).moments_.n_rows == 1200
    assert learner().fit(LOG, reward="profit").roles_ == first.roles_
    assert learner().fit(X, Y).partial_fit(X, Y).moments_.n_rows == 2400
    assert learner().fit(X, Y).predict(X).tolist() == first.predict(FRAME).tolist()


def test_columns_named_in_a_fit_come_first() -> None:
    frame = FRAME.assign(age=np.arange(len(FRAME)) % 7)
    assert learner().fit(frame, Y, context=["age"]).roles_.context == ("age",)


@pytest.mark.parametrize("kind", [HierOPO, FlatOPO, PooledOPO])
def test_clone_and_parameters(kind: type[HierOPO]) -> None:
    original = kind(roles=ROLES, pessimism=0.3)
    copy = clone(original)
    assert copy.get_params()["roles"] == ROLES
    assert copy.set_params(pessimism=0.5).pessimism == 0.5
    assert get_tags(copy).estimator_type is None
    assert not copy.__sklearn_is_fitted__()
    assert copy.fit(X, Y).__sklearn_is_fitted__()


@pytest.mark.slow
def test_the_score_is_the_doubly_robust_gain() -> None:
    fitted = learner().fit(X, Y)
    assert fitted.score(X, Y) == fitted.evaluate(FRAME).estimate("DR").gain  # cross-fitted
    later = make_log(900).to_pandas().iloc[100:]
    assert fitted.score(later) == fitted.evaluate(later).estimate("DR").gain
    assert 0.3 < fitted.score(X, Y) < 2.0


def test_a_score_without_overlap_says_why() -> None:
    alone = X.assign(offer="gift")
    fitted = learner().fit(X, Y)
    with pytest.raises(InputError, match=r"DR|estimate"):
        fitted.score(alone.assign(chance=1.0), Y)


@pytest.mark.slow
def test_a_search_finds_the_better_setting() -> None:
    search = GridSearchCV(learner(), {"pessimism": [0.1, -60.0]}, cv=3, error_score="raise")
    search.fit(X, Y)
    assert search.best_params_ == {"pessimism": 0.1}
    assert search.best_estimator_.predict(X).tolist() == learner().fit(X, Y).predict(X).tolist()
    assert search.score(X, Y) == search.best_estimator_.score(X, Y)
    assert (cross_val_score(learner(), X, Y, cv=3) > 0).all()


@pytest.mark.slow
def test_pipelines_hand_frames_on() -> None:
    scaler = ColumnTransformer(
        [("scale", StandardScaler(), ["visits"])], remainder="passthrough", verbose_feature_names_out=False
    )
    pipeline = make_pipeline(scaler, learner()).set_output(transform="pandas")
    pipeline.fit(X, Y)
    assert pipeline.predict(X).tolist() == learner().fit(X, Y).predict(X).tolist()
    assert pipeline.score(X, Y) == pytest.approx(learner().fit(X, Y).score(X, Y), rel=1e-6)
    arrays = Pipeline([("scale", StandardScaler()), ("learn", learner())])
    with pytest.raises(InputError, match=r"X is an array of shape \(1200, 1\).*set_output"):
        arrays.fit(X[["visits"]], Y)


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ({"tusk": "store"}, "names 'tusk', which is no role"),
        (["store"], "is no mapping"),
        ({"task": "shop", "action": "offer"}, r"Column 'shop' \(role task\)"),
    ],
)
def test_roles_that_cannot_be_used(roles: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        HierOPO(roles=roles).fit(X, Y)


def test_rewards_that_cannot_be_used() -> None:
    with pytest.raises(InputError, match=r"y has the shape \(10,\), and the pandas DataFrame has 1,200 rows"):
        learner().fit(X, Y[:10])
    with pytest.raises(SchemaError, match="has a column of rewards 'profit' with other values"):
        learner().fit(FRAME, Y + 1)
    with pytest.raises(InputError, match=r"X is an array of shape \(3, 2\)"):
        HierOPO().fit(np.zeros((3, 2)), [1, 2, 3])


NO_ARRAYS = "an array has no names of columns, so that no column can be the task or the action: fit says so"
EXPECTED = {
    "check_estimators_unfitted": "hieropo does not need scikit-learn, so that it raises an error of its own",
    **dict.fromkeys(
        [
            "check_complex_data", "check_dict_unchanged", "check_dont_overwrite_parameters", "check_dtype_object",
            "check_estimator_sparse_array", "check_estimator_sparse_matrix", "check_estimator_sparse_tag",
            "check_estimators_dtypes", "check_estimators_empty_data_messages", "check_estimators_fit_returns_self",
            "check_estimators_nan_inf", "check_estimators_overwrite_params", "check_estimators_pickle",
            "check_f_contiguous_array_estimator", "check_fit2d_1feature", "check_fit2d_1sample",
            "check_fit2d_predict1d", "check_fit_check_is_fitted", "check_fit_idempotent", "check_fit_score_takes_y",
            "check_methods_sample_order_invariance", "check_methods_subset_invariance", "check_n_features_in",
            "check_n_features_in_after_fitting", "check_pipeline_consistency", "check_positive_only_tag_during_fit",
            "check_readonly_memmap_input",
        ],
        NO_ARRAYS,
    ),
}  # fmt: skip


class Arrays(HierOPO):
    """HierOPO that claims to take arrays, so that no check of scikit-learn is skipped."""

    __init__ = HierOPO.__init__

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        return tags


def test_checks_of_scikit_learn_fail_only_where_they_must() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkipTestWarning)
        warnings.filterwarnings("ignore", "Estimator Arrays does not inherit")  # scikit-learn is not needed
        results = check_estimator(Arrays(), expected_failed_checks=EXPECTED)
    failed = {result["check_name"]: result["exception"] for result in results if result["status"] == "xfail"}
    assert set(failed) == set(EXPECTED)
    of_arrays = [name for name, error in failed.items() if isinstance(error, InputError)]
    assert all("X is an array of shape" in str(failed[name]) for name in of_arrays)
    assert len(of_arrays) > 15
    assert sum(result["status"] == "passed" for result in results) >= 10


def test_an_estimator_goes_to_other_processes_unfitted_and_fitted(tmp_path: Path) -> None:
    fitted = learner().fit(X, Y)
    for estimator in (fitted, learner()):
        joblib.dump(estimator, tmp_path / "estimator")
        again = joblib.load(tmp_path / "estimator")
        assert again.get_params() == estimator.get_params()
    joblib.dump(fitted, tmp_path / "estimator")
    assert joblib.load(tmp_path / "estimator").predict(X).tolist() == fitted.predict(X).tolist()


@pytest.mark.slow
def test_two_fits_are_equal_and_leave_settings_alone() -> None:
    estimator = learner()
    before = estimator.get_params()
    first = estimator.fit(X, Y).predict(X).tolist()
    assert estimator.fit(X, Y).predict(X).tolist() == first
    assert estimator.get_params() == before


def test_a_learner_before_its_fit_raises_as_those_of_scikit_learn_do() -> None:
    with pytest.raises(hieropo.NotFittedError, match="not fitted yet") as raised:
        learner().predict(X)
    assert {hieropo.InputError, *NotFittedError.__bases__} <= set(type(raised.value).__mro__)
