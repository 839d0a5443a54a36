"""The whole way of the data on a log that ships with the package: split, fit, judge, decide, leave behind.

Value of a policy on held-out rows, with w = 1{action = policy's} / propensity (the self-normalised estimate):

    V = sum w r / sum w        influence of a row = w (r - V) / sum w

The standard error of an estimate, of a difference of two, and of their average over splits is the root of the
sum of the squared influences, summed first over the splits in which a row was held out. So it does not shrink
with the number of splits. It takes the fitted policies as given.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo.core.gaussian import Gaussian
from hieropo.core.hierarchy import Hierarchy
from hieropo.core.keys import Keys
from hieropo.core.policy import LCBPolicy
from hieropo.core.posterior import condition
from hieropo.errors import InputError
from hieropo.learners import FlatOPO, HierOPO, PooledOPO
from hieropo.sources import Roles, open_log
from hieropo.sources.decisions import decide, write_tables

Array = NDArray[np.float64]
Codes = NDArray[np.int64]
Mask = NDArray[np.bool_]
Learner = Callable[[], HierOPO]

SIGNIFICANT = 1.96  # standard errors: a two-sided test at 5 %
ENOUGH_TASKS = 30  # below, a standard error over tasks says little
ENOUGH_EVENTS = 10  # below so many matched rewards other than zero a normal interval is not to be trusted


@dataclass(frozen=True)
class Estimate:
    """A value and what each of the n rows of the log contributed to its error."""

    value: float
    influence: Array

    def __sub__(self, other: "Estimate") -> "Estimate":
        return Estimate(self.value - other.value, self.influence - other.influence)

    @cached_property
    def se(self) -> float:
        """Standard error over rows: these tasks, other rows."""
        return float(np.sqrt(self.influence @ self.influence))

    def se_over(self, codes: Codes) -> float:
        """Standard error over groups of rows, ``codes`` (n,): other groups from the same population."""
        sums = np.bincount(codes, weights=self.influence)
        return float(np.sqrt(sums @ sums))

    @staticmethod
    def average(estimates: Iterable["Estimate"]) -> "Estimate":
        """Mean of estimates made from the same rows."""
        found = list(estimates)
        influence = sum((each.influence for each in found), np.zeros_like(found[0].influence))
        return Estimate(float(np.mean([each.value for each in found])), influence / len(found))


def snips(reward: Array, weight: Array) -> Estimate:
    """Self-normalised importance-weighted mean of rewards (n,), weights (n,) zero where a row does not count.

    Raises
    ------
    InputError
        All weights are zero.
    """
    total = weight.sum()
    if not total > 0:
        raise InputError(
            "No held-out row has an action that the policy would choose, so its value cannot be estimated. "
            "Use fewer actions or more rows."
        )
    value = float(weight @ reward / total)
    return Estimate(value, weight * (reward - value) / total)


@dataclass(frozen=True)
class Scenario:
    """What a shipped log is about, and the roles of its columns.

    ``judge`` and ``incumbent`` are (column, value) pairs that say on which rows policies are judged, and which
    rows the incumbent made; None is all of them.
    """

    name: str
    about: str
    roles: Roles
    learners: tuple[tuple[str, Learner], ...]
    incumbent_name: str
    unit: str
    notes: tuple[str, ...]
    judge: tuple[str, str] | None = None
    incumbent: tuple[str, str] | None = None
    eligible: Callable[[Any, Any], bool] | None = None


LEARNERS: tuple[tuple[str, Learner], ...] = (
    ("HierOPO", HierOPO),
    ("FlatOPO", FlatOPO),
    ("PooledOPO", PooledOPO),
)
SCENARIOS = {
    "thornton": Scenario(
        name="thornton",
        about="a cash incentive drawn at random for collecting one's HIV test result, rural Malawi (Thornton 2008)",
        roles=Roles("villnum", "incentive", "reward", "pscore", context=("age", "distvct")),
        learners=(*LEARNERS, ("one action for all", lambda: PooledOPO("indicator", pessimism=0.0))),
        incumbent_name="incentives as drawn",
        unit="share that collects, less 0.08 a dollar of incentive",
        notes=(
            "propensities are the shares of the four incentives in the whole log; they differ somewhat between "
            "villages, which these estimates ignore",
            "the 0.08 and the cuts between incentives are choices of this demonstration",
        ),
    ),
    "obd": Scenario(
        name="obd",
        about="fashion items recommended in three places of three campaigns, ZOZOTOWN (Open Bandit Dataset, sample)",
        roles=Roles("task", "item", "click", "propensity"),
        learners=LEARNERS,
        incumbent_name="Thompson sampling as logged",
        unit="clicks an impression",
        notes=(
            "policies learn from the random and the Thompson sampling log, and are judged on the random one, "
            "whose propensities are 1 / 80, 1 / 34 and 1 / 46",
        ),
        judge=("behavior_policy", "random"),
        incumbent=("behavior_policy", "bts"),
        eligible=lambda task, item: str(task).partition("-")[0] == str(item).partition("-")[0],
    ),
}


@dataclass(frozen=True)
class Judgement:
    """One policy against another: the difference, its standard errors, and whether the log shows it.

    ``events`` is the number of matched held-out rows of a split with a reward other than zero, on average.
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
        """The larger of the two standard errors of the difference."""
        return max(self.se, self.se_over_tasks or 0.0)

    @property
    def shown(self) -> bool:
        """Whether the difference is told from zero at the 5 % level, with enough events to say so."""
        return self.events >= ENOUGH_EVENTS and abs(self.difference) > SIGNIFICANT * self.widest


@dataclass(frozen=True)
class Findings:
    """What the splits say: the incumbent's value, every policy against it, HierOPO against the others."""

    scenario: Scenario
    rows: int
    tasks: int
    splits: int
    seed: int
    incumbent: float
    incumbent_se: float
    policies: tuple[Judgement, ...]
    rivals: tuple[Judgement, ...]

    def sentences(self) -> list[str]:
        """What is and what is not shown, from the numbers alone."""
        first = self.policies[0]
        against = f"against {self.scenario.incumbent_name}"
        gain = f"{first.difference:+.2g} (standard error {first.widest:.2g})"
        if first.shown:
            worth = "more" if first.difference > 0 else "less"
            opening = f"Shown: {first.name} is worth {worth} than {self.scenario.incumbent_name}, by {gain}."
        else:
            opening = f"Not shown: that {first.name} is worth more or less {against}; {gain}{_few(first)}."
        others = [policy for policy in self.policies[1:] if policy.shown]
        if not first.shown and not others:
            opening += " Nor is that of any other policy: this log cannot tell any of them from the incumbent."
        return [opening, *self._sharing()]

    def _sharing(self) -> list[str]:
        shown = [rival for rival in self.rivals if rival.shown]
        open_ones = [rival for rival in self.rivals if not rival.shown]
        found = [f"Shown: HierOPO is worth {_signed(rival)} than {rival.name}." for rival in shown]
        if open_ones:
            listed = ", ".join(f"{rival.name} ({_number(rival)})" for rival in open_ones)
            found.append(f"Not shown: that HierOPO is better or worse than {listed}.")
        return found


def _number(judgement: Judgement) -> str:
    return f"{judgement.difference:+.2g}, standard error {judgement.widest:.2g}"


def _signed(judgement: Judgement) -> str:
    return f"{'more' if judgement.difference > 0 else 'less'} (by {_number(judgement)})"


def _few(judgement: Judgement) -> str:
    if judgement.events >= ENOUGH_EVENTS:
        return ""
    return f", from only {judgement.events:.1f} held-out rewards other than zero that match its choices"
