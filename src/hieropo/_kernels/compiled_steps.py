"""One step up and one step down for some rows, by compiled loops: ``reference.steps`` says what they compute.

Blocks of eight tasks whose F'GF is too large to be formed are left out by the first loop and handed to the second,
which is compiled only where there are any.
"""

import numpy as np

from hieropo._kernels.blocks import packed_slots, workspace
from hieropo._kernels.tree_steps import step_down as _step_down
from hieropo._kernels.tree_steps import step_up as _step_up
from hieropo._utils.arrays import Array, Codes

LANES = 8


def _first_rows(count: int) -> Codes:
    """Return room for the first row of each block of eight."""
    return np.empty(count // LANES + 1, dtype=np.int64)


def step_up(
    rows: Array,
    first: int,
    last: int,
    scale: float,
    factor: Array,
    tolerance: float,
    parent: Codes,
    out: Array,
) -> float:
    """Add the messages of rows ``first .. last`` to their parents; arguments as of `reference.steps.step_up`."""
    d = len(factor)
    spots, flat, late, room = packed_slots(d), factor.ravel(), _first_rows(last - first), workspace(d)
    log_det, count = _step_up(rows, first, last, d, scale, flat, spots, parent, out, late, room)
    if count:
        from hieropo._kernels.large_information import step_up_large

        starts = late[:count].copy()
        log_det += step_up_large(rows, starts, last, d, scale, flat, tolerance, spots, parent, out, room)
    return float(log_det)


def step_down(
    rows: Array,
    first: int,
    last: int,
    scale: float,
    factor: Array,
    tolerance: float,
    parent: Codes,
    parents: tuple[Array, Array, Array, bool],
    out: tuple[Array, Array, Array],
) -> None:
    """Write the posteriors of rows ``first .. last``; arguments as of `reference.steps.step_down`."""
    d = len(factor)
    spots, flat, late, room = packed_slots(d), factor.ravel(), _first_rows(last - first), workspace(d)
    count = _step_down(rows, first, last, d, scale, flat, spots, parent, *parents, *out, late, room)
    if count:
        from hieropo._kernels.large_information import step_down_large

        starts = late[:count].copy()
        step_down_large(rows, starts, last, d, scale, flat, tolerance, spots, parent, *parents, *out, room)
