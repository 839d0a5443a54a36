"""A rare action that a fold of the rows loses: the model's answer stays, other figures are withheld."""

import warnings
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hieropo import Evaluation, FlatOPO, HierOPO, HieropoWarning, LogMoments, PooledOPO, examine
from hieropo._utils.packed import unpack
from hieropo.evaluation.comparisons.crossfit import Judge, cross_fit, without_actions
from hieropo.evaluation.entry import subject_of
from hieropo.evaluation.passes.first_pass import FOLDS, fold_moments, row_folds
from hieropo.logs.reading import read
from hieropo.passes.identifiability import gram_blocks, sizes
from hieropo.rows.batches import Roles

COLUMNS = {"task": "shop", "action": "offer", "reward": "profit", "pscore": "p"}
ROWS = 400


def logged(rare: int, worth: float = 0.0, *, seed: int = 0) -> pa.Table:
    """Three actions by chance, and a fourth one, "z", in a few rows."""
    rng = np.random.default_rng(seed)
    shop, offer = rng.integers(10, size=ROWS), rng.integers(3, size=ROWS)
    offer[rng.choice(ROWS, rare, replace=False)] = 3
    mean = np.append(np.random.default_rng(1).normal(size=(10, 3)), np.full((10, 1), worth), axis=1)
    x = rng.normal(size=ROWS)
    return pa.table(
        {
            "shop": shop, "offer": np.array(list("abcz"))[offer], "x": x,
            "profit": mean[shop, offer] + 0.3 * x + 0.5 * rng.normal(size=ROWS),
            "p": np.where(offer == 3, 0.01, 0.33),
        }
    )  # fmt: skip


def fitted(log: pa.Table, context: tuple[str, ...] = (), **settings: Any) -> HierOPO:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HieropoWarning)
        learner = HierOPO(logging="random", **{"uncertainty": "plug-in", **settings})
        return learner.fit(log, **COLUMNS, context=context)


def shown(found: Evaluation) -> set[str]:
    return {each.name for each in found.estimates if each.withheld is None}


@pytest.mark.slow
@pytest.mark.parametrize(("rare", "context"), [(1, ()), (2, ()), (2, ("x",)), (3, ("x",))])
def test_an_action_that_the_policy_avoids_leaves_weighted_rewards(
    rare: int, context: tuple[str, ...]
) -> None:
    log = logged(rare, worth=-20.0)
    found = fitted(log, context).evaluate(log)
    assert found.learned_from == "yes"
    assert {"IPS", "SNIPS", "DR", "SNDR"} <= shown(found)
    lost = (
        f"the action 'z' ({rare} row{'s' * (rare > 1)}) are not identified: importance-weighted estimates are of "
        "policies"
    )
    assert [lost in each for each in found.limits] == [True]
    plain = log.filter(pa.compute.not_equal(log["offer"], "z"))
    without = fitted(plain, context).evaluate(plain)
    assert found.estimate("DR").value == pytest.approx(without.estimate("DR").value, abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("rare", [1, 2])
def test_weighted_rewards_of_a_policy_that_takes_it_are_withheld_and_the_model_stays(rare: int) -> None:
    log = logged(rare, worth=20.0)
    learner = fitted(log)
    found = learner.evaluate(log)
    takes = learner.predict(log) == "z"
    assert takes.sum() > 1
    assert shown(found) == set()
    rarely = f"'z' ({rare} row{'s' * (rare > 1)})"
    why = f"in {takes.sum()} rows the policy takes the action {rarely}, and policies that were learned"
    assert {each.withheld for each in found.estimates} == {
        f"{why} without a fifth of the rows cannot take it"
    }
    assert found.any_n is None
    assert found.task_estimates is not None
    shops = set(log["shop"].to_numpy()[takes].tolist())
    withheld = np.isnan(found.task_estimates).all(axis=1)
    assert set(found.keys.values[withheld].tolist()) == shops
    assert np.isfinite(found.task_estimates[~withheld, 0]).all()
    assert found.model.difference.mean > 0.5
    assert "'z'" in str(found)
    assert len(shown(learner.evaluate(log, show_all=True))) == 8


@pytest.mark.slow
@pytest.mark.parametrize("cov", ["auto", "diag"])
def test_a_pessimism_is_chosen_all_the_same(cov: Any) -> None:
    with pytest.warns(HieropoWarning, match=r"The action 'z' \(1 row\) of 400 rows is so rare"):
        learner = HierOPO(logging="random", pessimism="cv", task_cov=cov).fit(logged(1), **COLUMNS)
    assert learner.pessimism_.chosen == learner.policy_.pessimism
    lost = "'z' (1 row)" in " ".join(str(learner.pessimism_).split())
    assert lost == (cov == "diag")  # under the crossed prior actions borrow, so that no fold is without it
    assert bool(learner.pessimism_.limits) == lost
    assert learner.pessimism_.to_dict()["limits"] == list(learner.pessimism_.limits)


def test_policies_of_folds_are_those_of_a_log_without_the_action() -> None:
    log = logged(1)
    learner = fitted(log, task_cov="diag")
    roles = Roles("shop", "offer", "profit")
    parts = fold_moments(read(log, roles), learner.features_, FOLDS, 0, per_action=False)
    counts = np.array([0, 0, 0, 1])
    found = cross_fit(subject_of(learner), parts, counts)
    assert found.missing == (3,)
    fold = row_folds(0, ROWS, FOLDS, 0)
    for k, policy in enumerate(found.policies):
        kept = (fold != k) & (log["offer"].to_numpy(zero_copy_only=False) != "z")
        alone = fitted(log.filter(pa.array(kept)), task_cov="diag")
        keys: Any = policy.table.keys
        order = keys.require(alone.policy_.table.keys.values)  # type: ignore[attr-defined]
        np.testing.assert_allclose(policy.table.means[order], alone.policy_.table.means, rtol=1e-7, atol=1e-9)
        judge = Judge(policy, learner.moments_.keys, learner.features_)
        only_z = np.tile([False, False, False, True], (3, 1))
        tasks = learner.moments_.tasks[:3]
        assert judge.choose(tasks, np.zeros((3, 0)), only_z).tolist() == [3, 3, 3]
        assert 3 not in judge.choose(tasks, np.zeros((3, 0)), None)
        places, none = np.arange(3), np.zeros((3, 0))
        others = np.mean([judge.predict(places, none, np.full(3, a)) for a in range(3)], axis=0)
        np.testing.assert_allclose(judge.predict(places, none, np.full(3, 3)), others)


@pytest.mark.parametrize("context", [(), ("x",)])
def test_moments_without_an_action_are_those_of_the_other_rows(context: tuple[str, ...]) -> None:
    log = logged(2)
    whole = LogMoments.of(log, task="shop", action="offer", reward="profit", context=context)
    assert whole.moments.per_action
    dense = whole.moments.dense()
    fewer, features = without_actions(dense, whole.features, [3], sizes(gram_blocks(dense, whole.features)))
    plain = log.filter(pa.compute.not_equal(log["offer"], "z"))
    rest = LogMoments.of(
        plain, task="shop", action="offer", reward="profit", context=context, features=features
    )
    assert rest.moments.per_action
    assert fewer.allclose(rest.moments.dense(), rtol=1e-9)
    corner = unpack(fewer.sums, fewer.dim + 2)[:, -1, -1]
    np.testing.assert_allclose(corner, fewer.rows)


def test_settings_by_numbers_leave_the_model_alone() -> None:
    log = logged(1)
    found = fitted(log, task_cov=np.eye(4)).evaluate(log)
    assert found.refused is not None
    assert "'z' (1 row)" in found.refused
    assert found.estimates == ()
    assert np.isfinite(found.model.difference.mean)


@pytest.mark.slow
@pytest.mark.parametrize("actions", [3, 4])
@pytest.mark.parametrize("means", [(0.0,), (1.0,), (0.0, 1.0), (0.0, 0.3)])
def test_one_row_does_not_make_an_action_the_choice_of_all_tasks(
    actions: int, means: tuple[float, ...]
) -> None:
    rng = np.random.default_rng(actions)
    shop, offer = rng.integers(20, size=801), rng.integers(actions - 1, size=801)
    profit = np.resize(means, actions)[offer] + rng.normal(size=801)
    offer[0], profit[0] = actions - 1, 3.0
    log = pa.table({"shop": shop, "offer": offer, "profit": profit})
    with pytest.warns(HieropoWarning, match="so rare"):
        learner = HierOPO(logging="random").fit(log, task="shop", action="offer", reward="profit")
    assert (learner.predict(log) != actions - 1).all()
    assert learner.noise_sd == pytest.approx(1.0, abs=0.1)
    assert learner.summary().noise_sd.value == pytest.approx(learner.noise_sd, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("cov", ["auto", "diag"])
def test_a_fit_warns_of_rare_actions(cov: Any) -> None:
    learner = HierOPO(logging="random", task_cov=cov)
    for rare in (1, 2, 3):
        log = logged(rare)
        with pytest.warns(
            HieropoWarning, match=rf"'z' \({rare} row.* of 400 rows is so rare that noise decides"
        ):
            learner.fit(log, **COLUMNS)
    learner.fit(logged(4), **COLUMNS)
    with pytest.warns(HieropoWarning, match="so rare"):
        learner.fit(logged(4), **COLUMNS, context=["x"])
    with pytest.warns(HieropoWarning, match="so rare"):
        learner.fit(LogMoments.of(logged(2), **COLUMNS))


@pytest.mark.parametrize("baseline", [FlatOPO(), PooledOPO()], ids=lambda each: type(each).__name__)
def test_a_baseline_warns_of_rare_actions_too(baseline: HierOPO) -> None:
    with pytest.warns(HieropoWarning, match="so rare"):
        baseline.fit(logged(1), **COLUMNS)


def test_the_doctor_finds_rare_actions() -> None:
    kinds = [each.kind for each in examine(logged(2), guess=False, **COLUMNS).findings]
    assert "rare actions" in kinds
