"""Minimise a convex quadratic over the positive semi-definite matrices, or over non-negative vectors."""

from collections.abc import Callable

import numpy as np

from hieropo.core.packed import Array, triangle

_ROUNDS = 5000


def to_vector(matrix: Array) -> Array:
    """Upper triangle of a symmetric matrix, off-diagonal entries times sqrt 2, so that inner products are kept."""
    rows, columns = triangle(len(matrix))
    return np.where(rows == columns, 1.0, np.sqrt(2.0)) * matrix[rows, columns]


def to_matrix(vector: Array, d: int) -> Array:
    """Undo :func:`to_vector`."""
    rows, columns = triangle(d)
    matrix = np.empty((d, d))
    matrix[rows, columns] = matrix[columns, rows] = vector / np.where(rows == columns, 1.0, np.sqrt(2.0))
    return matrix


def nearest_psd(vector: Array, d: int) -> Array:
    """Project a vector of a symmetric matrix on the positive semi-definite ones."""
    values, vectors = np.linalg.eigh(to_matrix(vector, d))
    if values[0] >= 0:
        return vector
    return to_vector((vectors * np.maximum(values, 0.0)) @ vectors.T)


def minimise(slope: Array, curvature: Array, start: Array, project: Callable[[Array], Array]) -> Array:
    """Argument of ``min <slope, x - start> + <x - start, curvature (x - start)> / 2`` over a convex cone.

    The unconstrained minimiser where it lies in the cone, else by alternating directions: the quadratic wants a well
    scaled ``curvature``, and gets one from the caller.

    Parameters
    ----------
    slope, start : (k,) arrays
    curvature : (k, k) array
        Positive semi-definite.
    project : function
        Orthogonal projection on the cone.
    """
    size = max(float(np.trace(curvature)) / len(slope), np.finfo(np.float64).tiny)
    form = curvature + 1e-12 * size * np.eye(len(slope))
    free = start - np.linalg.lstsq(form, slope, rcond=None)[0]
    inside = project(free)
    scale = float(np.abs(free).max()) + float(np.abs(start).max()) or 1.0
    if np.abs(inside - free).max() <= 1e-14 * scale:
        return inside
    solver = np.linalg.solve(form + size * np.eye(len(slope)), np.eye(len(slope)))
    target, z, dual = form @ start - slope, project(start), np.zeros(len(slope))
    for _ in range(_ROUNDS):
        x = 1.6 * (solver @ (target + size * (z - dual))) - 0.6 * z
        before, z = z, project(x + dual)
        dual += x - z
        if max(np.abs(x - z).max(), np.abs(z - before).max()) <= 1e-14 * scale:
            break
    return z
