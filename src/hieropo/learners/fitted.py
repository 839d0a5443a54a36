"""Questions to a fitted learner: choices, worth, a summary, a file."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.blas_threads import one_blas_thread
from hieropo._utils.text import whole
from hieropo.decisions.new_tasks import NewTasks
from hieropo.decisions.predicting import chosen
from hieropo.decisions.requests import read_requests
from hieropo.errors import InputError
from hieropo.estimation.crossed.mixture import CrossedHierarchies
from hieropo.estimation.hyper.uncertainty import HyperUncertainty
from hieropo.features.maps import FeatureMap
from hieropo.learners.population import PopulationSummary, crossed_population_summary, population_summary
from hieropo.learners.saving import origin, versions
from hieropo.logs.bad_rows.rejects import Rejected, rejects_for
from hieropo.model.crossed.hierarchy import typical_noise
from hieropo.model.task_levels import TaskLevels
from hieropo.moments.row_sketch import RowSketch
from hieropo.passes.feature_choice import origin_note
from hieropo.policies.gating import GatedPolicy
from hieropo.policies.lower_bound import LCBPolicy
from hieropo.rows.batches import Roles, column_of
from hieropo.storage.save import save_policy

if TYPE_CHECKING:
    from hieropo.evaluation.evaluation import Evaluation


class Fitted:
    """A learner after :meth:`HierOPO.fit`, and the questions that it answers."""

    policy_: LCBPolicy | GatedPolicy
    features_: FeatureMap
    roles_: Roles
    moments_: Any
    hierarchy_: Any
    posterior_: Any
    rejected_: Rejected | None
    _task_levels: TaskLevels
    _hyper_uncertainty: HyperUncertainty
    _noise_told: bool
    _actions_given: bool
    _sketch: RowSketch
    _seconds: Mapping[str, float]

    def restored(self, *, policy: LCBPolicy | GatedPolicy, roles: Roles, **parts: Any) -> Self:
        """Take over what another process learned: moments, hierarchy, posterior and so on."""
        assert policy.features is not None
        self.policy_, self.features_, self.roles_ = policy, policy.features, roles
        self.moments_, self.hierarchy_, self.posterior_ = (
            parts[name] for name in ("moments", "hierarchy", "posterior")
        )
        self._task_levels, self._hyper_uncertainty, self._sketch, self._noise_told, self._actions_given = (
            parts[name]
            for name in ("task_levels", "hyper_uncertainty", "sketch", "noise_told", "actions_given")
        )
        self._seconds, self.rejected_ = {}, None
        return self

    @property
    def noise_sd(self) -> float:
        """Standard deviation of the noise of a reward; of noise that differs between actions, the root of its mean."""
        self._fitted()
        return float(np.sqrt(typical_noise(self.posterior_.noise_variances)))

    def _fitted(self) -> LCBPolicy | GatedPolicy:
        if not hasattr(self, "policy_"):
            raise InputError(
                f"This {type(self).__name__} is not fitted yet; call fit(log, task=..., reward=...) first."
            )
        return self.policy_

    @one_blas_thread
    def predict(self, requests: Any, *, eligible: str | Literal[False] | None = None) -> NDArray[Any]:
        """Choose an action for each request.

        Parameters
        ----------
        requests : as ``log`` in :meth:`fit`
            With the task and context columns of the log, its lists of eligible actions where it had such, and its
            levels and metadata where a task is new.
        eligible : str or False, optional
            Column that lists the actions that can be taken, by default as in the log; False where all can.

        Returns
        -------
        (n,) array of action ids, as the log had them; None where a gate leaves it to the incumbent.

        Raises
        ------
        SchemaError, LogError, UnknownTaskError, UnknownActionError
            A column is missing, or a request cannot be used; says which, and what to do.

        Warns
        -----
        HieropoWarning
            No request is of a task that the log had, or an unknown task reads as one that it had.
        """
        policy = self._fitted()
        if self.features_.actions is None:
            raise InputError(
                "These features describe candidates by columns, so that a request is many rows; use "
                "policy_.choose(task, phi=...) or the command line's `decide --request`."
            )
        listed = column_of(eligible, self._listed_in(policy))
        new_tasks = NewTasks.of(self.roles_, lambda: (self.posterior_, self._task_levels))
        columns = self.roles_.task, self.features_.columns, listed
        return chosen(policy, read_requests(requests, *columns, new_tasks=new_tasks), new_tasks)

    def _listed_in(self, policy: LCBPolicy | GatedPolicy) -> str | None:
        """Return the column of eligible actions that a policy was learned with, or its gate was judged with."""
        judged = policy.eligible if isinstance(policy, GatedPolicy) else None
        return judged or self.roles_.eligible

    @one_blas_thread
    def summary(self, *, level: float = 0.95, models: bool | None = None) -> PopulationSummary:
        """Say how alike the tasks are: print it, or read its fields.

        Parameters
        ----------
        level : float
            Of the intervals.
        models : bool, optional
            Whether to compare the evidence of separate, pooled and shared models; default: where that is quick.

        Raises
        ------
        InputError
            Nothing was learned: not fitted, or the hierarchy was given.
        """
        self._fitted()
        if isinstance(self.hierarchy_, CrossedHierarchies):
            crossed = crossed_population_summary(
                self.posterior_, self.features_.names, level=level, seconds=self._seconds
            )
            return replace(crossed, note=origin_note(self.features_))
        if not hasattr(self, "learned_"):
            raise InputError(
                "The hierarchy was given, or is a baseline's, so there is nothing learned to summarise; fit HierOPO() "
                "with hyper='flat' and without known=."
            )
        found = population_summary(
            self.learned_, self.features_.names, level=level, models=models, seconds=self._seconds
        )
        return replace(found, note=origin_note(self.features_))

    @one_blas_thread
    def evaluate(
        self,
        log: Any,
        *,
        pscore: str | None = None,
        eligible: str | Literal[False] | None = None,
        time: str | Literal[False] | None = None,
        lenient: bool = False,
        rejects: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> "Evaluation":
        """Say what the policy is worth on a log, beside the incumbent that made it, and whom it would hurt.

        Parameters
        ----------
        log : as in :meth:`fit`
            With the columns of the log of the fit. Rows that the policy was learned from are recognised.
        pscore : str, optional
            Column of logged propensities, by default as in the fit.
        eligible : str or False, optional
            Column that lists the actions that could be taken, by default as in the fit; False where all could.
        time : str or False, optional
            Column that says when the action was chosen, by default as in the fit where the log has it. Whether the
            incumbent learned from these rows is told by their order alone, where such a column says that it is that of
            time; False where it does not.
        lenient, rejects
            As in :meth:`fit`; rows with actions that the policy does not know cannot be used either.
        **options
            ``level``, ``max_harm``, ``propensities``, ``show_all``, ``seed``, ``compare``: see
            :class:`evaluation.Options`. ``compare={"today": {"store 1": "gift"}}`` judges a table of actions on the
            same rows; a policy, its directory, a frame or a file of tasks and actions, and one action can be named,
            too.

        Raises
        ------
        InputError, SchemaError, LogError, UnknownActionError, UnknownTaskError
            The log cannot be used, an option is none; says why.
        """
        from hieropo.evaluation.entry import evaluated, subject_of

        policy = self._fitted()
        roles = replace(
            self.roles_, levels=(), metadata=(), time=time or None,
            pscore=pscore or self.roles_.pscore, eligible=column_of(eligible, self._listed_in(policy)),
        )  # fmt: skip
        taker = rejects_for(log, lenient=lenient, file=rejects, features=self.features_)
        usual = self.roles_.time if time is None else None
        evaluation = evaluated(subject_of(self), log, roles, options, taker, usual_time=usual)
        about = {
            **self._origin(policy),
            "features": self.features_.fingerprint,
            **(evaluation.origin or {}),
            "versions": versions(),
        }
        return replace(evaluation, origin=about, population=self._population)

    def _population(self) -> PopulationSummary | None:
        """Return the summary without a comparison of models; None where nothing was learned."""
        try:
            return self.summary(models=False)
        except InputError:
            return None

    def _origin(self, policy: LCBPolicy | GatedPolicy) -> dict[str, Any]:
        """Return learner, settings, rows and columns as JSON can hold them."""
        settings = self._measured_by(self.features_).get_params()  # type: ignore[attr-defined]  # of learners
        return origin(
            type(self).__name__, settings, replace(self.roles_, eligible=self._listed_in(policy)),
            whole(self.moments_.n_rows), noise_told=self._noise_told, actions_given=self._actions_given,
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
            What is written in place of ``policy_``, such as ``evaluate(log).gate()``.
        provenance : dict, optional
            Anything that JSON can hold, for the reader.

        Raises
        ------
        ArtifactError
            The directory cannot be written, or holds something else.
        """
        saved = self._fitted() if policy is None else policy
        about = self._origin(saved)
        if self.rejected_ is not None:
            about["rejected"] = self.rejected_.to_dict()
        return save_policy(
            saved,
            path,
            moments=self.moments_,
            hierarchy=self.hierarchy_,
            hyper=self.posterior_.hyper,
            log_evidence=self.posterior_.log_evidence,
            hyper_uncertainty=self._hyper_uncertainty,
            sketch=self._sketch,
            provenance={**about, **(provenance or {})},
        )
