"""Estimate the hierarchy from moments by restricted maximum likelihood (REML), or maximum likelihood.

mu and sigma^2 are profiled out; in S = Sigma_0 / sigma^2 the deviance is minimised by steps to the minimiser, over the
positive semi-definite matrices, of a quadratic with the exact slope: far from the optimum with the expected curvature,
near it with the observed one among matrices of one rank (see :mod:`psd`). S may end, and start, singular: a direction
that collapsed can open again. Convergence is certified by the predicted decrease of the deviance by one more step. With
many tasks, the first steps are taken on some of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args, overload

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array
from hieropo._utils.blas_threads import one_blas_thread
from hieropo._utils.brief import brief
from hieropo._utils.packed import packed_size
from hieropo._utils.ties import first_largest
from hieropo.errors import InputError, LogError, NumericalError, warn
from hieropo.estimation.likelihood import KEPT, Criterion, Likelihood, Problem, evaluate, pooled
from hieropo.estimation.psd import steps
from hieropo.estimation.shapes import (
    FULL_DIM,
    Name,
    Named,
    Shape,
    full_is_possible,
    named,
    noise_inside,
    scaled,
)
from hieropo.model.gaussian import check_covariance
from hieropo.model.hierarchy import Hierarchy
from hieropo.moments.in_shards import AnyMoments, MomentsInShards, totals
from hieropo.moments.spread import constant
from hieropo.moments.statistics import Moments
from hieropo.rows.ids import ONE_TASK

TaskCov = Literal["auto", "full", "diag", "isotropic"]

_EVALUATIONS = 200
_TOLERANCE = 3e-11  # of the deviance, for the predicted decrease of the next step
_NOTHING = 1e-9  # of deviance, on which no conclusion depends
SAME_SCORE = 1e-6  # of evidence: the simpler of two shapes is kept
_SHORTER = 8  # tries with steps of 1/2, 1/8, 1/64, ...
_SHOWN = 1e-8  # of the deviance, within which rounding hides the decrease of a step
_LOOSE = 1e-2  # of deviance for each parameter, where only some tasks are used
_THINNED, _LEAST = 8, 4096  # first one task in 8 is used, where these are at least so many; and so on
HOPE = 3.0  # by how much the final decrease may exceed the predicted decrease of one step


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """One shape of Sigma_0, fitted.

    Attributes
    ----------
    shape : {"full", "diag", "isotropic", "block", "scaled", "pooled", "separate"}
        "pooled" is Sigma_0 = 0; "separate" is every task for itself, N(l v, diagonal), where v' phi = 1 in all rows and
        l is the level of all rewards; N(0, diagonal) where features have no such v.
    deviance : float
        -2 log likelihood by the estimate's criterion; smaller is better.
    parameters : int
        Free entries of Sigma_0; from :func:`compare`, and of mu.
    evaluations : int
        Passes over the tasks that it took; passes over some of them count as that part.
    predicted_decrease : float
        Predicted decrease of the deviance by one more step: the distance from the optimum.
    """

    shape: Name | Literal["pooled", "separate"]
    deviance: float
    parameters: int
    evaluations: int
    predicted_decrease: float

    __repr__ = brief

    def score(self, tasks: int) -> float:
        """Return -(deviance + parameters log(tasks)) / 2, the Schwarz criterion (BIC) as an evidence; larger is better.

        ``tasks`` are those with rows.
        """
        return -(self.deviance + self.parameters * float(np.log(tasks))) / 2


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
        All shapes tried, and "pooled" to compare with. With "auto", the one of those tried with the best score is
        chosen.
    curvature : (k, k) array or None
        Second derivative of the deviance at the optimum, profiled over noise_var and, with ML, mu, in the free entries
        of S = Sigma_0 / noise_var: packed upper triangle by columns (full), diagonal, the one factor
        (isotropic, scaled), or the packed blocks one after another. An entry off the diagonal counts once. Where S is
        singular it need not be positive definite. Terms of relative size d / tasks are left out above 8192 tasks.
    expected_curvature : (k, k) array or None
        Its expectation under the estimate, positive semi-definite: twice the Fisher information.
    degrees : float or None
        Residual degrees of freedom N: rows, less d with REML. noise_var is RSS / N. None of the three for a tree.
    """

    hierarchy: Hierarchy
    criterion: Criterion
    chosen: Fit
    compared: tuple[Fit, ...]
    curvature: Array | None = None
    expected_curvature: Array | None = None
    degrees: float | None = None

    __repr__ = brief


@dataclass(frozen=True, slots=True, eq=False)
class _FittedShape:
    """A fitted shape: its S and likelihood, in features T phi where ``turn`` is T."""

    fit: Fit
    ratio: Array
    likelihood: Likelihood
    T: Array | None


@one_blas_thread
def estimate(
    moments: AnyMoments,
    task_cov: TaskCov | Literal["block"] | NDArray[Any] = "auto",
    criterion: Criterion = "reml",
    *,
    blocks: int | None = None,
) -> Estimate:
    """Estimate noise_var and task_cov.

    Parameters
    ----------
    moments : Moments or MomentsInShards
    task_cov : {"auto", "full", "diag", "isotropic", "block"} or (d, d) array
        Shape of Sigma_0. "auto" fits "diag" and, where the predicted decrease from the diagonal optimum is large
        enough, "full" for at most 16 features and more tasks than features, or "block" for more features if ``blocks``
        is given. An array V, positive semi-definite of any rank, stands for Sigma_0 = c V with c >= 0 to be learned.
    criterion : {"reml", "ml"}
        REML integrates mu out and does not take its estimate as known: with few tasks ML gives too small variances.
    blocks : int, optional
        Equal blocks on the diagonal of Sigma_0, each of them full, with zeros between: such as one for each action.

    Raises
    ------
    InputError
        An unknown shape or criterion, an array that is no covariance of d features, blocks that do not divide d.
    LogError
        No rows at all.
    NumericalError
        The population mean is not determined (a feature that is zero, or a combination of others); no convergence.

    Warns
    -----
    HieropoWarning
        One task; or no task with more rows than features, so that noise and differences between tasks are distinguished
        by the shape of Sigma_0 alone; or rewards without noise.
    """
    check_choices(moments, task_cov if isinstance(task_cov, str) else "full", criterion, blocks)
    active = with_rows(moments)
    noise_var, floor = noise_to_start(active)
    problem = Problem(active, criterion, floor)
    pooled_profile, start = pooled(problem), first_guess(active, noise_var) / noise_var
    flat = Fit("pooled", pooled_profile.deviance, 0, 1, 0.0)
    if len(active) == 1:
        if isinstance(active, MomentsInShards) or active.keys.id_of(0) != ONE_TASK:
            warn("The log has one task, so how much tasks differ cannot be learned: task_cov is zero.")
        empty = np.zeros((0, 0))
        zero = Hierarchy(None, np.zeros((moments.dim, moments.dim)), pooled_profile.noise_var)
        return Estimate(zero, criterion, flat, (flat,), empty, empty, pooled_profile.degrees)
    if not isinstance(task_cov, str):
        fits = [_multiple(problem, _checked_multiple(task_cov, moments.dim), start)]
    elif task_cov == "auto":
        fits = [_fit(problem, named("diag", moments.dim), start)]
        wider = _wider(problem, blocks)
        if wider is not None and _may_win(problem, wider, fits[0].ratio):
            fits += _fit_if_converged(problem, wider, fits[0].ratio)
    else:
        fits = [_fit(problem, named(task_cov, moments.dim, blocks or 1), start)]
    best = fits[int(first_largest([fitted.fit.score(len(active)) for fitted in fits], room=SAME_SCORE))]
    current, shape = best.likelihood, best.likelihood.shape
    return Estimate(
        Hierarchy(None, best.ratio * current.noise_var, current.noise_var),
        criterion,
        best.fit,
        (flat, *(fitted.fit for fitted in fits)),
        shape.packed_form(current.observed, best.T),
        shape.packed_form(current.expected, best.T),
        current.profile.degrees,
    )


def _fit_if_converged(problem: Problem, shape: Shape, start: Array) -> list[_FittedShape]:
    """Return the fit of a shape that "auto" tries; an empty list, with a warning, where it does not converge."""
    try:
        return [_fit(problem, shape, start)]
    except NumericalError as error:
        warn(f"The diagonal task_cov is kept, although correlations may fit better: {error}")
        return []


def compare(moments: Moments) -> tuple[Fit, ...]:
    """Fit every shape by maximum likelihood, so that their scores can be compared.

    Returns
    -------
    tuple of Fit
        "separate" (every task for itself, around one level of rewards), "pooled", "isotropic", "diag" and, for at most
        16 features and more tasks than features, "full". ``parameters`` are the free entries of Sigma_0 and of mu.
        Where nothing but the level of rewards is a feature, "separate" is "diag", and left out.

    Raises
    ------
    LogError, NumericalError
        As :func:`estimate`.
    """
    check_choices(moments, "diag", "ml")
    active, d = with_rows(moments), moments.dim
    noise_var, floor, _ = noise_inside(active)
    problem = Problem(active, "ml", floor)
    start = first_guess(active, noise_var) / noise_var
    level = constant(active)
    span = np.zeros((0, d)) if level is None else level[None]
    fits = [Fit("pooled", pooled(problem).deviance, d, 1, 0.0)]
    if len(span) < d:
        alone = _fit(replace(problem, span=span), named("diag", d), start).fit
        fits.insert(0, replace(alone, shape="separate", parameters=alone.parameters + len(span)))
    kinds: tuple[Named, ...] = (
        ("isotropic", "diag", "full") if d <= FULL_DIM and d < len(active) else ("isotropic", "diag")
    )
    for kind in kinds if len(active) > 1 else ():
        fit = _fit(problem, named(kind, d), start).fit
        fits.append(replace(fit, parameters=fit.parameters + d))
    return tuple(fits)


def _checked_multiple(task_cov: NDArray[Any], d: int) -> Array:
    V = check_covariance(task_cov, "task_cov")
    if V.shape != (d, d):
        raise InputError(
            f"task_cov has shape {V.shape}, the moments have {d} features; ({d}, {d}) is needed."
        )
    if not V.any():
        raise InputError("task_cov is zero, and so is every multiple of it. Give a covariance to scale.")
    return V


def check_choices(
    moments: AnyMoments, task_cov: object, criterion: Criterion, blocks: int | None = None
) -> None:
    """Raise InputError for an unknown shape or criterion or blocks that do not fit, LogError for a log without rows."""
    for name, value, kinds in (
        ("task_cov", task_cov, (*get_args(TaskCov), "block")),
        ("criterion", criterion, get_args(Criterion)),
    ):
        if value not in kinds:
            raise InputError(f"{name}={value!r}; one of {', '.join(map(repr, kinds))} is needed.")
    if blocks is None and task_cov == "block":
        raise InputError(
            "task_cov='block' needs blocks=, the number of equal blocks, such as one for each action."
        )
    if blocks is not None and (blocks < 1 or moments.dim % blocks):
        raise InputError(f"blocks={blocks!r} does not divide the {moments.dim} features into equal blocks.")
    if not moments.n_rows:
        raise LogError("The log has no rows, so nothing can be estimated from it. Was a filter too strict?")


@overload
def with_rows(moments: Moments) -> Moments: ...
@overload
def with_rows(moments: AnyMoments) -> AnyMoments: ...
def with_rows(moments: AnyMoments) -> AnyMoments:
    """Return the moments of the tasks that have rows, over all features."""
    if isinstance(moments, MomentsInShards):
        active = moments.dense().with_rows()
        return active.in_memory() if len(active) <= KEPT else active
    moments = moments.dense()
    return moments if (moments.rows > 0).all() else moments.at(moments.rows > 0)


def _wider(problem: Problem, blocks: int | None) -> Shape | None:
    """Return the shape that "auto" tries after the diagonal one; None for none."""
    d, m = problem.moments.dim, len(problem.moments)
    if d <= FULL_DIM:
        return named("full", d) if full_is_possible(d, m) else None
    return named("block", d, blocks) if blocks and d // blocks < m and blocks < d else None


def _may_win(problem: Problem, shape: Shape, ratio: Array) -> bool:
    """Return True where the predicted decrease of a wider shape, from the best diagonal S, exceeds its BIC penalty."""
    d, m = problem.moments.dim, len(problem.moments)
    stride = -(-m // (2 * _LEAST))
    problem, ratio, _ = _coordinates(problem.thinned(stride), shape, ratio)
    current = evaluate(problem, ratio, shape)
    *_, (_, predicted_decrease) = _steps(shape.vector(ratio), current, near=0.0)
    return bool(HOPE * predicted_decrease * stride > (shape.parameters - d) * np.log(m))


def _multiple(problem: Problem, V: Array, start: Array) -> _FittedShape:
    """Fit Sigma_0 = c V, as an isotropic covariance of some coordinates of other features."""
    shape, T = scaled(V, problem.gram)
    T_inverse = np.linalg.solve(T.T, np.eye(len(V)))
    fitted = _fit(problem.transformed(T), shape, T_inverse @ start @ T_inverse.T)
    deviance = fitted.fit.deviance - problem.shift(T)
    return replace(fitted, fit=replace(fitted.fit, deviance=deviance), ratio=float(fitted.ratio.max()) * V)


def _coordinates(problem: Problem, shape: Shape, ratio: Array) -> tuple[Problem, Array, Array | None]:
    """Return problem and S in features T phi, and T; T decorrelates features that are far from uncorrelated, else None.

    The likelihood is the same, but for log|P|, which the change adds; digits are not, where a column lies far from 0.
    """
    T = shape.uncorrelated(problem.gram)
    if T is None:
        return problem, ratio, None
    T_inverse = np.linalg.solve(T.T, np.eye(len(T)))
    return problem.transformed(T), T_inverse @ ratio @ T_inverse.T, T


def _fit(problem: Problem, shape: Shape, start: Array) -> _FittedShape:
    """Return the best fit of a shape, found on an increasing number of tasks."""
    m = len(problem.moments)
    transformed, ratio, T = _coordinates(problem, shape, start)
    starts, stride, work, center = shape.starts(ratio), 1, 0.0, None
    while m >= stride * _THINNED * _LEAST:
        stride *= _THINNED
    while True:
        part = transformed.thinned(stride)
        slack = _LOOSE * shape.parameters if stride > 1 else 0.0
        x, current, evaluations, predicted_decrease = _ascend(part, shape, starts, center, slack)
        starts, center, work = [x], current.profile.mean, work + evaluations / stride
        if stride == 1:
            break
        stride //= _THINNED
    ratio = shape.matrix(x) if T is None else T.T @ shape.matrix(x) @ T
    deviance = current.deviance - problem.shift(T)
    fit = Fit(shape.name, deviance, shape.parameters, int(np.ceil(work)), predicted_decrease)
    return _FittedShape(fit, ratio, current, T)


def _steps(x: Array, current: Likelihood, near: float) -> Iterator[tuple[Array, float]]:
    frame = current.shape.frame(current.profile.information)
    return steps(x, current.gradient, current.expected, current.observed, frame, near)


def _ascend(
    problem: Problem, shape: Shape, starts: list[Array], center: Array | None, slack: float
) -> tuple[Array, Likelihood, int, float]:
    """Return the best x of a shape, its likelihood, the number of evaluations, and the predicted decrease from x."""
    candidates = [(evaluate(problem, shape.matrix(x), shape, center), x) for x in starts]
    current, x = min(candidates, key=lambda pair: pair[0].deviance)
    near = max(shape.parameters / 4, len(problem.moments) * shape.dim / 50)
    evaluations, predicted_decrease = len(candidates), np.inf
    while evaluations < _EVALUATIONS:
        tolerance = max(_TOLERANCE * abs(current.deviance), _NOTHING, slack)
        trial = None
        for goal, predicted_decrease in _steps(x, current, near):
            if -_NOTHING <= predicted_decrease <= tolerance:
                return x, current, evaluations, predicted_decrease
            if predicted_decrease > 0:  # else the step itself was lost in rounding
                trial, evaluations = (
                    _better(problem, current, shape.matrix(goal), predicted_decrease),
                    evaluations + 1,
                )
            if trial is not None:
                break
        else:
            goal, trial, more = _shorter(problem, current, x, goal, predicted_decrease)
            evaluations += more
        if trial is None:
            break
        x, current = goal, trial
    if trial is None and 0 <= predicted_decrease <= max(
        _SHOWN * max(1.0, abs(current.deviance)), current.profile.rounding
    ):
        return x, current, evaluations, predicted_decrease  # no step shows in the deviance
    raise _unconverged(shape, evaluations, predicted_decrease)


def _shorter(
    problem: Problem, current: Likelihood, x: Array, goal: Array, predicted_decrease: float
) -> tuple[Array, Likelihood | None, int]:
    """Return a better point on the line to ``goal`` by backtracking; its likelihood is None where there is none."""
    trial, evaluations, length = None, 0, 1.0
    while trial is None and evaluations < _SHORTER and length * predicted_decrease > current.profile.rounding:
        evaluations += 1
        length /= 2**evaluations
        trial = _better(
            problem, current, current.shape.matrix(x + length * (goal - x)), length * predicted_decrease
        )
    return x + length * (goal - x), trial, evaluations


def _better(
    problem: Problem, current: Likelihood, ratio: Array, predicted_decrease: float
) -> Likelihood | None:
    """Return the likelihood at ``ratio``, or None where it is not better by a part of the predicted decrease."""
    trial = evaluate(problem, ratio, current.shape, current.profile.mean)
    return trial if trial.deviance <= current.deviance - 1e-4 * predicted_decrease else None


def _unconverged(shape: Shape, evaluations: int, predicted_decrease: float) -> NumericalError:
    return NumericalError(
        f"The {shape.name} task_cov of dimension {shape.dim} did not converge in {evaluations} evaluations; the next "
        f"step still has a predicted decrease of {predicted_decrease:.3g} in deviance: the log identifies too few of "
        "its entries. "
        + ("Try task_cov='diag'." if shape.size > 1 else "Leave out features that hardly vary.")
    )


def noise_to_start(moments: AnyMoments) -> tuple[float, float]:
    """Return the residual variance within tasks, to start from, and the smallest allowed noise_var; may warn."""
    noise_var, floor, warning = noise_inside(moments)
    if warning:
        warn(warning)
    return noise_var, floor


def first_guess(moments: AnyMoments, noise_var: float) -> Array:
    """Return the diagonal prior under which the features together explain the variance of rewards."""
    d, n, total = moments.dim, moments.n_rows, totals(moments).sums.sum(axis=0)
    squares = np.array([total[packed_size(j + 1) - 1] for j in range(d + 2)])
    variance = max(float(squares[d] - total[packed_size(d + 1) + d] ** 2 / squares[d + 1]) / n, noise_var)
    return np.diag(variance * n / (d * np.where(squares[:d] > 0, squares[:d], 1.0)))
