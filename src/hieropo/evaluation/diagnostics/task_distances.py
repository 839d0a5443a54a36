"""Distances of tasks from their prediction by all others: the hierarchy, with one task left out at a time.

The message [P b] of a task to its parent is that of the observation y = R parent + N(0, I), R'R = P, R'y = b. With the
parent N(m, S) given all rows, it is N(m_o, S_o) given the rows of the others, S_o^-1 = S^-1 - P. So y - R m_o has the
covariance

    I + R S_o R' = (I - R S R')^-1,   and is (I - R S R')^-1 (y - R m):   D^2 = (y - R m)' (I - R S R')^-1 (y - R m)

which is chi-squared with as many degrees of freedom as P has rank, less one for each direction in which the others
have no information (an eigenvalue 0 of I - R S R'). No fit is repeated.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtr, chdtrc

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.packed import packed_size, unpack
from hieropo.model.protocol import ParentMessages, SinglePosterior

_MAX_NUMBERS = 2**20  # in one array
_MAX_WORK = 2e10  # operations, some ten seconds
_RANK = 1e-10  # least eigenvalue of a scaled P, in units of the largest
_FREE = 1e-6  # least eigenvalue of I - R S R' in a direction that others inform
_FEW_COLUMNS = 6  # up to which eigenvectors of all tasks at once cost less than a loop over tasks
_PIVOT, _FREE_PIVOT = 1e-3, 0.1  # least diagonals of triangles; smaller ones need eigenvectors


@dataclass(frozen=True, slots=True, eq=False)
class TaskDistances:
    """Distance of each task from its prediction by the others.

    Parameters
    ----------
    square : (m,) array
        D^2, chi-squared under the model.
    free : (m,) int
        Degrees of freedom; 0 for a task without a test.
    fitted, expected : (m,) array
        |y - R m|^2, the squared distance from the prediction by all tasks, and its expectation tr(I - R S R').
    """

    square: Array
    free: Codes
    fitted: Array
    expected: Array

    @property
    def p(self) -> Array:
        """P(D^2 at least as large), of each task alone, (m,)."""
        return np.asarray(np.where(self.free > 0, chdtrc(np.maximum(self.free, 1), self.square), 1.0))

    def ratio(self, tasks: NDArray[np.bool_]) -> tuple[float, float]:
        """Return ``fitted / expected`` of some tasks (m,) together, and two-sided p that it is 1.

        It is below 1 where tasks differ less than Sigma_0 says. The sum of ``fitted`` varies by at most as much as
        chi-squared with ``expected`` degrees of freedom.
        """
        fitted, expected = float(self.fitted[tasks].sum()), float(self.expected[tasks].sum())
        if expected <= 0:
            return 1.0, 1.0
        tails = float(chdtr(expected, fitted)), float(chdtrc(expected, fitted))
        return fitted / expected, min(2.0 * min(tails), 1.0)


def task_distances(posterior: SinglePosterior) -> TaskDistances:
    """Return the distance of every task, from the posterior given all rows.

    Where m d^3 steps would take too long, no task has a test.

    Parameters
    ----------
    posterior : SinglePosterior
        Of one hierarchy: ``posterior.central()`` gives the central one of a mixture.
    """
    m, d = len(posterior.moments.keys), posterior.dim
    free, distances = np.zeros(m, dtype=np.int64), np.zeros((3, m))
    if 20.0 * m * float(d) ** 3 <= _MAX_WORK:
        for part, messages in posterior.parent_messages(max(1, _MAX_NUMBERS // (d * d))):
            free[part], distances[:, part] = _distance(messages, d)
    return TaskDistances(distances[0], free, distances[1], distances[2])


def _distance(messages: ParentMessages, d: int) -> tuple[Codes, Array]:
    """Return degrees of freedom (n,), and D^2, |y - R m|^2 and its expectation (3, n), of some tasks."""
    P, b = unpack(messages.rows, d), messages.rows[:, packed_size(d) : packed_size(d) + d]
    scale = np.sqrt(np.maximum(np.diagonal(P, axis1=1, axis2=2), 0.0))
    safe = np.where(scale > 0, scale, 1.0)
    scaled, b = P / (safe[:, :, None] * safe[:, None, :]), b / safe
    means, roots = safe * messages.means, safe[:, :, None] * messages.roots
    if d <= _FEW_COLUMNS:
        return _by_eigenvectors(scaled, b, means, roots)
    free, distances = _by_cholesky(scaled, b, means, roots)
    others = np.flatnonzero(free < d)
    if others.size:
        free[others], distances[:, others] = _by_eigenvectors(
            scaled[others], b[others], means[others], roots[others]
        )
    return free, distances


def _by_cholesky(P: Array, b: Array, means: Array, roots: Array) -> tuple[Codes, Array]:
    """Return the same as :func:`_by_eigenvectors` for tasks with d degrees of freedom, 0 where nearly singular."""
    from scipy.linalg.lapack import dpotrf, dtrtrs

    n, d = b.shape
    free, R, y = np.zeros(n, dtype=np.int64), np.zeros_like(P), np.zeros_like(b)
    for k in range(n):
        factor, failed = dpotrf(P[k])
        if not failed and factor.diagonal().min() > _PIVOT:
            free[k], R[k], y[k] = d, factor, dtrtrs(factor, b[k], trans=1)[0]
    residual, shared = y - np.einsum("nij,nj->ni", R, means), R @ roots
    remaining = np.eye(d) - shared @ shared.swapaxes(1, 2)
    square = np.zeros(n)
    for k in np.flatnonzero(free).tolist():
        factor, failed = dpotrf(remaining[k])
        if failed or factor.diagonal().min() <= _FREE_PIVOT:
            free[k] = 0
            continue
        square[k] = np.square(dtrtrs(factor, residual[k], trans=1)[0]).sum()
    return free, np.stack([square, np.square(residual).sum(axis=1), np.trace(remaining, axis1=1, axis2=2)])


def _by_eigenvectors(P: Array, b: Array, means: Array, roots: Array) -> tuple[Codes, Array]:
    """Return the same as :func:`_distance`, from scaled messages and their parents, of any rank."""
    d = b.shape[1]
    lam, U = np.linalg.eigh(P)
    informed = lam > _RANK * np.maximum(lam[:, -1:], 1e-300)
    root = np.sqrt(np.where(informed, lam, 1.0))
    y = np.einsum("nij,ni->nj", U, b) / root
    R = root[:, :, None] * U.swapaxes(1, 2)
    residual = np.where(informed, y - np.einsum("nij,nj->ni", R, means), 0.0)
    shared = np.where(informed[:, :, None], R @ roots, 0.0)
    eigenvalues, W = np.linalg.eigh(np.eye(d) - shared @ shared.swapaxes(1, 2))
    free = eigenvalues > _FREE
    projected = np.einsum("nij,ni->nj", W, residual)
    square = np.where(free, projected * projected / np.where(free, eigenvalues, 1.0), 0.0).sum(axis=1)
    count = informed.sum(axis=1) - (~free).sum(axis=1)
    fitted, expected = (
        np.square(residual).sum(axis=1),
        (eigenvalues * free).sum(axis=1) - (~informed).sum(axis=1),
    )
    return np.maximum(count, 0).astype(np.int64), np.stack([square, fitted, np.maximum(expected, 0.0)])
