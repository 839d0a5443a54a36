"""Fingerprints of feature maps, and the origin of their context columns: a large offset then loses no precision.

With an intercept the columns are taken as ``x - origin``. Without one that would be another model, since no feature
stands for the constant; there they are taken as ``x_j - (origin_j / origin_p) x_p``, relative to one column p, the
reference column, which stays as it is. Both are changes of coordinates.
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
from hieropo.features.terms.learned import LearnedTerms
from hieropo.rows.actions import suggestion
from hieropo.rows.columns import context_names, contexts

Origin = tuple[float, ...]


def checked_origin(
    origin: Sequence[float] | None, reference_column: str | None, columns: tuple[str, ...], *, intercept: bool
) -> tuple[Origin | None, str | None]:
    """Return a checked origin of c numbers and its reference column; (None, None) where it changes no column.

    Raises
    ------
    InputError
        Not one finite number for each column; or a reference column that is missing, not needed or whose origin is 0.
    SchemaError
        The reference column is no context column.
    """
    if origin is None:
        return None, None
    values = tuple(float(value) for value in origin)
    if not any(value for value, column in zip(values, columns, strict=False) if column != reference_column):
        return None, None
    if len(values) != len(columns) or not np.isfinite(values).all():
        raise InputError(
            f"origin={list(values)} does not fit: one finite number for each of the columns {list(columns)} is "
            "needed."
        )
    if not intercept:
        return values, _checked_reference(values, reference_column, columns)
    if reference_column is not None:
        raise InputError(
            f"reference_column={reference_column!r} is for maps without an intercept; with one, columns are x - "
            "origin. Leave it out."
        )
    return values, None


def _checked_reference(values: Origin, reference_column: str | None, columns: tuple[str, ...]) -> str:
    if reference_column is None:
        raise InputError(
            "A map without an intercept and with an origin takes its columns relative to one of them: name that "
            "column, reference_column='...'."
        )
    if reference_column not in columns:
        raise SchemaError(
            f"The reference column {reference_column!r} is none of the columns "
            f"{list(columns)}{suggestion(reference_column, columns)}. Name one of them."
        )
    if not values[columns.index(reference_column)]:
        raise InputError(
            f"The origin of the reference column {reference_column!r} is 0, so that the origins of other columns are "
            "no multiples of it. Name a column whose origin is not 0."
        )
    return reference_column


def measured(
    x: Array, origin: Origin | None, columns: tuple[str, ...], reference_column: str | None
) -> Array:
    """Return contexts x (n, c) relative to an origin; x itself where there is none."""
    if origin is None:
        return x
    point: Array = np.array(origin)
    shifted = x - point
    if reference_column is None:
        return shifted
    p = columns.index(reference_column)
    relative: Array = shifted - shifted[:, [p]] * (point / point[p])  # x_j - k_j x_p from small numbers only
    relative[:, p] = x[:, p]
    return relative


def unmeasured(
    y: Array, origin: Origin | None, columns: tuple[str, ...], reference_column: str | None
) -> Array:
    """Return contexts x (n, c) from contexts y (n, c) relative to an origin; the inverse of :func:`measured`."""
    if origin is None:
        return y
    point: Array = np.array(origin)
    if reference_column is None:
        return y + point
    p = columns.index(reference_column)
    contexts: Array = y + y[:, [p]] * (point / point[p])
    contexts[:, p] = y[:, p]
    return contexts


def fingerprint(stored: Mapping[str, Any]) -> str:
    """Return the SHA-256, in hexadecimal, of canonical JSON: sorted keys, no blanks, shortest exact floats."""
    text = json.dumps(stored, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def stored_terms(stored: Mapping[str, Any]) -> LearnedTerms | None:
    """Return the terms of a stored map; None where it has none."""
    terms = stored.get("terms")
    return None if terms is None else LearnedTerms.from_dict(terms)


def checked_terms(terms: LearnedTerms | None, columns: tuple[str, ...]) -> LearnedTerms | None:
    """Return the terms of a map with these context columns.

    Raises
    ------
    SchemaError
        The columns are not those that the terms make.
    """
    if terms is not None and terms.names != columns:
        raise SchemaError(
            f"The terms make the columns {list(terms.names)}, and the feature map has {list(columns)}. Give the map "
            "the columns of its terms."
        )
    return terms


class Fingerprinted:
    """Equality, hash, context columns and their origin: the part that all feature maps share."""

    __slots__ = ()
    columns: tuple[str, ...]
    origin: Origin | None
    reference_column: str | None
    terms: LearnedTerms | None
    _fingerprint: str

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the canonical JSON of ``to_dict()``, in hexadecimal."""
        if not self._fingerprint:
            object.__setattr__(self, "_fingerprint", fingerprint(self._identity()))
        return self._fingerprint

    @property
    def equivalence_id(self) -> str:
        """The fingerprint of the map without its origin; maps that share it differ by a change of coordinates."""
        return self.fingerprint if self.origin is None else self.recentred(None).fingerprint

    def recentred(self, origin: Sequence[float] | None, reference_column: str | None = None) -> Self:
        """Return the equivalent map whose columns have another origin; None is the origin 0."""
        return replace(self, origin=origin, reference_column=reference_column)  # type: ignore[type-var]  # every map is a dataclass

    def measured(self, x: Array) -> Array:
        """Return contexts x (n, c) relative to the origin of this map."""
        return measured(x, self.origin, self.columns, self.reference_column)

    def unmeasured(self, y: Array) -> Array:
        """Return contexts x (n, c) from y (n, c), as :meth:`measured` gives it."""
        return unmeasured(y, self.origin, self.columns, self.reference_column)

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns of the log that the context columns are made of; the context columns without terms."""
        return self.columns if self.terms is None else self.terms.sources

    def _identity(self) -> dict[str, Any]:
        """Return the map as JSON, without the part of its terms that only describes."""
        return self.to_dict() if self.terms is None else {**self.to_dict(), "terms": self.terms.identity()}

    def _terms_to_dict(self) -> dict[str, Any]:
        """Return the terms as JSON; nothing for a map without any, whose fingerprint thus stays."""
        return {} if self.terms is None else {"terms": self.terms.to_dict()}

    def _origin_to_dict(self) -> dict[str, Any]:
        """Return the origin as JSON; nothing for a map without one, whose fingerprint thus stays."""
        if self.origin is None:
            return {}
        reference = {} if self.reference_column is None else {"pivot": self.reference_column}
        return {"origin": list(self.origin), **reference}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Fingerprinted):
            return NotImplemented
        return self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def to_dict(self) -> dict[str, Any]:
        """Return the map as JSON can hold it; :func:`feature_map_from_dict` reads it back exactly."""
        raise NotImplementedError

    def arrange(self, context: ArrayLike, columns: Sequence[str]) -> Array:
        """Return contexts (n, c) in the column order of this map, from contexts (n, k) with named columns.

        Raises
        ------
        SchemaError
            A column is missing, or this map does not read it.
        """
        names = context_names(columns)
        for column in self.columns:
            if column not in names:
                raise SchemaError(
                    f"Context column {column!r} is missing{suggestion(column, names)}: the contexts have the columns "
                    f"{list(names)}, and the feature map reads {list(self.columns)}. Add the column."
                )
        for column in names:
            if column not in self.columns:
                raise SchemaError(
                    f"Context column {column!r} is unknown to the feature "
                    f"map{suggestion(column, self.columns)}; it reads {list(self.columns)}. Select these columns first."
                )
        values = contexts(context, names)
        return values[:, [names.index(column) for column in self.columns]]
