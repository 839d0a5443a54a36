"""Logs by SQL: a real PostgreSQL server through ADBC, DuckDB files and connections."""

import datetime as dt
import sqlite3
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import adbc_driver_postgresql.dbapi as adbc
import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from postgres_server import running
from sample_logs import ROLES, TABLE, N

from hieropo import LogMoments
from hieropo.errors import InputError, LogError, SchemaError
from hieropo.logs.engines.sql import sql
from hieropo.logs.opening import open_log
from hieropo.logs.reading import distinct_values, read
from hieropo.rows.batches import Roles

QUERY = "select * from log order by n;"
NUMBERED = TABLE.append_column("n", pa.array(range(N)))


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with running() as url:
        with adbc.connect(url) as connection, connection.cursor() as cursor:
            cursor.adbc_ingest("log", NUMBERED, mode="create")
            cursor.execute("create type mood as enum ('sad', 'happy')")
            cursor.execute(
                "create table kinds (n int, small int2, r real, exact numeric, price numeric(10, 2), "
                "code numeric(20, 0), name varchar(5), yes bool, day date, at timestamptz, id uuid, mood mood, "
                "can text[], about jsonb)"
            )
            cursor.execute(
                "insert into kinds select i, i, i / 2.0, i / 4.0, i + 0.25, 90000000000000000 + i, 'n' || i, i > 0, "
                "date '2026-01-31' + i, '2026-01-31 10:00+02', ('00000000-0000-0000-0000-00000000000' || i)::uuid, "
                "(array['sad', 'happy'])[i + 1]::mood, array['a', 'b'], '{}' from generate_series(0, 1) as i"
            )
            cursor.execute("create sequence counter")
            connection.commit()
        yield url


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as connection:
        connection.register("given", NUMBERED)
        connection.execute("create table log as select * from given")
    return tmp_path / "shop.duckdb"


@pytest.fixture(params=["postgres url", "postgres connection", "duckdb file", "duckdb connection"])
def place(request):
    if request.param.startswith("postgres"):
        url = request.getfixturevalue("server")
        if request.param == "postgres url":
            yield url
            return
        with adbc.connect(url) as connection:
            yield connection
        return
    path = request.getfixturevalue("file")
    if request.param == "duckdb file":
        yield path
        return
    with duckdb.connect(str(path)) as connection:
        yield connection


class TestEveryDatabase:
    @pytest.mark.slow
    def test_rows_are_those_of_the_table(self, place):
        source = open_log(sql(QUERY, place))
        assert (source.n_rows, source.rereadable) == (None, True)
        assert "select * from log" in source.name
        pairs = zip(read(source, ROLES, batch_rows=64), read(TABLE, ROLES, batch_rows=64), strict=True)
        for found, expected in pairs:
            assert found.first_row == expected.first_row
            for name in ("task", "action", "reward", "pscore", "weight", "context"):
                np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))

    @pytest.mark.slow
    def test_can_be_read_again_and_after_a_pass_that_was_broken_off(self, place):
        source = open_log(sql(QUERY, place), rereadable=True)
        batches = read(source, ROLES, batch_rows=10)
        next(batches)
        batches.close()
        assert distinct_values(source, "offer") == (0, 1, 2, 3, 4)
        assert sum(len(batch) for batch in read(source, ROLES)) == N

    @pytest.mark.parametrize(
        "given", ["offer in (1, 3) and store != 'store 7'", None], ids=["text", "expression"]
    )
    def test_a_filter_keeps_the_same_rows(self, given, place):
        expression = pc.field("offer").isin([1, 3]) & (pc.field("store") != "store 7")
        source = open_log(sql(QUERY, place), filter=expression if given is None else given)
        tasks = [task for batch in read(source, ROLES) for task in batch.task]
        assert tasks == TABLE.filter(expression)["store"].to_pylist()

    def test_only_the_columns_that_are_needed_are_computed(self, place):
        query = "select store, margin, 1 / (offer - offer) as bad from log"
        if "duckdb" in type(place).__module__ or isinstance(place, Path):
            query = query.replace("1 / (offer - offer)", "error('computed')")
        source = open_log(sql(query, place))
        assert sum(len(batch) for batch in read(source, Roles("store", None, "margin"))) == N
        with pytest.raises((LogError, InputError), match=r"query .* (fails|breaks off)"):
            list(source.batches(["bad"]))

    @pytest.mark.parametrize(
        ("query", "message"),
        [
            ("select nope from log", r"query 'select nope from log'.* fails: .*nope"),
            ("selct 1", r"fails: .*syntax error"),
            (" ; ", "The query is empty"),
            ("create table t (i int)", r"fails: .*syntax error"),
        ],
    )
    def test_queries_that_fail(self, query, message, place):
        with pytest.raises(InputError, match=message):
            open_log(sql(query, place))

    def test_no_rows_are_an_error(self, place):
        with pytest.raises(LogError, match="has no rows"):
            list(read(sql("select * from log where n < 0", place), ROLES))

    def test_a_missing_column_is_named(self, place):
        with pytest.raises(SchemaError, match=r"'Margin' \(role reward\).*Did you mean 'margin'"):
            read(sql(QUERY, place), Roles("store", None, "Margin"))

    def test_moments_take_a_query(self, place):
        columns = {"task": "store", "action": "offer", "reward": "margin"}
        mine, theirs = (LogMoments.of(log, **columns).moments for log in (sql(QUERY, place), TABLE))
        np.testing.assert_allclose(mine.sums, theirs.sums, rtol=1e-12)


class TestPostgres:
    @pytest.mark.parametrize(
        ("column", "expected"),
        [
            ("n", (0, 1)),
            ("small", (0, 1)),
            ("price", (Decimal("0.25"), Decimal("1.25"))),
            ("code", (90000000000000000, 90000000000000001)),
            ("name", ("n0", "n1")),
            ("yes", (False, True)),
            ("day", (dt.date(2026, 1, 31), dt.date(2026, 2, 1))),
            ("at", (dt.datetime(2026, 1, 31, 8, tzinfo=dt.UTC),)),
            ("id", (UUID(int=0), UUID(int=1))),
            ("mood", ("happy", "sad")),
        ],
    )
    def test_ids_come_back_as_they_went_in(self, column, expected, server):
        found = distinct_values(sql("select * from kinds order by n", server), column)
        assert found == expected
        assert [type(value) for value in found] == [type(value) for value in expected]

    def test_numbers_and_lists(self, server):
        log = sql("select * from kinds order by n", server)
        (batch,) = read(log, Roles("id", None, "exact", context=("r", "price", "n"), eligible="can"))
        assert batch.reward.tolist() == [0.0, 0.25]
        assert batch.context.tolist() == [[0.0, 0.25, 0.0], [0.5, 1.25, 1.0]]
        assert batch.eligible.lists == [["a", "b"]] * 2

    def test_a_sum_of_whole_numbers_is_a_number(self, server):
        query = "select small, sum(n::bigint) as r from kinds group by small order by 1"
        (batch,) = read(sql(query, server), Roles("small", None, "r"))
        assert batch.reward.tolist() == [0.0, 1.0]

    def test_exact_numbers_are_not_rounded_silently(self, server):
        log = sql("select n, 9007199254740993::numeric as id from kinds", server)
        with pytest.raises(
            LogError, match=r"'id', row 0: 9007199254740993, of type numeric.*id::text or ::bigint"
        ):
            distinct_values(log, "id")

    @pytest.mark.parametrize("kind", ["numeric", "numeric(10, 2)", "double precision"])
    def test_a_number_that_is_not_one_is_refused(self, kind, server):
        with pytest.raises(LogError, match=r"(?i)'r'.*nan"):
            list(read(sql(f"select n, 'NaN'::{kind} as r from kinds", server), Roles("n", None, "r")))

    def test_enumerations_can_be_filtered_by(self, server):
        (batch,) = open_log(sql("select * from kinds", server), filter="mood = 'happy'").batches(
            ["n", "mood"]
        )
        assert batch.to_pydict() == {"n": [1], "mood": ["happy"]}

    def test_all_passes_see_the_same_rows(self, server):
        with adbc.connect(server, autocommit=True) as other, other.cursor() as cursor:
            cursor.execute("create table growing as select 1 as n")
            source = open_log(sql("select * from growing", server))
            assert distinct_values(source, "n") == (1,)
            cursor.execute("insert into growing values (2)")
            assert distinct_values(source, "n") == (1,)
            assert distinct_values(sql("select * from growing", server), "n") == (1, 2)

    def test_nothing_can_be_written(self, server):
        with pytest.raises((InputError, LogError), match=r"(fails|breaks off).*read-only transaction"):
            list(open_log(sql("select nextval('counter') as made", server)).batches(["made"]))

    def test_a_password_is_never_shown(self, server):
        url = server.replace("tester@", "tester:secret@") + "&password=secret"
        source = open_log(sql(QUERY, url))
        assert "secret" not in source.name + repr(sql(QUERY, url))
        assert "tester@" in source.name
        with pytest.raises(InputError, match=r"nobody-here.* cannot be reached: ") as caught:
            open_log(sql(QUERY, "postgresql://tester:secret@/postgres?host=/nobody-here"))
        assert "secret" not in str(caught.value)

    def test_a_query_may_end_in_a_comment(self, server):
        assert distinct_values(sql("select n from kinds -- all of them", server), "n") == (0, 1)

    @pytest.mark.slow
    def test_a_server_that_goes_away_is_told(self):
        with running() as url:
            source = open_log(sql("select i, i as r from generate_series(1, 10) as i", url))
        with pytest.raises((InputError, LogError), match=r"query .* (fails|breaks off)"):
            list(source.batches(["i"]))


class TestWhatIsNoDatabase:
    @pytest.mark.parametrize(
        ("place", "message"),
        [
            ("nowhere.duckdb", "There is no database 'nowhere.duckdb'"),
            (
                "mysql://me:secret@host/db",
                r"There is no database 'mysql://me@host/db'\. Give a URL such as",
            ),
            (3, r"A int is no connection.*Give a connection, or the URL"),
        ],
    )
    def test_is_said(self, place, message):
        with pytest.raises(InputError, match=message):
            open_log(sql("select 1", place))

    def test_a_file_that_is_no_database(self, tmp_path):
        (tmp_path / "log.duckdb").write_text("not a database" * 1000)
        with pytest.raises(InputError, match=r"log\.duckdb' cannot be read as DuckDB"):
            open_log(sql("select 1", tmp_path / "log.duckdb"))

    def test_a_table_file_is_read_by_a_query_that_names_it(self, tmp_path):
        path = tmp_path / "log.parquet"
        pq.write_table(TABLE, path)
        with pytest.raises(
            InputError, match=r"give ':memory:' as the database, and write from '.*log\.parquet' in"
        ):
            open_log(sql("select 1", path))
        log = open_log(sql(f"select store, margin from '{path}' where age > 50", ":memory:"))
        assert log.name.endswith(" on files")
        assert (
            sum(batch.num_rows for batch in log.batches(["margin"]))
            == pc.sum(pc.greater(TABLE["age"], 50)).as_py()
        )

    def test_the_database_without_a_file_needs_a_query(self):
        with pytest.raises(
            InputError, match=r":memory: is DuckDB's database without a file, and needs a query"
        ):
            open_log(":memory:")

    @pytest.mark.slow
    def test_a_connection_that_hands_out_rows(self):
        connection = sqlite3.connect(":memory:")
        with pytest.raises(InputError, match=r"returns no Arrow: its cursors are of type sqlite3\.Cursor"):
            open_log(sql("select 1", connection))
        connection.close()

    @pytest.mark.slow
    def test_a_database_without_a_query(self, file):
        with pytest.raises(LogError, match=r"it is a database. Give a query: open_log\(sql\(.*--sql"):
            open_log(file)
        with pytest.raises(InputError, match=r"This is a database. Give a query"):
            open_log("postgresql://me@host/db")
