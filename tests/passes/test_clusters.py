"""Moments with sums of clusters: files and sites that share clusters, on disk, in shards, and fits to them."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from cluster_tables import check_same_clusters

from hieropo import (
    ArtifactError,
    Gaussian,
    Hierarchy,
    HierOPO,
    HieropoWarning,
    InputError,
    LogError,
    LogMoments,
    MismatchError,
    ShardedMoments,
)
from hieropo._utils.packed import unpack
from hieropo.moments.clusters import correlated
from hieropo.passes import worker
from hieropo.passes.clusters import ClustersOfRows
from hieropo.passes.summing import sums
from hieropo.rows.batches import Roles
from hieropo.rows.keys import Keys

ROLES = {"task": "store", "action": "offer", "reward": "profit", "context": ["x"], "cluster": "visit"}
RHO = np.array([0.2, 0.5, 0.8])


def a_log(n: int = 300, seed: int = 0, *, far: float = 0.0) -> pa.Table:
    """Return a log of visits of one offer each, which span two stores."""
    rng = np.random.default_rng(seed)
    visit = rng.integers(n // 5, size=n)
    offer = np.array(["a", "b", "c"])[visit % 3]
    store = (visit % 7) + rng.integers(2, size=n)
    profit = far + rng.normal(size=visit.max() + 1)[visit] + rng.normal(size=n)
    return pa.table(
        {"store": store, "offer": offer, "x": far + rng.normal(size=n), "profit": profit, "visit": visit}
    )


def parts_of(log: pa.Table, count: int = 4, seed: int = 1) -> list[pa.Table]:
    part = np.random.default_rng(seed).integers(count, size=len(log))
    return [log.filter(pa.array(part == k)) for k in range(count)]


def of(log: pa.Table, **columns) -> LogMoments:
    return LogMoments.of(log, features="per-action", **{**ROLES, **columns})


def correlated_sums(log: LogMoments):
    log = log.at_final_origin()
    return correlated(log.moments, log.summed.clusters.at(log.moments), RHO), log


def check_brute_force(made: LogMoments, log: pa.Table, rtol: float = 1e-9) -> None:
    """Compare with sum z' V^-1 z over all rows of each task and action, V their dense correlation matrix."""
    moments, made = correlated_sums(made)
    store, offer, visit, x, profit = (
        log[name].to_numpy() for name in ("store", "offer", "visit", "x", "profit")
    )
    offset = np.zeros(2) if moments.unit_offset is None else moments.unit_offset
    for row, task in enumerate(moments.tasks.tolist()):
        for action, name in enumerate(made.features.actions):
            some = np.flatnonzero((store == task) & (offer == name))
            if not some.size:
                continue
            codes = made.features.action_codes(np.array([name] * some.size, dtype=object))
            phi = made.features.phi(x[some, None], codes)[:, 2 * action : 2 * action + 2]
            z = np.column_stack([phi, profit[some] - phi @ offset, np.ones(some.size)])
            same = visit[some][:, None] == visit[some]
            V = RHO[action] * same + (1 - RHO[action]) * np.eye(some.size)
            np.testing.assert_allclose(
                unpack(moments.sums[row, action], 4), z.T @ np.linalg.solve(V, z), rtol=rtol, atol=1e-9
            )
            assert moments.log_precision[row, action] == pytest.approx(-np.linalg.slogdet(V)[1], abs=1e-9)


@pytest.mark.parametrize("far", [0.0, 1e4])
def test_moments_of_files_that_share_clusters_add_to_those_of_all_rows(far) -> None:
    log = a_log(far=far)
    parts = [of(part) for part in parts_of(log)]
    together, apart = correlated_sums(of(log))[0], correlated_sums(sum(parts))[0]
    assert apart.allclose(together, rtol=1e-12 if not far else 1e-9)
    check_brute_force(of(log), log, rtol=1e-6 if far else 1e-9)
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        check_brute_force(sum(parts[k] for k in order), log, rtol=1e-6 if far else 1e-9)


def test_actions_join_and_rows_are_subtracted_scaled_and_forgotten() -> None:
    log = a_log()
    of_a, others = (log.filter(pa.array(np.isin(log["offer"], names))) for names in (["a"], ["b", "c"]))
    whole = of(others) + of(of_a)
    assert whole.features.actions == ("b", "c", "a") or set(whole.features.actions) == set("abc")
    check = whole - of(of_a)
    np.testing.assert_array_equal(np.unique(check.summed.clusters.action).size, 2)
    first, second = parts_of(log, 2)
    check_brute_force((of(first) + of(second)) - of(second), first)
    with pytest.raises(MismatchError):
        of(first) - of(second)
    left = of(log).without([3])
    check_brute_force(left, log.filter(pa.array(log["store"].to_numpy() != 3)))
    assert set(left.summed.clusters.tasks.values.tolist()) == set(left.tasks.tolist())
    half = of(log).scale(0.5)
    np.testing.assert_allclose(half.summed.clusters.sums.sum(axis=0)[-1], 150.0)


@pytest.mark.parametrize("text", [False, True])
def test_moments_on_disk_keep_clusters_and_every_byte_is_checked(tmp_path, text) -> None:
    log = a_log(far=1e4)
    if text:
        visit = pa.array([f"visit {number}" for number in log["visit"].to_pylist()])
        log = log.set_column(log.schema.get_field_index("visit"), "visit", visit)
    first, second = (of(part) for part in parts_of(log, 2))
    first.save(tmp_path / "first")
    both = LogMoments.load(tmp_path / "first") + second
    check_brute_force(both, log, rtol=1e-6)
    both.save(tmp_path / "both")
    loaded = LogMoments.load(tmp_path / "both")
    np.testing.assert_array_equal(correlated_sums(loaded)[0].sums, correlated_sums(both)[0].sums)
    file = tmp_path / "both" / "clusters.arrow"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(ArtifactError, match=r"clusters\.arrow"):
        LogMoments.load(tmp_path / "both")


@pytest.mark.parametrize("in_place", [False, True])
def test_sums_in_the_pass_are_those_of_a_further_read(monkeypatch, in_place) -> None:
    log = a_log(far=1e3)
    expected = of(log)
    monkeypatch.setattr(worker, "_FEW", 0 if in_place else 10**9)
    features, offset = expected.features, expected.moments.offset
    roles = Roles(**{**ROLES, "context": ("x",)})
    clusters = ClustersOfRows(features, offset, per_action=True)
    source = pa.concat_tables(parts_of(log, 3))
    summed = sums(source, features, roles, per_action=True, offset=offset, threads=1, reducers=[clusters])
    assert expected.moments.allclose(summed.moments.select(expected.tasks))
    check_same_clusters(clusters.table(), expected.summed.clusters)
    assert len(ClustersOfRows(features, offset, per_action=True).table()) == 0


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "dictionary"])
@pytest.mark.parametrize("lenient", [False, True])
def test_texts_as_ids_of_clusters_give_the_sums_of_numbers(kind, lenient) -> None:
    log = a_log(far=1e3)
    names = pa.array([f"visit {number}" for number in log["visit"].to_pylist()])
    names = names.dictionary_encode() if kind == "dictionary" else names.cast(getattr(pa, kind)())
    text = log.set_column(4, "visit", names)
    if lenient:
        hole = text.slice(0, 1).set_column(4, "visit", pa.nulls(1, names.type))
        text = pa.concat_tables([hole, text])
        with pytest.warns(HieropoWarning):
            found = LogMoments.of(text, features="per-action", lenient=True, **ROLES)
    else:
        found = of(text)
    clusters = found.summed.clusters
    numbers = [int(name.removeprefix("visit ")) for name in clusters.ids.values.tolist()]
    check_same_clusters(replace(clusters, ids=Keys(np.array(numbers))), of(log).summed.clusters)


def test_shards_keep_clusters_and_join(tmp_path) -> None:
    log = a_log()
    parts = [
        ShardedMoments.of(of(part), tmp_path / f"part-{k}", shards=4)
        for k, part in enumerate(parts_of(log, 3))
    ]
    merged = ShardedMoments.merged(parts, tmp_path / "all", shards=2)
    check_brute_force(merged.joined(), log)
    check_brute_force(ShardedMoments.merged(parts[::-1], tmp_path / "again", shards=8).joined(), log)


def test_empty_parts_and_clusters_of_one_row_change_nothing() -> None:
    log = a_log()
    whole = of(log)
    nothing = whole.without(whole.tasks.tolist())
    assert len(nothing.summed.clusters) == 0
    check_brute_force(nothing + whole, log)
    check_brute_force(whole + nothing, log)
    alone = of(log.set_column(4, "visit", pa.array(np.arange(300))))
    np.testing.assert_allclose(
        correlated_sums(alone)[0].sums, alone.at_final_origin().moments.sums, rtol=1e-12
    )


def test_bad_clusters_are_an_error_with_the_row_or_are_set_aside() -> None:
    log = a_log()
    holed = log.set_column(4, "visit", pa.array([*log["visit"].to_pylist()[:-1], None], pa.int64()))
    with pytest.raises(LogError, match="'visit', row 299"):
        of(holed)
    with pytest.warns(HieropoWarning):
        left = LogMoments.of(holed, features="per-action", lenient=True, **ROLES)
    assert left.summed.clusters.sums[:, -1].sum() == left.n_rows == 299
    with pytest.raises(InputError, match="does not go with precision"):
        of(log.append_column("v", log["x"]), precision="v")
    with pytest.raises(MismatchError, match="cluster"):
        of(log) + of(log, cluster=None)


@pytest.mark.slow
def test_a_cluster_that_is_no_number_is_set_aside_by_both_reads() -> None:
    n = 120_000  # so many rows are read in place
    visit = np.arange(n) // 5.0
    visit[110_000] = np.nan
    log = pa.table({"store": np.arange(n) % 7, "offer": ["a"] * n, "profit": np.ones(n), "visit": visit})
    roles = {"task": "store", "action": "offer", "reward": "profit", "cluster": "visit"}
    with pytest.warns(HieropoWarning):
        left = LogMoments.of(log, lenient=True, **roles)
    assert left.summed.clusters.sums[:, -1].sum() == left.n_rows == n - 1
    with pytest.raises(LogError, match="'visit', row 110000"):
        LogMoments.of(log, **roles)


def test_ids_of_another_type_give_a_warning() -> None:
    first, second = parts_of(a_log(), 2)
    text = second.set_column(4, "visit", second["visit"].cast(pa.string()))
    with pytest.warns(HieropoWarning, match="ids of column 'visit' are of type int"):
        both = of(first) + of(text)
    assert len(both.summed.clusters) == len(of(first).summed.clusters) + len(of(text).summed.clusters)


@pytest.mark.parametrize("split", [1, 3])
def test_a_fit_with_given_hyper_parameters_is_that_of_the_rows(split) -> None:
    log = a_log()
    known = Hierarchy(Gaussian(np.zeros(6), np.eye(6)), 0.5 * np.eye(6), 2.0)
    rows = HierOPO("per-action", known=known).fit(log, **ROLES)
    moments = sum(of(part) for part in parts_of(log, split))
    fitted = HierOPO("per-action", known=known).fit(moments)
    np.testing.assert_allclose(fitted.cluster_correlation_, rows.cluster_correlation_, rtol=1e-9)
    assert rows.cluster_correlation_.any()
    one, other = rows.posterior_.table(), fitted.posterior_.table()
    place = one.keys.require(other.keys.values)
    np.testing.assert_allclose(np.asarray(other.means), np.asarray(one.means)[place], rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_a_fit_to_merged_moments_learns_as_from_the_rows() -> None:
    log = a_log(900)
    rows = HierOPO(logging="random").fit(log, **ROLES)
    assert rows.cluster_correlation_.any()
    fitted = HierOPO(logging="random").fit(sum(of(part) for part in parts_of(log, 3)))
    np.testing.assert_allclose(fitted.cluster_correlation_, rows.cluster_correlation_, atol=1e-8)
    one, other = rows.posterior_.table(), fitted.posterior_.table()
    place = one.keys.require(other.keys.values)
    np.testing.assert_allclose(np.asarray(other.means), np.asarray(one.means)[place], atol=1e-8)
