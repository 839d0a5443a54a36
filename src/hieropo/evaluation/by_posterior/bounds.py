"""The assumptions of the paper's theory, measured on a log; its bounds, and tighter ones.

Sums over rows confirm some assumptions and refute others; on the rest they give no evidence.
Source: arXiv 2212.04720, sections 4 and 5.

V(pi_*) - V(pi) <= epsilon with probability 1 - delta over theta_s given the log. All of these go one way. With kappa
such that P(|phi' (theta - mean)| <= kappa sd(phi' theta) for all phi) >= 1 - delta, the policy that maximises
mean - p sd loses at most (kappa + p) sd_* + (kappa - p) sd-hat in a context, * of the best action and hat of its own,
and the mean of phi' C phi over contexts is tr(C G_*), G_* the second moments of what the best policy does. So

    epsilon = max(2 kappa, kappa + |p|) sqrt(d v),      tr(C G_*) <= d v

(2 kappa is the paper's, for p = kappa; other p are derived here). The bounds differ in v. Write A = L^2
lambda_1(Sigma_0), Q = L^2 lambda_1(Sigma_q), L the longest feature vector, and c_s = gamma n_s / sigma^2 where
G_s >= c_s G_* in the Loewner order (Assumptions 2 and 3), G_* <= L^2 I; then with f(v, c) = 1 / (1 / v + c)

    theorem 1, mu known    f(A, c_s)
    theorem 2, claim 1     f(A, c_s)  +  h,   1 / h = 1 / Q + sum_z 1 / (A + lambda_1(G_z*^-1) L^2 / c_z)
    theorem 2, claim 2     f(A, c_s)  +  h,   1 / h = 1 / Q + sum_z 1 / (A + 1 / c_z)       (Assumption 4: all diagonal)
    FlatOPO                f(L^2 lambda_1(Sigma_0 + Sigma_q), c_s)
    repaired               f(A, c_s) (1 + lambda_1(Sigma_0^-1 Sigma-bar))
    leave-one-out          f(L^2 lambda_1(Sigma_0 + Sigma-bar_-s), c_s)
    posterior              L^2 lambda_1(cov theta_s) / d,   which needs no gamma

Theorem 2 follows the steps of its proof, with the inverse that the last display of claim 1 lacks. It is the sum of two
square roots, a task term and a hyper-parameter term, as the paper discusses it.

The paper's proof of claim 1 takes lambda_1(Sigma~_s Sigma_0^-1) <= 1 for a norm. It is one where that product is
symmetric, as for Sigma_0 = s^2 I or diagonal matrices, and not in general. "Repaired" does without: Sigma-bar <= l
Sigma_0 gives cov theta_s <= (1 + l) Sigma~_s. "Leave-one-out" does too: with the covariance Sigma-bar_-s of mu
given the other tasks, cov theta_s = ((Sigma_0 + Sigma-bar_-s)^-1 + G_s)^-1, and theorem 1 holds with the prior
N(., Sigma_0 + Sigma-bar_-s). It shows that the statement of claim 1 is true for any
Sigma_0, with the root of the sum and so with the sum of the roots: with a = f(Q, sum over the others) >=
L^2 lambda_1(Sigma-bar_-s),

    f(A + a, c) - f(A, c) = a / ((1 + c A)(1 + c A + c a)) <= a (1 + c A) / (1 + c A + c a) <= h

Sources: arXiv 2212.04720, sections 4 and 5 and its appendix; Laurent and Massart, Annals of Statistics 28, 2000, lemma
1, for the constant. "Repaired", "leave-one-out", "posterior", the constants beyond alpha and other L and p are derived
here.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hieropo._utils.arrays import Array, pieces
from hieropo._utils.brief import brief
from hieropo._utils.packed import packed_size, unpack
from hieropo._utils.text import agreeing, counted
from hieropo._utils.ties import first_largest
from hieropo.errors import InputError, MismatchError
from hieropo.model.gaussian import check_covariance
from hieropo.model.posterior import Posterior
from hieropo.model.steps import pivot_tolerance, square_roots, up
from hieropo.moments.statistics import Moments
from hieropo.rows.keys import Keys

PROVED = float(np.exp(-1.0))  # largest delta for which the paper's alpha is proved

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

    def excess(u: float) -> float:
        return float(chdtrc(dim, 5.0 * dim * u) - np.exp(-u))

    return float(np.exp(-brentq(excess, 1e-12, 1.0)))


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
        0 where a direction of ``best`` has no rows; inf where there are no rows, or ``best`` is zero.

    Raises
    ------
    MismatchError, InputError, NumericalError
        ``best`` is of another shape or no second moments; ``length`` is not positive.
    """
    target = best_moments(moments, length, best)
    gamma = np.full(len(moments), np.inf)
    weight = moments.sums[:, -1]
    for part in pieces(len(moments), moments.dim**2):
        has_rows = weight[part] > 0
        sums = unpack(moments.sums[part][has_rows], moments.dim)
        task_target = target[part][has_rows] if target.ndim == 3 else target
        gamma[part][has_rows] = dominance(sums / weight[part][has_rows, None, None], task_target)
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
        lambda_1(M Sigma-bar M') / (d lambda_1(Sigma-bar)), M = Sigma~_s Sigma_0^-1: above 1 the conclusion of
        the proof is wrong for some G_*, too.
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
    largest, norm, ratio = widest(cov), np.empty(m), np.zeros(m)
    for part in pieces(m, d * d):
        M = posterior.tree_levels[0].given_parents(part)[1]
        norm[part] = np.sqrt(np.maximum(largest_eigenvalue(M @ M.swapaxes(1, 2)), 0.0))
        if largest > 0:
            ratio[part] = largest_eigenvalue(M @ cov @ M.swapaxes(1, 2)) / (d * largest)
    return ProofStep(norm, ratio)


class Assumption(NamedTuple):
    """One assumption of the theory.

    Parameters
    ----------
    name : str
    holds : bool or None
        None where the sums of a log cannot show it.
    words : str
        The evidence, as a sentence.
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
    """Return the assumptions of the theory, with the evidence for each in a log and a hierarchy.

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
    two_levels = not hierarchy.levels and hierarchy.metadata is None
    p = alpha if pessimism is None else float(pessimism)
    results = [
        Assumption(
            "two levels",
            two_levels,
            "All tasks share one mean."
            if two_levels
            else "There are levels or metadata, for which the theory is not derived.",
        ),
        Assumption(
            "hierarchy known",
            not learned,
            "Noise and covariances were estimated, and the bounds take them as known."
            if learned
            else "Noise and covariances are given.",
        ),
        Assumption(
            "Gaussian rewards, linear in the features",
            None,
            "Sums over rows cannot show it. Predictive checks of the rows can.",
        ),
        Assumption(
            "actions depend on theta through the context alone",
            None,
            "Sums over rows cannot show it. An incumbent that used more than the context invalidates every bound.",
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
            f"The policy has the pessimism {p:.3g}, the theorems take {alpha:.3g}. For another pessimism the argument "
            f"gives max(2 alpha, alpha + |pessimism|) = {loss_factor(alpha, p):.3g}, which is used here.",
        ),
    ]
    if two_levels:
        results.append(_stepwise(proof_step(posterior)))
    return tuple(results)


def _lengths(moments: Moments, length: float) -> Assumption:
    """Return assumption 1: no feature vector is longer than ``length``."""
    d, weight = moments.dim, moments.sums[:, -1]
    squares = moments.sums[:, [packed_size(j + 1) - 1 for j in range(d)]].sum(axis=1)
    mean = np.sqrt(squares[weight > 0] / weight[weight > 0])
    name = "features of bounded length (Assumption 1)"
    if not mean.size:
        return Assumption(name, None, "There are no rows.")
    worst, task = float(mean.max()), moments.tasks[weight > 0].tolist()[int(first_largest(mean))]
    words = f"The root mean square length of a task's features is at most {worst:.3g}, in task {task!r}; "
    if worst > length * (1 + 1e-9):
        return Assumption(name, holds=False, words=words + f"that is above length={length:g}.")
    return Assumption(
        name, None, words + f"sums do not show if a single row is longer than length={length:g}."
    )


def _explored(moments: Moments, gamma: Array) -> Assumption:
    """Return assumptions 2 and 3: every direction was tried in every task."""
    n_empty = int((moments.sums[:, -1] <= 0).sum())
    gammas = gamma[moments.sums[:, -1] > 0]
    name = "well-explored tasks (Assumptions 2 and 3)"
    if not gammas.size:
        return Assumption(name, None, "There are no rows, so that any gamma holds and none tightens a bound.")
    n_uncovered = int((gammas == 0).sum())
    words = f"gamma is {gammas.min():.3g} for the worst task and {np.median(gammas):.3g} for the median one"
    if n_uncovered:
        words += (
            f"; {n_uncovered} of {counted(gammas.size, 'task')} never tried some direction, where rows do not tighten "
            "the theorems"
        )
    if n_empty:
        words += f"; {counted(n_empty, 'task')} {agreeing(n_empty, 'has', 'have')} no rows"
    return Assumption(name, not n_uncovered, words + ".")


def _diagonals(posterior: Posterior, target: Array) -> Assumption:
    """Return assumption 4, as far as sums show it."""
    wrong = not_diagonal(posterior, target)
    words = "All matrices are diagonal, as claim 2 of theorem 2 needs."
    if wrong:
        words = f"Not diagonal: {', '.join(wrong)}."
    return Assumption("one feature a row, diagonal covariances (Assumption 4)", not wrong, words)


def _stepwise(step: ProofStep) -> Assumption:
    above_1 = int((step.norm > 1 + 1e-9).sum())
    wrong = int((step.ratio > 1 + 1e-9).sum())
    words = (
        f"The norm of Sigma~_s Sigma_0^-1 is {step.norm.max(initial=0.0):.3g} at most, above 1 in {above_1} of "
        f"{counted(step.norm.size, 'task')}; the conclusion from it is wrong in {wrong}. Theorem 2, claim 1, holds "
        "without that step."
    )
    return Assumption("the proof of theorem 2, claim 1", above_1 == 0, words)


def probability(delta: float) -> float:
    """Return ``delta``; raise unless it is in (0, 1)."""
    if not 0.0 < delta < 1.0:
        raise InputError(
            f"delta={delta!r} is not a probability in (0, 1); bounds that hold with 95 % have delta=0.05."
        )
    return float(delta)


def loss_factor(kappa: float, pessimism: float | None) -> float:
    """Return max(2 kappa, kappa + |p|), the loss in sds of the best action; p = kappa by default."""
    p = kappa if pessimism is None else float(pessimism)
    if not np.isfinite(p):
        raise InputError(f"pessimism={pessimism!r}; a finite number is needed.")
    return max(2 * kappa, kappa + abs(p))


def refuse_deeper(posterior: Posterior) -> None:
    """Raise where there are levels or metadata."""
    if posterior.hierarchy.levels or posterior.hierarchy.metadata is not None:
        raise InputError(
            "The theory is for tasks that share one mean, and this hierarchy has levels or metadata, so that its "
            "bounds do not hold. learner.evaluate(log) certifies the same loss for any hierarchy."
        )


def best_moments(moments: Moments, length: float, best: ArrayLike | None) -> Array:
    """Return G_*, or a matrix above it, (d, d) or (m, d, d)."""
    d, m = moments.dim, len(moments)
    if not (np.isfinite(length) and length > 0):
        raise InputError(f"length={length!r}; the longest feature vector must be positive and finite.")
    if best is None:
        return np.asarray(length**2 * np.eye(d))
    target = np.asarray(best, dtype=np.float64)
    if target.shape not in ((d, d), (m, d, d)):
        raise MismatchError(f"best has shape {target.shape}; {(d, d)} or {(m, d, d)} is needed.")
    matrices = [check_covariance(matrix, "best") for matrix in target.reshape(-1, d, d)]
    if any(not matrix.any() for matrix in matrices):
        raise InputError(
            "best is zero: a policy whose features are all zero needs no coverage. Leave best out."
        )
    return np.array(matrices).reshape(target.shape)


def widest(cov: Array) -> float:
    """Return lambda_1 of a covariance (d, d)."""
    return max(0.0, float(largest_eigenvalue(cov)))


def largest_eigenvalue(matrices: Array) -> Array:
    """Return lambda_1 of symmetric matrices (..., d, d)."""
    return np.asarray(np.linalg.eigvalsh(matrices)[..., -1])


def dominance(over: Array, under: Array) -> Array:
    """Return the largest c (k,) with over >= c under in the Loewner order; over (k, d, d), under ([k,] d, d)."""
    d = over.shape[-1]
    scale = np.sqrt(np.maximum(np.diagonal(over, axis1=1, axis2=2), 0.0))
    scale = np.where(scale > 0, scale, 1.0)
    values, vectors = np.linalg.eigh(over / (scale[:, :, None] * scale[:, None, :]))
    roots = square_roots(under.reshape(-1, d, d)) / scale[:, :, None]
    projected = vectors.swapaxes(1, 2) @ roots
    null = values <= pivot_tolerance(d) * np.maximum(values[:, -1:], 0.0)
    sizes = np.linalg.norm(projected, axis=2)
    outside = (np.where(null, sizes, 0.0) > _OUTSIDE * sizes.max(axis=1, keepdims=True)).any(axis=1)
    projected = np.where(null[:, :, None], 0.0, projected / np.sqrt(np.where(null, 1.0, values))[:, :, None])
    largest = largest_eigenvalue(projected.swapaxes(1, 2) @ projected)
    with np.errstate(divide="ignore"):
        return np.where(outside, 0.0, 1.0 / np.maximum(largest, 0.0))


def _is_not_diagonal(matrices: Array) -> NDArray[np.bool_]:
    """Return True for those of (k, d, d) that are not diagonal, beyond rounding."""
    sizes = np.sqrt(np.maximum(np.diagonal(matrices, axis1=1, axis2=2), 0.0))
    off = np.abs(matrices) > 1e-12 * sizes[:, :, None] * sizes[:, None, :]
    off[:, np.arange(off.shape[1]), np.arange(off.shape[1])] = False
    return np.asarray(off.any(axis=(1, 2)))


def not_diagonal(posterior: Posterior, target: Array) -> list[str]:
    """Return the names of the matrices that assumption 4 needs diagonal and that are not."""
    moments, d, prior = posterior.moments, posterior.dim, posterior.hierarchy.hyper
    matrices_by_name = {"Sigma_0": posterior.hierarchy.task_cov[None], "best": target.reshape(-1, d, d)}
    if prior is not None:
        matrices_by_name["Sigma_q"] = prior.cov[None]
    wrong = [name for name, matrices in matrices_by_name.items() if _is_not_diagonal(matrices).any()]
    sums = sum(
        int(_is_not_diagonal(unpack(moments.sums[part], d)).sum())
        for part in pieces(len(moments), moments.dim**2)
    )
    return [*wrong, f"sums of phi phi' of {counted(sums, 'task')}"] if sums else wrong


Constant = Literal["paper", "exact"]


class Suboptimality(NamedTuple):
    """Bounds on V(pi_*) - V(pi), in reward units; inf where there is none. The module has the formulas.

    Parameters
    ----------
    theorem_1 : (m,) array
        With mu known, of OracleOPO.
    task_term, hyper_term : (m,) array
        The two terms of theorem 2, claim 1; their sum is :attr:`theorem_2`.
    diagonal : (m,) array or None
        Theorem 2, claim 2; None where matrices of Assumption 4 are not diagonal, or ``best`` was given for each task.
    flat : (m,) array
        Theorem 1 for each task alone, of FlatOPO.
    repaired, leave_one_out : (m,) array
        For any Sigma_0; ``leave_one_out`` is never above theorem 2, claim 1.
    posterior : (m,) array
        By the posterior covariance alone; with the default ``best`` never above ``leave_one_out``.
    """

    theorem_1: Array
    task_term: Array
    hyper_term: Array
    diagonal: Array | None
    flat: Array
    repaired: Array
    leave_one_out: Array
    posterior: Array

    @property
    def theorem_2(self) -> Array:
        """Theorem 2, claim 1."""
        return self.task_term + self.hyper_term

    def at(self, rows: int | slice) -> "Suboptimality":
        """Return the bounds of some tasks."""
        diagonal = None if self.diagonal is None else np.asarray(self.diagonal[rows])
        others = {name: np.asarray(v[rows]) for name, v in self._asdict().items() if name != "diagonal"}
        return Suboptimality(diagonal=diagonal, **others)


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """Bounds of the suboptimality in every task of a log; made by :func:`bounds`.

    Attributes
    ----------
    keys : Keys
        The m tasks.
    delta : float
        Probability with which the bound of one task fails.
    constant : float
        kappa.
    gamma : (m,) array
        Of assumption 3, for each task or the smallest of all; inf where a task has no rows.
    tasks : Suboptimality
        Arrays (m,).
    new_task : Suboptimality
        Arrays of shape (): of a task drawn from the same population that the log does not have.
    """

    keys: Keys
    delta: float
    constant: float
    gamma: Array
    tasks: Suboptimality
    new_task: Suboptimality

    __repr__ = brief


def bounds(
    posterior: Posterior,
    *,
    delta: float = 0.05,
    constant: Constant = "paper",
    pessimism: float | None = None,
    length: float = 1.0,
    best: ArrayLike | None = None,
    common: bool = False,
    together: bool = False,
) -> Bounds:
    """Return the bounds of the theory for a log and a hierarchy.

    Parameters
    ----------
    posterior : Posterior
        Of two levels.
    delta : float
        Probability with which a bound may fail.
    constant : "paper" or "exact"
        kappa by :func:`assumptions.paper_constant` or :func:`assumptions.exact_constant`.
    pessimism : float, optional
        Of the policy that is bounded; default kappa, as in the paper. With another one, ``best`` has to be above the
        second moments of that policy too.
    length, best, common
        As in :func:`assumptions.coverage`.
    together : bool
        Let the bounds of all m tasks, and that of a new task, each fail with probability ``delta / m``, so that those
        of all tasks hold together with probability ``1 - delta``.

    Raises
    ------
    InputError
        There are levels or metadata, for which the theory is not derived; ``delta`` is too large for alpha;
        ``pessimism`` is not finite.
    MismatchError, NumericalError
        As :func:`assumptions.coverage`.
    """
    hierarchy, moments, d, m = posterior.hierarchy, posterior.moments, posterior.dim, len(posterior.moments)
    refuse_deeper(posterior)
    risk = probability(delta) / (max(1, m) if together else 1)
    kappa = _constant(constant, d, risk)
    factor = loss_factor(kappa, pessimism)
    target = best_moments(moments, length, best)
    smallest, largest = _ends(target)
    scale = max(length**2, float(largest.max(initial=0.0)))
    gamma = coverage(moments, length=length, best=best, common=common)
    weight = moments.sums[:, -1]
    # the last entry is a new task, which has no information
    info = np.append(np.where(weight > 0, gamma, 0.0) * weight / hierarchy.noise_var, 0.0)
    task_cov, prior = hierarchy.task_cov, hierarchy.hyper
    A, Q, flat = scale * widest(task_cov), np.inf, np.inf
    if prior is not None:
        Q, flat = scale * widest(prior.cov), scale * widest(task_cov + prior.cov)
    task = _shrunk(A, info)
    hyper_term, hyper_term_diagonal = (
        np.broadcast_to(_shrunk(Q, _shrunk(info[:-1] * share, A).sum()), info.shape)
        for share in (smallest / scale, np.ones(1))
    )
    excess = _relative(posterior.hyper.cov, task_cov)
    claim_2_holds = target.ndim == 2 and not not_diagonal(posterior, target)
    others_variance, own_variance = _largest_eigenvalues(posterior)

    def epsilon(v: Array) -> Array:
        return np.asarray(factor * np.sqrt(d * v))

    suboptimality = Suboptimality(
        theorem_1=epsilon(task),
        task_term=epsilon(task),
        hyper_term=epsilon(hyper_term),
        diagonal=epsilon(task) + epsilon(hyper_term_diagonal) if claim_2_holds else None,
        flat=epsilon(_shrunk(flat, info)),
        repaired=epsilon(task * (1.0 + excess) if np.isfinite(excess) else np.full(info.shape, np.inf)),
        leave_one_out=epsilon(_shrunk(scale * others_variance, info)),
        posterior=epsilon(length**2 * own_variance / d),
    )
    return Bounds(
        moments.keys,
        risk,
        kappa,
        gamma,
        suboptimality.at(slice(m)),
        suboptimality.at(m),
    )


def _constant(constant: Constant, dim: int, delta: float) -> float:
    if constant == "exact":
        return exact_constant(dim, delta)
    if constant != "paper":
        raise InputError(f"constant={constant!r}; 'paper' or 'exact' is needed.")
    if delta > largest_delta(dim):
        raise InputError(
            f"delta={delta:.4g}: with {dim} features the paper's alpha is too small beyond {largest_delta(dim):.4f}, "
            "so that its bounds would fail with a larger probability. Use constant='exact'."
        )
    return paper_constant(dim, delta)


def _shrunk(variance: float | Array, info: float | Array) -> Array:
    """Return 1 / (1 / v + c), also where either is 0 or inf."""
    with np.errstate(divide="ignore"):
        return np.asarray(1.0 / (1.0 / np.asarray(variance) + info))


def _relative(under: Array, over: Array) -> float:
    """Return the smallest l with under <= l over; inf where there is none."""
    least = float(dominance(over[None], under)[0])
    return 1.0 / least if least > 0 else np.inf


def _largest_eigenvalues(posterior: Posterior) -> tuple[Array, Array]:
    """Return the largest eigenvalues of Sigma_0 + Sigma-bar_-s and of cov theta_s (m + 1,), a new task last."""
    level, table, d, m = posterior.tree_levels[0], posterior.table(), posterior.dim, len(posterior.moments)
    messages = up(level.rows, level.scale, level.factor, np.arange(m), m)[0][:, : packed_size(d)]
    # the sum over the others is that before plus that after the task; the total less the task would cancel
    others = np.zeros((m + 1, packed_size(d)))
    np.cumsum(messages, axis=0, out=others[1:])
    others[: m - 1] += np.cumsum(messages[:0:-1], axis=0)[::-1]
    of_others, of_task = np.empty(m + 1), np.empty(m + 1)
    for part in pieces(m + 1, d * d):
        of_others[part] = _largest_of_prior(posterior, unpack(others[part], d))
    for part in pieces(m, d * d):
        of_task[part] = largest_eigenvalue(unpack(table.covs[part], d))
    of_task[m] = widest(table.prior.cov)
    return of_others, np.maximum(of_task, 0.0)


def _largest_of_prior(posterior: Posterior, P: Array) -> Array:
    """Return lambda_1(Sigma_0 + (Sigma_q^-1 + P)^-1) for P (k, d, d)."""
    cov, prior = posterior.hierarchy.task_cov, posterior.hierarchy.hyper
    if prior is not None:
        C = square_roots(prior.cov[None])[0]
        return largest_eigenvalue(
            cov + C @ np.linalg.solve(np.eye(len(C)) + C.T @ P @ C, np.broadcast_to(C.T, P.shape))
        )
    scale = np.sqrt(np.maximum(np.diagonal(P, axis1=1, axis2=2), 0.0))
    has_null_direction = (scale <= 0).any(axis=1)
    scale = np.where(scale > 0, scale, 1.0)
    values, vectors = np.linalg.eigh(P / (scale[:, :, None] * scale[:, None, :]))
    has_null_direction |= values[:, 0] <= pivot_tolerance(P.shape[1]) * values[:, -1]
    root = (
        vectors / np.sqrt(np.where(has_null_direction[:, None], 1.0, values))[:, None, :] / scale[:, :, None]
    )
    return np.where(has_null_direction, np.inf, largest_eigenvalue(cov + root @ root.swapaxes(1, 2)))


def _ends(target: Array) -> tuple[Array, Array]:
    """Return the smallest and the largest eigenvalues."""
    values: Array = np.asarray(np.linalg.eigvalsh(target))
    return np.maximum(values[..., 0], 0.0), values[..., -1]
