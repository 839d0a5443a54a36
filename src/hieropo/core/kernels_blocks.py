"""Building blocks of the steps up and down, on eight tasks at once: gather, factor, solve.

Rows of statistics are packed upper triangles by columns of [[G, B], [B', c]] (features, then reward). Inside, the
reward is column 0 and feature i is column i + 1; ``spots`` says where each packed entry goes. Factorizations go by
blocks of four, so that most work is ``add_product``.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"

import math

import numpy as np

from hieropo.core.jit import compiled, inlined
from hieropo.core.kernels_lanes import (
    LANES,
    add_product,
    constant,
    inverse_root,
    less,
    load,
    reflection,
    store,
    times,
)

FORMED = 1e4  # up to this size F'GF may be formed: it costs as many units of the last place


@inlined
def stride(d):
    """Vectors from one row of a work matrix to the next: odd, so that a column does not fall into few cache sets."""
    return (d + 1) | 1


def packed_spots(d: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Vector offset inside the work matrix R of each packed entry of [[G, B], [B', c]]."""
    e = (d + 1) | 1
    features = [j * e + i + 1 for j in range(d) for i in range(j + 1)]
    return np.array([*features, *(i * e for i in range(d)), d * e], dtype=np.int64)


def workspace(d: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Room for one call of a step in one thread, every vector on a cache line of its own."""
    size = 16 * (d + 1) * ((d + 1) | 1) * LANES
    room = np.zeros(size + LANES)
    skip = (-room.ctypes.data % 64) // 8
    return room[skip : skip + size].reshape(16, -1)


@inlined
def gather(S, t, count, scale, spots, R):
    """Lay the rows t .. t + count of S side by side in R; absent lanes are zero."""
    if count == LANES:
        for p in range(spots.size):
            spot = spots[p] * LANES
            for lane in range(LANES):
                R[spot + lane] = S[t + lane, p] * scale
    else:
        for p in range(spots.size):
            spot = spots[p] * LANES
            for lane in range(LANES):
                R[spot + lane] = S[t + lane, p] * scale if lane < count else 0.0


@inlined
def information(R, F, d, W, L):
    """W = F'[B G] and L = I + F'G F (lower triangle), from [B G] in R; the largest diagonal entry of L.

    R comes with the lower triangle of G and leaves with the whole of it.
    """
    e = stride(d)
    W[:] = 0.0
    L[:] = 0.0
    for j in range(d):
        store(L, j * e + j, constant(1.0))
        for i in range(j):
            store(R, i * e + j + 1, load(R, j * e + i + 1))
    for first in range(0, d, 4):
        end = min(first + 4, d)
        add_product(W, first * e, e, 1, F, first, 1, e, R, 0, 1, e, end - first, d + 1, end, 1.0)
        add_product(L, first * e, e, 1, W, first * e + 1, e, 1, F, 0, 1, e, end - first, end, end, 1.0)
    largest = 0.0
    for j in range(d):
        for lane in range(LANES):
            largest = max(largest, L[(j * e + j) * LANES + lane])
    return largest


@compiled
def pivoted_root(R, d, tolerance, lane, root, left, seen_only):
    """G = root'root and B = root'y (column 0 of root) for one lane of R, pivoted; the rank.

    Pivots are the largest left over in units of their diagonal entry, so that columns may be of any scale; what is
    below ``tolerance`` of it is rounding. Without pivoting a small pivot would cost the root of its rounding. What B
    says about such a direction is kept all the same where it is more than rounding, in a row too small to inform,
    unless ``seen_only``. Leaves c - y'y in row d of R.
    """
    e = stride(d)
    reward = R[d * e * LANES + lane]
    for j in range(d):
        left[j] = R[(j * e + j + 1) * LANES + lane]
        for i in range(d + 1):
            root[(j * e + i) * LANES + lane] = 0.0
    rank = 0
    for k in range(d):
        best, share = -1, -1.0
        for j in range(d):
            whole = R[(j * e + j + 1) * LANES + lane]
            if left[j] >= 0.0 and whole > 0.0 and left[j] > share * whole:
                best, share = j, left[j] / whole
        seen = share > tolerance
        if best < 0 or (seen_only and not seen):
            break
        rank += 1 if seen else 0
        whole = R[(best * e + best + 1) * LANES + lane]
        pivot = math.sqrt(left[best] if seen else 1e-2 * tolerance * whole)
        left[best] = -1.0
        for i in range(d + 1):
            if i > 0 and (not seen or left[i - 1] < 0.0):
                continue
            value = R[(best * e + i) * LANES + lane]
            for row in range(k):
                value -= root[(row * e + best + 1) * LANES + lane] * root[(row * e + i) * LANES + lane]
            if not seen and abs(value) <= tolerance * math.sqrt(whole * reward):
                pivot = value = 0.0
            else:
                value /= pivot
            root[(k * e + i) * LANES + lane] = value
            if i > 0:
                left[i - 1] = max(left[i - 1] - value * value, 0.0)
        root[(k * e + best + 1) * LANES + lane] = pivot
        R[d * e * LANES + lane] -= root[k * e * LANES + lane] ** 2
    return rank


@inlined
def cholesky(N, d, rows, inverse):
    """N (rows x d) = L L' of its upper d rows in place, further rows times L'^-1; ``inverse`` is 1 / L_jj."""
    e = stride(d)
    zero = constant(0.0)
    for first in range(0, d, 4):
        end = min(first + 4, d)
        start = first * e
        add_product(
            N, start + first, e, 1, N, start, e, 1, N, start, e, 1, rows - first, end - first, first, -1.0
        )
        for j in range(first, end):
            root = inverse_root(load(N, j * e + j), zero)
            store(inverse, j, root)
            for i in range(j, rows):
                value = times(load(N, i * e + j), root)
                store(N, i * e + j, value)
                for k in range(j + 1, min(i + 1, end)):
                    store(N, i * e + k, less(load(N, i * e + k), value, load(N, k * e + j)))


@inlined
def solve(L, inverse, d, X, columns, lower):
    """X <- L^-1 X by forward substitution; ``lower``: X is lower triangular, else it has ``columns`` columns."""
    e = stride(d)
    for first in range(0, d, 4):
        end = min(first + 4, d)
        known = first if lower else columns
        add_product(X, first * e, e, 1, L, first * e, e, 1, X, 0, 1, e, end - first, known, first, -1.0)
        for j in range(first, end):
            for k in range(first, j):
                factor = load(L, j * e + k)
                for i in range(k + 1 if lower else columns):
                    store(X, j * e + i, less(load(X, j * e + i), factor, load(X, k * e + i)))
            root = load(inverse, j)
            for i in range(j + 1 if lower else columns):
                store(X, j * e + i, times(load(X, j * e + i), root))


@inlined
def orthogonalise(QT, d, L, inverse, products):
    """L L' = I + Q'Q, and L^-1 Q't as row d of L, by reflections of [I; Q]: Q'Q is never formed.

    Rows of QT are the columns of Q, then t; they are used up. Column j: s = sqrt(1 + |q_j|^2), L_kj = q_k'q_j / s and
    q_k -= q_j (q_k'q_j) (1 + s) / (s |q_j|^2).
    """
    e = stride(d)
    for j in range(d):
        rest = d + 1 - j
        for k in range(rest):
            store(products, k, constant(0.0))
        add_product(products, 0, 1, 0, QT, j * e, e, 1, QT, j * e, 0, 1, rest, 1, d, 1.0)
        square = load(products, 0)
        root = inverse_root(less(square, constant(-1.0), constant(1.0)), constant(0.0))
        weight = reflection(square)
        store(inverse, j, root)
        for k in range(1, rest):
            product = load(products, k)
            store(L, (j + k) * e + j, times(product, root))
            factor = times(product, weight)
            for i in range(d):
                spot = (j + k) * e + i
                store(QT, spot, less(load(QT, spot), factor, load(QT, j * e + i)))
