"""Walks in time by dense covariances over the rows of one task, written from the definition.

The reward of a row of action a in a period that begins ``since`` after the first is

    r = x'(theta_a + w_a(since)) + v(since) + e,   w_a ~ walk of covariance kappa W,   v ~ walk of variance eta
"""

from dataclasses import dataclass, replace

import numpy as np

from reference.dense import Array


@dataclass(frozen=True)
class WalkingTask:
    """Rows of one task: features (n, p), actions, times since the first period, noise variances (n,)."""

    x: Array
    action: Array
    since: Array
    noise: Array
    end: float

    def walk(self, cov: Array) -> Array:
        """Covariance of x'w over the rows, for kappa W."""
        together = self.action[:, None] == self.action
        return together * np.minimum.outer(self.since, self.since) * (self.x @ cov @ self.x.T)

    def start(self, cov: Array) -> Array:
        """Covariance of x'theta over the rows, for theta_a ~ N(0, cov) each on its own."""
        return (self.action[:, None] == self.action) * (self.x @ cov @ self.x.T)

    def level(self, var: float, eta: float) -> Array:
        """Covariance of a level that walks from N(0, var)."""
        return var + eta * np.minimum.outer(self.since, self.since)

    def errors(self) -> Array:
        return np.diag(self.noise)

    def of_action(self, action: int) -> "WalkingTask":
        some = self.action == action
        return replace(
            self, x=self.x[some], action=self.action[some], since=self.since[some], noise=self.noise[some]
        )


def log_density(reward: Array, cov: Array) -> float:
    """Log density of N(0, cov), without the constant."""
    return float(-0.5 * (reward @ np.linalg.solve(cov, reward) + np.linalg.slogdet(cov)[1]))


def at_end(task: WalkingTask, reward: Array, start: Array, walk: Array) -> tuple[Array, Array]:
    """Mean and covariance of the coefficients of the one action of a task at the end, given its rewards."""
    cov = task.errors() + task.walk(walk) + task.start(start)
    cross = (start[:, :, None] + walk[:, :, None] * task.since) * 1.0
    cross = np.einsum("ijn,nj->in", cross, task.x)
    prior = start + task.end * walk
    gain = np.linalg.solve(cov, cross.T).T
    return gain @ reward, prior - gain @ cross.T


def level_path(task: WalkingTask, reward: Array, start: Array, walk: Array, var: float, eta: float) -> Array:
    """Mean of the level at each row, given the rewards of the task."""
    level = task.level(var, eta)
    cov = task.errors() + task.walk(walk) + task.start(start) + level
    return np.asarray(level @ np.linalg.solve(cov, reward))


def information(task: WalkingTask, start: Array, walk: Array, eta: float, actions: int) -> Array:
    """Information (K p, K p) of the rows about the coefficients of all actions at the end, levels integrated out."""
    p = task.x.shape[1]
    prior = start + task.end * walk
    design, cov = np.zeros((len(task.x), actions * p)), task.errors() + task.level(0.0, eta)
    for a in range(actions):
        rows = np.flatnonzero(task.action == a)
        one = task.of_action(a)
        covariances = np.einsum("nij,nj->ni", start + one.since[:, None, None] * walk, one.x)
        design[np.ix_(rows, np.arange(a * p, (a + 1) * p))] = np.linalg.solve(prior, covariances.T).T
        within = one.walk(walk) + one.start(start)
        cov[np.ix_(rows, rows)] += within - covariances @ np.linalg.solve(prior, covariances.T)
    return np.asarray(design.T @ np.linalg.solve(cov, design))
