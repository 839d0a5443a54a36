"""The pass over a log: parts, lanes, what it goes on from, and which error is raised."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hieropo.core.features import Columns, per_action
from hieropo.core.logs import Roles
from hieropo.core.statistics import Moments
from hieropo.errors import LogError
from hieropo.placement import Placement
from hieropo.sources import open_log, read
from hieropo.sources.log_source import parts_of
from hieropo.summing import sums

ROLES = Roles("store", "offer", "margin", weight="w", context=("age", "price"))
FEATURES = per_action(["a", "b", "c"], ["age", "price"])


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
    monkeypatch.setattr("hieropo.sources.parquet._PART_ROWS", 1)


def by_definition(table: pa.Table, roles: Roles = ROLES, features=FEATURES) -> Moments:
    (batch,) = read(table, roles, batch_rows=2**30)
    codes = None if features.actions is None else features.action_codes(batch.action)
    phi = features.phi(batch.context, codes)
    return Moments.from_arrays(batch.task, phi, batch.reward, batch.weight, features=features.fingerprint)


def same_bits(one, other) -> bool:
    a, b = one.moments, other.moments
    return (
        a.tasks.tolist() == b.tasks.tolist()
        and a.sums.tobytes() == b.sums.tobytes()
        and a.rows.tobytes() == b.rows.tobytes()
        and a.log_weight.tobytes() == b.log_weight.tobytes()
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
@pytest.mark.parametrize("apart", [False, True])
def test_any_number_of_lanes_gives_the_sums_of_all_rows(tmp_path, threads, apart):
    table = log_table()
    path = folder_of(tmp_path / "log", [table.slice(0, 1700), table.slice(1700)])
    found = sums(path, FEATURES, ROLES, threads=threads, apart=apart)
    moments = found.moments.dense() if apart else found.moments
    assert moments.allclose(by_definition(table), rtol=1e-12)
    assert same_bits(found, sums(path, FEATURES, ROLES, threads=threads, apart=apart))
    assert found.sketch.to_dict() == sums(table, FEATURES, ROLES).sketch.to_dict()


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("apart", [False, True])
def test_a_pass_goes_on_from_any_file_to_the_same_bits(tmp_path, threads, apart):
    table = log_table()
    path = folder_of(tmp_path / "log", [table.slice(k * 1250, 1250) for k in range(4)])
    states = []
    whole = sums(
        path, FEATURES, ROLES, threads=threads, apart=apart, after_file=lambda *at: states.append(at)
    )
    assert [files for files, _ in states] == [1, 2, 3, 4]
    assert same_bits(whole, sums(path, FEATURES, ROLES, threads=threads, apart=apart))
    for state in states:
        later = []
        again = sums(path, FEATURES, ROLES, apart=apart, start=state, after_file=lambda *at: later.append(at))  # noqa: B023
        assert same_bits(whole, again)
        assert [files for files, _ in later] == [1, 2, 3, 4][state[0] :]
        assert same_bits(whole, sums(path, FEATURES, ROLES, apart=apart, start=state))


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
        whole = sums(path, FEATURES, ROLES, threads=2, after_file=lambda *at: states.append(at))  # noqa: B023
        assert whole.moments.allclose(by_definition(table))
        assert same_bits(whole, sums(path, FEATURES, ROLES, start=states[0]))


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_first_bad_row_is_named_however_many_threads_read(tmp_path, threads):
    margin = np.zeros(5000)
    margin[[2700, 2200, 4999]] = np.nan
    table = log_table(margin=margin)
    path = folder_of(tmp_path / "log", [table.slice(0, 1700), table.slice(1700)])
    with pytest.raises(LogError, match="'margin', row 2200: nan") as caught:
        sums(path, FEATURES, ROLES, threads=threads)
    assert any("1.parquet" in note for note in caught.value.__notes__)


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
    expected = Placement(roles)
    for batch in read(table, roles):
        expected.add(batch)
    found = sums(folder_of(tmp_path / "log", [table]), FEATURES, roles, threads=3)
    assert found.placement.levels() == expected.levels()
    metadata, known = found.placement.metadata(), expected.metadata()
    place = known.tasks.locate(metadata.tasks.values)
    assert np.array_equal(metadata.values, known.values[place])


def test_placements_that_differ_do_not_add():
    roles = Roles("store", None, "margin", context=("age",), levels=("region",), metadata=("size",))
    one = Placement.of(roles, [{"s": "north"}], {"s": [1.0]})
    assert (one + one).levels() == {"region": {"s": "north"}}
    with pytest.raises(LogError, match="'s' of column 'store' is in 'south' here and was in 'north' before"):
        one + Placement.of(roles, [{"s": "south"}], {})
    with pytest.raises(LogError, match=r"Column 'size': 2.0 for task 's', of which an earlier row has 1.0"):
        one + Placement.of(roles, [{}], {"s": [2.0]})


def test_rows_of_weight_0_alone_and_no_rows_are_refused():
    with pytest.raises(LogError, match="the weight is 0 in every row"):
        sums(log_table(10, w=np.zeros(10)), FEATURES, ROLES)
    reader = log_table(10).slice(0, 0).to_reader()
    with pytest.raises(LogError, match="Arrow stream has no rows"):
        sums(reader, Columns(("age",)), Roles("store", None, "margin", context=("age",)))
