"""Summaries of the population: means of coefficients, variation between tasks, and the evidence of models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np

from hieropo._utils.arrays import Array
from hieropo._utils.brief import brief
from hieropo._utils.packed import packed_size, unpack
from hieropo._utils.text import Report, counted, paragraph, resolved, table
from hieropo._utils.ties import ordered
from hieropo.errors import InputError, NumericalError
from hieropo.estimation.crossed.mixture import (
    CrossedHierarchies,
    CrossedMixture,
)
from hieropo.estimation.crossed.product_intervals import interval_of_product
from hieropo.estimation.crossed.short_logs import noise_identified
from hieropo.estimation.hyper.intervals import estimates, level_name, mean_intervals
from hieropo.estimation.hyper.mixed import single
from hieropo.estimation.hyper.uncertainty import Learned
from hieropo.estimation.reml import SAME_SCORE, compare
from hieropo.learners.kinds import Kind, kinds_blocks, kinds_in_words, kinds_of
from hieropo.logs.arrow.result_table import ResultTable
from hieropo.model.crossed.hierarchy import typical_noise
from hieropo.model.crossed.task_noise import mean_noise, moments_of_log
from hieropo.model.crossed.unit_designs import UnitDesigns
from hieropo.model.in_shards import PosteriorInShards
from hieropo.model.metadata import Metadata
from hieropo.moments.in_shards import AnyMoments, MomentsInShards, totals
from hieropo.moments.statistics import Moments
from hieropo.report import Block, Document, Grid, Interval, Intervals, Section, Text, fragment
from hieropo.rows.ids import plain

_CLEAR = 3.0  # difference in log evidence from which one model is preferred: odds of 20 to 1
_SHOWN = 20  # coefficients in the text
_MANY = 1e7  # more rows than any task has
_WORK = 2e9  # tasks times cubed features up to which models are compared by default
_MEANING = {
    "separate": "no shared mean except one level of rewards: every task by itself",
    "pooled": "no variation between tasks: one theta for all",
    "isotropic": "coefficients vary between tasks independently, all with the same sd",
    "diag": "coefficients vary between tasks independently, each with an sd of its own",
    "full": "coefficients vary between tasks with correlations",
}


@dataclass(frozen=True, slots=True)
class Range:
    """An estimate with its interval; the interval is None where the estimate has no standard error."""

    value: float
    lower: float | None = None
    upper: float | None = None

    __repr__ = brief

    def __str__(self) -> str:
        if self.lower is None or self.upper is None:
            return _number(self.value)
        width = self.upper - self.lower
        if width < _NARROW * abs(self.value):
            value, lower, upper = (resolved(number, width) for number in (self.value, self.lower, self.upper))
            return f"{value} ({lower} to {upper})"
        return f"{_number(self.value)} ({_number(self.lower)} to {_number(self.upper)})"


@dataclass(frozen=True, slots=True)
class Coefficient:
    """The distribution of one coefficient over tasks.

    Attributes
    ----------
    name : str
        Of the feature.
    mean, between : Range
        Population mean, and sd between tasks of the same parent node.
    levels : tuple of Range
        Sd between the nodes of each level, or between actions.
    rows : float
        Rows to outweigh: sigma^2 / (Sigma_0_jj mean(phi_j^2)), the number of rows at which a task's own data weigh as
        much as its prior; infinite where tasks do not vary.
    least_rows : float or None
        The same at the upper end of the interval of ``between``; None without an interval.
    """

    name: str
    mean: Range
    between: Range
    levels: tuple[Range, ...]
    rows: float
    least_rows: float | None = None

    __repr__ = brief

    @property
    def rows_in_words(self) -> str:
        """Return the rows to outweigh as text; a lower bound where the variation between tasks may be zero."""
        if self.rows < _MANY:
            return f"{np.ceil(self.rows):,.0f}"
        if self.least_rows is not None and self.least_rows < _MANY:
            return f"over {np.floor(self.least_rows):,.0f}"
        return "never"


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the variation between tasks, fitted by maximum likelihood.

    Attributes
    ----------
    name : {"separate", "pooled", "isotropic", "diag", "full"}
    log_likelihood : float
    parameters : int
        Number of free parameters in mu and Sigma_0.
    evidence : float
        log_likelihood - parameters log(tasks) / 2, the Schwarz criterion.
    """

    name: str
    log_likelihood: float
    parameters: int
    evidence: float

    __repr__ = brief


@dataclass(frozen=True, slots=True)
class Part:
    """One component of the variation of expected rewards, over the contexts of the log.

    Attributes
    ----------
    name : str
    sd : Range
        Standard deviation, in reward units.
    zero : float or None
        Posterior probability that it is zero; None where the prior gives zero no mass, or where there is no posterior.
    integrated : bool
        False where the component is taken at its posterior mode, without an interval and a probability.
    """

    name: str
    sd: Range
    zero: float | None
    integrated: bool = True

    __repr__ = brief

    @property
    def zero_in_words(self) -> str:
        """Return the probability as text."""
        if not self.integrated:
            return "at its mode"
        if self.zero is None:
            return "not in the prior"
        return _probability(self.zero)


def _probability(value: float) -> str:
    """Return a probability as text; near 0 and 1 it is a bound, never 0 or 1 itself."""
    if value < 1e-4:
        return "below 0.0001"
    return "above 0.99" if value > 0.99 else f"{value:.2g}"


_PARTS = ("expected rewards vary by", "sd", "P(zero)")
_PARTS_NOTE = (
    "Each sd is over the contexts of the log, in units of the reward. P(zero) is the posterior probability of no such "
    "variation. The level of a task is common to all its actions, so it does not affect the choice of an action."
)


def parts_blocks(parts: Sequence[Part]) -> list[Block]:
    """Return the components of the crossed prior as a table and a chart of a report; nothing where there are none."""
    if not parts:
        return []
    rows = tuple((part.name, str(part.sd), part.zero_in_words) for part in parts)
    lines = tuple(Interval(part.name, part.sd.value, part.sd.lower, part.sd.upper) for part in parts)
    return [
        Grid(_PARTS, rows, "Variation between tasks and actions"),
        Intervals("Standard deviation of expected rewards", "reward units", lines),
        Text(_PARTS_NOTE),
    ]


def parts_in_words(parts: Sequence[Part]) -> str:
    """Return the components of variation as a table, with its explanation."""
    body = [[part.name, str(part.sd), part.zero_in_words] for part in parts]
    return table([_PARTS, *body]) + "\n" + paragraph(_PARTS_NOTE)


@dataclass(frozen=True, slots=True)
class PopulationSummary(Report):
    """The population of tasks: coefficients, variation between tasks, and noise. Made by a learner's ``summary``.

    ``str`` gives a table for a person, ``to_dict`` the same for JSON.

    Attributes
    ----------
    tasks, rows : int
    noise_sd : Range
        Sd of the noise of a reward, within a task.
    coefficients : tuple of Coefficient
    levels : tuple of str
        Names of the levels of ``Coefficient.levels``.
    models : tuple of Model
        The compared models, best evidence first; empty where they were not compared.
    verdict : str
        The conclusion from the evidence, or from the components of the crossed prior, as text.
    uncertainty : str
        How the uncertainty of the hyper-parameters enters the bounds, and the reason.
    seconds : dict of str to float
        Wall time of reading the log, of learning from it, and of comparing models.
    level : float
        Probability of the intervals.
    note : str
        The origin on which context columns are centred, where that is not 0, and correlations within clusters.
    parts : tuple of Part
        Components of the crossed prior: level of a task, effects of actions in all tasks and in one task; with metadata
        and levels also effects of actions that depend on metadata, and level and effects of each kind of group.
    noise_of_tasks : str
        How noise differs between tasks, or the rule that keeps it equal; empty where the log shows no difference.
    kinds : tuple of Kind
        Kinds of tasks, the largest first; empty where the log shows none, or none were asked for.
    kinds_verdict : str
        The evidence for them.
    """

    tasks: int
    rows: float
    noise_sd: Range
    coefficients: tuple[Coefficient, ...]
    levels: tuple[str, ...]
    models: tuple[Model, ...]
    verdict: str
    uncertainty: str
    seconds: Mapping[str, float]
    level: float
    note: str = ""
    parts: tuple[Part, ...] = ()
    noise_of_tasks: str = ""
    kinds: tuple[Kind, ...] = ()
    kinds_verdict: str = ""

    def __repr__(self) -> str:
        size = f"{counted(self.tasks, 'task')}, {counted(self.rows, 'row')}"
        return f"PopulationSummary({size}, {counted(len(self.coefficients), 'coefficient')}; print it)"

    def table(self) -> ResultTable:
        """Return a table with a row for each coefficient: population mean and sd between tasks, with intervals.

        For each level there is a further sd with its interval.
        """
        columns: dict[str, Any] = {"coefficient": [one.name for one in self.coefficients]}
        ranges = {
            "mean": [one.mean for one in self.coefficients],
            "between_tasks_sd": [one.between for one in self.coefficients],
        }
        for k, level in enumerate(self.levels):
            ranges[f"{level.replace(' ', '_')}_sd"] = [one.levels[k] for one in self.coefficients]
        for name, entries in ranges.items():
            columns[name] = [entry.value for entry in entries]
            columns[f"{name}_low"] = [entry.lower for entry in entries]
            columns[f"{name}_high"] = [entry.upper for entry in entries]
        return ResultTable.of({**columns, "rows_to_outweigh": [one.rows for one in self.coefficients]})

    def blocks(self) -> list[Block]:
        """Return the summary as tables and charts of a report."""
        blocks: list[Block] = [Text(self.verdict)]
        if self.parts:
            blocks += parts_blocks(self.parts)
        else:
            head = ("coefficient", "population mean", "between tasks, sd", "rows to outweigh")
            cells = tuple(
                (one.name, str(one.mean), str(one.between), one.rows_in_words)
                for one in self.coefficients[:_SHOWN]
            )
            blocks.append(Grid(head, cells, "Coefficients in the population"))
        noise = f"Rewards vary within a task by an sd of {self.noise_sd}. {self.noise_of_tasks}"
        return [*blocks, *kinds_blocks(self.kinds, self.kinds_verdict), Text(noise.rstrip())]

    def _repr_html_(self) -> str:
        section = Section("alike", "Variation between tasks", tuple(self.blocks()))
        return fragment(
            Document("Summary", f"{counted(self.rows, 'row')} of {counted(self.tasks, 'task')}", (section,))
        )

    def __str__(self) -> str:
        head = f"Variation between {counted(self.tasks, 'task')}, from {counted(self.rows, 'row')}"
        if any(coefficient.mean.upper is not None for coefficient in self.coefficients):
            head += f"; in brackets {100 * self.level:.3g} % intervals"
        sds = [f"{name}, sd" for name in self.levels]
        lines = [["coefficient", "population mean", "between tasks, sd", *sds, "rows to outweigh"]]
        for coefficient in self.coefficients[:_SHOWN]:
            sds = [str(coefficient.between), *map(str, coefficient.levels)]
            lines.append([coefficient.name, str(coefficient.mean), *sds, coefficient.rows_in_words])
        paragraphs = [f"{head}.", table(lines)]
        if len(self.coefficients) > _SHOWN:
            paragraphs[-1] += f"\n... and {len(self.coefficients) - _SHOWN} more."
        if self.note:
            paragraphs.append(paragraph(self.note))
        paragraphs.append(
            paragraph(
                f"Rewards vary within a task with a noise sd of {self.noise_sd}. Rows to outweigh: the number of rows "
                "of a task, with contexts and actions as in the log, at which its own data weigh as much in its "
                "coefficient as the prior that was learned from all tasks. Each coefficient is taken alone."
            )
        )
        if self.noise_of_tasks:
            paragraphs.append(paragraph(self.noise_of_tasks))
        if self.parts:
            paragraphs.append(parts_in_words(self.parts))
        paragraphs += kinds_in_words(self.kinds, self.kinds_verdict)
        if self.models:
            body = [
                [m.name, f"{m.log_likelihood:.2f}", str(m.parameters), f"{m.evidence:.2f}", _MEANING[m.name]]
                for m in self.models
            ]
            paragraphs.append(table([["model", "log likelihood", "parameters", "evidence", ""], *body]))
        paragraphs.append(paragraph(self.verdict))
        times = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in self.seconds.items())
        spent = f" Time: {times}." if times else ""  # none of a fit that was loaded
        paragraphs.append(paragraph(f"Uncertainty of the hyper-parameters: {self.uncertainty}.{spent}"))
        return "\n\n".join(paragraphs)


def population_summary(
    learned: Learned,
    names: Sequence[str],
    *,
    level: float,
    models: bool | None,
    seconds: Mapping[str, float],
) -> PopulationSummary:
    """Return the summary of a learned hierarchy.

    Parameters
    ----------
    learned : Learned
    names : sequence of d str
        Of the features.
    level : float
        Probability of the intervals, in (0, 1).
    models : bool or None
        True compares models, False does not; None compares them where that takes seconds at most.
    seconds : mapping
        Wall time of the steps so far.
    """
    moments, hierarchy = learned.moments, learned.hierarchy
    intervals = {one.name: Range(*one[1:]) for one in learned.hyper_intervals(level)}
    levels = [level_name(hierarchy, k) for k in range(len(hierarchy.levels))]
    values = {f"mean[{j}]": mean for j, mean in enumerate(learned.posterior.hyper.mean.tolist())}
    values |= estimates(learned.hyper_uncertainty, hierarchy)
    ranges = {name: Range(value) for name, value in values.items()} | intervals
    total = totals(moments).sums.sum(axis=0)
    largest_sd = np.array([ranges[f"sd[{j}]"].upper or 0.0 for j in range(moments.dim)])
    rows = _rows_to_outweigh(total, moments.n_rows, hierarchy.task_cov, hierarchy.noise_var)
    least_rows = _rows_to_outweigh(total, moments.n_rows, np.diag(largest_sd**2), hierarchy.noise_var)
    coefficients = tuple(
        Coefficient(
            name,
            ranges[f"mean[{j}]"],
            ranges[f"sd[{j}]"],
            tuple(ranges[f"{level_} sd[{j}]"] for level_ in levels),
            float(rows[j]),
            float(least_rows[j]) if largest_sd[j] > 0 else None,
        )
        for j, name in enumerate(names)
    )
    n_tasks, start = _observed(moments), perf_counter()
    comparing = n_tasks > 1 and (models is True or (models is None and n_tasks * moments.dim**3 <= _WORK))
    comparing = comparing and not hierarchy.levels and hierarchy.metadata is None
    ranked, verdict = (
        _ranked(moments, n_tasks) if comparing and isinstance(moments, Moments) else ((), _NOT_COMPARED)
    )
    spent = {**seconds, **({"comparing models": perf_counter() - start} if comparing else {})}
    return PopulationSummary(
        n_tasks,
        moments.n_rows,
        ranges["noise sd"],
        coefficients,
        tuple(levels),
        ranked,
        verdict,
        f"{learned.method} ({learned.why})",
        spent,
        level,
    )


def crossed_population_summary(
    posterior: CrossedMixture | PosteriorInShards,
    names: Sequence[str],
    *,
    level: float,
    seconds: Mapping[str, float],
    action_ids: Sequence[Any] | None = None,
) -> PopulationSummary:
    """Return the summary of a posterior of the crossed prior.

    Parameters
    ----------
    posterior : CrossedMixture or PosteriorInShards
    names : sequence of d str
        Of the features.
    level : float
        Probability of the intervals, in (0, 1).
    seconds : mapping
        Wall time of the steps so far.
    action_ids : sequence of K ids, optional
        By which kinds of tasks name their best action.
    """
    if not 0.0 < level < 1.0:
        raise InputError(
            f"level={level!r} is not a probability in (0, 1). Give the probability of the intervals, such as 0.95."
        )
    moments, hierarchies = moments_of_log(posterior), posterior.hierarchy
    p, central = moments.unit_dim, posterior.hierarchy.central()
    grams = _grams(moments)
    actions = [posterior.action(a) for a in range(moments.n_actions)]
    means = [range_ for action in actions for range_ in mean_intervals(single(action), p, level)]
    between = np.sqrt(np.diagonal(central.level_cov + central.interaction_cov))[:p]
    power = np.diagonal(grams, axis1=1, axis2=2) * between**2
    rows = central.noise_var[:, None] / np.where(power > 0, power, np.nan)
    coefficients = tuple(
        Coefficient(
            name, Range(*mean[1:]), Range(float(between[k % p])), (), _nan_as_inf(rows[k // p, k % p])
        )
        for k, (name, mean) in enumerate(zip(names, means, strict=True))
    )
    noise_sd = np.sqrt(
        hierarchies.noise_var * mean_noise(hierarchies.shapes.noise_ratio, hierarchies.task_noise)
    )
    noise = Range(
        *interval_of_product(
            np.ones(len(hierarchies)), noise_sd, hierarchies.weights, _log_noise_variance(moments), level
        )
    )
    kinds, kinds_verdict = kinds_of(posterior, action_ids)
    summary = PopulationSummary(
        _observed(moments),
        moments.n_rows,
        replace(noise, value=float(np.sqrt(mean_noise(central.noise_var, hierarchies.task_noise)))),
        coefficients,
        (),
        (),
        " ".join(filter(None, [verdict_of_parts(hierarchies), verdict_of_spreads(posterior)])),
        f"integrated (over {len(hierarchies)} values of the hyper-parameters, weighted by their posterior)",
        dict(seconds),
        level,
        parts=parts_of(moments, hierarchies, level),
        noise_of_tasks=noise_of_tasks(hierarchies),
        kinds=kinds,
        kinds_verdict=kinds_verdict,
    )
    return summary if noise_identified(moments) else _without_intervals(summary)


def _without_intervals(summary: PopulationSummary) -> PopulationSummary:
    """Return the summary without intervals, for a log that does not identify the noise variance."""
    return replace(
        summary,
        noise_sd=Range(summary.noise_sd.value),
        coefficients=tuple(replace(one, mean=Range(one.mean.value)) for one in summary.coefficients),
        parts=tuple(replace(part, sd=Range(part.sd.value)) for part in summary.parts),
    )


def noise_sds(hierarchies: CrossedHierarchies) -> tuple[float, float] | None:
    """Return the noise sds between which 90 % of the tasks are; None where noise is equal."""
    noise = hierarchies.task_noise
    if noise is None:
        return None
    sds = np.sqrt(typical_noise(hierarchies.central().noise_var) / noise.precision)
    low, high = np.quantile(sds, (0.05, 0.95)).tolist()
    return low, high


def noise_of_tasks(hierarchies: CrossedHierarchies) -> str:
    """Return how noise differs between tasks, or why it is taken as equal, as text."""
    sds, reason = noise_sds(hierarchies), _EQUAL_NOISE.get(hierarchies.equal_noise_because)
    if sds is None:
        return (
            ""
            if reason is None
            else f"Noise is taken as equal in all tasks, although it looks unequal: {reason}"
        )
    rows = (
        "Rows of a task with less noise weigh more."
        if reason is None
        else f"No task counts as less noisy than the median one: {reason}"
    )
    return f"Noise differs between tasks: in 90 % of them its sd is from {sds[0]:.3g} to {sds[1]:.3g}. {rows}"


_EQUAL_NOISE = {
    "constant": (
        "many rewards have one value, so that rows of a task that are alike do not show that its noise is small."
    ),
    "mean": (
        "it depends on the mean reward, as with counts and amounts, so that noise that is small by chance goes with a "
        "mean that is low by chance."
    ),
    "rows": (
        "it differs as much between the actions of a task as between tasks, as with a few extreme rewards, which say "
        "nothing of the rows to come."
    ),
}


def parts_of(moments: AnyMoments, hierarchies: CrossedHierarchies, level: float) -> tuple[Part, ...]:
    """Return the three components of the crossed prior by their sds over the contexts of the log, in reward units.

    Parameters
    ----------
    moments : Moments
    hierarchies : CrossedHierarchies
        Learned from them.
    level : float
        Probability of the intervals, in (0, 1).
    """
    gram, p = _grams(moments).sum(axis=0), moments.unit_dim
    log_variance = _log_noise_variance(moments)
    n_tasks = max(_observed(moments), 1)
    shapes, scale = hierarchies.shapes, np.sqrt(1 + hierarchies.interaction_sd**2)
    relative = np.round(hierarchies.level_sd / scale, _DIGITS)  # the grid of the level is one of this ratio
    single_node = (
        hierarchies.mixed or relative.min() == relative.max()
    )  # a large log: the sd is known as that of n_tasks draws
    units = scale * _units(hierarchies, shapes.level[:p, :p], gram)
    variance = log_variance + (0.5 / n_tasks if single_node else 0.0)
    level_sd = interval_of_product(relative, units, hierarchies.weights, variance, level, slab=True)

    def effect(name: str, sds: Array, unit: Array) -> Part:
        sd = interval_of_product(sds, unit, hierarchies.weights, log_variance, level)
        return Part(name, Range(*sd), float(hierarchies.weights[sds == 0].sum()))

    action_units = _units(hierarchies, shapes.action[:p, :p], gram)
    task_units = _units(hierarchies, shapes.interaction[:p, :p], gram)
    by_metadata = [
        effect("effect of an action that depends on metadata", hierarchies.action_sd, unit)
        for unit in _metadata_units(moments, hierarchies)
    ]
    groups = []
    for k, grouping in enumerate(hierarchies.levels):
        name, sds = grouping.name or f"group {k}", hierarchies.group_interaction_sd[:, k]
        group_level_sd = hierarchies.weights @ (hierarchies.group_level_sd[:, k] * units / scale)
        groups.append(Part(f"level of a {name}", Range(float(group_level_sd)), None, integrated=False))
        if k == 0:
            groups.append(effect(f"effect of an action in one {name}", sds, task_units))
        else:
            value = Range(float(hierarchies.weights @ (sds * task_units)))
            groups.append(Part(f"effect of an action in one {name}", value, None, integrated=False))
    of_kinds = [] if hierarchies.kinds is None else [hierarchies.kinds.sd]
    return (
        Part("level of a task", Range(*level_sd), None),
        effect("effect of an action in all tasks", hierarchies.action_sd, action_units),
        *by_metadata,
        *groups,
        *(effect("effect of an action in one kind of tasks", sds, task_units) for sds in of_kinds),
        effect("effect of an action in one task", hierarchies.interaction_sd, task_units),
    )


def _metadata_units(moments: AnyMoments, hierarchies: CrossedHierarchies) -> list[Array]:
    """Return the sds (H,) of effects of actions that depend on metadata, at an action sd of 1."""
    p, shape = moments.unit_dim, hierarchies.shapes.action
    if hierarchies.metadata is None or not shape[p:, p:].any() or isinstance(moments, MomentsInShards):
        return []
    grams = _grams(UnitDesigns.of(hierarchies.metadata, moments).described(moments)).sum(axis=0)
    return [_units(hierarchies, shape[p:, p:], grams[p:, p:])]


def _observed(moments: AnyMoments) -> int:
    """Return the number of tasks that have rows."""
    if isinstance(moments, MomentsInShards):
        return moments.observed_tasks
    return int(np.count_nonzero(moments.rows.reshape(len(moments), moments.n_actions).any(axis=1)))


def _grams(moments: AnyMoments) -> Array:
    """Return sum x x' of each action divided by all rows of the log, (K, p, p)."""
    p = moments.unit_dim
    return np.asarray(unpack(totals(moments).sums.sum(axis=0), p + 2)[:, :p, :p] / moments.n_rows)


def _units(hierarchies: CrossedHierarchies, shape: Array, gram: Array) -> Array:
    """Return the sds (H,) over the contexts, in reward units, of a component whose sd equals the noise sd."""
    return np.asarray(np.sqrt(hierarchies.noise_var * float(np.sum(shape * gram))))


def _log_noise_variance(moments: AnyMoments) -> float:
    """Return the posterior variance of log(noise sd), given the other sds relative to it."""
    return 0.5 / max(float(moments.n_rows) - moments.unit_dim, 1.0)


def _nan_as_inf(rows: float) -> float:
    return float(rows) if np.isfinite(rows) else float("inf")


def verdict_of_parts(hierarchies: CrossedHierarchies) -> str:
    """Return the conclusion about effects of actions from the posterior probabilities of zero components."""
    no_effect, no_interaction = hierarchies.no_effect, hierarchies.no_interaction
    probability = f"P(no effect) is {_probability(no_effect)}"
    beyond = "" if hierarchies.metadata is None else " beyond their metadata"
    if no_effect > _LIKELY and _shared_by_actions(hierarchies.metadata):
        return (
            f"The log shows no effect of actions beyond the choices of the incumbent: {probability}, the posterior "
            "probability that all other effects are zero."
        )
    if no_effect > _LIKELY:
        return (
            f"The log shows no effect of actions: {probability}, the posterior probability that all actions have the "
            "same expected reward in every task. Any choice of actions may do as well as any other."
        )
    if no_effect > 1 - _LIKELY:
        effect = f"The log does not settle whether actions differ in their effects ({probability})"
    else:
        effect = f"Actions differ in their effects ({probability})"
    if no_interaction > _LIKELY:
        return (
            f"{effect}. The log does not show that these effects vary between tasks{beyond}, so one action for all "
            f"{'tasks with the same metadata' if beyond else 'tasks'} may do as well as a policy for each."
        )
    if no_interaction < 1 - _LIKELY:
        common = hierarchies.no_action_effect < _LIKELY
        no_common = "" if common else " The log shows no action to be better in all tasks."
        return f"{effect}, and these effects vary between tasks{beyond}: a policy for each task can pay.{no_common}"
    return (
        f"{effect}. The log does not settle whether these effects vary between tasks{beyond}: P(no variation) is "
        f"{_probability(no_interaction)}."
    )


def verdict_of_spreads(posterior: CrossedMixture | PosteriorInShards) -> str:
    """Return a sentence on tasks whose interactions are unusually large; empty where the log shows none."""
    if not isinstance(posterior, CrossedMixture) or posterior.differing is None:
        return ""
    differing = posterior.differing
    count, seen = (
        int(np.count_nonzero(differing > 0.5)),
        int(np.count_nonzero(posterior.moments.rows.any(axis=1))),
    )
    return (
        "Tasks differ in how much the effects of actions vary (log Bayes factor against one spread "
        f"{posterior.hierarchy.spread_odds:.1f}): in {count} of {counted(seen, 'task')} they are, with probability "
        "above 1/2, at least twice as large as in three quarters of the tasks."
    )


def _shared_by_actions(metadata: Metadata | None) -> bool:
    """Return True for metadata with one coefficient for all actions, such as the choices of an incumbent."""
    return metadata is not None and metadata.values.ndim == 3


_NARROW = 1e-2  # relative width of an interval below which more digits are shown
_DIGITS = 10  # decimals to which equal nodes of the grid agree
_LIKELY = 0.8  # probability from which a component is reported as present, or as absent


_NOT_COMPARED = (
    "Models were not compared. They are compared for one level of tasks without metadata, by default where that is "
    "quick; summary(models=True) compares them at any size."
)


def _rows_to_outweigh(total: Array, n_rows: float, cov: Array, noise_var: float) -> Array:
    """Return sigma^2 / (Sigma_0_jj mean(phi_j^2)) of each coefficient (d,); infinite at a zero variance."""
    d = len(cov)
    squares = np.array([total[packed_size(j + 1) - 1] for j in range(d)]) / n_rows
    power = np.diagonal(cov) * squares
    return np.asarray(np.where(power > 0, noise_var / np.where(power > 0, power, 1.0), np.inf))


def _ranked(moments: Moments, tasks: int) -> tuple[tuple[Model, ...], str]:
    """Return the models by evidence, best first, and the verdict from it."""
    try:
        fits = compare(moments)
    except NumericalError as error:
        return (), f"Models could not be compared: {error}"
    models = [Model(str(f.shape), -f.deviance / 2, f.parameters, f.score(tasks)) for f in fits]
    ranked = [models[k] for k in ordered([-model.evidence for model in models], room=SAME_SCORE)]
    return tuple(ranked), _verdict(ranked)


def _verdict(models: Sequence[Model]) -> str:
    best = models[0]
    rivals = [m.name for m in models[1:] if best.evidence - m.evidence < _CLEAR]
    gap = best.evidence - models[1].evidence
    preferred = f"The model with the largest evidence is {best.name!r} ({_MEANING[best.name]})"
    if rivals:
        preferred += (
            f"; {' and '.join(map(repr, rivals))} may do as well (evidence smaller by less than {_CLEAR:g})."
        )
    else:
        preferred += f", clearly: by {gap:.3g} over {models[1].name!r}."
    evidence = {m.name: m.evidence for m in models}
    shared = max(evidence[name] for name in evidence if name not in ("separate", "pooled"))
    separate = evidence.get("separate", -np.inf)
    if shared - evidence["pooled"] > _CLEAR and shared - separate > _CLEAR:
        return f"{preferred} Tasks vary around a common mean: sharing pays."
    if best.name == "pooled":
        return f"{preferred} The log shows no variation between tasks: one policy for all may do as well."
    if separate - shared > -_CLEAR:
        return (
            f"{preferred} The log shows no common mean of the coefficients beyond the level of rewards, only their "
            "variation between tasks: sharing brings little, and separate policies may do as well."
        )
    return f"{preferred} The log does not settle how much tasks have in common."


def _number(value: float) -> str:
    return f"{value:.4g}" if value == 0 or 1e-3 <= abs(value) < 1e5 else f"{value:.3g}"


def correlation_note(cluster: str, actions: Sequence[Any] | None, correlation: Array) -> str:
    """Return a sentence on the correlations of rewards within clusters, (K,) of actions or (1,) of all rows."""
    text = f"Of the noise variance, rewards of one {cluster} share"
    if correlation.size == 1 or actions is None or np.ptp(correlation) < _ONE_PERCENT:
        return f"{text} {float(correlation.mean()):.0%}."
    shares = [f"{plain(action)} {float(rho):.0%}" for action, rho in zip(actions, correlation, strict=True)]
    more = f", ... ({len(shares) - _MAX_NAMED} more)" if len(shares) > _MAX_NAMED else ""
    return f"{text}, by action: {', '.join(shares[:_MAX_NAMED])}{more}."


_ONE_PERCENT, _MAX_NAMED = 0.01, 10
