"""Times of rows: their order, gaps between them, and mean rewards over time.

Times are counted in bins whose width is a power of two, doubled until all fit. So the bins of two parts of a log are
compatible, and the result does not depend on the order of rows.
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
)  # largest shares of steps within tasks that go back in time, or have the same time, in an ordered log


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Times of a log: bins, range, and steps between consecutive rows.

    Attributes
    ----------
    first, width : float
        Start of the first bin and width of each bin, in the unit of the column.
    sums : (b, 3) array
        Rows, sum and sum of squares of the reward in each bin.
    low, high : float
        Range of the times.
    steps, back : int
        Steps from a row to the next, and how many of them go back in time.
    steps_in_task, back_in_task, same_in_task : int
        Steps from a row of a task to its next row, and how many go back in time, or keep the time.
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
        """Return the reason why the order of rows within tasks is not that of time; None where it is."""
        if self.low == self.high:
            return "all rows have one time"
        if self.back_in_task > _BACK * self.steps_in_task:
            return "rows are not in the order of time"
        if self.same_in_task > _SAME * self.steps_in_task:
            return "many rows have the time of the row before them of the same task"
        return None

    def longest_gap(self) -> tuple[float, float]:
        """Return begin and end of the longest run of bins without rows; equal where there is none."""
        occupied = np.flatnonzero(self.sums[:, 0])
        if occupied.size < 2:
            return self.first, self.first
        k = int(np.diff(occupied).argmax())
        return self.first + (occupied[k] + 1) * self.width, self.first + occupied[k + 1] * self.width

    def fifths(self) -> Array:
        """Return rows, sums and squares (at most 5, 3) of five about equal parts of the rows in order of time."""
        ends = np.cumsum(self.sums[:, 0])
        part = np.minimum((ends - self.sums[:, 0] / 2.0) * 5.0 / max(ends[-1], 1.0), 4.0).astype(np.int64)
        sums = np.stack([np.bincount(part, self.sums[:, k], 5) for k in range(3)], axis=1)
        return np.asarray(sums[sums[:, 0] > 0])


class Times:
    """Accumulate a timeline; parts of a log combine in the order of their rows."""

    def __init__(self) -> None:
        self._log_width: int | None = None
        self._start, self._sums = 0, np.zeros((0, 3))
        self._low, self._high = np.inf, -np.inf
        self._first, self._last = np.array([np.nan]), np.array([np.nan])
        self._counts = np.zeros(4, dtype=np.int64)
        self._rows = 0

    def add(self, time: Array, place: Codes, reward: Array, tasks: int) -> None:
        """Add rows (n,) in their order: times (NaN if missing), codes of tasks, rewards (NaN if unusable)."""
        self._grow(tasks)
        loops = backend.cells(time.size)
        loops.follow(normalised(place), normalised(time), self._first, self._last, self._counts)
        timed = np.isfinite(time)
        if not timed.any():
            return
        self._rows += int(np.count_nonzero(timed))
        self._reach(float(time[timed].min()), float(time[timed].max()))
        assert self._log_width is not None
        bins = np.full(time.size, -1, dtype=np.int64)
        bins[timed] = np.floor(np.ldexp(time[timed], -self._log_width)).astype(np.int64) - self._start
        bins[~np.isfinite(reward)] = -1
        loops.add_squares(bins, normalised(reward), self._sums)

    def _grow(self, tasks: int) -> None:
        if tasks >= self._last.size:
            size = max(tasks + 1, 2 * self._last.size)
            self._first, self._last = _wider(self._first, size), _wider(self._last, size)

    def append(self, later: "Times", place: Codes, tasks: int) -> None:
        """Add a later part of the log, whose task number k is ``place[k]`` here."""
        self._grow(tasks)
        slots = np.append(place, self._last.size - 1)
        later._grow(place.size)
        later_slots = np.append(np.arange(place.size), later._last.size - 1)
        first, last = later._first[later_slots], later._last[later_slots]
        before = self._last[slots]
        steps = first < before, first == before, ~(np.isnan(first) | np.isnan(before))
        self._counts += later._counts
        self._counts += [int(steps[0][-1]), *(int(matches[:-1].sum()) for matches in steps)]
        self._first[slots] = np.where(np.isnan(self._first[slots]), first, self._first[slots])
        self._last[slots] = np.where(np.isnan(last), self._last[slots], last)
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
        log_width = _LEAST if high == low else max(ceil(log2((high - low) / (BINS - 2))), _LEAST)
        size = max(abs(low), abs(high), 1e-300)
        log_width = max(log_width, ceil(log2(size)) - 50)  # bins are whole numbers that a float holds
        self._widen(log_width, floor(np.ldexp(low, -log_width)), floor(np.ldexp(high, -log_width)))
        self._low, self._high = low, high

    def _widen(self, log_width: int, start: int, end: int) -> None:
        """Merge the bins into bins of this width, numbered from ``start`` to ``end``."""
        sums = np.zeros((end - start + 1, 3))
        if self._log_width is not None and len(self._sums):
            old = (np.arange(len(self._sums)) + self._start) >> (log_width - self._log_width)
            np.add.at(sums, old - start, self._sums)
        self._log_width, self._start, self._sums = log_width, start, sums

    def timeline(self) -> Timeline | None:
        """Return the timeline of all rows so far; None without any time."""
        if self._log_width is None:
            return None
        width = float(np.ldexp(1.0, self._log_width))
        return Timeline(
            self._start * width, width, self._sums, self._low, self._high, max(self._rows - 1, 0),
            int(self._counts[0]), int(self._counts[3]), int(self._counts[1]), int(self._counts[2]),
        )  # fmt: skip


def _wider(values: Array, size: int) -> Array:
    """Extend times of tasks to ``size``; the last entry, that of the whole log, stays last."""
    wide = np.full(size, np.nan)
    wide[: values.size - 1], wide[-1] = values[:-1], values[-1]
    return wide
