"""Rules about time: order of rows, gaps, drift of rewards, repeated rows."""

from collections.abc import Iterator

import numpy as np

from hieropo._utils.text import agreeing, counted, percent
from hieropo._utils.ties import first_largest, first_smallest
from hieropo.doctor.collecting import LogStatistics
from hieropo.doctor.examination import Finding
from hieropo.doctor.rules.incumbent import unordered
from hieropo.logging_policy.cell_tests import trend
from hieropo.logs.bad_rows.lenient import time_text

_GAP = 0.1  # share of the time span; of 100 evenly spread rows such a gap has the probability 100 e^-10
_ROWS = 100
_DRIFT, _BY = 4.0, 0.2  # standard errors, and sds of a reward: a small effect in Cohen's words


def times(stats: LogStatistics) -> Iterator[Finding]:
    """Yield findings about the order of times and gaps between them."""
    line, column = stats.timeline, stats.roles.time
    if line is None:
        return
    place = f"column {column!r}"
    if line.low == line.high:
        yield Finding(
            "note",
            "one time",
            place,
            f"All rows have the time {written(stats, line.low)}.",
            "Name a time column whose values differ, or none: equal times do not order the rows.",
        )
        return
    if (disorder := line.disorder()) is not None:
        yield Finding(
            "note", "not in order of time", place,
            f"{disorder[0].upper()}{disorder[1:]}: of {counted(line.steps_in_task, 'step')} from a row of a task to "
            "its next "
            f"row, {line.back_in_task:,} {agreeing(line.back_in_task, 'goes', 'go')} back in time and "
            f"{line.same_in_task:,} {agreeing(line.same_in_task, 'has', 'have')} the same time.",
            "Sort the log by a time that differs between the rows of a task. Adaptation of the incumbent and drift of "
            "rewards can be tested only in that order.",
        )  # fmt: skip
    begin, end = line.longest_gap()
    share = (end - begin) / (line.high - line.low)
    if line.steps >= _ROWS and share >= _GAP:
        yield Finding(
            "note", "gap in time", f"{place}, {written(stats, begin)} to {written(stats, end)}",
            f"There is no row from about {written(stats, begin)} to {written(stats, end)}, {percent(share)} of the "
            "time.",
            "Is a file missing, or is a time wrong?",
        )  # fmt: skip


def written(stats: LogStatistics, value: float) -> str:
    """Return a time of the log as text."""
    assert stats.time_kind is not None
    return time_text(value, stats.time_kind)


def drift(stats: LogStatistics) -> Iterator[Finding]:
    """Yield a finding where rewards drift with time, within tasks and actions or over all rows."""
    within_tasks = None if unordered(stats) else trend(stats.cells.complete_tasks())
    if within_tasks is not None and abs(within_tasks.z) > _DRIFT and abs(within_tasks.effect) > _BY:
        has_contexts = bool(stats.roles.context)
        yield Finding(
            "note" if has_contexts else "limits", "drift",
            f"column {stats.roles.reward!r}, in order of column {stats.roles.time!r}",
            f"{'A task' if stats.roles.action is None else 'The same action in the same task'} has "
            f"{'higher' if within_tasks.effect > 0 else 'lower'} rewards in later rows: by "
            f"{abs(within_tasks.effect):.2g} standard deviations of a reward from a task's first row to its last (z = "
            f"{within_tasks.z:.1f}).",
            "If context columns do not explain that, learn from the later rows, or make time a context column."
            if has_contexts
            else "The model learns the mean over that time. Fit the later rows, or make time a context column.",
        )  # fmt: skip
        return
    if stats.timeline is None or not stats.reward.sd:
        return
    fifths = stats.timeline.fifths()
    means = fifths[:, 1] / fifths[:, 0]
    if len(fifths) < 2:
        return
    errors = np.sqrt(np.maximum(fifths[:, 2] / fifths[:, 0] - means**2, 0.0) / fifths[:, 0])
    low, high = int(first_smallest(means)), int(first_largest(means))
    difference, error = means[high] - means[low], float(np.hypot(errors[low], errors[high]))
    if difference > _BY * stats.reward.sd and difference > 2 * _DRIFT * error:
        yield Finding(
            "note", "rewards differ over time", f"column {stats.roles.time!r}",
            f"Of five equal parts of the rows in order of time, part {low + 1} has the mean reward {means[low]:.4g} "
            "and "
            f"part {high + 1} has {means[high]:.4g}.",
            "Have rewards changed, or do these parts hold other tasks and actions?",
        )  # fmt: skip


def repeats(stats: LogStatistics) -> Iterator[Finding]:
    """Yield a finding about repeated rows."""
    counts = stats.repeats
    if not counts.rows or not stats.hashed:
        return
    about = "" if counts.exact else "about "
    columns = (
        f"in all {len(stats.hashed)} columns" if len(stats.hashed) > 1 else f"in column {stats.hashed[0]!r}"
    )
    if counts.copies > 1:
        yield Finding(
            "limits", "every row is repeated", "all rows",
            f"Every row occurs {counts.copies} times or a multiple of it, with equal values {columns}.",
            "Was a file read twice, or did a join multiply rows? All intervals are too narrow. Drop the copies.",
        )  # fmt: skip
    elif counts.beyond_chance:
        yield Finding(
            "limits", "repeated rows", "all rows",
            f"{about.capitalize()}{counts.repeated:,.0f} rows repeat an earlier one {columns}, and there are more "
            "pairs than independent rows give.", "Were rows sent twice? Drop the copies, by an id of the decision.",
        )  # fmt: skip
