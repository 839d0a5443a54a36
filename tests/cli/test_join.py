"""``hieropo join`` as its callers meet it."""

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import answers, refuses

HOURS = [3_600 * hour for hour in range(40)]


@pytest.fixture
def folder(tmp_path):
    shown = {"request": [f"r{k}" for k in range(40)], "at": pa.array(HOURS, pa.timestamp("s", "UTC")),
             "store": [k % 4 for k in range(40)], "offer": ["none", "coupon"] * 20}  # fmt: skip
    clicked = [k for k in range(26) if k != 3]
    seen = [*(HOURS[k] + 60 for k in clicked), HOURS[1] + 60, HOURS[25], HOURS[39]]
    clicks = {"request": [*(f"r{k}" for k in clicked), "r1", "r3", "rx"],
              "seen": pa.array(seen, pa.timestamp("s", "UTC")), "click": [1] * 28}  # fmt: skip
    pq.write_table(pa.table(shown), tmp_path / "shown.parquet")
    pq.write_table(pa.table(clicks), tmp_path / "clicks.parquet")
    return tmp_path


def words(folder, *more):
    files = [folder / "shown.parquet", folder / "clicks.parquet", "-o", folder / "log.parquet"]
    columns = ["--id", "request", "--time", "at", "--reward-time", "seen", "--reward", "click"]
    return ["join", *files, *columns, "--window", "10h", *more]


@pytest.mark.slow
def test_a_log_is_written_and_learned_from(folder):
    said = answers(*words(folder, "--default", "0", "--until", "1970-01-02T12:00:00Z"))
    assert f"{folder / 'log.parquet'} holds 27 decisions with their rewards." in said
    assert (
        "Window 10 h after the decision; rewards are complete until 1970-01-02 12:00:00 UTC, as given."
        in said
    )
    for line in ("with a reward in their window 25", "without one, which get the default 2",
                 "window still open, left out 13", "repeated, counted once 1", "late, after the window 1",
                 "orphaned, of no decision 1"):  # fmt: skip
        assert line in " ".join(said.split()), line
    log = pq.read_table(folder / "log.parquet")
    assert log.column_names == ["request", "at", "store", "offer", "click"]
    assert log["click"].to_pylist() == [float(k != 3) for k in range(26)] + [0.0]


def test_json_has_all_counts(folder):
    found = json.loads(answers(*words(folder, "--leave-out", "--json")))
    assert found["rows"] == 25
    assert found["report"]["without_reward"] == 5
    assert found["report"]["until_given"] is False
    assert found["warnings"] == []


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        ([], 2, "decision without a reward in its window needs a rule"),
        (["--default", "0", "--leave-out"], 2, "Give either --default"),
        (["--default", "0", "--window", "soon"], 1, "The window 'soon' is not a time such as"),
        (["--default", "0", "--id", "req"], 1, r"'req' \(role id\) is not in"),
        (["--default", "nan"], 1, "default=nan is no reward"),
    ],
)
def test_what_is_refused(folder, more, code, message):
    assert re.search(message, refuses(code, *words(folder, *more)))
    assert not (folder / "log.parquet").exists()


def test_a_missing_file_is_named(folder):
    (folder / "clicks.parquet").unlink()
    assert "clicks.parquet" in refuses(1, *words(folder, "--default", "0"))
