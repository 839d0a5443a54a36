"""The crossed prior, exactly: against the conditioned joint Gaussian of everything, for every rank."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from reference.crossed import CrossedMeasure, CrossedProblem, DenseCrossed
from reference.dense import Array
from reference.measure import norm
from strategies import covariances, features_of_rank, seeds

from hieropo._utils.packed import pack, packed_size, unpack
from hieropo.errors import InputError, MismatchError, NumericalError, UnknownTaskError
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.crossed.posterior import CrossedPosterior, condition_crossed
from hieropo.model.gaussian import Gaussian
from hieropo.moments.statistics import Moments
from hieropo.rows.keys import Keys


def unit_moments(problem: CrossedProblem) -> Moments:
    """Sums of the rows of each unit; every task is in them, with rows or without."""
    m, K, p = problem.n_tasks, problem.n_actions, problem.dim
    unit = np.array(problem.task, dtype=int) * K + np.array(problem.action, dtype=int)
    some = Moments.from_arrays(unit, problem.x, problem.reward, precision=problem.precision)
    sums, rows, log_precision = np.zeros((m * K, packed_size(p + 2))), np.zeros(m * K), np.zeros(m * K)
    at = some.tasks.astype(int)
    sums[at], rows[at], log_precision[at] = some.sums, some.rows, some.log_precision
    shape = (m, K)
    return Moments(
        Keys(np.arange(m)), p, sums.reshape(m, K, -1), rows.reshape(shape), log_precision.reshape(shape)
    )


def hierarchy_of(problem: CrossedProblem) -> CrossedHierarchy:
    return CrossedHierarchy(problem.action_cov, problem.level_cov, problem.interaction_cov, problem.noise_var)


def posterior_of(problem: CrossedProblem) -> CrossedPosterior:
    return condition_crossed(unit_moments(problem), hierarchy_of(problem))


@st.composite
def crossed_problems(draw: st.DrawFn) -> CrossedProblem:
    """Every rank of A, L, M and G_sa; units, actions and tasks without rows; noise by action; precisions."""
    p, K = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    m = draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(seeds))
    noise = 4.0 ** rng.integers(-2, 3, K) * 1.3
    covs = [draw(covariances(p)) for _ in range(3)]
    shared = draw(features_of_rank(p, 1.3))
    task, action, x = [], [], [np.zeros((0, p))]
    for s in range(m):
        for a in range(K):
            if rng.random() < 0.4:
                continue
            own = draw(features_of_rank(p, noise[a], max_rows=3)) if rng.random() < 0.5 else shared[:2]
            task += [s] * len(own)
            action += [a] * len(own)
            x.append(own)
    n = len(task)
    order = rng.permutation(n)
    table = np.concatenate(x)
    theta = rng.standard_normal((m, K, p))
    signal = np.array([row @ theta[s, a] for row, s, a in zip(table, task, action, strict=True)]).reshape(n)
    precision = rng.uniform(0.2, 5.0, n) if draw(st.booleans()) else np.ones(n)
    reward = signal + rng.standard_normal(n) * np.sqrt(noise[np.array(action, dtype=int)] / precision)
    return CrossedProblem(
        [task[t] for t in order], [action[t] for t in order], table[order], reward[order], precision[order],
        *covs, noise, m,
    )  # fmt: skip


def plain(seed: int = 0, m: int = 3, K: int = 3, p: int = 2, n: int = 14, **change: Any) -> CrossedProblem:
    rng = np.random.default_rng(seed)
    roots = rng.standard_normal((3, p, p))
    A, L, M = roots @ roots.swapaxes(1, 2)
    task, action = rng.integers(0, m, n), rng.integers(0, K, n)
    x = np.column_stack([np.ones(n), rng.standard_normal((n, p - 1))])
    given = CrossedProblem(
        task.tolist(), action.tolist(), x, rng.standard_normal(n), np.ones(n), A, L, M, rng.uniform(0.5, 2, K), m
    )  # fmt: skip
    return replace(given, **change)


def both(law: Gaussian) -> tuple[Array, Array]:
    return law.mean, law.cov


@pytest.mark.slow
@given(crossed_problems())
@settings(deadline=None, max_examples=40)
def test_it_is_the_conditioned_joint_gaussian_of_everything(problem: CrossedProblem) -> None:
    assume(problem.task)
    truth = DenseCrossed(problem)
    assume(truth.determinacy > 1e-9)
    got, measure = posterior_of(problem), CrossedMeasure(truth)
    event(f"kappa about 1e{int(np.log10(1 + measure.kappa))}")
    m, K = problem.n_tasks, problem.n_actions
    measure.assert_evidence(got.log_evidence, got.square)
    measure.assert_law(both(got.hyper), truth.beta(), "beta")
    measure.assert_law(both(got.new_task()), truth.task(m), "a new task")
    measure.assert_law(both(got.effects()), np.concatenate([truth.effect(a) for a in range(K)]), "all alpha")
    new_action = truth.beta() + truth.effect(K)
    measure.assert_law(both(got.new_action()), new_action, "a new action")
    for a in range(K):
        measure.assert_law(both(got.action(a)), truth.beta() + truth.effect(a), f"action {a}")
    table = got.table()
    for s in range(m):
        measure.assert_law(both(got.task(s)), truth.task(s), f"task {s}")
        measure.assert_law(both(got.unit_new_action(s)), truth.unit(s, K), f"a new action in task {s}")
        for a in range(K):
            measure.assert_law(both(got.unit(s, a)), truth.unit(s, a), f"unit {s}, {a}")
            law = table.means[s, a], unpack(table.covs[s, a], problem.dim)
            measure.assert_law(law, truth.unit(s, a), f"unit {s}, {a} of the table")
    last = truth.unit(m - 1, 0) - truth.unit(m - 1, K - 1)
    measure.assert_law(both(got.difference(m - 1, 0, K - 1)), last, "a difference between actions")
    one, other = truth.task(0), truth.task(m - 1)
    scale = np.sqrt(norm(truth.between(one, one)) * norm(truth.between(other, other)))
    measure.assert_cov(got.cov_between(0, m - 1), truth.between(one, other), scale, "two tasks")


@pytest.mark.slow
@given(crossed_problems(), seeds)
@settings(deadline=None, max_examples=25)
def test_a_sum_over_tasks_has_the_variance_that_all_covariances_give_it(
    problem: CrossedProblem, seed: int
) -> None:
    assume(problem.task)
    truth = DenseCrossed(problem)
    assume(truth.determinacy > 1e-9)
    got, measure = posterior_of(problem), CrossedMeasure(truth)
    m, d = problem.n_tasks, problem.n_actions * problem.dim
    vectors = np.random.default_rng(seed).integers(-3, 4, (m, d)) / 4
    whole = np.concatenate([truth.task(s) for s in range(m)])
    mean, cov = truth.of(whole)
    flat = vectors.reshape(-1)
    got_mean, got_var = (float(part.item()) for part in got.total(vectors[None]))
    size = np.linalg.norm(flat)
    assert abs(got_var - flat @ cov @ flat) <= measure.relative() * norm(cov) * size**2
    want = flat @ mean
    assert (
        abs(got_mean - want)
        <= 1e-10 * norm(mean) * size + 1e3 * measure.relative() * np.sqrt(norm(cov)) * size
    )
    _, own, shared = got.along(np.stack([vectors, vectors[:, ::-1]], axis=1), slice(0, m))
    for s in range(m):
        pair = np.stack([vectors[s], vectors[s, ::-1]])
        want = pair @ got.task(s).cov @ pair.T
        found = own[s] + shared[s] @ shared[s].T
        assert norm(found - want) <= 1e-12 * norm(got.task(s).cov) * norm(pair) ** 2


@pytest.mark.parametrize("K", [1, 4])
def test_actions_without_effect_have_differences_that_are_exactly_zero(K: int) -> None:
    p = 3
    zero = np.zeros((p, p))
    got = posterior_of(plain(m=4, K=K, p=p, n=30, action_cov=zero, interaction_cov=zero))
    assert not got.hierarchy.action_cov.any()
    assert not got.hierarchy.interaction_cov.any()
    assert not got.effects().mean.any()
    assert not got.effects().cov.any()
    for s in range(4):
        for a in range(K):
            law = got.difference(s, 0, a)
            assert not law.mean.any()
            assert not law.cov.any()
    table = got.table()
    np.testing.assert_array_equal(table.means, np.broadcast_to(table.means[:, :1], table.means.shape))
    if K > 1:
        vectors = np.zeros((4, K, p))
        vectors += np.array([0.4, 0.3, 0.2, 0.1])[
            :, None
        ]  # what an incumbent takes, which adds to 1 up to rounding
        vectors[:, 2] -= 1.0
        mean, cov = got.total(vectors.reshape(1, 4, -1))
        assert (mean.item(), cov.item()) == (0.0, 0.0)


@pytest.mark.parametrize("size", [1e2, 1e6, 1e10])
def test_levels_of_any_size_take_no_digits_from_differences_between_actions(size: float) -> None:
    """With p = 1: tasks whose levels differ far more than their actions do, and one action in most tasks."""
    problem = plain(seed=7, m=4, K=3, p=1, n=16, level_cov=np.full((1, 1), size))
    truth, got = DenseCrossed(problem), posterior_of(problem)
    for s in range(4):
        mean, cov = truth.of(truth.unit(s, 0) - truth.unit(s, 2))
        law = got.difference(s, 0, 2)
        np.testing.assert_allclose(law.cov, cov, rtol=1e-12)
        np.testing.assert_allclose(law.mean, mean, rtol=1e-11)
    np.testing.assert_allclose(got.hyper.cov, truth.of(truth.beta())[1], rtol=1e-12)


def test_many_actions_of_which_a_task_has_few_are_the_same_with_and_without_the_others() -> None:
    """Actions without rows change nothing, and the sparse product is the dense one."""
    small = plain(seed=2, m=12, K=3, p=2, n=60)
    K = 60
    wide = replace(small, noise_var=np.concatenate([small.noise_var, np.ones(K - 3)]))
    one, two = posterior_of(small), posterior_of(wide)
    assert two.log_evidence == pytest.approx(one.log_evidence, rel=1e-12)
    for s in range(12):
        np.testing.assert_allclose(two.task(s).cov[:6, :6], one.task(s).cov, rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(two.unit(s, 7).cov, one.unit_new_action(s).cov, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(two.action(9).cov, one.new_action().cov, rtol=1e-11, atol=1e-13)


def test_permuted_tasks_and_actions_permute_the_answers() -> None:
    problem = plain(seed=4, m=4, K=4, p=2, n=30)
    tasks, actions = np.array([2, 0, 3, 1]), np.array([3, 1, 0, 2])
    noise = np.empty(4)
    noise[actions] = problem.noise_var
    turned = replace(
        problem, task=tasks[problem.task].tolist(), action=actions[problem.action].tolist(), noise_var=noise
    )
    one, two = posterior_of(problem), posterior_of(turned)
    assert two.log_evidence == pytest.approx(one.log_evidence, rel=1e-12)
    for s in range(4):
        for a in range(4):
            np.testing.assert_allclose(
                two.unit(tasks[s], actions[a]).cov, one.unit(s, a).cov, rtol=1e-11, atol=1e-13
            )
            np.testing.assert_allclose(
                two.unit(tasks[s], actions[a]).mean, one.unit(s, a).mean, rtol=1e-10, atol=1e-12
            )


def test_rows_of_another_unit_of_reward_scale_the_answers() -> None:
    problem = plain(seed=6)
    scaled = replace(
        problem, reward=3 * problem.reward, noise_var=9 * problem.noise_var, action_cov=9 * problem.action_cov,
        level_cov=9 * problem.level_cov, interaction_cov=9 * problem.interaction_cov,
    )  # fmt: skip
    one, two = posterior_of(problem), posterior_of(scaled)
    np.testing.assert_allclose(two.task(1).mean, 3 * one.task(1).mean, rtol=1e-11)
    np.testing.assert_allclose(two.task(1).cov, 9 * one.task(1).cov, rtol=1e-11)
    assert two.square == pytest.approx(one.square, rel=1e-11)
    n = len(problem.task) - problem.dim
    assert two.log_evidence == pytest.approx(one.log_evidence - n * np.log(3), rel=1e-11)


def test_sums_around_any_offset_give_the_same_answers() -> None:
    problem = plain(seed=8, m=3, K=3, p=2, n=20)
    moments, hierarchy = unit_moments(problem), hierarchy_of(problem)
    one = condition_crossed(moments, hierarchy)
    two = condition_crossed(moments.around(np.tile([2.0, -1.0], 3)), hierarchy)
    assert two.log_evidence == pytest.approx(one.log_evidence, rel=1e-10)
    vectors = np.random.default_rng(0).standard_normal((3, 6))
    pairs = [
        (law(one), law(two))
        for law in (
            lambda post: post.hyper.mean, lambda post: post.action(1).mean, lambda post: post.new_action().mean,
            lambda post: post.unit(1, 2).mean, lambda post: post.unit_new_action(1).mean,
            lambda post: post.task(2).mean, lambda post: post.new_task().mean, lambda post: post.table().means,
            lambda post: post.table().prior_means, lambda post: post.difference(0, 0, 1).mean,
            lambda post: np.array([part.item() for part in post.total(vectors[None])]),
            lambda post: post.effects().mean,
        )
    ]  # fmt: skip
    for want, got in pairs:
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-10)


def test_what_cannot_be_answered_is_refused() -> None:
    problem = plain()
    good, moments = hierarchy_of(problem), unit_moments(problem)
    with pytest.raises(InputError, match=r"noise_var of action 1 is .*-1\.0"):
        replace(good, noise_var=np.array([1.0, -1.0, 1.0]))
    with pytest.raises(InputError, match=r"shape \(\)"):
        replace(good, noise_var=1.0)
    with pytest.raises(MismatchError, match="three matrices of one shape"):
        replace(good, level_cov=np.eye(3))
    with pytest.raises(MismatchError, match="3 actions of 2 features, the hierarchy 2 of 2"):
        condition_crossed(moments, replace(good, noise_var=np.ones(2)))
    with pytest.raises(NumericalError, match="do not determine beta"):
        posterior_of(replace(problem, x=np.ones_like(problem.x)))
    with pytest.raises(NumericalError, match="do not determine beta"):
        posterior_of(replace(problem, x=problem.x * [1.0, 0.0]))
    nothing = moments - moments
    with pytest.raises(NumericalError, match="do not determine beta"):
        condition_crossed(nothing, good)
    with pytest.raises(NumericalError, match="no sums of rows"):
        condition_crossed(-moments, good)
    got = condition_crossed(moments, good)
    with pytest.raises(UnknownTaskError):
        got.task("nobody")
    with pytest.raises(InputError, match="no action 3"):
        got.unit(0, 3)
    with pytest.raises(InputError, match=r"shape \(J, 3, 6\)"):
        got.total(np.zeros((1, 2, 6)))
    assert "CrossedPosterior(Moments(3 tasks of 3 actions" in repr(got)
    assert pack(got.unit(0, 0).cov).shape == (3,)
