"""The sums of the clusters of a log: by a further read, or in a pass for which features and offset are fixed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any

from hieropo._utils.arrays import Array, Codes
from hieropo.errors import InputError
from hieropo.features.maps import FeatureMap
from hieropo.logs.arrow.log_source import Part
from hieropo.logs.bad_rows.rejects import Rejects
from hieropo.logs.reading import checked_batch, records_again
from hieropo.moments.clusters import ClusterAccumulator, ClusterTable
from hieropo.moments.statistics import Moments
from hieropo.passes.checked_rows import CheckedRows
from hieropo.passes.in_place import encoded_texts
from hieropo.rows.batches import Roles
from hieropo.rows.ids import Ids


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
    assert roles.cluster is not None
    total = ClusterAccumulator(features, moments.offset, per_action=moments.per_action)
    for records, row, numbers in records_again(source, roles, rejects):
        texts = encoded_texts(records.column(roles.cluster))  # texts by their bytes, not as objects
        batch = checked_batch(records, roles if texts is None else replace(roles, cluster=None), row, numbers)
        codes = None
        if features.actions is not None:
            codes = features.action_codes(batch.action, first_row=batch.first_row)
        total.add(batch, codes, texts=texts)
    return total.table()


class ClustersOfRows:
    """A reducer of the pass: the sums of clusters for a map that has all actions and its origin before the pass.

    The rows of a stream, which cannot be read again, are summed once.

    Parameters
    ----------
    features : FeatureMap
    offset : (d,) array or None
        Offset of the moments of the pass.
    per_action : bool
        True where the moments are kept per action.
    """

    def __init__(self, features: FeatureMap, offset: Array | None, *, per_action: bool) -> None:
        self._features, self._offset, self._per_action = features, offset, per_action
        self._tables: dict[int, ClusterTable] = {}
        self._lock = Lock()

    def begin(self, parts: Sequence[Part]) -> None:
        """Prepare for a log."""

    def part(self, number: int) -> "_ClustersOfPart":
        """Return the sums of a part in the making."""
        return _ClustersOfPart(self, number)

    def accumulator(self) -> ClusterAccumulator:
        """Return an empty accumulator."""
        return ClusterAccumulator(self._features, self._offset, per_action=self._per_action)

    def codes(self, rows: CheckedRows) -> Codes | None:
        """Return the actions of rows by their positions in the map; None for a map without a list of actions."""
        return None if self._features.actions is None else rows.action

    def done(self, number: int, table: ClusterTable) -> None:
        """Add the sums of a part."""
        with self._lock:
            self._tables[number] = table

    def table(self) -> ClusterTable:
        """Return the sums of all clusters; sums of parts are added in the order of the log."""
        tables = [self._tables[number] for number in sorted(self._tables)]
        return ClusterTable.together(tables or [self.accumulator().table()])


class _ClustersOfPart:
    """The sums of the clusters of a part."""

    def __init__(self, whole: ClustersOfRows, number: int) -> None:
        self._whole, self._number, self._total = whole, number, whole.accumulator()

    def add(self, rows: CheckedRows) -> None:
        """Add the next rows of the part."""
        batch = rows.batch
        if batch is None:  # rows that were summed in place are numbered in a row
            assert isinstance(rows.first_row, int)
            batch = checked_batch(rows.records, rows.roles, rows.first_row)
        self._total.add(batch, self._whole.codes(rows))

    def finish(self, task_ids: Callable[[Codes], Ids], action_ids: Callable[[Codes], Ids]) -> None:  # noqa: ARG002
        """Hand the sums over."""
        self._whole.done(self._number, self._total.table())
