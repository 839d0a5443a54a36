"""Estimated propensities of the logging policy, for logs without logged ones.

The model is the shares of actions in each task, shrunk to those of all tasks, and a logit where contexts improve the
prediction or where lists of eligible actions vary (:mod:`action_logit`). The propensity of a row that was learned from
never uses the action of that row: shares leave the row out, the logit its fold. The mean weight 1 / p of an action is
then 1 in expectation, given the other rows, if the model is right.
"""

from dataclasses import dataclass, replace

import numpy as np

from hieropo._utils.arrays import Array, Codes, Mask
from hieropo._utils.text import agreeing
from hieropo.errors import InputError, LogError
from hieropo.logging_policy.action_logit import (
    ActionLogit,
    Calibration,
    Counts,
    Nearest,
    Sample,
    Shares,
    always_one_action,
    calibration,
    clustered,
    determined,
    learn_logit,
    learn_shares,
    normalised,
)

_CHUNK = 4_000_000  # numbers in memory at a time
_MIN_GAIN, _MISFIT = 2.0, 4.0  # standard errors: to use contexts, to report a misfit
_NO_GAIN = 1e-7  # gain in log score of a row below the accuracy of fits
# remaining share of randomness where contexts determine actions: by logit, by neighbour
_MAX_RANDOM, _MAX_RANDOM_NEAR = 0.05, 0.15
_MAX_SLOPE_ERROR = 0.2  # deviation of the calibration slope from 1 that is reported


@dataclass(frozen=True, slots=True, eq=False)
class LoggingModel:
    """Estimated propensities; made by :meth:`hieropo.logging_policy.propensities.LoggedActions.learn`.

    Attributes
    ----------
    shares : Shares
        Shrunken shares of each task.
    logit : ActionLogit or None
        Effects of contexts and of lists of eligible actions; None where there are no such lists and contexts do not
        improve the prediction.
    columns : int
        Number of context columns in use.
    calibration : Calibration
        Calibration on rows that the propensities were not estimated from.
    deterministic : str or None
        Reason why the log seems to have no overlap (the task or context determines the action); importance weighting is
        then unreliable.
    findings : tuple of str
        Limits of the estimates, as text.
    """

    shares: Shares
    logit: ActionLogit | None
    columns: int
    calibration: Calibration
    deterministic: str | None
    findings: tuple[str, ...]

    def probabilities(
        self,
        task: Codes,
        context: Array | None = None,
        mask: Mask | None = None,
        *,
        taken: Codes | None = None,
        fold: Codes | None = None,
    ) -> Array:
        """Return the probability of each action, (n, K).

        Parameters
        ----------
        task : (n,) int
            Rows of the table of counts; -1 is a task without rows.
        context : (n, c) array, optional
            Needed where there is a logit.
        mask : (n, K) bool, optional
            Eligible actions.
        taken : (n,) int, optional
            The actions of rows that were learned from: each row is then predicted without itself.
        fold : (n,) int, optional
            Folds of these rows, as when they were added.

        Returns
        -------
        (n, K) array
            Each row adds to 1, or is 0 where no eligible action was ever taken.

        Raises
        ------
        InputError
            Shapes do not fit, contexts or folds are missing, no action of a row is eligible, or a row was not learned
            from.
        """
        task, context = np.asarray(task, dtype=np.int64), self._context(task, context)
        check_mask(mask, task.size, self.shares.n_actions)
        if taken is not None:
            self._check_taken(task, taken, mask, fold)
        if self.logit is None:
            return normalised(self.shares.strengths(task, mask, taken))
        return self.logit.probabilities(
            task, context, mask, taken=taken, fold=None if taken is None else fold
        )

    def taken(
        self,
        task: Codes,
        action: Codes,
        context: Array | None = None,
        mask: Mask | None = None,
        *,
        fold: Codes | None = None,
    ) -> Array:
        """Return the leave-one-out probability (n,) of the action taken, for rows that were learned from.

        Arguments and errors as in :meth:`probabilities`.
        """
        task, action = np.asarray(task, dtype=np.int64), np.asarray(action, dtype=np.int64)
        if self.logit is None and mask is None:
            self._check_taken(task, action, None, fold)
            return self.shares.taken(task, action)
        taken, step = np.empty(task.size), max(1, _CHUNK // self.shares.n_actions)
        for start in range(0, task.size, step):
            part = slice(start, start + step)
            table = self.probabilities(
                task[part],
                None if context is None else context[part],
                None if mask is None else mask[part],
                taken=action[part],
                fold=None if fold is None else fold[part],
            )
            taken[part] = table[np.arange(len(table)), action[part]]
        return taken

    def _context(self, task: Codes, context: Array | None) -> Array:
        if not self.columns:
            return np.zeros((task.size, 0))
        shape = None if context is None else np.shape(context)
        if context is None or shape != (task.size, self.columns):
            raise InputError(
                f"Propensities depend on {self.columns} context columns, and the contexts of {task.size} rows have "
                f"shape {shape}. Give contexts of shape ({task.size}, {self.columns})."
            )
        return np.asarray(context, dtype=np.float64)

    def _check_taken(self, task: Codes, taken: Codes, mask: Mask | None, fold: Codes | None) -> None:
        if np.shape(taken) != task.shape:
            raise InputError(
                f"{np.size(taken)} actions were given for {task.size} rows. Give one for each row."
            )
        if self.logit is not None and fold is None:
            raise InputError(
                "Propensities depend on contexts or eligible actions and were cross-fitted, and no folds were given. "
                "Give the fold of each row, as when the rows were added."
            )
        never_taken = self.shares.counts[task, taken] < 1
        if never_taken.any():
            row = int(never_taken.argmax())
            raise InputError(
                f"Row {row} has the action {int(taken[row])} in the task of row {int(task[row])} of the table, where "
                "it was never taken, so propensities were learned from other rows. Learn them from this log, or leave "
                "`taken` out."
            )
        if mask is not None:
            refuse_ineligible(mask, taken)


def learn_model(counts: Counts, sample: Sample, folds: int) -> LoggingModel:
    """Estimate propensities from counts and a sample of rows.

    Parameters
    ----------
    counts : (m, K) int
        Rows of each action in each task.
    sample : Sample
        All rows, or some of each task, drawn uniformly.
    folds : int

    Raises
    ------
    InputError
        There are no rows.
    """
    shares = learn_shares(counts)
    task, action, index = sample.task, sample.action, np.arange(sample.task.size)
    columns = sample.context.shape[1] if task.size > folds else 0
    logit, plain = None, normalised(shares.strengths(task, sample.mask, action))
    if sample.mask is not None:
        logit = learn_logit(shares, replace(sample, context=sample.context[:, :0]), folds)
        plain = logit.probabilities(task, sample.context[:, :0], sample.mask, taken=action, fold=sample.fold)
    probabilities = plain
    if columns:
        with_contexts = learn_logit(shares, sample, folds)
        probabilities = with_contexts.probabilities(
            task, sample.context, sample.mask, taken=action, fold=sample.fold
        )
        gain, se = clustered(np.log(probabilities[index, action] / plain[index, action]), task)
        logit, columns, probabilities = (
            (with_contexts, columns, probabilities)
            if gain > max(_MIN_GAIN * se, _NO_GAIN)
            else (logit, 0, plain)
        )
    x = _standard(sample.context)
    nearest = [pairs for inside in (False, True) if (pairs := Nearest.of(x, task, within=inside))]
    worst = max(nearest, key=lambda pairs: pairs.agreement(probabilities, action)[2], default=None)
    population = normalised(shares.population * (plain > 0))
    calibrated = calibration(probabilities, plain, population, action, task, worst)
    reason = _determined_by_task(counts, sample) or _determined_by_context(
        plain, probabilities, action, nearest
    )
    return LoggingModel(shares, logit, columns, calibrated, reason, _findings(calibrated, shares))


def _standard(context: Array) -> Array:
    sd = context.std(axis=0)
    return np.asarray((context - context.mean(axis=0)) / np.where(sd > 0, sd, np.inf))


def _determined_by_task(counts: Counts, sample: Sample) -> str | None:
    """Return the reason why tasks seem to determine actions in rows with several eligible ones; None otherwise."""
    if sample.mask is None:
        return always_one_action(counts)
    choice = sample.mask.sum(axis=1) > 1
    if not choice.any():
        return "no row had more than one eligible action"
    m, K = counts.shape
    cell = (sample.task * K + sample.action)[choice]
    return always_one_action(np.bincount(cell, minlength=m * K).reshape(m, K))


def _determined_by_context(
    by_shares: Array, probabilities: Array, action: Codes, nearest: list[Nearest]
) -> str | None:
    """Return the reason why contexts seem to determine the action; None where they do not."""
    index = np.arange(action.size)
    remaining, expected = (
        float(1.0 - probabilities[index, action].mean()),
        float(1.0 - by_shares[index, action].mean()),
    )
    if determined(remaining, expected, action.size, _MAX_RANDOM):
        return (
            f"contexts determine the action: a logit on them gives the action taken a mean probability of "
            f"{1 - remaining:.1%}, and the task alone gives it {1 - expected:.1%}"
        )
    for pairs in nearest:
        agreement, _, z = pairs.agreement(probabilities, action)
        by_task = pairs.agreement(by_shares, action)[1]
        if z > _MISFIT and determined(1.0 - agreement, 1.0 - by_task, pairs.row.size, _MAX_RANDOM_NEAR):
            return (
                f"contexts determine the action: rows with the nearest context have the same action in {agreement:.1%} "
                f"of pairs, and tasks alone would give {by_task:.1%}"
            )
    return None


def _findings(calibrated: Calibration, shares: Shares) -> tuple[str, ...]:
    findings = []
    slope, slope_se = calibrated.slope, calibrated.slope_se
    if abs(slope - 1.0) > _MISFIT * slope_se and abs(slope - 1.0) > _MAX_SLOPE_ERROR:
        findings.append(
            f"Estimated propensities are {'too extreme' if slope < 1 else 'not extreme enough'}: their calibration "
            f"slope is {slope:.2f} (standard error {slope_se:.2f}) and should be 1."
        )
    agreement, predicted = calibrated.agreement, calibrated.agreement_predicted
    if calibrated.agreement_z > _MISFIT and agreement - predicted > 0.02:
        findings.append(
            "Estimated propensities miss an effect of contexts on actions: rows with the nearest context have the same "
            f"action in {agreement:.1%} of pairs, and {predicted:.1%} are predicted."
        )
    never = int(np.count_nonzero(shares.population == 0))
    if never:
        findings.append(
            f"{never} of {shares.n_actions} actions {agreeing(never, 'was', 'were')} never taken, so importance "
            f"weighting cannot estimate {agreeing(never, 'its reward', 'their rewards')}."
        )
    return tuple(findings)


def check_mask(mask: Mask | None, n: int, K: int) -> None:
    """Refuse eligible actions that are not (n, K) bool with one in each row.

    Raises
    ------
    InputError
    """
    if mask is None:
        return
    if np.shape(mask) != (n, K) or mask.dtype != bool:
        raise InputError(
            f"Eligible actions have shape {np.shape(mask)} and type {mask.dtype}. Give booleans of shape ({n}, {K})."
        )
    empty = ~mask.any(axis=1)
    if empty.any():
        raise InputError(
            f"Row {int(empty.argmax())} has no eligible action. Leave it out, or correct its list of eligible actions."
        )


def refuse_ineligible(mask: Mask, action: Codes) -> None:
    """Refuse rows whose action was not eligible.

    Raises
    ------
    LogError
    """
    wrong = ~mask[np.arange(action.size), action]
    if wrong.any():
        row = int(wrong.argmax())
        raise LogError(
            f"Row {row} of this batch took action {int(action[row])}, which is not among its eligible ones. Check that "
            "the lists are those of the time of the choice, and of the same rows."
        )


_MAX_SAMPLE = 200_000  # rows for the logit and for calibration


class LoggedActions:
    """Accumulates counts and a sample of rows, batch by batch, to estimate propensities.

    Parameters
    ----------
    n_actions : int
        K.
    rng : numpy Generator
        Draws the sample of rows.
    columns : int
        Context columns c.
    folds : int
        Number of folds for cross-fitting; the logit of a fold is fitted without it.
    most : int
        Number of rows for the logit and for calibration, drawn uniformly.
    """

    def __init__(
        self,
        n_actions: int,
        *,
        rng: np.random.Generator,
        columns: int = 0,
        folds: int = 5,
        most: int = _MAX_SAMPLE,
    ) -> None:
        if n_actions < 1 or folds < 2 or most < 1:
            raise InputError(
                f"n_actions={n_actions}, folds={folds}, most={most} are too small. Give at least one action, two folds "
                "and one row."
            )
        self._width, self._columns, self._folds, self._most, self._rng = n_actions, columns, folds, most, rng
        self._counts = np.zeros((0, n_actions), dtype=np.int64)
        self._sample: list[tuple[Array, Codes, Codes, Codes, Array, Mask]] = []
        self._bound = np.inf
        self._masked: bool | None = None

    def add(
        self,
        task: Codes,
        action: Codes,
        context: Array | None = None,
        mask: Mask | None = None,
        *,
        fold: Codes | None = None,
    ) -> None:
        """Add rows.

        Parameters
        ----------
        task : (n,) int
            Rows of a table of tasks, which may grow.
        action : (n,) int
        context : (n, c) array
            Needed where there are context columns; finite.
        mask : (n, K) bool, optional
            Eligible actions; either with all rows or with none.
        fold : (n,) int
            In 0 .. folds - 1, the same for a row in every pass; needed with context columns or eligible actions.

        Raises
        ------
        InputError
            Shapes or codes do not fit.
        LogError
            The action taken was not eligible; names the row of the batch.
        """
        task, action = np.asarray(task, dtype=np.int64), np.asarray(action, dtype=np.int64)
        if not task.size:
            return
        table, part = self._checked(task, action, context, mask, fold)
        m = max(len(self._counts), int(task.max()) + 1)
        if m > len(self._counts):
            added = max(m, 2 * len(self._counts)) - len(self._counts)
            self._counts = np.concatenate([self._counts, np.zeros((added, self._width), dtype=np.int64)])
        np.add.at(self._counts.reshape(-1), task * self._width + action, 1)
        allowed = np.ones((task.size, 0), dtype=bool) if mask is None else mask
        draw = self._rng.random(task.size)  # the smallest numbers make the sample
        drawn = np.flatnonzero(draw < self._bound)
        self._sample.append(
            (draw[drawn], task[drawn], action[drawn], part[drawn], table[drawn], allowed[drawn])
        )
        if sum(columns[0].size for columns in self._sample) > 2 * self._most:
            self._shorten()

    def _checked(
        self, task: Codes, action: Codes, context: Array | None, mask: Mask | None, fold: Codes | None
    ) -> tuple[Array, Codes]:
        n = task.size
        if action.shape != task.shape or task.min() < 0 or action.min() < 0 or action.max() >= self._width:
            raise InputError(
                f"{task.size} tasks and {action.size} actions do not fit. Give one of each for every row, tasks from 0 "
                f"and actions in 0 .. {self._width - 1}."
            )
        if self._masked is not None and self._masked != (mask is not None):
            raise InputError(
                "Some rows have lists of eligible actions and some have none. Give lists for all rows or for none."
            )
        self._masked = mask is not None
        check_mask(mask, n, self._width)
        if mask is not None:
            refuse_ineligible(mask, action)
        if not self._columns and mask is None:
            return np.zeros((n, 0)), np.zeros(n, dtype=np.int64)
        if not self._columns:
            context = np.zeros((n, 0))
        table, part = np.asarray(context, dtype=np.float64), np.asarray(fold)
        if table.shape != (n, self._columns) or part.shape != (n,):
            raise InputError(
                f"Contexts of shape {table.shape} and folds of shape {part.shape} do not fit {n} rows with "
                f"{self._columns} context columns. Give both for each row."
            )
        if part.min() < 0 or part.max() >= self._folds:
            raise InputError(
                f"Folds run from {part.min()} to {part.max()}. Give folds in 0 .. {self._folds - 1}."
            )
        return table, part.astype(np.int64)

    def _shorten(self) -> None:
        draw, *others = (np.concatenate(column) for column in zip(*self._sample, strict=True))
        if draw.size > self._most:
            rows = np.argpartition(draw, self._most - 1)[: self._most]
            self._bound = float(draw[rows].max())
            draw, others = draw[rows], [column[rows] for column in others]
        self._sample = [(draw, *others)]  # type: ignore[list-item]  # zip forgets the types

    def learn(self) -> LoggingModel:
        """Return propensities estimated from all rows so far.

        Raises
        ------
        InputError
            There are no rows.
        """
        if not self._sample:
            raise InputError("There are no rows to learn propensities from.")
        self._shorten()
        draw, task, action, fold, context, mask = self._sample[0]
        order = np.argsort(draw, kind="stable")
        sample = Sample(task, action, fold, context, mask if self._masked else None).rows(order)
        m = int(np.flatnonzero(self._counts.sum(axis=1))[-1]) + 1
        return learn_model(self._counts[:m], sample, self._folds)
