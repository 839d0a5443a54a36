"""The rows of a log that change an answer most, each with the answer without it, from one pass over the log."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.ties import ordered
from hieropo.errors import MismatchError
from hieropo.features.maps import FeatureMap
from hieropo.features.per_action import Crossed
from hieropo.logs.bad_rows.rejects import Rejects
from hieropo.logs.encoding import opened_requests
from hieropo.logs.reading import read
from hieropo.model.crossed.task_noise import row_precision
from hieropo.model.protocol import TaskPosterior
from hieropo.model.single_rows import LoggedRows, RowChanges, without_single_rows
from hieropo.moments.units import one_action
from hieropo.passes.clusters import cluster_table
from hieropo.rows.batches import Batch, Roles
from hieropo.rows.ids import plain

_NUMBERS = 2**25  # that the tables of tasks may take
_PIECE = 2**16  # rows worked on at once
_CLOSE = 1e-6  # relative difference between sums of the rows and of the moments


class LogOfFit(NamedTuple):
    """The log that a policy was learned from.

    Parameters
    ----------
    source : anything that ``open_log`` takes
        All rows of the fit.
    roles : Roles
    rejects : Rejects, optional
        Collects the rows that cannot be used.
    correlation : (K,) or (1,) array, optional
        Correlation of the rewards of a cluster, of each action or of all rows, as the policy was learned with it.
    """

    source: Any
    roles: Roles
    rejects: Rejects | None = None
    correlation: Array | None = None


class RowsWithout(NamedTuple):
    """The most influential rows of a log, and the answers without them.

    Attributes
    ----------
    number : (n,) int
        Numbers of the rows in the log, from 0.
    rows : LoggedRows
    change : (n,) array
        Change of the asked mean without each row; NaN where the other rows leave it open.
    means : (n, J) array
        Expected rewards of the J actions without each row.
    covs : (n, J, J) array
    n_rows : int
        Rows of the log.
    n_tasks : int
        Tasks whose rows were compared: all of them, or as many as memory allows, those that change the mean most.
    """

    number: Codes
    rows: LoggedRows
    change: Array
    means: Array
    covs: Array
    n_rows: int
    n_tasks: int


def most_influential_rows(
    posterior: TaskPosterior,
    features: FeatureMap,
    row: int,
    vector: Array,
    phi: Array,
    changes: Array,
    log: LogOfFit,
    *,
    n: int,
) -> RowsWithout:
    """Return the n rows without which v' theta-hat_s changes most.

    Parameters
    ----------
    posterior : TaskPosterior
    features : FeatureMap
        That the posterior was learned with.
    row : int
        Row of the task s in the moments.
    vector : (d,) array
        v, such as phi of the choice less that of the rival.
    phi : (J, d) array
        Features of the actions whose expected rewards are given without each row.
    changes : (m,) array
        Change of v' theta-hat_s without each task, to first order.
    log : LogOfFit
    n : int

    Raises
    ------
    MismatchError
        The rows are not those that the posterior was learned from.
    SchemaError, LogError, UnknownActionError
        A column or a row cannot be used.
    """
    correlated = log.correlation is not None and bool(log.correlation.any())
    # without sums per action, rows of one cluster and two actions are correlated
    action_map = None if correlated and not posterior.moments.per_action else one_action(features)
    tasks = _tasks(posterior, changes, _NUMBERS // RowChanges.doubles(posterior, action_map))
    table = RowChanges.of(posterior, row, vector, tasks, action_map)
    sums, best, n_rows = _Sums(len(changes)), _Best(n), 0
    for number, rows, counts in _pieces(posterior, features, log, action_map, correlated=correlated):
        sums.count(rows.task, counts)
        n_rows += len(number)
        held = np.flatnonzero(np.isin(rows.task, tasks))
        exact, first_order = table.without(rows.at(held))
        sums.add(rows.task[held], first_order)
        best.add(number[held], rows.at(held), exact)
    sums.check(posterior, changes, tasks)
    means, covs = without_single_rows(posterior, row, phi, best.rows, action_map)
    return RowsWithout(best.number, best.rows, best.change, means, covs, n_rows, tasks.size)


def _tasks(posterior: TaskPosterior, changes: Array, most: int) -> Codes:
    """Return the tasks with rows, or at most so many of them, those that change the mean most."""
    counts = posterior.moments.rows.reshape(len(posterior.moments), -1).sum(axis=1)
    tasks = np.flatnonzero(counts > 0)
    if tasks.size > max(most, 1):
        tasks = np.sort(tasks[ordered(-np.abs(changes[tasks]))[: max(most, 1)]])
    return tasks


def _pieces(
    posterior: TaskPosterior,
    features: FeatureMap,
    log: LogOfFit,
    action_map: Crossed | None,
    *,
    correlated: bool,
) -> Iterator[tuple[Codes, LoggedRows, Array]]:
    """Yield numbers, values and counts of some rows of the log; rows of weight 0 are left out.

    Where rewards of clusters are correlated, the log is read once before, for the sums of clusters.
    """
    rejects = log.rejects
    source = opened_requests(log.source, features, rereadable=correlated, lenient=rejects is not None)
    roles = replace(log.roles, pscore=None, levels=(), metadata=(), time=None, eligible=None)
    keys = posterior.moments.keys
    clusters = None
    if correlated:
        clusters = cluster_table(source, roles, features, posterior.moments, rejects).around(None)
    for batch in read(source, roles, rejects=rejects, may_set_aside=True):
        codes = (
            None
            if features.actions is None
            else features.action_codes(batch.action, first_row=batch.first_row)
        )
        task = np.asarray(keys.locate(batch.task))
        _refuse_unknown(task, batch)
        factors = batch.weights.factors()
        counts = batch.weights.counts(len(batch))
        precision = factors if factors.size else counts
        number = batch.first_row + np.arange(len(batch)) if batch.rows is None else batch.rows
        for start in range(0, len(batch), _PIECE):
            part = slice(start, start + _PIECE)
            x, zeros = batch.context[part], np.zeros(len(number[part]), dtype=np.int64)
            some = None if codes is None else codes[part]
            phi = features.phi(x, some) if action_map is None else action_map.phi(x, zeros)
            action = zeros if some is None else some
            rows = LoggedRows(task[part], action, phi, batch.reward[part], precision[part], phi)
            if clusters is not None:
                assert batch.cluster is not None
                assert log.correlation is not None
                block = action if log.correlation.size > 1 else zeros
                sums = clusters.of_rows(batch.task[part], block, batch.cluster[part])
                rows = rows.given_clusters(sums, log.correlation[block])
            rows = rows._replace(precision=np.asarray(row_precision(posterior, rows.task, rows.precision)))
            used = np.flatnonzero(rows.precision)
            yield number[part][used], rows.at(used), counts[part][used]


def _refuse_unknown(task: Codes, batch: Batch) -> None:
    unknown = np.flatnonzero(task < 0)
    if unknown.size:
        row = int(unknown[0])
        raise MismatchError(
            f"Row {batch.number(row)} of this log is of task {plain(batch.task[row])!r}, of which the policy was "
            "learned from no row. A row can only be left out of the log that the policy was learned from. Give that "
            "log, all of it."
        )


class _Sums:
    """Sums of the rows of each task, which show whether the posterior was learned from these rows."""

    def __init__(self, m: int) -> None:
        self._rows, self._change, self._size = np.zeros((3, m))

    def count(self, task: Codes, counts: Array) -> None:
        """Count rows of tasks (n,), by their weights (n,)."""
        self._rows += np.bincount(task, counts, self._rows.size)

    def add(self, task: Codes, change: Array) -> None:
        """Add first-order changes (n,) of rows of tasks (n,)."""
        self._change += np.bincount(task, change, self._change.size)
        self._size += np.bincount(task, np.abs(change), self._change.size)

    def check(self, posterior: TaskPosterior, changes: Array, tasks: Codes) -> None:
        """Raise a MismatchError where the sums are not those of the moments."""
        moments = posterior.moments
        want = moments.rows.reshape(len(moments), -1).sum(axis=1)
        missing = np.abs(self._rows - want) > _CLOSE * want
        other = missing.copy()
        gap = np.abs(self._change[tasks] - changes[tasks])
        other[tasks] |= gap > _CLOSE * np.maximum(self._size[tasks], np.abs(changes[tasks]))
        if other.any():
            task = int(other.argmax())
            difference = (
                f"the log has {self._rows[task]:,.6g} and the policy was learned from {want[task]:,.6g}"
                if missing[task]
                else "they have other values"
            )
            raise MismatchError(
                f"The rows of task {plain(moments.keys.id_of(task))!r} in this log are not those of the fit: "
                f"{difference}. A row can only be left out of the log that the policy was learned from. Give that "
                "log, all of it."
            )


class _Best:
    """The n rows with the largest changes so far; a row without which the answer is open comes first."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._values: tuple[Codes, LoggedRows, Array] | None = None

    def add(self, number: Codes, rows: LoggedRows, change: Array) -> None:
        """Add rows, and keep the n first."""
        if self._values is not None:
            before = self._values
            number, change = np.concatenate([before[0], number]), np.concatenate([before[2], change])
            rows = before[1].and_also(rows)
        kept = ordered(-np.abs(np.where(np.isnan(change), np.inf, change)))[: self._n]
        self._values = number[kept], rows.at(kept), change[kept]

    @property
    def number(self) -> Codes:
        """Numbers of the rows."""
        return self._kept[0]

    @property
    def rows(self) -> LoggedRows:
        """The rows."""
        return self._kept[1]

    @property
    def change(self) -> Array:
        """Their changes."""
        return self._kept[2]

    @property
    def _kept(self) -> tuple[Codes, LoggedRows, Array]:
        assert self._values is not None  # a log has rows
        return self._values
