"""The one way in which this package compiles a loop.

Compiled functions are module-level, typed by normalised arrays only (C order, float64 / int64, writable), free
of the interpreter lock and serial: threads are added by the caller, over chunks, so that several Python threads
may enter at once.
"""

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])


_READ = ("packed.py", "ties.py")  # constants of compiled code that come from hieropo._utils
_OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": {"contract"}, "error_model": "numpy"}


def inlined(function: F) -> F:
    """Make ``function`` part of the compiled functions that call it: that compiles faster than a call."""
    return numba.njit(inline="always", **_OPTIONS)(function)  # type: ignore[no-any-return]


def compiled(function: F) -> F:
    """Compile ``function`` on first call and keep the machine code on disk where a directory can be written.

    Multiply-add contraction is the only liberty taken with floating point.
    """
    try:
        dispatcher = numba.njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # no directory for the cache can be written: compile in memory
        return numba.njit(cache=False, **_OPTIONS)(function)  # type: ignore[no-any-return]
    file: Any = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if file is not None:
        file._source_stamp = _sources()
    return dispatcher  # type: ignore[no-any-return]


@cache
def _sources() -> str:
    """Mark of all compiled sources: numba itself would miss an edit of a file that a cached function calls into."""
    here = Path(__file__).parent
    files = sorted([*here.rglob("*.py"), *(here.parent / "_utils" / name for name in _READ)])
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
