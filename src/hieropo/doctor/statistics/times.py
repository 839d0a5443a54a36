"""Rows over time: whether they are in order, where there are none, and whether rewards move.

Times are counted in bins of a width that is a power of two, doubled until all fit: so the bins of two parts of a log
fit each other, and the result does not depend on the order of rows.
"""

from dataclasses import dataclass
from math import ceil, floor, log2

import numpy as np

from hieropo._kernels import backend
from hieropo._utils.arrays import Array, Codes, normalised

BINS = 512
_LEAST = -40  # log2 of the smallest width
_BACK, _SAME = (
    0.01,
    0.1,
)  # shares of steps within tasks that go back in time, or nowhere, from which on order is not time


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Times of a log, as they were collected.

    Attributes
    ----------
    first, width : float
        Where the first bin begins, and the width of each; in the unit of the column.
    sums : (b, 3) array
        Rows, sum and sum of squares of the reward in each bin.
    low, high : float
        Range of the times.
    steps, back : int
        Rows after the first, and how many of them are earlier than the row before.
    steps_in_task, back_in_task, same_in_task : int
        Rows after the first of their task, and how many of them are earlier than the task's row before, or of its time.
    """

    first: float
    width: float
    sums: Array
    low: float
    high: float
    steps: int
    back: int
    steps_in_task: int
    back_in_task: int
    same_in_task: int

    def disorder(self) -> str | None:
        """Say why the order of rows within tasks is not told to be that of time; None where it is."""
        if self.low == self.high:
            return "all rows have one time"
        if self.back_in_task > _BACK * self.steps_in_task:
            return "rows are not in the order of time"
        if self.same_in_task > _SAME * self.steps_in_task:
            return "many rows have the time of the row before them of the same task"
        return None

    def longest_gap(self) -> tuple[float, float]:
        """Begin and end of the longest run of bins without rows; equal where there is none."""
        some = np.flatnonzero(self.sums[:, 0])
        if some.size < 2:
            return self.first, self.first
        k = int(np.diff(some).argmax())
        return self.first + (some[k] + 1) * self.width, self.first + some[k + 1] * self.width

    def fifths(self) -> Array:
        """Rows, sums and squares of about five equal parts of the rows in order of time, (at most 5, 3)."""
        ends = np.cumsum(self.sums[:, 0])
        part = np.minimum((ends - self.sums[:, 0] / 2.0) * 5.0 / max(ends[-1], 1.0), 4.0).astype(np.int64)
        found = np.stack([np.bincount(part, self.sums[:, k], 5) for k in range(3)], axis=1)
        return np.asarray(found[found[:, 0] > 0])


class Times:
    """A timeline in the making; parts of a log add in the order of their rows."""

    def __init__(self) -> None:
        self._log_width: int | None = None
        self._start, self._sums = 0, np.zeros((0, 3))
        self._low, self._high = np.inf, -np.inf
        self._first, self._last = np.array([np.nan]), np.array([np.nan])
        self._counts = np.zeros(4, dtype=np.int64)
        self._rows = 0

    def add(self, time: Array, place: Codes, reward: Array, tasks: int) -> None:
        """Add rows (n,) in their order: times, NaN where missing; places of tasks and rewards, NaN where unusable."""
        self._grow(tasks)
        loops = backend.cells(time.size)
        loops.follow(normalised(place), normalised(time), self._first, self._last, self._counts)
        some = np.isfinite(time)
        if not some.any():
            return
        self._rows += int(np.count_nonzero(some))
        self._reach(float(time[some].min()), float(time[some].max()))
        assert self._log_width is not None
        at = np.full(time.size, -1, dtype=np.int64)
        at[some] = np.floor(np.ldexp(time[some], -self._log_width)).astype(np.int64) - self._start
        at[~np.isfinite(reward)] = -1
        loops.add_squares(at, normalised(reward), self._sums)

    def _grow(self, tasks: int) -> None:
        if tasks >= self._last.size:
            size = max(tasks + 1, 2 * self._last.size)
            self._first, self._last = _wider(self._first, size), _wider(self._last, size)

    def append(self, later: "Times", place: Codes, tasks: int) -> None:
        """Add a later part of the log, whose task number k is ``place[k]`` here."""
        self._grow(tasks)
        at = np.append(place, self._last.size - 1)
        later._grow(place.size)
        own = np.append(np.arange(place.size), later._last.size - 1)
        first, last = later._first[own], later._last[own]
        before = self._last[at]
        steps = first < before, first == before, ~(np.isnan(first) | np.isnan(before))
        self._counts += later._counts
        self._counts += [int(steps[0][-1]), *(int(each[:-1].sum()) for each in steps)]
        self._first[at] = np.where(np.isnan(self._first[at]), first, self._first[at])
        self._last[at] = np.where(np.isnan(last), self._last[at], last)
        if later._log_width is None:
            return
        self._rows += later._rows
        self._reach(later._low, later._high)
        assert self._log_width is not None
        bins = (np.arange(len(later._sums)) + later._start) >> (self._log_width - later._log_width)
        np.add.at(self._sums, bins - self._start, later._sums)

    def _reach(self, low: float, high: float) -> None:
        low, high = min(self._low, low), max(self._high, high)
        if low == self._low and high == self._high:
            return
        need = _LEAST if high == low else max(ceil(log2((high - low) / (BINS - 2))), _LEAST)
        size = max(abs(low), abs(high), 1e-300)
        need = max(need, ceil(log2(size)) - 50)  # bins are whole numbers that a float holds
        self._widen(need, floor(np.ldexp(low, -need)), floor(np.ldexp(high, -need)))
        self._low, self._high = low, high

    def _widen(self, log_width: int, start: int, end: int) -> None:
        """Give the bins this width, from number ``start`` to ``end``."""
        sums = np.zeros((end - start + 1, 3))
        if self._log_width is not None and len(self._sums):
            old = (np.arange(len(self._sums)) + self._start) >> (log_width - self._log_width)
            np.add.at(sums, old - start, self._sums)
        self._log_width, self._start, self._sums = log_width, start, sums

    def timeline(self) -> Timeline | None:
        """Return what there is; None without a time."""
        if self._log_width is None:
            return None
        width = float(np.ldexp(1.0, self._log_width))
        return Timeline(
            self._start * width, width, self._sums, self._low, self._high, max(self._rows - 1, 0),
            int(self._counts[0]), int(self._counts[3]), int(self._counts[1]), int(self._counts[2]),
        )  # fmt: skip


def _wider(values: Array, size: int) -> Array:
    """Times of tasks with the one of all at the end, made longer before it."""
    wide = np.full(size, np.nan)
    wide[: values.size - 1], wide[-1] = values[:-1], values[-1]
    return wide
