"""Baselines to compare sharing with: FlatOPO, OracleOPO and complete pooling."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hieropo.errors import InputError, MismatchError
from hieropo.estimation.baseline_priors import empirical_flat, pooled_noise
from hieropo.estimation.learning import Learning, Settings, TaskCovariance, given
from hieropo.estimation.reml import estimate
from hieropo.features.maps import FeatureMap
from hieropo.learners.hieropo import HierOPO
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.hierarchy import Hierarchy
from hieropo.model.task_levels import TaskLevels
from hieropo.moments.statistics import Moments
from hieropo.passes.feature_choice import FeatureChoice
from hieropo.rows.batches import Roles
from hieropo.rows.keys import Unseen


class _Baseline(HierOPO):
    """A learner with one level of tasks, whose estimated hierarchy is taken as known (plug-in)."""

    _shares = False
    known: Hierarchy | None

    def _check_settings(self) -> Settings:
        settings = super()._check_settings()
        if isinstance(self.task_cov, str) and self.task_cov == "crossed":
            raise InputError(
                f"{type(self).__name__} is a baseline, and task_cov='crossed' is a prior of HierOPO alone. Leave "
                "task_cov out, or fit HierOPO."
            )
        if isinstance(self.known, CrossedHierarchy):
            raise InputError(
                f"{type(self).__name__} is a baseline, and known=CrossedHierarchy(...) is for HierOPO: hand in a "
                "Hierarchy of all coefficients, or leave known out."
            )
        return settings

    def __init__(
        self,
        features: FeatureChoice = None,
        *,
        pessimism: float | None = None,
        level: float | None = None,
        task_cov: TaskCovariance = "auto",
        known: Hierarchy | None = None,
        unseen: Unseen = "prior",
        roles: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            features,
            pessimism=pessimism,
            level=level,
            task_cov=task_cov,
            known=known,
            unseen=unseen,
            roles=roles,
        )

    def _check_roles(self, roles: Roles, settings: Settings) -> None:  # noqa: ARG002
        if roles.levels or roles.metadata:
            columns = [*roles.levels, *roles.metadata]
            raise InputError(
                f"{type(self).__name__} is a baseline with one level of tasks, and cannot use the levels or metadata "
                f"{columns}. Leave them out, or fit HierOPO."
            )
        if roles.cluster is not None:
            raise InputError(
                f"{type(self).__name__} is a baseline whose rows are independent, and cannot use the clusters "
                f"{roles.cluster!r}. Leave cluster out, or fit HierOPO."
            )

    def _learning(
        self,
        moments: Moments,
        features: FeatureMap,
        task_levels: TaskLevels,  # noqa: ARG002
        settings: Settings,
        similar: object,  # noqa: ARG002
    ) -> Learning:
        by_block = isinstance(settings.task_cov, str) and settings.task_cov == "block"
        blocks = len(features.actions) if by_block and features.actions is not None else None
        return given(moments, self._hierarchy(moments, settings, blocks))

    def _hierarchy(self, moments: Moments, settings: Settings, blocks: int | None) -> Hierarchy:
        raise NotImplementedError


def _estimated(moments: Moments, settings: Settings, blocks: int | None) -> Hierarchy:
    return estimate(moments, settings.task_cov, blocks=blocks).hierarchy


class FlatOPO(_Baseline):
    """Learn every task separately, from its own rows and one fixed prior (FlatOPO of the paper).

    With ``known``, the prior is N(mu_q, Sigma_0 + Sigma_q). Without, it is N(0, diag(mu_j^2 + Sigma_0_jj)) of the
    estimates, which is a ridge regression for each task with a penalty from the size of each coefficient.
    """

    def _hierarchy(self, moments: Moments, settings: Settings, blocks: int | None) -> Hierarchy:
        if settings.known is not None:
            return settings.known.flat()  # type: ignore[union-attr]  # checked
        return empirical_flat(_estimated(moments, settings, blocks), moments)


class PooledOPO(_Baseline):
    """Learn one theta for all tasks, with the noise variance of that one regression (complete pooling)."""

    def _hierarchy(self, moments: Moments, settings: Settings, blocks: int | None) -> Hierarchy:  # noqa: ARG002
        if settings.known is not None:
            return settings.known.pooled()  # type: ignore[union-attr]  # checked
        return Hierarchy(hyper=None, task_cov=np.zeros((moments.dim,) * 2), noise_var=pooled_noise(moments))


class OracleOPO(_Baseline):
    """Learn every task given the true population mean mu, which only a simulation knows (OracleOPO of the paper).

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
        task_cov: TaskCovariance = "auto",
        known: Hierarchy | None = None,
        unseen: Unseen = "prior",
        roles: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            features,
            pessimism=pessimism,
            level=level,
            task_cov=task_cov,
            known=known,
            unseen=unseen,
            roles=roles,
        )
        self.mu = mu

    def _hierarchy(self, moments: Moments, settings: Settings, blocks: int | None) -> Hierarchy:
        if np.shape(settings.mu) != (moments.dim,):
            raise MismatchError(
                f"mu has shape {np.shape(settings.mu)}, and this log has {moments.dim} features. Give mu of shape "
                f"({moments.dim},)."
            )
        hierarchy = _estimated(moments, settings, blocks) if settings.known is None else settings.known
        return hierarchy.oracle(settings.mu)  # type: ignore[union-attr]  # checked

    def _settings_of(self) -> Settings:
        return replace(super()._settings_of(), mu=self.mu)
