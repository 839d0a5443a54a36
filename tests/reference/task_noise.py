"""Noise by task, by brute force: integrals over t on a grid, and a Gibbs sampler for the whole model.

Both are written from the definition: 1 / t_s ~ Gamma(d_0 / 2, d_0 / 2), and the reward of a row of task s and action a
is x'theta_sa + e with e ~ N(0, sigma_a^2 t_s).
"""

from dataclasses import dataclass

import numpy as np
from scipy.integrate import quad
from scipy.linalg import null_space
from scipy.stats import gamma, norm

from reference.dense import Array


def contrasts(x: Array, reward: Array) -> Array:
    """All that the rewards of one unit say whatever its coefficients are: N'r, N'x = 0, N'N = I."""
    return null_space(x.T).T @ reward


def task_integrals(
    units: list[tuple[Array, Array]], noise_var: list[float], degrees: float
) -> tuple[float, float]:
    """Log density of the contrasts of the units (x, reward) of a task, and E[1 / t | contrasts]."""
    z = np.concatenate([contrasts(x, r) / np.sqrt(v) for (x, r), v in zip(units, noise_var, strict=True)])
    jacobian = sum(
        -0.5 * contrasts(x, r).size * np.log(v) for (x, r), v in zip(units, noise_var, strict=True)
    )
    law = gamma(degrees / 2, scale=2 / degrees)

    def joint(log_precision: float) -> float:
        precision = np.exp(log_precision)
        return float(
            norm.logpdf(z, scale=precision**-0.5).sum() + law.logpdf(precision) + log_precision + jacobian
        )

    grid = np.linspace(-12, 12, 481)
    top = max(joint(w) for w in grid)
    where = grid[np.argmax([joint(w) for w in grid])]
    total, first = (
        quad(
            lambda w, power=power: np.exp(joint(w) - top + power * w), where - 12, where + 12,
            points=[where - 1, where, where + 1], limit=500, epsabs=0.0, epsrel=1e-11,
        )[0]
        for power in (0, 1)
    )  # fmt: skip
    return top + float(np.log(total)), first / total


@dataclass(frozen=True)
class NoisyTasks:
    """Rows without contexts, and all hyper-parameters: A = a^2, L = l^2, M = m^2, sigma_a^2 = sigma^2."""

    task: Array
    action: Array
    reward: Array
    action_var: float
    level_var: float
    interaction_var: float
    noise_var: float
    degrees: float
    noise_of: Array | None = (
        None  # number of the t of each row; by default its task. Student-t errors: one of each row
    )


def gibbs(problem: NoisyTasks, draws: int, seed: int) -> tuple[Array, Array]:
    """Posterior means and standard deviations (m, K) of theta_sa, beta flat, by draws of theta and of t in turn."""
    rng = np.random.default_rng(seed)
    m, K = int(problem.task.max()) + 1, int(problem.action.max()) + 1
    unit = problem.task * K + problem.action
    d = m * K
    noise_of = problem.task if problem.noise_of is None else problem.noise_of
    n = np.bincount(noise_of)
    same_action = np.tile(np.eye(K), (m, m))
    same_task = np.kron(np.eye(m), np.ones((K, K)))
    prior = (
        problem.action_var * same_action + problem.level_var * same_task + problem.interaction_var * np.eye(d)
    )
    inverse = np.linalg.inv(prior)
    ones = np.ones(d)
    inverse -= np.outer(inverse @ ones, ones @ inverse) / (ones @ inverse @ ones)  # beta is flat
    precision, mean, square, burn = np.ones(n.size), np.zeros(d), np.zeros(d), draws // 10
    for draw in range(draws + burn):
        weight = precision[noise_of] / problem.noise_var
        root = np.linalg.cholesky(inverse + np.diag(np.bincount(unit, weight, d)))
        centre = np.linalg.solve(root @ root.T, np.bincount(unit, weight * problem.reward, d))
        theta = centre + np.linalg.solve(root.T, rng.standard_normal(d))
        residual = np.bincount(noise_of, (problem.reward - theta[unit]) ** 2) / problem.noise_var
        precision = rng.gamma((problem.degrees + n) / 2) * 2 / (problem.degrees + residual)
        if draw >= burn:
            mean += centre / draws
            square += (np.diag(np.linalg.inv(root @ root.T)) + centre**2) / draws
    return mean.reshape(m, K), np.sqrt(square - mean**2).reshape(m, K)
