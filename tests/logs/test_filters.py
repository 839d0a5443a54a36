"""Filters: what they mean, that every source keeps the same rows, and that what cannot pass is not read."""

import datetime as dt
import math

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_logs import ROLES, SOURCES, TABLE, csv_file, hive_folder

from hieropo.errors import InputError, LogError, SchemaError
from hieropo.logs.arrow.filters import bound_filter
from hieropo.logs.arrow.log_source import parts_of
from hieropo.logs.opening import open_log
from hieropo.logs.reading import read
from hieropo.rows.batches import Roles

WANTED = "offer in (1, 3) and margin > 0 and not store = 'store 7'"
EXPRESSION = pc.field("offer").isin([1, 3]) & (pc.field("margin") > 0) & (pc.field("store") != "store 7")


@pytest.mark.slow
@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("given", [WANTED, EXPRESSION], ids=["text", "expression"])
def test_every_source_keeps_the_same_rows(make, given, tmp_path):
    expected = TABLE.filter(EXPRESSION)
    source = open_log(make(TABLE, tmp_path), filter=given)
    assert source.n_rows in (None, expected.num_rows)
    assert "where" in source.name
    found = list(read(source, ROLES, batch_rows=64))
    assert [batch.first_row for batch in found] == list(range(0, expected.num_rows, 64))
    assert [task for batch in found for task in batch.task] == expected["store"].to_pylist()
    for name, values in [("margin", [b.reward for b in found]), ("price", [b.context[:, 1] for b in found])]:
        np.testing.assert_array_equal(np.concatenate(values), expected[name].to_numpy())


@pytest.mark.parametrize("make", [SOURCES["parquet folder"], SOURCES["csv folder"], SOURCES["ipc file"]])
def test_parts_hold_the_rows_that_pass(make, tmp_path):
    source = open_log(make(TABLE, tmp_path), filter="offer = 2")
    rows = 0
    for part in parts_of(source, ["store", "price"]):
        count = sum(batch.num_rows for batch in part.batches())
        assert part.first_row == rows
        assert part.n_rows in (0, count)
        rows += count
    assert rows == TABLE.filter(pc.field("offer") == 2).num_rows


VALUES = {
    "whole": [1, 2, None, -3],
    "number": [0.5, None, -1.0, 2.0],
    "text": ["a", "it's", None, ""],
    "flag": [True, None, False, True],
    "day": [dt.date(2026, 1, 31), None, dt.date(2026, 2, 1), dt.date(2025, 1, 1)],
    "time": [dt.datetime(2026, 1, 31, 10), None, dt.datetime(2026, 1, 31), dt.datetime(2027, 1, 1)],
    'odd "name"': [1, 1, 2, None],
}
LOG = pa.table({**VALUES, "n": [0, 1, 2, 3], "text_codes": pa.array(VALUES["text"]).dictionary_encode()})
MEANINGS = [
    ("whole = 1", [0]),
    ("whole != 1", [1, 3]),
    ("not whole <> 1", [0]),
    ("whole >= 1 and n > 0", [1]),
    ("whole > 1 or number < 0", [1, 2]),
    ("whole = 1 or whole = 2 and n = 0", [0]),
    ("(whole = 1 or whole = 2) and n = 1", [1]),
    ("NOT (whole = 1 OR n = 3)", [1]),
    ("number <= 5e-1", [0, 2]),
    ("whole between -3 and 1", [0, 3]),
    ("whole not between 0 and 1", [1, 3]),
    ("text in ('a', 'it''s')", [0, 1]),
    ("text not in ('a')", [1, 3]),
    ("text = ''", [3]),
    ("text_codes > 'a'", [1]),
    ("text is null", [2]),
    ("text is not null and not n = 0", [1, 3]),
    ("flag = true", [0, 3]),
    ("flag != TRUE", [2]),
    ("day >= '2026-01-31'", [0, 2]),
    ("day = '2026-01-31'", [0]),
    ("time < '2026-01-31 10:00:00'", [2]),
    ('"odd ""name""" == 1', [0, 1]),
    ("whole = 1.0", [0]),
    ("whole < 1.5", [0, 3]),
    ("n = -0", [0]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("text", "rows"), MEANINGS)
def test_what_a_filter_means(text, rows, tmp_path):
    plain = LOG.drop_columns(["text_codes"]).append_column("text_codes", pa.array(VALUES["text"]))
    pq.write_table(LOG, tmp_path / "log.parquet")
    relation = duckdb.connect().from_arrow(plain)
    for source in (LOG, tmp_path / "log.parquet", relation, pl.from_arrow(plain).lazy(), ds.dataset(LOG)):
        found = [n for batch in open_log(source, filter=text).batches(["n"]) for n in batch["n"].to_pylist()]
        assert found == rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"character 1, its end: the name of a column was expected"),
        ("whole", r"character 6, its end: =, !=, <, <=, >, >=, in, between or is"),
        ("whole =", "character 8, its end: a number"),
        ("whole = 1 n = 2", r"character 11, 'n': 'and' or 'or' or the end"),
        ("(whole = 1", r"'\)' was expected"),
        ("text = NL", r"'NL': a number, .*write a text in single quotes, 'NL'"),
        ("text = 'NL", "character 8, .*a name, a number"),
        ("whole in 1", r"character 10, '1': '\(' was expected"),
        ("whole is 1", "'null' was expected"),
        ("whole + 1 = 2", r"character 7, '\+ 1 = 2'"),
        ("1 = whole", "the name of a column was expected"),
        ("whole = 1;", "character 10, ';'"),
        ("whole like 'a%'", "'like': =, !="),
        (
            "day > '2026-13-01'",
            "column 'day' of the .*, of type date32.*'2026-13-01'.*of another type.*Write a date as",
        ),
        ("day > 20260101", "column 'day'.* with 20260101"),
        ("whole = 'x'", "column 'whole' of the Arrow table, of type int64, with 'x'"),
        ("text = 7", "column 'text'.* with 7.* Write '7', in quotes"),
        ("whole = true", "column 'whole'.* with True"),
        ("flag = 1", "column 'flag'.* with 1"),
        (3, "A filter is a text such as"),
        (pc.field("whole"), "does not fit the types of the columns of the Arrow table"),
        (pc.field("nowhere") > 1, "does not fit the types of the columns"),
    ],
)
def test_filters_that_cannot_be_read(text, message):
    with pytest.raises(InputError, match=message):
        open_log(LOG, filter=text)


def test_a_column_that_is_not_there_is_named():
    with pytest.raises(
        SchemaError, match=r"'Day' \(role filter\) is not in the Arrow table. Did you mean 'day'\?"
    ):
        open_log(LOG, filter="Day > '2026-01-01'")


def test_names_with_blanks_are_in_double_quotes_or_backquotes_and_that_is_said():
    table = pa.table({"no. of visits": [1, 2, 3], "Alter Kunde": [30, 40, 50], 'a "b" `c`': [0, 0, 1]})
    for text in ('"no. of visits" > 1', "`no. of visits` > 1", '"a ""b"" `c`" = 0', '`a "b" ``c``` = 0'):
        assert sum(len(batch) for batch in open_log(table, filter=text).batches(["Alter Kunde"])) == 2
    with pytest.raises(
        SchemaError, match=r"'Alter'.*Did you mean 'Alter Kunde'.*Write a name with blanks in double"
    ):
        open_log(table, filter="Alter Kunde < 40")


def test_a_filter_that_no_row_passes_leaves_no_log(tmp_path):
    with pytest.raises(LogError, match=r"where offer > 90 has no rows"):
        open_log(SOURCES["parquet file"](TABLE, tmp_path), filter="offer > 90")
    with pytest.raises(LogError, match=r"where offer > 90 has no rows"):
        list(read(open_log(TABLE, filter="offer > 90"), ROLES))


def test_rows_are_counted_among_those_that_pass(tmp_path):
    margins = TABLE["margin"].to_pylist()
    margins[777] = None
    broken = TABLE.set_column(3, "margin", pa.array(margins, pa.float64())).sort_by("offer")
    at = pc.index(broken.filter(pc.field("offer") >= 1)["margin"].is_null(), value=True).as_py()
    for make in (SOURCES["parquet file"], SOURCES["csv file"], lambda table, _: table):
        with pytest.raises(LogError, match=f"'margin', row {at} of those where offer >= 1: null"):
            list(read(open_log(make(broken, tmp_path), filter="offer >= 1"), ROLES))


class TestWhatCannotPassIsNotRead:
    """Torn pages tell whether they were read."""

    def days(self, tmp_path, **columns):
        """Two row groups; the pages of the column r of the second are torn."""
        path = tmp_path / "log.parquet"
        table = pa.table({"n": [0, 1, 2, 3], "s": list("aabb"), "r": [math.pi] * 4, **columns})
        pq.write_table(table, path, row_group_size=2, use_dictionary=False, compression="gzip")
        chunk = pq.ParquetFile(path).metadata.row_group(1).column(2)
        content = bytearray(path.read_bytes())
        content[chunk.data_page_offset : chunk.data_page_offset + chunk.total_compressed_size] = (
            b"\x00" * chunk.total_compressed_size
        )
        path.write_bytes(bytes(content))
        return path

    def test_row_groups(self, tmp_path):
        path = self.days(tmp_path)
        with pytest.raises(LogError, match="is damaged"):
            list(open_log(path).batches(["r"]))
        for text in ("n < 2", "s = 'a'", "not n >= 2", "n between 0 and 1", "n in (0, 1)"):
            (batch,) = open_log(path, filter=text).batches(["r"])
            assert batch["r"].to_pylist() == [math.pi] * 2
        (batch,) = open_log(path, filter="n < 1").batches(["n"])
        assert batch["n"].to_pylist() == [0]

    def test_columns(self, tmp_path):
        (batch,) = open_log(self.days(tmp_path), filter="s = 'b'").batches(["n"])
        assert batch.schema.names == ["n"]
        assert batch["n"].to_pylist() == [2, 3]

    def test_folders(self, tmp_path):
        root = hive_folder(TABLE, tmp_path)
        (root / "offer=4" / "part.parquet").unlink()
        self.days(tmp_path, age=[1, 2, 3, 4], store=list("xyzw"))
        torn = root / "offer=4"
        (tmp_path / "log.parquet").rename(torn / "part.parquet")
        log = open_log(root, filter="offer in (1, 3) and age >= 30")
        expected = TABLE.filter(pc.field("offer").isin([1, 3]) & (pc.field("age") >= 30))
        assert log.n_rows == expected.num_rows
        found = [store for batch in log.batches(["store"]) for store in batch["store"].to_pylist()]
        assert sorted(found) == sorted(expected["store"].to_pylist())

    def test_folders_of_csv(self, tmp_path):
        for day in (1, 2, 3):
            (tmp_path / f"day={day}").mkdir()
            csv_file(pa.table({"s": ["a", "b"], "r": [1.0, float(day)]}), tmp_path / f"day={day}")
        log = open_log(tmp_path, filter="day >= 2 and day is not null")
        assert log.n_rows == 4
        assert [part.file for part in parts_of(log, ["s"])] == [1, 2]
        rewards = [batch.reward.tolist() for batch in read(log, Roles("day", None, "r"))]
        assert rewards == [[1.0, 2.0, 1.0, 3.0]]
        assert open_log(tmp_path, filter="day = 3 and r > 2").n_rows is None

    def test_a_number_that_is_not_one_is_never_lost_by_what_a_file_says_of_its_values(self, tmp_path):
        table = pa.table({"r": [3.0, math.nan, 3.0], "n": [0, 1, 2]})
        pq.write_table(table, tmp_path / "log.parquet")
        for text in ("r != 3", "r >= 0", "not r = 3"):
            for source in (table, tmp_path / "log.parquet"):
                found = [n for b in open_log(source, filter=text).batches(["n"]) for n in b["n"].to_pylist()]
                assert found == ([0, 2] if text == "r >= 0" else [1])

    def test_types_that_differ_between_files(self, tmp_path):
        pq.write_table(pa.table({"n": pa.array([1, 2], pa.int8()), "r": [1, 2]}), tmp_path / "1.parquet")
        pq.write_table(pa.table({"n": pa.array([300, 2]), "r": [1.5, 2]}), tmp_path / "2.parquet")
        found = [
            r
            for b in open_log(tmp_path, filter="n = 2 or n = 300").batches(["r"])
            for r in b["r"].to_pylist()
        ]
        assert found == [2.0, 1.5, 2.0]


@st.composite
def drawn_tests(draw, depth):
    """A filter as text, and whether each row of LOG passes, by the definition (None: unknown)."""
    kind = draw(st.sampled_from(["compare", "null", "in"] + ["not", "and", "or"] * (depth > 0)))
    if kind in ("compare", "null", "in"):
        column = draw(st.sampled_from(["whole", "number", "n"]))
        values = LOG[column].to_pylist()
        if kind == "null":
            return f"{column} is null", [value is None for value in values]
        others = draw(st.lists(st.integers(-3, 3), min_size=1, max_size=3))
        if kind == "in":
            listed = ", ".join(map(str, others))
            return f"{column} in ({listed})", [None if v is None else v in others for v in values]
        sign = draw(st.sampled_from(["=", "!=", "<", "<=", ">", ">="]))
        test = {"=": "__eq__", "!=": "__ne__", "<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__"}[
            sign
        ]
        other = float(others[0])
        return f"{column} {sign} {others[0]}", [
            None if v is None else getattr(float(v), test)(other) for v in values
        ]
    one, first = draw(drawn_tests(depth - 1))
    if kind == "not":
        return f"not ({one})", [None if value is None else not value for value in first]
    two, second = draw(drawn_tests(depth - 1))
    settles = kind == "or"
    joined = [
        settles if settles in pair else None if None in pair else not settles
        for pair in zip(first, second, strict=True)
    ]
    return f"({one}) {kind} ({two})", joined


@pytest.mark.slow
@given(drawn_tests(2))
@settings(max_examples=60)
def test_unknown_is_neither_true_nor_false(found):
    text, passes = found
    rows = [n for n, each in enumerate(passes) if each]
    for source in (LOG, pl.from_arrow(LOG).lazy()):
        assert [n for b in open_log(source, filter=text).batches(["n"]) for n in b["n"].to_pylist()] == rows
    query = f"select n from log where {bound_filter(text, LOG.schema, 'log').sql} order by n"
    connection = duckdb.connect()
    connection.register("log", LOG)
    assert [n for (n,) in connection.sql(query).fetchall()] == rows
