"""The moments of a log, with all that a fit needs beside them: they add, subtract, and lie on disk."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.blas_threads import one_blas_thread
from hieropo._utils.text import counted, thousands
from hieropo.errors import InputError, MismatchError, warn
from hieropo.features.maps import FeatureMap, at_origin, merged_map, places_in
from hieropo.logs.bad_rows.rejects import Rejected, asked
from hieropo.logs.opening import open_log
from hieropo.logs.reading import check_log
from hieropo.moments.recentring import recentred, settled
from hieropo.moments.row_sketch import RowSketch
from hieropo.moments.statistics import Moments
from hieropo.moments.units import UnitMoments, one_action
from hieropo.passes.checkpoints import features_and_sums, stored_sums, summed_from
from hieropo.passes.feasibility import refuse_too_large, warn_of_ids
from hieropo.passes.feature_choice import FeatureChoice, check_choice, has_origin, kind_of_map
from hieropo.passes.worker import PassResult
from hieropo.rows.batches import Roles
from hieropo.rows.ids import abbreviate, plain
from hieropo.storage.moments import holds_moments, read_moments_file, write_moments_file

_SOME, _MOST = 0.02, 0.9  # shares of common rows that are no coincidence, and that are all of them
_CHECKED = (
    "pscore",
    "time",
)  # roles of columns that are checked, and neither learned from nor read of requests


@dataclass(frozen=True, slots=True, eq=False)
class LogMoments:
    """Sums of a log that a learner needs in place of its rows; those made on different days, machines or sites add.

    ``+`` is associative and commutative to rounding, and keeps the union of the tasks. Where each action has
    coefficients of its own, the actions are united too; any other difference between the feature maps, or between the
    columns that were summed, is refused. ``-`` takes rows out again.

    Attributes
    ----------
    features : FeatureMap
    roles : Roles
        The columns.
    summed : Summed
        Moments (UnitMoments where each action has coefficients of its own), groups and metadata of the tasks, and a
        fingerprint of the rows.
    rejected : Rejected or None
        What was set aside of the log that they were made of; None of moments that were put together, or come from disk.

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
        features : FeatureMap or {"per-action", "indicator", "columns"}, optional
            As of :class:`HierOPO`.
        lenient, rejects
            What becomes of rows that cannot be used, as of :meth:`HierOPO.fit`.
        checkpoint : path, optional
            As of :meth:`HierOPO.fit`.
        **columns
            Names of columns by role, as of :meth:`HierOPO.fit`.

        Raises
        ------
        InputError, SchemaError, LogError, UnknownActionError
            The log cannot be used; says why, where, and what to do.
        """
        check_choice(features)
        strays = [name for name in columns if name not in Roles.names()]
        if strays:
            raise TypeError(f"of() got {strays[0]!r}; it takes the names of columns: {list(Roles.names())}.")
        named = {"task": None, "action": None, "reward": None, **columns}
        named["context"] = named.get("context") or getattr(features, "columns", ())
        roles = Roles(**named)
        taker = asked(log, lenient=lenient, file=rejects)
        source = open_log(log, rereadable=True, lenient=taker is not None)
        check_log(source, roles, lenient=taker is not None)  # before a pass that finds the actions
        made, summed = features_and_sums(
            source, features, roles, falls_apart, rejects=taker, checkpoint=checkpoint
        )
        found = cls(made, roles, summed, None if taker is None else taker.rejected)
        return found if has_origin(features) else found.settled()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Open what :meth:`save` wrote; every byte is checked.

        Raises
        ------
        ArtifactError
            There are no moments, or they are torn, edited or of a newer format; names the file.
        """
        stored = read_moments_file(path)
        return cls(stored.features, stored.roles, summed_from(stored.sums, stored.roles))

    def save(self, path: str | os.PathLike[str], *, provenance: Mapping[str, Any] | None = None) -> Path:
        """Write to a directory, in place of the moments that stand there, atomically.

        Parameters
        ----------
        path : path
            Its parent must exist; what stands there must be moments, empty or nothing.
        provenance : mapping, optional
            Anything that JSON can hold, for the reader.

        Raises
        ------
        ArtifactError
            Something else stands at ``path``, or it cannot be written; what stood there is untouched.
        """
        return write_moments_file(path, self.features, self.roles, stored_sums(self.summed), provenance or {})

    @property
    def moments(self) -> Moments | UnitMoments:
        """The sums of every task; of every action of a task where each has coefficients of its own."""
        found: Moments | UnitMoments = self.summed.moments
        return found

    @property
    def tasks(self) -> NDArray[Any]:
        """The ids of the tasks, as given, shape (m,)."""
        return self.moments.tasks

    @property
    def n_rows(self) -> float:
        """Rows of all tasks together, by their weights."""
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
        share = right.summed.sketch.share_in(left.summed.sketch)
        if share is not None and share > _SOME:
            warn(
                f"About {share:.0%} of the rows of the second moments are among those of the first, and count twice "
                "now. Were the same rows summed at two places?"
            )
        return type(self)(features, roles, left.summed + right.summed)

    def __sub__(self, other: Self) -> Self:
        """Return the moments without the rows of the other; tasks of which no row is left stay, without rows.

        Raises
        ------
        MismatchError
            Made with other features or columns; or some of these rows are not in here, as far as numbers tell.
        """
        if not isinstance(other, LogMoments):
            return NotImplemented
        features, roles = merged_map(self.features, other.features), common_roles(self.roles, other.roles)
        left, right = self.on(features).summed, other.on(features).summed
        share = right.sketch.share_in(left.sketch)
        if share is not None and share < _MOST:
            raise MismatchError(
                f"Only about {share:.0%} of the rows that are subtracted are among those of the first moments. Are the "
                "two in the wrong order, or were they taken out before?"
            )
        moments = left.moments - right.moments
        _refuse_negative(moments, left.moments)
        return type(self)(
            features,
            roles,
            PassResult(moments, left.task_levels + right.task_levels, left.sketch - right.sketch),
        )

    def on(self, features: FeatureMap) -> Self:
        """Return the same for a map that :func:`united` made of this one and another."""
        here = at_origin(self.features, features)
        moments: Moments | UnitMoments = recentred(self.moments, self.features, here)
        if features.fingerprint != here.fingerprint:
            assert isinstance(moments, UnitMoments)
            place = places_in(features, here)
            moments = moments.among(place, len(features.actions or ()), features.fingerprint)
        return replace(self, features=features, summed=replace(self.summed, moments=moments))

    def settled(self) -> Self:
        """Return the same measured from where these rows lie, as :func:`moving.settled` chooses it."""
        moments, features = settled(self.moments, self.features)
        return replace(self, features=features, summed=replace(self.summed, moments=moments))

    def within(self, features: FeatureMap) -> Self:
        """Return the same for a map that has all of its actions.

        Raises
        ------
        MismatchError
            It has not, or differs otherwise.
        """
        merged_map(features, self.features)
        more = [action for action in self.features.actions or () if action not in (features.actions or ())]
        if more:
            raise MismatchError(
                f"These moments have actions that what was learned so far does not have: {abbreviate(more)}. Put all "
                "moments together and fit them."
            )
        return self.on(features)

    def scale(self, factor: float) -> Self:
        """Multiply every weight by a positive ``factor``: below 1, what lies back counts for less."""
        return replace(self, summed=replace(self.summed, moments=self.moments.scale(factor)))

    def without(self, tasks: object) -> Self:
        """Return the moments without these tasks: nothing that was made of their rows is left.

        The fingerprint of rows does not know their tasks and is given up; whether a log was learned from is then told
        by the sums of tasks.

        Raises
        ------
        UnknownTaskError
            A task is not here.
        """
        moments = self.moments
        gone = moments.keys.require(tasks)
        kept = np.delete(moments.tasks, gone)
        left = moments.select(kept)
        task_levels = self.summed.task_levels.without(moments.tasks[gone].tolist())
        return replace(self, summed=PassResult(left, task_levels, RowSketch.unknown(round(left.n_rows))))

    def for_learning(self, *, apart: bool) -> Moments | UnitMoments:
        """Return the moments of units where ``apart``, else of all features of the map.

        Raises
        ------
        InputError
            They take more memory than there is, or actions have no coefficients of their own.
        """
        moments = self.moments
        if isinstance(moments, UnitMoments) and not apart:
            refuse_too_large(len(moments), moments.dim)
            return moments.dense()
        if apart and not isinstance(moments, UnitMoments):
            raise InputError(
                "These moments do not keep actions apart: each action needs coefficients of its own."
            )
        return moments

    def check(self, features: FeatureChoice, columns: Mapping[str, Any]) -> None:
        """Refuse features or columns, where some are named, that these moments were not made of.

        Raises
        ------
        MismatchError
            Names the first that differs.
        """
        for role, given in columns.items():
            own = getattr(self.roles, role)
            if (
                given
                and (tuple(given) if isinstance(own, tuple) and not isinstance(given, str) else given) != own
            ):
                raise MismatchError(
                    f"These moments were made with {role}={own!r}; {role}={given!r} cannot be learned from them. Leave "
                    "it out, or make moments of the log again."
                )
        named = kind_of_map(self.features)
        if features is not None and not (features == named or _one_family(features, self.features)):
            raise MismatchError(
                f"These moments were made with other features ({named}, of the columns {list(self.features.columns)}) "
                f"than features={features!r}. Leave it out, or make moments of the log again."
            )


def falls_apart(features: FeatureMap) -> bool:
    """Return whether each action has coefficients of its own, so that sums are kept for each."""
    return features.actions is not None and one_action(features) is not None


def _one_family(one: object, other: FeatureMap) -> bool:
    """Return whether two maps are one but for where they measure their columns from."""
    return one == other or getattr(one, "family", None) == getattr(other, "family", 0)


def as_moments(source: object) -> LogMoments | None:
    """Return moments that were handed in, themselves or by their path; None for a log."""
    if isinstance(source, LogMoments):
        return source
    return LogMoments.load(source) if holds_moments(source) else None  # type: ignore[arg-type]  # it is a path


def common_roles(one: Roles, other: Roles) -> Roles:
    """Return the roles of both; those of columns that are only checked go where they differ."""
    told = [
        f"{role}={getattr(one, role)!r} and {role}={getattr(other, role)!r}"
        for role in Roles.names()
        if role not in _CHECKED and getattr(one, role) != getattr(other, role)
    ]
    if told:
        raise MismatchError(
            f"These moments do not combine, since they were made of different columns: {'; '.join(told)}. Make both "
            "again of the same columns; rename those of one log where only the names differ."
        )
    lost = {role: None for role in _CHECKED if getattr(one, role) != getattr(other, role)}
    return replace(one, **lost)  # type: ignore[arg-type]  # they may be None


def _refuse_negative(moments: Moments | UnitMoments, before: Moments | UnitMoments) -> None:
    m = len(moments)
    rows = moments.rows.reshape(m, -1).min(axis=1, initial=0.0)
    if (rows < 0).any():
        task = moments.tasks[rows.argmin()]
        known = before.keys.find(task)
        have = "none" if known < 0 else thousands(float(before.rows[known].sum()))
        raise MismatchError(
            f"What is subtracted holds rows of task {plain(task)!r} that the first moments, with {have} of it, do not. "
            "Are the two in the wrong order, or were they taken out before?"
        )
