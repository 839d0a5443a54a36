"""Mixtures over a label of each task by brute force: every assignment of labels to tasks is enumerated.

Given the labels the rewards are jointly Gaussian, with the prior covariance of all coefficients that a function gives,
and beta is flat: its contrasts alone give the evidence.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Rows(Protocol):
    """Raw rows, the noise of actions, and the probabilities of the labels of tasks; tasks are 0 .. m - 1."""

    task: NDArray[np.int64]
    action: NDArray[np.int64]
    x: Array
    reward: Array
    action_cov: Array
    level_cov: Array
    noise_var: Array
    weights: Array
    n_tasks: int


@dataclass(frozen=True)
class Enumerated:
    """Posterior of all coefficients, action by action and task by task, as a mixture over assignments.

    ``weights`` (J,) are the probabilities of the assignments ``labels`` (J, m), ``means`` (J, m, K p) and ``covs``
    (J, m, K p, m, K p) the posteriors given each, ``log_evidence`` that of the mixture.
    """

    weights: Array
    labels: NDArray[np.int64]
    means: Array
    covs: Array
    log_evidence: float

    @property
    def responsibilities(self) -> Array:
        """Probability (m, n) of each label in each task."""
        n = int(self.labels.max()) + 1
        return np.stack([self.weights @ (self.labels == k) for k in range(n)], axis=1)

    @property
    def alike(self) -> Array:
        """Probability (m, m) that two tasks have one label."""
        same = self.labels[:, :, None] == self.labels[:, None, :]
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


def enumerated(problem: Rows, labelled: Callable[[tuple[int, ...]], Array]) -> Enumerated:
    """Condition every assignment on all rows; ``labelled`` adds to the covariance of effects of actions and levels."""
    p, m, K = problem.x.shape[1], problem.n_tasks, len(problem.noise_var)
    n, d = len(problem.reward), K * p
    rows = np.zeros((n, m, K, p))
    rows[np.arange(n), problem.task, problem.action] = problem.x
    H = rows.reshape(n, m * d)
    x, y, noise = problem.x, problem.reward, np.diag(problem.noise_var[problem.action])
    fixed = np.kron(np.ones((m, m)), np.kron(np.eye(K), problem.action_cov))
    fixed += np.kron(np.eye(m), np.kron(np.ones((K, K)), problem.level_cov))
    beta_of = np.tile(np.eye(p), (m * K, 1))
    log_weights, assignments, means, covs = [], [], [], []
    for labels in product(range(len(problem.weights)), repeat=m):
        prior = fixed + labelled(labels)
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
            + np.log(problem.weights[list(labels)]).sum()
        )
        assignments.append(labels)
        means.append((beta_of @ beta + half @ rest).reshape(m, d))
        covs.append(cov.reshape(m, d, m, d))
    logs = np.array(log_weights)
    weights = np.exp(logs - logs.max())
    whole = float(np.log(weights.sum()) + logs.max())
    return Enumerated(weights / weights.sum(), np.array(assignments), np.array(means), np.array(covs), whole)
