"""Where a feature map measures its context columns from, so that a column far from 0 costs no digits.

With an intercept the columns are taken as ``x - origin``. Without one that would be another model, since no feature
stands for the constant; there they are taken as ``x - origin x_pivot``, in multiples of one column, the pivot, that
stays as it is. Both are changes of coordinates: with s = 1 or s = x_pivot, entry j of a row is ``x_j - origin_j s``.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hieropo.core.actions import near
from hieropo.errors import InputError, SchemaError

Array = NDArray[np.float64]
Origin = tuple[float, ...]


def checked_origin(
    origin: Sequence[float] | None, pivot: str | None, columns: tuple[str, ...], *, intercept: bool
) -> tuple[Origin | None, str | None]:
    """Check an origin of c numbers and its pivot; an origin of zeros is none.

    Raises
    ------
    InputError
        Not one finite number for each column, or a pivot that is missing, not needed or measured itself.
    SchemaError
        The pivot is no context column.
    """
    if origin is None or not any(origin):
        return None, None
    values = tuple(float(value) for value in origin)
    if len(values) != len(columns) or not np.isfinite(values).all():
        raise InputError(
            f"origin={list(values)}; one finite number for each of the columns {list(columns)} is needed."
        )
    if intercept:
        if pivot is not None:
            raise InputError(
                f"pivot={pivot!r} is for maps without an intercept; with one, columns are x - origin. Leave it out."
            )
        return values, None
    if pivot is None:
        raise InputError(
            "A map without an intercept measures its columns in multiples of one of them: name it, pivot='...'."
        )
    if pivot not in columns:
        raise SchemaError(
            f"The pivot {pivot!r} is none of the columns {list(columns)}{near(pivot, columns)}."
        )
    if values[columns.index(pivot)]:
        raise InputError(f"The pivot {pivot!r} stays as it is: its own origin is 0.")
    return values, pivot


def measured(x: Array, origin: Origin | None, columns: tuple[str, ...], pivot: str | None) -> Array:
    """Contexts x (n, c) measured from an origin; x itself where there is none."""
    if origin is None:
        return x
    away: Array = np.array(origin)
    return x - (away if pivot is None else x[:, [columns.index(pivot)]] * away)
