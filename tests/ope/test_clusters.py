"""Off-policy sums of rows that form clusters, against sums of each cluster by brute force."""

from typing import Any

import numpy as np
import pytest
from cluster_tables import gain_error

from hieropo import MismatchError
from hieropo.ope.off_policy import OffPolicyMoments, OffPolicySums
from hieropo.ope.value_estimates import Sample, effective_rows, incumbent, ratios, task_gains, values


def a_log(n: int = 600, tasks: int = 12, *, spans: bool = False, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    task = np.sort(rng.integers(tasks, size=n))
    cluster = rng.integers(40, size=n) if spans else 10 * task + rng.integers(10, size=n)
    shift = rng.normal(size=cluster.max() + 1)[cluster]
    return {
        "task": task, "cluster": cluster, "reward": shift + rng.normal(size=n), "p": rng.uniform(0.2, 0.8, n),
        "target": rng.integers(2, size=n) * 1.0, "q": rng.normal(size=n), "v": rng.normal(size=n),
    }  # fmt: skip


def summed(
    log: dict[str, Any], order: Any = None, *, clusters: bool = True, parts: int = 3
) -> OffPolicyMoments:
    reward = log["reward"]
    sums = OffPolicySums(reward.min(), reward.max(), reward.size)
    for rows in np.array_split(np.arange(reward.size) if order is None else order, parts):
        columns = [log[name][rows] for name in ("task", "reward", "p", "target", "q", "v")]
        sums.add(*columns, cluster=log["cluster"][rows] if clusters else None)
    return sums.moments()


@pytest.mark.parametrize("spans", [False, True])
def test_the_variance_of_a_gain_is_that_of_independent_clusters(spans: bool) -> None:  # noqa: FBT001
    log = a_log(spans=spans)
    moments = summed(log, np.random.default_rng(1).permutation(600))
    w = log["target"] / log["p"]
    row = log["v"] + w * (log["reward"] - log["q"]) - log["reward"]
    total = np.bincount(log["cluster"], row - row.mean())
    present = np.bincount(log["cluster"]) > 0
    C = int(present.sum())
    expected = np.sqrt((total[present] ** 2).sum() * C / (C - 1)) / row.size
    estimate = next(value for value in values(moments, rng=np.random.default_rng(0)) if value.name == "DR")
    assert estimate.by == "clusters"
    assert estimate.gain == pytest.approx(row.mean(), rel=1e-10)
    assert estimate.gain_se == pytest.approx(expected, rel=1e-9)
    W = np.bincount(log["cluster"], w)
    assert effective_rows(moments) == pytest.approx(W.sum() ** 2 / (W**2).sum(), rel=1e-10)
    assert estimate.ess == pytest.approx(effective_rows(moments))


def test_many_tasks_that_contain_their_clusters_are_the_independent_units() -> None:
    nested, spanning = (summed(a_log(2000, 60, spans=spans)) for spans in (False, True))
    by = []
    for moments in (nested, spanning):
        sample = Sample(
            moments.sums, moments.squares, moments.groups, np.random.default_rng(0), moments.clusters
        )
        by.append(sample.interval(ratios(moments, "DR").minus(incumbent(moments)), 0.95).by)
    assert by == ["tasks", "tasks and clusters"]


def test_clusters_that_span_many_tasks_give_the_two_way_variance() -> None:
    log = a_log(2000, 60, spans=True)
    estimate = next(
        value for value in values(summed(log), rng=np.random.default_rng(0)) if value.name == "DR"
    )
    w = log["target"] / log["p"]
    row = log["v"] + w * (log["reward"] - log["q"]) - log["reward"]

    def one_way(ids: Any) -> float:
        totals = np.bincount(np.unique(ids, return_inverse=True)[1], row - row.mean())
        return float((totals**2).sum() * totals.size / (totals.size - 1))

    task, cluster, both = (
        one_way(ids) for ids in (log["task"], log["cluster"], 40 * log["task"] + log["cluster"])
    )
    expected = max(task + cluster - both, task, cluster)
    assert estimate.by == "tasks and clusters"
    assert estimate.gain_se == pytest.approx(np.sqrt(expected) / row.size, rel=1e-9)


@pytest.mark.slow
def test_intervals_hold_where_tasks_and_days_both_shift_rewards() -> None:
    rng, tasks, days, runs = np.random.default_rng(0), 40, 25, 200
    task, day = np.repeat(np.arange(tasks), days), np.tile(np.arange(days), tasks)
    held = {"tasks": 0, "days": 0, "both": 0}
    for _ in range(runs):
        of_task, of_day, noise = (rng.normal(size=n) for n in (tasks, days, tasks * days))
        reward = 0.65 * of_task[task] + 0.5 * of_day[day] + noise
        sums = OffPolicySums(reward.min(), reward.max(), reward.size)
        ones, zeros = np.ones(reward.size), np.zeros(reward.size)
        sums.add(task, reward, ones, ones, zeros, zeros, cluster=day)
        moments = sums.moments()
        for name, clusters in (("tasks", None), ("both", moments.clusters)):
            sample = Sample(moments.sums, moments.squares, moments.groups, rng, clusters)
            interval = sample.interval(ratios(moments, "IPS"), 0.95)
            held[name] += interval.low <= 0 <= interval.high
        of_days = reward.reshape(tasks, days).mean(axis=0)
        error = 2.064 * of_days.std(ddof=1) / np.sqrt(days)  # Student's t with 24 degrees of freedom
        held["days"] += abs(of_days.mean()) <= error
    assert held["both"] >= 0.91 * runs
    assert max(held["tasks"], held["days"]) <= 0.9 * runs


def test_gains_of_tasks_have_errors_of_clusters() -> None:
    log = a_log()
    moments, rows = summed(log), summed(log, clusters=False)
    gain, se, _ = task_gains(moments, "DR")
    np.testing.assert_allclose(gain, task_gains(rows, "DR")[0], rtol=1e-10)
    w = log["target"] / log["p"]
    row = log["v"] + w * (log["reward"] - log["q"]) - log["reward"]
    square = weight = 0.0
    sizes = np.zeros(12)
    for s in range(12):
        some = log["task"] == s
        n = np.bincount(log["cluster"][some])
        total = np.bincount(log["cluster"][some], row[some]) - gain[s] * n
        C = np.count_nonzero(n)
        square, weight = square + (total**2).sum(), weight + (C - 1) / C * (n.astype(float) ** 2).sum()
        sizes[s] = np.sqrt((n.astype(float) ** 2).sum()) / some.sum()
    np.testing.assert_allclose(se, np.sqrt(square / weight) * sizes, rtol=1e-9)


def test_bounds_for_independent_rows_are_withheld() -> None:
    smoothed = next(
        value for value in values(summed(a_log()), rng=np.random.default_rng(0)) if value.name == "LS"
    )
    assert "needs independent rows" in str(smoothed.withheld)


def test_sums_of_clusters_of_two_parts_do_not_add() -> None:
    with pytest.raises(MismatchError, match="a cluster may have rows in both"):
        _ = summed(a_log()) + summed(a_log())


def test_clusters_of_a_task_that_depend_on_each_other_are_one_unit() -> None:
    log = a_log()
    clusters = np.random.default_rng(2).permutation(log["cluster"].max() + 1) % 3 == 0
    dependent = clusters[log["cluster"]] & (np.arange(600) % 2 == 0)  # one row is enough
    reward = log["reward"]
    sums = OffPolicySums(reward.min(), reward.max(), reward.size)
    for rows in np.array_split(np.arange(600), 3):
        columns = [log[name][rows] for name in ("task", "reward", "p", "target", "q", "v")]
        sums.add(*columns, cluster=log["cluster"][rows], dependent=dependent[rows])
    moments = sums.moments()
    marked = np.bincount(log["cluster"], dependent)[log["cluster"]] > 0
    unit = np.unique(np.where(marked, -1 - log["task"], log["cluster"]), return_inverse=True)[1]
    expected = gain_error(log, unit)
    estimate = next(value for value in values(moments, rng=np.random.default_rng(0)) if value.name == "DR")
    assert estimate.gain_se == pytest.approx(expected, rel=1e-9)
    assert estimate.ess == pytest.approx(effective_rows(summed(log)))  # that of clusters
    sample = Sample(
        moments.sums,
        moments.independent.squares,
        moments.groups,
        np.random.default_rng(0),
        moments.independent,
    )
    size = np.bincount(unit).astype(float)
    assert sample._effective == pytest.approx(size.sum() ** 2 / (size**2).sum())


@pytest.mark.slow
def test_intervals_of_cross_fitted_policies_hold_with_few_tasks() -> None:
    """Policies of two actions by task, learned without a fold; gains and sessions as those of a small log."""
    tasks, sessions, folds, runs = 8, 12, 5, 300
    held, task = {"clusters": 0, "joined": 0, "rows": 0}, np.repeat(np.arange(tasks), sessions)
    for run in range(runs):
        rng = np.random.default_rng(run)
        gain, action = 0.3 * rng.standard_normal(tasks), rng.integers(2, size=task.size)
        reward = action * gain[task] + rng.standard_normal(task.size)
        fold = rng.permutation(task.size) % folds
        chosen = np.array(
            [np.bincount(task, (fold != k) * (2 * action - 1) * reward, tasks) > 0 for k in range(folds)]
        ).astype(np.int64)
        target = (chosen[fold, task] == action).astype(float)
        true = float((chosen * gain).mean(axis=1).mean() - gain.mean() / 2)
        dependent = (chosen != chosen[0]).any(axis=0)[task]
        zeros = np.zeros(task.size)
        for name, mask, clustered in (
            ("clusters", None, True),
            ("joined", dependent, True),
            ("rows", dependent, False),
        ):
            sums = OffPolicySums(reward.min(), reward.max(), reward.size)
            sums.add(
                task, reward, np.full(task.size, 0.5), target, zeros, zeros,
                cluster=np.arange(task.size) if clustered else None, dependent=mask,
            )  # fmt: skip
            moments = sums.moments()
            units = moments.independent
            squares = moments.squares if units is None else units.squares
            sample = Sample(moments.sums, squares, moments.groups, rng, units, moments.joined)
            interval = sample.interval(ratios(moments, "IPS").minus(incumbent(moments)), 0.95)
            held[name] += interval.low <= true <= interval.high
    assert held["joined"] >= 0.92 * runs
    assert held["rows"] >= 0.92 * runs
    assert held["clusters"] <= 0.91 * runs
