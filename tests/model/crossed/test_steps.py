"""The way up and the table of the crossed prior, by both backends: the numbers that the steps by reflections give."""

from typing import Any

import numpy as np
import pytest
from reference.dense import Array

from hieropo._utils.packed import unpack
from hieropo.model.crossed import marginals as crossed_laws
from hieropo.model.crossed import steps as crossed_steps
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.crossed.posterior import condition_crossed
from hieropo.model.crossed.steps import (
    GroupSums,
    ObservedUnits,
    RootSums,
    TaskGroups,
    TaskMessages,
    UnitMessages,
)
from hieropo.moments.statistics import Moments
from hieropo.rows.keys import Keys


def made(m: int, K: int, p: int, n: int, share: float, seed: int = 0) -> Moments:
    """Moments of m tasks with n rows for each action that they have, a ``share`` of K."""
    rng = np.random.default_rng(seed)
    chosen = np.flatnonzero(rng.random(m * K) < share)
    unit = np.repeat(np.append(chosen, 0), n)
    x = np.column_stack([np.ones(unit.size), rng.standard_normal((unit.size, p - 1))])
    theta = 0.5 * rng.standard_normal((m, 1, p)) + 0.3 * rng.standard_normal((m, K, p))
    reward = np.einsum("ni,ni->n", x, theta.reshape(m * K, p)[unit]) + rng.standard_normal(unit.size)
    some = Moments.from_arrays(unit, x, reward)
    sums, rows = np.zeros((m * K, some.sums.shape[1])), np.zeros(m * K)
    sums[some.tasks.astype(int)], rows[some.tasks.astype(int)] = some.sums, some.rows
    return Moments(Keys(np.arange(m)), p, sums.reshape(m, K, -1), rows.reshape(m, K), np.zeros((m, K)))


def covariance(p: int, rank: int, size: float, seed: int) -> Array:
    root = np.sqrt(size) * np.random.default_rng(seed).standard_normal((p, rank))
    return np.asarray(root @ root.T)


LOGS = {
    "one column": (90, 4, 1, 3, 0.7),
    "few actions": (50, 3, 5, 4, 0.8),
    "whole tiles": (21, 2, 8, 12, 1.0),
    "many actions": (40, 30, 3, 4, 0.05),
}
COVS = {
    "full": ((4, 0.2), (4, 0.1)),
    "singular": ((1, 0.2), (1, 0.1)),
    "no interaction": ((4, 0.2), (0, 0.0)),
    "no level": ((0, 0.0), (4, 0.1)),
    "far larger than the noise": ((4, 1e6), (4, 1e6)),
    "level far larger than the noise": ((4, 1e6), (4, 0.1)),
}


def hierarchy(p: int, K: int, covs: str) -> CrossedHierarchy:
    (first, level), (second, interaction) = COVS[covs]
    return CrossedHierarchy(
        covariance(p, p, 0.1, 3),
        covariance(p, first, level, 1),
        covariance(p, second, interaction, 2),
        np.ones(K),
    )


def assert_near(got: Array, right: Array, tolerance: float = 1e-11) -> None:
    np.testing.assert_allclose(got, right, rtol=0, atol=tolerance * max(float(np.abs(right).max()), 1e-300))


@pytest.fixture(autouse=True, params=["reference", "compiled"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIEROPO_BACKEND", request.param)


@pytest.mark.parametrize("covs", COVS)
@pytest.mark.parametrize("log", LOGS)
def test_root_sums_are_those_of_the_steps_by_reflections(log: str, covs: str) -> None:
    moments = made(*LOGS[log])
    h = hierarchy(moments.unit_dim, moments.n_actions, covs)
    messages = UnitMessages(ObservedUnits.of(moments, h.noise_var), h.interaction_cov)
    got, right = RootSums.of(messages, h.level_cov), TaskMessages.of(messages, h.level_cov).root(messages)
    for name in RootSums._fields:
        assert_near(np.asarray(getattr(got, name)), np.asarray(getattr(right, name)), 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("covs", COVS)
@pytest.mark.parametrize("log", LOGS)
def test_sums_of_all_groups_at_once_are_those_of_each_group(log: str, covs: str) -> None:
    moments = made(*LOGS[log])
    h = hierarchy(moments.unit_dim, moments.n_actions, covs)
    units = ObservedUnits.of(moments, h.noise_var)
    group = np.sort(np.random.default_rng(5).integers(0, 6, len(units.tasks)))
    group[group == 3] = 4  # one group has no tasks
    sums = GroupSums.of(UnitMessages(units, h.interaction_cov), h.level_cov, TaskGroups(group, 7))
    log_det = 0.0
    for g in range(7):
        messages = UnitMessages(units.of_tasks(np.flatnonzero(group == g)), h.interaction_cov)
        right = TaskMessages.of(messages, h.level_cov).root(messages)
        log_det += right.log_det
        for name in ("level", "rows", "information", "score"):
            assert_near(getattr(sums, name)[g], getattr(right, name), 1e-10)
    assert sums.log_det == pytest.approx(log_det, rel=1e-10, abs=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("covs", COVS)
@pytest.mark.parametrize("log", LOGS)
def test_the_table_has_the_posteriors_that_units_have_one_by_one(log: str, covs: str) -> None:
    moments = made(*LOGS[log])
    posterior = condition_crossed(moments, hierarchy(moments.unit_dim, moments.n_actions, covs))
    table = posterior.table()
    for s in range(0, len(moments), 7):
        units = [posterior.unit(s, a) for a in range(moments.n_actions)]
        assert_near(table.means[s], np.array([unit.mean for unit in units]), 1e-10)
        assert_near(unpack(table.covs[s], moments.unit_dim), np.array([unit.cov for unit in units]))


@pytest.mark.parametrize("log", LOGS)
def test_rows_that_are_divided_when_they_are_asked_for_are_those_divided_before(log: str) -> None:
    moments = made(*LOGS[log])
    noise_var = np.linspace(0.5, 2.0, moments.n_actions)
    before, later = ObservedUnits.of(moments, noise_var), ObservedUnits.undivided(moments, noise_var)
    last = len(before.tasks) - 2
    some = np.arange(0, len(before.tasks), 3)
    np.testing.assert_array_equal(later.rows, before.rows)
    np.testing.assert_array_equal(later.piece(2, last).rows, before.piece(2, last).rows)
    np.testing.assert_array_equal(later.of_tasks(some).rows, before.of_tasks(some).rows)
    assert later.doubles == before.rows.size
    for units in (before, later):
        np.testing.assert_allclose(units.over(3.0).over(2.0).rows, before.rows / 6.0, rtol=1e-15)
    np.testing.assert_array_equal(later.with_rows(2.0 * later.rows).rows, 2.0 * before.rows)


def test_the_number_of_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[list[Any]] = []
    monkeypatch.setattr(crossed_steps, "UNITS", 40)
    monkeypatch.setattr(crossed_laws, "UNITS", 40)
    for threads in (1, 3):
        monkeypatch.setattr(crossed_steps, "processors", lambda threads=threads: threads)
        monkeypatch.setattr(crossed_laws, "processors", lambda threads=threads: threads)
        posterior = condition_crossed(made(*LOGS["few actions"]), hierarchy(5, 3, "full"))
        answers.append([posterior.log_evidence, posterior.table().means, posterior.table().covs])
    for one, other in zip(*answers, strict=True):
        np.testing.assert_array_equal(one, other)
