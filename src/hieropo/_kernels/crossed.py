"""The crossed prior for many tasks: sums for the root, and posteriors of units; formulas in :mod:`steps`.

Eight tasks stand side by side. Where a block of eight has an F'GF that is too large to be formed, the block is left
out, and ``late`` receives its first task.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"

import math

import numpy as np
from numba.extending import register_jitable

from hieropo._kernels.blocks import (
    FORMED,
    broadcast,
    cholesky,
    deposit,
    gain_information,
    information,
    log_of_product,
    packed_slots,
    row_length,
    solve,
    spread_parents,
    subtract_seen,
    workspace,
)
from hieropo._kernels.jit import compiled, inlined
from hieropo._kernels.simd.lanes import (
    LANES,
    add_nn,
    add_nt,
    add_nv,
    add_tn,
    add_tv,
    constant,
    less,
    load,
    store,
)


@register_jitable
def whole(d: int) -> int:
    """Columns of whole tiles of four that hold d."""
    return 4 * ((d + 3) // 4)


def rooms(d: int):
    """Return the offsets of packed entries in a work matrix, and memory for one call in one thread."""
    return packed_slots(d), workspace(d)


def tiles(columns: int, d: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Room for (d, columns) matrices of eight tasks, cut into tiles of ``whole(d)`` columns."""
    size = -(-columns // whole(d)) * whole(d) * row_length(d) * LANES
    room = np.zeros(size + LANES)
    skip = (-room.ctypes.data % 64) // 8
    return room[skip : skip + size]


@inlined
def work_arrays(work, F, inner, outer, d, e):
    """Empty the sixteen work arrays of one call and return them; 6 to 8 hold F, inner and outer in every lane."""
    work[:] = 0.0
    if F.size:
        broadcast(F, d, e, work[6])
        broadcast(inner, d, e, work[7])
    if outer.size:
        broadcast(outer, d, e, work[8])
    return (
        work[0], work[1], work[2], work[3], work[4], work[5], work[6], work[7],
        work[8], work[9], work[10], work[11], work[12], work[13], work[14], work[15],
    )  # fmt: skip


@inlined
def lay_sums(S, starts, start, count, spots, R):
    """Sums of the packed rows of each of ``count`` tasks in R; the largest number of rows of a task."""
    R[:] = 0.0
    longest = 0
    for lane in range(count):
        first, last = starts[start + lane], starts[start + lane + 1]
        longest = max(longest, last - first)
        for u in range(first, last):
            for p in range(spots.size):
                R[spots[p] * LANES + lane] += S[u, p]
    return longest


@inlined
def lay_unit(S, u, lane, spots, R):
    """Lay the packed row u in a lane of R, zeros where u is negative."""
    for p in range(spots.size):
        R[spots[p] * LANES + lane] = S[u, p] if u >= 0 else 0.0


@inlined
def mirror(R, d, e):
    """Fill the upper triangle of the features in R."""
    for j in range(d):
        for i in range(j):
            store(R, i * e + j + 1, load(R, j * e + i + 1))


@inlined
def shrinkage_of(R, W, L, V, Y, MC, C1, C2, F8, inverse, T, seen, d, e, outer, VY):
    """V = L^-1 F', L^-1 F'B in row d of L, and M = (I + Sigma G)^-1 in MC; from W = F'[B G] and L = I + F'GF.

    C1 and C2 split the identity: I = F C1 + C2, the latter only where F is singular.
    """
    for j in range(d):
        store(L, d * e + j, load(W, j * e))
        for a in range(d):
            store(MC, j * e + a, load(C2, j * e + a))
    cholesky(L, d, e, d + 1, inverse)
    spread_parents(L, inverse, d, e, F8, C1, False, VY)
    if outer:
        subtract_seen(R, V, V, C2, MC, d, e, T, seen)
    for a in range(0, d, 4):
        add_tn(MC, a * e, V, a * e + a, Y, a * e, 4, d, d - a, e, 1.0)


@compiled
def sum_tasks(
    S, starts, action, group, d, n_actions, dense, F, inner, outer, spots, level, seen, score, X, late, work
):
    """Add the messages of all tasks given to their groups; S holds the messages [P b; b' c] of their units.

    With L L' = I + F'QF, V = L^-1 F', X_a = V P_a and u = V b, of the group ``group[s]`` (ascending) of each task:
    ``level`` receives [Q b; b' c] - W'W, ``seen`` the sums of K'P_a, ``score`` those of b_a - X_a'u, and X the X_a of
    each task, of all actions side by side where ``dense``. Returns sum log|I + Q L| and the number of blocks left out.
    """
    e = row_length(d)
    R, W, L, V, Y, MC, F8, C1, C2, inverse, T, P, own, A, H, room = work_arrays(work, F, inner, outer, d, e)
    size = whole(d) * e * LANES
    log_det = 0.0
    held = -1
    left_out = 0
    for start in range(0, starts.size - 1, LANES):
        count = min(LANES, starts.size - 1 - start)
        longest = lay_sums(S, starts, start, count, spots, R)
        if not information(R, F8, d, e, W, L) <= FORMED:
            late[left_out] = start
            left_out += 1
            continue
        alike = group[start] == group[start + count - 1]
        if held >= 0 and not (alike and group[start] == group[held]):
            deposit(A, spots, level, group, held, 0)
            held = -1
        shrinkage_of(R, W, L, V, Y, MC, C1, C2, F8, inverse, T, room, d, e, outer.size > 0, work[3:5])
        solve(L, inverse, d, e, W, d + 1, False)
        for j in range(d):
            for i in range(j + 2):
                store(A, j * e + i, less(load(A, j * e + i), load(R, j * e + i), constant(-1.0)))
        store(A, d * e, less(load(A, d * e), load(R, d * e), constant(-1.0)))
        gain_information(W, d, e, A, -1.0)
        log_det += log_of_product(inverse, d)
        held = start
        if not alike:
            deposit(A, spots, level, group, start, 1)
            held = -1
        for i in range(longest):
            for lane in range(LANES):
                u = starts[start + lane] + i if lane < count else -1
                lay_unit(S, u if lane < count and u < starts[start + lane + 1] else -1, lane, spots, P)
            mirror(P, d, e)
            T[:size] = 0.0
            own[:size] = 0.0
            H[: whole(d) * LANES] = 0.0
            add_tn(T, 0, MC, 0, P, 1, d, d, d, e, 1.0)
            add_nn(own, 0, V, 0, P, 1, d, d, d, e, 1.0)
            add_tv(H, 0, own, 0, L, d * e, d, d, e, 1.0)
            for lane in range(count):
                u = starts[start + lane] + i
                if u >= starts[start + lane + 1]:
                    continue
                g, a = group[start + lane], action[u]
                at, step = u * d * d, d
                if dense:
                    at, step = ((start + lane) * d * n_actions + a) * d, n_actions * d
                for k in range(d):
                    score[g, a, k] += P[k * e * LANES + lane] - H[k * LANES + lane]
                    for j in range(d):
                        seen[g, a, k, j] += T[(k * e + j) * LANES + lane]
                        X[at + k * step + j] = own[(k * e + j) * LANES + lane]
    if held >= 0:
        deposit(A, spots, level, group, held, 0)
    return log_det, left_out


@compiled
def give_levels(S, starts, action, d, F, inner, outer, spots, shift, roots, given, late, work):
    """Levels of all tasks given, given all that is above them; S as for :func:`sum_tasks`.

    ``shift`` receives V'V b, ``roots`` V, and ``given`` [K, -V'X_a] (n, d, n_actions + 1, d), which is 0 before.
    Returns the number of blocks left out.
    """
    e = row_length(d)
    R, W, L, V, Y, MC, F8, C1, C2, inverse, T, P, own, _, H, room = work_arrays(work, F, inner, outer, d, e)
    size = whole(d) * e * LANES
    left_out = 0
    for start in range(0, starts.size - 1, LANES):
        count = min(LANES, starts.size - 1 - start)
        longest = lay_sums(S, starts, start, count, spots, R)
        if not information(R, F8, d, e, W, L) <= FORMED:
            late[left_out] = start
            left_out += 1
            continue
        shrinkage_of(R, W, L, V, Y, MC, C1, C2, F8, inverse, T, room, d, e, outer.size > 0, work[3:5])
        H[: whole(d) * LANES] = 0.0
        add_tv(H, 0, V, 0, L, d * e, d, d, e, 1.0)
        for lane in range(count):
            s = start + lane
            for k in range(d):
                shift[s, k] = H[k * LANES + lane]
                for j in range(d):
                    roots[s, k, j] = V[(k * e + j) * LANES + lane]
                    given[s, k, 0, j] = MC[(k * e + j) * LANES + lane]
        for i in range(longest):
            for lane in range(LANES):
                u = starts[start + lane] + i if lane < count else -1
                lay_unit(S, u if lane < count and u < starts[start + lane + 1] else -1, lane, spots, P)
            mirror(P, d, e)
            T[:size] = 0.0
            own[:size] = 0.0
            add_nn(own, 0, V, 0, P, 1, d, d, d, e, 1.0)
            add_tn(T, 0, V, 0, own, 0, d, d, d, e, 1.0)
            for lane in range(count):
                u = starts[start + lane] + i
                if u >= starts[start + lane + 1]:
                    continue
                for k in range(d):
                    for j in range(d):
                        given[start + lane, k, action[u] + 1, j] = -T[(k * e + j) * LANES + lane]
    return left_out


@compiled
def give_units(
    S, units, d, F, inner, outer, spots, level, roots, shared, effects, effect_roots, rows, mean, cov,
    late, B, work,
):  # fmt: skip
    """Posteriors of all units of the tasks given; S holds sums of units, ``units`` (t, K) their rows in S.

    ``level`` (n, d) are the means of levels, ``roots`` V, ``shared`` (n, d, 1 + D) the roots Lambda behind a column of
    means, ``effects`` (K, d) and ``effect_roots`` (K, d, D) those of actions; F is a root of M, and is empty where M is
    0. Task s is written to row ``rows[s]`` of ``mean`` and ``cov``. Returns the number of blocks left out.
    """
    e = row_length(d)
    B[:] = 0.0
    R, W, L, V, Y, MC, F8, C1, C2, inverse, T, m, out, part, U, room = work_arrays(
        work, F, inner, outer, d, e
    )
    interacting = F.size > 0
    wide, D, size = whole(d), shared.shape[2] - 1, whole(d) * e * LANES
    for j in range(d):
        store(MC, j * e + j, constant(1.0))
    left_out = 0
    for start in range(0, units.shape[0], LANES):
        count = min(LANES, units.shape[0] - start)
        for lane in range(count):
            s = start + lane
            for j in range(d):
                for k in range(d):
                    U[(j * e + k) * LANES + lane] = roots[s, j, k]
                for c in range(D):
                    B[((c // wide * wide + j) * e + c % wide) * LANES + lane] = shared[s, j, 1 + c]
        for a in range(effects.shape[0]):
            if interacting:
                for lane in range(LANES):
                    lay_unit(S, units[start + lane, a] if lane < count else -1, lane, spots, R)
                if not information(R, F8, d, e, W, L) <= FORMED:
                    late[left_out] = start
                    left_out += 1
                    break
                shrinkage_of(R, W, L, V, Y, MC, C1, C2, F8, inverse, T, room, d, e, outer.size > 0, work[3:5])
                for lane in range(count):
                    if units[start + lane, a] < 0:
                        for j in range(d):
                            for k in range(d):
                                MC[(j * e + k) * LANES + lane] = 1.0 if j == k else 0.0
            for lane in range(count):
                for j in range(d):
                    m[j * LANES + lane] = level[start + lane, j] + effects[a, j]
            out[:] = 0.0
            add_nv(out, d * e, MC, 0, m, 0, d, d, e, 1.0)
            if interacting:
                add_tv(out, d * e, V, 0, L, d * e, d, d, e, 1.0)
                for k in range(0, d, 4):
                    add_tn(out, k * e, V, k * e + k, V, k * e, 4, k + 4, d - k, e, 1.0)
            T[:size] = 0.0
            add_nt(T, 0, U, 0, MC, 0, d, d, d, e, 1.0)
            for k in range(0, d, 4):
                add_tn(out, k * e, T, k, T, 0, 4, k + 4, d, e, 1.0)
            for block in range(0, D, wide):
                for j in range(d):
                    for c in range(min(wide, D - block)):
                        value = load(B, (block + j) * e + c)
                        store(
                            part,
                            j * e + c,
                            less(value, constant(-1.0), constant(effect_roots[a, j, block + c])),
                        )
                    for c in range(D - block, wide):
                        store(part, j * e + c, constant(0.0))
                T[:size] = 0.0
                add_nn(T, 0, MC, 0, part, 0, d, wide, d, e, 1.0)
                for k in range(0, d, 4):
                    add_nt(out, k * e, T, k * e, T, 0, 4, k + 4, wide, e, 1.0)
            for lane in range(count):
                row = rows[start + lane]
                for j in range(d):
                    mean[row, a, j] = out[(d * e + j) * LANES + lane]
                for p in range(cov.shape[2]):
                    cov[row, a, p] = out[(spots[p] - 1) * LANES + lane]
    return left_out


@compiled
def sum_tasks_of_one(
    S, starts, action, group, first, last, interaction, level_var, level, seen, score, between, P, h
):
    """As :func:`sum_tasks` for one coefficient an action, from the sums [G, B, c] of rows of the tasks first .. last.

    ``group`` is that of these tasks. ``between`` (groups, K, K) receives the sums of -P_a W P_b over pairs of units,
    on one side of its diagonal or the other.
    P and h (K,) are room. Returns sum log(1 + G M) + log(1 + Q L).
    """
    log_det, product = 0.0, 1.0
    for s in range(first, last):
        Q, b, c = 0.0, 0.0, 0.0
        for u in range(starts[s], starts[s + 1]):
            G, B = S[u, 0], S[u, 1]
            factor = 1.0 + G * interaction
            square = B * B / G if G > 0.0 else 0.0
            k = u - starts[s]
            P[k], h[k] = G / factor, B / factor
            Q += P[k]
            b += h[k]
            c += (S[u, 2] - square) + square / factor
            product *= factor
            if not product < 1e100:
                log_det += math.log(product)
                product = 1.0
        factor = 1.0 + Q * level_var
        product *= factor
        if not product < 1e100:
            log_det += math.log(product)
            product = 1.0
        K, W = 1.0 / factor, level_var / factor
        square = b * b / Q if Q > 0.0 else 0.0
        g = group[s - first]
        level[g, 0] += K * Q
        level[g, 1] += K * b
        level[g, 2] += (c - square) + square / factor
        for k in range(starts[s + 1] - starts[s]):
            a = action[starts[s] + k]
            seen[g, a] += K * P[k]
            score[g, a] += h[k] - P[k] * W * b
            for j in range(k):
                between[g, a, action[starts[s] + j]] -= P[k] * W * P[j]
    return log_det + math.log(product)


@compiled
def give_units_of_one(
    S, starts, action, units, interaction, level_var, beta, effects, rows, mean, cov, shared
):  # fmt: skip
    """As :func:`give_levels` and :func:`give_units` for one coefficient an action; S holds [G, B, c].

    ``beta`` (1 + D,) and ``effects`` (K, 1 + D) are means, followed by roots; ``shared`` (1 + D,) is room.
    """
    D = beta.size
    for s in range(starts.size - 1):
        Q, b = 0.0, 0.0
        for u in range(starts[s], starts[s + 1]):
            factor = 1.0 + S[u, 0] * interaction
            Q += S[u, 0] / factor
            b += S[u, 1] / factor
        K = 1.0 / (1.0 + Q * level_var)
        W = level_var * K
        for c in range(D):
            shared[c] = K * beta[c]
        for u in range(starts[s], starts[s + 1]):
            slope, a = W * (S[u, 0] / (1.0 + S[u, 0] * interaction)), action[u]
            for c in range(D):
                shared[c] -= slope * effects[a, c]
        shared[0] += W * b
        row = rows[s]
        for a in range(effects.shape[0]):
            u = units[s, a]
            G, B = (S[u, 0], S[u, 1]) if u >= 0 else (0.0, 0.0)
            gain = 1.0 / (1.0 + G * interaction)
            spread = W
            for c in range(1, D):
                spread += (shared[c] + effects[a, c]) * (shared[c] + effects[a, c])
            own = interaction * gain
            mean[row, a, 0] = own * B + gain * (shared[0] + effects[a, 0])
            cov[row, a, 0] = own + gain * spread * gain
