"""The posterior of the crossed prior where tasks differ in the spread of their interactions.

The label of a task (:mod:`labels`) is its scale c_k: its interactions have the covariance c_k^2 M.
"""

import numpy as np

from hieropo._utils.arrays import Array
from hieropo.model.crossed.hierarchy import CrossedHierarchy, Spreads
from hieropo.model.crossed.labels import LabelBasis, LabelPosterior
from hieropo.model.crossed.posterior import check_crossed
from hieropo.model.crossed.propagation import TaskTerms, effects_basis, propagate
from hieropo.model.crossed.steps import ObservedUnits, UnitMessages
from hieropo.moments.statistics import Moments


class SpreadPosterior(LabelPosterior):
    """Posterior of every task under one hierarchy with a mixture of spreads; made by :func:`condition_spreads`."""

    @property
    def spreads(self) -> Spreads:
        """The mixture of spreads of the hierarchy."""
        assert self.hierarchy.spreads is not None
        return self.hierarchy.spreads

    def _messages(self, label: int) -> tuple[CrossedHierarchy, UnitMessages]:
        one, cov = self.hierarchy, float(self.spreads.scales[label]) ** 2 * self.hierarchy.interaction_cov
        scaled = CrossedHierarchy(one.action_cov, one.level_cov, cov, one.noise_var)
        return scaled, UnitMessages(self._units, cov)

    def _new_effect_covs(self) -> tuple[Array, Array]:
        return self.hierarchy.action_cov, self.hierarchy.action_cov

    @property
    def differing(self) -> Array:
        """Probability (m,) that effects of actions in a task are twice as large as in three quarters of the tasks."""
        return np.asarray(self.responsibilities[:-1] @ self.spreads.outlying)


def condition_spreads(
    moments: Moments, hierarchy: CrossedHierarchy, units: ObservedUnits | None = None
) -> SpreadPosterior:
    """Condition the crossed prior with a mixture of spreads on the log.

    O(t n D^3) for t tasks with rows, n scales and D = (K + 1) p, in each round of expectation propagation.

    Parameters
    ----------
    moments : Moments
    hierarchy : CrossedHierarchy
        With ``spreads``.
    units : ObservedUnits, optional
        Those of the moments, divided by the noise of the hierarchy, where they are there already.

    Raises
    ------
    MismatchError, NumericalError
        As :func:`condition_crossed`.
    """
    assert hierarchy.spreads is not None
    if units is None:
        check_crossed(moments, hierarchy)
        units = ObservedUnits.of(moments, hierarchy.noise_var)
    below = effects_basis(hierarchy.action_cov, hierarchy.n_actions)
    terms = TaskTerms.of(
        units, hierarchy.interaction_cov, hierarchy.level_cov, below, hierarchy.spreads.scales
    )
    p, D = hierarchy.unit_dim, below.shape[1]
    flat = np.arange(D) >= D - p
    propagated, _ = propagate(terms, hierarchy.spreads.weights, np.where(flat, 0.0, 1.0))
    beta = np.where(flat, below[:p], 0.0)
    effects = np.tile(np.where(flat, 0.0, below), (hierarchy.spreads.weights.size, 1, 1))
    basis = LabelBasis(beta, effects)
    return SpreadPosterior(moments, hierarchy, units, propagated, basis, hierarchy.spreads.weights)
