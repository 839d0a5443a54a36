"""The covariance of values that are not known enters the lower bounds, by the formula and by simulation."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hieropo import HierOPO, LCBPolicy, PooledOPO
from hieropo.policies.doubts import Scores, ranked

ROLES: dict[str, Any] = {"task": "store", "action": "offer", "reward": "profit"}
N = 1200


def logged() -> pa.Table:
    rng = np.random.default_rng(4)
    store, offer = rng.integers(0, 12, N), rng.integers(0, 3, N)
    price, device = rng.gamma(3.0, 2.0, N), rng.integers(0, 3, N)
    steep = np.array([0.0, 0.1, 0.6])[offer]
    profit = steep * (price - 6.0) + 0.3 * (offer == 1) + 0.5 * (device == offer) + 0.3 * rng.normal(size=N)
    return pa.table(
        {
            "store": store, "offer": np.array(["a", "b", "c"])[offer], "price": price,
            "device": np.array(["phone", "tv", "web"])[device], "profit": profit,
        }
    )  # fmt: skip


@pytest.mark.parametrize("learner", [HierOPO(task_cov="diag", uncertainty="plug-in"), HierOPO()])
def test_bounds_have_the_variance_over_the_values_of_the_log(learner: HierOPO) -> None:
    log = logged()
    learner.features = "price + device; missing='prior'"
    learner.fit(log, **ROLES)
    request = {"store": 3, "price": None, "device": "tv"}
    rows = learner.decide(pa.table({name: [value] for name, value in request.items()}), top=3).table
    features, policy = learner.features_, learner.policy_
    known = {"store": [3] * N, "price": log["price"], "device": ["tv"] * N}
    for row in rows.to_pylist():
        action = features.action_codes([row["action"]])[0]
        contexts = np.column_stack([log["price"], np.zeros(N), np.ones(N)])
        phi = features.candidates(contexts)[:, action]
        posterior = learner.posterior_.task(3)
        mean, cov = posterior.mean, posterior.cov
        of_mean, spread = phi.mean(axis=0), np.cov(phi.T, bias=True)
        variance = of_mean @ cov @ of_mean + mean @ spread @ mean + np.trace(spread @ cov)
        assert (row["mean"], row["sd"]) == pytest.approx((of_mean @ mean, variance**0.5), rel=1e-6)
        assert row["lower_bound"] == pytest.approx(row["mean"] - policy.pessimism * row["sd"], rel=1e-9)
    assert rows["lower_bound"].to_pylist() == sorted(rows["lower_bound"].to_pylist(), reverse=True)
    choice = learner.choose(request)
    assert (choice.action, choice.sd) == (rows["action"][0].as_py(), rows["sd"][0].as_py())
    assert choice.sd > 3 * max(learner.decide(pa.table(known))["sd"].to_pylist()[:1])


def test_a_careful_policy_leaves_the_action_that_the_unknown_value_decides() -> None:
    learner = PooledOPO("price; missing='prior'", pessimism=1.0).fit(logged(), **ROLES)
    bold, careful = (LCBPolicy(learner.posterior_, learner.features_, pessimism=p) for p in (0.0, 1.0))
    requests = pa.table({"store": [1, 1], "price": [None, 12.0]})
    assert learner.decide(requests)["action"].to_pylist() == [
        "a",
        "c",
    ]  # b earns more for the mean price alone
    (column,) = learner.features_.terms.columns
    context = column.unknown.mean(learner.features_.terms.terms[0].term)[None]
    assert (bold.choose(1, context[0]).action, careful.choose(1, context[0]).action) == ("b", "a")
    mask = np.array([[True, False, True]])
    only = careful.choose_many([1], context, eligible=mask, top=3)
    assert only.index.tolist() == [[0, 2, -1]]
    assert np.isnan(only.sd[0, 2])
    unseen = careful.choose_many(["new"], context)
    assert unseen.sd[0, 0] >= careful.choose_many([1], context).sd[0, 0]


def test_known_values_are_decided_to_the_bit_as_without_doubts() -> None:
    log = logged()
    plain, unknown = (
        HierOPO(f).fit(log, **ROLES) for f in ("price + device", "price + device; missing='prior'")
    )
    for name in ("action", "mean", "sd", "lower_bound"):
        assert plain.decide(log)[name].equals(unknown.decide(log)[name])


def test_bounds_that_are_equal_within_rounding_go_to_the_first() -> None:
    bound = np.array([[1.0, np.nextafter(1.0, 2.0), 0.5], [np.nan, 0.1, 0.2]])
    found = Scores(bound, bound + 1.0, np.ones((2, 3)))
    index, listed = ranked(found, np.zeros((0, 0), dtype=np.bool_), 4)
    np.testing.assert_array_equal(index, [[0, 1, 2, -1], [2, 1, -1, -1]])
    np.testing.assert_array_equal(listed.bound[1], [0.2, 0.1, np.nan, np.nan])
    masked, _ = ranked(found, np.array([[False, True, True], [False, False, False]]), 1)
    np.testing.assert_array_equal(masked, [[1], [-1]])
