"""Messages about rows that were set aside, and the test that a log can do without them."""

from hieropo._utils.packed import unpack
from hieropo._utils.text import agreeing, counted
from hieropo.errors import LogError, warn
from hieropo.logs.bad_rows.rejects import MISSING_REASONS, NO_NUMBER, Rejected, Rejects
from hieropo.moments.spread import mean_reward
from hieropo.moments.statistics import Moments
from hieropo.rows.batches import Roles
from hieropo.rows.keys import Keys


def constant_reward(moments: Moments) -> float | None:
    """Return the reward that all rows share, up to rounding; None where rewards differ or there are no rows."""
    if not len(moments):
        return None
    d = moments.unit_dim
    last = unpack(moments.unit_sums.sum(axis=0), d + 2)[d:, d:]  # sum w (r, 1)(r, 1)'
    if last[1, 1] <= 0.0:
        return None
    mean, square = float(last[0, 1] / last[1, 1]), float(last[0, 0] / last[1, 1])
    return mean_reward(moments) if square - mean * mean <= 1e-12 * square else None


def settle(rejects: Rejects, roles: Roles, kept: int, tasks: Keys, constant: float | None = None) -> Rejected:
    """Return and warn about the rows that were set aside; raise where the other rows cannot stand for the log.

    Parameters
    ----------
    rejects : Rejects
        The collector of these rows; its file is written here.
    roles : Roles
    kept : int
        Rows that are kept.
    tasks : Keys
        Their tasks.
    constant : float, optional
        The reward of all kept rows, where it is the same.

    Raises
    ------
    LogError
        Rows cannot be used and may not be set aside; more than half were set aside; or rows without a reward were, and
        all others have the same reward.

    Warns
    -----
    HieropoWarning
        Rows were set aside: how many and why, and whether the kept rows may differ from them.
    """
    rejected = rejects.finish(kept, tasks)
    reported = {reason.column for reason in rejected.reasons if reason.reason == NO_NUMBER}
    for column in rejected.texts:
        if column not in reported:
            warn(f"Column {column!r} is of type text, and its values were read as numbers.")
    if not rejected.rows:
        return rejected
    rejected.check(lenient=rejects.lenient)
    missing, were = (*MISSING_REASONS, NO_NUMBER), agreeing(rejected.rows, "was", "were")
    unrewarded = [
        reason for reason in rejected.reasons if reason.column == roles.reward and reason.reason in missing
    ]
    if unrewarded and constant is not None:
        raise LogError(
            f"{rejected.counted()} {were} set aside, and all others have the reward {constant:g}, from which missing "
            f"can be learned.{rejected.listed} Does a missing reward mean another value, such as 0? Then write that "
            f"value in column {roles.reward!r}."
        )
    warn(
        " ".join(
            [
                f"{rejected.counted()} {were} set aside.{rejected.listed}{rejected.commas}",
                *_doubts(rejected, bool(unrewarded)),
            ]
        )
    )
    return rejected


def _doubts(rejected: Rejected, unrewarded: bool) -> list[str]:  # noqa: FBT001 - private
    """Return reasons why the kept rows may differ from the rows that were set aside."""
    doubts = []
    if unrewarded:
        doubts.append(
            "If a row without a reward is a decision without an outcome, its reward is 0 and has to be written as "
            "0; else all estimates of rewards are too high."
        )
    doubts.extend(
        f"Of action {each.action!r} {counted(each.rows, 'row')} {agreeing(each.rows, 'was', 'were')} set aside, "
        f"where {each.expected:,.0f} are expected if that had nothing to do with the action: what is left of it may "
        "differ from what is gone."
        for each in rejected.uneven[:3]
    )
    if rejected.lost:
        names = ", ".join(repr(task) for task in rejected.lost_tasks) + (", ..." if rejected.lost > 3 else "")
        doubts.append(f"No row is left of {counted(rejected.lost, 'task')} ({names}).")
    return doubts
