"""Walks of actions in all tasks alike, beside dense covariances over the rows of all tasks."""

from typing import Any

import numpy as np
import pytest
from estimation.crossed.test_drift import ETA, KAPPA, RATIO, TIMES, a_log, covariances, in_common
from reference import drift as truth

from hieropo._utils.packed import pack, unpack
from hieropo.estimation.crossed.action_walks import (
    ChangeInformation,
    PathInformation,
    TaskModel,
    _coarser,
    share_of_walk,
)
from hieropo.estimation.crossed.walking import WalkErrors
from hieropo.model.crossed.common_error import ErrorRoots, WithCommonError
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.crossed.posterior import condition_crossed
from hieropo.moments.periods import NOTHING_SHARED, PeriodSums, Shared, Walks

PROFILE = np.array([0.5, 1.0, 2.0, 1.5])


def a_fleet(p: int, kappa: float, eta: float, shared: Shared = NOTHING_SHARED) -> tuple[Any, ...]:
    """Return the rows of a log, their rewards and sums, and what tasks have of their own."""
    rows, rewards, moments, periods = a_log(p, tasks=5)
    start, shape = covariances(p)
    level = 0.4 * np.eye(p) + 0.1
    for task in rows:
        task.noise[:] = task.noise * PROFILE[np.searchsorted(TIMES - TIMES[0], task.since)]
    rows = in_common(rows, shared)
    fleet = truth.Fleet(rows, TIMES, 2)
    root = np.linalg.cholesky(shape) * np.sqrt(kappa)
    tasks = TaskModel(start, root, level, eta, RATIO[:, None] * PROFILE, np.eye(p)[0], shared)
    own = fleet.of_tasks(start, kappa * shape, level, eta)
    return fleet, np.concatenate(rewards), moments, periods, tasks, own, shape


@pytest.mark.parametrize("shared", [NOTHING_SHARED, Shared(unit=0.6, task=0.5)])
@pytest.mark.parametrize(
    ("p", "kappa", "eta"), [(1, 0.0, 0.0), (1, KAPPA, ETA), (2, 0.0, ETA), (2, KAPPA, ETA), (3, KAPPA, 0.0)]
)
def test_rows_tell_of_paths_what_dense_covariances_tell(
    p: int, kappa: float, eta: float, shared: Shared
) -> None:
    fleet, reward, _, periods, tasks, own, _ = a_fleet(p, kappa, eta, shared)
    independent, log_det = periods.whitened(shared.unit)
    paths = PathInformation.of(independent, tasks)
    design = fleet.design()
    whitened = np.linalg.solve(own, design)
    np.testing.assert_allclose(paths.information, design.T @ whitened, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(paths.score, whitened.T @ reward, rtol=1e-9, atol=1e-10)
    assert paths.square == pytest.approx(reward @ np.linalg.solve(own, reward), rel=1e-9)
    noise = sum(float(np.log(task.noise).sum()) for task in fleet.tasks)
    expected = np.linalg.slogdet(own)[1] - noise
    assert paths.log_det + log_det.sum() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("p", "kappa", "eta"), [(1, 0.0, 0.0), (1, KAPPA, ETA), (2, KAPPA, ETA)])
@pytest.mark.parametrize(("zeta", "xi"), [(0.3, 0.0), (0.3, 0.2), (0.0, 0.2)])
def test_evidence_path_and_error_are_those_of_dense_covariances(
    p: int, kappa: float, eta: float, zeta: float, xi: float
) -> None:
    fleet, reward, _, periods, tasks, own, shape = a_fleet(p, kappa, eta)
    paths = PathInformation.of(periods, tasks)
    changes = ChangeInformation.of(paths, periods, shape)
    design, ends = fleet.design(), fleet.ends()
    walk = fleet.path(shape, zeta, xi)
    mean, cov, square, log_det = truth.given_flat(reward, own + design @ walk @ design.T, ends)
    _, still, square_still, log_det_still = truth.given_flat(reward, own, ends)
    dof = len(reward) - 2 * p
    expected = -0.5 * (dof * np.log(square / square_still) + log_det - log_det_still)
    gain = changes.log_evidence(zeta, xi, dof) - changes.log_evidence(0.0, 0.0, dof)
    assert gain == pytest.approx(expected, rel=1e-8)
    before, end, error = changes.path(zeta, xi)
    np.testing.assert_allclose(end.reshape(-1), mean, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(error + still, cov, rtol=1e-8, atol=1e-10)
    left = np.linalg.solve(own + design @ walk @ design.T, reward - ends @ mean)
    np.testing.assert_allclose(before.reshape(-1), walk @ design.T @ left, rtol=1e-7, atol=1e-9)


def test_means_of_actions_at_the_end_are_those_of_dense_covariances() -> None:
    """Rows less the path, and its error added to the posterior, give the law of the effects at the end."""
    p, zeta, xi = 2, 0.3, 0.1
    fleet, reward, moments, periods, tasks, own, shape = a_fleet(p, 0.0, 0.0)
    changes = ChangeInformation.of(PathInformation.of(periods, tasks), periods, shape)
    before, end, error = changes.path(zeta, xi)
    walks = Walks(end, tasks.start, 0.0 * tasks.walk, 0.0, 0.0, RATIO, PROFILE)
    at_end = walks.at_end(moments, periods.less(before), np.ones(len(moments)))
    hierarchy = CrossedHierarchy(1e7 * np.eye(p), tasks.level, tasks.start, RATIO)
    posterior = WithCommonError(
        condition_crossed(at_end, hierarchy),
        ErrorRoots(np.linalg.cholesky(error), np.zeros((len(moments), 2 * p, 0))),
    )
    walk, design = fleet.path(shape, zeta, xi), fleet.design()
    mean, cov, _, _ = truth.given_flat(reward, own + design @ walk @ design.T, fleet.ends())
    for a in range(2):
        law, block = posterior.action(a), slice(a * p, a * p + p)
        np.testing.assert_allclose(law.mean, mean[block], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(law.cov, cov[block, block], rtol=1e-5)


def test_views_of_a_common_error_are_of_one_law() -> None:
    _, _, moments, _ = a_log(2, tasks=4)
    eye, rng = np.eye(2), np.random.default_rng(3)
    inner = condition_crossed(moments, CrossedHierarchy(0.2 * eye, 0.5 * eye, 0.3 * eye, RATIO))
    root, own = rng.standard_normal((4, 3)), rng.standard_normal((4, 4, 2))
    posterior = WithCommonError(inner, ErrorRoots(root, own))
    laws = [inner.task(s) for s in range(4)]
    joint = np.block(
        [[laws[s].cov if s == z else inner.cov_between(s, z) for z in range(4)] for s in range(4)]
    ) + np.kron(np.ones((4, 4)), root @ root.T)
    joint = joint + own.reshape(16, 2) @ own.reshape(16, 2).T
    vectors = rng.standard_normal((3, 4, 4))
    flat = vectors.reshape(3, 16)
    mean, cov = posterior.total(vectors)
    np.testing.assert_allclose(mean, flat @ np.concatenate([law.mean for law in laws]), rtol=1e-10)
    np.testing.assert_allclose(cov, flat @ joint @ flat.T, rtol=1e-10)
    one = slice(4, 8)
    np.testing.assert_allclose(posterior.task(1).cov, joint[one, one], rtol=1e-10)
    np.testing.assert_allclose(posterior.joint(np.array([1]))[1][0], joint[one, one], rtol=1e-10)
    np.testing.assert_allclose(posterior.unit(1, 1).cov, joint[6:8, 6:8], rtol=1e-10)
    np.testing.assert_allclose(unpack(posterior.table().covs[1, 1], 2), joint[6:8, 6:8], rtol=1e-10)
    np.testing.assert_allclose(posterior.new_task().cov, inner.new_task().cov + root @ root.T, rtol=1e-10)
    own = np.ascontiguousarray(vectors[:, 1:2].swapaxes(0, 1))
    expected = np.einsum("jk,kl,jl->j", vectors[:, 1], joint[one, one], vectors[:, 1])
    np.testing.assert_allclose(posterior.project(own, slice(1, 2))[1][0], expected, rtol=1e-10)
    np.testing.assert_allclose(next(posterior.mixtures(own, slice(1, 2)))[2][0], expected, rtol=1e-10)
    others = np.ascontiguousarray(vectors.swapaxes(0, 1))
    across = posterior.across(1, vectors[:, 1], others, slice(0, 4))
    np.testing.assert_allclose(
        across[:, 2], vectors[:, 1] @ joint[one, 8:12] @ vectors[:, 2].T, rtol=1e-9, atol=1e-12
    )


def test_a_doubtful_walk_is_averaged_with_none() -> None:
    """Its rate leaves at least the mean variance of both models."""
    assert share_of_walk(np.log(3.0)) == pytest.approx(0.75)
    assert share_of_walk(np.log(11.0)) == 1.0
    rows, rewards, _, _ = a_log(1)
    start, shape = covariances(1)
    one = rows[0].of_action(0)
    reward = rewards[0][rows[0].action == 0]
    for share in (0.5, 0.75, 0.9):
        averaged, walk, none = (
            truth.at_end(one, reward, start, rate * shape)[1] for rate in (share * KAPPA, KAPPA, 0.0)
        )
        assert averaged[0, 0] >= share * walk[0, 0] + (1 - share) * none[0, 0]


def test_long_paths_have_fewer_periods() -> None:
    _, _, _, periods, *_ = a_fleet(1, 0.0, 0.0)
    together = periods.together(np.array([0, 0, 1, 1]))
    np.testing.assert_allclose(together.sums.sum(axis=2), periods.sums.sum(axis=2))
    assert together.times.size == 2
    assert together.rows @ together.times == pytest.approx(periods.rows @ periods.times)


def test_an_error_for_more_actions_is_0_for_the_new_ones() -> None:
    error = np.arange(16.0).reshape(4, 4)
    wider = WalkErrors(error).with_actions(np.array([0, 2]), 3).of_actions
    assert not wider[2:4].any()
    np.testing.assert_array_equal(wider[np.ix_([0, 1, 4, 5], [0, 1, 4, 5])], error)


def test_sums_of_rewards_less_a_path_are_those_of_the_rows() -> None:
    rows, rewards, _, periods = a_log(2)
    path = np.random.default_rng(0).standard_normal((2, TIMES.size, 2))
    left = np.zeros((*periods.sums.shape[:3], 4, 4))
    for s, (task, reward) in enumerate(zip(rows, rewards, strict=True)):
        period = np.searchsorted(TIMES - TIMES[0], task.since)
        for i in range(len(reward)):
            a, t = task.action[i], period[i]
            z = np.concatenate([task.x[i], [reward[i] - task.x[i] @ path[a, t], 1.0]])
            left[s, a, t] += np.outer(z, z)
    np.testing.assert_allclose(periods.less(path).sums, pack(left), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("actions", "periods"), [(100, 4), (60, 6), (40, 10), (5, 12)])
def test_paths_of_many_actions_have_fewer_periods(actions: int, periods: int) -> None:
    sums = np.zeros((2, actions, 12, 6))
    sums[..., -1] = 1.0
    coarse, index = _coarser(PeriodSums(sums, np.arange(12.0), 12.0, 1))
    assert coarse is not None
    assert coarse.times.size == index.max() + 1 <= periods
    assert actions * coarse.times.size <= 400


def test_paths_of_too_many_actions_are_not_looked_for() -> None:
    for actions in (101, 500):
        assert _coarser(PeriodSums(np.ones((1, actions, 12, 6)), np.arange(12.0), 12.0, 1))[0] is None
