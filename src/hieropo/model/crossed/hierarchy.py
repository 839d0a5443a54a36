"""The crossed prior of a log of actions: what actions do everywhere, the level of a task, and their interaction."""

from dataclasses import dataclass

import numpy as np

from hieropo._utils.arrays import Array
from hieropo.errors import InputError, MismatchError
from hieropo.model.gaussian import check_covariance, frozen


@dataclass(frozen=True, slots=True, eq=False)
class CrossedHierarchy:
    """theta_sa = beta + alpha_a + u_s + gamma_sa, with beta flat and a noise variance for each action.

    Parameters
    ----------
    action_cov : (p, p) array
        A, of alpha_a ~ N(0, A): what action a does in every task, in squared units of theta.
    level_cov : (p, p) array
        L, of u_s ~ N(0, L): the level of task s, which all its actions share.
    interaction_cov : (p, p) array
        M, of gamma_sa ~ N(0, M): what action a does in task s alone.
    noise_var : (K,) array
        sigma_a^2, variance of a reward of weight 1 under action a, in squared reward units.

    All three covariances may be singular or zero. A = M = 0 says that actions have no effect.

    Raises
    ------
    InputError, MismatchError, NumericalError
        Not a covariance, dimensions differ, a noise variance that is not positive.
    """

    action_cov: Array
    level_cov: Array
    interaction_cov: Array
    noise_var: Array

    def __post_init__(self) -> None:
        for name in ("action_cov", "level_cov", "interaction_cov"):
            object.__setattr__(self, name, check_covariance(getattr(self, name), name))
        shapes = [self.action_cov.shape, self.level_cov.shape, self.interaction_cov.shape]
        if len(set(shapes)) > 1 or not self.action_cov.size:
            raise MismatchError(
                f"action_cov, level_cov and interaction_cov have shapes {shapes}. They are covariances of the p "
                "coefficients of one action: hand in three matrices of one shape (p, p), p at least 1."
            )
        noise = frozen(self.noise_var)
        if noise.ndim != 1 or not noise.size:
            raise InputError(
                f"noise_var has shape {noise.shape}. Each action has a noise variance of its own: hand in one "
                "number an action, shape (K,); np.full(K, v) says that all are alike."
            )
        bad = ~(np.isfinite(noise) & (noise > 0))
        if bad.any():
            action = int(bad.argmax())
            raise InputError(
                f"noise_var of action {action} is {noise[action]!r}; a positive finite variance is needed, since sums "
                "of rows are divided by it. Where rewards are without noise, use a variance far below their own."
            )
        object.__setattr__(self, "noise_var", noise)

    @property
    def unit_dim(self) -> int:
        """Coefficients p of one action."""
        return int(self.action_cov.shape[0])

    @property
    def n_actions(self) -> int:
        """K."""
        return int(self.noise_var.size)

    @property
    def without_effect(self) -> bool:
        """True where actions have no effect: A = M = 0."""
        return not (self.action_cov.any() or self.interaction_cov.any())
