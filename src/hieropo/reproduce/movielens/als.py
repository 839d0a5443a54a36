"""Factors of a sparse matrix by alternating least squares; each half step is a batch of ridge regressions.

With the values y_ij that are there, of rows i and columns j,

    minimise  sum_ij (y_ij - u_i' v_j)^2 + ridge (sum_i |u_i|^2 + sum_j |v_j|^2)

over U (m, k) and V (p, k), one of them at a time: given V, u_i is the posterior mean of a task with the rows v_j, noise
1 and the prior N(0, I / ridge), and so for V given U. The half steps are the step down of :mod:`steps`, from a parent
that is known to be zero. Neither rows nor columns are weighted by their numbers of values, and nothing is centred.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hieropo._kernels import backend
from hieropo._utils.arrays import Array, Codes, normalised
from hieropo._utils.packed import packed_size
from hieropo._utils.threads import in_threads, processors
from hieropo.errors import InputError, LogError
from hieropo.model.steps import Parents, down

_PIECES = 8  # of a half step for each thread; few would leave threads idle at the end


class Factors(NamedTuple):
    """The factors of a matrix: y_ij is u_i' v_j and a residual.

    Parameters
    ----------
    rows : (m, k) array
        u_i.
    columns : (p, k) array
        v_j; zero where a column has no values, and so for rows.
    """

    rows: Array
    columns: Array

    def residuals(self, row: ArrayLike, column: ArrayLike, value: ArrayLike) -> Array:
        """Return the residuals (n,) of values."""
        i, j = np.asarray(row, dtype=np.int64), np.asarray(column, dtype=np.int64)
        fitted = np.einsum("nk,nk->n", self.rows[i], self.columns[j])
        return np.asarray(np.asarray(value, dtype=np.float64) - fitted, dtype=np.float64)


class _Ordered(NamedTuple):
    """Values sorted by the codes of one side: those of code s are at start[s] to start[s + 1]."""

    start: Codes
    others: Codes
    values: Array


def factorize(
    row: ArrayLike,
    column: ArrayLike,
    value: ArrayLike,
    rng: np.random.Generator,
    *,
    rank: int,
    ridge: float = 1.0,
    iterations: int = 15,
    threads: int | None = None,
) -> Factors:
    """Return the factors of a matrix with n observed values.

    Parameters
    ----------
    row, column : (n,) int arrays
        Row and column of each value, counted from 0.
    value : (n,) array
    rng : numpy Generator
        Draws the start of the columns' factors, independent N(0, 1 / rank).
    rank : int
        Factors k.
    ridge : float
        Positive.
    iterations : int
        Alternations; each solves for the factors of rows, then of columns.
    threads : int, optional
        Default: one for each processor; the answer does not depend on it.

    Raises
    ------
    InputError
        Shapes do not fit, a position is negative, rank or iterations are below 1, ridge is not positive.
    LogError
        No values, or one that is not finite.

    Examples
    --------
    >>> row, column = np.divmod(np.arange(12), 4)
    >>> factors = factorize(row, column, (1.0 + row) * column, np.random.default_rng(0), rank=1, ridge=1e-9)
    >>> np.round(factors.rows @ factors.columns.T, 6).tolist()
    [[0.0, 1.0, 2.0, 3.0], [0.0, 2.0, 4.0, 6.0], [0.0, 3.0, 6.0, 9.0]]
    """
    i, j, values = _checked(row, column, value)
    if rank < 1 or iterations < 1 or not (np.isfinite(ridge) and ridge > 0):
        raise InputError(
            f"rank={rank}, iterations={iterations}, ridge={ridge}; at least 1, at least 1 and a positive number are "
            "needed."
        )
    m, p = int(i.max()) + 1, int(j.max()) + 1
    workers = processors() if threads is None else threads
    by_row, by_column = _ordered(i, j, values, m), _ordered(j, i, values, p)
    columns = rng.standard_normal((p, rank)) / np.sqrt(rank)
    for _ in range(iterations):
        rows = _ridge(by_row, columns, ridge, workers)
        columns = _ridge(by_column, rows, ridge, workers)
    return Factors(rows, columns)


def _checked(row: ArrayLike, column: ArrayLike, value: ArrayLike) -> tuple[Codes, Codes, Array]:
    i, j, values = np.asarray(row), np.asarray(column), np.asarray(value, dtype=np.float64)
    if values.ndim != 1 or i.shape != values.shape or j.shape != values.shape:
        raise InputError(
            f"row {i.shape}, column {j.shape} and value {values.shape} do not fit; (n,) is needed."
        )
    if not values.size:
        raise LogError(
            "The matrix has no values, so nothing can be learned from it. Was a filter too strict?"
        )
    for name, codes in (("row", i), ("column", j)):
        if codes.dtype.kind not in "iu" or codes.min() < 0:
            raise InputError(
                f"{name} is of type {codes.dtype} from {codes.min()} on; whole numbers from 0 are needed."
            )
    bad = ~np.isfinite(values)
    if bad.any():
        position = int(bad.argmax())
        raise LogError(
            f"value[{position}] is {values[position]}. Leave out what is not known; it is not a zero."
        )
    return normalised(i.astype(np.int64)), normalised(j.astype(np.int64)), normalised(values)


def _ordered(code: Codes, other: Codes, value: Array, n: int) -> _Ordered:
    start, others, values = np.empty(n + 1, dtype=np.int64), np.empty_like(other), np.empty_like(value)
    backend.ratings(value.size).by_code(code, other, value, start, others, values)
    return _Ordered(start, others, values)


def _ridge(observed: _Ordered, factors: Array, ridge: float, threads: int) -> Array:
    """Return ridge regressions of the values of each code on the factors of the other side, (m, k)."""
    m, (p, k) = observed.start.size - 1, factors.shape
    loops = backend.ratings(observed.values.size * packed_size(k))
    padded = np.zeros((p + 1, -(-k // loops.LANES) * loops.LANES))
    padded[:p, :k] = factors
    sums = np.zeros((m, packed_size(k + 1)))
    flat = padded.ravel()

    def work(piece: tuple[int, int]) -> None:
        loops.cross_products(observed.start, observed.others, observed.values, *piece, k, flat, sums)

    in_threads(work, _pieces(observed.start, threads), threads)
    zero = np.zeros((1, k, k))
    parent = Parents(np.zeros((1, k)), zero, np.zeros((0, k, k)), lower=True)
    means, _, _ = down(sums, 1.0, np.eye(k) / np.sqrt(ridge), np.zeros(m, dtype=np.int64), parent)
    return means


def _pieces(start: Codes, threads: int) -> list[tuple[int, int]]:
    """Return the codes in pieces with about the same number of values each."""
    count = _PIECES * threads if threads > 1 else 1
    ends = np.searchsorted(start, start[-1] * np.arange(1, count) / count)
    bounds = np.unique(np.concatenate([[0], ends, [start.size - 1]])).tolist()
    return list(pairwise(bounds))
