"""Walks of coefficients and levels, beside dense covariances over the rows."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from reference import drift as truth

from hieropo import HierOPO, Moments
from hieropo._utils.packed import pack, unpack
from hieropo.estimation.crossed.drift import _FADING as FADING
from hieropo.estimation.crossed.drift import _SHARES as SHARES
from hieropo.estimation.crossed.drift import _SIZES as SIZES
from hieropo.estimation.crossed.drift import Constant, Drift, _axis, _Evidence, gauss_rule, learn_drift
from hieropo.moments.periods import NOTHING_SHARED, PeriodSums, Shared, UnitFactors, Walks
from hieropo.moments.uncertain_walks import UncertainWalks
from hieropo.rows.keys import Keys

TIMES, END = np.array([1.0, 2.5, 3.0, 5.0]), 6.0
KAPPA, ETA, LEVEL = 0.3, 0.2, 0.4
RATIO = np.array([1.0, 2.0])


def a_log(
    p: int, seed: int = 0, tasks: int = 3
) -> tuple[list[truth.WalkingTask], list[Any], Moments, PeriodSums]:
    """Return tasks with their rewards, and the sums of their rows; the last task has no row of action 1."""
    rng = np.random.default_rng([1607, seed])
    rows, rewards, sums = [], [], np.zeros((tasks, 2, TIMES.size, p + 2, p + 2))
    for s in range(tasks):
        n = 14
        action, period = rng.integers(0, 2 if s + 1 < tasks else 1, n), rng.integers(0, TIMES.size, n)
        x = np.concatenate([np.ones((n, 1)), rng.standard_normal((n, p - 1))], axis=1)
        reward = rng.standard_normal(n) + 1.0
        rows.append(truth.WalkingTask(x, action, TIMES[period] - TIMES[0], RATIO[action], END - TIMES[0]))
        rewards.append(reward)
        z = np.concatenate([x, reward[:, None], np.ones((n, 1))], axis=1)
        for i in range(n):
            sums[s, action[i], period[i]] += np.outer(z[i], z[i])
    packed = pack(sums)
    counts = packed[..., -1].sum(axis=2)
    moments = Moments(Keys(np.arange(tasks)), p, packed.sum(axis=2), counts, np.zeros_like(counts))
    return rows, rewards, moments, PeriodSums(packed, TIMES, END, p)


def covariances(p: int) -> tuple[Any, Any]:
    """Return M_0 and W."""
    root = np.random.default_rng(p).standard_normal((p, p))
    return 0.5 * np.eye(p) + 0.1, root @ root.T + 0.2 * np.eye(p)


def in_common(rows: list[truth.WalkingTask], shared: Shared) -> list[truth.WalkingTask]:
    return [replace(task, unit=shared.unit, task=shared.task) for task in rows]


def walks(p: int, eta: float, shared: Shared = NOTHING_SHARED) -> Walks:
    start, shape = covariances(p)
    root = np.linalg.cholesky(KAPPA * shape)
    center = np.linspace(0.2, 1.0, 2 * p).reshape(2, p)
    return Walks(center, start, root, LEVEL, eta, RATIO, np.ones(TIMES.size), shared)


@pytest.mark.parametrize(("p", "shared"), [(1, 0.0), (3, 0.0), (1, 0.7), (2, 0.3)])
def test_rows_at_the_end_tell_what_all_rows_tell(p: int, shared: float) -> None:
    """With the prior of the end they give the posterior, and the density, of rows whose coefficients walked."""
    rows, rewards, moments, periods = a_log(p)
    rows = in_common(rows, Shared(unit=shared))
    start, shape = covariances(p)
    law = walks(p, 0.0, Shared(unit=shared))
    ended = law.at_end(moments, periods, np.ones(len(moments)))
    prior = start + (END - TIMES[0]) * KAPPA * shape
    for s, (task, reward) in enumerate(zip(rows, rewards, strict=True)):
        about = reward - np.einsum("np,np->n", task.x, law.center[task.action])
        level, _ = truth.level_path(task, about, start, KAPPA * shape, LEVEL, 0.0)
        for a in range(2):
            if not (task.action == a).any():
                assert not ended.sums[s, a].any()
                continue
            one = task.of_action(a)
            left = (about - level)[task.action == a]
            mean, cov = truth.at_end(one, left, start, KAPPA * shape)
            S = unpack(ended.sums[s, a], p + 2) / RATIO[a]
            middle = law.center[a] + level[0] * np.eye(p)[0]
            posterior = prior @ np.linalg.solve(np.eye(p) + S[:p, :p] @ prior, np.eye(p))
            score = S[:p, p] - S[:p, :p] @ middle
            np.testing.assert_allclose(posterior, cov, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(posterior @ score, mean, rtol=1e-8, atol=1e-10)
            square = S[p, p] - 2 * middle @ S[:p, p] + middle @ S[:p, :p] @ middle - score @ posterior @ score
            log_det = np.linalg.slogdet(np.eye(p) + S[:p, :p] @ prior)[1] - ended.log_precision[s, a]
            dense = one.errors() + one.walk(KAPPA * shape) + one.start(start)
            expected = truth.log_density(left, dense)
            noise = (task.action == a).sum() * np.log(RATIO[a])
            assert -0.5 * (square + log_det + noise) == pytest.approx(expected, rel=1e-9)


RATES = np.array([0.5, 0.2, 0.3]), ((0.0, 1.4), (0.2, 0.6), (0.5, 1.0))  # weights; kappa and M_0


def uncertain(p: int, shared: Shared = NOTHING_SHARED) -> UncertainWalks:
    start, shape = covariances(p)
    one = walks(p, 0.0, shared)
    weights, nodes = RATES
    return UncertainWalks(
        weights,
        tuple(
            replace(one, start=size * start, walk=np.linalg.cholesky(kappa * shape) if kappa else 0.0 * shape)
            for kappa, size in nodes
        ),
    )


@pytest.mark.parametrize(("p", "shared"), [(1, 0.0), (3, 0.0), (2, 0.3)])
def test_rows_at_the_end_and_the_error_of_the_rate_are_the_mixture_over_rates(p: int, shared: float) -> None:
    """Means and covariances, also between tasks, are those of dense covariances under each rate, averaged."""
    rows, rewards, moments, periods = a_log(p)
    rows = in_common(rows, Shared(unit=shared))
    start, shape = covariances(p)
    law = uncertain(p, Shared(unit=shared))
    weights, nodes = RATES
    ended, roots = law.at_end(moments, periods, np.ones(len(moments)))
    prior = sum(
        w * (size * start + (END - TIMES[0]) * kappa * shape)
        for w, (kappa, size) in zip(weights, nodes, strict=True)
    )
    means, within = np.zeros((3, len(rows), 2, p)), np.zeros((3, len(rows), 2, p, p))
    densities = np.zeros((3, len(rows), 2))
    for k, (kappa, size) in enumerate(nodes):
        for s, (task, reward) in enumerate(zip(rows, rewards, strict=True)):
            about = reward - np.einsum("np,np->n", task.x, law.walks[0].center[task.action])
            level, _ = truth.level_path(task, about, size * start, kappa * shape, LEVEL, 0.0)
            for a in range(2):
                one, left = task.of_action(a), (about - level)[task.action == a]
                mean, within[k, s, a] = truth.at_end(one, left, size * start, kappa * shape)
                means[k, s, a] = law.walks[0].center[a] + level[0] * np.eye(p)[0] + mean
                dense = one.errors() + one.walk(kappa * shape) + one.start(size * start)
                densities[k, s, a] = truth.log_density(left, dense)
            middle = law.walks[0].center + level[0] * np.eye(p)[0]
            means[k, s] = np.where(
                (task.action[:, None] == np.arange(2)).any(axis=0)[:, None], means[k, s], middle
            )
    mean = np.einsum("k,ksap->sap", weights, means)
    cov = np.einsum("k,ksapq->sapq", weights, within)
    away = (means - mean).reshape(3, -1)
    np.testing.assert_allclose(
        roots.reshape(away.shape[1], 3) @ roots.reshape(away.shape[1], 3).T,
        (weights[:, None] * away).T @ away, atol=1e-9,
    )  # fmt: skip
    for s, task in enumerate(rows):
        for a in range(2):
            if not (task.action == a).any():
                assert not ended.sums[s, a].any()
                continue
            S = unpack(ended.sums[s, a], p + 2) / RATIO[a]
            assert np.linalg.eigvalsh(S[:p, :p]).min() > -1e-10
            posterior = prior @ np.linalg.solve(np.eye(p) + S[:p, :p] @ prior, np.eye(p))
            np.testing.assert_allclose(posterior, cov[s, a], rtol=1e-8, atol=1e-12)
            levels = [
                truth.level_path(
                    task, rewards[s] - np.einsum("np,np->n", task.x, law.walks[0].center[task.action]),
                    size * start, kappa * shape, LEVEL, 0.0,
                )[0][0]
                for kappa, size in nodes
            ]  # fmt: skip
            middle = law.walks[0].center[a] + float(weights @ levels) * np.eye(p)[0]
            score = S[:p, p] - S[:p, :p] @ middle
            np.testing.assert_allclose(middle + posterior @ score, mean[s, a], rtol=1e-7, atol=1e-9)
            square = S[p, p] - 2 * middle @ S[:p, p] + middle @ S[:p, :p] @ middle - score @ posterior @ score
            log_det = np.linalg.slogdet(np.eye(p) + S[:p, :p] @ prior)[1] - ended.log_precision[s, a]
            noise = (task.action == a).sum() * np.log(RATIO[a])
            expected = float(weights @ densities[:, s, a])
            assert -0.5 * (square + log_det + noise) == pytest.approx(expected, rel=1e-8)


def test_one_rate_leaves_no_error_and_the_same_sums() -> None:
    _, _, moments, periods = a_log(2)
    one, ones = walks(2, ETA), np.ones(len(moments))
    expected = one.at_end(moments, periods, ones)
    ended, roots = UncertainWalks(np.ones(1), (one,)).at_end(moments, periods, ones)
    np.testing.assert_array_equal(ended.sums, expected.sums)
    assert roots.shape == (3, 4, 0)
    twice, roots = UncertainWalks(np.array([0.3, 0.7]), (one, one)).at_end(moments, periods, ones)
    np.testing.assert_allclose(twice.sums, expected.sums, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(roots, 0.0, atol=1e-12)


def test_gauss_rules_have_the_moments_of_the_law() -> None:
    rng = np.random.default_rng(0)
    nodes, weights = np.sort(rng.random(9)), rng.dirichlet(np.ones(9))
    for count in (1, 2, 3):
        x, w = gauss_rule(nodes, weights, count)
        for degree in range(2 * count):
            assert w @ x**degree == pytest.approx(weights @ nodes**degree, rel=1e-10)
        assert ((x > nodes[0]) & (x < nodes[-1])).all()
    x, w = gauss_rule(nodes, np.eye(9)[4], 3)
    assert (x, w) == (pytest.approx([nodes[4]]), pytest.approx([1.0]))


SHARED = [NOTHING_SHARED, Shared(task=0.5), Shared(unit=0.6, task=0.5)]


@pytest.mark.parametrize(("eta", "shared"), [*((ETA, one) for one in SHARED), (0.0, SHARED[1])])
def test_information_about_two_actions_is_that_of_levels_that_move(eta: float, shared: Shared) -> None:
    rows, _, moments, periods = a_log(1)
    rows = in_common(rows, shared)
    start, shape = covariances(1)
    ended = walks(1, eta, shared).at_end(moments, periods, np.ones(len(moments)))
    for s in (0, 1):
        G = truth.information(rows[s], start, KAPPA * shape, eta, 2)
        exact = np.linalg.det(G) / G.sum()
        own = ended.sums[s, :, 0] / RATIO
        assert own.prod() / own.sum() == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("shared", SHARED)
def test_levels_are_taken_off_at_their_means(shared: Shared) -> None:
    """Means of units are those of rewards less the mean path of the level, which stays at its end."""
    rows, rewards, moments, periods = a_log(1)
    rows = in_common(rows, shared)
    start, shape = covariances(1)
    law, steady = walks(1, ETA, shared), walks(1, 0.0)
    ended = law.at_end(moments, periods, np.ones(len(moments)))
    for s in (0, 1):
        task = rows[s]
        about = rewards[s] - law.center[task.action, 0]
        level, smooth = truth.level_path(task, about, start, KAPPA * shape, LEVEL, ETA)
        of_end = smooth[task.since.argmax()]
        for a in range(2):
            one = task.of_action(a)
            mean, cov = truth.at_end(one, (about - level)[task.action == a], start, KAPPA * shape)
            prior = start + (END - TIMES[0]) * KAPPA * shape
            fit = mean[0] / cov[0, 0] / (1 / cov[0, 0] - 1 / prior[0, 0]) + law.center[a, 0] + of_end
            assert ended.sums[s, a, 1] / ended.sums[s, a, 0] == pytest.approx(fit, rel=1e-9)
    assert steady.at_end(moments, periods, np.ones(len(moments))).sums[0, 0, 0] >= ended.sums[0, 0, 0]


def a_constant(p: int) -> Constant:
    """Return a hierarchy of a fit without drift, of two actions, three tasks and p columns."""
    center, level, interaction = (
        np.linspace(0.4, 1.0, 2 * p).reshape(2, p),
        0.5 * np.eye(p),
        0.3 * np.eye(p) + 0.05,
    )
    return Constant(center, level, interaction, covariances(p)[1], 0.0, RATIO, None, np.ones(3))


@pytest.mark.parametrize("shared", SHARED)
@pytest.mark.parametrize("p", [1, 2])
def test_evidence_is_that_of_dense_covariances(p: int, shared: Shared) -> None:
    rows, rewards, _, periods = a_log(p)
    constant, profile = a_constant(p), np.array([0.5, 1.0, 2.0, 1.5])
    center, level, interaction, shape = constant.center, constant.level, constant.interaction, constant.walk
    sds = np.array([0.0, 0.7]), np.zeros(2)
    evidence = _Evidence(periods, constant, np.ones(3), periods.rows, profile, 0.0, center, shared)
    table = evidence.table(sds, sds) + np.log(len(SHARES))
    span = END - TIMES[0]
    for i, sd in enumerate(sds[0]):
        for j, of_level in enumerate(sds[0]):
            for k, share in enumerate(SHARES):
                square = log_det = 0.0
                for task, reward in zip(rows, rewards, strict=True):
                    noise = task.noise * profile[np.searchsorted(TIMES - TIMES[0], task.since)]
                    of_rows = replace(task, noise=noise, unit=shared.unit, task=shared.task)
                    cov = of_rows.errors() + task.walk(sd**2 / span * shape)
                    cov = cov + of_rows.level(0.0, of_level**2 / span)
                    cov = cov + task.start(share * interaction) + task.x @ level @ task.x.T
                    about = reward - np.einsum("np,np->n", task.x, center[task.action])
                    square += about @ np.linalg.solve(cov, about)
                    log_det += np.linalg.slogdet(cov)[1]
                log_det -= sum(float(np.log(task.noise).sum()) for task in rows)  # a constant of the log
                n = sum(map(len, rewards))
                assert table[i, j, k] == pytest.approx(-0.5 * n * np.log(square) - 0.5 * log_det, rel=1e-9)


@pytest.mark.parametrize("shared", [NOTHING_SHARED, Shared(unit=0.6)])
@pytest.mark.parametrize("p", [1, 2])
def test_evidence_of_interactions_that_fade_is_that_of_dense_covariances(p: int, shared: Shared) -> None:
    rows, rewards, _, periods = a_log(p)
    constant, profile = a_constant(p), np.array([0.5, 1.0, 2.0, 1.5])
    center, level, interaction = constant.center, constant.level, constant.interaction
    evidence = _Evidence(periods, constant, np.ones(3), periods.rows, profile, 0.0, center, shared)
    table = evidence.fading_table() - _axis(FADING, 2.0)[1][1:, None] + np.log(len(SIZES))
    for i, rate in enumerate(FADING / (END - TIMES[0])):
        for k, size in enumerate(SIZES):
            square = log_det = 0.0
            for task, reward in zip(rows, rewards, strict=True):
                noise = task.noise * profile[np.searchsorted(TIMES - TIMES[0], task.since)]
                of_rows = replace(task, noise=noise, unit=shared.unit)
                cov = of_rows.errors() + task.fading(size * interaction, rate)
                cov = cov + task.x @ level @ task.x.T
                about = reward - np.einsum("np,np->n", task.x, center[task.action])
                square += about @ np.linalg.solve(cov, about)
                log_det += np.linalg.slogdet(cov)[1] - float(np.log(task.noise).sum())
            n = sum(map(len, rewards))
            assert table[i, k] == pytest.approx(-0.5 * n * np.log(square) - 0.5 * log_det, rel=1e-9)


@pytest.mark.parametrize("p", [1, 3])
def test_rows_at_the_end_of_interactions_that_fade_tell_what_all_rows_tell(p: int) -> None:
    rows, rewards, moments, periods = a_log(p)
    start, _ = covariances(p)
    rate = 0.4
    law = replace(walks(p, 0.0), walk=np.linalg.cholesky(start), fading=rate)
    np.testing.assert_allclose(law.prior(periods.span), start, rtol=1e-12)
    ended = law.at_end(moments, periods, np.ones(len(moments)))
    for s, (task, reward) in enumerate(zip(rows, rewards, strict=True)):
        cov = task.errors() + task.fading(start, rate)
        about = reward - np.einsum("np,np->n", task.x, law.center[task.action])
        level = LEVEL * np.linalg.solve(cov + LEVEL, about).sum()
        for a in range(2):
            if not (task.action == a).any():
                continue
            one, left = task.of_action(a), (about - level)[task.action == a]
            dense = one.errors() + one.fading(start, rate)
            cross = start @ (one.x * np.exp(-rate * (one.end - one.since))[:, None]).T
            mean = cross @ np.linalg.solve(dense, left)
            expected = start - cross @ np.linalg.solve(dense, cross.T)
            S = unpack(ended.sums[s, a], p + 2) / RATIO[a]
            middle = law.center[a] + level * np.eye(p)[0]
            posterior = start @ np.linalg.solve(np.eye(p) + S[:p, :p] @ start, np.eye(p))
            score = S[:p, p] - S[:p, :p] @ middle
            np.testing.assert_allclose(posterior, expected, rtol=1e-8, atol=1e-12)
            np.testing.assert_allclose(posterior @ score, mean, rtol=1e-8, atol=1e-10)
            square = S[p, p] - 2 * middle @ S[:p, p] + middle @ S[:p, :p] @ middle - score @ posterior @ score
            log_det = np.linalg.slogdet(np.eye(p) + S[:p, :p] @ start)[1] - ended.log_precision[s, a]
            noise = (task.action == a).sum() * np.log(RATIO[a])
            assert -0.5 * (square + log_det + noise) == pytest.approx(
                truth.log_density(left, dense), rel=1e-9
            )


def test_without_a_walk_rows_are_as_they_were() -> None:
    _, _, moments, periods = a_log(2)
    none = walks(2, 0.0)
    still = Walks(none.center, none.start, 0.0 * none.walk, LEVEL, 0.0, RATIO, np.ones(TIMES.size))
    ended = still.at_end(moments, periods, np.array([1.0, 2.0, 0.5]))
    p = 2
    S, expected = unpack(ended.sums, p + 2), unpack(moments.sums, p + 2)
    np.testing.assert_allclose(S[..., :p, : p + 1], expected[..., :p, : p + 1], atol=1e-9)
    np.testing.assert_allclose(S[..., p, p], expected[..., p, p], atol=1e-9)
    np.testing.assert_allclose(ended.log_precision, 0.0, atol=1e-9)


def test_a_filter_from_the_end_is_one_from_the_start() -> None:
    """Both integrate all rows: the density of the rows is the same from either end."""
    _, _, _, periods = a_log(2)
    start, shape = covariances(2)
    ratio, root = np.tile(RATIO[:, None], TIMES.size), np.linalg.cholesky(KAPPA * shape)
    first, last = (
        UnitFactors.at_start(periods, ratio, root),
        UnitFactors.at_end(periods, ratio, root, start, np.zeros((2, 2))),
    )
    at_end = start + periods.span * KAPPA * shape
    for factors, prior in ((first, start), (last, at_end)):
        regular = factors.information + np.linalg.solve(prior, np.eye(2))
        left = factors.products - factors.scores.swapaxes(2, 3) @ np.linalg.solve(regular, factors.scores)
        log_det = factors.log_det + np.linalg.slogdet(regular @ prior)[1]
        if factors is first:
            expected = left, log_det
    np.testing.assert_allclose(left, expected[0], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(log_det[:2], expected[1][:2], rtol=1e-9)


def a_world(seed: int, *, move: float, level: float = 0.0, growing: bool = False) -> Any:
    """Return a log of 40 tasks x 100 rows whose interactions, or levels, walk in 20 steps; and the end's truth."""
    import pyarrow as pa

    rng = np.random.default_rng([1608, seed])
    m, n, steps = 40, 4000, 20
    theta = (
        0.3 * rng.standard_normal((m, 4)) + 0.5 * rng.standard_normal((m, 1)) + 0.2 * rng.standard_normal(4)
    )
    path = theta + np.cumsum(move / steps**0.5 * rng.standard_normal((steps, m, 4)), axis=0)
    path = path + np.cumsum(level / steps**0.5 * rng.standard_normal((steps, m, 1)), axis=0)
    task, time, action = rng.integers(0, m, n), rng.random(n), rng.integers(0, 4, n)
    noise = np.where(time > 0.5, 1.5, 0.5) if growing else 1.0
    reward = path[
        np.minimum((time * steps).astype(int), steps - 1), task, action
    ] + noise * rng.standard_normal(n)
    return pa.table({"site": task, "offer": action, "profit": reward, "week": time}), path[-1]


ROLES = {"task": "site", "action": "offer", "reward": "profit", "time": "week"}


def test_walks_are_found_where_they_are() -> None:
    found = [
        HierOPO(logging="random").fit(a_world(0, **world)[0], **ROLES).drift_
        for world in (
            {"move": 0.6},
            {"move": 0.0, "level": 0.6},
            {"move": 0.0},
            {"move": 0.0, "growing": True},
        )
    ]
    moving, levels, none, growing = found
    assert moving.kappa**0.5 == pytest.approx(0.6, abs=0.2)
    assert moving.eta == 0.0
    assert levels.eta**0.5 == pytest.approx(0.6, abs=0.2)
    assert levels.kappa == 0.0
    assert not none.present
    assert not growing.present
    assert 0.05 < moving.shortest < moving.half_life < moving.longest < 0.5


def test_learning_ignores_the_order_of_tasks() -> None:
    _, _, moments, periods = a_log(1, tasks=6)
    rng = np.random.default_rng(0)
    order = rng.permutation(6)
    constant = Constant(
        np.zeros((2, 1)), np.eye(1), np.eye(1), np.eye(1), 1.0, RATIO, None, np.ones(6),
    )  # fmt: skip
    one, two = (
        learn_drift(moments, periods, constant),
        learn_drift(moments.at(order), periods.at(order), constant),
    )
    assert one.drift.log_odds == pytest.approx(two.drift.log_odds, rel=1e-9)
    assert Drift.from_dict(one.drift.to_dict()) == one.drift
