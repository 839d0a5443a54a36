"""An evaluation as a document: its numbers and its sentences, in the order in which a decision is made."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import floor, isfinite, isinf, log10
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hieropo._utils.arrays import Array
from hieropo._utils.text import agreeing, counted, percent, whole
from hieropo._utils.ties import at_most, ordered
from hieropo.doctor.examination import Examination
from hieropo.evaluation.comparisons.rivals import POOLED, SEPARATE
from hieropo.evaluation.diagnostics.predictive import PredictiveChecks
from hieropo.evaluation.parts.by_model import ByModel, ValueSummary
from hieropo.evaluation.parts.claims import withheld_notes
from hieropo.explanation.brief import Brief
from hieropo.policies.gating import GatedPolicy
from hieropo.report.document import (
    Bars,
    Block,
    Copy,
    Curve,
    Curves,
    Document,
    Facts,
    Gate,
    Gates,
    Grid,
    Histogram,
    Interval,
    Intervals,
    Items,
    Notice,
    Section,
    TaskTable,
    Text,
    Tone,
)
from hieropo.rows.ids import plain

if TYPE_CHECKING:
    from hieropo.evaluation.evaluation import Evaluation

GATES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
CATERPILLAR = 60  # tasks up to which each has a line
_ENDS = 15  # tasks at either end that have one beyond
_BINS = 40
_ENDS_IN_PAGE = 50
_CURVES, _POINTS, _COLUMNS = 8, 7, 4
_MOST_ACTIONS = 200
_FREQUENT = 4  # actions whose shares of the rows are written
_EXPLAINED = 5  # tasks at either end whose choices are explained
_WHY = ("task", "choice", "rival", "expected reward", "own rows", "all else", "lead", "without own rows")

_FEW_VALUES = (
    "Rewards take few values: the picture is not flat even where the model is right in mean and spread."
)

_INCUMBENT = "The incumbent is the policy that chose the actions of the log."
_GAIN = "The gain is the mean reward of a row under the new policy less that under the incumbent."
_ESTIMATES = (
    "IPS: rewards weighted by the inverse of their propensities; SNIPS: self-normalised. DM: direct method, the "
    "predictions of the model alone. DR: doubly robust, predictions and weighted residuals; SNDR: self-normalised; "
    "Switch-DR and DRos: with large weights replaced or shrunk. LS: logarithmic smoothing, which has a lower limit "
    "alone."
)

Advice = Literal["ship", "ship with a gate", "collect more", "do not ship"]
_TONES: dict[Advice, Tone] = {
    "ship": "good", "ship with a gate": "good", "collect more": "open", "do not ship": "bad"
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The decision that an evaluation supports, and its reason beyond the verdict; made by :func:`recommendation`."""

    advice: Advice
    reason: str


def recommendation(evaluation: "Evaluation") -> Recommendation:
    """Return the decision that the verdict of the log supports.

    A loss that is shown is not shipped. A gain that is shown is shipped, behind the gate where the gate holds a task
    back, unless the model contradicts the log. All else needs more rows.
    """
    claim, held_back = evaluation.claim, evaluation.shares()["held_back"]
    if claim.verdict == "worse":
        return Recommendation("do not ship", "")
    if claim.verdict != "shown":
        return Recommendation("collect more", "")
    if claim.agreement == "contradicts":
        return Recommendation(
            "collect more", "The model contradicts it: find out why before any task gets the policy."
        )
    if held_back and not isinstance(evaluation.policy, GatedPolicy):
        gated, free = evaluation.gated_gain().mean, evaluation.model.difference.mean
        return Recommendation(
            "ship with a gate",
            f"A gate at P(harm) {evaluation.max_harm:g} leaves {percent(held_back)} of the tasks to the incumbent; by "
            f"the model the gain is {gated:.4g} a row with it and {free:.4g} without.",
        )
    return Recommendation("ship", "")


def document_of(
    evaluation: "Evaluation",
    *,
    title: str | None = None,
    examination: Examination | None = None,
    epsilon: float | None = None,
) -> Document:
    """Return the report of an evaluation.

    Parameters
    ----------
    evaluation : Evaluation
    title : str, optional
        The question, in the words of the reader.
    examination : Examination, optional
        Of the same log, by the doctor.
    epsilon : float, optional
        Reward units below which the best policy may be better than a task's, for the rows that are still needed; by
        default half of the regret that the least certain tasks may have.
    """
    question = title or "Should this policy replace the incumbent?"
    parts: list[tuple[str, str, list[Block]]] = [
        ("verdict", "Verdict", _verdict(evaluation)),
        ("gain", "How much it gains", _gain(evaluation)),
        ("trust", "May it be trusted?", _trust(evaluation, examination)),
        ("harm", "Whom it would hurt", _harm(evaluation)),
        ("why", "Why these actions there?", _why(evaluation)),
        ("alike", "How alike tasks are", _alike(evaluation)),
        ("checks", "Do rewards come as predicted?", _checks(evaluation)),
        ("needed", "Rows still needed", _needed(evaluation, epsilon)),
        ("actions", "Value of each action", _actions(evaluation)),
        ("limits", "Limits", _limits(evaluation)),
        ("provenance", "Provenance", _provenance(evaluation)),
        ("mail", "To paste into a mail", [Copy(_mail(evaluation, question))]),
    ]
    sections = tuple(Section(name, heading, tuple(blocks)) for name, heading, blocks in parts if blocks)
    return Document(question, _subtitle(evaluation), sections)


def summary_of(evaluation: "Evaluation") -> Document:
    """Return the verdict and the gain alone, for a notebook."""
    sections = (
        Section("verdict", "Verdict", tuple(_verdict(evaluation))),
        Section("gain", "How much it gains", tuple(_gain(evaluation)[:1])),
    )
    return Document("Evaluation", _subtitle(evaluation), sections)


def _subtitle(evaluation: "Evaluation") -> str:
    columns = (evaluation.origin or {}).get("columns", {})
    roles = "; ".join(
        f"{role} {_listed(columns[role])}" for role in ("task", "action", "reward") if columns.get(role)
    )
    actions = evaluation.model.actions
    named = "" if actions is None else f"; {counted(len(actions), 'action')}: {_some(actions)}"
    rows = f"{counted(evaluation.rows, 'row')} of {counted(len(evaluation.keys), 'task')}{named}"
    return f"{rows}. {f'Columns: {roles}.' if roles else ''}".strip()


def _some(actions: tuple[Any, ...]) -> str:
    return ", ".join(str(plain(action)) for action in actions[:6]) + (", ..." if len(actions) > 6 else "")


def _listed(value: Any) -> str:
    return value if isinstance(value, str) else ", ".join(map(str, value))


def _verdict(evaluation: "Evaluation") -> list[Block]:
    advice, sentences = recommendation(evaluation), evaluation.sentences()
    head = advice.advice.capitalize()
    text = f"{sentences['verdict']} {advice.reason}".strip()
    rest = [
        Text(text)
        for text in (
            _rivals(evaluation),
            f"{_INCUMBENT} {_GAIN}",
            _shares_of_actions(evaluation),
            sentences["by_model"],
        )
        if text
    ]
    return [Notice(head, text, _TONES[advice.advice]), *rest]


def _rivals(evaluation: "Evaluation") -> str:
    """List the simpler policies that do as well on the same rows."""
    shown = [(_long_name(rival.name), rival) for rival in evaluation.comparisons if not rival.withheld]
    better = [name for name, rival in shown if rival.lead_high < 0]
    level = [name for name, rival in shown if rival.lead_low <= 0 <= rival.lead_high]
    worse = [name for name, rival in shown if rival.lead_low > 0]
    parts = [
        f"The log shows that {_listed_by(better, 'and')} {agreeing(len(better), 'is', 'are')} better than the policy."
        if better
        else "",
        f"The log does not show a difference between the policy and {_listed_by(level, 'or')}."
        if level
        else "",
        f"The log shows that the policy is better than {_listed_by(worse, 'and')}." if worse else "",
    ]
    return " ".join(part for part in parts if part)


def _shares_of_actions(evaluation: "Evaluation") -> str:
    """Name the actions that the policy takes and those that the incumbent took, the most frequent first."""
    actions = evaluation.model.actions or ()
    if len(actions) < 2:
        return ""
    new, old = (_most_frequent(actions, shares) for shares in evaluation.model.action_shares)
    gated = " with its gate" if isinstance(evaluation.policy, GatedPolicy) else ""
    return f"The policy{gated} takes {new}; the incumbent took {old}."


def _most_frequent(actions: tuple[Any, ...], shares: Array) -> str:
    """Return the actions that are taken with their shares of the rows, the first few of many."""
    order = ordered(-shares)
    used = [k for k in order.tolist() if shares[k] > 0]
    if len(used) == 1:
        return f"{plain(actions[used[0]])} in all rows"
    words = [f"{plain(actions[k])} in {percent(float(shares[k]))}" for k in used[:_FREQUENT]]
    words[0] += " of the rows"
    rest = float(shares[used[_FREQUENT:]].sum())
    if rest > 0:
        words.append(f"{counted(len(used) - _FREQUENT, 'other action')} in {percent(rest)}")
    return _listed_by(words, "and")


def _long_name(name: str) -> str:
    """Return the name of a simpler policy in words."""
    return {
        POOLED: "one regression for all tasks (pooled)",
        SEPARATE: "one regression for each task (separate)",
    }.get(name, name)


def _listed_by(names: list[str], word: str) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"


def gain_chart(evaluation: "Evaluation") -> Intervals:
    """Return the gains of the policy over the incumbent, by weights and by the model, and those of other policies."""
    model, level = evaluation.model, f"{100 * evaluation.model.level:g} %"
    lines = []
    estimate = evaluation.claim.estimate
    if estimate is not None:
        lines.append(
            _interval(f"this policy, {estimate.name}", estimate.gain, estimate.gain_low, estimate.gain_high)
        )
    lines.append(_of_summary("this policy, by the model", model.difference))
    if not isinstance(evaluation.policy, GatedPolicy):
        lines.append(_of_summary(f"with a gate at {evaluation.max_harm:g}, model", evaluation.gated_gain()))
    lines += [
        _interval(f"{rival.name}, DR", rival.gain, rival.gain_low, rival.gain_high)
        for rival in evaluation.comparisons
        if not rival.withheld
    ]
    return Intervals(
        f"Gain over the incumbent, with {level} intervals", "gain, a row of the log", tuple(lines)
    )


def _gain(evaluation: "Evaluation") -> list[Block]:
    blocks: list[Block] = [gain_chart(evaluation)]
    level = f"{100 * evaluation.model.level:g} %"
    if evaluation.estimates:
        blocks += [_weighted(evaluation, level), Text(_ESTIMATES)]
    blocks += [Text(f"{rival.name}: {rival.note}.") for rival in evaluation.comparisons]
    return blocks


def _of_summary(label: str, summary: ValueSummary) -> Interval:
    return Interval(label, summary.mean, summary.low, summary.high)


def _interval(label: str, value: float, low: float, high: float) -> Interval:
    known = isfinite(low) and isfinite(high)
    return Interval(label, value, low if known else None, high if known else None)


def _weighted(evaluation: "Evaluation", level: str) -> Grid:
    head = ("importance-weighted", "value", "gain", f"{level} from", "to", "effective n", "note")
    rows = tuple(
        (
            estimate.name,
            *(
                ("", "", "", "")
                if estimate.withheld
                else tuple(
                    map(_number, (estimate.value, estimate.gain, estimate.gain_low, estimate.gain_high))
                )
            ),
            f"{estimate.ess:,.0f}",
            "withheld" if estimate.withheld else "",
        )
        for estimate in evaluation.estimates
    )
    return Grid(head, rows, "Importance-weighted estimates of value and gain")


def _number(value: float) -> str:
    return f"{value:.4g}" if isfinite(value) else ""


def _trust(evaluation: "Evaluation", examination: Examination | None) -> list[Block]:
    facts: list[tuple[str, str]] = [("propensities", evaluation.propensities)]
    estimate = evaluation.claim.estimate
    if estimate is not None:
        share = percent(estimate.ess / evaluation.rows)
        facts += [
            ("effective sample size", f"{estimate.ess:,.0f} of {counted(evaluation.rows, 'row')} ({share})"),
            ("independent units", estimate.by),
        ]
    facts.append(("learned from these rows", evaluation.learned_from))
    sentences = evaluation.sentences()
    blocks: list[Block] = [Text(sentences[name]) for name in ("opening", "randomisation") if sentences[name]]
    if evaluation.refused:
        blocks.append(Text(f"There are no importance-weighted estimates. {evaluation.refused}"))
    blocks += [Text(note) for note in withheld_notes(evaluation.estimates)]
    blocks.append(Facts(tuple(facts)))
    if examination is not None:
        blocks += _doctor(examination)
    return blocks


def _doctor(examination: Examination) -> list[Block]:
    if not examination.findings:
        return [Text("The doctor found nothing in this log that limits conclusions.")]
    items = tuple(f"{finding.text} Next: {finding.next}" for finding in examination.findings)
    return [Text(f"The doctor has {counted(len(items), 'finding')}:"), Items(items)]


def _harm(evaluation: "Evaluation") -> list[Block]:
    shares = evaluation.shares()
    blocks: list[Block] = [
        Text(
            "P(harm) is the probability, by the model, that the policy is worth less than the incumbent in a task. In "
            f"{shares['improved']:.1%} of the tasks the policy changes actions with a P(harm) of at most "
            f"{evaluation.max_harm:g}. A gate at this limit leaves {shares['held_back']:.1%} to the incumbent, and in "
            f"{shares['unchanged']:.1%} both take the same actions. "
            f"Without a gate the policy is expected to harm {evaluation.expected_harm:.2%} of the tasks."
        )
    ]
    if not isinstance(evaluation.policy, GatedPolicy):
        blocks.append(_gates(evaluation))
    level = f"{100 * evaluation.model.level:g} %"
    columns = (
        f"Columns: rows of the log; gain a row by the model, from and to the ends of its {level} interval; P(harm); "
        f"regret: with probability {evaluation.model.level:g} the best policy for the task is better by no more; "
        "weighted: importance-weighted gain, shrunken to that of all tasks; gate: what acts in the task when the "
        "policy has a gate."
    )
    return [*blocks, *_caterpillars(evaluation), Text(columns), _tasks(evaluation)]


def _gates(evaluation: "Evaluation") -> Gates:
    harm, limits = evaluation.model.harm, sorted({*GATES, evaluation.max_harm})
    gates = []
    for limit in limits:
        passed = at_most(harm, limit)
        gain = evaluation.gated_gain(passed)
        acts, harmed = float((passed & evaluation.changed).mean()), float(np.where(passed, harm, 0.0).mean())
        gates.append(Gate(limit, acts, gain.mean, gain.low, gain.high, harmed))
    return Gates(tuple(gates), limits.index(evaluation.max_harm))


def _caterpillars(evaluation: "Evaluation") -> Iterator[Block]:
    if len(evaluation.keys) <= CATERPILLAR:
        yield task_chart(evaluation)
        return
    gain, held = evaluation.model.gain, ~evaluation.passed
    edges = np.linspace(min(gain.min(), 0.0), max(gain.max(), 0.0) or 1.0, _BINS + 1)
    counts, marked = np.histogram(gain, edges)[0], np.histogram(gain[held], edges)[0]
    yield Histogram(
        "Tasks by their gain", "gain, a row of the task", _floats(edges), _floats(counts), _floats(marked),
        _harmful(evaluation),
    )  # fmt: skip
    yield task_chart(evaluation)


def task_chart(evaluation: "Evaluation") -> Intervals:
    """Return the gain of each task, sorted; of many tasks those that are most likely harmed and most improved."""
    gain = evaluation.model.gain
    if gain.size <= CATERPILLAR:
        return _caterpillar(evaluation, "Gain of each task", ordered(gain))
    harmed, improved = _ends(evaluation)
    both = dict.fromkeys([*harmed[:_ENDS][::-1], *improved[:_ENDS][::-1]])
    at = np.array(list(both), dtype=np.int64)
    title = f"The tasks most likely harmed and those most improved, {_ENDS} of each"
    return _caterpillar(evaluation, title, at[np.argsort(gain[at], kind="stable")])


def _caterpillar(evaluation: "Evaluation", title: str, order: Any) -> Intervals:
    model, held = evaluation.model, ~evaluation.passed
    low, high = _task_interval(evaluation)
    lines = tuple(
        Interval(
            str(plain(model.keys.values[k])),
            float(model.gain[k]),
            float(low[k]),
            float(high[k]),
            bool(held[k]),
        )
        for k in order.tolist()
    )
    level = f"{100 * model.level:g} %"
    marked = _harmful(evaluation) if any(line.marked for line in lines) else ""
    return Intervals(
        title, f"gain, a row of the task, with {level} interval by the model", lines, marked, dense=True
    )


def _harmful(evaluation: "Evaluation") -> str:
    return f"P(harm) above {evaluation.max_harm:g}: a gate holds these back"


def _task_interval(evaluation: "Evaluation") -> tuple[Array, Array]:
    model = evaluation.model
    half = NormalDist().inv_cdf((1 + model.level) / 2) * model.gain_sd
    return model.gain - half, model.gain + half


def _ends(evaluation: "Evaluation") -> tuple[list[int], list[int]]:
    """Return the tasks by their probability of harm, and those that pass the gate by their gain."""
    model = evaluation.model
    harmed = ordered(-model.harm, model.gain)
    improved = ordered(~evaluation.improved, -model.gain)
    changed, better = evaluation.changed, evaluation.improved
    return [k for k in harmed.tolist() if changed[k]], [k for k in improved.tolist() if better[k]]


def _tasks(evaluation: "Evaluation") -> TaskTable:
    model, (low, high) = evaluation.model, _task_interval(evaluation)
    digits = _digits(high - low)
    columns: dict[str, tuple[Any, ...]] = {
        "task": tuple(str(plain(task)) for task in model.keys.values),
        "rows": tuple(whole(count) for count in evaluation.counts.tolist()),
        "gain": _cells(model.gain, digits),
        "from": _cells(low, digits),
        "to": _cells(high, digits),
        "P(harm)": _cells(model.harm, 4),
        "regret": _cells(model.certificate, digits),
    }
    if evaluation.task_estimates is not None:
        for j, name in enumerate(("weighted", "w. from", "w. to")):
            columns[name] = _cells(evaluation.task_estimates[:, j], digits)
    changed, passed = evaluation.changed.tolist(), evaluation.passed.tolist()
    columns["gate"] = tuple(
        "no change" if not other else "policy" if safe else "incumbent"
        for other, safe in zip(changed, passed, strict=True)
    )
    harmed, improved = _ends(evaluation)
    return TaskTable(
        columns, tuple(harmed[:_ENDS_IN_PAGE]), tuple(improved[:_ENDS_IN_PAGE]), "gate", "P(harm)"
    )


def _digits(widths: Array) -> int:
    """Return the decimals that show the usual width of an interval with three digits."""
    some = widths[np.isfinite(widths) & (widths > 0)]
    return max(2 - floor(log10(float(np.median(some)))), 0) if some.size else 4


def _cells(values: Array, digits: int) -> tuple[float | int | None, ...]:
    """Return rounded numbers; None for those that are not finite."""
    return tuple(_short(round(value, digits)) if isfinite(value) else None for value in values.tolist())


def _short(value: float) -> float | int:
    return int(value) if value == int(value) else value


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _why(evaluation: "Evaluation") -> list[Block]:
    """Explain the choices in the tasks most likely harmed and most improved, at the mean context of each."""
    blocks: list[Block] = []
    ids = evaluation.model.keys.values
    for rows, name in zip(_ends(evaluation), ("most likely harmed", "most improved"), strict=True):
        found = evaluation.model.briefs(evaluation.policy, [ids[k] for k in rows[:_EXPLAINED]])
        if found:
            blocks.append(Grid(_WHY, tuple(map(_brief, found)), f"The choices in the tasks {name}"))
    if not blocks:
        return []
    text = (
        "The choice of the policy at the mean context of each task. Its expected reward is the sum of a share of the "
        "task's own rows and a share of all else: the rows of other tasks, and the prior where it is given. The last "
        "column is the choice without the task's own rows. `hieropo explain` says more of one task."
    )
    return [Text(text), *blocks]


def _brief(one: Brief) -> tuple[str, ...]:
    numbers = one.mean, one.own, one.prior + one.others, one.lead
    without = "open" if one.without_own is None else str(one.without_own)
    return str(one.task), str(one.choice), str(one.rival), *(f"{value:.4g}" for value in numbers), without


def _alike(evaluation: "Evaluation") -> list[Block]:
    population = None if evaluation.population is None else evaluation.population()
    if population is None:
        return [
            Text(
                "There is no summary of how tasks differ: the hierarchy was given, is that of a baseline, or was "
                "loaded from disk without its estimate."
            )
        ]
    return [*population.blocks(), Text(_new_task(evaluation))]


def _new_task(evaluation: "Evaluation") -> str:
    policy = evaluation.policy.ungated
    if isinstance(evaluation.policy, GatedPolicy):
        return "A task that is not in the log is left to the incumbent, since no probability of harm is known for it."
    if policy.unseen == "error":
        return "A task that is not in the log is refused."
    return (
        "A task that is not in the log gets the prior of a new task, learned from all tasks: their mean, with the "
        "variation between tasks as its uncertainty."
    )


def _checks(evaluation: "Evaluation") -> list[Block]:
    checks = evaluation.checks
    if checks is None:
        return [
            Text(
                "Rewards were not compared with predictions: some rows were learned from and others not, or rows "
                "were kept by chance."
            )
        ]
    how = (
        "each by all other rows" if checks.learned_from else "from the rows that the policy was learned from"
    )
    coverage = checks.coverage
    return [
        Text(
            f"{counted(checks.rows, 'reward')} {'was' if checks.rows == 1 else 'were'} predicted, {how}. "
            f"{coverage[0]:.1%} lie in their 50 % intervals, {coverage[1]:.1%} in their 80 % and {coverage[2]:.1%} "
            f"in their 95 % intervals; standardised residuals have a mean of {round(checks.mean, 3) + 0.0:.3f} and "
            f"an sd of {checks.sd:.3f}."
        ),
        calibration_chart(checks),
        *([Text(_FEW_VALUES)] if checks.values is not None else []),
        *([Items(tuple(checks.findings))] if checks.findings else [Text("No fault of the model was found.")]),
    ]  # fmt: skip


def calibration_chart(checks: PredictiveChecks) -> Bars:
    """Return the shares of rewards whose predicted probability of a smaller reward lies in each of equal bins."""
    total = float(checks.pit.sum()) or 1.0
    return Bars(
        "Probability of smaller rewards, as predicted", "flat where the model is right",
        _floats(checks.pit / total), 1.0 / checks.pit.size,
    )  # fmt: skip


def _needed(evaluation: "Evaluation", epsilon: float | None) -> list[Block]:
    certificates = evaluation.model.certificate
    largest = np.sort(certificates[np.isfinite(certificates) & (certificates > 0)])[-10:]
    if epsilon is None and not largest.size:
        return []
    bound = _one_digit(float(np.median(largest)) / 2) if epsilon is None else epsilon
    needed = evaluation.rows_needed(bound)
    rows = tuple((str(task), "no number" if isinf(n) else f"{n:,.0f}") for task, n in needed.items())
    return [
        Text(
            f"More rows until the best policy is expected to be better than the one here by less than {bound:g}, for "
            "the least certain tasks, with rows like those of the log."
        ),
        Grid(("task", "more rows"), rows, "Rows still needed"),
    ]


def _one_digit(value: float) -> float:
    return float(round(value, -floor(log10(value))))


def _actions(evaluation: "Evaluation") -> list[Block]:
    model = evaluation.model
    actions, contexts = model.actions, model.contexts()
    if actions is None or len(actions) > _MOST_ACTIONS:
        return []
    names = [str(plain(action)) for action in actions]
    mean = contexts.mean(axis=0, keepdims=True)
    worth = model.action_values(mean)[0]
    best = ordered(-np.array([one.mean for one in worth]))[:20].tolist()
    level = f"{100 * model.level:g} %"
    at = " at the mean context" if model.columns else ""
    blocks: list[Block] = [
        Intervals(
            f"Expected reward of each action{at}, over all tasks, with {level} intervals by the model", "reward",
            tuple(_of_summary(names[k], worth[k]) for k in best), zero=False,
        )
    ]  # fmt: skip
    shown = [(k, names[k]) for k in best[:_CURVES]]
    charts = (effect_chart(model, j, shown) for j in range(len(model.columns[:_COLUMNS])))
    return [*blocks, *(chart for chart in charts if chart is not None)]


def effect_chart(model: ByModel, column: int, actions: list[tuple[int, str]]) -> Curves | None:
    """Return the expected reward of some actions, by code and name, over one context column; the others at their means.

    From the 5th to the 95th percentile of the column in the log; None where these are equal.
    """
    contexts = model.contexts()
    low, high = np.quantile(contexts[:, column], (0.05, 0.95))
    if not high > low:
        return None
    grid = np.repeat(contexts.mean(axis=0, keepdims=True), _POINTS, axis=0)
    grid[:, column] = np.linspace(low, high, _POINTS)
    return _curves(model.action_values(grid), model.columns[column], grid[:, column], actions)


def _curves(values: Any, column: str, x: Array, actions: list[tuple[int, str]]) -> Curves:
    curves = tuple(
        Curve(name, *(tuple(getattr(row[k], end) for row in values) for end in ("mean", "low", "high")))
        for k, name in actions
    )
    return Curves(
        f"Expected reward by {column}, other columns at their means", column, "reward", _floats(x), curves
    )


def _limits(evaluation: "Evaluation") -> list[Block]:
    lines = list(evaluation.limits)
    if evaluation.rejected is not None and evaluation.rejected.rows:
        were = agreeing(evaluation.rejected.rows, "was", "were")
        lines.append(f"{evaluation.rejected.counted()} {were} set aside.")
    fixed = (
        "Intervals by the model hold if the model is right; importance-weighted ones hold without it.",
        "All figures are about rows like those of the log: the same tasks, contexts and rewards.",
    )
    return [Items((*lines, *fixed))]


def _provenance(evaluation: "Evaluation") -> list[Block]:
    origin = evaluation.origin or {}
    facts = tuple((name, _written(value)) for name, value in origin.items())
    return [Facts(facts)] if facts else []


def _written(value: Any) -> str:
    if isinstance(value, Mapping):
        parts = [
            f"{name} {_written(part)}" for name, part in value.items() if part is not None and part != []
        ]
        return "; ".join(parts)
    if isinstance(value, list | tuple) and all(isinstance(part, str) for part in value):
        return ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _mail(evaluation: "Evaluation", question: str) -> str:
    advice, shares = recommendation(evaluation), evaluation.shares()
    harm = (
        f"By the model it is expected to harm {evaluation.expected_harm:.1%} of the {len(evaluation.keys):,} tasks; "
        f"with a gate at P(harm) {evaluation.max_harm:g} it acts in {shares['improved']:.0%} of them."
    )
    parts = [
        question,
        f"{advice.advice.capitalize()}. {evaluation.sentences()['verdict']}",
        _rivals(evaluation),
        harm,
        _INCUMBENT,
    ]
    return " ".join(part for part in parts if part)
