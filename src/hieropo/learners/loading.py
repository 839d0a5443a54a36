"""Load a fitted learner from a policy on disk; it predicts, evaluates and learns as the one that was saved."""

import os
from typing import Any

import numpy as np

from hieropo._utils.blas_threads import one_blas_thread
from hieropo.errors import ArtifactError
from hieropo.estimation.crossed.mixture import condition_with_crossed
from hieropo.estimation.hyper.uncertainty import condition_with
from hieropo.learners.baselines import FlatOPO, OracleOPO, PooledOPO
from hieropo.learners.hieropo import HierOPO
from hieropo.model.gaussian import Gaussian
from hieropo.model.hierarchy import Hierarchy
from hieropo.model.task_levels import TaskLevels
from hieropo.moments.units import UnitMoments
from hieropo.rows.batches import Roles
from hieropo.storage.layout import AnyHierarchy
from hieropo.storage.load import StoredPolicy, load_policy

_LEARNERS = {learner.__name__: learner for learner in (HierOPO, FlatOPO, OracleOPO, PooledOPO)}


@one_blas_thread
def load_learner(path: str | os.PathLike[str]) -> HierOPO:
    """Load a policy that a learner saved, and return it as a fitted learner.

    ``partial_fit`` adds the rows of another log, ``evaluate`` evaluates the policy on a log, and ``save`` writes it
    again. The attributes ``estimate_`` and ``learned_`` are not stored on disk, and are absent.

    Parameters
    ----------
    path : path
        The directory.

    Raises
    ------
    ArtifactError
        As :func:`load_policy`; or the policy was saved without its learner's settings, moments or hierarchy.
    """
    stored = load_policy(path)
    provenance, moments, hierarchy = stored.provenance, stored.moments(), stored.hierarchy
    learner_class = _LEARNERS.get(provenance.get("learner", ""))
    if (
        learner_class is None or "settings" not in provenance or "columns" not in provenance
        or moments is None or hierarchy is None or stored.features is None
    ):  # fmt: skip
        raise ArtifactError(
            f"{stored.path} was saved without a learner's settings, moments or hierarchy. It can decide, but not learn "
            "from more rows or be evaluated. Fit again and save with learner.save(path) or `hieropo fit`."
        )
    learner = learner_class(**_settings(stored, provenance["settings"], hierarchy))
    roles = Roles(**provenance["columns"])
    posterior: Any
    if isinstance(moments, UnitMoments):
        assert not isinstance(hierarchy, Hierarchy)
        posterior = condition_with_crossed(moments, hierarchy)
    else:
        assert isinstance(hierarchy, Hierarchy)
        posterior = condition_with(moments, hierarchy, stored.hyper_uncertainty)
    return learner.restored(
        policy=stored.policy, moments=moments, roles=roles, hierarchy=hierarchy, posterior=posterior,
        task_levels=_task_levels(roles, hierarchy), hyper_uncertainty=stored.hyper_uncertainty, sketch=stored.sketch,
        noise_told=provenance.get("noise_told", True), actions_given=provenance.get("actions_given", False),
    )  # fmt: skip


def _settings(stored: StoredPolicy, saved: dict[str, Any], hierarchy: AnyHierarchy) -> dict[str, Any]:
    settings = {**saved, "features": stored.features}
    if "known" in settings:
        settings["known"] = hierarchy if settings["known"] else None
    if isinstance(settings.get("hyper"), dict):
        settings["hyper"] = Gaussian(np.array(settings["hyper"]["mean"]), np.array(settings["hyper"]["cov"]))
    if isinstance(settings.get("task_cov"), list):
        settings["task_cov"] = np.array(settings["task_cov"])
    return settings


def _task_levels(roles: Roles, hierarchy: AnyHierarchy) -> TaskLevels:
    metadata = {}
    if roles.metadata and hierarchy.metadata is not None:
        tasks = hierarchy.metadata.tasks.values.tolist()
        metadata = dict(zip(tasks, hierarchy.metadata.values, strict=True))
    parents = [level.parent for level in hierarchy.levels] if roles.levels else []
    return TaskLevels.of(roles, parents, metadata)
