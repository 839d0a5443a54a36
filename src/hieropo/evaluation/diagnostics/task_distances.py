"""Distances of tasks from their prediction by all others: the hierarchy, with one task left out at a time.

A task with [P b] says of its parent what R parent + N(0, I) = y would, R'R = P, R'y = b. With the parent N(m, S) given
all rows, what the others say is N(m_o, S_o), S_o^-1 = S^-1 - P. So y - R m_o has the covariance

    I + R S_o R' = (I - R S R')^-1,   and is (I - R S R')^-1 (y - R m):   D^2 = (y - R m)' (I - R S R')^-1 (y - R m)

which is chi-squared with as many degrees of freedom as P has rank, less one for each direction of which the others say
nothing (an eigenvalue 0 of I - R S R'). Nothing is learned again, and no prior is divided by.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtr, chdtrc

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.packed import packed_size, unpack
from hieropo.model.crossed.posterior import CrossedPosterior
from hieropo.model.gaussian import minus, plus
from hieropo.model.posterior import Posterior
from hieropo.model.steps import square_roots, up, upper_factor

_ROOM = 2**20  # doubles of one array
_WORK = 2e10  # operations that are worth it, some ten seconds
_RANK = 1e-10  # least share of a direction in a scaled P
_FREE = 1e-6  # least share of a direction that others speak of


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


class _Said(NamedTuple):
    """Messages of some tasks to their parents, packed (n, q), and the parents' means (n, d) and roots (n, d, r)."""

    rows: Array
    means: Array
    roots: Array


def task_distances(posterior: Posterior | CrossedPosterior) -> TaskDistances:
    """Return the distance of every task, from the posterior that its rows are in.

    Where d is so large that m d^3 steps are out of reach, no statement is made of any task.

    Parameters
    ----------
    posterior : Posterior or CrossedPosterior
        Of one hierarchy: of a mixture its central one, of a corrected posterior the plain one.
    """
    m, d = len(posterior.moments.keys), posterior.dim
    free, found = np.zeros(m, dtype=np.int64), np.zeros((3, m))
    if 20.0 * m * float(d) ** 3 <= _WORK:
        tasks = _of_units(posterior) if isinstance(posterior, CrossedPosterior) else _of_tasks(posterior)
        for part, said in tasks:
            free[part], found[:, part] = _distance(said, d)
    return TaskDistances(found[0], free, found[1], found[2])


def _pieces(m: int, d: int) -> Iterator[slice]:
    step = max(1, _ROOM // (d * d))
    return (slice(start, min(start + step, m)) for start in range(0, m, step))


def _of_tasks(posterior: Posterior) -> Iterator[tuple[slice, _Said]]:
    stage = posterior.stages[0]
    means, roots = posterior._above[0]
    for part in _pieces(len(stage.keys), posterior.dim):
        n = part.stop - part.start
        rows, _ = up(stage.rows[part], stage.scale, stage.factor, np.arange(n), n)
        at = stage.parent[part]
        above = (means[at], roots[at])
        yield part, _Said(rows, *(above if stage.design is None else stage.design.roots(*above, part)))


def _of_units(posterior: CrossedPosterior) -> Iterator[tuple[slice, _Said]]:
    moments, hierarchy = posterior.moments, posterior.hierarchy
    K = moments.n_actions
    cov = np.tile(hierarchy.level_cov, (K, K)) + np.kron(np.eye(K), hierarchy.interaction_cov)
    new = posterior.new_task()
    root = square_roots((new.cov - cov)[None])
    mean = plus(new.mean, minus(moments.offset))
    factor, _ = upper_factor(cov)
    for part in _pieces(len(moments.keys), posterior.dim):
        n = part.stop - part.start
        some = moments.at(part)
        scaled = (some.sums / hierarchy.noise_var[:, None]).reshape(some.units.sums.shape)
        sums = replace(some, units=replace(some.units, sums=scaled)).dense().sums
        rows, _ = up(sums, 1.0, factor, np.arange(n), n)
        yield part, _Said(rows, np.tile(mean, (n, 1)), np.broadcast_to(root, (n, *root.shape[1:])))


def _distance(said: _Said, d: int) -> tuple[Codes, Array]:
    P, b = unpack(said.rows, d), said.rows[:, packed_size(d) : packed_size(d) + d]
    scale = np.sqrt(np.maximum(np.diagonal(P, axis1=1, axis2=2), 0.0))
    safe = np.where(scale > 0, scale, 1.0)
    lam, U = np.linalg.eigh(P / (safe[:, :, None] * safe[:, None, :]))
    told = lam > _RANK * np.maximum(lam[:, -1:], 1e-300)
    root = np.sqrt(np.where(told, lam, 1.0))
    y = np.einsum("nij,ni->nj", U, b / safe) / root
    R = root[:, :, None] * U.swapaxes(1, 2) * safe[:, None, :]
    away = np.where(told, y - np.einsum("nij,nj->ni", R, said.means), 0.0)
    shared = np.where(told[:, :, None], R @ said.roots, 0.0)
    left, W = np.linalg.eigh(np.eye(d) - shared @ shared.swapaxes(1, 2))
    free = left > _FREE
    along = np.einsum("nij,ni->nj", W, away)
    square = np.where(free, along * along / np.where(free, left, 1.0), 0.0).sum(axis=1)
    count = told.sum(axis=1) - (~free).sum(axis=1)
    kept, expected = np.square(away).sum(axis=1), (left * free).sum(axis=1) - (~told).sum(axis=1)
    return np.maximum(count, 0).astype(np.int64), np.stack([square, kept, np.maximum(expected, 0.0)])
