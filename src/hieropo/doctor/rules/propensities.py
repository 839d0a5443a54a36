"""Rules about logged propensities: their sums, and how well they match the actions."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array
from hieropo._utils.text import agreeing, counted
from hieropo._utils.ties import first_largest
from hieropo.doctor.collecting import LogStatistics
from hieropo.doctor.examination import Finding
from hieropo.logging_policy import cells as cell_columns
from hieropo.logging_policy.logged_propensities import TINY, PscoreCheck, check_pscores
from hieropo.rows.ids import plain

_SUM = 0.01  # tolerance for sums over actions: shares are often written with three digits
_ENOUGH = 20  # rows of an action from which on its mean of 1 / p is about normal
_SEEN = 10.0  # expected rows at the least propensity; with fewer the mean of 1 / p is biased downwards
_FAR = 4.0  # standard errors
_APART = 0.05  # smallest deviation of a mean of 1 that matters


def propensities(stats: LogStatistics) -> Iterator[Finding]:
    """Yield findings about propensities that do not add to 1 or do not match the actions."""
    if stats.roles.pscore is None or not stats.usable:
        return
    cells, place = stats.cells.complete_tasks().cells, f"column {stats.roles.pscore!r}"
    low = stats.numbers[stats.roles.pscore].low
    if low < TINY:
        yield Finding(
            "limits", "propensities near 0", place, f"The least propensity is {low:.3g}.",
            "Its weight exceeds that of all other rows together. Is it a density, or a product that underflowed?",
            judging=True,
        )  # fmt: skip
    if not cells[:, :, cell_columns.LOGGED].sum() or stats.roles.action is None:
        return  # without actions there are no frequencies to compare with
    if stats.roles.eligible is not None:  # sums over the actions of a task then span several lists
        yield from _of_lists(cells, place)
        return
    checked = check(stats.actions.values, cells)
    yield from _sums(stats, checked, cells, place)
    if checked.deterministic is not None:
        yield Finding(
            "limits", "propensities of 1", place, f"{checked.deterministic[0].upper()}{checked.deterministic[1:]}.",
            "There is no overlap: importance weighting cannot estimate the rewards of other actions. Name no column of "
            "propensities if these are not propensities.", judging=True,
        )  # fmt: skip
        return
    of_clusters = stats.roles.cluster is not None  # rows of one cluster may share one draw of the action
    mismatch = None if of_clusters else _mismatch(stats, checked, cells)
    if mismatch is not None:
        yield mismatch


def check(actions: Sequence[Any] | NDArray[Any], cells: Array) -> PscoreCheck:
    """Check the propensities of cells (m, K, 16) of K actions."""
    table = cells[cells[:, :, cell_columns.ROWS].sum(axis=1) > 0]
    counts = table[:, :, cell_columns.LOGGED]
    rows = np.broadcast_to(counts.sum(axis=1, keepdims=True), counts.shape)
    sums = np.stack([counts, rows, table[:, :, cell_columns.INVERSE], table[:, :, cell_columns.LOGS]], axis=2)
    logged = counts > 0
    low, high = table[:, :, cell_columns.LOW], table[:, :, cell_columns.HIGH]
    rows_of_certain_cells = float(counts[logged & (low == 1.0)].sum())  # cells whose propensities are all 1
    bounds = float(low[logged].min()), float(high[logged].max())
    certain = int(rows_of_certain_cells), int(counts.sum()) if cells.shape[1] > 1 else 0
    inverse_squares = table[:, :, cell_columns.INVERSE2].sum(axis=0)
    return check_pscores(actions, sums, inverse_squares, bounds, certain)  # type: ignore[arg-type]


def _off(checked: PscoreCheck, table: Array) -> Array:
    """Return the distance of the mean of 1 / p of each action (K,) from 1, in standard errors; 0 where it may be right.

    An action may have been impossible in the tasks that never took it: 1 then lies between the mean over all rows and
    that over the rows of the tasks that took it. The mean is below 1 where propensities are so small that the rows
    expected at them have not been seen.
    """
    rows = table[:, :, cell_columns.ROWS].sum(axis=1)
    share = (rows @ (table[:, :, cell_columns.ROWS] > 0)) / rows.sum()
    low, high = checked.inverse, checked.inverse / np.maximum(share, 1e-300)
    se = np.where((checked.inverse_se > 0) & (checked.counts >= _ENOUGH), checked.inverse_se, np.inf)
    above = np.where(low > 1.0 + _APART, (low - 1.0) / se, 0.0)
    if checked.low * rows.sum() < _SEEN:
        return above
    return np.where(high < 1.0 - _APART, (high - 1.0) * share / se, above)


def _mismatch(stats: LogStatistics, checked: PscoreCheck, table: Array) -> Finding | None:
    column = stats.roles.pscore
    z = _off(checked, table)
    mismatched = np.abs(z) > _FAR
    remedy = (
        "Log the probability that the logged action had when it was chosen."
        if len(stats.actions) != 2
        else "Are they the probability of one fixed action? Then they are 1 - p where the other was taken."
    )
    if mismatched.any():
        a = int(first_largest(np.where(mismatched, np.abs(z), 0.0)))  # of two actions both deviate equally
        action = plain(stats.actions.values[a])
        more = int(mismatched.sum()) - 1
        also = (
            f"; {counted(more, 'other action')} {agreeing(more, 'does', 'do')} not match either"
            if more
            else ""
        )
        return Finding(
            "limits", "propensities do not match", f"column {column!r}, action {action!r}",
            "Propensities do not match how often actions were taken: 1 / p, summed over the rows of action "
            f"{action!r}, is {checked.inverse[a]:.3g} times the number of all rows (standard error "
            f"{checked.inverse_se[a]:.2g}), where 1 is expected if every action is eligible in each row{also}.",
            _or_listed(remedy, z),
        )  # fmt: skip
    if checked.score_z < -_FAR and checked.score_gain < -0.01:
        return Finding(
            "limits", "propensities do not match", f"column {column!r}",
            "The shares of actions in each task predict the actions better than the propensities do, by "
            f"{-checked.score_gain:.2g} in mean log probability ({-checked.score_z:.1f} standard errors).", remedy,
        )  # fmt: skip
    return None


def _or_listed(remedy: str, z: Array) -> str:
    """Add the other possible cause, actions that are not eligible in all rows, unless an action was taken too often."""
    if (z > _FAR).any():
        return remedy
    return (
        "Are some actions not eligible in every row? Then the propensities may be right: name the column that lists "
        "the "
        f"eligible actions (eligible=). If all are eligible: {remedy[0].lower()}{remedy[1:]}"
    )


def _sums(stats: LogStatistics, checked: PscoreCheck, cells: Array, place: str) -> Iterator[Finding]:
    """Yield findings about sums that are not 1, where propensities are constant within tasks and actions."""
    logged = cells[:, :, cell_columns.LOGGED] > 0
    constant = cells[:, :, cell_columns.LOW] == cells[:, :, cell_columns.HIGH]
    if not (constant | ~logged).all():
        return
    totals = np.where(logged, cells[:, :, cell_columns.LOW], 0.0).sum(axis=1)
    above = np.flatnonzero(totals > 1.0 + _SUM)
    if above.size:
        s = int(first_largest(totals))
        yield Finding(
            "limits", "propensities add to more than 1", f"{place}, task {plain(stats.tasks.values[s])!r}",
            f"The propensities of the actions of a task add to more than 1 in {counted(int(above.size), 'task')}, to "
            f"{totals[s]:.3g} in task {plain(stats.tasks.values[s])!r}.",
            _or_listed(
                "They are not probabilities of one choice. Log the probability of the action that was taken.",
                _off(checked, cells),
            ),
        )  # fmt: skip
    complete = logged.all(axis=1)
    if complete.any() and not above.size and totals[complete].max() < 1.0 - _SUM:
        yield Finding(
            "limits", "propensities add to less than 1", place,
            f"Where all {cells.shape[1]} actions were taken, propensities add to {totals[complete].max():.3g} at most.",
            "Are actions missing from the log, or were rows left out?",
        )  # fmt: skip


def _of_lists(cells: Array, place: str) -> Iterator[Finding]:
    """Yield a finding where 1 / (p times the number of eligible actions) does not average 1 over all rows."""
    rows, total = cells[:, :, cell_columns.LOGGED].sum(axis=1), cells[:, :, cell_columns.SHARED].sum(axis=1)
    mean = float(total.sum() / rows.sum())
    by_rows = float(cells[:, :, cell_columns.SHARED2].sum()) - rows.sum() * mean**2
    by_tasks = float(((total - mean * rows) ** 2).sum())
    se = float(np.sqrt(max(by_rows, by_tasks, 0.0))) / float(rows.sum())
    if abs(mean - 1.0) > max(_FAR * se, _APART):
        yield Finding(
            "limits", "propensities do not match", place,
            f"Propensities do not match the lists of eligible actions: the mean of 1 / (p times the number of "
            f"eligible actions) is {mean:.3g} (standard error {se:.2g}), where 1 is expected.",
            "Do the lists name all eligible actions, and is p the probability of the logged action?",
        )  # fmt: skip
