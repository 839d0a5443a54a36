"""The crossed prior with its variances integrated: against quadrature by brute force, and in drawn worlds."""

from dataclasses import dataclass

import numpy as np
import pytest
from reference.dense import Array

from hieropo.core.crossed_mixture import CrossedGrid, CrossedMixture, MixedTotal, integrate_crossed
from hieropo.core.features import indicator, per_action
from hieropo.core.packed import unpack
from hieropo.core.units import UnitAccumulator, UnitMoments
from hieropo.errors import InputError, MismatchError, NumericalError

SHARES = np.array([0.4, 0.3, 0.2, 0.1])


@dataclass(frozen=True)
class World:
    theta: Array
    task: Array
    action: Array
    reward: Array

    def moments(self, action: Array | None = None) -> UnitMoments:
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


def gain_of_best(mixture: CrossedMixture) -> tuple[Array, MixedTotal]:
    """Weights of the mean gain over the incumbent of the actions with the largest means, and its law."""
    best = mixture.table().means[:, :, 0].argmax(axis=1)
    vectors = (np.eye(len(SHARES))[best] - SHARES) / len(best)
    return vectors, mixture.total(vectors)


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
                    V = a**2 * kernels[0] + slab[:, None, None] ** 2 * kernels[1] + g**2 * kernels[2]
                    V = V + np.diag(ratio[log.action])
                    C = [s2 * z @ u.T for s2, z, u in ((a**2, Z[0], links[0]), (g**2, Z[2], links[2]))]
                    cross = (C[0] + C[1]) + slab[:, None, None] ** 2 * (Z[1] @ links[1].T)
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
                        a**2 + slab[:, None] ** 2 + g**2 - np.einsum("hiu,hij,hju->hu", cross, inverse, cross)
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


@pytest.mark.parametrize("sds", [(0.8, 0.5, 0.6), (0.0, 1.0, 0.0)])
def test_it_is_the_integral_over_all_standard_deviations(sds: tuple[float, float, float]) -> None:
    shares = np.array([0.5, 0.3, 0.2])
    log, ratio = world(3, 3, 6, sds, shares), np.array([1.0, 2.0, 0.5])
    mass, mean, var = by_quadrature(log, ratio, 28)
    got = integrate_crossed(log.moments(), ratio)
    assert got.no_effect == pytest.approx(mass[0, 0], abs=0.003)
    assert got.no_action_effect == pytest.approx(mass[0].sum(), abs=0.003)
    assert got.no_interaction == pytest.approx(mass[:, 0].sum(), abs=0.003)
    table = got.table()
    np.testing.assert_allclose(table.means[:, :, 0], mean, atol=0.02 * np.sqrt(var.max()))
    np.testing.assert_allclose(np.sqrt(table.covs[:, :, 0]), np.sqrt(var), rtol=0.03)


def test_the_views_of_a_mixture_agree() -> None:
    log = world(1, 4, 10, (0.5, 0.5, 0.5))
    got = integrate_crossed(log.moments())
    table = got.table()
    law, whole = got.unit(3, 2), got.task(3)
    np.testing.assert_allclose(law.mean, table.means[3, 2], rtol=1e-9)
    np.testing.assert_allclose(law.cov, unpack(table.covs[3, 2], 1), rtol=1e-9)
    np.testing.assert_allclose(np.diagonal(whole.cov), table.covs[3, :, 0], rtol=1e-9)
    vectors = np.zeros((4, 4))
    vectors[2, 1] = 1.0
    total = got.total(vectors)
    assert total.mean == pytest.approx(table.means[2, 1, 0], rel=1e-9)
    assert total.sd == pytest.approx(np.sqrt(table.covs[2, 1, 0]), rel=1e-9)
    assert total.below(total.quantile(0.3)) == pytest.approx(0.3, abs=1e-9)
    assert float(got.components(2, 1).quantile([1.0], 0.3)) == pytest.approx(total.quantile(0.3), rel=1e-9)
    assert "P(no effect)" in repr(got)


def test_a_large_log_is_integrated_over_the_narrow_range_that_it_leaves() -> None:
    got = integrate_crossed(world(5, 400, 60, (0.4, 2.0, 0.3)).moments())
    grid = got.grid
    for sd, truth, room in ((grid.level_sd, 2.0, 0.25), (grid.interaction_sd, 0.3, 0.04)):
        mean = grid.weights @ sd
        spread = np.sqrt(grid.weights @ (sd - mean) ** 2)
        assert abs(mean - truth) < room
        assert 0 < spread < room
    assert grid.weights @ grid.noise_var == pytest.approx(1.0, abs=0.04)
    assert got.no_interaction < 1e-3
    assert grid.hierarchy(0, 1).noise_var[0] == grid.noise_var[0]


def test_a_reward_of_another_unit_or_offset_changes_no_probability() -> None:
    log = world(2, 8, 12, (0.3, 0.5, 0.3))
    one = integrate_crossed(log.moments())
    two = integrate_crossed(World(log.theta, log.task, log.action, 100 * log.reward - 30).moments())
    assert two.no_effect == pytest.approx(one.no_effect, rel=1e-6)
    np.testing.assert_allclose(two.table().means, 100 * one.table().means - 30, rtol=1e-6)


@pytest.mark.parametrize("logs", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_it_claims_nothing_where_actions_have_no_effect(logs: int) -> None:
    """Rewards with their actions permuted, in tasks that differ in level: a claim in at most one of twenty."""
    claims, no_effect = 0, []
    for seed in range(logs):
        log = world(seed, 40, 20, (0.2, 0.5, 0.3))
        mixture = integrate_crossed(log.moments(np.random.default_rng(1000 + seed).permutation(log.action)))
        _, gain = gain_of_best(mixture)
        claims += not gain.quantile(0.025) <= 0.0 <= gain.quantile(0.975)
        no_effect.append(mixture.no_effect)
    assert claims <= logs / 20
    assert np.mean(no_effect) > 0.6


@pytest.mark.slow
def test_intervals_of_the_gain_hold_in_worlds_drawn_from_the_model() -> None:
    """Each of 20 worlds has a 95 % interval; fewer than 16 hold with probability .003 if each does with .95."""
    held, claimed, true = 0, 0.0, 0.0
    for seed in range(20):
        log = world(seed, 40, 20, (0.2, 0.5, 0.3))
        vectors, gain = gain_of_best(integrate_crossed(log.moments()))
        truth = float((vectors * log.theta).sum())
        held += gain.quantile(0.025) <= truth <= gain.quantile(0.975)
        claimed, true = claimed + gain.mean, true + truth
    assert held >= 16
    assert claimed / true == pytest.approx(1.0, abs=0.25)


def test_contexts_are_integrated_too() -> None:
    rng = np.random.default_rng(4)
    n, m = 200, 10
    task, action, x = rng.integers(0, m, n), rng.integers(0, 3, n), rng.standard_normal((n, 2))
    reward = 1 + x[:, 0] * rng.standard_normal(m)[task] + rng.standard_normal(n)
    total = UnitAccumulator(per_action(range(3), ["x", "y"]))
    total.add(task, action, x, reward)
    got = integrate_crossed(total.moments())
    assert got.no_effect > 0.5
    assert got.task(0).dim == 9
    best = np.zeros((m, 3, 3))
    best[:, 0, 0], best[:, 1, 0] = 1.0, -1.0
    gain = got.total(best.reshape(m, 9))
    assert gain.quantile(0.025) <= 0 <= gain.quantile(0.975)


def test_a_point_mass_at_zero_is_a_quantile() -> None:
    total = MixedTotal(np.array([0.6, 0.4]), np.array([0.0, 1.0]), np.array([0.0, 0.5]))
    assert total.quantile(0.3) == 0.0
    assert total.quantile(0.001) < 0.0
    assert total.quantile(0.9) > 0.5
    assert total.mean == pytest.approx(0.4)


def test_what_cannot_be_integrated_is_refused() -> None:
    log = world(0, 3, 10, (0.2, 0.5, 0.3))
    with pytest.raises(MismatchError, match="4 actions"):
        integrate_crossed(log.moments(), [1.0, 1.0])
    with pytest.raises(InputError, match="noise_var of action 2"):
        integrate_crossed(log.moments(), [1.0, 1.0, 0.0, 1.0])
    few = World(log.theta, log.task[:3], log.action[:3], log.reward[:3])
    with pytest.raises(InputError, match="at least 4 rows"):
        integrate_crossed(few.moments())
    with pytest.raises(NumericalError, match="Are all rewards"):
        integrate_crossed(World(log.theta, log.task, log.action, 0 * log.reward).moments())
    assert len(CrossedGrid(*np.ones((5, 1)), np.ones(4))) == 1
