"""Refusals of further rows that do not go with the rows so far of a learner."""

from hieropo.errors import InputError, SchemaError
from hieropo.moments.clusters import ClusterTable
from hieropo.passes.clusters import check_cluster
from hieropo.rows.batches import Roles


def refuse_lost_clusters(roles: Roles, clusters: ClusterTable | None) -> None:
    """Refuse further rows where the clusters of the rows so far are not in memory.

    Raises
    ------
    InputError
        Names the column, and the way to learn from all rows.
    """
    if roles.cluster is not None and clusters is None:
        raise InputError(
            f"partial_fit was called on a loaded policy whose rows form clusters, column {roles.cluster!r}: rows of "
            "one cluster may lie in both logs, and a policy on disk does not hold its clusters. Make moments of both "
            "logs with this column, merge them, and fit the result."
        )


def check_same_columns(roles: Roles, before: Roles) -> None:
    """Refuse further rows of other columns than the rows so far.

    Raises
    ------
    SchemaError
        Names the first role that differs.
    """
    for role, name in (("context", "context columns"), ("levels", "levels"), ("metadata", "metadata")):
        if getattr(roles, role) != getattr(before, role):
            raise SchemaError(
                f"This learner was fitted with the {name} {list(getattr(before, role))}, not "
                f"{list(getattr(roles, role))}. Give partial_fit the same columns, or call fit with all rows."
            )
    check_cluster(roles)
    if (roles.cluster is None) != (before.cluster is None):
        raise SchemaError(
            f"This learner was fitted with cluster={before.cluster!r}, and partial_fit was given "
            f"cluster={roles.cluster!r}. Clusters must be known of all rows or of none: give the same, or call fit "
            "with all rows."
        )
