"""Sharded moments hold the same sums as moments in memory: split, joined, merged, resumed; and refuse the rest."""

import datetime as dt
import json
import shutil
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from hieropo import ArtifactError, HieropoWarning, InputError, LogMoments, MismatchError
from hieropo.features.maps import per_action
from hieropo.passes.sharded import ShardedMoments, ShardWriter, merged, parts_of_log, split
from hieropo.rows.task_hash import shards_of

COLUMNS: dict[str, Any] = {"task": "store", "action": "offer", "reward": "profit", "context": ["visits"]}


def ids_of(kind: str, store: Any) -> Any:
    made = {
        "int": store * 1000 - 7,
        "text": [f"store {n}" for n in store],
        "uuid": None,
        "date": [dt.date(2020, 1, 1) + dt.timedelta(days=int(n)) for n in store],
    }
    return made[kind]


def log(
    seed: int,
    n: int = 400,
    kind: str = "text",
    stores: int = 60,
    offers: Any = ("a", "b", "c"),
    far: float = 0.0,
) -> pa.Table:
    rng = np.random.default_rng(seed)
    store = rng.integers(stores, size=n)
    visits = far + rng.normal(size=n)
    return pa.table(
        {
            "store": ids_of(kind, store),
            "city": [f"city {s % 5}" for s in store],
            "offer": rng.choice(offers, size=n),
            "visits": visits,
            "profit": 5.0 + rng.normal(size=60)[store] + 0.3 * (visits - far) + rng.normal(size=n),
            "region": [f"region {s % 3}" for s in store],
            "size": (store - 4) / 4.0,
            "weight": rng.uniform(0.2, 3.0, size=n),
        }
    )


def moments_of(table: pa.Table, **more: Any) -> LogMoments:
    return LogMoments.of(table, **{**COLUMNS, **more})


def two(moments: LogMoments, path: Path, **more: Any) -> ShardedMoments:
    """Write two shards: every shard is synchronised with the disk, which takes time."""
    return ShardedMoments.of(moments, path, **{"shards": 2, **more})


def same(one: LogMoments, other: LogMoments) -> None:
    assert one.features == other.features
    assert one.roles == other.roles
    assert sorted(map(repr, one.tasks.tolist())) == sorted(map(repr, other.tasks.tolist()))
    assert one.moments.allclose(other.moments)
    assert one.summed.task_levels.levels() == other.summed.task_levels.levels()


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("int", {}),
        ("date", {}),
        ("text", {"task": ["city", "store"]}),
        ("text", {"levels": ["region"], "metadata": ["size"]}),
        ("text", {"weight": "weight", "sampling_weight": None}),
        ("text", {"sampling_weight": "weight"}),
        ("text", {"action": None}),
    ],
)
def test_shards_join_to_the_moments_that_were_split(tmp_path, kind, more):
    moments = moments_of(log(0, kind=kind), **more)
    sharded = ShardedMoments.of(moments, tmp_path / "shards", shards=8)
    assert (len(sharded), sharded.n_rows) == (len(moments), pytest.approx(moments.n_rows))
    assert sharded.n_shards == 8
    joined = ShardedMoments.open(tmp_path / "shards").joined()
    same(joined, moments)
    row = joined.moments.keys.locate(moments.tasks)
    assert np.array_equal(joined.moments.sums[row], moments.moments.sums)  # to the bit
    for k, shard in enumerate(sharded.shards()):
        assert (shards_of(shard.tasks, 8) == k).all()
    assert joined.summed.sketch.to_dict() == moments.summed.sketch.to_dict()
    total = sharded.total
    assert np.allclose(total.sums[0], moments.moments.sums.sum(axis=0), rtol=1e-13)


def test_numbered_shards_have_the_sums_without_ids(tmp_path):
    moments = moments_of(log(0))
    sums = ShardedMoments.of(moments, tmp_path / "shards", shards=4).sums()
    assert len(sums) == len(moments)
    assert sums.observed_units == np.count_nonzero(moments.moments.rows)
    assert sum(shard.n_rows for shard in sums.shards()) == pytest.approx(moments.n_rows)


@pytest.mark.parametrize("shards", [1, 4, 16])
def test_merged_parts_are_the_moments_of_all_rows(tmp_path, shards):
    tables = [log(1, 300), log(2, 500, offers=("b", "d")), log(3, 100)]
    parts = [
        ShardedMoments.of(moments_of(table), tmp_path / f"part-0000{k}", shards=[4, 2, 8][k])
        for k, table in enumerate(tables)
    ]
    both = merged(parts, tmp_path / "all", shards=shards)
    same(both.joined(), moments_of(pa.concat_tables(tables)))
    assert both.n_shards == shards


def test_far_columns_get_the_origin_of_all_rows(tmp_path):
    tables = [log(1, 300, far=1e6), log(2, 200, far=1e6)]
    parts = [two(moments_of(table), tmp_path / f"{k}") for k, table in enumerate(tables)]
    whole = moments_of(pa.concat_tables(tables))
    assert whole.features.origin is not None
    same(merged(parts, tmp_path / "all").joined(), whole)


def test_bits_of_a_merge_do_not_depend_on_which_part_was_written_first(tmp_path):
    tables = [log(seed, 200) for seed in range(3)]
    for order in ([0, 1, 2], [2, 0, 1]):
        folder = tmp_path / "".join(map(str, order))
        folder.mkdir()
        for k in order:
            ShardedMoments.of(moments_of(tables[k]), folder / f"part-0000{k}", shards=4)
        merged(parts_of_log(folder), folder / "all")
    one, other = (tmp_path / order / "all" for order in ("012", "201"))
    assert all(
        np.array_equal(a.moments.sums, b.moments.sums)
        for a, b in zip(ShardedMoments.open(one).shards(), ShardedMoments.open(other).shards(), strict=True)
    )


def test_a_job_goes_on_from_the_shards_that_are_done(tmp_path):
    moments = moments_of(log(0))
    writer = ShardWriter.begin(
        tmp_path / "s", moments.features, moments.roles, shards=8, offset=moments.moments.unit_offset
    )
    parts = list(split(moments, 8))
    for k in (5, 0, 3):
        writer.write_shard(k, parts[k])
    with pytest.raises(ArtifactError, match=r"3 of 8 shards.*goes on"):
        ShardedMoments.open(tmp_path / "s")
    with pytest.raises(ArtifactError, match="lacks 5 shards of 8: 1, 2, 4, 6, 7"):
        writer.finish()
    kept = (tmp_path / "s" / "shard-00003" / "moments.arrow").stat().st_mtime_ns
    assert ShardWriter.resume(tmp_path / "s").done == {0, 3, 5}
    sharded = ShardedMoments.of(moments, tmp_path / "s", shards=8)
    assert (tmp_path / "s" / "shard-00003" / "moments.arrow").stat().st_mtime_ns == kept
    same(sharded.joined(), moments)
    same(ShardedMoments.of(moments, tmp_path / "s", shards=8).joined(), moments)  # finished already


def test_a_plan_that_differs_is_refused(tmp_path):
    moments = moments_of(log(0))
    ShardedMoments.of(moments, tmp_path / "s", shards=8)
    for more, match in (
        ({"shards": 4}, "shards 8, and this job has 4"),
        ({"inputs": {"day": "monday"}}, "inputs"),
    ):
        with pytest.raises(MismatchError, match=match):
            ShardedMoments.of(moments, tmp_path / "s", **{"shards": 8, **more})
    with pytest.raises(MismatchError, match="columns"):
        ShardedMoments.of(moments_of(log(0), weight="weight"), tmp_path / "s", shards=8)
    with pytest.raises(MismatchError, match="features"):
        ShardedMoments.of(moments_of(log(0, offers=("a", "z"))), tmp_path / "s", shards=8)


def test_moments_that_do_not_fit_the_plan_are_refused(tmp_path):
    moments = moments_of(log(0))
    writer = ShardWriter.begin(tmp_path / "s", moments.features, moments.roles, shards=8)
    with pytest.raises(InputError, match=r"belongs to shard \d of 8, and was given to shard"):
        writer.write_shard(1, moments)
    with pytest.raises(InputError, match="no shard 8"):
        writer.write_shard(8, moments)
    other = next(split(moments_of(log(0), features=per_action(["a", "b", "c", "z"], ["visits"])), 8))
    with pytest.raises(MismatchError, match="actions"):
        writer.write_shard(0, other)
    weighted = next(split(moments_of(log(0), weight="weight"), 8))
    with pytest.raises(MismatchError, match="weight"):
        writer.write_shard(0, weighted)


def test_merge_refuses_other_columns_and_maps(tmp_path):
    one = two(moments_of(log(0)), tmp_path / "one")
    for k, other in enumerate((moments_of(log(1), weight="weight"), moments_of(log(1), context=["size"]))):
        more = two(other, tmp_path / f"other {k}")
        with pytest.raises(MismatchError, match=r"do not combine"):
            merged([one, more], tmp_path / "all")
    with pytest.raises(InputError, match="No sharded moments"):
        merged([], tmp_path / "all")


def test_rows_that_count_twice_are_noticed(tmp_path):
    one = two(moments_of(log(0)), tmp_path / "one")
    again = two(moments_of(log(0)), tmp_path / "again")
    with pytest.warns(HieropoWarning, match="count twice"):
        merged([one, again], tmp_path / "all")


def damaged(folder: Path, change: str) -> None:
    if change == "missing":
        shutil.rmtree(folder / "shard-00002")
    elif change == "torn":
        file = folder / "shard-00002" / "moments.arrow"
        file.write_bytes(file.read_bytes()[:-100])
    elif change == "flipped":
        file = folder / "shard-00002" / "moments.arrow"
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(bytes(data))
    elif change == "swapped":
        shutil.rmtree(folder / "shard-00002")
        shutil.copytree(folder / "shard-00003", folder / "shard-00002")
    elif change == "document":
        document = json.loads((folder / "shards.json").read_text())
        document["tasks"] += 1
        (folder / "shards.json").write_text(json.dumps(document))


@pytest.mark.parametrize("change", ["missing", "torn", "flipped", "swapped", "document"])
def test_a_damaged_shard_is_refused_by_its_name(tmp_path, change):
    ShardedMoments.of(moments_of(log(0)), tmp_path / "s", shards=4)
    damaged(tmp_path / "s", change)
    name = "shards.json" if change == "document" else "shard-00002"
    for read in (lambda s: list(s.shards()), lambda s: [m.n_rows for m in s.sums().shards()]):
        with pytest.raises(ArtifactError, match=name):
            read(ShardedMoments.open(tmp_path / "s"))


def test_other_directories_are_refused_with_the_reason(tmp_path):
    moments = moments_of(log(0))
    moments.save(tmp_path / "m")
    with pytest.raises(ArtifactError, match="It holds moments"):
        ShardedMoments.open(tmp_path / "m")
    with pytest.raises(ArtifactError, match="other files"):
        two(moments, tmp_path / "m")
    with pytest.raises(ArtifactError, match=r"no shards\.json"):
        ShardedMoments.open(tmp_path / "nowhere")
    with pytest.raises(ArtifactError, match="Make it first"):
        two(moments, tmp_path / "nowhere" / "s")
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="is a file"):
        two(moments, tmp_path / "file")
    with pytest.raises(ArtifactError, match="no plan"):
        ShardWriter.resume(tmp_path / "m")


def test_missing_parts_are_named(tmp_path):
    for k in (1, 3):
        two(moments_of(log(k)), tmp_path / f"part-0000{k}", provenance={"part": [k, 3]})
    with pytest.raises(ArtifactError, match=r"lacks 2\."):
        parts_of_log(tmp_path)
    with pytest.raises(ArtifactError, match="2 parts of a log that were not merged"):
        ShardedMoments.open(tmp_path)


def test_more_shards_than_tasks_leave_some_empty(tmp_path):
    table = log(0, 30, stores=3)
    sharded = ShardedMoments.of(moments_of(table), tmp_path / "s", shards=16)
    same(sharded.joined(), moments_of(table))
    assert sum(len(shard) for shard in sharded.sums().shards()) == 3


def test_uuids_keep_their_type(tmp_path):
    table = pa.table(
        {"store": [UUID(int=n).bytes for n in range(40)], "profit": np.arange(40.0), "offer": ["a", "b"] * 20}
    )
    moments = LogMoments.of(table, task="store", action="offer", reward="profit")
    same(two(moments, tmp_path / "s").joined(), moments)
