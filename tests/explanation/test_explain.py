"""Explanations: numbers are those of the policy, turns turn the choice, and shares add to what they split."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from command_line import answers, refuses

from hieropo import (
    Columns,
    HierOPO,
    LCBPolicy,
    LogMoments,
    MismatchError,
    UnknownActionError,
    UnknownTaskError,
    load_policy,
    save_policy,
)
from hieropo.errors import InputError
from hieropo.explanation import Explanation, explain
from hieropo.logs.encoding import encoded_rows
from hieropo.model.attribution import attribution
from hieropo.policies.gating import GatedPolicy

COLUMNS: dict[str, Any] = {"task": "store", "action": "offer", "reward": "profit", "context": ["visits"]}


@cache
def log(rows: int = 600) -> pa.Table:
    """Gifts pay from three visits on; in store 7, of few rows, coupons seem to pay."""
    rng = np.random.default_rng(3)
    store, offer, visits = rng.integers(0, 7, rows), rng.integers(0, 3, rows), rng.uniform(0, 6, rows)
    store[:12], offer[:12] = 7, np.arange(12) % 3
    worth = (
        np.array([1.0, 0.0, 0.0])[offer]
        + (offer == 2) * visits / 3
        + 0.3 * rng.normal(size=(8, 3))[store, offer]
    )
    worth[:12] += 2.0 * (offer[:12] == 1)
    names = np.array(["none", "coupon", "gift"])[offer]
    return pa.table(
        {"store": store, "offer": names, "visits": visits, "profit": worth + 0.5 * rng.normal(size=rows)}
    )


@cache
def learner(**settings: Any) -> HierOPO:
    return HierOPO(logging="random", **settings).fit(log(), **COLUMNS)


def at(task: int = 2, visits: float = 4.0) -> Explanation:
    return learner().explain(task, {"visits": visits})


def test_numbers_are_those_of_the_policy() -> None:
    found, choice = at(), learner().policy_.choose(2, [4.0])
    assert found.choice.action == choice.action == "gift"
    assert (found.choice.mean, found.choice.sd, found.choice.lower_bound) == (
        choice.mean, choice.sd, choice.lower_bound,
    )  # fmt: skip
    bounds = [action.lower_bound for action in found.actions]
    assert bounds == sorted(bounds, reverse=True)
    assert (found.rows, found.rows + found.other_rows) == (log()["store"].to_pylist().count(2), 600)
    assert learner().explain(2, [4.0]).to_dict() == found.to_dict()


def test_shares_add_to_means_and_coefficients_to_the_mean_of_the_choice() -> None:
    found = at()
    assert found.lead is not None
    for shares in (found.mean, found.lead, *found.coefficients):
        assert shares.prior + shares.own + shares.others == pytest.approx(shares.mean, rel=1e-10)
    assert found.lead.mean == pytest.approx(found.actions[0].mean - found.actions[1].mean)
    of_gift = {one.name: one.mean for one in found.coefficients}
    assert found.mean.mean == pytest.approx(of_gift["gift"] + 4.0 * of_gift["gift:visits"])
    split = attribution(learner().posterior_, 2, gift()[None])
    for one in (found.own, *found.influential):
        assert one.share == pytest.approx(split.tasks[0, one.task], rel=1e-9)


def gift() -> Any:
    features = learner().features_
    return features.candidates(np.array([[4.0]]))[0][list(features.actions or ()).index("gift")]


def test_a_turn_turns_the_choice() -> None:
    found, policy = at(), learner().policy_
    (turn,) = found.turns
    assert (turn.column, turn.above) == ("visits", False)
    sides = [policy.choose(2, [turn.value + step]).action for step in (-1e-6, 1e-6)]
    assert sides == [turn.choice, "gift"]
    assert f"{turn.choice} would be chosen at visits below" in str(found)


def test_the_answer_without_its_own_rows_is_that_of_the_others() -> None:
    found = at(7, 1.0)
    assert found.choice.action == "coupon"
    assert found.own.choice == "none"
    assert "Without its own 12 rows the choice would then be none" in " ".join(str(found).split())


def test_a_gate_and_eligible_actions_are_respected() -> None:
    policy = learner().policy_
    gated = GatedPolicy(policy, np.where(np.arange(8) == 2, 0.5, 0.0), 0.05)
    held = explain(learner().posterior_, gated, 2, {"visits": 4.0})
    assert held.kept
    assert "leaves this task to the incumbent" in str(held)
    assert not at().kept
    some = learner().explain(2, {"visits": 4.0}, eligible=["none", "coupon"])
    assert {action.action for action in some.actions} == {"none", "coupon"}
    alone = learner().explain(2, {"visits": 4.0}, eligible=["coupon"])
    assert (alone.rival, alone.lead, alone.better, alone.turning()) == (None, None, None, ())
    assert "coupon" in str(alone)
    with pytest.raises(UnknownActionError):
        learner().explain(2, eligible=["cash"])


def test_text_in_the_context_is_explained_without_turns() -> None:
    device = np.where(np.asarray(log()["visits"]) > 3, "phone", "web")
    rows = log().append_column("device", pa.array(device))
    fitted = HierOPO(logging="random").fit(rows, **{**COLUMNS, "context": ["device"]})
    explanation = fitted.explain(2, {"device": "phone"})
    design = encoded_rows(fitted.features_, [{"device": "phone"}])[0]
    assert explanation.choice.action == fitted.policy_.choose(2, design).action
    assert explanation.context == {"device": "phone"}
    assert explanation.turns == ()


def test_candidates_that_columns_describe_are_compared() -> None:
    rows = log().append_column("price", pa.array(np.random.default_rng(5).uniform(1, 2, log().num_rows)))
    fitted = HierOPO(Columns(("visits", "price")), logging="random", uncertainty="first-order").fit(
        rows, task="store", reward="profit"
    )
    found = fitted.explain(2, [[4.0, 1.0], [1.0, 1.5]])
    assert {action.action for action in found.actions} == {"candidate 0", "candidate 1"}
    assert found.choice.mean == pytest.approx(max(action.mean for action in found.actions))
    with pytest.raises(InputError, match="Give a number for each of the columns"):
        fitted.explain(2)


def test_what_cannot_be_explained_is_refused() -> None:
    with pytest.raises(UnknownTaskError, match="answer of the population"):
        learner().explain(99)
    with pytest.raises(InputError, match="reads the context columns"):
        learner().explain(2, {"price": 1.0})
    with pytest.raises(InputError, match="has shape"):
        learner().explain(2, [1.0, 2.0])
    with pytest.raises(InputError, match="not fitted"):
        HierOPO().explain(2)
    other = HierOPO(logging="random").fit(log().slice(100), **COLUMNS)
    with pytest.raises(MismatchError, match="learned from other rows"):
        explain(other.posterior_, learner().policy_, 2)
    with pytest.raises(InputError, match="no feature map"):
        explain(learner().posterior_, LCBPolicy(learner().posterior_), 2)


def test_names_are_escaped_in_html() -> None:
    rows = log().set_column(0, "store", pa.array([f"<b>{k}" for k in log()["store"].to_pylist()]))
    fitted = HierOPO(logging="random").fit(rows, **COLUMNS)
    written = fitted.explain("<b>2")._repr_html_()
    assert "&lt;b&gt;2" in written
    assert "<b>2" not in written
    assert "<b>" not in fitted._repr_html_()
    assert "not fitted" not in fitted._repr_html_()
    assert HierOPO()._repr_html_().startswith("<pre>")


def test_the_command_gives_the_same(tmp_path: Path) -> None:
    policy = learner().save(tmp_path / "policy")
    printed = answers("explain", policy, "--task", 2, "--at", "visits=4", "--html", tmp_path / "why.html")
    assert printed.startswith(str(at()))
    assert "<svg" in (tmp_path / "why.html").read_text()
    made = json.loads(answers("explain", policy, "--task", 2, "--at", "visits=4", "--json"))
    assert made["mean"] == at().to_dict()["mean"]
    assert (
        json.loads(answers("explain", policy, "--task", 2, "--json"))["context"]
        == learner().explain(2).context
    )
    assert "not among the 8 tasks" in refuses(1, "explain", policy, "--task", "nope")
    assert "Give visits once" in refuses(
        2, "explain", policy, "--task", 2, "--at", "visits=1", "--at", "visits=2"
    )


def test_a_policy_without_moments_takes_them_from_elsewhere(tmp_path: Path) -> None:
    fitted, rows = learner(), tmp_path / "log.parquet"
    folder = save_policy(
        fitted.policy_, tmp_path / "policy", hierarchy=fitted.hierarchy_,
        provenance={"columns": fitted.roles_.to_dict()},
    )  # fmt: skip
    assert load_policy(folder).moments() is None
    assert "Give the moments" in refuses(1, "explain", folder, "--task", 2)
    LogMoments.of(log(), **COLUMNS).save(tmp_path / "moments")
    import pyarrow.parquet as pq

    pq.write_table(log(), rows)
    want = answers("explain", fitted.save(tmp_path / "whole"), "--task", 2)
    for given in (tmp_path / "moments", rows):
        assert answers("explain", folder, "--task", 2, "--moments", given) == want
    bare = save_policy(fitted.policy_, tmp_path / "bare")
    assert "without its hierarchy" in refuses(1, "explain", bare, "--task", 2)


def test_a_context_of_text_is_told_by_the_columns_of_the_user(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    n = 400
    device = rng.choice(["phone", "desktop"], n)
    rows = pa.table(
        {
            "store": rng.integers(8, size=n), "offer": rng.choice(["a", "b"], n), "device": device,
            "price": rng.gamma(2.0, 3.0, n), "sales": rng.standard_normal(n) + (device == "phone"),
        }
    )  # fmt: skip
    fitted = HierOPO().fit(rows, task="store", action="offer", reward="sales", context=["device", "price"])
    explanation = fitted.explain(3, {"device": "phone", "price": 2})
    assert "at device = phone, price = 2 the choice is" in " ".join(str(explanation).split())
    policy = fitted.save(tmp_path / "policy")
    printed = answers("explain", policy, "--task", 3, "--at", "device=phone", "--at", "price=2")
    assert printed.split() == str(explanation).split()
    assert "reads the context columns ['device', 'price']" in refuses(
        2, "explain", policy, "--task", 3, "--at", "device=phone"
    )
