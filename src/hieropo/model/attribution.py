"""Where a posterior mean comes from: the prior and the rows of each task, and what it would be without a task.

Given the hierarchy the posterior mean of all coefficients is linear in the rewards. With B_z = sum v phi r / sigma^2
over the rows of task z and C_sz = cov(theta_s, theta_z | log),

    v' theta-hat_s = v' theta-hat_s(all rewards 0) + sum_z v' C_sz B_z

where the first term is the share of the prior, z = s that of the task's own rows, and z != s that of another task
(C_ss = Sigma~_s + M_s Sigma-bar M_s', C_sz = M_s Sigma-bar M_z' with two levels). Under a mixture of hierarchies each
share is the mean of those of its parts, by their weights, which are taken as given. Where tasks have unknown labels,
their spreads or kinds, C_sz is E[cov(theta_s, theta_z | log, labels)]: by the law of total expectation the posterior
mean is the mean over labels of means that are linear in the rewards, so that these shares add to it.

Without the rows of task z, whose information is G_z = R'R and whose score is q_z = B_z - G_z theta-hat_z = R'x,

    mean   v' theta-hat_s - v' C_sz R' (I - R C_zz R')^-1 x
    cov    V C_ss V' + V C_sz R' (I - R C_zz R')^-1 R C_zs V'

exactly, under the same hierarchies with the same weights. To first order in the rows of z the mean changes by
-v' C_sz q_z, which takes no decomposition of each task.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo.model.crossed.common_error import WithCommonError
from hieropo.model.protocol import TaskPosterior

_ROOM = 2**21  # doubles of one array while tasks are worked on
UNDETERMINED = 1e-9  # eigenvalue of I - R C R' below which a task alone identifies a direction


class Attribution(NamedTuple):
    """The shares of posterior means v_j' theta-hat_s.

    Attributes
    ----------
    means : (J,) array
    prior : (J,) array
        Share of the prior: the means, were all rewards 0.
    tasks : (J, m) array
        Share of the rows of each task. ``prior`` and the sum of ``tasks`` add to ``means``.
    changes : (J, m) array
        Change of the means without the rows of each task, to first order.
    """

    means: Array
    prior: Array
    tasks: Array
    changes: Array


def attribution(posterior: TaskPosterior, row: int, vectors: Array) -> Attribution:
    """Return the shares of v_j' theta-hat_s, for vectors v (J, d) and the task s at a row of the moments.

    O(m) products of a task's coefficients with the columns that tasks share, for each hierarchy of a mixture.
    """
    moments, (J, d) = posterior.moments, vectors.shape
    m = len(moments)
    means, prior, tasks, changes = np.zeros(J), np.zeros(J), np.zeros((J, m)), np.zeros((J, m))
    for weight, part in each_part(posterior):
        noise = part.noise_variances
        means += weight * (vectors @ part.means(slice(row, row + 1))[0])
        prior += weight * (vectors @ part.prior_mean(row))
        step = max(1, _ROOM // (d * d + J))
        for start in range(0, m, step):
            some = slice(start, min(start + step, m))
            scores = np.stack(
                [moments.scores(some, at, noise) for at in (np.zeros(d), part.means(some))], axis=1
            )
            shares = of_rows(part).across(row, vectors, scores, some)
            tasks[:, some] += weight * shares[:, :, 0]
            changes[:, some] -= weight * shares[:, :, 1]
    return Attribution(means, prior, tasks, changes)


def own_shares(posterior: TaskPosterior, rows: Codes, vectors: Array) -> tuple[Array, Array, Array]:
    """Return means, shares of the prior and shares of the task's own rows (n, J) of v_sj' theta-hat_s, v (n, J, d).

    As :func:`attribution` for n tasks, without a pass over all tasks: other tasks add what is left.
    """
    moments, (n, J, d) = posterior.moments, vectors.shape
    means, prior, own = np.zeros((3, n, J))
    for weight, part in each_part(posterior):
        for i, row in enumerate(np.asarray(rows).tolist()):
            alone = slice(row, row + 1)
            means[i] += weight * (vectors[i] @ part.means(alone)[0])
            prior[i] += weight * (vectors[i] @ part.prior_mean(row))
            scores = moments.scores(alone, np.zeros(d), part.noise_variances)[:, None]
            own[i] += weight * of_rows(part).across(row, vectors[i], scores, alone)[:, 0, 0]
    return means, prior, own


def without_tasks(posterior: TaskPosterior, row: int, vectors: Array, others: Codes) -> tuple[Array, Array]:
    """Return means (n, J) and covariances (n, J, J) of v_j' theta_s without the rows of each of n tasks, one at a time.

    Exact under the same hierarchies with the same weights. NaN where the other rows leave a coefficient undetermined.
    """
    n = len(others)
    return without_rows(posterior, np.full(n, row), np.broadcast_to(vectors, (n, *vectors.shape)), others)


def without_rows(posterior: TaskPosterior, rows: Codes, vectors: Array, others: Codes) -> tuple[Array, Array]:
    """Return the same for n tasks at ``rows``, vectors (n, J, d), each without the rows of the task in ``others``."""
    tasks = np.asarray(rows).tolist(), np.asarray(others).tolist()

    def removed(part: Any, i: int) -> tuple[Array, Array]:
        return _removed(part, posterior.moments, tasks[0][i], vectors[i], tasks[1][i])

    return means_and_covs_without(posterior, rows, vectors, removed)


def means_and_covs_without(
    posterior: TaskPosterior,
    rows: Codes,
    vectors: Array,
    removed: Callable[[Any, int], tuple[Array, Array]],
) -> tuple[Array, Array]:
    """Return means (n, J) and covariances (n, J, J) of v_ij' theta of the tasks at ``rows``, each without some rows.

    ``removed(part, i)`` returns the changes of means (J,) and covariances (J, J) under one hierarchy, which is
    :func:`of_rows`.
    """
    n, J, _ = vectors.shape
    means, covs, squares = np.zeros((n, J)), np.zeros((n, J, J)), np.zeros((n, J, J))
    centre = np.zeros((n, J))
    for k, (weight, part) in enumerate(each_part(posterior)):
        for i, row in enumerate(np.asarray(rows).tolist()):
            mean, cov = part.joint(np.array([row]))
            change, more = removed(of_rows(part), i)
            left = vectors[i] @ mean[0] + change
            if k == 0:
                centre[i] = left  # squares of differences keep their digits
            away = left - centre[i]
            means[i] += weight * away
            covs[i] += weight * (vectors[i] @ cov[0] @ vectors[i].T + more)
            squares[i] += weight * np.outer(away, away)
    covs += squares - means[:, :, None] * means[:, None, :]
    return centre + means, covs


def _removed(part: Any, moments: Any, row: int, vectors: Array, other: int) -> tuple[Array, Array]:
    """Return the changes of means (J,) and covariances (J, J) when the rows of one task are removed."""
    at = np.array([other])
    mean, cov = part.joint(at)
    information = moments.information(at, part.noise_variances)
    seen = np.flatnonzero(np.diagonal(information) > 0)  # coefficients that the rows of the task depend on
    if not seen.size:
        return np.zeros(len(vectors)), np.zeros((len(vectors),) * 2)
    score = moments.scores(at, mean, part.noise_variances)[0, seen]
    root, score = _rooted(information[np.ix_(seen, seen)], score)
    units = np.eye(vectors.shape[1])[seen]
    across = part.across(row, vectors, units[None], slice(other, other + 1))[:, 0] @ root.T
    values, axes = np.linalg.eigh(np.eye(len(root)) - root @ cov[0][np.ix_(seen, seen)] @ root.T)
    if values.size and values[0] < UNDETERMINED:
        return np.full(len(vectors), np.nan), np.full((len(vectors),) * 2, np.nan)
    turned = across @ axes / np.sqrt(values)
    return -(turned / np.sqrt(values)) @ (axes.T @ score), turned @ turned.T


def _rooted(information: Array, score: Array) -> tuple[Array, Array]:
    """Return R (r, d) with R'R = G, and x (r,) with R'x = q, for G (d, d) and q (d,) in its range."""
    scale = np.sqrt(np.diagonal(information))
    values, axes = np.linalg.eigh(information / np.outer(scale, scale))
    seen = values > 8 * len(values) * np.finfo(np.float64).eps * values.max(initial=0.0)
    sizes, axes = np.sqrt(values[seen]), axes[:, seen]
    return (axes * sizes).T * scale, (axes.T @ (score / scale)) / sizes


def each_part(posterior: Any) -> Iterator[tuple[float, Any]]:
    """Yield the weight of each hierarchy and the posterior under it, taken as known."""
    for weight, part in zip(posterior.weights.tolist(), posterior.parts(), strict=True):
        yield weight, part.central()


def of_rows(part: Any) -> Any:
    """Return the law whose covariances tell how means depend on rows: without an error that no row tells of."""
    return part.inner if isinstance(part, WithCommonError) else part
