"""A fit to moments in shards equals the fit in memory: evidence, posterior, summary, and decisions to the bit."""

import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hieropo import (
    ArtifactError,
    Gaussian,
    HierOPO,
    InputError,
    LogMoments,
    MismatchError,
    PooledOPO,
    load_learner,
    load_policy,
)
from hieropo.estimation.likelihood import Problem, evaluate
from hieropo.estimation.reml import estimate
from hieropo.estimation.shapes import named
from hieropo.features.maps import per_action
from hieropo.learners import in_shards
from hieropo.learners.loading import load_evaluable
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.crossed.in_shards import condition_crossed_in_shards
from hieropo.model.hierarchy import Hierarchy
from hieropo.model.posterior import condition, condition_in_shards
from hieropo.moments import in_shards as moments_in_shards
from hieropo.moments.in_shards import MomentsInShards
from hieropo.moments.statistics import Moments
from hieropo.passes.sharded import ShardedMoments
from hieropo.storage.load import verify_policy

COLUMNS: dict[str, Any] = {"task": "store", "action": "offer", "reward": "profit", "context": ["visits"]}


@pytest.fixture(autouse=True)
def always_in_shards(monkeypatch):
    """Stream small logs too, and parts of them."""
    monkeypatch.setattr(in_shards, "JOINED", 0)
    monkeypatch.setattr(in_shards, "_TASKS", 64)
    monkeypatch.setattr(moments_in_shards, "IN_MEMORY", 20_000)


def log(seed: int = 0, n: int = 3000, stores: int = 400, ids: str = "text", far: float = 0.0) -> pa.Table:
    rng = np.random.default_rng(seed)
    store, offer = rng.integers(stores, size=n), rng.integers(3, size=n)
    visits, effect = rng.normal(size=n), 0.7 * rng.normal(size=(stores, 3))
    profit = 5 + effect[store, 0] + 0.5 * offer + effect[store, 1] * visits * (offer - 1) + rng.normal(size=n)
    name = {"int": store, "text": [f"store {s}" for s in store]}[ids]
    return pa.table(
        {
            "store": name,
            "city": [f"city {s % 5}" for s in store],
            "offer": np.array(["none", "gift", "call"])[offer],
            "visits": visits + far,
            "profit": profit,
            "region": [f"region {s % 3}" for s in store],
            "weight": rng.uniform(0.2, 3.0, size=n),
        }
    )


def shards_of(table: pa.Table, path: Any, shards: int = 8, **more: Any) -> tuple[LogMoments, ShardedMoments]:
    moments = LogMoments.of(table, **{**COLUMNS, **more})
    return moments, ShardedMoments.of(moments, path, shards=shards)


def decisions(policy: Any, table: pa.Table) -> tuple[Any, ...]:
    requests = table.select([name for name in table.schema.names if name != "profit"])
    decided = policy.decide(requests).table
    return decided.column("action").to_pylist(), np.array(decided.column("lower_bound"))


@pytest.mark.slow
@pytest.mark.parametrize("ids", ["int", "text", "tuple"])
def test_decisions_of_the_crossed_prior_are_those_of_one_machine(tmp_path, ids):
    table = log(ids="int" if ids == "int" else "text")
    task = ["city", "store"] if ids == "tuple" else "store"
    moments, _ = shards_of(table, tmp_path / "s", task=task)
    one, many = (
        HierOPO(spreads="one", task_kinds="one", logging="random").fit(source)
        for source in (moments, tmp_path / "s")
    )
    assert one.posterior_.log_evidence == pytest.approx(many.posterior_.log_evidence, abs=1e-8)
    assert np.allclose(one.hierarchy_.weights, many.hierarchy_.weights, rtol=1e-9)
    many.save(tmp_path / "policy")
    actions, bounds = decisions(one, table)
    same_actions, same_bounds = decisions(many, table)
    assert actions == same_actions
    assert np.allclose(bounds, same_bounds, rtol=0, atol=1e-9)
    verify_policy(tmp_path / "policy")
    stored = load_policy(tmp_path / "policy")
    assert sorted(stored.policy.table.keys.values.tolist()) == sorted(moments.tasks.tolist())
    assert stored.policy.table.keys.find(moments.tasks.tolist()[7]) >= 0
    assert str(one.summary()).split("Uncertainty")[0] == str(many.summary()).split("Uncertainty")[0]


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"task_cov": "full"}, {"task_cov": "diag", "uncertainty": "plug-in"}])
def test_two_levels_are_those_of_one_machine(tmp_path, settings):
    table = log(n=60_000, stores=9000)
    settings = {"uncertainty": "first-order", **settings}
    moments, _ = shards_of(table, tmp_path / "s")
    one, many = (
        HierOPO(spreads="one", **settings).fit(moments),
        HierOPO(spreads="one", **settings).fit(tmp_path / "s"),
    )
    deviance = one.estimate_.chosen.deviance
    assert many.estimate_.chosen.deviance == pytest.approx(deviance, rel=1e-8)
    many.save(tmp_path / "policy")
    assert decisions(one, table.slice(0, 5000))[0] == decisions(many, table.slice(0, 5000))[0]
    for a, b in zip(one.summary().coefficients, many.summary().coefficients, strict=True):
        assert b.mean.value == pytest.approx(a.mean.value, rel=1e-4)
        assert b.between.value == pytest.approx(a.between.value, rel=1e-3)


@pytest.mark.parametrize("role", [None, "weight", "precision"])
def test_given_hyper_parameters_give_the_answer_of_one_machine(tmp_path, role):
    moments, sharded = shards_of(log(), tmp_path / "s", **({} if role is None else {role: "weight"}))
    dense = moments.for_learning(per_action=False)
    hierarchy = estimate(dense, "diag").hierarchy
    one, many = condition(dense, hierarchy), condition_in_shards(sharded.sums(), hierarchy)
    assert many.log_evidence == pytest.approx(one.log_evidence, rel=1e-12)
    assert np.allclose(many.hyper.mean, one.hyper.mean, rtol=1e-12, atol=1e-12)
    row = moments.moments.keys.locate(np.concatenate([shard.tasks for shard in sharded.shards()]))
    tables = [part.table() for part in many.shards()]
    means, covs = (np.concatenate([getattr(part, name) for part in tables]) for name in ("means", "covs"))
    assert np.allclose(means, one.table().means[row], rtol=0, atol=1e-12)
    assert np.allclose(covs, one.table().covs[row], rtol=0, atol=1e-12)
    assert np.allclose(many.new_task().cov, one.new_task().cov, atol=1e-12)


@pytest.mark.slow
def test_known_crossed_hierarchies_give_the_answer_of_one_machine(tmp_path):
    moments, _ = shards_of(log(), tmp_path / "s")
    known = HierOPO(spreads="one").fit(moments).hierarchy_.central()
    one, many = (HierOPO(known=known).fit(source) for source in (moments, tmp_path / "s"))
    assert many.posterior_.log_evidence == pytest.approx(one.posterior_.log_evidence, rel=1e-12)
    many.save(tmp_path / "policy")
    table = load_policy(tmp_path / "policy").policy.table
    row = table.keys.locate(moments.tasks)
    assert np.allclose(np.asarray(table.means)[row], one.policy_.table.means, rtol=0, atol=1e-12)
    assert np.allclose(np.asarray(table.covs)[row], one.policy_.table.covs, rtol=0, atol=1e-12)


def test_an_evaluation_of_the_likelihood_is_a_sum_over_shards(tmp_path):
    moments, sharded = shards_of(log(n=30_000, stores=9000), tmp_path / "s", action=None)
    dense, shape = moments.for_learning(per_action=False), named("full", 1)
    for ratio in (np.zeros((1, 1)), np.eye(1), 50 * np.eye(1)):
        one, many = (evaluate(Problem(m, "reml", 1e-9), ratio, shape) for m in (dense, sharded.sums()))
        assert many.deviance == pytest.approx(one.deviance, rel=1e-12)
        for name in ("gradient", "expected", "observed"):
            assert np.allclose(getattr(many, name), getattr(one, name), rtol=1e-9)


def test_parts_of_the_tasks_are_those_of_one_machine(tmp_path):
    _, sharded = shards_of(log(), tmp_path / "s")
    sums = sharded.sums()
    rows = np.sort(np.random.default_rng(0).choice(len(sums), 200, replace=False))
    whole = sums.in_memory()
    for some in (sums.at(rows), sums.gathered(rows[::-1])):
        there = some.in_memory() if isinstance(some, MomentsInShards) else some
        order = rows if some is not there else rows[::-1]
        assert np.array_equal(there.sums, whole.sums[order])
    thinned = sums.thinned(16)
    assert 0 < len(thinned) < len(sums) / 8
    assert sums.with_rows() is sums
    without = sums.mapped(lambda part: part)._some([np.arange(1) for _ in sums.shard_tasks])
    assert without.n_rows == pytest.approx(sum(shard.rows[:1].sum() for shard in sums.shards()))


@pytest.mark.slow
def test_columns_far_from_zero_and_maps_that_are_given(tmp_path):
    table = log(far=1e5)
    moments, sharded = shards_of(table, tmp_path / "s")
    assert sharded.features.origin is not None
    given = per_action(["call", "gift", "none"], ["visits"])
    one, many = (HierOPO(spreads="one", features=given).fit(source) for source in (moments, sharded))
    assert many.posterior_.log_evidence == pytest.approx(one.posterior_.log_evidence, abs=1e-6)
    many.save(tmp_path / "policy")
    assert decisions(one, table)[0] == decisions(many, table)[0]


@pytest.mark.slow
def test_small_shards_are_joined_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(in_shards, "JOINED", 2**26)
    moments, _ = shards_of(log(), tmp_path / "s", levels=["region"])
    learner = HierOPO().fit(tmp_path / "s")
    assert len(learner.policy_.table.keys) == len(moments)
    assert learner.posterior_.node(0, "region 1").mean.size == 6


@pytest.mark.parametrize(
    ("settings", "more", "match"),
    [
        ({}, {"levels": ["region"]}, "groups or metadata"),
        ({}, {"sampling_weight": "weight"}, "sampling_weight='weight'"),
        ({"logging": "frozen"}, {}, "logging='frozen'"),
        ({"pessimism": "cv"}, {}, "pessimism='cv'"),
        ({"task_cov": "full", "uncertainty": "integrated"}, {}, "uncertainty='integrated'"),
    ],
)
def test_what_is_not_learned_by_shard_is_refused_with_the_way_out(tmp_path, settings, more, match):
    shards_of(log(n=30_000, stores=9000), tmp_path / "s", **more)
    with pytest.raises(InputError, match=match):
        HierOPO(**settings).fit(tmp_path / "s")


def test_baselines_and_other_columns_are_refused(tmp_path):
    shards_of(log(), tmp_path / "s")
    with pytest.raises(InputError, match="baseline"):
        PooledOPO().fit(tmp_path / "s")
    with pytest.raises(MismatchError, match="task='store'"):
        HierOPO().fit(tmp_path / "s", task="city")
    with pytest.raises(InputError, match="lenient"):
        HierOPO().fit(tmp_path / "s", lenient=True)


@pytest.mark.slow
def test_methods_that_need_all_tasks_are_refused_with_the_reason(tmp_path):
    table = log()
    shards_of(table, tmp_path / "s")
    learner = HierOPO().fit(tmp_path / "s")
    with pytest.raises(InputError, match=r"Call save\(path\) first"):
        learner.decide(table)
    learner.save(tmp_path / "policy")
    for verb, call in (
        ("explain", lambda: learner.explain("store 1")),
        ("partial_fit", lambda: learner.partial_fit(table)),
    ):
        with pytest.raises(InputError, match=f"{verb} takes the posterior of all tasks"):
            call()
    assert len(learner.coefficients("store 1").table) > 0
    assert "HierOPO" in learner._repr_html_()


@pytest.mark.slow
def test_a_fit_to_rows_after_one_to_shards_is_whole_again(tmp_path):
    table = log(n=600, stores=50)
    shards_of(table, tmp_path / "s")
    learner = HierOPO().fit(tmp_path / "s").fit(table, **COLUMNS)
    assert len(learner.decide(table)) == 600


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"task_cov": "diag", "uncertainty": "first-order"}])
def test_an_evaluation_on_later_rows_is_that_of_one_machine(tmp_path, settings):
    moments, _ = shards_of(log(), tmp_path / "s")
    later = log(seed=1, n=1500, stores=430)  # 30 tasks are new
    one, many = (
        HierOPO(spreads="one", logging="random", **settings).fit(source)
        for source in (moments, tmp_path / "s")
    )
    many.save(tmp_path / "policy")
    again = load_evaluable(tmp_path / "policy")
    expected = one.evaluate(later)
    for evaluation in (many.evaluate(later), again.evaluate(later)):
        assert evaluation.learned_from == "no"
        assert evaluation.new_tasks == expected.new_tasks > 0
        place = expected.model.keys.locate(evaluation.model.keys.values)
        for name in ("value", "gain", "gain_sd", "harm"):
            values, there = getattr(evaluation.model, name), getattr(expected.model, name)[place]
            assert np.allclose(values, there, rtol=0, atol=1e-6), name
        for part in ("new", "incumbent", "difference"):
            mine, theirs = getattr(evaluation.model, part), getattr(expected.model, part)
            assert (mine.mean, mine.sd) == pytest.approx((theirs.mean, theirs.sd), abs=1e-7)
        for mine, theirs in zip(evaluation.estimates, expected.estimates, strict=True):
            assert mine.name == theirs.name
            assert mine.gain == pytest.approx(theirs.gain, abs=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"task_cov": "full", "uncertainty": "first-order"}])
def test_an_evaluation_on_the_rows_of_the_fit_is_cross_fitted_as_in_memory(tmp_path, settings):
    table = log(n=1500, stores=150)
    moments, _ = shards_of(table, tmp_path / "s")
    one, many = (
        HierOPO(spreads="one", task_kinds="one", logging="random", **settings).fit(source)
        for source in (moments, tmp_path / "s")
    )
    store = sorted(set(table["store"].to_pylist()))[:60]
    for rows in (
        table,
        table.filter(pa.compute.is_in(table["store"], pa.array(store))),
    ):  # of all tasks, of some
        evaluation, expected = many.evaluate(rows), one.evaluate(rows)
        assert evaluation.learned_from == expected.learned_from == "yes"
        assert evaluation.refused is None
        for mine, theirs in zip(evaluation.estimates, expected.estimates, strict=True):
            assert mine.name == theirs.name
            assert (mine.gain, mine.gain_se) == pytest.approx(
                (theirs.gain, theirs.gain_se), abs=1e-6, nan_ok=True
            )
        assert evaluation.model.difference.mean == pytest.approx(expected.model.difference.mean, abs=1e-7)
    both = pa.concat_tables([table, log(seed=1, n=500, stores=150)])
    partly = many.evaluate(both)
    assert partly.learned_from == "partly"
    assert "a fit in shards cannot learn them" in partly.refused
    shutil.rmtree(tmp_path / "s")
    many_path = tmp_path / "policy"
    with pytest.raises(ArtifactError, match="does not exist"):
        many.save(many_path)


@pytest.mark.slow
def test_a_gate_is_written_for_all_tasks_and_none_passes_that_was_not_evaluated(tmp_path):
    moments, _ = shards_of(log(), tmp_path / "s")
    later = log(seed=1, n=800, stores=200)
    one, many = (HierOPO(spreads="one", logging="random").fit(source) for source in (moments, tmp_path / "s"))
    gates = [learner.evaluate(later).gate(0.3, incumbent="none") for learner in (one, many)]
    one.save(tmp_path / "one", policy=gates[0])
    many.save(tmp_path / "many", policy=gates[1])
    expected, saved = (load_policy(tmp_path / name).policy for name in ("one", "many"))
    place = expected.table.keys.locate(saved.table.keys.values)
    assert np.array_equal(saved.passed, expected.passed[place])
    assert 0 < saved.passed.sum() < np.isfinite(saved.harm).sum() < len(saved.harm)
    again = load_evaluable(tmp_path / "many").evaluate(log(seed=2, n=500))
    assert again.model.difference.mean == pytest.approx(
        load_learner(tmp_path / "one").evaluate(log(seed=2, n=500)).model.difference.mean, abs=1e-7
    )


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux lists maps")
@pytest.mark.parametrize("action", ["offer", None])
def test_one_shard_is_mapped_at_a_time(tmp_path, action):
    most = [0]

    def mapped() -> int:
        return Path("/proc/self/maps").read_text(encoding="utf-8").count(str(tmp_path))

    def watched(shard: Moments) -> Moments:
        most.append(mapped())
        return shard

    _, sharded = shards_of(log(n=500), tmp_path / "s", action=action)
    sums = sharded.sums()
    kept = [sums.rows_of_tasks(), sums.thinned(4), sums.gathered(np.arange(5)), sharded.ids(0), sharded.total]
    assert not mapped(), len(kept)
    if action is None:
        condition: Any = condition_in_shards(sums.mapped(watched), Hierarchy(None, np.eye(sums.dim), 1.0))
    else:
        covs = [np.eye(sums.unit_dim)] * 3
        known = CrossedHierarchy(*covs, np.ones(sums.n_actions))
        condition = condition_crossed_in_shards(sums.mapped(watched), known)
    for part in condition.shards():
        kept.append(part.table().means)
    del part
    assert not mapped()
    assert max(most) <= 2  # one is released when the next is there


@pytest.mark.slow
@pytest.mark.parametrize("given", [False, True])
def test_a_fit_to_clusters_in_shards_is_that_of_one_machine(tmp_path, monkeypatch, given):
    rng, visit = np.random.default_rng(0), np.random.default_rng(1).permutation(2400) // 4
    table = pa.table(
        {
            "store": [f"store {number // 6}" for number in visit],
            "offer": np.array(["none", "gift", "call"])[visit % 3],
            "visits": rng.normal(size=2400),
            "profit": rng.normal(size=600)[visit] + rng.normal(size=2400),
            "visit": visit,
        }
    )
    _, sharded = shards_of(table, tmp_path / "shards", cluster="visit")
    known = Hierarchy(Gaussian(np.zeros(6), np.eye(6)), 0.5 * np.eye(6), 2.0) if given else None
    in_parts = HierOPO(logging="random", known=known).fit(sharded)
    monkeypatch.setattr(in_shards, "JOINED", 2**30)
    together = HierOPO(logging="random", known=known).fit(sharded)
    assert isinstance(in_parts.moments_, MomentsInShards)
    assert together.cluster_correlation_.any()
    assert together.cluster_correlation_.shape == ((1,) if given else (3,))
    np.testing.assert_allclose(in_parts.cluster_correlation_, together.cluster_correlation_, atol=1e-8)
    assert in_parts.posterior_.log_evidence == pytest.approx(together.posterior_.log_evidence, rel=1e-9)
    with pytest.raises(InputError, match="fitted to moments in shards"):
        in_parts.partial_fit(table)
    in_parts.save(tmp_path / "policy")
    evaluable = load_evaluable(tmp_path / "policy")
    np.testing.assert_array_equal(evaluable.cluster_correlation_, in_parts.cluster_correlation_)
    np.testing.assert_allclose(
        evaluable.moments_.total.log_precision, in_parts.moments_.total.log_precision, rtol=1e-12
    )
    one, other = decisions(together, table), decisions(in_parts, table)
    assert one[0] == other[0]
    np.testing.assert_allclose(other[1], one[1], atol=1e-7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = evaluable.evaluate(table).model.difference
        expected = together.evaluate(table).model.difference
    assert (model.mean, model.low) == pytest.approx((expected.mean, expected.low), abs=1e-6)
