"""Where a feature map measures its context columns from, so that a column far from 0 costs no digits.

With an intercept the columns are taken as ``x - origin``. Without one that would be another model, since no feature
stands for the constant; there they are taken as ``x_j - (origin_j / origin_p) x_p``, in multiples of one column p, the
pivot, that stays as it is. Both are changes of coordinates.
"""

from collections.abc import Sequence

import numpy as np

from hieropo._utils.arrays import Array
from hieropo.errors import InputError, SchemaError
from hieropo.rows.actions import near

Origin = tuple[float, ...]


def checked_origin(
    origin: Sequence[float] | None, pivot: str | None, columns: tuple[str, ...], *, intercept: bool
) -> tuple[Origin | None, str | None]:
    """Check an origin of c numbers and its pivot; one that changes no column is none.

    Raises
    ------
    InputError
        Not one finite number for each column, or a pivot that is missing, not needed or measured itself.
    SchemaError
        The pivot is no context column.
    """
    if origin is None:
        return None, None
    values = tuple(float(value) for value in origin)
    if not any(value for value, column in zip(values, columns, strict=False) if column != pivot):
        return None, None
    if len(values) != len(columns) or not np.isfinite(values).all():
        raise InputError(
            f"origin={list(values)}; one finite number for each of the columns {list(columns)} is needed."
        )
    if not intercept:
        return values, _checked_pivot(values, pivot, columns)
    if pivot is not None:
        raise InputError(
            f"pivot={pivot!r} is for maps without an intercept; with one, columns are x - origin. Leave it out."
        )
    return values, None


def _checked_pivot(values: Origin, pivot: str | None, columns: tuple[str, ...]) -> str:
    if pivot is None:
        raise InputError(
            "A map without an intercept measures its columns in multiples of one of them: name it, pivot='...'."
        )
    if pivot not in columns:
        raise SchemaError(
            f"The pivot {pivot!r} is none of the columns {list(columns)}{near(pivot, columns)}."
        )
    if not values[columns.index(pivot)]:
        raise InputError(f"The origin of the pivot {pivot!r} is 0, and others cannot be multiples of that.")
    return pivot


def measured(x: Array, origin: Origin | None, columns: tuple[str, ...], pivot: str | None) -> Array:
    """Contexts x (n, c) measured from an origin; x itself where there is none."""
    if origin is None:
        return x
    point: Array = np.array(origin)
    away = x - point
    if pivot is None:
        return away
    p = columns.index(pivot)
    found: Array = away - away[:, [p]] * (point / point[p])  # x_j - k_j x_p from small numbers only
    found[:, p] = x[:, p]
    return found


def unmeasured(y: Array, origin: Origin | None, columns: tuple[str, ...], pivot: str | None) -> Array:
    """Contexts x (n, c) that :func:`measured` turned into y."""
    if origin is None:
        return y
    point: Array = np.array(origin)
    if pivot is None:
        return y + point
    p = columns.index(pivot)
    found: Array = y + y[:, [p]] * (point / point[p])
    found[:, p] = y[:, p]
    return found
