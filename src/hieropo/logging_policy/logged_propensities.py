"""Tests of logged propensities, from sums over one pass.

Under correct propensities 1{action = a} / p has mean 1 over the rows in which a was eligible, for each action a with
positive probability in all of them. And no other probabilities have a larger expected log score: if the leave-one-out
shares of each task predict the actions better, the logged propensities are wrong. Neither test detects noise in the
propensities that is independent of the actions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hieropo._utils.arrays import Array, Codes, Mask
from hieropo._utils.ties import first_largest
from hieropo.errors import InputError
from hieropo.logging_policy.action_logit import FEW_TASKS, learn_shares
from hieropo.rows.ids import plain

TINY = 1e-12  # propensities below are too small for importance weights
_ENOUGH = 20  # rows of an action from which its mean of 1 / p is approximately normal
_FAR = 4.0  # standard errors from which a deviation is reported
_RELEVANT = 0.05  # deviation from the mean 1 from which it is reported
_CERTAIN, _SOME = 0.999, 0.05  # shares of rows that were logged with probability 1


@dataclass(frozen=True, slots=True, eq=False)
class PscoreCheck:
    """The result of a check of logged propensities; made by :meth:`LoggedPscores.check`.

    Attributes
    ----------
    rows : int
    low, high : float
        Range of the propensities; equal where they are constant.
    ones : float
        Share of the rows with several eligible actions that were logged with propensity 1.
    counts : (K,) int array
        Rows of each action.
    inverse, inverse_se : (K,) array
        Mean of 1{action = a} / p over the rows in which a was eligible, and its standard error; its expectation is 1.
        NaN for an action that was never eligible. The standard error is the larger of those by rows and, from 30 tasks
        on, by tasks.
    p_value : float
        Of the null that the means of all actions with at least 20 rows are 1, and that shares do not score better
        (Bonferroni).
    score_gain, score_z : float
        Mean log propensity less the mean log share of the task; and in standard errors. Far below 0, the propensities
        are wrong.
    deterministic : str or None
        Why the log has no overlap: nearly all rows were logged with propensity 1, or had no choice.
    findings : tuple of str
        Problems, as text.
    """

    rows: int
    low: float
    high: float
    ones: float
    counts: Codes
    inverse: Array
    inverse_se: Array
    p_value: float
    score_gain: float
    score_z: float
    deterministic: str | None
    findings: tuple[str, ...]

    @property
    def constant(self) -> bool:
        """Return True where all propensities are equal."""
        return self.low == self.high


class LoggedPscores:
    """Accumulates the sums for the tests of logged propensities, batch by batch.

    Parameters
    ----------
    actions : sequence of K ids
        Names of the actions, for messages.
    """

    def __init__(self, actions: Sequence[Any]) -> None:
        if not len(actions):
            raise InputError(
                "The list of actions is empty, so propensities cannot be checked. Name the actions."
            )
        self._actions, self._width = tuple(actions), len(actions)
        # of each task and action: rows, rows in which it was eligible, 1 / p, log p
        self._sums = np.zeros((0, self._width, 4))
        self._squares = np.zeros(self._width)
        self._low, self._high, self._ones, self._choices = np.inf, -np.inf, 0, 0

    def add(self, task: Codes, action: Codes, pscore: Array, mask: Mask | None = None) -> None:
        """Add rows.

        Parameters
        ----------
        task : (n,) int
            Rows of a table of tasks, which may grow.
        action : (n,) int
        pscore : (n,) array
            In (0, 1].
        mask : (n, K) bool, optional
            Eligible actions; all by default.

        Raises
        ------
        InputError
            Shapes do not fit, or a propensity is not in (0, 1].
        """
        task, action = np.asarray(task, dtype=np.int64), np.asarray(action, dtype=np.int64)
        chance, K = np.asarray(pscore, dtype=np.float64), self._width
        if not (task.shape == action.shape == chance.shape) or (
            mask is not None and mask.shape != (task.size, K)
        ):
            raise InputError(
                f"{task.size} tasks, {action.size} actions and {chance.size} propensities do not fit. Give one of each "
                f"for every row, and eligible actions as (n, {K})."
            )
        if not task.size:
            return
        wrong = ~((chance > 0) & (chance <= 1))
        if wrong.any():
            row = int(wrong.argmax())
            raise InputError(
                f"The propensity {chance[row]} in row {row} of this batch is not in (0, 1]. Correct it, or leave out "
                "the row."
            )
        m = int(task.max()) + 1
        if m > len(self._sums):
            more = max(m, 2 * len(self._sums)) - len(self._sums)
            self._sums = np.concatenate([self._sums, np.zeros((more, K, 4))])
        flat, at = self._sums.reshape(-1, 4), task * K + action
        for column, values in ((0, 1.0), (2, 1.0 / chance), (3, np.log(chance))):
            np.add.at(flat[:, column], at, values)
        for a in range(K):
            np.add.at(self._sums[:, a, 1], task, 1.0 if mask is None else mask[:, a].astype(np.float64))
        self._squares += np.bincount(action, chance**-2, K)
        choice = np.full(task.size, K > 1) if mask is None else mask.sum(axis=1) > 1
        self._ones += int(np.count_nonzero(choice & (chance == 1.0)))
        self._choices += int(np.count_nonzero(choice))
        self._low, self._high = min(self._low, float(chance.min())), max(self._high, float(chance.max()))

    def check(self) -> PscoreCheck:
        """Return the test results of all rows so far.

        Raises
        ------
        InputError
            There are no rows.
        """
        sums = self._sums[self._sums[:, :, 0].sum(axis=1) > 0]
        if not sums.size:
            raise InputError("There are no rows with propensities to check. Add rows first.")
        range_, rows = (self._low, self._high), (self._ones, self._choices)
        return check_pscores(self._actions, sums, self._squares, range_, rows)


def check_pscores(
    actions: Sequence[Any], sums: Array, squares: Array, range_: tuple[float, float], certain: tuple[int, int]
) -> PscoreCheck:
    """Return the test results of propensities, from their sums.

    Parameters
    ----------
    actions : sequence of K ids
        Names of the actions, for messages.
    sums : (m, K, 4) array
        Of each task and action: rows, rows in which it was eligible, sums of 1 / p and of log p.
    squares : (K,) array
        Sum of 1 / p^2 of each action.
    range_ : pair of float
        The least and the largest p.
    certain : pair of int
        Rows with a choice that were logged with probability 1, and all rows with a choice.
    """
    from scipy.special import ndtr

    ones, choices = certain
    counts, eligible, inverse, logs = np.moveaxis(sums, 2, 0)
    mean, se = _means(inverse, eligible, squares)
    total = counts.sum(axis=0).astype(np.int64)
    tested = (total >= _ENOUGH) & (se > 0)
    z = np.divide(mean - 1.0, se, out=np.zeros_like(mean), where=tested)
    gain, gain_z = _score_gain(counts, logs)
    p = min(2.0 * float(ndtr(-np.abs(z).max(initial=0.0))), float(ndtr(gain_z)))
    p_value = min(1.0, p * (int(np.count_nonzero(tested)) + 1))
    share = ones / max(choices, 1)
    reason = None
    if not choices:
        reason = "no row had more than one eligible action"
    elif share >= _CERTAIN:
        reason = f"{share:.1%} of the rows were logged with propensity 1"
    findings = []
    if reason is None:
        findings = [*_findings_on_means(actions, mean, se, z), *_findings_on_scores(gain, gain_z, share)]
    n = int(counts.sum())
    return PscoreCheck(n, *range_, share, total, mean, se, p_value, gain, gain_z, reason, tuple(findings))


def _means(inverse: Array, eligible: Array, squares: Array) -> tuple[Array, Array]:
    """Return the mean of 1{action = a} / p over rows with a eligible, and its standard error."""
    rows = eligible.sum(axis=0)
    safe, total = np.where(rows > 0, rows, np.nan), inverse.sum(axis=0)
    mean = total / safe
    by_rows = (squares - 2.0 * mean * total + mean**2 * rows) / np.maximum(rows - 1, 1)
    variance = np.maximum(by_rows, 0.0) / safe
    m = len(inverse)
    if m >= FEW_TASKS:
        deviation = inverse - mean * eligible
        variance = np.fmax(variance, (deviation**2).sum(axis=0) * m / (m - 1) / safe**2)
    return mean, np.sqrt(variance)


def _score_gain(counts: Array, logs: Array) -> tuple[float, float]:
    """Return the mean log propensity less the mean leave-one-out log share, and its z clustered by task.

    With few tasks it is clustered by task and action.
    """
    task, action = np.nonzero(counts)
    log_share = np.zeros(counts.shape)
    log_share[task, action] = np.log(learn_shares(counts).taken(task, action))
    gain = logs - counts * log_share
    mean = float(gain.sum() / counts.sum())
    gain -= mean * counts
    if len(counts) >= FEW_TASKS:
        gain = gain.sum(axis=1)
    spread = float(np.sqrt((gain**2).sum()))
    return mean, mean * float(counts.sum()) / spread if spread > 0 else 0.0


def _findings_on_means(actions: Sequence[Any], mean: Array, se: Array, z: Array) -> list[str]:
    a = int(first_largest(np.abs(z)))  # with two actions both deviate equally
    if abs(z[a]) < _FAR or abs(mean[a] - 1.0) < _RELEVANT:
        return []
    cause = (
        "either the action could not be taken in some of them (then name the column of eligible actions, eligible=), "
        "or the propensities are too large"
        if mean[a] < 1
        else "the propensities are too small, or are those of another action"
    )
    text = (
        f"Propensities do not match the frequencies of actions: 1 / p of action {plain(actions[a])!r} averages "
        f"{mean[a]:.3g} over the rows where it counts as eligible (standard error {se[a]:.2g}), and 1 is expected: "
        f"{cause}."
    )
    return [text]


def _findings_on_scores(gain: float, z: float, ones: float) -> list[str]:
    findings = []
    if z < -_FAR and gain < -0.01:
        findings.append(
            "The shares of actions in each task predict the actions better than the logged propensities, by "
            f"{-gain:.3g} in mean log probability ({-z:.1f} standard errors), so the propensities are not those of "
            "these actions."
        )
    if ones > _SOME:
        findings.append(
            f"{ones:.0%} of the rows were logged with propensity 1 (no overlap), so importance weighting cannot "
            "estimate the rewards of other actions there."
        )
    return findings
