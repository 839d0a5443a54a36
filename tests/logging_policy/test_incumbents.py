"""Incumbents that knew something: counts, shares and reactions against slow truths, and tests against their laws."""

from functools import cache

import numpy as np
import pytest
from scipy import stats

from hieropo.errors import InputError
from hieropo.estimation.reml import estimate
from hieropo.estimation.tree_estimation import estimate_levels
from hieropo.features.maps import embedding, indicator, per_action
from hieropo.logging_policy.choice_logits import choice_logits
from hieropo.logging_policy.incumbents import (
    NAME,
    WHERE,
    Reaction,
    Reactions,
    action_counts,
    informed_metadata,
    knowledge,
    log_shares,
    ranks,
)
from hieropo.model.hierarchy import Hierarchy
from hieropo.model.posterior import condition
from hieropo.moments.statistics import Moments

K = 4
ONE = indicator(range(K))


def rows(seed: int, m: int = 12, n: int = 90) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    task = np.concatenate([np.arange(m), rng.integers(0, m, n - m)])
    return task, rng.integers(0, K - 1, n), rng.standard_normal(n)  # the last action is never taken


def world(seed: int, kind: str, m: int = 40, n: int = 15, beta: float = 2.0) -> tuple[np.ndarray, ...]:
    """Task, action, reward in the order of time; the incumbent is random, knows theta, or learns from these rows."""
    rng = np.random.default_rng([7, seed])
    theta = 0.3 * rng.standard_normal(K) + 0.5 * rng.standard_normal((m, K))
    action, reward = np.empty((n, m), dtype=np.int64), np.empty((n, m))
    count, total = np.zeros((m, K)), np.zeros((m, K))
    for t in range(n):
        known = {"random": 0.0 * theta, "knows": beta * theta, "learns": beta * total / (count + 1)}[kind]
        action[t] = (known + rng.gumbel(size=(m, K))).argmax(axis=1)
        reward[t] = theta[np.arange(m), action[t]] + rng.standard_normal(m)
        count[np.arange(m), action[t]] += 1
        total[np.arange(m), action[t]] += reward[t]
    return np.tile(np.arange(m), n), action.ravel(), reward.ravel()


def moments_of(task: np.ndarray, action: np.ndarray, reward: np.ndarray) -> Moments:
    return Moments.from_arrays(task, ONE.phi(None, action), reward, features=ONE.fingerprint)


@cache
def z_of(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """z of what was known and z of reactions in 40 worlds; nan where shares do not differ."""
    knew, reacted = [], []
    for seed in range(40):
        task, action, reward = world(seed, kind)
        moments = moments_of(task, action, reward)
        z = knowledge(moments, ONE, estimate(moments, "isotropic").hierarchy)
        knew.append(np.nan if z is None else z)
        counts = np.bincount(task * K + action, minlength=40 * K).reshape(40, K)
        cell = np.bincount(task * K + action, reward, minlength=40 * K).reshape(40, K) / np.maximum(counts, 1)
        test = Reactions(counts)
        test.add(task, action, reward - cell[task, action])
        reacted.append(test.reaction().z)
    return np.array(knew), np.array(reacted)


@pytest.mark.parametrize("features", [ONE, per_action(range(K), ["x", "y"])], ids=["indicator", "per_action"])
@pytest.mark.parametrize("weighted", [False, True])
def test_counts_are_those_of_the_rows(features, weighted) -> None:
    task, action, reward = rows(1)
    context = np.random.default_rng(2).standard_normal((task.size, len(features.columns)))
    weight = np.random.default_rng(3).integers(0, 4, task.size).astype(float) if weighted else None
    moments = Moments.from_arrays(task, features.phi(context, action), reward, weight)
    found = action_counts(moments, features)
    expected = np.zeros((12, K))
    for k in range(task.size):
        expected[task[k], action[k]] += 1.0 if weight is None else weight[k]
    at = moments.keys.require(np.arange(12))
    np.testing.assert_allclose(found[at], expected, rtol=1e-12)


@pytest.mark.parametrize(
    "features",
    [per_action(range(K), ["x"], intercept=False), embedding(range(K), np.eye(K)[:, :3] + 1)],
    ids=["no intercept", "table"],
)
def test_counts_need_an_intercept_of_each_action(features) -> None:
    task, action, reward = rows(1)
    context = np.ones((task.size, len(features.columns)))
    moments = Moments.from_arrays(task, features.phi(context, action), reward)
    with pytest.raises(InputError, match="an intercept of its own"):
        action_counts(moments, features)
    with pytest.raises(InputError, match="an intercept of its own"):
        informed_metadata(moments, features)


def test_what_was_known_is_not_told_without_such_an_intercept() -> None:
    task, action, reward = rows(1)
    features = per_action(range(K), ["x"], intercept=False)
    moments = Moments.from_arrays(task, features.phi(np.ones((task.size, 1)), action), reward)
    hierarchy = Hierarchy(None, np.eye(K), 1.0)
    assert knowledge(moments, features, hierarchy) is None


def test_log_shares_are_centred_over_actions_that_were_taken_and_zero_for_others() -> None:
    task, action, _ = world(0, "knows")
    counts = np.zeros((40, K + 1))
    np.add.at(counts, (task, action), 1.0)
    g = log_shares(counts)
    assert (g[:, K] == 0).all()
    np.testing.assert_allclose(g[:, :K].sum(axis=1), 0.0, atol=1e-12)
    assert np.isfinite(g).all()
    assert np.corrcoef(g[:, :K].ravel(), counts[:, :K].ravel())[0, 1] > 0.8


def test_the_log_of_a_share_is_that_of_counts_drawn_towards_all_tasks() -> None:
    counts = np.array([[30.0, 5.0, 5.0], [5.0, 30.0, 5.0], [5.0, 5.0, 30.0]])
    g = np.exp(log_shares(counts))
    shares = g / g.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(shares, shares.T, rtol=1e-6)  # the tasks are alike but for names of actions
    assert 1 / 3 < shares[0, 0] < 30 / 40


def test_metadata_has_the_log_shares_of_each_action() -> None:
    moments = moments_of(*world(0, "knows"))
    found = informed_metadata(moments, ONE)
    assert found is not None
    assert found.names == (NAME,)
    assert found.values.shape == (len(moments), K, 1)
    g = log_shares(action_counts(moments, ONE))
    np.testing.assert_array_equal(found.values[:, :, 0], g)


@pytest.mark.parametrize("columns", [["x"], ["x", "y", "z"]])
def test_metadata_has_intercepts_and_slopes_of_the_logits_of_choices_apart(columns) -> None:
    task, action, reward = world(0, "knows")
    features, c = per_action(range(K), columns), len(columns)
    x = np.random.default_rng(5).standard_normal((task.size, c)) + np.arange(1.0, c + 1)
    moments = Moments.from_arrays(task, features.phi(x, action), reward, features=features.fingerprint)
    found = informed_metadata(moments, features)
    assert found is not None
    assert found.names == (NAME, WHERE)
    apart = found.values.reshape(len(moments), K, c + 1, 2)
    assert (apart[:, :, 1:, 0] == 0).all()
    assert (apart[:, :, 0, 1] == 0).all()
    counts, first, squares = np.zeros((40, K)), np.zeros((40, K, c)), np.zeros((40, c, c))
    np.add.at(counts, (task, action), 1.0)
    np.add.at(first, (task, action), x)
    np.add.at(squares, task, x[:, :, None] * x[:, None, :])
    logits = choice_logits(counts, first, squares)[moments.keys.values.astype(int)]
    np.testing.assert_allclose(apart.sum(axis=3), logits, atol=1e-8)


def test_equal_shares_say_nothing() -> None:
    task, action = np.repeat(np.arange(6), 2 * K), np.tile(np.arange(K), 12)
    moments = moments_of(task, action, np.random.default_rng(0).standard_normal(task.size))
    assert informed_metadata(moments, ONE) is None
    assert knowledge(moments, ONE, estimate(moments, "isotropic").hierarchy) is None
    alone = moments_of(task[:8], action[:8], np.arange(8.0))
    assert informed_metadata(alone, ONE) is None


def in_contexts(seed: int, slopes: float, m: int = 40, n: int = 30) -> Moments:
    """A log in which the incumbent takes actions by ``slopes`` times the slope that they have in the task."""
    rng = np.random.default_rng([8, seed])
    features = per_action(range(K), ["x"])
    theta = 0.5 * rng.standard_normal((m, K, 2))
    task, x = np.repeat(np.arange(m), n), rng.standard_normal(m * n)
    score = slopes * theta[task, :, 1] * x[:, None]
    action = (score + rng.gumbel(size=score.shape)).argmax(axis=1)
    reward = theta[task, action, 0] + theta[task, action, 1] * x + rng.standard_normal(m * n)
    return Moments.from_arrays(task, features.phi(x[:, None], action), reward, features=features.fingerprint)


@pytest.mark.slow
def test_what_was_known_of_slopes_alone_is_found_and_is_standard_normal_where_nothing_was() -> None:
    features = per_action(range(K), ["x"])
    knew, did_not = (
        np.array(
            [
                knowledge(moments, features, estimate(moments, "diag").hierarchy)
                for moments in (in_contexts(seed, slopes) for seed in range(30))
            ]
        )
        for slopes in (3.0, 0.0)
    )
    assert np.median(knew) > 4.0
    assert (knew > 1.5).all()
    assert abs(did_not.mean()) < 3.5 / np.sqrt(did_not.size)
    assert 0.6 < did_not.std() < 1.5


@pytest.mark.parametrize("beta", [1.0, 2.0, 4.0])
def test_kappa_of_a_softmax_is_learned_near_one_over_its_strength(beta) -> None:
    moments = moments_of(*world(3, "knows", m=300, n=80, beta=beta))
    found = estimate_levels(moments, "isotropic", metadata=informed_metadata(moments, ONE))
    kappa = float(condition(moments, found.hierarchy).hyper.mean[-1])
    assert 0.75 / beta < kappa < 1.35 / beta


@pytest.mark.slow
def test_what_was_known_is_standard_normal_where_nothing_was() -> None:
    z = z_of("random")[0]
    z = z[np.isfinite(z)]  # where shares differ by no more than chance, there is nothing to test
    assert z.size >= 10
    assert abs(z.mean()) < 3.5 / np.sqrt(z.size)
    assert 0.6 < z.std() < 1.5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["knows", "learns"])
def test_what_was_known_is_large_where_the_incumbent_knew_or_learned(kind) -> None:
    assert (z_of(kind)[0] > 2.0).all()
    assert np.median(z_of(kind)[0]) > 4.0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["random", "knows"])
def test_reactions_are_standard_normal_where_the_incumbent_did_not_learn_from_the_rows(kind) -> None:
    z = z_of(kind)[1]
    assert abs(z.mean()) < 3.5 / np.sqrt(z.size)
    assert 0.65 < z.std() < 1.4


@pytest.mark.slow
def test_reactions_are_large_where_the_incumbent_learned_from_the_rows() -> None:
    z = z_of("learns")[1]
    assert (z > 1.5).all()
    assert np.median(z) > 3.5


def slow_sums(task: np.ndarray, action: np.ndarray, residual: np.ndarray) -> np.ndarray:
    """sum_t e_t (share of a_t among later rows - share among all others), weighted by the share of rows to come."""
    found = []
    for s in range(task.max() + 1):
        own = np.flatnonzero(task == s)
        total = 0.0
        for i, t in enumerate(own):
            later, others = own[i + 1 :], np.delete(own, i)
            if later.size:
                ahead, all_of = (action[later] == action[t]).mean(), (action[others] == action[t]).mean()
                total += residual[t] * (ahead - all_of) * later.size / own.size
        found.append(total)
    return np.array(found)


def counts_of(task: np.ndarray, action: np.ndarray) -> np.ndarray:
    return np.bincount(task * K + action, minlength=(task.max() + 1) * K).reshape(-1, K)


def test_reactions_are_the_slow_sum_and_batches_do_not_matter() -> None:
    task, action, residual = rows(4)
    order = np.random.default_rng(1).permutation(task.size)
    task, action, residual = task[order], action[order], residual[order]
    sums = slow_sums(task, action, residual)
    expected = sums.sum() / np.sqrt((sums**2).sum())
    for cuts in ([], [1, 2, 40], list(range(1, task.size))):
        test = Reactions(counts_of(task, action))
        for part in np.split(np.arange(task.size), cuts):
            test.add(task[part], action[part], residual[part])
        assert test.reaction().z == pytest.approx(expected, rel=1e-9)
    assert test.reaction().tasks == np.count_nonzero(np.bincount(task) >= 2)


def test_an_action_that_follows_a_good_reward_gives_a_positive_sum() -> None:
    action = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    better = np.array([1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    test = Reactions(np.array([[4, 4, 0, 0]]))
    test.add(np.zeros(8, dtype=np.int64), action, -better)  # badly rewarded, then left
    assert test.reaction().z > 0


def test_tasks_of_one_row_say_nothing() -> None:
    test = Reactions(np.eye(K, dtype=np.int64))
    test.add(np.arange(K), np.arange(K), np.ones(K))
    assert test.reaction() == Reaction(0.0, 0)


def test_the_p_value_is_two_sided() -> None:
    assert Reaction(-1.96, 3).p_value == pytest.approx(2 * stats.norm.sf(1.96))
    assert Reaction(0.0, 3).p_value == 1.0


def test_ranks_count_the_rows_before() -> None:
    groups = np.random.default_rng(0).integers(0, 5, 60)
    assert ranks(groups).tolist() == [int((groups[:k] == groups[k]).sum()) for k in range(60)]
    assert ranks(groups[:0]).size == 0
