"""What weighted rewards say a policy is worth, without belief in the model: every row goes to the estimators."""

from collections.abc import Sequence

import numpy as np

from hieropo.core.arrays import Codes
from hieropo.core.off_policy import OffPolicySums
from hieropo.evaluation.comparing import Comparing, Weighed
from hieropo.evaluation.crossfit import Judge
from hieropo.evaluation.folds import fold_of
from hieropo.evaluation.judging import ActionFeatures, Rows
from hieropo.evaluation.propensity import Propensity


class Weighing:
    """Hands rows of a log to estimators, with predictions that were never fitted to the row that they correct.

    Parameters
    ----------
    sums : OffPolicySums
    propensity : callable
        Of a batch, the logged actions and the eligible ones: the probability with which each was logged, (n,).
    judges : sequence of Judge
        One, learned from other rows; or one for each fold, learned without it, that takes the place of the policy.
    seed : int
        Of the folds.
    lost : sequence of int
        Codes of actions that the judges lack; rows are counted in which the policy takes them all the same.
    shift : ActionFeatures, optional
        Takes the features of the judges' actions less those of the policy's, in rows in which they differ.
    comparing : Comparing, optional
        Takes the same rows for other policies.
    """

    def __init__(
        self,
        sums: OffPolicySums,
        propensity: Propensity,
        judges: Sequence[Judge],
        seed: int,
        lost: Sequence[int],
        shift: ActionFeatures | None = None,
        comparing: Comparing | None = None,
    ) -> None:
        self._sums, self._propensity, self._judges, self._seed = sums, propensity, judges, seed
        self._lost, self._astray = lost, np.zeros(0, dtype=np.int64)
        self._shift, self._comparing = shift, comparing

    def add(self, rows: Rows) -> None:
        """Take some rows."""
        batch, n = rows.batch, len(rows.batch)
        if self._lost:
            self._astray = np.append(self._astray, rows.place[np.isin(rows.index, self._lost)])
        chance = self._propensity(batch, rows.place, rows.codes, rows.mask)
        parts = len(self._judges)
        fold = fold_of(batch.first_row, n, parts, self._seed) if parts > 1 else np.zeros(n, dtype=np.int64)
        index, taken, aimed = rows.index.copy(), np.zeros(n), np.zeros(n)
        for k, judge in enumerate(self._judges):
            own = np.flatnonzero(fold == k)
            if not own.size:
                continue
            context, codes = batch.context[own], rows.codes[own]
            if parts > 1:
                allowed = None if rows.mask is None else rows.mask[own]
                index[own] = judge.choose(batch.task[own], context, allowed)
            taken[own] = judge.predict(rows.place[own], context, codes)
            aimed[own] = judge.predict(rows.place[own], context, index[own])
        if self._shift is not None:
            other = np.flatnonzero(index != rows.index)
            place, context = rows.place[other], batch.context[other]
            weight = batch.weights.some(other).counts(other.size)
            self._shift.add(place, context, index[other], weight)
            self._shift.add(place, context, rows.index[other], -weight)
        if self._comparing is not None:
            self._comparing.add(rows, Weighed(fold, index, chance, taken, aimed), self._judges)
        same = (index == rows.codes).astype(np.float64)
        target = np.where(rows.kept, chance, same)  # a kept incumbent acts as it did
        self._sums.add(
            rows.place, batch.reward, chance, target, taken, aimed, batch.weight, batch.sampling_weight
        )

    def lost_rows(self, tasks: int) -> Codes:
        """Return the rows of each task (m,) in which the policy takes an action that the judges lack."""
        return np.bincount(self._astray, minlength=tasks)
