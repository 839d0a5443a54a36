"""Probability of harm of a policy in each task, certificates of its suboptimality, and rows needed for them.

With psi_s the mean features of a policy's actions in task s, its value there is psi_s' theta_s, whose
distribution :func:`value_distributions` gives. Against an incumbent, delta_s = psi_s(new) - psi_s(incumbent), and

    P(harm) = P(delta_s' theta_s < 0 | log)

The certificate is the posterior quantile of the gain of the best policy for the true theta_s,

    V(pi_*) - V(pi) = mean over contexts of max_a (phi(x, a) - phi(x, pi(x)))' theta_s

It is found by drawing theta_s; with n draws the k-th smallest, k = ceil(level (n + 1)), of which the truth, if it is a
draw like the others, is below with probability k / (n + 1).

Let C = L L' be the covariance of theta_s. After k more rows of the task, each with information J, it is C_k = (C^-1 + k
J)^-1. With L'J L = U diag(lambda) U' that is L U diag(1 / (1 + k lambda)) U'L', whatever the rank of C and J. The
predictive distribution of the future posterior mean is N(mean, C - C_k). So that mean can be drawn, and the policy that
it leads to evaluated, before the rows are there. That is a preposterior analysis (Raiffa and Schlaifer, Applied
Statistical Decision Theory, 1961).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hieropo._utils.arrays import Array, Codes, Mask, pieces
from hieropo.errors import InputError, MismatchError
from hieropo.estimation.hyper.mixed import Components
from hieropo.evaluation.by_posterior.value_distributions import (
    ValueDistributions,
    value_distributions,
)
from hieropo.model.protocol import TaskPosterior
from hieropo.model.steps import pivoted_roots, square_roots

__all__ = ["Certificates", "ValueDistributions", "certificates", "rows_needed", "value_distributions"]


_ROOM = 2**20  # doubles of one array of advantages
_JOINT_ROOM = 2**25  # doubles of the covariances of tasks under all hierarchies
_FEW_COLUMNS = 16  # up to which eigenvectors cost less than the rest of a task
_FUTURES = 128  # means that more rows may give
_DRAWS = 400  # theta_s given each of them
_MOST = 2.0**50  # rows from which on no number of rows is enough


class Certificates(NamedTuple):
    """One figure for each distinct task that was asked for.

    Parameters
    ----------
    rows : (t,) int array
        Rows of the posterior's table, ascending.
    values : (t,) array
    """

    rows: Codes
    values: Array


def certificates(  # noqa: PLR0913 - what is asked, of whom, and how it is drawn
    posterior: TaskPosterior,
    rows: ArrayLike,
    phi: ArrayLike,
    chosen: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    weight: ArrayLike | None = None,
    level: float = 0.95,
    rng: np.random.Generator,
    n_samples: int = 1000,
) -> Certificates:
    """Return, for each task, what the best policy adds to this one with probability ``level`` at most.

    It is the ``level``-quantile of V(pi_*) - V(pi) given the log, where pi_* takes the best eligible action in each
    context under the true theta_s.

    Parameters
    ----------
    posterior : a posterior
    rows : (n,) int array
        Row of ``posterior.moments.keys`` of the task of each context.
    phi : (n, K, d) array
        Features of all actions in each context.
    chosen : (n,) int array
        The action that the policy takes there.
    mask : (n, K) bool array, optional
        Eligible actions; default all.
    weight : (n,) array, optional
        Weight of each context in the mean of its task; equal by default.
    level : float
        In (0, 1).
    rng : numpy Generator
    n_samples : int
        Draws of theta_s; of a mixture, from the mixture.

    Raises
    ------
    MismatchError, InputError
        Shapes do not fit; there is no such task; a chosen action is not eligible; no weight; too few samples for the
        level.
    """
    asked = _Asked.of(posterior, rows, phi, mask, weight)
    rank = _rank(level, n_samples)
    picked = _codes(chosen, asked.rows.shape, asked.phi.shape[1], "chosen")
    lost = np.flatnonzero(~asked.mask[np.arange(picked.size), picked])
    if lost.size:
        raise InputError(
            f"Context {lost[0]}: action {picked[lost[0]]} was chosen and is not eligible, so that there is nothing to "
            "compare with. Do mask and chosen come from the same rows?"
        )
    w, values = posterior.weights, []
    root_of = square_roots if posterior.dim <= _FEW_COLUMNS else pivoted_roots
    for means, covs, at in _each(posterior, asked):
        counts = rng.multinomial(n_samples, w / w.sum())
        theta = rng.standard_normal((n_samples, means.shape[1]))
        roots, end = root_of(covs), np.cumsum(counts)
        for mean, root, last, count in zip(means, roots, end, counts, strict=True):
            theta[last - count : last] = mean + theta[last - count : last] @ root.T
        losses = np.zeros(n_samples)
        for part in _some(at, asked.phi.shape[1] * n_samples):
            # an action that is not eligible is given no advantage over the one chosen
            better = asked.phi[part] - asked.phi[part, picked[part]][:, None]
            better[~asked.mask[part]] = 0.0
            advantage = (better.reshape(-1, theta.shape[1]) @ theta.T).reshape(*better.shape[:2], n_samples)
            losses += asked.weight[part] @ advantage.max(axis=1)
        values.append(np.partition(losses, rank)[rank])
    return Certificates(asked.tasks, np.array(values, dtype=np.float64))


def rows_needed(  # noqa: PLR0913 - what is asked, of whom, and how it is drawn
    posterior: TaskPosterior,
    rows: ArrayLike,
    phi: ArrayLike,
    epsilon: float,
    *,
    mask: ArrayLike | None = None,
    weight: ArrayLike | None = None,
    level: float = 0.95,
    pessimism: float = 0.0,
    borrowed: float = 0.0,
    rng: np.random.Generator,
) -> Certificates:
    """Return how many more rows of the logged design a task needs until its certificate is expected below ``epsilon``.

    The policy is chosen anew from what the rows will say; the expectation is over them. Rows are taken to come to this
    task alone, each with the mean information of the task's rows in the log. A mixture of hierarchies is taken as a
    Gaussian with its mean and covariance, and the noise as that of the central hierarchy. Found by draws, a figure is
    good to 10 to 20 %; a task with 20 contexts of 5 actions takes a fifth of a second.

    Parameters
    ----------
    posterior, rows, phi, mask, weight, level, rng
        As in :func:`certificates`.
    epsilon : float
        Above 0, in reward units.
    pessimism : float
        Of the policy: it maximises mean - pessimism sd.
    borrowed : float
        As many rows of the fleet's mean information are added to those of a task before the mean of them is taken.
        With 0 the task's log is taken as it is, so that it never learns of what it never tried; a task without rows
        gets the mean of the fleet.

    Returns
    -------
    Certificates
        Values are numbers of rows; 0 where the certificate is below ``epsilon`` now, and inf where no number of rows
        does it.

    Raises
    ------
    MismatchError, InputError
        As :func:`certificates`; ``epsilon`` is not positive; ``pessimism`` or ``borrowed`` is negative.
    """
    if not (0.0 < epsilon < np.inf and 0.0 <= pessimism < np.inf and 0.0 <= borrowed < np.inf):
        raise InputError(
            f"epsilon={epsilon!r}, pessimism={pessimism!r}, borrowed={borrowed!r}: epsilon must be above 0, in reward "
            "units, the others at least 0, and all finite."
        )
    asked = _Asked.of(posterior, rows, phi, mask, weight)
    n_samples = max(_DRAWS, int(np.ceil(10 / (1 - level)))) if 0.0 < level < 1.0 else _DRAWS
    rank, w, values = _rank(level, n_samples), posterior.weights, []
    fleet = _information(posterior, np.arange(len(posterior.moments.keys)), borrowed=0.0)
    for (means, covs, at), row in zip(_each(posterior, asked), asked.tasks.tolist(), strict=True):
        now = Components(w, means, covs).gaussian()
        design = _information(posterior, np.array([row]), borrowed=borrowed, fleet=fleet)
        value = np.where(asked.mask[at], asked.phi[at] @ now.mean, -np.inf)
        root = square_roots(now.cov[None])[0]
        lam, U = np.linalg.eigh(root.T @ design @ root)
        normals = np.concatenate([_spread_out(rng, n, lam.size) for n in (_FUTURES, n_samples)])
        ahead = _Ahead(
            value,
            asked.phi[at] @ (root @ U),
            asked.weight[at],
            np.maximum(lam, 0.0),
            normals,
            pessimism,
            rank,
        )
        values.append(_least(ahead, float(epsilon)))
    return Certificates(asked.tasks, np.array(values, dtype=np.float64))


@dataclass(frozen=True, eq=False)
class _Asked:
    """Contexts, in the order of their tasks' rows: of task k those from ``starts[k]`` on stand at ``order``."""

    rows: Codes
    phi: Array
    mask: Mask
    weight: Array
    order: Codes
    tasks: Codes
    starts: Codes

    @classmethod
    def of(
        cls,
        posterior: TaskPosterior,
        rows: ArrayLike,
        phi: ArrayLike,
        mask: ArrayLike | None,
        weight: ArrayLike | None,
    ) -> "_Asked":
        features = np.asarray(phi, dtype=np.float64)
        if features.ndim != 3 or features.shape[2] != posterior.dim or not features.shape[1]:
            raise MismatchError(
                f"phi has shape {features.shape}; (n, K, {posterior.dim}) is needed, the features of all K actions in "
                "each of n contexts."
            )
        n, K, _ = features.shape
        place = _codes(rows, (n,), len(posterior.moments.keys), "rows")
        allowed = np.ones((n, K), dtype=np.bool_) if mask is None else np.asarray(mask, dtype=np.bool_)
        counts = np.ones(n) if weight is None else np.asarray(weight, dtype=np.float64)
        if allowed.shape != (n, K) or counts.shape != (n,):
            raise MismatchError(
                f"mask of shape {allowed.shape} and weight of shape {counts.shape} do not fit; {(n, K)} and {(n,)} are "
                "needed."
            )
        bad = ~(
            np.isfinite(features).all(axis=(1, 2)) & allowed.any(axis=1) & (counts >= 0) & np.isfinite(counts)
        )
        if bad.any():
            raise InputError(
                f"Context {int(bad.argmax())} has features that are not finite, no eligible action, or the weight "
                f"{counts[bad.argmax()]}. Leave it out."
            )
        tasks, codes = np.unique(place, return_inverse=True)
        sums = np.bincount(codes, counts, minlength=tasks.size)
        if (sums <= 0).any():
            task = posterior.moments.keys.values[tasks[sums <= 0][:1]].tolist()[0]
            raise InputError(
                f"All contexts of task {task!r} have the weight 0. Leave them out, or weigh them."
            )
        order = np.argsort(codes, kind="stable")
        starts = np.searchsorted(codes[order], np.arange(tasks.size + 1))
        return cls(place, features, allowed, counts / sums[codes], order, tasks.astype(np.int64), starts)


def _codes(values: ArrayLike, shape: tuple[int, ...], below: int, name: str) -> Codes:
    codes = np.asarray(values)
    if codes.shape != shape or (codes.size and codes.dtype.kind not in "iu"):
        raise MismatchError(
            f"{name} has shape {codes.shape} and type {codes.dtype}; {shape[0]} integers, one a context, are needed."
        )
    bad = (codes < 0) | (codes >= below)
    if bad.any():
        raise InputError(
            f"{name}[{int(bad.argmax())}] is {codes[bad.argmax()]}; it must be in 0 .. {below - 1}."
        )
    return codes.astype(np.int64)


def _rank(level: float, n_samples: int) -> int:
    """Place, from 0, of the draw that is the quantile."""
    if not 0.0 < level < 1.0:
        raise InputError(f"level={level!r} is not a probability in (0, 1).")
    k = int(np.ceil(level * (n_samples + 1)))
    if not 1 <= k <= n_samples:
        raise InputError(
            f"n_samples={n_samples} draws have no quantile of level {level}: at least "
            f"{int(np.ceil(level / (1 - level)))} are needed."
        )
    return k - 1


def _some(at: Codes, each: int) -> Iterator[Codes]:
    step = max(1, _ROOM // each)
    return (at[start : start + step] for start in range(0, at.size, step))


def _each(posterior: TaskPosterior, asked: _Asked) -> Iterator[tuple[Array, Array, Codes]]:
    """For each task means (H, d) and covariances (H, d, d) under each hierarchy, and where its contexts stand."""
    d, H = posterior.dim, posterior.weights.size
    step = max(1, _JOINT_ROOM // (d * d * H))
    for first in range(0, asked.tasks.size, step):
        tasks = asked.tasks[first : first + step]
        means, covs = np.empty((tasks.size, H, d)), np.empty((tasks.size, H, d, d))
        for h, part in enumerate(posterior.parts()):  # one at a time: each may hold matrices of all tasks
            for some in pieces(tasks.size, d * d):
                means[some, h], covs[some, h] = part.joint(tasks[some])
        for k in range(tasks.size):
            start, end = asked.starts[first + k : first + k + 2]
            yield means[k], covs[k], asked.order[start:end]


def _information(
    posterior: TaskPosterior, rows: Codes, *, borrowed: float, fleet: Array | None = None
) -> Array:
    """Mean of phi phi' / sigma^2 (d, d) over the rows of some tasks, and ``borrowed`` rows of the fleet."""
    G = posterior.moments.information(rows, np.atleast_1d(posterior.central_hierarchy.noise_var))
    n = int(posterior.moments.rows[rows].sum())
    if fleet is None:
        return np.asarray(G / max(n, 1))
    return np.asarray((G + borrowed * fleet) / (n + borrowed)) if n + borrowed else fleet


@dataclass(frozen=True, eq=False)
class _Ahead:
    """Expected certificates after more rows of one task.

    ``value`` (n, K) is expected now, -inf where not eligible; ``along`` (n, K, d) are features along the axes L U, and
    ``gain`` (d,) is lambda, the information of one row along each; ``normals`` (F + S, d) are futures, then draws.
    """

    value: Array
    along: Array
    weight: Array
    gain: Array
    normals: Array
    pessimism: float
    rank: int

    def certificate(self, k: float) -> float:
        """Expected after k more rows."""
        if np.isinf(k):
            seen = (self.gain > 8 * self.gain.size * np.finfo(np.float64).eps * self.gain.max()).astype(
                np.float64
            )
            left = 1.0 - seen
        else:
            left = 1.0 / (1.0 + k * self.gain)
            seen = k * self.gain * left
        futures, draws = self.normals[:_FUTURES] * np.sqrt(seen), self.normals[_FUTURES:] * np.sqrt(left)
        means = self.value[..., None] + self.along @ futures.T  # (n, K, F)
        away = self.along @ draws.T  # (n, K, S)
        margin = self.pessimism * np.sqrt(np.square(self.along) @ left)
        taken = (means - margin[..., None]).argmax(axis=1)
        whole = 0.0
        for f in range(_FUTURES):
            values = means[:, :, f, None] + away
            here = np.take_along_axis(values, taken[:, None, f, None], axis=1)[:, 0]
            losses = self.weight @ (values.max(axis=1) - here)
            whole += float(np.partition(losses, self.rank)[self.rank])
        return whole / _FUTURES


def _spread_out(rng: np.random.Generator, n: int, d: int) -> Array:
    """Normal draws (n, d), one in each n-th of the law of every coordinate: a Latin hypercube.

    Source: McKay, Beckman and Conover, Technometrics 21, 1979.
    """
    from scipy.special import ndtri

    places = rng.permuted(np.tile(np.arange(n, dtype=np.float64), (d, 1)), axis=1).T
    return np.asarray(ndtri((places + rng.random((n, d))) / n))


def _least(ahead: _Ahead, epsilon: float) -> float:
    """Least number of rows, to 3 %, after which the expected certificate is at most epsilon."""
    if ahead.certificate(0.0) <= epsilon:
        return 0.0
    if ahead.certificate(np.inf) > epsilon:
        return np.inf
    low, high = 0.0, 1.0
    while ahead.certificate(high) > epsilon:
        low, high = high, 2 * high
        if high > _MOST:
            return np.inf
    while high - low > max(1.0, high / 32):
        middle = float(np.floor((low + high) / 2))
        if ahead.certificate(middle) > epsilon:
            low = middle
        else:
            high = middle
    return high
