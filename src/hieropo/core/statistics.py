"""Moments: everything about each task that the model needs, as sums that add, subtract and scale."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hieropo.core.arrays import normalised, sealed
from hieropo.core.keys import Codes, Keys
from hieropo.core.packed import pack, packed_size, triangle, unpack
from hieropo.errors import InputError, LogError, MismatchError
from hieropo.text import counted

Array = NDArray[np.float64]

_PIECE = 1024  # tasks that are looked at together, while they are in the cache
_LEFT = 1e-9  # of what is taken away: more than rounding leaves behind


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """The additive statistics of every task.

    For task s, ``S_s = sum_t w_t z_t z_t'`` with ``z = (phi, r, 1)``: it holds sum w phi phi', sum w phi r,
    sum w r^2, sum w phi, sum w r and sum w. Never divided by the noise variance. Under ``+`` and ``-`` moments form
    a commutative group; both keep the union of the tasks.

    Attributes
    ----------
    keys : Keys
        The m tasks.
    dim : int
        Features d.
    sums : (m, (d + 2)(d + 3) / 2) array
        Upper triangle of S_s, packed by columns: entry (i <= j) at j (j + 1) / 2 + i.
    rows : (m,) int array
        Rows of each task.
    log_weight : (m,) array
        Sum of log w.
    features : str or None
        Fingerprint of the feature map that made phi; None where phi was handed in.
    """

    keys: Keys
    dim: int
    sums: Array
    rows: Codes
    log_weight: Array
    features: str | None = None

    def __post_init__(self) -> None:
        if self.dim < 1:
            raise InputError(f"Moments of {self.dim} features; at least one feature is needed.")
        for array in (self.sums, self.rows, self.log_weight):
            sealed(array)

    @classmethod
    def zero(cls, dim: int, *, features: str | None = None) -> Self:
        """Return the moments of no rows and no tasks."""
        empty = np.zeros((0, packed_size(dim + 2)))
        return cls(
            Keys(np.zeros(0, dtype=object)), dim, empty, np.zeros(0, dtype=np.int64), np.zeros(0), features
        )

    @classmethod
    def from_arrays(
        cls,
        task: object,
        phi: ArrayLike,
        reward: ArrayLike,
        weight: ArrayLike | None = None,
        *,
        features: str | None = None,
    ) -> Self:
        """Sum over rows in one pass.

        Parameters
        ----------
        task : (n,) sequence
            Any hashable scalar ids, kept as given.
        phi : (n, d) array
            Feature vectors.
        reward : (n,) array
            Larger is better.
        weight : (n,) array, optional
            Not negative; the reward's variance is ``noise_var / weight``. Default 1. A row of weight 0 counts as
            absent.
        features : str, optional
            Fingerprint of the feature map that made ``phi``.

        Raises
        ------
        InputError
            Shapes do not fit.
        LogError
            A null id, a value that is not finite, a negative weight; names row and column.
        """
        table, values, weights = check_rows(phi, reward, weight)
        keys, codes = Keys.factorize(task)
        if codes.size != values.size:
            raise InputError(
                f"{codes.size} task ids do not fit {values.size} rewards; one of each a row is needed."
            )
        dim = table.shape[1]
        sums = np.zeros((len(keys), packed_size(dim + 2)))
        rows = np.zeros(len(keys), dtype=np.int64)
        log_weight = np.zeros(len(keys))
        add_rows(codes, table, values, weights, sums, rows, log_weight)
        refuse_overflow(keys, sums)
        return cls(keys, dim, sums, rows, log_weight, features)

    @property
    def tasks(self) -> NDArray[Any]:
        """The ids of the tasks, as given, shape (m,)."""
        return self.keys.values

    @property
    def n_rows(self) -> int:
        """Rows of all tasks together."""
        return int(self.rows.sum())

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
        return self.sums[self._row(task), start : start + self.dim].copy()

    def reward_squares(self, task: object) -> float:
        """Return sum w r^2 of one task."""
        return float(self.sums[self._row(task), packed_size(self.dim + 1) - 1])

    def _row(self, task: object) -> int:
        return int(self.keys.require([task])[0])

    def select(self, tasks: object) -> Self:
        """Return the moments of these tasks only, in this order.

        Raises
        ------
        UnknownTaskError
            A task is not here.
        InputError
            A task is named twice.
        """
        rows = self.keys.require(tasks)
        if np.unique(rows).size != rows.size:
            twice = self.keys.values[np.flatnonzero(np.bincount(rows) > 1)[:1]].tolist()[0]
            raise InputError(
                f"Task {twice!r} is selected twice; its rows would count twice. Name each task once."
            )
        return self._with(
            Keys(self.keys.values[rows]), self.sums[rows], self.rows[rows], self.log_weight[rows]
        )

    def covering(self, keys: Keys) -> Self:
        """Return these moments with every task of ``keys`` present, without rows where it had none."""
        union, _ = self.keys.union(keys)
        extra = len(union) - len(self)
        if not extra:
            return self
        return self._with(
            union,
            np.concatenate([self.sums, np.zeros((extra, self.sums.shape[1]))]),
            np.concatenate([self.rows, np.zeros(extra, dtype=np.int64)]),
            np.concatenate([self.log_weight, np.zeros(extra)]),
        )

    def scale(self, factor: float) -> Self:
        """Multiply every weight by a positive ``factor`` (forgetting, tempering)."""
        if not (np.isfinite(factor) and factor > 0):
            raise InputError(f"Moments can be scaled by a positive finite factor; got {factor!r}.")
        return self._with(
            self.keys, self.sums * factor, self.rows, self.log_weight + self.rows * np.log(factor)
        )

    def transformed(self, T: Array) -> Self:
        """Return the moments of the features T phi, T (k, d): each S_s becomes [T 0; 0 I] S_s [T 0; 0 I]'."""
        return type(self)(self.keys, len(T), turned(self.sums, T), self.rows, self.log_weight)

    def __radd__(self, other: object) -> Self:
        return self if other == 0 else NotImplemented  # so that sum() of moments works

    def __add__(self, other: Self) -> Self:
        return self._combine(other, 1)

    def __sub__(self, other: Self) -> Self:
        return self._combine(other, -1)

    def __neg__(self) -> Self:
        return self._with(self.keys, -self.sums, -self.rows, -self.log_weight)

    def _combine(self, other: Self, sign: int) -> Self:
        if not isinstance(other, Moments):
            return NotImplemented
        features = self._common_features(other)
        left = self.covering(other.keys)
        place = left.keys.locate(other.keys.values)
        sums, rows, log_weight = left.sums.copy(), left.rows.copy(), left.log_weight.copy()
        sums[place] += sign * other.sums
        rows[place] += sign * other.rows
        log_weight[place] += sign * other.log_weight
        if sign < 0:
            _clear_emptied(sums, rows, log_weight, place, other.sums)
            _clear_rounding(sums, place, other.sums, self.dim + 2)
        if not np.isfinite(sums).all():
            refuse_overflow(left.keys, sums)
        return type(self)(left.keys, self.dim, sums, rows, log_weight, features)

    def _common_features(self, other: "Moments") -> str | None:
        if self.dim != other.dim:
            raise MismatchError(
                f"Moments of {self.dim} features and moments of {other.dim} features do not combine: they were made "
                "by different feature maps. Make both again with one map."
            )
        marks = {self.features, other.features} - {None}
        if len(marks) > 1:
            raise MismatchError(
                f"Moments made by the feature maps {self.features} and {other.features} do not combine. Columns or "
                "actions differ, or their order does; make both again with one map."
            )
        return next(iter(marks), None)

    def _with(self, keys: Keys, sums: Array, rows: Codes, log_weight: Array) -> Self:
        return type(self)(keys, self.dim, sums, rows, log_weight, self.features)

    def allclose(self, other: "Moments", rtol: float = 1e-12) -> bool:
        """Whether both hold the same tasks, in any order, with the same rows and sums to rounding.

        The sums of a task are compared to ``rtol`` of sqrt(S_ii S_jj), the scale that rounding has.
        """
        if self.dim != other.dim or len(self) != len(other) or self.features != other.features:
            return False
        place = other.keys.locate(self.keys.values)
        if (place < 0).any() or (self.rows != other.rows[place]).any():
            return False
        size = self.dim + 2
        mine, theirs = unpack(self.sums, size), unpack(other.sums[place], size)
        spread = np.sqrt(np.maximum(np.diagonal(np.abs(mine), axis1=1, axis2=2), 0.0))
        near = np.abs(mine - theirs) <= rtol * spread[:, :, None] * spread[:, None, :]
        logs = np.isclose(self.log_weight, other.log_weight[place], rtol=rtol, atol=rtol)
        return bool(near.all() and logs.all())


def turned(sums: Array, T: Array) -> Array:
    """Packed sums of z = (T phi, r, 1) from those of z = (phi, r, 1), T (k, d): [T 0; 0 I] S [T 0; 0 I]'."""
    k, d = T.shape
    whole = np.zeros((k + 2, d + 2))
    whole[:k, :d] = T
    whole[k, d] = whole[k + 1, d + 1] = 1.0
    found = np.empty((len(sums), packed_size(k + 2)))
    for start in range(0, len(sums), 4096):
        part = slice(start, start + 4096)
        found[part] = pack(whole @ unpack(sums[part], d + 2) @ whole.T)
    return found


def _clear_emptied(sums: Array, rows: Codes, log_weight: Array, place: Codes, taken: Array) -> None:
    """Where every row of a task was taken away, drop what rounding left behind."""
    rest = np.abs(sums[place]).max(axis=1, initial=0.0)
    gone = (rows[place] == 0) & (rest <= _LEFT * np.abs(taken).max(axis=1, initial=0.0))
    sums[place[gone]] = 0.0
    log_weight[place[gone]] = 0.0


def _clear_rounding(sums: Array, place: Codes, taken: Array, size: int) -> None:
    """Where a sum of squares ended below 0 by rounding, that entry of z is 0 in all rows that are left.

    More below 0 than that is left as it is, to be refused: more was taken away than there was.
    """
    squares = [packed_size(j + 1) - 1 for j in range(size)]
    left = sums[place[:, None], squares]
    below = (left < 0) & (left >= -_LEFT * taken[:, squares])
    some = np.flatnonzero(below.any(axis=1))
    if some.size:
        i, j = triangle(size)
        gone = below[some]
        sums[place[some]] = np.where(gone[:, i] | gone[:, j], 0.0, sums[place[some]])


def refuse_overflow(keys: Keys, sums: Array) -> None:
    """Raise where squares of very large values went beyond float64."""
    for start in range(0, len(sums), _PIECE):
        bad = ~np.isfinite(sums[start : start + _PIECE]).all(axis=1)
        if not bad.any():
            continue
        task = keys.values[start + int(bad.argmax())]
        raise LogError(
            f"The sums of task {task!r} are not finite: a feature or reward is so large that its square does not fit "
            "a float64. Rescale that column."
        )


def check_rows(phi: ArrayLike, reward: ArrayLike, weight: ArrayLike | None) -> tuple[Array, Array, Array]:
    """Return phi (n, d), reward (n,), weight (n,) or empty as float64; raise where a value cannot be used."""
    table, values = _numbers(phi, "phi"), _numbers(reward, "reward")
    weights = np.zeros(0) if weight is None else _numbers(weight, "weight")
    if table.ndim != 2 or values.ndim != 1 or table.shape[0] != values.size:
        raise InputError(
            f"phi has shape {table.shape} and reward {values.shape}; (n, d) and (n,) with one n are needed."
        )
    if weight is not None and weights.shape != values.shape:
        raise InputError(f"weight has shape {weights.shape}; reward has {values.shape}.")
    bad = ~np.isfinite(table)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise LogError(
            f"phi[{row}, {column}] is {table[row, column]}. A feature must be finite: fill or drop such rows before."
        )
    bad = ~np.isfinite(values)
    if bad.any():
        row = int(bad.argmax())
        raise LogError(
            f"reward[{row}] is {values[row]}. A reward must be finite: a missing reward is not a zero."
        )
    bad = ~(np.isfinite(weights) & (weights >= 0))
    if bad.any():
        row = int(bad.argmax())
        raise LogError(f"weight[{row}] is {weights[row]}. A weight must be finite and not negative.")
    return table, values, weights


def _numbers(values: ArrayLike, name: str) -> Array:
    array = np.asarray(values)
    if array.dtype.kind not in "biufO":
        raise InputError(
            f"{name} is of type {array.dtype}; numbers are needed. Text is never read as a number."
        )
    try:
        return np.ascontiguousarray(array, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} holds something that is not a number: {error}.") from error


def add_rows(
    codes: Codes, phi: Array, reward: Array, weight: Array, sums: Array, rows: Codes, log_weight: Array
) -> None:
    """Run the compiled pass over rows, into ``sums``, ``rows`` and ``log_weight``."""
    from hieropo.core.kernels_statistics import accumulate

    accumulate(
        normalised(codes), normalised(phi), normalised(reward), normalised(weight), sums, rows, log_weight
    )
