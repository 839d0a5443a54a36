"""Freed memory is returned to the system where the C library can do so."""

import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from hieropo._utils import memory


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * 4096 / 1e6


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_memory_that_a_thread_freed_is_returned() -> None:
    kept: list[np.ndarray] = []

    def work() -> None:
        parts = [np.ones(10_000) for _ in range(1_000)]  # 80 MB in a heap of this thread
        kept.append(parts[-1])  # above all others, so that the heap cannot shrink by itself

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    before = resident_mb()
    memory.release_freed()
    assert memory._trim() is None or resident_mb() <= before


def test_a_library_without_the_function_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_trim", lambda: None)
    memory.release_freed()
