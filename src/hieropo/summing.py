"""The one pass over a log: its moments, where its tasks stand, and a fingerprint of its rows."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from hieropo.core.accumulation import Accumulator
from hieropo.core.features import FeatureMap
from hieropo.core.keys import Codes
from hieropo.core.logs import Batch, Roles
from hieropo.core.row_sketch import RowSketch, RowSketcher
from hieropo.core.units import UnitAccumulator
from hieropo.errors import HieropoError, LogError
from hieropo.placement import Placement
from hieropo.scrutiny import refuse_huge, refuse_too_large

_WIDE = 64  # features from which on the memory is checked before it is taken


class Summed(NamedTuple):
    """What the pass finds: Moments, or UnitMoments where actions are kept apart; groups and metadata; fingerprint."""

    moments: Any
    placement: Placement
    sketch: RowSketch


def sums(
    batches: Iterable[Batch],
    features: FeatureMap,
    roles: Roles,
    before: Placement | None = None,
    *,
    apart: bool = False,
) -> Summed:
    """Sum over batches of rows; where tasks stand is added to what was known ``before``.

    Raises
    ------
    LogError, UnknownActionError, InputError
        A row cannot be used.
    """
    total = accumulator(features, apart=apart)
    placement = Placement(roles) if before is None else before.copy()
    tasks: set[Any] = set()
    sketcher = RowSketcher(features.actions)
    for batch in batches:
        refuse_huge(batch)
        if features.dim > _WIDE and not apart:
            tasks.update(batch.task.tolist())
            refuse_too_large(len(tasks), features.dim)
        placement.add(batch)
        codes = None
        with placed(batch):
            if features.actions is not None:
                codes = features.action_codes(batch.action, first_row=batch.first_row)
            add_rows(total, features, batch, codes)
        sketcher.add(batch.reward, batch.context, codes)
    moments = total.moments()
    if not moments.n_rows:
        raise LogError(
            f"Column {roles.weight!r}: the weight is 0 in every row, so no row counts. Name another column."
        )
    return Summed(moments, placement, sketcher.sketch())


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
