"""Locks of directories, by which the processes of a machine take turns; none where the system cannot lock files."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform != "win32":
    import fcntl


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Wait for the lock of a directory, and hold it; go on without one where there is none."""
    descriptor = open_directory(folder)
    try:
        if descriptor is not None:
            lock_directory(descriptor, wait=True)
        yield
    finally:
        if descriptor is not None:
            _release(descriptor)


def open_directory(folder: Path) -> int | None:
    """Return a descriptor of a directory; None where it cannot be opened, as on Windows."""
    try:
        return os.open(folder, os.O_RDONLY)
    except OSError:
        return None


def lock_directory(descriptor: int, *, wait: bool) -> bool:
    """Lock a directory; return False where another process holds it, or the file system has no locks."""
    if sys.platform == "win32":
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def _release(descriptor: int) -> None:
    """Release the lock of a directory, also that of a process that was forked meanwhile, and close the descriptor."""
    if sys.platform != "win32":
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
