"""Fingerprints of feature maps, and origins from which they measure context columns.

With an intercept the columns are taken as ``x - origin``. Without one that would be another model, since no feature
stands for the constant; there they are taken as ``x_j - (origin_j / origin_p) x_p``, in multiples of one column p, the
pivot, that stays as it is. Both are changes of coordinates.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from hieropo._utils.arrays import Array
from hieropo.errors import InputError, SchemaError
from hieropo.rows.actions import near
from hieropo.rows.columns import context_names, contexts

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


def fingerprint(stored: Mapping[str, Any]) -> str:
    """SHA-256, in hexadecimal, of canonical JSON: sorted keys, no blanks, shortest exact floats."""
    text = json.dumps(stored, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


class Fingerprinted:
    """Equality, hash, context columns and where they are measured from, as every map has them."""

    __slots__ = ()
    columns: tuple[str, ...]
    origin: Origin | None
    pivot: str | None
    _fingerprint: str

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the canonical JSON of ``to_dict()``, in hexadecimal."""
        if not self._fingerprint:
            object.__setattr__(self, "_fingerprint", fingerprint(self.to_dict()))
        return self._fingerprint

    @property
    def family(self) -> str:
        """Fingerprint of the map without its origin: maps of one family differ by a change of coordinates."""
        return self.fingerprint if self.origin is None else self.recentred(None).fingerprint

    def recentred(self, origin: Sequence[float] | None, pivot: str | None = None) -> Self:
        """Return the map of the same family that measures its columns from another origin; None is from 0."""
        return replace(self, origin=origin, pivot=pivot)  # type: ignore[type-var]  # every map is a dataclass

    def measured(self, x: Array) -> Array:
        """Contexts x (n, c) as this map measures them, from its origin."""
        return measured(x, self.origin, self.columns, self.pivot)

    def unmeasured(self, y: Array) -> Array:
        """Contexts x (n, c) that :meth:`measured` turned into y."""
        return unmeasured(y, self.origin, self.columns, self.pivot)

    def _origin_to_dict(self) -> dict[str, Any]:
        """Write the origin, where there is one: maps without one are written as before there were any."""
        if self.origin is None:
            return {}
        return {"origin": list(self.origin), **({} if self.pivot is None else {"pivot": self.pivot})}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Fingerprinted):
            return NotImplemented
        return self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def to_dict(self) -> dict[str, Any]:
        """Write the map as JSON can hold it; :func:`feature_map_from_dict` reads it back exactly."""
        raise NotImplementedError

    def arrange(self, context: ArrayLike, columns: Sequence[str]) -> Array:
        """Bring contexts (n, k) whose columns are named into the order of this map, (n, c).

        Raises
        ------
        SchemaError
            A column is missing, or is none that this map reads.
        """
        given = context_names(columns)
        for column in self.columns:
            if column not in given:
                raise SchemaError(
                    f"Context column {column!r} is missing{near(column, given)}; given are {list(given)}."
                )
        for column in given:
            if column not in self.columns:
                raise SchemaError(
                    f"Context column {column!r} is unknown to the feature "
                    f"map{near(column, self.columns)}; it reads {list(self.columns)}. Select these first."
                )
        values = contexts(context, given)
        return values[:, [given.index(column) for column in self.columns]]
