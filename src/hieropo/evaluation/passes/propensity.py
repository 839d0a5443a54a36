"""With which probability each row was logged: as written down, or as estimated."""

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
        Of a batch, the rows of its tasks, its logged actions and eligible ones, the probability with which each was
        logged, (n,).
    kind : {"logged", "estimated", "none"}
    refused : str or None
        Why there are none that could be used.
    findings : tuple of str
        What limits trust in them.
    """

    of: Propensity | None
    kind: Kind
    refused: str | None = None
    findings: tuple[str, ...] = ()


def _none(why: str) -> Propensities:
    return Propensities(None, "none", why)


def propensities_of(source: str, glance: FirstPass, seed: int) -> Propensities:
    """Return the propensities of a log.

    Parameters
    ----------
    source : {"auto", "logged", "estimated", "none"}
    glance : Survey
        The log at a glance.
    seed : int
        Of the folds.

    Raises
    ------
    InputError
        "logged", and there is no column of them.
    """
    if source == "none":
        return _none("It was not asked for.")
    if glance.estimated is not None and glance.moments.sampled:
        return _none(
            "Propensities are not estimated from rows that were kept by chance (sampling_weight), since how often "
            "actions were taken among them is not how often they were taken. Log propensities, and name pscore=."
        )
    if glance.estimated is not None:
        return _estimated(glance.estimated, seed)
    if glance.logged is None:
        raise InputError(
            "propensities='logged', and no column of propensities is named; name one, pscore='...'."
        )
    return _logged(glance.logged, always_one_action(glance.counts))


def _logged(check: PscoreCheck, alone: str | None) -> Propensities:
    if check.deterministic is not None:
        return _none(_without_chance(check.deterministic))
    also = () if alone is None else (f"Though propensities are below 1, {alone}.",)

    def of(batch: Batch, *_: object) -> Array:
        assert batch.pscore is not None
        return batch.pscore

    return Propensities(of, "logged", None, (*check.findings, *also))


def _estimated(model: LoggingModel, seed: int) -> Propensities:
    if model.deterministic is not None:
        return _none(_without_chance(model.deterministic))

    def of(batch: Batch, place: Codes, codes: Codes, mask: Mask | None) -> Array:
        fold = fold_of(batch.first_row, len(batch), FOLDS, seed)
        return model.taken(place, codes, batch.context, mask, fold=fold)

    return Propensities(of, "estimated", None, ("Propensities are estimates from this log.", *model.findings))


def _without_chance(why: str) -> str:
    return (
        f"{why[0].upper()}{why[1:]}. Without chance, no weight shows what other actions would have brought; the model "
        "can say it, as far as it is right."
    )
