"""``hieropo moments --shards`` and ``--part``, merge and fit, as the jobs of a scheduler meet them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import FIT as NAMED
from command_line import ends as run
from command_line import in_json as answer

from hieropo import LogMoments
from hieropo.learners import in_shards
from hieropo.logs.formats.paths import LogFiles, part_of_files
from hieropo.passes.sharded import ShardedMoments


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a log in five files of different lengths."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log").mkdir()
    for k in range(5):
        rng = np.random.default_rng(k)
        n = 200 + 150 * k
        rows = {
            "store": [f"s{s}" for s in rng.integers(60, size=n)],
            "offer": rng.choice(["a", "b", "c"], size=n),
            "profit": rng.normal(size=n),
        }
        pq.write_table(pa.table(rows), tmp_path / "log" / f"{k}.parquet")
    return tmp_path / "log"


def test_parts_merge_to_the_moments_of_the_log(log):
    for part in ("3/3", "1/3", "2/3"):
        report = answer("moments", log, "--shards", 8, "--part", part, "-o", "parts", *NAMED)
        assert report["moments"] == f"parts/part-0000{part[0]}"
    report = answer("moments", "merge", "parts", "-o", "all")
    assert (report["rows"], report["tasks"], report["shards"]) == (2500, 60, 8)
    whole = LogMoments.of(str(log), task="store", action="offer", reward="profit")
    assert ShardedMoments.open("all").joined().moments.allclose(whole.moments)
    assert "Next: hieropo fit all -o policy" in run(0, "moments", "show", "all")
    assert answer("fit", "all", "-o", "policy")["rows"] == 2500


def test_a_part_that_is_there_is_not_made_again(log):
    words = ("moments", log, "--shards", 4, "--part", "2/5", "-o", "parts", *NAMED)
    assert "done_before" not in answer(*words)
    assert answer(*words)["done_before"] is True
    os.utime(log / "1.parquet", (1, 1))
    assert "this job has" in run(1, *words)  # the file has changed


@pytest.mark.parametrize("sizes", [[1] * 5, [100, 1, 1, 1, 1], [1, 1, 1, 1, 100], [0, 0, 3, 0, 7]])
def test_parts_are_all_files_once_and_none_is_empty(tmp_path, sizes):
    files = [tmp_path / f"{k}.csv" for k in range(5)]
    for file, size in zip(files, sizes, strict=True):
        file.write_text("a" * size)
    log = LogFiles("CSV", tuple(files), tmp_path, "folder")
    for count in range(1, 6):
        parts = [part_of_files(log, number, count).files for number in range(1, count + 1)]
        assert [file for part in parts for file in part] == files
        assert all(parts)


def test_numbers_of_parts_name_the_jobs_of_other_files(log):
    for k in (0, 4):
        run(0, "moments", log / f"{k}.parquet", "--shards", 4, "--part", k, "-o", "parts", *NAMED)
    assert answer("moments", "merge", "parts", "-o", "both", "--shards", 16)["shards"] == 16


def test_a_merge_can_be_written_beside_its_parts(log):
    run(0, "moments", log, "--shards", 4, "--part", "1/1", "-o", "parts", *NAMED)
    assert answer("moments", "merge", "parts/part-00001", "-o", "parts")["rows"] == 2500


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["--shards", 7], "power of two"),
        (["--part", 3], "give --shards too"),
        (["--shards", 4, "--part", "0/3"], "no part"),
        (["--shards", 4, "--part", "x"], "neither a number"),
        (["--shards", 4, "--part", "1/6"], "5 files"),
    ],
)
def test_options_that_cannot_be_are_refused(log, words, match):
    assert match in run(2 if "6" not in str(words[-1]) else 1, "moments", log, *words, "-o", "out", *NAMED)
    assert not Path("out").exists()


@pytest.mark.usefixtures("log")
def test_queries_have_no_parts():
    words = ("moments", ":memory:", "--sql", "select * from 'log/*.parquet'", "--shards", 4)
    assert "no log in files" in run(2, *words, "--part", "1/2", "-o", "out", *NAMED)
    assert answer(*words, "-o", "out", *NAMED)["tasks"] == 60


def test_merge_refuses_what_does_not_go_together(log):
    run(0, "moments", log, "-o", "plain", *NAMED)
    run(0, "moments", log, "--shards", 4, "-o", "shards", *NAMED)
    assert "does not" in run(2, "moments", "merge", "shards", "plain", "-o", "out")
    assert "holds none" in run(2, "moments", "merge", "plain", "-o", "out", "--shards", 4)
    assert "It holds sharded moments" in run(1, "moments", "subtract", "shards", "plain", "-o", "out")
    run(0, "moments", log, "--shards", 4, "--part", "1/2", "-o", "parts", *NAMED)
    assert "lacks 2" in run(1, "moments", "merge", "parts", "-o", "out")
    assert "not merged" in run(1, "fit", "parts", "-o", "policy")
    assert "other files" in run(1, "moments", log, "--shards", 4, "-o", "plain", *NAMED)


@pytest.mark.slow
def test_a_merge_that_is_killed_goes_on_with_the_same_bits(log):
    for part in ("1/2", "2/2"):
        run(0, "moments", log, "--shards", 64, "--part", part, "-o", "parts", *NAMED)
    words = [sys.executable, "-m", "hieropo", "moments", "merge", "parts", "-o", "killed"]
    job = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while job.poll() is None and len(list(Path().glob("killed/shard-*"))) < 5:
        time.sleep(0.002)
    job.send_signal(signal.SIGKILL)
    job.wait()
    done = {path.name: path.stat().st_ctime_ns for path in Path().glob("killed/shard-*")}
    assert done
    run(0, "moments", "merge", "parts", "-o", "killed")
    run(0, "moments", "merge", "parts", "-o", "whole")
    assert all(Path("killed", name).stat().st_ctime_ns == time_ for name, time_ in done.items())
    for one, other in zip(
        ShardedMoments.open("killed").shards(), ShardedMoments.open("whole").shards(), strict=True
    ):
        assert np.array_equal(one.moments.sums, other.moments.sums)
    assert not list(Path("killed").glob(".*saving*"))


@pytest.mark.slow
def test_a_policy_of_shards_decides_and_is_evaluated(log, monkeypatch):
    monkeypatch.setattr(in_shards, "JOINED", 0)
    run(0, "moments", log, "--shards", 4, "-o", "shards", *NAMED)
    shown = run(0, "fit", "shards", "-o", "policy")
    assert "hieropo decide policy" in shown
    assert "hieropo evaluate" in shown
    assert "60, such as" in run(0, "inspect", "policy")
    assert "500 decisions" in run(0, "decide", "policy", log / "2.parquet", "-o", "d.parquet")
    assert "DR" in run(0, "evaluate", "policy", log)
    assert "s1" in run(0, "explain", "policy", "--task", "s1", "--moments", "shards")
