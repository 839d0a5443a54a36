"""A fit to sharded moments, with one shard in memory at a time, and its policy on disk."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hieropo._utils.arrays import Codes
from hieropo._utils.text import counted
from hieropo.doctor.examination import Finding
from hieropo.doctor.fitting import of_counts, of_moments, of_total
from hieropo.errors import InputError, NumericalError
from hieropo.estimation.hyper.uncertainty import HyperUncertainty
from hieropo.estimation.learning import Settings
from hieropo.evaluation.passes.subject import Subject, SubjectInShards
from hieropo.features.maps import FeatureMap
from hieropo.model.in_shards import PosteriorInShards
from hieropo.model.table import PosteriorTable
from hieropo.model.task_levels import TaskLevels
from hieropo.moments.in_shards import MomentsInShards
from hieropo.moments.statistics import Moments
from hieropo.passes.feasibility import refuse_too_large
from hieropo.passes.log_moments import LogMoments
from hieropo.passes.sharded import ShardedMoments
from hieropo.passes.shards_in_memory import side_by_side
from hieropo.policies.gating import GatedPolicy
from hieropo.policies.lower_bound import LCBPolicy
from hieropo.rows.batches import Roles
from hieropo.rows.keys import Keys
from hieropo.rows.task_hash import shards_of
from hieropo.storage.save import save_policy_in_pieces

JOINED = 2**26  # bytes of sums up to which shards are joined in memory
_TASKS = 2**16  # tasks whose posteriors are in memory at once


def joins(sharded: ShardedMoments) -> bool:
    """Return True where the shards are small enough to be learned from in memory."""
    return sharded.sums().nbytes <= JOINED


def refuse_unsuitable(roles: Roles, settings: Settings, *, shares: bool) -> None:
    """Raise InputError for what is not learned shard by shard.

    Raises
    ------
    InputError
        Names the column or the setting, and the way to learn in memory.
    """
    reason = None
    if not shares:
        reason = "a baseline, which takes all tasks at once"
    elif roles.levels or roles.metadata:
        reason = "groups or metadata of tasks, whose tasks lie in several shards"
    elif roles.sampling_weight is not None:
        reason = f"sampling_weight={roles.sampling_weight!r}, whose standard errors need all tasks at once"
    elif settings.logging == "frozen":
        reason = "logging='frozen', which takes the shares of actions as metadata of each task"
    if reason is not None:
        raise InputError(
            f"A fit to moments in shards cannot use {reason}. Fit ShardedMoments.joined() on a machine with memory for "
            "all tasks, or fit without it."
        )


def learned_map(sharded: ShardedMoments, features: FeatureMap | None) -> LogMoments:
    """Return the totals of sharded moments for a map that was given, or at their final origin.

    Raises
    ------
    MismatchError
        The map that was given lacks an action, or differs otherwise.
    """
    outline = sharded.outline()
    return outline.at_final_origin() if features is None else outline.within(features)


def sums_to_learn_from(sharded: ShardedMoments, features: FeatureMap, *, per_action: bool) -> MomentsInShards:
    """Return the sums in shards for a map, per action where ``per_action``, else of all features.

    Raises
    ------
    InputError
        A shard needs more memory than the machine has.
    """
    sums = sharded.sums(features)
    if sums.per_action and not per_action:
        refuse_too_large(max(sums.shard_tasks), sums.dim)
        return sums.dense()
    return sums


def findings_on(
    sums: MomentsInShards,
    features: FeatureMap,
    roles: Roles,
    *,
    learning: bool,
    listed: bool,
    coefficients: int,
) -> Iterator[Finding]:
    """Yield the doctor's findings that follow from the totals of a log."""
    total = sums.total
    if learning:
        yield from of_total(total, roles)
    yield from of_moments(total, features, roles, learning=False, listed=listed, varied=True)
    if total.per_action:
        yield from of_counts(total.rows[0], features.actions or (), roles, coefficients)


@dataclass(frozen=True)
class TablesOfShards:
    """The posterior tables of all tasks, in pieces, with the ids of the tasks.

    Parameters
    ----------
    sharded : ShardedMoments
    posterior : PosteriorInShards
        Of the sums of ``sharded``.
    """

    sharded: ShardedMoments
    posterior: PosteriorInShards

    def __iter__(self) -> Iterator[PosteriorTable]:
        sums = self.posterior.moments
        for k, tasks in enumerate(sums.shard_tasks):
            if tasks:
                shard, ids = sums.load(k), self.sharded.ids(k)
                for start in range(0, tasks, _TASKS):
                    some = slice(start, start + _TASKS)
                    table = self.posterior.of_tasks(shard.at(some)).table()
                    yield replace(table, keys=Keys(ids[some]))


def save_in_shards(
    sharded: ShardedMoments,
    posterior: PosteriorInShards,
    population: LCBPolicy,
    path: str | os.PathLike[str],
    *,
    hyper_uncertainty: HyperUncertainty,
    provenance: Mapping[str, Any],
    gate: GatedPolicy | None = None,
) -> Path:
    """Write the policy of a fit to shards; parameters and errors as of :func:`save_policy_in_pieces`."""
    return save_policy_in_pieces(
        population,
        TablesOfShards(sharded, posterior),
        len(sharded),
        sharded.id_kind(),
        path,
        hierarchy=posterior.hierarchy,
        hyper=posterior.hyper,
        log_evidence=posterior.log_evidence,
        hyper_uncertainty=hyper_uncertainty,
        sketch=sharded.sketch,
        gate=gate,
        provenance=provenance,
    )


def subject_in_shards(
    learner: Any, sharded: ShardedMoments, policy: LCBPolicy | GatedPolicy
) -> SubjectInShards:
    """Return the policy of a fit to shards as an evaluation takes it: with the posterior of the tasks of its log.

    Raises
    ------
    InputError
        The policy lists no actions.
    """
    posterior: PosteriorInShards = learner.posterior_
    plain, features = policy.ungated, learner.features_
    settings = learner._settings_in_force()

    def condition(moments: Any) -> Any:
        return posterior.of_tasks(moments)

    def relearn(moments: Any, some_features: FeatureMap) -> Any:
        if some_features.fingerprint != features.fingerprint:
            raise NumericalError("Moments in shards keep all actions.")
        rest = posterior.moments.replaced(task_numbers(sharded, posterior.moments, moments.keys), moments)
        levels = TaskLevels(learner.roles_)
        learned = learner.learned_from(rest, features, levels, settings, learner.hierarchy_).posterior
        return learned.of_tasks(moments)

    def of_tasks(keys: Keys) -> Subject:
        moments = moments_of_tasks(sharded, posterior.moments, keys)
        part = condition(moments)
        acting = LCBPolicy(part, features, pessimism=plain.pessimism, unseen=plain.unseen)
        return Subject(
            policy=_gated(acting, policy), moments=part.moments,
            posterior=part, condition=condition, relearn=relearn, sketch=sharded.sketch, logging=learner.logging_,
            correlation=learner.cluster_correlation_, part=True,
        )  # fmt: skip

    empty = LCBPolicy(posterior.population, features, pessimism=plain.pessimism)
    none = posterior.moments.none()
    actions = Subject(empty, none, posterior.population, condition, relearn, sharded.sketch).features
    return SubjectInShards(actions, of_tasks)


def _gated(part: LCBPolicy, policy: LCBPolicy | GatedPolicy) -> LCBPolicy | GatedPolicy:
    """Return the policy of some tasks with the gate that the policy of all has."""
    if not isinstance(policy, GatedPolicy):
        return part
    rows = np.asarray(policy.table.keys.locate(part.table.keys.values))
    harm = np.full(len(rows), np.nan)
    harm[rows >= 0] = policy.harm[rows[rows >= 0]]
    return replace(policy, policy=part, harm=harm)


def moments_of_tasks(sharded: ShardedMoments, sums: MomentsInShards, keys: Keys) -> Moments:
    """Return the moments of the tasks of ``keys`` that the shards hold, in memory, with their ids."""
    shard_of_task = shards_of(keys.values, sharded.n_shards)
    parts = []
    for k in np.unique(shard_of_task).tolist():
        if sums.shard_tasks[k]:
            ids = Keys(sharded.ids(k))
            rows = ids.locate(keys.values[shard_of_task == k])
            rows = np.sort(rows[rows >= 0])
            parts.append(replace(sums.load(k).at(rows), keys=Keys(ids.values[rows])))
    return side_by_side(parts) if parts else sums.none()


def task_numbers(sharded: ShardedMoments, sums: MomentsInShards, keys: Keys) -> Codes:
    """Return the numbers (n,) of tasks among those of all shards.

    Raises
    ------
    UnknownTaskError
        The shards lack a task.
    """
    shard_of_task = shards_of(keys.values, sharded.n_shards)
    starts = np.cumsum([0, *sums.shard_tasks])
    numbers = np.empty(len(keys), dtype=np.int64)
    for k in np.unique(shard_of_task).tolist():
        some = shard_of_task == k
        numbers[some] = starts[k] + np.asarray(Keys(sharded.ids(k)).require(keys.values[some]))
    return numbers


def refuse_in_shards(sharded: ShardedMoments | None, verb: str) -> None:
    """Raise InputError for a method that needs the posterior of all tasks at once.

    Raises
    ------
    InputError
        Names the way to do the same in memory.
    """
    if sharded is not None:
        raise InputError(
            f"This learner was fitted to moments in shards ({sharded.path}, {counted(len(sharded), 'task')}), and "
            f"{verb} takes the posterior of all tasks in memory. Fit ShardedMoments.joined(), or for the tasks of one "
            "shard ShardedMoments.shard(k), on a machine that holds them."
        )


def refuse_unsaved(sharded: ShardedMoments | None, policy: Any) -> None:
    """Raise InputError for decisions of a policy whose table is not on disk yet.

    Raises
    ------
    InputError
        Says to save the policy.
    """
    if sharded is not None and not len(policy.table.keys):
        raise InputError(
            f"This learner was fitted to moments in shards ({counted(len(sharded), 'task')}), and its policy has no "
            "table in memory. Call save(path) first: from then on it decides from the directory."
        )
