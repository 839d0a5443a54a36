"""HierOPO in scikit-learn's manner: a thin edge over the core."""

import os
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Self, get_args

import numpy as np
from numpy.typing import NDArray

from hieropo.artifacts import save_policy
from hieropo.core.features import FeatureMap
from hieropo.core.gating import GatedPolicy
from hieropo.core.hierarchy import Hierarchy
from hieropo.core.laws import Unseen
from hieropo.core.logs import Roles
from hieropo.core.policy import LCBPolicy, checked_pessimism
from hieropo.core.row_sketch import RowSketch
from hieropo.core.shared_actions import SharedActions
from hieropo.core.statistics import Moments
from hieropo.core.uncertainty import Uncertainty
from hieropo.core.units import UnitMoments, one_action
from hieropo.determined import refuse_undetermined
from hieropo.errors import (
    InputError,
    NumericalError,
    SchemaError,
    warn,
)
from hieropo.feature_choice import FeatureChoice, check_choice, feature_map
from hieropo.learning import Hyper, Learning, Settings, TaskCovariance, learning, told_by_rows
from hieropo.likeness import Likeness, likeness, shared_likeness
from hieropo.parameters import Parameters
from hieropo.placement import Placement
from hieropo.saving import origin
from hieropo.scrutiny import (
    other_type,
    warn_of_actions,
    warn_of_far,
)
from hieropo.sources import open_log, read, read_requests
from hieropo.summing import sums


class HierOPO(Parameters):
    """One policy for every task, sharing strength through a hierarchy (HierOPO, arXiv 2212.04720).

    Parameters
    ----------
    features : FeatureMap or {"per-action", "indicator", "columns"}, optional
        Default: "columns" without an action column; "per-action" where context columns are named, with an intercept;
        else "indicator".
    pessimism : float, optional
        Actions are chosen by ``mean - pessimism * sd``; default 0.1, the paper's alpha.
    level : float, optional
        Pointwise credible level instead of ``pessimism``.
    task_cov : {"auto", "full", "block", "diag", "isotropic"} or (d, d) array
        Shape of the estimated Sigma_0; "auto" lets the evidence choose. "block" has one full block for each action; an
        array is known up to its scale.
    hyper : {"flat", "shared"} or Gaussian
        Prior of the population mean: nothing is known of it; or the means of actions with coefficients of their own are
        themselves draws around one mean, with a covariance that is learned, so that a rare action borrows from the
        others (coefficients of one task's actions are then independent given their means); or N(mean, cov).
    uncertainty : {"auto", "integrated", "first-order", "plug-in"}
        How the uncertainty of the learned hierarchy enters the posteriors: by a mixture of hierarchies that the log
        leaves possible, by a correction, or not at all; "auto" decides by the size of the log. What is not learned
        with ``hyper="flat"`` is plug-in.
    known : Hierarchy, optional
        Given hyper-parameters; switches estimation off.
    unseen : {"prior", "error"}
        What a task that the log does not have gets.

    Attributes
    ----------
    policy_ : LCBPolicy, or GatedPolicy where one was loaded
    posterior_ : Posterior
    hierarchy_ : Hierarchy
        SharedActions with ``hyper="shared"``, as ``posterior_`` and ``moments_`` are of their kind then.
    estimate_ : Estimate
        How the hierarchy was learned; only where it was.
    learned_ : Learned
        What is known of the hierarchy, and how its uncertainty is carried; only where it was learned, and not
        with ``hyper="shared"`` or a Gaussian.
    moments_ : Moments
    features_ : FeatureMap
    roles_ : Roles
    """

    def __init__(
        self,
        features: FeatureChoice = None,
        *,
        pessimism: float | None = None,
        level: float | None = None,
        task_cov: TaskCovariance = "auto",
        hyper: Hyper = "flat",
        uncertainty: Uncertainty = "auto",
        known: Hierarchy | None = None,
        unseen: Unseen = "prior",
    ) -> None:
        self.features = features
        self.pessimism = pessimism
        self.level = level
        self.task_cov = task_cov
        self.hyper = hyper
        self.uncertainty = uncertainty
        self.known = known
        self.unseen = unseen

    def fit(  # noqa: PLR0913 - one parameter for each role
        self,
        log: Any,
        *,
        task: str,
        reward: str,
        action: str | None = None,
        pscore: str | None = None,
        weight: str | None = None,
        context: Sequence[str] = (),
        levels: Sequence[str] = (),
        metadata: Sequence[str] = (),
    ) -> Self:
        """Learn from a log.

        Parameters
        ----------
        log : path, Arrow table or stream, pandas or polars DataFrame, DuckDB relation
            A Parquet file or folder, or anything that offers the Arrow C stream.
        task, reward, action, pscore, weight : str
            Names of columns. ``pscore`` is checked, and not used for learning.
        context : sequence of str
            Context columns, in the order of the features.
        levels : sequence of str
            Columns of groups that tasks belong to, the widest first, such as ``["region", "store"]`` for customers.
            The covariance of each level is learned.
        metadata : sequence of str
            Columns of numbers known of a task, the same in all its rows: coefficients move with them.

        Raises
        ------
        InputError
            Settings are none of the choices, or do not go together.
        SchemaError, LogError, UnknownActionError, NumericalError
            The log cannot be used; says why, where, and what to do.
        """
        self._check_settings()
        start = perf_counter()
        columns = context or getattr(self.features, "columns", ())
        above = levels[:-1] if levels and not isinstance(levels, str) and levels[-1] == task else levels
        roles = Roles(task, action, reward, pscore, weight, columns, above, metadata)  # type: ignore[arg-type]  # it checks
        source = open_log(log, rereadable=True)
        rows = read(source, roles)  # checks all columns before the first row is read
        self._check_roles(roles)
        features = feature_map(self.features, source, roles)
        self._settings_of().check_features(features)
        moments, placement, sketch = sums(rows, features, roles, apart=self._settings_of().shared)
        self._seconds = {"reading": perf_counter() - start}
        if features.actions is not None and action is not None and features is not self.features:
            warn_of_actions(action, features.actions, moments.n_rows)
        return self._learn(moments, features, roles, placement, sketch)

    def restored(self, *, policy: LCBPolicy | GatedPolicy, roles: Roles, **parts: Any) -> Self:
        """Take over what another process learned: moments, hierarchy, posterior, placement, doubt, sketch."""
        assert policy.features is not None
        self.policy_: LCBPolicy | GatedPolicy = policy
        self.features_: FeatureMap = policy.features
        self.roles_: Roles = roles
        self.moments_, self.hierarchy_, self.posterior_ = (
            parts[name] for name in ("moments", "hierarchy", "posterior")
        )
        self._placement, self._doubt, self._sketch = (
            parts[name] for name in ("placement", "doubt", "sketch")
        )
        self._seconds = {}
        return self

    def _check_roles(self, roles: Roles) -> None:
        """Refuse columns that this learner has no use for."""
        if roles.levels or roles.metadata:
            self._settings_of().check_placed()

    def _check_settings(self) -> None:
        """Before a long pass over the log."""
        check_choice(self.features)
        self._settings_of().check()
        checked_pessimism(self.pessimism, self.level)
        if self.unseen not in get_args(Unseen):
            raise InputError(f"unseen={self.unseen!r}; 'prior' or 'error' is needed.")

    def partial_fit(self, log: Any, **columns: Any) -> Self:
        """Learn from more rows as well; with a first log, the same as :meth:`fit`.

        The result equals one fit to all rows together, with the actions of the first log.

        Raises
        ------
        SchemaError
            Context columns are named that differ from those of the first log.
        UnknownActionError
            An action that the first log did not have.

        Warns
        -----
        HieropoWarning
            The ids of the tasks are of another type than those so far.
        """
        if not hasattr(self, "moments_"):
            return self.fit(log, **columns)
        strays = [name for name in columns if name not in _ROLES]
        if strays:
            raise TypeError(
                f"partial_fit() got {strays[0]!r}; it takes the names of columns: {list(_ROLES)}."
            )
        self._check_settings()
        if self._settings_of().shared != isinstance(self.moments_, UnitMoments):
            raise InputError(
                f"hyper={self.hyper!r} needs other sums than those of the rows so far; call fit with all rows again."
            )
        given = {**{role: getattr(self.roles_, role) for role in _ROLES}, **columns}
        roles = Roles(**given)
        for role, name in (("context", "context columns"), ("levels", "levels"), ("metadata", "metadata")):
            if getattr(roles, role) != getattr(self.roles_, role):
                raise SchemaError(
                    f"This learner was fitted with the {name} {list(getattr(self.roles_, role))}, not "
                    f"{list(getattr(roles, role))}; more rows must bring the same ones."
                )
        fresh, placement, sketch = sums(
            read(open_log(log), roles),
            self.features_,
            roles,
            self._placement,
            apart=self._settings_of().shared,
        )
        if (self.moments_.keys.locate(fresh.tasks) < 0).all():
            _warn_of_ids(self.moments_, fresh.tasks, "new row")
        return self._learn(self.moments_ + fresh, self.features_, roles, placement, self._sketch + sketch)

    def _settings_of(self) -> Settings:
        return Settings(self.task_cov, self.hyper, self.uncertainty, self.known)

    def _learn(
        self, moments: Any, features: FeatureMap, roles: Roles, placement: Placement, sketch: RowSketch
    ) -> Self:
        checked = told_by_rows(moments, features)
        if self.known is None:
            refuse_undetermined(*checked)
        warn_of_far(*checked, roles.reward)
        start = perf_counter()
        try:
            found = self._learning(moments, features, placement)
        except NumericalError:
            refuse_undetermined(*checked, tolerance=1e-9)  # says the same by name
            raise
        except np.linalg.LinAlgError as error:
            refuse_undetermined(*checked, tolerance=1e-5)
            raise NumericalError(
                f"A factorization failed ({error}), though {moments.n_rows:,} rows determine all {features.dim} "
                "coefficients. Try task_cov='diag', or leave out columns that hardly vary."
            ) from error
        policy = LCBPolicy(
            found.posterior, features, pessimism=self.pessimism, level=self.level, unseen=self.unseen
        )
        self._seconds = {**self._seconds, "learning": perf_counter() - start}
        self.moments_ = moments
        self.features_ = features
        self.roles_ = roles
        self.hierarchy_ = found.hierarchy
        self.posterior_ = found.posterior
        self.policy_ = policy
        for name in ("estimate", "learned"):
            self.__dict__.pop(f"{name}_", None)
            if getattr(found, name) is not None:
                setattr(self, f"{name}_", getattr(found, name))
        self._placement, self._doubt, self._sketch = placement, found.doubt, sketch
        return self

    def _learning(self, moments: Any, features: FeatureMap, placement: Placement) -> Learning:
        apart = one_action(features)
        blocks = None if apart is None or features.actions is None else len(features.actions)
        return learning(moments, placement, self._settings_of(), blocks)

    def _fitted(self) -> LCBPolicy | GatedPolicy:
        if not hasattr(self, "policy_"):
            raise InputError(
                f"This {type(self).__name__} is not fitted yet; call fit(log, task=..., reward=...) first."
            )
        return self.policy_

    def predict(self, requests: Any, *, eligible: str | None = None) -> NDArray[Any]:
        """Choose an action for each request.

        Parameters
        ----------
        requests : as ``log`` in :meth:`fit`
            With the task and context columns of the log.
        eligible : str, optional
            Column that lists the actions that can be taken.

        Returns
        -------
        (n,) array of action ids, as the log had them; None where a gate leaves it to the incumbent.
        """
        policy = self._fitted()
        actions, unseen = self.features_.actions, 0
        if actions is None:
            raise InputError(
                "These features describe candidates by columns, so that a request is many rows; use "
                "policy_.choose(task, phi=...) or the command line's `decide --request`."
            )
        chosen: list[Any] = []
        for batch in read_requests(requests, self.roles_.task, self.features_.columns, eligible):
            mask = batch.eligible_mask(self.features_)
            found = policy.choose_many(batch.task, batch.context, eligible=mask, first_row=batch.first_row)
            chosen.extend(actions[i] if i >= 0 else None for i in found.index[:, 0])
            unseen += int(np.count_nonzero(self.moments_.keys.locate(batch.task) < 0))
        if unseen == len(chosen):
            _warn_of_ids(self.moments_, batch.task, "request")
        answer = np.empty(len(chosen), dtype=object)
        answer[:] = chosen
        return answer

    def summary(self, *, level: float = 0.95, models: bool | None = None) -> Likeness:
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
        if isinstance(self.hierarchy_, SharedActions):
            columns = list(self.features_.columns)
            labels = ["intercept"] * (self.moments_.unit_dim - len(columns)) + columns
            return shared_likeness(
                self.moments_, self.hierarchy_, self.posterior_, labels, level=level, seconds=self._seconds
            )
        if not hasattr(self, "learned_"):
            raise InputError(
                "The hierarchy was given, or is a baseline's, so there is nothing learned to summarise; fit HierOPO() "
                "with hyper='flat' or 'shared' and without known=."
            )
        return likeness(
            self.learned_, self.features_.names, level=level, models=models, seconds=self._seconds
        )

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
        fitted = self._fitted()
        about = origin(type(self).__name__, self.get_params(), self.roles_, self.moments_.n_rows)
        return save_policy(
            fitted if policy is None else policy,
            path,
            moments=self.moments_,
            hierarchy=self.hierarchy_,
            hyper=self.posterior_.hyper,
            log_evidence=self.posterior_.log_evidence,
            doubt=self._doubt,
            sketch=self._sketch,
            provenance={**about, **(provenance or {})},
        )


_ROLES = ("task", "action", "reward", "pscore", "weight", "context", "levels", "metadata")


def _warn_of_ids(known: Moments, tasks: NDArray[Any], row: str) -> None:
    text = other_type(known.tasks[0], tasks[0], row)
    if text is not None:
        warn(text)
