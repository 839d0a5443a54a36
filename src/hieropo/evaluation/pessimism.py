"""Choose the pessimism of a policy by cross-fitted doubly robust values."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hieropo._utils.arrays import Array
from hieropo._utils.brief import brief
from hieropo._utils.packed import packed_size, unpack
from hieropo._utils.text import Report, paragraph, table
from hieropo._utils.ties import ROUNDING, first_largest
from hieropo.errors import InputError
from hieropo.evaluation.comparisons.crossfit import CrossFit, Judge
from hieropo.evaluation.passes.first_pass import eligible, fold_of
from hieropo.evaluation.passes.propensity import Propensity
from hieropo.features.maps import FeatureMap
from hieropo.moments.accumulation import Accumulator
from hieropo.moments.statistics import Moments
from hieropo.policies.lower_bound import LCBPolicy
from hieropo.rows.batches import Batch
from hieropo.rows.keys import Keys

GRID = (0.0, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0)


@dataclass(frozen=True, eq=False)
class PessimismChoice(Report):
    """Value of the policy by its pessimism; made by :func:`choose_pessimism`.

    Attributes
    ----------
    grid : (g,) array
    value : (g,) array
        Cross-fitted doubly robust value of the policy with each pessimism, in reward units.
    se : (g,) array
        Standard error of the difference to the largest value, by tasks; 0 for the largest itself.
    chosen : float
        The smallest pessimism whose value is within one standard error of the largest. Acting on the mean is best on
        average where the model is right, so that more pessimism needs evidence.
    limits : tuple of str
        Sentences about the limits of the choice.
    """

    grid: Array
    value: Array
    se: Array
    chosen: float
    limits: tuple[str, ...] = ()

    __repr__ = brief

    def __str__(self) -> str:
        best = float(self.value.max())
        rows = [["pessimism", "value", "less than the best by", "se"]]
        for alpha, value, se in zip(self.grid, self.value, self.se, strict=True):
            rows.append([f"{alpha:g}", f"{value:.4g}", f"{best - value:.3g}", f"{se:.2g}"])
        near_best = self.grid[(best - self.value) <= 1.96 * self.se]
        indistinct = (
            "All are within 1.96 standard errors of the best: the log does not distinguish them."
            if near_best.size == self.grid.size
            else f"Not distinguishable from the best: {', '.join(f'{alpha:g}' for alpha in near_best)}."
        )
        return f"{table(rows)}\n\n" + paragraph(
            f"Chosen: {self.chosen:g}, the smallest within one standard error of the best, by cross-fitted doubly "
            "robust "
            f"values. {' '.join([indistinct, *self.limits])}"
        )


def choose_pessimism(
    fitted: CrossFit,
    batches: Iterable[Batch],
    features: FeatureMap,
    propensity: Propensity,
    keys: Keys,
    *,
    grid: Sequence[float] = GRID,
    seed: int = 0,
) -> PessimismChoice:
    """Choose a pessimism by cross-fitted doubly robust values.

    For each fold, policies of each pessimism and their predictions q are learned without it; a row of it adds
    q(x, pi(x)) + 1{pi(x) = a} (r - q(x, a)) / p. Standard errors take tasks as clusters.

    Parameters
    ----------
    fitted : CrossFit
        Policies that were learned without each fold, as :func:`first_pass.fold_moments` splits the log for the same
        seed.
    batches : iterable of Batch
        The log, once more.
    features : FeatureMap
        Of the policy.
    propensity : callable
        Of a batch, the rows of its tasks, its logged actions and eligible ones: the probability with which each was
        logged, (n,).
    keys : Keys
        The tasks of the log.
    grid : sequence of float
    seed : int

    Raises
    ------
    InputError
        The grid is empty.
    """
    if not len(grid):
        raise InputError("The grid of pessimisms is empty. Give at least one number.")
    folded = [
        [Judge(LCBPolicy(policy.table, policy.features, pessimism=alpha), keys, features) for alpha in grid]
        for policy in fitted.policies
    ]
    total, base = Accumulator(len(grid)), None
    for batch in batches:
        base = float(batch.reward.mean()) if base is None else base  # a large offset would lose precision
        codes = features.action_codes(batch.action, first_row=batch.first_row)
        mask = eligible(features, batch, codes)
        place = np.asarray(keys.require(batch.task))
        chance = propensity(batch, place, codes, mask)
        fold = fold_of(batch, len(folded), seed)
        values = np.zeros((len(batch), len(grid)))
        for k, judges in enumerate(folded):
            of_fold = np.flatnonzero(fold == k)
            if not of_fold.size:
                continue
            tasks, context, task_rows = batch.task[of_fold], batch.context[of_fold], place[of_fold]
            allowed = None if mask is None else mask[of_fold]
            correction = (
                batch.reward[of_fold] - judges[0].predict(task_rows, context, codes[of_fold])
            ) / chance[of_fold]
            for j, judge in enumerate(judges):
                index = judge.choose(tasks, context, allowed)
                taken = index == codes[of_fold]
                values[of_fold, j] = judge.predict(task_rows, context, index) + np.where(
                    taken, correction, 0.0
                )
        total.add(batch.task, values - base, batch.reward, batch.weights.counts(len(batch)))
    choice = _chosen(np.asarray(grid, dtype=np.float64), total.moments())
    return replace(choice, value=choice.value + (base or 0.0))


def _chosen(grid: Array, moments: Moments) -> PessimismChoice:
    g = grid.size
    sums = np.asarray(moments.sums)
    task_sums = sums[:, packed_size(g + 1) :]  # sum w (c, r, 1) of each task
    weight = task_sums[:, g + 1]
    value = task_sums[:, :g].sum(axis=0) / weight.sum()
    best = int(first_largest(value))
    deviations = task_sums[:, :g] - task_sums[:, best : best + 1] - weight[:, None] * (value - value[best])
    m = len(deviations)
    if m >= 2:
        se = np.sqrt((deviations**2).sum(axis=0) * m / (m - 1)) / weight.sum()
    else:  # one task: by rows
        joint = unpack(sums.sum(axis=0), g + 2)[:g, :g]
        spread = np.diagonal(joint) - 2 * joint[best] + joint[best, best]
        se = np.sqrt(np.maximum(spread / weight.sum() - (value - value[best]) ** 2, 0.0) / weight.sum())
    near = value[best] - value <= se + ROUNDING * np.abs(value[best])
    return PessimismChoice(grid, value, se, float(grid[near].min()))
