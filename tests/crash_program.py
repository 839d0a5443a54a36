"""Kill a process, fill its disk or take its rights while it saves a policy, and load what is left.

Run as ``python crash_program.py <what> <directory>``; prints one JSON document. Every saving process is a real
one: a fork of this, which has everything imported, so that hundreds of them take seconds.
"""

import json
import os
import random
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hieropo import Gaussian, Hierarchy, LCBPolicy, Moments, condition, load_policy, save_policy
from hieropo.artifacts import swap
from hieropo.errors import ArtifactError

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
    return repr(chooser.choose_many([f"task {number}" for number in range(len(PHI))], phi=PHI))


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

    def in_child(self, action: Callable[[], None]) -> int:
        """Run in a process of its own; its exit status, or minus the signal that ended it."""
        child = os.fork()
        if child == 0:
            try:
                action()
            except ArtifactError as error:
                (self.place.parent / "error").write_text(str(error))
                os._exit(1)
            except BaseException as error:  # noqa: BLE001 - nothing may leave a fork
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(2)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def siblings(self) -> list[str]:
        return sorted(path.name for path in self.place.parent.iterdir() if path.name != "error")


def killed_before_every_step(folder: Path) -> dict[str, Any]:
    """Kill a save before its first operation on files, before its second, ... until one gets through."""
    stand = Stand(folder)
    seen = []
    for step in range(1000):
        stand.save(stand.old)

        def save_and_die(step: int = step) -> None:
            left = [step]

            def count(event: str, _: Any) -> None:
                if event.startswith(("open", "os.", "shutil.", "fcntl.", "mmap.")):
                    left[0] -= 1
                    if left[0] < 0:
                        os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(count)
            stand.save(stand.new)

        status = stand.in_child(save_and_die)
        seen.append(stand.there())
        if status != -signal.SIGKILL:
            break
    leftovers = len(stand.siblings()) - 1
    stand.save(stand.new)
    return {"seen": seen, "status": status, "leftovers": leftovers, "siblings": stand.siblings()}


def killed_before_every_step_without_exchange(folder: Path) -> dict[str, Any]:
    """The same, as on a file system that cannot exchange two names."""
    swap.exchange = lambda _one, _other: False
    return killed_before_every_step(folder)


def killed_at_random(folder: Path) -> dict[str, Any]:
    """Kill saves of a few megabytes at random moments, while they write."""
    stand = Stand(folder, tasks=5000)
    rng = random.Random(7)  # noqa: S311
    started = time.perf_counter()
    stand.save(stand.old)
    duration = time.perf_counter() - started
    seen = []
    for turn in range(25):
        which = stand.new if turn % 2 else stand.old
        child = os.fork()
        if child == 0:
            while True:
                stand.save(which)
        time.sleep(rng.uniform(0.0, 2.5 * duration))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        seen.append(stand.there())
    stand.save(stand.new)
    return {"seen": seen, "siblings": stand.siblings()}


def out_of_space(folder: Path) -> dict[str, Any]:
    """Save under ever larger limits of the size of a file, until one is enough."""
    stand = Stand(folder)
    seen = []
    largest = max(path.stat().st_size for path in stand.place.iterdir())
    for limit in [0, *range(100, largest, largest // 25), largest]:

        def save_under_limit(limit: int = limit) -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            error = os.open(stand.place.parent / "error", os.O_CREAT | os.O_WRONLY)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            try:
                stand.save(stand.new)
            except ArtifactError as failure:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
                os.write(2, f"{failure}\n".encode())
                os._exit(1)
            finally:
                os.close(error)

        status = stand.in_child(save_under_limit)
        seen.append([status, stand.there(), stand.siblings()])
    return {"seen": seen}


def full_disk(folder: Path) -> dict[str, Any]:
    """Save on a file system of ever less free space; ``folder`` is a small one of its own."""
    stand = Stand(folder)
    size = sum(path.stat().st_size for path in stand.place.iterdir())
    ballast = folder / "ballast"
    seen = []
    for spare in range(0, 2 * size, size // 6):
        free = os.statvfs(folder)
        ballast.write_bytes(bytes(max(free.f_bavail * free.f_frsize - spare, 0)))
        status = stand.in_child(lambda: stand.save(stand.new))
        ballast.unlink()
        seen.append([status, stand.there(), stand.siblings()])
    return {"seen": seen, "error": (folder / "error").read_text()}


def no_rights(folder: Path) -> dict[str, Any]:
    """Save and load as a user who may not."""
    folder.chmod(0o755)
    stand = Stand(folder)
    (folder / "error").touch()
    (folder / "error").chmod(0o666)

    def as_nobody(action: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            if os.getuid() == 0:
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            else:
                folder.chmod(0o555)
            action()

        return run

    statuses = [stand.in_child(as_nobody(lambda: stand.save(stand.new)))]
    errors = [(folder / "error").read_text()]
    folder.chmod(0o755)
    (stand.place / "tasks.arrow").chmod(0o000)
    statuses.append(stand.in_child(as_nobody(stand.there)))
    errors.append((folder / "error").read_text())
    folder.chmod(0o755)
    (stand.place / "tasks.arrow").chmod(0o644)
    return {"statuses": statuses, "errors": errors, "there": stand.there(), "siblings": stand.siblings()}


def many_savers_and_readers(folder: Path) -> dict[str, Any]:
    """Let several processes save to one path while others load from it."""
    stand = Stand(folder)
    until = time.monotonic() + 2.0

    def saver(which: tuple[LCBPolicy, Moments]) -> None:
        while time.monotonic() < until:
            stand.save(which)

    def reader() -> None:
        while time.monotonic() < until:
            stand.there()

    children = []
    for action in (lambda: saver(stand.old), lambda: saver(stand.new), reader, reader):
        child = os.fork()
        if child == 0:
            os._exit(stand.in_child(action) % 256)
        children.append(child)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    error = folder / "error"
    found = error.read_text() if error.exists() else ""
    return {"statuses": statuses, "there": stand.there(), "siblings": stand.siblings(), "error": found}


def many_savers_and_readers_without_exchange(folder: Path) -> dict[str, Any]:
    """The same, as on a file system that cannot exchange two names."""
    swap.exchange = lambda _one, _other: False
    return many_savers_and_readers(folder)


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](Path(sys.argv[2]))))
