"""Logs of which a hierarchy, or the noise, can hardly be learned."""

import numpy as np

from hieropo._utils.text import agreeing, counted
from hieropo.errors import NumericalError, warn
from hieropo.moments.in_shards import AnyMoments, MomentsInShards
from hieropo.moments.statistics import Moments
from hieropo.rows.ids import ONE_TASK

_REPLICATES = 10.0  # rows beyond the first of a task and action, from which on they tell the noise
_FEW = 3  # rows besides one for each coefficient, below which hardly anything is learned


def refuse_too_few(moments: AnyMoments) -> None:
    """Raise NumericalError for a log with too few rows to learn the noise from."""
    p = moments.unit_dim
    if moments.n_rows - p < 1:
        raise NumericalError(
            f"The log has {counted(moments.n_rows, 'row')}. The noise of rewards is learned from the rows that "
            f"{counted(p, 'coefficient')} of an action {agreeing(p, 'leaves', 'leave')} over: at least {p + 1} rows "
            "are needed. Add rows, or give a hierarchy with a known noise variance: known=CrossedHierarchy(...)."
        )


def warn_of_few(moments: AnyMoments) -> None:
    """Warn of logs that hardly tell the hierarchy, or not from the noise."""
    if moments.n_rows < moments.unit_dim + _FEW:
        warn(
            f"The log has {counted(moments.n_rows, 'row')}, too few to learn from: expected rewards and their "
            "intervals are nearly those of the prior."
        )
    if isinstance(moments, Moments) and _one_task(moments):
        warn("The log has one task, and does not show how much tasks differ: that is taken from the prior.")
    if not noise_identified(moments):
        warn(
            "This log does not identify the noise of rewards apart from differences between tasks: tasks have too "
            "few rows of one and the same action. Intervals would not have their stated coverage, and summaries give "
            "none. Learn from rows that repeat an action in a task."
        )


def _one_task(moments: Moments) -> bool:
    """Return True for a log of one task that has a name."""
    return np.count_nonzero(moments.rows.any(axis=1)) == 1 and moments.keys.find(ONE_TASK) < 0


def noise_identified(moments: AnyMoments) -> bool:
    """Return True if the log identifies the noise beside interactions: by replicate rows of a unit, or by contexts."""
    if moments.unit_dim > 1:
        return True

    def replicates(some: Moments) -> float:
        return float(np.maximum(some.rows[some.rows > 0] - 1.0, 0.0).sum())

    if isinstance(moments, MomentsInShards):
        return moments.summed(replicates) >= min(_REPLICATES, 0.1 * moments.observed_units)
    return replicates(moments) >= min(_REPLICATES, 0.1 * np.count_nonzero(moments.rows))
