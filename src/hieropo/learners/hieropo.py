"""HierOPO with scikit-learn's interface: ``fit``, ``partial_fit`` and settings as constructor arguments."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Literal, Self, get_args

from hieropo._utils.arrays import Array
from hieropo._utils.blas_threads import one_blas_thread
from hieropo._utils.progress import say, shows_progress
from hieropo.doctor.collecting import LogStatistics
from hieropo.doctor.examination import Finding
from hieropo.doctor.fitting import of_counts, of_learning, of_moments, of_rows, raise_or_warn
from hieropo.doctor.in_pass import PassStatistics
from hieropo.doctor.rules import incumbent
from hieropo.errors import InputError, UnknownActionError, warn
from hieropo.estimation.clusters import learn_correlations
from hieropo.estimation.crossed.drift import DriftSetting
from hieropo.estimation.crossed.kinds import TaskKindsSetting
from hieropo.estimation.crossed.mixture import CrossedHierarchies, SpreadsSetting
from hieropo.estimation.hyper.uncertainty import Uncertainty
from hieropo.estimation.learning import (
    Hyper,
    Learning,
    Settings,
    TaskCovariance,
    identifiability_inputs,
    learning,
)
from hieropo.estimation.sites import Likelihood, refuse_likelihood
from hieropo.evaluation.pessimism import PessimismChoice
from hieropo.features.maps import FeatureMap, action_positions, merged_map
from hieropo.learners.clusters_in_shards import ClustersInShards
from hieropo.learners.drift import drift_of_first_rows, followed
from hieropo.learners.estimator import Estimator
from hieropo.learners.fitted import Fitted
from hieropo.learners.further_reads import NO_FURTHER_READS, FurtherReads, further_reads, learned_by
from hieropo.learners.in_shards import (
    findings_on,
    joins,
    learned_map,
    refuse_in_shards,
    refuse_unsuitable,
    sums_to_learn_from,
)
from hieropo.learners.more_rows import check_same_columns, refuse_lost_clusters
from hieropo.logging_policy.incumbents import (
    CLEAR,
    Logging,
    crossed_knowledge,
    has_intercepts,
    uses_choices,
)
from hieropo.logs.bad_rows.rejects import Rejects, rejects_for
from hieropo.logs.encoding import opened_log, opened_requests
from hieropo.logs.reading import check_log
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.hierarchy import Hierarchy
from hieropo.model.in_shards import PosteriorInShards
from hieropo.model.task_levels import TaskLevels
from hieropo.moments.clusters import ClusterTable, correlated, independent
from hieropo.moments.in_shards import AnyMoments, totals
from hieropo.moments.recentring import at_final_origin
from hieropo.moments.row_sketch import RowSketch
from hieropo.moments.statistics import Moments
from hieropo.passes.checkpoints import features_and_sums
from hieropo.passes.clusters import check_cluster, cluster_table
from hieropo.passes.designs import Design, read_design, sources_of
from hieropo.passes.feasibility import warn_of_far, warn_of_gate, warn_of_ids
from hieropo.passes.feature_choice import (
    FeatureChoice,
    check_choice,
    checks_lists,
    has_origin,
    joined_actions,
)
from hieropo.passes.identifiability import explained, refuse_undetermined
from hieropo.passes.log_moments import LogMoments, as_moments, common_roles
from hieropo.passes.periods import TimesOfRows
from hieropo.passes.sharded import ShardedMoments, as_shards
from hieropo.passes.summing import joined_sums
from hieropo.passes.worker import PassResult
from hieropo.policies.lower_bound import LCBPolicy, checked_pessimism
from hieropo.rows.batches import Roles
from hieropo.rows.keys import Unseen

Pessimism = float | Literal["cv"] | None

_NEW_ACTIONS = (
    "partial_fit keeps the actions of the first log, unless the crossed prior lets them borrow from each other and no "
    "feature map or hierarchy was given. To learn new ones, call fit with the rows of both logs, or with "
    "the sum of their moments, LogMoments.of(...) + LogMoments.of(...)."
)


class HierOPO(Fitted, Estimator):
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
    spreads : {"one", "auto"}
        With the crossed prior: "auto" looks for tasks in which the effects of actions are unusually large, or absent,
        and uses different spreads of interactions where their Bayes factor against one spread is above 10. Tasks of
        larger noise may be taken for such tasks. "one": all tasks have one spread.
    likelihood : {"gaussian", "robust", "two-part", "auto"}
        Distribution of the rewards given their mean. "robust": Student-t errors, for rewards with heavy tails that are
        symmetric. "two-part": whether a reward is above 0, and the logarithm of rewards above 0, for revenues. "auto":
        two-part where this model suits the rewards; else robust where errors are symmetric and its leave-one-out
        density of n rows is above 10 n times the Gaussian one; else Gaussian. All but "gaussian" need the crossed
        prior, and hold the rows in memory.
    task_kinds : {"one", "auto"} or int
        With the crossed prior: "auto" looks for kinds of tasks, each with effects of actions of its own, and uses them
        where their Bayes factor against one kind is above 10. A number (2 to 6) sets how many. "one": all tasks vary
        around one mean. Kinds need 8 to 300 tasks in memory, without levels and metadata.
    drift : {"auto", None}
        With the crossed prior and ``time=``: "auto" lets interactions and levels of tasks follow random walks, each
        where its Bayes factor is above 10. Policies are then of the end of the log. None: coefficients are constant.
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
        The rates at which coefficients and levels drift; None where drift was not tested for.
    rejected_ : Rejected or None
        Unusable rows of the last log that were set aside, counted by reason; None in a strict fit, which stops at one.
    findings_ : tuple of Finding
        The findings of :func:`examine` on the last log, as far as one pass and the moments show them.
    """

    pessimism_: PessimismChoice
    policy_: LCBPolicy
    findings_: tuple[Finding, ...]
    hierarchy_: Any
    posterior_: Any

    _shares = True  # whether tasks share a learned hierarchy
    _collected: LogStatistics | None = None  # the doctor's statistics of the log of a fit in progress

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
        spreads: SpreadsSetting = "one",
        likelihood: Likelihood = "gaussian",
        task_kinds: TaskKindsSetting = "one",
        drift: DriftSetting = "auto",
        roles: Mapping[str, Any] | None = None,
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
        self.spreads = spreads
        self.likelihood = likelihood
        self.task_kinds = task_kinds
        self.drift = drift
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
            A .parquet or .csv file to write, which lists the unusable rows: file, row, column, value, reason.
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

            self.pessimism_ = best_pessimism(subject_of(self), source, roles, bad_rows)
            self.policy_ = LCBPolicy(
                self.posterior_, self.features_, pessimism=self.pessimism_.chosen, unseen=self.unseen
            )
        return self

    def _fit_shards(self, shards: ShardedMoments, columns: Mapping[str, Any], settings: Settings) -> Self:
        """Learn from moments in shards, one in memory at a time; small ones are joined in memory."""
        if joins(shards):
            return self._fit_moments(shards.joined(), columns, settings)
        self._refuse_cv()
        roles = shards.roles
        shards.outline().check(self.features, columns)
        self._check_roles(roles, settings)
        refuse_unsuitable(roles, settings, shares=type(self) is HierOPO)
        features = learned_map(shards, self.features if has_origin(self.features) else None).features  # type: ignore[arg-type]  # a map
        per_action = self._per_action(features, roles, settings)
        sums = sums_to_learn_from(shards, features, per_action=per_action)
        self._seconds, self.rejected_, self._collected = {}, None, None
        self._actions_given = isinstance(self.features, FeatureMap)
        found = findings_on(
            sums, features, roles, learning=self.known is None, listed=not self._actions_given,
            coefficients=settings.coefficients(features),
        )  # fmt: skip
        reads = NO_FURTHER_READS
        if roles.cluster is not None:
            reads = FurtherReads(ClustersInShards(shards, features, per_action))
        self._learn_from(sums, features, roles, TaskLevels(roles), shards.sketch, settings, found, reads)
        self._shards = shards
        return self

    def _refuse_cv(self) -> None:
        if self.pessimism == "cv":
            raise InputError(
                "pessimism='cv' fits parts of the rows, and moments hold no rows. Fit the log itself, or set pessimism "
                "to a number."
            )

    def _fit_moments(self, log: LogMoments, columns: Mapping[str, Any], settings: Settings) -> Self:
        """Learn from moments; named ``columns`` must be those that the moments were made of."""
        self._refuse_cv()
        log.check(self.features, columns)
        self._check_roles(log.roles, settings)
        self._seconds, self.rejected_, self._collected = {}, None, None
        self._actions_given = isinstance(self.features, FeatureMap)
        log = log.within(self.features) if has_origin(self.features) else log.at_final_origin()  # type: ignore[arg-type]  # a map
        per_action, summed = self._per_action(log.features, log.roles, settings), log.summed
        moments = log.for_learning(per_action=per_action)
        rare: Iterable[Finding] = ()
        if log.moments.per_action:
            coefficients = settings.coefficients(log.features)
            rare = of_counts(
                log.moments.rows.sum(axis=0), log.features.actions or (), log.roles, coefficients
            )
        return self._learn(
            moments, log.features, log.roles, summed.task_levels, summed.sketch, settings, rare,
            FurtherReads(log.clusters_for_learning(per_action=per_action)),
        )  # fmt: skip

    def _per_action(self, features: FeatureMap, roles: Roles, settings: Settings) -> bool:
        """Return True where moments are kept for each action; refuse features that contradict the settings."""
        settings.check_features(features)
        crossed = self._shares and settings.crossed(features, roles)
        if not crossed:
            refuse_likelihood(
                settings.likelihood, "a fit without the crossed prior", "it is derived for this prior alone"
            )
        return crossed

    def _bound(self) -> tuple[float | None, float | None]:
        """Return pessimism and level; no pessimism where it is chosen from the log later."""
        if self.pessimism == "cv" and self.level is not None:
            raise InputError(
                f"pessimism='cv' chooses the lower bound from the log, and level={self.level!r} sets it. Leave one out."
            )
        return (None if self.pessimism == "cv" else self.pessimism), self.level

    def _check_roles(self, roles: Roles, settings: Settings) -> None:
        """Refuse columns that this learner cannot use."""
        settings.check_roles(roles)
        check_cluster(roles)

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
        if clusters is not None and summed.clusters is not None:
            clusters = clusters + summed.clusters
        return self._learn(
            before + summed.moments, features, roles, summed.task_levels, self._sketch + summed.sketch,
            self._with_later_rows(settings), reads=FurtherReads(clusters, drift=drift),
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
            source = opened_requests(
                log, self.features_, rereadable=reread or roles.cluster is not None, lenient=lenient
            )
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

    def _settings_in_force(self) -> Settings:
        """Return the settings with the incumbent, and the noise of tasks, as the fit took them."""
        clustered = self.cluster_correlation_ is not None
        return replace(self._settings_of(), logging=self.logging_, equal_noise=clustered)

    def _settings_of(self) -> Settings:
        return Settings(
            self.task_cov, self.hyper, self.uncertainty, self.known, self.logging,
            spreads=self.spreads, likelihood=self.likelihood, task_kinds=self.task_kinds, drift=self.drift,
        )  # fmt: skip

    def _findings(
        self, moments: Any, features: FeatureMap, roles: Roles, settings: Settings
    ) -> Iterator[Finding]:
        """Yield the doctor's findings on the log, before anything is learned from it."""
        learning, listed = self._shares and self.known is None, not isinstance(self.features, FeatureMap)
        collected = self._collected
        varied = collected is not None and collected.reward.kind != "constant"
        note = None if collected is None else collected.task_note
        yield from of_moments(
            moments, features, roles, learning=learning, listed=listed, varied=varied, task_note=note
        )
        if collected is not None:
            yield from of_rows(collected, settings.coefficients(features))

    def _learn(
        self, moments: Any, features: FeatureMap, roles: Roles, task_levels: TaskLevels, sketch: RowSketch,
        settings: Settings, more: Iterable[Finding] = (), reads: FurtherReads = NO_FURTHER_READS,
    ) -> Self:  # fmt: skip
        findings = (*self._findings(moments, features, roles, settings), *more)
        return self._learn_from(moments, features, roles, task_levels, sketch, settings, findings, reads)

    def _learn_from(
        self, moments: AnyMoments, features: FeatureMap, roles: Roles, task_levels: TaskLevels,
        sketch: RowSketch, settings: Settings, found: Iterable[Finding], reads: FurtherReads = NO_FURTHER_READS,
    ) -> Self:  # fmt: skip
        """Learn from moments, in memory or in shards."""
        say("Learning the variation between tasks ...")
        settings = replace(settings, equal_noise=reads.clusters is not None)
        total = totals(moments)
        inputs = identifiability_inputs(total, features)
        if self.known is None:
            refuse_undetermined(*inputs)
        findings = raise_or_warn(found)
        warn_of_far(total, features, roles.reward)
        start = perf_counter()
        with explained(*inputs):
            correlation, moments = self._correlated(moments, reads.clusters, features, task_levels, settings)
            learned, moments, sites = learned_by(
                self.likelihood, reads, moments,
                lambda some, similar: self.learned_from(some, features, task_levels, settings, similar),
            )  # fmt: skip
            informed = self._informed(learned, moments, features, task_levels, settings)
        if informed is not None:
            learned, gain = informed
            findings = (*findings, incumbent.used(roles, gain))
        elif self.logging == "unknown" and settings.logging != "random" and isinstance(moments, Moments):
            findings += raise_or_warn(of_learning(moments, features, roles, learned, self._collected))
        learned, moments, drift, self._still_because = followed(
            learned, moments, roles, settings, reads, sites,
            lambda at_end: self.learned_from(at_end, features, task_levels, settings),
        )  # fmt: skip
        posterior = learned.posterior
        policy = LCBPolicy(
            posterior.population if isinstance(posterior, PosteriorInShards) else posterior, features,
            pessimism=self._bound()[0], level=self.level, unseen=self.unseen,
        )  # fmt: skip
        self._seconds = {**self._seconds, "learning": perf_counter() - start}
        self.findings_, self._collected = findings, None
        self.moments_ = moments
        self.cluster_correlation_ = correlation
        self.sites_ = sites
        self.drift_ = drift
        self.features_ = features
        self.roles_ = roles
        self.hierarchy_ = learned.hierarchy
        self.posterior_ = posterior
        self.policy_ = policy
        self._shards = None
        self._clusters = reads.clusters if isinstance(reads.clusters, ClusterTable) else None
        for name in ("estimate", "learned"):
            self.__dict__.pop(f"{name}_", None)
            if getattr(learned, name) is not None:
                setattr(self, f"{name}_", getattr(learned, name))
        self._task_levels, self._sketch = task_levels, sketch
        self._hyper_uncertainty, self._noise_identified = learned.hyper_uncertainty, learned.noise_identified
        return self

    def _informed(
        self,
        learned: Learning,
        moments: Any,
        features: FeatureMap,
        task_levels: TaskLevels,
        settings: Settings,
    ) -> tuple[Learning, float] | None:
        """Return a fit with the incumbent's choices as evidence, and its gain in log evidence.

        None where the log does not ask for it.

        It asks where shares of actions differ between tasks and are larger where actions pay, rows in the order of
        their times show no reaction to rewards, and the log evidence with the choices is above that without by log 10.
        """
        described = bool(task_levels.levels()) or task_levels.metadata() is not None
        if self._collected is None or settings.logging != "unknown" or self.known is not None or described:
            return None
        if (
            not moments.per_action
            or moments.positive is not None
            or not has_intercepts(features)
            or not incumbent.seems_frozen(self._collected)
        ):
            return None
        z = crossed_knowledge(moments, features, learned.hierarchy.central())  # type: ignore[union-attr]  # crossed
        if z is None or z <= 0.0:
            return None
        informed = self.learned_from(moments, features, task_levels, replace(settings, logging="frozen"))
        gain = informed.posterior.log_evidence - learned.posterior.log_evidence
        return (informed, gain) if uses_choices(informed.hierarchy) and gain > CLEAR else None

    @property
    def logging_(self) -> Logging:
        """``logging`` as the fit took it: "frozen" where the log's own tests said so."""
        return "frozen" if uses_choices(self.hierarchy_) else self.logging

    def _correlated(
        self,
        moments: Any,
        clusters: ClusterTable | ClustersInShards | None,
        features: FeatureMap,
        task_levels: TaskLevels,
        settings: Settings,
    ) -> tuple[Array | None, Any]:
        """Return the correlations of rewards within clusters, and the moments of correlated rows."""
        if clusters is None:
            return None, moments

        similar: Any = None

        def learn(some: Any) -> Any:
            nonlocal similar
            learned = self.learned_from(some, features, task_levels, settings, similar)
            similar = learned.hierarchy
            return learned.posterior

        in_parts = (
            not task_levels.levels() and task_levels.metadata() is None and settings.logging != "frozen"
        )
        if isinstance(clusters, ClustersInShards):
            part, table = clusters.part(moments)
            correlation = learn_correlations(part, table.at(part), learn)
            return correlation, clusters.correlated(moments, correlation)
        sums = clusters.at(moments)
        correlation = learn_correlations(moments, sums, learn, in_parts=in_parts)
        return correlation, correlated(moments, sums, correlation)

    def learned_from(
        self,
        moments: Any,
        features: FeatureMap,
        task_levels: TaskLevels,
        settings: Settings,
        similar: Any = None,
    ) -> Learning:
        """Estimate the hierarchy from moments of a feature map, and return it with its posterior.

        Settings that name coefficients, such as ``known``, are first re-centred to the origin of that map. ``similar``
        is the hierarchy of a log that shares most rows: its standard deviations tell where to search.
        """
        return self._learning(moments, features, task_levels, self._recentred(settings, features), similar)

    def _recentred(self, settings: Settings, features: FeatureMap) -> Settings:
        """Return the settings in the coefficients of a feature map that has an origin."""
        if not has_origin(features) or features == self.features:
            return settings
        original = self.features if isinstance(self.features, FeatureMap) else features.recentred(None)  # type: ignore[attr-defined]  # it has an origin
        return settings.recentred(original, features)

    def _learning(
        self, moments: Any, features: FeatureMap, task_levels: TaskLevels, settings: Settings, similar: Any
    ) -> Learning:
        near = similar if isinstance(similar, CrossedHierarchies) else None
        return learning(moments, task_levels, settings, features, near)

    def _coefficient_settings(self) -> dict[str, Any]:
        """Return the settings by name, in the coefficients of the feature map of the fit."""
        settings, params = self._recentred(self._settings_of(), self.features_), self.get_params()
        return {name: getattr(settings, name, value) for name, value in params.items()}


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
