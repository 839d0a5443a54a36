"""Symmetric matrices as vectors, and steps towards the minimum of a function over positive semi-definite ones.

A point is one or several blocks, each a symmetric p x p matrix that has to be >= 0; non-negative vectors are blocks of
size 1. Blocks are kept as vectors, one after another, in coordinates that keep inner products.
"""

from collections.abc import Callable, Iterator

import numpy as np

from hieropo._utils.arrays import Array, Codes, Mask
from hieropo._utils.packed import packed_size, triangle
from hieropo._utils.ties import first_smallest
from hieropo.errors import NumericalError

_ROUNDS = 5000
_LEAST_PIVOT = 1e-7
_TRUSTED = 0.8  # share of the expected curvature that the observed one may lack in any direction
_ZERO = 1e-10  # eigenvalue, in units of its standard error, that is a collapsed direction
_FLAT = 1e-10  # curvature that may be rounding, where about one is usual
_PUSH = 1e-6  # slope, in the same units, that is rounding: it promises its square


def to_vector(matrix: Array) -> Array:
    """Return upper triangles of matrices (..., d, d), off-diagonal entries times sqrt 2: inner products are kept."""
    rows, columns = triangle(matrix.shape[-1])
    return np.where(rows == columns, 1.0, np.sqrt(2.0)) * matrix[..., rows, columns]


def to_matrix(vector: Array, d: int) -> Array:
    """Undo :func:`to_vector`."""
    rows, columns = triangle(d)
    matrix = np.empty((*vector.shape[:-1], d, d))
    matrix[..., rows, columns] = matrix[..., columns, rows] = vector / np.where(
        rows == columns, 1.0, np.sqrt(2.0)
    )
    return matrix


def nearest_psd(vector: Array, d: int) -> Array:
    """Project a vector of symmetric d x d blocks on those that are positive semi-definite."""
    if d == 1:
        return np.maximum(vector, 0.0)
    values, vectors = np.linalg.eigh(to_matrix(vector.reshape(-1, packed_size(d)), d))
    if (values >= 0).all():
        return vector
    return to_vector((vectors * np.maximum(values, 0.0)[:, None, :]) @ vectors.swapaxes(1, 2)).ravel()


def congruence(T: Array) -> Array:
    """Return the matrix (k, k) of the map X -> T X T' of each block, T (blocks, p, p), between vectors."""
    blocks, p, _ = T.shape
    q = packed_size(p)
    turned = to_vector(T[:, None] @ to_matrix(np.eye(q), p) @ T[:, None].swapaxes(2, 3))
    whole = np.zeros((blocks, q, blocks, q))
    whole[np.arange(blocks), :, np.arange(blocks)] = turned.swapaxes(1, 2)
    return whole.reshape(blocks * q, blocks * q)


def feature_root(matrix: Array) -> Array:
    """Return L lower triangular with L L' = matrix (d, d), a sum over rows of products of features of any scale.

    Raises
    ------
    NumericalError
        A feature is constant zero or a combination of others; it is named.
    """
    scale = np.sqrt(np.maximum(np.diagonal(matrix), 0.0))
    if not (scale > 0).all():
        raise NumericalError(
            f"The population mean is not determined: feature {int(np.argmin(scale))} is constant zero. Leave it out."
        )
    try:
        lower = np.linalg.cholesky(matrix / np.outer(scale, scale))
    except np.linalg.LinAlgError as error:
        raise NumericalError(
            "The population mean is not determined: features are copies of each other in every task. Leave one out."
        ) from error
    if np.diagonal(lower).min() < _LEAST_PIVOT:
        raise NumericalError(
            f"The population mean is not determined: feature {int(first_smallest(np.diagonal(lower)))} is, in every "
            "task, the same combination of other features. Leave it out."
        )
    root: Array = lower * scale[:, None]
    return root


def minimise(slope: Array, curvature: Array, start: Array, project: Callable[[Array], Array]) -> Array:
    """Return the argument of ``min <slope, x - start> + <x - start, curvature (x - start)> / 2`` over a convex cone.

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
    unconstrained = start - np.linalg.lstsq(form, slope, rcond=None)[0]
    projected = project(unconstrained)
    scale = float(np.abs(unconstrained).max()) + float(np.abs(start).max()) or 1.0
    if np.abs(projected - unconstrained).max() <= 1e-14 * scale:
        return projected
    solver = np.linalg.solve(form + size * np.eye(len(slope)), np.eye(len(slope)))
    target, z, dual = form @ start - slope, project(start), np.zeros(len(slope))
    for _ in range(_ROUNDS):
        x = 1.6 * (solver @ (target + size * (z - dual))) - 0.6 * z
        before, z = z, project(x + dual)
        dual += x - z
        if max(np.abs(x - z).max(), np.abs(z - before).max()) <= 1e-14 * scale:
            break
    return z


def steps(
    x: Array, slope: Array, expected: Array, observed: Array, frame: Array, near: float
) -> Iterator[tuple[Array, float]]:
    """Yield the next points from x, each with its predicted decrease, the largest first.

    Where the predicted decrease is below ``near``: Newton's step with the observed curvature along the face of x, that
    is, among matrices of its rank, if the slope opens no collapsed direction; else the minimiser over the cone of a
    quadratic with as much of the observed curvature as keeps it convex. Last: the minimiser for the expected one.

    Parameters
    ----------
    x, slope : (k,) arrays
        The point and the derivative there, as vectors of blocks.
    expected, observed : (k, k) arrays
        Curvatures, the former positive semi-definite.
    frame : (blocks, p, p) array
        T with S = T X T' such that in X no curvature is far below that of the identity's, such as 1 / tasks of it.
    near : float
    """
    blocks, p, _ = frame.shape
    size = _sizes(congruence(frame), expected, blocks) / packed_size(p)
    frame = frame / np.maximum(size, _FLAT)[:, None, None] ** 0.25
    half = np.linalg.solve(frame, to_matrix(x.reshape(blocks, -1), p))
    values, vectors = np.linalg.eigh(np.linalg.solve(frame, half.swapaxes(1, 2)))
    values = np.maximum(values, 0.0)
    T = congruence(frame @ vectors)  # now every block of x is diagonal, and a unit about a standard error
    current = to_vector(values[:, :, None] * np.eye(p)).ravel()
    slope, expected, observed = T.T @ slope, _raised(T.T @ expected @ T), T.T @ observed @ T
    collapsed = values <= _ZERO + 1e-13 * values.max(axis=1, keepdims=True)

    def over_cone(form: Array) -> tuple[Array, float]:
        goal = minimise(slope, form, current, lambda v: nearest_psd(v, p))
        move = goal - current
        return T @ goal, -float(slope @ move + move @ form @ move / 2)

    face = _along_face(values, collapsed, slope, expected, observed)
    if face is not None and face[1] <= near:
        yield T @ face[0], face[1]
    expected_step = over_cone(expected)
    if face is None and expected_step[1] <= near:
        yield over_cone(_convex(collapsed, expected, observed))
    yield expected_step


def _sizes(turn: Array, form: Array, blocks: int) -> Array:
    """Return the traces (blocks,) of the diagonal blocks of T' form T."""
    return np.asarray(np.diagonal(turn.T @ form @ turn).reshape(blocks, -1).sum(axis=1))


def _raised(form: Array) -> Array:
    """Return the form with eigenvalues at or below rounding raised above it."""
    values, vectors = np.linalg.eigh(form)
    least = _FLAT * max(values[-1], 1.0)
    if values[0] >= least:
        return form
    return np.asarray((vectors * np.maximum(values, least)) @ vectors.T)


def _entries(collapsed: Mask) -> tuple[Codes, Codes, Codes]:
    """Return for each entry of the vector its block, and its indices (i <= j) in the block."""
    blocks, p = collapsed.shape
    rows, columns = triangle(p)
    return np.repeat(np.arange(blocks), rows.size), np.tile(rows, blocks), np.tile(columns, blocks)


def _roots(form: Array) -> Array:
    """Return H with H' form H = I, for a positive semi-definite form."""
    values, vectors = np.linalg.eigh(form)
    return np.asarray(
        vectors / np.sqrt(np.maximum(values, 1e-12 * max(values[-1], np.finfo(np.float64).tiny)))
    )


def _convex(collapsed: Mask, expected: Array, observed: Array) -> Array:
    """Return the expected curvature plus as much of observed - expected as keeps a fifth of it in every direction."""
    block, i, j = _entries(collapsed)
    free = ~(collapsed[block, i] & collapsed[block, j])  # what is collapsed shows no curvature of its own
    change = (observed - expected) * np.outer(free, free)
    root = _roots(expected)
    least = float(np.linalg.eigvalsh(root.T @ change @ root)[0])
    return expected + min(1.0, _TRUSTED / max(-least, _TRUSTED)) * change


def _along_face(
    values: Array, collapsed: Mask, slope: Array, expected: Array, observed: Array
) -> tuple[Array, float] | None:
    """Return Newton's step among matrices of the rank of diag(values); None where it does not apply.

    With X = diag(w, 0), entries a of the range and b between range and null space, the matrix of the same rank is
    [[w + a, b], [b', b' (w + a)^-1 b]]: the slope Z on the null space adds <Z, b' w^-1 b> to the quadratic.
    """
    blocks, p = values.shape
    block, i, j = _entries(collapsed)
    push = to_matrix(slope.reshape(blocks, -1), p) * (collapsed[:, :, None] & collapsed[:, None, :])
    free = np.flatnonzero(~collapsed[block, j])  # the collapsed come first: i may be one of them
    if not free.size or np.linalg.eigvalsh(push).min() < -_PUSH:
        return None
    block, i, j = block[free], i[free], j[free]
    form = observed[np.ix_(free, free)].copy()
    mixed = np.flatnonzero(collapsed[block, i])
    row, column = (part.ravel() for part in np.meshgrid(mixed, mixed, indexing="ij"))
    same = (block[row] == block[column]) & (j[row] == j[column])
    row, column = row[same], column[same]
    form[row, column] += push[block[row], i[row], i[column]] / values[block[row], j[row]]
    root = _roots(expected[np.ix_(free, free)])
    if np.linalg.eigvalsh(root.T @ form @ root)[0] < (1 - _TRUSTED) / 4:
        return None
    move = np.zeros(slope.size)
    move[free] = -np.linalg.solve(form, slope[free])
    change = to_matrix(move.reshape(blocks, -1), p)
    kept = ~collapsed[:, :, None] & ~collapsed[:, None, :]
    inner = np.where(kept, change, 0.0) + np.eye(p) * np.where(collapsed, 1.0, values)[:, :, None]
    if np.linalg.eigvalsh(inner).min() <= 0:
        return None
    across = np.where(collapsed[:, :, None] & ~collapsed[:, None, :], change, 0.0)
    outer = across @ np.linalg.solve(inner, across.swapaxes(1, 2))
    matrix_ = np.where(kept, inner, 0.0) + across + across.swapaxes(1, 2) + outer
    return to_vector(matrix_).ravel(), -float(slope @ move) / 2
