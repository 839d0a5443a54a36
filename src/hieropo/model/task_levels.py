"""The groups and the metadata of each task of a log."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo.errors import LogError
from hieropo.model.metadata import Metadata
from hieropo.rows.batches import Batch, Roles
from hieropo.rows.ids import plain
from hieropo.rows.keys import Keys


class TaskLevels:
    """Groups and metadata of tasks in the making, from batches of rows.

    Parameters
    ----------
    roles : Roles
        Names the columns of levels, the widest first, and of metadata.
    """

    def __init__(self, roles: Roles) -> None:
        self._roles = roles
        self._parents: list[dict[Any, Any]] = [{} for _ in roles.levels]
        self._known: dict[Any, NDArray[np.float64]] = {}

    @classmethod
    def of(cls, roles: Roles, levels: Sequence[Mapping[Any, Any]], known: Mapping[Any, Any]) -> "TaskLevels":
        """Return task levels from the parents of each level, from the tasks upwards, and the metadata of each task."""
        task_levels = cls(roles)
        task_levels._parents = [dict(parents) for parents in levels]
        task_levels._known = {task: np.asarray(values, dtype=np.float64) for task, values in known.items()}
        return task_levels

    @classmethod
    def of_hierarchy(cls, roles: Roles, hierarchy: Any) -> "TaskLevels":
        """Return the task levels that a hierarchy of either kind holds; empty without a hierarchy."""
        if hierarchy is None:
            return cls(roles)
        metadata = {}
        if roles.metadata and hierarchy.metadata is not None:
            tasks = hierarchy.metadata.tasks.values.tolist()
            metadata = dict(zip(tasks, hierarchy.metadata.values, strict=True))
        parents = [level.parent for level in hierarchy.levels] if roles.levels else []
        return cls.of(roles, parents, metadata)

    def copy(self) -> "TaskLevels":
        """Return an independent copy."""
        copied = TaskLevels(self._roles)
        copied._parents = [dict(parents) for parents in self._parents]
        copied._known = dict(self._known)
        return copied

    def __add__(self, other: "TaskLevels") -> "TaskLevels":
        """Return the task levels of both; where both have an entry, it has to be the same.

        Raises
        ------
        LogError
            A task, or a group, belongs to two groups of one level; metadata differ within a task.
        """
        both = self.copy()
        columns = (self._roles.task_name, *reversed(self._roles.levels))
        for k, parents in enumerate(other._parents):
            for child, group in parents.items():
                if both._parents[k].setdefault(child, group) != group:
                    here = both._parents[k][child]
                    raise LogError(_two_groups(f"Column {columns[k + 1]!r}", columns[k], child, group, here))
        for task, values in other._known.items():
            known = both._known.setdefault(task, values)
            if not np.array_equal(known, values):
                column = int(np.argmax(known != values))
                place = f"Column {self._roles.metadata[column]!r}: {values[column]} for task {plain(task)!r}"
                raise LogError(_differs(place, known[column]))
        return both

    def add(self, batch: Batch) -> None:
        """Add the tasks of a batch.

        Raises
        ------
        LogError
            A task, or a group, belongs to two groups of one level; metadata differ within a task, or are not finite.
        """
        children = batch.task
        for k, nodes in enumerate(reversed(batch.levels)):
            self._add_parents(k, children, nodes, batch)
            children = nodes
        if batch.metadata is not None:
            self._add_metadata(batch)

    def _add_parents(self, k: int, children: NDArray[Any], nodes: NDArray[Any], batch: Batch) -> None:
        parents = self._parents[k]
        keys, code = Keys.factorize(children)
        node_keys, node = Keys.factorize(nodes)
        _, rows = np.unique(code * len(node_keys) + node, return_index=True)
        ids, groups = keys.values.tolist(), node_keys.values.tolist()
        for row in np.sort(rows):
            child, group = ids[code[row]], groups[node[row]]
            if parents.setdefault(child, group) != group:
                columns = (self._roles.task_name, *reversed(self._roles.levels))
                number = batch.number(int(row))
                place = f"Column {columns[k + 1]!r}, row {number}"
                text = _two_groups(place, columns[k], child, group, parents[child])
                raise LogError.in_row(number, text, lenient=False)

    def _add_metadata(self, batch: Batch) -> None:
        assert batch.metadata is not None
        keys, code = Keys.factorize(batch.task)
        first = np.unique(code, return_index=True)[1]
        for task, row in zip(keys.values.tolist(), first, strict=True):
            self._known.setdefault(task, batch.metadata[row].copy())
        expected = np.array([self._known[task] for task in keys.values.tolist()])
        other = ~((batch.metadata == expected[code]) & np.isfinite(batch.metadata))
        if other.any():
            row, column = (int(k) for k in np.argwhere(other)[0])
            task = plain(keys.values[code[row]])
            value, first_value = batch.metadata[row, column], expected[code[row], column]
            number = batch.number(row)
            place = f"Column {self._roles.metadata[column]!r}, row {number}: {value} for task {task!r}"
            raise LogError.in_row(
                number,
                _differs(place, first_value)
                if np.isfinite(value)
                else f"{place}. Metadata are finite: fill such values in, or leave the column out.",
                lenient=False,
            )

    def without(self, tasks: Collection[Any]) -> "TaskLevels":
        """Return the task levels without these tasks, and without groups that have no other task."""
        remaining = TaskLevels(self._roles)
        removed = set(tasks)
        remaining._known = {task: values for task, values in self._known.items() if task not in removed}
        for k, parents in enumerate(self._parents):
            remaining._parents[k] = {child: group for child, group in parents.items() if child not in removed}
            removed = set(parents.values()) - set(remaining._parents[k].values())
        return remaining

    @property
    def known(self) -> Mapping[Any, NDArray[np.float64]]:
        """The metadata (c,) of each task; empty without columns of metadata."""
        return dict(self._known)

    def levels(self) -> Mapping[str, Mapping[Any, Any]]:
        """Return the parents of each level by its name, from the tasks upwards."""
        return dict(zip(reversed(self._roles.levels), self._parents, strict=True))

    def metadata(self) -> Metadata | None:
        """Return the metadata of the tasks; None without columns of metadata."""
        if not self._roles.metadata:
            return None
        return Metadata(list(self._known), np.array(list(self._known.values())), self._roles.metadata)


def _two_groups(place: str, column: str, child: Any, here: Any, before: Any) -> str:
    return (
        f"{place}: {plain(child)!r} of column {column!r} is in {plain(here)!r} here and in {plain(before)!r} in an "
        "earlier row, and it has to belong to one group. Are names used again in other groups? Make them unique, "
        "such as 'group/name'. Did it change its group? Use the last group for all its rows."
    )


def _differs(place: str, before: Any) -> str:
    return (
        f"{place}, and {before} in an earlier row. Metadata have to be the same in all rows of a task. Name a column "
        "that changes from row to row as context."
    )
