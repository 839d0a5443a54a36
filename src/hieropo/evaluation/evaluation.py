"""The result of an evaluation, and its text: value of a policy, harm to tasks, and limits of the conclusions."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from hieropo._utils.arrays import Array, Codes, Mask
from hieropo._utils.text import agreeing, counted, paragraph, resolved, table, thousands, whole
from hieropo._utils.ties import at_most, ordered
from hieropo.doctor.examination import Examination
from hieropo.errors import InputError
from hieropo.evaluation.comparisons.comparing import Comparison
from hieropo.evaluation.comparisons.rivals import USUAL
from hieropo.evaluation.diagnostics.predictive import PredictiveChecks
from hieropo.evaluation.parts.by_model import ByModel, ValueSummary
from hieropo.evaluation.parts.claims import Claim, Verdict, withheld_notes
from hieropo.evaluation.parts.randomised import RandomisationTests
from hieropo.evaluation.passes.first_pass import Overlap
from hieropo.evaluation.passes.propensity import Kind
from hieropo.evaluation.passes.subject import AnyPolicy
from hieropo.logs.arrow.result_table import ResultTable
from hieropo.logs.arrow.writing import task_id_columns
from hieropo.logs.bad_rows.rejects import Rejected
from hieropo.ope.value_estimates import ValueEstimate
from hieropo.policies.gating import GatedPolicy
from hieropo.report.document import Document
from hieropo.rows.ids import plain
from hieropo.rows.keys import Keys

MAX_HARM = 0.05
_TEN = 10


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """Evaluation of a policy, and of the incumbent that wrote the log; made by ``learner.evaluate(log)``.

    Print it, or read its fields.

    Attributes
    ----------
    policy : LCBPolicy or GatedPolicy
        The evaluated policy.
    rows : float
        Rows of the log, by their weights.
    new_tasks : int
        Number of its tasks that are new to the policy.
    counts : (m,) array
        Rows of each task, by their weights.
    model : ByModel
        Values by the posterior: over the log, and of each task in the order of ``model.keys``.
    claim : Claim
        Verdict on the gain by the doubly robust estimate, and the comparison with the model's gain.
    randomisation : RandomisationTests
        P-values of two nulls: actions have no effect; their effect is the same in all tasks.
    comparisons : tuple of Comparison
        Other policies on the same rows, by doubly robust estimates; empty without propensities.
    estimates : tuple of ValueEstimate
        Importance-weighted estimates, which do not rest on the model; empty where there are none.
    refused : str or None
        Reason why there are none.
    any_n : two pairs of float, or None
        Empirical Bernstein intervals of IPS, for value and gain, where propensities are logged: valid for any number of
        independent rows whose propensities are no lower than the lowest of the log.
    task_estimates : (m, 4) array or None
        Importance-weighted gain of each task, shrunken towards that of all tasks, the ends of its interval, and the
        effective sample size.
    propensities : {"logged", "estimated", "none"}
    learned_from : {"no", "yes", "partly"}
        Overlap of this log with the rows that the policy was learned from; with such rows, importance-weighted
        estimates are cross-fitted.
    checks : PredictiveChecks or None
        Predictive checks of the model on these rows.
    limits : tuple of str
        Sentences about the limits of the conclusions.
    max_harm : float
        Probability of harm up to which a task counts as safe.
    rejected : Rejected or None
        Rows that were set aside, in a lenient reading.
    eligible : str or None
        The column that lists the eligible actions.
    origin : mapping or None
        Learner, settings, columns, versions and hashes of the policy and of this evaluation.
    population : callable or None
        Returns the summary of how alike tasks are, or None where nothing was learned of it.
    """

    policy: AnyPolicy
    rows: float
    new_tasks: int
    counts: Array
    model: ByModel
    claim: Claim
    randomisation: RandomisationTests
    comparisons: tuple[Comparison, ...]
    estimates: tuple[ValueEstimate, ...]
    refused: str | None
    any_n: tuple[tuple[float, float], tuple[float, float]] | None
    task_estimates: Array | None
    propensities: Kind
    learned_from: Overlap
    checks: PredictiveChecks | None
    limits: tuple[str, ...]
    max_harm: float
    rejected: Rejected | None = None
    eligible: str | None = None
    origin: Mapping[str, Any] | None = None
    population: Callable[[], Any] | None = None

    @property
    def keys(self) -> Keys:
        """The m tasks of the log."""
        return self.model.keys

    @property
    def verdict(self) -> Verdict | None:
        """Verdict on the gain: "shown", "not shown" or "worse"; None without a trusted doubly robust estimate.

        It rests on the cross-fitted doubly robust difference to the incumbent: its interval is above 0, holds 0, or is
        below 0. ``claim.reason`` says why there is none.
        """
        return self.claim.verdict

    @property
    def changed(self) -> Mask:
        """Tasks (m,) in which the policy does anything else than the incumbent."""
        changed: Mask = (self.model.delta != 0).any(axis=1)
        return changed

    @property
    def passed(self) -> Mask:
        """Tasks (m,) in which the policy does harm with a probability of at most ``max_harm``."""
        return at_most(self.model.harm, self.max_harm)

    @property
    def improved(self) -> Mask:
        """Tasks (m,) that pass and in which the policy does something else than the incumbent."""
        return self.passed & self.changed

    @property
    def expected_harm(self) -> float:
        """Share of tasks in which the policy is expected to be worse than the incumbent."""
        return float(self.model.harm.mean())

    def gated_gain(self, passed: Mask | None = None) -> ValueSummary:
        """Gain over the incumbent, per row of the log, when the policy acts in the tasks that pass alone."""
        return self.model.gated(self.passed if passed is None else passed)

    def estimate(self, name: str) -> ValueEstimate:
        """Return one estimate by its name, such as "DR".

        Raises
        ------
        InputError
            There is none of that name.
        """
        for estimate in self.estimates:
            if estimate.name == name:
                return estimate
        raise InputError(
            f"There is no estimate {name!r}; there are {[estimate.name for estimate in self.estimates]}."
            + (f" {self.refused}" if self.refused else "")
        )

    def rows_needed(self, epsilon: float, tasks: Any = None, *, seed: int = 0) -> dict[Any, float]:
        """Return how many more rows tasks need until the best policy is better than theirs by less than ``epsilon``.

        More precisely, until their certificates are expected to be below it, with further rows of these tasks alone
        that are like those of the log. Found by draws, to 10 or 20 %; infinite where no number of rows is enough.

        Parameters
        ----------
        epsilon : float
            In reward units.
        tasks : sequence of ids, optional
            Default: the ten with the largest certificates. A task takes a fraction of a second.
        seed : int

        Raises
        ------
        InputError
            ``epsilon`` is not positive.
        UnknownTaskError
            A task is not in the log.
        """
        if not epsilon > 0:
            raise InputError(f"epsilon={epsilon!r}; a positive number of reward units is needed.")
        if tasks is None:
            order = ordered(-np.nan_to_num(self.model.certificate, nan=-1.0))
            tasks = self.keys.values[order[:_TEN]]
        numbers = self.model.rows_needed(tasks, epsilon, np.random.default_rng(seed))
        return dict(zip([plain(task) for task in tasks], numbers.tolist(), strict=True))

    def gate(self, max_harm: float | None = None, *, incumbent: Any = None) -> GatedPolicy:
        """Return the policy with a gate: it acts where the probability of harm is at most ``max_harm``.

        Parameters
        ----------
        max_harm : float, optional
            Default: as evaluated.
        incumbent : id, optional
            The action that the incumbent always takes; without it, it is whatever acted before.

        Raises
        ------
        InputError
            The policy has a gate already; ``max_harm`` is no probability; the incumbent is no action.
        """
        if isinstance(self.policy, GatedPolicy):
            raise InputError("This policy has a gate already. Evaluate the policy before its gate.")
        keys = self.policy.table.keys
        harm = np.full(len(keys), np.nan)
        at = np.asarray(keys.locate(self.keys.values))
        harm[at[at >= 0]] = self.model.harm[at >= 0]
        limit = self.max_harm if max_harm is None else max_harm
        return GatedPolicy(self.policy, harm, limit, incumbent, self.limits, self.eligible)

    def per_task(self) -> ResultTable:
        """Return a table with a row for each task; see :class:`ByModel` for its columns.

        A task of several columns has these columns, any other the column ``task``. The columns ``weighted_gain``,
        ``weighted_low``, ``weighted_high`` and ``effective_rows`` are there where importance weighting is possible.
        """
        model, columns = self.model, (self.origin or {}).get("columns", {}).get("task")
        values: dict[str, Any] = {
            **task_id_columns(tuple(columns) if isinstance(columns, list) else "task", self.keys.values),
            "rows": self.counts,
            "value": model.value,
            "value_sd": model.value_sd,
            "incumbent_value": model.incumbent_value,
            "incumbent_sd": model.incumbent_sd,
            "gain": model.gain,
            "gain_sd": model.gain_sd,
            "harm": model.harm,
            "certificate": model.certificate,
            "changed": self.changed,
            "passed": self.passed,
        }
        if self.task_estimates is not None:
            for j, name in enumerate(("weighted_gain", "weighted_low", "weighted_high", "effective_rows")):
                values[name] = self.task_estimates[:, j]
        return ResultTable.of(values)

    def to_dict(self, *, extremes: int = 5) -> dict[str, Any]:
        """Return JSON's types; of the tasks the ``extremes`` at both ends."""
        model, gated = self.model, self.gated_gain()
        return {
            "rows": whole(self.rows),
            "tasks": len(self.keys),
            "new_tasks": self.new_tasks,
            "learned_from": self.learned_from,
            "level": model.level,
            "verdict": self.verdict,
            "claim": self.claim.to_dict(),
            "randomisation": self.randomisation.to_dict(),
            "compared": [comparison.to_dict() for comparison in self.comparisons],
            "by_model": {
                "value": model.new.to_dict(),
                "incumbent": model.incumbent.to_dict(),
                "gain": model.difference.to_dict(),
                "gain_after_gate": gated.to_dict(),
            },
            "by_weights": [estimate.to_dict() for estimate in self.estimates],
            "refused": self.refused,
            "ips_for_any_n": None if self.any_n is None else {"value": self.any_n[0], "gain": self.any_n[1]},
            "propensities": self.propensities,
            "share_of_tasks": self.shares(),
            "max_harm": self.max_harm,
            "expected_share_harmed": self.expected_harm,
            "worst_tasks": self._extremes(ordered(-model.harm), extremes),
            "best_tasks": self._extremes(ordered(~self.changed, model.harm, -model.gain), extremes),
            "checks": None if self.checks is None else self.checks.to_dict(),
            "limits": list(self.limits),
            "rejected": None if self.rejected is None else self.rejected.to_dict(),
        }

    def report(
        self,
        path: str | os.PathLike[str],
        *,
        title: str | None = None,
        examination: Examination | None = None,
        epsilon: float | None = None,
    ) -> Path:
        """Write the report, one HTML file that needs no network, and return its path.

        The same evaluation gives the same bytes.

        Parameters
        ----------
        path : path
            Replaced if there.
        title : str, optional
            The question, in the words of the reader.
        examination : Examination, optional
            Of the same log, by :func:`hieropo.examine`; its findings go into the report.
        epsilon : float, optional
            Of :meth:`rows_needed`, by default half of the regret that the least certain tasks may have.

        Raises
        ------
        ArtifactError
            The file cannot be written.
        InputError
            ``epsilon`` is not positive.
        """
        from hieropo.report.page import write_page

        return write_page(self.document(title=title, examination=examination, epsilon=epsilon), path)

    def document(
        self,
        *,
        title: str | None = None,
        examination: Examination | None = None,
        epsilon: float | None = None,
    ) -> Document:
        """Return the content of the report as a value; its ``to_dict`` gives versioned JSON."""
        from hieropo.evaluation.reporting import document_of

        return document_of(self, title=title, examination=examination, epsilon=epsilon)

    def sentences(self) -> dict[str, str]:
        """Return the sentences of the printed text by their subject, unwrapped."""
        paragraphs = {
            "verdict": _verdict(self), "randomisation": _randomisation(self), "by_model": _by_model(self),
            "opening": _opening(self),
        }  # fmt: skip
        return {name: " ".join(text.split()) for name, text in paragraphs.items()}

    def _repr_html_(self) -> str:
        from hieropo.evaluation.reporting import summary_of
        from hieropo.report.page import fragment

        return fragment(summary_of(self))

    def shares(self) -> dict[str, float]:
        """Return the shares of tasks that the policy improves, leaves unchanged, and that a gate would hold back."""
        return {
            "improved": float(self.improved.mean()),
            "unchanged": float((~self.changed).mean()),
            "held_back": float((~self.passed).mean()),
        }

    def _extremes(self, order: Codes, count: int) -> list[dict[str, Any]]:
        model = self.model
        return [
            {
                "task": plain(self.keys.values[k]), "rows": whole(float(self.counts[k])), "gain": float(model.gain[k]),
                "gain_sd": float(model.gain_sd[k]), "harm": float(model.harm[k]),
            }
            for k in order[:count].tolist()
        ]  # fmt: skip

    def __str__(self) -> str:

        return worded(self)

    def __repr__(self) -> str:
        gain = self.model.difference
        return (
            f"Evaluation({counted(self.rows, 'row')}, {counted(len(self.keys), 'task')}, "
            f"gain {gain.mean:.4g} +- {gain.sd:.2g})"
        )


_SHOWN = 5  # tasks at either end
_SOME = 0.005  # smallest probability that the text mentions

_SEEN = {
    "yes": (
        "The policy was learned from these rows. Importance-weighted estimates are therefore cross-fitted: for "
        "each fold of the rows a policy is learned in the same way from the other folds, and evaluated on this fold."
    ),
    "partly": (
        "The policy was learned from some of these rows. Importance-weighted estimates are therefore cross-fitted: "
        "for each fold of the rows a policy is learned in the same way from the other folds, and evaluated on this "
        "fold."
    ),
}


def worded(evaluation: Evaluation) -> str:
    """Return the text of an evaluation."""
    parts = [
        _verdict(evaluation), _randomisation(evaluation), _by_model(evaluation), _opening(evaluation),
        _fleet(evaluation), _weighted(evaluation), _compared(evaluation), _tasks(evaluation), _limits(evaluation),
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part)


def _opening(evaluation: Evaluation) -> str:
    new = f", {evaluation.new_tasks:,} of them new to the policy" if evaluation.new_tasks else ""
    text = f"{counted(evaluation.rows, 'row')} of {counted(len(evaluation.keys), 'task')}{new}. "
    gate = "The policy has a gate. " if isinstance(evaluation.policy, GatedPolicy) else ""
    return paragraph(
        text + gate + _SEEN.get(evaluation.learned_from, "The policy was not learned from these rows.")
    )


def _fleet(evaluation: Evaluation) -> str:
    model = evaluation.model
    share = f"{100 * model.level:g} %"
    rows = [["by the model, a row", "value", f"{share} from", "to"]]
    for name, summary in (("policy", model.new), ("incumbent", model.incumbent), ("gain", model.difference)):
        width = summary.high - summary.low
        rows.append([name, *(resolved(value, width) for value in (summary.mean, summary.low, summary.high))])
    if not isinstance(evaluation.policy, GatedPolicy):
        summary = evaluation.gated_gain()
        rows.append(
            [
                f"gain with a gate at {evaluation.max_harm:g}",
                *_numbers(summary.mean, summary.low, summary.high),
            ]
        )
    return table(rows)


def _weighted(evaluation: Evaluation) -> str:
    if not evaluation.estimates:
        return paragraph(f"There are no importance-weighted estimates. {evaluation.refused}")
    share = f"{100 * evaluation.model.level:g} %"
    rows = [["importance-weighted", "value", "gain", f"{share} from", "to", "effective n", ""]]
    for estimate in evaluation.estimates:
        note = "" if estimate.withheld is None else "withheld"
        figures = (
            _with_gain(estimate.value, estimate.gain, estimate.gain_low, estimate.gain_high)
            if not note
            else ["", "", "", ""]
        )
        rows.append([estimate.name, *figures, f"{estimate.ess:,.0f}", note])
    text = table(rows)
    for note in withheld_notes(evaluation.estimates):
        text += "\n" + paragraph(note)
    if evaluation.propensities == "estimated":
        text += "\n" + paragraph("The log has no propensities; they were estimated. See the limits below.")
    return text


def _verdict(evaluation: Evaluation) -> str:
    """Return the verdict on the gain as a sentence."""
    claim, share = evaluation.claim, f"{100 * evaluation.model.level:g} %"
    if claim.estimate is None:
        return paragraph(f"The log gives no verdict on the gain over the incumbent. {claim.reason}")
    gain = claim.estimate
    interval = f"{share} interval {gain.gain_low:.4g} to {gain.gain_high:.4g}"
    sentences = {
        "shown": f"The log shows a gain over the incumbent: {gain.gain:.4g} a row ({interval}",
        "not shown": "The log does not show a gain over the incumbent, nor a loss: the interval of the gain includes 0 "
        f"({gain.gain:.4g} a row, {interval}",
        "worse": "The log shows the policy to be worse than the incumbent: a gain of "
        f"{gain.gain:.4g} a row ({interval}",
    }[claim.verdict or "not shown"]
    return paragraph(
        f"{sentences}, doubly robust{'' if evaluation.learned_from == 'no' else ' and cross-fitted'})."
    )


def _randomisation(evaluation: Evaluation) -> str:
    """Return the result of the randomisation tests as sentences."""
    tests = evaluation.randomisation
    if tests.refused is not None:
        return ""
    alpha, sentences = 1 - evaluation.model.level, []
    for p, refuted, not_refuted in (
        (tests.no_effect, "Actions have an effect", "The log does not show that actions have any effect"),
        (
            tests.tasks_alike,
            "Their effect differs between tasks"
            if tests.no_effect is None or tests.no_effect <= alpha
            else "Taken alone, the test of equal effects says that they differ between tasks",
            "The log does not show that tasks differ in it",
        ),
    ):
        if p is not None:
            sentences.append(f"{refuted if p <= alpha else not_refuted} (p = {p:.3g}).")
    if not sentences:
        return paragraph("Randomisation tests of an effect of actions are not possible on this log.")
    rows = "" if tests.rows >= evaluation.rows else f" and {tests.rows:,} of the rows"
    exact = (
        "The p-value of no effect is exact if actions were drawn with the logged propensities; the other is approximate"
        if tests.exact
        else "Both p-values are approximate"
    )
    return paragraph(
        f"{' '.join(sentences)} These are randomisation tests with {tests.draws} draws{rows}; no p-value is below "
        f"{1 / (1 + tests.draws):.2g}. {tests.how} {exact}."
    )


def _by_model(evaluation: Evaluation) -> str:
    """Return the model's gain, its agreement with the doubly robust one, and its harm, as sentences."""
    model, shares = evaluation.model, evaluation.shares()
    harm = (
        f"A gate at a probability of harm of {evaluation.max_harm:g} by the model gives the policy to "
        f"{shares['improved']:.0%} of the tasks and leaves {shares['held_back']:.0%} to the incumbent; in "
        f"{shares['unchanged']:.0%} both take the same actions. Without a gate the policy is expected to be worse than "
        "the "
        f"incumbent in {evaluation.expected_harm:.1%} of the tasks."
    )
    below = model.difference.below
    chance = "below 0.0001" if below < 1e-4 else f"{below:.2g}"
    zero = model.difference.zero
    odds = f"its probability of a loss is {chance}"
    if zero >= _SOME:
        odds = f"the probability that actions have no effect at all is {zero:.2g}, that of a loss {chance}"
    gain = f"The model estimates a gain of {_worth(model.difference)}; {odds}."
    return paragraph(
        " ".join(part for part in (gain, _agreement(evaluation), _updated(evaluation), harm) if part)
    )


def _agreement(evaluation: Evaluation) -> str:
    """Return the comparison of the model's gain with the doubly robust gain of the same policies as sentences."""
    claim, model = evaluation.claim, evaluation.model
    if claim.estimate is None:
        return "No importance-weighted estimate supports it."
    if claim.unlike is not None:
        return claim.unlike
    assert claim.model is not None
    refitted, name = evaluation.learned_from == "yes", claim.estimate.name
    figure = (
        f"For the cross-fitted policies that {name} evaluates, its estimate is {_worth(claim.model)}, and it "
        if refitted
        else "It "
    )
    sentences = {
        "agrees": f"agrees with {name}: both intervals exclude 0 on the same side.",
        "does not contradict": f"does not contradict {name}, but does not confirm it either: the two intervals do "
        "not exclude 0 on the same side.",
        "contradicts": f"contradicts {name}, {claim.estimate.gain:.4g}. "
        "Do not trust the model here before the reason is known.",
    }[claim.agreement or "does not contradict"]
    excess = model.difference.mean - claim.model.mean
    size = f"{abs(excess):.2g} a row {'more' if excess > 0 else 'less'} than they do"
    if abs(excess) < 1e-9 * abs(model.difference.mean):
        size = "as much as they do"
    learned = f" By the model, the policy itself, learned from all rows, gains {size}."
    return figure + sentences + (learned if refitted else "")


def _updated(evaluation: Evaluation) -> str:
    """Return the sentence that new rows do not update the model's estimate; empty where rows are not new."""
    if evaluation.learned_from != "no":
        return ""
    return "These rows do not update it: it rests on the rows that the policy was learned from."


def _worth(summary: ValueSummary) -> str:
    return f"{summary.mean:.4g} a row ({summary.low:.4g} to {summary.high:.4g})"


def _compared(evaluation: Evaluation) -> str:
    """Return the table of other policies on the same rows."""
    if not evaluation.comparisons:
        return ""
    share = f"{100 * evaluation.model.level:g} %"
    rows = [
        ["compared, doubly robust", "value", "gain", f"{share} from", "to", "policy minus other", "se", ""]
    ]
    if evaluation.claim.estimate is not None:
        this_policy = evaluation.claim.estimate
        rows.append(
            [
                "this policy",
                *_with_gain(this_policy.value, this_policy.gain, this_policy.gain_low, this_policy.gain_high),
                "",
                "",
                "",
            ]
        )
    for comparison in evaluation.comparisons:
        cells = [""] * 6
        if not comparison.withheld:
            cells = _with_gain(comparison.value, comparison.gain, comparison.gain_low, comparison.gain_high)
            cells += _numbers(
                comparison.lead,
                comparison.lead_se if comparison.lead_se > 1e-9 * abs(comparison.gain) else 0.0,
            )
        rows.append([comparison.name, *cells, "withheld" if comparison.withheld else ""])
    notes = [f"{comparison.name}: {comparison.note}." for comparison in evaluation.comparisons]
    names = [comparison.name for comparison in evaluation.comparisons]
    notes += [f"{name}: left out, since this log is too large for it." for name in USUAL if name not in names]
    notes += withheld_notes(evaluation.comparisons)
    return table(rows) + "\n" + "\n".join(paragraph(note) for note in notes)


def _tasks(evaluation: Evaluation) -> str:
    report = evaluation.to_dict(extremes=_SHOWN)
    parts = []
    for name, heading in (("worst_tasks", "most likely harmed"), ("best_tasks", "least likely harmed")):
        head = [heading, "rows", "gain", "sd", "P(harm)"]
        parts.append(table([head, *(_task(row) for row in report[name])]))
    return "\n\n".join(parts)


def _task(row: dict[str, Any]) -> list[str]:
    return [
        str(row["task"]),
        thousands(row["rows"]),
        *_numbers(row["gain"], row["gain_sd"]),
        f"{row['harm']:.3f}",
    ]


def _limits(evaluation: Evaluation) -> str:
    lines = list(evaluation.limits)
    if evaluation.rejected is not None and evaluation.rejected.rows:
        lines.append(
            f"{evaluation.rejected.counted()} {agreeing(evaluation.rejected.rows, 'was', 'were')} set aside."
        )
    if evaluation.checks is not None:
        lines.extend(evaluation.checks.findings)
    if not lines:
        if evaluation.claim.agreement == "contradicts":
            return "Limits of these conclusions: the model contradicts the importance-weighted estimate, see above."
        return "No other limits of these conclusions were found."
    return "Limits of these conclusions:\n" + "\n".join(paragraph(f"- {line}") for line in lines)


def _with_gain(value: float, gain: float, low: float, high: float) -> list[str]:
    """Return a value, rounded as its gain is, and the gain with its interval, as text."""
    width = high - low if isfinite(high - low) else gain
    return [resolved(value, width) if isfinite(value) else "", *_numbers(gain, low, high)]


def _numbers(*values: float) -> list[str]:
    return [f"{value:.4g}" if isfinite(value) else "" for value in values]
