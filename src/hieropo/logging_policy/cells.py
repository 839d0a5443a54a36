"""Sums over rows of every cell (a task with an action), which keep the order of rows, to test the logging policy.

They form a monoid: the sums of two consecutive parts of a log give those of both, in any order of ids.
Of row t, i counts the earlier rows of its cell, a task with an action, and j those of its task.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hieropo._kernels import backend
from hieropo._utils.arrays import Array, Codes, normalised

Bits = NDArray[np.uint8]

MOST_CELLS = 2**20  # of 128 bytes; later tasks are counted and have no cells
MOST_BITS = 2**29  # tasks times actions, up to which the actions of each task are recorded

ROWS, SUM, SQUARES, SUM_I, SUM_J, J, JJ, IJ, LOGGED, INVERSE, INVERSE2, LOGS, LOW, HIGH, SHARED, SHARED2 = (
    range(16)
)
TASK_ROWS, FIRST, SEVERAL = range(3)
_NOTHING, _NO_BITS = np.zeros(0), np.zeros((0, 0), dtype=np.uint8)
_CHUNK = 10_000  # tasks whose bits are unpacked at once
_APPENDED = 1_000  # tasks whose cells are appended at once


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """The sums of cells.

    Attributes
    ----------
    cells : (m, K, 16) array
        Of the first m tasks: rows n, sums of r, r^2, r i, r j, j, j^2, i j; of rows with a usable propensity p their
        number, sums of 1/p, 1/p^2, log p, least and largest p, sums of u/p and of its square, where u is the
        probability of an eligible action under the uniform policy.
    tasks : (m', 3) array
        Of all tasks: rows, first action, whether there were several actions.
    actions : (K,) int array
        Rows of each action, in all tasks.
    taken : (m', b) uint8 array or None
        A bit for each action that a task took, the first one lowest; None for too many tasks and actions.
    """

    cells: Array
    tasks: Array
    actions: Codes
    taken: Bits | None

    def tasks_of_actions(self) -> Codes | None:
        """Return the number of tasks of each action, (K,); None for too many tasks and actions."""
        if self.taken is None:
            return None
        tasks = np.zeros(8 * self.taken.shape[1], dtype=np.int64)
        for start in range(0, len(self.taken), _CHUNK):
            bits = np.unpackbits(self.taken[start : start + _CHUNK], axis=1, bitorder="little")
            tasks += bits.sum(axis=0, dtype=np.int64)
        return tasks[: self.actions.size]

    @property
    def counts(self) -> Array:
        """Return the rows of each cell, (m, K)."""
        return self.cells[:, :, ROWS]

    @property
    def rows(self) -> Array:
        """Return the rows of all tasks, (m',)."""
        return self.tasks[:, TASK_ROWS]

    @property
    def complete(self) -> bool:
        """Return True where every task has cells."""
        return len(self.cells) == len(self.tasks)

    def complete_tasks(self) -> "Cells":
        """Return the sums of the first m tasks, with zeros for tasks that have rows outside of their cells."""
        m = len(self.cells)
        full = self.counts.sum(axis=1) == self.rows[:m]
        if full.all():
            return self if self.complete else replace(self, tasks=self.tasks[:m])
        cells, tasks = (
            np.where(full[:, None, None], self.cells, 0.0),
            np.where(full[:, None], self.tasks[:m], 0.0),
        )
        return replace(self, cells=cells, tasks=tasks)


class CellSums:
    """Accumulates the sums of cells."""

    def __init__(self, most: int = MOST_CELLS) -> None:
        self._most, self._width = most, 1
        self._m, self._n_tasks, self._n_actions = 0, 0, 0
        self._cells = np.zeros((0, 16))
        self._tasks = np.zeros((0, 3))
        self._actions = np.zeros(1, dtype=np.int64)
        self._taken: Bits | None = np.zeros((0, 1), dtype=np.uint8)

    def add(
        self,
        task: Codes,
        code: Codes,
        reward: Array,
        *,
        tasks: int,
        actions: int,
        pscore: Array | None = None,
        share: Array | None = None,
    ) -> None:
        """Add rows (n,) in their order; tasks or codes below 0 are left out. ``tasks``, ``actions``: numbers so far."""
        self._grow(tasks, actions)
        backend.cells(task.size).add_cells(
            normalised(task), normalised(code), normalised(reward),
            _NOTHING if pscore is None else normalised(pscore), _NOTHING if share is None else normalised(share),
            self._width, self._cells[: self._m * self._width], self._tasks, self._actions,
            _NO_BITS if self._taken is None else self._taken,
        )  # fmt: skip

    def _grow(self, tasks: int, actions: int) -> None:
        if tasks > len(self._tasks):
            added = max(tasks, 2 * len(self._tasks)) - len(self._tasks)
            self._tasks = np.concatenate([self._tasks, np.zeros((added, 3))])
        self._n_tasks, self._n_actions = max(self._n_tasks, tasks), max(self._n_actions, actions)
        width = self._width if self._width >= actions else max(actions, 2 * self._width)
        m = min(self._n_tasks, max(1, self._most // width))
        if width > self._actions.size:
            self._actions = np.append(self._actions, np.zeros(width - self._actions.size, dtype=np.int64))
        self._grow_bits((width + 7) // 8)
        if width > self._width:
            table = self._cells.reshape(-1, self._width, 16)[:m]
            wider = np.zeros((len(table), width, 16))
            wider[:, : self._width] = table
            self._cells, self._width = wider.reshape(-1, 16), width
        n_tasks = len(self._cells) // width
        if m > n_tasks:
            room = min(max(m, 2 * n_tasks), max(1, self._most // width))
            self._cells = np.concatenate([self._cells, np.zeros(((room - n_tasks) * width, 16))])
        self._m = m

    def _grow_bits(self, width: int) -> None:
        old = self._taken
        if old is None or old.shape == (len(self._tasks), width):
            return
        if 8 * len(self._tasks) * width > MOST_BITS:
            self._taken = None
            return
        self._taken = np.zeros((len(self._tasks), width), dtype=np.uint8)
        self._taken[: len(old), : old.shape[1]] = old

    def collected(self) -> Cells:
        """Return the cells of all rows so far."""
        count = max(self._n_actions, 1)
        table = self._cells.reshape(-1, self._width, 16)[: self._m, :count]
        taken = None if self._taken is None else self._taken[: self._n_tasks, : (count + 7) // 8]
        return Cells(table, self._tasks[: self._n_tasks], self._actions[:count], taken)

    def append(
        self, later: "CellSums", task_of: Codes, action_of: Codes, *, tasks: int, actions: int
    ) -> None:
        """Add a later part of the log, whose task and action k are ``task_of[k]`` and ``action_of[k]`` in this one."""
        self._grow(tasks, actions)
        other = later.collected()
        old = self._tasks[task_of]
        in_both = np.flatnonzero(task_of < self._m)
        in_both = in_both[in_both < len(other.cells)]
        table = self._cells[: self._m * self._width].reshape(self._m, self._width, 16)
        for start in range(0, in_both.size, _APPENDED):
            some = in_both[start : start + _APPENDED]
            index = np.ix_(task_of[some], action_of)
            table[index] = _append_cells(table[index], old[some, TASK_ROWS], other.cells[some])
        self._tasks[task_of] = _append_tasks(old, other.tasks, action_of)
        np.add.at(self._actions, action_of, other.actions[: action_of.size])
        self._append_bits(other, task_of, action_of)

    def _append_bits(self, other: Cells, task_of: Codes, action_of: Codes) -> None:
        if self._taken is None or other.taken is None:
            self._taken = None
            return
        bits = np.unpackbits(other.taken, axis=1, bitorder="little")[:, : action_of.size]
        task, action = np.nonzero(bits)
        np.bitwise_or.at(
            self._taken,
            (task_of[task], action_of[action] >> 3),
            (1 << (action_of[action] & 7)).astype(np.uint8),
        )


def _append_cells(first: Array, rows: Array, second: Array) -> Array:
    """Return the cells of two parts of a log, the second (m, K, 16) after ``rows`` (m,) rows of its tasks."""
    cells = first + second
    n, before, task = second[:, :, ROWS], first[:, :, ROWS], rows[:, None]
    pairs = n * (n - 1.0) / 2.0
    cells[:, :, SUM_I] += before * second[:, :, SUM]
    cells[:, :, SUM_J] += task * second[:, :, SUM]
    cells[:, :, J] += task * n
    cells[:, :, JJ] += 2.0 * task * second[:, :, J] + task**2 * n
    cells[:, :, IJ] += before * second[:, :, J] + task * pairs + before * task * n
    low = np.where(first[:, :, LOGGED] > 0, first[:, :, LOW], np.inf)
    low = np.minimum(low, np.where(second[:, :, LOGGED] > 0, second[:, :, LOW], np.inf))
    cells[:, :, LOW] = np.where(np.isfinite(low), low, 0.0)
    cells[:, :, HIGH] = np.maximum(first[:, :, HIGH], second[:, :, HIGH])
    return cells


def _append_tasks(earlier: Array, later: Array, action_of: Codes) -> Array:
    tasks, (had_rows, has_rows) = earlier + later, (part[:, TASK_ROWS] > 0 for part in (earlier, later))
    both = had_rows & has_rows
    first = action_of[later[:, FIRST].astype(np.int64)]
    tasks[:, FIRST] = np.where(had_rows, earlier[:, FIRST], first)
    tasks[:, SEVERAL] = (
        (earlier[:, SEVERAL] > 0) | (later[:, SEVERAL] > 0) | (both & (earlier[:, FIRST] != first))
    )
    return tasks
