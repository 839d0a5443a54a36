"""A pass that was killed at any moment goes on, and ends as if nothing had stopped it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from hieropo import HierOPO, LogMoments, per_action
from hieropo.errors import ArtifactError, InputError, LogError, MismatchError
from hieropo.logs.opening import open_log
from hieropo.passes.checkpoints import features_and_sums
from hieropo.rows.batches import Roles
from hieropo.storage import layout
from hieropo.storage.checkpoint import read_checkpoint, remove_checkpoint

PROGRAM = Path(__file__).parents[1] / "checkpoint_program.py"
COMMAND = [sys.executable, "-c", "from hieropo.cli import main; main(prog_name='hieropo')"]
COLUMNS: dict[str, Any] = {"task": "store", "action": "offer", "reward": "profit", "context": ["visits"]}
ROLES = Roles("store", "offer", "profit", context=("visits",))


def write_part(path: Path, seed: int, rows: int = 300, offers: str = "abc") -> None:
    rng = np.random.default_rng(seed)
    table = {
        "store": rng.integers(15, size=rows), "offer": rng.choice(list(offers), size=rows),
        "profit": rng.normal(size=rows), "visits": rng.normal(size=rows),
    }  # fmt: skip
    pq.write_table(pa.table(table), path, row_group_size=max(rows // 3, 1))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Four files."""
    (tmp_path / "log").mkdir()
    for number in range(4):
        write_part(tmp_path / "log" / f"{number}.parquet", number)
    return tmp_path / "log"


class Stopped(Exception):  # noqa: N818 - a power cut is no error
    pass


class Failing:
    """A source that stops when a file is to be read, as a power cut would."""

    rereadable = True

    def __init__(self, path: Path, at: int) -> None:
        self._source: Any = open_log(path)
        self._at = at
        self.read: list[int] = []
        self.name, self.schema, self.n_rows = self._source.name, self._source.schema, self._source.n_rows
        self.files = self._source.files

    def batches(self, columns: Any, *_: Any) -> Iterator[Any]:
        return iter(self._source.batches(columns))

    def parts(self, columns: Any) -> list[Any]:
        return [_Part(part, self) for part in self._source.parts(columns)]

    def before(self, file: int) -> None:
        self.read.append(file)
        if file == self._at:
            raise Stopped


class _Part:
    def __init__(self, part: Any, source: Failing) -> None:
        self._part, self._source = part, source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def batches(self) -> Iterator[Any]:
        self._source.before(self.file)
        yield from self._part.batches()


def stopped(log: Path, at: int, checkpoint: Path, **columns: Any) -> None:
    with pytest.raises(Stopped):
        LogMoments.of(Failing(log, at), checkpoint=checkpoint, **{**COLUMNS, **columns})


def bits(found: LogMoments) -> tuple[Any, ...]:
    moments = found.moments
    arrays = (
        moments.sums.tobytes(),
        moments.rows.tobytes(),
        moments.log_precision.tobytes(),
        moments.tasks.tolist(),
    )
    return (*arrays, found.features, found.roles, found.summed.sketch.to_dict())


@pytest.mark.parametrize("at", [0, 1, 3])
def test_only_files_that_were_not_read_are_read_again(at: int, log: Path, tmp_path: Path) -> None:
    stopped(log, at, tmp_path / "kept")
    again = Failing(log, -1)
    found = LogMoments.of(again, checkpoint=tmp_path / "kept", **COLUMNS)
    assert sorted(set(again.read)) == list(range(at, 4))
    assert bits(found) == bits(LogMoments.of(log, checkpoint=tmp_path / "other", **COLUMNS))
    third = Failing(log, -1)  # all is done: nothing is read
    assert bits(LogMoments.of(third, checkpoint=tmp_path / "kept", **COLUMNS)) == bits(found)
    assert third.read == []
    remove_checkpoint(tmp_path / "kept")
    remove_checkpoint(tmp_path / "kept")  # there is none any more
    assert not (tmp_path / "kept").exists()


def test_checkpoints_change_nothing_but_how_files_are_read(log: Path, tmp_path: Path) -> None:
    plain, kept = LogMoments.of(log, **COLUMNS), LogMoments.of(log, checkpoint=tmp_path / "kept", **COLUMNS)
    assert bits(plain) == bits(kept)
    stored = read_checkpoint(tmp_path / "kept")
    assert stored is not None
    assert (stored.files, sum(sums.sketch.rows for sums in stored.worker_sums)) == (4, 1200)


@pytest.mark.slow
@pytest.mark.parametrize("cov", ["diag", "crossed"])
def test_a_fit_goes_on_too(cov: Any, log: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"uncertainty": "auto", "task_cov": cov}
    with pytest.raises(Stopped):
        HierOPO(**settings).fit(Failing(log, 2), checkpoint=tmp_path / "kept", **COLUMNS)
    source = Failing(log, -1)
    learner = HierOPO(**settings).fit(source, checkpoint=tmp_path / "kept", **COLUMNS)
    assert sorted(set(source.read)) == [2, 3]
    whole = HierOPO(**settings).fit(log, **COLUMNS)
    assert learner.moments_.sums.tobytes() == whole.moments_.sums.tobytes()
    assert learner.posterior_.table().means.tobytes() == whole.posterior_.table().means.tobytes()
    other: Any = "diag" if cov == "crossed" else "crossed"  # the sums are those of actions for both
    again = HierOPO(task_cov=other).fit(log, checkpoint=tmp_path / "kept", **COLUMNS)
    assert again.moments_.n_rows == 1200


def test_columns_far_from_0_are_gone_on_with_from_where_they_were_measured(log: Path, tmp_path: Path) -> None:
    for path in log.iterdir():
        table = pq.read_table(path)
        far = pa.array(table["visits"].to_numpy() + 1.7e9)
        pq.write_table(table.set_column(3, "visits", far), path, row_group_size=100)
    stopped(log, 2, tmp_path / "kept")
    found = LogMoments.of(log, checkpoint=tmp_path / "kept", **COLUMNS)
    assert found.features.to_dict()["origin"] == [1.7e9]
    assert bits(found) == bits(LogMoments.of(log, **COLUMNS))


def test_a_filter_is_part_of_what_was_asked_for(log: Path, tmp_path: Path) -> None:
    def where(text: str | None) -> Any:
        return open_log(log, filter=text)

    found = LogMoments.of(where("visits > 0.5"), checkpoint=tmp_path / "kept", **COLUMNS)
    assert bits(found) == bits(LogMoments.of(where("visits > 0.5"), **COLUMNS))
    refused(
        "filter='visits > 0.5', and this pass has filter='visits > 0.4'",
        where("visits > 0.4"),
        tmp_path / "kept",
    )
    refused("filter='visits > 0.5', and this pass has filter=None", where(None), tmp_path / "kept")


def refused(text: str, log: Any, kept: Path, **columns: Any) -> None:
    with pytest.raises(MismatchError, match=text) as caught:
        LogMoments.of(log, checkpoint=kept, **{**COLUMNS, **columns})
    assert f"Remove the checkpoint {kept} to begin anew" in caught.value.__notes__[0]


def test_files_that_were_read_and_have_changed_are_noticed(log: Path, tmp_path: Path) -> None:
    kept, first = tmp_path / "kept", log / "1.parquet"
    stopped(log, 3, kept)
    raw, status = first.read_bytes(), first.stat()
    os.utime(first)
    refused("'.*1.parquet' was changed since it was read", log, kept)
    first.write_bytes(raw[:-60] + bytes(1) + raw[-59:])
    os.utime(first, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises((MismatchError, LogError), match=r"has another end|cannot be read as Parquet"):
        LogMoments.of(log, checkpoint=kept, **COLUMNS)
    write_part(first, 1, 299)
    refused("'.*1.parquet' has another length", log, kept)
    first.write_bytes(raw)
    os.utime(first, ns=(status.st_atime_ns, status.st_mtime_ns))
    (log / "0.parquet").rename(log / "9.parquet")
    refused("'.*1.parquet' is another file since it was read as '.*0.parquet'", log, kept)
    for number in (2, 3, 9):
        (log / f"{number}.parquet").unlink()
    write_part(log / "0.parquet", 5)
    refused("is of another log", log, kept)


def test_a_log_that_lost_files_is_another_one(log: Path, tmp_path: Path) -> None:
    stopped(log, 3, tmp_path / "kept")
    for number in (2, 3):
        (log / f"{number}.parquet").unlink()
    refused("'.*2.parquet' was read and is missing now", log, tmp_path / "kept")


def test_a_log_may_move_and_grow_behind_what_was_read(log: Path, tmp_path: Path) -> None:
    stopped(log, 2, tmp_path / "kept")
    write_part(log / "4.parquet", 4)
    write_part(log / "3.parquet", 33)  # not read yet
    recentred = log.rename(tmp_path / "moved")
    found = LogMoments.of(recentred, checkpoint=tmp_path / "kept", **COLUMNS)
    assert found.n_rows == 1500
    assert bits(found) == bits(LogMoments.of(recentred, **COLUMNS))
    write_part(recentred / "5.parquet", 5, offers="abcd")
    refused(
        r"the log has \['a', 'b', 'c', 'd'\], the checkpoint \['a', 'b', 'c'\]", recentred, tmp_path / "kept"
    )


def test_other_columns_settings_and_types_are_refused(log: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    stopped(log, 3, kept)
    refused(
        "made with reward='profit', and this pass has reward='visits'",
        log,
        kept,
        reward="visits",
        context=["profit"],
    )
    refused(r"made with context=\['visits'\], and this pass has context=\[\]", log, kept, context=[])
    refused(
        "made with features=None, and this pass has features='indicator'",
        log,
        kept,
        features="indicator",
        context=["visits"],
    )
    refused("features=None", log, kept, features=per_action(["a", "b", "c"], ["visits"]))
    table = pq.read_table(log / "3.parquet")
    pq.write_table(table.set_column(0, "store", table["store"].cast(pa.float64())), log / "3.parquet")
    refused("column 'store' has the type int64; in this log it is double", log, kept)


def test_a_checkpoint_of_another_format_or_damaged_is_refused(log: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    stopped(log, 2, kept)
    document, table = kept / "checkpoint.json", kept / "lane-0-moments.arrow"
    entries = json.loads(document.read_bytes())
    entries.pop("sha256")
    for version in (1, 4):
        document.write_bytes(layout.encode({**entries, "version": version}))
        with pytest.raises(ArtifactError, match=f"format version {version}, .* reads only version 3"):
            LogMoments.of(log, checkpoint=kept, **COLUMNS)
    document.write_bytes(layout.encode(entries))
    raw = bytearray(table.read_bytes())
    raw[200] ^= 1
    table.write_bytes(raw)
    with pytest.raises(ArtifactError, match=r"lane-0-moments\.arrow does not have the checksum") as caught:
        LogMoments.of(log, checkpoint=kept, **COLUMNS)
    assert "to begin anew" in caught.value.__notes__[0]
    table.unlink()
    with pytest.raises(ArtifactError, match=r"lane-0-moments\.arrow is missing"):
        LogMoments.of(log, checkpoint=kept, **COLUMNS)


def test_nothing_else_is_taken_for_a_checkpoint_or_replaced_by_one(log: Path, tmp_path: Path) -> None:
    for place, text in (
        (log, "directory with other files"),
        (tmp_path / "no" / "where", "is not a directory"),
    ):
        with pytest.raises(ArtifactError, match=text) as caught:
            LogMoments.of(log, checkpoint=place, **COLUMNS)
        assert not hasattr(caught.value, "__notes__")
    LogMoments.of(log, **COLUMNS).save(tmp_path / "made")
    with pytest.raises(ArtifactError, match="not a checkpoint"):
        LogMoments.of(log, checkpoint=tmp_path / "made", **COLUMNS)
    with pytest.raises(ArtifactError, match="directory with other files"):
        remove_checkpoint(log)
    assert len(list(log.iterdir())) == 4
    (tmp_path / "empty").mkdir()
    LogMoments.of(log, checkpoint=tmp_path / "empty", **COLUMNS)


def test_where_there_can_be_no_checkpoint_it_is_said(log: Path, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"The log is the Arrow table, and a checkpoint needs a log in files"
    ):
        LogMoments.of(pq.read_table(log), checkpoint=tmp_path / "kept", **COLUMNS)
    with pytest.raises(InputError, match="does not keep the rows that were set aside"):
        LogMoments.of(log, checkpoint=tmp_path / "kept", lenient=True, **COLUMNS)
    with pytest.raises(InputError, match="checkpoint= was given with moments"):
        HierOPO().fit(LogMoments.of(log, **COLUMNS), checkpoint=tmp_path / "kept")


def test_a_file_that_is_still_being_written_is_noticed(log: Path, tmp_path: Path) -> None:
    class Growing(Failing):
        def before(self, file: int) -> None:
            if file == 2:
                os.utime(log / "2.parquet")

    with pytest.raises(LogError, match=r"2\.parquet' changed while it was read"):
        LogMoments.of(Growing(log, -1), checkpoint=tmp_path / "kept", **COLUMNS)
    stored = read_checkpoint(tmp_path / "kept")
    assert stored is not None
    assert stored.files == 2


def test_files_of_every_kind_can_be_gone_on_from(tmp_path: Path) -> None:
    for kind in ("csv", "hive"):
        folder = tmp_path / kind
        for number in range(3):
            place = folder / (f"day=2026-01-0{number + 1}" if kind == "hive" else ".")
            place.mkdir(parents=True, exist_ok=True)
            write_part(place / f"{number}.parquet", number)
            if kind == "csv":
                table = pq.read_table(place / f"{number}.parquet")
                (place / f"{number}.parquet").unlink()
                pa.csv.write_csv(table, place / f"{number}.csv")
        task = {"task": "day"} if kind == "hive" else {}
        stopped(folder, 2, tmp_path / f"kept-{kind}", **task)
        source = Failing(folder, -1)
        found = LogMoments.of(source, checkpoint=tmp_path / f"kept-{kind}", **{**COLUMNS, **task})
        assert set(source.read) == {2}
        assert bits(found) == bits(LogMoments.of(folder, **{**COLUMNS, **task}))


def test_as_many_lanes_go_on_as_there_were(log: Path, tmp_path: Path) -> None:
    def summed(source: Any, threads: int) -> Any:
        return features_and_sums(
            source, None, ROLES, lambda _: True, checkpoint=tmp_path / "kept", threads=threads
        )[1].moments.sums.tobytes()

    expected = summed(open_log(log), 3)
    remove_checkpoint(tmp_path / "kept")
    with pytest.raises(Stopped):
        summed(Failing(log, 2), 3)
    assert summed(open_log(log), 1) == expected


@pytest.fixture
def quick_disk() -> Iterator[Path]:
    """A folder in memory, where there is one: each step of a checkpoint waits for the disk."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the program forks processes in order to kill them")
def test_passes_killed_before_every_step_and_at_random(quick_disk: Path) -> None:
    command = [sys.executable, str(PROGRAM), str(quick_disk), "killed_before_every_step", "killed_at_random"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    every, random = found["killed_before_every_step"], found["killed_at_random"]
    assert every["status"] == 0
    assert every["steps"] > 60
    assert (every["same"], every["left"]) == (every["steps"], 0)
    assert random["same"] == len(random["kills"])
    assert min(random["kills"]) >= 1
    assert max(every["reread"], random["reread"]) <= 1


@pytest.mark.slow
def test_a_command_killed_again_and_again_ends_as_one_that_was_not(log: Path, tmp_path: Path) -> None:
    named = ["--task", "store", "--action", "offer", "--reward", "profit", "--context", "visits"]

    def command(target: str) -> list[str]:
        kept = ["--checkpoint", str(tmp_path / "kept")]
        return [*COMMAND, "fit", str(log), "-o", str(tmp_path / target), *named, *kept]

    for number in range(4):
        write_part(log / f"{number}.parquet", number, 100_000)
    started = time.perf_counter()
    subprocess.run(command("whole"), check=True, capture_output=True, timeout=100)
    seconds = time.perf_counter() - started
    rng = np.random.default_rng(1)
    killed = 0
    while killed < 2:
        with subprocess.Popen(command("made"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            time.sleep(float(rng.uniform(0.4, 0.9)) * seconds)
            process.send_signal(signal.SIGKILL)
            if process.wait() == 0:
                break
        killed += 1
    subprocess.run(command("made"), check=True, capture_output=True, timeout=100)
    assert not (tmp_path / "kept").exists()
    for path in sorted((tmp_path / "whole").iterdir()):
        if path.suffix == ".arrow":
            assert path.read_bytes() == (tmp_path / "made" / path.name).read_bytes(), path.name
