"""One lane of the pass over a log: the running sums of one thread."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hieropo.core.accumulation import Accumulator
from hieropo.core.features import FeatureMap
from hieropo.core.keys import Codes
from hieropo.core.logs import Batch, Roles
from hieropo.core.row_sketch import RowSketch, RowSketcher
from hieropo.core.units import UnitAccumulator
from hieropo.errors import HieropoError
from hieropo.placement import Placement
from hieropo.scrutiny import refuse_too_large
from hieropo.sources.log_source import Part
from hieropo.sources.rejects import Rejects
from hieropo.sources.rows import batches_of

_WIDE = 64  # features from which on the memory is checked before it is taken


@dataclass(frozen=True, slots=True, eq=False)
class Summed:
    """What a pass over rows finds; of different rows it adds.

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
    placement: Placement
    sketch: RowSketch

    def __add__(self, other: "Summed") -> "Summed":
        return Summed(
            self.moments + other.moments, self.placement + other.placement, self.sketch + other.sketch
        )


class Lane:
    """Sums in the making, over the parts of a log that one thread reads.

    Parameters
    ----------
    features : FeatureMap
    roles : Roles
    apart : bool
        Whether to keep actions apart, as :class:`UnitMoments` do.
    before : Placement, optional
        Where tasks stand, as was known before.
    start : Summed, optional
        What this lane found before, from which it goes on as if it had never stopped.
    rejects : Rejects, optional
        Takes the rows that cannot be used.
    """

    def __init__(
        self,
        features: FeatureMap,
        roles: Roles,
        *,
        apart: bool,
        before: Placement | None = None,
        start: Summed | None = None,
        rejects: Rejects | None = None,
    ) -> None:
        self._features, self._roles, self._rejects = features, roles, rejects
        if start is None:
            self._total = accumulator(features, apart=apart)
            self._placement = Placement(roles) if before is None else before.copy()
            self._sketcher = RowSketcher(features.actions)
        else:
            self._total = _going_on(features, start.moments, apart=apart)
            self._placement = start.placement.copy()
            self._sketcher = RowSketcher(features.actions, start.sketch)

    def read(self, part: Part) -> Iterator[int]:
        """Add the rows of a part; yield how many after each batch.

        Raises
        ------
        LogError, UnknownActionError, InputError
            A row cannot be used.
        """
        for batch in batches_of(part, self._roles, rejects=self._rejects):
            self._add(batch)
            yield len(batch)

    def _add(self, batch: Batch) -> None:
        if self._features.dim > _WIDE and isinstance(self._total, Accumulator):
            refuse_too_large(len(self._total) + len(set(batch.task.tolist())), self._features.dim)
        self._placement.add(batch)
        codes = None
        with placed(batch):
            if self._features.actions is not None:
                codes = self._features.action_codes(batch.action, first_row=batch.first_row)
            add_rows(self._total, self._features, batch, codes)
        self._sketcher.add(batch.reward, batch.context, codes)

    def summed(self) -> Summed:
        """Return what was found so far."""
        return Summed(self._total.moments(), self._placement.copy(), self._sketcher.sketch())


def _going_on(features: FeatureMap, moments: Any, *, apart: bool) -> Accumulator | UnitAccumulator:
    return UnitAccumulator.after(features, moments) if apart else Accumulator.after(moments)


def accumulator(features: FeatureMap, *, apart: bool) -> Accumulator | UnitAccumulator:
    """Return what sums over the rows of a log; ``apart`` keeps its actions apart."""
    return UnitAccumulator(features) if apart else Accumulator(features.dim, features=features.fingerprint)


def add_rows(
    total: Accumulator | UnitAccumulator,
    features: FeatureMap,
    batch: Batch,
    codes: Codes | None,
    rows: Any = slice(None),
) -> None:
    """Add some rows of a batch, whose actions have these codes (n,)."""
    weight = None if batch.weight is None else batch.weight[rows]
    own = None if codes is None else codes[rows]
    task, context, reward = batch.task[rows], batch.context[rows], batch.reward[rows]
    if isinstance(total, UnitAccumulator):
        assert own is not None
        total.add(task, own, context, reward, weight)
    else:
        total.add(task, features.phi(context, own), reward, weight)


@contextmanager
def placed(batch: Batch) -> Iterator[None]:
    """Note on errors in which rows of the log they are."""
    try:
        yield
    except HieropoError as error:
        error.add_note(f"In the rows from {batch.first_row} on.")
        raise
