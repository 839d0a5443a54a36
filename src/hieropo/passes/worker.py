"""One worker of the pass over a log: the running sums of one thread."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.threads import in_threads
from hieropo.errors import HieropoError, UnknownActionError
from hieropo.features.maps import Columns, FeatureMap
from hieropo.features.per_action import Crossed
from hieropo.logs.arrow.log_source import BATCH_ROWS, Part
from hieropo.logs.bad_rows.rejects import Rejects
from hieropo.logs.reading import checked_batch, usable_records
from hieropo.model.task_levels import TaskLevels
from hieropo.moments.accumulation import Accumulator
from hieropo.moments.clusters import ClusterTable
from hieropo.moments.column_pass import ColumnPass, clean_rows
from hieropo.moments.row_sketch import RowSketch, RowSketcher
from hieropo.moments.statistics import Moments
from hieropo.moments.units import UnitAccumulator, one_action
from hieropo.passes.action_numbers import ActionNumbers, Joining, joined
from hieropo.passes.checked_rows import CheckedRows, PartReducer
from hieropo.passes.feasibility import refuse_too_large
from hieropo.passes.in_place import InPlace, in_place
from hieropo.rows.batches import Batch, Roles
from hieropo.rows.numbering import DictionaryCodes

_WIDE = 64  # features from which on the memory is checked before it is taken
_FEW = (
    100_000  # fewer rows of a worker become batches: compiling the loop that reads them in place takes longer
)


@dataclass(frozen=True, slots=True, eq=False)
class PassResult:
    """The result of a pass over rows; results of different rows add.

    Parameters
    ----------
    moments : Moments
        Moments where sums are kept per action.
    task_levels : TaskLevels
        Groups and metadata of the tasks.
    sketch : RowSketch
        A sketch of the rows.
    clusters : ClusterTable or None
        Sums of the clusters of the rows, where a further read made them.
    """

    moments: Any
    task_levels: TaskLevels
    sketch: RowSketch
    clusters: ClusterTable | None = None

    def __add__(self, other: "PassResult") -> "PassResult":
        clusters = None
        if self.clusters is not None and other.clusters is not None:
            clusters = self.clusters + other.clusters
        return PassResult(
            self.moments + other.moments, self.task_levels + other.task_levels, self.sketch + other.sketch,
            clusters,
        )  # fmt: skip


class Worker:
    """Running sums over the parts of a log that one thread reads.

    Rows whose columns are numbers in memory, and whose values are allowed, are added in place. All others become
    batches, which raise an error for a bad row or set it aside.

    Parameters
    ----------
    features : FeatureMap
    roles : Roles
    per_action : bool
        Keep sums per action at the end, as :class:`Moments` do.
    before : TaskLevels, optional
        Groups and metadata of tasks that are known already.
    start : PassResult, optional
        Earlier sums of this worker, from which it resumes.
    rejects : Rejects, optional
        Collects the rows that cannot be used.
    expected : int
        Upper bound of the rows to come, as far as it is known.
    offset : (d,) array, optional
        Offset of the moments, unless they resume from ``start``.
    joining : {"none", "new", "all"}
        Which actions join those of the map, as of :class:`ActionNumbers`.
    """

    def __init__(  # noqa: PLR0913 - as `summing.sums`
        self,
        features: FeatureMap,
        roles: Roles,
        *,
        per_action: bool,
        before: TaskLevels | None = None,
        start: PassResult | None = None,
        rejects: Rejects | None = None,
        expected: int = 0,
        offset: Array | None = None,
        joining: Joining = "none",
    ) -> None:
        self._features, self._roles, self._rejects = features, roles, rejects
        self._dense, self._joining = not per_action, joining
        if start is None:
            self._total = accumulator(features, per_action=one_action(features) is not None, offset=offset)
            self._task_levels = TaskLevels(roles) if before is None else before.copy()
            self._sketcher = RowSketcher(() if joining == "all" else features.actions)
        else:
            self._total = _resumed(features, start.moments)
            self._task_levels = start.task_levels.copy()
            self._sketcher = RowSketcher(features.actions, start.sketch)
        self._keys = self._total.running.keys
        self._tasks = DictionaryCodes(self._keys.rows_of_texts, self._keys.rows_of_ids)
        self._actions = ActionNumbers(features, joining)
        self._rows, self._expected = 0, expected
        self._columns: ColumnPass | None = None
        if isinstance(features, Columns | Crossed) and features.columns == roles.context:
            self._columns = ColumnPass(features, self._total.running, self._sketcher)

    @property
    def n_rows(self) -> int:
        """Rows read so far."""
        return self._rows

    @property
    def n_tasks(self) -> int:
        """Tasks met so far."""
        return len(self._keys)

    def read(self, part: Part, reducers: Sequence[PartReducer] = ()) -> Iterator[int]:
        """Add the rows of a part to the sums and to the reducers; yield the number of rows after each batch.

        Raises
        ------
        LogError, UnknownActionError, InputError
            A row cannot be used.
        """
        row = part.first_row
        for batch in part.batches():
            start = 0
            while start < batch.num_rows:
                rows = self._add_in_place(batch.slice(start), row + start)
                added = 0 if rows is None else len(rows)
                if not added:
                    piece = batch.slice(start, BATCH_ROWS)
                    rows, added = self._add_batch(piece, row + start, part), piece.num_rows
                if rows is not None:
                    for reducer in reducers:
                        reducer.add(rows)
                start += added
                self._rows += added
                yield added
            row += batch.num_rows
            del batch  # before the next one is decoded
        for reducer in reducers:
            reducer.finish(self._keys.ids_at, self._actions.ids)

    def _add_in_place(self, batch: Any, row: int) -> CheckedRows | None:
        """Add the first rows of a record batch in place, up to the first bad value, and return them."""
        if self._columns is None or max(self._rows, self._expected) < _FEW:
            return None
        rows = in_place(batch, self._roles)
        if rows is not None and self._rejects is not None:  # a row that is set aside brings no task with it
            clean = clean_rows(rows.columns, rows.n)
            if clean < rows.n:
                rows = in_place(batch.slice(0, clean), self._roles)
        codes = None if rows is None else self._codes(rows)
        if rows is None or codes is None:
            return None
        task, action = codes
        self._admit()
        blocks, of_map = self._total.running.blocks, action if self._features.actions is not None else None
        code = task if blocks == 1 or of_map is None else task * blocks + of_map
        added = self._columns.add(rows.columns, code, of_map, weighted=rows.weighted)
        action = None if action is None else action[:added]
        return CheckedRows(batch.slice(0, added), self._roles, row, task[:added], action)

    def _codes(self, rows: InPlace) -> tuple[Codes, Codes | None] | None:
        """Return the numbers of each row's task and action; None where an action is unknown."""
        action = None
        if rows.action is not None:
            try:
                action = self._actions.of_dictionary(*rows.action)
            except UnknownActionError:
                return None
        task = self._tasks.codes(*rows.task)
        self._refuse_too_large(lambda: len(self._keys))
        return task, action

    @property
    def _dim(self) -> int:
        """The features of the map with the actions so far."""
        if self._joining == "none" or not isinstance(self._total, UnitAccumulator):
            return self._features.dim
        return self._total.unit_dim * len(self._actions)

    def _refuse_too_large(self, tasks: Callable[[], int]) -> None:
        if self._dense and self._dim > _WIDE:
            refuse_too_large(tasks(), self._dim)

    def _admit(self) -> None:
        """Make room for actions that joined."""
        if self._joining == "none":
            return
        assert isinstance(self._total, UnitAccumulator)
        count, known, room = len(self._actions), self._sketcher.marks.size, self._total.running.blocks
        if count > known:
            self._sketcher.add_actions(self._actions.actions[known:])
        if count > room:
            self._finish()  # rows that wait know their sums by the old numbers
            self._total.widen(max(count, room + room // 4))

    def _finish(self) -> None:
        if self._columns is not None:
            self._columns.finish()

    def _add_batch(self, piece: Any, row: int, part: Part) -> CheckedRows | None:
        """Add the rows of a record batch that can be used, and return them; the others are set aside or an error."""
        roles, numbers = self._roles, None
        if self._rejects is not None:
            piece, numbers = usable_records(piece, roles, row, self._rejects, part.path or part.name)
        batch = checked_batch(piece, roles, row, numbers)
        if not len(batch):
            return None
        self._finish()
        self._refuse_too_large(lambda: len(self._total) + len(set(batch.task.tolist())))
        self._task_levels.add(batch)
        action = None
        with placed(batch):
            if batch.action is not None:
                action = self._actions.of_ids(batch.action, batch.first_row)
                self._admit()
            codes = None if self._features.actions is None else action
            task = add_rows(self._total, self._features, batch, codes)
        self._sketcher.add(batch.reward, batch.context, codes)
        return CheckedRows(piece, roles, row if numbers is None else numbers, task, action, batch)

    def summed(self) -> PassResult:
        """Return the sums so far, from which another worker can resume; per action where the map allows that."""
        self._finish()
        return PassResult(self._total.moments(), self._task_levels.copy(), self._sketcher.sketch())

    @staticmethod
    def joined(workers: "Sequence[Worker]") -> FeatureMap:
        """Return the feature map with all actions of the workers, as :func:`action_numbers.joined` orders them."""
        first = workers[0]
        return joined(first._features, first._joining, [worker._actions.actions for worker in workers])

    @staticmethod
    def together(workers: "Sequence[Worker]", features: FeatureMap, *, per_action: bool) -> PassResult:
        """Return the sum of all workers for their joined map, in their order; they are used up.

        Raises
        ------
        LogError
            Two workers read different groups or metadata of one task; a sum of squares overflowed.
        """
        in_threads(
            ColumnPass.close,
            [worker._columns for worker in workers if worker._columns is not None],
            len(workers),
        )
        task_levels = reduce(add, (worker._task_levels for worker in workers))
        sketch = reduce(add, (worker._sketcher.sketch() for worker in workers))
        return PassResult(_moments(workers, features, per_action=per_action), task_levels, sketch)


def _moments(workers: Sequence[Worker], features: FeatureMap, *, per_action: bool) -> Moments:
    totals = [worker._total for worker in workers]
    units = [total for total in totals if isinstance(total, UnitAccumulator)]
    if not units:
        return Accumulator.together(totals, drop=True)
    join = UnitAccumulator.together if per_action else UnitAccumulator.together_dense
    if workers[0]._joining == "none":
        return join(units, drop=True)
    if not per_action and features.dim > _WIDE:
        refuse_too_large(max(map(len, units)), features.dim)
    place = {action: position for position, action in enumerate(features.actions or ())}

    def arrange(worker: Worker) -> None:
        position = [place[action] for action in worker._actions.actions]
        worker._total.arrange(features, np.array(position, dtype=np.int64))  # type: ignore[union-attr]  # of units

    in_threads(arrange, workers, len(workers))
    return join(units, drop=True)


def _resumed(features: FeatureMap, moments: Moments) -> Accumulator | UnitAccumulator:
    if moments.per_action:
        return UnitAccumulator.after(features, moments)
    return Accumulator.after(moments)


def accumulator(
    features: FeatureMap, *, per_action: bool, offset: Array | None = None, expected: int = 0
) -> Accumulator | UnitAccumulator:
    """Return an accumulator for the rows of a log, with an offset (d,); ``per_action`` keeps sums per action.

    ``expected`` is the number of rows to come at least, where that is known.
    """
    if per_action:
        return UnitAccumulator(features, offset=offset, expected=expected)
    return Accumulator(features.dim, features=features.fingerprint, offset=offset, expected=expected)


def add_rows(
    total: Accumulator | UnitAccumulator,
    features: FeatureMap,
    batch: Batch,
    codes: Codes | None,
    rows: Any = slice(None),
) -> Codes:
    """Add some rows of a batch, with its action codes (n,), to an accumulator; return the numbers of their tasks."""
    weights = batch.weights.some(rows)
    action = None if codes is None else codes[rows]
    task, context, reward = batch.task[rows], batch.context[rows], batch.reward[rows]
    if isinstance(total, UnitAccumulator):
        assert action is not None
        return total.add(task, action, context, reward, *weights)
    return total.add(task, features.phi(context, action), reward, *weights)


@contextmanager
def placed(batch: Batch) -> Iterator[None]:
    """Add the rows of the log to errors that are raised inside."""
    try:
        yield
    except HieropoError as error:
        error.add_note(f"In the rows from {batch.first_row} on.")
        raise
