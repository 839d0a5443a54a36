"""What the splits say, in numbers and in sentences made from them."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from hieropo.demo.scenarios import Scenario
from hieropo.demo.value import Judgement


@dataclass(frozen=True)
class Findings:
    """Every policy against the incumbent, and the first one (HierOPO) against the others.

    Parameters
    ----------
    scenario : Scenario
    rows, tasks, splits, seed : int
    incumbent, incumbent_se : float
        Its value on held-out rows, and the standard error over rows.
    policies : tuple of Judgement
        Against the incumbent; HierOPO first.
    rivals : tuple of Judgement
        HierOPO's difference to each of the others, named by the other.
    """

    scenario: Scenario
    rows: int
    tasks: int
    splits: int
    seed: int
    incumbent: float
    incumbent_se: float
    policies: tuple[Judgement, ...]
    rivals: tuple[Judgement, ...]

    def sentences(self) -> list[str]:
        """What this log shows and what it does not, from the numbers."""
        first = self.policies[0]
        compared = [replace(first, name=self.scenario.incumbent), *self.rivals]
        found = []
        for word, sign in (("more", 1), ("less", -1)):
            shown = [each for each in compared if each.shown and sign * each.difference > 0]
            if shown:
                found.append(f"Shown: {first.name} is worth {word} than {_listed(shown)}.")
        open_ = [each for each in compared if not each.shown]
        if open_:
            found.append(f"Not shown: that {first.name} is worth more, or less, than {_listed(open_)}.")
        if not any(policy.shown for policy in self.policies):
            found.append(self._nothing())
        return found

    def _nothing(self) -> str:
        text = f"This log cannot tell any of these policies from {self.scenario.incumbent}"
        events = [policy.events for policy in self.policies]
        if any(policy.enough for policy in self.policies):
            return f"{text}."
        return (
            f"{text}: of the held-out rows of a split that have the action a policy would choose, only "
            f"{min(events):.1f} to {max(events):.1f} have a reward other than zero."
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON can hold it."""
        return {
            "data": self.scenario.name,
            "rows": self.rows,
            "tasks": self.tasks,
            "splits": self.splits,
            "seed": self.seed,
            "unit": self.scenario.unit,
            "incumbent": {
                "name": self.scenario.incumbent, "value": self.incumbent, "value_se": self.incumbent_se
            },
            "policies": [_to_dict(policy) for policy in self.policies],
            "hieropo_less_other": [_to_dict(rival, "value", "value_se") for rival in self.rivals],
            "sentences": self.sentences(),
            "not_covered": list(self.scenario.notes),
        }  # fmt: skip


def _to_dict(judgement: Judgement, *left_out: str) -> dict[str, Any]:
    found = {name: value for name, value in asdict(judgement).items() if name not in left_out}
    return {**found, "shown": judgement.shown}


def _listed(judgements: Sequence[Judgement]) -> str:
    texts = [_with_numbers(each) for each in judgements]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def _with_numbers(judgement: Judgement) -> str:
    digits = decimals(judgement.widest)
    numbers = f"{judgement.difference:+.{digits}f}, standard error {judgement.widest:.{digits}f}"
    return f"{judgement.name} ({numbers})"


def decimals(se: float) -> int:
    """Digits after the point that show two figures of a standard error."""
    return max(0, 1 - math.floor(math.log10(se))) if se > 0 else 4
