"""Moments: the sufficient statistics of each task, as sums that add, subtract and scale."""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hieropo._kernels import backend
from hieropo._utils.arrays import Array, Codes, normalised, sealed
from hieropo._utils.packed import pack, packed_size, triangle, unpack
from hieropo._utils.text import counted
from hieropo.errors import InputError, LogError, MismatchError
from hieropo.rows.columns import check_rows
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

    Attributes
    ----------
    keys : Keys
        The m tasks.
    dim : int
        Features d.
    sums : (m, (d + 2)(d + 3) / 2) array
        Upper triangle of S_s, packed by columns: entry (i <= j) at j (j + 1) / 2 + i.
    rows : (m,) array
        n_s = sum c q: rows of each task, a row of weight k being k rows.
    log_precision : (m,) array
        Sum of c q log v.
    features : str or None
        Fingerprint of the feature map that made phi; None where phi was given directly.
    squares : array like ``sums``, or None
        Sum of c (q v)^2 z z'; only of rows that have sampling weights.
    offset : (d,) array or None
        Coefficients o, such as the same number for each intercept: all sums are of z = (phi, r - o' phi, 1), so that
        rewards far from 0 lose no precision. None is 0.
    """

    keys: Keys
    dim: int
    sums: Array
    rows: Array
    log_precision: Array
    features: str | None = None
    squares: Array | None = None
    offset: Array | None = None

    def __post_init__(self) -> None:
        if self.dim < 1:
            raise InputError(f"Moments of {self.dim} features; at least one feature is needed.")
        for array in (self.sums, self.rows, self.log_precision, self.squares, self.offset):
            if array is not None:
                sealed(array)

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
        return f"Moments({counted(len(self), 'task')}, {counted(self.n_rows, 'row')}, {counted(self.dim, 'feature')})"

    def gram(self, task: object) -> Array:
        """Return sum w phi phi' of one task, shape (d, d)."""
        return unpack(self.sums[self._row(task)], self.dim)

    def cross(self, task: object) -> Array:
        """Return sum w phi r of one task, shape (d,)."""
        start = packed_size(self.dim)
        return self._around_zero(task)[start : start + self.dim].copy()

    def reward_squares(self, task: object) -> float:
        """Return sum w r^2 of one task."""
        return float(self._around_zero(task)[packed_size(self.dim + 1) - 1])

    def _around_zero(self, task: object) -> Array:
        return np.asarray(self.at([self._row(task)]).around(None).sums[0])

    def _row(self, task: object) -> int:
        return int(self.keys.require([task])[0])

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
        )

    def covering(self, keys: Keys) -> Self:
        """Return these moments with every task of ``keys``; tasks that are new have no rows."""
        union, _ = self.keys.union(keys)
        extra = len(union) - len(self)
        if not extra:
            return self
        none = np.zeros((extra, self.sums.shape[1]))
        return replace(
            self,
            keys=union,
            sums=np.concatenate([self.sums, none]),
            rows=np.concatenate([self.rows, np.zeros(extra)]),
            log_precision=np.concatenate([self.log_precision, np.zeros(extra)]),
            squares=None if self.squares is None else np.concatenate([self.squares, none]),
        )

    def information(self, rows: Codes, noise_var: Array) -> Array:
        """Return the sum of v phi phi' / sigma^2 (d, d) over the rows of the tasks at ``rows``, for noise_var (1,)."""
        d = self.dim
        return np.asarray(unpack(self.sums[rows].sum(axis=0), d + 2)[:d, :d] / noise_var)

    def scores(self, rows: Any, theta: Array, noise_var: Array) -> Array:
        """Return sum v phi (r - phi' theta_s) / sigma^2 (n, d) of the tasks at ``rows``, for theta (n, d) or (d,)."""
        d = self.dim
        sums = unpack(self.sums[rows], d + 1)
        offset = 0.0 if self.offset is None else self.offset
        residual = sums[:, :d, d] - np.einsum(
            "nij,nj->ni", sums[:, :d, :d], np.broadcast_to(theta - offset, (len(sums), d))
        )
        return np.asarray(residual / noise_var)

    @property
    def per_action(self) -> bool:
        """Return False: sums are over all actions; those of :class:`UnitMoments` are one block an action."""
        return False

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
        )

    def transformed(self, T: Array) -> Self:
        """Return the moments of the features T phi, T (d, d) regular: S_s becomes [T 0; 0 I] S_s [T 0; 0 I]'."""
        squares = None if self.squares is None else transformed_sums(self.squares, T)
        offset = None if self.offset is None else np.asarray(np.linalg.solve(T.T, self.offset))
        sums = transformed_sums(self.sums, T)
        return replace(self, dim=len(T), sums=sums, features=None, squares=squares, offset=offset)

    def around(self, offset: Array | None) -> Self:
        """Return the same moments with sums of r - o' phi for another offset o (d,): a congruence of each S_s."""
        zero = np.zeros(self.dim)
        change = (zero if offset is None else offset) - (zero if self.offset is None else self.offset)
        if not change.any():
            return replace(self, offset=offset)
        squares = None if self.squares is None else subtract_offset(self.squares, change)
        return replace(self, sums=subtract_offset(self.sums, change), squares=squares, offset=offset)

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
            _clear_rounding(sums, slots, other.sums, self.dim + 2)
        if not np.isfinite(sums).all():
            refuse_overflow(first.keys, sums)
        return type(self)(first.keys, self.dim, sums, rows, log_precision, features, squares, offset)

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

    def allclose(self, other: "Moments", rtol: float = 1e-12) -> bool:
        """Return True where both hold the same tasks, in any order, with the same rows and sums to rounding.

        The sums of a task are compared to ``rtol`` of sqrt(S_ii S_jj), the scale of rounding errors.
        """
        if self.dim != other.dim or len(self) != len(other) or self.features != other.features:
            return False
        place = other.keys.locate(self.keys.values)
        if (place < 0).any() or not np.allclose(self.rows, other.rows[place], rtol=rtol, atol=0.0):
            return False
        size = self.dim + 2
        first, second = unpack(self.sums, size), unpack(other.around(self.offset).sums[place], size)
        spread = np.sqrt(np.maximum(np.diagonal(np.abs(first), axis1=1, axis2=2), 0.0))
        near = np.abs(first - second) <= rtol * spread[:, :, None] * spread[:, None, :]
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


def _emptied(sums: Array, rows: Array, slots: Codes, taken: Moments) -> Codes:
    """Return the slots of tasks that have only rounding errors left after ``taken`` was subtracted."""
    few = np.flatnonzero(np.abs(rows[slots]) <= _ROUNDING * np.abs(taken.rows))
    rest = np.abs(sums[slots[few]]).max(axis=1, initial=0.0)
    empty = rest <= _ROUNDING * np.abs(taken.sums[few]).max(axis=1, initial=0.0)
    return np.asarray(slots[few[empty]])


def _clear_rounding(sums: Array, place: Codes, taken: Array, size: int) -> None:
    """Set sums of squares that are below 0 by rounding to 0, with their products: that entry of z is 0 in all rows.

    Sums further below 0 stay, to be refused: more was subtracted than was added.
    """
    squares = [packed_size(j + 1) - 1 for j in range(size)]
    diagonal = sums[place[:, None], squares]
    below = (diagonal < 0) & (diagonal >= -_ROUNDING * taken[:, squares])
    affected = np.flatnonzero(below.any(axis=1))
    if affected.size:
        i, j = triangle(size)
        cleared = below[affected]
        sums[place[affected]] = np.where(cleared[:, i] | cleared[:, j], 0.0, sums[place[affected]])


def refuse_overflow(keys: Keys, sums: Array) -> None:
    """Raise LogError where a sum of squares overflowed."""
    for start in range(0, len(sums), _PIECE):
        bad = ~np.isfinite(sums[start : start + _PIECE]).all(axis=1)
        if not bad.any():
            continue
        task = keys.values[start + int(bad.argmax())]
        raise LogError(
            f"The sums of task {task!r} are not finite: a feature or reward is so large that its square does not fit "
            "a float64. Rescale that column."
        )


def add_rows(codes: Codes, phi: Array, reward: Array, factors: Array, sums: Array) -> None:
    """Add w z z' of rows to ``sums`` (m, (d + 2)(d + 3) / 2); factors w (n,), or empty for 1."""
    backend.statistics(codes.size * sums.shape[1]).accumulate(
        normalised(codes), normalised(phi), normalised(reward), normalised(factors), sums
    )
