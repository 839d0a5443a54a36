"""Comparisons of numbers that may be equal up to rounding, so that every machine makes the same choices.

Sums differ in their last digits between processors and libraries of linear algebra. Where two numbers are equal but for
that, `argmax` and sorting follow the rounding. Here numbers whose difference is at most `ROUNDING` of their size are
equal, and of equal ones the first wins: a caller puts first what should win a tie.
"""

import numpy as np
from numpy.typing import ArrayLike

from hieropo._utils.arrays import Array, Codes, Mask

ROUNDING = 1e-11  # relative; far above the rounding of sums, far below any difference that matters


def first_largest(values: ArrayLike, axis: int = -1, *, room: float = 0.0) -> Codes:
    """Return the index of the largest value along an axis, the first of those that are equal to it.

    Parameters
    ----------
    values : array
        NaN is never the largest. One dimension gives an array of none, which `int` takes.
    axis : int
    room : float
        A larger difference, in the unit of the values, up to which they are equal.
    """
    table = np.asarray(values, dtype=np.float64)
    table = np.where(np.isnan(table), -np.inf, table)
    top = table.max(axis=axis, keepdims=True)
    room_each = np.maximum(ROUNDING * np.abs(np.where(np.isfinite(top), top, 0.0)), room)
    return np.asarray((table >= top - room_each).argmax(axis=axis), dtype=np.int64)


def first_smallest(values: ArrayLike, axis: int = -1, *, room: float = 0.0) -> Codes:
    """Return the index of the smallest value along an axis, the first of those that are equal to it."""
    return first_largest(-np.asarray(values, dtype=np.float64), axis, room=room)


def levels(values: ArrayLike, *, room: float = 0.0) -> Codes:
    """Number the distinct values (n,) in ascending order: equal ones share a number; NaN comes last."""
    flat = np.asarray(values, dtype=np.float64)
    order = np.argsort(flat, kind="stable")
    low, high = flat[order[:-1]], flat[order[1:]]
    size = np.maximum(np.abs(low), np.abs(high))
    with np.errstate(invalid="ignore", over="ignore"):  # inf - inf, and NaN
        apart = high - low > np.maximum(ROUNDING * size, room)
    odd = ~np.isfinite(size)
    apart[odd] = ((high != low) & ~(np.isnan(high) & np.isnan(low)))[odd]
    found = np.zeros(flat.size, dtype=np.int64)
    found[order[1:]] = np.cumsum(apart)
    return found


def ordered(*keys: ArrayLike, room: float = 0.0) -> Codes:
    """Return the stable order (n,) by the first key, ascending, then by the next."""
    order = np.lexsort([levels(key, room=room) for key in reversed(keys)])
    return np.asarray(order, dtype=np.int64)


def at_most(values: Array, limit: float) -> Mask:
    """Return a mask of values (n,), none below 0, that are at most a limit up to rounding; NaN is not."""
    return np.asarray(values <= limit * (1.0 + ROUNDING), dtype=np.bool_)


def reaches(value: float, limit: float) -> bool:
    """Return True where a value is at least a positive limit, up to rounding."""
    return bool(value >= limit * (1.0 - ROUNDING))


def exceeds(value: float, limit: float) -> bool:
    """Return True where a value is above a positive limit by more than rounding."""
    return bool(value > limit * (1.0 + ROUNDING))
