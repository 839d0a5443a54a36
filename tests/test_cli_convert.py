"""``hieropo convert`` as its callers meet it."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from test_cli import answers, fails, refuses, succeeds

DATA = Path(__file__).parent / "data"


def test_a_file_of_vowpal_wabbit_becomes_a_log_and_a_policy(tmp_path):
    said = succeeds("convert", DATA / "cb_adf_news.vw", "-o", "log.parquet", "--from", "cb_adf",
                    "--action", "Action.article", "--one-hot", "User.time_of_day", folder=tmp_path)  # fmt: skip
    assert "log.parquet holds 113 decisions." in said
    assert "User.time_of_day=morning" in said
    roles = ["--task", "User.user", "--action", "action", "--reward", "reward", "--pscore", "pscore"]
    succeeds("fit", "log.parquet", "-o", "policy", *roles, "--hyper", "shared", folder=tmp_path)
    succeeds("convert", "log.parquet", "-o", "log.dsjson", "--to", "dsjson", *roles, "--eligible", "eligible",
             folder=tmp_path)  # fmt: skip
    answers("convert", tmp_path / "log.dsjson", "-o", tmp_path / "again.parquet", "--from", "dsjson", "--action",
            "Action.action")  # fmt: skip
    first, again = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("log", "again"))
    for one, other in (("action",) * 2, ("reward",) * 2, ("eligible",) * 2, ("User.user", "Task.User.user")):
        assert first[one].to_pylist() == again[other].to_pylist()


def test_json_says_what_was_left_out(tmp_path, recwarn):
    done = json.loads(
        succeeds(
            "convert", DATA / "coffee.dsjson", "-o", tmp_path / "log.parquet", "--from", "dsjson", "--json"
        )
    )
    assert (done["rows"], done["left_out"]) == (23, {})
    assert not recwarn.list


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        ([], 2, "Give --from"),
        (["--from", "cb", "--to", "cb"], 2, "Give --from"),
        (["--from", "cb", "--task", "x"], 2, "are for --to"),
        (["--to", "cb", "--quoted"], 2, "are for --from"),
        (["--to", "cb", "--task", "x"], 2, "--action, --reward, --pscore must be named"),
        (["--from", "dsjson"], 1, "not JSON"),
        (["--from", "cb", "-o", "log.csv"], 2, "a log is written as Parquet"),
    ],
)
def test_what_is_refused(more, code, message, tmp_path):
    assert message in refuses(code, "convert", DATA / "cb.vw", "-o", tmp_path / "log.parquet", *more)
    assert not list(tmp_path.iterdir())


def test_a_missing_file_is_named(tmp_path):
    said = fails(1, "convert", tmp_path / "none.vw", "-o", tmp_path / "log.parquet", "--from", "cb")
    assert "none.vw cannot be opened" in said
