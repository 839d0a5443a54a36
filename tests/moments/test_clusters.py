"""Moments of rows that are correlated within clusters, against generalised least squares by brute force."""

import numpy as np
import pytest

from hieropo import InputError, MismatchError, per_action
from hieropo._utils.packed import unpack
from hieropo.moments.accumulation import Accumulator
from hieropo.moments.clusters import (
    ClusterAccumulator,
    ClusterSums,
    _expected_alike,
    correlated,
    drawn_by_cluster,
    independent,
)
from hieropo.moments.units import UnitAccumulator
from hieropo.rows.batches import Batch, Roles

FEATURES = per_action(["a", "b", "c"], ["x"])
RHO = np.array([0.0, 0.3, 0.8])


def a_log(n: int = 200, seed: int = 0):
    rng = np.random.default_rng(seed)
    return {
        "task": rng.choice(["u", "v", "w"], n),
        "action": rng.choice(["a", "b", "c"], n),
        "cluster": rng.integers(20, size=n),
        "x": rng.normal(size=n),
        "reward": 100.0 + rng.normal(size=n),
        "weight": rng.integers(1, 4, n).astype(float),
    }


def batch_of(log, rows, *, weighted=False) -> Batch:
    return Batch(
        task=log["task"][rows], action=log["action"][rows], reward=log["reward"][rows], context=log["x"][rows, None],
        cluster=log["cluster"][rows], weight=log["weight"][rows] if weighted else None,
        roles=Roles("task", "action", "reward", weight="weight", context=("x",), cluster="cluster"),
    )  # fmt: skip


def summed(batches, *, per_action=True, offset=None):
    features = FEATURES
    total = (
        UnitAccumulator(features, offset=offset) if per_action else Accumulator(features.dim, offset=offset)
    )
    clusters = ClusterAccumulator(
        features, None if offset is None else np.tile(offset, 3 if per_action else 1), per_action=per_action
    )
    for batch in batches:
        codes = features.action_codes(batch.action)
        if per_action:
            total.add(batch.task, codes, batch.context, batch.reward, batch.weight)
        else:
            total.add(batch.task, features.phi(batch.context, codes), batch.reward, batch.weight)
        clusters.add(batch, codes)
    moments = total.moments()
    return moments, clusters.table().at(moments)


def by_brute_force(log, task, action, rho, *, offset=(0.0, 0.0), weighted=False):
    """Return sum z' V^-1 z and log det V of one task and action, V the correlation matrix of its rows."""
    rows = np.flatnonzero((log["task"] == task) & (log["action"] == action))
    if weighted:
        rows = np.repeat(rows, log["weight"][rows].astype(int))
    phi = np.column_stack([np.ones(rows.size), log["x"][rows]])
    z = np.column_stack([phi, log["reward"][rows] - phi @ np.array(offset), np.ones(rows.size)])
    same = log["cluster"][rows][:, None] == log["cluster"][rows]
    V = rho * same + (1 - rho) * np.eye(rows.size)
    return z.T @ np.linalg.solve(V, z), np.linalg.slogdet(V)[1]


@pytest.mark.parametrize("weighted", [False, True])
def test_the_sums_are_those_of_generalised_least_squares(weighted) -> None:
    log, offset = a_log(), np.array([100.0, 0.5])
    moments, clusters = summed([batch_of(log, np.arange(200), weighted=weighted)], offset=offset)
    result = correlated(moments, clusters, RHO)
    for row, task in enumerate(moments.tasks.tolist()):
        for action, name in enumerate("abc"):
            expected, log_det = by_brute_force(log, task, name, RHO[action], offset=offset, weighted=weighted)
            np.testing.assert_allclose(unpack(result.sums[row, action], 4), expected, rtol=1e-12, atol=1e-11)
            assert result.log_precision[row, action] == pytest.approx(-log_det, rel=1e-12, abs=1e-12)
    np.testing.assert_array_equal(result.rows, moments.rows)


def test_the_order_of_rows_and_their_batches_do_not_matter() -> None:
    log, order = a_log(), np.random.default_rng(1).permutation(200)
    together = correlated(*summed([batch_of(log, np.arange(200))]), RHO)
    apart = correlated(*summed([batch_of(log, rows) for rows in np.array_split(order, 7)]), RHO)
    apart = apart.select(together.tasks)
    np.testing.assert_allclose(apart.sums, together.sums, rtol=1e-11, atol=1e-9)
    np.testing.assert_allclose(apart.log_precision, together.log_precision, rtol=1e-12)


def test_clusters_of_all_actions_share_one_correlation_where_actions_share_coefficients() -> None:
    log = a_log()
    moments, clusters = summed([batch_of(log, np.arange(200))], per_action=False)
    result = correlated(moments, clusters, np.array([0.4]))
    codes = FEATURES.action_codes(log["action"])
    for row, task in enumerate(moments.tasks.tolist()):
        rows = np.flatnonzero(log["task"] == task)
        phi = FEATURES.phi(log["x"][rows, None], codes[rows])
        z = np.column_stack([phi, log["reward"][rows], np.ones(rows.size)])
        same = log["cluster"][rows][:, None] == log["cluster"][rows]
        expected = z.T @ np.linalg.solve(0.4 * same + 0.6 * np.eye(rows.size), z)
        np.testing.assert_allclose(unpack(result.sums[row], 8), expected, rtol=1e-10, atol=1e-10)


def table_of(log, rows=slice(None), *, features=FEATURES, offset=None):
    clusters = ClusterAccumulator(features, None if offset is None else np.tile(offset, 3), per_action=True)
    batch = batch_of(log, np.arange(200)[rows])
    clusters.add(batch, features.action_codes(batch.action))
    return clusters.table()


def by_ids(table):
    keys = zip(table.tasks.values[table.task], table.action, table.ids.values[table.cluster], strict=True)
    return dict(zip(((str(t), int(a), c) for t, a, c in keys), table.sums, strict=True))


def same(one, other, atol=1e-10):
    first, second = by_ids(one), by_ids(other)
    assert first.keys() == second.keys()
    for key, sums in first.items():
        np.testing.assert_allclose(second[key], sums, rtol=1e-12, atol=atol)


def test_tables_of_parts_add_to_that_of_all_rows_in_any_order_and_subtract_again() -> None:
    log, part = a_log(), np.random.default_rng(2).integers(5, size=200)
    parts = [table_of(log, part == k) for k in (3, 0, 4, 1, 2)]
    whole, empty = table_of(log), table_of(log, slice(0, 0))
    same(parts[0].together(parts), whole)
    same(empty + whole, whole)
    same(whole + empty, whole)
    assert len(whole - whole) == 0
    same(whole - parts[0], parts[1].together(parts[1:]))
    with pytest.raises(MismatchError, match="more rows of cluster"):
        parts[0] - parts[1]


def test_a_table_moves_to_another_offset_and_origin_as_its_rows_do() -> None:
    log, offset = a_log(), np.array([100.0, 0.5])
    same(table_of(log).around(offset), table_of(log, offset=offset))
    far = FEATURES.recentred([7.0])
    same(table_of(log, offset=offset).recentred(FEATURES, far).around(None), table_of(log, features=far))


def test_sums_over_all_actions_are_those_of_the_features_of_the_map() -> None:
    log = a_log()
    clusters, batch = ClusterAccumulator(FEATURES, None, per_action=False), batch_of(log, np.arange(200))
    clusters.add(batch, FEATURES.action_codes(batch.action))
    same(table_of(log).dense(3), clusters.table())


def test_ids_of_text_and_of_numbers_are_different_clusters() -> None:
    log = a_log()
    text = table_of({**log, "cluster": log["cluster"].astype(str).astype(object)})
    both = table_of(log) + text
    assert len(both) == 2 * len(table_of(log))
    same(both - text, table_of(log))


def test_moments_of_independent_rows_come_back() -> None:
    moments, clusters = summed([batch_of(a_log(), np.arange(200))], offset=np.array([100.0, 0.5]))
    back = independent(correlated(moments, clusters, RHO), clusters, RHO)
    np.testing.assert_allclose(back.sums, moments.sums, rtol=1e-10, atol=1e-10)
    assert not back.log_precision.any()


def test_clusters_of_one_row_and_a_correlation_of_zero_change_nothing() -> None:
    log = a_log()
    moments, clusters = summed([batch_of(log, np.arange(200))])
    assert correlated(moments, clusters, np.zeros(3)) is moments
    log["cluster"] = np.arange(200)
    moments, clusters = summed([batch_of(log, np.arange(200))])
    alone = correlated(moments, clusters, RHO)
    np.testing.assert_allclose(alone.sums, moments.sums, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(alone.log_precision, 0.0, atol=1e-12)


def test_actions_that_were_drawn_for_clusters_are_told_from_those_of_rows() -> None:
    rng = np.random.default_rng(0)
    task, cluster = np.repeat(np.arange(40), 25), np.repeat(np.arange(200), 5)
    of_rows, of_clusters = rng.choice(3, 1000, p=[0.6, 0.3, 0.1]), rng.integers(3, size=200)[cluster]
    assert not drawn_by_cluster(task, of_rows, cluster)
    assert drawn_by_cluster(task, of_clusters, cluster)
    of_tasks = rng.integers(3, size=40)[task]  # one action for each task: clusters could have no other
    assert not drawn_by_cluster(task, of_tasks, cluster)
    assert drawn_by_cluster(np.zeros(1000, dtype=np.int64), of_tasks, cluster)
    assert not drawn_by_cluster(task, of_clusters, np.arange(1000))


def test_rows_sampled_from_a_log_of_many_tasks_take_memory_for_their_own_tasks_alone() -> None:
    task, cluster = np.repeat(np.arange(40), 25) * 10**9, np.repeat(np.arange(200), 5)
    action = np.random.default_rng(0).integers(3, size=200)[cluster]
    assert drawn_by_cluster(task, action, cluster)


@pytest.mark.parametrize("weight", [5.0, 1e4, 1e12])
def test_rows_of_large_weights_do_not_matter_to_whether_actions_were_drawn_for_clusters(
    weight: float,
) -> None:
    def of(action: np.ndarray, cluster: np.ndarray) -> ClusterSums:
        sums = np.column_stack([np.ones(len(action)), np.zeros(len(action)), np.full(len(action), weight)])
        return ClusterSums(action, action, sums, cluster)

    clusters = np.arange(200)
    assert of(np.random.default_rng(0).integers(3, size=200), clusters).drawn_once
    assert not of(np.tile(np.arange(3), 200), np.repeat(clusters, 3)).drawn_once


def test_the_order_of_rows_does_not_matter_to_whether_actions_were_drawn_for_clusters() -> None:
    rng = np.random.default_rng(0)
    task, cluster = np.repeat(np.arange(40), 25), np.repeat(np.arange(200), 5)
    of_rows, of_clusters = rng.choice(3, 1000, p=[0.6, 0.3, 0.1]), rng.integers(3, size=200)[cluster]
    for seed in range(20):
        order = np.random.default_rng(seed).permutation(1000)  # rows of a cluster are apart from each other
        assert drawn_by_cluster(task[order], of_clusters[order], cluster[order])
        assert not drawn_by_cluster(task[order], of_rows[order], cluster[order])


@pytest.mark.parametrize("spans", [False, True])
def test_the_clusters_of_one_action_that_are_expected_by_chance_are_those_of_permuted_actions(
    spans: bool,  # noqa: FBT001
) -> None:
    rng = np.random.default_rng(1)
    task, action = np.sort(rng.integers(3, size=60)), rng.choice(3, 60, p=[0.7, 0.2, 0.1])
    cluster = rng.integers(20, size=60) if spans else 10 * task + rng.integers(8, size=60)
    cluster = np.unique(cluster, return_inverse=True)[1]
    several = np.bincount(cluster) > 1
    alike = []
    for _ in range(4000):
        permuted = action.copy()
        for one in range(3):
            permuted[task == one] = rng.permutation(action[task == one])
        alike.append(sum(np.unique(permuted[cluster == c]).size == 1 for c in np.flatnonzero(several)))
    expected = _expected_alike(task, action, cluster, np.ones(60), several)
    assert expected == pytest.approx(np.mean(alike), abs=4 * np.std(alike) / np.sqrt(4000))
    whole = _expected_alike(np.zeros(60, dtype=np.int64), action, cluster, np.ones(60), several)
    halves = _expected_alike(
        np.zeros(120, dtype=np.int64), np.repeat(action, 2), np.repeat(cluster, 2), np.full(120, 0.5), several
    )
    assert whole == pytest.approx(halves, rel=1e-12)


def test_correlations_that_are_none_or_do_not_fit_are_refused() -> None:
    moments, clusters = summed([batch_of(a_log(), np.arange(200))])
    with pytest.raises(InputError, match=r"each must be in \[0, 1\)"):
        correlated(moments, clusters, np.array([0.1, 1.0, 0.2]))
    with pytest.raises(MismatchError, match="one correlation for each action"):
        correlated(moments, clusters, np.array([0.1]))
    other, _ = summed([batch_of(a_log(), np.arange(200))], per_action=False)
    with pytest.raises(MismatchError):
        correlated(other, clusters, np.array([0.1]))
