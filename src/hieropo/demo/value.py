"""Values of policies on held-out rows with their standard errors, and sentences about them.

With w = 1{action = the policy's} / propensity, the self-normalised estimate and the influence of each row on
its error are::

    V = sum w r / sum w        influence of a row = w (r - V) / sum w

The standard error of an estimate, of a difference of two, and of their average over splits is the root of the
sum of squared influences, averaged first over the splits in which the row was held out. So it does not shrink
with the number of splits. The fitted policies are taken as fixed.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo.demo.log import Scenario
from hieropo.errors import InputError
from hieropo.evaluation.parts.claims import Verdict

SIGNIFICANT = 1.96  # standard errors: a two-sided test at 5 %
ENOUGH_TASKS = 30  # below, a standard error over tasks is too uncertain
ENOUGH_EVENTS = 10  # matched rewards other than zero; below, a normal interval is not reliable


@dataclass(frozen=True, eq=False)
class Estimate:
    """A value with its influence values (n,), one for each row of the log; in reward units."""

    value: float
    influence: Array

    def __sub__(self, other: "Estimate") -> "Estimate":
        return Estimate(self.value - other.value, self.influence - other.influence)

    @property
    def se(self) -> float:
        """Return the standard error over rows, for the same tasks."""
        return float(np.sqrt(self.influence @ self.influence))

    def se_over(self, codes: Codes) -> float:
        """Return the standard error clustered by the groups ``codes`` (n,)."""
        sums = np.bincount(codes, weights=self.influence)
        return float(np.sqrt(sums @ sums))

    @staticmethod
    def average(estimates: Sequence["Estimate"]) -> "Estimate":
        """Return the mean of estimates from the same log."""
        value = float(np.mean([estimate.value for estimate in estimates]))
        return Estimate(value, np.mean([estimate.influence for estimate in estimates], axis=0))


def snips(reward: Array, weight: Array) -> Estimate:
    """Return the self-normalised importance-weighted mean (SNIPS) of rewards (n,).

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
    """The comparison of a policy with another one.

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
        """Return the larger of the standard errors of the difference."""
        return max(self.se, self.se_over_tasks or 0.0)

    @property
    def enough(self) -> bool:
        """Return True where there are enough events for a reliable standard error."""
        return self.events >= ENOUGH_EVENTS

    @property
    def shown(self) -> bool:
        """Return True where the difference is significant at the 5 % level."""
        return self.enough and abs(self.difference) > SIGNIFICANT * self.widest


def judge(name: str, value: Estimate, reference: Estimate, tasks: Codes, events: float) -> Judgement:
    """Return the comparison of two estimates from the same log, with rows of the ``tasks`` (n,)."""
    difference = value - reference
    enough_tasks = int(tasks.max()) + 1 >= ENOUGH_TASKS
    over_tasks = difference.se_over(tasks) if enough_tasks else None
    return Judgement(name, value.value, value.se, difference.value, difference.se, over_tasks, events)


@dataclass(frozen=True)
class Findings:
    """Every policy against the incumbent, and the first one (HierOPO) against the others.

    Parameters
    ----------
    scenario : Scenario
    rows, tasks, splits, seed : int
    incumbent, incumbent_se : float
        Value on held-out rows, and its standard error over rows.
    policies : tuple of Judgement
        Against the incumbent; HierOPO first.
    rivals : tuple of Judgement
        HierOPO's difference to each of the others, named by the other.
    """

    scenario: Scenario
    rows: int
    tasks: int
    splits: int
    seed: int
    incumbent: float
    incumbent_se: float
    policies: tuple[Judgement, ...]
    rivals: tuple[Judgement, ...]

    @property
    def verdict(self) -> Verdict | None:
        """Return the verdict on the gain of the first policy, as in an evaluation; None with too few events."""
        first = self.policies[0]
        if not first.enough:
            return None
        if not first.shown:
            return "not shown"
        return "shown" if first.difference > 0 else "worse"

    def sentences(self) -> list[str]:
        """Return sentences on the significant and the other differences: to the incumbent, then to other policies."""
        sentences = [self._against_incumbent()]
        name, reliable = self.policies[0].name, [rival for rival in self.rivals if rival.enough]
        for word, sign in (("larger", 1), ("smaller", -1)):
            shown = [rival for rival in reliable if rival.shown and sign * rival.difference > 0]
            if shown:
                sentences.append(f"It shows a {word} value of {name} than of {_listed(shown)}.")
        not_shown = [rival for rival in self.rivals if not rival.shown]
        if not_shown:
            sentences.append(
                f"It does not show a difference in value between {name} and {_listed(not_shown)}."
            )
        return sentences

    def _against_incumbent(self) -> str:
        first, other = self.policies[0], self.scenario.incumbent
        if self.verdict is None:
            events = [policy.events for policy in self.policies]
            return (
                f"The log gives no verdict on the gain of {first.name} over {other}: of the held-out rows with the "
                f"action that a policy chooses, only {min(events):.1f} to {max(events):.1f} in a split have a reward "
                "other than zero."
            )
        claim = {
            "shown": f"The log shows a gain of {first.name} over {other}",
            "not shown": f"The log does not show a gain of {first.name} over {other}, nor a loss",
            "worse": f"The log shows {first.name} to be worse than {other}",
        }[self.verdict]
        digits, half = decimals(first.widest), SIGNIFICANT * first.widest
        low, high = first.difference - half, first.difference + half
        return f"{claim}: {first.difference:+.{digits}f} (95 % interval {low:+.{digits}f} to {high:+.{digits}f})."

    def to_dict(self) -> dict[str, Any]:
        """Return all results as types of JSON."""
        return {
            "data": self.scenario.name,
            "rows": self.rows,
            "tasks": self.tasks,
            "splits": self.splits,
            "seed": self.seed,
            "unit": self.scenario.unit,
            "incumbent": {
                "name": self.scenario.incumbent, "value": self.incumbent, "value_se": self.incumbent_se
            },
            "policies": [_to_dict(policy) for policy in self.policies],
            "hieropo_less_other": [_to_dict(rival, "value", "value_se") for rival in self.rivals],
            "verdict": self.verdict,
            "sentences": self.sentences(),
            "not_covered": list(self.scenario.notes),
        }  # fmt: skip


def _to_dict(judgement: Judgement, *left_out: str) -> dict[str, Any]:
    fields = {name: value for name, value in asdict(judgement).items() if name not in left_out}
    return {**fields, "shown": judgement.shown}


def _listed(judgements: Sequence[Judgement]) -> str:
    texts = [_with_numbers(judgement) for judgement in judgements]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def _with_numbers(judgement: Judgement) -> str:
    digits = decimals(judgement.widest)
    numbers = f"{judgement.difference:+.{digits}f}, standard error {judgement.widest:.{digits}f}"
    return f"{judgement.name} ({numbers})"


def decimals(se: float) -> int:
    """Return the number of decimals that show two digits of a standard error."""
    return max(0, 1 - math.floor(math.log10(se))) if se > 0 else 4
