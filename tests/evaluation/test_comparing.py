"""Policies that a sceptic asks for, judged on the same rows: by hand, without peeking, and as they are named."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import answers, refuses

from hieropo.errors import HieropoError, InputError
from hieropo.evaluation.comparisons.rivals import blocks_of, ridge
from hieropo.learners.hieropo import HierOPO

ROLES: dict[str, Any] = {"task": "store", "action": "offer", "reward": "profit", "pscore": "p"}
CHANCE = np.array([0.5, 0.3, 0.2])
NAMES = np.array(["a", "b", "c"])


def log(seed: int, n: int = 900, effect: float = 1.0, tasks: int = 30) -> pa.Table:
    rng = np.random.default_rng(seed)
    theta = np.random.default_rng(0).normal(size=(tasks, 3)) * 0.5
    store, offer, x = rng.integers(tasks, size=n), rng.choice(3, size=n, p=CHANCE), rng.normal(size=n)
    profit = effect * (theta[store, offer] + 0.3 * (offer == 2)) + 0.5 * x + rng.normal(size=n)
    return pa.table({"store": store, "offer": NAMES[offer], "x": x, "profit": profit, "p": CHANCE[offer]})


@pytest.fixture(scope="module")
def learner() -> HierOPO:
    return HierOPO(logging="random").fit(log(1), context=["x"], **ROLES)


def named(found: Any, name: str) -> Any:
    return next(each for each in found.comparisons if each.name == name)


@pytest.mark.slow
def test_values_and_leads_are_means_of_doubly_robust_terms(learner: HierOPO) -> None:
    table = log(2, 4000)
    actions = {s: NAMES[s % 3] for s in range(20)}  # ten tasks keep the incumbent
    found = learner.evaluate(table, compare={"always b": "b", "table": actions})
    usual = ["one action for all", "pooled", "separate"]
    assert [each.name for each in found.comparisons] == [*usual, "always b", "table"]
    store, x, r, p = (table[name].to_numpy() for name in ("store", "x", "profit", "p"))
    codes = np.searchsorted(NAMES, table["offer"].to_numpy(zero_copy_only=False).astype("U1"))
    means = np.array([learner.posterior_.task(s).mean for s in range(30)])

    def terms(index: Any) -> Any:
        q, q_taken = (
            np.einsum("nd,nd->n", learner.features_.phi(x[:, None], np.maximum(k, 0)), means[store])
            for k in (index, codes)
        )
        return np.where(index < 0, r, q + (index == codes) * (r - q_taken) / p)

    own = terms(learner.policy_.choose_many(store, x[:, None]).index[:, 0])
    assert found.estimate("DR").value == pytest.approx(own.mean(), rel=1e-9)
    for name, index in (("always b", np.full(4000, 1)), ("table", np.where(store < 20, store % 3, -1))):
        each, other = named(found, name), terms(index)
        assert each.value == pytest.approx(other.mean(), rel=1e-9)
        assert each.gain == pytest.approx((other - r).mean(), abs=1e-9)
        assert each.lead == pytest.approx((own - other).mean(), abs=1e-9)
        assert each.lead_se == pytest.approx(
            (own - other).std() / 4000**0.5, rel=1e-3
        )  # tasks are few: by rows
        assert each.lead_low < each.lead < each.lead_high
    assert named(found, "table").gain_se < named(found, "always b").gain_se


def test_the_policy_itself_is_no_better_than_itself(learner: HierOPO) -> None:
    found = learner.evaluate(log(2), compare={"itself": learner, "again": learner.policy_})
    for name in ("itself", "again"):
        each = named(found, name)
        assert (each.lead, each.lead_se) == pytest.approx((0.0, 0.0), abs=1e-12)
        assert each.value == pytest.approx(found.estimate("DR").value, rel=1e-9)


@pytest.mark.slow
def test_the_best_action_for_all_is_chosen_without_the_rows_that_judge_it() -> None:
    gains = {name: [] for name in ("one action for all", "pooled", "separate")}
    for seed in range(25):
        table = log(seed, 240, effect=0.0, tasks=8)
        learner = HierOPO(logging="random", task_cov="isotropic", uncertainty="plug-in").fit(table, **ROLES)
        found = learner.evaluate(table)
        for each in found.comparisons:
            gains[each.name].append(each.gain)
    for values in gains.values():
        assert abs(np.mean(values)) < 3 * np.std(values) / np.sqrt(25)


def test_regressions_are_those_of_the_rows() -> None:
    table = log(3, 300, tasks=5)
    learner = HierOPO(logging="random").fit(table, context=["x"], **ROLES)
    features, moments = learner.features_, learner.moments_
    store, r = table["store"].to_numpy(), table["profit"].to_numpy()
    codes = features.action_codes(table["offer"].to_numpy(zero_copy_only=False))
    phi = features.phi(table["x"].to_numpy()[:, None], codes).reshape(300, 3, 2)
    penalty = (phi**2).sum(axis=(0, 1)) / 300
    pooled, separate = ridge(blocks_of(moments, features, pooled=True)), ridge(blocks_of(moments, features))
    rows = [np.arange(300), *(np.flatnonzero(store == s) for s in moments.keys.values)]
    for own, table_of in zip(rows, [pooled[0], *separate], strict=True):
        for a in range(3):
            z = phi[own, a]
            right = z.T @ r[own] + penalty * [r[own].mean(), 0.0]
            want = np.linalg.solve(z.T @ z + np.diag(penalty), right)
            np.testing.assert_allclose(
                table_of[a], want, atol=0.03
            )  # the penalty draws to a mean of offset rewards


@pytest.mark.slow
def test_regressions_of_units_are_those_of_dense_sums_and_maps_of_embeddings_have_them_too() -> None:
    from hieropo.features.maps import embedding

    table = log(3, 300, tasks=5)
    shared = HierOPO(logging="random").fit(table, context=["x"], **ROLES)
    units, features = shared.moments_, shared.features_
    if units.per_action:
        for pooled in (False, True):
            one, other = (ridge(blocks_of(m, features, pooled=pooled)) for m in (units, units.dense()))
            np.testing.assert_allclose(one, other, rtol=1e-9)
    described = embedding(["a", "b", "c"], np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]))
    for learner in (shared, HierOPO(described, logging="random").fit(table, **ROLES)):
        found = learner.evaluate(table)
        assert [each.name for each in found.comparisons] == ["one action for all", "pooled", "separate"]
        assert all(np.isfinite(each.lead_se) for each in found.comparisons)


def test_frames_files_and_policies_are_read(learner: HierOPO, tmp_path: Path) -> None:
    tasks = np.arange(30)
    frame = pa.table({"store": tasks, "offer": NAMES[tasks % 3]})
    other = pa.table({"task": tasks, "action": NAMES[tasks % 3]})
    pq.write_table(frame, tmp_path / "table.parquet")
    plain = HierOPO(logging="random").fit(log(4), **ROLES)
    plain.save(tmp_path / "plain")
    found = learner.evaluate(
        log(2),
        compare={
            "frame": frame, "other": other, "file": tmp_path / "table.parquet", "text": str(tmp_path / "table.parquet"),
            "map": dict(zip(tasks.tolist(), NAMES[tasks % 3].tolist(), strict=True)),
            "saved": str(tmp_path / "plain"), "learner": plain,
        },
    )  # fmt: skip
    for name in ("other", "file", "text", "map"):
        assert named(found, name).value == named(found, "frame").value
    assert named(found, "saved").value == named(found, "learner").value
    assert learner.evaluate(log(2), compare=False).comparisons == ()
    told = json.dumps(found.to_dict(), allow_nan=False)
    assert '"saved"' in told
    assert "policy minus other" in str(found)


@pytest.mark.parametrize(
    ("compare", "match"),
    [
        ({"x": "z"}, "'z'"),
        ({"x": {}}, "has no task"),
        ({"x": {"store 1": "a"}}, "none of the tasks"),
        ({"x": pa.table({"shop": [1], "offer": ["a"]})}, "neither 'store' nor 'task'"),
        ({"x": pa.table({"store": [1, 1], "offer": ["a", "b"]})}, "two actions for the task 1"),
        (["a"], "neither True, False nor a mapping"),
    ],
)
def test_comparisons_that_make_no_sense_are_refused(learner: HierOPO, compare: Any, match: str) -> None:
    with pytest.raises(HieropoError, match=match):
        learner.evaluate(log(2), compare=compare)


def test_a_policy_that_reads_other_contexts_is_refused(learner: HierOPO) -> None:
    plain = HierOPO(logging="random").fit(log(4), **ROLES)
    with pytest.raises(InputError, match="reads the context column 'x'"):
        plain.evaluate(log(2), compare={"other": learner})


def test_few_rows_and_logs_without_weights_tell_nothing(learner: HierOPO) -> None:
    assert learner.evaluate(log(2), propensities="none").comparisons == ()
    few = learner.evaluate(log(2, 60))
    assert all(each.withheld is not None for each in few.comparisons)
    assert "withheld" in str(few)


@pytest.mark.slow
def test_the_command_line_names_what_to_compare_with(tmp_path: Path) -> None:
    pq.write_table(log(1), tmp_path / "log.parquet")
    pq.write_table(
        pa.table({"store": np.arange(30), "offer": NAMES[np.arange(30) % 3]}), tmp_path / "today.parquet"
    )
    roles = [
        "--task",
        "store",
        "--action",
        "offer",
        "--reward",
        "profit",
        "--pscore",
        "p",
        "--logging",
        "random",
    ]
    answers("fit", tmp_path / "log.parquet", "-o", tmp_path / "policy", *roles)
    words = ["evaluate", tmp_path / "policy", tmp_path / "log.parquet"]
    text = answers(*words, "--compare", f"today={tmp_path / 'today.parquet'}", "--compare", "always b=b")
    assert "always b" in text
    found = json.loads(answers(*words, "--compare", f"today={tmp_path / 'today.parquet'}", "--json"))
    assert [each["name"] for each in found["compared"]][3:] == ["today"]
    assert found["verdict"] in ("shown", "not shown")
    assert json.loads(answers(*words, "--no-compare", "--json"))["compared"] == []
    assert "is not a file" in refuses(2, *words, "--compare", "x=nothing")
    assert "is not NAME=POLICY" in refuses(2, *words, "--compare", "b")
    assert "Give one of them" in refuses(2, *words, "--compare", "x=b", "--no-compare")
