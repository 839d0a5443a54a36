"""Types of arrays, and the one memory layout of the compiled loops."""

from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Codes = NDArray[np.int64]
Mask = NDArray[np.bool_]
Hashes = NDArray[np.uint64]

T = TypeVar("T", bound=np.generic)

_ROOM = 2**20  # entries of one array worked on at once


def pieces(n: int, width: int) -> Iterator[slice]:
    """Cut ``n`` items of ``width`` numbers each into slices that fit into a bounded amount of memory."""
    step = max(1, _ROOM // max(width, 1))
    return (slice(start, min(start + step, n)) for start in range(0, n, step))


class _Unsealed:
    """A view of an array without its read-only flag, which keeps the owner alive."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._owner = array
        pointer = array.__array_interface__["data"][0]
        self.__array_interface__ = {**array.__array_interface__, "data": (pointer, False)}


def sealed(array: NDArray[T]) -> NDArray[T]:
    """Mark an array as read-only and return it."""
    array.flags.writeable = False
    return array


def normalised(array: NDArray[T]) -> NDArray[T]:
    """Return the array, C-contiguous and not marked read-only, without a copy where its layout allows.

    Compiled loops are typed by such arrays alone: each other flavour would compile anew. The loops write to none of
    the arrays that they are given to read.
    """
    contiguous = np.ascontiguousarray(array)
    return (
        contiguous if contiguous.flags.writeable or not contiguous.size else np.asarray(_Unsealed(contiguous))
    )
