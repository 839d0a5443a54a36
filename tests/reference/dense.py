"""The posterior of a hierarchy by brute force: condition the joint Gaussian of everything.

Written from the definition of the model alone. Every unknown is a sum of independent increments
along its path from the root,

    mu = u_root,   node = parent + u_node,   theta_s = parent + u_s,   r_t = phi_t' theta_s + e_t,

with u_root ~ N(mu_q, Sigma_q), u_node ~ N(0, cov of its level), u_s ~ N(0, Sigma_0) and
e_t ~ N(0, sigma^2 / w_t). The joint covariance of two unknowns is therefore the sum of the covariances
of the increments their paths share. No statistic is formed: the n rewards are conditioned on as they are.

All arithmetic is done with 100 decimal digits (`decimal`, in the standard library, so the same on every
platform): the cancellations of plain conditioning cost digits, about 20 of them at ||G|| = 1e6, and
none of those that are compared. A float64 input is taken as the exact number that it is.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from functools import cached_property
from typing import Any

import numpy as np

DIGITS = 100
PI = Decimal(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798"
)

Exact = np.ndarray[Any, np.dtype[np.object_]]
Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Problem:
    """Raw rows and a hierarchy, in plain arrays.

    ``levels[0]`` is the level right above the tasks: (covariance, mapping of task to node); ``levels[1]``
    maps the nodes of level 0 to those of level 1, and so on. ``hyper_cov`` None is the flat hyper-prior.
    """

    task: list[Hashable]
    phi: Array
    reward: Array
    precision: Array
    task_cov: Array
    noise_var: float
    hyper_mean: Array
    hyper_cov: Array | None
    levels: tuple[tuple[Array, Mapping[Hashable, Hashable]], ...] = field(default=())

    @property
    def dim(self) -> int:
        return self.phi.shape[1]

    @property
    def tasks(self) -> list[Hashable]:
        """Every task that has a row or is named in the tree, in order of appearance."""
        named = self.levels[0][1] if self.levels else {}
        return list(dict.fromkeys([*self.task, *named]))


def exact(values: Any) -> Exact:
    """Object array of the exact decimal values of an array of floats; one of decimals as it is."""
    if isinstance(values, np.ndarray) and values.dtype == object:
        return values
    array = np.asarray(values, dtype=np.float64)
    return np.array([Decimal(float(v)) for v in array.ravel()], dtype=object).reshape(array.shape)


def rounded(values: Exact) -> Array:
    return values.astype(np.float64)


def eliminate(matrix: Exact, right: Exact) -> tuple[Exact, Decimal]:
    """Solve ``matrix x = right`` by elimination with row pivoting; also log |det matrix|."""
    n = len(matrix)
    work = np.concatenate([matrix, right], axis=1)
    log_det = Decimal(0)
    for k in range(n):
        pivot = k + int(np.argmax(np.abs(work[k:, k])))
        work[[k, pivot]] = work[[pivot, k]]
        if work[k, k] == 0:
            raise ZeroDivisionError(f"singular at column {k}")
        log_det += abs(work[k, k]).ln()
        work[k, k + 1 :] = work[k, k + 1 :] / work[k, k]
        others = np.arange(n) != k
        work[others, k + 1 :] = work[others, k + 1 :] - np.outer(work[others, k], work[k, k + 1 :])
    return work[:, n:], log_det


def _least_share(information: Exact) -> float:
    """Least eigenvalue of an information matrix scaled to a unit diagonal; 0 where a direction is unseen."""
    scale = np.array([Decimal(value).sqrt() for value in np.diagonal(information)])
    if (scale == 0).any():
        return 0.0
    return float(np.linalg.eigvalsh(rounded(information / np.outer(scale, scale)))[0])


Unknown = tuple[str, Hashable]
ROOT: Unknown = ("root", None)


class Dense:
    """Every posterior quantity of a `Problem`.

    With a flat hyper-prior, ``determinacy`` says how well mu is determined: the least eigenvalue of its
    information, scaled to a unit diagonal. Where that is exactly 0 there is no posterior to ask for.
    """

    mean: Exact
    cov: Exact
    log_evidence: float
    determinacy: float

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.determinacy = np.inf
        with localcontext() as context:
            context.prec = DIGITS
            self._condition()

    def path(self, unknown: Unknown) -> list[Unknown]:
        """Increments that add up to an unknown, root first."""
        kind, name = unknown
        if kind == "root":
            return [ROOT]
        levels = self.problem.levels
        if kind == "new":
            steps = [unknown]
            height, at = (0, name) if name is not None else (len(levels), None)
            steps += [(f"new-{k}", None) for k in range(height)]
        elif kind == "task":
            steps = [unknown]
            height, at = 0, (levels[0][1][name] if levels else None)
        else:
            height, at, steps = int(kind), name, []
        for k in range(height, len(levels)):
            steps.append((str(k), at))
            at = levels[k + 1][1][at] if k + 1 < len(levels) else None
        return [ROOT, *reversed(steps)]

    def increment_cov(self, increment: Unknown) -> Exact:
        kind, _ = increment
        if kind == "root":
            flat = self.problem.hyper_cov is None
            return exact(np.zeros((self.problem.dim,) * 2) if flat else self.problem.hyper_cov)
        if kind in {"task", "new"}:
            return exact(self.problem.task_cov)
        return exact(self.problem.levels[int(kind.removeprefix("new-"))][0])

    @cached_property
    def unknowns(self) -> list[Unknown]:
        """Root, every node, every task, one new task at each node of level 0, one new task of unknown kin."""
        levels = self.problem.levels
        nodes: list[Unknown] = [
            (str(k), name) for k, (_, up) in enumerate(levels) for name in dict.fromkeys(up.values())
        ]
        tasks: list[Unknown] = [("task", s) for s in self.problem.tasks]
        new: list[Unknown] = [("new", name) for kind, name in nodes if kind == "0"]
        return [ROOT, *nodes, *tasks, *new, ("new", None)]

    def _condition(self) -> None:
        p, d = self.problem, self.problem.dim
        paths = [self.path(u) for u in self.unknowns]
        block = {step: self.increment_cov(step) for path in paths for step in path}
        cov = np.full((len(paths) * d,) * 2, Decimal(0), dtype=object)
        for i, one in enumerate(paths):
            for j, other in enumerate(paths):
                for step in one:
                    if step in other:
                        cov[i * d : (i + 1) * d, j * d : (j + 1) * d] += block[step]
        design = np.full((len(p.task), len(paths) * d), Decimal(0), dtype=object)
        for t, s in enumerate(p.task):
            i = self.unknowns.index(("task", s))
            design[t, i * d : (i + 1) * d] = exact(p.phi[t])
        noise = [Decimal(p.noise_var) / Decimal(float(w)) for w in p.precision]
        reward_cov = design @ cov @ design.T + np.diag(np.array(noise, dtype=object))
        cross = cov @ design.T
        to_mu = np.concatenate([exact(np.eye(d))] * len(paths))
        phi, reward = exact(p.phi).reshape(-1, d), exact(p.reward)
        centre = exact(np.zeros(d) if p.hyper_cov is None else p.hyper_mean)
        residual = reward - phi @ centre
        solved, log_det = eliminate(reward_cov, np.concatenate([cross.T, phi, residual[:, None]], axis=1))
        half, phi_solved, residual_solved = solved[:, : -d - 1], solved[:, -d - 1 : -1], solved[:, -1]
        mean = np.tile(centre, len(paths)) + cross @ residual_solved
        cov = cov - cross @ half
        n, square = len(p.task), residual @ residual_solved
        if p.hyper_cov is None:
            # Generalised least squares for mu, then the law of total expectation over it.
            information = phi.T @ phi_solved
            self.determinacy = _least_share(information)
            try:
                mu_cov, log_det_information = eliminate(information, exact(np.eye(d)))
            except ZeroDivisionError:
                return
            shift = mu_cov @ (phi.T @ residual_solved)
            through = to_mu - cross @ phi_solved
            mean = mean + through @ shift
            cov = cov + through @ mu_cov @ through.T
            square -= shift @ information @ shift
            n -= d
            log_det += log_det_information
        self.log_evidence = float(-(n * (2 * PI).ln() + log_det + square) / 2)
        self.mean, self.cov = mean, cov

    def _at(self, unknown: Unknown) -> slice:
        i, d = self.unknowns.index(unknown), self.problem.dim
        return slice(i * d, (i + 1) * d)

    def law(self, unknown: Unknown) -> tuple[Array, Array]:
        """Mean and covariance of any of the unknowns."""
        at = self._at(unknown)
        return rounded(self.mean[at]), rounded(self.cov[at, at])

    @property
    def hyper(self) -> tuple[Array, Array]:
        return self.law(ROOT)

    def task(self, s: Hashable) -> tuple[Array, Array]:
        return self.law(("task", s))

    def node(self, level: int, name: Hashable) -> tuple[Array, Array]:
        return self.law((str(level), name))

    def new_task(self, parent: Hashable | None = None) -> tuple[Array, Array]:
        return self.law(("new", parent))

    def cov_between(self, s: Hashable, z: Hashable) -> Array:
        return rounded(self.cov[self._at(("task", s)), self._at(("task", z))])
