"""Sums that a database computes equal those of the pass over its rows: DuckDB and a PostgreSQL server, run here."""

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from importlib.resources import files
from itertools import count
from typing import Any
from uuid import UUID

import adbc_driver_postgresql.dbapi as adbc
import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cluster_tables import check_same_clusters
from postgres_server import running

from hieropo import HierOPO, LogMoments
from hieropo.errors import InputError, LogError, SchemaError, UnknownActionError
from hieropo.features.maps import Columns, embedding, per_action
from hieropo.logs.engines.sql import sql

COLUMNS: dict[str, Any] = {"task": "store", "action": "offer", "reward": "profit"}
CONTEXT = {**COLUMNS, "context": ["visits", "stamp"]}
QUERY = "select * from log"
HOSTILE = "a\"; drop table log; -- '`\\ \n é"


def log(n: int = 400) -> pa.Table:
    rng = np.random.default_rng(3)
    store, offer = rng.integers(9, size=n), rng.integers(3, size=n)
    device = np.array(["phone", 'it\'s a \\ "tv"', "tablet", "watch"])[rng.integers(4, size=n)]
    visits = rng.gamma(2.0, 1.0, size=n)
    return pa.table(
        {
            "store": [f"store {k}" for k in store],
            "offer": np.array(["none", "coupon", "gift"])[offer],
            "visits": visits,
            "stamp": 1.7e9 + rng.normal(size=n) * 1e3,  # far from 0
            "one": np.ones(n),
            "profit": 40.0 + 0.5 * offer + 0.3 * visits * offer + rng.normal(size=n),
            "weight": rng.integers(3, size=n),
            "precision": rng.uniform(0.5, 2.0, size=n),
            "kept": rng.uniform(1.0, 3.0, size=n),
            "chance": np.full(n, 1 / 3),
            "region": [f"region {k % 3}" for k in store],
            "country": ["NL" for _ in store],
            "size": store / 4.0,
            "device": device,
            "new": rng.integers(2, size=n).astype(bool),
            "grade": np.where(rng.uniform(size=n) < 0.1, np.nan, rng.normal(size=n)),
            "day": pa.array([dt.date(2026, 1, 1 + k) for k in offer]),
            "visit": [f"visit {k} é" for k in rng.integers(60, size=n)],  # of several stores and offers
        }
    )


def with_nulls(table: pa.Table, column: str) -> pa.Table:
    values = pa.array(table.column(column).to_numpy(), from_pandas=True)
    return table.set_column(table.column_names.index(column), column, values)


TABLE = with_nulls(log(), "grade")


NUMBERS = count()


class Database:
    """A database of the tests: tables go in, and a URL, path or connection comes out."""

    def __init__(self, name: str, connection: Any, writes: Any = None) -> None:
        self.name, self.connection, self._writes = name, connection, writes

    def put(self, name: str, table: pa.Table) -> str:
        """Make a table and return a query of it; a new one each time, as earlier readers may hold locks."""
        name = name if name == "log" else f"{name}_{next(NUMBERS)}"
        if self._writes is None:
            self.connection.register("given", table)
            self.connection.execute(f"create table {name} as select * from given")
            self.connection.unregister("given")
        else:
            with self._writes.cursor() as cursor:
                cursor.adbc_ingest(name, table, mode="create")
            self._writes.commit()
        return f"select * from {name}"

    def summed(self, query: str = QUERY, **given: Any) -> LogMoments:
        return LogMoments.in_database(query, self.connection, **given)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Database]:
    with running() as url, adbc.connect(url) as connection:
        database = Database("postgres", url, connection)
        database.put("log", TABLE)
        yield database


@pytest.fixture(scope="module")
def duck() -> Iterator[Database]:
    with duckdb.connect() as connection:
        database = Database("duckdb", connection)
        database.put("log", TABLE)
        yield database


@pytest.fixture(params=["duckdb", pytest.param("postgres", marks=pytest.mark.slow)])
def database(request: pytest.FixtureRequest) -> Database:
    found: Database = request.getfixturevalue({"duckdb": "duck", "postgres": "postgres"}[request.param])
    return found


def check_equal(mine: LogMoments, expected: LogMoments, rtol: float = 1e-12) -> None:
    """Check that two moments have the same map, tasks, rows and sums, to rounding."""
    assert mine.features == expected.features
    assert mine.roles == expected.roles
    assert mine.summed.sketch.rows == expected.summed.sketch.rows
    ordered = mine.moments.select(expected.tasks)
    assert len(mine) == len(expected)
    assert expected.moments.allclose(ordered, rtol)
    assert (ordered.squares is None) == (expected.moments.squares is None)
    if ordered.squares is not None:
        one, other = (moments.around(None).squares for moments in (ordered, expected.moments))
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9 * np.abs(other).max())
    levels, others = mine.summed.task_levels, expected.summed.task_levels
    assert levels.levels() == others.levels()
    clusters, expected_clusters = mine.summed.clusters, expected.summed.clusters
    assert (clusters is None) == (expected_clusters is None)
    if clusters is not None and expected_clusters is not None:
        check_same_clusters(clusters, expected_clusters)
    assert {task: values.tolist() for task, values in levels.known.items()} == {
        task: values.tolist() for task, values in others.known.items()
    }


CASES: dict[str, dict[str, Any]] = {
    "actions alone": COLUMNS,
    "contexts, one of them far from 0": CONTEXT,
    "counts": {**CONTEXT, "weight": "weight"},
    "precisions": {**CONTEXT, "precision": "precision"},
    "all weights": {**CONTEXT, "weight": "weight", "precision": "precision", "sampling_weight": "kept"},
    "groups and metadata": {**CONTEXT, "levels": ["country", "region"], "metadata": ["size"]},
    "columns that are checked": {**COLUMNS, "pscore": "chance", "time": "day"},
    "clusters": {**CONTEXT, "cluster": "visit", "weight": "weight"},
    "clusters with groups and metadata": {**COLUMNS, "cluster": "visit", "levels": ["region"], "metadata": ["size"]},
    "clusters, columns as they are": {
        "task": "store", "reward": "profit", "context": ["visits", "one", "stamp"], "cluster": "visit"
    },
    "clusters of a given map with an origin": {
        **CONTEXT, "cluster": "visit",
        "features": per_action(["gift", "none", "coupon"], ["visits", "stamp"]).recentred([1.0, 1.7e9]),
    },
    "several columns of tasks": {**CONTEXT, "task": ["region", "size"]},
    "one task": {**CONTEXT, "task": None},
    "columns as they are": {"task": "store", "reward": "profit", "context": ["visits", "one", "stamp"]},
    "columns near 0 without a constant": {"task": "store", "reward": "precision", "context": ["visits", "kept"]},
    "columns, with actions": {**CONTEXT, "features": "columns", "context": ["one", "visits"]},
    "booleans": {**COLUMNS, "context": ["new", "visits"]},
    "a given map": {**CONTEXT, "features": per_action(["gift", "none", "coupon"], ["visits", "stamp"])},
    "a given map with an origin": {
        **CONTEXT, "features": per_action(["gift", "none", "coupon"], ["visits", "stamp"]).recentred([1.0, 1.7e9])
    },
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_sums_in_a_database_are_those_of_the_pass(case: str, database: Database) -> None:
    given = CASES[case]
    rtol = 1e-10 if case == "columns near 0 without a constant" else 1e-12
    check_equal(database.summed(**given), LogMoments.of(TABLE, **given), rtol)


FORMULAS = [
    "device + new + visits",
    "category(device, max_levels=2) + log(visits, plus=1)",
    "new:visits + category(store):new + visits",
    "grade + device",
    "category(weight) + category(new)",
]


@pytest.mark.parametrize("formula", FORMULAS)
def test_terms_that_were_learned_before_have_a_text(formula: str, database: Database) -> None:
    terms = LogMoments.of(TABLE, features=formula, **COLUMNS).features.terms
    mine = database.summed(features=terms, **COLUMNS)
    check_equal(mine, LogMoments.of(TABLE, features=terms, **COLUMNS))


def test_a_level_that_the_terms_do_not_know_is_other_or_the_mean(database: Database) -> None:
    some = TABLE.filter(pa.compute.not_equal(TABLE["device"], "watch"))
    for formula in ("device", "category(device, max_levels=1)"):
        terms = LogMoments.of(some, features=formula, **COLUMNS).features.terms
        mine = database.summed(features=terms, **COLUMNS)
        check_equal(mine, LogMoments.of(TABLE, features=terms, **COLUMNS))


SHIPPED = {
    "thornton": {
        "task": "villnum", "action": "incentive", "reward": "reward", "pscore": "pscore",
        "context": ["age", "distvct", "tinc"],
    },
    "obd": {"task": "task", "action": "item", "reward": "click", "pscore": "propensity", "context": ["position"]},
}  # fmt: skip


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_logs_as_files(name: str) -> None:
    path, given = files("hieropo.data") / f"{name}.parquet", SHIPPED[name]
    mine = LogMoments.in_database(f"select * from '{path}'", ":memory:", **given)
    check_equal(mine, LogMoments.of(str(path), **given))


def test_origins_after_the_sums_would_lose_what_the_text_keeps(duck: Database) -> None:
    """Products around 0 of a column at 1.7e9 with a standard deviation of 1e3 lose 12 digits."""
    mine = duck.summed(**CONTEXT)
    sums = mine.moments.select(["store 3"])
    rows = TABLE.filter(pa.compute.equal(TABLE["store"], "store 3"))
    gift = rows.filter(pa.compute.equal(rows["offer"], "gift"))
    origin = mine.features.origin[1]
    exact = np.sum((gift["stamp"].to_numpy() - origin) ** 2)
    packed = sums.sums[0, mine.features.actions.index("gift")]
    assert packed[5] == pytest.approx(exact, rel=1e-13)


def test_sums_of_whole_numbers_are_exact(database: Database) -> None:
    """Rewards that are equal in all rows of a task: their squares about a whole origin are whole, as in the pass."""
    rng = np.random.default_rng(0)
    table = {
        "t": np.repeat(range(40), 5),
        "a": ["x", "y"] * 100,
        "r": np.repeat(rng.integers(2, 6, size=40), 5),
    }
    query, columns = database.put("whole", pa.table(table)), {"task": "t", "action": "a", "reward": "r"}
    mine = database.summed(query, **columns)
    check_equal(mine, LogMoments.of(pa.table(table), **columns))
    assert (mine.moments.sums == np.round(mine.moments.sums)).all()
    assert mine.moments.unit_offset.tolist() in ([3.0], [4.0])


IDS = {
    "whole numbers": pa.array([7, 7, 2**40, -1] * 5),
    "text with quotes": pa.array(["it's", 'a "b"', "\\", ""] * 5),
    "dates": pa.array([dt.date(2026, 1, day) for day in (1, 1, 2, 3)] * 5),
    "times": pa.array([dt.datetime(2026, 1, day, 10) for day in (1, 1, 2, 3)] * 5, pa.timestamp("us")),
    "times of a zone": pa.array(
        [dt.datetime(2026, 1, day, 10, tzinfo=dt.UTC) for day in (1, 1, 2, 3)] * 5, pa.timestamp("us", "UTC")
    ),
    "booleans": pa.array([True, False, False, True] * 5),
}


@pytest.mark.parametrize("kind", IDS)
def test_ids_are_those_of_the_pass(kind: str, database: Database) -> None:
    rng = np.random.default_rng(0)
    table = pa.table({"task": IDS[kind], "action": IDS[kind][::-1], "reward": rng.normal(size=20)})
    query = database.put("ids", table)
    columns = {"task": "task", "action": "action", "reward": "reward"}
    expected = LogMoments.of(sql(query, database.connection), **columns)
    mine = database.summed(query, **columns)
    check_equal(mine, expected)
    assert [type(task) for task in mine.tasks.tolist()] == [
        type(task) for task in sorted(expected.tasks.tolist())
    ]


@pytest.mark.slow
def test_exact_numbers_and_uuids(postgres: Database) -> None:
    query = (
        "select ('00000000-0000-0000-0000-00000000000' || i % 3)::uuid as task, (i % 2)::numeric(10, 0) as action, "
        "(i / 3.0)::numeric(20, 10) as reward, i::real as x from generate_series(0, 9) as i"
    )
    columns = {"task": "task", "action": "action", "reward": "reward", "context": ["x"]}
    mine = postgres.summed(query, **columns)
    check_equal(mine, LogMoments.of(sql(query, postgres.connection), **columns))
    assert isinstance(mine.tasks[0], UUID)
    assert mine.features.actions == (0, 1)


def test_exact_numbers_of_a_file(duck: Database) -> None:
    reward = pa.array([Decimal(k) / 8 for k in range(10)], pa.decimal128(38, 20))
    rows = {"t": pa.array([Decimal("1.50"), Decimal("2.00")] * 5), "r": reward}
    query = duck.put("exact", pa.table(rows))
    given = {"task": "t", "action": None, "reward": "r", "context": ["t"], "features": "columns"}
    check_equal(duck.summed(query, **given), LogMoments.of(pa.table(rows), **given))


@pytest.mark.parametrize("role", ["task", "action", "reward", "context"])
def test_names_of_columns_are_quoted(role: str, database: Database) -> None:
    names = {"task": "store", "action": "offer", "reward": "profit", "context": "visits"}
    renamed = TABLE.rename_columns([HOSTILE if name == names[role] else name for name in TABLE.column_names])
    query = database.put("hostile", renamed)
    columns: dict[str, Any] = {**names, role: HOSTILE}
    columns["context"] = [columns["context"]]
    mine = database.summed(f"{query}; ", **columns)
    check_equal(mine, LogMoments.of(renamed, **columns))
    assert database.summed(**COLUMNS).n_rows == TABLE.num_rows


def test_rows_that_cannot_be_used_are_counted_by_column(database: Database) -> None:
    n = 60
    reward, visits = np.arange(n, dtype=np.float64), np.ones(n)
    reward[1], reward[2], visits[3:8] = np.nan, np.inf, -np.inf
    rows = {
        "store": pa.array([None if k in (10, 11) else k % 4 for k in range(n)], pa.int64()),
        "offer": pa.array([None if k == 12 else "a" for k in range(n)]),
        "profit": pa.array([None if k in (20, 21, 22) else value for k, value in enumerate(reward)]),
        "visits": visits,
    }
    query = database.put("bad", pa.table(rows))
    with pytest.raises(LogError) as caught:
        database.summed(query, **COLUMNS, context=["visits"])
    text = str(caught.value)
    assert text.startswith("13 rows of 60 of the query cannot be used: ")
    for part in (
        "2 rows with NULL in column 'store', the task",
        "1 row with NULL in column 'offer', the action",
        "3 rows with NULL in column 'profit', the reward",
        "2 rows with a value that is NaN, infinite or beyond 1e+70 (whole numbers: 2**53) in column 'profit'",
        "5 rows with a value that is NaN, infinite",
        "in column 'visits', the context",
    ):
        assert part in text
    usable = "where store is not null and offer is not null and profit between 0 and 1e9 and visits = 1"
    assert database.summed(f"{query} {usable}", **COLUMNS, context=["visits"]).n_rows == n - 13


BAD_VALUES = {
    "weight": (-1.0, "the weight"),
    "precision": (0.0, "0 or below"),
    "sampling_weight": (0.0, "0 or below"),
    "pscore": (1.5, "above 0 and at most 1"),
    "metadata": (np.inf, "infinite"),
    "huge": (1e71, "beyond 1e+70"),
}


@pytest.mark.parametrize("role", BAD_VALUES)
def test_each_role_has_its_range(role: str, database: Database) -> None:
    value, message = BAD_VALUES[role]
    values = np.full(10, 0.5)
    values[4] = value
    table = {"t": [0] * 10, "a": ["b", "c"] * 5, "r": np.arange(10.0), "x": values}
    query = database.put("roles", pa.table(table))
    given: dict[str, Any] = (
        {"context": ["x"]} if role == "huge" else {role: ["x"] if role == "metadata" else "x"}
    )
    with pytest.raises(
        LogError, match=r"1 row of 10 of the query cannot be used: 1 row with .*column 'x'"
    ) as caught:
        database.summed(query, task="t", action="a", reward="r", **given)
    assert message in str(caught.value)


def test_whole_numbers_that_a_float_rounds_are_refused(database: Database) -> None:
    query = database.put("wide", pa.table({"t": [1, 1], "a": [1, 2], "r": pa.array([2**53 + 1, 1])}))
    with pytest.raises(LogError, match=r"whole numbers: 2\*\*53\) in column 'r'"):
        database.summed(query, task="t", action="a", reward="r")


def test_no_rows_and_a_task_in_two_groups(database: Database) -> None:
    with pytest.raises(LogError, match="the query had no rows"):
        database.summed(QUERY + " where visits < 0", **CONTEXT)
    with pytest.raises(LogError, match=r"Column 'place'.*has to belong to one group"):
        database.summed(
            "select *, case when visits > 1 then 'x' else 'y' end as place from log", **COLUMNS, levels=["place"]
        )  # fmt: skip
    with pytest.raises(UnknownActionError, match="'gift'"):
        database.summed(**CONTEXT, features=per_action(["none", "coupon"], ["visits", "stamp"]))


def test_a_filter_is_part_of_the_text(database: Database) -> None:
    mine = database.summed(**CONTEXT, filter="offer = 'gift' and visits > 0.5")
    check_equal(
        mine,
        LogMoments.of(sql(QUERY + " where offer = 'gift' and visits > 0.5", database.connection), **CONTEXT),
    )


REFUSED = {
    "cluster": ({"cluster": "region", "precision": "precision"}, "does not go with precision"),
    "lists": ({"eligible": "region"}, "checked row by row"),
    "formula": ({"features": "device"}, "are a formula, whose levels and knots are learned from rows"),
    "list": ({"features": ["device"]}, "are a formula"),
    "table": ({"features": embedding(["a"], [[1.0, 2.0]])}, "has no SQL text"),
    "text": ({"context": ["device"]}, "holds text.*features that have learned its levels"),
    "time": ({"context": ["day"]}, "holds dates or times.*extract"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_database_cannot_sum_is_refused_with_the_way(case: str, duck: Database) -> None:
    given, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        duck.summed(**COLUMNS, **given) if case != "lists" else LogMoments.sums_sql(
            QUERY, "duckdb", **COLUMNS, **given
        )


def test_terms_without_a_text_are_named(duck: Database) -> None:
    terms = LogMoments.of(TABLE, features="spline(visits, 4)", **COLUMNS).features.terms
    with pytest.raises(InputError, match=r"The term spline\(visits, 4\) has no SQL text"):
        duck.summed(features=terms, **COLUMNS)


@pytest.mark.slow
def test_more_than_32_features_are_refused_with_the_way(duck: Database) -> None:
    rng = np.random.default_rng(0)
    wide = pa.table(
        {f"x{k}": rng.normal(size=50) for k in range(32)} | {"a": ["b"] * 50, "r": rng.normal(size=50)}
    )
    query = duck.put("wide", wide)
    given = {"action": "a", "reward": "r"}
    widest = [f"x{k}" for k in range(31)]
    check_equal(
        duck.summed(query, **given, context=widest),
        LogMoments.of(wide, **given, context=widest),
    )
    with pytest.raises(
        InputError, match=r"33 features for each action.*32 are allowed.*Arrow.*hieropo\.spark"
    ):
        duck.summed(query, **given, context=[f"x{k}" for k in range(32)])


@pytest.mark.slow
def test_a_policy_of_the_sums_decides_as_that_of_the_rows(duck: Database) -> None:
    mine, theirs = (
        HierOPO().fit(moments) for moments in (duck.summed(**CONTEXT), LogMoments.of(TABLE, **CONTEXT))
    )
    assert mine.decide(TABLE)["action"].to_pylist() == theirs.decide(TABLE)["action"].to_pylist()


class TestTables:
    """Tables of sums, as files and frames."""

    @pytest.fixture
    def table(self, duck: Database) -> pa.Table:
        text = LogMoments.sums_sql(QUERY, "duckdb", **CONTEXT)
        table: pa.Table = duck.connection.sql(text).to_arrow_table()
        return table

    def test_the_order_of_rows_and_the_case_of_names_do_not_matter(self, table: pa.Table, tmp_path) -> None:
        expected = LogMoments.from_sums(table)
        shuffled = table.take(np.random.default_rng(0).permutation(table.num_rows))
        mine = LogMoments.from_sums(shuffled.rename_columns([name.upper() for name in table.column_names]))
        assert mine.moments.sums.tobytes() == expected.moments.sums.tobytes()
        pq.write_table(table, tmp_path / "sums.parquet")
        assert (
            LogMoments.from_sums(tmp_path / "sums.parquet").moments.sums.tobytes()
            == mine.moments.sums.tobytes()
        )
        assert LogMoments.from_sums(table.to_pandas()).n_rows == TABLE.num_rows

    def test_sums_add_and_are_stored(self, table: pa.Table, tmp_path) -> None:
        both = LogMoments.from_sums(table) + LogMoments.from_sums(table)
        assert both.n_rows == 2 * TABLE.num_rows
        both.save(tmp_path / "both")
        assert LogMoments.load(tmp_path / "both").n_rows == 2 * TABLE.num_rows

    def test_a_table_that_is_not_whole_is_refused(self, table: pa.Table) -> None:
        described = pa.compute.is_valid(table["about"])
        for broken, message in (
            (TABLE, "is no table of sums"),
            (table.filter(pa.compute.invert(described)), "has none of the rows that describe"),
            (pa.concat_tables([table, table]), r"has 2 of them.*from_sums\(a\) \+ LogMoments.from_sums\(b\)"),
            (table.drop_columns(["s_0_0"]), "lacks the column 's_0_0'"),
            (table.filter(described), "the query had no rows"),
            (self._described(table, '{"hieropo": "sums", "version": 9}'), "of version 9"),
            (self._described(table, '{"hieropo": '), "cannot be read"),
        ):
            with pytest.raises((SchemaError, LogError), match=message):
                LogMoments.from_sums(broken)

    def _described(self, table: pa.Table, text: str) -> pa.Table:
        about = pa.array([None if each is None else text for each in table["about"].to_pylist()])
        return table.set_column(table.column_names.index("about"), "about", about)


class TestText:
    """Text for warehouses that no test runs."""

    @pytest.mark.parametrize(
        "dialect", ["duckdb", "postgres", "postgresql", "spark", "bigquery", "snowflake"]
    )
    def test_each_dialect_parses(self, dialect: str) -> None:
        sqlglot = pytest.importorskip("sqlglot", reason="of the extra warehouse, which `make test` installs")
        terms = LogMoments.of(TABLE, features="device + new:visits", **COLUMNS).features.terms
        name = "naïve column" if dialect == "bigquery" else HOSTILE
        for given in ({"features": terms, "weight": name}, {"context": [name], "sampling_weight": "kept"}):
            text = LogMoments.sums_sql(QUERY, dialect, **COLUMNS, **given)
            reader = {"postgresql": "postgres"}.get(dialect, dialect)
            (parsed,) = sqlglot.parse(text, dialect=reader)
            columns = {column.name for column in parsed.find_all(sqlglot.exp.Column)}
            assert name in columns
            literals = {each.this for each in parsed.find_all(sqlglot.exp.Literal) if each.is_string}
            assert "features" not in given or 'it\'s a \\ "tv"' in literals

    def test_a_query_of_another_dialect_is_refused(self) -> None:
        pytest.importorskip("sqlglot", reason="of the extra warehouse, which `make test` installs")
        with pytest.raises(InputError, match="sqlglot cannot parse the text for BigQuery"):
            LogMoments.sums_sql("select * from (", "bigquery", **COLUMNS)

    def test_names_and_dialects_that_cannot_be_are_refused(self) -> None:
        with pytest.raises(InputError, match=r"dialect 'oracle' of SQL is not known.*duckdb, postgres"):
            LogMoments.sums_sql(QUERY, "oracle", **COLUMNS)
        with pytest.raises(InputError, match=r"holds '`', and BigQuery allows no such column.*as other_name"):
            LogMoments.sums_sql(QUERY, "bigquery", task="a`b", action="offer", reward="profit")
        with pytest.raises(InputError, match="query is empty"):
            LogMoments.sums_sql(" ; ", "duckdb", **COLUMNS)
        with pytest.raises(InputError, match="type 'money' of column 'visits'"):
            LogMoments.sums_sql(QUERY, "duckdb", **CONTEXT, types={"visits": "money"})
        with pytest.raises(TypeError, match=r"sums_sql\(\) got 'reword'"):
            LogMoments.sums_sql(QUERY, "duckdb", reword="profit")

    def test_booleans_are_stated_where_no_table_is_seen(self, duck: Database) -> None:
        given = {**COLUMNS, "context": ["new"]}
        text = LogMoments.sums_sql(QUERY, "duckdb", **given, types={"new": "boolean"})
        assert 'case when "new" then 1 when not "new" then 0 end' in text
        check_equal(LogMoments.from_sums(duck.connection.sql(text)), LogMoments.of(TABLE, **given))


def test_a_connection_of_another_database_needs_a_dialect(postgres: Database) -> None:
    with adbc.connect(postgres.connection) as connection:
        assert LogMoments.in_database(QUERY, connection, **COLUMNS).n_rows == TABLE.num_rows
    with pytest.raises(SchemaError, match=r"'Store' \(role task\) is not in.*Did you mean 'store'"):
        postgres.summed(task="Store", action="offer", reward="profit")


def test_columns_of_a_map_are_named_by_it(duck: Database) -> None:
    features = Columns(("one", "visits"))
    given = {"task": "store", "reward": "profit", "features": features}
    check_equal(duck.summed(**given), LogMoments.of(TABLE, **given))
