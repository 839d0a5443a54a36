"""An evaluation in words and tables, for a terminal."""

from math import isfinite
from typing import Any

from hieropo.core.gating import GatedPolicy
from hieropo.core.value_estimates import ValueEstimate
from hieropo.evaluation.evaluation import Evaluation
from hieropo.text import agreeing, counted, paragraph, table, thousands

_SHOWN = 5  # tasks at either end

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
    parts = [_opening(found), _fleet(found), _weighted(found), _verdict(found), _tasks(found), _limits(found)]
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
        rows.append([name, *_numbers(worth.mean, worth.low, worth.high)])
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
            _numbers(each.value, each.gain, each.gain_low, each.gain_high) if not note else ["", "", "", ""]
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
    model, level = found.model, found.model.level
    gain = model.difference
    shares = found.shares()
    if gain.low > 0:
        told = f"By the model the policy is better than the incumbent (probability {1 - gain.below:.3g})."
    elif gain.high < 0:
        told = f"By the model the policy is worse than the incumbent (probability {gain.below:.3g})."
    else:
        told = f"Whether the policy is better than the incumbent is not told at {100 * level:g} %."
    harm = (
        f" Of the tasks it improves {shares['improved']:.0%} with a probability of harm of at most {found.max_harm:g}, "
        f"leaves {shares['unchanged']:.0%} as they are, and would be held back by such a gate in "
        f"{shares['held_back']:.0%}; it is expected to be worse than the incumbent in {found.expected_harm:.1%}."
    )
    return paragraph(told + harm + _agreement(found))


def _agreement(found: Evaluation) -> str:
    """Whether weighted rewards say the same as the model."""
    each, gain = _trusted(found), found.model.difference
    if each is None:
        return " No weighted estimate confirms it: all of this is the model's word."
    if _contradicted(found):
        return (
            f" Weighted rewards ({each.name}) say otherwise: a gain of {each.gain:.3g} where the model has "
            f"{gain.mean:.3g}. Do not trust the model here until you know why."
        )
    return f" Weighted rewards ({each.name}) agree with the model."


def _trusted(found: Evaluation) -> ValueEstimate | None:
    """Return the weighted estimate that the model is held against, if one can be given."""
    return next((e for e in found.estimates if e.withheld is None and e.name in ("DR", "SNDR")), None)


def _contradicted(found: Evaluation) -> bool:
    """Whether the model's gain is more than two standard errors away from the weighted one."""
    each, gain = _trusted(found), found.model.difference
    return each is not None and abs(each.gain - gain.mean) > 2 * (each.gain_se**2 + gain.sd**2) ** 0.5


def _tasks(found: Evaluation) -> str:
    told = found.to_dict(extremes=_SHOWN)
    parts = []
    for name, heading in (("worst_tasks", "most likely harmed"), ("best_tasks", "most surely improved")):
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
        if _contradicted(found):
            return "What limits trust: weighted rewards and the model differ, see above."
        return "Nothing else was found that limits trust."
    return "What limits trust:\n" + "\n".join(paragraph(f"- {line}") for line in lines)


def _numbers(*values: float) -> list[str]:
    return [f"{value:.4g}" if isfinite(value) else "" for value in values]
