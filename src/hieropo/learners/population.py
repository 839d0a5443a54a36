"""A summary of how alike the tasks of a log are, for a person to read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np

from hieropo._utils.arrays import Array
from hieropo._utils.packed import packed_size, unpack
from hieropo._utils.text import Report, agreeing, counted, paragraph, resolved, table
from hieropo._utils.ties import ordered
from hieropo.errors import InputError, NumericalError
from hieropo.estimation.crossed.mixture import (
    CrossedHierarchies,
    CrossedMixture,
    interval_of_product,
    noise_told,
)
from hieropo.estimation.hyper.intervals import estimates, level_name, mean_intervals
from hieropo.estimation.hyper.mixed import single
from hieropo.estimation.hyper.uncertainty import Learned
from hieropo.estimation.reml import SAME_SCORE, compare
from hieropo.model.crossed.hierarchy import typical_noise
from hieropo.model.crossed.unit_designs import UnitDesigns
from hieropo.model.metadata import Metadata
from hieropo.moments.statistics import Moments
from hieropo.moments.units import UnitMoments
from hieropo.report import Block, Document, Grid, Interval, Intervals, Section, Text, fragment

_CLEAR = 3.0  # difference in evidence that tells two models apart: odds of 20 to 1
_SHOWN = 20
_MANY = 1e7  # rows that no task gets
_WORK = 2e9  # tasks times cubed features up to which models are compared without being asked for
_MEANING = {
    "separate": "every task for itself, around one level of rewards",
    "pooled": "all tasks are the same",
    "isotropic": "coefficients differ between tasks, each by the same sd, independently",
    "diag": "coefficients differ between tasks, each by an sd of its own, independently",
    "full": "coefficients differ between tasks together, with correlations",
}


@dataclass(frozen=True, slots=True)
class Range:
    """A number with its interval; without one where it is not known how far the number is."""

    value: float
    lower: float | None = None
    upper: float | None = None

    def __str__(self) -> str:
        if self.lower is None or self.upper is None:
            return _number(self.value)
        width = self.upper - self.lower
        if width < _FAR * abs(self.value):
            value, lower, upper = (resolved(number, width) for number in (self.value, self.lower, self.upper))
            return f"{value} ({lower} to {upper})"
        return f"{_number(self.value)} ({_number(self.lower)} to {_number(self.upper)})"


@dataclass(frozen=True, slots=True)
class Coefficient:
    """One coefficient in the population.

    Attributes
    ----------
    name : str
        Of the feature.
    mean, between : Range
        Population mean, and sd between tasks that hang on the same node.
    levels : tuple of Range
        Sd between the nodes of each level, or between actions.
    rows : float
        Rows of a task, sigma^2 / (Sigma_0_jj mean(phi_j^2)), until they say as much of the coefficient as all other
        tasks do; infinite where tasks do not differ.
    least_rows : float or None
        As many where tasks differ by the upper end of ``between``; None where that has no interval.
    """

    name: str
    mean: Range
    between: Range
    levels: tuple[Range, ...]
    rows: float
    least_rows: float | None = None

    @property
    def rows_in_words(self) -> str:
        """Rows as text; the least that the interval allows where tasks may not differ at all."""
        if self.rows < _MANY:
            return f"{np.ceil(self.rows):,.0f}"
        if self.least_rows is not None and self.least_rows < _MANY:
            return f"over {np.floor(self.least_rows):,.0f}"
        return "never"


@dataclass(frozen=True, slots=True)
class Model:
    """One model of what tasks have in common, fitted by maximum likelihood.

    Attributes
    ----------
    name : {"separate", "pooled", "isotropic", "diag", "full"}
    log_likelihood : float
    parameters : int
        Of mu and Sigma_0.
    evidence : float
        log_likelihood - parameters log(tasks) / 2, the Schwarz criterion.
    """

    name: str
    log_likelihood: float
    parameters: int
    evidence: float


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the differences in expected rewards, over the contexts of the log.

    Attributes
    ----------
    name : str
    sd : Range
        Standard deviation, in reward units.
    zero : float or None
        Probability that it is zero; None where zero is not among its values, or where there is no probability.
    integrated : bool
        False where the part is taken at its mode, so that it has neither an interval nor a probability.
    """

    name: str
    sd: Range
    zero: float | None
    integrated: bool = True

    @property
    def zero_in_words(self) -> str:
        """The probability as text."""
        if not self.integrated:
            return "at its mode"
        if self.zero is None:
            return "not possible"
        return _probability(self.zero)


def _probability(value: float) -> str:
    """Return a probability as text that never says 0 or 1 where it is near."""
    if value < 1e-4:
        return "below 0.0001"
    return "above 0.99" if value > 0.99 else f"{value:.2g}"


_PARTS = ("expected rewards differ by", "sd", "P(zero)")
_PARTS_NOTE = (
    "Each sd is over the contexts of the log, in units of rewards. The level of a task is the same for all actions, so "
    "that it decides nothing."
)


def parts_in_words(parts: Sequence[Part]) -> str:
    """Return the parts as a table, with the sentences that explain it."""
    body = [[part.name, str(part.sd), part.zero_in_words] for part in parts]
    return table([_PARTS, *body]) + "\n" + paragraph(_PARTS_NOTE)


@dataclass(frozen=True, slots=True)
class PopulationSummary(Report):
    """A summary of how alike tasks are; made by a learner's ``summary``. As text it is a table for a person.

    Attributes
    ----------
    tasks, rows : int
    noise_sd : Range
        Of a reward within a task.
    coefficients : tuple of Coefficient
    levels : tuple of str
        Names of what ``Coefficient.levels`` are.
    models : tuple of Model
        Best evidence first; empty where they were not compared.
    verdict : str
        What the evidence says, in words.
    uncertainty : str
        How the uncertainty of the hierarchy is carried into bounds, and why so.
    seconds : dict of str to float
        Wall time of reading the log, of learning from it, and of comparing models.
    level : float
        Of the intervals.
    note : str
        Where the features measure context columns from, where that is not 0.
    parts : tuple of Part
        Of the crossed prior: level of a task, effects of actions in all tasks and in one task; with metadata and levels
        also effects of actions that go with metadata, and level and effects of each kind of group.
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

    def blocks(self) -> list[Block]:
        """Return the summary as tables and charts of a report."""
        blocks: list[Block] = [Text(self.verdict)]
        if self.parts:
            rows = tuple((part.name, str(part.sd), part.zero_in_words) for part in self.parts)
            lines = tuple(
                Interval(part.name, part.sd.value, part.sd.lower, part.sd.upper) for part in self.parts
            )
            blocks += [
                Grid(_PARTS, rows, "How much tasks and actions differ"),
                Intervals("Standard deviation of expected rewards", "reward units", lines),
                Text(_PARTS_NOTE),
            ]
        else:
            head = ("coefficient", "population mean", "between tasks, sd", "rows to outweigh")
            cells = tuple(
                (one.name, str(one.mean), str(one.between), one.rows_in_words)
                for one in self.coefficients[:_SHOWN]
            )
            blocks.append(Grid(head, cells, "Coefficients in the population"))
        return [*blocks, Text(f"Rewards vary within a task by an sd of {self.noise_sd}.")]

    def _repr_html_(self) -> str:
        section = Section("alike", "How alike tasks are", tuple(self.blocks()))
        return fragment(
            Document("Summary", f"{counted(self.rows, 'row')} of {counted(self.tasks, 'task')}", (section,))
        )

    def __str__(self) -> str:
        are = agreeing(self.tasks, "is", "are")
        head = f"How alike {counted(self.tasks, 'task')} {are}, from {counted(self.rows, 'row')}"
        if any(each.mean.upper is not None for each in self.coefficients):
            head += f"; in brackets {100 * self.level:.3g} % intervals"
        spreads = [f"{name}, sd" for name in self.levels]
        lines = [["coefficient", "population mean", "between tasks, sd", *spreads, "rows to outweigh"]]
        for each in self.coefficients[:_SHOWN]:
            spreads = [str(each.between), *map(str, each.levels)]
            lines.append([each.name, str(each.mean), *spreads, each.rows_in_words])
        parts = [f"{head}.", table(lines)]
        if len(self.coefficients) > _SHOWN:
            parts[-1] += f"\n... and {len(self.coefficients) - _SHOWN} more."
        if self.note:
            parts.append(paragraph(self.note))
        parts.append(
            paragraph(
                f"Rewards vary within a task by an sd of {self.noise_sd}. Rows to outweigh: how many rows a task needs "
                "until they say as much of its coefficient as all other tasks do."
            )
        )
        if self.parts:
            parts.append(parts_in_words(self.parts))
        if self.models:
            body = [
                [m.name, f"{m.log_likelihood:.2f}", str(m.parameters), f"{m.evidence:.2f}", _MEANING[m.name]]
                for m in self.models
            ]
            parts.append(table([["model", "log likelihood", "parameters", "evidence", ""], *body]))
        parts.append(paragraph(self.verdict))
        took = ", ".join(f"{name} {spent:.2f} s" for name, spent in self.seconds.items())
        parts.append(paragraph(f"Uncertainty of the hierarchy: {self.uncertainty}. Took: {took}."))
        return "\n\n".join(parts)


def population_summary(
    learned: Learned,
    names: Sequence[str],
    *,
    level: float,
    models: bool | None,
    seconds: Mapping[str, float],
) -> PopulationSummary:
    """Summarise what was learned of the population.

    Parameters
    ----------
    learned : Learned
    names : sequence of d str
        Of the features.
    level : float
        Of the intervals, in (0, 1).
    models : bool or None
        Whether to compare models; None does where that takes seconds at most.
    seconds : mapping
        What was spent before.
    """
    moments, hierarchy = learned.moments, learned.hierarchy
    ranges = {one.name: Range(*one[1:]) for one in learned.hyper_intervals(level)}
    levels = [level_name(hierarchy, k) for k in range(len(hierarchy.levels))]
    plain = {f"mean[{j}]": mean for j, mean in enumerate(learned.posterior.hyper.mean.tolist())}
    plain |= estimates(learned.hyper_uncertainty, hierarchy)
    known = {name: Range(value) for name, value in plain.items()} | ranges
    total = moments.sums.sum(axis=0)
    widest = np.array([known[f"sd[{j}]"].upper or 0.0 for j in range(moments.dim)])
    least = _rows_needed(total, moments.n_rows, np.diag(widest**2), hierarchy.noise_var)
    need = _rows_needed(total, moments.n_rows, hierarchy.task_cov, hierarchy.noise_var)
    coefficients = tuple(
        Coefficient(
            name,
            known[f"mean[{j}]"],
            known[f"sd[{j}]"],
            tuple(known[f"{at} sd[{j}]"] for at in levels),
            float(need[j]),
            float(least[j]) if widest[j] > 0 else None,
        )
        for j, name in enumerate(names)
    )
    active, start = int(np.count_nonzero(moments.rows)), perf_counter()
    wanted = active > 1 and (models is True or (models is None and active * moments.dim**3 <= _WORK))
    wanted = wanted and not hierarchy.levels and hierarchy.metadata is None
    ranked, verdict = _ranked(moments, active) if wanted else ((), _NOT_COMPARED)
    spent = {**seconds, **({"comparing models": perf_counter() - start} if wanted else {})}
    how = f"{learned.method} ({learned.why})"
    return PopulationSummary(
        active,
        moments.n_rows,
        known["noise sd"],
        coefficients,
        tuple(levels),
        ranked,
        verdict,
        how,
        spent,
        level,
    )


def crossed_population_summary(
    posterior: CrossedMixture, names: Sequence[str], *, level: float, seconds: Mapping[str, float]
) -> PopulationSummary:
    """Summarise what was learned with the crossed prior.

    Parameters
    ----------
    posterior : CrossedMixture
    names : sequence of d str
        Of the features.
    level : float
        Of the intervals, in (0, 1).
    seconds : mapping
        Wall time that was spent before.
    """
    if not 0.0 < level < 1.0:
        raise InputError(f"level={level!r} is not a probability in (0, 1).")
    moments, hierarchies = posterior.moments, posterior.hierarchy
    p, central = moments.unit_dim, posterior.hierarchy.central()
    grams = _grams(moments)
    actions = [posterior.action(a) for a in range(moments.n_actions)]
    means = [range_ for action in actions for range_ in mean_intervals(single(action), p, level)]
    between = np.sqrt(np.diagonal(central.level_cov + central.interaction_cov))[:p]
    power = np.diagonal(grams, axis1=1, axis2=2) * between**2
    rows = central.noise_var[:, None] / np.where(power > 0, power, np.nan)
    coefficients = tuple(
        Coefficient(name, Range(*mean[1:]), Range(float(between[k % p])), (), _finite(rows[k // p, k % p]))
        for k, (name, mean) in enumerate(zip(names, means, strict=True))
    )
    noise_sd = np.sqrt(hierarchies.noise_var * typical_noise(hierarchies.shapes.noise_ratio))
    noise = Range(
        *interval_of_product(np.ones(len(hierarchies)), noise_sd, hierarchies.weights, _free(moments), level)
    )
    found = PopulationSummary(
        int(np.count_nonzero(moments.rows.any(axis=1))),
        moments.n_rows,
        replace(noise, value=float(np.sqrt(typical_noise(central.noise_var)))),
        coefficients,
        (),
        (),
        verdict_of_parts(hierarchies),
        f"integrated ({len(hierarchies)} hierarchies that the log leaves possible)",
        dict(seconds),
        level,
        parts=parts_of(moments, hierarchies, level),
    )
    return found if noise_told(moments) else _without_intervals(found)


def _without_intervals(found: PopulationSummary) -> PopulationSummary:
    """Leave the intervals out, of a log that does not tell the noise from differences between tasks."""
    return replace(
        found,
        noise_sd=Range(found.noise_sd.value),
        coefficients=tuple(replace(one, mean=Range(one.mean.value)) for one in found.coefficients),
        parts=tuple(replace(part, sd=Range(part.sd.value)) for part in found.parts),
    )


def parts_of(moments: UnitMoments, hierarchies: CrossedHierarchies, level: float) -> tuple[Part, ...]:
    """Describe the three parts of the crossed prior by their sds over the contexts of the log, in reward units.

    Parameters
    ----------
    moments : UnitMoments
    hierarchies : CrossedHierarchies
        Learned from them.
    level : float
        Of the intervals, in (0, 1).
    """
    gram, p = _grams(moments).sum(axis=0), moments.unit_dim
    free, tasks = _free(moments), max(int(np.count_nonzero(moments.rows.any(axis=1))), 1)
    shapes, over = hierarchies.shapes, np.sqrt(1 + hierarchies.interaction_sd**2)
    relative = np.round(hierarchies.level_sd / over, _DIGITS)  # nodes of the level are those of this ratio
    single_node = (
        relative.min() == relative.max()
    )  # of a large log: known as the sd of as many draws as tasks
    units = over * _units(hierarchies, shapes.level[:p, :p], gram)
    variance = free + (0.5 / tasks if single_node else 0.0)
    level_sd = interval_of_product(relative, units, hierarchies.weights, variance, level, slab=True)

    def effect(name: str, sds: Array, unit: Array) -> Part:
        sd = interval_of_product(sds, unit, hierarchies.weights, free, level)
        return Part(name, Range(*sd), float(hierarchies.weights[sds == 0].sum()))

    action_units = _units(hierarchies, shapes.action[:p, :p], gram)
    task_units = _units(hierarchies, shapes.interaction[:p, :p], gram)
    described = [
        effect("effect of an action that goes with metadata", hierarchies.action_sd, unit)
        for unit in _described_units(moments, hierarchies)
    ]
    groups = []
    for k, grouping in enumerate(hierarchies.levels):
        name, sds = grouping.name or f"group {k}", hierarchies.group_interaction_sd[:, k]
        of_level = hierarchies.weights @ (hierarchies.group_level_sd[:, k] * units / over)
        groups.append(Part(f"level of a {name}", Range(float(of_level)), None, integrated=False))
        if k == 0:
            groups.append(effect(f"effect of an action in one {name}", sds, task_units))
        else:
            value = Range(float(hierarchies.weights @ (sds * task_units)))
            groups.append(Part(f"effect of an action in one {name}", value, None, integrated=False))
    return (
        Part("level of a task", Range(*level_sd), None),
        effect("effect of an action in all tasks", hierarchies.action_sd, action_units),
        *described,
        *groups,
        effect("effect of an action in one task", hierarchies.interaction_sd, task_units),
    )


def _described_units(moments: UnitMoments, found: CrossedHierarchies) -> list[Array]:
    """Sds (H,) over the tasks and contexts of the log of effects of actions that go with metadata, at a = 1."""
    p, shape = moments.unit_dim, found.shapes.action
    if found.metadata is None or not shape[p:, p:].any():
        return []
    grams = _grams(UnitDesigns.of(found.metadata, moments).described(moments)).sum(axis=0)
    return [_units(found, shape[p:, p:], grams[p:, p:])]


def _grams(moments: UnitMoments) -> Array:
    """Mean over all rows of x x' of each action, (K, p, p)."""
    p = moments.unit_dim
    return np.asarray(unpack(moments.sums.sum(axis=0), p + 2)[:, :p, :p] / moments.n_rows)


def _units(found: CrossedHierarchies, shape: Array, gram: Array) -> Array:
    """Sds (H,) over the contexts of the log, in reward units, of a part whose sd is that of the noise."""
    return np.asarray(np.sqrt(found.noise_var * float(np.sum(shape * gram))))


def _free(moments: UnitMoments) -> float:
    """Variance of the log of the noise sd, given the hierarchy in its units."""
    return 0.5 / max(float(moments.n_rows) - moments.unit_dim, 1.0)


def _finite(rows: float) -> float:
    return float(rows) if np.isfinite(rows) else float("inf")


def verdict_of_parts(found: CrossedHierarchies) -> str:
    """Say in words which effects of actions the log shows."""
    none, shared, single_task = found.no_effect, found.no_action_effect, found.no_interaction
    chance = f"P(no effect) is {_probability(none)}"
    beyond = "" if found.metadata is None else " beyond what is known of them"
    if none > _LIKELY and _common(found.metadata):
        return (
            f"No effect of actions is shown beyond what the incumbent's choices say: {chance}, the probability that "
            "all other effects are zero."
        )
    if none > _LIKELY:
        return (
            f"No effect of actions is shown: {chance}, the probability that all actions do the same in every task. Any "
            "choice of actions may do as well as any other."
        )
    if none > 1 - _LIKELY:
        effect = f"The log leaves open whether actions differ in their effects ({chance})"
    else:
        effect = f"Actions differ in their effects ({chance})"
    if single_task > _LIKELY:
        return (
            f"{effect}, but the log does not show that tasks differ in them{beyond}: one action for all "
            f"{'such tasks' if beyond else 'tasks'} may do as well."
        )
    if single_task < 1 - _LIKELY:
        lead = "" if shared < _LIKELY else " No action is shown to be better in all tasks."
        return f"{effect}, and tasks differ in these effects{beyond}: a policy for each task can pay.{lead}"
    return (
        f"{effect}. The log leaves open whether tasks differ in the effects of actions{beyond}: P(no such difference) "
        f"is {_probability(single_task)}."
    )


def _common(metadata: Metadata | None) -> bool:
    """Say that metadata have one coefficient for all actions, as choices of an incumbent have."""
    return metadata is not None and metadata.values.ndim == 3


_FAR = 1e-2  # width of an interval in units of its number, below which more digits are shown
_DIGITS = 10  # decimals to which nodes of a level agree
_LIKELY = 0.8  # probability from which a part is said to be there, or not to be


_NOT_COMPARED = (
    "Models were not compared: that is done, where it is quick, for one level of tasks without metadata."
)


def _rows_needed(total: Array, n_rows: float, cov: Array, noise_var: float) -> Array:
    d = len(cov)
    squares = np.array([total[packed_size(j + 1) - 1] for j in range(d)]) / n_rows
    power = np.diagonal(cov) * squares
    return np.asarray(np.where(power > 0, noise_var / np.where(power > 0, power, 1.0), np.inf))


def _ranked(moments: Moments, tasks: int) -> tuple[tuple[Model, ...], str]:
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
    lead = f"The evidence prefers {best.name!r}, {_MEANING[best.name]}"
    if rivals:
        lead += (
            f", but does not tell it from {' and '.join(map(repr, rivals))} (differences below {_CLEAR:g})."
        )
    else:
        lead += f", by {gap:.3g} over {models[1].name!r}: clear."
    of = {m.name: m.evidence for m in models}
    shared = max(of[name] for name in of if name not in ("separate", "pooled"))
    alone = of.get("separate", -np.inf)
    if shared - of["pooled"] > _CLEAR and shared - alone > _CLEAR:
        return f"{lead} Tasks differ and have much in common: sharing pays."
    if best.name == "pooled":
        return f"{lead} No difference between tasks is shown: one answer for all may do as well."
    if alone - shared > -_CLEAR:
        return (
            f"{lead} Beyond the level of rewards no mean that tasks have in common is shown, only how much they vary: "
            "sharing brings little, and each could be taken alone."
        )
    return f"{lead} How much tasks have in common is not told by this log."


def _number(value: float) -> str:
    return f"{value:.4g}" if value == 0 or 1e-3 <= abs(value) < 1e5 else f"{value:.3g}"
