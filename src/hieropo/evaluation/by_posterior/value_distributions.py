"""Distributions of v_s' theta_s in every task, and of sums over tasks, such as the value of a policy in the fleet.

Sums need the covariance between tasks: all tasks share the uncertainty of mu, so that taking them as independent would
understate the variance of a sum. Each posterior gives the joint Gaussian of such sums under each of its hierarchies
(:meth:`hieropo.model.protocol.GaussianPart.total`); for two levels

    Var(sum_s v_s' theta_s) = sum_s v_s' Sigma~_s v_s + k' Sigma-bar k,   k = sum_s M_s' v_s

with Sigma~_s the covariance of theta_s given mu, and M_s = (I + Sigma_0 G_s)^-1. A mixture of hierarchies gives a
mixture of Gaussians.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hieropo._utils.arrays import Array
from hieropo.errors import InputError, MismatchError
from hieropo.estimation.hyper.mixed import Components, normal_mixture_below
from hieropo.model.protocol import TaskPosterior


class ValueDistributions(NamedTuple):
    """Distributions of v_s' theta_s, one for each task.

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


def total(posterior: TaskPosterior, vectors: ArrayLike) -> Components:
    """Return the joint distribution of J sums over tasks, L_j = sum_s v_js' theta_s, with the covariance between tasks.

    Parameters
    ----------
    posterior : TaskPosterior
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
    gaussians = [part.total(v) for part in posterior.parts()]
    covs = np.array([cov for _, cov in gaussians])
    means = np.array([mean for mean, _ in gaussians])
    return Components(posterior.weights, means, (covs + covs.swapaxes(1, 2)) / 2)


def value_distributions(posterior: TaskPosterior, vectors: ArrayLike) -> ValueDistributions:
    """Return the distribution of v_s' theta_s in every task; of a mixture, its exact mean, sd and P(below 0).

    A task with the vector zero has mean, sd and ``below`` 0.

    Parameters
    ----------
    posterior : TaskPosterior
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
    >>> posterior = condition(log, Hierarchy(Gaussian([0.0], [[0.0]]), [[1.0]], 1.0))
    >>> values = value_distributions(posterior, [[-1.0], [0.0]])
    >>> values.mean.round(3).tolist(), values.sd.round(3).tolist(), values.below.round(3).tolist()
    ([-0.5, 0.0], [0.707, 0.0], [0.76, 0.0])
    """
    v = aligned(posterior, vectors)
    m, d = v.shape[-2:]
    flat = v.reshape(-1, m, d)
    J = len(flat)
    w = posterior.weights
    mean, sd, below = np.empty((3, J, m))
    for part in posterior.task_slices(d * (d + J) + J * w.size):
        law = _projected(posterior, np.ascontiguousarray(flat[:, part].swapaxes(0, 1)), part)
        mean[:, part], sd[:, part], below[:, part] = (values.T for values in law)
    shape = v.shape[:-1]
    return ValueDistributions(mean.reshape(shape), sd.reshape(shape), below.reshape(shape))


def aligned(posterior: TaskPosterior, vectors: ArrayLike, axes: int | None = None) -> Array:
    """Return vectors (..., m, d) as an array, after a check; ``axes`` is how many axes there must be.

    Raises
    ------
    MismatchError, InputError
        As :func:`total`.
    """
    v = np.asarray(vectors, dtype=np.float64)
    m, d = len(posterior.moments.keys), posterior.dim
    if v.ndim < 2 or v.shape[-2:] != (m, d) or (axes is not None and v.ndim != axes):
        shape = "(J, m, d)" if axes == 3 else "(..., m, d)"
        raise MismatchError(
            f"vectors have shape {v.shape}. Each task needs one vector of all its coefficients: shape {shape}, with "
            f"the m = {m} tasks of posterior.moments.keys, in that order, and d = {d} features."
        )
    bad = ~np.isfinite(v)
    if bad.any():
        index = np.argwhere(bad)[0]
        task = posterior.moments.keys.values[index[-2] : index[-2] + 1].tolist()[0]
        raise InputError(
            f"The vector of task {task!r} has {v[tuple(index)]} at feature {index[-1]}. Is it a mean over no rows? "
            "Give a task that does not count a vector of zeros."
        )
    return v


def _projected(posterior: TaskPosterior, vectors: Array, part: slice) -> tuple[Array, Array, Array]:
    """Return means, sds and P(below 0) (n, J) of v' theta_s, for vectors (n, J, d)."""
    laws = [
        (weight * share, mean, np.maximum(variance, 0.0))
        for weight, gaussian in zip(posterior.weights.tolist(), posterior.parts(), strict=True)
        for share, mean, variance in gaussian.mixtures(vectors, part)
    ]
    weights, means, variances = (np.stack(values, axis=-1) for values in zip(*laws, strict=True))
    weights = weights[:, None]
    mean = (means * weights).sum(axis=-1)
    variance = ((variances + (means - mean[..., None]) ** 2) * weights).sum(axis=-1)
    return mean, np.sqrt(variance), normal_mixture_below(weights, means, np.sqrt(variances))
