"""One step up and one step down for some rows in plain numpy: the reference for compiled loops.

The derivation is in :mod:`steps`. Tasks are the last axis of every array, so that a line is the formula
for one task: ``T`` (d + 1, d + 1, n) is [[G, B], [B', c]] of n tasks, features first.
"""

import numpy as np

from hieropo._kernels.reference.small_matrices import FORMED, cholesky, product, solve_lower, tasks_last
from hieropo._utils.arrays import Array, Codes
from hieropo._utils.packed import packed_size, triangle, unpack

_PIECE = 2**17  # numbers of T that are worked on at once


@np.errstate(all="ignore")
def step_up(
    rows: Array,
    first: int,
    last: int,
    scale: float,
    factor: Array,
    tolerance: float,
    parent: Codes,
    out: Array,
) -> float:
    """Add [P b; b' c'] of rows ``first .. last`` to their parents; return sum log|I + G Sigma_0|.

    Parameters
    ----------
    rows : (m, >= q) array
        Packed [G B; B' c], to be multiplied by ``scale``; q = (d + 1)(d + 2) / 2.
    factor : (d, d) array
        F with F F' = Sigma_0.
    tolerance : float
        Share of a diagonal entry of G below which a pivot is rounding.
    parent : (m,) int array
    out : (n_parents, q) array
    """
    log_det = 0.0
    i, j = triangle(len(factor) + 1)
    for start, stop in _pieces(first, last, len(factor)):
        T = _sums(rows[start:stop], scale, len(factor))
        message = np.empty_like(T)
        for tasks, formed in _forms(T, factor):
            up = _up_formed if formed else _up_large
            message[..., tasks], inverse = up(T[..., tasks], factor, tolerance)
            log_det -= 2.0 * float(np.log(inverse).sum())
        offsets = parent[start:stop, None] * i.size + np.arange(i.size)
        np.add.at(out.reshape(-1), offsets.ravel(), message[i, j].T.ravel())
    return log_det


@np.errstate(all="ignore")
def step_down(
    rows: Array,
    first: int,
    last: int,
    scale: float,
    factor: Array,
    tolerance: float,
    parent: Codes,
    parents: tuple[Array, Array, Array, bool],
    out: tuple[Array, Array, Array],
) -> None:
    """Write the posteriors of rows ``first .. last`` given the Gaussians of their parents.

    Parameters
    ----------
    rows, first, last, scale, factor, tolerance, parent
        As of :func:`step_up`.
    parents : (means (k, d), inner (k, d, d), outer (k, d, d) or (0, d, d), lower)
        A parent is N(m, C C') with C = F inner + outer.
    out : (means (m, d), covs (m, d (d + 1) / 2), gains (m, d, d) or (0, d, d))
        ``gains`` receives M C.
    """
    d = len(factor)
    i, j = triangle(d)
    for start, stop in _pieces(first, last, d):
        T = _sums(rows[start:stop], scale, d)
        for tasks, formed in _forms(T, factor):
            part = np.arange(start, stop)[tasks]
            m, inner = (tasks_last(table[parent[part]]) for table in parents[:2])
            outer = tasks_last(parents[2][parent[part]]) if len(parents[2]) else None
            down = _down_formed if formed else _down_large
            L, inverse, u, GC = down(T[..., tasks], factor, tolerance, m, outer)
            V = solve_lower(L, inverse, np.repeat(factor.T[:, :, None], part.size, axis=2))
            MC = product("kan,kbn->abn", V, solve_lower(L, inverse, inner))
            if outer is not None:  # M outer = outer - V'V G outer
                MC += outer - product("kan,kbn->abn", V, product("kan,abn->kbn", V, GC))
            cov = product("kan,kbn->abn", V, V) + product("akn,bkn->abn", MC, MC)
            out[0][part] = (m + product("kan,kn->an", V, u)).T
            out[1][part] = cov[i, j].T
            if len(out[2]):
                out[2][part] = np.moveaxis(MC, 2, 0)


def _pieces(first: int, last: int, d: int) -> list[tuple[int, int]]:
    step = max(1, _PIECE // (d + 1) ** 2)
    return [(start, min(start + step, last)) for start in range(first, last, step)]


def _sums(rows: Array, scale: float, d: int) -> Array:
    return tasks_last(unpack(rows[:, : packed_size(d + 1)] * scale, d + 1))


def _forms(T: Array, F: Array) -> list[tuple[Codes | slice, bool]]:
    """Return the tasks whose I + F'GF may be formed, and the others."""
    d = len(F)
    largest = product("jan,ja->an", product("jkn,ka->jan", T[:d, :d], F), F).max(axis=0, initial=0.0)
    formed = 1.0 + largest <= FORMED  # NaN is not
    if formed.all():
        return [(slice(None), True)]
    parts = [(np.flatnonzero(formed), True), (np.flatnonzero(~formed), False)]
    return [part for part in parts if part[0].size]


def _up_formed(T: Array, F: Array, _: float) -> tuple[Array, Array]:
    """Return [[G, B], [B', c]] - W'W and 1 / diag L, with L L' = I + F'GF and W = L^-1 F'[G B]."""
    L, inverse, K = _information(T, F)
    W = solve_lower(L, inverse, K)
    return T - product("kan,kbn->abn", W, W), inverse


def _up_large(T: Array, F: Array, tolerance: float) -> tuple[Array, Array]:
    """Return X'X + c - |y|^2 and 1 / diag H, with R'R = G, B = R'y, H H' = I + (R F)(R F)' and X = H^-1 [R y]."""
    d = len(F)
    root, rest = _pivoted_root(T, tolerance)
    RF = product("kjn,ja->kan", root[:, :d], F)
    H, inverse = cholesky(product("ian,jan->ijn", RF, RF) + np.eye(d)[:, :, None])
    X = solve_lower(H, inverse, root)
    message = product("kan,kbn->abn", X, X)
    message[d, d] += rest
    return message, inverse


def _down_formed(
    T: Array, F: Array, _: float, m: Array, outer: Array | None
) -> tuple[Array, Array, Array, Array]:
    """Return L and 1 / diag L, with L L' = I + F'GF; u = L^-1 F'(B - G m); and G outer."""
    d = len(F)
    L, inverse, K = _information(T, F)
    u = solve_lower(L, inverse, (K[:, d] - product("ajn,jn->an", K[:, :d], m))[:, None])[:, 0]
    return L, inverse, u, m if outer is None else product("ajn,jbn->abn", T[:d, :d], outer)


def _down_large(
    T: Array, F: Array, tolerance: float, m: Array, outer: Array | None
) -> tuple[Array, Array, Array, Array]:
    """Return the same from R'R = G and B = R'y, by reflections of [I, 0; R F, y - R m]."""
    d = len(F)
    root, _ = _pivoted_root(T, tolerance)
    R, y = root[:, :d], root[:, d]
    RF = product("kjn,ja->kan", R, F)
    columns = np.concatenate([RF, (y - product("kjn,jn->kn", R, m))[:, None]], axis=1)
    L, inverse = _reflected(columns)
    seen = m if outer is None else product("kan,kbn->abn", R, product("kjn,jbn->kbn", R, outer))
    return L[:d], inverse, L[d], seen


def _information(T: Array, F: Array) -> tuple[Array, Array, Array]:
    """Return L and 1 / diag L, with L L' = I + F'GF, and F'[G B]."""
    d = len(F)
    K = product("ja,jkn->akn", F, T[:d])
    return *cholesky(product("akn,kb->abn", K[:, :d], F) + np.eye(d)[:, :, None]), K


def _reflected(columns: Array) -> tuple[Array, Array]:
    """Return L (d + 1, d, n) and 1 / diag L: L L' = I + Q'Q, and L^-1 Q't as row d; columns (d, d + 1, n) are Q and t.

    With s = sqrt(1 + |q_j|^2): L_kj = q_k'q_j / s, and q_k loses q_j (q_k'q_j)(1 + s) / (s |q_j|^2).
    """
    Q = columns.copy()
    d = len(Q)
    L, inverse = np.zeros((d + 1, d, Q.shape[2])), np.zeros((d, Q.shape[2]))
    for j in range(d):
        q = Q[:, j].copy()
        products = product("in,ikn->kn", q, Q[:, j:])
        square, s = products[0], np.sqrt(1.0 + products[0])
        inverse[j] = 1.0 / s
        L[j, j], L[j + 1 :, j] = s, products[1:] / s
        weight = np.where(square > 0.0, (1.0 + s) / (s * np.where(square > 0.0, square, 1.0)), 0.0)
        Q[:, j + 1 :] -= q[:, None] * (products[1:] * weight)
    return L, inverse


def _pivoted_root(T: Array, tolerance: float) -> tuple[Array, Array]:
    """Return [R y] (d, d + 1, n) with R'R = G and R'y = B, and c - |y|^2 (n,).

    Pivots are the largest remainders in units of their diagonal entry, so that columns may have any scale; one below
    ``tolerance`` of it is rounding error. In such a direction B stays where it is more than rounding error, in a row
    too small to have an effect.
    """
    d, n = len(T) - 1, T.shape[2]
    tasks = np.arange(n)
    diagonal = T[np.arange(d), np.arange(d)]
    remaining, root, c = diagonal.copy(), np.zeros((d, d + 1, n)), T[d, d].copy()
    for k in range(d):
        share = np.where(
            (remaining >= 0.0) & (diagonal > 0.0), remaining / np.where(diagonal > 0.0, diagonal, 1.0), -1.0
        )
        best = share.argmax(axis=0)
        active, informed = share[best, tasks] >= 0.0, share[best, tasks] > tolerance
        size = diagonal[best, tasks]
        pivot = np.sqrt(np.where(informed, remaining[best, tasks], 1e-2 * tolerance * size))
        row = T[best, :, tasks].T - product("rn,rin->in", root[:k, best, tasks], root[:k])
        uninformed = ~informed & (np.abs(row[d]) <= tolerance * np.sqrt(size * T[d, d]))
        row /= pivot
        row[d, uninformed] = 0.0
        remaining[best, tasks] = np.where(active, -1.0, remaining[best, tasks])
        row[:d] = np.where(informed & (remaining >= 0.0), row[:d], 0.0)
        row[best, tasks] = np.where(uninformed, 0.0, pivot)
        root[k] = np.where(active, row, 0.0)
        remaining = np.where(remaining >= 0.0, np.maximum(remaining - root[k, :d] ** 2, 0.0), remaining)
        c -= root[k, d] ** 2
    return root, c
