"""The feature map of actions crossed with contexts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.brief import brief
from hieropo.errors import InputError
from hieropo.features.fingerprints import Fingerprinted, checked_origin, checked_terms, stored_terms
from hieropo.features.terms.learned import LearnedTerms
from hieropo.rows.actions import Actions
from hieropo.rows.columns import context_names, contexts
from hieropo.rows.ids import decode_id, encode_id


@dataclass(frozen=True, slots=True, eq=False)
class Crossed(Fingerprinted):
    """The map of every action feature times every context feature: phi(x, a) = table[a] (x) (1, x).

    Entry ``i * p + j`` of phi is ``table[a, i]`` times entry j of (1, x), where p = c + 1 with an intercept
    and p = c without. With an origin, x is relative to it: (1, x - origin); without an intercept,
    x_j - (origin_j / origin_p) x_p for a reference column p.

    Parameters
    ----------
    actions : tuple of K ids
        Strings, whole numbers, booleans, floats, dates, datetimes, UUIDs; ids that compare equal are one
        action.
    table : (K, e) float or None
        Features of the actions; None, as an identity matrix, gives each action coefficients of its own
        (e = K).
    columns : tuple of c str
    intercept : bool
        Whether the context features begin with a 1.
    table_names : tuple of e str, optional
        Names of the columns of ``table``.
    origin : tuple of c float, optional
        Zero point of the context columns: a large offset of a column then loses no precision. Default 0.
    reference_column : str, optional
        The column p relative to which the others are taken; only with an origin and without an intercept.
    terms : LearnedTerms, optional
        The terms that make ``columns`` of the columns of the log.

    Raises
    ------
    InputError
        No actions or one twice, no features at all, a table of the wrong shape or with an entry that is not
        finite, an origin that does not fit.
    SchemaError
        A context column named twice, or a reference column that is no context column.
    """

    actions: tuple[Any, ...]
    table: Array | None
    columns: tuple[str, ...] = ()
    intercept: bool = True
    table_names: tuple[str, ...] | None = None
    origin: tuple[float, ...] | None = None
    reference_column: str | None = None
    terms: LearnedTerms | None = None
    _index: Actions = field(init=False, repr=False)
    _fingerprint: str = field(default="", init=False, repr=False)

    __repr__ = brief

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "_index", Actions(self.actions))
        put(self, "actions", self._index.ids)
        put(self, "table", _check_table(self.table, self.actions, named=self.table_names is not None))
        put(self, "columns", context_names(self.columns))
        put(self, "intercept", bool(self.intercept))
        put(self, "table_names", _check_table_names(self.table_names, self.table))
        origin = checked_origin(self.origin, self.reference_column, self.columns, intercept=self.intercept)
        put(self, "origin", origin[0])
        put(self, "reference_column", origin[1])
        checked_terms(self.terms, self.columns)
        if not self.columns and not self.intercept:
            raise InputError(
                "A feature map without context columns and without an intercept has no features. Name a context "
                "column, or set intercept=True."
            )

    @property
    def _widths(self) -> tuple[int, int]:
        width = len(self.actions) if self.table is None else self.table.shape[1]
        return width, len(self.columns) + self.intercept

    @property
    def dim(self) -> int:
        """The dimension d = e p."""
        e, p = self._widths
        return e * p

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each of the d features, "action feature:context feature"; the intercept adds nothing."""
        e, _ = self._widths
        rows = self.table_names or tuple(f"feature{i}" for i in range(e))
        if self.table is None:
            rows = self._index.labels
        cells = ([""] if self.intercept else []) + [f":{column}" for column in self.columns]
        return tuple(row + cell for row in rows for cell in cells)

    def phi(self, context: ArrayLike | None, action: ArrayLike | None = None) -> Array:
        """Return the features (n, d) of contexts (n, c) and action codes (n,), as ``action_codes`` gives them.

        ``context`` may be None for a map without context columns.

        Raises
        ------
        LogError
            ``context`` is of another shape or not finite.
        InputError
            Lengths differ, or a code is not in 0 .. K-1.
        """
        codes = checked_codes(action, len(self.actions))
        x = contexts(context, self.columns, rows=codes.size)
        if len(x) != codes.size:
            raise InputError(
                f"{len(x)} contexts do not fit {codes.size} actions: each row needs one context and one action."
            )
        e, p = self._widths
        if self.table is not None:
            rows = self.table[codes]
            if not self.columns:
                return rows
            crossed: Array = np.einsum("ne,np->nep", rows, self._extended(x))
            return crossed.reshape(len(x), e * p)
        out = np.zeros((len(x) * e, p))  # all but one block of a row stays zero, so nothing is multiplied
        out[np.arange(len(x)) * e + codes] = self._extended(x)
        return out.reshape(len(x), e * p)

    def candidates(self, context: ArrayLike) -> Array:
        """Return the features (n, K, d) of every action in contexts (n, c).

        Raises
        ------
        LogError
            ``context`` is of another shape or not finite.
        """
        x = contexts(context, self.columns, rows=1)
        e, p = self._widths
        if self.table is not None:
            out: Array = np.einsum("ke,np->nkep", self.table, self._extended(x))
        else:
            out = np.zeros((len(x), e, e, p))
            np.einsum("nkkp->nkp", out)[...] = self._extended(x)[:, None, :]
        return out.reshape(len(x), len(self.actions), e * p)

    def action_codes(self, ids: object, *, first_row: int = 0) -> Codes:
        """Return the position in ``actions`` of each id (n,).

        Raises
        ------
        UnknownActionError
            An id is not among the actions; names it, its row (counted from ``first_row``) and the known actions.
        """
        return self._index.codes(ids, first_row)

    def _extended(self, x: Array) -> Array:
        x = self.measured(x)
        if not self.intercept:
            return x
        out = np.empty((len(x), x.shape[1] + 1))
        out[:, 0] = 1.0
        out[:, 1:] = x
        return out

    def to_dict(self) -> dict[str, Any]:
        """Return the map as JSON can hold it; floats are exact."""
        return {
            "map": "crossed",
            "actions": [encode_id(action) for action in self.actions],
            "table": None if self.table is None else self.table.tolist(),
            "columns": list(self.columns),
            "intercept": self.intercept,
            "table_names": None if self.table_names is None else list(self.table_names),
            **self._origin_to_dict(),
            **self._terms_to_dict(),
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Crossed":
        """Return the map that :meth:`to_dict` wrote."""
        names = stored["table_names"]
        return cls(
            actions=tuple(decode_id(action) for action in stored["actions"]),
            table=stored["table"],
            columns=tuple(stored["columns"]),
            intercept=stored["intercept"],
            table_names=None if names is None else tuple(names),
            origin=stored.get("origin"),
            reference_column=stored.get("pivot"),
            terms=stored_terms(stored),
        )


def matrix(table: ArrayLike) -> Array:
    """Return a float64 copy of a table; raise InputError where it holds anything but numbers."""
    try:
        return np.array(table, dtype=np.float64, order="C")
    except (TypeError, ValueError) as error:
        raise InputError(
            f"The table of action features is not a matrix of numbers: {error}. Give one row of numbers an action."
        ) from error


def _check_table(table: ArrayLike | None, actions: tuple[Any, ...], *, named: bool) -> Array | None:
    """Return a read-only table (K, e); None for an identity matrix whose columns have no names."""
    if table is None:
        return None
    array = matrix(table)
    if array.ndim != 2 or array.shape[0] != len(actions) or not array.shape[1]:
        raise InputError(
            f"The table of action features has shape {array.shape}; ({len(actions)}, e) is needed, one "
            f"row for each of the {len(actions)} actions and at least one column. Is it transposed, or "
            "are actions missing?"
        )
    if not np.isfinite(array).all():
        row, j = (int(k) for k in np.argwhere(~np.isfinite(array))[0])
        raise InputError(
            f"The table of action features holds {array[row, j]} in row {row} (action {actions[row]!r}), "
            f"column {j}; every entry must be finite. Is this action missing from a side table?"
        )
    if not named and array.shape[0] == array.shape[1] and np.array_equal(array, np.eye(len(array))):
        return None
    array.flags.writeable = False
    return array


def _check_table_names(table_names: Sequence[str] | None, table: Array | None) -> tuple[str, ...] | None:
    if table_names is None:
        return None
    if table is None:
        raise InputError(
            "table_names were given without a table of action features; without a table the features are named after "
            "the actions. Leave table_names out."
        )
    names = context_names(table_names)
    if len(names) != table.shape[1]:
        raise InputError(
            f"{len(names)} table_names do not fit a table with {table.shape[1]} columns: {list(names)}. Name each "
            "column."
        )
    return names


def checked_codes(action: ArrayLike | None, n_actions: int, rows: int | None = None) -> Codes:
    """Return action codes (n,) as int64; ``rows`` is n, where that is known.

    Raises
    ------
    InputError
        No codes, codes of another shape or type, or a code that is not in 0 .. n_actions - 1.
    """
    if action is None:
        raise InputError(
            "The features of this map depend on the action, and no action codes were handed in. Hand in "
            "action_codes(ids)."
        )
    codes = np.asarray(action)
    if codes.shape != (codes.size if rows is None else rows,) or (
        codes.dtype.kind not in "iu" and codes.size
    ):
        size, what = ("n", "") if rows is None else (rows, f" {rows} task ids")
        raise InputError(
            f"Action codes of shape {codes.shape} and type {codes.dtype} do not fit{what}: whole numbers of shape "
            f"({size},) are needed. Ids become codes by the feature map's action_codes(ids)."
        )
    codes = codes.astype(np.int64, copy=False)
    bad = (codes < 0) | (codes >= n_actions)
    if bad.any():
        row = int(bad.argmax())
        raise InputError(
            f"Action code {codes[row]} (row {row}) is not in 0 .. {n_actions - 1}. Ids become codes by the feature "
            "map's action_codes(ids)."
        )
    return codes
