"""A learner from a policy on disk: it predicts, evaluates and learns on as the one that was saved."""

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

_LEARNERS = {each.__name__: each for each in (HierOPO, FlatOPO, OracleOPO, PooledOPO)}


@one_blas_thread
def load_learner(path: str | os.PathLike[str]) -> HierOPO:
    """Open a policy that a learner saved, as a fitted learner.

    Its ``partial_fit`` adds the rows of another log, ``evaluate`` judges it, and ``save`` writes it again. What was
    said of the estimate itself, ``estimate_`` and ``learned_``, is not kept on disk.

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
    about, moments, hierarchy = stored.provenance, stored.moments(), stored.hierarchy
    kind = _LEARNERS.get(about.get("learner", ""))
    if (
        kind is None or "settings" not in about or "columns" not in about
        or moments is None or hierarchy is None or stored.features is None
    ):  # fmt: skip
        raise ArtifactError(
            f"{stored.path}: this policy was not saved by a learner of this release, so that it cannot be "
            "learned on or judged; it can decide. Fit again and save with learner.save(path), or `hieropo fit`."
        )
    learner = kind(**_settings(stored, about["settings"], hierarchy))
    roles = Roles(**about["columns"])
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
        noise_told=about.get("noise_told", True), actions_given=about.get("actions_given", False),
    )  # fmt: skip


def _settings(stored: StoredPolicy, saved: dict[str, Any], hierarchy: AnyHierarchy) -> dict[str, Any]:
    found = {**saved, "features": stored.features}
    if "known" in found:
        found["known"] = hierarchy if found["known"] else None
    if isinstance(found.get("hyper"), dict):
        found["hyper"] = Gaussian(np.array(found["hyper"]["mean"]), np.array(found["hyper"]["cov"]))
    if isinstance(found.get("task_cov"), list):
        found["task_cov"] = np.array(found["task_cov"])
    return found


def _task_levels(roles: Roles, hierarchy: AnyHierarchy) -> TaskLevels:
    known = {}
    if roles.metadata and hierarchy.metadata is not None:
        ids = hierarchy.metadata.tasks.values.tolist()
        known = dict(zip(ids, hierarchy.metadata.values, strict=True))
    parents = [level.parent for level in hierarchy.levels] if roles.levels else []
    return TaskLevels.of(roles, parents, known)
