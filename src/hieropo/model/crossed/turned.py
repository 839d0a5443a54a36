"""The crossed prior with tasks and actions in each other's place, for few tasks of many actions.

    theta_sa = beta + alpha_a + u_s + gamma_sa

is the same law of tasks and of actions. Integrated in the other order, gamma first, then alpha of each action, and
(beta, u_1, ..., u_t) at the root, it has the same evidence, and the same second moments, with (t p)^3 operations at the
root in place of (K p)^3. A part of the tasks of a log with hundreds of actions has far fewer tasks than actions.
"""

import numpy as np

from hieropo._utils.arrays import Array
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.crossed.posterior import SecondMoments, condition_crossed
from hieropo.moments.statistics import Moments
from hieropo.rows.keys import Keys

_LARGE = 96  # unknowns K p from which on the root outweighs the rest


def pays(moments: Moments) -> bool:
    """Return True for moments of at most half as many tasks with rows as actions, and many coefficients."""
    tasks = int(np.count_nonzero(moments.rows.any(axis=1)))
    return moments.dim >= _LARGE and 2 * tasks <= moments.n_actions


def turned(moments: Moments, noise_var: Array) -> Moments:
    """Return moments with an action in place of each of the K tasks and a task with rows in place of each action.

    Sums are divided by the noise variances (K,) of the actions; numbers of rows are as they were.
    """
    seen = np.flatnonzero(moments.rows.any(axis=1))

    def swapped(values: Array) -> Array:
        return np.ascontiguousarray(values[seen].swapaxes(0, 1))

    sums = swapped(moments.sums) / noise_var[:, None, None]
    keys = Keys(np.arange(moments.n_actions))
    return Moments(keys, moments.unit_dim, sums, swapped(moments.rows), swapped(moments.log_precision))


class TurnedEvidence:
    """Evidence and second moments of a hierarchy, as a :class:`CrossedPosterior` has them.

    Attributes
    ----------
    log_evidence, square : float
    """

    log_evidence: float
    square: float

    def __init__(self, moments: Moments, hierarchy: CrossedHierarchy) -> None:
        other_way = turned(moments, hierarchy.noise_var)
        self._rows = rows = moments.rows.sum(axis=0)
        self._posterior = condition_crossed(
            other_way,
            CrossedHierarchy(
                hierarchy.level_cov,
                hierarchy.action_cov,
                hierarchy.interaction_cov,
                np.ones(other_way.n_actions),
            ),
        )
        self._without_rows = int(np.count_nonzero(rows == 0)) * hierarchy.action_cov
        self.square = self._posterior.square
        self.log_evidence = self._posterior.log_evidence - 0.5 * float(rows @ np.log(hierarchy.noise_var))

    def second_moments(self, scale: float = 1.0) -> SecondMoments:
        """As :meth:`CrossedPosterior.second_moments`."""
        other_way, noise = self._posterior.second_moments(scale), np.zeros(self._rows.size)
        noise[self._rows > 0] = other_way.noise_of_tasks
        return SecondMoments(
            other_way.level + self._without_rows, other_way.action, other_way.interaction, noise,
            other_way.noise, self._posterior.moments.n_actions, other_way.units,
        )  # fmt: skip
