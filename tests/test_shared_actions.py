"""Actions that share one prior: moments of units, posterior, policy and files, against slow and dense truths."""

import json
import tracemalloc
from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from reference.dense import Array, Dense, Problem
from reference.measure import Measure, norm
from strategies import covariances, features_of_rank, seeds

from hieropo.artifacts import layout, load, load_policy, save_policy, verify_policy
from hieropo.core.features import Crossed, embedding, indicator, per_action
from hieropo.core.gaussian import Gaussian
from hieropo.core.hierarchy import Hierarchy
from hieropo.core.keys import Keys
from hieropo.core.laws import UnitTable
from hieropo.core.packed import pack, packed_size, unpack
from hieropo.core.policy import LCBPolicy, SamplingPolicy
from hieropo.core.posterior import PosteriorTable, condition
from hieropo.core.shared_actions import (
    SharedActions,
    SharedPosterior,
    condition_shared,
    estimate_shared,
    unit_tree,
)
from hieropo.core.statistics import Moments
from hieropo.core.tree_likelihood import tree_likelihood
from hieropo.core.units import UnitAccumulator, UnitMoments
from hieropo.errors import (
    ArtifactError,
    HieropoWarning,
    InputError,
    LogError,
    MismatchError,
    NumericalError,
    UnknownActionError,
    UnknownTaskError,
)


@dataclass(frozen=True)
class Log:
    """Rows of a log, and the map that reads them."""

    features: Crossed
    task: Array
    action: Array
    context: Array
    reward: Array
    weight: Array

    def where(self, keep: Any) -> "Log":
        arrays = (self.task, self.action, self.context, self.reward, self.weight)
        return Log(self.features, *(array[keep] for array in arrays))

    def units(self, pieces: int = 1) -> UnitMoments:
        total = UnitAccumulator(self.features)
        for part in np.array_split(np.arange(len(self.task)), pieces):
            some = self.where(part)
            total.add(some.task, some.action, some.context, some.reward, some.weight)
        return total.moments()

    def dense(self) -> Moments:
        phi = self.features.phi(self.context, self.action)
        return Moments.from_arrays(
            self.task, phi, self.reward, self.weight, features=self.features.fingerprint
        )


def log(m: int = 6, K: int = 4, c: int = 2, n: int = 80, *, seed: int = 0, whole: bool = False) -> Log:
    """Draw a log; of whole numbers, whose sums are exact; the last action is taken once, the last task once."""
    rng = np.random.default_rng(seed)
    features = per_action([f"a{k}" for k in range(K)], [f"x{j}" for j in range(c)])
    task, action = 10 * rng.integers(0, m - 1, n), rng.integers(0, K - 1, n)
    task[0], action[0] = 10 * (m - 1), 0
    action[1] = K - 1
    if whole:
        return Log(
            features,
            task,
            action,
            rng.integers(-9, 10, (n, c)).astype(float),
            rng.integers(-9, 10, n).astype(float),
            np.ones(n),
        )
    return Log(
        features, task, action, rng.standard_normal((n, c)), rng.standard_normal(n), rng.uniform(0.5, 2.0, n)
    )


def prior(p: int, *, flat: bool = False, effect: bool = False, seed: int = 1) -> SharedActions:
    rng = np.random.default_rng(seed)
    root, between, own = (rng.standard_normal((p, p)) for _ in range(3))
    own[:, 0] = 0.0  # singular
    hyper = None if flat else Gaussian(rng.standard_normal(p), root @ root.T)
    common = rng.standard_normal((p, p)) if effect else None
    covs = between @ between.T, own @ own.T + 0.01 * np.diag(np.arange(p))
    return SharedActions(hyper, *covs, 0.7, None if common is None else common @ common.T)


def dense_twin(hierarchy: SharedActions, K: int) -> Hierarchy:
    """Prior of all d = K p coefficients of a task at once."""
    assert hierarchy.hyper is not None
    common = np.kron(np.ones((K, K)), hierarchy.hyper.cov) + np.kron(np.eye(K), hierarchy.action_cov)
    mean, own = np.tile(hierarchy.hyper.mean, K), np.kron(np.eye(K), hierarchy.task_cov)
    if hierarchy.effect_cov is not None:
        own = own + np.kron(np.ones((K, K)), hierarchy.effect_cov)
    return Hierarchy(Gaussian(mean, common), own, hierarchy.noise_var)


@cache
def fitted(*, flat: bool = False, effect: bool = False, seed: int = 0) -> tuple[Log, SharedPosterior]:
    rows = log(seed=seed)
    return rows, condition_shared(rows.units(), prior(3, flat=flat, effect=effect))


def assert_near(got: Gaussian, want: Gaussian, tolerance: float = 1e-12) -> None:
    size = norm(want.cov)
    assert norm(got.cov - want.cov) <= tolerance * size
    assert norm(got.mean - want.mean) <= tolerance * (norm(want.mean) + np.sqrt(size))


# Moments of units


def test_dense_moments_of_units_are_the_moments_of_the_whole_map_to_the_last_bit() -> None:
    rows = log(whole=True)
    got, want = rows.units().dense(), rows.dense()
    assert got.features == want.features
    place = got.keys.locate(want.tasks)
    for name in ("sums", "rows"):
        np.testing.assert_array_equal(getattr(got, name)[place], getattr(want, name))
    assert log().units().dense().allclose(log().dense(), rtol=1e-14)


@pytest.mark.parametrize("pieces", [2, 5, 80])
def test_units_in_any_pieces_are_the_same(pieces: int) -> None:
    rows = log(whole=True)
    whole, split = rows.units(), rows.units(pieces)
    assert split.dense().allclose(whole.dense(), rtol=0.0)
    assert len(split) == len(whole)


def test_units_form_a_group_as_the_dense_moments_do() -> None:
    rows = log(whole=True, n=120)
    first, second = (
        rows.where(slice(0, 70)),
        rows.where(slice(50, 120)),
    )  # tasks in another order, some in one only
    assert (first.units() + second.units()).dense().allclose(first.dense() + second.dense(), rtol=0.0)
    assert (first.units() - second.units()).dense().allclose(first.dense() - second.dense(), rtol=0.0)
    assert (-first.units()).dense().allclose(-first.dense(), rtol=0.0)
    assert first.units().scale(0.25).dense().allclose(first.dense().scale(0.25))
    assert sum([first.units(), second.units()]).n_rows == 140  # type: ignore[attr-defined]
    back = first.units() + second.units() - second.units()
    assert back.dense().select(first.units().tasks).allclose(first.units().dense(), rtol=0.0)
    tasks = first.units().tasks[[2, 0]]
    assert first.units().select(tasks).dense().allclose(first.dense().select(tasks), rtol=0.0)


def test_ids_of_any_kind_are_kept() -> None:
    features = indicator(["l", "r"])
    total = UnitAccumulator(features)
    total.add(["south", 7], [0, 1], None, [1.0, 2.0])
    total.add(np.array([7, 8]), [1, 1], None, [3.0, 4.0])
    found = total.moments()
    assert found.tasks.tolist() == ["south", 7, 8]
    np.testing.assert_array_equal(found.rows, [[1, 0], [0, 2], [0, 1]])
    np.testing.assert_array_equal(found.sums[1, 1], [2, 5, 13, 2, 5, 2])
    empty = UnitAccumulator(features).moments()
    assert (empty.rows.shape, empty.sums.shape, (empty + found).n_rows) == ((0, 2), (0, 2, 6), 4)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"action": [0, 2]}, InputError, r"Action code 2 \(row 1\) is not in 0 \.\. 1"),
        ({"action": [-1, 0]}, InputError, r"Action code -1 \(row 0\)"),
        ({"action": [0.0, 1.0]}, InputError, "whole numbers"),
        ({"action": [0]}, InputError, "do not fit 2 task ids"),
        ({"reward": [0.0, np.nan]}, LogError, "reward"),
        ({"weight": [1.0, -1.0]}, LogError, "weight"),
        ({"context": [[0.0], [np.inf]]}, LogError, "'x', row 1"),
        ({"reward": [0.0, 1e200]}, LogError, "task 'b' are not finite"),
    ],
)
def test_rows_that_cannot_be_used_are_refused(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    total = UnitAccumulator(per_action(["l", "r"], ["x"]))
    rows = {"task": ["a", "b"], "action": [0, 1], "context": [[0.0], [1.0]], "reward": [0.0, 1.0]} | change

    def moments() -> UnitMoments:
        total.add(**rows)
        return total.moments()

    with pytest.raises(error, match=message):
        moments()


def test_moments_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(InputError, match="coefficients of its own"):
        UnitAccumulator(embedding(["l", "r"], [[1.0, 0.0], [1.0, 1.0]]))
    one, other = log(K=3).units(), log(K=4).units()
    with pytest.raises(MismatchError, match="3 actions and moments of 4 actions"):
        one + other
    with pytest.raises(MismatchError, match="features"):
        log(c=1).units() + log(c=2).units()
    with pytest.raises(InputError, match="selected twice"):
        one.select([0, 0])
    with pytest.raises(InputError, match="units do not fit"):
        UnitMoments(one.keys, 5, one.units)


# The posterior


@st.composite
def unit_problems(draw: st.DrawFn, *, flat: bool = False) -> Problem:
    """A tree of units (task, action) below actions below the root, of every rank; some units have no rows."""
    p, K, m = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    noise_var = 4.0 ** draw(st.integers(-2, 2)) * 1.3
    ids: list[Hashable] = [(s, a) for s in range(m) for a in range(K)]
    rows = [draw(features_of_rank(p, noise_var, max_rows=4)) for _ in ids]
    rng = np.random.default_rng(draw(seeds))
    task = [unit for unit, own in zip(ids, rows, strict=True) for _ in own]
    phi = np.concatenate([np.zeros((0, p)), *rows])
    precision = rng.uniform(0.2, 5.0, len(task))
    reward = phi @ rng.standard_normal(p) + rng.standard_normal(len(task)) * np.sqrt(noise_var / precision)
    return Problem(
        task=task,
        phi=phi,
        reward=reward,
        precision=precision,
        task_cov=draw(covariances(p)),
        noise_var=noise_var,
        hyper_mean=rng.standard_normal(p),
        hyper_cov=None if flat else draw(covariances(p)),
        levels=((draw(covariances(p)), {unit: unit[1] for unit in ids}),),  # type: ignore[index]
    )


def posterior_of(problem: Problem) -> SharedPosterior:
    """Bring a tree of units to moments of units and condition on them."""
    units = list(problem.levels[0][1])
    m, K = (1 + max(unit[k] for unit in units) for k in (0, 1))  # type: ignore[index]
    features = per_action(range(K), [f"x{j}" for j in range(problem.dim)], intercept=False)
    total = UnitAccumulator(features)
    # Every task is here, also those without rows: a row of weight 0 counts as absent.
    task = np.array([*range(m), *(unit[0] for unit in problem.task)])  # type: ignore[index]
    action = np.array([*[0] * m, *(unit[1] for unit in problem.task)])  # type: ignore[index]
    phi = np.concatenate([np.zeros((m, problem.dim)), problem.phi])
    reward, precision = np.append(np.zeros(m), problem.reward), np.append(np.ones(m), problem.precision)
    weight = np.append(np.zeros(m), np.ones(len(problem.reward)))
    total.add(task, action, phi, reward, weight, precision)
    flat = problem.hyper_cov is None
    hyper = None if flat else Gaussian(problem.hyper_mean, problem.hyper_cov)
    hierarchy = SharedActions(hyper, problem.levels[0][0], problem.task_cov, problem.noise_var)
    return condition_shared(total.moments(), hierarchy)


def assert_is_dense(post: SharedPosterior, dense: Dense) -> None:
    """Hold every view against the conditioned joint Gaussian of all units."""
    measure, p = Measure(dense), dense.problem.dim
    m, K = post.moments.rows.shape
    measure.assert_law((post.hyper.mean, post.hyper.cov), dense.hyper, "the root")
    measure.assert_evidence(post.log_evidence)
    new = post.new_task()
    table = post.table()
    for a in range(K):
        at = slice(a * p, (a + 1) * p)
        action, unseen = post.action(a), post.unit("never seen", a)
        measure.assert_law((action.mean, action.cov), dense.node(0, a), f"action {a}")
        measure.assert_law((unseen.mean, unseen.cov), dense.new_task(a), f"a new task's action {a}")
        measure.assert_law((new.mean[at], new.cov[at, at]), dense.new_task(a), f"block {a} of a new task")
        measure.assert_law(
            (table.prior_means[a], unpack(table.prior_covs[a], p)),
            dense.new_task(a),
            f"the table's prior {a}",
        )
    for s in range(m):
        joint = post.task(s)
        for a in range(K):
            truth, unit = dense.task((s, a)), post.unit(s, a)
            measure.assert_law((unit.mean, unit.cov), truth, f"unit {s}, {a}")
            measure.assert_law(
                (table.means[s, a], unpack(table.covs[s, a], p)), truth, f"table of unit {s}, {a}"
            )
            measure.assert_law((joint.mean[a * p : (a + 1) * p], unit.cov), truth, f"mean of unit {s}, {a}")
            for b in range(K):
                block = joint.cov[a * p : (a + 1) * p, b * p : (b + 1) * p]
                scale = np.sqrt(norm(truth[1]) * norm(dense.task((s, b))[1]))
                measure.assert_cov(block, dense.cov_between((s, a), (s, b)), scale, f"units {s}, {a} and {b}")


@given(unit_problems())
@settings(max_examples=30)
def test_it_is_the_conditioned_joint_gaussian(problem: Problem) -> None:
    assert_is_dense(posterior_of(problem), Dense(problem))


@given(unit_problems(flat=True))
@settings(max_examples=30)
def test_it_is_with_a_flat_hyper_prior(problem: Problem) -> None:
    dense = Dense(problem)
    if dense.determinacy < 1e-14:
        event("mu is not determined")
        with pytest.raises(NumericalError, match="never varies"):
            posterior_of(problem)
    elif Measure(dense).kappa < 1e8:
        event("mu is determined")
        assert_is_dense(posterior_of(problem), dense)


@pytest.mark.parametrize("effect", [False, True])
def test_it_is_the_hierarchy_of_all_coefficients_at_once(effect: bool) -> None:  # noqa: FBT001
    rows, post = fitted(effect=effect)
    twin = condition(rows.dense(), dense_twin(post.hierarchy, 4))
    assert post.log_evidence == pytest.approx(twin.log_evidence, rel=1e-12)
    for task in (0, 10, 50, "never seen"):
        assert_near(post.task(task), twin.task(task))
    assert_near(post.new_task(), twin.new_task())
    whole, expected = post.dense(), twin.table()
    np.testing.assert_allclose(whole.rows, expected.rows[expected.keys.locate(whole.keys.values)])
    for row, task in enumerate(whole.keys.values.tolist()):
        assert_near(Gaussian(whole.means[row], unpack(whole.covs[row], 12)), twin.task(task))
    assert_near(whole.prior, twin.new_task())
    table = post.table()
    for a in range(4):
        at, action = slice(3 * a, 3 * a + 3), post.action(a)
        assert_near(action, Gaussian(twin.hyper.mean[at], twin.hyper.cov[at, at]))
        assert_near(
            Gaussian(table.prior_means[a], unpack(table.prior_covs[a], 3)), marginal(twin.new_task(), at)
        )
        for row, task in enumerate(table.keys.values.tolist()):
            own = Gaussian(table.means[row, a], unpack(table.covs[row, a], 3))
            assert_near(own, marginal(twin.task(task), at))
            assert_near(post.unit(task, a), own, 1e-14)


def marginal(whole: Gaussian, at: slice) -> Gaussian:
    return Gaussian(whole.mean[at], whole.cov[at, at])


@st.composite
def effect_problems(draw: st.DrawFn) -> tuple[Problem, SharedActions, int]:
    """Tasks of all K p coefficients at once, with an effect that all actions have in common, of every rank."""
    p, K, m = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(seeds))
    rows = [(s, a, draw(features_of_rank(p, 1.3, max_rows=3))) for s in range(m) for a in range(K)]
    task = [s for s, _, own in rows for _ in own]
    phi = np.zeros((len(task), K, p))
    phi[range(len(task)), [a for _, a, own in rows for _ in own]] = np.concatenate([own for *_, own in rows])
    covs = [draw(covariances(p)) for _ in range(4)]
    shared = SharedActions(Gaussian(rng.standard_normal(p), covs[0]), covs[1], covs[2], 1.3, covs[3])
    twin = dense_twin(shared, K)
    assert twin.hyper is not None
    reward = phi.sum(axis=(1, 2)) + rng.standard_normal(len(task))
    weight = rng.uniform(0.2, 5.0, len(task))
    problem = Problem(
        list(task),
        phi.reshape(-1, K * p),
        reward,
        weight,
        twin.task_cov,
        1.3,
        twin.hyper.mean,
        twin.hyper.cov,
    )
    return problem, shared, K


@given(effect_problems())
@settings(max_examples=30)
def test_with_an_effect_of_the_task_it_is_the_conditioned_joint_gaussian(
    drawn: tuple[Problem, SharedActions, int],
) -> None:
    problem, shared, K = drawn
    dense, p = Dense(problem), shared.unit_dim
    measure = Measure(dense)
    if (
        measure.kappa > 1e6
    ):  # integrating the effect out subtracts, so that it needs some of the digits that are left
        event("hardly any digits")
        return
    event("digits")
    features = per_action(range(K), [f"x{j}" for j in range(p)], intercept=False)
    split = problem.phi.reshape(-1, K, p)
    action = np.where(split.any(axis=2).any(axis=1), split.any(axis=2).argmax(axis=1), 0)
    total = UnitAccumulator(features)
    total.add(
        problem.task, action, split[np.arange(len(action)), action], problem.reward, None, problem.precision
    )
    post = condition_shared(total.moments(), shared)
    measure.assert_evidence(post.log_evidence)
    new = post.new_task()
    measure.assert_law((new.mean, new.cov), dense.new_task(), "a new task")
    table = post.table()
    for row, s in enumerate(post.moments.tasks.tolist()):
        joint, truth = post.task(s), dense.task(s)
        measure.assert_law((joint.mean, joint.cov), truth, f"task {s}")
        np.testing.assert_allclose(table.means[row].reshape(-1), joint.mean, rtol=1e-12, atol=1e-12)


def test_no_effect_is_an_effect_without_variance() -> None:
    rows, post = fitted(flat=True)
    none = condition_shared(rows.units(), replace(post.hierarchy, effect_cov=np.zeros((3, 3))))
    assert none.log_evidence == pytest.approx(post.log_evidence, rel=1e-12)
    for task in (0, 50, "never seen"):
        assert_near(none.task(task), post.task(task))


def test_what_one_action_shows_of_a_task_is_used_for_its_others() -> None:
    rng = np.random.default_rng(8)
    features, m = indicator(["l", "r"]), 300
    level = rng.standard_normal(m)  # a task is high or low in both actions
    task = np.repeat(np.arange(m), 6)
    action = np.where(task % 2 == 0, 0, rng.integers(0, 2, 6 * m))  # every second task never took the second
    total = UnitAccumulator(features)
    total.add(task, action, None, level[task] + 0.3 * rng.standard_normal(6 * m))
    alone = SharedActions(None, np.eye(1), np.eye(1), 0.09)
    tied = replace(alone, task_cov=0.01 * np.eye(1), effect_cov=np.eye(1))
    errors = []
    for hierarchy in (alone, tied):
        table = condition_shared(total.moments(), hierarchy).table()
        errors.append(np.sqrt(((table.means[::2, 1, 0] - level[::2]) ** 2).mean()))
    assert errors[0] > 0.8
    assert errors[1] < 0.25


@pytest.mark.parametrize("effect", [False, True])
def test_a_flat_hyper_prior_is_the_limit_of_wide_ones(effect: bool) -> None:  # noqa: FBT001
    rows, post = fitted(flat=True, effect=effect)
    wide = replace(post.hierarchy, hyper=Gaussian(np.zeros(3), 1e9 * np.eye(3)))
    limit = condition_shared(rows.units(), wide)
    for task in (0, 50, "never seen"):
        assert_near(limit.task(task), post.task(task), 1e-6)
    gap = -1.5 * np.log(2 * np.pi * 1e9)
    assert limit.log_evidence - gap == pytest.approx(post.log_evidence, rel=1e-6)


def test_a_rarely_taken_action_borrows_and_stops_no_fit() -> None:
    rng = np.random.default_rng(4)
    rows = log(m=30, K=5, n=2000, seed=4)
    theta = np.array([2.0, -1.0, 0.5]) + 0.1 * rng.standard_normal((5, 3))
    signal = np.einsum("nj,nj->n", np.column_stack([np.ones(2000), rows.context]), theta[rows.action])
    rows = replace(rows, reward=signal + 0.1 * rng.standard_normal(2000))
    assert np.bincount(rows.action)[4] == 1
    with pytest.raises(NumericalError, match="hyper"):
        condition(rows.dense(), Hierarchy(None, 0.01 * np.eye(15), 0.01))
    post = condition_shared(rows.units(), SharedActions(None, 0.01 * np.eye(3), 0.01 * np.eye(3), 0.01))
    rare, common, strange = post.action(4), post.action(0), post.new_action()
    assert np.abs(rare.mean - [2.0, -1.0, 0.5]).max() < 0.5
    assert (np.linalg.eigvalsh(rare.cov) > np.linalg.eigvalsh(common.cov)).all()
    assert np.linalg.eigvalsh(strange.cov - rare.cov)[0] > -1e-10


def test_the_tree_of_units_has_the_evidence_of_the_posterior() -> None:
    rows, post = fitted(flat=True)
    tree = unit_tree(rows.units())
    sigma = post.hierarchy
    found = tree_likelihood(
        tree, (sigma.task_cov / sigma.noise_var, sigma.action_cov / sigma.noise_var), "reml", 1e-9
    )
    scale = (
        found.noise_var / sigma.noise_var
    )  # the noise is profiled, so that the ratios are those of other covariances
    twin = SharedActions(None, scale * sigma.action_cov, scale * sigma.task_cov, found.noise_var)
    post = condition_shared(rows.units(), twin)
    assert -2 * post.log_evidence == pytest.approx(found.deviance, rel=1e-12)


def test_no_rows_give_the_prior() -> None:
    hierarchy = prior(2)
    assert hierarchy.hyper is not None
    post = condition_shared(UnitAccumulator(per_action(list("abc"), ["x"])).moments(), hierarchy)
    assert post.log_evidence == 0.0
    assert post.table().means.shape == (0, 3, 2)
    twin = dense_twin(hierarchy, 3)
    assert twin.hyper is not None
    assert_near(post.task(1), Gaussian(twin.hyper.mean, twin.hyper.cov + twin.task_cov))


def test_many_actions_cost_no_memory_of_all_coefficients_together() -> None:
    rows = log(m=20, K=400, c=1, n=4000)
    units, hierarchy = rows.units(), prior(2)
    condition_shared(units, hierarchy).table()
    tracemalloc.start()
    condition_shared(units, hierarchy).table()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.1 * 8 * 20 * packed_size(800)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"action_cov": np.eye(2)}, MismatchError, "action_cov has dimension 2; task_cov has 3"),
        ({"action_cov": -np.eye(3)}, NumericalError, "action_cov .* negative eigenvalue"),
        ({"task_cov": np.ones((3, 2))}, InputError, "task_cov has shape"),
        ({"noise_var": 0.0}, InputError, "noise_var is 0.0"),
        ({"effect_cov": np.eye(2)}, MismatchError, "effect_cov has dimension 2"),
        ({"effect_cov": -np.eye(3)}, NumericalError, "effect_cov .* negative eigenvalue"),
        ({"hyper": Gaussian(np.zeros(2), np.eye(2))}, MismatchError, "hyper has dimension 2"),
    ],
)
def test_a_prior_that_is_none_is_refused(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        replace(prior(3), **change)


def test_what_is_not_there_is_refused() -> None:
    rows, post = fitted()
    with pytest.raises(MismatchError, match="3 features an action, the hierarchy 2"):
        condition_shared(rows.units(), prior(2))
    with pytest.raises(NumericalError, match="action 0 of task 50 are no sums of rows"):
        condition_shared(rows.where(slice(1, None)).units() - rows.units(), prior(3))
    with pytest.raises(UnknownTaskError, match="99"):
        post.unit(99, 0, unseen="error")
    for action in (-1, 4):
        with pytest.raises(InputError, match=rf"no action {action}"):
            post.action(action)
    with pytest.raises(InputError, match="missing id"):
        post.task(None)
    with pytest.raises(InputError, match="unseen='maybe'"):
        post.task(0, unseen="maybe")  # type: ignore[arg-type]


# The policy


def side_by_side(table: UnitTable) -> PosteriorTable:
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
    return PosteriorTable(table.keys, table.means.reshape(m, K * p), covs, rows, unseen)  # type: ignore[arg-type]


def units_of(m: int, K: int, p: int, seed: int) -> Any:
    """A table of laws, many of them equal, so that there are ties."""
    from hieropo.core.shared_actions import UnitTable as Table

    rng = np.random.default_rng(seed)
    few = rng.standard_normal((3, p)), pack(np.array([f @ f.T for f in rng.standard_normal((3, p, p))]))
    pick, unseen = rng.integers(0, 3, (m, K)), rng.integers(0, 3, K)
    laws = few[0][pick], few[1][pick], np.zeros(m, dtype=np.int64), few[0][unseen], few[1][unseen]
    return Table(Keys(np.arange(m)), *laws)


@given(st.integers(1, 27), st.integers(0, 4), st.integers(0, 30), st.integers(1, 4), seeds)
@settings(max_examples=60)
def test_a_policy_of_units_is_the_dense_policy_to_the_last_bit(
    K: int, c: int, n: int, top: int, seed: int
) -> None:
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


@pytest.mark.parametrize("effect", [False, True])
def test_a_policy_of_a_shared_posterior_is_that_of_the_joint_laws(effect: bool) -> None:  # noqa: FBT001
    rows, post = fitted(flat=not effect, effect=effect)
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
    with pytest.raises(
        InputError, match=r"row 2, has features of the actions in the places 1 and 3.*dense\(\)"
    ):
        policy.lower_bound(0, mixed)
    with pytest.raises(InputError, match="row 2"):
        policy.choose(0, phi=mixed)
    moved = np.zeros((4, 12))
    moved[2, 3] = 1.0
    with pytest.raises(InputError, match="candidate 2, has features of action 1"):
        policy.choose_many([0], phi=moved[None])
    broken = rows.features.candidates(np.ones((1, 2)))[0]
    broken[1, 4] = np.nan
    with pytest.raises(LogError, match=r"candidate 1 \(action 'a1'\): feature 4 \('a1:x0'\) is nan"):
        policy.choose(0, phi=broken)
    assert policy.choose(0, phi=broken, eligible=["a0", "a2"]).action in ("a0", "a2")
    with pytest.raises(LogError, match=r"feature 4 \('a1:x0'\) is nan"):
        policy.lower_bound(0, broken)
    with pytest.raises(LogError, match="Column 'x0', row 1001: nan"):
        policy.choose_many([0, 0], [[0.0, 0.0], [np.nan, 0.0]], first_row=1000)
    with pytest.raises(NumericalError, match="Row 0: the score of a candidate overflows"):
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
    with pytest.raises(MismatchError, match="Hand in the map that read the log"):
        LCBPolicy(post, per_action(["b0", "b1", "b2", "b3"], ["x0", "x1"]))
    with pytest.raises(MismatchError, match="laws for each of 4 actions"):
        LCBPolicy(post.table(), per_action(["b0", "b1", "b2"], ["x0", "x1", "x2"]))
    with pytest.raises(MismatchError, match="laws for each of 4 actions"):
        LCBPolicy(post.table(), embedding(["b0", "b1", "b2", "b3"], np.ones((4, 4)), ["x0", "x1"]))
    with pytest.raises(InputError, match=r"posterior\.dense\(\)"):
        SamplingPolicy(post, rows.features, random_state=0)
    assert (
        SamplingPolicy(post.dense(), rows.features, random_state=0).choose(0, [0.0, 0.0]).action is not None
    )
    table = post.table()
    with pytest.raises(MismatchError, match="are needed"):
        LCBPolicy(replace(table, prior_covs=table.prior_covs[:, :3]))


# Files


def save(post: SharedPosterior, features: Crossed, path: Path) -> LCBPolicy:
    policy = LCBPolicy(post, features, pessimism=0.7)
    parts = {"moments": post.moments, "hierarchy": post.hierarchy, "hyper": post.hyper}
    save_policy(policy, path, **parts, log_evidence=post.log_evidence)
    return policy


@pytest.mark.parametrize("effect", [False, True])
def test_load_after_save_is_the_identity(effect: bool, tmp_path: Path) -> None:  # noqa: FBT001
    rows, post = fitted(flat=not effect, effect=effect)
    policy = save(post, rows.features, tmp_path / "policy")
    stored = load_policy(tmp_path / "policy")
    table = stored.policy.table
    assert isinstance(table, UnitTable)
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
    assert isinstance(moments, UnitMoments)
    assert isinstance(hierarchy, SharedActions)
    assert moments.dense().allclose(post.moments.dense(), rtol=0.0)
    again = condition_shared(moments, hierarchy)
    assert again.log_evidence == post.log_evidence == stored.log_evidence
    assert stored.hyper is not None
    np.testing.assert_array_equal(stored.hyper.mean, post.hyper.mean)
    fresh = log(seed=9)
    more = condition_shared(moments + fresh.units(), hierarchy)
    both = condition_shared(post.moments + fresh.units(), post.hierarchy)
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
    rewrite(place, prior=document["prior"], hierarchy={**document["hierarchy"], "noise_var": 0.9})
    with pytest.raises(ArtifactError, match=r"(?s)action 0 of task .* the moments give"):
        load_policy(place).moments()
    rewrite(place, hierarchy=document["hierarchy"], log_evidence=post.log_evidence + 0.1)
    load_policy(place).moments()
    with pytest.raises(ArtifactError, match="log evidence is"):
        verify_policy(place)


def test_parts_of_another_fit_are_not_saved_together(tmp_path: Path) -> None:
    (rows, post), (_, other) = fitted(), fitted(seed=3)
    policy, place = LCBPolicy(post, rows.features), tmp_path / "policy"
    with pytest.raises(MismatchError, match=r"has for action \d of task .* the mean"):
        save_policy(policy, place, moments=other.moments, hierarchy=post.hierarchy, hyper=post.hyper)
    with pytest.raises(MismatchError, match="one law for each action of a task, and its moments, Moments"):
        save_policy(policy, place, moments=rows.dense())
    with pytest.raises(MismatchError, match="one law for a task, and its hierarchy, SharedActions"):
        save_policy(LCBPolicy(post.dense()), place, hierarchy=post.hierarchy)
    with pytest.raises(MismatchError, match="3 features, its hyper 12"):
        save_policy(policy, place, hyper=post.new_task())
    with pytest.raises(MismatchError, match="3 features, its hierarchy 2"):
        save_policy(policy, place, hierarchy=prior(2))
    assert not place.exists()


def test_learning_tells_how_actions_vary_from_how_tasks_vary() -> None:
    rng = np.random.default_rng(11)
    m, K, n = 150, 40, 150
    means = np.array([1.0, -1.0]) + rng.standard_normal((K, 2)) * np.array([2.0, 0.7])
    theta = means + 0.3 * rng.standard_normal((m, K, 2))
    task, action = np.repeat(np.arange(m), n), rng.integers(K, size=m * n)
    x = rng.standard_normal((m * n, 1))
    reward = (np.column_stack([np.ones(m * n), x]) * theta[task, action]).sum(axis=1)
    running = UnitAccumulator(per_action([f"a{k}" for k in range(K)], ["x"]))
    running.add(task, action, x, reward + 0.5 * rng.standard_normal(m * n))
    estimate, found = estimate_shared(running.moments(), "diag")
    np.testing.assert_allclose(np.sqrt(np.diagonal(found.task_cov)), [0.3, 0.3], rtol=0.1)
    np.testing.assert_allclose(np.sqrt(np.diagonal(found.action_cov)), [2.0, 0.7], rtol=0.35)
    assert found.noise_var == pytest.approx(0.25, rel=0.05)
    evidence = condition_shared(running.moments(), found).log_evidence
    for covs in ((found.action_cov * 1.2, found.task_cov), (found.action_cov, found.task_cov * 1.2)):
        other = SharedActions(None, *covs, found.noise_var)
        assert condition_shared(running.moments(), other).log_evidence < evidence
    assert estimate.chosen.parameters == 4


def few_rows(seed: int) -> UnitMoments:
    """Most units have fewer rows than features."""
    rng = np.random.default_rng(seed)
    m, K, n = 12, 3, 48
    task, action, x = rng.integers(m, size=n), rng.integers(K, size=n), rng.normal(size=(n, 2))
    theta = 0.3 * rng.normal(size=(m, K, 3)) + 0.5 * rng.normal(size=(K, 3))
    running = UnitAccumulator(per_action(range(K), ["x", "y"]))
    reward = (np.column_stack([np.ones(n), x]) * theta[task, action]).sum(axis=1) + rng.normal(size=n)
    running.add(task, action, x, reward)
    return running.moments()


@pytest.mark.filterwarnings("ignore:No action of a task has more rows")
@pytest.mark.parametrize("seed", [0, 2, 3, 4, 8, 11])
def test_few_rows_a_unit_do_not_stop_learning(seed: int) -> None:
    """The curvature of these likelihoods is negative at some step, by what its approximation leaves out."""
    moments = few_rows(seed)
    _, best = estimate_shared(moments, "diag")
    evidence = condition_shared(moments, best).log_evidence
    for scale in (0.8, 1.25):
        for name in ("task_cov", "action_cov", "noise_var"):
            other = replace(best, **{name: getattr(best, name) * scale})
            assert condition_shared(moments, other).log_evidence <= evidence + 1e-6


def test_one_row_a_unit_tells_noise_and_differences_together_and_warns() -> None:
    rng = np.random.default_rng(3)
    m, K = 100, 4
    reward = rng.normal(size=(m, 1)) + rng.normal(size=(m, K)) + 2.0 * np.arange(K)
    running = UnitAccumulator(indicator(list("abcd")))
    running.add(np.repeat(np.arange(m), K), np.tile(np.arange(K), m), None, reward.ravel())
    with pytest.warns(HieropoWarning, match="No action of a task has more rows than its features"):
        _, found = estimate_shared(running.moments())
    within = reward.var(axis=0, ddof=1).mean()
    assert found.noise_var + found.task_cov[0, 0] == pytest.approx(within, rel=1e-6)
    assert found.noise_var > 0.1 * within
    assert found.task_cov[0, 0] > 0.1 * within
