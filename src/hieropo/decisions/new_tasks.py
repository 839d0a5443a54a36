"""Policies for tasks that are not in the log, from the groups and metadata in the requests."""

from collections.abc import Callable
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Codes
from hieropo._utils.packed import pack
from hieropo.decisions.requests import Requests
from hieropo.errors import LogError, SchemaError, UnknownTaskError, warn
from hieropo.model.gaussian import Gaussian
from hieropo.model.table import PosteriorTable
from hieropo.model.task_levels import TaskLevels
from hieropo.policies.lower_bound import LCBPolicy
from hieropo.rows.batches import Batch, Roles
from hieropo.rows.ids import matching_known_id, plain
from hieropo.rows.keys import Keys

_CACHE = 1 << 23  # numbers in the priors that are kept: 64 MiB


class NewTasks:
    """Makes policies for tasks that are not in the log, where the log has levels or metadata.

    Such a task has the posterior of a task without rows in its group, at its metadata. If the group is not in the log
    either, it is a new group of the level above.

    Parameters
    ----------
    roles : Roles
        Of the log.
    task_levels : callable
        Returns the levels and metadata of the tasks in the log; called at the first new task.
    posterior : callable
        Returns the posterior; called at the first new task that is decided by its prior.
    remember : bool
        Requests that contradict earlier requests in groups or metadata cannot be used. Memory then grows with the
        number of new tasks, so that this suits one table of requests. Otherwise an answer depends on its request and
        the log alone, and memory is bounded.
    """

    levels: tuple[str, ...]
    metadata: tuple[str, ...]

    def __init__(
        self,
        roles: Roles,
        task_levels: Callable[[], TaskLevels],
        posterior: Callable[[], Any],
        *,
        remember: bool = True,
    ) -> None:
        self.levels, self.metadata = roles.levels, roles.metadata
        self._roles = Roles(roles.task, None, roles.reward, levels=roles.levels, metadata=roles.metadata)
        self._load_task_levels, self._load_posterior = task_levels, posterior
        self._remember, self._warned = remember, False
        self._prior_of: Callable[[Any, Any], Gaussian] | None = None

    @classmethod
    def of(
        cls,
        roles: Roles,
        task_levels: Callable[[], TaskLevels],
        posterior: Callable[[], Any],
        *,
        remember: bool = True,
    ) -> Self | None:
        """Return the policies for new tasks; None where the log has neither levels nor metadata."""
        if not (roles.levels or roles.metadata):
            return None
        return cls(roles, task_levels, posterior, remember=remember)

    @cached_property
    def _posterior(self) -> Any:
        return self._load_posterior()

    @cached_property
    def _of_log(self) -> TaskLevels:
        return self._load_task_levels()

    @cached_property
    def _remembered(self) -> TaskLevels:
        """Groups and metadata of the log and of all requests so far."""
        return self._of_log.copy()

    @cached_property
    def _groups(self) -> tuple[Keys, ...]:
        """The groups in the log, the widest level first."""
        parents = self._of_log.levels().values()
        return tuple(Keys.factorize(list(parent.values()))[0] for parent in reversed(list(parents)))

    def policy(self, requests: Requests, like: LCBPolicy) -> tuple[LCBPolicy, Codes]:
        """Return a policy for requests of tasks that are not in the log, and the row (n,) of each in its table.

        The policy has the settings of ``like``. In its table, requests with the same groups and metadata share a row.

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
        self._warn_of_groups(requests)
        if self._remember:
            self._remembered.add(self._batch(requests))
        first, rows = self._distinct(requests)
        prior_of = self._cached(like.table.dim)
        groups = [level[first].tolist() for level in reversed(requests.levels)]
        metadata = None if requests.metadata is None else requests.metadata[first].tolist()
        priors = [
            prior_of(tuple(level[k] for level in groups), None if metadata is None else tuple(metadata[k]))
            for k in range(first.size)
        ]
        table = PosteriorTable.joint(
            Keys.factorize(np.arange(first.size))[0], np.array([prior.mean for prior in priors]),
            pack(np.array([prior.cov for prior in priors])), np.zeros(first.size, dtype=np.int64), priors[0],
        )  # fmt: skip
        return LCBPolicy(table, like.features, pessimism=like.pessimism), rows

    @staticmethod
    def _distinct(requests: Requests) -> tuple[Codes, Codes]:
        """Return the first requests with distinct groups and metadata, and which of them (n,) each request equals."""
        codes = [Keys.factorize(groups)[1].astype(np.float64)[:, None] for groups in requests.levels]
        columns = codes if requests.metadata is None else [*codes, requests.metadata]
        _, first, rows = np.unique(np.hstack(columns), axis=0, return_index=True, return_inverse=True)
        return first, rows.reshape(-1)

    def _batch(self, requests: Requests) -> Batch:
        return Batch(
            requests.task, None, np.zeros(len(requests)), None,  # type: ignore[arg-type]  # no context is needed
            first_row=requests.first_row, roles=self._roles, levels=requests.levels, metadata=requests.metadata,
            rows=requests.numbers,
        )  # fmt: skip

    def absent_reason(self, requests: Requests) -> str | None:
        """Return the reason why requests of new tasks cannot be used: an absent column; None where none is absent."""
        if not requests.absent:
            return None
        column = requests.absent[0]
        return f"a new task without {'its group' if column in self.levels else 'its metadata'}, {column!r}"

    def contradictions(self, requests: Requests) -> NDArray[np.bool_]:
        """Return which requests (n,) of new tasks contradict the log, or remembered ones, in groups or metadata."""
        if not self._remember:
            return self._contradict_log(requests)
        bad = np.zeros(len(requests), dtype=np.bool_)
        try:
            self._remembered.add(self._batch(requests))
        except LogError:
            for row in range(len(requests)):
                try:
                    self._remembered.add(self._batch(requests.subset(np.array([row]))))
                except LogError:
                    bad[row] = True
        return bad

    def _contradict_log(self, requests: Requests) -> NDArray[np.bool_]:
        """Return which requests (n,) name a group of the log in another wider group than the log."""
        bad = np.zeros(len(requests), dtype=np.bool_)
        wider = list(self._of_log.levels().values())[1:]  # new tasks are in no group of the log
        for parent, (groups, of_groups) in zip(wider, pairwise(reversed(requests.levels)), strict=True):
            pairs = zip(groups.tolist(), of_groups.tolist(), strict=True)
            bad |= np.array([parent.get(group, above) != above for group, above in pairs], dtype=np.bool_)
        return bad

    def known_groups(self, requests: Requests) -> tuple[NDArray[np.bool_], ...]:
        """Return for each level, the widest first, which groups (n,) of the requests are in the log."""
        return tuple(
            np.asarray(known.locate(groups)) >= 0
            for groups, known in zip(requests.levels, self._groups, strict=True)
        )

    def _warn_of_groups(self, requests: Requests) -> None:
        """Warn once of an unknown group whose id resembles a known one."""
        columns = zip(self.levels, requests.levels, self._groups, strict=True)
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

    def _cached(self, dim: int) -> Callable[[Any, Any], Gaussian]:
        """Return :meth:`_prior_in` with a cache of the priors, of ``dim`` features, that were asked for last."""
        if self._prior_of is None:
            self._prior_of = lru_cache(max(1, _CACHE // dim**2))(self._prior_in)
        return self._prior_of

    def _prior_in(self, groups: tuple[Any, ...], values: tuple[float, ...] | None) -> Gaussian:
        """Return the posterior of a task without rows in the lowest of its groups that is in the log."""
        metadata: dict[str, Any] = {} if values is None else {"metadata": np.array(values)}
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
