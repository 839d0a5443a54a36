"""``hieropo convert`` as its callers meet it."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from command_line import answers, called, refuses

DATA = Path(__file__).parents[1] / "data"


@pytest.mark.slow
def test_a_file_of_vowpal_wabbit_becomes_a_log_and_a_policy(tmp_path):
    said = answers("convert", DATA / "cb_adf_news.vw", "-o", "log.parquet", "--from", "cb_adf",
                    "--action", "Action.article", "--one-hot", "User.time_of_day", folder=tmp_path)  # fmt: skip
    assert "log.parquet holds 113 decisions." in said
    assert "User.time_of_day=morning" in said
    roles = ["--task", "User.user", "--action", "action", "--reward", "reward", "--pscore", "pscore"]
    answers("fit", "log.parquet", "-o", "policy", *roles, folder=tmp_path)
    answers("convert", "log.parquet", "-o", "log.dsjson", "--to", "dsjson", *roles, "--eligible", "eligible",
             folder=tmp_path)  # fmt: skip
    answers("convert", tmp_path / "log.dsjson", "-o", tmp_path / "again.parquet", "--from", "dsjson", "--action",
            "Action.action")  # fmt: skip
    first, again = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("log", "again"))
    for one, other in (("action",) * 2, ("reward",) * 2, ("eligible",) * 2, ("User.user", "Task.User.user")):
        assert first[one].to_pylist() == again[other].to_pylist()


@pytest.mark.slow
def test_json_says_what_was_left_out(tmp_path, recwarn):
    done = json.loads(
        answers(
            "convert", DATA / "coffee.dsjson", "-o", tmp_path / "log.parquet", "--from", "dsjson", "--json"
        )
    )
    assert (done["rows"], done["left_out"]) == (23, {})
    assert not recwarn.list


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        ([], 2, "Give either --from"),
        (["--from", "cb", "--to", "cb"], 2, "Give either --from"),
        (["--from", "cb", "--task", "x"], 2, "are for --to"),
        (["--to", "cb", "--quoted"], 2, "are for --from"),
        (["--to", "cb", "--lenient"], 2, "are for --from"),
        (["--from", "cb", "--rejects", "{log}"], 2, "would both be written to"),
        (["--to", "cb", "--task", "x"], 2, "--to needs --action, --reward, --pscore"),
        (["--from", "dsjson"], 1, "not JSON"),
        (["--from", "cb", "-o", "log.csv"], 2, "a log is written as Parquet"),
    ],
)
def test_what_is_refused(more, code, message, tmp_path):
    more = [word.format(log=tmp_path / "log.parquet") for word in more]
    assert message in refuses(code, "convert", DATA / "cb.vw", "-o", tmp_path / "log.parquet", *more)
    assert not list(tmp_path.iterdir())


def test_a_missing_file_is_named(tmp_path):
    said = refuses(1, "convert", tmp_path / "none.vw", "-o", tmp_path / "log.parquet", "--from", "cb")
    assert "none.vw cannot be opened" in said


@pytest.mark.slow
def test_examples_that_cannot_be_read_are_set_aside_and_listed(tmp_path):
    good = (DATA / "coffee.dsjson").read_text().splitlines()
    bad = json.dumps(json.loads(good[0]) | {"_label_probability": "oops"})
    (tmp_path / "log.dsjson").write_text("\n".join([*good, bad]))
    words = ("convert", tmp_path / "log.dsjson", "--from", "dsjson", "-o", tmp_path / "log.parquet")
    assert "line 24: _label_probability 'oops' is not a finite number" in refuses(1, *words)
    done = called(*words, "--lenient", "--rejects", tmp_path / "bad.parquet", "--json")
    found = json.loads(done.stdout)
    assert (found["rows"], found["rejected"]["rows"], len(found["warnings"])) == (23, 1, 1)
    counted = "1 of 24 rows (4.17%): 1 not a number in '_label_probability' (first in line 24: oops)"
    assert f"{counted} were set aside. Each is listed in" in done.stderr
    assert pq.read_table(tmp_path / "bad.parquet")["line"].to_pylist() == [24]
    assert pq.read_table(tmp_path / "log.parquet").num_rows == 23
    assert f"Set aside: {counted}." in called(*words, "--lenient").stdout
