"""The interface that all posteriors share, so that evaluation never asks of which kind one is.

A posterior is a mixture over H hierarchies with weights w_h, H = 1 where the hierarchy is taken as known. Under each
hierarchy the coefficients of all tasks are jointly Gaussian: :class:`GaussianPart` gives that Gaussian in three views,
sums over tasks, projections within tasks, and all coefficients of a task.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from hieropo._utils.arrays import Array, Codes


class ParentMessages(NamedTuple):
    """The evidence of some tasks about their parents, and the posterior of these parents given all tasks.

    Parameters
    ----------
    rows : (n, q) array
        Packed messages (P, b) of the tasks to their parents, as :func:`hieropo.model.steps.up` gives them.
    means : (n, d) array
        Posterior means of the parents.
    roots : (n, d, r) array
        Square roots of the posterior covariances of the parents.
    """

    rows: Array
    means: Array
    roots: Array


class GaussianPart(Protocol):
    """The joint Gaussian of the coefficients of all tasks, under one hierarchy.

    Under a mixture of spreads it has the mean and covariance of the posterior, which in each task is a mixture.
    """

    def total(self, vectors: Array) -> tuple[Array, Array]:
        """Return mean (J,) and covariance (J, J) of sum_s v_js' theta_s over all tasks, for vectors (J, m, d)."""
        ...

    def project(self, vectors: Array, part: slice) -> tuple[Array, Array]:
        """Return means and variances (n, J) of v' theta_s of the tasks in ``part``, for vectors (n, J, d)."""
        ...

    def mixtures(self, vectors: Array, part: slice) -> Iterator[tuple[Array, Array, Array]]:
        """Yield weights (n,), means and variances (n, J) of the Gaussians whose mixture v' theta_s is, v (n, J, d)."""
        ...

    def joint(self, rows: Codes) -> tuple[Array, Array]:
        """Return means (n, d) and covariances (n, d, d) of the tasks at some rows of the moments, ascending."""
        ...

    def means(self, part: slice) -> Array:
        """Return the means (n, d) of the tasks in ``part``."""
        ...

    def prior_mean(self, row: int) -> Array:
        """Return the mean (d,) of the task at a row of the moments, were all rewards of the log 0."""
        ...

    def across(self, row: int, vectors: Array, others: Array, part: slice) -> Array:
        """Return cov(v_j' theta_row, w_zl' theta_z | log) (J, n, L) for the tasks z in ``part``.

        ``vectors`` v are (J, d) and ``others`` w are (n, L, d).
        """
        ...


class TaskPosterior(Protocol):
    """Posterior of the coefficients theta_s in R^d of m tasks."""

    moments: Any
    hierarchy: Any

    @property
    def dim(self) -> int:
        """The number of features d."""
        ...

    @property
    def weights(self) -> Array:
        """The weights (H,) of the hierarchies, in the order of :meth:`parts`."""
        ...

    @property
    def noise_variances(self) -> Array:
        """The noise variances of the actions (K,), or of all rows (1,), averaged over the hierarchies."""
        ...

    @property
    def central_hierarchy(self) -> Any:
        """The one hierarchy that represents the mixture."""
        ...

    def parts(self) -> Iterable[GaussianPart]:
        """Return the posterior under each hierarchy."""
        ...

    def central(self) -> "SinglePosterior":
        """Return the posterior under the central hierarchy, taken as known."""
        ...

    def task_slices(self, width: int) -> Iterator[slice]:
        """Yield slices of tasks that are worked on at once, where each task takes ``width`` numbers."""
        ...

    def table(self) -> Any:
        """Return the posteriors of all tasks, or of all blocks of tasks and actions, as a table."""
        ...


class SinglePosterior(TaskPosterior, Protocol):
    """Posterior under one hierarchy that is taken as known, in which leaving a row or a task out is exact."""

    def parent_messages(self, step: int) -> Iterator[tuple[slice, ParentMessages]]:
        """Yield the messages of all tasks to their parents, ``step`` tasks at a time."""
        ...
