"""The data of an examination, collected in one pass over a log."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array, Codes
from hieropo.doctor.statistics.column_summaries import MOST, Extremes, Numbers, RepeatCounts, Repeats
from hieropo.doctor.statistics.times import Timeline, Times
from hieropo.errors import LogError
from hieropo.features.maps import FeatureMap
from hieropo.logging_policy.cells import MOST_CELLS, Cells, CellSums
from hieropo.logging_policy.logged_propensities import TINY
from hieropo.logs.arrow.schema import holds_text
from hieropo.logs.bad_rows.lenient import LenientBatch, LenientReader, rewards_of
from hieropo.logs.bad_rows.rejects import Reason
from hieropo.logs.bad_rows.row_hashes import row_hashes
from hieropo.model.task_levels import TaskLevels
from hieropo.moments.accumulation import Accumulator
from hieropo.moments.statistics import Moments
from hieropo.rows.batches import Batch, Roles
from hieropo.rows.keys import Keys

_COPIES = 1_000.0  # mean number of times that a row comes at most
_WIDE = 64  # context columns up to which sums are kept for each action apart


@dataclass(frozen=True, slots=True, eq=False)
class Collected:
    """The result of one pass over a log, which the rules read.

    Attributes
    ----------
    name : str
        Of the source.
    roles : Roles
    all_rows, looked_at : int
        Rows of the log, and those that were looked at.
    rows, usable : int
        Rows that were looked at, and those with a task, an action and a reward that can be used, by their weights.
    tasks, actions : Keys
        Ids in the order of their places; no actions without such a column.
    cells : Cells
    numbers : dict
        Of each column of numbers, by name; the values that its role can take.
    extremes : Extremes
        Of the rewards of all rows, also of those that were not looked at.
    faults : tuple of Reason
        Values that a role cannot take, one for each column and reason.
    timeline : Timeline or None
    time_kind : Arrow type or None
    repeats : RepeatCounts
        Of the columns ``hashed``.
    hashed : tuple of str
    contexts : Moments or None
        Of z = (1, x - origin, r), by the place of the action; None where there is no context.
    origin : (c,) array
    misplaced : str or None
        Why a level or metadata cannot be used.
    mean_reward : float
        Mean of the rewards that can be used, by weights and sampling weights; NaN where there are none.
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
    misplaced: str | None
    mean_reward: float

    @property
    def contexts_apart(self) -> bool:
        """Return whether sums of contexts are kept for each action apart."""
        return len(self.roles.context) <= _WIDE

    @property
    def sampled(self) -> bool:
        """Return whether the rows were kept by chance of a larger log, with sampling weights."""
        return self.roles.sampling_weight is not None

    @property
    def reward(self) -> Numbers:
        """The reward."""
        return self.numbers[self.roles.reward]


class _Copies:
    """Counts of copies of rows, batch after batch, so that at any moment as many came as weights say.

    A weight that cannot be used lets its row come once. Where the weights of the first batch average more than 1,000,
    rows come once for that many thousandths of them.
    """

    def __init__(self) -> None:
        self._unit, self._begun = 1.0, 0.0

    def of(self, weight: Array) -> Codes:
        """Return the copies (n,) of rows of these weights."""
        usable = np.where(np.isfinite(weight) & (weight >= 0), weight, 1.0)
        if not self._begun:
            self._unit = max(1.0, float(usable.mean()) / _COPIES)
        until = self._begun + np.cumsum(usable / self._unit)
        ends = np.floor(until + 1e-9)
        copies = np.diff(ends, prepend=np.floor(self._begun + 1e-9)).astype(np.int64)
        self._begun = float(until[-1])
        return copies


class Collector:
    """A pass over a log in the making; the mutable edge of an examination.

    Parameters
    ----------
    name : str
        Of the source.
    roles : Roles
    hashed : sequence of str
        Columns by which rows are equal.
    first_row : int
        Number of the row that comes first.
    choices_only : bool
        Leave contexts, levels and metadata alone, so that collectors of the parts of a log add.
    features : FeatureMap, optional
        Rows whose action it does not know cannot be used.
    most, distinct : int
        Cells and distinct rows that are kept.
    """

    def __init__(
        self,
        name: str,
        roles: Roles,
        hashed: tuple[str, ...],
        *,
        first_row: int = 0,
        choices_only: bool = False,
        features: FeatureMap | None = None,
        most: int = MOST_CELLS,
        distinct: int = MOST,
    ) -> None:
        self._name, self._roles, self._hashed = name, roles, hashed
        self._looker, self._first = LenientReader(roles, features), first_row
        self._looked_at, self._rows, self._usable = 0, 0, 0
        self._copies = _Copies()
        self._all = not choices_only
        self._cells, self._times, self._repeats = CellSums(most), Times(), Repeats(distinct)
        self._numbers: dict[str, Numbers] = {}
        self._extremes = Extremes()
        self._faults: dict[tuple[str, str], Reason] = {}
        self._contexts: Accumulator | None = None
        self._origin = np.zeros(len(roles.context))
        self._placement = TaskLevels(roles)
        self._misplaced: str | None = None
        self._stand_for, self._total = 0.0, 0.0
        self._time_kind: Any = None

    def add(self, found: Any) -> None:
        """Add the rows of an Arrow record batch that come next."""
        if not found.num_rows:
            return
        roles, look = self._roles, self._looker.look(found, self._first + self._looked_at)
        self._looked_at += look.rows
        self._time_kind = None if roles.time is None else found.schema.field(roles.time).type
        for fault in look.faults:
            self._fault(fault)
        if self._hashed:
            self._repeats.add(row_hashes(found, list(self._hashed)))
        self._add_extremes(look)
        if roles.weight is not None:
            look = look.repeated(self._copies.of(look.numbers[roles.weight]))
        self._rows += look.rows
        for column, values in look.numbers.items():
            self._numbers.setdefault(column, Numbers()).add(values)
        self._add_choices(look)
        if self._all and (roles.levels or roles.metadata) and self._misplaced is None:
            self._place(look)

    def _add_extremes(self, look: LenientBatch) -> None:
        """Add rewards with the numbers of their rows, each once."""
        roles, reward = self._roles, look.numbers[self._roles.reward]
        weight = 1.0 if roles.weight is None else look.numbers[roles.weight]
        self._extremes.add(np.where(_usable(look, reward) & (weight != 0.0), reward, np.nan), look.first_row)

    def _add_choices(self, look: LenientBatch) -> None:
        """Add tasks, actions and rewards, with what goes with them."""
        roles, reward = self._roles, look.numbers[self._roles.reward]
        code = np.zeros(look.rows, dtype=np.int64) if look.action is None else look.action
        usable = _usable(look, reward)
        self._usable += int(np.count_nonzero(usable))
        q = np.ones(look.rows) if roles.sampling_weight is None else look.numbers[roles.sampling_weight]
        some = usable & ~np.isnan(q)
        self._stand_for += float(q[some].sum())
        self._total += float(q[some] @ reward[some])
        place = np.where(usable, look.task, -1)
        tasks, actions = len(self._looker.tasks), max(len(self._looker.actions), 1)
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

    def glance(self, found: Any, first_row: int) -> None:
        """See whether a record batch, from this row on, holds rewards that lie far from all others."""
        column = found.column(self._roles.reward)
        if not holds_text(column.type):
            self._extremes.add(rewards_of(column), first_row, counted=False)

    def append(self, later: "Collector") -> None:
        """Add what was collected of the rows that come next; both look at choices only."""
        place = self._looker.tasks.of(later._looker.tasks.keys().values)
        code = self._looker.actions.of(later._looker.actions.keys().values)
        tasks, actions = len(self._looker.tasks), max(len(self._looker.actions), 1)
        if self._roles.action is None:
            code = np.zeros(1, dtype=np.int64)
        self._looked_at += later._looked_at
        self._stand_for, self._total = self._stand_for + later._stand_for, self._total + later._total
        self._rows, self._usable = self._rows + later._rows, self._usable + later._usable
        self._cells.append(later._cells, place, code, tasks=tasks, actions=actions)
        self._times.append(later._times, place, tasks)
        self._repeats.update(later._repeats)
        self._time_kind = later._time_kind if self._time_kind is None else self._time_kind
        for fault in later._faults.values():
            self._fault(fault)
        for column, numbers in later._numbers.items():
            self._numbers.setdefault(column, Numbers()).update(numbers)
        self._extremes.update(later._extremes)

    def _fault(self, fault: Reason) -> None:
        key = fault.column, fault.reason
        before = self._faults.get(key)
        self._faults[key] = fault if before is None else before + fault

    def _add_contexts(
        self, look: LenientBatch, code: Codes, reward: Array, usable: NDArray[np.bool_]
    ) -> None:
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

    def _place(self, look: LenientBatch) -> None:
        """See whether each task stays in its groups and keeps its metadata."""
        roles, ids = self._roles, [places.keys().values for places in self._looker.levels]
        usable = look.task >= 0
        for column in roles.metadata:
            usable &= ~np.isnan(look.numbers[column])
        for codes in look.levels:
            usable &= codes >= 0
        if not usable.any():
            return
        known = [look.numbers[column][usable] for column in roles.metadata]
        batch = Batch(
            self._looker.tasks.keys().values[look.task[usable]],
            None,
            np.zeros(int(usable.sum())),
            None,  # type: ignore[arg-type]  # no context is needed
            first_row=look.first_row,
            roles=Roles(roles.task, None, roles.reward, levels=roles.levels, metadata=roles.metadata),
            levels=tuple(own[codes[usable]] for own, codes in zip(ids, look.levels, strict=True)),
            metadata=np.column_stack(known) if known else None,
        )
        try:
            self._placement.add(batch)
        except LogError as error:
            self._misplaced = str(error)

    def collected(self) -> Collected:
        """Return what there is."""
        tasks, actions = self._looker.tasks.keys(), self._looker.actions.keys()
        contexts = None if self._contexts is None else self._contexts.moments()
        return Collected(
            self._name, self._roles, self._looked_at, self._looked_at, self._rows, self._usable, tasks, actions,
            self._cells.collected(), self._numbers, self._extremes, tuple(self._faults.values()),
            self._times.timeline(), self._time_kind, self._repeats.counts(), self._hashed, contexts, self._origin,
            self._misplaced, self._total / self._stand_for if self._stand_for else np.nan,
        )  # fmt: skip


def _usable(look: LenientBatch, reward: Array) -> NDArray[np.bool_]:
    """Return which rows have a task, an action and a reward that can be used."""
    known = look.task >= 0
    return np.asarray((known if look.action is None else known & (look.action >= 0)) & ~np.isnan(reward))
