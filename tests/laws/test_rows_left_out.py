"""The law of a row left out: the answer by a step of rank one is that of a posterior conditioned without it."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from laws.test_attribution import TASKS, crossed_cases, dense_cases
from reference.dense import Array
from unit_logs import log

from hieropo.model.attribution import attribution
from hieropo.model.crossed.described import condition_units
from hieropo.model.posterior import condition
from hieropo.model.single_rows import LoggedRows, RowChanges, without_single_rows
from hieropo.moments.clusters import ClusterSums, correlated
from hieropo.moments.statistics import Moments
from hieropo.moments.units import one_action
from hieropo.rows.keys import Keys

TASK = 2  # whose coefficients are asked for
DENSE, CROSSED = dense_cases(), crossed_cases()


def rows(n: int = 40) -> tuple[Array, Array, Array, Array]:
    """Tasks, features, rewards and weights; the last task has no rows, the first shows one direction."""
    rng = np.random.default_rng(0)
    task = np.array(TASKS)[rng.integers(0, 5, n)]
    phi = np.column_stack([np.ones(n), rng.standard_normal((n, 2))])
    phi[task == 0, 1:] = 0.0
    return task, phi, 5 + rng.standard_normal(n), rng.uniform(0.5, 2, n)


def dense(keep: Any = slice(None)) -> Moments:
    task, phi, reward, weight = (values[keep] for values in rows())
    return Moments.from_arrays(task, phi, reward, weight=weight).covering(Keys(np.array(TASKS)))


@cache
def dense_answers(name: str) -> tuple[Any, LoggedRows, Any]:
    task, phi, reward, weight = rows()
    posterior = condition(dense(), DENSE[name])
    logged = LoggedRows(
        posterior.moments.keys.require(task), np.zeros(len(task), dtype=np.int64), phi, reward, weight, phi
    )
    return posterior, logged, lambda keep: condition(dense(keep), DENSE[name])


@cache
def crossed_answers(name: str) -> tuple[Any, LoggedRows, Any]:
    made = log(n=60)
    keys = Keys(np.array(TASKS))
    posterior = condition_units(made.units().covering(keys), CROSSED[name])
    one = one_action(made.features)
    assert one is not None
    phi = one.phi(made.context, np.zeros(len(made.task), dtype=np.int64))
    task = posterior.moments.keys.require(made.task)
    logged = LoggedRows(task, np.asarray(made.action), phi, made.reward, made.weight, phi)
    return (
        posterior,
        logged,
        lambda keep: condition_units(made.where(keep).units().covering(keys), CROSSED[name]),
    )


def correlated_moments(moments: Moments, logged: LoggedRows, cluster: Array, rho: Array) -> Moments:
    """Return the moments of rows that are correlated within clusters of a task, and of an action where rho is of it."""
    action = logged.action if rho.size > 1 else np.zeros_like(logged.action)
    unit = logged.task * moments.n_actions + action
    offset = np.zeros(logged.phi.shape[1]) if moments.unit_offset is None else moments.unit_offset
    z = np.column_stack([logged.phi, logged.reward - logged.phi @ offset, np.ones(len(unit))])
    place, code = np.unique(np.column_stack([unit, cluster]), axis=0, return_inverse=True)
    sums = np.zeros((len(place), z.shape[1]))
    np.add.at(sums, code.reshape(-1), z * logged.precision[:, None])
    of_action = place[:, 0] % moments.n_actions if rho.size > 1 else np.zeros(len(place), dtype=np.int64)
    return correlated(moments, ClusterSums(place[:, 0], of_action, sums, place[:, 1]), rho)


def given_others(logged: LoggedRows, cluster: Array, rho: Array) -> LoggedRows:
    """Return the rows given the others of their clusters; by a loop over rows."""
    of_row = rho[logged.action] if rho.size > 1 else np.full(len(cluster), rho[0])
    z = np.column_stack([logged.phi, logged.reward, np.ones(len(cluster))]) * logged.precision[:, None]
    sums = np.empty_like(z)
    for i in range(len(cluster)):
        same = (cluster == cluster[i]) & (logged.task == logged.task[i])
        if rho.size > 1:
            same &= logged.action == logged.action[i]
        sums[i] = z[same].sum(axis=0)
    return logged.given_clusters(sums, of_row)


@cache
def clustered_dense_answers(name: str) -> tuple[Any, LoggedRows, Any]:
    posterior, logged, _ = dense_answers(name)
    cluster, rho = np.random.default_rng(3).integers(4, size=logged.task.size), np.array([0.6])
    keys = posterior.moments.keys

    def refit(keep: Any) -> Any:
        moments = dense(keep).covering(keys)
        assert (moments.tasks == keys.values).all()
        return condition(correlated_moments(moments, logged.at(keep), cluster[keep], rho), DENSE[name])

    return refit(np.arange(logged.task.size)), given_others(logged, cluster, rho), refit


@cache
def clustered_crossed_answers(name: str) -> tuple[Any, LoggedRows, Any]:
    posterior, logged, _ = crossed_answers(name)
    cluster = np.random.default_rng(3).integers(3, size=logged.task.size)
    made, keys, rho = (
        log(n=60),
        Keys(np.array(TASKS)),
        np.array([0.0, 0.3, 0.8, 0.5])[: posterior.moments.n_actions],
    )

    def refit(keep: Any) -> Any:
        moments = made.where(keep).units().covering(keys)
        rows = logged.at(keep)._replace(task=moments.keys.require(made.task[keep]))
        return condition_units(correlated_moments(moments, rows, cluster[keep], rho), CROSSED[name])

    return refit(np.arange(logged.task.size)), given_others(logged, cluster, rho), refit


CASES = [
    *(pytest.param(dense_answers, name, None, id=f"dense: {name}") for name in DENSE),
    *(
        pytest.param(crossed_answers, name, one_action(log(n=60).features), id=f"crossed: {name}")
        for name in CROSSED
    ),
    *(pytest.param(clustered_dense_answers, name, None, id=f"clusters, dense: {name}") for name in DENSE),
    *(
        pytest.param(
            clustered_crossed_answers, name, one_action(log(n=60).features), id=f"clusters, crossed: {name}"
        )
        for name in CROSSED
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("answers", "name", "action_map"), CASES)
def test_an_answer_without_a_row_is_that_of_a_posterior_without_it(
    answers: Any, name: str, action_map: Any
) -> None:
    posterior, logged, refit = answers(name)
    vectors = np.eye(posterior.dim)
    some = np.arange(0, logged.task.size, 5)
    means, covs = without_single_rows(posterior, TASK, vectors, logged.at(some), action_map)
    changes = RowChanges.of(posterior, TASK, vectors[1], np.arange(len(TASKS)), action_map)
    change, _ = changes.without(logged)
    mean = posterior.means(slice(TASK, TASK + 1))[0]
    for i, row in enumerate(some.tolist()):
        want, cov = (
            values[0] for values in refit(np.arange(logged.task.size) != row).joint(np.array([TASK]))
        )
        size = 1e-10 * (np.abs(want).max() + np.sqrt(np.trace(cov)))
        assert np.abs(means[i] - want).max() <= size
        assert np.abs(covs[i] - cov).max() <= 1e-10 * max(np.abs(cov).max(), 1e-300)
        assert abs(mean[1] + change[row] - want[1]) <= size


@pytest.mark.parametrize(("answers", "name", "action_map"), CASES)
def test_first_order_changes_of_rows_add_to_that_of_their_task(
    answers: Any, name: str, action_map: Any
) -> None:
    posterior, logged, _ = answers(name)
    vector = np.linspace(-1.0, 1.0, posterior.dim)
    changes = RowChanges.of(posterior, TASK, vector, np.arange(len(TASKS)), action_map)
    sums = np.bincount(logged.task, changes.without(logged)[1], len(TASKS))
    want = attribution(posterior, TASK, vector[None]).changes[0]
    np.testing.assert_allclose(sums, want, atol=1e-10 * np.abs(logged.reward).max(), rtol=1e-9)


def test_a_row_that_alone_shows_a_direction_leaves_the_answer_open() -> None:
    task, phi = np.array([0, 0, 1]), np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    posterior = condition(
        Moments.from_arrays(task, phi, [1.0, 2.0, 3.0]), DENSE["flat"].__class__(None, np.eye(2), 1.0)
    )
    logged = LoggedRows(task, np.zeros(3, dtype=np.int64), phi, np.array([1.0, 2.0, 3.0]), np.ones(3), phi)
    changes = RowChanges.of(posterior, 1, np.ones(2), np.arange(2), None)
    exact = changes.without(logged)[0]
    assert np.isnan(exact).tolist() == [False, True, False]
    assert np.isnan(without_single_rows(posterior, 1, np.eye(2), logged, None)[0][1]).all()
