"""Probability of harm of a policy in each task, certificates of its suboptimality, and rows needed for them.

With psi_s the mean features of a policy's actions in task s, its value there is psi_s' theta_s, whose
distribution :func:`value_distributions` gives. Against an incumbent, delta_s = psi_s(new) - psi_s(incumbent), and

    P(harm) = P(delta_s' theta_s < 0 | log)

The certificate is the posterior quantile of the gain of the best policy for the true theta_s,

    V(pi_*) - V(pi) = mean over contexts of max_a (phi(x, a) - phi(x, pi(x)))' theta_s

It is computed from n draws of theta_s, as the k-th smallest loss, k = ceil(level (n + 1)). The true loss, if it is a
draw like the others, is below it with probability k / (n + 1).

Let C = L L' be the covariance of theta_s. After k more rows of the task, each with information J, it is C_k = (C^-1 + k
J)^-1. With L'J L = U diag(lambda) U' that is L U diag(1 / (1 + k lambda)) U'L', whatever the rank of C and J. The
predictive distribution of the future posterior mean is N(mean, C - C_k). So that mean can be drawn, and the policy
under it evaluated, before the rows are observed. This is a preposterior analysis (Raiffa and Schlaifer, Applied
Statistical Decision Theory, 1961).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, TypeVar

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
from hieropo.rows.columns import check_codes

__all__ = ["Certificates", "ValueDistributions", "certificates", "rows_needed", "value_distributions"]


_MAX_NUMBERS = 2**20  # in one array of advantages
_MAX_COV_NUMBERS = 2**25  # in the covariances of tasks under all hierarchies
_FEW_COLUMNS = 16  # up to which eigenvectors cost less than the rest of a task
_AT_ONCE = 8  # tasks whose normals are drawn before they are multiplied
_FUTURES = 128  # draws of the future posterior mean
_DRAWS = 400  # of theta_s given each of them
_MAX_ROWS = 2.0**50  # above which no number of rows is taken to be enough


T = TypeVar("T")


class Certificates(NamedTuple):
    """One number for each distinct task of the contexts.

    Parameters
    ----------
    rows : (t,) int array
        Rows of the posterior's table, ascending.
    values : (t,) array
    """

    rows: Codes
    values: Array


def certificates(  # noqa: PLR0913 - posterior, contexts, policy and draws
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
    """Return, for each task, an upper bound on the gain of the best policy over this one, of probability ``level``.

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
    contexts = _Contexts.of(posterior, rows, phi, mask, weight)
    rank = _rank(level, n_samples)
    codes = check_codes(chosen, contexts.rows.shape, contexts.phi.shape[1], "chosen")
    ineligible = np.flatnonzero(~contexts.mask[np.arange(codes.size), codes])
    if ineligible.size:
        raise InputError(
            f"Context {ineligible[0]}: action {codes[ineligible[0]]} was chosen and is not eligible, so that its "
            "loss is not defined. Do mask and chosen come from the same rows?"
        )
    w, values = posterior.weights, list[float]()
    work = _Losses(contexts, codes, square_roots if posterior.dim <= _FEW_COLUMNS else pivoted_roots, rank)
    waiting: Future[list[float]] | None = None
    with ThreadPoolExecutor(
        1
    ) as pool:  # normals are drawn one after the other, meanwhile others are multiplied
        for some in _batched(_by_task(posterior, contexts), _AT_ONCE):
            draws = []
            for means, covs, task_contexts in some:
                counts = rng.multinomial(n_samples, w / w.sum())
                normals = rng.standard_normal((n_samples, means.shape[1]))
                draws.append(_Draws(means, covs, task_contexts, counts, normals))
            if waiting is not None:
                values.extend(waiting.result())
            waiting = pool.submit(work.quantiles, draws)
        if waiting is not None:
            values.extend(waiting.result())
    return Certificates(contexts.tasks, np.array(values, dtype=np.float64))


class _Draws(NamedTuple):
    """Means (H, d) and covariances (H, d, d) of a task, its contexts, draws of each hierarchy (H,), normals (n, d)."""

    means: Array
    covs: Array
    contexts: Codes
    counts: Codes
    normals: Array


class _Losses(NamedTuple):
    """Losses of the actions ``codes`` (n,) that were chosen in some contexts; their quantile has a ``rank``."""

    contexts: "_Contexts"
    codes: Codes
    root_of: Callable[[Array], Array]
    rank: int

    def quantiles(self, draws: "Sequence[_Draws]") -> list[float]:
        """Return the quantile of the losses of each of some tasks."""
        return [float(np.partition(self.of(some), self.rank)[self.rank]) for some in draws]

    def of(self, draws: _Draws) -> Array:
        """Return the loss of each draw (n,) of one task."""
        contexts, codes, normals = self.contexts, self.codes, draws.normals
        n_samples, n_actions = len(normals), contexts.phi.shape[1]
        roots, ends = self.root_of(draws.covs), np.append(0, np.cumsum(draws.counts))
        losses = np.zeros(n_samples)
        for part in _pieces_of(draws.contexts, n_actions * n_samples):
            # the chosen action has no advantage over itself, and neither has an action that is not eligible
            others = (codes[part, None] + np.arange(1, n_actions)) % n_actions
            differences = contexts.phi[part[:, None], others] - contexts.phi[part, codes[part]][:, None]
            differences[~contexts.mask[part[:, None], others]] = 0.0
            flat = differences.reshape(-1, normals.shape[1])
            advantage = np.empty((len(flat), n_samples))
            for mean, root, first, last in zip(draws.means, roots, ends, ends[1:], strict=False):
                np.matmul(flat @ root, normals[first:last].T, out=advantage[:, first:last])
                advantage[:, first:last] += (flat @ mean)[:, None]
            by_action = advantage.reshape(*others.shape, n_samples)
            losses += contexts.weight[part] @ by_action.max(axis=1, initial=0.0)
        return losses


def rows_needed(  # noqa: PLR0913 - posterior, contexts, policy and draws
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
    """Return the number of further rows of each task after which its expected certificate is below ``epsilon``.

    The expectation is over these rows, and over the policies that they lead to. All further rows are of this task, each
    with the mean information of the task's rows in the log. A mixture of hierarchies is approximated by the Gaussian
    with its mean and covariance; the noise is that of the central hierarchy. Numbers come from draws and have errors of
    10 to 20 %; a task with 20 contexts of 5 actions takes a fifth of a second.

    Parameters
    ----------
    posterior, rows, phi, mask, weight, level, rng
        As in :func:`certificates`.
    epsilon : float
        Above 0, in reward units.
    pessimism : float
        Of the policy: it maximises mean - pessimism sd.
    borrowed : float
        Number of rows with the fleet's mean information that join those of a task in the mean information. With 0 it is
        that of the task's log alone, which has none on actions that were never tried; a task without rows gets the mean
        of the fleet.

    Returns
    -------
    Certificates
        Values are numbers of rows; 0 where the certificate is below ``epsilon`` now, and inf where no number of rows
        is enough.

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
    contexts = _Contexts.of(posterior, rows, phi, mask, weight)
    n_samples = max(_DRAWS, int(np.ceil(10 / (1 - level)))) if 0.0 < level < 1.0 else _DRAWS
    rank, w, values = _rank(level, n_samples), posterior.weights, []
    fleet = _information(posterior, np.arange(len(posterior.moments.keys)), borrowed=0.0)
    for (means, covs, task_contexts), row in zip(
        _by_task(posterior, contexts), contexts.tasks.tolist(), strict=True
    ):
        now = Components(w, means, covs).gaussian()
        design = _information(posterior, np.array([row]), borrowed=borrowed, fleet=fleet)
        value = np.where(contexts.mask[task_contexts], contexts.phi[task_contexts] @ now.mean, -np.inf)
        root = square_roots(now.cov[None])[0]
        eigenvalues, U = np.linalg.eigh(root.T @ design @ root)
        normals = np.concatenate([_latin_hypercube(rng, n, eigenvalues.size) for n in (_FUTURES, n_samples)])
        preposterior = _Preposterior(
            value,
            contexts.phi[task_contexts] @ (root @ U),
            contexts.weight[task_contexts],
            np.maximum(eigenvalues, 0.0),
            normals,
            pessimism,
            rank,
        )
        values.append(_fewest_rows(preposterior, float(epsilon)))
    return Certificates(contexts.tasks, np.array(values, dtype=np.float64))


@dataclass(frozen=True, eq=False)
class _Contexts:
    """Checked contexts; those of task k are ``order[starts[k]:starts[k + 1]]``."""

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
    ) -> "_Contexts":
        features = np.asarray(phi, dtype=np.float64)
        if features.ndim != 3 or features.shape[2] != posterior.dim or not features.shape[1]:
            raise MismatchError(
                f"phi has shape {features.shape}; (n, K, {posterior.dim}) is needed, the features of all K actions in "
                "each of n contexts."
            )
        n, K, _ = features.shape
        task_rows = check_codes(rows, (n,), len(posterior.moments.keys), "rows")
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
        tasks, codes = np.unique(task_rows, return_inverse=True)
        sums = np.bincount(codes, counts, minlength=tasks.size)
        if (sums <= 0).any():
            task = posterior.moments.keys.values[tasks[sums <= 0][:1]].tolist()[0]
            raise InputError(
                f"All contexts of task {task!r} have the weight 0. Leave them out, or give them weights."
            )
        order = np.argsort(codes, kind="stable")
        starts = np.searchsorted(codes[order], np.arange(tasks.size + 1))
        return cls(task_rows, features, allowed, counts / sums[codes], order, tasks.astype(np.int64), starts)


def _batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of ``size`` items; the last may be shorter."""
    iterator = iter(items)
    while some := list(islice(iterator, size)):
        yield some


def _rank(level: float, n_samples: int) -> int:
    """Return the rank, from 0, of the draw that is the quantile."""
    if not 0.0 < level < 1.0:
        raise InputError(f"level={level!r} is not a probability in (0, 1).")
    k = int(np.ceil(level * (n_samples + 1)))
    if not 1 <= k <= n_samples:
        raise InputError(
            f"n_samples={n_samples} draws have no quantile of level {level}: at least "
            f"{int(np.ceil(level / (1 - level)))} are needed."
        )
    return k - 1


def _pieces_of(rows: Codes, width: int) -> Iterator[Codes]:
    step = max(1, _MAX_NUMBERS // width)
    return (rows[start : start + step] for start in range(0, rows.size, step))


def _by_task(posterior: TaskPosterior, contexts: _Contexts) -> Iterator[tuple[Array, Array, Codes]]:
    """Yield means (H, d) and covariances (H, d, d) of each task under each hierarchy, and the rows of its contexts."""
    d, H = posterior.dim, posterior.weights.size
    step = max(1, _MAX_COV_NUMBERS // (d * d * H))
    for first in range(0, contexts.tasks.size, step):
        tasks = contexts.tasks[first : first + step]
        means, covs = np.empty((tasks.size, H, d)), np.empty((tasks.size, H, d, d))
        for h, part in enumerate(posterior.parts()):  # one at a time: each may hold matrices of all tasks
            for piece in pieces(tasks.size, d * d):
                means[piece, h], covs[piece, h] = part.joint(tasks[piece])
        for k in range(tasks.size):
            start, end = contexts.starts[first + k : first + k + 2]
            yield means[k], covs[k], contexts.order[start:end]


def _information(
    posterior: TaskPosterior, rows: Codes, *, borrowed: float, fleet: Array | None = None
) -> Array:
    """Return the mean of phi phi' / sigma^2 (d, d) over the rows of some tasks and ``borrowed`` rows of the fleet."""
    G = posterior.moments.information(rows, np.atleast_1d(posterior.central_hierarchy.noise_var))
    n = int(posterior.moments.rows[rows].sum())
    if fleet is None:
        return np.asarray(G / max(n, 1))
    return np.asarray((G + borrowed * fleet) / (n + borrowed)) if n + borrowed else fleet


@dataclass(frozen=True, eq=False)
class _Preposterior:
    """Expected certificates after more rows of one task.

    ``value`` (n, K) is the mean reward given the log, -inf where not eligible; ``phi`` (n, K, d) are features in the
    coordinates L U; ``eigenvalues`` (d,) are lambda, the information of one row in each; ``normals`` (F + S, d) are
    those of the future means, then of the draws.
    """

    value: Array
    phi: Array
    weight: Array
    eigenvalues: Array
    normals: Array
    pessimism: float
    rank: int

    def certificate(self, k: float) -> float:
        """Return the expected certificate after k more rows."""
        if np.isinf(k):
            explained = (
                self.eigenvalues
                > 8 * self.eigenvalues.size * np.finfo(np.float64).eps * self.eigenvalues.max()
            ).astype(np.float64)
            remaining = 1.0 - explained
        else:
            remaining = 1.0 / (1.0 + k * self.eigenvalues)
            explained = k * self.eigenvalues * remaining
        futures, draws = (
            self.normals[:_FUTURES] * np.sqrt(explained),
            self.normals[_FUTURES:] * np.sqrt(remaining),
        )
        means = self.value[..., None] + self.phi @ futures.T  # (n, K, F)
        deviations = self.phi @ draws.T  # (n, K, S)
        margin = self.pessimism * np.sqrt(np.square(self.phi) @ remaining)
        chosen = (means - margin[..., None]).argmax(axis=1)
        total = 0.0
        for f in range(_FUTURES):
            values = means[:, :, f, None] + deviations
            chosen_values = np.take_along_axis(values, chosen[:, None, f, None], axis=1)[:, 0]
            losses = self.weight @ (values.max(axis=1) - chosen_values)
            total += float(np.partition(losses, self.rank)[self.rank])
        return total / _FUTURES


def _latin_hypercube(rng: np.random.Generator, n: int, d: int) -> Array:
    """Draw normals (n, d), one from each n-th of the distribution of every coordinate: a Latin hypercube.

    Source: McKay, Beckman and Conover, Technometrics 21, 1979.
    """
    from scipy.special import ndtri

    strata = rng.permuted(np.tile(np.arange(n, dtype=np.float64), (d, 1)), axis=1).T
    return np.asarray(ndtri((strata + rng.random((n, d))) / n))


def _fewest_rows(preposterior: _Preposterior, epsilon: float) -> float:
    """Return the least number of rows, to 3 %, after which the expected certificate is at most epsilon."""
    if preposterior.certificate(0.0) <= epsilon:
        return 0.0
    if preposterior.certificate(np.inf) > epsilon:
        return np.inf
    low, high = 0.0, 1.0
    while preposterior.certificate(high) > epsilon:
        low, high = high, 2 * high
        if high > _MAX_ROWS:
            return np.inf
    while high - low > max(1.0, high / 32):
        middle = float(np.floor((low + high) / 2))
        if preposterior.certificate(middle) > epsilon:
            low = middle
        else:
            high = middle
    return high
