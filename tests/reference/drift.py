"""Walks in time by dense covariances over the rows of one task, written from the definition.

The reward of a row of action a in a period that begins ``since`` after the first is

    r = x'(theta_a + w_a(since)) + v(since) + e,   w_a ~ walk of covariance kappa W,   v ~ walk of variance eta

Rows of one action and period share ``unit`` of their error, in units of its variance; rows of one period share an error
of the variance ``task``, which counts as part of the level.
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
    unit: float = 0.0
    task: float = 0.0

    def walk(self, cov: Array) -> Array:
        """Covariance of x'w over the rows, for kappa W."""
        together = self.action[:, None] == self.action
        return together * np.minimum.outer(self.since, self.since) * (self.x @ cov @ self.x.T)

    def start(self, cov: Array) -> Array:
        """Covariance of x'theta over the rows, for theta_a ~ N(0, cov) each on its own."""
        return (self.action[:, None] == self.action) * (self.x @ cov @ self.x.T)

    def fading(self, cov: Array, rate: float) -> Array:
        """Covariance of x'theta over the rows, for theta_a whose covariance between two times falls from cov."""
        kept = np.exp(-rate * np.abs(self.since[:, None] - self.since))
        return self.start(cov) * kept

    def level(self, var: float, eta: float) -> Array:
        """Covariance of a level that walks from N(0, var), and of the error that all rows of a period share."""
        period = self.since[:, None] == self.since
        return var + eta * np.minimum.outer(self.since, self.since) + self.task * period

    def errors(self) -> Array:
        period = (self.since[:, None] == self.since) & (self.action[:, None] == self.action)
        return np.diag(self.noise) + self.unit * period * np.sqrt(np.outer(self.noise, self.noise))

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


def level_path(
    task: WalkingTask, reward: Array, start: Array, walk: Array, var: float, eta: float
) -> tuple[Array, Array]:
    """Mean of the level at each row, given the rewards of the task; with and without the error of its period."""
    cov = task.errors() + task.walk(walk) + task.start(start) + task.level(var, eta)
    given = np.linalg.solve(cov, reward)
    return task.level(var, eta) @ given, replace(task, task=0.0).level(var, eta) @ given


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


@dataclass(frozen=True)
class Fleet:
    """Rows of all tasks whose actions walk in all tasks alike, by dense covariances over the rows.

    An effect at the end is e_a (flat), and w_a,k is its change from period k to the next, the last to the end: rows of
    period t have e_a - sum of w_a,k over k >= t, of Cov(w_a,k, w_b,k) = (zeta [a = b] + xi) W times the time from k on.
    """

    tasks: list[WalkingTask]
    times: Array
    actions: int

    def of_tasks(self, start: Array, walk: Array, level: Array, eta: float) -> Array:
        """Covariance of all rows given the effects of actions."""
        blocks = [
            task.errors()
            + task.walk(walk)
            + task.start(start)
            + task.x @ level @ task.x.T
            + task.level(0.0, eta)
            for task in self.tasks
        ]
        n = sum(map(len, blocks))
        cov, at = np.zeros((n, n)), 0
        for block in blocks:
            cov[at : at + len(block), at : at + len(block)] = block
            at += len(block)
        return cov

    def design(self) -> Array:
        """Features (n, K T p) of each row at its action and period."""
        p, T = self.tasks[0].x.shape[1], len(self.times)
        rows = []
        for task in self.tasks:
            of_task = np.zeros((len(task.x), self.actions, T, p))
            period = np.searchsorted(self.times - self.times[0], task.since)
            of_task[np.arange(len(task.x)), task.action, period] = task.x
            rows.append(of_task.reshape(len(task.x), -1))
        return np.concatenate(rows)

    def ends(self) -> Array:
        """Features (n, K p) of each row at its action."""
        p, T = self.tasks[0].x.shape[1], len(self.times)
        design = self.design()
        return design.reshape(len(design), self.actions, T, p).sum(axis=2).reshape(len(design), -1)

    def path(self, walk: Array, zeta: float, xi: float) -> Array:
        """Covariance (K T p, K T p) of the path less its end."""
        T = len(self.times)
        left = self.tasks[0].end + self.times[0] - self.times
        rates = zeta * np.eye(self.actions) + xi
        return np.einsum("ab,tu,ij->atibuj", rates, np.minimum.outer(left, left), walk).reshape(
            self.actions * T * len(walk), -1
        )


def given_flat(reward: Array, cov: Array, design: Array) -> tuple[Array, Array, float, float]:
    """Mean and covariance of flat coefficients, the square they leave, and log|cov| + log|design' cov^-1 design|."""
    whitened = np.linalg.solve(cov, design)
    information = design.T @ whitened
    mean = np.linalg.solve(information, whitened.T @ reward)
    left = reward - design @ mean
    log_det = np.linalg.slogdet(cov)[1] + np.linalg.slogdet(information)[1]
    return mean, np.linalg.inv(information), float(left @ np.linalg.solve(cov, left)), float(log_det)
