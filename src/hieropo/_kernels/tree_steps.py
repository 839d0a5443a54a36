"""The step up and the step down for many tasks: the compiled form of the derivation in :mod:`steps`.

Blocks of eight tasks whose F'GF is too large to be formed are left to :mod:`large_information`, which is compiled only
where there are any.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"

from hieropo._kernels.blocks import (
    FORMED,
    broadcast,
    cholesky,
    deposit,
    gain_information,
    gather,
    information,
    load_parents,
    log_of_product,
    row_length,
    solve,
    spread_parents,
    subtract_seen,
    write_posterior,
)
from hieropo._kernels.jit import compiled
from hieropo._kernels.simd.lanes import LANES, add_nv, constant, less, load, store


@compiled
def step_up(S, first, last, d, scale, F, spots, parent, out, late, work):
    """Add what the rows first .. last of S say about their parents to ``out``.

    With L L' = I + F'G F and W = L^-1 F'[B G]:  [P b; b' c'] = [G B; B' c] - W'W. Returns sum log|I + G Sigma_0| and
    the number of blocks that were left out; ``late`` receives their first rows.
    """
    e = row_length(d)
    work[:] = 0.0
    R, W, L, A, F8, inverse = work[0], work[1], work[2], work[3], work[4], work[5]
    broadcast(F, d, e, F8)
    log_det = 0.0
    held = -1
    left_out = 0
    for t in range(first, last, LANES):
        count = min(LANES, last - t)
        gather(S, t, count, scale, spots, R)
        if not information(R, F8, d, e, W, L) <= FORMED:
            late[left_out] = t
            left_out += 1
            continue
        alike = True
        for lane in range(1, count):
            alike = alike and parent[t + lane] == parent[t]
        if held >= 0 and not (alike and parent[t] == parent[held]):
            deposit(A, spots, out, parent, held, 0)
            held = -1
        cholesky(L, d, e, d, inverse)
        solve(L, inverse, d, e, W, d + 1, False)
        for j in range(d):
            for i in range(j + 2):
                store(A, j * e + i, less(load(A, j * e + i), load(R, j * e + i), constant(-1.0)))
        store(A, d * e, less(load(A, d * e), load(R, d * e), constant(-1.0)))
        gain_information(W, d, e, A, -1.0)
        log_det += log_of_product(inverse, d)
        held = t
        if not alike:
            deposit(A, spots, out, parent, t, 1)
            held = -1
    if held >= 0:
        deposit(A, spots, out, parent, held, 0)
    return log_det, left_out


@compiled
def step_down(
    S, first, last, d, scale, F, spots, parent, means, inner, outer, lower, mean, cov, gain, late, work
):
    """Task posteriors given their parents' Gaussians, for the rows first .. last of S.

    A parent is N(m, C C') with C = F inner + outer (``outer`` empty where F is regular; ``inner`` lower triangular
    where ``lower``). With L L' = I + F'G F, V = L^-1 F', u = L^-1 F'(B - G m):  Sigma~ = V'V,
    M C = V'L^-1 inner + outer - V'V G outer,  mean = m + V'u,  cov = Sigma~ + (M C)(M C)'.
    ``gain`` (may be empty) receives M C. Returns the number of blocks left out, whose first rows are in ``late``.
    """
    e = row_length(d)
    work[:] = 0.0
    R, W, L, V, Y, MC, C1, C2 = work[0], work[1], work[2], work[3], work[4], work[5], work[6], work[7]
    out, F8, m, inverse, loaded, seen = work[8], work[9], work[10], work[11], work[12], work[13]
    loaded[:] = -1.0
    left_out = 0
    broadcast(F, d, e, F8)
    for start in range(first, last, LANES):
        count = min(LANES, last - start)
        load_parents(parent, start, count, loaded, d, e, means, inner, outer, m, C1, C2)
        gather(S, start, count, scale, spots, R)
        if not information(R, F8, d, e, W, L) <= FORMED:
            late[left_out] = start
            left_out += 1
            continue
        for j in range(d):
            store(L, d * e + j, load(W, j * e))
            for a in range(d):
                store(MC, j * e + a, load(C2, j * e + a))
        add_nv(L, d * e, W, 1, m, 0, d, d, e, -1.0)
        cholesky(L, d, e, d + 1, inverse)
        spread_parents(L, inverse, d, e, F8, C1, lower, work[3:5])
        if outer.shape[0] > 0:
            subtract_seen(R, V, V, C2, MC, d, e, W, seen)
        write_posterior(V, Y, L, m, d, e, start, count, spots, MC, out, mean, cov, gain)
    return left_out
