"""An evaluation in words and tables, for a terminal."""

from math import isfinite
from typing import Any

from hieropo.core.gating import GatedPolicy
from hieropo.evaluation.by_model import Worth
from hieropo.evaluation.evaluation import Evaluation
from hieropo.evaluation.rivals import USUAL
from hieropo.text import agreeing, counted, paragraph, resolved, table, thousands

_SHOWN = 5  # tasks at either end
_SOME = 0.005  # probability that is worth a word

_SEEN = {
    "yes": (
        "The policy was learned from these rows. The figures by weighted rewards are therefore those of policies that "
        "were learned in the same way without the rows that they are judged on."
    ),
    "partly": (
        "Some of these rows are among those that the policy was learned from. The figures by weighted rewards are "
        "therefore those of policies that were learned in the same way from the other rows of this log."
    ),
}


def worded(found: Evaluation) -> str:
    """Write an evaluation for a person."""
    parts = [
        _verdict(found), _randomisation(found), _by_model(found), _opening(found), _fleet(found), _weighted(found),
        _compared(found), _tasks(found), _limits(found),
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part)


def _opening(found: Evaluation) -> str:
    new = f", {found.new_tasks:,} of them new to the policy" if found.new_tasks else ""
    text = f"{counted(found.rows, 'row')} of {counted(len(found.keys), 'task')}{new}. "
    gate = "The policy has a gate. " if isinstance(found.policy, GatedPolicy) else ""
    return paragraph(
        text + gate + _SEEN.get(found.learned_from, "The policy was not learned from these rows.")
    )


def _fleet(found: Evaluation) -> str:
    model = found.model
    share = f"{100 * model.level:g} %"
    rows = [["by the model, a row", "value", f"{share} from", "to"]]
    for name, worth in (("policy", model.new), ("incumbent", model.incumbent), ("gain", model.difference)):
        width = worth.high - worth.low
        rows.append([name, *(resolved(value, width) for value in (worth.mean, worth.low, worth.high))])
    if not isinstance(found.policy, GatedPolicy):
        worth = found.gated_gain()
        rows.append([f"gain with a gate at {found.max_harm:g}", *_numbers(worth.mean, worth.low, worth.high)])
    return table(rows)


def _weighted(found: Evaluation) -> str:
    if not found.estimates:
        return paragraph(f"By weighted rewards: nothing. {found.refused}")
    share = f"{100 * found.model.level:g} %"
    rows = [["by weighted rewards", "value", "gain", f"{share} from", "to", "effective rows", ""]]
    for each in found.estimates:
        note = "" if each.withheld is None else "withheld"
        figures = (
            _with_gain(each.value, each.gain, each.gain_low, each.gain_high) if not note else ["", "", "", ""]
        )
        rows.append([each.name, *figures, f"{each.ess:,.0f}", note])
    text = table(rows)
    for reason in dict.fromkeys(each.withheld for each in found.estimates if each.withheld):
        names = ", ".join(each.name for each in found.estimates if each.withheld == reason)
        text += "\n" + paragraph(f"Withheld ({names}): {reason}")
    if found.propensities == "estimated":
        text += "\n" + paragraph("Propensities were estimated, since the log has none: see the limits below.")
    return text


def _verdict(found: Evaluation) -> str:
    """Say what the log shows of the gain."""
    claim, share = found.claim, f"{100 * found.model.level:g} %"
    if claim.estimate is None:
        return paragraph(f"The log shows nothing of the gain over the incumbent. {claim.reason}")
    gain = claim.estimate
    interval = f"{share} interval {gain.gain_low:.4g} to {gain.gain_high:.4g}"
    said = {
        "shown": f"The log shows a gain over the incumbent: {gain.gain:.4g} a row ({interval}",
        "not shown": "The log does not show a gain over the incumbent, nor a loss: the interval of the gain holds 0 "
        f"({gain.gain:.4g} a row, {interval}",
        "worse": "The log shows the policy to be worse than the incumbent: a gain of "
        f"{gain.gain:.4g} a row ({interval}",
    }[claim.verdict or "not shown"]
    return paragraph(f"{said}, doubly robust{'' if found.learned_from == 'no' else ' and cross-fitted'}).")


def _randomisation(found: Evaluation) -> str:
    """Say what actions drawn anew tell."""
    tests = found.randomisation
    if tests.refused is not None:
        return ""
    at, said = 1 - found.model.level, []
    for p, refuted, kept in (
        (tests.no_effect, "Actions have an effect", "The log does not show that actions have any effect"),
        (
            tests.tasks_alike,
            "Their effect differs between tasks"
            if tests.no_effect is None or tests.no_effect <= at
            else "Taken alone, the test of equal effects says that they differ between tasks",
            "The log does not show that tasks differ in it",
        ),
    ):
        if p is not None:
            said.append(f"{refuted if p <= at else kept} (p = {p:.3g}).")
    if not said:
        return paragraph("Randomisation tests: this log has nothing that could tell an effect of actions.")
    rows = "" if tests.rows >= found.rows else f" and {tests.rows:,} of the rows"
    exact = (
        "The p-value of no effect is exact if chance drew the actions by the logged propensities; the other is "
        "approximate"
        if tests.exact
        else "Both p-values are approximate"
    )
    return paragraph(
        f"{' '.join(said)} These are randomisation tests with {tests.draws} draws{rows}; no p-value is below "
        f"{1 / (1 + tests.draws):.2g}. {tests.how} {exact}."
    )


def _by_model(found: Evaluation) -> str:
    """Say what the model claims, and how that compares with what the log shows."""
    model, shares = found.model, found.shares()
    harm = (
        f"A gate at a probability of harm of {found.max_harm:g} by the model gives the policy to "
        f"{shares['improved']:.0%} of the tasks, and leaves {shares['held_back']:.0%} to the incumbent; in "
        f"{shares['unchanged']:.0%} both do the same. Without a gate the policy is expected to be worse than the "
        f"incumbent in {found.expected_harm:.1%} of the tasks."
    )
    below = model.difference.below
    chance = "below 0.0001" if below < 1e-4 else f"{below:.2g}"
    zero = model.difference.zero
    odds = f"its probability of a loss is {chance}"
    if zero >= _SOME:
        odds = f"the probability that actions have no effect at all is {zero:.2g}, that of a loss {chance}"
    gain = f"The model's own figure is a gain of {_worth(model.difference)}; {odds}."
    return paragraph(" ".join(part for part in (gain, _agreement(found), _updated(found), harm) if part))


def _agreement(found: Evaluation) -> str:
    """Say how the model's figure compares with the doubly robust one, of the same policies."""
    claim, model = found.claim, found.model
    if claim.estimate is None:
        return "No weighted estimate supports it."
    if claim.unlike is not None:
        return claim.unlike
    assert claim.model is not None
    refitted, name = found.learned_from == "yes", claim.estimate.name
    figure = (
        f"For the policies that {name} judges, which were learned without a fifth of the rows, it is "
        f"{_worth(claim.model)}, and it "
        if refitted
        else "It "
    )
    said = {
        "agrees": f"agrees with {name}: both leave out 0 on the same side.",
        "does not contradict": f"does not contradict {name}, but does not confirm it either: the two intervals do "
        "not leave out 0 on the same side.",
        "contradicts": f"contradicts {name}, {claim.estimate.gain:.4g}. "
        "Do not trust the model here until you know why.",
    }[claim.agreement or "does not contradict"]
    more = model.difference.mean - claim.model.mean
    size = f"{abs(more):.2g} a row {'more' if more > 0 else 'less'} than they do"
    if abs(more) < 1e-9 * abs(model.difference.mean):
        size = "as much as they do"
    learned = f" The policy itself, which was learned from all rows, gains {size} by the model."
    return figure + said + (learned if refitted else "")


def _updated(found: Evaluation) -> str:
    """Say that rows that are new do not update the model's claim."""
    if found.learned_from != "no":
        return ""
    return "These rows do not update it: it is the claim of the rows that the policy was learned from."


def _worth(worth: Worth) -> str:
    return f"{worth.mean:.4g} a row ({worth.low:.4g} to {worth.high:.4g})"


def _compared(found: Evaluation) -> str:
    """Other policies on the same rows."""
    if not found.comparisons:
        return ""
    share = f"{100 * found.model.level:g} %"
    rows = [["compared, doubly robust", "value", "gain", f"{share} from", "to", "policy less this", "se", ""]]
    if found.claim.estimate is not None:
        own = found.claim.estimate
        rows.append(
            ["this policy", *_with_gain(own.value, own.gain, own.gain_low, own.gain_high), "", "", ""]
        )
    for each in found.comparisons:
        shown = [""] * 6
        if not each.withheld:
            shown = _with_gain(each.value, each.gain, each.gain_low, each.gain_high)
            shown += _numbers(each.lead, each.lead_se if each.lead_se > 1e-9 * abs(each.gain) else 0.0)
        rows.append([each.name, *shown, "withheld" if each.withheld else ""])
    notes = [f"{each.name}: {each.note}." for each in found.comparisons]
    names = [each.name for each in found.comparisons]
    notes += [f"{name}: left out, since this log is too large for it." for name in USUAL if name not in names]
    reasons = dict.fromkeys(each.withheld for each in found.comparisons if each.withheld)
    notes += [f"Withheld, since {reason}." for reason in reasons]
    return table(rows) + "\n" + "\n".join(paragraph(note) for note in notes)


def _tasks(found: Evaluation) -> str:
    told = found.to_dict(extremes=_SHOWN)
    parts = []
    for name, heading in (("worst_tasks", "most likely harmed"), ("best_tasks", "least likely harmed")):
        head = [heading, "rows", "gain", "sd", "P(harm)"]
        parts.append(table([head, *(_task(each) for each in told[name])]))
    return "\n\n".join(parts)


def _task(each: dict[str, Any]) -> list[str]:
    return [
        str(each["task"]),
        thousands(each["rows"]),
        *_numbers(each["gain"], each["gain_sd"]),
        f"{each['harm']:.3f}",
    ]


def _limits(found: Evaluation) -> str:
    lines = list(found.limits)
    if found.rejected is not None and found.rejected.rows:
        lines.append(f"{found.rejected.counted()} {agreeing(found.rejected.rows, 'was', 'were')} set aside.")
    if found.checks is not None:
        lines.extend(found.checks.findings)
    if not lines:
        if found.claim.agreement == "contradicts":
            return "What limits trust: weighted rewards and the model differ, see above."
        return "Nothing else was found that limits trust."
    return "What limits trust:\n" + "\n".join(paragraph(f"- {line}") for line in lines)


def _with_gain(value: float, gain: float, low: float, high: float) -> list[str]:
    """Write a value, to the digits that its gain has, and the gain with its interval."""
    width = high - low if isfinite(high - low) else gain
    return [resolved(value, width) if isfinite(value) else "", *_numbers(gain, low, high)]


def _numbers(*values: float) -> list[str]:
    return [f"{value:.4g}" if isfinite(value) else "" for value in values]
