"""Drift of a fit in words."""

import numpy as np

from hieropo.estimation.crossed.action_walks import CLEAR
from hieropo.estimation.crossed.drift import Drift, Still

_AVERAGES = "The fit averages over drift and none by this probability."
_MULTIPLIES = "The fit multiplies the rate of this drift by its probability."


def drift_note(drift: Drift | None, because: Still, time: str | None) -> str:
    """Return sentences on how fast coefficients drift, or why they are taken as constant although times are named."""
    if drift is None:
        reason = _STILL.get(because)
        return "" if reason is None else f"Coefficients are taken as constant in time: {reason}"
    if not drift.present:
        return "The log does not show that coefficients drift in time."
    texts = []
    if drift.kappa > 0.0:
        half, low, high = (
            _duration(age, drift.unit) for age in (drift.half_life, drift.shortest, drift.longest)
        )
        of_column = "" if drift.unit else f" in units of column {time!r}"
        doubtful = drift.log_odds <= CLEAR
        evidence = _walk("Effects of actions in single tasks", drift.log_odds, _AVERAGES)
        texts.append(
            f"{evidence} {'If they drift, in' if doubtful else 'In'} a task and action with a "
            f"typical number of rows, a row counts half at an age of {half} (95 % interval: {low} to "
            f"{high}){of_column}. Coefficients and choices are those at the end of the log, and intervals contain the "
            "uncertainty of the rate."
        )
    if drift.zeta > 0.0:
        texts.append(
            f"{_walk('Effects of actions in all tasks alike', drift.action_log_odds)} Their "
            f"changes over the log have a standard deviation of {drift.action_sd:.2g} times that of the noise. "
            "Coefficients and choices are those at the end of the log, and intervals contain the error of this drift."
        )
    if drift.eta > 0.0:
        texts.append(
            f"{_walk('Levels of tasks', drift.level_log_odds)} This drift is subtracted from the rewards. Intervals of "
            "gains remain valid; those of the value of a policy are too narrow."
        )
    if not texts:
        texts.append("The log does not show that coefficients drift in time.")
    if any(drift.in_common):
        texts.append(in_common_note(drift))
    return " ".join(texts)


def in_common_note(drift: Drift) -> str:
    """Return sentences on rows that are close in time and have alike rewards."""
    rows, share = "a task and action", drift.shared
    if drift.level_shared > 0.0:
        rows, share = "a task", drift.level_shared
    return (
        f"Rows of {rows} that are close in time have alike rewards (correlation {share / (1 + share):.2f}), more than "
        "drift explains. Rows of one visit, session or day often do. The fit counts such rows as fewer rows. If a "
        "column names the visit, session or day, name it by cluster=."
    )


def _walk(coefficients: str, log_odds: float, doubtful: str = _MULTIPLIES) -> str:
    """Return a sentence on the evidence that coefficients drift, and where it is doubtful one on its use."""
    if log_odds > CLEAR:
        return f"{coefficients} drift in time (log Bayes factor {log_odds:.1f})."
    probability = 1 / (1 + np.exp(-log_odds))
    return f"{coefficients} may drift in time (probability {probability:.2f}). {doubtful}"


_STILL = {
    "prior": "drift is learned under the crossed prior only.",
    "choices": "the choices of the incumbent are used as evidence, which the model of drift does not allow for.",
    "groups": "tasks have groups or metadata, which the model of drift does not allow for.",
    "clusters": "rows form clusters, which the model of drift does not allow for.",
    "likelihood": "the likelihood is not Gaussian, and the model of drift is for a Gaussian one.",
    "precision": "rows have precisions, which the model of drift does not allow for.",
    "moments": "moments hold no times.",
    "times": "the log has too few different times, or too many tasks, actions and columns for sums by period.",
}
_DURATIONS = (
    ("weeks", 604_800.0), ("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0), ("seconds", 1.0),
)  # fmt: skip
_SECONDS = {"D": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def _duration(age: float, unit: str) -> str:
    """Return an age in the unit of a column of times as text, such as "3.1 weeks"."""
    if not unit:
        return f"{age:.3g}"
    seconds = age * _SECONDS[unit]
    name, size = next((one for one in _DURATIONS if seconds >= 2.0 * one[1]), _DURATIONS[-1])
    return f"{seconds / size:.3g} {name}"
