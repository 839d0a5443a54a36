"""What the log says of its incumbent: whether it knew something of the tasks, or learned from these rows."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Codes
from hieropo.doctor.statistics.times import Times
from hieropo.evaluation.passes.judging import Predictions, Rows
from hieropo.evaluation.passes.subject import Subject
from hieropo.logging_policy.incumbents import KNEW, Reactions, crossed_knowledge, knowledge

_REACTED = 3.5  # standard errors
_SCALE = 2.0  # that the noise may have changed by
_ENOUGH = 50  # rows that tell it


class Reacted(NamedTuple):
    """Whether actions react to rewards before them.

    Parameters
    ----------
    z : float or None
        About standard normal where they do not; None where the order of rows is not told to be that of time.
    untold : str
        Why it is not.
    """

    z: float | None
    untold: str = ""


class Reacting:
    """Hands the rows, in their order, to the test whether actions react to rewards before them.

    Parameters
    ----------
    counts : (m, K) int
        Rows of each action in each task.
    predictions : Predictions
        What is expected of each row.
    """

    def __init__(self, counts: Codes, predictions: Predictions) -> None:
        self._reactions, self._predictions, self._tasks = Reactions(counts), predictions, len(counts)
        self._times = Times()
        self._rows, self._kish, self._sum, self._squares = 0.0, 0.0, 0.0, 0.0

    def add(self, rows: Rows) -> None:
        """Take some rows."""
        expected = self._predictions.of(rows.place, rows.batch.context, rows.codes)
        away = rows.batch.reward - expected
        if rows.batch.time is not None:
            self._times.add(_numbers(rows.batch.time), rows.place, away, self._tasks)
            self._reactions.add(rows.place, rows.codes, away)
        counts = rows.batch.weights.counts(away.size)
        self._rows += float(counts.sum())
        self._kish += float(counts @ counts)
        self._sum += float(counts @ away)
        self._squares += float(counts @ (away * away))

    def reacted(self) -> Reacted:
        """Return the test of all rows so far."""
        line = self._times.timeline()
        untold = "no column of times is named" if line is None else line.disorder()
        return Reacted(self._reactions.reaction().z) if untold is None else Reacted(None, untold)

    def misfit(self, noise_sd: float, sd: float) -> str | None:
        """Say where rewards are on another scale than those that the policy was learned from.

        Parameters
        ----------
        noise_sd : float
            Of a reward, as learned.
        sd : float
            Of the mean of all predictions, given what was learned.
        """
        mean, effective = self._sum / self._rows, self._rows**2 / self._kish
        spread = max(self._squares / self._rows - mean**2, 0.0) ** 0.5
        if abs(mean) > 6 * (sd**2 + max(spread, noise_sd) ** 2 / effective) ** 0.5 + 0.1 * noise_sd:
            return (
                f"Rewards are {mean:+.4g} from what was learned, on average over all rows. Are they in another unit, "
                "or has the world changed? The model speaks of the rewards that it was learned from."
            )
        if effective >= _ENOUGH and not noise_sd / _SCALE < spread < _SCALE * noise_sd:
            return (
                f"Rewards vary by {spread:.4g} around what was learned, and varied by {noise_sd:.4g} when it was: are "
                "they in another unit?"
            )
        return None


def _numbers(time: NDArray[Any]) -> NDArray[np.float64]:
    """Times as numbers, in the unit of the column."""
    return np.asarray(time.astype(np.int64) if time.dtype.kind == "M" else time, dtype=np.float64)


def finding(subject: Subject, test: Reacted) -> str | None:
    """Say what limits the model because of what the incumbent knew."""
    z = 0.0 if test.z is None else test.z
    reacted = z > _REACTED
    if reacted and subject.logging == "frozen":
        return (
            f"Actions come more often after they were rewarded well (z = {z:.1f}): the incumbent learned from these "
            "rows, or rewards and actions move together with time. logging='frozen' then counts the same rewards "
            "twice; fit with logging='adaptive'."
        )
    moments = subject.moments
    if (
        subject.logging in ("frozen", "adaptive") or moments.sampled
    ):  # chance kept rows for their rewards, too
        return None
    test_knowledge: Any = crossed_knowledge if moments.per_action else knowledge
    knew = test_knowledge(moments, subject.features, subject.posterior.central_hierarchy)
    if knew is None or knew < KNEW:
        return None
    if reacted:
        return (
            f"Actions were taken more often in tasks where they pay (z = {knew:.1f}), and come more often after they "
            f"were rewarded well (z = {z:.1f}): the incumbent seems to have learned from these rows, which the model "
            "allows for. Say so, logging='adaptive'."
        )
    if test.z is None:
        return (
            f"Actions were taken more often in tasks where they pay (z = {knew:.1f}): the incumbent knew something of "
            "the tasks, or it learned from these rows. The log does not tell which, since "
            f"{test.untold}. In the first case the model claims too much where an action was rare: fit with "
            "logging='frozen', which uses how often each action was taken. In the second fit with logging='adaptive'."
        )
    return (
        f"Actions were taken more often in tasks where they pay (z = {knew:.1f}), and do not react to rewards: the "
        "incumbent knew something of the tasks that the log does not show, and the model claims too much where an "
        "action was rare. Fit with logging='frozen', which uses how often each action was taken."
    )
