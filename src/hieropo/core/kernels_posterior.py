"""The step up and the step down for many tasks: the compiled form of the derivation in :mod:`steps`."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"

import math

from hieropo.core.jit import compiled, inlined
from hieropo.core.kernels_blocks import (
    FORMED,
    cholesky,
    gather,
    information,
    orthogonalise,
    packed_spots,
    pivoted_root,
    solve,
    stride,
    workspace,
)  # fmt: skip
from hieropo.core.kernels_lanes import LANES, add_product, constant, less, load, store

__all__ = ["packed_spots", "step_down", "step_up", "workspace"]


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
    e = stride(d)
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
    e = stride(d)
    work[:] = 0.0
    R, W, L, A, F8, inverse, root, left = (
        work[0],
        work[1],
        work[2],
        work[3],
        work[4],
        work[5],
        work[6],
        work[7],
    )
    for j in range(d):
        for k in range(d):
            store(F8, j * e + k, constant(F[j * d + k]))
    log_det = 0.0
    held = -1
    for t in range(first, last, LANES):
        count = min(LANES, last - t)
        gather(S, t, count, scale, spots, R)
        largest = information(R, F8, d, W, L)
        if ranks.size > 0:
            for lane in range(count):
                ranks[t + lane] = pivoted_root(R, d, tolerance, lane, root, left, True)
                squares[t + lane] = R[d * e * LANES + lane]
            continue
        alike = True
        for lane in range(1, count):
            alike = alike and parent[t + lane] == parent[t]
        if held >= 0 and not (alike and parent[t] == parent[held]):
            _deposit(A, spots, out, parent, held, 0)
            held = -1
        if largest > FORMED:
            for lane in range(LANES):
                pivoted_root(R, d, tolerance, lane, root, left, False)
                A[d * e * LANES + lane] += R[d * e * LANES + lane]
            W[:] = 0.0
            add_product(W, 0, e, 1, root, 1, e, 1, F8, 0, 1, e, d, d, d, 1.0)
            L[:] = 0.0
            for j in range(d):
                store(L, j * e + j, constant(1.0))
            add_product(L, 0, e, 1, W, 0, e, 1, W, 0, e, 1, d, d, d, 1.0)
            cholesky(L, d, d, inverse)
            solve(L, inverse, d, root, d + 1, False)
            _gain_information(root, d, A, 1.0)
        else:
            cholesky(L, d, d, inverse)
            solve(L, inverse, d, W, d + 1, False)
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
def _subtract_seen(G, V, Z, C, MC, d, W, seen):
    """MC -= V'Z (G C): what the rows took away from the part of a factor outside the range of F."""
    e = stride(d)
    W[:] = 0.0
    seen[:] = 0.0
    add_product(W, 0, e, 1, G, 1, e, 1, C, 0, 1, e, d, d, d, 1.0)
    add_product(seen, 0, e, 1, Z, 0, e, 1, W, 0, 1, e, d, d, d, 1.0)
    add_product(MC, 0, e, 1, V, 0, 1, e, seen, 0, 1, e, d, d, d, -1.0)


@inlined
def _load_parents(parent, start, count, loaded, d, means, inner, outer, m, C1, C2):
    e = stride(d)
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
def step_down(
    S, first, last, d, scale, F, tolerance, spots, parent, means, inner, outer, lower, mean, cov, gain, work
):
    """Task posteriors given their parents' Gaussians, for the rows first .. last of S.

    A parent is N(m, C C') with C = F inner + outer (``outer`` empty where F is regular; ``inner`` lower triangular
    where ``lower``). With L L' = I + F'G F, V = L^-1 F', u = L^-1 F'(B - G m):  Sigma~ = V'V,
    M C = V'L^-1 inner + outer - V'V G outer,  mean = m + V'u,  cov = Sigma~ + (M C)(M C)'.
    Where F'G F is too large to be formed, L and u come from reflections of [I; R F], R'R = G.
    ``gain`` (may be empty) receives M C.
    """
    e = stride(d)
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
        gather(S, start, count, scale, spots, R)
        formed = information(R, F8, d, W, L) <= FORMED
        if formed:
            for j in range(d):
                store(L, d * e + j, load(W, j * e))
            add_product(L, d * e, 1, 0, W, 1, e, 1, m, 0, 0, 1, d, 1, d, -1.0)
            cholesky(L, d, d + 1, inverse)
        else:
            for lane in range(LANES):
                pivoted_root(R, d, tolerance, lane, root, products, False)
            QT[:] = 0.0
            add_product(QT, 0, 1, e, root, 1, e, 1, F8, 0, 1, e, d, d, d, 1.0)
            for j in range(d):
                store(QT, d * e + j, load(root, j * e))
            add_product(QT, d * e, 1, 0, root, 1, e, 1, m, 0, 0, 1, d, 1, d, -1.0)
            orthogonalise(QT, d, L, inverse, products)
        for j in range(d):
            for a in range(d):
                store(V, j * e + a, load(F8, a * e + j))
                store(Y, j * e + a, load(C1, j * e + a))
                store(MC, j * e + a, load(C2, j * e + a))
        solve(L, inverse, d, V, d, True)
        solve(L, inverse, d, Y, d, lower)
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
