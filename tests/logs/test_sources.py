import datetime as dt
from decimal import Decimal
from uuid import UUID

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sample_logs import ROLES, SOURCES, TABLE, N

from hieropo.errors import InputError, LogError, SchemaError
from hieropo.features.maps import indicator
from hieropo.logs.arrow.arrays import as_numpy
from hieropo.logs.arrow.log_source import LogSource
from hieropo.logs.opening import open_log
from hieropo.logs.reading import distinct_values, read
from hieropo.rows.batches import Roles

each_source = pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)


@each_source
class TestEverySource:
    def test_is_a_log_source(self, make, tmp_path):
        source = open_log(make(TABLE, tmp_path))
        assert isinstance(source, LogSource)
        assert set(source.schema.names) == set(TABLE.column_names)
        assert source.n_rows in (None, N)
        assert source.name
        assert open_log(source) is source

    def test_gives_only_the_columns_asked_for(self, make, tmp_path):
        for batch in open_log(make(TABLE, tmp_path)).batches(["w", "store"], 64):
            assert batch.schema.names == ["w", "store"]

    @pytest.mark.slow
    @pytest.mark.parametrize("rows", [1, 64, 65_536])
    def test_gives_the_same_batches(self, make, tmp_path, rows):
        table = TABLE.slice(0, 20) if rows == 1 else TABLE
        source = make(table, tmp_path)
        first = 0
        for batch in read(source, ROLES, batch_rows=rows):
            part = table.slice(first, rows)
            assert batch.first_row == first
            assert batch.roles == ROLES
            assert batch.task.tolist() == part["store"].to_pylist()
            assert {type(task) for task in batch.task} == {str}
            assert batch.action.dtype == np.int64
            for found, name in [
                (batch.action, "offer"),
                (batch.reward, "margin"),
                (batch.pscore, "p"),
                (batch.weight, "w"),
                (batch.context[:, 0], "age"),
                (batch.context[:, 1], "price"),
            ]:
                np.testing.assert_array_equal(found, part[name].to_numpy())
            first += len(batch)
        assert first == table.num_rows

    def test_can_be_read_again(self, make, tmp_path):
        source = open_log(make(TABLE, tmp_path), rereadable=True)
        assert source.rereadable
        assert distinct_values(source, "offer") == (0, 1, 2, 3, 4)
        assert len(distinct_values(source, "store")) == 30
        assert sum(len(batch) for batch in read(source, ROLES)) == N

    def test_survives_a_pass_that_was_broken_off(self, make, tmp_path):
        source = open_log(make(TABLE, tmp_path), rereadable=True)
        batches = read(source, ROLES, batch_rows=10)
        next(batches)
        batches.close()
        assert sum(len(batch) for batch in read(source, ROLES)) == N

    def test_names_the_row_of_a_null(self, make, tmp_path):
        margins = TABLE["margin"].to_pylist()
        margins[777] = None
        broken = TABLE.set_column(3, "margin", pa.array(margins, pa.float64()))
        with pytest.raises(LogError, match=r"'margin', (row|line) \d+( of '.*')?: (null|nan)"):
            list(read(make(broken, tmp_path), ROLES, batch_rows=100))

    def test_no_rows_are_an_error(self, make, tmp_path):
        with pytest.raises(LogError, match="has no rows"):  # noqa: PT012  # some sources see it only while reading
            source = open_log(make(TABLE.slice(0, 0), tmp_path))
            list(read(source, ROLES))

    def test_a_missing_column_is_named_before_reading(self, make, tmp_path):
        with pytest.raises(
            SchemaError, match=r"'Margins' \(role reward\) is not in .* Did you mean 'margin'\?"
        ):
            read(make(TABLE, tmp_path), Roles("store", "offer", "Margins"))


def test_a_stream_is_read_once_unless_it_is_kept():
    source = open_log(TABLE.to_reader())
    assert not source.rereadable
    distinct_values(source, "offer")
    again = read(source, ROLES)
    with pytest.raises(InputError, match="rereadable=True"):
        next(again)


def test_every_source_gives_equal_batches_to_the_last_bit(tmp_path):
    sums = set()
    for name, make in SOURCES.items():
        folder = tmp_path / name
        folder.mkdir()
        sums.add(
            tuple(float(batch.reward.sum()) for batch in read(make(TABLE, folder), ROLES, batch_rows=128))
        )
    assert len(sums) == 1


TIMES = {
    "date": (pa.array([dt.date(2024, 5, 6), dt.date(2024, 5, 7)]), 1),
    "seconds": (pa.array([1, 2], pa.timestamp("s")), 1),
    "with a zone": (pa.array([1, 3], pa.timestamp("ns", tz="Europe/Amsterdam")), 2),
    "dictionary": (pa.array([5, 9], pa.timestamp("s")).dictionary_encode(), 4),
    "whole number": (pa.array([5, 9]), 4),
    "number": (pa.array([0.5, 1.0]), 0.5),
}


@pytest.mark.parametrize(("column", "apart"), TIMES.values(), ids=TIMES)
def test_a_time_is_read_as_a_number_or_an_instant(column, apart):
    table = pa.table({"s": ["a", "b"], "r": [1.0, 2.0], "when": column})
    (batch,) = read(table, Roles("s", None, "r", time="when"))
    assert batch.time.dtype.kind in "Mf"
    assert (batch.time[1] - batch.time[0]).astype(float) == apart


def test_a_time_that_cannot_be_used_says_why():
    roles = Roles("s", None, "r", time="when")
    with pytest.raises(
        SchemaError, match=r"'when' .* string, which cannot be a time: .* Convert text to a date"
    ):
        read(pa.table({"s": ["a"], "r": [1.0], "when": ["2024-01-01"]}), roles)
    with pytest.raises(LogError, match="'when', row 1: null"):
        list(read(pa.table({"s": ["a", "b"], "r": [1.0, 2.0], "when": [dt.date(2024, 1, 1), None]}), roles))


STAMP = dt.datetime(2024, 5, 6, 7, 8, 9, 10)
ID_COLUMNS = {
    "string": (pa.array(["b", "a"]), ["b", "a"]),
    "large string": (pa.array(["b", "a"], pa.large_string()), ["b", "a"]),
    "string view": (pa.array(["b", "a"]).cast(pa.string_view()), ["b", "a"]),
    "dictionary": (pa.array(["b", "a"]).dictionary_encode(), ["b", "a"]),
    "dictionary of ints": (pa.array([2, 1]).dictionary_encode(), [2, 1]),
    "int8": (pa.array([2, -1], pa.int8()), [2, -1]),
    "uint32": (pa.array([2, 1], pa.uint32()), [2, 1]),
    "uint64": (pa.array([2**64 - 1, 1], pa.uint64()), [2**64 - 1, 1]),
    "bool": (pa.array([True, False]), [True, False]),
    "float": (pa.array([1.5, -0.5]), [1.5, -0.5]),
    "float32": (pa.array([1.5, -0.5], pa.float32()), [1.5, -0.5]),
    "date": (
        pa.array([dt.date(2024, 1, 2), dt.date(2024, 1, 1)]),
        [dt.date(2024, 1, 2), dt.date(2024, 1, 1)],
    ),
    "date64": (pa.array([dt.date(2024, 1, 2)] * 2, pa.date64()), [dt.date(2024, 1, 2)] * 2),
    "timestamp": (pa.array([STAMP, STAMP], pa.timestamp("us")), [STAMP, STAMP]),
    "timestamp ns": (pa.array([STAMP, STAMP], pa.timestamp("ns")), [STAMP, STAMP]),
    "timestamp with zone": (
        pa.array([STAMP, STAMP], pa.timestamp("ns", tz="UTC")),
        [STAMP.replace(tzinfo=dt.UTC)] * 2,
    ),
    "uuid": (pa.array([UUID(int=2).bytes, UUID(int=1).bytes], pa.uuid()), [UUID(int=2), UUID(int=1)]),
    "16 bytes": (pa.array([UUID(int=2).bytes] * 2, pa.binary(16)), [UUID(int=2).bytes] * 2),
    "decimal": (pa.array([Decimal("1.50"), Decimal("0.25")]), [Decimal("1.50"), Decimal("0.25")]),
    "whole decimal": (pa.array([Decimal(10**20), Decimal(1)], pa.decimal128(38, 0)), [10**20, 1]),
}


@pytest.mark.parametrize(("column", "expected"), ID_COLUMNS.values(), ids=ID_COLUMNS)
def test_ids_come_back_as_they_went_in(column, expected, tmp_path):
    table = pa.table({"id": column, "r": [0.0, 1.0]})
    sources = [table]
    if "view" not in str(column.type):
        pq.write_table(table, tmp_path / "log.parquet")
        sources.append(tmp_path / "log.parquet")
    for source in sources:
        (batch,) = read(source, Roles("id", None, "r"))
        if batch.task.dtype.kind != "M":
            assert batch.task.tolist() == expected
            assert [type(task) for task in batch.task.tolist()] == [type(task) for task in expected]
        assert batch.task.dtype in (np.int64, np.uint64, object) or batch.task.dtype.kind == "M"
        found = distinct_values(source, "id")
        assert found == tuple(sorted(set(expected)))
        assert [type(value) for value in found] == [type(expected[0])] * len(found)
        np.testing.assert_array_equal(
            indicator(found).action_codes(batch.task), [found.index(v) for v in expected]
        )


NUMBER_COLUMNS = {
    "int8": pa.array([1, 0], pa.int8()),
    "uint64": pa.array([1, 0], pa.uint64()),
    "float32": pa.array([1, 0], pa.float32()),
    "float16": pa.array(np.array([1, 0], dtype=np.float16)),
    "bool": pa.array([True, False]),
    "decimal": pa.array([Decimal("1.0"), Decimal("0.0")]),
    "dictionary": pa.array([1.0, 0.0]).dictionary_encode(),
}


@pytest.mark.parametrize("column", NUMBER_COLUMNS.values(), ids=NUMBER_COLUMNS)
def test_numbers_of_every_type_are_read(column):
    table = pa.table({"s": ["a", "b"], "r": column, "x": column, "w": column})
    (batch,) = read(table, Roles("s", None, "r", weight="w", context=("x",)))
    for found in (batch.reward, batch.weight, batch.context[:, 0]):
        np.testing.assert_array_equal(found, [1.0, 0.0])


def test_a_column_may_be_the_task_and_a_context():
    (batch,) = read(pa.table({"hour": [3, 4], "r": [1.0, 2.0]}), Roles("hour", None, "r", context=("hour",)))
    assert batch.task.tolist() == batch.context[:, 0].tolist() == [3, 4]


def test_dictionary_entries_that_no_row_uses_do_not_matter():
    unused = pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int8()), pa.array(["a", None, "c"]))
    (batch,) = read(pa.table({"s": unused, "r": [1.0, 2.0]}), Roles("s", None, "r"))
    assert batch.task.tolist() == ["a", "a"]
    used = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 0], pa.int8()), pa.array(["a", None, "c"]))
    with pytest.raises(LogError, match="'s', row 1: null"):
        list(read(pa.table({"s": used, "r": [1.0, 2.0, 3.0, 4.0]}), Roles("s", None, "r")))


def test_dictionaries_that_do_not_fit_together_are_joined():
    parts = []
    for part in range(3):
        names = pa.array([f"{part}-{i}" for i in range(100)])
        codes = pa.array(np.arange(100), pa.int8())
        column = pa.DictionaryArray.from_arrays(codes, names)
        parts.append(pa.table({"s": column, "r": np.arange(100.0)}))
    (batch,) = read(pa.concat_tables(parts), Roles("s", None, "r"))
    assert len(set(batch.task)) == 300


def table_with(**columns):
    base = {"s": ["a", "b", "c"], "a": [1, 2, 1], "r": [1.0, 2.0, 3.0], "p": [0.5] * 3, "x": [1.0, 2.0, 3.0]}
    return pa.table({**base, **columns})


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("s", ["a", None, "b"], "'s', row 1: null.*drop such rows"),
        ("a", [1, 2, None], "'a', row 2: null"),
        ("a", pa.array([1.0, float("nan"), 2.0]), "'a', row 1: the id is NaN"),
        ("r", pa.nulls(3), r"'r', row 0: null \(and 2 more in this batch of 3 rows\)"),
        ("r", pa.array([1.0, float("nan"), 2.0]), "'r', row 1: nan is not a reward"),
        ("p", [0.5, 0.0, 1.0], "'p', row 1: 0.0 is the propensity"),
        ("p", [0.5, 0.5, 1.5], "'p', row 2: 1.5 is a propensity above 1"),
        ("p", [0.5, None, 1.0], "'p', row 1: null"),
        ("x", [1.0, float("inf"), 2.0], "'x', row 1: inf is not a context"),
        ("x", [1, 2**53 + 1, 2], r"'x', row 1: 9007199254740993 is above 2\*\*53.*Is it an id"),
        ("s", pa.array([1, 2, 3], pa.timestamp("ns", tz="UTC")), "finer than a microsecond"),
    ],
)
def test_rows_that_cannot_be_used(column, values, message):
    with pytest.raises(LogError, match=message):
        list(read(table_with(**{column: values}), Roles("s", "a", "r", "p", context=("x",))))


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        (
            "r",
            ["1", "2", "3"],
            "'r' of the Arrow table is of Arrow type string, which cannot be a reward: a number",
        ),
        (
            "r",
            [[1.0], [2.0], [3.0]],
            "type list<.*>, which cannot be a reward.*Give each of its entries a column",
        ),
        ("r", [STAMP] * 3, "type timestamp.*which cannot be a reward"),
        ("x", pa.array(["u", "v", "u"]).dictionary_encode(), "type dictionary<.*which cannot be a context"),
        ("x", ["u", "v", "u"], "string, which cannot be a context.*as a category by a formula"),
        ("x", [STAMP] * 3, "which cannot be a context.*such as the hour"),
        ("x", [[1.0]] * 3, "which cannot be a context.*a column of its own"),
        ("p", ["high"] * 3, "string, which cannot be a pscore"),
        ("s", [[1]] * 3, "type list<.*which cannot be a task: an id"),
        ("a", [{"k": 1}] * 3, "type struct<.*which cannot be an action"),
        ("a", [dt.timedelta(1)] * 3, "type duration.*which cannot be an action"),
    ],
)
def test_types_that_cannot_play_a_role(column, values, message):
    with pytest.raises(SchemaError, match=message):
        read(table_with(**{column: values}), Roles("s", "a", "r", "p", context=("x",)))


def test_missing_and_doubled_columns():
    table = table_with()
    with pytest.raises(
        SchemaError, match=r"'price' \(role context\) is not in the Arrow table. Its columns: 's', 'a'"
    ):
        read(table, Roles("s", "a", "r", context=("price",)))
    with pytest.raises(SchemaError, match=r"'S' .* Did you mean 's'\?"):
        read(table, Roles("S", "a", "r"))
    doubled = pa.Table.from_arrays([pa.array(["a"]), pa.array([1.0]), pa.array([2.0])], names=["s", "r", "r"])
    with pytest.raises(SchemaError, match=r"has 2 columns named 'r' \(role reward\), at positions \[1, 2\]"):
        read(doubled, Roles("s", None, "r"))


def test_distinct_values_that_cannot_be_compared_keep_their_order():
    table = pa.table({"a": pa.array(["b", "a"]), "n": [None, 1]})
    assert distinct_values(table, "a") == ("a", "b")
    with pytest.raises(LogError, match="'n', row 0: null"):
        distinct_values(table, "n")
    with pytest.raises(SchemaError, match="role action"):
        distinct_values(table, "z")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("select * from log", r"'select \* from log' looks like SQL.*duckdb\.sql\(query\)"),
        ("  WITH a AS (SELECT 1) SELECT * FROM a", "looks like SQL"),
        ("from log", "looks like SQL"),
        ("s3://bucket/log.parquet", "is a URL.*pyarrow.dataset"),
        ("", "path of the log is empty"),
        (duckdb.connect(), r"connection\.sql\(query\)"),
        ({"a": [1]}, r"pyarrow\.table\(columns\)"),
        ([{"a": 1}], r"from_pylist\(rows\)"),
        (np.zeros((2, 2)), "numpy.ndarray is not a source of rows. It may be a path"),
        (None, "NoneType is not a source"),
        (3, "This int is not a source"),
    ],
)
def test_what_is_no_source_of_rows(source, message):
    with pytest.raises(InputError, match=message):
        open_log(source)


@pytest.mark.parametrize(
    "source", [pd.Series([1, 2]), pl.Series([1, 2]), pd.DataFrame({"a": [1, "x", b"y"]})]
)
def test_what_cannot_be_turned_into_arrow(source):
    with pytest.raises(SchemaError, match="cannot be turned into an Arrow table"):
        open_log(source)


def test_a_column_of_pandas_with_values_of_several_types_is_named_with_the_way():
    with pytest.raises(SchemaError, match=r"; Conversion failed for column offer .*\.astype\('string'\)"):
        open_log(pd.DataFrame({"store": [1, 2, 3], "offer": ["a", 7, "b"]}))


def test_a_frame_without_rows_is_named_in_words_that_fit_requests_too():
    with pytest.raises(LogError, match=r"has no rows\. Is it the right one"):
        open_log(pd.DataFrame({"store": [], "offer": []}))


def test_duckdb_reads_only_the_columns_that_are_needed():
    relation = duckdb.connect().sql(
        'select i as "a ""b""", i * 2.0 as r, error(\'read\') as bad from range(10) t(i)'
    )
    (batch,) = read(relation, Roles('a "b"', None, "r"))
    assert batch.task.tolist() == list(range(10))


@pytest.mark.parametrize(
    "kind", ["int8", "uint16", "int32", "uint64", "int64", "float32", "float64", "bool_"]
)
def test_numbers_in_place_are_those_of_arrow(kind: str) -> None:
    whole = pa.array(np.arange(21) % 3).cast(getattr(pa, kind)())
    for start, stop in ((0, 21), (0, 0), (1, 21), (7, 9), (8, 16), (9, 20)):
        part = whole.slice(start, stop - start)
        np.testing.assert_array_equal(as_numpy(part), part.to_numpy(zero_copy_only=False))
        assert as_numpy(part).dtype == part.to_numpy(zero_copy_only=False).dtype
    some = pa.array([1, None, 2], pa.int32())
    np.testing.assert_array_equal(as_numpy(some), [1.0, np.nan, 2.0])
