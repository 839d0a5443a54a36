"""The crossed prior with a mixture of spreads by brute force: every assignment of scales to tasks is enumerated.

Written from the definition alone: given the scales c_1, ..., c_m the rewards are jointly Gaussian, with

    cov(r_t, r_u) = x_t'(A [a = b] + L [s = z] + c_s^2 M [s = z, a = b]) x_u + sigma_a^2 [t = u]

for rows t, u of tasks s, z under actions a, b, and beta is flat: its contrasts alone give the evidence.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reference import labels
from reference.labels import Array, Enumerated


@dataclass(frozen=True)
class SpreadsProblem:
    """Raw rows, a crossed prior and the scales of its tasks with their probabilities; tasks are 0 .. m - 1."""

    task: NDArray[np.int64]
    action: NDArray[np.int64]
    x: Array
    reward: Array
    action_cov: Array
    level_cov: Array
    interaction_cov: Array
    noise_var: Array
    scales: Array
    weights: Array
    n_tasks: int


def enumerated(problem: SpreadsProblem) -> Enumerated:
    """Condition every assignment of scales on all rows."""
    of_task = np.kron(np.eye(len(problem.noise_var)), problem.interaction_cov)

    def labelled(scales: tuple[int, ...]) -> Array:
        return np.kron(np.diag(np.square(problem.scales[list(scales)])), of_task)

    return labels.enumerated(problem, labelled)
