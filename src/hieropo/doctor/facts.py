"""Facts of a log: counts, ranges and kinds, as JSON types."""

from math import isfinite
from typing import Any

import numpy as np

from hieropo._utils.text import whole
from hieropo._utils.ties import ordered
from hieropo.doctor.collecting import LogStatistics
from hieropo.doctor.rules.incumbent import Incumbent, unordered
from hieropo.doctor.rules.time import written
from hieropo.logging_policy import cells as cell_columns
from hieropo.logging_policy.cell_tests import trend
from hieropo.rows.ids import plain

_BINS, _MOST_ACTIONS = 30, 20
_QUANTILES = {"least": 0, "quarter": 25, "median": 50, "three_quarters": 75, "most": 100}


def facts(stats: LogStatistics, logging_policy: Incumbent | None) -> dict[str, Any]:
    """Return the facts of a log by topic."""
    return {
        "rows": stats.rows,
        "usable_rows": stats.usable,
        "tasks": _tasks(stats),
        "actions": _actions(stats),
        "reward": _reward(stats),
        "columns": [_column(stats, role, column) for role, column in stats.roles.items()],
        "propensities": _propensities(stats),
        "incumbent": None if logging_policy is None else _incumbent(logging_policy),
        "time": _time(stats),
        "repeats": _repeats(stats),
    }


def quantiles(rows: Any) -> dict[str, int]:
    """Return the quantiles of numbers of rows, by name."""
    return (
        {name: int(np.percentile(rows, q, method="lower")) for name, q in _QUANTILES.items()}
        if len(rows)
        else {}
    )


def _tasks(stats: LogStatistics) -> dict[str, Any]:
    rows = stats.cells.rows[stats.cells.rows > 0]
    single = (rows > 0) & (stats.cells.tasks[stats.cells.rows > 0][:, cell_columns.SEVERAL] == 0)
    with_one_action = None if stats.roles.action is None else int(single.sum())
    return {
        "number": int(rows.size), "rows": quantiles(rows), "histogram": _histogram(rows),
        "with_one_action": with_one_action,
    }  # fmt: skip


def _histogram(rows: Any) -> dict[str, list[int]] | None:
    """Return numbers of tasks by their rows, in bins of whole numbers."""
    if not rows.size:
        return None
    low, high = int(rows.min()), int(np.ceil(rows.max()))
    edges = np.arange(low, high + 2, max(1, -(-(high - low + 1) // _BINS)))
    edges = edges if edges[-1] > high else np.append(edges, 2 * edges[-1] - edges[-2])
    return {"edges": edges.tolist(), "tasks": np.histogram(rows, edges)[0].tolist()}


def _actions(stats: LogStatistics) -> dict[str, Any] | None:
    if stats.roles.action is None:
        return None
    totals, taken = stats.cells.actions, stats.cells.tasks_of_actions()
    return {
        "number": len(stats.actions),
        "rows": quantiles(totals[totals > 0]),
        "most": [
            {"action": plain(stats.actions.values[k]), "rows": whole(float(totals[k]))}
            for k in ordered(-totals)[:_MOST_ACTIONS].tolist()
            if totals[k] > 0
        ],
        "tasks": None if taken is None else quantiles(taken[taken > 0]),
        "pairs_with_tasks": None if taken is None else int(taken.sum()),
    }


def _reward(stats: LogStatistics) -> dict[str, Any]:
    numbers = stats.reward
    if not numbers.rows:
        return {"kind": None}
    values = {f"{value:g}": count for value, count in sorted((numbers.values or {}).items())}
    return {
        "kind": numbers.kind, "low": numbers.low, "high": numbers.high,
        "mean": stats.mean_reward if stats.sampled else numbers.mean, "sd": numbers.sd,
        "values": values if numbers.values is not None else None,
    }  # fmt: skip


def _column(stats: LogStatistics, role: str, column: str) -> dict[str, Any]:
    faults = {f.reason: f.rows for f in stats.faults if f.column == column}
    numbers = stats.numbers.get(column)
    range_ = {} if numbers is None or not numbers.rows else {"low": numbers.low, "high": numbers.high}
    if numbers is not None and numbers.rows and isfinite(numbers.sd):
        range_ |= {"mean": numbers.mean, "sd": numbers.sd}
    return {"column": column, "role": role, "unusable": faults, **range_}


def _propensities(stats: LogStatistics) -> dict[str, Any] | None:
    if stats.roles.pscore is None or not (numbers := stats.numbers[stats.roles.pscore]).rows:
        return None
    return {"low": numbers.low, "high": numbers.high, "constant": numbers.low == numbers.high}


def _incumbent(logging_policy: Incumbent) -> dict[str, Any]:
    return {
        "seems": logging_policy.seems,
        "shares_differ_between_tasks": None
        if logging_policy.difference is None
        else logging_policy.difference._asdict(),
        "reacts_to_rewards": None if logging_policy.reaction is None else logging_policy.reaction._asdict(),
        "took_actions_where_they_pay": logging_policy.knew,
        "propensities_vary_within_tasks_and_actions": logging_policy.varying,
        "order_tells_nothing": logging_policy.unordered,
        "effective_rows": logging_policy.effective,
        "out_of_rows": logging_policy.rows,
        "of_first_tasks": logging_policy.tasks,
    }


def _time(stats: LogStatistics) -> dict[str, Any] | None:
    line = stats.timeline
    if line is None:
        return None
    drift = None if unordered(stats) else trend(stats.cells.complete_tasks())
    begin, end = line.longest_gap()
    return {
        "first": written(stats, line.low), "last": written(stats, line.high), "steps_back": line.back,
        "steps_back_within_tasks": line.back_in_task,
        "longest_gap": None if begin == end else [written(stats, begin), written(stats, end)],
        "drift": None if drift is None else drift._asdict(),
    }  # fmt: skip


def _repeats(stats: LogStatistics) -> dict[str, Any] | None:
    if not stats.hashed or not stats.repeats.rows:
        return None
    counts = stats.repeats
    return {
        "rows": counts.repeated,
        "exact": counts.exact,
        "columns": list(stats.hashed),
        "copies_of_all": counts.copies,
    }
