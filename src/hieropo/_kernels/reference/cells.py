"""Sums of tasks and actions, row after row, in plain numpy: the definition that ``_kernels.cells`` answers to."""

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array, Codes


@np.errstate(all="ignore")
def add_cells(
    place: Codes,
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

    place, code (n,): rows with a negative one are left out. reward (n,) finite. pscore (n,) or empty: NaN where it
    cannot be used. share (n,) or empty: how much of a uniform policy an eligible action gets. cells (m width, 16) and
    tasks (m', 3) are laid out as :mod:`cells` says; rows of tasks from m on get no cells. actions (K,):
    rows of each. taken (m', b): a bit for each action that the task took, or no bytes.
    """
    some = (place >= 0) & (code >= 0)
    s, a, r = place[some], code[some], reward[some]
    p = pscore[some] if pscore.size else np.full(s.size, np.nan)
    u = share[some] if share.size else np.ones(s.size)
    np.add.at(actions, a, 1)
    if taken.size:
        np.bitwise_or.at(taken, (s, a >> 3), (1 << (a & 7)).astype(np.uint8))
    j = tasks[s, 0] + _earlier(s)
    opening = j == 0.0
    tasks[s[opening], 1] = a[opening]
    tasks[s[a != tasks[s, 1]], 2] = 1.0
    np.add.at(tasks[:, 0], s, 1.0)
    inside = s < len(cells) // width
    at = s[inside] * width + a[inside]
    _add_to_cells(cells, at, r[inside], j[inside], p[inside], u[inside])


def _add_to_cells(cells: Array, at: Codes, r: Array, j: Array, p: Array, u: Array) -> None:
    i = cells[at, 0] + _earlier(at)
    for k, values in enumerate((np.ones(at.size), r, r * r, r * i, r * j, j, j * j, i * j)):
        np.add.at(cells[:, k], at, values)
    logged = p > 0.0  # NaN is not
    at, p, u = at[logged], p[logged], u[logged]
    first = cells[at, 8] == 0.0
    cells[at[first], 12] = np.inf
    np.add.at(cells[:, 8], at, 1.0)
    for k, values in ((9, 1.0 / p), (10, 1.0 / (p * p)), (11, np.log(p)), (14, u / p), (15, (u / p) ** 2)):
        np.add.at(cells[:, k], at, values)
    np.minimum.at(cells[:, 12], at, p)
    np.maximum.at(cells[:, 13], at, p)


def _earlier(groups: Codes) -> Codes:
    """Count the earlier entries of the same group, (n,)."""
    order, starts = _grouped(groups)
    found = np.empty(groups.size, dtype=np.int64)
    found[order] = np.arange(groups.size) - np.maximum.accumulate(np.where(starts, np.arange(groups.size), 0))
    return found


def _grouped(groups: Codes) -> tuple[Codes, NDArray[np.bool_]]:
    """Return the order by group, entries of one as they came, and in it where a group begins."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    return order, np.append(True, ordered[1:] != ordered[:-1])[: groups.size]


@np.errstate(all="ignore")
def add_squares(bins: Codes, reward: Array, sums: Array) -> None:
    """Add rows to bins (n,), those below 0 left out: count, sum and sum of squares of reward (n,), sums (b, 3)."""
    some = bins >= 0
    b, r = bins[some], reward[some]
    for k, values in enumerate((np.ones(r.size), r, r * r)):
        np.add.at(sums[:, k], b, values)


def follow(place: Codes, time: Array, first: Array, last: Array, counts: Codes) -> None:
    """Count steps in time: from row to row, and from row to row of a task; NaN is left out.

    place, time (n,); first, last (m + 1,): time of the first and the last row of each task and, at the end, of all; NaN
    before there is one. counts (4,): steps back from row to row; within tasks steps back, steps to the same time, and
    all steps.
    """
    some = ~np.isnan(time)
    s, now = place[some], time[some]
    counts[0] += _steps(np.full(now.size, last.size - 1), now, first, last)[0]
    inside = s >= 0
    counts[1:] += _steps(s[inside], now[inside], first, last)


def _steps(s: Codes, now: Array, first: Array, last: Array) -> Codes:
    """Count steps back, to the same time, and all, within groups, from their last times on, which move on."""
    order, starts = _grouped(s)
    s, now = s[order], now[order]
    before = np.where(starts, last[s], np.append(np.nan, now[:-1])[: s.size])
    fresh = starts & np.isnan(first[s])
    first[s[fresh]] = now[fresh]
    ends = np.append(starts[1:], True)[: s.size]
    last[s[ends]] = now[ends]
    return np.array([(now < before).sum(), (now == before).sum(), (~fresh).sum()])
