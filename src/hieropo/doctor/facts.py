"""The facts of a log, before any rule: counts, ranges and kinds, as JSON can hold them."""

from math import isfinite
from typing import Any

import numpy as np

from hieropo.doctor.collecting import Collected
from hieropo.doctor.rules.incumbent import Incumbent, unordered
from hieropo.doctor.rules.time import written
from hieropo.logging_policy import cells as at
from hieropo.logging_policy.cell_tests import trend

_QUANTILES = {"least": 0, "quarter": 25, "median": 50, "three_quarters": 75, "most": 100}


def facts(seen: Collected, found: Incumbent | None) -> dict[str, Any]:
    """Return what is in the log."""
    return {
        "rows": seen.rows,
        "usable_rows": seen.usable,
        "tasks": _tasks(seen),
        "actions": _actions(seen),
        "reward": _reward(seen),
        "columns": [_column(seen, role, column) for role, column in seen.roles.items()],
        "propensities": _propensities(seen),
        "incumbent": None if found is None else _incumbent(found),
        "time": _time(seen),
        "repeats": _repeats(seen),
    }


def quantiles(rows: Any) -> dict[str, int]:
    """Return quantiles of numbers of rows."""
    return (
        {name: int(np.percentile(rows, q, method="lower")) for name, q in _QUANTILES.items()}
        if len(rows)
        else {}
    )


def _tasks(seen: Collected) -> dict[str, Any]:
    rows = seen.cells.rows[seen.cells.rows > 0]
    single = (rows > 0) & (seen.cells.tasks[seen.cells.rows > 0][:, at.SEVERAL] == 0)
    one = None if seen.roles.action is None else int(single.sum())
    return {"number": int(rows.size), "rows": quantiles(rows), "with_one_action": one}


def _actions(seen: Collected) -> dict[str, Any] | None:
    if seen.roles.action is None:
        return None
    totals, taken = seen.cells.actions, seen.cells.tasks_of_actions()
    return {
        "number": len(seen.actions),
        "rows": quantiles(totals[totals > 0]),
        "tasks": None if taken is None else quantiles(taken[taken > 0]),
        "pairs_with_tasks": None if taken is None else int(taken.sum()),
    }


def _reward(seen: Collected) -> dict[str, Any]:
    found = seen.reward
    if not found.rows:
        return {"kind": None}
    values = {f"{value:g}": count for value, count in sorted((found.values or {}).items())}
    return {
        "kind": found.kind, "low": found.low, "high": found.high,
        "mean": seen.mean_reward if seen.sampled else found.mean, "sd": found.sd,
        "values": values if found.values is not None else None,
    }  # fmt: skip


def _column(seen: Collected, role: str, column: str) -> dict[str, Any]:
    faults = {f.reason: f.rows for f in seen.faults if f.column == column}
    found = seen.numbers.get(column)
    range_ = {} if found is None or not found.rows else {"low": found.low, "high": found.high}
    if found is not None and found.rows and isfinite(found.sd):
        range_ |= {"mean": found.mean, "sd": found.sd}
    return {"column": column, "role": role, "unusable": faults, **range_}


def _propensities(seen: Collected) -> dict[str, Any] | None:
    if seen.roles.pscore is None or not (found := seen.numbers[seen.roles.pscore]).rows:
        return None
    return {"low": found.low, "high": found.high, "constant": found.low == found.high}


def _incumbent(found: Incumbent) -> dict[str, Any]:
    return {
        "seems": found.seems,
        "shares_differ_between_tasks": None if found.difference is None else found.difference._asdict(),
        "reacts_to_rewards": None if found.reaction is None else found.reaction._asdict(),
        "took_actions_where_they_pay": found.knew,
        "propensities_vary_within_tasks_and_actions": found.varying,
        "order_tells_nothing": found.unordered,
        "effective_rows": found.effective,
        "out_of_rows": found.rows,
        "of_first_tasks": found.tasks,
    }


def _time(seen: Collected) -> dict[str, Any] | None:
    line = seen.timeline
    if line is None:
        return None
    recentred = None if unordered(seen) else trend(seen.cells.whole())
    begin, end = line.longest_gap()
    return {
        "first": written(seen, line.low), "last": written(seen, line.high), "steps_back": line.back,
        "steps_back_within_tasks": line.back_in_task,
        "longest_gap": None if begin == end else [written(seen, begin), written(seen, end)],
        "drift": None if recentred is None else recentred._asdict(),
    }  # fmt: skip


def _repeats(seen: Collected) -> dict[str, Any] | None:
    if not seen.hashed or not seen.repeats.rows:
        return None
    found = seen.repeats
    return {
        "rows": found.repeated,
        "exact": found.exact,
        "columns": list(seen.hashed),
        "copies_of_all": found.copies,
    }
