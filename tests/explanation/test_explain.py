"""Explanations: numbers are those of the policy, turns turn the choice, and shares add to what they split."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from command_line import answers, refuses

from hieropo import (
    Columns,
    Hierarchy,
    HierOPO,
    HieropoWarning,
    LCBPolicy,
    LogError,
    LogMoments,
    MismatchError,
    UnknownActionError,
    UnknownTaskError,
    load_policy,
    save_policy,
)
from hieropo.errors import InputError
from hieropo.estimation.conditioning import condition_learned
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
    """Learn from the log; by one spread of the tasks, whose posterior is linear in the rewards."""
    return HierOPO(logging="random", spreads="one", **settings).fit(log(), **COLUMNS)


def at(task: int = 2, visits: float = 4.0) -> Explanation:
    return learner().explain(task, {"visits": visits})


@pytest.mark.slow
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


def test_shares_add_to_means_where_tasks_have_different_spreads() -> None:
    rng = np.random.default_rng(0)
    store, offer = np.repeat(np.arange(30), 25), rng.integers(0, 3, 750)
    effects = np.where(np.arange(30) < 2, 4.0, 0.15)[:, None] * rng.normal(size=(30, 3)) + 50.0
    rows = pa.table({"store": store, "offer": offer, "profit": effects[store, offer] + rng.normal(size=750)})
    fitted = HierOPO(logging="random").fit(rows, task="store", action="offer", reward="profit")
    assert fitted.hierarchy_.mixed_spreads
    for task in (0, 1, 17):
        found = fitted.explain(task)
        assert found.lead is not None
        for shares in (found.mean, found.lead, *found.coefficients):
            assert shares.prior == 0.0
            assert shares.own + shares.others == pytest.approx(shares.mean, rel=1e-7, abs=1e-7)


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


@pytest.mark.slow
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


def described() -> pa.Table:
    """The log with a category in which gifts pay on the phone alone, and with amounts, of which few are missing."""
    rng, visits = np.random.default_rng(11), np.asarray(log()["visits"])
    device = rng.permutation(np.array(["phone", "web", "desk"] * 200))
    profit = np.asarray(log()["profit"]) + 2.0 * (np.asarray(log()["offer"]) == "gift") * (device == "phone")
    amount = pa.array(np.exp(visits / 2), mask=np.arange(600) < 60)
    rows = log().set_column(3, "profit", pa.array(profit)).append_column("device", pa.array(device))
    return rows.append_column("amount", amount)


@pytest.mark.slow
@pytest.mark.parametrize("amount", ["log(amount)", "spline(amount, 3)", "amount"])
def test_columns_that_terms_code_turn_by_their_own_values(amount: str) -> None:
    fitted = HierOPO(features=f"device + {amount}", logging="random").fit(
        described(), task="store", action="offer", reward="profit"
    )
    policy, at_phone = fitted.policy_, {"device": "phone", "amount": 2.5}

    def choice(**changed: Any) -> Any:
        return policy.choose(2, encoded_rows(fitted.features_, [{**at_phone, **changed}])[0]).action

    explanation = fitted.explain(2, at_phone)
    assert explanation.choice.action == choice() == "gift"
    by_level = [turn for turn in explanation.turns if turn.column == "device"]
    want = [level for level in ("desk", "web") if choice(device=level) != "gift"]
    assert want
    assert [turn.value for turn in by_level] == want
    assert all(turn.choice == choice(device=turn.value) and turn.above is None for turn in by_level)
    sentence = next(line for line in explanation.turning() if "where device is" in line)
    assert sentence.startswith(f"{by_level[0].choice} would be chosen where device is {want[0]}")
    at_web = fitted.explain(2, {**at_phone, "device": "web"})
    (number,) = [turn for turn in at_web.turns if turn.column == "amount" and turn.above is not None]
    assert number.above
    sides = [choice(device="web", amount=number.value * step) for step in (1 - 1e-6, 1 + 1e-6)]
    assert sides == [at_web.choice.action, number.choice]
    json.dumps(explanation.to_dict())


def test_the_mean_context_of_coded_columns_has_no_turns() -> None:
    fitted = HierOPO(logging="random").fit(described(), **{**COLUMNS, "context": ["device"]})
    explanation = fitted.explain(2, {"device": "phone"})
    design = encoded_rows(fitted.features_, [{"device": "phone"}])[0]
    assert explanation.choice.action == fitted.policy_.choose(2, design).action
    assert explanation.context == {"device": "phone"}
    assert fitted.explain(2).turns == ()


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
    with pytest.raises(UnknownTaskError, match="of type str"):
        learner().explain("2")
    with pytest.raises(UnknownTaskError, match=r"moments\.covering"):
        explain(learner().posterior_, learner().policy_, 99)
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


@pytest.mark.slow
def test_a_task_without_rows_is_explained_by_the_others() -> None:
    new, choice = learner().explain(99, {"visits": 4.0}), learner().policy_.choose(99, [4.0])
    assert (new.choice.action, new.choice.mean) == (choice.action, pytest.approx(choice.mean, rel=1e-9))
    assert (new.rows, new.other_rows, new.mean.own, new.own.share) == (0.0, 600.0, 0.0, 0.0)
    assert new.mean.others == pytest.approx(new.mean.mean, rel=1e-10)
    assert str(new).startswith("Task 99 has no rows in the log. It gets the answer of a new task")
    assert "own 0 rows" not in str(new)
    rows = log().append_column("region", pa.array([f"r{k % 2}" for k in log()["store"].to_pylist()]))
    grouped = HierOPO(logging="random").fit(rows, **COLUMNS, levels=["region"])
    with pytest.raises(UnknownTaskError, match="groups or metadata"):
        grouped.explain(99, {"visits": 4.0})


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"task_cov": "diag", "uncertainty": "first-order"}])
def test_influential_rows_are_those_without_which_a_posterior_differs_most(settings: dict[str, Any]) -> None:
    fitted = learner(**settings)
    explanation = fitted.explain(2, {"visits": 4.0}, log=log())
    assert (explanation.rows_read, explanation.tasks_read) == (600, 8)
    one, *_ = explanation.influential_rows
    changes = [abs(row.change) for row in explanation.influential_rows]
    assert changes == sorted(changes, reverse=True)
    values = log().slice(one.row, 1).to_pylist()[0]
    assert (one.task, one.action, one.reward) == (values["store"], values["offer"], values["profit"])
    rest = pa.concat_tables([log().slice(0, one.row), log().slice(one.row + 1)])
    moments = LogMoments.of(rest, features=fitted.features_, **COLUMNS).for_learning(
        per_action=fitted.moments_.per_action
    )
    posterior = condition_learned(
        moments.around(fitted.moments_.offset), fitted.hierarchy_, fitted._hyper_uncertainty
    )
    choice, rival = (action.action for action in explanation.actions[:2])
    actions, phi = list(fitted.features_.actions or ()), fitted.features_.candidates(np.array([[4.0]]))[0]
    mean = sum(
        weight * part.central().means(slice(2, 3))[0]
        for weight, part in zip(posterior.weights, posterior.parts(), strict=True)
    )
    means = dict(zip(actions, phi @ mean, strict=True))
    assert one.mean == pytest.approx(means[choice], rel=1e-9)
    lead = explanation.actions[0].mean - explanation.actions[1].mean
    assert one.change == pytest.approx(means[choice] - means[rival] - lead, rel=1e-6)
    assert f"{one.row:,}  " in str(explanation)


def test_a_single_row_can_turn_the_choice() -> None:
    few = pa.table(
        {"store": [0, 0, 1, 1, 1], "offer": ["a", "b", "a", "b", "b"], "profit": [9.0, 5.0, 1.0, 2.0, 3.0]}
    )
    columns = {"task": "store", "action": "offer", "reward": "profit"}
    known = Hierarchy(None, 4.0 * np.eye(2), 0.1)
    fitted = HierOPO(known=known, logging="random", pessimism=0.1).fit(few, **columns)
    explanation = fitted.explain(0, log=few)
    assert explanation.choice.action == "a"
    assert (explanation.influential_rows[0].row, explanation.influential_rows[0].choice) == (0, "b")
    assert (
        "Without row 0 of the log, counted from 0 (task 0, a, reward 9), the choice would be b."
        in " ".join(explanation.turning())
    )


def weighed() -> pa.Table:
    rng = np.random.default_rng(8)
    table = log().append_column("n", pa.array(rng.integers(0, 4, 600)))
    return table.append_column("sure", pa.array(rng.uniform(1, 3, 600)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("roles", "task_cov"),
    [
        ({"weight": "n", "precision": "sure"}, "block"),
        ({"weight": "n", "precision": "sure"}, None),
        ({"sampling_weight": "sure"}, "block"),
        ({"sampling_weight": "sure"}, None),
    ],
)
def test_rows_that_are_weighed_are_left_out_with_their_weight(roles: dict[str, str], task_cov: Any) -> None:
    settings: dict[str, Any] = {} if task_cov is None else {"task_cov": task_cov, "uncertainty": "plug-in"}
    fitted = HierOPO(logging="random", **settings).fit(weighed(), **COLUMNS, **roles)
    explanation = fitted.explain(2, {"visits": 4.0}, log=weighed())
    assert explanation.rows_read == int(np.count_nonzero(weighed()["n"])) if "weight" in roles else 600
    assert np.isfinite([row.lead for row in explanation.influential_rows]).all()


@pytest.mark.slow
def test_rows_of_terms_and_of_candidates_are_left_out(tmp_path: Path) -> None:
    device = np.where(np.asarray(log()["visits"]) > 3, "phone", "web")
    rows = log().append_column("device", pa.array(device))
    path = tmp_path / "log.csv"
    pa_csv.write_csv(rows, path)
    with path.open("a") as file:
        file.write("1,gift,3,n/a,web\n")
    with pytest.warns(HieropoWarning, match="was set aside"):
        fitted = HierOPO(logging="random").fit(path, **{**COLUMNS, "context": ["device"]}, lenient=True)
    explanation = fitted.explain(2, {"device": "phone"}, log=path, lenient=True)
    assert (explanation.rows_read, len(explanation.influential_rows)) == (600, 5)
    with pytest.raises(LogError, match="line 602 of"):
        fitted.explain(2, {"device": "phone"}, log=path)
    described = HierOPO(Columns(("visits",)), logging="random", uncertainty="first-order").fit(
        rows, task="store", reward="profit"
    )
    assert described.explain(2, [[4.0], [1.0]], log=rows).influential_rows[0].action is None


@pytest.mark.slow
def test_rows_of_another_log_are_refused() -> None:
    with pytest.raises(
        MismatchError, match="The rows of task 7 in this log are not those of the fit: the log has 2"
    ):
        learner().explain(2, {"visits": 4.0}, log=log().slice(10))
    other = log().set_column(3, "profit", pc.add(log()["profit"], 1.0))
    with pytest.raises(MismatchError, match="they have other values"):
        learner().explain(2, {"visits": 4.0}, log=other)
    tasks = log()["store"].to_pylist()
    tasks[3] = 50
    unknown = log().set_column(0, "store", pa.array(tasks))
    with pytest.raises(MismatchError, match="Row 3 of this log is of task 50"):
        learner().explain(2, {"visits": 4.0}, log=unknown)


def test_names_are_escaped_in_html() -> None:
    rows = log().set_column(0, "store", pa.array([f"<b>{k}" for k in log()["store"].to_pylist()]))
    fitted = HierOPO(logging="random").fit(rows, **COLUMNS)
    written = fitted.explain("<b>2")._repr_html_()
    assert "&lt;b&gt;2" in written
    assert "<b>2" not in written
    assert "<b>" not in fitted._repr_html_()
    assert "not fitted" not in fitted._repr_html_()
    assert HierOPO()._repr_html_().startswith("<pre>")


@pytest.mark.slow
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
    pq.write_table(log(), tmp_path / "log.parquet")
    of_rows = answers(
        "explain", policy, "--task", 2, "--at", "visits=4", "--log", tmp_path / "log.parquet", "--json"
    )
    want = learner().explain(2, {"visits": 4.0}, log=log()).to_dict()
    assert json.loads(of_rows)["influential_rows"] == want["influential_rows"]
    assert "Give --log" in refuses(2, "explain", policy, "--task", 2, "--filter", "visits > 2")
    assert answers("explain", policy, "--task", 99).startswith("Task 99 has no rows")
    assert "not among the 8 tasks" in refuses(1, "explain", policy, "--task", "nope")
    assert "Give visits once" in refuses(
        2, "explain", policy, "--task", 2, "--at", "visits=1", "--at", "visits=2"
    )


@pytest.mark.slow
def test_a_policy_without_moments_takes_them_from_elsewhere(tmp_path: Path) -> None:
    fitted, rows = learner(), tmp_path / "log.parquet"
    folder = save_policy(
        fitted.policy_, tmp_path / "policy", hierarchy=fitted.hierarchy_,
        provenance={"columns": fitted.roles_.to_dict()},
    )  # fmt: skip
    assert load_policy(folder).moments() is None
    assert "Give the moments" in refuses(1, "explain", folder, "--task", 2)
    LogMoments.of(log(), **COLUMNS).save(tmp_path / "moments")
    pq.write_table(log(), rows)
    want = answers("explain", fitted.save(tmp_path / "whole"), "--task", 2)
    for given in (tmp_path / "moments", rows):
        assert answers("explain", folder, "--task", 2, "--moments", given) == want
    bare = save_policy(fitted.policy_, tmp_path / "bare")
    assert "without its hierarchy" in refuses(1, "explain", bare, "--task", 2)


@pytest.mark.slow
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
