"""Rules about logged propensities: can they be what they say."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array
from hieropo._utils.text import agreeing, counted
from hieropo._utils.ties import first_largest
from hieropo.doctor.collecting import Collected
from hieropo.doctor.examination import Finding
from hieropo.logging_policy import cells as at
from hieropo.logging_policy.logged_propensities import TINY, PscoreCheck, check_pscores
from hieropo.rows.ids import plain

_SUM = 0.01  # by which sums over actions may miss 1: shares are often written with three digits
_ENOUGH = 20  # rows of an action from which on its mean of 1 / p has about a normal law
_SEEN = (
    10.0  # rows that the least propensity promises: with fewer, most of what 1 / p averages may never come
)
_FAR = 4.0  # standard errors
_APART = 0.05  # of a mean of 1: less matters little


def propensities(seen: Collected) -> Iterator[Finding]:
    """Find propensities that do not add up, or do not match how often actions were taken."""
    if seen.roles.pscore is None or not seen.usable:
        return
    found, place = seen.cells.whole().cells, f"column {seen.roles.pscore!r}"
    low = seen.numbers[seen.roles.pscore].low
    if low < TINY:
        yield Finding(
            "limits", "propensities near 0", place, f"The least propensity is {low:.3g}.",
            "Such a row outweighs every other one. Is it a density, or a product that ran out of digits?",
            judging=True,
        )  # fmt: skip
    if not found[:, :, at.LOGGED].sum():
        return
    if seen.roles.eligible is not None:  # sums over the actions of a task then span several lists
        yield from _of_lists(found, place)
        return
    checked = check(seen.actions.values, found)
    yield from _sums(seen, checked, found, place)
    if checked.deterministic is not None:
        yield Finding(
            "limits", "propensities of 1", place, f"{checked.deterministic[0].upper()}{checked.deterministic[1:]}.",
            "Without chance no weighting of rows shows what other actions would have brought. Name no propensities if "
            "these are none.", judging=True,
        )  # fmt: skip
        return
    wrong = _mismatch(seen, checked, found)
    if wrong is not None:
        yield wrong


def check(actions: Sequence[Any] | NDArray[Any], found: Array) -> PscoreCheck:
    """Check the propensities of cells (m, K, 16) of K actions."""
    own = found[found[:, :, at.ROWS].sum(axis=1) > 0]
    counts = own[:, :, at.LOGGED]
    rows = np.broadcast_to(counts.sum(axis=1, keepdims=True), counts.shape)
    sums = np.stack([counts, rows, own[:, :, at.INVERSE], own[:, :, at.LOGS]], axis=2)
    some = counts > 0
    ones = float(counts[some & (own[:, :, at.LOW] == 1.0)].sum())  # cells in which all propensities are 1
    range_ = float(own[:, :, at.LOW][some].min()), float(own[:, :, at.HIGH][some].max())
    certain = int(ones), int(counts.sum()) if found.shape[1] > 1 else 0
    return check_pscores(actions, sums, own[:, :, at.INVERSE2].sum(axis=0), range_, certain)  # type: ignore[arg-type]


def _off(found: PscoreCheck, table: Array) -> Array:
    """Return how many standard errors the mean of 1 / p of each action (K,) is from 1, 0 where it may be right.

    An action may have had no chance in the tasks that never took it: 1 then lies between the mean over all rows and
    that over the rows of the tasks that took it. And the mean is below 1 where propensities are so small that the rows
    which they promise have not come.
    """
    rows = table[:, :, at.ROWS].sum(axis=1)
    share = (rows @ (table[:, :, at.ROWS] > 0)) / rows.sum()
    low, high = found.inverse, found.inverse / np.maximum(share, 1e-300)
    se = np.where((found.inverse_se > 0) & (found.counts >= _ENOUGH), found.inverse_se, np.inf)
    above = np.where(low > 1.0 + _APART, (low - 1.0) / se, 0.0)
    if found.low * rows.sum() < _SEEN:
        return above
    return np.where(high < 1.0 - _APART, (high - 1.0) * share / se, above)


def _mismatch(seen: Collected, found: PscoreCheck, table: Array) -> Finding | None:
    column = seen.roles.pscore
    z = _off(found, table)
    far = np.abs(z) > _FAR
    cure = (
        "Log the probability of the action that was taken, as it was when it was chosen."
        if len(seen.actions) != 2
        else "Are they the probability of one fixed action? Then they are 1 - p where the other was taken."
    )
    if far.any():
        a = int(first_largest(np.where(far, np.abs(z), 0.0)))  # of two actions both are equally far off
        action = plain(seen.actions.values[a])
        more = int(far.sum()) - 1
        also = (
            f"; {counted(more, 'other action')} {agreeing(more, 'does', 'do')} not match either"
            if more
            else ""
        )
        return Finding(
            "limits", "propensities do not match", f"column {column!r}, action {action!r}",
            "Propensities do not match how often actions were taken: 1 / p, summed over the rows of action "
            f"{action!r}, is {found.inverse[a]:.3g} times the number of all rows (standard error "
            f"{found.inverse_se[a]:.2g}), where 1 is expected if every action could be taken in each row{also}.",
            _or_listed(cure, z),
        )  # fmt: skip
    if found.score_z < -_FAR and found.score_gain < -0.01:
        return Finding(
            "limits", "propensities do not match", f"column {column!r}",
            "How often each task got each action predicts the actions better than the propensities do, by "
            f"{-found.score_gain:.2g} in mean log probability ({-found.score_z:.1f} standard errors).", cure,
        )  # fmt: skip
    return None


def _or_listed(cure: str, z: Array) -> str:
    """Name the other cause, unless an action came more often than its propensities say: no chance in some rows."""
    if (z > _FAR).any():
        return cure
    return (
        "Could some actions not be taken in every row? Then the propensities may be right: name the column that lists "
        f"those that could, eligible=. If all could: {cure[0].lower()}{cure[1:]}"
    )


def _sums(seen: Collected, checked: PscoreCheck, found: Array, place: str) -> Iterator[Finding]:
    """Find sums that are not 1 where a propensity is one number for each task and action, and all could be taken."""
    logged = found[:, :, at.LOGGED] > 0
    one = found[:, :, at.LOW] == found[:, :, at.HIGH]
    if not (one | ~logged).all():
        return
    totals = np.where(logged, found[:, :, at.LOW], 0.0).sum(axis=1)
    above = np.flatnonzero(totals > 1.0 + _SUM)
    if above.size:
        s = int(first_largest(totals))
        yield Finding(
            "limits", "propensities add to more than 1", f"{place}, task {plain(seen.tasks.values[s])!r}",
            f"The propensities of the actions of a task add to more than 1 in {counted(int(above.size), 'task')}, to "
            f"{totals[s]:.3g} in task {plain(seen.tasks.values[s])!r}.",
            _or_listed(
                "They are not probabilities of one choice; log the probability of the action that was taken.",
                _off(checked, found),
            ),
        )  # fmt: skip
    every = logged.all(axis=1)
    if every.any() and not above.size and totals[every].max() < 1.0 - _SUM:
        yield Finding(
            "limits", "propensities add to less than 1", place,
            f"Where all {found.shape[1]} actions were taken, propensities add to {totals[every].max():.3g} at most.",
            "Are there actions that the log does not have, or were rows of some left out?",
        )  # fmt: skip


def _of_lists(found: Array, place: str) -> Iterator[Finding]:
    """With lists of eligible actions, 1 / (p times their number) averages 1 over all rows."""
    rows, total = found[:, :, at.LOGGED].sum(axis=1), found[:, :, at.SHARED].sum(axis=1)
    mean = float(total.sum() / rows.sum())
    by_rows = float(found[:, :, at.SHARED2].sum()) - rows.sum() * mean**2
    by_tasks = float(((total - mean * rows) ** 2).sum())
    se = float(np.sqrt(max(by_rows, by_tasks, 0.0))) / float(rows.sum())
    if abs(mean - 1.0) > max(_FAR * se, _APART):
        yield Finding(
            "limits", "propensities do not match", place,
            f"Propensities do not match the lists of eligible actions: 1 / p, by how many could be taken, averages "
            f"{mean:.3g} (standard error {se:.2g}), where 1 is right.",
            "Do the lists name all that could be taken, and is p the probability of the action that was taken?",
        )  # fmt: skip
