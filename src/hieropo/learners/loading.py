"""Load a fitted learner from a policy on disk; it predicts, evaluates and learns as the one that was saved."""

import os
from typing import Any

import numpy as np

from hieropo._utils.blas_threads import one_blas_thread
from hieropo.decisions.new_tasks import NewTasks
from hieropo.errors import ArtifactError, InputError, MismatchError
from hieropo.estimation.conditioning import condition_learned
from hieropo.learners.baselines import FlatOPO, OracleOPO, PooledOPO
from hieropo.learners.clusters_in_shards import ClustersInShards
from hieropo.learners.hieropo import HierOPO
from hieropo.learners.in_shards import sums_to_learn_from
from hieropo.learners.saving import noise_identified
from hieropo.model.gaussian import Gaussian
from hieropo.model.task_levels import TaskLevels
from hieropo.moments.clusters import correlated
from hieropo.passes.log_moments import LogMoments, as_moments
from hieropo.passes.sharded import ShardedMoments, as_shards
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
    if moments is None and "shards" in provenance:
        raise ArtifactError(
            f"{stored.path} was learned from moments in shards, {provenance['shards']['path']}, and holds no moments: "
            "it decides, and `hieropo evaluate` reads the shards, but it does not learn from more rows. Merge the "
            "shards of more rows and fit again; or, on a machine that holds all tasks, fit ShardedMoments.joined()."
        )
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
    return learner.restored(
        policy=stored.policy, moments=moments, roles=roles, hierarchy=hierarchy, posterior=_posterior(stored, moments),
        task_levels=TaskLevels.of_hierarchy(roles, hierarchy), hyper_uncertainty=stored.hyper_uncertainty,
        sketch=stored.sketch, noise_identified=noise_identified(provenance),
        actions_given=provenance.get("actions_given", False),
        cluster_correlation=provenance.get("cluster_correlation"),
        sites=provenance.get("sites"), drift=provenance.get("drift"),
        likelihood_note=provenance.get("likelihood_note", ""),
        settings_note=provenance.get("settings_note", ""),
    )  # fmt: skip


@one_blas_thread
def load_evaluable(path: str | os.PathLike[str]) -> HierOPO:
    """Load a policy that a learner saved, for an evaluation; that of moments in shards with its shards.

    Raises
    ------
    ArtifactError
        As :func:`load_learner`; or the shards that the policy was learned from are not where they were, or were made
        again.
    """
    stored = load_policy(path)
    provenance, hierarchy = stored.provenance, stored.hierarchy
    place = provenance.get("shards")
    if place is None or hierarchy is None or stored.features is None:
        return load_learner(path)
    shards = ShardedMoments.open(place["path"])
    if shards.checksum != place["sha256"]:
        raise ArtifactError(
            f"{stored.path} was learned from moments in shards that were at {place['path']}; the shards there were "
            "made again since then. Fit again, or put the old ones back."
        )
    roles = Roles(**provenance["columns"])
    sums = sums_to_learn_from(shards, stored.features, per_action=hierarchy.per_action)
    correlation = provenance.get("cluster_correlation")
    if correlation is not None:
        clusters = ClustersInShards(shards, stored.features, hierarchy.per_action)
        sums = clusters.correlated(sums, np.array(correlation))
    return HierOPO(**_settings(stored, provenance["settings"], hierarchy)).restored(
        policy=stored.policy, moments=sums, roles=roles, hierarchy=hierarchy, posterior=_posterior(stored, sums),
        task_levels=TaskLevels(roles), hyper_uncertainty=stored.hyper_uncertainty, sketch=stored.sketch,
        noise_identified=noise_identified(provenance), actions_given=provenance.get("actions_given", False),
        shards=shards, cluster_correlation=correlation, settings_note=provenance.get("settings_note", ""),
    )  # fmt: skip


@one_blas_thread
def load_posterior(path: str | os.PathLike[str], log: Any = None) -> tuple[StoredPolicy, Any]:
    """Load a policy and the posterior that it was made of, from its own moments or from those of its log.

    Parameters
    ----------
    path : path
        The directory.
    log : LogMoments, their directory, or a log, optional
        The rows that the policy was learned from, where the directory does not hold their moments.

    Raises
    ------
    ArtifactError
        As :func:`load_policy`; or the directory lacks the hierarchy, the feature map or the moments; the message says
        which, and what to give.
    MismatchError, SchemaError, LogError
        The log or its moments do not fit the policy.
    """
    stored = load_policy(path)
    lacks = [
        name
        for name, value in (("hierarchy", stored.hierarchy), ("feature map", stored.features))
        if value is None
    ]
    if lacks:
        raise ArtifactError(
            f"{stored.path} was saved without its {' and '.join(lacks)}, so that the sources of its posterior cannot "
            "be told. Fit again and save with learner.save(path) or `hieropo fit`."
        )
    moments = stored.moments()
    if moments is None and log is None:
        raise ArtifactError(
            f"{stored.path} was saved without the moments of its log, the sums of each task's rows. Give the "
            "moments (made by `hieropo moments`), or the log that the policy was learned from."
        )
    if moments is None:
        moments = _moments_for(stored, log)
    return stored, _posterior(stored, moments)


def _moments_for(stored: StoredPolicy, log: Any) -> Any:
    """Return the moments of a log, or given ones, for the feature map of a policy."""
    shards = as_shards(log)
    made = as_moments(log) if shards is None else shards.joined()
    if made is None:
        columns = stored.provenance.get("columns")
        if columns is None:
            raise ArtifactError(
                f"{stored.path} does not name the columns of its log. Make moments of the log with `hieropo moments`, "
                "and give these."
            )
        made = LogMoments.of(log, features=stored.features, **columns)
    assert stored.features is not None
    assert stored.hierarchy is not None
    made, per_action = made.within(stored.features), stored.hierarchy.per_action
    moments, correlation = (
        made.for_learning(per_action=per_action),
        stored.provenance.get("cluster_correlation"),
    )
    clusters = made.clusters_for_learning(per_action=per_action)
    if correlation is None:
        return moments
    if clusters is None:
        raise MismatchError(
            f"{stored.path} was learned with the clusters {stored.provenance['columns']['cluster']!r}, and these "
            "moments have none. Make the moments again with this column."
        )
    return correlated(moments, clusters.at(moments), np.array(correlation))


def _posterior(stored: StoredPolicy, moments: Any) -> Any:
    assert stored.hierarchy is not None
    return condition_learned(moments, stored.hierarchy, stored.hyper_uncertainty)


def _settings(stored: StoredPolicy, saved: dict[str, Any], hierarchy: AnyHierarchy) -> dict[str, Any]:
    settings = {**saved, "features": stored.features}
    if "known" in settings:
        settings["known"] = hierarchy if settings["known"] else None
    if isinstance(settings.get("hyper"), dict):
        settings["hyper"] = Gaussian(np.array(settings["hyper"]["mean"]), np.array(settings["hyper"]["cov"]))
    if isinstance(settings.get("task_cov"), list):
        settings["task_cov"] = np.array(settings["task_cov"])
    return settings


def roles_of(stored: StoredPolicy) -> Roles:
    """Return the columns that a stored policy was learned from.

    Raises
    ------
    InputError
        It was saved without them.
    """
    columns = stored.provenance.get("columns")
    if columns is None or stored.features is None:
        raise InputError(
            "The policy was saved without its columns or features, so that requests cannot be read for it. Fit again "
            "and save with learner.save(path) or `hieropo fit`."
        )
    return Roles(**columns)


def new_tasks_of(stored: StoredPolicy, *, remember: bool = True) -> NewTasks | None:
    """Return policies for tasks that are not in the log of a stored policy; None without levels and metadata.

    The posterior is loaded at the first such task. ``remember`` is that of :class:`NewTasks`.
    """
    roles = roles_of(stored)
    return NewTasks.of(
        roles,
        lambda: TaskLevels.of_hierarchy(roles, stored.hierarchy),
        lambda: load_posterior(stored.path)[1],
        remember=remember,
    )
