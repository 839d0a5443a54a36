"""Learn the hierarchy from moments: restricted maximum likelihood (REML), or maximum likelihood.

mu and sigma^2 are profiled out; in S = Sigma_0 / sigma^2 the deviance is minimised by scoring: each step goes to the
minimiser, over the positive semi-definite matrices, of the quadratic with the exact slope and the expected curvature
(see :mod:`likelihood`), and is halved until the deviance falls. S may end, and start, singular: a direction that
collapsed can open again. Convergence is certified by the fall in deviance that the next step would promise.
"""

from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hieropo.core.cones import minimise, nearest_psd, to_matrix, to_vector
from hieropo.core.gaussian import Array, Gaussian
from hieropo.core.hierarchy import Hierarchy
from hieropo.core.likelihood import Criterion, Likelihood, Shape, likelihood
from hieropo.core.packed import packed_size, unpack
from hieropo.core.posterior import condition
from hieropo.core.statistics import Moments
from hieropo.errors import InputError, LogError, NumericalError, warn

TaskCov = Literal["auto", "full", "diag", "isotropic"]

_EVALUATIONS = 300
_TOLERANCE = 1e-12  # of the deviance, in what the next step promises
_NOTHING = 1e-9  # of deviance, which no verdict depends on
_FULL_DIM = 16
_HOPE = 3.0  # how much more than a step promises its shape may bring in the end
_UNTOLD = 1e-2  # of the mean squared reward: least noise_var where no task shows the noise
_MOST_TASKS = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """One shape of Sigma_0, fitted.

    Attributes
    ----------
    shape : {"full", "diag", "isotropic", "pooled"}
        "pooled" is Sigma_0 = 0.
    deviance : float
        -2 log likelihood by the estimate's criterion; smaller is better.
    parameters : int
        Free entries of Sigma_0.
    evaluations : int
        Passes over the tasks that it took.
    promise : float
        Fall in deviance that one more step would promise: how near to the optimum it is.
    """

    shape: Shape | Literal["pooled"]
    deviance: float
    parameters: int
    evaluations: int
    promise: float


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """A hierarchy learned from moments.

    Attributes
    ----------
    hierarchy : Hierarchy
        With a flat hyper-prior: one family of tasks shows one draw of mu, so Sigma_q cannot be learned from it.
    criterion : {"reml", "ml"}
    chosen : Fit
        The shape that ``hierarchy`` has.
    compared : tuple of Fit
        All shapes tried, and "pooled" to compare with. With "auto", the one of those tried with the least ``deviance +
        parameters * log(tasks)`` (BIC) is chosen.
    """

    hierarchy: Hierarchy
    criterion: Criterion
    chosen: Fit
    compared: tuple[Fit, ...]


def estimate(moments: Moments, task_cov: TaskCov = "auto", criterion: Criterion = "reml") -> Estimate:
    """Estimate noise_var and task_cov.

    Parameters
    ----------
    moments : Moments
    task_cov : {"auto", "full", "diag", "isotropic"}
        Shape of Sigma_0. "auto" fits "diag" and, for at most 16 features and more tasks than features, "full" where
        a step from the diagonal optimum promises enough.
    criterion : {"reml", "ml"}
        REML integrates mu out and does not take its estimate as known: with few tasks ML gives too small variances.

    Raises
    ------
    LogError
        No rows at all.
    NumericalError
        The population mean is not determined (a feature that is zero, or a combination of others); no convergence.

    Warns
    -----
    HieropoWarning
        One task; or no task with more rows than features show, so that noise and differences between tasks are told
        apart by the shape of Sigma_0 alone; or rewards without noise.
    """
    _check(moments, task_cov, criterion)
    active = moments.select(moments.tasks[moments.rows > 0])
    noise_var, floor = _noise(active)
    zero = np.zeros((moments.dim, moments.dim))
    pooled = likelihood(active, zero, criterion, floor, diagonal=True)
    none = Fit("pooled", pooled.deviance, 0, 1, 0.0)
    if len(active) == 1:
        warn("The log has one task, so how much tasks differ cannot be learned: task_cov is zero.")
        return Estimate(Hierarchy(None, zero, pooled.noise_var), criterion, none, (none,))
    start = _first_guess(active, noise_var) / noise_var
    found: list[tuple[Fit, Hierarchy]] = []
    for shape in ("diag",) if task_cov == "auto" else (task_cov,):
        ratio, here, fit = _maximise(active, shape, criterion, start, floor)
        found.append((fit, Hierarchy(None, ratio * here.noise_var, here.noise_var)))
    if task_cov == "auto" and _full_may_win(active, ratio, criterion, floor):
        ratio, here, fit = _maximise(active, "full", criterion, ratio, floor)
        found.append((fit, Hierarchy(None, ratio * here.noise_var, here.noise_var)))
    fit, hierarchy = min(found, key=lambda pair: pair[0].deviance + pair[0].parameters * np.log(len(active)))
    return Estimate(hierarchy, criterion, fit, (none, *(other for other, _ in found)))


def _check(moments: Moments, task_cov: TaskCov, criterion: Criterion) -> None:
    for name, value, kinds in (
        ("task_cov", task_cov, get_args(TaskCov)),
        ("criterion", criterion, get_args(Criterion)),
    ):
        if value not in kinds:
            raise InputError(f"{name}={value!r}; one of {', '.join(map(repr, kinds))} is needed.")
    if not moments.n_rows:
        raise LogError("The log has no rows, so nothing can be estimated from it. Was a filter too strict?")


def _full_may_win(moments: Moments, ratio: Array, criterion: Criterion, floor: float) -> bool:
    """Whether a full task_cov, from the best diagonal one, promises more deviance than its entries have to bring in."""
    d, m = moments.dim, len(moments)
    if not (1 < d <= _FULL_DIM and m > d):
        return False
    turn, back = _uncorrelated(moments)
    ratio = back @ ratio @ back.T
    _, promise = _full_step(ratio, likelihood(moments.transformed(turn), ratio, criterion, floor))
    return bool(_HOPE * promise > (packed_size(d) - d) * np.log(m))


def _maximise(
    moments: Moments, shape: Shape, criterion: Criterion, start: Array, floor: float
) -> tuple[Array, Likelihood, Fit]:
    """Best ratio of a shape; the full one in coordinates in which the features of all rows are uncorrelated.

    The likelihood is the same in any coordinates, but for log|P|, which the change adds; digits are not, where a column
    lies far from 0.
    """
    if shape != "full":
        return _ascend(moments, shape, criterion, start, floor)
    turn, back = _uncorrelated(moments)
    ratio, here, fit = _ascend(moments.transformed(turn), shape, criterion, back @ start @ back.T, floor)
    shift = 2 * float(np.linalg.slogdet(back)[1]) if criterion == "reml" else 0.0
    return turn.T @ ratio @ turn, here, replace(fit, deviance=fit.deviance + shift)


def _uncorrelated(moments: Moments) -> tuple[Array, Array]:
    """T such that features T phi are uncorrelated over all rows, and T^-T, both triangular."""
    d = moments.dim
    gram = unpack(moments.sums.sum(axis=0), d + 2)[:d, :d]
    scale = np.sqrt(np.diagonal(gram))
    safe = np.where(scale > 0, scale, 1.0)
    values = gram / np.outer(safe, safe) + np.diag(np.where(scale > 0, 0.0, 1.0))
    try:
        lower = np.linalg.cholesky(values) * safe[:, None] / np.sqrt(moments.n_rows)
    except np.linalg.LinAlgError as error:
        raise NumericalError(
            "The population mean is not determined: some features are combinations of others. Leave one out."
        ) from error
    return np.linalg.solve(lower, np.eye(d)), lower.T


def _ascend(
    moments: Moments, shape: Shape, criterion: Criterion, start: Array, floor: float
) -> tuple[Array, Likelihood, Fit]:
    d = moments.dim
    parameters = {"full": packed_size(d), "diag": d, "isotropic": 1}[shape]
    ratio = start if shape != "isotropic" else np.eye(d) * float(np.diagonal(start).mean())
    here = likelihood(moments, ratio, criterion, floor, diagonal=shape != "full")
    evaluations = 1
    while evaluations < _EVALUATIONS:
        goal, promise = _STEPS[shape](ratio, here)
        if promise < -_NOTHING * max(1.0, abs(here.deviance)):
            break  # the step itself was lost in rounding
        near = promise <= max(_TOLERANCE * abs(here.deviance), _NOTHING)
        length = 1.0
        while not near and evaluations < _EVALUATIONS:
            trial = ratio + length * (goal - ratio)
            there = likelihood(moments, trial, criterion, floor, diagonal=shape != "full")
            evaluations += 1
            if there.deviance <= here.deviance - 1e-4 * length * promise:
                ratio, here = trial, there
                break
            length /= 2
            near = length * promise <= 1e-13 * max(
                1.0, abs(here.deviance)
            )  # below what the deviance can show
        if near:
            return ratio, here, Fit(shape, here.deviance, parameters, evaluations, promise)
    raise NumericalError(
        f"The {shape} task_cov of dimension {d} did not converge in {evaluations} evaluations; the next step still "
        f"promises {promise:.3g} of deviance: the log says too little about so many entries. "
        + ("Try task_cov='diag'." if shape == "full" else "Leave out features that hardly vary.")
    )


def _full_step(ratio: Array, here: Likelihood) -> tuple[Array, float]:
    """Minimiser over S >= 0, in coordinates S = T X T' in which P is the identity."""
    d = len(ratio)
    scale = np.sqrt(np.diagonal(here.information))
    lower = np.linalg.cholesky(here.information / np.outer(scale, scale) + 1e-12 * np.eye(d))
    T = np.linalg.solve(lower, np.eye(d)).T / scale[:, None]
    back = lower.T * scale
    M = here.curvature.reshape(d, -1)
    for _ in range(4):  # T on every axis in turn
        M = np.moveaxis((T.T @ M).reshape(d, d, d, d), 0, -1).reshape(d, -1)
    basis = np.array([to_matrix(e, d) for e in np.eye(packed_size(d))]).reshape(-1, d * d)
    form = basis @ M.reshape(d * d, d * d) @ basis.T
    slope, x = to_vector(T.T @ here.slope @ T), to_vector(back @ ratio @ back.T)
    goal = minimise(slope, form, x, lambda v: nearest_psd(v, d))
    move = goal - x
    return T @ to_matrix(goal, d) @ T.T, -float(slope @ move + move @ form @ move / 2)


def _diagonal_step(ratio: Array, here: Likelihood) -> tuple[Array, float]:
    scale = np.sqrt(np.maximum(np.diagonal(here.curvature), np.finfo(np.float64).tiny))
    slope, form, x = here.slope / scale, here.curvature / np.outer(scale, scale), np.diagonal(ratio) * scale
    goal = minimise(slope, form, x, lambda v: np.maximum(v, 0.0))
    move = goal - x
    return np.diag(goal / scale), -float(slope @ move + move @ form @ move / 2)


def _isotropic_step(ratio: Array, here: Likelihood) -> tuple[Array, float]:
    slope, curvature = float(here.slope.sum()), float(here.curvature.sum())
    move = max(-slope / curvature, -ratio[0, 0]) if curvature > 0 else 0.0
    return ratio + move * np.eye(len(ratio)), -(slope * move + move * move * curvature / 2)


_STEPS = {"full": _full_step, "diag": _diagonal_step, "isotropic": _isotropic_step}


def pooled_noise(moments: Moments) -> float:
    """Residual variance of one least-squares fit to the rows of all tasks together, in squared reward units."""
    active = moments.select(moments.tasks[moments.rows > 0])
    _, floor = _noise(active)
    return likelihood(active, np.zeros((moments.dim,) * 2), "reml", floor, diagonal=True).noise_var


def empirical_flat(hierarchy: Hierarchy, moments: Moments) -> Hierarchy:
    """Return FlatOPO's prior from an estimate: N(0, diag(mu_j^2 + Sigma_0_jj)), the usual size of each coefficient."""
    mu = condition(moments, hierarchy).hyper.mean
    size = mu**2 + np.diagonal(hierarchy.task_cov)
    known = Gaussian(np.zeros(mu.size), np.zeros((mu.size, mu.size)))
    return Hierarchy(hyper=known, task_cov=np.diag(size), noise_var=hierarchy.noise_var)


def _noise(moments: Moments) -> tuple[float, float]:
    """Residual variance inside tasks, to start from, and the smallest that is allowed."""
    step = -(-len(moments) // _MOST_TASKS)
    squares, ranks = _residuals(moments.sums[::step], moments.dim)
    free = moments.rows[::step] - ranks
    size = float(moments.sums[:, packed_size(moments.dim + 1) - 1].sum()) / moments.n_rows
    floor = 1e-13 * (size or 1.0)
    if not (free > 0).any():
        warn(
            f"No task has more rows than its features ({moments.dim}) can fit, so noise and differences between tasks "
            "are told apart by the shape of task_cov alone; noise_var is kept above 1 % of the mean squared reward. "
            "More rows a task, or fewer features, would tell."
        )
        return max(size, floor), max(_UNTOLD * size, floor)
    noise_var = float(squares[free > 0].sum() / free[free > 0].sum())
    if noise_var <= floor:
        warn(
            f"Rewards are without noise given the features; noise_var is kept at {floor:.3g}, far below the rewards."
        )
    return max(noise_var, floor), floor


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


def _first_guess(moments: Moments, noise_var: float) -> Array:
    """Diagonal prior under which each feature explains as much reward variance as there is."""
    d, n = moments.dim, moments.n_rows
    total = moments.sums.sum(axis=0)
    squares = np.array([total[packed_size(j + 1) - 1] for j in range(d + 2)])
    variance = max(float(squares[d] - total[packed_size(d + 1) + d] ** 2 / squares[d + 1]) / n, noise_var)
    return np.diag(variance * n / (d * np.where(squares[:d] > 0, squares[:d], 1.0)))
