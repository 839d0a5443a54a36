"""Batches of small matrices, one for each task, with tasks along the last axis of every array.

The order of every sum depends on the size of the matrices alone, and not on the number of tasks: a task gets the same
bits alone and among others.
"""

import numpy as np

from hieropo._utils.arrays import Array

FORMED = 1e4  # up to this size F'GF may be formed: it costs as many units of the last place


def tasks_last(tasks: Array) -> Array:
    """Return the array with tasks as the last axis."""
    return np.ascontiguousarray(
        tasks.transpose(*range(1, tasks.ndim), 0)
    )  # moveaxis takes longer than a small copy


def product(indices: str, *arrays: Array) -> Array:
    """Return the sums of products that ``indices`` name, as `numpy.einsum`."""
    return np.asarray(np.einsum(indices, *arrays, optimize=False))


def inverse_root(x: Array) -> Array:
    """Return 1 / sqrt(x), and 0 where x is not above 0."""
    return np.where(x > 0.0, 1.0 / np.sqrt(np.where(x > 0.0, x, 1.0)), 0.0)


def cholesky(N: Array) -> tuple[Array, Array]:
    """Return L (d, d, n) with L L' = N, and 1 / diag L (d, n): 0 where a pivot is not above 0."""
    L, inverse = np.zeros_like(N), np.zeros(N.shape[1:])
    for j in range(len(N)):
        column = N[j:, j] - product("ikn,kn->in", L[j:, :j], L[j, :j])
        inverse[j] = inverse_root(column[0])
        L[j:, j] = column * inverse[j]
    return L, inverse


def solve_lower(L: Array, inverse: Array, X: Array) -> Array:
    """Return L^-1 X, for X (d, c, n)."""
    solution = np.empty_like(X)
    for j in range(len(X)):
        solution[j] = (X[j] - product("kn,kcn->cn", L[j, :j], solution[:j])) * inverse[j]
    return solution
