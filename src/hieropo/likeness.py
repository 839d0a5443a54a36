"""A summary of how alike the tasks of a log are, for a person to read."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import numpy as np

from hieropo.core.estimation import SAME_SCORE, compare
from hieropo.core.gaussian import Array
from hieropo.core.hyper_intervals import estimates, level_name, mean_intervals
from hieropo.core.mixed import single
from hieropo.core.packed import packed_size
from hieropo.core.shared_actions import SharedActions
from hieropo.core.statistics import Moments
from hieropo.core.ties import ordered
from hieropo.core.uncertainty import Learned
from hieropo.core.units import UnitMoments
from hieropo.errors import InputError, NumericalError
from hieropo.text import agreeing, counted, paragraph, table

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
class Likeness:
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

    def to_dict(self) -> dict[str, Any]:
        """Return JSON's types; infinite rows become None."""
        found = asdict(self)
        found["levels"], found["models"] = list(self.levels), [asdict(model) for model in self.models]
        found["coefficients"] = [
            {
                **asdict(each),
                "levels": [asdict(one) for one in each.levels],
                "rows": each.rows if np.isfinite(each.rows) else None,
            }
            for each in self.coefficients
        ]
        return found

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


def likeness(
    learned: Learned,
    names: Sequence[str],
    *,
    level: float,
    models: bool | None,
    seconds: Mapping[str, float],
) -> Likeness:
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
    plain |= estimates(learned.doubt, hierarchy)
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
    return Likeness(
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


def shared_likeness(
    moments: UnitMoments, hierarchy: SharedActions, posterior: Any, names: Sequence[str], *, level: float,
    seconds: Mapping[str, float],
) -> Likeness:  # fmt: skip
    """Summarise what was learned where actions share a prior; intervals are of the population means alone."""
    if not 0.0 < level < 1.0:
        raise InputError(f"level={level!r} is not a probability in (0, 1).")
    means = mean_intervals(single(posterior.hyper), moments.unit_dim, level)
    total, n = moments.units.sums.sum(axis=0), moments.n_rows
    need = _rows_needed(total, n, hierarchy.task_cov, hierarchy.noise_var) * moments.n_actions
    coefficients = tuple(
        Coefficient(
            name,
            Range(*mean[1:]),
            Range(float(np.sqrt(hierarchy.task_cov[j, j]))),
            (Range(float(np.sqrt(hierarchy.action_cov[j, j]))),),
            float(need[j]),
        )
        for j, (name, mean) in enumerate(zip(names, means, strict=True))
    )
    noise = Range(float(np.sqrt(hierarchy.noise_var)))
    how = "plug-in (actions share a prior: its covariances are taken as known)"
    return Likeness(
        len(moments),
        n,
        noise,
        coefficients,
        ("between actions",),
        (),
        _NOT_COMPARED,
        how,
        dict(seconds),
        level,
    )


_NOT_COMPARED = (
    "Models were not compared: that is done, where it is quick, for one level of tasks without metadata and without a "
    "prior that actions share."
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
