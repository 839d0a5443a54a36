"""The pass over a log: parts, lanes, what it goes on from, and which error is raised."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hieropo.errors import HieropoWarning, LogError, UnknownActionError
from hieropo.features.maps import Columns, Crossed, embedding, indicator, per_action
from hieropo.logs.arrow.log_source import parts_of
from hieropo.logs.bad_rows.rejects import Rejects
from hieropo.logs.opening import open_log
from hieropo.logs.reading import read
from hieropo.model.task_levels import TaskLevels
from hieropo.moments.accumulation import Accumulator
from hieropo.moments.column_pass import ColumnPass
from hieropo.moments.statistics import Moments
from hieropo.passes.summing import _tasks_of_log, sums
from hieropo.rows.batches import Roles
from hieropo.rows.keys import GrowingKeys
from hieropo.rows.texts import Text, Texts

ROLES = Roles("store", "offer", "margin", weight="w", context=("age", "price"))
FEATURES = per_action(["a", "b", "c"], ["age", "price"])


@pytest.fixture(autouse=True)
def from_the_first_row(monkeypatch):
    """Rows are read in place from the first one on."""
    monkeypatch.setattr("hieropo.passes.worker._FEW", 0)


def log_table(n: int = 5000, seed: int = 0, **columns) -> pa.Table:
    rng = np.random.default_rng(seed)
    store = rng.integers(0, 40, n)
    found = {
        "store": [f"store {k}" for k in store],
        "region": [f"region {k % 4}" for k in store],
        "size": (store % 7).astype(float),
        "offer": np.array(["a", "b", "c"])[rng.integers(0, 3, n)],
        "age": pa.array(rng.integers(18, 90, n), pa.int16()),
        "price": pa.array(rng.standard_normal(n), pa.float32()),
        "margin": rng.standard_normal(n),
        "w": rng.uniform(0.5, 2.0, n),
    }
    return pa.table(found | columns)


def folder_of(path, tables, group=500):
    path.mkdir()
    for k, table in enumerate(tables):
        pq.write_table(table, path / f"{k}.parquet", row_group_size=group)
    return path


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr("hieropo.logs.formats.parquet._PART_ROWS", 1)


def by_definition(table: pa.Table, roles: Roles = ROLES, features=FEATURES) -> Moments:
    (batch,) = read(table, roles, batch_rows=2**30)
    codes = None if features.actions is None else features.action_codes(batch.action)
    phi = features.phi(batch.context, codes)
    return Moments.from_arrays(batch.task, phi, batch.reward, batch.weight, features=features.fingerprint)


def states_of(held: list):
    return lambda files, lanes: held.append((files, list(lanes)))


def same_bits(one, other) -> bool:
    a, b = one.moments, other.moments
    return (
        a.tasks.tolist() == b.tasks.tolist()
        and a.sums.tobytes() == b.sums.tobytes()
        and a.rows.tobytes() == b.rows.tobytes()
        and a.log_precision.tobytes() == b.log_precision.tobytes()
        and one.sketch.to_dict() == other.sketch.to_dict()
    )


@pytest.mark.usefixtures("small_parts")
def test_parts_are_the_rows_of_the_log_in_order(tmp_path):
    table = log_table()
    source = open_log(folder_of(tmp_path / "log", [table.slice(0, 1700), table.slice(1700)]))
    parts = parts_of(source, ["price", "store"])
    assert [part.file for part in parts] == [0] * 4 + [1] * 7
    row, found = 0, []
    for part in parts:
        assert part.first_row == row
        rows = pa.Table.from_batches(list(part.batches()))
        assert rows.num_rows == part.n_rows
        row += part.n_rows
        found.append(rows)
    assert found[0].column_names == ["price", "store"]
    assert pa.concat_tables(found)["price"].to_pylist() == table["price"].to_pylist()
    assert [task for rows in found for task in rows["store"].to_pylist()] == table["store"].to_pylist()
    assert "row group 2 of" in parts[2].name
    assert "0.parquet" in parts[2].name


def test_small_row_groups_are_joined_within_a_file(tmp_path):
    source = open_log(folder_of(tmp_path / "log", [log_table(900), log_table(100)], group=100))
    names = [part.name.split(" of ")[0] for part in parts_of(source, ["store"])]
    assert names == ["row groups 0 to 8", "row group 0"]


def test_a_source_without_parts_is_one_part():
    table = log_table(10)
    (part,) = parts_of(open_log(table), ["age"])
    assert (part.file, part.first_row, part.n_rows) == (0, 0, 10)
    assert pa.Table.from_batches(list(part.batches())) == table.select(["age"])


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("per_action", [False, True])
def test_any_number_of_lanes_gives_the_sums_of_all_rows(tmp_path, threads, per_action):
    table = log_table()
    path = folder_of(tmp_path / "log", [table.slice(0, 1700), table.slice(1700)])
    found = sums(path, FEATURES, ROLES, threads=threads, per_action=per_action)
    moments = found.moments.dense() if per_action else found.moments
    assert moments.allclose(by_definition(table), rtol=1e-12)
    assert same_bits(found, sums(path, FEATURES, ROLES, threads=threads, per_action=per_action))
    assert found.sketch.to_dict() == sums(table, FEATURES, ROLES).sketch.to_dict()


@pytest.mark.slow
@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("per_action", [False, True])
def test_a_pass_goes_on_from_any_file_to_the_same_bits(tmp_path, threads, per_action):
    table = log_table()
    path = folder_of(tmp_path / "log", [table.slice(k * 1250, 1250) for k in range(4)])
    states = []
    whole = sums(
        path,
        FEATURES,
        ROLES,
        threads=threads,
        per_action=per_action,
        after_file=states_of(states),
    )
    assert [files for files, _ in states] == [1, 2, 3, 4]
    assert same_bits(whole, sums(path, FEATURES, ROLES, threads=threads, per_action=per_action))
    for state in states:
        later = []
        again = sums(
            path,
            FEATURES,
            ROLES,
            per_action=per_action,
            start=state,
            after_file=states_of(later),
        )
        assert same_bits(whole, again)
        assert [files for files, _ in later] == [1, 2, 3, 4][state[0] :]
        assert same_bits(whole, sums(path, FEATURES, ROLES, per_action=per_action, start=state))


@pytest.mark.usefixtures("small_parts")
def test_numbers_beyond_any_table_go_on_to_the_same_bits(tmp_path):
    numbers = np.random.default_rng(1).integers(-(2**62), 2**62, 40)[np.arange(5000) % 40]
    kinds = (pa.array(numbers), pa.array(np.arange(5000) % 90), pa.array(numbers, pa.timestamp("us")))
    for k, tasks in enumerate(kinds):
        table = log_table(store=tasks)
        path = folder_of(
            tmp_path / f"log {k}",
            [table.slice(0, 2000), table.slice(2000)],
        )
        states = []
        whole = sums(path, FEATURES, ROLES, threads=2, after_file=states_of(states))
        assert whole.moments.allclose(by_definition(table))
        assert same_bits(whole, sums(path, FEATURES, ROLES, start=states[0]))


def test_tasks_of_a_log_are_estimated_from_some_rows():
    rng = np.random.default_rng(0)
    for tasks in (100, 3_000, 40_000):
        distinct = np.unique(rng.integers(0, tasks, 20_000)).size
        assert _tasks_of_log(distinct, 20_000, 1_000_000) == pytest.approx(tasks, rel=0.05)
    assert _tasks_of_log(20_000, 20_000, 1_000_000) == pytest.approx(1_000_000)  # each row may be a task
    assert _tasks_of_log(1, 1, 1) == 1


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(("tasks", "workers"), [(3000, 1), (150, 2), (20, 3)])
def test_tasks_with_few_rows_have_fewer_workers_and_the_same_sums(tmp_path, monkeypatch, tasks, workers):
    monkeypatch.setattr("hieropo.passes.summing._LARGE", 0)
    store = pa.array(np.random.default_rng(3).integers(0, tasks, 5000))
    table, states = log_table(store=store), []
    path = folder_of(tmp_path / "log", [table.slice(k * 1250, 1250) for k in range(4)], group=1000)
    whole = sums(path, FEATURES, ROLES, threads=3, after_file=states_of(states))
    assert {len(state) for _, state in states} == {workers}
    assert whole.moments.allclose(by_definition(table), rtol=1e-12)
    assert same_bits(whole, sums(path, FEATURES, ROLES, threads=3))
    assert same_bits(whole, sums(path, FEATURES, ROLES, start=states[1]))


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("row", [0, 2, 4999])
def test_a_bad_row_is_named_where_batches_are_decoded_ahead(tmp_path, monkeypatch, row):
    monkeypatch.setattr("hieropo.passes.summing._LARGE", 0)
    margin = np.zeros(5000)
    margin[[row, -1]] = np.nan
    path = folder_of(tmp_path / "log", [log_table(store=pa.array(np.arange(5000)), margin=margin)])
    with pytest.raises(LogError, match=f"'margin', row {row}: nan"):
        sums(path, FEATURES, ROLES, threads=2)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_first_bad_row_is_named_however_many_threads_read(tmp_path, threads):
    margin = np.zeros(5000)
    margin[[2700, 2200, 4999]] = np.nan
    table = log_table(margin=margin)
    path = folder_of(tmp_path / "log", [table.slice(0, 1700), table.slice(1700)])
    with pytest.raises(LogError, match=r"'margin', row 500 of '.*1\.parquet': nan"):
        sums(path, FEATURES, ROLES, threads=threads)


@pytest.mark.usefixtures("small_parts")
def test_lanes_that_contradict_each_other_name_the_row(tmp_path):
    table = log_table(1000)
    region = table["region"].to_pylist()
    row = 600 + next(k for k, name in enumerate(region[600:]) if name == "region 1")
    region[row] = "elsewhere"
    roles = Roles("store", "offer", "margin", context=("age", "price"), levels=("region",))
    path = folder_of(tmp_path / "log", [log_table(1000, region=region)])
    with pytest.raises(
        LogError, match=f"'region', row {row}: 'store .*' of column 'store' is in 'elsewhere' here"
    ):
        sums(path, FEATURES, roles, threads=2)


@pytest.mark.usefixtures("small_parts")
def test_groups_and_metadata_of_all_lanes_are_found(tmp_path):
    table = log_table(2000)
    roles = Roles(
        "store", "offer", "margin", context=("age", "price"), levels=("region",), metadata=("size",)
    )
    expected = TaskLevels(roles)
    for batch in read(table, roles):
        expected.add(batch)
    found = sums(folder_of(tmp_path / "log", [table]), FEATURES, roles, threads=3)
    assert found.task_levels.levels() == expected.levels()
    metadata, known = found.task_levels.metadata(), expected.metadata()
    place = known.tasks.locate(metadata.tasks.values)
    assert np.array_equal(metadata.values, known.values[place])


def test_placements_that_differ_do_not_add():
    roles = Roles("store", None, "margin", context=("age",), levels=("region",), metadata=("size",))
    one = TaskLevels.of(roles, [{"s": "north"}], {"s": [1.0]})
    assert (one + one).levels() == {"region": {"s": "north"}}
    with pytest.raises(
        LogError, match="'s' of column 'store' is in 'south' here and in 'north' in an earlier row"
    ):
        one + TaskLevels.of(roles, [{"s": "south"}], {})
    with pytest.raises(LogError, match=r"Column 'size': 2.0 for task 's', and 1.0 in an earlier row"):
        one + TaskLevels.of(roles, [{}], {"s": [2.0]})


def test_rows_of_weight_0_alone_and_no_rows_are_refused():
    with pytest.raises(LogError, match="the weight, is 0 in every row"):
        sums(log_table(10, w=np.zeros(10)), FEATURES, ROLES)
    reader = log_table(10).slice(0, 0).to_reader()
    with pytest.raises(LogError, match="Arrow stream has no rows"):
        sums(reader, Columns(("age",)), Roles("store", None, "margin", context=("age",)))


def without_places(monkeypatch):
    """Let every row become part of a batch."""
    monkeypatch.setattr("hieropo.passes.worker.in_place", lambda *_: None)


TASKS = {
    "text": lambda k: pa.array([f"store {i}" for i in k]),
    "large text": lambda k: pa.array([f"größe {i}" for i in k], pa.large_string()),
    "text view": lambda k: pa.array([f"a store with a long name, number {i}" for i in k], pa.string_view()),
    "dictionary": lambda k: pa.array([f"store {i}" for i in k]).dictionary_encode(),
    "dictionary of numbers": lambda k: pa.array(k).dictionary_encode(),
    "int8": lambda k: pa.array(k, pa.int8()),
    "negative": lambda k: pa.array(-k * 2**50, pa.int64()),
    "uint64": lambda k: pa.array(k.astype(np.uint64) + np.uint64(2**63), pa.uint64()),
    "date": lambda k: pa.array(k.astype(np.int32), pa.date32()),
    "float": lambda k: pa.array(k / 2.0),
    "uuid": lambda k: pa.array([int(i).to_bytes(16) for i in k], pa.binary(16)).cast(pa.uuid()),
}
NUMBERS = [
    pa.float64(), pa.float32(), pa.float16(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(),
    pa.uint32(), pa.uint64(), pa.bool_(),
]  # fmt: skip


@pytest.mark.parametrize("kind", TASKS)
def test_rows_in_place_give_what_batches_give(kind, monkeypatch, tmp_path):
    rng = np.random.default_rng(3)
    table = log_table(store=TASKS[kind](rng.integers(0, 40, 5000)))
    path = folder_of(tmp_path / "log", [table.slice(0, 1700), table.slice(1700)])
    found = sums(path, FEATURES, ROLES, threads=1)
    assert found.moments.allclose(by_definition(table), rtol=1e-12)
    without_places(monkeypatch)
    other = sums(path, FEATURES, ROLES, threads=1)
    assert other.moments.allclose(found.moments, rtol=1e-13)
    assert other.sketch.to_dict() == found.sketch.to_dict()


@pytest.mark.parametrize("kind", NUMBERS, ids=str)
def test_columns_of_every_type_are_read_in_place(kind, monkeypatch):
    rng = np.random.default_rng(4)
    values = pa.array(rng.integers(0, 2, 5000).astype(float)).cast(kind)
    table = log_table(price=values, margin=values, age=pa.array(rng.integers(0, 100, 5000), pa.uint8()))
    roles = Roles("store", "offer", "margin", pscore="w", context=("age", "price"), time="size")
    table = table.set_column(table.schema.get_field_index("w"), "w", pa.array(rng.uniform(0.1, 1.0, 5000)))
    monkeypatch.setattr("hieropo.passes.worker.checked_batch", None)  # no row needs a look
    found = sums(table.slice(3), FEATURES, roles)
    assert found.moments.allclose(by_definition(table.slice(3), roles), rtol=1e-12)


MAPS = {
    "columns": Columns(("age", "price")),
    "columns from an origin": Columns(("age", "price"), origin=(50.0, -3.0), reference_column="age"),
    "per action": FEATURES,
    "per action from an origin": Crossed(("a", "b", "c"), None, ("age", "price"), origin=(50.0, 0.5)),
    "without an intercept": per_action(["c", "a", "b"], ["age", "price"], intercept=False),
    "embedding": embedding(["a", "b", "c"], [[1.0, 2.0], [0.0, -1.0], [0.5, 0.25]], ["age", "price"]),
    "embedding without an intercept": embedding(
        ["a", "b", "c"], [[1.0, 2.0], [0.0, -1.0], [0.5, 0.25]], ["age", "price"], intercept=False
    ),
    "embedding alone": embedding(["a", "b", "c"], [[1.0, 2.0, 3.0], [0.0, -1.0, 1.0], [0.5, 0.25, 0.0]]),
    "indicator": indicator(["a", "b", "c"]),
}


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("weight", ["w", None])
def test_every_map_is_summed_in_place(name, weight, monkeypatch):
    features, table = MAPS[name], log_table()
    action = None if features.actions is None else "offer"
    roles = Roles("store", action, "margin", weight=weight, context=features.columns)
    monkeypatch.setattr("hieropo.passes.worker.checked_batch", None)
    found = sums(table, features, roles)
    assert found.moments.allclose(by_definition(table, roles, features), rtol=1e-12)


@pytest.mark.parametrize("d", [1, 2, 3, 5, 6, 7, 11, 14, 15, 16, 33])
def test_any_number_of_features_is_summed(d):
    rng = np.random.default_rng(d)
    columns = {f"x{j}": rng.standard_normal(700) for j in range(d)}
    table = pa.table(
        {"s": rng.integers(0, 9, 700), "r": rng.standard_normal(700), "w": rng.uniform(size=700)} | columns
    )
    roles, features = Roles("s", None, "r", weight="w", context=tuple(columns)), Columns(tuple(columns))
    expected = by_definition(table, roles, features)
    assert sums(table, features, roles).moments.allclose(expected, rtol=1e-13)
    total = Accumulator(d, features=features.fingerprint)
    for start in range(0, 700, 300):
        part = slice(start, start + 300)
        phi = np.column_stack([columns[name][part] for name in columns])
        total.add(table["s"].to_numpy()[part], phi, table["r"].to_numpy()[part], table["w"].to_numpy()[part])
    assert total.moments().allclose(expected, rtol=1e-13)


def test_weights_of_zero_count_for_nothing_and_keep_their_task():
    table = pa.table({"s": ["a", "b", "a"], "x": [1.0, 2.0, 3.0], "r": [1.0, 1.0, 2.0], "w": [2.0, 0.0, 0.0]})
    found = sums(table, Columns(("x",)), Roles("s", None, "r", weight="w", context=("x",))).moments
    assert found.tasks.tolist() == ["a", "b"]
    assert found.rows.tolist() == [2.0, 0.0]
    assert found.sums[0].tolist() == [2.0] * 6
    np.testing.assert_allclose(found.log_precision, [0.0, 0.0])


BAD = {
    "NaN": ("price", np.nan, "row 1234: nan is not a context"),
    "infinite reward": ("margin", np.inf, "row 1234: inf is not a reward"),
    "huge": ("margin", 1e80, "row 1234: 1e\\+80 is so large"),
    "weight": ("w", -1.0, "row 1234: -1.0 is a negative weight"),
    "null": ("price", None, "row 1234: null"),
    "rounded": ("age", 2**53 + 1, "row 1234: 9007199254740993 is above 2\\*\\*53"),
    "action": ("offer", "d", "'d' .row 1234. is unknown"),
    "task": ("store", None, "row 1234: null"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_row_is_found_among_good_ones(name):
    column, value, says = BAD[name]
    table = log_table()
    values = table[column].to_pylist()
    values[1234] = value
    with pytest.raises((LogError, UnknownActionError), match=says):
        sums(log_table(**{column: values}), FEATURES, ROLES)


@pytest.mark.parametrize("name", BAD)
def test_bad_rows_are_set_aside_and_the_others_summed(name):
    column, value, _ = BAD[name]
    bad = [0, 7, 130, 1234, 4999]
    values = log_table()[column].to_pylist()
    store = log_table()["store"].to_pylist()
    for row in bad:
        values[row], store[row] = value, f"only here {row}"
    table = log_table(**{"store": store, column: values})
    rejects = Rejects(features=FEATURES)
    with pytest.warns(HieropoWarning, match="5 of 5,000 rows"):
        found = sums(table, FEATURES, ROLES, rejects=rejects)
    good = np.setdiff1d(np.arange(5000), bad)
    assert found.moments.allclose(by_definition(table.take(good)), rtol=1e-12)
    assert rejects.rows == len(bad)


def test_texts_are_numbered_by_their_bytes():
    words = [
        "",
        "a",
        "b",
        "ab",
        "a" * 7,
        "a" * 8,
        "a" * 9,
        "a" * 17,
        "ä",
        "\0",
        "\0\0",
        "日本",
        "b" * 8 + "a" * 8,
    ]
    rng = np.random.default_rng(0)
    texts, seen = Texts(), {}
    for size in (1, 5, 200, 3000):
        batch = [f"{words[k]}{j}" for k, j in rng.integers([len(words), 90], size=(size, 2)).tolist()]
        expected = [seen.setdefault(word, len(seen)) for word in batch]
        assert texts.rows(Text.of(batch)).tolist() == expected
    assert texts.all_texts().strings() == list(seen)


def test_texts_that_differ_in_one_place_only_are_spread_over_the_table():
    for name in ("task-{:06d}", "{:03d} street 12345678", "{}", "user/{:05x}/visits-of-2024"):
        texts = Texts()
        texts.rows(Text.of([name.format(k) for k in range(5000)]))
        taken = np.flatnonzero(texts._slots)
        begin = taken[np.diff(taken, prepend=-2) > 1]
        runs = np.diff(np.append(np.searchsorted(taken, begin), taken.size))
        assert len(texts) == len({name.format(k) for k in range(5000)})
        assert (runs**2).sum() / runs.sum() < 4.0  # at random, in a table at most half full


def test_a_text_that_lies_badly_is_not_taken_for_ascii():
    data = np.frombuffer(b"abcdef", dtype=np.uint8)
    assert Text(data, np.array([0, 2, 6])).is_ascii_in_order
    assert Text(data, np.array([3, 3])).is_ascii_in_order
    for ends in ([0, 4, 2], [0, 2, 7], [-1, 2], [2, 1]):
        assert not Text(data, np.array(ends)).is_ascii_in_order
    assert not Text.of(["ab", "\u00e4"]).is_ascii_in_order


def test_sums_that_overflow_only_together_are_refused():
    lanes = []
    for task in ("a", "b"):
        lane = Accumulator(1)
        lane.add(["b", task], np.ones((2, 1)), [1e4, 1.0], [1e300, 1.0])
        lanes.append(lane)
    assert np.isfinite(lanes[0].moments().sums).all()
    for drop in (False, True):
        with pytest.raises(LogError, match="task 'b' are not finite"):
            Accumulator.together(lanes, drop=drop)


def test_places_stay_when_texts_meet_other_ids():
    places = GrowingKeys()
    assert places.rows_of_texts(Text.of(["x", "y"])).tolist() == [0, 1]
    assert places.rows_of_ids(np.array(["y", "z"], dtype=object)).tolist() == [1, 2]
    assert places.rows_of_ids(np.array([5, 6])).tolist() == [3, 4]
    assert places.rows_of_texts(Text.of(["z", "w"])).tolist() == [2, 5]
    assert places.rows_of_ids(np.array(["\ud800", "x"], dtype=object)).tolist() == [6, 0]
    assert places.keys().values.tolist() == ["x", "y", "z", 5, 6, "w", "\ud800"]


@pytest.fixture
def small_buffers(monkeypatch):
    """Rows go to buffers of few tasks, which are full again and again."""
    for name, value in {
        "_CACHE": 1000,
        "_BUFFER": 3000,
        "_MIN_BUFFERED": 30_000,
        "_MAX_BUFFERED": 30_000,
    }.items():
        monkeypatch.setattr(f"hieropo.moments.column_pass.{name}", value)


@pytest.mark.parametrize("price", [pa.float32(), pa.float64()], ids=str)
@pytest.mark.parametrize("weight", ["w", None])
def test_rows_in_buffers_give_the_same_bits_as_rows_added_at_once(price, weight, monkeypatch, request):
    table = log_table(20_000, price=pa.array(np.random.default_rng(5).standard_normal(20_000), price))
    narrow = price == pa.float32() and weight is None
    for column in ("margin", "w"):
        values = table[column].cast(pa.float32()).cast(pa.float32() if narrow else pa.float64())
        table = table.set_column(table.schema.get_field_index(column), column, values)
    roles = Roles("store", None, "margin", weight=weight, context=("age", "price"))
    batches = pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=3000))
    at_once = sums(table, Columns(("age", "price")), roles)
    request.getfixturevalue("small_buffers")
    emptied = []
    finish = ColumnPass.finish
    monkeypatch.setattr(
        ColumnPass, "finish", lambda self: (emptied.append(self._buffers.fill.sum()), finish(self))
    )
    buffered = sums(batches, Columns(("age", "price")), roles)
    assert any(emptied)
    assert same_bits(buffered, at_once)
    assert buffered.moments.allclose(by_definition(table, roles, Columns(("age", "price"))))


def test_texts_that_came_as_ids_go_on_as_bytes():
    places = GrowingKeys()
    assert places.rows_of_ids(np.array(["y", "x"], dtype=object)).tolist() == [0, 1]
    assert places.rows_of_texts(Text.of(["x", "z"])).tolist() == [1, 2]
    assert places.rows_of_ids(np.array(["z", "y", "w"], dtype=object)).tolist() == [2, 0, 3]
    assert places.keys().values.tolist() == ["y", "x", "z", "w"]
    half = GrowingKeys()
    assert half.rows_of_ids(np.array(["\ud800"], dtype=object)).tolist() == [0]
    assert half.rows_of_texts(Text.of(["x"])).tolist() == [1]


def test_a_lane_that_began_with_batches_goes_on_in_place(monkeypatch):
    monkeypatch.setattr("hieropo.passes.worker._FEW", 2000)
    monkeypatch.setattr("hieropo.passes.worker.BATCH_ROWS", 500)
    table = log_table()
    taken = []
    add = ColumnPass.add
    monkeypatch.setattr(
        ColumnPass, "add", lambda self, *given, **more: taken.append(add(self, *given, **more)) or taken[-1]
    )
    batches = pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=500))
    assert sums(batches, FEATURES, ROLES).moments.allclose(by_definition(table))
    assert sum(taken) == 3000
    taken.clear()
    assert sums(table, FEATURES, ROLES).moments.allclose(by_definition(table))
    assert sum(taken) == 5000  # its length is known
