"""Statistics of a log for the rules of the doctor, accumulated in one pass."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array, Codes
from hieropo.doctor.statistics.alike_rows import AlikeRows, RowSample
from hieropo.doctor.statistics.column_summaries import MOST, Extremes, Numbers, RepeatCounts, Repeats
from hieropo.doctor.statistics.times import Timeline, Times
from hieropo.errors import LogError
from hieropo.logging_policy.cells import MOST_CELLS, Cells, CellSums
from hieropo.logging_policy.logged_propensities import TINY
from hieropo.logs.arrow.log_source import LogSource, place_of
from hieropo.logs.bad_rows.lenient import LenientReader
from hieropo.logs.bad_rows.rejects import Reason
from hieropo.logs.bad_rows.row_hashes import hashes_of_ids, ordered_numbers, row_hashes
from hieropo.model.task_levels import TaskLevels
from hieropo.moments.accumulation import Accumulator
from hieropo.moments.statistics import Moments
from hieropo.rows.batches import Batch, Roles
from hieropo.rows.coded import CodedRows
from hieropo.rows.ids import Ids
from hieropo.rows.keys import GrowingKeys, Keys

_COPIES = 1_000.0  # largest mean number of copies of a row
_WIDE = 64  # context columns up to which sums are kept per action


@dataclass(frozen=True, slots=True, eq=False)
class LogStatistics:
    """Statistics of a log from one pass, which the rules read.

    Attributes
    ----------
    name : str
        Name of the source.
    roles : Roles
    all_rows, looked_at : int
        Rows of the log, and rows that were examined.
    rows, usable : int
        Examined rows, and those whose task, action and reward can be used, by their weights.
    tasks, actions : Keys
        Ids in the order of their codes; no actions without a column of actions.
    cells : Cells
    numbers : dict
        Summary of each numeric column, by name, over the values that its role can take.
    extremes : Extremes
        Extremes of the rewards of all rows, including rows that were not examined.
    faults : tuple of Reason
        Values that a role cannot take, one for each column and reason.
    timeline : Timeline or None
    time_kind : Arrow type or None
    repeats : RepeatCounts
        Repeats of rows in the columns ``hashed``.
    hashed : tuple of str
    contexts : Moments or None
        Moments of z = (1, x - origin, r), by the code of the action; None without context columns.
    origin : (c,) array
    misplaced : LogError or None
        Error that says why levels or metadata cannot be used.
    mean_reward : float
        Mean of the usable rewards, by weights and sampling weights; NaN without any.
    task_note : str or None
        Reason of the source why the column of tasks is text.
    alike : tuple of AlikeRows
        Correlation of the rewards of rows that a column without a role, or their order, joins.
    source : LogSource or None
        The log, for the places of rows; None where these are not known.
    """

    name: str
    roles: Roles
    all_rows: int
    looked_at: int
    rows: int
    usable: int
    tasks: Keys
    actions: Keys
    cells: Cells
    numbers: dict[str, Numbers]
    extremes: Extremes
    faults: tuple[Reason, ...]
    timeline: Timeline | None
    time_kind: Any
    repeats: RepeatCounts
    hashed: tuple[str, ...]
    contexts: Moments | None
    origin: Array
    misplaced: LogError | None
    mean_reward: float
    task_note: str | None = None
    alike: tuple[AlikeRows, ...] = ()
    source: LogSource | None = None

    def place_of(self, row: int) -> str:
        """Return where a row is found, such as "line 3 of 'log.csv'"."""
        return f"row {row}" if self.source is None else place_of(self.source, row)

    @property
    def contexts_per_action(self) -> bool:
        """Return True where sums of contexts are kept per action."""
        return len(self.roles.context) <= _WIDE

    @property
    def sampled(self) -> bool:
        """Return True where rows are a random sample of a larger log, with sampling weights."""
        return self.roles.sampling_weight is not None

    @property
    def reward(self) -> Numbers:
        """Summary of the reward."""
        return self.numbers[self.roles.reward]


class _Copies:
    """Turn weights into whole numbers of copies, batch by batch; after each row the total follows the sum of weights.

    A row whose weight cannot be used counts once. Where the mean weight of the first batch exceeds 1,000, all weights
    are divided by a thousandth of it.
    """

    def __init__(self) -> None:
        self._unit, self._begun = 1.0, 0.0

    def of(self, weight: Array) -> Codes:
        """Return the copies (n,) of rows of these weights."""
        usable = np.where(np.isfinite(weight) & (weight >= 0), weight, 1.0)
        if not self._begun:
            self._unit = max(1.0, float(usable.mean()) / _COPIES)
        running_total = self._begun + np.cumsum(usable / self._unit)
        ends = np.floor(running_total + 1e-9)
        copies = np.diff(ends, prepend=np.floor(self._begun + 1e-9)).astype(np.int64)
        self._begun = float(running_total[-1])
        return copies


class Collector:
    """Accumulate the statistics of a log batch by batch; :meth:`collected` returns them.

    It reads record batches by :meth:`add`, or takes rows that a pass has checked by :meth:`add_rows`.

    Parameters
    ----------
    name : str
        Name of the source.
    roles : Roles
    hashed : sequence of str
        Columns that repeated rows agree in.
    time_kind : Arrow type, optional
        Type of the column of times.
    choices_only : bool
        Ignore contexts, levels and metadata, so that collectors of the parts of a log can be combined.
    most, distinct : int
        Largest numbers of cells and of distinct rows that are kept.
    unnamed : sequence of str
        Columns of ids without a role, one of which may name rows that share a cause.
    """

    def __init__(  # noqa: PLR0913 - one parameter for each setting
        self,
        name: str,
        roles: Roles,
        hashed: tuple[str, ...],
        *,
        time_kind: Any = None,
        choices_only: bool = False,
        most: int = MOST_CELLS,
        distinct: int = MOST,
        task_note: str | None = None,
        unnamed: tuple[str, ...] = (),
    ) -> None:
        self._task_note, self._sample = task_note, RowSample(unnamed)
        self._name, self._roles, self._hashed = name, roles, hashed
        self._looker, self._time_kind = LenientReader(roles), time_kind
        self._looked_at, self._rows, self._usable = 0, 0, 0
        self._copies = _Copies()
        self._all = not choices_only
        self._cells, self._times, self._repeats = CellSums(most), Times(), Repeats(distinct)
        self._numbers: dict[str, Numbers] = {}
        self._extremes = Extremes()
        self._faults: dict[tuple[str, str], Reason] = {}
        self._contexts: Accumulator | None = None
        self._origin = np.zeros(len(roles.context))
        self._task_levels = TaskLevels(roles)
        self._misplaced: LogError | None = None
        self._stand_for, self._total = 0.0, 0.0

    @property
    def tasks(self) -> GrowingKeys:
        """The index of the tasks, or of their numbers where the rows came numbered."""
        return self._looker.tasks

    @property
    def actions(self) -> GrowingKeys:
        """The index of the actions, as that of the tasks."""
        return self._looker.actions

    def add(self, batch: Any) -> None:
        """Add the next rows, an Arrow record batch."""
        if batch.num_rows:
            rows, faults = self._looker.read(batch, self._looked_at)
            for fault in faults:
                self._fault(fault)
            self._add(rows, batch)

    def add_rows(self, rows: CodedRows, records: Any) -> None:
        """Add the next rows, checked, with tasks and actions numbered; ``records`` are they as Arrow's."""
        task = self.tasks.rows_of_ids(rows.task)
        action = None if rows.action is None else self.actions.rows_of_ids(rows.action)
        self._add(replace(rows, task=task, action=action), records)

    def _add(self, rows: CodedRows, records: Any) -> None:
        roles = self._roles
        self._looked_at += rows.rows
        if self._hashed:
            self._repeats.add(row_hashes(records, list(self._hashed)))
        self._add_extremes(rows)
        if self._all and self._sample.wants and roles.cluster is None:
            self._add_sample(rows, records)
        if roles.weight is not None:
            rows = rows.repeated(self._copies.of(rows.numbers[roles.weight]))
        self._rows += rows.rows
        for column, values in rows.numbers.items():
            self._numbers.setdefault(column, Numbers()).add(values)
        self._add_choices(rows)
        if self._all and (roles.levels or roles.metadata) and self._misplaced is None:
            self._place(rows)

    def _add_extremes(self, look: CodedRows) -> None:
        """Add rewards and their row numbers, each row once whatever its weight."""
        roles, reward = self._roles, look.numbers[self._roles.reward]
        weight = 1.0 if roles.weight is None else look.numbers[roles.weight]
        self._extremes.add(np.where(_usable(look, reward) & (weight != 0.0), reward, np.nan), look.first_row)

    def _add_sample(self, rows: CodedRows, records: Any) -> None:
        """Add rows, each once whatever its weight, to those in which rows that share a cause are looked for."""
        action = np.zeros(rows.rows, dtype=np.int64) if rows.action is None else rows.action
        context = [rows.numbers[column] for column in self._roles.context[:_WIDE]]
        hashes, numbers = {}, {}
        for column in self._sample.columns:
            values = records.column(column)
            hashes[column] = hashes_of_ids(values)
            if (ordered := ordered_numbers(values)) is not None:
                numbers[column] = ordered
        self._sample.add(
            rows.task, action, rows.numbers[self._roles.reward],
            np.column_stack(context) if context else np.zeros((rows.rows, 0)), hashes, numbers,
        )  # fmt: skip

    def _add_choices(self, look: CodedRows) -> None:
        """Add tasks, actions, rewards, propensities and times."""
        roles, reward = self._roles, look.numbers[self._roles.reward]
        code = np.zeros(look.rows, dtype=np.int64) if look.action is None else look.action
        usable = _usable(look, reward)
        self._usable += int(np.count_nonzero(usable))
        sampling_weight = (
            np.ones(look.rows) if roles.sampling_weight is None else look.numbers[roles.sampling_weight]
        )
        counted = usable & ~np.isnan(sampling_weight)
        self._stand_for += float(sampling_weight[counted].sum())
        self._total += float(sampling_weight[counted] @ reward[counted])
        place = np.where(usable, look.task, -1)
        tasks, actions = len(self.tasks), max(len(self.actions), 1)
        pscore = None if roles.pscore is None else look.numbers[roles.pscore]
        if pscore is not None:
            pscore = np.where(pscore >= TINY, pscore, np.nan)
        share = None
        if look.eligible is not None:
            share = np.divide(1.0, look.eligible, out=np.zeros(look.rows), where=look.eligible > 0)
        self._cells.add(place, code, reward, tasks=tasks, actions=actions, pscore=pscore, share=share)
        if look.time is not None:
            self._times.add(look.time, place, reward, tasks)
        if roles.context and self._all:
            self._add_contexts(look, code, reward, usable)

    def add_extremes(self, reward: Array, first_row: int | Codes) -> None:
        """Add the extremes of the rewards (n,) of rows that are not examined otherwise."""
        self._extremes.add(reward, first_row, counted=False)

    def append(self, later: "Collector", task_ids: Ids, action_ids: Ids) -> None:
        """Add the statistics of the rows that follow, of these tasks and actions; both have ``choices_only``."""
        place, code = _rows(self.tasks, task_ids), _rows(self.actions, action_ids)
        tasks, actions = len(self.tasks), max(len(self.actions), 1)
        if self._roles.action is None:
            code = np.zeros(1, dtype=np.int64)
        self._looked_at += later._looked_at
        self._stand_for, self._total = self._stand_for + later._stand_for, self._total + later._total
        self._rows, self._usable = self._rows + later._rows, self._usable + later._usable
        self._cells.append(later._cells, place, code, tasks=tasks, actions=actions)
        self._times.append(later._times, place, tasks)
        self._repeats.update(later._repeats)
        for fault in later._faults.values():
            self._fault(fault)
        for column, numbers in later._numbers.items():
            self._numbers.setdefault(column, Numbers()).update(numbers)
        self._extremes.update(later._extremes)

    def _fault(self, fault: Reason) -> None:
        key = fault.column, fault.reason
        before = self._faults.get(key)
        self._faults[key] = fault if before is None else before + fault

    def _add_contexts(self, look: CodedRows, code: Codes, reward: Array, usable: NDArray[np.bool_]) -> None:
        table = np.column_stack([look.numbers[column] for column in self._roles.context])
        usable = usable & ~np.isnan(table).any(axis=1)
        if not usable.any():
            return
        table = table[usable]
        if self._contexts is None:
            self._contexts = Accumulator(1 + table.shape[1])
            self._origin = table.mean(axis=0)
        group = code[usable] if table.shape[1] <= _WIDE else np.zeros(len(table), dtype=np.int64)
        phi = np.column_stack([np.ones(len(table)), table - self._origin])
        self._contexts.add(group, phi, reward[usable])

    def _place(self, look: CodedRows) -> None:
        """Record the first task whose groups or metadata change from row to row."""
        roles, ids = self._roles, [places.keys().values for places in self._looker.levels]
        usable = look.task >= 0
        for column in roles.metadata:
            usable &= ~np.isnan(look.numbers[column])
        for codes in look.levels:
            usable &= codes >= 0
        if not usable.any():
            return
        metadata = [look.numbers[column][usable] for column in roles.metadata]
        batch = Batch(
            self.tasks.keys().values[look.task[usable]],
            None,
            np.zeros(int(usable.sum())),
            None,  # type: ignore[arg-type]  # no context is needed
            first_row=look.first_row,  # type: ignore[arg-type]  # a reader's rows follow each other
            roles=Roles(roles.task, None, roles.reward, levels=roles.levels, metadata=roles.metadata),
            levels=tuple(level_ids[codes[usable]] for level_ids, codes in zip(ids, look.levels, strict=True)),
            metadata=np.column_stack(metadata) if metadata else None,
        )
        try:
            self._task_levels.add(batch)
        except LogError as error:
            self._misplaced = error

    def collected(self) -> LogStatistics:
        """Return the statistics of all rows so far."""
        tasks, actions = self.tasks.keys(), self.actions.keys()
        contexts = None if self._contexts is None else self._contexts.moments()
        return LogStatistics(
            self._name, self._roles, self._looked_at, self._looked_at, self._rows, self._usable, tasks, actions,
            self._cells.collected(), self._numbers, self._extremes, tuple(self._faults.values()),
            self._times.timeline(), self._time_kind, self._repeats.counts(), self._hashed, contexts, self._origin,
            self._misplaced, self._total / self._stand_for if self._stand_for else np.nan, self._task_note,
            self._sample.alike(),
        )  # fmt: skip


def _rows(index: GrowingKeys, ids: Ids) -> Codes:
    """Return the row of each id (n,); no ids leave the type of the index as it is."""
    return index.rows_of_ids(ids) if ids.size else np.zeros(0, dtype=np.int64)


def _usable(look: CodedRows, reward: Array) -> NDArray[np.bool_]:
    """Return a mask (n,) of the rows whose task, action and reward can be used."""
    known = look.task >= 0
    return np.asarray((known if look.action is None else known & (look.action >= 0)) & ~np.isnan(reward))
