"""HierOPO in scikit-learn's manner: a thin edge over the core."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Literal, Self, get_args

from hieropo._utils.blas_threads import one_blas_thread
from hieropo._utils.parameters import Parameters
from hieropo.doctor.collecting import LogStatistics
from hieropo.doctor.examination import Finding
from hieropo.doctor.fitting import of_counts, of_learning, of_moments, of_rows, raise_or_warn
from hieropo.doctor.tee_source import TeeSource
from hieropo.errors import InputError, SchemaError, UnknownActionError
from hieropo.estimation.hyper.uncertainty import Uncertainty
from hieropo.estimation.learning import (
    Hyper,
    Learning,
    Settings,
    TaskCovariance,
    identifiability_inputs,
    learning,
    recentred_settings,
)
from hieropo.evaluation.pessimism import PessimismChoice
from hieropo.features.maps import FeatureMap, action_positions, merged_map
from hieropo.learners.fitted import Fitted
from hieropo.logging_policy.incumbents import Logging
from hieropo.logs.bad_rows.rejects import Rejects, rejects_for
from hieropo.logs.opening import open_log
from hieropo.logs.reading import check_log
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.hierarchy import Hierarchy
from hieropo.model.task_levels import TaskLevels
from hieropo.moments.recentring import at_final_origin
from hieropo.moments.row_sketch import RowSketch
from hieropo.moments.units import UnitMoments
from hieropo.passes.checkpoints import features_and_sums
from hieropo.passes.feasibility import warn_of_far, warn_of_gate, warn_of_ids
from hieropo.passes.feature_choice import FeatureChoice, check_choice, has_origin, joined_actions
from hieropo.passes.identifiability import explained, refuse_undetermined
from hieropo.passes.log_moments import LogMoments, as_moments, common_roles
from hieropo.passes.summing import sums
from hieropo.passes.worker import PassResult
from hieropo.policies.lower_bound import LCBPolicy, checked_pessimism
from hieropo.policies.marginals import Unseen
from hieropo.rows.batches import Roles

Pessimism = float | Literal["cv"] | None

_NEW_ACTIONS = (
    "partial_fit keeps the actions of the first log, unless the crossed prior lets them borrow from each other and no "
    "feature map or hierarchy was given. To learn new ones, call fit with the rows of both logs, or with "
    "the sum of their moments, LogMoments.of(...) + LogMoments.of(...)."
)


class HierOPO(Fitted, Parameters):
    """One policy for every task, sharing strength through a hierarchy (HierOPO, arXiv 2212.04720).

    Parameters
    ----------
    features : FeatureMap or {"per-action", "indicator", "columns"}, optional
        Default: "columns" without an action column; "per-action" where context columns are named, with an intercept;
        else "indicator".
    pessimism : float or "cv", optional
        Actions are chosen by ``mean - pessimism * sd``; default 0.1, the paper's alpha. "cv" chooses it from the log.
    level : float, optional
        Pointwise credible level instead of ``pessimism``.
    task_cov : {"auto", "crossed", "full", "block", "diag", "isotropic"} or (d, d) array
        Shape of the estimated Sigma_0. "crossed" is for actions with coefficients of their own: coefficients are the
        sum of a common part, an effect of the action, the level of the task and their interaction, and the standard
        deviations of the last three are integrated, zero included. Groups have levels and interactions too, and effects
        move with metadata. "auto" takes it where it is derived (not with sampling weights, a hierarchy of which
        something is given, or levels of many coefficients); else the evidence chooses among the other shapes. "block"
        has one full block for each action; an array is known up to its scale.
    hyper : {"flat"} or Gaussian
        Prior of the population mean: flat, or N(mean, cov).
    uncertainty : {"auto", "integrated", "first-order", "plug-in"}
        How the uncertainty of the learned hierarchy enters the posteriors: by a mixture of hierarchies that the log
        leaves possible, by a correction, or not at all; "auto" decides by the size of the log. What is not learned
        with ``hyper="flat"`` is plug-in.
    known : Hierarchy or CrossedHierarchy, optional
        Given hyper-parameters; switches estimation off.
    unseen : {"prior", "error"}
        What a task that the log does not have gets.
    logging : {"unknown", "random", "frozen", "adaptive"}
        How the incumbent chose: by chance alone; knowing something of the tasks, but without learning from these rows,
        so that how often, and in which contexts, it took an action says what it knew, and is used; or learning from
        these rows.

    Attributes
    ----------
    policy_ : LCBPolicy, or GatedPolicy where one was loaded
    posterior_ : Posterior
    hierarchy_ : Hierarchy
        CrossedHierarchies with the crossed prior, as ``posterior_`` and ``moments_`` are of their kind then.
    estimate_ : Estimate
        How the hierarchy was learned; only where it was.
    learned_ : Learned
        What is known of the hierarchy, and how its uncertainty is carried; only where it was learned, and not
        with the crossed prior or a Gaussian.
    moments_ : Moments
    pessimism_ : PessimismChoice
        What each pessimism is worth; only with "cv".
    features_ : FeatureMap
        With an origin where context columns lie far from 0; coefficients are those of what it measures.
    roles_ : Roles
    rejected_ : Rejected or None
        What was set aside of the last log that was learned from; None where the first such row was to be an error.
    findings_ : tuple of Finding
        What :func:`examine` would say of the last log that was learned from, as far as its pass and its moments tell.
    """

    pessimism_: PessimismChoice
    policy_: LCBPolicy
    findings_: tuple[Finding, ...]
    hierarchy_: Any
    posterior_: Any

    _shares = True  # strength between tasks
    _seen: LogStatistics | None = None  # of the rows that are being learned from

    def __init__(  # noqa: PLR0913 - one parameter for each setting
        self,
        features: FeatureChoice = None,
        *,
        pessimism: Pessimism = None,
        level: float | None = None,
        task_cov: TaskCovariance = "auto",
        hyper: Hyper = "flat",
        uncertainty: Uncertainty = "auto",
        known: Hierarchy | CrossedHierarchy | None = None,
        unseen: Unseen = "prior",
        logging: Logging = "unknown",
    ) -> None:
        self.features = features
        self.pessimism = pessimism
        self.level = level
        self.task_cov = task_cov
        self.hyper = hyper
        self.uncertainty = uncertainty
        self.known = known
        self.unseen = unseen
        self.logging = logging

    @one_blas_thread
    def fit(  # noqa: PLR0913 - one parameter for each role
        self,
        log: Any,
        *,
        task: str | None = None,
        reward: str | None = None,
        action: str | None = None,
        pscore: str | None = None,
        weight: str | None = None,
        precision: str | None = None,
        sampling_weight: str | None = None,
        time: str | None = None,
        eligible: str | None = None,
        context: Sequence[str] = (),
        levels: Sequence[str] = (),
        metadata: Sequence[str] = (),
        lenient: bool = False,
        rejects: str | os.PathLike[str] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Learn from a log.

        Parameters
        ----------
        log : path, Arrow table or stream, pandas or polars DataFrame, DuckDB relation
            Anything that ``open_log`` takes; or :class:`LogMoments` or their path, which know columns and features.
        task, reward, action, pscore : str
            Names of columns. ``pscore`` is checked, and not used for learning.
        weight, precision, sampling_weight : str
            Columns of counts or discounts, a row of weight k being k rows; of 1 / relative variances; of 1 / P(kept).
        time, eligible : str
            Columns that say when the action was chosen, and list those that could be. Checked, and not used for
            learning. Only with a ``time``, and rows in its order, is it told whether choices react to rewards and
            whether rewards move. :meth:`evaluate`, :meth:`predict` and ``hieropo decide`` read ``eligible`` too.
        context : sequence of str
            Context columns, in the order of the features.
        levels : sequence of str
            Columns of groups of tasks, the widest first, such as ``["region", "store"]``. Each covariance is learned.
        metadata : sequence of str
            Columns of numbers known of a task, the same in all its rows: coefficients move with them.
        lenient : bool
            Whether rows that cannot be used are set aside, counted in ``rejected_`` and warned about, and refused where
            they are more than half. If not, the first one is an error.
        rejects : path, optional
            A .parquet or .csv file that lists all such rows: file, row, column, value, reason.
        checkpoint : path, optional
            A directory that keeps what was summed after every file. A fit that was killed goes on from there, and ends
            with the same bits. It stays, and is refused once a file that was read has changed.

        Raises
        ------
        InputError
            Settings are none of the choices, or do not go together.
        SchemaError, LogError, UnknownActionError, NumericalError
            The log cannot be used; says why, where, and what to do.
        """
        settings = self._check_settings()
        start = perf_counter()
        columns = context or getattr(self.features, "columns", ())
        names = task, action, reward, pscore, weight, precision, sampling_weight
        columns_by_role = (*names, columns, levels, metadata, eligible, time)
        stored = as_moments(log)
        bad_rows = rejects_for(log, lenient=lenient, file=rejects)
        if stored is not None:
            _refuse_row_options(bad_rows, checkpoint)
            return self._fit_moments(stored, dict(zip(Roles.names(), columns_by_role, strict=True)), settings)
        roles = Roles(*columns_by_role)  # type: ignore[arg-type]  # it checks
        self._check_roles(roles, settings)
        source = open_log(log, rereadable=True, lenient=bad_rows is not None)
        check_log(source, roles, lenient=bad_rows is not None)  # before a pass that finds the actions
        tee = TeeSource(source, roles, bad_rows)
        features, result = features_and_sums(
            tee,
            self.features,
            roles,
            lambda made: self._per_action(made, roles, settings),
            rejects=bad_rows,
            checkpoint=checkpoint,
        )
        self._seen, self.rejected_ = tee.collected(), None if bad_rows is None else bad_rows.rejected
        self._actions_given = isinstance(self.features, FeatureMap)
        moments = result.moments
        self._seconds = {"reading": perf_counter() - start}
        if not has_origin(self.features):
            moments, features = at_final_origin(moments, features)
        self._learn(moments, features, roles, result.task_levels, result.sketch, settings)
        if self.pessimism == "cv":
            from hieropo.evaluation.entry import best_pessimism, subject_of

            self.pessimism_ = best_pessimism(subject_of(self), source, roles, bad_rows)
            best = self.pessimism_.chosen
            self.policy_ = LCBPolicy(self.posterior_, self.features_, pessimism=best, unseen=self.unseen)
        return self

    def _fit_moments(self, log: LogMoments, columns: Mapping[str, Any], settings: Settings) -> Self:
        """Learn from moments; ``columns`` that are named have to be theirs."""
        if self.pessimism == "cv":
            raise InputError(
                "pessimism='cv' needs the rows, which moments do not hold: fit the log itself, or set a number."
            )
        log.check(self.features, columns)
        self._check_roles(log.roles, settings)
        self._seconds, self.rejected_, self._seen = {}, None, None
        self._actions_given = isinstance(self.features, FeatureMap)
        log = log.within(self.features) if has_origin(self.features) else log.at_final_origin()  # type: ignore[arg-type]  # a map
        moments, summed = (
            log.for_learning(per_action=self._per_action(log.features, log.roles, settings)),
            log.summed,
        )
        rare: Iterable[Finding] = ()
        if isinstance(log.moments, UnitMoments):
            coefficients = settings.coefficients(log.features)
            rare = of_counts(
                log.moments.rows.sum(axis=0), log.features.actions or (), log.roles, coefficients
            )
        return self._learn(
            moments, log.features, log.roles, summed.task_levels, summed.sketch, settings, rare
        )

    def _per_action(self, features: FeatureMap, roles: Roles, settings: Settings) -> bool:
        """Return True where sums are kept per action; raise for features that do not fit the settings."""
        settings.check_features(features)
        return self._shares and settings.crossed(features, roles)

    def _bound(self) -> tuple[float | None, float | None]:
        """Return pessimism and level as far as they are set before fitting."""
        if self.pessimism == "cv" and self.level is not None:
            raise InputError(
                "pessimism='cv' chooses the bound from the log, and level= gives it; leave one out."
            )
        return (None if self.pessimism == "cv" else self.pessimism), self.level

    def _check_roles(self, roles: Roles, settings: Settings) -> None:
        """Raise InputError for columns that this learner does not use."""
        settings.check_roles(roles)

    def _check_settings(self) -> Settings:
        """Return the settings; raise InputError where they are wrong, before a long pass over the log."""
        check_choice(self.features)
        settings = self._settings_of()
        settings.check()
        checked_pessimism(*self._bound())
        if self.unseen not in get_args(Unseen):
            raise InputError(f"unseen={self.unseen!r}; 'prior' or 'error' is needed.")
        return settings

    @one_blas_thread
    def partial_fit(
        self,
        log: Any,
        *,
        lenient: bool = False,
        rejects: str | os.PathLike[str] | None = None,
        **columns: Any,
    ) -> Self:
        """Learn from more rows as well; with a first log, the same as :meth:`fit`.

        The result equals one fit to all rows together, with the origin of the first log. Under the crossed prior new
        actions join, and borrow from the others, unless a feature map or a hierarchy was given.

        Raises
        ------
        SchemaError
            Context columns are named that differ from those of the first log.
        UnknownActionError
            An action that the first log did not have, where it cannot join.

        Warns
        -----
        HieropoWarning
            The ids of the tasks are of another type than those so far; the policy had a gate, which is given up.
        """
        if not hasattr(self, "moments_"):
            return self.fit(log, lenient=lenient, rejects=rejects, **columns)
        unknown = [name for name in columns if name not in Roles.names()]
        if unknown:
            raise TypeError(
                f"partial_fit() got {unknown[0]!r}; it takes the names of columns: {list(Roles.names())}."
            )
        settings = self._check_settings()
        if self.pessimism == "cv":
            raise InputError(
                "pessimism='cv' needs all rows at once: call fit with all of them, or set a number."
            )
        if self._per_action(self.features_, self.roles_, settings) != isinstance(self.moments_, UnitMoments):
            raise InputError(
                "The settings were changed since fit(), and need other sums than those of the rows so far: call fit "
                "with all rows again."
            )
        roles = replace(self.roles_, **columns)
        for role, name in (("context", "context columns"), ("levels", "levels"), ("metadata", "metadata")):
            if getattr(roles, role) != getattr(self.roles_, role):
                raise SchemaError(
                    f"This learner was fitted with the {name} {list(getattr(self.roles_, role))}, not "
                    f"{list(getattr(roles, role))}; more rows must bring the same ones."
                )
        bad_rows = rejects_for(log, lenient=lenient, file=rejects)
        features, more = self._more(log, roles, bad_rows, settings)
        new_moments, before = more.moments, _with_actions_of(features, self.moments_, self.features_)
        if (self.moments_.keys.locate(new_moments.tasks) < 0).all():
            warn_of_ids(self.moments_.tasks[0], new_moments.tasks[0], "new row")
        warn_of_gate(self.policy_)
        sketch = self._sketch + more.sketch
        return self._learn(before + new_moments, features, roles, more.task_levels, sketch, settings)

    def _more(
        self, log: Any, roles: Roles, bad_rows: Rejects | None, settings: Settings
    ) -> tuple[FeatureMap, PassResult]:
        """Return sums over more rows, or given moments of them; groups and metadata of tasks add up."""
        per_action, stored = self._per_action(self.features_, roles, settings), as_moments(log)
        joining = per_action and self.known is None and not self._actions_given
        if stored is None:
            source = open_log(log, rereadable=joining, lenient=bad_rows is not None)
            features = joined_actions(self.features_, source, roles, bad_rows) if joining else self.features_
            if bad_rows is not None:
                bad_rows.features = features
            tee = TeeSource(source, roles, bad_rows)
            offset = _with_actions_of(features, self.moments_, self.features_).offset
            more: dict[str, Any] = {"per_action": per_action, "rejects": bad_rows, "offset": offset}
            try:
                result = sums(tee, features, roles, self._task_levels, **more)
            except UnknownActionError as error:
                raise UnknownActionError(f"{error} {_NEW_ACTIONS}") from error
            self._seen, self.rejected_ = tee.collected(), None if bad_rows is None else bad_rows.rejected
            return features, result
        _refuse_row_options(bad_rows)
        self._seen = None
        common_roles(roles, stored.roles)
        features = merged_map(self.features_, stored.features) if joining else self.features_
        same = stored.within(features)
        both = self._task_levels + same.summed.task_levels
        return features, replace(
            same.summed, moments=same.for_learning(per_action=per_action), task_levels=both
        )

    def _settings_of(self) -> Settings:
        return Settings(self.task_cov, self.hyper, self.uncertainty, self.known, self.logging)

    def _findings(
        self, moments: Any, features: FeatureMap, roles: Roles, settings: Settings
    ) -> Iterator[Finding]:
        """Yield the findings about the log that come before learning."""
        learning, listed = self._shares and self.known is None, not isinstance(self.features, FeatureMap)
        varied = (seen := self._seen) is not None and seen.reward.kind != "constant"
        yield from of_moments(moments, features, roles, learning=learning, listed=listed, varied=varied)
        yield from () if seen is None else of_rows(seen, settings.coefficients(features))

    def _learn(
        self, moments: Any, features: FeatureMap, roles: Roles, task_levels: TaskLevels, sketch: RowSketch,
        settings: Settings, more: Iterable[Finding] = (),
    ) -> Self:  # fmt: skip
        identifiable = identifiability_inputs(moments, features)
        if self.known is None:
            refuse_undetermined(*identifiable)
        findings = raise_or_warn((*self._findings(moments, features, roles, settings), *more))
        warn_of_far(moments, features, roles.reward)
        start = perf_counter()
        with explained(*identifiable):
            learned = self.learned_from(moments, features, task_levels)
        if self.logging == "unknown":
            findings += raise_or_warn(of_learning(moments, features, roles, learned, self._seen))
        policy = LCBPolicy(
            learned.posterior, features, pessimism=self._bound()[0], level=self.level, unseen=self.unseen
        )
        self._seconds = {**self._seconds, "learning": perf_counter() - start}
        self.findings_, self._seen = findings, None
        self.moments_ = moments
        self.features_ = features
        self.roles_ = roles
        self.hierarchy_ = learned.hierarchy
        self.posterior_ = learned.posterior
        self.policy_ = policy
        for name in ("estimate", "learned"):
            self.__dict__.pop(f"{name}_", None)
            if getattr(learned, name) is not None:
                setattr(self, f"{name}_", getattr(learned, name))
        self._task_levels, self._hyper_uncertainty, self._sketch = (
            task_levels,
            learned.hyper_uncertainty,
            sketch,
        )
        self._noise_told = learned.noise_told
        return self

    def learned_from(self, moments: Any, features: FeatureMap, task_levels: TaskLevels) -> Learning:
        """Return the hierarchy learned from moments of a feature map, conditioned; settings are moved to that map."""
        return self._measured_by(features)._learning(moments, features, task_levels)

    def _measured_by(self, features: FeatureMap) -> Self:
        """Return this learner, or a copy whose settings refer to the coefficients of a recentred map."""
        if not has_origin(features) or features == self.features:
            return self
        before = self.features if isinstance(self.features, FeatureMap) else features.recentred(None)  # type: ignore[attr-defined]  # it has an origin
        return type(self)(**{**recentred_settings(self.get_params(), before, features), "features": features})

    def _learning(self, moments: Any, features: FeatureMap, task_levels: TaskLevels) -> Learning:
        return learning(moments, task_levels, self._settings_of(), features)


def _with_actions_of(features: FeatureMap, moments: Any, before: FeatureMap) -> Any:
    """Return moments that one map made for another that has all of its actions."""
    if features is before or features.fingerprint == before.fingerprint:
        return moments
    return moments.with_actions(
        action_positions(features, before), len(features.actions or ()), features.fingerprint
    )


def _refuse_row_options(bad_rows: Rejects | None, checkpoint: object = None) -> None:
    """Raise InputError for options that need rows where moments were handed in."""
    if checkpoint is not None:
        raise InputError(
            "Moments are read at once, so that there is no progress to keep. Leave checkpoint out."
        )
    if bad_rows is not None:
        raise InputError(
            "Moments hold no rows, so that none can be set aside or listed: leave lenient and rejects out. Rows are "
            "set aside where moments are made."
        )
