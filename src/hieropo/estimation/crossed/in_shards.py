"""Hierarchies that a log in shards leaves possible, conditioned shard by shard."""

from collections.abc import Callable, Iterator
from functools import cache

from hieropo.errors import InputError
from hieropo.estimation.crossed.mixture import (
    CrossedHierarchies,
    CrossedMixture,
    condition_hierarchies,
    conditioned,
)
from hieropo.model.crossed.described import AnyCrossed, condition_units
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.crossed.in_shards import (
    check_in_shards,
    condition_crossed_in_shards,
    part_of_log,
    sums_of_shards,
)
from hieropo.model.crossed.steps import RootSums
from hieropo.model.in_shards import PosteriorInShards
from hieropo.model.table import PosteriorTable
from hieropo.moments.in_shards import AnyMoments, MomentsInShards
from hieropo.moments.statistics import Moments


class _MixtureOfPart(CrossedMixture):
    """Posterior of some tasks of a log in shards given all of it; nothing is kept between views.

    Parameters
    ----------
    part, total : Moments
        Of these tasks, and sums over all tasks.
    hierarchies : CrossedHierarchies
    sums : list of RootSums
        Messages of all tasks to the root under each hierarchy that is conditioned.
    central : callable
        Returns those under the central hierarchy.
    """

    def __init__(
        self,
        part: Moments,
        total: Moments,
        hierarchies: CrossedHierarchies,
        sums: list[RootSums],
        central: Callable[[], RootSums],
    ) -> None:
        super().__init__(part, hierarchies)
        self._total, self._sums, self._central = total, sums, central

    def central(self) -> AnyCrossed:
        """Return the posterior under the central hierarchy, taken as known."""
        return part_of_log(self.moments, self._total, self.central_hierarchy, self._central())

    def parts(self) -> Iterator[AnyCrossed]:
        """Yield the posterior under each hierarchy that is conditioned, in the order of ``weights``."""
        units = self._prepared.ladder.units
        for (hierarchy, noise), sums in zip(conditioned(self.hierarchy), self._sums, strict=True):
            yield part_of_log(self.moments, self._total, hierarchy, sums, units.over(noise))

    def _tables(self) -> Iterator[PosteriorTable]:
        return (part.table() for part in self.parts())


def _hierarchies_in_shards(moments: MomentsInShards, hierarchies: CrossedHierarchies) -> PosteriorInShards:
    """Condition the hierarchies that a log in shards leaves possible; one read of every shard."""
    if hierarchies.mixed:
        mixture = "a mixture of spreads" if hierarchies.mixed_spreads else "kinds of tasks"
        raise InputError(
            f"This hierarchy has {mixture}, and the moments are in shards. The posterior of a mixture needs all tasks "
            "at once: join the shards into moments in memory, or fit the shards without a mixture."
        )
    check_in_shards(moments, hierarchies.hierarchy(0))
    if hierarchies.task_noise is not None:
        raise InputError(
            "The hierarchy has a noise variance for each task. Posteriors of moments in shards have one noise variance "
            "for all tasks: learn the hierarchy from the moments in shards."
        )
    covs = [(one.interaction_cov, one.level_cov, noise) for one, noise in conditioned(hierarchies)]
    sums = sums_of_shards(moments, hierarchies.shapes.noise_ratio, covs)

    @cache
    def central() -> RootSums:
        one = hierarchies.central()
        return sums_of_shards(moments, one.noise_var, [(one.interaction_cov, one.level_cov, 1.0)])[0]

    return PosteriorInShards(
        moments, hierarchies, lambda part: _MixtureOfPart(part, moments.total, hierarchies, sums, central)
    )


def condition_with_crossed(
    moments: AnyMoments, hierarchy: CrossedHierarchies | CrossedHierarchy
) -> CrossedMixture | AnyCrossed | PosteriorInShards:
    """Condition the hierarchies that were learned, or the one that was given; errors as for each of them."""
    if isinstance(moments, MomentsInShards):
        if isinstance(hierarchy, CrossedHierarchy):
            return condition_crossed_in_shards(moments, hierarchy)
        return _hierarchies_in_shards(moments, hierarchy)
    if isinstance(hierarchy, CrossedHierarchy):
        return condition_units(moments, hierarchy)
    return condition_hierarchies(moments, hierarchy)
