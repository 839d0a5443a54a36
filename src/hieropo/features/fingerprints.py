"""Equality of feature maps by what they compute."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from numpy.typing import ArrayLike

from hieropo._utils.arrays import Array
from hieropo.errors import SchemaError
from hieropo.features.origins import Origin, measured, unmeasured
from hieropo.rows.actions import near
from hieropo.rows.columns import context_names, contexts


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
