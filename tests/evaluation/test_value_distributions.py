"""The joint law of sums over tasks, against the conditioned joint Gaussian of everything and against pairs of tasks."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from reference.dense import Array, Dense, Problem
from reference.measure import Measure, norm
from strategies import hierarchy_of, moments_of, problems

from hieropo._utils.packed import packed_size
from hieropo.errors import InputError, MismatchError, NumericalError
from hieropo.estimation.crossed.integration import integrate_crossed
from hieropo.estimation.crossed.mixture import condition_hierarchies
from hieropo.estimation.hyper.corrected import HyperError, correct
from hieropo.estimation.hyper.mixed import HyperDraws, mix
from hieropo.evaluation.by_posterior.value_distributions import total
from hieropo.features.maps import per_action
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.crossed.posterior import condition_crossed
from hieropo.model.gaussian import Gaussian
from hieropo.model.hierarchy import Hierarchy, Level
from hieropo.model.metadata import Metadata
from hieropo.model.posterior import condition
from hieropo.moments.statistics import Moments
from hieropo.moments.units import UnitAccumulator

M, D = 8, 3
TASKS = np.array([f"t{s}" for s in range(M)])


def draw(*shape: int, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


COVS = [np.cov(draw(D, 40, seed=k)) for k in range(4)]


def rows(*, seed: int = 0, n: int = 30) -> tuple[Any, Array, Array, Array]:
    """A log in which the last task has no rows, and another fewer than features."""
    rng = np.random.default_rng(seed)
    task = rng.integers(0, M - 2, n)
    task[0] = M - 2
    return TASKS[task], draw(n, D, seed=seed + 1), draw(n, seed=seed + 2), rng.uniform(0.5, 2.0, n)


def moments() -> Moments:
    return Moments.from_arrays(*rows()) + Moments.from_arrays(TASKS, np.zeros((M, D)), np.zeros(M))


def vectors(posterior: Any, J: int = 3) -> Array:
    v = draw(J, len(posterior.moments.keys), posterior.dim, seed=9)
    v[:, 2:3] = 0.0
    return v


def pairs(posterior: Any, v: Array) -> tuple[Array, Array]:
    """The sums' law by its definition, from every pair of tasks."""
    ids = posterior.moments.keys.values.tolist()
    mean, cov = np.zeros(len(v)), np.zeros((len(v),) * 2)
    for i, s in enumerate(ids):
        mean += v[:, i] @ posterior.task(s).mean
        for k, z in enumerate(ids):
            between = posterior.task(s).cov if i == k else posterior.cov_between(s, z)
            cov += v[:, i] @ between @ v[:, k].T
    return mean, cov


def conditioned(mean: Array, cov: Array, seen: Array, reward: Array, noise: Array) -> tuple[Array, Array]:
    """All theta, stacked, given the rewards ``seen @ theta`` plus noise."""
    cross = cov @ seen.T
    gain = np.linalg.solve(seen @ cross + np.diag(noise), cross.T).T
    return mean + gain @ (reward - seen @ mean), cov - gain @ cross.T


def conditioned_flat(
    common: Array, cov: Array, seen: Array, reward: Array, noise: Array
) -> tuple[Array, Array]:
    """The same where all theta have the mean ``common @ beta`` and beta is flat: generalised least squares."""
    x, cross = seen @ common, cov @ seen.T
    gain = np.linalg.solve(seen @ cross + np.diag(noise), np.hstack([cross.T, x, reward[:, None]]))
    half, x_solved, reward_solved = np.split(gain, [len(cov), len(cov) + x.shape[1]], axis=1)
    beta_cov = np.linalg.solve(x.T @ x_solved, np.eye(x.shape[1]))
    beta = beta_cov @ (x.T @ reward_solved[:, 0])
    pull = common - cross @ x_solved
    return pull @ beta + cross @ reward_solved[:, 0], cov - cross @ half + pull @ beta_cov @ pull.T


def assert_law(found: Any, mean: Array, cov: Array, tolerance: float = 1e-9) -> None:
    assert found.weights.tolist() == [1.0]
    np.testing.assert_allclose(found.means[0], mean, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(found.covs[0], cov, rtol=tolerance, atol=tolerance * np.abs(cov).max())


# Trees


@pytest.mark.slow
@given(problems())
@settings(max_examples=80)
def test_it_is_the_conditioned_joint_gaussian_of_all_tasks(problem: Problem) -> None:
    assert_is_dense(problem)


@pytest.mark.slow
@given(problems(flat=True))
@settings(max_examples=40)
def test_it_is_with_a_flat_hyper_prior(problem: Problem) -> None:
    try:
        condition(moments_of(problem), hierarchy_of(problem))
    except NumericalError:
        event("mu is not determined")
        return
    assert_is_dense(problem)


def assert_is_dense(problem: Problem) -> None:
    dense, post = Dense(problem), condition(moments_of(problem), hierarchy_of(problem))
    measure = Measure(dense)
    if measure.kappa > 1e8 or not len(post.moments):
        event("hardly any digits, or no tasks")
        return
    ids, v = post.moments.keys.values.tolist(), vectors(post)
    found = total(post, v)
    sizes = np.zeros(len(v))
    mean, cov, room = np.zeros(len(v)), np.zeros((len(v),) * 2), 0.0
    for i, s in enumerate(ids):
        truth = dense.task(s)
        mean += v[:, i] @ truth[0]
        room += norm(v[:, i]) * measure.mean_room(*truth)
        sizes += np.linalg.norm(v[:, i], axis=1) * np.sqrt(norm(truth[1]))
        for k, z in enumerate(ids):
            cov += v[:, i] @ dense.cov_between(s, z) @ v[:, k].T
    measure.assert_cov(found.covs[0], cov, float(sizes @ sizes), "sums over tasks")
    assert norm(found.means[0] - mean) <= room
    np.testing.assert_array_equal(found.covs[0], found.covs[0].T)


def test_a_vector_of_one_task_gives_that_tasks_law_and_one_of_two_their_covariance() -> None:
    post = condition(moments(), Hierarchy(None, COVS[0], 0.7))
    v = np.zeros((2 * D, M, D))
    for k, s in enumerate(("t1", "t4")):
        v[range(k * D, (k + 1) * D), post.moments.keys.find(s), range(D)] = 1.0
    found = total(post, v)
    joint = np.block(
        [
            [post.task("t1").cov, post.cov_between("t1", "t4")],
            [post.cov_between("t4", "t1"), post.task("t4").cov],
        ]
    )
    assert_law(found, np.concatenate([post.task("t1").mean, post.task("t4").mean]), joint, 1e-12)


# Metadata


@pytest.mark.parametrize("crossed", [True, False])
def test_with_metadata_and_groups_it_is_the_conditioned_joint_gaussian(crossed: bool) -> None:  # noqa: FBT001
    values = draw(M, 2, seed=5) if crossed else draw(M, D, 1, seed=5)
    known = values - values.mean(axis=0)
    Z = [
        np.hstack([np.eye(D), np.kron(np.eye(D), known[s][None]) if crossed else known[s]]) for s in range(M)
    ]
    size = Z[0].shape[1]
    root = np.cov(draw(size, 3 * size, seed=6))
    group = {str(s): "NS"[k % 2] for k, s in enumerate(TASKS)}
    hierarchy = Hierarchy(
        Gaussian(draw(size, seed=7), root), COVS[0], 0.7, (Level(COVS[1], group),), Metadata(TASKS, values)
    )
    wide = np.vstack(Z)
    same = np.array([[group[str(s)] == group[str(z)] for z in TASKS] for s in TASKS])
    cov = wide @ root @ wide.T + np.kron(same, COVS[1]) + np.kron(np.eye(M), COVS[0])
    task, phi, reward, weight = rows()
    seen = np.einsum("ns,nd->nsd", task[:, None] == TASKS, phi).reshape(len(task), M * D)
    mean, cov = conditioned(wide @ hierarchy.hyper.mean, cov, seen, reward, 0.7 / weight)
    post = condition(Moments.from_arrays(*rows()), hierarchy)
    v = vectors(post)
    at = [post.moments.keys.find(s) for s in TASKS]
    flat = v[:, at].reshape(len(v), M * D)
    assert_law(total(post, v), flat @ mean, flat @ cov @ flat.T)


# What is not known of the hierarchy


@pytest.mark.slow
def test_of_a_mixture_it_is_the_mixture_of_the_laws() -> None:
    draws = HyperDraws(
        np.array([0.2, 0.5, 0.3]), np.array(COVS[:3]), np.array([0.5, 0.7, 1.0]), np.zeros((3, 0, D, D))
    )
    hierarchy = Hierarchy(None, COVS[0], 0.7)
    mixed = mix(moments(), hierarchy, draws)
    v = vectors(mixed)
    found = total(mixed, v)
    assert found.weights.tolist() == [0.2, 0.5, 0.3]
    for h in range(3):
        mean, cov = pairs(condition(moments(), draws.hierarchy(h, hierarchy)), v)
        np.testing.assert_allclose(found.means[h], mean, rtol=1e-10)
        np.testing.assert_allclose(found.covs[h], cov, rtol=1e-10)
    mean, cov = pairs(mixed, v)
    np.testing.assert_allclose(found.gaussian().mean, mean, rtol=1e-10)
    np.testing.assert_allclose(found.gaussian().cov, cov, rtol=1e-10)


@pytest.mark.parametrize("diagonal", [False, True])
def test_the_first_order_correction_is_that_of_every_pair_of_tasks(diagonal: bool) -> None:  # noqa: FBT001
    size = D if diagonal else packed_size(D)
    error = HyperError(D, 0.5 * np.cov(draw(size, 3 * size, seed=3)), 20)
    corrected = correct(moments(), Hierarchy(None, COVS[0], 0.7), error)
    v = vectors(corrected)
    found = total(corrected, v)
    assert_law(found, *pairs(corrected, v))
    plain = total(condition(moments(), corrected.hierarchy), v)
    assert (np.diagonal(found.covs[0]) > 1.01 * np.diagonal(plain.covs[0])).all()


# Units


K = 4
ACTIONS = per_action(range(K), ["x", "y"])


def unit_rows(n: int = 30) -> tuple[Any, Array, Array, Array, Array]:
    """The same log with actions, of which the last has no rows."""
    task, x, reward, weight = rows(n=n)
    return task, np.random.default_rng(8).integers(0, K - 1, len(task)), x[:, :2], reward, weight


def unit_moments(n: int = 30) -> Moments:
    sums = UnitAccumulator(ACTIONS)
    sums.add(*unit_rows(n))
    return sums.moments()


@pytest.mark.parametrize("level", [False, True])
def test_of_units_it_is_the_conditioned_joint_gaussian(level: bool) -> None:  # noqa: FBT001
    level_cov = COVS[2] if level else np.zeros((D, D))
    noise = np.array([0.7, 0.4, 1.3, 0.9])
    post = condition_crossed(unit_moments(), CrossedHierarchy(COVS[1], level_cov, COVS[0], noise))
    task, action, x, reward, weight = unit_rows()
    ids = post.moments.keys.values
    m = len(ids)
    own = np.kron(np.eye(K), COVS[0]) + np.kron(np.ones((K, K)), level_cov)
    cov = np.kron(np.ones((m, m)), np.kron(np.eye(K), COVS[1])) + np.kron(np.eye(m), own)
    phi = ACTIONS.phi(x, action)
    seen = np.einsum("ns,nd->nsd", task[:, None] == ids, phi).reshape(len(task), m * K * D)
    common = np.tile(np.eye(D), (m * K, 1))  # of beta, which is flat
    mean, cov = conditioned_flat(common, cov, seen, reward, noise[action] / weight)
    v = vectors(post)
    flat = v.reshape(len(v), -1)
    assert_law(total(post, v), flat @ mean, flat @ cov @ flat.T)


@pytest.mark.slow
def test_of_a_mixture_of_units_it_is_the_mixture_of_the_laws() -> None:
    sums = unit_moments(60)
    mixture = condition_hierarchies(sums, integrate_crossed(sums))
    nodes = np.flatnonzero(mixture.hierarchy.conditioned)
    v = vectors(mixture)
    found = total(mixture, v)
    np.testing.assert_array_equal(found.weights, mixture.hierarchy.conditioned[nodes])
    assert nodes.size > 10
    for h, node in enumerate(nodes[:6]):
        mean, cov = pairs(condition_crossed(sums, mixture.hierarchy.hierarchy(int(node))), v)
        np.testing.assert_allclose(found.means[h], mean, rtol=1e-9, atol=1e-9 * np.abs(mean).max())
        np.testing.assert_allclose(found.covs[h], cov, rtol=1e-9, atol=1e-9 * np.abs(cov).max())


# Size, and refusals


@pytest.mark.slow
def test_a_hundred_thousand_tasks_take_seconds_and_every_piece_counts() -> None:
    m, d = 100_000, 6
    rng = np.random.default_rng(0)
    task, phi = np.repeat(np.arange(m), 2), rng.standard_normal((2 * m, d))
    log = Moments.from_arrays(task, phi, rng.standard_normal(2 * m))
    post = condition(log, Hierarchy(None, np.eye(d), 1.0))
    v = rng.standard_normal((2, m, d)) / m
    total(post, v[:, :, :])
    began = time.process_time()
    found = total(post, v)
    assert time.process_time() - began < 10.0
    covs, gains = post.tree_levels[0].given_parents(slice(0, m))
    own = np.einsum("jsi,sik,lsk->jl", v, np.array([_full(c, d) for c in covs]), v, optimize=True)
    pull = np.einsum("jsi,sik->jk", v, gains)
    np.testing.assert_allclose(found.covs[0], own + pull @ post.hyper.cov @ pull.T, rtol=1e-10)
    np.testing.assert_allclose(found.means[0], np.einsum("jsi,si->j", v, post.table().means), rtol=1e-9)


def _full(packed: Array, d: int) -> Array:
    full = np.zeros((d, d))
    i, j = np.tril_indices(d)
    full[i, j] = full[j, i] = packed
    return full


@pytest.mark.parametrize(
    ("spoil", "error", "says"),
    [
        (lambda v: v[0], MismatchError, r"shape \(8, 3\)\. .* shape \(J, m, d\)"),
        (lambda v: v[:, 1:], MismatchError, "m = 8 tasks of posterior.moments.keys"),
        (lambda v: v[..., :2], MismatchError, "d = 3 features"),
        (
            lambda v: np.where(np.arange(M)[:, None] == 5, np.nan, v),
            InputError,
            "task 't5' has nan at feature 0",
        ),
    ],
)
def test_vectors_that_do_not_fit_are_refused(
    spoil: Callable[[Array], Array], error: type[Exception], says: str
) -> None:
    post = condition(moments(), Hierarchy(None, COVS[0], 0.7))
    with pytest.raises(error, match=says):
        total(post, spoil(vectors(post)))
