"""Symmetric matrices as packed upper triangles by columns: entry (i <= j) is at j (j + 1) / 2 + i."""

from functools import cache

import numpy as np

from hieropo._utils.arrays import Array, Codes


def packed_size(n: int) -> int:
    """Return the number of entries in the triangle of an n x n matrix."""
    return n * (n + 1) // 2


@cache
def triangle(n: int) -> tuple[Codes, Codes]:
    """Return rows i and columns j of the packed entries."""
    columns = np.repeat(np.arange(n), np.arange(1, n + 1))
    rows = np.concatenate([np.arange(j + 1) for j in range(n)]) if n else np.zeros(0, dtype=np.int64)
    return rows, columns


@cache
def _places(n: int) -> Codes:
    rows, columns = triangle(n)
    places = np.empty((n, n), dtype=np.int64)
    places[rows, columns] = places[columns, rows] = np.arange(rows.size)
    return places


def unpack(packed: Array, n: int) -> Array:
    """Return symmetric matrices (..., n, n) from the first n (n + 1) / 2 entries of packed (..., q)."""
    return packed.take(_places(n), axis=-1)


def pack(matrix: Array) -> Array:
    """Return the packed (..., n (n + 1) / 2) upper triangles of matrices (..., n, n)."""
    rows, columns = triangle(matrix.shape[-1])
    return np.ascontiguousarray(matrix[..., rows, columns])


def padded(matrix: Array, size: int) -> Array:
    """Return a matrix (n, n) padded with rows and columns of zeros to ``size``."""
    if len(matrix) == size:
        return matrix
    whole = np.zeros((size, size))
    whole[: len(matrix), : len(matrix)] = matrix
    return whole
