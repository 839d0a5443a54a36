"""Memory that was freed, returned to the system."""

import ctypes
import sys
from contextlib import suppress
from functools import cache
from typing import Any


@cache
def _trim() -> Any:
    """Return the function of the C library that gives freed memory back; None where it has none."""
    if sys.platform != "linux":
        return None
    with suppress(OSError, AttributeError):  # musl has none
        function = ctypes.CDLL(None).malloc_trim
        function.argtypes, function.restype = [ctypes.c_size_t], ctypes.c_int
        return function
    return None


def release_freed() -> None:
    """Return memory to the system that the C library keeps after it was freed, in its heaps of all threads.

    Threads that work on pieces of tasks leave some behind: it adds to the arrays that come later. A call takes about a
    millisecond.
    """
    trim = _trim()
    if trim is not None:
        trim(0)
