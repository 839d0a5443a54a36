"""The crossed prior with kinds of tasks by brute force: every assignment of kinds to tasks is enumerated.

Written from the definition alone: given the kinds k_1, ..., k_m the rewards are jointly Gaussian, with

    cov(r_t, r_u) = x_t'((A + C [k_s = k_z] + M [s = z]) [a = b] + L [s = z]) x_u + sigma_a^2 [t = u]

for rows t, u of tasks s, z under actions a, b, and beta is flat: its contrasts alone give the evidence.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reference import labels
from reference.labels import Array, Enumerated


@dataclass(frozen=True)
class KindsProblem:
    """Raw rows, a crossed prior and the probabilities of the kinds of its tasks; tasks are 0 .. m - 1."""

    task: NDArray[np.int64]
    action: NDArray[np.int64]
    x: Array
    reward: Array
    action_cov: Array
    level_cov: Array
    interaction_cov: Array
    effect_cov: Array
    noise_var: Array
    weights: Array
    n_tasks: int


def enumerated(problem: KindsProblem) -> Enumerated:
    """Condition every assignment of kinds on all rows."""
    m, K = problem.n_tasks, len(problem.noise_var)
    of_kind = np.kron(np.eye(K), problem.effect_cov)
    fixed = np.kron(np.eye(m), np.kron(np.eye(K), problem.interaction_cov))

    def labelled(kinds: tuple[int, ...]) -> Array:
        return np.asarray(fixed + np.kron(np.equal.outer(kinds, kinds).astype(float), of_kind))

    return labels.enumerated(problem, labelled)
