"""Periods of a log: times of its rows in the pass, and one more read for the sums of units by period."""

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.packed import packed_size
from hieropo.features.maps import FeatureMap
from hieropo.logs.arrow.arrays import times
from hieropo.logs.arrow.log_source import Part
from hieropo.logs.bad_rows.rejects import Rejects
from hieropo.logs.reading import read_again
from hieropo.moments.periods import PeriodSums, in_order
from hieropo.moments.statistics import Moments, add_rows
from hieropo.moments.units import one_action
from hieropo.passes.checked_rows import CheckedRows, as_floats
from hieropo.rows.batches import Roles
from hieropo.rows.ids import Ids

MOST, _WIDE = 12, 8  # periods; of more than four columns
_LEAST = 4  # periods that show a walk
_ROOM = 2**25  # doubles of the sums of all periods
_SAMPLE = 2**15  # times of a part that are kept


class TimesOfRows:
    """A reducer of the pass: a sample of the times of all rows, for periods of about equal rows.

    Parameters
    ----------
    column : str or None
        That of times; without one the sample is empty.
    """

    def __init__(self, column: str | None) -> None:
        self.column = column
        self.rows: int = 0
        self._samples: list[tuple[Array, int]] = []
        self._lock = Lock()

    def begin(self, parts: Sequence[Part]) -> None:
        """Prepare for a log."""

    def part(self, number: int) -> "_TimesOfPart":  # noqa: ARG002 - of the interface of reducers
        """Return the times of a part in the making."""
        return _TimesOfPart(self)

    def done(self, sample: Array, step: int, rows: int) -> None:
        """Add every ``step``-th time of a part."""
        with self._lock:
            self.rows += rows
            self._samples.append((sample, step))

    def edges(self, most: int) -> Array:
        """Return the times (T - 1,) between at most ``most`` periods; none where all rows have one time."""
        values = np.concatenate([sample for sample, _ in self._samples])
        weight = np.concatenate([np.full(sample.size, float(step)) for sample, step in self._samples])
        order = np.argsort(values, kind="stable")
        share = np.cumsum(weight[order]) / weight.sum()
        places = np.searchsorted(share, np.arange(1, most) / most)
        edges = np.unique(values[order[np.minimum(places, order.size - 1)]])
        return np.asarray(edges[edges > values[order[0]]])


class _TimesOfPart:
    """Every k-th time of a part; k doubles when there are many."""

    def __init__(self, whole: TimesOfRows) -> None:
        self._whole, self._step, self._rows = whole, 1, 0
        self._kept: list[Array] = []

    def add(self, rows: CheckedRows) -> None:
        """Add the next rows of the part."""
        if self._whole.column is None:
            return
        if rows.batch is not None:
            time = rows.batch.time
        else:
            time = times(rows.records.column(self._whole.column), self._whole.column, 0)
        assert time is not None
        self._kept.append(as_floats(time)[-self._rows % self._step :: self._step])
        self._rows += len(rows)
        while sum(map(len, self._kept)) > _SAMPLE:
            self._kept = [np.concatenate(self._kept)[::2]]
            self._step *= 2

    def finish(self, task_ids: Callable[[Codes], Ids], action_ids: Callable[[Codes], Ids]) -> None:  # noqa: ARG002
        """Hand the sample over."""
        if self._kept:
            self._whole.done(np.concatenate(self._kept), self._step, self._rows)


def period_sums(
    source: Any,
    roles: Roles,
    features: FeatureMap,
    sample: TimesOfRows,
    moments: Moments,
    rejects: Rejects | None = None,
) -> PeriodSums | None:
    """Return the sums of the units of a log by period; None where it has too few times, or too many units.

    Parameters
    ----------
    source : LogSource
        It must be possible to read it again.
    roles : Roles
        With a column of times.
    features : FeatureMap
        Of the moments, with all of their actions.
    sample : TimesOfRows
        Of the rows of the log.
    moments : Moments
        Of the same rows, per action.
    rejects : Rejects, optional
        Where rows that cannot be used are set aside.
    """
    unit_map = one_action(features)
    assert unit_map is not None
    p, K, m = moments.unit_dim, moments.n_actions, len(moments)
    size = packed_size(p + 2)
    most = min(MOST if p <= 4 else _WIDE, _ROOM // max(m * K * size, 1))
    if most < _LEAST:
        return None
    edges = sample.edges(most)
    T = edges.size + 1
    if T < _LEAST:
        return None
    sums, of_periods, end, time_unit = np.zeros((m * K * T, size)), np.zeros((2, T)), -np.inf, ""
    for batch in read_again(source, roles, rejects):
        assert batch.time is not None
        codes = features.action_codes(batch.action, first_row=batch.first_row)
        unit = moments.keys.require(batch.task) * K + codes
        time, counts = as_floats(batch.time), batch.weights.counts(len(batch))
        period = np.searchsorted(edges, time, side="right")
        phi = unit_map.phi(batch.context, np.zeros(len(batch), dtype=np.int64))
        reward = batch.reward if moments.unit_offset is None else batch.reward - phi @ moments.unit_offset
        add_rows(
            unit * T + period, np.ascontiguousarray(phi), reward, batch.weights.factors(), sums,
            expected=int(moments.n_rows),
        )  # fmt: skip
        of_periods += [np.bincount(period, counts, T), np.bincount(period, counts * time, T)]
        end = max(end, float(time.max()))
        time_unit = np.datetime_data(batch.time.dtype)[0] if batch.time.dtype.kind == "M" else ""
    present = of_periods[0] > 0
    times_of = of_periods[1, present] / of_periods[0, present]
    all_sums = sums.reshape(m, K, T, size)
    return PeriodSums(
        all_sums if present.all() else all_sums[:, :, present], in_order(times_of, end), end, p, time_unit
    )
