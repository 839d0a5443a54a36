"""Numbers that a saved policy has to give again, computed along the way of a real decision."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo.artifacts.table import StoredKeys
from hieropo.core.gaussian import Gaussian
from hieropo.core.hierarchy import Hierarchy
from hieropo.core.laws import TaskTable
from hieropo.core.packed import unpack
from hieropo.core.policy import LCBPolicy
from hieropo.core.statistics import Moments

PROBES = 5
TOLERANCE = 1e-6  # the sd of a nearly singular covariance is known to the square root of the precision

Array = NDArray[np.float64]


def fixed_bounds(policy: LCBPolicy) -> dict[str, Any]:
    """Lower bounds of a few tasks and of the prior along two fixed directions."""
    table = policy.table
    rows = _spread(len(table.keys))
    phi = np.cos(np.arange(1.0, 2 * table.dim + 1)).reshape(2, table.dim)
    mean, var = table.prior.project(phi)
    return {
        "rows": rows,
        "lower_bounds": [policy.lower_bound(_task(table, row), phi).tolist() for row in rows],
        "prior": (mean - policy.pessimism * np.sqrt(var)).tolist(),
    }


def _spread(count: int) -> list[int]:
    return sorted({int(row) for row in np.linspace(0, count - 1, PROBES)}) if count else []


def _task(table: TaskTable, row: int) -> Any:
    keys: Any = table.keys
    return keys.id_of(row) if isinstance(keys, StoredKeys) else keys.values[row]


def difference(policy: LCBPolicy, saved: dict[str, Any]) -> str | None:
    """Say where the policy gives other numbers than were saved; None where it gives the same."""
    found = fixed_bounds(policy)
    table = policy.table
    sizes = [_size(table.means[row], table.covs[row], policy.pessimism) for row in found["rows"]]
    sizes.append(np.abs(table.prior.mean).sum() + abs(policy.pessimism) * table.prior.sd.sum())
    names = [*(f"the task in row {row}" for row in found["rows"]), "an unseen task"]
    now, then = [*found["lower_bounds"], found["prior"]], [*saved["lower_bounds"], saved["prior"]]
    for name, size, new, old in zip(names, sizes, now, then, strict=True):
        if not np.allclose(new, old, rtol=0.0, atol=TOLERANCE * size):
            return f"the lower bounds of {name} along fixed directions are {new}, and were {old} when saved"
    return None


def _size(mean: Array, packed: Array, pessimism: float) -> float:
    """Largest value that a bound along a direction with entries up to 1 can have."""
    var = np.diagonal(unpack(packed, mean.size))
    return float(np.abs(mean).sum() + abs(pessimism) * np.sqrt(np.abs(var)).sum())


def check_moments(table: TaskTable, moments: Moments, hierarchy: Hierarchy, hyper: Gaussian) -> str | None:
    """Say where the table does not follow from the moments; None where it does, for a few tasks.

    With the root at its posterior mean, the posterior mean of a task is that of the table. With further
    levels this does not hold for a task alone, and nothing is compared.
    """
    from hieropo.core.posterior import condition

    if hierarchy.levels or not len(moments):
        return None
    few = moments.select(moments.tasks[_spread(len(moments))])
    known = condition(few, hierarchy.oracle(hyper.mean))
    for task in few.tasks:
        row = table.keys.find(task)
        if row < 0:
            return f"The moments hold the task {task!r}, which the policy does not know."
        own = known.task(task).mean
        slack = TOLERANCE * _size(own, table.covs[row], 1.0)
        if not np.allclose(own, table.means[row], rtol=0.0, atol=slack):
            return f"The policy has for task {task!r} the mean {table.means[row]}; the moments give {own}."
    return None


def other_posterior(
    moments: Moments, hierarchy: Hierarchy, hyper: Gaussian | None, log_evidence: float | None
) -> str | None:
    """Say where moments and hierarchy give another hyper-posterior or evidence than was saved, else None."""
    from hieropo.core.posterior import condition

    posterior = condition(moments, hierarchy)
    if hyper is not None:
        slack = TOLERANCE * (np.abs(hyper.mean).sum() + hyper.sd.sum())
        if not np.allclose(posterior.hyper.mean, hyper.mean, rtol=0.0, atol=slack):
            return f"the hyper-posterior mean is {posterior.hyper.mean}, and was {hyper.mean} when saved"
    found = posterior.log_evidence
    if log_evidence is not None and not np.isclose(found, log_evidence, rtol=TOLERANCE, atol=TOLERANCE):
        return f"the log evidence is {found}, and was {log_evidence} when saved"
    return None
