"""Sums of tasks and actions, row after row, in plain numpy: the reference for ``_kernels.cells``."""

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array, Codes


@np.errstate(all="ignore")
def add_cells(
    task_row: Codes,
    code: Codes,
    reward: Array,
    pscore: Array,
    share: Array,
    width: int,
    cells: Array,
    tasks: Array,
    actions: Codes,
    taken: NDArray[np.uint8],
) -> None:
    """Add n rows in order.

    task_row, code (n,): rows with a negative one are left out. reward (n,) finite. pscore (n,) or empty: NaN where it
    cannot be used. share (n,) or empty: probability of an eligible action under the uniform policy. cells (m width, 16)
    and tasks (m', 3) have the layout of :mod:`cells`; rows of tasks from m on get no cells. actions (K,): rows of each.
    taken (m', b): a bit for each action that the task took, or no bytes.
    """
    valid = (task_row >= 0) & (code >= 0)
    s, a, r = task_row[valid], code[valid], reward[valid]
    p = pscore[valid] if pscore.size else np.full(s.size, np.nan)
    u = share[valid] if share.size else np.ones(s.size)
    np.add.at(actions, a, 1)
    if taken.size:
        np.bitwise_or.at(taken, (s, a >> 3), (1 << (a & 7)).astype(np.uint8))
    j = tasks[s, 0] + _earlier(s)
    is_first = j == 0.0
    tasks[s[is_first], 1] = a[is_first]
    tasks[s[a != tasks[s, 1]], 2] = 1.0
    np.add.at(tasks[:, 0], s, 1.0)
    inside = s < len(cells) // width
    index = s[inside] * width + a[inside]
    _add_to_cells(cells, index, r[inside], j[inside], p[inside], u[inside])


def _add_to_cells(cells: Array, index: Codes, r: Array, j: Array, p: Array, u: Array) -> None:
    i = cells[index, 0] + _earlier(index)
    for k, values in enumerate((np.ones(index.size), r, r * r, r * i, r * j, j, j * j, i * j)):
        np.add.at(cells[:, k], index, values)
    logged = p > 0.0  # NaN is not
    index, p, u = index[logged], p[logged], u[logged]
    first = cells[index, 8] == 0.0
    cells[index[first], 12] = np.inf
    np.add.at(cells[:, 8], index, 1.0)
    for k, values in ((9, 1.0 / p), (10, 1.0 / (p * p)), (11, np.log(p)), (14, u / p), (15, (u / p) ** 2)):
        np.add.at(cells[:, k], index, values)
    np.minimum.at(cells[:, 12], index, p)
    np.maximum.at(cells[:, 13], index, p)


def _earlier(groups: Codes) -> Codes:
    """Return the number of earlier entries of the same group, (n,)."""
    order, starts = _grouped(groups)
    counts = np.empty(groups.size, dtype=np.int64)
    counts[order] = np.arange(groups.size) - np.maximum.accumulate(
        np.where(starts, np.arange(groups.size), 0)
    )
    return counts


def _grouped(groups: Codes) -> tuple[Codes, NDArray[np.bool_]]:
    """Return the stable order by group, and a mask of the entries in that order that begin a group."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    return order, np.append(True, ordered[1:] != ordered[:-1])[: groups.size]


@np.errstate(all="ignore")
def add_squares(bins: Codes, reward: Array, sums: Array) -> None:
    """Add rows to bins (n,), those below 0 left out: count, sum and sum of squares of reward (n,), sums (b, 3)."""
    valid = bins >= 0
    b, r = bins[valid], reward[valid]
    for k, values in enumerate((np.ones(r.size), r, r * r)):
        np.add.at(sums[:, k], b, values)


def follow(task_row: Codes, time: Array, first: Array, last: Array, counts: Codes) -> None:
    """Count steps in time: from row to row, and from row to row of a task; NaN is left out.

    task_row, time (n,); first, last (m + 1,): time of the first and the last row of each task and, at the end, of all;
    NaN before there is one. counts (4,): steps back from row to row; within tasks steps back, steps to the same time,
    and all steps.
    """
    valid = ~np.isnan(time)
    s, now = task_row[valid], time[valid]
    counts[0] += _steps(np.full(now.size, last.size - 1), now, first, last)[0]
    inside = s >= 0
    counts[1:] += _steps(s[inside], now[inside], first, last)


def _steps(s: Codes, now: Array, first: Array, last: Array) -> Codes:
    """Count steps back, to the same time, and all, within groups; update first and last times."""
    order, starts = _grouped(s)
    s, now = s[order], now[order]
    before = np.where(starts, last[s], np.append(np.nan, now[:-1])[: s.size])
    is_first = starts & np.isnan(first[s])
    first[s[is_first]] = now[is_first]
    ends = np.append(starts[1:], True)[: s.size]
    last[s[ends]] = now[ends]
    return np.array([(now < before).sum(), (now == before).sum(), (~is_first).sum()])
