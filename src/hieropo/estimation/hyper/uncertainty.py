"""A learned hierarchy and its uncertainty, as values, and the posterior that they give.

``learn`` chooses how the uncertainty enters posteriors: by a mixture of hierarchies drawn from their posterior
(:mod:`draws`) where tasks are few, by a first-order correction (:mod:`corrected`) where they are many, or not at all.
The uncertainty is a value, from which :func:`condition_with` makes the same posterior again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array
from hieropo._utils.packed import packed_size
from hieropo._utils.text import counted
from hieropo.errors import InputError, warn
from hieropo.estimation.hyper.corrected import HyperError, SampledPosterior, correct, hyper_error
from hieropo.estimation.hyper.draws import Freedom, LevelAxis, draw_hierarchies, parametrise
from hieropo.estimation.hyper.importance import MOST_VARIABLES, Diagnosis
from hieropo.estimation.hyper.intervals import (
    HyperInterval,
    draw_intervals,
    error_intervals,
    mean_intervals,
    with_ends,
)
from hieropo.estimation.hyper.mixed import (
    HyperDraws,
    MixedPosterior,
    WidenedPosterior,
    mix,
    single,
)
from hieropo.estimation.hyper.profile_intervals import noise_degrees, noise_trend, profile_intervals
from hieropo.estimation.reml import Estimate, TaskCov, estimate
from hieropo.model.hierarchy import Hierarchy
from hieropo.model.in_shards import PosteriorInShards
from hieropo.model.posterior import Posterior, condition, condition_in_shards
from hieropo.moments.in_shards import AnyMoments, MomentsInShards
from hieropo.moments.spread import about_fit, about_mean
from hieropo.moments.statistics import Moments

Uncertainty = Literal["auto", "integrated", "first-order", "plug-in"]
Method = Literal["integrated", "first-order", "plug-in"]

_FEW_TASKS = 300  # up to which the hierarchy is always integrated
_MAX_WORK = 100_000  # tasks times squared features up to which integration takes a second or two
_MIN_STANDARD_ERRORS = 4.0  # of a variance from zero, below which it is uncertain; see _chosen
_MAX_TREE_TASKS = 10_000  # up to which a tree, for which there is no first order, is integrated
_ROUNDING = 2e-13  # share of the variance of rewards that is rounding
_MIN_NOISE_DEGREES = 2.0  # with fewer, log sigma^2 has a standard error above 1


class Plan(NamedTuple):
    """The way in which the uncertainty of a hierarchy enters posteriors.

    Parameters
    ----------
    method : {"integrated", "first-order", "plug-in"}
    why : str
        The reason for this method, in words.
    freedom : Freedom
        The parameters that are drawn.
    noise_identified : bool
        True where the log identifies the noise apart from differences between tasks.
    """

    method: Method
    why: str
    freedom: Freedom = "sds"
    noise_identified: bool = True


_NOISE_NOT_IDENTIFIED = (
    "This log does not identify the noise of rewards apart from differences between tasks: tasks have too few rows "
    "of one and the same action and context, so that other splits of the variance of rewards fit as well. Intervals "
    "would not hold, and none is given; lower bounds rest on an assumed noise. Log several rows of an action in "
    "some tasks, or hand in a hierarchy that is known: known=Hierarchy(...)."
)


def plan(
    moments: Moments, fitted: Estimate, task_cov: TaskCov | str | Array, uncertainty: Uncertainty
) -> Plan:
    """Return the plan for the uncertainty of an estimate; parameters and errors as of :func:`uncertainty.learn`.

    Warns
    -----
    HieropoWarning
        The log does not identify the noise apart from differences between tasks; the uncertainty of a large tree is
        left out.
    """
    active = int(np.count_nonzero(moments.rows))
    reason = _reason_if_known(moments, uncertainty)
    if reason:
        return Plan("plug-in", reason)
    freedom, parameters = _freedom(moments, fitted, task_cov)
    if uncertainty == "integrated" and parameters > MOST_VARIABLES:
        raise InputError(
            f"{parameters} parameters are free; at most {MOST_VARIABLES} can be integrated. Use "
            "uncertainty='first-order', or task_cov='isotropic'."
        )
    if not _noise_is_identified(moments, fitted, task_cov):
        return _plan_without_noise(moments, fitted, uncertainty, freedom, parameters)
    if uncertainty == "auto":
        return _chosen(moments, fitted, task_cov, freedom, parameters)
    if uncertainty == "first-order":
        return Plan("first-order", "asked for")
    why = f"asked for: {counted(active, 'task')}, {counted(parameters, 'free parameter')}"
    return Plan("integrated", why, freedom)


def _reason_if_known(moments: Moments, uncertainty: Uncertainty) -> str:
    """Return the reason why the estimate is taken as known; "" where it is not."""
    if uncertainty == "plug-in":
        return "asked for: the estimate is taken as known"
    if np.count_nonzero(moments.rows) == 1:
        return "one task: how tasks differ cannot be learned, and is taken as not at all"
    if _fits_exactly(moments):
        return "one coefficient vector explains all rewards of all tasks: nothing is uncertain"
    return ""


def _fits_exactly(moments: Moments) -> bool:
    spread = about_mean(moments)
    return spread == 0 or about_fit(moments) <= _ROUNDING * spread


def shape_matrix(task_cov: TaskCov | str | Array) -> Array | None:
    """Return the matrix of which the covariance of tasks is a multiple, or None."""
    return None if isinstance(task_cov, str) else np.asarray(task_cov, dtype=np.float64)


def _noise_is_identified(moments: Moments, fitted: Estimate, task_cov: TaskCov | str | Array) -> bool:
    """Return True where enough degrees of freedom identify the noise, such as rows beyond the features of a task."""
    if np.maximum(moments.rows - moments.dim, 0).sum() >= _MIN_NOISE_DEGREES:
        return True
    return noise_degrees(moments, fitted, shape_matrix(task_cov)) >= _MIN_NOISE_DEGREES


def _plan_without_noise(
    moments: Moments, fitted: Estimate, uncertainty: Uncertainty, freedom: Freedom, parameters: int
) -> Plan:
    """Return the plan where the noise is not identified: draws over all splits of the variance, or plug-in."""
    warn(_NOISE_NOT_IDENTIFIED)
    why = "this log does not identify noise and differences between tasks: no interval is given"
    if uncertainty != "first-order" and parameters <= MOST_VARIABLES and _is_small(moments, fitted):
        return Plan("integrated", why, freedom, noise_identified=False)
    return Plan("plug-in", why, noise_identified=False)


def _is_small(moments: Moments, fitted: Estimate) -> bool:
    active = int(np.count_nonzero(moments.rows))
    max_tasks = _MAX_TREE_TASKS if _is_tree(fitted) else max(_FEW_TASKS, _MAX_WORK // moments.dim**2)
    return active <= max_tasks


def _is_tree(fitted: Estimate) -> bool:
    return bool(fitted.hierarchy.levels) or fitted.hierarchy.metadata is not None


def _chosen(
    moments: Moments, fitted: Estimate, task_cov: TaskCov | str | Array, freedom: Freedom, parameters: int
) -> Plan:
    """Return the plan of uncertainty="auto".

    The first order gives a new task the estimated variance v; to second order a 95 % normal interval then covers .14
    (standard error of v / v)^2 too little: one point where v is 4 standard errors above zero.
    """
    active, tree, small = int(np.count_nonzero(moments.rows)), _is_tree(fitted), parameters <= MOST_VARIABLES
    why = f"{counted(active, 'task')}, {counted(parameters, 'free parameter')}"
    if small and active <= (_MAX_TREE_TASKS if tree else _FEW_TASKS):
        return Plan("integrated", f"{why}: few enough to integrate", freedom)
    if not tree:
        if small and _is_small(moments, fitted) and _is_uncertain(moments, fitted, task_cov):
            return Plan("integrated", f"{why}: the log leaves a variance between tasks uncertain", freedom)
        return Plan("first-order", f"{why}: many, or too many to integrate")
    warn(
        f"The estimated variances are taken as known: groups with {why} are too many to integrate over their "
        "uncertainty. Intervals are somewhat too narrow where a level has few groups."
    )
    return Plan("plug-in", f"groups with {why}: too many to integrate")


def _is_uncertain(moments: Moments, fitted: Estimate, task_cov: TaskCov | str | Array) -> bool:
    diagonal = [packed_size(j + 1) - 1 for j in range(moments.dim)]
    errors = np.sqrt(np.diagonal(hyper_error(moments, fitted, shape_matrix(task_cov)).of_entries)[diagonal])
    ratio = np.diagonal(fitted.hierarchy.task_cov) / fitted.hierarchy.noise_var
    return bool((ratio < _MIN_STANDARD_ERRORS * errors).any())


def _freedom(moments: Moments, fitted: Estimate, task_cov: TaskCov | str | Array) -> tuple[Freedom, int]:
    """Return the richest parametrisation that is small enough, and its size."""
    shape = fitted.chosen.shape
    richest: tuple[Freedom, ...] = ("sds",)
    if isinstance(task_cov, str) and (task_cov in ("full", "auto") or shape == "full"):
        richest = ("full", "sds")
    if shape == "isotropic":
        richest = ("isotropic",)
    if shape == "scaled":
        richest = ("scale",)
    sizes = [(freedom, parametrise(moments, fitted.hierarchy, freedom).start.size) for freedom in richest]
    if fitted.hierarchy.levels:
        sizes.append(("scale", parametrise(moments, fitted.hierarchy, "scale").start.size))
    return next((pair for pair in sizes if pair[1] <= MOST_VARIABLES), sizes[-1])


HyperUncertainty = HyperDraws | HyperError | None
AnyPosterior = Posterior | MixedPosterior | WidenedPosterior | PosteriorInShards

_SAMPLED = "rows are a random sample: the estimate is taken as known, and standard errors are robust"


@dataclass(frozen=True, eq=False)
class Learned:
    """A learned hierarchy with its uncertainty; made by :func:`learn`.

    Attributes
    ----------
    moments : Moments or MomentsInShards
    estimate : Estimate
    hierarchy : Hierarchy
        The central one. For "plug-in" and "first-order" the estimate. For "integrated" that of the posterior means of
        all covariances and of noise_var, because a new task's covariance is linear in them: plugged in, it gives
        nearly the answers of the mixture, and no variance is zero where the estimate is.
    hyper_uncertainty : HyperDraws, HyperError or None
        The uncertainty of the hierarchy, as :func:`condition_with` takes it.
    method : {"integrated", "first-order", "plug-in"}
    why : str
        The reason for this method, in words.
    diagnosis : Diagnosis or None
        Quality of the draws, for "integrated".
    multiple : (d, d) array or None
        The matrix of which the covariance of tasks is a multiple, where it is.
    noise_identified : bool
        False where the log does not identify the noise apart from differences between tasks: no interval holds.
    """

    moments: AnyMoments
    estimate: Estimate
    hierarchy: Hierarchy
    hyper_uncertainty: HyperUncertainty
    method: Method
    why: str
    diagnosis: Diagnosis | None = None
    multiple: Array | None = None
    noise_identified: bool = True

    @cached_property
    def posterior(self) -> AnyPosterior:
        """The posterior of every task, node and mu, with the uncertainty of the hierarchy."""
        return condition_with(self.moments, self.hierarchy, self.hyper_uncertainty)

    def hyper_intervals(self, level: float = 0.95) -> tuple[HyperInterval, ...]:
        """Return intervals for the noise sd, the sds between tasks (and nodes), correlations and population means.

        Intervals of sds between tasks and nodes are those of the profile likelihood, which reach 0 where the log allows
        0 (:mod:`profile_intervals`); in large logs they are as the others. The others are equal-tailed; for
        "first-order" normal, on the scale of logs for sds well above zero and of Fisher's z for correlations. Fixed
        correlations have none; "plug-in" has those of the means alone; without ``noise_identified`` there is none.

        Parameters
        ----------
        level : float
            Probability in (0, 1) of an interval.
        """
        if not 0.0 < level < 1.0:
            raise InputError(f"level={level!r} is not a probability in (0, 1).")
        if not self.noise_identified:
            return ()
        if isinstance(self.posterior, MixedPosterior):
            means = mean_intervals(self.posterior.hyper_components, self.moments.dim, level)
        else:
            means = mean_intervals(single(self.posterior.hyper), self.moments.dim, level)
        return (*self._spread_intervals(level), *means)

    def _spread_intervals(self, level: float) -> list[HyperInterval]:
        """Return intervals of the noise sd, sds and correlations."""
        if self.hyper_uncertainty is None:
            return []
        if isinstance(self.hyper_uncertainty, HyperDraws):
            intervals = draw_intervals(self.hyper_uncertainty, self.hierarchy, level)
        else:
            intervals = error_intervals(
                self.hyper_uncertainty, self.hierarchy, level, noise_trend(self.moments, self.hierarchy)
            )
        ends = profile_intervals(self.moments, self.estimate, level, self.multiple)
        return intervals if ends is None else with_ends(intervals, ends, self.hierarchy)


def learn(
    moments: AnyMoments,
    task_cov: TaskCov | Literal["block"] | NDArray[Any] = "auto",
    *,
    uncertainty: Uncertainty = "auto",
    blocks: int | None = None,
    estimated: Estimate | None = None,
) -> Learned:
    """Return the hierarchy learned by REML, with its uncertainty.

    Parameters
    ----------
    moments : Moments
    task_cov, blocks
        As :func:`reml.estimate`. With "auto" and few tasks, whatever shape the estimate has, draws come from full
        covariances (where those have few enough entries), from diagonal ones, from those with one sd in units of the
        features, and, where features have a :class:`LevelAxis`, from those with one sd of the level and one of the
        rest, averaged by their evidence: ten tasks do not show that a correlation is zero.
    uncertainty : {"auto", "integrated", "first-order", "plug-in"}
        "auto" integrates where at most 24 parameters are free and the log has at most 300 tasks with rows, or leaves a
        variance between tasks open and is not large (tasks times squared features at most 100,000), or is of a tree
        with at most 10,000 tasks. Else it corrects to first order. Where the log does not identify the noise apart from
        differences between tasks, such small logs are integrated, and others taken as estimated, whatever is asked.
    estimated : Estimate, optional
        An estimate made already, from the same moments, of a tree or with metadata too.

    Raises
    ------
    InputError
        "first-order" with a tree or with metadata; more free parameters than can be integrated.
    LogError, NumericalError
        As :func:`reml.estimate`.

    Warns
    -----
    HieropoWarning
        As :func:`reml.estimate`; where the hierarchy is integrated, but the draws are bad; where
        the uncertainty of a large tree is left out; where the log does not identify the noise apart from
        differences between tasks, so that no interval holds.
    """
    if uncertainty not in get_args(Uncertainty):
        raise InputError(
            f"uncertainty={uncertainty!r}; one of {', '.join(map(repr, get_args(Uncertainty)))} is needed."
        )
    fitted = estimate(moments, task_cov, blocks=blocks) if estimated is None else estimated
    if isinstance(moments, MomentsInShards):
        return _learned_in_shards(moments, fitted, task_cov, uncertainty)
    if moments.squares is not None:
        return Learned(moments, fitted, fitted.hierarchy, None, "plug-in", _SAMPLED)
    chosen = plan(moments, fitted, task_cov, uncertainty)
    if chosen.method == "integrated":
        learned = _integrated(moments, fitted, task_cov, chosen, fall_back=uncertainty == "auto")
    elif chosen.method == "first-order":
        learned = _first_order(moments, fitted, task_cov, chosen.why)
    else:
        learned = Learned(moments, fitted, fitted.hierarchy, None, "plug-in", chosen.why)
    return replace(learned, multiple=shape_matrix(task_cov), noise_identified=chosen.noise_identified)


def condition_with(
    moments: AnyMoments, hierarchy: Hierarchy, hyper_uncertainty: HyperUncertainty
) -> AnyPosterior:
    """Return the posterior of a hierarchy given the log, with the uncertainty of the hierarchy.

    A pure function: the same arguments give the same posterior to the last bit.

    Parameters
    ----------
    moments : Moments
        Those that ``hyper_uncertainty`` was made from, or with rows added since; the uncertainty stays as it was.
    hierarchy : Hierarchy
        The central one.
    hyper_uncertainty : HyperDraws, HyperError or None
        None takes ``hierarchy`` as known, as is done for rows with sampling weights.

    Raises
    ------
    MismatchError
        Dimensions or levels differ.
    InputError
        Rows have sampling weights, and the hierarchy levels or metadata.
    """
    if isinstance(moments, MomentsInShards):
        if isinstance(hyper_uncertainty, HyperError):
            return correct(moments, hierarchy, hyper_uncertainty)
        return condition_in_shards(moments, hierarchy)
    if moments.squares is not None:
        return SampledPosterior(moments, hierarchy)
    if isinstance(hyper_uncertainty, HyperDraws):
        return mix(moments, hierarchy, hyper_uncertainty)
    if isinstance(hyper_uncertainty, HyperError):
        return correct(moments, hierarchy, hyper_uncertainty)
    return condition(moments, hierarchy)


def _learned_in_shards(
    moments: MomentsInShards, fitted: Estimate, task_cov: TaskCov | str | Array, uncertainty: Uncertainty
) -> Learned:
    """Return the hierarchy of a log in shards with its uncertainty, to first order: as of a log of many tasks."""
    if uncertainty == "integrated":
        raise InputError(
            "uncertainty='integrated' draws hierarchies from their posterior, each with a pass over all tasks, and is "
            "for few tasks. Leave it at 'auto', which corrects to first order here, or join the moments in memory: "
            "ShardedMoments.joined()."
        )
    total, matrix = moments.total, shape_matrix(task_cov)
    if uncertainty == "plug-in" or _fits_exactly(total):
        why = "asked for: the estimate is taken as known"
        return Learned(moments, fitted, fitted.hierarchy, None, "plug-in", why, multiple=matrix)
    beyond = moments.summed(lambda shard: float(np.maximum(shard.dense().rows - shard.dim, 0).sum()))
    if beyond < _MIN_NOISE_DEGREES and noise_degrees(moments, fitted, matrix) < _MIN_NOISE_DEGREES:
        warn(_NOISE_NOT_IDENTIFIED)
        why = "this log does not identify noise and differences between tasks: no interval is given"
        return Learned(
            moments, fitted, fitted.hierarchy, None, "plug-in", why, multiple=matrix, noise_identified=False
        )
    why = f"{counted(moments.observed_tasks, 'task')} in shards: too many to integrate"
    return replace(_first_order(moments, fitted, task_cov, why), multiple=matrix)


def hyper_uncertainty_to_dict(hyper_uncertainty: HyperUncertainty) -> dict[str, Any] | None:
    """Return JSON's types, from which :func:`hyper_uncertainty_from_dict` makes the same value to the last bit."""
    return None if hyper_uncertainty is None else hyper_uncertainty.to_dict()


def hyper_uncertainty_from_dict(values: Mapping[str, Any] | None) -> HyperUncertainty:
    """Return the value that :func:`hyper_uncertainty_to_dict` wrote.

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
    raise InputError(
        f"The stored uncertainty is of the kind {kind!r}; this version reads 'hyper-draws' and 'hyper-error'."
    )


def _averaged(
    moments: Moments, fitted: Estimate, task_cov: TaskCov | str | Array, freedom: Freedom
) -> tuple[Freedom, ...]:
    """Return the parametrisations that are averaged: with "auto" the simpler ones too."""
    if not isinstance(task_cov, str) or task_cov != "auto" or moments.dim == 1:
        return (freedom,)
    level: tuple[Freedom, ...] = () if LevelAxis.of(moments) is None else ("level",)
    if freedom == "full":
        return ("full", "diag", "common", *level)
    return ("diag", "common", *level) if freedom == "sds" and fitted.chosen.shape == "diag" else (freedom,)


def _integrated(
    moments: Moments, fitted: Estimate, task_cov: TaskCov | str | Array, chosen: Plan, *, fall_back: bool
) -> Learned:
    freedoms = _averaged(moments, fitted, task_cov, chosen.freedom)
    draws, diagnosis = draw_hierarchies(
        moments, fitted.hierarchy, freedoms, noise_identified=chosen.noise_identified
    )
    if diagnosis.good or not chosen.noise_identified:
        return _learned(moments, fitted, draws, chosen.why, diagnosis)
    problem = (
        f"The hierarchy is uncertain, with {counted(int(np.count_nonzero(moments.rows)), 'task')}, and draws from "
        f"its posterior are unreliable: the effective sample size of {diagnosis.points} draws is "
        f"{diagnosis.effective:.0f}, the Pareto index of their weights {diagnosis.tail:.2f}."
    )
    if fall_back and fitted.expected_curvature is not None:
        warn(f"{problem} Its error is corrected to first order instead; intervals may be too narrow.")
        return _first_order(moments, fitted, task_cov, f"{chosen.why}; but draws are unreliable")
    warn(
        f"{problem} Intervals may be too wide or too narrow. A simpler task_cov, such as 'isotropic', has fewer "
        "parameters to draw."
    )
    return _learned(moments, fitted, draws, f"{chosen.why}; but draws are unreliable", diagnosis)


def _learned(
    moments: Moments, fitted: Estimate, draws: HyperDraws, why: str, diagnosis: Diagnosis
) -> Learned:
    central = draws.mean(fitted.hierarchy)
    return Learned(moments, fitted, central, draws, "integrated", why, diagnosis)


def _first_order(moments: AnyMoments, fitted: Estimate, task_cov: TaskCov | str | Array, why: str) -> Learned:
    if fitted.hierarchy.levels or fitted.hierarchy.metadata is not None:
        raise InputError(
            "The first-order correction is for two levels without metadata; use uncertainty='integrated'."
        )
    error = hyper_error(moments, fitted, shape_matrix(task_cov))
    return Learned(moments, fitted, fitted.hierarchy, error, "first-order", why)
