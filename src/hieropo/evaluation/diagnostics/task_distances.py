"""Distances of tasks from their prediction by all others: the hierarchy, with one task left out at a time.

A task with [P b] says of its parent what R parent + N(0, I) = y would, R'R = P, R'y = b. With the parent N(m, S) given
all rows, what the others say is N(m_o, S_o), S_o^-1 = S^-1 - P. So y - R m_o has the covariance

    I + R S_o R' = (I - R S R')^-1,   and is (I - R S R')^-1 (y - R m):   D^2 = (y - R m)' (I - R S R')^-1 (y - R m)

which is chi-squared with as many degrees of freedom as P has rank, less one for each direction of which the others say
nothing (an eigenvalue 0 of I - R S R'). Nothing is learned again, and no prior is divided by.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtr, chdtrc

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.packed import packed_size, unpack
from hieropo.model.protocol import ParentMessages, SinglePosterior

_ROOM = 2**20  # doubles of one array
_WORK = 2e10  # operations that are worth it, some ten seconds
_RANK = 1e-10  # least share of a direction in a scaled P
_FREE = 1e-6  # least share of a direction that others speak of
_FEW_COLUMNS = 6  # up to which eigenvectors of all tasks at once cost less than a loop over tasks
_PIVOT, _FREE_PIVOT = (
    1e-3,
    0.1,
)  # least diagonals of triangles; eigenvectors tell what directions smaller ones leave


@dataclass(frozen=True, slots=True, eq=False)
class TaskDistances:
    """Distance of each task to what the others say of it.

    Parameters
    ----------
    square : (m,) array
        D^2, chi-squared under the model.
    free : (m,) int
        Its degrees of freedom; 0 for a task that no statement is made of.
    kept, expected : (m,) array
        |y - R m|^2, the distance to what all say, and tr(I - R S R'), what is expected of it.
    """

    square: Array
    free: Codes
    kept: Array
    expected: Array

    @property
    def p(self) -> Array:
        """P(D^2 at least as large), of each task alone, (m,)."""
        return np.asarray(np.where(self.free > 0, chdtrc(np.maximum(self.free, 1), self.square), 1.0))

    def ratio(self, some: NDArray[np.bool_]) -> tuple[float, float]:
        """Return ``kept / expected`` of some tasks (m,) together, and two-sided p that it is 1.

        It is below 1 where tasks differ less than Sigma_0 says. The sum of ``kept`` varies by at most as much as
        chi-squared with ``expected`` degrees of freedom.
        """
        kept, expected = float(self.kept[some].sum()), float(self.expected[some].sum())
        if expected <= 0:
            return 1.0, 1.0
        tails = float(chdtr(expected, kept)), float(chdtrc(expected, kept))
        return kept / expected, min(2.0 * min(tails), 1.0)


def task_distances(posterior: SinglePosterior) -> TaskDistances:
    """Return the distance of every task, from the posterior that its rows are in.

    Where d is so large that m d^3 steps are out of reach, no statement is made of any task.

    Parameters
    ----------
    posterior : SinglePosterior
        Of one hierarchy: ``posterior.central()`` gives the central one of a mixture.
    """
    m, d = len(posterior.moments.keys), posterior.dim
    free, found = np.zeros(m, dtype=np.int64), np.zeros((3, m))
    if 20.0 * m * float(d) ** 3 <= _WORK:
        for part, messages in posterior.parent_messages(max(1, _ROOM // (d * d))):
            free[part], found[:, part] = _distance(messages, d)
    return TaskDistances(found[0], free, found[1], found[2])


def _distance(messages: ParentMessages, d: int) -> tuple[Codes, Array]:
    """Return degrees of freedom (n,), and D^2, kept and expected (3, n) of some tasks."""
    P, b = unpack(messages.rows, d), messages.rows[:, packed_size(d) : packed_size(d) + d]
    scale = np.sqrt(np.maximum(np.diagonal(P, axis1=1, axis2=2), 0.0))
    safe = np.where(scale > 0, scale, 1.0)
    scaled, b = P / (safe[:, :, None] * safe[:, None, :]), b / safe
    means, roots = safe * messages.means, safe[:, :, None] * messages.roots
    if d <= _FEW_COLUMNS:
        return _by_eigenvectors(scaled, b, means, roots)
    free, distances = _by_cholesky(scaled, b, means, roots)
    rest = np.flatnonzero(free < d)
    if rest.size:
        free[rest], distances[:, rest] = _by_eigenvectors(scaled[rest], b[rest], means[rest], roots[rest])
    return free, distances


def _by_cholesky(P: Array, b: Array, means: Array, roots: Array) -> tuple[Codes, Array]:
    """As :func:`_by_eigenvectors`, for tasks with d degrees of freedom; 0 where a triangle is nearly singular."""
    from scipy.linalg.lapack import dpotrf, dtrtrs

    n, d = b.shape
    free, R, y = np.zeros(n, dtype=np.int64), np.zeros_like(P), np.zeros_like(b)
    for k in range(n):
        factor, failed = dpotrf(P[k])
        if not failed and factor.diagonal().min() > _PIVOT:
            free[k], R[k], y[k] = d, factor, dtrtrs(factor, b[k], trans=1)[0]
    away, shared = y - np.einsum("nij,nj->ni", R, means), R @ roots
    left = np.eye(d) - shared @ shared.swapaxes(1, 2)
    square = np.zeros(n)
    for k in np.flatnonzero(free).tolist():
        factor, failed = dpotrf(left[k])
        if failed or factor.diagonal().min() <= _FREE_PIVOT:
            free[k] = 0
            continue
        square[k] = np.square(dtrtrs(factor, away[k], trans=1)[0]).sum()
    return free, np.stack([square, np.square(away).sum(axis=1), np.trace(left, axis1=1, axis2=2)])


def _by_eigenvectors(P: Array, b: Array, means: Array, roots: Array) -> tuple[Codes, Array]:
    """As :func:`_distance`, from scaled messages and what they speak of, of any rank."""
    d = b.shape[1]
    lam, U = np.linalg.eigh(P)
    told = lam > _RANK * np.maximum(lam[:, -1:], 1e-300)
    root = np.sqrt(np.where(told, lam, 1.0))
    y = np.einsum("nij,ni->nj", U, b) / root
    R = root[:, :, None] * U.swapaxes(1, 2)
    away = np.where(told, y - np.einsum("nij,nj->ni", R, means), 0.0)
    shared = np.where(told[:, :, None], R @ roots, 0.0)
    left, W = np.linalg.eigh(np.eye(d) - shared @ shared.swapaxes(1, 2))
    free = left > _FREE
    along = np.einsum("nij,ni->nj", W, away)
    square = np.where(free, along * along / np.where(free, left, 1.0), 0.0).sum(axis=1)
    count = told.sum(axis=1) - (~free).sum(axis=1)
    kept, expected = np.square(away).sum(axis=1), (left * free).sum(axis=1) - (~told).sum(axis=1)
    return np.maximum(count, 0).astype(np.int64), np.stack([square, kept, np.maximum(expected, 0.0)])
