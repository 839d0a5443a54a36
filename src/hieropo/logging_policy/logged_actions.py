"""What propensities are learned from: counts of actions, and a sample of rows, collected in one pass over a log."""

import numpy as np

from hieropo._utils.arrays import Array, Codes, Mask
from hieropo.errors import InputError
from hieropo.logging_policy.action_logit import Sample
from hieropo.logging_policy.propensities import LoggingModel, check_mask, learn_model, refuse_ineligible

_MOST = 200_000  # rows that are kept for the logit and for calibration


class LoggedActions:
    """Collects what propensities are learned from, batch by batch; the mutable edge of a pass over a log.

    Parameters
    ----------
    n_actions : int
        K.
    rng : numpy Generator
        Draws the rows that are kept.
    columns : int
        Context columns c.
    folds : int
        Parts of the rows; the logit that a part gets was fitted without it.
    most : int
        Rows that are kept for the logit and for calibration, drawn uniformly.
    """

    def __init__(
        self,
        n_actions: int,
        *,
        rng: np.random.Generator,
        columns: int = 0,
        folds: int = 5,
        most: int = _MOST,
    ) -> None:
        if n_actions < 1 or folds < 2 or most < 1:
            raise InputError(
                f"n_actions={n_actions}, folds={folds}, most={most}: at least one action, two folds and one row are "
                "needed."
            )
        self._width, self._columns, self._folds, self._most, self._rng = n_actions, columns, folds, most, rng
        self._counts = np.zeros((0, n_actions), dtype=np.int64)
        self._kept: list[tuple[Array, Codes, Codes, Codes, Array, Mask]] = []
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
            more = max(m, 2 * len(self._counts)) - len(self._counts)
            self._counts = np.concatenate([self._counts, np.zeros((more, self._width), dtype=np.int64)])
        np.add.at(self._counts.reshape(-1), task * self._width + action, 1)
        allowed = np.ones((task.size, 0), dtype=bool) if mask is None else mask
        draw = self._rng.random(task.size)  # those with the smallest numbers are kept
        at = np.flatnonzero(draw < self._bound)
        self._kept.append((draw[at], task[at], action[at], part[at], table[at], allowed[at]))
        if sum(each[0].size for each in self._kept) > 2 * self._most:
            self._shorten()

    def _checked(
        self, task: Codes, action: Codes, context: Array | None, mask: Mask | None, fold: Codes | None
    ) -> tuple[Array, Codes]:
        n = task.size
        if action.shape != task.shape or task.min() < 0 or action.min() < 0 or action.max() >= self._width:
            raise InputError(
                f"{task.size} tasks and {action.size} actions do not fit: one of each a row is needed, tasks from 0 "
                f"and actions in 0 .. {self._width - 1}."
            )
        if self._masked is not None and self._masked != (mask is not None):
            raise InputError(
                "Some rows come with the actions that were eligible and some without: hand them in for all rows or for "
                "none."
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
                f"{self._columns} context columns; both are needed for each row."
            )
        if part.min() < 0 or part.max() >= self._folds:
            raise InputError(
                f"Folds run from {part.min()} to {part.max()}; 0 .. {self._folds - 1} are needed."
            )
        return table, part.astype(np.int64)

    def _shorten(self) -> None:
        draw, *others = (np.concatenate(each) for each in zip(*self._kept, strict=True))
        if draw.size > self._most:
            at = np.argpartition(draw, self._most - 1)[: self._most]
            self._bound = float(draw[at].max())
            draw, others = draw[at], [each[at] for each in others]
        self._kept = [(draw, *others)]  # type: ignore[list-item]  # zip forgets the types

    def learn(self) -> LoggingModel:
        """Learn propensities from all rows so far.

        Raises
        ------
        InputError
            There are no rows.
        """
        if not self._kept:
            raise InputError("There are no rows to learn propensities from.")
        self._shorten()
        draw, task, action, fold, context, mask = self._kept[0]
        order = np.argsort(draw, kind="stable")
        sample = Sample(task, action, fold, context, mask if self._masked else None).rows(order)
        m = int(np.flatnonzero(self._counts.sum(axis=1))[-1]) + 1
        return learn_model(self._counts[:m], sample, self._folds)
