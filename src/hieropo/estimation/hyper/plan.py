"""Choose how the uncertainty of an estimated hierarchy is carried into posteriors."""

from typing import Literal, NamedTuple

import numpy as np

from hieropo._utils.arrays import Array
from hieropo._utils.packed import packed_size
from hieropo._utils.text import counted
from hieropo.errors import InputError, warn
from hieropo.estimation.hyper.corrected import hyper_error
from hieropo.estimation.hyper.draws import Freedom, parametrise
from hieropo.estimation.hyper.importance import MOST_VARIABLES
from hieropo.estimation.hyper.profile_intervals import noise_degrees
from hieropo.estimation.reml import Estimate, TaskCov
from hieropo.moments.spread import about_fit, about_mean
from hieropo.moments.statistics import Moments

Uncertainty = Literal["auto", "integrated", "first-order", "plug-in"]
Method = Literal["integrated", "first-order", "plug-in"]

_FEW = 300  # tasks up to which the hierarchy is integrated, whatever it costs
_WORK = 100_000  # tasks times squared features up to which that costs a second or two
_OPEN = 4.0  # standard errors above zero below which a variance is open; see _chosen
_COSTLY = 10_000  # tasks of a tree, for which there is no first order, up to which it is integrated
_NOTHING = 2e-13  # share of the variance of rewards that is rounding
_TOLD = 2.0  # squares that show the noise, below which its log has a standard error above 1


class Plan(NamedTuple):
    """A way to carry the uncertainty of a hierarchy.

    Parameters
    ----------
    method : {"integrated", "first-order", "plug-in"}
    why : str
        Why this method, in words.
    freedom : Freedom
        What draws range over.
    noise_told : bool
        Whether the log tells the noise from differences between tasks.
    """

    method: Method
    why: str
    freedom: Freedom = "sds"
    noise_told: bool = True


_UNTOLD = (
    "This log does not tell the noise of rewards from differences between tasks: tasks have too few rows of one and "
    "the same action and context, so that other splits of the variance of rewards fit as well. Intervals "
    "would not hold, and none is given; lower bounds rest on an assumed noise. Log several rows of an action in some "
    "tasks, or hand in a hierarchy that is known: known=Hierarchy(...)."
)


def plan(
    moments: Moments, found: Estimate, task_cov: TaskCov | str | Array, uncertainty: Uncertainty
) -> Plan:
    """Choose how the uncertainty of an estimate is carried; parameters and errors as of :func:`uncertainty.learn`.

    Warns
    -----
    HieropoWarning
        The log does not tell the noise from differences between tasks; the uncertainty of a large tree is not carried.
    """
    active = int(np.count_nonzero(moments.rows))
    known = _why_known(moments, uncertainty)
    if known:
        return Plan("plug-in", known)
    freedom, parameters = _freedom(moments, found, task_cov)
    if uncertainty == "integrated" and parameters > MOST_VARIABLES:
        raise InputError(
            f"{parameters} parameters are free; at most {MOST_VARIABLES} can be integrated. Use "
            "uncertainty='first-order', or task_cov='isotropic'."
        )
    if not _noise_is_told(moments, found, task_cov):
        return _untold(moments, found, uncertainty, freedom, parameters)
    if uncertainty == "auto":
        return _chosen(moments, found, task_cov, freedom, parameters)
    if uncertainty == "first-order":
        return Plan("first-order", "asked for")
    why = f"asked for: {counted(active, 'task')}, {counted(parameters, 'free parameter')}"
    return Plan("integrated", why, freedom)


def _why_known(moments: Moments, uncertainty: Uncertainty) -> str:
    """Say why the estimate is taken as known, or "" where it is not."""
    if uncertainty == "plug-in":
        return "asked for: the estimate is taken as known"
    if np.count_nonzero(moments.rows) == 1:
        return "one task: how tasks differ cannot be learned, and is taken as not at all"
    if _explained(moments):
        return "one coefficient vector explains all rewards of all tasks: nothing is left open"
    return ""


def _explained(moments: Moments) -> bool:
    spread = about_mean(moments)
    return spread == 0 or about_fit(moments) <= _NOTHING * spread


def given_shape(task_cov: TaskCov | str | Array) -> Array | None:
    """Return the matrix that the covariance of tasks is a multiple of, where one was given."""
    return None if isinstance(task_cov, str) else np.asarray(task_cov, dtype=np.float64)


def _noise_is_told(moments: Moments, found: Estimate, task_cov: TaskCov | str | Array) -> bool:
    """Return whether some squares show the noise: those of rows beyond what features can fit in a task are enough."""
    if np.maximum(moments.rows - moments.dim, 0).sum() >= _TOLD:
        return True
    return noise_degrees(moments, found, given_shape(task_cov)) >= _TOLD


def _untold(
    moments: Moments, found: Estimate, uncertainty: Uncertainty, freedom: Freedom, parameters: int
) -> Plan:
    """Plan for noise that the log does not tell: draws range over all splits, or the estimate is one of them."""
    warn(_UNTOLD)
    why = "noise and differences between tasks are not told apart by this log: no interval is given"
    if uncertainty != "first-order" and parameters <= MOST_VARIABLES and _is_small(moments, found):
        return Plan("integrated", why, freedom, noise_told=False)
    return Plan("plug-in", why, noise_told=False)


def _is_small(moments: Moments, found: Estimate) -> bool:
    active = int(np.count_nonzero(moments.rows))
    most = _COSTLY if _is_tree(found) else max(_FEW, _WORK // moments.dim**2)
    return active <= most


def _is_tree(found: Estimate) -> bool:
    return bool(found.hierarchy.levels) or found.hierarchy.metadata is not None


def _chosen(
    moments: Moments, found: Estimate, task_cov: TaskCov | str | Array, freedom: Freedom, parameters: int
) -> Plan:
    """Choose for "auto".

    The first order gives a new task the estimated variance v; to second order a 95 % normal interval then covers .14
    (standard error of v / v)^2 too little: one point where v is 4 standard errors above zero.
    """
    active, tree, small = int(np.count_nonzero(moments.rows)), _is_tree(found), parameters <= MOST_VARIABLES
    why = f"{counted(active, 'task')}, {counted(parameters, 'free parameter')}"
    if small and active <= (_COSTLY if tree else _FEW):
        return Plan("integrated", f"{why}: few enough to integrate", freedom)
    if not tree:
        if small and _is_small(moments, found) and _is_open(moments, found, task_cov):
            return Plan("integrated", f"{why}: the log leaves a variance between tasks open", freedom)
        return Plan("first-order", f"{why}: many, or too many to integrate")
    warn(
        f"The uncertainty of the hierarchy is not carried into the posteriors: a tree of {why} is too much to "
        "integrate, and intervals are somewhat too narrow where a level has few nodes."
    )
    return Plan("plug-in", f"a tree of {why}: too much to integrate")


def _is_open(moments: Moments, found: Estimate, task_cov: TaskCov | str | Array) -> bool:
    at = [packed_size(j + 1) - 1 for j in range(moments.dim)]
    errors = np.sqrt(np.diagonal(hyper_error(moments, found, given_shape(task_cov)).of_entries)[at])
    ratio = np.diagonal(found.hierarchy.task_cov) / found.hierarchy.noise_var
    return bool((ratio < _OPEN * errors).any())


def _freedom(moments: Moments, found: Estimate, task_cov: TaskCov | str | Array) -> tuple[Freedom, int]:
    """The richest parametrisation that is small enough, and its size."""
    shape = found.chosen.shape
    richest: tuple[Freedom, ...] = ("sds",)
    if isinstance(task_cov, str) and (task_cov == "full" or shape == "full"):
        richest = ("full", "sds")
    if isinstance(task_cov, str) and task_cov == "auto":
        richest = ("full", "sds")
    if shape == "isotropic":
        richest = ("isotropic",)
    if shape == "scaled":
        richest = ("scale",)
    sizes = [(each, parametrise(moments, found.hierarchy, each).start.size) for each in richest]
    if found.hierarchy.levels:
        sizes.append(("scale", parametrise(moments, found.hierarchy, "scale").start.size))
    return next((pair for pair in sizes if pair[1] <= MOST_VARIABLES), sizes[-1])
