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

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np

from hieropo._kernels import backend
from hieropo._kernels.reference.gaussians import inverted, phi
from hieropo._utils.arrays import Array
from hieropo._utils.packed import unpack
from hieropo.errors import NumericalError
from hieropo.model.crossed.steps import ObservedUnits
from hieropo.model.steps import upper_factor

_ROUNDS = 200
_CLOSE = (
    1e-9  # change of responsibilities and of means, in standard deviations, at which the factors are kept
)
_SETTLED = 0.01  # change of the log evidence in a round at which they are kept, at most
_LEAST_STEP = 1e-3
_LEAST_MIXED = 0.25  # share of a round below which a combination that is no Gaussian does not bring it
_FLAT = 1e-8  # precision of z given a label, in units of that given all tasks, from which on it is taken
_NEAR = 0.3  # change of responsibilities from which on rounds are accelerated
_KEPT = 10  # rounds that are combined with the last
_TOLD = 1e-10  # size of a direction of their changes, in units of the largest, below which it is left out
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

    def one(factors: Factors) -> Round:
        return one_round(terms, log_weights, prior, factors, least)

    try:
        first = one(factors)
    except np.linalg.LinAlgError as error:
        raise NumericalError(
            "The rows do not determine beta, the coefficients that all tasks and actions share: a column is constant "
            "zero or a copy of others, or the log has no rows. Leave the column out."
        ) from error
    start = factors
    factors, step, reached = _iterated(one, start, first, close, rounds, _Mixing.of(start, prior))
    if not reached:  # without acceleration factors stay further from what is no Gaussian
        factors, step, reached = _iterated(one, start, first, close, rounds, None)
        if not proper(terms, prior, factors):
            factors, step = start, first
    gamma, nu = np.diag(prior) + factors.precision.sum(axis=0), factors.shift.sum(axis=0)
    cov, mean, _ = inverted(gamma, nu)
    change = terms.information - factors.precision
    return (
        Propagated(
            step.responsibilities, step.log_ratios, mean, cov, step.means, change, step.log_evidence, reached
        ),
        factors,
    )


def proper(terms: TaskTerms, prior: Array, factors: Factors) -> bool:
    """Return True where no law of z given a label in one task is nearly flat beside that given all tasks."""
    gamma = np.diag(prior) + factors.precision.sum(axis=0)
    root = np.linalg.cholesky(inverted(gamma, np.zeros(len(gamma)))[0])
    within = root.T @ (gamma + terms.information - factors.precision) @ root
    return bool(np.linalg.eigvalsh(within).min() > _FLAT)


def _iterated(
    one: Callable[[Factors], Round],
    factors: Factors,
    step: Round,
    close: float,
    rounds: int,
    mixing: "_Mixing | None",
) -> tuple[Factors, Round, bool]:
    """Return factors, the round from them, and whether they are a fixed point."""
    share, reached = 1.0, False
    for _ in range(rounds):
        new = Factors(step.precision, step.shift)
        following = factors.between(new, share) if mixing is None else mixing.next(factors, new, share)
        try:
            attempt = one(following)
        except np.linalg.LinAlgError:  # a cavity of no Gaussian: go less far
            mixed = mixing is not None and mixing.mixed
            share = min(share, max(share / 2, _LEAST_MIXED)) if mixed else share / 2
            if share < _LEAST_STEP:
                break
            if mixing is not None:
                mixing.forget()
            continue
        reached = _close(step, attempt, close)
        if mixing is not None:
            change = np.abs(step.responsibilities - attempt.responsibilities).max(initial=0.0)
            mixing.near = bool(change < _NEAR)
        factors, step = following, attempt
        if reached:
            break
    return factors, step, reached


def _close(previous: Round, step: Round, close: float) -> bool:
    change = np.abs(step.responsibilities - previous.responsibilities).max(initial=0.0)
    evidence = abs(step.log_evidence - previous.log_evidence)
    return bool(change < close and evidence < min(_SETTLED, close * max(1.0, abs(step.log_evidence))))


@dataclass(slots=True)
class _Mixing:
    """Anderson's acceleration: the last factors, combined so that their changes in a round cancel as far as they can.

    Attributes
    ----------
    scale : (D,) array
        Units of z, in which changes are compared.
    kept : list of (change, old factors, new factors)
        Of the last rounds.
    near : bool
        True where responsibilities change so little that factors are combined.
    mixed : bool
        True where the last ones were.
    """

    scale: Array
    kept: list[tuple[Array, Factors, Factors]] = field(default_factory=list)
    near: bool = False
    mixed: bool = False

    @classmethod
    def of(cls, factors: Factors, prior: Array) -> Self:
        """Take the units from the posterior of z."""
        return cls(1 / np.sqrt(prior + np.einsum("tii->i", factors.precision)))

    def forget(self) -> None:
        """Start anew."""
        self.kept, self.near = [], False

    def next(self, old: Factors, new: Factors, share: float) -> Factors:
        """Return the factors of the next round, ``share`` of the way from old to new ones where none are combined."""
        of_precision = (new.precision - old.precision) * (self.scale[:, None] * self.scale)
        of_shift = (new.shift - old.shift) * self.scale
        change = np.concatenate([of_precision.ravel(), of_shift.ravel()])
        self.kept = [*self.kept, (change, old, new)][-_KEPT - 1 :]
        following = old.between(new, share)
        self.mixed = self.near and len(self.kept) > 1
        if self.mixed:
            before = self.kept[:-1]
            away = np.array([change - other for other, _, _ in before])
            weights = np.linalg.lstsq(away @ away.T, away @ change, rcond=_TOLD)[0]
            rest = 1.0 - float(weights.sum())
            following = Factors(rest * following.precision, rest * following.shift)
            for weight, (_, first, second) in zip(weights.tolist(), before, strict=True):
                then = first.between(second, share)
                following.precision[:] += weight * then.precision
                following.shift[:] += weight * then.shift
        return following


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
        precision, shift = gamma + _open(prior, gamma) - factors.precision, nu - factors.shift
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
    gamma, nu = np.diag(prior) + factors.precision.sum(axis=0), factors.shift.sum(axis=0)
    n, t, D = terms.score.shape
    step = Round(
        np.empty((t, n)), np.empty((n, t)), np.empty((n, t, D)), np.empty((t, D, D)), np.empty((t, D)), 0.0
    )
    phis, total = np.empty(t), float(phi(gamma, nu))
    loops = backend.propagation(terms.information.size)
    if not loops.one_round(
        *(np.ascontiguousarray(part) for part in terms),
        log_weights,
        gamma + _open(prior, gamma),
        nu,
        *factors,
        least,
        *step[:-1],
        phis,
    ):
        raise np.linalg.LinAlgError("a cavity, or a posterior given a scale, is no Gaussian")
    cavities = Cavities(np.empty(0), np.empty(0), phis, total)
    return step._replace(log_evidence=cavities.log_evidence(step.log_ratios, log_weights))


def _open(prior: Array, gamma: Array) -> Array:
    return np.diag(np.where(prior > 0, 0.0, _OPEN * np.diagonal(gamma)))
