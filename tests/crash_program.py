"""Kill a process, fill its disk or take its rights while it saves a policy, and load what is left.

Run as ``python crash_program.py <directory> <what> ...``; writes one JSON document with what was found. Every
saving process is a real one: a fork of this, which has everything imported, so that a hundred take seconds.
"""

import json
import os
import random
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from hieropo import Gaussian, Hierarchy, LCBPolicy, Moments, condition, load_policy, save_policy
from hieropo.errors import ArtifactError
from hieropo.storage import directories

NOBODY = 65534
DIM = 4
PHI = np.random.default_rng(0).standard_normal((30, 7, DIM))


def policy(seed: int, tasks: int) -> tuple[LCBPolicy, Moments]:
    rng = np.random.default_rng(seed)
    ids = np.array([f"task {number}" for number in range(tasks)])
    task = ids[rng.integers(tasks, size=4 * tasks)]
    moments = Moments.from_arrays(task, rng.standard_normal((4 * tasks, DIM)), rng.standard_normal(4 * tasks))
    law = Hierarchy(hyper=Gaussian(np.zeros(DIM), np.eye(DIM)), task_cov=np.eye(DIM), noise_var=1.0)
    return LCBPolicy(condition(moments, law)), moments


def choices(chooser: LCBPolicy) -> str:
    made = chooser.choose_many([f"task {number}" for number in range(len(PHI))], phi=PHI)
    return repr([values.tolist() for values in made])


class Stand:
    """Two policies, the old one saved; which of them is there is told by what it chooses."""

    def __init__(self, folder: Path, tasks: int = 40) -> None:
        self.place = folder / "policy"
        self.old, self.new = policy(1, tasks), policy(2, tasks)
        self.names = {choices(self.old[0]): "old", choices(self.new[0]): "new"}
        self.save(self.old)

    def save(self, which: tuple[LCBPolicy, Moments]) -> None:
        save_policy(which[0], self.place, moments=which[1])

    def there(self) -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the one that says that a writer died
            stored = load_policy(self.place)
        stored.moments()
        return self.names[choices(stored.policy)]

    def in_child(self, action: Callable[[], Any]) -> tuple[int, str]:
        """Run in a process of its own: its exit status, or minus the signal that ended it, and its error."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            status, text = 0, ""
            try:
                action()
            except ArtifactError as error:
                status, text = 1, str(error)
            except BaseException as error:  # noqa: BLE001 - nothing may leave a fork
                status, text = 2, repr(error)
            os.write(writing, text.encode())
            os._exit(status)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            text = pipe.read()
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text

    def siblings(self) -> list[str]:
        return sorted(path.name for path in self.place.parent.iterdir())


def killed_before_every_step(folder: Path) -> dict[str, Any]:
    """Kill a save before its first operation on files, before its second, ... until one gets through."""
    stand = Stand(folder)
    seen, status = [], -signal.SIGKILL
    while status == -signal.SIGKILL:
        stand.save(stand.old)
        steps = iter(range(len(seen)))

        def count(event: str, _: Any, steps: Iterator[int] = steps) -> None:
            counts = event.startswith(("open", "os.", "shutil.", "fcntl.", "mmap.")) and event != "os.kill"
            if counts and next(steps, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)

        def save_and_die(count: Any = count) -> None:
            sys.addaudithook(count)
            stand.save(stand.new)

        status, _ = stand.in_child(save_and_die)
        seen.append(stand.there())
    return {"seen": seen, "status": status, "siblings": stand.siblings()}


def killed_at_random(folder: Path) -> dict[str, Any]:
    """Kill saves of a few megabytes at random moments, while they write."""
    stand = Stand(folder, tasks=5000)
    rng = random.Random(7)
    started = time.perf_counter()
    stand.save(stand.old)
    duration = time.perf_counter() - started
    seen, torn = [], 0
    for turn in range(16):
        which = stand.new if turn % 2 else stand.old
        child = os.fork()
        if child == 0:
            while True:
                stand.save(which)
        time.sleep(rng.uniform(0.5, 4.0) * duration)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        seen.append(stand.there())
        torn += len(stand.siblings()) > 1
    stand.save(stand.new)
    return {"seen": seen, "torn": torn, "siblings": stand.siblings()}


def out_of_space(folder: Path) -> dict[str, Any]:
    """Save under ever larger limits of the size of a file, until one is enough."""
    stand = Stand(folder)
    largest = max(path.stat().st_size for path in stand.place.iterdir())
    seen = []
    for limit in [0, *range(100, largest, largest // 25), largest]:

        def save_under_limit(limit: int = limit) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            stand.save(stand.new)

        seen.append([*stand.in_child(save_under_limit), stand.there(), stand.siblings()])
    return {"seen": seen}


def full_disk(folder: Path) -> dict[str, Any]:
    """Save on a file system with ever more free space; ``folder`` is a small one of its own."""
    stand = Stand(folder)
    size = sum(path.stat().st_size for path in stand.place.iterdir())
    seen = []
    for spare in range(0, 2 * size, size // 6):
        free = os.statvfs(folder)
        (folder / "ballast").write_bytes(bytes(max(free.f_bavail * free.f_frsize - spare, 0)))
        status = stand.in_child(lambda: stand.save(stand.new))
        (folder / "ballast").unlink()
        seen.append([*status, stand.there(), stand.siblings()])
    return {"seen": seen}


def no_rights(folder: Path) -> dict[str, Any]:
    """Save and load as a user who may not."""
    stand = Stand(folder)

    def as_nobody(action: Callable[[], Any]) -> tuple[int, str]:
        def run() -> None:
            if os.getuid() == 0:
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            action()

        return stand.in_child(run)

    folder.chmod(0o555)
    saved = as_nobody(lambda: stand.save(stand.new))
    folder.chmod(0o755)
    (stand.place / "tasks.arrow").chmod(0o000)
    loaded = as_nobody(stand.there)
    (stand.place / "tasks.arrow").chmod(0o644)
    return {"saved": saved, "loaded": loaded, "there": stand.there(), "siblings": stand.siblings()}


def many_savers_and_readers(folder: Path) -> dict[str, Any]:
    """Let several processes save to one path while others load from it."""
    stand = Stand(folder)
    until = time.monotonic() + 1.0

    def saver(which: tuple[LCBPolicy, Moments]) -> None:
        while time.monotonic() < until:
            stand.save(which)

    def reader() -> None:
        while time.monotonic() < until:
            stand.there()

    with ThreadPoolExecutor(4) as pool:
        actions = (lambda: saver(stand.old), lambda: saver(stand.new), reader, reader)
        ends = list(pool.map(stand.in_child, actions))
    return {"ends": ends, "there": stand.there(), "siblings": stand.siblings()}


def run(folder: Path, what: str) -> dict[str, Any]:
    """Run one of the functions above, ``:apart`` as on a file system that cannot exchange two names."""
    name, _, apart = what.partition(":")
    able = directories.exchange
    if apart:
        directories.exchange = lambda _one, _other: False
    try:
        found: dict[str, Any] = globals()[name](folder)
    finally:
        directories.exchange = able
    return found


if __name__ == "__main__":
    place, *names = sys.argv[1:]
    outcomes = {}
    for name in names:
        folder = Path(place) / name.replace(":", "-")
        folder.mkdir()
        outcomes[name] = run(folder, name)
    sys.stdout.write(json.dumps(outcomes))
