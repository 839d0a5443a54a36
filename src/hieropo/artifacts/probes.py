"""Numbers that a saved policy has to give again, computed along the way of a real decision."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo.artifacts.table import StoredTable
from hieropo.core.gaussian import Gaussian
from hieropo.core.hierarchy import Hierarchy
from hieropo.core.laws import TaskTable
from hieropo.core.policy import LCBPolicy
from hieropo.core.statistics import Moments

PROBES = 5
TOLERANCE = 1e-6  # the sd of a nearly singular covariance is known to the square root of the precision

Array = NDArray[np.float64]


def fixed_bounds(policy: LCBPolicy) -> dict[str, Any]:
    """Lower bounds of a few tasks and of the prior in two fixed directions, as the policy computes them."""
    table: Any = policy.table
    rows = _spread(len(table.keys))
    phi = _directions(table.dim)
    return {
        "rows": rows,
        "lower_bounds": [policy.lower_bound(table.keys.values[row], phi).tolist() for row in rows],
        "prior": _bound(table.prior, phi, policy.pessimism).tolist(),
    }


def _spread(count: int) -> list[int]:
    return sorted({int(row) for row in np.linspace(0, count - 1, PROBES)}) if count else []


def _directions(dim: int) -> Array:
    angles = np.arange(1.0, 2 * dim + 1).reshape(2, dim)
    return np.asarray(np.cos(angles), dtype=np.float64)


def _bound(law: Gaussian, phi: Array, pessimism: float) -> Array:
    mean, var = law.project(phi)
    bound: Array = mean - pessimism * np.sqrt(var)
    return bound


def difference(table: StoredTable, pessimism: float, saved: dict[str, Any]) -> str | None:
    """Say where a table gives other lower bounds than the saved policy; None where it gives the same.

    The tasks are looked up and read as for a decision, and their bounds follow from the definition alone: the
    compiled loops by which the saved policy computed them are not loaded.
    """
    phi = _directions(table.dim)
    laws = [(f"the task in row {row}", table.task(table.keys.id_of(row))) for row in saved["rows"]]
    laws.append(("an unseen task", table.prior))
    for (name, law), old in zip(laws, [*saved["lower_bounds"], saved["prior"]], strict=True):
        new = _bound(law, phi, pessimism)
        if not np.allclose(new, old, rtol=0.0, atol=TOLERANCE * _size(law, pessimism)):
            return f"the lower bounds of {name} along fixed directions are {new}, and were {old} when saved"
    return None


def _size(law: Gaussian, pessimism: float) -> float:
    """Largest value that a bound along a direction with entries up to 1 can have."""
    return float(np.abs(law.mean).sum() + abs(pessimism) * law.sd.sum())


def check_moments(table: TaskTable, moments: Moments, hierarchy: Hierarchy, hyper: Gaussian) -> str | None:
    """Say where, for a few tasks, the table does not follow from moments and hyper-posterior; None where it does.

    With further levels a task's parent is not the root, and nothing is compared.
    """
    from hieropo.core.steps import Parents, down, square_roots, upper_factor

    if hierarchy.levels or not len(moments):
        return None
    few = moments.select(moments.tasks[_spread(len(moments))])
    factor, regular = upper_factor(hierarchy.task_cov)
    root = Parents.of(hyper.mean[None], square_roots(hyper.cov[None]), factor, regular=regular)
    parent = np.zeros(len(few), dtype=np.int64)
    means, covs, _ = down(few.sums, 1.0 / hierarchy.noise_var, factor, parent, root)
    for task, mean, cov in zip(few.tasks, means, covs, strict=True):
        row = table.keys.find(task)
        if row < 0:
            return f"The moments hold the task {task!r}, which the policy does not know."
        for name, found, stored, size in (
            ("mean", mean, table.means[row], np.abs(mean).sum() + np.sqrt(np.abs(cov).max())),
            ("covariance", cov, table.covs[row], np.abs(cov).max()),
        ):
            if not np.allclose(found, stored, rtol=0.0, atol=TOLERANCE * size):
                return f"The policy has for task {task!r} the {name} {stored}; the moments give {found}."
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
