"""Numbers that a saved policy has to give again, computed along the way of a real decision."""

from typing import Any, TypeAlias

import numpy as np

from hieropo._utils.arrays import Array
from hieropo._utils.packed import unpack
from hieropo.estimation.crossed.mixture import condition_with_crossed
from hieropo.estimation.hyper.uncertainty import HyperUncertainty, condition_with
from hieropo.model.gaussian import Gaussian, minus, plus
from hieropo.model.hierarchy import Hierarchy
from hieropo.moments.statistics import Moments
from hieropo.moments.units import UnitMoments
from hieropo.policies.lower_bound import LCBPolicy
from hieropo.policies.marginals import TaskTable, UnitTable
from hieropo.storage.layout import AnyHierarchy
from hieropo.storage.table import StoredTable, StoredUnits

PROBES = 5
TOLERANCE = 1e-6  # the sd of a nearly singular covariance is known to the square root of the precision

Stored: TypeAlias = StoredTable | StoredUnits


def fixed_bounds(policy: LCBPolicy) -> dict[str, Any]:
    """Lower bounds of a few tasks and of the prior in fixed directions, as the policy computes them."""
    table: Any = policy.table
    rows = _spread(len(table.keys))
    phi = _features(policy.table)
    return {
        "rows": rows,
        "lower_bounds": [policy.lower_bound(table.keys.values[row], phi).tolist() for row in rows],
        "prior": _bounds(_prior_laws(policy.table), policy.pessimism).tolist(),
    }


def _spread(count: int) -> list[int]:
    return sorted({int(row) for row in np.linspace(0, count - 1, PROBES)}) if count else []


def _directions(dim: int) -> Array:
    angles = np.arange(1.0, 2 * dim + 1).reshape(2, dim)
    return np.asarray(np.cos(angles), dtype=np.float64)


def _features(table: TaskTable | UnitTable) -> Array:
    """Two directions; where actions have laws of their own, two for each of a few actions."""
    if not isinstance(table, UnitTable):
        return _directions(table.dim)
    count, dim = table.prior_means.shape
    actions = _spread(count)
    phi = np.zeros((len(actions), 2, count, dim))
    for k, action in enumerate(actions):
        phi[k, :, action] = _directions(dim)
    return phi.reshape(2 * len(actions), count * dim)


def _prior_laws(table: TaskTable | UnitTable) -> list[Gaussian]:
    """Law of an unseen task; where actions have laws of their own, those of a few actions."""
    if not isinstance(table, UnitTable):
        return [table.prior]
    means, covs = table.prior_means, table.prior_covs
    return [Gaussian.trusted(means[a].copy(), unpack(covs[a], means.shape[1])) for a in _spread(len(means))]


def _task_laws(table: Stored, row: int) -> list[Gaussian]:
    """The same of the task in a row, looked up and read as for a decision."""
    key = table.keys.id_of(row)
    if isinstance(table, StoredTable):
        return [table.task(key)]
    return [table.unit(key, action) for action in _spread(len(table.prior_means))]


def _bounds(laws: list[Gaussian], pessimism: float) -> Array:
    found = []
    for law in laws:
        mean, var = law.project(_directions(law.dim))
        found.append(mean - pessimism * np.sqrt(var))
    return np.concatenate(found)


def difference(table: Stored, pessimism: float, saved: dict[str, Any]) -> str | None:
    """Say where a table gives other lower bounds than the saved policy; None where it gives the same.

    The tasks are looked up and read as for a decision, and their bounds follow from the definition alone: the
    compiled loops by which the saved policy computed them are not loaded.
    """
    places = [(f"the task in row {row}", _task_laws(table, row)) for row in saved["rows"]]
    places.append(("an unseen task", _prior_laws(table)))
    for (name, laws), old in zip(places, [*saved["lower_bounds"], saved["prior"]], strict=True):
        new = _bounds(laws, pessimism)
        slack = TOLERANCE * np.repeat([_size(law, pessimism) for law in laws], 2)
        if not (np.abs(new - np.asarray(old)) <= slack).all():
            return f"the lower bounds of {name} along fixed directions are {new}, and were {old} when saved"
    return None


def _size(law: Gaussian, pessimism: float) -> float:
    """Largest value that a bound along a direction with entries up to 1 can have."""
    return float(np.abs(law.mean).sum() + abs(pessimism) * law.sd.sum())


def check_moments(
    table: TaskTable | UnitTable,
    moments: Moments | UnitMoments,
    hierarchy: AnyHierarchy,
    hyper: Gaussian,
) -> str | None:
    """Say where, for a few tasks, the table does not follow from moments and hyper-posterior; None where it does.

    With further levels, metadata or the crossed prior, a parent is not the root, and nothing is compared; nor where
    rows have sampling weights, since covariances then need all tasks.
    """
    from hieropo.model.steps import Parents, down, square_roots, upper_factor

    if (
        not isinstance(hierarchy, Hierarchy)
        or isinstance(moments, UnitMoments)
        or isinstance(table, UnitTable)
    ):
        return None
    if hierarchy.levels or hierarchy.metadata is not None or not len(moments) or moments.sampled:
        return None
    offset = moments.offset
    tasks = moments.tasks[_spread(len(moments))]
    sums: Array = moments.select(tasks).sums
    factor, regular = upper_factor(hierarchy.task_cov)
    roots = square_roots(hyper.cov[None])
    parents = Parents.of(plus(hyper.mean[None], minus(offset)), roots, factor, regular=regular)
    root = np.zeros(len(sums), dtype=np.int64)
    means, covs, _ = down(sums, 1.0 / hierarchy.noise_var, factor, root, parents)
    for task, mean, cov in zip(tasks, plus(means, offset), covs, strict=True):
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
    table: TaskTable | UnitTable,
    moments: Moments | UnitMoments,
    hierarchy: AnyHierarchy,
    hyper_uncertainty: HyperUncertainty,
    saved: Any,
) -> str | None:
    """Say where moments, hierarchy and doubt give another posterior than was ``saved``, else None.

    Compared are hyper-posterior and evidence, and the tasks of the table too where :func:`check_moments` does not.
    """
    posterior: Any
    if isinstance(moments, UnitMoments) and not isinstance(hierarchy, Hierarchy):
        posterior = condition_with_crossed(moments, hierarchy)
    else:
        assert isinstance(moments, Moments)
        assert isinstance(hierarchy, Hierarchy)
        posterior = condition_with(moments, hierarchy, hyper_uncertainty)
    hyper, log_evidence = saved.hyper, saved.log_evidence
    if hyper is not None:
        slack = TOLERANCE * (np.abs(hyper.mean).sum() + hyper.sd.sum())
        if not np.allclose(posterior.hyper.mean, hyper.mean, rtol=0.0, atol=slack):
            return f"the hyper-posterior mean is {posterior.hyper.mean}, and was {hyper.mean} when saved"
    found = posterior.log_evidence
    if log_evidence is not None and not np.isclose(found, log_evidence, rtol=TOLERANCE, atol=TOLERANCE):
        return f"the log evidence is {found}, and was {log_evidence} when saved"
    if hyper_uncertainty is not None or moments.sampled or not isinstance(hierarchy, Hierarchy):
        again = posterior.table()
        rows = table.keys.locate(again.keys.values)
        for name, new, old in (("means", again.means, table.means), ("covariances", again.covs, table.covs)):
            if not np.allclose(
                new, np.asarray(old)[rows], rtol=TOLERANCE, atol=TOLERANCE * np.abs(new).max()
            ):
                return f"the {name} of the tasks are not those that the moments give"
    return None
