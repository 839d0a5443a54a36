"""Messages about rows that were set aside, and the test that a log can do without them."""

from hieropo._utils.packed import unpack
from hieropo._utils.text import agreeing, counted
from hieropo.errors import LogError, warn
from hieropo.logs.bad_rows.rejects import NO_NUMBER, NOTHING, Rejected, Rejects
from hieropo.moments.spread import mean_reward
from hieropo.moments.statistics import Moments
from hieropo.rows.batches import Roles
from hieropo.rows.keys import Keys


def constant_reward(moments: Moments) -> float | None:
    """Return the reward that all rows have, up to rounding; None where they differ, or there are none."""
    if not len(moments):
        return None
    last = unpack(moments.sums.sum(axis=0), moments.dim + 2)[
        moments.dim :, moments.dim :
    ]  # sum w (r, 1)(r, 1)'
    if last[1, 1] <= 0.0:
        return None
    mean, square = float(last[0, 1] / last[1, 1]), float(last[0, 0] / last[1, 1])
    return mean_reward(moments) if square - mean * mean <= 1e-12 * square else None


def settle(rejects: Rejects, roles: Roles, kept: int, tasks: Keys, constant: float | None = None) -> Rejected:
    """Say what was set aside of a log, and refuse what is left where it cannot stand for the whole.

    Parameters
    ----------
    rejects : Rejects
        What took the rows; its file is written here.
    roles : Roles
    kept : int
        Rows that are left.
    tasks : Keys
        Their tasks.
    constant : float, optional
        The reward of all of them, where they have one only.

    Raises
    ------
    LogError
        Rows had to be set aside and may not be; more than half were; rows without a reward were, and all others have
        the same one.

    Warns
    -----
    HieropoWarning
        Rows were set aside: how many and why, and whether those that are left may differ from them.
    """
    found = rejects.found(kept, tasks)
    told = {each.column for each in found.reasons if each.reason == NO_NUMBER}
    for column in found.texts:
        if column not in told:
            warn(f"Column {column!r} is text, and was read as the numbers that it holds.")
    if not found.rows:
        return found
    found.check(lenient=rejects.lenient)
    nothing, were = (*NOTHING, NO_NUMBER), agreeing(found.rows, "was", "were")
    unrewarded = [each for each in found.reasons if each.column == roles.reward and each.reason in nothing]
    if unrewarded and constant is not None:
        raise LogError(
            f"{found.counted()} {were} set aside, and all others have the reward {constant:g}, of which nothing can be "
            f"learned.{found.listed} Does a missing reward stand for another one, such as 0? Then write that in column "
            f"{roles.reward!r}."
        )
    warn(" ".join([f"{found.counted()} {were} set aside.{found.listed}", *_doubts(found, bool(unrewarded))]))
    return found


def _doubts(found: Rejected, unrewarded: bool) -> list[str]:  # noqa: FBT001 - private
    """Reasons why the rows that are left may differ from those that are not."""
    told = []
    if unrewarded:
        told.append(
            "If a row without a reward is one of which nothing came, its reward is 0 and has to be written; else all "
            "that is learned is too good."
        )
    told.extend(
        f"Of action {each.action!r} {counted(each.rows, 'row')} {agreeing(each.rows, 'was', 'were')} set aside, where "
        f"{each.expected:,.0f} are expected if that had nothing to do with the action: what is left of it may differ "
        "from what is gone."
        for each in found.uneven[:3]
    )
    if found.lost:
        names = ", ".join(repr(task) for task in found.lost_tasks) + (", ..." if found.lost > 3 else "")
        told.append(f"No row is left of {counted(found.lost, 'task')} ({names}).")
    return told
