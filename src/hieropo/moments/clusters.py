"""Rows that share a cause: sums of each cluster, and the moments of correlated rows.

Rows of one cluster, of the same task and action, have errors with

    Cov(e_i, e_j) = sigma^2 ((1 - rho) 1{i = j} + rho)

so that a session, a day or a class shares the part rho of its variance. With S_c = sum_i z_i over the n_c rows of a
cluster, the sums that generalised least squares needs are, by the inverse of this matrix,

    sum_i z_i z_i' becomes  (sum_i z_i z_i' - sum_c k_c S_c S_c') / (1 - rho),  k_c = rho / (1 - rho + n_c rho)

and log det adds (n_c - 1) log(1 - rho) + log(1 - rho + n_c rho) to n_c log sigma^2. A row of weight k is k rows. The
result is exact for given rho, in whatever order the rows come. Sums S_c add, so that the rows of a cluster may lie in
several logs: :class:`ClusterTable` keeps them by the ids of task, action and cluster.

Where sums are kept per action, rho is that of the action, and clusters of two actions of a task are independent. That
is for clusters whose action was drawn once. Where each row drew its own, the cause shifts all actions of the cluster
alike, and cancels in their comparison.

Source: Searle, Casella and McCulloch, Variance Components, 1992, section 3.3.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import lgamma
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array, Codes, Mask
from hieropo._utils.text import counted
from hieropo.errors import InputError, MismatchError
from hieropo.features.maps import FeatureMap
from hieropo.moments.recentring import change_of
from hieropo.moments.statistics import Moments, add_rows
from hieropo.moments.units import one_action
from hieropo.rows.batches import Batch
from hieropo.rows.ids import Ids, plain
from hieropo.rows.keys import GrowingKeys, Keys
from hieropo.rows.numbering import DictionaryCodes
from hieropo.rows.texts import Text

_ROOM = 1024
_DENSE = 0.25  # rows for each sum so far, from which rows are added without being sorted
_ROUNDING = 1e-9  # share of subtracted rows, above their rounding error


@dataclass(frozen=True, slots=True, eq=False)
class Clustered:
    """Sums of z over the rows of each cluster in each unit, such as a task, or an action in a task.

    Attributes
    ----------
    unit : (u,) int array
        Number of the unit.
    cluster : (u,) int array
        Number of the cluster; one that spans units is there once for each.
    sums : (u, k) array
    """

    unit: Codes
    cluster: Codes
    sums: Array

    @property
    def spans_units(self) -> bool:
        """True where a cluster has rows of two units."""
        return int(self.cluster.max(initial=-1)) + 1 < self.cluster.size

    @property
    def totals(self) -> Array:
        """Sums Z_c (C, k) over each cluster."""
        if not self.spans_units:
            return self.sums
        totals = np.zeros((int(self.cluster.max()) + 1, self.sums.shape[1]))
        np.add.at(totals, self.cluster, self.sums)
        return totals

    @property
    def squares(self) -> Array:
        """Sum of Z_c Z_c' over all clusters, (k, k)."""
        totals = self.totals
        return np.asarray(totals.T @ totals)

    def joined(self, some: Mask) -> "Clustered":
        """Return the same with the sums of ``some`` clusters, a mask, as one for each unit."""
        units, place = np.unique(self.unit[some], return_inverse=True)
        of_units = np.zeros((units.size, self.sums.shape[1]))
        np.add.at(of_units, place.reshape(-1), self.sums[some])
        both = np.concatenate([self.sums[~some], of_units])
        return Clustered(np.append(self.unit[~some], units), np.arange(len(both)), both)


class ClusterTotals:
    """Sums z (n, k) of rows by unit and cluster, batch by batch; the mutable edge of a pass over a log.

    Most clusters have rows of one unit: the number of their sum is looked up by that of the cluster. Sums of a cluster
    in further units are found by a dictionary.
    """

    def __init__(self, size: int) -> None:
        self._clusters, self._further = GrowingKeys(), GrowingKeys()
        self._number_of = DictionaryCodes(self._clusters.rows_of_texts, self._clusters.rows)
        self._first_unit = self._first_sum = np.zeros(0, dtype=np.int64)  # of each cluster
        self._sum_of_further = np.zeros(0, dtype=np.int64)
        self._units: list[Codes] = []  # of the sums, in the order of their numbers
        self._numbers: list[Codes] = []
        self._count = 0
        self._sums = np.zeros((0, size))

    def add(self, unit: Codes, cluster: Ids | tuple[Text, NDArray[np.int32]], z: Array) -> None:
        """Add rows of some units and clusters (n,); clusters are ids, or distinct texts and the text of each row."""
        entries, which = cluster if isinstance(cluster, tuple) else (cluster, None)
        code = self._codes(np.asarray(unit, dtype=np.int64), self._number_of.codes(entries, which))
        if self._count > len(self._sums):
            room = np.zeros((max(self._count, 2 * len(self._sums), _ROOM), z.shape[1]))
            room[: len(self._sums)] = self._sums
            self._sums = room
        if code.size >= _DENSE * self._count:
            for column, values in zip(self._sums.T, z.T, strict=True):
                column[: self._count] += np.bincount(code, values, self._count)
            return
        order = np.argsort(code, kind="stable")
        starts = np.flatnonzero(np.diff(code[order], prepend=-1))
        self._sums[code[order[starts]]] += np.add.reduceat(z[order], starts, axis=0)

    def _codes(self, unit: Codes, cluster: Codes) -> Codes:
        """Return the number (n,) of the sum of each row; a new unit of a cluster gets a new number."""
        known, clusters = self._first_unit.size, len(self._clusters)
        if clusters > known:
            rows = np.flatnonzero(cluster >= known)[::-1]
            units = np.zeros(clusters - known, dtype=np.int64)
            units[cluster[rows] - known] = unit[rows]  # of the first row of each, which is assigned last
            numbers = self._numbered(units, np.arange(known, clusters))
            self._first_unit = np.append(self._first_unit, units)
            self._first_sum = np.append(self._first_sum, numbers)
        code = self._first_sum[cluster]
        others = np.flatnonzero(self._first_unit[cluster] != unit)
        if others.size:
            pairs = (unit[others] << np.int64(32)) | cluster[others]
            further = self._further.rows(pairs)
            new = self._further.ids_at(np.arange(self._sum_of_further.size, len(self._further))).astype(
                np.int64
            )
            numbers = self._numbered(new >> np.int64(32), new & np.int64(2**32 - 1))
            self._sum_of_further = np.append(self._sum_of_further, numbers)
            code[others] = self._sum_of_further[further]
        return code

    def _numbered(self, units: Codes, clusters: Codes) -> Codes:
        """Return numbers (k,) for new sums of these units and clusters (k,)."""
        self._units.append(units)
        self._numbers.append(clusters)
        self._count += units.size
        return np.arange(self._count - units.size, self._count)

    @property
    def ids(self) -> Keys:
        """The ids of the clusters, by their numbers."""
        return self._clusters.keys()

    def sums(self) -> Clustered:
        """Return the sums so far."""
        none = np.zeros(0, dtype=np.int64)
        unit, cluster = (np.concatenate([none, *parts]) for parts in (self._units, self._numbers))
        return Clustered(unit, cluster, self._sums[: self._count].copy())


@dataclass(frozen=True, slots=True, eq=False)
class ClusterSums:
    """Sums of the rows of each cluster: of each task, and of each action where moments are kept per action.

    Attributes
    ----------
    unit : (u,) int array
        Unit of the moments: task s, or ``s K + a`` for action a.
    action : (u,) int array
        Position of rho: the action, or 0 for all.
    sums : (u, p + 2) array
        S_c, the sums of z = (phi, r - o' phi, 1) for the moments' offset o; the last column is n_c.
    cluster : (u,) int array
        Number of the cluster, which may have rows of several tasks and actions.
    """

    unit: Codes
    action: Codes
    sums: Array
    cluster: Codes

    @property
    def size(self) -> Array:
        """Rows n_c of each cluster (u,)."""
        return np.asarray(self.sums[:, -1])

    @property
    def drawn_once(self) -> bool:
        """True where the actions of a log were drawn once for each cluster, as :func:`drawn_by_cluster` tells."""
        size = np.maximum(np.rint(self.size), 1.0)  # a row of weight k is k rows
        return _drawn_once(np.zeros_like(self.action), self.action, self.cluster, size)

    def of_units(self, keep: Codes, units: int) -> "ClusterSums":
        """Return the clusters of some units, which are numbered anew by their position in ``keep``."""
        position = np.full(units, -1)
        position[keep] = np.arange(keep.size)
        rows = np.flatnonzero(position[self.unit] >= 0)
        return ClusterSums(position[self.unit[rows]], self.action[rows], self.sums[rows], self.cluster[rows])


@dataclass(frozen=True, slots=True, eq=False)
class ClusterTable:
    """Sums of the rows of each cluster by the ids of task, action and cluster; tables of different rows add.

    Parameters
    ----------
    tasks : Keys
        Ids of tasks (m,).
    ids : Keys
        Ids of clusters (C,).
    task, action, cluster : (u,) int array
        Positions in ``tasks``, in the actions of the feature map (0 where sums are over all actions), and in ``ids``.
        Each triple is there once.
    sums : (u, p + 2) array
        S_c, the sums of z = (phi, r - o' phi, 1).
    offset : (p,) array or None
        The offset o; None is 0.
    """

    tasks: Keys
    ids: Keys
    task: Codes
    action: Codes
    cluster: Codes
    sums: Array
    offset: Array | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"ClusterTable({counted(len(self), 'cluster')}, {counted(len(self.tasks), 'task')})"

    @property
    def dim(self) -> int:
        """Features p of a unit."""
        return int(self.sums.shape[1]) - 2

    def __add__(self, other: Self) -> Self:
        return self.together([self, other])

    @classmethod
    def together(cls, tables: Sequence[Self]) -> Self:
        """Return the sum of tables, around the offset of the first."""
        return cls._combined(tables)[0]

    def __sub__(self, other: Self) -> Self:
        """Return the sums without the rows of the other; clusters that lose all rows are left out.

        Raises
        ------
        MismatchError
            Rows are subtracted that were never added.
        """
        combined, counts = self._combined([self, other.scale(-1.0)])
        n = combined.sums[:, -1]
        left = np.flatnonzero(np.abs(n) > _ROUNDING * counts)
        if (n[left] < 0).any():
            row = left[np.argmax(n[left] < 0)]
            raise MismatchError(
                f"The subtracted moments have more rows of cluster "
                f"{plain(combined.ids.id_of(int(combined.cluster[row])))!r} in task "
                f"{plain(combined.tasks.id_of(int(combined.task[row])))!r} than the first moments. Are the two in the "
                "wrong order, or were these rows subtracted before?"
            )
        return combined.at_rows(left)

    @classmethod
    def _combined(cls, tables: Sequence[Self]) -> tuple[Self, Array]:
        """Return the sum of tables, and the sum of the absolute numbers of rows of each of its clusters."""
        first = tables[0]
        tasks, ids, places, sums = first.tasks, first.ids, [], []
        for table in tables:
            tasks, task = tasks.union(table.tasks)
            ids, cluster = ids.union(table.ids)
            places.append(np.column_stack([task[table.task], table.action, cluster[table.cluster]]))
            sums.append(table.around(first.offset).sums)
        place, values = np.concatenate(places), np.concatenate(sums)
        order = np.lexsort(place.T[::-1])
        starts = np.flatnonzero(np.diff(place[order], axis=0, prepend=-1).any(axis=1))
        if not starts.size:
            return replace(first, tasks=tasks, ids=ids), np.zeros(0)
        values = values[order]
        task, action, cluster = place[order[starts]].T
        combined = replace(
            first, tasks=tasks, ids=ids, task=task, action=action, cluster=cluster,
            sums=np.add.reduceat(values, starts, axis=0),
        )  # fmt: skip
        return combined, np.asarray(np.add.reduceat(np.abs(values[:, -1]), starts))

    def at_rows(self, some: Any) -> Self:
        """Return some of the sums; ids of clusters without sums are left out."""
        used, cluster = np.unique(self.cluster[some], return_inverse=True)
        return replace(
            self, ids=Keys(self.ids.values[used]), task=self.task[some], action=self.action[some],
            cluster=cluster.reshape(-1).astype(np.int64), sums=self.sums[some],
        )  # fmt: skip

    def of_rows(self, task: Ids, action: Codes, cluster: Ids) -> Array:
        """Return the sums (n, p + 2) of the cluster of each row, by the ids of its task and cluster and its action.

        They are 0 where the table has no such cluster.
        """
        actions = 1 + max(self.action.max(initial=0), action.max(initial=0))

        def code(of_task: Codes, of_action: Codes, of_cluster: Codes) -> Codes:
            return np.asarray((of_task * actions + of_action) * max(len(self), 1) + of_cluster)

        known = code(self.task, self.action, self.cluster)
        order = np.argsort(known)
        rows, ids = np.asarray(self.tasks.locate(task)), np.asarray(self.ids.locate(cluster))
        place = np.minimum(np.searchsorted(known[order], code(rows, action, ids)), max(known.size - 1, 0))
        found = (rows >= 0) & (ids >= 0) & (known.size > 0)
        found[found] &= known[order[place[found]]] == code(rows, action, ids)[found]
        sums = np.zeros((rows.size, self.sums.shape[1]))
        sums[found] = self.sums[order[place[found]]]
        return sums

    def select(self, tasks: Keys) -> Self:
        """Return the clusters of these tasks alone."""
        position = tasks.locate(self.tasks.values)
        some = np.flatnonzero(position[self.task] >= 0)
        return replace(self.at_rows(some), tasks=tasks, task=position[self.task[some]])

    def scale(self, factor: float) -> Self:
        """Return the sums with every weight multiplied by a factor."""
        return replace(self, sums=self.sums * factor)

    def around(self, offset: Array | None) -> Self:
        """Return the same sums for another offset o (p,)."""
        zero, p = np.zeros(self.dim), self.dim
        change = (zero if offset is None else offset) - (zero if self.offset is None else self.offset)
        if not change.any():
            return replace(self, offset=offset)
        sums = self.sums.copy()
        sums[:, p] -= sums[:, :p] @ change
        return replace(self, sums=sums, offset=offset)

    def recentred(self, first: FeatureMap, second: FeatureMap) -> Self:
        """Return the sums of one map as those of an equivalent map; errors as of :func:`change_of`."""
        if first == second:
            return self
        change, back = (change_of(*maps).astype(np.float64) for maps in ((first, second), (second, first)))
        p, offset, sums = len(change), self.offset, self.sums.copy()
        blocks = self.sums[:, : self.dim].reshape(len(sums), -1, p)
        sums[:, : self.dim] += (blocks @ change.T).reshape(len(sums), -1)
        if offset is not None:  # coefficients of phi~ = T phi are T^-T times those of phi
            parts = offset.reshape(-1, p)
            offset = (parts + parts @ back).reshape(-1)
        return replace(self, sums=sums, offset=offset)

    def with_actions(self, position: Codes) -> Self:
        """Return the sums for a map in which action a is at ``position[a]``."""
        return replace(self, action=position[self.action])

    def dense(self, n_actions: int) -> Self:
        """Return the sums of all d = K p features of the map, over all actions of a task."""
        p, u = self.dim, len(self.sums)
        full = np.zeros((u, n_actions * p + 2))
        full[np.arange(u)[:, None], self.action[:, None] * p + np.arange(p)] = self.sums[:, :p]
        full[:, -2:] = self.sums[:, -2:]
        offset = None if self.offset is None else np.tile(self.offset, n_actions)
        over_actions = replace(self, action=np.zeros_like(self.action), sums=full, offset=offset)
        return self.together([over_actions])

    def at(self, moments: Moments) -> ClusterSums:
        """Return the sums by the units of the moments of the same rows, around their offset.

        Raises
        ------
        UnknownTaskError
            The moments lack a task.
        MismatchError
            They have other features.
        """
        if self.dim != moments.unit_dim or self.action.max(initial=0) >= moments.n_actions:
            raise MismatchError(
                f"Clusters of {self.dim} features do not fit {moments!r}: both must be sums of the same features."
            )
        row, table = np.asarray(moments.keys.require(self.tasks.values)), self.around(moments.unit_offset)
        unit = row[self.task] * moments.n_actions + self.action
        return ClusterSums(unit, self.action, table.sums, self.cluster)


class ClusterAccumulator:
    """Sums rows by cluster, batch by batch; the mutable edge of a pass over a log.

    Parameters
    ----------
    features : FeatureMap
    offset : (d,) array, optional
        Offset of the moments.
    per_action : bool
        True where the moments are kept per action.
    """

    def __init__(self, features: FeatureMap, offset: Array | None, *, per_action: bool) -> None:
        self._features = features
        self._unit_map = one_action(features) if per_action else None
        self._actions = len(features.actions or ()) if per_action else 1
        self._dim = features.dim if self._unit_map is None else self._unit_map.dim
        self._offset = None if offset is None else np.array(offset)[: self._dim]
        self._tasks, self._totals = GrowingKeys(), ClusterTotals(self._dim + 2)

    def add(
        self,
        batch: Batch,
        codes: Codes | None,
        rows: Codes | None = None,
        texts: tuple[Text, NDArray[np.int32]] | None = None,
    ) -> None:
        """Add the rows of a batch, or those at ``rows``, with the codes (n,) of their actions in the map.

        ``texts`` are the clusters of a batch without them: distinct texts, and the text of each row (n,).
        """
        every: Any = slice(None) if rows is None else rows
        cluster: Any = batch.cluster[every] if texts is None else (texts[0], texts[1][every])  # type: ignore[index]  # it has clusters
        context, action = batch.context[every], None if codes is None else codes[every]
        if self._unit_map is None:
            phi, block = self._features.phi(context, action), np.zeros(len(context), dtype=np.int64)
        else:
            assert action is not None
            phi, block = self._unit_map.phi(context, np.zeros(len(context), dtype=np.int64)), action
        reward = batch.reward[every]
        if self._offset is not None:
            reward = reward - phi @ self._offset
        n = reward.size
        z = np.column_stack([phi, reward, np.ones(n)]) * batch.weights.counts(len(batch))[every, None]
        task = self._tasks.rows(batch.task[every])
        self._totals.add(task * self._actions + block, cluster, z)

    def table(self) -> ClusterTable:
        """Return the sums of all clusters, without rows of weight 0."""
        totals, tasks = self._totals.sums(), self._tasks.keys()
        task, action = np.divmod(totals.unit, self._actions)
        table = ClusterTable(tasks, self._totals.ids, task, action, totals.cluster, totals.sums, self._offset)
        present = totals.sums[:, -1] > 0
        return table if present.all() else table.at_rows(np.flatnonzero(present))


def drawn_by_cluster(stratum: Codes, action: Codes, cluster: NDArray[Any]) -> bool:
    """Return True where more clusters have one action only than do when actions are permuted within strata.

    Parameters
    ----------
    stratum, action : (n,) int array
        Of any numbers, such as those of the tasks of a log of which these rows are a sample.
    cluster : (n,) array
        Ids of clusters.
    """
    strata, actions, clusters = (
        np.unique(part, return_inverse=True)[1].reshape(-1) for part in (stratum, action, cluster)
    )
    return _drawn_once(strata, actions, clusters, np.ones(action.size))


def _drawn_once(stratum: Codes, action: Codes, cluster: Codes, rows: Array) -> bool:
    """Return True where clusters (n,) have one action more often than by chance, for entries of ``rows`` rows (n,).

    Of the N_s rows of stratum s, N_sa have action a. When actions are permuted within strata, all n_cs rows of cluster
    c have one action with probability sum_a prod_s (N_sa)_n_cs / (N_s)_n_cs, (N)_n = N (N - 1) ... (N - n + 1). The
    sum over the clusters of several rows is the number that is expected.
    """
    several = np.bincount(cluster, rows) > 1.0
    if not several.any():
        return False
    first = np.zeros(several.size, dtype=np.int64)
    first[cluster] = action
    mixed = np.bincount(cluster, action != first[cluster], several.size) > 0
    count = int((several & ~mixed).sum())
    by_chance = _expected_alike(stratum, action, cluster, rows, several)
    return bool(count - by_chance > 4.0 * np.sqrt(max(by_chance, 1.0)))


def _expected_alike(stratum: Codes, action: Codes, cluster: Codes, rows: Array, several: Mask) -> float:
    """Return how many clusters of ``several`` rows (C,) have one action by chance, as :func:`_drawn_once`."""
    strata, K = int(stratum.max()) + 1, int(action.max()) + 1
    of_action = np.bincount(stratum * K + action, rows, strata * K).astype(np.float64).reshape(strata, K)
    code, place = np.unique(cluster * strata + stratum, return_inverse=True)
    of_cluster, n = code // strata, np.bincount(place.reshape(-1), rows).astype(np.float64)
    if strata == 1:  # clusters of one size are alike
        size, times = np.unique(n[several[of_cluster]], return_counts=True)
        return float(
            times @ np.exp(_log_share(size, np.zeros(size.size, dtype=np.int64), of_action)).sum(axis=1)
        )
    log_shares = _log_share(n, code % strata, of_action)
    starts = np.flatnonzero(np.diff(of_cluster, prepend=-1))
    return float(np.exp(np.add.reduceat(log_shares, starts, axis=0))[several].sum())


def _log_share(n: Array, stratum: Codes, of_action: Array) -> Array:
    """Return log of (N_sa)_n / (N_s)_n (u, K) for n (u,) rows of strata (u,), -inf where n is above N_sa."""
    having, all_rows = of_action[stratum], of_action.sum(axis=1)[stratum]
    rest = having - n[:, None]
    log_share = _log_factorial(having) - _log_factorial(np.maximum(rest, 0.0))
    log_share -= (_log_factorial(all_rows) - _log_factorial(all_rows - n))[:, None]
    return np.where(rest >= 0.0, log_share, -np.inf)


def _log_factorial(n: Array) -> Array:
    """Return log n! of numbers of any shape, of which many are equal."""
    numbers, place = np.unique(n, return_inverse=True)
    return np.array([lgamma(number + 1.0) for number in numbers.tolist()])[place.reshape(n.shape)]


def correlated(moments: Moments, clusters: ClusterSums, correlation: Array) -> Moments:
    """Return the moments of rows that are correlated within clusters.

    Parameters
    ----------
    moments : Moments
        Of the same rows, taken as independent, without precisions and sampling weights.
    clusters : ClusterSums
    correlation : (K,) or (1,) array
        rho of each action where moments are kept per action, else of all rows; in [0, 1).

    Raises
    ------
    InputError
        A correlation is not in [0, 1).
    MismatchError
        Numbers of actions or features differ.
    """
    rho = np.asarray(correlation, dtype=np.float64)
    if not ((rho >= 0) & (rho < 1)).all():
        raise InputError(f"The correlations within clusters are {rho.tolist()}; each must be in [0, 1).")
    if rho.shape != (moments.n_actions,) or clusters.sums.shape[1] != moments.unit_dim + 2:
        raise MismatchError(
            f"Correlations of shape {rho.shape} and clusters of {clusters.sums.shape[1] - 2} features do not fit "
            f"{moments!r}: one correlation for each action that the moments keep, and their features, are needed."
        )
    if not rho.any():
        return moments
    factors, log_det = _terms(clusters, rho)
    sums = _with_means(moments, clusters, -factors, moments.unit_sums.copy())
    sums /= (1.0 - rho)[:, None] if moments.per_action else 1.0 - rho
    return replace(
        moments, sums=sums, log_precision=moments.log_precision - _by_unit(moments, clusters, log_det)
    )


def independent(moments: Moments, clusters: ClusterSums, correlation: Array) -> Moments:
    """Return the moments of the rows taken as independent: the inverse of :func:`correlated`, to rounding."""
    rho = np.asarray(correlation, dtype=np.float64)
    if not rho.any():
        return moments
    factors, _ = _terms(clusters, rho)
    within = ((1.0 - rho)[:, None] if moments.per_action else 1.0 - rho) * moments.sums
    sums = _with_means(moments, clusters, factors, within.reshape(moments.unit_sums.shape))
    return replace(moments, sums=sums, log_precision=np.zeros_like(moments.log_precision))


def _terms(clusters: ClusterSums, rho: Array) -> tuple[Array, Array]:
    """Return k_c n_c^2 and log det of the correlation matrix of each cluster."""
    of_cluster, n = rho[clusters.action], clusters.size
    within = 1.0 - of_cluster
    return (
        of_cluster / (within + n * of_cluster) * n * n,
        (n - 1) * np.log(within) + np.log(within + n * of_cluster),
    )


def _with_means(moments: Moments, clusters: ClusterSums, factors: Array, sums: Array) -> Array:
    """Return packed sums of units plus factors (u,) times z z' of the means of clusters, in the shape of moments."""
    means, p = clusters.sums / clusters.size[:, None], moments.unit_dim
    add_rows(
        clusters.unit,
        np.ascontiguousarray(means[:, :p]),
        np.ascontiguousarray(means[:, p]),
        np.ascontiguousarray(factors),
        sums,
    )
    return sums.reshape(moments.sums.shape)


def _by_unit(moments: Moments, clusters: ClusterSums, values: Array) -> Array:
    totals = np.bincount(clusters.unit, values, moments.unit_rows.size)
    return np.asarray(totals.reshape(moments.rows.shape))
