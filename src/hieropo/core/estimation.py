"""Moment estimates of the hierarchy: a simple, honest default until likelihood estimates replace it.

Noise: the residual variance inside tasks, pooled over all tasks with more rows than their features' rank.

Task covariance: with a working prior N(beta, T) the posterior mean of a task deviates from beta by
``v_s = N_s (theta_s - beta) + noise``, ``N_s = Sigma~_s G_s``, so that E[v_s v_s'] = N_s Sigma_0 N_s' + N_s Sigma~_s.
Summed over tasks this is linear in Sigma_0. It is solved by least squares, projected on the positive semi-definite
matrices, and used as the working prior of the next round. Unbiased for known beta and noise, up to the projection.
"""

import warnings
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hieropo.core.gaussian import Array, Gaussian
from hieropo.core.hierarchy import Hierarchy
from hieropo.core.packed import packed_size, unpack
from hieropo.core.posterior import condition
from hieropo.core.statistics import Moments
from hieropo.errors import HieropoWarning, InputError, LogError

TaskCov = Literal["auto", "full", "diag"]

_ROUNDS = 4
_FULL_DIM = 8  # above it d (d + 1) / 2 entries are rarely worth estimating by moments
_TASKS_PER_ENTRY = 2
_MOST_TASKS = 10_000


def moment_estimates(moments: Moments, task_cov: TaskCov = "auto") -> Hierarchy:
    """Estimate noise_var and task_cov from the moments alone; the hyper-prior is flat.

    Parameters
    ----------
    moments : Moments
    task_cov : {"auto", "full", "diag"}
        Shape of Sigma_0. "auto" is "full" for at most 8 features and at least two tasks for each entry of Sigma_0,
        else "diag".

    Raises
    ------
    LogError
        No rows at all.
    NumericalError
        The population mean is not determined: a feature that never varies, or features that are copies.

    Warns
    -----
    HieropoWarning
        The log cannot tell noise from differences between tasks (no task has more rows than features), has one task,
        or has rewards without noise.
    """
    if task_cov not in ("auto", "full", "diag"):
        raise InputError(f"task_cov={task_cov!r}; one of 'auto', 'full', 'diag' is needed.")
    if not moments.n_rows:
        raise LogError("The log has no rows, so nothing can be estimated from it. Was a filter too strict?")
    noise_var = _noise(moments)
    active = moments.select(moments.tasks[moments.rows > 0])
    if len(active) == 1:
        _warn("The log has one task, so how much tasks differ cannot be learned: task_cov is zero.")
        return Hierarchy(hyper=None, task_cov=np.zeros((moments.dim, moments.dim)), noise_var=noise_var)
    if len(active) > _MOST_TASKS:
        active = active.select(active.tasks[:: -(-len(active) // _MOST_TASKS)])
    full = task_cov == "full" or (
        task_cov == "auto"
        and moments.dim <= _FULL_DIM
        and len(active) >= _TASKS_PER_ENTRY * packed_size(moments.dim)
    )
    cov = _first_guess(active, noise_var)
    for _ in range(_ROUNDS):
        working = cov + np.diag(
            1e-3 * np.maximum(np.diagonal(cov), 1e-9 * _first_guess(active, noise_var).diagonal())
        )
        cov = _one_round(active, Hierarchy(hyper=None, task_cov=working, noise_var=noise_var), full=full)
    return Hierarchy(hyper=None, task_cov=cov, noise_var=noise_var)


def _residuals(sums: Array, d: int) -> tuple[Array, NDArray[np.int64]]:
    """Residual sum of squares of each task's own least squares (m,), and the rank of its features (m,)."""
    joint = unpack(sums, d + 1)
    scale = np.sqrt(np.diagonal(joint[:, :d, :d], axis1=1, axis2=2))
    safe = np.where(scale > 0, scale, 1.0)
    values, vectors = np.linalg.eigh(joint[:, :d, :d] / (safe[:, :, None] * safe[:, None, :]))
    seen = values > 1e-12
    along = np.einsum("sij,si->sj", vectors, joint[:, :d, d] / safe)
    explained = np.where(seen, along**2 / np.where(seen, values, 1.0), 0.0).sum(axis=1)
    return np.maximum(joint[:, d, d] - explained, 0.0), seen.sum(axis=1)


def pooled_noise(moments: Moments) -> float:
    """Residual variance of one least-squares fit to the rows of all tasks together, in squared reward units."""
    squares, ranks = _residuals(moments.sums.sum(axis=0, keepdims=True), moments.dim)
    free = moments.n_rows - int(ranks[0])
    return _above_rounding(moments, float(squares[0]) / free if free > 0 else 0.0)


def empirical_flat(hierarchy: Hierarchy, moments: Moments) -> Hierarchy:
    """Return FlatOPO's prior from an estimate: N(0, diag(mu_j^2 + Sigma_0_jj)), the usual size of each coefficient."""
    mu = condition(moments, hierarchy).hyper.mean
    size = mu**2 + np.diagonal(hierarchy.task_cov)
    known = Gaussian(np.zeros(mu.size), np.zeros((mu.size, mu.size)))
    return Hierarchy(hyper=known, task_cov=np.diag(size), noise_var=hierarchy.noise_var)


def _noise(moments: Moments) -> float:
    step = -(-len(moments) // _MOST_TASKS) or 1
    squares, ranks = _residuals(moments.sums[::step], moments.dim)
    free = moments.rows[::step] - ranks
    if (free > 0).any():
        return _above_rounding(moments, float(squares[free > 0].sum() / free[free > 0].sum()))
    _warn(
        f"No task has more rows than features ({moments.dim}), so noise cannot be told from differences between tasks; "
        "the residual variance of a pooled fit is taken as noise_var, which is too large where tasks differ."
    )
    return pooled_noise(moments)


def _above_rounding(moments: Moments, noise_var: float) -> float:
    squares = float(moments.sums[:, packed_size(moments.dim + 1) - 1].sum())
    floor = 1e-10 * (squares / moments.n_rows or 1.0)
    if noise_var > floor:
        return noise_var
    _warn(
        f"Rewards are without noise given the features; noise_var is set to {floor:.3g}, far below the rewards."
    )
    return floor


def _first_guess(moments: Moments, noise_var: float) -> Array:
    """Diagonal prior under which each feature explains as much reward variance as there is."""
    d, n = moments.dim, moments.n_rows
    total = moments.sums.sum(axis=0)
    squares = np.array([total[packed_size(j + 1) - 1] for j in range(d + 2)])
    variance = max(float(squares[d] - total[packed_size(d + 1) + d] ** 2 / squares[d + 1]) / n, noise_var)
    return np.diag(variance * n / (d * np.where(squares[:d] > 0, squares[:d], 1.0)))


def _one_round(moments: Moments, working: Hierarchy, *, full: bool) -> Array:
    d, m = moments.dim, len(moments)
    posterior = condition(moments, working)
    known = condition(moments, working.oracle(posterior.hyper.mean)).table()
    shift = known.means - posterior.hyper.mean
    spread = unpack(known.covs, d)
    gain = spread @ unpack(moments.sums, d) / working.noise_var
    found = (shift.T @ shift) * (m / (m - 1)) - np.einsum("sij,sjk->ik", gain, spread)
    size = np.sqrt(np.diagonal(working.task_cov))  # so that the scale of a column does not matter
    square = np.outer(size, size)
    gain, found = gain * (size / size[:, None]), found / square
    return square * (_full(gain, found) if full else _diagonal(gain, found))


def _full(gain: Array, found: Array) -> Array:
    m, d, _ = gain.shape
    flat = gain.reshape(m, d * d)
    # sum_s N_s (x) N_s, from the Gram matrix of the N_s by moving axes
    system = (flat.T @ flat).reshape(d, d, d, d).transpose(0, 2, 1, 3).reshape(d * d, d * d)
    solution = np.linalg.lstsq(system, found.ravel(), rcond=None)[0].reshape(d, d)
    values, vectors = np.linalg.eigh((solution + solution.T) / 2)
    cov: Array = (vectors * np.maximum(values, 0.0)) @ vectors.T
    return cov


def _diagonal(gain: Array, found: Array) -> Array:
    system = np.einsum("sij,sij->ij", gain, gain)
    solution, free = np.zeros(len(found)), np.diagonal(system) > 0
    while free.any():
        part = np.linalg.lstsq(system[np.ix_(free, free)], np.diagonal(found)[free], rcond=None)[0]
        if (part >= 0).all():
            solution[free] = part
            break
        free[np.flatnonzero(free)[part < 0]] = False
    return np.diag(solution)


def _warn(text: str) -> None:
    warnings.warn(text, HieropoWarning, stacklevel=4)
