"""Predictive checks: against fits without the row, without the task and with the feature; and faults that are known."""

import json
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from reference.dense import Array
from scipy import stats

from hieropo._utils.packed import packed_size
from hieropo.errors import InputError, LogError, MismatchError
from hieropo.estimation.crossed.integration import integrate_crossed
from hieropo.estimation.crossed.mixture import condition_hierarchies
from hieropo.estimation.hyper.corrected import HyperError, correct
from hieropo.estimation.hyper.mixed import HyperDraws, mix
from hieropo.evaluation.diagnostics import misfits as faults
from hieropo.evaluation.diagnostics.misfits import (
    Residuals,
    heavy_tails,
    noise_between,
    residual_columns,
    summed,
    wrong_scale,
)
from hieropo.evaluation.diagnostics.predictive import Checks
from hieropo.evaluation.diagnostics.task_distances import task_distances
from hieropo.features.maps import Columns, embedding, indicator, per_action
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.crossed.posterior import condition_crossed
from hieropo.model.gaussian import Gaussian
from hieropo.model.hierarchy import Hierarchy, Level
from hieropo.model.metadata import Metadata
from hieropo.model.posterior import condition
from hieropo.moments.statistics import Moments
from hieropo.moments.units import UnitAccumulator

M, N, K = 5, 36, 3
ARMS = per_action(list("abc"), ["x"])
SOME = embedding(list("abc"), [[1.0, 0.0], [1.0, 1.0], [1.0, 3.0]], ["x"])
FLAT = Columns(("u", "v"))
COVS = [np.cov(np.random.default_rng(k).standard_normal((6, 20))) for k in range(4)]
GROUPS = dict(zip(range(M), "NNSSS", strict=True))
REGION = np.array([[0.3], [-1.0], [0.7], [0.1], [1.5]])


class Log:
    """Rows and what it takes to learn from any of them."""

    def __init__(self, kind: str, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.kind = kind
        self.noise: Any
        self.features: Any = FLAT if kind == "columns" else SOME if kind == "embedding" else ARMS
        self.task = np.concatenate([np.arange(M), rng.integers(0, M, N - M)])
        self.action = None if kind == "columns" else rng.integers(0, K, N)
        self.context = rng.standard_normal((N, len(self.features.columns)))
        self.reward, self.precision = 2 * rng.standard_normal(N), rng.uniform(0.3, 3.0, N)
        self.weight = np.ones(N)
        self.phi = self.features.phi(self.context, self.action)
        d = self.features.dim
        self.cov, self.noise = COVS[0][:d, :d], 0.7
        if kind.startswith("units"):
            self.noise = np.array([0.7, 0.4, 1.5])  # of each action
        self.hyper = Gaussian(np.linspace(-1, 1, d), 2 * COVS[1][:d, :d])

    def learn(self, rows: Any) -> Any:
        """Posterior of some rows."""
        if self.kind.startswith("units"):
            sums = UnitAccumulator(self.features)
            sums.add(
                self.task[rows],
                self.action[rows],
                self.context[rows],
                self.reward[rows],
                self.weight[rows],
                self.precision[rows],
            )
            return condition_crossed(sums.moments(), self.crossed)
        moments = Moments.from_arrays(
            self.task[rows], self.phi[rows], self.reward[rows], self.weight[rows],
            precision=self.precision[rows], features=self.features.fingerprint,
        )  # fmt: skip
        return condition(moments, self.hierarchy)

    @property
    def crossed(self) -> CrossedHierarchy:
        level = COVS[2][:2, :2] if self.kind == "units with a level" else np.zeros((2, 2))
        return CrossedHierarchy(COVS[1][2:4, 2:4], level, self.cov[:2, :2], self.noise)

    @property
    def row_noise(self) -> Array:
        """Variance of the noise of each row."""
        noise = self.noise if np.ndim(self.noise) == 0 else np.asarray(self.noise)[self.action]
        return np.asarray(noise / self.precision)

    @property
    def hierarchy(self) -> Hierarchy:
        if self.kind == "tree":
            return Hierarchy(self.hyper, self.cov, self.noise, (Level(COVS[2], GROUPS),))
        if self.kind == "metadata":
            known = Metadata(range(M), REGION, ["size"])
            hyper = Gaussian(np.linspace(-1, 1, 12), np.eye(12))
            return Hierarchy(hyper, self.cov, self.noise, metadata=known)
        return Hierarchy(None if self.kind == "flat" else self.hyper, self.cov, self.noise)

    def unseen(self, posterior: Any, task: int) -> Gaussian:
        """What a posterior says of a task, with rows or without."""
        if posterior.moments.keys.find(task) >= 0:
            return posterior.task(task)
        if self.kind == "tree":
            return posterior.new_task(GROUPS[task])
        return posterior.new_task(**({"metadata": REGION[task]} if self.kind == "metadata" else {}))

    def checks(self, posterior: Any, rows: Any, *, learned_from: bool, batches: int = 1) -> Any:
        found = Checks(posterior, self.features, learned_from=learned_from)
        at = posterior.moments.keys.require(self.task)
        for part in np.array_split(np.arange(N)[rows], batches):
            action = None if self.action is None else self.action[part]
            found.add(
                at[part],
                action,
                self.context[part],
                self.reward[part],
                self.weight[part],
                self.precision[part],
            )
        return found.checks()


KINDS = (
    "two levels", "flat", "tree", "metadata", "columns", "embedding", "units", "units with a level"
)  # fmt: skip
kinds = pytest.mark.parametrize("log", [pytest.param(Log(kind), id=kind) for kind in KINDS])
EVERY = np.arange(N)


def test_of_equal_residuals_those_of_the_first_rows_are_shown() -> None:
    rng = np.random.default_rng(0)
    n, arms = 4000, indicator(["a", "b"])
    task, action, reward = rng.integers(3, size=n), rng.integers(2, size=n), (rng.random(n) < 0.1) * 1.0
    moments = Moments.from_arrays(task, arms.phi(None, action), reward)
    posterior = condition(moments, Hierarchy(None, 0.01 * np.eye(2), 0.09))
    checks = Checks(posterior, arms, learned_from=True)
    at = posterior.moments.keys.require(task)
    for part in np.array_split(np.arange(n), 3):
        checks.add(at[part], action[part], None, reward[part])
    found = checks.checks()
    mean = np.array([[posterior.task(s).mean[a] for a in range(2)] for s in range(3)])
    s, a = np.unravel_index(mean.argmin(), mean.shape)
    rows = np.flatnonzero((task == s) & (action == a) & (reward == 1))[:5]
    assert [each.row for each in found.outliers] == rows.tolist()


def residual(log: Log, law: Gaussian, row: int) -> float:
    spread = log.phi[row] @ law.cov @ log.phi[row] + log.row_noise[row]
    return float((log.reward[row] - log.phi[row] @ law.mean) / np.sqrt(spread))


def same_residuals(log: Log, found: Any, z: Array, rows: Array, rtol: float = 1e-8) -> None:
    """All that is said of residuals is what these residuals say."""
    task, n = log.task[rows], np.bincount(log.task[rows], minlength=M)
    order = found.keys.locate(np.arange(M))
    np.testing.assert_array_equal(found.by_task.rows[order], n)
    np.testing.assert_allclose(found.by_task.mean[order], np.bincount(task, z, M) / n, rtol, atol=1e-9)
    np.testing.assert_allclose(found.by_task.sd[order], np.sqrt(np.bincount(task, z * z, M) / n), rtol)
    top = np.argsort(-np.abs(z))[:5]
    assert [each.row for each in found.outliers] == top.tolist()
    np.testing.assert_allclose([each.residual for each in found.outliers], z[top], rtol)
    assert [each.task for each in found.outliers] == task[top].tolist()
    pit = stats.norm.cdf(z)
    np.testing.assert_array_equal(found.pit, np.histogram(pit, np.linspace(0, 1, 21))[0])
    shares = [np.mean(np.abs(pit - 0.5) <= share / 2) for share in (0.5, 0.8, 0.95)]
    np.testing.assert_allclose(found.coverage, shares)
    if log.action is not None:
        each = [np.sqrt(np.mean(z[log.action[rows] == a] ** 2)) for a in range(K)]
        np.testing.assert_allclose(found.by_action.sd, each, rtol)


# Rows


@kinds
def test_a_row_is_judged_by_what_is_learned_without_it(log: Log) -> None:
    without = [log.learn(np.delete(EVERY, row)) for row in range(N)]
    z = np.array([residual(log, log.unseen(without[row], log.task[row]), row) for row in range(N)])
    found = log.checks(log.learn(EVERY), EVERY, learned_from=True)
    same_residuals(log, found, z, EVERY)
    assert found.rows == N
    assert found.alone == 0


@kinds
def test_a_new_row_is_judged_by_the_posterior_as_it_is(log: Log) -> None:
    posterior = log.learn(EVERY[:24])
    rows = EVERY[24:]
    found = log.checks(posterior, rows, learned_from=False)
    z = np.array([residual(log, posterior.task(log.task[row]), row) for row in rows])
    same_residuals(log, found, z, rows)
    assert found.distances is None


@kinds
def test_batches_in_pieces_are_one_batch(log: Log) -> None:
    posterior = log.learn(EVERY)
    one, many = (log.checks(posterior, EVERY, learned_from=True, batches=k) for k in (1, 7))
    for a, b in zip(one.misfits, many.misfits, strict=True):
        assert a.kind == b.kind
        np.testing.assert_allclose([a.p, a.effect], [b.p, b.effect], rtol=1e-6, atol=1e-9)


def test_a_row_that_alone_speaks_of_its_features_checks_nothing() -> None:
    features, task = indicator(["a", "b"]), [0, 0, 1]
    action, reward = (
        np.array([0, 1, 0]),
        [1.0, 5.0, 2.0],
    )  # one row of action b, and nothing known of it before
    moments = Moments.from_arrays(task, features.phi(None, action), reward)
    checks = Checks(condition(moments, Hierarchy(None, np.eye(2), 1.0)), features, learned_from=True)
    checks.add(task, action, None, reward)
    found = checks.checks()
    assert (found.alone, found.rows) == (1, 2)
    np.testing.assert_allclose(found.by_task.sd, [0.5, 0.5])  # 1 apart, each N(other, 1 + 1 + 1 + 1)
    alone = Checks(condition(moments, Hierarchy(None, np.eye(2), 1.0)), features, learned_from=True)
    alone.add([0], [1], None, [5.0])
    with pytest.raises(InputError, match="no other row has the features"):
        alone.checks()


def test_rows_of_weight_zero_are_absent() -> None:
    log = Log("two levels")
    log.weight = np.where(EVERY % 4 == 3, 0.0, log.weight)
    kept = EVERY[log.weight > 0]
    all_rows = log.checks(log.learn(EVERY), EVERY, learned_from=True)
    fewer = log.checks(log.learn(kept), kept, learned_from=True)
    assert all_rows.rows == kept.size
    np.testing.assert_allclose(all_rows.by_task.sd, fewer.by_task.sd, rtol=1e-9)
    assert all_rows.outliers[0].row == kept[fewer.outliers[0].row]  # rows are counted as they came


def test_mixtures_leave_out_under_the_central_hierarchy_and_predict_by_mean_and_covariance() -> None:
    log = Log("two levels")
    plain = log.learn(EVERY)
    draws = HyperDraws(
        np.array([0.7, 0.3]), np.array([log.cov, 3 * COVS[2]]), np.array([0.5, 2.0]), np.zeros((2, 0, 6, 6))
    )
    mixed = mix(plain.moments, plain.hierarchy, draws)
    corrected = correct(plain.moments, plain.hierarchy, HyperError(6, 0.1 * np.eye(packed_size(6)), 20))
    central = log.checks(plain, EVERY, learned_from=True)
    for posterior in (mixed, corrected):
        found = log.checks(posterior, EVERY, learned_from=True)
        np.testing.assert_allclose(found.by_task.sd, central.by_task.sd, rtol=1e-12)
        np.testing.assert_allclose(found.distances.square, central.distances.square, rtol=1e-12)
    for posterior, noise in ((mixed, 0.7 * 0.5 + 0.3 * 2.0), (corrected, 0.7)):
        log.noise = noise
        z = np.array([residual(log, posterior.task(log.task[row]), row) for row in EVERY])
        same_residuals(log, log.checks(posterior, EVERY, learned_from=False), z, EVERY)


@pytest.mark.slow
def test_mixtures_of_units_do_so_too() -> None:
    log = Log("units with a level")
    moments = log.learn(EVERY).moments
    mixture = condition_hierarchies(moments, integrate_crossed(moments))
    central = mixture.hierarchy.central()
    found = log.checks(mixture, EVERY, learned_from=True)
    same = log.checks(condition_crossed(moments, central), EVERY, learned_from=True)
    np.testing.assert_allclose(found.by_task.sd, same.by_task.sd, rtol=1e-12)
    np.testing.assert_allclose(found.distances.square, same.distances.square, rtol=1e-12)
    log.noise = central.noise_var
    z = np.array([residual(log, mixture.task(log.task[row]), row) for row in EVERY])
    same_residuals(log, log.checks(mixture, EVERY, learned_from=False), z, EVERY)


# Tasks


@kinds
def test_a_task_is_compared_with_what_is_learned_without_it(log: Log) -> None:
    found, rank = task_distances(log.learn(EVERY)), np.linalg.matrix_rank
    keys = log.learn(EVERY).moments.keys
    for task in range(M):
        own = np.flatnonzero(log.task == task)
        law = log.unseen(log.learn(np.flatnonzero(log.task != task)), task)
        phi, noise, r = log.phi[own], log.row_noise[own], log.reward[own]
        cov, away = phi @ law.cov @ phi.T + np.diag(noise), r - phi @ law.mean
        # the rewards' whole distance, less what is left of them around the best coefficients of this task alone
        scaled, weighted = phi / np.sqrt(noise)[:, None], r / np.sqrt(noise)
        left = weighted - scaled @ np.linalg.lstsq(scaled, weighted, rcond=1e-12)[0]
        expected = away @ np.linalg.solve(cov, away) - left @ left
        row = keys.find(task)
        np.testing.assert_allclose(found.square[row], expected, rtol=1e-6)
        assert found.free[row] == rank(phi)


def test_directions_of_which_others_say_nothing_are_not_compared() -> None:
    features, action = indicator(["a", "b"]), np.array([0, 0, 1, 0])
    moments = Moments.from_arrays([0, 1, 1, 2], features.phi(None, action), [1.0, 2.0, 9.0, 4.0])
    found = task_distances(condition(moments, Hierarchy(None, np.eye(2), 1.0)))
    np.testing.assert_array_equal(found.free, [1, 1, 1])
    # of action a: 2 against the mean of 1 and 4, each of variance 2
    np.testing.assert_allclose(found.square[1], (2.0 - 2.5) ** 2 / (2.0 + 1.0))
    one = task_distances(condition(moments.select([1]), Hierarchy(None, np.eye(2), 1.0)))
    assert (one.free.tolist(), one.square.tolist()) == ([0], [0.0])
    assert one.ratio(np.ones(1, dtype=bool)) == (1.0, 1.0)


def test_many_columns_have_the_distances_that_eigenvectors_have(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, d = np.random.default_rng(0), 18
    task = np.repeat(np.arange(30), np.tile([60, 19, 4], 10))  # the last have fewer rows than coefficients
    phi = rng.standard_normal((len(task), d))
    phi[task == 3, 5] = phi[task == 3, 4]
    theta = rng.standard_normal((30, d))
    reward = np.einsum("nd,nd->n", phi, theta[task]) + rng.standard_normal(len(task))
    posterior = condition(Moments.from_arrays(task, phi, reward), Hierarchy(None, np.eye(d), 1.0))
    found = task_distances(posterior)
    monkeypatch.setattr("hieropo.evaluation.diagnostics.task_distances._FEW_COLUMNS", d)
    same = task_distances(posterior)
    np.testing.assert_array_equal(found.free, same.free)
    assert (found.free[2], found.free[3], found.free[4]) == (4, d - 1, d)
    for name in ("square", "fitted", "expected"):
        np.testing.assert_allclose(getattr(found, name), getattr(same, name), rtol=1e-9, atol=1e-10)


@kinds
def test_distances_to_what_all_say_are_expected_to_be_as_said(log: Log) -> None:
    """sum |y - R m|^2 is a quadratic form of rewards; its mean is the trace of it with their covariance."""
    found = task_distances(log.learn(EVERY))
    assert (found.expected <= found.free + 1e-9).all()
    draws = np.random.default_rng(1)
    if log.kind != "two levels":
        return
    total, worlds = 0.0, 400
    for _ in range(worlds):
        mu = log.hyper.sample(draws, 1)[0]
        theta = mu + draws.multivariate_normal(np.zeros(6), log.cov, M)
        noise = np.sqrt(log.noise / log.precision) * draws.standard_normal(N)
        reward = np.einsum("nd,nd->n", log.phi, theta[log.task]) + noise
        moments = Moments.from_arrays(log.task, log.phi, reward, precision=log.precision)
        total += task_distances(condition(moments, log.hierarchy)).fitted.sum()
    expected = found.expected.sum()
    assert abs(total / worlds / expected - 1) < 5 * np.sqrt(2 / expected / worlds)


# Missing features


def missing(log: Log, column: int, action: int, rows: Array) -> Array:
    """The square of a column less its regression on features and 1, in the rows of an action; or 1 there."""
    own = np.ones(len(rows), dtype=bool) if action < 0 else log.action[rows] == action
    psi = np.where(own, 1.0, 0.0)
    if column < 0:
        return psi
    x, w = log.context[rows][own, column], np.sqrt(log.precision[rows][own])
    have = log.phi[rows][own] if log.kind == "embedding" else np.stack([np.ones(x.size), x], axis=1)
    have = np.column_stack([have, np.ones(x.size)])
    psi[own] = x**2 - have @ np.linalg.lstsq(have * w[:, None], x**2 * w, rcond=1e-12)[0]
    return psi


def joint_cov(log: Log, hyper_cov: Array) -> Array:
    """Covariance of all rewards, two levels."""
    own = np.where(log.task[:, None] == log.task, log.phi @ log.cov @ log.phi.T, 0.0)
    return own + log.phi @ hyper_cov @ log.phi.T + np.diag(log.row_noise)


def joint_cov_of_units(log: Log) -> Array:
    """Covariance of all rewards around x'beta, by the crossed prior."""
    prior, x = log.crossed, own_features(log)
    same_task, same_action = log.task[:, None] == log.task, log.action[:, None] == log.action
    parts = ((prior.action_cov, same_action), (prior.level_cov, same_task),
             (prior.interaction_cov, same_task & same_action))  # fmt: skip
    return np.diag(log.row_noise) + sum(np.where(same, x @ cov @ x.T, 0.0) for cov, same in parts)


def own_features(log: Log) -> Array:
    return np.column_stack([np.ones(N), log.context])


@pytest.mark.parametrize("kind", ["two levels", "flat", "embedding", "units", "units with a level"])
def test_a_missing_feature_is_tested_as_by_generalised_least_squares(kind: str) -> None:
    log = Log(kind)
    found = log.checks(log.learn(EVERY), EVERY, learned_from=True).score_tests
    units = kind.startswith("units")
    flat = own_features(log) if units else log.phi if kind == "flat" else None
    cov = joint_cov(log, np.zeros((len(log.cov),) * 2) if kind == "flat" else log.hyper.cov)
    inverse = np.linalg.solve(joint_cov_of_units(log) if units else cov, np.eye(N))
    away = log.reward - log.phi @ log.hyper.mean * (flat is None)
    if flat is not None:
        fixed = inverse @ flat
        inverse = inverse - fixed @ np.linalg.solve(flat.T @ fixed, fixed.T)
    whom = [-1] if kind == "embedding" else [-1, 0, 1, 2]
    assert [(each.column, each.action) for each in found] == [(0, a) for a in whom]
    for each in found:
        psi = missing(log, each.column, each.action, EVERY)
        score = psi @ inverse @ away / np.sqrt(psi @ inverse @ psi)
        np.testing.assert_allclose(each.score, score, rtol=1e-7)
        np.testing.assert_allclose(each.p, 2 * stats.norm.sf(abs(score)), rtol=1e-6)
        n = N if each.action < 0 else np.sum(log.action == each.action)
        np.testing.assert_allclose(each.effect, np.sqrt(max(score**2 - 1, 0) / n), rtol=1e-7)


def test_a_missing_feature_of_new_rows_counts_what_is_not_known_yet() -> None:
    log = Log("two levels")
    old, new = EVERY[:24], EVERY[24:]
    found = log.checks(log.learn(old), new, learned_from=False).score_tests
    cov = joint_cov(log, log.hyper.cov)
    gain = np.linalg.solve(cov[np.ix_(old, old)], cov[np.ix_(old, new)]).T
    away = log.reward - log.phi @ log.hyper.mean
    e = away[new] - gain @ away[old]
    ahead = cov[np.ix_(new, new)] - gain @ cov[np.ix_(old, new)]
    counts = {-1: new.size, **Counter(log.action[new].tolist())}
    tested = [(-1, a) for a in range(-1, K) if counts[a] > 1] + [
        (0, a) for a in range(-1, K) if counts[a] > 2
    ]
    assert [(each.column, each.action) for each in found] == tested
    for each in found:
        psi = log.precision[new] * missing(log, each.column, each.action, new)
        np.testing.assert_allclose(each.score, psi @ e / np.sqrt(psi @ ahead @ psi), rtol=1e-7)


def test_missing_features_of_many_tasks_are_tested_on_some(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log("two levels")
    monkeypatch.setattr(faults, "_MAX_SUMS", 3 * K * packed_size(5))  # three of five tasks: every second
    monkeypatch.setattr(faults, "_MAX_VECTORS", 4 * M * 6)
    posterior = log.learn(EVERY)
    found = log.checks(posterior, EVERY, learned_from=True).score_tests
    inverse = np.linalg.solve(joint_cov(log, log.hyper.cov), np.eye(N))
    kept = np.flatnonzero(posterior.moments.keys.require(log.task) % 2 == 0)
    for each in found:
        psi = np.zeros(N)
        psi[kept] = missing(log, 0, each.action, kept)
        score = psi @ inverse @ (log.reward - log.phi @ log.hyper.mean) / np.sqrt(psi @ inverse @ psi)
        np.testing.assert_allclose(each.score, score, rtol=1e-7)
    assert len(found) == 4


def test_a_column_of_two_values_does_not_bend() -> None:
    log = Log("flat")
    log.context = np.where(log.context > 0, 3.0, -1.0)
    log.phi = log.features.phi(log.context, log.action)
    assert log.checks(log.learn(EVERY), EVERY, learned_from=True).score_tests == ()


# Tests of residuals


def groups(z: Array, codes: Array) -> Residuals:
    columns = residual_columns(z, np.ones(z.size), np.zeros(z.size))
    return Residuals(summed(columns, codes, int(codes.max()) + 1), learned=True)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [8, 30, 500])
def test_tails_of_normal_residuals_are_as_heavy_as_said(rows: int) -> None:
    rng = np.random.default_rng(rows)
    worlds, count = 1500, 6
    codes, p = np.repeat(np.arange(count), rows), np.empty(worlds)
    scale = np.array([0.2, 0.5, 1.0, 1.0, 2.0, 8.0])[codes]  # tails within groups do not see it
    for k in range(worlds):
        p[k] = heavy_tails([groups(scale * rng.standard_normal(codes.size), codes)]).p
    for level in (0.5, 0.1, 0.01):
        assert abs(np.mean(p <= level) - level) <= 4 * np.sqrt(level / worlds) + 0.1 * level
    x = stats.norm.isf(p)
    assert abs(x.mean()) < 4 / np.sqrt(worlds)
    assert abs(x.std() - 1) < 4 / np.sqrt(2 * worlds)


@pytest.mark.parametrize("freedom", [4, np.inf])
@pytest.mark.parametrize("rows", [2, 20, 300])
def test_equal_noise_is_not_called_unequal(rows: int, freedom: float) -> None:
    rng = np.random.default_rng(rows)
    worlds, count = 600, 12 if rows > 2 else 60
    codes, found = np.repeat(np.arange(count), rows), []
    for _ in range(worlds):
        z = rng.standard_t(freedom, codes.size) if np.isfinite(freedom) else rng.standard_normal(codes.size)
        test = noise_between(groups(z, codes), np.ones(count))
        if test is not None:
            found.append((test.p, count * test.p_by_group.min()))
    assert len(found) == worlds
    for p in np.array(found).T:
        assert np.mean(p <= 0.05) <= 0.05 + 4 * np.sqrt(0.05 / worlds)


def test_too_few_rows_tell_nothing_of_noise() -> None:
    z, codes = np.random.default_rng(0).standard_normal(24), np.repeat(np.arange(12), 2)
    assert noise_between(groups(z, codes), np.ones(12)) is None


def test_a_noise_that_was_learned_from_few_rows_is_known_as_well_as_that() -> None:
    rng, n, worlds = np.random.default_rng(1), 2000, 1000
    codes, before, p = np.zeros(n, dtype=np.int64), 40, []
    for _ in range(worlds):
        noise = np.sqrt(rng.chisquare(before) / before)
        p.append(wrong_scale(groups(rng.standard_normal(n) / noise, codes), 1.0, before)[1])
    assert abs(np.mean(np.array(p) <= 0.1) - 0.1) < 0.04


# Faults


def size_of_noise(fault: str, task: Array, action: Array, size: Array) -> Array:
    each = {
        "noise by action": np.array([0.6, 1.0, 1.0, 1.6])[action],
        "noise by task": np.where(task < 8, 2.0, 0.8),
        "noise along numbers": np.exp(0.4 * size),
    }
    found = each.get(fault, np.ones(size.size))
    return found / np.sqrt(np.mean(found**2)) * (1.3 if fault == "scale" else 1.0)


def contexts(rng: np.random.Generator, n: int) -> Array:
    return np.stack([rng.normal(5.0, 1.0, n), rng.standard_normal(n)], axis=1)


def world(fault: str, rng: np.random.Generator, m: int = 40, n: int = 2400) -> tuple[Any, ...]:
    """Rows of a family of tasks with one fault, the hierarchy without it, and the true coefficients."""
    features = per_action(list("abcd"), ["age", "size"])
    cov = np.diag(np.tile([0.3, 0.1, 0.1], 4))
    theta = 0.7 * rng.standard_normal(12) + rng.standard_normal((m, 12)) * np.sqrt(np.diagonal(cov))
    if fault == "unlike task":
        theta[3] += 5 * np.sqrt(np.diagonal(cov))
    task = np.concatenate([np.arange(m), rng.integers(0, m, n - m)])
    action, x = rng.integers(0, 4, n), contexts(rng, n)
    noise = rng.standard_t(4, n) / np.sqrt(2) if fault == "heavy tails" else rng.standard_normal(n)
    reward = np.einsum("nd,nd->n", features.phi(x, action), theta[task])
    reward += size_of_noise(fault, task, action, x[:, 1]) * noise
    if fault == "curvature":
        reward += np.where(action == 1, 0.4, 0.0) * x[:, 1] ** 2
    if fault == "few values":
        reward = (rng.random(n) < 1 / (1 + np.exp(-reward))).astype(np.float64)
    hierarchy = Hierarchy(None, 16 * cov if fault == "likeness" else cov, 1.0)
    return features, task, action, x, reward, hierarchy, theta


def checked(features: Any, task: Array, action: Array, x: Array, reward: Array, hierarchy: Hierarchy) -> Any:
    posterior = condition(Moments.from_arrays(task, features.phi(x, action), reward), hierarchy)
    checks = Checks(posterior, features, learned_from=True)
    checks.add(task, action, x, reward)
    return checks.checks()


SAID = {
    "noise by action": "Noise differs between actions: .*'d' \\(sd 1",
    "noise by task": "Noise differs between tasks: .* and \\d",
    "noise along numbers": "Noise changes with column 'size': the noise sd changes by \\+[34]",
    "heavy tails": "heavy tails \\(excess kurtosis .* the largest residual",
    "curvature": "of action 'b' curves up along column 'size'",
    "unlike task": "Task 3 is unlike the others",
    "few values": "two values only, 0 and 1",
    "scale": "Rewards vary more than the model says: residuals are 1.3 times",
    "likeness": "Tasks differ less than task_cov says",
}


@pytest.mark.parametrize("fault", SAID)
def test_a_fault_is_found_and_named(fault: str) -> None:
    found = checked(*world(fault, np.random.default_rng(11))[:6])
    first = found.misfits[0]
    assert first.kind == fault
    assert first.finding == found.findings[0]
    assert first.p <= 1e-6
    assert re.search(SAID[fault], first.finding), first.finding


def test_an_unlike_task_is_not_a_wrong_likeness_as_well() -> None:
    features, task, action, x, reward, hierarchy, _ = world("unlike task", np.random.default_rng(11))
    wider = Hierarchy(None, 4 * hierarchy.task_cov, 1.0)  # as it is learned from a family with such a task
    found = {each.kind: each for each in checked(features, task, action, x, reward, wider).misfits}
    assert found["likeness"].p < 1e-6
    assert found["likeness"].effect < 0.7
    assert (found["likeness"].finding, found["unlike task"].finding is None) == (None, False)


def test_what_the_actions_of_a_task_have_in_common_is_missed() -> None:
    rng, m, n = np.random.default_rng(16), 80, 4000
    task, action = rng.integers(0, m, n), rng.integers(0, K, n)
    theta = rng.standard_normal(K) + 0.3 * rng.standard_normal((m, K)) + 0.8 * rng.standard_normal((m, 1))
    features, sums = indicator(list("abc")), UnitAccumulator(indicator(list("abc")))
    reward = theta[task, action] + rng.standard_normal(n)
    sums.add(task, action, None, reward)
    said = []
    for level in (0.0, 0.64):
        crossed = CrossedHierarchy([[1.0]], [[level]], [[0.09]], np.ones(K))
        posterior = condition_crossed(sums.moments(), crossed)
        checks = Checks(posterior, features, learned_from=True)
        checks.add(posterior.moments.keys.require(task), action, None, reward)
        said.append(checks.checks().findings)
    assert re.search(
        r"of 80 tasks are too far .* tasks vary in ways that task_cov does not allow", said[0][0]
    )
    assert said[1] == ()


def test_the_noise_of_two_values_is_explained_once() -> None:
    found = checked(*world("few values", np.random.default_rng(11))[:6])
    noise = {each.kind: each for each in found.misfits if each.kind.startswith("noise")}
    assert noise["noise by action"].p < 0.01
    assert noise["noise by action"].effect > 0.1
    assert all(each.finding is None for each in noise.values())
    assert not any(each.kind == "heavy tails" for each in found.misfits)


def test_rewards_of_two_values_that_scatter_alike_everywhere_are_no_limit() -> None:
    """As where each action in each task has half of its rewards 1."""
    n, arms = 1200, indicator(["a", "b"])
    task, action, reward = np.arange(n) % 3, np.arange(n) // 3 % 2, np.arange(n) // 6 % 2
    mean = 0.5 * np.ones((3, 2))
    for shift, listed in ((0.0, False), (0.45, True)):
        chance = np.where(action == 1, 0.5 + shift, mean[task, action])
        rewards = reward * 1.0 if not shift else (np.arange(n) * 0.618 % 1 < chance) * 1.0
        moments = Moments.from_arrays(task, arms.phi(None, action), rewards)
        posterior = condition(moments, Hierarchy(None, 0.01 * np.eye(2), 0.25))
        checks = Checks(posterior, arms, learned_from=True)
        checks.add(posterior.moments.keys.require(task), action, None, rewards)
        said = [each for each in checks.checks().findings if "two values only" in each]
        assert bool(said) == listed
        assert not any("1 to 1 times" in each for each in said)


@pytest.mark.slow
@pytest.mark.parametrize("fault", sorted(set(SAID) - {"few values", "likeness", "scale"}))
def test_one_fault_does_not_pass_for_another(fault: str) -> None:
    rng, named = np.random.default_rng(12), Counter[str]()
    for _ in range(15):
        named.update(each.kind for each in checked(*world(fault, rng)[:6]).misfits if each.finding)
    assert named[fault] == 15
    # a task of large noise is far from the others
    with_it = {fault, "unlike task"} if fault == "noise by task" else {fault}
    others = {kind: count for kind, count in named.items() if kind not in with_it}
    assert sum(others.values()) <= 3, others


@pytest.mark.slow
def test_a_right_model_is_left_alone() -> None:
    rng, worlds, least, said = np.random.default_rng(13), 250, [], 0
    for _ in range(worlds):
        found = checked(*world("none", rng, m=20, n=500)[:6])
        least.append(found.misfits[0].p)
        said += len(found.findings)
    assert np.mean(np.array(least) <= 0.2) <= 0.2 + 3 * np.sqrt(0.16 / worlds)
    assert np.mean(np.array(least) <= 0.5) >= 0.1  # and the tests are not empty
    assert said <= 0.01 * worlds + 3 * np.sqrt(0.01 * worlds)


@pytest.mark.slow
def test_new_rows_of_a_right_model_are_left_alone_and_others_not() -> None:
    rng, worlds, least = np.random.default_rng(14), 150, []
    for k in range(worlds):
        features, task, action, x, reward, hierarchy, theta = world("none", rng, m=20, n=500)
        posterior = condition(Moments.from_arrays(task, features.phi(x, action), reward), hierarchy)
        n = (100, 3000)[k % 2]
        task, action, x = rng.integers(0, 20, n), rng.integers(0, 4, n), contexts(rng, n)
        reward = np.einsum("nd,nd->n", features.phi(x, action), theta[task]) + rng.standard_normal(n)
        for recentred in (0.0, 0.6):
            checks = Checks(posterior, features, learned_from=False)
            checks.add(task, action, x, reward + recentred)
            found = checks.checks()
            if recentred and n == 3000:
                assert any("above their predictions" in said for said in found.findings)
            elif not recentred:
                least.append(found.misfits[0].p)
    assert np.mean(np.array(least) <= 0.2) <= 0.2 + 3 * np.sqrt(0.16 / worlds)


# Values


@pytest.mark.parametrize("rows", [1, 2, 3, 60])
def test_small_and_dull_logs_give_figures(rows: int) -> None:
    features = per_action(["only"], ["x"])
    hierarchy = Hierarchy(Gaussian(np.zeros(2), np.eye(2)), 0.1 * np.eye(2), 1.0)
    for reward in (np.zeros(rows), np.arange(rows) % 2 + 0.0):
        task, action, x = np.arange(rows) % 2, np.zeros(rows, dtype=np.int64), np.ones((rows, 1))
        found = checked(features, task, action, x, reward, hierarchy)
        told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
        assert told["rows"] == rows
        assert len(told["tests"]) == len(found.misfits)
        assert "PredictiveChecks" in repr(found)
    if rows == 60:
        assert "two values only" in found.findings[0]


def test_worst_tasks_come_first_with_a_p_for_all_that_were_looked_at() -> None:
    found = checked(*world("unlike task", np.random.default_rng(15))[:6])
    worst = found.worst_tasks(3)
    assert [each["task"] for each in worst][:1] == [3]
    p = stats.chi2.sf(found.distances.square[3], found.distances.free[3])
    np.testing.assert_allclose(worst[0]["p_unlike"], p)
    np.testing.assert_allclose(worst[0]["p"], 2 * 40 * min(p, worst[0]["p_noise"]))
    assert worst[0]["p"] < 1e-6
    assert worst[1]["p"] > 0.01


def test_what_does_not_fit_is_refused() -> None:
    log = Log("two levels")
    posterior = log.learn(EVERY)
    with pytest.raises(MismatchError, match="not learned with this map"):
        Checks(posterior, per_action(list("cba"), ["x"]), learned_from=True)
    checks = Checks(posterior, ARMS, learned_from=True)
    with pytest.raises(InputError, match="None of 0 rows"):
        checks.checks()
    with pytest.raises(InputError, match=r"task\[1\] is 5"):
        checks.add([0, 5], [0, 0], [[0.0], [0.0]], [1.0, 1.0])
    with pytest.raises(InputError, match=r"action\[0\] is 3"):
        checks.add([0, 1], [3, 0], [[0.0], [0.0]], [1.0, 1.0])
    with pytest.raises(InputError, match="task has shape"):
        checks.add([0.0, 1.0], [0, 0], [[0.0], [0.0]], [1.0, 1.0])
    with pytest.raises(InputError, match="pass their codes"):
        checks.add([0], None, [[0.0]], [1.0])
    with pytest.raises(InputError, match="1 contexts do not fit 2"):
        checks.add([0, 1], [0, 0], [[0.0]], [1.0, 1.0])
    with pytest.raises(LogError, match="'reward', row 1: nan"):
        checks.add([0, 1], [0, 0], [[0.0], [0.0]], [1.0, np.nan])
    columns = Checks(Log("columns").learn(EVERY), FLAT, learned_from=True)
    with pytest.raises(InputError, match="lists none"):
        columns.add([0], [0], [[0.0, 0.0]], [1.0])


@pytest.mark.parametrize("ratio", [1.0, 1.5])
def test_noise_of_another_shape_is_not_called_noise_of_another_size(ratio: float) -> None:
    """Rewards of one action are two values, those of the other normal; their sds are equal, or not."""
    rng, n = np.random.default_rng(0), 2000
    task, action = rng.integers(0, 20, n), rng.integers(0, 2, n)
    noise = np.where(action == 0, rng.choice([-1.0, 1.0], n), ratio * rng.standard_normal(n))
    hierarchy = Hierarchy(Gaussian(np.zeros(2), np.eye(2)), 0.1 * np.eye(2), 1.0)
    found = checked(indicator(["a", "b"]), task, action, np.zeros((n, 0)), noise, hierarchy)
    assert any("Noise differs between actions" in finding for finding in found.findings) == (ratio > 1)
