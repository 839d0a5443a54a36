"""A fitted learner: decide, choose, predict, coefficients, summary, evaluate and save."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hieropo._utils.arrays import Array
from hieropo._utils.blas_threads import one_blas_thread
from hieropo._utils.progress import shows_progress
from hieropo._utils.text import thousands, whole
from hieropo.decisions.deciding import choose, decide, eligible_column, request_columns
from hieropo.decisions.decisions import Decisions
from hieropo.decisions.new_tasks import NewTasks
from hieropo.decisions.predicting import chosen_actions
from hieropo.decisions.requests import RequestReader
from hieropo.doctor.rules.tasks import NAME_A_TASK, NO_TASK
from hieropo.errors import InputError, NotFittedError
from hieropo.estimation.conditioning import with_task
from hieropo.estimation.crossed.drift import Drift, Still
from hieropo.estimation.crossed.mixture import CrossedHierarchies, CrossedMixture
from hieropo.estimation.crossed.two_part import TwoPartHierarchies
from hieropo.estimation.hyper.uncertainty import HyperUncertainty
from hieropo.estimation.likelihoods import rule_from_dict
from hieropo.estimation.sites import SiteRule, refuse_likelihood
from hieropo.estimation.two_part import two_part_note
from hieropo.features.maps import FeatureMap
from hieropo.learners.coefficients import coefficient_table, of_tasks
from hieropo.learners.drift_note import drift_note
from hieropo.learners.in_shards import refuse_in_shards, refuse_unsaved, save_in_shards, subject_in_shards
from hieropo.learners.population import (
    PopulationSummary,
    correlation_note,
    crossed_population_summary,
    population_summary,
)
from hieropo.learners.saving import learner_provenance, versions
from hieropo.logs.arrow.result_table import ResultTable
from hieropo.logs.bad_rows.rejects import Rejected, rejects_for
from hieropo.model.crossed.task_noise import noise_variance
from hieropo.model.task_levels import TaskLevels
from hieropo.moments.clusters import ClusterTable
from hieropo.moments.row_sketch import RowSketch
from hieropo.passes.feature_choice import features_note
from hieropo.passes.sharded import ShardedMoments
from hieropo.policies.gating import GatedPolicy
from hieropo.policies.lower_bound import Choice, LCBPolicy
from hieropo.report import Document, Facts, Section, fragment
from hieropo.rows.batches import Roles, column_of, task_columns
from hieropo.storage.load import load_policy
from hieropo.storage.save import save_policy

if TYPE_CHECKING:
    from hieropo.evaluation.evaluation import Evaluation
    from hieropo.explanation.explanation import Explanation


class Fitted:
    """The methods of a learner that need a fit: decide, choose, predict, summary, evaluate and save."""

    policy_: LCBPolicy | GatedPolicy
    features_: FeatureMap
    roles_: Roles
    moments_: Any
    hierarchy_: Any
    posterior_: Any
    rejected_: Rejected | None
    cluster_correlation_: Array | None
    sites_: SiteRule | None
    drift_: Drift | None
    _still_because: Still = "not asked"
    _likelihood_note: str = ""  # why rewards with heavy tails are taken as Gaussian
    _settings_note: str = ""  # settings that the fit did not apply, and why
    _task_levels: TaskLevels
    _hyper_uncertainty: HyperUncertainty
    _noise_identified: bool
    _actions_given: bool
    _sketch: RowSketch
    _seconds: Mapping[str, float]
    _shards: ShardedMoments | None = None  # of a fit to moments in shards
    _clusters: ClusterTable | None = None  # of the rows so far; a loaded learner has none

    def restored(self, *, policy: LCBPolicy | GatedPolicy, roles: Roles, **parts: Any) -> Self:
        """Set the state of a fit from the parts of a saved policy, and return this learner."""
        assert policy.features is not None
        self.policy_, self.features_, self.roles_ = policy, policy.features, roles
        self.moments_, self.hierarchy_, self.posterior_ = (
            parts[name] for name in ("moments", "hierarchy", "posterior")
        )
        (
            self._task_levels,
            self._hyper_uncertainty,
            self._sketch,
            self._noise_identified,
            self._actions_given,
        ) = (
            parts[name]
            for name in ("task_levels", "hyper_uncertainty", "sketch", "noise_identified", "actions_given")
        )
        self._seconds, self.rejected_ = {}, None
        self._shards = parts.get("shards")
        correlation = parts.get("cluster_correlation")
        self.cluster_correlation_ = None if correlation is None else np.array(correlation)
        self.sites_ = rule_from_dict(parts.get("sites"))
        drift = parts.get("drift")
        self.drift_ = None if drift is None else Drift.from_dict(drift)
        self._likelihood_note = parts.get("likelihood_note", "")
        self._settings_note = parts.get("settings_note", "")
        return self

    @property
    def noise_sd(self) -> float:
        """Return the noise sd of a reward; where it differs between actions or tasks, the root of the mean variance."""
        self._fitted()
        return float(np.sqrt(noise_variance(self.posterior_)))

    def _fitted(self) -> LCBPolicy | GatedPolicy:
        if not hasattr(self, "policy_"):
            raise NotFittedError(
                f"This {type(self).__name__} is not fitted yet; call fit(log, task=..., reward=...) first."
            )
        return self.policy_

    def _deciding(self) -> LCBPolicy | GatedPolicy:
        """Return the policy, which has a table of all tasks."""
        policy = self._fitted()
        refuse_unsaved(self._shards, policy)
        return policy

    @shows_progress
    @one_blas_thread
    def predict(self, requests: Any, *, eligible: str | Literal[False] | None = None) -> NDArray[Any]:
        """Choose an action for each request, in scikit-learn's manner; :meth:`decide` tells more of each choice.

        Parameters
        ----------
        requests : as in :meth:`decide`
        eligible : str or False, optional
            Column that lists the actions that can be taken. Default: that of the log. False: all actions can be taken.

        Returns
        -------
        (n,) array of action ids, as in the log; None where the gate of the policy leaves the task to the incumbent.

        Raises
        ------
        SchemaError, LogError, UnknownTaskError, UnknownActionError
            A column is missing, or a request cannot be used; the message says which, and what to do.

        Warns
        -----
        HieropoWarning
            No request is of a task in the log, or the id of an unknown task resembles that of a known one.
        """
        policy, features = self._deciding(), self.features_
        if features.actions is None:
            raise InputError(
                "The feature map of this learner has no list of actions: each candidate is a row of its own, and "
                "predict takes one row per request. Use decide(rows, request=...), or `hieropo decide --request`."
            )
        new_tasks = self._new_tasks()
        columns = request_columns(
            features, new_tasks, task=self.roles_.task, carried=(),
            eligible=eligible_column(policy, self.roles_.eligible, eligible),
        )  # fmt: skip
        return chosen_actions(policy, RequestReader(requests, columns, strict=True), new_tasks)

    @shows_progress
    @one_blas_thread
    def decide(  # noqa: PLR0913 - one parameter for each role
        self,
        requests: Any,
        *,
        id: str | Sequence[str] | None = None,  # noqa: A002 - the word of users
        top: int = 1,
        strict: bool = False,
        task: str | Sequence[str] | None = None,
        context: Sequence[str] | None = None,
        eligible: str | Literal[False] | None = None,
        levels: Sequence[str] | None = None,
        metadata: Sequence[str] | None = None,
        request: str | None = None,
    ) -> Decisions:
        """Choose an action for each request, and return a table that joins back to the requests.

        A request that cannot be used does not stop the others: its row has no action and a reason, it is counted, and a
        warning has the counts.

        Parameters
        ----------
        requests : as ``log`` in :meth:`fit`
            Rows with the task and context columns of the log; also with its column of eligible actions where the log
            had one, and with its levels and metadata where a task is not in the log.
        id : str or sequence of str, optional
            Columns of the requests that the table carries along, such as an id of the request. Default: all.
        top : int
            Number of best actions of each request, ranked.
        strict : bool
            True: the first request that cannot be used is an error.
        task, context, eligible, levels, metadata : optional
            Columns of the requests that have other names than those of the log; lists are in the order of the log's.
            ``eligible=False``: all actions can be taken.
        request : str, optional
            Column with an id of the request, where the policy has no list of actions: each row is then a candidate, and
            rows with the same id are the candidates of one request.

        Returns
        -------
        Decisions
            ``to_pandas()``, ``to_polars()``, ``.table`` (Arrow); columns as :class:`Decisions` lists them.

        Raises
        ------
        SchemaError
            A column is missing, exists twice, or is of a type that does not fit its role.
        LogError, UnknownTaskError, UnknownActionError, NumericalError
            There is no request; or ``strict``, and a request cannot be used. The message says which, and what to do.

        Warns
        -----
        HieropoWarning
            Requests cannot be used; no request is of a task in the log, or the id of an unknown task resembles that of
            a known one.
        """
        policy = self._deciding()
        parts = decide(
            policy, requests, task=task_columns(task) or self.roles_.task, context=context, levels=levels,
            metadata=metadata, eligible=eligible_column(policy, self.roles_.eligible, eligible), id=id, request=request,
            top=top, strict=strict, new_tasks=self._new_tasks(),
        )  # fmt: skip
        return Decisions.concatenated(list(parts))

    @one_blas_thread
    def choose(self, request: Mapping[str, Any], *, eligible: str | Literal[False] | None = None) -> Choice:
        """Choose an action for one request.

        Parameters
        ----------
        request : dict
            Values of the columns that :meth:`decide` reads, by name. Others are ignored.
        eligible : str or False, optional
            Key of the list of actions that can be taken. Default: that of the log. False: all actions can be taken.

        Returns
        -------
        Choice
            Its ``action`` is None where the gate of the policy leaves the task to an incumbent that is not known.

        Raises
        ------
        InputError, SchemaError, LogError, UnknownTaskError, UnknownActionError, NumericalError
            As :meth:`decide` with ``strict``.
        """
        policy = self._deciding()
        column = eligible_column(policy, self.roles_.eligible, eligible)
        return choose(policy, request, self._new_tasks(), task=self.roles_.task, eligible=column)

    def _new_tasks(self) -> NewTasks | None:
        return NewTasks.of(self.roles_, lambda: self._task_levels, lambda: self.posterior_)

    def _eligible_column(self, policy: LCBPolicy | GatedPolicy) -> str | None:
        """Return the column of eligible actions of the log of the gate, else of the log of the fit."""
        of_gate = policy.eligible if isinstance(policy, GatedPolicy) else None
        return of_gate or self.roles_.eligible

    @one_blas_thread
    def coefficients(self, task: Any = None) -> ResultTable:
        """Return the posterior mean and sd of each coefficient of each task, as a table.

        Where the log shows that tasks differ in how much the effects of actions vary, ``differs`` is the probability
        that those of the task are at least twice as large as in three quarters of the tasks. Where it shows kinds of
        tasks, ``kind`` is the most probable one of the task, and ``kind_probability`` its probability.

        Parameters
        ----------
        task : id, optional
            One task of the log; a tuple where several columns name it. Default: all tasks.

        Raises
        ------
        UnknownTaskError
            The task is not in the log.
        """
        policy = self._deciding()
        table: Any = policy.table
        rows = None if task is None else table.keys.require([task])
        posterior = getattr(self, "posterior_", None)
        more = of_tasks(posterior) if isinstance(posterior, CrossedMixture) else {}
        return coefficient_table(table, self.features_.names, self.roles_.task, rows, more)

    @shows_progress
    @one_blas_thread
    def summary(self, *, level: float = 0.95, models: bool | None = None) -> PopulationSummary:
        """Summarise the population: means of coefficients, variation between tasks, and noise, with intervals.

        Print the summary, or read its fields.

        Parameters
        ----------
        level : float
            Probability of the intervals.
        models : bool, optional
            True compares the evidence of separate, pooled and shared models. Default: only where that is quick.

        Raises
        ------
        InputError
            The learner is not fitted, or its hierarchy was given and not estimated.
        """
        self._fitted()
        if isinstance(self.hierarchy_, CrossedHierarchies):
            crossed = crossed_population_summary(
                self.posterior_, self.features_.names, level=level, seconds=self._seconds,
                action_ids=self.features_.actions,
            )  # fmt: skip
            return replace(crossed, note=self._note())
        if not hasattr(self, "learned_"):
            raise InputError(
                f"This {type(self).__name__} has no estimated hierarchy to summarise: it was given, was loaded from a "
                "file, or is a baseline's. Fit HierOPO() with hyper='flat' and without known=."
            )
        summary = population_summary(
            self.learned_, self.features_.names, level=level, models=models, seconds=self._seconds
        )
        return replace(summary, note=self._note())

    @property
    def likelihood_(self) -> str:
        """``likelihood`` as the fit took it: "auto" chooses one by the rewards."""
        if isinstance(self.hierarchy_, TwoPartHierarchies):
            return "two-part"
        return "gaussian" if self.sites_ is None else self.sites_.name

    def _note(self) -> str:
        """Return sentences on the origin of the features, correlation within clusters, the likelihood, and drift."""
        notes = [features_note(self.features_)]
        if self.roles_.task is None:
            notes.append(f"{NO_TASK} {NAME_A_TASK}")
        if self.logging_ != self.logging:  # type: ignore[attr-defined]  # of learners
            notes.append(
                "How often the incumbent took each action in a task is used as evidence of what it knew, as "
                "metadata of the task: actions do not react to earlier rewards, and the log evidence is for it."
            )
        if self.cluster_correlation_ is not None:
            notes.append(
                correlation_note(str(self.roles_.cluster), self.features_.actions, self.cluster_correlation_)
            )
        if self.sites_ is not None:
            notes.append(self.sites_.note(self.features_.actions or ()))
        if isinstance(self.hierarchy_, TwoPartHierarchies):
            notes.append(two_part_note(self.hierarchy_))
        notes += [self._likelihood_note, self._settings_note]
        notes.append(drift_note(self.drift_, self._still_because, self.roles_.time))
        return " ".join(filter(None, notes))

    @shows_progress
    @one_blas_thread
    def evaluate(
        self,
        log: Any,
        *,
        pscore: str | None = None,
        eligible: str | Literal[False] | None = None,
        time: str | Literal[False] | None = None,
        cluster: str | None = None,
        lenient: bool = False,
        rejects: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> "Evaluation":
        """Estimate the value of the policy on a log, its gain over the logging policy, and the harm of each task.

        Parameters
        ----------
        log : as in :meth:`fit`
            With the columns of the log of the fit. Rows that the policy was learned from are recognised.
        pscore : str, optional
            Column of logged propensities. Default: that of the fit.
        eligible : str or False, optional
            Column that lists the actions that could be taken. Default: that of the fit. False: all could be taken.
        time : str or False, optional
            Column of the time of the choice. Default: that of the fit, where the log has it. Adaptive logging is
            detected from the order of the rows, and only where this column confirms that it is the order of time.
            False: the log has no such column.
        cluster : str, optional
            Column of clusters, as of :meth:`fit`. Default: that of the fit. Folds then keep clusters whole, and errors
            of importance-weighted estimates are those of independent clusters.
        lenient, rejects
            As in :meth:`fit`; rows with actions that the policy does not know cannot be used either.
        **options
            ``level``, ``max_harm``, ``propensities``, ``show_all``, ``seed``, ``compare``, ``randomise``: see
            :class:`evaluation.Options`. ``compare={"today": {"store 1": "gift"}}`` evaluates a table of actions on the
            same rows. A policy, its directory, a frame or a file of tasks and actions, and one action are possible too.

        Raises
        ------
        InputError, SchemaError, LogError, UnknownActionError, UnknownTaskError
            The log or an option cannot be used; the message says why.
        """
        from hieropo.evaluation.entry import evaluated, subject_of

        policy = self._fitted()
        roles = replace(
            self.roles_, levels=(), metadata=(), time=time or None,
            pscore=pscore or self.roles_.pscore, eligible=column_of(eligible, self._eligible_column(policy)),
            cluster=cluster or self.roles_.cluster,
        )  # fmt: skip
        bad_rows = rejects_for(log, lenient=lenient, file=rejects, features=self.features_)
        usual_time = self.roles_.time if time is None else None
        subject = subject_of(self) if self._shards is None else subject_in_shards(self, self._shards, policy)
        evaluation = evaluated(subject, log, roles, options, bad_rows, usual_time=usual_time)
        origin = {
            **self._provenance(policy),
            "features": self.features_.fingerprint,
            **(evaluation.origin or {}),
            "versions": versions(),
        }
        return replace(evaluation, origin=origin, population=self._population)

    @one_blas_thread
    def explain(
        self,
        task: Any,
        context: Mapping[str, float] | ArrayLike | None = None,
        *,
        eligible: Sequence[Any] | None = None,
        log: Any = None,
        lenient: bool = False,
    ) -> "Explanation":
        """Explain the choice of the policy in one task and context. Print the explanation, or read its fields.

        It names the rival and the lead, the changes that would turn the choice, and the tasks that matter most. It
        splits posterior means into the shares of the prior, of the task's own rows and of the rows of other tasks,
        ``theta_s = prior + cov(theta_s, theta_s) B_s + sum_z cov(theta_s, theta_z) B_z`` with ``B_z`` the sum of
        ``w phi r / sigma^2`` over the rows of task z, exactly; see :mod:`hieropo.model.attribution`. With the log it
        names the rows that matter most, each with the exact answer without it; see
        :mod:`hieropo.model.single_rows`.

        Parameters
        ----------
        task : id
            A task that is not in the log is explained as a task without rows, unless tasks have groups or metadata.
        context : mapping of column to value, or (c,), optional
            Default: the mean context of the task's rows. Where the feature map has no list of actions, (n, c): one row
            for each candidate.
        eligible : sequence of action ids, optional
            The actions that can be taken. Default: all.
        log : as in :meth:`fit`, optional
            The log that the policy was learned from, all of it. Where the fit took rows of clusters as correlated, the
            answer without a row is under the same correlations, and the log is read twice.
        lenient : bool
            True where the fit set unusable rows of the log aside.

        Raises
        ------
        UnknownTaskError
            The task is not in the log, and tasks have groups or metadata; or its id resembles one of the log.
        MismatchError
            The rows of ``log`` are not those of the fit.
        InputError, SchemaError, LogError, UnknownActionError
            The context does not fit the columns, or there is none to take by default; an id is not an action; a column
            or row of ``log`` cannot be used.
        """
        from hieropo.explanation import LogOfFit, explain

        policy = self._fitted()
        refuse_in_shards(self._shards, "explain")
        posterior = with_task(self.posterior_, self.hierarchy_, self._hyper_uncertainty, task)
        rows = None
        if log is not None and self.drift_ is not None and self.drift_.present:
            raise InputError(
                "explain(log=) is not available for this policy: its coefficients drift, or rows that are close in "
                "time have alike rewards, and the answer without a single row is not derived for such fits. Leave "
                "log= out, or fit with drift=None."
            )
        if log is not None:
            name = self.likelihood_
            refuse_likelihood(
                name, "explain(log=)", "the answer without a single row is derived for Gaussian rewards"
            )
            rejects = rejects_for(log, lenient=lenient, file=None, features=self.features_)
            rows = LogOfFit(log, self.roles_, rejects, self.cluster_correlation_)
        return explain(posterior, policy, task, context, eligible=eligible, log=rows)

    def _repr_html_(self) -> str:
        """Return settings and population for a notebook."""
        if not hasattr(self, "policy_"):
            return f"<pre>{escape(repr(self))}</pre>"
        policy, population = self.policy_, self._population()
        actions = self.features_.actions
        facts = (
            ("learner", repr(self)),
            ("rows", thousands(self.moments_.n_rows)),
            ("tasks", thousands(len(self.moments_))),
            ("actions", "described by columns" if actions is None else _listed(actions)),
            ("context", _listed(self.features_.columns) or "none"),
            ("chooses by", f"the lower bound mean - {policy.pessimism:.3g} sd"),
        )
        sections = [Section("learner", "Policy", (Facts(facts),))]
        if population is not None:
            sections.append(Section("alike", "Variation between tasks", tuple(population.blocks())))
        return fragment(Document(type(self).__name__, "A policy for every task", tuple(sections)))

    def _population(self) -> PopulationSummary | None:
        """Return the summary without a comparison of models; None where nothing was estimated."""
        try:
            return self.summary(models=False)
        except InputError:
            return None

    def _provenance(self, policy: LCBPolicy | GatedPolicy) -> dict[str, Any]:
        """Return learner, settings, rows and columns as JSON can hold them."""
        settings = self._coefficient_settings()  # type: ignore[attr-defined]  # of learners
        still = "" if self.drift_ is not None else drift_note(None, self._still_because, self.roles_.time)
        return learner_provenance(
            type(self).__name__, settings, replace(self.roles_, eligible=self._eligible_column(policy)),
            whole(self.moments_.n_rows), noise_identified=self._noise_identified, actions_given=self._actions_given,
            cluster_correlation=self.cluster_correlation_,
            sites=None if self.sites_ is None else self.sites_.to_dict(),
            drift=self.drift_,
            likelihood_note=self._likelihood_note,
            settings_note=" ".join(filter(None, [self._settings_note, still])),
        )  # fmt: skip

    @one_blas_thread
    def save(
        self,
        path: str | os.PathLike[str],
        *,
        policy: LCBPolicy | GatedPolicy | None = None,
        provenance: dict[str, Any] | None = None,
    ) -> Path:
        """Write the policy, its hierarchy and the moments to a directory, atomically; `load_learner` reads it back.

        Parameters
        ----------
        path : path
        policy : LCBPolicy or GatedPolicy, optional
            A policy to write in place of ``policy_``, such as ``evaluate(log).gate()``.
        provenance : dict, optional
            Further facts to store in the policy; anything that JSON can hold.

        Raises
        ------
        ArtifactError
            The directory cannot be written, or holds something that is not a policy.
        """
        saved = self._fitted() if policy is None else policy
        if self._shards is not None:
            return self._save_in_shards(self._shards, path, saved, provenance or {})
        origin = self._provenance(saved)
        if self.rejected_ is not None:
            origin["rejected"] = self.rejected_.to_dict()
        return save_policy(
            saved,
            path,
            moments=self.moments_,
            hierarchy=self.hierarchy_,
            hyper=self.posterior_.hyper,
            log_evidence=self.posterior_.log_evidence,
            hyper_uncertainty=self._hyper_uncertainty,
            sketch=self._sketch,
            provenance={**origin, **(provenance or {})},
        )

    def _save_in_shards(
        self, shards: ShardedMoments, path: str | os.PathLike[str], policy: Any, provenance: Mapping[str, Any]
    ) -> Path:
        """Write the policy of a fit to shards, without moments; this learner decides from the directory then."""
        gate = policy if isinstance(policy, GatedPolicy) else None
        if gate is None and policy is not self.policy_:
            refuse_in_shards(shards, "save with policy=")
        population = LCBPolicy(
            self.posterior_.population, self.features_, pessimism=policy.pessimism, unseen=policy.unseen
        )
        place = {"path": str(shards.path.absolute()), "sha256": shards.checksum}
        origin = {**self._provenance(population if gate is None else gate), "shards": place}
        saved = save_in_shards(
            shards, self.posterior_, population, path, hyper_uncertainty=self._hyper_uncertainty,
            provenance={**origin, **provenance}, gate=gate,
        )  # fmt: skip
        if policy is self.policy_:
            self.policy_ = load_policy(saved).policy
        return saved


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values[:10])) + (f", ... ({len(values)} in all)" if len(values) > 10 else "")
