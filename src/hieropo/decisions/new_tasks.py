"""Tasks that the log did not have, where requests say the groups that they belong to or numbers known of them."""

from collections.abc import Callable
from typing import Any, Self

import numpy as np

from hieropo._utils.packed import pack
from hieropo.decisions.requests import Requests
from hieropo.errors import SchemaError, UnknownTaskError, warn
from hieropo.model.gaussian import Gaussian
from hieropo.model.posterior import PosteriorTable
from hieropo.model.task_levels import TaskLevels
from hieropo.policies.lower_bound import LCBPolicy
from hieropo.rows.batches import Batch, Roles
from hieropo.rows.ids import matching_known_id, plain
from hieropo.rows.keys import Keys


class NewTasks:
    """Policies for tasks that a log with levels or metadata did not have.

    Such a task gets the posterior of a task without rows in its group, at its metadata. Of a group that the log did not
    have either it is that of a new group in the one above.

    Parameters
    ----------
    roles : Roles
        Of the log.
    known : callable
        Gives the posterior, and where the tasks of the log stand; called when the first such task comes.
    """

    levels: tuple[str, ...]
    metadata: tuple[str, ...]

    def __init__(self, roles: Roles, known: Callable[[], tuple[Any, TaskLevels]]) -> None:
        self.levels, self.metadata = roles.levels, roles.metadata
        self._roles = Roles(roles.task, None, roles.reward, levels=roles.levels, metadata=roles.metadata)
        self._known, self._posterior = known, None
        self._task_levels = TaskLevels(self._roles)
        self._groups: list[Keys] = []  # in the log, from the tasks upwards
        self._warned = False
        self._laws: dict[Any, Gaussian] = {}

    @classmethod
    def of(cls, roles: Roles, known: Callable[[], tuple[Any, TaskLevels]]) -> Self | None:
        """Return what is known of new tasks; None where a log has neither levels nor metadata."""
        return cls(roles, known) if roles.levels or roles.metadata else None

    def policy(self, requests: Requests, like: LCBPolicy) -> LCBPolicy:
        """Return a policy as another one for the tasks of requests, none of which the log had.

        Raises
        ------
        SchemaError
            The requests lack a column of levels or metadata.
        LogError
            A task, or a group, is in two groups of one level; metadata differ within a task, or are not finite.

        Warns
        -----
        HieropoWarning
            An unknown group reads as one that the log had.
        """
        if requests.absent:
            raise SchemaError(self._unplaced(requests))
        if self._posterior is None:
            self._posterior, before = self._known()
            self._task_levels = before.copy()
            self._groups = [Keys.factorize(list(parent.values()))[0] for parent in before.levels().values()]
        self._warn_of_groups(requests)
        n = len(requests)
        self._task_levels.add(
            Batch(
                requests.task, None, np.zeros(n), None,  # type: ignore[arg-type]  # no context is needed
                first_row=requests.first_row, roles=self._roles, levels=requests.levels, metadata=requests.metadata,
                rows=requests.numbers,
            )
        )  # fmt: skip
        keys, _ = Keys.factorize(requests.task)
        parents, values = tuple(self._task_levels.levels().values()), self._task_levels.known
        laws = [self._law(task, parents, values) for task in keys.values.tolist()]
        table = PosteriorTable(
            keys, np.array([law.mean for law in laws]), pack(np.array([law.cov for law in laws])),
            np.zeros(len(keys), dtype=np.int64), laws[0],
        )  # fmt: skip
        return LCBPolicy(table, like.features, pessimism=like.pessimism)

    def _warn_of_groups(self, requests: Requests) -> None:
        """Warn once of an unknown group that reads as a known one."""
        columns = zip(self.levels, requests.levels, reversed(self._groups), strict=True)
        for column, groups, known in [] if self._warned else columns:
            values = Keys.factorize(groups)[0].values
            unknown = values[np.asarray(known.locate(values)) < 0].tolist()
            pairs = ((group, matching_known_id(group, known)) for group in unknown)
            group, twin = next((pair for pair in pairs if pair[1] is not None), (None, None))
            if twin is not None and not self._warned:
                self._warned = True
                warn(
                    f"Group {plain(group)!r} of column {column!r} is unknown, but {twin!r} is known; new tasks of it "
                    "get the answer for a new group. Are they one group? Hand ids in as they were written in the log."
                )

    def _law(self, task: Any, parents: Any, values: Any) -> Gaussian:
        groups, child = [], task
        for parent in parents:
            child = parent[child]
            groups.append(child)
        numbers = values.get(task)
        key = tuple(groups), None if numbers is None else numbers.tobytes()
        if key not in self._laws:
            self._laws[key] = self._of_group(groups, numbers)
        return self._laws[key]

    def _of_group(self, groups: list[Any], numbers: Any) -> Gaussian:
        known: dict[str, Any] = {} if numbers is None else {"metadata": numbers}
        posterior: Any = self._posterior
        for level, group in enumerate(groups):
            try:
                posterior.node(level, group)
            except UnknownTaskError:
                continue
            found: Gaussian = posterior.new_task(group, level=level, **known)
            return found
        above: Gaussian = posterior.new_task(**known)
        return above

    def _unplaced(self, requests: Requests) -> str:
        column = requests.absent[0]
        role = "level" if column in self.levels else "metadata"
        what = (
            "the group whose tasks it is like"
            if role == "level"
            else "a number that its coefficients move with"
        )
        return (
            f"Row {requests.first_row} is of task {plain(requests.task[0])!r}, which the log did not have, and column "
            f"{column!r} (role {role}) is not in the requests: it says {what}. Add the column, or leave out requests "
            "of such tasks."
        )
