"""The crossed prior given a log in shards: the way up is a sum over shards, tasks are computed one shard at a time."""

from collections.abc import Sequence
from functools import reduce

from hieropo._utils.arrays import Array
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.crossed.posterior import CrossedPosterior, check_crossed, log_evidence
from hieropo.model.crossed.steps import (
    GroupSums,
    ObservedUnits,
    RootSums,
    TaskGroups,
    UnitMessages,
    solve_root,
)
from hieropo.model.in_shards import PosteriorInShards, refuse_groups
from hieropo.moments.in_shards import MomentsInShards
from hieropo.moments.statistics import Moments

Covariances = tuple[Array, Array, float]  # M and L of one hierarchy, and the factor of the noise variances


def sums_of_shards(
    moments: MomentsInShards, noise_var: Array, hierarchies: Sequence[Covariances]
) -> list[RootSums]:
    """Return the messages of all tasks to the root under each hierarchy, with one read of every shard.

    Noise variances are ``noise_var`` (K,) times the factor of the hierarchy.
    """

    def of_shard(shard: Moments) -> list[GroupSums]:
        units = ObservedUnits.of(shard, noise_var)
        sums = []
        for interaction_cov, level_cov, factor in hierarchies:
            messages = UnitMessages(units.over(factor), interaction_cov)
            sums.append(GroupSums.of(messages, level_cov, TaskGroups.one(len(messages.units.tasks))))
        return sums

    def added(total: list[GroupSums], part: list[GroupSums]) -> list[GroupSums]:
        return [before.plus(sums) for before, sums in zip(total, part, strict=True)]

    parts = moments.map(of_shard) if len(moments) else iter([of_shard(moments.none())])
    return [one.only() for one in reduce(added, parts)]


def part_of_log(
    part: Moments,
    total: Moments,
    hierarchy: CrossedHierarchy,
    sums: RootSums,
    units: ObservedUnits | None = None,
) -> CrossedPosterior:
    """Return the posterior of some tasks of a log given all of it.

    Parameters
    ----------
    part : Moments
        Of these tasks.
    total : Moments
        Sums over all tasks.
    hierarchy : CrossedHierarchy
    sums : RootSums
        Messages of all tasks to the root.
    units : ObservedUnits, optional
        Those of ``part``, divided by the noise of the hierarchy, where they are there already.
    """
    units = ObservedUnits.of(part, hierarchy.noise_var) if units is None else units
    root = solve_root(sums, hierarchy.action_cov)
    messages = UnitMessages(units, hierarchy.interaction_cov)
    posterior = CrossedPosterior(part, hierarchy, messages, sums.log_det, root)
    posterior.log_evidence = log_evidence(total, hierarchy.noise_var, sums.log_det, root)
    return posterior


def check_in_shards(moments: MomentsInShards, hierarchy: CrossedHierarchy) -> None:
    """Raise where a crossed hierarchy does not fit moments in shards; errors as :func:`check_crossed`.

    Raises
    ------
    InputError
        Tasks are in groups, or have metadata.
    """
    refuse_groups(hierarchy.levels, hierarchy.metadata)
    check_crossed(moments.total, hierarchy)
    moments.refuse_negative()


def condition_crossed_in_shards(moments: MomentsInShards, hierarchy: CrossedHierarchy) -> PosteriorInShards:
    """Condition the crossed prior on a log in shards; errors as :func:`check_in_shards`."""
    check_in_shards(moments, hierarchy)
    one = hierarchy.interaction_cov, hierarchy.level_cov, 1.0
    (sums,) = sums_of_shards(moments, hierarchy.noise_var, [one])
    return PosteriorInShards(
        moments, hierarchy, lambda part: part_of_log(part, moments.total, hierarchy, sums)
    )
