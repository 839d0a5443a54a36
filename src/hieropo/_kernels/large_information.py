"""The steps up and down for tasks whose F'GF is so large that forming it, or subtracting from it, would cost digits.

They go by R'R = G, pivoted, of any rank, and by reflections: slower, and needed only where the rows outweigh the prior
ten-thousandfold.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"

import math

from hieropo._kernels.blocks import (
    broadcast,
    cholesky,
    deposit,
    gain_information,
    gather,
    load_parents,
    log_of_product,
    row_length,
    solve,
    spread_parents,
    subtract_seen,
    write_posterior,
)
from hieropo._kernels.jit import compiled, inlined
from hieropo._kernels.simd.lanes import (
    LANES,
    add_nn,
    add_nt,
    add_nv,
    constant,
    inverse_root,
    less,
    load,
    reflection,
    store,
    times,
)


@inlined
def pivoted_root(R, d, e, tolerance, lane, root, left):
    """G = root'root and B = root'y (column 0 of root) for one lane of R, pivoted.

    Pivots are the largest left over in units of their diagonal entry, so that columns may be of any scale; what is
    below ``tolerance`` of it is rounding. Without pivoting a small pivot would cost the root of its rounding. What B
    says about such a direction is kept all the same where it is more than rounding, in a row too small to inform.
    Leaves c - y'y in row d of R.
    """
    reward = R[d * e * LANES + lane]
    for j in range(d):
        left[j] = R[(j * e + j + 1) * LANES + lane]
        for i in range(d + 1):
            root[(j * e + i) * LANES + lane] = 0.0
    for k in range(d):
        best, share = -1, -1.0
        for j in range(d):
            whole = R[(j * e + j + 1) * LANES + lane]
            if left[j] >= 0.0 and whole > 0.0 and left[j] > share * whole:
                best, share = j, left[j] / whole
        seen = share > tolerance
        if best < 0:
            break
        whole = R[(best * e + best + 1) * LANES + lane]
        pivot = math.sqrt(left[best] if seen else 1e-2 * tolerance * whole)
        left[best] = -1.0
        for i in range(d + 1):
            if i > 0 and (not seen or left[i - 1] < 0.0):
                continue
            value = R[(best * e if i == 0 else max(best, i - 1) * e + min(best, i - 1) + 1) * LANES + lane]
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


@inlined
def orthogonalise(QT, d, e, L, inverse, products):
    """L L' = I + Q'Q, and L^-1 Q't as row d of L, by reflections of [I; Q]: Q'Q is never formed.

    Rows of QT are the columns of Q, then t; they are used up. Column j: s = sqrt(1 + |q_j|^2), L_kj = q_k'q_j / s and
    q_k -= q_j (q_k'q_j) (1 + s) / (s |q_j|^2).
    """
    for j in range(d):
        rest = d + 1 - j
        for k in range(rest + 3):
            store(products, k, constant(0.0))
        add_nv(products, 0, QT, j * e, QT, j * e, rest, d, e, 1.0)
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


@compiled
def step_up_large(S, starts, last, d, scale, F, tolerance, spots, parent, out, work):
    """As :func:`tree_steps.step_up`, for the blocks of eight rows at ``starts``; returns sum log|I + G Sigma_0|.

    With R'R = G, B = R'y, H H' = I + (R F)(R F)' and X = H^-1 [y R]:  [P b; b' c'] = X'X, and c' += c - y'y.
    """
    e = row_length(d)
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
    broadcast(F, d, e, F8)
    log_det = 0.0
    for t in starts:
        count = min(LANES, last - t)
        gather(S, t, count, scale, spots, R)
        for lane in range(LANES):
            pivoted_root(R, d, e, tolerance, lane, root, left)
        store(A, d * e, load(R, d * e))
        W[:] = 0.0
        add_nn(W, 0, root, 1, F8, 0, d, d, d, e, 1.0)
        L[:] = 0.0
        for j in range(d):
            store(L, j * e + j, constant(1.0))
        add_nt(L, 0, W, 0, W, 0, d, d, d, e, 1.0)
        cholesky(L, d, e, d, inverse)
        solve(L, inverse, d, e, root, d + 1, False)
        gain_information(root, d, e, A, 1.0)
        log_det += log_of_product(inverse, d)
        deposit(A, spots, out, parent, t, 1)
    return log_det


@compiled
def step_down_large(
    S, starts, last, d, scale, F, tolerance, spots, parent, means, inner, outer, lower, mean, cov, gain, work
):
    """As :func:`tree_steps.step_down`, for the blocks of eight rows at ``starts``."""
    e = row_length(d)
    work[:] = 0.0
    R, QT, L, V, Y, MC, C1, C2 = work[0], work[1], work[2], work[3], work[4], work[5], work[6], work[7]
    out, F8, m, inverse, products, loaded, root, W = (
        work[8], work[9], work[10], work[11], work[12], work[13], work[14], work[15],
    )  # fmt: skip
    loaded[:] = -1.0
    broadcast(F, d, e, F8)
    for start in starts:
        count = min(LANES, last - start)
        load_parents(parent, start, count, loaded, d, e, means, inner, outer, m, C1, C2)
        gather(S, start, count, scale, spots, R)
        for lane in range(LANES):
            pivoted_root(R, d, e, tolerance, lane, root, products)
        QT[:] = 0.0
        W[:] = 0.0
        add_nn(W, 0, root, 1, F8, 0, d, d, d, e, 1.0)
        for j in range(d):
            store(QT, d * e + j, load(root, j * e))
            for a in range(d):
                store(QT, a * e + j, load(W, j * e + a))
            for a in range(d):
                store(MC, j * e + a, load(C2, j * e + a))
        add_nv(QT, d * e, root, 1, m, 0, d, d, e, -1.0)
        orthogonalise(QT, d, e, L, inverse, products)
        spread_parents(L, inverse, d, e, F8, C1, lower, work[3:5])
        if outer.shape[0] > 0:
            QT[:] = 0.0
            add_nt(QT, 0, V, 0, root, 1, d, d, d, e, 1.0)
            subtract_seen(root, V, QT, C2, MC, d, e, W, out)
        write_posterior(V, Y, L, m, d, e, start, count, spots, MC, out, mean, cov, gain)
