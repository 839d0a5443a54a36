"""Learn the hierarchy from moments: restricted maximum likelihood (REML), or maximum likelihood.

mu and sigma^2 are profiled out; in S = Sigma_0 / sigma^2 the deviance is minimised by steps to the minimiser, over the
positive semi-definite matrices, of a quadratic with the exact slope: far from the optimum with the expected curvature,
near it with the observed one among matrices of one rank (see :mod:`psd`). S may end, and start, singular: a direction
that collapsed can open again. Convergence is certified by the fall in deviance that the next step would promise. With
many tasks, the first steps are taken on some of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array
from hieropo._utils.blas_threads import one_blas_thread
from hieropo._utils.packed import packed_size
from hieropo._utils.ties import first_largest
from hieropo.errors import InputError, LogError, NumericalError, warn
from hieropo.estimation.likelihood import Criterion, Likelihood, Problem, evaluate, pooled
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
from hieropo.moments.spread import constant
from hieropo.moments.statistics import Moments

TaskCov = Literal["auto", "full", "diag", "isotropic"]

_EVALUATIONS = 200
_TOLERANCE = 3e-11  # of the deviance, in what the next step promises
_NOTHING = 1e-9  # of deviance, which no verdict depends on
SAME_SCORE = 1e-6  # of evidence: the simpler of two shapes is kept
_SHORTER = 8  # tries with steps of 1/2, 1/8, 1/64, ...
_SHOWN = 1e-8  # of the deviance, where rounding hides what a step brings
_LOOSE = 1e-2  # of deviance for each parameter, where only some tasks are looked at
_THINNED, _LEAST = 8, 4096  # first one task in 8 is looked at, where these are at least so many; and so on
HOPE = 3.0  # how much more than a step promises its shape may bring in the end


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
    promise : float
        Fall in deviance that one more step would promise: how near to the optimum it is.
    """

    shape: Name | Literal["pooled", "separate"]
    deviance: float
    parameters: int
    evaluations: int
    predicted_decrease: float

    def score(self, tasks: int) -> float:
        """-(deviance + parameters log(tasks)) / 2, the Schwarz criterion (BIC) as an evidence: larger is better.

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


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """A fitted shape: its S and likelihood, in features T phi where ``turn`` is T."""

    fit: Fit
    ratio: Array
    here: Likelihood
    turn: Array | None


@one_blas_thread
def estimate(
    moments: Moments,
    task_cov: TaskCov | Literal["block"] | NDArray[Any] = "auto",
    criterion: Criterion = "reml",
    *,
    blocks: int | None = None,
) -> Estimate:
    """Estimate noise_var and task_cov.

    Parameters
    ----------
    moments : Moments
    task_cov : {"auto", "full", "diag", "isotropic", "block"} or (d, d) array
        Shape of Sigma_0. "auto" fits "diag" and, where a step from the diagonal optimum promises enough: for at most 16
        features and more tasks than features, "full"; for more features, "block" if ``blocks`` is given. An array V,
        positive semi-definite of any rank, stands for Sigma_0 = c V with c >= 0 to be learned.
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
        One task; or no task with more rows than features show, so that noise and differences between tasks are told
        apart by the shape of Sigma_0 alone; or rewards without noise.
    """
    check_choices(moments, task_cov if isinstance(task_cov, str) else "full", criterion, blocks)
    active = with_rows(moments)
    noise_var, floor = noise_to_start(active)
    problem = Problem(active, criterion, floor)
    none, start = pooled(problem), first_guess(active, noise_var) / noise_var
    flat = Fit("pooled", none.deviance, 0, 1, 0.0)
    if len(active) == 1:
        warn("The log has one task, so how much tasks differ cannot be learned: task_cov is zero.")
        nothing = np.zeros((0, 0))
        zero = Hierarchy(None, np.zeros((moments.dim, moments.dim)), none.noise_var)
        return Estimate(zero, criterion, flat, (flat,), nothing, nothing, none.degrees)
    if not isinstance(task_cov, str):
        found = [_multiple(problem, _given(task_cov, moments.dim), start)]
    elif task_cov == "auto":
        found = [_fit(problem, named("diag", moments.dim), start)]
        wider = _wider(problem, blocks)
        if wider is not None and _may_win(problem, wider, found[0].ratio):
            found += _tried(problem, wider, found[0].ratio)
    else:
        found = [_fit(problem, named(task_cov, moments.dim, blocks or 1), start)]
    best = found[int(first_largest([one.fit.score(len(active)) for one in found], room=SAME_SCORE))]
    here, shape = best.here, best.here.shape
    return Estimate(
        Hierarchy(None, best.ratio * here.noise_var, here.noise_var),
        criterion,
        best.fit,
        (flat, *(one.fit for one in found)),
        shape.packed_form(here.observed, best.turn),
        shape.packed_form(here.expected, best.turn),
        here.profile.degrees,
    )


def _tried(problem: Problem, shape: Shape, start: Array) -> list[_Found]:
    """The fit of a shape that was not asked for; none, with a warning, where it does not converge."""
    try:
        return [_fit(problem, shape, start)]
    except NumericalError as error:
        warn(f"The diagonal task_cov is kept, although correlations are promising: {error}")
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


def _given(task_cov: NDArray[Any], d: int) -> Array:
    V = check_covariance(task_cov, "task_cov")
    if V.shape != (d, d):
        raise InputError(
            f"task_cov has shape {V.shape}, the moments have {d} features; ({d}, {d}) is needed."
        )
    if not V.any():
        raise InputError("task_cov is zero, and so is every multiple of it. Give a covariance to scale.")
    return V


def check_choices(
    moments: Moments, task_cov: object, criterion: Criterion, blocks: int | None = None
) -> None:
    """Refuse what is no shape or criterion, blocks that do not fit, and a log without rows."""
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


def with_rows(moments: Moments) -> Moments:
    """The tasks that have rows."""
    return moments if (moments.rows > 0).all() else moments.at(moments.rows > 0)


def _wider(problem: Problem, blocks: int | None) -> Shape | None:
    """The shape that "auto" tries after the diagonal."""
    d, m = problem.moments.dim, len(problem.moments)
    if d <= FULL_DIM:
        return named("full", d) if full_is_possible(d, m) else None
    return named("block", d, blocks) if blocks and d // blocks < m and blocks < d else None


def _may_win(problem: Problem, shape: Shape, ratio: Array) -> bool:
    """Return whether a wider shape, from the best diagonal S, promises more deviance than its entries have to bring."""
    d, m = problem.moments.dim, len(problem.moments)
    every = -(-m // (2 * _LEAST))
    problem, ratio, _ = _coordinates(problem.thinned(every), shape, ratio)
    here = evaluate(problem, ratio, shape)
    *_, (_, predicted_decrease) = _steps(shape.vector(ratio), here, near=0.0)
    return bool(HOPE * predicted_decrease * every > (shape.parameters - d) * np.log(m))


def _multiple(problem: Problem, V: Array, start: Array) -> _Found:
    """Fit Sigma_0 = c V, as an isotropic covariance of some coordinates of other features."""
    shape, turn = scaled(V, problem.gram)
    back = np.linalg.solve(turn.T, np.eye(len(V)))
    found = _fit(problem.turned(turn), shape, back @ start @ back.T)
    deviance = found.fit.deviance - problem.shift(turn)
    return replace(found, fit=replace(found.fit, deviance=deviance), ratio=float(found.ratio.max()) * V)


def _coordinates(problem: Problem, shape: Shape, ratio: Array) -> tuple[Problem, Array, Array | None]:
    """The problem and S in features T phi, uncorrelated over all rows where they are not nearly so; and T.

    The likelihood is the same, but for log|P|, which the change adds; digits are not, where a column lies far from 0.
    """
    turn = shape.uncorrelated(problem.gram)
    if turn is None:
        return problem, ratio, None
    back = np.linalg.solve(turn.T, np.eye(len(turn)))
    return problem.turned(turn), back @ ratio @ back.T, turn


def _fit(problem: Problem, shape: Shape, start: Array) -> _Found:
    """Maximise over a shape, on ever more tasks."""
    m = len(problem.moments)
    turned, ratio, turn = _coordinates(problem, shape, start)
    starts, every, work, center = shape.starts(ratio), 1, 0.0, None
    while m >= every * _THINNED * _LEAST:
        every *= _THINNED
    while True:
        part = turned.thinned(every)
        loose = _LOOSE * shape.parameters if every > 1 else 0.0
        x, here, evaluations, predicted_decrease = _ascend(part, shape, starts, center, loose)
        starts, center, work = [x], here.profile.mean, work + evaluations / every
        if every == 1:
            break
        every //= _THINNED
    ratio = shape.matrix(x) if turn is None else turn.T @ shape.matrix(x) @ turn
    deviance = here.deviance - problem.shift(turn)
    fit = Fit(shape.name, deviance, shape.parameters, int(np.ceil(work)), predicted_decrease)
    return _Found(fit, ratio, here, turn)


def _steps(x: Array, here: Likelihood, near: float) -> Iterator[tuple[Array, float]]:
    frame = here.shape.frame(here.profile.information)
    return steps(x, here.gradient, here.expected, here.observed, frame, near)


def _ascend(
    problem: Problem, shape: Shape, starts: list[Array], center: Array | None, loose: float
) -> tuple[Array, Likelihood, int, float]:
    """The best x of a shape, its likelihood, the evaluations that it took, and what the next step would promise."""
    tried = [(evaluate(problem, shape.matrix(x), shape, center), x) for x in starts]
    here, x = min(tried, key=lambda pair: pair[0].deviance)
    near = max(shape.parameters / 4, len(problem.moments) * shape.dim / 50)
    evaluations, predicted_decrease = len(tried), np.inf
    while evaluations < _EVALUATIONS:
        tolerance = max(_TOLERANCE * abs(here.deviance), _NOTHING, loose)
        there = None
        for goal, predicted_decrease in _steps(x, here, near):
            if -_NOTHING <= predicted_decrease <= tolerance:
                return x, here, evaluations, predicted_decrease
            if predicted_decrease > 0:  # else the step itself was lost in rounding
                there, evaluations = (
                    _better(problem, here, shape.matrix(goal), predicted_decrease),
                    evaluations + 1,
                )
            if there is not None:
                break
        else:
            goal, there, more = _shorter(problem, here, x, goal, predicted_decrease)
            evaluations += more
        if there is None:
            break
        x, here = goal, there
    if there is None and 0 <= predicted_decrease <= max(
        _SHOWN * max(1.0, abs(here.deviance)), here.profile.rounding
    ):
        return x, here, evaluations, predicted_decrease  # no step shows in the deviance
    raise _unconverged(shape, evaluations, predicted_decrease)


def _shorter(
    problem: Problem, here: Likelihood, x: Array, goal: Array, predicted_decrease: float
) -> tuple[Array, Likelihood | None, int]:
    """A point on the way to ``goal`` that is better, or None where there is none, or the deviance could not show it."""
    there, evaluations, length = None, 0, 1.0
    while there is None and evaluations < _SHORTER and length * predicted_decrease > here.profile.rounding:
        evaluations += 1
        length /= 2**evaluations
        there = _better(
            problem, here, here.shape.matrix(x + length * (goal - x)), length * predicted_decrease
        )
    return x + length * (goal - x), there, evaluations


def _better(problem: Problem, here: Likelihood, ratio: Array, predicted_decrease: float) -> Likelihood | None:
    """The likelihood there, if it keeps a part of what was promised."""
    there = evaluate(problem, ratio, here.shape, here.profile.mean)
    return there if there.deviance <= here.deviance - 1e-4 * predicted_decrease else None


def _unconverged(shape: Shape, evaluations: int, predicted_decrease: float) -> NumericalError:
    return NumericalError(
        f"The {shape.name} task_cov of dimension {shape.dim} did not converge in {evaluations} evaluations; the next "
        f"step still promises {predicted_decrease:.3g} of deviance: the log says too little about so many entries. "
        + ("Try task_cov='diag'." if shape.size > 1 else "Leave out features that hardly vary.")
    )


def noise_to_start(moments: Moments) -> tuple[float, float]:
    """Residual variance inside tasks, to start from, and the smallest that is allowed; warns where it is doubtful."""
    noise_var, floor, warning = noise_inside(moments)
    if warning:
        warn(warning)
    return noise_var, floor


def first_guess(moments: Moments, noise_var: float) -> Array:
    """Diagonal prior under which each feature explains as much reward variance as there is."""
    d, n, total = moments.dim, moments.n_rows, moments.sums.sum(axis=0)
    squares = np.array([total[packed_size(j + 1) - 1] for j in range(d + 2)])
    variance = max(float(squares[d] - total[packed_size(d + 1) + d] ** 2 / squares[d + 1]) / n, noise_var)
    return np.diag(variance * n / (d * np.where(squares[:d] > 0, squares[:d], 1.0)))
