"""Work in threads on all processors, with results in order; the compiled loops release the interpreter lock."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

P = TypeVar("P")
R = TypeVar("R")


def processors() -> int:
    """Return the number of processors that this process may use, at most that of the environment's HIEROPO_THREADS."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    allowed = os.environ.get("HIEROPO_THREADS", "")
    return min(available, max(int(allowed), 1)) if allowed.isdecimal() else available


def in_threads(work: Callable[[P], R], pieces: Sequence[P], threads: int) -> list[R]:
    """Return ``[work(piece) for piece in pieces]``, with at most ``threads`` pieces at work at once."""
    threads = min(threads, len(pieces))
    if threads <= 1:
        return [work(piece) for piece in pieces]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, pieces))
