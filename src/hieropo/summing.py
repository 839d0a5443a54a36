"""The one pass over a log: its moments, where its tasks stand, and a fingerprint of its rows."""

from collections.abc import Iterable
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
    total = UnitAccumulator(features) if apart else Accumulator(features.dim, features=features.fingerprint)
    placement = Placement(roles) if before is None else before.copy()
    tasks: set[Any] = set()
    sketcher = RowSketcher()
    for batch in batches:
        refuse_huge(batch)
        if features.dim > _WIDE and not apart:
            tasks.update(batch.task.tolist())
            refuse_too_large(len(tasks), features.dim)
        placement.add(batch)
        try:
            sketcher.add(batch.reward, batch.context, _add(total, batch, features))
        except HieropoError as error:
            error.add_note(f"In the rows from {batch.first_row} on.")
            raise
    moments = total.moments()
    if not moments.n_rows:
        raise LogError(
            f"Column {roles.weight!r}: the weight is 0 in every row, so no row counts. Name another column."
        )
    return Summed(moments, placement, sketcher.sketch())


def _add(total: Accumulator | UnitAccumulator, batch: Batch, features: FeatureMap) -> Codes | None:
    """Add a batch; return the codes of its actions."""
    codes = None
    if features.actions is not None:
        codes = features.action_codes(batch.action, first_row=batch.first_row)
    if isinstance(total, UnitAccumulator):
        assert codes is not None
        total.add(batch.task, codes, batch.context, batch.reward, batch.weight)
    else:
        total.add(batch.task, features.phi(batch.context, codes), batch.reward, batch.weight)
    return codes
