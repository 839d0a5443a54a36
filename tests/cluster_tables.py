"""Comparison of two tables of sums of clusters."""

import numpy as np

from hieropo.moments.clusters import ClusterTable


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
