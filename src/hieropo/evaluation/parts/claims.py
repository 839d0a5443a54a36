"""The verdict of a log on a policy's gain, and the comparison with the model's figure for the same policies."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from hieropo.evaluation.parts.by_model import ValueSummary
from hieropo.evaluation.passes.first_pass import Seen
from hieropo.ope.value_estimates import ValueEstimate

Verdict = Literal["shown", "not shown", "worse"]
Agreement = Literal["agrees", "does not contradict", "contradicts"]

BY_CHANCE = ("DR", "IPS")  # IPS is DR without predictions, where the model predicts 0 everywhere


@dataclass(frozen=True, slots=True)
class Claim:
    """Verdict of a log on the gain, with the estimate that it rests on; made by :func:`claim`.

    Attributes
    ----------
    verdict : {"shown", "not shown", "worse"} or None
        The doubly robust interval of the gain is above 0, holds 0, or is below 0. None where there is no weighted
        estimate that can be trusted: then the log shows nothing.
    reason : str or None
        Why there is none.
    estimate : ValueEstimate or None
        The doubly robust estimate.
    model : Worth or None
        By the model, the gain of the same policies that the estimate is of.
    agreement : {"agrees", "does not contradict", "contradicts"} or None
        The model's figure beside the estimate; None where they cannot be compared.
    unlike : str or None
        Why they cannot be compared.
    """

    verdict: Verdict | None
    reason: str | None = None
    estimate: ValueEstimate | None = None
    model: ValueSummary | None = None
    agreement: Agreement | None = None
    unlike: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON's types."""
        estimate, model = self.estimate, self.model
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "by": None if estimate is None else estimate.name,
            "gain": None if estimate is None else estimate.gain,
            "gain_se": None if estimate is None else estimate.gain_se,
            "low": None if estimate is None else estimate.gain_low,
            "high": None if estimate is None else estimate.gain_high,
            "model_of_the_same_policies": None if model is None else model.to_dict(),
            "agreement": self.agreement,
            "not_compared": self.unlike,
        }


def claim(
    estimates: Sequence[ValueEstimate],
    refused: str | None,
    model: ValueSummary | None,
    seen: Seen,
    level: float,
) -> Claim:
    """Return what the log shows of the gain.

    Parameters
    ----------
    estimates : sequence of ValueEstimate
        Before those that cannot be trusted are shown all the same.
    refused : str or None
        Why there are none.
    model : Worth or None
        By the model, the gain of the policies that the estimates are of.
    seen : {"no", "yes", "partly"}
        Whether the model was learned from these rows.
    level : float
        Of the intervals.
    """
    estimate = next((e for name in BY_CHANCE for e in estimates if e.name == name), None)
    if estimate is None:
        return Claim(None, refused or "There is no doubly robust estimate.")
    if estimate.withheld is not None:
        return Claim(None, f"The doubly robust estimate is withheld: {estimate.withheld}.")
    verdict = _verdict(estimate.gain_low, estimate.gain_high)
    if seen == "partly" or model is None:
        unlike = (
            "The model was learned from some of these rows and from others, and weighted rewards judge policies that "
            "were learned from these rows alone: the two are figures of unlike policies and are not compared."
        )
        return Claim(verdict, None, estimate, None, None, unlike)
    return Claim(verdict, None, estimate, model, agreement(estimate, model, level))


def _verdict(low: float, high: float) -> Verdict:
    return "shown" if low > 0 else "worse" if high < 0 else "not shown"


def agreement(estimate: ValueEstimate, model: ValueSummary, level: float) -> Agreement:
    """Compare the model's gain with the doubly robust gain of the same policies.

    They contradict each other where the distance is more than sqrt(h^2 + (z s)^2): h is the half of the estimate's
    interval that lies towards the model's figure, s the model's sd and z the normal quantile of the level. They agree
    where they do not contradict each other and both intervals leave out 0 on the same side.
    """
    away = model.mean - estimate.gain
    half = estimate.gain_high - estimate.gain if away > 0 else estimate.gain - estimate.gain_low
    if abs(away) > float(np.hypot(half, NormalDist().inv_cdf((1 + level) / 2) * model.sd)):
        return "contradicts"
    weighted, own = _verdict(estimate.gain_low, estimate.gain_high), _verdict(model.low, model.high)
    return "agrees" if weighted == own != "not shown" else "does not contradict"
