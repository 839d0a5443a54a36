"""HierOPO, FlatOPO, OracleOPO and complete pooling, in scikit-learn's manner: thin edges over the core."""

import inspect
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hieropo.artifacts import save_policy
from hieropo.core.estimation import Estimate, TaskCov, empirical_flat, estimate, pooled_noise
from hieropo.core.features import FeatureMap
from hieropo.core.hierarchy import Hierarchy
from hieropo.core.logs import Batch, Roles
from hieropo.core.policy import LCBPolicy
from hieropo.core.posterior import Posterior, Unseen, condition
from hieropo.core.statistics import Accumulator, Moments
from hieropo.determined import refuse_undetermined
from hieropo.errors import (
    HieropoError,
    InputError,
    LogError,
    MismatchError,
    NumericalError,
    SchemaError,
    warn,
)
from hieropo.feature_choice import FeatureChoice, check_choice, feature_map
from hieropo.scrutiny import (
    other_type,
    refuse_huge,
    refuse_too_large,
    warn_of_actions,
    warn_of_far,
)
from hieropo.sources import open_log, read, read_requests


class HierOPO:
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
    task_cov : {"auto", "full", "diag", "isotropic"}
        Shape of the estimated Sigma_0; "auto" lets the evidence choose.
    known : Hierarchy, optional
        Given hyper-parameters; switches estimation off.
    unseen : {"prior", "error"}
        What a task that the log does not have gets.

    Attributes
    ----------
    policy_ : LCBPolicy
    posterior_ : Posterior
    hierarchy_ : Hierarchy
    estimate_ : Estimate
        How the hierarchy was learned; only where it was.
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
        task_cov: TaskCov = "auto",
        known: Hierarchy | None = None,
        unseen: Unseen = "prior",
    ) -> None:
        self.features = features
        self.pessimism = pessimism
        self.level = level
        self.task_cov = task_cov
        self.known = known
        self.unseen = unseen

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002, FBT001, FBT002 - scikit-learn's signature
        """Return the settings by name."""
        return {name: getattr(self, name) for name in self._settings()}

    def set_params(self, **params: Any) -> Self:
        """Change settings; raise InputError where one is unknown."""
        for name, value in params.items():
            if name not in self._settings():
                raise InputError(
                    f"{type(self).__name__} has no setting {name!r}; it has {list(self._settings())}."
                )
            setattr(self, name, value)
        return self

    @classmethod
    def _settings(cls) -> tuple[str, ...]:
        return tuple(name for name in inspect.signature(cls.__init__).parameters if name != "self")

    def __repr__(self) -> str:
        defaults = {name: p.default for name, p in inspect.signature(type(self).__init__).parameters.items()}
        given = [f"{k}={v!r}" for k, v in self.get_params().items() if v is not defaults[k]]
        return f"{type(self).__name__}({', '.join(given)})"

    def fit(
        self,
        log: Any,
        *,
        task: str,
        reward: str,
        action: str | None = None,
        pscore: str | None = None,
        weight: str | None = None,
        context: Sequence[str] = (),
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

        Raises
        ------
        SchemaError, LogError, UnknownActionError, NumericalError
            The log cannot be used; says why, where, and what to do.
        """
        self._check_settings()
        columns = context or getattr(self.features, "columns", ())
        roles = Roles(task, action, reward, pscore, weight, columns)  # type: ignore[arg-type]  # checks and freezes it
        source = open_log(log, rereadable=True)
        rows = read(source, roles)  # checks all columns before the first row is read
        features = feature_map(self.features, source, roles)
        moments = _sum(rows, features, roles)
        if features.actions is not None and action is not None and features is not self.features:
            warn_of_actions(action, features.actions, moments.n_rows)
        return self._learn(moments, features, roles)

    def _check_settings(self) -> None:
        """Before a long pass over the log."""
        check_choice(self.features)
        if not (self.known is None or isinstance(self.known, Hierarchy)):
            raise InputError(
                f"known={self.known!r}; a Hierarchy is needed, or None to learn one from the log."
            )
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
        given = {**{role: getattr(self.roles_, role) for role in _ROLES}, **columns}
        roles = Roles(**given)
        if roles.context != self.roles_.context:
            raise SchemaError(
                f"This learner was fitted with the context columns {list(self.roles_.context)}, not "
                f"{list(roles.context)}; more rows must bring the same ones."
            )
        fresh = _sum(read(open_log(log), roles), self.features_, roles)
        if (self.moments_.keys.locate(fresh.tasks) < 0).all():
            _warn_of_ids(self.moments_, fresh.tasks, "new row")
        return self._learn(self.moments_ + fresh, self.features_, roles)

    def _learn(self, moments: Moments, features: FeatureMap, roles: Roles) -> Self:
        if self.known is None:
            refuse_undetermined(moments, features)
        warn_of_far(moments, features, roles.reward)
        try:
            hierarchy = self._hierarchy(moments)
            posterior = condition(moments, hierarchy)
        except NumericalError:
            refuse_undetermined(moments, features, tolerance=1e-9)  # says the same by name
            raise
        except np.linalg.LinAlgError as error:
            refuse_undetermined(moments, features, tolerance=1e-5)
            raise NumericalError(
                f"A factorization failed ({error}), though {moments.n_rows:,} rows determine all {features.dim} "
                "coefficients. Try task_cov='diag', or leave out columns that hardly vary."
            ) from error
        policy = LCBPolicy(
            posterior, features, pessimism=self.pessimism, level=self.level, unseen=self.unseen
        )
        self.moments_: Moments = moments
        self.features_: FeatureMap = features
        self.roles_: Roles = roles
        self.hierarchy_: Hierarchy = hierarchy
        self.posterior_: Posterior = posterior
        self.policy_: LCBPolicy = policy
        return self

    def _hierarchy(self, moments: Moments) -> Hierarchy:
        return self._learned(moments) if self.known is None else self.known

    def _learned(self, moments: Moments) -> Hierarchy:
        self.estimate_: Estimate = estimate(moments, self.task_cov)
        return self.estimate_.hierarchy

    def _fitted(self) -> LCBPolicy:
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
        (n,) array of action ids, as the log had them.
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
            chosen.extend(actions[i] for i in found.index[:, 0])
            unseen += int(np.count_nonzero(self.moments_.keys.locate(batch.task) < 0))
        if unseen == len(chosen):
            _warn_of_ids(self.moments_, batch.task, "request")
        answer = np.empty(len(chosen), dtype=object)
        answer[:] = chosen
        return answer

    def save(self, path: str | os.PathLike[str], *, provenance: dict[str, Any] | None = None) -> Path:
        """Write the policy, its hierarchy and the moments to a directory, atomically.

        Raises
        ------
        ArtifactError
            The directory cannot be written, or holds something else.
        """
        policy = self._fitted()
        about = {
            "learner": type(self).__name__,
            "rows": self.moments_.n_rows,
            "columns": {
                **{role: getattr(self.roles_, role) for role in _ROLES},
                "context": list(self.roles_.context),
            },
            **(provenance or {}),
        }
        return save_policy(
            policy,
            path,
            moments=self.moments_,
            hierarchy=self.hierarchy_,
            hyper=self.posterior_.hyper,
            log_evidence=self.posterior_.log_evidence,
            provenance=about,
        )


class FlatOPO(HierOPO):
    """Every task alone, with one prior (FlatOPO of the paper).

    With ``known``, the prior is N(mu_q, Sigma_0 + Sigma_q). Without, it is N(0, diag(mu_j^2 + Sigma_0_jj)) from the
    estimates: a ridge for each task whose strength fits the usual size of each coefficient.
    """

    def _hierarchy(self, moments: Moments) -> Hierarchy:
        if self.known is not None:
            return self.known.flat()
        return empirical_flat(self._learned(moments), moments)


class PooledOPO(HierOPO):
    """Complete pooling: one theta for all tasks, and the noise of that one fit."""

    def _hierarchy(self, moments: Moments) -> Hierarchy:
        if self.known is not None:
            return self.known.pooled()
        return Hierarchy(hyper=None, task_cov=np.zeros((moments.dim,) * 2), noise_var=pooled_noise(moments))


class OracleOPO(HierOPO):
    """The hyper-parameter mu is known (OracleOPO of the paper).

    Parameters
    ----------
    mu : (d,) array
        The population mean.
    """

    def __init__(
        self,
        mu: ArrayLike,
        features: FeatureChoice = None,
        *,
        pessimism: float | None = None,
        level: float | None = None,
        task_cov: TaskCov = "auto",
        known: Hierarchy | None = None,
        unseen: Unseen = "prior",
    ) -> None:
        super().__init__(
            features, pessimism=pessimism, level=level, task_cov=task_cov, known=known, unseen=unseen
        )
        self.mu = mu

    def _hierarchy(self, moments: Moments) -> Hierarchy:
        if np.shape(self.mu) != (moments.dim,):
            raise MismatchError(
                f"mu has shape {np.shape(self.mu)}; this log has {moments.dim} features, so ({moments.dim},) is needed."
            )
        return super()._hierarchy(moments).oracle(self.mu)


_ROLES = ("task", "action", "reward", "pscore", "weight", "context")
_WIDE = 64  # features from which on the memory is checked before it is taken


def _warn_of_ids(known: Moments, tasks: NDArray[Any], row: str) -> None:
    text = other_type(known.tasks[0], tasks[0], row)
    if text is not None:
        warn(text)


def _sum(batches: Iterable[Batch], features: FeatureMap, roles: Roles) -> Moments:
    total = Accumulator(features.dim, features=features.fingerprint)
    tasks: set[Any] = set()
    for batch in batches:
        refuse_huge(batch)
        if features.dim > _WIDE:
            tasks.update(batch.task.tolist())
            refuse_too_large(len(tasks), features.dim)
        codes = None
        if features.actions is not None:
            codes = features.action_codes(batch.action, first_row=batch.first_row)
        try:
            total.add(batch.task, features.phi(batch.context, codes), batch.reward, batch.weight)
        except HieropoError as error:
            error.add_note(f"In the rows from {batch.first_row} on.")
            raise
    moments = total.moments()
    if not moments.n_rows:
        raise LogError(
            f"Column {roles.weight!r}: the weight is 0 in every row, so no row counts. Name another column."
        )
    return moments
