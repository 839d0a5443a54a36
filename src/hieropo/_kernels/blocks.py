"""Building blocks of the steps up and down, on eight tasks at once: gather, factor, solve.

Rows of statistics are packed upper triangles by columns of [[G, B], [B', c]] (features, then reward). Inside, the
reward is column 0 and feature i is column i + 1; ``offsets`` are those of the packed entries in R. Factorizations go by
blocks of four, so that most work is matrix products. A row of a work matrix has ``e`` vectors: an odd number, so that
a column does not fall into few sets of the cache.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"

import math

import numpy as np
from numba.extending import register_jitable

from hieropo._kernels.jit import inlined
from hieropo._kernels.simd.lanes import (
    LANES,
    add_nn,
    add_nt,
    add_tn,
    add_tv,
    constant,
    inverse_root,
    larger,
    lay,
    less,
    load,
    pick,
    store,
    times,
)

FORMED = 1e4  # up to this size F'GF may be formed: it costs as many units of the last place


@register_jitable
def row_length(d: int) -> int:
    """Return the vectors e in a row of a work matrix: d + 1 columns in whole tiles of four, and odd."""
    return 4 * (d // 4 + 1) + 1


def packed_slots(d: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the vector offset inside the work matrix R of each packed entry of [[G, B], [B', c]]."""
    e = row_length(d)
    features = [j * e + i + 1 for j in range(d) for i in range(j + 1)]
    return np.array([*features, *(i * e for i in range(d)), d * e], dtype=np.int64)


def workspace(d: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Return the work matrices of one call of a step in one thread, every vector on a cache line of its own."""
    e = row_length(d)
    size = 16 * (e + 3) * e * LANES
    room = np.zeros(size + LANES)
    skip = (-room.ctypes.data % 64) // 8
    return room[skip : skip + size].reshape(16, -1)


@inlined
def gather(S, t, count, scale, offsets, R):
    """Lay the rows t .. t + count of S side by side in R; absent lanes are zero."""
    first = 0
    if count == LANES:
        lay(S, t, S.shape[1], R, offsets, 0, offsets.size, scale)
        first = offsets.size // 8 * 8
    for p in range(first, offsets.size):
        offset = offsets[p] * LANES
        for lane in range(LANES):
            R[offset + lane] = S[t + lane, p] * scale if lane < count else 0.0


@inlined
def information(R, F, d, e, W, L):
    """W = F'[B G] and L = I + F'G F (lower triangle), from [B G] in R; return the largest diagonal entry of L.

    R has the lower triangle of G before, and all of it afterwards.
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
    largest = constant(0.0)
    for j in range(d):
        largest = larger(largest, load(L, j * e + j))
    store(L, d * e, largest)
    most = 0.0
    for lane in range(LANES):
        value = L[d * e * LANES + lane]
        if not value <= most:
            most = value
        L[d * e * LANES + lane] = 0.0
    return most


@inlined
def cholesky(N, d, e, rows, inverse):
    """N (rows x d) = L L' of its upper d rows in place, further rows times L'^-1; ``inverse`` is 1 / L_jj.

    Blocks of four columns are factored in registers. The last may reach beyond d: its pivots that are not positive get
    the inverse 0, and have no effect.
    """
    zero = constant(0.0)
    for first in range(0, d, 4):
        start = first * e
        add_nt(N, start + first, N, start, N, start, rows - first, 4, first, e, -1.0)
        a, b, c, g = start + first, start + e + first, start + 2 * e + first, start + 3 * e + first
        i0 = inverse_root(load(N, a), zero)
        l10, l20, l30 = times(load(N, b), i0), times(load(N, c), i0), times(load(N, g), i0)
        i1 = inverse_root(less(load(N, b + 1), l10, l10), zero)
        l21 = times(less(load(N, c + 1), l20, l10), i1)
        l31 = times(less(load(N, g + 1), l30, l10), i1)
        i2 = inverse_root(less(less(load(N, c + 2), l20, l20), l21, l21), zero)
        l32 = times(less(less(load(N, g + 2), l30, l20), l31, l21), i2)
        i3 = inverse_root(less(less(less(load(N, g + 3), l30, l30), l31, l31), l32, l32), zero)
        store(inverse, first, i0)
        store(inverse, first + 1, i1)
        store(inverse, first + 2, i2)
        store(inverse, first + 3, i3)
        store(N, b, l10)
        store(N, c, l20)
        store(N, c + 1, l21)
        store(N, g, l30)
        store(N, g + 1, l31)
        store(N, g + 2, l32)
        for row in range(first + 4, rows):
            x = row * e + first
            x0 = times(load(N, x), i0)
            x1 = times(less(load(N, x + 1), x0, l10), i1)
            x2 = times(less(less(load(N, x + 2), x0, l20), x1, l21), i2)
            x3 = times(less(less(less(load(N, x + 3), x0, l30), x1, l31), x2, l32), i3)
            store(N, x, x0)
            store(N, x + 1, x1)
            store(N, x + 2, x2)
            store(N, x + 3, x3)


@inlined
def solve(L, inverse, d, e, X, columns, lower):
    """X <- L^-1 X by forward substitution; ``lower``: X is lower triangular, else it has ``columns`` columns."""
    for first in range(0, d, 4):
        start = first * e
        n_columns = first if lower else columns
        add_nn(X, start, L, start, X, 0, 4, n_columns, first, e, -1.0)
        b, c, g = start + e + first, start + 2 * e + first, start + 3 * e + first
        i0, i1 = load(inverse, first), load(inverse, first + 1)
        i2, i3 = load(inverse, first + 2), load(inverse, first + 3)
        l10, l20, l30 = load(L, b), load(L, c), load(L, g)
        l21, l31, l32 = load(L, c + 1), load(L, g + 1), load(L, g + 2)
        for x in range(start, start + (first + 4 if lower else columns)):
            x0 = times(load(X, x), i0)
            x1 = times(less(load(X, x + e), x0, l10), i1)
            x2 = times(less(less(load(X, x + 2 * e), x0, l20), x1, l21), i2)
            x3 = times(less(less(less(load(X, x + 3 * e), x0, l30), x1, l31), x2, l32), i3)
            store(X, x, x0)
            store(X, x + e, x1)
            store(X, x + 2 * e, x2)
            store(X, x + 3 * e, x3)


@inlined
def deposit(A, offsets, out, parent, t, step):
    """Add each lane of A to the packed row of its parent, ``parent[t + step * lane]``, and empty A."""
    for lane in range(LANES):
        target = parent[min(t + step * lane, parent.size - 1)]
        for p in range(offsets.size):
            out[target, p] += A[offsets[p] * LANES + lane]
    A[:] = 0.0


@inlined
def log_of_product(inverse, d):
    """Return the sum over lanes of -2 log prod_j inverse_j, four factors to a logarithm."""
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
    """Lay the parents' means and factors side by side, for lanes whose parent changed."""
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
    """MC -= V'Z (G C): the effect of the rows on the part of a factor outside the range of F."""
    W[:] = 0.0
    seen[:] = 0.0
    add_nn(W, 0, G, 1, C, 0, d, d, d, e, 1.0)
    add_nn(seen, 0, Z, 0, W, 0, d, d, d, e, 1.0)
    add_tn(MC, 0, V, 0, seen, 0, d, d, d, e, -1.0)


@inlined
def write_posterior(V, Y, L, m, d, e, start, count, offsets, MC, out, mean, cov, gain):
    """MC += V'Y; mean = m + V'u, u in row d of L; cov = V'V + (M C)(M C)'; to the rows of tasks."""
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
        pick(cov, start, size, out, offsets, -1, size, 1.0)
        first = size // 8 * 8
    for lane in range(count):
        for a in range(d):
            mean[start + lane, a] = out[(d * e + a) * LANES + lane]
        for p in range(first, size):
            cov[start + lane, p] = out[(offsets[p] - 1) * LANES + lane]
        if gain.shape[0] > 0:
            for a in range(d):
                for b in range(d):
                    gain[start + lane, a, b] = MC[(a * e + b) * LANES + lane]
