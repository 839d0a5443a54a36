"""Constants and assumptions of the theory of :mod:`bounds`, measured on a log and a hierarchy.

Sums over rows show some assumptions, refute others and are silent on the rest; what is said names which.
Source: arXiv 2212.04720, sections 4 and 5.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hieropo._utils.arrays import Array
from hieropo._utils.packed import packed_size, unpack
from hieropo._utils.text import agreeing, counted
from hieropo._utils.ties import first_largest
from hieropo.errors import InputError, MismatchError
from hieropo.model.gaussian import check_covariance
from hieropo.model.posterior import Posterior
from hieropo.model.steps import pivot_tolerance, square_roots
from hieropo.moments.statistics import Moments

PROVED = float(np.exp(-1.0))  # largest delta for which the paper's alpha is proved

_PIECE = 16_384  # tasks worked on at once
_OUTSIDE = 1e-7  # share of a root that may lie outside a range, by rounding


def paper_constant(dim: int, delta: float) -> float:
    """Return the paper's alpha = sqrt(5 d log(1 / delta)).

    It is simultaneous over all phi. The paper proves it for delta <= 1/e, where d + 2 sqrt(d u) + 2 u <= 5 d u with
    u = log(1 / delta); it is true up to :func:`largest_delta`.

    Raises
    ------
    InputError
        ``delta`` is no probability in (0, 1).
    """
    return float(np.sqrt(5.0 * dim * np.log(1.0 / probability(delta))))


def exact_constant(dim: int, delta: float) -> float:
    """Return the smallest simultaneous constant, sqrt of the 1 - delta quantile of chi-squared with d degrees.

    |phi' (theta - mean)| <= kappa sd(phi' theta) holds for all phi where the Mahalanobis distance of theta is at most
    kappa, and fails for some phi where it is larger.

    Raises
    ------
    InputError
        ``delta`` is no probability in (0, 1).
    """
    from scipy.special import chdtri

    return float(np.sqrt(chdtri(dim, probability(delta))))


def largest_delta(dim: int) -> float:
    """Return the delta up to which the paper's alpha is not below the exact constant.

    1 for one and two features; it falls to exp(-1/5) = 0.819 with many. Beyond it, alpha is too small.

    Examples
    --------
    >>> [round(largest_delta(d), 3) for d in (1, 2, 4, 10, 100)]
    [1.0, 1.0, 0.977, 0.91, 0.842]
    """
    from scipy.optimize import brentq
    from scipy.special import chdtrc

    if dim <= 2:  # d = 2: P(chi2 > 10 u) = exp(-5 u); d = 1: P(|z| > x) <= exp(-x^2 / 2)
        return 1.0

    def above(u: float) -> float:
        return float(chdtrc(dim, 5.0 * dim * u) - np.exp(-u))

    return float(np.exp(-brentq(above, 1e-12, 1.0)))


def coverage(
    moments: Moments, *, length: float = 1.0, best: ArrayLike | None = None, common: bool = False
) -> Array:
    """Return gamma of Assumptions 2 and 3 for each task (m,): the largest with sum w phi phi' >= gamma n_s G_*.

    Parameters
    ----------
    moments : Moments
        n_s is the sum of weights.
    length : float
        Longest feature vector, 1 in the paper.
    best : (d, d) or (m, d, d) array, optional
        G_*, second moments of the features of what the best policy does, or any matrix above them. The assumption asks
        for all theta, so that the default is ``length ** 2`` I, above the moments of any policy: then gamma is known
        from the log.
    common : bool
        Give all tasks the smallest, as Assumption 3 does.

    Returns
    -------
    (m,) array
        0 where a direction of ``best`` was not tried at all; inf where there are no rows, or nothing to cover.

    Raises
    ------
    MismatchError, InputError, NumericalError
        ``best`` is of another shape or no second moments; ``length`` is not positive.
    """
    target = best_moments(moments, length, best)
    gamma = np.full(len(moments), np.inf)
    weight = moments.sums[:, -1]
    for part in pieces(len(moments)):
        seen = weight[part] > 0
        sums = unpack(moments.sums[part][seen], moments.dim)
        goal = target[part][seen] if target.ndim == 3 else target
        gamma[part][seen] = dominance(sums / weight[part][seen, None, None], goal)
    if common and np.isfinite(gamma).any():
        gamma = np.where(weight > 0, gamma.min(), gamma)
    return gamma


class ProofStep(NamedTuple):
    """The step of the paper's proof of theorem 2, for each task.

    Parameters
    ----------
    norm : (m,) array
        Spectral norm of Sigma~_s Sigma_0^-1, which the proof takes to be at most 1.
    ratio : (m,) array
        lambda_1(M Sigma-bar M') / (d lambda_1(Sigma-bar)), M = Sigma~_s Sigma_0^-1: above 1 what the proof concludes
        from that is wrong for some G_*, too.
    """

    norm: Array
    ratio: Array


def proof_step(posterior: Posterior) -> ProofStep:
    """Measure the step of the paper's proof of theorem 2 that is wrong for general Sigma_0.

    Raises
    ------
    InputError
        There are levels or metadata.
    """
    refuse_deeper(posterior)
    d, cov, m = posterior.dim, posterior.hyper.cov, len(posterior.moments)
    spread, norm, ratio = widest(cov), np.empty(m), np.zeros(m)
    for part in pieces(m):
        M = posterior.stages[0].alone(part)[1]
        norm[part] = np.sqrt(np.maximum(largest_eigenvalue(M @ M.swapaxes(1, 2)), 0.0))
        if spread > 0:
            ratio[part] = largest_eigenvalue(M @ cov @ M.swapaxes(1, 2)) / (d * spread)
    return ProofStep(norm, ratio)


class Assumption(NamedTuple):
    """One assumption of the theory.

    Parameters
    ----------
    name : str
    holds : bool or None
        None where the sums of a log cannot show it.
    words : str
        What was found.
    """

    name: str
    holds: bool | None
    words: str


def assumptions(
    posterior: Posterior,
    *,
    delta: float = 0.05,
    pessimism: float | None = None,
    length: float = 1.0,
    best: ArrayLike | None = None,
    learned: bool = False,
) -> tuple[Assumption, ...]:
    """Say which assumptions of the theory hold for a log and a hierarchy.

    Parameters
    ----------
    posterior : Posterior
        Also with levels or metadata.
    delta, pessimism, length, best
        As in :func:`bounds.bounds`.
    learned : bool
        The hierarchy was estimated from a log.

    Raises
    ------
    InputError, MismatchError, NumericalError
        As :func:`coverage`.
    """
    hierarchy, d = posterior.hierarchy, posterior.dim
    alpha, limit = paper_constant(d, delta), largest_delta(d)
    two = not hierarchy.levels and hierarchy.metadata is None
    p = alpha if pessimism is None else float(pessimism)
    found = [
        Assumption(
            "two levels",
            two,
            "All tasks hang on one mean."
            if two
            else "There are levels or metadata, which the theory does not know.",
        ),
        Assumption(
            "hierarchy known",
            not learned,
            "Noise and covariances were estimated and are taken as known: the bounds leave that out."
            if learned
            else "Noise and covariances are given.",
        ),
        Assumption(
            "Gaussian rewards, linear in the features",
            None,
            "Sums do not show it. Predictive checks of the rows do.",
        ),
        Assumption(
            "actions depend on theta through the context alone",
            None,
            "Sums do not show it. An incumbent that knew more than the log says breaks every bound.",
        ),
        _lengths(posterior.moments, length),
        _explored(posterior.moments, coverage(posterior.moments, length=length, best=best)),
        _diagonals(posterior, best_moments(posterior.moments, length, best)),
        Assumption(
            "delta at most 1/e",
            delta <= PROVED,
            f"delta is {delta:.3g}. The paper's alpha = {alpha:.2f} is proved up to {PROVED:.3f} and true up to "
            f"{limit:.3f} for {d} features; {exact_constant(d, delta):.2f} is exact.",
        ),
        Assumption(
            "the policy is as pessimistic as its bound",
            abs(p - alpha) <= 1e-9 * alpha,
            f"The policy takes off {p:.3g} standard deviations, the theorems are about {alpha:.3g}. For another "
            f"pessimism the argument gives max(2 alpha, alpha + |pessimism|) = {loss_factor(alpha, p):.3g}, used here.",
        ),
    ]
    if two:
        found.append(_stepwise(proof_step(posterior)))
    return tuple(found)


def _lengths(moments: Moments, length: float) -> Assumption:
    """Assumption 1: no feature vector is longer than ``length``."""
    d, weight = moments.dim, moments.sums[:, -1]
    squares = moments.sums[:, [packed_size(j + 1) - 1 for j in range(d)]].sum(axis=1)
    mean = np.sqrt(squares[weight > 0] / weight[weight > 0])
    name = "features of bounded length (Assumption 1)"
    if not mean.size:
        return Assumption(name, None, "There are no rows.")
    worst, at = float(mean.max()), moments.tasks[weight > 0].tolist()[int(first_largest(mean))]
    words = f"The root mean square length of a task's features is at most {worst:.3g}, in task {at!r}; "
    if worst > length * (1 + 1e-9):
        return Assumption(name, holds=False, words=words + f"that is above length={length:g}.")
    return Assumption(
        name, None, words + f"whether one row is longer than length={length:g} sums do not show."
    )


def _explored(moments: Moments, gamma: Array) -> Assumption:
    """Assumptions 2 and 3: every direction was tried in every task."""
    empty = int((moments.sums[:, -1] <= 0).sum())
    seen = gamma[moments.sums[:, -1] > 0]
    name = "well-explored tasks (Assumptions 2 and 3)"
    if not seen.size:
        return Assumption(name, None, "There are no rows, so that any gamma will do and none helps.")
    without = int((seen == 0).sum())
    words = f"gamma is {seen.min():.3g} for the worst task and {np.median(seen):.3g} for the median one"
    if without:
        words += (
            f"; {without} of {counted(seen.size, 'task')} never tried some direction, where rows do not tighten the "
            "theorems"
        )
    if empty:
        words += f"; {counted(empty, 'task')} {agreeing(empty, 'has', 'have')} no rows"
    return Assumption(name, not without, words + ".")


def _diagonals(posterior: Posterior, target: Array) -> Assumption:
    """Assumption 4, as far as sums show it."""
    wrong = not_diagonal(posterior, target)
    words = "All matrices are diagonal, as claim 2 of theorem 2 needs."
    if wrong:
        words = f"Not diagonal: {', '.join(wrong)}."
    return Assumption("one feature a row, diagonal covariances (Assumption 4)", not wrong, words)


def _stepwise(step: ProofStep) -> Assumption:
    high = int((step.norm > 1 + 1e-9).sum())
    wrong = int((step.ratio > 1 + 1e-9).sum())
    words = (
        f"The norm of Sigma~_s Sigma_0^-1 is {step.norm.max(initial=0.0):.3g} at most, above 1 in {high} of "
        f"{counted(step.norm.size, 'task')}; what is concluded from it is wrong in {wrong}. Theorem 2, claim 1, holds "
        "without that step."
    )
    return Assumption("the proof of theorem 2, claim 1", high == 0, words)


def probability(delta: float) -> float:
    """Return ``delta``, checked."""
    if not 0.0 < delta < 1.0:
        raise InputError(
            f"delta={delta!r} is not a probability in (0, 1); bounds that hold with 95 % have delta=0.05."
        )
    return float(delta)


def loss_factor(kappa: float, pessimism: float | None) -> float:
    """Return max(2 kappa, kappa + |p|), how many sds of the best action the policy loses; p = kappa by default."""
    p = kappa if pessimism is None else float(pessimism)
    if not np.isfinite(p):
        raise InputError(f"pessimism={pessimism!r}; a finite number is needed.")
    return max(2 * kappa, kappa + abs(p))


def refuse_deeper(posterior: Posterior) -> None:
    """Raise where there are levels or metadata."""
    if posterior.hierarchy.levels or posterior.hierarchy.metadata is not None:
        raise InputError(
            "The theory is for tasks that hang on one mean; this hierarchy has levels or metadata. The certificates of "
            "core.worth bound the same loss for any hierarchy."
        )


def best_moments(moments: Moments, length: float, best: ArrayLike | None) -> Array:
    """G_* or what is above it, (d, d) or (m, d, d)."""
    d, m = moments.dim, len(moments)
    if not (np.isfinite(length) and length > 0):
        raise InputError(f"length={length!r}; the longest feature vector must be positive and finite.")
    if best is None:
        return np.asarray(length**2 * np.eye(d))
    given = np.asarray(best, dtype=np.float64)
    if given.shape not in ((d, d), (m, d, d)):
        raise MismatchError(f"best has shape {given.shape}; {(d, d)} or {(m, d, d)} is needed.")
    each = [check_covariance(one, "best") for one in given.reshape(-1, d, d)]
    if any(not one.any() for one in each):
        raise InputError(
            "best is zero: a policy whose features are all zero has nothing to cover. Leave it out."
        )
    return np.array(each).reshape(given.shape)


def pieces(m: int) -> Iterator[slice]:
    """Cut m tasks into pieces that fit into memory."""
    return (slice(start, min(start + _PIECE, m)) for start in range(0, m, _PIECE))


def widest(cov: Array) -> float:
    """Return lambda_1 of a covariance (d, d)."""
    return max(0.0, float(largest_eigenvalue(cov)))


def largest_eigenvalue(matrices: Array) -> Array:
    """Return lambda_1 of symmetric matrices (..., d, d)."""
    return np.asarray(np.linalg.eigvalsh(matrices)[..., -1])


def dominance(over: Array, under: Array) -> Array:
    """Largest c with over >= c under in the Loewner order, over (k, d, d) and under (d, d) or (k, d, d): (k,)."""
    d = over.shape[-1]
    scale = np.sqrt(np.maximum(np.diagonal(over, axis1=1, axis2=2), 0.0))
    scale = np.where(scale > 0, scale, 1.0)
    values, vectors = np.linalg.eigh(over / (scale[:, :, None] * scale[:, None, :]))
    roots = square_roots(under.reshape(-1, d, d)) / scale[:, :, None]
    along = vectors.swapaxes(1, 2) @ roots
    null = values <= pivot_tolerance(d) * np.maximum(values[:, -1:], 0.0)
    sizes = np.linalg.norm(along, axis=2)
    outside = (np.where(null, sizes, 0.0) > _OUTSIDE * sizes.max(axis=1, keepdims=True)).any(axis=1)
    along = np.where(null[:, :, None], 0.0, along / np.sqrt(np.where(null, 1.0, values))[:, :, None])
    most = largest_eigenvalue(along.swapaxes(1, 2) @ along)
    with np.errstate(divide="ignore"):
        return np.where(outside, 0.0, 1.0 / np.maximum(most, 0.0))


def _mixed(matrices: Array) -> NDArray[np.bool_]:
    """Return which of (k, d, d) are not diagonal, beyond rounding."""
    sizes = np.sqrt(np.maximum(np.diagonal(matrices, axis1=1, axis2=2), 0.0))
    off = np.abs(matrices) > 1e-12 * sizes[:, :, None] * sizes[:, None, :]
    off[:, np.arange(off.shape[1]), np.arange(off.shape[1])] = False
    return np.asarray(off.any(axis=(1, 2)))


def not_diagonal(posterior: Posterior, target: Array) -> list[str]:
    """Names of the matrices that Assumption 4 wants diagonal and that are not."""
    moments, d, prior = posterior.moments, posterior.dim, posterior.hierarchy.hyper
    named = {"Sigma_0": posterior.hierarchy.task_cov[None], "best": target.reshape(-1, d, d)}
    if prior is not None:
        named["Sigma_q"] = prior.cov[None]
    wrong = [name for name, matrices in named.items() if _mixed(matrices).any()]
    sums = sum(int(_mixed(unpack(moments.sums[part], d)).sum()) for part in pieces(len(moments)))
    return [*wrong, f"sums of phi phi' of {counted(sums, 'task')}"] if sums else wrong
