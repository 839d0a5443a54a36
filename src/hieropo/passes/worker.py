"""One lane of the pass over a log: the running sums of one thread."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.threads import in_threads
from hieropo.errors import HieropoError, UnknownActionError
from hieropo.features.maps import Columns, FeatureMap
from hieropo.features.per_action import Crossed
from hieropo.logs.arrow.log_source import BATCH_ROWS, Part
from hieropo.logs.bad_rows.rejects import Rejects
from hieropo.logs.reading import checked
from hieropo.model.task_levels import TaskLevels
from hieropo.moments.accumulation import Accumulator
from hieropo.moments.column_pass import ColumnPass, clean_rows
from hieropo.moments.row_sketch import RowSketch, RowSketcher
from hieropo.moments.statistics import Moments
from hieropo.moments.units import UnitAccumulator, UnitMoments, one_action
from hieropo.passes.feasibility import refuse_too_large
from hieropo.passes.in_place import InPlace, in_place
from hieropo.rows.batches import Batch, Roles
from hieropo.rows.numbering import Numbering

_WIDE = 64  # features from which on the memory is checked before it is taken
_FEW = 100_000  # fewer rows of a lane become batches: compiling what reads them in place takes longer


@dataclass(frozen=True, slots=True, eq=False)
class PassResult:
    """The result of a pass over rows; results of different rows add.

    Parameters
    ----------
    moments : Moments or UnitMoments
        UnitMoments where actions are kept apart.
    placement : Placement
        Groups and metadata of the tasks.
    sketch : RowSketch
        A fingerprint of the rows.
    """

    moments: Any
    task_levels: TaskLevels
    sketch: RowSketch

    def __add__(self, other: "PassResult") -> "PassResult":
        return PassResult(
            self.moments + other.moments, self.task_levels + other.task_levels, self.sketch + other.sketch
        )


class Worker:
    """Sums in the making, over the parts of a log that one thread reads.

    Rows that lie in memory as numbers, and keep all rules, are added where they lie; all others become batches, which
    say what is wrong with them, or set them aside.

    Parameters
    ----------
    features : FeatureMap
    roles : Roles
    apart : bool
        Whether to keep actions apart at the end, as :class:`UnitMoments` do.
    before : Placement, optional
        Where tasks stand, as was known before.
    start : Summed, optional
        What this lane held before, from which it goes on as if it had never stopped.
    rejects : Rejects, optional
        Takes the rows that cannot be used.
    expected : int
        Rows that will at most come, as far as that is known.
    offset : (d,) array, optional
        Of the moments, unless they go on from ``start``.
    """

    def __init__(
        self,
        features: FeatureMap,
        roles: Roles,
        *,
        apart: bool,
        before: TaskLevels | None = None,
        start: PassResult | None = None,
        rejects: Rejects | None = None,
        expected: int = 0,
        offset: Array | None = None,
    ) -> None:
        self._features, self._roles, self._rejects = features, roles, rejects
        self._wide = features.dim > _WIDE and not apart
        if start is None:
            self._total = accumulator(features, apart=one_action(features) is not None, offset=offset)
            self._placement = TaskLevels(roles) if before is None else before.copy()
            self._sketcher = RowSketcher(features.actions)
        else:
            self._total = _going_on(features, start.moments)
            self._placement = start.task_levels.copy()
            self._sketcher = RowSketcher(features.actions, start.sketch)
        find, places = features.action_codes, self._total.running.places
        self._tasks = Numbering(places.of_text, places.of_checked)
        self._actions = Numbering(lambda texts, which: find(texts.take(which)), find)
        self._rows, self._expected = 0, expected
        self._columns: ColumnPass | None = None
        if isinstance(features, Columns | Crossed) and features.columns == roles.context:
            self._columns = ColumnPass(features, self._total.running, self._sketcher)

    def read(self, part: Part) -> Iterator[int]:
        """Add the rows of a part; yield how many after each batch.

        Raises
        ------
        LogError, UnknownActionError, InputError
            A row cannot be used.
        """
        row = part.first_row
        for found in part.batches():
            start = 0
            while start < found.num_rows:
                added = self._add_in_place(found.slice(start))
                if not added:
                    piece = found.slice(start, BATCH_ROWS)
                    batch = checked(piece, self._roles, row + start, self._rejects, part.path or part.name)
                    added = piece.num_rows
                    if len(batch):
                        self._add(batch)
                start += added
                self._rows += added
                yield added
            row += found.num_rows
            del found  # before the next one is decoded

    def _add_in_place(self, found: Any) -> int:
        """Add the first rows of a record batch, as far as they keep all rules; return how many."""
        if self._columns is None or max(self._rows, self._expected) < _FEW:
            return 0
        rows = in_place(found, self._roles)
        if rows is not None and self._rejects is not None:  # a row that is set aside brings no task with it
            clean = clean_rows(rows.columns, rows.n)
            if clean < rows.n:
                rows = in_place(found.slice(0, clean), self._roles)
        codes = None if rows is None else self._codes(rows)
        if rows is None or codes is None:
            return 0
        assert self._columns is not None
        code, action = codes
        return self._columns.add(rows.columns, code, action, weighted=rows.weighted)

    def _codes(self, rows: InPlace) -> tuple[Codes, Codes | None] | None:
        """Return which sums each row goes to, and its action; None where an action is unknown."""
        action = None
        if self._features.actions is not None and rows.action is not None:
            try:
                action = self._actions.codes(*rows.action)
            except UnknownActionError:
                return None
        running = self._total.running
        place = self._tasks.codes(*rows.task)
        self._refuse_too_large(len(running))
        return (place if running.each == 1 or action is None else place * running.each + action), action

    def _refuse_too_large(self, tasks: int) -> None:
        if self._wide:
            refuse_too_large(tasks, self._features.dim)

    def _finish(self) -> None:
        if self._columns is not None:
            self._columns.finish()

    def _add(self, batch: Batch) -> None:
        self._finish()
        if self._wide:
            self._refuse_too_large(len(self._total) + len(set(batch.task.tolist())))
        self._placement.add(batch)
        codes = None
        with placed(batch):
            if self._features.actions is not None:
                codes = self._features.action_codes(batch.action, first_row=batch.first_row)
            add_rows(self._total, self._features, batch, codes)
        self._sketcher.add(batch.reward, batch.context, codes)

    def summed(self) -> PassResult:
        """Return what was found so far, from which another lane can go on; actions that can be kept apart are."""
        self._finish()
        return PassResult(self._total.moments(), self._placement.copy(), self._sketcher.sketch())

    @staticmethod
    def together(lanes: "Sequence[Worker]", *, apart: bool) -> PassResult:
        """Return what all lanes found, one after the other; they are used up.

        Raises
        ------
        LogError
            Two lanes found different groups or metadata of one task; squares of very large values do not fit.
        """
        in_threads(
            ColumnPass.close, [lane._columns for lane in lanes if lane._columns is not None], len(lanes)
        )
        task_levels = reduce(add, (lane._placement for lane in lanes))
        sketch = reduce(add, (lane._sketcher.sketch() for lane in lanes))
        totals = [lane._total for lane in lanes]
        return PassResult(_together(totals, apart=apart), task_levels, sketch)


def _together(totals: Sequence[Accumulator | UnitAccumulator], *, apart: bool) -> Moments | UnitMoments:
    units = [total for total in totals if isinstance(total, UnitAccumulator)]
    if not units:
        return Accumulator.together([total for total in totals if isinstance(total, Accumulator)], drop=True)
    join = UnitAccumulator.together if apart else UnitAccumulator.together_dense
    return join(units, drop=True)


def _going_on(features: FeatureMap, moments: Moments | UnitMoments) -> Accumulator | UnitAccumulator:
    if isinstance(moments, UnitMoments):
        return UnitAccumulator.after(features, moments)
    return Accumulator.after(moments)


def accumulator(
    features: FeatureMap, *, apart: bool, offset: Array | None = None
) -> Accumulator | UnitAccumulator:
    """Return what sums over the rows of a log, with an offset (d,); ``apart`` keeps its actions apart."""
    if apart:
        return UnitAccumulator(features, offset=offset)
    return Accumulator(features.dim, features=features.fingerprint, offset=offset)


def add_rows(
    total: Accumulator | UnitAccumulator,
    features: FeatureMap,
    batch: Batch,
    codes: Codes | None,
    rows: Any = slice(None),
) -> None:
    """Add some rows of a batch, whose actions have these codes (n,)."""
    weights = batch.weights.some(rows)
    own = None if codes is None else codes[rows]
    task, context, reward = batch.task[rows], batch.context[rows], batch.reward[rows]
    if isinstance(total, UnitAccumulator):
        assert own is not None
        total.add(task, own, context, reward, *weights)
    else:
        total.add(task, features.phi(context, own), reward, *weights)


@contextmanager
def placed(batch: Batch) -> Iterator[None]:
    """Note on errors in which rows of the log they are."""
    try:
        yield
    except HieropoError as error:
        error.add_note(f"In the rows from {batch.first_row} on.")
        raise
