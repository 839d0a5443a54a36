"""What the splits say, in numbers and in sentences made from them."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hieropo.demo.scenarios import Scenario
from hieropo.demo.value import SIGNIFICANT, Judgement
from hieropo.evaluation import Verdict


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

    @property
    def verdict(self) -> Verdict | None:
        """Verdict on the gain of the first policy, as an evaluation says it; None for too few events."""
        first = self.policies[0]
        if not first.enough:
            return None
        if not first.shown:
            return "not shown"
        return "shown" if first.difference > 0 else "worse"

    def sentences(self) -> list[str]:
        """Say what this log shows and what it does not: first of the incumbent, then of the other policies."""
        found = [self._against_incumbent()]
        name, told = self.policies[0].name, [each for each in self.rivals if each.enough]
        for word, sign in (("more", 1), ("less", -1)):
            shown = [each for each in told if each.shown and sign * each.difference > 0]
            if shown:
                found.append(f"It shows {name} to be worth {word} than {_listed(shown)}.")
        open_ = [each for each in self.rivals if not each.shown]
        if open_:
            found.append(f"It does not show {name} to be worth more, or less, than {_listed(open_)}.")
        return found

    def _against_incumbent(self) -> str:
        first, other = self.policies[0], self.scenario.incumbent
        if self.verdict is None:
            events = [policy.events for policy in self.policies]
            return (
                f"The log shows nothing of the gain of {first.name} over {other}: of the held-out rows of a split that "
                f"have the action a policy would choose, only {min(events):.1f} to {max(events):.1f} have a reward "
                "other than zero."
            )
        said = {
            "shown": f"The log shows a gain of {first.name} over {other}",
            "not shown": f"The log does not show a gain of {first.name} over {other}, nor a loss",
            "worse": f"The log shows {first.name} to be worse than {other}",
        }[self.verdict]
        digits, half = decimals(first.widest), SIGNIFICANT * first.widest
        low, high = first.difference - half, first.difference + half
        return (
            f"{said}: {first.difference:+.{digits}f} (95 % interval {low:+.{digits}f} to {high:+.{digits}f})."
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
            "verdict": self.verdict,
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
