"""Rows that a refresh could not learn from, found before they are sealed, so that the log stays a log that fits read.

A task that comes in a group and later in another one contradicts itself; the first row counts. Other rows that a pass
over the log would refuse, such as a sum of rewards that no log can hold, are found by halving.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from hieropo.errors import HieropoError
from hieropo.features.maps import FeatureMap
from hieropo.model.task_levels import TaskLevels
from hieropo.moments.units import one_action
from hieropo.serve.columns import LEFT_OUT, RecordColumns
from hieropo.serve.learning import learnable
from hieropo.serve.segments import Segment, read_rows

GROUP, METADATA, REFUSED = "another group than before", "other metadata than before", "refused by the learner"
NEW_ACTION = "an action without given columns"


class KnownGroups:
    """Groups and metadata of tasks, as the first row of each told them.

    Parameters
    ----------
    columns : RecordColumns
    before : TaskLevels
        Of the moments with which the record begins.
    """

    def __init__(self, columns: RecordColumns, before: TaskLevels) -> None:
        self._columns = columns
        self._parents = [dict(parents) for parents in before.levels().values()]  # from the tasks upwards
        self._metadata = {task: tuple(values.tolist()) for task, values in before.known.items()}

    def reasons(self, rows: pa.Table) -> list[str]:
        """Return why each row cannot be used, empty where it can; its groups are known from then on."""
        columns = self._columns
        if not columns.levels and not columns.metadata:
            return [""] * rows.num_rows
        tasks = _tuples(rows, [name for name, _ in columns.task])
        if len(columns.task) == 1:
            tasks = [task for (task,) in tasks]
        groups = _tuples(rows, [name for name, _ in reversed(columns.levels)])
        metadata = _tuples(rows, [name for name, _ in columns.metadata])
        return [self._reason(*row) for row in zip(tasks, groups, metadata, strict=True)]

    def _reason(self, task: Any, groups: tuple[Any, ...], metadata: tuple[float, ...]) -> str:
        pairs = list(zip((task, *groups[:-1]), groups, strict=True)) if groups else []
        if any(
            parents.get(child, group) != group
            for parents, (child, group) in zip(self._parents, pairs, strict=True)
        ):
            return GROUP
        if self._metadata.get(task, metadata) != metadata:
            return METADATA
        for parents, (child, group) in zip(self._parents, pairs, strict=True):
            parents[child] = group
        self._metadata[task] = metadata
        return ""


def _tuples(rows: pa.Table, names: Sequence[str]) -> list[tuple[Any, ...]]:
    if not names:
        return [()] * rows.num_rows
    return list(zip(*(rows.column(name).to_pylist() for name in names), strict=True))


def refused_rows(rows: pa.Table, learn: Callable[[pa.Table], Any]) -> set[int]:
    """Return the positions of rows without which ``learn`` accepts the others; found by halving.

    ``learn`` raises a :class:`HieropoError` for rows that cannot be used, whatever the other rows are.
    """
    refused: set[int] = set()
    parts = [(0, rows.num_rows)]
    while parts:
        start, stop = parts.pop()
        try:
            if stop > start:
                learn(rows.slice(start, stop - start))
        except HieropoError:
            if stop - start == 1:
                refused.add(start)
            else:
                middle = (start + stop) // 2
                parts += [(start, middle), (middle, stop)]
    return refused


def left_out(
    state: Path, segments: Sequence[Segment], columns: RecordColumns, features: FeatureMap
) -> dict[str, int]:
    """Return the number of decisions in segments that a refresh does not learn from, by reason."""
    reasons: dict[str, int] = {}
    others = read_rows(state, segments, "others", columns)
    if others.num_rows:
        for entry in others.column(LEFT_OUT).value_counts().to_pylist():
            reasons[entry["values"]] = entry["counts"]
    if one_action(features) is not None:
        return reasons
    rows = read_rows(state, segments, "log", columns)
    new = rows.num_rows - learnable(rows, columns, features).num_rows
    return {**reasons, NEW_ACTION: new} if new else reasons


def in_words(reasons: Mapping[str, int]) -> str:
    """Return numbers of rows by reason as text."""
    return ", ".join(f"{rows:,} ({reason})" for reason, rows in reasons.items())
