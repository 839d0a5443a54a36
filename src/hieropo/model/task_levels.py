"""Where each task of a log stands: the groups that it belongs to, and what is known of it."""

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
    """Groups and metadata of tasks in the making, batch by batch.

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
        """Return what was known: the parents of each level from the tasks upwards, and the metadata of each task."""
        found = cls(roles)
        found._parents = [dict(parents) for parents in levels]
        found._known = {task: np.asarray(values, dtype=np.float64) for task, values in known.items()}
        return found

    def copy(self) -> "TaskLevels":
        """Return a copy that can grow on its own."""
        twin = TaskLevels(self._roles)
        twin._parents = [dict(parents) for parents in self._parents]
        twin._known = dict(self._known)
        return twin

    def __add__(self, other: "TaskLevels") -> "TaskLevels":
        """Put together what was found in different rows; where both know something, it has to be the same.

        Raises
        ------
        LogError
            A task, or a group, belongs to two groups of one level; metadata differ within a task.
        """
        both = self.copy()
        columns = (self._roles.task, *reversed(self._roles.levels))
        for k, parents in enumerate(other._parents):
            for child, group in parents.items():
                if both._parents[k].setdefault(child, group) != group:
                    there = both._parents[k][child]
                    raise LogError(_two_groups(f"Column {columns[k + 1]!r}", columns[k], child, group, there))
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
            self._hang(k, children, nodes, batch)
            children = nodes
        if batch.metadata is not None:
            self._know(batch)

    def _hang(self, k: int, children: NDArray[Any], nodes: NDArray[Any], batch: Batch) -> None:
        parents = self._parents[k]
        keys, code = Keys.factorize(children)
        above, node = Keys.factorize(nodes)
        _, rows = np.unique(code * len(above) + node, return_index=True)
        ids, groups = keys.values.tolist(), above.values.tolist()
        for row in np.sort(rows):
            child, group = ids[code[row]], groups[node[row]]
            if parents.setdefault(child, group) != group:
                columns = (self._roles.task, *reversed(self._roles.levels))
                place = f"Column {columns[k + 1]!r}, row {batch.number(row)}"
                raise LogError(_two_groups(place, columns[k], child, group, parents[child]))

    def _know(self, batch: Batch) -> None:
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
            here, before = batch.metadata[row, column], expected[code[row], column]
            place = (
                f"Column {self._roles.metadata[column]!r}, row {batch.number(row)}: {here} for task {task!r}"
            )
            raise LogError(
                _differs(place, before)
                if np.isfinite(here)
                else f"{place}. Metadata are finite: fill such values in, or leave the column out."
            )

    def without(self, tasks: Collection[Any]) -> "TaskLevels":
        """Return what is known without these tasks, and without groups that hold no other."""
        left = TaskLevels(self._roles)
        gone = set(tasks)
        left._known = {task: values for task, values in self._known.items() if task not in gone}
        for k, parents in enumerate(self._parents):
            left._parents[k] = {child: group for child, group in parents.items() if child not in gone}
            gone = set(parents.values()) - set(left._parents[k].values())
        return left

    @property
    def known(self) -> Mapping[Any, NDArray[np.float64]]:
        """Numbers (c,) known of each task; none without columns of metadata."""
        return dict(self._known)

    def levels(self) -> Mapping[str, Mapping[Any, Any]]:
        """Return the parents of each level by its name, from the tasks upwards."""
        return dict(zip(reversed(self._roles.levels), self._parents, strict=True))

    def metadata(self) -> Metadata | None:
        """Return what is known of the tasks; None without columns of metadata."""
        if not self._roles.metadata:
            return None
        return Metadata(list(self._known), np.array(list(self._known.values())), self._roles.metadata)


def _two_groups(place: str, column: str, child: Any, here: Any, before: Any) -> str:
    return (
        f"{place}: {plain(child)!r} of column {column!r} is in {plain(here)!r} here and was in {plain(before)!r} "
        "before. Each has to belong to one. Are names used again in other groups? Make them unique, such as "
        "'group/name'. Has it moved? Take the last group for all its rows."
    )


def _differs(place: str, before: Any) -> str:
    return (
        f"{place}, of which an earlier row has {before}. Metadata are the same in all rows of a task; what "
        "changes from row to row is a context column."
    )
