"""Laws of v_s' theta_s of every task, and of sums over tasks with their covariances, such as the value of a fleet.

Given its parent a task is independent of all others, theta_s ~ N(M_s Z_s parent + ..., Sigma~_s). So one pass up the
tree carries the vectors along: every node adds v' Sigma~ v to the variance, and hands Z' M' v to its parent, where what
the children hand over is added up; at the root k' Sigma-bar k is left. Two levels are the tree of depth one:

    Var(sum_s v_s' theta_s) = sum_s v_s' Sigma~_s v_s + k' Sigma-bar k,   k = sum_s M_s' v_s

The mean is that of the tasks. What the first-order correction adds is linear in the error of Sigma_0 and so is
its sum over tasks (:meth:`corrected.CorrectedPosterior.added`); a mixture of hierarchies gives a mixture of laws.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hieropo._utils.arrays import Array
from hieropo._utils.packed import pack, unpack
from hieropo.errors import InputError, MismatchError
from hieropo.estimation.crossed.mixture import CrossedMixture
from hieropo.estimation.hyper.mixed import Components, MixedPosterior, WidenedPosterior, normal_mixture_below
from hieropo.model.crossed.posterior import CrossedPosterior
from hieropo.model.posterior import Posterior

Crossed = CrossedPosterior | CrossedMixture
Conditioned = Posterior | MixedPosterior | WidenedPosterior | Crossed

_ROOM = 2**20  # entries of one array worked on at once


class ValueDistributions(NamedTuple):
    """Laws of v_s' theta_s, one for each task.

    Parameters
    ----------
    mean, sd : (..., m) array
        In reward units.
    below : (..., m) array
        P(v_s' theta_s < 0 | log).
    """

    mean: Array
    sd: Array
    below: Array


def total(posterior: Conditioned, vectors: ArrayLike) -> Components:
    """Return the joint law of J sums over tasks, L_j = sum_s v_js' theta_s, with the covariance between tasks.

    Parameters
    ----------
    posterior : a posterior
        Of m tasks and d features.
    vectors : (J, m, d) array
        v_js, for the tasks in the order of ``posterior.moments.keys``. With mean features psi_s of a policy in task s
        and weights u_s, ``u_s psi_s`` gives the policy's value in the fleet, in reward units.

    Returns
    -------
    Components
        weights (H,), means (H, J), covs (H, J, J): a Gaussian for each hierarchy of the mixture; H = 1 without one.

    Raises
    ------
    MismatchError
        The vectors are of other tasks or features.
    InputError
        A vector is not finite.

    Examples
    --------
    >>> from hieropo import Gaussian, Hierarchy, Moments, condition
    >>> nothing = Moments.from_arrays(["a", "b"], [[0.0], [0.0]], [0.0, 0.0])
    >>> fleet = total(condition(nothing, Hierarchy(Gaussian([0.0], [[1.0]]), [[1.0]], 1.0)), [[[0.5], [0.5]]])
    >>> fleet.covs  # var mu = 1, and half of a task's own variance
    array([[[1.5]]])
    """
    v = aligned(posterior, vectors, 3)
    if isinstance(posterior, MixedPosterior):
        weights, laws = posterior.draws.weights, [_tree(part, v) for part in posterior.parts]
    elif isinstance(posterior, Crossed):
        weights, laws = posterior.weights, [part.total(v) for part in posterior.parts()]
    elif isinstance(posterior, WidenedPosterior):
        mean, cov = _tree(posterior.plain, v)
        weights, laws = np.ones(1), [(mean, cov + posterior.added(v))]
    else:
        weights, laws = np.ones(1), [_tree(posterior, v)]
    covs = np.array([cov for _, cov in laws])
    return Components(weights, np.array([mean for mean, _ in laws]), (covs + covs.swapaxes(1, 2)) / 2)


def value_distributions(posterior: Conditioned, vectors: ArrayLike) -> ValueDistributions:
    """Return the law of v_s' theta_s of every task; of a mixture, its exact mean, sd and distribution function.

    A task with the vector zero has mean, sd and ``below`` 0.

    Parameters
    ----------
    posterior : a posterior
    vectors : (..., m, d) array
        For the tasks in the order of ``posterior.moments.keys``: mean features of a policy's actions, or their
        difference to the incumbent's, for which ``below`` is the probability of harm.

    Raises
    ------
    MismatchError
        The vectors are of other tasks or features.
    InputError
        A vector is not finite.

    Examples
    --------
    >>> from hieropo import Gaussian, Hierarchy, Moments, condition
    >>> log = Moments.from_arrays(["a", "b"], [[1.0], [0.0]], [1.0, 0.0])
    >>> laws = value_distributions(condition(log, Hierarchy(Gaussian([0.0], [[0.0]]), [[1.0]], 1.0)), [[-1.0], [0.0]])
    >>> laws.mean.round(3).tolist(), laws.sd.round(3).tolist(), laws.below.round(3).tolist()
    ([-0.5, 0.0], [0.707, 0.0], [0.76, 0.0])
    """
    v = aligned(posterior, vectors)
    m, d = v.shape[-2:]
    flat = v.reshape(-1, m, d)
    J = len(flat)
    w = mixture_weights(posterior)
    mean, sd, below = np.empty((3, J, m))
    at_once = isinstance(posterior, Crossed)  # each pass may condition all tasks anew
    for part in [slice(0, m)] if at_once else pieces(m, d * (d + J) + J * w.size):
        means, variances = _projected(posterior, np.ascontiguousarray(flat[:, part].swapaxes(0, 1)), part)
        middle = means @ w
        spread = (variances + (means - middle[..., None]) ** 2) @ w
        mean[:, part], sd[:, part] = middle.T, np.sqrt(spread).T
        below[:, part] = normal_mixture_below(w, means, np.sqrt(variances)).T
    shape = v.shape[:-1]
    return ValueDistributions(mean.reshape(shape), sd.reshape(shape), below.reshape(shape))


def aligned(posterior: Conditioned, vectors: ArrayLike, axes: int | None = None) -> Array:
    """Vectors (..., m, d) as an array, after a check; ``axes`` is how many there must be.

    Raises
    ------
    MismatchError, InputError
        As :func:`total`.
    """
    v = np.asarray(vectors, dtype=np.float64)
    m, d = len(posterior.moments.keys), posterior.dim
    if v.ndim < 2 or v.shape[-2:] != (m, d) or (axes is not None and v.ndim != axes):
        wanted = "(J, m, d)" if axes == 3 else "(..., m, d)"
        raise MismatchError(
            f"vectors have shape {v.shape}; {wanted} is needed, with the m = {m} tasks of posterior.moments.keys, in "
            f"that order, and d = {d} features."
        )
    bad = ~np.isfinite(v)
    if bad.any():
        at = np.argwhere(bad)[0]
        task = posterior.moments.keys.values[at[-2] : at[-2] + 1].tolist()[0]
        raise InputError(
            f"The vector of task {task!r} has {v[tuple(at)]} at feature {at[-1]}. Is it a mean over no "
            "rows? A task that does not count gets zeros."
        )
    return v


def pieces(n: int, each: int) -> Iterator[slice]:
    """Slices of ``n`` tasks, of ``each`` numbers, that are worked on at once."""
    step = max(1, _ROOM // max(each, 1))
    return (slice(start, min(start + step, n)) for start in range(0, n, step))


def mixture_weights(posterior: Conditioned) -> Array:
    """Weights (H,) of the hierarchies."""
    if isinstance(posterior, Crossed):
        return posterior.weights
    return posterior.draws.weights if isinstance(posterior, MixedPosterior) else np.ones(1)


def noise_variances(posterior: Conditioned) -> Array:
    """Noise variances of the actions (K,), or of all rows (1,), averaged over the hierarchies."""
    if isinstance(posterior, CrossedMixture):
        return posterior.hierarchy.central().noise_var
    if isinstance(posterior, MixedPosterior):
        return np.atleast_1d(posterior.draws.weights @ posterior.draws.noise_vars)
    return np.atleast_1d(posterior.hierarchy.noise_var)


def distributions_under_each(posterior: Conditioned, part: slice) -> Iterator[tuple[Array, Array]]:
    """Means (n, d) and packed covariances of some tasks, under each hierarchy."""
    if isinstance(posterior, MixedPosterior):
        yield from (each.tasks(part) for each in posterior.parts)
    elif isinstance(posterior, Crossed):
        rows = np.arange(part.start, part.stop)
        for one in posterior.parts():
            means, covs = one.joint_of_rows(rows)
            yield means, pack(covs)
    else:
        table = posterior.table()
        yield table.means[part], table.covs[part]


def _tree(posterior: Posterior, vectors: Array) -> tuple[Array, Array]:
    """Mean (J,) and covariance (J, J)."""
    J, m, d = vectors.shape
    mean, cov = np.zeros(J), np.zeros((J, J))
    for part in pieces(m, d * (d + J)):
        means, _ = posterior.tasks(part)
        mean += np.einsum("jsi,si->j", vectors[:, part], means)
    handed = vectors
    for k, stage in enumerate(posterior.stages):
        top = k + 1 == len(posterior.stages)
        above = np.zeros((1 if top else len(posterior.stages[k + 1].keys), J, posterior.hyper.dim))
        for part in pieces(len(stage.keys), posterior.hyper.dim * (d + J)):
            covs, gains = stage.alone(part)
            here = handed[:, part].swapaxes(0, 1)  # (n, J, d)
            cov += np.tensordot(here @ unpack(covs, here.shape[2]), here, axes=([0, 2], [0, 2]))
            np.add.at(above, stage.parent[part], here @ gains)
        handed = above.swapaxes(0, 1)
    root = handed[:, 0]
    return mean, cov + root @ posterior.hyper.cov @ root.T


def _projected(posterior: Conditioned, vectors: Array, part: slice) -> tuple[Array, Array]:
    """Means and variances (n, J, H) of v' theta_s of some tasks, vectors (n, J, d)."""
    n, J, d = vectors.shape
    found = np.empty((2, n, J, mixture_weights(posterior).size))
    if isinstance(posterior, Crossed):
        for h, one in enumerate(posterior.parts()):
            for some in pieces(n, J * (2 * d + J)):
                at = slice(part.start + some.start, part.start + some.stop)
                found[0, some, :, h], own, shared = one.along(vectors[some], at)
                found[1, some, :, h] = np.einsum("njj->nj", own) + np.square(shared).sum(axis=2)
        return found[0], np.maximum(found[1], 0.0)
    for h, (means, covs) in enumerate(distributions_under_each(posterior, part)):
        found[0, :, :, h] = np.einsum("nji,ni->nj", vectors, means)
        found[1, :, :, h] = ((vectors @ unpack(covs, d)) * vectors).sum(axis=2)
    return found[0], np.maximum(found[1], 0.0)
