"""The further reads of a log that a fit makes: sums of clusters, or rows in memory, after the features are chosen."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from hieropo.estimation.crossed.drift import Drift
from hieropo.estimation.crossed.walking import WalkErrors
from hieropo.estimation.learning import Learning
from hieropo.estimation.likelihoods import fit_by_sites
from hieropo.estimation.sites import LogRows, SiteFit
from hieropo.features.maps import FeatureMap
from hieropo.learners.clusters_in_shards import ClustersInShards
from hieropo.logs.bad_rows.rejects import Rejects
from hieropo.moments.clusters import ClusterTable
from hieropo.moments.periods import PeriodSums
from hieropo.moments.statistics import Moments
from hieropo.passes.clusters import cluster_table
from hieropo.passes.periods import TimesOfRows, period_sums
from hieropo.passes.rows_in_memory import rows_in_memory
from hieropo.rows.batches import Roles


class FurtherReads(NamedTuple):
    """The results of further reads of a log; None without one.

    Attributes
    ----------
    clusters : ClusterTable or None
    rows : LogRows or None
    periods : callable or None
        Reads the log for the sums by period of the rows of some moments; returns None where it has too few times.
    drift : Drift or None
        That of the rows before, which stays where rows are added.
    walk_errors : WalkErrors or None
        Of the rows before.
    """

    clusters: ClusterTable | ClustersInShards | None = None
    rows: LogRows | None = None
    periods: Callable[[Moments], PeriodSums | None] | None = None
    drift: Drift | None = None
    walk_errors: WalkErrors | None = None


NO_FURTHER_READS = FurtherReads()


def further_reads(
    likelihood: str,
    source: Any,
    roles: Roles,
    features: FeatureMap,
    moments: Moments,
    rejects: Rejects | None,
    times: TimesOfRows | None,
) -> FurtherReads:
    """Read a log again, for a column of clusters or for a likelihood that is not Gaussian; later, for its times."""
    clusters = rows = None
    if roles.cluster is not None:
        clusters = cluster_table(source, roles, features, moments, rejects)
    if likelihood != "gaussian":
        rows = rows_in_memory(source, roles, features, moments, rejects)
    periods = None
    if times is not None:
        periods = partial(period_sums, source, roles, features, times, rejects=rejects)
    return FurtherReads(clusters, rows, periods)


def learned_by(likelihood: str, reads: FurtherReads, moments: Any, learn: Callable[..., Learning]) -> SiteFit:
    """Return what is learned under a likelihood: from the rows where they were read, else from the moments.

    Parameters
    ----------
    likelihood : str
    reads : FurtherReads
    moments : Moments or MomentsInShards
    learn : callable
        From moments, and a similar hierarchy or None, to a Learning.
    """
    if reads.rows is None:
        return SiteFit(learn(moments, None), moments, None)
    return fit_by_sites(likelihood, reads.rows, learn)
