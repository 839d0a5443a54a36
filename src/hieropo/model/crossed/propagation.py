"""Expectation propagation over tasks that each have one of several unknown labels.

Task s has label k with probability w_k, k = 1 .. n: gamma_sa ~ N(0, c_k^2 M), or mu_a = beta + the effects of a kind k
of tasks. With z the standardised effects of the actions and
beta, mu_a = beta + F z_a, A = F F', the rows of task s say of z, its level and interactions integrated out,

    t_s(z) = sum_k w_k exp(kappa_sk + eta_sk'z - z'Lambda_sk z / 2)

Each t_s is approximated by a Gaussian factor. Given the factors of all other tasks (the cavity), z has, with
probability r_sk of scale k, a Gaussian posterior; the factor of s is that which gives their mixture its mean and
covariance (Minka 2001). All factors change at once until none does. Where one scale has all weight the factors are
exact. The log evidence is that of the approximation,

    log Z = Phi(Gamma, nu) + sum_s (log sum_k w_k Z_sk + Phi(cavity_s) - Phi(Gamma, nu))
    Phi(Gamma, nu) = (nu'Gamma^-1 nu - log|Gamma|) / 2

up to constants that no scale and no weight changes.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from hieropo._utils.arrays import Array
from hieropo._utils.packed import unpack
from hieropo.errors import NumericalError
from hieropo.model.crossed.steps import ObservedUnits
from hieropo.model.steps import upper_factor

_ROUNDS = 200
_CLOSE = (
    1e-9  # change of responsibilities and of means, in standard deviations, at which the factors are kept
)
_LEAST_STEP = 1e-3
_OPEN = 1e-13  # information on beta in units of that of all tasks, that a cavity has at least


class TaskTerms(NamedTuple):
    """The rows of t tasks about z, of D numbers, under each of n scales.

    Attributes
    ----------
    information : (n, t, D, D) array
        Lambda_sk.
    score : (n, t, D) array
        eta_sk.
    constant : (n, t) array
        kappa_sk.
    """

    information: Array
    score: Array
    constant: Array

    @classmethod
    def of(
        cls, units: ObservedUnits, interaction_cov: Array, level_cov: Array, basis: Array, scales: Array
    ) -> "TaskTerms":
        """Integrate out interactions and level under each of some scales of the standard deviation (n,).

        The terms are about z, mu = ``basis`` z.
        """
        p, K, t = units.dim, units.n_actions, len(units.tasks)
        sums = np.zeros((t, K, p + 1, p + 1))
        sums[units.task, units.action] = unpack(units.rows, p + 1)
        some = [_terms(sums, scale**2 * interaction_cov, level_cov, basis) for scale in scales.tolist()]
        return cls(*(np.array(part) for part in zip(*some, strict=True)))

    def along(self, basis: Array) -> "TaskTerms":
        """Return terms about mu (K p) as those about z, mu = basis z."""
        return TaskTerms(basis.T @ self.information @ basis, self.score @ basis, self.constant)

    @classmethod
    def stacked(cls, labels: Iterable["TaskTerms"]) -> "TaskTerms":
        """Return terms of one label each as those of all."""
        return cls(*(np.concatenate(part) for part in zip(*labels, strict=True)))


def effects_basis(action_cov: Array, n_actions: int) -> Array:
    """Return the matrix (K p, D) from z = (z_1, ..., z_K, beta) to mu; actions without variance have no z."""
    p = len(action_cov)
    factor = upper_factor(action_cov)[0]
    factor = factor[:, factor.any(axis=0)]
    return np.concatenate([np.kron(np.eye(n_actions), factor), np.tile(np.eye(p), (n_actions, 1))], axis=1)


def _terms(sums: Array, interaction_cov: Array, level_cov: Array, basis: Array) -> tuple[Array, Array, Array]:
    t, K, p = sums.shape[0], sums.shape[1], sums.shape[2] - 1
    G, B, square = sums[..., :p, :p], sums[..., :p, p], sums[..., p, p].sum(axis=1)
    inner = np.eye(p) + G @ interaction_cov
    solution = np.linalg.solve(inner, np.concatenate([G, B[..., None]], axis=3))
    P, b = (solution[..., :p] + solution[..., :p].swapaxes(2, 3)) / 2, solution[..., p]
    square = square - np.einsum("tai,ij,taj->t", B, interaction_cov, b)
    log_det = np.linalg.slogdet(inner)[1].sum(axis=1)
    Q, total = P.sum(axis=1), b.sum(axis=1)
    outer = np.eye(p) + level_cov @ Q
    W = np.linalg.solve(outer, np.broadcast_to(level_cov, Q.shape))
    log_det += np.linalg.slogdet(outer)[1]
    shift = np.einsum("tij,tj->ti", W, total)
    square -= np.einsum("ti,ti->t", total, shift)
    stacked = P.reshape(t, K * p, p)
    information = -(stacked @ W @ stacked.swapaxes(1, 2))
    np.einsum("taibj->tabij", information.reshape(t, K, p, K, p))[:, np.arange(K), np.arange(K)] += P
    score = b - np.einsum("taij,tj->tai", P, shift)
    along = basis.T @ information @ basis
    return (along + along.swapaxes(1, 2)) / 2, score.reshape(t, K * p) @ basis, -0.5 * (square + log_det)


def inverted(precision: Array, shift: Array) -> tuple[Array, Array, Array]:
    """Covariances, means and Phi of Gaussians with some precisions (..., D, D) and Gamma mean = shift (..., D)."""
    diagonal = np.einsum("...ii->...i", precision)
    if not (diagonal > 0).all():
        raise np.linalg.LinAlgError("not positive definite")
    scale = np.sqrt(diagonal)
    root = np.linalg.cholesky(precision / (scale[..., :, None] * scale[..., None, :]))
    half = np.linalg.solve(root, np.broadcast_to(np.eye(scale.shape[-1]), root.shape)) / scale[..., None, :]
    cov = half.swapaxes(-1, -2) @ half
    along = np.einsum("...ij,...j->...i", half, shift)
    mean = np.einsum("...ij,...i->...j", half, along)
    log_det = np.log(np.einsum("...ii->...i", root)).sum(axis=-1) + np.log(scale).sum(axis=-1)
    return cov, mean, 0.5 * np.square(along).sum(axis=-1) - log_det


def phi(precision: Array, shift: Array) -> Array:
    """Phi of Gaussians with some precisions (..., D, D) and Gamma mean = shift (..., D), from a root alone."""
    root = np.linalg.cholesky(precision)
    along, square = np.empty_like(shift), np.zeros(shift.shape[:-1])
    for j in range(shift.shape[-1]):
        seen = np.einsum("...i,...i->...", root[..., j, :j], along[..., :j])
        along[..., j] = (shift[..., j] - seen) / root[..., j, j]
        square += np.square(along[..., j])
    return np.asarray(0.5 * square - np.log(np.einsum("...ii->...i", root)).sum(axis=-1))


class Round(NamedTuple):
    """One round: posteriors given scales, and the factors that follow from them."""

    responsibilities: Array  # (t, n)
    log_ratios: Array  # (n, t): log Z_sk
    means: Array  # (n, t, D)
    precision: Array  # (t, D, D), of the new factors
    shift: Array  # (t, D)
    log_evidence: float


class Propagated(NamedTuple):
    """The approximation at its fixed point.

    Attributes
    ----------
    responsibilities : (t, n) array
        r_sk, the posterior probability that task s has scale k.
    log_ratios : (n, t) array
        log Z_sk: log evidence of the rows of s under scale k, given all other tasks.
    mean, cov : (D,), (D, D) array
        Of z, given all tasks.
    means : (n, t, D) array
        Of z, given all tasks, and scale k in task s.
    change : (n, t, D, D) array
        Lambda_sk less the information of the factor of s: of z given scale k in s the precision is Gamma + change.
    log_evidence : float
    converged : bool
    """

    responsibilities: Array
    log_ratios: Array
    mean: Array
    cov: Array
    means: Array
    change: Array
    log_evidence: float
    converged: bool


class Factors(NamedTuple):
    """Gaussian factors of all tasks: precisions (t, D, D) and shifts (t, D)."""

    precision: Array
    shift: Array

    @classmethod
    def averaged(cls, terms: TaskTerms, responsibilities: Array) -> "Factors":
        """Return those of the terms, averaged by some responsibilities (t, n) or (n,)."""
        weights = np.broadcast_to(responsibilities, (terms.constant.shape[1], len(terms.constant)))
        return cls(
            np.einsum("tk,ktij->tij", weights, terms.information),
            np.einsum("tk,kti->ti", weights, terms.score),
        )

    def between(self, other: "Factors", share: float) -> "Factors":
        """Return the factors that are ``share`` of the way to others."""
        return Factors(
            self.precision + share * (other.precision - self.precision),
            self.shift + share * (other.shift - self.shift),
        )


def propagate(
    terms: TaskTerms,
    weights: Array,
    prior: Array,
    start: Factors | None = None,
    *,
    close: float = _CLOSE,
    rounds: int = _ROUNDS,
    least: float = 0.0,
) -> tuple[Propagated, Factors]:
    """Return the approximation at its fixed point; where none is reached, as far as factors remain Gaussian.

    Parameters
    ----------
    terms : TaskTerms
        Of t tasks.
    weights : (n,) array
        w_k; add to 1.
    prior : (D,) array
        Precisions of z a priori, 0 where flat.
    start : Factors, optional
        From which to start; default the terms averaged by the weights.
    close : float
        Change of responsibilities, and relative change of the evidence, at which the factors are kept.
    rounds : int
        At most.
    least : float
        Responsibility below which a scale is left out of the factors.

    Raises
    ------
    NumericalError
        The rows leave a direction of beta open.
    """
    with np.errstate(divide="ignore"):
        log_weights = np.log(weights)
    factors = Factors.averaged(terms, weights) if start is None else start
    share, last, reached = 1.0, factors, False
    try:
        step = one_round(terms, log_weights, prior, factors, least)
    except np.linalg.LinAlgError as error:
        raise NumericalError(
            "The rows do not determine beta, the coefficients that all tasks and actions share: a column is constant "
            "zero or a copy of others, or the log has no rows. Leave the column out."
        ) from error
    for _ in range(rounds):
        factors = last.between(Factors(step.precision, step.shift), share)
        try:
            following = one_round(terms, log_weights, prior, factors, least)
        except np.linalg.LinAlgError:  # a cavity of no Gaussian: go less far
            share /= 2
            if share < _LEAST_STEP:
                break
            continue
        reached = _close(step, following, close)
        last, step = factors, following
        if reached:
            break
    factors = last
    gamma, nu = np.diag(prior) + factors.precision.sum(axis=0), factors.shift.sum(axis=0)
    cov, mean, _ = inverted(gamma, nu)
    change = terms.information - factors.precision
    return (
        Propagated(
            step.responsibilities, step.log_ratios, mean, cov, step.means, change, step.log_evidence, reached
        ),
        factors,
    )


def _close(previous: Round, step: Round, close: float) -> bool:
    change = np.abs(step.responsibilities - previous.responsibilities).max(initial=0.0)
    evidence = abs(step.log_evidence - previous.log_evidence)
    return bool(change < close and evidence < close * max(1.0, abs(step.log_evidence)))


class Cavities(NamedTuple):
    """The law of z given all others, of each task: precisions (t, D, D), shifts (t, D), Phi (t,); Phi of all tasks."""

    precision: Array
    shift: Array
    phi: Array
    total: float

    @classmethod
    def of(cls, prior: Array, factors: Factors) -> "Cavities":
        """Take the factor of each task from those of all."""
        gamma, nu = np.diag(prior) + factors.precision.sum(axis=0), factors.shift.sum(axis=0)
        open_ = np.diag(np.where(prior > 0, 0.0, _OPEN * np.diagonal(gamma)))
        precision, shift = gamma - factors.precision + open_, nu - factors.shift
        return cls(precision, shift, phi(precision, shift), float(phi(gamma, nu)))

    def log_ratios(self, terms: TaskTerms) -> Array:
        """Log Z_sk (n, t)."""
        tilted = phi(self.precision + terms.information, self.shift + terms.score)
        return np.asarray(terms.constant + tilted - self.phi)

    def log_evidence(self, log_ratios: Array, log_weights: Array) -> float:
        """Log Z for log weights (n,) of the scales."""
        mixed = np.logaddexp.reduce(log_ratios.T + log_weights, axis=1)
        return float(self.total + (self.phi - self.total + mixed).sum())


def one_round(
    terms: TaskTerms, log_weights: Array, prior: Array, factors: Factors, least: float = 0.0
) -> Round:
    """Return the posteriors of all tasks given the factors of the others, for log weights (n,) of the scales.

    Scales of a responsibility under ``least`` are left out of the new factors, and have means of 0.
    """
    cavities = Cavities.of(prior, factors)
    log_ratios = cavities.log_ratios(terms)
    joint = log_ratios.T + log_weights
    shares = np.exp(joint - joint.max(axis=1, keepdims=True))
    responsibilities = shares / shares.sum(axis=1, keepdims=True)
    task, scale = np.nonzero(responsibilities >= least)  # by task, at least one of each
    covs, means, _ = inverted(
        cavities.precision[task] + terms.information[scale, task],
        cavities.shift[task] + terms.score[scale, task],
    )
    weight, starts = responsibilities[task, scale], np.searchsorted(task, np.arange(len(responsibilities)))
    mean = np.add.reduceat(weight[:, None] * means, starts, axis=0)
    away = means - mean[task]
    covs += away[:, :, None] * away[:, None, :]
    covs *= weight[:, None, None]
    cov = np.add.reduceat(covs, starts, axis=0)
    matched = inverted(cov, np.zeros_like(mean))[0]
    changed = matched - cavities.precision
    changed = (changed + changed.swapaxes(1, 2)) / 2  # what is not symmetric would grow t-fold in every round
    of_scales = np.zeros_like(terms.score)
    of_scales[scale, task] = means
    return Round(
        responsibilities, log_ratios, of_scales, changed,
        np.einsum("tij,tj->ti", matched, mean) - cavities.shift,
        cavities.log_evidence(log_ratios, log_weights),
    )  # fmt: skip
