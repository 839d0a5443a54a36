"""What is evaluated: a policy, the posterior that it acts on, and how to learn it again from other rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hieropo.errors import InputError
from hieropo.features.maps import FeatureMap
from hieropo.model.protocol import TaskPosterior
from hieropo.moments.row_sketch import RowSketch
from hieropo.moments.statistics import Moments
from hieropo.moments.units import UnitMoments
from hieropo.policies.gating import GatedPolicy
from hieropo.policies.lower_bound import LCBPolicy
from hieropo.rows.keys import Keys

AnyMoments = Moments | UnitMoments
AnyPolicy = LCBPolicy | GatedPolicy


@dataclass(frozen=True, eq=False)
class Subject:
    """A policy to evaluate.

    Parameters
    ----------
    policy : LCBPolicy or GatedPolicy
    moments : Moments or UnitMoments
        Those that the policy was learned from.
    posterior : TaskPosterior
        What the policy acts on.
    condition : callable
        Other moments to the posterior under the same hierarchy.
    relearn : callable
        Other moments, and the map that made them, to the posterior under the hierarchy that is learned from them.
    by_words : bool
        Whether no setting of the hierarchy is given as numbers for each feature, so that fewer actions can be learned.
    sketch : RowSketch
        A fingerprint of the rows that the policy was learned from.
    placed : bool
        Whether a task without rows has no place in the hierarchy, as with levels and metadata.
    logging : str
        What was said of how the log was made that the policy was learned from.
    """

    policy: AnyPolicy
    moments: AnyMoments
    posterior: TaskPosterior
    condition: Callable[[Any], TaskPosterior]
    relearn: Callable[[Any, FeatureMap], TaskPosterior]
    sketch: RowSketch
    by_words: bool = True
    placed: bool = False
    logging: str = "unknown"

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
                "This policy lists no actions: its candidates are rows of their own, and a log of what was done does "
                "not say what else could have been done, so that no other choice can be judged from it. Fit with a "
                "column of actions, and features=embedding(actions, table) where numbers describe them."
            )
        return features

    @property
    def plain(self) -> LCBPolicy:
        """The policy without its gate."""
        return self.policy.policy if isinstance(self.policy, GatedPolicy) else self.policy

    def covering(self, keys: Keys) -> TaskPosterior:
        """Return the posterior with these tasks too; those that the policy does not know are new tasks."""
        if (np.asarray(self.moments.keys.locate(keys.values)) >= 0).all():
            return self.posterior
        return self.condition(self.moments.covering(keys))
