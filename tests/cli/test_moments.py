"""``hieropo moments`` as its callers meet it."""

from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from command_line import FIT as NAMED
from command_line import ends as run
from command_line import in_json as answer

from hieropo import LogMoments
from hieropo.cli import main


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the logs of two days, which have other actions."""
    monkeypatch.chdir(tmp_path)
    for seed, (day, offers) in enumerate({"monday": ["a", "b"], "tuesday": ["b", "c"]}.items()):
        rng = np.random.default_rng(seed)
        store, offer = rng.integers(6, size=300), rng.integers(2, size=300)
        profit = 0.4 * offer + rng.normal(size=300)
        rows = {
            "store": store,
            "offer": np.array(offers)[offer],
            "profit": profit,
            "visits": rng.normal(size=300),
        }
        pq.write_table(pa.table(rows), f"{day}.parquet")
    return tmp_path


@pytest.mark.slow
def test_days_are_summed_merged_fitted_and_taken_apart(site: Path) -> None:
    for day in ("monday", "tuesday"):
        found = answer("moments", f"{day}.parquet", "-o", day, *NAMED, "--context", "visits")
        assert (found["rows"], found["tasks"], found["features"]) == (300, 6, 4)
        assert found["columns"]["context"] == ["visits"]
    merged = answer("moments", "merge", "monday", "tuesday", "-o", "both")
    assert merged["actions"] == ["a", "b", "c"]
    assert (merged["rows"], merged["merged"]) == (600, ["monday", "tuesday"])
    assert answer("moments", "show", "both")["provenance"] == {"merged": ["monday", "tuesday"]}
    assert "HierOPO learned from 600 rows of 6 tasks in both" in run(0, "fit", "both", "-o", "policy")
    assert "hieropo evaluate policy LOG" in run(0, "fit", "both", "-o", "policy")
    answer("evaluate", "policy", "monday.parquet")
    assert answer("fit", "both", "-o", "block", "--task-cov", "block")["actions"] == 3
    rest = answer("moments", "subtract", "both", "monday", "-o", "rest")
    assert rest["rows"] == 300
    tuesday = LogMoments.load("tuesday")
    left = LogMoments.load("rest").for_learning(per_action=True)
    assert left.allclose(tuesday.on(LogMoments.load("rest").features).for_learning(per_action=True), 1e-9)
    assert {path.name for path in site.iterdir()} == {
        "monday.parquet", "tuesday.parquet", "monday", "tuesday", "both", "rest", "policy", "block"
    }  # fmt: skip


def test_a_log_is_named_first_or_after_of_and_help_explains_both(site: Path) -> None:
    first = run(0, "moments", "monday.parquet", "-o", "one", *NAMED)
    assert run(0, "moments", "of", "monday.parquet", "-o", "two", *NAMED) == first.replace("one ", "two ")
    assert run(0, "moments", "-o", "one", *NAMED, "monday.parquet") == first
    Path("monday.parquet").rename(site / "merge")
    assert run(0, "moments", "./merge", "-o", "one", *NAMED) == first
    assert "subtract" in run(0, "moments", "--help")
    assert "--context" in run(0, "moments", "of", "-h")


def test_a_checkpoint_is_gone_on_from_and_removed_when_moments_are_written(site: Path) -> None:
    made = ["moments", "*.parquet", "-o", "both", *NAMED, "--context", "visits", "--checkpoint", "kept"]
    for _ in range(2):
        answer(*made)
        assert not Path("kept").exists()
    whole = LogMoments.load("both")
    LogMoments.of(
        "*.parquet", task="store", action="offer", reward="profit", context=["visits"], checkpoint="kept"
    )
    answer(*made)
    again = LogMoments.load("both")
    assert again.moments.sums.tobytes() == whole.moments.sums.tobytes()
    LogMoments.of("*.parquet", task="store", action="offer", reward="profit", checkpoint="kept")
    text = run(1, *made)
    assert (
        "made with context=[], and this pass has context=['visits']. Remove the checkpoint kept to begin anew"
        in text
    )
    assert "directory with other files" in run(1, *made[:-1], ".")
    assert "both would lie in the log ." in run(2, "moments", site, *made[2:]).replace(str(site), ".")
    assert "kept would lie in the log" in run(2, "fit", site, "-o", "policy", *NAMED, "--checkpoint", "kept")


@pytest.mark.usefixtures("site")
def test_what_cannot_be_done_is_said_with_the_paths() -> None:
    run(0, "moments", "monday.parquet", "-o", "monday", *NAMED)
    run(0, "moments", "tuesday.parquet", "-o", "tuesday", *NAMED, "--context", "visits")
    text = run(1, "moments", "merge", "monday", "tuesday", "-o", "both")
    assert "context columns [] and ['visits']" in text
    assert "The second moments are tuesday, the first monday." in text
    assert not Path("both").exists()
    assert "does not exist" in run(1, "moments", "merge", "monday", "nothing", "-o", "both")
    assert "made with task='store'; a fit with task='shop' cannot use them" in run(
        1, "fit", "monday", "-o", "policy", "--task", "shop"
    )
    assert "It holds moments" in run(1, "inspect", "monday")
    assert "directory with other files" in run(1, "moments", "monday.parquet", "-o", ".", *NAMED)
    assert "There is no file or folder" in run(1, "moments", "nowhere.parquet", "-o", "x", *NAMED)
    assert "Missing argument" in run(2, "moments", "merge", "-o", "both")
    assert "Missing option" in run(2, "moments", "monday.parquet", *NAMED)
    raw = bytearray(Path("monday/moments.arrow").read_bytes())
    raw[-100] ^= 4
    Path("monday/moments.arrow").write_bytes(raw)
    assert "moments.arrow does not have the checksum" in run(1, "fit", "monday", "-o", "policy")


class TestDatabases:
    """Sums that a database computes."""

    QUERY = "select * from 'monday.parquet'"

    @pytest.mark.usefixtures("site")
    def test_a_database_sums_or_the_text_is_printed_and_its_table_read(self) -> None:
        named = [*NAMED, "--context", "visits", "--sql", self.QUERY]
        rows = answer("moments", ":memory:", *named, "-o", "rows")
        found = answer("moments", "--in-database", ":memory:", *named, "-o", "sums")
        assert {**found, "moments": "rows", "bytes": 0} == {**rows, "bytes": 0}
        text = run(0, "moments", "--sql-text", "duckdb", *named)
        duckdb.sql(text).write_parquet("table.parquet")
        assert answer("moments", "from-sums", "table.parquet", "-o", "read")["rows"] == 300
        expected = LogMoments.load("rows")
        for made in ("sums", "read"):
            assert expected.moments.allclose(LogMoments.load(made).moments)
        assert answer("moments", "show", "sums")["provenance"]["summed"] == "in the database"
        assert "HierOPO learned from 300 rows of 6 tasks" in run(0, "fit", "read", "-o", "policy")
        few = answer("moments", "--in-database", ":memory:", *named, "--filter", "visits > 0", "-o", "few")
        assert few["rows"] < 300

    @pytest.mark.usefixtures("site")
    def test_options_that_do_not_go_together(self) -> None:
        sql, text = ["--sql", self.QUERY], ["moments", "--sql-text", "duckdb"]
        into = ["moments", "--in-database", ":memory:", *NAMED]
        for words, message in (
            (["moments", *NAMED, "-o", "x"], "Missing argument 'LOG'"),
            (
                ["moments", "monday.parquet", *into[1:], "-o", "x"],
                "LOG and --in-database name the rows in several ways",
            ),
            ([*into, *sql], "Missing option '-o' / '--output'"),
            ([*into, "-o", "x"], "--in-database sums the rows of a query"),
            ([*into, *sql, "-o", "x", "--lenient"], "--lenient is for a read of the rows"),
            ([*into, *sql, "-o", "x", "--type", "visits=number"], "the columns of a database have types"),
            ([*text, *NAMED], "--sql-text sums the rows of a query"),
            ([*text, *NAMED, *sql, "-o", "x"], "--sql-text prints a text and runs nothing"),
            ([*text, *sql], "Name --reward"),
        ):
            assert message in run(2, *words)
        assert "dialect 'oracle'" in run(1, "moments", "--sql-text", "oracle", *NAMED, *sql)
        assert "is no table of sums" in run(1, "moments", "from-sums", "monday.parquet", "-o", "x")
        assert not Path("x").exists()

    @pytest.mark.usefixtures("site")
    def test_text_that_no_test_runs_says_so(self) -> None:
        pytest.importorskip("sqlglot", reason="of the extra warehouse, which `make test` installs")
        words = ["moments", "--sql-text", "bigquery", *NAMED, "--sql", "select * from shop.log"]
        done = CliRunner().invoke(main, words, prog_name="hieropo")
        assert done.exit_code == 0
        assert "no test has run it on BigQuery" in done.stderr
        assert "`store` as task_0" in done.stdout
