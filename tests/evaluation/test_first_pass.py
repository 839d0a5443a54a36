"""The passes of an evaluation: sums, folds, rows that were learned from, what a policy would do."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hieropo.errors import UnknownActionError
from hieropo.evaluation.passes.first_pass import first_pass, fold_moments, learned_from, row_folds
from hieropo.evaluation.passes.judging import Contexts, FeatureSums, Predictions, add_by, judge
from hieropo.features.maps import embedding, indicator, per_action
from hieropo.logs.reading import read
from hieropo.model.hierarchy import Hierarchy
from hieropo.model.posterior import condition
from hieropo.moments.row_sketch import RowSketch
from hieropo.moments.statistics import Moments
from hieropo.policies.gating import GatedPolicy
from hieropo.policies.lower_bound import LCBPolicy
from hieropo.rows.batches import Roles
from hieropo.rows.keys import Keys

ROLES = Roles("task", "action", "reward", weight="w", context=("x",))
MAPS = {
    "per-action": per_action(["a", "b", "c"], ["x"]),
    "indicator": indicator(["a", "b", "c"]),
    "embedding": embedding(["a", "b", "c"], [[1.0, 0.2], [0.3, 1.0], [1.0, 1.0]], ["x"]),
}


def log(seed: int, n: int = 400, tasks: int = 7) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "task": rng.integers(tasks, size=n), "action": np.array(["a", "b", "c"])[rng.integers(3, size=n)],
        "reward": rng.normal(size=n), "x": rng.normal(size=n), "w": rng.integers(1, 3, size=n) * 1.0,
    }  # fmt: skip


def batches(columns: dict[str, Any], features: Any, rows: int = 64) -> Any:
    context = ("x",) if features.columns else ()
    return read(
        pa.table(columns), Roles("task", "action", "reward", weight="w", context=context), batch_rows=rows
    )


@pytest.mark.parametrize("name", MAPS)
def test_a_survey_counts_and_sums_every_row_once_whatever_the_batches(name: str) -> None:
    features, columns = MAPS[name], log(0)
    found = first_pass(batches(columns, features), features, per_action=False)
    codes = features.action_codes(columns["action"])
    phi = features.phi(columns["x"][:, None] if features.columns else None, codes)
    whole = Moments.from_arrays(
        columns["task"], phi, columns["reward"], columns["w"], features=features.fingerprint
    )
    assert found.moments.allclose(whole)
    for row, task in enumerate(found.keys.values.tolist()):
        for code in range(3):
            assert found.counts[row, code] == np.sum((columns["task"] == task) & (codes == code))
    assert (found.low, found.high) == (columns["reward"].min(), columns["reward"].max())


def test_units_are_surveyed_as_units() -> None:
    features, columns = MAPS["per-action"], log(0)
    found = first_pass(batches(columns, features), features, per_action=True).moments
    dense = first_pass(batches(columns, features), features, per_action=False).moments
    assert found.dense().allclose(dense)  # type: ignore[union-attr]


def test_an_action_that_the_policy_does_not_know_is_named_with_its_row() -> None:
    columns = log(0)
    columns["action"][130] = "z"
    with pytest.raises(UnknownActionError, match=r"'z'.*130"):
        first_pass(batches(columns, MAPS["indicator"]), MAPS["indicator"], per_action=False)


def test_folds_do_not_depend_on_batches_are_of_about_one_size_and_of_another_seed_are_others() -> None:
    whole = row_folds(0, 100_000, 5, 3)
    parts = np.concatenate([row_folds(start, 1000, 5, 3) for start in range(0, 100_000, 1000)])
    assert np.array_equal(whole, parts)
    sizes = np.bincount(whole, minlength=5)
    assert np.abs(sizes - 20_000).max() < 5 * np.sqrt(100_000 * 0.16)
    other = row_folds(0, 100_000, 5, 4)
    assert abs(np.mean(whole == other) - 0.2) < 0.01
    together = np.bincount(5 * whole[:-1] + whole[1:], minlength=25)  # neighbours are independent
    assert np.abs(together - 4000).max() < 5 * np.sqrt(4000)


@pytest.mark.parametrize("apart", [False, True])
def test_the_folds_add_up_to_the_log(apart: bool) -> None:  # noqa: FBT001
    features, columns = MAPS["per-action"], log(1)
    parts = fold_moments(batches(columns, features), features, 4, 0, per_action=apart)
    whole = first_pass(batches(columns, features), features, per_action=apart).moments
    total = parts[0] + parts[1] + parts[2] + parts[3]  # type: ignore[operator]
    pairs = (total.dense(), whole.dense()) if apart else (total, whole)  # type: ignore[union-attr]
    assert pairs[0].allclose(pairs[1])
    fold = row_folds(0, 400, 4, 0)
    counts = np.bincount(fold, columns["w"])
    np.testing.assert_allclose([part.n_rows for part in parts], counts, rtol=1e-12)


NONE = RowSketch.none()


@pytest.mark.slow
@pytest.mark.parametrize("sketched", [False, True])
@pytest.mark.parametrize("name", MAPS)
def test_rows_that_were_learned_from_are_recognised_and_others_are_not(name: str, sketched: bool) -> None:  # noqa: FBT001
    features = MAPS[name]
    first, second = log(2, 3000), log(3, 3000)
    learned = first_pass(batches(first, features), features, per_action=False)
    shuffled = {key: values[np.random.default_rng(0).permutation(3000)] for key, values in first.items()}
    half = {key: values[first["task"] < 3] for key, values in first.items()}
    some = {key: np.concatenate([values[first["task"] < 2], second[key]]) for key, values in first.items()}
    own = int(np.sum(first["task"] < 2))
    some["task"] = np.where(np.arange(some["task"].size) < own, some["task"], some["task"] + 10)

    def told(columns: dict[str, Any]) -> str:
        found = first_pass(batches(columns, features, 100), features, per_action=False)
        return learned_from(found, learned.moments, learned.sketch if sketched else NONE)

    assert told(first) == told(shuffled) == told(half) == "yes"
    assert told(second) == "no"
    assert told(some) == "partly"
    if sketched:  # rows of a task, and a log that has grown
        assert told({key: values[1000:1500] for key, values in first.items()}) == "yes"
        assert told({key: np.concatenate([first[key], second[key]]) for key in first}) == "partly"


def test_binary_rewards_of_few_rows_do_not_look_learned_from() -> None:
    features = MAPS["indicator"]

    def clicks(seed: int) -> Any:
        columns = log(seed, 3000, tasks=1000)
        columns["reward"], columns["w"] = (columns["reward"] > 1.5) * 1.0, np.ones(3000)
        return first_pass(batches(columns, features), features, per_action=False)

    one, other = clicks(1), clicks(2)
    assert learned_from(one, other.moments, other.sketch) == "no"
    assert learned_from(one, clicks(1).moments, one.sketch) == "yes"


@pytest.fixture(params=list(MAPS))
def problem(request: pytest.FixtureRequest) -> tuple[Any, dict[str, Any], LCBPolicy, Keys]:
    features, columns = MAPS[request.param], log(4)
    moments = first_pass(batches(columns, features), features, per_action=False).moments
    prior = Hierarchy(None, 0.3 * np.eye(features.dim), 1.0)
    policy = LCBPolicy(condition(moments, prior), features, pessimism=0.2)  # type: ignore[arg-type]
    return features, columns, policy, moments.keys


@pytest.mark.parametrize("gate", [False, True])
def test_sums_of_features_are_those_of_the_choices_row_by_row(problem: Any, gate: bool) -> None:  # noqa: FBT001
    features, columns, plain, keys = problem
    policy: Any = GatedPolicy(plain, np.linspace(0, 1, len(keys)), 0.5) if gate else plain
    sums = FeatureSums(features, len(keys))
    judge(batches(columns, features), policy, keys, [sums])
    new, old, weight = np.zeros_like(sums.new), np.zeros_like(sums.old), np.zeros(len(keys))
    actions = np.zeros((2, len(features.actions)))
    for i in range(400):
        s = keys.find(columns["task"][i])
        x = columns["x"][i : i + 1][:, None] if features.columns else np.zeros((1, 0))
        logged = features.action_codes(columns["action"][i : i + 1])
        found = policy.choose(columns["task"][i], x[0]).index
        code = logged if found < 0 else np.array([found])
        new[s] += columns["w"][i] * features.phi(x, code)[0]
        old[s] += columns["w"][i] * features.phi(x, logged)[0]
        weight[s] += columns["w"][i]
        actions[[0, 1], [int(code[0]), int(logged[0])]] += columns["w"][i]
    assert np.allclose(sums.actions, actions / weight.sum())
    assert np.allclose(sums.new, new, rtol=1e-12, atol=1e-12)
    assert np.allclose(sums.old, old, rtol=1e-12, atol=1e-12)
    assert np.allclose(sums.weight, weight)


def test_predictions_are_phi_times_mean(problem: Any) -> None:
    features, columns, policy, keys = problem
    place = keys.require(columns["task"])
    x = columns["x"][:, None] if features.columns else np.zeros((400, 0))
    codes = features.action_codes(columns["action"])
    found = Predictions(policy.table.means, features).of(place, x, codes)
    expected = np.sum(features.phi(x, codes) * policy.table.means[place], axis=1)
    assert np.allclose(found, expected, rtol=1e-12, atol=1e-14)


def test_contexts_stand_for_a_task_evenly_and_up_to_their_number(problem: Any) -> None:
    features, columns, policy, keys = problem
    counts = np.bincount(keys.require(columns["task"]))
    kept = Contexts(counts, 10)
    judge(batches(columns, features, 33), policy, keys, [kept])
    place, context, index, weight, mask = kept.collected()
    assert mask is None
    assert len(place) == len(context) == len(index) == len(weight)
    each = np.bincount(place)
    assert (each <= 10).all()
    assert (each >= np.minimum(counts, 5)).all()
    if features.columns:
        own = columns["x"][columns["task"] == keys.values[0]]
        taken = context[place == 0, 0]
        step = -(-own.size // 10)
        assert np.array_equal(taken, own[::step])


def test_values_are_added_to_their_rows() -> None:
    rng = np.random.default_rng(0)
    rows, values = rng.integers(5, size=50), rng.normal(size=(50, 3))
    total = rng.normal(size=(6, 3))
    expected = total.copy()
    np.add.at(expected, rows, values)
    add_by(total, rows, values)
    assert np.allclose(total, expected)
    add_by(total, rows[:0], values[:0])
    assert np.allclose(total, expected)
