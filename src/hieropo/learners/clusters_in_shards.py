"""Clusters of a log in shards: correlations are learned from some tasks, and enter the sums shard by shard.

Shards are ranges of a hash of the task, and the tasks that correlations are learned from are those with the least
hashes, as in memory. So they are in the first shards, and the result is that of the fit in memory.
"""

from dataclasses import dataclass, replace
from functools import reduce

from hieropo._utils.arrays import Array
from hieropo.estimation.clusters import VARIANCES_OF, tasks_to_learn_from
from hieropo.features.maps import FeatureMap
from hieropo.moments.clusters import ClusterTable, correlated
from hieropo.moments.in_shards import MomentsInShards, total_of
from hieropo.moments.statistics import Moments
from hieropo.passes.log_moments import clusters_on
from hieropo.passes.sharded import ShardedMoments
from hieropo.passes.shards_in_memory import side_by_side
from hieropo.rows.keys import Keys
from hieropo.rows.task_hash import of_least_hashes


@dataclass(frozen=True, eq=False)
class ClustersInShards:
    """The sums of clusters of a log in shards, of which those of one shard are in memory at a time.

    Parameters
    ----------
    sharded : ShardedMoments
        Made with a column of clusters.
    features : FeatureMap
        That of the sums that are learned from.
    per_action : bool
        True where these are kept per action.
    """

    sharded: ShardedMoments
    features: FeatureMap
    per_action: bool

    def table(self, shard: int) -> ClusterTable:
        """Return the sums of the clusters of the tasks of a shard; tasks are in the order of its moments."""
        stored = self.sharded.shard(shard).summed
        assert stored.clusters is not None
        table = clusters_on(stored.clusters, self.sharded.features, self.features)
        if self.per_action or not stored.moments.per_action:
            return table
        return table.dense(len(self.features.actions or ()))

    def part(self, sums: MomentsInShards) -> tuple[Moments, ClusterTable]:
        """Return the moments and the clusters of the tasks that correlations are learned from."""
        wanted = tasks_to_learn_from(len(sums), self.sharded.cluster_rows, VARIANCES_OF)
        moments, tables, count = [], [], 0
        for k, tasks in enumerate(sums.shard_tasks):
            if tasks and count < wanted:
                ids = self.sharded.ids(k)
                rows = of_least_hashes(ids, wanted - count)
                some = replace(sums.load(k), keys=Keys(ids)).at(rows)
                moments.append(some)
                tables.append(self.table(k).select(some.keys))
                count += rows.size
        return side_by_side(moments), ClusterTable.together(tables)

    def correlated(self, sums: MomentsInShards, correlation: Array) -> MomentsInShards:
        """Return the sums of rows that are correlated within clusters, as :func:`moments.clusters.correlated`."""
        if not correlation.any():
            return sums
        load = sums.load

        def of_shard(shard: int) -> Moments:
            moments = load(shard)
            return correlated(
                moments, replace(self.table(shard), tasks=moments.keys).at(moments), correlation
            )

        in_shards = replace(sums, load=of_shard)
        return replace(in_shards, total=reduce(Moments.__add__, in_shards.map(total_of)))
