"""The crossed prior by brute force: condition the joint Gaussian of everything.

Written from the definition alone. Unknowns, all of p numbers, are independent a priori,

    alpha_a ~ N(0, A), a = 0 .. K;  u_s ~ N(0, L), s = 0 .. m;  gamma_sa ~ N(0, M), a = 0 .. K, s = 0 .. m

(action K and task m have no rows: they are the new ones), beta is flat, and the reward of row t, of task s under action
a, is x_t'(beta + alpha_a + u_s + gamma_sa) + e_t, e_t ~ N(0, sigma_a^2 / precision_t). All n rewards are conditioned on
as they are, by generalised least squares for beta. All arithmetic has 100 decimal digits, as in :mod:`reference.dense`.
"""

from dataclasses import dataclass
from decimal import Decimal, localcontext

import numpy as np

from reference.dense import DIGITS, PI, Array, Exact, _least_share, eliminate, exact, rounded
from reference.measure import ROUNDINGS as FEW_ROUNDINGS
from reference.measure import TOLERANCE, norm

ROUNDINGS = 4 * FEW_ROUNDINGS  # those are of d <= 4; here factorizations are of up to K p = 15


@dataclass(frozen=True)
class CrossedProblem:
    """Raw rows and a crossed prior, in plain arrays; tasks are 0 .. m - 1."""

    task: list[int]
    action: list[int]
    x: Array
    reward: Array
    precision: Array
    action_cov: Array
    level_cov: Array
    interaction_cov: Array
    noise_var: Array
    n_tasks: int

    @property
    def dim(self) -> int:
        return self.x.shape[1]

    @property
    def n_actions(self) -> int:
        return len(self.noise_var)

    def row_noise(self) -> Array:
        return self.noise_var[self.action] / self.precision


class DenseCrossed:
    """Every posterior quantity of a `CrossedProblem`; none where ``determinacy`` is 0."""

    mean: Exact
    cov: Exact
    log_evidence: float
    square: float
    information: Array

    def __init__(self, problem: CrossedProblem) -> None:
        self.problem = problem
        with localcontext() as context:
            context.prec = DIGITS
            self._condition()

    def _increments(self) -> list[tuple[Array, ...]]:
        """Prior covariance of each increment: all alpha, all u, all gamma."""
        p = self.problem
        K, m = p.n_actions + 1, p.n_tasks + 1
        return [*[p.action_cov] * K, *[p.level_cov] * m, *[p.interaction_cov] * (K * m)]

    def theta(self, s: int, a: int) -> Exact:
        """Matrix with theta_sa = beta + theta(s, a) increments."""
        K, m, d = self.problem.n_actions + 1, self.problem.n_tasks + 1, self.problem.dim
        found = np.zeros((d, (K + m + K * m) * d))
        for block in (a, K + s, K + m + s * K + a):
            found[:, block * d : (block + 1) * d] = np.eye(d)
        return exact(found)

    def _condition(self) -> None:
        p, d = self.problem, self.problem.dim
        covs = self._increments()
        size, n = len(covs) * d, len(p.task)
        design = np.full((n, size), Decimal(0), dtype=object)
        for t, (s, a) in enumerate(zip(p.task, p.action, strict=True)):
            design[t] = exact(p.x[t]) @ self.theta(s, a)
        cross = np.full((size, n), Decimal(0), dtype=object)
        prior = np.full((size, size), Decimal(0), dtype=object)
        for i, cov in enumerate(covs):
            at = slice(i * d, (i + 1) * d)
            cross[at] = exact(cov) @ design[:, at].T
            prior[at, at] = exact(cov)
        noise = [
            Decimal(float(p.noise_var[a])) / Decimal(float(w)) for a, w in zip(p.action, p.precision, strict=True)
        ]  # fmt: skip
        V = design @ cross + np.diag(np.array(noise, dtype=object))
        x, reward = exact(p.x).reshape(-1, d), exact(p.reward)
        solved, log_det = eliminate(V, np.concatenate([cross.T, x, reward[:, None]], axis=1))
        half, x_solved, reward_solved = solved[:, :size], solved[:, size : size + d], solved[:, -1]
        information = x.T @ x_solved
        self.determinacy = _least_share(information)
        self.information, self.whole_square = rounded(information), float(reward @ reward_solved)
        try:
            beta_cov, log_det_information = eliminate(information, exact(np.eye(d)))
        except ZeroDivisionError:
            self.determinacy = 0.0
            return
        beta = beta_cov @ (x.T @ reward_solved)
        through = -(cross @ x_solved)
        # Given beta, increments have mean cross V^-1 (r - x beta) and covariance prior - cross half.
        whole = np.concatenate([exact(np.eye(d)), through])
        self.mean = np.concatenate([beta, cross @ reward_solved + through @ beta])
        self.cov = whole @ beta_cov @ whole.T
        self.cov[d:, d:] = self.cov[d:, d:] + prior - cross @ half
        square = reward @ reward_solved - beta @ information @ beta
        self.square = float(square)
        self.log_evidence = float(-((n - d) * (2 * PI).ln() + log_det + log_det_information + square) / 2)

    def of(self, matrix: Exact) -> tuple[Array, Array]:
        """Mean and covariance of matrix @ (beta, increments)."""
        with localcontext() as context:
            context.prec = DIGITS
            return rounded(matrix @ self.mean), rounded(matrix @ self.cov @ matrix.T)

    def between(self, one: Exact, other: Exact) -> Array:
        """Covariance of two linear functions."""
        with localcontext() as context:
            context.prec = DIGITS
            return rounded(one @ self.cov @ other.T)

    def beta(self) -> Exact:
        d = self.problem.dim
        return np.concatenate([exact(np.eye(d)), exact(np.zeros((d, len(self.mean) - d)))], axis=1)

    def unit(self, s: int, a: int) -> Exact:
        """Matrix of theta_sa; s = m is a new task, a = K a new action."""
        return np.concatenate([exact(np.eye(self.problem.dim)), self.theta(s, a)], axis=1)

    def effect(self, a: int) -> Exact:
        """Matrix of alpha_a."""
        d = self.problem.dim
        found = np.zeros((d, len(self.mean)))
        found[:, (1 + a) * d : (2 + a) * d] = np.eye(d)
        return exact(found)

    def level(self, s: int) -> Exact:
        """Matrix of beta + u_s."""
        d, K = self.problem.dim, self.problem.n_actions + 1
        found = np.zeros((d, len(self.mean)))
        found[:, :d] = found[:, (1 + K + s) * d : (2 + K + s) * d] = np.eye(d)
        return exact(found)

    def task(self, s: int) -> Exact:
        return np.concatenate([self.unit(s, a) for a in range(self.problem.n_actions)])


class CrossedMeasure:
    """Distances allowed for one problem, by the notions of :mod:`reference.measure`.

    Stored are G_sa of every unit, and on the way what tasks say of their levels, all tasks of every action, and all of
    beta. Each is rounded, which moves a covariance by eps |information| |cov| relative to itself.
    """

    def __init__(self, dense: DenseCrossed) -> None:
        self.dense = dense
        p = dense.problem
        self.kappa, self.stored = 0.0, []
        task, action = np.array(p.task), np.array(p.action)
        scaled = p.x / np.sqrt(p.row_noise())[:, None]
        reward = np.abs(p.reward) / np.sqrt(p.row_noise())
        places = [
            (dense.unit(s, a), (task == s) & (action == a)) for s in range(p.n_tasks) for a in range(p.n_actions)
        ]  # fmt: skip
        places += [(dense.level(s), task == s) for s in range(p.n_tasks)]
        places += [(dense.effect(a), action == a) for a in range(p.n_actions)]
        for matrix, rows in places:
            information = norm(scaled[rows].T @ scaled[rows])
            mean, cov = dense.of(matrix)
            score = float((np.linalg.norm(scaled[rows], axis=1) * reward[rows]).sum())
            self.kappa += information * norm(cov)
            self.stored.append((information, score, norm(mean), norm(cov)))
        mean, cov = dense.of(dense.beta())
        information = norm(dense.information)
        self.kappa += information * norm(cov)
        score = float(np.sqrt(information * dense.whole_square))
        self.stored.append((information, score, norm(mean), norm(cov)))

    def relative(self) -> float:
        return float(TOLERANCE + ROUNDINGS * (1.0 + self.kappa))

    def assert_law(self, got: tuple[Array, Array], matrix: Exact, what: str) -> None:
        mean, cov = self.dense.of(matrix)
        room = 0.0
        for information, score, size, spread in self.stored:
            room += np.sqrt(norm(cov) * spread) * (score + information * size)
        gap, allowed = norm(got[0] - mean), TOLERANCE * norm(mean) + ROUNDINGS * room
        assert gap <= allowed, f"mean of {what}: {gap:.3g} off, {allowed:.3g} allowed"
        self.assert_cov(got[1], cov, norm(cov), what)

    def assert_cov(self, got: Array, truth: Array, scale: float, what: str) -> None:
        gap, room = norm(got - truth), self.relative() * scale
        assert gap <= room, f"covariance of {what}: {gap:.3g} off, {room:.3g} allowed"

    def assert_evidence(self, got: float, square: float) -> None:
        """Sums of squares are differences; the steps up may cost them 1e4 units of the last place (FORMED)."""
        p = self.dense.problem
        squares = float((p.reward**2 / p.row_noise()).sum())
        size = sum(mean * (score + information * mean) for information, score, mean, _ in self.stored)
        lost = ROUNDINGS * (size + squares + len(p.task)) + 1e4 * np.finfo(np.float64).eps * squares
        gap = abs(got - self.dense.log_evidence)
        room = TOLERANCE * abs(self.dense.log_evidence) + lost + ROUNDINGS * p.dim * self.kappa
        assert gap <= room, f"log evidence: {gap:.3g} off, {room:.3g} allowed"
        gap, room = abs(square - self.dense.square), TOLERANCE * self.dense.square + 2 * lost
        assert gap <= room, f"square: {gap:.3g} off, {room:.3g} allowed"
