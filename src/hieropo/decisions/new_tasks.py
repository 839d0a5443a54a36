"""Policies for tasks that are not in the log, from the groups and metadata in the requests."""

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
    """Makes policies for tasks that are not in the log, where the log has levels or metadata.

    Such a task has the posterior of a task without rows in its group, at its metadata. If the group is not in the log
    either, it is a new group of the level above.

    Parameters
    ----------
    roles : Roles
        Of the log.
    load : callable
        Returns the posterior, and the levels and metadata of the tasks in the log; called at the first new task.
    """

    levels: tuple[str, ...]
    metadata: tuple[str, ...]

    def __init__(self, roles: Roles, load: Callable[[], tuple[Any, TaskLevels]]) -> None:
        self.levels, self.metadata = roles.levels, roles.metadata
        self._roles = Roles(roles.task, None, roles.reward, levels=roles.levels, metadata=roles.metadata)
        self._load, self._posterior = load, None
        self._task_levels = TaskLevels(self._roles)
        self._groups: list[Keys] = []  # groups in the log, level by level from the tasks upwards
        self._warned = False
        self._priors: dict[Any, Gaussian] = {}

    @classmethod
    def of(cls, roles: Roles, load: Callable[[], tuple[Any, TaskLevels]]) -> Self | None:
        """Return the policies for new tasks; None where the log has neither levels nor metadata."""
        return cls(roles, load) if roles.levels or roles.metadata else None

    def policy(self, requests: Requests, like: LCBPolicy) -> LCBPolicy:
        """Return a policy with the settings of ``like`` for the tasks of requests, none of which is in the log.

        Raises
        ------
        SchemaError
            The requests lack a column of levels or metadata.
        LogError
            A task, or a group, is in two groups of one level; metadata differ within a task, or are not finite.

        Warns
        -----
        HieropoWarning
            The id of an unknown group resembles that of a group in the log.
        """
        if requests.absent:
            raise SchemaError(self._absent_message(requests))
        if self._posterior is None:
            self._posterior, of_log = self._load()
            self._task_levels = of_log.copy()
            self._groups = [Keys.factorize(list(parent.values()))[0] for parent in of_log.levels().values()]
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
        parents, metadata = tuple(self._task_levels.levels().values()), self._task_levels.known
        priors = [self._prior(task, parents, metadata) for task in keys.values.tolist()]
        table = PosteriorTable(
            keys, np.array([prior.mean for prior in priors]), pack(np.array([prior.cov for prior in priors])),
            np.zeros(len(keys), dtype=np.int64), priors[0],
        )  # fmt: skip
        return LCBPolicy(table, like.features, pessimism=like.pessimism)

    def _warn_of_groups(self, requests: Requests) -> None:
        """Warn once of an unknown group whose id resembles a known one."""
        columns = zip(self.levels, requests.levels, reversed(self._groups), strict=True)
        for column, groups, known in [] if self._warned else columns:
            values = Keys.factorize(groups)[0].values
            unknown = values[np.asarray(known.locate(values)) < 0].tolist()
            pairs = ((group, matching_known_id(group, known)) for group in unknown)
            group, alike = next((pair for pair in pairs if pair[1] is not None), (None, None))
            if alike is not None and not self._warned:
                self._warned = True
                warn(
                    f"Group {plain(group)!r} of column {column!r} is unknown, but {alike!r} is known; its new tasks "
                    "are treated as tasks of a new group. If they are the same group, write its id as in the log."
                )

    def _prior(self, task: Any, parents: Any, metadata: Any) -> Gaussian:
        """Return the posterior of a task without rows, from the cache where its groups and metadata are the same."""
        groups, child = [], task
        for parent in parents:
            child = parent[child]
            groups.append(child)
        values = metadata.get(task)
        key = tuple(groups), None if values is None else values.tobytes()
        if key not in self._priors:
            self._priors[key] = self._prior_in(groups, values)
        return self._priors[key]

    def _prior_in(self, groups: list[Any], values: Any) -> Gaussian:
        """Return the posterior of a task without rows in the lowest of its groups that is in the log."""
        metadata: dict[str, Any] = {} if values is None else {"metadata": values}
        posterior: Any = self._posterior
        for level, group in enumerate(groups):
            try:
                posterior.node(level, group)
            except UnknownTaskError:
                continue
            in_group: Gaussian = posterior.new_task(group, level=level, **metadata)
            return in_group
        at_root: Gaussian = posterior.new_task(**metadata)
        return at_root

    def _absent_message(self, requests: Requests) -> str:
        column = requests.absent[0]
        role = "level" if column in self.levels else "metadata"
        meaning = (
            "the group of the task, whose tasks inform its prior"
            if role == "level"
            else "a number on which its prior mean depends"
        )
        return (
            f"Row {requests.first_row} is of task {plain(requests.task[0])!r}, which is not in the log, and the "
            f"requests lack column {column!r} (role {role}): {meaning}. Add the column, or leave out requests of such "
            "tasks."
        )
