"""Choose the code that computes: plain numpy where the work is small, compiled loops where it is large.

Plain numpy (the package ``reference``) is the definition; compiled loops give the same to rounding. What decides is the
size of the work, of a call or of a policy, and nothing else: the same log takes the same way on every machine, with any
number of threads, whatever was compiled before. The environment variable ``HIEROPO_BACKEND`` overrides.

The limits are from ``benchmarks/backends.py``: below them numpy loses less time, over all calls of a fit or of a pass,
than it takes to import what compiles.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

from hieropo.errors import InputError

VARIABLE = "HIEROPO_BACKEND"
REFERENCE, COMPILED = "reference", "compiled"

_ROWS = 2**22  # doubles of running sums that a batch of rows adds to
_STATISTICS = 2**22
_CELLS = 2**16  # rows of a batch
_IDS = 2**16  # rows, or texts, of a batch
_STEPS = 2**15  # doubles of the packed sums of all nodes of a level: an estimation takes hundreds of steps
_PROPAGATION = 2**13  # doubles of the information of all tasks: a fit takes hundreds of rounds
_PERIODS = 2**18  # doubles of the sums of units by period
_CHOICE = 2**15  # doubles of the covariances of a policy, times the features of a candidate
_RATINGS = 2**20  # sums of products


@contextmanager
def forced(name: str) -> Iterator[None]:
    """Set the environment variable of this process for a while."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def _compiled(work: int, least: int) -> bool:
    """Return whether so much work is compiled, where ``least`` is the least that pays.

    Raises
    ------
    InputError
        The environment variable names no backend.
    """
    name = os.environ.get(VARIABLE, "")
    if name not in ("", REFERENCE, COMPILED):
        raise InputError(
            f"The environment variable {VARIABLE} is {name!r}, which is no backend, so nothing is computed. Set it to "
            f"{REFERENCE!r} (plain numpy) or {COMPILED!r} (compiled loops), or unset it: then the size of the work "
            "decides."
        )
    return name == COMPILED or (name != REFERENCE and work >= least)


def _module(work: int, least: int, compiled: str, reference: str) -> ModuleType:
    """Return the compiled module for so much work, or the one of plain numpy below it."""
    name = compiled if _compiled(work, least) else f"reference.{reference}"
    return import_module(f"hieropo._kernels.{name}")


def rows(doubles: int) -> ModuleType:
    """Return the module that adds rows to so many doubles of running sums, counted once for each row."""
    return _module(doubles, _ROWS, "rows", "rows")


def columns() -> ModuleType:
    """Return the module that adds columns in place: only large logs take that way."""
    return rows(_ROWS)


def partition_buffers() -> ModuleType:
    """Return the module that flushes partition buffers, which only compiled code fills."""
    return _module(1, 0, "partition_buffers", "rows")


def statistics(doubles: int) -> ModuleType:
    """Return the module that adds rows to packed sums, or hashes rows, of so many doubles together."""
    return _module(doubles, _STATISTICS, "statistics", "statistics")


def cells(n: int) -> ModuleType:
    """Return the module that sums n rows by task and action, in their order."""
    return _module(n, _CELLS, "cells", "cells")


def ids(n: int) -> ModuleType:
    """Return the module that looks up n ids."""
    return _module(n, _IDS, "ids", "ids")


def steps(doubles: int) -> ModuleType:
    """Return the module of the steps up and down a tree; ``doubles`` is the size of the packed sums of a level."""
    return _module(doubles, _STEPS, "compiled_steps", "steps")


def crossed(doubles: int) -> ModuleType:
    """Return the module of the crossed prior's steps; ``doubles`` is the size of the packed sums of all units."""
    return _module(doubles, _STEPS, "crossed", "crossed")


def propagation(doubles: int) -> ModuleType:
    """Return the module of rounds of expectation propagation, for so many doubles of the information of all tasks."""
    return _module(doubles, _PROPAGATION, "propagation", "propagation")


def periods(doubles: int) -> ModuleType:
    """Return the module that filters units over periods; ``doubles`` is the size of their sums."""
    return _module(doubles, _PERIODS, "periods", "periods")


def choice(doubles: int) -> ModuleType:
    """Return the module that scores candidates by a policy.

    ``doubles`` are those of its packed covariances, times the features of a candidate. The number of requests does not
    decide: a request gets the same bits alone and in a batch.
    """
    return _module(doubles, _CHOICE, "choice", "choice")


def ratings(doubles: int) -> ModuleType:
    """Return the module that sums ``doubles`` products of a factorisation."""
    return _module(doubles, _RATINGS, "ratings", "ratings")
