"""Tests of the incumbent of a log: knowledge about the tasks, and adaptation to these rows."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Codes
from hieropo.doctor.rules.incumbent import DIFFERS
from hieropo.doctor.statistics.times import Times
from hieropo.evaluation.passes.judging import Predictions, Rows
from hieropo.evaluation.passes.subject import Subject
from hieropo.logging_policy.cell_tests import difference
from hieropo.logging_policy.incumbents import KNEW, Reactions, crossed_knowledge, knowledge

_REACTED = 3.5  # standard errors
_MAX_RATIO = 2.0  # of the noise sd of these rows to that of the fit
_MIN_ROWS = 50  # effective, for an estimate of the noise sd


class Reacted(NamedTuple):
    """Result of the test that actions react to earlier rewards.

    Parameters
    ----------
    z : float or None
        Approximately standard normal if they do not; None where the order of rows may differ from that of time.
    no_order : str
        Reason why the order is unknown.
    """

    z: float | None
    no_order: str = ""


class Reacting:
    """Pass the rows, in their order, to the test that actions react to earlier rewards.

    Parameters
    ----------
    counts : (m, K) int
        Rows of each action in each task.
    predictions : Predictions
        Predictions of the rewards.
    """

    def __init__(self, counts: Codes, predictions: Predictions) -> None:
        self._reactions, self._predictions, self._tasks = Reactions(counts), predictions, len(counts)
        self._times = Times()
        self._rows, self._kish, self._sum, self._squares = 0.0, 0.0, 0.0, 0.0

    def add(self, rows: Rows) -> None:
        """Add rows."""
        expected = self._predictions.of(rows.place, rows.batch.context, rows.codes)
        residual = rows.batch.reward - expected
        if rows.batch.time is not None:
            self._times.add(_numbers(rows.batch.time), rows.place, residual, self._tasks)
            self._reactions.add(rows.place, rows.codes, residual)
        counts = rows.batch.weights.counts(residual.size)
        self._rows += float(counts.sum())
        self._kish += float(counts @ counts)
        self._sum += float(counts @ residual)
        self._squares += float(counts @ (residual * residual))

    def reacted(self) -> Reacted:
        """Return the test of all rows so far."""
        timeline = self._times.timeline()
        no_order = "no time column is named" if timeline is None else timeline.disorder()
        return Reacted(self._reactions.reaction().z) if no_order is None else Reacted(None, no_order)

    def misfit(self, noise_sd: float, sd: float) -> str | None:
        """Return a finding where rewards are on another scale than those that the policy was learned from.

        Parameters
        ----------
        noise_sd : float
            Of a reward, as learned.
        sd : float
            Of the mean of all predictions, given what was learned.
        """
        mean, effective = self._sum / self._rows, self._rows**2 / self._kish
        residual_sd = max(self._squares / self._rows - mean**2, 0.0) ** 0.5
        if abs(mean) > 6 * (sd**2 + max(residual_sd, noise_sd) ** 2 / effective) ** 0.5 + 0.1 * noise_sd:
            return (
                f"The mean reward differs from its prediction by {mean:+.4g}. Are rewards in another unit, or have "
                "they changed over time? The model describes the rewards that it was learned from."
            )
        if effective >= _MIN_ROWS and not noise_sd / _MAX_RATIO < residual_sd < _MAX_RATIO * noise_sd:
            return (
                f"The residual sd of rewards is {residual_sd:.4g}, and was {noise_sd:.4g} in the rows that the model "
                "was learned from. Are rewards in another unit?"
            )
        return None


def _numbers(time: NDArray[Any]) -> NDArray[np.float64]:
    """Return times as numbers, in the unit of the column."""
    return np.asarray(time.astype(np.int64) if time.dtype.kind == "M" else time, dtype=np.float64)


def rotation(counts: Codes) -> str | None:
    """Return a finding where actions came in rotation within tasks, for estimates that are cross-fitted; else None.

    The action of a held-out row then depends on those of the other rows of its task, of which the policy was learned:
    an action that these rows show to pay is seldom the held-out one.

    Parameters
    ----------
    counts : (m, K) int
        Rows of each action in each task.
    """
    shares = difference(counts.astype(np.float64))
    if shares is None or shares.z > -DIFFERS:
        return None
    return (
        f"Shares of actions differ less between tasks than with independent draws (z = {shares.z:.1f}), as where each "
        "task has its actions in rotation or in blocks. The action of a held-out row can then be predicted in part "
        "from the other rows of its task. Importance-weighted estimates on the rows of the fit are therefore not "
        "reliable: IPS and DR tend to be too low. Evaluate on later rows."
    )


def finding(subject: Subject, test: Reacted) -> str | None:
    """Return a finding where knowledge or adaptation of the incumbent limits the model; None otherwise."""
    z = 0.0 if test.z is None else test.z
    reacted = z > _REACTED
    if reacted and subject.logging == "frozen":
        return (
            f"Actions are taken more often after high rewards (z = {z:.1f}): the incumbent learned from these rows, or "
            "rewards and actions drift together with time. logging='frozen' then uses the same rewards twice. Fit with "
            "logging='adaptive'."
        )
    moments = subject.moments
    if subject.logging in ("frozen", "adaptive") or moments.sampled:  # sampling may depend on rewards, too
        return None
    test_knowledge: Any = crossed_knowledge if moments.per_action else knowledge
    knew = test_knowledge(subject.posterior.moments, subject.features, subject.posterior.central_hierarchy)
    if knew is None or knew < KNEW:
        return None
    if reacted:
        return (
            f"Actions were taken more often in tasks where they pay (z = {knew:.1f}), and more often after high "
            f"rewards (z = {z:.1f}): the incumbent seems to have learned from these rows, which does not bias the "
            "model. Fit with logging='adaptive'."
        )
    if test.z is None:
        return (
            f"Actions were taken more often in tasks where they pay (z = {knew:.1f}): the incumbent knew something "
            f"about the tasks, or learned from these rows. The log does not tell which: {test.no_order}. In the first "
            "case the model overstates rare actions: fit with logging='frozen', which uses the shares of actions as "
            "evidence. In the second case fit with logging='adaptive'."
        )
    return (
        f"Actions were taken more often in tasks where they pay (z = {knew:.1f}), and do not react to rewards: the "
        "incumbent knew something about the tasks that the log does not hold, and the model overstates rare actions. "
        "Fit with logging='frozen', which uses the shares of actions as evidence."
    )
