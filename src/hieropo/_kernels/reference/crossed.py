"""The crossed prior for many tasks in plain numpy: the definition that ``_kernels.crossed`` answers to.

The formulas are in :mod:`hieropo.model.crossed.steps`. Blocks of eight tasks are left out where the F'GF of one is too
large to be formed, as compiled loops do, and ``late`` receives their first tasks. Room of compiled loops, such as
``work``, is not used.
"""

from typing import NamedTuple

import numpy as np

from hieropo._kernels.reference.small_matrices import FORMED, cholesky, product, solve_lower, tasks_last
from hieropo._utils.arrays import Array, Codes, Mask
from hieropo._utils.packed import pack, packed_size, unpack

_BLOCK = 8  # tasks


def rooms(d: int) -> tuple[Codes, Array]:
    """Return the offsets of packed entries and the memory that compiled loops need for d features."""
    del d
    return np.zeros(0, dtype=np.int64), np.zeros(0)


def tiles(columns: int, d: int) -> Array:
    """Return the memory that compiled loops need for (d, columns) matrices."""
    del columns, d
    return np.zeros(0)


class _Level(NamedTuple):
    """Nodes with L L' = I + F'GF: V = L^-1 F', W = L^-1 F'[G B], M = (I + Sigma G)^-1 and 1 / diag L.

    ``keep`` says for which nodes they hold.
    """

    V: Array
    W: Array
    M: Array
    inverse: Array
    keep: Mask

    @classmethod
    def of(cls, T: Array, F: Array, inner: Array, outer: Array) -> "_Level":
        """Factor, given [[G, B], [B', c]] of nodes (d + 1, d + 1, n) and I = F inner + outer."""
        d, n = len(T) - 1, T.shape[2]
        F, inner = F.reshape(d, d), inner.reshape(d, d)
        K = product("ja,jkn->akn", F, T[:d])
        information = product("akn,kb->abn", K[:, :d], F) + np.eye(d)[:, :, None]
        keep = information[np.arange(d), np.arange(d)].max(axis=0, initial=0.0) <= FORMED  # NaN is not
        L, inverse = cholesky(information)
        V = solve_lower(L, inverse, np.repeat(F.T[:, :, None], n, axis=2))
        M = product("kan,kbn->abn", V, solve_lower(L, inverse, np.repeat(inner[:, :, None], n, axis=2)))
        if outer.size:
            removed = product("kan,kbn->abn", V, product("kan,abn->kbn", V, T[:d, :d]))
            M += outer.reshape(d, d)[:, :, None] - product("acn,cb->abn", removed, outer.reshape(d, d))
        return cls(V, solve_lower(L, inverse, K), M, inverse, keep)


def _tasks(S: Array, starts: Codes, d: int) -> Array:
    """Return the sums of the packed rows of each task, (d + 1, d + 1, t)."""
    total = np.zeros((starts.size - 1, packed_size(d + 1)))
    some = starts[:-1] < starts[1:]
    total[some] = np.add.reduceat(S, starts[:-1][some], axis=0) if some.any() else 0.0
    return tasks_last(unpack(total, d + 1))


def _left_out(keep: Mask, late: Codes) -> tuple[Mask, int]:
    """Return the tasks of blocks that are kept whole, and how many blocks are not; their first tasks go to ``late``."""
    blocks = np.unique(np.flatnonzero(~keep) // _BLOCK)
    late[: blocks.size] = blocks * _BLOCK
    return ~np.isin(np.arange(keep.size) // _BLOCK, blocks), blocks.size


def _first(values: Array) -> Array:
    """Return values of units (..., u) as (u, ...)."""
    return values.transpose(-1, *range(values.ndim - 1))


@np.errstate(all="ignore")
def sum_tasks(
    S: Array,
    starts: Codes,
    action: Codes,
    group: Codes,
    d: int,
    n_actions: int,
    dense: bool,  # noqa: FBT001  # as compiled loops take it
    F: Array,
    inner: Array,
    outer: Array,
    spots: Codes,
    level: Array,
    seen: Array,
    score: Array,
    X: Array,
    late: Codes,
    work: Array,
) -> tuple[float, int]:
    """Add the messages of all tasks given to their groups; S holds the messages [P b; b' c] of their units.

    With L L' = I + F'QF, V = L^-1 F', X_a = V P_a and u = V b, of the group ``group[s]`` (ascending) of each task:
    ``level`` receives [Q b; b' c] - W'W, ``seen`` the sums of K'P_a, ``score`` those of b_a - X_a'u, and X the X_a of
    each task, of all actions side by side where ``dense``. Returns sum log|I + Q L| and the number of blocks left out.
    """
    del spots, work
    T = _tasks(S, starts, d)
    nodes = _Level.of(T, F, inner, outer)
    keep, left_out = _left_out(nodes.keep, late)
    np.add.at(level, group[keep], pack(_first(T - product("kan,kbn->abn", nodes.W, nodes.W))[keep]))
    task = np.repeat(np.arange(starts.size - 1), np.diff(starts))
    units = np.flatnonzero(keep[task])
    task, code = task[units], action[units]
    sums = tasks_last(unpack(S[units], d + 1))
    P, b = sums[:d, :d], sums[:d, d]
    own = product("kan,abn->kbn", nodes.V[..., task], P)
    cell = group[task], code
    np.add.at(seen, cell, _first(product("kan,kbn->abn", nodes.M[..., task], P)))
    np.add.at(score, cell, _first(b - product("kan,kn->an", own, nodes.W[:, d, task])))
    if dense:
        X.reshape(-1, d, n_actions, d)[task, :, code] = _first(own)
    else:
        X.reshape(-1, d, d)[units] = _first(own)
    return -2.0 * float(np.log(nodes.inverse[:, keep]).sum()), left_out


@np.errstate(all="ignore")
def give_levels(
    S: Array,
    starts: Codes,
    action: Codes,
    d: int,
    F: Array,
    inner: Array,
    outer: Array,
    spots: Codes,
    shift: Array,
    roots: Array,
    given: Array,
    late: Codes,
    work: Array,
) -> int:
    """Write levels of all tasks given, given all that is above them; S as for :func:`sum_tasks`.

    ``shift`` receives V'V b, ``roots`` V, and ``given`` [K, -V'X_a] (n, d, n_actions + 1, d), which is 0 before.
    Returns the number of blocks left out.
    """
    del spots, work
    nodes = _Level.of(_tasks(S, starts, d), F, inner, outer)
    keep, left_out = _left_out(nodes.keep, late)
    shift[keep] = product("kan,kn->an", nodes.V, nodes.W[:, d]).T[keep]
    roots[keep], given[keep, :, 0] = _first(nodes.V)[keep], _first(nodes.M)[keep]
    task = np.repeat(np.arange(starts.size - 1), np.diff(starts))
    units = np.flatnonzero(keep[task])
    task = task[units]
    own = product("kan,abn->kbn", nodes.V[..., task], tasks_last(unpack(S[units], d)))
    given[task, :, action[units] + 1] = -_first(product("kan,kbn->abn", nodes.V[..., task], own))
    return left_out


@np.errstate(all="ignore")
def give_units(
    S: Array,
    units: Codes,
    d: int,
    F: Array,
    inner: Array,
    outer: Array,
    spots: Codes,
    level: Array,
    roots: Array,
    shared: Array,
    effects: Array,
    effect_roots: Array,
    rows: Codes,
    mean: Array,
    cov: Array,
    late: Codes,
    B: Array,
    work: Array,
) -> int:
    """Write posteriors of all units of the tasks given; S holds sums of units, ``units`` (t, K) their rows in S.

    ``level`` (n, d) are the means of levels, ``roots`` V, ``shared`` (n, d, 1 + D) the roots Lambda behind a column of
    means, ``effects`` (K, d) and ``effect_roots`` (K, d, D) those of actions; F is a root of M, and is empty where M is
    0. Task s is written to row ``rows[s]`` of ``mean`` and ``cov``. Returns the number of blocks left out.
    """
    del spots, B, work
    n, keep = len(units), np.ones(len(units), dtype=np.bool_)
    V, U = tasks_last(roots), np.zeros((d, n))
    for a in range(effects.shape[0]):
        M = np.repeat(np.eye(d)[:, :, None], n, axis=2)
        m = tasks_last(level + effects[a])
        covs = np.zeros((d, d, n))
        if F.size:
            packed = np.where(units[:, a, None] >= 0, S[units[:, a]], 0.0)
            nodes = _Level.of(tasks_last(unpack(packed, d + 1)), F, inner, outer)
            keep &= nodes.keep
            M = np.where(units[:, a] >= 0, nodes.M, M)
            U = product("kan,kn->an", nodes.V, nodes.W[:, d])
            covs += product("kan,kbn->abn", nodes.V, nodes.V)
        spread = product("kbn,abn->kan", V, M)
        above = product("abn,bcn->acn", M, tasks_last(shared[:, :, 1:] + effect_roots[a]))
        covs += product("kan,kbn->abn", spread, spread) + product("acn,bcn->abn", above, above)
        mean[rows, a] = (product("abn,bn->an", M, m) + U).T
        cov[rows, a] = pack(np.ascontiguousarray(_first(covs)))
    return _left_out(keep, late)[1]


def sum_tasks_of_one(
    S: Array,
    starts: Codes,
    action: Codes,
    group: Codes,
    first: int,
    last: int,
    interaction: float,
    level_var: float,
    level: Array,
    seen: Array,
    score: Array,
    between: Array,
    P: Array,
    h: Array,
) -> float:
    """As :func:`sum_tasks` for one coefficient an action, from the sums [G, B, c] of rows of the tasks first .. last.

    ``group`` is that of these tasks. ``between`` (groups, K, K) receives the sums of -P_a W P_b over pairs of units,
    half of them on each side of its diagonal, and on it what nobody reads. Returns sum log(1 + G M) + log(1 + Q L).
    """
    del P, h
    part = slice(starts[first], starts[last])
    code, task = action[part], np.repeat(np.arange(last - first), np.diff(starts[first : last + 1]))
    G, B, c = S[part].T
    factor = 1.0 + G * interaction
    info, b, squares = G / factor, B / factor, np.where(G > 0.0, B * B / np.where(G > 0.0, G, 1.0), 0.0)
    Q, h_s, c_s = (
        np.bincount(task, values, last - first) for values in (info, b, (c - squares) + squares / factor)
    )
    factor_s = 1.0 + Q * level_var
    K, W = 1.0 / factor_s, level_var / factor_s
    squares_s = np.where(Q > 0.0, h_s * h_s / np.where(Q > 0.0, Q, 1.0), 0.0)
    rows = np.stack([K * Q, K * h_s, (c_s - squares_s) + squares_s / factor_s], axis=1)
    np.add.at(level, group, rows)
    np.add.at(seen, (group[task], code), K[task] * info)
    np.add.at(score, (group[task], code), b - info * (W * h_s)[task])
    wide = np.zeros((last - first, seen.shape[1]))
    wide[task, code] = info
    for g in np.unique(group):
        members = group == g
        between[g] -= 0.5 * ((wide[members] * W[members, None]).T @ wide[members])
    return float(np.log(factor).sum() + np.log(factor_s).sum())


def give_units_of_one(
    S: Array,
    starts: Codes,
    action: Codes,
    units: Codes,
    interaction: float,
    level_var: float,
    beta: Array,
    effects: Array,
    rows: Codes,
    mean: Array,
    cov: Array,
    shared: Array,
) -> None:
    """As :func:`give_levels` and :func:`give_units` for one coefficient an action; S holds [G, B, c].

    ``beta`` (1 + D,) and ``effects`` (K, 1 + D) are means, followed by roots; ``shared`` is not used.
    """
    del shared
    t = starts.size - 1
    task = np.repeat(np.arange(t), np.diff(starts))
    info = S[:, 0] / (1.0 + S[:, 0] * interaction)
    Q, b = (np.bincount(task, values, t) for values in (info, S[:, 1] / (1.0 + S[:, 0] * interaction)))
    K = 1.0 / (1.0 + Q * level_var)
    W = level_var * K
    above = K[:, None] * beta
    np.subtract.at(above, task, (W[task] * info)[:, None] * effects[action])
    above[:, 0] += W * b
    G, B = (np.where(units >= 0, S[units, k], 0.0) for k in (0, 1))
    gain = 1.0 / (1.0 + G * interaction)
    total = above[:, None] + effects
    spread = W[:, None] + product("sac,sac->sa", total[:, :, 1:], total[:, :, 1:])
    mean[rows, :, 0] = interaction * gain * B + gain * total[:, :, 0]
    cov[rows, :, 0] = interaction * gain + gain * spread * gain
