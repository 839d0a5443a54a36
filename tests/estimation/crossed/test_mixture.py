"""The crossed prior with its variances integrated: against quadrature by brute force, and in drawn worlds."""

import warnings
from dataclasses import dataclass

import numpy as np
import pytest
from reference.dense import Array

from hieropo._utils.packed import unpack
from hieropo.errors import InputError, MismatchError, NumericalError
from hieropo.estimation.crossed.grid import few_nodes
from hieropo.estimation.crossed.integration import integrate_crossed
from hieropo.estimation.crossed.mixture import CrossedHierarchies, CrossedMixture, condition_hierarchies
from hieropo.estimation.crossed.shapes import (
    Pattern,
    Scaling,
    Shapes,
    _along_root,
    _Evidence,
    _negative,
    _root_of_correlations,
    _with_part,
    learn_shapes,
    part_of_tasks,
)
from hieropo.estimation.hyper.mixed import Components, normal_mixture_below, normal_mixture_quantile
from hieropo.evaluation.by_posterior.value_distributions import total
from hieropo.features.maps import indicator, per_action
from hieropo.moments.statistics import Moments
from hieropo.moments.units import UnitAccumulator

SHARES = np.array([0.4, 0.3, 0.2, 0.1])


@dataclass(frozen=True)
class World:
    theta: Array
    task: Array
    action: Array
    reward: Array

    def moments(self, action: Array | None = None) -> Moments:
        total = UnitAccumulator(indicator(range(self.theta.shape[1])))
        total.add(self.task, self.action if action is None else action, None, self.reward)
        return total.moments()


def world(seed: int, m: int, n: int, sds: tuple[float, float, float], shares: Array = SHARES) -> World:
    """Actions, levels and interactions of these standard deviations, noise 1; every task has n rows."""
    rng = np.random.default_rng(seed)
    K = len(shares)
    theta = sds[0] * rng.standard_normal(K) + sds[1] * rng.standard_normal((m, 1))
    theta = theta + sds[2] * rng.standard_normal((m, K))
    task, action = np.repeat(np.arange(m), n), rng.choice(K, m * n, p=shares)
    return World(theta, task, action, theta[task, action] + rng.standard_normal(m * n))


def integrated(moments: Moments, noise_ratio: Array | None = None) -> CrossedMixture:
    """Integrate with one standard deviation for all columns, and known relative noise."""
    shapes = Shapes.equal(moments)
    if noise_ratio is not None:
        shapes = shapes._replace(noise_ratio=noise_ratio)
    return condition_hierarchies(moments, integrate_crossed(moments, shapes))


def quantile(law: Components, level: float) -> float:
    sds = np.sqrt(np.maximum(law.covs[:, 0, 0], 0.0))
    return float(normal_mixture_quantile(law.weights, law.means[:, 0], sds, level))


def gain_of_best(mixture: CrossedMixture) -> tuple[Array, Components]:
    """Weights of the mean gain over the incumbent of the actions with the largest means, and its law."""
    best = mixture.table().means[:, :, 0].argmax(axis=1)
    vectors = (np.eye(len(SHARES))[best] - SHARES) / len(best)
    return vectors, total(mixture, vectors[None])


def by_quadrature(log: World, ratio: Array, nodes: int) -> tuple[Array, Array, Array]:
    """P(a on and m on) as (2, 2), and mean and variance of theta (m, K), by the definition.

    A half-Cauchy standard deviation is tan(pi u / 2) of a uniform u: midpoints in u have one prior mass.
    """
    m, K = log.theta.shape
    n = len(log.reward)
    slab = np.tan(np.pi / 2 * (np.arange(nodes) + 0.5) / nodes)
    Z = [np.eye(K)[log.action], np.eye(m)[log.task], np.eye(m * K)[log.task * K + log.action]]
    kernels = [z @ z.T for z in Z]
    units_a, units_s = np.tile(np.arange(K), m), np.repeat(np.arange(m), K)
    links = [np.eye(K)[units_a], np.eye(m)[units_s], np.eye(m * K)]
    one = np.ones(n)
    mass, mean, square = np.zeros((2, 2)), np.zeros(m * K), np.zeros(m * K)
    log_terms, results = [], []
    for a_on in (0, 1):
        for m_on in (0, 1):
            for a in slab if a_on else [0.0]:
                for g in slab if m_on else [0.0]:
                    levels = slab * np.sqrt(1 + g**2)  # half-Cauchy of this scale
                    V = a**2 * kernels[0] + levels[:, None, None] ** 2 * kernels[1] + g**2 * kernels[2]
                    V = V + np.diag(ratio[log.action])
                    C = [s2 * z @ u.T for s2, z, u in ((a**2, Z[0], links[0]), (g**2, Z[2], links[2]))]
                    cross = (C[0] + C[1]) + levels[:, None, None] ** 2 * (Z[1] @ links[1].T)
                    inverse = np.linalg.solve(V, np.broadcast_to(np.eye(n), V.shape))
                    x = inverse @ one
                    information = x @ one
                    beta = x @ log.reward / information
                    left = log.reward - beta[:, None]
                    q = np.einsum("hi,hij,hj->h", left, inverse, left)
                    evidence = -0.5 * (np.linalg.slogdet(V)[1] + np.log(information) + (n - 1) * np.log(q))
                    prior = np.log(0.25) - np.log(nodes) * (1 + a_on + m_on)
                    fit = beta[:, None] + np.einsum("hiu,hij,hj->hu", cross, inverse, left)
                    own = (
                        a**2
                        + levels[:, None] ** 2
                        + g**2
                        - np.einsum("hiu,hij,hju->hu", cross, inverse, cross)
                    )
                    own = own + (1 - np.einsum("hiu,hi->hu", cross, x)) ** 2 / information[:, None]
                    log_terms.append(evidence + prior)
                    results.append((a_on, m_on, fit, own * (q / (n - 3))[:, None]))
    most = max(terms.max() for terms in log_terms)
    for terms, (a_on, m_on, fit, own) in zip(log_terms, results, strict=True):
        w = np.exp(terms - most)
        mass[a_on, m_on] += w.sum()
        mean += w @ fit
        square += w @ (own + fit**2)
    total = mass.sum()
    mean, square = mean / total, square / total
    return mass / total, mean.reshape(m, K), (square - mean**2).reshape(m, K)


@pytest.mark.slow
@pytest.mark.parametrize("sds", [(0.8, 0.5, 0.6), (0.0, 1.0, 0.0)])
def test_it_is_the_integral_over_all_standard_deviations(sds: tuple[float, float, float]) -> None:
    shares = np.array([0.5, 0.3, 0.2])
    log, ratio = world(3, 3, 6, sds, shares), np.array([1.0, 2.0, 0.5])
    mass, mean, var = by_quadrature(log, ratio, 28)
    got = integrated(log.moments(), ratio)
    assert got.hierarchy.no_effect == pytest.approx(mass[0, 0], abs=0.004)
    assert got.hierarchy.no_action_effect == pytest.approx(mass[0].sum(), abs=0.004)
    assert got.hierarchy.no_interaction == pytest.approx(mass[:, 0].sum(), abs=0.004)
    table = got.table()
    np.testing.assert_allclose(table.means[:, :, 0], mean, atol=0.02 * np.sqrt(var.max()))
    seen = log.moments().rows > 0  # a unit without rows has the heavy tail of m, which few nodes have roughly
    ratio_of_sds = np.sqrt(table.covs[:, :, 0] / var)
    assert np.abs(ratio_of_sds - 1)[seen].max() < 0.03
    assert np.abs(ratio_of_sds - 1).max() < 0.15


def test_few_hierarchies_say_what_all_of_them_say() -> None:
    moments = world(3, 12, 15, (0.3, 0.5, 0.3)).moments()
    few = integrate_crossed(moments, Shapes.equal(moments))
    weights, kept = few.weights, few.conditioned
    every = CrossedHierarchies(
        weights, few.action_sd, few.level_sd, few.interaction_sd, few.noise_var, weights, few.shapes
    )
    assert np.count_nonzero(kept) < 50 < len(few)
    for zero in (few.action_sd == 0, few.interaction_sd == 0):
        assert kept[zero].sum() == pytest.approx(weights[zero].sum(), rel=1e-6)
    one, all_ = (condition_hierarchies(moments, each) for each in (few, every))
    sd = np.sqrt(all_.table().covs[:, :, 0])
    np.testing.assert_allclose(one.table().means[:, :, 0], all_.table().means[:, :, 0], atol=0.01 * sd.max())
    np.testing.assert_allclose(np.sqrt(one.table().covs[:, :, 0]), sd, rtol=0.02)
    best = all_.table().means[:, :, 0].argmax(axis=1)
    vectors = ((np.eye(4)[best] - SHARES) / 12)[None]
    below = [
        float(normal_mixture_below(law.weights, law.means[:, 0], np.sqrt(law.covs[:, 0, 0])))
        for law in (total(one, vectors), total(all_, vectors))
    ]
    assert below[0] == pytest.approx(below[1], abs=0.003)


def test_all_hierarchies_are_kept_where_the_search_for_few_does_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def endless(*_: object, **__: object) -> None:
        raise RuntimeError("Maximum number of iterations reached.")

    monkeypatch.setattr("scipy.optimize.nnls", endless)
    weights = np.random.default_rng(0).random(40)
    np.testing.assert_allclose(few_nodes(weights, [np.linspace(0.1, 1.0, 40)]), weights, rtol=1e-4)


def test_the_views_of_a_mixture_agree() -> None:
    log = world(1, 4, 10, (0.5, 0.5, 0.5))
    got = integrated(log.moments())
    table, dense = got.table(), got.dense()
    law, whole = got.unit(3, 2), got.task(3)
    np.testing.assert_allclose(law.mean, table.means[3, 2], rtol=1e-9)
    np.testing.assert_allclose(law.cov, unpack(table.covs[3, 2], 1), rtol=1e-9)
    np.testing.assert_allclose(np.diagonal(whole.cov), table.covs[3, :, 0], rtol=1e-9)
    np.testing.assert_allclose(dense.means[3], whole.mean, rtol=1e-9)
    np.testing.assert_allclose(unpack(dense.covs[3], 4), whole.cov, rtol=1e-9)
    np.testing.assert_allclose(got.new_task().mean, table.prior_means[:, 0], rtol=1e-9)
    vectors = np.zeros((1, 4, 4))
    vectors[0, 2, 1] = 1.0
    one = total(got, vectors)
    assert one.gaussian().mean[0] == pytest.approx(table.means[2, 1, 0], rel=1e-9)
    assert one.gaussian().cov[0, 0] == pytest.approx(table.covs[2, 1, 0], rel=1e-9)
    assert float(got.components(2, 1).quantile([1.0], 0.3)) == pytest.approx(quantile(one, 0.3), rel=1e-9)
    assert got.unit("new", 1, unseen="prior").mean == pytest.approx(table.prior_means[1])
    assert "P(no effect)" in repr(got)


def test_the_value_comes_back_from_json_to_the_last_bit() -> None:
    import json

    moments = world(1, 4, 10, (0.5, 0.5, 0.5)).moments()
    found = integrate_crossed(moments)
    again = CrossedHierarchies.from_dict(json.loads(json.dumps(found.to_dict())))
    one, two = (condition_hierarchies(moments, each).table() for each in (found, again))
    np.testing.assert_array_equal(one.means, two.means)
    np.testing.assert_array_equal(one.covs, two.covs)


def test_a_large_log_is_integrated_over_the_narrow_range_that_it_leaves() -> None:
    found = integrated(world(5, 400, 60, (0.4, 2.0, 0.3)).moments()).hierarchy
    for sd, truth, room in ((found.level_sd, 2.0, 0.25), (found.interaction_sd, 0.3, 0.04)):
        mean = found.weights @ sd
        spread = np.sqrt(found.weights @ (sd - mean) ** 2)
        assert abs(mean - truth) < room
        assert 0 < spread < room
    assert found.weights @ found.noise_var == pytest.approx(1.0, abs=0.04)
    assert found.no_interaction < 1e-3
    assert found.hierarchy(0).noise_var[0] == found.noise_var[0]


def test_parts_of_a_large_log_find_the_windows_that_all_of_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = world(7, 300, 40, (0.3, 0.7, 0.2)).moments()
    shapes = Shapes.equal(moments)
    monkeypatch.setattr("hieropo.estimation.crossed.grid._PILOT", 10_000)
    whole = integrate_crossed(moments, shapes)
    monkeypatch.setattr("hieropo.estimation.crossed.grid._PILOT", 100)
    parts = integrate_crossed(moments, shapes)
    one, two = (condition_hierarchies(moments, each).table() for each in (whole, parts))
    sd = np.sqrt(one.covs[:, :, 0])
    assert (np.abs(one.means - two.means)[:, :, 0] / sd).max() < 0.05
    np.testing.assert_allclose(np.sqrt(two.covs[:, :, 0]), sd, rtol=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("sds", [(0.3, 0.7, 0.2), (0.0, 0.7, 0.0)])
def test_a_similar_log_tells_where_the_grid_is(
    monkeypatch: pytest.MonkeyPatch, sds: tuple[float, float, float]
) -> None:
    log = world(7, 2000, 20, sds)
    kept = np.arange(log.task.size) % 5 > 0
    moments = World(log.theta, log.task[kept], log.action[kept], log.reward[kept]).moments()
    shapes = Shapes.equal(moments)
    similar = integrate_crossed(log.moments(), shapes)
    searched = integrate_crossed(moments, shapes)
    monkeypatch.setattr("hieropo.estimation.crossed.grid._PILOT", 10**9)  # the search takes all tasks at once
    whole = integrate_crossed(moments, shapes)
    monkeypatch.undo()
    near = integrate_crossed(moments, shapes, similar=similar)
    assert near.no_interaction == pytest.approx(whole.no_interaction, abs=0.02)
    one, two = (condition_hierarchies(moments, each).table() for each in (whole, near))
    sd = np.sqrt(one.covs[:, :, 0])
    assert (
        np.abs(one.means - two.means)[:, :, 0] / sd
    ).max() < 0.1  # as the search: l is that of a part of the tasks
    np.testing.assert_allclose(np.sqrt(two.covs[:, :, 0]), sd, rtol=0.03)
    assert not np.array_equal(near.weights, searched.weights)  # the search was left out


def test_a_log_that_is_not_similar_is_searched_as_without() -> None:
    moments = world(7, 2000, 20, (0.3, 0.7, 0.2)).moments()
    shapes = Shapes.equal(moments)
    other = integrate_crossed(world(8, 2000, 20, (0.3, 0.7, 0.6)).moments(), shapes)
    one, two = integrate_crossed(moments, shapes), integrate_crossed(moments, shapes, similar=other)
    np.testing.assert_array_equal(one.weights, two.weights)
    np.testing.assert_array_equal(one.interaction_sd, two.interaction_sd)


@pytest.mark.slow
def test_a_cross_fit_that_tells_its_hierarchy_is_conditioned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = world(3, 1500, 60, (4.0, 0.7, 1.0), np.full(20, 0.05)).moments()
    shapes = Shapes.equal(moments)
    similar = integrate_crossed(moments, shapes)
    assert not similar.determined  # sums over tasks need all
    once = integrate_crossed(moments, shapes, similar=similar)
    assert once.determined
    assert CrossedHierarchies.from_dict(once.to_dict()).determined
    monkeypatch.setattr("hieropo.estimation.crossed.grid._DETERMINED", 0.0)
    averaged = integrate_crossed(moments, shapes, similar=similar)
    assert not averaged.determined
    one, two = (condition_hierarchies(moments, hierarchies) for hierarchies in (once, averaged))
    assert one.weights.tolist() == [1.0]
    sd = np.sqrt(two.table().covs[:, :, 0])
    assert (np.abs(one.table().means - two.table().means)[:, :, 0] / sd).max() < 0.01
    np.testing.assert_allclose(np.sqrt(one.table().covs[:, :, 0]), sd, rtol=0.01)
    np.testing.assert_allclose(one.action(0).cov, two.action(0).cov, rtol=0.01)


def test_a_cross_fit_that_hardly_tells_its_hierarchy_is_averaged() -> None:
    """Differences between four actions hardly tell how large effects of actions are."""
    moments = world(3, 1500, 60, (4.0, 0.7, 1.0)).moments()
    shapes = Shapes.equal(moments)
    similar = integrate_crossed(moments, shapes)
    assert not integrate_crossed(moments, shapes, similar=similar).determined


def test_the_part_of_the_tasks_does_not_hang_on_their_order() -> None:
    log = world(7, 50, 12, (0.3, 0.7, 0.2))
    kept = np.random.default_rng(0).random(log.task.size) < 0.7
    log = World(log.theta, log.task[kept], log.action[kept], log.reward[kept])
    order = np.random.default_rng(1).permutation(50)
    other = World(log.theta, order[log.task], log.action, log.reward)
    one, two = (part_of_tasks(each.moments(), 60) for each in (log, other))
    assert 10 < len(one) < 25
    assert sorted(order[one.tasks].tolist()) == sorted(two.tasks.tolist())
    assert part_of_tasks(log.moments(), 10_000).n_rows == log.task.size


def test_tasks_whose_rewards_have_equal_squares_are_sorted_whatever_their_order() -> None:
    rng = np.random.default_rng(0)
    features, parts = indicator(["a", "b"]), []
    task, action = np.repeat(np.arange(200), 6), rng.integers(2, size=1200)
    reward = rng.integers(2, size=1200).astype(float)  # tasks with as many ones have equal squares
    for order in (np.arange(200), rng.permutation(200)):
        rows = np.argsort(order[task], kind="stable")
        sums = UnitAccumulator(features)
        sums.add(
            np.array([f"t{number}" for number in task[rows]]), action[rows], np.zeros((1200, 0)), reward[rows]
        )
        part = part_of_tasks(sums.moments(), 60)
        parts.append(part.sums.sum(axis=0))
    np.testing.assert_allclose(parts[0], parts[1], rtol=1e-12)


def test_a_reward_of_another_unit_or_offset_changes_no_probability() -> None:
    log = world(2, 8, 12, (0.3, 0.5, 0.3))
    one = integrated(log.moments())
    two = integrated(World(log.theta, log.task, log.action, 100 * log.reward - 30).moments())
    assert two.hierarchy.no_effect == pytest.approx(one.hierarchy.no_effect, rel=1e-6)
    np.testing.assert_allclose(two.table().means, 100 * one.table().means - 30, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("logs", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_it_claims_nothing_where_actions_have_no_effect(logs: int) -> None:
    """Rewards with their actions permuted, in tasks that differ in level: a claim in at most one of twenty."""
    claims, no_effect = 0, []
    for seed in range(logs):
        log = world(seed, 40, 20, (0.2, 0.5, 0.3))
        moments = log.moments(np.random.default_rng(1000 + seed).permutation(log.action))
        mixture = condition_hierarchies(moments, integrate_crossed(moments))
        _, gain = gain_of_best(mixture)
        claims += not quantile(gain, 0.025) <= 0.0 <= quantile(gain, 0.975)
        no_effect.append(mixture.hierarchy.no_effect)
    assert claims <= logs / 20
    assert np.mean(no_effect) > 0.6


@pytest.mark.slow
def test_intervals_of_the_gain_hold_in_worlds_drawn_from_the_model() -> None:
    """Each of 20 worlds has a 95 % interval; fewer than 16 hold with probability .003 if each does with .95."""
    held, claimed, true = 0, 0.0, 0.0
    for seed in range(20):
        log = world(seed, 40, 20, (0.2, 0.5, 0.3))
        vectors, gain = gain_of_best(condition_hierarchies(log.moments(), integrate_crossed(log.moments())))
        truth = float((vectors * log.theta).sum())
        held += quantile(gain, 0.025) <= truth <= quantile(gain, 0.975)
        claimed, true = claimed + float(gain.gaussian().mean[0]), true + truth
    assert held >= 16
    assert claimed / true == pytest.approx(1.0, abs=0.25)


def with_contexts(seed: int = 4, scale: float = 1.0, shift: float = 0.0) -> Moments:
    """Ten tasks that differ in the slope of the first of two columns; noise sd of the second action is 3."""
    rng = np.random.default_rng(seed)
    n, m = 600, 10
    task, action, x = rng.integers(0, m, n), rng.integers(0, 3, n), rng.standard_normal((n, 2))
    noise = np.array([1.0, 3.0, 1.0])[action]
    reward = 1 + x[:, 0] * rng.standard_normal(m)[task] + noise * rng.standard_normal(n)
    made = UnitAccumulator(per_action(range(3), ["x", "y"]))
    made.add(task, action, x * np.array([scale, 1.0]) + np.array([shift, 0.0]), reward)
    return made.moments()


def test_contexts_are_integrated_too() -> None:
    moments = with_contexts()
    got = condition_hierarchies(moments, integrate_crossed(moments))
    assert got.hierarchy.no_effect > 0.5
    assert got.task(0).dim == 9
    best = np.zeros((1, 10, 3, 3))
    best[0, :, 0, 0], best[0, :, 1, 0] = 1.0, -1.0
    gain = total(got, best.reshape(1, 10, 9))
    assert quantile(gain, 0.025) <= 0 <= quantile(gain, 0.975)


@pytest.mark.parametrize("pattern", [Pattern.of(3), Pattern.of(3, 2), Pattern.of(3, 2, common=True)])
def test_the_slope_of_the_shapes_is_that_of_their_density(pattern: Pattern) -> None:
    moments = with_contexts()
    scaling = Scaling.of(moments)
    at = np.append(np.linspace(-1.2, -0.4, 9), [0.2, -0.1, 0.3])
    _, slope = _negative(moments, scaling, pattern, at)
    numeric = [
        (_negative(moments, scaling, pattern, at + e)[0] - _negative(moments, scaling, pattern, at - e)[0])
        / 2e-5
        for e in 1e-5 * np.eye(12)
    ]
    np.testing.assert_allclose(slope, numeric, rtol=1e-5, atol=1e-5)


def test_shapes_find_the_column_that_tasks_differ_in_and_the_action_of_more_noise() -> None:
    moments = with_contexts()
    shapes, scaling = learn_shapes(moments), Scaling.of(moments)
    assert shapes.noise_ratio[1] == pytest.approx(9.0, rel=0.35)
    assert shapes.noise_ratio[[0, 2]] == pytest.approx(1.0, rel=0.25)
    level = np.sqrt(np.diagonal(scaling.inverse.T @ shapes.level @ scaling.inverse))
    assert level[1] > 1.5 * level[2]
    assert np.prod(level) == pytest.approx(1.0)


def correlated(seed: int, rho: float, m: int = 60) -> Moments:
    """Interactions of three columns, correlated among them by rho."""
    rng = np.random.default_rng(seed)
    n = 30 * m
    task, action = rng.integers(0, m, n), rng.integers(0, 3, n)
    x = np.column_stack([np.ones(n), rng.standard_normal((n, 2)) * [2.0, 0.5]])
    cov = 0.3 * ((1 - rho) * np.eye(3) + rho) * np.outer([1.0, 0.5, 2.0], [1.0, 0.5, 2.0])
    theta = rng.multivariate_normal(np.zeros(3), cov, (m, 3)) + rng.standard_normal((m, 1, 3))
    reward = np.einsum("ij,ij->i", x, theta[task, action]) + rng.standard_normal(n)
    made = UnitAccumulator(per_action(range(3), ["x", "y"], intercept=True))
    made.add(task, action, x[:, 1:], reward)
    return made.moments()


@pytest.mark.parametrize("part", [0, 1, 2])
def test_the_slope_of_correlations_is_that_of_their_evidence(part: int) -> None:
    moments = correlated(1, 0.5, m=10)
    scaling, pattern = Scaling.of(moments), Pattern.of(3)
    log_sds, log_noise = [np.full(3, -0.5)] * 3, np.zeros(3)
    root, _ = _root_of_correlations(np.array([0.3, -0.2, 0.4]), 3)

    def evidence(change: Array) -> _Evidence:
        factors = _with_part((np.eye(3),) * 3, part, root + change, np.arange(3))
        return _Evidence.of(moments, scaling, pattern, log_sds, log_noise, factors)

    at = evidence(np.zeros((3, 3)))
    slope = _along_root(root, at.squares[part], at.counts[part])
    for i, j in zip(*np.tril_indices(3), strict=True):
        change = np.zeros((3, 3))
        change[i, j] = 1e-5
        numeric = (evidence(change).value - evidence(-change).value) / 2e-5
        assert slope[i, j] == pytest.approx(numeric, rel=1e-5, abs=1e-5)


def test_correlations_between_coefficients_are_learned_where_the_log_shows_them() -> None:
    moments = correlated(2, 0.8)
    shapes, inverse = learn_shapes(moments), Scaling.of(moments).inverse
    cov = inverse.T @ shapes.interaction @ inverse
    R = cov / np.sqrt(np.outer(np.diagonal(cov), np.diagonal(cov)))
    np.testing.assert_allclose(R, 0.2 * np.eye(3) + 0.8, atol=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_correlated_where_the_log_shows_no_correlation(seed: int) -> None:
    moments = correlated(seed, 0.0)
    shapes, inverse = learn_shapes(moments), Scaling.of(moments).inverse
    for part in (shapes.action, shapes.level, shapes.interaction):
        cov = inverse.T @ part @ inverse
        np.testing.assert_allclose(cov, np.diag(np.diagonal(cov)), atol=1e-12)


def test_actions_whose_rewards_are_all_equal_are_not_taken_to_be_without_noise() -> None:
    """Of 0/1 rewards with few 1, some actions have none: noise is then taken to be the same in all."""
    rng = np.random.default_rng(0)
    task, action = rng.integers(0, 20, 4000), rng.integers(0, 6, 4000)
    clicks = made_of(task, action, (rng.random(4000) < 0.02) * (action < 2) * 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = integrate_crossed(clicks)
    assert found.shapes.noise_ratio.tolist() == [1.0] * 6
    assert found.central().noise_var[0] == pytest.approx(0.02 / 3, rel=0.35)


@pytest.mark.parametrize("columns", [1, 3])
def test_a_table_made_by_pieces_of_tasks_is_that_of_all_tasks(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    log = world(5, 90, 6, (0.5, 0.5, 0.5)).moments() if columns == 1 else with_contexts()
    rows = np.flatnonzero(np.arange(len(log)) % 7)  # some tasks have no rows
    moments = log.at(rows).covering(log.keys)
    moments = moments.around(np.tile(np.linspace(0.5, 1.0, moments.unit_dim), moments.n_actions))
    hierarchies = integrate_crossed(moments)
    whole = condition_hierarchies(moments, hierarchies).table()
    monkeypatch.setattr(CrossedMixture, "_by_pieces", True)
    monkeypatch.setattr("hieropo.estimation.crossed.mixture._AT_ONCE", 40)
    mixture = condition_hierarchies(moments, hierarchies)
    assert len(mixture.weights) > 1
    pieces = mixture.table()
    for name in ("means", "covs", "prior_means", "prior_covs", "rows"):
        np.testing.assert_allclose(getattr(pieces, name), getattr(whole, name), rtol=1e-11, atol=1e-13)


def made_of(task: Array, action: Array, reward: Array) -> Moments:
    total_ = UnitAccumulator(indicator(range(6)))
    total_.add(task, action, None, reward)
    return total_.moments()


@pytest.mark.slow
def test_the_unit_and_the_zero_of_a_column_change_no_reward() -> None:
    one, two = with_contexts(), with_contexts(scale=50.0, shift=80.0)
    first, second = (condition_hierarchies(each, integrate_crossed(each)) for each in (one, two))
    assert second.hierarchy.no_effect == pytest.approx(first.hierarchy.no_effect, rel=1e-4)
    x = np.array([[1.0, 0.5, -1.0], [1.0, -2.0, 0.3]])
    recentred = x * np.array([1.0, 50.0, 1.0]) + np.array([0.0, 80.0, 0.0])
    for action in range(3):
        a, b = first.unit(3, action).project(x), second.unit(3, action).project(recentred)
        np.testing.assert_allclose(a[0], b[0], rtol=1e-4)
        np.testing.assert_allclose(a[1], b[1], rtol=1e-4)


def test_a_point_mass_at_zero_is_a_quantile() -> None:
    weights, means, sds = np.array([0.6, 0.4]), np.array([0.0, 1.0]), np.array([0.0, 0.5])
    assert normal_mixture_quantile(weights, means, sds, 0.3) == 0.0
    assert normal_mixture_quantile(weights, means, sds, 0.001) < 0.0
    assert normal_mixture_quantile(weights, means, sds, 0.9) > 0.5
    both = normal_mixture_quantile(weights, np.array([means, means + 1]), np.array([sds, sds]), 0.3)
    assert both.tolist() == [0.0, 1.0]


def test_a_log_that_does_not_tell_the_noise_is_refused() -> None:
    log = world(0, 3, 10, (0.2, 0.5, 0.3))
    equal = Shapes.equal(log.moments())
    with pytest.raises(MismatchError, match="4 actions"):
        integrate_crossed(log.moments(), equal._replace(noise_ratio=np.ones(2)))
    with pytest.raises(InputError, match="noise_var of action 2"):
        integrate_crossed(log.moments(), equal._replace(noise_ratio=np.array([1.0, 1.0, 0.0, 1.0])))
    few = World(log.theta, log.task[:1], log.action[:1], log.reward[:1])
    with pytest.raises(NumericalError, match="at least 2 rows"):
        integrate_crossed(few.moments())
    with pytest.raises(NumericalError, match="Are all rewards"):
        integrate_crossed(World(log.theta, log.task, log.action, 0 * log.reward).moments())
    one = np.ones(1)
    with pytest.raises(InputError, match="weights of at least 0"):
        CrossedHierarchies(2 * one, one, one, one, one, one, equal)
    with pytest.raises(InputError, match="One number for each hierarchy"):
        CrossedHierarchies(one, np.ones(2), one, one, one, one, equal)
