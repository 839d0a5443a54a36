"""Rules about order and time: is there order, are there gaps, do rewards move, are rows repeated."""

from collections.abc import Iterator

import numpy as np

from hieropo._utils.text import agreeing, counted, percent
from hieropo._utils.ties import first_largest, first_smallest
from hieropo.doctor.collecting import Collected
from hieropo.doctor.examination import Finding
from hieropo.doctor.rules.incumbent import unordered
from hieropo.logging_policy.cell_tests import trend
from hieropo.logs.bad_rows.lenient import time_text

_GAP = 0.1  # of the whole time without a row: with 100 rows evenly spread, chance makes one with 100 e^-10
_ROWS = 100
_DRIFT, _BY = 4.0, 0.2  # standard errors, and sds of a reward: a small effect in Cohen's words


def times(seen: Collected) -> Iterator[Finding]:
    """Order and gaps in time."""
    line, column = seen.timeline, seen.roles.time
    if line is None:
        return
    place = f"column {column!r}"
    if line.low == line.high:
        yield Finding(
            "note",
            "one time",
            place,
            f"All rows have the time {written(seen, line.low)}.",
            "Name a column whose times differ, or none: one time for all rows shows no order.",
        )
        return
    if (why := line.disorder()) is not None:
        yield Finding(
            "note", "not in order of time", place,
            f"{why[0].upper()}{why[1:]}: of {counted(line.steps_in_task, 'step')} from a row of a task to its next "
            f"row, {line.back_in_task:,} {agreeing(line.back_in_task, 'goes', 'go')} back in time and "
            f"{line.same_in_task:,} {agreeing(line.same_in_task, 'has', 'have')} the same time.",
            "Sort the log by a time that differs between the rows of a task. Only in that order can choices that react "
            "to rewards, and rewards that drift, be seen.",
        )  # fmt: skip
    begin, end = line.longest_gap()
    share = (end - begin) / (line.high - line.low)
    if line.steps >= _ROWS and share >= _GAP:
        yield Finding(
            "note", "gap in time", f"{place}, {written(seen, begin)} to {written(seen, end)}",
            f"There is no row from about {written(seen, begin)} to {written(seen, end)}, {percent(share)} of the time.",
            "Is a file missing, or is one time far off?",
        )  # fmt: skip


def written(seen: Collected, value: float) -> str:
    """Write a time of the log."""
    assert seen.time_kind is not None
    return time_text(value, seen.time_kind)


def drift(seen: Collected) -> Iterator[Finding]:
    """Find rewards that drift: within tasks and actions by the order of rows, where that is time, and over all rows."""
    recentred = None if unordered(seen) else trend(seen.cells.whole())
    if recentred is not None and abs(recentred.z) > _DRIFT and abs(recentred.effect) > _BY:
        told = bool(seen.roles.context)
        yield Finding(
            "note" if told else "limits", "drift",
            f"column {seen.roles.reward!r}, in order of column {seen.roles.time!r}",
            f"{'A task' if seen.roles.action is None else 'The same action in the same task'} brings "
            f"{'more' if recentred.effect > 0 else 'less'} in later rows: by "
            f"{abs(recentred.effect):.2g} standard deviations of a reward from a task's first row to its last (z = "
            f"{recentred.z:.1f}).",
            "If context columns do not account for that, learn from the later rows, or make time a context column."
            if told
            else "What is learned is a mean over that time. Learn from the later rows, or make time a context column.",
        )  # fmt: skip
        return
    if seen.timeline is None or not seen.reward.sd:
        return
    parts = seen.timeline.fifths()
    means = parts[:, 1] / parts[:, 0]
    if len(parts) < 2:
        return
    errors = np.sqrt(np.maximum(parts[:, 2] / parts[:, 0] - means**2, 0.0) / parts[:, 0])
    low, high = int(first_smallest(means)), int(first_largest(means))
    apart, error = means[high] - means[low], float(np.hypot(errors[low], errors[high]))
    if apart > _BY * seen.reward.sd and apart > 2 * _DRIFT * error:
        yield Finding(
            "note", "rewards differ over time", f"column {seen.roles.time!r}",
            f"Of five equal parts of the rows in order of time, number {low + 1} has the mean reward {means[low]:.4g} "
            f"and number {high + 1} {means[high]:.4g}.",
            "Have rewards changed, or are other tasks and actions in those rows?",
        )  # fmt: skip


def repeats(seen: Collected) -> Iterator[Finding]:
    """Find rows that are there more than once."""
    found = seen.repeats
    if not found.rows or not seen.hashed:
        return
    about = "" if found.exact else "about "
    columns = (
        f"in all {len(seen.hashed)} columns" if len(seen.hashed) > 1 else f"in column {seen.hashed[0]!r}"
    )
    if found.copies > 1:
        yield Finding(
            "limits", "every row is repeated", "all rows",
            f"Every row is there {found.copies} times or a multiple of it, equal {columns}.",
            "Was a file read twice, or did a join multiply rows? All intervals are too narrow; drop the copies.",
        )  # fmt: skip
    elif found.beyond_chance:
        yield Finding(
            "limits", "repeated rows", "all rows",
            f"{about.capitalize()}{found.repeated:,.0f} rows repeat an earlier one {columns}, and pairs are more than "
            "chance makes.", "Were rows sent twice? Drop the copies, by an id of the decision.",
        )  # fmt: skip
