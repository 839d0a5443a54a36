"""The verdict of a log on a policy's gain, and the comparison with the model's figure for the same policies."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from hieropo._utils.brief import brief
from hieropo.evaluation.parts.by_model import ValueSummary
from hieropo.evaluation.passes.first_pass import Overlap
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
        The doubly robust interval of the gain is above 0, includes 0, or is below 0. None where there is no trusted
        doubly robust estimate.
    reason : str or None
        Reason why there is no verdict.
    estimate : ValueEstimate or None
        The doubly robust estimate.
    model : ValueSummary or None
        By the model, the gain of the same policies that the estimate is of.
    agreement : {"agrees", "does not contradict", "contradicts"} or None
        The model's gain compared with the estimate; None where they cannot be compared.
    unlike : str or None
        Reason why they cannot be compared.
    """

    verdict: Verdict | None
    reason: str | None = None
    estimate: ValueEstimate | None = None
    model: ValueSummary | None = None
    agreement: Agreement | None = None
    unlike: str | None = None

    __repr__ = brief

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
    seen: Overlap,
    level: float,
) -> Claim:
    """Return the verdict of the log on the gain.

    Parameters
    ----------
    estimates : sequence of ValueEstimate
        With the reasons to withhold them.
    refused : str or None
        Reason why there are none.
    model : ValueSummary or None
        By the model, the gain of the policies that the estimates are of.
    seen : {"no", "yes", "partly"}
        Overlap of these rows with those that the model was learned from.
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
            "The model was learned from some of these rows and from others, while the importance-weighted estimates "
            "are of "
            "policies learned from these rows alone: the two gains are of different policies and are not compared."
        )
        return Claim(verdict, None, estimate, None, None, unlike)
    return Claim(verdict, None, estimate, model, agreement(estimate, model, level))


def _verdict(low: float, high: float) -> Verdict:
    return "shown" if low > 0 else "worse" if high < 0 else "not shown"


def agreement(estimate: ValueEstimate, model: ValueSummary, level: float) -> Agreement:
    """Compare the model's gain with the doubly robust gain of the same policies.

    They contradict each other where the distance is more than sqrt(h^2 + (z s)^2): h is the half of the estimate's
    interval that lies towards the model's figure, s the model's sd and z the normal quantile of the level. They agree
    where they do not contradict each other and both intervals exclude 0 on the same side.
    """
    distance = model.mean - estimate.gain
    half = estimate.gain_high - estimate.gain if distance > 0 else estimate.gain - estimate.gain_low
    if abs(distance) > float(np.hypot(half, NormalDist().inv_cdf((1 + level) / 2) * model.sd)):
        return "contradicts"
    weighted, by_model = _verdict(estimate.gain_low, estimate.gain_high), _verdict(model.low, model.high)
    return "agrees" if weighted == by_model != "not shown" else "does not contradict"


def withheld_notes(estimates: Sequence[Any]) -> list[str]:
    """Return a sentence for each reason why figures are not reliable, with the names of those that have it.

    Parameters
    ----------
    estimates : sequence of ValueEstimate or of Comparison
    """
    reasons = dict.fromkeys(one.withheld for one in estimates if one.withheld)
    names = {reason: ", ".join(one.name for one in estimates if one.withheld == reason) for reason in reasons}
    return [f"Withheld ({names[reason]}): {reason}." for reason in reasons]
