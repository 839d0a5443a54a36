"""The answer without a single row of the log, by a step of rank one.

A row of task z has features phi, reward r, precision v (its weight times its known precision) and noise variance
sigma^2. With C_sz = cov(theta_s, theta_z | log), h = v phi' C_zz phi / sigma^2 and e = r - phi' theta-hat_z, the
posterior of task s without the row is

    mean   v' theta-hat_s - v' C_sz phi (v / sigma^2) e / (1 - h)
    cov    V C_ss V' + V C_sz phi (v / sigma^2) phi' C_zs V' / (1 - h)

exactly (Sherman and Morrison 1950), under the same hierarchies with the same weights. Without the factor 1 / (1 - h)
the changes of the mean are those to first order, which add to the first-order change without the whole task.

Rows of a cluster with the correlation rho are not independent. The likelihood of all rows is that of the other rows
times the density of the row given them, which is the density of an independent row. With k the weight of the row, and n
and S the sums of weights and of weighted (phi, r) over its cluster,

    b = rho / (1 - rho + (n - k) rho)
    (phi~, r~) = (phi, r) - b (S - k (phi, r))
    v~ = k / ((1 - rho) (1 + k b))

take the places of phi, r and v, under the same correlations. To first order the change of the row is that with phi in
one place and phi~ in the residual, since these add to the change of the task: phi' v~ e~ is the row's term of
Phi' V^-1 e, V the correlation matrix.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo.features.per_action import Crossed
from hieropo.model.attribution import UNDETERMINED, each_part, means_and_covs_without, of_rows
from hieropo.model.protocol import TaskPosterior

_ROOM = 2**21  # doubles of one array while tasks are worked on


class LoggedRows(NamedTuple):
    """Some rows of the log that a posterior was learned from.

    Parameters
    ----------
    task : (n,) int
        Rows of their tasks in the moments.
    action : (n,) int
        Codes of the actions; 0 for a map without a list of actions.
    phi : (n, p) array
        Features: of one action where each action has coefficients of its own, else all d.
    reward : (n,) array
    precision : (n,) array
        Weight times known precision of each row.
    own : (n, p) array
        Features of the row itself; ``phi`` differs where rewards of a cluster are correlated.
    """

    task: Codes
    action: Codes
    phi: Array
    reward: Array
    precision: Array
    own: Array

    def at(self, rows: Any) -> "LoggedRows":
        """Return some of the rows."""
        return LoggedRows(*(values[rows] for values in self))

    def and_also(self, more: "LoggedRows") -> "LoggedRows":
        """Return these rows and more rows behind them."""
        return LoggedRows(*(np.concatenate(pair) for pair in zip(self, more, strict=True)))

    def given_clusters(self, clusters: Array, correlation: Array) -> "LoggedRows":
        """Return the rows given the other rows of their clusters.

        Parameters
        ----------
        clusters : (n, p + 2) array
            Sums of weighted (phi, r, 1) over the cluster of each row, of its task and, where sums are kept per action,
            of its action. The precisions of these rows are their weights.
        correlation : (n,) array
            rho of each row, in [0, 1).
        """
        k, p = self.precision, self.phi.shape[1]
        shrink = correlation / (1.0 - correlation + (clusters[:, -1] - k) * correlation)
        others = clusters[:, :-1] - k[:, None] * np.column_stack([self.phi, self.reward])
        z = np.column_stack([self.phi, self.reward]) - shrink[:, None] * others
        precision = k / ((1.0 - correlation) * (1.0 + k * shrink))
        return self._replace(phi=z[:, :p], reward=z[:, p], precision=precision)


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Means, covariances and covariances with v' theta_s of tasks under one hierarchy, for each block of features."""

    weight: float
    noise_var: Array
    means: Array  # (n, K, p)
    covs: Array  # (n, K, p, p)
    across: Array  # (n, K, p)


@dataclass(frozen=True, slots=True, eq=False)
class RowChanges:
    """Changes of v' theta-hat_s without single rows of some tasks; made by :meth:`RowChanges.of`.

    Attributes
    ----------
    tasks : (n,) int
        Tasks whose rows can be left out, ascending rows of the moments.
    """

    tasks: Codes
    _parts: tuple[_Part, ...]

    @staticmethod
    def doubles(posterior: TaskPosterior, action_map: Crossed | None) -> int:
        """Return how many numbers one task takes."""
        p = posterior.dim if action_map is None else action_map.dim
        return len(posterior.weights) * posterior.dim * (p + 2)

    @classmethod
    def of(
        cls, posterior: TaskPosterior, row: int, vector: Array, tasks: Codes, action_map: Crossed | None
    ) -> Self:
        """Return the changes of v' theta-hat_s of the task at a row of the moments, for v (d,).

        Parameters
        ----------
        posterior : TaskPosterior
        row : int
        vector : (d,) array
        tasks : (n,) int
            Ascending rows of the moments.
        action_map : Crossed or None
            The features of one action, where each action has coefficients of its own.
        """
        blocks = 1 if action_map is None else posterior.dim // action_map.dim
        return cls(
            tasks,
            tuple(
                _Part(weight, part.noise_variances, *_tables(of_rows(part), row, vector, tasks, blocks))
                for weight, part in each_part(posterior)
            ),
        )

    def without(self, rows: LoggedRows) -> tuple[Array, Array]:
        """Return the changes (n,) of v' theta-hat_s without each row, and the same to first order.

        The former is NaN where the other rows leave a coefficient undetermined.
        """
        task = np.searchsorted(self.tasks, rows.task)
        exact, first_order = np.zeros((2, task.size))
        for part in self._parts:
            block = rows.action if part.means.shape[1] > 1 else np.zeros_like(rows.action)
            noise = part.noise_var[rows.action if part.noise_var.size > 1 else np.zeros_like(rows.action)]
            precision = rows.precision / noise
            residual = rows.reward - np.einsum("np,np->n", rows.phi, part.means[task, block])
            leverage = precision * np.einsum("np,npq,nq->n", rows.phi, part.covs[task, block], rows.phi)
            own, change = (
                -np.einsum("np,np->n", phi, part.across[task, block]) * precision * residual
                for phi in (rows.own, rows.phi)
            )
            left = 1.0 - leverage
            first_order += part.weight * own
            exact += part.weight * change / np.where(left < UNDETERMINED, np.nan, left)
        return exact, first_order


def without_single_rows(
    posterior: TaskPosterior, row: int, vectors: Array, rows: LoggedRows, action_map: Crossed | None
) -> tuple[Array, Array]:
    """Return means (n, J) and covariances (n, J, J) of v_j' theta_s without each of n rows, one at a time.

    ``vectors`` are (J, d), of the task s at ``row`` of the moments. NaN where the other rows leave a coefficient
    undetermined.
    """
    d, p = posterior.dim, rows.phi.shape[1]
    phi = np.zeros((rows.task.size, d // p, p))
    phi[np.arange(len(phi)), rows.action if action_map is not None else 0] = rows.phi
    phi = phi.reshape(-1, d)

    def removed(part: Any, i: int) -> tuple[Array, Array]:
        task = int(rows.task[i])
        mean, cov = (values[0] for values in part.joint(np.array([task])))
        noise = part.noise_variances
        precision = rows.precision[i] / noise[rows.action[i] if noise.size > 1 else 0]
        left = 1.0 - precision * phi[i] @ cov @ phi[i]
        if left < UNDETERMINED:
            return np.full(len(vectors), np.nan), np.full((len(vectors),) * 2, np.nan)
        across = part.across(row, vectors, phi[i][None, None], slice(task, task + 1))[:, 0, 0]
        residual = rows.reward[i] - phi[i] @ mean
        return -across * (precision * residual / left), np.outer(across, across) * (precision / left)

    n = len(phi)
    return means_and_covs_without(
        posterior, np.full(n, row), np.broadcast_to(vectors, (n, *vectors.shape)), removed
    )


def _tables(part: Any, row: int, vector: Array, tasks: Codes, blocks: int) -> tuple[Array, Array, Array]:
    """Return means (n, K, p), covariances (n, K, p, p) and covariances with v' theta_s (n, K, p) of K blocks."""
    d = vector.size
    p = d // blocks
    means, covs, across = (np.empty((tasks.size, blocks, *shape)) for shape in ((p,), (p, p), (p,)))
    for first, last in _spans(tasks, max(1, _ROOM // (d * d))):
        span = slice(int(tasks[first]), int(tasks[last - 1]) + 1)
        joint_means, joint_covs = part.joint(tasks[first:last])
        means[first:last] = joint_means.reshape(-1, blocks, p)
        whole = joint_covs.reshape(-1, blocks, p, blocks, p)
        covs[first:last] = np.einsum("nkpkq->nkpq", whole)
        units = np.broadcast_to(np.eye(d), (span.stop - span.start, d, d))
        spread = part.across(row, vector[None], units, span)[0]
        across[first:last] = spread[tasks[first:last] - span.start].reshape(-1, blocks, p)
    return means, covs, across


def _spans(tasks: Codes, step: int) -> Iterator[tuple[int, int]]:
    """Yield runs of positions in ascending ``tasks``, each of which spans at most ``step`` rows of the moments."""
    first = 0
    while first < tasks.size:
        last = int(np.searchsorted(tasks, tasks[first] + step))
        yield first, last
        first = last
