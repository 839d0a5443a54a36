"""The crossed prior with metadata and levels by brute force: all random effects, conditioned on all rewards.

Written from the definition alone. With Z_s = [I, I (x) z_s'] (or [I X_sa] where X is given for each action)

    theta_sa = Z_sa (beta + alpha_a) + sum over groups g of s, and s itself, of (u_g + gamma_ga)

where beta is flat, and action K, task m and, in each level, one more group have no rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from reference.dense import Array


@dataclass(frozen=True)
class TreeProblem:
    """Raw rows, a crossed prior and where tasks stand, in plain arrays; tasks are 0 .. m - 1."""

    task: Array
    action: Array
    x: Array
    reward: Array
    action_cov: Array
    covs: Sequence[tuple[Array, Array]]  # (L, M) of tasks, of their groups, of the groups of these ...
    parents: Sequence[Sequence[int]]  # group of each task, group of each group ...
    noise_var: Array
    metadata: Array  # (m, c) or (m, K, p, c), around their centre
    offset: Array | None = None
    new: Array = field(default_factory=lambda: np.zeros(0))

    @property
    def n_tasks(self) -> int:
        return len(self.metadata)

    def design(self, s: int, a: int) -> Array:
        p = self.x.shape[1]
        if self.metadata.ndim == 2:
            return np.hstack([np.eye(p), np.kron(np.eye(p), self.metadata[s])])
        return np.hstack([np.eye(p), self.metadata[s, a]])


class DenseTree:
    """Mean and covariance of any theta_sa given all rows."""

    def __init__(self, problem: TreeProblem) -> None:
        self.problem = p = problem
        self.K, self.p, self.P = len(p.noise_var), p.x.shape[1], len(p.action_cov)
        self.blocks: dict[tuple[object, ...], slice] = {}
        covs = []

        def add(key: tuple[object, ...], cov: Array) -> None:
            start = sum(len(c) for c in covs)
            self.blocks[key] = slice(start, start + len(cov))
            covs.append(cov)

        for a in range(self.K):
            add(("alpha", a), p.action_cov)
        sizes = [p.n_tasks, *(max(parents) + 1 for parents in p.parents)]
        for k, ((level, interaction), size) in enumerate(zip(p.covs, sizes, strict=True)):
            for g in range(size + 1):  # the last is new
                add(("u", k, g), level)
                for a in range(self.K):
                    add(("gamma", k, g, a), interaction)
        size = sum(len(c) for c in covs)
        prior = np.zeros((size, size))
        for key, at in self.blocks.items():
            prior[at, at] = covs[list(self.blocks).index(key)]
        rows = [self.theta(self.path(s), a, p.design(s, a)) for s, a in zip(p.task, p.action, strict=True)]
        effects = np.array([x @ full for x, full in zip(p.x, rows, strict=True)])
        X, D = effects[:, : self.P], effects[:, self.P :]
        V = D @ prior @ D.T + np.diag(p.noise_var[p.action])
        solved = np.linalg.solve(V, np.column_stack([X, p.reward, D @ prior]))
        VX, Vr, VD = solved[:, : self.P], solved[:, self.P], solved[:, self.P + 1 :]
        information = X.T @ VX
        beta_cov = np.linalg.inv(information)
        beta = beta_cov @ (X.T @ Vr)
        through = -(prior @ D.T) @ VX
        whole = np.vstack([np.eye(self.P), through])
        self.mean = np.concatenate([beta, prior @ D.T @ (Vr - VX @ beta)])
        self.cov = whole @ beta_cov @ whole.T
        self.cov[self.P :, self.P :] += prior - (prior @ D.T) @ VD
        n = len(p.reward)
        square = p.reward @ Vr - beta @ information @ beta
        dets = np.linalg.slogdet(V)[1] + np.linalg.slogdet(information)[1]
        self.log_evidence = -0.5 * ((n - self.P) * np.log(2 * np.pi) + dets + square)

    def path(self, s: int) -> list[int]:
        """Groups of a task, itself first."""
        path = [s]
        for parents in self.problem.parents:
            path.append(parents[path[-1]])
        return path

    def theta(self, path: Sequence[int], a: int, Z: Array) -> Array:
        """Matrix of theta of action a in a task of this path, on (beta, effects)."""
        size = max(at.stop for at in self.blocks.values())
        out = np.zeros((self.p, self.P + size))
        out[:, : self.P] = Z
        effects = out[:, self.P :]
        effects[:, self.blocks["alpha", a]] = Z
        for k, g in enumerate(path):
            for key in (("u", k, g), ("gamma", k, g, a)):
                effects[:, self.blocks[key]] = np.eye(self.p, self.blocks[key].stop - self.blocks[key].start)
        return out

    def joint(self, matrix: Array) -> tuple[Array, Array]:
        return matrix @ self.mean, matrix @ self.cov @ matrix.T

    def task(self, s: int) -> Array:
        return np.vstack([self.theta(self.path(s), a, self.problem.design(s, a)) for a in range(self.K)])

    def new_task(self, level: int | None, group: int, z: Array) -> Array:
        """Matrix of a new task in a group of ``level`` (0 just above tasks), in new groups below; None: all are new."""
        sizes = [self.problem.n_tasks, *(max(parents) + 1 for parents in self.problem.parents)]
        path = list(sizes)
        if level is not None:
            path[level + 1] = group
            for k in range(level + 1, len(self.problem.parents)):
                path[k + 1] = self.problem.parents[k][path[k]]
        p = self.p
        if z.ndim == 1:
            Zs = [np.hstack([np.eye(p), np.kron(np.eye(p), z)]) for _ in range(self.K)]
        else:
            Zs = [np.hstack([np.eye(p), z[a]]) for a in range(self.K)]
        return np.vstack([self.theta(path, a, Zs[a]) for a in range(self.K)])
