"""Limit linear algebra to one thread in a call, because thin products and small matrices are slower with more."""

import sys
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_Raised = dict[
    str, tuple[Any, int]
]  # libraries that were limited by their path, and the threads that they had


class _Caller(threading.local):
    """Depth of limited calls in this Python thread, and the libraries that it limited for itself alone."""

    depth = 0

    def __init__(self) -> None:
        self.raised: _Raised = {}


class _OneBlasThread:
    """Context and decorator that limit every loaded BLAS to one thread, and then restore its number of threads.

    Calls may nest and may come from several Python threads. Most libraries have one number for the whole process: the
    first call sets it, and the last one that ends restores it. The libraries of numpy and scipy are loaded first.
    Another one that is loaded during a call is limited by the next call, nested ones included. Pools of other kinds
    (numba, Arrow, OpenMP) are left alone.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._caller = _Caller()
        self._callers = 0  # Python threads inside
        self._raised: _Raised = {}
        self._libraries: tuple[Any, ...] = ()
        self._modules = 0

    def __enter__(self) -> None:
        caller = self._caller
        with self._lock:
            before = self._libraries
            libraries = self._loaded()
            if not caller.depth or libraries is not before:
                for library in libraries:
                    _limit(library, caller.raised if _by_caller(library) else self._raised)
            self._callers += not caller.depth
            caller.depth += 1

    def __exit__(self, *_: object) -> None:
        caller = self._caller
        with self._lock:
            caller.depth -= 1
            if caller.depth:
                return
            _restore(caller.raised)
            self._callers -= 1
            if not self._callers:
                _restore(self._raised)

    def __call__(self, work: Callable[P, R]) -> Callable[P, R]:
        """Run every call of a function inside this context."""

        @wraps(work)
        def limited(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return work(*args, **kwargs)

        return limited

    def _loaded(self) -> tuple[Any, ...]:
        """Return every BLAS of this process; libraries are searched again (some ms) only after an import."""
        if self._modules != len(sys.modules):
            import scipy.linalg  # noqa: F401  # brings a library of its own, which would come too late to be limited
            from threadpoolctl import ThreadpoolController

            self._modules = len(sys.modules)  # before the search, so that an import meanwhile is not missed
            self._libraries = tuple(ThreadpoolController().select(user_api="blas").lib_controllers)
        return self._libraries


one_blas_thread = _OneBlasThread()


def _by_caller(library: Any) -> bool:
    """Return True where each Python thread has a limit of its own."""
    return bool(
        library.internal_api == "mkl"
        or (library.internal_api == "openblas" and library.threading_layer == "openmp")
    )


def _limit(library: Any, raised: _Raised) -> None:
    threads = library.num_threads
    if threads is None or threads == 1:
        return
    _set(library, 1)
    if library.num_threads == 1:  # not where another Python thread holds a limit of the user's own
        raised.setdefault(library.filepath, (library, threads))


def _restore(raised: _Raised) -> None:
    for library, threads in raised.values():
        _set(library, threads)
    raised.clear()


def _set(library: Any, threads: int) -> None:
    """Set a number of threads, so that every Python thread may set another."""
    library.set_num_threads(threads)
    release = getattr(library, "clear_controlling_thread", None)  # else only this thread could restore it
    if release is not None:
        release()
