"""Runs in processes of their own."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

from hieropo.core.threads import processors
from hieropo.errors import HieropoError

P = TypeVar("P")
R = TypeVar("R")

ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class EndedProcessError(HieropoError):
    """A process that made runs came to an end by itself."""


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Variables that processes started meanwhile are to see."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def workers(processes: int | None = None) -> Iterator[ProcessPoolExecutor]:
    """Processes that start fresh, so that none inherits threads, each with one thread of linear algebra.

    What waits is dropped where the block is left by an exception.
    """
    with environment(ONE_THREAD):
        pool = ProcessPoolExecutor(
            processes or processors(),
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_end_with_parent,
        )
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
        pool.shutdown()


def _end_with_parent() -> None:
    """End this process when the one that started it does, however that ends: nobody else would tell it."""
    parent = multiprocessing.parent_process()

    def wait_and_end() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait_and_end, daemon=True).start()


def as_they_come(work: Callable[[P], R], pieces: Sequence[P], processes: int | None) -> Iterator[tuple[P, R]]:
    """Pieces of work with what came of them, in the order in which they are done.

    Raises
    ------
    EndedProcessError
        A process was killed; out of memory is the usual cause.
    """
    ahead = 2 * (processes or processors())
    with workers(processes) as pool:
        rest, running = iter(pieces), dict[Future[R], P]()
        try:
            while True:
                for piece in rest:
                    running[pool.submit(work, piece)] = piece
                    if len(running) >= ahead:
                        break
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), future.result()
        except BrokenProcessPool as error:
            raise EndedProcessError(
                "A process that made runs was ended from outside; memory may have run out. The same command goes on "
                "from the runs that are done; --processes 1 needs least memory."
            ) from error
