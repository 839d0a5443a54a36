"""How far a lower-bound policy can be from the best, proved before it acts: the HierOPO paper's theorems, and tighter.

V(pi_*) - V(pi) <= epsilon with probability 1 - delta over theta_s given the log. All of these go one way. With kappa
such that P(|phi' (theta - mean)| <= kappa sd(phi' theta) for all phi) >= 1 - delta, the policy that maximises
mean - p sd loses at most (kappa + p) sd_* + (kappa - p) sd-hat in a context, * of the best action and hat of its own,
and the mean of phi' C phi over contexts is tr(C G_*), G_* the second moments of what the best policy does. So

    epsilon = max(2 kappa, kappa + |p|) sqrt(d v),      tr(C G_*) <= d v

(2 kappa is the paper's, for p = kappa; other p are derived here). They differ in how v is found. Write A = L^2
lambda_1(Sigma_0), Q = L^2 lambda_1(Sigma_q), L the longest feature vector, and c_s = gamma n_s / sigma^2 where
G_s >= c_s G_* in the Loewner order (Assumptions 2 and 3), G_* <= L^2 I; then with f(v, c) = 1 / (1 / v + c)

    theorem 1, mu known    f(A, c_s)
    theorem 2, claim 1     f(A, c_s)  +  h,   1 / h = 1 / Q + sum_z 1 / (A + lambda_1(G_z*^-1) L^2 / c_z)
    theorem 2, claim 2     f(A, c_s)  +  h,   1 / h = 1 / Q + sum_z 1 / (A + 1 / c_z)       (Assumption 4: all diagonal)
    FlatOPO                f(L^2 lambda_1(Sigma_0 + Sigma_q), c_s)
    repaired               f(A, c_s) (1 + lambda_1(Sigma_0^-1 Sigma-bar))
    apart                  f(L^2 lambda_1(Sigma_0 + Sigma-bar_-s), c_s)
    posterior              L^2 lambda_1(cov theta_s) / d,   which needs no gamma

Theorem 2 is put together from the steps of its proof, with the inverse that the last display of claim 1 lacks, and as
the sum of two square roots, a task term and a hyper-parameter term, which is how the paper discusses it.

The paper's proof of claim 1 takes lambda_1(Sigma~_s Sigma_0^-1) <= 1 for a norm. It is one where that product is
symmetric, as for Sigma_0 = s^2 I or diagonal matrices, and not in general. "Repaired" does without: Sigma-bar <= l
Sigma_0 gives cov theta_s <= (1 + l) Sigma~_s. "Apart" does too: what the other tasks say of mu, Sigma-bar_-s, is the
prior of task s, cov theta_s = ((Sigma_0 + Sigma-bar_-s)^-1 + G_s)^-1, and theorem 1 holds with that prior. It shows
that the statement of claim 1 is true for any Sigma_0, with the root of the sum and so with the sum of the roots: with
a = f(Q, sum over the others) >= L^2 lambda_1(Sigma-bar_-s),

    f(A + a, c) - f(A, c) = a / ((1 + c A)(1 + c A + c a)) <= a (1 + c A) / (1 + c A + c a) <= h

Sources: arXiv 2212.04720, sections 4 and 5 and its appendix; Laurent and Massart, Annals of Statistics 28, 2000, lemma
1, for the constant. "Repaired", "apart", "posterior", the constants beyond alpha and other L and p are derived here.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hieropo._utils.arrays import Array
from hieropo._utils.packed import packed_size, unpack
from hieropo.errors import InputError
from hieropo.evaluation.by_posterior.assumptions import (
    best_moments,
    coverage,
    dominance,
    exact_constant,
    largest_delta,
    largest_eigenvalue,
    loss_factor,
    not_diagonal,
    paper_constant,
    pieces,
    probability,
    refuse_deeper,
    widest,
)
from hieropo.model.posterior import Posterior
from hieropo.model.steps import pivot_tolerance, square_roots, up
from hieropo.rows.keys import Keys

Constant = Literal["paper", "exact"]


class Suboptimality(NamedTuple):
    """Bounds on V(pi_*) - V(pi), in reward units; inf where nothing bounds it. The formulas are in the module's head.

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
    repaired, apart : (m,) array
        For any Sigma_0; ``apart`` is never above theorem 2, claim 1.
    posterior : (m,) array
        By the posterior covariance alone; with the default ``best`` never above ``apart``.
    """

    theorem_1: Array
    task_term: Array
    hyper_term: Array
    diagonal: Array | None
    flat: Array
    repaired: Array
    apart: Array
    posterior: Array

    @property
    def theorem_2(self) -> Array:
        """Theorem 2, claim 1."""
        return self.task_term + self.hyper_term

    def at(self, place: int | slice) -> "Suboptimality":
        """Return the bounds of some tasks."""
        diagonal = None if self.diagonal is None else np.asarray(self.diagonal[place])
        rest = {name: np.asarray(v[place]) for name, v in self._asdict().items() if name != "diagonal"}
        return Suboptimality(diagonal=diagonal, **rest)


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """What the theory says of every task of a log; made by :func:`bounds`.

    Attributes
    ----------
    keys : Keys
        The m tasks.
    delta : float
        Probability with which the bound of one task fails.
    constant : float
        kappa.
    gamma : (m,) array
        Assumption 3 as measured, or the smallest of all; inf where a task has no rows, for which any will do.
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
        There are levels or metadata, which the theory does not know; ``delta`` is beyond where alpha is true;
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
    low, high = _ends(target)
    top = max(length**2, float(high.max(initial=0.0)))
    gamma = coverage(moments, length=length, best=best, common=common)
    weight = moments.sums[:, -1]
    # a new task stands last: it tells nothing of itself
    info = np.append(np.where(weight > 0, gamma, 0.0) * weight / hierarchy.noise_var, 0.0)
    task_cov, prior = hierarchy.task_cov, hierarchy.hyper
    A, Q, flat = top * widest(task_cov), np.inf, np.inf
    if prior is not None:
        Q, flat = top * widest(prior.cov), top * widest(task_cov + prior.cov)
    task = _shrunk(A, info)
    seen, even = (
        np.broadcast_to(_shrunk(Q, _shrunk(info[:-1] * part, A).sum()), info.shape)
        for part in (low / top, np.ones(1))
    )
    excess = _relative(posterior.hyper.cov, task_cov)
    alike = target.ndim == 2 and not not_diagonal(posterior, target)
    apart, own = _widths(posterior)

    def epsilon(v: Array) -> Array:
        return np.asarray(factor * np.sqrt(d * v))

    found = Suboptimality(
        theorem_1=epsilon(task),
        task_term=epsilon(task),
        hyper_term=epsilon(seen),
        diagonal=epsilon(task) + epsilon(even) if alike else None,
        flat=epsilon(_shrunk(flat, info)),
        repaired=epsilon(task * (1.0 + excess) if np.isfinite(excess) else np.full(info.shape, np.inf)),
        apart=epsilon(_shrunk(top * apart, info)),
        posterior=epsilon(length**2 * own / d),
    )
    return Bounds(
        moments.keys,
        risk,
        kappa,
        gamma,
        found.at(slice(m)),
        found.at(m),
    )


def _constant(constant: Constant, dim: int, delta: float) -> float:
    if constant == "exact":
        return exact_constant(dim, delta)
    if constant != "paper":
        raise InputError(f"constant={constant!r}; 'paper' or 'exact' is needed.")
    if delta > largest_delta(dim):
        raise InputError(
            f"delta={delta:.4g}: with {dim} features the paper's alpha is too small beyond {largest_delta(dim):.4f}, "
            "so that its bounds would fail more often than said. Use constant='exact'."
        )
    return paper_constant(dim, delta)


def _shrunk(variance: float | Array, info: float | Array) -> Array:
    """1 / (1 / v + c), also where either is 0 or inf."""
    with np.errstate(divide="ignore"):
        return np.asarray(1.0 / (1.0 / np.asarray(variance) + info))


def _relative(under: Array, over: Array) -> float:
    """Smallest l with under <= l over; inf where there is none."""
    least = float(dominance(over[None], under)[0])
    return 1.0 / least if least > 0 else np.inf


def _widths(posterior: Posterior) -> tuple[Array, Array]:
    """Largest eigenvalues of Sigma_0 + Sigma-bar_-s and of cov theta_s, of all m tasks and then of a new one."""
    stage, table, d, m = posterior.stages[0], posterior.table(), posterior.dim, len(posterior.moments)
    said = up(stage.rows, stage.scale, stage.factor, np.arange(m), m)[0][:, : packed_size(d)]
    # sums over all others as what is before and what is behind, since a difference to the whole would cancel
    others = np.zeros((m + 1, packed_size(d)))
    np.cumsum(said, axis=0, out=others[1:])
    others[: m - 1] += np.cumsum(said[:0:-1], axis=0)[::-1]
    apart, own = np.empty(m + 1), np.empty(m + 1)
    for part in pieces(m + 1):
        apart[part] = _prior_width(posterior, unpack(others[part], d))
    for part in pieces(m):
        own[part] = largest_eigenvalue(unpack(table.covs[part], d))
    own[m] = widest(table.prior.cov)
    return apart, np.maximum(own, 0.0)


def _prior_width(posterior: Posterior, P: Array) -> Array:
    """lambda_1(Sigma_0 + (Sigma_q^-1 + P)^-1) for P (k, d, d)."""
    cov, prior = posterior.hierarchy.task_cov, posterior.hierarchy.hyper
    if prior is not None:
        C = square_roots(prior.cov[None])[0]
        return largest_eigenvalue(
            cov + C @ np.linalg.solve(np.eye(len(C)) + C.T @ P @ C, np.broadcast_to(C.T, P.shape))
        )
    scale = np.sqrt(np.maximum(np.diagonal(P, axis1=1, axis2=2), 0.0))
    unseen = (scale <= 0).any(axis=1)
    scale = np.where(scale > 0, scale, 1.0)
    values, vectors = np.linalg.eigh(P / (scale[:, :, None] * scale[:, None, :]))
    unseen |= values[:, 0] <= pivot_tolerance(P.shape[1]) * values[:, -1]
    root = vectors / np.sqrt(np.where(unseen[:, None], 1.0, values))[:, None, :] / scale[:, :, None]
    return np.where(unseen, np.inf, largest_eigenvalue(cov + root @ root.swapaxes(1, 2)))


def _ends(target: Array) -> tuple[Array, Array]:
    """Smallest and largest eigenvalues."""
    values: Array = np.asarray(np.linalg.eigvalsh(target))
    return np.maximum(values[..., 0], 0.0), values[..., -1]
