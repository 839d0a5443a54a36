"""Correlations within clusters that are learned from a part of the tasks."""

from typing import Any

import numpy as np
import pytest
from cluster_tables import sums_of

from hieropo import indicator
from hieropo.estimation.clusters import between_clusters, learn_correlations
from hieropo.rows.batches import Batch, Roles


class Learned(Exception):  # noqa: N818 - carries the moments out of the search
    """The first moments that are learned from."""


def test_the_tasks_that_are_learned_from_do_not_depend_on_the_order_of_rows() -> None:
    features, rng = indicator(["a", "b"]), np.random.default_rng(0)
    cluster = np.repeat(np.arange(24_000), 2)
    task, action, reward = cluster // 60, rng.integers(2, size=24_000)[cluster], rng.normal(size=48_000)
    names = np.array([f"store {number}" for number in range(400)], dtype=object)  # numbered as they appear

    def learned_from(order: Any) -> Any:
        batch = Batch(
            task=names[task[order]], action=np.array(["a", "b"])[action[order]].astype(object), reward=reward[order],
            context=np.zeros((order.size, 0)), cluster=cluster[order],
            roles=Roles("task", "action", "reward", cluster="cluster"),
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
