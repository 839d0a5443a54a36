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
from types import ModuleType

from hieropo.errors import InputError

VARIABLE = "HIEROPO_BACKEND"
REFERENCE, COMPILED = "reference", "compiled"

_ROWS = 2**22  # doubles of running sums that a batch of rows adds to
_STATISTICS = 2**22
_CELLS = 2**16  # rows of a batch
_IDS = 2**16  # rows, or texts, of a batch
_STEPS = 2**15  # doubles of the packed sums of all nodes of a level: an estimation takes hundreds of steps
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


def rows(doubles: int) -> ModuleType:
    """Return what adds rows to so many doubles of running sums, counted once for each row, and moves such sums."""
    if _compiled(doubles, _ROWS):
        from hieropo._kernels import rows as compiled

        return compiled
    from hieropo._kernels.reference import rows as reference

    return reference


def columns() -> ModuleType:
    """Return what adds columns in place: only large logs take that way."""
    return rows(_ROWS)


def heaps() -> ModuleType:
    """Return what empties heaps, which only compiled code fills."""
    if _compiled(1, 0):
        from hieropo._kernels import partition_buffers as compiled

        return compiled
    from hieropo._kernels.reference import rows as reference

    return reference


def statistics(doubles: int) -> ModuleType:
    """Return what adds rows to packed sums, or hashes rows, of so many doubles together."""
    if _compiled(doubles, _STATISTICS):
        from hieropo._kernels import statistics as compiled

        return compiled
    from hieropo._kernels.reference import statistics as reference

    return reference


def cells(n: int) -> ModuleType:
    """Return the module that sums n rows by task and action, in their order."""
    if _compiled(n, _CELLS):
        from hieropo._kernels import cells as compiled

        return compiled
    from hieropo._kernels.reference import cells as reference

    return reference


def ids(n: int) -> ModuleType:
    """Return the module that looks up n ids."""
    if _compiled(n, _IDS):
        from hieropo._kernels import ids as compiled

        return compiled
    from hieropo._kernels.reference import ids as reference

    return reference


def steps(doubles: int) -> ModuleType:
    """Return the module of the steps up and down a tree; ``doubles`` is the size of the packed sums of a level."""
    if _compiled(doubles, _STEPS):
        from hieropo._kernels import compiled_steps as compiled

        return compiled
    from hieropo._kernels.reference import steps as reference

    return reference


def crossed(doubles: int) -> ModuleType:
    """Return the module of the crossed prior's steps; ``doubles`` is the size of the packed sums of all units."""
    if _compiled(doubles, _STEPS):
        from hieropo._kernels import crossed as compiled

        return compiled
    from hieropo._kernels.reference import crossed as reference

    return reference


def choice(doubles: int) -> ModuleType:
    """Return what scores candidates by a policy: the doubles of its packed covariances, times features of a candidate.

    The number of requests does not decide: a request gets the same bits alone and in a batch.
    """
    if _compiled(doubles, _CHOICE):
        from hieropo._kernels import choice as compiled

        return compiled
    from hieropo._kernels.reference import choice as reference

    return reference


def ratings(doubles: int) -> ModuleType:
    """Return the module that sums ``doubles`` products of a factorisation."""
    if _compiled(doubles, _RATINGS):
        from hieropo._kernels import ratings as compiled

        return compiled
    from hieropo._kernels.reference import ratings as reference

    return reference
