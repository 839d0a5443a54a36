"""The step up and the step down for many tasks: the compiled form of the derivation in :mod:`steps`.

Rows of statistics are packed upper triangles by columns of [[G, B], [B', c]] (features, then reward). Inside, the
reward is column 0 and feature i is column i + 1; ``spots`` says where each packed entry goes. Every matrix is held
for eight tasks at once (kernels_lanes). Factorizations go by blocks of four, so that most work is ``add_product``.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"

import math

import numpy as np

from hieropo.core.jit import compiled, inlined
from hieropo.core.kernels_lanes import (
    LANES, add_product, constant, inverse_root, less, load, reflection, store, times,
)  # fmt: skip

_FORMED = 1e4  # up to this size F'GF may be formed: it costs as many units of the last place


@inlined
def _stride(d):
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
def _gather(S, t, count, scale, spots, R):
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
def _information(R, F, d, W, L):
    """W = F'[B G] and L = I + F'G F (lower triangle), from [B G] in R; the largest diagonal entry of L.

    R comes with the lower triangle of G and leaves with the whole of it.
    """
    e = _stride(d)
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
def _root(R, d, tolerance, lane, root, left, seen_only):
    """G = root'root and B = root'y (column 0 of root) for one lane of R, pivoted; the rank.

    Pivots are the largest left over in units of their diagonal entry, so that columns may be of any scale; what is
    below ``tolerance`` of it is rounding. Without pivoting a small pivot would cost the root of its rounding. What B
    says about such a direction is kept all the same where it is more than rounding, in a row too small to inform,
    unless ``seen_only``. Leaves c - y'y in row d of R.
    """
    e = _stride(d)
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
def _cholesky(N, d, rows, inverse):
    """N (rows x d, rows >= d) = L L' of its upper d rows in place, further rows times L'^-1; ``inverse`` is 1 / L_jj."""
    e = _stride(d)
    zero = constant(0.0)
    for first in range(0, d, 4):
        end = min(first + 4, d)
        start = first * e
        add_product(N, start + first, e, 1, N, start, e, 1, N, start, e, 1, rows - first, end - first, first, -1.0)
        for j in range(first, end):
            root = inverse_root(load(N, j * e + j), zero)
            store(inverse, j, root)
            for i in range(j, rows):
                value = times(load(N, i * e + j), root)
                store(N, i * e + j, value)
                for k in range(j + 1, min(i + 1, end)):
                    store(N, i * e + k, less(load(N, i * e + k), value, load(N, k * e + j)))


@inlined
def _solve(L, inverse, d, X, columns, lower):
    """X <- L^-1 X by forward substitution; ``lower``: X is lower triangular, else it has ``columns`` columns."""
    e = _stride(d)
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
def _deposit(A, spots, out, parent, t, step):
    """Add each lane of A to the packed row of its parent, ``parent[t + step * lane]``, and empty A."""
    for lane in range(LANES):
        target = parent[min(t + step * lane, parent.size - 1)]
        for p in range(spots.size):
            out[target, p] += A[spots[p] * LANES + lane]
    A[:] = 0.0


@inlined
def _log_of_product(inverse, d):
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
def _gain_information(W, d, A, sign):
    """A += sign [B G]-shaped W'W, lower triangle, the reward's own entry in row d."""
    e = _stride(d)
    add_product(A, d * e, 0, 0, W, 0, 0, e, W, 0, 0, e, 1, 1, d, sign)
    for first in range(0, d, 4):
        end = min(first + 4, d)
        add_product(A, first * e, e, 1, W, first + 1, 1, e, W, 0, 1, e, end - first, end + 1, d, sign)


@compiled
def step_up(S, first, last, d, scale, F, tolerance, spots, parent, out, squares, ranks, work):
    """Add what the rows first .. last of S say about their parents to ``out``; return sum log|I + G Sigma_0|.

    With L L' = I + F'G F and W = L^-1 F'[B G]:  [P b; b' c'] = [G B; B' c] - W'W. Where that would cost digits, with
    R'R = G, H H' = I + (R F)(R F)' and X = H^-1 [y R]:  [P b; b' c'] = X'X, and c' += c - y'y.
    With ``ranks`` not empty, only find the rank of G and c - y'y (in ``squares``) of each row.
    """
    e = _stride(d)
    work[:] = 0.0
    R, W, L, A, F8, inverse, root, left = work[0], work[1], work[2], work[3], work[4], work[5], work[6], work[7]
    for j in range(d):
        for k in range(d):
            store(F8, j * e + k, constant(F[j * d + k]))
    log_det = 0.0
    held = -1
    for t in range(first, last, LANES):
        count = min(LANES, last - t)
        _gather(S, t, count, scale, spots, R)
        largest = _information(R, F8, d, W, L)
        if ranks.size > 0:
            for lane in range(count):
                ranks[t + lane] = _root(R, d, tolerance, lane, root, left, True)
                squares[t + lane] = R[d * e * LANES + lane]
            continue
        alike = True
        for lane in range(1, count):
            alike = alike and parent[t + lane] == parent[t]
        if held >= 0 and not (alike and parent[t] == parent[held]):
            _deposit(A, spots, out, parent, held, 0)
            held = -1
        if largest > _FORMED:
            for lane in range(LANES):
                _root(R, d, tolerance, lane, root, left, False)
                A[d * e * LANES + lane] += R[d * e * LANES + lane]
            W[:] = 0.0
            add_product(W, 0, e, 1, root, 1, e, 1, F8, 0, 1, e, d, d, d, 1.0)
            L[:] = 0.0
            for j in range(d):
                store(L, j * e + j, constant(1.0))
            add_product(L, 0, e, 1, W, 0, e, 1, W, 0, e, 1, d, d, d, 1.0)
            _cholesky(L, d, d, inverse)
            _solve(L, inverse, d, root, d + 1, False)
            _gain_information(root, d, A, 1.0)
        else:
            _cholesky(L, d, d, inverse)
            _solve(L, inverse, d, W, d + 1, False)
            for j in range(d):
                for i in range(j + 2):
                    store(A, j * e + i, less(load(A, j * e + i), load(R, j * e + i), constant(-1.0)))
            for lane in range(LANES):
                A[d * e * LANES + lane] += R[d * e * LANES + lane]
            _gain_information(W, d, A, -1.0)
        log_det += _log_of_product(inverse, d)
        if alike:
            held = t
        else:
            _deposit(A, spots, out, parent, t, 1)
    if held >= 0:
        _deposit(A, spots, out, parent, held, 0)
    return log_det


@inlined
def _orthogonalise(QT, d, L, inverse, products):
    """L L' = I + Q'Q, and L^-1 Q't as row d of L, by reflections of [I; Q]: Q'Q is never formed.

    Rows of QT are the columns of Q, then t; they are used up. Column j: s = sqrt(1 + |q_j|^2), L_kj = q_k'q_j / s and
    q_k -= q_j (q_k'q_j) (1 + s) / (s |q_j|^2).
    """
    e = _stride(d)
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


@inlined
def _subtract_seen(G, V, Z, C, MC, d, W, seen):
    """MC -= V'Z (G C): what the rows took away from the part of a factor outside the range of F."""
    e = _stride(d)
    W[:] = 0.0
    seen[:] = 0.0
    add_product(W, 0, e, 1, G, 1, e, 1, C, 0, 1, e, d, d, d, 1.0)
    add_product(seen, 0, e, 1, Z, 0, e, 1, W, 0, 1, e, d, d, d, 1.0)
    add_product(MC, 0, e, 1, V, 0, 1, e, seen, 0, 1, e, d, d, d, -1.0)


@inlined
def _load_parents(parent, start, count, loaded, d, means, inner, outer, m, C1, C2):
    e = _stride(d)
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


@compiled
def step_down(S, first, last, d, scale, F, tolerance, spots, parent, means, inner, outer, lower, mean, cov, gain, work):
    """Task posteriors given their parents' Gaussians, for the rows first .. last of S.

    A parent is N(m, C C') with C = F inner + outer (``outer`` empty where F is regular; ``inner`` lower triangular
    where ``lower``). With L L' = I + F'G F, V = L^-1 F', u = L^-1 F'(B - G m):  Sigma~ = V'V,
    M C = V'L^-1 inner + outer - V'V G outer,  mean = m + V'u,  cov = Sigma~ + (M C)(M C)'.
    Where F'G F is too large to be formed, L and u come from reflections of [I; R F], R'R = G.
    ``gain`` (may be empty) receives M C.
    """
    e = _stride(d)
    work[:] = 0.0
    R, W, L, V, Y, MC, C1, C2 = work[0], work[1], work[2], work[3], work[4], work[5], work[6], work[7]
    out, F8, m, inverse, products, loaded, root, QT = (
        work[8], work[9], work[10], work[11], work[12], work[13], work[14], work[15],
    )  # fmt: skip
    loaded[:] = -1.0
    for j in range(d):
        for k in range(d):
            store(F8, j * e + k, constant(F[j * d + k]))
    for start in range(first, last, LANES):
        count = min(LANES, last - start)
        _load_parents(parent, start, count, loaded, d, means, inner, outer, m, C1, C2)
        _gather(S, start, count, scale, spots, R)
        formed = _information(R, F8, d, W, L) <= _FORMED
        if formed:
            for j in range(d):
                store(L, d * e + j, load(W, j * e))
            add_product(L, d * e, 1, 0, W, 1, e, 1, m, 0, 0, 1, d, 1, d, -1.0)
            _cholesky(L, d, d + 1, inverse)
        else:
            for lane in range(LANES):
                _root(R, d, tolerance, lane, root, products, False)
            QT[:] = 0.0
            add_product(QT, 0, 1, e, root, 1, e, 1, F8, 0, 1, e, d, d, d, 1.0)
            for j in range(d):
                store(QT, d * e + j, load(root, j * e))
            add_product(QT, d * e, 1, 0, root, 1, e, 1, m, 0, 0, 1, d, 1, d, -1.0)
            _orthogonalise(QT, d, L, inverse, products)
        for j in range(d):
            for a in range(d):
                store(V, j * e + a, load(F8, a * e + j))
                store(Y, j * e + a, load(C1, j * e + a))
                store(MC, j * e + a, load(C2, j * e + a))
        _solve(L, inverse, d, V, d, True)
        _solve(L, inverse, d, Y, d, lower)
        if outer.shape[0] > 0 and formed:
            _subtract_seen(R, V, V, C2, MC, d, W, QT)
        elif outer.shape[0] > 0:
            QT[:] = 0.0
            add_product(QT, 0, e, 1, V, 0, e, 1, root, 1, e, 1, d, d, d, 1.0)
            _subtract_seen(root, V, QT, C2, MC, d, W, out)
        out[:] = 0.0
        for j in range(d):
            store(out, d * e + j, load(m, j))
        for a in range(0, d, 4):
            b = min(a + 4, d)
            add_product(MC, a * e, e, 1, V, a * e + a, 1, e, Y, a * e, 1, e, b - a, d, d - a, 1.0)
            add_product(out, a * e, e, 1, V, a * e + a, 1, e, V, a * e, 1, e, b - a, b, d - a, 1.0)
            add_product(out, a * e, e, 1, MC, a * e, e, 1, MC, 0, e, 1, b - a, b, d, 1.0)
        add_product(out, d * e, 1, 0, V, 0, 1, e, L, d * e, 0, 1, d, 1, d, 1.0)
        for lane in range(count):
            p = 0
            for a in range(d):
                mean[start + lane, a] = out[(d * e + a) * LANES + lane]
                for b in range(a + 1):
                    cov[start + lane, p] = out[(a * e + b) * LANES + lane]
                    p += 1
            if gain.shape[0] > 0:
                for a in range(d):
                    for b in range(d):
                        gain[start + lane, a, b] = MC[(a * e + b) * LANES + lane]
