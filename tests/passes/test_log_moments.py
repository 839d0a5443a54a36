"""Moments made at different places add to those of all rows, in memory and on disk."""

import json
import os
import signal
import time
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hieropo import HierOPO, HieropoWarning, LogMoments
from hieropo._utils.packed import packed_size
from hieropo.errors import ArtifactError, InputError, LogError, MismatchError, UnknownTaskError
from hieropo.features.maps import Columns, embedding, per_action
from hieropo.learners.baselines import PooledOPO
from hieropo.moments.statistics import Moments

COLUMNS: dict[str, Any] = {
    "task": "store",
    "action": "offer",
    "reward": "profit",
    "context": ["visits", "hour"],
}
OFFERS = np.array(["none", "coupon", "gift", "call"])


def log(seed: int, n: int = 200, offers: tuple[int, ...] = (0, 1, 2), stores: int = 9) -> pa.Table:
    rng = np.random.default_rng(seed)
    store, offer = rng.integers(stores, size=n), rng.choice(offers, size=n)
    visits, hour = rng.normal(size=n), rng.normal(size=n)
    return pa.table(
        {
            "store": [f"store {each}" for each in store],
            "offer": OFFERS[offer],
            "visits": visits,
            "hour": hour,
            "profit": 0.5 * offer
            + 0.3 * visits * offer
            + rng.normal(size=stores)[store]
            + rng.normal(size=n),
            "weight": rng.uniform(0.2, 3.0, size=n),
            "region": [f"region {each % 3}" for each in store],
            "size": (store - 4) / 4.0,
            "chance": np.full(n, 0.25),
        }
    )


def joined(*parts: pa.Table) -> pa.Table:
    return pa.concat_tables(parts)


def dense(moments: LogMoments) -> Any:
    return moments.for_learning(per_action=False)


def same(one: LogMoments, other: LogMoments, rtol: float = 1e-12) -> bool:
    return (
        one.features == other.features
        and one.roles == other.roles
        and dense(one).allclose(dense(other), rtol)
        and np.array_equal(one.summed.sketch.hashes, other.summed.sketch.hashes)
        and one.summed.task_levels.levels() == other.summed.task_levels.levels()
        and one.summed.task_levels.known.keys() == other.summed.task_levels.known.keys()
    )


MADE: dict[str, dict[str, Any]] = {
    "per-action": COLUMNS,
    "indicator": {**COLUMNS, "context": []},
    "columns": {**COLUMNS, "features": "columns", "action": None},
    "embedding": {
        **COLUMNS,
        "features": embedding(OFFERS.tolist(), np.arange(8.0).reshape(4, 2), ["visits", "hour"]),
    },
    "no intercept": {
        **COLUMNS,
        "features": per_action(OFFERS[:3].tolist(), ["visits", "hour"], intercept=False),
    },
    "weighted": {**COLUMNS, "weight": "weight"},
    "placed": {**COLUMNS, "levels": ["region"], "metadata": ["size"]},
}


@pytest.mark.parametrize("name", MADE)
def test_moments_of_parts_add_to_those_of_the_whole_and_go_out_again(name: str, tmp_path: Path) -> None:
    parts = [log(seed) for seed in (1, 2, 3)]
    each = [LogMoments.of(part, **MADE[name]) for part in parts]
    whole = LogMoments.of(joined(*parts), **MADE[name])
    for order in permutations(range(3)):
        a, b, c = (each[k] for k in order)
        assert same((a + b) + c, whole)
        assert same(a + (b + c), whole)
    assert same(sum(each), whole)
    rest = whole - each[1]
    assert same(LogMoments.of(joined(parts[0], parts[2]), **MADE[name]), rest, 1e-9) or name == "placed"
    kept = joined(parts[0], parts[2])
    rows = sum(kept["weight"].to_pylist()) if name == "weighted" else 400
    assert rest.n_rows == pytest.approx(rows, rel=1e-12)
    for number, made in enumerate((*each, rest)):
        made.save(tmp_path / str(number))
        assert bits(LogMoments.load(tmp_path / str(number))) == bits(made)


def bits(moments: LogMoments) -> tuple[Any, ...]:
    found = moments.moments
    return (
        type(found), found.keys.values.tolist(), found.keys.values.dtype, found.sums.tobytes(), found.rows.tobytes(),
        found.log_precision.tobytes(), found.features, moments.features, moments.roles, moments.summed.sketch.to_dict(),
        moments.summed.task_levels.levels(),
        {task: values.tobytes() for task, values in moments.summed.task_levels.known.items()},
    )  # fmt: skip


@given(st.lists(st.sets(st.sampled_from([0, 1, 2, 3]), min_size=1), min_size=2, max_size=4), st.booleans())
def test_sites_with_other_actions_get_the_map_of_all_of_them(sets: list[set[int]], indicated: bool) -> None:  # noqa: FBT001
    columns = {**COLUMNS, "context": [] if indicated else ["visits"]}
    parts = [log(seed, 40, tuple(sorted(offers)), stores=3) for seed, offers in enumerate(sets)]
    each = [LogMoments.of(part, **columns) for part in parts]
    whole = LogMoments.of(joined(*parts), **columns)
    assert same(sum(each), whole)
    assert same(sum(reversed(each)), whole)


def test_actions_named_up_front_keep_their_order_and_unite_sorted_otherwise() -> None:
    custom = per_action(["none", "gift", "coupon"], ["visits", "hour"])
    mine, other = (LogMoments.of(log(seed), features=custom, **COLUMNS) for seed in (1, 2))
    assert (mine + other).features == custom
    wide = mine + LogMoments.of(log(3), **COLUMNS)
    assert wide.features.actions == ("coupon", "gift", "none")
    assert same(wide, LogMoments.of(joined(log(1), log(3)), **COLUMNS))


def test_what_differs_is_named_and_nothing_is_mixed() -> None:
    base = LogMoments.of(log(1), **COLUMNS)
    cases: list[tuple[dict[str, Any], str]] = [
        ({**COLUMNS, "context": ["visits"]}, r"context columns \['visits', 'hour'\] and \['visits'\]"),
        ({**COLUMNS, "context": ["hour", "visits"]}, "the same in another order"),
        ({**COLUMNS, "features": "columns"}, "one map is of actions, the other of columns"),
        (
            {**COLUMNS, "features": per_action(OFFERS, ["visits", "hour"], intercept=False)},
            "intercept in the first",
        ),
        (MADE["embedding"], "described by a table"),
        ({**COLUMNS, "reward": "size"}, "reward='profit' and reward='size'"),
        (MADE["weighted"], "weight=None and weight='weight'"),
        (MADE["placed"], r"levels=\(\) and levels=\('region',\)"),
    ]
    for columns, text in cases:
        other = LogMoments.of(log(2), **columns)
        for step in (lambda a, b: a + b, lambda a, b: a - b):
            with pytest.raises(MismatchError, match=text):
                step(base, other)
    numbers = log(2).set_column(1, "offer", pa.array(np.arange(200) % 3))
    with pytest.raises(MismatchError, match=r"types \['str'\] and \['int'\]"):
        base + LogMoments.of(numbers, **COLUMNS)
    tables = [
        embedding(names, np.arange(2.0 * len(names)).reshape(-1, 2) + k, ["visits", "hour"])
        for k, names in enumerate((OFFERS.tolist(), OFFERS.tolist(), OFFERS[:3].tolist()))
    ]
    one, two, three = (
        LogMoments.of(log(k), **{**COLUMNS, "features": each}) for k, each in enumerate(tables)
    )
    with pytest.raises(MismatchError, match="the tables that describe the actions"):
        one + two
    with pytest.raises(
        MismatchError, match=r"actions that a table describes, \['none', 'coupon', 'gift', 'call'\] and"
    ):
        one + three


def test_columns_that_are_only_checked_may_differ_and_are_then_not_kept() -> None:
    first, second = LogMoments.of(log(1), **COLUMNS, pscore="chance"), LogMoments.of(log(2), **COLUMNS)
    assert (first + second).roles == second.roles
    third = LogMoments.of(log(3), **COLUMNS, pscore="chance")
    assert (first + third).roles == first.roles


def test_a_task_in_two_groups_and_metadata_that_differ_are_refused() -> None:
    recentred = log(2)
    recentred = recentred.set_column(6, "region", pa.array(["elsewhere"] * 200))
    with pytest.raises(LogError, match=r"'region'.* is in 'elsewhere' here and in 'region"):
        LogMoments.of(log(1), **MADE["placed"]) + LogMoments.of(recentred, **MADE["placed"])
    grown = log(2)
    grown = grown.set_column(7, "size", pa.array(grown["size"].to_numpy() + 1.0))
    with pytest.raises(LogError, match=r"'size': .* in an earlier row"):
        LogMoments.of(log(1), **MADE["placed"]) + LogMoments.of(grown, **MADE["placed"])


def test_rows_counted_twice_and_ids_of_another_type_are_warned_about() -> None:
    made = LogMoments.of(log(1), **COLUMNS)
    with pytest.warns(HieropoWarning, match="About 100% of the rows .* count twice"):
        made + made
    numbered = log(2).set_column(0, "store", pa.array(np.arange(200) % 9))
    with pytest.warns(HieropoWarning, match="ids are of type int"):
        made + LogMoments.of(numbered, **COLUMNS)


def test_rows_that_are_not_there_are_not_taken_out() -> None:
    small, large = LogMoments.of(log(1), **COLUMNS), LogMoments.of(joined(log(1), log(2)), **COLUMNS)
    with pytest.raises(MismatchError, match=r"Only about .* of the subtracted rows"):
        small - large
    clicks = {
        "task": "store",
        "action": "offer",
        "reward": "chance",
    }  # rows that cannot be told from one another
    one, two = LogMoments.of(log(1, stores=2), **clicks), LogMoments.of(log(2, stores=2), **clicks)
    with pytest.raises(
        MismatchError, match=r"more rows of task 'store \d' than the first moments, which have"
    ):
        one - (one + two)


def test_a_task_is_forgotten_and_what_is_old_counts_less() -> None:
    rows = log(1)
    keep = np.array(rows["store"].to_pylist()) != "store 4"
    made = LogMoments.of(rows, **MADE["placed"])
    left = made.without(["store 4"])
    expected = LogMoments.of(rows.filter(pa.array(keep)), **MADE["placed"])
    assert dense(left).allclose(dense(expected))
    assert left.summed.task_levels.levels() == expected.summed.task_levels.levels()
    assert set(left.summed.task_levels.known) == set(expected.summed.task_levels.known)
    assert left.summed.sketch.hashes.size == 0
    assert (left + LogMoments.of(log(2), **MADE["placed"])).summed.sketch.share_in(made.summed.sketch) is None
    alone = made.without([task for task in made.tasks if task not in ("store 0", "store 3")])
    assert alone.summed.task_levels.levels() == {"region": {"store 0": "region 0", "store 3": "region 0"}}
    assert len(made.without(made.tasks)) == 0
    with pytest.raises(UnknownTaskError, match="'store 77'"):
        made.without(["store 77"])
    half = rows.set_column(5, "weight", pa.array(np.full(200, 0.5)))
    old = LogMoments.of(half, **{**COLUMNS, "weight": "weight"})
    assert dense(LogMoments.of(rows, **COLUMNS).scale(0.5)).allclose(dense(old))


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_a_policy_learned_from_moments_is_that_of_the_log(name: str, tmp_path: Path) -> None:
    columns = dict(MADE[name])
    features = columns.pop("features", None)
    rows = log(5, 600, (0, 1, 2, 3) if name == "embedding" else (0, 1, 2))
    direct = HierOPO(features, task_cov="diag", uncertainty="plug-in").fit(rows, **columns)
    made = LogMoments.of(rows, features=features, **columns)
    made.save(tmp_path / "moments")
    for source in (made, tmp_path / "moments", str(tmp_path / "moments")):
        learner = HierOPO(features, task_cov="diag", uncertainty="plug-in").fit(source)
        assert learner.roles_ == direct.roles_
        assert learner.features_ == direct.features_
        assert np.allclose(
            learner.posterior_.table().means, direct.posterior_.table().means, rtol=1e-6, atol=1e-8
        )
    if direct.features_.actions is not None:
        assert learner.predict(rows).tolist() == direct.predict(rows).tolist()
        assert learner.evaluate(rows).learned_from == "yes"
    learner.save(tmp_path / "policy")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hieropo.HieropoWarning")
def test_other_learners_and_priors_learn_from_the_same_moments() -> None:
    rows = log(6, 900)
    made = LogMoments.of(rows, **COLUMNS)
    crossed, dense, pooled = HierOPO(), HierOPO(task_cov="diag"), PooledOPO()
    assert crossed.fit(made).moments_.per_action
    assert isinstance(dense.fit(made).moments_, Moments)
    for learner in (crossed, dense, pooled):
        found = learner.fit(made).posterior_.table().means
        assert np.allclose(found, learner.fit(rows, **COLUMNS).posterior_.table().means, rtol=1e-6, atol=1e-8)
    more = LogMoments.of(log(7), **COLUMNS)
    again = HierOPO().fit(rows, **COLUMNS).partial_fit(more)
    assert again.moments_.n_rows == 1100
    assert np.allclose(again.posterior_.table().means, HierOPO().fit(made + more).posterior_.table().means)
    joined = LogMoments.of(log(8, offers=(2, 3)), **COLUMNS)
    assert "call" in again.partial_fit(joined).features_.actions
    alone = HierOPO(task_cov="diag").fit(rows, **COLUMNS)
    with pytest.raises(MismatchError, match=r"actions that the policy so far does not have: 'call'"):
        alone.partial_fit(joined)
    with pytest.raises(MismatchError, match="weight"):
        again.partial_fit(LogMoments.of(log(8), **{**COLUMNS, "weight": "weight"}))


def test_moments_are_learned_from_as_they_were_made_or_not_at_all() -> None:
    made = LogMoments.of(log(1), **COLUMNS)
    with pytest.raises(MismatchError, match="made with task='store'; a fit with task='shop'"):
        HierOPO().fit(made, task="shop")
    with pytest.raises(MismatchError, match=r"context=\('visits', 'hour'\)"):
        HierOPO().fit(made, context=["visits"])
    with pytest.raises(MismatchError, match="per-action, of the columns"):
        HierOPO("columns").fit(made)
    with pytest.raises(MismatchError, match="other features"):
        HierOPO(per_action(["a"], ["visits", "hour"])).fit(made)
    with pytest.raises(InputError, match=r"moments hold no rows. Fit the log itself"):
        HierOPO(pessimism="cv").fit(made)
    with pytest.raises(InputError, match="coefficients of their own"):
        HierOPO(task_cov="crossed").fit(LogMoments.of(log(1), **MADE["embedding"]))
    with pytest.raises(TypeError, match="of\\(\\) got 'store'"):
        LogMoments.of(log(1), store="store")
    assert HierOPO("per-action").fit(made, task="store", context=["visits", "hour"]).moments_.n_rows == 200


def test_a_file_holds_no_more_numbers_than_the_sums_have(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tasks, n = 3000, 9000
    numbers = {f"x{j}": rng.normal(size=n).astype(np.float32) for j in range(6)}
    rows = pa.table(
        {"task": np.arange(n) % tasks, "action": np.arange(n) % 5, "reward": rng.normal(size=n), **numbers}
    )
    for width in (0, 1, 2, 6):
        for features in (
            "columns",
            None,
            per_action(range(5), list(numbers)[:width]),
            per_action([0, 1, 2, 3, 4], ["x1"]),
        ):
            if features == "columns" and not width:
                continue
            named = list(numbers)[:width] if features in ("columns", None) else list(features.columns)
            made = LogMoments.of(
                rows, task="task", action="action", reward="reward", context=named, features=features
            )
            made.save(tmp_path / "made")
            d = made.features.dim
            size = sum(path.stat().st_size for path in (tmp_path / "made").iterdir())
            identity, fixed = 8 * tasks, 40_000
            assert size <= 8 * tasks * (packed_size(d + 2) + 2) + identity + fixed, (width, features)
            assert bits(LogMoments.load(tmp_path / "made")) == bits(made)


@pytest.mark.parametrize("damage", ["cut", "flipped", "edited", "missing", "newer", "other"])
def test_a_damaged_file_is_refused_by_name(damage: str, tmp_path: Path) -> None:
    place = tmp_path / "moments"
    LogMoments.of(log(1), **MADE["placed"]).save(place)
    document, table = place / "moments.json", place / "moments.arrow"
    named = "moments.json" if damage in ("edited", "newer", "other") else "moments.arrow"
    if damage == "cut":
        table.write_bytes(table.read_bytes()[:-9])
    elif damage == "flipped":
        raw = bytearray(table.read_bytes())
        raw[len(raw) // 2] ^= 1
        table.write_bytes(raw)
    elif damage == "missing":
        table.unlink()
    elif damage == "edited":
        document.write_text(document.read_text().replace('"rows": 200', '"rows": 201'))
    elif damage == "newer":
        document.write_text(
            json.dumps({"format": "hieropo moments", "version": 99, "written_by": "hieropo 9"})
        )
    else:
        document.write_text(json.dumps({"format": "hieropo policy"}))
    with pytest.raises(ArtifactError, match=named):
        LogMoments.load(place)
    with pytest.raises(ArtifactError, match=named):
        HierOPO().fit(place)


def test_every_cut_and_every_flipped_byte_is_seen(tmp_path: Path) -> None:
    place = tmp_path / "moments"
    LogMoments.of(log(1, 30, stores=3), **MADE["placed"]).save(place)
    rng = np.random.default_rng(3)
    for path in sorted(place.iterdir()):
        raw = path.read_bytes()
        for at in rng.integers(len(raw), size=12).tolist():
            flipped = bytearray(raw)
            flipped[at] ^= 1 << int(rng.integers(8))
            for broken in (raw[:at], bytes(flipped)):
                path.write_bytes(broken)
                with pytest.raises(ArtifactError, match=path.name):
                    LogMoments.load(place)
        path.write_bytes(raw)
    LogMoments.load(place)


@pytest.mark.slow
def test_only_moments_and_nothing_are_replaced(tmp_path: Path) -> None:
    made = LogMoments.of(log(1), **COLUMNS)
    HierOPO(task_cov="diag").fit(log(5, 600), **COLUMNS).save(tmp_path / "policy")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine.txt").write_text("mine")
    for name in ("policy", "folder"):
        with pytest.raises(ArtifactError, match="directory with other files"):
            made.save(tmp_path / name)
    with pytest.raises(ArtifactError, match=r"does not hold moments\. It holds a policy"):
        LogMoments.load(tmp_path / "policy")
    with pytest.raises(ArtifactError, match="does not exist"):
        LogMoments.load(tmp_path / "nothing")
    with pytest.raises(ArtifactError, match="is not a directory"):
        made.save(tmp_path / "no" / "where")
    with pytest.raises(InputError, match="provenance"):
        made.save(tmp_path / "made", provenance={"when": (1, 2)})
    made.save(tmp_path / "made")
    (made + LogMoments.of(log(2), **COLUMNS)).save(tmp_path / "made")
    assert LogMoments.load(tmp_path / "made").n_rows == 400


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes in order to kill them")
def test_a_save_killed_at_any_moment_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    old, new = (LogMoments.of(log(seed, 4000, stores=1500), **COLUMNS) for seed in (1, 2))
    place = tmp_path / "made"
    start = time.perf_counter()
    old.save(place)
    duration = time.perf_counter() - start
    states = [bits(old), bits(new)]
    rng = np.random.default_rng(0)
    for turn in range(20):
        child = os.fork()
        if child == 0:
            while True:
                (new if turn % 2 else old).save(place)
        time.sleep(rng.uniform(0.3, 3.0) * duration)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert bits(LogMoments.load(place)) in states
    new.save(place)
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


@pytest.mark.slow
def test_ids_of_every_kind_come_back(tmp_path: Path) -> None:
    columns = {"task": "task", "action": "action", "reward": "reward"}
    numbers = [
        np.arange(4, dtype=np.int16),
        pa.array([2**64 - 1, 0, 5, 7], pa.uint64()),
        [True, False, True, True],
    ]
    texts = [["é", "", "b", " "], [b"a", b"", b"c", b"d"], pa.array(["x", "y", "x", "z"]).dictionary_encode()]
    dates = [pa.array([1, 2, 3, 4], kind) for kind in (pa.date32(), pa.timestamp("us"))]
    kinds = [pa.array(each) for each in (*numbers, *texts, *dates)]
    for tasks in kinds:
        for actions in kinds:
            made = LogMoments.of(
                pa.table({"task": tasks, "action": actions, "reward": [1.0, 2.0, 3.0, 4.0]}), **columns
            )
            made.save(tmp_path / "made")
            back = LogMoments.load(tmp_path / "made")
            assert bits(back) == bits(made)
            assert same(back + back.scale(2.0), LogMoments.load(tmp_path / "made") + made.scale(2.0))


def test_columns_maps_are_what_they_were(tmp_path: Path) -> None:
    made = LogMoments.of(log(1), **MADE["columns"])
    made.save(tmp_path / "made", provenance={"site": "north"})
    assert isinstance(LogMoments.load(tmp_path / "made").features, Columns)
    assert repr(made) == "LogMoments(9 tasks, 200 rows)"
