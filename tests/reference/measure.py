"""How near a float64 posterior must be to the exact one, and why not nearer.

The measure is norm-wise and relative: ``|x - truth| <= TOLERANCE * |truth|`` in the spectral (for vectors,
the Euclidean) norm. One thing must be added to it, for *every* method that works on sums stored in float64.
To store G_s is to round it: what is stored is G_s + E_s with |E_s| = eps |G_s|, whatever the rows were. To
first order the posterior given the stored sums then differs from that given the rows, for any unknown x, by

    - sum_s cov(x, theta_s) E_s cov(theta_s, x),  of norm at most  |cov x| * eps * sum_s |G_s| |cov theta_s|,

since |cov(x, theta_s)|^2 <= |cov x| |cov theta_s|. So the covariance of x cannot be had more closely than
eps * kappa, kappa = sum_s |G_s| |cov theta_s|. For a G_s of full rank that outweighs the prior, kappa is its
condition number; for one that leaves a direction unseen it is |G_s| |Sigma_0|. So 1e-10 is out of reach only
where kappa exceeds about 1e5; for the rounding of sums and factorizations with d <= 4 and a few rows, a
modest multiple of eps is allowed, `ROUNDINGS`. The mean moves by

    sum_s cov(x, theta_s) (e_s - E_s mean_s),  |e_s| <= eps beta_s,
    beta_s = sum_t w_t |phi_t| |r_t| / sigma^2.

The log evidence is a difference of sums: its error is measured against the largest that it is made of.
"""

from collections.abc import Hashable

import numpy as np

from reference.dense import Array, Dense, Problem

TOLERANCE = 1e-10
ROUNDINGS = 16 * np.finfo(np.float64).eps


def norm(values: Array) -> float:
    """Spectral norm of a matrix, Euclidean norm of a vector."""
    return float(np.linalg.norm(values, 2)) if values.size else 0.0


class Measure:
    """Distances allowed for one problem."""

    def __init__(self, dense: Dense) -> None:
        self.dense = dense
        problem = dense.problem
        self.size = {s: self._sizes(problem, s) for s in problem.tasks}
        self.kappa = sum(g * norm(dense.task(s)[1]) for s, (g, _) in self.size.items())

    @staticmethod
    def _sizes(problem: Problem, s: Hashable) -> tuple[float, float]:
        own = np.array([t == s for t in problem.task], dtype=bool)
        phi, reward = problem.phi[own], problem.reward[own]
        weight = problem.weight[own] / problem.noise_var
        beta = float((weight * np.linalg.norm(phi, axis=1) * np.abs(reward)).sum())
        return norm(phi.T @ (weight[:, None] * phi)), beta

    @property
    def relative(self) -> float:
        """Relative distance allowed between covariances."""
        return float(TOLERANCE + ROUNDINGS * self.kappa)

    def mean_room(self, mean: Array, cov: Array) -> float:
        """Distance allowed between means of an unknown with this posterior."""
        room = norm(self.dense.problem.hyper_mean)
        for s, (g, beta) in self.size.items():
            theta, theta_cov = self.dense.task(s)
            room += np.sqrt(norm(cov) * norm(theta_cov)) * (beta + g * norm(theta))
        return float(TOLERANCE * norm(mean) + ROUNDINGS * room)

    def evidence_room(self) -> float:
        """Distance allowed between log evidences."""
        problem = self.dense.problem
        room = float((problem.weight * problem.reward**2).sum() / problem.noise_var + len(problem.task))
        for s, (g, beta) in self.size.items():
            theta, _ = self.dense.task(s)
            room += norm(theta) * (beta + g * norm(theta))
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
