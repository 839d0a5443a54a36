"""The one way in which this package compiles a loop.

Compiled functions are module-level, typed by normalised arrays only (C order, float64 / int64, writable), free
of the interpreter lock and serial: threads are added by the caller, over chunks, so that several Python threads
may enter at once.

Their machine code is kept in a folder that is named after a hash of all compiled sources: numba compares only the file
of a function itself, and would run on with old code where a file changed that the function calls into. Of several
processes that need the same code at once, such as the workers of a machine, one compiles and the others wait and read.
"""

import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba

from hieropo._utils.directory_locks import locked

F = TypeVar("F", bound=Callable[..., Any])

_READ = ("packed.py", "ties.py")  # constants of compiled code that come from hieropo._utils
_PLAIN = {"backend", "compiled_steps", "reference"}  # files and folders here that are not compiled
_OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": {"contract"}, "error_model": "numpy"}
_CONFIG: Any = numba.config
_LOCK = threading.Lock()  # of the setting of numba while a function is declared


def inlined(function: F) -> F:
    """Make ``function`` part of the compiled functions that call it: that compiles faster than a call."""
    return numba.njit(inline="always", **_OPTIONS)(function)  # type: ignore[no-any-return]


def compiled(function: F) -> F:
    """Compile ``function`` on first call and keep the machine code on disk where a directory can be written.

    Multiply-add contraction is the only liberty taken with floating point.
    """
    folder = _folder()
    if folder is None:  # compile in memory
        return numba.njit(cache=False, **_OPTIONS)(function)  # type: ignore[no-any-return]
    with _cached_in(folder):
        dispatcher = numba.njit(cache=True, **_OPTIONS)(function)
    compile_or_read: Any = dispatcher.compile

    def in_turn(signature: Any) -> Any:
        with _ONE_COMPILES.of(folder):
            return compile_or_read(signature)

    dispatcher.compile = in_turn
    return dispatcher  # type: ignore[no-any-return]


class _Turns:
    """Lets one thread of one process at a time compile, or read, the code of a folder; calls of one thread nest.

    A fork waits until the other threads are done, at most for ``patience`` seconds. The thread of the child is the only
    one there, so it starts with a new lock: nobody would release the one that another thread holds. In the child a fork
    in the middle of a compilation would also leave the lock of numba held, and the folder locked.
    """

    def __init__(self, patience: float = 120.0) -> None:
        self._threads, self._depth = threading.RLock(), 0
        self._patience, self._forking = patience, threading.local()  # several threads may fork at once
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._before_fork, after_in_parent=self._after_fork, after_in_child=self._in_child
            )

    def _before_fork(self) -> None:
        self._forking.waited = self._threads.acquire(timeout=self._patience)

    def _after_fork(self) -> None:
        if self._forking.waited:
            self._threads.release()

    def _in_child(self) -> None:
        if self._forking.waited:  # the state of the forking thread, which may compile itself
            self._threads.release()
        else:
            self._threads, self._depth = threading.RLock(), 0

    @contextmanager
    def of(self, folder: Path) -> Iterator[None]:
        """Wait for the turn of this thread; without locks of files only for the other threads."""
        with self._threads, nullcontext() if self._depth else locked(folder):
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1


_ONE_COMPILES = _Turns()


@contextmanager
def _cached_in(folder: Path) -> Iterator[None]:
    """Let numba keep the code of functions that are declared now in a folder."""
    with _LOCK:
        before = _CONFIG.CACHE_DIR
        _CONFIG.CACHE_DIR = str(folder)
        try:
            yield
        finally:
            _CONFIG.CACHE_DIR = before


@cache
def _folder() -> Path | None:
    """Return the folder of machine code of these sources: where numba is told, here, or of this user."""
    name = f"hieropo-{_sources()[:16]}"
    for parent in _cache_parents():
        with suppress(OSError):
            folder = parent / name
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
    return None


def _cache_parents() -> Iterator[Path]:
    if _CONFIG.CACHE_DIR:
        yield Path(_CONFIG.CACHE_DIR)
        return
    yield Path(__file__).parent / "__pycache__"
    with suppress(RuntimeError):  # there is no home
        yield Path(
            os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or Path.home() / ".cache"
        )


@cache
def _sources() -> str:
    """Hash all compiled sources."""
    here = Path(__file__).parent
    compiled = [file for file in here.rglob("*.py") if not _PLAIN & {file.stem, file.parent.name}]
    files = sorted([*compiled, *(here.parent / "_utils" / name for name in _READ)])
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
