"""Noise variances that differ between tasks: rows of a task have a precision of their own.

The reward of a row of task s and action a has the noise variance sigma_a^2 t_s. With lambda_s = E[1 / t_s | log] a row
of the task is one of precision lambda_s, so that a posterior takes the sums of the task times lambda_s.
"""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.brief import brief
from hieropo.errors import InputError
from hieropo.model.crossed.hierarchy import typical_noise
from hieropo.model.gaussian import frozen
from hieropo.moments.statistics import Moments
from hieropo.rows.keys import Keys


@dataclass(frozen=True, slots=True, eq=False)
class TaskNoise:
    """Precisions of the rows of each task, in units of a common one.

    Parameters
    ----------
    tasks : Keys
        The m tasks of the log.
    precision : (m,) array
        lambda_s = E[1 / t_s | log]; 1 for a task whose rows do not tell their noise, and for all other tasks.
    degrees : float
        d_0 of the law of the precisions, 1 / t_s ~ Gamma(d_0 / 2, d_0 / 2), averaged over its posterior: tasks are as
        alike as if each had d_0 rows of the common noise.
    mean_variance : float
        Mean of 1 / lambda_s over the rows of the log.

    Raises
    ------
    InputError
        A precision is not positive, or there is not one for each task.
    """

    tasks: Keys
    precision: Array
    degrees: float
    mean_variance: float

    __repr__ = brief

    def __post_init__(self) -> None:
        precision = frozen(self.precision)
        if precision.shape != (len(self.tasks),) or not (np.isfinite(precision) & (precision > 0)).all():
            raise InputError(
                f"Precisions of shape {precision.shape} do not fit {len(self.tasks)} tasks, or are not positive: one "
                "positive finite number is needed for each task, since sums of its rows are multiplied by it."
            )
        object.__setattr__(self, "precision", precision)

    @classmethod
    def of_log(cls, moments: Moments, precision: Array, degrees: float) -> Self:
        """Return the noise of the tasks of a log, with their precisions (m,)."""
        rows = moments.rows.reshape(len(moments), -1).sum(axis=1)
        return cls(moments.keys, precision, degrees, float(rows @ (1.0 / precision) / rows.sum()))

    def of(self, keys: Keys) -> Array:
        """Return the precisions (n,) of the rows of some tasks; 1 for tasks that are not in the log."""
        place = self.tasks.locate(keys.values)
        return np.where(place < 0, 1.0, self.precision[place])

    def weighted(self, moments: Moments) -> Moments:
        """Return the moments of the same rows, each of the precision of its task besides its own."""
        factor = self.of(moments.keys).reshape(-1, *[1] * (moments.rows.ndim - 1))
        return replace(
            moments,
            sums=moments.sums * factor[..., None],
            log_precision=moments.log_precision + moments.rows * np.log(factor),
        )


def noise_variance(posterior: Any) -> float:
    """Return the noise variance of a reward, averaged over tasks and over actions whose noise is known."""
    return mean_noise(posterior.noise_variances, getattr(posterior.hierarchy, "task_noise", None))


def mean_noise(noise_var: Array, noise: TaskNoise | None) -> float:
    """Return the same from the noise variances of actions (K,), or of all rows (1,), and the noise of tasks."""
    return typical_noise(noise_var) * (1.0 if noise is None else noise.mean_variance)


def moments_of_log(posterior: Any) -> Any:
    """Return the moments of the rows as they are in the log, none of them of the precision of its task."""
    return getattr(posterior, "log_moments", posterior.moments)


def row_precision(posterior: Any, task: Codes, precision: Array | None) -> Array | None:
    """Return the precisions (n,) of rows as a posterior was made of them; None is 1.

    Parameters
    ----------
    posterior : TaskPosterior
    task : (n,) int array
        Rows of the tasks in ``posterior.moments``.
    precision : (n,) array or None
        Known precisions of the rows themselves.
    """
    of_task = getattr(posterior, "task_precision", None)
    if of_task is None:
        return precision
    return np.asarray(of_task[task] if precision is None else of_task[task] * precision)
