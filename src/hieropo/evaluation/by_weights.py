"""What weighted rewards say a policy is worth, without belief in the model: every row goes to the estimators."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo.core.features import FeatureMap
from hieropo.core.keys import Keys
from hieropo.core.off_policy import OffPolicySums
from hieropo.core.policy import LCBPolicy
from hieropo.evaluation.judging import Predictions, Rows
from hieropo.evaluation.propensity import Propensity
from hieropo.evaluation.survey import fold_of

Array = NDArray[np.float64]
Codes = NDArray[np.int64]


class Weighing:
    """Hands rows of a log to estimators, with predictions that were never fitted to the row that they correct.

    Parameters
    ----------
    sums : OffPolicySums
    propensity : callable
        Of a batch, the logged actions and the eligible ones: the probability with which each was logged, (n,).
    features : FeatureMap
    policies : sequence of LCBPolicy
        One, learned from other rows; or one for each fold, learned without it, that takes the place of the policy.
    log : Keys
        The tasks of the log.
    seed : int
        Of the folds.
    """

    def __init__(
        self,
        sums: OffPolicySums,
        propensity: Propensity,
        features: FeatureMap,
        policies: Sequence[LCBPolicy],
        log: Keys,
        seed: int,
    ) -> None:
        self._sums, self._propensity, self._seed = sums, propensity, seed
        self._policies = policies
        self._at = [_places(each, log) for each in policies]
        self._predictions = [Predictions(np.asarray(each.table.means), features) for each in policies]

    def add(self, rows: Rows) -> None:
        """Take some rows."""
        batch, n = rows.batch, len(rows.batch)
        chance = self._propensity(batch, rows.place, rows.codes, rows.mask)
        parts = len(self._policies)
        fold = fold_of(batch.first_row, n, parts, self._seed) if parts > 1 else np.zeros(n, dtype=np.int64)
        index, taken, aimed = rows.index.copy(), np.zeros(n), np.zeros(n)
        for k, policy in enumerate(self._policies):
            own = np.flatnonzero(fold == k)
            if not own.size:
                continue
            context, codes = batch.context[own], rows.codes[own]
            if parts > 1:
                allowed = None if rows.mask is None else rows.mask[own]
                index[own] = policy.choose_many(batch.task[own], context, eligible=allowed).index[:, 0]
            place = self._at[k][rows.place[own]]
            taken[own] = self._predictions[k].of(place, context, codes)
            aimed[own] = self._predictions[k].of(place, context, index[own])
        same = (index == rows.codes).astype(np.float64)
        target = np.where(rows.kept, chance, same)  # a kept incumbent acts as it did
        self._sums.add(rows.place, batch.reward, chance, target, taken, aimed, batch.weight)


def _places(policy: LCBPolicy, log: Keys) -> Codes:
    keys: Any = policy.table.keys  # of a table with ids
    return np.asarray(keys.require(log.values))
