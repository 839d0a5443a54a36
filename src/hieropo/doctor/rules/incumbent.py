"""Rules about the logging policy (incumbent): overlap, knowledge of the tasks, adaptation to rewards."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array
from hieropo._utils.packed import packed_size
from hieropo._utils.ties import first_largest, reaches
from hieropo.doctor.collecting import LogStatistics
from hieropo.doctor.examination import Finding
from hieropo.errors import HieropoError
from hieropo.estimation.reml import estimate
from hieropo.features.maps import indicator
from hieropo.logging_policy import cells as cell_columns
from hieropo.logging_policy.action_logit import always_one_action, learn_shares
from hieropo.logging_policy.cell_tests import Sign, difference, effective, reaction
from hieropo.logging_policy.cells import Cells
from hieropo.logging_policy.incumbents import KNEW, knowledge
from hieropo.moments.statistics import Moments
from hieropo.ope.value_estimates import FEW_EFFECTIVE
from hieropo.rows.batches import Roles
from hieropo.rows.keys import Keys

Seems = Literal["without chance", "adaptive", "frozen", "frozen or adaptive", "in turns", "random", "unknown"]

REACTED = 3.5  # standard errors
_CALM = 2.5  # standard errors; in simulations an incumbent whose shares had come to differ showed 3 or more
_MOST = math.log(1e6)
DIFFERS, BY = (
    4.0,
    0.005,
)  # standard errors, and 1 / (1 + c): shares that differ by less than about 7 % count as equal
NO_TIME = "no time column is named"
_TASKS, _ACTIONS = 2_000, 8  # used to test what the incumbent knew


@dataclass(frozen=True, slots=True)
class Incumbent:
    """Evidence on how the incumbent chose actions.

    Attributes
    ----------
    seems : {"without chance", "adaptive", "frozen", "frozen or adaptive", "in turns", "random", "unknown"}
        "frozen": shares of actions differ between tasks and do not react to rewards; "frozen or adaptive": the
        reaction cannot be tested; "in turns": shares are more alike than random choice makes them; "unknown": too few
        rows.
    difference, reaction : Sign or None
        Tests of differences between tasks and of reaction to rewards; None where they cannot be tested.
    knew : float or None
        z of the test that actions were taken more often in tasks where they pay.
    unordered : str or None
        Reason why the order of rows cannot be taken as that of time.
    effective : dict
        Effective sample size for a uniform and a greedy target policy.
    varying : bool
        True where logged propensities differ between rows of one task and action.
    rows, tasks : int
        Rows of the log, and number of tasks used: the first ones, where there are very many tasks and actions.
    """

    seems: Seems
    difference: Sign | None
    reaction: Sign | None
    knew: float | None
    unordered: str | None
    effective: dict[str, float]
    varying: bool
    rows: int
    tasks: int


def incumbent(stats: LogStatistics) -> Incumbent | None:
    """Test how the incumbent chose actions; None where there were none to choose from."""
    if stats.roles.action is None or len(stats.actions) < 2 or not stats.usable:
        return None
    cells, disorder = stats.cells.complete_tasks(), unordered(stats)
    differs, reacts = difference(cells.counts), None if disorder else reaction(cells)
    size = stats.usable, len(cells.cells)
    varying = bool((cells.cells[:, :, cell_columns.LOW] < cells.cells[:, :, cell_columns.HIGH]).any())
    if always_one_action(cells.counts) is not None:
        return Incumbent("without chance", differs, reacts, None, disorder, {}, varying, *size)
    knew = _knew(cells) if differs is not None and differs.z > DIFFERS else None
    return Incumbent(
        _seems(differs, reacts), differs, reacts, knew, disorder, _overlap(stats, cells), varying, *size
    )


def _seems(differs: Sign | None, reacts: Sign | None) -> Seems:
    if reacts is not None and abs(reacts.z) > REACTED:
        return "adaptive"
    if differs is None:
        return "unknown"
    if differs.z < -DIFFERS:
        return "in turns"
    if differs.z <= DIFFERS or differs.effect <= BY:
        return "random"
    return "frozen or adaptive" if reacts is None else "frozen"


def unordered(stats: LogStatistics) -> str | None:
    """Return the reason why the order of rows is not that of time; None where a time column confirms it."""
    if stats.roles.time is None:
        return NO_TIME
    return "the time column has no usable time" if stats.timeline is None else stats.timeline.disorder()


def _knew(cells: Cells) -> float | None:
    """Return z of the test that actions were taken more often where they pay, from mean rewards of actions per task."""
    counts = cells.counts
    frequent = np.sort(np.argsort(-counts.sum(axis=0), kind="stable")[:_ACTIONS])
    rows = np.flatnonzero(counts[:, frequent].sum(axis=1) >= 2)
    rows = rows[:: -(-rows.size // _TASKS) or 1]
    if rows.size < 3:
        return None
    moments = _means(cells.cells[np.ix_(rows, frequent)])
    features = indicator(tuple(range(frequent.size)))
    try:
        return knowledge(moments, features, estimate(moments, "diag").hierarchy)
    except (HieropoError, np.linalg.LinAlgError):
        return None  # the rows do not identify it


def _means(table: Array) -> Moments:
    """Return the moments of one indicator feature per action, from cells (m, K, 16)."""
    m, count = table.shape[:2]
    n, total = table[:, :, cell_columns.ROWS], table[:, :, cell_columns.SUM]
    sums = np.zeros((m, packed_size(count + 2)))
    actions = np.arange(count)
    sums[:, actions * (actions + 1) // 2 + actions] = n
    sums[:, count * (count + 1) // 2 + actions] = total
    sums[:, count * (count + 1) // 2 + count] = table[:, :, cell_columns.SQUARES].sum(axis=1)
    last = (count + 1) * (count + 2) // 2
    sums[:, last : last + count] = n
    sums[:, last + count], sums[:, last + count + 1] = total.sum(axis=1), n.sum(axis=1)
    rows = n.sum(axis=1).astype(np.int64)
    return Moments(Keys(np.arange(m)), count, sums, rows, np.zeros(m))


def _overlap(stats: LogStatistics, cells: Cells) -> dict[str, float]:
    """Return the effective sample sizes of importance weighting for a uniform and a greedy target policy."""
    table, counts = cells.cells, cells.counts
    logged = table[:, :, cell_columns.LOGGED]
    if stats.roles.pscore is not None and logged.sum():
        weight, square = table[:, :, cell_columns.INVERSE], table[:, :, cell_columns.INVERSE2]
        uniform = (table[:, :, cell_columns.SHARED], table[:, :, cell_columns.SHARED2])
    else:
        chance = learn_shares(counts).strengths(np.arange(len(counts)))
        inverse = np.divide(1.0, chance, out=np.zeros_like(chance), where=counts > 0)
        weight, square = counts * inverse, counts * inverse**2
        uniform = weight, square
    best = best_actions(cells)
    tasks = np.flatnonzero(best >= 0)
    scale = stats.usable / float(counts.sum())  # counts may be of the first tasks alone
    return {
        "uniform": scale * effective(*uniform),
        "greedy": scale * effective(weight[tasks, best[tasks]], square[tasks, best[tasks]]),
    }


def best_actions(cells: Cells) -> NDArray[np.int64]:
    """Return the action with the largest shrunken mean reward in each task (m,); -1 without rows.

    Means are shrunk towards those of all tasks, with the variance between tasks by the method of moments.
    """
    n, total = cells.counts, cells.cells[:, :, cell_columns.SUM]
    rows = n.sum(axis=0)
    mean = np.divide(total.sum(axis=0), rows, out=np.full(rows.size, -np.inf), where=rows > 0)
    level = np.where(rows > 0, mean, 0.0)
    cell_means = np.divide(total, n, out=np.zeros_like(n), where=n > 0)
    noise_var = float((cells.cells[:, :, cell_columns.SQUARES] - n * cell_means**2).sum()) / max(
        float((n - 1.0).clip(0.0).sum()), 1.0
    )
    degrees = float(np.count_nonzero(n)) - np.count_nonzero(rows)
    effective_rows = float(rows.sum()) - float((n**2).sum(axis=0)[rows > 0] @ (1.0 / rows[rows > 0]))
    between_var = (float((n * (cell_means - level) ** 2).sum()) - degrees * noise_var) / max(
        effective_rows, 1e-300
    )
    signal = n * max(between_var, 0.0)
    reliability = signal / np.maximum(signal + noise_var, 1e-300)
    score = np.where(rows > 0, level + reliability * (cell_means - level), -np.inf)
    return np.where(n.sum(axis=1) > 0, first_largest(score, axis=1), -1)


def logging(stats: LogStatistics, logging_policy: Incumbent | None) -> Iterator[Finding]:
    """Yield findings about the knowledge and the adaptation of the incumbent."""
    if logging_policy is None or logging_policy.seems == "without chance":
        return
    yield from reacting(stats, logging_policy.reaction)
    if logging_policy.knew is not None and abs(logging_policy.knew) > KNEW:
        yield from knowing(
            logging_policy.knew, stats.roles, logging_policy.reaction, logging_policy.unordered,
            usable=_was_frozen(logging_policy.difference, logging_policy.reaction),
        )  # fmt: skip


def reaction_of(stats: LogStatistics) -> Sign | None:
    """Test whether actions react to earlier rewards; None where that cannot be tested."""
    return None if stats.roles.action is None or unordered(stats) else reaction(stats.cells.complete_tasks())


def seems_frozen(stats: LogStatistics) -> bool:
    """Return True where shares of actions differ between tasks, and actions do not react to earlier rewards.

    False where the log does not tell: the order of rows is not that of a column of times, or rows are a sample.
    """
    counts = stats.cells.complete_tasks().counts
    if stats.sampled or always_one_action(counts) is not None:
        return False
    return _was_frozen(difference(counts), reaction_of(stats))


def _was_frozen(differs: Sign | None, reacts: Sign | None) -> bool:
    if differs is None or reacts is None or not -REACTED <= reacts.z <= _CALM:
        return False
    return differs.z > DIFFERS and differs.effect > BY


def used(roles: Roles, gain: float) -> Finding:
    """Return the finding that a fit used the incumbent's choices; ``gain`` is the log evidence for that."""
    return Finding(
        "note", "the incumbent knew something", f"column {roles.action!r}",
        "Actions were taken more often in tasks where they pay, and do not depend on earlier rewards: the incumbent "
        f"knew something about the tasks. With that the log is {_odds(gain)} times as probable as without. The fit "
        "uses its shares of actions as evidence, as with logging='frozen'.",
        "Fit with logging='random' if the actions were drawn without knowledge of the tasks, or with "
        "logging='adaptive' if the incumbent learned from these rows.",
    )  # fmt: skip


def _odds(gain: float) -> str:
    return f"{round(math.exp(gain)):,}" if gain < _MOST else "more than a million"


def reacting(stats: LogStatistics, reacts: Sign | None) -> Iterator[Finding]:
    """Yield a finding where actions react to earlier rewards."""
    place = f"column {stats.roles.action!r}, in order of column {stats.roles.time!r}"
    if reacts is None or abs(reacts.z) <= REACTED:
        return
    if reacts.z < 0:
        yield Finding(
            "limits", "actions less often after high rewards", place,
            f"Actions are taken less often after high rewards (z = {reacts.z:.1f}).",
            f"If {stats.roles.reward!r} is a cost, negate it. Otherwise rewards and actions drift together with time.",
        )  # fmt: skip
    else:
        yield Finding(
            "note", "adaptive logging", place,
            f"Actions are taken more often after high rewards (z = {reacts.z:.1f}): the incumbent seems to have "
            "learned "
            "from these rows.", "Fit with logging='adaptive'.",
        )  # fmt: skip


def knowing(
    z: float, roles: Roles, reacts: Sign | None, unordered: str | None = None, *, usable: bool = False
) -> Iterator[Finding]:
    """Yield a finding where actions were taken more often, or less often, in tasks where they pay.

    ``usable`` is True where a fit to come may take the incumbent as frozen by itself.
    """
    if z < 0:
        yield Finding(
            "limits", "actions where they do not pay", f"column {roles.reward!r}",
            f"Actions were taken more often in tasks where they pay less (z = {z:.1f}).",
            f"If {roles.reward!r} is a cost, negate it.",
        )  # fmt: skip
        return
    if reacts is not None and reacts.z > REACTED:
        return  # adaptation to these rows is ignorable given the rewards
    if usable:
        yield Finding(
            "note", "the incumbent knew something", f"column {roles.action!r}",
            f"Actions were taken more often in tasks where they pay (z = {z:.1f}), and do not react to earlier "
            "rewards: the incumbent knew something about the tasks.",
            "A fit to these rows uses its shares of actions if they raise the evidence tenfold. Fit with "
            "logging='random' if the actions were drawn without knowledge of the tasks.",
        )  # fmt: skip
        return
    caveat = f" (the log does not tell which: {unordered})" if unordered else ""
    yield Finding(
        "limits", "the incumbent knew something", f"column {roles.action!r}",
        f"Actions were taken more often in tasks where they pay (z = {z:.1f}): the incumbent knew something about "
        f"the tasks, or learned from these rows{caveat}.",
        "Fit with logging='frozen' if it did not learn from these rows (its shares of actions are then used as "
        "evidence), or with logging='adaptive' if it did."
        + (" Name the time column if there is one (time=, --time): its order tells." if unordered == NO_TIME else ""),
    )  # fmt: skip


def overlap(stats: LogStatistics, logging_policy: Incumbent | None) -> Iterator[Finding]:
    """Yield a finding for each target policy with a small effective sample size."""
    if logging_policy is None:
        return
    place = f"column {stats.roles.pscore or stats.roles.action!r}"
    for target, rows in logging_policy.effective.items():
        if not reaches(rows, FEW_EFFECTIVE) and logging_policy.rows >= FEW_EFFECTIVE:
            yield Finding(
                "limits", f"little overlap with a {target} policy", place,
                f"For a {target} policy the {logging_policy.rows:,} rows have an effective sample size of {rows:.1f}: "
                "too "
                "small for importance-weighted estimates (IPS, DR).",
                "Evaluate by the model, or randomise more in a part of the decisions to come.", judging=True,
            )  # fmt: skip
