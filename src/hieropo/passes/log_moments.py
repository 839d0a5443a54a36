"""The moments of a log with all that a fit needs beside them: values that add, subtract, and can be stored."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.blas_threads import one_blas_thread
from hieropo._utils.progress import shows_progress
from hieropo._utils.text import counted, thousands
from hieropo.errors import InputError, MismatchError, warn
from hieropo.features.maps import FeatureMap, action_positions, merged_map, with_origin_of
from hieropo.features.terms.learned import LearnedTerms
from hieropo.features.terms.parsing import terms_of
from hieropo.logs.bad_rows.rejects import Rejected, rejects_for
from hieropo.logs.encoding import opened_log
from hieropo.logs.reading import check_log
from hieropo.moments.clusters import ClusterTable
from hieropo.moments.recentring import at_final_origin, recentred
from hieropo.moments.row_sketch import RowSketch
from hieropo.moments.statistics import Moments
from hieropo.moments.units import one_action
from hieropo.passes.checkpoints import features_and_sums, stored_sums, summed_from
from hieropo.passes.clusters import check_cluster, cluster_table
from hieropo.passes.designs import Design, is_formula, read_design, sources_of
from hieropo.passes.feasibility import refuse_too_large, warn_of_ids
from hieropo.passes.feature_choice import FeatureChoice, check_choice, choice_name, has_origin
from hieropo.passes.worker import PassResult
from hieropo.rows.batches import Roles
from hieropo.rows.ids import abbreviate, plain
from hieropo.storage.moments import holds_moments, read_moments_file, write_moments_file

_SOME, _MOST = 0.02, 0.9  # shares of common rows above chance, and that count as all rows
_CHECKED = (
    "pscore",
    "time",
)  # roles of columns that are checked, and neither learned from nor read of requests


@dataclass(frozen=True, slots=True, eq=False)
class LogMoments:
    """The sums of a log that a learner needs in place of its rows; sums of different days, machines or sites add.

    ``+`` is associative and commutative to rounding, and keeps the union of the tasks. Where each action has its own
    coefficients, the union of the actions is kept too; any other difference between the feature maps, or between the
    columns that were summed, is refused. ``-`` removes rows.

    Attributes
    ----------
    features : FeatureMap
    roles : Roles
        The columns.
    summed : PassResult
        Moments (per action where each action has its own coefficients), groups and metadata of the tasks, a sketch
        of the rows, and sums of clusters where a column of clusters was named.
    rejected : Rejected or None
        The rows of the log that were set aside; None of moments that were added, or read from disk.

    Examples
    --------
    >>> import pyarrow as pa
    >>> monday = pa.table({"store": [1, 1, 2], "offer": ["a", "b", "a"], "profit": [1.0, 2.0, 0.5]})
    >>> tuesday = pa.table({"store": [2, 3], "offer": ["c", "a"], "profit": [0.5, 2.5]})
    >>> columns = {"task": "store", "action": "offer", "reward": "profit"}
    >>> both = LogMoments.of(monday, **columns) + LogMoments.of(tuesday, **columns)
    >>> both
    LogMoments(3 tasks, 5 rows, actions ('a', 'b', 'c'))
    >>> both.without([2])
    LogMoments(2 tasks, 3 rows, actions ('a', 'b', 'c'))
    """

    features: FeatureMap
    roles: Roles
    summed: PassResult
    rejected: Rejected | None = None

    @classmethod
    @shows_progress
    @one_blas_thread
    def of(
        cls,
        log: Any,
        *,
        features: FeatureChoice = None,
        lenient: bool = False,
        rejects: str | os.PathLike[str] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        **columns: Any,
    ) -> Self:
        """Sum over a log, as :meth:`HierOPO.fit` does.

        Parameters
        ----------
        log : path, Arrow table or stream, pandas or polars DataFrame, DuckDB relation
        features : formula, list of terms, FeatureMap or {"per-action", "indicator", "columns"}, optional
            As of :class:`HierOPO`. Moments that shall add need one map: give the second the ``features.terms`` of the
            first.
        lenient, rejects
            Treatment of rows that cannot be used, as of :meth:`HierOPO.fit`.
        checkpoint : path, optional
            As of :meth:`HierOPO.fit`.
        **columns
            Names of columns by role, as of :meth:`HierOPO.fit`. With ``cluster`` the sums of each cluster are kept by
            its id, by one more read of the log.

        Raises
        ------
        InputError, SchemaError, LogError, UnknownActionError
            The log cannot be used; the message says why, where, and what to do.
        """
        roles = given_roles("of", features, columns)
        check_cluster(roles)
        bad_rows = rejects_for(log, lenient=lenient, file=rejects)
        opened = opened_log(log, features, rereadable=True, lenient=bad_rows is not None)

        def read(design: Design) -> tuple[FeatureMap, PassResult, Design]:
            check_log(
                design.source, design.roles, lenient=bad_rows is not None
            )  # before a pass finds the actions
            feature_map, summed = features_and_sums(
                design.source, design.choice, design.roles, has_per_action_sums, rejects=bad_rows,
                checkpoint=checkpoint,
            )  # fmt: skip
            return feature_map, summed, design

        feature_map, summed, design = read_design(
            features, opened, roles, read, lenient=bad_rows is not None, once=checkpoint is not None
        )
        result = cls(feature_map, design.roles, summed, None if bad_rows is None else bad_rows.rejected)
        result = result if has_origin(features) else result.at_final_origin()
        if design.roles.cluster is None:
            return result
        clusters = cluster_table(design.source, design.roles, result.features, result.moments, bad_rows)
        return replace(result, summed=replace(result.summed, clusters=clusters))

    @classmethod
    def in_database(
        cls,
        query: str,
        connection: Any,
        *,
        features: FeatureChoice = None,
        dialect: str | None = None,
        filter: str | None = None,  # noqa: A002 - as of `open_log`
        **columns: Any,
    ) -> Self:
        """Sum over the rows of a query within its database, which returns one row for each task and action.

        The sums are those of :meth:`of`, to rounding; the rows stay in the database. Rows that cannot be used are an
        error. No sketch of the rows is made, so that rows that are added twice are recognised by the sums alone.

        Parameters
        ----------
        query : str
            One that returns rows.
        connection : str, Path or connection
            As of :func:`sql`.
        features : FeatureMap, LearnedTerms or {"per-action", "indicator", "columns"}, optional
            At most 32 features for each action. Terms must have been learned before: ``features.terms`` of moments of
            some of the rows.
        dialect : str, optional
            "duckdb", "postgres", "spark", "bigquery" or "snowflake"; by default that of the connection.
        filter : str, optional
            As of :func:`open_log`.
        **columns
            Names of columns by role, as of :meth:`of`, without ``eligible``. With ``cluster`` the database returns one
            row for each cluster of a task and an action.

        Raises
        ------
        InputError, SchemaError, LogError, UnknownActionError
            The query or the features cannot be summed in the database; the message says why and what to do.
        """
        from hieropo.passes.warehouse.running import summed_in_database

        roles = given_roles("in_database", features, columns)
        feature_map, roles, summed = summed_in_database(
            query, connection, features, roles, dialect=dialect, row_filter=filter
        )
        return cls(feature_map, roles, summed)

    @staticmethod
    def sums_sql(
        query: str,
        dialect: str,
        *,
        features: FeatureChoice = None,
        types: Mapping[str, str] | None = None,
        **columns: Any,
    ) -> str:
        """Return the SQL text that :meth:`in_database` runs, for a warehouse to run; :meth:`from_sums` reads its table.

        Parameters
        ----------
        query, features, dialect, **columns
            As of :meth:`in_database`. Names are quoted: write them as the warehouse stores them.
        types : mapping of a column to a type, optional
            "boolean" for columns of booleans; other numbers are cast.

        Raises
        ------
        InputError, SchemaError
            As of :meth:`in_database`. Text for BigQuery and Snowflake, which no test runs there, is parsed by sqlglot.
        """
        from hieropo.passes.warehouse.running import stated_kinds
        from hieropo.passes.warehouse.text import sums_text

        return sums_text(
            query, dialect, features, given_roles("sums_sql", features, columns), stated_kinds(types or {})
        )

    @classmethod
    def from_sums(cls, table: Any) -> Self:
        """Return the moments of the table that the text of :meth:`sums_sql` returns.

        Parameters
        ----------
        table : path, Arrow table or stream, pandas or polars DataFrame, DuckDB relation, query
            All rows and columns of the result, in any order.

        Raises
        ------
        SchemaError
            It is no such table, or parts of it are missing.
        LogError
            Rows of the log cannot be used; the message has the number of each column.
        """
        from hieropo.logs.opening import open_log
        from hieropo.passes.warehouse.sums import summed_in_table

        return cls(*summed_in_table(open_log(table)))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the moments that :meth:`save` wrote; every byte is checked.

        Raises
        ------
        ArtifactError
            The directory holds no moments, or they are torn, edited or of a newer format; names the file.
        """
        stored = read_moments_file(path)
        return cls(stored.features, stored.roles, summed_from(stored.sums, stored.roles))

    def save(self, path: str | os.PathLike[str], *, provenance: Mapping[str, Any] | None = None) -> Path:
        """Write the moments to a directory, atomically replacing moments that are there.

        Parameters
        ----------
        path : path
            Its parent must exist; the directory must hold moments, be empty or not exist.
        provenance : mapping, optional
            Anything that JSON can hold, for the reader.

        Raises
        ------
        ArtifactError
            Something else is at ``path``, or it cannot be written; the old contents stay.
        """
        return write_moments_file(path, self.features, self.roles, stored_sums(self.summed), provenance or {})

    @property
    def moments(self) -> Moments:
        """The sums of every task; of every action of a task where each action has its own coefficients."""
        moments: Moments = self.summed.moments
        return moments

    @property
    def tasks(self) -> NDArray[Any]:
        """The ids of the tasks, as they were given, shape (m,)."""
        return self.moments.tasks

    @property
    def n_rows(self) -> float:
        """The number of rows of all tasks, by their weights."""
        return self.moments.n_rows

    def __len__(self) -> int:
        return len(self.moments)

    def __repr__(self) -> str:
        actions = "" if self.features.actions is None else f", actions {self.features.actions}"
        return f"LogMoments({counted(len(self), 'task')}, {counted(self.n_rows, 'row')}{actions})"

    def __radd__(self, other: object) -> Self:
        return self if other == 0 else NotImplemented  # so that sum() works

    def __add__(self, other: Self) -> Self:
        if not isinstance(other, LogMoments):
            return NotImplemented
        first, second = (self, other) if self.n_rows >= other.n_rows else (other, self)
        features, roles = merged_map(first.features, second.features), common_roles(self.roles, other.roles)
        left, right = self.on(features), other.on(features)
        if len(left) and len(right) and (left.moments.keys.locate(right.tasks) < 0).all():
            warn_of_ids(left.tasks[0], right.tasks[0], "row of the second moments")
        _warn_of_clusters(left, right)
        share = right.summed.sketch.share_in(left.summed.sketch)
        if share is not None and share > _SOME:
            warn(
                f"About {share:.0%} of the rows of the second moments are also in the first, and count twice "
                "now. Were the same rows summed at two places?"
            )
        return type(self)(features, roles, left.summed + right.summed)

    def __sub__(self, other: Self) -> Self:
        """Return the moments without the rows of the other; tasks that lose all rows stay, without rows.

        Raises
        ------
        MismatchError
            Features or columns differ; or rows are subtracted that were never added, as far as the sums show.
        """
        if not isinstance(other, LogMoments):
            return NotImplemented
        features, roles = merged_map(self.features, other.features), common_roles(self.roles, other.roles)
        left, right = self.on(features).summed, other.on(features).summed
        share = right.sketch.share_in(left.sketch)
        if share is not None and share < _MOST:
            raise MismatchError(
                f"Only about {share:.0%} of the subtracted rows are among the rows of the first moments. Are the two "
                "in the wrong order, or were these rows subtracted before?"
            )
        moments = left.moments - right.moments
        _refuse_negative(moments, left.moments)
        clusters = None
        if left.clusters is not None and right.clusters is not None:
            clusters = left.clusters - right.clusters
        levels, sketch = left.task_levels + right.task_levels, left.sketch - right.sketch
        return type(self)(features, roles, PassResult(moments, levels, sketch, clusters))

    def on(self, features: FeatureMap) -> Self:
        """Return the same for a map that :func:`merged_map` made of this map and another."""
        moments, clusters = moments_on(self.moments, self.features, features), self.summed.clusters
        if clusters is not None:
            clusters = clusters_on(clusters, self.features, features)
        return replace(
            self, features=features, summed=replace(self.summed, moments=moments, clusters=clusters)
        )

    def at_final_origin(self) -> Self:
        """Return the same at the final origin of these rows, as :func:`recentring.at_final_origin` chooses it."""
        moments, features = at_final_origin(self.moments, self.features)
        clusters = self.summed.clusters
        if clusters is not None:
            clusters = clusters.recentred(self.features, features)
        return replace(
            self, features=features, summed=replace(self.summed, moments=moments, clusters=clusters)
        )

    def within(self, features: FeatureMap) -> Self:
        """Return the same for a map that has all of its actions.

        Raises
        ------
        MismatchError
            The map lacks an action, or differs otherwise.
        """
        merged_map(features, self.features)
        more = [action for action in self.features.actions or () if action not in (features.actions or ())]
        if more:
            raise MismatchError(
                f"These moments have actions that the policy so far does not have: {abbreviate(more)}. Add all "
                "moments together and fit them."
            )
        return self.on(features)

    def scale(self, factor: float) -> Self:
        """Return the moments with every weight multiplied by a positive ``factor``; below 1 it discounts old rows."""
        moments, clusters = self.moments.scale(factor), self.summed.clusters
        if clusters is not None:
            clusters = clusters.scale(float(factor))
        return replace(self, summed=replace(self.summed, moments=moments, clusters=clusters))

    def without(self, tasks: object) -> Self:
        """Return the moments without these tasks; no sum of their rows remains.

        The sketch of rows does not know their tasks and becomes unknown. Rows that are added twice are then recognised
        by the sums of tasks alone.

        Raises
        ------
        UnknownTaskError
            The moments do not have a task.
        """
        moments = self.moments
        gone = moments.keys.require(tasks)
        kept = np.delete(moments.tasks, gone)
        left = moments.select(kept)
        task_levels = self.summed.task_levels.without(moments.tasks[gone].tolist())
        sketch, clusters = RowSketch.unknown(round(left.n_rows)), self.summed.clusters
        if clusters is not None:
            clusters = clusters.select(left.keys)
        return replace(self, summed=PassResult(left, task_levels, sketch, clusters))

    def for_learning(self, *, per_action: bool) -> Moments:
        """Return the moments per action where ``per_action``, else of all features of the map.

        Raises
        ------
        InputError
            They need more memory than this machine has, or actions do not have their own coefficients.
        """
        moments = self.moments
        if moments.per_action and not per_action:
            refuse_too_large(len(moments), moments.dim)
            return moments.dense()
        if per_action and not moments.per_action:
            raise InputError(
                "These moments have no sums per action: each action needs its own coefficients, as with the features "
                "'per-action' or 'indicator'."
            )
        return moments

    def clusters_for_learning(self, *, per_action: bool) -> ClusterTable | None:
        """Return the sums of clusters that go with :meth:`for_learning`; None without a column of clusters."""
        clusters = self.summed.clusters
        if clusters is None or per_action or not self.moments.per_action:
            return clusters
        return clusters.dense(self.moments.n_actions)

    def check(self, features: FeatureChoice, columns: Mapping[str, Any]) -> None:
        """Raise MismatchError for named features or columns that differ from those of these moments.

        Raises
        ------
        MismatchError
            The message names the first difference.
        """
        for role, given in columns.items():
            current = sources_of(self.features) if role == "context" else getattr(self.roles, role)
            if (
                given
                and (tuple(given) if isinstance(current, tuple) and not isinstance(given, str) else given)
                != current
            ):
                raise MismatchError(
                    f"These moments were made with {role}={current!r}; a fit with {role}={given!r} cannot use them. "
                    "Leave it out, or make moments of the log again."
                )
        named = choice_name(self.features)
        terms = getattr(self.features, "terms", None)
        if is_formula(features) and terms is not None and terms_of(features) == terms.formula:  # type: ignore[arg-type]
            return
        if (
            isinstance(features, LearnedTerms)
            and terms is not None
            and features.identity() == terms.identity()
        ):
            return
        if features is not None and not (features == named or _are_equivalent(features, self.features)):
            raise MismatchError(
                f"These moments were made with other features ({named}, of the columns "
                f"{list(self.features.columns)}) than features={features!r}. Leave it out, or make moments of the "
                "log again."
            )


def given_roles(function: str, features: FeatureChoice, columns: Mapping[str, Any]) -> Roles:
    """Return the roles of columns that a function was given, with the columns that the features name.

    Raises
    ------
    TypeError
        A name is no role.
    InputError
        As :func:`check_choice`.
    """
    check_choice(features)
    unknown = [name for name in columns if name not in Roles.names()]
    if unknown:
        raise TypeError(
            f"{function}() got {unknown[0]!r}; it takes the names of columns by role: {list(Roles.names())}."
        )
    by_role = {"task": None, "action": None, "reward": None, **columns}
    return Roles(**{**by_role, "context": by_role.get("context") or sources_of(features)})


def moments_on(moments: Moments, first: FeatureMap, features: FeatureMap) -> Moments:
    """Return moments of the map ``first`` for an equivalent map with more actions, as :meth:`LogMoments.on`."""
    at_origin = with_origin_of(first, features)
    moved: Moments = recentred(moments, first, at_origin)
    if features.fingerprint == at_origin.fingerprint:
        return moved
    place = action_positions(features, at_origin)
    return moved.with_actions(place, len(features.actions or ()), features.fingerprint)


def clusters_on(clusters: ClusterTable, first: FeatureMap, features: FeatureMap) -> ClusterTable:
    """Return sums of clusters as :func:`moments_on` returns moments."""
    at_origin = with_origin_of(first, features)
    moved = clusters.recentred(first, at_origin)
    if features.fingerprint == at_origin.fingerprint:
        return moved
    return moved.with_actions(action_positions(features, at_origin))


def _warn_of_clusters(left: LogMoments, right: LogMoments) -> None:
    """Warn where no cluster is in both moments, and their ids have different types."""
    one, other = left.summed.clusters, right.summed.clusters
    if one is None or other is None or not len(one) or not len(other):
        return
    if (one.ids.locate(other.ids.values) < 0).all():
        first, second = plain(one.ids.id_of(0)), plain(other.ids.id_of(0))
        if type(first) is not type(second):
            warn(
                f"No cluster is in both moments: the ids of column {left.roles.cluster!r} are of type "
                f"{type(first).__name__} in the first, such as {first!r}, and of type {type(second).__name__} in the "
                f"second, such as {second!r}. Rows of one cluster in both count as two clusters. If some clusters are "
                "in both logs, make both moments with ids of one type."
            )


def has_per_action_sums(features: FeatureMap) -> bool:
    """Return True where each action has its own coefficients, so that sums are kept per action."""
    return features.actions is not None and one_action(features) is not None


def _are_equivalent(one: object, other: FeatureMap) -> bool:
    """Return True for maps that differ at most in the origin of their columns."""
    return one == other or getattr(one, "equivalence_id", None) == getattr(other, "equivalence_id", 0)


def as_moments(source: object) -> LogMoments | None:
    """Return given moments, or the moments at a path; None for a log."""
    if isinstance(source, LogMoments):
        return source
    return LogMoments.load(source) if holds_moments(source) else None  # type: ignore[arg-type]  # it is a path


def common_roles(one: Roles, other: Roles) -> Roles:
    """Return the roles of both; roles of columns that are only checked are dropped where they differ."""
    differences = [
        f"{role}={getattr(one, role)!r} and {role}={getattr(other, role)!r}"
        for role in Roles.names()
        if role not in _CHECKED and getattr(one, role) != getattr(other, role)
    ]
    if differences:
        raise MismatchError(
            f"These moments do not combine, since they were made of different columns: {'; '.join(differences)}. "
            "Make both again of the same columns; rename those of one log where only the names differ."
        )
    dropped = {role: None for role in _CHECKED if getattr(one, role) != getattr(other, role)}
    return replace(one, **dropped)  # type: ignore[arg-type]  # they may be None


def _refuse_negative(moments: Moments, before: Moments) -> None:
    m = len(moments)
    rows = moments.rows.reshape(m, -1).min(axis=1, initial=0.0)
    if (rows < 0).any():
        task = moments.tasks[rows.argmin()]
        known = before.keys.find(task)
        have = "none" if known < 0 else thousands(float(before.rows[known].sum()))
        raise MismatchError(
            f"The subtracted moments have more rows of task {plain(task)!r} than the first moments, which have {have}. "
            "Are the two in the wrong order, or were these rows subtracted before?"
        )
