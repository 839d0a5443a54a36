"""Logs and requests of every kind on the command line: in real files, through every command that reads rows."""

import gzip
import json
import shlex
from pathlib import Path
from typing import Any

import adbc_driver_postgresql.dbapi as adbc
import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from command_line import FIT, make_log
from postgres_server import running

from hieropo import load_policy
from hieropo.cli import main


def run(*words: object) -> Any:
    return CliRunner().invoke(main, [str(word) for word in words], prog_name="hieropo")


def answers(*words: object) -> str:
    done = run(*words)
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    return done.stdout


def refuses(code: int, *words: object) -> str:
    done = run(*words)
    assert (done.exit_code, done.stdout) == (code, ""), done.output
    return done.stderr


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one log in several forms; tests leave it as it is."""
    folder = tmp_path_factory.mktemp("shop")
    log = make_log().append_column("day", pa.array([f"2026-01-{1 + i % 9:02}" for i in range(400)]))
    pq.write_table(log.filter(pc.field("day") >= "2026-01-04"), folder / "late.parquet")
    with gzip.open(folder / "log.csv.gz", "wb") as file:
        pacsv.write_csv(log, file)
    with (folder / "log.jsonl").open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in log.to_pylist())
    for day in range(1, 10):
        name = f"2026-01-{day:02}"
        (folder / "days" / f"day={name}").mkdir(parents=True)
        rows = log.filter(pc.field("day") == name).drop_columns(["day"])
        pq.write_table(rows, folder / "days" / f"day={name}" / "part.parquet")
    (folder / "requests.csv").write_text(
        "store,visits,day\n0,3.0,2026-01-31\n7,4.0,2026-01-30\n99,5.0,2026-01-31\n"
    )
    answers("fit", folder / "late.parquet", "-o", folder / "policy", *FIT, "--context", "visits")
    return folder


LATE = ("--filter", "day >= '2026-01-04'")


@pytest.mark.slow
@pytest.mark.parametrize("log", ["log.csv.gz", "log.jsonl", "days", "days/*/*.parquet"])
def test_a_policy_is_that_of_the_same_rows_in_parquet(log: str, shop: Path, tmp_path: Path) -> None:
    words = (*FIT, "--context", "visits", *LATE)
    text = answers("fit", shop / log, "-o", tmp_path / "policy", *words)
    assert f"in {shop / log} where day >= '2026-01-04'." in text
    expected, found = load_policy(shop / "policy").policy, load_policy(tmp_path / "policy").policy
    for store in range(8):
        mine, theirs = found.choose(store, [3.0]), expected.choose(store, [3.0])
        assert mine.action == theirs.action
        assert mine.lower_bound == pytest.approx(theirs.lower_bound, rel=1e-9)
    shown = answers("inspect", tmp_path / "policy")
    assert "where day >= '2026-01-04'" in shown
    command = next(line for line in text.splitlines() if "hieropo evaluate" in line)
    assert shlex.split(command)[-2:] == list(LATE)


@pytest.mark.slow
def test_evaluate_takes_them(shop: Path) -> None:
    one = json.loads(answers("evaluate", shop / "policy", shop / "late.parquet", "--json"))
    two = json.loads(answers("evaluate", shop / "policy", shop / "days", *LATE, "--json"))
    assert two["filter"] == LATE[1]
    assert two["rows"] == one["rows"]


def test_doctor_takes_them(shop: Path) -> None:
    found = json.loads(run("doctor", shop / "days", *FIT, *LATE, "--json").stdout)
    assert found["filter"] == LATE[1]
    assert found["rows"] == pq.read_metadata(shop / "late.parquet").num_rows


def test_moments_take_them(shop: Path, tmp_path: Path) -> None:
    words = (*FIT, "--context", "visits")
    answers("moments", shop / "log.jsonl", "-o", tmp_path / "late", *words, *LATE)
    found = json.loads(answers("moments", "show", tmp_path / "late", "--json"))
    assert found["rows"] == pq.read_metadata(shop / "late.parquet").num_rows
    assert found["provenance"]["filter"] == LATE[1]
    assert "--filter, --sql and --type are for rows" in refuses(
        2, "fit", tmp_path / "late", "-o", tmp_path / "p", *LATE
    )


def test_decide_takes_them(shop: Path, tmp_path: Path) -> None:
    out = tmp_path / "decisions.parquet"
    answers("decide", shop / "policy", shop / "requests.csv", "-o", out, "--filter", "day = '2026-01-31'")
    found = pq.read_table(out).to_pydict()
    assert found["store"] == [0, 99]
    assert found["row"] == [0, 1]
    assert "which the decisions would replace" in refuses(2, "decide", shop / "policy", out, "-o", out)


@pytest.mark.parametrize(
    ("code", "words", "message"),
    [
        (1, ["--filter", "day >= 2026"], "column 'day' of the CSV file"),
        (1, ["--filter", "Day = 'x'"], "Did you mean 'day'?"),
        (1, ["--type", "store=numbr"], "The type 'numbr' of column 'store' is none of text"),
        (1, ["--type", "stores=text"], "types= names 'stores'"),
        (2, ["--type", "store"], "'store' is not COL=TYPE"),
        (1, ["--type", "offer=number"], "'offer', line 2 of"),
    ],
)
def test_what_is_wrong_is_said(code: int, words: list[str], message: str, shop: Path, tmp_path: Path) -> None:
    error = refuses(code, "fit", shop / "log.csv.gz", "-o", tmp_path / "p", *FIT, *words)
    assert message in " ".join(error.split())


def test_a_late_text_among_the_rewards_is_named_by_file_and_line(tmp_path: Path) -> None:
    rows = "".join(f"{i % 7},a,{i}\n" for i in range(3000))
    (tmp_path / "log.csv").write_text("store,offer,profit\n" + rows + "3,a,n/a\n3,a,12 EUR\n")
    error = refuses(1, "fit", tmp_path / "log.csv", "-o", tmp_path / "p", *FIT)
    assert f"Line 3003 of '{tmp_path / 'log.csv'}': '12 EUR' is not a number" in error


@pytest.fixture(scope="module")
def database(shop: Path) -> Path:
    with duckdb.connect(str(shop / "shop.duckdb")) as connection:
        connection.execute(
            f"create table log as from read_parquet('{shop}/days/*/*.parquet', hive_partitioning=true)"
        )
        connection.execute(
            "create table requests as from (values (0, 3.0), (7, 4.0), (99, 5.0)) as t(store, visits)"
        )
    return shop / "shop.duckdb"


@pytest.mark.slow
def test_a_database_is_read_by_every_command(database: Path, shop: Path, tmp_path: Path) -> None:
    query = ("--sql", "select * from log order by day")
    text = answers("fit", database, *query, *LATE, "-o", tmp_path / "p", *FIT, "--context", "visits")
    mine, theirs = load_policy(tmp_path / "p").policy, load_policy(shop / "policy").policy
    assert mine.choose(3, [3.0]).lower_bound == pytest.approx(theirs.choose(3, [3.0]).lower_bound, rel=1e-9)
    command = next(line for line in text.splitlines() if "hieropo evaluate" in line)
    found = json.loads(answers(*shlex.split(command)[1:], "--json"))
    assert (found["sql"], found["filter"]) == (query[1], LATE[1])
    out = tmp_path / "d.parquet"
    answers("decide", tmp_path / "p", database, "--sql", "from requests order by store", "-o", out)
    assert pq.read_table(out)["store"].to_pylist() == [0, 7, 99]
    assert json.loads(run("doctor", database, *query, *FIT, "--json").stdout)["rows"] == 400


@pytest.mark.slow
def test_a_query_reads_files_without_a_database(shop: Path, tmp_path: Path) -> None:
    columns = "store, offer, profit as gain, visits"
    query = (
        f"select {columns} from read_parquet('{shop}/days/*/*.parquet') order by filename, file_row_number"
    )
    words = ("--task", "store", "--action", "offer", "--reward", "gain", "--context", "visits")
    text = answers("fit", ":memory:", "--sql", query, *words, "-o", tmp_path / "p")
    command = next(line for line in text.splitlines() if "hieropo evaluate" in line)
    evaluation = json.loads(answers(*shlex.split(command)[1:], "--json"))
    assert (evaluation["log"], evaluation["learned_from"]) == (":memory:", "yes")
    assert ":memory: is DuckDB's database without a file" in refuses(
        1, "fit", ":memory:", *FIT, "-o", tmp_path / "q"
    )


@pytest.mark.slow
def test_a_postgres_server_is_read_and_its_password_kept_nowhere(shop: Path, tmp_path: Path) -> None:
    with running() as url:
        with adbc.connect(url) as connection, connection.cursor() as cursor:
            cursor.adbc_ingest("log", make_log(), mode="create")
            connection.commit()
        told = url.replace("tester@", "tester:secret@")
        words = ("--sql", "select * from log", *FIT, "--context", "visits")
        text = answers("fit", told, *words, "-o", tmp_path / "p", "--filter", "visits > 0")
        assert "postgresql://tester@" in text
        assert "secret" not in text
        assert load_policy(tmp_path / "p").provenance["sql"] == "select * from log"
        assert not [path for path in (tmp_path / "p").iterdir() if b"secret" in path.read_bytes()]
        error = refuses(1, "fit", told, "--sql", "select * from lag", *FIT, "-o", tmp_path / "q")
        assert "secret" not in error
        assert 'relation "lag" does not exist' in error
        assert "Give a query" in refuses(1, "fit", told, *FIT, "-o", tmp_path / "q")
    error = refuses(1, "fit", shop / "late.parquet", "--sql", "select 1", *FIT, "-o", tmp_path / "q")
    assert "cannot be read as DuckDB" in error
