"""Moments of more tasks than memory holds, read shard by shard: sums over tasks are sums over shards."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hieropo.moments.statistics import Moments


@dataclass(frozen=True, eq=False)
class MomentsInShards:
    """The moments of all tasks of a log, of which one shard is in memory at a time.

    Parameters
    ----------
    total : Moments
        Sums over all tasks, as moments of one task.
    shard_tasks : tuple of int
        The number of tasks of each shard.
    observed_tasks, observed_units : int
        Tasks with rows; units with rows.
    load : callable
        Returns the moments of a shard, with any ids.
    """

    total: Moments
    shard_tasks: tuple[int, ...]
    observed_tasks: int
    observed_units: int
    load: Callable[[int], Moments]

    def __len__(self) -> int:
        return sum(self.shard_tasks)

    @property
    def n_rows(self) -> float:
        """The number of rows of all tasks, by their weights."""
        return self.total.n_rows

    def shards(self) -> Iterator[Moments]:
        """Yield the moments of each shard that has tasks, in their order."""
        for k, tasks in enumerate(self.shard_tasks):
            if tasks:
                yield self.load(k)
