"""The crossed prior with kinds of tasks by brute force: every assignment of kinds to tasks is enumerated.

Written from the definition alone: given the kinds k_1, ..., k_m the rewards are jointly Gaussian, with

    cov(r_t, r_u) = x_t'((A + C [k_s = k_z] + M [s = z]) [a = b] + L [s = z]) x_u + sigma_a^2 [t = u]

for rows t, u of tasks s, z under actions a, b, and beta is flat: its contrasts alone give the evidence.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


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


@dataclass(frozen=True)
class EnumeratedKinds:
    """Posterior of all coefficients, action by action and task by task, as a mixture over assignments.

    ``weights`` (J,) are the probabilities of the assignments ``kinds`` (J, m), ``means`` (J, m, K p) and ``covs``
    (J, m, K p, m, K p) the posteriors given each, ``log_evidence`` that of the mixture.
    """

    weights: Array
    kinds: NDArray[np.int64]
    means: Array
    covs: Array
    log_evidence: float

    @property
    def alike(self) -> Array:
        """Probability (m, m) that two tasks are of one kind."""
        same = self.kinds[:, :, None] == self.kinds[:, None, :]
        return np.asarray(np.tensordot(self.weights, same, 1))

    @property
    def mean(self) -> Array:
        """Mean (m, K p)."""
        return np.asarray(np.tensordot(self.weights, self.means, 1))

    @property
    def cov(self) -> Array:
        """Covariance (m, K p, m, K p)."""
        away = self.means - self.mean
        between = np.einsum("j,jsi,jzk->sizk", self.weights, away, away)
        return np.asarray(np.tensordot(self.weights, self.covs, 1) + between)


def enumerated(problem: KindsProblem) -> EnumeratedKinds:
    """Condition every assignment of kinds on all rows."""
    p, m, K = problem.x.shape[1], problem.n_tasks, len(problem.noise_var)
    n, d = len(problem.reward), K * p
    rows = np.zeros((n, m, K, p))
    rows[np.arange(n), problem.task, problem.action] = problem.x
    H = rows.reshape(n, m * d)
    x, y, noise = problem.x, problem.reward, np.diag(problem.noise_var[problem.action])
    fixed = np.kron(np.ones((m, m)), np.kron(np.eye(K), problem.action_cov))
    fixed += np.kron(np.eye(m), np.kron(np.ones((K, K)), problem.level_cov))
    fixed += np.kron(np.eye(m), np.kron(np.eye(K), problem.interaction_cov))
    of_kind, beta_of = np.kron(np.eye(K), problem.effect_cov), np.tile(np.eye(p), (m * K, 1))
    log_weights, assignments, means, covs = [], [], [], []
    for kinds in product(range(len(problem.weights)), repeat=m):
        same = np.equal.outer(kinds, kinds).astype(float)
        prior = fixed + np.kron(same, of_kind)
        V, cross = H @ prior @ H.T + noise, prior @ H.T
        solved = np.linalg.solve(V, np.column_stack([x, y, cross.T]))
        information = x.T @ solved[:, :p]
        beta = np.linalg.solve(information, x.T @ solved[:, p])
        half = solved[:, p + 1 :].T
        rest, away = y - x @ beta, beta_of - half @ x
        cov = prior - half @ cross.T + away @ np.linalg.inv(information) @ away.T
        log_det = np.linalg.slogdet(V)[1] + np.linalg.slogdet(information)[1]
        square = rest @ (solved[:, p] - solved[:, :p] @ beta)
        log_weights.append(
            -0.5 * ((n - p) * np.log(2 * np.pi) + log_det + square)
            + np.log(problem.weights[list(kinds)]).sum()
        )
        assignments.append(kinds)
        means.append((beta_of @ beta + half @ rest).reshape(m, d))
        covs.append(cov.reshape(m, d, m, d))
    logs = np.array(log_weights)
    weights = np.exp(logs - logs.max())
    whole = float(np.log(weights.sum()) + logs.max())
    return EnumeratedKinds(
        weights / weights.sum(), np.array(assignments), np.array(means), np.array(covs), whole
    )
