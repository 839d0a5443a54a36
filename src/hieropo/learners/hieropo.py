"""HierOPO with scikit-learn's interface: ``fit``, ``partial_fit`` and settings as constructor arguments."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Self, get_args

from hieropo._utils.blas_threads import one_blas_thread
from hieropo._utils.progress import shows_progress
from hieropo.doctor.collecting import LogStatistics
from hieropo.doctor.in_pass import PassStatistics
from hieropo.errors import InputError, UnknownActionError, warn
from hieropo.estimation.crossed.drift import DriftSetting
from hieropo.estimation.crossed.kinds import TaskKindsSetting
from hieropo.estimation.crossed.mixture import SpreadsSetting
from hieropo.estimation.hyper.uncertainty import Uncertainty
from hieropo.estimation.learning import (
    Hyper,
    Settings,
    TaskCovariance,
)
from hieropo.estimation.sites import Likelihood, refuse_likelihood
from hieropo.evaluation.pessimism import PessimismChoice
from hieropo.features.maps import FeatureMap, action_positions, merged_map
from hieropo.learners.drift import drift_of_first_rows, errors_so_far
from hieropo.learners.from_moments import LearnsFromMoments, Pessimism
from hieropo.learners.further_reads import FurtherReads, further_reads
from hieropo.learners.in_shards import (
    refuse_in_shards,
)
from hieropo.learners.more_rows import check_same_columns, refuse_lost_clusters
from hieropo.logging_policy.incumbents import (
    Logging,
)
from hieropo.logs.arrow.times_of_text import with_times
from hieropo.logs.bad_rows.rejects import Rejects, rejects_for
from hieropo.logs.encoding import opened_log, opened_requests
from hieropo.logs.reading import check_log
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.hierarchy import Hierarchy
from hieropo.moments.clusters import ClusterTable, independent
from hieropo.moments.recentring import at_final_origin
from hieropo.passes.checkpoints import features_and_sums
from hieropo.passes.clusters import cluster_table
from hieropo.passes.designs import Design, read_design, sources_of
from hieropo.passes.feasibility import warn_of_gate, warn_of_ids
from hieropo.passes.feature_choice import (
    FeatureChoice,
    check_choice,
    checks_lists,
    has_origin,
    joined_actions,
)
from hieropo.passes.log_moments import as_moments, common_roles
from hieropo.passes.periods import TimesOfRows
from hieropo.passes.sharded import as_shards
from hieropo.passes.summing import joined_sums
from hieropo.passes.worker import PassResult
from hieropo.policies.lower_bound import LCBPolicy, checked_pessimism
from hieropo.rows.batches import Roles
from hieropo.rows.keys import Unseen

_NEW_ACTIONS = (
    "partial_fit keeps the actions of the first log, unless the crossed prior lets them borrow from each other and no "
    "feature map or hierarchy was given. To learn new ones, call fit with the rows of both logs, or with "
    "the sum of their moments, LogMoments.of(...) + LogMoments.of(...)."
)


class HierOPO(LearnsFromMoments):
    """Learn one policy for every task from one log, sharing strength by a hierarchical model (arXiv 2212.04720).

    Parameters
    ----------
    features : formula, list of terms, FeatureMap or {"per-action", "indicator", "columns"}, optional
        A formula of the context columns, such as ``"device + spline(price, 4) + device:price"``, or a list of terms,
        such as ``[Cat("device"), Spline("price", 4)]``; the log teaches it levels and knots, and each action has
        coefficients of its own. Or a feature map phi(context, action). Default: "columns" without an action column;
        "per-action", with an intercept, where context columns are named; else "indicator". Context columns of text,
        dates and times are then terms by their types.
    pessimism : float or "cv", optional
        The policy takes the action with the largest lower bound, ``mean - pessimism * sd`` of its expected reward.
        Default 0.1, the paper's alpha. "cv" chooses it from the log by cross-validation.
    level : float, optional
        Credible level of a single lower bound, in place of ``pessimism``, which is then its normal quantile.
    task_cov : {"auto", "crossed", "full", "block", "diag", "isotropic"} or (d, d) array
        Structure of the covariance Sigma_0 between tasks. "crossed" is for actions with coefficients of their own:
        coefficients are the sum of a common part, an effect of the action, an effect of the task and their interaction;
        the standard deviations of the last three are integrated over their posterior, zero included. Groups of levels
        have effects and interactions too, and effects depend on metadata. "auto" takes "crossed" where the model has it
        (not with sampling weights, a Gaussian ``hyper`` or levels of many coefficients); else the evidence chooses
        among the other structures. "block" has one full block for each action. An array is Sigma_0 up to a scale, which
        is estimated.
    hyper : {"flat"} or Gaussian
        Prior of the population mean: flat, or N(mean, cov).
    uncertainty : {"auto", "integrated", "first-order", "plug-in"}
        How the uncertainty of the estimated hyper-parameters enters the posteriors: by a mixture over draws of their
        posterior, by a first-order correction, or not at all. "auto" decides by the size of the log. With a Gaussian
        ``hyper`` it is always "plug-in".
    known : Hierarchy or CrossedHierarchy, optional
        Given hyper-parameters; switches estimation off.
    unseen : {"prior", "error"}
        Behaviour for tasks that are not in the log: act on their prior given the log, or raise an error.
    logging : {"unknown", "random", "frozen", "adaptive"}
        How the logging policy (the incumbent) chose its actions. "random": independently of what it knew of the tasks.
        "frozen": by knowledge of the tasks from before the log. How often, and in which contexts, it took each action
        then carries that knowledge, and is used as metadata. "adaptive": it learned from these rows as they came.
        "unknown": the fit takes it as "frozen" where the log's own tests say so, which need a column of times
        (``time=``), and as "random" otherwise, with a warning where that is in doubt.
    spreads : {"auto", "one"}
        With the crossed prior: "auto" looks for tasks in which the effects of actions are unusually large, or absent,
        and uses different spreads of interactions where their Bayes factor against one spread is above 10, and unequal
        noise of the tasks explains the rewards less well. "one": all tasks have one spread.
    likelihood : {"gaussian", "robust", "two-part", "auto"}
        Distribution of the rewards given their mean. "robust": Student-t errors, for rewards with heavy tails that are
        symmetric. "two-part": whether a reward is above 0, and the logarithm of rewards above 0, for revenues. "auto":
        two-part where this model suits the rewards; else robust where errors are symmetric and its leave-one-out
        density of n rows is above 10 n times the Gaussian one; else Gaussian. All but "gaussian" need the crossed
        prior, and hold the rows in memory.
    task_kinds : {"auto", "one"} or int
        With the crossed prior: "auto" looks for kinds of tasks, each with effects of actions of its own, and uses them
        where their Bayes factor against one kind is above 10, and above that of different spreads. A number (2 to 6)
        sets how many. "one": all tasks vary around one mean. Kinds need 8 to 300 tasks in memory, without levels and
        metadata.
    drift : {"auto", None}
        With the crossed prior and ``time=``: "auto" lets interactions, effects of actions in all tasks alike, and
        levels of tasks follow random walks, each where its Bayes factor is above 10. Between 1 and 10 the fit averages
        over the walk and none. Interactions may also fade. Policies are then of the end of the log. Where an error that
        rows of one period have in common explains the log better, such rows count as fewer rows. None: coefficients are
        constant.
    roles : mapping, optional
        Columns by role, as the parameters of :meth:`fit` name them, for use as a scikit-learn estimator:
        ``HierOPO(roles={"task": "store", "action": "offer"}).fit(X, y)``. Columns named in a fit come first.

    Attributes
    ----------
    policy_ : LCBPolicy, or GatedPolicy where one was loaded
    posterior_ : Posterior
    hierarchy_ : Hierarchy
        CrossedHierarchies with the crossed prior; ``posterior_`` is then a CrossedMixture, ``moments_`` are per action.
    estimate_ : Estimate
        The estimation of the hierarchy by REML or ML; absent where nothing was estimated.
    learned_ : Learned
        The estimated hierarchy with its uncertainty; absent with the crossed prior, a Gaussian ``hyper`` and ``known``.
    moments_ : Moments
    pessimism_ : PessimismChoice
        The cross-validated value of each pessimism; only with "cv".
    features_ : FeatureMap
        The feature map of the coefficients. Context columns far from 0 are centred on its origin.
    roles_ : Roles
    cluster_correlation_ : (K,) or (1,) array, or None
        Correlation of two rewards of one cluster: of each action with the crossed prior, else of all rows. None without
        a column of clusters.
    sites_ : SiteRule or None
        The likelihood with its parameters, where rewards are not taken as Gaussian. ``moments_`` are then those of
        pseudo-rewards.
    drift_ : Drift or None
        The rates at which interactions, effects of actions and levels drift, and the variance of an error that rows of
        one period have in common; None where drift was not tested for.
    rejected_ : Rejected or None
        Unusable rows of the last log that were set aside, counted by reason; None in a strict fit, which stops at one.
    findings_ : tuple of Finding
        The findings of :func:`examine` on the last log, as far as one pass and the moments show them.
    """

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
        spreads: SpreadsSetting = "auto",
        likelihood: Likelihood = "gaussian",
        task_kinds: TaskKindsSetting = "auto",
        drift: DriftSetting = "auto",
        roles: Mapping[str, Any] | None = None,
    ) -> None:
        self.features: FeatureChoice = features
        self.pessimism: Pessimism = pessimism
        self.level: float | None = level
        self.task_cov: TaskCovariance = task_cov
        self.hyper: Hyper = hyper
        self.uncertainty: Uncertainty = uncertainty
        self.known: Hierarchy | CrossedHierarchy | None = known
        self.unseen: Unseen = unseen
        self.logging: Logging = logging
        self.spreads: SpreadsSetting = spreads
        self.likelihood: Likelihood = likelihood
        self.task_kinds: TaskKindsSetting = task_kinds
        self.drift: DriftSetting = drift
        self.roles = roles

    @shows_progress
    @one_blas_thread
    def fit(  # noqa: PLR0913 - one parameter for each role
        self,
        log: Any,
        y: Any = None,
        *,
        task: str | Sequence[str] | None = None,
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
        cluster: str | None = None,
        lenient: bool = False,
        rejects: str | os.PathLike[str] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Learn from a log.

        Parameters
        ----------
        log : path, Arrow table or stream, pandas or polars DataFrame, DuckDB relation
            Anything that ``open_log`` takes; or :class:`LogMoments` or :class:`ShardedMoments` or their path, which
            hold columns and features.
        y : (n,) array, optional
            Rewards, where the log does not hold them. Their column is called ``reward``, else as ``y`` is named.
        task : str or sequence of str, optional
            Column of task ids. Several columns name a task together, by a tuple such as ``("Utrecht", 3)``. Without
            one, the log is one task, ``"all"``.
        reward, action, pscore : str
            Names of columns. ``pscore`` is the logged probability of the action taken; it is checked, and not used for
            learning.
        weight, precision, sampling_weight : str
            Columns of counts or discounts (a row of weight k counts as k rows), of relative precisions (the variance of
            a reward is the noise variance divided by its precision), and of 1 / P(the row was kept).
        time, eligible : str
            Columns of the time of the choice and of the list of actions that could be taken. Times tell whether
            coefficients drift, for which the log is read once more; adaptive logging is detected only with a ``time``
            and rows in its order. :meth:`evaluate`, :meth:`predict` and ``hieropo decide`` read ``eligible`` too.
        context : sequence of str
            Context columns, in the order of the features. A formula names its own; a ``.`` in it stands for these.
        levels : sequence of str
            Columns of groups of tasks, the widest first, such as ``["region", "store"]``. Each covariance is learned.
        metadata : sequence of str
            Columns of numbers known of a task, the same in all its rows; its prior mean is linear in them.
        cluster : str, optional
            Column of clusters: rows of one session, day, class or visit, whose rewards share a cause. The correlation
            of rewards of the same task, action and cluster is learned, and the rows count for as much as they tell.
            The log is read once more.
        lenient : bool
            True: set unusable rows aside, count them in ``rejected_`` and warn; more than half of the log is an error.
            False: the first unusable row is an error.
        rejects : path, optional
            A .parquet or .csv file to write, which lists the unusable rows: file, row (from 0), in files of text line
            (from 1), column, value, reason.
        checkpoint : path, optional
            A directory for the sums so far, written after every file. A fit that was killed goes on from there, with
            the same result to the bit. The directory is kept. It is refused once a file that was read has changed.

        Raises
        ------
        InputError
            A setting is none of its choices, or two settings contradict each other.
        SchemaError, LogError, UnknownActionError, NumericalError
            The log cannot be used; the message says why, where, and what to do.
        """
        settings = self._check_settings()
        start = perf_counter()
        single = task, action, reward, pscore, weight, precision, sampling_weight
        given = (*single, context, levels, metadata, eligible, time, cluster)
        log, columns = self._rows(log, y, dict(zip(Roles.names(), given, strict=True)))
        columns.setdefault("context", sources_of(self.features))
        shards = as_shards(log)
        if shards is not None:
            _refuse_options_of_rows(rejects_for(shards, lenient=lenient, file=rejects), checkpoint)
            refuse_likelihood(self.likelihood, "moments", _NO_ROWS)
            return self._fit_shards(shards, columns, settings)
        stored = as_moments(log)
        bad_rows = rejects_for(log, lenient=lenient, file=rejects)
        if stored is not None:
            _refuse_options_of_rows(bad_rows, checkpoint)
            refuse_likelihood(self.likelihood, "moments", _NO_ROWS)
            return self._fit_moments(stored, columns, settings)
        roles = Roles(**{"task": None, "action": None, "reward": None, **columns})
        self._check_roles(roles, settings)
        opened = opened_log(log, self.features, rereadable=True, lenient=bad_rows is not None)

        def read(design: Design) -> tuple[Design, LogStatistics | None, TimesOfRows, FeatureMap, PassResult]:
            check_log(design.source, design.roles, lenient=bad_rows is not None)  # before the pass
            statistics = PassStatistics(design.source, design.roles)
            times = TimesOfRows(roles.time)
            features, summed = features_and_sums(
                design.source, design.choice, design.roles,
                lambda features: self._per_action(features, design.roles, settings),
                rejects=bad_rows, checkpoint=checkpoint, reducers=[statistics, times],
            )  # fmt: skip
            return design, statistics.collected(), times, features, summed

        design, self._collected, times, features, summed = read_design(
            self.features, opened, roles, read, lenient=bad_rows is not None, once=checkpoint is not None
        )
        source, roles = design.source, design.roles
        self.rejected_ = None if bad_rows is None else bad_rows.rejected
        self._actions_given = isinstance(self.features, FeatureMap)
        moments = summed.moments
        self._seconds = {"reading": perf_counter() - start}
        if not has_origin(self.features):
            moments, features = at_final_origin(moments, features)
        further = self.likelihood, source, roles, features, moments, bad_rows
        reads = further_reads(*further, times if times.rows == summed.sketch.rows else None)
        self._learn(moments, features, roles, summed.task_levels, summed.sketch, settings, reads=reads)
        if self.pessimism == "cv":
            from hieropo.evaluation.entry import best_pessimism, subject_of

            self.pessimism_: PessimismChoice = best_pessimism(subject_of(self), source, roles, bad_rows)
            self.policy_: LCBPolicy = LCBPolicy(
                self.posterior_, self.features_, pessimism=self.pessimism_.chosen, unseen=self.unseen
            )
        return self

    def _check_settings(self) -> Settings:
        """Return the settings, checked before a long pass over the log."""
        check_choice(self.features)
        settings = self._settings_of()
        settings.check()
        checked_pessimism(*self._bound())
        if self.unseen not in get_args(Unseen):
            raise InputError(
                f"unseen={self.unseen!r} is not a choice for tasks that are not in the log. Set it to 'prior' or "
                "'error'."
            )
        return settings

    @shows_progress
    @one_blas_thread
    def partial_fit(
        self,
        log: Any,
        y: Any = None,
        *,
        lenient: bool = False,
        rejects: str | os.PathLike[str] | None = None,
        **columns: Any,
    ) -> Self:
        """Add the rows of another log and learn again; the first call is the same as :meth:`fit`.

        The result equals one fit to all rows together, with the origin of the first log. Under the crossed prior new
        actions join, and borrow from the others, unless a feature map or a hierarchy was given. New rows of an old
        cluster join it.

        Raises
        ------
        InputError
            The rows so far form clusters, and the learner was loaded: a policy on disk does not hold them.
        SchemaError
            The context, level or metadata columns differ from those of the first log.
        UnknownActionError
            The new log has an action that the first log did not have, and that cannot join.

        Warns
        -----
        HieropoWarning
            No task id of the new log is known, and the ids have another type; or the policy had a gate, which is
            dropped.
        """
        if not hasattr(self, "moments_"):
            return self.fit(log, y, lenient=lenient, rejects=rejects, **columns)
        refuse_in_shards(self._shards, "partial_fit")
        refuse_lost_clusters(self.roles_, self._clusters)
        refuse_likelihood(
            self.likelihood, "partial_fit", "the rows so far would be needed again, and are not stored"
        )
        log, _ = self._rows(log, y, {"reward": self.roles_.reward})
        unknown = [name for name in columns if name not in Roles.names()]
        if unknown:
            raise TypeError(
                f"partial_fit() got {unknown[0]!r}, which is not a role of a column. The roles are "
                f"{list(Roles.names())}."
            )
        settings = self._check_settings()
        if self.pessimism == "cv":
            raise InputError(
                "pessimism='cv' fits parts of all rows, and partial_fit has only the new ones. Call fit with all rows, "
                "or set pessimism to a number."
            )
        if self._per_action(self.features_, self.roles_, settings) != self.moments_.per_action:
            raise InputError(
                "The settings were changed since fit(), and need other moments than those of the rows so far. Call fit "
                "with all rows again."
            )
        roles = replace(self.roles_, **self._encoded_context(columns))
        check_same_columns(roles, self.roles_)
        bad_rows = rejects_for(log, lenient=lenient, file=rejects)
        drift = drift_of_first_rows(self.drift_)
        features, summed = self._sum_new_rows(log, roles, bad_rows, settings)
        new_tasks = summed.moments.tasks
        if (self.moments_.keys.locate(new_tasks) < 0).all():
            warn_of_ids(self.moments_.tasks[0], new_tasks[0], "new row")
        warn_of_gate(self.policy_)
        before, clusters = self._independent_so_far(features)
        errors = errors_so_far(self.hierarchy_, self.features_, features)
        if clusters is not None and summed.clusters is not None:
            clusters = clusters + summed.clusters
        return self._learn(
            before + summed.moments, features, roles, summed.task_levels, self._sketch + summed.sketch,
            self._with_later_rows(settings), reads=FurtherReads(clusters, drift=drift, walk_errors=errors),
        )  # fmt: skip

    def _independent_so_far(self, features: FeatureMap) -> tuple[Any, ClusterTable | None]:
        """Return the moments of the rows so far, as if independent, and their clusters, for a map with new actions."""
        moments, clusters = self.moments_, self._clusters
        if clusters is not None and self.cluster_correlation_ is not None:
            moments = independent(moments, clusters.at(moments), self.cluster_correlation_)
            if features.fingerprint != self.features_.fingerprint:
                clusters = clusters.with_actions(action_positions(features, self.features_))
        return _with_actions_of(features, moments, self.features_), clusters

    def _with_later_rows(self, settings: Settings) -> Settings:
        """Return the settings for rows that are added, and may be choices of this policy; warn of dropped evidence."""
        if self.logging != "unknown":
            return settings
        if self.logging_ == self.logging:
            return replace(settings, logging="adaptive")
        warn(
            "The fit used the shares of the incumbent's actions as evidence of what it knew. Rows that are added "
            "later may be choices of this policy, which knows the tasks by their rewards, so partial_fit does not "
            "use shares. If no policy learned from the rows of either log, fit both with logging='frozen'."
        )
        return replace(settings, logging="random")

    def _encoded_context(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Return columns by role, with the context columns that the features make of those of the log."""
        if columns.get("context") and tuple(columns["context"]) == sources_of(self.features_):
            return {**columns, "context": self.features_.columns}
        return columns

    def _sum_new_rows(
        self, log: Any, roles: Roles, bad_rows: Rejects | None, settings: Settings
    ) -> tuple[FeatureMap, PassResult]:
        """Return the feature map with new actions, and the sums of a further log with all task levels so far."""
        per_action, stored = self._per_action(self.features_, roles, settings), as_moments(log)
        joining = per_action and self.known is None and not self._actions_given
        if stored is None:
            lenient, reread = bad_rows is not None, joining and checks_lists(roles, bad_rows)
            again = reread or roles.cluster is not None or roles.time is not None
            source = opened_requests(log, self.features_, rereadable=again, lenient=lenient)
            source = with_times(source, roles.time, lenient=lenient)
            features = joined_actions(self.features_, source, roles, bad_rows) if reread else self.features_
            if bad_rows is not None:
                bad_rows.features = features if reread or not joining else None
            statistics = PassStatistics(source, roles)
            try:
                features, summed = joined_sums(
                    source, features, roles, self._task_levels, per_action=lambda _: per_action, rejects=bad_rows,
                    joining="new" if joining and not reread else "none", reducers=[statistics],
                    offset=_with_actions_of(features, self.moments_, self.features_).offset,
                )  # fmt: skip
            except UnknownActionError as error:
                raise UnknownActionError(f"{error} {_NEW_ACTIONS}") from error
            if bad_rows is not None:
                bad_rows.features = features
            self._collected = statistics.collected()
            self.rejected_ = None if bad_rows is None else bad_rows.rejected
            if roles.cluster is not None:
                table = cluster_table(source, roles, features, summed.moments, bad_rows)
                summed = replace(summed, clusters=table)
            return features, summed
        _refuse_options_of_rows(bad_rows)
        self._collected = None
        common_roles(roles, stored.roles)
        features = merged_map(self.features_, stored.features) if joining else self.features_
        mapped = stored.within(features)
        task_levels = self._task_levels + mapped.summed.task_levels
        moments = mapped.for_learning(per_action=per_action)
        clusters = mapped.clusters_for_learning(per_action=per_action)
        return features, replace(mapped.summed, moments=moments, task_levels=task_levels, clusters=clusters)


def _with_actions_of(features: FeatureMap, moments: Any, before: FeatureMap) -> Any:
    """Return moments of the feature map ``before`` as moments of ``features``, which has all of its actions."""
    if features is before or features.fingerprint == before.fingerprint:
        return moments
    return moments.with_actions(
        action_positions(features, before), len(features.actions or ()), features.fingerprint
    )


_NO_ROWS = "they hold no rows, and sums of rewards do not show their distribution"


def _refuse_options_of_rows(bad_rows: Rejects | None, checkpoint: object = None) -> None:
    """Refuse options that only a log of rows can have, where the log is moments."""
    if checkpoint is not None:
        raise InputError(
            "checkpoint= was given with moments, which are read in one step. Leave checkpoint out."
        )
    if bad_rows is not None:
        raise InputError(
            "lenient= or rejects= was given with moments, which hold no rows. Leave them out here, and give them where "
            "the moments are made."
        )
