"""The subject of an evaluation: a policy, its posterior, and functions that learn it again from other rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo.errors import InputError
from hieropo.features.maps import FeatureMap
from hieropo.model.protocol import TaskPosterior
from hieropo.moments.row_sketch import RowSketch
from hieropo.moments.statistics import Moments
from hieropo.policies.gating import GatedPolicy
from hieropo.policies.lower_bound import LCBPolicy
from hieropo.rows.batches import Batch
from hieropo.rows.keys import Keys

AnyPolicy = LCBPolicy | GatedPolicy
AsSites = Callable[[Batch, Codes], Batch]


@dataclass(frozen=True, eq=False)
class Subject:
    """A policy to evaluate.

    Parameters
    ----------
    policy : LCBPolicy or GatedPolicy
    moments : Moments
        The moments that the policy was learned from.
    posterior : TaskPosterior
        The posterior that the policy acts on.
    condition : callable
        Turns other moments into the posterior under the same hierarchy.
    relearn : callable
        Turns other moments, with their feature map, into the posterior under the hierarchy learned from them.
    by_words : bool
        True where no setting of the hierarchy is an array over features, so that actions can be left out.
    sketch : RowSketch
        A fingerprint of the rows that the policy was learned from.
    placed : bool
        True where a new task has no place in the hierarchy, as with levels and metadata.
    logging : str
        The setting ``logging`` of the learner.
    correlation : (K,) or (1,) array, optional
        Correlations of rewards within clusters, which the moments take into account.
    sites : callable, optional
        Turns batches with the codes (n,) of their actions into those of pseudo-rewards, of which the moments are.
    drifting : bool
        True where coefficients move in time, or rows of one period have something in common, so that the moments are
        not those of the rows as they are in the log.
    part : bool
        True where moments and posterior are of some of the tasks that the policy was learned from, given all of them.
        The policy can then be learned again without some rows of these tasks, but not from rows of another log.
    """

    policy: AnyPolicy
    moments: Moments
    posterior: TaskPosterior
    condition: Callable[[Any], TaskPosterior]
    relearn: Callable[[Any, FeatureMap], TaskPosterior]
    sketch: RowSketch
    by_words: bool = True
    placed: bool = False
    logging: str = "unknown"
    correlation: Array | None = None
    sites: AsSites | None = None
    drifting: bool = False
    part: bool = False

    @property
    def in_two_parts(self) -> bool:
        """True where the moments hold the sums over positive rewards, of a two-part likelihood."""
        return self.moments.positive is not None

    @property
    def features(self) -> FeatureMap:
        """The feature map, which lists actions.

        Raises
        ------
        InputError
            It lists none, so that a log does not show what could have been done in its place.
        """
        features = self.policy.features
        if features is None or features.actions is None:
            raise InputError(
                "This policy lists no actions: its candidates come with each request. A log has only the candidate "
                "that was taken, so the policy cannot be evaluated on it. Fit with a column of actions, and with "
                "features=embedding(actions, table) where numbers describe them."
            )
        return features

    @property
    def plain(self) -> LCBPolicy:
        """The policy without its gate."""
        return self.policy.ungated

    def covering(self, keys: Keys) -> TaskPosterior:
        """Return the posterior of these tasks too; tasks unknown to the policy are new tasks."""
        if (np.asarray(self.moments.keys.locate(keys.values)) >= 0).all():
            return self.posterior
        return self.condition(self.moments.covering(keys))


@dataclass(frozen=True, eq=False)
class SubjectInShards:
    """A policy to evaluate whose tasks are not all in memory.

    Parameters
    ----------
    features : FeatureMap
        With a list of actions.
    of_tasks : callable
        Returns the subject of some tasks: those of the log of the evaluation.
    """

    features: FeatureMap
    of_tasks: Callable[[Keys], Subject]
