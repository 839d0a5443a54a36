"""Correlations within clusters that are learned from a part of the tasks."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cluster_tables import sums_of
from scipy.optimize import minimize_scalar

from hieropo import indicator, per_action
from hieropo.estimation.clusters import between_clusters, by_variances, learn_correlations
from hieropo.rows.batches import Batch, Roles


class Learned(Exception):  # noqa: N818 - carries the moments out of the search
    """The first moments that are learned from."""


def test_the_tasks_that_are_learned_from_do_not_depend_on_the_order_of_rows() -> None:
    features, rng = per_action(["a", "b"], ["x"]), np.random.default_rng(0)
    cluster, x = np.repeat(np.arange(24_000), 2), rng.normal(size=(48_000, 1))
    task, action, reward = cluster // 60, rng.integers(2, size=24_000)[cluster], rng.normal(size=48_000)
    names = np.array([f"store {number}" for number in range(400)], dtype=object)  # numbered as they appear

    def learned_from(order: Any) -> Any:
        batch = Batch(
            task=names[task[order]], action=np.array(["a", "b"])[action[order]].astype(object), reward=reward[order],
            context=x[order], cluster=cluster[order],
            roles=Roles("task", "action", "reward", context=("x",), cluster="cluster"),
        )  # fmt: skip
        moments, clusters = sums_of(batch, features)

        def learn(some: Any) -> Any:
            raise Learned(some)

        with pytest.raises(Learned) as caught:
            learn_correlations(moments, clusters, learn, in_parts=True)
        return caught.value.args[0]

    first = learned_from(np.arange(48_000))
    second = learned_from(np.arange(48_000)[::-1].copy())
    other = np.random.default_rng(1).permutation(400)
    third = learned_from(np.argsort(other[task], kind="stable"))
    assert len(first) == 200
    for moments in (second, third):
        assert moments.select(first.tasks).allclose(first)


@pytest.mark.parametrize("rho", [0.0, 0.4])
def test_clusters_of_one_unit_tell_where_the_search_starts(rho: float) -> None:
    rng = np.random.default_rng(3)
    cluster = np.repeat(np.arange(4_000), rng.integers(1, 6, size=4_000))
    task, action = cluster // 20, rng.integers(2, size=4_000)[cluster]
    mean = rng.normal(size=(200, 2))  # of each task and action, which does not matter
    reward = 7.0 + mean[task, action] + np.sqrt(rho) * rng.normal(size=4_000)[cluster]
    reward += np.sqrt(1.0 - rho) * rng.normal(size=cluster.size)
    batch = Batch(
        task=task, action=np.array(["a", "b"])[action].astype(object), reward=reward,
        context=np.zeros((cluster.size, 0)), cluster=cluster,
        roles=Roles("task", "action", "reward", cluster="cluster"),
    )  # fmt: skip
    found, certain = between_clusters(*sums_of(batch, indicator(["a", "b"])))
    unit = 2 * task + action
    means = [reward[cluster == c].mean() for c in range(4_000)]
    about = reward - np.array(means)[cluster]
    within = (about**2).sum() / (cluster.size - 4_000)
    of_unit = np.array([reward[unit == u].mean() for u in range(400)])[unit]
    seen = np.unique(unit).size
    between = ((np.array(means)[cluster] - of_unit) ** 2).sum() / (4_000 - seen)
    sizes = sum((np.bincount(cluster[unit == u]) ** 2).sum() / (unit == u).sum() for u in np.unique(unit))
    size = (cluster.size - sizes) / (4_000 - seen)
    shared = (between - within) / size
    assert found == pytest.approx(max(shared / (shared + within), 0.0), abs=1e-9)
    assert found == pytest.approx(rho, abs=0.03)
    assert certain == (rho > 0.0)


def sessions_of(
    rho: Any, *, noise: Any = 1.0, tasks: int = 1_500, sizes: Any = 5, seed: int = 5
) -> tuple[Batch, np.ndarray, np.ndarray]:
    """Return rows of four clusters a task, of one action each; with the unit and the reward of each row."""
    rng = np.random.default_rng(seed)
    count = 4 * tasks
    size = np.full(count, sizes) if np.isscalar(sizes) else rng.choice(sizes, count)
    cluster = np.repeat(np.arange(count), size)
    task, action = cluster // 4, rng.integers(2, size=count)[cluster]
    share, sd = (np.broadcast_to(values, 2)[action] for values in (rho, noise))
    reward = 3.0 + 2.0 * rng.normal(size=(tasks, 2))[task, action]
    reward = reward + sd * np.sqrt(share) * rng.normal(size=count)[cluster]
    reward = reward + sd * np.sqrt(1.0 - share) * rng.normal(size=cluster.size)
    batch = Batch(
        task=task, action=np.array(["a", "b"])[action].astype(object), reward=reward,
        context=np.zeros((cluster.size, 0)), cluster=cluster,
        roles=Roles("task", "action", "reward", cluster="cluster"),
    )  # fmt: skip
    return batch, 2 * task + action, reward


def by_maximum_likelihood(batch: Batch, unit: np.ndarray, reward: np.ndarray, action: int) -> float:
    """Return rho of an action by REML with a free mean of each unit: the slow truth, one unit after the other."""
    blocks = []
    for one in np.unique(unit[unit % 2 == action]):
        rows = unit == one
        same = batch.cluster[rows][:, None] == batch.cluster[rows]
        blocks.append((same, reward[rows]))

    def negative(rho: float) -> float:
        total, log_det, free = 0.0, 0.0, 0
        for same, values in blocks:
            inverse = np.linalg.solve((1.0 - rho) * np.eye(len(values)) + rho * same, np.eye(len(values)))
            weight = inverse.sum()
            centred = values - (inverse @ values).sum() / weight
            total += centred @ inverse @ centred
            log_det += np.log(weight) - np.linalg.slogdet(inverse)[1]
            free += len(values) - 1
        return float(free * np.log(total / free) + log_det)

    return float(minimize_scalar(negative, bounds=(0.0, 0.95), method="bounded").x)


@pytest.mark.slow
@pytest.mark.parametrize(("rho", "noise"), [(0.4, 1.0), ([0.2, 0.6], 1.0), (0.3, [1.0, 4.0])])
def test_variances_within_units_tell_the_correlation_without_a_hierarchy(rho: Any, noise: Any) -> None:
    batch, unit, reward = sessions_of(rho, noise=noise, tasks=2_500)
    found = by_variances(*sums_of(batch, indicator(["a", "b"])))
    assert found is not None
    np.testing.assert_allclose(found, np.broadcast_to(rho, 2), atol=0.035)
    if np.ndim(rho):  # sizes are equal, so that both are the same estimate
        expected = [by_maximum_likelihood(batch, unit, reward, action) for action in range(2)]
        np.testing.assert_allclose(found, expected, atol=1e-3)
    else:
        assert found[0] == found[1]


def test_variances_within_units_tell_that_there_is_no_correlation() -> None:
    found = [
        by_variances(*sums_of(sessions_of(0.0, tasks=2_500, seed=seed)[0], indicator(["a", "b"])))
        for seed in range(8)
    ]
    np.testing.assert_array_equal(found, np.zeros((8, 2)))


@pytest.mark.parametrize("case", ["few", "unequal", "contexts"])
def test_variances_that_tell_too_little_leave_the_correlation_to_the_hierarchy(case: str) -> None:
    batch, _, _ = sessions_of(
        0.4, tasks=300 if case == "few" else 2_000, sizes=[2, 2, 2, 2, 2, 2, 2, 2, 2, 90]
    )
    features = indicator(["a", "b"])
    if case == "contexts":
        features = per_action(["a", "b"], ["x"])
        x = np.random.default_rng(0).normal(size=(len(batch), 1))
        roles = Roles("task", "action", "reward", context=("x",), cluster="cluster")
        batch = replace(batch, context=x, roles=roles)
    assert by_variances(*sums_of(batch, features)) is None
