"""Learn a hierarchy, and carry what the log leaves open about it into everything that is said of tasks.

``learn`` decides how: by a mixture of hierarchies drawn from their posterior (:mod:`hyper_draws`) where tasks are few,
by a first-order correction (:mod:`corrected`) where they are many, or not at all. What comes out is a value, the doubt,
from which :func:`condition_with` makes the same posterior again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from hieropo.core.corrected import CorrectedPosterior, HyperError, correct, hyper_error
from hieropo.core.estimation import Estimate, TaskCov, estimate
from hieropo.core.gaussian import Array
from hieropo.core.hierarchy import Hierarchy
from hieropo.core.hyper_draws import Freedom, draw_hierarchies, parametrise
from hieropo.core.hyper_intervals import HyperInterval, draw_intervals, error_intervals, mean_intervals
from hieropo.core.importance import MOST_VARIABLES, Diagnosis
from hieropo.core.mixed import (
    HyperDraws,
    MixedPosterior,
    mix,
    single,
)
from hieropo.core.packed import packed_size
from hieropo.core.posterior import Posterior, condition
from hieropo.core.sampled import SampledPosterior
from hieropo.core.spread import about_fit, about_mean
from hieropo.core.statistics import Moments
from hieropo.errors import InputError, warn
from hieropo.text import counted

Uncertainty = Literal["auto", "integrated", "first-order", "plug-in"]
Method = Literal["integrated", "first-order", "plug-in"]
Doubt = HyperDraws | HyperError | None
AnyPosterior = Posterior | MixedPosterior | CorrectedPosterior | SampledPosterior

_FEW = 300  # tasks up to which the hierarchy is integrated, whatever it costs
_WORK = 100_000  # tasks times squared features up to which that costs a second or two
_OPEN = 4.0  # standard errors above zero below which a variance is open; see _chosen
_SAMPLED = "rows were kept by chance: the estimate is taken as known, and standard errors are robust"
_COSTLY = 10_000  # tasks of a tree, for which there is no first order, up to which it is integrated
_NOTHING = 2e-13  # share of the variance of rewards that is rounding


@dataclass(frozen=True, eq=False)
class Learned:
    """A hierarchy with what is not known of it; made by :func:`learn`.

    Attributes
    ----------
    moments : Moments
    estimate : Estimate
    hierarchy : Hierarchy
        The central one. For "plug-in" and "first-order" the estimate. For "integrated" that of the posterior means of
        all covariances and of noise_var, because a new task's covariance is linear in them: plugged in, it comes near
        to what the mixture says, and no variance is zero where the estimate is.
    doubt : HyperDraws, HyperError or None
        What :func:`condition_with` needs besides.
    method : {"integrated", "first-order", "plug-in"}
    why : str
        Why this method, in words.
    diagnosis : Diagnosis or None
        How good the draws are, for "integrated".
    """

    moments: Moments
    estimate: Estimate
    hierarchy: Hierarchy
    doubt: Doubt
    method: Method
    why: str
    diagnosis: Diagnosis | None = None

    @cached_property
    def posterior(self) -> AnyPosterior:
        """The posterior of every task, node and mu, with the uncertainty carried along."""
        return condition_with(self.moments, self.hierarchy, self.doubt)

    def hyper_intervals(self, level: float = 0.95) -> tuple[HyperInterval, ...]:
        """Return intervals for the noise sd, the sds between tasks (and nodes), correlations and population means.

        Equal-tailed. For "first-order" normal ones, on the scale of logs for sds that are well above zero and of
        Fisher's z for correlations. Correlations that are held are left out, as is, for "plug-in", all but the means.

        Parameters
        ----------
        level : float
            Share in (0, 1) that an interval holds.
        """
        if not 0.0 < level < 1.0:
            raise InputError(f"level={level!r} is not a probability in (0, 1).")
        if isinstance(self.posterior, MixedPosterior):
            means = mean_intervals(self.posterior.hyper_components, self.moments.dim, level)
        else:
            means = mean_intervals(single(self.posterior.hyper), self.moments.dim, level)
        if isinstance(self.doubt, HyperDraws):
            return (*draw_intervals(self.doubt, self.hierarchy, level), *means)
        if isinstance(self.doubt, HyperError):
            return (*error_intervals(self.doubt, self.hierarchy, level), *means)
        return tuple(means)


def learn(
    moments: Moments,
    task_cov: TaskCov | Literal["block"] | NDArray[Any] = "auto",
    *,
    uncertainty: Uncertainty = "auto",
    blocks: int | None = None,
    estimated: Estimate | None = None,
) -> Learned:
    """Learn the hierarchy by REML, and how far it is known.

    Parameters
    ----------
    moments : Moments
    task_cov, blocks
        As :func:`estimation.estimate`. With "auto" and few tasks the draws range over full covariances where those have
        few enough entries, whatever shape the estimate has: ten tasks do not show that a correlation is zero.
    uncertainty : {"auto", "integrated", "first-order", "plug-in"}
        "auto" integrates where at most 24 parameters are free and the log has at most 300 tasks with rows, or leaves a
        variance between tasks open and is not large (tasks times squared features at most 100,000), or is of a tree
        with at most 10,000 tasks. Else it corrects to first order.
    estimated : Estimate, optional
        An estimate made already, from the same moments, of a tree or with metadata too.

    Raises
    ------
    InputError
        "first-order" with a tree or with metadata; more free parameters than can be integrated.
    LogError, NumericalError
        As :func:`estimation.estimate`.

    Warns
    -----
    HieropoWarning
        As :func:`estimation.estimate`; where few tasks ask for the hierarchy to be integrated, but the draws are bad;
        where the uncertainty of a large tree is not carried along.
    """
    if uncertainty not in get_args(Uncertainty):
        raise InputError(
            f"uncertainty={uncertainty!r}; one of {', '.join(map(repr, get_args(Uncertainty)))} is needed."
        )
    found = estimate(moments, task_cov, blocks=blocks) if estimated is None else estimated
    if moments.squares is not None:
        return Learned(moments, found, found.hierarchy, None, "plug-in", _SAMPLED)
    plan = _plan(moments, found, task_cov, uncertainty)
    if plan.method == "integrated":
        return _integrated(moments, found, task_cov, plan, fall_back=uncertainty == "auto")
    if plan.method == "first-order":
        return _first_order(moments, found, task_cov, plan.why)
    return Learned(moments, found, found.hierarchy, None, "plug-in", plan.why)


def condition_with(moments: Moments, hierarchy: Hierarchy, doubt: Doubt) -> AnyPosterior:
    """Condition a hierarchy on the log and carry along what is not known of it.

    A pure function: the same arguments give the same posterior to the last bit.

    Parameters
    ----------
    moments : Moments
        Those that ``doubt`` was made from, or with rows added since: the doubt stays as it was learned.
    hierarchy : Hierarchy
        The central one.
    doubt : HyperDraws, HyperError or None
        None takes ``hierarchy`` as known, as is done for rows with sampling weights.

    Raises
    ------
    MismatchError
        Dimensions or levels differ.
    InputError
        Rows have sampling weights, and the hierarchy levels or metadata.
    """
    if moments.squares is not None:
        return SampledPosterior(moments, hierarchy)
    if isinstance(doubt, HyperDraws):
        return mix(moments, hierarchy, doubt)
    if isinstance(doubt, HyperError):
        return correct(moments, hierarchy, doubt)
    return condition(moments, hierarchy)


def doubt_to_dict(doubt: Doubt) -> dict[str, Any] | None:
    """Return JSON's types, from which :func:`doubt_from_dict` makes the same value to the last bit."""
    return None if doubt is None else doubt.to_dict()


def doubt_from_dict(values: Mapping[str, Any] | None) -> Doubt:
    """Read what :func:`doubt_to_dict` wrote.

    Raises
    ------
    InputError
        Of a kind that this release does not know.
    """
    if values is None:
        return None
    kind = values.get("kind")
    if kind == "hyper-draws":
        return HyperDraws.from_dict(values)
    if kind == "hyper-error":
        return HyperError.from_dict(values)
    raise InputError(f"A doubt of kind {kind!r} is not known; 'hyper-draws' and 'hyper-error' are.")


class _Plan(NamedTuple):
    method: Method
    why: str
    freedom: Freedom = "sds"


def _plan(
    moments: Moments, found: Estimate, task_cov: TaskCov | str | Array, uncertainty: Uncertainty
) -> _Plan:
    active = int(np.count_nonzero(moments.rows))
    if uncertainty == "plug-in":
        return _Plan("plug-in", "asked for: the estimate is taken as known")
    if active == 1:
        return _Plan("plug-in", "one task: how tasks differ cannot be learned, and is taken as not at all")
    if _explained(moments):
        return _Plan(
            "plug-in", "one coefficient vector explains all rewards of all tasks: nothing is left open"
        )
    if uncertainty == "first-order":
        return _Plan("first-order", "asked for")
    freedom, parameters = _freedom(moments, found, task_cov)
    why = f"{counted(active, 'task')}, {counted(parameters, 'free parameter')}"
    if uncertainty == "auto":
        return _chosen(moments, found, task_cov, freedom, parameters)
    if parameters > MOST_VARIABLES:
        raise InputError(
            f"{parameters} parameters are free; at most {MOST_VARIABLES} can be integrated. Use "
            "uncertainty='first-order', or task_cov='isotropic'."
        )
    return _Plan("integrated", f"asked for: {why}", freedom)


def _explained(moments: Moments) -> bool:
    spread = about_mean(moments)
    return spread == 0 or about_fit(moments) <= _NOTHING * spread


def _chosen(
    moments: Moments, found: Estimate, task_cov: TaskCov | str | Array, freedom: Freedom, parameters: int
) -> _Plan:
    """What "auto" does.

    The first order gives a new task the estimated variance v; to second order a 95 % normal interval then covers .14
    (standard error of v / v)^2 too little: one point where v is 4 standard errors above zero.
    """
    active = int(np.count_nonzero(moments.rows))
    tree = bool(found.hierarchy.levels) or found.hierarchy.metadata is not None
    why, small = (
        f"{counted(active, 'task')}, {counted(parameters, 'free parameter')}",
        parameters <= MOST_VARIABLES,
    )
    if small and active <= (_COSTLY if tree else _FEW):
        return _Plan("integrated", f"{why}: few enough to integrate", freedom)
    if not tree:
        if small and active * moments.dim**2 <= _WORK and _is_open(moments, found, task_cov):
            return _Plan("integrated", f"{why}: the log leaves a variance between tasks open", freedom)
        return _Plan("first-order", f"{why}: many, or too many to integrate")
    warn(
        f"The uncertainty of the hierarchy is not carried into the posteriors: a tree of {why} is too much to "
        "integrate, and intervals are somewhat too narrow where a level has few nodes."
    )
    return _Plan("plug-in", f"a tree of {why}: too much to integrate")


def _is_open(moments: Moments, found: Estimate, task_cov: TaskCov | str | Array) -> bool:
    at = [packed_size(j + 1) - 1 for j in range(moments.dim)]
    errors = np.sqrt(np.diagonal(_error(moments, found, task_cov).of_entries)[at])
    ratio = np.diagonal(found.hierarchy.task_cov) / found.hierarchy.noise_var
    return bool((ratio < _OPEN * errors).any())


def _error(moments: Moments, found: Estimate, task_cov: TaskCov | str | Array) -> HyperError:
    return hyper_error(
        moments, found, None if isinstance(task_cov, str) else np.asarray(task_cov, dtype=np.float64)
    )


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


def _integrated(
    moments: Moments, found: Estimate, task_cov: TaskCov | str | Array, plan: _Plan, *, fall_back: bool
) -> Learned:
    draws, diagnosis = draw_hierarchies(moments, found.hierarchy, plan.freedom)
    if diagnosis.good:
        return _learned(moments, found, draws, plan.why, diagnosis)
    bad = (
        f"The hierarchy is uncertain, with {counted(int(np.count_nonzero(moments.rows)), 'task')}, and draws from its "
        f"posterior are bad: {diagnosis.effective:.0f} of {diagnosis.points} count, tail {diagnosis.tail:.2f}."
    )
    if fall_back and found.expected_curvature is not None:
        warn(f"{bad} Its error is carried to first order instead; intervals may be too narrow.")
        return _first_order(moments, found, task_cov, f"{plan.why}; but draws are bad")
    warn(f"{bad} Intervals may be off. A simpler task_cov, such as 'isotropic', has less to draw.")
    return _learned(moments, found, draws, f"{plan.why}; but draws are bad", diagnosis)


def _learned(moments: Moments, found: Estimate, draws: HyperDraws, why: str, diagnosis: Diagnosis) -> Learned:
    central = draws.mean(found.hierarchy)
    return Learned(moments, found, central, draws, "integrated", why, diagnosis)


def _first_order(moments: Moments, found: Estimate, task_cov: TaskCov | str | Array, why: str) -> Learned:
    if found.hierarchy.levels or found.hierarchy.metadata is not None:
        raise InputError(
            "The first-order correction is for two levels without metadata; use uncertainty='integrated'."
        )
    error = _error(moments, found, task_cov)
    return Learned(moments, found, found.hierarchy, error, "first-order", why)
