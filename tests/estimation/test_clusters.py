"""Correlations within clusters that are learned from a part of the tasks."""

from typing import Any

import numpy as np
import pytest
from cluster_tables import sums_of

from hieropo import indicator
from hieropo.estimation.clusters import learn_correlations
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
