"""What a policy is worth on held-out rows, and how sure that is.

With w = 1{action = the policy's} / propensity, the self-normalised estimate and what each row contributes to
its error are::

    V = sum w r / sum w        influence of a row = w (r - V) / sum w

The standard error of an estimate, of a difference of two, and of their average over splits is the root of the
sum of squared influences, averaged first over the splits in which the row was held out. So it does not shrink
with the number of splits. It takes the fitted policies as given.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hieropo.core.arrays import Array, Codes
from hieropo.errors import InputError

SIGNIFICANT = 1.96  # standard errors: a two-sided test at 5 %
ENOUGH_TASKS = 30  # below, a standard error over tasks says little
ENOUGH_EVENTS = 10  # matched rewards other than zero; below, a normal interval is not to be trusted


@dataclass(frozen=True, eq=False)
class Estimate:
    """A value, and what each of the n rows of the log contributes to its error, (n,); in reward units."""

    value: float
    influence: Array

    def __sub__(self, other: "Estimate") -> "Estimate":
        return Estimate(self.value - other.value, self.influence - other.influence)

    @property
    def se(self) -> float:
        """Standard error for other rows of the same tasks."""
        return float(np.sqrt(self.influence @ self.influence))

    def se_over(self, codes: Codes) -> float:
        """Standard error for other groups of rows of the same population; ``codes`` (n,) name the groups."""
        sums = np.bincount(codes, weights=self.influence)
        return float(np.sqrt(sums @ sums))

    @staticmethod
    def average(estimates: Sequence["Estimate"]) -> "Estimate":
        """Mean of estimates made from the same log."""
        value = float(np.mean([each.value for each in estimates]))
        return Estimate(value, np.mean([each.influence for each in estimates], axis=0))


def snips(reward: Array, weight: Array) -> Estimate:
    """Self-normalised weighted mean of rewards (n,); a weight of zero leaves a row out.

    Raises
    ------
    InputError
        All weights are zero.
    """
    total = float(weight.sum())
    if total <= 0:
        raise InputError(
            "No held-out row has the action that the policy would choose, so its value cannot be estimated. "
            "More rows are needed, or fewer actions."
        )
    value = float(weight @ reward) / total
    return Estimate(value, weight * (reward - value) / total)


@dataclass(frozen=True)
class Judgement:
    """A policy compared with another one.

    Parameters
    ----------
    name : str
    value, value_se : float
        Value of the policy, and its standard error over rows.
    difference, se : float
        Value less that of the other one, and its standard error over rows.
    se_over_tasks : float or None
        Standard error of the difference over tasks; None where there are fewer than 30.
    events : float
        Held-out rows of a split that match the policy's choice and have a reward other than zero, on average.
    """

    name: str
    value: float
    value_se: float
    difference: float
    se: float
    se_over_tasks: float | None
    events: float

    @property
    def widest(self) -> float:
        """The larger of the standard errors of the difference."""
        return max(self.se, self.se_over_tasks or 0.0)

    @property
    def enough(self) -> bool:
        """Whether there are enough events for the standard error to mean something."""
        return self.events >= ENOUGH_EVENTS

    @property
    def shown(self) -> bool:
        """Whether the difference is told from zero at the 5 % level."""
        return self.enough and abs(self.difference) > SIGNIFICANT * self.widest


def judge(name: str, value: Estimate, other: Estimate, tasks: Codes, events: float) -> Judgement:
    """Compare two estimates made from the same log, whose rows belong to ``tasks`` (n,)."""
    difference = value - other
    many = int(tasks.max()) + 1 >= ENOUGH_TASKS
    over_tasks = difference.se_over(tasks) if many else None
    return Judgement(name, value.value, value.se, difference.value, difference.se, over_tasks, events)
