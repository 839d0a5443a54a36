"""A self-check of saved policies: lower bounds in fixed directions, which the loaded policy must give again."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hieropo._utils.arrays import Array
from hieropo.estimation.conditioning import condition_learned
from hieropo.estimation.hyper.uncertainty import HyperUncertainty
from hieropo.model.gaussian import Gaussian, minus, plus
from hieropo.model.hierarchy import Hierarchy
from hieropo.model.table import PosteriorTable
from hieropo.moments.statistics import Moments
from hieropo.policies.lower_bound import LCBPolicy
from hieropo.rows.ids import id_array
from hieropo.rows.keys import Keys
from hieropo.storage.layout import AnyHierarchy

N_CHECKED = 5  # tasks, and actions, that are checked
TOLERANCE = 1e-6  # the sd of a nearly singular covariance is known to the square root of the precision


def fixed_bounds(policy: LCBPolicy) -> dict[str, Any]:
    """Return lower bounds of a few tasks and of the prior in fixed directions, as the policy computes them."""
    table: Any = policy.table
    rows = _spread(len(table.keys))
    phi = _features(policy.table)
    return {
        "rows": rows,
        "lower_bounds": [policy.lower_bound(table.keys.values[row], phi).tolist() for row in rows],
        "prior": _bounds(_priors(policy.table), policy.pessimism).tolist(),
    }


@dataclass
class SomeTasks:
    """The tasks that are checked of a table that comes in pieces.

    Parameters
    ----------
    rows : list of int
        In the whole table.
    """

    rows: list[int]
    _pieces: list[tuple[Any, Array, Array, float]] = field(default_factory=list)

    @classmethod
    def of(cls, count: int) -> "SomeTasks":
        """Return the tasks that are checked of a table of so many."""
        return cls(_spread(count))

    def add(self, table: PosteriorTable, first: int) -> None:
        """Keep those of a piece whose first row is ``first``; pieces come in order."""
        for row in self.rows:
            if first <= row < first + len(table.keys):
                k = row - first
                self._pieces.append(
                    (table.keys.id_of(k), table.means[k].copy(), table.covs[k].copy(), float(table.rows[k]))
                )

    def bounds(self, population: LCBPolicy) -> dict[str, Any]:
        """Return their :func:`fixed_bounds` under a policy that has a table of no task."""
        ids, means, covs, rows = zip(*self._pieces, strict=True)
        keys = Keys(id_array(list(ids), "task"))
        table = replace(
            population.table, keys=keys, means=np.array(means), covs=np.array(covs), rows=np.array(rows)
        )
        policy = LCBPolicy(
            table, population.features, pessimism=population.pessimism, unseen=population.unseen
        )
        return {**fixed_bounds(policy), "rows": self.rows}


def _spread(count: int) -> list[int]:
    return sorted({int(row) for row in np.linspace(0, count - 1, N_CHECKED)}) if count else []


def _directions(dim: int) -> Array:
    angles = np.arange(1.0, 2 * dim + 1).reshape(2, dim)
    return np.asarray(np.cos(angles), dtype=np.float64)


def _features(table: PosteriorTable) -> Array:
    """Return two directions; with separate marginals of actions, two for each of a few actions."""
    if not table.per_action:
        return _directions(table.dim)
    count, dim = table.prior_means.shape
    actions = _spread(count)
    phi = np.zeros((len(actions), 2, count, dim))
    for k, action in enumerate(actions):
        phi[k, :, action] = _directions(dim)
    return phi.reshape(2 * len(actions), count * dim)


def _priors(table: PosteriorTable) -> list[Gaussian]:
    """Return the prior of an unseen task; with separate marginals of actions, those of a few actions."""
    return [table.marginal(-1, action) for action in _spread(table.n_marginals)]


def _posteriors(table: PosteriorTable, row: int) -> list[Gaussian]:
    """Return the posterior of the task in a row, looked up as for a decision; else as :func:`_priors`."""
    found = table.keys.find(table.keys.id_of(row))
    return [table.marginal(found, action) for action in _spread(table.n_marginals)]


def _bounds(posteriors: list[Gaussian], pessimism: float) -> Array:
    bounds = []
    for posterior in posteriors:
        mean, var = posterior.project(_directions(posterior.dim))
        bounds.append(mean - pessimism * np.sqrt(var))
    return np.concatenate(bounds)


def difference(table: PosteriorTable, pessimism: float, saved: dict[str, Any]) -> str | None:
    """Return the first lower bounds of a table that differ from the saved ones, as text; None where none does.

    The tasks are looked up and read as for a decision, and their bounds follow from the definition alone: the
    compiled loops by which the saved policy computed them are not loaded.
    """
    checked = [(f"the task in row {row}", _posteriors(table, row)) for row in saved["rows"]]
    checked.append(("an unseen task", _priors(table)))
    for (name, posteriors), old in zip(checked, [*saved["lower_bounds"], saved["prior"]], strict=True):
        new = _bounds(posteriors, pessimism)
        tolerance = TOLERANCE * np.repeat([_size(posterior, pessimism) for posterior in posteriors], 2)
        if not (np.abs(new - np.asarray(old)) <= tolerance).all():
            return f"the lower bounds of {name} along fixed directions are {new}, and were {old} when saved"
    return None


def _size(posterior: Gaussian, pessimism: float) -> float:
    """Return the largest value of a bound along a direction with entries of at most 1."""
    return float(np.abs(posterior.mean).sum() + abs(pessimism) * posterior.sd.sum())


def check_moments(
    table: PosteriorTable,
    moments: Moments,
    hierarchy: AnyHierarchy,
    hyper: Gaussian,
) -> str | None:
    """Return the first of a few tasks that does not follow from moments and hyper-posterior, as text; None without one.

    Nothing is compared with further levels, metadata or the crossed prior, where parents are not the root, and with
    sampling weights, where covariances need all tasks.
    """
    from hieropo.model.steps import Parents, down, square_roots, upper_factor

    if not isinstance(hierarchy, Hierarchy) or moments.per_action or table.per_action:
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
            return f"The moments hold the task {task!r}, which the policy does not have."
        for name, computed, stored, size in (
            ("mean", mean, table.means[row], np.abs(mean).sum() + np.sqrt(np.abs(cov).max())),
            ("covariance", cov, table.covs[row], np.abs(cov).max()),
        ):
            if not np.allclose(computed, stored, rtol=0.0, atol=TOLERANCE * size):
                return (
                    f"The policy has for task {task!r} the {name} {stored}, and its moments give {computed}."
                )
    return None


def other_posterior(
    table: PosteriorTable,
    moments: Moments,
    hierarchy: AnyHierarchy,
    hyper_uncertainty: HyperUncertainty,
    saved: Any,
) -> str | None:
    """Return where the posterior of moments and hierarchy differs from the ``saved`` one, as text; None where nowhere.

    Compared are hyper-posterior and evidence, and also the tasks of the table where :func:`check_moments` does not.
    """
    posterior = condition_learned(moments, hierarchy, hyper_uncertainty)
    hyper, log_evidence = saved.hyper, saved.log_evidence
    if hyper is not None:
        tolerance = TOLERANCE * (np.abs(hyper.mean).sum() + hyper.sd.sum())
        if not np.allclose(posterior.hyper.mean, hyper.mean, rtol=0.0, atol=tolerance):
            return f"the hyper-posterior mean is {posterior.hyper.mean}, and was {hyper.mean} when saved"
    computed = posterior.log_evidence
    if log_evidence is not None and not np.isclose(computed, log_evidence, rtol=TOLERANCE, atol=TOLERANCE):
        return f"the log evidence is {computed}, and was {log_evidence} when saved"
    if hyper_uncertainty is not None or moments.sampled or hierarchy.per_action:
        recomputed = posterior.table()
        rows = table.keys.locate(recomputed.keys.values)
        for name, new, old in (
            ("means", recomputed.means, table.means),
            ("covariances", recomputed.covs, table.covs),
        ):
            if not np.allclose(
                new, np.asarray(old)[rows], rtol=TOLERANCE, atol=TOLERANCE * np.abs(new).max()
            ):
                return f"the {name} of the tasks differ from those that the moments give"
    return None
