"""Moments: the sufficient statistics of each task, as sums that add, subtract and scale."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hieropo._kernels import backend
from hieropo._utils.arrays import Array, Codes, normalised, sealed
from hieropo._utils.packed import pack, packed_size, triangle, unpack
from hieropo._utils.text import counted
from hieropo.errors import InputError, LogError, MismatchError, NumericalError
from hieropo.rows.columns import check_rows
from hieropo.rows.ids import plain
from hieropo.rows.keys import Keys

_PIECE = 1024  # tasks worked on together, while they are in the cache
_ROUNDING = 1e-9  # share of subtracted sums, above their rounding error


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """The additive sufficient statistics of every task.

    For task s, ``S_s = sum_t w_t z_t z_t'`` with ``z = (phi, r, 1)``: it holds sum w phi phi', sum w phi r,
    sum w r^2, sum w phi, sum w r and sum w, where w = c q v is the product of the row's weight c, sampling weight q and
    precision v (:class:`RowWeights`). Never divided by the noise variance. Under ``+`` and ``-`` moments form
    a commutative group; both keep the union of the tasks.

    A *unit* is a task, or one action within a task where each of K actions has features of its own. The sums of units
    are the moments of all d = K p features without the products of features of two actions, which are 0.

    Attributes
    ----------
    keys : Keys
        The m tasks.
    unit_dim : int
        Features p of a unit.
    sums : (m, q) or (m, K, q) array, q = (p + 2)(p + 3) / 2
        Upper triangle of S_s, or of S_sa per action, packed by columns: entry (i <= j) at j (j + 1) / 2 + i.
    rows : (m,) or (m, K) array
        n_s = sum c q: rows of each unit, a row of weight k being k rows.
    log_precision : array like ``rows``
        Sum of c q log v.
    features : str or None
        Fingerprint of the feature map that made phi; None where phi was given directly.
    squares : array like ``sums``, or None
        Sum of c (q v)^2 z z'; only of rows that have sampling weights.
    unit_offset : (p,) array or None
        Coefficients o, such as the same number for each intercept: all sums are of z = (phi, r - o' phi, 1), so that
        rewards far from 0 lose no precision. None is 0.
    positive : Moments or None
        Of the rows with a reward above 0, with its logarithm in place of the reward, for the same tasks; where a
        two-part likelihood needs them.
    """

    keys: Keys
    unit_dim: int
    sums: Array
    rows: Array
    log_precision: Array
    features: str | None = None
    squares: Array | None = None
    unit_offset: Array | None = None
    positive: "Moments | None" = None

    def __post_init__(self) -> None:
        if self.unit_dim < 1:
            raise InputError(f"Moments of {self.unit_dim} features; at least one feature is needed.")
        shape = (*self.rows.shape, packed_size(self.unit_dim + 2))
        if self.sums.shape != shape or len(self.rows) != len(self.keys) or not self.n_actions:
            raise InputError(
                f"Sums of shape {self.sums.shape} do not fit {counted(len(self.keys), 'task')} with rows of shape "
                f"{self.rows.shape} and {counted(self.unit_dim, 'feature')} each: a triangle of {shape[-1]} numbers is "
                "needed for each task, or for each action of each task."
            )
        for array in (self.sums, self.rows, self.log_precision, self.squares, self.unit_offset):
            if array is not None:
                sealed(array)

    @property
    def per_action(self) -> bool:
        """True where sums are kept per action; False where they are over all actions."""
        return self.rows.ndim == 2

    @property
    def n_actions(self) -> int:
        """The number K of units of a task: that of actions where sums are kept per action, else 1."""
        return self.rows.shape[1] if self.per_action else 1

    @property
    def dim(self) -> int:
        """The number d = K p of features of the feature map."""
        return self.n_actions * self.unit_dim

    @property
    def offset(self) -> Array | None:
        """The offset (d,) for the features of the map: that of a unit, repeated for each action."""
        return None if self.unit_offset is None else np.tile(self.unit_offset, self.n_actions)

    @property
    def unit_sums(self) -> Array:
        """The packed sums of all units, (m K, q): action a of the task in row s is unit ``s K + a``."""
        return self.sums.reshape(-1, self.sums.shape[-1])

    @property
    def unit_rows(self) -> Array:
        """The rows of all units, (m K,)."""
        return self.rows.reshape(-1)

    @classmethod
    def zero(cls, dim: int, *, features: str | None = None) -> Self:
        """Return the moments of no rows and no tasks."""
        empty = np.zeros((0, packed_size(dim + 2)))
        return cls(Keys(np.zeros(0, dtype=object)), dim, empty, np.zeros(0), np.zeros(0), features)

    @classmethod
    def from_arrays(
        cls,
        task: object,
        phi: ArrayLike,
        reward: ArrayLike,
        weight: ArrayLike | None = None,
        *,
        precision: ArrayLike | None = None,
        sampling_weight: ArrayLike | None = None,
        features: str | None = None,
    ) -> Self:
        """Return the sums over rows.

        Parameters
        ----------
        task : (n,) sequence
            Any hashable scalar ids, kept as given.
        phi : (n, d) array
            Feature vectors.
        reward : (n,) array
            Larger is better.
        weight : (n,) array, optional
            Count or discount, not negative; default 1. A row of weight k equals k copies of it; a row of weight 0 is
            absent.
        precision : (n,) array, optional
            Above 0; the variance of the reward is ``noise_var / precision``. Default 1. The row counts once.
        sampling_weight : (n,) array, optional
            Above 0: 1 / P(row was kept). Default 1.
        features : str, optional
            Fingerprint of the feature map that made ``phi``.

        Raises
        ------
        InputError
            Shapes do not fit.
        LogError
            A null id, a value that is not finite, a negative weight, a precision or sampling weight that is not
            above 0; names row and column.
        """
        table, values, weights = check_rows(phi, reward, weight, precision, sampling_weight)
        keys, codes = Keys.factorize(task)
        if codes.size != values.size:
            raise InputError(
                f"{codes.size} task ids do not fit {values.size} rewards: each row needs one task id and one reward."
            )
        dim = table.shape[1]
        shape = (len(keys), packed_size(dim + 2))
        sums, squares = np.zeros(shape), None
        add_rows(codes, table, values, weights.factors(), sums)
        refuse_overflow(keys, sums)
        if weights.sampling_weight is not None:
            squares = np.zeros(shape)
            add_rows(codes, table, values, weights.squared(), squares)
        counts = weights.counts(values.size)
        rows, log_precision = np.zeros((2, len(keys)))
        rows += np.bincount(codes, counts, len(keys))
        if weights.precision is not None:
            log_precision += np.bincount(codes, counts * np.log(weights.precision), len(keys))
        return cls(keys, dim, sums, rows, log_precision, features, squares)

    @property
    def tasks(self) -> NDArray[Any]:
        """The ids of the tasks, as they were given, shape (m,)."""
        return self.keys.values

    @property
    def n_rows(self) -> float:
        """The number of rows of all tasks, by their weights: sum c q."""
        return float(self.rows.sum())

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        rows, features = counted(self.n_rows, "row"), counted(self.unit_dim, "feature")
        if not self.per_action:
            return f"Moments({counted(len(self), 'task')}, {rows}, {features})"
        return f"Moments({counted(len(self), 'task')} of {counted(self.n_actions, 'action')}, {rows}, {features} each)"

    def gram(self, task: object) -> Array:
        """Return sum w phi phi' of one task, shape (d, d)."""
        return unpack(self._of(task).sums[0], self.dim)

    def cross(self, task: object) -> Array:
        """Return sum w phi r of one task, shape (d,)."""
        start = packed_size(self.dim)
        return self._of(task).around(None).sums[0, start : start + self.dim].copy()

    def reward_squares(self, task: object) -> float:
        """Return sum w r^2 of one task."""
        return float(self._of(task).around(None).sums[0, packed_size(self.dim + 1) - 1])

    def _of(self, task: object) -> Self:
        """Return the moments of one task, over all features."""
        return self.at(self.keys.require([task])).dense()

    def select(self, tasks: object) -> Self:
        """Return the moments of these tasks only, in this order.

        Raises
        ------
        UnknownTaskError
            These moments do not have a task.
        InputError
            A task is named twice.
        """
        rows = self.keys.require(tasks)
        if np.unique(rows).size != rows.size:
            twice = self.keys.values[np.flatnonzero(np.bincount(rows) > 1)[:1]].tolist()[0]
            raise InputError(
                f"Task {twice!r} is selected twice; its rows would count twice. Name each task once."
            )
        return self.at(rows)

    def at(self, rows: Any) -> Self:
        """Return the moments of the tasks in some rows of ``keys``."""
        return replace(
            self,
            keys=Keys(self.keys.values[rows]),
            sums=self.sums[rows],
            rows=self.rows[rows],
            log_precision=self.log_precision[rows],
            squares=None if self.squares is None else self.squares[rows],
            positive=None if self.positive is None else self.positive.at(rows),
        )

    def covering(self, keys: Keys) -> Self:
        """Return these moments with every task of ``keys``; tasks that are new have no rows."""
        union, _ = self.keys.union(keys)
        extra = len(union) - len(self)
        if not extra:
            return self

        def covering(values: Array) -> Array:
            return np.concatenate([values, np.zeros((extra, *values.shape[1:]))])

        return replace(
            self,
            keys=union,
            sums=covering(self.sums),
            rows=covering(self.rows),
            log_precision=covering(self.log_precision),
            squares=None if self.squares is None else covering(self.squares),
            positive=None if self.positive is None else self.positive.covering(keys),
        )

    def with_actions(self, position: Codes, n_actions: int, features: str | None) -> Self:
        """Return the moments for a map with ``n_actions`` actions, these at the positions ``position`` (K,).

        The other actions have no rows. ``features`` is the fingerprint of that map.
        """

        def expanded(values: Array) -> Array:
            table = np.zeros((len(self), n_actions, *values.shape[2:]))
            table[:, position] = values
            return table

        return replace(
            self,
            sums=expanded(self.sums),
            rows=expanded(self.rows),
            log_precision=expanded(self.log_precision),
            features=features,
            squares=None if self.squares is None else expanded(self.squares),
            positive=None
            if self.positive is None
            else self.positive.with_actions(position, n_actions, features),
        )

    def with_positive(self, sums: Array, rows: Array) -> Self:
        """Return these moments with sums and rows of positive rewards, of the shapes of their own, beside them."""
        positive = Moments(self.keys, self.unit_dim, sums, rows, np.zeros(rows.shape), self.features)
        return replace(self, positive=positive)

    def dense(self) -> Self:
        """Return the moments of all d = K p features of the map, with (d + 2)(d + 3) / 2 numbers a task."""
        if not self.per_action:
            return self
        p, d, K = self.unit_dim, self.dim, self.n_actions
        i, j = triangle(p + 2)

        def dense(table: Array) -> Array:
            full = np.zeros((len(self), packed_size(d + 2)))
            for action in range(K):
                entries = np.concatenate([action * p + np.arange(p), [d, d + 1]])
                full[:, entries[j] * (entries[j] + 1) // 2 + entries[i]] += table[:, action]
            return full

        return replace(
            self,
            unit_dim=d,
            sums=dense(self.sums),
            rows=self.rows.sum(axis=1),
            log_precision=self.log_precision.sum(axis=1),
            squares=None if self.squares is None else dense(self.squares),
            unit_offset=self.offset,
            positive=None,
        )

    def information(self, rows: Codes, noise_var: Array) -> Array:
        """Return the sum of v phi phi' / sigma^2 (d, d) over the rows of the tasks at ``rows``, for noise_var (K,)."""
        K, p = self.n_actions, self.unit_dim
        total = unpack(self.sums[rows].sum(axis=0), p + 2).reshape(K, p + 2, p + 2)
        blocks = np.zeros((K, p, K, p))
        blocks[range(K), :, range(K)] = total[:, :p, :p] / noise_var[:, None, None]
        return blocks.reshape(self.dim, self.dim)

    def scores(self, rows: Any, theta: Array, noise_var: Array) -> Array:
        """Return sum v phi (r - phi' theta_s) / sigma^2 (n, d) of the tasks at ``rows``, for theta (n, d) or (d,)."""
        p, K = self.unit_dim, self.n_actions
        sums = unpack(self.sums[rows], p + 1).reshape(-1, K, p + 1, p + 1)
        offset = 0.0 if self.offset is None else self.offset
        coefficients = np.broadcast_to(theta - offset, (len(sums), self.dim)).reshape(-1, K, p)
        residual = sums[..., :p, p] - np.einsum("naij,naj->nai", sums[..., :p, :p], coefficients)
        return np.asarray((residual / noise_var[:, None]).reshape(len(sums), self.dim))

    def pooled(self) -> Self:
        """Return the moments of the p features of a unit over all units of each task, as if there were one action."""
        if not self.per_action:
            return self
        return replace(
            self,
            sums=self.sums.sum(axis=1),
            rows=self.rows.sum(axis=1),
            log_precision=self.log_precision.sum(axis=1),
            features=None,
            squares=None if self.squares is None else self.squares.sum(axis=1),
            positive=None if self.positive is None else self.positive.pooled(),
        )

    def scale(self, factor: float) -> Self:
        """Return the moments with every weight c multiplied by a positive ``factor``."""
        if not (np.isfinite(factor) and factor > 0):
            raise InputError(f"The factor of moments is {factor!r}; a positive finite factor is needed.")
        return self._times(float(factor))

    def _times(self, factor: float) -> Self:
        squares = None if self.squares is None else self.squares * factor
        return replace(
            self,
            sums=self.sums * factor,
            rows=self.rows * factor,
            log_precision=self.log_precision * factor,
            squares=squares,
            positive=None if self.positive is None else self.positive._times(factor),
        )

    def transformed(self, T: Array) -> Self:
        """Return the moments of the features T phi of units, T (p, p) regular: S becomes [T 0; 0 I] S [T 0; 0 I]'."""
        offset = None if self.unit_offset is None else np.asarray(np.linalg.solve(T.T, self.unit_offset))
        positive = None if self.positive is None else self.positive.transformed(T)
        changes = {"unit_dim": len(T), "features": None, "unit_offset": offset, "positive": positive}
        return self.mapped(lambda sums: transformed_sums(sums, T), **changes)

    def around(self, offset: Array | None) -> Self:
        """Return the same moments with sums of r - o' phi for another offset o (d,), the same for each action.

        It is a congruence of each S.
        """
        zero, unit_offset = (
            np.zeros(self.unit_dim),
            None if offset is None else offset[: self.unit_dim].copy(),
        )
        before = zero if self.unit_offset is None else self.unit_offset
        change = (zero if unit_offset is None else unit_offset) - before
        if not change.any():
            return replace(self, unit_offset=unit_offset)
        return self.mapped(lambda sums: subtract_offset(sums, change), unit_offset=unit_offset)

    def mapped(self, change: Callable[[Array], Array], **others: Any) -> Self:
        """Return the moments with packed sums ``change(sums)`` of all units, of shape (m K, q), and ``others`` set."""

        def changed(sums: Array) -> Array:
            units = change(sums.reshape(-1, sums.shape[-1]))
            return units.reshape(*sums.shape[:-1], units.shape[1])

        squares = None if self.squares is None else changed(self.squares)
        return replace(self, sums=changed(self.sums), squares=squares, **others)

    def __radd__(self, other: object) -> Self:
        return self if other == 0 else NotImplemented  # so that sum() of moments works

    def __add__(self, other: Self) -> Self:
        return self._combine(other, 1)

    def __sub__(self, other: Self) -> Self:
        return self._combine(other, -1)

    def __neg__(self) -> Self:
        return self._times(-1.0)

    def _combine(self, other: Self, sign: int) -> Self:
        if not isinstance(other, Moments):
            return NotImplemented
        features = self._common_features(other)
        offset = self.offset if sign < 0 or self.n_rows >= other.n_rows else other.offset
        first, other = self.covering(other.keys).around(offset), other.around(offset)
        slots = first.keys.locate(other.keys.values)
        sums, rows, log_precision = first.sums.copy(), first.rows.copy(), first.log_precision.copy()
        in_order = slots.size == len(sums) and bool((slots == np.arange(slots.size)).all())
        if in_order:
            (np.add if sign > 0 else np.subtract)(sums, other.sums, out=sums)
        else:
            sums[slots] += sign * other.sums
        rows[slots] += sign * other.rows
        log_precision[slots] += sign * other.log_precision
        squares = None
        if first.sampled or other.sampled:
            squares = first.all_squares().copy()
            squares[slots] += sign * other.all_squares()
        if sign < 0:
            emptied = _emptied(sums, rows, slots, other)
            for table in (sums, rows, log_precision, *(() if squares is None else (squares,))):
                table[emptied] = 0.0
            sums[slots] = _without_rounding(sums[slots], other.sums, self.unit_dim + 2)
        if not np.isfinite(sums).all():
            refuse_overflow(first.keys, sums)
        return replace(
            first, sums=sums, rows=rows, log_precision=log_precision, features=features, squares=squares,
            positive=self._combined_positive(other, sign, first.keys),
        )  # fmt: skip

    def _combined_positive(self, other: "Moments", sign: int, keys: Keys) -> "Moments | None":
        """Return the sums over positive rewards of both, for the tasks ``keys``; None where one lacks them."""
        if self.positive is None or other.positive is None:
            return None
        combined = self.positive._combine(other.positive, sign)
        return combined.at(combined.keys.locate(keys.values))

    @property
    def sampled(self) -> bool:
        """True where rows have sampling weights: they are a random sample of more rows."""
        return self.squares is not None

    def all_squares(self) -> Array:
        """Return sum c (q v)^2 z z', which is ``sums`` for rows without sampling weights and precisions.

        Raises
        ------
        MismatchError
            The rows have precisions and no sampling weights, so that these sums do not exist.
        """
        if self.squares is not None:
            return self.squares
        if self.log_precision.any():
            raise MismatchError(
                "Moments of rows with sampling weights and moments of rows with precisions alone do not combine: the "
                "second lack the sums that standard errors need. Make both again with both columns named."
            )
        return self.sums

    def _common_features(self, other: "Moments") -> str | None:
        if self.per_action != other.per_action or self.n_actions != other.n_actions:
            one, two = (
                counted(moments.n_actions, "action") if moments.per_action else "all actions together"
                for moments in (self, other)
            )
            raise MismatchError(
                f"Moments of {one} and moments of {two} do not combine: they were made by different feature maps. Make "
                "both again with one map."
            )
        if self.dim != other.dim:
            raise MismatchError(
                f"Moments of {self.dim} features and moments of {other.dim} features do not combine: they were made "
                "by different feature maps. Make both again with one map."
            )
        marks = {self.features, other.features} - {None}
        if len(marks) > 1:
            raise MismatchError(
                f"Moments of the feature maps {self.features} and {other.features} do not combine: their columns, "
                "their actions or the order of these differ. Make both again with one map."
            )
        return next(iter(marks), None)

    def refuse_negative(self) -> None:
        """Raise NumericalError where the sums of a unit are no sums of rows.

        Raises
        ------
        NumericalError
            The message names the task, and the action where sums are kept per action.
        """
        columns = [packed_size(j + 1) - 1 for j in range(self.unit_dim + 2)]
        sums, rows = self.unit_sums, self.unit_rows
        if not rows.size or min(rows.min(), *(sums[:, j].min() for j in columns)) >= 0:
            return
        diagonal = sums[:, columns].min(axis=1)
        unit = int(((rows < 0) | (diagonal < 0)).argmax())
        row, action = divmod(unit, self.n_actions)
        of_action = f"action {action} of " if self.per_action else ""
        raise NumericalError(
            f"The moments of {of_action}task {plain(self.tasks[row])!r} are no sums of rows: {rows[unit]:g} rows, "
            f"smallest sum of squares {diagonal[unit]:.3g}. Rows were subtracted that had not been added. Subtract "
            "only rows that were added."
        )

    def allclose(self, other: "Moments", rtol: float = 1e-12) -> bool:
        """Return True where both hold the same tasks, in any order, with the same rows and sums to rounding.

        The sums of a task are compared to ``rtol`` of sqrt(S_ii S_jj), the scale of rounding errors.
        """
        fits = self.unit_dim == other.unit_dim and self.rows.shape == other.rows.shape
        if not fits or self.features != other.features:
            return False
        place = other.keys.locate(self.keys.values)
        if (place < 0).any() or not np.allclose(self.rows, other.rows[place], rtol=rtol, atol=0.0):
            return False
        size = self.unit_dim + 2
        first, second = unpack(self.sums, size), unpack(other.around(self.offset).sums[place], size)
        spread = np.sqrt(np.maximum(np.diagonal(np.abs(first), axis1=-2, axis2=-1), 0.0))
        near = np.abs(first - second) <= rtol * spread[..., :, None] * spread[..., None, :]
        logs = np.isclose(self.log_precision, other.log_precision[place], rtol=rtol, atol=rtol)
        return bool(near.all() and logs.all())


def transformed_sums(sums: Array, T: Array) -> Array:
    """Return packed sums of z = (T phi, r, 1) from those of z = (phi, r, 1), T (k, d): [T 0; 0 I] S [T 0; 0 I]'."""
    k, d = T.shape
    full = np.zeros((k + 2, d + 2))
    full[:k, :d] = T
    full[k, d] = full[k + 1, d + 1] = 1.0
    transformed = np.empty((len(sums), packed_size(k + 2)))
    for start in range(0, len(sums), 4096):
        part = slice(start, start + 4096)
        transformed[part] = pack(full @ unpack(sums[part], d + 2) @ full.T)
    return transformed


def subtract_offset(sums: Array, o: Array) -> Array:
    """Return packed sums of z = (phi, r - o' phi, 1) from those of z = (phi, r, 1), o (d,)."""
    d, shifted = o.size, np.empty_like(sums)
    for start in range(0, len(sums), _PIECE):
        part = slice(start, start + _PIECE)
        S = unpack(sums[part], d + 2)
        S[:, d] -= o @ S[:, :d]
        S[:, :, d] -= S[:, :, :d] @ o
        shifted[part] = pack(S)
    return shifted


def _emptied(sums: Array, rows: Array, slots: Codes, taken: Moments) -> tuple[Codes, ...]:
    """Return the indices of units that have only rounding errors left after ``taken`` was subtracted at ``slots``."""
    few = np.nonzero(np.abs(rows[slots]) <= _ROUNDING * np.abs(taken.rows))
    units = slots[few[0]], *few[1:]
    rest = np.abs(sums[units]).max(axis=1, initial=0.0)
    empty = rest <= _ROUNDING * np.abs(taken.sums[few]).max(axis=1, initial=0.0)
    return tuple(index[empty] for index in units)


def _without_rounding(sums: Array, taken: Array, size: int) -> Array:
    """Set sums of squares that are below 0 by rounding to 0, with their products: that entry of z is 0 in all rows.

    Sums further below 0 stay, to be refused: more was subtracted than was added.
    """
    squares = [packed_size(j + 1) - 1 for j in range(size)]
    diagonal = sums[..., squares]
    below = (diagonal < 0) & (diagonal >= -_ROUNDING * taken[..., squares])
    affected = below.any(axis=-1)
    if affected.any():
        i, j = triangle(size)
        cleared = below[affected]
        sums[affected] = np.where(cleared[:, i] | cleared[:, j], 0.0, sums[affected])
    return sums


def refuse_overflow(keys: Keys, sums: Array) -> None:
    """Raise LogError where a sum of squares overflowed."""
    for start in range(0, len(sums), _PIECE):
        piece = sums[start : start + _PIECE]
        bad = ~np.isfinite(piece.reshape(len(piece), -1)).all(axis=1)
        if not bad.any():
            continue
        task = keys.values[start + int(bad.argmax())]
        raise LogError(
            f"The sums of task {task!r} are not finite: a feature or reward is so large that its square does not fit "
            "a float64. Rescale that column."
        )


def add_rows(
    codes: Codes, phi: Array, reward: Array, factors: Array, sums: Array, *, expected: int = 0
) -> None:
    """Add w z z' of rows to ``sums`` (m, (d + 2)(d + 3) / 2); factors w (n,), or empty for 1.

    ``expected`` is the least number of rows of all calls, where that is known: it decides about the backend.
    """
    backend.statistics(max(codes.size, expected) * sums.shape[1]).accumulate(
        normalised(codes), normalised(phi), normalised(reward), normalised(factors), sums
    )
