"""Propensities of the rows of a log: logged or estimated."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from hieropo._utils.arrays import Array, Codes, Mask
from hieropo.errors import InputError
from hieropo.evaluation.passes.first_pass import FOLDS, FirstPass, fold_of
from hieropo.logging_policy.action_logit import always_one_action
from hieropo.logging_policy.logged_propensities import PscoreCheck
from hieropo.logging_policy.propensities import LoggingModel
from hieropo.rows.batches import Batch

Kind = Literal["logged", "estimated", "none"]


Propensity = Callable[[Batch, Codes, Codes, "Mask | None"], Array]


@dataclass(frozen=True, eq=False)
class Propensities:
    """Propensities of the rows of a log.

    Parameters
    ----------
    of : callable or None
        Takes a batch, the rows of its tasks, its logged actions and a mask of eligible ones, and returns the
        propensities (n,) of the logged actions.
    kind : {"logged", "estimated", "none"}
    refused : str or None
        Reason why there are none to use.
    findings : tuple of str
        Sentences about the limits of trust in them.
    """

    of: Propensity | None
    kind: Kind
    refused: str | None = None
    findings: tuple[str, ...] = ()


def _none(why: str) -> Propensities:
    return Propensities(None, "none", why)


def propensities_of(source: str, first: FirstPass, seed: int) -> Propensities:
    """Return the propensities of a log.

    Parameters
    ----------
    source : {"auto", "logged", "estimated", "none"}
    first : FirstPass
        Statistics of the log.
    seed : int
        Of the folds.

    Raises
    ------
    InputError
        ``source`` is "logged" and the log has no propensities.
    """
    if source == "none":
        return _none("Importance weighting was turned off (propensities='none').")
    if first.estimated is not None and first.moments.sampled:
        return _none(
            "Propensities cannot be estimated from a random sample of rows (sampling_weight): shares of actions in the "
            "sample are not those of the log. Log propensities, and name their column (pscore=)."
        )
    if first.estimated is not None:
        return _estimated(first.estimated, seed)
    if first.logged is None:
        raise InputError(
            "propensities='logged', but no column of propensities is named. Name it: pscore='...'."
        )
    return _logged(first.logged, always_one_action(first.counts))


def _logged(check: PscoreCheck, alone: str | None) -> Propensities:
    if check.deterministic is not None:
        return _none(_no_overlap(check.deterministic))
    contradiction = () if alone is None else (f"Though propensities are below 1, {alone}.",)

    def of(batch: Batch, *_: object) -> Array:
        assert batch.pscore is not None
        return batch.pscore

    return Propensities(of, "logged", None, (*check.findings, *contradiction))


def _estimated(model: LoggingModel, seed: int) -> Propensities:
    if model.deterministic is not None:
        return _none(_no_overlap(model.deterministic))

    def of(batch: Batch, place: Codes, codes: Codes, mask: Mask | None) -> Array:
        fold = fold_of(batch, FOLDS, seed)
        return model.taken(place, codes, batch.context, mask, fold=fold)

    return Propensities(of, "estimated", None, ("Propensities are estimated from this log.", *model.findings))


def _no_overlap(why: str) -> str:
    return (
        f"{why[0].upper()}{why[1:]}. There is no overlap: importance weighting cannot estimate the rewards of "
        "other actions, and only the model predicts them."
    )
