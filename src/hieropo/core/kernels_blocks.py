"""Building blocks of the steps up and down, on eight tasks at once: gather, factor, solve.

Rows of statistics are packed upper triangles by columns of [[G, B], [B', c]] (features, then reward). Inside, the
reward is column 0 and feature i is column i + 1; ``spots`` says where each packed entry goes. Factorizations go by
blocks of four, so that most work is matrix products. A row of a work matrix has ``e`` vectors: an odd number, so that
a column does not fall into few sets of the cache.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"

import math

import numpy as np

from hieropo.core.jit import inlined
from hieropo.core.kernels_lanes import (
    LANES,
    add_nn,
    add_nt,
    add_tn,
    add_tv,
    constant,
    inverse_root,
    lay,
    less,
    load,
    pick,
    store,
    times,
)

FORMED = 1e4  # up to this size F'GF may be formed: it costs as many units of the last place


def row_length(d: int) -> int:
    """Vectors e in a row of a work matrix: room for d + 1 columns in whole tiles of four, and odd."""
    return 4 * (d // 4 + 1) + 1


def packed_spots(d: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Vector offset inside the work matrix R of each packed entry of [[G, B], [B', c]]."""
    e = row_length(d)
    features = [j * e + i + 1 for j in range(d) for i in range(j + 1)]
    return np.array([*features, *(i * e for i in range(d)), d * e], dtype=np.int64)


def workspace(d: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Room for one call of a step in one thread, every vector on a cache line of its own."""
    e = row_length(d)
    size = 16 * (e + 3) * e * LANES
    room = np.zeros(size + LANES)
    skip = (-room.ctypes.data % 64) // 8
    return room[skip : skip + size].reshape(16, -1)


@inlined
def gather(S, t, count, scale, spots, R):
    """Lay the rows t .. t + count of S side by side in R; absent lanes are zero."""
    first = 0
    if count == LANES:
        lay(S, t, S.shape[1], R, spots, 0, spots.size, scale)
        first = spots.size // 8 * 8
    for p in range(first, spots.size):
        spot = spots[p] * LANES
        for lane in range(LANES):
            R[spot + lane] = S[t + lane, p] * scale if lane < count else 0.0


@inlined
def information(R, F, d, e, W, L):
    """W = F'[B G] and L = I + F'G F (lower triangle), from [B G] in R; the largest diagonal entry of L.

    R comes with the lower triangle of G and leaves with the whole of it.
    """
    W[:] = 0.0
    L[:] = 0.0
    for j in range(d):
        store(L, j * e + j, constant(1.0))
        for i in range(j):
            store(R, i * e + j + 1, load(R, j * e + i + 1))
    for first in range(0, d, 4):
        end = min(first + 4, d)
        add_tn(W, first * e, F, first, R, 0, 4, d + 1, end, e, 1.0)
        add_nn(L, first * e, W, first * e + 1, F, 0, 4, end, end, e, 1.0)
    largest = 0.0
    for j in range(d):
        for lane in range(LANES):
            largest = max(largest, L[(j * e + j) * LANES + lane])
    return largest


@inlined
def cholesky(N, d, e, rows, inverse):
    """N (rows x d) = L L' of its upper d rows in place, further rows times L'^-1; ``inverse`` is 1 / L_jj."""
    zero = constant(0.0)
    for first in range(0, d, 4):
        end, start = min(first + 4, d), first * e
        add_nt(N, start + first, N, start, N, start, rows - first, 4, first, e, -1.0)
        for j in range(first, end):
            root = inverse_root(load(N, j * e + j), zero)
            store(inverse, j, root)
            for i in range(j, rows):
                value = times(load(N, i * e + j), root)
                store(N, i * e + j, value)
                for k in range(j + 1, min(i + 1, end)):
                    store(N, i * e + k, less(load(N, i * e + k), value, load(N, k * e + j)))


@inlined
def solve(L, inverse, d, e, X, columns, lower):
    """X <- L^-1 X by forward substitution; ``lower``: X is lower triangular, else it has ``columns`` columns."""
    for first in range(0, d, 4):
        end = min(first + 4, d)
        known = first if lower else columns
        add_nn(X, first * e, L, first * e, X, 0, 4, known, first, e, -1.0)
        for j in range(first, end):
            for k in range(first, j):
                factor = load(L, j * e + k)
                for i in range(k + 1 if lower else columns):
                    store(X, j * e + i, less(load(X, j * e + i), factor, load(X, k * e + i)))
            root = load(inverse, j)
            for i in range(j + 1 if lower else columns):
                store(X, j * e + i, times(load(X, j * e + i), root))


@inlined
def deposit(A, spots, out, parent, t, step):
    """Add each lane of A to the packed row of its parent, ``parent[t + step * lane]``, and empty A."""
    for lane in range(LANES):
        target = parent[min(t + step * lane, parent.size - 1)]
        for p in range(spots.size):
            out[target, p] += A[spots[p] * LANES + lane]
    A[:] = 0.0


@inlined
def log_of_product(inverse, d):
    """Sum over lanes of -2 log prod_j inverse_j, four factors to a logarithm."""
    total = 0.0
    for lane in range(LANES):
        product = 1.0
        for j in range(d):
            product *= inverse[j * LANES + lane]
            if j % 4 == 3 or j == d - 1:
                total -= 2.0 * math.log(product)
                product = 1.0
    return total


@inlined
def gain_information(W, d, e, A, sign):
    """A += sign [B G]-shaped W'W, lower triangle, the reward's own entry in row d."""
    total = load(A, d * e)
    for k in range(d):
        value = load(W, k * e)
        total = less(total, times(value, constant(-sign)), value)
    for first in range(0, d, 4):
        add_tn(A, first * e, W, first + 1, W, 0, 4, min(first + 4, d) + 1, d, e, sign)
    store(A, d * e, total)


@inlined
def load_parents(parent, start, count, loaded, d, e, means, inner, outer, m, C1, C2):
    """Lay the parents' means and factors side by side, where a lane's parent is another one than before."""
    for lane in range(count):
        p = parent[start + lane]
        if loaded[lane] != p:
            loaded[lane] = p
            for i in range(d):
                m[i * LANES + lane] = means[p, i]
                for j in range(d):
                    C1[(i * e + j) * LANES + lane] = inner[p, i, j]
                    if outer.shape[0] > 0:
                        C2[(i * e + j) * LANES + lane] = outer[p, i, j]


@inlined
def broadcast(F, d, e, F8):
    """Write the matrix F, the same for all tasks, into every lane of F8."""
    for j in range(d):
        for k in range(d):
            store(F8, j * e + k, constant(F[j * d + k]))


@inlined
def spread_parents(L, inverse, d, e, F8, C1, lower, VY):
    """V = L^-1 F' and Y = L^-1 C1, the two rows of VY."""
    for j in range(d):
        for a in range(d):
            store(VY[0], j * e + a, load(F8, a * e + j))
            store(VY[1], j * e + a, load(C1, j * e + a))
    for k in range(2):
        solve(L, inverse, d, e, VY[k], d, lower or k == 0)


@inlined
def subtract_seen(G, V, Z, C, MC, d, e, W, seen):
    """MC -= V'Z (G C): what the rows took away from the part of a factor outside the range of F."""
    W[:] = 0.0
    seen[:] = 0.0
    add_nn(W, 0, G, 1, C, 0, d, d, d, e, 1.0)
    add_nn(seen, 0, Z, 0, W, 0, d, d, d, e, 1.0)
    add_tn(MC, 0, V, 0, seen, 0, d, d, d, e, -1.0)


@inlined
def write_posterior(V, Y, L, m, d, e, start, count, spots, MC, out, mean, cov, gain):
    """M C = V'Y + what MC holds; mean = m + V'u, u in row d of L; cov = V'V + (M C)(M C)'; to the rows of tasks."""
    out[:] = 0.0
    for j in range(d):
        store(out, d * e + j, load(m, j))
    for a in range(0, d, 4):
        add_tn(MC, a * e, V, a * e + a, Y, a * e, 4, d, d - a, e, 1.0)
        add_tn(out, a * e, V, a * e + a, V, a * e, 4, a + 4, d - a, e, 1.0)
        add_nt(out, a * e, MC, a * e, MC, 0, 4, a + 4, d, e, 1.0)
    add_tv(out, d * e, V, 0, L, d * e, d, d, e, 1.0)
    first, size = 0, cov.shape[1]
    if count == LANES:
        pick(cov, start, size, out, spots, -1, size, 1.0)
        first = size // 8 * 8
    for lane in range(count):
        for a in range(d):
            mean[start + lane, a] = out[(d * e + a) * LANES + lane]
        for p in range(first, size):
            cov[start + lane, p] = out[(spots[p] - 1) * LANES + lane]
        if gain.shape[0] > 0:
            for a in range(d):
                for b in range(d):
                    gain[start + lane, a, b] = MC[(a * e + b) * LANES + lane]
