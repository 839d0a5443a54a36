"""Policies of the crossed prior: they choose as those of dense laws do, and come back from disk to the last bit."""

import json
import tracemalloc
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.dense import Array
from strategies import seeds
from unit_logs import Log, log

from hieropo import HierOPO
from hieropo._kernels import backend
from hieropo._utils.packed import pack, packed_size, unpack
from hieropo.errors import (
    ArtifactError,
    InputError,
    LogError,
    MismatchError,
    NumericalError,
    UnknownActionError,
    UnknownTaskError,
)
from hieropo.estimation.crossed.integration import integrate_crossed
from hieropo.estimation.crossed.mixture import CrossedHierarchies, CrossedMixture, condition_hierarchies
from hieropo.features.maps import Crossed, embedding, per_action
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.crossed.posterior import condition_crossed
from hieropo.model.gaussian import Gaussian
from hieropo.model.table import PosteriorTable
from hieropo.moments.units import UnitAccumulator
from hieropo.policies.lower_bound import LCBPolicy, SamplingPolicy
from hieropo.rows.keys import Keys
from hieropo.storage import layout, load
from hieropo.storage.load import load_policy, verify_policy
from hieropo.storage.save import save_policy


def prior(p: int, K: int = 4, seed: int = 1) -> CrossedHierarchy:
    rng = np.random.default_rng(seed)
    roots = rng.standard_normal((3, p, p))
    roots[2, :, 0] = 0.0  # singular
    return CrossedHierarchy(*(roots @ roots.swapaxes(1, 2)), rng.uniform(0.5, 1.0, K))


@cache
def fitted(seed: int = 0) -> tuple[Log, CrossedMixture]:
    rows = log(seed=seed)
    units = rows.units()
    return rows, condition_hierarchies(units, integrate_crossed(units))


# The policy


def side_by_side(table: PosteriorTable) -> PosteriorTable:
    """The same laws as one of d = K p coefficients, those of two actions independent."""
    m, K, p = table.means.shape

    def whole(covs: Array) -> Array:
        out = np.zeros((K, p, K, p))
        for a in range(K):
            out[a, :, a] = unpack(covs[a], p)
        return out.reshape(K * p, K * p)

    covs = np.array([pack(whole(own)) for own in table.covs])
    unseen = Gaussian(table.prior_means.reshape(-1), whole(table.prior_covs))
    rows = np.zeros(m, dtype=np.int64)
    return PosteriorTable.joint(table.keys, table.means.reshape(m, K * p), covs, rows, unseen)


def units_of(m: int, K: int, p: int, seed: int) -> Any:
    """A table of laws, many of them equal, so that there are ties."""
    rng = np.random.default_rng(seed)
    few = rng.standard_normal((3, p)), pack(np.array([f @ f.T for f in rng.standard_normal((3, p, p))]))
    pick, unseen = rng.integers(0, 3, (m, K)), rng.integers(0, 3, K)
    laws = few[0][pick], few[1][pick], np.zeros(m, dtype=np.int64), few[0][unseen], few[1][unseen]
    return PosteriorTable(Keys(np.arange(m)), *laws)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reference", "compiled"])  # either alone: the two differ by rounding
@given(st.integers(1, 27), st.integers(0, 4), st.integers(0, 30), st.integers(1, 4), seeds)
@settings(max_examples=60)
def test_a_policy_of_units_is_the_dense_policy_to_the_last_bit(
    name: str, K: int, c: int, n: int, top: int, seed: int
) -> None:
    with backend.forced(name):
        assert_units_are_the_dense_policy(K, c, n, top, seed)


def assert_units_are_the_dense_policy(K: int, c: int, n: int, top: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    features = per_action(range(K), [f"x{j}" for j in range(c)])
    table = units_of(5, K, c + 1, seed)
    pessimism = rng.uniform(-1, 2)
    units = LCBPolicy(table, features, pessimism=pessimism)
    dense = LCBPolicy(side_by_side(table), features, pessimism=pessimism)
    tasks, context = rng.integers(0, 7, n), rng.integers(-2, 3, (n, c)) / 2
    eligible = rng.random((n, K)) < 0.6
    eligible[np.arange(n), rng.integers(0, K, n)] = True
    phi = features.candidates(context)
    for mask in (None, eligible):
        want = dense.choose_many(tasks, context, eligible=mask, top=top)
        for got in (
            units.choose_many(tasks, context, eligible=mask, top=top),
            units.choose_many(tasks, phi=phi, eligible=mask, top=top, threads=2),
        ):
            for one, other in zip(got, want, strict=True):
                np.testing.assert_array_equal(one, other)
    for r in range(min(n, 4)):
        want_one = dense.choose(tasks[r], context[r], eligible=eligible[r])
        assert units.choose(tasks[r], context[r], eligible=eligible[r]) == want_one
        assert units.choose(tasks[r], phi=phi[r], eligible=eligible[r]) == want_one
        bound = units.lower_bound(tasks[r], phi[r])
        np.testing.assert_array_equal(bound, dense.lower_bound(tasks[r], phi[r]))
        assert want_one.index == np.where(eligible[r], bound, -np.inf).argmax()


def test_a_policy_of_the_crossed_prior_is_that_of_the_joint_laws() -> None:
    rows, post = fitted()
    units = LCBPolicy(post, rows.features, pessimism=1.3)
    joint = LCBPolicy(post.dense(), rows.features, pessimism=1.3)
    rng = np.random.default_rng(2)
    tasks, context = 10 * rng.integers(0, 8, 200), rng.standard_normal((200, 2))
    got, want = (policy.choose_many(tasks, context, top=4) for policy in (units, joint))
    np.testing.assert_array_equal(got.index, want.index)
    for name in ("lower_bound", "mean", "sd"):
        np.testing.assert_allclose(getattr(got, name), getattr(want, name), rtol=1e-12, atol=1e-12)
    chosen = units.choose(20, context[0], eligible=["a3", "a1"])
    assert chosen == units.choose(20, context[0], eligible=[False, True, False, True])
    assert chosen.action in ("a1", "a3")


def test_candidates_may_have_contexts_of_their_own() -> None:
    table = units_of(3, 4, 2, 0)
    units, dense = (LCBPolicy(laws) for laws in (table, side_by_side(table)))
    phi = np.zeros((4, 8))
    for a in range(4):
        phi[a, 2 * a : 2 * a + 2] = 1.0, a
    assert units.choose(1, phi=phi) == dense.choose(1, phi=phi)
    spread = phi[[3, 1, 1, 0]].reshape(2, 2, 8)  # bounds may be asked for in any order and shape
    np.testing.assert_array_equal(units.lower_bound(7, spread), dense.lower_bound(7, spread))
    assert units.lower_bound(1, np.empty((0, 8))).shape == (0,)
    assert units.lower_bound(1, np.zeros(8)) == 0.0


def test_a_request_that_cannot_be_answered_says_why() -> None:
    rows, post = fitted()
    policy = LCBPolicy(post, rows.features)
    mixed = np.zeros((4, 12))
    mixed[2, [3, 9]] = 1.0
    with pytest.raises(InputError, match=r"row 2, has features of two actions, numbers 1 and 3.*dense\(\)"):
        policy.lower_bound(0, mixed)
    with pytest.raises(InputError, match="row 2"):
        policy.choose(0, phi=mixed)
    recentred = np.zeros((4, 12))
    recentred[2, 3] = 1.0
    with pytest.raises(InputError, match="candidate 2, has features of action 1"):
        policy.choose_many([0], phi=recentred[None])
    broken = rows.features.candidates(np.ones((1, 2)))[0]
    broken[1, 4] = np.nan
    with pytest.raises(LogError, match=r"candidate 1 \(action 'a1'\): feature 4 \('a1:x0'\) is nan"):
        policy.choose(0, phi=broken)
    assert policy.choose(0, phi=broken, eligible=["a0", "a2"]).action in ("a0", "a2")
    with pytest.raises(LogError, match=r"feature 4 \('a1:x0'\) is nan"):
        policy.lower_bound(0, broken)
    with pytest.raises(LogError, match="Column 'x0', row 1001: nan"):
        policy.choose_many([0, 0], [[0.0, 0.0], [np.nan, 0.0]], first_row=1000)
    with pytest.raises(NumericalError, match="Row 0: the lower bound of a candidate overflows"):
        policy.choose_many([0], [[1e200, 0.0]])
    with pytest.raises(LogError, match="no eligible action among 4 candidates"):
        policy.choose(0, [0.0, 0.0], eligible=np.zeros(4, dtype=bool))
    with pytest.raises(MismatchError, match="3 candidates"):
        policy.choose(0, phi=broken[:3])
    with pytest.raises(UnknownActionError, match="a9"):
        policy.choose(0, [0.0, 0.0], eligible=["a9"])
    with pytest.raises(UnknownTaskError, match="99"):
        LCBPolicy(post, rows.features, unseen="error").choose(99, [0.0, 0.0])


def test_a_map_that_does_not_fit_is_refused() -> None:
    rows, post = fitted()
    with pytest.raises(MismatchError, match="Give the feature map with which the log was read"):
        LCBPolicy(post, per_action(["b0", "b1", "b2", "b3"], ["x0", "x1"]))
    with pytest.raises(MismatchError, match="separate coefficients for each of 4 actions"):
        LCBPolicy(post.table(), per_action(["b0", "b1", "b2"], ["x0", "x1", "x2"]))
    with pytest.raises(MismatchError, match="separate coefficients for each of 4 actions"):
        LCBPolicy(post.table(), embedding(["b0", "b1", "b2", "b3"], np.ones((4, 4)), ["x0", "x1"]))
    with pytest.raises(InputError, match=r"posterior\.dense\(\)"):
        SamplingPolicy(post.table(), rows.features, random_state=0)
    table = post.table()
    with pytest.raises(MismatchError, match="it needs"):
        LCBPolicy(replace(table, prior_covs=table.prior_covs[:, :3]))


# Files


def save(post: CrossedMixture, features: Crossed, path: Path) -> LCBPolicy:
    policy = LCBPolicy(post, features, pessimism=0.7)
    parts = {"moments": post.moments, "hierarchy": post.hierarchy, "hyper": post.hyper}
    save_policy(policy, path, **parts, log_evidence=post.log_evidence)
    return policy


def test_load_after_save_is_the_identity(tmp_path: Path) -> None:
    rows, post = fitted()
    policy = save(post, rows.features, tmp_path / "policy")
    stored = load_policy(tmp_path / "policy")
    table = stored.policy.table
    assert table.per_action
    for name in ("means", "covs", "rows", "prior_means", "prior_covs"):
        np.testing.assert_array_equal(getattr(table, name), getattr(post.table(), name))
    rng = np.random.default_rng(0)
    tasks, context = 10 * rng.integers(0, 8, 50), rng.standard_normal((50, 2))
    for got, want in zip(
        stored.policy.choose_many(tasks, context, top=2),
        policy.choose_many(tasks, context, top=2),
        strict=True,
    ):
        np.testing.assert_array_equal(got, want)
    assert stored.policy.choose(30, context[0]) == policy.choose(30, context[0])
    moments, hierarchy = stored.moments(), stored.hierarchy
    assert moments.per_action
    assert isinstance(hierarchy, CrossedHierarchies)
    assert moments.dense().allclose(post.moments.dense(), rtol=0.0)
    again = condition_hierarchies(moments, hierarchy)
    assert again.log_evidence == post.log_evidence == stored.log_evidence
    assert stored.hyper is not None
    np.testing.assert_array_equal(stored.hyper.mean, post.hyper.mean)
    fresh = log(seed=9)
    more = condition_hierarchies(moments + fresh.units(), hierarchy)
    both = condition_hierarchies(post.moments + fresh.units(), post.hierarchy)
    np.testing.assert_array_equal(more.table().means, both.table().means)
    verify_policy(tmp_path / "policy")
    save_policy(stored.policy, tmp_path / "twin", moments=moments, hierarchy=hierarchy, hyper=stored.hyper)
    assert (tmp_path / "twin" / layout.TASKS).read_bytes() == (
        tmp_path / "policy" / layout.TASKS
    ).read_bytes()


def test_one_task_is_read_and_checked_without_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, post = fitted()
    place = tmp_path / "policy"
    policy = save(post, rows.features, place)
    entry = json.loads((place / layout.POLICY.document).read_bytes())["files"][layout.TASKS]["columns"]
    at = entry["cov"]["buffers"][0][0] + 8 * (
        4 * 4 * 6 + 2 * 6 + 1
    )  # action 2 of the task in row 4, no probe
    raw = bytearray((place / layout.TASKS).read_bytes())
    raw[at] ^= 1
    (place / layout.TASKS).write_bytes(raw)
    with pytest.raises(ArtifactError, match=r"tasks\.arrow"):
        load_policy(place)
    monkeypatch.setattr(load, "SMALL", 0)  # a large policy is not read when it is opened, but for its probes
    stored = load_policy(place).policy
    ids = post.moments.tasks.tolist()
    assert stored.choose(ids[1], [0.5, 0.5]) == policy.choose(ids[1], [0.5, 0.5])
    with pytest.raises(ArtifactError, match="row 4 unlike its checksum"):
        stored.choose(ids[4], [0.5, 0.5])


def rewrite(place: Path, **entries: Any) -> None:
    document = json.loads((place / layout.POLICY.document).read_bytes()) | entries
    document.pop("sha256")
    (place / layout.POLICY.document).write_bytes(layout.encode(document))


def test_a_policy_that_computes_other_numbers_is_refused(tmp_path: Path) -> None:
    rows, post = fitted()
    place = tmp_path / "policy"
    save(post, rows.features, place)
    document = json.loads((place / layout.POLICY.document).read_bytes())
    rewrite(place, pessimism=0.70001)
    with pytest.raises(ArtifactError, match=r"(?s)row 0 along fixed directions are .* this release computes"):
        load_policy(place)
    shifted = {**document["prior"], "mean": (post.table().prior_means + 0.01).tolist()}
    rewrite(place, pessimism=0.7, prior=shifted)
    with pytest.raises(ArtifactError, match="an unseen task"):
        load_policy(place)
    for name, factor in (("noise_var", 0.9), ("level_sd", 1.1)):
        changed = {**document["hierarchy"], name: [factor * one for one in document["hierarchy"][name]]}
        rewrite(place, prior=document["prior"], hierarchy=changed)
        with pytest.raises(ArtifactError, match=r"moments give|when saved"):
            verify_policy(place)
    rewrite(place, hierarchy=document["hierarchy"], log_evidence=post.log_evidence + 0.1)
    load_policy(place).moments()
    with pytest.raises(ArtifactError, match="log evidence is"):
        verify_policy(place)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"weights": [0.5]}, "One number for each hierarchy"),
        ({"weights": "many"}, "could not convert"),
        ({"noise_var": None}, "One number for each hierarchy"),
        ({"kind": "woven"}, "it has no 'hyper'"),
        ({"shapes": {}}, "missing"),
        ({"shapes": []}, "items"),
    ],
)
def test_an_entry_that_describes_no_hierarchy_is_refused_by_file_and_entry(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    rows, post = fitted()
    place = tmp_path / "policy"
    save(post, rows.features, place)
    document = json.loads((place / layout.POLICY.document).read_bytes())
    rewrite(place, hierarchy={**document["hierarchy"], **changes})
    with pytest.raises(ArtifactError, match=rf"'hierarchy' of policy\.json cannot be read: .*{reason}"):
        _ = load_policy(place).hierarchy
    rewrite(place, hierarchy=[1.0])
    with pytest.raises(ArtifactError, match=r"'hierarchy' of policy\.json"):
        load_policy(place).moments()
    rewrite(place, hierarchy=document["hierarchy"], doubt={"kind": "none"})
    with pytest.raises(ArtifactError, match=r"'doubt' of policy\.json .*kind 'none'"):
        _ = load_policy(place).hyper_uncertainty


def test_parts_of_another_fit_are_not_saved_together(tmp_path: Path) -> None:
    (rows, post), (_, other) = fitted(), fitted(seed=3)
    policy, place = LCBPolicy(post, rows.features), tmp_path / "policy"
    save_policy(policy, tmp_path / "mixed", moments=other.moments, hierarchy=post.hierarchy, hyper=post.hyper)
    with pytest.raises(ArtifactError, match=r"moments give|when saved"):
        verify_policy(tmp_path / "mixed")
    with pytest.raises(
        MismatchError, match="one posterior for each action of a task, and its moments, Moments"
    ):
        save_policy(policy, place, moments=rows.dense())
    with pytest.raises(
        MismatchError, match="one posterior for a task, and its hierarchy, CrossedHierarchies"
    ):
        save_policy(LCBPolicy(post.dense()), place, hierarchy=post.hierarchy)
    with pytest.raises(MismatchError, match="3 features, and its hyper 12"):
        save_policy(policy, place, hyper=post.new_task())
    narrow = log(c=1).units()
    with pytest.raises(MismatchError, match="3 features, and its hierarchy 2"):
        save_policy(policy, place, hierarchy=integrate_crossed(narrow))
    assert not place.exists()


def test_many_actions_cost_no_memory_of_all_coefficients_of_every_task() -> None:
    """The root takes (K p)^2 numbers, once; a task takes those of its actions."""
    m, K = 400, 100
    rows = log(m=m, K=K, c=1, n=8000)
    units, hierarchy = rows.units(), prior(2, K)
    condition_crossed(units, hierarchy).table()
    tracemalloc.start()
    condition_crossed(units, hierarchy).table()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.4 * 8 * m * packed_size(2 * K)


def test_drawing_all_coefficients_together_is_drawing_from_the_joint_laws() -> None:
    rows, post = fitted()
    one, other = (
        SamplingPolicy(source, rows.features, random_state=0, n_samples=200)
        for source in (post, post.dense())
    )
    context = np.random.default_rng(3).standard_normal((20, 2))
    tasks = 10 * np.arange(20) % 60
    for got, want in zip(one.choose_many(tasks, context), other.choose_many(tasks, context), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "size"), [("_KEPT", 100), ("_KEPT", 3000), ("_KEPT_FOR_TABLE", 3000)])
def test_a_mixture_answers_the_same_whether_its_parts_are_kept_or_made_again(
    limit: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hieropo.estimation.crossed import mixture as crossed_mixture

    rows = log(n=size)
    units = rows.units()
    hierarchies = integrate_crossed(units)
    kept = condition_hierarchies(units, hierarchies)
    means = kept.table().means
    assert "_kept" in vars(kept)
    for name in (limit, "_KEPT_SUMS"):
        monkeypatch.setattr(crossed_mixture, name, 0)
    again = condition_hierarchies(units, hierarchies)
    np.testing.assert_array_equal(again.table().means, means)
    assert "_kept" not in vars(again)
    np.testing.assert_array_equal(again.table().covs, kept.table().covs)
    assert again.log_evidence == kept.log_evidence


@pytest.mark.slow
def test_the_policy_of_a_learner_is_that_of_the_mixture_of_its_moments(tmp_path: Path) -> None:
    whole = log(n=300)
    rows = whole.where(whole.action < 3)  # the last action is rare
    names = np.array(rows.features.actions)
    table = pa.table(
        {"task": rows.task, "action": names[rows.action], "reward": rows.reward,
         "x0": rows.context[:, 0], "x1": rows.context[:, 1]}
    )  # fmt: skip
    columns = {"task": "task", "action": "action", "reward": "reward", "context": ["x0", "x1"]}
    learner = HierOPO(rows.features, pessimism=0.7).fit(table, **columns)
    units = UnitAccumulator(learner.features_)
    units.add(rows.task, rows.action, rows.context, rows.reward)
    mixture = condition_hierarchies(units.moments(), integrate_crossed(units.moments()))
    policy = LCBPolicy(mixture, learner.features_, pessimism=0.7)
    tasks, context = 10 * np.arange(8), np.random.default_rng(0).standard_normal((8, 2))
    got, want = (each.choose_many(tasks, context, top=4) for each in (learner.policy_, policy))
    np.testing.assert_array_equal(got.index, want.index)
    np.testing.assert_allclose(got.lower_bound, want.lower_bound, rtol=1e-6, atol=1e-8)
    learner.save(tmp_path / "policy")
    verify_policy(tmp_path / "policy")
    loaded = load_policy(tmp_path / "policy").policy.choose_many(tasks, context, top=4)
    for one, other in zip(loaded, got, strict=True):
        np.testing.assert_array_equal(one, other)


def test_hierarchies_are_shown_by_their_number_and_probabilities() -> None:
    hierarchies = fitted()[1].hierarchy
    text = repr(hierarchies)
    assert f"{len(hierarchies)} hierarchies of {hierarchies.n_actions} actions" in text
    assert f"P(no effect) {hierarchies.no_effect:.2g}" in text
    assert len(text) < 200
