"""Randomisation tests of a log: no effect of actions; the same effect in all tasks."""

from dataclasses import dataclass

import numpy as np

from hieropo._utils.arrays import Array
from hieropo._utils.brief import brief
from hieropo._utils.text import Report
from hieropo.evaluation.passes.first_pass import FOLDS, NUMBERS, RowSample
from hieropo.evaluation.passes.propensity import Propensities
from hieropo.logging_policy.propensities import LoggedActions, LoggingModel
from hieropo.ope.randomisation import Rows, no_effect, tasks_alike

DRAWS, FEWER_DRAWS = 199, 99
_ROUNDING = 1e-6  # of a propensity


@dataclass(frozen=True, slots=True)
class RandomisationTests(Report):
    """P-values of two null hypotheses, by actions drawn anew; made by :func:`randomisation_tests`.

    Attributes
    ----------
    no_effect : float or None
        P-value of the null that actions have no effect on any reward; None where it cannot be tested.
    tasks_alike : float or None
        P-value of the null that actions have the same effect in all tasks; approximate, since that effect is estimated.
    draws : int
        B; no p-value is below 1 / (1 + B).
    rows : int
        Rows of the log that were used.
    exact : bool
        True where the p-value of no effect is exact if actions were drawn with the logged propensities.
    how : str
        Sentence about the redrawing of actions.
    refused : str or None
        Reason why there are no tests.
    """

    no_effect: float | None = None
    tasks_alike: float | None = None
    draws: int = 0
    rows: int = 0
    exact: bool = False
    how: str = ""
    refused: str | None = None

    __repr__ = brief


def randomisation_tests(
    sample: RowSample,
    propensities: Propensities,
    model: LoggingModel | None,
    *,
    n_actions: int,
    adaptive: bool,
    seed: int,
) -> RandomisationTests:
    """Run both randomisation tests on a log.

    Parameters
    ----------
    sample : RowSample
        Its rows, or a random sample of them.
    propensities : Propensities
    model : LoggingModel or None
        Model of estimated propensities; None for logged ones.
    n_actions : int
        K.
    adaptive : bool
        True where the user says that the incumbent learned from these rows.
    seed : int
    """
    if propensities.of is None:
        return RandomisationTests(refused=propensities.refused)
    rng = np.random.default_rng([seed, 1])
    n = sample.task.size
    numbers = n * (sample.context.shape[1] + 2)
    draws = DRAWS if numbers * DRAWS <= NUMBERS else FEWER_DRAWS
    exact, method, probabilities = _drawing(sample, model, n_actions, rng)
    task = np.unique(sample.task, return_inverse=True)[1]
    stratum = sample.stratum if probabilities is None else task
    rows = Rows(task, sample.action, stratum, sample.reward, sample.context, sample.weight, probabilities)
    if adaptive:
        exact, method = (
            False,
            f"{method} The incumbent learned from these rows, and a draw does not reproduce that.",
        )
    return RandomisationTests(
        no_effect(rows, draws, rng), tasks_alike(rows, draws, rng), draws, n, exact, method,
    )  # fmt: skip


def _drawing(
    sample: RowSample, model: LoggingModel | None, n_actions: int, rng: np.random.Generator
) -> tuple[bool, str, Array | None]:
    """Return True for exact draws, a sentence about them, and propensities (n, K), or None within strata."""
    restriction = "" if sample.eligible is None else " with the same eligible actions"
    within = f"Actions are permuted among the rows of a task{restriction}"
    if model is None:
        if _constant(sample):
            return True, f"{within}, which have the same logged propensities.", None
        rows = LoggedActions(n_actions, rng=rng, columns=sample.context.shape[1], folds=FOLDS)
        rows.add(sample.task, sample.action, sample.context, sample.eligible, fold=sample.fold)
        model = rows.learn()
        text = (
            "Each row redraws its action by estimated propensities: the logged ones differ between rows of a task, and "
            "are known for the logged action only."
        )
    elif model.logit is None:
        return False, f"{within}: propensities are estimated, the same in all rows of a task.", None
    else:
        text = "Each row redraws its action by estimated propensities."
    chance = model.probabilities(sample.task, sample.context if model.columns else None, sample.eligible)
    return False, text, chance


def _constant(sample: RowSample) -> bool:
    """Return True where each action has one propensity in each stratum, and these add to at most 1."""
    stratum = sample.stratum
    order = np.lexsort([sample.action, stratum])
    ordered_stratum, action, chance = stratum[order], sample.action[order], sample.pscore[order]
    cells = np.flatnonzero(
        np.concatenate([[True], (ordered_stratum[1:] != ordered_stratum[:-1]) | (action[1:] != action[:-1])])
    )
    low, high = np.minimum.reduceat(chance, cells), np.maximum.reduceat(chance, cells)
    total = np.bincount(ordered_stratum[cells], high)
    return bool((high - low <= _ROUNDING).all() and (total <= 1.0 + _ROUNDING).all())
