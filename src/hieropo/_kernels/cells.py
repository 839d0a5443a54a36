"""The pass over rows for tests of the incumbent: sums of every task and action that depend on the order of rows."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"

import math

import numpy as np

from hieropo._kernels.jit import compiled


@compiled
def add_cells(task_row, code, reward, pscore, share, width, cells, tasks, actions, taken):
    """Add n rows in order.

    task_row, code (n,): rows with a negative one are left out. reward (n,) finite. pscore (n,) or empty: NaN where it
    cannot be used. share (n,) or empty: probability of an eligible action under the uniform policy. cells (m width, 16)
    and tasks (m', 3) have the layout of :mod:`cells`; rows of tasks from m on get no cells. actions (K,): rows of each.
    taken (m', b): a bit for each action that the task took, or no bytes.
    """
    logged, shared = pscore.size > 0, share.size > 0
    m = cells.shape[0] // width
    for t in range(task_row.size):
        s, a = task_row[t], code[t]
        if s < 0 or a < 0:
            continue
        actions[a] += 1
        if taken.size > 0:
            taken[s, a >> 3] |= np.uint8(1 << (a & 7))
        r, j, task = reward[t], tasks[s, 0], tasks[s]
        if j == 0.0:
            task[1] = a
        elif a != task[1]:
            task[2] = 1.0
        task[0] = j + 1.0
        if s >= m:
            continue
        cell = cells[s * width + a]
        i = cell[0]
        cell[0] = i + 1.0
        cell[1] += r
        cell[2] += r * r
        cell[3] += r * i
        cell[4] += r * j
        cell[5] += j
        cell[6] += j * j
        cell[7] += i * j
        if logged and pscore[t] > 0.0:
            p = pscore[t]
            u = share[t] if shared else 1.0
            cell[8] += 1.0
            cell[9] += 1.0 / p
            cell[10] += 1.0 / (p * p)
            cell[11] += math.log(p)
            cell[12] = p if cell[8] == 1.0 else min(cell[12], p)
            cell[13] = max(cell[13], p)
            cell[14] += u / p
            cell[15] += (u / p) ** 2


@compiled
def add_squares(bins, reward, sums):
    """Add rows to bins (n,), those below 0 left out: count, sum and sum of squares of reward (n,), sums (b, 3)."""
    for t in range(bins.size):
        b = bins[t]
        if b >= 0:
            r = reward[t]
            sums[b, 0] += 1.0
            sums[b, 1] += r
            sums[b, 2] += r * r


@compiled
def follow(task_row, time, first, last, counts):
    """Count steps in time: from row to row, and from row to row of a task; NaN is left out.

    task_row, time (n,); first, last (m + 1,): time of the first and the last row of each task and, at the end, of all;
    NaN before there is one. counts (4,): steps back from row to row; within tasks steps back, steps to the same time,
    and all steps.
    """
    end = last.size - 1
    for t in range(time.size):
        now = time[t]
        if np.isnan(now):
            continue
        if np.isnan(first[end]):
            first[end] = now
        elif now < last[end]:
            counts[0] += 1
        last[end] = now
        s = task_row[t]
        if s < 0:
            continue
        if np.isnan(first[s]):
            first[s] = now
        else:
            counts[1] += now < last[s]
            counts[2] += now == last[s]
            counts[3] += 1
        last[s] = now
