"""The posterior of all tasks of a log in shards: of the population at once, of tasks one shard at a time."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from hieropo._utils.arrays import Array
from hieropo.errors import InputError
from hieropo.model.gaussian import Gaussian
from hieropo.moments.in_shards import MomentsInShards
from hieropo.moments.statistics import Moments


def refuse_groups(levels: Sequence[Any], metadata: object) -> None:
    """Raise InputError for tasks in groups, or with metadata.

    Raises
    ------
    InputError
        Names the way to learn from them.
    """
    if levels or metadata is not None:
        raise InputError(
            "Tasks in groups, or with metadata, are not learned from moments in shards: parents of tasks lie in "
            "several shards. Join the moments in memory, ShardedMoments.joined(), or leave levels and metadata out."
        )


class PosteriorInShards:
    """Posterior of a hierarchy given a log in shards.

    Tasks depend on each other only through the population. Given the sums over all tasks, the posterior of the tasks of
    a shard follows from the moments of the shard: it is the ordinary posterior of these tasks, with the root of all.

    Parameters
    ----------
    moments : MomentsInShards
    hierarchy : Hierarchy, CrossedHierarchies or CrossedHierarchy
    of_tasks : callable
        Returns the posterior of some tasks of the log, given all of it, from their moments.
    """

    moments: MomentsInShards
    hierarchy: Any

    def __init__(self, moments: MomentsInShards, hierarchy: Any, of_tasks: Callable[[Moments], Any]) -> None:
        self.moments = moments
        self.hierarchy = hierarchy
        self._of_tasks = of_tasks

    def of_tasks(self, moments: Moments) -> Any:
        """Return the posterior of some tasks of the log from their moments, given all of the log."""
        return self._of_tasks(moments)

    def shards(self) -> Iterator[Any]:
        """Yield the posterior of the tasks of each shard, with numbers in place of their ids."""
        return map(self.of_tasks, self.moments.shards())

    @cached_property
    def population(self) -> Any:
        """The posterior of no task: of mu, of actions and of new tasks."""
        return self.of_tasks(self.moments.none())

    @property
    def dim(self) -> int:
        """The number d of features of the feature map."""
        return self.moments.dim

    @property
    def hyper(self) -> Gaussian:
        """Posterior of the population mean."""
        hyper: Gaussian = self.population.hyper
        return hyper

    @property
    def log_evidence(self) -> float:
        """Log marginal likelihood of the log."""
        return float(self.population.log_evidence)

    @property
    def noise_variances(self) -> Array:
        """Noise variance of all rows (1,), or of the actions (K,)."""
        return np.asarray(self.population.noise_variances)

    @property
    def central_hierarchy(self) -> Any:
        """The hierarchy that stands for a mixture of several."""
        return self.population.central_hierarchy

    def action(self, action: int) -> Gaussian:
        """Return the population's coefficients of one action, of the crossed prior."""
        of_action: Gaussian = self.population.action(action)
        return of_action

    def new_task(self) -> Gaussian:
        """Return the posterior of a task that has no rows."""
        new_task: Gaussian = self.population.new_task()
        return new_task

    def __repr__(self) -> str:
        return f"PosteriorInShards({self.moments!r}, log evidence {self.log_evidence:.6g})"
