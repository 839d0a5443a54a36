"""The posterior of the crossed prior where tasks are of several kinds, each with effects of actions of its own.

The label of a task (:mod:`labels`) is its kind k. With eta_ka ~ N(0, C), the effects of the actions are

    theta_sa = beta + e_ka + u_s + gamma_sa        e_ka = alpha_a + eta_ka        cov(e_ka, e_ja) = A + C [k = j]

and z are their standardised values under all kinds, and beta: D = (n K + 1) p numbers. Every order of the kinds is a
mode of the posterior, and so is every partition of the tasks that the log leaves possible; expectation propagation
stays at the one nearest to the centres of the hierarchy.
"""

import numpy as np

from hieropo._utils.arrays import Array
from hieropo.model.crossed.hierarchy import CrossedHierarchy, Kinds
from hieropo.model.crossed.labels import LabelBasis, LabelPosterior
from hieropo.model.crossed.posterior import check_crossed
from hieropo.model.crossed.propagation import Factors, TaskTerms, one_round, propagate, proper
from hieropo.model.crossed.steps import ObservedUnits, UnitMessages
from hieropo.model.gaussian import minus, plus
from hieropo.model.steps import upper_factor
from hieropo.moments.statistics import Moments

LEAST = 1e-8  # responsibility below which a kind has no part in the factor of a task
_CLOSE = 1e-7  # change of responsibilities at which the factors are kept; kinds that overlap converge slowly


class KindPosterior(LabelPosterior):
    """Posterior of every task under one hierarchy with kinds of tasks; made by :func:`condition_kinds`."""

    @property
    def kinds(self) -> Kinds:
        """The kinds of the hierarchy."""
        assert self.hierarchy.kinds is not None
        return self.hierarchy.kinds

    def _messages(self, label: int) -> tuple[CrossedHierarchy, UnitMessages]:  # noqa: ARG002 - alike in all kinds
        one = self.hierarchy
        plain = CrossedHierarchy(one.action_cov, one.level_cov, one.interaction_cov, one.noise_var)
        return plain, UnitMessages(self._units, one.interaction_cov)

    def _new_effect_covs(self) -> tuple[Array, Array]:
        one, of_kinds = self.hierarchy.action_cov, self.kinds.effect_cov
        return one + float(np.square(self.label_weights).sum()) * of_kinds, one + of_kinds

    def effects(self) -> Array:
        """Return the posterior means (n, K, p) of beta + e_ka of all kinds."""
        means = np.array([self._basis.below(k) @ self._mean for k in range(len(self.label_weights))])
        return plus(means.reshape(len(means), -1, self.moments.unit_dim), self.moments.unit_offset)


def kinds_basis(action_cov: Array, effect_cov: Array, n_kinds: int, n_actions: int) -> LabelBasis:
    """Return the coefficients of the kinds as functions of z; directions without variance have no z."""
    p = len(action_cov)
    cov = np.kron(np.ones((n_kinds, n_kinds)), action_cov) + np.kron(np.eye(n_kinds), effect_cov)
    factor = upper_factor(cov)[0]
    factor = factor[:, factor.any(axis=0)].reshape(n_kinds, p, -1)
    effects = np.array([np.kron(np.eye(n_actions), one) for one in factor])
    beta = np.concatenate([np.zeros((p, effects.shape[2])), np.eye(p)], axis=1)
    return LabelBasis(beta, np.concatenate([effects, np.zeros((*effects.shape[:2], p))], axis=2))


def terms_of_kinds(about_actions: TaskTerms, basis: LabelBasis) -> TaskTerms:
    """Return the terms about z of each kind, from those about the coefficients of the actions (1 label)."""
    return TaskTerms.stacked(about_actions.along(basis.below(k)) for k in range(len(basis.effects)))


def flat_prior(basis: LabelBasis) -> Array:
    """Return the prior precisions (D,) of z: 0 for beta, else 1."""
    p, D = basis.beta.shape
    return np.where(np.arange(D) >= D - p, 0.0, 1.0)


def log_densities(about_actions: TaskTerms, centres: Array) -> Array:
    """Return the log density (t, n) of the rows of each task, were its actions those of each centre (n, K p)."""
    t, d = about_actions.score.shape[1:]
    squares = np.einsum("ki,kj->kij", centres, centres).reshape(len(centres), d * d)
    quadratic = about_actions.information[0].reshape(t, d * d) @ squares.T
    return np.asarray(about_actions.constant[0][:, None] + about_actions.score[0] @ centres.T - quadratic / 2)


def shares_of(log_weights: Array) -> Array:
    """Return the probabilities (..., n) of log weights."""
    share = np.exp(log_weights - log_weights.max(axis=-1, keepdims=True))
    return np.asarray(share / share.sum(axis=-1, keepdims=True))


def condition_kinds(
    moments: Moments, hierarchy: CrossedHierarchy, units: ObservedUnits | None = None
) -> KindPosterior:
    """Condition the crossed prior with kinds of tasks on the log.

    O(t n D^3) for t tasks with rows, n kinds and D = (n K + 1) p, in each round of expectation propagation.

    Parameters
    ----------
    moments : Moments
    hierarchy : CrossedHierarchy
        With ``kinds``.
    units : ObservedUnits, optional
        Those of the moments, divided by the noise of the hierarchy, where they are there already.

    Raises
    ------
    MismatchError, NumericalError
        As :func:`condition_crossed`.
    """
    kinds = hierarchy.kinds
    assert kinds is not None
    if units is None:
        check_crossed(moments, hierarchy)
        units = ObservedUnits.of(moments, hierarchy.noise_var)
    about_actions = TaskTerms.of(
        units, hierarchy.interaction_cov, hierarchy.level_cov, np.eye(moments.dim), np.ones(1)
    )
    basis = kinds_basis(hierarchy.action_cov, kinds.effect_cov, kinds.weights.size, hierarchy.n_actions)
    terms = terms_of_kinds(about_actions, basis)
    centres = plus(kinds.centres, minus(moments.unit_offset)).reshape(kinds.weights.size, -1)
    with np.errstate(divide="ignore"):
        start = shares_of(log_densities(about_actions, centres) + np.log(kinds.weights))
    prior = flat_prior(basis)
    at_first = Factors.averaged(terms, start)
    propagated, factors = propagate(terms, kinds.weights, prior, at_first, close=_CLOSE, least=LEAST)
    if not proper(terms, prior, factors):  # a fixed point that leaves a kind all but open has no covariances
        propagated, factors = propagate(terms, kinds.weights, prior, at_first, rounds=0, least=LEAST)
    with np.errstate(divide="ignore"):
        of_all = one_round(
            terms, np.log(kinds.weights), prior, factors
        )  # the means of kinds that were left out, too
    return KindPosterior(
        moments, hierarchy, units, propagated._replace(means=of_all.means), basis, kinds.weights
    )
