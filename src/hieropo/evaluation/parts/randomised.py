"""Randomisation tests of a log: whether actions have an effect, and whether it is the same in all tasks."""

from dataclasses import dataclass

import numpy as np

from hieropo._utils.arrays import Array
from hieropo._utils.text import Report
from hieropo.evaluation.passes.first_pass import FOLDS, NUMBERS, Kept
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
        That actions have no effect on any reward. None where the log cannot tell.
    tasks_alike : float or None
        That actions have the same effect in all tasks. It is approximate, since that effect is estimated.
    draws : int
        B; no p-value is below 1 / (1 + B).
    rows : int
        Rows of the log that were used.
    exact : bool
        Whether the p-value of no effect is exact where chance drew the actions by the logged propensities.
    how : str
        How actions were drawn, in words.
    refused : str or None
        Why there are no tests.
    """

    no_effect: float | None = None
    tasks_alike: float | None = None
    draws: int = 0
    rows: int = 0
    exact: bool = False
    how: str = ""
    refused: str | None = None


def randomisation_tests(
    kept: Kept,
    chances: Propensities,
    model: LoggingModel | None,
    *,
    n_actions: int,
    adaptive: bool,
    seed: int,
) -> RandomisationTests:
    """Test a log.

    Parameters
    ----------
    kept : Kept
        Its rows, or some of them.
    chances : Propensities
    model : LoggingModel or None
        Propensities as estimated, where they were.
    n_actions : int
        K.
    adaptive : bool
        Whether the incumbent is said to have learned from these rows.
    seed : int
    """
    if chances.of is None:
        return RandomisationTests(refused=chances.refused)
    rng = np.random.default_rng([seed, 1])
    n = kept.place.size
    numbers = n * (kept.context.shape[1] + 2)
    draws = DRAWS if numbers * DRAWS <= NUMBERS else FEWER_DRAWS
    exact, how, chance = _drawing(kept, model, n_actions, rng)
    place = np.unique(kept.place, return_inverse=True)[1]
    stratum = kept.stratum if chance is None else place
    rows = Rows(place, kept.action, stratum, kept.reward, kept.context, kept.weight, chance)
    if adaptive:
        exact, how = False, f"{how} The incumbent learned from these rows, which a draw does not repeat."
    return RandomisationTests(
        no_effect(rows, draws, rng), tasks_alike(rows, draws, rng), draws, n, exact, how,
    )  # fmt: skip


def _drawing(
    kept: Kept, model: LoggingModel | None, n_actions: int, rng: np.random.Generator
) -> tuple[bool, str, Array | None]:
    """Say whether draws are exact, how they are made, and by which chances (n, K); None within strata."""
    lists = "" if kept.eligible is None else " with the same eligible actions"
    within = f"Actions change places among the rows of a task{lists}"
    if model is None:
        if _constant(kept):
            return True, f"{within}, which have the same logged propensities.", None
        rows = LoggedActions(n_actions, rng=rng, columns=kept.context.shape[1], folds=FOLDS)
        rows.add(kept.place, kept.action, kept.context, kept.eligible, fold=kept.fold)
        model = rows.learn()
        text = (
            "Each row draws its action by estimated propensities: logged ones differ between rows of a task, and a log "
            "has that of the action taken alone."
        )
    elif model.logit is None:
        return False, f"{within}: propensities are estimated, the same in all rows of a task.", None
    else:
        text = "Each row draws its action by estimated propensities."
    chance = model.probabilities(kept.place, kept.context if model.columns else None, kept.eligible)
    return False, text, chance


def _constant(kept: Kept) -> bool:
    """Say whether all rows of a stratum can have the same propensities: one for each action, which add to at most 1."""
    stratum = kept.stratum
    order = np.lexsort([kept.action, stratum])
    own, action, chance = stratum[order], kept.action[order], kept.pscore[order]
    cells = np.flatnonzero(np.concatenate([[True], (own[1:] != own[:-1]) | (action[1:] != action[:-1])]))
    low, high = np.minimum.reduceat(chance, cells), np.maximum.reduceat(chance, cells)
    total = np.bincount(own[cells], high)
    return bool((high - low <= _ROUNDING).all() and (total <= 1.0 + _ROUNDING).all())
