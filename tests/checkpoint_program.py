"""Kill a process while it sums a log, and let others go on from its checkpoint until one comes to the end.

Run as ``python checkpoint_program.py <directory> <what> ...``; writes one JSON document with what was found. Every
summing process is a real one: a fork of this, which has everything imported, so that a hundred take seconds.
"""

import hashlib
import json
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hieropo import per_action
from hieropo.logs.opening import open_log
from hieropo.passes.checkpoints import features_and_sums, stored_sums
from hieropo.passes.log_moments import LogMoments
from hieropo.rows.batches import Roles
from hieropo.storage.checkpoint import remove_checkpoint
from hieropo.storage.directories import displaced

PLAIN = Roles("store", "offer", "profit", context=("visits",))
PLACED = Roles("store", "offer", "profit", context=("visits",), levels=("region",), metadata=("size",))
FEATURES = per_action(["a", "b", "c"], ["visits"])


def write_log(folder: Path, files: int, rows: int) -> Path:
    """Write files of four row groups each, with more stores from file to file."""
    log = folder / "log"
    log.mkdir()
    for number in range(files):
        rng = np.random.default_rng(number)
        store = rng.integers(20 + 10 * number, size=rows)
        table = {
            "store": [f"store {each}" for each in store],
            "offer": np.array(["a", "b", "c"])[rng.integers(3, size=rows)],
            "profit": rng.normal(size=rows), "visits": rng.normal(size=rows),
            "region": [f"region {each % 3}" for each in store], "size": store / 100,
        }  # fmt: skip
        pq.write_table(pa.table(table), log / f"part-{number:02}.parquet", row_group_size=-(-rows // 4))
    return log


class ProgressSource:
    """A source that writes down which file is read next, before it is."""

    rereadable = True

    def __init__(self, log: Path, notes: Path) -> None:
        self._source: Any = open_log(log)
        self._notes = notes
        self.name, self.schema, self.n_rows = self._source.name, self._source.schema, self._source.n_rows
        self.files: Sequence[Path] = self._source.files

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Pass batches on."""
        yield from self._source.batches(columns)

    def parts(self, columns: Sequence[str]) -> list[Any]:
        """Pass parts on."""
        return [_Part(part, self._notes) for part in self._source.parts(columns)]


class _Part:
    def __init__(self, part: Any, notes: Path) -> None:
        self._part, self._notes = part, notes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def batches(self) -> Iterator[pa.RecordBatch]:
        with self._notes.open("a") as notes:  # one write, whole, also when this is killed
            notes.write(f"{os.getpid()} {self._part.file}\n")
        yield from self._part.batches()


class Stand:
    """A log, and what a pass over it gives that nothing stops."""

    def __init__(self, folder: Path, files: int, rows: int, *, roles: Roles, lanes: int) -> None:
        self.roles, self.lanes = roles, lanes
        self.log, self.notes = write_log(folder, files, rows), folder / "notes"
        self.checkpoint, self.result = folder / "checkpoint", folder / "result"
        self.notes.touch()
        self.whole()
        self.expected = self.bits()
        self.reset()

    def reset(self) -> None:
        """Forget the checkpoint and the result."""
        for each in (self.checkpoint, self.result):
            if each.exists():
                for path in each.iterdir():
                    path.unlink()
                each.rmdir()
        self.notes.write_text("")

    def whole(self) -> None:
        """Sum over the log, and save what was found."""
        source: Any = ProgressSource(self.log, self.notes)
        features, summed = features_and_sums(
            source, FEATURES, self.roles, lambda _: True, checkpoint=self.checkpoint, threads=self.lanes
        )
        LogMoments(features, self.roles, summed).save(self.result)
        remove_checkpoint(self.checkpoint)

    def tidy(self) -> None:
        """Remove what is left of a checkpoint."""
        remove_checkpoint(self.checkpoint)

    def all_done(self) -> bool:
        """Say whether the result was there before a kill while the checkpoint was being removed."""
        return self.result.exists() and not self.checkpoint.exists() and displaced(self.checkpoint) is None

    def bits(self) -> str:
        """Return a hash of all that was found."""
        found = LogMoments.load(self.result)
        stored = stored_sums(found.summed)
        moments = found.moments
        arrays = (moments.sums, moments.rows, moments.log_precision)
        hashed = hashlib.sha256(b"".join(array.tobytes() for array in arrays))
        known = {task: values.tolist() for task, values in stored.known.items()}
        hashed.update(repr((moments.tasks.tolist(), stored.sketch.to_dict(), stored.levels, known)).encode())
        return hashed.hexdigest()

    def reread(self) -> int:
        """Return how many files, at the most, a process read again that an earlier one had read."""
        readers: dict[str, list[int]] = {}
        for line in self.notes.read_text().splitlines():
            process, file = line.split()
            readers.setdefault(process, []).append(int(file))
        most = 0
        seen: list[int] = []
        for files in readers.values():
            most = max(most, len(set(seen) & set(files)))
            seen += files
        return most


def child(action: Callable[[], Any]) -> int:
    """Run in a process of its own; its number."""
    number = os.fork()
    if number == 0:
        status = 0
        try:
            action()
        except BaseException as error:  # noqa: BLE001 - nothing may leave a fork
            os.write(2, repr(error).encode())
            status = 1
        os._exit(status)
    return number


def ended(number: int) -> int:
    """Return how a process ended: its status, or minus the signal."""
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def is_step(event: str) -> bool:
    """Return True for an audit event of an operation on files."""
    return event.startswith(("open", "os.", "shutil.", "fcntl.", "mmap.")) and event != "os.kill"


def die_before(step: int, action: Callable[[], Any]) -> None:
    """Run in this process, and kill it before its operation on files number ``step``."""
    left = iter(range(step))

    def kill(event: str, _: Any) -> None:
        if is_step(event) and next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(kill)
    action()


def steps_of(action: Callable[[], Any], file: Path) -> int:
    """Run in a process of its own, and return the number of its operations on files."""

    def count() -> None:
        events = []
        sys.addaudithook(lambda event, _: events.append(event) if is_step(event) else None)
        action()
        file.write_text(str(len(events)))

    assert ended(child(count)) == 0
    return int(file.read_text())


def killed_before_every_step(folder: Path) -> dict[str, Any]:
    """Kill a pass before its first operation on files, before its second, ...; each time go on and end."""
    stand = Stand(folder, files=2, rows=40, roles=PLAIN, lanes=1)
    same, reread, left, steps = 0, 0, 0, 0
    status = -signal.SIGKILL
    while status == -signal.SIGKILL:
        stand.reset()
        status = ended(child(partial(die_before, steps, stand.whole)))
        assert ended(child(stand.tidy if stand.all_done() else stand.whole)) == 0
        same += stand.bits() == stand.expected
        reread = max(reread, stand.reread())
        left += sorted(path.name for path in folder.iterdir()) != ["log", "notes", "result"]
        steps += 1
    return {"steps": steps, "same": same, "reread": reread, "left": left, "status": status}


def killed_at_random(folder: Path) -> dict[str, Any]:
    """Kill passes before random steps, one after the other, until one gets through; do so several times.

    The others of three threads are then anywhere. The moments are steps and no times, so that a busy machine kills as
    an idle one does.
    """
    stand = Stand(folder, files=6, rows=20_000, roles=PLACED, lanes=3)
    stand.reset()
    steps = steps_of(stand.whole, folder / "steps")
    rng = random.Random(5)
    kills, same, reread = [], 0, 0
    for _ in range(3):
        stand.reset()
        killed = 0
        while True:
            step = rng.randint(int(0.05 * steps), int(0.6 * steps))  # a pass from the beginning has them
            status = ended(child(partial(die_before, step, stand.whole) if killed < 20 else stand.whole))
            if status != -signal.SIGKILL:
                break
            killed += 1
            if stand.all_done():  # it was killed behind its end: one more would begin from the first file
                break
        assert status == 0 or stand.all_done()
        kills.append(killed)
        same += stand.bits() == stand.expected
        reread = max(reread, stand.reread())
    return {"kills": kills, "same": same, "reread": reread}


if __name__ == "__main__":
    place, *names = sys.argv[1:]
    outcomes = {}
    for name in names:
        where = Path(place) / name
        where.mkdir()
        outcomes[name] = globals()[name](where)
    sys.stdout.write(json.dumps(outcomes))
