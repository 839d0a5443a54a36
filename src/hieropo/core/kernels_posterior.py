"""The step up and the step down for many tasks: the compiled form of the derivation in :mod:`posterior`.

Rows of statistics are packed upper triangles by columns of [[G, B], [B', c]] (features, then reward). Inside, the
reward is column 0 and feature i is column i + 1; ``spots`` says where each packed entry goes. Every matrix is held
for eight tasks at once (kernels_lanes).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"
# ruff: noqa: ANN001, ANN201, ANN202 - typed by numba from normalised arrays

import math

import numpy as np

from hieropo.core.jit import compiled, inlined
from hieropo.core.kernels_lanes import LANES, add, copy, mix, pivot, rank_one, reflector, spread, sub


def packed_spots(d: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Vector offset inside the work array R (d + 1 columns) of each packed entry of [[G, B], [B', c]]."""
    e = d + 1
    features = [j * e + i + 1 for j in range(d) for i in range(j + 1)]
    return np.array([*features, *(i * e for i in range(d)), d * e], dtype=np.int64)


def workspace(d: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Room for one call of a step in one thread."""
    return np.zeros((19, (d + 1) * (d + 1) * LANES))


@inlined
def _gather(S, t, count, scale, spots, R):
    """Lay the rows t .. t + count of S side by side in R; absent lanes are zero."""
    for lane in range(LANES):
        if lane < count:
            for p in range(spots.size):
                R[spots[p] * LANES + lane] = S[t + lane, p] * scale
        else:
            for p in range(spots.size):
                R[spots[p] * LANES + lane] = 0.0


@inlined
def _factor_gram(R, d, tolerance, inverse, floor, one):
    """G = R'R with R lower triangular, B = R'y, in place; leaves c - y'y at the end.

    A pivot below ``tolerance`` of its diagonal entry is a direction that the rows never showed: its row is zero.
    """
    e = d + 1
    copy(floor, 0, 1, R, 1, e + 1, d, tolerance, 0)
    for j in range(d - 1, -1, -1):
        below = (j + 1) * e
        n = d - 1 - j
        sub(R, j * e + j + 1, 1, R, below + j + 1, e, R, below + j + 1, 1, e, n, one, 0)
        pivot(R, j * e + j + 1, inverse, j, floor, j)
        sub(R, j * e, j + 1, R, below + j + 1, e, R, below, 1, e, n, inverse, j)
    sub(R, d * e, 1, R, 0, e, R, 0, 1, e, d, one, 0)


@inlined
def _times(R, F, d, Q, one):
    """Q = R F, R lower triangular, F upper triangular and the same for all lanes."""
    e = d + 1
    Q[:] = 0.0
    for j in range(d):
        for k in range(0, d, 4):
            width = min(4, d - k)
            mix(Q, j * d + k, width, R, j * e + 1, 1, F, k, 1, d, min(j, k + width - 1) + 1, one, 0)


@inlined
def _cholesky(Q, N, d, inverse, zero, column, one):
    """N = H with H H' = I + Q Q', H lower triangular; ``inverse`` holds 1 / H_jj."""
    N[:] = 0.0
    for j in range(d):
        N[(j * d + j) * LANES : (j * d + j + 1) * LANES] = 1.0
        add(N, j * d, j + 1, Q, j * d, 1, Q, 0, d, 1, d, one, 0)
    for i in range(d):
        rows = d - 1 - i
        below = (i + 1) * d
        sub(N, i * d + i, 1, N, i * d, 1, N, i * d, 0, 1, i, one, 0)
        pivot(N, i * d + i, inverse, i, zero, 0)
        copy(column, 0, 1, N, below + i, d, rows, one, 0)
        sub(column, 0, rows, N, i * d, 1, N, below, d, 1, i, inverse, i)
        copy(N, below + i, d, column, 0, 1, rows, one, 0)


@inlined
def _log_of_product(inverse, d, product):
    """Sum over lanes of -2 log prod_j inverse_j, four factors to a logarithm."""
    total = 0.0
    product[:] = 1.0
    for j in range(d):
        for lane in range(LANES):
            product[lane] *= inverse[j * LANES + lane]
        if j % 4 == 3 or j == d - 1:
            for lane in range(LANES):
                total -= 2.0 * math.log(product[lane])
                product[lane] = 1.0
    return total


@inlined
def _deposit(A, spots, out, parent, t, step):
    """Add each lane of A to the packed row of its parent, ``parent[t + step * lane]``, and empty A."""
    for lane in range(LANES):
        target = parent[min(t + step * lane, parent.size - 1)]
        for p in range(spots.size):
            out[target, p] += A[spots[p] * LANES + lane]
    A[:] = 0.0


@compiled
def step_up(S, first, last, d, scale, F, tolerance, spots, parent, out, squares, ranks, work):
    """Add what the rows first .. last of S say about their parents to ``out``; return sum log|I + G Sigma_0|.

    With H H' = I + (R F)(R F)' and X = H^-1 R:  P = X'X,  b = X'H^-1 y,  c <- c - y'y + |H^-1 y|^2.
    ``squares`` and ``ranks`` (may be empty) receive c - y'y and the rank of G of each row.
    """
    e = d + 1
    R, Q, N, A = work[0], work[1], work[2], work[3]
    inverse, floor, zero, one, product, relative = work[4], work[5], work[6], work[7], work[8], work[9]
    work[:] = 0.0
    one[:] = 1.0
    relative[:] = tolerance
    log_det = 0.0
    held = -1
    for t in range(first, last, LANES):
        count = min(LANES, last - t)
        _gather(S, t, count, scale, spots, R)
        _factor_gram(R, d, relative, inverse, floor, one)
        if ranks.size > 0:
            for lane in range(count):
                squares[t + lane] = R[d * e * LANES + lane]
                for j in range(d):
                    ranks[t + lane] += 1 if inverse[j * LANES + lane] > 0.0 else 0
        _times(R, F, d, Q, one)
        _cholesky(Q, N, d, inverse, zero, floor, one)
        log_det += _log_of_product(inverse, d, product)
        for j in range(d):
            for a in range(0, j + 2, 4):
                top = max(a - 1, 0)
                width = min(4, j + 2 - a)
                sub(R, j * e + a, width, N, j * d + top, 1, R, top * e + a, 1, e, j - top, inverse, j)
        alike = True
        for lane in range(1, count):
            alike = alike and parent[t + lane] == parent[t]
        if held >= 0 and not (alike and parent[t] == parent[held]):
            _deposit(A, spots, out, parent, held, 0)
            held = -1
        for lane in range(LANES):
            A[d * e * LANES + lane] += max(R[d * e * LANES + lane], 0.0)
        add(A, d * e, 1, R, 0, e, R, 0, 1, e, d, one, 0)
        for a in range(1, e):
            add(A, (a - 1) * e, a + 1, R, (a - 1) * e + a, e, R, (a - 1) * e, 1, e, d - a + 1, one, 0)
        if alike:
            held = t
        else:
            _deposit(A, spots, out, parent, t, 1)
    if held >= 0:
        _deposit(A, spots, out, parent, held, 0)
    return log_det


@inlined
def _orthogonalise(QT, t, d, L, u, inverse, weight, one, norms):
    """L L' = I + Q'Q and u = L^-1 Q't by reflections of [I; Q], never forming Q'Q.

    Q comes by columns in QT and is used up. Column j: s = sqrt(1 + |q_j|^2), L_kj = q_k'q_j / s and
    q_k -= q_j (q_k'q_j) (1 + s) / (s |q_j|^2).
    """
    u[:] = 0.0
    for j in range(d):
        rest = d - 1 - j
        norms[:] = 0.0
        add(norms, j, rest + 1, QT, j * d, 1, QT, j * d, d, 1, d, one, 0)
        add(u, j, 1, QT, j * d, 1, t, 0, 0, 1, d, one, 0)
        reflector(norms, d, j, inverse, weight)
        copy(L, (j + 1) * d + j, d, norms, j + 1, 1, rest, inverse, j)
        copy(norms, j + 1, 1, norms, j + 1, 1, rest, weight, 0)
        copy(norms, j, 1, u, j, 1, 1, weight, 0)
        copy(u, j, 1, u, j, 1, 1, inverse, j)
        rank_one(t, 0, 0, QT, j * d, norms, j, 1, d)
        rank_one(QT, (j + 1) * d, d, QT, j * d, norms, j + 1, rest, d)


@inlined
def _solve_lower(L, inverse, X, d, lower):
    """X <- L^-1 X by forward substitution; ``lower`` says that X is lower triangular."""
    for j in range(d):
        columns = j + 1 if lower else d
        for a in range(0, columns, 4):
            top = a if lower else 0
            sub(
                X,
                j * d + a,
                min(4, columns - a),
                L,
                j * d + top,
                1,
                X,
                top * d + a,
                1,
                d,
                j - top,
                inverse,
                j,
            )


@inlined
def _subtract_seen(R, V, C, MC, d, W, Z, seen, one):
    """MC -= V'(V R')(R C): what the rows took away from the part of a factor outside the range of F."""
    e = d + 1
    W[:] = 0.0
    Z[:] = 0.0
    for j in range(d):
        add(W, j * d, d, R, j * e + 1, 1, C, 0, 1, d, j + 1, one, 0)
        add(Z, j * d, d, V, j * d, 1, R, 1, e, 1, j + 1, one, 0)
    seen[:] = 0.0
    for j in range(d):
        add(seen, j * d, d, Z, j * d, 1, W, 0, 1, d, d, one, 0)
    for a in range(d):
        sub(MC, a * d, d, V, a * d + a, d, seen, a * d, 1, d, d - a, one, 0)


@inlined
def _load_parents(parent, start, count, loaded, d, means, inner, outer, m, C1, C2):
    for lane in range(count):
        p = parent[start + lane]
        if loaded[lane] != p:
            loaded[lane] = p
            for i in range(d):
                m[i * LANES + lane] = means[p, i]
                for j in range(d):
                    C1[(i * d + j) * LANES + lane] = inner[p, i, j]
                    if outer.shape[0] > 0:
                        C2[(i * d + j) * LANES + lane] = outer[p, i, j]


@compiled
def step_down(
    S, first, last, d, scale, F, tolerance, spots, parent, means, inner, outer, lower, mean, cov, gain, work
):
    """Task posteriors given their parents' Gaussians, for the rows first .. last of S.

    A parent is N(m, C C') with C = F inner + outer (``outer`` empty where F is regular; ``inner`` lower triangular
    where ``lower``). With V = L^-1 F':  Sigma~ = V'V,  M C = V'L^-1 inner + outer - V'(V R')(R outer),
    mean = m + V'u,  cov = Sigma~ + (M C)(M C)'.  ``gain`` (may be empty) receives M C.
    """
    e = d + 1
    R, Q, QT, L, V, Y, MC, C1, C2, out = (
        work[0], work[1], work[2], work[3], work[4], work[5], work[6], work[7], work[8], work[9],
    )  # fmt: skip
    m, t, u, inverse, norms, weight, one, relative = (
        work[10], work[11], work[12], work[13], work[14], work[15], work[16], work[17],
    )  # fmt: skip
    work[:] = 0.0
    one[:] = 1.0
    relative[:] = tolerance
    loaded = work[18]
    loaded[:] = -1.0
    for start in range(first, last, LANES):
        count = min(LANES, last - start)
        _load_parents(parent, start, count, loaded, d, means, inner, outer, m, C1, C2)
        _gather(S, start, count, scale, spots, R)
        _factor_gram(R, d, relative, inverse, norms, one)
        _times(R, F, d, Q, one)
        for j in range(d):
            copy(QT, j, d, Q, j * d, 1, d, one, 0)
            copy(t, j, 1, R, j * e, 1, 1, one, 0)
            sub(t, j, 1, R, j * e + 1, 1, m, 0, 0, 1, j + 1, one, 0)
            spread(V, j * d, F, j, d, j + 1)
        _orthogonalise(QT, t, d, L, u, inverse, weight, one, norms)
        _solve_lower(L, inverse, V, d, True)
        copy(Y, 0, 1, C1, 0, 1, d * d, one, 0)
        _solve_lower(L, inverse, Y, d, lower)
        copy(MC, 0, 1, C2, 0, 1, d * d, one, 0)
        if outer.shape[0] > 0:
            _subtract_seen(R, V, C2, MC, d, Q, QT, L, one)
        out[:] = 0.0
        copy(t, 0, 1, m, 0, 1, d, one, 0)
        for a in range(d):
            for b in range(0, d, 4):
                top = max(a, b) if lower else a
                add(MC, a * d + b, min(4, d - b), V, top * d + a, d, Y, top * d + b, 1, d, d - top, one, 0)
            add(out, a * d, a + 1, V, a * d + a, d, V, a * d, 1, d, d - a, one, 0)
            add(t, a, 1, V, a * d + a, d, u, a, 0, 1, d - a, one, 0)
        for a in range(d):
            add(out, a * d, a + 1, MC, a * d, 1, MC, 0, d, 1, d, one, 0)
        for lane in range(count):
            p = 0
            for a in range(d):
                mean[start + lane, a] = t[a * LANES + lane]
                for b in range(a + 1):
                    cov[start + lane, p] = out[(a * d + b) * LANES + lane]
                    p += 1
            if gain.shape[0] > 0:
                for a in range(d):
                    for b in range(d):
                        gain[start + lane, a, b] = MC[(a * d + b) * LANES + lane]
