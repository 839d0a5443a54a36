"""Sums of clusters: those of a batch of rows, the comparison of two tables, and the error of a gain by units."""

from typing import Any

import numpy as np

from hieropo.moments.clusters import ClusterAccumulator, ClusterTable
from hieropo.moments.units import UnitAccumulator
from hieropo.rows.batches import Batch


def sums_of(batch: Batch, features: Any) -> tuple[Any, Any]:
    """Return the moments of each action and the sums of clusters of some rows."""
    codes = features.action_codes(batch.action)
    total, clusters = UnitAccumulator(features), ClusterAccumulator(features, None, per_action=True)
    total.add(batch.task, codes, batch.context, batch.reward)
    clusters.add(batch, codes)
    moments = total.moments()
    return moments, clusters.table().at(moments)


def check_same_clusters(mine: ClusterTable, expected: ClusterTable, rtol: float = 1e-12) -> None:
    """Check that two tables have the same tasks, actions and clusters, and the same sums, to rounding."""

    def by_place(table: ClusterTable) -> dict[tuple[object, int, object], int]:
        tasks, ids = table.tasks.values.tolist(), table.ids.values.tolist()
        places = zip(table.task.tolist(), table.action.tolist(), table.cluster.tolist(), strict=True)
        return {
            (tasks[task], action, ids[cluster]): row for row, (task, action, cluster) in enumerate(places)
        }

    ours, theirs = by_place(mine), by_place(expected)
    assert ours.keys() == theirs.keys()
    rows = [ours[place] for place in theirs]
    sums = mine.around(expected.offset).sums[rows]
    scale = np.abs(expected.sums).max(axis=0)
    np.testing.assert_allclose(sums / scale, expected.sums / scale, rtol=rtol, atol=rtol)


def gain_error(log: dict[str, np.ndarray], unit: np.ndarray) -> float:
    """Return the standard error of the doubly robust gain of a policy, by sums of units (n,) of rows."""
    w = log["target"] / log["p"]
    row = log["v"] + w * (log["reward"] - log["q"]) - log["reward"]
    total, size = np.bincount(unit, row - row.mean()), np.bincount(unit).astype(float)
    return float(np.sqrt((total**2).sum() * size.size / (size.size - 1)) / row.size)
