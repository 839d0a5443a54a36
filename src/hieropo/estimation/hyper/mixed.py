"""Posteriors under a finite mixture of hierarchies: the law of total covariance, and exact quantiles.

With weights w_h and the posterior N(mean_h, cov_h) of anything (a task, a node, mu, a new task) under hierarchy h,

    mean = sum w_h mean_h        cov = sum w_h cov_h + sum w_h (mean_h - mean)(mean_h - mean)'

The second term is missing where :func:`posterior.condition` takes an estimated hierarchy as known.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from hieropo._utils.arrays import Array, Codes, pieces
from hieropo._utils.packed import pack, packed_size, triangle, unpack
from hieropo._utils.text import counted
from hieropo.errors import InputError, MismatchError
from hieropo.model.gaussian import Gaussian, frozen
from hieropo.model.hierarchy import Hierarchy
from hieropo.model.posterior import Posterior, condition, projected
from hieropo.model.table import PosteriorTable
from hieropo.moments.spread import about_fit, sizes
from hieropo.moments.statistics import Moments
from hieropo.rows.keys import Unseen


@dataclass(frozen=True, slots=True, eq=False)
class HyperDraws:
    """Weighted draws of hierarchies from their posterior: the uncertainty of (Sigma_0, ..., sigma^2).

    Parameters
    ----------
    weights : (H,) array
        Positive; add to 1.
    task_covs : (H, d, d) array
    noise_vars : (H,) array
    level_covs : (H, L, d, d) array
        Covariances of the L levels above the tasks.

    Raises
    ------
    InputError
        Shapes do not fit, or the weights are no weights.
    """

    weights: Array
    task_covs: Array
    noise_vars: Array
    level_covs: Array

    def __post_init__(self) -> None:
        for name in ("weights", "task_covs", "noise_vars", "level_covs"):
            object.__setattr__(self, name, frozen(getattr(self, name)))
        H, d = self.weights.size, self.task_covs.shape[-1]
        shapes = [self.weights.shape, self.task_covs.shape, self.noise_vars.shape, self.level_covs.shape]
        levels = self.level_covs.shape[1] if self.level_covs.ndim == 4 else -1
        if not H or shapes != [(H,), (H, d, d), (H,), (H, levels, d, d)]:
            raise InputError(
                f"Weights, task_covs, noise_vars and level_covs of shapes {shapes} do not fit; "
                "(H,), (H, d, d), (H,) and (H, L, d, d) are needed."
            )
        if not (self.weights > 0).all() or abs(float(self.weights.sum()) - 1.0) > 1e-9:
            raise InputError(
                f"The least weight is {self.weights.min():.3g} and all add to {self.weights.sum():.6g}; "
                "positive weights that add to 1 are needed."
            )

    def __len__(self) -> int:
        return int(self.weights.size)

    def hierarchy(self, row: int, like: Hierarchy) -> Hierarchy:
        """Return draw ``row``; parts that are not drawn are those of ``like``."""
        return _with_covs(like, self.task_covs[row], float(self.noise_vars[row]), self.level_covs[row])

    def mean(self, like: Hierarchy) -> Hierarchy:
        """Return the hierarchy of the mean covariances and the mean noise_var."""
        w = self.weights
        task_cov, levels = np.tensordot(w, self.task_covs, 1), np.tensordot(w, self.level_covs, 1)
        return _with_covs(like, task_cov, float(w @ self.noise_vars), levels)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON's types, from which :meth:`from_dict` makes the same draws to the last bit."""
        d = self.task_covs.shape[-1]
        return {
            "kind": "hyper-draws",
            "dim": d,
            "weights": self.weights.tolist(),
            "task_covs": pack(self.task_covs).tolist(),
            "noise_vars": self.noise_vars.tolist(),
            "level_covs": pack(self.level_covs).tolist(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the value that :meth:`to_dict` wrote."""
        d, H = int(values["dim"]), len(values["weights"])
        levels = np.asarray(values["level_covs"], dtype=np.float64).reshape(H, -1, packed_size(d))
        task_covs = np.asarray(values["task_covs"], dtype=np.float64).reshape(H, packed_size(d))
        return cls(
            np.asarray(values["weights"]),
            unpack(task_covs, d),
            np.asarray(values["noise_vars"]),
            unpack(levels, d),
        )


def _with_covs(like: Hierarchy, task_cov: Array, noise_var: float, level_covs: Array) -> Hierarchy:
    levels = tuple(replace(level, cov=cov) for level, cov in zip(like.levels, level_covs, strict=True))
    return replace(like, task_cov=task_cov, noise_var=noise_var, levels=levels)


class Components(NamedTuple):
    """A mixture of Gaussians.

    Parameters
    ----------
    weights : (H,) array
    means : (H, d) array
    covs : (H, d, d) array
    """

    weights: Array
    means: Array
    covs: Array

    def gaussian(self) -> Gaussian:
        """Return mean and covariance of the mixture."""
        mean = self.weights @ self.means
        deviations = (self.means - mean) * np.sqrt(self.weights)[:, None]
        return Gaussian.trusted(mean, np.tensordot(self.weights, self.covs, 1) + deviations.T @ deviations)

    def quantile(self, phi: ArrayLike, level: float) -> Array:
        """Return the quantile of phi' theta, x with sum_h w_h Phi((x - phi' mean_h) / sd_h) = level, phi (..., d)."""
        direction = np.asarray(phi, dtype=np.float64)
        means = direction @ self.means.T
        variances = np.einsum("...i,hij,...j->...h", direction, self.covs, direction)
        return normal_mixture_quantile(self.weights, means, np.sqrt(np.maximum(variances, 0.0)), level)


def single(gaussian: Gaussian) -> Components:
    """Return a Gaussian as a mixture with one component."""
    return Components(np.ones(1), gaussian.mean[None], gaussian.cov[None])


def normal_mixture_quantile(weights: Array, means: Array, sds: Array, level: float) -> Array:
    """Return the quantile of sum_h w_h N(means[..., h], sds[..., h]^2), by bisection to rounding.

    Exact where the quantile is the point of a component without variance.

    Raises
    ------
    InputError
        The level is not in (0, 1).
    """
    from scipy.special import ndtr, ndtri

    if not 0.0 < level < 1.0:
        raise InputError(f"level={level!r} is not a probability in (0, 1).")
    ends = means + ndtri(level) * sds  # the quantile of a mixture lies between those of its parts
    low, high = ends.min(axis=-1), ends.max(axis=-1)
    rounding = (high - low) * 2.0**-50
    safe = np.where(sds > 0, sds, 1.0)
    for _ in range(60):
        middle = (low + high) / 2
        distance = middle[..., None] - means
        below = np.where(sds > 0, ndtr(distance / safe), distance >= 0) @ weights < level
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    middle = (low + high) / 2
    distance = np.where(sds > 0, np.inf, np.abs(means - middle[..., None]))
    nearest = np.expand_dims(distance.argmin(axis=-1), -1)
    point = np.take_along_axis(np.broadcast_to(means, distance.shape), nearest, axis=-1)[..., 0]
    return np.asarray(np.where(distance.min(axis=-1) <= rounding, point, middle))


def normal_mixture_below(weights: Array, means: Array, sds: Array, at: float = 0.0) -> Array:
    """Return P(x < at) for x ~ sum_h w_h N(means[..., h], sds[..., h]^2); a component without variance is a point.

    ``weights`` are (H,), or (..., H).
    """
    from scipy.special import ndtr

    distance = at - means
    below = np.where(sds > 0, ndtr(distance / np.where(sds > 0, sds, 1.0)), distance > 0)
    return np.asarray(below @ weights if weights.ndim == 1 else (below * weights).sum(axis=-1))


class _Views:
    """Views of a posterior that follow from its central hierarchy, its components and its table."""

    hierarchy: Hierarchy
    moments: Moments

    def central(self) -> Posterior:
        """Return the posterior under the central hierarchy alone."""
        raise NotImplementedError

    def components(self, task: object, *, unseen: Unseen = "prior") -> Components:
        """Return the posterior of one task as a mixture of Gaussians."""
        raise NotImplementedError

    @property
    def dim(self) -> int:
        """Features d."""
        return self.hierarchy.dim

    @property
    def log_evidence(self) -> float:
        """Evidence of the central hierarchy, log p(rewards | phi, hierarchy)."""
        return self.central().log_evidence

    @property
    def central_hierarchy(self) -> Hierarchy:
        """The central hierarchy."""
        return self.hierarchy

    def task_slices(self, width: int) -> Iterator[slice]:
        """Yield slices of tasks that are worked on at once, where each task takes ``width`` numbers."""
        return pieces(len(self.moments.keys), width)

    def lower_bound(self, task: object, phi: ArrayLike, level: float, *, unseen: Unseen = "prior") -> Array:
        """Bound phi' theta from below with probability ``level``, phi (..., d): an exact quantile of the mixture."""
        return self.components(task, unseen=unseen).quantile(phi, 1.0 - level)

    def table(self) -> PosteriorTable:
        """Return the posteriors of all tasks at once."""
        return self._table

    @cached_property
    def _table(self) -> PosteriorTable:
        raise NotImplementedError


class WidenedPosterior(_Views):
    """Posterior of a hierarchy of two levels whose covariances are those of ``plain`` and an addition.

    It has the views of a :class:`Posterior`.

    Attributes
    ----------
    moments : Moments
    hierarchy : Hierarchy
    plain : Posterior
        Without the addition.
    """

    plain: Posterior
    hierarchy: Hierarchy
    moments: Moments

    def __init__(self, plain: Posterior) -> None:
        self.plain = plain
        self.hierarchy = plain.hierarchy
        self.moments = plain.moments

    def _tasks(self, sums: Array) -> Iterator[tuple[Array, Array]]:
        """Yield two statistics of pieces of the tasks, (k, ...) each."""
        raise NotImplementedError

    def _extra(self, first: Array, second: Array) -> Array:
        """Return the addition to the covariances of tasks (k, d, d), from their statistics."""
        raise NotImplementedError

    @property
    def _extra_of_mean(self) -> Array:
        """Addition to the covariance of mu, (d, d)."""
        raise NotImplementedError

    def added(self, vectors: Array) -> Array:
        """Return the addition to the covariance (J, J) of sum_s v_js' theta_s, vectors (J, m, d)."""
        raise NotImplementedError

    @property
    def weights(self) -> Array:
        """Weight of the one hierarchy, [1]."""
        return np.ones(1)

    @property
    def noise_variances(self) -> Array:
        """Noise variance of all rows, (1,)."""
        return self.plain.noise_variances

    def parts(self) -> Iterator[Self]:
        """Yield the posterior under each hierarchy: this one."""
        yield self

    def central(self) -> Posterior:
        """Return the posterior without the addition."""
        return self.plain

    def mixtures(self, vectors: Array, part: slice) -> Iterator[tuple[Array, Array, Array]]:
        """Yield weights (n,), means and variances (n, J) of v' theta_s of the tasks in ``part``: one Gaussian."""
        yield np.ones(len(vectors)), *self.project(vectors, part)

    def project(self, vectors: Array, part: slice) -> tuple[Array, Array]:
        """Return means and variances (n, J) of v' theta_s of the tasks in ``part``, for vectors (n, J, d)."""
        return projected(self._table.means[part], self._table.covs[part], vectors)

    def joint(self, rows: Codes) -> tuple[Array, Array]:
        """Return means (n, d) and covariances (n, d, d) of the tasks at some rows of the moments."""
        return self._table.means[rows], unpack(self._table.covs[rows], self.dim)

    def total(self, vectors: Array) -> tuple[Array, Array]:
        """Return mean (J,) and covariance (J, J) of sum_s v_js' theta_s over all tasks, for vectors (J, m, d)."""
        mean, cov = self.plain.total(vectors)
        return mean, cov + self.added(vectors)

    @cached_property
    def hyper(self) -> Gaussian:
        """Posterior of mu."""
        return _wider(self.plain.hyper, self._extra_of_mean)

    def task(self, task: object, *, unseen: Unseen = "prior") -> Gaussian:
        """Return the posterior of theta of one task; errors as :meth:`Posterior.task`."""
        plain, row = self.plain.task(task, unseen=unseen), self.moments.keys.find(task)
        if row < 0:
            return self.new_task()
        (statistics,) = self._tasks(self.moments.sums[row : row + 1])
        return _wider(plain, self._extra(*statistics)[0])

    def new_task(self, parent: object = None) -> Gaussian:
        """Return the posterior of a task that has no rows."""
        return _wider(self.plain.new_task(parent), self._extra_of_mean)

    def node(self, level: int, node: object) -> Gaussian:
        """Raise InputError: there are no groups here; see :meth:`Posterior.node`."""
        return self.plain.node(level, node)

    def components(self, task: object, *, unseen: Unseen = "prior") -> Components:
        """Return the posterior of a task as a mixture of one Gaussian; see :meth:`MixedPosterior.components`."""
        return single(self.task(task, unseen=unseen))

    @cached_property
    def _table(self) -> PosteriorTable:
        plain, start = self.plain.table(), 0
        covs = np.array(plain.covs)
        for statistics in self._tasks(self.moments.sums):
            extra = pack(self._extra(*statistics))
            covs[start : start + len(extra)] += extra
            start += len(extra)
        return PosteriorTable.joint(plain.keys, plain.means, covs, plain.rows, self.new_task())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({counted(len(self.moments), 'task')}, {counted(self.dim, 'feature')})"


def _wider(plain: Gaussian, extra: Array) -> Gaussian:
    return Gaussian.trusted(plain.mean.copy(), plain.cov + extra)


class MixedPosterior(_Views):
    """Posterior of every task, node and mu under a mixture of hierarchies; made by :func:`mix`.

    It has the views of a :class:`Posterior`; each gives mean and covariance of the mixture.

    Attributes
    ----------
    hierarchy : Hierarchy
        The central one, for uses that take a single hierarchy.
    draws : HyperDraws
    moments : Moments
    """

    moments: Moments

    def __init__(self, moments: Moments, hierarchy: Hierarchy, draws: HyperDraws) -> None:
        self.hierarchy = hierarchy
        self.draws = draws
        self._central = condition(moments, hierarchy)
        self.moments = self._central.moments

    @property
    def weights(self) -> Array:
        """Weights (H,) of the hierarchies."""
        return self.draws.weights

    @property
    def noise_variances(self) -> Array:
        """Noise variance of all rows (1,), averaged over the hierarchies."""
        return np.atleast_1d(self.draws.weights @ self.draws.noise_vars)

    def central(self) -> Posterior:
        """Return the posterior under the central hierarchy, taken as known."""
        return self._central

    def _conditioned(self) -> Iterator[Posterior]:
        for h in range(len(self.draws)):
            yield condition(self.moments, self.draws.hierarchy(h, self.hierarchy))

    def parts(self) -> tuple[Posterior, ...]:
        """Return the posterior under each hierarchy of the mixture, in the order of ``weights``."""
        return self._parts

    @cached_property
    def _parts(self) -> tuple[Posterior, ...]:
        return tuple(self._conditioned())

    def _components(self, view: Callable[[Posterior], Gaussian]) -> Components:
        return _stacked(self.draws.weights, [view(part) for part in self._parts])

    def components(self, task: object, *, unseen: Unseen = "prior") -> Components:
        """Return the posterior of one task as a mixture of Gaussians; errors as :meth:`Posterior.task`."""
        return self._components(lambda part: part.task(task, unseen=unseen))

    def new_task_components(self, parent: object = None, **known: Any) -> Components:
        """Return the posterior of a task without rows as a mixture of Gaussians."""
        return self._components(lambda part: part.new_task(parent, **known))

    @cached_property
    def hyper_components(self) -> Components:
        """The posterior of mu as a mixture of Gaussians."""
        return self._components(lambda part: part.hyper)

    @property
    def hyper(self) -> Gaussian:
        """Mean and covariance of mu."""
        return self.hyper_components.gaussian()

    def task(self, task: object, *, unseen: Unseen = "prior") -> Gaussian:
        """Return mean and covariance of theta of one task; errors as :meth:`Posterior.task`."""
        return self.components(task, unseen=unseen).gaussian()

    def new_task(self, parent: object = None, **known: Any) -> Gaussian:
        """Return mean and covariance of a task without rows; parameters as :meth:`Posterior.new_task`."""
        return self.new_task_components(parent, **known).gaussian()

    def node(self, level: int, node: object) -> Gaussian:
        """Return mean and covariance of a group; errors as :meth:`Posterior.node`."""
        return self._components(lambda part: part.node(level, node)).gaussian()

    def cov_between(self, first: object, second: object) -> Array:
        """Return cov(theta_first, theta_second | log), shape (d, d)."""
        w, deviations = self.draws.weights, []
        for task in (first, second):
            means = np.array([part.task(task, unseen="error").mean for part in self._parts])
            deviations.append(means - w @ means)
        covs = np.array([part.cov_between(first, second) for part in self._parts])
        cov: Array = np.tensordot(w, covs, 1) + (deviations[0] * w[:, None]).T @ deviations[1]
        return cov

    @cached_property
    def _table(self) -> PosteriorTable:
        rows, columns = triangle(self.dim)
        centre = self._central.table().means  # squares of differences do not lose precision
        mean, covs, squares = np.zeros_like(centre), *np.zeros((2, len(centre), rows.size))
        priors: list[Gaussian] = []
        for weight, part in zip(self.draws.weights, self._conditioned(), strict=True):  # tables are not kept
            table = part.table()
            deviations = table.means - centre
            mean += weight * deviations
            covs += weight * table.covs
            squares += weight * deviations[:, rows] * deviations[:, columns]
            priors.append(table.prior)
        covs += squares - mean[:, rows] * mean[:, columns]
        prior = _stacked(self.draws.weights, priors).gaussian()
        return PosteriorTable.joint(self.moments.keys, centre + mean, covs, self.moments.rows, prior)

    def __repr__(self) -> str:
        size = f"{counted(len(self.moments), 'task')}, {counted(self.dim, 'feature')}"
        return f"MixedPosterior({size}, {len(self.draws)} hierarchies)"


def _stacked(weights: Array, gaussians: list[Gaussian]) -> Components:
    return Components(
        weights,
        np.array([gaussian.mean for gaussian in gaussians]),
        np.array([gaussian.cov for gaussian in gaussians]),
    )


def mix(moments: Moments, hierarchy: Hierarchy, draws: HyperDraws) -> MixedPosterior:
    """Condition every hierarchy of a mixture on the log; ``hierarchy`` is the central one.

    Raises
    ------
    MismatchError
        Dimensions or the numbers of levels differ.
    """
    if draws.task_covs.shape[-1] != hierarchy.dim or draws.level_covs.shape[1] != len(hierarchy.levels):
        raise MismatchError(
            f"Draws of dimension {draws.task_covs.shape[-1]} with {draws.level_covs.shape[1]} levels do not fit a "
            f"hierarchy of dimension {hierarchy.dim} with {len(hierarchy.levels)}."
        )
    return MixedPosterior(moments, hierarchy, draws)


def prior_scales(moments: Moments) -> tuple[float, Array]:
    """Return the scales of weak priors.

    Returns
    -------
    s2 : float
        Residual variance of one least-squares fit to all rows, in squared reward units.
    scale : (d,) array
        s over the root mean square of each feature, in units of theta.
    """
    s2 = about_fit(moments)
    gram = unpack(moments.sums.sum(axis=0), moments.dim)
    return s2, np.sqrt(s2 * moments.n_rows) / sizes(gram)
