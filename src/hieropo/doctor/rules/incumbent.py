"""Rules about the policy that made the log: did it choose by chance, know something, learn; is there overlap."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array
from hieropo._utils.packed import packed_size
from hieropo._utils.ties import first_largest, reaches
from hieropo.doctor.collecting import Collected
from hieropo.doctor.examination import Finding
from hieropo.errors import HieropoError
from hieropo.estimation.reml import estimate
from hieropo.features.maps import indicator
from hieropo.logging_policy import cells as at
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
DIFFERS, BY = (
    4.0,
    0.005,
)  # standard errors, and 1 / (1 + c): shares within about 7 % of themselves are as good as equal
NO_TIME = "no column of times is named"
_TASKS, _ACTIONS = 2_000, 8  # that are looked at for what the incumbent knew


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The way in which the log seems to have been made.

    Attributes
    ----------
    seems : {"without chance", "adaptive", "frozen", "frozen or adaptive", "in turns", "random", "unknown"}
        "frozen": it differed between tasks, and did not react to rewards, which "frozen or adaptive" leaves open; "in
        turns": shares are more alike than chance makes them; "unknown": that cannot be told.
    difference, reaction : Sign or None
        Between tasks, and to rewards; None where they cannot be tested.
    knew : float or None
        z of whether actions were taken more often where they pay.
    unordered : str or None
        Why the order of rows is not told to be that of time.
    effective : dict
        Effective rows for a uniform and a greedy target.
    varying : bool
        Whether logged propensities differ between rows of one task and action.
    rows, tasks : int
        Rows of the log, and how many tasks tell all this: the first ones, where there are very many tasks and actions.
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


def incumbent(seen: Collected) -> Incumbent | None:
    """Look at the policy that made the log; None without actions to choose from."""
    if seen.roles.action is None or len(seen.actions) < 2 or not seen.usable:
        return None
    found, why = seen.cells.whole(), unordered(seen)
    differs, reacts = difference(found.counts), None if why else reaction(found)
    size = seen.usable, len(found.cells)
    varying = bool((found.cells[:, :, at.LOW] < found.cells[:, :, at.HIGH]).any())
    if always_one_action(found.counts) is not None:
        return Incumbent("without chance", differs, reacts, None, why, {}, varying, *size)
    knew = _knew(found) if differs is not None and differs.z > DIFFERS else None
    return Incumbent(
        _seems(differs, reacts), differs, reacts, knew, why, _overlap(seen, found), varying, *size
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


def unordered(seen: Collected) -> str | None:
    """Say why the order of rows tells nothing of time; None where a column of times says that it is that of time."""
    if seen.roles.time is None:
        return NO_TIME
    return "no time can be used" if seen.timeline is None else seen.timeline.disorder()


def _knew(found: Cells) -> float | None:
    """Z of whether actions were taken more often in tasks where they pay, by a hierarchy of means of actions."""
    counts = found.counts
    some = np.sort(np.argsort(-counts.sum(axis=0), kind="stable")[:_ACTIONS])
    rows = np.flatnonzero(counts[:, some].sum(axis=1) >= 2)
    rows = rows[:: -(-rows.size // _TASKS) or 1]
    if rows.size < 3:
        return None
    moments = _means(found.cells[np.ix_(rows, some)])
    features = indicator(tuple(range(some.size)))
    try:
        return knowledge(moments, features, estimate(moments, "diag").hierarchy)
    except (HieropoError, np.linalg.LinAlgError):
        return None  # the rows do not tell


def _means(table: Array) -> Moments:
    """Moments of one mean for each action, of cells (m, K, 16)."""
    m, count = table.shape[:2]
    n, total = table[:, :, at.ROWS], table[:, :, at.SUM]
    sums = np.zeros((m, packed_size(count + 2)))
    own = np.arange(count)
    sums[:, own * (own + 1) // 2 + own] = n
    sums[:, count * (count + 1) // 2 + own] = total
    sums[:, count * (count + 1) // 2 + count] = table[:, :, at.SQUARES].sum(axis=1)
    last = (count + 1) * (count + 2) // 2
    sums[:, last : last + count] = n
    sums[:, last + count], sums[:, last + count + 1] = total.sum(axis=1), n.sum(axis=1)
    rows = n.sum(axis=1).astype(np.int64)
    return Moments(Keys(np.arange(m)), count, sums, rows, np.zeros(m))


def _overlap(seen: Collected, found: Cells) -> dict[str, float]:
    """Effective rows where a uniform policy, and one that takes each task's best action, is weighed by propensities."""
    table, counts = found.cells, found.counts
    logged = table[:, :, at.LOGGED]
    if seen.roles.pscore is not None and logged.sum():
        weight, square = table[:, :, at.INVERSE], table[:, :, at.INVERSE2]
        spread = (table[:, :, at.SHARED], table[:, :, at.SHARED2])
    else:
        chance = learn_shares(counts).strengths(np.arange(len(counts)))
        inverse = np.divide(1.0, chance, out=np.zeros_like(chance), where=counts > 0)
        weight, square = counts * inverse, counts * inverse**2
        spread = weight, square
    best = best_actions(found)
    tasks = np.flatnonzero(best >= 0)
    scale = seen.usable / float(counts.sum())  # where the first tasks tell
    return {
        "uniform": scale * effective(*spread),
        "greedy": scale * effective(weight[tasks, best[tasks]], square[tasks, best[tasks]]),
    }


def best_actions(found: Cells) -> NDArray[np.int64]:
    """The action with the largest mean reward of each task (m,), means drawn to those of all tasks; -1 without rows.

    A mean of n rows is drawn as much as its variance beside that between tasks says, by the method of moments.
    """
    n, total = found.counts, found.cells[:, :, at.SUM]
    rows = n.sum(axis=0)
    mean = np.divide(total.sum(axis=0), rows, out=np.full(rows.size, -np.inf), where=rows > 0)
    level = np.where(rows > 0, mean, 0.0)
    own = np.divide(total, n, out=np.zeros_like(n), where=n > 0)
    within = float((found.cells[:, :, at.SQUARES] - n * own**2).sum()) / max(
        float((n - 1.0).clip(0.0).sum()), 1.0
    )
    cells = float(np.count_nonzero(n)) - np.count_nonzero(rows)
    room = float(rows.sum()) - float((n**2).sum(axis=0)[rows > 0] @ (1.0 / rows[rows > 0]))
    between = (float((n * (own - level) ** 2).sum()) - cells * within) / max(room, 1e-300)
    spread = n * max(between, 0.0)
    own_share = spread / np.maximum(spread + within, 1e-300)
    score = np.where(rows > 0, level + own_share * (own - level), -np.inf)
    return np.where(n.sum(axis=1) > 0, first_largest(score, axis=1), -1)


def logging(seen: Collected, found: Incumbent | None) -> Iterator[Finding]:
    """Yield findings about the choices in the log."""
    if found is None or found.seems == "without chance":
        return
    yield from reacting(seen, found.reaction)
    if found.knew is not None and abs(found.knew) > KNEW:
        yield from knowing(found.knew, seen.roles, found.reaction, found.unordered)


def reaction_of(seen: Collected) -> Sign | None:
    """Test if actions react to rewards; None where that cannot be tested."""
    return None if seen.roles.action is None or unordered(seen) else reaction(seen.cells.whole())


def reacting(seen: Collected, reacts: Sign | None) -> Iterator[Finding]:
    """Say what follows where actions react to rewards."""
    place = f"column {seen.roles.action!r}, in order of column {seen.roles.time!r}"
    if reacts is None or abs(reacts.z) <= REACTED:
        return
    if reacts.z < 0:
        yield Finding(
            "limits", "actions flee rewards", place,
            f"Actions come less often after they were rewarded well (z = {reacts.z:.1f}).",
            f"Is {seen.roles.reward!r} a cost, of which less is better? Turn its sign. Else rewards and actions move "
            "together with time.",
        )  # fmt: skip
    else:
        yield Finding(
            "note", "adaptive logging", place,
            f"Actions come more often after they were rewarded well (z = {reacts.z:.1f}): the policy that made the log "
            "seems to have learned from it.", "Say so: logging='adaptive'.",
        )  # fmt: skip


def knowing(z: float, roles: Roles, reacts: Sign | None, unordered: str | None = None) -> Iterator[Finding]:
    """Say what follows where actions were taken more often, or less, where they pay."""
    if z < 0:
        yield Finding(
            "limits", "actions where they do not pay", f"column {roles.reward!r}",
            f"Actions were taken more often in tasks where they pay less (z = {z:.1f}).",
            f"Is {roles.reward!r} a cost, of which less is better? Turn its sign.",
        )  # fmt: skip
        return
    if reacts is not None and reacts.z > REACTED:
        return  # it learned from these rows, which the likelihood of the rewards allows for
    untold = f" ({unordered}, so that the log does not tell which)" if unordered else ""
    yield Finding(
        "limits", "the incumbent knew something", f"column {roles.action!r}",
        f"Actions were taken more often in tasks where they pay (z = {z:.1f}): the incumbent knew something of the "
        f"tasks, or learned from these rows{untold}.",
        "Say which: logging='frozen' if it did not learn from them, which then uses how often it took each action; "
        "logging='adaptive' if it did."
        + (" Where rows have a time, name it (time=, --time): their order then tells." if unordered == NO_TIME else ""),
    )  # fmt: skip


def overlap(seen: Collected, found: Incumbent | None) -> Iterator[Finding]:
    """Find targets whose actions too few rows took."""
    if found is None:
        return
    place = f"column {seen.roles.pscore or seen.roles.action!r}"
    for target, rows in found.effective.items():
        if not reaches(rows, FEW_EFFECTIVE) and found.rows >= FEW_EFFECTIVE:
            yield Finding(
                "limits", f"little overlap with a {target} policy", place,
                f"For a {target} policy the {found.rows:,} rows count as {rows:.1f}: too few to judge it by weighted "
                "rewards.",
                "Judge by the model, or let chance choose more often in a part of the decisions to come.", judging=True,
            )  # fmt: skip
