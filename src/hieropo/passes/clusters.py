"""A further read of a log: the sums of its clusters, in the features and offset that the first pass ended with."""

from typing import Any

from hieropo.errors import InputError
from hieropo.features.maps import FeatureMap
from hieropo.logs.bad_rows.rejects import Rejects
from hieropo.logs.reading import read_again
from hieropo.moments.clusters import ClusterAccumulator, ClusterTable
from hieropo.moments.statistics import Moments
from hieropo.rows.batches import Roles


def check_cluster(roles: Roles) -> None:
    """Refuse clusters together with roles for which correlated rows are not derived.

    Raises
    ------
    InputError
        Names both columns.
    """
    if roles.cluster is None:
        return
    for role in ("precision", "sampling_weight"):
        if getattr(roles, role) is not None:
            raise InputError(
                f"cluster={roles.cluster!r} does not go with {role}={getattr(roles, role)!r}: the correlation within "
                "clusters is derived for rows of equal variance that are no random sample. Leave one of the two "
                "columns out."
            )


def cluster_table(
    source: Any, roles: Roles, features: FeatureMap, moments: Moments, rejects: Rejects | None = None
) -> ClusterTable:
    """Return the sums of the clusters of a log.

    Parameters
    ----------
    source : LogSource
        It must be possible to read it again.
    roles : Roles
        With a column of clusters.
    features : FeatureMap
        Of the moments, with all of their actions.
    moments : Moments
        Of the same rows.
    rejects : Rejects, optional
        Where rows that cannot be used are set aside.

    Raises
    ------
    LogError
        A cluster is missing.
    """
    total = ClusterAccumulator(features, moments.offset, per_action=moments.per_action)
    for batch in read_again(source, roles, rejects):
        codes = None
        if features.actions is not None:
            codes = features.action_codes(batch.action, first_row=batch.first_row)
        total.add(batch, codes)
    return total.table()
