"""How near a float64 posterior must be to the exact one, and why not nearer.

The measure is norm-wise and relative: ``|x - truth| <= TOLERANCE * |truth|`` in the spectral (for vectors,
the Euclidean) norm. One thing must be added to it, for *every* method that works on sums stored in float64.
To store G_s is to round it: what is stored is G_s + E_s with |E_s| = eps |G_s|, whatever the rows were. To
first order the posterior given the stored sums then differs from that given the rows, for any unknown x, by

    - sum_s cov(x, theta_s) E_s cov(theta_s, x),  of norm at most  |cov x| * eps * sum_s |G_s| |cov theta_s|,

since |cov(x, theta_s)|^2 <= |cov x| |cov theta_s|. What the tasks say together about a node v above them, its
information P_v = X' V^-1 X (X: features of the rows below v, V: covariance of their rewards given v), is
stored as well and rounded alike. So the covariance of x cannot be had more closely than eps * kappa,

    kappa = sum_s |G_s| |cov theta_s| + sum_v |P_v| |cov v|.

For a G_s of full rank that outweighs the prior its term is its condition number; for one that leaves a
direction unseen it is |G_s| |Sigma_0|. Sums and factorizations for d <= 4 and a few rows round a few times:
`ROUNDINGS` of eps are allowed. So plain 1e-10 is asked for up to kappa of about 1e4. The mean moves by

    sum_s cov(x, theta_s) (e_s - E_s mean_s),
    |e_s| <= eps beta_s,  beta_s = sum_t w_t |phi_t| |r_t| / sigma^2,

and likewise for nodes. The log evidence is a difference of sums: its error is measured against their size. It moves
with the covariance Sigma_v of an increment, too, which a factorization rounds by some eps of its size, in directions
of variance 0 as well: with the score g_v = sum_t w_t phi_t (r_t - phi_t'mean_s) / sigma^2 of the rows below v,

    d log evidence = (g_v' dSigma_v g_v - tr P_v dSigma_v) / 2,  of size at most  eps |Sigma_v| (|g_v|^2 + d |P_v|).
"""

from typing import NamedTuple

import numpy as np

from reference.dense import Array, Dense, Unknown, rounded

TOLERANCE = 1e-10
ROUNDINGS = 64 * np.finfo(np.float64).eps


def norm(values: Array) -> float:
    """Spectral norm of a matrix, Euclidean norm of a vector."""
    return float(np.linalg.norm(values, 2)) if values.size else 0.0


class Stored(NamedTuple):
    """Size of what is stored of one task or node, of its posterior, and of its part of the slope of the evidence."""

    information: float
    score: float
    mean: float
    cov: float
    sensitivity: float


class Measure:
    """Distances allowed for one problem."""

    def __init__(self, dense: Dense) -> None:
        self.dense = dense
        self.stored = [self._stored(v) for v in dense.unknowns if v[0] != "new"]
        self.kappa = sum(s.information * s.cov for s in self.stored)

    def _stored(self, unknown: Unknown) -> Stored:
        """By float64, since only sizes are needed."""
        problem = self.dense.problem
        paths = [self.dense.path(("task", s)) for s in problem.task]
        below = [t for t, path in enumerate(paths) if unknown in path]
        X, reward = problem.phi[below], problem.reward[below]
        V = np.diag(problem.noise_var / problem.precision[below])
        blocks: dict[Unknown, Array] = {}
        for i, t in enumerate(below):
            depth = paths[t].index(unknown) + 1
            for j, z in enumerate(below):
                for step in paths[t][depth:]:
                    if step in paths[z]:
                        cov = blocks.setdefault(step, rounded(self.dense.increment_cov(step)))
                        V[i, j] += X[i] @ cov @ X[j]
        half = np.linalg.solve(np.linalg.cholesky(V), np.column_stack([X, reward]))
        mean, cov = self.dense.law(unknown)
        score = float((np.linalg.norm(half[:, :-1], axis=1) * np.abs(half[:, -1])).sum())
        information = norm(half[:, :-1].T @ half[:, :-1])
        means = np.array([self.dense.task(problem.task[t])[0] for t in below]).reshape(X.shape)
        residual = (reward - (X * means).sum(axis=1)) * problem.precision[below] / problem.noise_var
        slope = norm(X.T @ residual) ** 2 + problem.dim * information
        size = norm(rounded(self.dense.increment_cov(unknown)))
        return Stored(information, score, norm(mean), norm(cov), size * slope)

    @property
    def relative(self) -> float:
        """Relative distance allowed between covariances."""
        return float(TOLERANCE + ROUNDINGS * (1.0 + self.kappa))

    def mean_room(self, mean: Array, cov: Array) -> float:
        """Distance allowed between means of an unknown with this posterior."""
        room = norm(self.dense.problem.hyper_mean)
        for s in self.stored:
            room += np.sqrt(norm(cov) * s.cov) * (s.score + s.information * s.mean)
        return float(TOLERANCE * norm(mean) + ROUNDINGS * room)

    def evidence_room(self) -> float:
        """Distance allowed between log evidences."""
        problem = self.dense.problem
        room = float((problem.precision * problem.reward**2).sum() / problem.noise_var + len(problem.task))
        for s in self.stored:
            room += s.mean * (s.score + s.information * s.mean)
            room += s.sensitivity / 16  # a factorization rounds a few times
        return float(TOLERANCE * abs(self.dense.log_evidence) + ROUNDINGS * (room + problem.dim * self.kappa))

    def assert_law(self, got: tuple[Array, Array], truth: tuple[Array, Array], what: str) -> None:
        """Assert that mean and covariance are those of the truth."""
        mean_gap, mean_room = norm(got[0] - truth[0]), self.mean_room(*truth)
        assert mean_gap <= mean_room, f"mean of {what}: {mean_gap:.3g} off, {mean_room:.3g} allowed"
        self.assert_cov(got[1], truth[1], norm(truth[1]), what)

    def assert_cov(self, got: Array, truth: Array, scale: float, what: str) -> None:
        """Assert that a covariance is the true one, relative to ``scale``."""
        gap, room = norm(got - truth), self.relative * scale
        assert gap <= room, f"covariance of {what}: {gap:.3g} off, {room:.3g} allowed"

    def assert_evidence(self, got: float) -> None:
        """Assert that the log evidence is the true one."""
        gap, room = abs(got - self.dense.log_evidence), self.evidence_room()
        assert gap <= room, f"log evidence: {gap:.3g} off, {room:.3g} allowed"
