"""Moments in memory and shards: moments divided by the shard of their tasks, brought to one plan, joined and added."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo.errors import InputError, MismatchError
from hieropo.model.task_levels import TaskLevels
from hieropo.moments.clusters import ClusterTable
from hieropo.moments.row_sketch import RowSketch
from hieropo.moments.statistics import Moments
from hieropo.passes.log_moments import LogMoments, common_roles
from hieropo.passes.worker import PassResult
from hieropo.rows.batches import Roles
from hieropo.rows.ids import plain
from hieropo.rows.task_hash import check_shards, shards_of
from hieropo.storage.shards import Plan


def split(moments: LogMoments, shards: int) -> Iterator[LogMoments]:
    """Yield the moments of the tasks of each shard, in the order of the shards.

    The sketch of the rows, which does not know tasks, is unknown in each.

    Raises
    ------
    InputError
        ``shards`` is no power of two.
    """
    shard_of_task = shards_of(moments.tasks, check_shards(shards))
    order = np.argsort(shard_of_task, kind="stable")
    ends = np.searchsorted(shard_of_task[order], np.arange(1, shards + 1))
    for first, last in zip(np.append(0, ends[:-1]), ends, strict=True):
        yield tasks_at(moments, order[first:last])


def tasks_at(moments: LogMoments, rows: NDArray[Any]) -> LogMoments:
    """Return the moments of the tasks in some rows."""
    part, levels = moments.moments.at(rows), moments.summed.task_levels
    if moments.roles.levels or moments.roles.metadata:
        levels = levels.without(np.delete(moments.tasks, rows).tolist())
    sketch, clusters = RowSketch.unknown(round(part.n_rows)), moments.summed.clusters
    some = None if clusters is None else clusters.select(part.keys)
    return LogMoments(moments.features, moments.roles, PassResult(part, levels, sketch, some))


def refuse_strangers(tasks: NDArray[Any], shard: int, shards: int) -> None:
    """Raise InputError for a task of another shard."""
    place = shards_of(tasks, shards)
    other = place != shard
    if other.any():
        row = int(other.argmax())
        raise InputError(
            f"Task {plain(tasks[row])!r} belongs to shard {place[row]} of {shards}, and was given to shard {shard}: "
            "its rows would be found in neither. Assign tasks by hieropo.rows.task_hash.shards_of, or use split()."
        )


def on_plan(moments: LogMoments, plan: Plan) -> LogMoments:
    """Return moments for the feature map, the columns and the offset of a plan."""
    roles = common_roles(plan.roles, moments.roles)
    if roles != plan.roles:
        dropped = [role for role in Roles.names() if getattr(roles, role) != getattr(plan.roles, role)]
        raise MismatchError(
            f"These moments were made of other columns than the plan of the shards names: {', '.join(dropped)}. Begin "
            "with the columns that all moments have in common."
        )
    aligned = replace(moments.within(plan.features), roles=roles)
    offset = None if plan.offset is None else np.array(plan.offset)
    if aligned.moments.unit_offset is None and offset is None:
        return aligned
    at_offset = aligned.moments.around(None if offset is None else np.tile(offset, aligned.moments.n_actions))
    return replace(aligned, summed=replace(aligned.summed, moments=at_offset))


def together(parts: Sequence[LogMoments]) -> LogMoments:
    """Return the moments of different tasks side by side; tables of different dtypes of ids become objects."""
    if len(parts) == 1:
        return parts[0]
    some = [part for part in parts if len(part)] or list(parts[:1])
    joined = side_by_side([part.moments for part in some])
    levels = reduce(TaskLevels.__add__, (part.summed.task_levels for part in some))
    clusters = [part.summed.clusters for part in some if part.summed.clusters is not None]
    result = PassResult(
        joined,
        levels,
        RowSketch.unknown(round(joined.n_rows)),
        ClusterTable.together(clusters) if clusters else None,
    )
    return LogMoments(some[0].features, some[0].roles, result)


def side_by_side(parts: Sequence[Moments]) -> Moments:
    """Return the moments of different tasks in one table; tables of different dtypes of ids become objects."""
    keys = reduce(lambda union, more: union.union(more)[0], (part.keys for part in parts))

    def stacked(name: str) -> Any:
        return np.concatenate([getattr(part, name) for part in parts])

    return replace(
        parts[0], keys=keys, sums=stacked("sums"), rows=stacked("rows"), log_precision=stacked("log_precision"),
        squares=stacked("squares") if parts[0].sampled else None,
    )  # fmt: skip


def plus(one: LogMoments, other: LogMoments) -> LogMoments:
    """Return the sum of the moments of one shard, both of one plan."""
    return LogMoments(one.features, one.roles, one.summed + other.summed)
