"""Learning from moments, in memory or in shards: hierarchy, posterior and policy of a learner, and its findings."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from time import perf_counter
from typing import Any, Literal, Self

from hieropo._utils.arrays import Array
from hieropo._utils.progress import say
from hieropo.doctor.collecting import LogStatistics
from hieropo.doctor.examination import Finding
from hieropo.doctor.fitting import of_counts, of_learning, of_moments, of_rows, raise_or_warn
from hieropo.doctor.rules import incumbent
from hieropo.errors import InputError
from hieropo.estimation.clusters import learn_correlations
from hieropo.estimation.conditioning import condition_learned
from hieropo.estimation.crossed.correlation import integrable, integrate_correlation
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
from hieropo.features.maps import FeatureMap
from hieropo.learners.clusters_in_shards import ClustersInShards
from hieropo.learners.drift import errors_so_far, followed, with_errors
from hieropo.learners.estimator import Estimator
from hieropo.learners.fitted import Fitted
from hieropo.learners.further_reads import NO_FURTHER_READS, FurtherReads, learned_by
from hieropo.learners.in_shards import (
    findings_on,
    joins,
    learned_map,
    refuse_unsuitable,
    sums_to_learn_from,
)
from hieropo.learners.not_applied import mode_because, refuse_kinds, settings_note
from hieropo.logging_policy.incumbents import (
    CLEAR,
    Logging,
    crossed_knowledge,
    has_intercepts,
    uses_choices,
)
from hieropo.logs.bad_rows.rejects import Rejected
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.hierarchy import Hierarchy
from hieropo.model.in_shards import PosteriorInShards
from hieropo.model.task_levels import TaskLevels
from hieropo.moments.clusters import ClusterTable, correlated
from hieropo.moments.in_shards import AnyMoments, totals
from hieropo.moments.row_sketch import RowSketch
from hieropo.moments.statistics import Moments
from hieropo.passes.clusters import check_cluster
from hieropo.passes.feasibility import refuse_tiny, warn_of_far
from hieropo.passes.feature_choice import (
    FeatureChoice,
    has_origin,
)
from hieropo.passes.identifiability import explained, refuse_undetermined
from hieropo.passes.log_moments import LogMoments
from hieropo.passes.sharded import ShardedMoments
from hieropo.policies.lower_bound import LCBPolicy
from hieropo.rows.batches import Roles
from hieropo.rows.keys import Unseen

Pessimism = float | Literal["cv"] | None


class LearnsFromMoments(Fitted, Estimator):
    """The part of a learner that takes moments; the settings are those of :class:`HierOPO`."""

    rejected_: Rejected | None
    pessimism_: PessimismChoice
    policy_: LCBPolicy
    findings_: tuple[Finding, ...]
    hierarchy_: Any
    posterior_: Any

    features: FeatureChoice
    pessimism: Pessimism
    level: float | None
    task_cov: TaskCovariance
    hyper: Hyper
    uncertainty: Uncertainty
    known: Hierarchy | CrossedHierarchy | None
    unseen: Unseen
    logging: Logging
    spreads: SpreadsSetting
    likelihood: Likelihood
    task_kinds: TaskKindsSetting
    drift: DriftSetting

    _shares = True  # whether tasks share a learned hierarchy
    _collected: LogStatistics | None = None  # the doctor's statistics of the log of a fit in progress

    def _fit_shards(self, shards: ShardedMoments, columns: Mapping[str, Any], settings: Settings) -> Self:
        """Learn from moments in shards, one in memory at a time; small ones are joined in memory."""
        if joins(shards):
            return self._fit_moments(shards.joined(), columns, settings)
        self._refuse_cv()
        roles = shards.roles
        shards.outline().check(self.features, columns)
        self._check_roles(roles, settings)
        refuse_unsuitable(roles, settings, shares=self._shares)
        features = learned_map(shards, self.features if has_origin(self.features) else None).features  # type: ignore[arg-type]  # a map
        per_action = self._per_action(features, roles, settings)
        sums = sums_to_learn_from(shards, features, per_action=per_action)
        self._seconds, self._collected = {}, None
        self.rejected_ = None
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
        self._seconds, self._collected = {}, None
        self.rejected_ = None
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
        refuse_kinds(settings, crossed=crossed)
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
        refuse_tiny(total, roles.reward)
        findings = raise_or_warn(found)
        warn_of_far(total, features, roles.reward)
        start, at_mode = perf_counter(), mode_because(moments, reads.clusters, task_levels, settings)
        with explained(*inputs):
            correlation, moments, integrated = self._correlated(
                moments, reads.clusters, features, task_levels, settings
            )
            learned, moments, sites, self._likelihood_note = learned_by(
                self.likelihood, reads, moments,
                lambda some, similar: self.learned_from(some, features, task_levels, settings, similar),
            )  # fmt: skip
            informed = self._informed(learned, moments, features, task_levels, settings)
        unmixed = isinstance(learned.hierarchy, CrossedHierarchies) and not learned.hierarchy.mixed
        if informed is None and integrated is not None and unmixed:
            learned = Learning(integrated, condition_learned(moments, integrated, None))
        if informed is not None:
            learned, gain = informed
            findings = (*findings, incumbent.used(roles, gain))
        elif self.logging == "unknown" and settings.logging != "random" and isinstance(moments, Moments):
            findings += raise_or_warn(of_learning(moments, features, roles, learned, self._collected))
        learned, moments, drift, self._still_because = followed(
            learned, moments, roles, settings, reads, sites,
            lambda end, shapes: self.learned_from(end, features, task_levels, replace(settings, shapes=shapes)),
        )  # fmt: skip
        self._settings_note = settings_note(learned.hierarchy, moments, settings, at_mode)
        posterior = learned.posterior
        policy = self._policy_of(
            posterior.population if isinstance(posterior, PosteriorInShards) else posterior, features
        )
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

    def _with_drift_of(self, first: Self) -> None:
        """Take over the drift of a policy, whose rows this fit has as rows of their end; as ``partial_fit`` does."""
        if first.drift_ is None or not first.drift_.present:
            return
        errors = errors_so_far(first.hierarchy_, first.features_, self.features_)
        learned = with_errors(Learning(self.hierarchy_, self.posterior_), self.moments_, errors)
        self.hierarchy_, self.posterior_, self.drift_ = learned.hierarchy, learned.posterior, first.drift_
        self.policy_ = self._policy_of(self.posterior_, self.features_)

    def _policy_of(self, posterior: Any, features: FeatureMap) -> LCBPolicy:
        return LCBPolicy(
            posterior, features, pessimism=self._bound()[0], level=self.level, unseen=self.unseen
        )

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
    ) -> tuple[Array | None, Any, CrossedHierarchies | None]:
        """Return the correlations of rewards within clusters, the moments of correlated rows, and hierarchies.

        The hierarchies are those of all correlations that the log leaves possible; None where these are not integrated.
        """
        if clusters is None:
            return None, moments, None

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
            correlation = learn_correlations(part, table.at(part), learn, in_parts=True)
            return correlation, clusters.correlated(moments, correlation), None
        sums = clusters.at(moments)
        if in_parts and self._one_gaussian_prior(settings) and integrable(moments, sums):
            integrated = integrate_correlation(moments, sums, learn)
            return integrated.mean, correlated(moments, sums, integrated.mean), integrated.hierarchies
        correlation = learn_correlations(moments, sums, learn, in_parts=in_parts)
        return correlation, correlated(moments, sums, correlation), None

    @staticmethod
    def _one_gaussian_prior(settings: Settings) -> bool:
        """Return True for the crossed prior without a number of kinds, which is learned, and Gaussian rewards."""
        return (
            isinstance(settings.task_kinds, str)
            and settings.known is None
            and settings.likelihood == "gaussian"
        )

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
